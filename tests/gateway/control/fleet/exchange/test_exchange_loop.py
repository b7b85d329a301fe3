# The exchange's own loop, without a topic: a reader that always has more, and a writer that only collects.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import trio
from confluent_kafka import KafkaError, KafkaException
from trio.testing import MockClock

from gateway.control.fleet.exchange import usage_codec as form
from gateway.control.fleet.exchange.exchange import REPORTS_PER_CYCLE, RETRY_S, GatewayUsage, UsageExchange
from gateway.control.fleet.exchange.reader import MAX_READ_MESSAGES, ReportRecord
from gateway.control.fleet.exchange.usage_codec import GatewayTraffic
from gateway.kafka.internal_topic import LOOKUP_INTERVAL_S, TopicPresent
from policies.fleet.keys import FleetKey, total_key
from policies.fleet.shares import LimitDemand


class Flood:
    is_reading = True

    async def read_records(self) -> list[ReportRecord]:
        await trio.sleep(0.25)
        return [ReportRecord(b"", None, None)] * MAX_READ_MESSAGES


async def test_who_is_there_is_judged_once_per_cycle_however_much_comes(
    autojump_clock: MockClock,
) -> None:
    exchange = UsageExchange({}, "t", "a", SimpleNamespace(find_limit=None, on_exchange_state=lambda up: None))
    exchange._reader = Flood()  # type: ignore[assignment]
    exchange.health.is_up = True
    with trio.move_on_after(3.1):
        await exchange._read_messages()
    assert exchange.peers.drop_counts["malformed"] > MAX_READ_MESSAGES
    assert not exchange.health.is_up


class Collector:
    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.wrote_at = -math.inf
        self.times: list[float] = []

    def is_free(self, now: float) -> bool:
        return True

    def write_report(self, messages: Sequence[bytes], now: float) -> None:
        self.messages += messages
        self.wrote_at = now
        self.times.append(now)


def make_party(usage: Mapping[FleetKey, LimitDemand], published: Callable[[Sequence[FleetKey]], object]) -> Any:
    return SimpleNamespace(
        find_limit=lambda _: None,
        busiest_traffic=GatewayTraffic,
        on_report_published=published,
        current_usage=lambda: GatewayUsage(usage, None, 1),
    )


async def test_what_is_urgent_is_told_at_once_and_at_most_five_times_per_cycle(autojump_clock: MockClock) -> None:
    exchange = UsageExchange({}, "t", "a", make_party({}, Mock()), cycle_s=10.0)
    exchange._reader, exchange.writer = Flood(), (written := Collector())  # type: ignore[assignment]
    exchange._found, began = TopicPresent("one", frozenset({0})), trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange._report_each_cycle)
        await trio.sleep(25.0)
        exchange.report_soon()
        await trio.sleep(4.0)
        assert [at - began for at in written.times] == pytest.approx([0.0, 10.0, 20.0, 25.0])
        written.times.clear()
        for _ in range(200):
            exchange.report_soon()
            await trio.sleep(0.1)
        assert 10 <= len(written.times) <= 1 + 2 * (REPORTS_PER_CYCLE + 1)
        nursery.cancel_scope.cancel()


async def test_limits_have_the_numbers_of_the_topic_that_a_report_is_written_to(
    autojump_clock: MockClock,
) -> None:
    key, published = total_key(1), Mock()
    exchange = UsageExchange({}, "t", "a", make_party({key: LimitDemand(5.0)}, published))
    exchange._reader, exchange.writer = Flood(), (written := Collector())  # type: ignore[assignment]
    for topic_id in ("one", "another"):
        exchange._found = TopicPresent(topic_id, frozenset({0}))
        await exchange._send_report()
        [message] = written.messages
        assert list(form.decode_usage(message).limits.limit) == [form.limit_id(key, topic_id.encode())]
        written.messages.clear()
    assert [call.args for call in published.call_args_list] == [([key],), ([],)], "peers count what was reported first"


async def test_a_writer_that_cannot_be_made_just_now_is_made_later(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, found = UsageExchange({}, "t", "a", SimpleNamespace(find_limit=None)), TopicPresent("one", frozenset({0}))
    made = Mock(side_effect=[KafkaException(KafkaError(KafkaError._INVALID_ARG)), None])
    find = Mock(return_value=found)
    monkeypatch.setattr(exchange, "_find_topic", find)
    monkeypatch.setattr(exchange.writer, "open", made)
    with trio.move_on_after(20.0):
        await exchange._maintain_topic()
    assert made.call_count == 2
    assert exchange._found == found
    assert 20 < find.call_count <= 20.0 / RETRY_S
    exchange.health.is_up = True
    find.reset_mock()
    with trio.move_on_after(4.5 * LOOKUP_INTERVAL_S):
        await exchange._maintain_topic()
    assert find.call_count == 5, "once it works, brokers are asked seldom"


async def test_a_gateway_that_hears_itself_again_repeats_what_it_uses(autojump_clock: MockClock) -> None:
    exchange = UsageExchange({}, "t", "a", SimpleNamespace(find_limit=None, on_exchange_state=lambda up: None))
    key, now = total_key(1), trio.current_time()
    exchange._reporter.record_demands({key: LimitDemand(5.0)})
    assert len(list(exchange._reporter.make_report())) == 1
    [message] = exchange._reporter.make_report(is_turn=False)
    assert not form.decode_usage(message).limits.limit
    # it was stopped for so long that others have forgotten what it uses, and it can't know
    exchange.peers.clock.learn_offset(None, now, now, 1.0)
    exchange._judge_peers(now)
    assert exchange._reporter.is_report_requested
    [message] = exchange._reporter.make_report(is_turn=False)
    assert list(form.decode_usage(message).limits.limit) == [form.limit_id(key)]
