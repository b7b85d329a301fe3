# The upstream cluster as it is known: metadata is fetched again and again, and published as a fact.
#
# A broker has its listeners before workers learn of it; one that left keeps them for a while (it may only be
# restarting, and clients remember addresses).

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from gateway.channel import BrokerTable, TopicSnapshot, UpstreamBroker
from gateway.config import Settings
from gateway.control.cluster.listeners import BrokerListeners
from gateway.control.cluster.metadata import ClusterMetadata, ClusterUnreachable, MetadataSource
from gateway.control.context import ControlContext
from gateway.control.facts import ClusterState
from gateway.system.sockets import address_text

log = logging.getLogger("gateway.cluster")

KEEP_LISTENER_S: Final = 600.0  # longer than a broker's restart with log recovery usually takes
REFRESH_PAUSE_S: Final = 0.25  # a worker may ask at every answer that names a broker without a listener


@dataclass(slots=True)
class _KnownBroker:
    address: tuple[str, int] | None  # None: only its listeners are known, from an earlier control
    left_at: float | None = None
    left: str = ""  # the same, as time of day


class ClusterMonitor:
    """Keeps the view fresh and the listeners in step with it."""

    def __init__(self, context: ControlContext, source: MetadataSource, listeners: BrokerListeners) -> None:
        self._source = source
        self._bootstrap = context.settings.upstream.addresses()
        self._listeners = listeners
        self._refresh_s = context.settings.upstream.metadata_refresh
        self._metrics = context.metrics
        self._published = context.facts.cluster
        self._brokers: dict[int, _KnownBroker] = {}
        self._down_since: float | None = None
        self._down_reason = ""  # why, and since what time of day
        self.is_known = False  # metadata has been seen
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

    @property
    def lacking(self) -> Mapping[str, str]:
        """Empty until the cluster is known: until then the gateway isn't ready."""
        return {"cluster": self.problem} if self.is_known else {}

    def apply_settings(self, settings: Settings) -> None:
        """Set other advertised addresses, on the same sockets."""
        self._refresh_s = settings.upstream.metadata_refresh
        self._listeners.apply_settings(settings.all_listeners)
        if self.is_known:
            self._publish_brokers(self._make_brokers())

    async def adopt_sockets(self, nursery: trio.Nursery, names: Iterable[str]) -> None:
        """Accept on listeners that an earlier control process opened, before the cluster has answered."""
        for node_id in await self._listeners.adopt_sockets(nursery, names):
            self._brokers.setdefault(node_id, _KnownBroker(None))

    async def run(self, nursery: trio.Nursery) -> None:
        """Refresh until cancelled; the listeners' accept tasks run in `nursery`."""
        while True:
            with self._published.refreshing():
                try:
                    metadata = await self._source.fetch_metadata()
                except ClusterUnreachable as error:
                    self._record_down(str(error))
                else:
                    self._record_up()
                    await self._apply_metadata(nursery, metadata)
                self.attempted.set()
            await trio.sleep(min(REFRESH_PAUSE_S, self._refresh_s))
            with trio.move_on_after(self._refresh_s):
                await self._published.wait_requested()

    async def _apply_metadata(self, nursery: trio.Nursery, metadata: ClusterMetadata) -> None:
        now = trio.current_time()
        for node_id, address in sorted(metadata.brokers.items()):
            before = self._brokers.get(node_id)
            is_new = before is None
            if before is not None and before.left_at is not None:
                log.info("broker %d is back in the cluster's metadata after %.0f s", node_id, now - before.left_at)
            self._brokers[node_id] = _KnownBroker(address)
            opened = await self._listeners.open_broker(nursery, node_id)
            if (opened or is_new) and self.is_known:
                for line in self._listeners.describe_broker(node_id, address):
                    log.info("%s", line)
        for node_id in sorted(self._brokers.keys() - metadata.brokers.keys()):
            self._mark_left(node_id, now)
        self._metrics.cluster.brokers.set(len(metadata.brokers))
        self._metrics.cluster.without_listener.set(self._listeners.count_withheld(metadata.brokers))
        self._published.publish(
            ClusterState(
                self._make_brokers(),
                TopicSnapshot(metadata.leads, metadata.ids),
                metadata.places,
                metadata.replicas,
                metadata.spread,
                metadata.topic_ids,
                self._published.latest.answers + 1,
                metadata.cluster_id,
            )
        )
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
            if broker.address is not None and any(node_id in by_node for by_node in addresses.values())
        ]
        return BrokerTable(self._bootstrap, tuple(known), addresses)

    def _publish_brokers(self, brokers: BrokerTable) -> None:
        view = self._published.latest
        if brokers != view.brokers:
            self._published.publish(view._replace(brokers=brokers))

    def _record_down(self, why: str) -> None:
        self._metrics.cluster.refreshes.labels("failed").inc()
        self._metrics.cluster.up.set(0)
        if self._down_since is None:
            self._down_since = trio.current_time()
            self._down_reason = f"no answer since {_time_of_day()} ({why})"
            servers = ",".join(itertools.starmap(address_text, self._bootstrap))
            log.error("the cluster at %s does not answer (%s); asking again every %g s", servers, why, self._refresh_s)
        if not self._brokers and not self.is_known:
            self._publish_brokers(BrokerTable(self._bootstrap, ()))  # so that a worker can dial, fail and say so

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
