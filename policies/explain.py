# Why traffic is or is not held back: every rule that looks at a topic, user and client id, limits in the order in which
# they are asked (decision.Limits), each with its limit, the rate against it, and which of them binds first; and which
# rules say nothing about it, and why.
#
# It decides nothing: it puts what others know (policies, storage factor, rates, what was rejected) beside each other by
# the rules of broker_meters.py, quotas/lines.py and groups/lines.py. Knows no clock and no process: `now_ms` is Unix
# time. Utilization is rate by limit, not capped, NaN where there is no limit or nothing is known (KIP-1373).

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final, Literal, NamedTuple

from policies.decision import STRICTNESS, Limits
from policies.engine import INTERNAL_TOPICS, BrokerRate, Mode, OnExceed, TopicRate
from policies.fleet.keys import Direction, FleetKey, group_key
from policies.groups.finder import Finder
from policies.groups.lines import GroupRate
from policies.groups.names import ATTACHMENT_KEY, GROUP_KEYS, MEANS, rate_text
from policies.policy_set import PolicyKey, PolicySet, Setting, as_number, value_text
from policies.quotas.lines import UNDEALT, QuotaRate
from policies.quotas.names import Default, Entity
from policies.quotas.store import Effective
from policies.quotas.text import entity_text, quota_text
from policies.storage import Factor
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY
from policies.units import exact_rate, format_rate
from policies.verdict import (
    CLIENT_QUOTA,
    FENCE,
    PROTECTED_TOPIC,
    RESOURCE_GROUP,
    STORAGE_PAUSE,
    STORAGE_THROTTLE,
    TOPIC_THRESHOLD,
)

Action = Literal["refuse", "hold", "reject", "delay"]  # refuse: for good, whatever the limits say
Traffic = Literal["produce", "fetch", "both"]
By = Literal["rate", "rejected", "utilization"]

PLUGIN: Final = "plugin"
ANONYMOUS: Final = "ANONYMOUS"  # as Kafka calls the user of a connection that has not authenticated
LATELY_MS: Final = 10_000  # what was rejected or delayed no longer ago is so now: as long as one wait may last
MAX_HELD: Final = 100


# --- what is known ----------------------------------------------------------------------------------------------------


class FleetUse(NamedTuple):
    """One limit that holds over all gateways, per second. `rate`: what all of them take; `part`: what this one may
    take; None: not known.
    """

    rate: float | None = None
    part: float | None = None


class Rates(NamedTuple):
    """What the meters said last. `partial`: there are more client quotas at work than `quotas` has."""

    brokers: Sequence[BrokerRate] = ()
    quotas: Sequence[QuotaRate] = ()
    partial: bool = False
    groups: Sequence[GroupRate] = ()
    fleet: Mapping[FleetKey, FleetUse] = {}


class Held(NamedTuple):
    """What was rejected or delayed of one client's data for a topic, or would have been (policies.usage), summed up."""

    topic: str
    principal: str
    client_id: str
    broker: int  # -1: not known
    outcome: str
    reason: str
    first_ms: int  # Unix time
    last_ms: int
    bytes: int
    requests: int
    delay_ms: int  # over all requests


class Flow(NamedTuple):
    """Bytes per second of a topic, of the last few seconds. `accepted`: forwarded with acks=0 included; `delayed` is
    part of it. `would`: what would have been rejected or delayed by what is only observed.
    """

    accepted: float = 0.0
    rejected: float = 0.0
    delayed: float = 0.0
    would: float = 0.0


class Known(NamedTuple):
    """All that explains. `leads`: topics of which a broker leads a partition, as metadata says; `gone`: deleted ones.

    `base`: what policies that were not changed at run time come from. `observe`: nothing at all is enforced.
    """

    policies: PolicySet = PolicySet()
    base: str = "file"
    leads: Mapping[int, Collection[str]] = {}
    gone: Set[str] = frozenset()
    rates: Rates = Rates()
    storage: Factor | None = None  # None: storage protection is off
    storage_mode: Mode = "enforce"
    on_exceed: OnExceed = "reject"
    threshold_mode: Mode = "enforce"
    quota_mode: Mode = "enforce"
    observe: bool = False
    internal_principals: Collection[str] = ()
    internal_client_ids: Collection[str] = ()
    protected_topics: Collection[str] = ()
    plugins: Sequence[str] = ()
    now_ms: int = 0
    finder: Finder | None = None  # of groups
    group_mode: Mode = "enforce"


