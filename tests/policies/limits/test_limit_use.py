# What a limit says of itself: alone, and as one gateway of two and three; in several workers; in debt and observed.

from __future__ import annotations

import pytest

from policies.explain import LimitLevel
from policies.fleet.fleet_limiter import FleetLimiter, FleetShares
from policies.fleet.shares import ShareGrant
from policies.limits.description import FleetUse
from policies.limits.limit_use import LimitMeter, LimitUse
from policies.meters.meter import TICK_S

KEY = '["q","producer_byte_rate",null,"slow",null]'
WHOLE = 100_000.0


def line_of(gateways: int, part: float | None, factor: float = 1.0) -> FleetLimiter:
    """Its client has just begun."""
    fleet = FleetShares()
    parts = {} if part is None else {KEY: ShareGrant(part, WHOLE / gateways)}
    fleet.update_grants(parts, gateways, 0.0, 0.0, whole=True)
    return FleetLimiter(fleet, KEY, WHOLE, factor, 0.0, own=True)


def taken(line: FleetLimiter, *sizes: float) -> LimitMeter:
    meter = LimitMeter(0.0)
    for size in sizes:
        line.charge_amount(size, 0.0)
        meter.charged += size
    return meter


@pytest.mark.parametrize(("gateways", "part"), [(1, None), (2, 47_000.0), (3, 20_000.0), (3, None)])
def test_a_line_that_is_used_up_uses_all_of_its_part_whatever_came_in_first(gateways: int, part: float | None) -> None:
    line = line_of(gateways, part)
    meter = taken(line, 3_000_000.0)  # one request, worth many seconds
    mine = WHOLE / gateways if part is None else part
    for now in (TICK_S, 2 * TICK_S):
        meter.tick(now)
        use = line.measure_use(meter, now)
        assert (use.rate, use.limit, use.utilization, use.waiting) == (mine, mine, 1.0, True)
        assert use.wait_s == pytest.approx((3_000_000.0 - mine * now) / mine)


def test_the_storage_factor_lowers_the_part() -> None:
    line = line_of(2, 50_000.0, factor=0.5)
    assert line.measure_use(LimitMeter(0.0), 0.0).limit == 25_000.0


def test_a_line_with_credit_uses_what_came_in_over_ten_seconds_from_its_beginning_on() -> None:
    line, meter = line_of(1, None), LimitMeter(3.0)  # 2 s before the tick
    line.charge_amount(100_000.0, 4.0)
    meter.charged += 100_000.0
    meter.tick(5.0)
    use = line.measure_use(meter, 5.0)
    assert (use.rate, use.waiting, use.wait_s) == (50_000.0, False, 0.0)
    meter.tick(10.0)
    assert line.measure_use(meter, 10.0).rate == pytest.approx(100_000.0 / 7)
    meter.tick(15.0)
    assert line.measure_use(meter, 15.0).rate == 0.0, "more than ten seconds ago"


def test_one_request_in_the_first_moment_is_no_rate() -> None:
    meter = LimitMeter(0.0)
    meter.charged += 10.0
    meter.tick(0.001)
    assert meter.rate == 10.0


def test_only_what_is_observed_is_above_a_limit() -> None:
    line, meter = line_of(1, None), LimitMeter(0.0)
    line.charge_amount(200_000.0, 0.0)
    meter.charged, meter.uncharged = 200_000.0, 1_000_000.0
    meter.tick(1.0)
    use = line.measure_use(meter, 1.0)
    assert (use.rate, use.uncharged, use.utilization) == (1_100_000.0, 1_000_000.0, 11.0)
    meter.charged -= 10.0
    meter.tick(2.0)
    meter.tick(3.0)
    assert meter.rate == 0.0, "given back: no credit for later"


def test_workers_with_one_bucket_use_it_up_together_and_not_twice() -> None:
    one, other = LimitUse(30.0, 100.0), LimitUse(40.0, 100.0)
    assert one.merge_shared(other) == LimitUse(70.0, 100.0)
    used_up = LimitUse(100.0, 100.0, True, 2.0)
    assert one.merge_shared(used_up) == used_up.merge_shared(one) == used_up
    observed = used_up._replace(rate=150.0, uncharged=50.0)
    assert observed.merge_shared(observed) == LimitUse(200.0, 100.0, True, 2.0, 100.0)
    assert LimitUse(1.0, None).merge_shared(LimitUse(2.0, None)) == LimitUse(3.0, None)
    assert one.merge_separate(used_up) == LimitUse(130.0, 200.0, True, 2.0), "each has a part of its own"


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ({}, "47.0 kB/s of 50.0 kB/s (94%); held 3.1 s"),
        (
            {"gwb": 47e3},
            "100.0 kB/s over 2 gateways: 94.0 kB/s used (47.0 kB/s here, 47.0 kB/s at gwb), the part of this gateway is"
            " now 50.0 kB/s (94%); held 3.1 s",
        ),
        (
            {"gwb": 47e3, "gwc": 0.0},
            "100.0 kB/s over 3 gateways: 94.0 kB/s used (47.0 kB/s here, 47.0 kB/s at gwb), the part of this gateway is"
            " now 50.0 kB/s (94%); held 3.1 s",
        ),
        (
            {"b": 1e3, "c": 2e3, "d": 3e3, "e": 4e3, "f": 5e3},
            "100.0 kB/s over 6 gateways: 62.0 kB/s used (47.0 kB/s here, 5.0 kB/s at f, 4.0 kB/s at e, 3.0 kB/s at d,"
            " 3.0 kB/s at 2 more), the part of this gateway is now 50.0 kB/s (94%); held 3.1 s",
        ),
    ],
)
def test_a_limit_in_words(others: dict[str, float], text: str) -> None:
    fleet = FleetUse(50e3, others, 1 + len(others))
    level = LimitLevel("a quota", "file", WHOLE, 50e3, 47e3, wait_s=3.1, whole=WHOLE, fleet=fleet)
    assert level.text == text
    assert level.fleet_used == 47e3 + sum(others.values())
    wanted = max(3e3, WHOLE - level.fleet_used) if others else 3e3
    assert level.headroom == pytest.approx(wanted), "others may leave it more than its part"


def test_a_sum_that_decides_in_words() -> None:
    """Thresholds that reject go by what all gateways bring."""
    level = LimitLevel(
        "a total", "file", WHOLE, WHOLE, 94e3, whole=WHOLE, here=47e3, fleet=FleetUse(None, {"gwb": 47e3}, 2)
    )
    assert level.text == "100.0 kB/s over 2 gateways: 94.0 kB/s used (94%) (47.0 kB/s here, 47.0 kB/s at gwb)"
    assert (level.fleet_used, level.used_here, level.utilization) == (94e3, 47e3, 0.94)
