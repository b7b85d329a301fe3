# Who a connection is before its first request: where its client is, through a proxy, and the principal of its
# certificate. On real sockets, with the real acceptor, control's side of the workers, and workers.

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gateway.data.connecting import proxied
from gateway.tls.certificates import ListenerTls
from protocol import api
from protocol.proxy_header import SIGNATURE, ConnectionEnds, encode_header
from tests.background import until
from tests.certificates import Authority
from tests.gateway.data.connecting.yard import Yard, opened
from tests.gateway.data.play import other_request
from tests.gateway.data.relay.stage import is_closed, receive_exactly

pytestmark = pytest.mark.usefixtures("no_circles")

PROXIES = (ipaddress.ip_network("127.0.0.0/30"),)  # 127.0.0.1 is a proxy, 127.0.0.9 is none
ASKED = other_request(1, key=api.METADATA, version=1, body=bytes(4))


def header(host: str = "192.0.2.7", port: int = 5000, *, version: int = 2) -> bytes:
    return encode_header(version, ConnectionEnds((host, port), ("198.51.100.1", 9092)))


# --- a proxy's header -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
async def test_the_client_behind_a_proxy_is_known_and_its_first_request_passes(tmp_path: Path, version: int) -> None:
    async with opened(tmp_path, proxies=PROXIES) as yard:
        await yard.connect(header(version=version) + ASKED)
        assert await receive_exactly(await yard.broker.receive(), len(ASKED)) == ASKED
        assert [link.peer for link in yard.links()] == ["192.0.2.7:5000"]
        assert yard.counts() == {}


async def test_a_header_may_come_byte_by_byte(tmp_path: Path) -> None:
    async with opened(tmp_path, proxies=PROXIES) as yard:
        client = await yard.connect()
        for byte in header("2001:db8::7", version=1) + ASKED:
            await client.send_all(bytes((byte,)))
            await trio.testing.wait_all_tasks_blocked()
        await receive_exactly(await yard.broker.receive(), len(ASKED))
        assert [link.peer for link in yard.links()] == ["[2001:db8::7]:5000"]


@pytest.mark.parametrize("first", [header(version=1), SIGNATURE + b"\x20\0\0\0", b"PROXY UNKNOWN\r\n"])
async def test_a_proxys_own_connection_and_everybody_elses_keep_the_sockets_address(
    tmp_path: Path, first: bytes
) -> None:
    async with opened(tmp_path, proxies=PROXIES) as yard:
        await yard.connect(first + ASKED)
        await yard.connect(ASKED, host="127.0.0.9")
        for _ in range(2):
            await receive_exactly(await yard.broker.receive(), len(ASKED))
        own = "192.0.2.7" if b"TCP" in first else "127.0.0.1"
        assert sorted(link.peer.rpartition(":")[0] for link in yard.links()) == sorted([own, "127.0.0.9"])


@pytest.mark.parametrize("first", [ASKED, SIGNATURE + b"\x21\x31" + b"\0\xd8" + bytes(216), b"PROXY TCP4 x\r\n"])
async def test_a_proxy_without_a_right_header_is_closed(tmp_path: Path, first: bytes) -> None:
    async with opened(tmp_path, proxies=PROXIES) as yard:
        assert await is_closed(await yard.connect(first))
        assert yard.counts() == {"requests_malformed": 1, "disconnects_malformed": 1}


@pytest.mark.parametrize("version", [1, 2])
async def test_a_header_from_elsewhere_is_no_request(tmp_path: Path, version: int) -> None:
    async with opened(tmp_path, proxies=PROXIES) as yard:
        assert await is_closed(await yard.connect(header(version=version) + ASKED, host="127.0.0.9"))
        assert yard.counts()["requests_malformed"] == 1
        assert yard.links() == []


async def test_a_health_check_is_no_fault(tmp_path: Path) -> None:
    async with opened(tmp_path, proxies=PROXIES) as yard:
        await (await yard.connect()).aclose()
        addresses = yard.workers[0].configured_plane.connections.addresses
        await until(
            lambda: (
                yard.workers[0].configured_plane.connections.accepted_count == 1 and not addresses.reset_for_control()
            )
        )
        assert yard.counts() == {}


@pytest.mark.parametrize("first", [b"", b"PROXY TCP4 "])
async def test_a_header_has_to_come_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    monkeypatch.setattr(proxied, "LOCATE_TIMEOUT_S", 0.05)
    async with opened(tmp_path, proxies=PROXIES) as yard:
        assert await is_closed(await yard.connect(first))
        assert yard.counts() == {"disconnects_first_byte": 1}


# --- limits by address ------------------------------------------------------------------------------------------------


async def relayed(yard: Yard, count: int) -> None:
    await until(lambda: len(yard.links()) == count)


