# What snapshots of volumes say together: 035's freshness and fail-safe. `now` is monotonic, `wall` is Unix time.

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from policies.storage.judging import VolumeAssessment, assess_volumes
from policies.storage.keeping import StorageFactor
from policies.storage.limits import SoftHard
from policies.storage.members import NewBrokers
from policies.storage.volumes import LimitPolicy, ObservationFailed, Volume
from policies.text import ERROR_CHARS, one_line

FailSafe = Literal["PAUSE", "OPEN"]
SnapshotFault = Literal["missing", "stale", "ahead", "partial"]  # why a broker's snapshot doesn't say its state

MAX_AHEAD_S: Final = 60.0  # a snapshot's clock may be so far ahead of ours; beyond, its age means nothing
_TICK_S: Final = 0.001  # Unix time, as a float, has no finer resolution than a quarter of a microsecond
_MAX_NAMED: Final = 3  # in a message; of the rest, the number


class VolumeSnapshot(NamedTuple):
    """A broker's volumes as its agent reported them. `at`: 035's snapshotAt, in Unix seconds. `unreadable`: log dirs
    that it could not look into: the broker may be writing to them all the same.
    """

    broker_id: int
    at: float
    volumes: tuple[Volume, ...]
    unreadable: tuple[str, ...] = ()


class SnapshotAssessment(NamedTuple):
    """The state that `SnapshotView` finds. `assessment`: of the volumes that are known. `new`: active brokers that
    joined a moment ago and may still be without a snapshot. `departed`: brokers that aren't active any more and whose
    volumes count on, each with the wall time until which they do.

    `reasons`: the active brokers whose state isn't known. `problem`: any other fault, of the list of the active brokers
    or of the policy, or "". `unknown`: brokers to be taken for full since their state isn't known, with the reason;
    None: all of them are.
    """

    factor: StorageFactor
    assessment: VolumeAssessment
    reasons: Mapping[int, SnapshotFault]
    problem: str = ""
    unknown: Mapping[int, str] | None = None
    new: frozenset[int] = frozenset()
    departed: Mapping[int, float] = MappingProxyType({})

    @property
    def lacks_data(self) -> bool:
        """Whether less passes than the known volumes allow: 035's metric "throttling applied due lack of data"."""
        return self.factor.value < self.assessment.factor


