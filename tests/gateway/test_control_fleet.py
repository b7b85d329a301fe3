# Parts of limits, as control deals them out to workers: over the clock of the test; what
# other gateways say is played.

from __future__ import annotations

import functools

import pytest

from gateway.channel import Demand, OtherRates, Parts
from gateway.control.fleet import KNOWN_S, MOST_DEALT, MOST_TOLD, TICK_S, UNSURE_S, WORKERS_S, FleetControl
from gateway.control.fleet_keys import IDLE_S
from gateway.control.metrics import FleetMetrics
from gateway.fleet.exchange import Heard, Rate
from policies.explain import FleetUse
from policies.fleet import shares
from policies.fleet.keys import group_key, quota_key
from policies.groups.names import EXISTS, PUBLISH_BYTES
from policies.policy_set import PolicyKey, PolicySet
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from policies.thresholds.broker_meters import Others
from tests.gateway.test_control_fleet_rates import rates
from tests.policies.fleet_sim import Book

GOLD = group_key("gold", "publish", "bytes")
SILVER = group_key("silver", "publish", "bytes")
TIME = quota_key("request_percentage", "alice", None, 1)


def policies(gold=100.0):
    return PolicySet(
        {
            PolicyKey.of_quota(Entity(DEFAULT), QuotaKey.parse("producer_byte_rate.bps")): 1000.0,
            PolicyKey.of_group("gold", EXISTS): 1.0,
            PolicyKey.of_group("gold", PUBLISH_BYTES): gold,
            PolicyKey.of_group("silver", EXISTS): 1.0,
            PolicyKey.of_group("silver", PUBLISH_BYTES): 10.0,
            PolicyKey.of_quota(Entity("alice"), QuotaKey.parse("request_percentage")): 50.0,
        }
    )


class Play:
    """A FleetControl, and what each worker knows of it."""

    def __init__(self, workers=2, **options):
        self.now = 1000.0
        self.posted = []
        self.deaf = set()
        self.metrics = FleetMetrics()
        self.fleet = FleetControl(self.metrics, clock=lambda: self.now, **options)
        self.fleet.set_policies(policies())
        self.parts = {}
        self.members = {}
        for number in range(workers):
            self.join(number)

    def post(self, number, message):
        if number in self.deaf:
            return False
        self.posted.append((number, message))
        if isinstance(message, Parts):
            self.members[number] = message.members
            mine = self.parts.setdefault(number, {})
            mine |= message.parts
            for key in [key for key, part in mine.items() if part.rate < 0]:
                del mine[key]
        return True

    def join(self, number, members=1):
        self.parts[number] = {}
        self.fleet.join(number, functools.partial(self.post, number), members)

    def use(self, number, *uses, whole=False):
        """Each use: the limit's key, and what a shares.Use is made of."""
        self.fleet.take_demand(number, Demand({key: shares.Use(*use) for key, *use in uses}, whole))

    def deal(self, after=0.25):
        self.now += after
        self.posted.clear()
        self.fleet.deal()

    def rate(self, number, key=GOLD):
        part = self.parts[number].get(key)
        return None if part is None else part.rate


def test_a_worker_that_is_alone_is_told_so_once_and_nothing_else():
    play = Play(workers=1)
    assert play.posted == [(0, Parts())]
    play.use(0, (GOLD, 80.0, True), (TIME, 0.1, True))
    play.fleet.take_rates(0, rates(1, a=5.0))
    for _ in range(20):
        play.deal()
        assert play.posted == []


def test_two_workers_that_want_more_have_half_each_and_together_the_limit():
    play = Play()
    assert set(play.members.values()) == {2}
    play.use(0, (GOLD, 90.0, True))
    play.use(1, (GOLD, 10.0, True))
    play.deal()
    assert play.rate(0) == play.rate(1) == pytest.approx(50.0)


def test_who_wants_less_has_less_and_the_other_one_the_rest():
    play = Play()
    play.use(0, (GOLD, 80.0, True))
    play.use(1, (GOLD, 20.0))
    play.deal()
    assert play.rate(0) == pytest.approx(80.0)
    assert 20.0 < play.rate(1) <= 25.0
    assert play.rate(0) + play.rate(1) <= 110.0


