# `produce-gateway volume-agent`: runs beside a broker, measures the volumes under its log dirs and publishes a snapshot
# of them to the compacted volume topic, when it starts and periodically. 035's data source, as a process of its own.
#
# Free space is what Kafka's own getUsableSpace says: f_bavail, without the blocks reserved for root. Log dirs on one
# device are one volume. A log dir that can't be read is named in the snapshot: the broker may be writing to it,
# behind a mount that is missing here or a path that is wrong, so gateways take the broker's state for unknown. If none
# can be, nothing is published, so that gateways see the last snapshot age. For the same reason an agent that ends
# doesn't take its snapshot back: the broker goes on.
#
# The main thread only waits for a signal. All else is one daemon thread, since neither a file system that hangs nor a
# cluster that doesn't answer may keep the process from ending. One snapshot is under way at a time: an older one is
# worth nothing. Connections are librdkafka's; `connected` is what its statistics say about them.
# Knows no policy: limits are passed on, what they mean is decided where snapshots are read.

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, NoReturn, Self, get_args

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, field_validator, model_validator

from gateway import yaml_text
from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.cli_support.suggest import name_hint
from gateway.config import property_text
from gateway.kafka import topic_names
from gateway.kafka.describe import NO_TOPIC_ERRORS
from gateway.kafka.internal_topic import TopicError
from gateway.log.logs import DefaultLogSettings, LogFormat, configure_logging
from gateway.storage.snapshot import encode_snapshot
from gateway.storage.snapshots import volume_topic
from policies.storage import LimitType, Volume, VolumeLimit, VolumeSnapshot
from policies.units import parse_duration, parse_size

log = logging.getLogger("gateway.volume-agent")

PREFIX: Final = "produce_gateway_volume_agent"
MOUNTS: Final = Path("/proc/self/mountinfo")
# what is in each log dir since a broker formatted it; a mount point has none
FORMATTED_MARKER: Final = "meta.properties"
RETRY_S: Final = 5.0  # after a snapshot that was not published; sooner where the interval is shorter
POLL_S: Final = 0.2
PUBLISH_TIMEOUT_S: Final = (1.0, 30.0)  # the interval, within these
STATISTICS_MS: Final = 1000
STOP_S: Final = 5.0  # for a snapshot that is under way when the signal comes
KAFKA_PREFIX: Final = "kafka."

# name -> help; counters get `_total`.
COUNTERS: Final = {
    "snapshots_published": "Snapshots that the volume topic has acknowledged.",
    "publication_errors": "Snapshots that it has not.",
    "snapshots_skipped": "Snapshots that were due while no log dir could be read.",
}
VOLUME_GAUGES: Final = {
    "capacity_bytes": "Size of the volume.",
    "available_bytes": "Bytes that Kafka may still write to it.",
    "consumed_bytes": "Size less the available bytes.",
    "soft_level_free_bytes": "Free bytes at which the published soft limit is reached; no series without such a limit.",
    "hard_level_free_bytes": "The same for the hard limit.",
}


# --- configuration ----------------------------------------------------------------------------------------------------


class SettingsError(Exception):
    """The agent can't be started like this: one line."""


def parse_limit(value: object) -> VolumeLimit:
    """A limit from TYPE:LEVEL or {type: TYPE, level: LEVEL}: a size, or whole percent for MinFreePercentage.

    Raises:
        ValueError: it is none, or one that says nothing.
    """
    if isinstance(value, dict) and set(value) == {"type", "level"}:
        kind, level = value["type"], value["level"]
    elif isinstance(value, str) and ":" in value:
        kind, _, level = value.partition(":")
    else:
        raise ValueError(f"{value!r} is not a valid limit; for example: MinFreeBytes:10GB or MinFreePercentage:20")
    if kind not in get_args(LimitType):
        raise ValueError(f"{kind!r} is not a valid type of limit; there are {', '.join(get_args(LimitType))}")
    if kind == "MinFreePercentage":
        percent = re.fullmatch(r"([0-9]{1,3})\s*%?", str(level).strip())
        if percent is None or not 1 <= int(percent[1]) <= 100:
            raise ValueError(f"{level!r}: MinFreePercentage is a whole percentage from 1 to 100 here, such as 20")
        return VolumeLimit(kind, int(percent[1]) / 100)
    size = parse_size(level)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 2**63:
        raise ValueError(f"{level!r}: a size above 0 is needed, such as 10GB; for no limit leave it out")
    return VolumeLimit(kind, float(size))


