# Thresholds from usage: what each topic wants at its busiest, some head-room, and never more than the total. Who gets
# how much is arithmetic on a few numbers, and the result is a document that `produce-gateway policies apply` takes,
# with the reasons beside it. Pure.
#
# A rate is what was offered for the first time: an attempt that repeats a rejected one asks for nothing more. It is
# taken per broker, since thresholds hold on each, and the busiest broker counts. A topic makes room for others only on
# brokers where it had traffic. Knows neither argv nor a gateway.

from __future__ import annotations

import math
import textwrap
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from gateway import policy_document as document
from gateway.audit import columns
from gateway.audit.batch.query import AuditQuery
from policies.definitions.policy_values import is_topic_name
from policies.engine import INTERNAL_TOPICS
from policies.units import exact_size, format_rate

_THRESHOLD_DIGITS: Final = 2  # of a threshold: more would say more than is known


@dataclass(frozen=True, slots=True)
class RecommendOptions:
    """The wish, in bytes per second. `percentile` of windows of `window_ms`; `headroom`, `reserve`: shares.

    `total`: of each broker. `min_threshold`: of each topic. `reserve`: of the total, for topics that have no threshold.
    """

    total: float
    percentile: float = 99.0
    headroom: float = 0.2
    min_threshold: float = 0.0
    reserve: float = 0.05
    window_ms: int = 60_000


class TopicRate(NamedTuple):
    """A topic on one broker, in bytes of a window that has any: the percentile, the most, how many windows there are,
    and whether some of the bytes may be repeats that the records can't tell.
    """

    broker: int
    topic: str
    usual: float
    most: int
    windows: int
    unknown: bool


class TopicPeak(NamedTuple):
    """A topic on the broker where it wants most. `rate`: the percentile, bytes per second, of `windows` with traffic;
    `most`: the highest. `unknown`: whether some of it may be repeats that the records can't tell. `brokers`: all on
    which it had traffic.
    """

    topic: str
    broker: int
    rate: float
    most: float
    windows: int
    unknown: bool
    brokers: tuple[int, ...]


class ThresholdAdvice(NamedTuple):
    """`wanted`: with head-room, and at least the least; `threshold`: its part. Bytes per second."""

    peak: TopicPeak
    wanted: float
    threshold: float

    @property
    def is_lowered(self) -> bool:
        """It gets less than it wants."""
        return self.threshold < self.wanted


class InfeasibleThresholds(ValueError):
    """The wish can't be met; the text gives the reason and a possible wish."""


def rate_question(wish: RecommendOptions, from_ms: int | None, to_ms: int | None) -> AuditQuery:
    """The sums that rates are measured of."""
    return AuditQuery(("broker", "topic", "outcome"), wish.window_ms, from_ms, to_ms)


def measure_rates(rows: Iterable[Mapping[str, Any]], wish: RecommendOptions) -> list[TopicRate]:
    """Of the rows of `rate_question`, in their order. Kafka's internal topics have no thresholds."""
    sizes: dict[tuple[int, str], list[int]] = defaultdict(list)
    unknown = set()
    for (_, *key), of_window in groupby(rows, itemgetter(columns.WINDOW_COLUMN, "broker", "topic")):
        outcomes, (broker, topic) = [*of_window], key
        size = sum(row["offered_bytes"] - row[columns.REPEATS] for row in outcomes)
        if size > 0 and topic not in INTERNAL_TOPICS:
            sizes[broker, topic].append(size)
            if any(row["outcome"] == "rejected" and row[columns.REPEATS_UNKNOWN] for row in outcomes):
                unknown.add((broker, topic))
    return [
        TopicRate(*key, _find_percentile(sorted(found), wish.percentile / 100), max(found), len(found), key in unknown)
        for key, found in sizes.items()
    ]


