# Resource groups at work in one worker (PIP-82): of each group one line (fleet/lines.py) for bytes and one for
# messages, in each direction, shared by all topics of the group on all brokers.
#
# Produce: the hot path asks `over` of a topic's meter and adds to `uncounted` and `messages`, as without groups. `pace`
# moves into the lines of their groups what topics that needn't ask took; while a group has little credit its topics ask
# about every request, and what they take is charged at once. A topic that was quiet asks as well, since nobody knows
# how much comes; its first request makes it known to its group. So only groups and topics in use cost anything.
#
# Fetch: what an answer holds is charged when it passes (`take`), and `wait` says for how long.
#
# The group of a topic is looked up when it is used, by the topic's name; where only the principal says it, each
# connection has its own answer. Knows no request and no clock.

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from policies.decision import Limit, Patience
from policies.fleet.keys import Direction, Unit, group_key
from policies.fleet.lines import LOWEST, FleetLine, OurParts
from policies.limits.limit_use import LimitMeter, LimitUse
from policies.limits.line import ENTER_S, LEAVE_S, MAX_WAIT_S, ask_all
from policies.verdict import Verdict, resource_group

if TYPE_CHECKING:
    from policies.thresholds.topic_meter import TopicMeter

IDLE_S: Final = 2.0  # a topic that was quiet for this long asks again
MAX_LOOKS: Final = 1000  # at groups and topics in one `pace`; with more of them in use each is looked at less often
LEAST_MSGS: Final = 0.01  # per second: a part of a few messages is less than one
MAX_NAMES: Final = 100_000  # of topics whose group is remembered


class GroupLimits(NamedTuple):
    """Of one group, over the whole fleet, per second; None = none."""

    publish_bytes: float | None = None
    publish_msgs: float | None = None
    dispatch_bytes: float | None = None
    dispatch_msgs: float | None = None


class GroupRate(NamedTuple):
    """One resource group in one worker, or in all of a gateway's. `topics`: with traffic. `bytes`, `msgs`: its limits,
    of which this gateway has a part.
    """

    group: str
    direction: Direction
    topics: int
    bytes: LimitUse
    msgs: LimitUse

    @property
    def waiting(self) -> bool:
        """Whether clients wait for one of them."""
        return self.bytes.waiting or self.msgs.waiting


class GroupFinder(Protocol):
    """policies.groups.finder.Finder."""

    by_principal: bool

    def group_of(self, topic: str, principal: str) -> str | None: ...

    def place(self, topic: str, principal: str) -> object | None: ...


class _NoGroups:
    """Attaches no group to anything."""

    by_principal = False

    def group_of(self, topic: str, principal: str) -> str | None:
        return None

    def place(self, topic: str, principal: str) -> object | None:
        return None


