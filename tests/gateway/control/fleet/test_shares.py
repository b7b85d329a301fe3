# This gateway's parts of limits, as control tells them to its workers: over the clock of the test; what other gateways
# say is played.

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gateway.channel import DemandReport, LimitShares, PeerRates
from gateway.control.fleet.exchange.exchange import PeerNews, ThresholdRate
from gateway.control.fleet.exchange.usage_codec import GatewayTraffic, RatePlace
from gateway.control.fleet.limits_in_use import IDLE_S
from gateway.control.fleet.peer_rates import FADED_S, FADING_S, UNSURE_S
from gateway.control.fleet.reachability import KNOWN_S
from gateway.control.fleet.shares import (
    ALLOCATE_INTERVAL_S,
    MAX_ALLOCATED,
    MAX_LOOKED_UP,
    MAX_REPORTED,
    SETTLED_INTERVAL_S,
    SILENT_S,
    FleetControl,
)
from gateway.control.metrics import FleetMetrics
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.explain import TopicFlow
from policies.fleet import shares
from policies.fleet.keys import group_key, quota_key
from policies.groups.names import EXISTS, PUBLISH_BYTES
from policies.limits.description import OTHER_GATEWAYS, FleetUse
from policies.meters.broker_meters import PeerTraffic
from policies.meters.meter import TICK_S
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from tests.gateway.control.contexts import Parent, make_context
from tests.gateway.control.fleet.test_peer_rates import rates
from tests.policies.fleet.fleet_sim import Book

GOLD = group_key("gold", "publish", "bytes")
SILVER = group_key("silver", "publish", "bytes")
TIME = quota_key("request_percentage", "alice", None, 1)


def policies(gold: float = 100.0, users: float = 1000.0) -> PolicySet:
    return PolicySet(
        {
            PolicyKey.of_quota(Entity(DEFAULT), QuotaKey.parse("producer_byte_rate.bps")): users,
            PolicyKey.of_group("gold", EXISTS): 1.0,
            PolicyKey.of_group("gold", PUBLISH_BYTES): gold,
            PolicyKey.of_group("silver", EXISTS): 1.0,
            PolicyKey.of_group("silver", PUBLISH_BYTES): 10.0,
            PolicyKey.of_quota(Entity("alice"), QuotaKey.parse("request_percentage")): 50.0,
        }
    )


class Peers(Book):
    """Simulated peers: how many workers they have, and their V1 rates."""

    def __init__(self) -> None:
        super().__init__()
        self.brought: dict[int, tuple[float, dict[str, float]]] = {}
        self.of_each: dict[str, int] = {}
        self.drop_counts = {"stale": 3}

    @property
    def worker_count(self) -> int:
        return sum(self.of_each[peer] for peer in self._living)

    def broker_rates(self) -> dict[int, tuple[float, dict[str, float]]]:
        return self.brought

    def place_rates(self, place: RatePlace) -> dict[str, float]:
        """All are of one gateway."""
        total, topics = self.brought.get(place.node_id, (0.0, {}))
        rate = total if place.topic is None else topics.get(place.topic, 0.0)
        return {"gw-2": rate} if rate else {}


class Exchange:
    """A simulated exchange: reports of peers, its own messages, and its health."""

    def __init__(self) -> None:
        self.health = SimpleNamespace(is_up=True, problem="topic t is not available")
        self.writer = SimpleNamespace(sent_messages=0, sent_bytes=0)
        self.received_messages = self.received_bytes = 0
        self.hurries = 0
        self.peers = Peers()

    def report_soon(self) -> None:
        self.hurries += 1


class Local:
    """A FleetControl of a gateway that shares nothing with others, and what each worker was told."""

    def __init__(self, workers: int = 1, patient: bool = False, **options: Any) -> None:
        self.now = 1000.0
        self.posted: list[tuple[int, PeerRates | LimitShares]] = []
        self.deaf: set[int] = set()
        self.metrics = FleetMetrics()
        self.parent = Parent()
        context = make_context(parent=self.parent, was_up=patient, monotonic=lambda: self.now)
        self.fleet = FleetControl(context, self.metrics, **options)
        self.fleet.set_policies(policies())
        self.parts: dict[int, dict[str, shares.ShareGrant]] = {}
        self.gateways: dict[int, int] = {}
        for number in range(workers):
            self.join(number)

    def post(self, number: int, message: PeerRates | LimitShares) -> bool:
        if number in self.deaf:
            return False
        self.posted.append((number, message))
        if isinstance(message, LimitShares):
            self.gateways[number] = message.gateways
            mine = self.parts.setdefault(number, {})
            mine |= message.grants
            for key in [key for key, part in mine.items() if part.rate < 0]:
                del mine[key]
        return True

    def join(self, number: int, gateways: int = 1) -> None:
        self.parts[number] = {}
        self.fleet.add_worker(number, partial(self.post, number), gateways)

    def use(self, number: int, *uses: tuple[Any, ...], whole: bool = False) -> None:
        """A worker reports its demand. Each use: the limit's key, then the fields of a shares.Use."""
        self.fleet.record_demand(number, DemandReport({key: shares.LimitDemand(*use) for key, *use in uses}, whole))

    def step(self, seconds: float = 0.0) -> None:
        """Let time pass, then do one step of `run`."""
        self.now += seconds
        self.posted.clear()
        self.fleet.refresh_shares()

    def rate(self, number: int = 0, key: str = GOLD) -> float | None:
        part = self.parts[number].get(key)
        return None if part is None else part.rate

    def had(self, number: int = 0) -> float:
        """The part's rate; the worker must have one."""
        return self.parts[number][GOLD].rate

    def told(self, number: int) -> list[dict[str, shares.ShareGrant]]:
        """The parts of each message to that worker since the last step."""
        return [message.grants for to, message in self.posted if to == number and isinstance(message, LimitShares)]


