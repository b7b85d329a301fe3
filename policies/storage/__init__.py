# Storage protection: how much of every produce limit is left, given how full the cluster's volumes are. One number, the
# throttle factor: 1 = OPEN, between = THROTTLE, 0 = PAUSE. The worst volume of any active broker decides: for all, as
# replication fills disks that the producing clients' own broker doesn't have; or, with scope "affected", for the topics
# with a replica on it. Two ways to say how full is too full, and two to go on without data: `FactorKeeper` keeps the
# last valid factor for a while [DISK], `SnapshotView` takes the fail-safe as soon as one active broker's state is
# unknown [035].
#
# Knows no Kafka, no file, no clock: `now` is monotonic, `wall` is Unix time.
#
# volumes.py    volumes, limits of one volume, and the interfaces of sources
# limits.py     how full is too full
# judging.py    all volumes judged
# scope.py      the topics that full volumes hold
# members.py    brokers that left with a full volume, and brokers that have just joined
# override.py   an operator's override
# keeping.py    the factor, and how long it holds while nothing is seen
# snapshots.py  what snapshots say together
# forecast.py   how fast a volume fills, and when it is at its limits
# spread.py     who fills it, and whether what may come has room behind its hard limit
# request_limits.py
#               what of it a request meets: the pause, the queue of all producers, and limits of affected topics
#
# Sources: [DISK] stop production on a full disk; [035] cluster wide volume usage (both proposals for Strimzi's plugin).

from policies.storage.forecast import FillRate, FillTrend, VolumeForecast
from policies.storage.judging import RELEASE_FRACTION, VolumeAssessment, VolumeFinding, assess_volumes
from policies.storage.keeping import GRACE_S, FactorKeeper, FactorOrigin, FactorState, StorageFactor
from policies.storage.limits import MinAvailable, PlaceLimits, SoftHard, check_limit_pair
from policies.storage.members import KeptVolumes, NewBrokers, VolumeKeeper, departed_volumes
from policies.storage.override import (
    MAX_REASON_CHARS,
    InvalidOverride,
    OverrideOutcome,
    StorageOverride,
    apply_override,
)
from policies.storage.scope import (
    AffectedTopics,
    ReplicaPlacement,
    StorageScope,
    crowded_brokers,
    find_affected,
    topic_matcher,
)
from policies.storage.snapshots import (
    MAX_AHEAD_S,
    FailSafe,
    SnapshotAssessment,
    SnapshotFault,
    SnapshotView,
    VolumeSnapshot,
)
from policies.storage.spread import (
    ReplicaShare,
    ReplicaSpread,
    VolumeHeadroom,
    VolumeWriters,
    find_headroom,
    find_writers,
)
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
    VolumeKey,
    VolumeLimit,
    VolumeSource,
    check_limit,
    volume_text,
)

__all__ = [
    "GRACE_S",
    "LIMIT_TYPES",
    "MAX_AHEAD_S",
    "MAX_REASON_CHARS",
    "RELEASE_FRACTION",
    "AffectedTopics",
    "FactorKeeper",
    "FactorOrigin",
    "FactorSource",
    "FactorState",
    "FailSafe",
    "FillRate",
    "FillTrend",
    "InvalidOverride",
    "KeptVolumes",
    "LimitError",
    "LimitPolicy",
    "LimitType",
    "MinAvailable",
    "NewBrokers",
    "Observation",
    "ObservationFailed",
    "OverrideOutcome",
    "PlaceLimits",
    "QuotaSource",
    "QuotaValues",
    "ReplicaPlacement",
    "ReplicaShare",
    "ReplicaSpread",
    "SnapshotAssessment",
    "SnapshotFault",
    "SnapshotView",
    "SoftHard",
    "StorageFactor",
    "StorageOverride",
    "StorageScope",
    "Volume",
    "VolumeAssessment",
    "VolumeFinding",
    "VolumeForecast",
    "VolumeHeadroom",
    "VolumeKeeper",
    "VolumeKey",
    "VolumeLimit",
    "VolumeSnapshot",
    "VolumeSource",
    "VolumeWriters",
    "apply_override",
    "assess_volumes",
    "check_limit",
    "check_limit_pair",
    "crowded_brokers",
    "departed_volumes",
    "find_affected",
    "find_headroom",
    "find_writers",
    "topic_matcher",
    "volume_text",
]
