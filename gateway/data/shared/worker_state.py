# State that all sessions of one worker share: the latest snapshots from control, and the counters.
#
# Snapshots are replaced whole by the worker's channel task and only read by sessions; both run in one thread, and
# sessions never await, so none sees half of one. No sockets and no clock here.

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from gateway.channel import (
    AdminAnswer,
    BrokerTable,
    GroupSnapshot,
    QuotaChanges,
    QuotaSnapshot,
    TerminatedSasl,
    ThresholdPolicy,
    TopicSnapshot,
    UpstreamBroker,
    WorkerSettings,
)
from gateway.data.shared.ledger import UsageLedger
from gateway.data.shared.warning_limiter import NO_LOG_FIELDS, LogFields, LogWriter
from gateway.plugins import load_policy
from gateway.worker_config import WorkerInternalClient
from policies.definitions.rollout import PolicyRollout
from policies.engine import PolicyEngine
from policies.groups.finder import GroupResolver
from policies.idempotence.duplicates import AcknowledgedBatches
from policies.idempotence.repeats import RejectedBatches
from policies.plugin import TrafficPolicy
from policies.quotas.quota_limiters import QuotaLimiters
from policies.quotas.store import QuotaStore
from policies.verdict import reject_code

if TYPE_CHECKING:
    from gateway.data.shared.admin_turn import AdminTurn

BrokerAddresses = dict[int, tuple[bytes, int]]
MAX_DELETED_TOPICS: Final = 1000  # whose ids are kept, and as many as there are topics
MAX_LOST_CONTROLS: Final = 2  # that ended while they had the same question
LOST_CONTROLS_TEXT: Final = f"the gateway's control process ended {MAX_LOST_CONTROLS} times while it had this request"


class AdminQuerier(Protocol):
    """A session whose admin request, in `turn`, waits for control's answer."""

    turn: AdminTurn | None
    peer: str

    @property
    def principal(self) -> str: ...

    @property
    def listener(self) -> str: ...

    def on_control_answer(self, answer: AdminAnswer) -> None: ...


class ClientWarningLog(Protocol):
    """Called with a kind, a line about a client and its fields."""

    def __call__(self, kind: str, text: str, fields: LogFields = NO_LOG_FIELDS) -> None: ...


class ClusterView:
    """The cluster as brokers and control describe it.

    Attributes:
        brokers: node id -> broker, every one that has an open listener.
        addresses: by listener, node id -> (host, port) as its clients get them.
        topic_ids: topic id -> name, learned from metadata passing by and from control; an id is never given twice.
            Those of deleted topics are forgotten once there are many.
        wants_sasl: brokers want clients to authenticate: as the configuration says, or as a broker's answer has shown.
        request_metadata: called when something newer than the snapshot was seen.
    """

    __slots__ = ("addresses", "brokers", "request_metadata", "topic_ids", "wants_sasl")

    def __init__(self, want_metadata: Callable[[], None]) -> None:
        self.request_metadata = want_metadata
        self.wants_sasl = False
        self.brokers: dict[int, UpstreamBroker] = {}
        self.addresses: dict[str, BrokerAddresses] = {}
        self.topic_ids: dict[bytes, bytes] = {}

    def set_brokers(self, message: BrokerTable) -> None:
        self.brokers = {broker.node_id: broker for broker in message.brokers}
        self.addresses = {
            listener: {node_id: (host.encode(), port) for node_id, (host, port) in by_node.items()}
            for listener, by_node in message.addresses.items()
        }


class ControlQueries:
    """Admin requests that control is asked about. `apis`: the API keys of those that it answers. `pending`: the
    sessions that wait for an answer, by the token of the question.
    """

    __slots__ = ("_post_query", "_tokens", "apis", "pending")

    def __init__(self, put: Callable[[AdminQuerier], None]) -> None:
        """`put` sends the query of a querier's turn to control."""
        self.apis: frozenset[int] = frozenset()
        self.pending: dict[int, AdminQuerier] = {}
        self._post_query = put
        self._tokens = count(1)

    def send_query(self, asker: AdminQuerier) -> None:
        """Send the query of its turn to control."""
        turn = asker.turn
        assert turn is not None
        self.pending.pop(turn.token, None)
        turn.token = next(self._tokens)
        self.pending[turn.token] = asker
        self._post_query(asker)

    def resend_queries(self, *, lost: bool) -> None:
        """Send all open queries again, on a new channel to control. `lost`: the former control process ended, perhaps
        because of one of these, so no query is sent to a third process.
        """
        for token, asker in list(self.pending.items()):
            turn = asker.turn
            assert turn is not None
            turn.lost_controls += lost
            if turn.lost_controls < MAX_LOST_CONTROLS:
                self._post_query(asker)
            else:
                del self.pending[token]
                asker.on_control_answer(AdminAnswer(token, closes="error", why=LOST_CONTROLS_TEXT))


