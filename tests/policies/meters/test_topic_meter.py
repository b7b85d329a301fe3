# The meter of one topic: which limits have to be asked about it.

from __future__ import annotations

from itertools import product

import pytest

from policies.meters.topic_meter import ALWAYS_ASK, NEVER_ASK
from tests.policies.asking import rejecting


@pytest.mark.parametrize(("thresholds", "group"), list(product([False, True], repeat=2)))
def test_a_topic_is_over_while_its_threshold_or_its_group_has_to_be_asked(thresholds: bool, group: bool) -> None:
    meter = rejecting().broker_meters(1).add_topic(b"clicks")
    for first, second in ((meter.set_thresholds_credit, thresholds), (meter.set_group_credit, group)):
        first(ALWAYS_ASK if second else NEVER_ASK)
    assert meter.needs_decision is (thresholds or group)
    meter.set_thresholds_credit(NEVER_ASK)
    assert meter.needs_decision is group


def test_bytes_its_group_knows_of_are_carried_over_a_tick() -> None:
    meter = rejecting().broker_meters(1).add_topic(b"clicks")
    meter.uncounted, meter.counted_in_group = 700, 500
    meter.tick()
    assert (meter.uncounted, meter.counted_in_group) == (0, -200)  # 200 bytes are still to be found
