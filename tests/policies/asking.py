# One batch's way past the limits of an engine, as gateway/data/session/gate.py has it, step by step.

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from policies.decision import ClientPatience, RequestLimit, strictest_verdict
from policies.engine import PolicyEngine
from policies.fleet.page import SharedPage
from policies.groups.group_limiters import GroupLimit
from policies.limited_broker import LimitedBroker
from policies.meters.broker_meters import OTHER_TOPICS, BrokerMeters
from policies.meters.meter import TICK_S
from policies.meters.topic_meter import TopicMeter
from policies.thresholds.broker_limits import TopicThresholdLimit
from policies.verdict import DELAY, Verdict

T = TypeVar("T")


def present(found: T | None) -> T:
    """What was found; the test fails where there is nothing."""
    assert found is not None
    return found


def say(
    limit: RequestLimit | None, size: int, now: float, patience: ClientPatience, messages: int = 1
) -> Verdict | None:
    """What one limit says, marked where it is only observed; None: there is no such limit, or nothing to say."""
    why = None if limit is None else limit.judge_request(size, messages, patience, now)
    return replace(why, observed_only=True) if why is not None and limit is not None and limit.observes else why


def rejecting(total: float | None = 20_000_000, **topics: float) -> PolicyEngine:
    """An engine with thresholds that reject."""
    made = PolicyEngine(now=0.0)
    made.set_thresholds(total, topics)
    return made


def delaying(gateways: int = 2, each: float = 50_000.0, page: SharedPage | None = None) -> PolicyEngine:
    """A worker of one of so many gateways, with thresholds that delay: 100 kB/s, of which two topics have `each`."""
    engine = PolicyEngine(0.0, page=page)
    engine.fleet.update_grants({}, gateways, 2.0, 0.0)
    engine.set_peer_traffic({}, gateways)
    engine.set_thresholds(100_000.0, {"a": each, "b": each}, on_exceed="delay")
    engine.set_listed_topics(1, ["a", "b", "new"])
    return engine


def fill(made: PolicyEngine, node_id: int = 1, **rates: float) -> None:
    """One tick's worth of traffic at these rates, and the tick."""
    for topic, rate in rates.items():
        record(made.broker_meters(node_id), topic.encode(), round(rate * TICK_S))
    made.apply_due_ticks(made.next_tick_at)


def threshold_of(broker: LimitedBroker, topic: bytes) -> float | None:
    """The threshold in force of a topic, bytes per second; None where nothing limits it."""
    return broker.limits.thresholds.effective_threshold(broker.topics.get(topic) or broker.add_topic(topic))


def meter_of(broker: BrokerMeters, topic: bytes) -> TopicMeter | None:
    return broker.topics.get(topic) or broker.topics.get(OTHER_TOPICS)


def threshold(engine: PolicyEngine, node_id: int, topic: bytes) -> TopicThresholdLimit | None:
    """The topic's threshold, where it has to be asked."""
    broker = engine.broker_meters(node_id)
    meter = meter_of(broker, topic)
    return TopicThresholdLimit(broker.limits, meter, topic) if meter is not None and meter.thresholds_ask else None


def decide(
    engine: PolicyEngine,
    node_id: int,
    topic: bytes,
    size: int,
    now: float,
    *,
    may_delay: bool = True,
    denied_s: float = 0.0,
) -> Verdict | None:
    """What the topic's threshold says."""
    return say(threshold(engine, node_id, topic), size, now, ClientPatience(may_delay, denied_s))


def rejection(engine: PolicyEngine, node_id: int, topic: bytes, now: float) -> Verdict:
    """Why a topic that is over is rejected."""
    return present(decide(engine, node_id, topic, 1, now))


def storage(engine: PolicyEngine, node_id: int, size: int, now: float) -> Verdict | None:
    """What the line of all producers says."""
    return say(engine.broker_meters(node_id).limits.storage_throttle, size, now, ClientPatience())


def begin(made: PolicyEngine, *topics: str, node_id: int = 1) -> None:
    """These topics' meters, and the broker's, begin with the very second at hand, not within it."""
    for topic in topics:
        made.broker_meters(node_id).confirm_topic(topic.encode())
    ticks = made._ticks
    for beginning in ticks._new_meters.values():
        if beginning._second is None:
            beginning.try_start(ticks._last_second_at, ticks._seconds)


def record(broker: BrokerMeters, topic: bytes, size: int) -> bool:
    """Count `size` bytes that got in and say True, or count them as throttled: False.

    For tests of rates and of what is over. Who counts so: tests/gateway/data/session/limits/test_record_quota.py.
    """
    meter = broker.topics.get(topic) or broker.add_topic(topic)
    if meter.thresholds_ask:
        broker.throttled.uncounted += size
        return False
    meter.uncounted += size
    broker.total.uncounted += size
    broker.confirm_topic(topic)
    return True


class Request:
    """A batch for a topic that a broker has vouched for. `asked`: whether any limit had to be."""

    def __init__(self, engine: PolicyEngine, topic: bytes, size: int, messages: int = 1, node_id: int = 1) -> None:
        self.engine, self.topic, self.size, self.messages = engine, topic, size, messages
        self.broker = engine.broker_meters(node_id)
        self.broker.confirm_topic(topic)
        self.meter = self.broker.topics[topic]
        self.asked = self.meter.needs_decision
        self.group: GroupLimit | None = None
        self.threshold = threshold(engine, node_id, topic)
        self.said: dict[RequestLimit | None, Verdict | None] = {}

    def ask(self, now: float, *, may_delay: bool = True, denied_s: float = 0.0) -> Verdict | None:
        """What its group and its threshold say together."""
        if self.meter.group_asks:
            self.group = self.engine.groups.activate_publish_limit(self.meter, self.topic, now)
        patience = ClientPatience(may_delay, denied_s)
        self.said = {each: say(each, self.size, now, patience, self.messages) for each in (self.group, self.threshold)}
        return strictest_verdict(self.said.values())

    def admit(self, now: float) -> None:
        """It passes."""
        for limit in (self.group, self.threshold):
            why = self.said.get(limit)
            if limit is not None and (why is None or why.action == DELAY):
                limit.charge_request(self.size, self.messages, now)
            elif limit is not None:
                limit.record_only(self.size, self.messages)
        self.meter.uncounted += self.size
        self.broker.total.uncounted += self.size
        if self.group is None:
            self.meter.messages += self.messages
        else:
            self.meter.counted_in_group += self.size
