# What is remembered of intervals: for how long, of how many, and as which rates.

from __future__ import annotations

import pytest

from gateway.channel import UsageInterval, UsageRow
from gateway.control.usage.recent import FLOW_SLOTS, LATE_MS, OTHER, SLOT_MS, RecentTraffic
from policies.explain import RECENT_MS, HeldTraffic, TopicFlow

T0 = 1_700_000_000_000  # a whole slot
SECONDS = FLOW_SLOTS * SLOT_MS / 1000


def row(
    outcome: str,
    size: int = 100,
    topic: str = "t",
    principal: str = "User:a",
    client_id: str = "c",
    broker: int = 1,
    reason: str = "",
    delay_ms: int = 0,
) -> UsageRow:
    return UsageRow(broker, topic, principal, client_id, outcome, reason, size, 1, 1, delay_ms)


def add(recent: RecentTraffic, at_ms: int, *rows: UsageRow, now_ms: int | None = None) -> None:
    recent.add_interval(
        UsageInterval("boot", 0, 1, at_ms, at_ms + 1000, rows), at_ms + 1000 if now_ms is None else now_ms
    )


def test_traffic_held_back_is_summed_by_client_broker_outcome_and_reason() -> None:
    recent = RecentTraffic()
    held = row("rejected", reason="topic-threshold", delay_ms=500)
    add(recent, T0, held, held, row("accepted"), row("errored", reason="X"))
    add(recent, T0 + 60_000, held, row("delayed", reason="client-quota"), row("would_reject", reason="topic-threshold"))
    add(recent, T0 + 90_000, row("dropped", reason="acks0-limit", broker=2), row("rejected", topic="other-topic"))
    found = recent.find_held(T0 + 91_000, "t")
    assert [(each.outcome, each.broker) for each in found[:1]] == [("dropped", 2)]
    assert found[0].last_ms == T0 + 91_000
    assert {each.outcome for each in found} == {"dropped", "rejected", "delayed", "would_reject"}
    assert next(each for each in found if each.outcome == "rejected") == HeldTraffic(
        "t", "User:a", "c", 1, "rejected", "topic-threshold", T0, T0 + 61_000, 300, 3, 1500, T0 + 60_000
    )


def test_traffic_that_is_asked_for_is_found_and_no_other() -> None:
    recent = RecentTraffic()
    add(recent, T0, *(row("rejected", principal=p, client_id=c, broker=b) for p in "xy" for c in "12" for b in (1, 2)))
    assert len(recent.find_held(T0, "t")) == 8
    assert len(recent.find_held(T0, "t", "x")) == 4
    assert len(recent.find_held(T0, "t", None, "1", 2)) == 2
    (only,) = recent.find_held(T0, "t", "y", "2", 1)
    assert (only.principal, only.client_id, only.broker) == ("y", "2", 1)
    assert recent.find_held(T0, "u") == []
    assert recent.find_held(T0, "t", "") == []


def test_it_is_forgotten_after_the_minutes() -> None:
    recent = RecentTraffic(minutes=1)
    add(recent, T0, row("rejected"))
    assert len(recent.find_held(T0 + 60_000 - 1, "t")) == 1
    assert recent.find_held(T0 + 60_000, "t") == []
    assert recent.size == 0


def test_since_when_is_kept_as_long_as_there_is_no_pause_though_the_sums_are_forgotten() -> None:
    recent = RecentTraffic(minutes=1)
    for at_ms in range(T0, T0 + 300_000, 30_000):
        add(recent, at_ms, row("delayed"))
    (only,) = recent.find_held(T0 + 280_000, "t")
    assert only.since_ms == T0 < only.first_ms
    assert [held.since_ms for _, held in recent.client_flows(T0 + 280_000).values() if held] == [T0]
    again = T0 + 271_000 + RECENT_MS + 1
    add(recent, again, row("delayed"))
    assert recent.find_held(again + 1000, "t")[0].since_ms == again
    add(recent, again + 120_000, row("delayed"))  # the sums are gone
    assert recent.find_held(again + 121_000, "t")[0].since_ms == again + 120_000