def test_what_a_worker_missed_while_it_did_not_read_is_told_again():
    play = Play()
    for number in range(2):
        play.use(number, (GOLD, 50.0, True))
    play.deal()
    play.deaf = {1}
    play.use(0, (GOLD, 0.0))
    for _ in range(8):
        play.deal()
    assert play.rate(1) == pytest.approx(50.0)
    play.deaf = set()
    for _ in range(6):
        play.deal()
    assert play.rate(1) == pytest.approx(100.0)


def test_a_limit_that_changes_is_dealt_out_anew():
    play = Play()
    for number in range(2):
        play.use(number, (GOLD, 50.0, True))
    play.deal()
    play.fleet.set_policies(policies(gold=40.0))
    play.deal()
    assert play.rate(0) == play.rate(1) == pytest.approx(20.0)
    assert play.parts[0][GOLD].fallback == 20.0
    play.fleet.set_policies(PolicySet())
    play.deal()
    assert play.parts == {0: {}, 1: {}}


def test_only_what_changed_is_told():
    play = Play()
    play.use(0, (GOLD, 50.0, True), (SILVER, 1.0, True))
    play.use(1, (GOLD, 50.0, True), (SILVER, 1.0, True))
    play.deal()
    play.use(0, (SILVER, 0.0))
    play.deal()
    told = [set(message.parts) for _, message in play.posted if message.parts]
    assert told
    assert all(keys == {SILVER} for keys in told)


def test_what_was_told_is_renewed_before_it_expires():
    play = Play()
    play.use(0, (GOLD, 50.0, True))
    until = 0.0
    for _ in range(40):
        play.deal()
        for _, message in play.posted:
            until = message.valid_until
        assert until > play.now + 2, "a few cycles ahead"


def test_what_a_worker_had_that_is_gone_is_the_others_at_once():
    play = Play(workers=3)
    for number in range(3):
        play.use(number, (GOLD, 33.0, True))
    play.deal()
    assert play.rate(0) == pytest.approx(100 / 3)
    play.fleet.leave(2)
    play.deal(0.0)
    assert play.rate(0) == play.rate(1) == pytest.approx(50.0)
    assert play.members[0] == 2
    play.fleet.leave(1)
    play.deal(0.0)
    assert play.members[0] == 1, "alone: the whole limit, whatever the parts were"


def test_a_worker_that_was_started_again_is_told_everything_anew():
    play = Play()
    for number in range(2):
        play.use(number, (GOLD, 50.0, True))
    play.deal()
    play.fleet.leave(1)
    play.deal()
    play.join(1)
    assert play.members == {0: 2, 1: 2}
    play.use(1, (GOLD, 50.0, True), whole=True)
    play.deal()
    assert play.rate(0) == play.rate(1) == pytest.approx(50.0)


def test_a_channel_that_broke_is_a_worker_that_joins_once_more():
    play = Play()
    for number in range(2):
        play.use(number, (GOLD, 50.0, True))
    play.deal()
    play.join(1)  # before the end of the first was seen
    play.use(1, (GOLD, 50.0, True), whole=True)
    play.deal()
    assert play.rate(1) == pytest.approx(50.0)


def test_a_share_of_a_threads_time_is_split_as_well():
    play = Play()
    for number in range(2):
        play.use(number, (TIME, 0.25, True))
    play.deal()
    assert play.rate(0, TIME) == play.rate(1, TIME) == pytest.approx(0.25)


def test_what_is_not_listed_in_a_whole_demand_is_idle():
    play = Play()
    play.use(0, (GOLD, 50.0, True))
    play.use(1, (GOLD, 50.0, True), (SILVER, 5.0))
    play.deal()
    play.use(1, (SILVER, 5.0), whole=True)
    play.deal()
    assert play.rate(0) > 90.0


