# What a stranger's bytes cost, before anybody knows who it is: lines of code run, and memory held, per byte sent. Time
# isn't looked at, so the figures are the same on every machine, and what is quadratic shows in frames of a few 10 kB.
#
# The frames are those that made the gateway work for seconds, or hold fifty times their size, per MB; and, to compare,
# the dearest that pay with batches: the bounds are half as much again as these cost. A frame may be refused; what
# counts is what it costs until then.

from __future__ import annotations

import gc
import struct
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from gateway.channel import GroupSnapshot
from policies.groups.group_limiters import GroupLimitValues
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.store import QuotaStore
from protocol.wire import MalformedFrame, put_uvarint
from tests.effort import lines_run
from tests.gateway.data.play import Play
from tests.protocol.batches import batch

SIZE = 100_000  # of a frame, about
LINES = 8.0  # of code, per byte
MEMORY = 22.0  # bytes held at once, per byte; what is sent on and answered is in it
TEXT = 400  # characters of a MalformedFrame: it becomes a log line
NAME = b"\x08%07d"
NULL = b"\0\0"  # records and tagged fields of a partition
PAID = bytes((len(batch()) + 1,)) + batch() + b"\0"


def framed(content: bytes) -> bytearray:
    return bytearray(struct.pack(">i", len(content)) + content)


def produce(count: int, topics: bytes, header_tags: bytes = b"\0") -> bytearray:
    head = struct.pack(">hhih", 0, 9, 1, 3) + b"app" + header_tags
    return framed(head + b"\0" + struct.pack(">hi", -1, 1000) + put_uvarint(count + 1) + topics + b"\0")


def partitions(count: int, rest: bytes) -> bytes:
    return put_uvarint(count + 1) + b"".join(struct.pack(">i", index) + rest for index in range(count)) + b"\0"


def one_topic(rest: bytes) -> bytearray:
    return produce(1, b"\x02t" + partitions(SIZE // (4 + len(rest)), rest))


def many_topics(each: bytes) -> bytearray:
    count = SIZE // (8 + len(each))
    return produce(count, b"".join(NAME % index + each for index in range(count)))


def plain_topics() -> bytearray:
    """v3: one null partition each."""
    count = SIZE // 21
    topics = b"".join(b"\0\x07%07d" % index + struct.pack(">iii", 1, 0, -1) for index in range(count))
    return framed(struct.pack(">hhihhhii", 0, 3, 7, -1, -1, -1, 1000, count) + topics)


def tags(count: int) -> bytes:
    return put_uvarint(count) + b"\x01\0" * count


def tagged_batches() -> bytearray:
    """As many tagged fields as there may be, behind every batch."""
    return one_topic(PAID[:-1] + tags(64))


def fetch(topics: bytes, count: int) -> bytearray:
    head = struct.pack(">hhih", 1, 12, 1, 3) + b"app\0" + struct.pack(">iiiibii", -1, 100, 1, 2**20, 0, 0, 0)
    return framed(head + put_uvarint(count + 1) + topics + b"\x01\x01\0")


def same_long_name_twice() -> bytearray:
    topic = put_uvarint(SIZE // 2 + 1) + b"\0" * (SIZE // 2) + b"\x02" + struct.pack(">i", 0) + NULL + b"\0"
    return produce(2, topic * 2)


FRAMES: dict[str, Callable[[], bytearray]] = {
    "one topic, null partitions": lambda: one_topic(NULL),
    "topics without partitions": lambda: many_topics(b"\x01\0"),
    "topics with a null partition": lambda: many_topics(partitions(1, NULL)),
    "topics with a null partition, v3": plain_topics,
    "topics with a batch": lambda: many_topics(partitions(1, PAID)),
    "batches": lambda: one_topic(PAID),
    "batches with tagged fields": tagged_batches,
    "Produce, header of tagged fields": lambda: produce(0, b"", tags(SIZE // 2)),
    "ApiVersions, header of tagged fields": lambda: framed(struct.pack(">hhih", 18, 3, 1, -1) + tags(SIZE // 2)),
    "Fetch, topics without partitions": lambda: fetch(b"\x01\x01\0" * (SIZE // 3), SIZE // 3),
    "one name twice": same_long_name_twice,
}


def plain() -> Play:
    return Play().named()


def delayed() -> Play:
    play = plain()
    play.engine.set_thresholds(1e6, {}, on_exceed="delay")
    return play


def rejected() -> Play:
    return Play(total=1000.0).named().overload("t")


def under_quota() -> Play:
    play = plain()
    entity = Entity.from_pairs((("client-id", "app"),))
    play.world.quotas.set_quotas(QuotaStore({entity: {QuotaKey.parse("producer_byte_rate"): 1e3}}), play.now)
    return play


def in_groups() -> Play:
    play = plain()
    play.world.set_groups(GroupSnapshot(1, {"gold": GroupLimitValues(10**3, None, 10**3)}, {"acme": "gold"}), play.now)
    return play


STAGES = (plain, delayed, rejected, under_quota, in_groups)


def peak_of(run: Callable[[], object]) -> int:
    """How many bytes that holds at once."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def feed(play: Play, frame: bytearray) -> str:
    """Its text if it is malformed."""
    try:
        play.session.on_client_bytes(frame, 0, len(frame), play.now)
    except MalformedFrame as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """What other tests left behind is not taken away in the middle of one of these: it would be counted as well."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_the_cost_of_a_frame_is_bounded_by_its_size(make: Callable[[], bytearray], stage: Callable[[], Play]) -> None:
    frame, play = make(), stage()
    assert lines_run(feed, play, frame) / len(frame) < LINES
    frame, play = make(), stage()
    assert peak_of(lambda: feed(play, frame)) / len(frame) < MEMORY
    assert len(feed(stage(), make())) < TEXT