def test_late_intervals_find_their_place_and_impossible_ones_none() -> None:
    recent = RecentTraffic(minutes=1)
    now = T0 + 30_000
    add(recent, now, row("rejected"))
    add(recent, T0, row("rejected"), now_ms=now)  # from before a restart of control
    add(recent, T0 - 60_000, row("rejected"), now_ms=now)
    add(recent, now + 60_000, row("rejected"), now_ms=now)
    (only,) = recent.find_held(now, "t")
    assert (only.bytes, only.first_ms) == (200, T0)
    assert recent.find_held(T0 + 61_000, "t")[0].bytes == 100


def test_an_interval_of_minutes_is_spread_over_its_slots() -> None:
    """As of a worker whose spool had no room: neither all in the slot in which it began, nor forgotten with that."""
    recent, began, now = RecentTraffic(minutes=1), T0 - 90_000, T0 + 30_000
    rows = row("delayed", 120_000, reason="client-quota"), row("accepted", 120_000)
    recent.add_interval(UsageInterval("boot", 0, 1, began, now, rows), now)
    assert recent.topic_flows(now + LATE_MS) == {"t": TopicFlow(accepted=1000.0, delayed=1000.0)}
    assert recent.client_flows(now + LATE_MS)["User:a", "c"][0] == TopicFlow(accepted=1000.0, delayed=1000.0)
    assert recent.writer_rates(now + LATE_MS) == {("t", "User:a"): 1000.0}
    (held,) = recent.find_held(now, "t")
    assert (held.first_ms, held.last_ms, held.since_ms, held.bytes) == (began, now, began, 120_000)
    assert recent.find_held(now + 54_000, "t") == [held]
    assert recent.find_held(now + 61_000, "t") == []


def test_beyond_the_caps_every_name_is_other() -> None:
    recent = RecentTraffic(minutes=1, max_held=3, max_topics=2)
    add(recent, T0, *(row("rejected", topic=f"t{n}", principal=f"p{n}") for n in range(10)))
    assert recent.size == 4
    assert [each.bytes for each in recent.find_held(T0, OTHER)] == [700]
    flows = recent.topic_flows(T0 + FLOW_SLOTS * SLOT_MS + LATE_MS)
    assert set(flows) == {"t0", "t1", OTHER}
    assert sum(flow.rejected for flow in flows.values()) * SECONDS == pytest.approx(1000)
    add(recent, T0 + 120_000, *(row("rejected", topic=f"t{n}") for n in range(3)))
    assert recent.size == 3  # there is room again


def test_a_flood_of_names_takes_bounded_memory() -> None:
    recent = RecentTraffic(minutes=2, max_held=1000, max_topics=100)
    for second in range(240):
        at = T0 + 1000 * second
        add(recent, at, *(row("rejected", topic=f"{second}-{n}", client_id=str(n)) for n in range(100)))
        assert recent.size <= 1000 + 120 // 5 + 1


def test_rates_are_means_of_the_last_whole_slots() -> None:
    recent = RecentTraffic()
    for second in range(30):
        rows = (
            row("accepted", 300), row("unacknowledged", 30), row("rejected", 200), row("dropped", 20),
            row("delayed", 100), row("would_delay", 7), row("would_reject", 3), row("errored", 1), row("duplicate", 1),
        )  # fmt: skip
        add(recent, T0 + 1000 * second, *rows)
    assert recent.topic_flows(T0 + 30_000) == {"t": TopicFlow(330.0, 220.0, 100.0, 10.0)}
    after = T0 + 30_000 + FLOW_SLOTS * SLOT_MS + LATE_MS
    assert recent.topic_flows(after) == {}
    one_left = recent.topic_flows(after - SLOT_MS)
    assert one_left["t"].accepted == pytest.approx(330 / FLOW_SLOTS)


def test_right_after_the_start_rates_are_of_the_time_that_has_passed() -> None:
    recent = RecentTraffic()
    for second in range(8):
        add(recent, T0 + 1000 * second, row("accepted", 100))
    assert recent.topic_flows(T0 + SLOT_MS + LATE_MS)["t"].accepted == 100.0
    assert RecentTraffic().topic_flows(T0) == {}


