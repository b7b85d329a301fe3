# A real Apache Kafka (KRaft) on this machine, for the demo and the tests.
#
# Two halves. `fetch` brings the jars: with the Ivy that PySpark carries, from the list in ivy/kafka.xml, checked
# against ivy/kafka.sha256, kept in a per-user cache, one process at a time. `Cluster` runs brokers out of them; each
# node is broker and controller, and starts from what Kafka's own `kafka-storage format` wrote.
#
# Nothing here may outlive us: brokers are ended by `stop`, by the context's exit, by atexit, and, when this process is
# killed, by a guard process that sees its standard input end. (PR_SET_PDEATHSIG would fire when the *thread* that
# started a broker ends, and tests start brokers from threads.)
# Knows nothing of the gateway.

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import importlib
import importlib.resources
import importlib.util
import json
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

KAFKA_VERSION = "4.3.1"
MIN_JAVA = 17  # Kafka 4's brokers need it
CACHE_ENV = "PRODUCE_GATEWAY_CACHE"
MAVEN_ENV = "PRODUCE_GATEWAY_MAVEN"

HOST = "127.0.0.1"
START_TIMEOUT_S = 90.0  # 2 s when the machine is idle; a machine that also compiles and runs Spark needs its time
FETCH_TIMEOUT_S = 900.0
# Below the ports that systems hand out to outgoing connections (from 32768 on Linux, 49152 elsewhere): a broker that is
# killed and started again must find its port free, and no client may have been given it meanwhile.
FREE_PORTS = range(20_000, 31_000)

# 64 MB is the floor for one 100 MB/s producer; the rest is room for consumers, transactions and many connections.
HEAP_MB = 128
# One collector thread and only the first compiler: a broker is up in 1.6 s instead of 2.2, in 200 MB instead of 220.
JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)

# What differs from Kafka's defaults, and why. `overrides` come last and win.
BROKER_DEFAULTS = {
    "auto.create.topics.enable": "false",  # a topic that appears by itself hides a typing error
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
}


class EmbeddedError(Exception):
    """Kafka can't be had or run here; the text is one line that says what to do."""


# --- Java and the jars ------------------------------------------------------------------------------------------------


@functools.cache
def java() -> str:
    """Path of a Java that can run Kafka: JAVA_HOME's, else the first on PATH.

    Raises:
        EmbeddedError: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    wanted = f"Kafka and Spark need Java {MIN_JAVA} or newer"
    if found is None:
        where = f"JAVA_HOME={home} has none" if home else "none is on PATH"
        raise EmbeddedError(
            f"{wanted}, but {where}: install a JDK {MIN_JAVA} (Debian, Ubuntu: openjdk-17-jdk-headless)"
        )
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if version is None:
        raise EmbeddedError(f"{wanted}, but {found} did not say its version: {said.strip()[:200]!r}")
    major = int(version[2] or 0) if version[1] == "1" else int(version[1])  # Java 8 calls itself 1.8
    if major < MIN_JAVA:
        raise EmbeddedError(f"{wanted}, but {found} is Java {major}: put a newer one first on PATH or set JAVA_HOME")
    return found


def cache_dir() -> Path:
    """Where downloads are kept: $PRODUCE_GATEWAY_CACHE, else produce-gateway in the user's cache directory."""
    own = os.environ.get(CACHE_ENV)
    if own:
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "produce-gateway"


def _data(name: str) -> bytes:
    return importlib.resources.files("gateway").joinpath("ivy", name).read_bytes()


def expected_sums() -> dict[str, str]:
    """Jar name -> SHA-256 in hex, as ivy/kafka.sha256 has them."""
    lines = _data("kafka.sha256").decode().split("\n")
    return {name: sha256 for sha256, name in (line.split() for line in lines if line)}


