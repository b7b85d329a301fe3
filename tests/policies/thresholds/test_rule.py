# Thresholds that reject, as the broker side quota (V1) has them; its sentences are in docs/seeds.md.

from __future__ import annotations

import itertools
import random

import pytest

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey, PolicyOperation
from policies.engine import PolicyEngine
from policies.meters.meter import TICK_S
from tests.policies.asking import begin, record, rejection, threshold_of

MB = 1_000_000
TOTAL, CLICKS, VIEWS = PolicyKey.of_broker(), PolicyKey.of_topic("clicks"), PolicyKey.of_topic("views")


def engine(total: float | None = 20 * MB, **topics: float) -> PolicyEngine:
    made = PolicyEngine(now=0.0)
    made.set_thresholds(total, topics)
    return made


def offer(made: PolicyEngine, seconds: float, node_id: int = 1, **rates: float) -> dict[str, list[bool]]:
    """Steady traffic in 0.5 s steps from the engine's present time on; what was decided, per topic."""
    said: dict[str, list[bool]] = {topic: [] for topic in rates}
    begin(made, *rates, node_id=node_id)
    start = made.next_tick_at - TICK_S
    for step in range(round(seconds * 2)):
        for topic, rate in rates.items():
            said[topic].append(record(made.broker_meters(node_id), topic.encode(), round(rate / 2)))
        made.apply_due_ticks(start + (step + 1) * 0.5)
    return said


# --- high level design ------------------------------------------------------------------------------------------------


@pytest.mark.seed("V1.2")
def test_if_the_total_is_exceeded_data_is_dropped_until_the_observed_rate_falls_below() -> None:
    # given one topic at three times the broker's total
    made = engine(total=10 * MB, clicks=10 * MB)
    offer(made, TICK_S, clicks=30 * MB)
    # when it keeps coming
    said = offer(made, 80, clicks=30 * MB)["clicks"]
    # then it is dropped, and taken again once the rate is below
    first_taken = said.index(True)
    assert first_taken > 0
    assert not any(said[:first_taken])


@pytest.mark.seed("V1.1")
def test_the_total_threshold_is_global_per_broker_not_per_cluster() -> None:
    made = engine(total=10 * MB, clicks=1 * MB)
    offer(made, TICK_S, node_id=1, clicks=9 * MB)
    # when another broker is over, the first is not
    for _ in range(10):
        record(made.broker_meters(2), b"clicks", 100 * MB)
    made.apply_due_ticks(made.next_tick_at)
    assert record(made.broker_meters(2), b"clicks", 1) is False
    assert record(made.broker_meters(1), b"clicks", 1) is True


@pytest.mark.seed("V1.4")
def test_below_the_total_nothing_is_dropped_however_far_a_topic_is_over_its_threshold() -> None:
    made = engine(total=10 * MB, clicks=1 * MB)
    said = offer(made, 180, clicks=9.9 * MB)
    assert all(said["clicks"])


@pytest.mark.seed("V1.3")
def test_a_topic_may_have_its_own_threshold_since_some_topics_matter_more() -> None:
    made = engine(total=10 * MB, payments=8 * MB, debug=1 * MB)
    offer(made, TICK_S, payments=7 * MB, debug=7 * MB)
    assert record(made.broker_meters(1), b"payments", 1) is True
    assert record(made.broker_meters(1), b"debug", 1) is False


# --- low level design 1 -----------------------------------------------------------------------------------------------


@pytest.mark.seed("V1.7")
def test_the_sum_is_that_of_a_brokers_own_topics() -> None:
    """This value can probably be maintained inside LogManager: each broker adds up the topics that it has."""
    set_before = PolicySet({TOTAL: 20.0 * MB, CLICKS: 15.0 * MB})
    changed = set_before.alter_policies(
        [PolicyOperation(VIEWS, 15 * MB)], places={1: {"clicks"}, 2: {"views", "a", "b"}}
    )
    made = engine(total=20 * MB, **changed.topic_thresholds())
    made.set_listed_topics(1, ["clicks"])
    made.set_listed_topics(2, ["views", "a", "b"])
    made.set_listed_topics(3, ["a", "b"])
    shares = [threshold_of(made.broker_meters(node_id), b"a") for node_id in (2, 3)]
    assert shares == [(20 * MB - 15 * MB) / 2, 20 * MB / 2]


