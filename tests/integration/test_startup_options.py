"""A server or pooler that refuses startup options gets none, however it words its answer; transactions set all."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, Final

import pytest
from psycopg2.extensions import make_dsn

from exactbatch.errors import ConfigurationError, PostgresUnavailable
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import connect
from support.postgres_wire import has_options, listening_gate, open_upstream, refuse

OPENERS: Final = (connect, connect_arrow)  # that of the driver, and that of executors
ANSWERS: Final = (
    ("0A000", "command-line options are not supported"),
    ("0A000", "Feature not supported: RDS Proxy currently doesn't support command-line options"),
    ("08P01", "unsupported startup parameter in options: lock_timeout"),
    ("08P01", "unsupported startup parameter: options"),
    ("XX000", "startup options are not supported"),
    ("XX000", "cannot set lock_timeout here"),
)


@contextmanager
def refusing(dsn: str, refuses: Callable[[bytes], bool], code: str, text: str) -> Iterator[str]:
    """Yield a connection string through a proxy that answers some startup packets with an error."""

    def admit(client: socket.socket, packet: bytes) -> socket.socket | None:
        if not refuses(packet):
            return open_upstream(dsn, packet)
        refuse(client, code, text)
        return None

    with listening_gate(dsn, admit) as port:
        yield make_dsn(dsn, host="127.0.0.1", port=port)


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(("code", "text"), ANSWERS)
def test_startup_options_that_are_refused_are_left_out_whatever_the_answer_says(
    database: str, opener: Any, code: str, text: str
) -> None:
    refused = list[bytes]()

    def refuses(packet: bytes) -> bool:
        if has_options(packet):
            refused.append(packet)
        return has_options(packet)

    with refusing(database, refuses, code, text) as dsn:
        for _ in range(3):
            with closing(opener(dsn, application="tests")) as connection, connection.cursor() as cursor:
                cursor.execute("select current_setting('TimeZone') as zone, current_setting('lock_timeout')")
                assert tuple(cursor.fetchone()) == ("UTC", "1min")
    assert len(refused) == 1  # the process remembers it


@pytest.mark.parametrize("opener", OPENERS)
def test_threads_whose_options_are_refused_at_the_same_time_all_connect(database: str, opener: Any) -> None:
    """The one that is refused last finds that the process knows it already."""
    both_sent, one_came_again = threading.Barrier(2), threading.Event()

    def refuses(packet: bytes) -> bool:
        if not has_options(packet):
            one_came_again.set()
            return False
        if both_sent.wait(60) == 0:
            assert one_came_again.wait(60)
        return True

    def select(dsn: str) -> int:
        with closing(opener(dsn, application="tests")) as connection, connection.cursor() as cursor:
            cursor.execute("select 1")
            return int(cursor.fetchone()[0])

    with refusing(database, refuses, *ANSWERS[0]) as dsn, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(select, [dsn, dsn])) == [1, 1]


@pytest.mark.parametrize("opener", OPENERS)
def test_options_of_the_user_that_are_refused_are_an_error(database: str, opener: Any) -> None:
    with refusing(database, has_options, "08P01", "unsupported startup parameter: options") as dsn:
        own = make_dsn(dsn, options="-c geqo=off")
        with pytest.raises(ConfigurationError) as caught:
            opener(own, application="tests")
    assert "refuses the `options` of the connection string (" in str(caught.value)
    assert "Remove them, or give the connection the address of Postgres itself" in str(caught.value)


@pytest.mark.parametrize("opener", OPENERS)
def test_another_answer_that_the_plain_connection_gets_as_well_is_not_about_options(
    database: str, opener: Any
) -> None:
    text = "unsupported frontend protocol 3.0: server supports 4.0 to 4.0"
    with (
        refusing(database, lambda _packet: True, "0A000", text) as dsn,
        pytest.raises(PostgresUnavailable) as caught,
    ):
        opener(dsn, application="tests")
    assert text in str(caught.value)
    assert "options" not in str(caught.value)
