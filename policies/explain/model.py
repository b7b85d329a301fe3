# The facts by which `explain` says why traffic is held back, and the parts of the answer. Utilization is rate by
# limit, not capped, NaN where there is no limit or nothing is known (KIP-1373). Decides nothing.

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicySetting
from policies.definitions.rollout import PolicyRollout
from policies.engine import BrokerRate, Mode, OnExceed
from policies.explain.wording import amount_text
from policies.fleet.keys import FleetKey
from policies.groups.finder import GroupResolver
from policies.groups.group_limiters import GroupRate
from policies.limits.limit_use import limit_utilization
from policies.meters.broker_meters import PeerTraffic
from policies.quotas.quota_limiters import QuotaRate
from policies.quotas.store import QuotaStore, ResolvedQuota
from policies.storage import AffectedTopics, StorageFactor
from policies.text import one_line

Action = Literal["refuse", "hold", "reject", "delay"]  # refuse: for good, whatever the limits say
Traffic = Literal["produce", "fetch", "both"]

PLUGIN: Final = "plugin"
BROKER_QUOTA: Final = "broker-quota"  # a client quota that brokers enforce
FROM_BROKERS: Final = "brokers"  # where such a quota is from
MAX_NAMED: Final = 3  # gateways in a text
MIN_SHOWN_WAIT_S: Final = 0.05  # shown as 0.1 s
ANONYMOUS: Final = "ANONYMOUS"  # as Kafka calls the user of a connection that has not authenticated

# --- what is known ----------------------------------------------------------------------------------------------------


class FleetUse(NamedTuple):
    """One limit that holds over several gateways, per second. `part`: granted to this one, None: not known. `others`:
    taken by other gateways, by name, as this one counts it when it deals parts out. `gateways`: that share it.
    """

    part: float | None = None
    others: Mapping[str, float] = {}
    gateways: int = 1

    def scaled_by(self, factor: float) -> FleetUse:
        """The same of a limit that the storage factor makes smaller."""
        if factor == 1.0:
            return self
        part = None if self.part is None else self.part * factor
        return FleetUse(part, {name: rate * factor for name, rate in self.others.items()}, self.gateways)


NOT_SHARED: Final = FleetUse()


class MeterRates(NamedTuple):
    """The last rates of the meters. `partial`: there are more client quotas at work than `quotas` has. `fleet`: limits
    that gateways share; `peer_rates`: bytes per second that others bring to a broker, and to a topic there;
    `peer_traffic`: the same of all topics, by all others together.
    """

    brokers: Sequence[BrokerRate] = ()
    quotas: Sequence[QuotaRate] = ()
    partial: bool = False
    groups: Sequence[GroupRate] = ()
    fleet: Mapping[FleetKey, FleetUse] = {}
    peer_rates: Mapping[tuple[int, str | None], FleetUse] = {}
    peer_traffic: Mapping[int, PeerTraffic] = {}


class HeldTraffic(NamedTuple):
    """Rejections and delays of one client's data for a topic, enforced or only observed (policies.usage), summed up.

    `since_ms`: the time at which they began to follow each other without a pause of LATELY_MS; it may be long before
    `first_ms`, that of the first one in the sums.
    """

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
    since_ms: int


class TopicFlow(NamedTuple):
    """Bytes per second of a topic, of the last few seconds. `accepted`: forwarded with acks=0 included; `delayed` is
    part of it. `would`: rejected or delayed if observed limits were enforced.
    """

    accepted: float = 0.0
    rejected: float = 0.0
    delayed: float = 0.0
    would: float = 0.0

    def combined_with(self, other: TopicFlow) -> TopicFlow:
        return TopicFlow(*(one + more for one, more in zip(self, other, strict=True)))


class ExplainSubject(NamedTuple):
    """`broker` None: all that lead a partition of the topic."""

    topic: str
    user: str = ANONYMOUS
    client_id: str = ""
    broker: int | None = None

    @property
    def principal(self) -> str:
        return f"User:{self.user}"


