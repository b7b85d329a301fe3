# The upstream cluster as it is known: it is asked again and again, and workers are told what is new.
#
# A broker has its listeners before it is told; one that left keeps them for a while (it may only be restarting, and
# clients remember addresses).

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from gateway.channel import Broker, Brokers, Topics
from gateway.config import Listener
from gateway.control.cluster.listeners import Listeners
from gateway.control.cluster.metadata import Source, Unreachable, View
from gateway.control.metrics import Metrics
from gateway.system.sockets import address_text
from policies.definitions.policy_values import TopicIds
from policies.storage import Spread
from policies.thresholds.sums import Places

log = logging.getLogger("gateway.cluster")

REFRESH_S: Final = 3.0  # Kafka's tools wait for 30 s or more in all
KEEP_LISTENER_S: Final = 600.0  # longer than a broker's restart with log recovery usually takes
WANT_PAUSE_S: Final = 0.25  # a worker may ask at every answer that names a broker without a listener


@dataclass(slots=True)
class _Known:
    address: tuple[str, int] | None  # None: only its listeners are known, from an earlier control
    left_at: float | None = None
    left: str = ""  # the same, as time of day


class Cluster:
    """Keeps the view fresh and the listeners in step with it.

    `tell` gets Brokers and Topics when they changed, `moved` is called when `places` did, `relocated` when `replicas`
    did, `looked` at every look, with the ids of topics that it found (View.topic_ids).
    """

    def __init__(
        self,
        source: Source,
        bootstrap: tuple[tuple[str, int], ...],
        listeners: Listeners,
        refresh_s: float,
        metrics: Metrics,
        *,
        tell: Callable[[Brokers | Topics], None],
        moved: Callable[[], None] = lambda: None,
        relocated: Callable[[], None] = lambda: None,
        looked: Callable[[TopicIds], None] = lambda topic_ids: None,
    ) -> None:
        self._source = source
        self._bootstrap = bootstrap
        self._listeners = listeners
        self._refresh_s = refresh_s
        self._metrics = metrics
        self._tell = tell
        self._moved = moved
        self._relocated = relocated
        self._looked = looked
        self._brokers: dict[int, _Known] = {}
        self._told: dict[type, Brokers | Topics] = {}
        self._wanted = trio.Event()
        self._waiting: list[trio.Event] = []  # for an answer to what is asked next
        self._down_since: float | None = None
        self._down = ""  # why, and since what time of day
        self.known = False  # metadata has been seen
        self.places: Places | None = None  # where topics have partitions, see View
        self.replicas: Mapping[int, frozenset[str]] | None = None  # where topics have replicas, likewise
        self.spread: Spread | None = None  # how much of them
        self.asked = trio.Event()  # the first attempt is over, whatever came of it

    @property
    def answers(self) -> bool:
        """The cluster answered the last time it was asked."""
        return self.known and self._down_since is None

    @property
    def problem(self) -> str:
        """The cluster doesn't answer, or brokers have left its metadata and may come back; "": neither."""
        away = [
            f"broker {node_id} has been away since {broker.left}"
            for node_id, broker in self._brokers.items()
            if broker.left
        ]
        return self._down or ", ".join(away)

    def configure(self, listeners: Mapping[str, Listener], refresh_s: float) -> None:
        """Other addresses for clients, on the same sockets."""
        self._refresh_s = refresh_s
        self._listeners.configure(listeners)
        if self.known:
            self._tell_if_new(self._see_brokers())

    def want(self) -> None:
        """Ask again soon: a worker saw newer metadata."""
        self._wanted.set()

    async def refresh(self) -> None:
        """Ask again, and return when that is over, or after a while."""
        over = trio.Event()
        self._waiting.append(over)
        self.want()
        with trio.move_on_after(REFRESH_S):
            await over.wait()

    async def adopt(self, nursery: trio.Nursery, names: Iterable[str]) -> None:
        """Accept on listeners that an earlier control process had opened, before the cluster has answered."""
        for node_id in await self._listeners.adopt(nursery, names):
            self._brokers.setdefault(node_id, _Known(None))

    async def run(self, nursery: trio.Nursery) -> None:
        """Refresh for ever; listeners' accept tasks go into `nursery`."""
        while True:
            self._wanted = trio.Event()
            waiting, self._waiting = self._waiting, []
            try:
                view = await self._source.ask()
            except Unreachable as error:
                self._note_down(str(error))
            else:
                self._note_up()
                await self._apply(nursery, view)
            self.asked.set()
            for over in waiting:
                over.set()
            await trio.sleep(min(WANT_PAUSE_S, self._refresh_s))
            with trio.move_on_after(self._refresh_s):
                await self._wanted.wait()

    async def _apply(self, nursery: trio.Nursery, view: View) -> None:
        now = trio.current_time()
        for node_id, address in sorted(view.brokers.items()):
            before = self._brokers.get(node_id)
            is_new = before is None
            if before is not None and before.left_at is not None:
                log.info("broker %d is back in the cluster's metadata after %.0f s", node_id, now - before.left_at)
            self._brokers[node_id] = _Known(address)
            opened = await self._listeners.open(nursery, node_id)
            if (opened or is_new) and self.known:
                for line in self._listeners.describe_broker(node_id, address):
                    log.info("%s", line)
        for node_id in sorted(self._brokers.keys() - view.brokers.keys()):
            self._leave(node_id, now)
        self._metrics.cluster.brokers.set(len(view.brokers))
        self._metrics.cluster.without_listener.set(self._listeners.withheld(view.brokers))
        self.places, moved = view.places, view.places != self.places
        relocated, self.replicas = view.replicas != self.replicas, view.replicas
        self.spread = view.spread
        self._tell_if_new(self._see_brokers())
        self._tell_if_new(Topics(view.leads, view.ids))
        if relocated:
            self._relocated()
        if moved:
            self._moved()
        self._looked(view.topic_ids)
        self._metrics.produced.look_again()
        if not self.known:
            self.known = True
            self._print_mapping()

    def _leave(self, node_id: int, now: float) -> None:
        broker = self._brokers[node_id]
        if broker.left_at is None:
            broker.left_at, broker.left = now, _time_of_day()
            log.warning("broker %d is not in the cluster's metadata any more", node_id)
        elif now - broker.left_at >= KEEP_LISTENER_S:
            self._listeners.close(node_id)
            del self._brokers[node_id]
            log.info("broker %d: listener closed", node_id)

    def _see_brokers(self) -> Brokers:
        addresses = self._listeners.addresses(
            node_id for node_id, broker in self._brokers.items() if broker.address is not None
        )
        known = [
            Broker(node_id, *broker.address)
            for node_id, broker in sorted(self._brokers.items())
            if broker.address is not None and any(node_id in told for told in addresses.values())
        ]
        return Brokers(self._bootstrap, tuple(known), addresses)

    def _tell_if_new(self, message: Brokers | Topics) -> None:
        if self._told.get(type(message)) != message:
            self._told[type(message)] = message
            self._tell(message)

    def _note_down(self, why: str) -> None:
        self._metrics.cluster.refreshes.labels("failed").inc()
        self._metrics.cluster.up.set(0)
        if self._down_since is None:
            self._down_since = trio.current_time()
            self._down = f"no answer since {_time_of_day()} ({why})"
            servers = ",".join(itertools.starmap(address_text, self._bootstrap))
            log.error("the cluster at %s does not answer (%s); asking again every %g s", servers, why, self._refresh_s)
        if not self._brokers and not self.known:
            self._tell_if_new(Brokers(self._bootstrap, ()))  # so that a worker can dial, fail and say so

    def _note_up(self) -> None:
        self._metrics.cluster.refreshes.labels("ok").inc()
        self._metrics.cluster.up.set(1)
        if self._down_since is not None:
            log.info("the cluster answers again after %.0f s", trio.current_time() - self._down_since)
            self._down_since = None
            self._down = ""

    def _print_mapping(self) -> None:
        upstream = ",".join(itertools.starmap(address_text, self._bootstrap))
        for line in self._listeners.describe(upstream, {key: each.address for key, each in self._brokers.items()}):
            log.info("%s", line)


def _time_of_day() -> str:
    return time.strftime("%H:%M:%SZ", time.gmtime())
