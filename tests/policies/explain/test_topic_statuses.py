# All topics, each on the broker where it is nearest to its threshold.

from __future__ import annotations

from policies.definitions.policy_values import PolicyKey
from policies.explain import (
    ExplainInputs,
    MeterRates,
    TopicFlow,
    top_topics,
    topic_statuses,
)
from policies.meters.broker_meters import PeerTraffic
from policies.thresholds.broker_limits import BrokerRate, TopicRate
from tests.policies.explain.explain_play import (
    ASKED,
    MB,
    TOTAL,
    known,
    rates,
)


def test_every_known_topic_is_listed_once() -> None:
    base = {TOTAL: 12.0 * MB, PolicyKey.of_topic("later"): 2.0 * MB}
    flow = TopicFlow(5.0, 1.0, 2.0, 0.0)
    lines = topic_statuses(known(base, rates=rates(topic="seen", over=True)), {"clicks": flow, "flow": TopicFlow()})
    assert [each.topic for each in lines] == ["clicks", "flow", "later", "seen", "views"]
    clicks, bare, later, seen, views = lines
    assert (clicks.kind, clicks.origin, clicks.threshold, clicks.flow) == ("implicit", "computed", 12.0 * MB / 3, flow)
    assert (bare.kind, bare.broker, bare.brokers) == ("none", None, ())
    assert (later.kind, later.origin, later.threshold, later.broker) == ("explicit", "file", 2.0 * MB, None)
    assert (seen.brokers, seen.over, seen.rate) == ((1,), True, 1.0 * MB)
    assert views.brokers == (1, 2)


def test_the_broker_where_a_topic_uses_most_speaks_for_it() -> None:
    two = MeterRates(
        [
            BrokerRate(1, 0.0, 0.0, 0.0, None, [TopicRate("t", 1.0, 10.0, False)]),
            BrokerRate(2, 0.0, 0.0, 0.0, None, [TopicRate("t", 3.0, 10.0, False)]),
        ]
    )
    (only,) = topic_statuses(ExplainInputs(rates=two), {})
    assert (only.broker, only.rate, only.utilization, only.brokers) == (2, 4.0, 0.3, (1, 2))


def test_a_broker_that_is_not_known_yet_is_no_broker() -> None:
    """Of what is produced on a connection to the bootstrap address, before it is known whose that is."""
    unknown = MeterRates([BrokerRate(-1, 1.0, 0.0, 0.0, None, [TopicRate("t", 1.0, 10.0, False)])])
    (only,) = topic_statuses(ExplainInputs(rates=unknown), {})
    assert (only.broker, only.rate, only.utilization, only.brokers) == (None, 1.0, 0.1, ())
    assert ExplainInputs(rates=unknown).subject_brokers(ASKED) == (None,)


def test_a_topic_that_only_another_gateway_saw_takes_no_share_from_others() -> None:
    brought = {1: PeerTraffic(1.0 * MB, {b"away": 1.0 * MB})}
    base = {TOTAL: 12.0 * MB}
    lines = topic_statuses(known(base, led_topics={1: ("clicks", "views")}, rates=MeterRates(peer_traffic=brought)), {})
    assert [(each.topic, each.threshold, each.rate) for each in lines] == [
        ("away", 6.0 * MB, 1.0 * MB),
        ("clicks", 6.0 * MB, 0.0),
        ("views", 6.0 * MB, 0.0),
    ]
    assert (lines[0].utilization, lines[0].level.what) == (1 / 6, "implicit share of topic away")


def test_a_threshold_without_a_total_is_no_limit() -> None:
    (clicks,) = topic_statuses(known({PolicyKey.of_topic("clicks"): 5.0 * MB}, led_topics={1: ("clicks",)}), {})
    assert (clicks.threshold, clicks.broker, clicks.level.utilization_text) == (5.0 * MB, 1, "no limit")


def test_a_threshold_of_a_mistyped_topic_says_that_there_is_none() -> None:
    base = {TOTAL: 12.0 * MB, PolicyKey.of_topic("klicks"): 5.0 * MB}
    lines = topic_statuses(known(base, led_topics={1: ("clicks",)}), {})
    assert [(each.topic, each.utilization_text) for each in lines] == [("clicks", "0%"), ("klicks", "no such topic")]


def test_top_is_sorted_by_what_is_asked_for() -> None:
    said = MeterRates(
        [
            BrokerRate(
                1, 0.0, 0.0, 0.0, None,
                [TopicRate("a", 9.0, 100.0, False), TopicRate("b", 5.0, 6.0, False), TopicRate("c", 7.0, None, False)],
            )
        ]
    )  # fmt: skip
    lines = topic_statuses(ExplainInputs(rates=said), {"c": TopicFlow(rejected=3.0), "b": TopicFlow(rejected=1.0)})
    assert [each.topic for each in top_topics(lines, "rate")] == ["a", "c", "b"]
    assert [each.topic for each in top_topics(lines, "rejected")] == ["c", "b", "a"]
    assert [each.topic for each in top_topics(lines, "utilization")] == ["b", "a", "c"]
