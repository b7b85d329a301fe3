# Links on stage whose clients, brokers or both speak TLS, which tests hold in memory or leave to openssl.

from __future__ import annotations

import re
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.data.connecting.handshakes import TlsWorkspace, perform_client_handshake, perform_server_handshake
from gateway.data.relay.tls_links import TlsLink
from gateway.data.session.session import ClientSession
from gateway.data.shared.budget import MemoryAccount
from gateway.data.sockets.inbound import SHARED_READ_BYTES
from gateway.data.sockets.tls import TlsConnection
from gateway.tls.broker_tls import BrokerTls, make_broker_context
from gateway.tls.certificates import (
    ListenerTls,
    make_listener_context,
)
from gateway.tls.tls_reasons import BROKEN_RECORD_REASON
from tests.certificates import Authority
from tests.gateway.data.relay.stage import Stage, tcp_pair

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
NODE_ID = 1
# By OpenSSL up to 3.1, and from 3.2 on.
BROKEN_RECORD_SAID = ("decryption failed or bad record mac", BROKEN_RECORD_REASON)


class Client:
    """A client's TLS in memory, so that tests choose how its records are cut."""

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext) -> None:
        self.stream = stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    async def shake_hands(self, first: bytes = b"") -> None:
        """Shake hands; `first` goes out together with the last flight of the handshake."""
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                await self.stream.send_all(self._outgoing.read())
                data = await self.stream.receive_some(65_536)
                assert data, "closed in the middle of the handshake"
                self._incoming.write(data)
            else:
                if first:
                    self._object.write(first)
                await self.stream.send_all(self._outgoing.read())
                return

    def encrypt(self, data: bytes, record: int = 16_384) -> bytes:
        for at in range(0, len(data), record):
            self._object.write(data[at : at + record])
        return self._outgoing.read()

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(self.encrypt(data))

    async def receive(self, size: int) -> bytes:
        """Read that many bytes; fewer if the gateway closes first."""
        found = bytearray()
        while len(found) < size:
            try:
                data = self._object.read(size - len(found))
            except ssl.SSLWantReadError:
                data = await self.stream.receive_some(65_536)
                assert data, f"closed without a close_notify, after {len(found)} bytes"
                self._incoming.write(data)
                continue
            except ssl.SSLZeroReturnError:  # both sides have said so
                break
            if not data:
                break
            found += data
        return bytes(found)

    async def say_end(self) -> None:
        """Send close_notify: the client sends no more, but still reads answers."""
        with pytest.raises(ssl.SSLWantReadError):
            self._object.unwrap()
        await self.stream.send_all(self._outgoing.read())


class TlsStage:
    """Links whose clients speak TLS."""

    def __init__(self, stage: Stage, authority: Authority, listener: ListenerTls) -> None:
        self.stage = stage
        self._authority = authority
        self._context = make_listener_context(listener)
        self._scratch = memoryview(bytearray(SHARED_READ_BYTES))

    async def connect(
        self, *, small: bool = False, version: ssl.TLSVersion = VERSIONS[-1], first: bytes = b""
    ) -> tuple[TlsLink, Client, trio.SocketStream]:
        near, far = tcp_pair(small)
        upstream, broker = tcp_pair(small)
        self.stage.streams += (far, broker)
        context = self._authority.client_context()
        context.minimum_version = context.maximum_version = version
        client = Client(far, context)
        near.setblocking(False)
        tls = TlsConnection(self._context, near, self._scratch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.shake_hands, first)
            await perform_server_handshake(tls, near, trio.Lock())
        now = trio.current_time()
        session = ClientSession(self.stage.play.world, 1, MemoryAccount(self.stage.reactor.budget, "test"), now)
        link = TlsLink(self.stage.reactor, session, near, upstream, "test:1", tls)
        link.open()
        self.stage.reactor.run_deferred(now)
        return link, client, broker


