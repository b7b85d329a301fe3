# The independent judge of a simulated world: it is told of every batch that clients send and are told about, and of
# every batch that brokers append or refuse, and compares. It shares no code with the product, and reads of it only what
# an operator can read: the usage log's files and the text of /metrics.

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.simulation.models.clients import NO_ANSWER, Client
from tests.simulation.models.cluster import Cluster, Observer, Partition
from tests.simulation.models.consumers import Consumer
from tests.simulation.models.wire import Batch

MAX_VIOLATIONS: Final = 50
TRACE: Final = 4000  # events kept for a violation's context
HELD_BACK: Final = 20_000  # moments kept of one client and topic
SLOW_S: Final = 0.5  # an answer that took longer may have been held, though it doesn't say so
WINDOW_S: Final = 30
FAIR_SHARE: Final = 0.9  # of it each gateway gets at least, if it wants it
OWED_S: Final = 3.0  # seconds' worth beyond a limit that may be paid back later, whenever others' demand ends
UNSERVED_S: Final = 2.0  # seconds' worth of a limit that clients may not have been rid of at a window's end
USED_SHARE: Final = 0.97  # of a limit, over a window in which clients hold enough back
TURNS_SHARE: Final = 0.91  # … where the clients of a gateway beside them are in turns (docs/shares.md)
TURNS_S: Final = (0.05, 0.25)  # seconds' worth that such clients hold at the least and at the most within a window
STEADY_SHARE: Final = 1.1  # of a limit in a full second, where all clients under it have waited for …
STEADY_AFTER_S: Final = 5
IDLE_SHARE: Final = 2.0  # … after IDLE_AFTER_S with less than half of it: a second's worth is saved
IDLE_AFTER_S: Final = 3
# Workers whose control is stopped keep their parts for up to 4 s, others leave them to them for 1 s at least; then they
# keep FLOORS of an even part. When control goes on it deals parts out a cycle before others know
# (docs/workers-and-fleet.md).
KEPT_PART_S: Final = 3.0
BACK_S: Final = 1.5
FLOORS: Final = 0.04
RISING_SHARE: Final = 1.35  # … else: content gateways have saved a quarter of a second (docs/shares.md)


class HeldBack(NamedTuple):
    """A client was told to wait that long, or was rejected (0.0), on its way to that broker. `sent_at`: when it sent
    the request, which the gateway may have held since then. `is_alone`: with data of this topic only.
    """

    at: float
    sent_at: float
    node_id: int
    wait_s: float
    is_alone: bool


class _Attempt:
    """One time that a batch was sent. `told`: the error that its client got; `fate`: what the broker did."""

    __slots__ = (
        "batch", "client", "error", "host", "index", "node_id", "offset", "sent_at", "told", "topic", "transaction",
    )  # fmt: skip

    def __init__(
        self, client: Client, topic: str, index: int, batch: Batch, host: str, node_id: int, sent_at: float
    ) -> None:
        self.client = client
        self.sent_at = sent_at
        self.transaction = client.transaction
        self.host = host
        self.node_id = node_id
        self.topic = topic
        self.index = index
        self.batch = batch
        self.told: int | None = None
        self.offset: int | None = None  # where the broker has it
        self.error: int | None = None  # with which a broker refused it


class _Second(NamedTuple):
    """Of one limit: bytes that came to brokers, that applications brought, and that clients hold at its end. `owed`:
    that had come beyond the limit before. `held_at`: bytes that clients hold, by
    gateway's host.
    """

    taken: float
    owed: float
    brought: float
    held: float
    is_wanted: bool
    held_at: Mapping[str, float]


class FairShares:
    """What each gateway gets of a limit that all share: over 30 s the lesser of its demand and its fair share, but for
    a tenth (docs/shares.md). A gateway is hungry whose clients hold two seconds' worth of the whole limit, and content
    whose clients hold next to nothing; windows with others say nothing.

    Attributes:
        taken: bytes in this second, by gateway's host. `least`: the smallest part of a fair share that was seen.
        held: bytes that clients hold, by host; None: some of them are at several.
    """

    def __init__(self, limit: Limit, held: Callable[[], Mapping[str, float] | None]) -> None:
        self.limit = limit
        self.held = held
        self.taken: Counter[str] = Counter()
        self.windows = 0
        self.least = 9.9
        self._seconds: deque[tuple[Counter[str], Mapping[str, float] | None]] = deque(maxlen=WINDOW_S)

    def end_second(self, now: float) -> list[str]:
        """What is wrong with the window that ends now."""
        self._seconds.append((self.taken, self.held()))
        self.taken = Counter()
        limit, seconds = self.limit, self._seconds
        if len(seconds) < WINDOW_S or now - WINDOW_S < limit.quiet_from or not limit.is_lower_judged:
            return []
        helds = [held for _, held in seconds if held is not None]
        hosts = set().union(*(held for held in helds))
        if len(helds) < WINDOW_S:
            return []
        hungry = {host for host in hosts if all(held.get(host, 0.0) >= 2.0 * limit.rate for held in helds)}
        content = {host for host in hosts if all(held.get(host, 0.0) <= limit.slack for held in helds)}
        if not hungry or len(hosts) < 2 or hungry | content != hosts:
            return []
        used = {host: sum(taken[host] for taken, _ in seconds) / WINDOW_S for host in hosts}
        fair = (limit.rate - sum(used[host] for host in content)) / len(hungry)
        self.windows += 1
        self.least = min(self.least, *(used[host] / fair for host in hungry))
        return [
            f"{limit.name}: {host} got {used[host]:.0f} bytes/s of a fair share of {fair:.0f}"
            for host in sorted(hungry)
            if used[host] < FAIR_SHARE * fair - limit.slack / WINDOW_S
        ]


