# How the messages of the admin APIs are read and written: each is a NamedTuple whose annotations say what its fields
# are on the wire.
#
# These requests are rare and small and their texts mean something here (config keys, principals), so unlike on the
# produce path a message is decoded whole, into NamedTuples and str, and encoded whole. Unknown tagged fields are
# skipped and not written again: what is forwarded without a change should be the client's own bytes. The messages
# are in protocol/admin/; of what the gateway itself asks brokers, also in protocol/authentication/handshake.py. It
# refuses to know the owner of a key, and who may change it.
#
# Texts are UTF-8 of at most 32,767 bytes, in compact form as well, for a broker takes no others.
#
# Spec: kafka.apache.org/protocol (request header v1 and v2, answer header v0 and v1), KIP-482.

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from protocol import api, wire
from protocol.wire import Buffer, MalformedFrame

# The types of fields, beside bool and tuples of these or of other messages. `| None` is a nullable text or array.
Int8: TypeAlias = Annotated[int, "int8"]
Int16: TypeAlias = Annotated[int, "int16"]
Int32: TypeAlias = Annotated[int, "int32"]
Int64: TypeAlias = Annotated[int, "int64"]
Float64: TypeAlias = Annotated[float, "float64"]
Text: TypeAlias = Annotated[str, "text"]
# A text that is cut where it doesn't fit: an error message shouldn't keep an answer from being sent.
ErrorText: TypeAlias = Annotated[str, "message"]
Bytes: TypeAlias = Annotated[bytes, "bytes"]
Uuid: TypeAlias = Annotated[bytes, "uuid"]

FieldKind: TypeAlias = Literal["bool", "int8", "int16", "int32", "int64", "float64", "text", "message", "bytes", "uuid"]
Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")
_Read: TypeAlias = Callable[[Buffer, int, int, int, bool], tuple[Any, int]]  # buf, pos, end, version, flexible
_Put: TypeAlias = Callable[[Any, int, bool], bytes]  # value, version, flexible

