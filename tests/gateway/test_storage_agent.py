# The agent without Kafka: its configuration, and what it sees of this machine's file systems.

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError
from prometheus_client import generate_latest

from gateway import volume_agent
from gateway.storage.snapshot import decode_snapshot
from gateway.volume_agent import (
    RETRY_S,
    AgentMetrics,
    AgentSettings,
    MountPoint,
    SettingsError,
    VolumeAgent,
    measure_volumes,
    name_volume,
    parse_mounts,
    read_settings,
)
from policies.storage import Volume, VolumeLimit

ROOT = Path(__file__).parent.parent.parent
BASE = ["--broker-id", "1", "--log-dirs", "/a,/b"]


# --- configuration ----------------------------------------------------------------------------------------------------


def test_flags_and_defaults() -> None:
    settings = read_settings(["--broker-id", "0", "--log-dirs", "/a, /b,/a"])
    assert (settings.broker_id, settings.log_dirs, settings.interval) == (0, ("/a", "/b"), 30.0)
    assert (settings.soft, settings.hard) == (None, None)
    assert settings.metrics == "127.0.0.1:9191"
    assert settings.client_properties()["bootstrap.servers"] == "127.0.0.1:9092"


def test_limits_intervals_and_properties() -> None:
    flags = ["--soft", "MinFreePercentage:20", "--hard", "MinFreeBytes:10GB", "--interval", "PT1M"]
    settings = read_settings([*BASE, *flags, "--kafka", "kafka.ssl.key.password=a=b", "--kafka", "retries=3"])
    assert settings.soft == VolumeLimit("MinFreePercentage", 0.2)
    assert settings.hard == VolumeLimit("MinFreeBytes", 1e10)
    assert settings.interval == 60.0
    assert settings.kafka == {"ssl.key.password": "a=b", "retries": "3"}
    assert read_settings([*BASE, "--interval", "90s"]).interval == 90.0


