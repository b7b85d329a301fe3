# The audit's own questions to the brokers: offsets, a topic's id, and how large logs are (reconcile.py says what for).
#
# All with the Java client that Spark's connector brings along, so that every kafka.* property means the same in these
# questions as in the job that reads the topic. The client is driven from Python, a call into the JVM at a time (some
# 5,000 a second): nothing here asks for more than a handful per partition. Knows nothing of records and of sums.

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from py4j.java_gateway import JavaClass, JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from gateway.audit.errors import NO_JVM_TEXT, AuditError, explain_error, list_causes
from gateway.audit.reconcile.reconcile import LogSnapshot, PartitionLog, ReconciledTopicLog
from gateway.audit.spark import connector

ANSWER_TIMEOUT_MS: Final = 15_000  # how long a broker may take to answer
_MAX_ATTEMPTS: Final = 5

PartitionName = tuple[str, int]  # topic, partition


def fetch_topic_id(spark: SparkSession, topic: str, properties: Mapping[str, str]) -> str:
    """The id that a topic has for as long as it exists; one made again under its name has another.

    Raises:
        AuditError: no broker answers, no such topic, not allowed, or the connector is not loaded.
    """
    with _open_admin(spark, properties, topic) as (jvm, admin):
        return str(_describe_topics(jvm, admin, [topic])[topic].topicId().toString())


def fetch_offsets(spark: SparkSession, topic: str, properties: Mapping[str, str]) -> dict[int, tuple[int, int]]:
    """The earliest offset and the end offset of each partition, as of now.

    Raises:
        AuditError: no broker answers, no such topic, not allowed, or the connector is not loaded.
    """
    with _open_admin(spark, properties, topic) as (jvm, admin):
        described = _describe_topics(jvm, admin, [topic])
        partitions = _make_topic_partitions(jvm, topic, described[topic])
        starts, ends = (_list_offsets(jvm, admin, partitions, earliest=first) for first in (True, False))
    return {partition: (starts[topic, partition], ends[topic, partition]) for _, partition in partitions}


