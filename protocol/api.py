# Tables of Kafka's API keys, header versions and error codes, up to Kafka 4.4. Only tables: no code reads a byte here.
#
# A request header has tagged fields (header v2) from the API's `request flexible from` version on, an answer header
# (header v1) from its `answer flexible from` on. They differ for ApiVersions only: its answer header never has tags,
# for a client must be able to read the error of a version that it asked for in vain (KIP-511). An API that isn't listed
# is newer than these tables; of its frames only the key, version, correlation id and client id are known.
#
# Sources: Kafka's message definitions (clients/src/main/resources/common/message), Errors.java, KIP-482. All of it is
# held to the classes and the ApiVersions answers of the newest Kafka by
# tests/integration/admin_apis/test_kafka_tables.py.

from __future__ import annotations

NEVER = 1 << 15  # above any int16 version

PRODUCE = 0
FETCH = 1
METADATA = 3
FIND_COORDINATOR = 10
SASL_HANDSHAKE = 17
API_VERSIONS = 18
CREATE_TOPICS = 19
DELETE_TOPICS = 20
DESCRIBE_CONFIGS = 32
ALTER_CONFIGS = 33
DESCRIBE_LOG_DIRS = 35
SASL_AUTHENTICATE = 36
INCREMENTAL_ALTER_CONFIGS = 44
DESCRIBE_CLIENT_QUOTAS = 48
ALTER_CLIENT_QUOTAS = 49
DESCRIBE_CLUSTER = 60
DESCRIBE_PRODUCERS = 61
SHARE_FETCH = 78
SHARE_ACKNOWLEDGE = 79

# The highest version that the gateway understands, for the APIs that it must understand: what it advertises of these is
# at most this. All others pass untouched.
HIGHEST_VERSIONS: dict[int, int] = {
    PRODUCE: 13,
    FETCH: 18,
    METADATA: 13,
    FIND_COORDINATOR: 6,
    SASL_HANDSHAKE: 1,
    API_VERSIONS: 5,
    CREATE_TOPICS: 7,
    DELETE_TOPICS: 6,
    DESCRIBE_CONFIGS: 4,
    ALTER_CONFIGS: 2,
    SASL_AUTHENTICATE: 2,
    INCREMENTAL_ALTER_CONFIGS: 1,
    DESCRIBE_CLIENT_QUOTAS: 1,
    ALTER_CLIENT_QUOTAS: 1,
    DESCRIBE_CLUSTER: 2,
    SHARE_FETCH: 2,
    SHARE_ACKNOWLEDGE: 2,
}

# The lowest version that the gateway reads, where it isn't 0. Never advertised: brokers list Produce from v0 on for the
# sake of old clients and refuse it below v3 nevertheless, and so does the gateway.
LOWEST_VERSIONS: dict[int, int] = {
    PRODUCE: 3,
    FETCH: 4,
    CREATE_TOPICS: 2,
    DELETE_TOPICS: 1,
    DESCRIBE_CONFIGS: 1,
    SHARE_FETCH: 1,
    SHARE_ACKNOWLEDGE: 1,
}

# The largest requests in bytes, of all APIs but Produce, whose bound is the operator's. Far above what sane clients
# send (a Fetch request for 100,000 partitions has 3 MB), far below what can be held for each connection.
MAX_REQUEST_BYTES: dict[int, int] = {
    SASL_HANDSHAKE: 64 * 1024,
    API_VERSIONS: 64 * 1024,
    SASL_AUTHENTICATE: 512 * 1024,  # sasl.server.max.receive.size
}
MAX_OTHER_REQUEST_BYTES = 16 * 1024 * 1024

PRODUCE_FLEXIBLE = 9  # compact forms and tagged fields
PRODUCE_LOG_START = 5  # answer: log_start_offset
PRODUCE_ERROR_TEXT = 8  # answer: record_errors, error_message (KIP-467)
PRODUCE_ENDPOINTS = 10  # answer: tagged current_leader per partition, NodeEndpoints at the end (KIP-951)
PRODUCE_TOPIC_IDS = 13  # request and answer: topic id instead of name (KIP-516)
FETCH_FLEXIBLE = 12
FETCH_TOPIC_IDS = 13

