# Makes the captures in tests/hostile/traffic/corpus: real clients speak to a real broker through a proxy that keeps
# what passes, a request with its answer, one of each (API, version, order of magnitude of both sizes).
#
#   python -m tests.hostile.traffic.record [client …]
#
# One file per client library; a file holds pairs only, in the format of captures.py. What is longer than MAX_BYTES is
# left out: fuzzing inflates by itself. All secrets in it are those below. Knows nothing of the gateway's data plane.

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka

from gateway import embedded
from tests.clients import harness
from tests.hostile.traffic.captures import FOLDER, Pair, write

MAX_BYTES = 3000
USERS = {"alice": "alice-secret"}
PLAIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
_LOGIN = 'org.apache.kafka.common.security.{} required username="alice" password="alice-secret";'

# By client: options of each further run, so that it speaks other versions or another mechanism, and whether with SASL.
RUNS: dict[str, list[tuple[bool, dict[str, Any]]]] = {
    "java": [
        (True, {**PLAIN, "sasl.jaas.config": _LOGIN.format("plain.PlainLoginModule")}),
        (
            True,
            {**PLAIN, "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": _LOGIN.format("scram.ScramLoginModule")},
        ),
    ],
    "librdkafka": [
        (False, {"api.version.request": "false", "broker.version.fallback": "0.11.0"}),
        (False, {"api.version.request": "false", "broker.version.fallback": "1.0.0"}),
        (True, {**PLAIN, "sasl.username": "alice", "sasl.password": "alice-secret"}),
        (True, {**PLAIN, "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password": "alice-secret"}),
    ],
    "kafka-python": [
        (
            True,
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_plain_username": "alice",
                "sasl_plain_password": "alice-secret",
            },
        ),
    ],
    "aiokafka": [
        (
            True,
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "alice",
                "sasl_plain_password": "alice-secret",
            },
        )
    ],
}


OLD_BROKERS = ((0, 11), (1, 0), (1, 1), (2, 0), (2, 1), (2, 3), (2, 4), (2, 5), (2, 7), (3, 0))  # kafka-python's word


