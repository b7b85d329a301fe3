# Thresholds that delay: closed loops in which producers do as they are told, and the rules one by one.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.engine import PolicyEngine
from policies.limits.limiter import MAX_WAIT_S
from policies.meters.broker_meters import BrokerMeters
from policies.meters.meter import TICK_S
from policies.meters.topic_meter import TopicMeter
from policies.thresholds.pacing import PACE_S, ThresholdPacer
from policies.verdict import Verdict
from tests.effort import lines_run
from tests.policies.asking import Request, decide, present, record
from tests.policies.thresholds.pacing_play import Connection, Loop

MB = 1_000_000


def engine(total: float | None = 10 * MB, mode: str = "enforce", **topics: float) -> PolicyEngine:
    made = PolicyEngine(now=0.0)
    made.set_thresholds(total, topics, on_exceed="delay", mode=mode)  # type: ignore[arg-type]
    made.broker_meters(1)
    made.pace_limits(0.0)
    return made


def producer(topic: str, size: int = 100_000, connections: int = 4, start: float = 0.0) -> list[Connection]:
    return [Connection(topic, size, start=start + i * 0.001) for i in range(connections)]


def topic(broker: BrokerMeters, name: bytes) -> TopicMeter:
    broker.confirm_topic(name)
    return broker.topics[name]


def send(made: PolicyEngine, name: bytes, size: int, now: float, may_delay: bool = True) -> Verdict | None:
    """One request, asked about or not as its topic's `over` says, and counted if it is admitted."""
    request = Request(made, name, size)
    verdict = request.ask(now, may_delay=may_delay)
    if verdict is None or verdict.action == "delay" or verdict.observed_only:
        request.admit(now)
    return verdict


# --- closed loops -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "idle_s"), [(2_000, 0.0), (100_000, 0.0), (100_000, 60.0)])
def test_two_producers_on_one_limit_get_it_together_and_each_a_fair_part(size: int, idle_s: float) -> None:
    one, other = producer("clicks", size, start=idle_s), producer("clicks", size, start=idle_s + 0.013)
    loop = Loop(engine(2 * MB, clicks=2 * MB), one + other)
    loop.run(idle_s + 60.0)
    for start, end in ((idle_s, idle_s + 30.0), (idle_s + 30.0, idle_s + 60.0)):
        assert loop.rate(start, end) == pytest.approx(2 * MB, rel=0.05)
        for each in (one, other):
            assert loop.rate(start, end, *each) >= 0.3 * 2 * MB
    assert not any(c.rejections for c in loop.connections)


def test_steady_demand_is_paced_smoothly() -> None:
    """Not in bursts: each half second gets half a second's worth."""
    loop = Loop(engine(2 * MB, clicks=2 * MB), producer("clicks", 20_000))
    loop.run(30.0)
    for half in range(20, 60):
        assert loop.rate(half / 2, half / 2 + 0.5) == pytest.approx(2 * MB, rel=0.05)


@pytest.mark.parametrize("topics", [1, 20])
def test_a_flood_between_two_looks_finds_no_more_than_what_was_saved(topics: int) -> None:
    """A client that was held back sends as fast as its network takes it. Total and topic have a second's worth each."""
    made = engine(1 * MB)
    names = [b"t%d" % number for number in range(topics)]
    for name in names:
        send(made, name, 1000, 0.0)
    now = 10.0
    made.pace_limits(now)
    assert not any(made.broker_meters(1).topics[name].needs_decision for name in names)
    free = 0
    for number in range(20_000):
        why = send(made, names[number % topics], 1000, now)
        if why is not None:
            break
        free += 1000
    assert why is not None
    assert free <= 2.05 * MB


def test_topics_that_begin_one_after_another_find_together_no_more_than_what_was_saved() -> None:
    made = engine(1 * MB)
    now = 5.0
    names = [b"t%d" % number for number in range(40)]
    for name in names:
        send(made, name, 1000, now)
        now += PACE_S
        made.pace_limits(now)
    meters = [made.broker_meters(1).topics[name] for name in names]
    assert sum(max(0.0, meter.ask_thresholds_at - meter.uncounted) for meter in meters) <= 1.1 * MB