@asynccontextmanager
async def openssl_client(
    stage: Stage, authority: Authority, listener: ListenerTls, *options: str
) -> AsyncIterator[tuple[TlsLink, trio.Process, trio.SocketStream]]:
    """A link whose client is openssl's: what goes to its input goes to the link, but for lines that are commands. With
    the broker's end.
    """
    with trio.socket.socket() as listening:
        await listening.bind(("127.0.0.1", 0))
        listening.listen()
        command = ["openssl", "s_client", *options, "-CAfile", str(authority.certificate)]
        command += ["-connect", "{}:{}".format(*listening.getsockname())]
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        accepted, _ = await listening.accept()
    assert process.stdin is not None
    assert process.stdout is not None
    near = socket.socket(fileno=accepted.detach())
    near.setblocking(False)
    tls = TlsConnection(make_listener_context(listener), near, memoryview(bytearray(SHARED_READ_BYTES)))
    await perform_server_handshake(tls, near, trio.Lock())
    upstream, broker = tcp_pair(False)
    stage.streams.append(broker)
    now = trio.current_time()
    session = ClientSession(stage.play.world, 1, MemoryAccount(stage.reactor.budget, "test"), now)
    link = TlsLink(stage.reactor, session, near, upstream, "test:1", tls)
    link.open()
    async with process.stdin, process.stdout:
        yield link, process, broker
    process.kill()
    await process.wait()


async def say(process: trio.Process, data: bytes, awaited: bytes) -> None:
    """Give it that input, and wait until it has put out what matches the pattern."""
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.send_all(data)
    said = b""
    while not re.search(awaited, said):
        piece = await process.stdout.receive_some()
        assert piece, said
        said += piece


class NewKeys:
    """In place of OpenSSL when every record is a new key: there is never any data."""

    def __init__(self, incoming: ssl.MemoryBIO) -> None:
        self.incoming = incoming
        self.handled = 0

    def read(self, size: int, view: memoryview) -> int:
        self.handled += len(self.incoming.read()) // 27
        raise ssl.SSLWantReadError

    def unwrap(self) -> None:
        raise ssl.SSLError


class Peer(Client):
    """A broker's TLS in memory."""

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext) -> None:
        self.stream = stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)


def server_context(server: tuple[Path, Path], version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


class Secure:
    """Links whose brokers speak TLS."""

    def __init__(self, stage: Stage, trusting: BrokerTls, server: tuple[Path, Path], client: str) -> None:
        self.stage = stage
        self._trusting = make_broker_context(trusting)
        self._server = server
        self._listener = make_listener_context(ListenerTls(str(server[0]), str(server[1]))) if client == "TLS" else None
        self._ca = trusting.ca
        self._bench = TlsWorkspace()

    async def connect(
        self, *, small: bool = False, version: ssl.TLSVersion = VERSIONS[-1], first: bytes = b""
    ) -> tuple[TlsLink, Any, Peer]:
        """The link, the client's end, which has `send` and `receive`, and the broker's. `first`: bytes that come with
        the broker's last word in the handshake.
        """
        near, far = tcp_pair(small)
        upstream, broker = tcp_pair(small)
        near.setblocking(False)
        upstream.setblocking(False)
        self.stage.streams += (far, broker)
        peer = Peer(broker, server_context(self._server, version))
        of_upstream = TlsConnection(self._trusting, upstream, self._bench.scratch, host="localhost")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.shake_hands, first)
            with trio.CancelScope() as scope:
                await perform_client_handshake(of_upstream, upstream, self._bench.handshake_lock, scope)
        client: Any = Plain(far)
        of_client = None
        if self._listener is not None:
            of_client = TlsConnection(self._listener, near, self._bench.scratch)
            context = ssl.create_default_context(cafile=self._ca)
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            client = Client(far, context)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.shake_hands)
                await perform_server_handshake(of_client, near, self._bench.handshake_lock)
        now = trio.current_time()
        session = ClientSession(self.stage.play.world, NODE_ID, MemoryAccount(self.stage.reactor.budget, "test"), now)
        link = TlsLink(self.stage.reactor, session, near, upstream, "test:1", of_client, of_upstream)
        link.open()
        self.stage.reactor.run_deferred(now)
        return link, client, peer


class Plain:
    """A client without TLS, as `Client` is one with it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def receive(self, size: int) -> bytes:
        found = b""
        while len(found) < size and (data := await self.stream.receive_some(size - len(found))):
            found += data
        return found

    async def say_end(self) -> None:
        await self.stream.send_eof()


class SecureClients:
    """Links whose clients speak TLS and whose brokers don't, as `Secure` makes them."""

    def __init__(self, stage: Stage, authority: Authority, server: tuple[Path, Path]) -> None:
        self._stage = TlsStage(stage, authority, ListenerTls(str(server[0]), str(server[1])))

    async def connect(self, **more: Any) -> tuple[TlsLink, Client, Plain]:
        link, client, broker = await self._stage.connect(**more)
        return link, client, Plain(broker)
