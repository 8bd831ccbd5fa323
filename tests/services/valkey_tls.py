"""TLS in front of a server: certificates made by the `openssl` command, and a listener that decrypts.

The wheel's valkey-server is built without TLS, so the server itself speaks plain text behind it; a client can't tell.
"""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.services.child import ServiceUnavailable, remove_folder, temporary_folder


class Certificates:
    """An authority, a certificate of localhost and 127.0.0.1 that it has signed, and one of a client."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            raise ServiceUnavailable("the command openssl is not on the PATH, so no certificates can be made")
        self.authority = folder / "ca.pem"
        self.client = self._made(folder, "client", "subjectAltName=DNS:client")
        self.server = self._made(folder, "server", "subjectAltName=DNS:localhost,IP:127.0.0.1")

    def _made(self, folder: Path, name: str, extension: str) -> tuple[Path, Path]:
        key, certificate, request = (folder / f"{name}.{kind}" for kind in ("key", "pem", "csr"))
        authority_key, extensions = folder / "ca.key", folder / f"{name}.ext"
        extensions.write_text(extension)
        if not self.authority.exists():
            _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test authority",
                     "-keyout", authority_key, "-out", self.authority)  # fmt: skip
        _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        _openssl("x509", "-req", "-in", request, "-CA", self.authority, "-CAkey", authority_key, "-CAcreateserial",
                 "-days", "2", "-extfile", extensions, "-out", certificate)  # fmt: skip
        return certificate, key


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


class TlsFront:
    """``async with TlsFront(server.url) as front: ValkeyStore(front.url)``; with ``ask`` clients must show theirs."""

    def __init__(self, server_url: str, *, ask: bool = False) -> None:
        address = urlsplit(server_url)
        self._server = (address.hostname or "127.0.0.1", address.port or 6379)
        self._folder = temporary_folder("tls")
        self.certificates = Certificates(self._folder)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*self.certificates.server)
        if ask:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(self.certificates.authority)
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"valkeys://127.0.0.1:{self.port}/0?ssl_ca_certs={self.certificates.authority}"

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        remove_folder(self._folder)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server_reader, server_writer = await asyncio.open_connection(*self._server)
        self._writers |= {writer, server_writer}
        await asyncio.gather(_carry(reader, server_writer), _carry(server_reader, writer))


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()
