# Builds the drivers once, runs them, and reads back from the broker itself what they left there.
#
# A driver is a program per language (go/, node/, java/, python/) with one contract. Its only argument is a JSON object,
# its last line of stdout is one; it tells what its library told the application and judges nothing:
#
#   produce  client run topics partitions count [record_bytes keys acks idempotence compression batch_records rate
#            transactional_id transaction_size abort_every client_id options timeout_s]
#            -> sent acknowledged errors{name: n} failed[i] unresolved[i] aborted[i] timeline[acknowledged per second]
#               first_error throttle{count max_ms} (null: the library doesn't tell) events{name: n} elapsed_s
#               transactions{committed aborted failed} connections_closed (Java only, before it closes them itself)
#   consume  client run topics group count [isolation settle_s client_id options timeout_s]
#            -> partitions{"topic/0": [i, …]} strangers first_s events elapsed_s
#   admin    client topics partitions replication
#            -> listed partitions retention_ms cluster_id controller brokers deleted
#   share    client run topics group count [release_every client_id options timeout_s]; Java only
#            -> deliveries{delivery count: [i, …]} strangers events elapsed_s metrics times_ms[of each delivery]
#
# Record i is `client:run:i`, padded with `|xxx` to record_bytes, and goes to partition i modulo their number (with
# keys: where the library's partitioner puts it). `options` are the library's own settings by the library's own names.
# Judgement is here: `read_back` asks the broker directly, `judge` compares. Knows nothing of the gateway.

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from gateway import embedded
from gateway.embedded import jars

HERE = Path(__file__).parent
BUILD_TIMEOUT_S = 600.0  # modules and packages are downloaded the first time
GRACE_S = 20.0  # a driver ends itself 15 s after its own deadline; after this it is killed

Result = dict[str, Any]


class Unavailable(Exception):
    """A driver can't be built or run here; the text says what is missing."""


class DriverFailed(Exception):
    """A driver ended without a result, or with an error before its work began."""


# --- building ---------------------------------------------------------------------------------------------------------


def _tool(name: str, version_argument: str, why: str) -> str:
    """What the tool says of its version; a driver built by another one is not used."""
    path = shutil.which(name)
    if path is None:
        raise Unavailable(f"{name} is not on PATH: {why}")
    said = subprocess.run([path, version_argument], capture_output=True, text=True, check=False, timeout=240)
    return said.stdout + said.stderr


def _run_build(command: Sequence[str], folder: Path, **environment: str) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command[:3])} failed in {folder}: {(done.stdout + done.stderr).strip()[-1500:]}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _built(kind: str, versions: str, make: Callable[[Path], None]) -> Path:
    """The folder with the built driver: made once for these sources and these tools, by one process at a time."""
    sources = sorted(path for path in (HERE / kind).iterdir() if path.is_file())
    digest = hashlib.sha256(versions.encode())
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    folder = embedded.cache_dir() / "clients" / f"{kind}-{digest.hexdigest()[:16]}"
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            fresh = folder.with_name(f"{folder.name}.building")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)
            for path in sources:
                shutil.copy(path, fresh)
            make(fresh)
            fresh.rename(folder)
    return folder


@functools.cache
def build_go() -> Path:
    versions = _tool("go", "version", "franz-go, sarama and kafka-go are driven by a Go program (Go 1.21 or newer)")
    # Binaries carry no path of this machine and no state of a repository: the same sources give the same program.
    command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", "driver", "."]
    return _built("go", versions, lambda folder: _run_build(command, folder)) / "driver"


@functools.cache
def build_node() -> Path:
    versions = _tool("node", "--version", "KafkaJS is driven by a Node program (Node 18 or newer)")
    _tool("npm", "--version", "KafkaJS is fetched with it")
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    return _built("node", versions, lambda folder: _run_build(command, folder)) / "driver.js"


