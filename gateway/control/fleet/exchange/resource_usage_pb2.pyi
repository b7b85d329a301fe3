from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResourceUsage(_message.Message):
    __slots__ = ("broker", "boot", "sequence", "round", "workers", "cycle_ms", "leaving", "limits", "rates", "flows")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    CYCLE_MS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    broker: str
    boot: bytes
    sequence: int
    round: int
    workers: int
    cycle_ms: int
    leaving: bool
    limits: Limits
    rates: _containers.RepeatedCompositeFieldContainer[BrokerRate]
    flows: _containers.RepeatedCompositeFieldContainer[Flow]
    def __init__(self, broker: _Optional[str] = ..., boot: _Optional[bytes] = ..., sequence: _Optional[int] = ..., round: _Optional[int] = ..., workers: _Optional[int] = ..., cycle_ms: _Optional[int] = ..., leaving: _Optional[bool] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., rates: _Optional[_Iterable[_Union[BrokerRate, _Mapping]]] = ..., flows: _Optional[_Iterable[_Union[Flow, _Mapping]]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("limit", "rate", "hungry", "weight", "topics", "claim")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    HUNGRY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    limit: _containers.RepeatedScalarFieldContainer[int]
    rate: _containers.RepeatedScalarFieldContainer[float]
    hungry: _containers.RepeatedScalarFieldContainer[bool]
    weight: _containers.RepeatedScalarFieldContainer[float]
    topics: _containers.RepeatedScalarFieldContainer[int]
    claim: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, limit: _Optional[_Iterable[int]] = ..., rate: _Optional[_Iterable[float]] = ..., hungry: _Optional[_Iterable[bool]] = ..., weight: _Optional[_Iterable[float]] = ..., topics: _Optional[_Iterable[int]] = ..., claim: _Optional[_Iterable[float]] = ...) -> None: ...

class BrokerRate(_message.Message):
    __slots__ = ("broker", "topic", "rate")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    broker: int
    topic: str
    rate: float
    def __init__(self, broker: _Optional[int] = ..., topic: _Optional[str] = ..., rate: _Optional[float] = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("topic", "principal", "client_id", "accepted", "rejected", "delayed", "would")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    WOULD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    principal: str
    client_id: str
    accepted: float
    rejected: float
    delayed: float
    would: float
    def __init__(self, topic: _Optional[str] = ..., principal: _Optional[str] = ..., client_id: _Optional[str] = ..., accepted: _Optional[float] = ..., rejected: _Optional[float] = ..., delayed: _Optional[float] = ..., would: _Optional[float] = ...) -> None: ...
