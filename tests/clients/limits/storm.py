# Every client library over a limit that delays, at several times of it for longer than any of them waits: how much it
# sends for what is acknowledged, at which rate, with which errors, duplicates and changes of order, and how long its
# records take; through one gateway and through fleets, and beside it, in the same run, under Kafka's own client quota.
# All clients run at once, each under a limit of its own; Kafka's pass through a gateway without limits, which counts
# what they send. In a fleet two clients share each limit, and each of them knows one gateway only: not the same one;
# so do two of Kafka's, which makes their requests wait as long.
#
# `python -m tests.clients.limits.storm [--modes quota group] [--times 4] [--fleet 1 2] [--backlog 60] [--rows java …]`
# (or `make storm`, an hour) prints a table. Exit code 1: a client sent more than MOST for what was acknowledged and
# more than under Kafka's quota, or had errors, duplicates or changes of order that it didn't have there.

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from gateway.embedded import EmbeddedCluster
from gateway.quotas.client import QuotaClient
from policies.quotas.names import Entity
from policies.quotas.store import Alteration, Op
from tests.clients import harness
from tests.integration.gateways import Gateway, fleet

QUOTA = 100_000  # bytes per second
RECORD = 2000
PARTITIONS = 3
MOST = 1.1  # bytes sent for one acknowledged
SPARE_S = 90.0  # for what is rejected to come again
SHARERS = 2  # clients of each limit, in a fleet
ASYNC = {"options": {"in_flight": 5}}  # calls that the application doesn't await: the library has no default
# name of a row -> client, and what its driver is told
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "librdkafka": ("librdkafka", {}),
    "librdkafka, idempotent": ("librdkafka", {"idempotence": True}),
    "librdkafka, acks=1": ("librdkafka", {"acks": 1}),
    "java": ("java", {}),
    "franz-go": ("franz-go", {}),
    "sarama": ("sarama", {}),
    "kafka-python": ("kafka-python", {}),
    "aiokafka": ("aiokafka", {}),
    "kafkajs": ("kafkajs", {"batch_records": 5, **ASYNC}),
    "kafka-go": ("kafka-go", {}),
    "platformatic": ("platformatic", {"batch_records": 5, **ASYNC}),
}
SENT = ("accepted", "rejected", "discarded", "unanswered", "dropped")


class Outcome(NamedTuple):
    """What became of one run. `sent`: bytes for one acknowledged; `rate`: of the limit, until the last acknowledgement;
    `p99_s`: seconds from the time at which a record was due to its acknowledgement, by whole seconds: most of it in the
    client's own queue.
    """

    sent: float
    rate: float
    errors: dict[str, int]
    unresolved: int
    duplicates: int
    reordered: int
    lost: int
    p99_s: int

    def __str__(self) -> str:
        errors = ", ".join(f"{n} x {name}" for name, n in self.errors.items()) or "0"
        left = f", {self.unresolved} open" if self.unresolved else ""
        lost = f", {self.lost} LOST" if self.lost else ""
        order = f"{self.duplicates} · {self.reordered}{lost}"
        return f"{self.sent:.2f} · {self.rate:.2f} · {errors}{left} · {order} · {self.p99_s} s"

    @property
    def bad(self) -> int:
        return sum(self.errors.values()) + self.unresolved + self.duplicates + self.reordered + self.lost


class Run(NamedTuple):
    """One client. `kafkas`: under Kafka's own quota; `number`: among those that share a limit."""

    row: str
    kafkas: bool
    number: int

    @property
    def client_id(self) -> str:
        name = "".join(char if char.isalnum() else "-" for char in self.row)
        return f"{name}.kafka" if self.kafkas else name

    def topic(self, mark: str) -> str:
        return f"{self.client_id}.{mark}.{self.number}"


def settings(mode: str, runs: Sequence[Run], mark: str) -> dict[str, Any]:
    """A gateway's limits: one of QUOTA for each row."""
    names = sorted({run.client_id for run in runs})
    if mode == "quota":
        return {"client_quotas": [{"client_id": name, "producer_byte_rate": QUOTA} for name in names]}
    if mode == "group":
        groups = {name: {"publishRateInBytes": QUOTA} for name in names}
        return {"resource_groups": {"groups": groups, "tenants": {name: name for name in names}}}
    topics = {run.topic(mark): {"bytes.in.per.sec.threshold": QUOTA * len(names) / len(runs)} for run in runs}
    total = {"total.bytes.in.per.sec.threshold": QUOTA * len(names), "topics": topics}
    return {"thresholds": {**total, "on_exceed": "delay"}}


def drive(run: Run, bootstrap: str, mark: str, count: int, rate: float, timeout_s: float) -> harness.Result:
    client, given = ROWS[run.row]
    return harness.run(
        client,
        "produce",
        bootstrap,
        topics=[run.topic(mark)],
        partitions=PARTITIONS,
        count=count,
        record_bytes=RECORD,
        rate=rate,
        run="storm",
        client_id=run.client_id,
        compression="none",
        timeout_s=timeout_s,
        **given,
    )


