# The client of one connection, and the limits that hold for it: its principal, client id and
# software, whether it is exempt, its client quotas and its resource group.
#
# Knows no topic and no request. Quotas and groups are looked up once for who it is, and again when they change.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.listener_names import DEFAULT_LISTENER
from gateway.tls.principal_rules import ANONYMOUS
from policies import decision
from policies.quotas.lines import NONE

if TYPE_CHECKING:
    from gateway.data.shared.ledger import Counts
    from gateway.data.shared.world import Addresses, World
    from policies.groups.lines import GroupSide
    from policies.quotas.lines import Lines

# A client's own name is cut to this many characters before anything is looked up or counted by it.
MAX_CLIENT_ID = 256
MAX_PRINCIPAL = 256  # where it is counted; quotas and groups go by all of it


class Client:
    """The client of one connection to broker `node_id`.

    Attributes:
        listener: where it connected, which says under what addresses it knows brokers.
        client_id: as its last request has it.
        names: principal and client id as they are counted.
        software: name and version, None where it has told nothing.
        exempt: it is metered and never limited.
        observed: policies (fields of decision.Limits) that are only observed for it.
        rows: by topic, those that count the bytes that brokers accept from it; emptied whenever that changes.
        lines: its client quotas, as of `lines_version`. Where there are some on time, `spend` has to be told.
        group: of topics whose names don't say theirs, by its principal.
        limited: each of its Produce requests has to be judged: quotas on time hold for it, or quotas that only count;
            or resource groups must not find what it brings, as it is exempt.
        quota: of its Produce requests where it is not `limited`; None: there is none.
    """

    __slots__ = ("client_id", "exempt", "group", "limited", "lines", "lines_version", "listener", "names", "node_id",
                 "observed", "principal", "quota", "rows", "software", "world")  # fmt: skip

    def __init__(self, world: World, node_id: int, listener: str = DEFAULT_LISTENER) -> None:
        self.world = world
        self.node_id = node_id
        self.listener = listener
        self.principal = ANONYMOUS
        self.client_id: bytes | None = None
        self.names = (ANONYMOUS, "")
        self.software: tuple[str, str] | None = None
        self.exempt = False
        self.rows: dict[bytes, Counts] = {}
        self.observed: frozenset[str] = decision.NONE
        self.lines = NONE
        self.lines_version = -1
        self.group: GroupSide | None = None
        self.limited = False
        self.quota: Lines | None = None

    @property
    def addresses(self) -> Addresses:
        """Of brokers, as it is told."""
        return self.world.cluster.addresses.get(self.listener, {})

    @property
    def software_name(self) -> str:
        """ "" where it has told nothing."""
        return self.software[0] if self.software else ""

    def identify(self, client_id: bytes | None) -> None:
        """Requests from here on come under this client id (a client may change it with every request)."""
        self.client_id = client_id
        self._rename(client_id.decode("utf-8", "replace")[:MAX_CLIENT_ID] if client_id else "")

    def authenticate(self, principal: str) -> None:
        """The broker has accepted this principal, or the client's certificate makes it."""
        self.principal = principal
        self._rename(self.names[1])

    def introduce(self, software: tuple[str, str] | None) -> None:
        """The client has told its software: name and version, None where it says nothing."""
        self.software = software or self.software
        self.rows.clear()

    def _rename(self, client_id: str) -> None:
        self.names = self.principal[:MAX_PRINCIPAL], client_id
        self.exempt = self.world.is_internal(self.principal, client_id)
        self.lines_version = -1
        self.rows.clear()

    def find_lines(self, now: float) -> None:
        """Look up the lines of its present names; needed whenever `lines_version` is not that of the quotas."""
        world = self.world
        quotas, groups = world.quotas, world.engine.groups
        self.lines_version = quotas.version
        self.observed = decision.ALL if world.settings.observe else self._find_observed()
        user = self.principal.partition(":")[2]
        self.lines = NONE if self.exempt else quotas.of(self.node_id, user, self.names[1], now)
        self.group = None if self.exempt else groups.publish_by_principal(self.principal, now)
        self.rows.clear()  # they say the group
        has_quota = bool(self.lines.produce)
        self.limited = bool(
            self.lines.request or (self.exempt and groups.exists) or (has_quota and "quota" in self.observed)
        )
        self.quota = self.lines if has_quota and not self.limited else None

    def _find_observed(self) -> frozenset[str]:
        quotas, groups = self.world.quotas.observes, self.world.engine.groups.observes
        modes = {policy for policy, observes in (("quota", quotas), ("group", groups)) if observes}
        return self.world.rollout.observed(self.principal, self.names[1], self.world.settings.rollout_key) | modes

    def spend(self, seconds: float, now: float) -> None:
        """The worker's thread was busy with this connection for that long."""
        for line in self.lines.request:
            if "quota" in self.observed and line.wait(now):  # it would not be busy with it yet
                line.spare(seconds)
            else:
                line.take(seconds, now)
