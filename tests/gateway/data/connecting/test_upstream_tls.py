# Handshakes with brokers on real sockets: each wrong setting is one line that names what would be right, sessions are
# used again, renewed files hold for the next connection.

from __future__ import annotations

import errno
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from gateway.channel import BrokerTable, LogMessage, UpstreamBroker
from gateway.data.connecting.dialling import UNSENT_BYTES, BrokerDialler, DialledBroker
from gateway.data.connecting.handshakes import TlsWorkspace
from gateway.data.shared.uplink import ControlUplink
from gateway.tls.broker_tls import CLOSED, CLOSED_AT_ONCE, NO_TLS, BrokerTls, make_broker_context
from gateway.tls.certificates import CHECK_INTERVAL_S, CertificateError, ReloadedContext, ReloadMessages
from tests.certificates import Authority, openssl
from tests.gateway.data.play import Play, present
from tests.gateway.data.relay.tls_stage import server_context

Files = tuple[Path, Path]
Serve = Callable[[trio.SocketStream], Awaitable[None]]
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def server(authority: Authority) -> Files:
    return authority.sign("broker")


@pytest.fixture(scope="module")
def trusting(authority: Authority) -> BrokerTls:
    return BrokerTls(ca=str(authority.certificate))


class Gateway:
    """The part of a worker that dials, and what it says and counts."""

    def __init__(self, tls: BrokerTls | None, port: int, host: str, timeout_s: float) -> None:
        self.play = Play(upstream_tls=tls, upstream_connect_timeout=timeout_s)
        self.play.world.cluster.set_brokers(BrokerTable((), (UpstreamBroker(1, host, port),)))
        self.uplink = ControlUplink()
        self.dialling = BrokerDialler(self.play.world, self.uplink, TlsWorkspace())
        self.where = f"broker 1 ({host}:{port}): "

    @property
    def said(self) -> list[str]:
        lines: list[LogMessage] = list(self.uplink._log_backlog)
        return [line.text for line in lines]

    @property
    def failed(self) -> int:
        self.play.ledger()
        return self.play.counts["upstream_tls_handshakes_failed"]

    async def dial(self) -> DialledBroker | None:
        return await self.dialling.dial_broker(1)


@asynccontextmanager
async def broker(
    serve: Serve, tls: BrokerTls | None, host: str = "localhost", timeout_s: float = DEADLINE_S
) -> AsyncIterator[Gateway]:
    """A gateway in front of a server that does that with each connection."""

    async def one(stream: trio.SocketStream) -> None:
        try:
            await serve(stream)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, one, [listener])
        with trio.fail_after(DEADLINE_S):
            yield Gateway(tls, listener.socket.getsockname()[1], host, timeout_s)
        nursery.cancel_scope.cancel()


def speaking(context: ssl.SSLContext, first: bytes = b"") -> Serve:
    """A server with TLS, which stays until its peer goes, and tells why where it refuses. `first`: what it says."""

    async def serve(stream: trio.SocketStream) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        is_done = False
        while data := await stream.receive_some(65_536):
            incoming.write(data)
            try:
                if not is_done:
                    tls.do_handshake()
                    is_done = True
                    if first:
                        tls.write(first)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                await stream.send_all(outgoing.read())  # the alert
                return
            await stream.send_all(outgoing.read())

    return serve


async def why(serve: Serve, tls: BrokerTls, host: str = "localhost", timeout_s: float = DEADLINE_S) -> str:
    """The one line about a broker with which there is no TLS."""
    async with broker(serve, tls, host, timeout_s) as gateway:
        assert await gateway.dial() is None
        (line,) = gateway.said
        return line.removeprefix(gateway.where)


# --- wrong settings ---------------------------------------------------------------------------------------------------


async def test_a_broker_of_another_ca(server: Files, tmp_path: Path) -> None:
    tls = BrokerTls(ca=str(Authority(tmp_path, "other").certificate))
    assert await why(speaking(server_context(server)), tls) == (
        "no TLS: its certificate is not signed by a CA in ssl.ca.location (unable to get local issuer certificate)"
    )


async def test_a_broker_of_no_known_ca(server: Files) -> None:
    said = await why(speaking(server_context(server)), BrokerTls())
    assert "is not signed by a CA in the system's CAs: write ssl.ca.location (" in said