async def test_clients_behind_a_proxy_are_limited_each_over_all_workers(tmp_path: Path) -> None:
    async with opened(tmp_path, workers=2, proxies=PROXIES, per_address=2) as yard:
        for port in (1, 2):
            await yard.connect(header(port=port) + ASKED)
        await relayed(yard, 2)
        assert all(len(worker.configured_plane.connections.reactor.links) == 1 for worker in yard.workers)
        assert await is_closed(await yard.connect(header(port=3) + ASKED))
        assert yard.sample("connections_refused_total", limit="address") == 1
        for port in (4, 5):  # neighbours
            await yard.connect(header("192.0.2.8", port) + ASKED)
        await relayed(yard, 4)
        yard.end(lambda link: link.peer == "192.0.2.7:1")
        await until(lambda: not yard.control.admission.refusal_reason("192.0.2.7"))
        await yard.connect(header(port=6) + ASKED)
        await until(lambda: "192.0.2.7:6" in [link.peer for link in yard.links()])
        assert yard.counts() == {"disconnects_drain": 1}


async def test_a_client_that_has_too_many_takes_no_room_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, proxies=PROXIES, per_address=1) as yard:
        await yard.connect(header(port=1) + ASKED)
        await relayed(yard, 1)
        locate, left = yard.control._locate_connection, []

        def noting(*args: Any) -> None:
            locate(*args)
            left.append(yard.control.admission._total)

        monkeypatch.setattr(yard.control, "_locate_connection", noting)
        for port in (2, 3):
            assert await is_closed(await yard.connect(header(port=port) + ASKED))
        assert left == [1, 1], "not counted, from the refusal on"
        yard.broker.receive_nowait()
        with pytest.raises(trio.WouldBlock):  # no broker is dialled for it
            yard.broker.receive_nowait()
        connections = yard.workers[0].configured_plane.connections
        await until(lambda: connections.reset_for_control() == {"192.0.2.7": 1})
        yard.end()
        await until(lambda: not yard.control.admission._total)


async def test_connections_whose_client_is_not_known_yet_count_for_nobody_but_in_all(tmp_path: Path) -> None:
    async with opened(tmp_path, proxies=PROXIES, most=4, per_address=1) as yard:
        await yard.connect(SIGNATURE + b"\x20\0\0\0" + ASKED)  # the proxy's own
        await relayed(yard, 1)
        waiting = [await yard.connect() for _ in range(3)]
        assert await is_closed(await yard.connect())
        assert yard.sample("connections_refused_total", limit="connections") == 1
        for at, stream in enumerate(waiting):
            await stream.send_all(header(f"192.0.2.{at}") + ASKED)
        await relayed(yard, 4)


async def test_a_new_control_counts_them_where_they_are(tmp_path: Path) -> None:
    async with opened(tmp_path, proxies=PROXIES) as yard:
        await yard.connect(header() + ASKED)
        await yard.connect()
        await relayed(yard, 1)
        connections = yard.workers[0].configured_plane.connections
        await until(lambda: connections.accepted_count == 2)
        assert connections.reset_for_control() == {"192.0.2.7": 1, "via 127.0.0.1": 1}


async def test_without_control_nobody_comes_in_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxied, "LOCATE_TIMEOUT_S", 0.05)
    async with opened(tmp_path, proxies=PROXIES) as yard:
        monkeypatch.setattr(yard.control, "_locate_connection", lambda *_: None)
        assert await is_closed(await yard.connect(header() + ASKED))
        assert yard.links() == []
        assert yard.counts() == {"disconnects_first_byte": 1}


@pytest.mark.parametrize("present", [0, 1])
async def test_a_new_control_is_asked_what_the_former_one_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: int
) -> None:
    async with opened(tmp_path, proxies=PROXIES, per_address=1) as yard:
        for _ in range(present):
            await yard.connect(header(port=1) + ASKED)
        await relayed(yard, present)
        waiting = [await yard.connect()]  # of a client that isn't known yet: it counts as before
        with monkeypatch.context() as silent:
            asked: list[Any] = []
            silent.setattr(yard.control, "_locate_connection", lambda *question: asked.append(question))
            client = await yard.connect(header(port=2) + ASKED)
            await until(lambda: bool(asked))
        await yard.restart_control()
        if present:
            assert await is_closed(client)
        await until(lambda: yard.control.admission._addresses == {"192.0.2.7": 1, "via 127.0.0.1": 1})
        await relayed(yard, 1)
        await waiting[0].send_all(header("192.0.2.8") + ASKED)
        await relayed(yard, 2)


async def test_a_third_control_is_not_asked_what_two_have_ended_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, proxies=PROXIES) as yard:
        asked: list[Any] = []
        monkeypatch.setattr(yard.control, "_locate_connection", lambda *question: asked.append(question))
        client = await yard.connect(header() + ASKED)
        await until(lambda: len(asked) == 1)
        await yard.restart_control()
        await until(lambda: len(asked) == 2)
        await yard.restart_control()
        assert await is_closed(client)
        assert len(asked) == 2
        assert yard.counts()["disconnects_error"] == 1
        await until(lambda: not yard.control.admission._addresses)


