# The rows that a replay takes and gives: rows of usage records, the policies to decide by, and differences. Plain
# values, which travel between processes.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey, PolicyValue, PolicyValues
from policies.engine import OnExceed
from policies.whatif.timetable import Timetable

WorkerLife = tuple[str, str, int]  # gateway, boot, worker
StreamKey = tuple[int, str, str, str]  # broker, topic, principal, client id


class ReplayRow(NamedTuple):
    """A row of a usage record with its interval, whose number in its life is `seq`. `repeats` None: not known."""

    life: WorkerLife
    seq: int
    start_ms: int
    end_ms: int
    stream: StreamKey
    outcome: str
    reason: str
    bytes: int
    messages: int
    requests: int
    delay_ms: int
    repeats: int | None


class OutcomeShift(NamedTuple):
    """The difference (below 0: less) in the window that begins at `window_ms`."""

    window_ms: int
    stream: StreamKey
    outcome: str
    reason: str
    bytes: int
    requests: int
    delay_ms: int
    repeats: int


@dataclass(frozen=True)
class ReplayRules:
    """The policies to decide by. All are enforced, also those that are only observed.

    `values`: of policy_values; `later`: those that took their place. `topics`: of each broker, by node id, those that
    share the rest of its total behind explicit thresholds. `exempt_*`: metered, never limited. `delivery_s`: after that
    many seconds a client gives up the bytes that it holds.
    """

    values: Mapping[PolicyKey, PolicyValue]
    on_exceed: OnExceed = "reject"
    topic_pattern: str = ""
    principal_pattern: str = ""
    exempt_principals: frozenset[str] = frozenset()
    exempt_client_ids: frozenset[str] = frozenset()
    exempt_clients: frozenset[tuple[str, str]] = frozenset()  # principal and client id
    topics: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    delivery_s: float = 120.0
    later: Timetable = ()

    @property
    def is_per_broker(self) -> bool:
        """Whether no limit holds over several brokers, so that each can be replayed by itself."""
        return not any(map(_is_fleet_wide, (self.values, *(values for _, values in self.later))))

    def exempts_stream(self, stream: StreamKey) -> bool:
        _, _, principal, client_id = stream
        return (
            principal in self.exempt_principals
            or client_id in self.exempt_client_ids
            or (principal, client_id) in self.exempt_clients
        )


def _is_fleet_wide(values: PolicyValues) -> bool:
    policies = PolicySet(values)
    return bool(policies.group_limits()) or any(
        key.unit == "bps" for entries in policies.quota_store().entries.values() for key in entries
    )
