# What a part of control gets in a test: a context with real facts and metrics, and stand-ins for its surroundings.

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import Mock

import trio
from msgspec.structs import replace

from gateway.config import Settings, parse_settings
from gateway.control.context import ControlContext
from gateway.control.facts import ClusterState, ControlFacts, Published, PublishedCluster
from gateway.control.internal_errors import InternalErrors
from gateway.control.metrics import GatewayMetrics
from gateway.control.policies.service import PolicyService
from gateway.control.policies.store import PolicyStore
from gateway.control.usage.usage_log import UsageLogWriter
from gateway.control.workers.interval_receiver import IntervalReceiver
from gateway.control.workers.workers import WorkerPool
from gateway.parent_link import NO_ORIGIN, NOTHING_KEPT, AdoptConfig, ConfigOrigin
from policies.definitions.policy_values import NO_IDS, TopicIds
from policies.quotas.store import QuotaStore
from policies.thresholds.sums import TopicPlaces

SETTINGS = parse_settings("upstream: {bootstrap_servers: 'b:9092'}")
OWN_SASL = parse_settings(
    "{upstream: {bootstrap_servers: 'b:9092'},"
    " authentication: {sasl.enabled.mechanisms: PLAIN, credentials_file: /users, upstream_credentials_file: /own}}"
)  # SASL ends at the gateway


class Parent:
    """What control asks of its parent."""

    def __init__(self, origin: ConfigOrigin = NO_ORIGIN) -> None:
        self.origin = origin
        self.kept = NOTHING_KEPT
        self.reload, self.leaving = trio.Event(), trio.Event()
        self.reconnects: list[int] = []
        self.adopted: list[AdoptConfig] = []

    def ask_for_reload(self) -> None:
        self.reload.set()

    def request_reconnect(self, worker: int) -> None:
        self.reconnects.append(worker)

    def adopt_config(self, message: AdoptConfig) -> None:
        self.adopted.append(message)

    def keep(self, **changes: Any) -> None:
        self.kept = replace(self.kept, **changes)


class QuietCluster(PublishedCluster):
    """Nobody asks it: a refresh is over at once. `requests`: those for a refresh soon."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def request_refresh(self) -> None:
        self.requests += 1

    async def await_refresh(self) -> None:
        await trio.lowlevel.checkpoint()


def make_context(
    settings: Settings = SETTINGS,
    *,
    metrics: Any = None,
    parent: Any = None,
    errors: InternalErrors | None = None,
    was_up: bool = False,
    unix_time: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    cluster: PublishedCluster | None = None,
) -> ControlContext:
    return ControlContext(
        cast("Any", parent or Parent()),
        ControlFacts(Published(settings), cluster=cluster or QuietCluster()),
        metrics or GatewayMetrics(),
        errors or InternalErrors(),
        was_up,
        unix_time,
        monotonic,
    )


def set_places(context: ControlContext, places: TopicPlaces | None) -> None:
    """Where topics have partitions, by the cluster's latest answer."""
    context.facts.cluster.latest = ClusterState(places=places)


class Told:
    """What workers were told. `all`: what came in one message is one entry."""

    def __init__(self) -> None:
        self.all: list[list[Any]] = []
        self._latest: dict[type, Any] = {}
        self._gathered: list[Any] | None = None

    def latest_snapshot(self, kind: type) -> Any:
        return self._latest.get(kind)

    def publish_snapshot(self, message: Any, news: Any = None) -> None:
        self._latest[type(message)] = message
        if self._gathered is None:
            self.all.append([message])
        else:
            self._gathered.append(message)

    publish_provisional = publish_snapshot

    @contextmanager
    def batch_snapshots(self) -> Iterator[None]:
        if self._gathered is not None:
            yield
            return
        gathered = self._gathered = []
        try:
            yield
        finally:
            self._gathered = None
            if gathered:
                self.all.append(gathered)


class Surroundings:
    """What a policy service asks: this machine's clock, and a cluster without topic ids and quotas of its own."""

    is_sure = True
    now_s: float | None = None  # Unix time

    def now(self) -> float:
        return time.time() if self.now_s is None else self.now_s

    async def fetch_topic_ids(self, topics: Collection[str]) -> TopicIds:
        await trio.lowlevel.checkpoint()
        return NO_IDS

    async def fetch_quotas(self) -> QuotaStore | None:
        await trio.lowlevel.checkpoint()
        return None


def make_policy_service(context: ControlContext, store: PolicyStore, surroundings: Any = None) -> PolicyService:
    around: Any = Surroundings() if surroundings is None else surroundings
    return PolicyService(context, store, around, around, around)


def make_worker_pool(
    context: ControlContext, usage_log: UsageLogWriter, fleet: Any, storage: Any = None, queries: Any = None
) -> WorkerPool:
    """`storage`, `queries`: None: nothing comes of what is said to them."""
    intake = IntervalReceiver(context, usage_log)
    return WorkerPool(context, intake, fleet, storage or Mock(), queries or Mock())