@pytest.mark.seed("V1.8")
def test_other_topics_share_evenly_what_the_explicit_thresholds_leave_of_the_total() -> None:
    made = engine(total=20 * MB, clicks=5 * MB)
    made.set_listed_topics(1, ["clicks", "a", "b", "c"])
    assert threshold_of(made.broker_meters(1), b"a") == (20 * MB - 5 * MB) / 3
    made.set_thresholds(20 * MB, {"clicks": 20 * MB})
    assert threshold_of(made.broker_meters(1), b"a") == 0


@pytest.mark.seed("V1.9")
def test_the_implicit_threshold_is_recomputed_when_a_threshold_changes() -> None:
    made = engine(total=20 * MB, clicks=5 * MB)
    made.set_listed_topics(1, ["clicks", "a", "b", "c"])
    made.set_thresholds(20 * MB, {"clicks": 8 * MB})
    assert threshold_of(made.broker_meters(1), b"a") == 4 * MB
    made.set_thresholds(20 * MB, {"clicks": 8 * MB, "c": 2 * MB})
    assert threshold_of(made.broker_meters(1), b"a") == 5 * MB
    made.set_thresholds(20 * MB, {})
    assert threshold_of(made.broker_meters(1), b"clicks") == 5 * MB


@pytest.mark.seed("V1.10", "V1.8")
def test_the_implicit_threshold_is_recomputed_when_a_topic_is_added_to_the_broker() -> None:
    """One in metadata, or one that is produced to before metadata knows it."""
    made = engine(total=20 * MB, clicks=5 * MB)
    made.set_listed_topics(1, ["clicks", "a"])
    assert threshold_of(made.broker_meters(1), b"a") == 15 * MB
    made.set_listed_topics(1, ["clicks", "a", "b"])
    assert threshold_of(made.broker_meters(1), b"a") == 7.5 * MB
    record(made.broker_meters(1), b"new", 1)
    assert threshold_of(made.broker_meters(1), b"a") == 5 * MB


@pytest.mark.seed("V1.10")
def test_a_topic_added_elsewhere_does_not_change_this_brokers_share() -> None:
    made = engine(total=20 * MB)
    made.set_listed_topics(1, ["a"])
    made.set_listed_topics(2, ["a", "b"])
    assert threshold_of(made.broker_meters(1), b"a") == 20 * MB
    assert threshold_of(made.broker_meters(2), b"a") == 10 * MB


@pytest.mark.seed("V1.10")
def test_a_share_lowered_by_a_new_topic_counts_for_the_very_next_batch() -> None:
    """Not at the next tick."""
    made = engine(total=10 * MB, big=4 * MB)
    offer(made, TICK_S, big=8 * MB, a=4 * MB)
    assert record(made.broker_meters(1), b"a", 1) is True  # share 6 MB/s
    record(made.broker_meters(1), b"b", 1)  # share 3 MB/s
    assert record(made.broker_meters(1), b"a", 1) is False


# --- low level design 2 -----------------------------------------------------------------------------------------------


@pytest.mark.seed("V1.11")
def test_the_observed_rate_is_a_one_minute_ewma_refreshed_every_five_seconds() -> None:
    made = engine()
    begin(made, "clicks")
    record(made.broker_meters(1), b"clicks", 50 * MB)
    made.apply_due_ticks(4.999)
    assert made.broker_meters(1).total.rate == 0
    made.apply_due_ticks(5.0)
    assert made.broker_meters(1).total.rate == 10 * MB
    made.apply_due_ticks(10.0)
    assert made.broker_meters(1).total.rate == pytest.approx(10 * MB * 2.718281828459045 ** (-5 / 60))


# --- low level design 3: recordQuota ----------------------------------------------------------------------------------


@pytest.mark.seed("V1.12")
@pytest.mark.parametrize(
    ("total_over", "topic_over"),
    list(itertools.product([False, True], repeat=2)),
)
def test_false_only_if_total_rate_exceeds_total_threshold_and_topic_rate_exceeds_topic_threshold(
    total_over: bool,
    topic_over: bool,
) -> None:
    topic_limit = 3 * MB if topic_over else 5 * MB
    made = engine(total=9 * MB if total_over else 11 * MB, clicks=topic_limit)
    offer(made, TICK_S, clicks=4 * MB, rest=6 * MB)
    assert record(made.broker_meters(1), b"clicks", 1) is not (total_over and topic_over)