class Fleet(Local):
    """A gateway with an exchange."""

    def __init__(self, workers: int = 1, up: bool = True, **options: Any) -> None:
        self.exchange = Exchange()
        super().__init__(workers, exchange=lambda party: self.exchange, **options)
        if up:
            self.fleet.on_exchange_state(True)
            self.step(2.0)

    def hear(
        self,
        peer: str = "gw-2#1",
        workers: int = 1,
        whole: bool = False,
        rates: bool = False,
        **uses: tuple[Any, ...],
    ) -> None:
        named = {GOLD: shares.LimitDemand(*uses["gold"])} if "gold" in uses else {}
        self.exchange.peers.of_each[peer] = workers
        keys = self.exchange.peers.hear(peer, named, self.now, whole=whole)
        self.fleet.on_peer_news(PeerNews(peer, peer.partition("#")[0], set(keys or named), rates=rates))

    def report(self) -> dict[str, shares.LimitDemand]:
        """One cycle of our own: peers learn what we take."""
        more, told = True, dict(self.exchange.peers.own)
        while more:
            uses, _, _, more = self.fleet.current_usage()
            told |= {key: use for key, use in uses.items() if isinstance(use, shares.LimitDemand)}
            self.exchange.peers.own = told
            self.fleet.on_report_published(list(uses))
        return {key: use for key, use in told.items() if not use.is_idle}

    @property
    def state(self) -> str:
        return self.fleet.state


def two(workers: int = 1, peer: tuple[float, bool] = (50.0, True), **options: Any) -> Fleet:
    """A gateway and a peer that takes this rate of gold."""
    play = Fleet(workers, **options)
    play.hear(gold=peer)
    play.step()
    return play


def dealt(*uses: tuple[Any, ...], whole: bool = False, **options: Any) -> Fleet:
    """The same once worker 0 has told these uses, and parts were dealt."""
    play = two(**options)
    play.use(0, *uses, whole=whole)
    play.report()
    play.step()
    return play


def test_a_gateway_without_others_tells_its_workers_nothing() -> None:
    """Workers share one bucket, and need no fleet for it."""
    play = Local(workers=2)
    play.use(0, (GOLD, 80.0, True), (TIME, 0.1, True))
    play.fleet.record_rates(0, rates(1, a=5.0))
    for _ in range(20):
        play.step(ALLOCATE_INTERVAL_S)
        assert play.posted == []
    assert play.fleet.find_uses() == {}
    assert play.fleet.state == "local"


def test_one_group_with_a_limit_is_enough_to_have_something_to_share() -> None:
    play = Local()
    free = {PolicyKey.of_group("free", EXISTS): 1.0, PolicyKey.of_group("gold", EXISTS): 1.0}
    for values, has_limits in ((free, False), ({**free, PolicyKey.of_group("gold", PUBLISH_BYTES): 5.0}, True)):
        play.fleet.set_policies(PolicySet(values))
        assert play.fleet.has_limits == has_limits


def test_a_gateway_that_hears_of_no_others_tells_so_once_and_nothing_else() -> None:
    play = Fleet(workers=2)
    assert play.posted == [(0, LimitShares(whole=True)), (1, LimitShares(whole=True))]
    play.use(0, (GOLD, 80.0, True), (TIME, 0.1, True))
    for _ in range(20):
        play.step(ALLOCATE_INTERVAL_S)
        assert play.posted == []


# --- what workers are told --------------------------------------------------------------------------------------------


def test_all_workers_are_told_the_gateways_part_of_which_they_take_together() -> None:
    play = two(workers=3)
    play.use(0, (GOLD, 30.0, True))
    play.use(1, (GOLD, 15.0))
    assert play.report() == {GOLD: shares.LimitDemand(45.0, True)}
    play.step()
    assert [play.rate(number) for number in range(3)] == [50.0] * 3
    assert play.parts[0][GOLD].fallback == 50.0
    assert set(play.gateways.values()) == {2}


def test_a_content_peer_is_left_the_rate_that_it_takes_and_the_rest_is_ours() -> None:
    play = dealt((GOLD, 70.0, True), peer=(20.0, False))
    assert play.rate() == pytest.approx(80.0)


