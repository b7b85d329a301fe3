"""How the audit's tables grow with a year of usage log: what a stream, an upkeep and questions cost at several sizes.

    python -m tests.bench.audit_growth --folder DIR                 # 1, 10 and 100 million records: 8 GB, an hour
    python -m tests.bench.audit_growth --folder DIR --sizes 1,3     # in millions

A million records (tests/bench/year_log.py) come through a topic of an embedded Kafka and `audit stream` into tables,
which are compacted, and multiplied (tests/bench/multiply_tables.py) to each of the sizes. There questions are asked,
and the stream adds the next million. A line of JSON is printed for each command, with the CPU seconds and the highest
memory of all its processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.audit.tables.table_log import DAY_MS, RECORDS_TABLE, day_start_ms
from gateway.embedded import EmbeddedCluster
from tests.bench.cpu import measured
from tests.bench.multiply_tables import multiply_tables
from tests.bench.year_log import LogRecord, make_year

TOPIC: Final = "usage-of-a-year"
PARTITIONS: Final = 3
MILLION: Final = 10**6
HOUR_MS: Final = 3_600_000


def make_topic(servers: str) -> None:
    """Make the topic; its records are those of past years, and stay."""
    topic = NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([topic])[TOPIC].result(120)


def fill_topic(servers: str, records: Iterator[LogRecord]) -> int:
    """Write records; gives when the last one was written, in Unix milliseconds."""
    settings = {"compression.type": "zstd", "linger.ms": 100, "partitioner": "murmur2_random"}
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 500_000, **settings})
    time_ms = 0
    for key, time_ms, line in records:
        while True:
            with contextlib.suppress(BufferError):
                producer.produce(TOPIC, line, key, timestamp=time_ms)
                break
            producer.poll(1)
        producer.poll(0)
    assert producer.flush(120) == 0
    return time_ms


def run_audit(name: str, *arguments: str, records: int) -> None:
    """Run `produce-gateway audit …`, and print what it took."""
    took = measured([sys.executable, "-m", "gateway", "audit", *arguments, "--quiet"], stdout=subprocess.DEVNULL)
    told = {"records": records, "what": name, "cpu_s": round(took.cpu, 2), "wall_s": round(took.wall, 1)}
    print(json.dumps(told | {"java_mb": took.java_rss // 10**6, "other_mb": took.other_rss // 10**6}), flush=True)


def list_questions(tables: Path, last_ms: int) -> dict[str, list[str]]:
    """Commands by name: about times in the middle of what there is, and its end."""
    days = sorted(path.name.removeprefix("date=") for path in tables.glob(f"{RECORDS_TABLE}/date=*"))
    middle = (day_start_ms(days[0]) + last_ms) // 2 // HOUR_MS * HOUR_MS
    month = max(day_start_ms(days[0]), middle // DAY_MS * DAY_MS - 15 * DAY_MS)
    spans = {
        "an hour": (middle, HOUR_MS, "1h"),
        "a minute": (middle + 60_000, 60_000, "1m"),
        "ten seconds": (middle + 20_000, 10_000, "10s"),
        "a day": (middle // DAY_MS * DAY_MS, DAY_MS, "1h"),
        "a month": (month, 30 * DAY_MS, "1d"),
    }
    source = ["--tables", str(tables)]
    found = {
        name: [*source, *_bounds(first, first + length), "--by", "topic,principal", "--window", window]
        for name, (first, length, window) in spans.items()
    }
    last_day = _bounds(last_ms - DAY_MS, last_ms)
    found["report of a day"] = ["report", *source, *last_day, "--output", str(tables / "report.html")]
    found["top of a day"] = ["top", *source, *last_day, "--what", "rejected"]
    found["top"] = ["top", *source, "--what", "rejected"]
    return found


def _bounds(first_ms: int, end_ms: int) -> list[str]:
    texts = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at // 1000)) for at in (first_ms, end_ms)]
    return ["--from", texts[0], "--to", texts[1]]


def describe_tables(tables: Path, records: int) -> None:
    """Print files and bytes of each table, those that nobody reads any more among them."""
    for table in sorted(path for path in tables.iterdir() if path.is_dir()):
        files = [path for path in table.rglob("*") if path.is_file()]
        data = [path for path in files if path.suffix == ".parquet" and "_delta_log" not in path.parts]
        told = {
            "files": len(data),
            "log_files": len(files) - len(data),
            "mb": sum(p.stat().st_size for p in files) / 1e6,
        }
        print(json.dumps({"records": records, "what": f"table {table.name}", **told}), flush=True)


def ask(tables: Path, last_ms: int, records: int) -> None:
    """Ask all questions of both engines."""
    for engine in ("local", "spark"):
        for name, command in list_questions(tables, last_ms).items():
            run_audit(f"{name}, {engine}", *command, "--engine", engine, records=records)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for tables and Kafka, a new one")
    parser.add_argument("--sizes", default="1,10,100", help="in millions of records (%(default)s)")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    year = make_year()
    with EmbeddedCluster(1, base_dir=folder / "kafka") as cluster:
        servers = cluster.bootstrap_servers
        stream = ["stream", "--bootstrap-servers", servers, "--topic", TOPIC, "--output"]
        make_topic(servers)
        first = folder / "first"
        last_ms = fill_topic(servers, islice(year, MILLION))
        run_audit("stream of the first million", *stream, str(first), records=0)
        run_audit("compact", "compact", str(first), records=MILLION)
        fill_topic(servers, islice(year, MILLION))
        for size in map(int, options.sizes.split(",")):
            tables = folder / f"{size}-million"
            multiply_tables(first, tables, size - 1)
            describe_tables(tables, size * MILLION)
            ask(tables, last_ms, size * MILLION)
            run_audit("stream of another million", *stream, str(tables), records=size * MILLION)
            run_audit("stream of nothing", *stream, str(tables), records=(size + 1) * MILLION)
            run_audit("compact", "compact", str(tables), records=(size + 1) * MILLION)
            shutil.rmtree(tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
