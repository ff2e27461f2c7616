"""A TCP proxy that does to connections what networks do. Faults are data: Cut, Refuse, Stall, Slow, HalfOpen,
CutAfter, DropCommitAnswer.

    with Proxy((HOST, stack.postgres.port), postgres=True) as proxy:
        proxy.inject(Stall(), when=b"insert into")   # as soon as a client sends this
        …
        proxy.heal()

One thread with an event loop does the work of a proxy. Several faults can be in force at once.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from exactbatch.local.child_process import HOST, find_port
from exactbatch.local.kafka_server import Broker

Direction = Literal["to_server", "to_client"]

BOTH: Final[tuple[Direction, ...]] = ("to_server", "to_client")
_CHUNK: Final = 64 * 1024
_TIMEOUT: Final = 10.0  # seconds in which the loop does what it is told
# The requests before a Postgres session that the server answers with one byte: for TLS, and for GSSAPI.
_ENCRYPTION_REQUESTS: Final = (80877103, 80877104)


@dataclass(frozen=True)
class Cut:
    """Reset every connection, once; new ones work."""


@dataclass(frozen=True)
class Refuse:
    """Reset every connection, and refuse new ones until healed."""


@dataclass(frozen=True)
class Stall:
    """Accept connections, and forward nothing until healed; then everything goes on where it was."""

    directions: tuple[Direction, ...] = BOTH


@dataclass(frozen=True)
class Slow:
    """Send each client no more than this many bytes a second, until healed."""

    rate: int


@dataclass(frozen=True)
class HalfOpen:
    """Swallow what comes in one direction; connections that have lost bytes are reset when healed."""

    direction: Direction


@dataclass(frozen=True)
class CutAfter:
    """Reset every connection once this many bytes have gone in one direction; new ones work."""

    count: int
    direction: Direction = "to_client"


@dataclass(frozen=True)
class DropCommitAnswer:
    """Forward a COMMIT to Postgres, wait for its answer, and reset the connection instead of forwarding it.

    Once, at the first COMMIT of a transaction in which a client has sent `statement`.
    """

    statement: bytes = b""


Fault = Cut | Refuse | Stall | Slow | HalfOpen | CutAfter | DropCommitAnswer


class Messages:
    """Cuts one direction of a Postgres connection into messages: (type, payload); type b"" before the session."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.in_session = False
        self.single_bytes = 0  # of answers to requests for encryption, which are no messages

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Add bytes; give the messages that are complete now."""
        self._held += data
        while True:
            if self.single_bytes and self._held:
                self.single_bytes -= 1
                del self._held[:1]
                continue
            start = 1 if self.in_session else 0
            if len(self._held) < start + 4:
                return
            end = start + int(struct.unpack_from("!i", self._held, start)[0])
            if len(self._held) < end:
                return
            message = bytes(self._held[:start]), bytes(self._held[start + 4 : end])
            del self._held[:end]
            if not self.in_session and struct.unpack_from("!i", message[1])[0] not in _ENCRYPTION_REQUESTS:
                self.in_session = True
            yield message


@dataclass(eq=False)
class _Link:
    """One client's connection and the one to the server that is made for it."""

    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    asked: Messages = field(default_factory=Messages)
    answered: Messages = field(default_factory=Messages)
    transaction: bytearray = field(
        default_factory=bytearray
    )  # what the client has sent since its last COMMIT
    withheld: bool = False
    has_lost_bytes: bool = False

    def reset(self) -> None:
        """End both connections by RST, so that what was under way is lost."""
        for writer in self.writers:
            with suppress(OSError):
                found = writer.get_extra_info("socket")
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    """Forwards connections to a server. With `postgres`, it understands the messages of Postgres.

    `server` may be changed at any time, for new connections.
    """

    def __init__(self, server: tuple[str, int], *, port: int | None = None, postgres: bool = False) -> None:
        self.server, self.port = server, port or find_port(None)
        self.fired = threading.Event()  # a fault has taken effect since the last heal()
        self._postgres = postgres
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy {self.port}", daemon=True)
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._pending: list[tuple[Fault, bytes]] = []
        self._later: list[tuple[Fault, int]] = []
        self._to_clients = 0  # bytes
        self._stalled: dict[Direction, asyncio.Event] = {each: asyncio.Event() for each in BOTH}
        self._rate: int | None = None  # bytes a second, to each client
        self._swallowed: set[Direction] = set()
        self._left: dict[Direction, int] = {}
        self._drop: DropCommitAnswer | None = None

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self._do(self._heal)
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT)
        self._loop.close()

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"{HOST}:{self.port}"

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._links)

    def inject(self, fault: Fault, *, when: bytes = b"", after: int = 0) -> None:
        """Let a fault happen now; or as soon as a client sends these bytes, before they are forwarded; or once
        this many bytes, or a few more, have gone to clients."""

        async def inject() -> None:
            if when:
                self._pending.append((fault, when))
            elif after:
                self._later.append((fault, self._to_clients + after))
            else:
                await self._happen(fault)

        self._do(inject)

    def heal(self) -> None:
        """End all faults."""
        self._do(self._heal)

    def _do(self, what: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await what()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(_TIMEOUT)

    # What follows runs in the loop.

    async def _heal(self) -> None:
        self._pending.clear()
        self._later.clear()
        self._rate = None
        self._swallowed.clear()
        self._left.clear()
        self._drop = None
        for link in [each for each in self._links if each.has_lost_bytes or each.withheld]:
            link.reset()
        for flows in self._stalled.values():
            flows.set()
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, HOST, self.port)
        self.fired.clear()

    async def _close(self) -> None:
        await self._refuse()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._reset_all()

    def _reset_all(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _happen(self, fault: Fault) -> None:
        match fault:
            case Cut():
                self._reset_all()
            case Refuse():
                await self._refuse()
            case Stall(directions):
                for each in directions:
                    self._stalled[each].clear()
            case Slow(rate):
                self._rate = rate
            case HalfOpen(direction):
                self._swallowed.add(direction)
            case CutAfter(count, direction):
                self._left[direction] = count
                return  # it takes effect later
            case DropCommitAnswer():
                self._drop = fault
                return  # it takes effect later
        self.fired.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.server)
        except OSError:
            _Link((writer, writer)).reset()
            return
        link = _Link((writer, server_writer))
        self._links.add(link)
        try:
            await asyncio.gather(
                self._pump(link, reader, server_writer, "to_server"),
                self._pump(link, server_reader, writer, "to_client"),
            )
        except OSError:
            link.reset()  # one side is gone without a word: so is the other
        finally:
            self._links.discard(link)
            for each in link.writers:
                each.close()

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        while data := await reader.read(_CHUNK):
            if direction == "to_server":
                await self._look_for(data)
            else:
                await self._count(len(data))
                if self._rate is not None:
                    await asyncio.sleep(len(data) / self._rate)
            await self._stalled[direction].wait()
            if direction in self._swallowed:
                link.has_lost_bytes = True
                continue
            if self._postgres and self._is_withheld(link, data, direction):
                continue
            left = self._left.get(direction)
            if left is not None and left <= len(data):
                writer.write(data[:left])
                with suppress(OSError):
                    await writer.drain()
                del self._left[direction]
                self.fired.set()
                self._reset_all()
                return
            if left is not None:
                self._left[direction] = left - len(data)
            writer.write(data)
            await writer.drain()
        if not writer.is_closing() and direction not in self._swallowed:
            await self._stalled[direction].wait()
            with suppress(OSError):
                writer.write_eof()

    async def _look_for(self, data: bytes) -> None:
        for pending in [each for each in self._pending if each[1] in data]:
            self._pending.remove(pending)
            await self._happen(pending[0])

    async def _count(self, bytes_: int) -> None:
        self._to_clients += bytes_
        for later in [each for each in self._later if each[1] <= self._to_clients]:
            self._later.remove(later)
            await self._happen(later[0])

    def _is_withheld(self, link: _Link, data: bytes, direction: Direction) -> bool:
        """Follow the messages; whether this is the answer to a COMMIT that shall not arrive."""
        if direction == "to_server":
            for type_, payload in link.asked.feed(data):
                if type_ == b"" and struct.unpack_from("!i", payload)[0] in _ENCRYPTION_REQUESTS:
                    link.answered.single_bytes += 1
                if type_ in (b"Q", b"P"):
                    self._follow(link, payload)
            return False
        # A server's messages have a type from the first on.
        link.answered.in_session = True
        for type_, _ in link.answered.feed(data):
            if link.withheld and type_ == b"Z":  # ready for the next query: the COMMIT is done
                self.fired.set()
                link.reset()
        return link.withheld

    def _follow(self, link: _Link, statement: bytes) -> None:
        # Parse has the name of the statement first, which is empty or a word without COMMIT.
        text = statement.lstrip(b"\0")
        if text[:6].upper() != b"COMMIT":
            link.transaction += text
            return
        if self._drop is not None and self._drop.statement in link.transaction:
            link.withheld, self._drop = True, None
        link.transaction.clear()


