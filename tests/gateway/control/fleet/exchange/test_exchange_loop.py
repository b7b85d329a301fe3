# The exchange's own loop, without a topic: a reader that always has more, and a writer that only collects.

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import trio
import trio.testing

from gateway.control.fleet.exchange import form
from gateway.control.fleet.exchange.exchange import Exchange, Present
from gateway.control.fleet.exchange.form import GatewayTraffic
from gateway.control.fleet.exchange.reader import MAX_AT_ONCE, Record
from gateway.kafka import internal_topic
from policies.fleet.keys import total_key
from policies.fleet.shares import Use


class Flood:
    is_reading = True

    async def read(self) -> list[Record]:
        await trio.sleep(0.25)
        return [Record(b"", None, None)] * MAX_AT_ONCE


async def test_who_is_there_is_judged_once_per_cycle_however_much_comes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    exchange = Exchange({}, "t", "a", SimpleNamespace(limit_of=None, follow_exchange=lambda up: None))
    exchange._reader = Flood()  # type: ignore[assignment]
    exchange.health.up = True
    with trio.move_on_after(3.1):
        await exchange._read()
    assert exchange.peers.counts["malformed"] > MAX_AT_ONCE
    assert not exchange.health.up


class Collector:
    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def is_free(self, now: float) -> bool:
        return True

    def write(self, messages: Sequence[bytes], now: float) -> None:
        self.messages += messages


async def test_limits_have_the_numbers_of_the_topic_that_a_report_is_written_to(
    autojump_clock: trio.testing.MockClock,
) -> None:
    key = total_key(1)
    party = SimpleNamespace(
        limit_of=lambda _: None,
        traffic=GatewayTraffic,
        publish=lambda _: None,
        present=lambda: Present({key: Use(5.0)}, None, 1),
    )
    exchange = Exchange({}, "t", "a", party)
    exchange._reader, exchange.writer = Flood(), (written := Collector())  # type: ignore[assignment]
    for topic_id in ("one", "another"):
        exchange._found = internal_topic.Present(topic_id, frozenset({0}))
        await exchange._report()
        [message] = written.messages
        assert list(form.unpack(message).limits.limit) == [form.limit_id(key, topic_id.encode())]
        written.messages.clear()
