"""A server or pooler that refuses startup options gets none, however it words its answer; transactions set all."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from exactbatch.errors import ConfigurationError, PostgresUnavailable
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import connect
from support.postgres_wire import ENCRYPTED, copy, read_packet

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
    server = parse_dsn(dsn)
    answer = f"SFATAL\0VFATAL\0C{code}\0M{text}\0\0".encode()

    def serve(client: socket.socket) -> None:
        with suppress(OSError), closing(client):
            while struct.unpack("!i", (packet := read_packet(client))[4:8])[0] in ENCRYPTED:
                client.sendall(b"N")
            if refuses(packet):
                client.sendall(b"E" + struct.pack("!i", len(answer) + 4) + answer)
                return
            with closing(socket.create_connection((server["host"], int(server["port"])))) as upstream:
                upstream.sendall(packet)
                threading.Thread(target=copy, args=(upstream, client), daemon=True).start()
                copy(client, upstream)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield make_dsn(dsn, host="127.0.0.1", port=listener.getsockname()[1])


def has_options(packet: bytes) -> bool:
    return b"\0options\0" in packet


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