@pytest.mark.seed("V1.12")
def test_a_batch_of_any_size_is_decided_as_a_whole() -> None:
    """Only observed rates are compared: the incoming size takes no part in the decision."""
    made = engine(total=1 * MB, clicks=1 * MB)
    assert record(made.broker_meters(1), b"clicks", 500 * MB) is True


# --- discussion -------------------------------------------------------------------------------------------------------


@pytest.mark.seed("V1.17")
def test_error_and_throttled_rates_exist_per_broker_only() -> None:
    made = engine(total=1 * MB, clicks=1 * MB)
    offer(made, TICK_S, clicks=4 * MB)
    record(made.broker_meters(1), b"clicks", 50_000)
    (broker,) = made.collect_rates()
    assert broker.error_rate == 0
    assert broker.throttled_rate == 0
    assert broker.topics[0]._fields == ("topic", "rate", "threshold", "over", "fleet_rate", "bucket_use")


@pytest.mark.seed("V1.18")
def test_a_dropped_request_comes_with_the_reason_to_log() -> None:
    made = engine(total=20 * MB, clicks=5 * MB)
    offer(made, TICK_S, clicks=6.1 * MB, rest=15.2 * MB)
    verdict = rejection(made, 1, b"clicks", now=TICK_S + 1.8)
    assert verdict.reason == "topic-threshold"
    assert verdict.text == (
        "topic clicks is over its threshold: 6.1 MB/s of 5.0 MB/s (1-minute EWMA), broker 1 total 21.3 MB/s of"
        " 20.0 MB/s; retry in 3.2 s"
    )


# --- what follows from it all -----------------------------------------------------------------------------------------


@pytest.mark.seed("V1.4")
def test_topics_offered_three_times_their_thresholds_are_admitted_at_them_within_ten_percent() -> None:
    """Closed loop: thresholds that sum up to the total, each offered threefold, one minute to settle, then three."""
    limits = {"clicks": 5 * MB, "views": 3 * MB, "logs": 2 * MB}
    made = engine(total=10 * MB, **limits)
    offered = {topic: 3 * limit for topic, limit in limits.items()}
    offer(made, 60, **offered)
    said = offer(made, 180, **offered)
    for topic, limit in limits.items():
        admitted = sum(said[topic]) * offered[topic] / 2 / 180
        assert admitted == pytest.approx(limit, rel=0.10), topic


@pytest.mark.parametrize("late_s", [0.5, 2.0, 4.5])
def test_ticks_that_come_late_admit_no_more(late_s: float) -> None:
    """A worker that gets no CPU ticks late: an open topic stays open for so much longer, and then closed."""
    limits = {"clicks": 5 * MB, "views": 3 * MB, "logs": 2 * MB}
    made, chance, step_s = engine(total=10 * MB, **limits), random.Random(7), 0.1
    begin(made, *limits)
    admitted = dict.fromkeys(limits, 0)
    ticks_at = made.next_tick_at + chance.uniform(0, late_s)
    for step in range(round(660 / step_s)):
        now = step * step_s
        if now >= ticks_at:
            made.apply_due_ticks(now)
            ticks_at = made.next_tick_at + chance.uniform(0, late_s)
        for topic, limit in limits.items():
            size = round(3 * limit * step_s)
            if record(made.broker_meters(1), topic.encode(), size) and now >= 60:
                admitted[topic] += size
    for topic, limit in limits.items():
        assert admitted[topic] / 600 == pytest.approx(limit, rel=0.10), topic


@pytest.mark.seed("V1.4")
def test_a_topic_below_its_share_is_never_rejected_beside_any_others() -> None:
    """A topic's own rate has to exceed its threshold: the implicit one included."""
    made = engine(total=10 * MB, clicks=6 * MB)
    made.set_listed_topics(1, ["clicks", "calm", "loud"])  # 2 MB/s each
    said = offer(made, 240, clicks=18 * MB, calm=1.9 * MB, loud=9 * MB)
    assert all(said["calm"])
    assert not all(said["clicks"])
    assert not all(said["loud"])
