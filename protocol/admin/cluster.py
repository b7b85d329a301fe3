# The gateway's own questions to brokers about themselves: DescribeCluster (Metadata, where brokers don't have it),
# DescribeLogDirs and DescribeProducers. The messages only: conclusions are drawn by the reader.
#
# Spec: KIP-700, KIP-919, KIP-1073 (DescribeCluster v0, v1, v2), KIP-113, KIP-827 (DescribeLogDirs: sizes of volumes),
# KIP-664 (DescribeProducers).

from __future__ import annotations

from typing import Annotated, NamedTuple

from protocol import api
from protocol.message_codec import ApiCodec, ErrorText, Int8, Int16, Int32, Int64, Since, Text

BROKER_ENDPOINTS = 1  # the endpoint type, not controllers
UNKNOWN_SIZE = -1  # of a volume: offline, or the broker is from before KIP-827


class DescribeClusterRequest(NamedTuple):
    include_cluster_authorized_operations: bool = False
    endpoint_type: Annotated[Int8, Since(1)] = BROKER_ENDPOINTS
    include_fenced_brokers: Annotated[bool, Since(2)] = False


class DescribeClusterBroker(NamedTuple):
    broker_id: Int32
    host: Text
    port: Int32
    rack: Text | None
    is_fenced: Annotated[bool, Since(2)] = False  # never before, where they are left out


class DescribeClusterResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    error_message: ErrorText | None
    endpoint_type: Annotated[Int8, Since(1, default=BROKER_ENDPOINTS)]
    cluster_id: Text
    controller_id: Int32
    brokers: tuple[DescribeClusterBroker, ...]
    cluster_authorized_operations: Int32


class MetadataRequestTopic(NamedTuple):
    name: Text


class MetadataRequest(NamedTuple):
    topics: tuple[MetadataRequestTopic, ...] | None  # None: all


class MetadataBroker(NamedTuple):
    node_id: Int32
    host: Text
    port: Int32
    rack: Text | None


class MetadataPartition(NamedTuple):
    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]


class MetadataTopic(NamedTuple):
    error_code: Int16
    name: Text
    is_internal: bool
    partitions: tuple[MetadataPartition, ...]


class MetadataResponse(NamedTuple):
    brokers: tuple[MetadataBroker, ...]
    controller_id: Int32
    topics: tuple[MetadataTopic, ...]


class DescribableLogDirTopic(NamedTuple):
    topic: Text
    partitions: tuple[Int32, ...]


class DescribeLogDirsRequest(NamedTuple):
    topics: tuple[DescribableLogDirTopic, ...] | None  # None: all


class LogDirPartition(NamedTuple):
    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: bool


class LogDirTopic(NamedTuple):
    name: Text
    partitions: tuple[LogDirPartition, ...]


class LogDir(NamedTuple):
    error_code: Int16
    log_dir: Text
    topics: tuple[LogDirTopic, ...]
    total_bytes: Annotated[Int64, Since(4)] = UNKNOWN_SIZE
    usable_bytes: Annotated[Int64, Since(4)] = UNKNOWN_SIZE


class DescribeLogDirsResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Annotated[Int16, Since(3, default=0)]  # earlier a missing right looks like no log dirs
    results: tuple[LogDir, ...]


class DescribeProducersTopic(NamedTuple):
    name: Text
    partition_indexes: tuple[Int32, ...]


class DescribeProducersRequest(NamedTuple):
    topics: tuple[DescribeProducersTopic, ...]


class ProducerState(NamedTuple):
    """An idempotent producer that the broker remembers. -1: unknown, none."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32
    last_timestamp: Int64
    coordinator_epoch: Int32  # of the last marker that ended a transaction of it
    current_txn_start_offset: Int64


class ProducersPartition(NamedTuple):
    partition_index: Int32
    error_code: Int16
    error_message: ErrorText | None
    active_producers: tuple[ProducerState, ...]


class ProducersTopic(NamedTuple):
    name: Text
    partitions: tuple[ProducersPartition, ...]


class DescribeProducersResponse(NamedTuple):
    throttle_time_ms: Int32
    topics: tuple[ProducersTopic, ...]


DESCRIBE_CLUSTER = ApiCodec(api.DESCRIBE_CLUSTER, 0, 2, DescribeClusterRequest, DescribeClusterResponse)
# All brokers speak version 1, and only those from before DescribeCluster are asked.
METADATA = ApiCodec(api.METADATA, 1, 1, MetadataRequest, MetadataResponse)
DESCRIBE_LOG_DIRS = ApiCodec(api.DESCRIBE_LOG_DIRS, 1, 4, DescribeLogDirsRequest, DescribeLogDirsResponse)
DESCRIBE_PRODUCERS = ApiCodec(api.DESCRIBE_PRODUCERS, 0, 0, DescribeProducersRequest, DescribeProducersResponse)
