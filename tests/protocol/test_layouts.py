# The runs of fields, against the formats that they are made of: each number is where Kafka's messages have it.

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from protocol import layouts
from protocol.wire import Buffer

BATCH = struct.pack(">qiibIhiqqqhii", 1, 1000, 3, 2, 4, 5, 6, 7, 8, 9000, 10, 11, 12)  # KIP-98
READ = (1000, 2, 9000, 10, 11, 12)


@pytest.mark.parametrize(
    ("name", "content", "fields"),
    [
        ("version_and_client", struct.pack(">hhih", 0, 9, 77, 3), (9, 3)),
        ("acks_and_topics", struct.pack(">hiB", -1, 30_000, 2), (-1, 2)),
        ("batch", BATCH, READ),
        ("flexible_partition", struct.pack(">iBBBB", 5, 1, 2, 3, 4), (5, 1, 2, 3, 4)),
        ("short_partition", struct.pack(">BiB", 0, 5, 100) + BATCH, (0, 5, 100, *READ)),
        ("partition", struct.pack(">BiBB", 0, 5, 200, 1) + BATCH, (0, 5, 200, 1, *READ)),
        ("plain_partition", struct.pack(">ii", 5, 100), (5, 100)),
        ("answer_head", struct.pack(">iBB", 77, 0, 2), (0, 2)),
        ("answered", struct.pack(">ihqqqBBB", 5, 6, 7, -1, -2, 1, 0, 3), (5, 6, 7, 1, 0, 3)),
        ("plain_answered", struct.pack(">ihq", 5, 6, 7), (5, 6, 7)),
        ("record_errors_and_message", struct.pack(">ih", 0, -1), (0, -1)),
        ("flexible_head", struct.pack(">BBhiB", 0, 4, -1, 30_000, 2), (0, 4, -1, 2)),
        ("plain_head", struct.pack(">hhii", -1, 1, 30_000, 2), (-1, 1, 2)),
        ("flexible_topic", struct.pack(">BiBBBB", 2, 5, 1, 2, 3, 4), (2, 5, 1, 2, 3, 4)),
        ("plain_topic", struct.pack(">iii", 2, 5, 100), (2, 5, 100)),
        ("flexible_answer", struct.pack(">BihqqqBBB", 2, 5, 6, 7, -1, -2, 1, 0, 3), (2, 5, 6, 7, 1, 0, 3)),
        ("plain_answer", struct.pack(">iihq", 2, 5, 6, 7), (2, 5, 6, 7)),
    ],
)
def test_a_run_has_the_fields_of_the_message(name: str, content: bytes, fields: tuple[Any, ...]) -> None:
    run = getattr(layouts, name)
    assert run(b"??" + content, 2) == fields
    with pytest.raises(struct.error):
        run(content[:-1], 0)


def test_a_byte_is_a_number() -> None:
    assert layouts.byte(bytearray(b"\x00\xff"), 1) == 255
    with pytest.raises(IndexError):
        layouts.byte(b"", 0)


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_string_stands_there_or_not(kind: Callable[[bytes], Buffer]) -> None:
    assert layouts.has(kind(b"??name!"), 2, b"name")
    assert not layouts.has(kind(b"??nam"), 2, b"name")
    assert not layouts.has(kind(b"??nome"), 2, b"name")


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_name_is_of_bytes(kind: Callable[[bytes], Buffer]) -> None:
    found = layouts.name(kind(b"??name!"), 2, 4)
    assert found == b"name"
    assert type(found) is bytes
    assert layouts.name(kind(b"??"), 2, 0) == b""
