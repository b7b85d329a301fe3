# What all sessions of one worker share: the latest snapshots from control, and the counters.
#
# Snapshots are replaced whole by the worker's channel task and only read by sessions; both run in one thread, and
# sessions never await, so nobody sees half of one. No sockets and no clock here.

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Protocol

from gateway.channel import Broker, Groups, Policy, Quotas, Topics, WorkerSettings
from gateway.data.ledger import Ledger
from gateway.plugins import load
from policies.duplicates import Acknowledged
from policies.engine import Engine
from policies.groups.finder import Finder
from policies.plugin import TrafficPolicy
from policies.quotas.lines import QuotaLines
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.store import QuotaStore
from policies.repeats import Rejected
from policies.verdict import reject_code

if TYPE_CHECKING:
    from gateway.channel import Answer
    from gateway.data.admin_turn import AdminTurn

Log = Callable[[str, str], None]


class Asker(Protocol):
    """Whose admin request, in `turn`, control is to answer."""

    turn: AdminTurn | None
    peer: str

    @property
    def principal(self) -> str: ...

    def tell(self, answer: Answer) -> None: ...


class World:
    """Shared by the sessions of one worker.

    Attributes:
        brokers: node id -> broker, every one that has an open listener.
        addresses: node id -> (host, port) as clients are told.
        topic_ids: topic id -> name, learned from metadata passing by and from control; an id is never given twice.
        quotas: client quotas, and the lines of those who are under one.
        acknowledged, rejected: which batches come once more.
        plugins: policies of the operator's own; where there are any, every request is asked about.
        wants_sasl: brokers want clients to authenticate: as the configuration says, or as a broker's answer has shown.
        log: called with a level ("info", "warning", "error") and one line.
        complain: called with a kind and a line about a client: clients may cause many, so not all are logged.
        principals: authenticated connections by principal.
        want_metadata: called when something newer than the snapshot was seen.
        managed: API keys of admin requests that control answers. asked: who waits for it, by the token of the question.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        engine: Engine,
        log: Log,
        want_metadata: Callable[[], None] = lambda: None,
        put: Callable[[Asker], None] = lambda asker: None,
        complain: Callable[[str, str], None] | None = None,
    ) -> None:
        """`put` brings the question of an asker's turn to control."""
        self.engine = engine
        self.quotas = QuotaLines(engine.fleet)
        self.plugins: list[TrafficPolicy] = []
        self._loaded: tuple[str, ...] = ()
        self.wants_sasl = False
        self.configure(settings)
        self.ledger = Ledger(settings.max_client_keys)
        self.acknowledged = Acknowledged()
        self.rejected = Rejected()
        self.log = log
        self.complain = complain or (lambda kind, text: log("warning", text))
        self.principals: Counter[str] = Counter()
        self.want_metadata = want_metadata
        self.brokers: dict[int, Broker] = {}
        self.addresses: dict[int, tuple[bytes, int]] = {}
        self.topic_ids: dict[bytes, bytes] = {}
        self.asked: dict[int, Asker] = {}
        self._put = put
        self._tokens = count(1)

    def configure(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.protected_topics = frozenset(name.encode() for name in settings.protected_topics)
        self.managed = frozenset(settings.managed_apis)
        self.wants_sasl = self.wants_sasl or settings.upstream_sasl
        if settings.policies != self._loaded:
            self.plugins = [load(name) for name in settings.policies]
            self._loaded = settings.policies

    def set_topics(self, topics: Topics) -> None:
        for node_id in self.engine.brokers.keys() | topics.leads.keys():  # a broker that isn't listed leads nothing
            self.engine.set_topics(node_id, topics.leads.get(node_id, ()))
        self.topic_ids.update((topic_id, name.encode()) for topic_id, name in topics.ids.items())
        self.ledger.renew()

    def set_policy(self, policy: Policy) -> None:
        self.engine.set_policy(
            policy.total,
            policy.topics,
            totals=policy.totals,
            on_exceed=policy.on_exceed,
            mode=policy.mode,
            accepted=True,  # by control, which knows all topics
        )
        self.ledger.renew()

    def set_quotas(self, quotas: Quotas, now: float) -> None:
        entries = {
            Entity.of(pairs): {QuotaKey.parse(key): value for key, value in values.items()}
            for pairs, values in quotas.entries
        }
        self.quotas.set_store(QuotaStore(entries), now, observes=quotas.mode == "observe")

    def set_groups(self, groups: Groups, now: float) -> None:
        finder = Finder(groups.topic_pattern, groups.principal_pattern, groups.tenants, groups.namespaces)
        self.engine.set_groups(groups.groups, finder, now, observes=groups.mode == "observe")
        self.quotas.renew()

    def set_brokers(self, brokers: tuple[Broker, ...]) -> None:
        self.brokers = {broker.node_id: broker for broker in brokers}
        self.addresses = {b.node_id: (b.advertised_host.encode(), b.advertised_port) for b in brokers}

    def ask(self, asker: Asker) -> None:
        """Put the question of its turn to control."""
        turn = asker.turn
        assert turn is not None
        self.asked.pop(turn.token, None)
        turn.token = next(self._tokens)
        self.asked[turn.token] = asker
        self._put(asker)

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
