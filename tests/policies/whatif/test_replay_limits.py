# Limits that delay, in a replay: what moves into later seconds, how long clients wait, and what is turned away.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

from policies.definitions.policy_values import PolicyKey, PolicyValue
from policies.limits.limiter import MAX_PATIENCE_S, MAX_WAIT_S
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from policies.whatif.replay import replay_usage
from policies.whatif.rows import OutcomeShift, ReplayRow, ReplayRules, StreamKey

START_MS = 1_763_600_040_000
LIFE = ("gw", "boot", 0)
WEB: StreamKey = (1, "acme.orders.clicks", "User:web", "web")
APP: StreamKey = (1, "acme.orders.clicks", "User:app", "app")
OTHER: StreamKey = (2, "other", "User:app", "app")
TOPICS = {1: ("acme.orders.clicks",), 2: ("other",)}


def offered(
    stream: StreamKey, rate: int, seconds: int, start: int = 0, outcome: str = "accepted", **more: int
) -> list[ReplayRow]:
    reason = "topic-threshold" if outcome == "rejected" else ""
    return [
        ReplayRow(LIFE, at, START_MS + 1000 * at, START_MS + 1000 * (at + 1), stream, outcome, reason, rate,
        rate // 100,
            10, 0, more.get("repeats", 0))
        for at in range(start, start + seconds)
    ]  # fmt: skip


def in_order(*rows: Iterable[ReplayRow]) -> list[ReplayRow]:
    return sorted((row for each in rows for row in each), key=lambda row: row.start_ms)


def rules(values: dict[PolicyKey, PolicyValue], **more: object) -> ReplayRules:
    return ReplayRules(values, topics=TOPICS, topic_pattern="{tenant}.{namespace}.{topic}", **more)  # type: ignore[arg-type]


def quota(user: object, value: float, key: str = "producer_byte_rate:bps") -> dict[PolicyKey, PolicyValue]:
    return {PolicyKey.of_quota(Entity(user, None), QuotaKey.parse(key)): value}  # type: ignore[arg-type]


