# Resource groups at work in one worker (PIP-82): of each group one limiter (fleet/fleet_limiter.py) for bytes and one
# for messages, in each direction, shared by all topics of the group on all brokers.
#
# Produce: the hot path asks `needs_decision` of a topic's meter and adds to `uncounted` and `messages`, as without
# groups. `pace_limits` charges to the limiters of their groups what topics that needn't ask took; while a group has
# little credit its topics ask about every request, and what they take is charged at once. A topic that was quiet asks
# as well, since nothing is known of its rate; its first request makes it known to its group. So only groups and topics
# in use cost anything.
#
# Fetch: what an answer holds is charged when it passes (`charge_counted`), and `wait_after_charge` says for how long.
#
# The group of a topic is looked up when it is used, by the topic's name; where only the principal says it, each
# connection has its own answer. Knows no request and no clock.

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from policies.decision import ClientPatience, RequestLimit
from policies.fleet.fleet_limiter import MIN_RATE, FleetLimiter, FleetShares
from policies.fleet.keys import Direction, LimitUnit, group_key
from policies.groups.names import DISPATCH_BYTES, DISPATCH_MSGS, PUBLISH_BYTES, PUBLISH_MSGS, RATE_KEYS, rate_text
from policies.limits.description import LimitDescription, LimitLevel, scale_text
from policies.limits.limit_use import LimitMeter, LimitUse
from policies.limits.limiter import ASK_BELOW_S, ASK_UNTIL_S, MAX_WAIT_S, check_limiters
from policies.meters.topic_meter import ALWAYS_ASK, NEVER_ASK
from policies.verdict import RESOURCE_GROUP, ObservedRate, Verdict, resource_group

if TYPE_CHECKING:
    from policies.limits.description import FleetUse, Traffic
    from policies.meters.topic_meter import TopicMeter

IDLE_S: Final = 2.0  # a topic that was quiet for this long asks again
MAX_UPDATES: Final = 1000  # of groups and topics per `pace_limits`; with more in use, each is updated less often
MIN_MSGS: Final = 0.01  # per second: a part of a few messages is less than one
MAX_TOPIC_NAMES: Final = 100_000  # of topics whose group is remembered


class GroupLimitValues(NamedTuple):
    """The limits of one group over the whole fleet, per second; None: none."""

    publish_bytes: float | None = None
    publish_msgs: float | None = None
    dispatch_bytes: float | None = None
    dispatch_msgs: float | None = None

    @classmethod
    def from_rates(cls, rates: Mapping[str, float]) -> GroupLimitValues:
        """`rates`: by GROUP_KEYS."""
        return cls(*(rates.get(key) for key in (PUBLISH_BYTES, PUBLISH_MSGS, DISPATCH_BYTES, DISPATCH_MSGS)))

    def rate_of(self, direction: Direction, unit: LimitUnit) -> float | None:
        if direction == "publish":
            return self.publish_bytes if unit == "bytes" else self.publish_msgs
        return self.dispatch_bytes if unit == "bytes" else self.dispatch_msgs


class GroupRate(NamedTuple):
    """One resource group in one worker, or in all of a gateway. `topics`: with traffic. `bytes`, `msgs`: its limits, of
    which this gateway has a share. `factor`: the storage factor that lowers them.
    """

    group: str
    direction: Direction
    topics: int
    bytes: LimitUse
    msgs: LimitUse
    factor: float = 1.0

    @property
    def waiting(self) -> bool:
        """Whether clients wait for one of its limits."""
        return self.bytes.waiting or self.msgs.waiting

    def use_of(self, unit: LimitUnit) -> LimitUse:
        return self.bytes if unit == "bytes" else self.msgs


class GroupLookup(Protocol):
    """policies.groups.finder.GroupResolver."""

    by_principal: bool

    def find_group(self, topic: str, principal: str) -> str | None: ...

    def find_namespace(self, topic: str, principal: str) -> object | None: ...


