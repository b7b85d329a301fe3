# Rules that are neither quota, group nor threshold: protected topics, storage protection, policies of the operator's
# own, and the fence behind a rejected batch.

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.explain.case import Case
from policies.explain.model import PLUGIN, Level, Rule
from policies.explain.wording import place_text
from policies.storage import Affected
from policies.thresholds.values import TOTAL_KEY
from policies.verdict import FENCE, PROTECTED_TOPIC, STORAGE_PAUSE, STORAGE_THROTTLE


def protected(case: Case) -> Iterator[Rule]:
    if case.asked.topic in case.known.protected_topics:
        note = "the topic is the gateway's own: clients may not produce to it, whoever they are"
        yield Rule(PROTECTED_TOPIC, None, (), "refuse", "produce", "enforce", True, note)


def of_storage(case: Case) -> Iterator[Rule]:
    storage, whose = case.known.storage, "all producers"
    if storage is None or storage.value >= 1:
        return
    if case.known.affected is not None:
        held = _holder(case, case.known.affected)
        if held is None:
            why = "no replica of the topic is on a volume at its limit"
            case.shadow(STORAGE_PAUSE, None, "storage factor", "storage", f"{storage.value:.3g}", why)
            return
        storage, whose = storage._replace(value=held.value, why=held.why), f"producers to topics of {held.key}"
    mode = case.mode(case.known.storage_mode)
    if storage.value <= 0:
        note = f"storage factor 0: requests wait up to 15 s and are then rejected: {storage.why}"
        yield Rule(STORAGE_PAUSE, None, (), "hold", "produce", mode, True, note)
        return
    for broker in case.brokers:
        total = case.total(broker)
        if total is None:
            why = f"there is no {TOTAL_KEY} that the factor {storage.value:.3g} could lower"
            case.shadow(STORAGE_THROTTLE, broker, "storage factor", "storage", f"{storage.value:.3g}", why)
            continue
        what = f"{whose} of {place_text(broker)} together, {TOTAL_KEY} x {storage.value:.3g}"
        level = Level(what, "storage", total, total * storage.value, case.broker_rate(broker))
        now = level.utilization >= 1 or case.was_held(STORAGE_THROTTLE, broker)
        yield Rule(STORAGE_THROTTLE, broker, (level,), "delay", "produce", mode, now, storage.why)


def _holder(case: Case, affected: Sequence[Affected]) -> Affected | None:
    """The volume that holds the topic."""
    topic, led = case.asked.topic, case.brokers
    found = next((each for each in affected if topic in each.topics), None)
    if found is None and not case.leaders:
        found = next((each for each in affected if any(broker in each.brokers for broker in led)), None)
    return found


def plugins(case: Case) -> Iterator[Rule]:
    for name in case.known.plugins:
        note = f"{name} is asked about every partition; only it knows its limits"
        now = case.was_held(name, None)
        yield Rule(PLUGIN, None, (), "reject", "produce", case.mode("enforce"), now, note)


def fence(case: Case) -> Rule:
    note = "of an idempotent producer: batches behind a rejected one, until that one comes again"
    return Rule(FENCE, None, (), "reject", "produce", case.mode("enforce"), case.was_held(FENCE, None), note)
