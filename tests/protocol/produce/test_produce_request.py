from __future__ import annotations

import contextlib
import mmap
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from protocol.produce import produce_request
from protocol.produce.produce_request import MAX_PARTITIONS, TooManyPartitions
from protocol.wire import MalformedFrame, TooManyTags
from tests.examples import FEW
from tests.protocol import batches
from tests.protocol import produce_cases as cases
from tests.protocol.produce_cases import Batch, Request, Topic
from tests.variants import COMPILED, PURE, running

VERSIONS = pytest.mark.parametrize("version", cases.VERSIONS)
EDGES = pytest.mark.parametrize("version", cases.EDGES)
FLEXIBLE = pytest.mark.parametrize("version", range(9, 14))
PLAIN = pytest.mark.parametrize("version", range(3, 9))

BATCH = batches.batch([b"one", b"two"], producer_id=4000, epoch=3, sequence=17)
CLICKS = bytes(range(16))
VIEWS = bytes(range(16, 32))


@pytest.fixture(scope="module", params=[PURE, COMPILED], autouse=True)
def variant(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the fast reader before the careful one, and without."""
    with running(request.param):
        yield


def whole(records: bytes = BATCH) -> Batch:
    return Batch(records, (len(BATCH), 2, 4000, 3, 17, len(records) - len(BATCH)))


def one(version: int, batch: Batch | None = None) -> Request:
    return Request(version, "app", None, -1, [Topic("clicks", CLICKS, [(3, batch or whole())])])


def several(version: int) -> Request:
    other = Batch(batches.batch([b"x" * 200]), (len(batches.batch([b"x" * 200])), 1, -1, -1, -1, 0))
    clicks = Topic("clicks", CLICKS, [(3, whole()), (0, other), (7, cases.strange(None))])
    return Request(version, "app", "tx-1", 1, [clicks, Topic("views", VIEWS, [(3, other), (1, whole(BATCH + b"??"))])])


def expected(request: Request) -> tuple[Any, ...]:
    partitions = [
        (cases.key(topic, request.version), index, *batch.read)
        for topic in request.topics
        for index, batch in topic.partitions
    ]
    client_id = None if request.client_id is None else request.client_id.encode()
    transactional_id = None if request.transactional_id is None else request.transactional_id.encode()
    return request.version, request.acks, client_id, transactional_id, partitions


def skim_at(buf: bytes | bytearray | memoryview, start: int, end: int, most: int = MAX_PARTITIONS) -> Any:
    return cases.told(produce_request.skim_request(buf, start, end, most))


def skim(content: bytes | bytearray | memoryview) -> Any:
    return skim_at(content, 0, len(content))


def without(request: Request, drop: set[tuple[bytes, int]]) -> Request:
    topics = []
    for topic in request.topics:
        kept = [(i, batch) for i, batch in topic.partitions if (cases.key(topic, request.version), i) not in drop]
        if kept or not topic.partitions:
            topics.append(topic._replace(partitions=kept))
    return request._replace(topics=topics)


# --- the cases themselves ---------------------------------------------------------------------------------------------


@given(cases.requests())
def test_kio_writes_the_same_bytes_as_the_cases_do_by_hand(request: Request) -> None:
    assert cases.kio_encode(request) == cases.encode(request)


# --- skim -------------------------------------------------------------------------------------------------------------


@given(cases.requests(), st.binary(max_size=70), st.binary(max_size=70))
def test_skim_reads_what_kio_wrote_between_other_frames(request: Request, before: bytes, after: bytes) -> None:
    content = cases.kio_encode(request)
    buffer = bytearray(before + content + after)
    assert skim_at(buffer, len(before), len(before) + len(content)) == expected(request)


@VERSIONS
def test_skim_reads_every_kind_of_buffer(version: int, kind: Callable[[bytes], Any]) -> None:
    for request in (one(version), several(version), Request(version, None, None, 0, [])):
        read = skim(kind(cases.encode(request)))
        assert read == expected(request)
        for value in (read[2], read[3], *(partition[0] for partition in read[4])):
            assert value is None or type(value) is bytes  # a view or bytearray would change, or be no key


@EDGES
def test_a_large_frame_is_read_where_it_is(version: int) -> None:
    """A megabyte of records in mapped memory (gateway/data/shared/budget.py): reading its header copies none of
    them.
    """
    request = one(version, whole(BATCH + bytes(1 << 20)))
    content = cases.encode(request)
    with contextlib.closing(mmap.mmap(-1, len(content))) as frame:
        frame[:] = content
        tracemalloc.start()
        try:
            read = skim_at(cast("bytearray", frame), 0, len(content))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert read[4][0][1] == 3
    assert peak < 64 * 1024


@EDGES
def test_no_client_id_and_a_long_one(version: int) -> None:
    for client_id in (None, "", "c" * 126, "c" * 127, "c" * 32767):
        request = one(version)._replace(client_id=client_id)
        assert skim(cases.encode(request)) == expected(request)


@EDGES
@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 16_383, 32_000])
def test_transactional_ids_and_names_of_every_length(version: int, size: int) -> None:
    request = one(version)._replace(transactional_id="x" * size)
    assert skim(cases.encode(request)) == expected(request)
    if size:
        request = request._replace(topics=[Topic("t" * size, CLICKS, [(0, whole()), (1, whole())])])
        assert skim(cases.encode(request)) == expected(request)


def _opaque(size: int) -> Batch:
    # the header of a batch and zeros: no CRC, so that it may be large
    records = bytearray(size)
    struct.pack_into(">qiib", records, 0, 0, size - 12, -1, 2)
    struct.pack_into(">qhii", records, 43, 9, 8, 7, 6)
    return Batch(bytes(records), (size, 6, 9, 8, 7, 0))


@EDGES
@pytest.mark.parametrize("size", [61, 126, 127, 128, 16_382, 16_383, 2**21 - 2, 2**21 - 1, 2**21])
def test_records_whose_length_takes_one_to_four_bytes(version: int, size: int) -> None:
    request = one(version, _opaque(size))
    assert skim(bytearray(cases.encode(request))) == expected(request)


@FLEXIBLE
def test_a_length_that_is_written_longer_than_it_must_be(version: int) -> None:
    # Kafka's reader takes them. Five bytes are also what 256 MiB of records would need.
    request = one(version, _opaque(100))
    content = cases.encode(request)
    for length in (b"\xe5\x00", b"\xe5\x80\x00", b"\xe5\x80\x80\x00", b"\xe5\x80\x80\x80\x00"):
        longer = content.replace(b"\0\0\0\3\x65", b"\0\0\0\3" + length)
        assert len(longer) == len(content) + len(length) - 1
        assert skim(longer) == expected(request)


SMALLEST = Batch(_opaque(61).records, _opaque(61).read)


def _spread(topics: int, each: int) -> list[Topic]:
    return [Topic(f"t{n}", n.to_bytes(16, "big"), [(i, SMALLEST) for i in range(each)]) for n in range(topics)]


@EDGES
@pytest.mark.parametrize(("topics", "each"), [(1, 6), (6, 1), (2, 3), (1, 150), (150, 1), (10, 15)])
def test_a_request_for_more_partitions_than_its_reader_allows_is_malformed(
    version: int, topics: int, each: int
) -> None:
    # Few of them are counted by the fast reading, more than 127 and tagged fields by the careful one.
    request = one(version)._replace(topics=_spread(topics, each))
    for tags in (cases.NO_TAGS, cases.UNKNOWN):
        content = cases.encode(request, tags)
        most = topics * each
        assert skim_at(content, 0, len(content), most) == expected(request)
        with pytest.raises(TooManyPartitions):
            skim_at(content, 0, len(content), most - 1)


@EDGES
def test_without_a_word_from_the_reader_the_bound_is_the_default(version: int) -> None:
    content = cases.encode(one(version)._replace(topics=_spread(1, MAX_PARTITIONS + 1)))
    with pytest.raises(TooManyPartitions):
        skim(content)
    # whoever passes a larger bound to skim may strip it
    assert produce_request.strip_partitions(content, 0, len(content), set()) == cases.framed(content)


@EDGES
@pytest.mark.parametrize(("topics", "each"), [(1, 150), (150, 1), (150, 0)], ids=["partitions", "both", "topics"])
def test_there_are_no_more_partitions_without_a_batch_than_the_bytes_of_batches_allow(
    version: int, topics: int, each: int
) -> None:
    none = [topic._replace(partitions=[(i, cases.strange(None)) for i in range(each)]) for topic in _spread(topics, 0)]
    request = one(version)._replace(topics=none)
    with pytest.raises(TooManyPartitions):
        skim(cases.encode(request))
    paid = [*none, Topic("paid", VIEWS, [(0, _opaque(61 * 150))])]
    assert skim(cases.encode(one(version)._replace(topics=paid))) == expected(one(version)._replace(topics=paid))
    few = one(version)._replace(topics=none[:1] if each == 150 else none[:60])
    few = few._replace(topics=[topic._replace(partitions=topic.partitions[:64]) for topic in few.topics])
    assert skim(cases.encode(few)) == expected(few)


@EDGES
@pytest.mark.parametrize("records", cases.STRANGE, ids=range(len(cases.STRANGE)))
def test_a_strange_batch_is_for_the_broker_to_refuse(version: int, records: bytes | None) -> None:
    assert skim(cases.encode(one(version, cases.strange(records))))[4] == [
        (cases.key(one(version).topics[0], version), 3, len(records or b""), 0, -1, -1, -1, 0)
    ]


@VERSIONS
def test_a_batch_with_a_wrong_length_or_count_is_strange(version: int) -> None:
    for at, value in ((8, 48), (8, -1), (8, len(BATCH) - 11), (8, 2**31 - 1), (57, -1)):
        broken = bytearray(BATCH)
        struct.pack_into(">i", broken, at, value)
        request = one(version, cases.strange(bytes(broken)))
        assert skim(cases.encode(request)) == expected(request)


@VERSIONS
def test_the_same_partition_twice_is_malformed(version: int) -> None:
    topic = Topic("clicks", CLICKS, [(3, whole()), (1, whole())])
    within = one(version)._replace(topics=[topic._replace(partitions=[*topic.partitions, (3, whole())])])
    across = one(version)._replace(topics=[topic, Topic("views", VIEWS, [(3, whole())]), topic])
    for request in (within, across):
        with pytest.raises(MalformedFrame, match="twice"):
            skim(cases.encode(request))
        with pytest.raises(MalformedFrame, match="twice"):
            produce_request.strip_partitions(cases.encode(request), 0, len(cases.encode(request)), set())


@VERSIONS
def test_a_topic_may_come_in_two_parts(version: int) -> None:
    parts = [Topic("clicks", CLICKS, [(index, whole())]) for index in (3, 1)]
    request = one(version)._replace(topics=parts)
    assert skim(cases.encode(request)) == expected(request)


@given(cases.requests(), st.integers(-1, 2**31 - 1))
def test_the_timeout_is_the_one_that_was_written(request: Request, timeout_ms: int) -> None:
    content = cases.encode(request._replace(timeout_ms=timeout_ms))
    assert produce_request.read_timeout_ms(b"?" + content + b"?", 1, 1 + len(content)) == timeout_ms
    with pytest.raises(MalformedFrame):
        produce_request.read_timeout_ms(content, 0, content.index(struct.pack(">hi", request.acks, timeout_ms)) + 5)


def checksums(content: bytes) -> list[int]:
    return produce_request.batch_checksums(content, 0, len(content), skim(content)[4])


def expected_checksums(request: Request) -> list[int]:
    return [
        crc32c(batch.records[21 : batch.read[0]]) if batch.records and batch.read[1] else -1
        for topic in request.topics
        for _, batch in topic.partitions
    ]


@given(cases.requests(batch=cases.whole_batches()))
def test_checksums_are_those_of_the_batches_in_the_order_of_skim(request: Request) -> None:
    assert checksums(cases.encode(request)) == expected_checksums(request)


@VERSIONS
def test_checksums_are_found_behind_and_between_other_tagged_fields(version: int) -> None:
    requests = [one(version), several(version), one(version, whole(BATCH + BATCH + b"\0\0\0"))]
    for request in requests:
        assert -1 not in (found := checksums(cases.encode(request)))[:1]
        assert found == expected_checksums(request)
        if version >= 9:
            assert checksums(cases.encode(request, cases.UNKNOWN)) == found
    for records in cases.STRANGE:
        assert checksums(cases.encode(one(version, cases.strange(records)))) == [-1]


@VERSIONS
def test_the_checksum_of_the_usual_request_is_read_fast(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [cases.encode(one(version)), cases.encode(one(version, whole(BATCH + b"??")))]
    read = [skim(content)[4] for content in contents]
    monkeypatch.setattr(produce_request, "_walk_request", None)
    for content, parts in zip(contents, read, strict=True):
        assert produce_request.batch_checksums(content, 0, len(content), parts) == [crc32c(BATCH[21:])]


@FLEXIBLE
def test_unknown_tagged_fields_are_skipped(version: int) -> None:
    for request in (one(version), several(version), Request(version, None, None, 0, [])):
        for place, tags in zip(cases.Tags._fields, cases.UNKNOWN, strict=True):
            content = cases.encode(request, cases.NO_TAGS._replace(**{place: tags}))
            assert skim(content) == expected(request)
        assert skim(cases.encode(request, cases.UNKNOWN)) == expected(request)


@FLEXIBLE
@pytest.mark.parametrize("place", ["header", "partition", "topic", "body"])
def test_more_tagged_fields_than_any_message_has_are_malformed(version: int, place: str) -> None:
    for count in (64, 65):
        tags = cases.uvarint(count) + b"\x5a\x00" * count
        content = cases.encode(one(version), cases.NO_TAGS._replace(**{place: tags}))
        if count == 64:
            assert skim(content) == expected(one(version))
        else:
            with pytest.raises(TooManyTags):
                skim(content)


# --- what is malformed ------------------------------------------------------------------------------------------------


@EDGES
def test_a_frame_cut_at_any_byte_is_malformed(version: int) -> None:
    for request in (one(version), several(version)):
        content = cases.encode(request, cases.UNKNOWN)
        for end in cases.cut_places(content):
            for buffer in (content, content[:end]):  # the rest behind the frame's end, or not there at all
                with pytest.raises(MalformedFrame):
                    skim_at(buffer, 0, end)
                with pytest.raises(MalformedFrame):
                    produce_request.strip_partitions(buffer, 0, end, {(b"clicks", 3)})
            with pytest.raises(MalformedFrame):
                skim_at(content[:end], 0, len(content))


@VERSIONS
def test_a_frame_longer_than_its_message_is_malformed(version: int) -> None:
    for request in (one(version), several(version), Request(version, None, None, 0, [])):
        content = cases.encode(request)
        for more in (b"\0", b"\0\0", b"?" * 100):
            with pytest.raises(MalformedFrame):
                skim(content + more)
            with pytest.raises(MalformedFrame):
                produce_request.strip_partitions(content + more, 0, len(content + more), set())


@pytest.mark.parametrize("version", [-32768, -1, 0, 1, 2, 14, 32767])
def test_a_version_that_we_do_not_speak_is_malformed(version: int) -> None:
    content = bytearray(cases.encode(one(9)))
    struct.pack_into(">h", content, 2, version)
    with pytest.raises(MalformedFrame, match="v3 to v13"):
        skim(content)


def _head(version: int) -> bytes:
    # up to the count of topics
    content = cases.encode(Request(version, "app", None, -1, []))
    return content[: -2 if version >= 9 else -4]


@PLAIN
@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\xff\xff\xff\xff", id="topics: null"),
        pytest.param(b"\xff\xff\xff\xfe", id="topics: -2"),
        pytest.param(b"\x7f\xff\xff\xff", id="topics: 2^31 - 1"),
        pytest.param(b"\0\0\0\1\xff\xff\0\0\0\0", id="topic name: null"),
        pytest.param(b"\0\0\0\1\xff\xfe\0\0\0\0", id="topic name: -2 bytes"),
        pytest.param(b"\0\0\0\1\0\1t\xff\xff\xff\xff", id="partitions: null"),
        pytest.param(b"\0\0\0\1\0\1t\x7f\xff\xff\xff", id="partitions: 2^31 - 1"),
        pytest.param(b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xfe", id="records: -2 bytes"),
        pytest.param(b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\x7f\xff\xff\xff", id="records: 2 GiB"),
    ],
)
def test_bad_counts_and_lengths_are_malformed(version: int, tail: bytes) -> None:
    with pytest.raises(MalformedFrame):
        skim(_head(version) + tail)


@FLEXIBLE
@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\0\0", id="topics: null"),
        pytest.param(b"\xff\xff\xff\xff\x0f\0", id="topics: 2^32 - 2"),
        pytest.param(b"\xff\xff\xff\xff\xff\x0f\0", id="topics: a varint of six bytes"),
        pytest.param(b"\2KEY\0\0\0", id="partitions: null"),
        pytest.param(b"\2KEY\xff\xff\xff\xff\x0f\0\0", id="partitions: 2^32 - 2"),
        pytest.param(b"\2KEY\2\0\0\0\0\xff\xff\xff\xff\x0f\0\0\0", id="records: 4 GiB"),
        pytest.param(b"\2KEY\2\0\0\0\0\0\1\0\x7f\0\0", id="tag of the partition: 127 bytes"),
        pytest.param(b"\2KEY\2\0\0\0\0\0\0\0\1", id="a tag announced and not there"),
    ],
)
def test_bad_compact_counts_and_lengths_are_malformed(version: int, tail: bytes) -> None:
    key = CLICKS if version >= 13 else b"\2t"
    with pytest.raises(MalformedFrame):
        skim(_head(version) + tail.replace(b"KEY", key))


@pytest.mark.parametrize("version", range(9, 13))
def test_a_compact_topic_without_a_name_is_malformed(version: int) -> None:
    with pytest.raises(MalformedFrame, match="without a name"):
        skim(_head(version) + b"\2\0\1\0\0" + b"\0" * 80)
    with pytest.raises(MalformedFrame, match="without a name"):
        skim(_head(version) + b"\2\0\1\0\0")


@pytest.mark.parametrize("version", range(9, 13))
def test_a_topic_of_length_0_is_no_topic_before_any_bytes(version: int) -> None:
    # Read as an empty name, and one byte to the left, this would be a request with one good batch.
    batch = bytes((len(BATCH) + 1,)) + BATCH[1:]
    with pytest.raises(MalformedFrame, match="without a name"):
        skim(_head(version) + b"\2\0\2\0\0\0\3" + batch + b"\0\0\0")


@FLEXIBLE
def test_a_length_of_two_bytes_is_never_read_as_one(version: int) -> None:
    # 0x83 0x01 is 130 characters; 0x83 taken by itself would be 130 as well, and fit this frame.
    content = cases.encode(one(version)._replace(transactional_id="x" * 130))
    broken = content.replace(b"\x83\x01" + b"x" * 130, b"\x83\x01" + b"x" * 129)
    assert len(broken) == len(content) - 1
    with pytest.raises(MalformedFrame):
        skim(broken)


@VERSIONS
@pytest.mark.parametrize("client_id", [None, "app"])
def test_a_negative_length_of_the_client_id_is_malformed(version: int, client_id: str | None) -> None:
    content = bytearray(cases.encode(one(version)._replace(client_id=client_id)))
    struct.pack_into(">h", content, 8, -2)
    with pytest.raises(MalformedFrame):
        skim(content)


def _mutated(content: bytes, seed: int) -> bytearray:
    chance = random.Random(seed)
    broken = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        # the structure lies in front and behind; records are mostly opaque
        at = chance.choice((chance.randrange(len(broken)), chance.randrange(min(60, len(broken)))))
        broken[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    if chance.random() < 0.2:
        del broken[chance.randrange(len(broken)) :][: chance.randint(1, 4)]
    return broken


@VERSIONS
@FEW
@given(st.integers(0, 2**32))
def test_a_mutated_frame_gives_a_value_or_malformed_frame(version: int, seed: int) -> None:
    for number, request in enumerate((one(version), several(version))):
        for tags in (cases.NO_TAGS, cases.UNKNOWN):
            content = cases.encode(request, tags)
            for more in range(20):
                broken = _mutated(content, seed + more + number)
                try:
                    read = skim(broken)
                except MalformedFrame:
                    _kio_refuses(broken)
                    continue
                assert read == cases.told(produce_request._skim_any(broken, 0, len(broken), 10_000))
                # also with something else behind it
                assert skim_at(broken + content, 0, len(broken)) == read
                assert produce_request.strip_partitions(broken, 0, len(broken), set()) in (
                    None,
                    cases.framed(bytes(broken)),
                )
                _kio_agrees(broken, read)


def _kio_refuses(content: bytes | bytearray) -> None:
    # What we call malformed, kio doesn't read either, but for what isn't in the schema: versions and partitions twice.
    try:
        _, body = cases.kio_decode(bytes(content))
    except cases.KIO_ERRORS:
        return
    keys = [(_kio_topic(topic), data.index) for topic in body.topic_data for data in topic.partition_data]
    assert len(set(keys)) < len(keys)


def _kio_topic(topic: Any) -> bytes:
    if hasattr(topic, "name"):
        return bytes(topic.name.encode())
    return b"\0" * 16 if topic.topic_id is None else bytes(topic.topic_id.bytes)


def _kio_agrees(content: bytes | bytearray, read: Any) -> None:
    try:
        header, body = cases.kio_decode(bytes(content))
    except cases.KIO_ERRORS:
        return  # stricter: text that isn't UTF-8, tags that it doesn't know
    version, acks, client_id, transactional_id, partitions = read
    assert (version, acks) == (header.request_api_version, body.acks)
    assert (client_id or b"").decode() == (header.client_id or "")
    assert (transactional_id or b"").decode() == (body.transactional_id or "")
    theirs = [
        (_kio_topic(topic), data.index, len(data.records or b""))
        for topic in body.topic_data
        for data in topic.partition_data
    ]
    assert [(topic, index, size + rest) for topic, index, size, *_, rest in partitions] == theirs


# --- strip ------------------------------------------------------------------------------------------------------------


def _choice(request: Request, chance: random.Random) -> set[tuple[bytes, int]]:
    keys = [(cases.key(topic, request.version), index) for topic in request.topics for index, _ in topic.partitions]
    return {key for key in keys if chance.random() < 0.5} | {(b"not there", 1)}


@given(cases.requests(), st.randoms(use_true_random=False))
def test_strip_is_the_request_without_these_partitions_and_nothing_else(
    request: Request, chance: random.Random
) -> None:
    drop = _choice(request, chance)
    left = without(request, drop)
    for tags in (cases.NO_TAGS, cases.UNKNOWN):
        content = cases.encode(request, tags)
        stripped = produce_request.strip_partitions(bytearray(b"##" + content + b"##"), 2, 2 + len(content), drop)
        if not any(topic.partitions for topic in left.topics):
            assert stripped is None
        else:
            assert stripped == cases.framed(cases.encode(left, tags))
            assert skim_at(stripped, 4, len(stripped)) == expected(left)


@VERSIONS
def test_strip_takes_every_kind_of_buffer(version: int, kind: Callable[[bytes], Any]) -> None:
    request = several(version)
    first, second = (
        {(cases.key(topic, version), index) for index, _ in topic.partitions} for topic in request.topics[:2]
    )
    content = cases.encode(request)
    for drop in (first, second, {*list(first)[:1], *second}):
        stripped = produce_request.strip_partitions(kind(content), 0, len(content), drop)
        assert stripped == cases.framed(cases.encode(without(request, drop)))


@EDGES
def test_counts_that_shrink_by_a_byte(version: int) -> None:
    # 127 elements are written in two bytes, 126 in one
    request = one(version)._replace(topics=[Topic("many", CLICKS, [(index, whole()) for index in range(127)])])
    drop = {(cases.key(request.topics[0], version), 5)}
    content = cases.encode(request)
    stripped = produce_request.strip_partitions(content, 0, len(content), drop)
    assert stripped == cases.framed(cases.encode(without(request, drop)))


# --- client id --------------------------------------------------------------------------------------------------------


@VERSIONS
def test_the_client_id_of_any_request(version: int, kind: Callable[[bytes], Any]) -> None:
    for client_id in (None, "", "app", "c" * 300):
        content = cases.encode(one(version)._replace(client_id=client_id))
        read = produce_request.read_client_id(kind(b"####" + content), 4, 4 + len(content))
        assert read == (None if client_id is None else client_id.encode())
        assert read is None or type(read) is bytes


def test_a_header_too_short_for_its_client_id_is_malformed() -> None:
    content = cases.encode(one(9))
    for end in range(10 + len("app")):
        for buffer in (content, content[:end]):
            with pytest.raises(MalformedFrame):
                produce_request.read_client_id(buffer, 0, end)
