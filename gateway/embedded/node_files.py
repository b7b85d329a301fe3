# The files that a node starts from: its properties, and what Kafka's own `kafka-storage format` wrote.

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from gateway.embedded.errors import EmbeddedError
from gateway.embedded.jars import java_command
from gateway.embedded.ports import HOST

# Settings that differ from Kafka's defaults, and why. `overrides` come last and win.
BROKER_DEFAULTS = {
    "auto.create.topics.enable": "false",  # a topic that is created automatically hides a typing error
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.num.partitions": "4",  # 50 by default: seconds of work for the first consumer group
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "16777216",  # 128 MiB by default, as much as the whole heap
    "queued.max.requests": "40",  # 500 by default, and that many requests of 1 MB would not fit into the heap
    # A killed broker's partitions move after this time (9 s and 2 s by default).
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "750",
    "metadata.max.idle.interval.ms": "0",  # an empty record every 500 ms is a third of what an idle broker costs
    # A leader answers as soon as it has something: the 500 ms by default are a third of what three idle brokers cost.
    "replica.fetch.wait.max.ms": "5000",
}
# A single broker has no successor: one that a busy machine keeps waiting for three seconds would only refuse its
# clients for a while.
SINGLE_NODE_DEFAULTS = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
MECHANISMS_KEY = "listener.name.sasl_plaintext.sasl.enabled.mechanisms"


def new_uuid() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


METADATA_LOG = "__cluster_metadata-0"
# Where the first records of the metadata log are: beside it, since Kafka 4.4 in it.
_CHECKPOINTS = ("bootstrap.checkpoint", f"{METADATA_LOG}/00000000000000000000-0000000000.checkpoint")


def format_storage_once(libs: Path) -> tuple[str, bytes]:
    """The records that `kafka-storage format` writes for the released feature levels, and the name of their file; run
    once, then kept beside the jars.
    """
    for name in _CHECKPOINTS:
        kept = libs.parent / Path(name).name
        if kept.exists():
            return name, kept.read_bytes()
    with tempfile.TemporaryDirectory(prefix="kafka-format-") as folder:
        config = Path(folder, "server.properties")
        data = Path(folder, "data")
        write_properties(
            config,
            {
                "process.roles": "broker,controller",
                "node.id": "1",
                "controller.quorum.voters": f"1@{HOST}:9093",
                "listeners": f"PLAINTEXT://{HOST}:9092,CONTROLLER://{HOST}:9093",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": str(data),
            },
        )
        command = java_command("kafka.tools.StorageTool", "format", "-t", new_uuid(), "-c", str(config), libs=libs)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EmbeddedError(f"kafka-storage format failed: {(done.stderr or done.stdout).strip()[-300:]}")
        name = next(name for name in _CHECKPOINTS if (data / name).exists())
        content = (data / name).read_bytes()
    kept = libs.parent / Path(name).name
    temporary = kept.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(content)
    temporary.rename(kept)
    return name, content


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    def escape(value: str) -> str:
        return value.replace("\\", "\\\\")

    path.write_text("".join(f"{key}={escape(value)}\n" for key, value in properties.items()))


def sasl_properties(users: Mapping[str, str]) -> dict[str, str]:
    security = "org.apache.kafka.common.security"
    accounts = " ".join(f"user_{name}={json.dumps(password)}" for name, password in users.items())
    prefix = "listener.name.sasl_plaintext"
    return {
        MECHANISMS_KEY: "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{prefix}.plain.sasl.jaas.config": f"{security}.plain.PlainLoginModule required {accounts};",
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{security}.scram.ScramLoginModule required;",
        f"{prefix}.scram-sha-512.sasl.jaas.config": f"{security}.scram.ScramLoginModule required;",
    }
