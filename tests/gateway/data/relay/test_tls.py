# TLS between a client's socket and its link, on real sockets: records cut anywhere and glued, data that is decrypted
# and that no event tells of, ends of every kind, backpressure, handshakes that fail. And the certificates' files.

from __future__ import annotations

import errno
import re
import socket
import ssl
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import trio

from gateway.data.connecting.handshakes import PROBE, perform_server_handshake
from gateway.data.relay import links
from gateway.data.sockets.inbound import SHARED_READ_BYTES
from gateway.data.sockets.tls import MAX_FEED_BYTES, HandshakeError, TlsConnection
from gateway.tls.certificates import (
    CHECK_INTERVAL_S,
    SETTLE_S,
    CertificateError,
    ListenerCertificates,
    ListenerTls,
    make_listener_context,
)
from tests.background import until
from tests.certificates import Authority, openssl
from tests.gateway.data.play import present, request, size_of, with_question
from tests.gateway.data.relay.stage import DEADLINE_S, receive_exactly, reset, staged, tcp_pair
from tests.gateway.data.relay.tls_stage import (
    BROKEN_RECORD_SAID,
    VERSIONS,
    Client,
    TlsStage,
    openssl_client,
    say,
)

pytestmark = pytest.mark.usefixtures("no_circles")


