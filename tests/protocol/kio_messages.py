# Any message of Kafka that kio has a schema for, in any version: random values, and two encoders.
#
# kio's own encoder is the oracle: it shares nothing with ours. `encode` is a second one, over kio's field tables, that
# can also write what kio can't: tagged fields that nobody knows yet, at every level, and a tag with another number.
# tests hold the two to each other (test_rewrite.py), so that what `encode` says is what Kafka means.

from __future__ import annotations

import dataclasses
import datetime
import functools
import io
import struct
import types
import typing
import uuid
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

Extra = Mapping[str, list[tuple[int, bytes]]]  # class name -> unknown tagged fields of each of its instances
NO_EXTRA: Extra = {}

_INTEGERS = {"int8": (">b", 8), "int16": (">h", 16), "int32": (">i", 32), "int64": (">q", 64)}
_MILLISECOND = datetime.timedelta(milliseconds=1)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20) | st.text("x", min_size=120, max_size=140)


def answer_class(api_key: int, version: int) -> Any:
    return load_response_schema(api_key, version)


def request_class(api_key: int, version: int) -> Any:
    return load_request_schema(api_key, version)


# --- values -----------------------------------------------------------------------------------------------------------


class _Field(typing.NamedTuple):
    name: str
    kind: str | None  # a Kafka type, None for a struct
    entity: Any
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any


@functools.cache
def fields(cls: Any) -> list[_Field]:
    """The fields of a kio class in the order of the wire."""
    hints = typing.get_type_hints(cls)
    out = []
    for field in dataclasses.fields(cls):
        hint, nullable, is_array = hints[field.name], False, False
        if isinstance(hint, types.UnionType):
            nullable = True
            (hint,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
        if typing.get_origin(hint) is tuple:
            is_array, hint = True, typing.get_args(hint)[0]
        kind, tag = field.metadata.get("kafka_type"), field.metadata.get("tag")
        out.append(_Field(field.name, kind, hint, is_array, nullable, tag, field.default))
    return out


@functools.cache
def messages(cls: Any) -> st.SearchStrategy[Any]:
    """Instances of a kio class, every field of it drawn."""
    return st.builds(cls, **{field.name: _values(field) for field in fields(cls)})


def _values(field: _Field) -> st.SearchStrategy[Any]:
    one = messages(field.entity) if field.kind is None else _primitives(field.kind)
    values = st.lists(one, max_size=3).map(tuple) if field.is_array else one
    return st.none() | values if field.nullable else values


def _primitives(kind: str) -> st.SearchStrategy[Any]:
    if kind in _INTEGERS:
        bits = _INTEGERS[kind][1]
        return st.integers(-1, 3) | st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    if kind.startswith("timedelta_i"):
        return st.integers(0, 2**31 - 1).map(lambda ms: ms * _MILLISECOND)
    return {
        "string": _TEXT,
        "bytes": st.binary(max_size=300),
        "records": st.binary(max_size=300),
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False),
        "uuid": st.uuids(),
        "error_code": st.sampled_from(ErrorCode),
    }[kind]


def element(cls: Any, name: str) -> Any:
    """The class of a field's elements."""
    return next(field.entity for field in fields(cls) if field.name == name)


def filled(cls: Any, **values: Any) -> Any:
    """An instance with something in every field that isn't given, two elements in every array."""
    for field in fields(cls):
        if field.name not in values:
            one = filled(field.entity) if field.kind is None else _SAMPLES[field.kind]
            values[field.name] = (one, one) if field.is_array else one
    return cls(**values)


_SAMPLES: dict[str, Any] = {
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "string": "text",
    "bytes": b"bytes",
    "records": b"r" * 200,
    "bool": True,
    "float64": 1048576.5,
    "uuid": uuid.UUID(int=5),
    "error_code": ErrorCode(0),
    "timedelta_i32": 6 * _MILLISECOND,
    "timedelta_i64": 7 * _MILLISECOND,
}


# --- kio --------------------------------------------------------------------------------------------------------------


def kio_encode(message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def kio_decode(cls: Any, data: bytes) -> Any:
    message, size = entity_reader(cls)(data, 0)
    assert size == len(data)
    return message


def answer_header(cls: Any, correlation_id: int, tags: bytes = b"\0") -> bytes:
    return struct.pack(">i", correlation_id) + (tags if cls.__header_schema__.__flexible__ else b"")


# --- by hand ----------------------------------------------------------------------------------------------------------


def uvarint(value: int) -> bytes:
    return bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80,)) + uvarint(value >> 7)


def tagged(rows: list[tuple[int, bytes]]) -> bytes:
    return uvarint(len(rows)) + b"".join(uvarint(tag) + uvarint(len(value)) + value for tag, value in rows)


def encode(message: Any, extra: Extra = NO_EXTRA) -> bytes:
    """A message with unknown tagged fields behind the known ones of each struct whose class `extra` names."""
    cls: Any = type(message)
    out, known = b"", []
    for field in fields(cls):
        value = getattr(message, field.name)
        if field.tag is None:
            out += _encode_field(field, value, cls.__flexible__, extra)
        elif value != field.default:
            known.append((field.tag, _encode_field(field, value, cls.__flexible__, extra)))
    return out + tagged(sorted(known) + list(extra.get(cls.__name__, []))) if cls.__flexible__ else out


def _encode_field(field: _Field, value: Any, flexible: bool, extra: Extra) -> bytes:
    if not field.is_array:
        return _encode_one(field, value, flexible, extra)
    count = -1 if value is None else len(value)
    rows = b"".join(_encode_one(field, row, flexible, extra) for row in value or ())
    return (uvarint(count + 1) if flexible else struct.pack(">i", count)) + rows


def _encode_one(field: _Field, value: Any, flexible: bool, extra: Extra) -> bytes:
    kind = field.kind
    if kind is None:
        return encode(value, extra)
    if kind in _INTEGERS:
        return struct.pack(_INTEGERS[kind][0], value)
    if kind.startswith("timedelta_i"):
        return struct.pack(">i" if kind.endswith("32") else ">q", value // _MILLISECOND)
    if kind == "error_code":
        return struct.pack(">h", value.value)
    if kind == "bool":
        return b"\1" if value else b"\0"
    if kind == "float64":
        return struct.pack(">d", value)
    if kind == "uuid":
        return (value or uuid.UUID(int=0)).bytes
    data = value.encode() if isinstance(value, str) else value
    if flexible:
        return b"\0" if data is None else uvarint(len(data) + 1) + data
    size = struct.pack(">h" if kind == "string" else ">i", -1 if data is None else len(data))
    return size + (data or b"")


unknown_fields = st.lists(
    st.tuples(st.integers(90, 20_000), st.binary(max_size=20)), max_size=2, unique_by=lambda row: row[0]
).map(sorted)


def extras(*class_names: str) -> st.SearchStrategy[Extra]:
    """Unknown tagged fields for any of these classes; their tags are above 90, where Kafka has none."""
    return st.fixed_dictionaries(dict.fromkeys(class_names, unknown_fields))
