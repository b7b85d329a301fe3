from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import writers
from kio.static.primitive import i16, i32, i64

from protocol import wire
from protocol.wire import MalformedFrame, TooManyTags
from tests.protocol.produce_cases import uvarint

VARINTS = [0, 1, 127, 128, 300, 16_383, 16_384, 2**21 - 1, 2**21, 2**28 - 1, 2**28, 2**31 - 1, 2**32 - 1]

STEPS: list[tuple[Callable[..., Any], bytes, Any]] = [
    (wire.read_int8, b"\x7f", 127),
    (wire.read_int8, b"\xff", -1),
    (wire.read_int16, b"\x01\x02", 258),
    (wire.read_int16, b"\xff\xfe", -2),
    (wire.read_int32, b"\x80\0\0\0", -(2**31)),
    (wire.read_int64, b"\xff" * 8, -1),
    (wire.read_uuid, bytes(range(16)), bytes(range(16))),
    *((wire.read_uvarint, uvarint(value), value) for value in VARINTS),
    (wire.read_string, b"\xff\xff", None),
    (wire.read_string, b"\0\0", b""),
    (wire.read_string, b"\0\3abc", b"abc"),
    (wire.read_compact_string, b"\0", None),
    (wire.read_compact_string, b"\1", b""),
    (wire.read_compact_string, b"\4abc", b"abc"),
    (wire.read_compact_string, b"\xad\2" + b"x" * 300, b"x" * 300),
    (wire.read_tags, b"\0", []),
    (wire.read_tags, b"\2\1\3abc\x82\1\0", [(1, 3, 6), (130, 9, 9)]),
]


@pytest.mark.parametrize(("step", "data", "value"), STEPS)
def test_a_step_reads_its_value_and_stops_behind_it(
    step: Callable[..., Any], data: bytes, value: Any, kind: Callable[[bytes], Any]
) -> None:
    assert step(kind(data), 0, len(data)) == (value, len(data))
    more = b"??" + data + b"\xff" * 8
    moved = value if step is not wire.read_tags else [(tag, start + 2, end + 2) for tag, start, end in value]
    assert step(kind(more), 2, len(more)) == (moved, 2 + len(data))
    assert type(step(kind(more), 2, len(more))[0]) is type(value)  # never a slice of the buffer


@pytest.mark.parametrize(("step", "data", "value"), STEPS)
def test_a_step_never_looks_behind_the_end(step: Callable[..., Any], data: bytes, value: Any) -> None:
    for end in range(len(data)):
        with pytest.raises(MalformedFrame):
            step(data, 0, end)  # the rest of the value lies in the buffer, but not in the frame
        with pytest.raises(MalformedFrame):
            step(data[:end], 0, end)


@pytest.mark.parametrize(
    ("step", "data"),
    [
        (wire.read_uvarint, b"\xff\xff\xff\xff\x10"),  # 33 bits
        (wire.read_uvarint, b"\x80\x80\x80\x80\x80\x00"),  # six bytes
        (wire.read_string, b"\xff\xfe"),  # length -2
        (wire.read_string, b"\0\4abc"),
        (wire.read_compact_string, b"\5abc"),
        (wire.read_compact_string, b"\xff\xff\xff\xff\x0f"),  # 4 GiB
        (wire.read_array_count, b"\xff\xff\xff\xfe"),  # -2 elements
        (wire.read_array_count, b"\0\0\0\4abc"),  # more elements than bytes
        (wire.read_compact_count, b"\5abc"),
        (wire.read_compact_count, b"\xff\xff\xff\xff\x0f"),
        (wire.read_tags, b"\1\0\4abc"),
        (wire.read_tags, b"\2\0\1a"),
        (wire.read_tags, b"\xff\xff\xff\xff\x0f"),  # 4 billion of them
    ],
)
def test_a_value_that_does_not_fit_is_malformed(step: Callable[..., Any], data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        step(data, 0, len(data))


def test_arrays_give_their_count_and_null_is_minus_one() -> None:
    assert wire.read_array_count(b"\0\0\0\2ab", 0, 6) == (2, 4)
    assert wire.read_array_count(b"\xff\xff\xff\xff", 0, 4) == (-1, 4)
    assert wire.read_compact_count(b"\3ab", 0, 3) == (2, 1)
    assert wire.read_compact_count(b"\0", 0, 1) == (-1, 1)


def test_skipping_tags_ends_where_reading_them_does() -> None:
    for data in (b"\0", b"\2\1\3abc\x82\1\0", b"\1\x7f\xc8\1" + b"x" * 200):
        assert wire.skip_tags(data + b"!", 0, len(data) + 1) == wire.read_tags(data, 0, len(data))[1] == len(data)
        for end in range(len(data)):
            with pytest.raises(MalformedFrame):
                wire.skip_tags(data, 0, end)


@pytest.mark.parametrize("step", [wire.read_tags, wire.skip_tags])
def test_a_section_has_as_many_tagged_fields_as_any_message_needs(step: Callable[..., Any]) -> None:
    full = b"\x40" + b"\x01\x00" * 64
    step(full, 0, len(full))
    for count in (b"\x41", b"\xff\x7f", b"\xff\xff\xff\xff\x0f"):
        with pytest.raises(TooManyTags):
            step(count + b"\x01\x00" * 16_383, 0, 40_000)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=3) | st.just(b"x" * 200)), max_size=5))
