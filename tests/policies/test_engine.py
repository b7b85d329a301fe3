# The engine: ticks, changes at run time, and that it all stays cheap. Whatever the order of events, `over` is compared
# with what the rule says at that moment.

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from policies.engine import INTERNAL_TOPICS, Engine
from policies.limits.meter import TICK_S
from policies.thresholds.broker_meters import BrokerMeters
from policies.thresholds.values import ThresholdError
from tests.policies.asking import fill, record, rejecting

MB = 1_000_000


# --- ticks ------------------------------------------------------------------------------------------------------------


def test_ticks_stay_at_fixed_boundaries_however_late_they_are_applied() -> None:
    made = Engine(now=100.0)
    assert bool(made.tick(104.9)) is False
    assert bool(made.tick(107.3)) is True
    assert made.due == 110.0
    assert made.next_tick(107.3) == pytest.approx(2.7)
    assert bool(made.tick(109.9)) is False
    assert bool(made.tick(110.0)) is True


def test_a_tick_that_is_overdue_is_due_now() -> None:
    assert Engine(now=0.0).next_tick(12.0) == 0.0


def test_after_a_long_pause_all_due_ticks_are_applied() -> None:
    made, twin = rejecting(), rejecting()
    for each in (made, twin):
        fill(each, clicks=10 * MB)
        record(each.broker(1), b"clicks", 100)
    made.tick(31.0)
    for now in (10.0, 15.0, 20.0, 25.0, 30.0):
        twin.tick(now)
    assert made.broker(1).total.rate == pytest.approx(twin.broker(1).total.rate)
    assert made.broker(1).topics[b"clicks"].rate == pytest.approx(twin.broker(1).topics[b"clicks"].rate)
    assert made.due == twin.due == 35.0


@given(st.floats(0, 1e6), st.lists(st.floats(0, 30), max_size=40))
def test_no_tick_is_lost_or_doubled_by_rounding(start: float, pauses: list[float]) -> None:
    made, now = Engine(start), start
    for pause in pauses:
        now = made.due if pause > 25 else now + pause
        due = now >= made.due
        assert bool(made.tick(now)) is due
        assert now < made.due <= now + TICK_S * 1.000001
        assert bool(made.tick(now)) is False


# --- topics come and go -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_kafkas_internal_topics_take_no_share_and_have_no_threshold(name: str) -> None:
    made = rejecting(total=20 * MB)
    made.set_topics(1, ["a", "b", name])
    assert made.broker(1).share == 10 * MB
    fill(made, a=1, **{name: 100 * MB})
    assert made.broker(1).topics[name.encode()].threshold is None
    assert record(made.broker(1), name.encode(), 1) is True


def test_which_topics_are_internal_can_be_said() -> None:
    made = Engine(0.0, internal=["mine"])
    made.set_policy(20 * MB, {})
    made.set_topics(1, ["a", "mine", "__consumer_offsets"])
    assert made.broker(1).share == 10 * MB


def test_a_topic_that_only_looks_internal_is_limited() -> None:
    made = rejecting(total=20 * MB)
    made.set_topics(1, ["a", "__consumer_offsets_of_mine"])
    assert made.broker(1).share == 10 * MB


def test_a_deleted_topic_leaves_the_sum_and_comes_back_with_its_threshold() -> None:
    made = rejecting(total=20 * MB, clicks=5 * MB, old=5 * MB)
    made.set_topics(1, ["clicks", "a"])
    made.set_topics(2, ["old", "b"])
    assert made.broker(1).share == 10 * MB
    made.set_topics(2, ["b"])
    assert made.broker(1).share == 15 * MB
    made.set_topics(1, ["clicks", "a", "old"])
    assert made.broker(1).share == 10 * MB
    assert made.broker(1).add_topic(b"old").threshold == 5 * MB


def test_a_topic_that_moves_to_another_broker_is_not_deleted() -> None:
    made = rejecting(total=20 * MB, clicks=5 * MB)
    made.set_topics(1, ["clicks", "a"])
    made.set_topics(2, ["clicks"])
    made.set_topics(1, ["a"])
    assert made.broker(1).share == 15 * MB