@pytest.fixture(scope="module")
def server(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("gateway")


@pytest.fixture(scope="module")
def listener(server: tuple[Path, Path]) -> ListenerTls:
    return ListenerTls(str(server[0]), str(server[1]))


@pytest.fixture
def secure(authority: Authority, listener: ListenerTls) -> Any:
    return lambda stage: TlsStage(stage, authority, listener)


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_records_cut_into_single_bytes_pass(secure: Any, version: ssl.TLSVersion) -> None:
    async with staged() as stage:
        _, client, broker = await secure(stage).connect(version=version)
        frames = request(1) + request(2)
        data = client.encrypt(frames, 100)
        for i in range(len(data)):
            await client.stream.send_all(data[i : i + 1])
        assert await receive_exactly(broker, len(frames)) == frames


async def test_requests_that_come_with_the_end_of_the_handshake_are_handled(secure: Any) -> None:
    # They are in memory when the link begins: no event of its socket will ever tell of them.
    async with staged() as stage:
        _, _, broker = await secure(stage).connect(first=request(1))
        assert await receive_exactly(broker, len(request(1))) == request(1)


async def test_what_comes_while_the_broker_takes_nothing_has_waited(secure: Any) -> None:
    async with staged() as stage, trio.open_nursery() as nursery:
        link, client, broker = await secure(stage).connect(small=True)
        frames = [request(1, values=(bytes(300_000),)), request(2)]
        nursery.start_soon(client.send, frames[0])
        await until(lambda: link.upstream.outbound.pieces)
        sent_at = trio.current_time()
        nursery.start_soon(client.send, frames[1])
        for frame in frames:
            assert await receive_exactly(broker, len(frame)) == frame
        assert link.session.hold.drained_at < sent_at


async def test_a_socket_is_empty_only_when_nothing_is_left_in_the_kernel_or_in_memory(secure: Any) -> None:
    # What has waited is told from what just came by that. Fewer bytes come out than are read, so that their number
    # says nothing.
    async with staged() as stage:
        link, client, _ = await secure(stage).connect()
        near, tls, c_in = link.client.sock, link.client.tls, link.client.inbound
        stage.reactor.modify(near.fileno(), 0)
        data = client.encrypt(bytes(100_000))
        await client.stream.send_all(data)
        await until(lambda: len(near.recv(len(data), socket.MSG_PEEK)) == len(data))
        c_in.large_frame = link.session.account.reserve_buffer(80_000, 80_000)
        assert c_in.receive(near) == 0
        assert c_in.partial_bytes < 80_000
        assert not c_in.is_drained, "the kernel has more"
        assert c_in.receive(near) == 80_000
        assert tls.has_plaintext
        assert not c_in.is_drained, "there is more in memory"
        c_in.keep_partial_frame(80_000, 0)
        left = 20_000
        while left:
            left -= c_in.receive(near)
            c_in.keep_partial_frame(c_in.end, 0)
        assert not tls.has_plaintext
        assert c_in.is_drained


async def test_a_renegotiation_is_refused_at_once_though_no_answer_is_due(
    authority: Authority, listener: ListenerTls
) -> None:
    # What TLS itself has to say goes out; else a client could fill the memory with it. This one is openssl's, and its
    # command for a renegotiation is R.
    async with (
        staged() as stage,
        openssl_client(stage, authority, listener, "-tls1_2", "-msg") as (_, process, broker),
    ):
        await say(process, b"R\n", rb"<<< TLS 1.2, Alert .* no_renegotiation")
        assert await broker.receive_some(1) == b""  # openssl's client gives up


async def test_a_new_key_now_and_then_is_nothing_special(secure: Any) -> None:
    async with staged() as stage:
        link, client, broker = await secure(stage).connect()
        link.client.tls._empty_records += 60  # as so many would
        for _ in range(90):
            await client.stream.send_all(client.encrypt(request(1), 1))
            await receive_exactly(broker, len(request(1)))
        link.client.tls._empty_records += 10
        await client.send(request(1))
        assert await receive_exactly(broker, len(request(1))) == request(1)
        assert not link.is_closed


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("notify", [True, False], ids=["close_notify", "broken"])
async def test_an_end_that_is_given_to_openssl_in_a_piece_of_its_own_is_seen(secure: Any, notify: bool) -> None:
    # OpenSSL gets RECORD bytes at once; what ends here is the last record before that, and no further event comes.
    async with staged() as stage:
        link, client, _ = await secure(stage).connect()
        near, tls = link.client.sock, link.client.tls
        stage.reactor.modify(near.fileno(), 0)
        frames = client.encrypt(bytes(MAX_FEED_BYTES - 5 * 22))
        assert len(frames) == MAX_FEED_BYTES
        await client.stream.send_all(frames)
        if notify:
            await client.say_end()
        else:
            await client.stream.send_all(b"\x17\x03\x03\0\x20" + bytes(32))
        await until(lambda: len(near.recv(2 * MAX_FEED_BYTES, socket.MSG_PEEK)) > MAX_FEED_BYTES)
        assert tls.recv_into(memoryview(bytearray(SHARED_READ_BYTES))) == MAX_FEED_BYTES - 5 * 22
        assert tls.has_plaintext
        if notify:
            assert tls.recv_into(memoryview(bytearray(SHARED_READ_BYTES))) == 0
        else:
            with pytest.raises(ssl.SSLError):
                tls.recv_into(memoryview(bytearray(SHARED_READ_BYTES)))


async def test_a_client_that_closes_in_the_middle_of_a_frame_is_one_log_line(secure: Any) -> None:
    async with staged() as stage:
        _, client, broker = await secure(stage).connect()
        await client.send(request(1)[:40])
        await client.say_end()
        assert await broker.receive_some(1) == b""
        assert [line for _, line in stage.play.logs if "half a frame: 40 bytes" in line]


async def test_broken_records_close_that_connection_behind_what_came_before(secure: Any) -> None:
    async with staged() as stage:
        link, client, broker = await secure(stage).connect()
        _, other, other_broker = await secure(stage).connect()
        data = bytearray(client.encrypt(request(1) + request(2), len(request(1))))
        data[-1] ^= 1
        await client.stream.send_all(data)
        assert await receive_exactly(broker, len(request(1))) == request(1)
        assert await broker.receive_some(1) == b""
        await broker.aclose()
        await until(lambda: link.is_closed)
        ((_, line),) = stage.play.logs
        assert line.removeprefix("test:1: connection closed: TLS: ") in BROKEN_RECORD_SAID
        stage.play.ledger()
        assert stage.play.counts["disconnects_malformed"] == stage.play.counts["requests_malformed"] == 1
        with pytest.raises(ssl.SSLError, match=r"(?i)bad record mac"):  # it is told so
            await client.receive(1)
        await other.send(request(1))
        assert await receive_exactly(other_broker, len(request(1))) == request(1)


@pytest.mark.parametrize("notify", [True, False], ids=["close_notify", "FIN"])
async def test_a_client_that_leaves_during_a_mute_has_its_requests_discarded(secure: Any, notify: bool) -> None:
    async with staged() as stage:
        link, client, broker = await secure(stage).connect()
        stage.mute(link)
        await client.send(request(1) + request(2, acks=0))
        await (client.say_end() if notify else client.stream.aclose())
        await until(lambda: link.parked.input_slice is not None)
        stage.end_mute(link)
        assert await receive_exactly(broker, len(request(2, acks=0))) == request(2, acks=0)
        assert stage.play.rows()["clicks", "discarded", ""] == (size_of(), 1, 1)
        assert link.session.hold.is_client_gone


async def test_acks_0_behind_what_is_read_ahead_is_forwarded_though_its_client_has_closed(
    secure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_HELD", 1)
    async with staged() as stage:
        link, client, broker = await secure(stage).connect()
        link.session.hold.set_software(("librdkafka", "2.16.0"))
        stage.mute(link)
        frames = [request(number, acks=0, values=(bytes(5000),)) for number in range(8)]
        await client.send(frames[0])
        await until(lambda: link.parked.input_slice is not None)
        await client.send(b"".join(frames[1:]))
        await client.stream.aclose()
        await until(lambda: link.client.has_fin)
        stage.end_mute(link)
        passed = b"".join(map(with_question, frames))
        assert await receive_exactly(broker, len(passed)) == passed


# --- handshakes -------------------------------------------------------------------------------------------------------


async def refused(listener: ListenerTls, first: bytes, context: ssl.SSLContext | None = None) -> HandshakeError:
    """What the gateway logs about a client that begins with these bytes, or shakes hands with this context."""
    near, far = tcp_pair(False)
    near.setblocking(False)
    tls = TlsConnection(make_listener_context(listener), near, memoryview(bytearray(SHARED_READ_BYTES)))
    with near, trio.fail_after(DEADLINE_S):
        async with far, trio.open_nursery() as nursery:
            if context is not None:
                nursery.start_soon(_try_handshake, Client(far, context))
            elif first:
                await far.send_all(first)
                await far.send_eof()
            else:
                await far.send_eof()
            with pytest.raises(HandshakeError) as caught:
                await perform_server_handshake(tls, near, trio.Lock())
            nursery.cancel_scope.cancel()
    return caught.value


async def _try_handshake(client: Client) -> None:
    try:
        await client.shake_hands()
    except (ssl.SSLError, AssertionError):
        await client.stream.send_all(client._outgoing.read())


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (request(1), "a Kafka client without TLS (security.protocol must be SSL or SASL_SSL there) arrived at a"),
        (b"GET / HTTP/1.1\r\n\r\n", "an HTTP request arrived at a TLS port"),
        (b"\x16\x03\x01\x00\x05hello", "it does not speak TLS as it should|unexpected message|bad"),
        (b"\x16\x03\x01", "closed the connection in the middle of the handshake"),
    ],
    ids=["Kafka", "HTTP", "junk", "cut"],
)
async def test_bytes_in_place_of_a_handshake_are_named(listener: ListenerTls, first: bytes, said: str) -> None:
    assert re.search(said if "|" in said else re.escape(said), str(await refused(listener, first)))


