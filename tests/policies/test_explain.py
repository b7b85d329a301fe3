# Explanations: every rule with its numbers, which binds first, what is shadowed and why; and that thresholds, shares
# and quotas are those that the engine and the lines really go by.

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.engine import BrokerRate, Engine, Mode, TopicRate
from policies.explain import (
    LATELY_MS,
    MAX_HELD,
    Asked,
    Explanation,
    Flow,
    Held,
    Known,
    Level,
    Rates,
    Rule,
    explain,
    in_force,
    storage_effect,
    top,
    topics,
    utilization,
)
from policies.limits.meter import TICK_S
from policies.policy_set import Op, PolicyKey, PolicySet
from policies.quotas.lines import UNDEALT, QuotaLines, QuotaRate
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from policies.quotas.text import entity_text
from policies.storage import Factor
from tests.policies.asking import record

MB = 10**6
NOW_MS = 1_700_000_000_000
TOTAL, TOTAL_2, CLICKS = PolicyKey.of_broker(), PolicyKey.of_broker(2), PolicyKey.of_topic("clicks")
ALICE, ANYBODY, APP = Entity("alice"), Entity(DEFAULT), Entity("alice", "app")
BPS, BROKER_BPS = QuotaKey.parse("producer_byte_rate:bps"), QuotaKey.parse("producer_byte_rate:broker_bps")
SHARES, TIME = QuotaKey.parse("producer_byte_rate:shares"), QuotaKey.parse("request_percentage")
CONSUME = QuotaKey.parse("consumer_byte_rate:bps")
ASKED = Asked("clicks", "alice", "app")
LEADS = {1: ("clicks", "views"), 2: ("views",)}


def quota(entity: Entity, key: QuotaKey) -> PolicyKey:
    return PolicyKey.of_quota(entity, key)


def known(base: dict[PolicyKey, float] | None = None, **more: object) -> Known:
    policies = PolicySet({TOTAL: 12.0 * MB} if base is None else base)
    return Known(policies=policies, leads=LEADS, now_ms=NOW_MS)._replace(**more)  # type: ignore[arg-type]


def rates(
    rate: float = 1.0 * MB,
    total: float = 2.0 * MB,
    *,
    over: bool = False,
    broker: int = 1,
    quotas: Sequence[QuotaRate] = (),
    topic: str = "clicks",
) -> Rates:
    return Rates([BrokerRate(broker, total, 0.0, 0.0, None, [TopicRate(topic, rate, None, over)])], quotas)


def line(source: Entity, key: QuotaKey, rate: float, limit: float, broker: int | None = None) -> QuotaRate:
    """Of alice's connections with client id app."""
    user = None if source.user is None else "alice"
    client_id = None if source.client_id is None else "app"
    return QuotaRate(str(key), entity_text(source), user, client_id, broker, rate, limit, rate >= limit)


def held(reason: str = "topic-threshold", *, outcome: str = "rejected", ago_ms: int = 1000, broker: int = 1) -> Held:
    last = NOW_MS - ago_ms
    return Held("clicks", "User:alice", "app", broker, outcome, reason, last - 1000, last, 100, 1, 500)


def named(found: Explanation) -> list[tuple[str, int | None]]:
    return [(rule.name, rule.broker) for rule in found.rules]


def rule(found: Explanation, name: str, broker: int | None = None) -> Rule:
    (only,) = (each for each in found.rules if each.name == name and broker in (None, each.broker))
    return only


def whys(found: Explanation, what: str) -> list[str]:
    return [each.why for each in found.shadowed if what in each.what]


# --- utilization ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "limit", "ratio"), [(1.0, 2.0, 0.5), (3.0, 2.0, 1.5), (0.0, 0.0, 0.0), (1.0, 0.0, math.inf)]
)
def test_utilization_is_rate_by_limit_and_not_capped(rate: float, limit: float, ratio: float) -> None:
    assert utilization(rate, limit) == ratio


def test_without_a_limit_or_a_rate_there_is_none() -> None:
    assert math.isnan(utilization(1.0, None))
    assert math.isnan(utilization(None, 1.0))


# --- thresholds -------------------------------------------------------------------------------------------------------


