# What we know of the upstream cluster: brokers, which topics each leads, topic ids; and the listener for each broker.
#
# A broker's listener is open before its address is handed out; a broker that left keeps its listener for a while (it
# may only be restarting, and clients remember addresses). Where a port can't be opened the broker is withheld, never
# handed out as it is. Asks by librdkafka's AdminClient in a thread; knows no client connections and no messages.

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import trio
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from gateway.channel import Broker, Brokers, Topics
from gateway.config import Listener
from gateway.control.metrics import Metrics
from gateway.kafka.describe import NO_ANSWER, NO_TOPIC, describe_topics
from policies.engine import INTERNAL_TOPICS

log = logging.getLogger("gateway.cluster")

REQUEST_TIMEOUT_S: Final = 5.0
KEEP_LISTENER_S: Final = 600.0  # longer than a broker's restart with log recovery usually takes
WANT_PAUSE_S: Final = 0.25  # a worker may ask at every answer that names a broker without a listener
DESCRIBE_AT_ONCE: Final = 500
DESCRIBE_AGAIN_S: Final = 60.0  # after a failure: older brokers and missing rights don't change by the second


class Unreachable(Exception):
    """No broker answered; the text says what happened instead."""


@dataclass(frozen=True, slots=True)
class View:
    """What metadata said: brokers by node id, topics by the node id of a leader, names by topic id."""

    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    leads: dict[int, tuple[str, ...]] = field(default_factory=dict)
    ids: dict[bytes, str] = field(default_factory=dict)


class Source(Protocol):
    async def ask(self) -> View:
        """What the cluster says now.

        Raises:
            Unreachable: it did not.
        """


class AdminSource:
    """Asks by confluent-kafka. `client`: librdkafka properties; `topic_ids`: learn them of all topics.

    `own_topics` are left out of what brokers lead. Their ids are learned in any case, at every look, and kept for good:
    a client could name a protected topic by its id alone, and a topic that was made anew has another one.
    """

    def __init__(self, client: dict[str, Any], own_topics: Iterable[str] = (), *, topic_ids: bool = True) -> None:
        self._error = ""
        properties: dict[str, Any] = {**client, "error_cb": self._on_error}
        self._admin = AdminClient(properties)
        self._own = frozenset(own_topics)
        self._hidden = self._own.union(INTERNAL_TOPICS)
        self._ids: dict[str, bytes] = {}
        self._own_ids: dict[bytes, str] = {}
        self._learns_all = topic_ids
        self._describe_from = 0.0

    async def ask(self) -> View:
        # Abandoned when cancelled: a cluster that doesn't answer must not hold up a stop.
        return await trio.to_thread.run_sync(self._ask, abandon_on_cancel=True)

    def _ask(self) -> View:
        try:
            metadata = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            self._admin.poll(0)  # serves error_cb, which knows the cause
            raise Unreachable(self._error or error.args[0].str()) from error
        brokers = {
            node_id: (str(broker.host), broker.port) for node_id, broker in metadata.brokers.items() if node_id >= 0
        }
        leads: dict[int, set[str]] = {node_id: set() for node_id in brokers}
        names = [name for name in metadata.topics if name not in self._hidden]
        for name in names:
            for partition in metadata.topics[name].partitions.values():
                if partition.leader in leads:
                    leads[partition.leader].add(name)
        self._learn_ids(names, sorted(self._own.intersection(metadata.topics)))
        return View(
            brokers,
            {node_id: tuple(sorted(topics)) for node_id, topics in leads.items()},
            {topic_id: name for name, topic_id in self._ids.items()} | self._own_ids,
        )

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._error = error.str()

    def _learn_ids(self, names: list[str], own: list[str]) -> None:
        """Ids of topics that are new since the last time, without which workers learn them from clients' metadata; and
        of our own as they are now.
        """
        self._ids = {name: self._ids[name] for name in names if name in self._ids}
        unknown = [name for name in names if name not in self._ids][:DESCRIBE_AT_ONCE] if self._learns_all else []
        if not (own or unknown) or time.monotonic() < self._describe_from:
            return
        try:
            for name, answer in describe_topics(self._admin, [*own, *unknown], REQUEST_TIMEOUT_S).items():
                if isinstance(answer, KafkaException):
                    if answer.args[0].code() not in NO_TOPIC:
                        raise answer
                    continue  # deleted since the brokers named it
                topic_id = answer.topic_id
                high, low = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
                if not high and not low:
                    continue  # the broker is older than topic ids
                if name in self._own:
                    self._own_ids[struct.pack(">qq", high, low)] = name
                else:
                    self._ids[name] = struct.pack(">qq", high, low)
        except KafkaException as error:
            log.debug("topic ids: %s", error)
            if error.args[0].code() not in NO_ANSWER:
                self._describe_from = time.monotonic() + DESCRIBE_AGAIN_S
        except TimeoutError:
            log.debug("topic ids: no answer")