async def test_a_connection_without_a_word_is_a_probe(listener: ListenerTls) -> None:
    assert (await refused(listener, b"")).kind == PROBE


async def test_a_client_that_does_not_trust_the_certificate_is_named(listener: ListenerTls) -> None:
    error = await refused(listener, b"", ssl.create_default_context())
    assert "the client refuses: unknown ca" in str(error)


async def test_a_client_that_finds_the_certificate_expired_is_named(authority: Authority) -> None:
    certificate, key = authority.sign("expired", days=-1)
    error = await refused(ListenerTls(str(certificate), str(key)), b"", authority.client_context())
    assert "the client refuses: certificate expired (the gateway's certificate or its CA's, or the" in str(error)


async def test_why_a_client_is_refused_is_told_though_it_has_reset_the_connection(listener: ListenerTls) -> None:
    near, far = tcp_pair(False)
    near.setblocking(False)
    tls = TlsConnection(make_listener_context(listener), near, memoryview(bytearray(SHARED_READ_BYTES)))
    with near, trio.fail_after(DEADLINE_S):
        await far.send_all(b"\x16\x03\x01\x00\x05hello")
        reset(far)  # no alert can be sent any more
        with pytest.raises(HandshakeError, match=r"unexpected message|bad"):
            await perform_server_handshake(tls, near, trio.Lock())


