# A session on stage, with no socket: tests say what the client and the broker send and look at what comes out. Frames
# are fed as a link would feed them, whole or cut anywhere.

from __future__ import annotations

import struct
from typing import Any, TypeVar

from gateway.channel import BrokerTable, UpstreamBroker, UsageRow
from gateway.data.session.session import ClientSession
from gateway.data.shared.budget import MemoryAccount, MemoryBudget
from gateway.data.shared.warning_limiter import NO_LOG_FIELDS, LogFields
from gateway.data.shared.worker_state import WorkerState
from gateway.listener_names import DEFAULT_LISTENER
from policies.engine import PolicyEngine
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.store import QuotaStore
from policies.thresholds.pacing import PACE_S
from protocol.rewriting import rewrite
from tests.gateway.data.made_settings import made_settings
from tests.protocol import produce_cases as cases
from tests.protocol.batches import batch

ADDRESSES = BrokerTable(
    (),
    (UpstreamBroker(1, "10.0.0.1", 9092), UpstreamBroker(2, "10.0.0.2", 9092)),
    {DEFAULT_LISTENER: {1: ("gateway", 19094), 2: ("gateway", 19095)}},
)
TOPIC_ID = bytes(range(16))
JAVA = ("apache-kafka-java", "4.1.0")
APP = Entity(None, "app")  # the client id of requests, if they don't say another one
T = TypeVar("T")


def present(found: T | None) -> T:
    """What was found; the test fails where there is nothing."""
    assert found is not None
    return found


def request(
    correlation: int = 1,
    topics: dict[str, list[int]] | None = None,
    *,
    version: int = 9,
    acks: int = -1,
    values: tuple[bytes, ...] = (b"payload",),
    producer: tuple[int, int, int] = (-1, -1, -1),
    client_id: str | None = "app",
    trailing: bytes = b"",
    topic_id: bytes = TOPIC_ID,
    timeout_ms: int = 30_000,
) -> bytes:
    """A Produce request's frame."""
    pid, epoch, sequence = producer
    records = batch(values, producer_id=pid, epoch=epoch, sequence=sequence) + trailing
    read = (len(records) - len(trailing), len(values), pid, epoch, sequence, len(trailing))
    rows = [
        cases.Topic(name, topic_id, [(index, cases.Batch(records, read)) for index in indexes])
        for name, indexes in (topics or {"clicks": [0]}).items()
    ]
    content = cases.encode(cases.Request(version, client_id, None, acks, rows, timeout_ms), correlation_id=correlation)
    return cases.framed(content)


def answer(
    correlation: int = 1,
    topics: dict[str, dict[int, tuple[int, int]]] | None = None,
    *,
    version: int = 9,
    throttle_ms: int = 0,
    topic_id: bytes = TOPIC_ID,
) -> bytes:
    """The broker's answer: topic -> partition -> (error code, base offset)."""
    rows = []
    for name, parts in (topics or {"clicks": {0: (0, 0)}}).items():
        answers = [cases.Answer(index, code, offset) for index, (code, offset) in parts.items()]
        rows.append(cases.AnswerTopic(name, topic_id, answers))
    return cases.framed(cases.encode_answer(cases.Response(version, correlation, rows, throttle_ms)))


def other_request(correlation: int, key: int = 12, version: int = 0, body: bytes = b"") -> bytes:
    """A request of another API; Heartbeat by default."""
    return cases.framed(struct.pack(">hhih", key, version, correlation, -1) + body)


def with_question(frame: bytes) -> bytes:
    """A request with acks=0 to a topic for which the broker has taken nothing yet, as the broker gets it: the gateway
    asks something behind it, which the broker answers (`TOOK`) if it has taken the request.
    """
    return frame + rewrite.NO_TOPICS_REQUEST


def account() -> MemoryAccount:
    """The account of a session without sockets; its budget has no bound."""
    return MemoryAccount(MemoryBudget(2**40), "")


def other_answer(correlation: int, body: bytes = b"\0\0") -> bytes:
    return cases.framed(struct.pack(">i", correlation) + body)


TOOK = other_answer(rewrite.NO_TOPICS_ID, struct.pack(">iii", 0, 1, 0))  # no brokers, no topics


def size_of(values: tuple[bytes, ...] = (b"payload",)) -> int:
    """Bytes of the batch that `request` makes of these values."""
    return len(batch(values))


