# The loads and what is measured of one: builds the Go tool, runs it, and reads the CPU of a target around exactly the
# requests that count (the tool stops before and after them: `-hold`).

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.cpu import command_line, tree_cpu
from tests.bench.processes import BenchError
from tests.bench.targets import Target, cache_dir

SOURCES = Path(__file__).resolve().parent / "rawload"
TIMEOUT_S = 180.0  # for one measured stretch: far beyond what any takes

_producer_ids = itertools.count(1_000, 1_000)  # one per connection, never used again: sequences start at 0


@dataclass(frozen=True)
class Scenario:
    """A raw load. `per` says what CPU is divided by. `bars`: the highest ratios of the gateway's CPU to that of other
    targets that we accept; a target with TLS is compared with the gateway that has it on the same sides.
    """

    name: str
    title: str
    bytes: int
    connections: int
    requests: int
    per: str  # "request" (microseconds) or "GB" (seconds; 10^9 bytes)
    bars: Mapping[str, float] = field(default_factory=dict)
    idempotent: bool = False
    flags: tuple[str, ...] = ()  # further ones of the load
    limited: bool = False  # also measured with a limit in force on another topic
    scaled: bool = False  # also measured with two workers
    secured: bool = False  # also measured over TLS: with clients, and with the broker as well
    partitions: int = 1  # of each request
    depth: int = 5
    rate: int = 0  # requests per second; 0: as fast as answers come


SMALL = {"kafka-proxy": 0.45, "bare-loop": 1.15}
WIDE = {"kafka-proxy": 0.45}
WIDE_IDEMPOTENT = WIDE | {"haproxy": 1.5}
LARGE = {"kroxylicious": 0.8, "kafka-proxy-tls-both": 0.9, "haproxy-tls": 1.0, "haproxy-tls-both": 1.0}
SCENARIOS = (
    Scenario("small-4", "215-byte requests, 4 connections", 215, 4, 150_000, "request", SMALL, limited=True),
    Scenario(
        "small-64", "215-byte requests, 64 connections", 215, 64, 150_000, "request",
        SMALL | {"kafka-proxy-tls-both": 0.6, "haproxy-tls": 1.15, "haproxy-tls-both": 1.15},
        limited=True, scaled=True, secured=True,
    ),
    Scenario(
        "half-64", "215-byte requests, 64 connections, 15,000 a second, one in flight each", 215, 64, 60_000, "request",
        depth=1, rate=15_000,
    ),
    Scenario(
        "idempotent-64", "215-byte requests of idempotent producers, 64 connections", 215, 64, 150_000, "request",
        {"kafka-proxy": 0.45}, idempotent=True,
    ),
    Scenario(
        "wide-64", "6,000-byte requests of 50 partitions, 64 connections", 6_000, 64, 40_000, "request",
        WIDE | {"haproxy": 1.3, "haproxy-tls": 1.3, "haproxy-tls-both": 1.3}, scaled=True, secured=True, partitions=50,
    ),
    Scenario(
        "wide-idempotent-64", "6,000-byte requests of 50 partitions of idempotent producers, 64 connections", 6_000, 64,
        40_000, "request", WIDE_IDEMPOTENT, idempotent=True, partitions=50,
    ),
    Scenario(
        "wide-transactional-64", "6,000-byte requests of 50 partitions in transactions, 64 connections", 6_000, 64,
        40_000, "request", WIDE_IDEMPOTENT, idempotent=True, flags=("-txn", "orders"), partitions=50,
    ),
    Scenario(
        "wide-gzip-64", "6,000-byte requests of 50 partitions, compressed by gzip, 64 connections", 6_000, 64, 40_000,
        "request", WIDE_IDEMPOTENT, idempotent=True, flags=("-gzip",), partitions=50,
    ),
    Scenario(
        "100KB", "100,000-byte requests, 4 connections", 100_000, 4, 25_000, "GB", LARGE | {"kafka-proxy": 0.7},
        scaled=True, secured=True,
    ),
    Scenario(
        "wide-480KB", "480,000-byte requests of 30 partitions of idempotent producers, 4 connections", 480_000, 4,
        5_000, "GB", {"kafka-proxy": 0.45}, idempotent=True, partitions=30,
    ),
    Scenario(
        "1MB", "1,000,000-byte requests, 4 connections", 1_000_000, 4, 3_000, "GB", LARGE | {"kafka-proxy": 0.9},
        secured=True,
    ),
)  # fmt: skip


