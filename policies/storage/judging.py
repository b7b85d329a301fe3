# All volumes judged: the worst one decides for the cluster.
#
# Knows no clock and no source.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from policies.storage.limits import SoftHard
from policies.storage.volumes import LimitPolicy, ObservationFailed, Volume
from policies.units import format_size

# of the way from hard to soft has to be free again before a PAUSE by a soft/hard limit ends
RELEASE_FRACTION: Final = 0.1


class VolumeFinding(NamedTuple):
    """The assessment of one volume: `factor` from this volume alone, levels as free bytes of it (None: no limit).
    `soft_by`, `hard_by`: which of several limits these are, "" where there is one.
    """

    volume: Volume
    factor: float
    soft_free: float | None
    hard_free: float | None
    soft_by: str = ""
    hard_by: str = ""

    @property
    def release_free(self) -> float | None:
        """A PAUSE ends when more bytes than this are free. None: there is no soft limit above a hard one, so no
        hysteresis.
        """
        if self.soft_free is None or self.hard_free is None or self.soft_free <= self.hard_free:
            return None
        return self.hard_free + RELEASE_FRACTION * (self.soft_free - self.hard_free)

    @property
    def is_short_of_release(self) -> bool:
        """Whether a PAUSE would not end here: the volume is at its hard limit, or not far enough from it yet."""
        release = self.release_free
        return release is not None and self.volume.available <= release

    def reason_text(self, still_paused: bool = False) -> str:
        """One line for clients and logs: broker, volume, its free bytes. `still_paused`: as in VolumeAssessment."""
        volume, factor, soft, hard = self.volume, self.factor, self.soft_free, self.hard_free
        soft_at, hard_at = (_level_text(*each) for each in ((soft, self.soft_by), (hard, self.hard_by)))
        free = (
            f"{format_size(volume.available)} of {format_size(volume.total)} free"
            if volume.is_sized
            else "size unknown"
        ) + (" when its broker left" if volume.left else "")
        text = f"{volume}: {free}"
        release = self.release_free
        if factor > 0 and still_paused and release is not None and volume.available <= release:
            return f"{text}, paused until more than {format_size(release)} are free"
        if factor > 0 and soft is not None and hard is not None:
            return f"{text}, between soft limit {soft_at} and hard limit {hard_at}"
        return text if hard is None else f"{text}, hard limit at {hard_at}"


class VolumeAssessment(NamedTuple):
    """The assessment of all volumes. `factor`: of the cluster. `worst`: the finding that determines it; None: there is
    no volume. `findings`: one per volume, by broker and name. `still_paused`: a former PAUSE has not ended yet.
    """

    factor: float
    findings: tuple[VolumeFinding, ...]
    worst: VolumeFinding | None
    still_paused: bool = False

    def factor_of(self, finding: VolumeFinding) -> float:
        """The factor from that volume alone; 0 if it keeps a former PAUSE."""
        return 0.0 if self.still_paused and finding.is_short_of_release else finding.factor

    def names_by_broker(self) -> Mapping[int, list[str]]:
        """The names of the volumes of each broker."""
        found: dict[int, list[str]] = {}
        for finding in self.findings:
            found.setdefault(finding.volume.broker_id, []).append(finding.volume.name)
        return found

    @property
    def hard_limit_findings(self) -> tuple[VolumeFinding, ...]:
        """The volumes at their hard limit."""
        return tuple(finding for finding in self.findings if finding.factor <= 0)

    @property
    def paused(self) -> bool:
        """The argument `paused` of the next `assess_volumes`: whether a limit with hysteresis pauses now."""
        return self.still_paused or any(f.factor <= 0 and f.release_free is not None for f in self.findings)

    @property
    def reason_text(self) -> str:
        """One line for clients and logs: broker, volume, and its free bytes. "" while the factor is 1."""
        return "" if self.worst is None or self.factor >= 1 else self.worst.reason_text(self.still_paused)


def assess_volumes(volumes: Iterable[Volume], policy: LimitPolicy, paused: bool) -> VolumeAssessment:
    """Judge the cluster by its worst volume. No volume: 1.

    `paused`: the last assessment's own `paused`. Only this bit and the volumes' levels decide, no timer does, so
    gateways that saw the same decide alike. The volume is not remembered: it may be gone with its broker, while another
    is now as close to its limit, and producers should not be let in there either.

    A gateway without a past says False: in the band above the hard limit it begins with the factor of the line from
    soft to hard, a tenth or less, and meets the others at the next PAUSE or release. True would stop it where that band
    was reached from above, for as long as no records are deleted. A restarted one goes on with the PAUSE that its
    workers still hold (`FactorKeeper.adopt_factor`): paused = that factor is 0 and was observed.

    Raises:
        ObservationFailed: the policy's factor is none.
    """
    findings = []
    reasons = policy.limit_reasons if isinstance(policy, SoftHard) else _no_reasons
    for volume in sorted(dict.fromkeys(volumes), key=lambda volume: (*volume[:4], str(volume[4:]))):
        factor = policy.quota_factor(volume)
        if not 0 <= factor <= 1:
            raise ObservationFailed(f"{type(policy).__name__}: factor {factor} for {volume} must be from 0 to 1")
        findings.append(VolumeFinding(volume, factor, *policy.levels(volume), *reasons(volume)))
    if not findings:
        return VolumeAssessment(1.0, (), None)
    worst = min(findings, key=_severity_key)
    pausing = [finding for finding in findings if finding.is_short_of_release] if paused else []
    if pausing and worst.factor > 0:
        return VolumeAssessment(0.0, tuple(findings), min(pausing, key=_severity_key), still_paused=True)
    return VolumeAssessment(worst.factor, tuple(findings), worst, still_paused=bool(pausing))


def _no_reasons(volume: Volume) -> tuple[str, str]:
    return "", ""


def _level_text(free: float | None, by: str) -> str:
    """The limit as free bytes, and which of several limits it is."""
    return "" if free is None else format_size(free) + (f" ({by})" if by else "")


def _severity_key(finding: VolumeFinding) -> tuple[float, float]:
    """Of equally bad volumes (for example several full ones), the reason names the fuller one."""
    return finding.factor, finding.volume.available_ratio
