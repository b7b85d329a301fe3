# What explanations say about client quotas: the gateway's, and those that brokers enforce.

from __future__ import annotations

import pytest

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.definitions.rollout import PolicyRollout, rollout_place
from policies.explain import (
    ExplainSubject,
    TrafficExplanation,
    explain_traffic,
)
from policies.meters.meter import TICK_S
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from policies.quotas.quota_limiters import UNALLOCATED, QuotaLimiters
from policies.quotas.store import QuotaStore
from policies.thresholds.values import TOTAL_OUT_KEY
from tests.policies.explain.explain_play import (
    ALICE,
    ANYBODY,
    APP,
    ASKED,
    BPS,
    BROKER_BPS,
    MB,
    SHARES,
    TIME,
    TOTAL,
    first_rule,
    known,
    line,
    named,
    quota,
    rates,
    rule,
    whys,
)


def test_the_most_specific_quota_holds_and_the_others_are_shadowed() -> None:
    base = {quota(ALICE, BPS): 2.0 * MB, quota(ANYBODY, BPS): 1.0 * MB, quota(APP, BPS): 3.0 * MB}
    found = explain_traffic(ASKED, known(base, rates=rates(quotas=[line(APP, BPS, 2.4 * MB, 3.0 * MB)])))
    only = rule(found, "client-quota")
    assert (only.levels[0].rate, only.utilization, only.limits_now, only.broker) == (2.4 * MB, 0.8, False, None)
    assert only.text == "producer_byte_rate:bps=3000000 {user=alice, client-id=app}: 2.4 MB/s of 3.0 MB/s (80%)"
    assert [(each.what, each.value) for each in found.shadowed] == [
        ("producer_byte_rate:bps of {user=alice}", "producer_byte_rate:bps=2000000"),
        ("producer_byte_rate:bps of {user=<default>}", "producer_byte_rate:bps=1000000"),
    ]
    assert "{user=alice, client-id=app} is more specific" in found.shadowed[0].why


def test_a_quota_per_broker_has_a_rule_for_each() -> None:
    two = known({quota(ALICE, BROKER_BPS): 2.0 * MB}, led_topics={1: ("clicks",), 2: ("clicks",)})
    used = rates(quotas=[line(ALICE, BROKER_BPS, 2.5 * MB, 2.0 * MB, 2)])
    found = explain_traffic(ASKED, two._replace(rates=used))
    assert named(found)[:2] == [("client-quota", 1), ("client-quota", 2)]
    assert [each.levels[0].rate for each in found.rules[:2]] == [0.0, 2.5 * MB]
    assert [each.limits_now for each in found.rules[:2]] == [False, True]
    assert first_rule(found) is found.rules[1]
    assert found.summary.startswith("delayed now by client-quota on broker 2: ")


def test_a_quota_on_time_is_in_percent() -> None:
    found = explain_traffic(
        ASKED, known({quota(ALICE, TIME): 50.0}, rates=rates(quotas=[line(ALICE, TIME, 0.25, 0.5, 1)]))
    )
    only = rule(found, "client-quota")
    level = only.levels[0]
    assert (level.unit, level.limit, level.rate, only.utilization) == ("%", 50.0, 25.0, 0.5)
    assert (only.traffic, only.headroom) == ("both", None)
    assert "25 % of 50 % (50%); of one thread's time" in only.text
    assert first_rule(found) is only  # no other can be compared


def test_shares_are_what_was_dealt_out_last() -> None:
    base = {TOTAL: 12.0 * MB, quota(ALICE, SHARES): 3.0}
    found = explain_traffic(ASKED, known(base, rates=rates(quotas=[line(ALICE, SHARES, 1.0 * MB, 4.0 * MB, 1)])))
    level = rule(found, "client-quota").levels[0]
    assert (level.configured, level.limit, level.utilization) == (None, 4.0 * MB, 0.25)
    for undealt in (rates(quotas=[line(ALICE, SHARES, 0.0, UNALLOCATED, 1)]), rates()):
        assert rule(explain_traffic(ASKED, known(base, rates=undealt)), "client-quota").levels[0].limit is None


