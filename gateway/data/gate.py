# What one connection's Produce requests are allowed and how they ended: the side of a session that looks at policies.
#
# Decides (which partitions are over a limit, which stand behind a rejected batch) and keeps the accounts: whatever the
# client offered is counted once, under exactly one of policies.usage.OUTCOMES, when its fate is known. Knows partitions
# as the tuples that protocol.produce_request.skim gives; knows no bytes on the wire and no order of answers. Where a
# batch has no producer id its sequence is free: the session puts its checksum there when it is asked for (`awaits`).

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gateway.data.ledger import BYTES, DELAY, MESSAGES, REPEATS, REQUESTS, UNTOLD_BYTES, UNTOLD_MESSAGES
from policies import verdict
from policies.fence import Fence
from policies.meter import Meter
from policies.quota_lines import NONE
from policies.repeats import NO_EPOCH, sends_same_bytes
from policies.usage import DELAYED, NOTES
from policies.verdict import Verdict, strictest
from protocol import api

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.data.ledger import Counts
    from gateway.data.world import World
    from policies.engine import TopicMeter
    from policies.group_lines import GroupSide
    from policies.line import Line
    from policies.repeats import Batch, Owner
    from protocol.produce_request import Partition

MAX_NAMELESS = 1000  # topic ids without a name that one connection may make up
MAX_CLIENT_ID = 256  # characters by which clients are told apart when a batch comes again: many may be remembered
MAX_TOPIC = 249  # Kafka's; what is longer no broker takes
ANONYMOUS = "User:ANONYMOUS"  # as Kafka calls a principal that has not authenticated


class Refusal(NamedTuple):
    """Why a partition of a request is not forwarded, and the Kafka error code that says so to its client."""

    code: int
    verdict: Verdict


class Nameless(Meter):
    """Stands for a topic whose name nobody knows: it has no threshold, takes no share of any and is in no group."""

    __slots__ = ("messages", "settled")
    over = thresholds_ask = group_asks = by_principal = False
    side = None

    def __init__(self) -> None:
        super().__init__()
        self.messages = self.settled = 0


Refusals = dict[tuple[bytes, int], Refusal]  # by (topic name or id as on the wire, partition index)


Note = tuple["Partition", bytes, str, str, int]  # partition, topic name, one of usage.NOTES, reason, milliseconds


class Judgement(NamedTuple):
    """What the policies say about one request: what of it is refused, and how long its client has to wait after it.

    `notes` are for `Gate.note` once the request is not held back any more.
    """

    refused: Refusals
    delay_ms: int
    notes: list[Note]