def test_parts_that_a_worker_missed_while_it_did_not_read_are_told_again() -> None:
    play = dealt((GOLD, 50.0, True), (SILVER, 1.0), workers=2)
    play.deaf = {1}
    play.hear(gold=(0.0, False))
    for _ in range(8):
        play.step(ALLOCATE_INTERVAL_S)
    assert (play.rate(0), play.rate(1)) == (100.0, 50.0)
    play.deaf = set()
    play.step(ALLOCATE_INTERVAL_S)
    assert play.rate(1) == 100.0
    assert [set(parts) for parts in play.told(1)] == [{GOLD, SILVER}], "all of it"


def test_a_limit_that_changes_is_dealt_out_anew() -> None:
    play = dealt((GOLD, 50.0, True), workers=2)
    play.fleet.set_policies(policies(gold=40.0))
    play.step()
    assert play.rate(0) == play.rate(1) == pytest.approx(20.0)
    assert play.parts[0][GOLD].fallback == 20.0
    play.fleet.set_policies(PolicySet())
    play.step()
    assert play.parts == {0: {}, 1: {}}


def test_only_parts_that_changed_are_told() -> None:
    play = dealt((GOLD, 50.0, True), (SILVER, 1.0, True), workers=2)
    play.use(0, (SILVER, 0.0))
    play.report()
    play.step()
    assert [set(parts) for number in range(2) for parts in play.told(number) if parts] == [{SILVER}, {SILVER}]


def test_parts_are_renewed_before_they_expire() -> None:
    play = two()
    play.use(0, (GOLD, 50.0, True))
    until = 0.0
    for _ in range(40):
        play.step(0.25)
        for _, message in play.posted:
            assert isinstance(message, LimitShares)
            until = message.valid_until or 0.0
        assert until > play.now + 1, "a cycle ahead"


def test_a_worker_that_ends_takes_no_more_and_one_that_comes_is_told_everything() -> None:
    play = two(workers=2)
    play.use(0, (GOLD, 10.0), (SILVER, 5.0))
    play.use(1, (GOLD, 50.0, True))
    assert play.report()[GOLD] == shares.LimitDemand(60.0, True)
    play.step()
    play.fleet.remove_worker(1)
    assert play.report()[GOLD] == shares.LimitDemand(10.0)
    play.step()
    play.posted.clear()
    play.join(1)
    assert [set(parts) for parts in play.told(1)] == [{GOLD, SILVER}]
    assert play.parts[1] == play.parts[0]


def test_what_a_stopped_worker_used_is_left_to_others_until_it_sends_something() -> None:
    play = dealt((GOLD, 50.0, True), workers=2)
    play.fleet.record_rates(0, rates(1, t=100.0))
    told = play.fleet._allocator
    assert told is not None
    for _ in range(round(SILENT_S / ALLOCATE_INTERVAL_S) + 1):
        play.fleet.record_heard(1)
        play.step(ALLOCATE_INTERVAL_S)
    usage = play.fleet.current_usage()
    assert usage.demands == {GOLD: shares.IDLE}
    assert usage.rates is not None
    play.step(60.0)
    assert play.fleet.rates._rates.own_rates()[1].rate < 40.0
    play.fleet.record_heard(0)
    assert play.fleet.current_usage().demands == {GOLD: shares.LimitDemand(50.0, True)}


def test_a_worker_in_place_of_a_stopped_one_counts() -> None:
    play = dealt((GOLD, 50.0, True))
    for _ in range(round(SILENT_S / ALLOCATE_INTERVAL_S) + 1):
        play.step(ALLOCATE_INTERVAL_S)
    assert play.report() == {}
    play.join(0)
    play.use(0, (GOLD, 50.0, True))
    assert play.report() == {GOLD: shares.LimitDemand(50.0, True)}


def test_a_control_that_was_stopped_takes_no_worker_for_stopped() -> None:
    play = dealt((GOLD, 50.0, True))
    play.fleet.current_usage()
    for _ in range(5):
        play.step(600.0)
        assert not play.fleet.current_usage().demands
        play.fleet.record_heard(0)


def test_a_channel_that_broke_is_a_worker_that_joins_once_more() -> None:
    play = two(workers=2)
    for number in range(2):
        play.use(number, (GOLD, 25.0, True))
    play.report()
    play.step()
    play.join(1)  # before the end of the first was seen
    play.use(1, (GOLD, 25.0, True), whole=True)
    play.step()
    assert play.rate(1) == pytest.approx(50.0)
    assert play.report() == {GOLD: shares.LimitDemand(50.0, True)}


def test_a_worker_that_tells_everything_is_told_everything() -> None:
    """A worker may have lost its parts while control was silent."""
    play = dealt((GOLD, 50.0, True), (SILVER, 5.0, True), whole=True, workers=2)
    before = play.parts[0]
    play.parts[0] = {}
    play.step(1.0)
    assert play.parts[0] == {}, "nothing of it is new"
    play.use(0, (GOLD, 50.0, True), (SILVER, 5.0, True), whole=True)
    play.step()
    assert play.parts[0] == before
    assert play.told(1) == []


