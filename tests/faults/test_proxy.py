"""The proxy itself: each of its faults is what it says."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from exactbatch.kafka.broker import KafkaBroker
from exactbatch.local import LocalStack
from exactbatch.local.child_process import HOST
from support.faults.proxy import (
    Cut,
    CutAfter,
    DropCommitAnswer,
    Fault,
    HalfOpen,
    Proxy,
    Refuse,
    Slow,
    Stall,
    proxied_broker,
)
from support.stacks import new_stack


@pytest.fixture
def echo() -> Iterator[Proxy]:
    """A proxy before a server that sends back what it gets."""
    listener = socket.create_server((HOST, 0))

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            while data := client.recv(1000):
                client.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with Proxy((HOST, listener.getsockname()[1])) as proxy:
        yield proxy
    listener.close()


def client_of(proxy: Proxy) -> socket.socket:
    client = socket.create_connection((HOST, proxy.port), timeout=30)
    assert says(client, b"hello") == b"hello"
    return client


def says(client: socket.socket, what: bytes) -> bytes:
    client.sendall(what)
    return client.recv(1000)


def test_a_cut_resets_what_is_open_and_new_connections_work(echo: Proxy) -> None:
    with client_of(echo) as client:
        echo.inject(Cut())
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    client_of(echo).close()


def test_a_cut_can_wait_for_what_a_client_sends(echo: Proxy) -> None:
    with client_of(echo) as client:
        echo.inject(Cut(), when=b"magic")
        assert says(client, b"words") == b"words"
        assert not echo.fired.is_set()
        with pytest.raises(ConnectionResetError):
            says(client, b"the magic word")
        assert echo.fired.is_set()


def test_a_cut_can_wait_until_enough_has_come(echo: Proxy) -> None:
    with client_of(echo) as client:
        echo.inject(Cut(), after=10)
        assert says(client, b"12345678") == b"12345678"
        with pytest.raises(ConnectionResetError):
            says(client, b"90")


def test_new_connections_are_refused_until_it_is_healed(echo: Proxy) -> None:
    with client_of(echo) as client:
        echo.inject(Refuse())
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        client_of(echo)
    echo.heal()
    client_of(echo).close()


@pytest.mark.parametrize("fault", [Stall(), Stall(("to_server",)), Stall(("to_client",))], ids=str)
def test_a_stall_ends_where_it_began(echo: Proxy, fault: Fault) -> None:
    with client_of(echo) as client:
        echo.inject(fault)
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            says(client, b"anyone there")
        with pytest.raises(TimeoutError), socket.create_connection((HOST, echo.port), timeout=0.3) as another:
            says(another, b"accepted, and silent")
        client.settimeout(5)
        echo.heal()
        assert client.recv(1000) == b"anyone there"


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_half_open_connection_loses_bytes_and_is_reset_when_healed(echo: Proxy, direction: Any) -> None:
    with client_of(echo) as client:
        echo.inject(HalfOpen(direction))
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            says(client, b"gone")
        client.settimeout(5)
        echo.heal()
        with pytest.raises(ConnectionResetError):
            client.recv(1000)


def test_it_cuts_after_a_number_of_bytes_over_all_connections(echo: Proxy) -> None:
    with client_of(echo) as client, client_of(echo) as another:
        echo.inject(CutAfter(7, "to_server"))
        assert says(client, b"1234") == b"1234"
        assert not echo.fired.is_set()
        with suppress(ConnectionResetError):
            assert says(another, b"56789") in (b"567", b"")
        assert echo.fired.wait(30)
        with pytest.raises(ConnectionResetError):
            client.recv(1000)


Connect = Callable[[], Any]


@pytest.fixture
def postgres(database: str) -> Iterator[tuple[Proxy, Connect]]:
    found = psycopg2.extensions.parse_dsn(database)
    with Proxy((HOST, int(found["port"])), postgres=True) as proxy:
        dsn = make_dsn(database, port=proxy.port)
        yield proxy, lambda: psycopg2.connect(dsn)


def test_a_commit_whose_answer_is_dropped_is_committed(postgres: tuple[Proxy, Connect]) -> None:
    """Only that of the transaction that is meant; the others are answered."""
    proxy, connect = postgres
    with closing(connect()) as connection, connection.cursor() as cursor:
        cursor.execute("create table numbers (n int)")
        connection.commit()
        proxy.inject(DropCommitAnswer(b"insert into numbers"))
        cursor.execute("select * from numbers")
        connection.commit()
        assert not proxy.fired.is_set()
        cursor.execute("insert into numbers select generate_series(1, 100000) returning repeat('x', 100)")
        assert cursor.rowcount == 100_000
        with pytest.raises(psycopg2.OperationalError):
            connection.commit()
        assert proxy.fired.is_set()
    with closing(connect()) as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from numbers")
        assert cursor.fetchone() == (100_000,)
        connection.commit()


@pytest.mark.slow
def test_a_broker_behind_a_proxy_is_reached_through_it_alone() -> None:
    stack = new_stack("proxied")
    try:
        _check_proxied(stack)
    finally:
        stack.down(delete=True)


def _check_proxied(stack: LocalStack) -> None:
    with proxied_broker(stack.broker) as proxy:
        through = KafkaBroker(
            {"bootstrap.servers": proxy.address, "socket.connection.setup.timeout.ms": 1000}
        )
        assert through.partitions([]) == ()
        proxy.inject(Refuse())
        with pytest.raises(Exception, match="^Kafka at .* does not answer"):
            through.partitions([])
        assert KafkaBroker(stack.kafka_properties).partitions([]) == ()


def test_a_slow_network_takes_the_time_of_its_bytes(echo: Proxy) -> None:
    with client_of(echo) as client:
        echo.inject(Slow(1000))
        started = time.monotonic()
        assert says(client, b"x" * 500) == b"x" * 500
        assert time.monotonic() - started >= 0.5
        echo.heal()
        started = time.monotonic()
        assert says(client, b"x" * 500) == b"x" * 500
        assert time.monotonic() - started < 0.5