def test_what_a_whole_demand_leaves_out_is_forgotten_in_time():
    play = Play()
    play.use(1, (GOLD, 50.0, True), (SILVER, 5.0))
    play.deal()
    play.use(1, (GOLD, 50.0, True), whole=True)
    for _ in range(2):
        play.fleet.sweep()
        play.now += IDLE_S
    play.deal()
    assert set(play.fleet.uses()) == {GOLD}


def test_the_first_worker_that_is_back_after_a_restart_of_control_is_not_told_that_it_is_alone():
    play = Play(workers=0, patient=True)
    play.join(0, members=2)
    play.deal()
    assert play.posted == []
    play.join(1, members=2)
    assert play.members == {0: 2, 1: 2}
    alone = Play(workers=0, patient=True)
    alone.join(0, members=2)
    alone.deal(WORKERS_S)
    assert alone.posted == [(0, Parts())]


def others(play, number):
    found = [message for to, message in play.posted if to == number and isinstance(message, OtherRates)]
    return found[-1].brokers if found else None


def test_workers_hear_what_the_others_bring_when_it_changed_or_at_the_next_tick():
    play = Play()
    play.fleet.take_rates(0, rates(1, a=100.0))
    play.fleet.take_rates(1, rates(1, a=30.0))
    play.posted.clear()
    play.fleet.tell_others()
    assert others(play, 0) == {1: Others(30.0, {b"a": 30.0})}
    assert others(play, 1) == {1: Others(100.0, {b"a": 100.0})}
    play.posted.clear()
    play.fleet.take_rates(0, rates(1, a=101.0))
    play.fleet.tell_others()
    assert play.posted == []
    play.now += TICK_S
    play.fleet.tell_others()
    assert others(play, 1) == {1: Others(101.0, {b"a": 101.0})}
    play.fleet.leave(0)
    play.fleet.tell_others()
    assert others(play, 1) == {}


def test_what_an_earlier_control_said_of_others_who_are_gone_does_not_stay_for_ever():
    play = Play()
    for seconds in (0.0, UNSURE_S - 1):
        play.now += seconds
        play.fleet.tell_others()
        assert others(play, 0) is None, "not everybody has said yet what he brings"
    play.now += 1
    play.fleet.tell_others()
    assert others(play, 0) == {}
    play.posted.clear()
    play.fleet.tell_others()
    assert play.posted == []


def test_names_that_traffic_brings_are_not_kept_for_ever():
    play = Play()
    for number in range(300):
        key = quota_key("producer_byte_rate.bps", f"user-{number}", None, None)
        play.use(number % 2, (key, 5.0, True))
        play.deal()
        play.use(number % 2, (key, 0.0))
        play.now += IDLE_S / 10
        play.fleet.sweep()
        play.deal()
    assert 5 < len(play.parts[0]) + len(play.parts[1]) < 20
    kept = play.fleet._fleet
    assert len(kept._users) < 20
    assert sum(len(worker.uses) for worker in kept._workers.values()) < 20


# --- other gateways ---------------------------------------------------------------------------------------------------


class Peers(Book):
    """What is played of others, V1's rates as well."""

    def __init__(self):
        super().__init__()
        self.brought = {}

    def rates(self):
        return self.brought


class Exchange:
    """What is played of an exchange: what others say, what was told, whether it works."""

    def __init__(self):
        self.up, self.problem = True, "topic t can't be had"
        self.sent = self.sent_bytes = self.received = self.received_bytes = 0
        self.dropped = {"stale": 3}
        self.hurries = 0
        self.peers = Peers()

    def hurry(self):
        self.hurries += 1


