# What brokers are asked about the usage topic where librdkafka can't: by the Java client that Spark's connector brings
# along. librdkafka has no JKS files, no login modules and no TLS factories (gateway/kafka/java_properties.py refuses
# them), and its wheels no Kerberos. PySpark has no API for this, so it needs Spark's JVM, which Spark Connect hasn't.
#
# The client is driven from Python, a call into the JVM at a time: nothing here asks for more than a handful per
# partition.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from py4j.java_gateway import JavaClass, JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from gateway.audit.cluster_access import TopicIdentity, missing_topic_text
from gateway.audit.errors import NO_CONNECT_TEXT, AuditError, explain_error, list_causes
from gateway.audit.spark import connector

_BOUNDS: Final = {"default.api.timeout.ms": 15_000, "request.timeout.ms": 10_000}  # how long a broker may take


def identify_topic(spark: SparkSession, topic: str, properties: Mapping[str, str]) -> TopicIdentity:
    """A topic as of now.

    Raises:
        AuditError: no broker answers, no such topic, not allowed, or the connector is not loaded.
    """
    with _open_admin(spark, topic, properties) as (_, _, description):
        return TopicIdentity(str(description.topicId().toString()), len(description.partitions()))


def fetch_offsets(spark: SparkSession, topic: str, properties: Mapping[str, str]) -> dict[int, tuple[int, int]]:
    """The earliest offset and the end offset of each partition, as of now.

    Raises:
        AuditError: no broker answers, no such topic, not allowed, or the connector is not loaded.
    """
    with _open_admin(spark, topic, properties) as (jvm, admin, description):
        make, spec = jvm.org.apache.kafka.common.TopicPartition, jvm.org.apache.kafka.clients.admin.OffsetSpec
        places = {info.partition(): make(topic, info.partition()) for info in description.partitions()}

        def ask(which: JavaObject) -> dict[int, int]:
            asked = jvm.java.util.HashMap()
            for place in places.values():
                asked.put(place, which)
            found = admin.listOffsets(asked).all().get()
            return {partition: found.get(place).offset() for partition, place in places.items()}

        starts, ends = ask(spec.earliest()), ask(spec.latest())
    return {partition: (starts[partition], ends[partition]) for partition in places}


@contextmanager
def _open_admin(
    spark: SparkSession, topic: str, properties: Mapping[str, str]
) -> Iterator[tuple[Any, JavaObject, JavaObject]]:
    """The JVM, its admin client, and the topic's description."""
    context: Any = getattr(spark, "sparkContext", None)
    if context is None:
        raise AuditError(NO_CONNECT_TEXT)
    jvm: Any = context._jvm
    admin_class = jvm.org.apache.kafka.clients.admin.Admin
    if not isinstance(admin_class, JavaClass):
        raise AuditError(connector.missing_connector_text(spark.version))
    given = {**_BOUNDS, **properties}
    settings = jvm.java.util.Properties()
    for name, value in given.items():
        settings.put(name, str(value))
    try:
        admin = admin_class.create(settings)
        try:
            names = jvm.java.util.ArrayList()
            names.add(topic)
            yield jvm, admin, admin.describeTopics(names).allTopicNames().get().get(topic)
        finally:
            admin.close(jvm.java.time.Duration.ofSeconds(1))
    except Py4JJavaError as error:
        raise AuditError(_failure_text(error, topic, given)) from None


def _failure_text(error: Py4JJavaError, topic: str, properties: Mapping[str, object]) -> str:
    servers = properties["bootstrap.servers"]
    names = {name.rpartition(".")[2]: text for name, text in list_causes(error)}
    if "UnknownTopicOrPartitionException" in names:
        return missing_topic_text(topic, str(servers))
    if "SaslAuthenticationException" in names:
        return f"{servers} refuses our credentials ({names['SaslAuthenticationException']})"
    if "SslAuthenticationException" in names:
        return (
            f"no TLS with {servers} ({explain_error(error)}): ssl.truststore.location has to hold the authority that"
            " signed the brokers' certificates"
        )
    if "TimeoutException" in names:
        return (
            f"no answer from {servers} within {properties['default.api.timeout.ms']} ms: is it running, does"
            " security.protocol match, and can its advertised listeners be reached from here?"
        )
    return f"{servers}: {explain_error(error)}"
