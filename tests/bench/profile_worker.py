# Where a worker spends its time: the gateway alone in front of the null broker, under one of three instruments.
#
#   lines  a sampler inside the worker (SIGPROF on CPU time): source lines and functions, almost no distortion
#   calls  cProfile inside the worker: exact call counts, but small functions look dearer than they are
#   perf   Linux' perf on the worker's process: system calls and C code, no Python names before Python 3.12's -X perf
#
# `lines` and `calls` get into the worker by profiler/sitecustomize.py, so the gateway knows nothing of them.

from __future__ import annotations

import io
import pstats
import shutil
import signal
import subprocess
from pathlib import Path

from tests.bench.cpu import command_line, tree_cpu
from tests.bench.load import Scenario, measure
from tests.bench.processes import BenchError
from tests.bench.targets import IDLE_THRESHOLDS, Target, gateway, null_broker

INSTRUMENTS = ("lines", "calls", "perf")
WORKER = "gateway.data"  # what a worker's command line has in it
_SITE = Path(__file__).resolve().parent / "profiler"


def profile(instrument: str, rawload: Path, scenario: Scenario, requests: int, ports: int, run_dir: Path) -> str:
    """The instrument's report over one scenario."""
    env = {"BENCH_PROFILE": instrument, "BENCH_PROFILE_OUT": str(run_dir), "BENCH_PROFILE_MATCH": WORKER}
    site = {"PYTHONPATH": str(_SITE)} if instrument != "perf" else {}
    with (
        null_broker(rawload, ports, run_dir) as (upstream, broker),
        gateway("gateway", upstream, ports + 10, IDLE_THRESHOLDS, run_dir, env | site) as target,
    ):
        if instrument == "perf":
            return _perf(rawload, target, scenario, requests, broker, run_dir)
        sample = measure(rawload, target, scenario, requests, broker)
    speed, cpu = sample["requests_per_s"], sample["cpu_us_per_request"]
    head = f"{scenario.title}: {speed:,.0f} requests/s, {cpu:.2f} µs of CPU each, the instrument's included\n"
    return head + _written(instrument, run_dir)  # the worker wrote it when it ended


def _written(instrument: str, run_dir: Path) -> str:
    reports = sorted(run_dir.glob(f"profile-{instrument}-*"))
    if not reports:
        raise BenchError(f"no worker left a profile: no process with {WORKER} in its command line ended in good order")
    if instrument == "lines":
        return "\n".join(report.read_text() for report in reports)
    text = io.StringIO()
    pstats.Stats(*map(str, reports), stream=text).strip_dirs().sort_stats("tottime").print_stats(40)
    return text.getvalue()


def _perf(rawload: Path, target: Target, scenario: Scenario, requests: int, broker: int, run_dir: Path) -> str:
    perf = shutil.which("perf")
    if perf is None:
        raise BenchError("perf is not on PATH; --profile lines needs nothing")
    assert target.pid is not None
    workers = [pid for pid in tree_cpu(target.pid) if WORKER in command_line(pid)]
    if not workers:
        raise BenchError(f"no process with {WORKER} in its command line is running")
    data = run_dir / "perf.data"
    recorder = subprocess.Popen(
        [perf, "record", "-e", "cpu-clock", "-F", "999", "-g", "-o", str(data), "-p", ",".join(map(str, workers))],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        measure(rawload, target, scenario, requests, broker)
    finally:
        recorder.send_signal(signal.SIGINT)
        recorder.wait(30)
    done = subprocess.run(
        [perf, "report", "--stdio", "--no-children", "-g", "none", "--percent-limit", "0.5", "-i", str(data)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout or done.stderr