def half_shaken(server: Files, most: int | None = None, *, resets: bool = False) -> Serve:
    """A server that ends after its first flight, or the first bytes of that."""

    async def serve(stream: trio.SocketStream) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = server_context(server).wrap_bio(incoming, outgoing, server_side=True)
        incoming.write(await stream.receive_some(65_536))
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        await stream.send_all(outgoing.read()[:most])
        if resets:
            stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    return serve


async def test_why_a_broker_is_refused_is_told_though_it_has_reset_the_connection(
    server: Files, tmp_path: Path
) -> None:
    tls = BrokerTls(ca=str(Authority(tmp_path, "other").certificate))
    said = await why(half_shaken(server, resets=True), tls)
    assert "its certificate is not signed by a CA in ssl.ca.location" in said


async def test_an_expired_certificate(authority: Authority, trusting: BrokerTls) -> None:
    expired = authority.sign("expired", days=-1)
    assert await why(speaking(server_context(expired)), trusting) == (
        "no TLS: its certificate, or its CA's, has expired (it must be renewed there)"
    )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_certificate_for_another_name(authority: Authority, trusting: BrokerTls, host: str) -> None:
    other = authority.sign("other", names="subjectAltName=DNS:other.example,IP:127.0.0.2")
    serve = speaking(server_context(other))
    assert (await why(serve, trusting, host)).startswith(f"no TLS: its certificate is not for {host} (")
    unchecked = BrokerTls(ca=trusting.ca, checks_name=False)
    async with broker(serve, unchecked, host) as gateway:
        dialled = present(await gateway.dial())
        dialled.sock.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="no such option on this platform")
async def test_the_kernel_takes_a_whole_request_for_a_broker_at_once(server: Files, trusting: BrokerTls) -> None:
    """trio's streams have it take 16 KiB more than the broker has room for."""
    for tls in (None, trusting):
        async with broker(speaking(server_context(server)), tls) as gateway:
            dialled = present(await gateway.dial())
            with dialled.sock as sock:
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES


async def test_a_revoked_certificate(authority: Authority, server: Files, trusting: BrokerTls, tmp_path: Path) -> None:
    crl, index = tmp_path / "crl.pem", tmp_path / "index.txt"
    index.touch()
    config = tmp_path / "ca.cnf"
    config.write_text(
        f"[ca]\ndefault_ca=it\n[it]\ndatabase={index}\ndefault_md=sha256\ndefault_crl_days=30\n"
        f"certificate={authority.certificate}\nprivate_key={authority.certificate.with_suffix('.key')}\n"
    )
    openssl("ca", "-config", config, "-revoke", server[0])
    openssl("ca", "-config", config, "-gencrl", "-out", crl)
    tls = BrokerTls(ca=trusting.ca, crl=str(crl))
    assert await why(speaking(server_context(server)), tls) == "no TLS: its certificate is revoked by ssl.crl.location"
    another = speaking(server_context(authority.sign("not-revoked")))
    async with broker(another, tls) as gateway:
        dialled = present(await gateway.dial())
        dialled.sock.close()


async def test_a_broker_without_tls_closes_at_the_first_byte(trusting: BrokerTls) -> None:
    # Kafka takes a ClientHello for a request of 369 MB, and closes without reading all of it.
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(4)

    said = await why(serve, trusting)
    assert said == f"no TLS: {CLOSED_AT_ONCE}"
    assert "security.protocol must be PLAINTEXT or SASL_PLAINTEXT there" in said


async def test_a_server_that_answers_in_plain_text(trusting: BrokerTls) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await trio.sleep_forever()

    assert await why(serve, trusting) == f"no TLS: {NO_TLS}: received an HTTP response"


async def test_a_broker_that_closes_in_the_middle(server: Files, trusting: BrokerTls) -> None:
    assert await why(half_shaken(server, 100), trusting) == f"no TLS: {CLOSED}"


async def test_a_broker_that_says_nothing_has_connect_timeout(trusting: BrokerTls, mock_clock: MockClock) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()  # the handshake has begun
        mock_clock.jump(9.5)
        await trio.sleep_forever()

    assert (await why(serve, trusting, timeout_s=9.5)).endswith("can't be reached: no TLS handshake within 9.5 s")