class _NoGroups:
    """A resolver that attaches no group to anything."""

    by_principal = False

    def find_group(self, topic: str, principal: str) -> str | None:
        return None

    def find_namespace(self, topic: str, principal: str) -> object | None:
        return None


class GroupLimit(RequestLimit):
    """One group in one direction. `byte_limiter`, `message_limiter`: None where there is no limit. `byte_meter`,
    `message_meter`: the amounts charged. `asks_always`: whether its topics have to ask about every request.
    `active_topics`: with traffic since the last tick; `topic_count`: how many these were at the last tick.
    `promised_s`: seconds of its rates that may come in the first responses to connections that are new to it.
    """

    __slots__ = (
        "__weakref__",
        "active_topics",
        "asks_always",
        "byte_limiter",
        "byte_meter",
        "direction",
        "group",
        "is_queued",
        "is_stale",
        "message_limiter",
        "message_meter",
        "message_size",
        "observes",
        "promised_s",
        "refunded_bytes",
        "refunded_messages",
        "topic_count",
        "topics",
    )  # fmt: skip

    def __init__(self, group: str, direction: Direction, now: float) -> None:
        self.group = group
        self.direction = direction
        self.byte_limiter: FleetLimiter | None = None
        self.message_limiter: FleetLimiter | None = None
        self.observes = False
        self.byte_meter = LimitMeter(now)
        self.message_meter = LimitMeter(now)
        self.asks_always = True
        self.topics: set[bytes] = set()
        self.topic_count = 0
        self.promised_s = 0.0
        self.message_size = 0.0  # bytes, of what was charged last
        self.active_topics: dict[TopicMeter, float] = {}  # since when quiet, if it is
        self.is_queued = False  # for `pace_limits`
        self.is_stale = False  # topics came whose `needs_decision` is not as `asks` says
        self.refunded_bytes = self.refunded_messages = 0  # given back, and in no bucket yet

    @property
    def limiters(self) -> tuple[FleetLimiter, ...]:
        return tuple(limiter for limiter in (self.byte_limiter, self.message_limiter) if limiter is not None)

    def read_rate(self, now: float) -> GroupRate:
        """The group's present state."""
        of_bytes, of_msgs = (
            meter.measure_use(None) if limiter is None else limiter.measure_use(meter, now)
            for limiter, meter in ((self.byte_limiter, self.byte_meter), (self.message_limiter, self.message_meter))
        )
        factor = self.limiters[0].factor if self.limiters else 1.0
        return GroupRate(self.group, self.direction, self.topic_count, of_bytes, of_msgs, factor)

    def describe_level(
        self, unit: LimitUnit, use: LimitUse | None, what: str, origin: str, fleet: FleetUse
    ) -> LimitLevel:
        """Its limit in that unit; where there is none, what is metered. `use`: see `FleetLimiter.describe_level`."""
        limiter = self.byte_limiter if unit == "bytes" else self.message_limiter
        per_s = "bytes/s" if unit == "bytes" else "messages/s"
        if limiter is None:
            return LimitLevel(what, origin, None, None, None if use is None else use.rate, per_s, fleet=fleet)
        return limiter.describe_level(what, origin, use, fleet, per_s)

    def describe(
        self, unit: LimitUnit, use: LimitUse | None, attached: str, origin: str, fleet: FleetUse
    ) -> LimitDescription | None:
        """Its limit in that unit, if there is one. `use`: see `describe_level`. `attached`: the tenant or namespace."""
        limiter = self.byte_limiter if unit == "bytes" else self.message_limiter
        if limiter is None:
            return None
        key = RATE_KEYS[self.direction, unit]
        what = f"{key} of group {self.group}, attached to {attached}"
        level = self.describe_level(unit, use, what, origin, fleet)
        # Where others' use isn't known; else the level's text has it.
        whole = f"{rate_text(key, limiter.limit)} for all gateways together" if fleet.gateways == 1 else ""
        note = "; ".join(filter(None, (scale_text(limiter.factor), whole)))
        traffic: Traffic = "produce" if self.direction == "publish" else "fetch"
        waiting = use is not None and use.waiting
        return LimitDescription(RESOURCE_GROUP, None, (level,), "delay", traffic, self.mode, waiting, note)

    def judge_request(self, size: int, messages: int, patience: ClientPatience, now: float) -> Verdict | None:
        amounts = ((self.byte_limiter, size), (self.message_limiter, messages))
        asked = [(limiter, amount) for limiter, amount in amounts if limiter is not None]
        answer, limiter = check_limiters(asked, patience, now)
        if limiter is None:
            return None
        unit: LimitUnit = "bytes" if limiter is self.byte_limiter else "msgs"
        meter = self.byte_meter if limiter is self.byte_limiter else self.message_meter
        rate, here = ObservedRate(meter.observed_rate, limiter.whole_rate), limiter.bucket.rate
        return resource_group(self.group, unit, answer.throttle_ms, rate, here, answer.outcome, answer.room_in_s)

    def available_credit(self, client: object, now: float) -> tuple[float, float]:
        if self.refunded_bytes or self.refunded_messages:
            return 0.0, 0.0  # a refund is for the next request, and what is more than that may be lost
        of_bytes = math.inf if self.byte_limiter is None else self.byte_limiter.available_credit(client, now)
        return of_bytes, math.inf if self.message_limiter is None else self.message_limiter.available_credit(
            client, now
        )

    def charge_request(self, size: int, messages: int, now: float) -> None:
        size, messages = self._meter_charge(size, messages)
        if self.byte_limiter is not None:
            self.byte_limiter.charge_amount(size, now)
        if self.message_limiter is not None:
            self.message_limiter.charge_amount(messages, now)

    def record_only(self, size: int, messages: int) -> None:
        self.byte_meter.uncharged += size
        self.message_meter.uncharged += messages

    def refund_request(self, size: int, messages: int) -> None:
        self.byte_meter.charged -= size
        self.message_meter.charged -= messages
        self.refunded_bytes += size
        self.refunded_messages += messages

    def wait_after_charge(self, now: float) -> float:
        """Seconds that the last client has to wait, at most MAX_WAIT_S; 0.0: none."""
        return min(max((limiter.wait_after_charge(now) for limiter in self.limiters), default=0.0), MAX_WAIT_S)

    def charge_counted(self, size: int, messages: int, now: float) -> None:
        """Charge the bytes and messages that topics counted without asking since the last call."""
        size, messages = self._meter_charge(size, messages)
        for limiter, count in ((self.byte_limiter, size), (self.message_limiter, messages)):
            if limiter is not None and count:
                limiter.bucket.consume_evenly(count, now)
                limiter.spent += count

    def _meter_charge(self, size: int, messages: int) -> tuple[int, int]:
        """Meter bytes and messages that pass. Returns what of them is still to be paid, as refunds pay the rest."""
        self.byte_meter.charged += size
        self.message_meter.charged += messages
        size -= self.refunded_bytes
        messages -= self.refunded_messages
        self.refunded_bytes = self.refunded_messages = 0
        if messages > 0:
            self.message_size = max(0.0, size / messages)
        return size, messages

    def saved_bytes(self, now: float) -> float:
        """Bytes that the group's topics may take now, given the average size of their messages."""
        left = math.inf if self.byte_limiter is None else max(0.0, self.byte_limiter.bucket.token_level(now))
        if self.message_limiter is not None:
            left = min(left, max(0.0, self.message_limiter.bucket.token_level(now)) * self.message_size)
        return left

    def is_short_of_credit(self, now: float) -> bool:
        """Whether a limit may be reached before the next `pace_limits`; once it was, until there is a little more
        credit.
        """
        bound = ASK_UNTIL_S if self.asks_always else ASK_BELOW_S
        for limiter in (self.byte_limiter, self.message_limiter):
            if limiter is not None and limiter.bucket.token_level(now) < bound * limiter.bucket.burst:
                return True
        return False


