# Volumes, snapshots and limits of any size, for tests of storage protection.

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from policies.storage import (
    LIMIT_TYPES,
    FailSafe,
    LimitPolicy,
    LimitType,
    MinAvailable,
    SnapshotView,
    SoftHard,
    Volume,
    VolumeLimit,
    VolumeSnapshot,
)

GB = 1_000_000_000
SOFT_HARD = SoftHard(
    VolumeLimit("MinFreeBytes", 20 * GB), VolumeLimit("MinFreeBytes", 10 * GB)
)  # a PAUSE ends above 11 GB

totals = st.integers(1, 2**60)
shares = st.floats(0, 1)


def limits(types: tuple[LimitType, ...] = LIMIT_TYPES) -> st.SearchStrategy[VolumeLimit]:
    def of(type_: LimitType) -> st.SearchStrategy[VolumeLimit]:
        level = shares if type_ == "MinFreePercentage" else st.one_of(st.integers(0, 2**60), st.floats(0, 2.0**60))
        return st.builds(VolumeLimit, st.just(type_), level)

    return st.sampled_from(types).flatmap(of)


def volumes(own: bool = True) -> st.SearchStrategy[Volume]:
    limit = st.none() | limits() if own else st.none()

    def sized(total: int) -> st.SearchStrategy[Volume]:
        names, free = st.sampled_from(["/data/0", "/data/1", "/data/2"]), st.integers(0, total)
        return st.builds(Volume, st.integers(0, 5), names, st.just(total), free, limit, limit, left=st.just(False))

    return totals.flatmap(sized)


def volume(available: float, broker_id: int = 1, total: float = 100 * GB, name: str = "/data/0") -> Volume:
    return Volume(broker_id, name, round(total), round(available))


def snapshot(broker_id: int, free: float, at: float = 1000.0, name: str = "/data/0") -> VolumeSnapshot:
    """Of one volume of 100 GB; `free`: GB."""
    return VolumeSnapshot(broker_id, at, (volume(free * GB, broker_id, name=name),))


def snapshot_view(
    *snapshots: VolumeSnapshot,
    fail_safe: FailSafe = "PAUSE",
    policy: LimitPolicy = SOFT_HARD,
    active: Iterable[int] | None = None,
    **more: float | None,
) -> SnapshotView:
    """These snapshots, 180 s at most; at 1000 the brokers `active` are active, or else those of the snapshots."""
    made = SnapshotView(180.0, fail_safe, policy, **more)  # type: ignore[arg-type]
    for each in snapshots:
        made.put_snapshot(each.broker_id, each)
    made.set_active_brokers(frozenset([each.broker_id for each in snapshots] if active is None else active), 1000.0)
    return made


def policies() -> st.SearchStrategy[MinAvailable | SoftHard]:
    per_volume = limits(("MinFreeBytes", "ConsumedBytes"))
    return st.one_of(
        st.builds(lambda level: MinAvailable(bytes=level), st.integers(0, 2**60)),
        st.builds(lambda level: MinAvailable(ratio=level), shares),
        st.builds(SoftHard, st.none() | limits(("MinFreePercentage",)), st.none() | per_volume),
        st.builds(SoftHard, st.none() | per_volume, st.none() | limits(("MinFreePercentage",))),
    )