# --- what is said -----------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """`broker` None: all that lead a partition of the topic."""

    topic: str
    user: str = ANONYMOUS
    client_id: str = ""
    broker: int | None = None

    @property
    def principal(self) -> str:
        return f"User:{self.user}"


class Level(NamedTuple):
    """One number that a rule compares a rate with.

    `configured`: before the storage factor and before shares are dealt out; `limit`: in force; both None where there is
    none. `rate` None: not known. `unit`: of all three.
    """

    what: str
    origin: str
    configured: float | None
    limit: float | None
    rate: float | None
    unit: str = "bytes/s"

    @property
    def utilization(self) -> float:
        return utilization(self.rate, self.limit)

    @property
    def text(self) -> str:
        amount = _AMOUNTS.get(self.unit, format_rate)
        limit = "no limit" if self.limit is None else amount(self.limit)
        if self.rate is None:
            return f"{limit}, nothing known of its rate"
        used = "" if math.isnan(self.utilization) else f" ({self.utilization:.0%})"
        return f"{amount(self.rate)} of {limit}{used}" if self.limit is not None else f"{amount(self.rate)}, no limit"


class Rule(NamedTuple):
    """A rule that looks at the traffic.

    `name`: the reason in answers, metrics and usage log. `broker` None: all brokers together. `levels`: it binds when
    every one of them is exceeded; none: it doesn't go by a rate. `limits_now`: it does so just now. `first`: of all
    enforced rules the one that limits, or else the one that is nearest to it.
    """

    name: str
    broker: int | None
    levels: tuple[Level, ...]
    action: Action
    traffic: Traffic
    mode: Mode
    limits_now: bool
    note: str = ""
    first: bool = False

    @property
    def utilization(self) -> float:
        """Of the level that is exceeded last."""
        found = [level.utilization for level in self.levels]
        return math.nan if not found or any(map(math.isnan, found)) else min(found)

    @property
    def headroom(self) -> float | None:
        """Bytes per second by which this traffic can grow before the rule binds; None where it can't be told."""
        if not self.levels or any(level.limit is None or level.unit != "bytes/s" for level in self.levels):
            return None
        return max((level.limit or 0.0) - (level.rate or 0.0) for level in self.levels)

    @property
    def text(self) -> str:
        if not self.levels:
            return self.note
        said = " and ".join(f"{level.what}: {level.text}" for level in self.levels)
        return f"{said}; {self.note}" if self.note else said


class Shadowed(NamedTuple):
    """A rule, or a value of one, that says nothing about the traffic. `value` None: it has none."""

    name: str
    broker: int | None
    what: str
    origin: str
    value: str
    why: str


class Explanation(NamedTuple):
    """`internal`: why the traffic is metered and never limited, "" for most. `held`: newest first."""

    asked: Asked
    brokers: tuple[int, ...]
    summary: str
    storage: str
    internal: str
    rules: tuple[Rule, ...]
    shadowed: tuple[Shadowed, ...]
    held: tuple[Held, ...]
    notes: tuple[str, ...]

    @property
    def first(self) -> Rule | None:
        return next((rule for rule in self.rules if rule.first), None)


class TopicLine(NamedTuple):
    """One topic over all its brokers.

    `threshold`: on the broker where its utilization is highest, `on`; None = none; in force there. `kind`: explicit,
    implicit, or none. `rate`: one-minute rate of all brokers. `over`: rejected or delayed somewhere by its threshold.
    """

    topic: str
    brokers: tuple[int, ...]
    kind: str
    origin: str
    on: int | None
    threshold: float | None
    rate: float
    utilization: float
    over: bool
    flow: Flow


def utilization(rate: float | None, limit: float | None) -> float:
    """KIP-1373, as a ratio."""
    if rate is None or limit is None:
        return math.nan
    if limit <= 0:
        return math.inf if rate > 0 else 0.0
    return rate / limit


def explain(asked: Asked, known: Known, held: Iterable[Held] = ()) -> Explanation:
    """`held`: of this traffic, in any order."""
    lately = sorted(held, key=lambda each: each.last_ms, reverse=True)[:MAX_HELD]
    made = _Explaining(asked, known, lately)
    rules, shadowed = made.rules(), made.shadowed
    internal = _why_internal(asked, known)
    if internal:
        kept = [rule for rule in rules if rule.name == PROTECTED_TOPIC]
        shadowed = [*(_silenced(rule, internal) for rule in rules if rule.name != PROTECTED_TOPIC), *shadowed]
        rules = kept
    first = _first(rules)
    rules = [rule._replace(first=rule is first) for rule in rules]
    summary = _summary(next((rule for rule in rules if rule.first), None), internal, rules)
    return Explanation(
        asked,
        tuple(broker for broker in made.brokers if broker is not None),
        summary,
        storage_effect(known),
        internal,
        tuple(rules),
        tuple(shadowed),
        tuple(lately),
        tuple(made.notes()),
    )


