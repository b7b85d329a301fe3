# Storage protection: how much of every produce limit is left, given how full the cluster's volumes are. One number, the
# throttle factor: 1 = OPEN, between = THROTTLE, 0 = PAUSE. The worst volume of any active broker decides for all, as
# replication fills disks that the producing clients' own broker doesn't have. Two ways to say how full is too full
# (`MinAvailable` [DISK], `SoftHard` [035]), and two to go on without data: `Keeper` keeps the last valid factor for a
# while [DISK], `SnapshotView` takes the fail-safe as soon as one active broker's state is unknown [035].
#
# Knows no Kafka, no file, no clock: sources (VolumeSource …) are called elsewhere, in threads, and what they said comes
# in as values; `now` is monotonic, `wall` is Unix time. What the factor does to requests is engine.py's.
#
# Soft and hard limits are compared as free bytes of the volume at hand, whatever they are written in: so they may be of
# different types, and disks of different sizes.
#
# Sources: [DISK] stop production on a full disk; [035] cluster wide volume usage (both proposals for Strimzi's plugin).

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, NamedTuple, Protocol

from policies.text import ERROR_CHARS, one_line
from policies.units import format_size

LimitType = Literal["ConsumedBytes", "MinFreeBytes", "MinFreePercentage"]
State = Literal["OPEN", "THROTTLE", "PAUSE"]
Origin = Literal["valid", "kept", "fallback", "fail-safe"]
FailSafe = Literal["PAUSE", "OPEN"]
Reason = Literal["missing", "stale", "ahead"]  # why a broker's snapshot says nothing about it

RELEASE: Final = 0.1  # of the way from hard to soft has to be free again before a PAUSE by a soft/hard limit ends
MAX_AHEAD_S: Final = 60.0  # a snapshot's clock may be so far ahead of ours; beyond, its age means nothing
LIMIT_TYPES: Final[tuple[LimitType, ...]] = ("ConsumedBytes", "MinFreeBytes", "MinFreePercentage")
_TICK_S: Final = 0.001  # Unix time, as a float, can't tell less than a quarter of a microsecond
_BROKERS_NAMED: Final = 3  # in a message; of the rest, the number


class LimitError(ValueError):
    """Limits that can't be: one line that says which and what would be right."""


class ObservationFailed(Exception):
    """No usable view of the cluster: one line, why."""


class Limit(NamedTuple):
    """`level`: bytes; of MinFreePercentage a share 0..1 of the volume's size. Reached when so much or less is free."""

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
        # 0.29 * 100 is less than 29, while 29 / 100 is 0.29: who has exactly the share free has reached the limit.
        whole = round(share)
        return float(whole) if total > 0 and whole / total == self.level else share

    def __str__(self) -> str:
        level = f"{self.level * 100:g} %" if self.type == "MinFreePercentage" else format_size(self.level)
        return f"{self.type} {level}"


class Volume(NamedTuple):
    """One log dir of one broker; sizes in bytes. `soft`, `hard`: its own limits, else its snapshot's, if any."""

    broker_id: int
    name: str
    total: int
    available: int
    soft: Limit | None = None
    hard: Limit | None = None

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
        return f"broker {self.broker_id} volume {one_line(self.name)}"


class Observation(NamedTuple):
    """`brokers`: the active (described, not fenced) ones. `offline`: (broker id, log dir) that were left out."""

    brokers: frozenset[int]
    volumes: tuple[Volume, ...]
    offline: tuple[tuple[int, str], ...] = ()

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
    """Where volumes are looked up. Extension point; called in a thread, may take its time."""

    def observe(self) -> Observation:
        """All volumes of all active brokers.

        Raises:
            ObservationFailed: also when only one broker's volumes are not known.
        """


class FactorSource(Protocol):
    """Somebody else decides: a single broker, a service [DISK, 035]. Extension point; called in a thread."""

    def factor(self) -> float:
        """0..1.

        Raises:
            ObservationFailed: there is none now.
        """


class QuotaSource(Protocol):
    """Where the quota values come from that the factor is applied to [DISK, 035]. Extension point; in a thread."""

    def quotas(self) -> QuotaValues:
        """The present values."""


