# What the agent sees of this machine's file systems.

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.agent.measuring import MountPoint, measure_volumes, name_volume, parse_mounts
from gateway.agent.settings import AgentSettings
from policies.storage import VolumeLimit

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
        patched.setattr("gateway.agent.measuring.FORMATTED_MARKER", "version")  # /proc/version
        found = measure_volumes(AgentSettings(broker_id=1, log_dirs="/proc"))  # type: ignore[arg-type]
    assert found.failed == {"/proc": "its file system tells no size"}


def test_a_log_dir_whose_volume_is_not_mounted_is_not_taken_for_the_disk_below_it(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    found = measure_volumes(AgentSettings(broker_id=1, log_dirs=str(tmp_path / "mount")))  # type: ignore[arg-type]
    assert found.volumes == ()
    assert found.failed[str(tmp_path / "mount")].startswith("it has no meta.properties")