def test_a_threshold_of_a_topic_that_does_not_exist_yet_is_kept_free_for_it() -> None:
    made = rejecting(total=20 * MB, planned=5 * MB)
    made.set_topics(1, ["a"])
    assert made.broker(1).share == 15 * MB


# --- policies and warnings --------------------------------------------------------------------------------------------


def test_a_policy_counts_at_once_in_both_directions() -> None:
    made = rejecting(total=10 * MB, clicks=5 * MB)
    fill(made, clicks=6 * MB, rest=6 * MB)
    assert made.broker(1).topics[b"clicks"].over
    made.set_policy(10 * MB, {"clicks": 7 * MB})
    assert not made.broker(1).topics[b"clicks"].over
    made.set_policy(10 * MB, {"clicks": 2 * MB})
    assert made.broker(1).topics[b"clicks"].over
    made.set_policy(None, {})
    assert not made.broker(1).topics[b"clicks"].over


def test_without_a_total_nothing_is_ever_rejected_and_topic_thresholds_are_warned_about() -> None:
    made = rejecting(None, clicks=1)
    fill(made, clicks=10_000 * MB)
    assert record(made.broker(1), b"clicks", 1) is True
    assert len(made.warnings()) == 1


def test_a_share_of_zero_is_warned_about_where_it_concerns_a_topic() -> None:
    made = rejecting(total=20 * MB, clicks=20 * MB)
    made.set_topics(1, ["clicks"])
    made.set_topics(2, ["clicks", "a"])
    (warning,) = made.warnings()
    assert warning.startswith("broker 2 ")
    made.set_policy(20 * MB, {"clicks": 19 * MB})
    assert made.warnings() == ()


def test_rates_list_every_broker_and_topic() -> None:
    made = rejecting(total=10 * MB, clicks=5 * MB)
    fill(made, clicks=6 * MB, rest=6 * MB)
    (broker,) = made.rates()
    assert broker[:5] == (1, 12 * MB, 0, 0, 10 * MB)
    assert broker.topics == [("clicks", 6 * MB, 5 * MB, True), ("rest", 6 * MB, 5 * MB, True)]


# --- the rule, at any moment ------------------------------------------------------------------------------------------


class Machine(RuleBasedStateMachine):
    """Any order of events: what every topic's `over` and the share say is what the rule says of the present numbers."""

    names = st.sampled_from([f"t{i}" for i in range(8)])
    brokers = st.sampled_from([1, 2])

    @initialize()
    def start(self) -> None:
        self.engine = Engine(0.0)
        self.now = 0.0
        self.total: float | None = None
        self.explicit: dict[str, float] = {}
        self.listed: dict[int, set[str]] = {1: set(), 2: set()}
        self.gone: set[str] = set()

    @rule(total=st.sampled_from([None, 10.0, 50.0, 400.0]), explicit=st.dictionaries(names, st.integers(0, 30)))
    def change(self, total: float | None, explicit: dict[str, float]) -> None:
        refused = total is not None and sum(v for name, v in explicit.items() if name not in self.gone) > total
        try:
            self.engine.set_policy(total, explicit)
        except ValueError:
            assert refused
        else:
            assert not refused
            self.total, self.explicit = total, explicit
            self.gone &= explicit.keys()

    @rule(node=brokers, names=st.sets(names))
    def list_topics(self, node: int, names: set[str]) -> None:
        self.engine.set_topics(node, names)
        self.gone |= self.listed[node] & self.explicit.keys()
        self.listed[node] = names
        self.gone -= self.listed[1] | self.listed[2]

    @rule(node=brokers, name=names, size=st.integers(1, 3000))
    def produce(self, node: int, name: str, size: int) -> None:
        before = self.engine.broker(node).topics.get(name.encode())
        is_over = before is not None and before.over
        assert record(self.engine.broker(node), name.encode(), size) is not is_over

    @rule(node=brokers, name=names, size=st.integers(1, 500))
    def refuse(self, node: int, name: str, size: int) -> None:
        self.engine.refund(node, name.encode(), size)

    @rule(pause=st.floats(0, 12))
    def wait(self, pause: float) -> None:
        self.now += pause
        self.engine.tick(self.now)

    @invariant()
    def every_answer_is_the_rules(self) -> None:
        for node, broker in self.engine.brokers.items():
            self.check(broker, self.listed[node])

    def check(self, broker: BrokerMeters, listed: set[str]) -> None:
        there = listed | {name.decode() for name in broker.topics}
        sharing = len(there - self.explicit.keys())
        for name, meter in broker.topics.items():
            assert meter.rate >= 0
            limit = self.explicit.get(name.decode(), broker.share)
            assert meter.threshold == (limit if self.total is not None or name.decode() in self.explicit else None)
            over = self.total is not None and broker.total.rate > self.total
            assert meter.over is (over and limit is not None and meter.rate > limit)
        if self.total is None:
            assert broker.share is None
        else:
            used = sum(limit for name, limit in self.explicit.items() if name not in self.gone)
            left = max(0.0, self.total - used)  # below 0: a deleted topic was made again
            assert broker.share == pytest.approx(left / max(1, sharing))


