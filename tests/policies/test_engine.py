# The engine: ticks, changes at run time, and that it all stays cheap. Whatever the order of events, `over` is compared
# with what the rule says at that moment.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from policies.engine import INTERNAL_TOPICS, PolicyEngine
from policies.limited_broker import LimitedBroker
from policies.meters.broker_meters import PeerTraffic
from policies.meters.meter import TICK_S
from tests.effort import lines_run
from tests.examples import matrix
from tests.policies.asking import fill, record, rejecting, threshold_of

MB = 1_000_000


# --- ticks ------------------------------------------------------------------------------------------------------------


def test_ticks_stay_at_fixed_boundaries_however_late_they_are_applied() -> None:
    made = PolicyEngine(now=100.0)
    assert bool(made.apply_due_ticks(104.9)) is False
    assert bool(made.apply_due_ticks(107.3)) is True
    assert made.next_tick_at == 110.0
    assert made.seconds_to_tick(107.3) == pytest.approx(2.7)
    assert bool(made.apply_due_ticks(109.9)) is False
    assert bool(made.apply_due_ticks(110.0)) is True


def test_a_tick_that_is_overdue_is_due_now() -> None:
    assert PolicyEngine(now=0.0).seconds_to_tick(12.0) == 0.0


def test_after_a_long_pause_all_due_ticks_are_applied() -> None:
    made, twin = rejecting(), rejecting()
    for each in (made, twin):
        fill(each, clicks=10 * MB)
        record(each.broker_meters(1), b"clicks", 100)
    made.apply_due_ticks(31.0)
    for now in (10.0, 15.0, 20.0, 25.0, 30.0):
        twin.apply_due_ticks(now)
    assert made.broker_meters(1).total.rate == pytest.approx(twin.broker_meters(1).total.rate)
    assert made.broker_meters(1).topics[b"clicks"].rate == pytest.approx(twin.broker_meters(1).topics[b"clicks"].rate)
    assert made.next_tick_at == twin.next_tick_at == 35.0


@given(st.floats(0, 1e6), st.lists(st.floats(0, 30), max_size=40))
def test_no_tick_is_lost_or_doubled_by_rounding(start: float, pauses: list[float]) -> None:
    made, now = PolicyEngine(start), start
    for pause in pauses:
        now = made.next_tick_at if pause > 25 else now + pause
        due = now >= made.next_tick_at
        assert bool(made.apply_due_ticks(now)) is due
        assert now < made.next_tick_at <= now + TICK_S * 1.000001
        assert bool(made.apply_due_ticks(now)) is False


# --- meters that begin between two ticks ------------------------------------------------------------------------------


def offered(
    workers: list[PolicyEngine], now: float, seconds: float, offers: dict[int, float]
) -> list[tuple[float, bool]]:
    """So much of `clicks` a second at each worker, which hear of each other's rates every second: when something was
    sent, and whether it got in. The broker is over its total by what nobody limits.
    """
    said = []
    for step in range(round(seconds * 20)):
        at = now + step / 20
        for worker in workers:
            worker.apply_due_ticks(at)
            record(worker.broker_meters(1), b"__consumer_offsets", MB)
        if step % 20 == 0 and len(workers) > 1:
            exchange(workers)
        for number, rate in offers.items():
            said.append((at - now, record(workers[number].broker_meters(1), b"clicks", round(rate / 20))))
    return said


def exchange(workers: list[PolicyEngine]) -> None:
    for worker in workers:
        rest = [broker for each in workers if each is not worker for broker in each.collect_rates()]
        topics: dict[bytes, float] = {}
        for topic in (topic for broker in rest for topic in broker.topics):
            topics[topic.topic.encode()] = topics.get(topic.topic.encode(), 0.0) + topic.rate
        worker.set_peer_traffic({1: PeerTraffic(sum(broker.rate for broker in rest), topics)})


def workers_at_work(count: int = 1) -> list[PolicyEngine]:
    """They have been up for 20 seconds, and tick at moments of their own."""
    made = []
    for number in range(count):
        worker = PolicyEngine(-20.0 - 1.3 * number)
        worker.set_thresholds(10.0 * MB, {"clicks": 5.0 * MB})
        made.append(worker)
    offered(made, -20.0, 20.0, {})
    return made