@functools.cache
def build_java() -> Path:
    versions = _tool("javac", "-version", "the Java clients are driven by a small Java program, which needs a JDK")
    libs = embedded.fetch_kafka()
    # Release 11 is the oldest that every kafka-clients in CLIENTS can run with.
    command = ["javac", "--release", "11", "-nowarn", "-cp", f"{libs}/*", "-d", ".", "Driver.java", "Shares.java"]
    return _built("java", versions + libs.parent.name, lambda folder: _run_build(command, folder))


@functools.cache
def other_kafka_clients(version: str) -> Path:
    """The jar of another kafka-clients; the rest of the class path is the embedded Kafka's."""
    return _from_maven("kafka-clients", version, with_dependencies=False) / f"kafka-clients-{version}.jar"


@functools.cache
def other_kafka(version: str) -> Path:
    """The jars of another broker, for `embedded.EmbeddedCluster`; its own tools are not among them."""
    return _from_maven("kafka_2.13", version, with_dependencies=True)


def _log_as_we_do(libs: Path) -> None:
    """Maven's brokers come without a logger, or with half of one: they get the embedded Kafka's."""
    ours = ("slf4j-api-*.jar", "log4j-*.jar")
    for theirs in [path for pattern in ours for path in libs.glob(pattern)]:
        theirs.unlink()
    for path in [path for pattern in ours for path in embedded.fetch_kafka().glob(pattern)]:
        shutil.copy(path, libs)


def _ivy_command(settings: Path) -> list[str]:
    """PySpark's Ivy, which follows dependencies; it takes another repository as `embedded.fetch_kafka` does."""
    maven = os.environ.get(embedded.MAVEN_ENV)
    root = f' root="{maven.rstrip("/")}/"' if maven else ""
    settings.write_text(
        '<ivysettings><settings defaultResolver="maven"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true"{root}/></resolvers></ivysettings>\n'
    )
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unavailable("other versions of Kafka are fetched with the Ivy of PySpark, which is not installed")
    (ivy,) = (Path(spec.origin).parent / "jars").glob("ivy-*.jar")
    return [embedded.find_java_path(), "-jar", str(ivy), "-settings", settings.name, "-cache", "ivy"]


def _from_maven(module: str, version: str, *, with_dependencies: bool) -> Path:
    folder = embedded.cache_dir() / "clients" / f"{module}-{version}"
    libs = folder / "libs"
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not (libs / f"{module}-{version}.jar").exists():
            folder.mkdir(parents=True, exist_ok=True)
            command = _ivy_command(folder / "settings.xml")
            command += ["-dependency", "org.apache.kafka", module, version, "-confs", "default"]
            if not with_dependencies:
                command.append("-notransitive")
            _run_build([*command, "-retrieve", "fetched/[artifact]-[revision](-[classifier]).[ext]"], folder)
            if (folder / "fetched").is_dir():
                if with_dependencies:
                    _log_as_we_do(folder / "fetched")
                (folder / "fetched").rename(libs)
    if not (libs / f"{module}-{version}.jar").exists():
        raise Unavailable(f"Ivy brought no {module} {version}")
    return libs


def _java_command(version: str | None) -> list[str]:
    classes = build_java()
    libs = embedded.fetch_kafka()
    # The archive serves only a class path that begins as its own.
    path = [str(other_kafka_clients(version)), f"{libs}/*"] if version else [f"{libs}/*"]
    archive = [] if version else jars.class_data_options(libs)
    config = libs.parent / "log4j2.xml"
    log = [f"-Dlog4j2.configurationFile={config}", f"-Dkafka.log.file={os.devnull}"]
    options = ["-Xmx192m", *embedded.JVM_OPTIONS, *archive, *log]
    return [embedded.find_java_path(), *options, "-cp", os.pathsep.join([*path, str(classes)]), "Driver"]


def _python_command(module: str) -> list[str]:
    return [sys.executable, "-m", f"tests.clients.python.drive_{module}"]