@pytest.mark.seed("035.14")
def test_the_file_has_the_same_names_and_flags_win(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("geheim\n")
    path = tmp_path / "agent.yaml"
    path.write_text(
        f"""
broker-id: 5
log_dirs: [/a, /b]
interval: PT10S
soft: {{type: MinFreePercentage, level: 30}}
hard: ConsumedBytes:5GiB
kafka.security.protocol: SSL
kafka: {{ssl.key.password: {{file: {tmp_path}/secret}}, socket.keepalive.enable: true}}
volumes:
  /b: {{soft: none, hard: MinFreeBytes:1MB}}
metrics: off
""".replace("metrics: off", "metrics: 'off'")
    )
    settings = read_settings(["--config", str(path), "--interval", "5s", "--volume-soft", "/a=MinFreeBytes:2MB"])
    assert (settings.broker_id, settings.log_dirs, settings.interval) == (5, ("/a", "/b"), 5.0)
    assert settings.kafka == {
        "security.protocol": "SSL",
        "ssl.key.password": "geheim",
        "socket.keepalive.enable": "true",
    }
    assert settings.client_properties().items() >= settings.kafka.items()
    assert settings.find_limits(["/a"]) == (VolumeLimit("MinFreeBytes", 2e6), VolumeLimit("ConsumedBytes", 5.0 * 2**30))
    assert settings.find_limits(["/b"]) == (None, VolumeLimit("MinFreeBytes", 1e6))
    assert settings.find_limits(["/a", "/b"]) == (VolumeLimit("MinFreeBytes", 2e6), VolumeLimit("MinFreeBytes", 1e6))


def test_examples_of_the_documentation_are_accepted(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "storage.md").read_text("utf-8")
    (command,) = re.findall(r"^produce-gateway volume-agent (.*)$", page, re.MULTILINE)
    assert read_settings(shlex.split(command)).log_dirs == ("/data/1", "/data/2")
    (text,) = (each for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "broker_id" in each)
    path = tmp_path / "volume-agent.yaml"
    path.write_text(text)
    settings = read_settings(["--config", str(path)])
    assert settings.find_limits(["/data/2"]) == (None, VolumeLimit("MinFreePercentage", 0.05))
    assert settings.kafka["ssl.key.location"] == "/etc/produce-gateway/agent.key"
    unit = (ROOT / "deploy" / "systemd" / "produce-gateway-volume-agent.service").read_text("utf-8")
    (line,) = re.findall(r"^ExecStart=\S+/produce-gateway volume-agent (.*)$", unit, re.MULTILINE)
    assert line == "--config /etc/produce-gateway/volume-agent.yaml"
    assert "`/etc/produce-gateway/volume-agent.yaml`" in page


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ([], "--broker-id is required (or broker_id in --config)"),
        (["--broker-id", "1"], "--log-dirs is required (or log_dirs in --config)"),
        (["--broker-id", "-1", "--log-dirs", "/a"], "--broker-id: should be greater than or equal to 0, not '-1'"),
        (
            ["--broker-id", "1", "--log-dirs", "/a,,/b"],
            "--log-dirs: paths are needed, with commas between them, as in the broker's log.dirs",
        ),
        (
            [*BASE, "--soft", "MinFreePercentage:0.2"],
            "--soft: '0.2': MinFreePercentage is a whole percentage from 1 to 100 here, such as 20",
        ),
        (
            [*BASE, "--soft", "Free:1"],
            "--soft: 'Free' is not a valid type of limit; there are ConsumedBytes, MinFreeBytes, MinFreePercentage",
        ),
        (
            [*BASE, "--hard", "10GB"],
            "--hard: '10GB' is not a valid limit; for example: MinFreeBytes:10GB or MinFreePercentage:20",
        ),
        (
            [*BASE, "--hard", "MinFreeBytes:0"],
            "--hard: '0': a size above 0 is needed, such as 10GB; for no limit leave it out",
        ),
        ([*BASE, "--interval", "PT0S"], "--interval: 'PT0S': between 1s and 1h is needed, such as PT30S or 30s"),
        ([*BASE, "--metrics", "9191"], "--metrics: '9191' is neither HOST:PORT nor off"),
        ([*BASE, "--kafka", "acks"], "--kafka acks: write KEY=VALUE, for example security.protocol=SSL"),
        (
            [*BASE, "--volume-soft", "/c=MinFreeBytes:1"],
            "volumes: /c is not one of the log dirs /a, /b",
        ),
        (
            [*BASE, "--soft", "MinFreeBytes:1MB", "--hard", "MinFreeBytes:2MB"],
            "the soft limit (MinFreeBytes 1.0 MB) would be reached after the hard one (MinFreeBytes 2.0 MB)",
        ),
        (
            [*BASE, "--soft", "ConsumedBytes:2MB", "--volume-hard", "/b=ConsumedBytes:1MB"],
            "volumes: /b: the soft limit (ConsumedBytes 2.0 MB) would be reached after the hard one"
            " (ConsumedBytes 1.0 MB)",
        ),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: can't be read: No such file or directory"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_mistakes_are_one_line(flags: list[str], line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(flags)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("broker_id: 1\nlog_dir: /a", "log_dir: unknown key; did you mean log_dirs?"),
        ("broker_id: 1\nzzz: /a", "zzz: unknown key; known here: broker_id, log_dirs, "),
        ("broker_id: 1\nlog_dirs: /a\nvolumes: [/a]", "volumes: keys with values are needed here"),
        (
            "broker_id: 1\nlog_dirs: /a\nvolumes: {/a: {soft: 5}}",
            "volumes./a.soft: 5 is not a valid limit; for example: MinFreeBytes:10GB",
        ),
        ("- a", "keys such as broker_id: and log_dirs: are needed at the top level"),
    ],
)
def test_mistakes_in_the_file_name_it(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_settings(["--config", str(path)])
    assert str(caught.value).startswith(f"{path}: {line}")


def test_a_key_that_is_given_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("broker_id: 1\nlog_dirs: /a\nbroker_id: 2\n")
    with pytest.raises(SettingsError) as caught:
        read_settings(["--config", str(path)])
    assert str(caught.value) == f"{path}:3: broker_id is there twice"


# --- volumes ----------------------------------------------------------------------------------------------------------

MOUNTINFO = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /tmp rw - tmpfs tmpfs rw
24 22 8:17 / /data rw shared:5 master:2 - xfs /dev/sdb1 rw
25 22 8:33 / /data rw - xfs /dev/sdc1 rw
26 22 8:49 / /data/with\040space rw - xfs /dev/sdd1 rw
27 22 0:50 / /nas rw - nfs4 nas:/kafka rw
broken line
"""


def test_the_mount_that_a_path_is_on_gives_its_name() -> None:
    mounts = parse_mounts(MOUNTINFO)
    assert mounts[4] == MountPoint("/data/with space", "/dev/sdd1")
    assert name_volume("/data/kafka", mounts) == "/dev/sdc1"  # mounted over the first
    assert name_volume("/data/with space/x", mounts) == "/dev/sdd1"
    assert name_volume("/database", mounts) == "/dev/sda1"  # not under /data
    assert name_volume("/tmp/a", mounts) == "tmpfs:/tmp"
    assert name_volume("/nas/a", mounts) == "nas:/kafka"


def test_without_a_list_of_mounts_the_mount_point_is_the_name(tmp_path: Path) -> None:
    point = Path(name_volume(str(tmp_path), []))
    assert os.path.ismount(point)
    assert tmp_path.is_relative_to(point)


def formatted(path: Path) -> None:
    """A log dir as a broker has made it."""
    path.mkdir()
    (path / "meta.properties").write_text("version=1\n")


@pytest.mark.seed("035.11")
def test_a_device_is_one_volume_with_what_df_says(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    for path in dirs:
        formatted(path)
    settings = AgentSettings(broker_id=4, log_dirs=",".join(map(str, dirs)), hard="MinFreeBytes:1")  # type: ignore[arg-type]
    found = measure_volumes(settings)
    said = subprocess.run(
        ["df", "-B1", "--output=size,avail", str(dirs[0])], capture_output=True, text=True, check=True
    ).stdout.split()
    size, available = int(said[-2]), int(said[-1])
    (volume,) = found.volumes
    assert (volume.broker_id, volume.total, volume.hard) == (4, size, VolumeLimit("MinFreeBytes", 1.0))
    assert abs(volume.available - available) < 2**30  # others write meanwhile
    assert found.failed == {}


@pytest.mark.seed("035.11")
@pytest.mark.parametrize("names", ["ab", "ba"])
def test_of_several_views_of_a_device_the_one_with_the_least_available_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    """File systems have quotas for directories."""
    left = {"a": 50, "b": 20}

    def statvfs(path: str) -> SimpleNamespace:
        return SimpleNamespace(f_frsize=10, f_blocks=10, f_bavail=left[Path(path).name] // 10)

    for name in names:
        formatted(tmp_path / name)
    monkeypatch.setattr(os, "statvfs", statvfs)
    (volume,) = measure_volumes(AgentSettings(broker_id=1, log_dirs=[str(tmp_path / name) for name in names])).volumes  # type: ignore[arg-type]
    assert (volume.total, volume.available) == (100, 20)


def test_a_log_dir_that_can_not_be_looked_into_is_told_with_the_reason(tmp_path: Path) -> None:
    formatted(tmp_path / "a")
    (tmp_path / "file").write_text("")
    gone, file = str(tmp_path / "gone"), str(tmp_path / "file")
    found = measure_volumes(AgentSettings(broker_id=1, log_dirs=[str(tmp_path / "a"), gone, file]))  # type: ignore[arg-type]
    assert len(found.volumes) == 1
    assert found.failed == {gone: "No such file or directory", file: "Not a directory"}
    assert measure_volumes(AgentSettings(broker_id=1, log_dirs=gone)).volumes == ()  # type: ignore[arg-type]


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="a file system without a size is needed")
def test_a_file_system_without_a_size_is_left_out() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gateway.volume_agent.FORMATTED_MARKER", "version")  # /proc/version
        found = measure_volumes(AgentSettings(broker_id=1, log_dirs="/proc"))  # type: ignore[arg-type]
    assert found.failed == {"/proc": "its file system tells no size"}


def test_a_log_dir_whose_volume_is_not_mounted_is_not_taken_for_the_disk_below_it(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    found = measure_volumes(AgentSettings(broker_id=1, log_dirs=str(tmp_path / "mount")))  # type: ignore[arg-type]
    assert found.volumes == ()
    assert found.failed[str(tmp_path / "mount")].startswith("it has no meta.properties")


@pytest.mark.seed("035.37")
def test_metrics_of_volumes_are_those_of_the_last_measurement() -> None:
    metrics = AgentMetrics(["/a"])
    metrics.volumes.shown = (Volume(1, "/dev/a", 100, 40, VolumeLimit("MinFreePercentage", 0.2), None),)
    text = generate_latest(metrics.registry).decode()
    prefix = "produce_gateway_volume_agent"
    for name, value in (("capacity", 100), ("available", 40), ("consumed", 60), ("soft_level_free", 20)):
        assert f'{prefix}_volume_{name}_bytes{{volume="/dev/a"}} {value}.0' in text
    assert "hard_level_free_bytes{" not in text
    assert f'{prefix}_log_dir_errors_total{{log_dir="/a"}} 0.0' in text
    metrics.volumes.shown = ()
    assert "/dev/a" not in generate_latest(metrics.registry).decode()


# --- publishing -------------------------------------------------------------------------------------------------------


class Cluster:
    """Acknowledges each record after `takes_s`, of which it remembers when it came; and the time, which goes on while
    the producer waits. `steps`: what came, in its order.
    """

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.now = 100.0
        self.error: KafkaError | None = None
        self.steps: list[str] = []
        self.records: list[tuple[float, str, str, bytes]] = []
        self._waiting: list[tuple[float, Callable[..., None]]] = []

    def monotonic(self) -> float:
        return self.now

    def ensure_topic(self) -> str:
        self.steps.append("topic")
        return ""

    def produce(self, topic: str, *, key: str, value: bytes, on_delivery: Callable[..., None]) -> None:
        self.steps.append("record")
        self.records.append((self.now, topic, key, value))
        self._waiting.append((self.now + self.takes_s, on_delivery))

    def poll(self, timeout: float) -> None:
        self.now += timeout
        while self._waiting and self._waiting[0][0] <= self.now:
            self._waiting.pop(0)[1](self.error, None)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(2.0)
    monkeypatch.setattr(volume_agent, "time", cluster)
    monkeypatch.setattr(volume_agent, "Producer", Mock(return_value=cluster))
    monkeypatch.setattr(volume_agent, "volume_topic", Mock(return_value=cluster))
    return cluster


def run_agent(cluster: Cluster, tmp_path: Path, records: int, *flags: str) -> AgentMetrics:
    """Until so many were published or failed."""
    formatted(tmp_path / "a")
    settings = read_settings(["--broker-id", "7", "--log-dirs", str(tmp_path / "a"), "--topic", "volumes", *flags])
    metrics = AgentMetrics(settings.log_dirs)
    agent = VolumeAgent(settings, metrics, lambda: 1_790_000_000.0)
    poll = cluster.poll

    def counted(timeout: float) -> None:
        poll(timeout)
        if len(cluster.records) >= records and not cluster._waiting:
            agent.stop_requested.set()

    cluster.poll = counted  # type: ignore[method-assign]
    agent.run()
    return metrics


@pytest.mark.seed("035.13")
def test_a_snapshot_is_published_at_the_start_and_then_in_each_interval(cluster: Cluster, tmp_path: Path) -> None:
    """However long the cluster takes for one."""
    metrics = run_agent(cluster, tmp_path, 4, "--interval", "30s")
    assert [at for at, *_ in cluster.records] == pytest.approx([100.0, 130.0, 160.0, 190.0])
    assert said(metrics, "snapshots_published_total") == 4


@pytest.mark.seed("035.13", "035.36")
def test_a_snapshot_that_the_cluster_does_not_take_is_an_error_and_soon_tried_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.error = KafkaError(KafkaError._MSG_TIMED_OUT)
    metrics = run_agent(cluster, tmp_path, 3, "--interval", "30s")
    pause = cluster.takes_s + RETRY_S
    assert [at for at, *_ in cluster.records] == pytest.approx([100.0, 100.0 + pause, 100.0 + 2 * pause])
    assert (said(metrics, "publication_errors_total"), said(metrics, "snapshots_published_total")) == (3, 0)


@pytest.mark.seed("035.12")
def test_usage_is_published_by_the_broker_s_id_to_a_topic_that_was_put_right_before(
    cluster: Cluster, tmp_path: Path
) -> None:
    run_agent(cluster, tmp_path, 2)
    assert cluster.steps == ["topic", "record", "record"]
    for _, topic, key, value in cluster.records:
        snapshot = decode_snapshot(value, key.encode())
        assert (topic, key) == ("volumes", "7")
        assert [volume.total > 0 for volume in snapshot.volumes] == [True]


def said(metrics: AgentMetrics, name: str) -> float:
    """That metric's value."""
    (value,) = re.findall(rf"^{volume_agent.PREFIX}_{name} (\S+)$", generate_latest(metrics.registry).decode(), re.M)
    return float(value)