def test_every_form_of_a_tag_is_skipped(fields: list[tuple[int, bytes]]) -> None:
    for data in (wire.put_tags(fields), b"\x01\x80\x80\x00\x81\x80\x00?"):  # and one that is longer than it must be
        assert wire.skip_tags(data + b"\xff" * 8, 0, len(data) + 8) == len(data)
        for end in range(len(data)):
            with pytest.raises(MalformedFrame):
                wire.skip_tags(data, 0, end)
            with pytest.raises(MalformedFrame):
                wire.skip_tags(data[:end], 0, end)
    with pytest.raises(MalformedFrame):
        wire.skip_tags(b"\x01\x80\x80\x80\x80\x80\x00\x00", 0, 8)


def test_foreign_bytes_in_a_text_are_few_and_printable() -> None:
    assert wire.quote_bytes(b"clicks") == "b'clicks'"
    for data in (b"\x00" * 65, b"\x1b[31m\n" * 100_000):
        assert len(wire.quote_bytes(data)) <= 4 * 64 + 6
        assert wire.quote_bytes(data).isprintable()


def test_a_position_behind_the_end_is_malformed() -> None:
    for step in (
        wire.read_int8,
        wire.read_int16,
        wire.read_int32,
        wire.read_int64,
        wire.read_uuid,
        wire.read_uvarint,
        wire.read_string,
        wire.read_tags,
    ):
        with pytest.raises(MalformedFrame):
            step(b"\0" * 64, 10, 9)
    with pytest.raises(MalformedFrame):
        wire.skip_tags(b"\0" * 64, 10, 9)
    with pytest.raises(MalformedFrame):
        wire.check_end(9, 10)
    with pytest.raises(MalformedFrame):
        wire.check_end(11, 10)
    wire.check_end(10, 10)


def _by_kio(write: Callable[..., None], value: Any) -> bytes:
    buffer = io.BytesIO()
    write(buffer, value)
    return buffer.getvalue()


@given(st.text(max_size=40) | st.just("s" * 200))
def test_strings_are_written_as_kio_writes_them(text: str) -> None:
    assert wire.put_string(text.encode()) == _by_kio(writers.write_nullable_legacy_string, text)
    assert wire.put_compact_string(text.encode()) == _by_kio(writers.write_nullable_compact_string, text)


def test_null_strings_are_written_as_kio_writes_them() -> None:
    assert wire.put_string(None) == _by_kio(writers.write_nullable_legacy_string, None)
    assert wire.put_compact_string(None) == _by_kio(writers.write_nullable_compact_string, None)


@given(st.sampled_from(VARINTS) | st.integers(0, 2**32 - 1))
def test_varints_come_back(value: int) -> None:
    data = wire.put_uvarint(value)
    assert data == uvarint(value)
    assert wire.read_uvarint(data, 0, len(data)) == (value, len(data))


@given(st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_integers_are_read_as_kio_writes_them(small: int, middle: int, large: int) -> None:
    assert wire.read_int16(_by_kio(writers.write_int16, i16(small)), 0, 2) == (small, 2)
    assert wire.read_int32(_by_kio(writers.write_int32, i32(middle)), 0, 4) == (middle, 4)
    assert wire.read_int64(_by_kio(writers.write_int64, i64(large)), 0, 8) == (large, 8)


def test_tags_come_back() -> None:
    fields = [(0, b""), (1, b"abc"), (200, b"x" * 200)]
    data = wire.put_tags(fields)
    read, pos = wire.read_tags(data, 0, len(data))
    assert pos == len(data)
    assert [(tag, data[start:end]) for tag, start, end in read] == fields
    assert wire.put_tags([]) == wire.NO_TAGS


def test_a_framed_content_has_its_size_in_front() -> None:
    assert wire.with_size_prefix(b"abc") == b"\0\0\0\3abc"