class GroupSide(Limit):
    """One group in one direction.

    `bytes`, `msgs`: lines, None where there is no limit. `bytes_meter`, `msgs_meter`: the amounts taken. `asks`:
    whether its topics have to ask about every request. `topics`: with traffic since the last tick; `topic_count`: how
    many these were at the last tick. `promised`: seconds of its rates that may come in the first answers of connections
    that are new to it.
    """

    __slots__ = ("__weakref__", "asks", "bytes", "bytes_meter", "direction", "group", "in_use", "is_queued", "is_stale",
                 "message_size", "msgs", "msgs_meter", "observes", "owed_bytes", "owed_msgs", "promised", "topic_count",
                 "topics")  # fmt: skip

    def __init__(self, group: str, direction: Direction, now: float) -> None:
        self.group = group
        self.direction = direction
        self.bytes: FleetLine | None = None
        self.msgs: FleetLine | None = None
        self.observes = False
        self.bytes_meter = LimitMeter(now)
        self.msgs_meter = LimitMeter(now)
        self.asks = True
        self.topics: set[bytes] = set()
        self.topic_count = 0
        self.promised = 0.0
        self.message_size = 0.0  # bytes, of what was charged last
        self.in_use: dict[TopicMeter, float] = {}  # since when quiet, if it is
        self.is_queued = False  # for `pace`
        self.is_stale = False  # topics came whose `over` is not as `asks` says
        self.owed_bytes = self.owed_msgs = 0  # given back, and in no bucket yet

    @property
    def lines(self) -> tuple[FleetLine, ...]:
        return tuple(line for line in (self.bytes, self.msgs) if line is not None)

    def measured(self, now: float) -> GroupRate:
        """The group as it stands."""
        of_bytes, of_msgs = (
            meter.use(None) if line is None else line.use(meter, now)
            for line, meter in ((self.bytes, self.bytes_meter), (self.msgs, self.msgs_meter))
        )
        return GroupRate(self.group, self.direction, self.topic_count, of_bytes, of_msgs)

    def judge(self, size: int, messages: int, patience: Patience, now: float) -> Verdict | None:
        lines = ((self.bytes, size), (self.msgs, messages))
        answer, line = ask_all([(line, count) for line, count in lines if line is not None], patience, now)
        if line is None:
            return None
        unit: Unit = "bytes" if line is self.bytes else "msgs"
        rate = (self.bytes_meter if line is self.bytes else self.msgs_meter).observed
        rates = rate, line.limit * line.factor
        here = line.bucket.rate
        return resource_group(self.group, unit, answer.throttle_ms, rates, here, answer.outcome, answer.room_in)

    def credit(self, client: object, now: float) -> tuple[float, float]:
        if self.owed_bytes or self.owed_msgs:  # it is for the next request, and what is more than that may be lost
            return 0.0, 0.0
        of_bytes = math.inf if self.bytes is None else self.bytes.credit(client, now)
        return of_bytes, math.inf if self.msgs is None else self.msgs.credit(client, now)

    def take(self, size: int, messages: int, now: float) -> None:
        self.bytes_meter.taken += size
        self.msgs_meter.taken += messages
        size -= self.owed_bytes
        messages -= self.owed_msgs
        self.owed_bytes = self.owed_msgs = 0
        self._note_size(size, messages)
        if self.bytes is not None:
            self.bytes.take(size, now)
        if self.msgs is not None:
            self.msgs.take(messages, now)

    def spare(self, size: int, messages: int) -> None:
        self.bytes_meter.spared += size
        self.msgs_meter.spared += messages

    def give_back(self, size: int, messages: int) -> None:
        self.bytes_meter.taken -= size
        self.msgs_meter.taken -= messages
        self.owed_bytes += size
        self.owed_msgs += messages

    def wait(self, now: float) -> float:
        """Seconds that the last taker has to wait, at most MAX_WAIT_S; 0.0 for none."""
        return min(max((line.hold(now) for line in self.lines), default=0.0), MAX_WAIT_S)

    def absorb(self, size: int, messages: int, now: float) -> None:
        """Take the bytes and messages that came in since the last look without asking."""
        self.bytes_meter.taken += size
        self.msgs_meter.taken += messages
        size -= self.owed_bytes
        messages -= self.owed_msgs
        self.owed_bytes = self.owed_msgs = 0
        self._note_size(size, messages)
        for line, count in ((self.bytes, size), (self.msgs, messages)):
            if line is not None and count:
                line.bucket.absorb(count, now)
                line.note_use(count, now)

    def _note_size(self, size: int, messages: int) -> None:
        if messages > 0:
            self.message_size = max(0.0, size / messages)

    def saved(self, now: float) -> float:
        """Bytes that its topics may take, at the size of messages that they have on average."""
        left = math.inf if self.bytes is None else max(0.0, self.bytes.bucket.level(now))
        if self.msgs is not None:
            left = min(left, max(0.0, self.msgs.bucket.level(now)) * self.message_size)
        return left

    def is_short(self, now: float) -> bool:
        """Whether a limit may be reached before the next look; once it was, until there is a little more credit."""
        bound = LEAVE_S if self.asks else ENTER_S
        for line in (self.bytes, self.msgs):
            if line is not None and line.bucket.level(now) < bound * line.bucket.burst:
                return True
        return False


