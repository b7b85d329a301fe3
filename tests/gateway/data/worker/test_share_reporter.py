# What a worker tells about the limits that several gateways share, and how it goes by what it is told.

from __future__ import annotations

import time
from typing import Any

import pytest
import trio
import trio.testing

from gateway.channel import DemandReport, LimitShares
from gateway.data.worker.idle import IdleWatch
from gateway.data.worker.share_reporter import LATE_S, MAX_PER_MESSAGE, ShareReporter
from policies.engine import PolicyEngine
from policies.fleet.demand import FORGET_S, MAX_SMOOTH_S, SAMPLE_S
from policies.fleet.keys import group_key, quota_key, total_key, total_out_key
from policies.fleet.shares import FLOORS, LimitDemand, ShareGrant
from policies.groups.group_limiters import GroupLimitValues
from policies.meters.broker_meters import PeerTraffic
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.quota_limiters import QuotaLimiters
from policies.quotas.store import QuotaStore
from policies.thresholds.pacing import ThresholdPacer
from tests.policies.asking import record
from tests.policies.groups.group_play import Producer, finder, send

TOTAL = total_key(1)
GOLD = group_key("gold", "publish", "bytes")
ALICE = quota_key("producer_byte_rate.bps", "alice", None, None)

AWAKE = IdleWatch(lambda: 0, lambda: True, lambda now: None)  # of a worker that is never idle


class Stage:
    """A reporter with an engine, quotas, and a control that reads its messages or not."""

    def __init__(self, now: float = 0.0) -> None:
        self.engine = PolicyEngine(now)
        self.quotas = QuotaLimiters(self.engine.fleet)
        self.said: list[Any] = []
        self.logged: list[str] = []
        self.hears = True
        self.reporter = ShareReporter(
            self.engine, self._post, lambda _, text: self.logged.append(text), lambda: self.hears, AWAKE
        )
        self.now = now

    def _post(self, message: Any) -> bool:
        if self.hears:
            self.said.append(message)
        return self.hears

    def told(self, gateways: int = 2, valid_until: float | None = None, **parts: ShareGrant) -> Stage:
        named = {{"total": TOTAL, "gold": GOLD, "alice": ALICE}[name]: part for name, part in parts.items()}
        self.reporter.apply_shares(LimitShares(named, gateways, valid_until), self.now)
        return self

    def look(self) -> dict[str, LimitDemand]:
        """The demand that the next look reports."""
        before = len(self.said)
        self.now += SAMPLE_S
        self.reporter.report_demand(self.quotas, self.now)
        return {key: use for demand in self.said[before:] for key, use in demand.demands.items()}

    def with_quota(self, key: str, value: float) -> Any:
        self.quotas.set_quotas(QuotaStore({Entity("alice"): {QuotaKey.parse(key): value}}), self.now)
        return self.quotas.connection_limit(1, "alice", "app", self.now)

    def with_group(self, limit: float) -> Producer:
        self.engine.set_groups({"gold": GroupLimitValues(publish_bytes=limit)}, finder({"acme": "gold"}), self.now)
        return Producer("acme.orders.t", 1000, 1)


def test_bytes_that_lines_took_are_told_by_key_with_the_cause_of_their_hunger() -> None:
    on = Stage().told()
    producer = on.with_group(8000.0)
    lines = on.with_quota("producer_byte_rate:bps", 1e6)
    on.look()
    for line in lines.produce_limiters:
        line.charge_amount(500, on.now)
    send(on.engine, producer, on.now)
    on.engine.pace_limits(on.now)
    news = on.look()
    assert news[ALICE] == pytest.approx((500 / MAX_SMOOTH_S, False, 1.0, 0, 0.0))
    assert news[GOLD] == pytest.approx((1000 / MAX_SMOOTH_S, True, 1.0, 1, 0.0))
    assert TOTAL not in news


def test_idle_lines_are_told_once() -> None:
    on = Stage().told()
    (line,) = on.with_quota("producer_byte_rate:bps", 1e6).produce_limiters
    on.look()
    line.charge_amount(500, on.now)
    news = [on.look() for _ in range(round(1.5 * MAX_SMOOTH_S / SAMPLE_S))]
    assert [each[ALICE] for each in news if ALICE in each][-1] == LimitDemand(0.0)
    assert ALICE not in news[-1]


