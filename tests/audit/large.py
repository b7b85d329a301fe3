# A large usage log, as many gateways write it: into spool files, or into a topic. What it adds up to is told in the
# end, without Spark.
#
#     python -m tests.audit.large --records 10000000 --rows 1 --spool DIR
#     python -m tests.audit.large --records 10000000 --rows 1 --bootstrap-servers … --topic NAME
#
# Each of `--workers` lives writes an interval a second; records have `--rows` rows of a few topics, some thousand
# clients and a handful of outcomes. All are usage.encode_interval's.

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from policies import usage
from tests.audit.records import START, Row

OUTCOMES: Final = (("accepted", ""),) * 6 + (("rejected", "topic-threshold"), ("errored", "MESSAGE_TOO_LARGE"))
TOPICS, CLIENTS, PRINCIPALS = 20, 5000, 200


def row(number: int) -> Row:
    """The N-th row of all."""
    outcome, reason = OUTCOMES[number % len(OUTCOMES)]
    client = number * 7919 % CLIENTS
    return Row(
        number % 12,
        f"topic-{number * 31 % TOPICS}",
        f"User:team-{client % PRINCIPALS}",
        f"client-{client}",
        outcome,
        reason,
        number * 2654435761 % 1_000_000,
        number % 500,
        1,
    )


def lines(records: int, rows: int, workers: int, first_worker: int, last_worker: int) -> Iterator[bytes]:
    """The records of some of the workers."""
    for worker in range(first_worker, last_worker):
        last = records // workers - 1
        for seq in range(last + 1):
            first = (worker * (last + 1) + seq) * rows
            yield from usage.encode_interval(
                f"gw-{worker % 20}",
                f"boot-{worker}",
                worker,
                seq,
                [row(first + i) for i in range(rows)],
                start_ms=START + 1000 * seq,
                end_ms=START + 1000 * (seq + 1),
                final=seq == last,
            )


def _spool(options: argparse.Namespace, first: int, last: int) -> None:
    path = Path(options.spool) / f"usage-{first:08d}-large.jsonl"
    with path.open("wb") as file:
        for line in lines(options.records, options.rows, options.workers, first, last):
            file.write(line + b"\n")


def _produce(options: argparse.Namespace, first: int, last: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap_servers,
            "compression.type": "lz4",
            "linger.ms": 50,
            "queue.buffering.max.messages": 200_000,
        }
    )
    for number, line in enumerate(lines(options.records, options.rows, options.workers, first, last)):
        key = b"%d" % (first + number * options.workers // options.records)
        while True:
            try:
                producer.produce(options.topic, line, key)
                break
            except BufferError:
                producer.poll(1)
        producer.poll(0)
    assert producer.flush(120) == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=1, help="of each record")
    parser.add_argument("--workers", type=int, default=100, help="lives")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--spool", metavar="DIR")
    parser.add_argument("--bootstrap-servers")
    parser.add_argument("--topic")
    parser.add_argument("--partitions", type=int, default=4)
    options = parser.parse_args()
    began = time.monotonic()
    if options.topic:
        admin = AdminClient({"bootstrap.servers": options.bootstrap_servers})
        admin.create_topics([NewTopic(options.topic, options.partitions, 1)])[options.topic].result(120)
    share = options.workers // options.processes
    bounds = [*range(0, share * options.processes, share), options.workers]
    parts = list(itertools.pairwise(bounds))
    work = _produce if options.topic else _spool
    processes = [multiprocessing.Process(target=work, args=(options, *part)) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    every = options.records // options.workers * options.workers * options.rows
    total = sum(number * 2654435761 % 1_000_000 for number in range(every))
    print(f"{every:,} rows, {total:,} bytes, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
