# The volumes under a broker's log dirs.
#
# Free space is what Kafka's own getUsableSpace says: f_bavail, without the blocks reserved for root. Log dirs on one
# device are one volume. A log dir that can't be read is named in the snapshot: the broker may be writing to it,
# behind a mount that is missing here or a path that is wrong, so gateways take the broker's state for unknown.

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from gateway.agent.settings import AgentSettings
from policies.storage import Volume

MOUNTS: Final = Path("/proc/self/mountinfo")
# what is in each log dir since a broker formatted it; a mount point has none
FORMATTED_MARKER: Final = "meta.properties"


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
