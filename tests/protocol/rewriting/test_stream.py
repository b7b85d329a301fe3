# Addresses at the end of streamed answers: hidden however the chunks are cut, in as many bytes as before, and all else
# byte for byte what the broker sent. Fetch v16-v18, ShareFetch and ShareAcknowledge v1-v2, from kio's field tables.

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import compiled
from protocol import api
from protocol.rewriting.stream import HIDDEN_TAG, MAX_HELD_BYTES, has_endpoints
from tests import variants
from tests.examples import FEW
from tests.protocol.kio_messages import (
    NO_EXTRA,
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
    uvarint,
)

FETCH = [(api.FETCH, version) for version in (16, 17, 18)]
SHARE = [(key, version) for key in (api.SHARE_FETCH, api.SHARE_ACKNOWLEDGE) for version in (1, 2)]
ALL = FETCH + SHARE
HEADER_TAGS = b"\x01\x5a\x02hi"
CLASSES = (
    "FetchResponse", "FetchableTopicResponse", "PartitionData", "AbortedTransaction", "EpochEndOffset",
    "LeaderIdAndEpoch", "SnapshotId", "NodeEndpoint", "ShareFetchResponse", "ShareFetchableTopicResponse",
    "AcquiredRecords", "ShareAcknowledgeResponse", "ShareAcknowledgeTopicResponse",
)  # fmt: skip


class EndpointHider:
    """Both forms of one: with every chunk they do the same."""

    def __init__(self, api_key: int, version: int, size: int) -> None:
        forms = (
            (variants.PURE,) if compiled.compilation_state() == "pure Python" else (variants.PURE, variants.COMPILED)
        )
        modules = [variants.module("protocol.rewriting.stream", form) for form in forms]
        self._forms = [module.EndpointHider(api_key, version, size) for module in modules]

    def _same(self, ask: Callable[[Any], Any]) -> Any:
        first, *others = map(ask, self._forms)
        assert all(other == first for other in others)
        return first

    def feed(self, buf: bytearray, start: int, end: int) -> int:
        chunks = [bytearray(buf) for _ in self._forms]
        left = iter(chunks)
        held = self._same(lambda form: form.feed(next(left), start, end))
        assert all(chunk == chunks[0] for chunk in chunks)
        buf[:] = chunks[0]
        return int(held)

    def skip_unread(self, size: int) -> None:
        self._same(lambda form: form.skip_unread(size))

    @property
    def unread(self) -> int:
        return int(self._same(lambda form: form.unread))

    @property
    def lost(self) -> bool:
        return bool(self._same(lambda form: form.lost))


def stream(hider: EndpointHider, content: bytes, cuts: Iterable[int]) -> bytes:
    """What reaches the client: chunks end at `cuts`, lie in a buffer with other bytes, held ones come again."""
    sent, held, last = b"", b"", 0
    for cut in [*cuts, len(content)]:
        chunk = held + content[last:cut]
        buf = bytearray(b"before" + chunk + b"behind")
        hold = hider.feed(buf, 6, 6 + len(chunk))
        assert 0 <= hold <= len(chunk)
        assert hold < MAX_HELD_BYTES
        assert (bytes(buf[:6]), bytes(buf[6 + len(chunk) :])) == (b"before", b"behind")
        sent += bytes(buf[6 : 6 + len(chunk) - hold])
        held, last = bytes(buf[6 + len(chunk) - hold : 6 + len(chunk)]), cut
    assert held == b""
    return sent


def stream_unseen(hider: EndpointHider, content: bytes, cuts: Iterable[int]) -> bytes:
    """The same where bytes that nobody needs to look at pass elsewhere."""
    sent, last = b"", 0
    for cut in [*cuts, len(content)]:
        while last < cut:
            chunk = bytearray(content[last:cut])
            size = min(hider.unread, len(chunk))
            if size:
                hider.skip_unread(size)
                held = 0
            else:
                held = hider.feed(chunk, 0, len(chunk))
                size = len(chunk) - held
            sent += chunk[:size]
            last += size
            if held:
                break  # they come again with the next piece
    return sent


def ways_to_cut(content: bytes, data: st.DataObject) -> Iterator[list[int]]:
    yield []
    yield list(range(1, len(content)))
    yield sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))


