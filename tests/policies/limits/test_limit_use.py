# What a limit says of itself: alone, and as one gateway of two and three; in several workers; in debt and observed.

from __future__ import annotations

import pytest

from policies.fleet.fleet_limiter import FleetLimiter, FleetShares
from policies.fleet.shares import ShareGrant
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