_FLOAT64 = struct.Struct(">d")
_MAX_TEXT = 0x7FFF  # bytes; what Kafka's own readers and writers refuse to exceed
_UUID_BYTES = 16
_NUMBER_FORMATS = {"bool": ">?", "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "float64": ">d"}
_NO_DEFAULT: Final = object()


class Since(NamedTuple):
    """Annotates a field that came later. `version`: the first that has it; before, it is read as its default and not
    written. `default`: for a NamedTuple that has none of its own. `tag`: of a tagged field, which is not written either
    where it is the default.
    """

    version: int
    default: Any = _NO_DEFAULT
    tag: int | None = None


class MessageField(NamedTuple):
    """One field of a message, as its annotation has it."""

    name: str
    kind: FieldKind | MessageStruct[Any]
    array: bool = False
    nullable: bool = False  # the array if it is one, else the text
    since: int = 0
    default: Any = None
    tag: int | None = None

    @classmethod
    def from_annotation(cls, name: str, annotation: Any, default: Any) -> MessageField:
        """`default`: the NamedTuple's own."""
        kind: FieldKind | None = None
        since, is_array, is_nullable = Since(0), False, False
        while (origin := get_origin(annotation)) is not None:
            if origin is Annotated:
                for note in annotation.__metadata__:
                    since, kind = (note, kind) if isinstance(note, Since) else (since, note)
                annotation = annotation.__origin__
            elif origin is tuple:
                is_array, annotation = True, get_args(annotation)[0]
            else:
                assert origin in (Union, UnionType), f"{name}: no field can be a {annotation}"
                is_nullable = True
                (annotation,) = (each for each in get_args(annotation) if each is not NoneType)
        if since.default is not _NO_DEFAULT:
            default = since.default
        found = kind or ("bool" if annotation is bool else MessageStruct(annotation))
        return cls(name, found, is_array, is_nullable, since.version, default, since.tag)


class MessageStruct(Generic[T]):
    """The fields of a NamedTuple, in its order, which is that of the wire; tagged ones last, by their tags."""

    __slots__ = ("factory", "fields", "steps", "tagged")

    def __init__(self, message: type[T]) -> None:
        self.factory: Callable[..., T] = message
        named_tuple: Any = message
        annotations = get_type_hints(message, include_extras=True)
        self.fields = [
            MessageField.from_annotation(name, annotations[name], named_tuple._field_defaults.get(name))
            for name in named_tuple._fields
        ]
        steps = [(field, _field_reader(field), _field_writer(field)) for field in self.fields]
        self.steps = [step for step in steps if step[0].tag is None]
        self.tagged = steps[len(self.steps) :]
        assert all(field.tag is not None for field, _, _ in self.tagged)


class DecodedRequest(NamedTuple, Generic[Q]):
    """A request as it was read. `client_id` stays bytes, as everywhere."""

    version: int
    correlation_id: int
    client_id: bytes | None
    body: Q


class ApiCodec(Generic[Q, A]):
    """Reads and writes the requests and answers of one API in the versions `lowest` to `highest`."""

    __slots__ = ("highest", "key", "lowest", "name", "request", "response")

    def __init__(self, key: int, lowest: int, highest: int, request: type[Q], answer: type[A]) -> None:
        self.key = key
        self.name = api.API_NAMES[key]
        self.lowest = lowest
        self.highest = highest
        self.request = MessageStruct(request)
        self.response = MessageStruct(answer)

    def decode_request(self, buf: Buffer, start: int, end: int) -> DecodedRequest[Q]:
        """The request in buf[start:end] (without size prefix).

        Raises:
            MalformedFrame: the text names the fault, its field and its byte in the frame.
        """
        _check_within(buf, end)
        key, pos = wire.read_int16(buf, start, end)
        if key != self.key:
            raise MalformedFrame(f"a request with API key {key}, {self.name} has {self.key}")
        version, pos = wire.read_int16(buf, pos, end)
        if not self.lowest <= version <= self.highest:
            raise MalformedFrame(self._version_text(version))
        correlation_id, pos = wire.read_int32(buf, pos, end)
        client_id, pos = wire.read_string(buf, pos, end)
        flexible = version >= api.REQUEST_FLEXIBLE_FROM[self.key]
        if flexible:
            pos = wire.skip_tags(buf, pos, end)
        body = self._read_message(self.request, buf, start, pos, end, version, flexible, "request")
        return DecodedRequest(version, correlation_id, client_id, body)

    def encode_request(self, body: Q, version: int, correlation_id: int, client_id: bytes | None) -> bytes:
        """The frame of a request, size prefix included.

        Raises:
            ValueError: the version isn't spoken, or a value doesn't fit its field.
        """
        flexible = self._check_version(version) >= api.REQUEST_FLEXIBLE_FROM[self.key]
        head = struct.pack(">hhi", self.key, version, correlation_id) + wire.put_string(client_id)
        return wire.with_size_prefix(head + _empty_tags(flexible) + _put_struct(self.request, body, version, flexible))

    def decode_response(self, buf: Buffer, start: int, end: int, version: int) -> tuple[int, A]:
        """(correlation id, answer) of the answer in buf[start:end] to a request of `version`.

        Raises:
            MalformedFrame: as in `decode_request`.
        """
        _check_within(buf, end)
        if not self.lowest <= version <= self.highest:
            raise MalformedFrame(self._version_text(version))
        correlation_id, pos = wire.read_int32(buf, start, end)
        if version >= api.RESPONSE_FLEXIBLE_FROM[self.key]:
            pos = wire.skip_tags(buf, pos, end)
        flexible = version >= api.REQUEST_FLEXIBLE_FROM[self.key]  # the body is, where only the header isn't
        return correlation_id, self._read_message(self.response, buf, start, pos, end, version, flexible, "answer")

    def encode_response(self, answer: A, version: int, correlation_id: int) -> bytes:
        """The frame of an answer, size prefix included.

        Raises:
            ValueError: as in `encode_request`.
        """
        head = wire.INT32.pack(correlation_id) + _empty_tags(
            self._check_version(version) >= api.RESPONSE_FLEXIBLE_FROM[self.key]
        )
        return wire.with_size_prefix(
            head + _put_struct(self.response, answer, version, version >= api.REQUEST_FLEXIBLE_FROM[self.key])
        )

    def _read_message(
        self,
        kind: MessageStruct[T],
        buf: Buffer,
        start: int,
        pos: int,
        end: int,
        version: int,
        flexible: bool,
        what: str,
    ) -> T:
        try:
            value, pos = _read_struct(kind, buf, pos, end, version, flexible)
        except _FieldError as error:
            where = f"{error.path} at byte {error.pos - start}"
            raise MalformedFrame(f"{self.name} v{version} {what}, {where}: {error.text}") from None
        wire.check_end(pos, end)
        return value

    def _check_version(self, version: int) -> int:
        if not self.lowest <= version <= self.highest:
            raise ValueError(self._version_text(version))
        return version

    def _version_text(self, version: int) -> str:
        return f"{self.name} v{version}, v{self.lowest} to v{self.highest} are spoken"


def _check_within(buf: Buffer, end: int) -> None:
    if end > len(buf):
        raise MalformedFrame(f"the frame ends {end - len(buf)} bytes behind the buffer")


def _empty_tags(flexible: bool) -> bytes:
    return wire.NO_TAGS if flexible else b""


# --- reading ----------------------------------------------------------------------------------------------------------


class _FieldError(Exception):
    def __init__(self, path: str, pos: int, text: str) -> None:
        super().__init__(path, pos, text)
        self.path, self.pos, self.text = path, pos, text

    def inside_field(self, name: str) -> _FieldError:
        between = "" if self.path.startswith("[") else "."
        return _FieldError(f"{name}{between}{self.path}", self.pos, self.text)


def _read_struct(
    kind: MessageStruct[T], buf: Buffer, pos: int, end: int, version: int, flexible: bool
) -> tuple[T, int]:
    values = []
    name = ""
    try:
        for field, read, _ in kind.steps:
            if version < field.since:
                values.append(field.default)
                continue
            name = field.name
            value, pos = read(buf, pos, end, version, flexible)
            values.append(value)
        name = "tagged fields"
        if kind.tagged:
            more, pos = _read_tagged(kind, buf, pos, end, version, flexible)
            values += more
        elif flexible:
            pos = wire.skip_tags(buf, pos, end)
    except _FieldError as error:
        raise error.inside_field(name) from None
    except MalformedFrame as error:
        raise _FieldError(name, pos, str(error)) from None
    return kind.factory(*values), pos


def _read_tagged(
    kind: MessageStruct[Any], buf: Buffer, pos: int, end: int, version: int, flexible: bool
) -> tuple[list[Any], int]:
    found: dict[int, tuple[int, int]] = {}
    if flexible:
        fields, pos = wire.read_tags(buf, pos, end)
        found = {tag: (start, stop) for tag, start, stop in fields}
    values = []
    for field, read, _ in kind.tagged:
        value = field.default
        if field.tag in found and version >= field.since:
            start, stop = found[field.tag]
            value, after = read(buf, start, stop, version, flexible)
            wire.check_end(after, stop)
        values.append(value)
    return values, pos


def _field_reader(field: MessageField) -> _Read:
    kind = field.kind
    if isinstance(kind, MessageStruct):
        one: _Read = functools.partial(_read_struct, kind)
    elif kind in ("text", "message"):
        one = _read_nullable_text if field.nullable and not field.array else _read_text
    elif kind == "bytes":
        one = _read_bytes
    elif kind == "uuid":
        one = _read_uuid
    else:
        one = _NUMBER_READERS[kind]
    return functools.partial(_read_array, one, field.nullable) if field.array else one


def _read_array(
    one: _Read, nullable: bool, buf: Buffer, pos: int, end: int, version: int, flexible: bool
) -> tuple[Any, int]:
    count, pos = (wire.read_count if nullable else wire.read_nonnull_count)(buf, pos, end, flexible)
    if count < 0:
        return None, pos
    rows: list[Any] = []
    try:
        for _ in range(count):
            row, pos = one(buf, pos, end, version, flexible)
            rows.append(row)
    except _FieldError as error:
        raise error.inside_field(f"[{len(rows)}]") from None
    except MalformedFrame as error:
        raise _FieldError(f"[{len(rows)}]", pos, str(error)) from None
    return tuple(rows), pos


def _read_text(buf: Buffer, pos: int, end: int, version: int, flexible: bool) -> tuple[str, int]:
    value, pos = _read_nullable_text(buf, pos, end, version, flexible)
    if value is None:
        raise MalformedFrame("null in place of a text")
    return value, pos


def _read_nullable_text(buf: Buffer, pos: int, end: int, _version: int, flexible: bool) -> tuple[str | None, int]:
    data, pos = (wire.read_compact_string if flexible else wire.read_string)(buf, pos, end)
    if data is None:
        return None, pos
    if len(data) > _MAX_TEXT:
        raise MalformedFrame(f"a text of {len(data)} bytes, at most {_MAX_TEXT} are allowed")
    try:
        return data.decode(), pos
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"a text that isn't UTF-8 ({error.reason} at its byte {error.start})") from None


