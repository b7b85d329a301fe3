# The meter of one topic: which limits have to be asked about it.

from __future__ import annotations

from itertools import product

import pytest

from tests.policies.asking import rejecting


@pytest.mark.parametrize(("thresholds", "group"), list(product([False, True], repeat=2)))
def test_a_topic_is_over_while_its_threshold_or_its_group_has_to_be_asked(thresholds: bool, group: bool) -> None:
    meter = rejecting().broker_meters(1).add_topic(b"clicks")
    for first, second in ((meter.set_thresholds_ask, thresholds), (meter.set_group_asks, group)):
        first(second)
    assert meter.needs_decision is (thresholds or group)
    meter.set_thresholds_ask(False)
    assert meter.needs_decision is group


def test_bytes_its_group_knows_of_are_carried_over_a_tick() -> None:
    meter = rejecting().broker_meters(1).add_topic(b"clicks")
    meter.uncounted, meter.counted_in_group = 700, 500
    meter.tick()
    assert (meter.uncounted, meter.counted_in_group) == (0, -200)  # 200 bytes are still to be found
