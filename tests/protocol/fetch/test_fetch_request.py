# The bound of a Fetch or ShareFetch request, changed in place, and the topics of a Fetch request; kio is the oracle.

from __future__ import annotations

import struct
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import api
from protocol.fetch import fetch_request
from protocol.wire import MalformedFrame
from tests.examples import FEW
from tests.protocol import kio_messages

VERSIONS = range(api.LOWEST_VERSIONS[api.FETCH], api.HIGHEST_VERSIONS[api.FETCH] + 1)
FETCH = 1
SHARE_FETCH = 78


def request(version: int, client_id: bytes | None = b"app", tags: bytes = b"\0") -> tuple[bytearray, int]:
    """A frame's content, and where its body begins."""
    head = FETCH.to_bytes(2, "big") + version.to_bytes(2, "big") + (7).to_bytes(4, "big")
    head += b"\xff\xff" if client_id is None else len(client_id).to_bytes(2, "big") + client_id
    head += tags if version >= 12 else b""
    cls = kio_messages.request_class(FETCH, version)
    message = kio_messages.filled(cls, min_bytes=100_000, max_bytes=52_428_800)
    return bytearray(head + kio_messages.kio_encode(message)), len(head)


@pytest.mark.parametrize("client_id", [None, b"", b"app"])
@pytest.mark.parametrize("version", VERSIONS)
def test_it_asks_for_less_and_is_otherwise_the_same(version: int, client_id: bytes | None) -> None:
    buf, body = request(version, client_id)
    before = kio_messages.kio_decode(kio_messages.request_class(FETCH, version), bytes(buf[body:]))
    frame = bytearray(b"....") + buf + bytearray(b"behind")
    assert fetch_request.cap_fetch(frame, 4, 4 + len(buf), version, 5000)
    assert frame[:4] == b"...."
    assert frame[4 + len(buf) :] == b"behind"
    after = kio_messages.kio_decode(kio_messages.request_class(FETCH, version), bytes(frame[4 + body : 4 + len(buf)]))
    assert (after.min_bytes, after.max_bytes) == (5000, 5000)
    assert after.topics == before.topics
    assert after.max_wait == before.max_wait


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_that_asks_for_less_already_is_left_alone(version: int) -> None:
    buf, _ = request(version)
    same = bytearray(buf)
    assert not fetch_request.cap_fetch(buf, 0, len(buf), version, 52_428_800)
    assert buf == same


def test_tagged_fields_of_the_header_are_passed_over() -> None:
    buf, body = request(17, tags=b"\x01\x05\x03abc")
    assert fetch_request.cap_fetch(buf, 0, len(buf), 17, 1)
    after = kio_messages.kio_decode(kio_messages.request_class(FETCH, 17), bytes(buf[body:]))
    assert after.max_bytes == 1


@pytest.mark.parametrize("version", [4, 12, 15, 18])
def test_one_that_ends_too_early_is_malformed(version: int) -> None:
    buf, body = request(version)
    for end in range(8, body + (12 if version >= 15 else 16)):
        with pytest.raises(MalformedFrame):
            fetch_request.cap_fetch(bytearray(buf[:end]), 0, end, version, 1)


# --- which topics -----------------------------------------------------------------------------------------------------


def topic_of(row: Any) -> bytes:
    return row.topic.encode() if hasattr(row, "topic") else (row.topic_id or uuid.UUID(int=0)).bytes


@pytest.mark.parametrize("version", VERSIONS)
@FEW
@given(data=st.data())
def test_the_topics_that_it_lists(version: int, data: st.DataObject) -> None:
    cls = kio_messages.request_class(FETCH, version)
    message = data.draw(kio_messages.messages(cls))
    extra = data.draw(kio_messages.extras("FetchRequest", "FetchTopic", "FetchPartition", "ForgottenTopic"))
    head = struct.pack(">hhih", FETCH, version, 7, 3) + b"app" + (b"\x01\x05\x03abc" if version >= 12 else b"")
    buf = b"...." + head + kio_messages.encode(message, extra)
    found = fetch_request.read_topics(buf + b"behind", 4, len(buf), version)
    assert found == [topic_of(row) for row in message.topics]


@pytest.mark.parametrize("version", VERSIONS)
def test_one_that_ends_before_its_topics_do_is_malformed(version: int) -> None:
    buf, body = request(version)
    filled = kio_messages.kio_decode(kio_messages.request_class(FETCH, version), bytes(buf[body:]))
    behind = (len(filled.forgotten_topics_data) if version >= 7 else 0) * 40 + 60  # forgotten topics, the client's rack
    for end in range(8, len(buf) - behind, 3):
        with pytest.raises(MalformedFrame):
            fetch_request.read_topics(bytes(buf[:end]), 0, end, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_more_empty_topics_than_any_client_lists_are_malformed(version: int) -> None:
    cls = kio_messages.request_class(FETCH, version)
    element = kio_messages.element(cls, "topics")
    for count, is_malformed in ((64, False), (200, True)):
        name = (lambda i: {"topic_id": uuid.UUID(int=i)}) if version >= 13 else (lambda i: {"topic": f"t{i}"})
        rows = tuple(kio_messages.filled(element, partitions=(), **name(i)) for i in range(count))
        buf, body = request(version)
        buf[body:] = kio_messages.kio_encode(kio_messages.filled(cls, topics=rows))
        if is_malformed:
            with pytest.raises(MalformedFrame, match="empty"):
                fetch_request.read_topics(buf, 0, len(buf), version)
        else:
            assert len(fetch_request.read_topics(buf, 0, len(buf), version)) == count


# --- ShareFetch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
@FEW
@given(data=st.data())
def test_the_topics_that_a_share_fetch_lists(version: int, data: st.DataObject) -> None:
    message = data.draw(kio_messages.messages(kio_messages.request_class(SHARE_FETCH, version)))
    names = ("ShareFetchRequest", "FetchTopic", "FetchPartition", "AcknowledgementBatch", "ForgottenTopic")
    extra = data.draw(kio_messages.extras(*names))
    head = struct.pack(">hhih", SHARE_FETCH, version, 7, 3) + b"app\x01\x05\x03abc"
    buf = b"...." + head + kio_messages.encode(message, extra)
    found = fetch_request.read_share_topics(buf + b"behind", 4, len(buf), version)
    assert found == [(row.topic_id or uuid.UUID(int=0)).bytes for row in message.topics]
    with pytest.raises(MalformedFrame):
        fetch_request.read_share_topics(buf[: 4 + len(head) + 20], 4, 4 + len(head) + 20, version)


@pytest.mark.parametrize("group", [None, "group"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_share_fetch_asks_for_less_and_is_otherwise_the_same(version: int, group: str | None) -> None:
    cls = kio_messages.request_class(SHARE_FETCH, version)
    message = kio_messages.filled(cls, group_id=group, min_bytes=100_000, max_bytes=52_428_800)
    head = struct.pack(">hhih", SHARE_FETCH, version, 7, 3) + b"app\0"
    buf = bytearray(head + kio_messages.kio_encode(message))
    before = bytearray(buf)
    assert not fetch_request.cap_share_fetch(buf, 0, len(buf), version, 52_428_800)
    assert buf == before
    assert fetch_request.cap_share_fetch(buf, 0, len(buf), version, 5000)
    after = kio_messages.kio_decode(cls, bytes(buf[len(head) :]))
    assert after == replace(message, min_bytes=5000, max_bytes=5000)
    for end in range(8, len(head) + 20):
        with pytest.raises(MalformedFrame):
            fetch_request.cap_share_fetch(bytearray(buf[:end]), 0, end, version, 1)