def produce_factor(known: Known) -> float:
    """What every produce limit is multiplied by just now; 0: nothing is forwarded."""
    storage = known.storage
    return 1.0 if storage is None or _observes(known, known.storage_mode) else min(1.0, max(0.0, storage.value))


def in_force(known: Known, found: Effective) -> float:
    """An effective quota times the storage factor, if it is about bytes that are produced. Shares are parts of a total,
    which is what the factor lowers.
    """
    produces = found.key.type == "producer_byte_rate" and found.key.unit != "shares"
    return found.value * produce_factor(known) if produces else found.value


def storage_effect(known: Known) -> str:
    """What the storage factor does to produce limits, one line."""
    storage = known.storage
    if storage is None:
        return "storage protection is off: full disks change no limit"
    origin = "" if storage.origin == "valid" else f" ({storage.origin})"
    why = f": {storage.why}" if storage.why else ""
    if storage.value >= 1:
        return f"OPEN{origin}: every limit holds as it is configured{why}"
    seen = ""
    if _observes(known, known.storage_mode):
        seen = ", mode observe: limits stay as they are, it is only counted"
    if storage.state == "PAUSE":
        return f"PAUSE{origin}, factor 0: nothing is forwarded{seen}{why}"
    return f"THROTTLE{origin}, every produce limit x {storage.value:.3g}{seen}{why}"


# --- all rules --------------------------------------------------------------------------------------------------------