def _read_bytes(buf: Buffer, pos: int, end: int, _version: int, flexible: bool) -> tuple[bytes, int]:
    size, pos = wire.read_count(buf, pos, end, flexible)  # lengths and counts look alike
    if size < 0:
        raise MalformedFrame("null in place of bytes")
    return bytes(buf[pos : pos + size]), pos + size


def _read_uuid(buf: Buffer, pos: int, end: int, _version: int, _flexible: bool) -> tuple[bytes, int]:
    return wire.read_uuid(buf, pos, end)


def _read_bool(buf: Buffer, pos: int, end: int, _version: int, _flexible: bool) -> tuple[bool, int]:
    value, pos = wire.read_int8(buf, pos, end)
    return value != 0, pos  # as Kafka reads it


def _read_int8(buf: Buffer, pos: int, end: int, _version: int, _flexible: bool) -> tuple[int, int]:
    return wire.read_int8(buf, pos, end)


def _read_int16(buf: Buffer, pos: int, end: int, _version: int, _flexible: bool) -> tuple[int, int]:
    return wire.read_int16(buf, pos, end)


def _read_int32(buf: Buffer, pos: int, end: int, _version: int, _flexible: bool) -> tuple[int, int]:
    return wire.read_int32(buf, pos, end)


def _read_int64(buf: Buffer, pos: int, end: int, _version: int, _flexible: bool) -> tuple[int, int]:
    return wire.read_int64(buf, pos, end)