class Recorder:
    """A proxy on `port` in front of `target`; `pairs` grows while clients are at work."""

    def __init__(self, port: int, target: int) -> None:
        self.pairs: dict[tuple[int, int, int, int], Pair] = {}
        self._target = target
        self._listener = socket.create_server((embedded.HOST, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            upstream = socket.create_connection((embedded.HOST, self._target))
            waiting: deque[bytes] = deque()
            for source, sink, note in (
                (client, upstream, lambda frame, q=waiting: self._asked(q, frame)),
                (upstream, client, lambda frame, q=waiting: self._answered(q, frame)),
            ):
                threading.Thread(target=self._relay, args=(source, sink, note), daemon=True).start()

    @staticmethod
    def _relay(source: socket.socket, sink: socket.socket, note: Callable[[bytes], None]) -> None:
        data = bytearray()
        try:
            while piece := source.recv(65_536):
                data += piece
                while len(data) >= 4 and len(data) >= (size := struct.unpack_from(">i", data)[0] + 4):
                    note(bytes(data[:size]))
                    del data[:size]
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            sink.close()

    @staticmethod
    def _asked(waiting: deque[bytes], frame: bytes) -> None:
        waiting.append(frame)

    def _answered(self, waiting: deque[bytes], frame: bytes) -> None:
        while waiting:
            request = waiting.popleft()
            if request[8:12] == frame[4:8]:
                break
            self._keep(request, b"")  # acks=0
        else:
            return
        self._keep(request, frame)

    def _keep(self, request: bytes, answer: bytes) -> None:
        if max(len(request), len(answer)) <= MAX_BYTES:
            key, version = struct.unpack_from(">hh", request, 4)
            magnitude = len(request).bit_length(), len(answer).bit_length()
            self.pairs.setdefault((key, version, *magnitude), Pair(request, answer))


def _drive(client: str, bootstrap: str, topic: str, options: dict[str, Any], admin: bool) -> None:
    work: dict[str, Any] = {"options": options, "timeout_s": 25.0}
    few = {"topics": [topic], "partitions": 2, "count": 6, "record_bytes": 30, **work}
    runs: list[tuple[str, dict[str, Any]]] = [
        ("produce", {**few, "run": "a"}),
        ("produce", {**few, "run": "b", "acks": 0, "idempotence": False}),
        ("produce", {**few, "run": "c", "compression": "gzip", "batch_records": 3, "client_id": "c" * 40}),
        ("consume", {**few, "run": "a", "group": f"group-{topic}"}),
    ]
    if admin:
        runs.append(("admin", {"topics": [f"{topic}-made"], "partitions": 2, **work}))
        runs.append(("produce", {**few, "run": "t", "transactional_id": f"t-{topic}", "transaction_size": 3}))
    for mode, config in runs:
        try:
            harness.run(client, mode, bootstrap, **config)
        except Exception as error:  # this version of it doesn't do that; the others are recorded all the same
            print(f"  {client} {mode} {options}: {str(error)[:150]}", file=sys.stderr)


def _drive_old(bootstrap: str, topic: str) -> None:
    """kafka-python believes what it is told of a broker's version, which JSON can't tell its driver: a tuple."""
    for version in OLD_BROKERS:
        common: dict[str, Any] = {"bootstrap_servers": bootstrap, "api_version": version}
        try:
            producer = kafka.KafkaProducer(**common, enable_idempotence=False)
            for i in range(3):
                producer.send(topic, b"%d" % i).get(10)
            producer.close(3)
            options = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 1500}
            consumer = kafka.KafkaConsumer(topic, group_id=f"old-{version}", **options, **common)
            for _ in zip(range(3), consumer, strict=False):
                pass
            consumer.close()
        except Exception as error:
            print(f"  kafka-python {version}: {error!r}", file=sys.stderr)


def _tools(cluster: embedded.EmbeddedCluster, port: int) -> None:
    """Kafka's own tools: the admin APIs that the gateway answers, and share groups."""
    at = ["--bootstrap-server", f"{embedded.HOST}:{port}"]
    configs, topic = "kafka.admin.ConfigCommand", "recorded-java"
    share = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
    quota = ["--alter", "--entity-type", "users", "--entity-name", "alice", "--add-config", "producer_byte_rate=1e6"]
    for command in (
        [configs, *quota],
        [configs, "--describe", "--entity-type", "users", "--entity-name", "alice"],
        [configs, "--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", "retention.ms=3600000"],
        [
            configs,
            "--alter",
            "--entity-type",
            "groups",
            "--entity-name",
            "s",
            "--add-config",
            "share.auto.offset.reset=earliest",
        ],
        [configs, "--describe", "--entity-type", "topics", "--entity-name", topic],
        [share, "--topic", topic, "--group", "s", "--timeout-ms", "4000", "--max-messages", "5"],
        ["org.apache.kafka.tools.TopicCommand", "--describe"],
        ["org.apache.kafka.tools.LogDirsCommand", "--describe"],
    ):
        try:
            cluster.run_tool(command[0], *at, *command[1:])
        except embedded.EmbeddedError as error:
            print(f"  {' '.join(command)}: {str(error)[-200:]}", file=sys.stderr)


def main(clients: list[str]) -> None:
    port, first = embedded.find_free_port(2), embedded.find_free_port(3)
    sasl = port + 1
    recorders = Recorder(port, first), Recorder(sasl, first + 2)  # before the broker: its own set-up comes this way
    advertised = f"PLAINTEXT://{embedded.HOST}:{port},SASL_PLAINTEXT://{embedded.HOST}:{sasl}"
    overrides = {"advertised.listeners": advertised, "auto.create.topics.enable": "true", "num.partitions": "2"}
    with embedded.EmbeddedCluster(1, overrides, users=USERS, port=first) as cluster:
        for client in clients or harness.CLIENTS:
            for one in recorders:
                one.pairs = {}
            try:
                harness.CLIENTS[client].command()
            except harness.Unavailable as error:
                print(f"{client}: {str(error)[:200]}", file=sys.stderr)
                continue
            topic = f"recorded-{client}"
            _drive(client, f"{embedded.HOST}:{port}", topic, {}, admin=True)
            for with_sasl, options in RUNS.get(client, []):
                _drive(client, f"{embedded.HOST}:{sasl if with_sasl else port}", topic, options, admin=False)
            if client == "kafka-python":
                _drive_old(f"{embedded.HOST}:{port}", topic)
            if client == "java":
                _tools(cluster, port)
            found = recorders[0].pairs | recorders[1].pairs
            size = write(Path(FOLDER) / f"{client}.bin", [found[key] for key in sorted(found)])
            spoken = len({key[:2] for key in found})
            print(f"{client}: {len(found)} pairs, {spoken} versions of APIs, {size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
