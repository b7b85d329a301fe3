# Messages of the admin APIs as kio has them, in every version that it knows, and the way from there to our NamedTuples.
# Values are drawn by kio's field tables, not by ours: what may be null there must be readable here.

from __future__ import annotations

import datetime
import struct
from typing import Any, NamedTuple

from protocol import api
from protocol.admin.configs import ALTER_CONFIGS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from protocol.admin.quotas import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from protocol.admin.topic_deletion import DELETE_NAMED_TOPICS, DELETE_TOPICS
from protocol.admin.topics import CREATE_TOPICS
from protocol.message_codec import ApiCodec, MessageStruct
from tests.protocol import kio_messages as kio

APIS: list[ApiCodec[Any, Any]] = [
    DESCRIBE_CONFIGS,
    ALTER_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    DESCRIBE_CLIENT_QUOTAS,
    ALTER_CLIENT_QUOTAS,
    CREATE_TOPICS,
]
READ_ONLY: list[ApiCodec[Any, Any]] = [DELETE_NAMED_TOPICS, DELETE_TOPICS]  # never answered here
CLIENT_ID = "admin-1"
CORRELATION_ID = 77


class Case(NamedTuple):
    """One message of one API in one version."""

    api: ApiCodec[Any, Any]
    version: int
    what: str  # request | answer

    @property
    def cls(self) -> Any:
        load = kio.request_class if self.what == "request" else kio.answer_class
        return load(self.api.key, self.version)

    @property
    def struct(self) -> MessageStruct[Any]:
        return self.api.request if self.what == "request" else self.api.response

    @property
    def flexible(self) -> bool:
        return bool(self.cls.__flexible__)

    def head(self, client_id: str | None = CLIENT_ID, tags: bytes = b"\0") -> bytes:
        if self.what == "answer":
            return kio.answer_header(self.cls, CORRELATION_ID, tags)
        text = struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
        head = struct.pack(">hhi", self.api.key, self.version, CORRELATION_ID) + text
        return head + (tags if self.flexible else b"")

    def decode(self, buf: Any, start: int, end: int) -> Any:
        """The message, whatever its header is."""
        if self.what == "request":
            return self.api.decode_request(buf, start, end).body
        return self.api.decode_response(buf, start, end, self.version)[1]

    def encode(self, value: Any) -> bytes:
        """The frame with its size prefix."""
        if self.what == "request":
            return self.api.encode_request(value, self.version, CORRELATION_ID, CLIENT_ID.encode())
        return self.api.encode_response(value, self.version, CORRELATION_ID)

    def __str__(self) -> str:
        return f"{self.api.name}-v{self.version}-{self.what}"


def cases_of(apis: list[ApiCodec[Any, Any]]) -> list[Case]:
    """Every message in every version that is spoken."""
    return [
        Case(each, version, what)
        for each in apis
        for version in range(each.lowest, each.highest + 1)
        for what in ("request", "answer")
    ]


CASES = cases_of([*APIS, *READ_ONLY])
FLEXIBLE = [case for case in CASES if case.flexible]
EVERY_CLASS = (
    *("DescribeConfigsResource", "DescribeConfigsRequest", "DescribeConfigsSynonym", "DescribeConfigsResourceResult"),
    *("DescribeConfigsResult", "DescribeConfigsResponse", "AlterableConfig", "AlterConfigsResource"),
    *("AlterConfigsRequest", "IncrementalAlterConfigsRequest", "AlterConfigsResourceResponse", "AlterConfigsResponse"),
    *("IncrementalAlterConfigsResponse", "ComponentData", "DescribeClientQuotasRequest", "EntityData", "ValueData"),
    *("EntryData", "DescribeClientQuotasResponse", "OpData", "AlterClientQuotasRequest", "AlterClientQuotasResponse"),
    *("CreatableReplicaAssignment", "CreatableTopicConfig", "CreatableTopic", "CreateTopicsRequest"),
    *("CreatableTopicConfigs", "CreatableTopicResult", "CreateTopicsResponse"),
    *("DeleteTopicState", "DeleteTopicsRequest", "DeletableTopicResult", "DeleteTopicsResponse"),
)


# --- kio's and ours ---------------------------------------------------------------------------------------------------

_KIO_NAMES = {
    "throttle_time_ms": "throttle_time", "session_lifetime_ms": "session_lifetime", "timeout_ms": "timeout",
}  # fmt: skip
_MISSING = object()


def ours(kind: MessageStruct[Any], message: Any) -> Any:
    """kio's message as our NamedTuple; a field that this version lacks is its default."""
    values = []
    for field in kind.fields:
        value: Any = getattr(message, _KIO_NAMES.get(field.name, field.name), _MISSING)
        if value is _MISSING:
            value = field.default
        elif isinstance(field.kind, MessageStruct):
            value = None if value is None else tuple(ours(field.kind, row) for row in value)
        elif isinstance(value, datetime.timedelta):
            value = value // kio._MILLISECOND
        elif field.name == "error_code":
            value = value.value
        elif field.kind == "uuid":
            value = value.bytes if value else bytes(16)
        values.append(value)
    return kind.factory(*values)


def assert_goes_both_ways(case: Case, message: Any) -> None:
    """What kio writes is read, and kio reads what is written."""
    frame = case.head() + kio.kio_encode(message)
    assert case.decode(b"1234" + frame + b"more", 4, 4 + len(frame)) == ours(case.struct, message)
    frame = case.encode(ours(case.struct, message))[4:]
    assert frame.startswith(case.head())
    again = kio.kio_decode(case.cls, frame[len(case.head()) :])
    assert ours(case.struct, again) == ours(case.struct, message)


def error(name: str) -> int:
    return api.ERROR_CODES[name]
