# What one connection's Produce requests are allowed and how they ended: the side of a session that looks at policies.
#
# Decides (which partitions are over a limit, which stand behind a rejected batch) and keeps the accounts: whatever the
# client offered is counted once, under exactly one of policies.usage.OUTCOMES, when its fate is known. Knows partitions
# as the tuples that protocol.produce_request.skim gives; knows no bytes on the wire and no order of answers. Where a
# batch has no producer id its sequence is free: the session puts its checksum there when it is asked for (`awaits`).

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

from gateway.data.ledger import BYTES, DELAY, MESSAGES, REPEATS, REQUESTS, UNTOLD_BYTES, UNTOLD_MESSAGES
from policies import decision, verdict
from policies.decision import NO_LIMITS, Limits, Patience
from policies.fence import Fence
from policies.plugin import PluginLimit
from policies.quotas.lines import NONE
from policies.repeats import NO_EPOCH, sends_same_bytes
from policies.thresholds.broker_meters import OTHER, TopicThreshold
from policies.usage import DELAYED, NOTES
from policies.verdict import Verdict
from protocol import api

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.data.ledger import Counts
    from gateway.data.world import World
    from policies.decision import Decision, Key, Note, Refused
    from policies.groups.lines import GroupSide
    from policies.repeats import Batch, Owner
    from policies.thresholds.broker_meters import TopicMeter
    from protocol.produce_request import Partition

# What a client calls itself is cut to so many characters before anything is looked up or counted by it.
MAX_CLIENT_ID = 256
MAX_UNPROVEN = 1000  # partitions with acks=0 that are taken back where their connection is ended at once
MAX_PRINCIPAL = 256  # in what is counted; quotas and groups go by the whole of it
_TOPIC = re.compile(rb"[a-zA-Z0-9._-]{1,249}")  # org.apache.kafka.common.internals.Topic: no broker takes another
_UNNAMED = b"topic-id:"  # before an id whose name nobody knows
_COUNTED = re.compile(rb"%s|topic-id:[\w-]{22}" % _TOPIC.pattern)
INVALID_TOPIC = "<invalid>"  # what all others are counted under: no topic has this name
ANONYMOUS = "User:ANONYMOUS"  # as Kafka calls a principal that has not authenticated
# The Kafka error codes of what is refused whatever the limits say.
_CODES = {
    verdict.UNKNOWN_TOPIC_ID: api.UNKNOWN_TOPIC_ID,
    verdict.PROTECTED_TOPIC: api.TOPIC_AUTHORIZATION_FAILED,
}


