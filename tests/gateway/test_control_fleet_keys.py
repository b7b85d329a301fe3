# Which limits are taken of, how much they are, and how far they hold.

from __future__ import annotations

import pytest

from gateway.control import fleet_keys
from gateway.control.fleet_keys import IDLE_S, Keys
from policies.fleet.keys import group_key, quota_key, total_key
from policies.groups.names import DISPATCH_MSGS, EXISTS, PUBLISH_BYTES
from policies.policy_set import PolicyKey, PolicySet
from policies.quotas.names import DEFAULT, Entity, QuotaKey

BPS = "producer_byte_rate.bps"


def quota(key, value, user=None, client_id=None):
    return {PolicyKey.of_quota(Entity(user, client_id), QuotaKey.parse(key)): float(value)}


def policies(**more):
    return PolicySet(
        {
            PolicyKey.of_group("gold", EXISTS): 1.0,
            PolicyKey.of_group("gold", PUBLISH_BYTES): 100.0,
            PolicyKey.of_group("gold", DISPATCH_MSGS): 7.0,
            PolicyKey.of_broker(): 1000.0,
            PolicyKey.of_broker(2): 500.0,
            **quota(BPS, 10, user="alice"),
            **quota(BPS, 20, user=DEFAULT),
            **quota(BPS, 30, user="alice", client_id=DEFAULT),
            **quota(BPS, 40, client_id="app"),
            **quota("consumer_byte_rate", 50, user="alice"),
            **quota("request_percentage", 25, user="alice"),
            **quota("producer_byte_rate.shares", 3, user="alice"),
        }
    )


def limit_of(key):
    keys = Keys(policies())
    assert keys.use(0, key, idle=False)
    keys.refresh()
    return {**keys.fleet, **keys.here}.get(key)


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        (group_key("gold", "publish", "bytes"), 100),
        (group_key("gold", "dispatch", "msgs"), 7),
        (group_key("gold", "dispatch", "bytes"), None),
        (group_key("tin", "publish", "bytes"), None),
        (total_key(1), 1000),
        (total_key(2), 500),
        (quota_key(BPS, "alice", None, None), 10),
        (quota_key(BPS, "bob", None, None), 20),  # under a default everybody has his own
        (quota_key(BPS, "", None, None), 20),
        (quota_key(BPS, "alice", "app", None), 30),
        (quota_key(BPS, None, "app", None), 40),
        (quota_key(BPS, None, "other", None), None),
        (quota_key(BPS, "bob", "app", None), None),  # nothing is set for both of them
        (quota_key("consumer_byte_rate", "alice", None, 1), 50),
        (quota_key("consumer_byte_rate.bps", "alice", None, None), None),
        (quota_key("request_percentage", "alice", None, 1), 0.25),  # seconds per second
        (quota_key("producer_byte_rate.shares", "alice", None, 1), None),  # of the total, whose key is another
        (quota_key("no_such_rate", "alice", None, None), None),
    ],
)
def test_a_key_has_the_limit_that_is_configured(key, limit):
    assert limit_of(key) == limit


def test_what_is_no_key_is_left_out():
    assert not Keys(policies()).use(0, "nonsense", idle=False)


def test_a_share_of_a_threads_time_holds_here_and_everything_else_over_the_fleet():
    keys = Keys(policies())
    here, fleet = quota_key("request_percentage", "alice", None, 1), quota_key(BPS, "alice", None, None)
    for key in (here, fleet):
        keys.use(0, key, idle=False)
    assert keys.refresh()
    assert (keys.here, keys.fleet) == ({here: 0.25}, {fleet: 10})
    assert keys.is_here(here)
    assert not keys.is_here(fleet)
    assert not keys.refresh(), "nothing is new"


def test_limits_follow_the_policies():
    keys = Keys(PolicySet())
    gold, total = group_key("gold", "publish", "bytes"), total_key(1)
    for key in (gold, total):
        keys.use(0, key, idle=False)
    assert not keys.refresh(), "no limits, no change"
    keys.set_policies(policies())
    assert keys.refresh()
    assert keys.fleet == {gold: 100, total: 1000}
    keys.set_policies(PolicySet({PolicyKey.of_broker(): 900.0}))
    assert keys.refresh()
    assert keys.fleet == {total: 900}


def test_what_nobody_uses_is_forgotten_after_a_while():
    keys = Keys(policies())
    busy, idle, twice = (quota_key(BPS, name, None, None) for name in ("a", "b", "c"))
    for key in (busy, idle, twice):
        keys.use(0, key, idle=False)
    keys.use(1, twice, idle=False)
    keys.use(0, idle, idle=True)
    keys.use(0, twice, idle=True)  # the other worker does
    keys.sweep(100.0)
    keys.sweep(100.0 + IDLE_S - 1)
    keys.refresh()
    assert set(keys.fleet) == {busy, idle, twice}
    keys.sweep(100.0 + IDLE_S)
    assert keys.refresh()
    assert set(keys.fleet) == {busy, twice}
    keys.forget_worker(1)
    keys.sweep(200.0)
    keys.use(0, twice, idle=False)  # back in time
    keys.sweep(300.0)
    keys.refresh()
    assert set(keys.fleet) == {busy, twice}
    keys.set_busy(0, [])
    keys.sweep(400.0)
    keys.sweep(400.0 + IDLE_S)
    keys.refresh()
    assert keys.fleet == {}


def test_there_is_an_end_to_names_that_clients_make_up(monkeypatch):
    monkeypatch.setattr(fleet_keys, "MAX_KEYS", 3)
    keys = Keys(policies())
    made_up = [quota_key(BPS, f"user-{number}", None, None) for number in range(5)]
    assert [keys.use(0, key, idle=False) for key in made_up] == [True, True, True, False, False]
    assert keys.use(0, made_up[0], idle=False)