class Play:
    """One session between a client and broker 1; `now` is set by the test."""

    def __init__(self, *, total: float | None = None, topics: dict[str, float] | None = None, **settings: Any) -> None:
        self.now = self._next_pace = 1000.0
        self.logs: list[tuple[str, str]] = []
        self.log_fields: list[LogFields] = []
        self.engine = PolicyEngine(self.now)
        self.engine.set_thresholds(total, topics or {})
        self.world = WorkerState(made_settings(**settings), self.engine, self._log)
        self.world.cluster.set_brokers(ADDRESSES)
        self.session = ClientSession(self.world, 1, account(), self.now)
        self.unhandled = b""
        self._answers_left = b""

    def _log(self, level: str, text: str, fields: LogFields = NO_LOG_FIELDS) -> None:
        self.logs.append((level, text))
        self.log_fields.append(fields)

    def named(self, software: tuple[str, str] | None = JAVA) -> Play:
        self.session.client.software = software
        self.session.hold.set_software(software)
        return self

    def beside(self, software: tuple[str, str] | None = JAVA, node_id: int = 1) -> Play:
        """Another connection to the same worker."""
        made = Play()
        made.now, made.engine, made.world = self.now, self.engine, self.world
        made.session = ClientSession(self.world, node_id, account(), self.now)
        return made.named(software)

    def set_quotas(self, *quotas: tuple[Entity, str, float], observes: bool = False) -> Play:
        values: dict[Entity, dict[QuotaKey, float]] = {}
        for entity, key, value in quotas:
            values.setdefault(entity, {})[QuotaKey.parse(key)] = value
        self.world.quotas.set_quotas(QuotaStore(values), self.now, observes=observes)
        return self

    def exchange(self, correlation: int = 1, topics: dict[str, list[int]] | None = None, **how: Any) -> int:
        """A request that the broker takes; the throttle time that its client is told, in milliseconds."""
        topics = topics or {"clicks": [0]}
        assert self.client(request(correlation, topics, **how))[0]
        version = how.get("version", 9)
        said = answer(
            correlation, {topic: dict.fromkeys(parts, (0, 0)) for topic, parts in topics.items()}, version=version
        )
        return decode_answer(self.broker(said), version)[1]

    def run_clockwork(self, now: float) -> None:
        """What a worker's Clockwork does until then."""
        while self._next_pace <= now:
            self.engine.pace_limits(self._next_pace)
            self._next_pace += PACE_S
        if self.engine.next_tick_at <= now:
            self.engine.apply_due_ticks(now)
            self.world.ledger.advance_epoch()

    def overload(self, topic: str = "clicks") -> Play:
        """Put that topic and the total above any threshold."""
        meters = self.engine.broker_meters(1)
        meters.confirm_topic(topic.encode())
        meter = meters.topics[topic.encode()]
        for one in (meter, meters.total):
            one.mark(10**9)
        self.now = self.engine.next_tick_at
        self.engine.apply_due_ticks(self.now)
        self.world.ledger.advance_epoch()
        return self

    def client(self, data: bytes, step: int = 0) -> tuple[bytes, bytes]:
        """What goes (upstream, to the client) after the client sent `data`, in pieces of `step` bytes if given."""
        upstream, client = b"", b""
        for piece in _pieces(data, step):
            buf = bytearray(self.unhandled + piece)
            pos = self.session.on_client_bytes(buf, 0, len(buf), self.now)
            self.unhandled = bytes(buf[pos:])
            upstream += self._take(self.session.to_upstream)
            client += self._take(self.session.to_client)
        return upstream, client

    def again(self) -> tuple[bytes, bytes]:
        """Handle the requests that had to wait once more."""
        return self.client(b"", 0)

    def broker(self, data: bytes, step: int = 0) -> bytes:
        """The bytes that the client gets after the broker sent `data`."""
        client = b""
        for piece in _pieces(data, step):
            buf = bytearray(self._answers_left + piece)
            pos = self.session.on_upstream_bytes(buf, 0, len(buf), self.now)
            self._answers_left = bytes(buf[pos:])
            client += self._take(self.session.to_client)
        return client

    def rows(self) -> dict[tuple[str, str, str], tuple[int, int, int]]:
        """(topic, outcome, reason) -> (bytes, messages, requests) since the last call."""
        found: dict[tuple[str, str, str], tuple[int, int, int]] = {}
        for row in self.ledger():
            size, messages, requests = found.get((row.topic, row.outcome, row.reason), (0, 0, 0))
            sums = (size + row.bytes, messages + row.messages, requests + row.requests)
            found[row.topic, row.outcome, row.reason] = sums
        return found

    def ledger(self) -> tuple[UsageRow, ...]:
        rows, self.counts = self.world.ledger.close_interval()
        return rows

    @staticmethod
    def _take(parts: list[Any]) -> bytes:
        data = b"".join(parts)
        parts.clear()
        return data


def _pieces(data: bytes, step: int) -> list[bytes]:
    return [data[i : i + step] for i in range(0, len(data), step)] if step else [data]


def decode_answer(frame: bytes, version: int = 9) -> tuple[int, int, dict[tuple[str, int], tuple[int, str | None]]]:
    """(correlation id, throttle ms, (topic, partition) -> (error code, message)) of one answer's frame, by kio."""
    (size,) = struct.unpack_from(">i", frame)
    assert size == len(frame) - 4
    header, body = cases.kio_decode_answer(version, frame[4:])
    rows = {}
    for topic in body.responses:
        name = topic.name if version < 13 else topic.topic_id.bytes.hex()
        for part in topic.partition_responses:
            rows[name, part.index] = (int(part.error_code), getattr(part, "error_message", None))
    return header.correlation_id, round(body.throttle_time.total_seconds() * 1000), rows
