"""What a what-if of many rows costs: `produce-gateway audit what-if` over a usage log of a busy fleet, start to end.

    .venv/bin/python -m tests.bench.what_if                            # a million rows, three runs
    .venv/bin/python -m tests.bench.what_if --keep DIR                 # leaves the log and each run's answer there
    .venv/bin/python -m tests.bench.what_if --rows 4000000 --runs 1

The log: two workers of a gateway, two brokers, ten topics, 200 clients, a row for each client and second. A third of
the topics is over its threshold for a part of each quarter of an hour; its clients are rejected then, and send again
what was rejected. The policy asked about limits other topics, so that most are decided otherwise than they were. CPU is
that of the command and all of its processes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from policies import usage
from tests.audit.records import START, Row
from tests.bench.cpu import timed

BROKERS: Final = (1, 2)
WORKERS: Final = 2
CLIENTS: Final = 20  # of each topic
PERIOD_S: Final = 900
REJECTED_S: Final = 300  # of each period, and for a third of the topics
RATES: Final = {f"topic-{number}": 40_000.0 * (1 + number) for number in range(10)}  # bytes per second, all clients
POLICY: Final = """\
upstream: {bootstrap_servers: "localhost:9092"}
internal_topics: none
listener: {host: 127.0.0.1, port: 19092}
thresholds:
  total.bytes.in.per.sec.threshold: 900kB
  topics:
    topic-2: {bytes.in.per.sec.threshold: 50kB}
    topic-4: {bytes.in.per.sec.threshold: 60kB}
    topic-5: {bytes.in.per.sec.threshold: 80kB}
    topic-7: {bytes.in.per.sec.threshold: 90kB}
    topic-8: {bytes.in.per.sec.threshold: 100kB}
    topic-9: {bytes.in.per.sec.threshold: 120kB}
"""


def second(number: int, worker: int, chance: random.Random, owed: dict[str, int]) -> Iterator[Row]:
    """The rows of a worker's interval. `owed`: bytes that were rejected and have not come again, by client."""
    for topic, (name, rate) in enumerate(RATES.items()):
        rejects = topic % 3 == 0 and number % PERIOD_S >= PERIOD_S - REJECTED_S - 60 * topic
        for client in range(CLIENTS):
            if client % WORKERS != worker:
                continue
            who = f"client-{topic}-{client}"
            size = round(rate / CLIENTS * chance.uniform(0.5, 1.5))
            again = min(owed.get(who, 0), size)
            owed[who] = owed.get(who, 0) - again + (size if rejects else 0)
            wait_ms = 5000 - number % 5 * 1000 - 500 if rejects else 0
            yield Row(
                BROKERS[client // WORKERS % len(BROKERS)],
                name,
                f"User:team-{client % 4}",
                who,
                *(("rejected", "topic-threshold") if rejects else ("accepted", "")),
                size,
                max(1, size // 500),
                1 + size // 16_384,
                wait_ms * (1 + size // 16_384),
                repeats=again,
            )


def write(path: Path, rows: int) -> int:
    """A spool file of about that many rows; returns their number."""
    chance, written = random.Random(7), 0
    seconds = max(1, rows // (len(RATES) * CLIENTS))
    owed: list[dict[str, int]] = [{} for _ in range(WORKERS)]
    with path.open("wb") as file:
        for number in range(seconds):
            for worker in range(WORKERS):
                own = list(second(number, worker, chance, owed[worker]))
                written += len(own)
                start = START + 1000 * number
                for line in usage.encode_interval(
                    "gw", f"boot-{worker}", worker, number, own, start_ms=start, end_ms=start + 1000,
                    final=number == seconds - 1,
                ):  # fmt: skip
                    file.write(line + b"\n")
    return written


def measure(policy: Path, log: Path, answer: Path) -> tuple[float, float]:
    """Seconds of wall time and of CPU time of one run."""
    command = [sys.executable, "-m", "gateway", "audit", "what-if", str(policy), "--spool", str(log)]
    command += ["--by", "topic", "--window", "1m", "--format", "json", "--quiet"]
    with answer.open("wb") as out:
        return timed(command, stdout=out)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        policy, log = folder / "policy.yaml", folder / "usage-00000000-bench.jsonl"
        policy.write_text(POLICY)
        rows = write(log, options.rows)
        print(f"{rows:,} rows, {log.stat().st_size / 1e6:.0f} MB", flush=True)
        runs = []
        for number in range(options.runs):
            answer = folder / f"answer-{number}.json"
            runs.append(measure(policy, log, answer))
            differing = sum(any(row["difference"].values()) for row in json.loads(answer.read_text())["rows"])
            wall, cpu = runs[-1]
            print(f"{wall:.1f} s, {cpu:.1f} s of CPU time, {differing:,} rows differ", flush=True)
    walls, cpus = zip(*runs, strict=True)
    print(
        f"best {min(walls):.1f} s ({min(cpus):.1f} s of CPU time),"
        f" median {statistics.median(walls):.1f} s ({statistics.median(cpus):.1f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