class GroupLines:
    """All groups of one worker.

    `exists`: whether there are any groups. `version` changes with them. `wake`: called when `pace` has to be called
    every pacing.PACE_S from now on, for as long as `paces`. `has_dispatch_limits`: whether any of them concerns Fetch.
    `observes`: verdicts are only to be counted.
    """

    def __init__(self, fleet: OurParts, internal: frozenset[bytes] = frozenset()) -> None:
        """`internal`: topics that are in no group."""
        self.fleet = fleet
        self.version = 0
        self.exists = False
        self.has_dispatch_limits = False
        self.observes = False
        self._internal = internal
        self._limits: Mapping[str, GroupLimits] = {}
        self.wake: Callable[[], None] = _nothing
        self._finder: GroupFinder = _NoGroups()
        self._factor = 1.0
        self._sides: dict[tuple[str, Direction], GroupSide] = {}  # of groups that were used
        self._names: dict[bytes, tuple[str | None, bool]] = {}  # topic: its group; whether the principal says which
        self._queue: deque[GroupSide] = deque()  # groups with topics in use

    @property
    def paces(self) -> bool:
        """Whether any topic of a group is in use."""
        return bool(self._queue)

    # --- what holds ---------------------------------------------------------------------------------------------------

    def set_groups(
        self, limits: Mapping[str, GroupLimits], finder: GroupFinder, now: float, *, observes: bool = False
    ) -> None:
        """Replace all groups. Debts of those that stay, stay. Topics have to ask again: see `Engine.set_groups`."""
        for side in self._queue:
            self._settle(side, now)
            side.in_use = {}
            side.is_queued = False
        self._queue.clear()
        self._names = {}
        self._limits = limits
        self._finder = finder
        self.observes = observes
        self.exists = bool(limits)
        self.has_dispatch_limits = any(
            limit.dispatch_bytes is not None or limit.dispatch_msgs is not None for limit in limits.values()
        )
        self.version += 1
        for key, side in list(self._sides.items()):
            if side.group in limits:
                self._set_limits(side, now)
            else:
                del self._sides[key]

    def set_factor(self, factor: float, now: float) -> None:
        """The storage factor, above 0, times which every produce limit holds."""
        if factor != self._factor:
            self._factor = factor
            for side in self._sides.values():
                self._set_limits(side, now)

    # --- who is in which ----------------------------------------------------------------------------------------------

    def publish(self, meter: TopicMeter, name: bytes, now: float) -> GroupSide | None:
        """The group of a topic whose meter says that it asks; from here on it is in use. None: it is in none, or the
        principal says in which (`meter.by_principal`); then it needn't ask any more.

        A meter that stands for several topics asks always.
        """
        group, by_principal = self._group_of(name)
        if meter.name != name:
            return None if group is None else self._side(group, "publish", now)
        if meter.group_version != self.version:
            meter.group_version = self.version
            meter.by_principal = by_principal
            meter.side = None if group is None else self._side(group, "publish", now)
            meter.settled, meter.messages = meter.uncounted, 0
        side = meter.side
        if side is None:
            meter.ask_group(False)
            return None
        if meter not in side.in_use:
            meter.settled, meter.messages = meter.uncounted, 0
            side.is_stale = True
            side.topics.add(name)
        elif not side.asks and self._has_more(side, meter, now):
            return None
        side.in_use[meter] = now
        if not side.is_queued:
            side.is_queued = True
            if not self._queue:
                self.wake()
            self._queue.append(side)
        return side

    def asking(self, meter: TopicMeter, now: float) -> GroupSide | None:
        """The group of a topic that is in use, while all topics of that group have to ask; None: see `publish`."""
        side = meter.side
        if side is None or not side.asks or meter.group_version != self.version or meter not in side.in_use:
            return None
        side.in_use[meter] = now
        return side

    def named_by(self, topic: bytes) -> str | None:
        """The group that the topic's name says it is in."""
        return self._group_of(topic)[0]

    def paid_by(self, topic: bytes) -> GroupSide | None:
        """The group that the topic's bytes were charged to, as its name says."""
        group = self.named_by(topic)
        return None if group is None else self._sides.get((group, "publish"))

    def depends_on_principal(self, topic: bytes) -> bool:
        """Whether only the principal says which group that topic is in."""
        return self._group_of(topic)[1]

    def publish_by_principal(self, principal: str, now: float) -> GroupSide | None:
        """The group of topics whose names say nothing, for connections of that principal (User:alice)."""
        group = self._finder.group_of("", principal) if self._finder.by_principal else None
        return None if group is None or group not in self._limits else self._side(group, "publish", now)

    def dispatch(self, topic: bytes, principal: str, now: float) -> GroupSide | None:
        """The group of fetches from a topic, if it is in one."""
        group, by_principal = self._group_of(topic)
        if by_principal:
            group = self._finder.group_of("", principal)
        if group is None or group not in self._limits:
            return None
        side = self._side(group, "dispatch", now)
        side.topics.add(topic)
        return side

    def _group_of(self, topic: bytes) -> tuple[str | None, bool]:
        """The group that the topic's name says; and whether the principal says it."""
        found = self._names.get(topic)
        if found is None:
            name = topic.decode("utf-8", "replace")
            group, by_principal = None, False
            if topic not in self._internal:
                group = self._finder.group_of(name, "")
                if group is None and self._finder.by_principal:
                    by_principal = self._finder.place(name, "") is None
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            found = self._names[topic] = group if group in self._limits else None, by_principal
        return found

    def _side(self, group: str, direction: Direction, now: float) -> GroupSide:
        side = self._sides.get((group, direction))
        if side is None:
            side = self._sides[group, direction] = GroupSide(group, direction, now)
            self._set_limits(side, now)
        return side

    def _set_limits(self, side: GroupSide, now: float) -> None:
        limits = self._limits[side.group]
        side.observes = self.observes
        if side.direction == "publish":
            side.bytes = self._line(side, side.bytes, "bytes", limits.publish_bytes, self._factor, now)
            side.msgs = self._line(side, side.msgs, "msgs", limits.publish_msgs, self._factor, now)
        else:
            side.bytes = self._line(side, side.bytes, "bytes", limits.dispatch_bytes, 1.0, now)
            side.msgs = self._line(side, side.msgs, "msgs", limits.dispatch_msgs, 1.0, now)

    def _line(
        self, side: GroupSide, line: FleetLine | None, unit: Unit, limit: float | None, factor: float, now: float
    ) -> FleetLine | None:
        if limit is None:
            return None
        if line is None:
            # A group's tenants are strangers to each other: what one of them takes at once must not stall the others.
            least = LOWEST if unit == "bytes" else LEAST_MSGS
            return FleetLine(self.fleet, group_key(side.group, side.direction, unit), limit, factor, now, least)
        if (limit, factor) != (line.limit, line.factor):
            line.set_limit(limit, factor, now)
        return line

    # --- what happens -------------------------------------------------------------------------------------------------

    def pace(self, now: float) -> None:
        """Move the bytes taken without asking into the lines, and find the groups whose topics have to ask."""
        looks = MAX_LOOKS
        for _ in range(len(self._queue)):
            side = self._queue.popleft()
            looks -= 1 + len(side.in_use)
            self._look(side, now)
            if side.in_use:
                self._queue.append(side)
            else:
                side.is_queued = False
            if looks <= 0:
                return

    def tick(self, now: float) -> None:
        """Close the meters' tick."""
        for side in self._queue:
            self._settle(side, now)
        for side in self._sides.values():
            side.bytes_meter.tick(now)
            side.msgs_meter.tick(now)
            side.topic_count = len(side.topics)
            side.topics = {meter.name for meter in side.in_use}

    def rates(self, now: float) -> list[GroupRate]:
        """Every group that was used."""
        return [side.measured(now) for side in self._sides.values()]

    def _look(self, side: GroupSide, now: float) -> None:
        self._settle(side, now)
        quiet = [meter for meter, used in side.in_use.items() if now - used > IDLE_S]
        for meter in quiet:
            del side.in_use[meter]
            meter.ask_group(True)
        for line in side.lines:
            line.topics = len(side.in_use)
        asks = side.is_short(now)
        if asks != side.asks or side.is_stale:
            self._ask(side, asks, now)

    def _ask(self, side: GroupSide, asks: bool, now: float) -> None:
        """All topics of a group have to ask from now on, or need not."""
        side.asks, side.is_stale = asks, False
        credit = 0.0 if asks else side.saved(now) / self.fleet.workers
        for meter in side.in_use:
            meter.ask_group(asks, credit / len(side.in_use))

    def _has_more(self, side: GroupSide, meter: TopicMeter, now: float) -> bool:
        """A topic has used up the bytes that it might take without asking: whether the group has more for it. It may
        have twice as much then, as long as there is that much.
        """
        size, messages = meter.uncounted - meter.settled, meter.messages
        meter.settled, meter.messages = meter.uncounted, 0
        if size or messages:
            side.in_use[meter] = now
            side.absorb(size, messages, now)
        if side.is_short(now):
            self._ask(side, True, now)
            return False
        credit = side.saved(now) / self.fleet.workers
        meter.ask_group(False, min(credit, max(2.0 * size, credit / len(side.in_use))))
        return True

    def _settle(self, side: GroupSide, now: float) -> None:
        size = messages = 0
        for meter in side.in_use:
            taken = meter.uncounted - meter.settled
            if taken or meter.messages:
                size += taken
                messages += meter.messages
                meter.settled, meter.messages = meter.uncounted, 0
                side.in_use[meter] = now
        if size or messages or side.owed_bytes or side.owed_msgs:
            side.absorb(size, messages, now)


def _nothing() -> None:
    """There is no pacer to wake."""