def fetch_snapshot(
    spark: SparkSession,
    properties: Mapping[str, str],
    wanted: Callable[[str], bool],
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> LogSnapshot:
    """The logs of the wanted topics as the brokers describe them now; of each partition that of its leader.

    `properties` have "bootstrap.servers". Describe on the cluster and on the topics has to be allowed.

    Raises:
        AuditError: a broker does not answer, a log dir has failed, a partition has no leader, or not allowed.
    """
    with _open_admin(spark, properties) as (jvm, admin):
        began = now_ms()
        cluster = str(admin.describeCluster().clusterId().get())
        names = sorted(name for name in map(str, admin.listTopics().names().get()) if wanted(name))
        described = _describe_topics(jvm, admin, names)
        partitions: dict[PartitionName, JavaObject] = {}
        leaders: dict[PartitionName, int] = {}
        for topic, description in described.items():
            partitions |= _make_topic_partitions(jvm, topic, description)
            leaders |= _partition_leaders(topic, description)
        for _ in range(_MAX_ATTEMPTS):
            before = _list_offsets(jvm, admin, partitions, earliest=True)
            sizes = _describe_log_sizes(jvm, admin, partitions, leaders)
            starts = _list_offsets(jvm, admin, partitions, earliest=True)
            if starts == before:  # else retention cut a log meanwhile: size and start would be of different moments
                break
        else:
            raise AuditError("retention removes records faster than sizes of logs are read: choose --topics")
        ends = _list_offsets(jvm, admin, partitions, earliest=False)
        transactional = _find_transactional(jvm, admin, partitions)
        configs = _describe_topic_configs(jvm, admin, names)
        logs: dict[str, dict[int, PartitionLog]] = {name: {} for name in names}
        for name in partitions:
            topic, number = name
            log = PartitionLog(leaders[name], sizes[name], starts[name], ends[name], name in transactional)
            logs[topic][number] = log
        topics = {
            name: ReconciledTopicLog(str(described[name].topicId().toString()), *configs[name], logs[name])
            for name in names
        }
        return LogSnapshot(cluster, began, now_ms(), topics)


@contextmanager
def _open_admin(
    spark: SparkSession, properties: Mapping[str, str], topic: str | None = None
) -> Iterator[tuple[Any, JavaObject]]:
    context: Any = getattr(spark, "sparkContext", None)
    if context is None:
        raise AuditError(NO_JVM_TEXT)
    jvm: Any = context._jvm
    kafka = jvm.org.apache.kafka
    if not isinstance(kafka.clients.admin.Admin, JavaClass):
        raise AuditError(connector.missing_connector_text(spark.version))
    bounds = {"default.api.timeout.ms": ANSWER_TIMEOUT_MS, "request.timeout.ms": ANSWER_TIMEOUT_MS * 2 // 3}
    given = {**bounds, **properties}
    settings = jvm.java.util.Properties()
    for name, value in given.items():
        settings.put(name, str(value))
    try:
        admin = kafka.clients.admin.Admin.create(settings)
        try:
            yield jvm, admin
        finally:
            admin.close(jvm.java.time.Duration.ofSeconds(1))
    except Py4JJavaError as error:
        raise AuditError(_kafka_error(error, topic, given)) from None


def _describe_topics(jvm: Any, admin: JavaObject, topics: Collection[str]) -> dict[str, JavaObject]:
    found = admin.describeTopics(_to_java_list(jvm, topics)).allTopicNames().get()
    return {name: found.get(name) for name in topics}


def _make_topic_partitions(jvm: Any, topic: str, description: JavaObject) -> dict[PartitionName, JavaObject]:
    make = jvm.org.apache.kafka.common.TopicPartition
    numbers = [info.partition() for info in description.partitions()]
    return {(topic, number): make(topic, number) for number in numbers}


def _partition_leaders(topic: str, description: JavaObject) -> dict[PartitionName, int]:
    found = {}
    for info in description.partitions():
        leader = info.leader()
        if leader is None or leader.isEmpty():
            raise AuditError(f"partition {topic}-{info.partition()} has no leader: its log can't be seen now")
        found[topic, info.partition()] = leader.id()
    return found


def _list_offsets(
    jvm: Any, admin: JavaObject, partitions: Mapping[PartitionName, JavaObject], *, earliest: bool
) -> dict[PartitionName, int]:
    spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
    which = spec.earliest() if earliest else spec.latest()
    asked = jvm.java.util.HashMap()
    for partition in partitions.values():
        asked.put(partition, which)
    found = admin.listOffsets(asked).all().get()
    return {name: found.get(partition).offset() for name, partition in partitions.items()}


def _describe_log_sizes(
    jvm: Any, admin: JavaObject, partitions: Mapping[PartitionName, JavaObject], leaders: Mapping[PartitionName, int]
) -> dict[PartitionName, int]:
    answers = admin.describeLogDirs(_to_java_list(jvm, sorted(set(leaders.values())))).allDescriptions().get()
    dirs: dict[int, list[JavaObject]] = {}
    for broker in set(leaders.values()):
        described = answers.get(broker)
        for name in described:
            failed = described[name].error()
            if failed is not None:
                raise AuditError(f"broker {broker}: log dir {name} has failed: {failed.getMessage()}")
        dirs[broker] = [described[name].replicaInfos() for name in described]
    sizes = {}
    for name, partition in partitions.items():
        found = [each.get(partition) for each in dirs[leaders[name]]]
        # A future replica is a copy on its way to another dir of the same broker.
        here = [replica for replica in found if replica is not None and not replica.isFuture()]
        if not here:
            raise AuditError(f"broker {leaders[name]} has no log of {name[0]}-{name[1]}, though it leads: try again")
        sizes[name] = here[0].size()
    return sizes


def _find_transactional(
    jvm: Any, admin: JavaObject, partitions: Mapping[PartitionName, JavaObject]
) -> set[PartitionName]:
    """The partitions of whose producers one has had a transaction end there; as far as brokers remember (a day)."""
    try:
        found = admin.describeProducers(_to_java_list(jvm, partitions.values())).all().get()
    except Py4JJavaError as error:
        if any("AuthorizationException" in name for name, _ in list_causes(error)):
            return set()  # Read on the topic is more than an auditor need have
        raise
    return {
        name
        for name, partition in partitions.items()
        if any(each.coordinatorEpoch().isPresent() for each in found.get(partition).activeProducers())
    }


def _describe_topic_configs(jvm: Any, admin: JavaObject, topics: Collection[str]) -> dict[str, tuple[str, str, bool]]:
    """compression.type, cleanup.policy, remote.storage.enable (which brokers before 3.6 don't have) of each topic."""
    config = jvm.org.apache.kafka.common.config.ConfigResource
    resources = {name: config(config.Type.TOPIC, name) for name in topics}
    found = admin.describeConfigs(_to_java_list(jvm, resources.values())).all().get()
    values = {}
    for name, resource in resources.items():
        own = found.get(resource)
        remote = own.get("remote.storage.enable")
        values[name] = (
            str(own.get("compression.type").value()),
            str(own.get("cleanup.policy").value()),
            remote is not None and remote.value() == "true",
        )
    return values


def _to_java_list(jvm: Any, values: Collection[Any]) -> JavaObject:
    made = jvm.java.util.ArrayList()
    for value in values:
        made.add(value)
    return made


def _kafka_error(error: Py4JJavaError, topic: str | None, properties: Mapping[str, object]) -> str:
    bootstrap_servers = properties["bootstrap.servers"]
    chain = list_causes(error)
    names = {name.rpartition(".")[2]: text for name, text in chain}
    if "UnknownTopicOrPartitionException" in names:
        return f"topic {topic} does not exist at {bootstrap_servers}" if topic else f"{explain_error(error)}: try again"
    if "SaslAuthenticationException" in names:
        return f"{bootstrap_servers} refuses our credentials ({names['SaslAuthenticationException']})"
    if "SslAuthenticationException" in names:
        return (
            f"no TLS with {bootstrap_servers} ({explain_error(error)}): ssl.truststore.location has to hold the"
            " authority"
            " that signed the brokers' certificates"
        )
    if "TimeoutException" in names:
        return (
            f"no answer from {bootstrap_servers} within {properties['default.api.timeout.ms']} ms: is it running, does"
            " security.protocol match, and can its advertised listeners be reached from here?"
        )
    return f"{bootstrap_servers}: {explain_error(error)}"