TestMachine = Machine.TestCase


# --- cost -------------------------------------------------------------------------------------------------------------


def test_a_tick_of_ten_thousand_topics_is_short() -> None:
    made = rejecting(total=10 * MB)
    fill(made, **{f"t{i}": 5000 for i in range(10_000)})
    times = []
    for _ in range(5):
        started = time.perf_counter()
        made.tick(made.due)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.05  # 3 ms here; generous for a busy machine


# --- totals of single brokers -----------------------------------------------------------------------------------------


def test_a_broker_may_have_a_total_of_its_own() -> None:
    made = Engine(now=0.0)
    made.set_policy(10.0 * MB, {"clicks": 2.0 * MB}, totals={2: 4.0 * MB})
    for node_id in (1, 2):
        made.set_topics(node_id, ["clicks", "logs"])
    assert [made.broker(node_id).threshold for node_id in (1, 2, 3)] == [10 * MB, 4 * MB, 10 * MB]
    assert [made.broker(node_id).share for node_id in (1, 2)] == [8 * MB, 2 * MB]


def test_only_the_broker_that_has_a_total_is_limited() -> None:
    made = Engine(now=0.0)
    made.set_policy(None, {}, totals={2: 4.0 * MB}, on_exceed="delay")
    assert made.paces
    assert made.broker(1).threshold is None
    assert made.broker(2).threshold == 4 * MB


def test_explicit_thresholds_are_checked_against_every_total_and_nothing_is_half_applied() -> None:
    made = Engine(now=0.0)
    made.set_policy(10.0 * MB, {})
    with pytest.raises(ThresholdError):
        made.set_policy(20.0 * MB, {"clicks": 5.0 * MB}, totals={2: 4.0 * MB})
    assert made.broker(1).threshold == 10 * MB


def test_a_deleted_topic_leaves_the_sum_and_one_that_is_made_again_refuses_nobody() -> None:
    made = Engine(now=0.0)
    made.set_policy(10.0 * MB, {"old": 8.0 * MB})
    made.set_topics(1, ["old", "logs"])
    made.set_topics(1, ["logs"])
    made.set_policy(10.0 * MB, {"old": 8.0 * MB, "new": 8.0 * MB})
    assert made.broker(1).share == 2 * MB
    made.set_topics(1, ["logs", "old"])
    assert made.broker(1).share == 0


def test_what_control_has_accepted_is_not_judged_again() -> None:
    made = Engine(now=0.0)
    made.set_policy(10.0 * MB, {"old": 8.0 * MB, "new": 8.0 * MB}, accepted=True)
    made.set_topics(1, ["old", "new", "logs"])
    assert made.broker(1).share == 0
    assert made.broker(1).add_topic(b"new").threshold == 8 * MB
