"""TLS in front of Postgres, as a pooler or a load balancer has it: plain connections are refused."""

import asyncio
import ssl
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

_SSL_REQUEST: Final = 80877103
_GSS_REQUEST: Final = 80877104
_REFUSAL: Final = b"SFATAL\0C28000\0Mexpected TLS, found a plain connection\0\0"


class TlsProxy:
    """Listen with a certificate, and forward what arrives, decrypted, to a server without TLS.

    `applications` are the application names of the connections that came by TLS, in their order; `plain`
    counts those that came without.
    """

    def __init__(self, certificate: tuple[Path, Path], host: str, server_port: int) -> None:
        self.applications: list[str] = []
        self.plain = 0
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(*certificate)
        self._host, self._server_port = host, server_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._serve, host, 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop listening, and drop what is still open."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        # A client that hangs up, before, in or after the handshake, is its own affair.
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                await self._forward(client, to_client)
            finally:
                to_client.close()

    async def _forward(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        first = await _packet(client)
        if struct.unpack_from("!i", first, 4) == (_GSS_REQUEST,):
            to_client.write(b"N")
            first = await _packet(client)
        if struct.unpack_from("!i", first, 4) != (_SSL_REQUEST,):
            self.plain += 1
            to_client.write(b"E" + struct.pack("!i", len(_REFUSAL) + 4) + _REFUSAL)
            await to_client.drain()
            return
        to_client.write(b"S")
        await to_client.drain()
        await to_client.start_tls(self._context)
        startup = await _packet(client)
        names = startup[8:].decode().split("\0")
        self.applications.append(dict(zip(names[::2], names[1::2], strict=False)).get("application_name", ""))
        server, to_server = await asyncio.open_connection(self._host, self._server_port)
        to_server.write(startup)
        try:
            await asyncio.wait(
                [
                    asyncio.create_task(_pump(client, to_server)),
                    asyncio.create_task(_pump(server, to_client)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            to_server.close()


async def _packet(reader: asyncio.StreamReader) -> bytes:
    """A packet of the start-up phase: its length, itself included, and the rest."""
    length = await reader.readexactly(4)
    return length + await reader.readexactly(struct.unpack("!i", length)[0] - 4)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
