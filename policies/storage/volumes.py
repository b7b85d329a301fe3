# Volumes, limits of one volume, and the interfaces by which others bring volumes, factors and quotas (plugins).
#
# Sources are called elsewhere, in threads; what they said comes in as values. Knows no judgement and no clock.

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Protocol, get_args

from policies.text import one_line
from policies.units import format_size

LimitType = Literal["ConsumedBytes", "MinFreeBytes", "MinFreePercentage"]
VolumeKey = tuple[int, str]  # broker id, volume

LIMIT_TYPES: Final[tuple[LimitType, ...]] = get_args(LimitType)


class LimitError(ValueError):
    """Limits that can't be: one line that names them and right ones."""


class ObservationFailed(Exception):
    """No usable view of the cluster: one line with the reason."""


class VolumeLimit(NamedTuple):
    """`level`: bytes; of MinFreePercentage a share 0..1 of the volume's size. Reached when no more is free."""

    type: LimitType
    level: float

    def free_bytes(self, total: int) -> float:
        """The free space of a volume of that size at which this limit is reached.

        ConsumedBytes beyond the volume's size: 0, since a volume that is full to the last byte can't take more either.
        """
        if self.type == "MinFreeBytes":
            return float(self.level)
        if self.type == "ConsumedBytes":
            return max(0.0, float(total - self.level))
        share = self.level * max(total, 0)
        # 0.29 * 100 is less than 29, while 29 / 100 is 0.29: a volume with exactly this share free is at the limit.
        whole = round(share)
        return float(whole) if total > 0 and whole / total == self.level else share

    def lag_behind(self, other: VolumeLimit) -> float | None:
        """By how much of a level a filling volume reaches this limit after the other one; below 0: before it. None:
        they are of different types, so it depends on the volume's size.
        """
        if self.type != other.type:
            return None
        return self.level - other.level if self.type == "ConsumedBytes" else other.level - self.level

    def __str__(self) -> str:
        level = f"{self.level * 100:g} %" if self.type == "MinFreePercentage" else format_size(self.level)
        return f"{self.type} {level}"


class Volume(NamedTuple):
    """One log dir of one broker; sizes in bytes. `soft`, `hard`: its own limits, else its snapshot's, if any. `left`:
    its broker isn't active any more, and this is what it had last.
    """

    broker_id: int
    name: str
    total: int
    available: int
    soft: VolumeLimit | None = None
    hard: VolumeLimit | None = None
    left: bool = False

    @property
    def key(self) -> VolumeKey:
        """Identifies it in the cluster."""
        return self.broker_id, self.name

    @property
    def consumed(self) -> int:
        return self.total - self.available

    @property
    def available_ratio(self) -> float:
        """0..1; 0 where the size is unknown."""
        return self.available / self.total if self.is_sized else 0.0

    @property
    def is_sized(self) -> bool:
        """Whether its sizes can be true. Sources fail on such a volume; if one comes, it counts as full."""
        return self.total > 0 and self.available >= 0

    def __str__(self) -> str:
        return volume_text(self.key)


def volume_text(key: VolumeKey) -> str:
    """For messages."""
    return f"broker {key[0]} volume {one_line(key[1])}"


class Observation(NamedTuple):
    """`brokers`: the active (described, not fenced) ones. `offline`: (broker id, log dir) that were left out.
    `registered`: all that belong to the cluster, fenced ones among them; None: not known.
    """

    brokers: frozenset[int]
    volumes: tuple[Volume, ...]
    offline: tuple[tuple[int, str], ...] = ()
    registered: frozenset[int] | None = None

    @property
    def missing(self) -> frozenset[int]:
        """Active brokers without a single log dir, not even an offline one: a view with such is not valid [DISK]."""
        described = {volume.broker_id for volume in self.volumes} | {broker_id for broker_id, _ in self.offline}
        return self.brokers - described


class QuotaValues(NamedTuple):
    """V1's thresholds in bytes per second: `total` per broker (None = no limit), `topics` by name."""

    total: float | None
    topics: Mapping[str, float]


class VolumeSource(Protocol):
    """The source of volumes. Extension point; called in a thread, may take its time."""

    def observe(self) -> Observation:
        """All volumes of all active brokers.

        Raises:
            ObservationFailed: also when only one broker's volumes are not known.
        """


class FactorSource(Protocol):
    """A source of decided factors: a single broker, a service [DISK, 035]. Extension point; called in a thread."""

    def factor(self) -> float:
        """0..1.

        Raises:
            ObservationFailed: there is none now.
        """


class QuotaSource(Protocol):
    """The source of the quota values that the factor is applied to [DISK, 035]. Extension point; in a thread."""

    def quotas(self) -> QuotaValues:
        """The present values."""


class LimitPolicy(Protocol):
    """The meaning of a volume's fill level: 035's QuotaPolicy. Extension point; pure and quick."""

    def breaches_hard_limit(self, volume: Volume) -> bool:
        """Whether this volume alone pauses the cluster."""

    def breaches_soft_limit(self, volume: Volume) -> bool:
        """Whether this volume is beyond the level at which throttling begins."""

    def quota_factor(self, volume: Volume) -> float:
        """The part of the quota that this volume leaves: 1 .. 0; 0 exactly when the hard limit is reached."""

    def levels(self, volume: Volume) -> tuple[float | None, float | None]:
        """Soft and hard limit as free bytes of that volume, for metrics and messages; None: there is none."""


def check_limit(limit: VolumeLimit, what: str) -> VolumeLimit:
    """The limit, if its level is one. `what`: the place where it was written.

    Raises:
        LimitError: an unknown type; not a finite number, 0 or more; a share above 1.
    """
    if limit.type not in LIMIT_TYPES:
        raise LimitError(f"{what}: {one_line(str(limit.type))} must be one of {', '.join(LIMIT_TYPES)}")
    if not (math.isfinite(limit.level) and limit.level >= 0):
        raise LimitError(f"{what}: {limit.level} must be a finite number, 0 or more")
    if limit.type == "MinFreePercentage" and limit.level > 1:
        raise LimitError(f"{what}: {limit.level:g} must be a share from 0 to 1 (0.05 is 5 %)")
    return limit