class _Explaining:
    """One explanation in the making: rules are returned, what is shadowed is noted on the way."""

    def __init__(self, asked: Asked, known: Known, held: Sequence[Held]) -> None:
        self.asked = asked
        self.known = known
        self.shadowed: list[Shadowed] = []
        self._rates = {broker.node_id: broker for broker in known.rates.brokers}
        self._lines = {
            (line.key, line.source, line.user, line.client_id, line.broker): line for line in known.rates.quotas
        }
        self._settings = {setting.key: setting for setting in known.policies.settings()}
        self._held = [each for each in held if known.now_ms - each.last_ms <= LATELY_MS]
        self._leaders = tuple(sorted(node for node, topics in known.leads.items() if asked.topic in topics))
        self.brokers: tuple[int | None, ...] = self._find_brokers()
        storage = known.storage
        enforced = storage is not None and not _observes(known, known.storage_mode)
        self._scale = storage.value if storage is not None and enforced and 0 < storage.value < 1 else 1.0

    def _find_brokers(self) -> tuple[int | None, ...]:
        if self.asked.broker is not None:
            return (self.asked.broker,)
        return self._leaders or tuple(sorted({*self.known.leads, *self._rates})) or (None,)

    def rules(self) -> list[Rule]:
        limits: dict[str, Callable[[], Iterator[Rule]]] = {
            "storage": self._of_storage,
            "quota": self._quotas,
            "group": self._groups,
            "threshold": self._thresholds,
            "plugin": self._plugins,
        }
        asked = [rule for kind in Limits._fields for rule in limits[kind]()]
        return [*self._protected(), *asked, self._fence()]

    def notes(self) -> Iterator[str]:
        asked, known = self.asked, self.known
        if known.observe:
            yield "mode observe: nothing is enforced, all of it is only counted"
        if known.leads and not self._leaders:
            yield f"metadata knows no topic {asked.topic}: it is explained as if every broker led a part of it"
        elif self._leaders and asked.broker is not None and asked.broker not in self._leaders:
            yield (
                f"broker {asked.broker} leads no partition of topic {asked.topic}:"
                f" {', '.join(map(str, self._leaders))} {'does' if len(self._leaders) == 1 else 'do'}"
            )
        if note := self._without_group():
            yield note
        if known.rates.partial:
            yield (
                f"rates are known of the {len(known.rates.quotas):,} busiest client quotas only: one that is not among"
                " them may limit as well"
            )
        if not known.rates.brokers:
            yield "no rates are known yet: the meters speak every 5 seconds"

    # --- storage, and what is refused for good ------------------------------------------------------------------------

    def _protected(self) -> Iterator[Rule]:
        if self.asked.topic in self.known.protected_topics:
            note = "the topic is the gateway's own: clients may not produce to it, whoever they are"
            yield Rule(PROTECTED_TOPIC, None, (), "refuse", "produce", "enforce", True, note)

    def _of_storage(self) -> Iterator[Rule]:
        storage = self.known.storage
        if storage is None or storage.value >= 1:
            return
        mode = self._mode(self.known.storage_mode)
        if storage.value <= 0:
            note = f"storage factor 0: requests wait up to 15 s and are then rejected: {storage.why}"
            yield Rule(STORAGE_PAUSE, None, (), "hold", "produce", mode, True, note)
            return
        for broker in self.brokers:
            total = self._total(broker)
            if total is None:
                why = f"there is no {TOTAL_KEY} that the factor {storage.value:.3g} could lower"
                self._shadow(STORAGE_THROTTLE, broker, "storage factor", "storage", f"{storage.value:.3g}", why)
                continue
            what = f"all producers of {_place(broker)} together, {TOTAL_KEY} x {storage.value:.3g}"
            level = Level(what, "storage", total, total * storage.value, self._broker_rate(broker))
            now = level.utilization >= 1 or self._was_held(STORAGE_THROTTLE, broker)
            yield Rule(STORAGE_THROTTLE, broker, (level,), "delay", "produce", mode, now, storage.why)

    def _plugins(self) -> Iterator[Rule]:
        for name in self.known.plugins:
            note = f"{name} is asked about every partition; only it knows its limits"
            now = self._was_held(name, None)
            yield Rule(PLUGIN, None, (), "reject", "produce", self._mode("enforce"), now, note)

    def _fence(self) -> Rule:
        note = "of an idempotent producer: what comes behind a rejected batch, until that one comes again"
        return Rule(FENCE, None, (), "reject", "produce", self._mode("enforce"), self._was_held(FENCE, None), note)

    # --- client quotas ------------------------------------------------------------------------------------------------

    def _quotas(self) -> Iterator[Rule]:
        entity = Entity(self.asked.user, self.asked.client_id)
        for found in self.known.policies.quotas().effective(entity):
            self._note_overridden(found)
            produces = found.key.type == "producer_byte_rate"
            traffic: Traffic = "produce" if produces else "fetch" if found.key.type == "consumer_byte_rate" else "both"
            mode = self._mode(self.known.quota_mode)
            for broker in (None,) if found.key.unit == "bps" else self.brokers:
                if found.key.unit == "shares" and self._total(broker) is None:
                    why = f"there is no {TOTAL_KEY} on {_place(broker)} to have a share of"
                    self._shadow_quota(found.source, found, broker, why)
                    continue
                level, waiting, note = self._quota_level(found, broker)
                yield Rule(CLIENT_QUOTA, broker, (level,), "delay", traffic, mode, waiting, note)

    def _quota_level(self, found: Effective, broker: int | None) -> tuple[Level, bool, str]:
        key, bucket = found.key, found.bucket
        user, client_id = (None if isinstance(name, Default) else name for name in (bucket.user, bucket.client_id))
        line = self._lines.get((str(key), entity_text(found.source), user, client_id, broker))
        what = f"{quota_text(key, found.value)} {entity_text(found.source)}"
        origin = self._origin(PolicyKey.of_quota(found.source, key))
        idle = self.known.rates.brokers and not self.known.rates.partial
        rate = line.rate if line is not None else 0.0 if idle else None
        waiting = line is not None and line.waiting
        if key.unit == "percent":
            percent = None if rate is None else 100 * rate
            return Level(what, origin, found.value, found.value, percent, "%"), waiting, "of one thread's time"
        if key.unit == "shares":
            dealt = None if line is None or line.limit >= UNDEALT else line.limit
            note = (
                f"{found.value:g} shares of what the total of {_place(broker)} leaves, dealt out by who wants how much"
            )
            return Level(what, origin, None, dealt, rate), waiting, note
        scale = self._scale if key.type == "producer_byte_rate" else 1.0
        return Level(what, origin, found.value, found.value * scale, rate), waiting, self._scaled(scale)

    def _note_overridden(self, found: Effective) -> None:
        by = entity_text(found.source)
        for source, value in found.overridden or ():
            self._shadow(
                CLIENT_QUOTA, None, f"{found.key} of {entity_text(source)}",
                self._origin(PolicyKey.of_quota(source, found.key)), quota_text(found.key, value),
                f"{by} is more specific and has {quota_text(found.key, found.value)}",
            )  # fmt: skip
        self._note_base(PolicyKey.of_quota(found.source, found.key), CLIENT_QUOTA, None)

    def _shadow_quota(self, source: Entity, found: Effective, broker: int | None, why: str) -> None:
        origin = self._origin(PolicyKey.of_quota(source, found.key))
        text = quota_text(found.key, found.value)
        self._shadow(CLIENT_QUOTA, broker, f"{found.key} of {entity_text(source)}", origin, text, why)

    # --- resource groups ----------------------------------------------------------------------------------------------

    def _attached(self) -> tuple[PolicyKey | None, PolicyKey | None]:
        """Where groups are attached that this traffic is of: the one that holds, and the tenant's that it replaces."""
        finder, policies = self.known.finder, self.known.policies
        place = None if finder is None else finder.place(self.asked.topic, self.asked.principal)
        if place is None or self.asked.topic in INTERNAL_TOPICS:
            return None, None
        tenant, namespace = PolicyKey.of_tenant(place.tenant), PolicyKey.of_namespace(*place)
        found = [key for key in (namespace, tenant) if key in policies.effective()]
        return (found[0] if found else None), (found[1] if len(found) > 1 else None)

    def _without_group(self) -> str:
        """Why no group is about this traffic, where there are any."""
        finder, policies = self.known.finder, self.known.policies
        if finder is None or not policies.groups() or self._attached()[0] is not None:
            return ""
        if self.asked.topic in INTERNAL_TOPICS:
            return "no resource group: Kafka's internal topics are in none"
        place = finder.place(self.asked.topic, self.asked.principal)
        if place is None:
            return "no resource group: neither the topic's name nor the principal says which tenant it is of"
        if not place.namespace:
            return f"no resource group: none is attached to tenant {place.tenant}"
        namespace = f"{place.tenant}/{place.namespace}"
        return f"no resource group: none is attached to namespace {namespace} or tenant {place.tenant}"

    def _groups(self) -> Iterator[Rule]:
        place, replaced = self._attached()
        if place is None:
            return
        policies = self.known.policies
        group = str(policies.effective()[place])
        self._note_base(place, RESOURCE_GROUP, None)
        if replaced is not None:
            why = f"namespace {place.name} has group {group}, which replaces its tenant's"
            self._shadow_attached(replaced, str(policies.effective()[replaced]), why)
        limits = policies.groups().get(group)
        if not limits:
            why = "there is no such group" if limits is None else "the group has no limits, it is only metered"
            self._shadow_attached(place, group, why)
            return
        for direction in ("publish", "dispatch"):
            yield from self._group_rules(place, group, [key for key in limits if MEANS[key][0] == direction])

    def _group_rules(self, place: PolicyKey, group: str, keys: Sequence[str]) -> Iterator[Rule]:
        """Of one direction. What is known to wait, waits for the limit that is used most."""
        levels = {key: self._group_level(place, group, key) for key in sorted(keys, key=GROUP_KEYS.index)}
        if not levels:
            return
        direction = MEANS[keys[0]][0]
        traffic: Traffic = "produce" if direction == "publish" else "fetch"
        held = direction == "publish" and self._was_held(RESOURCE_GROUP, None)
        waits = held or any(rate.waiting for rate in self._group_rates(group, direction))
        used_most = max(levels, key=lambda key: _sortable(levels[key].utilization))
        for key, level in levels.items():
            self._note_base(PolicyKey.of_group(group, key), RESOURCE_GROUP, None)
            now = waits and key == used_most
            note = self._fleet_note(group, key, level)
            yield Rule(RESOURCE_GROUP, None, (level,), "delay", traffic, self._mode(self.known.group_mode), now, note)

    def _group_rates(self, group: str, direction: Direction) -> list[GroupRate]:
        return [rate for rate in self.known.rates.groups if (rate.group, rate.direction) == (group, direction)]

    def _group_level(self, place: PolicyKey, group: str, key: str) -> Level:
        """Its limit is this gateway's part, as far as that is known."""
        direction, unit = MEANS[key]
        setting = PolicyKey.of_group(group, key)
        configured = self.known.policies.groups()[group][key]
        use = self.known.rates.fleet.get(group_key(group, direction, unit), FleetUse())
        scale = self._scale if direction == "publish" else 1.0
        limit = (configured if use.part is None else use.part) * scale
        rate = 0.0 if self.known.rates.brokers else None
        for measured in self._group_rates(group, direction):
            rate = measured.bytes_rate if unit == "bytes" else measured.msgs_rate
            part = measured.bytes_limit if unit == "bytes" else measured.msgs_limit
            limit = limit if part is None else part
        what = f"{key} of group {group}, attached to {place.kind} {place.name}"
        return Level(
            what, self._origin(setting), configured, limit, rate, "bytes/s" if unit == "bytes" else "messages/s"
        )

    def _fleet_note(self, group: str, key: str, level: Level) -> str:
        direction, unit = MEANS[key]
        use = self.known.rates.fleet.get(group_key(group, direction, unit), FleetUse())
        scaled = self._scaled(self._scale if direction == "publish" else 1.0)
        notes = [scaled] if scaled else []
        if level.configured is not None:
            whole = f"{rate_text(key, level.configured)} for all gateways together"
            notes.append(whole if use.rate is None else f"{whole}, which take {_AMOUNTS[level.unit](use.rate)}")
        return "; ".join(notes)

    def _shadow_attached(self, place: PolicyKey, group: str, why: str) -> None:
        what = f"{ATTACHMENT_KEY} of {place.kind} {place.name}"
        self._shadow(RESOURCE_GROUP, None, what, self._origin(place), group, why)

    # --- thresholds ---------------------------------------------------------------------------------------------------

    def _thresholds(self) -> Iterator[Rule]:
        topic, known = self.asked.topic, self.known
        explicit = known.policies.topics().get(topic)
        if explicit is not None:
            self._note_base(PolicyKey.of_topic(topic), TOPIC_THRESHOLD, None)
        for broker in self.brokers:
            total = self._total(broker)
            self._note_totals(broker)
            share = self._share(broker, total)
            if explicit is not None and total is None:
                why = f"without {TOTAL_KEY} on {_place(broker)} nothing is ever over"
                self._shadow_topic(broker, explicit, why)
            elif explicit is not None and total is not None:
                if share is not None:
                    why = f"the topic has {TOPIC_KEY} of its own"
                    self._shadow(TOPIC_THRESHOLD, broker, "implicit share", "computed", exact_rate(share), why)
                yield self._threshold(broker, total, explicit, self._origin(PolicyKey.of_topic(topic)), TOPIC_KEY)
            elif total is not None and topic in INTERNAL_TOPICS:
                why = "Kafka's internal topics have no implicit threshold"
                self._shadow(TOPIC_THRESHOLD, broker, "implicit share", "computed", "", why)
            elif total is not None and share is not None:
                yield self._threshold(broker, total, share, "computed", "implicit share")

    def _threshold(self, broker: int | None, total: float, limit: float, origin: str, what: str) -> Rule:
        rates = None if broker is None else self._rates.get(broker)
        meter = _topic(rates, self.asked.topic)
        rate = 0.0 if rates is not None and meter is None else None if meter is None else meter.rate
        scale = self._scale
        levels = (
            Level(f"{what} of topic {self.asked.topic}", origin, limit, limit * scale, rate),
            Level(
                f"{TOTAL_KEY} of {_place(broker)}", self._total_origin(broker), total, total * scale,
                self._broker_rate(broker),
            ),
        )  # fmt: skip
        now = (meter is not None and meter.over) or self._was_held(TOPIC_THRESHOLD, broker)
        note = self._scaled(scale) or ("nothing is left of the total to share" if limit == 0 and not origin else "")
        mode = self._mode(self.known.threshold_mode)
        effect: OnExceed = "delay" if scale != 1.0 else self.known.on_exceed  # as the engine does while disks fill up
        return Rule(TOPIC_THRESHOLD, broker, levels, effect, "produce", mode, now, note)

    def _note_totals(self, broker: int | None) -> None:
        own = None if broker is None else self._settings.get(PolicyKey.of_broker(broker))
        default = self._settings.get(PolicyKey.of_broker())
        if own is not None:
            self._note_base(own.key, TOPIC_THRESHOLD, broker)
            if default is not None:
                why = f"broker {broker} has a total of its own, {exact_rate(as_number(own.value))}"
                origin = self._origin(default.key)
                what = f"{TOTAL_KEY} of all brokers"
                self._shadow(TOPIC_THRESHOLD, broker, what, origin, exact_rate(as_number(default.value)), why)
        elif default is not None and broker == self.brokers[0]:
            self._note_base(default.key, TOPIC_THRESHOLD, None)

    def _shadow_topic(self, broker: int | None, value: float, why: str) -> None:
        topic = self.asked.topic
        origin = self._origin(PolicyKey.of_topic(topic))
        self._shadow(TOPIC_THRESHOLD, broker, f"{TOPIC_KEY} of topic {topic}", origin, exact_rate(value), why)

    def _share(self, broker: int | None, total: float | None) -> float | None:
        """What a topic without a threshold gets there, before the storage factor."""
        if total is None:
            return None
        rates = None if broker is None else self._rates.get(broker)
        return share_of(self.known, broker, total, self.asked.topic, rates)

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _total(self, broker: int | None) -> float | None:
        return self.known.policies.total(broker)

    def _total_origin(self, broker: int | None) -> str:
        own = PolicyKey.of_broker(broker)
        return self._origin(own if own in self._settings else PolicyKey.of_broker())

    def _origin(self, key: PolicyKey) -> str:
        return origin_of(self._settings.get(key), self.known.base)

    def _broker_rate(self, broker: int | None) -> float | None:
        rates = None if broker is None else self._rates.get(broker)
        return None if rates is None else rates.rate

    def _was_held(self, reason: str, broker: int | None) -> bool:
        return any(
            each.reason == reason and each.outcome in ("rejected", "delayed") and broker in (None, each.broker)
            for each in self._held
        )

    def _mode(self, mode: Mode) -> Mode:
        return "observe" if _observes(self.known, mode) else "enforce"

    def _scaled(self, scale: float) -> str:
        return "" if scale == 1.0 else f"times the storage factor {scale:.3g}"

    def _note_base(self, key: PolicyKey, name: str, broker: int | None) -> None:
        """The base's value where a change wins over it."""
        setting = self._settings.get(key)
        if setting is not None and setting.change is not None and setting.base not in (None, setting.change):
            assert setting.base is not None
            value = value_text(key, setting.base)
            if key.kind == "quota":
                value = quota_text(key.quota, as_number(setting.base))
            self._shadow(name, broker, str(key), self.known.base, value, "another value was set at run time")

    def _shadow(self, name: str, broker: int | None, what: str, origin: str, value: str, why: str) -> None:
        self.shadowed.append(Shadowed(name, broker, what, origin, value, why))


