# Brokers that come and go. Of those that left while a volume of theirs was at a limit, what they had last counts on,
# until they are seen again or it is too old: a broker that died of a full disk comes back to a backlog of replication,
# and without a memory all that its disk held back would be let in as soon as the controller has fenced it. One that
# left with room on all of its volumes is forgotten at once, as [DISK] forgets every one. Those that have just joined
# may be without a description for a while: nothing is on their disks yet.
#
# Knows no clock and no source: `now` is monotonic time. Of snapshots, snapshots.py says the same by their own times.

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from policies.storage.judging import VolumeAssessment
from policies.storage.volumes import Volume


class KeptVolumes(NamedTuple):
    """The last known volumes of a broker with a volume at a limit. `left_at`: the time at which the broker was first
    missed; None: it is active.
    """

    volumes: tuple[Volume, ...]
    left_at: float | None = None


class VolumeKeeper:
    """Keeps the last known volumes of brokers with one at a limit, by broker id, until `forget_after_s` after they
    left; None: it keeps none.

    Raises:
        ValueError: a time that is none.
    """

    __slots__ = ("_kept_volumes", "forget_after_s")

    def __init__(self, forget_after_s: float | None) -> None:
        if forget_after_s is not None and not (math.isfinite(forget_after_s) and forget_after_s > 0):
            raise ValueError(f"forget_after: {forget_after_s} s must be above 0")
        self.forget_after_s = forget_after_s
        # Replaced, never changed: `find_departed` is called in another thread.
        self._kept_volumes: Mapping[int, KeptVolumes] = {}

    @property
    def kept_volumes(self) -> Mapping[int, KeptVolumes]:
        """All of them, of active brokers too: a process that takes over needs them."""
        return self._kept_volumes

    def adopt_volumes(self, kept_volumes: Mapping[int, KeptVolumes]) -> None:
        """Continue with these, for brokers of which nothing is known here. Of two brokers that left, the later one
        counts.
        """
        if self.forget_after_s is None:
            return
        known = dict(self._kept_volumes)
        for broker_id, kept in kept_volumes.items():
            if broker_id not in known or _left_at(known[broker_id]) < _left_at(kept):
                known[broker_id] = kept
        self._kept_volumes = known

    def find_departed(
        self, active: Collection[int], now: float, registered: Collection[int] | None = None
    ) -> dict[int, KeptVolumes]:
        """Those that aren't among the active ones and count on. `registered`: others don't belong to the cluster any
        more; None: not known.
        """
        found = {}
        for broker_id, (volumes, left_at) in self._kept_volumes.items():
            since = now if left_at is None else left_at
            is_gone = registered is not None and broker_id not in registered
            if broker_id not in active and not is_gone and now < self._forgotten_at(since):
                found[broker_id] = KeptVolumes(tuple(volume._replace(left=True) for volume in volumes), since)
        return found

    def departure_ends(self, departed: Mapping[int, KeptVolumes]) -> dict[int, float]:
        """Until when each of these counts."""
        return {b: self._forgotten_at(left_at) for b, (_, left_at) in departed.items() if left_at is not None}

    def _forgotten_at(self, left_at: float) -> float:
        return left_at + (self.forget_after_s or 0.0)

    def record_assessment(self, assessment: VolumeAssessment, departed: Mapping[int, KeptVolumes]) -> None:
        """An observation succeeded. `assessment`: of the volumes of active brokers, and of those that `find_departed`
        returned.
        """
        if self.forget_after_s is None:
            return
        at_limit = {each.volume.broker_id for each in assessment.findings if assessment.factor_of(each) < 1}
        active: dict[int, list[Volume]] = {}
        for finding in assessment.findings:
            if finding.volume.broker_id in at_limit and not finding.volume.left:
                active.setdefault(finding.volume.broker_id, []).append(finding.volume)
        kept = {broker_id: each for broker_id, each in departed.items() if broker_id in at_limit}
        self._kept_volumes = kept | {broker_id: KeptVolumes(tuple(volumes)) for broker_id, volumes in active.items()}


class NewBrokers:
    """Brokers that joined while others were observed, and haven't described a log dir so far. One that was active or
    registered before is none: what is on its disks can't be determined, as [035] has it, until it describes them.
    """

    __slots__ = ("_joined", "grace_s")

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self._joined: Mapping[
            int, float
        ] = {}  # every known broker; -inf: not new. replaced, never changed: see VolumeKeeper

    def grace_left_s(self, broker_id: int, now: float) -> float:
        """For how long the broker may be without a description; 0 or less: it has to have one."""
        return self._joined.get(broker_id, now) + self.grace_s - now if self._joined else 0.0

    def excused_brokers(self, missing: Collection[int], now: float) -> frozenset[int]:
        """Those of the missing ones that an observation may do without."""
        return frozenset(broker_id for broker_id in missing if self.grace_left_s(broker_id, now) > 0)

    def record_active(
        self, active: Collection[int], excused: Collection[int], now: float, registered: Collection[int] | None = None
    ) -> None:
        """An observation succeeded, and did without these. `registered`: active ones, and those that are fenced; others
        don't belong to the cluster any more. None: not known.
        """
        old = -math.inf
        joined = dict(self._joined) if registered is None else {b: self._joined.get(b, old) for b in registered}
        for broker_id in active:
            is_new = self._joined and broker_id in excused
            joined[broker_id] = self._joined.get(broker_id, now) if is_new else old
        self._joined = joined

    def mark_described(self, broker_id: int) -> None:
        """The broker isn't new any more, if it was known."""
        if broker_id in self._joined:
            self._joined = {**self._joined, broker_id: -math.inf}


def departed_volumes(departed: Mapping[int, KeptVolumes]) -> Iterable[Volume]:
    """All volumes of these."""
    return (volume for kept in departed.values() for volume in kept.volumes)


def _left_at(kept: KeptVolumes) -> float:
    return math.inf if kept.left_at is None else kept.left_at