def test_bytes_that_were_taken_while_alone_are_no_news() -> None:
    on = Stage()
    (line,) = on.with_quota("producer_byte_rate:bps", 1e6).produce_limiters
    line.charge_amount(10**6, 0.0)
    on.now = 60.0
    on.told()
    assert on.look() == {}
    assert on.said == [DemandReport({}, whole=True)]


def test_rates_are_told_as_of_the_whole_limit_while_storage_lowers_it() -> None:
    on = Stage().told()
    on.engine.set_thresholds(1000.0, {})
    on.engine.set_storage_factor(0.5, "broker 1 volume /data", 0.0)
    on.quotas.set_storage_factor(0.5, 0.0)
    (line,) = on.with_quota("producer_byte_rate:bps", 1e6).produce_limiters
    on.engine.broker_meters(1)
    on.look()
    line.charge_amount(500, on.now)
    on.engine.broker_meters(1).total.uncounted += 100
    news = on.look()
    assert news[ALICE].rate == pytest.approx(2 * 500 / MAX_SMOOTH_S)
    assert news[TOTAL].rate == pytest.approx(2 * 100 / MAX_SMOOTH_S)


def test_a_total_is_told_only_where_it_delays() -> None:
    on = Stage().told()
    on.engine.set_thresholds(1000.0, {})
    on.engine.broker_meters(1)
    on.look()
    record(on.engine.broker_meters(1), b"t", 100)
    assert TOTAL not in on.look()
    on.engine.set_thresholds(1000.0, {}, on_exceed="delay")
    on.look()
    on.engine.broker_meters(1).total.uncounted += 100
    assert on.look()[TOTAL].rate == pytest.approx(100 / MAX_SMOOTH_S)


def test_what_topics_claim_of_a_total_is_told_as_of_the_whole_limit() -> None:
    on = Stage().told()
    on.engine.set_thresholds(1000.0, {"t": 600.0}, on_exceed="delay")
    on.engine.set_storage_factor(0.5, "broker 1 volume /data", 0.0)
    on.engine.set_peer_traffic({}, 2)
    broker = on.engine.broker_meters(1)
    broker.add_topic(b"t")
    on.look()
    broker.total.uncounted = broker.topics[b"t"].uncounted = 10_000
    on.engine.pace_limits(on.now)
    assert on.look()[TOTAL].claim == pytest.approx(300.0), "half of its threshold, as there are two gateways"


def test_a_broker_that_gets_nothing_is_never_told() -> None:
    on = Stage().told()
    on.engine.set_thresholds(1000.0, {}, on_exceed="delay")
    on.engine.broker_meters(1)
    assert not any(on.look() for _ in range(round(2 * FORGET_S / SAMPLE_S)))


def test_shares_weigh_in_the_total_that_they_are_parts_of() -> None:
    on = Stage().told(total=ShareGrant(600.0, 500.0))
    on.engine.set_thresholds(1000.0, {})
    on.engine.broker_meters(1)
    (line,) = on.with_quota("producer_byte_rate:shares", 7).produce_limiters
    on.look()
    line.charge_amount(100, on.now)
    line.bucket.set_rate(1.0, on.now)
    for _ in range(2):  # the first one is large for the line, the second one finds it used up
        line.check_admission(1000, on.now, True, 0.0)
        line.charge_amount(1000, on.now)
    record(on.engine.broker_meters(1), b"t", 100)
    use = on.look()[TOTAL]
    assert (use.hungry, use.weight) == (True, 7.0)
    assert on.engine.broker_meters(1).limits.thresholds.own_total == 600


def test_percent_is_of_this_machine_and_no_other() -> None:
    on = Stage().told()
    (line,) = on.with_quota("request_percentage", 50).time_limiters
    on.look()
    line.charge_amount(0.1, on.now)
    key = quota_key("request_percentage", "alice", None, 1)
    assert key not in on.look()
    on.reporter.apply_shares(LimitShares({key: ShareGrant(0.2, 0.1)}, 2), on.now)
    assert line.gateway_rate == 0.5


