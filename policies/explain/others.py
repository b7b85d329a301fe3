# Rules that are neither quota, group nor threshold: protected topics, storage protection, policies of the operator's
# own, and the fence behind a rejected batch.

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.explain.case import ExplainCase
from policies.explain.model import PLUGIN, ExplainedRule, LimitLevel
from policies.explain.wording import place_text
from policies.storage import AffectedTopics
from policies.thresholds.values import TOTAL_KEY
from policies.verdict import FENCE, PROTECTED_TOPIC, STORAGE_PAUSE, STORAGE_THROTTLE


def protected_topic_rules(case: ExplainCase) -> Iterator[ExplainedRule]:
    if case.subject.topic in case.inputs.protected_topics:
        note = "the topic is the gateway's own: no client may produce to it"
        yield ExplainedRule(PROTECTED_TOPIC, None, (), "refuse", "produce", "enforce", True, note)


def storage_rules(case: ExplainCase) -> Iterator[ExplainedRule]:
    storage, whose = case.inputs.storage, "all producers"
    if storage is None or storage.value >= 1:
        return
    if case.inputs.affected is not None:
        held = _holding_volume(case, case.inputs.affected)
        if held is None:
            why = "no replica of the topic is on a volume at its limit"
            case.add_shadowed(STORAGE_PAUSE, None, "storage factor", "storage", f"{storage.value:.3g}", why)
            return
        storage, whose = storage._replace(value=held.value, why=held.why), f"producers to topics of {held.key}"
    mode = case.effective_mode(case.inputs.storage_mode)
    if storage.value <= 0:
        note = f"storage factor 0: requests wait up to 15 s and are then rejected: {storage.why}"
        yield ExplainedRule(STORAGE_PAUSE, None, (), "hold", "produce", mode, True, note)
        return
    for broker in case.brokers:
        total = case.broker_total(broker)
        if total is None:
            why = f"there is no {TOTAL_KEY} that the factor {storage.value:.3g} could lower"
            case.add_shadowed(STORAGE_THROTTLE, broker, "storage factor", "storage", f"{storage.value:.3g}", why)
            continue
        what = f"{whose} of {place_text(broker)} together, {TOTAL_KEY} x {storage.value:.3g}"
        level = LimitLevel(what, "storage", total, total * storage.value, case.broker_rate(broker))
        now = level.utilization >= 1 or case.was_held(STORAGE_THROTTLE, broker)
        yield ExplainedRule(STORAGE_THROTTLE, broker, (level,), "delay", "produce", mode, now, storage.why)


def _holding_volume(case: ExplainCase, affected: Sequence[AffectedTopics]) -> AffectedTopics | None:
    """The volume that holds the topic."""
    topic, led = case.subject.topic, case.brokers
    found = next((each for each in affected if topic in each.topics), None)
    if found is None and not case.leaders:
        found = next((each for each in affected if any(broker in each.brokers for broker in led)), None)
    return found


def plugin_rules(case: ExplainCase) -> Iterator[ExplainedRule]:
    for name in case.inputs.plugins:
        note = f"{name} is asked about every partition; only it knows its limits"
        now = case.was_held(name, None)
        yield ExplainedRule(PLUGIN, None, (), "reject", "produce", case.effective_mode("enforce"), now, note)


def fence_rule(case: ExplainCase) -> ExplainedRule:
    note = "of an idempotent producer: batches behind a rejected one, until that one comes again"
    return ExplainedRule(
        FENCE, None, (), "reject", "produce", case.effective_mode("enforce"), case.was_held(FENCE, None), note
    )
