# Processes that don't outlive this one. They are ended by their starter, by atexit, and, when this process is
# killed, by a guard process that sees its standard input end. (PR_SET_PDEATHSIG would fire when the *thread* that
# started a process ends, and tests start brokers from threads.)

from __future__ import annotations

import atexit
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from gateway.embedded.errors import EmbeddedError

# Lines "+pid", "-pid" and "/folder"; at the end of input whatever is left is killed and the folders are removed.
_GUARD_SCRIPT = """
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


class _ProcessGuard:
    """Ends our child processes when we end in any way. One per process, started when first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def send_line(self, line: str) -> None:
        with self._lock:
            if self._process is None:
                # A session of its own: Ctrl-C in a terminal is for us, and we tell the others.
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _GUARD_SCRIPT],
                    stdin=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                atexit.register(self._end_guard)
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _end_guard(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


process_guard = _ProcessGuard()


def spawn_process(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process that surely ends with this one. `options` are Popen's. Pass it to `reap_process` in the end."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    process_guard.send_line(f"+{process.pid}")
    return process


def reap_process(process: subprocess.Popen[Any], terminate_s: float | None = None) -> int:
    """End a process from `spawn_process` and return its exit status; SIGKILL, after a SIGTERM and `terminate_s` where
    given.
    """
    if process.poll() is None:
        if terminate_s is not None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(terminate_s)
        process.kill()
    status = process.wait()
    process_guard.send_line(f"-{process.pid}")
    return status


def wait_for(what: str, condition: Callable[[], bool], timeout_s: float = 60.0, every_s: float | None = None) -> None:
    """Return once `condition` holds. `every_s`: between two looks; None: 50 ms at first, a quarter of a second in the
    end.

    Raises:
        EmbeddedError: it still does not after `timeout_s`; the text names `what`.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > timeout_s:
            raise EmbeddedError(f"waited {timeout_s:.0f} s for {what}")
        # Looks cost: /metrics 10 ms of a core.
        time.sleep(min(0.25, max(0.05, waited / 10)) if every_s is None else every_s)
