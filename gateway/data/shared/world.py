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
    Answer,
    Broker,
    Brokers,
    Groups,
    OwnSasl,
    Policy,
    QuotaChanges,
    Quotas,
    Topics,
    WorkerSettings,
)
from gateway.data.shared.complaints import NO_FIELDS, Fields, Log
from gateway.data.shared.ledger import Ledger
from gateway.plugins import load
from policies.definitions.rollout import Rollout
from policies.engine import Engine
from policies.groups.finder import Finder
from policies.idempotence.duplicates import Acknowledged
from policies.idempotence.repeats import Rejected
from policies.plugin import TrafficPolicy
from policies.quotas.lines import QuotaLines
from policies.quotas.store import QuotaStore
from policies.verdict import reject_code

if TYPE_CHECKING:
    from gateway.data.shared.admin_turn import AdminTurn

Addresses = dict[int, tuple[bytes, int]]
MAX_LOST_CONTROLS: Final = 2  # that ended while they had the same question
LOST_CONTROLS: Final = f"the gateway's control process ended {MAX_LOST_CONTROLS} times while it had this request"


class Asker(Protocol):
    """A session whose admin request, in `turn`, control is to answer."""

    turn: AdminTurn | None
    peer: str

    @property
    def principal(self) -> str: ...

    @property
    def listener(self) -> str: ...

    def tell(self, answer: Answer) -> None: ...


class Complain(Protocol):
    """Called with a kind, a line about a client and its fields."""

    def __call__(self, kind: str, text: str, fields: Fields = NO_FIELDS) -> None: ...


class Cluster:
    """The cluster as brokers and control describe it.

    Attributes:
        brokers: node id -> broker, every one that has an open listener.
        addresses: by listener, node id -> (host, port) as its clients are told.
        topic_ids: topic id -> name, learned from metadata passing by and from control; an id is never given twice.
        wants_sasl: brokers want clients to authenticate: as the configuration says, or as a broker's answer has shown.
        want_metadata: called when something newer than the snapshot was seen.
    """

    __slots__ = ("addresses", "brokers", "topic_ids", "want_metadata", "wants_sasl")

    def __init__(self, want_metadata: Callable[[], None]) -> None:
        self.want_metadata = want_metadata
        self.wants_sasl = False
        self.brokers: dict[int, Broker] = {}
        self.addresses: dict[str, Addresses] = {}
        self.topic_ids: dict[bytes, bytes] = {}

    def set_brokers(self, message: Brokers) -> None:
        self.brokers = {broker.node_id: broker for broker in message.brokers}
        self.addresses = {
            listener: {node_id: (host.encode(), port) for node_id, (host, port) in told.items()}
            for listener, told in message.addresses.items()
        }


class Questions:
    """Admin requests that control is asked about. `apis`: the API keys of those that it answers. `open`: the sessions
    that wait for an answer, by the token of the question.
    """

    __slots__ = ("_put", "_tokens", "apis", "open")

    def __init__(self, put: Callable[[Asker], None]) -> None:
        """`put` brings the question of an asker's turn to control."""
        self.apis: frozenset[int] = frozenset()
        self.open: dict[int, Asker] = {}
        self._put = put
        self._tokens = count(1)

    def ask(self, asker: Asker) -> None:
        """Put the question of its turn to control."""
        turn = asker.turn
        assert turn is not None
        self.open.pop(turn.token, None)
        turn.token = next(self._tokens)
        self.open[turn.token] = asker
        self._put(asker)

    def ask_again(self, *, lost: bool) -> None:
        """Put all that are open once more: there is another channel to control. `lost`: another control, since the
        former one ended; it may have ended of one of these, so none is put to a third one.
        """
        for token, asker in list(self.open.items()):
            turn = asker.turn
            assert turn is not None
            turn.lost_controls += lost
            if turn.lost_controls < MAX_LOST_CONTROLS:
                self._put(asker)
            else:
                del self.open[token]
                asker.tell(Answer(token, closes="error", why=LOST_CONTROLS))


