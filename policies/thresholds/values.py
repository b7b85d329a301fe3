# Thresholds of the broker side quota (V1): one total per broker, explicit ones per topic, and what is left of the total
# shared evenly by the broker's other topics.
#
# The numbers that can be thresholds at all, and the words for those that don't fit. Where topics have partitions, so
# that their thresholds count against a broker's total, is policy_set.py's. Source: the broker side quota proposal (V1),
# low level design 1.

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

from policies.units import exact_rate

TOTAL_KEY: Final = "total.bytes.in.per.sec.threshold"
TOPIC_KEY: Final = "bytes.in.per.sec.threshold"
TOTAL_OUT_KEY: Final = "total.bytes.out.per.sec.threshold"  # not V1's: what consumers with shares have shares of
MAX_THRESHOLD: Final = float(2**63 - 1)  # Kafka's LONG; so no sum of them is ever infinite


class ThresholdError(ValueError):
    """A change of thresholds that can't be: the text names the fault, its size and a right value."""


def check_thresholds(total: float | None, topics: Mapping[str, float], key: str = TOTAL_KEY) -> None:
    """Refuse numbers that are no thresholds. Units: bytes per second; `total`, of that `key`: None = no limit.

    Raises:
        ThresholdError: a number is no rate or above MAX_THRESHOLD.
    """
    if total is not None and not 0 < total <= MAX_THRESHOLD:
        raise ThresholdError(f"{key}: {_invalid_text(total)} above 0{_AT_MOST_TEXT}; leave it out for no limit")
    for topic, threshold in topics.items():
        if not 0 <= threshold <= MAX_THRESHOLD:
            raise ThresholdError(f"{TOPIC_KEY} of topic {topic}: {_invalid_text(threshold)}, 0 or more{_AT_MOST_TEXT}")


def check_single_thresholds(totals: Collection[float], topics: Mapping[str, float]) -> None:
    """Refuse thresholds of single topics that exceed every total, wherever their partitions are. `totals`: all that
    there are; none: some broker has no limit.

    Raises:
        ThresholdError: the text names the topic and the excess.
    """
    largest = max(totals, default=math.inf)
    for topic, threshold in topics.items():
        if threshold > largest:
            raise ThresholdError(
                f"{TOPIC_KEY} of topic {topic} is {_comparison_text(threshold, largest)}: lower it{_OR_RAISE_TEXT}"
            )


def excess_text(explicit: float, total: float, whose: str = "the topics'", reserved: float = 0.0) -> str:
    """The fault of topics that have more than the total together. `reserved`: of it, of topics that aren't there."""
    part = f" ({exact_rate(reserved)} of it for topics that are not there yet and may come here)" if reserved else ""
    return (
        f"{whose} {TOPIC_KEY} sum up to {_comparison_text(explicit, total, part)}: lower some of them, or raise"
        " the total to at"
        f" least {exact_rate(explicit)}"
    )


def used_up_text(total: float, whose: str = "the topics'") -> str:
    """The warning of topics that have all of the total together: it is allowed but hardly meant."""
    return (
        f"{whose} {TOPIC_KEY} use up {TOTAL_KEY} = {exact_rate(total)}: the implicit threshold of every other topic"
        " is 0"
    )


def without_total_text(topics: int) -> str:
    """The warning where `topics` topics have thresholds and no broker has a total."""
    return f"{topics} topics have a {TOPIC_KEY}, but without {TOTAL_KEY} nothing is ever rejected"


_AT_MOST_TEXT: Final = f" and at most {2**63 - 1}"
_OR_RAISE_TEXT: Final = ", or raise the total of a broker that is to have it"


def _comparison_text(threshold: float, total: float, part: str = "") -> str:
    more = exact_rate(threshold - total)
    return f"{exact_rate(threshold)}{part}, which exceeds {TOTAL_KEY} = {exact_rate(total)} by {more}"


def _invalid_text(value: float) -> str:
    text = f"{value:g}" if isinstance(value, float) and abs(value) > MAX_THRESHOLD else str(value)
    return f"{text if len(text) <= 30 else text[:29] + '…'} must be a finite number"