def test_a_limit_that_a_whole_demand_does_not_list_is_idle() -> None:
    play = two(workers=2)
    play.use(0, (GOLD, 10.0))
    play.use(1, (GOLD, 50.0, True), (SILVER, 5.0))
    assert set(play.report()) == {GOLD, SILVER}
    play.use(1, (SILVER, 5.0), whole=True)
    assert play.report() == {GOLD: shares.LimitDemand(10.0), SILVER: shares.LimitDemand(5.0)}


def test_a_limit_that_a_whole_demand_leaves_out_is_forgotten_in_time() -> None:
    play = two()
    play.use(0, (GOLD, 50.0, True), (SILVER, 5.0))
    play.step()
    play.use(0, (GOLD, 50.0, True), whole=True)
    for _ in range(2):
        play.fleet.forget_idle_limits()
        play.now += IDLE_S
    play.step()
    assert set(play.fleet.find_uses()) == {GOLD}


def test_a_share_of_a_threads_time_is_not_dealt_out() -> None:
    """The limit is on the time of one machine's threads; its workers share it without a fleet."""
    play = dealt((TIME, 0.4, True), (GOLD, 50.0, True))
    assert set(play.parts[0]) == {GOLD}


def test_names_that_traffic_brings_are_not_kept_for_ever() -> None:
    play = two(workers=2)
    for number in range(300):
        key = quota_key("producer_byte_rate.bps", f"user-{number}", None, None)
        play.use(number % 2, (key, 5.0, True))
        play.step(ALLOCATE_INTERVAL_S)
        play.use(number % 2, (key, 0.0))
        play.now += IDLE_S / 10
        play.fleet.forget_idle_limits()
        play.step(ALLOCATE_INTERVAL_S)
    assert 5 < len(play.parts[0]) < 20
    assert play.parts[0] == play.parts[1]
    kept = play.fleet._allocator
    assert kept is not None
    assert len(kept._demand.users) < 20
    assert sum(map(len, kept._demand._workers.values())) < 20


def test_many_limits_are_dealt_a_few_at_a_time() -> None:
    play = two()
    keys = [quota_key("producer_byte_rate.bps", f"user-{number}", None, None) for number in range(MAX_ALLOCATED + 7)]
    play.use(0, *[(key, 5.0, True) for key in keys])
    play.step(ALLOCATE_INTERVAL_S)
    assert len(play.parts[0]) == MAX_ALLOCATED
    assert play.fleet.is_behind
    play.step()
    assert len(play.parts[0]) == len(keys)


# --- what others bring ------------------------------------------------------------------------------------------------


def test_after_a_change_of_policies_limits_are_looked_up_a_few_at_a_time() -> None:
    play = two()
    keys = [quota_key("producer_byte_rate.bps", f"user-{n}", None, None) for n in range(2 * MAX_LOOKED_UP)]
    play.use(0, *[(key, 1.0) for key in keys])
    play.step()
    while play.fleet.is_behind:
        play.step()
    in_use = play.fleet._limits_in_use
    play.fleet.set_policies(policies(users=500.0))
    assert {in_use.find_limit(key) for key in keys} == {500.0}
    for done in (MAX_LOOKED_UP, 2 * MAX_LOOKED_UP):
        assert play.fleet.is_behind
        play.step()
        assert done - 2 <= list(in_use.limits.values()).count(500.0) <= done  # gold and silver are looked up, too
    while play.fleet.is_behind:
        play.step()
    assert {play.parts[0][key].fallback for key in keys} == {250.0}


def other_rates(play: Local, number: int) -> list[PeerRates]:
    return [message for to, message in play.posted if to == number and isinstance(message, PeerRates)]


def others(play: Local, number: int) -> dict[int, PeerTraffic] | None:
    found = other_rates(play, number)
    return found[-1].brokers if found else None


def test_workers_hear_what_the_others_bring_when_it_changed_or_at_the_next_tick() -> None:
    play = Local(workers=2)
    play.fleet.record_rates(0, rates(1, a=100.0))
    play.fleet.record_rates(1, rates(1, a=30.0))
    play.posted.clear()
    play.fleet.publish_peer_rates()
    assert others(play, 0) == {1: PeerTraffic(30.0, {b"a": 30.0}, near={b"a": 30.0})}
    assert others(play, 1) == {1: PeerTraffic(100.0, {b"a": 100.0}, near={b"a": 100.0})}
    assert [message.processes for number in range(2) for message in other_rates(play, number)] == [2, 2]
    play.posted.clear()
    play.fleet.record_rates(0, rates(1, a=101.0))
    play.fleet.publish_peer_rates()
    assert play.posted == []
    play.now += TICK_S
    play.fleet.publish_peer_rates()
    assert others(play, 1) == {1: PeerTraffic(101.0, {b"a": 101.0}, near={b"a": 101.0})}
    play.fleet.remove_worker(0)
    play.now += FADING_S
    play.fleet.publish_peer_rates()
    assert (others(play, 1) or {})[1].rate == pytest.approx(101.0 / math.e)
    assert other_rates(play, 1)[-1].processes == 1
    play.now += FADED_S
    play.fleet.publish_peer_rates()
    assert others(play, 1) == {}