def _own_limit(value: object) -> VolumeLimit | None:
    return None if value in ("none", None) else parse_limit(value)


def _parse_interval(value: object) -> float:
    seconds = parse_duration(value)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 1 <= seconds <= 3600:
        raise ValueError(f"{value!r}: between 1s and 1h is needed, such as PT30S or 30s")
    return float(seconds)


class _AgentSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class OwnLimits(_AgentSection):
    """Of one log dir's volume, in place of the agent's; None: not the agent's either, only the gateway's."""

    soft: Annotated[VolumeLimit | None, PlainValidator(_own_limit)] = None
    hard: Annotated[VolumeLimit | None, PlainValidator(_own_limit)] = None


class AgentSettings(_AgentSection):
    broker_id: int = Field(ge=0, le=2**31 - 1)
    log_dirs: tuple[str, ...]
    bootstrap_servers: str = "127.0.0.1:9092"
    topic: str = Field(default=topic_names.VOLUMES, pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    replication: int | None = Field(default=None, ge=1, le=100)
    interval: Annotated[float, PlainValidator(_parse_interval)] = 30.0
    soft: Annotated[VolumeLimit | None, PlainValidator(_own_limit)] = None
    hard: Annotated[VolumeLimit | None, PlainValidator(_own_limit)] = None
    volumes: dict[str, OwnLimits] = {}
    metrics: str = "127.0.0.1:9191"
    log_format: LogFormat = "console"
    kafka: dict[str, str] = {}

    @field_validator("log_dirs", mode="before")
    @classmethod
    def _split_log_dirs(cls, value: object) -> object:
        dirs = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        if not isinstance(dirs, list) or not dirs or not all(isinstance(path, str) and path for path in dirs):
            raise ValueError("paths are needed, with commas between them, as in the broker's log.dirs")
        return tuple(dict.fromkeys(dirs))

    @field_validator("metrics")
    @classmethod
    def _check_metrics(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value != "off" and not (host and port.isdecimal() and 1 <= int(port) <= 65535):
            raise ValueError(f"{value!r} is neither HOST:PORT nor off")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        _check_order("", self.soft, self.hard)
        for path in self.volumes:
            if path not in self.log_dirs:
                raise ValueError(f"volumes: {path} is not one of the log dirs {', '.join(self.log_dirs)}")
            _check_order(f"volumes: {path}: ", *self.find_limits([path]))
        return self

    def find_limits(self, log_dirs: Sequence[str]) -> tuple[VolumeLimit | None, VolumeLimit | None]:
        """Soft and hard limit of the volume under these log dirs; the first that has its own decides."""
        chosen: dict[str, VolumeLimit | None] = {"soft": self.soft, "hard": self.hard}
        for path in reversed(log_dirs):
            own = self.volumes.get(path)
            if own is not None:
                chosen |= {name: getattr(own, name) for name in own.model_fields_set}
        return chosen["soft"], chosen["hard"]

    def client_properties(self) -> dict[str, Any]:
        """librdkafka properties that reach the cluster."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": f"produce-gateway-volume-agent-{self.broker_id}",
            "log_level": 2,  # what matters is reported by the calls; librdkafka repeats itself on stderr
            "reconnect.backoff.max.ms": 2000,
            **self.kafka,
        }


def _check_order(where: str, soft: VolumeLimit | None, hard: VolumeLimit | None) -> None:
    if soft is None or hard is None or soft.type != hard.type:
        return  # of different types: it depends on the volume's size, and the hard one wins
    late = soft.level > hard.level if soft.type == "ConsumedBytes" else soft.level < hard.level
    if late:
        raise ValueError(f"{where}the soft limit ({soft}) would be reached after the hard one ({hard})")


def read_settings(argv: Sequence[str]) -> AgentSettings:
    """Flags, over the file that --config names.

    Raises:
        SettingsError: the fault, and its place.
    """
    args = vars(_make_parser().parse_args(argv))
    path: Path | None = args.pop("config")
    data = _read_file(path) if path is not None else {}
    given: dict[str, Any] = {name: value for name, value in args.items() if value is not None}
    for name in ("kafka", "volumes"):
        data[name] = data.get(name) or {}
        if not isinstance(data[name], dict):
            raise SettingsError(f"{path}: {name}: keys with values are needed here")
    for text in given.pop("kafka", []):
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SettingsError(f"--kafka {text}: write KEY=VALUE, for example security.protocol=SSL")
        data["kafka"][key.removeprefix(KAFKA_PREFIX)] = value
    for name in ("soft", "hard"):
        for text in given.pop(f"volume_{name}", []):
            log_dir, equals, value = text.rpartition("=")
            own = data["volumes"].get(log_dir) or {}
            if not equals or not log_dir or not isinstance(own, dict):
                raise SettingsError(f"--volume-{name} {text}: write LOG_DIR=TYPE:LEVEL")
            data["volumes"][log_dir] = {**own, name: value}
    try:
        data["kafka"] = {str(key): _client_property(str(key), value) for key, value in data["kafka"].items()}
        return AgentSettings.model_validate({**data, **given})
    except ValidationError as error:
        raise SettingsError(_explain_error(error, path, set(given))) from None
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = yaml_text.load_yaml(yaml_text.read_text(path), str(path))
    except yaml_text.YamlError as error:
        raise SettingsError(str(error)) from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise SettingsError(f"{path}: keys such as broker_id: and log_dirs: are needed at the top level")
    found: dict[str, Any] = {}
    kafka = {}
    for key, value in data.items():
        if key.startswith(KAFKA_PREFIX):
            kafka[key.removeprefix(KAFKA_PREFIX)] = value
        else:
            found[key.replace("-", "_")] = value
    if kafka and isinstance(found.get("kafka") or {}, dict):
        found["kafka"] = {**(found.get("kafka") or {}), **kafka}
    return found


def _client_property(key: str, value: object) -> str:
    text = property_text(f"kafka.{key}", value)
    if not isinstance(text, str):
        raise ValueError(f"kafka.{key}: a text or a number is needed, or {{file: PATH}}")
    return text


def _explain_error(error: ValidationError, path: Path | None, flags: set[str]) -> str:
    # A mistyped name before what is missing for it.
    first = min(error.errors(include_url=False, include_context=False), key=lambda f: f["type"] != "extra_forbidden")
    names = [str(part) for part in first["loc"]]
    text = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if first["type"] == "missing" and names[0] in ("broker_id", "log_dirs"):
        return f"--{names[0].replace('_', '-')} is required (or {names[0]} in --config)"
    if first["type"] == "extra_forbidden":
        known = OwnLimits.model_fields if len(names) > 1 else AgentSettings.model_fields
        return f"{path}: {'.'.join(names)}: unknown key; {name_hint(names[-1], known)}"
    if not names:
        return text
    where = f"--{names[0].replace('_', '-')}" if names[0] in flags or path is None else f"{path}: {'.'.join(names)}"
    return f"{where}: {text}" if first["type"] == "value_error" else f"{where}: {text}, not {first['input']!r}"


class _AgentParser(CommandParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message}{self.suggest_word(message)} (see {self.prog} --help)\n")


def _make_parser() -> argparse.ArgumentParser:
    parser = _AgentParser(
        prog="produce-gateway volume-agent",
        description="Publish the usage of a broker's volumes, for gateways with `storage: {source: snapshots}`. Runs"
        " beside the broker.",
        epilog="TYPE is ConsumedBytes, MinFreeBytes (LEVEL: a size such as 10GB) or MinFreePercentage (LEVEL: percent"
        " from 1 to 100; the gateway's own file has 0..1 there). Without a limit here the gateway's own applies.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--broker-id", metavar="N", help="node.id of the broker")
    add("--log-dirs", metavar="PATH,…", help="the broker's log.dirs")
    add("--bootstrap-servers", metavar="HOST:PORT,…", help="the cluster (127.0.0.1:9092)")
    add("--kafka", metavar="KEY=VALUE", action="append", help="property of librdkafka, such as security.protocol=SSL")
    add("--topic", help=f"the volume topic ({topic_names.VOLUMES}); created, compacted, where it doesn't exist")
    add("--replication", metavar="N", help="its copies when it is created (3, or as many as there are brokers)")
    add("--interval", metavar="DURATION", help="between snapshots, PT30S or 30s (PT30S)")
    add("--soft", metavar="TYPE:LEVEL", help="where producers should be throttled")
    add("--hard", metavar="TYPE:LEVEL", help="where they should be paused")
    for name in ("soft", "hard"):
        add(
            f"--volume-{name}",
            metavar="LOG_DIR=TYPE:LEVEL",
            action="append",
            help=f"another --{name} for that log dir's volume; none: only the gateway's",
        )
    add("--metrics", metavar="HOST:PORT", help="where /metrics is, or off (127.0.0.1:9191)")
    add("--log-format", metavar="FORMAT", help="console or json (console)")
    add("--config", metavar="FILE", type=Path, help="YAML file: these names as keys, kafka.KEY for --kafka")
    add_examples(
        parser,
        "--broker-id 1 --log-dirs /var/lib/kafka --bootstrap-servers kafka:9092",
        "--config agent.yaml --interval 10s --hard MinFreeBytes:10GB",
    )
    return parser


# --- volumes ----------------------------------------------------------------------------------------------------------


class MountPoint(NamedTuple):
    point: str
    source: str


class MeasuredVolumes(NamedTuple):
    """`failed`: log dir -> why it could not be read."""

    volumes: tuple[Volume, ...]
    failed: dict[str, str]


def parse_mounts(text: str) -> list[MountPoint]:
    """The mounts of a mountinfo (proc_pid_mountinfo(5)), in its order: a later mount hides earlier ones."""
    found = []
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        if len(fields.split(" ")) >= 5 and len(rest.split(" ")) >= 2:
            found.append(MountPoint(_unescape_octal(fields.split(" ")[4]), _unescape_octal(rest.split(" ")[1])))
    return found


def _unescape_octal(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def name_volume(path: str, mounts: Sequence[MountPoint]) -> str:
    """The source that is mounted there, /dev/sda1 or nas:/kafka; together with the mount point where it is a mere kind
    (tmpfs, overlay), of which there may be many. Without a list of mounts (macOS): the mount point."""
    path = os.path.realpath(path)
    under = [mount for mount in mounts if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")]
    if not under:
        while not os.path.ismount(path):
            path = os.path.dirname(path)
        return path
    longest = max(len(mount.point) for mount in under)
    mount = [mount for mount in under if len(mount.point) == longest][-1]
    return mount.source if "/" in mount.source else f"{mount.source}:{mount.point}"


def measure_volumes(settings: AgentSettings) -> MeasuredVolumes:
    """Every volume under the log dirs once; of several views of a device (quotas) the one with the least available."""
    try:
        mounts = parse_mounts(MOUNTS.read_text("utf-8", "replace"))
    except OSError:
        mounts = []
    failed: dict[str, str] = {}
    devices: dict[int, str] = {}
    sizes: dict[str, tuple[int, int]] = {}  # by volume name: available, total
    under: dict[str, list[str]] = {}
    for log_dir in settings.log_dirs:
        directory = os.path.join(log_dir, "")  # a file of that name is an error
        try:
            device, status = os.stat(directory).st_dev, os.statvfs(directory)
            with suppress(PermissionError):  # the broker's own user may be the only one to look inside
                os.stat(directory + FORMATTED_MARKER)
        except OSError as error:
            failed[log_dir] = error.strerror or str(error)
            if isinstance(error, FileNotFoundError) and os.path.isdir(directory):
                failed[log_dir] = (
                    f"it has no {FORMATTED_MARKER}: it is not a broker's log dir, or its volume is not mounted"
                )
            continue
        unit = status.f_frsize or status.f_bsize
        total = status.f_blocks * unit
        if total <= 0:
            failed[log_dir] = "its file system tells no size"
            continue
        name = devices.setdefault(device, name_volume(log_dir, mounts))
        size = (min(status.f_bavail * unit, total), total)
        sizes[name] = min(size, sizes.get(name, size))
        under.setdefault(name, []).append(log_dir)
    volumes = []
    for name, (available, total) in sizes.items():
        soft, hard = settings.find_limits(under[name])
        volumes.append(Volume(settings.broker_id, name, total, available, soft, hard))
    return MeasuredVolumes(tuple(volumes), failed)


# --- metrics ----------------------------------------------------------------------------------------------------------


class AgentMetrics:
    """The metrics of /metrics; all there from the start, at 0."""

    def __init__(self, log_dirs: Sequence[str] = ()) -> None:
        self.registry = CollectorRegistry()
        made = {name: Counter(f"{PREFIX}_{name}", text, registry=self.registry) for name, text in COUNTERS.items()}
        self.published = made["snapshots_published"]
        self.errors = made["publication_errors"]
        self.skipped = made["snapshots_skipped"]
        self.log_dir_errors = Counter(
            f"{PREFIX}_log_dir_errors",
            "How often a log dir could not be read. Gateways take the broker's state for unknown meanwhile.",
            ["log_dir"],
            registry=self.registry,
        )
        self.connected = self._make_gauge("connected", "1 while there is a connection to a broker, else 0.")
        self.last_snapshot = self._make_gauge(
            "last_snapshot_timestamp_seconds", "When the last published snapshot was taken; 0 before the first."
        )
        self.volumes = _VolumeSeries()
        self.registry.register(self.volumes)
        for log_dir in log_dirs:
            self.log_dir_errors.labels(log_dir)

    def _make_gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, registry=self.registry)


class _VolumeSeries(Collector):
    """The volumes of the last measurement; one that is left out has no series."""

    def __init__(self) -> None:
        self.shown: tuple[Volume, ...] = ()

    def collect(self) -> Iterator[Metric]:
        families = {
            name: GaugeMetricFamily(f"{PREFIX}_volume_{name}", text, labels=["volume"])
            for name, text in VOLUME_GAUGES.items()
        }
        for volume in self.shown:
            values: dict[str, float] = {
                "capacity_bytes": volume.total,
                "available_bytes": volume.available,
                "consumed_bytes": volume.total - volume.available,
            }
            for name, limit in (("soft", volume.soft), ("hard", volume.hard)):
                if limit is not None:
                    values[f"{name}_level_free_bytes"] = limit.free_bytes(volume.total)
            for name, value in values.items():
                families[name].add_metric([volume.name], value)
        yield from families.values()


# --- publishing -------------------------------------------------------------------------------------------------------


class VolumeAgent:
    """Measures and publishes until `stop_requested` is set. `wall`: Unix time.

    Raises:
        KafkaException: librdkafka refuses the properties.
    """

    def __init__(self, settings: AgentSettings, metrics: AgentMetrics, wall: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._metrics = metrics
        self._wall = wall
        self._failed: set[str] = set()  # log dirs that failed last time
        self._has_published = False
        self._has_topic = False
        self._complaint = ""
        self._last_error = ""
        self._troubles: set[object] = set()  # what was logged since the last success
        self._failures = 0  # since then
        self.stop_requested = threading.Event()
        self._topic = volume_topic(settings.client_properties(), settings.topic, settings.replication)
        self._producer = self._make_producer()

    def run(self) -> None:
        while not self.stop_requested.is_set():
            started = time.monotonic()
            done = self._publish_snapshot()
            pause = self._settings.interval if done else min(RETRY_S, self._settings.interval)
            until = (started if done else time.monotonic()) + pause
            while not self.stop_requested.is_set() and time.monotonic() < until:
                self._producer.poll(max(0.0, min(POLL_S, until - time.monotonic())))

    def _publish_snapshot(self) -> bool:
        """One snapshot; False: try again before the interval is over."""
        at = self._wall()
        found = measure_volumes(self._settings)
        self._report_log_dirs(found)
        self._metrics.volumes.shown = found.volumes
        if not found.volumes:
            self._metrics.skipped.inc()
            return False
        snapshot = VolumeSnapshot(self._settings.broker_id, at, found.volumes, tuple(found.failed))
        try:
            self._publish_record(encode_snapshot(snapshot, self._settings.soft, self._settings.hard))
        except TopicError as error:
            self._record_failure("topic", str(error))
            return False
        except KafkaException as error:
            failure = error.args[0]
            self._has_topic = failure.code() not in NO_TOPIC_ERRORS
            if failure.fatal():
                self._producer = self._make_producer()
            self._record_failure(failure.code(), failure.str())
            return False
        self._metrics.published.inc()
        self._metrics.last_snapshot.set(at)
        self._record_success(found.volumes)
        return True

    def _publish_record(self, value: bytes) -> None:
        settings = self._settings
        if not self._has_topic:  # a producer that asks for it first could have it made by the broker, uncompacted
            complaint = self._topic.ensure_topic()
            if complaint and complaint != self._complaint:
                log.warning("%s", complaint)
            self._complaint = complaint
            self._has_topic = True
        outcome: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            outcome.append(error)

        self._producer.produce(settings.topic, key=str(settings.broker_id), value=value, on_delivery=delivered)
        patience = float("inf")
        while not outcome:
            self._producer.poll(POLL_S)
            if self.stop_requested.is_set():
                patience = min(patience, time.monotonic() + STOP_S / 2)
                if time.monotonic() > patience:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if outcome[0] is not None:
            raise KafkaException(outcome[0])

    def _make_producer(self) -> Producer:
        shortest, longest = PUBLISH_TIMEOUT_S
        return Producer(
            {
                "message.timeout.ms": int(1000 * max(shortest, min(self._settings.interval, longest))),
                "topic.metadata.propagation.max.ms": 3000,  # a deleted topic is made again after this
                "linger.ms": 0,
                **self._settings.client_properties(),
                "enable.idempotence": True,
                "acks": "all",
                "statistics.interval.ms": STATISTICS_MS,
                "stats_cb": self._on_statistics,
                "error_cb": self._on_error,
            }
        )

    def _on_statistics(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        self._metrics.connected.set(any(broker["state"] == "UP" for broker in brokers))

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error.str()

    # --- what is said, once each

    def _report_log_dirs(self, found: MeasuredVolumes) -> None:
        for log_dir, why in found.failed.items():
            self._metrics.log_dir_errors.labels(log_dir).inc()
            if log_dir not in self._failed:
                log.error(
                    "log dir %s can't be read (%s): gateways take the state of broker %d for unknown until it"
                    " can, or until it is no longer among --log-dirs", log_dir, why, self._settings.broker_id,
                )  # fmt: skip
        for log_dir in self._failed - found.failed.keys():
            log.info("log dir %s can be read again", log_dir)
        fresh = found.failed.keys() - self._failed
        self._failed = set(found.failed)
        if fresh and not found.volumes:
            log.error("no log dir is left: nothing is published, and gateways will see the last snapshot age")

    def _record_failure(self, kind: object, why: str) -> None:
        self._metrics.errors.inc()
        self._failures += 1
        if kind not in self._troubles:
            self._troubles.add(kind)
            cause = f" ({self._last_error})" if self._last_error else ""
            log.error("snapshot not published: %s%s; trying again", why, cause)

    def _record_success(self, volumes: Sequence[Volume]) -> None:
        if not self._has_published:
            self._has_published = True
            log.info("first snapshot published, of %s", ", ".join(volume.name for volume in volumes))
        elif self._failures:
            log.info("snapshots are published again after %d that were not", self._failures)
        self._failures = 0
        self._last_error = ""
        self._troubles.clear()


def main(argv: Sequence[str]) -> int:
    """Run the agent until SIGTERM or SIGINT; the result is the exit code."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        settings = read_settings(argv)
        # Before any thread: all of them inherit it, and the signal waits for `sigwait`.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        configure_logging(DefaultLogSettings(settings.log_format))
        metrics = AgentMetrics(settings.log_dirs)
        agent = VolumeAgent(settings, metrics)
        _serve_metrics(settings.metrics, metrics)
    except SettingsError as error:
        return _print_error(str(error))
    except KafkaException as error:
        return _print_error(f"kafka: {error.args[0].str()}")
    _log_start(settings)
    ended: list[bool] = []
    worker = threading.Thread(target=_run_agent, args=(agent, ended), name="publish", daemon=True)
    worker.start()
    number = signal.sigwait((signal.SIGTERM, signal.SIGINT))
    if ended:
        return 1
    agent.stop_requested.set()
    worker.join(STOP_S)
    log.info("stopped by %s", signal.Signals(number).name)
    if worker.is_alive():  # in a call that doesn't come back; the interpreter's own end would wait for what it holds
        logging.shutdown()
        os._exit(0)
    return 0


def _run_agent(agent: VolumeAgent, ended: list[bool]) -> None:
    try:
        agent.run()
    except Exception:
        log.exception("the agent ends because of a bug")
        ended.append(True)
        os.kill(os.getpid(), signal.SIGTERM)


def _serve_metrics(address: str, metrics: AgentMetrics) -> None:
    if address == "off":
        return
    host, _, port = address.rpartition(":")
    try:
        start_http_server(int(port), host.strip("[]"), metrics.registry)
    except (OSError, socket.gaierror) as error:
        raise SettingsError(f"--metrics {address}: {error.strerror or error}") from None


def _log_start(settings: AgentSettings) -> None:
    soft, hard = (str(limit or "the gateway's") for limit in (settings.soft, settings.hard))
    log.info(
        "volume agent of broker %d: %s every %g s to topic %s at %s; soft limit: %s, hard limit: %s; metrics: %s",
        settings.broker_id,
        ", ".join(settings.log_dirs),
        settings.interval,
        settings.topic,
        settings.client_properties()["bootstrap.servers"],
        soft,
        hard,
        settings.metrics,
    )


def _print_error(line: str) -> int:
    sys.stderr.write(f"{line}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