class Limit:
    """A limit as it was configured: bytes in each second.

    Attributes:
        held: the bytes that clients hold back under it just now; `held_at`: by gateway's host, where several share it.
            `all_want`: whether each of its clients does.
        slack: bytes of whole requests that may pass on top within a second, one of each client.
        answer_bytes: of one large answer, which a window may be short of.
        saves_nothing: while all its clients wait; topics under a total have buckets of their own, which do.
        owed: bytes that came beyond the limit, and have not been paid back; at most OWED_S seconds' worth.
        quiet_from: from when on windows are judged; `bounded_from`: whether they are above the limit; `over_from`: full
            seconds. Events move them.
        excuses: from when until when something may come beyond it, and how many seconds' worth in all.
    """

    def __init__(
        self, name: str, rate: float, held: Callable[[], float], all_want: Callable[[], bool], slack: float,
        held_at: Callable[[], Mapping[str, float]] = dict, answer_bytes: float = 0.0,
    ) -> None:  # fmt: skip
        self.name = name
        self.answer_bytes = answer_bytes
        self.held_at = held_at
        self.all_want = all_want
        self.rate = rate
        self.held = held
        self.slack = slack
        self.quiet_from = self.bounded_from = self.over_from = 0.0
        self.excuses: list[tuple[float, float, float]] = []
        self.seconds: deque[_Second] = deque(maxlen=WINDOW_S)
        self.owed = 0.0
        self.taken = self.brought = 0.0  # bytes in this second: to brokers, and by applications
        self.steady_seconds = 0
        self.checked = self.windows = 0
        self.is_lower_judged = self.saves_nothing = True
        self.lowest, self.highest, self.fullest = 9.9, 0.0, 0.0


class RejectingTotal:
    """A broker's total that rejects, with a burst: in any time T at most (T + 2 bursts) times it, and for each gateway
    that starts its part of two bursts (docs/policies.md).

    Attributes:
        taken: bytes in this second, by gateway's host. `most`: the seconds' worth that was ever beyond the total.
    """

    def __init__(self, name: str, rate: float, burst_s: float, slack: float) -> None:
        self.name = name
        self.rate = rate
        self.burst_s = burst_s
        self.slack = slack
        self.most = 0.0
        self.taken: Counter[str] = Counter()
        self._before: deque[Counter[str]] = deque([Counter()], maxlen=round(STEADY_AFTER_S))
        self._beyond = self._excused = 0.0

    def excuse(self, host: str, kept_s: float, more_s: float) -> None:
        """For so many seconds that gateway keeps what it takes now, which others have, too; and seconds of the total
        come on top.
        """
        self._excused += kept_s * sum(each[host] for each in self._before) / len(self._before) + more_s * self.rate

    def end_second(self) -> str:
        """What is wrong."""
        self._beyond = max(0.0, self._beyond + sum(self.taken.values()) - self.rate)
        self._before.append(self.taken)
        self.taken = Counter()
        if not self._beyond:
            self._excused = 0.0
        self.most = max(self.most, self._beyond / self.rate)
        if self._beyond <= (2 * self.burst_s + 1.0) * self.rate + self.slack + self._excused:
            return ""
        return (
            f"{self.name}: {self._beyond / self.rate:.1f} s of it beyond it, with a burst of {self.burst_s:.0f} s and"
            f" {self._excused / self.rate:.1f} s by gateways that started and controls that were stopped"
        )


Place = tuple[str, int, int]  # topic, partition and offset


