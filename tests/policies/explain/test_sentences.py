# What explanations say of the whole: the summary, the storage factor, and notes.

from __future__ import annotations

import pytest

from policies.decision import Mode
from policies.definitions.policy_values import PolicyKey
from policies.definitions.rollout import PolicyRollout, rollout_place
from policies.explain import (
    HeldTraffic,
    explain_traffic,
    storage_effect_text,
)
from policies.storage import StorageFactor
from tests.policies.explain.explain_play import (
    ALICE,
    ASKED,
    BPS,
    CLICKS,
    CONSUME,
    MB,
    NOW_MS,
    TOTAL,
    known,
    line,
    quota,
    rates,
)


def test_a_broker_whose_topics_have_more_than_its_total_is_noted_where_it_is_asked_about() -> None:
    base = {TOTAL: 12.0 * MB, CLICKS: 8.0 * MB, PolicyKey.of_topic("views"): 5.0 * MB}
    leads = {1: ("clicks",), 2: ("clicks", "views")}
    (note,) = (
        note for note in explain_traffic(ASKED, known(base, led_topics=leads, rates=rates())).notes if "exceeds" in note
    )
    assert note.startswith("broker 2: its topics' ")
    one = explain_traffic(ASKED._replace(broker=1), known(base, led_topics=leads, rates=rates()))
    assert not any("exceeds" in note for note in one.notes)


@pytest.mark.parametrize(
    ("storage", "mode", "text"),
    [
        (None, "enforce", "storage protection is off: full disks change no limit"),
        (StorageFactor(1.0), "enforce", "OPEN: every limit holds as it is configured"),
        (
            StorageFactor(1.0, "fallback", "no answer"),
            "enforce",
            "OPEN (fallback): every limit holds as it is configured: no answer",
        ),
        (StorageFactor(0.0, "fail-safe", "x"), "enforce", "PAUSE (fail-safe), factor 0: nothing is forwarded: x"),
        (
            StorageFactor(0.25, why="x"),
            "observe",
            "THROTTLE, factor 0.25, mode observe: limits stay as they are, it is only counted: x",
        ),
        (
            StorageFactor(0.0, why="x"),
            "observe",
            "PAUSE, factor 0, mode observe: limits stay as they are, it is only counted: x",
        ),
    ],
)
def test_the_effect_of_the_factor_is_one_line(storage: StorageFactor | None, mode: Mode, text: str) -> None:
    assert storage_effect_text(known(storage=storage, storage_mode=mode)) == text


def test_observing_everything_enforces_nothing() -> None:
    found = explain_traffic(ASKED, known(observe=True, rates=rates(over=True)))
    assert {each.mode for each in found.rules} == {"observe"}
    assert not any(rule.first for rule in found.rules)
    assert "mode observe: nothing is enforced, all of it is only counted" in found.notes
    assert not any(rule.first for rule in explain_traffic(ASKED, known(threshold_mode="observe")).rules)
    base = {quota(ALICE, BPS): 1.0}
    assert not any(rule.first for rule in explain_traffic(ASKED, known(base, quota_mode="observe")).rules)


def test_a_policy_that_is_enforced_for_a_part_of_the_clients_says_whether_this_is_one_of_them() -> None:
    at = rollout_place(ASKED.principal, ASKED.client_id)
    base = {TOTAL: 12.0 * MB, quota(ALICE, BPS): 1.0}
    some = known(base, rollout=PolicyRollout(quota=at + 1, threshold=at - 1), rates=rates(over=True))
    found = explain_traffic(ASKED, some)
    assert {each.name: each.mode for each in found.rules if each.levels} == {
        "client-quota": "enforce", "topic-threshold": "observe",
    }  # fmt: skip
    assert [note for note in found.notes if "% of the clients" in note] == [
        f"thresholds are enforced for {at - 1:g} % of the clients: this one, at {at:.2f} of 100, is not among them",
        f"client quotas are enforced for {at + 1:g} % of the clients: this one, at {at:.2f} of 100, is among them",
    ]
    assert not any("clients" in note for note in explain_traffic(ASKED, known(base)).notes)
    everything = some._replace(observe=True)
    assert not any("% of the clients" in note for note in explain_traffic(ASKED, everything).notes)


def test_one_sentence_says_what_is_done_by_what_set_where_and_how_long_it_takes() -> None:
    base, lines = {quota(ALICE, BPS): 2.0 * MB}, [line(ALICE, BPS, 2.5 * MB, 2.0 * MB)]
    waited = HeldTraffic(
        "clicks", "User:alice", "app", 1, "delayed", "client-quota", 0, NOW_MS - 3000, 10**6, 4, 6000, 0
    )
    busy = known(base, rates=rates(quotas=lines))
    assert explain_traffic(ASKED, busy, [waited]).summary == (
        "delayed now by client-quota: producer_byte_rate:bps=2000000 {user=alice}: 2.5 MB/s of 2.0 MB/s (125%);"
        " limit from file; 4 requests were delayed by 1.5 s each lately, the latest 3 s ago"
    )
    both = [waited, waited._replace(outcome="rejected", requests=1, last_ms=NOW_MS - 9000)]
    assert explain_traffic(ASKED, busy, both).summary.endswith(
        "4 requests were delayed by 1.5 s each and 1 request was rejected lately, the latest 3 s ago"
    )
    lost = waited._replace(outcome="dropped", reason="acks0-limit", delay_ms=0)
    assert explain_traffic(ASKED, busy, [lost]).summary.endswith(
        "limit from file; 4 requests were dropped lately, the latest 3 s ago"
    )
    assert explain_traffic(ASKED, busy).summary.endswith("(125%); limit from file")
    idle = known(base, rates=rates())
    assert explain_traffic(ASKED, idle, [waited._replace(last_ms=NOW_MS - 45_000)]).summary.startswith(
        "nothing limits this traffic now; client-quota delayed some of it 45 s ago; client-quota would be first"
    )
    observed = explain_traffic(ASKED, idle, [waited._replace(outcome="would_delay")]).summary
    assert "ago" not in observed
    gone = explain_traffic(ASKED, known({}), [waited._replace(requests=1)]).summary
    assert gone == "nothing limits this traffic; client-quota delayed some of it 3 s ago"


def test_a_client_throttled_on_fetch_is_told_so_first() -> None:
    lines = [line(ALICE, CONSUME, 5.0, 1.0)]
    both = explain_traffic(ASKED, known({quota(ALICE, CONSUME): 1.0, TOTAL: 12.0 * MB}, rates=rates(quotas=lines)))
    assert both.summary.startswith("client-quota limits this client's Fetch requests now: consumer_byte_rate:bps=1")
    assert "; of what it produces: nothing limits this traffic now; topic-threshold on broker 1 would" in both.summary
    only = explain_traffic(ASKED, known({quota(ALICE, CONSUME): 1.0}, rates=rates(quotas=lines)))
    assert only.summary.endswith("; nothing limits what it produces")
    observed = explain_traffic(
        ASKED, known({quota(ALICE, CONSUME): 1.0}, rates=rates(quotas=lines), quota_mode="observe")
    )
    assert "Fetch" not in observed.summary