def test_workers_hear_how_many_there_are_also_where_the_others_bring_nothing() -> None:
    play = Local(workers=2)
    for number in range(2):
        play.fleet.record_rates(number, rates(1, a=100.0))
    play.fleet.publish_peer_rates()
    play.join(2)
    play.posted.clear()
    play.now += TICK_S
    play.fleet.publish_peer_rates()
    assert [message.processes for number in range(2) for message in other_rates(play, number)] == [3, 3]


def test_rates_that_a_worker_missed_while_it_did_not_read_are_told_again() -> None:
    play = Local(workers=2)
    play.fleet.publish_peer_rates()
    for number in range(2):
        play.fleet.record_rates(number, rates(1, a=100.0))
    play.deaf.add(1)
    play.fleet.publish_peer_rates()
    assert (others(play, 0) or {})[1].rate == 100.0
    assert others(play, 1) is None
    assert play.fleet.rates.is_due
    play.deaf.clear()
    play.fleet.publish_peer_rates()
    assert (others(play, 1) or {})[1].rate == 100.0
    assert not play.fleet.rates.is_due


def test_rates_that_an_earlier_control_told_of_others_that_are_gone_do_not_stay_for_ever() -> None:
    play = Local(workers=2)
    for seconds in (0.0, UNSURE_S - 1):
        play.now += seconds
        play.fleet.publish_peer_rates()
        assert others(play, 0) is None, "not everybody has said yet what he brings"
    play.now += 1
    play.fleet.publish_peer_rates()
    assert others(play, 0) == {}
    play.posted.clear()
    play.fleet.publish_peer_rates()
    assert play.posted == []


# --- other gateways come and go ---------------------------------------------------------------------------------------


def test_nothing_is_dealt_before_others_could_be_heard() -> None:
    play = Fleet(up=False)
    assert play.posted == []
    assert not play.fleet.reach.decided.is_set()
    play.fleet.on_exchange_state(True)
    play.hear(workers=2)
    play.step(1.0)
    assert play.posted == [], "somebody may not have spoken yet"
    play.step(0.3)
    assert play.fleet.reach.decided.is_set()
    assert play.gateways == {0: 2}


def test_a_gateway_that_has_gone_leaves_its_part_at_once() -> None:
    play = Fleet()
    said = partial(play.fleet.on_peer_news, PeerNews("gw-2#1", "gw-2", left=True))
    for leave in (said, partial(play.fleet.on_peer_lost, "gw-2#1")):
        play.hear(gold=(90.0, True))
        play.use(0, (GOLD, 50.0, True), whole=True)
        play.report()
        play.step()
        assert play.rate() == pytest.approx(50.0)
        assert play.gateways[0] == play.parent.kept.gateways == 2
        play.exchange.peers.lose("gw-2#1")
        leave()
        play.step()
        assert play.gateways[0] == play.parent.kept.gateways == 1