# --- to brokers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
async def test_a_broker_is_told_of_a_client(tmp_path: Path, version: int) -> None:
    async with opened(tmp_path, proxies=PROXIES, upstream_proxy_protocol=f"v{version}") as yard:
        await yard.connect(header("2001:db8::1") + ASKED)
        expected = encode_header(version, ConnectionEnds(("2001:db8::1", 5000), ("198.51.100.1", 9092))) + ASKED
        assert await receive_exactly(await yard.broker.receive(), len(expected)) == expected
        client = await yard.connect(ASKED, host="127.0.0.9")
        port = client.socket.getsockname()[1]
        expected = encode_header(version, ConnectionEnds(("127.0.0.9", port), ("127.0.0.1", yard.port))) + ASKED
        assert await receive_exactly(await yard.broker.receive(), len(expected)) == expected


# --- certificates -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("gateway")


@pytest.fixture(scope="module")
def alice(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("alice")


def listener(authority: Authority, server: tuple[Path, Path], auth: Any, rules: str = "DEFAULT") -> ListenerTls:
    certificate, key = map(str, server)
    return ListenerTls(certificate, key, truststore=str(authority.certificate), client_auth=auth, principal_rules=rules)


async def shake_hands(yard: Yard, context: ssl.SSLContext, first: bytes = b"") -> trio.SSLStream[trio.SocketStream]:
    """A client's connection with TLS, and a request."""
    below = await yard.connect(first)
    stream = trio.SSLStream(below, context, server_hostname="localhost", https_compatible=True)
    await stream.send_all(ASKED)
    return stream


@pytest.mark.parametrize(
    ("rules", "principal"), [("DEFAULT", "User:CN=alice"), ("RULE:^CN=(.*)$/$1@example/U", "User:ALICE@EXAMPLE")]
)
@pytest.mark.parametrize("first", [b"", header()])
async def test_a_certificate_makes_the_principal(
    tmp_path: Path, authority: Authority, server: Any, alice: Any, rules: str, principal: str, first: bytes
) -> None:
    tls = listener(authority, server, "required", rules)
    async with opened(tmp_path, tls=tls, proxies=PROXIES if first else ()) as yard:
        await shake_hands(yard, authority.client_context(alice), first)
        assert await receive_exactly(await yard.broker.receive(), len(ASKED)) == ASKED
        link = yard.links()[0]
        assert link.session.client.principal == principal
        assert link.peer.startswith("192.0.2.7:" if first else "127.0.0.1:")
        assert yard.workers[0].configured_plane.world.principal_counts == {principal: 1}
        yard.end()
        assert yard.workers[0].configured_plane.world.principal_counts == {}


async def test_a_client_that_shows_no_certificate_is_anonymous(
    tmp_path: Path, authority: Authority, server: Any
) -> None:
    async with opened(tmp_path, tls=listener(authority, server, "requested", "RULE:x/y/")) as yard:
        await shake_hands(yard, authority.client_context())
        await relayed(yard, 1)
        assert yard.links()[0].session.client.principal == "User:ANONYMOUS"
        assert yard.workers[0].configured_plane.world.principal_counts == {}


async def test_a_certificate_to_which_no_rule_applies_lets_nobody_in(
    tmp_path: Path, authority: Authority, server: Any, alice: Any
) -> None:
    async with opened(tmp_path, tls=listener(authority, server, "required", "RULE:CN=bob/bob/")) as yard:
        stream = await shake_hands(yard, authority.client_context(alice))
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some(1)
        await until(lambda: yard.counts() == {"disconnects_identity": 1})
        assert yard.links() == []


async def test_where_sasl_says_who_a_client_is_its_certificate_does_not(
    tmp_path: Path, authority: Authority, server: Any, alice: Any
) -> None:
    tls = listener(authority, server, "required", "RULE:CN=bob/bob/")  # applies to nobody, and need not
    async with opened(tmp_path, tls=tls, upstream_sasl=True) as yard:
        below = await yard.connect()
        stream = trio.SSLStream(below, authority.client_context(alice), server_hostname="localhost")
        hello = other_request(1, key=api.API_VERSIONS)
        await stream.send_all(hello)
        assert await receive_exactly(await yard.broker.receive(), len(hello)) == hello
        assert yard.links()[0].session.client.principal == "User:ANONYMOUS"


async def test_the_principal_of_a_certificate_has_so_many_connections_and_no_more(
    tmp_path: Path, authority: Authority, server: Any, alice: Any
) -> None:
    tls = listener(authority, server, "required")
    async with opened(tmp_path, tls=tls, max_connections_per_principal=1) as yard:
        await shake_hands(yard, authority.client_context(alice))
        await relayed(yard, 1)
        stream = await shake_hands(yard, authority.client_context(alice))
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some(1)
        await until(lambda: yard.counts() == {"disconnects_principal_limit": 1})
        configured = yard.workers[0].configured_plane
        assert configured.world.principal_counts == {"User:CN=alice": 1}
        owners = configured.connections.reactor.budget.owners
        assert {name: owner.connection_count for name, owner in owners.items()} == {"User:CN=alice": 1}
        await relayed(yard, 1)