def test_a_threshold_binds_when_topic_and_total_are_exceeded() -> None:
    found = explain(ASKED, known({TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}, rates=rates(6.0 * MB, 3.0 * MB)))
    threshold = rule(found, "topic-threshold")
    topic, total = threshold.levels
    assert (topic.limit, topic.rate, topic.utilization) == (5.0 * MB, 6.0 * MB, 1.2)
    assert (total.limit, total.rate, total.utilization) == (12.0 * MB, 3.0 * MB, 0.25)
    assert (threshold.utilization, threshold.headroom, threshold.limits_now) == (0.25, 9.0 * MB, False)
    assert (threshold.action, threshold.mode, threshold.first) == ("reject", "enforce", True)
    assert found.summary.startswith("nothing limits this traffic now; topic-threshold on broker 1 would be first")


def test_a_threshold_limits_while_the_meter_says_so_or_did_lately() -> None:
    base = {TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}
    assert rule(explain(ASKED, known(base, rates=rates(over=True))), "topic-threshold").limits_now
    quiet = known(base, rates=rates())
    assert rule(explain(ASKED, quiet, [held()]), "topic-threshold").limits_now
    for not_now in (held(ago_ms=LATELY_MS + 1), held("fence"), held(broker=2), held(outcome="would_reject")):
        assert not rule(explain(ASKED, quiet, [not_now]), "topic-threshold").limits_now


def test_each_broker_that_leads_a_part_has_its_own_rule() -> None:
    both = known(leads={1: ("clicks",), 2: ("clicks", "views"), 3: ("views",)}, on_exceed="delay")
    found = explain(ASKED, both)
    assert named(found)[:2] == [("topic-threshold", 1), ("topic-threshold", 2)]
    assert found.brokers == (1, 2)
    assert {each.action for each in found.rules[:2]} == {"delay"}
    assert rule(found, "topic-threshold", 1).levels[0].limit == 12.0 * MB
    assert rule(found, "topic-threshold", 2).levels[0].limit == 6.0 * MB
    assert explain(ASKED._replace(broker=2), both).brokers == (2,)


def test_a_broker_of_its_own_total_shadows_the_default() -> None:
    found = explain(ASKED._replace(broker=2), known({TOTAL: 12.0 * MB, TOTAL_2: 8.0 * MB}))
    assert rule(found, "topic-threshold").levels[1].limit == 8.0 * MB
    assert whys(found, "of all brokers") == ["broker 2 has a total of its own, 8,000,000 bytes/s"]


def test_an_explicit_threshold_shadows_the_implicit_share() -> None:
    found = explain(ASKED, known({TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}))
    (share,) = [each for each in found.shadowed if each.what == "implicit share"]
    assert (share.value, share.broker) == ("7,000,000 bytes/s", 1)
    assert "of its own" in share.why


def test_a_threshold_without_a_total_has_no_effect() -> None:
    found = explain(ASKED, known({CLICKS: 5.0 * MB}))
    assert named(found) == [("fence", None)]
    assert whys(found, "of topic clicks") == [
        "without total.bytes.in.per.sec.threshold on broker 1 nothing is ever over"
    ]
    assert found.summary == "nothing limits this traffic"


def test_kafkas_own_topics_have_no_implicit_threshold() -> None:
    found = explain(Asked("__consumer_offsets"), known(leads={1: ("__consumer_offsets",)}))
    assert named(found) == [("fence", None)]
    assert whys(found, "implicit share") == ["Kafka's internal topics have no implicit threshold"]


def test_where_values_come_from_is_said_and_what_a_change_covers() -> None:
    policies = PolicySet({TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}).alter([Op(CLICKS, 4.0 * MB)])
    found = explain(ASKED, known(policies=policies))
    assert [level.origin for level in rule(found, "topic-threshold").levels] == ["run time", "file"]
    (covered,) = [each for each in found.shadowed if each.why == "another value was set at run time"]
    assert (covered.value, covered.origin) == ("5,000,000 bytes/s", "file")
    assert explain(ASKED, known(policies=policies)._replace(base="source x")).rules[0].levels[1].origin == "source x"