class LimitPolicy(Protocol):
    """What a volume's fill level means: 035's QuotaPolicy. Extension point; pure and quick."""

    def breaches_hard_limit(self, volume: Volume) -> bool:
        """Whether this volume alone pauses the cluster."""

    def breaches_soft_limit(self, volume: Volume) -> bool:
        """Whether this volume is beyond the level at which throttling begins."""

    def quota_factor(self, volume: Volume) -> float:
        """The part of the quota that this volume leaves: 1 .. 0; 0 exactly when the hard limit is reached."""

    def levels(self, volume: Volume) -> tuple[float | None, float | None]:
        """Soft and hard limit as free bytes of that volume, for metrics and messages; None: there is none."""


class MinAvailable(LimitPolicy):
    """DISK's limit: nothing is produced while `bytes`, or that `ratio` of its size, or less is free on any volume.

    One value for every volume: their own limits don't count. No soft limit, therefore no hysteresis.

    Raises:
        LimitError: not exactly one, or not a number of bytes or a ratio 0..1.
    """

    __slots__ = ("_limit",)

    def __init__(self, *, bytes: float | None = None, ratio: float | None = None) -> None:
        if (bytes is None) == (ratio is None):
            said = "neither is" if bytes is None else f"both are ({bytes:g}, {ratio:g})"
            raise LimitError(f"exactly one of min.available.bytes and min.available.ratio must be given: {said}")
        if bytes is not None:
            self._limit = checked(Limit("MinFreeBytes", bytes), "min.available.bytes")
        elif ratio is not None:
            self._limit = checked(Limit("MinFreePercentage", ratio), "min.available.ratio")

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
    """035's limits: 1 down to `soft`, from there linear in free bytes to 0 at `hard`.

    A volume's own limits win over these, each by itself. Only a hard limit: 1, then 0. Only a soft one: the volume's
    end is the hard one. None at all: 1. Where on some volume soft lies at or below hard, hard alone counts.

    Raises:
        LimitError: a level is none, or both are of one type and soft would be reached after hard on every volume.
    """

    __slots__ = ("hard", "soft")

    def __init__(self, soft: Limit | None = None, hard: Limit | None = None) -> None:
        self.soft = None if soft is None else checked(soft, "soft")
        self.hard = None if hard is None else checked(hard, "hard")
        if soft is not None and hard is not None and soft.type == hard.type:
            later = soft.level > hard.level if soft.type == "ConsumedBytes" else soft.level < hard.level
            if later:
                raise LimitError(f"the soft limit ({soft}) must be reached before the hard limit ({hard})")

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
        soft, hard = volume.soft or self.soft, volume.hard or self.hard
        if soft is None:
            return None, None if hard is None else hard.free_bytes(volume.total)
        return soft.free_bytes(volume.total), 0.0 if hard is None else hard.free_bytes(volume.total)


