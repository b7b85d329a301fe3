# Which time a gateway goes by, and what it logs of a clock that is off.

from __future__ import annotations

import logging

import pytest

from gateway.control.cluster.brokers_time import OFF_S, WAIT_S, BrokersTime

AT_S = 1_700_000_000.0


class Clocks:
    def __init__(self) -> None:
        self.brokers: float | None = None
        self.own = AT_S
        self.elapsed = 5.0
        self.time = BrokersTime(lambda: self.brokers, lambda: self.own, lambda: self.elapsed)


def test_the_brokers_time_counts_where_it_is_known() -> None:
    clocks = Clocks()
    assert clocks.time.now() == AT_S
    clocks.brokers = AT_S - 3600
    assert clocks.time.now() == AT_S - 3600


def test_a_gateway_waits_a_while_for_the_brokers_time_and_goes_by_its_own_then() -> None:
    clocks = Clocks()
    assert not clocks.time.is_sure
    clocks.elapsed += WAIT_S - 1
    assert not clocks.time.is_sure
    clocks.elapsed += 1
    assert clocks.time.is_sure
    other = Clocks()
    assert not other.time.is_sure
    other.brokers = AT_S
    assert other.time.is_sure
    assert BrokersTime(None, lambda: AT_S).is_sure
    assert BrokersTime(None, lambda: AT_S).now() == AT_S


@pytest.mark.parametrize(("off", "said"), [(7200.0, "7200 s ahead of"), (-60.0, "60 s behind")])
def test_a_clock_that_is_off_is_logged_once_until_it_is_right(
    off: float, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.control")
    clocks = Clocks()
    clocks.brokers = AT_S
    for own in (AT_S + OFF_S - 1, AT_S + off, AT_S + off, AT_S, AT_S):
        clocks.own = own
        assert clocks.time.now() == AT_S
    first, second = (record.getMessage() for record in caplog.records)
    assert f"this machine's clock is {said} the brokers'" in first
    assert "agrees with the brokers' again" in second
