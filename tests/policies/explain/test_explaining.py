# Which rule comes first, and who is limited by none.

from __future__ import annotations

from policies.explain import (
    MAX_HELD,
    explain_traffic,
)
from tests.policies.explain.explain_play import (
    ALICE,
    ASKED,
    BPS,
    BROKER_BPS,
    CONSUME,
    MB,
    TOTAL,
    first_rule,
    held,
    known,
    line,
    named,
    quota,
    rates,
)


def test_internal_traffic_is_never_limited_but_for_the_gateways_own_topics() -> None:
    base = {TOTAL: 12.0 * MB, quota(ALICE, BPS): 1.0}
    found = explain_traffic(ASKED, known(base, internal_principals=("User:alice",), rates=rates(over=True)))
    assert (found.rules, found.internal) == ((), "User:alice is an internal principal: metered, never limited")
    assert {each.name for each in found.shadowed} == {"client-quota", "topic-threshold", "fence"}
    assert {each.why for each in found.shadowed} == {found.internal}
    assert found.summary == found.internal
    by_id = explain_traffic(ASKED, known(base, internal_client_ids=("app",), protected_topics=("clicks",)))
    assert named(by_id) == [("protected-topic", None)]
    assert by_id.internal.startswith("'app' is an internal client id")
    both = explain_traffic(ASKED, known(base, internal_clients=[("User:alice", "app")]))
    assert (both.rules, both.internal) == ((), "User:alice as 'app' is an internal client: metered, never limited")
    assert explain_traffic(ASKED, known(base, internal_clients=[("User:alice", "other")])).rules


def test_first_is_the_limit_that_leaves_the_fewest_bytes_not_the_one_used_most() -> None:
    base = {TOTAL: 100.0 * MB, quota(ALICE, BPS): 1.0 * MB}
    busy = rates(90.0 * MB, 95.0 * MB, quotas=[line(ALICE, BPS, 0.8 * MB, 1.0 * MB)])
    found = explain_traffic(ASKED, known(base, rates=busy))
    assert first_rule(found).name == "client-quota"  # 0.2 MB/s to go; 5 MB/s of the total


def test_a_rejection_comes_before_a_delay_and_then_the_limit_exceeded_most() -> None:
    base = {TOTAL: 12.0 * MB, quota(ALICE, BPS): 1.0 * MB, quota(ALICE, BROKER_BPS): 1.0 * MB}
    lines = [line(ALICE, BPS, 1.5 * MB, 1.0 * MB), line(ALICE, BROKER_BPS, 2.0 * MB, 1.0 * MB, 1)]
    delayed = explain_traffic(ASKED, known(base, rates=rates(quotas=lines)))
    assert first_rule(delayed).broker == 1
    rejected = explain_traffic(ASKED, known(base, rates=rates(over=True, quotas=lines)))
    assert first_rule(rejected).name == "topic-threshold"


def test_a_limit_that_only_fetches_meet_is_never_first() -> None:
    base = {quota(ALICE, CONSUME): 1.0, TOTAL: 12.0 * MB}
    found = explain_traffic(ASKED, known(base, rates=rates(quotas=[line(ALICE, CONSUME, 5.0, 1.0)])))
    assert first_rule(found).name == "topic-threshold"


def test_exactly_one_rule_is_first() -> None:
    same = known({quota(ALICE, BPS): 1.0, quota(ALICE, BROKER_BPS): 1.0}, rates=rates())
    assert sum(each.first for each in explain_traffic(ASKED, same).rules) == 1


def test_the_last_rejections_come_newest_first_and_bounded() -> None:
    many = [held(ago_ms=1000 * n) for n in range(MAX_HELD + 5)]
    found = explain_traffic(ASKED, known(), reversed(many))
    assert found.held == tuple(many[:MAX_HELD])
