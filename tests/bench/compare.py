"""Whether the gateway has become slower: the checkout as it is, beside another revision, in turns.

    make bench-compare REV=v0.1.0 ARGS='--only small-64,wide-64 --rounds 9'

Each round measures both, in changing order; ratios are taken round by round. Exit status: 1 where a scenario is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from gateway.compiled import compilation_state
from tests.bench.cpu import command_line, machine, tree_cpu
from tests.bench.load import SCENARIOS, Scenario, build_rawload, measure
from tests.bench.processes import BenchError, free_ports
from tests.bench.results.report import WORKER
from tests.bench.results.verdict import Verdict, judge
from tests.bench.targets import IDLE_THRESHOLDS, ROOT, Target, cache_dir, gateway, null_broker

PORTS: Final = 28_000
ROUNDS: Final = 9
NEW, OLD = "new", "old"
INSTRUCTIONS: Final = "instructions:u"
_KEYS: Final = {"request": "cpu_us_per_request", "GB": "cpu_s_per_gb"}

Sample = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything started is stopped
    try:
        run = compare(options)
    except BenchError as error:
        print(f"bench-compare: {error}", file=sys.stderr)
        return 2
    if options.json is not None:
        options.json.write_text(json.dumps(run, indent=1) + "\n")
    verdicts = [verdict for scenario in run["scenarios"] for verdict in report(scenario)]
    return 1 if Verdict.SLOWER in verdicts else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench-compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("revision", help="what to compare this checkout with: a commit, branch or tag")
    parser.add_argument("--only", help=f"scenarios, comma-separated: {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each ({ROUNDS})")
    parser.add_argument("--share", type=float, default=0.25, help="of the requests that make bench sends (0.25)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    options = parser.parse_args(arguments)
    options.scenarios = [each for each in SCENARIOS if options.only is None or each.name in options.only.split(",")]
    if not options.scenarios:
        parser.error(f"--only: {options.only} names none of {', '.join(names)}")
    return options


def compare(options: argparse.Namespace) -> dict[str, Any]:
    rawload, results = build_rawload(), []
    with ExitStack() as stack:
        run_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-", dir=cache_dir())))
        other = stack.enter_context(checkout(options.revision, run_dir / "checkout"))
        ports = free_ports(PORTS, 40)
        upstream, broker = stack.enter_context(null_broker(rawload, ports, run_dir))
        targets = [
            stack.enter_context(gateway(name, upstream, ports + at, IDLE_THRESHOLDS, run_dir, root=root))
            for name, at, root in ((OLD, 10, other), (NEW, 20, ROOT))
        ]
        for scenario in options.scenarios:
            results.append(
                {"name": scenario.name, "title": scenario.title, "per": scenario.per,
                 "rounds": take_rounds(rawload, targets, scenario, broker, options)}
            )  # fmt: skip
    return {"machine": machine(ROOT), "revision": options.revision, "scenarios": results}


@contextmanager
def checkout(revision: str, folder: Path) -> Iterator[Path]:
    """The files of that revision, compiled if this one is; its packages are those of this environment.

    Raises:
        BenchError: there is no such revision here.
    """
    folder.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", revision], capture_output=True, check=False
    )
    if archive.returncode != 0:
        raise BenchError(f"{revision}: {archive.stderr.decode(errors='replace').strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    if compilation_state() == "compiled" and (folder / "setup.py").exists():
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        subprocess.run(command, cwd=folder, capture_output=True, check=True)
    yield folder


def take_rounds(
    rawload: Path, targets: Sequence[Target], scenario: Scenario, broker: int, options: argparse.Namespace
) -> list[dict[str, Sample]]:
    requests = max(100, int(scenario.requests * options.share))
    done = []
    for number in range(options.rounds):
        order = targets if number % 2 == 0 else targets[::-1]
        samples = {}
        for target in order:
            with counted_instructions(target) as counted:
                samples[target.name] = measure(rawload, target, scenario, requests, broker)
            if counted:
                samples[target.name]["instructions_per_request"] = counted[0] / requests
        if failed := {name: sample["failed"] for name, sample in samples.items() if sample["failed"]}:
            raise BenchError(f"{scenario.title}: answers with an error: {failed}")
        done.append(samples)
        figures = ", ".join(f"{name} {samples[name][_KEYS[scenario.per]]:.2f}" for name in (OLD, NEW))
        print(f"{scenario.title}: round {number + 1} of {options.rounds}: {figures}", file=sys.stderr, flush=True)
    return done


@contextmanager
def counted_instructions(target: Target) -> Iterator[list[int]]:
    """Of the target's workers, the load's warm-up included; empty where `perf stat` can't count them (no perf, a
    virtual machine, no permission).
    """
    found: list[int] = []
    perf = shutil.which("perf")
    workers = [pid for pid in tree_cpu(target.pid or 0) if WORKER in command_line(pid)]
    if perf is None or not workers:
        yield found
        return
    command = [perf, "stat", "-x", ",", "-e", INSTRUCTIONS, "-p", ",".join(map(str, workers))]
    counter = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield found
    finally:
        counter.send_signal(signal.SIGINT)
        _, said = counter.communicate(timeout=30)
    fields = [line.split(",") for line in said.splitlines() if INSTRUCTIONS in line]
    found += [int(each[0]) for each in fields if each[0].isdigit()]


def report(scenario: dict[str, Any]) -> list[Verdict]:
    """Print what came out, and return it: by CPU, and by instructions where they were counted."""
    rounds, verdicts = scenario["rounds"], []
    for key, what in ((_KEYS[scenario["per"]], "CPU"), ("instructions_per_request", "instructions")):
        if any(key not in samples[name] for samples in rounds for name in (OLD, NEW)):
            continue
        found = [samples[NEW][key] / samples[OLD][key] for samples in rounds if samples[OLD][key]]
        verdict = judge(found)
        old, new = (median([samples[name][key] for samples in rounds]) for name in (OLD, NEW))
        print(
            f"{scenario['title']}: {what} {old:,.2f} -> {new:,.2f}, ratio {median(found):.3f}"
            f" ({min(found):.2f}–{max(found):.2f}): {verdict.value}"
        )
        verdicts.append(verdict)
    return verdicts


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
