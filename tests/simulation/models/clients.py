# Models of the producers that matter: what each retries, how often and after which pause, how long it waits for an
# answer, what it does then, how many requests it has in flight, and whether it heeds a throttle time: as
# docs/clients.md and the clients' sources have it, and no more of a client than what a gateway can notice.

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

from tests.simulation.clock import Agenda, Entry
from tests.simulation.models import wire
from tests.simulation.models.network import ModelEnd, Network
from tests.simulation.models.sasl import Greeting, Identity, LoginFailed, greet
from tests.simulation.models.wire import Batch, Frames, Outcome

RETRIED: Final = frozenset({2, 3, 5, 6, 7, 8, 13, 19, 20, 56, 74, 76, 100})
RETRIED_WITH_89: Final = RETRIED | {89}
OUT_OF_ORDER, DUPLICATE, INVALID_EPOCH, UNKNOWN_PRODUCER = 45, 46, 47, 59
LEADER_ERRORS: Final = frozenset({3, 5, 6, 13, 74, 76, 100})
NO_ANSWER: Final = -1  # the connection ended, or time was up
CONTROL_TIMEOUT_S: Final = 30.0


class Speech(NamedTuple):
    """The versions that a client uses with coordinators. `is_implicit`: a batch brings its partition into the
    transaction, and each transaction has an epoch of its own (KIP-890).
    """

    find: int
    init: int
    add: int
    end: int
    is_implicit: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """One client with one configuration. Times in seconds.

    `backoff_s`: the first pause before an attempt and the longest; `retries`: None: as often as the time allows;
    `request_timeout_s`: that it waits for an answer; `broker_timeout_ms`: that it says in its requests;
    `delivery_timeout_s`: after which a record is given up; `at_once`: requests in flight on a connection;
    `joins`: it sends batches for several partitions in one request; `asks_again_here`: after a time-out it sends again
    on the same connection; `repeats_whole`: after one partition's error it sends all of the request again;
    `metadata_age_s`: so old metadata has to be before it is asked for again, and it waits for that after an error.
    `transactions`: how it speaks to coordinators; None: it has no transactions.
    """

    name: str
    software: tuple[str, str] | None
    produce_version: int
    is_idempotent: bool
    at_once: int
    retried: frozenset[int]
    backoff_s: tuple[float, float]
    request_timeout_s: float
    broker_timeout_ms: int
    delivery_timeout_s: float
    heeds_throttle: bool
    retries: int | None = None
    joins: bool = True
    asks_again_here: bool = False
    repeats_whole: bool = False
    metadata_age_s: float = 0.0
    metadata_version: int = 9
    acks: int = -1
    transactions: Speech | None = None


JAVA = Profile(
    "java", ("apache-kafka-java", "4.3.1"), 12, True, 5, RETRIED_WITH_89, (0.1, 1.0), 30.0, 30_000, 120.0, True,
    metadata_version=12,
)  # fmt: skip
JAVA_PLAIN = Profile(
    "java-plain", ("apache-kafka-java", "4.3.1"), 12, False, 5, RETRIED_WITH_89, (0.1, 1.0), 30.0, 30_000, 120.0, True,
    metadata_version=12,
)  # fmt: skip
LIBRDKAFKA = Profile(
    "librdkafka", ("librdkafka", "2.16.0"), 10, False, 40, RETRIED, (0.1, 1.0), 60.0, 30_000, 300.0, False, joins=False,
    metadata_version=12,
)  # fmt: skip
LIBRDKAFKA_IDEMPOTENT = Profile(
    "librdkafka-idempotent", ("librdkafka", "2.16.0"), 10, True, 5, RETRIED, (0.1, 1.0), 60.0, 30_000, 300.0, False,
    joins=False, metadata_version=12,
)  # fmt: skip
LIBRDKAFKA_ACKS0 = Profile(
    "librdkafka-acks0", ("librdkafka", "2.16.0"), 10, False, 40, RETRIED, (0.1, 1.0), 60.0, 30_000, 300.0, False,
    joins=False, metadata_version=12, acks=0,
)  # fmt: skip
FRANZ_GO = Profile(
    "franz-go", ("kgo", "v1.22.2"), 11, True, 5, RETRIED_WITH_89, (0.25, 2.5), 20.0, 10_000, 1e9, True,
    metadata_age_s=5.0,
)  # fmt: skip
SARAMA = Profile(  # as docs/clients.md recommends it
    "sarama", ("sarama", "v1.61.1"), 9, True, 1, RETRIED, (0.5, 0.5), 30.0, 10_000, 1e9, True, retries=1000,
    metadata_version=4,
)  # fmt: skip
KAFKA_PYTHON = Profile(
    "kafka-python", ("kafka-python", "3.0.12"), 9, True, 5, RETRIED_WITH_89, (0.1, 0.1), 30.0, 30_000, 120.0, True
)
AIOKAFKA = Profile("aiokafka", None, 7, False, 1, RETRIED, (0.1, 0.1), 40.0, 40_000, 1e9, False, metadata_version=4)
KAFKAJS = Profile(  # as recommended
    "kafkajs", None, 7, False, 5, RETRIED, (0.3, 30.0), 60.0, 30_000, 1e9, True, retries=20, asks_again_here=True,
    repeats_whole=True, metadata_version=4,
)  # fmt: skip
KAFKA_GO = Profile(
    "kafka-go", None, 7, False, 4, RETRIED, (0.1, 1.0), 10.0, 5_000, 1e9, False, retries=10, joins=False,
    metadata_version=4,
)  # fmt: skip
PROFILES: Final = (
    JAVA, JAVA_PLAIN, LIBRDKAFKA, LIBRDKAFKA_IDEMPOTENT, FRANZ_GO, SARAMA, KAFKA_PYTHON, AIOKAFKA, KAFKAJS, KAFKA_GO,
)  # fmt: skip

