from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.produce import produce_response
from protocol.wire import MalformedFrame
from tests.examples import FEW
from tests.protocol import kio_messages
from tests.protocol import produce_cases as cases
from tests.protocol.produce_cases import Answer, AnswerTopic, Endpoint, Response
from tests.variants import COMPILED, PURE, running

VERSIONS = pytest.mark.parametrize("version", cases.VERSIONS)
FLEXIBLE = pytest.mark.parametrize("version", range(9, 14))
PLAIN = pytest.mark.parametrize("version", range(3, 9))
WITH_ENDPOINTS = pytest.mark.parametrize("version", range(10, 14))

CLICKS = bytes(range(16))
VIEWS = bytes(range(16, 32))
NODES = (Endpoint(1, "kafka-1.internal", 9092, None), Endpoint(2, "kafka-2.internal", 9093, "rack-b"))


@pytest.fixture(scope="module", params=[PURE, COMPILED], autouse=True)
def variant(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the fast reader before the careful one, and without."""
    with running(request.param):
        yield


def one(version: int) -> Response:
    return Response(version, 7, [AnswerTopic("clicks", CLICKS, [Answer(3, 0, 1000)])])


def several(version: int) -> Response:
    clicks = [
        Answer(3, 0, 1000, 1_700_000_000_000, 12),
        Answer(0, 6, -1, leader=(2, 5), message="not the leader"),
        Answer(7, 87, -1, record_errors=((0, "bad"), (4, None)), message="no good"),
    ]
    topics = [AnswerTopic("clicks", CLICKS, clicks), AnswerTopic("views", VIEWS, [Answer(3), Answer(1, 0, 5)])]
    return Response(version, 7, topics, 250, NODES)


def expected(response: Response) -> list[tuple[bytes, int, int, int]]:
    return [
        (cases.key(topic, response.version), answer.index, answer.error, answer.base_offset)
        for topic in response.topics
        for answer in topic.partitions
    ]


def skim_at(buf: bytes | bytearray | memoryview, start: int, end: int, version: int) -> Any:
    return cases.told(produce_response.skim_response(buf, start, end, version))


def skim(content: bytes | bytearray | memoryview, version: int) -> Any:
    return skim_at(content, 0, len(content), version)


def _shuffled(response: Response, chance: random.Random) -> Response:
    # brokers keep no order
    topics = [
        topic._replace(partitions=chance.sample(topic.partitions, len(topic.partitions))) for topic in response.topics
    ]
    return response._replace(topics=chance.sample(topics, len(topics)))


# --- the cases themselves ---------------------------------------------------------------------------------------------


@given(cases.responses())
def test_kio_writes_the_same_bytes_as_the_cases_do_by_hand(response: Response) -> None:
    assert cases.kio_encode_answer(response) == cases.encode_answer(response)


# --- skim -------------------------------------------------------------------------------------------------------------


@given(cases.responses(), st.binary(max_size=70), st.binary(max_size=70))
def test_skim_reads_what_kio_wrote_between_other_frames(response: Response, before: bytes, after: bytes) -> None:
    content = cases.kio_encode_answer(response)
    buffer = bytearray(before + content + after)
    read = skim_at(buffer, len(before), len(before) + len(content), response.version)
    assert read == (expected(response), bool(response.endpoints and response.version >= 10))


@VERSIONS
def test_skim_reads_every_kind_of_buffer(version: int, kind: Callable[[bytes], Any]) -> None:
    for response in (one(version), several(version), Response(version, 7, [])):
        answered, endpoints = skim(kind(cases.encode_answer(response)), version)
        assert answered == expected(response)
        assert endpoints == (version >= 10 and bool(response.endpoints))
        assert all(type(topic) is bytes for topic, *_ in answered)


@VERSIONS
@pytest.mark.parametrize("size", [1, 125, 126, 127, 128, 249, 16_384])
def test_names_of_every_length(version: int, size: int) -> None:
    response = Response(version, 7, [AnswerTopic("t" * size, CLICKS, [Answer(0), Answer(1)])])
    assert skim(cases.encode_answer(response), version) == (expected(response), False)


@VERSIONS
def test_hundreds_of_partitions_and_of_topics(version: int) -> None:
    many = AnswerTopic("many", CLICKS, [Answer(index, 0, index) for index in range(300)])
    topics = [AnswerTopic(f"t{n}", n.to_bytes(16, "big"), [Answer(0, 0, n)]) for n in range(300)]
    for response in (Response(version, 7, [many]), Response(version, 7, topics)):
        assert skim(cases.encode_answer(response), version) == (expected(response), False)


@FLEXIBLE
def test_unknown_tagged_fields_are_skipped(version: int) -> None:
    for response in (one(version), several(version), Response(version, 7, [])):
        endpoints = version >= 10 and bool(response.endpoints)
        for place, tags in zip(cases.Tags._fields, cases.UNKNOWN, strict=True):
            content = cases.encode_answer(response, cases.NO_TAGS._replace(**{place: tags}))
            assert skim(content, version) == (expected(response), endpoints)
        assert skim(cases.encode_answer(response, cases.UNKNOWN), version) == (expected(response), endpoints)


def test_tag_0_of_v9_is_no_endpoints() -> None:
    content = cases.encode_answer(one(9), cases.NO_TAGS._replace(body=b"\1\0\3???"))
    assert skim(content, 9) == (expected(one(9)), False)
    assert produce_response.rewrite_endpoints(content, 0, len(content), 9, {}) == cases.framed(content)


# --- what is malformed ------------------------------------------------------------------------------------------------

READERS: list[Callable[[Any, int, int, int], Any]] = [
    produce_response.skim_response,
    lambda buf, start, end, version: produce_response.merge_response(
        buf, start, end, version, [(b"clicks", 99, 89, None)], 1
    ),
    lambda buf, start, end, version: produce_response.rewrite_endpoints(buf, start, end, version, {1: (b"gw", 1)}),
]


@VERSIONS
@pytest.mark.parametrize("read", READERS, ids=["skim", "merge", "rewrite_endpoints"])
def test_a_frame_cut_at_any_byte_is_malformed(version: int, read: Callable[..., Any]) -> None:
    for response in (one(version), several(version)):
        content = cases.encode_answer(response, cases.UNKNOWN)
        for end in cases.cut_places(content):
            for buffer in (content, content[:end]):  # the rest behind the frame's end, or not there at all
                with pytest.raises(MalformedFrame):
                    read(bytearray(buffer), 0, end, version)
            with pytest.raises(MalformedFrame):
                read(bytearray(content[:end]), 0, len(content), version)


@VERSIONS
@pytest.mark.parametrize("read", READERS, ids=["skim", "merge", "rewrite_endpoints"])
def test_a_frame_longer_than_its_message_is_malformed(version: int, read: Callable[..., Any]) -> None:
    for response in (one(version), several(version), Response(version, 7, [])):
        content = cases.encode_answer(response)
        for more in (b"\0", b"\0\0", b"?" * 100):
            with pytest.raises(MalformedFrame):
                read(bytearray(content + more), 0, len(content + more), version)
        with pytest.raises(MalformedFrame):
            read(bytearray(content), 0, len(content) + 1, version)


@pytest.mark.parametrize("version", [-1, 0, 2, 14])
@pytest.mark.parametrize("read", READERS, ids=["skim", "merge", "rewrite_endpoints"])
def test_a_version_that_we_do_not_speak_is_malformed(version: int, read: Callable[..., Any]) -> None:
    content = bytearray(cases.encode_answer(one(9 if version > 9 else 3)))
    with pytest.raises(MalformedFrame, match="v3 to v13"):
        read(content, 0, len(content), version)


@PLAIN
@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\xff\xff\xff\xff\0\0\0\0", id="topics: null"),
        pytest.param(b"\x7f\xff\xff\xff\0\0\0\0", id="topics: 2^31 - 1"),
        pytest.param(b"\0\0\0\1\xff\xff\0\0\0\0\0\0\0\0", id="topic name: null"),
        pytest.param(b"\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0", id="partitions: null"),
        pytest.param(b"\0\0\0\1\0\1t\x7f\xff\xff\xff\0\0\0\0", id="partitions: 2^31 - 1"),
    ],
)
def test_bad_counts_and_lengths_are_malformed(version: int, tail: bytes) -> None:
    with pytest.raises(MalformedFrame):
        skim(b"\0\0\0\7" + tail, version)


@FLEXIBLE
@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\0\0\0\0\0\0", id="topics: null"),
        pytest.param(b"\xff\xff\xff\xff\x0f\0\0\0\0\0", id="topics: 2^32 - 2"),
        pytest.param(b"\2KEY\0\0\0\0\0\0\0", id="partitions: null"),
        pytest.param(b"\2KEY\2" + b"\0" * 30 + b"\0\0\0\0\0\0\0\0\0", id="record errors: null"),
        pytest.param(b"\2KEY\2" + b"\0" * 30 + b"\1\x50\0\0\0\0\0\0\0", id="message: 79 bytes"),
    ],
)
def test_bad_compact_counts_and_lengths_are_malformed(version: int, tail: bytes) -> None:
    key = CLICKS if version >= 13 else b"\2t"
    with pytest.raises(MalformedFrame):
        skim(b"\0\0\0\7\0" + tail.replace(b"KEY", key), version)


@pytest.mark.parametrize("version", range(9, 13))
def test_a_compact_topic_without_a_name_is_malformed(version: int) -> None:
    # the last would be a good answer, if it were read as an empty name and one byte to the left
    for rest in (b"\1\0\0\0\0\0\0", b"\2" + b"\0" * 60, b"\2" + b"\0" * 30 + b"\1\0\0" + b"\0" * 5):
        with pytest.raises(MalformedFrame, match="without a name"):
            skim(b"\0\0\0\7\0\2\0" + rest, version)


@VERSIONS
@FEW
@given(st.integers(0, 2**32))
def test_a_mutated_frame_gives_a_value_or_malformed_frame(version: int, seed: int) -> None:
    chance = random.Random(seed)
    for response in (one(version), several(version)):
        for tags in (cases.NO_TAGS, cases.UNKNOWN):
            content = cases.encode_answer(response, tags)
            for _ in range(20):
                broken = bytearray(content)
                for _ in range(chance.randint(1, 3)):
                    broken[chance.randrange(len(broken))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
                try:
                    read = skim(broken, version)
                except MalformedFrame:
                    _kio_refuses(version, broken)
                    continue
                assert read == cases.told(produce_response._skim_any(broken, 0, len(broken), version))
                assert skim_at(broken + content, 0, len(broken), version) == read
                _kio_agrees(version, broken, read)
                for rewrite in READERS[1:]:
                    try:
                        rewrite(broken, 0, len(broken), version)
                    except MalformedFrame:
                        pass


def _kio_refuses(version: int, content: bytes | bytearray) -> None:
    # What we call malformed, kio doesn't read either, or it didn't look at the size of a tagged field that it knows:
    # then it writes other bytes than it has read.
    try:
        header, body = cases.kio_decode_answer(version, bytes(content))
    except cases.KIO_ERRORS:
        return
    assert kio_messages.kio_encode(header) + kio_messages.kio_encode(body) != content


def _kio_agrees(version: int, content: bytes | bytearray, read: Any) -> None:
    try:
        _, body = cases.kio_decode_answer(version, bytes(content))
    except cases.KIO_ERRORS:
        return  # stricter: text that isn't UTF-8, error codes, times and tags that it doesn't know
    answered, _ = read
    assert [row[1:] for row in answered] == [
        (answer.index, answer.error_code, answer.base_offset)
        for topic in body.responses
        for answer in topic.partition_responses
    ]


# --- local ------------------------------------------------------------------------------------------------------------

MESSAGES = st.none() | st.text(max_size=20) | st.just("over the limit " * 20)


@st.composite
def own_rows(draw: st.DrawFn, version: int, indexes: st.SearchStrategy[int] = cases.INT32) -> list[Any]:
    if version >= 13:
        topics = draw(st.lists(st.binary(min_size=16, max_size=16), unique=True, max_size=3))
    else:
        topics = [name.encode() for name in draw(st.lists(cases.NAMES, unique=True, max_size=3))]
    keys = st.tuples(st.sampled_from(topics or [b""]), indexes)
    return [
        (*key, draw(st.sampled_from([19, 89, 44])), draw(MESSAGES))
        for key in (draw(st.lists(keys, unique=True, max_size=6)) if topics else [])
    ]


@VERSIONS
@FEW
@given(st.data(), cases.INT32, st.integers(0, 2**31 - 1))
def test_kio_reads_our_own_answer(version: int, data: st.DataObject, correlation_id: int, throttle_ms: int) -> None:
    rows = data.draw(own_rows(version))
    frame = produce_response.local_response(version, correlation_id, rows, throttle_ms)
    assert struct.unpack(">i", frame[:4]) == (len(frame) - 4,)
    header, body = cases.kio_decode_answer(version, frame[4:])
    assert header.correlation_id == correlation_id
    assert round(body.throttle_time.total_seconds() * 1000) == throttle_ms
    read = {}
    for topic in body.responses:
        key = topic.topic_id.bytes if version >= 13 and topic.topic_id else getattr(topic, "name", "").encode()
        for answer in topic.partition_responses:
            assert (answer.base_offset, answer.log_append_time) == (-1, None)
            assert getattr(answer, "log_start_offset", -1) == -1
            assert getattr(answer, "record_errors", ()) == ()
            read[key or bytes(16), answer.index] = (answer.error_code, getattr(answer, "error_message", None))
    assert read == {(topic, index): (error, message if version >= 8 else None) for topic, index, error, message in rows}
    assert len({topic.topic_id if version >= 13 else topic.name for topic in body.responses}) == len(body.responses)
    assert skim(frame[4:], version)[1] is False


def test_a_message_too_long_for_the_wire_is_cut() -> None:
    for version in (8, 9, 13):
        frame = produce_response.local_response(version, 1, [(CLICKS, 0, 89, "ä" * 100_000)], 0)
        body = cases.kio_decode_answer(version, frame[4:])[1]
        assert body.responses[0].partition_responses[0].error_message == "ä" * 8000


@pytest.mark.parametrize("version", [2, 14])
def test_no_answer_of_ours_in_a_version_that_we_do_not_speak(version: int) -> None:
    with pytest.raises(ValueError, match="v3 to v13"):
        produce_response.local_response(version, 1, [], 0)


# --- merge ------------------------------------------------------------------------------------------------------------


def _merged(response: Response, rows: list[Any], throttle_ms: int) -> Response:
    # what it shall be, as values: rows behind the broker's own of their topic, else new topics
    version = response.version
    ours: dict[bytes, list[Answer]] = {}
    for topic, index, error, message in rows:
        ours.setdefault(topic, []).append(Answer(index, error, -1, message=message))
    topics = []
    for topic in response.topics:
        more = ours.pop(cases.key(topic, version), [])
        topics.append(topic._replace(partitions=[*topic.partitions, *more]))
    for key, more in ours.items():
        topics.append(AnswerTopic("" if version >= 13 else key.decode(), key, more))
    return response._replace(topics=topics, throttle_ms=max(throttle_ms, response.throttle_ms))


@given(cases.responses(), st.randoms(use_true_random=False), st.data(), st.sampled_from([0, 300, 10_000]))
def test_merge_adds_our_rows_and_changes_nothing_else(
    response: Response, chance: random.Random, data: st.DataObject, throttle_ms: int
) -> None:
    version = response.version
    rows = data.draw(own_rows(version))
    keys = [cases.key(topic, version) for topic in response.topics]
    rows += [(key, index, 19, "no") for key in keys for index in (77, 78) if chance.random() < 0.5]
    taken = {row[:2] for row in expected(response)}
    rows = list({row[:2]: row for row in rows if row[:2] not in taken}.values())
    chance.shuffle(rows)
    answer = _shuffled(response, chance)
    content = bytearray(b"##" + cases.encode_answer(answer) + b"##")
    frame = produce_response.merge_response(content, 2, len(content) - 2, version, rows, throttle_ms)
    assert frame == cases.framed(cases.encode_answer(_merged(answer, rows, throttle_ms)))
    cases.kio_decode_answer(version, frame[4:])


@FLEXIBLE
def test_merge_keeps_tagged_fields_that_it_does_not_know(version: int) -> None:
    key = CLICKS if version >= 13 else b"clicks"
    new = b"n" * 16
    rows = [(key, 8, 89, "over"), (new, 1, 19, None)]
    content = cases.encode_answer(several(version), cases.UNKNOWN)
    frame = produce_response.merge_response(content, 0, len(content), version, rows, 0)
    # the rows that are ours have no tagged fields; everything else stands as it was
    ours = cases.encode_partition(Answer(8, 89, -1, message="over"), version)
    clicks = several(version).topics[0]
    old = b"".join(cases.encode_partition(answer, version, cases.UNKNOWN) for answer in clicks.partitions)
    put = (new if version >= 13 else b"\x11" + new) + b"\2" + cases.encode_partition(Answer(1, 19, -1), version) + b"\0"
    at = content.index(b"\4" + old)
    wanted = content[:at] + b"\5" + old + ours + content[at + 1 + len(old) :]
    throttle = struct.pack(">i", 250)
    head, _, tail = wanted.rpartition(throttle)
    count = 4 + len(cases.UNKNOWN.header)
    wanted = head[:count] + b"\4" + head[count + 1 :] + put + throttle + tail
    assert frame == cases.framed(wanted)


@VERSIONS
def test_merge_takes_every_kind_of_buffer_and_counts_that_grow_by_a_byte(
    version: int, kind: Callable[[bytes], Any]
) -> None:
    topic = AnswerTopic("clicks", CLICKS, [Answer(index, 0, index) for index in range(126)])
    response = Response(version, 7, [topic])
    rows = [(cases.key(topic, version), 126, 89, "over")]
    content = cases.encode_answer(response)
    frame = produce_response.merge_response(kind(content), 0, len(content), version, rows, 0)
    assert frame == cases.framed(cases.encode_answer(_merged(response, rows, 0)))


@VERSIONS
def test_merging_no_rows_changes_the_throttle_time_only(version: int) -> None:
    content = cases.encode_answer(several(version), cases.UNKNOWN)
    for ours, wanted in ((0, 250), (249, 250), (251, 251)):
        frame = produce_response.merge_response(content, 0, len(content), version, [], ours)
        assert frame == cases.framed(cases.encode_answer(several(version)._replace(throttle_ms=wanted), cases.UNKNOWN))


@VERSIONS
def test_an_answer_for_what_the_broker_was_not_sent_is_malformed(version: int) -> None:
    content = cases.encode_answer(several(version))
    key = cases.key(several(version).topics[1], version)
    with pytest.raises(MalformedFrame, match="not sent"):
        produce_response.merge_response(content, 0, len(content), version, [(key, 1, 89, None)], 0)


# --- endpoints --------------------------------------------------------------------------------------------------------

ADDRESSES = {1: (b"gateway.example.org", 19093), 2: (b"gateway.example.org", 19094)}


def _readdressed(response: Response, addresses: Any) -> Response:
    moved = tuple(
        node._replace(host=addresses[node.node_id][0].decode(), port=addresses[node.node_id][1])
        for node in response.endpoints
        if node.node_id in addresses
    )
    return response._replace(endpoints=moved)


@given(cases.responses(), st.data())
def test_endpoints_get_our_addresses_or_go(response: Response, data: st.DataObject) -> None:
    nodes = sorted({node.node_id for node in response.endpoints})
    known = data.draw(st.lists(st.sampled_from(nodes), unique=True) if nodes else st.just([]))
    addresses = {node: (b"gw-%d" % (node % 7), 19_000 + node % 100) for node in known}
    for tags in (cases.NO_TAGS, cases.UNKNOWN):
        content = bytearray(b"##" + cases.encode_answer(response, tags) + b"##")
        frame = produce_response.rewrite_endpoints(content, 2, len(content) - 2, response.version, addresses)
        assert frame == cases.framed(cases.encode_answer(_readdressed(response, addresses), tags))


@WITH_ENDPOINTS
def test_no_broker_address_is_left(version: int, kind: Callable[[bytes], Any]) -> None:
    content = cases.encode_answer(several(version), cases.UNKNOWN)
    for addresses in (ADDRESSES, {2: ADDRESSES[2]}, {}):
        frame = produce_response.rewrite_endpoints(kind(content), 0, len(content), version, addresses)
        assert b"internal" not in frame
        left = skim_at(frame, 4, len(frame), version)
        assert left == (expected(several(version)), bool(addresses))


@WITH_ENDPOINTS
def test_the_rest_of_an_endpoint_is_kept(version: int) -> None:
    # rack and tagged fields; and other tagged fields before and behind stay where they are
    endpoints = cases.encode_endpoints(NODES, b"\1\x5f\2??")
    ours = cases.encode_endpoints(_readdressed(several(version), ADDRESSES).endpoints, b"\1\x5f\2??")
    for before, after in ([], [(9, b"x")]), ([(300, b"y" * 300)], []):
        contents = [
            cases.encode_answer(one(version), cases.Tags(body=cases.tag_fields([*before, (0, value), *after])))
            for value in (endpoints, ours)
        ]
        frame = produce_response.rewrite_endpoints(contents[0], 0, len(contents[0]), version, ADDRESSES)
        assert frame == cases.framed(contents[1])


@WITH_ENDPOINTS
def test_broken_endpoints_are_malformed(version: int) -> None:
    good = cases.encode_endpoints(NODES)
    broken = [good[:end] for end in range(len(good))]
    broken += [good + b"\0", b"\0", b"\x7f" + good[1:], b"\2\0\0\0\1\0\0\0\0\1\0\0"]  # the last: a host of null
    for value in broken:
        content = cases.encode_answer(one(version), cases.Tags(body=cases.tag_fields([(0, value)])))
        with pytest.raises(MalformedFrame):
            produce_response.rewrite_endpoints(content, 0, len(content), version, ADDRESSES)
