# What all sessions of one worker share: the latest snapshots from control, and the counters.
#
# Snapshots are replaced whole by the worker's channel task and only read by sessions; both run in one thread, and
# sessions never await, so nobody sees half of one. No sockets and no clock here.

from __future__ import annotations

from collections.abc import Callable

from gateway.channel import Broker, Settings
from gateway.data.ledger import Ledger
from gateway.plugins import load
from policies.duplicates import Acknowledged
from policies.engine import Engine
from policies.plugin import TrafficPolicy
from policies.verdict import reject_code

Log = Callable[[str, str], None]


class World:
    """Shared by the sessions of one worker.

    Attributes:
        brokers: node id -> broker, every one that has an open listener.
        addresses: node id -> (host, port) as clients are told.
        topic_ids: topic id -> name, learned from metadata passing by and from control; an id is never given twice.
        plugins: policies of the operator's own; where there are any, every request is asked about.
        log: called with a level ("info", "warning", "error") and one line.
        want_metadata: called when something newer than the snapshot was seen.
    """

    def __init__(
        self, settings: Settings, engine: Engine, log: Log, want_metadata: Callable[[], None] = lambda: None
    ) -> None:
        self.engine = engine
        self.plugins: list[TrafficPolicy] = []
        self._loaded: tuple[str, ...] = ()
        self.configure(settings)
        self.ledger = Ledger(settings.max_client_keys)
        self.acknowledged = Acknowledged()
        self.log = log
        self.want_metadata = want_metadata
        self.brokers: dict[int, Broker] = {}
        self.addresses: dict[int, tuple[bytes, int]] = {}
        self.topic_ids: dict[bytes, bytes] = {}

    def configure(self, settings: Settings) -> None:
        self.settings = settings
        self.protected_topics = frozenset(name.encode() for name in settings.protected_topics)
        if settings.policies != self._loaded:
            self.plugins = [load(name) for name in settings.policies]
            self._loaded = settings.policies

    def set_brokers(self, brokers: tuple[Broker, ...]) -> None:
        self.brokers = {broker.node_id: broker for broker in brokers}
        self.addresses = {b.node_id: (b.advertised_host.encode(), b.advertised_port) for b in brokers}

    def is_internal(self, principal: str, client_id: str) -> bool:
        """Metered, never limited (KIP-proposal 035): the operators' own tools and replication."""
        settings = self.settings
        return principal in settings.internal_principals or client_id in settings.internal_client_ids

    def reject_code(self, software: tuple[str, str] | None) -> int:
        """The error code for a rejection that this client will retry."""
        name, version = software if software is not None else (None, None)
        return reject_code(name, version, self.settings.reject_code)