def hide(case: tuple[int, int], content: bytes, cuts: Iterable[int] = ()) -> bytes:
    hider = EndpointHider(*case, len(content))
    sent = stream(hider, content, cuts)
    assert not hider.lost
    assert len(sent) == len(content)
    return sent


def read_uvarint(data: bytes, pos: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        value |= (data[pos] & 0x7F) << shift
        pos += 1
        if data[pos - 1] < 0x80:
            return value, pos
    raise AssertionError("a varint of more than five bytes")


def read_tags(data: bytes) -> list[tuple[int, bytes]]:
    """A section of tagged fields up to exactly the end."""
    count, pos = read_uvarint(data, 0)
    fields = []
    for _ in range(count):
        tag, pos = read_uvarint(data, pos)
        size, pos = read_uvarint(data, pos)
        fields.append((tag, data[pos : pos + size]))
        pos += size
    assert pos == len(data)
    return fields


def endpoints_of(message: Any, extra: Extra) -> bytes:
    rows = message.node_endpoints
    return uvarint(len(rows) + 1) + b"".join(encode(row, extra) for row in rows)


# --- Fetch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FETCH)
@FEW
@given(data=st.data())
def test_the_tagged_addresses_of_fetch_get_another_number_and_nothing_else_changes(
    case: tuple[int, int], data: st.DataObject
) -> None:
    cls = answer_class(*case)
    message, extra = data.draw(messages(cls)), data.draw(extras(*CLASSES))
    header = answer_header(cls, 1, HEADER_TAGS)
    content = header + encode(message, extra)
    hidden = [(HIDDEN_TAG, endpoints_of(message, extra))] if message.node_endpoints else []
    top = {**extra, "FetchResponse": hidden + extra["FetchResponse"]}
    expected = header + encode(replace(message, node_endpoints=()), top)
    for cuts in ways_to_cut(content, data):
        assert hide(case, content, cuts) == expected
        assert stream_unseen(EndpointHider(*case, len(content)), content, cuts) == expected


@pytest.mark.parametrize("case", FETCH)
def test_an_independent_decoder_sees_the_answer_without_addresses(case: tuple[int, int]) -> None:
    """kio refuses unknown tagged fields, so the hidden one, now known to be the last, is cut off for it."""
    cls = answer_class(*case)
    message = filled(cls)
    header = answer_header(cls, 1)
    content = header + kio_encode(message)
    sent = hide(case, content, range(1, len(content), 7))
    tail = uvarint(1) + uvarint(HIDDEN_TAG) + uvarint(len(endpoints_of(message, NO_EXTRA)))
    tail += endpoints_of(message, NO_EXTRA)
    assert sent.endswith(tail)
    decoded = kio_decode(cls, sent[len(header) : -len(tail)] + b"\0")
    assert decoded == replace(message, node_endpoints=())
    assert kio_decode(cls, content[len(header) :]) == message


@pytest.mark.parametrize("case", FETCH)
def test_a_client_that_skips_unknown_fields_sees_the_answer_without_addresses(case: tuple[int, int]) -> None:
    """kafka-python's decoder, as a consumer of these versions uses it."""
    cls = answer_class(*case)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of importlib.resources, in its import
        from kafka.protocol.consumer.fetch import FetchResponse
    content = answer_header(cls, 1) + kio_encode(filled(cls))
    before = FetchResponse.decode(content, version=case[1], header=True)
    after = FetchResponse.decode(hide(case, content), version=case[1], header=True)
    assert len(before.node_endpoints) == 2
    assert after.node_endpoints == []
    assert list(after.unknown_tags) == [f"_{HIDDEN_TAG}"]
    assert after.responses == before.responses
    assert (after.throttle_time_ms, after.session_id) == (before.throttle_time_ms, before.session_id)


@pytest.mark.parametrize("case", ALL)
def test_the_same_number_of_a_field_deeper_down_is_left_alone(case: tuple[int, int]) -> None:
    """Tag 0 of a partition is its diverging epoch; and any struct may have gotten a field 0 that we don't know."""
    cls = answer_class(*case)
    extra = {name: [(0, b"zero")] for name in CLASSES if name != cls.__name__}
    message = filled(cls, node_endpoints=())
    if case[0] == api.FETCH:
        extra["PartitionData"] = []  # there it is known
    content = answer_header(cls, 1) + encode(message, extra)
    for cuts in (range(0), range(1, len(content))):
        assert hide(case, content, cuts) == content


@pytest.mark.parametrize("case", FETCH)
def test_records_larger_than_any_chunk_are_passed_over(case: tuple[int, int]) -> None:
    cls = answer_class(*case)
    topic_cls = element(cls, "responses")
    partition_cls = element(topic_cls, "partitions")
    partitions = tuple(
        filled(partition_cls, partition_index=index, records=bytes([index]) * size)
        for index, size in enumerate((0, 1, 300_000, 70_000, 127, 16_383))
    )
    message = filled(cls, responses=(topic_cls(topic_id=uuid.UUID(int=1), partitions=partitions),))
    content = answer_header(cls, 1) + kio_encode(message)
    hidden = {"FetchResponse": [(HIDDEN_TAG, endpoints_of(message, NO_EXTRA))]}
    expected = answer_header(cls, 1) + encode(replace(message, node_endpoints=()), hidden)
    assert hide(case, content, range(4096, len(content), 4096)) == expected


# --- ShareFetch, ShareAcknowledge -------------------------------------------------------------------------------------


def share_content(case: tuple[int, int], message: Any, extra: Extra) -> tuple[bytes, bytes]:
    """The answer, and what of it stands before the addresses."""
    cls = type(message)
    header = answer_header(cls, 1, HEADER_TAGS)
    content = header + encode(message, extra)
    without = {**extra, cls.__name__: []}
    before = header + encode(replace(message, node_endpoints=()), without)[:-2]
    assert content.startswith(before)
    return content, before


@pytest.mark.parametrize("case", SHARE)
@FEW
@given(data=st.data())
def test_the_array_of_addresses_becomes_empty_and_its_bytes_an_unknown_field(
    case: tuple[int, int], data: st.DataObject
) -> None:
    cls = answer_class(*case)
    message, extra = data.draw(messages(cls)), data.draw(extras(*CLASSES))
    content, before = share_content(case, message, extra)
    for cuts in ways_to_cut(content, data):
        sent = hide(case, content, cuts)
        if not message.node_endpoints:
            assert sent == content
            continue
        assert sent.startswith(before + b"\x01")
        *kept, (tag, blank) = read_tags(sent[len(before) + 1 :])
        assert kept == extra[cls.__name__]
        assert tag > max((tag for tag, _ in kept), default=0)
        assert blank == bytes(len(blank))


@pytest.mark.parametrize("case", SHARE)
def test_an_independent_decoder_sees_the_share_answer_without_addresses(case: tuple[int, int]) -> None:
    cls = answer_class(*case)
    message = filled(cls)
    content, before = share_content(case, message, NO_EXTRA)
    sent = hide(case, content)
    assert kio_decode(cls, sent[len(answer_header(cls, 1, HEADER_TAGS)) : len(before) + 1] + b"\0") == replace(
        message, node_endpoints=()
    )


def test_the_sizes_add_up_for_any_lengths_of_addresses() -> None:
    """Around 127 bytes a size that is counted with itself changes its own width."""
    case = (api.SHARE_ACKNOWLEDGE, 2)
    cls = answer_class(*case)
    for extra_bytes in range(300):
        row = element(cls, "node_endpoints")(node_id=1, host="h" * extra_bytes, port=1, rack=None)
        content, before = share_content(case, filled(cls, node_endpoints=(row,)), NO_EXTRA)
        ((tag, _),) = read_tags(hide(case, content)[len(before) + 1 :])
        assert tag == HIDDEN_TAG


@pytest.mark.parametrize("case", SHARE)
@pytest.mark.parametrize("chunk", [1000, 5000, 100_000])
def test_a_list_too_long_to_be_held_is_hidden_all_the_same(case: tuple[int, int], chunk: int) -> None:
    cls = answer_class(*case)
    row_cls = element(cls, "node_endpoints")
    rows = tuple(row_cls(node_id=node, host="broker.example" * 8, port=1, rack="r") for node in range(2000))
    content, before = share_content(case, filled(cls, node_endpoints=rows), NO_EXTRA)
    sent = hide(case, content, range(chunk, len(content), chunk))
    assert sent.startswith(before + b"\x01")
    ((tag, _),) = read_tags(sent[len(before) + 1 :])
    assert tag == HIDDEN_TAG


def test_only_the_list_of_addresses_is_held_back() -> None:
    case = (api.SHARE_FETCH, 2)
    content, before = share_content(case, filled(answer_class(*case)), NO_EXTRA)
    hider = EndpointHider(*case, len(content))
    for pos in range(len(before)):
        assert hider.feed(bytearray(content[pos : pos + 1]), 0, 1) == 0
    for end in range(len(before) + 1, len(content)):
        assert hider.feed(bytearray(content[len(before) : end]), 0, end - len(before)) == end - len(before)
    assert hider.feed(bytearray(content[len(before) :]), 0, len(content) - len(before)) == 0
    assert not hider.lost


# --- what can't be followed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("chunk", [1, 13, 10**6])
def test_an_answer_with_a_byte_too_few_or_too_many_is_passed_and_reported(case: tuple[int, int], chunk: int) -> None:
    cls = answer_class(*case)
    whole = answer_header(cls, 1) + encode(filled(cls, node_endpoints=()))
    for content in (whole[:-1], whole + b"\0", whole[: len(whole) // 2], whole[:3]):
        hider = EndpointHider(*case, len(content))
        assert stream(hider, content, range(chunk, len(content), chunk)) == content
        assert hider.lost


@pytest.mark.parametrize("case", ALL)
@FEW
@given(data=st.data())
def test_any_bytes_are_all_passed(case: tuple[int, int], data: st.DataObject) -> None:
    cls = answer_class(*case)
    content = bytearray(answer_header(cls, 1, HEADER_TAGS) + encode(filled(cls)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    outcomes = set()
    for cuts in ways_to_cut(bytes(content), data):
        hider = EndpointHider(*case, len(content))
        sent = stream(hider, bytes(content), cuts)
        assert len(sent) == len(content)
        outcomes.add((sent, hider.lost))
    assert len(outcomes) == 1  # it does not depend on where the chunks end


@pytest.mark.parametrize("case", SHARE)
def test_addresses_that_do_not_read_as_such_are_hidden_and_reported(case: tuple[int, int]) -> None:
    cls = answer_class(*case)
    content, before = share_content(case, filled(cls), NO_EXTRA)
    broken = before + b"\x09" + content[len(before) + 1 :]  # eight of them announced, two there
    hider = EndpointHider(*case, len(broken))
    sent = stream(hider, broken, [])
    assert hider.lost
    ((tag, _),) = read_tags(sent[len(before) + 1 :])
    assert tag == HIDDEN_TAG


@pytest.mark.parametrize("varint", [b"\xff" * 5 + b"\x01", b"\xff\xff\xff\xff\x7f", b"\x80" * 5 + b"\x00"])
def test_a_varint_of_more_than_32_bits_or_five_bytes_is_the_end_of_following(varint: bytes) -> None:
    content = bytes(4) + b"\0" + bytes(10) + varint + b"\0"
    hider = EndpointHider(api.FETCH, 17, len(content))
    assert stream(hider, content, range(1, len(content))) == content
    assert hider.lost


@pytest.mark.parametrize("count", [64, 65])
def test_more_tagged_fields_than_any_message_has_are_the_end_of_following(count: int) -> None:
    cls = answer_class(api.FETCH, 17)
    header = answer_header(cls, 1, uvarint(count) + b"\x5a\x00" * count)
    content = header + encode(filled(cls, node_endpoints=()))
    hider = EndpointHider(api.FETCH, 17, len(content))
    assert stream(hider, content, range(1, len(content))) == content
    assert hider.lost == (count > 64)


@pytest.mark.parametrize("case", [(api.FETCH, 15), (api.FETCH, 19), (api.SHARE_FETCH, 0), (api.METADATA, 12)])
def test_an_answer_of_another_kind_is_passed_and_reported(case: tuple[int, int]) -> None:
    assert not has_endpoints(*case)
    hider = EndpointHider(*case, 50)
    assert stream(hider, bytes(50), [10, 20]) == bytes(50)
    assert hider.lost


def test_every_version_that_may_have_addresses_has_a_layout() -> None:
    """A cap that is raised without a layout here would let addresses through."""
    first = {api.FETCH: 16, api.SHARE_FETCH: 1, api.SHARE_ACKNOWLEDGE: 1}
    for key, version in first.items():
        assert all(has_endpoints(key, v) for v in range(version, api.HIGHEST_VERSIONS[key] + 1))
