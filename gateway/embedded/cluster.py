# The brokers of one cluster: each node is broker and controller.

from __future__ import annotations

import atexit
import importlib
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gateway.embedded.errors import EmbeddedError
from gateway.embedded.jars import HEAP_MB, fetch_kafka, java_command
from gateway.embedded.node_files import (
    BROKER_DEFAULTS,
    MECHANISMS_KEY,
    METADATA_LOG,
    SINGLE_NODE_DEFAULTS,
    format_storage_once,
    new_uuid,
    sasl_properties,
    write_properties,
)
from gateway.embedded.ports import HOST, find_free_port
from gateway.embedded.processes import process_guard, reap_process, spawn_process

START_TIMEOUT_S = 240.0  # 2 s when the machine is idle; a machine that also compiles and runs Spark needs its time


class BrokerProcess:
    """One node of a `EmbeddedCluster`: its address, process and files."""

    def __init__(self, node_id: int, folder: Path, port: int, controller_port: int, sasl_port: int | None) -> None:
        self.node_id = node_id
        self.port = port
        self.controller_port = controller_port
        self.sasl_port = sasl_port
        self.folder = folder
        self.log_dirs = [folder / "data"]
        self.log_file = folder / "server.log"
        self.process: subprocess.Popen[Any] | None = None

    @property
    def log_dir(self) -> Path:
        """The folder of its records; the first of several."""
        return self.log_dirs[0]

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        if self.process is None:
            raise EmbeddedError(f"broker {self.node_id} is not running")
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class EmbeddedCluster:
    """A Kafka cluster on loopback, up when the constructor's `with` (or `open`) returns, gone after it.

    Args:
        brokers: the number of nodes; their ids are 1..brokers.
        overrides: server properties for every broker, on top of `BROKER_DEFAULTS`.
        per_broker_overrides: the same by node id, on top of `overrides`.
        log_dirs: by node id, folders for the records of a broker instead of one in `base_dir`, a mounted disk for
            instance; its metadata log stays in `base_dir`, so that the node lives as long as one of them does.
        base_dir: the folder of the nodes' files; a temporary folder, removed in the end, if not given.
        port: of broker 1; the others follow, then the controllers, then the SASL listeners. 0: free ones.
        users: name -> password; opens a SASL_PLAINTEXT listener per broker (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512).
        heap_mb: heap of each broker.
        java_options: for the JVM, after `JVM_OPTIONS`.
        libs: a folder with the jars of another Kafka, from 3.9 on (tests run older ones).
    """

    def __init__(
        self,
        brokers: int = 1,
        overrides: Mapping[str, str] | None = None,
        *,
        per_broker_overrides: Mapping[int, Mapping[str, str]] | None = None,
        log_dirs: Mapping[int, Sequence[Path | str]] | None = None,
        base_dir: Path | str | None = None,
        port: int = 0,
        users: Mapping[str, str] | None = None,
        heap_mb: int = HEAP_MB,
        java_options: Sequence[str] = (),
        libs: Path | None = None,
    ) -> None:
        self._overrides = dict(overrides or {})
        self._per_broker = {node: dict(own) for node, own in (per_broker_overrides or {}).items()}
        self._log_dirs = {node: [Path(own).absolute() for own in dirs] for node, dirs in (log_dirs or {}).items()}
        self._users = dict(users or {})
        self._heap_mb = heap_mb
        self._java_options = tuple(java_options)
        self._libs = libs
        self._keeps_files = base_dir is not None
        self._base_dir = Path(base_dir).absolute() if base_dir is not None else None
        self._broker_count = brokers
        self._first_port = port
        self._tool_count = 0
        self._children: list[subprocess.Popen[Any]] = []
        self.cluster_id = new_uuid()
        self.brokers: dict[int, BrokerProcess] = {}

    # -- life

    def open(self) -> Self:
        """Start all brokers and return when each of them sees all of them.

        Raises:
            EmbeddedError: no Java, no jars, or a broker did not come up (with the end of its log).
        """
        checkpoint = format_storage_once(self._libs or fetch_kafka())
        folder = self._base_dir
        if folder is None:
            folder = self._base_dir = Path(tempfile.mkdtemp(prefix="produce-gateway-kafka-"))
            process_guard.send_line(str(folder))
        atexit.register(self.stop)
        try:
            self._assign_nodes(folder)
            for broker in self.brokers.values():
                self._prepare_broker(broker, checkpoint)
                self._launch_broker(broker)
            for broker in self.brokers.values():
                self._await_broker(broker, len(self.brokers))
            self._create_scram_users()
        except BaseException:
            self.stop()
            raise
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process of this cluster at once and remove its temporary folder. May be called again."""
        for process in [*self._children, *(b.process for b in self.brokers.values() if b.process is not None)]:
            process.kill()  # all first: no broker need see the others leave
        for process in self._children:
            reap_process(process)
        self._children.clear()
        for broker in self.brokers.values():
            if broker.process is not None:
                reap_process(broker.process)
                broker.process = None
        if not self._keeps_files and self._base_dir is not None:
            shutil.rmtree(self._base_dir, ignore_errors=True)
        atexit.unregister(self.stop)

    # -- addresses

    @property
    def folder(self) -> Path:
        """The folder of the nodes' files; gone with the cluster, unless it was given."""
        assert self._base_dir is not None, "the cluster is not open"
        return self._base_dir

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{broker.port}" for broker in self.brokers.values())

    @property
    def sasl_bootstrap_servers(self) -> str:
        """Like `bootstrap_servers`, for the listeners that authenticate clients."""
        if not self._users:
            raise EmbeddedError("this cluster has no SASL listener: give it users")
        return ",".join(f"{HOST}:{broker.sasl_port}" for broker in self.brokers.values())

    def broker(self, node_id: int) -> BrokerProcess:
        return self.brokers[node_id]

    # -- one broker

    def kill_broker(self, node_id: int) -> None:
        """SIGKILL: like a crash. Returns when the process is gone."""
        self._end_broker(node_id, None)

    def stop_broker(self, node_id: int, timeout_s: float = 20.0) -> None:
        """SIGTERM: a controlled shutdown, leaders move first. Killed if that takes longer than `timeout_s`."""
        self._end_broker(node_id, timeout_s)

    def start_broker(self, node_id: int, overrides: Mapping[str, str] | None = None) -> None:
        """Start a broker that was stopped, on its port with its data; returns when it sees all that run.

        Args:
            overrides: server properties that change with this start, and stay.
        """
        broker = self.brokers[node_id]
        if broker.is_running:
            raise EmbeddedError(f"broker {node_id} is running already")
        if overrides:
            self._per_broker.setdefault(node_id, {}).update(overrides)
        write_properties(broker.folder / "server.properties", self._broker_properties(broker))
        self._launch_broker(broker)
        self._await_broker(broker, sum(each.is_running for each in self.brokers.values()))

    # -- tools

    def start_tool(self, main_class: str, *args: str, heap_mb: int = HEAP_MB, **options: Any) -> subprocess.Popen[str]:
        """Start one of Kafka's tools; its output is piped unless `options` (Popen's) say otherwise.

        Its warnings go to a tool-N.log in the cluster's folder. It ends with the cluster at the latest.
        """
        self._tool_count += 1
        log = self.folder / f"tool-{self._tool_count}.log"
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        process = spawn_process(java_command(main_class, *args, heap_mb=heap_mb, log=log, libs=self._libs), **options)
        self._children.append(process)
        return process

    def run_tool(self, main_class: str, *args: str, timeout_s: float = 240.0, stdin: str | None = None) -> str:
        """Run one of Kafka's tools to its end and return its standard output.

        Raises:
            EmbeddedError: it failed or took longer; with its output.
        """
        process = self.start_tool(main_class, *args, stdin=subprocess.PIPE)
        try:
            out, err = process.communicate(stdin, timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise EmbeddedError(f"{main_class} took more than {timeout_s:.0f} s: {(out + err)[-500:]}") from None
        finally:
            reap_process(process)
            self._children.remove(process)
        if process.returncode != 0:
            raise EmbeddedError(f"{main_class} ended with {process.returncode}: {(out + err).strip()[-1000:]}")
        return out

    # -- inside

    def _assign_nodes(self, folder: Path) -> None:
        lists = 3 if self._users else 2
        first = self._first_port or find_free_port(self._broker_count * lists)
        for node_id in range(1, self._broker_count + 1):
            at = first + node_id - 1
            sasl_port = at + 2 * self._broker_count if self._users else None
            broker = BrokerProcess(node_id, folder / f"node-{node_id}", at, at + self._broker_count, sasl_port)
            broker.log_dirs = self._log_dirs.get(node_id, broker.log_dirs)
            self.brokers[node_id] = broker

    def _prepare_broker(self, broker: BrokerProcess, checkpoint: tuple[str, bytes]) -> None:
        broker.folder.mkdir(parents=True, exist_ok=True)
        properties = self._broker_properties(broker)
        write_properties(broker.folder / "server.properties", properties)
        log_dirs = [Path(log_dir) for log_dir in properties["log.dirs"].split(",")]
        metadata_dir = Path(properties.get("metadata.log.dir", log_dirs[0]))
        for path in {*log_dirs, metadata_dir}:
            path.mkdir(parents=True, exist_ok=True)
            meta = path / "meta.properties"
            if not meta.exists():  # a base_dir of an earlier run has its own
                identity = {"cluster.id": self.cluster_id, "node.id": str(broker.node_id), "directory.id": new_uuid()}
                write_properties(meta, {"version": "1", **identity})
        if not (metadata_dir / METADATA_LOG).exists():  # likewise
            name, records = checkpoint
            (metadata_dir / name).parent.mkdir(exist_ok=True)
            (metadata_dir / name).write_bytes(records)

    def _broker_properties(self, broker: BrokerProcess) -> dict[str, str]:
        copies = str(min(3, self._broker_count))
        majority = str(2 if self._broker_count >= 3 else 1)
        listeners = {"PLAINTEXT": broker.port, "CONTROLLER": broker.controller_port}
        if broker.sasl_port is not None:
            listeners["SASL_PLAINTEXT"] = broker.sasl_port
        every = self.brokers.values()
        return {
            "process.roles": "broker,controller",
            "node.id": str(broker.node_id),
            "controller.quorum.voters": ",".join(f"{b.node_id}@{HOST}:{b.controller_port}" for b in every),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
            "log.dirs": ",".join(map(str, broker.log_dirs)),
            **({"metadata.log.dir": str(broker.folder / "metadata")} if broker.node_id in self._log_dirs else {}),
            "default.replication.factor": copies,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": majority,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": majority,
            **BROKER_DEFAULTS,
            **(SINGLE_NODE_DEFAULTS if self._broker_count == 1 else {}),
            **(sasl_properties(self._users) if self._users else {}),
            **self._overrides,
            **self._per_broker.get(broker.node_id, {}),
        }

    def _launch_broker(self, broker: BrokerProcess) -> None:
        command = java_command(
            "kafka.Kafka",
            str(broker.folder / "server.properties"),
            heap_mb=self._heap_mb,
            log=broker.log_file,
            java_options=self._java_options,
            libs=self._libs,
        )
        with open(broker.folder / "stdout.log", "ab") as out:
            broker.process = spawn_process(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)

    def _await_broker(self, broker: BrokerProcess, expected: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while count_seen_brokers(broker.port) < expected:
            if not broker.is_running or time.monotonic() > deadline:
                how = (
                    "did not come up" if broker.is_running else f"ended with {broker.process and broker.process.poll()}"
                )
                raise EmbeddedError(f"broker {broker.node_id} {how}: {_log_tail(broker)}")
            time.sleep(0.05)

    def _end_broker(self, node_id: int, terminate_s: float | None) -> None:
        broker = self.brokers[node_id]
        if broker.process is not None:
            reap_process(broker.process, terminate_s)
            broker.process = None

    def _create_scram_users(self) -> None:
        if not self._users:
            return
        admin: Any = importlib.import_module("confluent_kafka.admin")  # librdkafka only where it is needed
        client = admin.AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        for kind in (admin.ScramMechanism.SCRAM_SHA_256, admin.ScramMechanism.SCRAM_SHA_512):
            info = admin.ScramCredentialInfo(kind, 4096)
            changes = [
                admin.UserScramCredentialUpsertion(name, info, secret.encode()) for name, secret in self._users.items()
            ]
            # One request per mechanism: the broker takes a user only once in each.
            for future in client.alter_user_scram_credentials(changes).values():
                future.result(30)
        for broker in self.brokers.values():
            self._await_scram_users(broker)

    def _await_scram_users(self, broker: BrokerProcess) -> None:
        """The controller has answered; a broker lets them in once it has heard of the last."""
        if "SCRAM-SHA-512" not in self._broker_properties(broker)[MECHANISMS_KEY]:
            return
        admin: Any = importlib.import_module("confluent_kafka.admin")
        name, secret = list(self._users.items())[-1]
        who = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": name, "sasl.password": secret, "log_level": 0}
        where = {"bootstrap.servers": f"{HOST}:{broker.sasl_port}", "security.protocol": "SASL_PLAINTEXT"}
        try:
            admin.AdminClient(where | who).list_topics(timeout=START_TIMEOUT_S)
        except admin.KafkaException as error:
            raise EmbeddedError(f"broker {broker.node_id} refuses user {name}: {error}") from error


def _log_tail(broker: BrokerProcess) -> str:
    lines: list[str] = []
    for path in (broker.log_file, broker.folder / "stdout.log"):
        if path.exists():
            lines += [line for line in path.read_text(errors="replace").splitlines() if _is_informative(line)][-8:]
    return " | ".join(lines)[-2000:] or "it logged nothing"


def _is_informative(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith(("at ", "... "))  # no stack frames


def count_seen_brokers(port: int, timeout_s: float = 5.0) -> int:
    """The number of live brokers that the broker at this port knows of; 0 while it doesn't answer.

    Asked in 40 bytes of Metadata v8 and not by a client library: those go on to any other broker of the cluster.
    """
    # api key, version, correlation id, client id; no topics; no auto-creation, no authorized operations
    body = struct.pack(">hhih8si???", 3, 8, 1, 8, b"embedded", 0, False, False, False)
    try:
        with socket.create_connection((HOST, port), timeout_s) as sock:
            sock.sendall(struct.pack(">i", len(body)) + body)
            reader = sock.makefile("rb")
            (size,) = struct.unpack(">i", reader.read(4))
            answer = reader.read(size)
    except (OSError, struct.error):
        return 0
    (count,) = struct.unpack_from(">i", answer, 8)  # behind correlation id and throttle time
    return int(count)
