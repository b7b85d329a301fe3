# The exchange's own loop, without a topic: a reader that always has more, and a writer that only collects.

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import trio
from confluent_kafka import KafkaError, KafkaException
from trio.testing import MockClock

from gateway.control.fleet.exchange import usage_codec as form
from gateway.control.fleet.exchange.exchange import GatewayUsage, UsageExchange
from gateway.control.fleet.exchange.reader import MAX_READ_MESSAGES, ReportRecord
from gateway.control.fleet.exchange.usage_codec import GatewayTraffic
from gateway.kafka.internal_topic import TopicPresent
from policies.fleet.keys import total_key
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

    def is_free(self, now: float) -> bool:
        return True

    def write_report(self, messages: Sequence[bytes], now: float) -> None:
        self.messages += messages


async def test_limits_have_the_numbers_of_the_topic_that_a_report_is_written_to(
    autojump_clock: MockClock,
) -> None:
    key, published = total_key(1), Mock()
    party = SimpleNamespace(
        find_limit=lambda _: None,
        busiest_traffic=GatewayTraffic,
        on_report_published=published,
        current_usage=lambda: GatewayUsage({key: LimitDemand(5.0)}, None, 1),
    )
    exchange = UsageExchange({}, "t", "a", party)
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
    monkeypatch.setattr(exchange, "_find_topic", lambda: found)
    monkeypatch.setattr(exchange.writer, "open", made)
    with trio.move_on_after(20.0):
        await exchange._maintain_topic()
    assert made.call_count == 2
    assert exchange._found == found


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