# With transactions: Java as it speaks to brokers before and after KIP-890, and librdkafka.
TRANSACTIONAL: Final = (
    replace(JAVA, name="java-transactions", produce_version=11, transactions=Speech(4, 4, 3, 3)),
    replace(
        JAVA,
        name="java-transactions-2",
        retried=RETRIED_WITH_89 | {51},
        transactions=Speech(4, 4, 3, 5, is_implicit=True),
    ),
    replace(LIBRDKAFKA_IDEMPOTENT, name="librdkafka-transactions", transactions=Speech(2, 4, 0, 1)),
)  # fmt: skip


class ClientWatch(Protocol):
    """Told of what clients do and are told."""

    def on_created(self, client: Client, topic: str, index: int, batch: Batch) -> None: ...

    def on_attempt(self, client: Client, topic: str, index: int, batch: Batch, host: str, node_id: int) -> None:
        """`host`: of the gateway that it is sent to. `node_id`: of the broker behind it."""

    def on_throttled(
        self, client: Client, topics: set[str], host: str, node_id: int, throttle_ms: int, sent_at: float
    ) -> None:
        """The answer to batches of those topics, sent at that time, had a throttle time."""

    def on_told(self, client: Client, topic: str, index: int, batch: Batch, error: int, offset: int) -> None: ...

    def on_acknowledged(self, client: Client, topic: str, index: int, batch: Batch) -> None: ...

    def on_failed(self, client: Client, topic: str, index: int, batch: Batch, error: int, *, is_sure: bool) -> None: ...

    def on_login_failed(self, client: Client, why: str) -> None:
        """Though its password is right."""

    def on_disorder(self, client: Client, correlation: int) -> None:
        """An answer overtook one to an earlier request."""

    def on_renumbered(self, client: Client, batch: Batch) -> None:
        """It has another sequence number now, though its last attempt may be in the log."""

    def on_identified(self, client: Client, name: str, producer: int, epoch: int) -> None:
        """It knows now which producer id and epoch its transactional id has."""

    def on_began(self, client: Client) -> None:
        """A transaction, `client.transaction`; what it creates from now on is part of it."""

    def on_ended(self, client: Client, outcome: str) -> None:
        """It was told how that transaction ended: `committed` or `aborted`, or is never told: `unknown`."""

    def on_bypassed(self, client: Client, address: tuple[str, int]) -> None:
        """It was told an address that no gateway has."""


@dataclass(slots=True)
class _Pending:
    """A batch that has no outcome yet. `acknowledged_before`: bytes at its broker when it was created; `is_open`: an
    attempt had no answer, so it may be in the log.
    """

    topic: str
    index: int
    batch: Batch
    created: float
    acknowledged_before: int = 0
    attempts: int = 0
    retry_at: float = 0.0
    is_open: bool = False


