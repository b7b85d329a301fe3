# Answers with addresses in them, every version, against kio's encoder and byte for byte: what is rewritten is what a
# broker would have written with our addresses, and nothing else has changed.

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from protocol import api
from protocol.rewriting.rewrite import (
    REWRITES,
    cap_api_versions,
    metadata_by_id_request,
    rewrite_metadata,
    unsupported_api_versions,
)
from protocol.wire import MalformedFrame
from tests.examples import FEW
from tests.protocol.kio_messages import (
    Extra,
    answer_class,
    answer_header,
    element,
    encode,
    extras,
    filled,
    kio_decode,
    kio_encode,
    messages,
    request_class,
    uvarint,
)
from tests.variants import COMPILED, PURE, running

METADATA = range(14)
METADATA_IDS = range(10, 14)
FIND_COORDINATOR = range(7)
DESCRIBE_CLUSTER = range(3)
API_VERSIONS = range(5)
ADDRESSES = {1: (b"gateway.example", 19094), 2: (b"g", 65535), 3: (b"x" * 130, 1)}

Buffers = Callable[[bytes], Any]


@pytest.fixture(params=[PURE, COMPILED], scope="module")
def form(request: pytest.FixtureRequest) -> Iterator[None]:
    with running(request.param):
        yield


IN_BOTH_FORMS = pytest.mark.usefixtures("form")


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def within_other_bytes(content: bytes, kind: Buffers = bytearray) -> tuple[Any, int, int]:
    """The content as it lies in a socket's buffer: behind its size, before the next frame."""
    before, after = struct.pack(">i", len(content)), b"\x00\x00\x00\x09\x7f\x01\x02\x03" * 40
    return kind(before + content + after), 4, 4 + len(content)


def rewrite(api_key: int, content: bytes, version: int, ids: Any = None, kind: Buffers = bytearray) -> Any:
    buf, start, end = within_other_bytes(content, kind)
    untouched = bytes(buf)
    result = REWRITES[api_key](buf, start, end, version, ADDRESSES, {} if ids is None else ids)
    assert bytes(buf) == untouched
    return result


def our_host(node: int) -> str:
    return ADDRESSES[node][0].decode()


# --- Metadata ---------------------------------------------------------------------------------------------------------


def expected_metadata(message: Any) -> Any:
    brokers = tuple(
        replace(row, host=our_host(row.node_id), port=ADDRESSES[row.node_id][1])
        for row in message.brokers
        if row.node_id in ADDRESSES
    )
    return replace(message, brokers=brokers)


METADATA_CLASSES = (
    "MetadataResponse",
    "MetadataResponseBroker",
    "MetadataResponseTopic",
    "MetadataResponsePartition",
)


@IN_BOTH_FORMS
@pytest.mark.parametrize("version", METADATA)
@FEW
@given(data=st.data())
def test_metadata_is_what_the_broker_would_have_said_with_our_addresses(version: int, data: st.DataObject) -> None:
    cls = answer_class(api.METADATA, version)
    message = data.draw(messages(cls))
    ids: dict[bytes, bytes] = {b"k" * 16: b"known"}
    frame, withheld = rewrite(api.METADATA, answer_header(cls, 77) + kio_encode(message), version, ids)

    assert frame == framed(answer_header(cls, 77) + kio_encode(expected_metadata(message)))
    assert withheld == [row.node_id for row in message.brokers if row.node_id not in ADDRESSES]
    if version >= 10:
        learned = {row.topic_id.bytes: row.name.encode() for row in message.topics if row.name and row.topic_id}
        assert ids == {b"k" * 16: b"known", **learned}
    else:
        assert ids == {b"k" * 16: b"known"}


@IN_BOTH_FORMS
@pytest.mark.parametrize("version", [v for v in METADATA if v >= 9])
@FEW
@given(data=st.data())
def test_metadata_keeps_unknown_tagged_fields_at_every_level(version: int, data: st.DataObject) -> None:
    cls = answer_class(api.METADATA, version)
    message, extra = data.draw(messages(cls)), data.draw(extras(*METADATA_CLASSES))
    header = answer_header(cls, 1, b"\x01\x5a\x02hi")
    frame, _ = rewrite(api.METADATA, header + encode(message, extra), version)
    assert frame == framed(header + encode(expected_metadata(message), extra))


