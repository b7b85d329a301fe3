# How many cores this process may use: what `workers: auto` comes to. A container's limit counts: the kernel would stop
# more busy processes than that in turn. Knows nothing of gateways.

from __future__ import annotations

import os
from pathlib import Path

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")  # cgroup v2: "quota period" in microseconds, or "max period"


def count_cores(cpu_max: Path = CPU_MAX) -> int:
    """At least 1: cores by affinity, at most the whole ones of the container's CPU limit."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text().split()
        if quota != "max":
            cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        pass  # no such limit here
    return max(1, cores)