class ExplainInputs(NamedTuple):
    """All that explains. `led_topics`: topics of which a broker leads a partition, as metadata says.

    `base`: the origin of policies that were not changed at run time. `observe`: nothing at all is enforced.
    """

    policies: PolicySet = PolicySet()
    base: str = "file"
    led_topics: Mapping[int, Collection[str]] = {}
    rates: MeterRates = MeterRates()
    storage: StorageFactor | None = None  # None: storage protection is off
    storage_mode: Mode = "enforce"
    affected: Sequence[AffectedTopics] | None = None  # the topics that the storage factor is about; None: all
    on_exceed: OnExceed = "reject"
    burst_s: float = 0.0  # of thresholds that reject
    threshold_mode: Mode = "enforce"
    quota_mode: Mode = "enforce"
    observe: bool = False
    internal_principals: Collection[str] = ()
    internal_client_ids: Collection[str] = ()
    protected_topics: Collection[str] = ()
    plugins: Sequence[str] = ()
    now_ms: int = 0
    finder: GroupResolver | None = None  # of groups
    group_mode: Mode = "enforce"
    broker_quotas: QuotaStore = QuotaStore()  # which the brokers enforce themselves
    broker_quotas_problem: str = ""  # why they are not known
    rollout: PolicyRollout = PolicyRollout()  # of policies in mode enforce
    rollout_key: bytes = b""

    def topic_leaders(self, topic: str) -> tuple[int, ...]:
        """Brokers that lead a partition of it."""
        return tuple(sorted(node for node, topics in self.led_topics.items() if topic in topics))

    def subject_brokers(self, asked: ExplainSubject) -> tuple[int | None, ...]:
        """Those that the question is about; None: of an unknown one."""
        if asked.broker is not None:
            return (asked.broker,)
        measured = {broker.node_id for broker in self.rates.brokers}
        return self.topic_leaders(asked.topic) or tuple(sorted({*self.led_topics, *measured})) or (None,)


# --- what is said -----------------------------------------------------------------------------------------------------


class LimitLevel(NamedTuple):
    """One number that a rule compares a rate with.

    `configured`: as it is set, before the storage factor and before parts are dealt out; `whole`: in force over all
    gateways together; `limit`: in force here, by which this gateway decides; None where there is none. `rate`: compared
    with `limit`, None: not known. `here`: the part of `rate` that passes here, where others' is in it. `wait_s`: until
    the bucket's debt is paid. `unit`: of all numbers but that.
    """

    what: str
    origin: str
    configured: float | None
    limit: float | None
    rate: float | None
    unit: str = "bytes/s"
    wait_s: float = 0.0
    whole: float | None = None
    here: float | None = None
    fleet: FleetUse = NOT_SHARED

    @property
    def utilization(self) -> float:
        return limit_utilization(self.rate, self.limit)

    @property
    def used_here(self) -> float | None:
        """Per second; None: not known."""
        return self.rate if self.here is None else self.here

    @property
    def fleet_used(self) -> float | None:
        """Per second, by all gateways together; None: not known."""
        if self.rate is None or self.here is not None:
            return self.rate
        return self.rate + math.fsum(self.fleet.others.values())

    @property
    def headroom(self) -> float | None:
        """By how much the traffic here can grow: up to this gateway's part, and as far as others leave it more."""
        if self.limit is None or self.unit != "bytes/s":
            return None
        own = self.limit - (self.rate or 0.0)
        return (
            own if self.whole is None or self.fleet.gateways == 1 else max(own, self.whole - (self.fleet_used or 0.0))
        )

    @property
    def text(self) -> str:
        held = f"; held {self.wait_s:.1f} s" if self.wait_s >= MIN_SHOWN_WAIT_S else ""
        return self._rates_text() + held

    def _rates_text(self) -> str:
        amount = amount_text(self.unit)
        limit = "no limit" if self.limit is None else amount(self.limit)
        if self.rate is None:
            return f"{limit}, nothing known of its rate"
        if self.limit is None:
            return f"{amount(self.rate)}, no limit"
        percent = "" if math.isnan(self.utilization) else f" ({self.utilization:.0%})"
        if self.fleet.gateways == 1 or self.whole is None:
            return f"{amount(self.rate)} of {limit}{percent}"
        used = f"{amount(self.whole)} over {self.fleet.gateways} gateways: {amount(self.fleet_used or 0.0)} used"
        by = ", ".join((f"{amount(self.used_here or 0.0)} here", *self._others_text(amount)))
        if self.here is not None:  # the sum is what decides
            return f"{used}{percent} ({by})"
        return f"{used} ({by}), the part of this gateway is now {limit}{percent}"

    def _others_text(self, amount: Callable[[float], str]) -> Iterator[str]:
        """The gateways that take most; those that take nothing are left out."""
        busy = sorted(((rate, name) for name, rate in self.fleet.others.items() if rate > 0), reverse=True)
        for rate, name in busy[:MAX_NAMED]:
            yield f"{amount(rate)} at {one_line(name)}"
        if left := [rate for rate, _ in busy[MAX_NAMED:]]:
            yield f"{amount(math.fsum(left))} at {len(left)} more"


