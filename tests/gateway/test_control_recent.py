# What is remembered of intervals: for how long, of how many, and as which rates.

from __future__ import annotations

import pytest

from gateway.channel import Interval, Row
from gateway.control.recent import FLOW_SLOTS, LATE_MS, OTHER, SLOT_MS, Recent
from policies.explain import Flow, Held

T0 = 1_700_000_000_000  # a whole slot
SECONDS = FLOW_SLOTS * SLOT_MS / 1000


def row(outcome, size=100, topic="t", principal="User:a", client_id="c", broker=1, reason="", delay_ms=0):
    return Row(broker, topic, principal, client_id, outcome, reason, size, 1, 1, delay_ms)


def add(recent, at_ms, *rows, now_ms=None):
    recent.add(Interval("boot", 0, 1, at_ms, at_ms + 1000, rows), at_ms + 1000 if now_ms is None else now_ms)


def test_what_was_held_back_is_summed_by_client_broker_outcome_and_reason():
    recent = Recent()
    held = row("rejected", reason="topic-threshold", delay_ms=500)
    add(recent, T0, held, held, row("accepted"), row("errored", reason="X"))
    add(recent, T0 + 60_000, held, row("delayed", reason="client-quota"), row("would_reject", reason="topic-threshold"))
    add(recent, T0 + 90_000, row("dropped", reason="acks0-limit", broker=2), row("rejected", topic="other-topic"))
    found = recent.held(T0 + 91_000, "t")
    assert [(each.outcome, each.broker) for each in found[:1]] == [("dropped", 2)]
    assert found[0].last_ms == T0 + 91_000
    assert {each.outcome for each in found} == {"dropped", "rejected", "delayed", "would_reject"}
    assert next(each for each in found if each.outcome == "rejected") == Held(
        "t", "User:a", "c", 1, "rejected", "topic-threshold", T0, T0 + 61_000, 300, 3, 1500
    )


def test_what_is_asked_for_is_found_and_nothing_else():
    recent = Recent()
    add(recent, T0, *(row("rejected", principal=p, client_id=c, broker=b) for p in "xy" for c in "12" for b in (1, 2)))
    assert len(recent.held(T0, "t")) == 8
    assert len(recent.held(T0, "t", "x")) == 4
    assert len(recent.held(T0, "t", None, "1", 2)) == 2
    (only,) = recent.held(T0, "t", "y", "2", 1)
    assert (only.principal, only.client_id, only.broker) == ("y", "2", 1)
    assert recent.held(T0, "u") == []
    assert recent.held(T0, "t", "") == []


def test_it_is_forgotten_after_the_minutes():
    recent = Recent(minutes=1)
    add(recent, T0, row("rejected"))
    assert len(recent.held(T0 + 60_000 - 1, "t")) == 1
    assert recent.held(T0 + 60_000, "t") == []
    assert recent.size == 0


def test_late_intervals_find_their_place_and_impossible_ones_none():
    recent = Recent(minutes=1)
    now = T0 + 30_000
    add(recent, now, row("rejected"))
    add(recent, T0, row("rejected"), now_ms=now)  # from before a restart of control
    add(recent, T0 - 60_000, row("rejected"), now_ms=now)
    add(recent, now + 60_000, row("rejected"), now_ms=now)
    (only,) = recent.held(now, "t")
    assert (only.bytes, only.first_ms) == (200, T0)
    assert recent.held(T0 + 61_000, "t")[0].bytes == 100


def test_beyond_the_caps_everybody_is_other():
    recent = Recent(minutes=1, max_held=3, max_topics=2)
    add(recent, T0, *(row("rejected", topic=f"t{n}", principal=f"p{n}") for n in range(10)))
    assert recent.size == 4
    assert [each.bytes for each in recent.held(T0, OTHER)] == [700]
    flows = recent.flows(T0 + FLOW_SLOTS * SLOT_MS + LATE_MS)
    assert set(flows) == {"t0", "t1", OTHER}
    assert sum(flow.rejected for flow in flows.values()) * SECONDS == pytest.approx(1000)
    add(recent, T0 + 120_000, *(row("rejected", topic=f"t{n}") for n in range(3)))
    assert recent.size == 3  # there is room again


def test_a_flood_of_names_takes_bounded_memory():
    recent = Recent(minutes=2, max_held=1000, max_topics=100)
    for second in range(240):
        at = T0 + 1000 * second
        add(recent, at, *(row("rejected", topic=f"{second}-{n}", client_id=str(n)) for n in range(100)))
        assert recent.size <= 1000 + 120 // 5 + 1


def test_rates_are_means_of_the_last_whole_slots():
    recent = Recent()
    for second in range(30):
        rows = (
            row("accepted", 300), row("unacknowledged", 30), row("rejected", 200), row("dropped", 20),
            row("delayed", 100), row("would_delay", 7), row("would_reject", 3), row("errored", 1), row("duplicate", 1),
        )  # fmt: skip
        add(recent, T0 + 1000 * second, *rows)
    assert recent.flows(T0 + 30_000) == {"t": Flow(330.0, 220.0, 100.0, 10.0)}
    after = T0 + 30_000 + FLOW_SLOTS * SLOT_MS + LATE_MS
    assert recent.flows(after) == {}
    one_left = recent.flows(after - SLOT_MS)
    assert one_left["t"].accepted == pytest.approx(330 / FLOW_SLOTS)


def test_right_after_the_start_rates_are_of_the_time_that_has_passed():
    recent = Recent()
    for second in range(8):
        add(recent, T0 + 1000 * second, row("accepted", 100))
    assert recent.flows(T0 + SLOT_MS + LATE_MS)["t"].accepted == 100.0
    assert Recent().flows(T0) == {}


def test_a_slot_counts_when_its_last_interval_has_had_time_to_come():
    recent = Recent()
    for second in range(25):
        add(recent, T0 + 1000 * second, row("accepted", 100))
    add(recent, T0 + 25_000, row("accepted", 1500))
    assert recent.flows(T0 + 30_000 + LATE_MS - 1)["t"].accepted == 100.0
    assert recent.flows(T0 + 30_000 + LATE_MS)["t"].accepted == pytest.approx((1000 + 1500) / SECONDS)
