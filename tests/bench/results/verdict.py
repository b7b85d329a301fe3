# What the ratios of many rounds say: slower, faster, or nothing that they can show.
#
# By order statistics, as single rounds on a shared machine may be off by tens of percent, and always to one side.

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Final

TOLERANCE: Final = 0.02  # what nobody would call slower
CONFIDENCE: Final = 0.95  # that the true median is between the two bounds


class Verdict(enum.Enum):
    """Of the new by the old."""

    SLOWER = "SLOWER"
    FASTER = "faster"
    EQUAL = "no difference beyond 2 %"
    UNKNOWN = "too noisy to say: more rounds are needed"


def bounds(ratios: Sequence[float]) -> tuple[float, float] | None:
    """The order statistics between which the true median is, with CONFIDENCE; None: there are too few.

    Each ratio is above the median with a probability of one half, whatever its distribution, so their number above it
    is binomial.
    """
    ordered, count = sorted(ratios), len(ratios)
    outside, left = 0.0, -1
    for k in range(count // 2):
        outside += math.comb(count, k) / 2**count
        if 2 * outside > 1 - CONFIDENCE:
            break
        left = k
    return None if left < 0 else (ordered[left], ordered[count - 1 - left])


def judge(ratios: Sequence[float]) -> Verdict:
    """New by old, one for each round; six rounds at least to say anything."""
    found = bounds(ratios)
    if found is None:
        return Verdict.UNKNOWN
    low, high = found
    if low > 1 + TOLERANCE:
        return Verdict.SLOWER
    if high < 1 - TOLERANCE:
        return Verdict.FASTER
    return Verdict.EQUAL if low > 1 - 2 * TOLERANCE and high < 1 + 2 * TOLERANCE else Verdict.UNKNOWN
