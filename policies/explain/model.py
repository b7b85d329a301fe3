# The facts known when somebody asks why traffic is held back, and the parts of the answer. Utilization is rate by
# limit, not capped, NaN where there is no limit or nothing is known (KIP-1373). Decides nothing.

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from policies.engine import BrokerRate, Mode, OnExceed
from policies.explain.wording import amount_text
from policies.fleet.keys import FleetKey
from policies.groups.finder import Finder
from policies.groups.lines import GroupRate
from policies.policy_set import PolicySet
from policies.policy_values import Setting
from policies.quotas.lines import QuotaRate
from policies.quotas.store import Effective, QuotaStore
from policies.rollout import Rollout
from policies.storage import Affected, Factor

Action = Literal["refuse", "hold", "reject", "delay"]  # refuse: for good, whatever the limits say
Traffic = Literal["produce", "fetch", "both"]

PLUGIN: Final = "plugin"
BROKER_QUOTA: Final = "broker-quota"  # a client quota that brokers enforce
BROKERS: Final = "brokers"  # where such a quota is from
ANONYMOUS: Final = "ANONYMOUS"  # as Kafka calls the user of a connection that has not authenticated

# --- what is known ----------------------------------------------------------------------------------------------------


class FleetUse(NamedTuple):
    """One limit that holds over all gateways, per second. `rate`: taken by all of them; `part`: granted to this one;
    None: not known.
    """

    rate: float | None = None
    part: float | None = None


class Rates(NamedTuple):
    """The last rates of the meters. `partial`: there are more client quotas at work than `quotas` has."""

    brokers: Sequence[BrokerRate] = ()
    quotas: Sequence[QuotaRate] = ()
    partial: bool = False
    groups: Sequence[GroupRate] = ()
    fleet: Mapping[FleetKey, FleetUse] = {}


class Held(NamedTuple):
    """Rejections and delays of one client's data for a topic, enforced or only observed (policies.usage), summed up."""

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
    part of it. `would`: rejected or delayed if observed limits were enforced.
    """

    accepted: float = 0.0
    rejected: float = 0.0
    delayed: float = 0.0
    would: float = 0.0


class Known(NamedTuple):
    """All that explains. `leads`: topics of which a broker leads a partition, as metadata says.

    `base`: the origin of policies that were not changed at run time. `observe`: nothing at all is enforced.
    """

    policies: PolicySet = PolicySet()
    base: str = "file"
    leads: Mapping[int, Collection[str]] = {}
    rates: Rates = Rates()
    storage: Factor | None = None  # None: storage protection is off
    storage_mode: Mode = "enforce"
    affected: Sequence[Affected] | None = None  # the topics that the storage factor is about; None: all
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
    finder: Finder | None = None  # of groups
    group_mode: Mode = "enforce"
    broker_quotas: QuotaStore = QuotaStore()  # which the brokers enforce themselves
    broker_quotas_problem: str = ""  # why they are not known
    rollout: Rollout = Rollout()  # of policies in mode enforce
    rollout_key: bytes = b""


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
        amount = amount_text(self.unit)
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


def observes(known: Known, mode: Mode) -> bool:
    return known.observe or mode == "observe"


def sortable(ratio: float) -> float:
    return -1.0 if math.isnan(ratio) else ratio


def produce_factor(known: Known) -> float:
    """The factor of every produce limit just now; 0: nothing is forwarded. 1 where storage holds some topics only."""
    storage = known.storage
    if storage is None or known.affected is not None or observes(known, known.storage_mode):
        return 1.0
    return min(1.0, max(0.0, storage.value))


def in_force(known: Known, found: Effective) -> float:
    """An effective quota times the storage factor, if it is about bytes that are produced. Shares are parts of a total,
    and the factor lowers that.
    """
    produces = found.key.type == "producer_byte_rate" and found.key.unit != "shares"
    return found.value * produce_factor(known) if produces else found.value


def quotas_percent(known: Known) -> float:
    """The percentage of clients for whom the gateway enforces client quotas; 0: it only observes."""
    return 0.0 if observes(known, known.quota_mode) else known.rollout.quota


def origin_of(setting: Setting | None, base: str) -> str:
    """The origin of the value in force; "" for none."""
    if setting is None:
        return ""
    return base if setting.change is None else "run time"