class Fleet(Play):
    """A gateway with an exchange."""

    def __init__(self, workers=1, up=True, **options):
        self.exchange = Exchange()
        super().__init__(workers, exchange=lambda party: self.exchange, **options)
        if up:
            self.fleet.follow_exchange(True)
            self.step(2.0)

    def step(self, seconds=0.0):
        """What `run` does, so much later."""
        self.now += seconds
        self.posted.clear()
        self.fleet.look()

    def hear(self, peer="gw-2#1", workers=1, whole=False, rates=False, **uses):
        named = {GOLD: shares.Use(*uses["gold"])} if "gold" in uses else {}
        keys = self.exchange.peers.hear(peer, named, workers, self.now, whole=whole)
        self.fleet.hear(Heard(peer, peer.partition("#")[0], set(keys or named), rates=rates))

    def report(self):
        """A cycle of ours: others know what we take."""
        more, told = True, dict(self.exchange.peers.own)
        while more:
            uses, _, _, more = self.fleet.present()
            told |= uses
            self.exchange.peers.own = told
            self.fleet.publish(list(uses))
        return {key: use for key, use in told.items() if not use.is_idle}

    @property
    def state(self):
        return self.fleet.state


def test_nothing_is_dealt_before_others_could_be_heard():
    play = Fleet(up=False)
    assert play.posted == []
    assert not play.fleet.known.is_set()
    play.fleet.follow_exchange(True)
    play.hear(workers=2)
    play.step(1.0)
    assert play.posted == [], "somebody may not have spoken yet"
    play.step(0.3)
    assert play.fleet.known.is_set()
    assert play.members == {0: 3}


def test_alone_once_nobody_else_has_said_anything():
    play = Fleet(up=False)
    play.fleet.follow_exchange(True)
    play.step(1.3)
    assert play.posted == [(0, Parts())]


def test_two_gateways_that_want_more_have_half_each():
    play = Fleet(workers=2)
    play.hear(workers=2, gold=(90.0, True, 2.0))
    for number in range(2):
        play.use(number, (GOLD, 50.0, True))
    play.report()
    play.step()
    assert play.rate(0) == play.rate(1) == pytest.approx(25.0)
    assert play.parts[0][GOLD].fallback == pytest.approx(25.0)


def test_what_a_peer_takes_content_is_left_to_it_and_the_rest_is_ours():
    play = Fleet()
    play.hear(gold=(20.0, False))
    play.use(0, (GOLD, 70.0, True))
    play.report()
    play.step()
    assert play.rate(0) == pytest.approx(80.0)


def test_a_gateway_that_has_gone_leaves_its_part_at_once():
    play = Fleet()
    for leave in (lambda: play.fleet.hear(Heard("gw-2#1", "gw-2", left=True)), lambda: play.fleet.forget("gw-2#1")):
        play.hear(gold=(90.0, True))
        play.use(0, (GOLD, 50.0, True), whole=True)
        play.report()
        play.step()
        assert play.rate(0) == pytest.approx(50.0)
        assert play.members[0] == 2
        play.exchange.peers.lose("gw-2#1")
        leave()
        play.step()
        assert play.members[0] == 1


def test_a_share_of_a_threads_time_is_not_shared_with_other_gateways():
    play = Fleet()
    play.hear(gold=(90.0, True))
    play.use(0, (TIME, 0.4, True), (GOLD, 50.0, True))
    assert set(play.report()) == {GOLD}
    play.step()
    assert play.rate(0, TIME) == pytest.approx(0.5)


def test_without_the_exchange_parts_stay_then_go_to_what_is_right_in_sum(caplog):
    caplog.set_level("INFO")
    play = Fleet()
    play.hear(gold=(20.0, False))
    play.use(0, (GOLD, 80.0, True))
    play.report()
    play.step()
    play.exchange.up = False
    for _ in range(2):
        play.fleet.follow_exchange(False)
    play.step()
    assert (play.state, play.metrics.state, play.metrics.gauges["fleet_exchange_up"]) == ("frozen", "frozen", 0)
    play.step(shares.FROZEN_S - 1)
    assert play.rate(0) == pytest.approx(80.0)
    play.step(1 + shares.DECAY_S / 2)
    assert 55.0 < play.rate(0) < 75.0
    play.step(shares.DECAY_S / 2)
    assert play.rate(0) == pytest.approx(50.0)
    assert play.state == play.metrics.state == "fallback"
    play.exchange.up = True
    play.fleet.follow_exchange(True)
    play.step()
    assert play.rate(0) == pytest.approx(80.0)
    assert play.state == "shared"
    lines = [record.getMessage() for record in caplog.records if record.name == "gateway.fleet"]
    assert len(lines) == 2
    assert "topic t can't be had): parts of limits stay for " in lines[0]
    assert "limits hold over all gateways again, after " in lines[1]