def admitted(rows: list[ReplayRow], shifts: Iterable[OutcomeShift], seconds: int) -> dict[StreamKey, list[float]]:
    """Bytes per second by client, in each ten seconds."""
    found: dict[StreamKey, list[float]] = defaultdict(lambda: [0.0] * (seconds // 10))
    for row in rows:
        if row.outcome == "accepted":
            found[row.stream][(row.start_ms - START_MS) // 10_000] += row.bytes / 10
    for shift in shifts:
        if shift.outcome == "accepted":
            found[shift.stream][(shift.window_ms - START_MS) // 10_000] += shift.bytes / 10
    return found


def test_a_quota_lets_pass_what_it_says_and_the_rest_waits() -> None:
    rows = in_order(offered(WEB, 100_000, 60), offered(APP, 100_000, 60))
    shifts = list(replay_usage(rows, rules(quota("web", 40_000.0)), {}, window_ms=10_000))
    found = admitted(rows, shifts, 60)
    assert found[WEB] == pytest.approx([40_000] * 6, rel=0.1)
    assert found[APP] == [100_000] * 6
    by_outcome: dict[str, int] = defaultdict(int)
    for shift in shifts:
        by_outcome[shift.outcome] += shift.bytes
        assert shift.stream == WEB
    assert by_outcome["waiting"] == pytest.approx(60 * 60_000, rel=0.05)
    delayed = [shift for shift in shifts if shift.outcome == "delayed"]
    assert {shift.reason for shift in delayed} == {"client-quota"}
    assert sum(shift.delay_ms for shift in delayed) == pytest.approx(60_000, rel=0.1), (
        "one connection waits all the time"
    )


@pytest.mark.parametrize("outcome", ["errored", "duplicate", "trailing"])
def test_what_did_not_get_into_the_log_counts_in_its_clients_quota(outcome: str) -> None:
    """As in the gateway, and in Kafka."""
    rows = in_order(offered(WEB, 100_000, 60), offered(WEB, 30_000, 60, outcome=outcome))
    found = admitted(rows, replay_usage(rows, rules(quota("web", 40_000.0)), {}, window_ms=10_000), 60)
    assert found[WEB] == pytest.approx([10_000] * 6, rel=0.2)


def test_a_quota_that_was_changed_on_the_way_holds_from_its_time_on() -> None:
    rows = in_order(offered(WEB, 100_000, 60), offered(APP, 100_000, 60))
    (low, high), none = (rules(quota("web", rate)).values for rate in (40_000.0, 80_000.0)), rules({}).values
    later = ((START_MS + 20_000, high), (START_MS + 40_000, none))
    found = admitted(rows, list(replay_usage(rows, ReplayRules(low, later=later), {}, window_ms=10_000)), 60)
    assert found[WEB][:4] == pytest.approx([40_000] * 2 + [80_000] * 2, rel=0.1)
    assert sum(found[WEB]) == pytest.approx(600_000, rel=0.01)  # what waited came when the quota was gone
    assert found[APP] == [100_000] * 6


def test_waiting_bytes_come_when_there_is_room_again() -> None:
    rows = in_order(offered(WEB, 100_000, 20), offered(WEB, 1000, 80, 20))
    shifts = list(replay_usage(rows, rules(quota("web", 40_000.0)), {}, window_ms=10_000))
    found = admitted(rows, shifts, 100)[WEB]
    assert found[:5] == pytest.approx([40_000] * 5, rel=0.1)
    assert sum(found) == pytest.approx((20 * 100_000 + 80 * 1000) / 10)
    assert found[-1] == pytest.approx(1000)


def test_a_default_quota_is_for_each_one_and_clients_of_one_user_share() -> None:
    phone: StreamKey = (1, "acme.orders.clicks", "User:web", "phone")
    rows = in_order(offered(WEB, 60_000, 60), offered(phone, 60_000, 60), offered(APP, 60_000, 60))
    found = admitted(rows, replay_usage(rows, rules(quota(DEFAULT, 40_000.0)), {}, window_ms=10_000), 60)
    assert sum(found[WEB]) + sum(found[phone]) == pytest.approx(6 * 40_000, rel=0.1)
    assert sum(found[APP]) == pytest.approx(6 * 40_000, rel=0.1)


def test_a_group_limits_its_topics_and_its_messages() -> None:
    group: dict[PolicyKey, PolicyValue] = {
        PolicyKey.of_group("gold"): 1.0,
        PolicyKey.of_group("gold", "publishRateInMsgs"): 500.0,
        PolicyKey.of_tenant("acme"): "gold",
    }
    rows = in_order(offered(WEB, 100_000, 60), offered(OTHER, 100_000, 60))  # a thousand messages per second
    shifts = list(replay_usage(rows, rules(group), {}, window_ms=10_000))
    found = admitted(rows, shifts, 60)
    assert found[WEB] == pytest.approx([50_000] * 6, rel=0.1)
    assert found[OTHER] == [100_000] * 6, "in no group"
    assert {shift.reason for shift in shifts if shift.outcome == "delayed"} == {"resource-group"}


def test_thresholds_that_delay_hold_the_total_and_give_each_topic_its_own() -> None:
    calm: StreamKey = (1, "calm", "User:c", "c")
    values: dict[PolicyKey, PolicyValue] = {PolicyKey.of_broker(): 100_000.0, PolicyKey.of_topic("calm"): 50_000.0}
    rows = in_order(offered(WEB, 200_000, 60), offered(calm, 40_000, 60))
    rules_ = ReplayRules(values, on_exceed="delay", topics={1: ("acme.orders.clicks", "calm")})
    shifts = list(replay_usage(rows, rules_, {}, window_ms=10_000))
    found = admitted(rows, shifts, 60)
    assert found[calm] == pytest.approx([40_000] * 6, rel=0.02)
    assert found[WEB][1:] == pytest.approx([60_000] * 5, rel=0.1)
    assert not any(shift.outcome == "rejected" and shift.bytes for shift in shifts if shift.stream == calm)


def test_bytes_rejected_by_threshold_pass_a_quota_instead() -> None:
    rows = in_order(
        offered(WEB, 10_000, 10, outcome="rejected"),
        offered(WEB, 10_000, 50, 10, outcome="rejected", repeats=10_000),
    )
    shifts = list(replay_usage(rows, rules(quota("web", 50_000.0)), {}))
    sums: dict[str, int] = defaultdict(int)
    for shift in shifts:
        sums[shift.outcome] += shift.bytes
    assert sums["accepted"] == pytest.approx(100_000, rel=0.01), "the rest were repeats of it"
    assert sums["rejected"] == -600_000


def test_recorded_delays_make_room_for_those_of_the_policy() -> None:
    rows = in_order(offered(WEB, 40_000, 30), offered(WEB, 40_000, 30, outcome="delayed"))
    rows = [row._replace(reason="client-quota", delay_ms=900) if row.outcome == "delayed" else row for row in rows]
    shifts = [shift for shift in replay_usage(rows, ReplayRules({}), {}) if shift.outcome == "delayed"]
    assert [(shift.bytes, shift.delay_ms) for shift in shifts] == [(-30 * 40_000, -30 * 900)]


def test_shares_of_a_total_are_dealt_out() -> None:
    values = {PolicyKey.of_broker(): 100_000.0, **quota("web", 1.0, "producer_byte_rate:shares")}
    values |= quota("app", 3.0, "producer_byte_rate:shares")
    rows = in_order(offered(WEB, 200_000, 60), offered(APP, 200_000, 60))
    found = admitted(
        rows, replay_usage(rows, ReplayRules(values, on_exceed="delay", topics=TOPICS), {}, window_ms=10_000), 60
    )
    assert found[APP][-1] == pytest.approx(3 * found[WEB][-1], rel=0.25)
    assert found[APP][-1] + found[WEB][-1] == pytest.approx(100_000, rel=0.1)


def test_a_request_without_room_is_rejected() -> None:
    rows = in_order(*(offered((1, "t", "User:web", f"app{n}"), 400_000, 30) for n in range(40)))
    shifts = list(replay_usage(rows, rules(quota("web", 10_000.0)), {}))
    assert sum(shift.bytes for shift in shifts if (shift.outcome, shift.reason) == ("rejected", "client-quota")) > 0


@pytest.mark.parametrize(("clients", "rejects"), [(60, False), (240, True)])
def test_many_clients_of_one_limit_wait_for_room_as_long_as_most_of_them_can(clients: int, rejects: bool) -> None:
    """Each sends requests of a quarter of a second of it: of 60 the last waits 15 s, of 240 it would be a minute."""
    group: dict[PolicyKey, PolicyValue] = {
        PolicyKey.of_group("gold"): 1.0,
        PolicyKey.of_group("gold", "publishRateInBytes"): 4000.0,
        PolicyKey.of_tenant("acme"): "gold",
    }
    streams: list[StreamKey] = [(1, f"acme.orders.t{number}", "User:web", f"web{number}") for number in range(clients)]
    rows = in_order(*(offered(each, 1000, 90) for each in streams))
    rows = [row._replace(requests=1) for row in rows]
    shifts = list(replay_usage(rows, rules(group), {}))
    sums: dict[str, int] = defaultdict(int)
    for shift in shifts:
        sums[shift.outcome] += shift.bytes
    assert (sums["rejected"] > 0) is rejects
    assert 4000 * 90 <= clients * 90_000 + sums["accepted"] <= 4000 * (90 + MAX_WAIT_S + MAX_PATIENCE_S)
