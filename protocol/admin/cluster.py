# The gateway's own questions to brokers about themselves: DescribeCluster (Metadata, where brokers don't have it),
# DescribeLogDirs and DescribeProducers. The messages only: conclusions are drawn by the reader.
#
# Spec: KIP-700, KIP-919, KIP-1073 (DescribeCluster v0, v1, v2), KIP-113, KIP-827 (DescribeLogDirs: sizes of volumes),
# KIP-664 (DescribeProducers).

from __future__ import annotations

from typing import NamedTuple

from protocol import api
from protocol.message_codec import ApiCodec, MessageField, MessageStruct

BROKER_ENDPOINTS = 1  # the endpoint type, not controllers
UNKNOWN_SIZE = -1  # of a volume: offline, or the broker is from before KIP-827


class DescribeClusterRequest(NamedTuple):
    include_cluster_authorized_operations: bool = False
    endpoint_type: int = BROKER_ENDPOINTS
    include_fenced_brokers: bool = False


class DescribeClusterBroker(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False  # never before version 2, which leaves them out


class DescribeClusterResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    endpoint_type: int
    cluster_id: str
    controller_id: int
    brokers: tuple[DescribeClusterBroker, ...]
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


class MetadataResponse(NamedTuple):
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


class DescribeLogDirsResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int  # from version 3 on; earlier a missing right looks like no log dirs
    results: tuple[LogDir, ...]


class DescribeProducersTopic(NamedTuple):
    name: str
    partition_indexes: tuple[int, ...]


class DescribeProducersRequest(NamedTuple):
    topics: tuple[DescribeProducersTopic, ...]


class ProducerState(NamedTuple):
    """An idempotent producer that the broker remembers. -1: unknown, none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int  # of the last marker that ended a transaction of it
    current_txn_start_offset: int


class ProducersPartition(NamedTuple):
    partition_index: int
    error_code: int
    error_message: str | None
    active_producers: tuple[ProducerState, ...]


class ProducersTopic(NamedTuple):
    name: str
    partitions: tuple[ProducersPartition, ...]


class DescribeProducersResponse(NamedTuple):
    throttle_time_ms: int
    topics: tuple[ProducersTopic, ...]


_THROTTLE = MessageField("throttle_time_ms", "int32")
_ERROR_CODE = MessageField("error_code", "int16")
_ADDRESS = (MessageField("host", "text"), MessageField("port", "int32"), MessageField("rack", "text", nullable=True))
_PARTITION_INDEX = MessageField("partition_index", "int32")

DESCRIBE_CLUSTER: ApiCodec[DescribeClusterRequest, DescribeClusterResponse] = ApiCodec(
    api.DESCRIBE_CLUSTER,
    0,
    2,
    MessageStruct(
        DescribeClusterRequest,
        MessageField("include_cluster_authorized_operations", "bool"),
        MessageField("endpoint_type", "int8", since=1, default=BROKER_ENDPOINTS),
        MessageField("include_fenced_brokers", "bool", since=2, default=False),
    ),
    MessageStruct(
        DescribeClusterResponse,
        _THROTTLE,
        _ERROR_CODE,
        MessageField("error_message", "message", nullable=True),
        MessageField("endpoint_type", "int8", since=1, default=BROKER_ENDPOINTS),
        MessageField("cluster_id", "text"),
        MessageField("controller_id", "int32"),
        MessageField(
            "brokers",
            MessageStruct(
                DescribeClusterBroker,
                MessageField("broker_id", "int32"),
                *_ADDRESS,
                MessageField("is_fenced", "bool", since=2, default=False),
            ),
            array=True,
        ),
        MessageField("cluster_authorized_operations", "int32"),
    ),
)

_PARTITION = MessageStruct(
    MetadataPartition,
    _ERROR_CODE,
    _PARTITION_INDEX,
    MessageField("leader_id", "int32"),
    MessageField("replica_nodes", "int32", array=True),
    MessageField("isr_nodes", "int32", array=True),
)

METADATA: ApiCodec[MetadataRequest, MetadataResponse] = ApiCodec(
    api.METADATA,
    1,  # all brokers speak it, and only those from before DescribeCluster are asked
    1,
    MessageStruct(
        MetadataRequest,
        MessageField(
            "topics", MessageStruct(MetadataRequestTopic, MessageField("name", "text")), array=True, nullable=True
        ),
    ),
    MessageStruct(
        MetadataResponse,
        MessageField("brokers", MessageStruct(MetadataBroker, MessageField("node_id", "int32"), *_ADDRESS), array=True),
        MessageField("controller_id", "int32"),
        MessageField(
            "topics",
            MessageStruct(
                MetadataTopic,
                _ERROR_CODE,
                MessageField("name", "text"),
                MessageField("is_internal", "bool"),
                MessageField("partitions", _PARTITION, array=True),
            ),
            array=True,
        ),
    ),
)

_LOG_DIR_PARTITION = MessageStruct(
    LogDirPartition,
    _PARTITION_INDEX,
    MessageField("partition_size", "int64"),
    MessageField("offset_lag", "int64"),
    MessageField("is_future_key", "bool"),
)
_LOG_DIR = MessageStruct(
    LogDir,
    _ERROR_CODE,
    MessageField("log_dir", "text"),
    MessageField(
        "topics",
        MessageStruct(
            LogDirTopic, MessageField("name", "text"), MessageField("partitions", _LOG_DIR_PARTITION, array=True)
        ),
        array=True,
    ),
    MessageField("total_bytes", "int64", since=4, default=UNKNOWN_SIZE),
    MessageField("usable_bytes", "int64", since=4, default=UNKNOWN_SIZE),
)

DESCRIBE_LOG_DIRS: ApiCodec[DescribeLogDirsRequest, DescribeLogDirsResponse] = ApiCodec(
    api.DESCRIBE_LOG_DIRS,
    1,
    4,
    MessageStruct(
        DescribeLogDirsRequest,
        MessageField(
            "topics",
            MessageStruct(
                DescribableLogDirTopic, MessageField("topic", "text"), MessageField("partitions", "int32", array=True)
            ),
            array=True,
            nullable=True,
        ),
    ),
    MessageStruct(
        DescribeLogDirsResponse,
        _THROTTLE,
        MessageField("error_code", "int16", since=3, default=0),
        MessageField("results", _LOG_DIR, array=True),
    ),
)

_PRODUCER_STATE = MessageStruct(
    ProducerState,
    MessageField("producer_id", "int64"),
    MessageField("producer_epoch", "int32"),
    MessageField("last_sequence", "int32"),
    MessageField("last_timestamp", "int64"),
    MessageField("coordinator_epoch", "int32"),
    MessageField("current_txn_start_offset", "int64"),
)
_PRODUCERS_PARTITION = MessageStruct(
    ProducersPartition,
    _PARTITION_INDEX,
    _ERROR_CODE,
    MessageField("error_message", "message", nullable=True),
    MessageField("active_producers", _PRODUCER_STATE, array=True),
)

DESCRIBE_PRODUCERS: ApiCodec[DescribeProducersRequest, DescribeProducersResponse] = ApiCodec(
    api.DESCRIBE_PRODUCERS,
    0,
    0,
    MessageStruct(
        DescribeProducersRequest,
        MessageField(
            "topics",
            MessageStruct(
                DescribeProducersTopic,
                MessageField("name", "text"),
                MessageField("partition_indexes", "int32", array=True),
            ),
            array=True,
        ),
    ),
    MessageStruct(
        DescribeProducersResponse,
        _THROTTLE,
        MessageField(
            "topics",
            MessageStruct(
                ProducersTopic,
                MessageField("name", "text"),
                MessageField("partitions", _PRODUCERS_PARTITION, array=True),
            ),
            array=True,
        ),
    ),
)