class Gate:
    """The policies' view of one connection to broker `node_id`.

    `meters` and `meters_by_id` are for the hot path: topic as the request calls it (name, or id from v13 on) -> meter,
    only of topics that anybody may produce to. They are good as long as the ledger's epoch stays the same.
    """

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.broker = world.engine.broker(node_id)
        self.fence = Fence()
        self.rejected = world.rejected
        self.principal = ANONYMOUS
        self.client_id: bytes | None = None
        self.software: tuple[str, str] | None = None
        self.exempt = False
        self.epoch = -1
        self.meters: dict[bytes, TopicMeter | Nameless] = {}
        self.meters_by_id: dict[bytes, TopicMeter | Nameless] = {}
        self._accepted: dict[bytes, Counts] = {}
        self._client = ""
        self._names = (ANONYMOUS, "")  # whose the batches without a producer id are
        self._denied_since = 0.0  # the first rejection behind which nothing was admitted
        self._charged: list[Line] = []  # what `admit` takes the request in hand from
        self.lines = NONE  # client quotas, as of `lines_version`
        self.lines_version = -1
        self.limited = False  # there are some that concern Produce, or resource groups that look at who it is
        self.group: GroupSide | None = None  # of topics whose names don't say theirs, because of who this is
        self._sides: dict[bytes, GroupSide] = {}  # of topics (as on the wire) that the request in hand asked about
        self._spared: set[GroupSide] = set()  # of these, by which it would have been rejected: they are not charged
        self.timed = False  # there are some on time: tell `spend`
        self._nameless: dict[bytes, bytes] = {}  # topic ids that nobody could tell the name of

    # --- who ----------------------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """The ledger's epoch has changed: rows and meters of the former one must not be used any more."""
        self.epoch = self.world.ledger.epoch
        self.meters = {}
        self.meters_by_id = {}
        self._accepted = {}

    def identify(self, client_id: bytes | None) -> None:
        """Requests from here on come under this client id (a client may change it with every request)."""
        self.client_id = client_id
        self._client = client_id.decode("utf-8", "replace") if client_id else ""
        self._renamed()

    def authenticate(self, principal: str) -> None:
        """The broker has accepted this principal."""
        self.principal = principal
        self._renamed()

    def introduce(self, software: tuple[str, str] | None) -> None:
        """The client has told what it is: name and version, None where it says nothing."""
        self.software = software or self.software
        self._accepted = {}

    def _renamed(self) -> None:
        self.exempt = self.world.is_internal(self.principal, self._client)
        self._names = self.principal, self._client[:MAX_CLIENT_ID]
        self._accepted = {}
        self.lines_version = -1

    def find_lines(self, now: float) -> None:
        """Look up the client quotas of who this is now; needed whenever `lines_version` is not that of the quotas."""
        quotas = self.world.quotas
        self.lines_version = quotas.version
        user = self.principal.partition(":")[2]
        self.lines = NONE if self.exempt else quotas.of(self.node_id, user, self._client, now)
        groups = self.world.engine.groups
        self.group = None if self.exempt else groups.publish_by_principal(self.principal, now)
        self._accepted = {}  # rows say the group
        self.limited = bool(
            self.lines.produce or self.lines.request or self.group is not None or (self.exempt and groups.exists)
        )
        self.timed = bool(self.lines.request)

    # --- topics -------------------------------------------------------------------------------------------------------

    def name(self, topic: bytes, version: int) -> bytes:
        """The topic's name, given what the request calls it."""
        if version < api.PRODUCE_TOPIC_IDS:
            return topic
        return self.world.topic_ids.get(topic) or self._nameless.get(topic) or _unnamed(topic)

    def nameless(self, parts: Iterable[Partition]) -> frozenset[bytes]:
        """Topic ids of a request (v13 on) whose names are not known yet."""
        known, given_up = self.world.topic_ids, self._nameless
        return frozenset(part[0] for part in parts if part[0] not in known and part[0] not in given_up)

    def give_up(self, topic_ids: Iterable[bytes]) -> None:
        """Nobody could tell these names: forwarded without a limit, counted under the id as Kafka prints it."""
        if len(self._nameless) > MAX_NAMELESS:
            self._nameless.clear()
        for topic_id in topic_ids:
            self._nameless[topic_id] = _unnamed(topic_id)
        self.world.ledger.count("topic_ids_unknown")

    def _meter(self, topic: bytes, version: int) -> TopicMeter | Nameless:
        by_id = version >= api.PRODUCE_TOPIC_IDS  # an id may have the bytes of some topic's name
        meters = self.meters_by_id if by_id else self.meters
        meter = meters.get(topic)
        if meter is None:
            if by_id and topic not in self.world.topic_ids:
                meter = Nameless()
            else:
                name = self.name(topic, version)
                meter = self.broker.topics.get(name) or self.broker.add_topic(name)
            meters[topic] = meter
        return meter

    # --- deciding -----------------------------------------------------------------------------------------------------

    def paused(self) -> Verdict | None:
        """Why nothing of this connection may be forwarded just now, where that is enforced."""
        pause = self.world.engine.pause
        return None if pause is None or pause.observed_only or self.exempt or self.world.settings.observe else pause

    def judge(
        self, parts: Sequence[Partition], version: int, now: float, *, wait_ms: int = 0, may_delay: bool = True
    ) -> Judgement:
        """What may pass.

        `wait_ms`: how long this connection is muted already. `may_delay`: False when its oldest request has waited as
        long as any may; what would have to wait is refused then.
        """
        refused: Refusals = {}
        delay_ms = 0
        notes: list[Note] = []
        decided: dict[bytes, Verdict | None] = {}
        pause = self.paused()
        whole = [] if pause is not None else self._judge_whole(parts, now, may_delay)
        grouped = self._judge_groups(parts, version, now, may_delay)
        for part in parts:
            name = self.name(part[0], version)
            refusal = self._standing(part, name, now, wait_ms)
            if refusal is None and pause is not None:  # nobody else is asked: who would only delay it lets it pass
                refusal = Refusal(self._code(), pause)
            if refusal is None:
                if name not in decided:
                    decided[name] = self._limited(parts, part, name, version, now, may_delay)
                why = strictest((*whole, decided[name], grouped.get(part[0]), *self._asked(part, name, now)))
                if why is None:
                    continue
                if why.throttle_ms > verdict.MAX_THROTTLE_MS:  # clients obey it to the letter, and time out elsewhere
                    why = replace(why, throttle_ms=verdict.MAX_THROTTLE_MS)
                if why.observed_only or self.world.settings.observe:
                    notes.append((part, name, why.would, why.reason, why.throttle_ms))
                    continue
                if why.action == verdict.DELAY:
                    notes.append((part, name, DELAYED, why.reason, why.throttle_ms))
                    delay_ms = max(delay_ms, why.throttle_ms)
                    continue
                refusal = Refusal(self._code(), why)
            refused[part[:2]] = refusal
        if refused and len(refused) < len(parts) and verdict.whole_request(self.software[0] if self.software else None):
            # Clients without a name send the whole request again: what passed now would be written twice.
            # One that is refused for good fails all of them for good: retried, it would be refused for ever.
            first = min(refused.values(), key=lambda refusal: refusal.verdict.reason != verdict.PROTECTED_TOPIC)
            for part in parts:
                refused.setdefault(part[:2], first)
        return Judgement(refused, delay_ms, notes)

    def note(self, notes: Iterable[Note]) -> None:
        """Count what policies did or would have done to bytes that are counted by their outcome as well."""
        tally = _Tally(self)
        for part, name, outcome, reason, delay_ms in notes:
            tally.add(part, name, outcome, reason, delay_ms)

    def note_held(self, parts: Iterable[Partition], version: int, refused: Refusals, wait_ms: int, first: bool) -> None:
        """An acks=0 request waits for its limit: its bytes are noted once, the time every time."""
        for part in parts:
            refusal = refused.get(part[:2])
            if refusal is not None:
                row = self._row(self.name(part[0], version), DELAYED, refusal.verdict.reason)
                row[DELAY] += wait_ms
                if first:
                    row[BYTES] += part[2]
                    row[MESSAGES] += part[3]
                    row[REQUESTS] += 1

    def _standing(self, part: Partition, name: bytes, now: float, wait_ms: int) -> Refusal | None:
        """Refused whatever the limits say."""
        _, index, _, _, pid, producer_epoch, sequence, _ = part
        if name in self.world.protected_topics:
            return Refusal(api.TOPIC_AUTHORIZATION_FAILED, verdict.protected_topic(_text(name)))
        if pid >= 0 and self.fence.entries and self.fence.blocks(pid, producer_epoch, name, index, sequence, now):
            return Refusal(self._code(), verdict.behind_fence(_text(name), index, wait_ms))
        return None

    def _limited(
        self, parts: Sequence[Partition], part: Partition, name: bytes, version: int, now: float, may_delay: bool
    ) -> Verdict | None:
        """What the thresholds say about all that this request has for one topic."""
        if self.exempt or not self._meter(part[0], version).thresholds_ask:
            return None
        size = sum(other[2] for other in parts if other[0] == part[0])
        denied_s = now - self._denied_since if self._denied_since else 0.0
        return self.world.engine.decide(self.node_id, name, size, now, may_delay=may_delay, denied_s=denied_s)

    def _judge_whole(self, parts: Sequence[Partition], now: float, may_delay: bool) -> list[Verdict | None]:
        """What policies say that don't care for topics: full disks and client quotas."""
        engine = self.world.engine
        self._charged = []
        if self.exempt or not (engine.guards_storage or self.limited):
            return []
        size = sum(part[2] for part in parts)
        denied_s = now - self._denied_since if self._denied_since else 0.0
        found = [engine.pause]
        line = self.broker.storage
        if line is not None:
            why = engine.judge_storage(self.node_id, size, now, may_delay=may_delay, denied_s=denied_s)
            found.append(why)
            if why is None or why.action == verdict.DELAY:  # what is only counted as rejected must not cost the others
                self._charged.append(line)
        if self.limited:
            why = self.world.quotas.judge(self.lines, size, now, may_delay, denied_s)
            found.append(why)
            if why is None or why.action == verdict.DELAY:
                self._charged += self.lines.produce
        return found

    def _judge_groups(
        self, parts: Sequence[Partition], version: int, now: float, may_delay: bool
    ) -> dict[bytes, Verdict]:
        """What resource groups say, by topic as on the wire, about all that this request has for each of them."""
        groups = self.world.engine.groups
        self._sides = {}
        if not groups.exists or self.exempt:
            return {}
        self._spared = set()
        sums: dict[GroupSide, list[int]] = {}
        for topic, _, size, messages, *_ in parts:
            side = self._sides.get(topic) or self._side(topic, version, now)
            if side is not None:
                self._sides[topic] = side
                asked = sums.setdefault(side, [0, 0])
                asked[0] += size
                asked[1] += messages
        denied_s = now - self._denied_since if self._denied_since else 0.0
        said = {}
        for side, (size, messages) in sums.items():
            why = groups.judge(side, size, messages, now, may_delay, denied_s)
            if why is not None:
                said[side] = why
                if why.action != verdict.DELAY:
                    self._spared.add(side)
        return {topic: said[side] for topic, side in self._sides.items() if side in said}

    def _side(self, topic: bytes, version: int, now: float) -> GroupSide | None:
        """The group to ask about that topic; None also where it need not be asked, since it has credit enough."""
        meter = self._meter(topic, version)
        if isinstance(meter, Nameless):
            return None
        if meter.group_asks:
            side = self.world.engine.groups.publish(meter, self.name(topic, version), now)
            if side is not None:
                return side
        return self.group if meter.by_principal else None

    def consume(self, size: int, now: float) -> float:
        """A Fetch answer of `size` bytes: for how many seconds its connection may not fetch."""
        return self.world.quotas.charge_fetch(self.lines, size, now)

    def spend(self, seconds: float, now: float) -> None:
        """The worker's thread was busy with this connection for so long."""
        for line in self.lines.request:
            line.take(seconds, now)

    def _asked(self, part: Partition, name: bytes, now: float) -> list[Verdict | None]:
        """What policies of the operator's own say."""
        plugins = self.world.plugins
        if not plugins or self.exempt:
            return []
        _, index, size, _, pid, _, _, _ = part
        return [
            plugin.decide(self.node_id, name, index, pid, size, self.principal, self._client, now) for plugin in plugins
        ]

    def _code(self) -> int:
        return self.world.reject_code(self.software)

    def admit(self, parts: Sequence[Partition], version: int, now: float) -> None:
        """Record what is forwarded (V1: only what is admitted is recorded)."""
        fence, total = self.fence, self.broker.total
        self._denied_since = 0.0
        for line in self._charged:
            line.take(sum(part[2] for part in parts), now)
        sides = self._sides
        for topic, index, size, messages, pid, producer_epoch, _, _ in parts:
            meter = self._meter(topic, version)
            meter.uncounted += size
            total.uncounted += size
            side = sides.get(topic)
            if side is not None:
                meter.settled += size  # not for the group to find once more
                if side not in self._spared:
                    side.take(size, messages, now)
            elif self.exempt:
                meter.settled += size
            else:
                meter.messages += messages
            if fence.entries and pid >= 0:
                fence.admitted(pid, producer_epoch, self.name(topic, version), index)

    def refuse(self, parts: Iterable[Partition], version: int, refused: Refusals, now: float) -> None:
        """Count the rejected partitions and fence what their producers may have in flight behind them."""
        tally = _Tally(self)
        self._denied_since = self._denied_since or now
        name, version_of = self.software or (None, None)
        for part in parts:
            topic, index, size, _, pid, producer_epoch, sequence, _ = part
            code, why = refused[topic, index]
            topic_name = self.name(topic, version)
            self.broker.throttled.uncounted += size
            tally.add(part, topic_name, "rejected", why.reason, why.throttle_ms)
            # Behind a code that its client doesn't retry the base never comes back, and a fence would stay shut.
            if verdict.is_retried(code, name, version_of):
                if pid >= 0:
                    self.fence.rejected(pid, producer_epoch, topic_name, index, sequence, now)
                if sequence >= 0 and len(topic_name) <= MAX_TOPIC:
                    self.rejected.add(self._owner(pid), topic_name, index, _batch(part), now)

    # --- what comes again after it was rejected ---------------------------------------------------------------------

    def awaits(self, parts: Iterable[Partition], version: int) -> bool:
        """Whether any of these may be recognised by its checksum: it has no producer id, hence no sequence, and
        something of its client was rejected in that partition.
        """
        has, owner = self.rejected.has, self._names
        return any(part[4] < 0 and has(owner, self.name(part[0], version), part[1]) for part in parts)

    def _owner(self, pid: int) -> Owner:
        return pid if pid >= 0 else self._names

    def _count_repeats(self, row: Counts, part: Partition, name: bytes) -> None:
        """To be asked where `rejected.asks`: how much of what has just been counted had been rejected before."""
        _, index, size, messages, pid, _, sequence, _ = part
        if sequence < 0:  # nothing of its client was outstanding there when it came
            repeats = None if self.rejected.blind else 0
        else:
            same = pid >= 0 or sends_same_bytes(self._software)
            repeats = self.rejected.resent(self._owner(pid), name, index, _batch(part), same)
        if repeats is None:
            row[UNTOLD_BYTES] += size
            row[UNTOLD_MESSAGES] += messages
        elif repeats:
            row[REPEATS] += repeats

    # --- accounts -----------------------------------------------------------------------------------------------------

    def count(
        self, parts: Iterable[Partition], version: int, outcome: str, reason: str = "", delay_ms: int = 0
    ) -> None:
        """Every partition of a request ended in the same outcome."""
        tally = _Tally(self)
        for part in parts:
            tally.add(part, self.name(part[0], version), outcome, reason, delay_ms)

    def settle(
        self, parts: list[Partition], version: int, answered: list[tuple[bytes, int, int, int]], delay_ms: int = 0
    ) -> None:
        """The broker has answered: (topic, index, error code, base offset) in an order of its own."""
        if len(parts) == 1 and len(answered) == 1 and not delay_ms:
            topic, index, size, messages, pid, producer_epoch, sequence, trailing = parts[0]
            answered_topic, answered_index, code, offset = answered[0]
            if not code and not trailing and answered_index == index and answered_topic == topic:
                name = topic if version < api.PRODUCE_TOPIC_IDS else self.name(topic, version)
                if pid < 0 or not self.world.acknowledged.seen(pid, producer_epoch, name, index, sequence, offset):
                    counts = self._accepted.get(name) or self._accepted_row(name)
                    counts[0] += size
                    counts[1] += messages
                    counts[2] += 1
                    if self.rejected.asks:
                        self._count_repeats(counts, parts[0], name)
                else:
                    self._count_duplicate(parts[0], name, _Tally(self))
                return
        codes = {(row[0], row[1]): row for row in answered}
        tally = _Tally(self)
        for part in parts:
            self._settle_one(part, version, codes.get(part[:2]), tally, delay_ms)

    def _settle_one(
        self,
        part: Partition,
        version: int,
        answer: tuple[bytes, int, int, int] | None,
        tally: _Tally,
        delay_ms: int,
    ) -> None:
        topic, index, size, _, pid, producer_epoch, sequence, _ = part
        name = self.name(topic, version)
        if answer is None:  # a broker that answers without a partition that it was sent
            tally.add(part, name, "unanswered", "")
            return
        _, _, code, offset = answer
        if code:
            tally.add(part, name, "errored", api.ERROR_NAMES.get(code, str(code)))
            self.world.engine.refund(self.node_id, name, size)
            self._give_back(name, part)
        elif pid >= 0 and self.world.acknowledged.seen(pid, producer_epoch, name, index, sequence, offset):
            self._count_duplicate(part, name, tally)
        else:
            tally.add(part, name, "accepted", "", delay_ms)

    def _count_duplicate(self, part: Partition, name: bytes, tally: _Tally) -> None:
        tally.add(part, name, "duplicate", "")
        self.broker.retract(name, part[2])  # it didn't get into the log this time
        self._give_back(name, part)

    def _give_back(self, name: bytes, part: Partition) -> None:
        """What a resource group was charged."""
        groups = self.world.engine.groups
        if groups.exists and not self.exempt:
            meter = self.broker.topics.get(name)
            side = None
            if meter is not None and meter.group_version == groups.version:
                side = self.group if meter.by_principal else meter.side
            if side is not None:
                side.give_back(part[2], part[3])

    def _accepted_row(self, name: bytes) -> Counts:
        row = self._accepted[name] = self._row(name, "accepted", "")
        return row

    def _row(self, name: bytes, outcome: str, reason: str) -> Counts:
        return self.world.ledger.row(
            self.node_id,
            _text(name),
            self.principal,
            self._client,
            outcome,
            reason,
            self._group_of(name),
            self._software,
        )

    @property
    def _software(self) -> str:
        return self.software[0] if self.software else ""

    def _group_of(self, name: bytes) -> str:
        """The resource group that what this client sends to a topic is charged to."""
        groups = self.world.engine.groups
        if not groups.exists or self.exempt:
            return ""
        if groups.depends_on_principal(name):
            return self.group.group if self.group is not None else ""
        return groups.named_by(name) or ""


