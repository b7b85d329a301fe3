# Failed attempts by address, with `now` as a number.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.access.failures import FailedAttempts, retry_after


def test_an_address_waits_after_a_burst_and_is_forgiven_one_by_one() -> None:
    failures = FailedAttempts(burst=3, every_s=10)
    for _ in range(3):
        assert failures.wait_s("a", 100) == 0
        failures.record_failure("a", 100)
    assert failures.wait_s("a", 100) == 10
    assert failures.wait_s("a", 104) == 6
    assert failures.wait_s("a", 110) == 0
    failures.record_failure("a", 110)
    assert failures.wait_s("a", 110) == 10
    assert failures.wait_s("b", 110) == 0
    assert failures.wait_s("a", 1000) == 0


@given(st.lists(st.floats(0, 100), max_size=60))
def test_never_more_than_the_burst_and_one_each_period(gaps: list[float]) -> None:
    """The oracle counts attempts that were let through."""
    failures, now, tried = FailedAttempts(burst=5, every_s=10), 0.0, 0
    for gap in gaps:
        now += gap / 10
        if not failures.wait_s("a", now):
            failures.record_failure("a", now)
            tried += 1
    assert tried <= 5 + now / 10 + 1e-6


def test_addresses_are_bounded_and_the_one_that_failed_longest_ago_is_forgotten() -> None:
    failures = FailedAttempts(burst=1, every_s=1000, most=2)
    for now, address in enumerate(("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.3")):
        failures.record_failure(address, now)
    assert len(failures) == 2
    assert [bool(failures.wait_s(f"10.0.0.{n}", 5)) for n in (1, 2, 3)] == [True, False, True]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "x", False),
    ],
)
def test_a_network_of_ipv6_is_one_client(one: str, other: str, same: bool) -> None:
    failures = FailedAttempts(burst=1, every_s=10)
    failures.record_failure(one, 0)
    assert (failures.wait_s(other, 0) > 0) == same


def test_the_time_to_wait_is_said_in_whole_seconds() -> None:
    assert [retry_after(seconds) for seconds in (0.01, 1, 1.2, 60)] == [1, 1, 2, 60]
