# The end of processes whose threads may have clients of Kafka: nothing that other threads use is taken away before.

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Python imports this module by itself; what it registers first runs last, as what libraries in C register.
SITE = """
import atexit, pathlib
atexit.register(pathlib.Path({path!r}).touch)
"""


@pytest.fixture
def cleaned(tmp_path: Path) -> Path:
    """A file that each Python makes whose handlers of `atexit` run; see `environment`."""
    path = tmp_path / "cleaned"
    (tmp_path / "sitecustomize.py").write_text(SITE.format(path=str(path)))
    return path


def environment(cleaned: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(cleaned.parent), str(ROOT)))}


def test_what_was_said_is_written_and_no_handler_runs(cleaned: Path) -> None:
    program = (
        "import logging, sys, threading, time; from gateway.system.process_exit import exit_process\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"  # no daemon: the interpreter's end waits for it
        "logging.basicConfig(format='%(message)s'); print('printed'); logging.warning('logged'); exit_process(3)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(cleaned),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "printed\n", "logged\n")
    assert not cleaned.exists()


def test_control_ends_so(cleaned: Path) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()  # it has no parent any more
        command = [sys.executable, "-m", "gateway.control", "--fd", str(theirs.fileno())]
        done = subprocess.run(command, env=environment(cleaned), pass_fds=[theirs.fileno()], timeout=120, check=False)
    assert done.returncode == 1
    assert not cleaned.exists()


def test_the_volume_agent_ends_so(cleaned: Path, tmp_path: Path) -> None:
    given = ["--bootstrap-servers", "127.0.0.1:1", "--broker-id", "1", "--log-dirs", str(tmp_path), "--metrics", "off"]
    command = [sys.executable, "-m", "gateway", "volume-agent", *given]
    with subprocess.Popen(command, env=environment(cleaned), stderr=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stderr is not None
            assert "volume agent of broker 1" in agent.stderr.readline()
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(120) == 0
        finally:
            agent.kill()
    assert not cleaned.exists()
