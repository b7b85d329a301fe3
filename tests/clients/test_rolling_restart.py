# Two gateways behind a load balancer are restarted one after the other under load, as a rolling update does, while
# connections end again and again since they are too old: idempotent producers notice nothing. Each record is
# acknowledged, once and in order in the log, and no application is told of an error.

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from gateway import embedded
from tests.background import Background
from tests.clients import harness
from tests.clients.balancer import Balancer
from tests.clients.conftest import FULL, missing
from tests.clients.gateways import Gateway
from tests.clients.harness import Driver, Result

pytestmark = [pytest.mark.clients, pytest.mark.kafka]

CLIENTS = ("java", "librdkafka", "franz-go")
PARTITIONS = 4
RATE = 100.0 if FULL else 40.0  # of each client
COUNT = round(25 * RATE)  # records of one run of a client, which both restarts may be over in; else there is another
NODES = 3


class Producing(Background):
    """One client that produces, again and again. `results`: of its runs, each with the run's name and topic."""

    def __init__(self, client: str, bootstrap: str, topic: str) -> None:
        super().__init__()
        self.client = client
        self.topic = topic
        self.results: list[tuple[str, Result]] = []
        self.failed: Exception | None = None
        self._bootstrap = bootstrap

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                mark = uuid.uuid4().hex[:6]
                driver = Driver(
                    self.client, "produce", self._bootstrap, topics=[self.topic], run=mark, count=COUNT, rate=RATE,
                    partitions=PARTITIONS, batch_records=4, acks=-1, idempotence=True, timeout_s=120.0,
                )  # fmt: skip
                self.results.append((mark, driver.result()))
        except Exception as error:
            self.failed = error


@pytest.fixture
def prepared() -> None:
    """Building takes longer than anything here."""
    try:
        for client in CLIENTS:
            harness.CLIENTS[client].command()
    except harness.Unavailable as reason:
        missing(str(reason))


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    with Balancer(NODES + 2) as balancer:
        yield balancer


def has_ended(gateway: Gateway, cause: str) -> bool:
    """Whether it has ended connections for that reason."""
    found = re.search(rf'^produce_gateway_disconnects_total{{cause="{cause}"}} (\S+)', gateway.metrics(), re.MULTILINE)
    return found is not None and float(found[1]) > 0


def test_a_rolling_restart_under_load_is_noticed_by_no_idempotent_client(
    prepared: None, cluster: embedded.EmbeddedCluster, balancer: Balancer
) -> None:
    direct, mark = cluster.bootstrap_servers, uuid.uuid4().hex[:6]
    settings = {
        "listener": {"advertised_port": balancer.port},
        "limits": {"max_connection_age": "4s"},
        "shutdown_delay": "1s",
    }
    topics = {client: f"rolling-{client}-{mark}" for client in CLIENTS}
    harness.create_topics(direct, list(topics.values()), PARTITIONS, 3, config={"min.insync.replicas": "2"})
    with ExitStack() as stack:
        gateways = [stack.enter_context(Gateway(direct, settings)) for _ in range(2)]
        balancer.backends = gateways
        producing = [
            stack.enter_context(Producing(client, balancer.bootstrap, topic)) for client, topic in topics.items()
        ]
        for gateway in gateways:
            embedded.wait_for("connections that were too old", partial(has_ended, gateway, "age"), 120.0, 0.5)
            assert gateway.restart() == 0
    for each in producing:
        assert each.failed is None, f"{each.client}: {each.failed}"
        assert each.results
        for run, produced in each.results:
            told = produced["acknowledged"], produced["errors"]
            assert told == (COUNT, {}), f"{each.client}: {told}, {produced['first_error']}"
            log = harness.read_back(direct, [each.topic], each.client, run)
            verdict = harness.judge(produced, log)
            assert verdict.clean, f"{each.client}: {verdict}"
            assert len(log.numbers()) == COUNT
