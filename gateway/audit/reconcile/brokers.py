# What brokers say of their logs: how large they are, where they begin and end, and topics' settings (reconcile.py says
# what for). librdkafka asks what it has a call for; DescribeLogDirs and DescribeProducers, which it hasn't, and single
# settings of topics go by requests of our own. Knows nothing of records and of sums.

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Node, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from gateway.audit.cluster_access import ATTEMPT_S, ClusterAccess, read_topic_id
from gateway.audit.errors import AuditError
from gateway.audit.reconcile.reconcile import LogSnapshot, PartitionLog, ReconciledTopicLog
from gateway.kafka.access import InvalidProperties
from gateway.kafka.client import BrokerAddress, BrokerClient, BrokerRequest, NoAnswer, error_text
from gateway.kafka.describe import GRACE_S, NO_TOPIC_ERRORS, describe_topics, make_admin_client
from gateway.kafka.java_properties import use_java_names
from protocol.admin import configs
from protocol.admin.cluster import (
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from protocol.api import CLUSTER_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED
from protocol.message_codec import ApiCodec

_MAX_ATTEMPTS: Final = 5
# As librdkafka's receive.message.max.bytes: of a partition, the producers of a day may be many.
_MAX_ANSWER_BYTES: Final = 100_000_000
_SETTINGS: Final = ("compression.type", "cleanup.policy", "remote.storage.enable")
# Of what was elsewhere a moment ago, or will be there in a moment.
_PASSING_ERRORS: Final = NO_TOPIC_ERRORS | {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
_RETRY_S: Final = 0.2
_ALLOW_DESCRIBE: Final = ": allow this principal Describe on the cluster"

PartitionName = tuple[str, int]  # topic, partition
_LedPartitions = Mapping[str, list[int]]  # by topic
_Q = TypeVar("_Q")
_A = TypeVar("_A")


class LogMoved(AuditError):
    """A topic has gone, or a leader changed, while the brokers were asked."""


def fetch_snapshot(
    bootstrap_servers: str,
    properties: Mapping[str, str],
    wanted: Callable[[str], bool],
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> LogSnapshot:
    """The logs of the wanted topics as the brokers describe them now; of each partition that of its leader.

    `properties` are the Java client's. Describe on the cluster and on the topics has to be allowed.

    Raises:
        AuditError: a broker does not answer, a log dir has failed, a partition has no leader, not allowed, or a
            property has no meaning without Java.
    """
    access = ClusterAccess(bootstrap_servers, properties)
    admin = access.open_client(make_admin_client, {})
    deadline = time.monotonic() + access.timeout_s
    while True:
        try:
            return _take_snapshot(access, admin, wanted, now_ms)
        except LogMoved:
            if time.monotonic() > deadline:
                raise
        except KafkaException as error:
            if error.args[0].code() not in _PASSING_ERRORS or time.monotonic() > deadline:
                raise AuditError(access.explain_failure(error.args[0])) from None
        except TimeoutError:
            raise AuditError(access.explain_failure(KafkaError(KafkaError._TIMED_OUT))) from None
        except (NoAnswer, InvalidProperties) as error:
            raise AuditError(use_java_names(str(error))) from None
        time.sleep(_RETRY_S)


def _take_snapshot(
    access: ClusterAccess, admin: AdminClient, wanted: Callable[[str], bool], now_ms: Callable[[], int]
) -> LogSnapshot:
    began = now_ms()
    listed = access.ask(admin, lambda: admin.list_topics(timeout=ATTEMPT_S))
    names = sorted(filter(wanted, listed.topics))
    topics = _Logs(access, admin, names).describe() if names else {}
    return LogSnapshot(str(listed.cluster_id), began, now_ms(), topics)


class _Logs:
    """The logs of these topics, of which there is one at least."""

    def __init__(self, access: ClusterAccess, admin: AdminClient, names: list[str]) -> None:
        self._admin, self._timeout_s, self._names = admin, access.timeout_s, names
        self._client = BrokerClient(access.properties, access.servers, access.timeout_s, _MAX_ANSWER_BYTES)
        described = describe_topics(admin, names, access.timeout_s)
        leaders = find_leaders(described)
        self._ids = {name: read_topic_id(described[name].topic_id) for name in names}
        self._leaders = {place: node.id for place, node in leaders.items()}
        self._addresses = {node.id: BrokerAddress(node.host, node.port) for node in leaders.values()}

    def describe(self) -> dict[str, ReconciledTopicLog]:
        """By topic."""
        earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        sizes, starts = measure_logs(self._describe_sizes, lambda: self._list_offsets(earliest))
        ends = self._list_offsets(latest)
        transactional = self._find_transactional()
        settings = self._describe_settings()
        logs: dict[str, dict[int, PartitionLog]] = {name: {} for name in self._names}
        for place, leader in self._leaders.items():
            topic, number = place
            log = PartitionLog(leader, sizes[place], starts[place], ends[place], place in transactional)
            logs[topic][number] = log
        return {name: ReconciledTopicLog(self._ids[name], *settings[name], logs[name]) for name in self._names}

    def _list_offsets(self, which: OffsetSpec) -> dict[PartitionName, int]:
        asked = {TopicPartition(*place): which for place in self._leaders}
        found = self._admin.list_offsets(asked, request_timeout=self._timeout_s)
        return {
            (place.topic, place.partition): future.result(self._timeout_s + GRACE_S).offset
            for place, future in found.items()
        }

    def _describe_sizes(self) -> dict[PartitionName, int]:
        def make_request(led: _LedPartitions) -> DescribeLogDirsRequest:
            return DescribeLogDirsRequest(
                tuple(DescribableLogDirTopic(topic, tuple(numbers)) for topic, numbers in led.items())
            )

        return read_sizes(self._leaders, self._ask_leaders(DESCRIBE_LOG_DIRS, make_request))

    def _find_transactional(self) -> set[PartitionName]:
        def make_request(led: _LedPartitions) -> DescribeProducersRequest:
            return DescribeProducersRequest(
                tuple(DescribeProducersTopic(topic, tuple(numbers)) for topic, numbers in led.items())
            )

        return find_transactional(self._ask_leaders(DESCRIBE_PRODUCERS, make_request))

    def _ask_leaders(self, api: ApiCodec[_Q, _A], make_request: Callable[[_LedPartitions], _Q]) -> dict[int, _A]:
        """The answers of all leaders, by broker, each about the partitions that it leads."""
        led: dict[int, dict[str, list[int]]] = {}
        for (topic, number), leader in self._leaders.items():
            led.setdefault(leader, {}).setdefault(topic, []).append(number)

        def ask(request: _Q) -> BrokerRequest[_A]:
            return lambda connection: connection.send_request(api, request)

        asks = {leader: ask(make_request(topics)) for leader, topics in led.items()}
        return self._client.run(lambda asking: asking.request_each_broker(self._addresses, asks))

    def _describe_settings(self) -> dict[str, tuple[str, str, bool]]:
        # By a request of our own: librdkafka would fetch all settings of each topic, some forty.
        resources = (configs.DescribeConfigsResource(configs.TOPIC, name, _SETTINGS) for name in self._names)
        request = configs.DescribeConfigsRequest(tuple(resources))
        answer = self._client.run(
            lambda asking: asking.request_any_broker(
                lambda connection: connection.send_request(configs.DESCRIBE_CONFIGS, request)
            )
        )
        return read_settings(answer.results)


# --- what the answers say ---------------------------------------------------------------------------------------------


def find_leaders(described: Mapping[str, Any]) -> dict[PartitionName, Node]:
    """The leader of each partition, of what gateway/kafka/describe.py gives.

    Raises:
        AuditError: a partition has none.
        KafkaException: a topic can't be described.
    """
    found = {}
    for name, topic in described.items():
        if isinstance(topic, KafkaException):
            raise topic
        for partition in topic.partitions:
            if partition.leader is None:
                raise AuditError(f"partition {name}-{partition.id} has no leader: its log can't be seen now")
            found[name, partition.id] = partition.leader
    return found


def measure_logs(
    describe_sizes: Callable[[], dict[PartitionName, int]], list_starts: Callable[[], dict[PartitionName, int]]
) -> tuple[dict[PartitionName, int], dict[PartitionName, int]]:
    """Sizes and earliest offsets of the same moment.

    Raises:
        AuditError: there seems to be none.
    """
    starts = list_starts()
    for _ in range(_MAX_ATTEMPTS):
        before, sizes, starts = starts, describe_sizes(), list_starts()
        if starts == before:  # else retention cut a log meanwhile
            return sizes, starts
    raise AuditError("retention removes records faster than sizes of logs are read: choose --topics")


def read_sizes(
    leaders: Mapping[PartitionName, int], answers: Mapping[int, DescribeLogDirsResponse]
) -> dict[PartitionName, int]:
    """Bytes of each partition's log, of DescribeLogDirs answers by broker, each about what that broker leads.

    Raises:
        AuditError: not allowed, a log dir has failed, or a log is not there.
    """
    sizes = {}
    for broker, answer in answers.items():
        if answer.error_code:
            right = _ALLOW_DESCRIBE if answer.error_code == CLUSTER_AUTHORIZATION_FAILED else ""
            raise AuditError(f"broker {broker}: DescribeLogDirs: {error_text(answer.error_code)}{right}")
        if not answer.results:  # versions before 3 say this, too, to clients that may not ask
            raise AuditError(f"broker {broker} describes no log dir{_ALLOW_DESCRIBE}")
        for log_dir in answer.results:
            if log_dir.error_code:
                raise AuditError(
                    f"broker {broker}: log dir {log_dir.log_dir} has failed: {error_text(log_dir.error_code)}"
                )
            for topic in log_dir.topics:
                for log in topic.partitions:
                    if not log.is_future_key:  # a copy on its way to another dir of the same broker
                        sizes[topic.name, log.partition_index] = log.partition_size
    for (topic_name, number), leader in leaders.items():
        if (topic_name, number) not in sizes:
            raise LogMoved(f"broker {leader} has no log of {topic_name}-{number}, though it leads: try again")
    return sizes


def find_transactional(answers: Mapping[int, DescribeProducersResponse]) -> set[PartitionName]:
    """The partitions of whose producers one has had a transaction end there; as far as brokers remember (a day), and as
    far as it may be asked: Read on the topic is more than an auditor need have.

    Raises:
        AuditError: a broker doesn't say.
    """
    found = set()
    for broker, answer in answers.items():
        for topic in answer.topics:
            for partition in topic.partitions:
                code = partition.error_code
                if code and code != TOPIC_AUTHORIZATION_FAILED:
                    where = f"{topic.name}-{partition.partition_index}"
                    raise LogMoved(f"broker {broker}: producers of {where}: {error_text(code)}: try again")
                if any(each.coordinator_epoch >= 0 for each in partition.active_producers):
                    found.add((topic.name, partition.partition_index))
    return found


def read_settings(results: Iterable[configs.DescribeConfigsResult]) -> dict[str, tuple[str, str, bool]]:
    """compression.type, cleanup.policy, remote.storage.enable (which brokers before 3.6 don't have) of each topic.

    Raises:
        AuditError: not allowed, or it has gone.
    """
    values = {}
    for result in results:
        if result.error_code:
            said = f"topic {result.resource_name}: DescribeConfigs: {error_text(result.error_code)}"
            if result.error_code == TOPIC_AUTHORIZATION_FAILED:
                raise AuditError(f"{said}: allow this principal DescribeConfigs on the topic")
            raise LogMoved(f"{said}: try again")
        own: dict[str, Any] = {row.name: row.value for row in result.configs}
        compression, cleanup, remote = map(own.get, _SETTINGS)
        values[result.resource_name] = (str(compression), str(cleanup), remote == "true")
    return values