def test_shares_of_nothing_have_no_effect() -> None:
    found = explain_traffic(ASKED, known({quota(ALICE, SHARES): 3.0}))
    assert named(found) == [("fence", None)]
    assert whys(found, "shares") == ["there is no total.bytes.in.per.sec.threshold on broker 1 to have a share of"]


def test_a_quota_for_the_default_is_found_by_the_actual_names() -> None:
    shared = Entity(DEFAULT, DEFAULT)
    said = [line(shared, BPS, 0.5 * MB, 1.0 * MB)]
    found = explain_traffic(ASKED, known({quota(shared, BPS): 1.0 * MB}, rates=rates(quotas=said)))
    assert rule(found, "client-quota").utilization == 0.5
    nobody = explain_traffic(
        ExplainSubject("clicks"), known({quota(Entity(None, DEFAULT), BPS): 1.0 * MB}, rates=rates())
    )
    assert rule(nobody, "client-quota").utilization == 0.0


@pytest.mark.parametrize("client_id", ["app", ""])
def test_rates_of_the_lines_that_really_are_are_found(client_id: str) -> None:
    base = {
        TOTAL: 12.0 * MB, quota(Entity(DEFAULT), BPS): 1.0 * MB, quota(Entity("alice", DEFAULT), TIME): 10.0,
        quota(Entity(None, DEFAULT), BROKER_BPS): 3.0 * MB,
    }  # fmt: skip
    policies = PolicySet(base)
    lines = QuotaLimiters()
    lines.set_quotas(policies.quota_store(), 0.0)
    kept = lines.connection_limit(1, "alice", client_id, 0.0)
    for each in (*kept.produce_limiters, *kept.time_limiters):
        each.charge_amount(1, 0.0)
    lines.close_tick(TICK_S)
    said = lines.busiest_rates(9, TICK_S)
    found = explain_traffic(
        ExplainSubject("clicks", "alice", client_id), known(policies=policies, rates=rates(quotas=said))
    )
    levels = [each.levels[0] for each in found.rules if each.name == "client-quota"]
    assert len(levels) == len(said)
    assert all(level.rate for level in levels)


def test_a_quota_that_is_not_among_those_that_are_told_has_no_rate() -> None:
    base = {quota(ALICE, BPS): 5.0 * MB}
    told = rates(quotas=[line(Entity("bob"), BPS, 5.0, 1.0)])
    assert rule(explain_traffic(ASKED, known(base, rates=told)), "client-quota").levels[0].rate == 0.0
    found = explain_traffic(ASKED, known(base, rates=told._replace(partial=True)))
    assert rule(found, "client-quota").levels[0].rate is None
    assert "nothing known of its rate" in rule(found, "client-quota").text
    assert any("busiest client quotas only" in note for note in found.notes)
    own = rates(quotas=[line(ALICE, BPS, 3.0, 5.0)])._replace(partial=True)
    assert rule(explain_traffic(ASKED, known(base, rates=own)), "client-quota").levels[0].rate == 3.0


def test_brokers_quotas_are_rules_of_their_own() -> None:
    theirs = QuotaStore({ALICE: {BROKER_BPS: 1.0 * MB}, ANYBODY: {BROKER_BPS: 9.0 * MB}})
    ours = {TOTAL: 12.0 * MB, quota(ALICE, BROKER_BPS): 5.0 * MB}
    measured = rates(quotas=[line(ALICE, BROKER_BPS, 0.4 * MB, 5.0 * MB, 1)])
    found = explain_traffic(ASKED, known(ours, broker_quotas=theirs, rates=measured))
    told = rule(found, "broker-quota", 1)
    (level,) = told.levels
    assert (level.origin, level.configured, level.limit, level.rate) == ("brokers", 1.0 * MB, 1.0 * MB, 0.4 * MB)
    assert told.first, "it leaves the least"
    assert "beside the gateway's producer_byte_rate:broker_bps=5000000 {user=alice}, which is not less" in told.note
    assert whys(found, "broker_bps of {user=<default>}") == [
        "{user=alice} is more specific and has producer_byte_rate:broker_bps=1000000"
    ]
    alone = rule(explain_traffic(ASKED, known(broker_quotas=theirs, rates=rates())), "broker-quota", 1)
    assert alone.levels[0].rate is None, "nobody here measures it"