def test_a_gateway_that_never_reached_the_others_limits_alone(caplog):
    play = Fleet(up=False)
    play.step(KNOWN_S - 0.1)
    assert not play.fleet.known.is_set()
    play.step(0.1)
    assert play.fleet.known.is_set()
    assert play.members == {0: 1}
    assert caplog.text.count("it was not reached so far") == 1
    play.hear(workers=3)
    play.fleet.follow_exchange(True)
    play.step()
    assert play.members == {0: 4}


def test_a_control_that_was_started_again_leaves_workers_their_parts_until_it_hears_the_others():
    play = Fleet(up=False, patient=True)
    play.fleet.follow_exchange(False)
    play.step(60.0)
    assert play.posted == []
    play.fleet.follow_exchange(True)
    play.hear()
    play.step(1.3)
    assert play.members == {0: 2}


def test_a_worker_that_starts_while_nobody_knows_who_shares_does_not_take_itself_for_the_only_one():
    play = Fleet(workers=0, up=False, patient=True)
    play.join(0, members=6)
    assert play.posted == []
    play.fleet.follow_exchange(False)
    play.join(1)
    assert play.posted == [(1, Parts({}, 6, play.now, lease_s=2.0))], "others may have what would be its part"
    play.step(1.0)
    assert play.posted == []


def test_while_nobody_can_be_heard_for_long_even_parts_hold_as_everywhere():
    play = Fleet(workers=0, up=False, patient=True)
    play.join(0, members=6)
    play.join(1, members=6)
    play.fleet.follow_exchange(False)
    play.step(shares.FROZEN_S + shares.DECAY_S - 1.0)
    assert play.posted == []
    play.step(1.0)
    assert play.posted == [(0, Parts({}, 6)), (1, Parts({}, 6))]
    play.step(1.0)
    assert play.posted == []


def leases(play):
    return {(number, m.lease_s, m.valid_until - play.now) for number, m in play.posted if isinstance(m, Parts)}


def test_workers_have_their_parts_for_as_long_as_others_leave_them_to_this_gateway():
    play = Fleet(workers=2)
    play.step(1.0)
    assert leases(play) == {(0, None, 5.0), (1, None, 5.0)}, "there are no others"
    play.hear(gold=(90.0, True))
    play.step(1.0)
    assert leases(play) == {(0, 2.0, 3.0), (1, 2.0, 3.0)}
    play.fleet.follow_exchange(False)
    play.step(1.0)
    assert leases(play) == {(0, None, 5.0), (1, None, 5.0)}, "nobody gives anything away while nobody is heard"


def test_a_worker_that_tells_everything_is_told_everything():
    """It may have lost its parts while control said nothing."""
    play = Fleet()
    play.hear(gold=(90.0, True))
    play.use(0, (GOLD, 50.0, True), (SILVER, 5.0, True), whole=True)
    play.report()
    play.step()
    play.parts[0] = {}
    play.step(1.0)
    assert play.parts[0] == {}
    play.use(0, (GOLD, 1.0, True), whole=True)
    play.step()
    assert play.rate(0) == pytest.approx(50.0)


def test_many_usages_are_told_to_the_exchange_a_few_at_a_time():
    play = Fleet()
    keys = [quota_key("producer_byte_rate.bps", f"user-{number}", None, None) for number in range(MOST_TOLD + 7)]
    play.use(0, *[(key, 5.0) for key in keys])
    first, second = play.fleet.present(), play.fleet.present()
    assert [(len(told.uses), told.more) for told in (first, second)] == [(MOST_TOLD, True), (7, False)]
    assert {*first.uses, *second.uses} == set(keys)


