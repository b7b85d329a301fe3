# Rules of thresholds: a topic's and its broker's total, both of which have to be exceeded.

from __future__ import annotations

from collections.abc import Iterator

from policies.definitions.policy_values import PolicyKey, as_number
from policies.engine import INTERNAL_TOPICS
from policies.explain.case import ExplainCase
from policies.limits.description import LimitDescription, place_text
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY
from policies.units import exact_rate
from policies.verdict import TOPIC_THRESHOLD


def threshold_rules(case: ExplainCase) -> Iterator[LimitDescription]:
    topic = case.subject.topic
    key = PolicyKey.of_topic(topic)
    explicit = case.inputs.policies.topic_thresholds().get(topic)
    if explicit is not None:
        case.add_shadowed_base(key, TOPIC_THRESHOLD, None)
    for broker in case.brokers:
        _note_totals(case, broker)
        limits = case.limits.of_broker(broker, topic)
        share = limits.thresholds.configured_share
        if share is None:
            if explicit is not None:
                why = f"without {TOTAL_KEY} on {place_text(broker)} nothing is ever over"
                origin, what = case.setting_origin(key), f"{TOPIC_KEY} of topic {topic}"
                case.add_shadowed(TOPIC_THRESHOLD, broker, what, origin, exact_rate(explicit), why)
            continue
        if explicit is not None:
            why = f"the topic has {TOPIC_KEY} of its own"
            case.add_shadowed(TOPIC_THRESHOLD, broker, "implicit share", "computed", exact_rate(share), why)
        elif topic in INTERNAL_TOPICS:
            why = "Kafka's internal topics have no implicit threshold"
            case.add_shadowed(TOPIC_THRESHOLD, broker, "implicit share", "computed", "", why)
        origins = case.setting_origin(key), case.total_origin(broker)
        fleet = case.fleet_traffic(broker, topic), case.fleet_traffic(broker)
        found = limits.describe_threshold(topic, case.limits.rate_of(broker), origins, fleet)
        if found is not None:
            held = case.was_held(TOPIC_THRESHOLD, broker)
            yield found._replace(limits_now=found.limits_now or held)


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