def _find_percentile(ordered: Sequence[int], share: float) -> float:
    """Between two values in proportion, as Spark's `percentile` has it."""
    position = (len(ordered) - 1) * share
    low, high = math.floor(position), math.ceil(position)
    if ordered[low] == ordered[high]:
        return float(ordered[low])
    return (high - position) * ordered[low] + (position - low) * ordered[high]


def find_peaks(rates: Iterable[TopicRate], wish: RecommendOptions) -> list[TopicPeak]:
    """Of each topic, in the order of their names. What gateways count under a text that is no topic's name (one that
    can't be, or the id of a topic that they don't know) can have no threshold.
    """
    found: dict[str, TopicPeak] = {}
    brokers: dict[str, list[int]] = defaultdict(list)
    seconds = wish.window_ms / 1000
    for rate in rates:
        if not is_topic_name(rate.topic):
            continue
        brokers[rate.topic].append(rate.broker)
        usual, most = rate.usual / seconds, rate.most / seconds
        each = TopicPeak(rate.topic, rate.broker, usual, most, rate.windows, rate.unknown, ())
        if each.topic not in found or (each.rate, -each.broker) > (found[each.topic].rate, -found[each.topic].broker):
            found[each.topic] = each
    return [found[topic]._replace(brokers=tuple(sorted(brokers[topic]))) for topic in sorted(found)]


def advise_thresholds(topics: Sequence[TopicPeak], wish: RecommendOptions) -> list[ThresholdAdvice]:
    """A threshold for each topic. Those of no broker's topics together ever exceed its total less the reserve; where
    they would, the least demanding get what they want, and the others alike (max-min fair).

    Raises:
        InfeasibleThresholds: not even the least for each fits.
    """
    room = wish.total * (1.0 - wish.reserve)
    broker, most = max(_topics_by_broker(topics).items(), key=lambda found: len(found[1]), default=(0, []))
    if wish.min_threshold * len(most) > room:
        raise InfeasibleThresholds(
            f"{len(most)} topics of broker {broker} with at least {format_rate(wish.min_threshold)} each need"
            f" {format_rate(wish.min_threshold * len(most))}, and there are {format_rate(room)} (the total less"
            " the reserve):"
            f" lower --min to {math.floor(room / len(most))}, or raise the total"
        )
    wanted = [max(wish.min_threshold, _round_up(each.rate * (1.0 + wish.headroom))) for each in topics]
    rates = _fill_rates(topics, wanted, room, wish.min_threshold)
    granted = [
        want if rate >= want else max(wish.min_threshold, _round_down(rate))
        for want, rate in zip(wanted, rates, strict=True)
    ]
    return [ThresholdAdvice(*each) for each in zip(topics, wanted, granted, strict=True)]