_APIS: tuple[tuple[int, str, int, int], ...] = (
    # key, name, request flexible from, answer flexible from
    (0, "Produce", 9, 9),
    (1, "Fetch", 12, 12),
    (2, "ListOffsets", 6, 6),
    (3, "Metadata", 9, 9),
    (4, "LeaderAndIsr", 4, 4),
    (5, "StopReplica", 2, 2),
    (6, "UpdateMetadata", 6, 6),
    (7, "ControlledShutdown", 3, 3),
    (8, "OffsetCommit", 8, 8),
    (9, "OffsetFetch", 6, 6),
    (10, "FindCoordinator", 3, 3),
    (11, "JoinGroup", 6, 6),
    (12, "Heartbeat", 4, 4),
    (13, "LeaveGroup", 4, 4),
    (14, "SyncGroup", 4, 4),
    (15, "DescribeGroups", 5, 5),
    (16, "ListGroups", 3, 3),
    (17, "SaslHandshake", NEVER, NEVER),
    (18, "ApiVersions", 3, NEVER),
    (19, "CreateTopics", 5, 5),
    (20, "DeleteTopics", 4, 4),
    (21, "DeleteRecords", 2, 2),
    (22, "InitProducerId", 2, 2),
    (23, "OffsetForLeaderEpoch", 4, 4),
    (24, "AddPartitionsToTxn", 3, 3),
    (25, "AddOffsetsToTxn", 3, 3),
    (26, "EndTxn", 3, 3),
    (27, "WriteTxnMarkers", 1, 1),
    (28, "TxnOffsetCommit", 3, 3),
    (29, "DescribeAcls", 2, 2),
    (30, "CreateAcls", 2, 2),
    (31, "DeleteAcls", 2, 2),
    (32, "DescribeConfigs", 4, 4),
    (33, "AlterConfigs", 2, 2),
    (34, "AlterReplicaLogDirs", 2, 2),
    (35, "DescribeLogDirs", 2, 2),
    (36, "SaslAuthenticate", 2, 2),
    (37, "CreatePartitions", 2, 2),
    (38, "CreateDelegationToken", 2, 2),
    (39, "RenewDelegationToken", 2, 2),
    (40, "ExpireDelegationToken", 2, 2),
    (41, "DescribeDelegationToken", 2, 2),
    (42, "DeleteGroups", 2, 2),
    (43, "ElectLeaders", 2, 2),
    (44, "IncrementalAlterConfigs", 1, 1),
    (45, "AlterPartitionReassignments", 0, 0),
    (46, "ListPartitionReassignments", 0, 0),
    (47, "OffsetDelete", NEVER, NEVER),
    (48, "DescribeClientQuotas", 1, 1),
    (49, "AlterClientQuotas", 1, 1),
    (50, "DescribeUserScramCredentials", 0, 0),
    (51, "AlterUserScramCredentials", 0, 0),
    (52, "Vote", 0, 0),
    (53, "BeginQuorumEpoch", 1, 1),
    (54, "EndQuorumEpoch", 1, 1),
    (55, "DescribeQuorum", 0, 0),
    (56, "AlterPartition", 2, 2),
    (57, "UpdateFeatures", 0, 0),
    (58, "Envelope", 0, 0),
    (59, "FetchSnapshot", 0, 0),
    (60, "DescribeCluster", 0, 0),
    (61, "DescribeProducers", 0, 0),
    (62, "BrokerRegistration", 0, 0),
    (63, "BrokerHeartbeat", 0, 0),
    (64, "UnregisterBroker", 0, 0),
    (65, "DescribeTransactions", 0, 0),
    (66, "ListTransactions", 0, 0),
    (67, "AllocateProducerIds", 0, 0),
    (68, "ConsumerGroupHeartbeat", 0, 0),
    (69, "ConsumerGroupDescribe", 0, 0),
    (70, "ControllerRegistration", 0, 0),
    (71, "GetTelemetrySubscriptions", 0, 0),
    (72, "PushTelemetry", 0, 0),
    (73, "AssignReplicasToDirs", 0, 0),
    (74, "ListConfigResources", 0, 0),
    (75, "DescribeTopicPartitions", 0, 0),
    (76, "ShareGroupHeartbeat", 1, 1),
    (77, "ShareGroupDescribe", 1, 1),
    (78, "ShareFetch", 1, 1),
    (79, "ShareAcknowledge", 1, 1),
    (80, "AddRaftVoter", 0, 0),
    (81, "RemoveRaftVoter", 0, 0),
    (82, "UpdateRaftVoter", 0, 0),
    (83, "InitializeShareGroupState", 0, 0),
    (84, "ReadShareGroupState", 0, 0),
    (85, "WriteShareGroupState", 0, 0),
    (86, "DeleteShareGroupState", 0, 0),
    (87, "ReadShareGroupStateSummary", 0, 0),
    (88, "StreamsGroupHeartbeat", 0, 0),
    (89, "StreamsGroupDescribe", 0, 0),
    (90, "DescribeShareGroupOffsets", 0, 0),
    (91, "AlterShareGroupOffsets", 0, 0),
    (92, "DeleteShareGroupOffsets", 0, 0),
    (93, "StreamsGroupTopologyDescriptionUpdate", 0, 0),
    (94, "UnregisterController", 0, 0),
)