class ExplainedRule(NamedTuple):
    """A rule that looks at the traffic.

    `name`: the reason in answers, metrics and usage log. `broker` None: all brokers together. `levels`: it binds when
    every one of them is exceeded; none: it doesn't go by a rate. `limits_now`: it does so just now, and this traffic
    `since_ms` (Unix time; None: others only). `first`: of all enforced rules the one that limits, or else the one that
    is nearest to it.
    """

    name: str
    broker: int | None
    levels: tuple[LimitLevel, ...]
    action: Action
    traffic: Traffic
    mode: Mode
    limits_now: bool
    note: str = ""
    first: bool = False
    since_ms: int | None = None

    @property
    def utilization(self) -> float:
        """Of the level that is exceeded last."""
        found = [level.utilization for level in self.levels]
        return math.nan if not found or any(map(math.isnan, found)) else min(found)

    @property
    def headroom(self) -> float | None:
        """Bytes per second by which this traffic can grow before the rule binds; None: not known."""
        if not self.levels or any(level.limit is None or level.unit != "bytes/s" for level in self.levels):
            return None
        return max(level.headroom or 0.0 for level in self.levels)

    @property
    def text(self) -> str:
        if not self.levels:
            return self.note
        said = " and ".join(f"{level.what}: {level.text}" for level in self.levels)
        return f"{said}; {self.note}" if self.note else said


class ShadowedRule(NamedTuple):
    """A rule, or a value of one, that says nothing about the traffic. `value` None: it has none."""

    name: str
    broker: int | None
    what: str
    origin: str
    value: str
    why: str


class TrafficExplanation(NamedTuple):
    """`internal`: why the traffic is metered and never limited, "" for most. `held`: newest first."""

    subject: ExplainSubject
    brokers: tuple[int, ...]
    summary: str
    storage: str
    internal: str
    rules: tuple[ExplainedRule, ...]
    shadowed: tuple[ShadowedRule, ...]
    held: tuple[HeldTraffic, ...]
    notes: tuple[str, ...]

    @property
    def first_rule(self) -> ExplainedRule | None:
        return next((rule for rule in self.rules if rule.first), None)


class TopicStatus(NamedTuple):
    """One topic over all its brokers and all gateways.

    `threshold`: on the broker where its utilization is highest, `on`; None = none; in force there. `kind`: explicit,
    implicit, or none. `rate`: one-minute rate of all brokers, `elsewhere`: the part of it that other gateways bring.
    `over`: rejected or delayed somewhere by its threshold. `flow`: through all gateways.
    """

    topic: str
    brokers: tuple[int, ...]
    kind: str
    origin: str
    on: int | None
    threshold: float | None
    rate: float
    elsewhere: float
    utilization: float
    over: bool
    flow: TopicFlow


def observes_only(known: ExplainInputs, mode: Mode) -> bool:
    return known.observe or mode == "observe"


def sortable_ratio(ratio: float) -> float:
    return -1.0 if math.isnan(ratio) else ratio


def produce_factor(known: ExplainInputs) -> float:
    """The factor of every produce limit just now; 0: nothing is forwarded. 1 where storage holds some topics only."""
    storage = known.storage
    if storage is None or known.affected is not None or observes_only(known, known.storage_mode):
        return 1.0
    return min(1.0, max(0.0, storage.value))


def quota_in_force(known: ExplainInputs, found: ResolvedQuota) -> float:
    """An effective quota times the storage factor, if it is about bytes that are produced. Shares are parts of a total,
    and the factor lowers that.
    """
    produces = found.key.type == "producer_byte_rate" and found.key.unit != "shares"
    return found.value * produce_factor(known) if produces else found.value


def quota_rollout_percent(known: ExplainInputs) -> float:
    """The percentage of clients for whom the gateway enforces client quotas; 0: it only observes."""
    return 0.0 if observes_only(known, known.quota_mode) else known.rollout.quota


def origin_of(setting: PolicySetting | None, base: str) -> str:
    """The origin of the value in force; "" for none."""
    if setting is None:
        return ""
    return base if setting.change is None else "run time"
