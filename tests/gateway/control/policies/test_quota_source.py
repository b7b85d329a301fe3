# Thresholds from a source of the operator's own: when it is asked, and what becomes of it when it hangs, fails, or says
# what can't be. Time is trio's mock clock.

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gateway.control.policies.quota_source import ThresholdFeed
from policies.storage import ObservationFailed, QuotaValues
from tests.background import until


class Source:
    """Answers as the test wants: returns a value, raises an exception, or waits for an event."""

    def __init__(self, said: Any) -> None:
        self.said = said
        self.asked = 0
        self.is_under_way: Callable[[], bool] = lambda: False  # until the feed has what the thread said

    def close(self) -> None:
        pass

    def quotas(self) -> Any:
        self.asked += 1
        said = self.said
        if isinstance(said, threading.Event):
            said.wait(60)
            return QuotaValues(1.0, {})
        if isinstance(said, BaseException):
            raise said
        return said


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[..., Any]:
    caplog.set_level("INFO")
    return lambda: [record.getMessage().removeprefix("thresholds.source: ") for record in caplog.records]


async def start(nursery: trio.Nursery, source: Source) -> list[Any]:
    taken = []

    async def take(total: float | None, topics: dict[str, float]) -> None:
        taken.append((total, topics))

    feed = ThresholdFeed(source, 60.0, take)
    source.is_under_way = lambda: bool(feed._bounded_call._thread.borrowed_tokens)
    nursery.start_soon(feed.run)
    return taken


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ObservationFailed("away"), "away"),
        (SystemExit(3), "SystemExit: 3"),
        (SimpleNamespace(total="much", topics={}), "ValueError: could not convert string to float: 'much'"),
        (None, "AttributeError: 'NoneType' object has no attribute 'total'"),
        (QuotaValues(1.0, {"clicks": -2.0}), "bytes.in.per.sec.threshold of topic clicks: -2.0 must be"),
    ],
)
async def test_a_mistake_of_a_source_is_one_line_and_the_last_thresholds_stay(
    mock_clock: MockClock, lines: Callable[..., Any], said: Any, told: str
) -> None:
    source = Source(QuotaValues(5.0, {"clicks": 2.0}))
    async with trio.open_nursery() as nursery:
        taken = await start(nursery, source)
        await until(lambda: taken)
        source.said = said
        for count in (2, 3):
            mock_clock.jump(60)
            await until(lambda count=count: source.asked == count and not source.is_under_way())
        source.said = QuotaValues(7.0, {})
        mock_clock.jump(60)
        await until(lambda: len(taken) == 2)
        nursery.cancel_scope.cancel()
    assert taken == [(5.0, {"clicks": 2.0}), (7.0, {})]
    (line,) = [each for each in lines() if each.endswith("; the last thresholds stay")]
    assert line.startswith(told)


async def test_a_source_that_hangs_is_given_up_and_not_asked_again_until_it_is_back(
    mock_clock: MockClock, lines: Callable[..., Any]
) -> None:
    source = Source(threading.Event())
    try:
        async with trio.open_nursery() as nursery:
            taken = await start(nursery, source)
            await until(lambda: source.asked == 1)
            mock_clock.jump(61)
            await until(lambda: any(line.startswith("no answer within 60 s") for line in lines()))
            mock_clock.jump(60)
            await until(lambda: any("has not answered" in line for line in lines()))
            assert source.asked == 1
            source.said, gate = QuotaValues(7.0, {}), source.said
            gate.set()
            await until(lambda: not source.is_under_way())
            mock_clock.jump(60)
            await until(lambda: taken == [(7.0, {})])
            nursery.cancel_scope.cancel()
    finally:
        if isinstance(source.said, threading.Event):
            source.said.set()
