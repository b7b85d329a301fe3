# kill -9 of the streaming audit in mid-batch, again and again, and the tables add up to the truth in the end.
#
#     python -m tests.audit.stream.kill_stream --kills 20 [--control]
#
# A topic of four uneven partitions (most of an hour in one of them, copies and rubbish between) is read in many small
# batches by `produce-gateway audit stream`, whose process group, Java and all, is killed at a random moment and started
# anew; every fifth time its checkpoint is lost as well. --control runs the same against a job that appends what each
# batch holds and trusts its checkpoint, as tutorials have it: it must fail.

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.audit import cli
from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.stream.stream import StreamPlan
from gateway.embedded import EmbeddedCluster
from tests.audit.records import START, Row, as_json, interval, truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BY = ("topic", "client_id", "outcome")
WINDOWS = ("1d", "1h", "1m", "30s")
_START_TIMEOUT_S = 600.0


@dataclass
class Outcome:
    """What it came to."""

    kills: int
    in_batch: int  # kills after which a batch was there that the checkpoint did not know, or files of half a batch
    lost_checkpoints: int
    expected: dict[tuple[object, ...], int]
    got: dict[tuple[object, ...], int]
    duplicates: int = 0
    malformed: int = 0

    @property
    def exact(self) -> bool:
        return self.expected == self.got


def usage_log(intervals: int) -> list[str]:
    """An hour of four workers."""
    step = 3_600_000 // intervals
    return [
        line
        for seq in range(intervals)
        for worker in range(4)
        for line in interval(
            seq,
            [
                Row(topic=f"t{i % 3}", client_id=f"c{i}", bytes=seq * 31 + i + worker, outcome=outcome, reason=reason)
                for i, (outcome, reason) in enumerate([("accepted", ""), ("rejected", "fence"), ("errored", "X")] * 2)
            ],
            worker=worker,
            start_ms=START + seq * step,
            final=seq == intervals - 1,
        )
    ]