def sent_to(gateways: Iterable[Gateway]) -> dict[str, dict[str, float]]:
    """Topic -> outcome -> bytes."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for gateway in gateways:
        for family in text_string_to_metric_families(gateway.metrics()):
            for sample in family.samples:
                if sample.name.endswith("_produce_bytes_total"):
                    found[sample.labels["topic"]][sample.labels["outcome"]] += sample.value
    return found


def p99(timelines: Iterable[Sequence[int]], rate: float) -> int:
    """Seconds. `timelines`: records acknowledged in each second; they were due in that order, `rate` a second."""
    waits = [
        second + 1 - number / rate
        for timeline in timelines
        for number, second in enumerate(second for second, count in enumerate(timeline) for _ in range(count))
    ]
    return round(sorted(waits)[int(len(waits) * 0.99)]) if waits else 0


def judged(
    results: dict[Run, harness.Result], direct: str, mark: str, rate: float, sent: dict[str, dict[str, float]]
) -> Outcome:
    """Of the clients of one limit."""
    bytes_sent = accepted = there = acknowledged = open_ = duplicates = reordered = lost = 0.0
    errors: Counter[str] = Counter()
    for run, result in results.items():
        topic = run.topic(mark)
        log = harness.read_back(direct, [topic], ROWS[run.row][0], "storm", record_bytes=RECORD, timeout_s=120)
        verdict = harness.judge(result, log)
        there += len(log.numbers())
        accepted += sent[topic].get("accepted", 0.0)
        bytes_sent += sum(sent[topic].get(outcome, 0.0) for outcome in SENT)
        acknowledged += verdict.acknowledged
        errors.update(result["errors"])
        open_ += len(result["unresolved"])
        duplicates += verdict.duplicates
        reordered += verdict.reordered
        lost += len(verdict.lost)
    timelines = [result["timeline"] for result in results.values()]
    each = accepted / max(1, there)
    if "--verbose" in sys.argv:
        told = {run.topic(mark): dict(sent[run.topic(mark)]) for run in results}
        print(told, there, timelines, file=sys.stderr, flush=True)
    return Outcome(
        bytes_sent / max(1.0, each * acknowledged),
        sum(map(sum, timelines)) * each / QUOTA / max(1, *map(len, timelines)),
        dict(errors),
        int(open_),
        int(duplicates),
        int(reordered),
        int(lost),
        p99(timelines, rate),
    )


def measure(
    mode: str, times: float, gateways: int, backlog_s: float, rows: Sequence[str], *, with_kafka: bool
) -> dict[tuple[str, bool], Outcome]:
    """By row, and whether it is under Kafka's own quota."""
    mark = uuid.uuid4().hex[:6]
    sharers = min(gateways, SHARERS)
    offer_s = backlog_s / (times - 1)  # until so much is in the clients' queues
    rate = times * QUOTA / RECORD / sharers  # of each
    timeout_s = backlog_s + offer_s + SPARE_S
    limited = [Run(row, False, number) for row in rows for number in range(sharers)]
    runs = limited + [run._replace(kafkas=True) for run in limited if with_kafka]
    with ExitStack() as stack:
        cluster = stack.enter_context(EmbeddedCluster(1, {}, heap_mb=512))
        direct = cluster.bootstrap_servers
        members = stack.enter_context(fleet(cluster, gateways, settings=settings(mode, limited, mark)))
        plain = stack.enter_context(Gateway(direct, {"client_quotas_api": "upstream"}))
        names = sorted({run.client_id for run in runs if run.kafkas})
        ops = [Alteration(Entity(None, name).wire_pairs, [Op("producer_byte_rate", float(QUOTA))]) for name in names]
        refused = QuotaClient(direct).alter(ops)
        assert not any(refused), refused
        harness.create_topics(direct, [run.topic(mark) for run in runs], PARTITIONS)
        for row in rows:
            harness.PRODUCERS[ROWS[row][0]].command()  # built, before the time runs
        with ThreadPoolExecutor(len(runs)) as pool:
            futures = {}
            for run in runs:
                at = plain if run.kafkas else members[(rows.index(run.row) + run.number) % gateways]
                count = round(rate * offer_s)
                futures[run] = pool.submit(drive, run, at.bootstrap, mark, count, rate, timeout_s)
            results = {run: future.result() for run, future in futures.items()}
        time.sleep(3)  # /metrics is a little behind
        counted = sent_to([*members, plain])
        found: dict[tuple[str, bool], Outcome] = {}
        for row, kafkas in {(run.row, run.kafkas) for run in runs}:
            own = {run: result for run, result in results.items() if (run.row, run.kafkas) == (row, kafkas)}
            found[row, kafkas] = judged(own, direct, mark, rate, counted)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--modes", nargs="+", default=["quota", "group", "threshold"])
    parser.add_argument("--times", nargs="+", type=float, default=[2.0, 4.0, 10.0])
    parser.add_argument("--fleet", nargs="+", type=int, default=[1, 2, 4], help="numbers of gateways")
    parser.add_argument("--backlog", type=float, default=60.0, help="seconds of the limit, in the clients' queues")
    parser.add_argument("--rows", nargs="+", default=list(ROWS))
    parser.add_argument("--verbose", action="store_true", help="what was acknowledged in each second, on stderr")
    options = parser.parse_args(arguments)
    status = 0
    print("bytes sent for one acknowledged · rate, of the limit · errors · duplicates · out of order · p99\n")
    print("| Limit | Gateways | Client | Gateway | Kafka's own quota |\n|---|---|---|---|---|", flush=True)
    for times in options.times:
        kafkas: dict[bool, dict[str, Outcome]] = defaultdict(dict)  # at so many times, and whether two share a limit
        for mode, gateways in product(options.modes, options.fleet):
            known = kafkas[gateways > 1]
            found = measure(mode, times, gateways, options.backlog, options.rows, with_kafka=not known)
            known |= {row: outcome for (row, is_kafkas), outcome in found.items() if is_kafkas}
            for row in options.rows:
                ours, beside = found[row, False], known[row]
                print(f"| {mode}, {times:g}x | {gateways} | {row} | {ours} | {beside} |", flush=True)
                status |= ours.sent > max(MOST, beside.sent) or ours.bad > beside.bad
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
