# Which consumer reads reports, without a broker. With one: tests/integration/cluster/test_recreated_topics.py.

from __future__ import annotations

from unittest.mock import Mock

import pytest

from gateway.control.fleet.exchange.reader import ReportReader
from gateway.kafka import topic_consumer


async def test_a_topic_that_is_recreated_while_its_ends_are_looked_up_is_read_with_another_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumers: list[Mock] = []
    reader = ReportReader({}, "t", Mock())

    def find_ends(*_: object) -> tuple[int, int]:
        if len(consumers) == 1:
            reader.renew_consumer()
        return 0, 5

    def make(_: object) -> Mock:
        consumers.append(Mock(get_watermark_offsets=find_ends, poll=lambda _: None))
        return consumers[-1]

    monkeypatch.setattr(topic_consumer, "Consumer", make)
    reader.renew_consumer()
    reader.follow_partitions(frozenset({0}))
    while not reader.is_reading:
        await reader.read_records()
    old, new = consumers
    assert (old.close.call_count, new.close.call_count, new.assign.call_count) == (1, 0, 1)