class WorkerState:
    """Shared by the sessions of one worker.

    Attributes:
        cluster: brokers, addresses and topic ids.
        settings: the last from control; `limits`: those in them, for what is asked at each request.
        rollout: for how many of the clients each policy is enforced.
        quotas: client quotas, and the lines of the clients under them.
        acknowledged_batches, rejected_batches: batches that come once more.
        plugins: policies of the operator's own; where there are any, every request is asked about.
        log: takes one line for the log.
        log_client_warning: takes a line about a client: clients may cause many, so not all are logged.
        principal_counts: authenticated connections by principal.
        control_queries: admin requests that control answers.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        engine: PolicyEngine,
        log: LogWriter,
        want_metadata: Callable[[], None] = lambda: None,
        put: Callable[[AdminQuerier], None] = lambda asker: None,
        complain: ClientWarningLog | None = None,
    ) -> None:
        """`put`: see ControlQueries."""
        self.engine = engine
        self.quotas = QuotaLimiters(engine.fleet)
        self.plugins: list[TrafficPolicy] = []
        self.rollout = PolicyRollout()
        self.cluster = ClusterView(want_metadata)
        self.control_queries = ControlQueries(put)
        self._set_settings(settings)
        self._load_plugins()
        self.ledger = UsageLedger(settings.limits.max_client_keys)
        self.acknowledged_batches = AcknowledgedBatches()
        self.rejected_batches = RejectedBatches()
        self.log = log
        self.log_client_warning: ClientWarningLog = complain or (
            lambda kind, text, fields=NO_LOG_FIELDS: log("warning", text, fields)
        )
        self.principal_counts: Counter[str] = Counter()

    def apply_settings(self, settings: WorkerSettings) -> None:
        has_other_plugins = settings.policies != self.settings.policies
        self._set_settings(settings)
        if has_other_plugins:
            self._load_plugins()
        self.quotas.renew_limits()  # what is only observed may have changed

    def _load_plugins(self) -> None:
        self.plugins = [load_policy(name) for name in self.settings.policies]

    def _set_settings(self, settings: WorkerSettings) -> None:
        self.settings, self.limits = settings, settings.limits
        self.protected_topics = frozenset(name.encode() for name in settings.protected_topics)
        self.control_queries.apis = frozenset(settings.managed_apis)
        self.cluster.wants_sasl = self.cluster.wants_sasl or settings.upstream_sasl

    def terminated_sasl(self, listener: str) -> TerminatedSasl | None:
        """The settings of SASL that ends at the gateway, on that listener; None: SASL passes through to the brokers."""
        settings = self.settings.listeners.get(listener)
        return None if settings is None else settings.sasl

    def set_topics(self, topics: TopicSnapshot) -> None:
        self.engine.set_listed_brokers(topics.leads)
        for node_id in self.engine.brokers.keys() | topics.leads.keys():  # a broker that isn't listed leads nothing
            self.engine.set_listed_topics(node_id, topics.leads.get(node_id, ()))
        if len(self.cluster.topic_ids) > 2 * sum(map(len, topics.leads.values())) + MAX_DELETED_TOPICS:
            self.cluster.topic_ids.clear()  # what control doesn't tell is looked up again
        self.cluster.topic_ids.update((topic_id, name.encode()) for topic_id, name in topics.ids.items())
        self.ledger.advance_epoch()

    def set_policy(self, policy: ThresholdPolicy) -> None:
        self.engine.set_thresholds(
            policy.total,
            policy.topics,
            totals=policy.totals,
            on_exceed=policy.on_exceed,
            mode=policy.mode,
            burst_s=policy.burst_s,
        )
        self._update_rollout(threshold=policy.enforce_percent)
        self.ledger.advance_epoch()

    def set_quotas(self, quotas: QuotaSnapshot, now: float) -> None:
        self.quotas.set_totals_out(quotas.total_out, quotas.totals_out)
        self.quotas.set_quotas(
            QuotaStore.from_validated(quotas.entries, quotas.version), now, observes=quotas.mode == "observe"
        )
        self._update_rollout(quota=quotas.enforce_percent)

    def change_quotas(self, changes: QuotaChanges, now: float) -> None:
        store = self.quotas.store
        store = store.overlay_entries(changes.entries, store.version + 1)
        self.quotas.set_quotas(store, now, observes=self.quotas.observes)
        self.ledger.advance_epoch()

    def set_groups(self, groups: GroupSnapshot, now: float) -> None:
        finder = GroupResolver(groups.topic_pattern, groups.principal_pattern, groups.tenants, groups.namespaces)
        self.engine.set_groups(groups.groups, finder, now, observes=groups.mode == "observe")
        self._update_rollout(group=groups.enforce_percent)

    def _update_rollout(self, **percent: float) -> None:
        self.rollout = self.rollout._replace(**percent)
        self.quotas.renew_limits()
        self.ledger.advance_epoch()

    def is_internal_client(self, principal: str, client_id: str) -> bool:
        """Whether the client is metered and never limited (proposal 035): the operators' own tools, and replication."""
        internal = self.settings.internal
        return (
            principal in internal.principals
            or client_id in internal.client_ids
            or WorkerInternalClient(principal=principal, client_id=client_id) in internal.clients
        )

    def reject_code(self, software: tuple[str, str] | None) -> int:
        """The error code for a rejection that this client retries."""
        name, version = software if software is not None else (None, None)
        return reject_code(name, version, self.settings.reject_code)