def test_without_the_exchange_parts_stay_then_go_to_values_that_are_right_in_sum(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    play = Fleet()
    play.hear(gold=(20.0, False))
    play.use(0, (GOLD, 80.0, True))
    play.report()
    play.step()
    play.exchange.health.is_up = False
    for _ in range(2):
        play.fleet.on_exchange_state(False)
    play.step()
    assert (play.state, play.metrics.state, play.metrics.gauges["fleet_exchange_up"]) == ("frozen", "frozen", 0)
    play.step(shares.FROZEN_S - 1)
    assert play.rate() == pytest.approx(80.0)
    play.step(1 + shares.DECAY_S / 2)
    assert 55.0 < play.had() < 75.0
    play.step(shares.DECAY_S / 2)
    assert play.rate() == pytest.approx(50.0)
    assert play.state == play.metrics.state == "fallback"
    play.exchange.health.is_up = True
    play.fleet.on_exchange_state(True)
    play.step()
    assert play.rate() == pytest.approx(80.0)
    assert play.state == "shared"
    lines = [record.getMessage() for record in caplog.records if record.name == "gateway.fleet"]
    assert len(lines) == 2
    assert "topic t is not available): shares of limits stay for " in lines[0]
    assert "limits hold over all gateways again, after " in lines[1]


def test_a_gateway_that_knows_no_other_says_that_limits_stay_whole(caplog: pytest.LogCaptureFixture) -> None:
    play = Fleet()
    play.step()
    play.exchange.health.is_up = False
    play.fleet.on_exchange_state(False)
    assert "none is known, so each limit stays whole here" in caplog.text


def test_a_gateway_that_never_reached_the_others_limits_alone(caplog: pytest.LogCaptureFixture) -> None:
    play = Fleet(up=False)
    play.step(KNOWN_S - 0.1)
    assert not play.fleet.reach.decided.is_set()
    play.step(0.1)
    assert play.fleet.reach.decided.is_set()
    assert play.gateways == {0: 1}
    assert caplog.text.count("it has not been reached yet") == 1
    play.hear(workers=3)
    play.fleet.on_exchange_state(True)
    play.step()
    assert play.gateways == {0: 2}


def test_a_control_that_was_started_again_leaves_workers_their_parts_until_it_hears_the_others() -> None:
    play = Fleet(up=False, patient=True)
    play.fleet.on_exchange_state(False)
    play.step(60.0)
    assert play.posted == []
    play.fleet.on_exchange_state(True)
    play.hear()
    play.step(1.3)
    assert play.gateways == {0: 2}


def test_a_worker_that_starts_while_the_sharing_workers_are_unknown_does_not_take_itself_for_the_only_one() -> None:
    play = Fleet(workers=0, up=False, patient=True)
    play.join(0, gateways=6)
    assert play.posted == []
    play.fleet.on_exchange_state(False)
    play.join(1)
    assert play.posted == [(1, LimitShares({}, 6, play.now, lease_s=2.0))], "others may have what would be its part"
    play.step(1.0)
    assert play.posted == []


def test_while_no_gateway_can_be_heard_for_long_even_parts_hold_as_everywhere() -> None:
    play = Fleet(workers=0, up=False, patient=True)
    play.join(0, gateways=6)
    play.join(1, gateways=6)
    play.fleet.on_exchange_state(False)
    play.step(shares.FROZEN_S + shares.DECAY_S - 1.0)
    assert play.posted == []
    play.step(1.0)
    assert play.posted == [(0, LimitShares({}, 6)), (1, LimitShares({}, 6))]
    play.step(1.0)
    assert play.posted == []


def leases(play: Fleet) -> set[tuple[int, float | None, float]]:
    return {
        (number, m.lease_s, (m.valid_until or 0.0) - play.now)
        for number, m in play.posted
        if isinstance(m, LimitShares)
    }


def test_workers_have_their_parts_for_as_long_as_others_leave_them_to_this_gateway() -> None:
    play = Fleet(workers=2)
    assert all(isinstance(message, LimitShares) and message.valid_until is None for _, message in play.posted), (
        "no others"
    )
    play.hear(gold=(90.0, True))
    play.step(1.0)
    assert leases(play) == {(0, 2.0, 3.0), (1, 2.0, 3.0)}
    play.fleet.on_exchange_state(False)
    play.step(1.0)
    assert leases(play) == {(0, None, 5.0), (1, None, 5.0)}, "nobody gives anything away while nobody is heard"


def test_many_usages_are_told_to_the_exchange_a_few_at_a_time() -> None:
    play = Fleet()
    keys = [quota_key("producer_byte_rate.bps", f"user-{number}", None, None) for number in range(MAX_REPORTED + 7)]
    play.use(0, *[(key, 5.0) for key in keys])
    first, second = play.fleet.current_usage(), play.fleet.current_usage()
    assert [(len(told.demands), told.has_more) for told in (first, second)] == [(MAX_REPORTED, True), (7, False)]
    assert {*first.demands, *second.demands} == set(keys)


def test_without_the_exchange_others_are_taken_to_bring_as_much_as_we_do() -> None:
    play = Fleet(workers=2)
    play.exchange.peers.brought = {1: (700.0, {"a": 600.0}), 9: (5.0, {})}
    play.hear(workers=4, rates=True)
    for number, rate in enumerate((30.0, 10.0)):
        play.fleet.record_rates(number, rates(1, a=rate))
    play.fleet.publish_peer_rates()
    assert others(play, 0) == {1: PeerTraffic(710.0, {b"a": 610.0}, near={b"a": 10.0}), 9: PeerTraffic(5.0)}
    play.fleet.on_exchange_state(False)
    play.step(shares.FROZEN_S)
    play.fleet.record_rates(0, rates(1, a=32.0))
    play.fleet.publish_peer_rates()
    assert others(play, 1) == {1: PeerTraffic(732.0, {b"a": 632.0}, near={b"a": 32.0}), 9: PeerTraffic(5.0)}
    play.step(shares.DECAY_S)
    play.fleet.record_rates(0, rates(1, a=30.0))
    play.fleet.publish_peer_rates()
    assert others(play, 0) == {1: PeerTraffic(90.0, {b"a": 90.0}, near={b"a": 10.0})}, "and 2 * 40 of 4 others"
    play.fleet.on_exchange_state(True)
    play.fleet.publish_peer_rates()
    assert others(play, 0) == {1: PeerTraffic(710.0, {b"a": 610.0}, near={b"a": 10.0}), 9: PeerTraffic(5.0)}


def test_rates_that_all_gateways_bring_to_brokers_are_told_both_ways() -> None:
    play = Fleet()
    play.fleet.record_rates(0, rates(1, a=30.0))
    assert play.fleet.current_usage().rates == [], "nobody asks: there is no total"
    play.fleet.set_policies(PolicySet({PolicyKey.of_broker(): 1000.0}))
    assert play.fleet.current_usage().rates == [ThresholdRate(1, None, 30.0), ThresholdRate(1, "a", 30.0)]
    assert play.fleet.current_usage().rates is None, "as before"
    play.exchange.peers.brought = {1: (70.0, {"a": 60.0})}
    play.hear(rates=True)
    play.posted.clear()
    play.fleet.publish_peer_rates()
    assert others(play, 0) == {1: PeerTraffic(70.0, {b"a": 60.0})}
    play.exchange.peers.brought = {}
    play.fleet.on_peer_lost("gw-2#1")
    play.fleet.publish_peer_rates()
    play.step(FADING_S)
    play.fleet.publish_peer_rates()
    left = others(play, 0)
    assert left is not None
    assert left[1].rate == pytest.approx(70.0 / math.e), "its clients come to others"
    play.step(FADED_S)
    play.fleet.publish_peer_rates()
    assert others(play, 0) == {}
    for rate in (200.0, 150.0):
        play.exchange.peers.brought = {1: (rate, {})}
        play.hear(rates=True)
        play.fleet.publish_peer_rates()
    assert others(play, 0) == {1: PeerTraffic(150.0)}, "nobody is gone this time"


def test_the_rates_of_others_are_shown_as_workers_count_them() -> None:
    """Also a topic that its gateway reports no more, since nothing came in a tick: its client was rejected."""
    play = Fleet()
    play.fleet.record_rates(0, rates(1, a=30.0))
    play.hear(rates=True)
    shown = partial(play.fleet.find_peer_rates, "a", [1])
    for brought, total, topic in (
        ((700.0, {"a": 600.0}), {"gw-2": 700.0}, {"gw-2": 600.0}),
        ((700.0, {}), {"gw-2": 700.0}, {OTHER_GATEWAYS: 600.0}),
    ):
        play.exchange.peers.brought = {1: brought}
        play.fleet.on_peer_news(PeerNews("gw-2#1", "gw-2", set(), rates=True))
        play.fleet.publish_peer_rates()
        assert shown() == {(1, None): FleetUse(None, total, 2), (1, "a"): FleetUse(None, topic, 2)}
        assert play.fleet.rates.peers[1].topics == {b"a": 600.0}
    play.now += FADED_S
    assert shown()[1, "a"] == FleetUse(None, {}, 2)
    assert not play.fleet.rates.peers[1].topics
    play.fleet.on_exchange_state(False)
    play.step(shares.FROZEN_S + shares.DECAY_S)
    play.fleet.publish_peer_rates()
    assumed = FleetUse(None, {OTHER_GATEWAYS: 30.0}, 2)
    assert shown() == {(1, None): assumed, (1, "a"): assumed}, "as much as here, whatever they said last"


def test_what_a_gateway_brought_is_shown_while_it_fades_though_no_other_one_is_left() -> None:
    play = Fleet()
    play.fleet.record_rates(0, rates(1, a=30.0))
    play.exchange.peers.brought = {1: (700.0, {"a": 600.0})}
    play.hear(rates=True)
    play.fleet.publish_peer_rates()
    play.exchange.peers.brought = {}
    play.exchange.peers.lose("gw-2#1")
    play.fleet.on_peer_lost("gw-2#1")
    play.fleet.publish_peer_rates()
    play.step(FADING_S)
    total, topic = play.fleet.find_peer_rates("a", [1]).values()
    for use, brought in ((total, 700.0), (topic, 600.0)):
        assert use.gateways == 2
        assert use.others == pytest.approx({OTHER_GATEWAYS: brought / math.e})
    play.step(FADED_S)
    assert play.fleet.find_peer_rates("a", [1]) == {}


def test_uses_show_what_each_other_gateway_takes_and_our_part() -> None:
    play = Fleet()
    play.hear(gold=(20.0, False))
    play.use(0, (GOLD, 75.0, True))
    play.report()
    play.step()
    gold = FleetUse(80.0, {"gw-2#1": 20.0}, 2)
    assert play.fleet.find_uses() == {GOLD: gold}
    unused = FleetUse(5.0, {"gw-2#1": 0.0}, 2)
    assert play.fleet.find_uses([GOLD, SILVER]) == {GOLD: gold, SILVER: unused}
    assert play.fleet.find_uses(["no limit"]) == {}
    assert play.metrics.gauges == {"fleet_peers": 1, "fleet_members": 2, "fleet_exchange_up": 1}
    assert play.metrics.dropped == {"stale": 3}
    play.fleet.on_exchange_state(False)
    play.step(shares.FROZEN_S + shares.DECAY_S)
    assert play.fleet.state == "fallback"
    assert play.fleet.find_uses() == {GOLD: FleetUse(50.0, {}, 2, hears_others=False)}, "not what was heard hours ago"


def hurries(play: Fleet, *uses: tuple[Any, ...]) -> int:
    """Whether peers are told at once that worker 0 takes these."""
    before = play.exchange.hurries
    play.use(0, *uses)
    play.step()
    play.report()
    play.step()
    return play.exchange.hurries - before


def test_a_gateway_that_begins_or_ends_to_take_or_to_want_more_tells_so_before_the_cycle_ends() -> None:
    play = two()
    for use, expected in (
        ((GOLD, 75.0), 1),
        ((GOLD, 85.0), 0),
        ((GOLD, 85.0, True), 1),
        ((GOLD, 20.0, True), 0),
        ((GOLD, 20.0), 1),
        ((GOLD, 0.0), 1),
    ):
        assert hurries(play, use) == expected, use


def test_a_limit_that_changes_is_told_before_the_cycle_ends() -> None:
    play = two()
    hurries(play, (GOLD, 75.0))
    before = play.exchange.hurries
    play.fleet.set_policies(policies(gold=50.0))
    play.step()
    assert play.exchange.hurries == before + 1
    assert play.fleet.find_limit(GOLD) == 50.0, "of which two in a hundred are news"


def test_the_busiest_traffic_is_for_peers_if_there_are_any() -> None:
    busy = GatewayTraffic({"clicks": TopicFlow(5.0, 1.0)})
    assert Fleet(traffic=lambda: busy).fleet.busiest_traffic() == GatewayTraffic()
    assert two(traffic=lambda: busy).fleet.busiest_traffic() == busy


def test_a_gateway_that_is_alone_is_in_no_hurry() -> None:
    assert hurries(Fleet(), (GOLD, 75.0, True)) == 0


async def test_urgent_changes_are_told_at_once_and_the_rest_at_the_next_look(
    nursery: trio.Nursery,
    autojump_clock: MockClock,
) -> None:
    play = two()
    hurries(play, (GOLD, 75.0))
    before, began = play.exchange.hurries, trio.current_time()
    nursery.start_soon(play.fleet.run)
    await trio.testing.wait_all_tasks_blocked()
    play.use(0, (GOLD, 85.0))
    await trio.testing.wait_all_tasks_blocked()
    assert play.fleet._allocator is not None
    assert play.fleet._allocator.has_changes
    play.use(0, (GOLD, 85.0, True))
    await trio.testing.wait_all_tasks_blocked()
    assert play.exchange.hurries == before + 1
    assert trio.current_time() == began


class Looks:
    """How often `run` allocates, with a clock that goes on."""

    def __init__(self, play: Fleet, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: list[float] = []
        self._play = play
        self._refresh_shares, self._ahead = play.fleet.refresh_shares, play.now - trio.current_time()
        monkeypatch.setattr(play.fleet, "refresh_shares", self._refresh)
        nursery.start_soon(play.fleet.run)

    def _refresh(self) -> None:
        self.times.append(trio.current_time())
        self._play.now = self.times[-1] + self._ahead
        self._play.fleet.record_heard(0)
        self._refresh_shares()

    async def are_usual(self) -> bool:
        return await self._count(10.0) >= 0.9 * 10.0 / ALLOCATE_INTERVAL_S

    async def are_seldom(self) -> bool:
        return await self._count(10.0) <= 1.1 * 10.0 / SETTLED_INTERVAL_S

    async def _count(self, seconds: float) -> int:
        before = len(self.times)
        await trio.sleep(seconds)
        return len(self.times) - before


async def test_shares_are_allocated_seldom_while_no_limit_is_in_use_and_at_once_when_one_is(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = two()
    hurries(play, (GOLD, 75.0))
    looks = Looks(play, nursery, monkeypatch)
    assert await looks.are_usual()
    play.use(0, (GOLD, 0.0))
    play.report()
    await trio.sleep(1.0)
    assert await looks.are_seldom()
    play.use(0, (GOLD, 5.0))
    await trio.testing.wait_all_tasks_blocked()
    assert looks.times[-1] == trio.current_time()
    assert await looks.are_usual()


async def test_shares_are_allocated_seldom_once_the_last_peer_has_left(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = two()
    hurries(play, (GOLD, 75.0))
    looks = Looks(play, nursery, monkeypatch)
    assert await looks.are_usual()
    play.exchange.peers.lose("gw-2#1")
    play.fleet.on_peer_lost("gw-2#1")
    await trio.sleep(90.0)  # what it brought to brokers fades
    assert await looks.are_seldom()


async def test_shares_are_allocated_seldom_without_the_exchange_once_they_have_become_even(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = two()
    hurries(play, (GOLD, 75.0))
    looks = Looks(play, nursery, monkeypatch)
    await trio.sleep(1.0)
    play.use(0, (GOLD, 0.0))
    play.report()
    await trio.sleep(10.0)
    assert await looks.are_seldom()
    play.fleet.on_exchange_state(False)
    assert await looks.are_usual()
    await trio.sleep(90.0)
    assert play.fleet.state == "fallback"
    assert await looks.are_seldom()


def test_a_gateway_whose_last_peer_has_gone_has_nothing_to_deal_out() -> None:
    """Otherwise control would look again at once, for ever."""
    play = Fleet()
    play.hear(gold=(90.0, True))
    play.use(0, (GOLD, 50.0, True), whole=True)
    play.step()
    play.exchange.peers.lose("gw-2#1")
    play.fleet.on_peer_news(PeerNews("gw-2#1", "gw-2", left=True))
    play.step()
    assert not play.fleet.is_behind
    assert play.fleet.find_uses() == {}