def checked(limit: Limit, what: str) -> Limit:
    """The limit, if its level is one. `what`: where it was written.

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


class Finding(NamedTuple):
    """One volume judged: `factor` by itself alone, levels as free bytes of it (None: there is none)."""

    volume: Volume
    factor: float
    soft_free: float | None
    hard_free: float | None

    @property
    def release_free(self) -> float | None:
        """A PAUSE ends when more than this is free. None: no soft limit above a hard one, so without hysteresis."""
        if self.soft_free is None or self.hard_free is None or self.soft_free <= self.hard_free:
            return None
        return self.hard_free + RELEASE * (self.soft_free - self.hard_free)

    @property
    def is_short_of_release(self) -> bool:
        """Whether a PAUSE would not end here: at the hard limit, or not yet far enough from it."""
        release = self.release_free
        return release is not None and self.volume.available <= release


class Assessment(NamedTuple):
    """All volumes judged. `factor`: of the cluster. `worst`: the finding it comes from; None where there is no volume.

    `findings`: each volume once, by broker and name. `held`: a former PAUSE is not over yet.
    """

    factor: float
    findings: tuple[Finding, ...]
    worst: Finding | None
    held: bool = False

    @property
    def violated(self) -> tuple[Finding, ...]:
        """The volumes at their hard limit."""
        return tuple(finding for finding in self.findings if finding.factor <= 0)

    @property
    def paused(self) -> bool:
        """What the next `assess` wants to know as `paused`: whether a limit with a hysteresis pauses now."""
        return self.held or any(f.factor <= 0 and f.release_free is not None for f in self.findings)

    @property
    def why(self) -> str:
        """One line for clients and logs: broker, volume, and how far it is. "" while the factor is 1."""
        if self.worst is None or self.factor >= 1:
            return ""
        volume, factor, soft, hard = self.worst
        free = (
            f"{format_size(volume.available)} of {format_size(volume.total)} free"
            if volume.is_sized
            else "size unknown"
        )
        text = f"{volume}: {free}"
        release = self.worst.release_free
        if factor > 0 and self.held and release is not None:
            return f"{text}, paused until more than {format_size(release)} are free"
        if factor > 0 and soft is not None and hard is not None:
            return f"{text}, between soft limit {format_size(soft)} and hard limit {format_size(hard)}"
        return text if hard is None else f"{text}, hard limit at {format_size(hard)}"


def assess(volumes: Iterable[Volume], policy: LimitPolicy, paused: bool) -> Assessment:
    """Judge the cluster by its worst volume. No volume: 1.

    `paused`: the last assessment's own `paused`. This bit and the volumes' levels are all that decides, no timer, so
    gateways that saw the same decide alike. Which volume it was is not remembered: that one may be gone with its
    broker, while another is now as close to its limit, and producers should not be let in there either.

    A gateway without a past says False: in the band above the hard limit it begins with what the line from soft to hard
    says, a tenth or less, and meets the others at the next PAUSE or release. True would stop it where that band was
    reached from above, for as long as nobody deletes anything. A restarted one goes on with the PAUSE that its workers
    still hold (`Keeper.adopt`): paused = that factor is 0 and was observed.

    Raises:
        ObservationFailed: the policy's factor is none.
    """
    findings = []
    for volume in sorted(dict.fromkeys(volumes), key=lambda volume: (*volume[:4], str(volume[4:]))):
        factor = policy.quota_factor(volume)
        if not 0 <= factor <= 1:
            raise ObservationFailed(f"{type(policy).__name__}: factor {factor} for {volume} must be from 0 to 1")
        findings.append(Finding(volume, factor, *policy.levels(volume)))
    if not findings:
        return Assessment(1.0, (), None)
    worst = min(findings, key=_room)
    holding = [finding for finding in findings if finding.is_short_of_release] if paused else []
    if holding and worst.factor > 0:
        return Assessment(0.0, tuple(findings), min(holding, key=_room), held=True)
    return Assessment(worst.factor, tuple(findings), worst, held=bool(holding))


def _room(finding: Finding) -> tuple[float, float]:
    """Of equally bad volumes, all full ones for instance, the fuller one is named."""
    return finding.factor, finding.volume.available_ratio


class Factor(NamedTuple):
    """The storage factor, 0..1, multiplies every produce limit; 0 is a PAUSE. `why` names broker and volume, for
    clients and the log; "" while it is 1. `observed_at`: monotonic time of the last valid observation.
    """

    value: float
    origin: Origin = "valid"
    why: str = ""
    observed_at: float | None = None

    @property
    def state(self) -> State:
        if self.value >= 1:
            return "OPEN"
        return "THROTTLE" if self.value > 0 else "PAUSE"


class Keeper:
    """DISK's validity and fallback: a valid factor outlives failures for `validity_s`, then `fallback` holds.

    In whole intervals, as recalculations are: one that fails `validity_s` or less after the last success changes
    nothing, the next one does. So a factor holds for `hold_s` = (floor(validity / interval) + 1) intervals, also when
    whoever should say `failed` is dead. Validity below the interval: the first failure ends it; but as long as
    nothing failed it holds half an interval longer, or every recalculation that takes a moment would let the fallback
    in.

    Raises:
        ValueError: an interval of 0 (that is: no storage protection), a validity below 0, a fallback outside 0..1.
    """

    __slots__ = ("_factor", "_is_own", "_reason", "_until", "fallback", "hold_s", "interval_s")

    def __init__(self, validity_s: float = 300.0, fallback: float = 1.0, interval_s: float = 60.0) -> None:
        if not (math.isfinite(interval_s) and interval_s > 0):
            raise ValueError(f"check_interval: {interval_s} s must be above 0")
        if not (math.isfinite(validity_s) and validity_s >= 0):
            raise ValueError(f"throttle.factor.validity.duration: {validity_s} s must be 0 or more")
        if not 0 <= fallback <= 1:
            raise ValueError(f"throttle.factor.fallback: {fallback} must be from 0 to 1")
        self.interval_s = interval_s
        self.fallback = float(fallback)
        self.hold_s = (math.floor(validity_s / interval_s + 1e-9) + 1) * interval_s  # 0.3 / 0.1 is less than 3
        self._factor: Factor | None = None  # the last valid one
        self._is_own = False  # observed, not adopted
        self._until = -math.inf
        self._reason = ""

    def observed(self, factor: float, why: str, now: float) -> None:
        """A recalculation succeeded.

        Raises:
            ObservationFailed: this is no factor. Nothing has changed then.
        """
        if not 0 <= factor <= 1:
            raise ObservationFailed(f"throttle factor {factor} must be from 0 to 1")
        self._factor = Factor(float(factor), "valid", why, now)
        self._is_own = True
        self._until = now + max(self.hold_s, 1.5 * self.interval_s)
        self._reason = ""

    def failed(self, reason: str, now: float) -> None:
        """A recalculation failed."""
        self._reason = one_line(reason, ERROR_CHARS)
        if self._factor is not None:
            self._factor = self._factor._replace(origin="kept")
            if self._factor.observed_at is not None:
                self._until = min(self._until, self._factor.observed_at + self.hold_s)

    def adopt(self, factor: Factor, until: float | None, now: float) -> None:
        """Go on, after a restart, with what a worker still holds and until when.

        Of several workers' the youngest counts, and of equally old ones the lowest. Only what was observed is worth
        keeping: a fallback, or what has no end, says nothing. An observation of this keeper's own is never replaced.
        """
        if self._is_own or until is None or factor.origin not in ("valid", "kept") or not 0 <= factor.value <= 1:
            return
        until = min(until, now + self.hold_s)  # the validity may have been shortened meanwhile
        known = self._factor
        if until > now and (known is None or (until, -factor.value) > (self._until, -known.value)):
            self._factor = factor._replace(origin="kept")
            self._until = until

    def current(self, now: float) -> Factor:
        """What holds at `now`."""
        return self._factor if self._factor is not None and now < self._until else self.next(now)

    def until(self, now: float) -> float | None:
        """When `current` changes by itself; None: never."""
        return self._until if now < self._until else None

    def next(self, now: float) -> Factor:
        """What it changes into then: the fallback."""
        seen = None if self._factor is None else self._factor.observed_at
        since = "yet" if self._factor is None else f"for more than {self.hold_s:g} s"
        reason = f": {self._reason}" if self._reason else ""
        return Factor(self.fallback, "fallback", f"no valid throttle factor {since}{reason}", seen)


class Snapshot(NamedTuple):
    """What a broker's agent said about its volumes. `at`: 035's snapshotAt, in Unix seconds."""

    broker_id: int
    at: float
    volumes: tuple[Volume, ...]


class View(NamedTuple):
    """What `SnapshotView` says. `assessment`: of the volumes that are known.

    `reasons`: the active brokers whose state isn't known. `problem`: what else is wrong, the list
    of the active brokers or the policy, or "".
    """

    factor: Factor
    assessment: Assessment
    reasons: Mapping[int, Reason]
    problem: str = ""

    @property
    def lacks_data(self) -> bool:
        """Whether less passes than the known volumes allow: 035's metric "throttling applied due lack of data"."""
        return self.factor.value < self.assessment.factor