class SnapshotView:
    """035's freshness and fail-safe: every active broker must have a snapshot younger than `max_age_s`.

    It must be whole, too: of all the broker's log dirs. Else PAUSE: 0. OPEN: the factor of the volumes that are known,
    so a known breach still pauses. Freshness goes by the snapshots' own time, never by when they were published or
    read. The last one in the log counts, whatever its time: compaction leaves that one, so a gateway that starts now
    sees no other.

    The list of active brokers is no snapshot but an observation of our own: it holds for `list_age_s` (None: as long as
    a snapshot) of monotonic time, whatever the wall clock does meanwhile.

    A broker that the list has for the first time has `grace_s` until its first snapshot. One that leaves the list
    counts on until its last snapshot is `forget_after_s` old, if a volume is at a limit there (None: no longer than it
    is active): every reader of the topic knows it, also after a restart.

    Without a policy only the limits count that the snapshots bring. `paused`: as in `assess_volumes`; set it after a
    restart if the workers still hold a PAUSE that was observed.

    Raises:
        ValueError: a maximum age that is none, or an unknown fail-safe.
    """

    __slots__ = (
        "_active", "_listed_at", "_newcomers", "_policy", "_reason", "_snapshots", "fail_safe", "forget_after_s",
        "list_age_s", "max_age_s", "paused",
    )  # fmt: skip

    def __init__(
        self,
        max_age_s: float,
        fail_safe: FailSafe = "PAUSE",
        policy: LimitPolicy | None = None,
        list_age_s: float | None = None,
        *,
        grace_s: float = 0.0,
        forget_after_s: float | None = None,
    ) -> None:
        self.list_age_s = max_age_s if list_age_s is None else list_age_s
        for what, age in (("snapshots.max_age", max_age_s), ("age of the list of brokers", self.list_age_s)):
            if not (math.isfinite(age) and age > 0):
                raise ValueError(f"{what}: {age} s must be above 0")
        if fail_safe not in ("PAUSE", "OPEN"):
            raise ValueError(f"snapshots.fail_safe: {fail_safe} must be PAUSE or OPEN")
        self.max_age_s = max_age_s
        self.forget_after_s = forget_after_s
        self._newcomers = NewBrokers(grace_s)
        self.fail_safe: FailSafe = fail_safe
        self.paused = False
        self._policy = policy or SoftHard()
        self._snapshots: dict[int, VolumeSnapshot] = {}
        self._active: frozenset[int] = frozenset()
        self._listed_at = -math.inf
        self._reason = ""

    def put_snapshot(self, broker_id: int, snapshot: VolumeSnapshot | None) -> None:
        """The broker's record in the topic; None: a tombstone, it has none any more."""
        self._newcomers.mark_described(broker_id)
        if snapshot is None:
            self._snapshots.pop(broker_id, None)
        else:
            self._snapshots[broker_id] = snapshot

    def set_active_brokers(self, brokers: Collection[int], now: float) -> None:
        """Take the list of active brokers. Without a single one the state of none is known."""
        self._newcomers.record_active(brokers, frozenset(brokers) - self._snapshots.keys(), now)
        self._active = frozenset(brokers)
        self._listed_at = now
        self._reason = ""

    def record_list_failure(self, reason: str) -> None:
        """The list could not be had now: the last one holds until it is too old."""
        self._reason = one_line(reason, ERROR_CHARS)

    def assess_current(self, wall: float, now: float) -> SnapshotAssessment:
        """The state that holds now, by both clocks. Asking twice at one time says the same twice. It remembers
        `paused`.
        """
        problem = self._list_fault(now)
        reasons: dict[int, SnapshotFault] = {}
        new: set[int] = set()
        volumes: list[Volume] = []
        for broker_id in sorted(self._active):
            snapshot = self._snapshots.get(broker_id)
            # One without volumes doesn't say how full they are.
            reason = self._snapshot_fault(snapshot.at, wall) if snapshot is not None and snapshot.volumes else "missing"
            if reason is None and snapshot is not None:
                volumes += snapshot.volumes
                reason = "partial" if snapshot.unreadable else None
            if snapshot is None and self._newcomers.grace_left_s(broker_id, now) > 0:
                new.add(broker_id)
            elif reason is not None:
                reasons[broker_id] = reason
        departed: dict[int, float] = {}
        try:
            for broker_id, snapshot, until in self._departed_snapshots(wall):
                had = [volume._replace(left=True) for volume in snapshot.volumes]
                if assess_volumes(had, self._policy, self.paused).factor < 1:
                    volumes += had
                    departed[broker_id] = until
            assessment = assess_volumes(volumes, self._policy, self.paused)
        except ObservationFailed as error:
            assessment = VolumeAssessment(1.0, (), None)
            problem = str(error)
        is_known = not problem and not reasons
        # An unknown volume may be the one that caused the pause: only a complete view ends it.
        self.paused = assessment.paused or (self.paused and not is_known)
        if is_known:
            factor = StorageFactor(assessment.factor, "valid", assessment.reason_text)
            return SnapshotAssessment(factor, assessment, reasons, "", {}, frozenset(new), departed)
        value = 0.0 if self.fail_safe == "PAUSE" else assessment.factor
        why = (
            assessment.reason_text
            if value == assessment.factor and assessment.reason_text
            else self._unknown_text(problem, reasons)
        )
        unknown: dict[int, str] | None = {}
        if self.fail_safe == "PAUSE":
            unknown = (
                None
                if problem
                else {broker_id: self._unknown_text("", {broker_id: reasons[broker_id]}) for broker_id in reasons}
            )
        return SnapshotAssessment(
            StorageFactor(value, "fail-safe", why), assessment, reasons, problem, unknown, frozenset(new), departed
        )

    def changes_at(self, wall: float, now: float) -> float | None:
        """The monotonic time at which `assess_current` may change by itself if no clock is set; None: never."""
        left = [self._listed_at + self.list_age_s - now]
        for broker_id in self._active:
            snapshot = self._snapshots.get(broker_id)
            if snapshot is not None:
                left += (snapshot.at + self.max_age_s - wall, snapshot.at - MAX_AHEAD_S - wall)
            else:
                left.append(self._newcomers.grace_left_s(broker_id, now))
        left += (until - wall for _, _, until in self._departed_snapshots(wall))
        soonest = min((each for each in left if each > 0), default=None)
        return None if soonest is None else now + soonest

    def next_factor(self, wall: float, now: float) -> StorageFactor | None:
        """The state that it changes into then. Asking doesn't make it remember the future."""
        until = self.changes_at(wall, now)
        if until is None:
            return None
        ahead, paused = until - now + _TICK_S, self.paused
        try:
            return self.assess_current(wall + ahead, now + ahead).factor
        finally:
            self.paused = paused

    def _departed_snapshots(self, wall: float) -> Iterator[tuple[int, VolumeSnapshot, float]]:
        """The last snapshots of brokers that aren't active, each with the wall time until which it counts."""
        if self.forget_after_s is None or not self._active:
            return
        for broker_id, snapshot in sorted(self._snapshots.items()):
            until = snapshot.at + self.forget_after_s
            if broker_id not in self._active and until - wall > 0:
                yield broker_id, snapshot, until

    def _snapshot_fault(self, at: float, wall: float) -> SnapshotFault | None:
        """The same sums as in `until`."""
        if at - MAX_AHEAD_S - wall > 0:
            return "ahead"
        return None if at + self.max_age_s - wall > 0 else "stale"

    def _list_fault(self, now: float) -> str:
        reason = f": {self._reason}" if self._reason else ""
        if self._listed_at == -math.inf:
            return f"the active brokers are not known yet{reason}"
        if not self._listed_at + self.list_age_s - now > 0:
            return f"the list of active brokers is not younger than {self.list_age_s:g} s{reason}"
        return "" if self._active else "no broker is active"

    def _unknown_text(self, problem: str, reasons: Mapping[int, SnapshotFault]) -> str:
        """Without ages: a message that changes every second would be logged every second."""
        partial = {b: one_line(self._snapshots[b].unreadable[0]) for b, why in reasons.items() if why == "partial"}
        texts: dict[SnapshotFault, str] = {
            "missing": "no snapshot of its volumes",
            "stale": f"no snapshot younger than {self.max_age_s:g} s",
            "ahead": f"a snapshot more than {MAX_AHEAD_S:g} s ahead of this clock",
            "partial": "a log dir that its agent can't read",
        }
        parts = [problem] if problem else []
        named = list(reasons.items())[:_MAX_NAMED]
        parts += [f"broker {b} has {texts[why]}{': ' + partial[b] if b in partial else ''}" for b, why in named]
        if len(reasons) > _MAX_NAMED:
            parts.append(f"{len(reasons) - _MAX_NAMED} more are unknown")
        return ", ".join(parts)
