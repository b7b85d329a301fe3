# The upstream cluster as it is known: metadata is fetched again and again, and workers get what is new.
#
# A broker has its listeners before workers learn of it; one that left keeps them for a while (it may only be
# restarting, and clients remember addresses).

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from gateway.channel import BrokerTable, TopicSnapshot, UpstreamBroker
from gateway.config import Listener
from gateway.control.cluster.listeners import BrokerListeners
from gateway.control.cluster.metadata import ClusterMetadata, ClusterUnreachable, MetadataSource
from gateway.control.metrics import GatewayMetrics
from gateway.system.sockets import address_text
from policies.definitions.policy_values import TopicIds
from policies.storage import ReplicaSpread
from policies.thresholds.sums import TopicPlaces

log = logging.getLogger("gateway.cluster")

REFRESH_S: Final = 3.0  # Kafka's tools wait for 30 s or more in all
KEEP_LISTENER_S: Final = 600.0  # longer than a broker's restart with log recovery usually takes
REFRESH_PAUSE_S: Final = 0.25  # a worker may ask at every answer that names a broker without a listener


@dataclass(slots=True)
class _KnownBroker:
    address: tuple[str, int] | None  # None: only its listeners are known, from an earlier control
    left_at: float | None = None
    left: str = ""  # the same, as time of day