class SnapshotView:
    """035's freshness and fail-safe: every active broker must have a snapshot younger than `max_age_s`.

    Else PAUSE: 0. OPEN: the factor of the volumes that are known, so a known breach still pauses. Freshness goes by the
    snapshots' own time, never by when they were published or read. The last one in the log counts, whatever its time:
    that is what compaction leaves, so a gateway that starts now sees no other.

    The list of active brokers is no snapshot but an observation of our own: it holds for `list_age_s` (None: as long as
    a snapshot) of monotonic time, whatever the wall clock does meanwhile.

    Without a policy only the limits count that the snapshots bring. `paused`: as in `assess`; set it after a restart if
    the workers still hold a PAUSE that was observed.

    Raises:
        ValueError: a maximum age that is none, or an unknown fail-safe.
    """

    __slots__ = (
        "_active", "_listed_at", "_policy", "_reason", "_snapshots", "fail_safe", "list_age_s", "max_age_s", "paused",
    )  # fmt: skip

    def __init__(
        self,
        max_age_s: float,
        fail_safe: FailSafe = "PAUSE",
        policy: LimitPolicy | None = None,
        list_age_s: float | None = None,
    ) -> None:
        self.list_age_s = max_age_s if list_age_s is None else list_age_s
        for what, age in (("snapshots.max_age", max_age_s), ("age of the list of brokers", self.list_age_s)):
            if not (math.isfinite(age) and age > 0):
                raise ValueError(f"{what}: {age} s must be above 0")
        if fail_safe not in ("PAUSE", "OPEN"):
            raise ValueError(f"snapshots.fail_safe: {fail_safe} must be PAUSE or OPEN")
        self.max_age_s = max_age_s
        self.fail_safe: FailSafe = fail_safe
        self.paused = False
        self._policy = policy or SoftHard()
        self._snapshots: dict[int, Snapshot] = {}
        self._active: frozenset[int] = frozenset()
        self._listed_at = -math.inf
        self._reason = ""

    def put(self, broker_id: int, snapshot: Snapshot | None) -> None:
        """The broker's record in the topic; None: a tombstone, it has none any more."""
        if snapshot is None:
            self._snapshots.pop(broker_id, None)
        else:
            self._snapshots[broker_id] = snapshot

    def active(self, brokers: Collection[int], now: float) -> None:
        """Which brokers are active. Without a single one the state of none is known."""
        self._active = frozenset(brokers)
        self._listed_at = now
        self._reason = ""

    def active_failed(self, reason: str) -> None:
        """It could not be found out now: the last list goes on until it is too old."""
        self._reason = one_line(reason, ERROR_CHARS)

    def current(self, wall: float, now: float) -> View:
        """What holds now, by both clocks. Asking twice at one time says the same twice. It remembers `paused`."""
        problem = self._unlisted(now)
        reasons: dict[int, Reason] = {}
        volumes: list[Volume] = []
        for broker_id in sorted(self._active):
            snapshot = self._snapshots.get(broker_id)
            # One without volumes doesn't say how full they are.
            reason = self._doubt(snapshot.at, wall) if snapshot is not None and snapshot.volumes else "missing"
            if reason is None and snapshot is not None:
                volumes += snapshot.volumes
            elif reason is not None:
                reasons[broker_id] = reason
        try:
            assessment = assess(volumes, self._policy, self.paused)
        except ObservationFailed as error:
            assessment = Assessment(1.0, (), None)
            problem = str(error)
        is_known = not problem and not reasons
        # What is unknown may be what has paused: only a whole view ends it.
        self.paused = assessment.paused or (self.paused and not is_known)
        if is_known:
            return View(Factor(assessment.factor, "valid", assessment.why), assessment, reasons)
        value = 0.0 if self.fail_safe == "PAUSE" else assessment.factor
        why = assessment.why if value == assessment.factor and assessment.why else self._unknown(problem, reasons)
        return View(Factor(value, "fail-safe", why), assessment, reasons, problem)

    def until(self, wall: float, now: float) -> float | None:
        """When, in monotonic time, `current` may change by itself if no clock is set; None: never."""
        left = [self._listed_at + self.list_age_s - now]
        for broker_id in self._active:
            snapshot = self._snapshots.get(broker_id)
            if snapshot is not None:
                left += (snapshot.at + self.max_age_s - wall, snapshot.at - MAX_AHEAD_S - wall)
        soonest = min((each for each in left if each > 0), default=None)
        return None if soonest is None else now + soonest

    def next(self, wall: float, now: float) -> Factor | None:
        """What it changes into then. Asking doesn't make it remember the future."""
        until = self.until(wall, now)
        if until is None:
            return None
        ahead, paused = until - now + _TICK_S, self.paused
        try:
            return self.current(wall + ahead, now + ahead).factor
        finally:
            self.paused = paused

    def _doubt(self, at: float, wall: float) -> Reason | None:
        """The same sums as in `until`."""
        if at - MAX_AHEAD_S - wall > 0:
            return "ahead"
        return None if at + self.max_age_s - wall > 0 else "stale"

    def _unlisted(self, now: float) -> str:
        reason = f": {self._reason}" if self._reason else ""
        if self._listed_at == -math.inf:
            return f"the active brokers are not known yet{reason}"
        if not self._listed_at + self.list_age_s - now > 0:
            return f"the list of active brokers is not younger than {self.list_age_s:g} s{reason}"
        return "" if self._active else "no broker is active"

    def _unknown(self, problem: str, reasons: Mapping[int, Reason]) -> str:
        """Without ages: a message that changes every second would be told every second."""
        said: dict[Reason, str] = {
            "missing": "no snapshot of its volumes",
            "stale": f"no snapshot younger than {self.max_age_s:g} s",
            "ahead": f"a snapshot more than {MAX_AHEAD_S:g} s ahead of this clock",
        }
        parts = [problem] if problem else []
        parts += [f"broker {broker_id} has {said[reason]}" for broker_id, reason in reasons.items()][:_BROKERS_NAMED]
        if len(reasons) > _BROKERS_NAMED:
            parts.append(f"{len(reasons) - _BROKERS_NAMED} more are unknown")
        return ", ".join(parts)