def test_a_total_that_is_cut_holds_and_stops_no_client_for_longer_than_any_waits() -> None:
    made = engine(100 * MB)
    loop = Loop(made, [Connection("clicks", MB, start=n * 0.001) for n in range(20)])
    loop.run(60.0)
    made.set_thresholds(1 * MB, {}, on_exceed="delay")
    loop.run(120.0)
    assert loop.rate(61.0, 120.0) <= 1.2 * MB
    assert loop.rate(75.0, 120.0) >= 0.8 * MB
    strategy = made.broker_meters(1).limits.strategy
    assert isinstance(strategy, ThresholdPacer)
    assert strategy.bucket.excess_debt == 0


def test_a_topic_may_use_what_others_leave_up_to_the_total() -> None:
    loop = Loop(engine(10 * MB, clicks=3 * MB, views=7 * MB), producer("clicks"))
    loop.run(60.0)
    assert loop.rate(0.0, 30.0) == pytest.approx(10 * MB, rel=0.05)
    assert loop.rate(30.0, 60.0) == pytest.approx(10 * MB, rel=0.05)


def test_when_the_others_come_back_each_gets_its_threshold_and_slack_costs_one_second_at_most() -> None:
    clicks, views = producer("clicks"), producer("views", connections=2, start=60.0)
    loop = Loop(engine(10 * MB, clicks=3 * MB, views=7 * MB), clicks + views)
    loop.run(120.0)
    assert loop.rate(70.0, 120.0, *clicks) == pytest.approx(3 * MB, rel=0.05)
    assert loop.rate(70.0, 120.0, *views) == pytest.approx(7 * MB, rel=0.05)
    missed = (70.0 - 60.0) * 3 * MB - sum(c.admitted(60.0, 70.0) for c in clicks)
    assert missed < 1.1 * 3 * MB
    assert loop.rate(60.0, 90.0) == pytest.approx(10 * MB, rel=0.05)


def test_topics_that_all_want_more_get_their_thresholds_however_many_connections_each_has() -> None:
    few, many = producer("clicks", connections=2), producer("views", 20_000, connections=20)
    loop = Loop(engine(10 * MB, clicks=6 * MB, views=4 * MB), few + many)
    loop.run(40.0)
    assert loop.rate(10.0, 40.0, *few) == pytest.approx(6 * MB, rel=0.05)
    assert loop.rate(10.0, 40.0, *many) == pytest.approx(4 * MB, rel=0.05)


def test_a_topic_within_its_threshold_never_waits_beside_any_others() -> None:
    made = engine(10 * MB, clicks=8 * MB)
    made.set_listed_topics(1, ["clicks", "calm"])
    loop = Loop(made, producer("clicks", connections=8))
    calm: list[Verdict | None] = []

    def send_calmly(now: float) -> float:
        calm.append(send(made, b"calm", 19_000, now))
        return now + 0.01

    loop.at(0.0, send_calmly)
    loop.run(60.0)
    assert calm == [None] * len(calm)
    assert len(calm) > 5000
    assert loop.rate(30.0, 60.0) == pytest.approx(8.1 * MB, rel=0.05)


def test_a_threshold_of_zero_leaves_a_topic_the_rest_no_other_wants() -> None:
    made = engine(10 * MB, clicks=10 * MB)
    rest = producer("rest")
    loop = Loop(made, rest + producer("clicks", start=30.0))
    loop.run(90.0)
    assert loop.rate(0.0, 30.0, *rest) == pytest.approx(10 * MB, rel=0.05)
    assert loop.rate(45.0, 90.0, *rest) < 0.05 * 10 * MB
    assert loop.rate(45.0, 90.0) == pytest.approx(10 * MB, rel=0.05)


@pytest.mark.parametrize("after", [1 * MB, 8 * MB])
def test_a_limit_that_changes_in_the_middle_holds_at_once(after: int) -> None:
    made = engine(4 * MB, clicks=4 * MB)
    loop = Loop(made, producer("clicks", 20_000))
    loop.at(30.25, lambda _: made.set_thresholds(after, {"clicks": after}, on_exceed="delay"))
    loop.run(60.0)
    assert loop.rate(0.0, 30.0) == pytest.approx(4 * MB, rel=0.05)
    assert loop.rate(31.0, 60.0) == pytest.approx(after, rel=0.05)
    assert not any(c.rejections for c in loop.connections)


