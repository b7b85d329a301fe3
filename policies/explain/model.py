# The facts by which `explain` says why traffic is held back, and the parts of the answer. Decides nothing.

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from policies.decision import Mode
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import BaseOrigin, PolicySetting, file_origin
from policies.definitions.rollout import PolicyRollout
from policies.engine import OnExceed
from policies.fleet.keys import FleetKey
from policies.groups.finder import GroupResolver
from policies.groups.group_limiters import GroupRate
from policies.limits.description import FleetUse, LimitDescription
from policies.limits.limit_use import LimitUse
from policies.meters.broker_meters import PeerTraffic
from policies.quotas.names import Entity
from policies.quotas.quota_limiters import QuotaRate, quota_factor
from policies.quotas.store import QuotaStore, ResolvedQuota
from policies.storage import AffectedTopics, StorageFactor
from policies.thresholds.broker_limits import BrokerRate
from policies.usage import REASONS

PLUGIN: Final = "plugin"
BROKER_QUOTA: Final = "broker-quota"  # a client quota that brokers enforce
FROM_BROKERS: Final = "brokers"  # where such a quota is from
UNKNOWN: Final = "unknown"  # principal of clients whose name only brokers know; without a type, so it is no user's
PRINCIPAL_TYPE: Final = "User:"
ANONYMOUS: Final = "ANONYMOUS"  # as Kafka calls the user of a connection that has not authenticated

_BUILT_IN_REASONS: Final = frozenset(itertools.chain.from_iterable(REASONS.values()))

# --- what is known ----------------------------------------------------------------------------------------------------


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

    @property
    def idle_use(self) -> LimitUse | None:
        """Of a limit that no worker names; None: none has told anything yet."""
        return LimitUse(0.0, None) if self.brokers else None


class HeldTraffic(NamedTuple):
    """Rejections and delays of one client's data for a topic, enforced or only observed (policies.usage), summed up.

    `since_ms`: the time at which they began to follow each other without a pause of RECENT_MS; it may be long before
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

    def is_by(self, rule: str) -> bool:
        """Whether the rule of that name did it. Policies of the operator's own give reasons in words of their own."""
        return self.reason == rule or (rule == PLUGIN and self.reason not in _BUILT_IN_REASONS)

    @property
    def mean_delay_s(self) -> float | None:
        """Of each request; None: none was delayed."""
        return self.delay_ms / self.requests / 1000 if self.requests and self.delay_ms else None


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


def principal_of(user: str) -> str:
    """The principal of that user. "", which no user is called: of clients whose name only brokers know, UNKNOWN."""
    return f"{PRINCIPAL_TYPE}{user}" if user else UNKNOWN


class ExplainSubject(NamedTuple):
    """`user`: as `principal_of` has it. `broker` None: all that lead a partition of the topic."""

    topic: str
    user: str = ANONYMOUS
    client_id: str = ""
    broker: int | None = None

    @property
    def principal(self) -> str:
        return principal_of(self.user)


class ExplainInputs(NamedTuple):
    """All that explains. `led_topics`: topics of which a broker leads a partition, as metadata says.

    `base_origin`: of policies that were not changed at run time. `observe`: nothing at all is enforced. `elsewhere`: at
    other gateways, by name: of the client's traffic to any topic, or of the topic's where no client is asked about.
    `unheard`: why other gateways, with which limits are shared, can't be heard; "": they can, or there is no exchange.
    """

    policies: PolicySet = PolicySet()
    base_origin: BaseOrigin = file_origin
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
    internal_clients: Collection[tuple[str, str]] = ()  # principal and client id
    protected_topics: Collection[str] = ()
    plugins: Sequence[str] = ()
    now_ms: int = 0
    finder: GroupResolver | None = None  # of groups
    group_mode: Mode = "enforce"
    broker_quotas: QuotaStore = QuotaStore()  # which the brokers enforce themselves
    broker_quotas_problem: str = ""  # why they, or which of them hold for a client, are not known
    rollout: PolicyRollout = PolicyRollout()  # of policies in mode enforce
    rollout_key: bytes = b""
    elsewhere: Mapping[str, TopicFlow] = {}
    unheard: str = ""
    counted_since_ms: int = 0  # since when traffic that was held back is known: since control began

    def effective_mode(self, own: Mode) -> Mode:
        """`own`: of one policy."""
        return "observe" if self.observe else own

    def topic_leaders(self, topic: str) -> tuple[int, ...]:
        """Brokers that lead a partition of it."""
        return tuple(sorted(node for node, topics in self.led_topics.items() if topic in topics))

    def subject_brokers(self, asked: ExplainSubject) -> tuple[int | None, ...]:
        """Those that the question is about; None: of an unknown one."""
        if asked.broker is not None:
            return (asked.broker,)
        measured = {broker.node_id for broker in self.rates.brokers if broker.node_id >= 0}
        return self.topic_leaders(asked.topic) or tuple(sorted({*self.led_topics, *measured})) or (None,)


# --- what is said -----------------------------------------------------------------------------------------------------


class ShadowedRule(NamedTuple):
    """A limit, or a value of one, that says nothing about the traffic. `value` None: it has none."""

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
    rules: tuple[LimitDescription, ...]
    shadowed: tuple[ShadowedRule, ...]
    held: tuple[HeldTraffic, ...]
    notes: tuple[str, ...]


def sortable_ratio(ratio: float) -> float:
    return -1.0 if math.isnan(ratio) else ratio


def quota_in_force(known: ExplainInputs, found: ResolvedQuota) -> float:
    """An effective quota as it is in force, over all gateways; 0 while nothing is forwarded."""
    storage = known.storage
    if storage is None or known.affected is not None or known.effective_mode(known.storage_mode) == "observe":
        return found.value
    return found.value * quota_factor(found.key, storage.value)


def quota_rollout_percent(known: ExplainInputs, entity: Entity) -> float:
    """The percentage of the clients of that entity for whom the gateway enforces client quotas; 0: it only observes, as
    it does clients that are internal.
    """
    principal = principal_of(entity.user) if isinstance(entity.user, str) else ""
    if internal_reason(known, principal, entity.client_id if isinstance(entity.client_id, str) else ""):
        return 0.0
    return 0.0 if known.effective_mode(known.quota_mode) == "observe" else known.rollout.quota


def internal_reason(known: ExplainInputs, principal: str, client_id: str) -> str:
    """Why traffic of that client is metered and never limited; "": it may be limited."""
    for internal, what in (
        (principal in known.internal_principals, f"{principal} is an internal principal"),
        (client_id in known.internal_client_ids, f"{client_id!r} is an internal client id"),
        ((principal, client_id) in known.internal_clients, f"{principal} as {client_id!r} is an internal client"),
    ):
        if internal:
            return f"{what}: metered, never limited"
    return ""


def origin_of(setting: PolicySetting | None, base: BaseOrigin) -> str:
    """The origin of the value in force; "" for none."""
    return "" if setting is None else setting.origin(base)