class GroupLimiters:
    """All groups of one worker. `has_groups`: whether there are any. `version` changes with them. `wake_pacer`: called
    when `pace_limits` has to be called every pacing.PACE_S from now on, for as long as `needs_pacing`.
    `has_dispatch_limits`: whether any of them limits Fetch. `observes`: verdicts are only counted.
    """

    def __init__(self, fleet: FleetShares, internal: frozenset[bytes] = frozenset()) -> None:
        """`internal`: topics that are in no group."""
        self.fleet = fleet
        self.version = 0
        self.has_groups = False
        self.has_dispatch_limits = False
        self.observes = False
        self._internal = internal
        self._limits: Mapping[str, GroupLimitValues] = {}
        self.wake_pacer: Callable[[], None] = _no_wakeup
        self._finder: GroupLookup = _NoGroups()
        self._storage_factor = 1.0
        self._group_limits: dict[tuple[str, Direction], GroupLimit] = {}  # of groups that were used
        # By topic: its group, and whether the principal says which.
        self._groups_by_topic: dict[bytes, tuple[str | None, bool]] = {}
        self._queue: deque[GroupLimit] = deque()  # groups with topics in use

    @property
    def needs_pacing(self) -> bool:
        """Whether any topic of a group is in use."""
        return bool(self._queue)

    # --- what holds ---------------------------------------------------------------------------------------------------

    def set_groups(
        self, limits: Mapping[str, GroupLimitValues], finder: GroupLookup, now: float, *, observes: bool = False
    ) -> None:
        """Replace all groups; those that stay keep their debts. Topics have to ask again: see
        `PolicyEngine.set_groups`.
        """
        for group_limit in self._queue:
            self._charge_counted(group_limit, now)
            group_limit.active_topics = {}
            group_limit.is_queued = False
        self._queue.clear()
        self._groups_by_topic = {}
        self._limits = limits
        self._finder = finder
        self.observes = observes
        self.has_groups = bool(limits)
        self.has_dispatch_limits = any(
            limit.dispatch_bytes is not None or limit.dispatch_msgs is not None for limit in limits.values()
        )
        self.version += 1
        for key, group_limit in list(self._group_limits.items()):
            if group_limit.group in limits:
                self._set_limits(group_limit, now)
            else:
                del self._group_limits[key]

    def set_storage_factor(self, factor: float, now: float) -> None:
        """Set the storage factor, above 0, by which every produce limit is multiplied."""
        if factor != self._storage_factor:
            self._storage_factor = factor
            for group_limit in self._group_limits.values():
                self._set_limits(group_limit, now)

    # --- who is in which ----------------------------------------------------------------------------------------------

    def activate_publish_limit(self, meter: TopicMeter, name: bytes, now: float) -> GroupLimit | None:
        """The group of a topic whose meter has to ask; from now on the topic is in use.

        None: it is in no group, or only the principal determines the group (`meter.by_principal`); then it no longer
        has to ask. A meter that stands for several topics always has to ask.
        """
        group, by_principal = self._resolve_group(name)
        if meter.name != name:
            return None if group is None else self.limit_of(group, "publish", now)
        if meter.group_version != self.version:
            meter.group_version = self.version
            meter.by_principal = by_principal
            meter.group_limit = None if group is None else self.limit_of(group, "publish", now)
            meter.counted_in_group, meter.messages = meter.uncounted, 0
        group_limit: GroupLimit | None = meter.group_limit
        if group_limit is None:
            meter.set_group_credit(NEVER_ASK)
            return None
        if meter not in group_limit.active_topics:
            meter.counted_in_group, meter.messages = meter.uncounted, 0
            group_limit.is_stale = True
            group_limit.topics.add(name)
        elif not group_limit.asks_always and self._extend_credit(group_limit, meter, now):
            return None
        group_limit.active_topics[meter] = now
        if not group_limit.is_queued:
            group_limit.is_queued = True
            if not self._queue:
                self.wake_pacer()
            self._queue.append(group_limit)
        return group_limit

    def asking_limit(self, meter: TopicMeter, now: float) -> GroupLimit | None:
        """The group of a topic that is in use, while all topics of that group have to ask; None: see
        `activate_publish_limit`, which alone sets the meter's group.
        """
        group_limit: GroupLimit | None = meter.group_limit
        if (
            group_limit is None
            or not group_limit.asks_always
            or meter.group_version != self.version
            or meter not in group_limit.active_topics
        ):
            return None
        group_limit.active_topics[meter] = now
        return group_limit

    def group_by_name(self, topic: bytes) -> str | None:
        """The group that the topic's name determines."""
        return self._resolve_group(topic)[0]

    def charged_limit(self, topic: bytes) -> GroupLimit | None:
        """The group that the topic's bytes were charged to, by its name."""
        group = self.group_by_name(topic)
        return None if group is None else self._group_limits.get((group, "publish"))

    def depends_on_principal(self, topic: bytes) -> bool:
        """Whether only the principal determines that topic's group."""
        return self._resolve_group(topic)[1]

    def principal_publish_limit(self, principal: str, now: float) -> GroupLimit | None:
        """The group of topics whose names determine none, on connections of that principal (User:alice)."""
        group = self._finder.find_group("", principal) if self._finder.by_principal else None
        return None if group is None or group not in self._limits else self.limit_of(group, "publish", now)

    def dispatch_limit(self, topic: bytes, principal: str, now: float) -> GroupLimit | None:
        """The group of fetches from a topic, if the topic is in one."""
        group, by_principal = self._resolve_group(topic)
        if by_principal:
            group = self._finder.find_group("", principal)
        if group is None or group not in self._limits:
            return None
        group_limit = self.limit_of(group, "dispatch", now)
        group_limit.topics.add(topic)
        return group_limit

    def _resolve_group(self, topic: bytes) -> tuple[str | None, bool]:
        """The group that the topic's name determines, and whether the principal determines it instead."""
        found = self._groups_by_topic.get(topic)
        if found is None:
            name = topic.decode("utf-8", "replace")
            group, by_principal = None, False
            if topic not in self._internal:
                group = self._finder.find_group(name, "")
                if group is None and self._finder.by_principal:
                    by_principal = self._finder.find_namespace(name, "") is None
            if len(self._groups_by_topic) >= MAX_TOPIC_NAMES:
                self._groups_by_topic.clear()
            found = self._groups_by_topic[topic] = group if group in self._limits else None, by_principal
        return found

    def limit_of(self, group: str, direction: Direction, now: float) -> GroupLimit:
        """The group in that direction, made if it was not used yet."""
        group_limit = self._group_limits.get((group, direction))
        if group_limit is None:
            group_limit = self._group_limits[group, direction] = GroupLimit(group, direction, now)
            self._set_limits(group_limit, now)
        return group_limit

    def _set_limits(self, group_limit: GroupLimit, now: float) -> None:
        group_limit.observes = self.observes
        group_limit.byte_limiter = self._make_limiter(group_limit, group_limit.byte_limiter, "bytes", now)
        group_limit.message_limiter = self._make_limiter(group_limit, group_limit.message_limiter, "msgs", now)

    def _make_limiter(
        self, group_limit: GroupLimit, limiter: FleetLimiter | None, unit: LimitUnit, now: float
    ) -> FleetLimiter | None:
        limit = self._limits[group_limit.group].rate_of(group_limit.direction, unit)
        factor = self._storage_factor if group_limit.direction == "publish" else 1.0
        if limit is None:
            return None
        if limiter is None:
            # A group's tenants are strangers to each other: what one of them takes at once must not stall the others.
            least = MIN_RATE if unit == "bytes" else MIN_MSGS
            return FleetLimiter(
                self.fleet, group_key(group_limit.group, group_limit.direction, unit), limit, factor, now, least
            )
        if (limit, factor) != (limiter.limit, limiter.factor):
            limiter.set_limit(limit, factor, now)
        return limiter

    # --- what happens -------------------------------------------------------------------------------------------------

    def pace_limits(self, now: float) -> None:
        """Charge the limiters for the bytes that were counted without asking, and find the groups whose topics have to
        ask.
        """
        looks = MAX_UPDATES
        for _ in range(len(self._queue)):
            group_limit = self._queue.popleft()
            looks -= 1 + len(group_limit.active_topics)
            self._update_group(group_limit, now)
            if group_limit.active_topics:
                self._queue.append(group_limit)
            else:
                group_limit.is_queued = False
            if looks <= 0:
                return

    def close_tick(self, now: float) -> None:
        """Close the meters' tick."""
        for group_limit in self._queue:
            self._charge_counted(group_limit, now)
        for group_limit in self._group_limits.values():
            group_limit.byte_meter.tick(now)
            group_limit.message_meter.tick(now)
            group_limit.topic_count = len(group_limit.topics)
            group_limit.topics = {meter.name for meter in group_limit.active_topics}

    def collect_rates(self, now: float) -> list[GroupRate]:
        """The state of every group in use."""
        return [group_limit.read_rate(now) for group_limit in self._group_limits.values()]

    def _update_group(self, group_limit: GroupLimit, now: float) -> None:
        self._charge_counted(group_limit, now)
        quiet = [meter for meter, used in group_limit.active_topics.items() if now - used > IDLE_S]
        for meter in quiet:
            del group_limit.active_topics[meter]
            meter.set_group_credit(ALWAYS_ASK)
        for limiter in group_limit.limiters:
            limiter.topics = len(group_limit.active_topics)
        asks = group_limit.is_short_of_credit(now)
        if asks != group_limit.asks_always or group_limit.is_stale:
            self._set_asking(group_limit, asks, now)

    def _set_asking(self, group_limit: GroupLimit, asks: bool, now: float) -> None:
        """Whether all topics of a group have to ask from now on."""
        group_limit.asks_always, group_limit.is_stale = asks, False
        credit = ALWAYS_ASK if asks else group_limit.saved_bytes(now) / self.fleet.worker_count
        for meter in group_limit.active_topics:
            meter.set_group_credit(credit / len(group_limit.active_topics))

    def _extend_credit(self, group_limit: GroupLimit, meter: TopicMeter, now: float) -> bool:
        """A topic has used up the bytes that it might take without asking: whether the group has more for it. It may
        then take twice as much, as long as the group has that much.
        """
        size, messages = meter.uncounted - meter.counted_in_group, meter.messages
        meter.counted_in_group, meter.messages = meter.uncounted, 0
        if size or messages:
            group_limit.active_topics[meter] = now
            group_limit.charge_counted(size, messages, now)
        if group_limit.is_short_of_credit(now):
            self._set_asking(group_limit, True, now)
            return False
        credit = group_limit.saved_bytes(now) / self.fleet.worker_count
        meter.set_group_credit(min(credit, max(2.0 * size, credit / len(group_limit.active_topics))))
        return True

    def _charge_counted(self, group_limit: GroupLimit, now: float) -> None:
        size = messages = 0
        for meter in group_limit.active_topics:
            taken = meter.uncounted - meter.counted_in_group
            if taken or meter.messages:
                size += taken
                messages += meter.messages
                meter.counted_in_group, meter.messages = meter.uncounted, 0
                group_limit.active_topics[meter] = now
        if size or messages or group_limit.refunded_bytes or group_limit.refunded_messages:
            group_limit.charge_counted(size, messages, now)


def _no_wakeup() -> None:
    """The callback where there is no pacer to wake."""
