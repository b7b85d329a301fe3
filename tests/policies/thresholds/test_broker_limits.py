# The limits of one broker: which of its clients wait for our part of the total.

from __future__ import annotations

from policies.verdict import DELAY
from tests.policies.asking import decide, delaying, present, record


def test_a_client_that_waits_for_our_part_of_a_total_makes_it_hungry() -> None:
    engine = delaying(gateways=2)
    broker = engine.broker_meters(1)
    broker.add_topic(b"a")
    assert not broker.limits.is_hungry(0.0)
    for _ in range(3):
        if (why := decide(engine, 1, b"a", 50_000, 0.0)) is None or why.action == DELAY:
            record(broker, b"a", 0)
            broker.topics[b"a"].uncounted += 50_000
            broker.total.uncounted += 50_000
    assert broker.limits.is_hungry(0.0)
    assert broker.limits.is_hungry(1.0)  # it waits
    assert not broker.limits.is_hungry(30.0)


def test_a_client_that_waits_only_for_its_own_bytes_makes_no_total_hungry() -> None:
    engine = delaying(gateways=2)
    broker = engine.broker_meters(1)
    broker.add_topic(b"a")
    assert decide(engine, 1, b"a", 5000, 0.0) is not None
    assert broker.limits.is_hungry(0.0), "it has only begun, and nothing is saved"
    why = present(decide(engine, 1, b"a", 80_000, 5.0))
    assert (why.action, why.throttle_ms) == (DELAY, 600)
    assert not broker.limits.is_hungry(5.0)