def test_a_topic_that_nobody_leads_is_explained_for_all_brokers() -> None:
    found = explain(Asked("new"), known())
    assert found.brokers == (1, 2)
    assert "metadata knows no topic new: it is explained as if every broker led a part of it" in found.notes
    assert [level.limit for level in rule(found, "topic-threshold", 1).levels] == [4.0 * MB, 12.0 * MB]
    elsewhere = explain(ASKED._replace(broker=2), known())
    assert "broker 2 leads no partition of topic clicks: 1 does" in elsewhere.notes


def test_before_anything_is_known_there_are_limits_but_no_rates() -> None:
    found = explain(ASKED, Known(PolicySet({TOTAL: 12.0 * MB})))
    threshold = rule(found, "topic-threshold")
    assert (threshold.broker, threshold.levels[0].rate) == (None, None)
    assert math.isnan(threshold.utilization)
    assert "nothing known of its rate" in threshold.text
    assert found.notes == ("no rates are known yet: the meters speak every 5 seconds",)


@given(
    total=st.floats(1e3, 1e9),
    explicit=st.dictionaries(st.sampled_from("abc"), st.floats(0, 300), max_size=3),
    listed=st.frozensets(st.sampled_from(["a", "b", "c", "d", "e", "__consumer_offsets"])),
    produced=st.frozensets(st.sampled_from("abcdxyz"), min_size=1),
    factor=st.sampled_from([1.0, 0.75, 0.01, 0.0]),
    observe=st.booleans(),
)
def test_thresholds_are_those_that_the_engine_goes_by(
    total: float,
    explicit: dict[str, float],
    listed: frozenset[str],
    produced: frozenset[str],
    factor: float,
    observe: bool,
) -> None:
    engine = Engine(0.0)
    engine.set_policy(total, explicit)
    engine.set_topics(1, listed)
    engine.set_storage(factor, "why", 0.0, mode="observe" if observe else "enforce")
    for name in produced:
        record(engine.broker(1), name.encode(), 1000)
    engine.tick(TICK_S)
    said = Rates(engine.rates())
    base = {TOTAL: total, **{PolicyKey.of_topic(name): value for name, value in explicit.items()}}
    mode: Mode = "observe" if observe else "enforce"
    all_known = known(base, leads={1: listed}, rates=said, storage=Factor(factor, why="why"), storage_mode=mode)
    lines = {each.topic: each for each in topics(all_known, {})}
    for meter in said.brokers[0].topics:
        found = rule(explain(Asked(meter.topic), all_known), "topic-threshold")
        assert found.levels[0].limit == pytest.approx(meter.threshold)
        assert found.levels[1].limit == pytest.approx(said.brokers[0].threshold)
        assert lines[meter.topic].threshold == pytest.approx(meter.threshold)
    bare = {each.topic: each.threshold for each in topics(all_known._replace(rates=Rates()), {})}
    for name in listed if produced <= listed else ():
        assert bare[name] == pytest.approx(lines[name].threshold)


# --- storage ----------------------------------------------------------------------------------------------------------


def test_a_factor_lowers_every_produce_limit_and_shares_the_total() -> None:
    base = {TOTAL: 12.0 * MB, CLICKS: 4.0 * MB, quota(ALICE, BPS): 2.0 * MB, quota(ALICE, CONSUME): 9.0 * MB}
    why = "broker 2 volume /a: 1.0 GB free"
    found = explain(ASKED, known(base, rates=rates(), storage=Factor(0.5, why=why)))
    assert named(found)[0] == ("storage-throttle", 1)
    shared = rule(found, "storage-throttle")
    assert (shared.levels[0].configured, shared.levels[0].limit, shared.note) == (12.0 * MB, 6.0 * MB, why)
    assert [level.limit for level in rule(found, "topic-threshold").levels] == [2.0 * MB, 6.0 * MB]
    assert rule(found, "topic-threshold").action == "delay"  # whatever on_exceed says, as in the engine
    assert rule(explain(ASKED, known(base, rates=rates())), "topic-threshold").action == "reject"
    produce, consume = sorted((r for r in found.rules if r.name == "client-quota"), key=lambda r: r.traffic == "fetch")
    assert (produce.levels[0].configured, produce.levels[0].limit) == (2.0 * MB, 1.0 * MB)
    assert (consume.levels[0].limit, consume.traffic) == (9.0 * MB, "fetch")
    assert found.storage == f"THROTTLE, every produce limit x 0.5: {why}"


