# A model of a Kafka cluster: partitions with logs, leaders that move, what a broker remembers of idempotent producers,
# disks, and the internal topics that the gateways' own clients (librdkafka.py) write and read.
#
# It tells the judge of every batch that it appends or refuses. Shares no code with the product.

from __future__ import annotations

import bisect
import math
import random
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from tests.simulation.clock import Agenda, Alarm
from tests.simulation.models import wire
from tests.simulation.models.coordinator import NAME as STATE_TOPIC
from tests.simulation.models.coordinator import Coordinator
from tests.simulation.models.network import ModelEnd, Network
from tests.simulation.models.sasl import FAILED, ILLEGAL_STATE, MECHANISMS, UNKNOWN_MECHANISM, Door, LoginFailed
from tests.simulation.models.wire import Batch, Outcome, PartitionView, TopicView

NONE, OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_LEADER, REQUEST_TIMED_OUT = 0, 1, 3, 6, 7
OUT_OF_ORDER, DUPLICATE, INVALID_EPOCH, STORAGE_ERROR = 45, 46, 47, 56
PORT: Final = 9092
BROKER_USER: Final = "broker-"  # begins the names of users that gateways are there for their own users
BEFORE_LOGIN: Final = (wire.API_VERSIONS, wire.SASL_HANDSHAKE, wire.SASL_AUTHENTICATE)
TRANSACTION_APIS: Final = (
    wire.FIND_COORDINATOR, wire.ADD_PARTITIONS, wire.ADD_OFFSETS, wire.TXN_OFFSET_COMMIT, wire.END_TXN,
)  # fmt: skip
ADDS_FROM: Final = 12  # the version of Produce by which a partition joins a transaction (KIP-890)
ELECTION_S: Final = 2.0
REMEMBERED: Final = 5  # batches of a producer that a broker tells as repeated
NOBODY: Final = 2**32 - 1  # the client of a marker
MARKER_BYTES: Final = 81


class Appended(NamedTuple):
    """A batch in a log, or a marker at the end of a transaction."""

    at: float
    offset: int
    batch: Batch
    attributes: int = 0


@dataclass(slots=True)
class _Producer:
    epoch: int
    last: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))  # sequence, end, offset


class Partition:
    """`log`: all that is in it. `leader`: -1 for none."""

    def __init__(self, topic: Topic, index: int, replicas: list[int]) -> None:
        self.topic = topic
        self.index = index
        self.replicas = replicas
        self.leader = replicas[0]
        self.log: list[Appended] = []
        self.end = 0
        self.bytes = 0
        self.kept_from = 0  # of `log`: what is before was deleted by retention, and is there for the judge only
        self.producers: dict[int, _Producer] = {}
        self.open: dict[int, int] = {}  # by producer, where its transaction begins that is open
        self.aborted: list[tuple[int, int, int]] = []  # producer, first offset of a transaction, and of its marker

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min(self.open.values(), default=self.end)

    def mark(self, producer: int, epoch: int, now: float, *, commits: bool) -> int:
        """Append the marker of a transaction's end; returns its offset."""
        known, offset = self.producers.get(producer), self.end
        if known is None or epoch > known.epoch:
            self.producers[producer] = _Producer(epoch)
        first = self.open.pop(producer, None)
        if first is not None and not commits:
            self.aborted.append((producer, first, offset))
        batch = Batch(NOBODY, int(commits), 1, MARKER_BYTES, 0, producer, epoch, -1)
        self.log.append(Appended(now, offset, batch, wire.TRANSACTIONAL | wire.CONTROL))
        self.end += 1
        self.bytes += batch.size
        return offset

    def append(
        self, batch: Batch, now: float, attributes: int = 0, *, is_strict: bool = False
    ) -> tuple[int, int, bool]:  # fmt: skip
        """Error, offset, and whether it was there before. `is_strict`: nothing but a first sequence number begins."""
        if batch.producer >= 0:
            known = self.producers.get(batch.producer)
            if batch.sequence and (is_strict if known is None else known.epoch == batch.epoch and not known.last):
                return OUT_OF_ORDER, -1, False
            if known is None or batch.epoch > known.epoch:
                if known is not None and batch.sequence:
                    return OUT_OF_ORDER, -1, False
                known = self.producers[batch.producer] = _Producer(batch.epoch)
            elif batch.epoch < known.epoch:
                return INVALID_EPOCH, -1, False
            elif known.last:
                for sequence, end, offset in known.last:
                    if (sequence, end) == (batch.sequence, batch.sequence + batch.records):
                        return NONE, offset, True
                if batch.sequence != known.last[-1][1]:
                    return (DUPLICATE if batch.sequence < known.last[-1][1] else OUT_OF_ORDER), -1, False
            known.last.append((batch.sequence, batch.sequence + batch.records, self.end))
        offset = self.end
        if attributes:
            self.open.setdefault(batch.producer, offset)
        self.log.append(Appended(now, offset, batch, attributes))
        self.end += batch.records
        self.bytes += batch.size
        return NONE, offset, False


