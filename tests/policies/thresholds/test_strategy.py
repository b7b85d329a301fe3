# Both strategies for thresholds stand behind one interface.

from __future__ import annotations

import pytest

from policies.engine import OnExceed
from policies.thresholds.strategy import ThresholdStrategy
from tests.policies.asking import rejecting

MB = 1_000_000


@pytest.mark.parametrize("on_exceed", ["reject", "delay"])
def test_whichever_is_at_work_says_which_topics_have_to_be_asked(on_exceed: OnExceed) -> None:
    made = rejecting(total=10 * MB, clicks=5 * MB)
    made.set_listed_topics(1, ["clicks"])
    first = made.broker_meters(1).add_topic(b"clicks")
    made.set_thresholds(10.0 * MB, {"clicks": 5.0 * MB}, on_exceed=on_exceed)
    strategy = made.broker_meters(1).limits.strategy
    assert isinstance(strategy, ThresholdStrategy)
    assert strategy.delays_requests is (on_exceed == "delay")
    later = made.broker_meters(1).add_topic(b"later")
    assert [meter.thresholds_ask for meter in (first, later)] == [strategy.delays_requests] * 2, (
        "nobody knows how much comes"
    )
    assert not any(strategy.is_limiting(meter) for meter in (first, later))
    strategy.release_topics()
    assert not first.thresholds_ask
    assert not made.broker_meters(1).limits.is_hungry(0.0)
