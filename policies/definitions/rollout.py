# Bringing policies in by steps: the clients for whom a policy is enforced while it is only observed for all others.
#
# Each client has a place between 0 and 100, by a hash of its principal, or of its client id where it has no principal
# of its own. A policy is enforced for the clients whose places are below its percentage. So a client in at 5 percent
# stays in at 10; every worker and gateway agrees; and it is the same clients first for all policies. The hash of a
# client id is keyed, since the client chooses it: it can't compute one that stays out. On these clients gateways
# agree only if they share the key.

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

from policies.decision import NO_POLICIES
from policies.quotas.names import UNNAMED_USERS

ALL_CLIENTS: Final = 100.0


class PolicyRollout(NamedTuple):
    """For what percentage of clients each policy is enforced. Policies are named as in decision.PartitionLimits."""

    quota: float = ALL_CLIENTS
    group: float = ALL_CLIENTS
    threshold: float = ALL_CLIENTS

    def observed_policies(self, principal: str, client_id: str, key: bytes = b"") -> frozenset[str]:
        """The policies that are only observed for that client. `principal`: as Kafka writes it (User:alice). `key`: see
        `rollout_place`.
        """
        if min(self) >= ALL_CLIENTS:
            return NO_POLICIES
        at = rollout_place(principal, client_id, key)
        return frozenset(policy for policy, percent in self._asdict().items() if at >= percent)


def rollout_text(percent: float) -> str:
    """How far a policy has been rolled out. `percent`: of the clients; 0 where it is only observed."""
    if percent >= ALL_CLIENTS:
        return "enforce"
    return f"enforce for {percent:g} % of the clients" if percent else "observe"


def lacks_principal(principal: str) -> bool:
    """Whether the client has no principal of its own."""
    return principal.partition(":")[2] in UNNAMED_USERS


def rollout_place(principal: str, client_id: str, key: bytes = b"") -> float:
    """A client's place, evenly distributed from 0 to below 100. `key`: a secret, 64 bytes at most; it matters for
    clients without a principal only.
    """
    name, key = (client_id, key) if lacks_principal(principal) else (principal, b"")
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "big") * ALL_CLIENTS / 2**64