class Topic:
    def __init__(self, name: str, topic_id: bytes, replicas: list[list[int]]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = [Partition(self, index, nodes) for index, nodes in enumerate(replicas)]


class InternalRecord(NamedTuple):
    """A record of a gateway's own. `visible_at`: when readers get it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    at: float
    visible_at: float


class InternalLog:
    """A topic of the gateways' own, of one partition. `is_compacted`: it keeps the last record of a key."""

    def __init__(self, topic: Topic, config: dict[str, str]) -> None:
        self.topic = topic
        self.config = config
        self.records: list[InternalRecord] = []
        self.end = 0
        self.appended = Alarm()

    @property
    def is_compacted(self) -> bool:
        return self.config.get("cleanup.policy") == "compact"

    def write(self, now: float, value: bytes) -> None:
        """As somebody who is no gateway of ours."""
        self.records.append(InternalRecord(self.end, None, value, [], now, max(now, self._last_visible)))
        self.end += 1
        self.appended.ring()

    @property
    def _last_visible(self) -> float:
        return self.records[-1].visible_at if self.records else 0.0

    def compact(self) -> int:
        """Drop records that later ones replace; returns how many."""
        last = {record.key: record.offset for record in self.records if record.key is not None}
        kept = [record for record in self.records if record.key is None or last[record.key] == record.offset]
        dropped, self.records = len(self.records) - len(kept), kept
        return dropped


class Broker:
    """`is_up`; `is_full`: its disk takes nothing more. `capacity`, `used`: of its disk, in bytes."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.address = (f"10.0.0.{node_id}", PORT)
        self.is_up = True
        self.is_full = False
        self.capacity = math.inf
        self.used = 0
        self.connections: list[_Served] = []


class Observer:
    """Told of what brokers do."""

    def on_request(self, node_id: int, name: str, size: int) -> None:
        """A Produce request of `size` bytes without its size prefix. `name`: of the user, or client id."""

    def on_unauthenticated(self, api: int) -> None:
        """A request of that API came before its client had authenticated."""

    def on_fetched(self, node_id: int, client_id: str, size: int, records_size: int) -> None:
        """A Fetch answer of `size` bytes without its size prefix, `records_size` of them records."""

    def on_disk_full(self, node_id: int) -> None:
        """A batch didn't fit on that broker's disk."""

    def on_appended(self, partition: Partition, batch: Batch, offset: int) -> None: ...

    def on_repeated(self, partition: Partition, batch: Batch, offset: int) -> None: ...

    def on_marker(self, partition: Partition, producer: int, offset: int, *, commits: bool) -> None:
        """A transaction ended there."""

    def on_timed_out(self, name: str) -> None:
        """The transaction of that transactional id took too long."""

    def on_message(self, topic: str, size: int) -> None:
        """A gateway wrote a record of that many bytes to a topic of the gateways' own."""

    def on_refused(self, topic: str, index: int, batch: Batch, error: int) -> None: ...


class Cluster:
    """`topics`: by name, internal ones too; `internal`: their logs."""

    def __init__(self, agenda: Agenda, network: Network, chance: random.Random, observer: Observer, size: int) -> None:
        self.agenda = agenda
        self.network = network
        self.chance = chance
        self.observer = observer
        self.brokers = {node_id: Broker(node_id) for node_id in range(1, size + 1)}
        self.topics: dict[str, Topic] = {}
        self.internal: dict[str, InternalLog] = {}
        self.epochs: dict[str, int] = {}  # of transactional ids
        self.copies: Callable[[str], int] = lambda topic: 1  # of a gateway's message: 0 where it is lost
        self.service_s: Callable[[], float] = lambda: chance.uniform(0.0005, 0.004)
        self.wants_sasl = False
        self.idle_poll_s = 0.2  # for which gateways' own consumers wait at least, where nothing comes
        self.homes: dict[str, int] = {}  # topics that one broker has alone, and which
        self.cut_off: Counter[str] = Counter()  # gateways whose own clients reach no broker: by how many faults
        self.coordinator: Coordinator | None = None
        self._producers = 1000
        for broker in self.brokers.values():
            self._serve(broker)

    def serve_transactions(self) -> None:
        """From now on there is a coordinator."""
        nodes = sorted(self.brokers)
        replicas = [[*nodes[at:], *nodes[:at]] for at in range(len(nodes))]
        self.coordinator = Coordinator(self, Topic(STATE_TOPIC, bytes(16), replicas))

    # --- topics -------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int, config: dict[str, str] | None = None) -> Topic:
        nodes, first = sorted(self.brokers), self.chance.randrange(len(self.brokers))
        copies = min(3, len(nodes))
        replicas = [
            [nodes[(first + index + copy) % len(nodes)] for copy in range(copies)] for index in range(partitions)
        ]
        if name in self.homes:
            replicas = [[self.homes[name]]] * partitions
        topic = self.topics[name] = Topic(name, self.chance.randbytes(16), replicas)
        for partition in topic.partitions:
            self._elect(partition)
        if config is not None:
            self.internal[name] = InternalLog(topic, config)
        return topic

    def delete_topic(self, name: str) -> Topic:
        self.internal.pop(name, None)
        topic = self.topics.pop(name)
        for partition in topic.partitions:
            self._delete_before(partition, math.inf)
        return topic

    # --- disks --------------------------------------------------------------------------------------------------------

    def limit_disks(self, capacity: float, retention_s: float, node_ids: Iterable[int]) -> None:
        """These brokers' disks have that many bytes, and keep what is younger than `retention_s`."""
        for node_id in node_ids:
            self.brokers[node_id].capacity = capacity
        self._retain(retention_s)

    def _retain(self, retention_s: float) -> None:
        for topic in self.topics.values():
            for partition in topic.partitions:
                self._delete_before(partition, self.agenda.now - retention_s)
        self.agenda.after(retention_s / 4, self._retain, retention_s)

    def _delete_before(self, partition: Partition, at: float) -> None:
        log = partition.log
        while partition.kept_from < len(log) and log[partition.kept_from].at < at:
            for node_id in partition.replicas:
                self.brokers[node_id].used -= log[partition.kept_from].batch.size
            partition.kept_from += 1

    def _fills_disk(self, partition: Partition, batch: Batch) -> bool:
        full = [
            each for each in partition.replicas if self.brokers[each].used + batch.size > self.brokers[each].capacity
        ]
        for node_id in full:
            self.observer.on_disk_full(node_id)
        return bool(full)

    def _elect(self, partition: Partition) -> None:
        if partition.leader < 0 or not self.brokers[partition.leader].is_up:
            alive = [node_id for node_id in partition.replicas if self.brokers[node_id].is_up]
            partition.leader = alive[0] if alive else -1

    def move_leader(self, partition: Partition) -> None:
        """Another replica that is up leads it."""
        alive = [node_id for node_id in partition.replicas if self.brokers[node_id].is_up]
        others = [node_id for node_id in alive if node_id != partition.leader]
        if others:
            partition.leader = self.chance.choice(others)

    # --- brokers ------------------------------------------------------------------------------------------------------

    def _serve(self, broker: Broker) -> None:
        def accept(end: ModelEnd) -> None:
            _Served(self, broker, end)

        self.network.serve_model(broker.address, accept)

    def add_broker(self) -> int:
        """A broker joins; returns its id."""
        node_id = max(self.brokers) + 1
        broker = self.brokers[node_id] = Broker(node_id)
        self._serve(broker)
        return node_id

    def kill_broker(self, node_id: int) -> None:
        broker = self.brokers[node_id]
        broker.is_up = False
        self.network.serve_model(broker.address, None)
        for served in list(broker.connections):
            served.end.close(with_reset=True)
            served.is_over = True
        broker.connections.clear()
        self.agenda.after(ELECTION_S, self._elect_all)

    def start_broker(self, node_id: int) -> None:
        broker = self.brokers[node_id]
        broker.is_up = True
        self._serve(broker)
        self._elect_all()

    def _elect_all(self) -> None:
        states = () if self.coordinator is None else (self.coordinator.topic,)
        for topic in (*self.topics.values(), *states):
            for partition in topic.partitions:
                self._elect(partition)

    @property
    def alive(self) -> dict[int, tuple[str, int]]:
        return {node_id: broker.address for node_id, broker in self.brokers.items() if broker.is_up}

    # --- what brokers answer ------------------------------------------------------------------------------------------

    def new_producer(self) -> int:
        self._producers += 1
        return self._producers

    def view_topics(self, asked: list[str | bytes] | None) -> list[TopicView]:
        found = []
        by_id = {topic.topic_id: topic for topic in self.topics.values()}
        for one in list(self.topics) if asked is None else asked:
            topic = self.topics.get(one) if isinstance(one, str) else by_id.get(one)
            if topic is None:
                is_name = isinstance(one, str)
                name, topic_id = (one, bytes(16)) if isinstance(one, str) else (None, one)
                found.append(TopicView(UNKNOWN_TOPIC if is_name else 100, name, topic_id, []))
                continue
            partitions = [
                PartitionView(each.index, 0 if each.leader >= 0 else 5, each.leader, each.replicas)
                for each in topic.partitions
            ]
            found.append(TopicView(0, topic.name, topic.topic_id, partitions))
        return found

    def produce(self, broker: Broker, rows: wire.Rows, version: int) -> list[Outcome]:
        return [
            self._produce(broker, topic, index, wire.decode_batch(records), wire.batch_attributes(records), version)
            for topic, partitions in rows
            for index, records in partitions
        ]

    def _produce(
        self, broker: Broker, name: str, index: int, batch: Batch, attributes: int, version: int
    ) -> Outcome:  # fmt: skip
        topic = self.topics.get(name)
        error, offset = UNKNOWN_TOPIC, -1
        if topic is not None and index < len(topic.partitions) and name not in self.internal:
            partition = topic.partitions[index]
            if partition.leader != broker.node_id:
                error = NOT_LEADER
            elif broker.is_full or self._fills_disk(partition, batch):
                error = STORAGE_ERROR
            elif attributes and (error := self._verify(batch, name, index, version)):
                pass
            else:
                error, offset, is_repeated = partition.append(
                    batch, self.agenda.now, attributes, is_strict=bool(attributes) and version >= ADDS_FROM
                )
                if not error and not is_repeated:
                    for node_id in partition.replicas:
                        self.brokers[node_id].used += batch.size
                if not error:
                    told = self.observer.on_repeated if is_repeated else self.observer.on_appended
                    told(partition, batch, offset)
        if error:
            self.observer.on_refused(name, index, batch, error)
        return Outcome(name, index, error, offset, None)

    def _verify(self, batch: Batch, name: str, index: int, version: int) -> int:
        if self.coordinator is None:
            return INVALID_EPOCH
        return self.coordinator.verify(batch, (name, index), adds=version >= ADDS_FROM)

    def fetch(
        self, broker: Broker, wanted: list[wire.Wanted], max_bytes: int, *, is_committed: bool
    ) -> list[wire.Fetched]:
        """Of each partition what there is from its offset on, the first batch whatever its size. `is_committed`: up to
        the last stable offset.
        """
        found = []
        for each in wanted:
            topic = self.topics.get(each.topic)
            if topic is None or each.partition >= len(topic.partitions):
                found.append(wire.Fetched(each.topic, each.partition, UNKNOWN_TOPIC, -1, b"", []))
                continue
            partition = topic.partitions[each.partition]
            error = NOT_LEADER if partition.leader != broker.node_id else OUT_OF_RANGE * (each.offset > partition.end)
            stable = partition.stable if is_committed else partition.end
            records = b"" if error else _read_log(partition, each.offset, min(each.max_bytes, max_bytes), stable)
            max_bytes -= len(records)
            aborted = [
                (producer, first)
                for producer, first, last in partition.aborted
                if last >= each.offset and first < stable
            ] if is_committed else None  # fmt: skip
            found.append(
                wire.Fetched(each.topic, each.partition, error, partition.end, records, [], partition.stable, aborted)
            )
        return found


def _read_log(partition: Partition, offset: int, max_bytes: int, end: int) -> bytes:
    """Whole batches before `end`, none where there is no room any more."""
    found = list[bytes]()
    size = 0
    for one in partition.log[bisect.bisect_left(partition.log, offset, key=lambda each: each.offset) :]:
        size += one.batch.size
        if one.offset >= end or max_bytes <= 0 or (found and size > max_bytes):
            break
        found.append(struct.pack(">q", one.offset) + wire.encode_batch(one.batch, wire.PADDING, one.attributes)[8:])
    return b"".join(found)


class _Served:
    """One connection at a broker: one request after the other, as a broker does."""

    def __init__(self, cluster: Cluster, broker: Broker, end: ModelEnd) -> None:
        self.cluster = cluster
        self.broker = broker
        self.end = end
        self.is_over = False
        self.door = Door(cluster.chance)
        self._frames = wire.Frames()
        self._free_at = 0.0
        broker.connections.append(self)
        end.on_bytes, end.on_end = self._receive, self._finish

    def _receive(self, data: bytes) -> None:
        agenda = self.cluster.agenda
        for frame in self._frames.feed(data):
            if len(frame) < 10:
                self._close()
                return
            self._free_at = max(self._free_at, agenda.now) + self.cluster.service_s()
            agenda.at(self._free_at, self._handle_if_sound, frame)

    def _finish(self, why: str) -> None:
        """The peer has closed: what it sent before is still handled, and answered if it can be."""
        if why == "reset":
            self._close()
        else:
            self.cluster.agenda.at(max(self._free_at, self.cluster.agenda.now), self._close)

    def _close(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.end.close()
            self.broker.connections.remove(self)

    def _handle_if_sound(self, frame: bytes) -> None:
        if self.is_over or not self.broker.is_up:
            return
        try:
            self._handle(frame)
        except (
            struct.error,
            IndexError,
            ValueError,
            KeyError,
            OverflowError,
            LoginFailed,
        ):  # as a broker does with what it can't read
            self._close()

    def _authenticate(self, head: wire.Head) -> bytes:
        error, said = 0, b""
        try:
            said = self.door.answer(head.body.blob())
        except (LoginFailed, ValueError, KeyError):
            error = FAILED
            self.cluster.agenda.after(0.05, self._close)
        return wire.encode_sasl_authenticate_answer(head.version, head.correlation, error, said)

    def _fetch(self, head: wire.Head, *, is_late: bool) -> None:
        """What there is now; where there is nothing, what there will be in a while."""
        cluster = self.cluster
        if self.is_over or not self.broker.is_up:
            return
        at = head.body.at
        wait_ms, max_bytes, isolation, wanted = wire.decode_fetch(head)
        found = cluster.fetch(self.broker, wanted, max_bytes, is_committed=isolation == 1)
        if not (is_late or any(each.records or each.error for each in found)):
            head.body.at = at
            self._free_at = cluster.agenda.now + wait_ms / 1000
            cluster.agenda.at(self._free_at, partial(self._fetch, head, is_late=True))
            return
        answer = wire.encode_fetch_answer(head.version, head.correlation, found)
        records_size = sum(len(each.records) for each in found)
        cluster.observer.on_fetched(self.broker.node_id, head.client_id or "", len(answer) - 4, records_size)
        self.end.send(answer)

    def _handle(self, frame: bytes) -> None:
        head, cluster = wire.read_head(frame), self.cluster
        answer = b""
        if cluster.wants_sasl and self.door.user is None and head.api not in BEFORE_LOGIN:
            cluster.observer.on_unauthenticated(head.api)
            self._close()
        elif head.api == wire.SASL_HANDSHAKE:
            mechanism = head.body.text() or ""
            self.door.mechanism = mechanism if mechanism in MECHANISMS else ""
            error = 0 if self.door.mechanism else UNKNOWN_MECHANISM
            error = error if cluster.wants_sasl else ILLEGAL_STATE  # as on a listener without SASL
            answer = wire.encode_sasl_handshake_answer(head.version, head.correlation, error, MECHANISMS)
        elif head.api == wire.SASL_AUTHENTICATE:
            answer = self._authenticate(head)
        elif head.api == wire.PRODUCE:
            name = (self.door.user or head.client_id or "").removeprefix(BROKER_USER)
            cluster.observer.on_request(self.broker.node_id, name, len(frame))
            acks, _, rows = wire.decode_produce(head)
            outcomes = cluster.produce(self.broker, rows, head.version)
            if acks:
                cluster.chance.shuffle(outcomes)
                answer = wire.encode_produce_answer(head.version, head.correlation, outcomes)
            elif any(outcome.error for outcome in outcomes):
                self.end.close()
        elif head.api == wire.FETCH:
            self._fetch(head, is_late=False)
        elif head.api == wire.METADATA:
            views = cluster.view_topics(wire.decode_metadata_topics(head))
            answer = wire.encode_metadata_answer(head.version, head.correlation, cluster.alive, views)
        elif head.api == wire.API_VERSIONS:
            served = wire.SERVED if cluster.coordinator is None else wire.SERVED_WITH_TRANSACTIONS
            answer = wire.encode_api_versions_answer(head.version, head.correlation, served)
        elif cluster.coordinator is not None and head.api == wire.INIT_PRODUCER_ID:
            answer = cluster.coordinator.init_producer(self.broker, head)
        elif cluster.coordinator is not None and head.api in TRANSACTION_APIS:
            answer = cluster.coordinator.handle(self.broker, head)
        elif head.api == wire.INIT_PRODUCER_ID:
            answer = wire.encode_init_producer_id_answer(head.version, head.correlation, cluster.new_producer())
        else:
            self.end.close()
        if answer and not self.is_over:
            self.end.send(answer)