@IN_BOTH_FORMS
@pytest.mark.parametrize("lengths", [(130, 128, 127), (130, 1, 1), (1, 127, 1), (1, 1, 127), (1, 1, 128)])
@pytest.mark.parametrize("version", [v for v in METADATA if v >= 9])
def test_metadata_with_lengths_of_more_than_one_varint_byte(version: int, lengths: tuple[int, int, int]) -> None:
    """200 partitions, 127 nodes or more, a name of 200 bytes: they don't fit into the one byte of the fast walk."""
    cls = answer_class(api.METADATA, version)
    topic_cls = element(cls, "topics")
    partition_cls = element(topic_cls, "partitions")
    # Node ids whose last byte is 0: it looks like the end of a partition.
    replicas, in_sync, offline = (tuple(node << 8 for node in range(length)) for length in lengths)
    partition = filled(partition_cls, replica_nodes=replicas, isr_nodes=in_sync, offline_replicas=offline)
    topic_id = {"topic_id": uuid.UUID(int=7)} if version >= 10 else {}
    topic = topic_cls(error_code=ErrorCode(0), name="t" * 200, partitions=(partition,) * 200, **topic_id)
    rest = {} if version < 13 else {"error_code": ErrorCode(0)}
    message = cls(throttle_time=timedelta(), brokers=(), topics=(topic, topic), **rest)
    ids: dict[bytes, bytes] = {}
    frame, _ = rewrite(api.METADATA, answer_header(cls, 1) + kio_encode(message), version, ids)
    assert frame == framed(answer_header(cls, 1) + kio_encode(message))
    assert ids == ({uuid.UUID(int=7).bytes: b"t" * 200} if version >= 10 else {})


@IN_BOTH_FORMS
@pytest.mark.parametrize("place", range(3))
def test_a_null_array_of_nodes_is_one_byte(place: int) -> None:
    """No broker sends it, but a byte 0 must not be taken for a length of -1."""
    arrays = [b"\x02" + bytes(4), b"\x02" + bytes(4), b"\x02" + bytes(4)]
    arrays[place] = b"\x00"
    fixed = bytes(11) + b"\x01\x01\x00"  # read from three bytes too early: two more lengths and an end
    partition = fixed + b"".join(arrays) + b"\x00"
    topic = bytes(2) + b"\x02t" + bytes(16) + b"\x00" + b"\x02" + partition + bytes(4) + b"\x00"
    content = bytes(4) + b"\x00" + bytes(4) + b"\x01" + b"\x00" + bytes(4) + b"\x03" + topic + topic + b"\x00"
    assert rewrite_metadata(content, 0, len(content), 12, {}, {}) == (framed(content), [])


@IN_BOTH_FORMS
def test_a_topic_without_a_name_or_without_an_id_teaches_nothing() -> None:
    cls = answer_class(api.METADATA, 12)
    topic_cls = element(cls, "topics")
    unknown = topic_cls(error_code=ErrorCode(100), name=None, topic_id=uuid.UUID(int=1), partitions=())
    missing = topic_cls(error_code=ErrorCode(3), name="gone", topic_id=None, partitions=())
    message = cls(throttle_time=timedelta(), brokers=(), topics=(unknown, missing))
    ids: dict[bytes, bytes] = {}
    rewrite(api.METADATA, answer_header(cls, 1) + kio_encode(message), 12, ids)
    assert ids == {}


@IN_BOTH_FORMS
def test_nothing_is_learned_from_a_metadata_answer_that_turns_out_malformed() -> None:
    cls = answer_class(api.METADATA, 12)
    topic = element(cls, "topics")(error_code=ErrorCode(0), name="t", topic_id=uuid.UUID(int=1), partitions=())
    content = answer_header(cls, 1) + kio_encode(cls(throttle_time=timedelta(), brokers=(), topics=(topic,)))
    ids: dict[bytes, bytes] = {}
    with pytest.raises(MalformedFrame):
        rewrite_metadata(content + b"\0", 0, len(content) + 1, 12, ADDRESSES, ids)
    assert ids == {}


@pytest.mark.parametrize("version", [12, 13])
def test_the_request_for_names_of_topic_ids(version: int) -> None:
    cls = request_class(api.METADATA, version)
    ids = [bytes(range(16)), b"\xff" * 16]
    frame = metadata_by_id_request(991, version, ids)
    assert frame[:4] == struct.pack(">i", len(frame) - 4)
    assert struct.unpack_from(">hhi", frame, 4) == (api.METADATA, version, 991)
    (size,) = struct.unpack_from(">h", frame, 12)
    body = frame[14 + size :]
    assert body[:1] == b"\0"  # no tagged fields in the header
    request = kio_decode(cls, body[1:])
    assert [(row.topic_id.bytes, row.name) for row in request.topics] == [(topic_id, None) for topic_id in ids]
    assert not request.allow_auto_topic_creation


