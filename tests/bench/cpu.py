# CPU time of process trees, out of /proc (so Linux only), and the facts about the machine that figures depend on.
#
# A tree's CPU is the sum over its living processes of user + system + that of children already waited for
# (/proc/PID/stat fields 14 to 17, proc_pid_stat(5)): a child that ends in between moves its time to its parent and is
# counted neither twice nor never. Resolution is the kernel's tick, 10 ms: a measured stretch should take a second.

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import ssl
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def _stat(pid: int) -> tuple[int, float] | None:
    """Parent and CPU seconds of a process; None when it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold spaces and parentheses
    return int(fields[1]), sum(map(int, fields[11:15])) / _TICKS_PER_S


def tree_cpu(root: int) -> dict[int, float]:
    """CPU seconds so far of `root` and each of its living descendants, by process id."""
    return {pid: cpu for pid, (_, cpu) in _tree(root).items()}


def process_cpu(pid: int) -> float:
    """CPU seconds so far of all threads of a process, by clock_getcpuclockid(3): its steps are ns, not 10 ms."""
    return time.clock_gettime(~pid << 3 | 2)


def timed(command: Sequence[str], **options: Any) -> tuple[float, float]:
    """Seconds of wall time, and of CPU time with all of its processes, of a command that ends well. `options`: of
    subprocess.run.
    """
    before, began = os.times(), time.monotonic()
    subprocess.run(command, check=True, **options)
    after, wall = os.times(), time.monotonic() - began
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


class Measured(NamedTuple):
    """What a command took, with all of its processes: seconds, and bytes of memory at their highest."""

    wall: float
    cpu: float
    java_rss: int  # of its largest Java process
    other_rss: int  # of all other processes together: pages that they share count for each


def measured(command: Sequence[str], *, every_s: float = 0.5, **options: Any) -> Measured:
    """Run a command that ends well. Memory is looked at every `every_s`; `options`: of subprocess.Popen."""
    before, began = os.times(), time.monotonic()
    java = other = 0
    with subprocess.Popen(command, **options) as process:
        while True:
            try:
                process.wait(every_s)
                break
            except subprocess.TimeoutExpired:
                sizes = [(_is_java(pid), _resident_bytes(pid)) for pid in _tree(process.pid)]
                java = max([java, *(size for is_java, size in sizes if is_java)])
                other = max(other, sum(size for is_java, size in sizes if not is_java))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    after, wall = os.times(), time.monotonic() - began
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Measured(wall, cpu, java, other)


def _is_java(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "comm").read_text().strip() == "java"
    return False


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def tree_memory(root: int) -> int:
    """Bytes of memory of `root` and its living descendants; what processes share is counted once."""
    found = 0
    for pid in _tree(root):
        with contextlib.suppress(OSError):  # it has just ended
            rollup = (_PROC / str(pid) / "smaps_rollup").read_text()
            found += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return found


def _tree(root: int) -> dict[int, tuple[int, float]]:
    """Parent and CPU seconds of `root` and each of its living descendants."""
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    stats = {pid: found for pid in pids if (found := _stat(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in stats.items():
        children.setdefault(parent, []).append(pid)
    tree, todo = {}, [root] if root in stats else []
    while todo:
        pid = todo.pop()
        tree[pid] = stats[pid]
        todo += children.get(pid, [])
    return tree


def command_line(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def first_line(*command: str) -> str | None:
    """What a command prints first; None where it isn't on PATH or fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None


def _cpu_model() -> str:
    for line in (_PROC / "cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _revision(root: Path) -> str | None:
    commit = first_line("git", "-C", str(root), "rev-parse", "--short", "HEAD")
    changed = first_line("git", "-C", str(root), "status", "--porcelain")
    return f"{commit} and changes" if commit and changed else commit


def machine(root: Path) -> dict[str, Any]:
    """What a reader must know to compare these figures with others."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "openssl": " ".join(ssl.OPENSSL_VERSION.split()[:2]),  # that of Python
        "go": first_line("go", "version"),
        "java": first_line("java", "--version"),
        "revision": _revision(root),
        "load_before": os.getloadavg()[0],
    }