def test_a_pause_comes_before_everything_and_leaves_limits_as_they_are() -> None:
    found = explain(ASKED, known(rates=rates(over=True), storage=Factor(0.0, "fallback", "no view")))
    assert found.first is not None
    assert (found.first.name, found.first.action, found.first.limits_now) == ("storage-pause", "hold", True)
    assert [level.limit for level in rule(found, "topic-threshold").levels] == [12.0 * MB / 2, 12.0 * MB]
    assert found.summary.startswith("storage-pause limits this traffic now: storage factor 0")


def test_a_soft_limit_without_a_total_has_no_effect() -> None:
    found = explain(ASKED, known({}, storage=Factor(0.5, why="x")))
    assert named(found) == [("fence", None)]
    assert whys(found, "storage factor") == [
        "there is no total.bytes.in.per.sec.threshold that the factor 0.5 could lower"
    ]


def test_storage_that_is_only_observed_lowers_nothing_and_is_never_first() -> None:
    observed = Factor(0.5, why="x")
    found = explain(ASKED, known(rates=rates(5.0 * MB, 11.0 * MB), storage=observed, storage_mode="observe"))
    shared = rule(found, "storage-throttle")
    assert (shared.mode, shared.levels[0].limit, shared.limits_now, shared.first) == ("observe", 6.0 * MB, True, False)
    assert rule(found, "topic-threshold").levels[1].limit == 12.0 * MB
    assert found.first is not None
    assert found.first.name == "topic-threshold"


@pytest.mark.parametrize(
    ("storage", "mode", "text"),
    [
        (None, "enforce", "storage protection is off: full disks change no limit"),
        (Factor(1.0), "enforce", "OPEN: every limit holds as it is configured"),
        (
            Factor(1.0, "fallback", "no answer"),
            "enforce",
            "OPEN (fallback): every limit holds as it is configured: no answer",
        ),
        (Factor(0.0, "fail-safe", "x"), "enforce", "PAUSE (fail-safe), factor 0: nothing is forwarded: x"),
        (
            Factor(0.25, why="x"),
            "observe",
            "THROTTLE, every produce limit x 0.25, mode observe: limits stay as they are, it is only counted: x",
        ),
    ],
)
def test_what_the_factor_does_is_one_line(storage: Factor | None, mode: Mode, text: str) -> None:
    assert storage_effect(known(storage=storage, storage_mode=mode)) == text


# --- client quotas ----------------------------------------------------------------------------------------------------


def test_the_most_specific_quota_holds_and_the_others_are_shadowed() -> None:
    base = {quota(ALICE, BPS): 2.0 * MB, quota(ANYBODY, BPS): 1.0 * MB, quota(APP, BPS): 3.0 * MB}
    found = explain(ASKED, known(base, rates=rates(quotas=[line(APP, BPS, 2.4 * MB, 3.0 * MB)])))
    only = rule(found, "client-quota")
    assert (only.levels[0].rate, only.utilization, only.limits_now, only.broker) == (2.4 * MB, 0.8, False, None)
    assert only.text == "producer_byte_rate:bps=3000000 {user=alice, client-id=app}: 2.4 MB/s of 3.0 MB/s (80%)"
    assert [(each.what, each.value) for each in found.shadowed] == [
        ("producer_byte_rate:bps of {user=alice}", "producer_byte_rate:bps=2000000"),
        ("producer_byte_rate:bps of {user=<default>}", "producer_byte_rate:bps=1000000"),
    ]
    assert "{user=alice, client-id=app} is more specific" in found.shadowed[0].why


def test_a_quota_per_broker_has_a_rule_for_each() -> None:
    two = known({quota(ALICE, BROKER_BPS): 2.0 * MB}, leads={1: ("clicks",), 2: ("clicks",)})
    used = rates(quotas=[line(ALICE, BROKER_BPS, 2.5 * MB, 2.0 * MB, 2)])
    found = explain(ASKED, two._replace(rates=used))
    assert named(found)[:2] == [("client-quota", 1), ("client-quota", 2)]
    assert [each.levels[0].rate for each in found.rules[:2]] == [0.0, 2.5 * MB]
    assert [each.limits_now for each in found.rules[:2]] == [False, True]
    assert found.first is found.rules[1]
    assert found.summary.startswith("client-quota on broker 2 limits this traffic now")