def share_of(known: Known, broker: int | None, total: float, topic: str, rates: BrokerRate | None) -> float:
    """The implicit threshold of a broker's topics, as BrokerMeters counts them, `topic` being one of its own."""
    explicit = known.policies.topics()
    left = max(0.0, total - math.fsum(known.policies.topics(known.gone).values()))
    names = {*known.leads.get(-1 if broker is None else broker, ()), topic}
    if rates is not None:
        names.update(each.topic for each in rates.topics)
    return left / max(1, sum(1 for name in names if name not in explicit and name not in INTERNAL_TOPICS))


def origin_of(setting: Setting | None, base: str) -> str:
    """Where the value in force comes from; "" for none."""
    if setting is None:
        return ""
    return base if setting.change is None else "run time"


def _topic(rates: BrokerRate | None, topic: str) -> TopicRate | None:
    return None if rates is None else next((each for each in rates.topics if each.topic == topic), None)


def _observes(known: Known, mode: Mode) -> bool:
    return known.observe or mode == "observe"


def _place(broker: int | None) -> str:
    return "each broker" if broker is None else f"broker {broker}"


def _percent(value: float) -> str:
    return f"{value:.3g} %"


def _messages(value: float) -> str:
    return f"{value:,.0f} messages/s" if value >= 10 or value == int(value) else f"{value:.2g} messages/s"


