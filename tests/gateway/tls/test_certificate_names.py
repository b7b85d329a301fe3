# Whether a listener's certificate is for the names that clients are told: the rules, OpenSSL's judgement beside them,
# and what the log says at the start and whenever a certificate is renewed.

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trio

from gateway.channel import PROTOCOL, ListenerSettings, LogMessage, WorkerSettings
from gateway.data.connecting.addresses import AddressCounts
from gateway.data.connecting.arrivals import ClientArrivals
from gateway.data.connecting.handshakes import TlsWorkspace
from gateway.data.shared.uplink import ControlUplink
from gateway.data.shared.worker_state import WorkerState
from gateway.tls.certificate_names import AdvertisedHost, CertificateNames, find_name_warnings, read_certificate_names
from gateway.tls.certificates import CHECK_INTERVAL_S, ListenerTls, make_listener_context
from policies.engine import PolicyEngine
from tests.certificates import Authority

SIGNED = (
    "subjectAltName=DNS:Kafka.example.com,DNS:*.kafka.example.com,DNS:b*.part.example.com,DNS:*.example"
    ",DNS:one-7.other.example.com,IP:192.0.2.1,IP:2001:db8::1"
)
BROKERS = "broker-$(node_id).kafka.example.com"
VERSIONS = (("TLSv1.2",), ("TLSv1.3",))


@pytest.fixture(scope="module")
def listener(authority: Authority) -> ListenerTls:
    certificate, key = authority.sign("gateway", names=SIGNED)
    return ListenerTls(str(certificate), str(key), truststore=str(authority.certificate), client_auth="required")


@pytest.fixture(scope="module")
def names(listener: ListenerTls) -> CertificateNames:
    return read_certificate_names(listener)


def takes(authority: Authority, listener: ListenerTls, host: str) -> bool:
    """Whether a client of OpenSSL takes the certificate for that host."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = make_listener_context(ListenerTls(listener.keystore, listener.key)).wrap_bio(up, down, server_side=True)
    client = authority.client_context().wrap_bio(down, up, server_hostname=host)
    for step in (client, server, client):
        try:
            step.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError:
            return False
    return True


@pytest.mark.parametrize("protocols", VERSIONS, ids=lambda versions: str(versions[0]))
def test_a_certificates_names_are_read(listener: ListenerTls, protocols: tuple[str, ...]) -> None:
    spoken = ListenerTls(listener.keystore, listener.key, protocols=protocols)
    assert read_certificate_names(spoken) == (
        ("kafka.example.com", "*.kafka.example.com", "b*.part.example.com", "*.example", "one-7.other.example.com"),
        ("192.0.2.1", "2001:db8::1"),
    )


@pytest.mark.parametrize(
    ("host", "is_covered"),
    [
        ("kafka.example.com", True),
        ("KAFKA.Example.Com.", True),
        ("broker-0.kafka.example.com", True),
        ("a.broker-0.kafka.example.com", False),  # `*` is one label
        ("akafka.example.com", False),
        ("example.com", False),
        ("b1.part.example.com", False),  # Java alone takes that
        ("kafka.example", False),  # Go and Java do
        ("192.0.2.1", True),
        ("192.0.2.2", False),
        ("2001:DB8:0::1", True),
        ("gateway", False),  # its CN: nobody looks there any more
    ],
)
def test_a_name_is_covered_as_clients_see_it(
    authority: Authority, listener: ListenerTls, names: CertificateNames, host: str, is_covered: bool
) -> None:
    assert names.covers_host(host) == is_covered
    assert takes(authority, listener, host.removesuffix(".")) == is_covered


@pytest.mark.parametrize(
    ("pattern", "is_covered"),
    [
        (BROKERS, True),
        ("one-$(node_id).other.example.com", True),  # one of them at least
        ("one-$(node_id).kafka.other.example.com", False),
        ("$(node_id).kafka.example.com", True),
        ("b.$(node_id).kafka.example.com", False),
        ("b$(node_id).part.example.com", False),
    ],
)
def test_a_pattern_of_brokers_is_covered(names: CertificateNames, pattern: str, is_covered: bool) -> None:
    assert names.covers_brokers(pattern) == is_covered


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("gw.example.net", "DNS:gw.example.net"),
        ("198.51.100.7", "IP:198.51.100.7"),
        ("b$(node_id).example.net", "DNS:*.example.net"),
        ("b.$(node_id).example.net", "DNS:b.0.example.net, DNS:b.1.example.net and so on, one for each broker"),
        ("b$(node_id).example", "DNS:b0.example, DNS:b1.example and so on, one for each broker"),
    ],
)
def test_what_would_be_right_is_said(listener: ListenerTls, host: str, wanted: str) -> None:
    told = (
        AdvertisedHost("kafka.example.com", "advertised_host"),
        AdvertisedHost(BROKERS, "x"),
        AdvertisedHost(host, "its.key"),
    )
    (line,) = find_name_warnings(listener, told)
    assert line.startswith(
        f"ssl.keystore.location: {listener.keystore} is not for {host}, which clients are told (its.key)"
    )
    assert line.endswith(f"it needs {wanted} in its subjectAltName")


def test_a_certificate_that_nobody_would_take_is_said(authority: Authority) -> None:
    certificate, key = authority.sign("expired", days=-1)
    told = [AdvertisedHost("localhost", "advertised_host")]
    (line,) = find_name_warnings(ListenerTls(str(certificate), str(key)), told)
    assert (
        line
        == f"ssl.keystore.location: clients will refuse {certificate}: certificate has expired: another one is needed"
    )


async def test_workers_say_it_at_the_start_and_at_each_renewal(authority: Authority, tmp_path: Path) -> None:
    keystore, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def bring(host: str) -> None:
        for made, path in zip(authority.sign(host, names=f"subjectAltName=DNS:{host}"), (keystore, key), strict=True):
            path.with_suffix(".new").write_bytes(made.read_bytes())
            path.with_suffix(".new").rename(path)

    bring("old.example")
    told = (AdvertisedHost("gw.example", "advertised_host"),)
    settings = WorkerSettings(
        PROTOCOL, "gw", listeners={"out": ListenerSettings(ListenerTls(str(keystore), str(key)), None, told)}
    )
    uplink = ControlUplink()
    world = WorkerState(settings, PolicyEngine(0.0), uplink.log)
    certificates = ClientArrivals(world, uplink, AddressCounts(), TlsWorkspace())._listeners["out"].certificates
    assert certificates is not None

    def said() -> list[tuple[str, str]]:
        lines: list[LogMessage] = list(uplink._log_backlog)
        uplink._log_backlog.clear()
        return [(line.level, line.text.partition(" which")[0]) for line in lines]

    wrong = ("warning", f"listeners.out.ssl.keystore.location: {keystore} is not for gw.example,")
    renewed = ("info", f"listeners.out: new connections use the certificate that is in {keystore} now")
    assert said() == [wrong]
    now = trio.current_time()
    for host, expected in (("gw.example", [renewed]), ("older.example", [renewed, wrong])):
        bring(host)
        now += 2 * CHECK_INTERVAL_S
        certificates.get_context(now)
        certificates.get_context(now + CHECK_INTERVAL_S)
        now += CHECK_INTERVAL_S
        assert said() == expected