# --- FindCoordinator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FIND_COORDINATOR)
@FEW
@given(data=st.data())
def test_find_coordinator_is_what_the_broker_would_have_said(version: int, data: st.DataObject) -> None:
    cls = answer_class(api.FIND_COORDINATOR, version)
    message, extra = data.draw(messages(cls)), data.draw(extras("FindCoordinatorResponse", "Coordinator"))
    header = answer_header(cls, 5, b"\x01\x5a\x02hi")
    frame, withheld = rewrite(api.FIND_COORDINATOR, header + encode(message, extra), version)

    rows = message.coordinators if version >= 4 else (message,)
    asked = [_expected_coordinator(row) for row in rows]
    expected = replace(message, coordinators=tuple(row for row, _ in asked)) if version >= 4 else asked[0][0]
    assert frame == framed(header + encode(expected, extra))
    assert withheld == [node for _, node in asked if node is not None]


def _expected_coordinator(row: Any) -> tuple[Any, int | None]:
    if row.node_id in ADDRESSES:
        return replace(row, host=our_host(row.node_id), port=ADDRESSES[row.node_id][1]), None
    if not row.host:
        return row, None
    text = f"broker {row.node_id}, the coordinator, can't be reached through this gateway yet"
    message = {"error_message": text} if hasattr(row, "error_message") else {}
    return replace(row, node_id=-1, host="", port=-1, error_code=ErrorCode(15), **message), row.node_id


# --- DescribeCluster --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", DESCRIBE_CLUSTER)
@FEW
@given(data=st.data())
def test_describe_cluster_is_what_the_broker_would_have_said(version: int, data: st.DataObject) -> None:
    cls = answer_class(api.DESCRIBE_CLUSTER, version)
    message, extra = data.draw(messages(cls)), data.draw(extras("DescribeClusterResponse", "DescribeClusterBroker"))
    if version >= 1:
        message = replace(message, endpoint_type=data.draw(st.sampled_from([1, 2])))
    header = answer_header(cls, 5, b"\x01\x5a\x02hi")
    frame, withheld = rewrite(api.DESCRIBE_CLUSTER, header + encode(message, extra), version)

    controllers = version >= 1 and message.endpoint_type == 2
    brokers = [row for row in message.brokers if row.broker_id in ADDRESSES]
    ours = tuple(replace(row, host=our_host(row.broker_id), port=ADDRESSES[row.broker_id][1]) for row in brokers)
    expected = message if controllers else replace(message, brokers=ours)
    assert frame == framed(header + encode(expected, extra))
    hidden = [row.broker_id for row in message.brokers if row.broker_id not in ADDRESSES]
    assert withheld == ([] if controllers else hidden)


# --- ApiVersions ------------------------------------------------------------------------------------------------------


def capped(rows: Any, hide_unknown: bool) -> Any:
    out = []
    for row in rows:
        cap = api.HIGHEST_VERSIONS.get(row.api_key, row.max_version)
        is_read = cap >= row.min_version and row.max_version >= api.LOWEST_VERSIONS.get(row.api_key, 0)
        if is_read and not (hide_unknown and row.api_key not in api.API_NAMES):
            out.append(replace(row, max_version=min(row.max_version, cap)))
    return tuple(out)


@st.composite
def _api_rows(draw: st.DrawFn, cls: Any) -> Any:
    keys = draw(st.lists(st.sampled_from([*api.HIGHEST_VERSIONS, 2, 19, 75, 94, 250]), unique=True, max_size=8))
    lowest = st.integers(0, 16)
    windows = [(key, low, low + draw(st.integers(0, 20))) for key in keys for low in [draw(lowest)]]
    return tuple(cls(api_key=key, min_version=low, max_version=high) for key, low, high in windows)