# --- the clients ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Client:
    """A client library and how to start its driver. `command` may take minutes the first time: it builds."""

    name: str
    command: Callable[[], list[str]]
    codecs: tuple[str, ...]
    full_only: bool = False  # a further version of a library that is there already


_ALL_CODECS = ("gzip", "snappy", "lz4", "zstd")
# The newest release. The embedded one is older: it has Kafka's tools as well, and Maven Central lacks those of 4.4.0.
NEWEST = "4.4.0"
# Beside the embedded Kafka's own: from the oldest that Kafka 4 brokers serve (KIP-896) on.
OTHER_JAVA = ("2.1.1", "2.4.1", "2.8.2", "3.3.2", "3.9.1", "4.0.1", NEWEST)
CLIENTS = {
    client.name: client
    for client in (
        Client("java", lambda: _java_command(None), _ALL_CODECS),
        *(
            Client(f"java-{version}", lambda version=version: _java_command(version), _ALL_CODECS, full_only=True)  # type: ignore[misc]
            for version in OTHER_JAVA
        ),
        Client("librdkafka", lambda: _python_command("librdkafka"), _ALL_CODECS),
        Client("franz-go", lambda: [str(build_go())], _ALL_CODECS),
        Client("sarama", lambda: [str(build_go())], _ALL_CODECS),
        Client("kafka-python", lambda: _python_command("kafka_python"), ("gzip",)),  # the others need extra packages
        Client("aiokafka", lambda: _python_command("aiokafka"), ("gzip",)),
        Client("kafkajs", lambda: ["node", str(build_node())], ("gzip",)),  # likewise
    )
}
# Those and others that are driven as producers only.
PRODUCERS = CLIENTS | {
    "kafka-go": Client("kafka-go", lambda: [str(build_go())], ()),
    "platformatic": Client("platformatic", lambda: ["node", str(build_node())], ()),
}


