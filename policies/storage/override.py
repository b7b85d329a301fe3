# An operator's override of storage protection: for a time producers are paused, or let in, whatever the disks say. An
# opening ends where a volume is at its hard limit, unless it is forced: what holds there goes on.
#
# As a policy's value it is one line of text, so that history, log and other gateways have it as it was given. Knows no
# clock and no author.

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, cast

from policies.storage.judging import VolumeAssessment
from policies.storage.keeping import StorageFactor
from policies.storage.scope import AffectedTopics, affected_key

MAX_REASON_CHARS: Final = 200  # characters
_TEXT: Final = re.compile(r"(PAUSE|OPEN)( forced)?(?:: (.*))?")


class InvalidOverride(ValueError):
    """A text that is no override; one line."""


class StorageOverride(NamedTuple):
    """`force`: let in at hard limits too. `reason`: the operator's own, one line."""

    state: Literal["PAUSE", "OPEN"]
    reason: str = ""
    force: bool = False

    @classmethod
    def parse_text(cls, text: str) -> StorageOverride:
        """
        Raises:
            InvalidOverride: `str` of no override is like this.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise InvalidOverride(
                f"{text[:60]!r} is not a valid override: write PAUSE: REASON, OPEN: REASON or OPEN forced: REASON"
            )
        state, forced, reason = found.groups()
        return cls(cast("Literal['PAUSE', 'OPEN']", state), reason or "", bool(forced)).validate_override()

    def validate_override(self) -> StorageOverride:
        """The same, if it can be.

        Raises:
            InvalidOverride: it can't.
        """
        if len(self.reason) > MAX_REASON_CHARS or not self.reason.isprintable() or self.reason != self.reason.strip():
            raise InvalidOverride(f"reason: one line of at most {MAX_REASON_CHARS} characters is needed")
        if self.force and self.state == "PAUSE":
            raise InvalidOverride("force: a pause needs none: leave it out")
        return self

    def reason_text(self, until: str) -> str:
        """One line for clients and logs, without the operator's name. `until`: the time, as text."""
        what = "pauses" if self.state == "PAUSE" else "lets in"
        return f"an operator {what} all producers until {until}" + (f": {self.reason}" if self.reason else "")

    def __str__(self) -> str:
        return self.state + (" forced" if self.force else "") + (f": {self.reason}" if self.reason else "")


class OverrideOutcome(NamedTuple):
    """What holds then. `affected`: see policies.storage.scope; `full`: volumes that an OPEN leaves as they are."""

    factor: StorageFactor
    affected: Sequence[AffectedTopics] | None
    full: tuple[str, ...] = ()


def apply_override(
    override: StorageOverride, why: str, factor: StorageFactor, affected: Sequence[AffectedTopics] | None,
    assessment: VolumeAssessment, *,
    by_topic: bool,
) -> OverrideOutcome:  # fmt: skip
    """`factor`, `affected`, `assessment`: what holds without it. `by_topic`: volumes hold topics, not all producers."""
    if override.state == "PAUSE":
        return OverrideOutcome(StorageFactor(0.0, "operator", why, factor.observed_at), None)
    full = () if override.force else tuple(str(each.volume) for each in assessment.hard_limit_findings)
    opened = StorageFactor(1.0, "operator", why, factor.observed_at)
    if not full:
        return OverrideOutcome(opened, () if by_topic else None)
    if affected is None:  # of all topics, or not known of which
        return OverrideOutcome(factor, None, full)
    keys = {affected_key(each.volume) for each in assessment.hard_limit_findings}
    still = tuple(each for each in affected if each.key in keys)
    if not still:
        return OverrideOutcome(opened, (), full)
    return OverrideOutcome(opened._replace(value=still[0].value, why=still[0].why), still, full)