def test_a_quota_on_time_is_in_percent() -> None:
    found = explain(ASKED, known({quota(ALICE, TIME): 50.0}, rates=rates(quotas=[line(ALICE, TIME, 0.25, 0.5, 1)])))
    only = rule(found, "client-quota")
    level = only.levels[0]
    assert (level.unit, level.limit, level.rate, only.utilization) == ("%", 50.0, 25.0, 0.5)
    assert (only.traffic, only.headroom) == ("both", None)
    assert "25 % of 50 % (50%); of one thread's time" in only.text
    assert found.first is only  # no other can be compared


def test_shares_are_what_was_dealt_out_last() -> None:
    base = {TOTAL: 12.0 * MB, quota(ALICE, SHARES): 3.0}
    found = explain(ASKED, known(base, rates=rates(quotas=[line(ALICE, SHARES, 1.0 * MB, 4.0 * MB, 1)])))
    level = rule(found, "client-quota").levels[0]
    assert (level.configured, level.limit, level.utilization) == (None, 4.0 * MB, 0.25)
    for undealt in (rates(quotas=[line(ALICE, SHARES, 0.0, UNDEALT, 1)]), rates()):
        assert rule(explain(ASKED, known(base, rates=undealt)), "client-quota").levels[0].limit is None


def test_shares_of_nothing_have_no_effect() -> None:
    found = explain(ASKED, known({quota(ALICE, SHARES): 3.0}))
    assert named(found) == [("fence", None)]
    assert whys(found, "shares") == ["there is no total.bytes.in.per.sec.threshold on broker 1 to have a share of"]


def test_a_quota_for_the_default_is_found_by_the_actual_names() -> None:
    shared = Entity(DEFAULT, DEFAULT)
    said = [line(shared, BPS, 0.5 * MB, 1.0 * MB)]
    found = explain(ASKED, known({quota(shared, BPS): 1.0 * MB}, rates=rates(quotas=said)))
    assert rule(found, "client-quota").utilization == 0.5
    nobody = explain(Asked("clicks"), known({quota(Entity(None, DEFAULT), BPS): 1.0 * MB}, rates=rates()))
    assert rule(nobody, "client-quota").utilization == 0.0


@pytest.mark.parametrize("client_id", ["app", ""])
def test_rates_of_the_lines_that_really_are_are_found(client_id: str) -> None:
    base = {
        TOTAL: 12.0 * MB, quota(Entity(DEFAULT), BPS): 1.0 * MB, quota(Entity("alice", DEFAULT), TIME): 10.0,
        quota(Entity(None, DEFAULT), BROKER_BPS): 3.0 * MB,
    }  # fmt: skip
    policies = PolicySet(base)
    lines = QuotaLines()
    lines.set_store(policies.quotas(), 0.0)
    kept = lines.of(1, "alice", client_id, 0.0)
    for each in (*kept.produce, *kept.request):
        each.take(1, 0.0)
    lines.tick(1, TICK_S)
    said = lines.rates(9)
    found = explain(Asked("clicks", "alice", client_id), known(policies=policies, rates=rates(quotas=said)))
    levels = [each.levels[0] for each in found.rules if each.name == "client-quota"]
    assert len(levels) == len(said)
    assert all(level.rate for level in levels)


# --- who is not limited, and other rules ------------------------------------------------------------------------------


def test_internal_traffic_is_never_limited_but_for_the_gateways_own_topics() -> None:
    base = {TOTAL: 12.0 * MB, quota(ALICE, BPS): 1.0}
    found = explain(ASKED, known(base, internal_principals=("User:alice",), rates=rates(over=True)))
    assert (found.rules, found.internal) == ((), "User:alice is an internal principal: metered, never limited")
    assert {each.name for each in found.shadowed} == {"client-quota", "topic-threshold", "fence"}
    assert {each.why for each in found.shadowed} == {found.internal}
    assert found.summary == found.internal
    by_id = explain(ASKED, known(base, internal_client_ids=("app",), protected_topics=("clicks",)))
    assert named(by_id) == [("protected-topic", None)]
    assert by_id.internal.startswith("'app' is an internal client id")