@pytest.mark.parametrize("hide_unknown", [False, True])
@pytest.mark.parametrize("version", API_VERSIONS)
@FEW
@given(data=st.data())
def test_highest_versions_are_lowered_and_nothing_else(version: int, hide_unknown: bool, data: st.DataObject) -> None:
    cls = answer_class(api.API_VERSIONS, version)
    names = ("ApiVersionsResponse", "ApiVersion", "SupportedFeatureKey", "FinalizedFeatureKey")
    message, extra = data.draw(messages(cls)), data.draw(extras(*names))
    if message.error_code == ErrorCode.unsupported_version:
        message = replace(message, error_code=ErrorCode(0))
    message = replace(message, api_keys=data.draw(_api_rows(element(cls, "api_keys"))))
    content = struct.pack(">i", 3) + encode(message, extra)  # this header has no tagged fields in any version
    buf, start, end = within_other_bytes(content)
    around = bytes(buf[:start]), bytes(buf[end:])

    frame = cap_api_versions(buf, start, end, version, hide_unknown)

    rows = capped(message.api_keys, hide_unknown)
    expected = struct.pack(">i", 3) + encode(replace(message, api_keys=rows), extra)
    if len(rows) == len(message.api_keys):
        assert frame is None
        assert bytes(buf[start:end]) == expected
    else:
        assert frame == framed(expected)
        assert bytes(buf[start:end]) == content
    assert (bytes(buf[:start]), bytes(buf[end:])) == around


def test_an_api_that_the_broker_has_only_in_versions_below_those_that_are_read_is_not_offered() -> None:
    """Share groups of Kafka 4.0, early access: answers of version 0 have addresses, in a layout of their own."""
    known = struct.pack(">hhh", api.PRODUCE, 0, 11)
    rows = known + struct.pack(">hhhhhh", api.SHARE_FETCH, 0, 0, api.SHARE_ACKNOWLEDGE, 0, 0)
    content = bytearray(struct.pack(">ihi", 9, 0, 3) + rows)
    assert cap_api_versions(content, 0, len(content), 0, False) == framed(struct.pack(">ihi", 9, 0, 1) + known)


REBOOTSTRAP_REQUIRED, INVALID_REQUEST = 129, 42


@pytest.mark.parametrize("error", [0, REBOOTSTRAP_REQUIRED, INVALID_REQUEST])
@pytest.mark.parametrize("keys", [(), ((api.PRODUCE, 3, 99), (api.API_VERSIONS, 0, 9))])
def test_version_5_is_answered_in_the_form_of_version_4_whatever_the_broker_says(
    error: int, keys: tuple[tuple[int, int, int], ...]
) -> None:
    """A client that was misrouted is told so (KIP-1242): with an error, and no versions."""
    cls = answer_class(api.API_VERSIONS, 4)
    row = element(cls, "api_keys")
    rows = tuple(row(api_key=key, min_version=low, max_version=high) for key, low, high in keys)
    message = replace(filled(cls), error_code=ErrorCode(error), api_keys=rows)
    buf = bytearray(struct.pack(">i", 3) + kio_encode(message))
    assert cap_api_versions(buf, 0, len(buf), 5, False) is None
    assert buf == struct.pack(">i", 3) + kio_encode(replace(message, api_keys=capped(rows, False)))


@pytest.mark.parametrize("version", [0, 3, 4, 5, 6])
def test_any_unsupported_version_is_answered_in_the_form_of_version_0(version: int) -> None:
    """A broker answers so, and its answer passes here with the version of the request."""
    content = bytearray(struct.pack(">ihi", 9, 35, 1) + struct.pack(">hhh", 18, 0, 9))
    assert cap_api_versions(content, 0, len(content), version, False) is None
    assert content == struct.pack(">ihi", 9, 35, 1) + struct.pack(">hhh", 18, 0, 5)


def test_our_own_answer_to_an_unsupported_version() -> None:
    frame = unsupported_api_versions(1234)
    assert frame[:8] == struct.pack(">ii", len(frame) - 4, 1234)
    answer = kio_decode(answer_class(api.API_VERSIONS, 0), frame[8:])
    assert answer.error_code == ErrorCode.unsupported_version
    assert [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys] == [(18, 0, 5)]


def test_a_malformed_api_versions_answer_is_not_changed() -> None:
    row = struct.pack(">hhh", api.PRODUCE, 0, 99)
    content = bytearray(struct.pack(">ihi", 1, 0, 2) + row + row[:5])
    with pytest.raises(MalformedFrame):
        cap_api_versions(content, 0, len(content), 0, False)
    assert row in content


# --- all of them ------------------------------------------------------------------------------------------------------

CASES = [
    *((api.METADATA, version) for version in METADATA),
    *((api.FIND_COORDINATOR, version) for version in FIND_COORDINATOR),
    *((api.DESCRIBE_CLUSTER, version) for version in DESCRIBE_CLUSTER),
    *((api.API_VERSIONS, version) for version in API_VERSIONS),
]
COPIED = [(api.METADATA, version) for version in METADATA if version not in METADATA_IDS]
EXTRA: Extra = {
    **{name: [(90, b"unknown"), (300, b"")] for name in METADATA_CLASSES},
    "FindCoordinatorResponse": [(91, b"unknown")],
    "Coordinator": [(92, b"")],
    "DescribeClusterResponse": [(93, b"u")],
    "DescribeClusterBroker": [(94, b"unknown")],
    "ApiVersion": [(95, b"x")],
}