def test_a_slot_counts_when_its_last_interval_has_had_time_to_come() -> None:
    recent = RecentTraffic()
    for second in range(25):
        add(recent, T0 + 1000 * second, row("accepted", 100))
    add(recent, T0 + 25_000, row("accepted", 1500))
    assert recent.topic_flows(T0 + 30_000 + LATE_MS - 1)["t"].accepted == 100.0
    assert recent.topic_flows(T0 + 30_000 + LATE_MS)["t"].accepted == pytest.approx((1000 + 1500) / SECONDS)


def test_clients_have_rates_and_what_was_held_back_of_them_last() -> None:
    recent = RecentTraffic()
    recent.add_interval(UsageInterval("boot", 0, 1, T0, T0 + 1000, ()), T0)
    add(recent, T0 + SLOT_MS, row("accepted", 300), row("rejected", 100, reason="early"), row("accepted", 5, "u", "z"))
    add(recent, T0 + 2 * SLOT_MS, row("accepted", 300), row("rejected", 100, reason="late"))
    add(recent, T0 + 3 * SLOT_MS, row("rejected", 50, reason="late"), row("delayed", 1, principal="idle", reason="q"))
    now_ms = T0 + 4 * SLOT_MS + LATE_MS
    found = recent.client_flows(now_ms)
    assert set(found) == {("User:a", "c"), ("z", "c"), ("idle", "c")}
    flow, held = found["User:a", "c"]
    assert flow == TopicFlow(600 / SECONDS, 250 / SECONDS, 0.0, 0.0)
    first, last = T0 + 2 * SLOT_MS, T0 + 3 * SLOT_MS + 1000
    assert held == HeldTraffic("t", "User:a", "c", 1, "rejected", "late", first, last, 150, 2, 0, first)
    assert found["z", "c"] == (TopicFlow(5 / SECONDS, 0.0, 0.0, 0.0), None)
    later = recent.client_flows(now_ms + 60_000)
    assert set(later) == {("User:a", "c"), ("idle", "c")}  # for as long as it is known why
    assert later["User:a", "c"][0] == TopicFlow()


def test_clients_beyond_the_bound_are_one() -> None:
    recent = RecentTraffic(max_clients=2)
    recent.add_interval(UsageInterval("boot", 0, 1, T0 - SLOT_MS, T0, ()), T0 - SLOT_MS)
    add(recent, T0, *(row("accepted", client_id=str(number)) for number in range(5)))
    found = recent.client_flows(T0 + SLOT_MS + LATE_MS)
    assert set(found) == {("User:a", "0"), ("User:a", "1"), (OTHER, OTHER)}
    assert found[OTHER, OTHER][0].accepted == pytest.approx(1.5 * found["User:a", "0"][0].accepted * 2)


def test_a_clock_that_is_set_back_leaves_nothing_of_the_future() -> None:
    """It would be what limits now, for as long as the clock was wrong."""
    recent = RecentTraffic()
    early = T0 - 3_600_000
    add(recent, early, row("rejected", reason="early"), row("rejected", reason="both"))
    add(recent, T0 - 3_540_000, row("rejected", reason="both"))
    for reason in ("both", "late"):
        add(recent, early + 300_000, row("rejected", reason=reason))
    now_ms = early + 61_000
    assert {each.reason for each in recent.find_held(now_ms)} == {"early", "both"}
    assert all(max(each.since_ms, each.last_ms) <= now_ms for each in recent.find_held(now_ms))
    add(recent, early + 65_000, row("rejected", reason="late"))
    (late,) = (each for each in recent.find_held(early + 66_000) if each.reason == "late")
    assert (late.since_ms, late.requests) == (early + 65_000, 1)
    assert recent.size == 4


def test_what_got_in_is_summed_by_topic_and_principal() -> None:
    recent = RecentTraffic(max_writers=2)
    add(recent, T0, row("accepted"), row("unacknowledged"), row("rejected"), row("accepted", principal="User:b"))
    add(recent, T0, row("accepted", 50, topic="u"), row("delayed", principal="User:b"))
    now = T0 + FLOW_SLOTS * SLOT_MS + LATE_MS
    assert recent.writer_rates(now) == {
        ("t", "User:a"): pytest.approx(200 / SECONDS),
        ("t", "User:b"): pytest.approx(100 / SECONDS),
        (OTHER, OTHER): pytest.approx(50 / SECONDS),
    }
    assert recent.writer_rates(now + 60_000) == {}