def test_the_gateways_own_topics_refuse_before_all_else() -> None:
    everything = known(protected_topics=("clicks",), storage=Factor(0.0, why="x"), rates=rates(over=True))
    found = explain(ASKED, everything)
    assert found.first is found.rules[0]
    assert (found.first.name, found.first.action) == ("protected-topic", "refuse")


def test_policies_of_the_operators_own_are_named() -> None:
    found = explain(ASKED, known(plugins=("mine.limits:make",)))
    assert "mine.limits:make is asked about every partition" in rule(found, "plugin").text


def test_observing_everything_enforces_nothing() -> None:
    found = explain(ASKED, known(observe=True, rates=rates(over=True)))
    assert {each.mode for each in found.rules} == {"observe"}
    assert found.first is None
    assert "mode observe: nothing is enforced, all of it is only counted" in found.notes
    assert explain(ASKED, known(threshold_mode="observe")).first is None
    base = {quota(ALICE, BPS): 1.0}
    assert explain(ASKED, known(base, quota_mode="observe")).first is None


# --- which is first ---------------------------------------------------------------------------------------------------


def test_first_is_what_leaves_the_fewest_bytes_not_what_is_used_most() -> None:
    base = {TOTAL: 100.0 * MB, quota(ALICE, BPS): 1.0 * MB}
    busy = rates(90.0 * MB, 95.0 * MB, quotas=[line(ALICE, BPS, 0.8 * MB, 1.0 * MB)])
    found = explain(ASKED, known(base, rates=busy))
    assert found.first is not None
    assert found.first.name == "client-quota"  # 0.2 MB/s to go; 5 MB/s of the total


def test_a_rejection_comes_before_a_delay_and_then_what_is_exceeded_most() -> None:
    base = {TOTAL: 12.0 * MB, quota(ALICE, BPS): 1.0 * MB, quota(ALICE, BROKER_BPS): 1.0 * MB}
    lines = [line(ALICE, BPS, 1.5 * MB, 1.0 * MB), line(ALICE, BROKER_BPS, 2.0 * MB, 1.0 * MB, 1)]
    delayed = explain(ASKED, known(base, rates=rates(quotas=lines)))
    assert delayed.first is not None
    assert delayed.first.broker == 1
    rejected = explain(ASKED, known(base, rates=rates(over=True, quotas=lines)))
    assert rejected.first is not None
    assert rejected.first.name == "topic-threshold"


def test_what_only_fetches_meet_is_never_first() -> None:
    base = {quota(ALICE, CONSUME): 1.0, TOTAL: 12.0 * MB}
    found = explain(ASKED, known(base, rates=rates(quotas=[line(ALICE, CONSUME, 5.0, 1.0)])))
    assert found.first is not None
    assert found.first.name == "topic-threshold"


def test_who_is_throttled_on_fetch_is_told_so_first() -> None:
    lines = [line(ALICE, CONSUME, 5.0, 1.0)]
    both = explain(ASKED, known({quota(ALICE, CONSUME): 1.0, TOTAL: 12.0 * MB}, rates=rates(quotas=lines)))
    assert both.summary.startswith("client-quota limits this client's Fetch requests now: consumer_byte_rate:bps=1")
    assert "; of what it produces: nothing limits this traffic now; topic-threshold on broker 1 would" in both.summary
    only = explain(ASKED, known({quota(ALICE, CONSUME): 1.0}, rates=rates(quotas=lines)))
    assert only.summary.endswith("; nothing limits what it produces")
    observed = explain(ASKED, known({quota(ALICE, CONSUME): 1.0}, rates=rates(quotas=lines), quota_mode="observe"))
    assert "Fetch" not in observed.summary


def test_a_quota_that_is_not_among_those_that_are_told_has_no_rate() -> None:
    base = {quota(ALICE, BPS): 5.0 * MB}
    told = rates(quotas=[line(Entity("bob"), BPS, 5.0, 1.0)])
    assert rule(explain(ASKED, known(base, rates=told)), "client-quota").levels[0].rate == 0.0
    found = explain(ASKED, known(base, rates=told._replace(partial=True)))
    assert rule(found, "client-quota").levels[0].rate is None
    assert "nothing known of its rate" in rule(found, "client-quota").text
    assert any("busiest client quotas only" in note for note in found.notes)
    own = rates(quotas=[line(ALICE, BPS, 3.0, 5.0)])._replace(partial=True)
    assert rule(explain(ASKED, known(base, rates=own)), "client-quota").levels[0].rate == 3.0