class World:
    """Shared by the sessions of one worker.

    Attributes:
        cluster: brokers, addresses and topic ids.
        rollout: for how many of the clients each policy is enforced.
        quotas: client quotas, and the lines of the clients under them.
        acknowledged, rejected: batches that come once more.
        plugins: policies of the operator's own; where there are any, every request is asked about.
        log: takes one line for the log.
        complain: takes a line about a client: clients may cause many, so not all are logged.
        principals: authenticated connections by principal.
        questions: admin requests that control answers.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        engine: Engine,
        log: Log,
        want_metadata: Callable[[], None] = lambda: None,
        put: Callable[[Asker], None] = lambda asker: None,
        complain: Complain | None = None,
    ) -> None:
        """`put`: see Questions."""
        self.engine = engine
        self.quotas = QuotaLines(engine.fleet)
        self.plugins: list[TrafficPolicy] = []
        self._loaded: tuple[str, ...] = ()
        self.rollout = Rollout()
        self.cluster = Cluster(want_metadata)
        self.questions = Questions(put)
        self.configure(settings)
        self.ledger = Ledger(settings.max_client_keys)
        self.acknowledged = Acknowledged()
        self.rejected = Rejected()
        self.log = log
        self.complain: Complain = complain or (lambda kind, text, fields=NO_FIELDS: log("warning", text, fields))
        self.principals: Counter[str] = Counter()

    def configure(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.protected_topics = frozenset(name.encode() for name in settings.protected_topics)
        self.questions.apis = frozenset(settings.managed_apis)
        self.cluster.wants_sasl = self.cluster.wants_sasl or settings.upstream_sasl
        if settings.policies != self._loaded:
            self.plugins = [load(name) for name in settings.policies]
            self._loaded = settings.policies
        self.quotas.renew()  # what is only observed may have changed

    def own_sasl(self, listener: str) -> OwnSasl | None:
        """Of clients of that listener; None: theirs passes through to the brokers."""
        settings = self.settings.listeners.get(listener)
        return None if settings is None else settings.sasl

    def set_topics(self, topics: Topics) -> None:
        for node_id in self.engine.brokers.keys() | topics.leads.keys():  # a broker that isn't listed leads nothing
            self.engine.set_topics(node_id, topics.leads.get(node_id, ()))
        self.cluster.topic_ids.update((topic_id, name.encode()) for topic_id, name in topics.ids.items())
        self.ledger.renew()

    def set_policy(self, policy: Policy) -> None:
        self.engine.set_policy(
            policy.total,
            policy.topics,
            totals=policy.totals,
            on_exceed=policy.on_exceed,
            mode=policy.mode,
            burst_s=policy.burst_s,
        )
        self._roll_out(threshold=policy.enforce_percent)
        self.ledger.renew()

    def set_quotas(self, quotas: Quotas, now: float) -> None:
        self.quotas.set_totals_out(quotas.total_out, quotas.totals_out)
        self.quotas.set_store(QuotaStore.taken(quotas.entries, quotas.version), now, observes=quotas.mode == "observe")
        self._roll_out(quota=quotas.enforce_percent)

    def change_quotas(self, changes: QuotaChanges, now: float) -> None:
        store = self.quotas.store
        store = store.overlaid(changes.entries, store.version + 1)
        self.quotas.set_store(store, now, observes=self.quotas.observes)
        self.ledger.renew()

    def set_groups(self, groups: Groups, now: float) -> None:
        finder = Finder(groups.topic_pattern, groups.principal_pattern, groups.tenants, groups.namespaces)
        self.engine.set_groups(groups.groups, finder, now, observes=groups.mode == "observe")
        self._roll_out(group=groups.enforce_percent)

    def _roll_out(self, **percent: float) -> None:
        self.rollout = self.rollout._replace(**percent)
        self.quotas.renew()
        self.ledger.renew()

    def is_internal(self, principal: str, client_id: str) -> bool:
        """Metered, never limited (KIP-proposal 035): the operators' own tools and replication."""
        settings = self.settings
        return (
            principal in settings.internal_principals
            or client_id in settings.internal_client_ids
            or (principal, client_id) in settings.internal_clients
        )

    def reject_code(self, software: tuple[str, str] | None) -> int:
        """The error code for a rejection that this client will retry."""
        name, version = software if software is not None else (None, None)
        return reject_code(name, version, self.settings.reject_code)