def first_rejection(said: list[tuple[float, bool]]) -> float:
    return next(at for at, is_in in said if not is_in)


@pytest.mark.parametrize(
    ("phase", "rate"), matrix([number * 0.35 for number in range(15)], [5.5 * MB, 10.0 * MB, 50.0 * MB])
)
def test_a_topic_over_its_threshold_is_rejected_from_its_sixth_second_on(phase: float, rate: float) -> None:
    """Whenever it begins; Kafka's own meter would have its first rate after five seconds."""
    workers = workers_at_work()
    offered(workers, 0.0, phase, {})
    assert TICK_S <= first_rejection(offered(workers, phase, 10, {0: rate})) + 1e-6 <= TICK_S + 1.1


@pytest.mark.parametrize("phase", [0.0, 1.7, 3.4, 4.9])
def test_the_same_holds_with_its_clients_at_several_workers(phase: float) -> None:
    workers = workers_at_work(3)
    offered(workers, 0.0, phase, {})
    said = offered(workers, phase, 12, dict.fromkeys(range(3), 3.0 * MB))
    assert TICK_S <= first_rejection(said) + 1e-6 <= TICK_S + 2.1, "each hears of the others a second later"


@pytest.mark.parametrize("phase", [0.0, 1.7, 3.4, 4.9])
def test_a_leader_that_comes_back_begins_anew_and_is_rejected_as_soon(phase: float) -> None:
    (worker,) = workers_at_work()
    worker.set_listed_topics(1, ["clicks"])
    assert not offered([worker], 0.0, 10, {0: 10.0 * MB})[-1][1]
    offered([worker], 10.0, phase, {})
    worker.set_listed_topics(1, [])
    worker.set_listed_topics(1, ["clicks"])
    said = offered([worker], 10.0 + phase, 10, {0: 10.0 * MB})
    assert TICK_S <= first_rejection(said) + 1e-6 <= TICK_S + 1.1


@pytest.mark.parametrize("phase", [0.0, 1.7, 3.4, 4.9])
def test_a_client_that_moves_to_another_worker_is_not_counted_twice(phase: float) -> None:
    """Within its threshold it is never rejected, though for a minute both workers have a rate of it."""
    workers = workers_at_work(2)
    offered(workers, 0.0, phase, {})
    assert all(is_in for _, is_in in offered(workers, phase, 60, {0: 4.5 * MB}))
    assert all(is_in for _, is_in in offered(workers, phase + 60, 60, {1: 4.5 * MB}))
    rates = [worker.broker_meters(1).topics[b"clicks"].rate for worker in workers]
    assert sum(rates) == pytest.approx(4.5 * MB, rel=0.1)


@pytest.mark.parametrize("phase", [0.0, 1.7, 3.4, 4.9])
def test_a_broker_that_is_new_has_its_total_as_soon(phase: float) -> None:
    (worker,) = workers_at_work()
    offered([worker], 0.0, phase, {})
    broker = worker.broker_meters(2)
    rates = []
    for step in range(140):
        worker.apply_due_ticks(phase + step / 20)
        rates.append((step / 20, broker.total.rate))
        broker.total.uncounted += MB
    assert {rate for age, rate in rates if age < TICK_S} == {0.0}
    assert [rate for age, rate in rates if age > TICK_S + 1] == pytest.approx([20.0 * MB] * 19, rel=0.02)


# --- topics come and go -----------------------------------------------------------------------------------------------


@pytest.mark.seed("V1.8")
@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_kafkas_internal_topics_take_no_share_and_have_no_threshold(name: str) -> None:
    made = rejecting(total=20 * MB)
    made.set_listed_topics(1, ["a", "b", name])
    assert made.broker_meters(1).limits.thresholds.implicit_share == 10 * MB
    fill(made, a=1, **{name: 100 * MB})
    assert threshold_of(made.broker_meters(1), name.encode()) is None
    assert record(made.broker_meters(1), name.encode(), 1) is True


def test_which_topics_are_internal_can_be_said_and_one_that_only_looks_so_is_limited() -> None:
    for internal, listed in (
        (["mine"], ["a", "mine", "__consumer_offsets"]),
        (INTERNAL_TOPICS, ["a", "__consumer_offsets_of_mine"]),
    ):
        made = PolicyEngine(0.0, internal=internal)
        made.set_thresholds(20 * MB, {})
        made.set_listed_topics(1, listed)
        assert made.broker_meters(1).limits.thresholds.implicit_share == 10 * MB


