# What explanations say about storage protection, protected topics, and policies of the operator's own.

from __future__ import annotations

from policies.explain import (
    explain_traffic,
)
from policies.storage import AffectedTopics, StorageFactor
from tests.policies.explain.explain_play import (
    ALICE,
    ASKED,
    BPS,
    CLICKS,
    CONSUME,
    MB,
    NOW_MS,
    TOTAL,
    first_rule,
    held,
    known,
    named,
    quota,
    rates,
    rule,
    whys,
)


def test_a_factor_lowers_every_produce_limit_and_shares_the_total() -> None:
    base = {TOTAL: 12.0 * MB, CLICKS: 4.0 * MB, quota(ALICE, BPS): 2.0 * MB, quota(ALICE, CONSUME): 9.0 * MB}
    why = "broker 2 volume /a: 1.0 GB free"
    found = explain_traffic(ASKED, known(base, rates=rates(), storage=StorageFactor(0.5, why=why)))
    assert named(found)[0] == ("storage-throttle", 1)
    shared = rule(found, "storage-throttle")
    assert (shared.levels[0].configured, shared.levels[0].limit, shared.note) == (12.0 * MB, 6.0 * MB, why)
    assert [level.limit for level in rule(found, "topic-threshold").levels] == [2.0 * MB, 6.0 * MB]
    assert rule(found, "topic-threshold").action == "delay"  # whatever on_exceed says, as in the engine
    assert rule(explain_traffic(ASKED, known(base, rates=rates())), "topic-threshold").action == "reject"
    produce, consume = sorted((r for r in found.rules if r.name == "client-quota"), key=lambda r: r.traffic == "fetch")
    assert (produce.levels[0].configured, produce.levels[0].limit) == (2.0 * MB, 1.0 * MB)
    assert (consume.levels[0].limit, consume.traffic) == (9.0 * MB, "fetch")
    assert found.storage == f"THROTTLE, every produce limit x 0.5: {why}"


def test_a_pause_comes_before_everything_and_leaves_limits_as_they_are() -> None:
    found = explain_traffic(ASKED, known(rates=rates(over=True), storage=StorageFactor(0.0, "fallback", "no view")))
    assert (first_rule(found).name, first_rule(found).action, first_rule(found).limits_now) == (
        "storage-pause",
        "hold",
        True,
    )
    assert [level.limit for level in rule(found, "topic-threshold").levels] == [12.0 * MB / 2, 12.0 * MB]
    assert found.summary.startswith("held now by storage-pause: storage factor 0")


def test_a_soft_limit_without_a_total_has_no_effect() -> None:
    found = explain_traffic(ASKED, known({}, storage=StorageFactor(0.5, why="x")))
    assert named(found) == [("fence", None)]
    assert whys(found, "storage factor") == [
        "there is no total.bytes.in.per.sec.threshold that the factor 0.5 could lower"
    ]


def test_storage_that_is_only_observed_lowers_nothing_and_is_never_first() -> None:
    observed = StorageFactor(0.5, why="x")
    found = explain_traffic(ASKED, known(rates=rates(5.0 * MB, 11.0 * MB), storage=observed, storage_mode="observe"))
    shared = rule(found, "storage-throttle")
    assert (shared.mode, shared.levels[0].limit, shared.limits_now, shared.first) == ("observe", 6.0 * MB, True, False)
    assert rule(found, "topic-threshold").levels[1].limit == 12.0 * MB
    assert first_rule(found).name == "topic-threshold"


FULL = AffectedTopics("broker 3 /d", 0.0, "broker 3 volume /d: full", ("clicks",), (3,))


def test_a_full_volume_pauses_the_topics_on_it() -> None:
    worst = StorageFactor(0.0, why="broker 3 volume /d: full")
    found = explain_traffic(ASKED, known(rates=rates(), storage=worst, affected=[FULL]))
    assert (first_rule(found).name, first_rule(found).limits_now) == ("storage-pause", True)
    assert found.storage == "PAUSE of 1 topics with a replica on a full volume: broker 3 volume /d: full"


def test_topics_without_a_replica_on_a_full_volume_stay_as_they_are() -> None:
    base = {TOTAL: 12.0 * MB, quota(ALICE, BPS): 2.0 * MB}
    other = FULL._replace(topics=("views",))
    found = explain_traffic(ASKED, known(base, rates=rates(), storage=StorageFactor(0.5, why="x"), affected=[other]))
    assert all(not rule.name.startswith("storage") for rule in found.rules)
    assert [level.limit for level in rule(found, "client-quota").levels] == [2.0 * MB]
    assert whys(found, "storage factor") == ["no replica of the topic is on a volume at its limit"]


def test_a_volume_between_its_limits_slows_its_topics_down_and_lowers_no_quota() -> None:
    base = {TOTAL: 12.0 * MB, quota(ALICE, BPS): 2.0 * MB}
    half = FULL._replace(value=0.5)
    found = explain_traffic(ASKED, known(base, rates=rates(), storage=StorageFactor(0.1, why="x"), affected=[half]))
    (shared,) = rule(found, "storage-throttle").levels
    assert (shared.configured, shared.limit) == (12.0 * MB, 6.0 * MB)
    assert shared.what.startswith("producers to topics of broker 3 /d of broker 1 together")
    assert [level.limit for level in rule(found, "client-quota").levels] == [2.0 * MB]


def test_the_gateways_own_topics_refuse_before_all_else() -> None:
    everything = known(protected_topics=("clicks",), storage=StorageFactor(0.0, why="x"), rates=rates(over=True))
    found = explain_traffic(ASKED, everything)
    assert first_rule(found) is found.rules[0]
    assert (first_rule(found).name, first_rule(found).action) == ("protected-topic", "refuse")


def test_policies_of_the_operators_own_are_named() -> None:
    found = explain_traffic(ASKED, known(plugins=("mine.limits:make",)))
    assert "mine.limits:make is asked about every partition" in rule(found, "plugin").text
    assert not rule(found, "plugin").limits_now


def test_what_no_other_policy_says_is_a_word_of_the_operators_own() -> None:
    """A policy's reasons are a few words of its own, and never its name in the configuration."""
    lately = held("after-hours"), held(outcome="delayed", ago_ms=60_000)
    found = explain_traffic(ASKED, known(plugins=("mine.limits:make",)), lately)
    limit = rule(found, "plugin")
    assert (limit.first, limit.limits_now, limit.action, limit.since_ms) == (True, True, "reject", NOW_MS - 91_000)
    assert found.summary == (
        "rejected now by plugin: mine.limits:make is asked about every partition; only it knows its limits; now it says"
        " after-hours; 1 request was rejected lately, the latest 1 s ago"
    )
    both = explain_traffic(ASKED, known(plugins=("a:make", "b:make")), [held("slowly", outcome="delayed")])
    assert rule(both, "plugin").action == "delay"
    assert "a:make and b:make are asked about every partition; now it says slowly" in both.summary