async def test_an_older_client_is_named(listener: ListenerTls, authority: Authority) -> None:
    context = authority.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    only_newest = ListenerTls(listener.keystore, listener.key, protocols=("TLSv1.3",))
    assert "no version of TLS that is in ssl.enabled.protocols" in str(await refused(only_newest, b"", context))


async def test_client_certificates_are_demanded_and_checked(
    listener: ListenerTls, authority: Authority, tmp_path: Path
) -> None:
    strict = ListenerTls(listener.keystore, listener.key, truststore=str(authority.certificate), client_auth="required")
    without = await refused(strict, b"", authority.client_context())
    assert "sent no certificate, and ssl.client.auth is required" in str(without)
    stranger = Authority(tmp_path, "stranger").sign("mallory")
    by_stranger = await refused(strict, b"", authority.client_context(stranger))
    assert "the client's certificate is not accepted: unable to get local issuer certificate" in str(by_stranger)


async def test_handshakes_take_turns_with_everything_else(listener: ListenerTls, authority: Authority) -> None:
    # A storm of them must not hold up the requests of those who are connected: one step, then everybody has a turn.
    turn, steps, others = trio.Lock(), [], 0
    context = make_listener_context(listener)

    class Counted(TlsConnection):
        __slots__ = ()

        def continue_handshake(self, data: bytes) -> bool:
            steps.append(others)
            return super().continue_handshake(data)

    async def be_server(near: Any) -> None:
        near.setblocking(False)
        with near:
            await perform_server_handshake(Counted(context, near, memoryview(bytearray(SHARED_READ_BYTES))), near, turn)

    async with trio.open_nursery() as all_of_it:
        async with trio.open_nursery() as nursery:
            pairs = [tcp_pair(False) for _ in range(8)]

            async def count() -> None:
                nonlocal others
                while True:
                    others += 1
                    await trio.lowlevel.checkpoint()

            all_of_it.start_soon(count)
            for near, far in pairs:
                nursery.start_soon(Client(far, authority.client_context()).shake_hands)
                nursery.start_soon(be_server, near)
        all_of_it.cancel_scope.cancel()
        for _, far in pairs:
            far.socket.close()
    assert len(steps) == 16
    assert len(set(steps)) == 16, "two steps without anybody else between them"


# --- certificates' files ----------------------------------------------------------------------------------------------


def why(tls: ListenerTls) -> str:
    with pytest.raises(CertificateError) as caught:
        make_listener_context(tls)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_that_can_not_be_used_are_named_with_what_would_be_right(
    authority: Authority, server: tuple[Path, Path], tmp_path: Path
) -> None:
    certificate, key = map(str, server)
    _, other_key = authority.sign("other")
    missing, empty = tmp_path / "missing.pem", tmp_path / "empty.pem"
    empty.write_text("nothing")
    assert (
        why(ListenerTls(str(missing))) == f"ssl.keystore.location: {missing} can't be read: No such file or directory"
    )
    assert why(ListenerTls(str(empty))).startswith(f"ssl.keystore.location: {empty} has no certificate in PEM")
    assert why(ListenerTls(certificate)).endswith("append the key, or write ssl.key.location: PATH")
    assert why(ListenerTls(certificate, certificate)).startswith(f"ssl.key.location: {certificate} has no private key")
    assert f"the key in {other_key} is not that of the first certificate" in why(
        ListenerTls(certificate, str(other_key))
    )
    store = tmp_path / "store.p12"
    openssl("pkcs12", "-export", "-in", certificate, "-inkey", key, "-passout", "pass:secret", "-out", store)
    assert "is PKCS#12 or DER, and only PEM is read: convert it with openssl pkcs12" in why(ListenerTls(str(store)))
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    assert "is a Java keystore" in why(ListenerTls(str(tmp_path / "store.jks")))
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert f"ssl.keystore.location: {broken} can't be used: " in why(ListenerTls(str(broken), key))
    trusting = ListenerTls(certificate, key, truststore=key, client_auth="required")
    assert why(trusting).startswith(f"ssl.truststore.location: {key} has no certificate in PEM")


def test_a_kafka_keystore_has_key_and_certificate_in_one_file(server: tuple[Path, Path], tmp_path: Path) -> None:
    store = tmp_path / "keystore.pem"
    store.write_text(server[1].read_text() + server[0].read_text())
    make_listener_context(ListenerTls(str(store)))


