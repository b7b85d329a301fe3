# The client of one connection, and the limits that hold for it: its principal, client id and
# software, whether it is exempt, its client quotas and its resource group.
#
# Knows no topic and no request. Quotas and groups are looked up once for who it is, and again when they change.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.listener_names import DEFAULT_LISTENER
from gateway.tls.principal_rules import ANONYMOUS
from policies import decision
from policies.quotas.quota_limiters import NO_QUOTA_LIMIT
from policies.usage import COUNTED_CHARS

if TYPE_CHECKING:
    from gateway.data.shared.ledger import RowCounts
    from gateway.data.shared.worker_state import BrokerAddresses, WorkerState
    from policies.groups.group_limiters import GroupLimit
    from policies.quotas.quota_limiters import ConnectionQuotaLimit

# A client's own name is cut to this many characters before anything is looked up or counted by it.
MAX_CLIENT_ID = COUNTED_CHARS
MAX_PRINCIPAL = COUNTED_CHARS  # where it is counted; quotas and groups go by all of it


class ConnectedClient:
    """The client of one connection to broker `node_id`.

    Attributes:
        listener: where it connected, which says under what addresses it knows brokers.
        client_id: as its last request has it.
        counted_names: principal and client id as they are counted.
        software: name and version, None where the client names none.
        is_exempt: it is metered and never limited.
        observed_policies: policies (fields of decision.Limits) that are only observed for it.
        accepted_rows: by topic, those that count the bytes that brokers accept from it; emptied whenever that changes.
        quota_limit: its client quotas, as of `quotas_version`. Where there are some on time, `charge_time` has to be
            told.
        group_limit: of topics whose names don't say theirs, by its principal.
        needs_judging: each of its Produce requests has to be judged: quotas on time hold for it, or quotas that only
            count; or resource groups must not find what it brings, as it is exempt.
        produce_quota: of its Produce requests where it is not `needs_judging`; None: there is none.
    """

    __slots__ = (
        "accepted_rows",
        "client_id",
        "counted_names",
        "group_limit",
        "is_exempt",
        "listener",
        "needs_judging",
        "node_id",
        "observed_policies",
        "principal",
        "produce_quota",
        "quota_limit",
        "quotas_version",
        "software",
        "world",
    )  # fmt: skip

    def __init__(self, world: WorkerState, node_id: int, listener: str = DEFAULT_LISTENER) -> None:
        self.world = world
        self.node_id = node_id
        self.listener = listener
        self.principal = ANONYMOUS
        self.client_id: bytes | None = None
        self.counted_names = (ANONYMOUS, "")
        self.software: tuple[str, str] | None = None
        self.is_exempt = False
        self.accepted_rows: dict[bytes, RowCounts] = {}
        self.observed_policies: frozenset[str] = decision.NO_POLICIES
        self.quota_limit = NO_QUOTA_LIMIT
        self.quotas_version = -1
        self.group_limit: GroupLimit | None = None
        self.needs_judging = False
        self.produce_quota: ConnectionQuotaLimit | None = None

    @property
    def broker_addresses(self) -> BrokerAddresses:
        """Addresses of brokers as this client gets them."""
        return self.world.cluster.addresses.get(self.listener, {})

    @property
    def software_name(self) -> str:
        """The name of the client's software; "" where the client names none."""
        return self.software[0] if self.software else ""

    def set_client_id(self, client_id: bytes | None) -> None:
        """Later requests carry this client id (a client may change it with every request)."""
        self.client_id = client_id
        self._update_names(client_id.decode("utf-8", "replace")[:MAX_CLIENT_ID] if client_id else "")

    def set_principal(self, principal: str) -> None:
        """The broker has accepted this principal, or it comes from the client's certificate."""
        self.principal = principal
        self._update_names(self.counted_names[1])

    def set_software(self, software: tuple[str, str] | None) -> None:
        """The client's software, name and version; None where the client names none."""
        self.software = software or self.software
        self.accepted_rows.clear()

    def _update_names(self, client_id: str) -> None:
        self.counted_names = self.principal[:MAX_PRINCIPAL], client_id
        self.is_exempt = self.world.is_internal_client(self.principal, client_id)
        self.quotas_version = -1
        self.accepted_rows.clear()

    def refresh_limits(self, now: float) -> None:
        """Look up the limits of its present names; needed whenever `quotas_version` is not that of the quotas."""
        world = self.world
        quotas, groups = world.quotas, world.engine.groups
        self.quotas_version = quotas.version
        self.is_exempt = world.is_internal_client(self.principal, self.counted_names[1])  # a reload may have changed it
        self.observed_policies = (
            decision.ALL_POLICIES if world.settings.mode == "observe" else self._find_observed_policies()
        )
        self.quota_limit = self.find_quota_limit(self.counted_names[1], now)
        self.group_limit = None if self.is_exempt else groups.principal_publish_limit(self.principal, now)
        self.accepted_rows.clear()  # they say the group
        has_quota = bool(self.quota_limit.produce_limiters)
        self.needs_judging = bool(
            self.quota_limit.time_limiters
            or (self.is_exempt and groups.has_groups)
            or (has_quota and "quota" in self.observed_policies)
        )
        self.produce_quota = self.quota_limit if has_quota and not self.needs_judging else None

    def find_quota_limit(self, client_id: str, now: float) -> ConnectionQuotaLimit:
        """The client quotas on its requests with that client id, as they are now."""
        if self.world.is_internal_client(self.principal, client_id):
            return NO_QUOTA_LIMIT
        return self.world.quotas.connection_limit(self.node_id, self.principal.partition(":")[2], client_id, now)

    def _find_observed_policies(self) -> frozenset[str]:
        quotas, groups = self.world.quotas.observes, self.world.engine.groups.observes
        modes = {policy for policy, observes in (("quota", quotas), ("group", groups)) if observes}
        return (
            self.world.rollout.observed_policies(self.principal, self.counted_names[1], self.world.settings.rollout_key)
            | modes
        )

    def charge_time(self, seconds: float, now: float) -> None:
        """Charge the seconds that the worker's thread was busy with this connection."""
        for limiter in self.quota_limit.time_limiters:
            if "quota" in self.observed_policies and limiter.debt_wait_s(now):  # it would not be busy with it yet
                limiter.record_only(seconds)
            else:
                limiter.charge_amount(seconds, now)