def test_a_wait_for_a_limit_is_told_at_the_next_look_and_so_is_its_end() -> None:
    on = Stage().told()
    (line,) = on.with_quota("producer_byte_rate:bps", 10_000).produce_limiters
    on.look()
    line.charge_amount(6000, on.now)
    assert not on.look()[ALICE].hungry
    line.check_admission(100, on.now, True, 0.0)
    assert on.look()[ALICE].hungry
    while not (news := on.look()) or ALICE not in news or news[ALICE].hungry:
        pass
    assert on.now == pytest.approx(line.hungry_until, abs=SAMPLE_S)


def test_a_new_control_and_one_that_did_not_hear_is_told_everything() -> None:
    on = Stage().told()
    (line,) = on.with_quota("producer_byte_rate:bps", 1e6).produce_limiters
    for _ in range(20):
        line.charge_amount(500, on.now)
        on.look()
    assert len(on.said) < 8
    on.reporter.on_control_started()
    on.hears = False
    line.charge_amount(500, on.now)
    on.look()
    on.hears = True
    line.charge_amount(500, on.now)
    assert on.look()[ALICE].rate == pytest.approx(500 / SAMPLE_S)
    assert on.said[-1].whole


def test_many_usages_are_told_in_several_messages_and_all_again_if_one_was_not_taken() -> None:
    on = Stage().told()
    count = 2 * MAX_PER_MESSAGE + 3
    limits = {f"g{number}": GroupLimitValues(publish_bytes=8000.0) for number in range(count)}
    on.engine.set_groups(limits, finder({f"t{number}": f"g{number}" for number in range(count)}), on.now)
    producers = [Producer(f"t{number}.orders.t", 1000, 1) for number in range(count)]
    on.look()
    on.said.clear()
    on.reporter.on_control_started()
    for producer in producers:
        send(on.engine, producer, on.now)
    on.engine.pace_limits(on.now)
    assert len(on.look()) == count
    assert [(len(said.demands), said.whole) for said in on.said] == [(500, True), (500, False), (3, False)]
    on.hears = False
    for producer in producers * 3:
        send(on.engine, producer, on.now)
    on.engine.pace_limits(on.now)
    on.look()
    on.hears = True
    on.said.clear()
    on.look()
    assert [said.whole for said in on.said] == [True, False, False]


def test_parts_reach_quotas_groups_and_totals() -> None:
    on = Stage()
    on.engine.set_thresholds(1000.0, {}, on_exceed="delay")
    on.engine.broker_meters(1)
    producer = on.with_group(8000.0)
    send(on.engine, producer, 0.0)
    (line,) = on.with_quota("producer_byte_rate:bps", 1e6).produce_limiters
    on.told(3, total=ShareGrant(600.0, 300.0), gold=ShareGrant(5000.0, 2000.0), alice=ShareGrant(7e5, 3e5))
    pacer = on.engine.broker_meters(1).limits.strategy
    assert isinstance(pacer, ThresholdPacer)
    assert [pacer.bucket.rate, on.engine.fleet.limiters[GOLD].bucket.rate, line.bucket.rate] == [600, 5000, 7e5]


def test_others_rates_reach_the_thresholds() -> None:
    on = Stage().told()
    on.engine.set_thresholds(1000.0, {})
    on.engine.broker_meters(1)
    on.engine.set_peer_traffic({1: PeerTraffic(5000.0, {b"t": 5000.0})})
    assert on.engine.broker_meters(1).limits.thresholds.is_over_total
    on.engine.set_peer_traffic({})
    assert not on.engine.broker_meters(1).limits.thresholds.is_over_total