def test_a_limit_that_is_lifted_delays_no_client_any_more() -> None:
    made = engine(1 * MB, clicks=1 * MB)
    connections = producer("clicks", 20_000)
    loop = Loop(made, connections)
    loop.at(10.0, lambda _: made.set_thresholds(None, {}, on_exceed="delay"))
    loop.run(10.5)
    told = sum(len(c.told) for c in connections)
    assert made.needs_pacing is False
    loop.run(11.0)
    assert sum(len(c.told) for c in connections) == told
    assert loop.rate(10.6, 11.0) > 50 * MB


def test_a_request_of_several_seconds_of_its_limit_passes_and_is_paid_for() -> None:
    loop = Loop(engine(100_000, clicks=100_000), [Connection("clicks", 350_000)])
    loop.run(70.0)
    assert loop.rate(0.0, 70.0) == pytest.approx(100_000, rel=0.05)
    assert not any(c.rejections for c in loop.connections)


@pytest.mark.parametrize("size", [1_500_000, 2_500_000])
def test_a_request_of_more_than_the_longest_wait_passes_and_its_connection_comes_back_until_it_is_paid(
    size: int,
) -> None:
    (one,) = connections = [Connection("clicks", size)]
    loop = Loop(engine(100_000, clicks=100_000), connections)
    loop.run(1000.0)
    assert max(one.told) == pytest.approx(size / 100_000, abs=0.01)
    assert loop.rate(0.0, 1000.0) == pytest.approx(100_000, rel=0.05)


@pytest.mark.parametrize("size", [10_000, 20_000, 100_000])
def test_of_64_connections_on_one_small_limit_none_starves_and_none_waits_for_more_than_ten_seconds(size: int) -> None:
    connections = producer("clicks", size, connections=64)
    loop = Loop(engine(100_000, clicks=100_000), connections)
    loop.run(600.0)
    turn = 64 * size / 100_000  # seconds in which each could have had its turn once
    assert loop.rate(100.0, 600.0) == pytest.approx(100_000, rel=0.05)
    assert max(c.longest_gap(0.0, 600.0) for c in connections) < 2 * turn + 2 * MAX_WAIT_S
    assert min(c.admitted(100.0, 600.0) for c in connections) >= 0.6 * 500 * 100_000 / 64
    rejected = sum(len(c.rejections) for c in connections)
    assert rejected == 0 if turn < MAX_WAIT_S else 0 < rejected < 600 / 5 * 64  # each comes back after 5 s or more


def test_brokers_are_paced_each_by_itself() -> None:
    here, there = producer("clicks"), [Connection("clicks", 100_000, node_id=2) for _ in range(2)]
    loop = Loop(engine(2 * MB, clicks=2 * MB), here + there)
    loop.run(30.0)
    for each in (here, there):
        assert loop.rate(0.0, 30.0, *each) == pytest.approx(2 * MB, rel=0.05)


# --- one request ------------------------------------------------------------------------------------------------------


def test_each_later_request_is_told_a_later_time() -> None:
    made = engine(MB, clicks=MB)
    verdicts = [send(made, b"clicks", 200_000, 0.0) for _ in range(4)]
    assert [v.throttle_ms for v in verdicts if v] == [200, 400, 600, 800]
    assert {v.action for v in verdicts if v} == {"delay"}


def test_the_wait_is_the_shorter_one_of_topic_and_total() -> None:
    made = engine(10 * MB, clicks=MB, views=9 * MB)
    assert present(send(made, b"clicks", MB, 0.0)).throttle_ms == 100  # 1 s of its own, 0.1 s of the total
    send(made, b"views", 60 * MB, 0.0)
    assert present(send(made, b"clicks", MB, 0.0)).throttle_ms == 2000  # the total: 6.2 s; its own: 2 s


def test_with_only_the_total_or_only_the_topic_in_debt_nothing_waits() -> None:
    made = engine(10 * MB, clicks=MB, views=9 * MB)
    assert send(made, b"views", MB, 0.8) is None
    assert send(made, b"clicks", 3 * MB, 0.8) is None  # three seconds of its own, and the total has 4 MB left
    assert send(made, b"clicks", 5 * MB, 0.8) is not None
    assert send(made, b"views", 5 * MB, 0.8) is None  # the other way round: it has 6.2 MB left
    assert send(made, b"views", 5 * MB, 0.8) is not None