def test_the_factor_is_part_of_what_is_in_force_for_bytes_that_are_produced() -> None:
    base = {quota(ALICE, key): 50.0 for key in (BPS, BROKER_BPS, SHARES, TIME, CONSUME)} | {TOTAL: 12.0 * MB}
    modes: tuple[tuple[Factor | None, Mode, float], ...] = (
        (None, "enforce", 50.0), (Factor(0.5), "enforce", 25.0), (Factor(0.0), "enforce", 0.0),
        (Factor(1.0), "enforce", 50.0), (Factor(0.5), "observe", 50.0),
    )  # fmt: skip
    for storage, mode, produce in modes:
        state = known(base, storage=storage, storage_mode=mode)
        found = {each.key: in_force(state, each) for each in state.policies.quotas().effective(ALICE)}
        assert found == {BPS: produce, BROKER_BPS: produce, SHARES: 50.0, TIME: 50.0, CONSUME: 50.0}


def test_exactly_one_rule_is_first() -> None:
    same = known({quota(ALICE, BPS): 1.0, quota(ALICE, BROKER_BPS): 1.0}, rates=rates())
    assert sum(each.first for each in explain(ASKED, same).rules) == 1


# --- what was held ----------------------------------------------------------------------------------------------------


def test_the_last_rejections_come_newest_first_and_bounded() -> None:
    many = [held(ago_ms=1000 * n) for n in range(MAX_HELD + 5)]
    found = explain(ASKED, known(), reversed(many))
    assert found.held == tuple(many[:MAX_HELD])


def test_texts_need_no_numbers() -> None:
    assert Level("x", "", None, None, 5.0).text == "5.0 B/s, no limit"
    assert Rule("fence", None, (), "reject", "produce", "enforce", False, "why").text == "why"


# --- topics -----------------------------------------------------------------------------------------------------------


def test_every_topic_that_anybody_knows_is_listed_once() -> None:
    base = {TOTAL: 12.0 * MB, PolicyKey.of_topic("later"): 2.0 * MB}
    flow = Flow(5.0, 1.0, 2.0, 0.0)
    lines = topics(known(base, rates=rates(topic="seen", over=True)), {"clicks": flow, "flow": Flow()})
    assert [each.topic for each in lines] == ["clicks", "flow", "later", "seen", "views"]
    clicks, bare, later, seen, views = lines
    assert (clicks.kind, clicks.origin, clicks.threshold, clicks.flow) == ("implicit", "computed", 10.0 * MB / 3, flow)
    assert (bare.kind, bare.on, bare.brokers) == ("none", None, ())
    assert (later.kind, later.origin, later.threshold, later.on) == ("explicit", "file", 2.0 * MB, None)
    assert (seen.brokers, seen.over, seen.rate) == ((1,), True, 1.0 * MB)
    assert views.brokers == (1, 2)


def test_the_broker_where_a_topic_uses_most_speaks_for_it() -> None:
    two = Rates(
        [
            BrokerRate(1, 0.0, 0.0, 0.0, None, [TopicRate("t", 1.0, 10.0, False)]),
            BrokerRate(2, 0.0, 0.0, 0.0, None, [TopicRate("t", 3.0, 10.0, False)]),
        ]
    )
    (only,) = topics(Known(rates=two), {})
    assert (only.on, only.rate, only.utilization, only.brokers) == (2, 4.0, 0.3, (1, 2))


def test_top_is_sorted_by_what_is_asked_for() -> None:
    said = Rates(
        [
            BrokerRate(
                1, 0.0, 0.0, 0.0, None,
                [TopicRate("a", 9.0, 100.0, False), TopicRate("b", 5.0, 6.0, False), TopicRate("c", 7.0, None, False)],
            )
        ]
    )  # fmt: skip
    lines = topics(Known(rates=said), {"c": Flow(rejected=3.0), "b": Flow(rejected=1.0)})
    assert [each.topic for each in top(lines, "rate")] == ["a", "c", "b"]
    assert [each.topic for each in top(lines, "rejected")] == ["c", "b", "a"]
    assert [each.topic for each in top(lines, "utilization")] == ["b", "a", "c"]