async def test_alone_nothing_is_told_and_with_others_a_few_times_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    on = Stage(trio.current_time())
    (line,) = on.with_quota("producer_byte_rate:bps", 1e6).produce_limiters
    async with trio.open_nursery() as nursery:
        nursery.start_soon(on.reporter.run_reports, on.quotas)
        for _ in range(10):
            line.charge_amount(500, trio.current_time())
            await trio.sleep(0.1)
        assert on.said == []
        on.told()
        for number in range(100):
            line.charge_amount(500 * number, trio.current_time())
            await trio.sleep(0.1)
        assert on.said[0].whole
        assert 5 < len(on.said) <= 10 / SAMPLE_S + 1
        said = len(on.said)
        on.told(1)
        await trio.sleep(5)
        assert len(on.said) <= said + 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("hears", "is_lost", "late_s"),
    [(True, False, LATE_S), (False, False, 0.0), (False, True, 0.0)],
    ids=["control is late", "control does not read", "control has ended"],
)
async def test_when_nothing_new_is_heard_in_time_the_fallback_holds(
    hears: bool, is_lost: bool, late_s: float, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: trio.current_time() + 500.0)
    on = Stage(trio.current_time())
    on.hears = hears
    (line,) = on.with_quota("producer_byte_rate:bps", 1e6).produce_limiters
    async with trio.open_nursery() as nursery:
        nursery.start_soon(on.reporter.watch_expiry)
        on.told(alice=ShareGrant(7e5, 3e5), valid_until=time.monotonic() + 5.0)
        if is_lost:
            on.reporter.on_control_lost()  # with no other gateway, parts hold for as long as it said
        await trio.sleep(4.9 + late_s)
        assert line.bucket.rate == 7e5
        await trio.sleep(0.2)
        assert line.bucket.rate == 3e5
        await trio.sleep(60)
        assert len(on.logged) == 1
        on.told(alice=ShareGrant(8e5, 3e5), valid_until=time.monotonic() + 5.0)
        assert line.bucket.rate == 8e5
        await trio.sleep(6.5)
        assert line.bucket.rate == 3e5
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("ended", "lost"), [(3.0, 5.0), (None, 5.0 + LATE_S), (4.5, 5.0)])
async def test_parts_that_other_gateways_share_by_now_are_not_taken_any_more(
    ended: float | None, lost: float, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Two cycles after control's end, or when its last word has expired: a floor."""
    monkeypatch.setattr(time, "monotonic", lambda: trio.current_time() + 500.0)
    began = trio.current_time()
    on = Stage(began)
    (line,) = on.with_quota("producer_byte_rate:bps", 1e6).produce_limiters
    (other,) = on.with_quota("producer_byte_rate:broker_bps", 1e6).produce_limiters
    async with trio.open_nursery() as nursery:
        nursery.start_soon(on.reporter.watch_expiry)
        parts = LimitShares({ALICE: ShareGrant(7e5, 2.5e5)}, 4, time.monotonic() + 5.0, lease_s=2.0)
        on.reporter.apply_shares(parts, trio.current_time())
        if ended is not None:
            await trio.sleep_until(began + ended)
            on.reporter.on_control_lost()
        await trio.sleep_until(began + lost - 0.1)
        assert line.bucket.rate == 7e5
        await trio.sleep(0.2)
        assert line.bucket.rate == other.bucket.rate == FLOORS * 1e6 / 4
        on.look()
        assert on.said[-1].whole, "a control that was only late has to tell all shares again"
        # a new control counts us in again, but deals nothing yet
        on.reporter.on_control_started()
        on.reporter.apply_shares(LimitShares({}, 4, time.monotonic() + 5.0, lease_s=2.0), trio.current_time())
        assert line.bucket.rate == 2.5e5, "nothing is left of what an earlier one said"
        on.look()
        assert on.said[-1].whole, "so it has to be told everything"
        on.reporter.apply_shares(parts, trio.current_time())
        assert line.bucket.rate == 7e5
        nursery.cancel_scope.cancel()


def test_bytes_that_consumers_take_of_a_shared_total_are_told_with_the_shares_that_want_them() -> None:
    on = Stage().told()
    lines = on.with_quota("consumer_byte_rate:shares", 3.0)
    on.quotas.set_totals_out(1000.0, {})
    key = total_out_key(1)
    on.quotas.record_fetched(1, 1)
    on.quotas.allocate_fetch_shares(on.now)
    assert key not in on.look()
    on.quotas.record_fetched(1, 5000)
    lines.charge_fetch(5000, on.now)
    use = on.look()[key]
    assert (use.rate > 0.0, use.weight) == (True, 3.0)