class DeletedTopics:
    """Names that brokers once led a partition of, and none does any more: what is set for them limits nobody."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._there: set[str] = set()

    def see(self, leads: Mapping[int, Iterable[str]]) -> None:
        self._there = {topic for topics in leads.values() for topic in topics}
        self._seen |= self._there

    def __call__(self) -> frozenset[str]:
        return frozenset(self._seen - self._there)


@dataclass(slots=True)
class _Open:
    scope: trio.CancelScope
    port: int
    address: tuple[str, int] | None  # None: inherited from an earlier control, its broker isn't known yet
    left_at: float | None = None


class Cluster:
    """Keeps the view fresh and the listeners in step with it.

    `listen(name, host, port)` gives a listening socket or raises OSError, `unlisten(name)` gives it back;
    `accept(node_id, socket)` accepts on it until cancelled; `tell` gets Brokers and Topics when they changed.
    """

    def __init__(
        self,
        source: Source,
        bootstrap: tuple[tuple[str, int], ...],
        listener: Listener,
        refresh_s: float,
        metrics: Metrics,
        *,
        listen: Callable[[str, str, int], Awaitable[Any]],
        unlisten: Callable[[str], None],
        accept: Callable[[int, Any], Awaitable[None]],
        tell: Callable[[Brokers | Topics], None],
    ) -> None:
        self._source = source
        self._bootstrap = bootstrap
        self._listener = listener
        self._refresh_s = refresh_s
        self._metrics = metrics
        self._listen = listen
        self._unlisten = unlisten
        self._accept = accept
        self._tell = tell
        self._open: dict[int, _Open] = {}
        self._refused: dict[int, str] = {}  # node id -> why it has no listener
        self._told: dict[type, Brokers | Topics] = {}
        self._wanted = trio.Event()
        self._down_since: float | None = None
        self.known = False  # metadata has been seen
        self.asked = trio.Event()  # the first attempt is over, whatever came of it

    @property
    def answers(self) -> bool:
        """The cluster answered the last time it was asked."""
        return self.known and self._down_since is None

    def want(self) -> None:
        """Ask again soon: somebody saw something newer."""
        self._wanted.set()

    async def adopt(self, nursery: trio.Nursery, names: Iterable[str]) -> None:
        """Accept on listeners that an earlier control process had opened, before the cluster has answered."""
        for name in names:
            kind, _, number = name.partition(" ")
            if kind == "broker" and (node_id := int(number)) not in self._open:
                await self._open_listener(nursery, node_id, None)

    async def run(self, nursery: trio.Nursery) -> None:
        """Refresh for ever; listeners' accept tasks go into `nursery`."""
        while True:
            self._wanted = trio.Event()
            try:
                view = await self._source.ask()
            except Unreachable as error:
                self._note_down(str(error))
            else:
                self._note_up()
                await self._apply(nursery, view)
            self.asked.set()
            await trio.sleep(min(WANT_PAUSE_S, self._refresh_s))
            with trio.move_on_after(self._refresh_s):
                await self._wanted.wait()

    async def _apply(self, nursery: trio.Nursery, view: View) -> None:
        now = trio.current_time()
        for node_id, address in sorted(view.brokers.items()):
            if node_id in self._open:
                self._open[node_id].address = address
                self._open[node_id].left_at = None
            else:
                await self._open_listener(nursery, node_id, address)
        for node_id in [node_id for node_id in self._open if node_id not in view.brokers]:
            self._leave(node_id, now)
        self._refused = {node_id: why for node_id, why in self._refused.items() if node_id in view.brokers}
        self._metrics.upstream_brokers.set(len(view.brokers))
        self._metrics.without_listener.set(len(self._refused))
        self._tell_if_new(self._brokers())
        self._tell_if_new(Topics(view.leads, view.ids))
        self._metrics.look_again()
        if not self.known:
            self.known = True
            self._print_mapping()

    async def _open_listener(self, nursery: trio.Nursery, node_id: int, address: tuple[str, int] | None) -> None:
        port = self._listener.broker_port(node_id)
        try:
            sock = await self._listen(_name(node_id), self._listener.host, port)
        except OSError as error:
            if self._refused.get(node_id) != str(error):
                log.error("broker %d is withheld from clients: no listener on %s", node_id, error)
            self._refused[node_id] = str(error)
            return
        self._refused.pop(node_id, None)
        self._open[node_id] = _Open(trio.CancelScope(), port, address)
        nursery.start_soon(self._run_accept, node_id, sock, self._open[node_id].scope)
        if self.known:
            log.info("%s", self._line(node_id))

    async def _run_accept(self, node_id: int, sock: Any, scope: trio.CancelScope) -> None:
        with scope:
            await self._accept(node_id, sock)

    def _leave(self, node_id: int, now: float) -> None:
        entry = self._open[node_id]
        if entry.left_at is None:
            entry.left_at = now
            log.warning("broker %d is not in the cluster's metadata any more", node_id)
        elif now - entry.left_at >= KEEP_LISTENER_S:
            entry.scope.cancel()
            self._unlisten(_name(node_id))
            del self._open[node_id]
            log.info("broker %d: listener closed", node_id)

    def _brokers(self) -> Brokers:
        known = [
            Broker(node_id, *entry.address, self._listener.advertised, entry.port)
            for node_id, entry in sorted(self._open.items())
            if entry.address is not None
        ]
        return Brokers(self._bootstrap, tuple(known))

    def _tell_if_new(self, message: Brokers | Topics) -> None:
        if self._told.get(type(message)) != message:
            self._told[type(message)] = message
            self._tell(message)

    def _note_down(self, why: str) -> None:
        self._metrics.metadata_refreshes.labels("failed").inc()
        self._metrics.upstream_up.set(0)
        if self._down_since is None:
            self._down_since = trio.current_time()
            servers = ",".join(f"{host}:{port}" for host, port in self._bootstrap)
            log.error("the cluster at %s does not answer (%s); asking again every %g s", servers, why, self._refresh_s)
        if not self._open and not self.known:
            self._tell_if_new(Brokers(self._bootstrap, ()))  # so that a worker can dial, fail and say so

    def _note_up(self) -> None:
        self._metrics.metadata_refreshes.labels("ok").inc()
        self._metrics.upstream_up.set(1)
        if self._down_since is not None:
            log.info("the cluster answers again after %.0f s", trio.current_time() - self._down_since)
            self._down_since = None

    def _print_mapping(self) -> None:
        host, port = self._listener.advertised, self._listener.port
        log.info("bootstrap: %s:%d -> %s", host, port, ",".join(f"{h}:{p}" for h, p in self._bootstrap))
        for node_id in self._open:
            log.info("%s", self._line(node_id))
        options = " -X security.protocol=SSL" if self._listener.tls is not None else ""
        log.info("try: kcat -b %s:%d%s -L", host, port, options)

    def _line(self, node_id: int) -> str:
        entry = self._open[node_id]
        upstream = "{}:{}".format(*entry.address) if entry.address else "?"
        return f"broker {node_id}: {self._listener.advertised}:{entry.port} -> {upstream}"


def _name(node_id: int) -> str:
    return f"broker {node_id}"