class Driver:
    """A running driver. `result` waits for its end, never beyond its deadline, and the process is gone after it."""

    def __init__(
        self,
        client: str,
        mode: str,
        bootstrap: str,
        *,
        timeout_s: float = 60.0,
        prefix: Sequence[str] = (),
        **config: Any,
    ) -> None:
        """`prefix`: of its command."""
        self.client = client
        self.mode = mode
        command = PRODUCERS[client].command()
        given = {"client": client, "mode": mode, "bootstrap": bootstrap, "timeout_s": timeout_s, **config}
        self._deadline = time.monotonic() + timeout_s + GRACE_S
        self._process = embedded.spawn_process(
            [*prefix, *command, json.dumps(given)],
            cwd=HERE.parents[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> Result:
        """What the driver found.

        Raises:
            DriverFailed: it had to be killed, ended without a result, or could not begin.
        """
        try:
            out, err = self._process.communicate(timeout=max(0.1, self._deadline - time.monotonic()))
            killed = ""
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, err = self._process.communicate()
            killed = ", killed at its deadline"
        finally:
            embedded.reap_process(self._process)
        return self._read(out, err, killed)

    def stop(self) -> None:
        """End it whatever it is doing; its result is of no interest."""
        self._process.kill()
        self._process.communicate()
        embedded.reap_process(self._process)

    def _read(self, out: str, err: str, killed: str) -> Result:
        last = out.strip().rsplit("\n", 1)[-1]
        try:
            result = json.loads(last)
        except ValueError:
            result = None
        who = f"{self.client} {self.mode}{killed} (exit status {self._process.returncode})"
        if not isinstance(result, dict):
            raise DriverFailed(f"{who}: no result; stderr ends with: {err[-2000:]}")
        if "error" in result:
            raise DriverFailed(f"{who}: {result['error']}: {result.get('first_error')}; stderr: {err[-2000:]}")
        return result


def run(client: str, mode: str, bootstrap: str, **config: Any) -> Result:
    """Run a driver to its end. `config` as in this module's head."""
    return Driver(client, mode, bootstrap, **config).result()


# --- what is in the log -----------------------------------------------------------------------------------------------


@dataclass
class Log:
    """What a topic holds, in the order of its offsets: record numbers by "topic/partition"."""

    partitions: dict[str, list[int]] = field(default_factory=dict)
    damaged: int = 0  # records of this run that are not byte for byte what was sent
    strangers: int = 0  # records of other runs

    def numbers(self) -> list[int]:
        return [number for numbers in self.partitions.values() for number in numbers]


def read_back(
    bootstrap: str,
    topics: Sequence[str],
    client: str,
    run: str,
    *,
    record_bytes: int = 0,
    isolation: str = "read_committed",
    timeout_s: float = 60.0,
) -> Log:
    """Read whole topics directly from the broker, from their start to the end that they have now."""
    log = Log()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "read-back",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        metadata = consumer.list_topics(timeout=timeout_s).topics
        places = [TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in metadata[t].partitions]
        open_places = {(place.topic, place.partition) for place in places}
        if isolation == "read_committed":
            _await_markers(bootstrap, consumer, places)
        consumer.assign(places)
        deadline = time.monotonic() + timeout_s
        prefix = f"{client}:{run}:".encode()
        while open_places:
            if time.monotonic() > deadline:
                raise DriverFailed(f"reading {topics} back took more than {timeout_s:.0f} s: {open_places} are left")
            for message in consumer.consume(1000, 0.1):
                where = (str(message.topic()), int(message.partition() or 0))
                error = message.error()
                if error is None:
                    _note(log, where, message.value() or b"", prefix, record_bytes)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_places.discard(where)  # other errors: librdkafka goes on trying, and the deadline is ours
    finally:
        consumer.close()
    return log


def _await_markers(bootstrap: str, stable: Consumer, places: Sequence[TopicPartition]) -> None:
    """Return when readers of what is committed may have all of it: a commit is answered before its markers are written.

    It waits 30 s for markers at most: a client may have left a transaction open.
    """
    everything = {"group.id": "end-offsets", "isolation.level": "read_uncommitted", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": bootstrap, **everything})
    deadline = time.monotonic() + 30
    try:
        for place in places:
            end = _end_offset(consumer, place)
            while _end_offset(stable, place) < end and time.monotonic() < deadline:
                time.sleep(0.05)
    finally:
        consumer.close()


def _note(log: Log, where: tuple[str, int], value: bytes, prefix: bytes, record_bytes: int) -> None:
    text = value.partition(b"|")[0]
    number = text.removeprefix(prefix)
    if not text.startswith(prefix) or not number.isdigit():
        log.strangers += 1
        return
    whole = (text + b"|").ljust(record_bytes, b"x") if record_bytes > len(text) else text
    log.damaged += whole != value
    log.partitions.setdefault(f"{where[0]}/{where[1]}", []).append(int(number))


@dataclass(frozen=True)
class Verdict:
    """What became of the records of a run, told by the log alone."""

    acknowledged: int
    lost: tuple[int, ...]  # acknowledged and not there
    duplicates: int  # times that a record is there once more than it should
    reordered: int  # records that stand behind a later one of their partition, repetitions not counted
    unexpected: tuple[int, ...]  # of aborted transactions, and yet there
    written_though_failed: int  # the application was told of an error, or of nothing: both are allowed
    damaged: int

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicates or self.reordered or self.unexpected or self.damaged)


def judge(produced: Result, log: Log) -> Verdict:
    """Compare what the application was told with what is there."""
    aborted = set(produced["aborted"])
    untold = {*produced["failed"], *produced["unresolved"]}
    acknowledged = set(range(produced["sent"])) - aborted - untold
    there = Counter(log.numbers())
    return Verdict(
        acknowledged=len(acknowledged),
        lost=tuple(sorted(acknowledged - there.keys())),
        duplicates=there.total() - len(there),
        reordered=sum(map(reordered, log.partitions.values())),
        unexpected=tuple(sorted(aborted & there.keys())),
        written_though_failed=len(untold & there.keys()),
        damaged=log.damaged,
    )


def reordered(numbers: Sequence[int]) -> int:
    """How many first occurrences stand behind a larger number."""
    count, largest, seen = 0, -1, set()
    for number in numbers:
        if number not in seen:
            seen.add(number)
            count += number < largest
            largest = max(largest, number)
    return count


def judge_reading(consumed: Result, log: Log) -> list[str]:
    """How what a consumer saw differs from what the broker holds; an empty list where it doesn't."""
    findings = []
    for place in sorted(consumed["partitions"].keys() | log.partitions.keys()):
        seen, there = consumed["partitions"].get(place, []), log.partitions.get(place, [])
        if seen != there:
            missing, extra = Counter(there) - Counter(seen), Counter(seen) - Counter(there)
            differ = f"missing {sorted(missing)[:10]}, too many {sorted(extra)[:10]}"
            what = differ if missing or extra else "in another order"
            findings.append(f"{place}: {len(seen)} records seen, {len(there)} there: {what}")
    return findings


def remarks(consumed: Result) -> Result:
    """What a consumer's driver told beside the records: often why some of them are missing."""
    return {name: value for name, value in consumed.items() if name != "partitions"}


# --- directly at the cluster ------------------------------------------------------------------------------------------


def create_topics(
    bootstrap: str,
    names: Sequence[str],
    partitions: int,
    replication: int = 1,
    *,
    broker: int | None = None,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create topics and return when each broker's metadata has them with all leaders, and these know that they lead.

    `broker`: where all partitions shall be; None leaves that to Kafka.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    if broker is None:
        new = [NewTopic(name, partitions, replication, config=dict(config or {})) for name in names]
    else:
        places = [[broker]] * partitions
        new = [NewTopic(name, partitions, replica_assignment=places, config=dict(config or {})) for name in names]
    for future in admin.create_topics(new).values():
        future.result(120)

    for server in bootstrap.split(","):  # whichever of them a client asks first
        asked = AdminClient({"bootstrap.servers": server, "log_level": 0})

        def led(asked: AdminClient = asked) -> bool:
            topics = asked.list_topics(timeout=10).topics
            return all(
                name in topics
                and len(topics[name].partitions) == partitions
                and all(place.leader >= 0 for place in topics[name].partitions.values())
                for name in names
            )

        embedded.wait_for(f"topics {', '.join(names)} at {server}", led)
    # A leader is named before it takes records (it answers error 6 for a moment); it tells offsets only then as well.
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "end-offsets", "log_level": 0})
    try:
        for name in names:
            for partition in range(partitions):
                _end_offset(consumer, TopicPartition(name, partition))
    finally:
        consumer.close()


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> int:
    """Sum of a group's committed offsets, asked directly."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        return sum(max(0, place.offset) for place in consumer.committed(places, timeout=30))
    finally:
        consumer.close()


def end_offsets(bootstrap: str, topic: str, partitions: int) -> int:
    """Sum of a topic's end offsets, asked directly; a leader that has just become one is asked again."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "end-offsets", "log_level": 0})
    try:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        return sum(_end_offset(consumer, place) for place in places)
    finally:
        consumer.close()


def await_end(bootstrap: str, topic: str, partitions: int, count: int, timeout_s: float = 60.0) -> None:
    """Return when `count` records are there, at the latest after `timeout_s`: with acks=0 nobody is told when."""
    deadline = time.monotonic() + timeout_s
    while end_offsets(bootstrap, topic, partitions) < count and time.monotonic() < deadline:
        time.sleep(0.1)


def _end_offset(consumer: Consumer, place: TopicPartition) -> int:
    deadline = time.monotonic() + 30
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, timeout=10)[1])
        except KafkaException:  # its `retriable` is told for transactions only
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
