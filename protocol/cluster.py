# The gateway's own questions to brokers about themselves: DescribeCluster (Metadata, where brokers don't have it) and
# DescribeLogDirs. The messages only: conclusions are drawn by the reader.
#
# Spec: KIP-700, KIP-919, KIP-1073 (DescribeCluster v0, v1, v2), KIP-113, KIP-827 (DescribeLogDirs: sizes of volumes).

from __future__ import annotations

from typing import NamedTuple

from protocol import api
from protocol.admin import Api, Field, Struct

BROKERS = 1  # the endpoint type, not controllers
UNKNOWN_SIZE = -1  # of a volume: offline, or the broker is from before KIP-827


class DescribeClusterRequest(NamedTuple):
    include_cluster_authorized_operations: bool = False
    endpoint_type: int = BROKERS
    include_fenced_brokers: bool = False


class Broker(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False  # never before version 2, which leaves them out


class DescribeClusterAnswer(NamedTuple):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    endpoint_type: int
    cluster_id: str
    controller_id: int
    brokers: tuple[Broker, ...]
    cluster_authorized_operations: int


class MetadataRequestTopic(NamedTuple):
    name: str


class MetadataRequest(NamedTuple):
    topics: tuple[MetadataRequestTopic, ...] | None  # None: all


class MetadataBroker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class MetadataPartition(NamedTuple):
    error_code: int
    partition_index: int
    leader_id: int
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]


class MetadataTopic(NamedTuple):
    error_code: int
    name: str
    is_internal: bool
    partitions: tuple[MetadataPartition, ...]


class MetadataAnswer(NamedTuple):
    brokers: tuple[MetadataBroker, ...]
    controller_id: int
    topics: tuple[MetadataTopic, ...]


class DescribableLogDirTopic(NamedTuple):
    topic: str
    partitions: tuple[int, ...]


class DescribeLogDirsRequest(NamedTuple):
    topics: tuple[DescribableLogDirTopic, ...] | None  # None: all


class LogDirPartition(NamedTuple):
    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool


class LogDirTopic(NamedTuple):
    name: str
    partitions: tuple[LogDirPartition, ...]


class LogDir(NamedTuple):
    error_code: int
    log_dir: str
    topics: tuple[LogDirTopic, ...]
    total_bytes: int = UNKNOWN_SIZE
    usable_bytes: int = UNKNOWN_SIZE


class DescribeLogDirsAnswer(NamedTuple):
    throttle_time_ms: int
    error_code: int  # from version 3 on; earlier a missing right looks like no log dirs
    results: tuple[LogDir, ...]


_THROTTLE = Field("throttle_time_ms", "int32")
_ERROR_CODE = Field("error_code", "int16")
_ADDRESS = (Field("host", "text"), Field("port", "int32"), Field("rack", "text", nullable=True))
_PARTITION_INDEX = Field("partition_index", "int32")

DESCRIBE_CLUSTER: Api[DescribeClusterRequest, DescribeClusterAnswer] = Api(
    api.DESCRIBE_CLUSTER,
    0,
    2,
    Struct(
        DescribeClusterRequest,
        Field("include_cluster_authorized_operations", "bool"),
        Field("endpoint_type", "int8", since=1, default=BROKERS),
        Field("include_fenced_brokers", "bool", since=2, default=False),
    ),
    Struct(
        DescribeClusterAnswer,
        _THROTTLE,
        _ERROR_CODE,
        Field("error_message", "message", nullable=True),
        Field("endpoint_type", "int8", since=1, default=BROKERS),
        Field("cluster_id", "text"),
        Field("controller_id", "int32"),
        Field(
            "brokers",
            Struct(Broker, Field("broker_id", "int32"), *_ADDRESS, Field("is_fenced", "bool", since=2, default=False)),
            array=True,
        ),
        Field("cluster_authorized_operations", "int32"),
    ),
)

_PARTITION = Struct(
    MetadataPartition,
    _ERROR_CODE,
    _PARTITION_INDEX,
    Field("leader_id", "int32"),
    Field("replica_nodes", "int32", array=True),
    Field("isr_nodes", "int32", array=True),
)

METADATA: Api[MetadataRequest, MetadataAnswer] = Api(
    api.METADATA,
    1,  # all brokers speak it, and only those from before DescribeCluster are asked
    1,
    Struct(
        MetadataRequest,
        Field("topics", Struct(MetadataRequestTopic, Field("name", "text")), array=True, nullable=True),
    ),
    Struct(
        MetadataAnswer,
        Field("brokers", Struct(MetadataBroker, Field("node_id", "int32"), *_ADDRESS), array=True),
        Field("controller_id", "int32"),
        Field(
            "topics",
            Struct(
                MetadataTopic,
                _ERROR_CODE,
                Field("name", "text"),
                Field("is_internal", "bool"),
                Field("partitions", _PARTITION, array=True),
            ),
            array=True,
        ),
    ),
)

_LOG_DIR_PARTITION = Struct(
    LogDirPartition,
    _PARTITION_INDEX,
    Field("partition_size", "int64"),
    Field("offset_lag", "int64"),
    Field("is_future_key", "bool"),
)
_LOG_DIR = Struct(
    LogDir,
    _ERROR_CODE,
    Field("log_dir", "text"),
    Field(
        "topics",
        Struct(LogDirTopic, Field("name", "text"), Field("partitions", _LOG_DIR_PARTITION, array=True)),
        array=True,
    ),
    Field("total_bytes", "int64", since=4, default=UNKNOWN_SIZE),
    Field("usable_bytes", "int64", since=4, default=UNKNOWN_SIZE),
)

DESCRIBE_LOG_DIRS: Api[DescribeLogDirsRequest, DescribeLogDirsAnswer] = Api(
    api.DESCRIBE_LOG_DIRS,
    1,
    4,
    Struct(
        DescribeLogDirsRequest,
        Field(
            "topics",
            Struct(DescribableLogDirTopic, Field("topic", "text"), Field("partitions", "int32", array=True)),
            array=True,
            nullable=True,
        ),
    ),
    Struct(
        DescribeLogDirsAnswer,
        _THROTTLE,
        Field("error_code", "int16", since=3, default=0),
        Field("results", _LOG_DIR, array=True),
    ),
)
