# Every client library through listeners with TLS: one port for all brokers, where the server name (SNI) tells them
# apart, and a port for each of them. Names are verified; they are in no DNS, so clients have a hosts file of their own.

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import embedded
from tests.certificates import Authority
from tests.clients import harness
from tests.clients.conftest import FULL, Matrix
from tests.clients.gateways import Gateway
from tests.clients.harness import CLIENTS, Log, Result
from tests.integration import named_clients

pytestmark = [pytest.mark.clients, pytest.mark.kafka]

BOOTSTRAP = "kafka.test"
NAMES = (BOOTSTRAP, *(f"broker-{node_id}.kafka.test" for node_id in (1, 2, 3)))
PARTITIONS = 3  # one on each broker
COUNT = 90
LISTENERS = ("names", "ports") if FULL else ("names",)
Run = tuple[Result, Log, Result | None]


class TlsListeners(Gateway):
    """`names`: of one port, `ports`: of one for each broker; both with TLS."""

    def __init__(self, upstream: str, authority: Authority) -> None:
        certificate, key = authority.sign("gateway", names=f"subjectAltName=DNS:{BOOTSTRAP},DNS:*.{BOOTSTRAP}")
        tls = {"ssl.keystore.location": str(certificate), "ssl.key.location": str(key)}
        at = {"names": embedded.find_free_port(), "ports": embedded.find_free_port(5)}
        sni = {"bootstrap_address": BOOTSTRAP, "advertised_broker_address_pattern": "broker-$(node_id).kafka.test"}
        listeners = {
            "names": {"port": at["names"], "sni": sni, **tls},
            "ports": {"port": at["ports"], "advertised_host": BOOTSTRAP, **tls},
        }
        super().__init__(upstream, {"listeners": listeners, "workers": 2})
        self.addresses = {name: f"{BOOTSTRAP}:{port}" for name, port in at.items()}

    def reached(self, topic: str) -> set[str]:
        """The brokers to which something of that topic went."""
        lines = [
            line for line in self.metrics().splitlines() if line.startswith("produce_gateway_produce_bytes_total{")
        ]
        return {line.split('broker="')[1].split('"')[0] for line in lines if f'topic="{topic}"' in line}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a command that is to know the names."""
    return named_clients.command(named_clients.hosts_file(tmp_path_factory.mktemp("names"), *NAMES))


@pytest.fixture(scope="module")
def listeners(cluster: embedded.EmbeddedCluster, authority: Authority) -> Iterator[TlsListeners]:
    gateway = TlsListeners(cluster.bootstrap_servers, authority)
    with gateway:
        yield gateway


def options_of(client: str, ca: Path) -> dict[str, Any]:
    """TLS with that CA, in the library's own words."""
    if client == "librdkafka":
        return {"security.protocol": "SSL", "ssl.ca.location": str(ca)}
    if client in ("kafka-python", "aiokafka"):
        return {"security_protocol": "SSL", "ssl_cafile": str(ca)}
    if client in ("franz-go", "sarama"):
        return {"ca": str(ca)}
    if client == "kafkajs":
        return {"ssl": {"ca": [ca.read_text()]}}
    return {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(ca)}


def drive(client: str, listener: str, direct: str, bootstrap: str, prefix: list[str], ca: Path) -> tuple[str, Run]:
    mark = uuid.uuid4().hex[:6]
    topic = f"tls-{listener}-{client}-{mark}"
    given: dict[str, Any] = {"topics": [topic], "run": mark, "prefix": prefix, "options": options_of(client, ca)}
    harness.create_topics(direct, [topic], PARTITIONS)
    produced = harness.run(client, "produce", bootstrap, partitions=PARTITIONS, count=COUNT, **given)
    log = harness.read_back(direct, [topic], client, mark)
    consumed = harness.run(client, "consume", bootstrap, count=COUNT, group=topic, **given) if FULL else None
    return topic, (produced, log, consumed)


@pytest.fixture
def run_of(
    request: pytest.FixtureRequest,
    matrix: Matrix,
    cluster: embedded.EmbeddedCluster,
    listeners: TlsListeners,
    prefix: list[str],
    authority: Authority,
) -> Callable[[str, str], tuple[str, Run]]:
    """The run of one row; those of all selected tests are started with the first."""
    for item in request.session.items:
        given = getattr(item, "callspec", None)
        if given is None or not {"client", "listener"} <= given.params.keys():
            continue
        client, listener = given.params["client"], given.params["listener"]
        where = (cluster.bootstrap_servers, listeners.addresses[listener], prefix, authority.certificate)
        matrix.start(("tls", listener, client), functools.partial(drive, client, listener, *where))
    return lambda client, listener: matrix.result(("tls", listener, client))


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("client", [name for name, each in CLIENTS.items() if FULL or not each.full_only])
def test_a_client_produces_to_every_broker_by_its_name(
    client: str, listener: str, run_of: Callable[[str, str], tuple[str, Run]], listeners: TlsListeners
) -> None:
    topic, (produced, log, consumed) = run_of(client, listener)
    assert (produced["errors"], produced["unresolved"]) == ({}, []), produced["first_error"]
    assert harness.judge(produced, log).clean
    assert sorted(log.numbers()) == list(range(COUNT))
    if consumed is not None:
        assert harness.judge_reading(consumed, log) == [], harness.remarks(consumed)
    embedded.wait_for("each broker's part to be counted", lambda: listeners.reached(topic) == {"1", "2", "3"})
