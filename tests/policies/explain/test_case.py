# Which brokers an answer is about, where values are from, and what was held back lately.

from __future__ import annotations

import math

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyOperation
from policies.explain import (
    RECENT_MS,
    ExplainInputs,
    ExplainSubject,
    explain_traffic,
)
from policies.verdict import MAX_DELAY_MS
from tests.policies.explain.explain_play import (
    ASKED,
    CLICKS,
    MB,
    NOW_MS,
    TOTAL,
    held,
    known,
    named,
    rates,
    rule,
)


def test_a_threshold_limits_while_the_meter_says_so_or_did_lately() -> None:
    base = {TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}
    assert rule(explain_traffic(ASKED, known(base, rates=rates(over=True))), "topic-threshold").limits_now
    quiet = known(base, rates=rates())
    assert rule(explain_traffic(ASKED, quiet, [held()]), "topic-threshold").limits_now
    for not_now in (held(ago_ms=RECENT_MS + 1), held("fence"), held(broker=2), held(outcome="would_reject")):
        assert not rule(explain_traffic(ASKED, quiet, [not_now]), "topic-threshold").limits_now


def test_a_rule_says_since_when_it_limits_the_traffic() -> None:
    known_ = known({TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}, rates=rates(over=True))
    others = [held("fence", ago_ms=30_000), held(broker=2, ago_ms=30_000)]
    lately = [held(), held(outcome="delayed", ago_ms=20_000), *others]
    assert rule(explain_traffic(ASKED, known_, lately), "topic-threshold", 1).since_ms == NOW_MS - 20_000 - 90_000
    assert rule(explain_traffic(ASKED, known_), "topic-threshold", 1).since_ms is None  # it limits others
    calm = known({TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}, rates=rates())
    assert rule(explain_traffic(ASKED, calm, [held(ago_ms=RECENT_MS + 1)]), "topic-threshold", 1).since_ms is None


def test_a_question_without_client_names_those_to_ask_for() -> None:
    """Else 'nothing limits this traffic', whose client quota is at work."""
    quiet, lately = known(rates=rates()), [held("client-quota", outcome="delayed")]
    (note,) = explain_traffic(ASKED._replace(client_id=""), quiet, lately).notes
    assert note == (
        "the rules are those of User:alice '': also ask for User:alice 'app', of whom something was held back"
    )
    assert explain_traffic(ASKED, quiet, lately).notes == ()
    many = [each._replace(client_id=f"app-{number}") for number, each in enumerate(lately * 5)]
    (note,) = explain_traffic(ASKED._replace(user="ANONYMOUS"), quiet, many).notes
    assert "also ask for User:alice 'app-0', User:alice 'app-1', User:alice 'app-2' and 2 more, " in note


def test_what_was_held_back_before_control_began_is_not_known() -> None:
    base = {TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}
    for ago_ms, is_told in ((90_000, True), (400_000, False)):  # it goes on since 91 s ago
        at_work = known(base, rates=rates(over=True), counted_since_ms=NOW_MS - ago_ms)
        notes = explain_traffic(ASKED, at_work, [held()]).notes
        assert any("knows of nothing that was held back before" in note for note in notes) is is_told
    assert not explain_traffic(ASKED, at_work._replace(counted_since_ms=NOW_MS)).notes, "and nothing is now"


def test_a_limit_whose_client_waits_as_long_as_it_was_told_limits_now() -> None:
    known_ = known({TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}, rates=rates())
    for outcome in ("rejected", "delayed"):
        lately = held(outcome=outcome, ago_ms=MAX_DELAY_MS + 1000)  # and an interval until a worker has told
        assert rule(explain_traffic(ASKED, known_, [lately]), "topic-threshold").limits_now


def test_each_broker_that_leads_a_part_has_its_own_rule() -> None:
    both = known(led_topics={1: ("clicks",), 2: ("clicks", "views"), 3: ("views",)}, on_exceed="delay")
    found = explain_traffic(ASKED, both)
    assert named(found)[:2] == [("topic-threshold", 1), ("topic-threshold", 2)]
    assert found.brokers == (1, 2)
    assert {each.action for each in found.rules[:2]} == {"delay"}
    assert rule(found, "topic-threshold", 1).levels[0].limit == 12.0 * MB
    assert rule(found, "topic-threshold", 2).levels[0].limit == 6.0 * MB
    assert explain_traffic(ASKED._replace(broker=2), both).brokers == (2,)


def test_the_source_of_a_value_is_said_and_the_reach_of_a_change() -> None:
    policies = PolicySet({TOTAL: 12.0 * MB, CLICKS: 5.0 * MB}).alter_policies([PolicyOperation(CLICKS, 4.0 * MB)])
    found = explain_traffic(ASKED, known(policies=policies))
    assert [level.origin for level in rule(found, "topic-threshold").levels] == ["run time", "file"]
    (covered,) = [each for each in found.shadowed if each.why == "another value was set at run time"]
    assert (covered.value, covered.origin) == ("5,000,000 bytes/s", "file")
    sourced = known(policies=policies)._replace(base_origin=lambda key: f"source of {key.kind}")
    assert explain_traffic(ASKED, sourced).rules[0].levels[1].origin == "source of broker"


def test_a_topic_without_a_leader_is_explained_for_all_brokers() -> None:
    found = explain_traffic(ExplainSubject("new"), known())
    assert found.brokers == (1, 2)
    assert "the metadata has no topic new: the explanation assumes that every broker leads a part of it" in found.notes
    assert [level.limit for level in rule(found, "topic-threshold", 1).levels] == [4.0 * MB, 12.0 * MB]
    elsewhere = explain_traffic(ASKED._replace(broker=2), known())
    assert "broker 2 leads no partition of topic clicks: 1 does" in elsewhere.notes


def test_before_anything_is_known_there_are_limits_but_no_rates() -> None:
    found = explain_traffic(ASKED, ExplainInputs(PolicySet({TOTAL: 12.0 * MB})))
    threshold = rule(found, "topic-threshold")
    assert (threshold.broker, threshold.levels[0].rate) == (None, None)
    assert math.isnan(threshold.utilization)
    assert "nothing known of its rate" in threshold.text
    assert found.notes == ("no rates are known yet: the meters report every 5 seconds",)