class Gate:
    """The policies' view of one connection to broker `node_id`.

    `meters` and `meters_by_id` are for the hot path: topic as the request calls it (name, or id from v13 on) -> meter,
    only of topics that anybody may produce to: what is in there passes without another look. They are good as long as
    the ledger's epoch stays the same.
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
        self.meters: dict[bytes, TopicMeter] = {}
        self.meters_by_id: dict[bytes, TopicMeter] = {}
        self._taken: set[bytes] = set()  # topics that the broker has taken something for from this connection
        self._unproven: list[tuple[Partition, bytes]] = []  # acks=0 of this second for others, with their names
        self._accepted: dict[bytes, Counts] = {}
        self._vouched: set[bytes] = set()  # topics that the engine knows from us
        self._client = ""
        self._names = (ANONYMOUS, "")  # whose the batches without a producer id are
        self._denied_since = 0.0  # the first rejection behind which nothing was admitted
        self.lines = NONE  # client quotas, as of `lines_version`
        self.lines_version = -1
        self.limited = False  # there are some that concern Produce, or resource groups that look at who it is
        self.group: GroupSide | None = None  # of topics whose names don't say theirs, because of who this is
        self.timed = False  # there are some on time: tell `spend`

    # --- who ----------------------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """The ledger's epoch has changed: rows and meters of the former one must not be used any more."""
        self.epoch = self.world.ledger.epoch
        self.meters = {}
        self.meters_by_id = {}
        self._accepted = {}
        self._vouched.clear()
        self._unproven = []

    def identify(self, client_id: bytes | None) -> None:
        """Requests from here on come under this client id (a client may change it with every request)."""
        self.client_id = client_id
        self._client = client_id.decode("utf-8", "replace")[:MAX_CLIENT_ID] if client_id else ""
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
        self._names = self.principal[:MAX_PRINCIPAL], self._client
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
        return self.world.topic_ids.get(topic) or _unnamed(topic)

    def nameless(self, parts: Iterable[Partition]) -> frozenset[bytes]:
        """Topic ids of a request (v13 on) whose names are not known yet."""
        known = self.world.topic_ids
        return frozenset(part[0] for part in parts if part[0] not in known)

    def _meter(self, topic: bytes, version: int) -> TopicMeter:
        """The meter of a topic that `_standing` has nothing against."""
        meters = self.meters_by_id if version >= api.PRODUCE_TOPIC_IDS else self.meters  # an id may look like a name
        meter = meters.get(topic)
        if meter is None:
            name = self.name(topic, version)
            assert name not in self.world.protected_topics, "the hot path would let the next request pass"
            if not _TOPIC.fullmatch(name):
                name = OTHER
            meter = self.broker.topics.get(name) or self.broker.add_topic(name)
            if meter.vouched:  # names that clients make up must not fill a connection's memory
                meters[topic] = meter
        return meter

    # --- deciding -----------------------------------------------------------------------------------------------------

    def paused(self) -> Verdict | None:
        """Why nothing of this connection may be forwarded just now, where that is enforced."""
        pause = self.world.engine.pause
        if pause is None or pause.observes or self.exempt or self.world.settings.observe:
            return None
        return pause.verdict

    def judge(
        self, parts: Sequence[Partition], version: int, now: float, *, wait_ms: int = 0, may_delay: bool = True
    ) -> Decision[Partition]:
        """What may pass. Takes nothing: `admit` charges for what is forwarded.

        `wait_ms`: how long this connection is muted already. `may_delay`: False when its oldest request has waited as
        long as any may; what would have to wait is refused then.
        """
        standing = self._standing(parts, version, now, wait_ms)
        if standing:
            parts = [part for part in parts if part[:2] not in standing]
        return decision.decide(
            parts,
            {} if self.exempt else self._limits(parts, version, now),
            Patience(may_delay, now - self._denied_since if self._denied_since else 0.0),
            now,
            standing=standing,
            observes=self.world.settings.observe,
            # Clients without a name send the whole request again: what passed now would be written twice.
            one_fate=verdict.whole_request(self.software[0] if self.software else None),
        )

    def note(self, notes: Iterable[Note[Partition]], version: int) -> None:
        """Count what policies did or would have done to bytes that are counted by their outcome as well."""
        tally = _Tally(self)
        for part, outcome, reason, delay_ms in notes:
            tally.add(part, self.name(part[0], version), outcome, reason, delay_ms)

    def note_held(self, parts: Iterable[Partition], version: int, refused: Refused, wait_ms: int, first: bool) -> None:
        """An acks=0 request waits for its limit: its bytes are noted once, the time every time."""
        for part in parts:
            why = refused.get(part[:2])
            if why is not None:
                row = self._row(self.name(part[0], version), DELAYED, why.reason)
                row[DELAY] += wait_ms
                if first:
                    row[BYTES] += part[2]
                    row[MESSAGES] += part[3]
                    row[REQUESTS] += 1

    def _standing(self, parts: Iterable[Partition], version: int, now: float, wait_ms: int) -> dict[Key, Verdict]:
        """What is refused whatever the limits say."""
        world, fence = self.world, self.fence
        refused: dict[Key, Verdict] = {}
        for topic, index, _, _, pid, producer_epoch, sequence, _ in parts:
            name = self.name(topic, version)
            if version >= api.PRODUCE_TOPIC_IDS and topic not in world.topic_ids:  # which may be a protected one's
                refused[topic, index] = verdict.unknown_topic_id(_text(name))
            elif name in world.protected_topics:
                refused[topic, index] = verdict.protected_topic(_text(name))
            elif pid >= 0 and fence.entries and fence.blocks(pid, producer_epoch, topic, index, sequence, now):
                refused[topic, index] = verdict.behind_fence(_text(name), index, wait_ms)
        return refused

    def _limits(self, parts: Iterable[Partition], version: int, now: float) -> dict[Key, Limits]:
        """What each of these partitions is under: none of them is refused whatever the limits say."""
        engine, plugins = self.world.engine, self.world.plugins
        if self.paused() is not None:  # no other limit is asked
            return dict.fromkeys((part[:2] for part in parts), Limits(storage=engine.pause))
        whole = Limits(
            storage=engine.pause or self.broker.storage,
            quota=self.lines if self.lines.produce or self.lines.request else None,
        )
        found: dict[Key, Limits] = {}
        by_topic: dict[bytes, Limits] = {}
        for part in parts:
            topic = part[0]
            limits = by_topic.get(topic)
            if limits is None:
                limits = by_topic[topic] = self._limits_of(topic, version, whole, now)
            if plugins:
                batch = self.node_id, self.name(topic, version), part[1], part[4]
                limits = limits._replace(plugin=PluginLimit(plugins, batch, (self.principal, self._client)))
            found[part[:2]] = limits
        return found

    def _limits_of(self, topic: bytes, version: int, whole: Limits, now: float) -> Limits:
        """`whole`: what all of the request is under."""
        meter = self._meter(topic, version)
        group = self._side(meter, now) if self.world.engine.groups.exists else None
        threshold = TopicThreshold(self.broker, meter, self.name(topic, version)) if meter.thresholds_ask else None
        return Limits(whole.storage, whole.quota, group, threshold)

    def _side(self, meter: TopicMeter, now: float) -> GroupSide | None:
        """The group to ask about that topic; None also where it need not be asked, since it has credit enough."""
        if meter.group_asks:
            side = self.world.engine.groups.publish(meter, meter.name, now)
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

    def code(self, why: Verdict) -> int:
        """The Kafka error code that tells this client so."""
        return _CODES.get(why.reason) or self.world.reject_code(self.software)

    def admit(self, judged: Decision[Partition], parts: Sequence[Partition], version: int, now: float) -> None:
        """Record and charge for what is forwarded of a request (V1: only what is admitted is recorded)."""
        fence, total = self.fence, self.broker.total
        self._denied_since = 0.0
        decision.admit(judged, parts, now)
        for topic, index, size, messages, pid, producer_epoch, _, _ in parts:
            meter = self._meter(topic, version)
            meter.uncounted += size
            total.uncounted += size
            if self.exempt or judged.limits.get((topic, index), NO_LIMITS).group is not None:
                meter.settled += size  # not for the group to find once more
            else:
                meter.messages += messages
            if fence.entries and pid >= 0:
                fence.admitted(pid, producer_epoch, topic, index)

    def refuse(self, parts: Iterable[Partition], version: int, refused: Refused, now: float) -> None:
        """Count the rejected partitions and fence what their producers may have in flight behind them."""
        tally = _Tally(self)
        self._denied_since = self._denied_since or now
        name, version_of = self.software or (None, None)
        for part in parts:
            topic, index, size, _, pid, producer_epoch, sequence, _ = part
            why = refused[topic, index]
            topic_name = self.name(topic, version)
            self.broker.throttled.uncounted += size
            tally.add(part, topic_name, "rejected", why.reason, why.throttle_ms)
            # Behind a code that its client doesn't retry the base never comes back, and a fence would stay shut.
            if verdict.is_retried(self.code(why), name, version_of) and _COUNTED.fullmatch(topic_name):
                if pid >= 0:
                    self.fence.rejected(pid, producer_epoch, topic, index, sequence, now)
                if sequence >= 0:
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

    def send_unacknowledged(self, parts: Iterable[Partition], version: int, delay_ms: int) -> None:
        """These were forwarded, and nobody will say what became of them."""
        for part in parts:
            name = self.name(part[0], version)
            if name not in self._taken and len(self._unproven) < MAX_UNPROVEN:
                self._unproven.append((part, name))
        self.count(parts, version, "unacknowledged", delay_ms=delay_ms)

    def retract(self, parts: Iterable[Partition], version: int) -> None:
        """These were forwarded, and nothing says that they got into the log: where the broker has never taken anything
        of this connection's for a topic, others must not pay for it.
        """
        for part in parts:
            name = self.name(part[0], version)
            if name not in self._taken:
                self.broker.retract(name, part[2])
                self._give_back(name, part)

    def retract_unacknowledged(self) -> None:
        """The broker has ended this connection, as it does where acks=0 is not allowed: the same for what it was sent
        within this second.
        """
        for part, name in self._unproven:
            self.broker.retract(name, part[2])
            self._give_back(name, part)
        self._unproven = []

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
            if name not in self._vouched:
                self._vouch(name)
            tally.add(part, name, "accepted", "", delay_ms)

    def _count_duplicate(self, part: Partition, name: bytes, tally: _Tally) -> None:
        tally.add(part, name, "duplicate", "")
        self.broker.retract(name, part[2])  # it didn't get into the log this time
        self._give_back(name, part)

    def _give_back(self, name: bytes, part: Partition) -> None:
        """What quotas, the line of all producers and a resource group were charged."""
        if self.exempt:
            return
        for line in self.lines.produce:
            line.give_back(part[2])
        if self.broker.storage is not None:
            self.broker.storage.line.give_back(part[2])
        groups = self.world.engine.groups
        if groups.exists and _TOPIC.fullmatch(name):
            side = self.group if groups.depends_on_principal(name) else groups.paid_by(name)
            if side is not None:
                side.give_back(part[2], part[3])

    def _accepted_row(self, name: bytes) -> Counts:
        if name not in self._vouched:
            self._vouch(name)
        row = self._accepted[name] = self._row(name, "accepted", "")
        return row

    def _vouch(self, name: bytes) -> None:
        """The broker has taken something for that topic: it is no name that a client made up."""
        self._taken.add(name)
        self._vouched.add(name)
        self.broker.vouch(name)

    def _row(self, name: bytes, outcome: str, reason: str) -> Counts:
        return self.world.ledger.row(
            self.node_id,
            _text(name),
            *self._names,
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
        if not groups.exists or self.exempt or not _TOPIC.fullmatch(name):
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
    return _UNNAMED + urlsafe_b64encode(topic_id).rstrip(b"=")


def _text(name: bytes) -> str:
    """A topic's name as it is counted and shown: one of Kafka's, or the id of one that nobody knows."""
    return name.decode("ascii") if _COUNTED.fullmatch(name) else INVALID_TOPIC
