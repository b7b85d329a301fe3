# Rules that are neither quota, group nor threshold: protected topics, storage protection, policies of the operator's
# own, and the fence behind a rejected batch.

from __future__ import annotations

from collections.abc import Iterator

from policies.explain.case import ExplainCase
from policies.explain.model import PLUGIN
from policies.limits.description import Action, LimitDescription
from policies.storage.request_limits import StoragePause, StorageThrottle
from policies.thresholds.values import TOTAL_KEY
from policies.verdict import FENCE, PROTECTED_TOPIC, STORAGE_PAUSE, STORAGE_THROTTLE


def protected_topic_rules(case: ExplainCase) -> Iterator[LimitDescription]:
    if case.subject.topic in case.inputs.protected_topics:
        note = "the topic is the gateway's own: no client may produce to it"
        yield LimitDescription(PROTECTED_TOPIC, None, (), "refuse", "produce", "enforce", True, note)


def storage_rules(case: ExplainCase) -> Iterator[LimitDescription]:
    storage = case.inputs.storage
    if storage is None or storage.value >= 1:
        return
    if case.limits.pause is not None:
        yield case.limits.pause.describe()
        return
    name, is_listed, is_held = case.subject.topic.encode(), bool(case.leaders), case.inputs.affected is None
    for broker in case.brokers:
        limits, value = case.limits.of_broker(broker, case.subject.topic), storage.value
        limit: StoragePause | StorageThrottle | None = limits.storage_throttle
        if case.inputs.affected is not None:
            part = limits.affected_limits.part_of(name, is_listed)
            if part is None:
                continue
            is_held, value, limit = True, part.value, limits.affected_limits.limit_of(name, is_listed)
        if isinstance(limit, StoragePause):  # of all its partitions
            yield limit.describe()
            return
        if limit is None:
            why = f"there is no {TOTAL_KEY} that the factor {value:.3g} could lower"
            case.add_shadowed(STORAGE_THROTTLE, broker, "storage factor", "storage", f"{value:.3g}", why)
            continue
        rates = case.limits.rate_of(broker)
        found = limit.describe(None if rates is None else rates.combined_rate, TOTAL_KEY)
        yield found._replace(limits_now=found.limits_now or case.was_held(STORAGE_THROTTLE, broker))
    if not is_held:
        why = "no replica of the topic is on a volume at its limit"
        case.add_shadowed(STORAGE_PAUSE, None, "storage factor", "storage", f"{storage.value:.3g}", why)


def plugin_rules(case: ExplainCase) -> Iterator[LimitDescription]:
    """One for all: the strictest decides, and its words don't say which it is."""
    names = " and ".join(case.inputs.plugins)
    if not names:
        return
    only = "is asked about every partition; only it knows its limits"
    note = f"{names} {only if len(case.inputs.plugins) == 1 else 'are asked about every partition'}"
    now = [each for each in case.held if each.is_by(PLUGIN) and each.outcome in ("rejected", "delayed")]
    if now:
        note += f"; now it says {', '.join(dict.fromkeys(each.reason for each in now))}"
    action: Action = "delay" if now and all(each.outcome == "delayed" for each in now) else "reject"
    yield LimitDescription(PLUGIN, None, (), action, "produce", case.mode, bool(now), note)


def fence_rule(case: ExplainCase) -> LimitDescription:
    note = "of an idempotent producer: batches behind a rejected one, until that one comes again"
    return LimitDescription(FENCE, None, (), "reject", "produce", case.mode, case.was_held(FENCE, None), note)