def test_an_encrypted_key_needs_its_password(authority: Authority) -> None:
    certificate, key = map(str, authority.sign("guarded", password="open sesame"))
    assert why(ListenerTls(certificate, key)) == f"ssl.key.password: is needed, because the key in {key} is encrypted"
    assert why(ListenerTls(certificate, key, "wrong")) == f"ssl.key.password: does not open the key in {key}"
    make_listener_context(ListenerTls(certificate, key, "open sesame"))


class Files:
    """A certificate's files that change, and what is logged about them."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        self.authority = authority
        self.keystore, self.key = folder / "tls.crt", folder / "tls.key"
        self.said: list[tuple[str, str]] = []
        self.bring("first")
        self.certificates = ListenerCertificates(
            ListenerTls(str(self.keystore), str(self.key)), lambda *line: self.said.append(line)
        )

    def bring(self, name: str) -> None:
        for made, path in zip(self.authority.sign(name), (self.keystore, self.key), strict=True):
            self.replace(path, made.read_bytes())

    def replace(self, path: Path, data: bytes) -> None:
        """Replace the file, as a renewal does."""
        fresh = path.with_suffix(".new")
        fresh.write_bytes(data)
        fresh.rename(path)


def test_a_certificate_that_changed_is_read_again_for_new_connections(authority: Authority, tmp_path: Path) -> None:
    files = Files(authority, tmp_path)
    first = present(files.certificates.get_context(0.0))
    assert files.certificates.get_context(CHECK_INTERVAL_S) is first
    files.bring("second")
    assert files.certificates.get_context(CHECK_INTERVAL_S + 0.1) is first, "not looked at for each connection"
    second = files.certificates.get_context(2 * CHECK_INTERVAL_S)
    assert second not in (first, None)
    assert [level for level, _ in files.said] == ["info"]
    assert "new connections use the certificate that is in" in files.said[0][1]


def test_files_that_could_not_be_read_for_a_while_are_read_later_unchanged(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(authority, tmp_path)
    first = files.certificates.get_context(0.0)
    files.bring("second")
    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        for i in range(20):
            assert files.certificates.get_context(10.0 + i) is first
    assert files.certificates.get_context(40.0) not in (first, None)
    assert [level for level, _ in files.said] == ["error", "info"]


def test_a_new_certificate_that_can_not_be_used_is_said_once_and_the_old_one_stays(
    authority: Authority, tmp_path: Path
) -> None:
    files = Files(authority, tmp_path)
    first = files.certificates.get_context(0.0)
    files.replace(files.keystore, b"oops")
    for i in range(20):
        assert files.certificates.get_context(10.0 + i) is first
    ((level, line),) = files.said
    assert level == "error"
    assert line.startswith("listener.ssl.keystore.location: ")
    assert line.endswith("the certificate that was read before stays in use")
    assert files.certificates.problem in line
    files.bring("second")
    assert files.certificates.get_context(40.0) not in (first, None)
    assert files.certificates.problem == ""


def test_a_certificate_whose_key_comes_a_moment_later_is_no_error(authority: Authority, tmp_path: Path) -> None:
    files = Files(authority, tmp_path)
    first = files.certificates.get_context(0.0)
    certificate, key = authority.sign("second")
    files.replace(files.keystore, certificate.read_bytes())
    assert files.certificates.get_context(10.0) is first
    assert files.certificates.get_context(10.0 + SETTLE_S - CHECK_INTERVAL_S) is first
    files.replace(files.key, key.read_bytes())
    assert files.certificates.get_context(10.0 + SETTLE_S) not in (first, None)
    assert [level for level, _ in files.said] == ["info"]


def test_without_a_usable_certificate_no_client_is_let_in(authority: Authority, tmp_path: Path) -> None:
    files = Files(authority, tmp_path)
    good = files.keystore.read_bytes()
    files.keystore.unlink()
    for i in range(5):
        assert files.certificates.get_context(10.0 + i) is None
    assert [level for level, _ in files.said] == ["error"]
    assert files.said[0][1].endswith("; clients can't connect")
    files.replace(files.keystore, good)
    assert files.certificates.get_context(20.0) is not None
