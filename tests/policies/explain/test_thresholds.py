# What explanations say about thresholds: those that the engine goes by, and those that have no effect.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision import Mode
from policies.definitions.policy_values import PolicyKey
from policies.engine import PolicyEngine
from policies.explain import (
    ExplainSubject,
    MeterRates,
    explain_traffic,
    topic_statuses,
)
from policies.limits.limit_use import LimitUse
from policies.meters.meter import TICK_S
from policies.storage import StorageFactor
from policies.thresholds.broker_limits import BrokerRate, TopicRate
from tests.policies.asking import record
from tests.policies.explain.explain_play import (
    ASKED,
    CLICKS,
    MB,
    TOTAL,
    TOTAL_2,
    known,
    named,
    rates,
    rule,
    whys,
)


def test_a_threshold_binds_when_topic_and_total_are_exceeded() -> None:
    found = explain_traffic(ASKED, known({TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}, rates=rates(6.0 * MB, 3.0 * MB)))
    threshold = rule(found, "topic-threshold")
    topic, total = threshold.levels
    assert (topic.limit, topic.rate, topic.utilization) == (5.0 * MB, 6.0 * MB, 1.2)
    assert (total.limit, total.rate, total.utilization) == (12.0 * MB, 3.0 * MB, 0.25)
    assert (threshold.utilization, threshold.headroom, threshold.limits_now) == (0.25, 9.0 * MB, False)
    assert (threshold.action, threshold.mode, threshold.first) == ("reject", "enforce", True)
    assert found.summary.startswith("nothing limits this traffic now; topic-threshold on broker 1 would be first")


def test_a_topic_that_passes_its_part_while_the_total_has_room_shows_what_it_uses() -> None:
    """A bucket that is used up says no more than its part, and other gateways say what passes here."""
    bucket = LimitUse(2.5 * MB, 2.5 * MB, True, 3.1)
    for rate, shown in ((6.0 * MB, 6.0 * MB), (1.0 * MB, 2.5 * MB)):
        topic = TopicRate("clicks", rate, 5.0 * MB, True, 7.0 * MB, bucket)
        measured = MeterRates([BrokerRate(1, 7.0 * MB, 0.0, 0.0, 12.0 * MB, [topic])])
        inputs = known({TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}, rates=measured, on_exceed="delay")
        level = rule(explain_traffic(ASKED, inputs), "topic-threshold").levels[0]
        assert (level.rate, level.used_here, level.limit) == (shown, shown, 2.5 * MB)
        (line,) = [each for each in topic_statuses(inputs, {}) if each.topic == "clicks"]
        assert line.utilization == shown / (2.5 * MB)


def test_a_burst_is_told_where_thresholds_reject() -> None:
    values = {TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}
    (one, delayed) = (
        rule(explain_traffic(ASKED, known(values, rates=rates(), burst_s=10.0, on_exceed=how)), "topic-threshold")
        for how in ("reject", "delay")
    )
    assert one.note == "10 s of each may pass above it at once, whatever the one-minute rate is"
    assert delayed.note == ""


def test_a_broker_of_its_own_total_shadows_the_default() -> None:
    found = explain_traffic(ASKED._replace(broker=2), known({TOTAL: 12.0 * MB, TOTAL_2: 8.0 * MB}))
    assert rule(found, "topic-threshold").levels[1].limit == 8.0 * MB
    assert whys(found, "of all brokers") == ["broker 2 has a total of its own, 8,000,000 bytes/s"]


def test_an_explicit_threshold_shadows_the_implicit_share() -> None:
    found = explain_traffic(ASKED, known({TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}))
    (share,) = [each for each in found.shadowed if each.what == "implicit share"]
    assert (share.value, share.broker) == ("7,000,000 bytes/s", 1)
    assert "of its own" in share.why


def test_a_share_of_nothing_is_told() -> None:
    values = {TOTAL: 5.0 * MB, CLICKS: 5.0 * MB}
    found = rule(explain_traffic(ExplainSubject("views", broker=1), known(values)), "topic-threshold")
    assert (found.levels[0].limit, found.note) == (0.0, "nothing is left of the total to share")
    own = rule(explain_traffic(ASKED, known({TOTAL: 5.0 * MB, CLICKS: 0.0})), "topic-threshold")
    assert (own.levels[0].limit, own.note) == (0.0, "")


def test_a_threshold_without_a_total_has_no_effect() -> None:
    found = explain_traffic(ASKED, known({CLICKS: 5.0 * MB}))
    assert named(found) == [("fence", None)]
    assert whys(found, "of topic clicks") == [
        "without total.bytes.in.per.sec.threshold on broker 1 nothing is ever over"
    ]
    assert found.summary == "nothing limits this traffic"


def test_kafkas_own_topics_have_no_implicit_threshold() -> None:
    found = explain_traffic(ExplainSubject("__consumer_offsets"), known(led_topics={1: ("__consumer_offsets",)}))
    assert named(found) == [("fence", None)]
    assert whys(found, "implicit share") == ["Kafka's internal topics have no implicit threshold"]


@given(
    total=st.floats(1e3, 1e9),
    explicit=st.dictionaries(st.sampled_from("abc"), st.floats(0, 300), max_size=3),
    listed=st.frozensets(st.sampled_from(["a", "b", "c", "d", "e", "__consumer_offsets"])),
    produced=st.frozensets(st.sampled_from("abcdxyz"), min_size=1),
    factor=st.sampled_from([1.0, 0.75, 0.01, 0.0]),
    observe=st.booleans(),
)
def test_thresholds_are_those_that_the_engine_goes_by(
    total: float,
    explicit: dict[str, float],
    listed: frozenset[str],
    produced: frozenset[str],
    factor: float,
    observe: bool,
) -> None:
    engine = PolicyEngine(0.0)
    engine.set_thresholds(total, explicit)
    engine.set_listed_topics(1, listed)
    engine.set_storage_factor(factor, "why", 0.0, mode="observe" if observe else "enforce")
    for name in produced:
        record(engine.broker_meters(1), name.encode(), 1000)
    engine.apply_due_ticks(TICK_S)
    said = MeterRates(engine.collect_rates())
    base = {TOTAL: total, **{PolicyKey.of_topic(name): value for name, value in explicit.items()}}
    mode: Mode = "observe" if observe else "enforce"
    all_known = known(
        base, led_topics={1: listed}, rates=said, storage=StorageFactor(factor, why="why"), storage_mode=mode
    )
    lines = {each.topic: each for each in topic_statuses(all_known, {})}
    for meter in said.brokers[0].topics:
        found = rule(explain_traffic(ExplainSubject(meter.topic), all_known), "topic-threshold")
        assert found.levels[0].limit == pytest.approx(meter.threshold)
        assert found.levels[1].limit == pytest.approx(said.brokers[0].threshold)
        assert lines[meter.topic].threshold == pytest.approx(meter.threshold)
    bare = {each.topic: each.threshold for each in topic_statuses(all_known._replace(rates=MeterRates()), {})}
    for name in listed if produced <= listed else ():
        assert bare[name] == pytest.approx(lines[name].threshold)