async def test_a_broker_whose_machine_says_nothing_has_it_too(
    trusting: BrokerTls, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(host: str, port: int) -> trio.SocketStream:
        mock_clock.jump(9.5)
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", connect)
    gateway = Gateway(trusting, 9092, "localhost", timeout_s=9.5)
    assert await gateway.dial() is None
    assert gateway.said == ["broker 1 (localhost:9092) can't be reached: no answer within 9.5 s"]


async def test_a_broker_of_older_versions(server: Files, trusting: BrokerTls) -> None:
    context = server_context(server)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    tls = BrokerTls(ca=trusting.ca, ciphers="ECDHE-ECDSA-AES128-GCM-SHA256")
    old = server_context(server, ssl.TLSVersion.TLSv1_2)
    old.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    assert (await why(speaking(old), tls)).startswith(
        "no TLS: it refuses: handshake failure (no cipher suite in common"
    )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_broker_that_wants_a_certificate(
    authority: Authority, server: Files, trusting: BrokerTls, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    context = server_context(server, version)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    stranger = Authority(tmp_path, "stranger").sign("mallory")
    theirs = BrokerTls(ca=trusting.ca, certificate=str(stranger[0]), key=str(stranger[1]))
    for tls, said in (
        (trusting, "it wants a certificate ("),
        (theirs, "it does not accept the certificate in ssl.certificate.location: unknown ca"),
    ):
        async with broker(speaking(context), tls) as gateway:
            dialled = await gateway.dial()
            if dialled is not None:  # in TLS 1.3 it looks at our certificate behind the handshake
                assert dialled.secured is not None
                with pytest.raises(ssl.SSLError), dialled.sock:
                    await read(dialled)
                dialled.secured.observer.on_tls_fault(dialled.secured.tls.fault)
            (line,) = gateway.said
            assert line.startswith(f"{gateway.where}no TLS: {said}") or "handshake failure" in line
            assert gateway.failed == 1
    mine = authority.sign("gateway")
    ours = BrokerTls(ca=trusting.ca, certificate=str(mine[0]), key=str(mine[1]))
    async with broker(speaking(context, b"x"), ours) as gateway:
        dialled = present(await gateway.dial())
        with dialled.sock:
            assert await read(dialled) == b"x"


async def read(dialled: DialledBroker) -> bytes:
    """What the broker says first."""
    assert dialled.secured is not None
    tls = dialled.secured.tls
    while True:
        if not tls.has_plaintext:
            await trio.lowlevel.wait_readable(dialled.sock)
        try:
            return tls.recv(100)
        except BlockingIOError:  # its tickets
            pass


async def test_files_that_can_not_be_used_are_said_at_once_and_dial_nobody(tmp_path: Path) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        raise AssertionError("dialled")

    missing = tmp_path / "missing.pem"
    async with broker(speaking(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)), BrokerTls(ca=str(missing))) as gateway:
        assert gateway.said == [
            f"upstream.ssl.ca.location: {missing} can't be read: No such file or directory; brokers can't be reached"
        ]
        assert await gateway.dial() is None
        assert f"no TLS: upstream.ssl.ca.location: {missing} can't be read" in gateway.said[-1]


async def test_the_same_fault_is_not_said_for_each_connection(server: Files, tmp_path: Path) -> None:
    tls = BrokerTls(ca=str(Authority(tmp_path, "other").certificate))
    async with broker(speaking(server_context(server)), tls) as gateway:
        for _ in range(5):
            assert await gateway.dial() is None
        assert len(gateway.said) == 1
        assert gateway.failed == 5


# --- sessions ---------------------------------------------------------------------------------------------------------


async def reused(gateway: Gateway) -> bool:
    """Whether the next connection goes on with an earlier session; its link has had an answer."""
    dialled = present(await gateway.dial())
    assert dialled.secured is not None
    tls, course = dialled.secured
    with dialled.sock:
        assert await read(dialled)
        course.on_first_bytes(tls)
        return tls.is_resumed


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_later_handshakes_go_on_with_the_last_session(
    server: Files, trusting: BrokerTls, version: ssl.TLSVersion
) -> None:
    async with broker(speaking(server_context(server, version), b"x"), trusting) as gateway:
        assert [await reused(gateway) for _ in range(3)] == [False, True, True]


async def test_a_broker_that_has_forgotten_the_session_makes_a_new_one(server: Files, trusting: BrokerTls) -> None:
    contexts = [server_context(server), server_context(server)]  # a restart has other keys for tickets

    async def serve(stream: trio.SocketStream) -> None:
        await speaking(contexts[0], b"x")(stream)

    async with broker(serve, trusting) as gateway:
        assert [await reused(gateway) for _ in range(2)] == [False, True]
        contexts.pop(0)
        assert [await reused(gateway) for _ in range(2)] == [False, True]


async def test_a_session_is_of_one_name_only(server: Files, trusting: BrokerTls) -> None:
    # A handshake that goes on with a session looks at no certificate: its name was another one's.
    async with broker(speaking(server_context(server), b"x"), trusting) as gateway:
        assert not await reused(gateway)
        ((_, host, port),) = gateway.dialling._dial_targets(1)
        assert host == "localhost"
        gateway.play.world.cluster.set_brokers(BrokerTable((), (UpstreamBroker(1, "127.0.0.1", port),)))
        assert [await reused(gateway) for _ in range(2)] == [False, True]


# --- files that change ------------------------------------------------------------------------------------------------


async def test_renewed_files_hold_for_the_next_connection_and_earlier_sessions_for_none(
    server: Files, authority: Authority, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate.read_bytes())
    async with broker(speaking(server_context(server), b"x"), BrokerTls(ca=str(ca))) as gateway:
        assert [await reused(gateway) for _ in range(2)] == [False, True]
        replace(ca, Authority(tmp_path, "other").certificate.read_bytes())
        mock_clock.jump(CHECK_INTERVAL_S + 0.1)
        assert await gateway.dial() is None
        assert "is not signed by a CA in ssl.ca.location" in gateway.said[-1]
        replace(ca, authority.certificate.read_bytes())
        mock_clock.jump(CHECK_INTERVAL_S + 0.1)
        assert not await reused(gateway)


async def test_a_session_that_comes_after_its_files_were_renewed_is_not_kept(
    server: Files, authority: Authority, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """OpenSSL would refuse it, each time, with a context that didn't make it."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate.read_bytes())
    async with broker(speaking(server_context(server), b"x"), BrokerTls(ca=str(ca))) as gateway:
        early = present(await gateway.dial())
        assert early.secured is not None
        replace(ca, authority.certificate.read_bytes())
        mock_clock.jump(CHECK_INTERVAL_S + 0.1)
        assert not await reused(gateway)
        with early.sock:
            await trio.lowlevel.wait_readable(early.sock)
            assert early.secured.tls.recv(1) == b"x"
            early.secured.observer.on_first_bytes(early.secured.tls)
        assert await reused(gateway), "the later connection's"


async def test_a_name_that_no_host_can_have_is_one_line(trusting: BrokerTls) -> None:
    for host in ("a..b", "a" * 64):
        async with broker(speaking(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)), trusting, host) as gateway:
            assert await gateway.dial() is None
            (line,) = gateway.said
            assert "can't be reached: " in line


async def test_a_bootstrap_server_that_is_away_is_called_so(trusting: BrokerTls) -> None:
    async with broker(speaking(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)), trusting, "a..b") as gateway:
        gateway.play.world.cluster.set_brokers(BrokerTable((), ()))
        gateway.dialling.bootstrap = (("a..b", 9092),)
        assert await gateway.dialling.dial_broker(None) is None
        (line,) = gateway.said
        assert line.startswith("bootstrap server (")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ciphers": "NOSUCH"}, "ssl.cipher.suites: it can't be used: "),
        ({"ca": "x" * 5000}, "ssl.ca.location: "),
    ],
)
def test_settings_that_openssl_refuses_are_one_line(trusting: BrokerTls, change: dict[str, str], said: str) -> None:
    with pytest.raises(CertificateError) as caught:
        make_broker_context(msgspec.structs.replace(trusting, **change))
    assert str(caught.value).startswith(said)


@pytest.mark.skipif(sys.platform != "linux", reason="such text is read on Linux only")
def test_a_certificate_given_as_text_is_made_later_where_no_descriptor_is_free(
    server: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker that takes over new settings just then would end, and all its connections with it."""

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    tls, said = BrokerTls(certificate_pem=server[0].read_text(), key_pem=server[1].read_text()), list[str]()
    reloaded = ReloadedContext(
        (), partial(make_broker_context, tls), ReloadMessages("", "", "", ""), lambda *line: said.extend(line)
    )
    assert reloaded.get_context(0.0) is None
    assert reloaded.problem == "ssl.certificate.pem: can't be read: Too many open files"
    monkeypatch.undo()
    assert reloaded.get_context(CHECK_INTERVAL_S) is not None


def test_comments_in_pem_may_have_any_letters(authority: Authority) -> None:
    make_broker_context(BrokerTls(ca_pem=f"# Österreich\n{authority.certificate.read_text()}"))


def replace(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.rename(path)
