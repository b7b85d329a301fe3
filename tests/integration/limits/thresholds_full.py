# The long run behind the numbers in the documentation (`make thresholds`): the situations of test_thresholds.py and one
# more for four minutes, from a cold start, against a real broker. Judged are the three minutes after the first.
#
# Prints a table, and ends with 1 if something that the rule promises was not seen.

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from typing import NamedTuple

from gateway.embedded import EmbeddedCluster
from tests.integration.gateways import Gateway, create_topic, total
from tests.integration.limits.offer import Flow, Load, Tally, rate_between

FIRST_S, MEASURE_S = 60.0, 180.0
TOLERANCE = 0.10


class Case(NamedTuple):
    """Thresholds in bytes/s and what is offered as a multiple of them, by topic; `held`: what must be within ±10 %."""

    title: str
    total: float
    thresholds: dict[str, float]
    times: dict[str, float]
    held: str  # "topics", "total", "nothing rejected" or "" (shown, not judged)


CASES = {
    "three": Case(
        "every topic offered 3 times its threshold", 420_000,
        {"three-a": 60_000, "three-b": 120_000, "three-c": 240_000},
        {"three-a": 3, "three-b": 3, "three-c": 3}, "topics",
    ),
    "mixed": Case(
        "topics offered 3, 2.5 and 2 times their thresholds", 420_000,
        {"mixed-a": 60_000, "mixed-b": 120_000, "mixed-c": 240_000},
        {"mixed-a": 3, "mixed-b": 2.5, "mixed-c": 2}, "total",
    ),
    "slack": Case(
        "one topic leaves half of its threshold", 600_000,
        {"slack-calm": 200_000, "slack-greedy": 200_000, "slack-third": 200_000},
        {"slack-calm": 0.5, "slack-greedy": 3, "slack-third": 2}, "total",
    ),
    "below": Case(
        "a topic over its threshold, the broker's total below", 1_000_000,
        {"below-greedy": 50_000}, {"below-greedy": 6}, "nothing rejected",
    ),
}  # fmt: skip


def run(kafka: EmbeddedCluster) -> bool:
    """All cases beside each other; True if each held."""
    with ExitStack() as stack:
        loads: dict[str, Load] = {}
        gateways: dict[str, Gateway] = {}
        for name, case in CASES.items():
            for topic in case.thresholds:
                create_topic(kafka, topic)
            topics = {topic: {"bytes.in.per.sec.threshold": round(limit)} for topic, limit in case.thresholds.items()}
            config = {"thresholds": {"total.bytes.in.per.sec.threshold": round(case.total), "topics": topics}}
            gateways[name] = stack.enter_context(Gateway(kafka.bootstrap_servers, config))
            flows = [_flow(topic, case.times[topic] * limit) for topic, limit in case.thresholds.items()]
            loads[name] = Load(gateways[name].broker_port(1), flows, FIRST_S + MEASURE_S)
        for load in loads.values():
            load.start()
        _tell_time(FIRST_S + MEASURE_S)
        print(f"{'topic':<14}{'threshold':>11}{'offered':>11}{'admitted':>11}{'ratio':>8}{'rejected':>11}   bytes/s")
        held = [_report(CASES[name], load.join(), gateways[name]) for name, load in loads.items()]
        return all(held)


def _flow(topic: str, rate: float) -> Flow:
    return Flow(topic, lambda _: rate)


def _tell_time(seconds: float) -> None:
    print(f"{seconds:.0f} s …", file=sys.stderr, flush=True)
    threading.Event().wait(seconds)


def _report(case: Case, tallies: dict[str, Tally], gateway: Gateway) -> bool:
    print(f"\n{case.title}")
    ratios, sums = [], [0.0, 0.0, 0.0]
    for topic, limit in case.thresholds.items():
        tally = tallies[topic]
        rates = [_rate(each) for each in (tally.offered, tally.admitted, tally.rejected)]
        sums = [a + b for a, b in zip(sums, rates, strict=True)]
        ratios.append(rates[1] / limit)
        _row(topic, limit, *rates)
    _row("total", case.total, *sums)
    counted = gateway.counted()
    calm = [topic for topic, times in case.times.items() if times < 1]
    ok = not any(total(counted[topic], "rejected").bytes for topic in calm)
    match case.held:
        case "topics":
            ok = ok and all(abs(ratio - 1) <= TOLERANCE for ratio in ratios)
        case "total":
            ok = ok and abs(sums[1] / case.total - 1) <= TOLERANCE
        case "nothing rejected":
            ok = ok and not any(total(rows, "rejected").bytes for rows in counted.values())
    print(f"{case.held or 'shown only'}: {'as it must be' if ok else 'NOT as it must be'}")
    return ok


def _rate(happened: list[tuple[float, int]]) -> float:
    return rate_between(happened, FIRST_S, FIRST_S + MEASURE_S)


def _row(name: str, limit: float, offered: float, admitted: float, rejected: float) -> None:
    print(f"{name:<14}{limit:>11,.0f}{offered:>11,.0f}{admitted:>11,.0f}{admitted / limit:>8.2f}{rejected:>11,.0f}")


def main() -> int:
    with EmbeddedCluster(1) as kafka:
        return 0 if run(kafka) else 1


if __name__ == "__main__":
    sys.exit(main())