def test_slack_that_was_used_without_asking_costs_one_second_at_most_too() -> None:
    made = engine(10 * MB, clicks=MB, views=9 * MB)
    broker = made.broker_meters(1)
    topic(broker, b"clicks").uncounted += 40 * MB  # 8 of 10 MB/s
    broker.total.uncounted += 40 * MB
    made.apply_due_ticks(TICK_S)
    send(made, b"views", 60 * MB, TICK_S)  # the total owes 5 s
    assert present(send(made, b"clicks", MB // 2, TICK_S)).throttle_ms == 1500


def test_short_waits_are_saved_up() -> None:
    made = engine(MB, clicks=MB)
    said = [send(made, b"clicks", 4000, 0.0) for _ in range(3)]  # 4 ms each
    assert said[:2] == [None, None]
    assert said[2] is not None
    assert said[2].throttle_ms == 12


def test_beyond_the_longest_wait_requests_are_rejected_and_not_charged() -> None:
    made = engine(MB, clicks=MB)
    said = [send(made, b"clicks", 3 * MB, 0.0) for _ in range(8)]
    assert [v.action for v in said if v] == ["delay"] * 4 + ["reject"] * 4
    assert said[3] is not None
    assert said[3].throttle_ms == 12_000
    assert made.broker_meters(1).total.uncounted == 12 * MB
    made.pace_limits(2.1)
    assert present(send(made, b"clicks", 3 * MB, 2.1)).action == "delay"  # 9.9 s left


def test_clients_turned_away_come_back_within_ten_seconds_and_not_all_at_once() -> None:
    made = engine(MB, clicks=MB)
    send(made, b"clicks", 15 * MB, 0.0)
    told = [v.throttle_ms for v in (send(made, b"clicks", 1, 0.0) for _ in range(50)) if v]
    assert len(set(told)) == 50
    assert 5000 <= min(told) < 5500
    assert 9500 < max(told) <= 10_000


def test_a_client_turned_away_for_longer_may_join_a_longer_line() -> None:
    made = engine(MB, clicks=MB)
    send(made, b"clicks", 12 * MB, 0.0)
    for denied_s, action in ((0.0, "reject"), (30.0, "reject"), (50.0, "delay")):
        verdict = present(decide(made, 1, b"clicks", 1, 0.0, denied_s=denied_s))
        assert verdict.action == action
        assert verdict.throttle_ms <= (10_000 if action == "reject" else 12_001)


def test_a_request_that_could_not_be_paid_for_waits_until_none_is_before_it() -> None:
    made = engine(MB, clicks=MB)
    send(made, b"clicks", MB, 0.0)
    large = present(send(made, b"clicks", 40 * MB, 0.5))
    assert large.action == "reject"
    large = present(send(made, b"clicks", 40 * MB, 1.0))
    assert large.action == "delay"
    made.pace_limits(1.0)
    pacer = made.broker_meters(1).limits.strategy
    assert isinstance(pacer, ThresholdPacer)
    assert pacer.bucket.token_level(1.0) == -30 * MB  # and what is beyond the bound is forgiven


def test_a_connection_that_may_not_be_delayed_any_more_gets_what_is_there_and_else_a_rejection() -> None:
    made = engine(MB, clicks=MB)
    first = send(made, b"clicks", 300_000, 0.0, may_delay=False)
    assert first is not None  # nobody is before it: it passes, as it would have with a delay
    assert first.action == "delay"
    second = present(send(made, b"clicks", 300_000, 0.0, may_delay=False))
    assert (second.action, second.throttle_ms) == ("reject", 300)
    assert "this connection has waited" in second.text
    assert send(made, b"clicks", 300_000, 0.3, may_delay=False) is not None
    assert made.broker_meters(1).total.uncounted == 600_000


def test_bytes_not_admitted_after_all_are_not_taken() -> None:
    """Another partition of the same request was refused, and its client takes only one answer for all."""
    made = engine(MB, clicks=MB)
    decide(made, 1, b"clicks", 5 * MB, 0.0)
    topic(made.broker_meters(1), b"clicks")
    decide(made, 1, b"clicks", 5 * MB, 0.0)
    assert present(send(made, b"clicks", 500_000, 0.0)).throttle_ms == 500


def test_all_topics_of_a_request_are_asked_before_any_is_taken_from_the_total() -> None:
    made = engine(MB, clicks=MB)
    pacer = made.broker_meters(1).limits.strategy
    assert isinstance(pacer, ThresholdPacer)
    parts = [Request(made, b"clicks", 20 * MB), Request(made, b"views", 25 * MB)]
    assert [part.ask(0.0) for part in parts] != [None, None]
    assert pacer.bucket.token_level(0.0) == 0
    for part in parts:
        part.admit(0.0)
    assert pacer.bucket.token_level(0.0) == -30 * MB
    made.pace_limits(0.0)
    assert pacer.bucket.token_level(0.0) == -30 * MB  # also where a part of what was taken has been forgiven


def test_bytes_that_the_broker_refuses_are_given_back() -> None:
    made = engine(MB, clicks=MB)
    send(made, b"clicks", 5 * MB, 0.0)
    made.record_broker_refusal(1, b"clicks", 5 * MB)
    assert present(send(made, b"clicks", 500_000, 0.0)).throttle_ms == 500


def test_bytes_counted_without_asking_are_paid_for_as_well() -> None:
    """Internal principals are metered, never limited; nor is a topic's traffic in the moment before it is noticed."""
    made = engine(MB, clicks=MB)
    broker = made.broker_meters(1)
    topic(broker, b"clicks").uncounted += 3 * MB
    broker.total.uncounted += 3 * MB
    assert present(send(made, b"clicks", MB, 0.0)).throttle_ms == 4000


def test_a_verdict_says_limits_rates_reason_and_how_long() -> None:
    made = engine(MB, clicks=500_000)
    send(made, b"clicks", 4 * MB, 0.0)
    made.apply_due_ticks(TICK_S)
    send(made, b"clicks", 8 * MB, TICK_S)
    delayed = send(made, b"clicks", 2 * MB, TICK_S)
    rejected = send(made, b"clicks", 2 * MB, TICK_S)
    assert delayed is not None
    assert rejected is not None
    assert (delayed.action, delayed.reason) == ("delay", "topic-threshold")
    assert "its threshold of 500.0 kB/s (observed 800.0 kB/s, 1-minute EWMA)" in delayed.text
    assert "its total of 1.0 MB/s (observed 800.0 kB/s)" in delayed.text
    assert delayed.throttle_ms == 9000
    assert rejected.action == "delay"
    assert present(send(made, b"clicks", 2 * MB, TICK_S)).action == "reject"


# --- which topics are asked about -------------------------------------------------------------------------------------


def test_a_quiet_topic_is_asked_about_and_one_with_traffic_is_not_while_there_is_credit() -> None:
    made = engine(10 * MB, clicks=5 * MB)
    meter = topic(made.broker_meters(1), b"clicks")
    assert meter.needs_decision
    made.pace_limits(1.0)
    send(made, b"clicks", 1000, 1.0)
    made.pace_limits(1.05)
    assert not meter.needs_decision
    send(made, b"clicks", 1000, 1.1)
    made.apply_due_ticks(5.0)
    assert not meter.needs_decision
    made.apply_due_ticks(10.0)
    assert meter.needs_decision


def test_a_topic_is_asked_about_again_before_total_and_topic_have_used_up_their_credit() -> None:
    made = engine(10 * MB, clicks=4 * MB)
    made.pace_limits(1.0)
    send(made, b"clicks", 1000, 1.0)
    made.pace_limits(1.05)
    meter = made.broker_meters(1).topics[b"clicks"]
    send(made, b"clicks", 6 * MB, 1.05)  # the total has 4 MB left, less than half a second's worth
    assert meter.needs_decision
    made.pace_limits(1.05)
    assert meter.needs_decision
    made.pace_limits(1.3)  # the total has 6.5 MB, the topic nothing
    assert meter.needs_decision
    send(made, b"clicks", 1000, 1.5)
    made.pace_limits(1.5)  # the total has 8.5 MB
    assert not meter.needs_decision


def test_a_topic_that_has_waited_is_asked_about_when_it_comes_again() -> None:
    """Its client waits and sends nothing, the credit grows: the bytes it sends then must not get in unseen."""
    made = engine(MB, clicks=MB)
    send(made, b"clicks", 2 * MB, 0.0)
    for step in range(100):
        made.pace_limits(step * PACE_S)
    assert made.broker_meters(1).topics[b"clicks"].needs_decision


def test_a_topic_within_its_threshold_is_not_asked_about_though_the_total_is_in_debt() -> None:
    made = engine(10 * MB, clicks=5 * MB, views=5 * MB)
    for step in range(1, 101):
        now = step * PACE_S
        send(made, b"views", round(4 * MB * PACE_S), now)
        for _ in range(5):
            send(made, b"clicks", round(2 * MB * PACE_S), now)
        made.pace_limits(now)
    topics = made.broker_meters(1).topics
    assert topics[b"clicks"].needs_decision
    assert not topics[b"views"].needs_decision
    rates = {rate.topic: rate.over for rate in made.collect_rates()[0].topics}
    assert rates == {"clicks": True, "views": False}


def test_a_topic_and_its_total_say_how_their_buckets_stand() -> None:
    made = engine(2 * MB, clicks=MB, views=MB)
    assert send(made, b"clicks", 8 * MB, 0.0) is not None
    made.start_new_meters(1.0)
    (broker,) = made.collect_rates()
    assert broker.bucket_use is not None
    assert broker.bucket_use[:3] == (2 * MB, 2 * MB, True)  # used up, whatever its rate
    assert broker.bucket_use.wait_s == pytest.approx(3.0, abs=0.1)
    (clicks,) = broker.topics
    assert clicks.bucket_use is not None
    assert (clicks.bucket_use.rate, clicks.bucket_use.limit, clicks.bucket_use.waiting) == (MB, MB, True)
    assert clicks.limit_use is clicks.bucket_use
    made.start_new_meters(30.0)
    (broker,) = made.collect_rates()
    assert broker.bucket_use is not None
    assert (broker.bucket_use.limit, broker.bucket_use.waiting, broker.bucket_use.wait_s) == (2 * MB, False, 0.0)


def test_topics_without_a_threshold_never_wait() -> None:
    made = engine(MB)
    assert [send(made, b"__consumer_offsets", 5 * MB, 0.0) for _ in range(5)] == [None] * 5
    made.pace_limits(0.05)
    assert not made.broker_meters(1).topics[b"__consumer_offsets"].needs_decision
    clicks = send(made, b"clicks", MB, 0.05)
    assert clicks is not None  # but the total is spent
    assert clicks.throttle_ms == 950


def test_a_topic_that_has_gone_is_asked_about_no_more() -> None:
    made = engine(MB)
    made.set_listed_topics(1, ["clicks", "views"])
    made.pace_limits(0.0)
    send(made, b"clicks", 5 * MB, 0.0)
    made.set_listed_topics(1, ["views"])
    made.pace_limits(0.05)
    assert decide(made, 1, b"clicks", 1, 0.05) is None
    assert made.broker_meters(1).topics.keys() == set()


# --- from one way to the other ----------------------------------------------------------------------------------------


def test_topics_that_are_deleted_amid_traffic_leave_others_all_that_may_come_unasked() -> None:
    made = engine()
    listed = made.broker_meters(1).set_listed_topics
    for step in range(600):
        now = step * PACE_S
        listed(frozenset([b"calm", b"t%d" % (step // 4)]))
        made.apply_due_ticks(now)
        send(made, b"t%d" % (step // 4), 1000, now)
        made.pace_limits(now)
    listed(frozenset([b"calm"]))
    asked = 0
    for step in range(600, 1000):
        now = step * PACE_S
        made.apply_due_ticks(now)
        made.pace_limits(now)
        for _ in range(2):
            asked += topic(made.broker_meters(1), b"calm").thresholds_ask
            send(made, b"calm", 1000, now)
    assert asked <= 40


def test_nothing_is_paced_where_thresholds_reject_or_there_is_no_total() -> None:
    made = PolicyEngine(0.0)
    made.set_thresholds(MB, {})
    assert made.needs_pacing is False
    made.set_thresholds(None, {}, on_exceed="delay")
    assert made.needs_pacing is False
    assert not topic(made.broker_meters(1), b"clicks").needs_decision
    made.set_thresholds(MB, {}, on_exceed="delay")
    assert made.needs_pacing is True
    assert made.broker_meters(1).topics[b"clicks"].needs_decision


def test_changing_to_rejection_and_back_leaves_neither_debts_nor_marks() -> None:
    made = engine(MB, clicks=MB)
    for _ in range(3):
        send(made, b"clicks", 4 * MB, 0.0)
    made.set_thresholds(MB, {"clicks": MB})
    assert not made.broker_meters(1).topics[b"clicks"].needs_decision
    made.apply_due_ticks(TICK_S)
    assert made.broker_meters(1).topics[b"clicks"].needs_decision
    made.set_thresholds(MB, {"clicks": MB}, on_exceed="delay")
    made.pace_limits(TICK_S)
    verdict = present(send(made, b"clicks", 100_000, TICK_S))
    assert (verdict.action, verdict.throttle_ms) == ("delay", 100)


# --- mode: observe ----------------------------------------------------------------------------------------------------


def test_observed_only_verdicts_are_marked() -> None:
    made = engine(MB, mode="observe", clicks=MB)
    verdict = present(send(made, b"clicks", MB, 0.0))
    assert verdict.observed_only
    assert verdict.would_outcome == "would_delay"
    rejects = PolicyEngine(0.0)
    rejects.set_thresholds(MB, {"clicks": MB}, mode="observe")
    record(rejects.broker_meters(1), b"clicks", 50 * MB)
    rejects.apply_due_ticks(TICK_S)
    rejected = present(decide(rejects, 1, b"clicks", 1, TICK_S))
    assert rejected.observed_only
    assert rejected.would_outcome == "would_reject"


def test_of_three_times_the_limit_two_thirds_would_be_rejected() -> None:
    """No client slows down where limits are only observed: as much as the limit would be admitted, and no more."""
    made = engine(MB, mode="observe", clicks=MB)
    loop = Loop(made, [])
    sizes = {"delay": 0, "reject": 0}

    def offer(now: float) -> float:
        verdict = send(made, b"clicks", 30_000, now)
        if verdict is not None and now > 30:
            sizes[verdict.action] += 30_000
        return now + 0.01

    loop.at(0.0, offer)
    loop.run(130.0)
    assert sizes["delay"] / 100 == pytest.approx(MB, rel=0.05)
    assert sizes["reject"] / 100 == pytest.approx(2 * MB, rel=0.05)
    assert made.broker_meters(1).total.rate == pytest.approx(3 * MB, rel=0.05)  # the meters say what is


# --- any order of events ----------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(1, 3000), st.floats(0, 1.5), st.integers(0, 9)),
    max_size=80,
)


@given(steps)
def test_in_any_run_the_total_owes_the_bytes_beyond_its_rate(
    steps: list[tuple[bytes, int, float, int]],
) -> None:
    """Asked about or not, ticked or not, given back or not: each byte is in the bucket once."""
    made, now = engine(1000.0, a=500.0), 0.0
    made.pace_limits(0.0)
    level = 0.0
    for name, size, pause, what in steps:
        then, now = now, now + pause
        made.apply_due_ticks(now)
        made.pace_limits(now)
        broker = made.broker_meters(1)
        level = min(1000.0, level + 1000.0 * (now - then))
        if what == 0:
            made.record_broker_refusal(1, name, size)
            level += size
        elif what == 1:
            topic(broker, name).uncounted += size
            broker.total.uncounted += size
            level -= size
        else:
            verdict = send(made, name, size, now)
            assert verdict is None or 0 < verdict.throttle_ms <= 10_000
            level -= 0 if verdict is not None and verdict.action == "reject" else size
        level = max(min(level, 1000.0), -30_000.0)
        made.pace_limits(now)
        assert isinstance(broker.limits.strategy, ThresholdPacer)
        assert broker.limits.strategy.bucket.token_level(now) == pytest.approx(level, abs=1e-3)


# --- cost -------------------------------------------------------------------------------------------------------------


def test_pacing_ten_thousand_topics_is_short() -> None:
    made = engine(100 * MB)
    broker = made.broker_meters(1)
    meters = [broker.add_topic(b"t%d" % i) for i in range(10_000)]
    made.pace_limits(0.0)
    for step in range(1, 9):
        for active in (0, 1000):
            for meter in meters[:active]:
                meter.uncounted += 100
            broker.total.uncounted += 100 * MB
            # A comparison for each, and an update (in the first pass, a bucket too) for those that had traffic.
            assert lines_run(made.pace_limits, step * PACE_S) < 22_000 + 65 * active


def test_while_the_total_has_credit_ten_thousand_topics_cost_nothing() -> None:
    made = engine(100 * MB)
    broker = made.broker_meters(1)
    meters = [broker.add_topic(b"t%d" % i) for i in range(10_000)]
    made.pace_limits(0.0)
    for step in range(20, 40):
        for meter in meters:
            meter.uncounted += 100
        broker.total.uncounted += MB
        assert lines_run(made.pace_limits, step * PACE_S) < 80