_AMOUNTS: Final[Mapping[str, Callable[[float], str]]] = {
    "%": _percent, "bytes/s": format_rate, "messages/s": _messages,
}  # fmt: skip


# --- which of them ----------------------------------------------------------------------------------------------------


def _why_internal(asked: Asked, known: Known) -> str:
    if asked.principal in known.internal_principals:
        return f"{asked.principal} is an internal principal: metered, never limited"
    if asked.client_id in known.internal_client_ids:
        return f"{asked.client_id!r} is an internal client id: metered, never limited"
    return ""


def _silenced(rule: Rule, why: str) -> Shadowed:
    what = " and ".join(level.what for level in rule.levels) or rule.note
    amounts = {**_AMOUNTS, "bytes/s": exact_rate}
    found = [level for level in rule.levels if level.unit != "%"]
    limits = [amounts[level.unit](level.configured) for level in found if level.configured is not None]
    return Shadowed(rule.name, rule.broker, what, ", ".join(level.origin for level in rule.levels),
                    ", ".join(limits), why)  # fmt: skip


def _first(rules: Sequence[Rule]) -> Rule | None:
    """Of what limits now the strictest, then the one that is exceeded most; else the one with the least headroom.

    A quota on time can't be compared in bytes: it is first when it limits, or where no other can be compared.
    """
    enforced = [rule for rule in rules if rule.mode == "enforce" and rule.traffic != "fetch"]
    binding = [rule for rule in enforced if rule.limits_now]
    if binding:
        return max(binding, key=lambda rule: (STRICTNESS.get(rule.action, math.inf), _sortable(rule.utilization)))
    comparable = [rule for rule in enforced if rule.headroom is not None]
    if comparable:
        return min(comparable, key=lambda rule: (rule.headroom, -_sortable(rule.utilization)))
    return max((rule for rule in enforced if rule.levels), key=lambda rule: _sortable(rule.utilization), default=None)


