# A real Apache Kafka (KRaft) on this machine, for the demo and the tests. Knows nothing of the gateway, and needs only
# the standard library until it fetches Kafka or creates users.
#
#   cluster.py     brokers: started, killed, started again; Kafka's own tools
#   node_files.py  what a node starts from
#   jars.py        Java, and Kafka's jars in the user's cache; kafka.sha256 lists them
#   maven.py       pinned jars of a Maven repository
#   class_data.py  an archive of Kafka's classes, so that brokers and tools start in half of the CPU time
#   processes.py   nothing that is started here outlives this process
#   ports.py       free ports
#   errors.py      the error of all of them
#   __main__.py    what `make env` runs

from __future__ import annotations

from gateway.embedded.cluster import BrokerProcess, EmbeddedCluster, count_seen_brokers
from gateway.embedded.errors import EmbeddedError
from gateway.embedded.jars import (
    JVM_OPTIONS,
    KAFKA_VERSION,
    cache_dir,
    fetch_kafka,
    find_java_path,
    java_command,
)
from gateway.embedded.maven import MAVEN_ENV
from gateway.embedded.node_files import BROKER_DEFAULTS
from gateway.embedded.ports import HOST, find_free_port
from gateway.embedded.processes import reap_process, spawn_process, wait_for

__all__ = [
    "BROKER_DEFAULTS",
    "HOST",
    "JVM_OPTIONS",
    "KAFKA_VERSION",
    "MAVEN_ENV",
    "BrokerProcess",
    "EmbeddedCluster",
    "EmbeddedError",
    "cache_dir",
    "count_seen_brokers",
    "fetch_kafka",
    "find_free_port",
    "find_java_path",
    "java_command",
    "reap_process",
    "spawn_process",
    "wait_for",
]