def difference(libs: Path, sums: Mapping[str, str]) -> str | None:
    """What is wrong with the jars in `libs`, in one phrase; None if they are exactly the expected ones."""
    present = {path.name for path in libs.glob("*.jar")}
    if missing := sorted(sums.keys() - present):
        return f"{len(missing)} of {len(sums)} jars are missing, {missing[0]} among them"
    if strange := sorted(present - sums.keys()):
        return f"{strange[0]} does not belong there"
    for name, wanted in sums.items():
        with open(libs / name, "rb") as jar:
            got = hashlib.file_digest(jar, "sha256").hexdigest()
        if got != wanted:
            return f"{name} has SHA-256 {got[:16]}…, expected {wanted[:16]}…"
    return None


def fetch(progress: IO[str] | None = None) -> Path:
    """The folder with Kafka's jars; downloads them (44 MB) where the cache doesn't have them.

    Args:
        progress: where the progress line goes; standard error if not given.

    Raises:
        EmbeddedError: no Java, no Ivy, no network, or a jar is not the one that is expected.
    """
    sums = expected_sums()
    # The folder is named after the list of sums, so another version of it never meets these jars.
    name = f"kafka-{KAFKA_VERSION}-{hashlib.sha256(_data('kafka.sha256')).hexdigest()[:8]}"
    cache = cache_dir()
    libs = cache / name / "libs"
    out = progress or sys.stderr
    # What is there came by a rename: nobody has to wait for others who only look as well.
    if libs.is_dir() and difference(libs, sums) is None:
        return libs
    with _locked(cache / f"{name}.lock", out):
        if libs.is_dir():
            problem = difference(libs, sums)
            if problem is None:
                return libs
            print(f"The cached Apache Kafka is damaged ({problem}); fetching it again.", file=out)
            shutil.rmtree(libs)
        fresh = cache / name / "fetching"
        _run_ivy(fresh, len(sums), out)
        problem = difference(fresh / "libs", sums)
        if problem is not None:
            shutil.rmtree(fresh)
            raise EmbeddedError(f"Apache Kafka {KAFKA_VERSION} was downloaded, but {problem}: not used")
        (fresh / "libs").rename(libs)
        shutil.rmtree(fresh)
    return libs