class ClusterMonitor:
    """Keeps the view fresh and the listeners in step with it.

    `tell` gets Brokers and Topics when they changed, `moved` is called when `places` did, `relocated` when `replicas`
    did, `looked` at every look, with the ids of topics that it found (ClusterView.topic_ids).
    """

    def __init__(
        self,
        source: MetadataSource,
        bootstrap: tuple[tuple[str, int], ...],
        listeners: BrokerListeners,
        refresh_s: float,
        metrics: GatewayMetrics,
        *,
        tell: Callable[[BrokerTable | TopicSnapshot], None],
        moved: Callable[[], None] = lambda: None,
        relocated: Callable[[], None] = lambda: None,
        looked: Callable[[TopicIds], None] = lambda topic_ids: None,
    ) -> None:
        self._source = source
        self._bootstrap = bootstrap
        self._listeners = listeners
        self._refresh_s = refresh_s
        self._metrics = metrics
        self._publish = tell
        self._on_places_changed = moved
        self._on_replicas_changed = relocated
        self._on_topic_ids = looked
        self._brokers: dict[int, _KnownBroker] = {}
        self._published: dict[type, BrokerTable | TopicSnapshot] = {}
        self._refresh_requested = trio.Event()
        self._refresh_waiters: list[trio.Event] = []  # for an answer to what is asked next
        self._down_since: float | None = None
        self._down_reason = ""  # why, and since what time of day
        self.is_known = False  # metadata has been seen
        self.places: TopicPlaces | None = None  # where topics have partitions, see View
        self.replicas: Mapping[int, frozenset[str]] | None = None  # where topics have replicas, likewise
        self.spread: ReplicaSpread | None = None  # how much of them
        self.attempted = trio.Event()  # the first attempt is over, whatever came of it

    @property
    def is_answering(self) -> bool:
        """The cluster answered the last time it was asked."""
        return self.is_known and self._down_since is None

    @property
    def problem(self) -> str:
        """The cluster does not answer, or brokers have left its metadata and may come back; "": neither."""
        away = [
            f"broker {node_id} has been away since {broker.left}"
            for node_id, broker in self._brokers.items()
            if broker.left
        ]
        return self._down_reason or ", ".join(away)

    def apply_settings(self, listeners: Mapping[str, Listener], refresh_s: float) -> None:
        """Set other advertised addresses, on the same sockets."""
        self._refresh_s = refresh_s
        self._listeners.apply_settings(listeners)
        if self.is_known:
            self._publish_if_new(self._make_brokers())

    def request_refresh(self) -> None:
        """Refresh soon: a worker has seen newer metadata."""
        self._refresh_requested.set()

    async def await_refresh(self) -> None:
        """Refresh, and return when that is done, or after a while."""
        over = trio.Event()
        self._refresh_waiters.append(over)
        self.request_refresh()
        with trio.move_on_after(REFRESH_S):
            await over.wait()

    async def adopt_sockets(self, nursery: trio.Nursery, names: Iterable[str]) -> None:
        """Accept on listeners that an earlier control process opened, before the cluster has answered."""
        for node_id in await self._listeners.adopt_sockets(nursery, names):
            self._brokers.setdefault(node_id, _KnownBroker(None))

    async def run(self, nursery: trio.Nursery) -> None:
        """Refresh until cancelled; the listeners' accept tasks run in `nursery`."""
        while True:
            self._refresh_requested = trio.Event()
            waiting, self._refresh_waiters = self._refresh_waiters, []
            try:
                view = await self._source.fetch_metadata()
            except ClusterUnreachable as error:
                self._record_down(str(error))
            else:
                self._record_up()
                await self._apply_metadata(nursery, view)
            self.attempted.set()
            for over in waiting:
                over.set()
            await trio.sleep(min(REFRESH_PAUSE_S, self._refresh_s))
            with trio.move_on_after(self._refresh_s):
                await self._refresh_requested.wait()

    async def _apply_metadata(self, nursery: trio.Nursery, view: ClusterMetadata) -> None:
        now = trio.current_time()
        for node_id, address in sorted(view.brokers.items()):
            before = self._brokers.get(node_id)
            is_new = before is None
            if before is not None and before.left_at is not None:
                log.info("broker %d is back in the cluster's metadata after %.0f s", node_id, now - before.left_at)
            self._brokers[node_id] = _KnownBroker(address)
            opened = await self._listeners.open_broker(nursery, node_id)
            if (opened or is_new) and self.is_known:
                for line in self._listeners.describe_broker(node_id, address):
                    log.info("%s", line)
        for node_id in sorted(self._brokers.keys() - view.brokers.keys()):
            self._mark_left(node_id, now)
        self._metrics.cluster.brokers.set(len(view.brokers))
        self._metrics.cluster.without_listener.set(self._listeners.count_withheld(view.brokers))
        self.places, moved = view.places, view.places != self.places
        relocated, self.replicas = view.replicas != self.replicas, view.replicas
        self.spread = view.spread
        self._publish_if_new(self._make_brokers())
        self._publish_if_new(TopicSnapshot(view.leads, view.ids))
        if relocated:
            self._on_replicas_changed()
        if moved:
            self._on_places_changed()
        self._on_topic_ids(view.topic_ids)
        self._metrics.produced.recheck_waiting()
        if not self.is_known:
            self.is_known = True
            self._log_mapping()

    def _mark_left(self, node_id: int, now: float) -> None:
        broker = self._brokers[node_id]
        if broker.left_at is None:
            broker.left_at, broker.left = now, _time_of_day()
            log.warning("broker %d is not in the cluster's metadata any more", node_id)
        elif now - broker.left_at >= KEEP_LISTENER_S:
            self._listeners.close_broker(node_id)
            del self._brokers[node_id]
            log.info("broker %d: listener closed", node_id)

    def _make_brokers(self) -> BrokerTable:
        addresses = self._listeners.broker_addresses(
            node_id for node_id, broker in self._brokers.items() if broker.address is not None
        )
        known = [
            UpstreamBroker(node_id, *broker.address)
            for node_id, broker in sorted(self._brokers.items())
            if broker.address is not None and any(node_id in told for told in addresses.values())
        ]
        return BrokerTable(self._bootstrap, tuple(known), addresses)

    def _publish_if_new(self, message: BrokerTable | TopicSnapshot) -> None:
        if self._published.get(type(message)) != message:
            self._published[type(message)] = message
            self._publish(message)

    def _record_down(self, why: str) -> None:
        self._metrics.cluster.refreshes.labels("failed").inc()
        self._metrics.cluster.up.set(0)
        if self._down_since is None:
            self._down_since = trio.current_time()
            self._down_reason = f"no answer since {_time_of_day()} ({why})"
            servers = ",".join(itertools.starmap(address_text, self._bootstrap))
            log.error("the cluster at %s does not answer (%s); asking again every %g s", servers, why, self._refresh_s)
        if not self._brokers and not self.is_known:
            self._publish_if_new(BrokerTable(self._bootstrap, ()))  # so that a worker can dial, fail and say so

    def _record_up(self) -> None:
        self._metrics.cluster.refreshes.labels("ok").inc()
        self._metrics.cluster.up.set(1)
        if self._down_since is not None:
            log.info("the cluster answers again after %.0f s", trio.current_time() - self._down_since)
            self._down_since = None
            self._down_reason = ""

    def _log_mapping(self) -> None:
        upstream = ",".join(itertools.starmap(address_text, self._bootstrap))
        for line in self._listeners.describe_all(upstream, {key: each.address for key, each in self._brokers.items()}):
            log.info("%s", line)


def _time_of_day() -> str:
    return time.strftime("%H:%M:%SZ", time.gmtime())
