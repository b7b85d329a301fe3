# TLS handshakes on a listener where server names tell brokers apart: which broker a client gets, what it is sent where
# its name is nobody's, and what is said of it.

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import NamedTuple

import pytest
import trio

from gateway.channel import PROTOCOL, AcceptedConnection, ListenerSettings, WorkerSettings
from gateway.data.connecting.addresses import AddressCounts, ArrivingConnection
from gateway.data.connecting.arrivals import ClientArrivals, OpenedConnection
from gateway.data.connecting.handshakes import TlsWorkspace
from gateway.data.shared.uplink import ControlUplink
from gateway.data.shared.warning_limiter import NO_LOG_FIELDS
from gateway.data.shared.worker_state import WorkerState
from gateway.data.sockets.inbound import SHARED_READ_BYTES
from gateway.data.sockets.tls import HandshakeError, TlsConnection, require_server_name
from gateway.embedded import find_free_port
from gateway.supervisor import open_listener
from gateway.tls.certificates import ListenerTls, make_listener_context
from gateway.tls.server_names import ServerNames
from policies.engine import PolicyEngine
from tests.certificates import Authority
from tests.gateway.data.play import present, request

pytestmark = pytest.mark.usefixtures("no_circles")

NAMES = ServerNames("kafka.example", "broker-$(node_id).kafka.example")
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> ListenerTls:
    certificate, key = Authority(tmp_path_factory.mktemp("ca")).sign("gateway")
    return ListenerTls(str(certificate), str(key))


def context_of(listener: ListenerTls, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = make_listener_context(listener)
    context.maximum_version = version
    require_server_name(context, NAMES)
    return context


def client_context() -> ssl.SSLContext:
    """Of a client that trusts everybody: names are looked at on the other side."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Outcome(NamedTuple):
    """`refusal`: the gateway's; `alert`: OpenSSL's word for what the client was sent."""

    tls: TlsConnection
    refusal: HandshakeError | None
    alert: str


def shake_hands(
    server: ssl.SSLContext, name: str | None, change: Callable[[bytes], bytes] = lambda data: data, cut: int = 2**20
) -> Outcome:
    """In memory, so that nothing is received from a socket; the client's bytes come in pieces of `cut`."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context().wrap_bio(incoming, outgoing, server_hostname=name)
    tls = TlsConnection(server, None, memoryview(bytearray(SHARED_READ_BYTES)))  # type: ignore[arg-type]
    for _ in range(4):
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            return Outcome(tls, None, error.reason or "")
        data = change(outgoing.read())
        try:
            for at in range(0, len(data), cut):
                tls.continue_handshake(data[at : at + cut])
        except HandshakeError as error:
            incoming.write(tls.pop_output())
            with pytest.raises(ssl.SSLError) as alert:
                client.do_handshake()
            return Outcome(tls, error, alert.value.reason or "")
        incoming.write(tls.pop_output())
    return Outcome(tls, None, "")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cut", [1, 2**20])
def test_each_connection_has_the_broker_of_its_server_name(
    listener: ListenerTls, version: ssl.TLSVersion, cut: int
) -> None:
    context = context_of(listener, version)
    names = ("kafka.example", "broker-7.kafka.example", "BROKER-0.Kafka.Example", "broker-8.kafka.example")
    connections = [shake_hands(context, name, cut=cut) for name in names]
    assert [(each.tls.requested_broker, each.refusal) for each in connections] == [
        (None, None),
        (7, None),
        (0, None),
        (8, None),
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("broker-x.kafka.example", "unknown_server_name", "'broker-x.kafka.example' is neither kafka.example nor one"),
        (None, "no_server_name", "its bootstrap.servers must name kafka.example"),
    ],
)
def test_a_name_that_is_nobodys_ends_with_the_alert_unrecognized_name(
    listener: ListenerTls, version: ssl.TLSVersion, name: str | None, kind: str, said: str
) -> None:
    _, refusal, alert = shake_hands(context_of(listener, version), name)
    assert refusal is not None
    assert refusal.kind == kind
    assert said in str(refusal)
    assert alert == "TLSV1_UNRECOGNIZED_NAME"