@contextlib.contextmanager
def _locked(path: Path, out: IO[str]) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a")
    except OSError as error:
        raise EmbeddedError(
            f"no cache at {path.parent} ({error.strerror}): set {CACHE_ENV} to another folder"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another process is fetching Apache Kafka; waiting for it.", file=out, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file ends the lock, and so does the end of the process


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EmbeddedError("PySpark is not installed, and its Ivy fetches Kafka: pip install 'produce-gateway[audit]'")
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise EmbeddedError(f"PySpark in {Path(spec.origin).parent} has no ivy-*.jar, which fetches Kafka")
    return jars[-1]


def _settings(maven: str | None) -> str:
    root = f' root="{maven.rstrip("/")}/"' if maven else ""  # without: Ivy's own default
    return (
        '<ivysettings><settings defaultResolver="maven"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true" usepoms="false"{root}/>'
        "</resolvers></ivysettings>\n"
    )


def _run_ivy(folder: Path, total: int, out: IO[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)  # what an interrupted run left in its cache is used
    (folder / "settings.xml").write_text(_settings(os.environ.get(MAVEN_ENV)))
    (folder / "ivy.xml").write_bytes(_data("kafka.xml"))
    command = [
        *(java(), "-Xmx256m", *JVM_OPTIONS, "-jar", str(_ivy_jar())),
        *("-settings", str(folder / "settings.xml"), "-ivy", str(folder / "ivy.xml"), "-cache", str(folder / "cache")),
        *("-confs", "default", "-retrieve", str(folder / "libs" / "[artifact]-[revision](-[classifier]).[ext]")),
    ]
    started = time.monotonic()
    head = f"Fetching Apache Kafka {KAFKA_VERSION}"
    live = out.isatty()
    if not live:
        print(f"{head}: {total} jars, 44 MB …", file=out, flush=True)
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        deadline = threading.Timer(FETCH_TIMEOUT_S, ivy.kill)
        deadline.start()
        assert ivy.stdout is not None
        done = 0
        for line in ivy.stdout:
            said.append(line.strip())
            done += "[SUCCESSFUL ]" in line
            if live:
                print(
                    f"\r{head}: {done} of {total} jars, {time.monotonic() - started:.0f} s ",
                    end="",
                    file=out,
                    flush=True,
                )
        deadline.cancel()
    if live:
        print(file=out)
    if ivy.returncode != 0:
        raise EmbeddedError(_why_ivy_failed(said))
    if not live:
        print(f"{head}: done in {time.monotonic() - started:.0f} s, kept in {folder.parent}", file=out, flush=True)


def _why_ivy_failed(said: Sequence[str]) -> str:
    # Most telling first: what the network said, then what is missing, then whatever came last.
    marks = ("UnknownHost", "timed out", "refused", "SERVER ERROR", "Exception", "module not found", "FAILED")
    telling = [line for mark in marks for line in said if mark in line] or [line for line in said if line][-1:]
    cause = telling[0].strip(":# ") if telling else "it said nothing"
    return (
        f"Ivy could not fetch Apache Kafka {KAFKA_VERSION} ({cause[:200]}): "
        f"is there a network? {MAVEN_ENV}=URL names another Maven repository"
    )


def java_command(
    main_class: str,
    *args: str,
    heap_mb: int = HEAP_MB,
    log: Path | None = None,
    java_options: Sequence[str] = (),
) -> list[str]:
    """Command line that runs a class of Kafka's (a tool, or the broker), logging warnings to `log` or nowhere."""
    libs = fetch()
    config = libs.parent / "log4j2.xml"
    if not config.exists() or config.read_bytes() != _data("log4j2.xml"):
        config.write_bytes(_data("log4j2.xml"))
    return [
        *(java(), f"-Xmx{heap_mb}m", *JVM_OPTIONS, *java_options),
        *(f"-Dlog4j2.configurationFile={config}", f"-Dkafka.log.file={log or os.devnull}"),
        *("-cp", f"{libs}/*", main_class, *args),
    ]


# --- ports ------------------------------------------------------------------------------------------------------------

_handed_out: set[int] = set()
_ports_lock = threading.Lock()


def free_port(count: int = 1) -> int:
    """The first of `count` consecutive TCP ports that nobody listens on; no two calls in a process give the same."""
    with _ports_lock:
        for _ in range(1000):
            first = random.randrange(FREE_PORTS.start, FREE_PORTS.stop - count)  # noqa: S311  (no secret)
            wanted = range(first, first + count)
            if _handed_out.isdisjoint(wanted) and all(map(_is_free, wanted)):
                _handed_out.update(wanted)
                return first
    raise EmbeddedError(f"no {count} consecutive free ports between {FREE_PORTS.start} and {FREE_PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
    return True


# --- the guard --------------------------------------------------------------------------------------------------------

# Lines "+pid", "-pid" and "/folder"; at the end of input whatever is left is killed and the folders are removed.
_GUARD = """
import os, shutil, signal, sys
pids, folders = set(), []
for line in sys.stdin:
    line = line.rstrip("\\n")
    if line[0] == "+": pids.add(int(line[1:]))
    elif line[0] == "-": pids.discard(int(line[1:]))
    else: folders.append(line)
for pid in pids:
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
for folder in folders: shutil.rmtree(folder, ignore_errors=True)
"""


class _Guard:
    """Ends what we started when we end in whatever way. One per process, started when first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def tell(self, line: str) -> None:
        with self._lock:
            if self._process is None:
                # A session of its own: Ctrl-C in a terminal is for us, and we tell the others.
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _GUARD], stdin=subprocess.PIPE, text=True, start_new_session=True
                )
                atexit.register(self._end)
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _end(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


_guard = _Guard()


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process that surely ends with this one. `options` are Popen's. Pass it to `reap` in the end."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    _guard.tell(f"+{process.pid}")
    return process


def reap(process: subprocess.Popen[Any], terminate_s: float | None = None) -> int:
    """End a process from `spawn` and return its exit status; SIGKILL, after a SIGTERM and `terminate_s` where given."""
    if process.poll() is None:
        if terminate_s is not None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(terminate_s)
        process.kill()
    status = process.wait()
    _guard.tell(f"-{process.pid}")
    return status


# --- brokers ----------------------------------------------------------------------------------------------------------


def _uuid() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _format_once(libs: Path) -> bytes:
    """What `kafka-storage format` writes for the released feature levels; run once, then kept beside the jars."""
    kept = libs.parent / "bootstrap.checkpoint"
    if kept.exists():
        return kept.read_bytes()
    with tempfile.TemporaryDirectory(prefix="kafka-format-") as folder:
        config = Path(folder, "server.properties")
        data = Path(folder, "data")
        _write_properties(
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
        command = java_command("kafka.tools.StorageTool", "format", "-t", _uuid(), "-c", str(config))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EmbeddedError(f"kafka-storage format failed: {(done.stderr or done.stdout).strip()[-300:]}")
        content = (data / "bootstrap.checkpoint").read_bytes()
    temporary = kept.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(content)
    temporary.rename(kept)
    return content


def _write_properties(path: Path, properties: Mapping[str, str]) -> None:
    def escape(value: str) -> str:
        return value.replace("\\", "\\\\")

    path.write_text("".join(f"{key}={escape(value)}\n" for key, value in properties.items()))


class Broker:
    """One node of a `Cluster`: where it listens, its process, its files."""

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
        """Where its records are; the first of several."""
        return self.log_dirs[0]

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        if self.process is None:
            raise EmbeddedError(f"broker {self.node_id} is not running")
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Cluster:
    """A Kafka cluster on loopback, up when the constructor's `with` (or `open`) returns, gone after it.

    Args:
        brokers: how many nodes; their ids are 1..brokers.
        overrides: server properties for every broker, on top of `BROKER_DEFAULTS`.
        per_broker_overrides: the same by node id, on top of `overrides`.
        log_dirs: by node id, folders for the records of a broker instead of one in `base_dir`, a mounted disk for
            instance; its metadata log stays in `base_dir`, so that the node lives as long as one of them does.
        base_dir: where the nodes keep their files; a temporary folder, removed in the end, if not given.
        port: of broker 1; the others follow, then the controllers, then the SASL listeners. 0: free ones.
        users: name -> password; opens a SASL_PLAINTEXT listener per broker (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512).
        heap_mb: heap of each broker.
        java_options: for the JVM, after `JVM_OPTIONS`.
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
    ) -> None:
        self._overrides = dict(overrides or {})
        self._per_broker = {node: dict(own) for node, own in (per_broker_overrides or {}).items()}
        self._log_dirs = {node: [Path(own).absolute() for own in dirs] for node, dirs in (log_dirs or {}).items()}
        self._users = dict(users or {})
        self._heap_mb = heap_mb
        self._java_options = tuple(java_options)
        self._keep = base_dir is not None
        self._base_dir = Path(base_dir).absolute() if base_dir is not None else None
        self._size = brokers
        self._first_port = port
        self._tools = 0
        self._children: list[subprocess.Popen[Any]] = []
        self.cluster_id = _uuid()
        self.brokers: dict[int, Broker] = {}

    # -- life

    def open(self) -> Cluster:
        """Start all brokers and return when each of them sees all of them.

        Raises:
            EmbeddedError: no Java, no jars, or a broker did not come up (with the end of its log).
        """
        libs = fetch()
        checkpoint = _format_once(libs)
        folder = self._base_dir
        if folder is None:
            folder = self._base_dir = Path(tempfile.mkdtemp(prefix="produce-gateway-kafka-"))
            _guard.tell(str(folder))
        atexit.register(self.stop)
        try:
            self._lay_out(folder)
            for broker in self.brokers.values():
                self._prepare(broker, checkpoint)
                self._launch(broker)
            for broker in self.brokers.values():
                self._wait_until(broker, len(self.brokers))
            self._create_scram_users()
        except BaseException:
            self.stop()
            raise
        return self

    def __enter__(self) -> Cluster:
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
            reap(process)
        self._children.clear()
        for broker in self.brokers.values():
            if broker.process is not None:
                reap(broker.process)
                broker.process = None
        if not self._keep and self._base_dir is not None:
            shutil.rmtree(self._base_dir, ignore_errors=True)
        atexit.unregister(self.stop)

    # -- addresses

    @property
    def folder(self) -> Path:
        """Where the nodes keep their files; gone with the cluster, unless it was given."""
        assert self._base_dir is not None, "the cluster is not open"
        return self._base_dir

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{broker.port}" for broker in self.brokers.values())

    @property
    def sasl_bootstrap_servers(self) -> str:
        """Like `bootstrap_servers`, for the listeners that ask who you are."""
        if not self._users:
            raise EmbeddedError("this cluster has no SASL listener: give it users")
        return ",".join(f"{HOST}:{broker.sasl_port}" for broker in self.brokers.values())

    def broker(self, node_id: int) -> Broker:
        return self.brokers[node_id]

    # -- one broker

    def kill(self, node_id: int) -> None:
        """SIGKILL: what a crash looks like. Returns when the process is gone."""
        self._end(node_id, None)

    def stop_broker(self, node_id: int, timeout_s: float = 20.0) -> None:
        """SIGTERM: a controlled shutdown, leaders move first. Killed if that takes longer than `timeout_s`."""
        self._end(node_id, timeout_s)

    def start(self, node_id: int, overrides: Mapping[str, str] | None = None) -> None:
        """Start a broker that was stopped, on its port with its data; returns when it sees all that run.

        Args:
            overrides: server properties that change with this start, and stay.
        """
        broker = self.brokers[node_id]
        if broker.running:
            raise EmbeddedError(f"broker {node_id} is running already")
        if overrides:
            self._per_broker.setdefault(node_id, {}).update(overrides)
        _write_properties(broker.folder / "server.properties", self._properties(broker))
        self._launch(broker)
        self._wait_until(broker, sum(each.running for each in self.brokers.values()))

    # -- tools

    def java(self, main_class: str, *args: str, heap_mb: int = HEAP_MB, **options: Any) -> subprocess.Popen[str]:
        """Start one of Kafka's tools; its output is piped unless `options` (Popen's) say otherwise.

        Its warnings go to a tool-N.log in the cluster's folder. It ends with the cluster at the latest.
        """
        self._tools += 1
        log = self.folder / f"tool-{self._tools}.log"
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        process = spawn(java_command(main_class, *args, heap_mb=heap_mb, log=log), **options)
        self._children.append(process)
        return process

    def run_java(self, main_class: str, *args: str, timeout_s: float = 120.0, stdin: str | None = None) -> str:
        """Run one of Kafka's tools to its end and return what it printed on standard output.

        Raises:
            EmbeddedError: it failed or took longer; with what it printed.
        """
        process = self.java(main_class, *args, stdin=subprocess.PIPE)
        try:
            out, err = process.communicate(stdin, timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise EmbeddedError(f"{main_class} took more than {timeout_s:.0f} s: {(out + err)[-500:]}") from None
        finally:
            reap(process)
            self._children.remove(process)
        if process.returncode != 0:
            raise EmbeddedError(f"{main_class} ended with {process.returncode}: {(out + err).strip()[-1000:]}")
        return out

    # -- inside

    def _lay_out(self, folder: Path) -> None:
        lists = 3 if self._users else 2
        first = self._first_port or free_port(self._size * lists)
        for node_id in range(1, self._size + 1):
            at = first + node_id - 1
            sasl_port = at + 2 * self._size if self._users else None
            broker = Broker(node_id, folder / f"node-{node_id}", at, at + self._size, sasl_port)
            broker.log_dirs = self._log_dirs.get(node_id, broker.log_dirs)
            self.brokers[node_id] = broker

    def _prepare(self, broker: Broker, checkpoint: bytes) -> None:
        broker.folder.mkdir(parents=True, exist_ok=True)
        properties = self._properties(broker)
        _write_properties(broker.folder / "server.properties", properties)
        log_dirs = [Path(log_dir) for log_dir in properties["log.dirs"].split(",")]
        metadata_dir = Path(properties.get("metadata.log.dir", log_dirs[0]))
        for path in {*log_dirs, metadata_dir}:
            path.mkdir(parents=True, exist_ok=True)
            meta = path / "meta.properties"
            if not meta.exists():  # a base_dir of an earlier run has its own
                identity = {"cluster.id": self.cluster_id, "node.id": str(broker.node_id), "directory.id": _uuid()}
                _write_properties(meta, {"version": "1", **identity})
        (metadata_dir / "bootstrap.checkpoint").write_bytes(checkpoint)

    def _properties(self, broker: Broker) -> dict[str, str]:
        copies = str(min(3, self._size))
        majority = str(2 if self._size >= 3 else 1)
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
            **(_sasl_properties(self._users) if self._users else {}),
            **self._overrides,
            **self._per_broker.get(broker.node_id, {}),
        }

    def _launch(self, broker: Broker) -> None:
        command = java_command(
            "kafka.Kafka",
            str(broker.folder / "server.properties"),
            heap_mb=self._heap_mb,
            log=broker.log_file,
            java_options=self._java_options,
        )
        with open(broker.folder / "stdout.log", "ab") as out:
            broker.process = spawn(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)

    def _wait_until(self, broker: Broker, expected: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while seen_brokers(broker.port) < expected:
            if not broker.running or time.monotonic() > deadline:
                how = "did not come up" if broker.running else f"ended with {broker.process and broker.process.poll()}"
                raise EmbeddedError(f"broker {broker.node_id} {how}: {_tail(broker)}")
            time.sleep(0.05)

    def _end(self, node_id: int, terminate_s: float | None) -> None:
        broker = self.brokers[node_id]
        if broker.process is not None:
            reap(broker.process, terminate_s)
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


def _sasl_properties(users: Mapping[str, str]) -> dict[str, str]:
    security = "org.apache.kafka.common.security"
    accounts = " ".join(f"user_{name}={json.dumps(password)}" for name, password in users.items())
    prefix = "listener.name.sasl_plaintext"
    return {
        f"{prefix}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{prefix}.plain.sasl.jaas.config": f"{security}.plain.PlainLoginModule required {accounts};",
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{security}.scram.ScramLoginModule required;",
        f"{prefix}.scram-sha-512.sasl.jaas.config": f"{security}.scram.ScramLoginModule required;",
    }


def _tail(broker: Broker) -> str:
    lines: list[str] = []
    for path in (broker.log_file, broker.folder / "stdout.log"):
        if path.exists():
            lines += [line for line in path.read_text(errors="replace").splitlines() if _tells(line)][-8:]
    return " | ".join(lines)[-2000:] or "it logged nothing"


def _tells(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith(("at ", "... "))  # no stack frames


def seen_brokers(port: int, timeout_s: float = 5.0) -> int:
    """How many live brokers the broker at this port knows of; 0 while it doesn't answer.

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


def wait_for(what: str, condition: Callable[[], bool], timeout_s: float = 30.0, every_s: float = 0.05) -> None:
    """Return once `condition` holds.

    Raises:
        EmbeddedError: it still does not after `timeout_s`; the text names `what`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise EmbeddedError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(every_s)


def main(arguments: Sequence[str]) -> int:
    """`python -m gateway.embedded java | fetch`: what `make env` asks before and after it installs the packages."""
    try:
        sys.stdout.write(f"{java() if list(arguments) == ['java'] else fetch()}\n")
    except EmbeddedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


__all__ = [
    "BROKER_DEFAULTS",
    "Broker",
    "Cluster",
    "EmbeddedError",
    "cache_dir",
    "fetch",
    "free_port",
    "java",
    "java_command",
    "reap",
    "seen_brokers",
    "spawn",
    "wait_for",
]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
