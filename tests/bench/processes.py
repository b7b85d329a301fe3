# The processes of a benchmark: output in a log file, stopped for sure; and the ports they listen on.

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.embedded import reap_process, spawn_process


class BenchError(Exception):
    """The benchmark can't go on; the text says what to do about it."""


def tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""


@contextmanager
def running(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with us in whatever way we end; on leaving it is asked to, and killed after 15 s."""
    full_env = None if env is None else {**os.environ, **env}
    with log.open("ab") as out:
        process = spawn_process(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, env=full_env)
    try:
        yield process
    finally:
        reap_process(process, terminate_s=15)


def accepts(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path, within_s: float = 60) -> None:
    """Returns when something listens on the loopback port; BenchError when `process` ends before or time is up."""
    deadline = time.monotonic() + within_s
    while not accepts("127.0.0.1", port):
        if process.poll() is not None:
            raise BenchError(f"{process.args!r} ended with {process.returncode} before it listened:\n{tail(log)}")
        if time.monotonic() > deadline:
            raise BenchError(f"{process.args!r} does not listen on port {port} after {within_s:.0f} s:\n{tail(log)}")
        time.sleep(0.05)


def free_ports(first: int, count: int) -> int:
    """The first of `count` free loopback ports in a row at or above `first`."""
    base = first
    while base + count < 65536:
        taken = next((port for port in range(base, base + count) if not _is_free(port)), None)
        if taken is None:
            return base
        base = taken + 1
    raise BenchError(f"no {count} free ports in a row above {first}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
