# The cluster, the gateway in front of it, and the runs of the client matrix, which go on beside each other.
#
# CLIENTS_TARGET=gateway (default), direct or both: `direct` is the control that shows what is the client's own doing.
# CLIENTS_FULL=1 is the whole matrix (`make clients`), else a telling subset. A row whose tool is missing is skipped
# with its reason; where CI=true that is a failure.

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from gateway import embedded
from tests.clients import harness
from tests.clients.gateways import Gateway
from tests.clients.processes import PROC

FULL = os.environ.get("CLIENTS_FULL", "") not in ("", "0")
collect_ignore = [] if FULL else ["cluster/test_broker_versions.py"]  # it downloads brokers
IN_CI = os.environ.get("CI", "").lower() in ("true", "1")
_TARGETS = {"gateway": ("gateway",), "direct": ("direct",), "both": ("gateway", "direct")}
TARGETS = _TARGETS[os.environ.get("CLIENTS_TARGET", "both" if FULL else "gateway")]
PARALLEL = 3  # drivers wait more than they compute; more than this and timeouts measure the machine


@dataclass(frozen=True)
class Target:
    """Where clients are sent, and what addresses they must be given there."""

    name: str
    bootstrap: str
    direct: str
    ports: dict[int, int]  # node id -> port


def missing(reason: str) -> None:
    """Skip on a newcomer's machine, fail in CI."""
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster(group_stack: ExitStack) -> embedded.EmbeddedCluster:
    # Kafka's own patience with a broker: no leader moves because the machine stood still.
    three = group_stack.enter_context(
        embedded.EmbeddedCluster(
            brokers=3, overrides={"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
        )
    )
    _warm_up(three.bootstrap_servers)
    return three


def _warm_up(bootstrap: str) -> None:
    """The first group and the first transaction create internal topics: seconds that no client should be timed by."""
    harness.create_topics(bootstrap, ["warm-up"], 1)
    produced = harness.run(
        "librdkafka", "produce", bootstrap, topics=["warm-up"], count=1, transactional_id="warm-up", run="w"
    )
    assert produced["transactions"]["committed"] == 1, produced
    harness.run("librdkafka", "consume", bootstrap, topics=["warm-up"], count=1, group="warm-up", run="w", settle_s=0)


@pytest.fixture(scope="session")
def gateway(cluster: embedded.EmbeddedCluster, group_stack: ExitStack) -> Gateway:
    return group_stack.enter_context(Gateway(cluster.bootstrap_servers))


@pytest.fixture(scope="session")
def target_of(request: pytest.FixtureRequest, cluster: embedded.EmbeddedCluster) -> Callable[[str], Target]:
    """Target by name; a gateway is started only when somebody asks for it."""

    def make(name: str) -> Target:
        if name == "direct":
            ports = {node: broker.port for node, broker in cluster.brokers.items()}
            return Target(name, cluster.bootstrap_servers, cluster.bootstrap_servers, ports)
        running: Gateway = request.getfixturevalue("gateway")
        ports = {node: running.broker_port(node) for node in cluster.brokers}
        return Target(name, running.bootstrap, cluster.bootstrap_servers, ports)

    return make


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, target_of: Callable[[str], Target]) -> Target:
    return target_of(request.param)


class Matrix:
    """Starts the runs of all selected tests at once, a few at a time; each test then waits for its own. One that runs
    again, see tests/conftest.py, has its run again.
    """

    def __init__(self, parallel: int = PARALLEL) -> None:
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="matrix")
        self._works: dict[tuple[Any, ...], Callable[[], Any]] = {}
        self._runs: dict[tuple[Any, ...], Future[Any]] = {}

    def start(self, key: tuple[Any, ...], work: Callable[[], Any]) -> None:
        self._works[key] = work
        if key not in self._runs and not _is_second_attempt():
            self._runs[key] = self._pool.submit(work)

    def result(self, key: tuple[Any, ...]) -> Any:
        if _is_second_attempt():
            self._runs[key] = self._pool.submit(self._works[key])
        try:
            return self._runs[key].result()
        except harness.Unavailable as reason:
            missing(str(reason))

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _is_second_attempt() -> bool:
    return os.environ.get("TEST_ATTEMPT") == "2"


@pytest.fixture(scope="session")
def matrix(group_stack: ExitStack) -> Matrix:
    running = Matrix()
    group_stack.callback(running.close)
    return running


@pytest.fixture
def proc() -> None:
    """For tests that look at other processes' sockets."""
    if not (PROC / "net" / "tcp").exists():
        missing("there is no /proc/net/tcp here: who is connected to a broker is told by Linux only")
