# Storage protection: how much of every produce limit is left, given how full the cluster's volumes are. One number, the
# throttle factor: 1 = OPEN, between = THROTTLE, 0 = PAUSE. The worst volume of any active broker decides: for all, as
# replication fills disks that the producing clients' own broker doesn't have; or, with scope "affected", for the topics
# with a replica on it. Two ways to say how full is too full, and two to go on without data: `Keeper` keeps the last
# valid factor for a while [DISK], `SnapshotView` takes the fail-safe as soon as one active broker's state is unknown
# [035].
#
# Knows no Kafka, no file, no clock: `now` is monotonic, `wall` is Unix time. engine.py applies the factor to requests.
#
# volumes.py    volumes, limits of one volume, and the interfaces of sources
# limits.py     how full is too full
# judging.py    all volumes judged
# scope.py      the topics that full volumes hold
# members.py    brokers that left with a full volume, and brokers that have just joined
# override.py   an operator's hand on it
# keeping.py    the factor, and how long it holds while nothing is seen
# snapshots.py  what snapshots say together
# forecast.py   how fast a volume fills, and when it is at its limits
# spread.py     who fills it, and whether what may come has room behind its hard limit
#
# Sources: [DISK] stop production on a full disk; [035] cluster wide volume usage (both proposals for Strimzi's plugin).

from policies.storage.forecast import Fill, Forecast, Trend
from policies.storage.judging import RELEASE, Assessment, Finding, assess
from policies.storage.keeping import GRACE_S, Factor, Keeper, Origin, State
from policies.storage.limits import MinAvailable, PlaceLimits, SoftHard, check_pair
from policies.storage.members import Last, Memory, Newcomers, volumes_of
from policies.storage.override import MAX_REASON, InvalidOverride, Overridden, Override, override
from policies.storage.scope import Affected, Placement, Scope, crowded, find_affected, matcher
from policies.storage.snapshots import MAX_AHEAD_S, FailSafe, Reason, Snapshot, SnapshotView, View
from policies.storage.spread import Headroom, Share, Spread, Writers, find_headroom, find_writers
from policies.storage.volumes import (
    LIMIT_TYPES,
    FactorSource,
    LimitError,
    LimitPolicy,
    LimitType,
    Observation,
    ObservationFailed,
    QuotaSource,
    QuotaValues,
    Volume,
    VolumeLimit,
    VolumeSource,
    checked,
)

__all__ = [
    "GRACE_S",
    "LIMIT_TYPES",
    "MAX_AHEAD_S",
    "MAX_REASON",
    "RELEASE",
    "Affected",
    "Assessment",
    "Factor",
    "FactorSource",
    "FailSafe",
    "Fill",
    "Finding",
    "Forecast",
    "Headroom",
    "InvalidOverride",
    "Keeper",
    "Last",
    "LimitError",
    "LimitPolicy",
    "LimitType",
    "Memory",
    "MinAvailable",
    "Newcomers",
    "Observation",
    "ObservationFailed",
    "Origin",
    "Overridden",
    "Override",
    "PlaceLimits",
    "Placement",
    "QuotaSource",
    "QuotaValues",
    "Reason",
    "Scope",
    "Share",
    "Snapshot",
    "SnapshotView",
    "SoftHard",
    "Spread",
    "State",
    "Trend",
    "View",
    "Volume",
    "VolumeLimit",
    "VolumeSource",
    "Writers",
    "assess",
    "check_pair",
    "checked",
    "crowded",
    "find_affected",
    "find_headroom",
    "find_writers",
    "matcher",
    "override",
    "volumes_of",
]
