# Rules of thresholds: a topic's and its broker's total, both of which have to be exceeded.

from __future__ import annotations

import math
from collections.abc import Iterator

from policies.definitions.policy_values import PolicyKey, as_number
from policies.engine import INTERNAL_TOPICS, BrokerRate, OnExceed, TopicRate
from policies.explain.case import ExplainCase
from policies.explain.model import ExplainedRule, ExplainInputs, LimitLevel
from policies.explain.wording import place_text, scale_text
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY
from policies.units import exact_rate
from policies.verdict import TOPIC_THRESHOLD


def threshold_rules(case: ExplainCase) -> Iterator[ExplainedRule]:
    topic, known = case.subject.topic, case.inputs
    explicit = known.policies.topic_thresholds().get(topic)
    if explicit is not None:
        case.add_shadowed_base(PolicyKey.of_topic(topic), TOPIC_THRESHOLD, None)
    for broker in case.brokers:
        total = case.broker_total(broker)
        _note_totals(case, broker)
        share = _implicit_share(case, broker, total)
        if explicit is not None and total is None:
            why = f"without {TOTAL_KEY} on {place_text(broker)} nothing is ever over"
            _shadow_topic(case, broker, explicit, why)
        elif explicit is not None and total is not None:
            if share is not None:
                why = f"the topic has {TOPIC_KEY} of its own"
                case.add_shadowed(TOPIC_THRESHOLD, broker, "implicit share", "computed", exact_rate(share), why)
            yield _threshold_rule(
                case, broker, total, explicit, case.setting_origin(PolicyKey.of_topic(topic)), TOPIC_KEY
            )
        elif total is not None and topic in INTERNAL_TOPICS:
            why = "Kafka's internal topics have no implicit threshold"
            case.add_shadowed(TOPIC_THRESHOLD, broker, "implicit share", "computed", "", why)
        elif total is not None and share is not None:
            yield _threshold_rule(case, broker, total, share, "computed", "implicit share")


def _threshold_rule(
    case: ExplainCase, broker: int | None, total: float, limit: float, origin: str, what: str
) -> ExplainedRule:
    topic, scale = case.subject.topic, case.scale
    rates = None if broker is None else case.broker_rates.get(broker)
    meter = _find_topic_rate(rates, topic)
    own = LimitLevel(
        f"{what} of topic {topic}", origin, limit, limit * scale, None, fleet=case.fleet_traffic(broker, topic)
    )
    whole = LimitLevel(
        f"{TOTAL_KEY} of {place_text(broker)}", case.total_origin(broker), total, total * scale, None,
        fleet=case.fleet_traffic(broker),
    )  # fmt: skip
    levels = _with_rates(own, meter, is_idle=rates is not None), _with_rates(whole, rates)
    now = (meter is not None and meter.over) or case.was_held(TOPIC_THRESHOLD, broker)
    note = scale_text(scale) or ("nothing is left of the total to share" if limit == 0 and not origin else "")
    if case.inputs.burst_s and case.inputs.on_exceed == "reject" and scale == 1.0:
        burst = f"{case.inputs.burst_s:g} s of each may pass above it at once, whatever the one-minute rate is"
        note = f"{note}; {burst}" if note else burst
    mode = case.effective_mode(case.inputs.threshold_mode, "threshold")
    effect: OnExceed = "delay" if scale != 1.0 else case.inputs.on_exceed  # as the engine does while disks fill up
    return ExplainedRule(TOPIC_THRESHOLD, broker, levels, effect, "produce", mode, now, note)


def _with_rates(level: LimitLevel, meter: TopicRate | BrokerRate | None, *, is_idle: bool = False) -> LimitLevel:
    """As the meter says; `is_idle`: there is none since nothing passes here."""
    level = level._replace(whole=level.limit)
    if meter is None:
        elsewhere = math.fsum(level.fleet.others.values())
        return level._replace(rate=elsewhere, here=0.0) if is_idle else level
    used = meter.limit_use
    if meter.bucket_use is not None:  # a bucket of this gateway's part decides
        return level._replace(limit=used.limit, rate=used.rate, wait_s=used.wait_s)
    return level._replace(rate=used.rate, here=meter.rate)


def _note_totals(case: ExplainCase, broker: int | None) -> None:
    own = None if broker is None else case.settings.get(PolicyKey.of_broker(broker))
    default = case.settings.get(PolicyKey.of_broker())
    if own is not None:
        case.add_shadowed_base(own.key, TOPIC_THRESHOLD, broker)
        if default is not None:
            why = f"broker {broker} has a total of its own, {exact_rate(as_number(own.value))}"
            origin = case.setting_origin(default.key)
            what = f"{TOTAL_KEY} of all brokers"
            case.add_shadowed(TOPIC_THRESHOLD, broker, what, origin, exact_rate(as_number(default.value)), why)
    elif default is not None and broker == case.brokers[0]:
        case.add_shadowed_base(default.key, TOPIC_THRESHOLD, None)


def _shadow_topic(case: ExplainCase, broker: int | None, value: float, why: str) -> None:
    topic = case.subject.topic
    origin = case.setting_origin(PolicyKey.of_topic(topic))
    case.add_shadowed(TOPIC_THRESHOLD, broker, f"{TOPIC_KEY} of topic {topic}", origin, exact_rate(value), why)


def _implicit_share(case: ExplainCase, broker: int | None, total: float | None) -> float | None:
    """The share of a topic without a threshold there, before the storage factor."""
    if total is None:
        return None
    rates = None if broker is None else case.broker_rates.get(broker)
    return implicit_share_of(case.inputs, broker, total, case.subject.topic, rates)


def implicit_share_of(
    known: ExplainInputs, broker: int | None, total: float, topic: str, rates: BrokerRate | None
) -> float:
    """The implicit threshold of a broker's topics before the storage factor: as the meters say, or, where no such topic
    has traffic, as BrokerLimits counts them, `topic` being one of its own.
    """
    explicit = known.policies.topic_thresholds()
    names = {*known.led_topics.get(-1 if broker is None else broker, ()), topic}
    if rates is not None:
        names.update(each.topic for each in rates.topics)
    left = max(0.0, total - math.fsum(explicit[name] for name in explicit.keys() & names))
    return left / max(1, sum(1 for name in names if name not in explicit and name not in INTERNAL_TOPICS))


def _find_topic_rate(rates: BrokerRate | None, topic: str) -> TopicRate | None:
    return None if rates is None else next((each for each in rates.topics if each.topic == topic), None)