def _topics_by_broker(topics: Sequence[TopicPeak]) -> dict[int, list[int]]:
    """By broker, which of them it has."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, each in enumerate(topics):
        for broker in each.brokers:
            found[broker].append(number)
    return found


def _fill_rates(topics: Sequence[TopicPeak], wanted: Sequence[float], room: float, least: float) -> list[float]:
    """Rates that rise together from `least`, each until it is the wanted one or until one of its brokers is full."""
    members = _topics_by_broker(topics)
    left = {broker: room - least * len(numbers) for broker, numbers in members.items()}
    risers = {broker: len(numbers) for broker, numbers in members.items()}
    order = deque(sorted(range(len(topics)), key=wanted.__getitem__))
    rates, rising, level = list(wanted), set(order), least
    while rising:
        if order[0] not in rising:
            order.popleft()
            continue
        step, ends = wanted[order[0]] - level, [order[0]]
        for broker, count in risers.items():
            if count and left[broker] / count < step:
                step, ends = max(0.0, left[broker] / count), [number for number in members[broker] if number in rising]
        level += step
        for broker, count in risers.items():
            left[broker] -= step * count
        for number in ends:
            rising.remove(number)
            rates[number] = level
            for broker in topics[number].brokers:
                risers[broker] -= 1
    return rates


def _round_up(rate: float) -> float:
    """With few digits, and not less."""
    unit = _rounding_unit(rate)
    return float(math.ceil(rate / unit - 1e-9) * unit)


def _round_down(rate: float) -> float:
    """With few digits, and not more."""
    unit = _rounding_unit(rate)
    return float(math.floor(rate / unit) * unit)


def _rounding_unit(rate: float) -> int:
    return 1 if rate < 10**_THRESHOLD_DIGITS else int(10 ** (math.floor(math.log10(rate)) - _THRESHOLD_DIGITS + 1))


def policy_document(advice: Sequence[ThresholdAdvice], wish: RecommendOptions) -> dict[str, Any]:
    """In the form of `produce-gateway policies apply`."""
    topics = {each.peak.topic: exact_size(each.threshold) for each in advice}
    thresholds: dict[str, Any] = {"total": {"default": exact_size(wish.total)}}
    return {"thresholds": {**thresholds, **({"topics": topics} if topics else {})}}


def threshold_reasons(advice: Sequence[ThresholdAdvice], wish: RecommendOptions) -> dict[str, str]:
    """The reason for each topic's threshold."""
    span = _duration_text(wish.window_ms)
    found = {}
    for each in advice:
        seen = each.peak
        text = (
            f"p{wish.percentile:.10g} of {span} rates {format_rate(seen.rate)} on broker {seen.broker}"
            f" ({seen.windows:,} with traffic, most {format_rate(seen.most)}), {100 * wish.headroom:.10g}% head-room:"
            f" {format_rate(each.wanted)}"
        )
        if each.wanted == wish.min_threshold > 0:
            text += "; raised to the least"
        if each.is_lowered:
            text += f"; lowered to fit in {format_rate(wish.total * (1 - wish.reserve))} together with the others"
        if seen.unknown:
            text += "; repeats of rejected requests aren't all known, so it may be less"
        found[seen.topic] = text
    return found


def advice_yaml(advice: Sequence[ThresholdAdvice], wish: RecommendOptions, complete: bool = True) -> str:
    """The document as text, each topic with its reason as a comment behind it.

    `complete`: whether nothing is missing from the records.
    """
    on = _topics_by_broker([each.peak for each in advice]).values()
    used = max((math.fsum(advice[number].threshold for number in numbers) for numbers in on), default=0.0)
    lines = [
        "# Thresholds from recorded usage, for `produce-gateway policies apply`; they hold on each broker.",
        f"# A broker's topics take at most {format_rate(used)} of the total of {format_rate(wish.total)} together; all"
        " others share the rest.",
        "# A topic beyond its threshold is held back only while its broker is beyond the total.",
        "# With on_exceed: reject write thresholds.burst: 10s into the gateways' files: by the one-minute rate alone a"
        " quiet",
        "# broker takes three times its total for 25 s.",
    ]
    if not complete:
        lines.append("# Records are missing or malformed (`produce-gateway audit` lists them): rates may be higher.")
    why = threshold_reasons(advice, wish)
    thresholds = policy_document(advice, wish)["thresholds"]
    topics = thresholds.pop("topics", {})
    lines += document.render_document({"thresholds": thresholds}).splitlines()
    lines += ["  topics:"] if topics else []
    for topic, size in topics.items():
        own = textwrap.indent(document.render_document({topic: size}), "    ").rstrip(
            "\n"
        )  # two lines for a very long name
        lines.append(f"{own}  # {why[topic]}")
    return "\n".join(lines) + "\n"


def advice_json(advice: Sequence[ThresholdAdvice], wish: RecommendOptions) -> dict[str, Any]:
    """The document and, by topic, the numbers behind it."""
    why = threshold_reasons(advice, wish)
    topics = [
        {
            **each.peak._asdict(),
            "wanted": each.wanted,
            "threshold": each.threshold,
            "lowered": each.is_lowered,
            "reason": why[each.peak.topic],
        }
        for each in advice
    ]
    return {"version": 1, "document": policy_document(advice, wish), "topics": topics}


def _duration_text(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"
