# kill -9 of `audit compact` and `audit expire` at random moments, again and again: after each the tables say the truth,
# and the one that is let live finishes what the killed ones began.
#
#     python -m tests.audit.stream.kill_upkeep --kills 10
#
# Tables of many small commits over several days, copies and rubbish among them, are made in this process. Then each
# kill starts the command as an operator does, in a process group of its own, Java and all.

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from gateway.audit import store
from gateway.audit.batch import job
from gateway.audit.batch.query import AuditQuery
from gateway.audit.batch.rollups.update import update_rollups
from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.spark import spark_session
from gateway.audit.stream import stream, upkeep
from gateway.audit.tables import table_version
from tests.audit.records import START, Row, interval, topic_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS: Final = 86_400_000
DAYS: Final = 4
_START_TIMEOUT_S: Final = 600.0
Sums = dict[tuple[str, int], int]  # offered bytes by client and start of the interval


@dataclass
class Outcome:
    """What it came to."""

    kills: int
    with_leftovers: int  # kills after which files lay there that readers do not see
    wrong: list[str]  # what was found that is not the truth


def lines(intervals: int) -> list[str]:
    """Two workers, some days; the second one's life ends after half of them."""
    step = DAYS * DAY_MS // intervals
    return [
        line
        for seq in range(intervals)
        for worker in range(1 if seq > intervals // 2 else 2)
        for line in interval(
            seq,
            [Row(client_id=f"c{i}", bytes=seq * 17 + i + worker) for i in range(5)],
            worker=worker,
            start_ms=START + seq * step,
            final=seq == intervals // 2 and worker == 1,
        )
    ]


def fill(spark: SparkSession, folder: Path, log: Sequence[str], commits: int) -> store.AuditTables:
    """Tables of that log in so many commits; every tenth record twice, and one line of rubbish in each."""
    tables = store.open_tables(spark, str(folder), make=True)
    writer = store.TableWriter(tables)
    size = -(-len(log) // commits)
    offset = 0
    for first in range(0, len(log), size):
        part = log[first : first + size]
        sent = [*part, *part[::10], "rubbish"]
        stream.add_batch(writer, _batch(spark, sent, offset), "id")
        if first % (2 * size):  # roll-ups behind every second batch, and not behind the last one
            update_rollups(tables)
        offset += len(sent)
    return tables


def _batch(spark: SparkSession, sent: Sequence[str], offset: int) -> DataFrame:
    return topic_batch(spark, [(0, offset + i, line) for i, line in enumerate(sent)])


def truth(log: Sequence[str], first_day_ms: int = 0) -> Sums:
    """What the table `usage` has to hold of that log."""
    from policies import usage

    sums: Sums = defaultdict(int)
    for record in map(usage.decode_record, log):
        if record["start_ms"] // DAY_MS * DAY_MS >= first_day_ms:
            for row in record["rows"]:
                sums[row["client_id"], record["start_ms"]] += row["bytes"]
    return dict(sums)


def held(spark: SparkSession, folder: Path) -> tuple[Sums, int, int]:
    """What it holds, how many copies were found, and how many gaps there are, as a new reader sees it."""
    tables = store.open_tables(spark, str(folder))
    rows = tables.read_table("usage").groupBy("client_id", "start_ms").sum("bytes").collect()
    sums = {(row[0], row[1]): row[2] for row in rows}
    for window_ms in WINDOW_LENGTHS.values():
        report = job.audit_tables(tables, AuditQuery((), window_ms))
        windows: Sums = defaultdict(int)
        for (_, start_ms), size in sums.items():
            windows["", start_ms - start_ms % window_ms] += size
        if windows != {("", row["window_start_ms"]): row["offered_bytes"] for row in report.rows}:
            sums = windows  # which no truth is like
    return sums, report.integrity.duplicates, report.integrity.gaps_total


def run(
    spark: SparkSession, folder: Path, *, kills: int, intervals: int = 80, commits: int = 8, seed: int = 1
) -> Outcome:
    """The whole experiment in an empty folder: the first half of the kills hits compact, the others expire."""
    chance = random.Random(seed)
    log = lines(intervals)
    tables = fill(spark, folder, log, commits)
    outcome = Outcome(0, 0, [])
    copies = held(spark, folder)[1]
    horizon = (START // DAY_MS + 2) * DAY_MS
    keep_ms = table_version.now_ms() - horizon - DAY_MS // 2  # days go as wholes: this holds for twelve hours from now
    compact = ["compact", str(folder), "--grace", "0s"]
    expire = ["expire", str(folder), "--keep", f"{keep_ms // 1000}s", "--grace", "0s"]
    for number in range(kills):
        compacting = number < -(-kills // 2)
        if compacting and number:  # the one before may have been killed when it was through
            more = interval(0, boot=f"more{number}", final=True)
            stream.add_batch(store.TableWriter(tables), _batch(spark, more, 1_000_000 + number), "id")
            log += more
        outcome.kills += _run_and_kill(compact if compacting else expire, chance)
        outcome.with_leftovers += _leftovers(tables)
        # Killed before its one commit or after it: nothing in between.
        sums, found, gaps = held(spark, folder)
        allowed = [truth(log)] if compacting else [truth(log), truth(log, horizon)]
        if sums not in allowed or gaps or (compacting and found != copies):
            outcome.wrong.append(f"after kill {number + 1}: {sum(sums.values()):,} bytes, {found} copies, {gaps} gaps")
        print(f"kill {number + 1} of {kills}", file=sys.stderr, flush=True)
        if number + 1 == -(-kills // 2):
            upkeep.compact_tables(store.open_tables(spark, str(folder)), grace_ms=0)
            tidy = len(_live(tables)) <= DAYS + 1 and not _leftovers(tables)
            if held(spark, folder) != (truth(log), copies, 0) or not tidy:
                outcome.wrong.append("after compact")
    upkeep.expire_usage(store.open_tables(spark, str(folder)), keep_ms, grace_ms=0)
    sums, _, gaps = held(spark, folder)
    if sums != truth(log, horizon) or gaps or _leftovers(tables):
        outcome.wrong.append(f"after expire: {sum(sums.values()):,} bytes, {gaps} gaps")
    return outcome


def _command(args: Sequence[str]) -> list[str]:
    # The command refuses a grace that could take a stream's files; here no stream is at work.
    run = "import sys; from gateway.audit import cli; from gateway.audit.stream import command; "
    run += "command.MIN_GRACE_MS = 0; sys.exit(cli.main(sys.argv[1:]))"
    return [sys.executable, "-c", run, *args, "--conf", "spark.master=local[2]"]


def _run_and_kill(args: Sequence[str], chance: random.Random) -> bool:
    """Start it, and kill it at a random moment of its work; False: it came to its end before."""
    process = subprocess.Popen(
        _command(args), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert process.stderr is not None
    at_work = threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.stderr, at_work))
    watcher.start()
    try:
        assert at_work.wait(_START_TIMEOUT_S), "it did not come to work"
        process.wait(chance.uniform(0.0, 8.0))  # the moment is what is random here
    except subprocess.TimeoutExpired:
        return True
    else:
        assert process.returncode == 0, args
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        watcher.join()


def _watch(stderr: IO[str], at_work: threading.Event) -> None:
    with stderr:
        for line in stderr:
            if "records: " in line:  # what it does to them
                at_work.set()
    at_work.set()


def _live(tables: store.AuditTables) -> set[str]:
    return {path.rpartition("/")[2] for path in tables.load_records().inputFiles()}


def _leftovers(tables: store.AuditTables) -> bool:
    root = Path(tables.root.removeprefix("file:"))
    return any(path.name not in _live(tables) for path in root.glob("records/date=*/*.parquet"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as name,
        spark_session.open_session({"spark.master": "local[2]"}, kafka=False, delta=True) as spark,
    ):
        outcome = run(spark, Path(name) / "tables", kills=options.kills, seed=options.seed)
    print(
        f"compact and expire: {outcome.kills} kills, {outcome.with_leftovers} left files behind,"
        f" {time.monotonic() - began:.0f} s: {'; '.join(outcome.wrong) or 'exact each time'}"
    )
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
