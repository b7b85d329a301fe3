# Which limits are taken of, and how much they are.

from __future__ import annotations

from typing import Any

import pytest

from gateway.control.fleet import limits_in_use
from gateway.control.fleet.limits_in_use import IDLE_S, LimitsInUse
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.fleet.keys import group_key, quota_key, total_key, total_out_key
from policies.groups.names import DISPATCH_MSGS, EXISTS, PUBLISH_BYTES
from policies.quotas.names import DEFAULT, DefaultName, Entity, QuotaKey
from policies.thresholds.values import TOTAL_OUT_KEY

BPS = "producer_byte_rate.bps"


def quota(
    key: str, value: int, user: DefaultName | str | None = None, client_id: DefaultName | str | None = None
) -> dict[PolicyKey, float]:
    return {PolicyKey.of_quota(Entity(user, client_id), QuotaKey.parse(key)): float(value)}


def policies(**more: Any) -> PolicySet:
    return PolicySet(
        {
            PolicyKey.of_group("gold", EXISTS): 1.0,
            PolicyKey.of_group("gold", PUBLISH_BYTES): 100.0,
            PolicyKey.of_group("gold", DISPATCH_MSGS): 7.0,
            PolicyKey.of_broker(): 1000.0,
            PolicyKey.of_broker(2): 500.0,
            PolicyKey.of_broker(key=TOTAL_OUT_KEY): 2000.0,
            PolicyKey.of_broker(2, TOTAL_OUT_KEY): 900.0,
            **quota(BPS, 10, user="alice"),
            **quota(BPS, 20, user=DEFAULT),
            **quota(BPS, 30, user="alice", client_id=DEFAULT),
            **quota(BPS, 40, client_id="app"),
            **quota("consumer_byte_rate", 50, user="alice"),
            **quota("request_percentage", 25, user="alice"),
            **quota("producer_byte_rate.shares", 3, user="alice"),
        }
    )


def limit_of(key: str) -> float | None:
    keys = LimitsInUse(policies())
    assert keys.record_use(0, key, idle=False)
    keys.refresh_limits()
    return keys.limits.get(key)


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        (group_key("gold", "publish", "bytes"), 100),
        (group_key("gold", "dispatch", "msgs"), 7),
        (group_key("gold", "dispatch", "bytes"), None),
        (group_key("tin", "publish", "bytes"), None),
        (total_key(1), 1000),
        (total_key(2), 500),
        (total_out_key(1), 2000),
        (total_out_key(2), 900),
        (quota_key(BPS, "alice", None, None), 10),
        (quota_key(BPS, "bob", None, None), 20),  # under a default everybody has his own
        (quota_key(BPS, "", None, None), 20),
        (quota_key(BPS, "alice", "app", None), 30),
        (quota_key(BPS, None, "app", None), 40),
        (quota_key(BPS, None, "other", None), None),
        (quota_key(BPS, "bob", "app", None), None),  # nothing is set for both of them
        (quota_key("consumer_byte_rate", "alice", None, 1), 50),
        (quota_key("consumer_byte_rate.bps", "alice", None, None), None),
        (quota_key("request_percentage", "alice", None, 1), None),  # of one machine's thread: nobody shares it
        (quota_key("producer_byte_rate.shares", "alice", None, 1), None),  # of the total, whose key is another
        (quota_key("no_such_rate", "alice", None, None), None),
    ],
)
def test_a_key_has_the_limit_that_is_configured(key: str, limit: float | None) -> None:
    assert limit_of(key) == limit


def test_a_text_that_is_no_key_is_left_out() -> None:
    assert not LimitsInUse(policies()).record_use(0, "nonsense", idle=False)


def test_nothing_is_new_the_second_time() -> None:
    keys = LimitsInUse(policies())
    keys.record_use(0, quota_key(BPS, "alice", None, None), idle=False)
    assert keys.refresh_limits()
    assert not keys.refresh_limits()


def test_limits_follow_the_policies() -> None:
    keys = LimitsInUse(PolicySet())
    gold, total = group_key("gold", "publish", "bytes"), total_key(1)
    for key in (gold, total):
        keys.record_use(0, key, idle=False)
    assert not keys.refresh_limits(), "no limits, no change"
    keys.set_policies(policies())
    assert keys.refresh_limits()
    assert keys.limits == {gold: 100, total: 1000}
    keys.set_policies(PolicySet({PolicyKey.of_broker(): 900.0}))
    assert keys.refresh_limits()
    assert keys.limits == {total: 900}


def test_keys_that_no_worker_uses_are_forgotten_after_a_while() -> None:
    keys = LimitsInUse(policies())
    busy, idle, twice = (quota_key(BPS, name, None, None) for name in ("a", "b", "c"))
    for key in (busy, idle, twice):
        keys.record_use(0, key, idle=False)
    keys.record_use(1, twice, idle=False)
    keys.record_use(0, idle, idle=True)
    keys.record_use(0, twice, idle=True)  # the other worker does
    keys.forget_idle_limits(100.0)
    keys.forget_idle_limits(100.0 + IDLE_S - 1)
    keys.refresh_limits()
    assert set(keys.limits) == {busy, idle, twice}
    keys.forget_idle_limits(100.0 + IDLE_S)
    assert keys.refresh_limits()
    assert set(keys.limits) == {busy, twice}
    keys.forget_worker(1)
    keys.forget_idle_limits(200.0)
    keys.record_use(0, twice, idle=False)  # back in time
    keys.forget_idle_limits(300.0)
    keys.refresh_limits()
    assert set(keys.limits) == {busy, twice}
    keys.set_busy(0, [])
    keys.forget_idle_limits(400.0)
    keys.forget_idle_limits(400.0 + IDLE_S)
    keys.refresh_limits()
    assert keys.limits == {}


def test_there_is_an_end_to_names_that_clients_make_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_in_use, "MAX_KEYS", 3)
    keys = LimitsInUse(policies())
    made_up = [quota_key(BPS, f"user-{number}", None, None) for number in range(5)]
    assert [keys.record_use(0, key, idle=False) for key in made_up] == [True, True, True, False, False]
    assert keys.record_use(0, made_up[0], idle=False)
