# Two ways to say how full is too full: `MinAvailable` [DISK], `SoftHard` [035].
#
# Soft and hard limits are compared as free bytes of the volume at hand, whatever they are written in: so they may be of
# different types, and disks of different sizes. Of several hard limits, or soft ones, that one counts which the volume
# reaches first.

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from policies.storage.volumes import LimitError, LimitPolicy, Volume, VolumeLimit, check_limit
from policies.text import compile_wildcards


class MinAvailable(LimitPolicy):
    """DISK's limit: nothing is produced while `bytes`, or that `ratio` of its size, or less is free on any volume.

    One value for every volume: their own limits don't count. No soft limit, therefore no hysteresis.

    Raises:
        LimitError: not exactly one, or not a number of bytes or a ratio 0..1.
    """

    __slots__ = ("_limit",)

    def __init__(self, *, bytes: float | None = None, ratio: float | None = None) -> None:
        if (bytes is None) == (ratio is None):
            given = "neither is" if bytes is None else f"both are ({bytes:g}, {ratio:g})"
            raise LimitError(f"exactly one of min.available.bytes and min.available.ratio must be given: {given}")
        if bytes is not None:
            self._limit = check_limit(VolumeLimit("MinFreeBytes", bytes), "min.available.bytes")
        elif ratio is not None:
            self._limit = check_limit(VolumeLimit("MinFreePercentage", ratio), "min.available.ratio")

    def breaches_hard_limit(self, volume: Volume) -> bool:
        if not volume.is_sized:
            return True
        if self._limit.type == "MinFreePercentage":
            return volume.available_ratio <= self._limit.level
        return volume.available <= self._limit.level

    def breaches_soft_limit(self, volume: Volume) -> bool:
        return self.breaches_hard_limit(volume)

    def quota_factor(self, volume: Volume) -> float:
        return 0.0 if self.breaches_hard_limit(volume) else 1.0

    def levels(self, volume: Volume) -> tuple[float | None, float | None]:
        return None, self._limit.free_bytes(volume.total)


class SoftHard(LimitPolicy):
    """Limits of proposal 035: the factor is 1 down to `soft`, and from there linear in free bytes to 0 at `hard`. Of
    several limits, the one that the volume reaches first counts.

    The first of `places` that matches a volume replaces these limits. A volume's own limits take precedence over
    either, all soft and all hard ones separately. With a hard limit only: 1, then 0. With a soft one only: the end of
    the volume is the hard one. With none: 1. Where soft lies at or below hard on a volume, only hard counts.

    Raises:
        LimitError: a level is not valid, or both limits are of one type and soft would be reached after hard on every
            volume.
    """

    __slots__ = ("_places", "hard", "soft")

    def __init__(
        self,
        soft: VolumeLimit | Sequence[VolumeLimit] | None = None,
        hard: VolumeLimit | Sequence[VolumeLimit] | None = None,
        places: Iterable[PlaceLimits] = (),
    ) -> None:
        self.soft, self.hard = check_limit_pair(_as_sequence(soft), _as_sequence(hard))
        self._places = tuple((compile_wildcards(each.match), each._replace(soft=_as_sequence(each.soft),
                                     hard=_as_sequence(each.hard)))
                             for each in places)  # fmt: skip
        for _, each in self._places:
            check_limit_pair(each.soft, each.hard, f"volumes {each.match}: ")

    def breaches_hard_limit(self, volume: Volume) -> bool:
        _, hard = self.levels(volume)
        # "Reaching or exceeding" [035, current situation]: at the level itself nothing is left of soft - hard.
        return hard is not None and (not volume.is_sized or volume.available <= hard)

    def breaches_soft_limit(self, volume: Volume) -> bool:
        soft, _ = self.levels(volume)
        return soft is not None and (not volume.is_sized or volume.available < soft)

    def quota_factor(self, volume: Volume) -> float:
        if self.breaches_hard_limit(volume):
            return 0.0
        soft, hard = self.levels(volume)
        if soft is None or hard is None or volume.available >= soft:  # so it is wherever soft is at or below hard
            return 1.0
        # Not below the smallest number: beyond 2**53 bytes the difference may vanish, and 0 would be a breach.
        return max((volume.available - hard) / (soft - hard), math.ulp(0.0))

    def levels(self, volume: Volume) -> tuple[float | None, float | None]:
        (soft, _), (hard, _) = self._find_limits(volume)
        if soft is None:
            return None, None if hard is None else hard.free_bytes(volume.total)
        return soft.free_bytes(volume.total), 0.0 if hard is None else hard.free_bytes(volume.total)

    def limit_reasons(self, volume: Volume) -> tuple[str, str]:
        """Which soft and which hard limit these are, where there are several; "" where there is one."""
        (_, soft), (_, hard) = self._find_limits(volume)
        return soft, hard

    def _find_limits(self, volume: Volume) -> tuple[tuple[VolumeLimit | None, str], tuple[VolumeLimit | None, str]]:
        """The soft and the hard limit, each with its description."""
        name = f"{volume.broker_id}:{volume.name}"
        place = next((place for pattern, place in self._places if pattern.fullmatch(name)), _NO_PLACE)
        where = f"volumes {place.match}"
        soft = _strictest_limit(volume, place.soft, where) if place.soft else _strictest_limit(volume, self.soft, "")
        hard = _strictest_limit(volume, place.hard, where) if place.hard else _strictest_limit(volume, self.hard, "")
        return (
            soft if volume.soft is None else (volume.soft, ""),
            hard if volume.hard is None else (volume.hard, ""),
        )


class PlaceLimits(NamedTuple):
    """Limits of the volumes whose "broker id:name" the pattern matches; `*` stands for any characters. Without soft
    ones, or hard ones, those for all volumes hold.
    """

    match: str
    soft: Sequence[VolumeLimit] = ()
    hard: Sequence[VolumeLimit] = ()


_NO_PLACE: Final = PlaceLimits("")


def check_limit_pair(
    soft: Sequence[VolumeLimit], hard: Sequence[VolumeLimit], where: str = ""
) -> tuple[Sequence[VolumeLimit], Sequence[VolumeLimit]]:
    """The pair, if it fits together. `where`: where it is written, for the message.

    Raises:
        LimitError: it doesn't.
    """
    soft, hard = (
        tuple(check_limit(each, what) for each in limits) for what, limits in (("soft", soft), ("hard", hard))
    )
    for early, late in itertools.product(soft, hard):
        if (early.lag_behind(late) or 0.0) > 0:
            raise LimitError(f"{where}the soft limit ({early}) must be reached before the hard limit ({late})")
    return soft, hard


def _as_sequence(limits: VolumeLimit | Sequence[VolumeLimit] | None) -> Sequence[VolumeLimit]:
    if limits is None:
        return ()
    return (limits,) if isinstance(limits, VolumeLimit) else tuple(limits)


def _strictest_limit(volume: Volume, limits: Sequence[VolumeLimit], where: str) -> tuple[VolumeLimit | None, str]:
    """The limit that is reached first, and what distinguishes it from the others."""
    found = max(limits, key=lambda each: each.free_bytes(volume.total), default=None)
    if found is None or not (where or len(limits) > 1):
        return found, ""
    return found, f"{found} of {where}" if where else str(found)