def fill(bootstrap_servers: str, topic: str, lines: Sequence[str], chance: random.Random) -> tuple[int, int]:
    """The log into four partitions, three quarters of it into one; gives how many copies and how much rubbish."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(120)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    copies = rubbish = 0
    for line in lines:
        home = chance.choice([0] * 12 + [1, 2, 2, 3])
        producer.produce(topic, line, partition=home)
        if chance.random() < 0.1:
            producer.produce(topic, line, partition=chance.randrange(4))
            copies += 1
        if chance.random() < 0.02:
            producer.produce(topic, line[: len(line) // 2], partition=chance.randrange(4))
            rubbish += 1
        producer.poll(0)
    assert producer.flush(60) == 0
    return copies, rubbish


def run(
    bootstrap_servers: str,
    folder: Path,
    *,
    kills: int,
    intervals: int = 600,
    batch: int = 60,
    seed: int = 1,
    control: bool = False,
    spark: SparkSession | None = None,
) -> Outcome:
    """The whole experiment in an empty folder. With `spark` the run that is not killed, and the sums, are its work."""
    chance = random.Random(seed)
    lines = usage_log(intervals)
    topic = f"kill-{uuid.uuid4()}"
    copies, rubbish = fill(bootstrap_servers, topic, lines, chance)
    out, checkpoint = folder / "tables", folder / "checkpoint"
    if control:
        command = [sys.executable, "-m", "tests.audit.stream.kill_stream", "--append", topic]
        command += ["--bootstrap-servers", bootstrap_servers, "--folder", str(folder), "--batch", str(batch)]
    else:
        command = [sys.executable, "-m", "gateway.audit", "stream", "--bootstrap-servers", bootstrap_servers]
        command += ["--topic", topic, "--output", str(out), "--checkpoint", str(checkpoint), "--once"]
        # Roll-ups after each batch: as many kills hit these.
        command += ["--max-records", str(batch), "--derive-every", "1s", "--conf", "spark.master=local[2]"]
    in_batch = lost = 0
    for number in range(kills):
        if not _run_and_kill(command, chance):
            print("it came to its end before it could be killed: more --intervals", file=sys.stderr)
            break
        in_batch += _uncommitted(out, checkpoint)
        if not control and number % 5 == 4:
            shutil.rmtree(checkpoint)
            lost += 1
        print(f"kill {number + 1} of {kills}", file=sys.stderr, flush=True)
    if spark is None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=1200)
    else:
        _stream(spark, out, StreamPlan(bootstrap_servers, topic, {}, str(checkpoint)))
    expected = {key: sums[0] for key, sums in truth(lines, BY).items()}
    if control:
        return Outcome(kills, in_batch, lost, expected, json.loads(_totals(out, plain=True), object_pairs_hook=_keys))
    for window in WINDOWS if spark is None else WINDOWS[-1:]:  # each is answered from another table
        answer = json.loads(_totals(out, window)) if spark is None else _answer(spark, out, window)
        got: dict[tuple[object, ...], int] = defaultdict(int)
        for row in answer["rows"]:
            got[tuple(row[name] for name in BY)] += row["offered"]["bytes"]
        trust = answer["integrity"]
        assert (trust["duplicates"], trust["malformed"], trust["gaps_total"]) == (copies, rubbish, 0), trust
        if got != expected:
            break
    if spark is not None and got == expected:  # the same tables, all at once
        got = next((sums for sums in _sum_tables(spark, out) if sums != expected), got)
    return Outcome(kills, in_batch, lost, expected, got, trust["duplicates"], trust["malformed"])


def _stream(spark: SparkSession, out: Path, plan: StreamPlan) -> None:
    from gateway.audit import store
    from gateway.audit.stream import stream

    stream.run_stream(spark, store.open_tables(spark, str(out), make=True), plan)


def _answer(spark: SparkSession, out: Path, window: str) -> dict[str, Any]:
    from gateway.audit import store
    from gateway.audit.batch import job, tables
    from gateway.audit.batch.query import AuditQuery

    question = AuditQuery(BY, cli.parse_duration_ms("--window", window))
    found: dict[str, Any] = as_json(
        tables.report_answer(job.audit_tables(store.open_tables(spark, str(out)), question))
    )
    return found


def _sum_tables(spark: SparkSession, out: Path) -> list[dict[tuple[object, ...], int]]:
    """What each table of sums adds up to."""
    from pyspark.sql import DataFrame

    from gateway.audit import store

    tables = store.open_tables(spark, str(out))
    frames = [tables.read_table(name).selectExpr(f"'{name}' name", *BY, "bytes") for name in WINDOW_LENGTHS]
    found: dict[str, dict[tuple[object, ...], int]] = {name: {} for name in WINDOW_LENGTHS}
    for row in reduce(DataFrame.unionByName, frames).groupBy("name", *BY).sum("bytes").collect():
        found[row[0]][row[1:-1]] = row[-1]
    return [*found.values()]


def _keys(pairs: list[tuple[str, int]]) -> dict[tuple[object, ...], int]:
    return {tuple(key.split("|")): value for key, value in pairs}


def _totals(out: Path, window: str = "", plain: bool = False) -> str:
    what = ["tests.audit.stream.kill_stream", "--sum"] if plain else ["gateway.audit", "--tables"]
    command = [sys.executable, "-m", what[0], what[1], str(out)]
    command += [] if plain else ["--by", ",".join(BY), "--window", window, "--format", "json", "--quiet"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=900).stdout


def _run_and_kill(command: Sequence[str], chance: random.Random) -> bool:
    """Start it, let some batches pass, and kill it at a random moment; False: it ended by itself."""
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert process.stderr is not None
    batches = threading.Event()
    threading.Thread(target=_watch, args=(process.stderr, batches), daemon=True).start()
    if not batches.wait(_START_TIMEOUT_S):
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError("no batch came")
    # The moment is what is random here: within the batches that follow the first.
    try:
        process.wait(chance.uniform(0.0, 3.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def _watch(stderr: IO[str], batches: threading.Event) -> None:
    with stderr:
        for line in stderr:
            if "batch " in line:
                batches.set()
    batches.set()


def _uncommitted(out: Path, checkpoint: Path) -> bool:
    """Whether it was killed within a batch: Spark had planned it and not noted its end."""
    planned = {path.name for path in checkpoint.glob("offsets/[0-9]*")}
    return bool(planned - {path.name for path in checkpoint.glob("commits/[0-9]*")})


def _append(bootstrap_servers: str, topic: str, folder: Path, batch: int) -> None:
    """The job without protection."""
    from pyspark.sql import DataFrame

    from gateway.audit.batch import transforms
    from gateway.audit.spark import spark_session
    from gateway.audit.stream import stream

    def take(frame: DataFrame, number: int) -> None:
        decoded = stream.decode_batch(frame).where("problem is null")
        counted = stream.mark_counted(decoded, None).where("counts")  # copies within the batch are not its failing
        transforms.explode_rows(counted).write.mode("append").parquet(str(folder / "tables"))
        print(f"batch {number}", file=sys.stderr, flush=True)

    with spark_session.open_session({"spark.master": "local[2]"}) as spark:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        writer = reader.option("maxOffsetsPerTrigger", batch).load().writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()


def _sum(path: str) -> None:
    from gateway.audit.spark import spark_session

    with spark_session.open_session(kafka=False) as spark:
        rows = spark.read.parquet(path).groupBy(*BY).sum("bytes").collect()
    print(json.dumps({"|".join(row[:-1]): row[-1] for row in rows}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--intervals", type=int, default=900)
    parser.add_argument("--batch", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--append", metavar="TOPIC", help=argparse.SUPPRESS)
    parser.add_argument("--sum", metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap-servers", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.append:
        _append(options.bootstrap_servers, options.append, options.folder, options.batch)
        return 0
    if options.sum:
        _sum(options.sum)
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, EmbeddedCluster(1) as cluster:
        outcome = run(
            cluster.bootstrap_servers,
            Path(name),
            kills=options.kills,
            intervals=options.intervals,
            batch=options.batch,
            seed=options.seed,
            control=options.control,
        )
    difference = sum(outcome.got.values()) - sum(outcome.expected.values())
    print(
        f"{outcome.kills} kills, {outcome.in_batch} within a batch, {outcome.lost_checkpoints} lost checkpoints,"
        f" {time.monotonic() - began:.0f} s: {sum(outcome.expected.values()):,} bytes in {len(outcome.expected)} sums,"
        f" {'exact' if outcome.exact else f'WRONG by {difference:+,}'}; copies {outcome.duplicates},"
        f" malformed {outcome.malformed}"
    )
    return 0 if outcome.exact else 1


if __name__ == "__main__":
    sys.exit(main())
