# What the endpoints of the REST API are handed: the parts of control that they show and change, in one value.

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import unquote

from fastapi import Request

from gateway.control.policies.service import Altered
from gateway.control.recent import Recent
from policies.explain import FleetUse
from policies.fleet.keys import FleetKey
from policies.policy_set import Op, PolicySet, Source
from policies.quotas.store import Alteration

USER_HEADER: Final = "produce-gateway-user"  # who runs a command, percent-encoded; nobody checks it
MAX_NAME: Final = 200
_T = TypeVar("_T")


class Policies(Protocol):
    """What the API needs of the policy service; see gateway.control.policies.service.PolicyService."""

    @property
    def policies(self) -> PolicySet: ...

    async def alter(self, ops: Sequence[Op], source: Source, *, validate_only: bool = False) -> Altered: ...

    async def alter_quotas(
        self, alterations: Sequence[Alteration], source: Source, *, validate_only: bool = False
    ) -> Altered: ...

    async def apply(
        self, data: object, source: Source, *, dry_run: bool = False, prune: bool = False, groups: bool = True
    ) -> Altered: ...

    def overview(self) -> dict[str, Any]: ...


class Latest(Protocol):
    """The last message of a type: of Settings, Topics, Policy, Quotas and Storage what workers were told, of Rates
    what they said; None: none yet.
    """

    def __call__(self, kind: type[_T], /) -> _T | None: ...


@dataclass(frozen=True)
class Gateway:
    """A running gateway, as the API sees it.

    Attributes:
        latest: snapshots and rates.
        base: what policies that nobody changed at run time come from.
        gone: names of deleted topics.
        fleet: what is known of limits over all gateways.
        clock: Unix time.
    """

    policies: Policies
    recent: Recent
    latest: Latest
    base: str = "file"
    gone: Callable[[], Set[str]] = frozenset
    fleet: Callable[[], Mapping[FleetKey, FleetUse]] = dict
    clock: Callable[[], float] = time.time


def source_of(request: Request) -> Source:
    """Who says to be asking. Nobody checks it: the log has the address beside it."""
    who = unquote(request.headers.get(USER_HEADER, ""))[:MAX_NAME]
    peer = f"{request.client.host}:{request.client.port}" if request.client else ""
    return Source(who, "rest", peer)