def test_a_topic_that_moves_takes_its_part_along_and_one_that_is_deleted_gives_it_back() -> None:
    made = rejecting(total=20 * MB, clicks=5 * MB)
    made.set_listed_topics(1, ["clicks", "a"])
    made.set_listed_topics(2, ["b"])
    assert [made.broker_meters(node_id).limits.thresholds.implicit_share for node_id in (1, 2)] == [15 * MB, 20 * MB]
    made.set_listed_topics(1, ["a"])
    made.set_listed_topics(2, ["b", "clicks"])
    assert [made.broker_meters(node_id).limits.thresholds.implicit_share for node_id in (1, 2)] == [20 * MB, 15 * MB]
    assert threshold_of(made.broker_meters(2), b"clicks") == 5 * MB
    made.set_listed_topics(2, ["b"])
    assert made.broker_meters(2).limits.thresholds.implicit_share == 20 * MB


def test_a_topic_with_a_threshold_takes_its_part_as_soon_as_a_broker_has_taken_something_for_it() -> None:
    made = rejecting(total=20 * MB, new=5 * MB)
    made.set_listed_topics(1, ["a"])
    made.broker_meters(1).confirm_topic(b"new")
    assert made.broker_meters(1).limits.thresholds.implicit_share == 15 * MB


def test_when_partitions_moved_too_many_thresholds_together_nothing_is_left_to_share() -> None:
    made = rejecting(total=10 * MB, one=8 * MB, two=8 * MB)
    made.set_listed_topics(1, ["one", "logs"])
    made.set_listed_topics(2, ["two"])
    assert made.broker_meters(1).limits.thresholds.implicit_share == 2 * MB
    made.set_listed_topics(1, ["one", "two", "logs"])
    assert made.broker_meters(1).limits.thresholds.implicit_share == 0
    assert threshold_of(made.broker_meters(1), b"two") == 8 * MB
    assert made.collect_warnings() == (
        "broker 1 has topics whose implicit threshold is 0: nothing of the total is left for them",
    )


# --- policies and warnings --------------------------------------------------------------------------------------------


@pytest.mark.seed("V1.3")
def test_a_policy_counts_at_once_in_both_directions() -> None:
    made = rejecting(total=10 * MB, clicks=5 * MB)
    fill(made, clicks=6 * MB, rest=6 * MB)
    assert made.broker_meters(1).topics[b"clicks"].needs_decision
    made.set_thresholds(10 * MB, {"clicks": 7 * MB})
    assert not made.broker_meters(1).topics[b"clicks"].needs_decision
    made.set_thresholds(10 * MB, {"clicks": 2 * MB})
    assert made.broker_meters(1).topics[b"clicks"].needs_decision
    made.set_thresholds(None, {})
    assert not made.broker_meters(1).topics[b"clicks"].needs_decision


def test_without_a_total_nothing_is_ever_rejected_and_topic_thresholds_are_warned_about() -> None:
    made = rejecting(None, clicks=1)
    fill(made, clicks=10_000 * MB)
    assert record(made.broker_meters(1), b"clicks", 1) is True
    assert len(made.collect_warnings()) == 1


def test_a_share_of_zero_is_warned_about_where_it_concerns_a_topic() -> None:
    made = rejecting(total=20 * MB, clicks=20 * MB)
    made.set_listed_topics(1, ["clicks"])
    made.set_listed_topics(2, ["clicks", "a"])
    (warning,) = made.collect_warnings()
    assert warning.startswith("broker 2 ")
    made.set_thresholds(20 * MB, {"clicks": 19 * MB})
    assert made.collect_warnings() == ()


def test_rates_list_every_broker_and_topic() -> None:
    made = rejecting(total=10 * MB, clicks=5 * MB)
    fill(made, clicks=6 * MB, rest=6 * MB)
    (broker,) = made.collect_rates()
    assert broker[:5] == (1, 12 * MB, 0, 0, 10 * MB)
    assert [topic[:4] for topic in broker.topics] == [("clicks", 6 * MB, 5 * MB, True), ("rest", 6 * MB, 5 * MB, True)]


# --- the rule, at any moment ------------------------------------------------------------------------------------------