def _read_float64(buf: Buffer, pos: int, end: int, _version: int, _flexible: bool) -> tuple[float, int]:
    after = wire.skip_bytes(pos, _FLOAT64.size, end)
    return _FLOAT64.unpack_from(buf, pos)[0], after


_NUMBER_READERS: dict[str, _Read] = {
    "bool": _read_bool,
    "int8": _read_int8,
    "int16": _read_int16,
    "int32": _read_int32,
    "int64": _read_int64,
    "float64": _read_float64,
}


# --- writing ----------------------------------------------------------------------------------------------------------


def _put_struct(kind: MessageStruct[T], value: Any, version: int, flexible: bool) -> bytes:
    parts = [
        put(item, version, flexible)
        for (field, _, put), item in zip((*kind.steps, *kind.tagged), value, strict=True)
        if field.tag is None and version >= field.since
    ]
    if not (flexible and kind.tagged):
        return b"".join(parts) + _empty_tags(flexible)
    tagged = [
        (field.tag or 0, put(item, version, flexible))
        for (field, _, put), item in zip(kind.tagged, value[len(kind.steps) :], strict=True)
        if item != field.default and version >= field.since
    ]
    return b"".join(parts) + wire.put_tags(tagged)


def _field_writer(field: MessageField) -> _Put:
    kind = field.kind
    if isinstance(kind, MessageStruct):
        one: _Put = functools.partial(_put_struct, kind)
    elif kind in ("text", "message"):
        one = functools.partial(_put_text, field._replace(nullable=field.nullable and not field.array))
    elif kind == "bytes":
        one = _put_bytes
    elif kind == "uuid":
        one = _put_uuid
    else:
        one = functools.partial(_put_number, field.name, kind, struct.Struct(_NUMBER_FORMATS[kind]).pack)
    return functools.partial(_put_array, field, one) if field.array else one


def _put_array(field: MessageField, one: _Put, value: Any, version: int, flexible: bool) -> bytes:
    if value is None:
        if not field.nullable:
            raise ValueError(f"{field.name}: null in place of an array")
        return wire.put_count(-1, flexible)
    return wire.put_count(len(value), flexible) + b"".join([one(row, version, flexible) for row in value])


def _put_number(
    name: str, kind: str, pack: Callable[[Any], bytes], value: Any, _version: int, _flexible: bool
) -> bytes:
    try:
        return pack(value)
    except struct.error as error:
        raise ValueError(f"{name}: {value!r} is not a valid {kind}: {error}") from None


def _put_bytes(value: bytes, _version: int, flexible: bool) -> bytes:
    return wire.put_count(len(value), flexible) + value


def _put_uuid(value: bytes, _version: int, _flexible: bool) -> bytes:
    if len(value) != _UUID_BYTES:
        raise ValueError(f"{value!r} is not a valid UUID")
    return value


def _put_text(field: MessageField, value: str | None, _version: int, flexible: bool) -> bytes:
    data = _encode_text(field, value)
    return wire.put_compact_string(data) if flexible else wire.put_string(data)


def _encode_text(field: MessageField, value: str | None) -> bytes | None:
    if value is None:
        if not field.nullable:
            raise ValueError(f"{field.name}: null in place of a text")
        return None
    if field.kind == "message":
        data = value.encode(errors="replace")
        return data if len(data) <= _MAX_TEXT else data[:_MAX_TEXT].decode(errors="ignore").encode()
    data = value.encode()
    if len(data) > _MAX_TEXT:
        raise ValueError(f"{field.name}: a text of {len(data)} bytes, at most {_MAX_TEXT} are allowed")
    return data