def _sortable(ratio: float) -> float:
    return -1.0 if math.isnan(ratio) else ratio


def _summary(first: Rule | None, internal: str, rules: Sequence[Rule]) -> str:
    """What is produced, as that is what most ask about, behind what holds this client's Fetch requests back."""
    fetch = [rule for rule in rules if rule.traffic == "fetch" and rule.mode == "enforce" and rule.limits_now]
    if not fetch:
        return _produce_summary(first, internal, rules)
    held = "; ".join(f"{rule.name}{_on(rule)} limits this client's Fetch requests now: {rule.text}" for rule in fetch)
    if first is None:
        return f"{held}; nothing limits what it produces"
    return f"{held}; of what it produces: {_produce_summary(first, internal, rules)}"


def _produce_summary(first: Rule | None, internal: str, rules: Sequence[Rule]) -> str:
    if first is None:
        return internal or "nothing limits this traffic"
    if first.limits_now:
        return f"{first.name}{_on(first)} limits this traffic now: {first.text}"
    others = "" if sum(1 for rule in rules if rule.levels) > 1 else ", the only limit"
    return f"nothing limits this traffic now; {first.name}{_on(first)} would be first{others}: {first.text}"


def _on(rule: Rule) -> str:
    return "" if rule.broker is None else f" on broker {rule.broker}"


