# The topics of a Metadata answer, walked for their ids: compiled and as Python, in every buffer that answers are in.
# Whole answers against kio's encoder, in both forms, are in test_rewrite.py.

from __future__ import annotations

import mmap
import random
import uuid
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from protocol import api
from protocol.wire import MalformedFrame, put_uvarint
from tests.protocol.kio_messages import answer_class, element, kio_encode
from tests.variants import COMPILED, PURE, module


def mapped(content: bytes) -> mmap.mmap:
    """As a link keeps a large answer: with room behind it."""
    made = mmap.mmap(-1, 1 << 16)
    made[: len(content)] = content
    return made


@pytest.fixture(params=[PURE, COMPILED])
def walker(request: pytest.FixtureRequest) -> ModuleType:
    return module("protocol.rewriting.metadata_topics", request.param)


def topics(count: int, partitions: int) -> tuple[bytes, dict[bytes, bytes]]:
    """The array of topics as kio encodes it, and its ids."""
    cls = answer_class(api.METADATA, 12)
    topic = element(cls, "topics")
    partition = element(topic, "partitions")
    chance = random.Random(5)
    made = tuple(
        topic(
            error_code=ErrorCode(0),
            name=f"topic-{number}",
            topic_id=uuid.UUID(int=chance.getrandbits(128)),
            partitions=tuple(
                partition(
                    error_code=ErrorCode(0), partition_index=index, leader_id=1, leader_epoch=3,
                    replica_nodes=nodes, isr_nodes=nodes, offline_replicas=nodes[:1],
                )
                for index in range(partitions)
                for nodes in [tuple(chance.sample(range(300), chance.randrange(1, 5)))]
            ),
        )
        for number in range(count)
    )  # fmt: skip
    empty = kio_encode(cls(throttle_time=timedelta(), brokers=(), topics=()))
    content = kio_encode(cls(throttle_time=timedelta(), brokers=(), topics=made))
    assert empty.endswith(b"\x01\x00")  # no topics, no tagged fields
    return content[len(empty) - 2 : -1], {each.topic_id.bytes: each.name.encode() for each in made}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, mapped])
@pytest.mark.parametrize("partitions", [0, 1, 126, 127, 400])  # a count of more than 126 takes two bytes
def test_all_ids_are_found(walker: ModuleType, partitions: int, kind: Callable[[bytes], Any]) -> None:
    array, ids = topics(3, partitions)
    before = b"\xff" * 7
    buf = kind(before + array + b"\x00")
    assert walker.read_new_ids(buf, len(before), len(before + array) + 1, {}) == (len(before + array), ids)


def test_known_ids_are_not_found_again(walker: ModuleType) -> None:
    array, ids = topics(3, 2)
    known, *rest = ids
    found = walker.read_new_ids(bytearray(array), 0, len(array), {known: b"as it was"})
    assert found == (len(array), {topic_id: ids[topic_id] for topic_id in rest})


@pytest.mark.parametrize("kind", [bytearray, mapped])
def test_an_array_that_is_cut_is_malformed(walker: ModuleType, kind: Callable[[bytes], Any]) -> None:
    array, _ = topics(3, 2)
    for cut in range(len(array)):
        with pytest.raises(MalformedFrame):
            walker.read_new_ids(kind(array[:cut]), 0, cut, {})
        with pytest.raises(MalformedFrame):  # the rest is in the buffer, but not in the frame
            walker.read_new_ids(kind(array), 0, cut, {})


def test_what_is_behind_the_frame_has_no_say(walker: ModuleType) -> None:
    """A count in more bytes than it needs, in the last partition: the fast steps would look beyond the buffer's end."""
    array, ids = topics(1, 1)
    at = 2 + array.index(b"\x00\x00\x00\x01\x00\x00\x00\x03") + 6  # the count of replicas, behind leader and epoch
    assert 1 < array[at] < 6
    long = array[:at] + bytes((array[at] | 0x80, 0)) + array[at + 1 :]
    for behind in (b"", bytes(1000), b"\xff" * 1000):
        assert walker.read_new_ids(bytearray(long + behind), 0, len(long), {}) == (len(long), ids)


def test_both_forms_say_the_same_of_any_bytes() -> None:
    pure, compiled = (module("protocol.rewriting.metadata_topics", variant) for variant in (PURE, COMPILED))
    array, _ = topics(3, 3)
    chance = random.Random(11)

    def said(walker: ModuleType, content: bytearray) -> Any:
        try:
            return walker.read_new_ids(content, 0, len(content), {})
        except MalformedFrame:
            return "malformed"

    outcomes = set()
    for _ in range(5000):
        content = bytearray(array)
        for _ in range(chance.randrange(1, 4)):
            content[chance.randrange(len(content))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        found = said(pure, content)
        assert said(compiled, content) == found, content
        outcomes.add(found == "malformed")
    assert outcomes == {True, False}


def test_a_count_that_the_frame_has_no_room_for_is_malformed(walker: ModuleType) -> None:
    content = put_uvarint(2**32 - 1) + bytes(100)
    with pytest.raises(MalformedFrame):
        walker.read_new_ids(bytearray(content), 0, len(content), {})
