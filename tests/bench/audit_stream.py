"""What a catch-up of the audit's stream costs: `produce-gateway audit stream` over a full topic, start to end.

    python -m tests.bench.audit_stream                                  # a million records, three runs
    python -m tests.bench.audit_stream --tree . --tree ../before        # two versions, in turns
    python -m tests.bench.audit_stream --bootstrap-servers HOST:PORT    # a Kafka of yours, whose topic stays

The log: `--workers` lives write an interval a second, each with `--rows` rows; a worker has twenty clients, which send
in turns, so that a minute has twenty groups of each life. CPU is that of the command and all of its processes,
Spark's start included, not that of Kafka.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.embedded import EmbeddedCluster
from policies import usage
from tests.audit.records import START, Row
from tests.bench.cpu import timed

PARTITIONS: Final = 3
CLIENTS: Final = 20  # of a worker
OUTCOMES: Final = (("accepted", ""),) * 6 + (("rejected", "topic-threshold"), ("errored", "MESSAGE_TOO_LARGE"))


def make_row(worker: int, number: int) -> Row:
    """The N-th row of a worker."""
    client = number % CLIENTS
    name = worker * CLIENTS + client
    size = number * 2_654_435_761 % 1_000_000
    outcome, reason = OUTCOMES[client % len(OUTCOMES)]
    return Row(
        client % 12, f"topic-{name % 50}", f"User:team-{name % 200}", f"client-{name}", outcome, reason, size,
        size // 2000, 1,
    )  # fmt: skip


def make_lines(records: int, rows: int, workers: int) -> Iterator[tuple[int, bytes]]:
    """The number of a worker and its record, in the order of time."""
    last = records // workers - 1
    for seq in range(last + 1):
        for worker in range(workers):
            own = [make_row(worker, seq * rows + each) for each in range(rows)]
            start = START + 1000 * seq
            for line in usage.encode_interval(
                f"gw-{worker % 10}", f"boot-{worker}", worker, seq, own, start_ms=start, end_ms=start + 1000,
                final=seq == last,
            ):  # fmt: skip
                yield worker, line


def fill_topic(servers: str, topic: str, options: argparse.Namespace) -> None:
    """Make the topic with its records, unless it is there."""
    admin = AdminClient({"bootstrap.servers": servers})
    try:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(120)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
        return
    settings = {"bootstrap.servers": servers, "compression.type": "lz4", "queue.buffering.max.messages": 500_000}
    producer = Producer(settings | {"linger.ms": 50})
    for worker, line in make_lines(options.records, options.rows, options.workers):
        while True:
            with contextlib.suppress(BufferError):
                producer.produce(topic, line, partition=worker % PARTITIONS)
                break
            producer.poll(1)
        producer.poll(0)
    assert producer.flush(120) == 0


def measure(tree: Path, servers: str, topic: str, more: Sequence[str]) -> tuple[float, float]:
    """Seconds of wall time and of CPU time of one run with the sources in `tree`, into new tables."""
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'extras'}"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gateway", "audit", "stream", "--bootstrap-servers", servers]
        command += ["--topic", topic, "--output", f"{folder}/tables", "--quiet", *more]
        return timed(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=2, help="of each record (%(default)s)")
    parser.add_argument("--workers", type=int, default=100, help="lives (%(default)s)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tree", type=Path, action="append", help="sources to run, several: in turns (.)")
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT")
    parser.add_argument("more", nargs="*", help="options of the stream, behind --")
    options = parser.parse_args(arguments)
    trees = [tree.resolve() for tree in options.tree or [Path()]]
    topic = f"bench-{options.records}-{options.rows}-{options.workers}"
    found: dict[Path, list[float]] = {tree: [] for tree in trees}
    with contextlib.ExitStack() as stack:
        servers = options.bootstrap_servers or stack.enter_context(EmbeddedCluster(1)).bootstrap_servers
        fill_topic(servers, topic, options)
        for number in range(options.runs):
            for tree in trees if number % 2 == 0 else trees[::-1]:
                wall, cpu = measure(tree, servers, topic, options.more)
                found[tree].append(cpu)
                print(f"{tree.name}: {wall:.1f} s, {cpu:.1f} s of CPU time", flush=True)
    for tree, runs in found.items():
        median = statistics.median(runs)
        print(f"{tree.name}: median {median:.1f} s of CPU time, {options.records / median:,.0f} records per CPU second")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
