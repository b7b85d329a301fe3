# What storage protection needs of the other parts of control, and what it has them do: made once by the composition
# root, read by all of this folder.

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.channel import StorageSnapshot
from gateway.config import Settings
from gateway.control.metrics import GatewayMetrics
from gateway.control.storage.override import ActiveOverride
from policies.definitions.policy_set import PolicySet
from policies.storage import ReplicaSpread
from policies.usage import DiskNotes

Rates = Mapping[tuple[str, str], float]
Replicas = Mapping[int, frozenset[str]]


def _unknown() -> None:
    return None


@dataclass(frozen=True, slots=True)
class StorageContext:
    """`settings`: at the start. `publish` sends a snapshot to all workers.

    `policies`: those in force. `find_override`: the operator's override; None: there is none. `knows_overrides`:
    whether overrides have been read. `replicas`: with scope affected, the topics with a replica on each broker by
    metadata; `spread`: see there; None: not known. `rates`: bytes per second by topic and principal, of this gateway.
    `record_disks` takes what the usage log is to have. `restarted`: workers may hold a factor that an earlier control
    sent them. `clock`: `time.monotonic`, the workers' clock as well; `wall`: Unix time.
    """

    settings: Settings
    metrics: GatewayMetrics
    publish: Callable[[StorageSnapshot], None]
    policies: Callable[[], PolicySet] = PolicySet
    find_override: Callable[[], ActiveOverride | None] = _unknown
    knows_overrides: Callable[[], bool] = lambda: True
    replicas: Callable[[], Replicas | None] = _unknown
    spread: Callable[[], ReplicaSpread | None] = _unknown
    rates: Callable[[], Rates] = dict
    record_disks: Callable[[DiskNotes], None] = lambda disks: None
    restarted: bool = False
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