# --- topics -----------------------------------------------------------------------------------------------------------


def topics(known: Known, flows: Mapping[str, Flow]) -> list[TopicLine]:
    """Every topic that metadata, meters, thresholds or traffic know, by name."""
    places: dict[str, set[int]] = {}
    for broker, names in known.leads.items():
        for name in names:
            places.setdefault(name, set()).add(broker)
    meters: dict[str, dict[int, TopicRate]] = {}
    for rates in known.rates.brokers:
        for each in rates.topics:
            meters.setdefault(each.topic, {})[rates.node_id] = each
            places.setdefault(each.topic, set()).add(rates.node_id)
    explicit = known.policies.topics()
    settings = {setting.key: setting for setting in known.policies.settings()}
    by_broker = {rates.node_id: rates for rates in known.rates.brokers}
    shares: dict[int, float] = {}
    scale = _scale(known)
    lines = []
    for name in sorted({*places, *explicit, *flows} - {""}):
        best: tuple[float, int | None, float | None] = (math.nan, None, None)
        for broker in sorted(places.get(name, ())):
            meter = meters.get(name, {}).get(broker)
            limit = None if meter is None else meter.threshold
            total = known.policies.total(broker)
            if limit is None and total is not None and (name in explicit or name not in INTERNAL_TOPICS):
                if name not in explicit and broker not in shares:
                    shares[broker] = share_of(known, broker, total, name, by_broker.get(broker))
                limit = (explicit[name] if name in explicit else shares[broker]) * scale
            used = utilization(0.0 if meter is None else meter.rate, limit)
            if best[1] is None or _sortable(used) > _sortable(best[0]):
                best = (used, broker, limit)
        limited = best[2] is not None
        kind = "explicit" if name in explicit else "implicit" if limited else "none"
        key = PolicyKey.of_topic(name)
        lines.append(
            TopicLine(
                name, tuple(sorted(places.get(name, ()))), kind,
                origin_of(settings.get(key), known.base) or ("computed" if limited else ""),
                best[1], best[2] if limited else explicit.get(name),
                math.fsum(meter.rate for meter in meters.get(name, {}).values()), best[0],
                any(meter.over for meter in meters.get(name, {}).values()), flows.get(name, Flow()),
            )
        )  # fmt: skip
    return lines


def top(lines: Iterable[TopicLine], by: By) -> list[TopicLine]:
    """The busiest first: by one-minute rate, by what is rejected just now, or by utilization."""
    keys: dict[By, Callable[[TopicLine], float]] = {
        "rate": lambda line: line.rate,
        "rejected": lambda line: line.flow.rejected,
        "utilization": lambda line: _sortable(line.utilization),
    }
    return sorted(lines, key=lambda line: (-keys[by](line), -line.rate, line.topic))


def _scale(known: Known) -> float:
    factor = produce_factor(known)
    return factor if 0 < factor < 1 else 1.0
