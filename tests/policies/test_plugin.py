# A policy of an operator's own, as one would write it, beside the built-in thresholds.

from __future__ import annotations

from policies.decision import strictest_verdict
from policies.engine import PolicyEngine
from policies.plugin import TrafficPolicy
from policies.verdict import DELAY, REJECT, Verdict
from tests.policies.asking import decide, record


class NightlyBatch:
    """One client id may send large requests only with a pause behind each, and not at all to one topic."""

    def decide(
        self,
        node_id: int,
        topic: bytes,
        partition: int,
        producer_id: int,
        size: int,
        principal: str,
        client_id: str,
        now: float,
    ) -> Verdict | None:
        if client_id != "nightly":
            return None
        if topic == b"orders":
            return Verdict(REJECT, "nightly-orders", 5000, "orders are not for the nightly job; retry in 5 s")
        return Verdict(DELAY, "nightly-large", size // 1000, "delayed by its size") if size > 1_000_000 else None


def ask(policy: TrafficPolicy, topic: bytes, size: int, client_id: str) -> Verdict | None:
    return policy.decide(1, topic, 0, -1, size, "User:ANONYMOUS", client_id, 0.0)


def test_a_policy_needs_one_method_and_no_base_class() -> None:
    policy = NightlyBatch()
    assert ask(policy, b"clicks", 5_000_000, "app") is None
    rejected, delayed = ask(policy, b"orders", 1, "nightly"), ask(policy, b"clicks", 2_000_000, "nightly")
    assert rejected is not None
    assert delayed is not None
    assert (rejected.action, delayed.action, delayed.throttle_ms) == ("reject", "delay", 2000)


def test_its_verdict_and_the_thresholds_meet_in_the_strictest() -> None:
    engine = PolicyEngine(0.0)
    engine.set_thresholds(1000.0, {"clicks": 1000.0})
    record(engine.broker_meters(1), b"clicks", 1_000_000)
    engine.apply_due_ticks(engine.next_tick_at)
    own = ask(NightlyBatch(), b"clicks", 2_000_000, "nightly")
    built_in = decide(engine, 1, b"clicks", 2_000_000, 5.0)
    assert own is not None
    assert strictest_verdict([own, built_in]) is built_in
    assert strictest_verdict([own, decide(engine, 1, b"views", 1, 5.0)]) is own