@dataclass(slots=True)
class _Queue:
    """One partition's batches. `sequence`: of the next one that is sent for the first time."""

    waiting: deque[_Pending] = field(default_factory=deque)
    sent: list[_Pending] = field(default_factory=list)
    sequence: int = 0


@dataclass(slots=True)
class _Request:
    correlation: int
    at: float
    batches: list[_Pending]
    timer: Entry | None = None


class _Connection:
    """To one broker of one gateway."""

    def __init__(self, node_id: int, address: tuple[str, int]) -> None:
        self.node_id = node_id
        self.address = address
        self.end: ModelEnd | None = None
        self.greeting: Greeting
        self.is_greeted = False
        self.frames = Frames()
        self.requests: dict[int, _Request] = {}
        self.throttled_until = 0.0
        self.failures = 0
        self.redial: Entry | None = None
        self.is_dialling = False


class Client:
    """One producer.

    Attributes:
        transaction: the number of the present or last one, from 1 on; 0 without transactions.
        bootstrap: gateways' addresses; it begins with the first, and goes on to the next where that fails.
        limit_name: of the user, without one the client id.
        rate: bytes of batches per second that its application brings. `batch_bytes`: of one, about.
        sent_bytes, acknowledged_bytes, failed_bytes: of batches.
        pending_bytes: of batches without an outcome.
        served_at_expiry: by broker, the fewest bytes that were acknowledged while a batch waited that was given up for
            its age; -1: one was given up sooner.
        long_waits: from when until when there was no outcome for longer than two time-outs.
        progress_at: when one had an outcome last, or when there was nothing to wait for.
    """

    def __init__(
        self, number: int, profile: Profile, agenda: Agenda, network: Network, chance: random.Random,
        watch: ClientWatch, bootstrap: list[tuple[str, int]], topics: dict[str, int], client_id: str,
        *, rate: float, batch_bytes: int, records: int, max_pending_s: float = 20.0, who: Identity | None = None,
    ) -> None:  # fmt: skip
        self.number = number
        self.profile = profile
        self.client_id = client_id
        self.transaction = 0
        self.transactional_id: str | None = None
        self.who = who
        self.limit_name = client_id if who is None else who.user
        self.topics = topics
        self.rate = rate
        self.batch_bytes = batch_bytes
        self.records = records
        self.max_pending_s = max_pending_s
        self.sent_bytes = self.acknowledged_bytes = self.failed_bytes = self.pending_bytes = 0
        self.served_at_expiry: dict[int, int] = {}
        self._acknowledged_at: Counter[int] = Counter()
        self.acknowledged = 0
        self.progress_at = agenda.now
        self.longest_wait_s = 0.0
        self.long_waits: list[tuple[float, float]] = []
        self._agenda = agenda
        self._network = network
        self._chance = chance
        self._watch = watch
        self._bootstrap = deque(bootstrap)
        self._gateways = {host for host, _ in bootstrap}
        self._host = f"client{number}"
        self._partitions = [(topic, index) for topic, count in topics.items() for index in range(count)]
        self._queues = {place: _Queue() for place in self._partitions}
        self._leaders: dict[tuple[str, int], int] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, _Connection] = {}
        self._control: ModelEnd | None = None
        self._control_calls: dict[int, tuple[Callable[[bytes], None], Entry]] = {}
        self._control_dialling = self._is_control_greeted = False
        self._control_failures = 0
        self._metadata_at = -1e9
        self._metadata_asked = False
        self._correlation = 0
        self._attempts = 0
        self._next_record = 0
        self._attributes = 0  # of its batches
        self._producer = (-1, -1)
        self._is_producer_asked = False
        self._resets = False
        self._is_stopped = self._is_closed = False
        self._wakes: Entry | None = None
        self._brings: Entry | None = None  # its application, the next batch

    # --- the application ----------------------------------------------------------------------------------------------

    def start(self, backlog: int) -> None:
        """`backlog`: batches that its application has ready."""
        self._dial_control()
        for _ in range(backlog):
            self._make_batch()  # it has something to say already
        self._brings = self._agenda.after(self._chance.uniform(0.0, 1.0), self._bring)
        self._agenda.after(self._chance.uniform(30.0, 60.0), self._refresh)

    def stop(self) -> None:
        """Bring nothing more; what is pending goes on."""
        self._is_stopped = True

    @property
    def is_idle(self) -> bool:
        return not self.pending_bytes

    def held_bytes(self, leader: int | None = None, topics: Container[str] | None = None) -> int:
        """Bytes that wait or are in flight; to that broker, or to those topics."""
        if not self.pending_bytes or (leader is None and topics is None):
            return self.pending_bytes
        return sum(
            each.batch.size
            for place, queue in self._queues.items()
            if queue.waiting or queue.sent
            if (leader is None or self._leaders.get(place) == leader) and (topics is None or place[0] in topics)
            for each in (*queue.waiting, *queue.sent)
        )

    def leader_of(self, topic: str, index: int) -> int:
        """As it knows it; -1: it doesn't."""
        return self._leaders.get((topic, index), -1)

    @property
    def hosts(self) -> set[str]:
        """Of the gateways that it has connections to."""
        return {connection.address[0] for connection in self._connections.values()}

    def close(self) -> None:
        self._is_stopped = self._is_closed = True
        for connection in self._connections.values():
            if connection.end is not None:
                connection.end.close()
        if self._control is not None:
            self._control.close()

    def set_rate(self, rate: float) -> None:
        """What its application brings from now on, in bytes per second."""
        self.rate = rate
        if self._brings is not None:
            self._brings.cancel()
            self._brings = self._agenda.after(self.batch_bytes / rate * self._chance.uniform(0.0, 1.0), self._bring)

    def _bring(self) -> None:
        """The application's next batch."""
        if self._is_stopped or self.rate <= 0:
            if not self._is_stopped:
                self._brings = self._agenda.after(1.0, self._bring)
            return
        size = self._make_batch()
        self._brings = self._agenda.after(size / self.rate * self._chance.uniform(0.5, 1.5), self._bring)

    def _make_batch(self) -> int:
        """Returns its size, also where the client's memory is full, and its application has to wait."""
        size = max(100, round(self.batch_bytes * self._chance.uniform(0.5, 1.5)))
        if self.pending_bytes + size <= max(self.rate * self.max_pending_s, 2 * self.batch_bytes):
            if not self.pending_bytes:
                self.progress_at = self._agenda.now
            topic, index = self._chance.choice(self._partitions)
            count = self._chance.randint(1, 2 * self.records - 1)
            batch = Batch(self.number, self._next_record, count, size, 0, -1, -1, -1)
            self._next_record += count
            self.pending_bytes += size
            before = self._acknowledged_at[self.leader_of(topic, index)]
            self._queues[topic, index].waiting.append(_Pending(topic, index, batch, self._agenda.now, before))
            self._watch.on_created(self, topic, index, batch)
            self._send_partition((topic, index))
        return size

    # --- metadata, and who it is --------------------------------------------------------------------------------------

    def _dial_control(self) -> None:
        if not self._control_dialling:
            self._control_dialling = True
            self._open(self._bootstrap[0], self._control_joined, self._control_failed)

    def _control_joined(self, end: ModelEnd) -> None:
        self._control_dialling = False
        self._control, self._is_control_greeted = end, False
        frames = Frames()

        def receive(data: bytes) -> None:
            for frame in frames.feed(data):
                call = self._control_calls.pop(int.from_bytes(frame[:4], "big"), None)
                if call is not None:
                    call[1].cancel()
                    call[0](frame)

        end.on_bytes = receive
        end.on_end = lambda why: self._control_lost(end, why)
        self._greet(end, lambda frame: self._begin_metadata())

    def _greet(self, end: ModelEnd, then: Callable[[bytes], None]) -> None:
        greeting = greet(self.client_id, self.profile.software, self.who, self._chance)

        def go_on(frame: bytes | None) -> None:
            make = self._next_greeting(greeting, frame)
            if make is None:
                then(frame or b"")
                return
            correlation = self._next_correlation()
            self._expect(correlation, go_on, end)
            end.send(make(correlation))

        go_on(None)

    def _next_greeting(self, greeting: Greeting, frame: bytes | None) -> Callable[[int], bytes] | None:
        try:
            return next(greeting) if frame is None else greeting.send(frame)
        except StopIteration:
            return None
        except LoginFailed as error:
            self._watch.on_login_failed(self, str(error))
            return None

    def _begin_metadata(self) -> None:
        self._is_control_greeted = True
        self._metadata_asked = False
        self._ask_metadata()
        self._ask_producer()

    def _expect(self, correlation: int, then: Callable[[bytes], None], end: ModelEnd) -> None:
        timer = self._agenda.after(CONTROL_TIMEOUT_S, self._control_late, end)
        self._control_calls[correlation] = (then, timer)

    def _control_late(self, end: ModelEnd) -> None:
        end.close(with_reset=True)
        self._control_lost(end, "late")

    def _control_lost(self, end: ModelEnd, why: str) -> None:
        if self._control is end:
            end.close()
            self._control = None
            for _, timer in self._control_calls.values():
                timer.cancel()
            self._control_calls.clear()
            self._metadata_asked = self._is_producer_asked = False
            self._control_failed(why)

    def _control_failed(self, why: str) -> None:
        self._control_dialling = False
        self._control_failures += 1
        self._bootstrap.rotate(-1)
        pause = min(1.0, 0.05 * 2 ** min(self._control_failures, 5)) * self._chance.uniform(0.8, 1.2)
        self._agenda.after(pause, self._redial_control)

    def _find_control(self) -> ModelEnd | None:
        """The connection to ask on; None: it isn't there, or hasn't authenticated. All is asked again once it has."""
        self._redial_control()
        return self._control if self._is_control_greeted else None

    def _redial_control(self) -> None:
        if self._control is None:
            self._dial_control()

    def _refresh(self) -> None:
        if not (self._is_stopped and self.is_idle):
            self.ask_metadata_soon()
            self._agenda.after(self._chance.uniform(30.0, 60.0), self._refresh)

    def ask_metadata_soon(self) -> None:
        due = max(self._agenda.now, self._metadata_at + max(0.1, self.profile.metadata_age_s))
        self._agenda.at(due, self._ask_metadata)

    def _ask_metadata(self) -> None:
        if self._metadata_asked:
            return
        if (control := self._find_control()) is None:
            return
        self._metadata_asked = True
        correlation, version = self._next_correlation(), self.profile.metadata_version
        self._expect(correlation, self._on_metadata, control)
        control.send(wire.encode_metadata(version, correlation, self.client_id, list(self.topics)))

    def _on_metadata(self, frame: bytes) -> None:
        self._metadata_asked = False
        self._metadata_at = self._agenda.now
        self._control_failures = 0
        brokers, topics = wire.decode_metadata_answer(self.profile.metadata_version, frame)
        self._addresses = brokers
        self._leaders = {
            (topic, index): leader for topic, leaders in topics.items() for index, leader in leaders.items()
        }
        for node_id, connection in list(self._connections.items()):
            address = brokers.get(node_id)
            if address is not None and address != connection.address:
                self._drop(connection, "moved")
                del self._connections[node_id]
        if any(self._leaders.get(place, -1) < 0 for place, queue in self._queues.items() if queue.waiting):
            self._agenda.after(max(0.2, self.profile.metadata_age_s), self._ask_metadata)
        for place in self._partitions:
            self._send_partition(place)

    def _ask_producer(self) -> None:
        if not self.profile.is_idempotent or self._producer[0] >= 0 or self._is_producer_asked:
            return
        if (control := self._find_control()) is None:
            return
        self._is_producer_asked = True
        correlation = self._next_correlation()
        self._expect(correlation, self._on_producer, control)
        control.send(wire.encode_init_producer_id(2, correlation, self.client_id))

    def _on_producer(self, frame: bytes) -> None:
        self._is_producer_asked = False
        producer, epoch = wire.decode_init_producer_id_answer(2, frame)
        if producer < 0:
            self._agenda.after(0.1, self._ask_producer)
            return
        self._producer = producer, epoch
        for queue in self._queues.values():
            queue.sequence = 0
            for pending in queue.waiting:
                if pending.batch.producer >= 0:
                    if pending.is_open:
                        self._watch.on_renumbered(self, pending.batch)
                    pending.batch = pending.batch._replace(producer=-1, epoch=-1, sequence=-1)
        self._resets = False
        for place in self._partitions:
            self._send_partition(place)

    def _next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    # --- to brokers ---------------------------------------------------------------------------------------------------

    def _send_partition(self, place: tuple[str, int]) -> None:
        leader = self._leaders.get(place, -1)
        if leader >= 0 and self._queues[place].waiting:
            connection = self._connections.get(leader)
            if connection is None:
                address = self._addresses.get(leader)
                if address is None:
                    self.ask_metadata_soon()
                    return
                connection = self._connections[leader] = _Connection(leader, address)
                self._dial(connection)
            else:
                self._drain(connection)

    def _dial(self, connection: _Connection) -> None:
        connection.redial = None
        if connection.is_dialling or connection.end is not None:
            return
        connection.is_dialling = True
        self._connect(
            connection.address, lambda end: self._joined(connection, end), lambda why: self._dial_failed(connection)
        )

    def _connect(
        self, address: tuple[str, int], joined: Callable[[ModelEnd], None], failed: Callable[[str], None]
    ) -> None:
        if address[0] not in self._gateways:
            self._watch.on_bypassed(self, address)
        self._open(address, joined, failed)

    def _open(
        self, address: tuple[str, int], joined: Callable[[ModelEnd], None], failed: Callable[[str], None]
    ) -> None:
        """None of a client that is closed: timers of questions that it had may still come."""
        if not self._is_closed:
            self._network.connect_model(
                self._host, address, lambda end: end.close() if self._is_closed else joined(end), failed
            )

    def _dial_failed(self, connection: _Connection) -> None:
        connection.is_dialling = False
        connection.failures += 1
        if self._connections.get(connection.node_id) is connection:
            self._expire_waiting()
            pause = min(1.0, 0.05 * 2 ** min(connection.failures, 5)) * self._chance.uniform(0.8, 1.2)
            connection.redial = self._agenda.after(pause, self._dial, connection)
            self.ask_metadata_soon()
            if connection.failures >= 3 and self._control is not None:  # it may be the gateway that is gone
                self._control_late(self._control)

    def _joined(self, connection: _Connection, end: ModelEnd) -> None:
        connection.is_dialling = False
        if self._connections.get(connection.node_id) is not connection:
            end.close()
            return
        connection.end, connection.frames, connection.is_greeted = end, Frames(), False
        end.on_bytes = lambda data: self._receive(connection, end, data)
        end.on_end = lambda why: self._lost(connection, end, why)
        connection.greeting = greet(self.client_id, self.profile.software, self.who, self._chance)
        self._greet_broker(connection, end, None)

    def _greet_broker(self, connection: _Connection, end: ModelEnd, frame: bytes | None) -> None:
        make = self._next_greeting(connection.greeting, frame)
        if make is None:
            connection.is_greeted, connection.failures = True, 0
            return
        correlation = self._next_correlation()
        timer = self._agenda.after(self.profile.request_timeout_s, self._late, connection, end, correlation)
        connection.requests[correlation] = _Request(correlation, self._agenda.now, [], timer)
        end.send(make(correlation))

    def _receive(self, connection: _Connection, end: ModelEnd, data: bytes) -> None:
        for frame in connection.frames.feed(data):
            correlation = int.from_bytes(frame[:4], "big")
            if next(iter(connection.requests), correlation) != correlation and not self.profile.asks_again_here:
                self._watch.on_disorder(self, correlation)
            request = connection.requests.pop(correlation, None)
            if request is None:
                continue  # it was given up, and asked again on the same connection
            if request.timer is not None:
                request.timer.cancel()
            if not request.batches:
                self._greet_broker(connection, end, frame)
                continue
            outcomes, throttle_ms = wire.decode_produce_answer(self.profile.produce_version, frame)
            if throttle_ms:
                topics = {pending.topic for pending in request.batches}
                host, node_id = connection.address[0], connection.node_id
                self._watch.on_throttled(self, topics, host, node_id, throttle_ms, request.at)
            if throttle_ms and self.profile.heeds_throttle:
                connection.throttled_until = max(connection.throttled_until, self._agenda.now + throttle_ms / 1000)
                self._agenda.at(connection.throttled_until, self._drain, connection)
            self._settle(request, {(each.topic, each.partition): each for each in outcomes})
        if connection.end is end:
            self._drain(connection)

    def _drain(self, connection: _Connection) -> None:
        """Send what may be sent there now."""
        now, profile, end = self._agenda.now, self.profile, connection.end
        if end is None or not connection.is_greeted or now < connection.throttled_until:
            return
        if profile.is_idempotent and (self._producer[0] < 0 or self._resets):
            if self._resets:
                self._ask_reset()
            return
        while len(connection.requests) < profile.at_once:
            found = list[_Pending]()
            for place in self._partitions:
                if self._leaders.get(place, -1) == connection.node_id:
                    pending = self._take(self._queues[place], now)
                    if pending is not None:
                        found.append(pending)
                        if not profile.joins:
                            break
            if not found:
                break
            self._send(connection, end, found)
        self._chance.shuffle(self._partitions)

    def _take(self, queue: _Queue, now: float) -> _Pending | None:
        waiting = queue.waiting
        while waiting and now - waiting[0].created > self.profile.delivery_timeout_s:
            self._fail(waiting.popleft(), NO_ANSWER)
            if self._resets:
                return None
        if not waiting or waiting[0].retry_at > now:
            return None
        if self.profile.is_idempotent and waiting[0].attempts and queue.sent:
            return None  # the earlier ones first
        pending = waiting.popleft()
        if self.profile.is_idempotent and pending.batch.producer < 0:
            producer, epoch = self._producer
            pending.batch = pending.batch._replace(producer=producer, epoch=epoch, sequence=queue.sequence)
            queue.sequence += pending.batch.records
        queue.sent.append(pending)
        return pending

    def _send(self, connection: _Connection, end: ModelEnd, batches: list[_Pending]) -> None:
        rows: dict[str, list[tuple[int, bytes]]] = {}
        for pending in batches:
            self._attempts += 1
            batch = pending.batch = pending.batch._replace(attempt=self.number * 10**9 + self._attempts)
            pending.attempts += 1
            self._watch.on_attempt(self, pending.topic, pending.index, batch, connection.address[0], connection.node_id)
            self.sent_bytes += batch.size
            data = wire.encode_batch(batch, wire.PADDING, self._attributes)
            rows.setdefault(pending.topic, []).append((pending.index, data))
        correlation, profile = self._next_correlation(), self.profile
        frame = wire.encode_produce(
            profile.produce_version,
            correlation,
            self.client_id,
            profile.acks,
            profile.broker_timeout_ms,
            [*rows.items()],
            self.transactional_id,
        )
        if profile.acks:
            timer = self._agenda.after(profile.request_timeout_s, self._late, connection, end, correlation)
            connection.requests[correlation] = _Request(correlation, self._agenda.now, batches, timer)
        end.send(frame)
        if not profile.acks:
            for pending in batches:
                self._queues[pending.topic, pending.index].sent.remove(pending)
                self._finish(pending)

    def _late(self, connection: _Connection, end: ModelEnd, correlation: int) -> None:
        request = connection.requests.get(correlation)
        if request is None or connection.end is not end:
            return
        if self.profile.asks_again_here and request.batches:
            del connection.requests[correlation]
            self._settle(request, {})
            self._drain(connection)
        else:
            end.close(with_reset=True)
            self._lost(connection, end, "late")

    def _lost(self, connection: _Connection, end: ModelEnd, why: str) -> None:
        if connection.end is end:
            self._drop(connection, why)
            if self._connections.get(connection.node_id) is connection:
                connection.failures += 1
                pause = min(1.0, 0.05 * 2 ** min(connection.failures, 5)) * self._chance.uniform(0.8, 1.2)
                connection.redial = self._agenda.after(pause, self._dial, connection)
                self.ask_metadata_soon()

    def _drop(self, connection: _Connection, why: str) -> None:
        end, connection.end = connection.end, None
        connection.is_greeted = False
        if connection.redial is not None:
            connection.redial.cancel()
        if end is not None:
            end.close()
        requests, connection.requests = connection.requests, {}
        for request in requests.values():
            if request.timer is not None:
                request.timer.cancel()
            self._settle(request, {})

    # --- what becomes of a batch --------------------------------------------------------------------------------------

    def _settle(self, request: _Request, outcomes: dict[tuple[str, int], Outcome]) -> None:
        answers = []
        for pending in request.batches:
            outcome = outcomes.get((pending.topic, pending.index))
            error, offset = (NO_ANSWER, -1) if outcome is None else (outcome.error, outcome.offset)
            self._watch.on_told(self, pending.topic, pending.index, pending.batch, error, offset)
            answers.append((pending, error))
        repeats = self.profile.repeats_whole and any(error and error != NO_ANSWER for _, error in answers)
        for pending, error in answers:
            self._queues[pending.topic, pending.index].sent.remove(pending)
            pending.is_open = pending.is_open or error == NO_ANSWER or error == 7
            if error in (0, DUPLICATE) and not repeats:
                self._watch.on_acknowledged(self, pending.topic, pending.index, pending.batch)
                self._finish(pending)
            elif error == 0:
                self._watch.on_renumbered(self, pending.batch)  # it is in the log, and is sent again
                self._retry(pending, 0)
            elif self._may_retry(pending, error):
                self._retry(pending, error)
            else:
                self._fail(pending, error)
        if self._resets:
            self._ask_reset()

    def _may_retry(self, pending: _Pending, error: int) -> bool:
        profile = self.profile
        if profile.retries is not None and pending.attempts > profile.retries:
            return False
        if self._agenda.now - pending.created > profile.delivery_timeout_s:
            return False
        if profile.is_idempotent and error in (OUT_OF_ORDER, INVALID_EPOCH, UNKNOWN_PRODUCER):
            queue = self._queues[pending.topic, pending.index]
            first = min((each.batch.sequence for each in (*queue.sent, *queue.waiting) if each.batch.producer >= 0),
                        default=pending.batch.sequence)  # fmt: skip
            if error != OUT_OF_ORDER or first >= pending.batch.sequence:
                self._resets = True  # nothing before it is missing: it begins anew
            return True
        return error == NO_ANSWER or error in profile.retried

    def _retry(self, pending: _Pending, error: int) -> None:
        profile, now = self.profile, self._agenda.now
        first, longest = profile.backoff_s
        pause = min(longest, first * 2 ** min(pending.attempts - 1, 12)) * self._chance.uniform(0.8, 1.2)
        pending.retry_at = now + pause
        if error in LEADER_ERRORS or (profile.metadata_age_s and error not in (NO_ANSWER, 7, OUT_OF_ORDER, 0)):
            self.ask_metadata_soon()
            pending.retry_at = max(pending.retry_at, self._metadata_at + profile.metadata_age_s)
        waiting = self._queues[pending.topic, pending.index].waiting
        at = 0
        if profile.is_idempotent:
            while (
                at < len(waiting)
                and waiting[at].batch.producer >= 0
                and (waiting[at].batch.sequence < pending.batch.sequence)
            ):
                at += 1
        waiting.insert(at, pending)
        self._agenda.at(pending.retry_at, self._send_partition, (pending.topic, pending.index))

    def _fail(self, pending: _Pending, error: int) -> None:
        is_sure = not pending.is_open and error != NO_ANSWER
        self._watch.on_failed(self, pending.topic, pending.index, pending.batch, error, is_sure=is_sure)
        if self.profile.is_idempotent and pending.batch.producer >= 0:
            self._resets = True
        self.failed_bytes += pending.batch.size
        leader, served = self.leader_of(pending.topic, pending.index), -1
        if self._agenda.now - pending.created > self.profile.delivery_timeout_s:
            served = self._acknowledged_at[leader] - pending.acknowledged_before
        self.served_at_expiry[leader] = min(served, self.served_at_expiry.get(leader, served))
        self._finish(pending, is_acknowledged=False)

    def _finish(self, pending: _Pending, *, is_acknowledged: bool = True) -> None:
        now = self._agenda.now
        self.pending_bytes -= pending.batch.size
        self.longest_wait_s = max(self.longest_wait_s, now - self.progress_at)
        if now - self.progress_at > 2 * self.profile.request_timeout_s:
            self.long_waits.append((self.progress_at, now))
        self.progress_at = now
        if is_acknowledged:
            self.acknowledged_bytes += pending.batch.size
            self.acknowledged += pending.batch.records
            self._acknowledged_at[self.leader_of(pending.topic, pending.index)] += pending.batch.size

    def _ask_reset(self) -> None:
        """Begin with another producer id, once nothing is in flight."""
        if not any(queue.sent for queue in self._queues.values()):
            self._producer = -1, -1
            self._ask_producer()

    def _expire_waiting(self) -> None:
        """Give up what has waited for too long, also where no broker is reached."""
        for queue in self._queues.values():
            while queue.waiting and self._agenda.now - queue.waiting[0].created > self.profile.delivery_timeout_s:
                self._fail(queue.waiting.popleft(), NO_ANSWER)
        if self._resets:
            self._ask_reset()


def describe(client: Client) -> dict[str, Any]:
    """What a report says of it."""
    return {
        "client": f"{client.number} {client.profile.name}",
        "acknowledged": client.acknowledged,
        "sent/acknowledged": round(client.sent_bytes / max(1, client.acknowledged_bytes), 3),
        "failed bytes": client.failed_bytes,
        "longest wait": round(client.longest_wait_s, 1),
    }
