from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResourceUsage(_message.Message):
    __slots__ = ("broker", "boot", "sequence", "workers", "cycle_ms", "ids", "named", "leaving", "want", "want_usage", "names", "names_again", "groups", "limits", "rates", "complete", "complete_names", "unchanged")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    CYCLE_MS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    WANT_USAGE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    NAMES_AGAIN_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_NAMES_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    broker: str
    boot: bytes
    sequence: int
    workers: int
    cycle_ms: int
    ids: int
    named: int
    leaving: bool
    want: _containers.RepeatedScalarFieldContainer[bytes]
    want_usage: _containers.RepeatedScalarFieldContainer[bytes]
    names: Names
    names_again: Names
    groups: GroupUsage
    limits: LimitUsage
    rates: RateUsage
    complete: Range
    complete_names: bool
    unchanged: Range
    def __init__(self, broker: _Optional[str] = ..., boot: _Optional[bytes] = ..., sequence: _Optional[int] = ..., workers: _Optional[int] = ..., cycle_ms: _Optional[int] = ..., ids: _Optional[int] = ..., named: _Optional[int] = ..., leaving: _Optional[bool] = ..., want: _Optional[_Iterable[bytes]] = ..., want_usage: _Optional[_Iterable[bytes]] = ..., names: _Optional[_Union[Names, _Mapping]] = ..., names_again: _Optional[_Union[Names, _Mapping]] = ..., groups: _Optional[_Union[GroupUsage, _Mapping]] = ..., limits: _Optional[_Union[LimitUsage, _Mapping]] = ..., rates: _Optional[_Union[RateUsage, _Mapping]] = ..., complete: _Optional[_Union[Range, _Mapping]] = ..., complete_names: _Optional[bool] = ..., unchanged: _Optional[_Union[Range, _Mapping]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("first", "end")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Names(_message.Message):
    __slots__ = ("id", "name")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[int]
    name: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[_Iterable[int]] = ..., name: _Optional[_Iterable[str]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("rate", "weight")
    RATE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    rate: _containers.RepeatedScalarFieldContainer[int]
    weight: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rate: _Optional[_Iterable[int]] = ..., weight: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupUsage(_message.Message):
    __slots__ = ("id", "topics", "hungry", "published_msg", "published_bytes", "dispatched_msg", "dispatched_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    HUNGRY_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_MSG_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_MSG_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[int]
    topics: _containers.RepeatedScalarFieldContainer[int]
    hungry: _containers.RepeatedScalarFieldContainer[int]
    published_msg: Column
    published_bytes: Column
    dispatched_msg: Column
    dispatched_bytes: Column
    def __init__(self, id: _Optional[_Iterable[int]] = ..., topics: _Optional[_Iterable[int]] = ..., hungry: _Optional[_Iterable[int]] = ..., published_msg: _Optional[_Union[Column, _Mapping]] = ..., published_bytes: _Optional[_Union[Column, _Mapping]] = ..., dispatched_msg: _Optional[_Union[Column, _Mapping]] = ..., dispatched_bytes: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...

class LimitUsage(_message.Message):
    __slots__ = ("id", "topics", "hungry", "use")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    HUNGRY_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[int]
    topics: _containers.RepeatedScalarFieldContainer[int]
    hungry: _containers.RepeatedScalarFieldContainer[int]
    use: Column
    def __init__(self, id: _Optional[_Iterable[int]] = ..., topics: _Optional[_Iterable[int]] = ..., hungry: _Optional[_Iterable[int]] = ..., use: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...

class RateUsage(_message.Message):
    __slots__ = ("id", "rate")
    ID_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[int]
    rate: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[_Iterable[int]] = ..., rate: _Optional[_Iterable[int]] = ...) -> None: ...