def _run(api_key: int, version: int, buf: Any, start: int, end: int) -> Any:
    if api_key == api.API_VERSIONS:
        return cap_api_versions(buf, start, end, version, True)
    return REWRITES[api_key](buf, start, end, version, ADDRESSES, {})


@IN_BOTH_FORMS
@pytest.mark.parametrize(("api_key", "version"), [case for case in CASES if case not in COPIED])
def test_an_answer_cut_anywhere_or_followed_by_a_byte_is_malformed(api_key: int, version: int) -> None:
    content = _full(api_key, version)
    assert len(content) >= 20
    for cut in range(len(content)):
        with pytest.raises(MalformedFrame):
            _run(api_key, version, bytearray(content[:cut]), 0, cut)
        with pytest.raises(MalformedFrame):  # the rest is in the buffer, but not in the frame
            _run(api_key, version, bytearray(content), 0, cut)
    with pytest.raises(MalformedFrame):
        _run(api_key, version, bytearray(content + b"\0"), 0, len(content) + 1)


@IN_BOTH_FORMS
@pytest.mark.parametrize(("api_key", "version"), CASES)
def test_an_answer_may_lie_in_any_buffer(api_key: int, version: int, kind: Buffers) -> None:
    content = _full(api_key, version)
    expected = _run(api_key, version, bytearray(content), 0, len(content))
    if api_key != api.API_VERSIONS:  # is changed in place
        assert _run(api_key, version, kind(content), 0, len(content)) == expected


@pytest.mark.parametrize(("api_key", "version"), COPIED)
def test_of_metadata_without_ids_only_the_brokers_are_read(api_key: int, version: int) -> None:
    content = _full(api_key, version)
    rewritten, _ = _run(api_key, version, content, 0, len(content))
    without = encode(filled(answer_class(api_key, version), brokers=()), EXTRA)
    head = (4 if version >= 3 else 0) + (1 if version >= 9 else 4)  # throttle time, count of brokers
    behind = len(content) - len(without) + head
    for cut in range(behind):
        with pytest.raises(MalformedFrame):
            _run(api_key, version, content, 0, cut)
    for cut in range(behind, len(content)):
        frame, _ = _run(api_key, version, content, 0, cut)
        assert frame == framed(rewritten[4 : len(rewritten) - len(content) + cut])


@IN_BOTH_FORMS
@pytest.mark.parametrize(("api_key", "version"), CASES)
@FEW
@given(data=st.data())
def test_any_change_of_bytes_gives_an_answer_or_malformed(api_key: int, version: int, data: st.DataObject) -> None:
    content = bytearray(_full(api_key, version))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    buf, start, end = within_other_bytes(bytes(content))
    try:
        _run(api_key, version, buf, start, end)
    except MalformedFrame:
        pass


@IN_BOTH_FORMS
@given(count=st.integers(2**20, 2**32 - 1))
@example(count=2**32 - 1)
def test_a_count_that_no_frame_could_hold_is_refused_at_once(count: int) -> None:
    head = struct.pack(">i", 1) + b"\0" + bytes(4)
    for content in (
        head + uvarint(count),  # brokers
        head + b"\x01\x00" + bytes(4) + uvarint(count),  # topics
        head + b"\x01\x00" + bytes(4) + b"\x02" + bytes(2) + b"\x02t" + bytes(17) + uvarint(count),  # partitions
    ):
        with pytest.raises(MalformedFrame):
            rewrite_metadata(content, 0, len(content), 12, {}, {})


STREAMED = [
    *((api.FETCH, version) for version in (16, 17, 18)),
    *((key, version) for key in (api.SHARE_FETCH, api.SHARE_ACKNOWLEDGE) for version in (1, 2)),
]  # by test_stream.py


@pytest.mark.parametrize(("api_key", "version"), CASES + STREAMED)
@FEW
@given(data=st.data())
def test_the_tests_own_encoder_agrees_with_kio(api_key: int, version: int, data: st.DataObject) -> None:
    message = data.draw(messages(answer_class(api_key, version)))
    assert encode(message) == kio_encode(message)


def _full(api_key: int, version: int) -> bytes:
    """An answer with something in each array, and unknown tagged fields."""
    cls = answer_class(api_key, version)
    return answer_header(cls, 5) + encode(filled(cls), EXTRA)