@contextmanager
def proxied_broker(
    broker: Broker, protocol: str = "PLAINTEXT", settings: Mapping[str, str] = {}
) -> Iterator[Proxy]:
    """Start a broker that has a second listener, PROXIED, whose advertised address is the proxy's.

    Clients that bootstrap at the proxy's address stay behind it; the broker's own address is as usual. The
    caller stops the broker.
    """
    broker.configure({}, None, anywhere=True)  # the usual ports are what everybody else tries first
    listeners = {purpose.upper(): f"{HOST}:{port}" for purpose, port in broker.ports.items()}
    behind = find_port(None, frozenset(broker.ports.values()))
    with Proxy((HOST, behind)) as proxy:
        protocols = dict.fromkeys(listeners, "SASL_PLAINTEXT") | {"PROXIED": protocol}
        broker.configure(
            {},
            {
                "listeners": _listed({**listeners, "PROXIED": f"{HOST}:{behind}"}, "://"),
                "advertised.listeners": f"CLIENT://{listeners['CLIENT']},PROXIED://{proxy.address}",
                "listener.security.protocol.map": _listed(protocols, ":"),
                **settings,
            },
        )
        broker.start()
        yield proxy


def _listed(values: Mapping[str, str], between: str) -> str:
    return ",".join(f"{name}{between}{value}" for name, value in values.items())