class _Tally:
    """Adds the partitions of one request to their rows; a row's `requests` grows once, however many partitions."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._seen: set[int] = set()

    def add(self, part: Partition, name: bytes, outcome: str, reason: str, delay_ms: int = 0) -> None:
        row = self._add(name, outcome, reason, part[2], part[3], delay_ms)
        if outcome in NOTES:
            return
        if self._gate.rejected.asks:
            self._gate._count_repeats(row, part, name)
        if part[7]:
            self._add(name, "trailing", "", part[7], 0, 0)

    def _add(self, name: bytes, outcome: str, reason: str, size: int, messages: int, delay_ms: int) -> Counts:
        row = self._gate._row(name, outcome, reason)
        row[BYTES] += size
        row[MESSAGES] += messages
        if id(row) not in self._seen:
            self._seen.add(id(row))
            row[REQUESTS] += 1
            row[DELAY] += delay_ms
        return row


def _batch(part: Partition) -> Batch:
    """What tells a batch from others of its owner in its partition."""
    _, _, size, messages, pid, epoch, sequence, _ = part
    return epoch if pid >= 0 else NO_EPOCH, sequence, size, messages


def _unnamed(topic_id: bytes) -> bytes:
    """Stands for the name that nobody knows: the id as Kafka prints it."""
    return b"topic-id:" + urlsafe_b64encode(topic_id).rstrip(b"=")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
