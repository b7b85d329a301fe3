# The step function of PIP-82 itself, in both of its variants: what a broker does with the usages that all brokers
# reported, cycle after cycle. No gateway runs by it: policies/fleet/shares.py is measured against it (docs/shares.md).
#
# Source: PIP-82, section "Communications between brokers". It knows usages only, not who wants more. Where its text
# leaves something open, what we read into it is said at the function.

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Variant = Literal["whole", "proportional"]


def spread(usages: Sequence[float], quota: float, variant: Variant) -> list[float]:
    """The first example of the section: limits for the next cycle from the residual, `quota` less all usages.

    "whole": each adds all of the residual. "proportional": each adds the part of it that its usage is of all usages;
    where there is no usage at all, equal parts. A residual below 0 is taken off likewise, never below nothing; in the
    variant "whole" that is all of it, as the section's second example takes 10 off a broker's 80 when another grew by
    as much.
    """
    if variant == "whole":
        residual = quota - sum(usages)
        return [max(0.0, usage + residual) for usage in usages]
    total = sum(usages)
    if total <= 0.0:
        return [quota / len(usages)] * len(usages)
    return [usage * quota / total for usage in usages]


def steal(usages: Sequence[float]) -> list[float]:
    """The section's second example and its generalization: who uses least sets its limit half-way to who uses most, the
    second least half-way to the second most, and so on; the upper half and a middle one stay at what they use.
    """
    order = sorted(range(len(usages)), key=lambda i: usages[i])
    limits = list(usages)
    for low, high in zip(order[: len(order) // 2], reversed(order), strict=False):
        limits[low] += (usages[high] - usages[low]) / 2
    return limits


def step(usages: Sequence[float], quota: float, variant: Variant) -> list[float]:
    """Both together: the limits of the next cycle. A broker that steals has the larger one of the two."""
    return [max(pair) for pair in zip(spread(usages, quota, variant), _thieves(usages), strict=True)]


def _thieves(usages: Sequence[float]) -> list[float]:
    return [limit if limit > usage else 0.0 for limit, usage in zip(steal(usages), usages, strict=True)]