class Machine(RuleBasedStateMachine):
    """Any order of events: what every topic's `over` and the share say is what the rule says of the present numbers."""

    names = st.sampled_from([f"t{i}" for i in range(8)])
    brokers = st.sampled_from([1, 2])

    @initialize()
    def start(self) -> None:
        self.engine = PolicyEngine(0.0)
        self.now = 0.0
        self.total: float | None = None
        self.explicit: dict[str, float] = {}
        self.listed: dict[int, set[str]] = {1: set(), 2: set()}

    @rule(total=st.sampled_from([None, 10.0, 50.0, 400.0]), explicit=st.dictionaries(names, st.integers(0, 30)))
    def change(self, total: float | None, explicit: dict[str, float]) -> None:
        self.engine.set_thresholds(total, explicit)
        self.total, self.explicit = total, explicit

    @rule(node=brokers, names=st.sets(names))
    def list_topics(self, node: int, names: set[str]) -> None:
        self.engine.set_listed_topics(node, names)
        self.listed[node] = names

    @rule(node=brokers, name=names, size=st.integers(1, 3000))
    def produce(self, node: int, name: str, size: int) -> None:
        before = self.engine.broker_meters(node).topics.get(name.encode())
        is_over = before is not None and before.needs_decision
        assert record(self.engine.broker_meters(node), name.encode(), size) is not is_over

    @rule(node=brokers, name=names, size=st.integers(1, 500))
    def refuse(self, node: int, name: str, size: int) -> None:
        self.engine.record_broker_refusal(node, name.encode(), size)

    @rule(pause=st.floats(0, 12))
    def wait(self, pause: float) -> None:
        self.now += pause
        self.engine.apply_due_ticks(self.now)

    @invariant()
    def every_answer_is_the_rules(self) -> None:
        for node, broker in self.engine.brokers.items():
            self.check(broker, self.listed[node])

    def check(self, broker: LimitedBroker, listed: set[str]) -> None:
        there = listed | {name.decode() for name in broker.topics}
        sharing = len(there - self.explicit.keys())
        for name, meter in broker.topics.items():
            assert meter.rate >= 0
            limit = self.explicit.get(name.decode(), broker.limits.thresholds.implicit_share)
            assert broker.limits.thresholds.effective_threshold(meter) == (
                limit if self.total is not None or name.decode() in self.explicit else None
            )
            over = self.total is not None and broker.total.rate > self.total
            assert meter.needs_decision is (over and limit is not None and meter.rate > limit)
        if self.total is None:
            assert broker.limits.thresholds.implicit_share is None
        else:
            left = max(0.0, self.total - sum(limit for name, limit in self.explicit.items() if name in there))
            assert broker.limits.thresholds.implicit_share == pytest.approx(left / max(1, sharing))


TestMachine = Machine.TestCase


# --- cost -------------------------------------------------------------------------------------------------------------


def test_a_tick_of_ten_thousand_topics_is_short() -> None:
    made = rejecting(total=10 * MB)
    fill(made, **{f"t{i}": 5000 for i in range(10_000)})
    assert lines_run(made.apply_due_ticks, made.next_tick_at) < 10_000 * 40  # 21 each, as all are over


# --- totals of single brokers -----------------------------------------------------------------------------------------


@pytest.mark.seed("V1.1")
def test_a_broker_may_have_a_total_of_its_own() -> None:
    made = PolicyEngine(now=0.0)
    made.set_thresholds(10.0 * MB, {"clicks": 2.0 * MB}, totals={2: 4.0 * MB})
    for node_id in (1, 2):
        made.set_listed_topics(node_id, ["clicks", "logs"])
    assert [made.broker_meters(node_id).limits.thresholds.total for node_id in (1, 2, 3)] == [10 * MB, 4 * MB, 10 * MB]
    assert [made.broker_meters(node_id).limits.thresholds.implicit_share for node_id in (1, 2)] == [8 * MB, 2 * MB]


def test_only_the_broker_that_has_a_total_is_limited() -> None:
    made = PolicyEngine(now=0.0)
    made.set_thresholds(None, {}, totals={2: 4.0 * MB}, on_exceed="delay")
    assert made.needs_pacing
    assert made.broker_meters(1).limits.thresholds.total is None
    assert made.broker_meters(2).limits.thresholds.total == 4 * MB