def test_without_the_exchange_others_are_taken_to_bring_as_much_as_we_do():
    play = Fleet(workers=2)
    play.exchange.peers.brought = {1: (700.0, {"a": 600.0}), 9: (5.0, {})}
    play.hear(workers=4, rates=True)
    for number, rate in enumerate((30.0, 10.0)):
        play.fleet.take_rates(number, rates(1, a=rate))
    play.fleet.tell_others()
    assert others(play, 0) == {1: Others(710.0, {b"a": 610.0}), 9: Others(5.0)}
    play.fleet.follow_exchange(False)
    play.step(shares.FROZEN_S)
    play.fleet.take_rates(0, rates(1, a=32.0))
    play.fleet.tell_others()
    assert others(play, 1) == {1: Others(732.0, {b"a": 632.0}), 9: Others(5.0)}
    play.step(shares.DECAY_S)
    play.fleet.take_rates(0, rates(1, a=30.0))
    play.fleet.tell_others()
    assert others(play, 0) == {1: Others(90.0, {b"a": 90.0})}, "10 of our other worker, 2 * 40 of 4 others"
    play.fleet.follow_exchange(True)
    play.fleet.tell_others()
    assert others(play, 0) == {1: Others(710.0, {b"a": 610.0}), 9: Others(5.0)}


def test_many_limits_are_dealt_a_few_at_a_time():
    play = Play()
    keys = [quota_key("producer_byte_rate.bps", f"user-{number}", None, None) for number in range(MOST_DEALT + 7)]
    for number in range(2):
        play.use(number, *[(key, 5.0, True) for key in keys])
    play.deal()
    assert len(play.parts[0]) == MOST_DEALT
    play.deal(after=0.0)
    assert len(play.parts[0]) == len(keys)


def test_what_all_gateways_bring_to_brokers_is_told_both_ways():
    play = Fleet()
    play.fleet.take_rates(0, rates(1, a=30.0))
    assert play.fleet.present().rates == [], "nobody asks: there is no total"
    play.fleet.set_policies(PolicySet({PolicyKey.of_broker(): 1000.0}))
    assert play.fleet.present().rates == [Rate(1, None, 30.0), Rate(1, "a", 30.0)]
    assert play.fleet.present().rates is None, "as before"
    play.exchange.peers.brought = {1: (70.0, {"a": 60.0})}
    play.hear(rates=True)
    play.posted.clear()
    play.fleet.tell_others()
    assert others(play, 0) == {1: Others(70.0, {b"a": 60.0})}
    play.exchange.peers.brought = {}
    play.fleet.forget("gw-2#1")
    play.fleet.tell_others()
    assert others(play, 0) == {}


def test_people_see_what_all_take_and_what_is_ours():
    play = Fleet()
    play.hear(gold=(20.0, False))
    play.use(0, (GOLD, 75.0, True), (TIME, 0.25, True))
    play.report()
    play.step()
    assert play.fleet.uses() == {GOLD: FleetUse(95.0, pytest.approx(80.0)), TIME: FleetUse(0.25, 0.5)}
    assert play.fleet.uses([GOLD, SILVER]) == {GOLD: FleetUse(95.0, pytest.approx(80.0))}
    assert play.metrics.gauges == {"fleet_peers": 1, "fleet_members": 2, "fleet_exchange_up": 1}
    assert play.metrics.dropped == {"stale": 3}


def test_what_begins_and_limits_that_change_are_told_before_the_cycle_ends():
    play = Fleet()
    play.hear(gold=(20.0, False))
    play.use(0, (GOLD, 75.0, True))
    play.step()
    assert play.exchange.hurries == 1
    play.use(0, (GOLD, 85.0, True))
    play.step()
    assert play.exchange.hurries == 1
    play.fleet.set_policies(policies(gold=50.0))
    play.step()
    assert play.exchange.hurries == 2


def test_who_is_alone_again_has_nothing_to_deal_out():
    """Or control would look again at once, for ever."""
    play = Fleet()
    play.hear(gold=(90.0, True))
    play.use(0, (GOLD, 50.0, True), whole=True)
    play.step()
    play.exchange.peers.lose("gw-2#1")
    play.fleet.hear(Heard("gw-2#1", "gw-2", left=True))
    play.step()
    assert not play.fleet.is_behind