def test_brokers_quotas_hold_for_internal_principals_and_where_the_gateway_only_observes() -> None:
    theirs = QuotaStore({ALICE: {BROKER_BPS: 1.0 * MB}})
    found = explain_traffic(ASKED, known(broker_quotas=theirs, internal_principals=("User:alice",), observe=True))
    assert [(each.name, each.mode) for each in found.rules] == [("broker-quota", "enforce")]


def test_shares_of_consumption_are_of_the_total_for_consumers() -> None:
    shares = QuotaKey.parse("consumer_byte_rate:shares")
    base = {TOTAL: 12.0 * MB, quota(ALICE, shares): 2.0}
    found = explain_traffic(ASKED, known(base))
    assert "client-quota" not in [each.name for each in found.rules]
    assert whys(found, "consumer_byte_rate:shares") == [
        "there is no total.bytes.out.per.sec.threshold on broker 1 to have a share of"
    ]
    told = rule(
        explain_traffic(ASKED, known({**base, PolicyKey.of_broker(key=TOTAL_OUT_KEY): 5.0 * MB})), "client-quota", 1
    )
    assert told.traffic == "fetch"
    assert told.note.startswith("2 shares of what total.bytes.out.per.sec.threshold of broker 1 leaves")


def test_which_of_ours_and_the_brokers_quota_binds_is_said_by_whether_ours_is_enforced() -> None:
    theirs = QuotaStore({ALICE: {BROKER_BPS: 5.0 * MB}})
    base = {quota(ALICE, BROKER_BPS): 1.0 * MB}
    at = rollout_place(ASKED.principal, ASKED.client_id)
    busy = rates(quotas=[line(ALICE, BROKER_BPS, 2.0 * MB, 1.0 * MB, 1)])

    def found(**more: object) -> TrafficExplanation:
        return explain_traffic(ASKED, known(base, broker_quotas=theirs, rates=busy, **more))

    ours = "enforced by the brokers, beside the gateway's producer_byte_rate:broker_bps=1000000 {user=alice}, which is"
    held, held_too = found(), found(rollout=PolicyRollout(quota=at + 1))
    for each in (held, held_too):
        assert rule(each, "broker-quota", 1).note == f"{ours} less"
        assert first_rule(each) is rule(each, "client-quota", 1)
    for more in ({"quota_mode": "observe"}, {"observe": True}, {"rollout": PolicyRollout(quota=at - 1)}):
        observed = found(**more)
        assert rule(observed, "broker-quota", 1).note == f"{ours} only observed for this client"
        assert first_rule(observed) is rule(observed, "broker-quota", 1)


def test_the_time_of_brokers_threads_is_a_source_of_its_own_and_compared_with_nothing() -> None:
    theirs = QuotaStore({ALICE: {TIME: 5.0}})
    measured = rates(quotas=[line(ALICE, TIME, 0.25, 0.5, 1)])
    found = explain_traffic(ASKED, known({quota(ALICE, TIME): 50.0}, broker_quotas=theirs, rates=measured))
    told = rule(found, "broker-quota", 1)
    (level,) = told.levels
    assert (level.what, level.origin, level.limit, level.unit) == (
        "request_percentage:percent=5 {user=alice}", "brokers", 5.0, "%",
    )  # fmt: skip
    assert level.rate is None, "the gateway measures its own worker's time"
    assert told.note == "enforced by the brokers: of one of their threads' time, which only they measure"
    assert rule(found, "client-quota", 1).levels[0].rate == 25.0