def build_rawload() -> Path:
    """The built tool, in the cache; built again when a source changes."""
    if shutil.which("go") is None:
        raise BenchError("make bench needs Go 1.21 or newer on PATH: the load generator and the null broker are Go")
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*.*")):
        digest.update(source.name.encode() + source.read_bytes())
    binary = cache_dir() / f"rawload-{digest.hexdigest()[:16]}"
    if not binary.exists():
        fresh = binary.with_suffix(f".{os.getpid()}")
        env = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
        done = subprocess.run(
            ["go", "build", "-buildvcs=false", "-o", str(fresh), "."],
            cwd=SOURCES, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise BenchError(f"building {SOURCES} failed:\n{done.stderr}")
        fresh.rename(binary)
    return binary


@contextmanager
def tool(rawload: Path, target: Target, *flags: str) -> Iterator[subprocess.Popen[str]]:
    secure = ["-tls"] if target.secure else []
    process = subprocess.Popen(
        [str(rawload), "-addr", target.node, *secure, *flags],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def read_line(process: subprocess.Popen[str], target: Target) -> dict[str, Any]:
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    if not line:
        raise BenchError(f"the load on {target.name} failed: {process.stderr.read().strip() or 'timed out'}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def release(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def measure(rawload: Path, target: Target, scenario: Scenario, requests: int, broker: int) -> dict[str, Any]:
    """One stretch of `requests` on a target, with its CPU: seconds in all and per process, and per unit of work."""
    flags = [
        "-hold", "-warm", "500ms", "-n", str(requests), "-size", str(scenario.bytes), "-c", str(scenario.connections),
        "-d", str(scenario.depth), "-p", str(scenario.partitions),
    ]  # fmt: skip
    if scenario.rate:
        flags += ["-rate", str(scenario.rate)]
    if scenario.idempotent:
        flags += ["-pid", str(next(_producer_ids))]
    flags += scenario.flags
    with tool(rawload, target, *flags) as process:
        read_line(process, target)
        before = snapshot(target.pid), snapshot(broker), snapshot(process.pid)
        release(process)
        sample = read_line(process, target)
        after = snapshot(target.pid), snapshot(broker), snapshot(process.pid)
        release(process)
        process.wait(30)
    used, broker_used, load_used = (spent(b, a) for b, a in zip(before, after, strict=True))
    sample["broker_cpu_s"], sample["load_cpu_s"] = sum(broker_used.values()), sum(load_used.values())
    if target.pid is not None:
        sample |= cpu_figures(used, sample["requests"], sample["bytes"])
    return sample


def snapshot(pid: int | None) -> dict[int, float]:
    return {} if pid is None else tree_cpu(pid)


def spent(before: dict[int, float], after: dict[int, float]) -> dict[int, float]:
    """By process. One that ended meanwhile left its time to its parent, so what it had before is taken off again."""
    used = {pid: cpu - before.get(pid, 0.0) for pid, cpu in after.items()}
    gone = sum(cpu for pid, cpu in before.items() if pid not in after)
    if gone and used:
        used[next(iter(used))] -= gone
    return used


def cpu_figures(used: dict[int, float], requests: int, size: int) -> dict[str, Any]:
    total = sum(used.values())
    return {
        "cpu_s": round(total, 3),
        "cpu_us_per_request": total / requests * 1e6,
        "cpu_s_per_gb": total / size * 1e9,
        "processes": {f"{pid} {command_line(pid)[-60:]}": round(cpu, 3) for pid, cpu in used.items()},
    }


# --- a limit in force on another topic --------------------------------------------------------------------------------


def exceed(rawload: Path, target: Target) -> None:
    """Sends to `busy` until that is rejected: the one-minute rate stays above the total threshold for a while then."""
    flags = ["-topic", "busy", "-size", "1000000", "-c", "2", "-d", "3", "-t", "60s", "-stop-at-error"]
    with tool(rawload, target, *flags) as process:
        if read_line(process, target)["failed"] == 0:
            raise BenchError(f"{target.name}: `busy` was never rejected in 60 s, the limit can't be brought into force")


def is_rejected(rawload: Path, target: Target) -> bool:
    with tool(rawload, target, "-topic", "busy", "-n", "1", "-c", "1") as process:
        return bool(read_line(process, target)["failed"])


@contextmanager
def limit_in_force(rawload: Path, target: Target) -> Iterator[None]:
    """While inside, producers to `busy` go on trying and are rejected."""
    exceed(rawload, target)
    flags = ["-topic", "busy", "-c", "2", "-d", "1", "-rate", "20", "-t", "10m", "-progress", "200ms"]
    with tool(rawload, target, *flags) as process:
        while read_line(process, target)["failed"] == 0:
            pass
        yield
    if not is_rejected(rawload, target):
        raise BenchError(f"{target.name}: the limit on `busy` ended before the measurement did")