API_NAMES: dict[int, str] = {key: name for key, name, _, _ in _APIS}
REQUEST_FLEXIBLE_FROM: dict[int, int] = {key: version for key, _, version, _ in _APIS}
RESPONSE_FLEXIBLE_FROM: dict[int, int] = {key: version for key, _, _, version in _APIS}

NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
REQUEST_TIMED_OUT = 7
COORDINATOR_NOT_AVAILABLE = 15
NOT_ENOUGH_REPLICAS = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
TOPIC_AUTHORIZATION_FAILED = 29
CLUSTER_AUTHORIZATION_FAILED = 31
UNSUPPORTED_VERSION = 35
KAFKA_STORAGE_ERROR = 56
FETCH_SESSION_ID_NOT_FOUND = 70
INVALID_RECORD = 87
THROTTLING_QUOTA_EXCEEDED = 89
UNKNOWN_TOPIC_ID = 100

_ERRORS: tuple[tuple[int, str, bool], ...] = (
    # number, name, retriable
    (-1, "UNKNOWN_SERVER_ERROR", False),
    (0, "NONE", False),
    (1, "OFFSET_OUT_OF_RANGE", False),
    (2, "CORRUPT_MESSAGE", True),
    (3, "UNKNOWN_TOPIC_OR_PARTITION", True),
    (4, "INVALID_FETCH_SIZE", False),
    (5, "LEADER_NOT_AVAILABLE", True),
    (6, "NOT_LEADER_OR_FOLLOWER", True),
    (7, "REQUEST_TIMED_OUT", True),
    (8, "BROKER_NOT_AVAILABLE", False),
    (9, "REPLICA_NOT_AVAILABLE", True),
    (10, "MESSAGE_TOO_LARGE", False),
    (11, "STALE_CONTROLLER_EPOCH", False),
    (12, "OFFSET_METADATA_TOO_LARGE", False),
    (13, "NETWORK_EXCEPTION", True),
    (14, "COORDINATOR_LOAD_IN_PROGRESS", True),
    (15, "COORDINATOR_NOT_AVAILABLE", True),
    (16, "NOT_COORDINATOR", True),
    (17, "INVALID_TOPIC_EXCEPTION", False),
    (18, "RECORD_LIST_TOO_LARGE", False),
    (19, "NOT_ENOUGH_REPLICAS", True),
    (20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", True),
    (21, "INVALID_REQUIRED_ACKS", False),
    (22, "ILLEGAL_GENERATION", False),
    (23, "INCONSISTENT_GROUP_PROTOCOL", False),
    (24, "INVALID_GROUP_ID", False),
    (25, "UNKNOWN_MEMBER_ID", False),
    (26, "INVALID_SESSION_TIMEOUT", False),
    (27, "REBALANCE_IN_PROGRESS", False),
    (28, "INVALID_COMMIT_OFFSET_SIZE", False),
    (29, "TOPIC_AUTHORIZATION_FAILED", False),
    (30, "GROUP_AUTHORIZATION_FAILED", False),
    (31, "CLUSTER_AUTHORIZATION_FAILED", False),
    (32, "INVALID_TIMESTAMP", False),
    (33, "UNSUPPORTED_SASL_MECHANISM", False),
    (34, "ILLEGAL_SASL_STATE", False),
    (35, "UNSUPPORTED_VERSION", False),
    (36, "TOPIC_ALREADY_EXISTS", False),
    (37, "INVALID_PARTITIONS", False),
    (38, "INVALID_REPLICATION_FACTOR", False),
    (39, "INVALID_REPLICA_ASSIGNMENT", False),
    (40, "INVALID_CONFIG", False),
    (41, "NOT_CONTROLLER", True),
    (42, "INVALID_REQUEST", False),
    (43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", False),
    (44, "POLICY_VIOLATION", False),
    (45, "OUT_OF_ORDER_SEQUENCE_NUMBER", False),
    (46, "DUPLICATE_SEQUENCE_NUMBER", False),
    (47, "INVALID_PRODUCER_EPOCH", False),
    (48, "INVALID_TXN_STATE", False),
    (49, "INVALID_PRODUCER_ID_MAPPING", False),
    (50, "INVALID_TRANSACTION_TIMEOUT", False),
    (51, "CONCURRENT_TRANSACTIONS", True),
    (52, "TRANSACTION_COORDINATOR_FENCED", False),
    (53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", False),
    (54, "SECURITY_DISABLED", False),
    (55, "OPERATION_NOT_ATTEMPTED", False),
    (56, "KAFKA_STORAGE_ERROR", True),
    (57, "LOG_DIR_NOT_FOUND", False),
    (58, "SASL_AUTHENTICATION_FAILED", False),
    (59, "UNKNOWN_PRODUCER_ID", False),
    (60, "REASSIGNMENT_IN_PROGRESS", False),
    (61, "DELEGATION_TOKEN_AUTH_DISABLED", False),
    (62, "DELEGATION_TOKEN_NOT_FOUND", False),
    (63, "DELEGATION_TOKEN_OWNER_MISMATCH", False),
    (64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", False),
    (65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", False),
    (66, "DELEGATION_TOKEN_EXPIRED", False),
    (67, "INVALID_PRINCIPAL_TYPE", False),
    (68, "NON_EMPTY_GROUP", False),
    (69, "GROUP_ID_NOT_FOUND", False),
    (70, "FETCH_SESSION_ID_NOT_FOUND", True),
    (71, "INVALID_FETCH_SESSION_EPOCH", True),
    (72, "LISTENER_NOT_FOUND", True),
    (73, "TOPIC_DELETION_DISABLED", False),
    (74, "FENCED_LEADER_EPOCH", True),
    (75, "UNKNOWN_LEADER_EPOCH", True),
    (76, "UNSUPPORTED_COMPRESSION_TYPE", False),
    (77, "STALE_BROKER_EPOCH", False),
    (78, "OFFSET_NOT_AVAILABLE", True),
    (79, "MEMBER_ID_REQUIRED", False),
    (80, "PREFERRED_LEADER_NOT_AVAILABLE", True),
    (81, "GROUP_MAX_SIZE_REACHED", False),
    (82, "FENCED_INSTANCE_ID", False),
    (83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", True),
    (84, "ELECTION_NOT_NEEDED", True),
    (85, "NO_REASSIGNMENT_IN_PROGRESS", False),
    (86, "GROUP_SUBSCRIBED_TO_TOPIC", False),
    (87, "INVALID_RECORD", False),
    (88, "UNSTABLE_OFFSET_COMMIT", True),
    (89, "THROTTLING_QUOTA_EXCEEDED", True),
    (90, "PRODUCER_FENCED", False),
    (91, "RESOURCE_NOT_FOUND", False),
    (92, "DUPLICATE_RESOURCE", False),
    (93, "UNACCEPTABLE_CREDENTIAL", False),
    (94, "INCONSISTENT_VOTER_SET", False),
    (95, "INVALID_UPDATE_VERSION", False),
    (96, "FEATURE_UPDATE_FAILED", False),
    (97, "PRINCIPAL_DESERIALIZATION_FAILURE", False),
    (98, "SNAPSHOT_NOT_FOUND", False),
    (99, "POSITION_OUT_OF_RANGE", False),
    (100, "UNKNOWN_TOPIC_ID", True),
    (101, "DUPLICATE_BROKER_REGISTRATION", False),
    (102, "BROKER_ID_NOT_REGISTERED", False),
    (103, "INCONSISTENT_TOPIC_ID", True),
    (104, "INCONSISTENT_CLUSTER_ID", False),
    (105, "TRANSACTIONAL_ID_NOT_FOUND", False),
    (106, "FETCH_SESSION_TOPIC_ID_ERROR", True),
    (107, "INELIGIBLE_REPLICA", False),
    (108, "NEW_LEADER_ELECTED", False),
    (109, "OFFSET_MOVED_TO_TIERED_STORAGE", False),
    (110, "FENCED_MEMBER_EPOCH", False),
    (111, "UNRELEASED_INSTANCE_ID", False),
    (112, "UNSUPPORTED_ASSIGNOR", False),
    (113, "STALE_MEMBER_EPOCH", False),
    (114, "MISMATCHED_ENDPOINT_TYPE", False),
    (115, "UNSUPPORTED_ENDPOINT_TYPE", False),
    (116, "UNKNOWN_CONTROLLER_ID", False),
    (117, "UNKNOWN_SUBSCRIPTION_ID", False),
    (118, "TELEMETRY_TOO_LARGE", False),
    (119, "INVALID_REGISTRATION", False),
    (120, "TRANSACTION_ABORTABLE", False),
    (121, "INVALID_RECORD_STATE", False),
    (122, "SHARE_SESSION_NOT_FOUND", True),
    (123, "INVALID_SHARE_SESSION_EPOCH", True),
    (124, "FENCED_STATE_EPOCH", False),
    (125, "INVALID_VOTER_KEY", False),
    (126, "DUPLICATE_VOTER", False),
    (127, "VOTER_NOT_FOUND", False),
    (128, "INVALID_REGULAR_EXPRESSION", False),
    (129, "REBOOTSTRAP_REQUIRED", False),
    (130, "STREAMS_INVALID_TOPOLOGY", False),
    (131, "STREAMS_INVALID_TOPOLOGY_EPOCH", False),
    (132, "STREAMS_TOPOLOGY_FENCED", False),
    (133, "SHARE_SESSION_LIMIT_REACHED", True),
    (134, "GROUP_DELETION_FAILED", False),
    (135, "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", False),
    (136, "CONTROLLER_ID_NOT_REGISTERED", False),
)

ERROR_NAMES: dict[int, str] = {number: name for number, name, _ in _ERRORS}
ERROR_CODES: dict[str, int] = {name: number for number, name, _ in _ERRORS}
RETRIABLE_ERRORS: frozenset[int] = frozenset(number for number, _, retriable in _ERRORS if retriable)