class Transaction:
    """One transaction of a client, as its application has it.

    Attributes:
        outcome: that the application was told: `committed`, `aborted` or `unknown`; "": none yet.
        created: the first records of its batches. `written`: which of them are in a log, and where.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcome = ""
        self.created: set[int] = set()
        self.written: dict[Place, int] = {}


class Transactions:
    """What has to hold of transactions: all of one or nothing, and nothing of a producer whose place another one took.

    Attributes:
        by_number: by client and number.
    """

    def __init__(self, accuse: Callable[[str, str], None]) -> None:
        self.by_number: dict[tuple[int, int], Transaction] = {}
        self._accuse = accuse
        self._identities: dict[str, tuple[int, int]] = {}  # by transactional id, the latest producer id and epoch
        self._names: dict[int, str] = {}  # of producer ids
        self._open: dict[tuple[int, str, int], list[tuple[Place, Transaction]]] = {}  # by producer and partition
        self._places: set[Place] = set()
        self._is_committed: dict[Place, bool] = {}  # as the marker behind it says

    def identify(self, name: str, producer: int, epoch: int) -> None:
        if (producer, epoch) <= self._identities.get(name, (-1, -1)):
            self._accuse("a fenced producer", f"{name} was given {producer}, {epoch} after {self._identities[name]}")
        self._identities[name] = producer, epoch
        self._names[producer] = name

    def append(self, transaction: Transaction, topic: str, index: int, offset: int, batch: Batch) -> None:
        place = (topic, index, offset)
        latest = self._identities.get(self._names.get(batch.producer, ""), (-1, -1))
        if (batch.producer, batch.epoch) < latest:
            self._accuse("a fenced producer", f"wrote to {place} with epoch {batch.epoch} after {latest}")
        if transaction.outcome:
            self._accuse("written after its end", f"{transaction.name}, {transaction.outcome}: {place}")
        transaction.written[place] = batch.first
        self._places.add(place)
        self._open.setdefault((batch.producer, topic, index), []).append((place, transaction))

    def mark(self, producer: int, topic: str, index: int, *, commits: bool) -> None:
        for place, transaction in self._open.pop((producer, topic, index), ()):
            self._is_committed[place] = commits
            if transaction.outcome in ("committed", "aborted") and commits != (transaction.outcome == "committed"):
                self._accuse("not what it was told", f"{transaction.name}, {transaction.outcome}: {place}")

    def forget_topic(self, topic: str) -> None:
        """It was deleted: in another one of that name the same places are others."""
        self._places = {place for place in self._places if place[0] != topic}
        self._is_committed = {place: fate for place, fate in self._is_committed.items() if place[0] != topic}
        self._open = {key: many for key, many in self._open.items() if key[1] != topic}

    def read(self, topic: str, index: int, offset: int) -> None:
        """A consumer with read_committed got the batch there."""
        if (topic, index, offset) in self._places and not self._is_committed.get((topic, index, offset)):
            self._accuse("read uncommitted", f"{topic}-{index} at {offset}")

    def pass_by(self, topic: str, index: int, offset: int) -> None:
        """… went on behind it without its application."""
        if self._is_committed.get((topic, index, offset)):
            self._accuse("unread", f"{topic}-{index} at {offset} was committed, and no consumer got it")

    def check(self, deleted: Container[str]) -> None:
        for transaction in self.by_number.values():
            written, name = transaction.written, f"{transaction.name}, {transaction.outcome}"
            if any(place[0] in deleted for place in written):
                continue
            fates = {self._is_committed.get(place) for place in written}
            if None in fates:
                self._accuse("no end", f"{name}: no marker behind some of its batches")
            elif len(fates) > 1:
                self._accuse("a transaction in part", f"{name}: {written}")
            elif transaction.outcome == "aborted" and True in fates:
                self._accuse("a transaction in part", f"{name}, and readable")
            elif (transaction.outcome == "committed" or True in fates) and (
                missing := transaction.created - set(written.values())
            ):
                self._accuse("a transaction in part", f"{name}, without {len(missing)} of its batches: {missing}")
            elif transaction.outcome == "committed" and False in fates:
                self._accuse("a transaction in part", f"{name}, and not readable")


class Judge(Observer):
    """
    Attributes:
        violations: what must not be, one line each.
        counts: events by kind.
        digest: of all events in their order.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.limits: dict[object, Limit] = {}
        self.rejecting: dict[int, RejectingTotal] = {}  # by broker
        self.shares: FairShares | None = None
        self.messages: Counter[str] = Counter()  # of the gateways' own, by topic
        self.disks_unseen_until = 0.0  # as a control that looks at them is stopped
        self.limits_of: Callable[[Client, int], Iterable[object]] = lambda client, leader: ()
        self.trace: deque[str] = deque(maxlen=TRACE)
        self.appended_bytes: Counter[str] = Counter()  # by topic
        self.repeated_bytes: Counter[str] = Counter()
        self.bytes_by_user: Counter[str] = Counter()  # appended or repeated
        self.now = now
        self.not_held = set[str]()  # client ids for which limits are observed only
        self.paused = (math.inf, -math.inf)  # from when until when an operator holds all producers
        self._hash = hashlib.blake2b(digest_size=16)
        self._attempts: dict[int, _Attempt] = {}
        self._in_log: Counter[tuple[int, int]] = Counter()  # client and first record: how many times
        self._may_repeat: set[tuple[int, int]] = set()
        self._last: dict[tuple[int, bytes, int], int] = {}  # of an idempotent client in a partition
        self._acknowledged: dict[tuple[int, int], tuple[str, bytes, int]] = {}
        self._failed_surely: set[tuple[int, int]] = set()
        self._topic_ids: dict[str, bytes] = {}
        self.deleted: set[bytes] = set()
        self.deleted_names: set[str] = set()
        self._read: dict[tuple[int, str, int], int] = {}  # of a consumer in a partition: the offset that comes next
        self._appended_at: dict[tuple[str, int, int], int] = {}  # the attempt at an offset
        self.recent: Counter[int] = Counter()  # bytes appended, by second
        # By gateway's host, client id and topic: when clients were told to wait, or were rejected.
        self.held_back: defaultdict[tuple[str, str, str], deque[HeldBack]] = defaultdict(
            lambda: deque(maxlen=HELD_BACK)
        )
        self.slow_answers = defaultdict[tuple[str, str, str], deque[HeldBack]](lambda: deque(maxlen=HELD_BACK))
        self.transactions = Transactions(self.accuse)
        self.rejected_bytes: Counter[tuple[str, str]] = Counter()  # that clients were told of, by host and topic

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def tell(self, kind: str, *about: object) -> None:
        """An event."""
        self.counts[kind] += 1
        line = f"{self.now():.6f} {kind} {' '.join(map(str, about))}"
        self._hash.update(line.encode())
        self.trace.append(line)

    def accuse(self, kind: str, text: str) -> None:
        self.counts["violation"] += 1
        self.counts[f"violation: {kind}"] += 1
        self.tell("VIOLATION", kind, text)
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(f"{self.now():.3f} {kind}: {text}")

    # --- clients ------------------------------------------------------------------------------------------------------

    def on_created(self, client: Client, topic: str, index: int, batch: Batch) -> None:
        self.counts["records"] += batch.records
        if client.transaction:
            self.transactions.by_number[client.number, client.transaction].created.add(batch.first)
        leader = client.leader_of(topic, index)
        for name in (*self.limits_of(client, leader), (client.limit_name, leader)):
            limit = self.limits.get(name)
            if limit is not None:
                limit.brought += batch.size

    def on_attempt(self, client: Client, topic: str, index: int, batch: Batch, host: str, node_id: int) -> None:
        self.tell("sent", client.number, topic, index, *batch)
        self._attempts[batch.attempt] = _Attempt(client, topic, index, batch, host, node_id, self.now())

    def on_throttled(
        self, client: Client, topics: set[str], host: str, node_id: int, throttle_ms: int, sent_at: float
    ) -> None:
        self.counts["throttled answers"] += 1
        if client.client_id in self.not_held:
            self.accuse("held without need", f"{client.client_id} was told to wait for {throttle_ms} ms at {host}")
        for topic in sorted(topics):
            self.held_back[host, client.client_id, topic].append(
                HeldBack(self.now(), sent_at, node_id, throttle_ms / 1000, len(topics) == 1)
            )

    def unanswered(self, host: str, client_id: str, topic: str) -> list[HeldBack]:
        """What is on its way there with data of that topic: the gateway may be holding it."""
        return [
            HeldBack(self.now(), each.sent_at, each.node_id, 0.0, is_alone=False)
            for each in self._attempts.values()
            if each.told is None and (each.host, each.client.client_id, each.topic) == (host, client_id, topic)
        ]

    def on_told(self, client: Client, topic: str, index: int, batch: Batch, error: int, offset: int) -> None:
        self.tell("told", batch.attempt, error, offset)
        attempt = self._attempts[batch.attempt]
        attempt.told = error
        if self.now() - attempt.sent_at > SLOW_S:
            slow = HeldBack(self.now(), attempt.sent_at, attempt.node_id, 0.0, is_alone=False)
            self.slow_answers[attempt.host, client.client_id, topic].append(slow)
        where = f"{client.profile.name} {client.number}, {topic}-{index}, records from {batch.first}, {batch.attempt}"
        if error == 0:
            if attempt.offset is None:
                self.accuse("told a wrong fate", f"accepted, but no broker appended it: {where}")
            elif attempt.offset != offset:
                self.accuse("told a wrong fate", f"offset {offset} instead of {attempt.offset}: {where}")
        elif error != NO_ANSWER:
            self.counts[f"error {error}"] += 1
            if attempt.offset is not None:
                self.accuse("told a wrong fate", f"error {error}, but it is in the log: {where}")
            elif attempt.error is not None and attempt.error != error:
                self.accuse("told a wrong fate", f"error {error}, but the broker said {attempt.error}: {where}")
            elif attempt.error is None:
                self.counts["rejected by a gateway"] += 1
                if client.client_id in self.not_held:
                    self.accuse("held without need", f"{client.client_id} was rejected with error {error}")
                told = HeldBack(self.now(), attempt.sent_at, attempt.node_id, 0.0, is_alone=True)
                self.held_back[attempt.host, client.client_id, topic].append(told)
                self.rejected_bytes[attempt.host, topic] += batch.size
            del self._attempts[batch.attempt]
            self._attempts[-batch.attempt] = attempt  # it must not be appended any more

    def on_acknowledged(self, client: Client, topic: str, index: int, batch: Batch) -> None:
        self.counts["records acknowledged"] += batch.records
        key = (batch.client, batch.first)
        if not self._in_log[key]:
            self.accuse("lost", f"{client.profile.name} {client.number}, {topic}-{index}, records from {batch.first}")
        self._acknowledged[key] = (topic, self._topic_ids.get(topic, b""), index)
        self._attempts.pop(batch.attempt, None)

    def on_failed(self, client: Client, topic: str, index: int, batch: Batch, error: int, *, is_sure: bool) -> None:
        self.tell("failed", client.number, topic, index, batch.first, error)
        self.counts["records failed"] += batch.records
        if is_sure and error > 0:
            key = (batch.client, batch.first)
            if self._in_log[key]:
                self.accuse("rejected and in the log", f"{client.profile.name} {client.number}, {topic}, {batch.first}")
            self._failed_surely.add(key)

    def on_login_failed(self, client: Client, why: str) -> None:
        self.accuse("login failed", f"{client.profile.name} {client.number}: {why}")

    def on_disorder(self, client: Client, correlation: int) -> None:
        self.accuse("answers out of order", f"{client.profile.name} {client.number}: {correlation} came too early")

    def on_renumbered(self, client: Client, batch: Batch) -> None:
        self._may_repeat.add((batch.client, batch.first))

    def on_bypassed(self, client: Client, address: tuple[str, int]) -> None:
        self.accuse("around the gateway", f"{client.profile.name} {client.number} goes to {address}")

    def on_identified(self, client: Client, name: str, producer: int, epoch: int) -> None:
        self.tell("identified", client.number, name, producer, epoch)
        self.transactions.identify(name, producer, epoch)

    def on_began(self, client: Client) -> None:
        self.tell("began", client.number, client.transaction)
        name = f"transaction {client.transaction} of {client.profile.name} {client.number}"
        self.transactions.by_number[client.number, client.transaction] = Transaction(name)

    def on_ended(self, client: Client, outcome: str) -> None:
        self.tell("ended", client.number, client.transaction, outcome)
        self.counts[f"transactions {outcome}"] += 1
        self.transactions.by_number[client.number, client.transaction].outcome = outcome

    # --- brokers ------------------------------------------------------------------------------------------------------

    def on_unauthenticated(self, api: int) -> None:
        self.accuse("passed before authentication", f"a request of API {api}")

    def on_request(self, node_id: int, name: str, size: int) -> None:
        limit = self.limits.get((name, node_id))
        if limit is not None:
            limit.taken += size

    # --- consumers ----------------------------------------------------------------------------------------------------

    def on_fetched(self, node_id: int, client_id: str, size: int, records_size: int) -> None:
        """Quotas count whole answers (KIP-546), groups the records in them (PIP-82)."""
        for name, counted in (("dispatch", records_size), ((client_id, node_id, "fetch"), size)):
            limit = self.limits.get(name)
            if limit is not None:
                limit.taken += counted

    def on_throttled_fetch(self, consumer: Consumer, throttle_ms: int) -> None:
        self.counts["throttled fetches"] += 1

    def on_read(self, consumer: Consumer, topic: str, index: int, batch: Batch, offset: int) -> None:
        """It has to be what is in the log there, and to follow what was read before."""
        self.tell("read", consumer.number, topic, index, offset, batch.attempt)
        self.counts["records read"] += batch.records
        self._follow(consumer, topic, index, batch, offset)
        if self._appended_at.get((topic, index, offset)) != batch.attempt:
            self.accuse("read what is not there", f"consumer {consumer.number}, {topic}-{index} at {offset}: {batch}")
        if consumer.is_committed:
            self.transactions.read(topic, index, offset)

    def on_passed(self, consumer: Consumer, topic: str, index: int, batch: Batch, offset: int) -> None:
        self.tell("passed", consumer.number, topic, index, offset)
        self._follow(consumer, topic, index, batch, offset)
        self.transactions.pass_by(topic, index, offset)

    def _follow(self, consumer: Consumer, topic: str, index: int, batch: Batch, offset: int) -> None:
        before = self._read.get((consumer.number, topic, index), 0)
        if offset not in (before, 0):
            self.accuse("read out of order", f"consumer {consumer.number}, {topic}-{index}: {offset} after {before}")
        self._read[consumer.number, topic, index] = offset + batch.records

    def check_consumers(self, consumers: Iterable[Consumer], cluster: Cluster) -> None:
        """Each has read all there is."""
        for consumer in consumers:
            for (topic, index), position in consumer.positions.items():
                found = cluster.topics.get(topic)
                if found is not None and topic not in self.deleted_names:
                    end = found.partitions[index].end
                    if position != end:
                        self.accuse("unread", f"consumer {consumer.number}, {topic}-{index}: {position} of {end}")

    def on_message(self, topic: str, size: int) -> None:
        self.messages[topic] += 1
        self.counts["messages between gateways"] += 1
        self.counts["largest message"] = max(self.counts["largest message"], size)

    def on_marker(self, partition: Partition, producer: int, offset: int, *, commits: bool) -> None:
        self.tell("marker", partition.topic.name, partition.index, producer, offset, commits)
        self.transactions.mark(producer, partition.topic.name, partition.index, commits=commits)

    def on_timed_out(self, name: str) -> None:
        self.tell("timed out", name)

    def on_disk_full(self, node_id: int) -> None:
        if self.now() >= self.disks_unseen_until:
            self.accuse("a disk is full", f"broker {node_id}")

    def on_appended(self, partition: Partition, batch: Batch, offset: int) -> None:
        topic = partition.topic
        if self.paused[0] <= self.now() <= self.paused[1]:
            self.accuse("written in a pause", f"attempt {batch.attempt} to {topic.name}-{partition.index}")
        self.tell("appended", batch.attempt, topic.name, partition.index, offset)
        self._topic_ids[topic.name] = topic.topic_id
        attempt = self._attempts.get(batch.attempt)
        key = (batch.client, batch.first)
        if attempt is None:
            before = self._attempts.get(-batch.attempt)
            if before is not None:
                self.accuse("rejected and in the log", f"error {before.told}, then appended: attempt {batch.attempt}")
            else:
                self.accuse("made up", f"nobody sent attempt {batch.attempt}, or it came twice")
            return
        if attempt.offset is not None:
            self.accuse("twice", f"attempt {batch.attempt} came twice to {topic.name}-{partition.index}")
        attempt.offset = offset
        self._appended_at[topic.name, partition.index, offset] = batch.attempt
        if (attempt.topic, attempt.index) != (topic.name, partition.index) or attempt.batch != batch:
            self.accuse("made up", f"{batch} in {topic.name}-{partition.index} was sent as {attempt.batch}")
        if attempt.told not in (None, NO_ANSWER):
            self.accuse("told a wrong fate", f"told {attempt.told} before it was appended: attempt {batch.attempt}")
        if key in self._failed_surely:
            self.accuse("rejected and in the log", f"records {key}")
        client = attempt.client
        if attempt.transaction:
            transaction = self.transactions.by_number[client.number, attempt.transaction]
            self.transactions.append(transaction, topic.name, partition.index, offset, batch)
        self._in_log[key] += 1
        if self._in_log[key] > 1:
            self.counts["batches twice"] += 1
        if client.profile.is_idempotent and key not in self._may_repeat:
            if self._in_log[key] > 1:
                self.accuse("twice", f"{client.profile.name} {client.number}, {topic.name}, records from {batch.first}")
            place = (client.number, topic.topic_id, partition.index)
            if self._last.get(place, -1) > batch.first:
                self.accuse(
                    "out of order",
                    f"{client.profile.name} {client.number}, {topic.name}-{partition.index}: {batch.first} behind"
                    f" {self._last[place]}",
                )
            self._last[place] = batch.first
        self.appended_bytes[topic.name] += batch.size
        self.bytes_by_user[client.limit_name] += batch.size
        self.recent[int(self.now())] += batch.size
        self.counts["records in logs"] += batch.records
        if partition.leader in self.rejecting:
            self.rejecting[partition.leader].taken[attempt.host] += batch.size
        if self.shares is not None:
            self.shares.taken[attempt.host] += batch.size
        for name in self.limits_of(client, partition.leader):
            limit = self.limits.get(name)
            if limit is not None:
                limit.taken += batch.size

    def on_repeated(self, partition: Partition, batch: Batch, offset: int) -> None:
        self.tell("repeated", batch.attempt, offset)
        self.repeated_bytes[partition.topic.name] += batch.size
        attempt = self._attempts.get(batch.attempt)
        if attempt is None:
            self.accuse("rejected and in the log", f"attempt {batch.attempt} came to a broker")
        else:
            attempt.offset = offset
            self.bytes_by_user[attempt.client.limit_name] += batch.size

    def on_refused(self, topic: str, index: int, batch: Batch, error: int) -> None:
        self.tell("refused", batch.attempt, error)
        attempt = self._attempts.get(batch.attempt)
        if attempt is None and -batch.attempt in self._attempts:
            self.accuse("rejected and in the log", f"attempt {batch.attempt} came to a broker, and was refused")
        elif attempt is None:
            self.counts["refused to strangers"] += 1
        else:
            attempt.error = error

    # --- limits -------------------------------------------------------------------------------------------------------

    def end_second(self) -> None:
        """Judge each limit by the second that ends now."""
        now = self.now()
        for text in filter(None, [each.end_second() for each in self.rejecting.values()]):
            self.accuse("over a limit", text)
        for limit in self.limits.values():
            taken, limit.taken = limit.taken, 0.0
            held = limit.held()
            limit.seconds.append(
                _Second(taken, limit.owed, limit.brought, held, held >= 2.0 * limit.rate, limit.held_at())
            )
            limit.owed = min(max(0.0, limit.owed + taken - limit.rate), OWED_S * limit.rate)
            limit.brought = 0.0
            limit.steady_seconds = limit.steady_seconds + 1 if limit.all_want() else 0
            if limit.rate <= 0:
                continue
            if now - 1.0 >= limit.over_from:
                limit.fullest = max(limit.fullest, taken / limit.rate)
                is_steady = limit.saves_nothing and limit.steady_seconds >= STEADY_AFTER_S
                before = list(limit.seconds)[-1 - IDLE_AFTER_S : -1]
                was_idle = all(2.0 * second.taken < limit.rate for second in before)
                share = IDLE_SHARE if was_idle else STEADY_SHARE if is_steady else RISING_SHARE
                if taken > share * limit.rate + limit.slack:
                    self.accuse("over a limit", f"{limit.name}: {taken:.0f} bytes in a second of {limit.rate:.0f}")
            seconds = limit.seconds
            share = sum(second.taken for second in seconds) / WINDOW_S / limit.rate
            if len(seconds) == WINDOW_S and now - WINDOW_S >= limit.bounded_from:
                excused_s = sum(worth_s for _, ended, worth_s in limit.excuses if ended > now - WINDOW_S)
                if share > 1.03 + (limit.slack / limit.rate + excused_s) / WINDOW_S:
                    self.accuse("over a limit", f"{limit.name}: {share:.3f} of it over {WINDOW_S} s")
            if len(seconds) == WINDOW_S and now - WINDOW_S >= limit.quiet_from:
                is_wanted = all(second.is_wanted for second in seconds)
                limit.windows += 1
                limit.checked += is_wanted
                limit.highest = max(limit.highest, share)
                if is_wanted:
                    limit.lowest = min(limit.lowest, share)
                    used = share + (seconds[0].owed + limit.answer_bytes) / limit.rate / WINDOW_S
                    if used < USED_SHARE and limit.is_lower_judged and (used < TURNS_SHARE or not _has_turns(limit)):
                        self.accuse("a limit unused", f"{limit.name}: {share:.3f} of it over {WINDOW_S} s")
                if limit.is_lower_judged and limit.saves_nothing:
                    self._judge_demand(limit)
        for text in () if self.shares is None else self.shares.end_second(now):
            self.accuse("not its fair share", text)

    def _judge_demand(self, limit: Limit) -> None:
        """What applications brought got through, or the limit was used up."""
        first, *others = limit.seconds
        taken, demand = sum(each.taken for each in others), first.held + sum(each.brought for each in others)
        least = 0.97 * min(demand, limit.rate * len(others)) - UNSERVED_S * limit.rate - limit.slack
        if taken < least:
            self.accuse("a demand unserved", f"{limit.name}: {taken:.0f} of {demand:.0f} bytes over {len(others)} s")

    # --- the end ------------------------------------------------------------------------------------------------------

    def check_logs(self, cluster: Cluster) -> None:
        """Every acknowledged record is in a log that still exists, read from its beginning."""
        there = {
            (each.batch.client, each.batch.first)
            for topic in cluster.topics.values()
            for partition in topic.partitions
            for each in partition.log
        }
        for key, (topic, topic_id, index) in self._acknowledged.items():
            if key not in there and topic_id not in self.deleted:
                self.accuse("lost", f"client {key[0]}, records from {key[1]} of {topic}-{index}")

    def check_gauges(self, gateway: str, text: str, there: Mapping[str, tuple[float, float]]) -> None:
        """The sums of gauges in the text of /metrics. `there`: least and most of each, by name."""
        told: defaultdict[str, float] = defaultdict(float)
        for name, value in _GAUGE.findall(text):
            told[name] += float(value)
        self.counts["gauges compared"] += len(there)
        for name, (least, most) in there.items():
            if not least <= told[name] <= most:
                self.accuse("gauges", f"{gateway}: {name} {told[name]:.0f} in /metrics, right are {least} to {most}")

    def check_usage(self, folders: list[Path], texts: Mapping[str, list[str]], *, unsure_bytes: float) -> None:
        """The sums of logs, usage log and metrics are the same. `texts`: what /metrics said, by gateway.
        `unsure_bytes`: that killed workers may not have told.
        """
        logged, lost = usage_sums(folders)
        counted: Counter[tuple[str, str]] = Counter()
        for many in texts.values():
            for text in many:
                counted += metric_sums(text)
        for topic, appended in sorted(self.appended_bytes.items()):
            accepted = logged[topic, "accepted"]
            open_ended = logged[topic, "unanswered"] + logged[topic, "unacknowledged"]
            self.tell("sums", topic, appended, accepted, open_ended, lost)
            if (
                not accepted - 0
                <= appended + self.repeated_bytes[topic]
                <= accepted + open_ended + (logged[topic, "duplicate"] + (unsure_bytes if lost else 0))
            ):
                self.accuse(
                    "sums differ",
                    f"{topic}: {appended} bytes in logs, {accepted} accepted, {open_ended} unanswered or"
                    f" unacknowledged, {logged[topic, 'duplicate']} duplicate, {self.repeated_bytes[topic]} repeated,"
                    f" {lost} workers lost",
                )
            if (
                not lost
                and not open_ended
                and accepted + logged[topic, "duplicate"] != (appended + self.repeated_bytes[topic])
            ):
                self.accuse("sums differ", f"{topic}: {appended} bytes in logs, {accepted} accepted")
        if texts:
            for topic in sorted(self.appended_bytes):
                for outcome in ("accepted", "rejected", "duplicate"):
                    if counted[topic, outcome] != logged[topic, outcome]:
                        self.accuse(
                            "sums differ",
                            f"{topic}: {outcome} {logged[topic, outcome]} in the usage log, {counted[topic, outcome]}"
                            " in metrics",
                        )

    def check_users(self, folders: list[Path], *, unsure_bytes: float) -> None:
        """What each user sent is in the usage log under its name, and nothing under another one."""
        logged, lost = usage_sums(folders, "principal")
        names = {f"User:{user}": size for user, size in self.bytes_by_user.items()}
        for name in sorted({principal for principal, _ in logged} | set(names)):
            size, accepted = names.get(name, 0), logged[name, "accepted"]
            open_ended = logged[name, "unanswered"] + logged[name, "unacknowledged"] + logged[name, "duplicate"]
            if not accepted <= size <= accepted + open_ended + unsure_bytes * bool(lost):
                self.accuse("sums differ", f"{name}: {size} bytes in logs, {accepted} accepted, {open_ended} open")