def test_a_name_that_is_not_ascii_is_unknown(listener: ListenerTls, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda found: told.append(found.exc_type.__name__))
    _, refusal, _ = shake_hands(
        context_of(listener), "broker-7.kafka.example", lambda data: data.replace(b"broker-7", b"br\xf6ker-7")
    )
    assert refusal is not None
    assert refusal.kind == "unknown_server_name"
    assert told == ["UnicodeDecodeError"], "Python tells nobody else, which is why workers have a hook of their own"


# --- as a worker has it -----------------------------------------------------------------------------------------------


class Scene:
    """A worker's arrivals at three listeners: `plain`, `ports` with TLS, and `named` with TLS and server names."""

    def __init__(self, listener: ListenerTls) -> None:
        self.lines: list[str] = []
        settings = WorkerSettings(
            PROTOCOL,
            "gw",
            listeners={
                "plain": ListenerSettings(),
                "ports": ListenerSettings(listener),
                "named": ListenerSettings(listener, NAMES),
            },
        )
        self.uplink = ControlUplink()
        self.world = WorkerState(settings, PolicyEngine(0.0), lambda level, text, fields=NO_LOG_FIELDS: None)
        self.arrivals = ClientArrivals(self.world, self.uplink, AddressCounts(), TlsWorkspace())

    async def open(
        self, listener: str, first: bytes, name: str | None, broker: int | None = None
    ) -> OpenedConnection | None:
        """What comes of a client that begins with these bytes, over TLS with that server name but at `plain`."""
        opened: list[OpenedConnection | None] = []
        server = open_listener("127.0.0.1", find_free_port())
        async with trio.open_nursery() as nursery:
            with server:
                stream: trio.abc.Stream = await trio.open_tcp_stream(*server.getsockname())
                near, _ = server.accept()
            if listener != "plain":
                stream = trio.SSLStream(stream, client_context(), server_hostname=name)

            async def be_gateway() -> None:
                opened.append(
                    await self.arrivals.open_connection(
                        ArrivingConnection(AcceptedConnection(broker, "10.0.0.9:1", listener=listener), near)
                    )
                )
                near.close()

            nursery.start_soon(be_gateway)
            try:
                await stream.send_all(first)
                await stream.receive_some(1)
            except (trio.BrokenResourceError, ssl.SSLError):
                pass
            await trio.aclose_forcefully(stream)
        return opened[0]

    def counted(self, reason: str) -> int:
        return self.world.ledger.counts.get(f"server_names_refused_{reason}", 0)


@pytest.mark.trio
async def test_a_listener_with_server_names_takes_the_broker_from_the_name_and_another_from_its_port(
    listener: ListenerTls,
) -> None:
    scene = Scene(listener)
    for name, wanted in (("broker-5.kafka.example", 5), ("kafka.example", None)):
        opened = present(await scene.open("named", request(1), name))
        assert (opened.broker, opened.tls is None) == (wanted, False)
    for other in ("plain", "ports"):
        opened = present(await scene.open(other, request(1), "broker-5.kafka.example", broker=3))
        assert (opened.broker, opened.tls is None) == (3, other == "plain")
    assert scene.world.ledger.counts == {}


@pytest.mark.trio
async def test_refusals_are_counted_by_reason_and_said_once(listener: ListenerTls) -> None:
    scene = Scene(listener)
    for name in ("elsewhere.example", "elsewhere2.example", None):
        assert await scene.open("named", request(1), name) is None
    assert (scene.counted("unknown_server_name"), scene.counted("no_server_name")) == (2, 1)
    assert scene.world.ledger.counts["tls_handshakes_failed"] == 3
    said = [line.text for line in scene.uplink._log_backlog]
    assert [line.partition(": no TLS handshake: ")[2][:34] for line in said] == [
        "server name 'elsewhere.example' is",
        "the client sent no server name (SN",
    ]
