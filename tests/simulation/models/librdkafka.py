# What the gateways' own clients are in a simulated world: the few calls of confluent-kafka that control makes, on the
# logs of the model cluster. Waits are simulated ones: control makes these calls in threads, here in greenlets.

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

from tests.simulation.clock import START_S, UNIX_S, Alarm, block, current_process
from tests.simulation.models.cluster import Cluster, InternalLog, InternalRecord

RETRY_S: Final = 0.2
ERROR_S: Final = 1.0  # between two messages about one error


class Message:
    """In the place of `confluent_kafka.Message`."""

    def __init__(self, record: InternalRecord | None, error: KafkaError | None = None, offset: int = -1) -> None:
        self._record = record
        self._error = error
        self._offset = offset if record is None else record.offset

    def error(self) -> KafkaError | None:
        return self._error

    def value(self) -> bytes | None:
        return None if self._record is None else self._record.value

    def key(self) -> bytes | None:
        return None if self._record is None else self._record.key

    def headers(self) -> list[tuple[str, bytes]]:
        return [] if self._record is None else self._record.headers

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        at = 0.0 if self._record is None else self._record.at
        return TIMESTAMP_LOG_APPEND_TIME, round(1000 * (UNIX_S - START_S + at))


class _Future:
    """The result of an admin call, some milliseconds later."""

    def __init__(self, cluster: Cluster, make: Callable[[], Any], timeout_s: float) -> None:
        self._cluster = cluster
        self._make = make
        self._timeout_s = timeout_s

    def result(self, timeout: float = 0.0) -> Any:
        _answer_delay(self._cluster, self._timeout_s)
        return self._make()


def _gateway_name() -> str:
    return current_process.get().name.split("/", maxsplit=1)[0]


def _answer_delay(cluster: Cluster, timeout_s: float) -> None:
    """Wait for the cluster's answer.

    Raises:
        KafkaException: no broker is there.
    """
    if not cluster.alive or cluster.cut_off[_gateway_name()]:
        block(timeout_s)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no broker answers"))
    block(cluster.chance.uniform(0.002, 0.02))


class _TopicId:
    """In the place of `confluent_kafka.Uuid`."""

    def __init__(self, topic_id: bytes) -> None:
        self._id = topic_id

    def get_most_significant_bits(self) -> int:
        return int.from_bytes(self._id[:8], "big", signed=True)

    def get_least_significant_bits(self) -> int:
        return int.from_bytes(self._id[8:], "big", signed=True)

    def __str__(self) -> str:
        return self._id.hex()


class AdminClient:
    """In the place of `confluent_kafka.admin.AdminClient`."""

    cluster: Cluster

    def __init__(self, properties: Any, **_: Any) -> None: ...

    def poll(self, timeout: float = 0.0) -> int:
        return 0

    def list_topics(self, topic: str | None = None, timeout: float = -1.0) -> Any:
        cluster = self.cluster
        _answer_delay(cluster, timeout)
        topics = {
            name: SimpleNamespace(
                partitions={
                    each.index: SimpleNamespace(id=each.index, leader=each.leader, replicas=list(each.replicas))
                    for each in found.partitions
                }
            )
            for name, found in cluster.topics.items()
        }
        brokers = {node_id: SimpleNamespace(host=host, port=port) for node_id, (host, port) in cluster.alive.items()}
        return SimpleNamespace(brokers=brokers, topics=topics, cluster_id="simulated")

    def describe_topics(self, asked: Any, request_timeout: float = 5.0) -> dict[str, _Future]:
        return {
            name: _Future(self.cluster, lambda name=name: self._describe(name), request_timeout)  # type: ignore[misc]
            for name in asked.topic_names
        }

    def _describe(self, name: str) -> Any:
        topic = self.cluster.topics.get(name)
        if topic is None:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic"))
        partitions = [SimpleNamespace(id=each.index) for each in topic.partitions]
        return SimpleNamespace(topic_id=_TopicId(topic.topic_id), partitions=partitions)

    def create_topics(self, new: list[Any], **_: Any) -> dict[str, _Future]:
        return {
            each.topic: _Future(self.cluster, lambda each=each: self._create(each), 15.0)  # type: ignore[misc]
            for each in new
        }

    def _create(self, new: Any) -> None:
        if new.topic in self.cluster.topics:
            raise KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS, "it exists"))
        self.cluster.create_topic(new.topic, new.num_partitions, dict(new.config))

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, _Future]:
        return {
            each: _Future(self.cluster, lambda each=each: self._configs(each.name), 5.0)  # type: ignore[misc]
            for each in resources
        }

    def _configs(self, name: str) -> dict[str, Any]:
        log = self.cluster.internal.get(name)
        if log is None:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic"))
        return {key: SimpleNamespace(value=value, source=1) for key, value in log.config.items()}

    def list_offsets(self, asked: dict[Any, Any], **_: Any) -> dict[Any, _Future]:
        return {
            each: _Future(self.cluster, lambda each=each: self._end(each.topic), 5.0)  # type: ignore[misc]
            for each in asked
        }

    def _end(self, name: str) -> Any:
        log = self.cluster.internal.get(name)
        if log is None:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic"))
        return SimpleNamespace(offset=log.end)

    def describe_client_quotas(self, *_: Any, **__: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE, "not simulated"))