def _has_turns(limit: Limit) -> bool:
    """Whether a gateway's clients held something back, and then nothing, or the reverse, in the present window: faster
    than others learn of it.
    """
    least, most = (seconds * limit.rate for seconds in TURNS_S)
    helds = [second.held_at for second in limit.seconds]
    hosts = set().union(*helds)
    return len(hosts) > 1 and any(
        min(held.get(host, 0.0) for held in helds) <= least and max(held.get(host, 0.0) for held in helds) >= most
        for host in hosts
    )


def usage_sums(folders: list[Path], by: str = "topic") -> tuple[Counter[tuple[str, str]], int]:
    """Bytes by topic (or another field) and outcome in usage logs, and how many workers were lost."""
    found: Counter[tuple[str, str]] = Counter()
    lost, seen = 0, set[tuple[str, int]]()
    for folder in folders:
        for path in sorted(folder.glob("usage-*.jsonl")):
            for line in path.read_bytes().splitlines():
                record: dict[str, Any] = json.loads(line)
                if record["kind"] == "lost":
                    lost += 1
                    continue
                key = (record["boot"], record["seq"])
                if key in seen:
                    continue
                seen.add(key)
                for row in record["rows"]:
                    found[row[by], row["outcome"]] += row["bytes"]
    return found, lost


_GAUGE: Final = re.compile(r"^produce_gateway_(\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)
_SAMPLE: Final = re.compile(r"produce_gateway_produce_bytes_total\{([^}]*)\} ([0-9.e+]+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def metric_sums(text: str) -> Counter[tuple[str, str]]:
    """Bytes by topic and outcome in the text of /metrics."""
    found: Counter[tuple[str, str]] = Counter()
    for labels, value in _SAMPLE.findall(text):
        named = dict(_LABEL.findall(labels))
        found[named["topic"], named["outcome"]] += int(float(value))
    return found
