"""How long a gateway takes from `exec` to its first answer to a Produce request: in front of a cluster of 10,000 topics
of three partitions, without limits, and with as many thresholds of topics and client quotas.

    .venv/bin/python -m tests.bench.control.start_up                 # median and best of several starts, in Markdown
    .venv/bin/python -m tests.bench.control.start_up --root DIR      # of another checkout

The bytecode is in its cache, as after the first start of an installation: one more start comes before those that count.
CPU is that of all processes until the answer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.bench.control.policy_change import read_frame
from tests.bench.cpu import process_cpu, tree_cpu
from tests.bench.load import build_rawload
from tests.bench.processes import BenchError, free_ports, running, tail
from tests.bench.targets import HOST, NODE_ID, ROOT, gateway_config, null_broker
from tests.gateway.data.play import request

PORTS: Final = 28_600
TOPICS: Final = 10_000
WITHIN_S: Final = 60.0
ASK_S: Final = 0.005  # between two attempts to connect
TOTAL: Final = {"total.bytes.in.per.sec.threshold": "1000000MB"}


class Start(NamedTuple):
    """Seconds since `exec`, and of CPU."""

    listens: float  # at the bootstrap address
    answered: float
    cpu: float


def limits(count: int) -> dict[str, Any]:
    """So many thresholds of topics and client quotas."""
    topics = {f"t{number}": {"bytes.in.per.sec.threshold": "10MB"} for number in range(count)}
    quotas = [{"user": f"u{number}", "producer_byte_rate": "1MB"} for number in range(count)]
    return {"thresholds": TOTAL | {"topics": topics}, "client_quotas": quotas}


def start(root: Path, config: Path, port: int, log: Path) -> Start:
    """Start a gateway, have an answer from it, and stop it."""
    frame = request(1, {"t0": [0]}, values=(b"x" * 100,), client_id="bench")
    command = [sys.executable, "-m", "gateway", "serve", str(config)]
    began = time.monotonic()
    with running(command, log, env={"PYTHONPATH": str(root)}, cwd=root) as process:
        with _connected(process, port, log):
            listens = time.monotonic() - began
        with _connected(process, port + 1 + NODE_ID, log) as client:
            client.sendall(frame)
            read_frame(client)
        answered = time.monotonic() - began
        return Start(listens, answered, sum(map(process_cpu, tree_cpu(process.pid))))


def _connected(process: subprocess.Popen[bytes], port: int, log: Path) -> socket.socket:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            return socket.create_connection((HOST, port), timeout=WITHIN_S)
        time.sleep(ASK_S)
    raise BenchError(f"nothing listens on port {port}:\n{tail(log)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=TOPICS, help="as many thresholds and quotas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--root", type=Path, default=ROOT, help="of the checkout that is measured")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything started is stopped
    some, no_limits = f"{options.topics:,}", {"thresholds": TOTAL}
    cases = {
        "one topic, no limits": (["t0"], no_limits),
        f"{some} topics": ([f"t{number}" for number in range(options.topics)], no_limits),
        f"{some} topics, thresholds and quotas": (
            [f"t{number}" for number in range(options.topics)], limits(options.topics),
        ),
    }  # fmt: skip
    print(f"load {os.getloadavg()[0]:.1f}\n\n| Start, in ms: median (best) | listens | first answer | CPU |")
    print("|---|---:|---:|---:|")
    for what, (topics, settings) in cases.items():
        with ExitStack() as stack:
            run_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="start-up-")))
            ports = free_ports(PORTS, 30)
            upstream, _ = stack.enter_context(
                null_broker(build_rawload(), ports, run_dir, more_topics=topics, partitions=3)
            )
            config = run_dir / "gateway.yaml"
            spool = run_dir / "spool"
            spool.mkdir()
            text = yaml.dump(gateway_config(upstream, ports + 10, TOTAL, spool) | settings, Dumper=yaml.CSafeDumper)
            config.write_text(text)
            found = [
                start(options.root, config, ports + 10, run_dir / "gateway.log") for _ in range(options.rounds + 1)
            ][1:]
            cells = [
                f"{1e3 * statistics.median(each):.0f} ({1e3 * min(each):.0f})" for each in zip(*found, strict=True)
            ]
            print(f"| {what} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