class Producer:
    """In the place of `confluent_kafka.Producer`; with a transactional id, what was produced is there as a whole or not
    at all.
    """

    cluster: Cluster

    def __init__(self, properties: dict[str, Any]) -> None:
        self._timeout_s = properties.get("message.timeout.ms", 300_000) / 1000
        self._gateway, self._process = "", current_process.get()
        self._transactional_id: str | None = properties.get("transactional.id")
        self._epoch = 0
        self._transaction: list[tuple[str, Any]] = []
        self._pending = 0
        self._flight = 0
        self._done: deque[tuple[Callable[..., None] | None, KafkaError | None]] = deque()
        self._served = Alarm()

    def produce(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, partition: int = -1,
        on_delivery: Callable[..., None] | None = None, headers: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        record = (key, value, list(headers or ()), on_delivery)
        self._gateway = _gateway_name()
        if self._transactional_id is not None:
            self._transaction.append((topic, record))
            return
        if current_process.get().is_dead:
            return
        self._pending += 1
        agenda = self.cluster.agenda
        deadline = agenda.now + self._timeout_s
        agenda.after(self.cluster.chance.uniform(0.002, 0.02), self._write, topic, record, deadline, self._flight)

    def _write(self, topic: str, record: Any, deadline: float, flight: int, *, is_retry: bool = False) -> None:
        """What was written first before its process is stopped, the kernel sends."""
        cluster = self.cluster
        if flight != self._flight:
            return
        if is_retry and self._process.is_stopped:
            cluster.agenda.after(RETRY_S, self._retry, topic, record, deadline, flight)
            return
        log, is_cut_off = cluster.internal.get(topic), bool(cluster.cut_off[self._gateway])
        if log is None and not is_cut_off:
            self._settle(record[3], KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic"))
        elif (
            log
            and not is_cut_off
            and log.topic.partitions[0].leader >= 0
            and cluster.brokers[log.topic.partitions[0].leader].is_up
        ):
            _append(cluster, log, record)
            self._settle(record[3], None)
        elif cluster.agenda.now + RETRY_S > deadline:
            self._settle(record[3], KafkaError(KafkaError._MSG_TIMED_OUT, "no leader"))
        else:
            cluster.agenda.after(RETRY_S, self._retry, topic, record, deadline, flight)

    def _retry(self, topic: str, record: Any, deadline: float, flight: int) -> None:
        self._write(topic, record, deadline, flight, is_retry=True)

    def _settle(self, on_delivery: Callable[..., None] | None, error: KafkaError | None) -> None:
        self._pending -= 1
        self._done.append((on_delivery, error))
        self._served.ring()

    def poll(self, timeout: float = 0.0) -> int:
        if not self._done and timeout > 0:
            block(timeout, self._served)
        served = len(self._done)
        for _ in range(served):
            on_delivery, error = self._done.popleft()
            if on_delivery is not None:
                on_delivery(error, Message(None))
        return served

    def flush(self, timeout: float = 60.0) -> int:
        until = self.cluster.agenda.now + timeout
        while self._pending and self.cluster.agenda.now < until:
            block(until - self.cluster.agenda.now, self._served)
            self.poll(0)
        return self._pending

    def purge(self, *_: Any, **__: Any) -> None:
        """Give up all that is in flight; it may be written all the same, but here it isn't."""
        self._flight += 1
        self._pending = 0
        self._transaction.clear()

    def init_transactions(self, timeout: float = 30.0) -> None:
        _answer_delay(self.cluster, timeout)
        name = self._transactional_id or ""
        self._epoch = self.cluster.epochs[name] = self.cluster.epochs.get(name, 0) + 1

    def begin_transaction(self) -> None:
        self._transaction.clear()

    def commit_transaction(self, timeout: float = 30.0) -> None:
        cluster = self.cluster
        _answer_delay(cluster, timeout)
        if cluster.epochs.get(self._transactional_id or "") != self._epoch:
            raise KafkaException(KafkaError(KafkaError._FENCED, "fenced", True))
        written, self._transaction = self._transaction, []
        for topic, record in written:
            log = cluster.internal.get(topic)
            if log is None:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic"))
            _append(cluster, log, record)
        for log in {topic: cluster.internal[topic] for topic, _ in written}.values():
            log.end += 1  # the mark of the commit


def _append(cluster: Cluster, log: InternalLog, record: Any) -> None:
    """Append it, or as often as the cluster's present fault has it."""
    key, value, headers, _ = record
    now = cluster.agenda.now
    cluster.observer.on_message(log.topic.name, len(value or b""))
    for _ in range(1 if log.is_compacted else cluster.copies(log.topic.name)):
        _append_once(cluster, log, key, value, headers, now)


def _append_once(
    cluster: Cluster, log: InternalLog, key: bytes | None, value: bytes | None, headers: Any, now: float
) -> None:
    visible_at = now + cluster.chance.uniform(0.002, 0.03)
    if log.records:
        visible_at = max(visible_at, log.records[-1].visible_at)
    log.records.append(InternalRecord(log.end, key, value, headers, now, visible_at))
    log.end += 1
    cluster.agenda.at(visible_at, log.appended.ring)


class Consumer:
    """In the place of `confluent_kafka.Consumer`, with partitions assigned by hand."""

    cluster: Cluster

    def __init__(self, properties: dict[str, Any]) -> None:
        self._tells_end = bool(properties.get("enable.partition.eof"))
        self._topic = ""
        self._offset = 0
        self._log: InternalLog | None = None
        self._is_end_told = False
        self._complains_at = 0.0

    def assign(self, partitions: list[Any]) -> None:
        self._topic, self._offset, self._is_end_told = partitions[0].topic, max(0, partitions[0].offset), False

    def unassign(self) -> None:
        self._topic = ""

    def get_watermark_offsets(self, partition: Any, timeout: float = 5.0, **_: Any) -> tuple[int, int]:
        _answer_delay(self.cluster, timeout)
        log = self.cluster.internal.get(partition.topic)
        if log is None:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, "no such topic"))
        return 0, log.end

    def poll(self, timeout: float = 0.0) -> Message | None:
        agenda = self.cluster.agenda
        # What comes wakes it; where nothing does it takes longer than it was told to, as threads may.
        until = agenda.now + (max(timeout, self.cluster.idle_poll_s) if timeout else 0.0)
        while True:
            message = self._next(agenda.now)
            if message is not None or agenda.now >= until:
                return message
            log = self.cluster.internal.get(self._topic)
            before = agenda.now
            block(until - agenda.now, None if log is None else log.appended)
            if agenda.now == before and log is None:
                return None

    def _next(self, now: float) -> Message | None:
        if not self._topic or self.cluster.cut_off[_gateway_name()]:
            return None
        log = self.cluster.internal.get(self._topic)
        if log is None:
            if now < self._complains_at:
                return None
            self._complains_at = now + ERROR_S
            return Message(None, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic"))
        leader = log.topic.partitions[0].leader
        if leader < 0 or not self.cluster.brokers[leader].is_up:
            return None
        record = _first_from(log.records, self._offset)
        if record is not None:
            if record.visible_at > now:
                return None
            self._offset, self._is_end_told = record.offset + 1, False
            return Message(record)
        if self._tells_end and not self._is_end_told:
            self._is_end_told, self._offset = True, max(self._offset, log.end)
            return Message(None, KafkaError(KafkaError._PARTITION_EOF, "end"), self._offset)
        return None

    def close(self) -> None: ...


def _first_from(records: list[InternalRecord], offset: int) -> InternalRecord | None:
    """The first record there or behind; most often there is none."""
    if not records or records[-1].offset < offset:
        return None
    return records[bisect.bisect_left(records, offset, key=lambda record: record.offset)]


@contextmanager
def simulated_clients(cluster: Cluster, modules: list[Any]) -> Iterator[None]:
    """Within it the product's modules have these clients in the place of confluent-kafka's."""
    stand_ins: list[tuple[Any, type]] = [
        (confluent_kafka.Producer, type("Producer", (Producer,), {"cluster": cluster})),
        (confluent_kafka.Consumer, type("Consumer", (Consumer,), {"cluster": cluster})),
        (confluent_kafka.admin.AdminClient, type("AdminClient", (AdminClient,), {"cluster": cluster})),
    ]
    patches = [
        mock.patch.object(module, name, stand_in)
        for module in modules
        for name, value in list(vars(module).items())
        for real, stand_in in stand_ins
        if value is real
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
