# Every client library over a limit that delays, at several times of it for longer than any of them waits: how much it
# sends for what is acknowledged, at which rate, with which errors, duplicates and changes of order; and the same beside
# it, in the same run, under Kafka's own client quota. All clients run at once, each under a limit of its own; Kafka's
# pass through a gateway without limits, which counts what they send.
#
# `python -m tests.clients.storm [--modes quota group] [--times 4] [--backlog 60] [--rows java …]` (or `make storm`,
# 30 minutes) prints a table; exit code 1: a client sent more than MOST for what was acknowledged and more than
# under Kafka's quota, or had errors or duplicates that it didn't have there.

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from gateway.embedded import Cluster
from gateway.quotas.client import QuotaClient
from policies.quotas.names import Entity
from policies.quotas.store import Alteration, Op
from tests.clients import harness
from tests.clients.gateways import Gateway

QUOTA = 100_000  # bytes per second
RECORD = 2000
PARTITIONS = 3
MOST = 1.1  # bytes sent for one acknowledged
SETTLE_S = 10  # of each end of a run, that say nothing of its rate
SPARE_S = 90.0  # for what is rejected to come again
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
    """What became of one run. `sent`: bytes for one acknowledged; `rate`: of the limit."""

    sent: float
    rate: float
    errors: dict[str, int]
    unresolved: int
    duplicates: int
    reordered: int
    lost: int

    def __str__(self) -> str:
        errors = ", ".join(f"{n} x {name}" for name, n in self.errors.items()) or "0"
        left = f", {self.unresolved} open" if self.unresolved else ""
        lost = f", {self.lost} LOST" if self.lost else ""
        return f"{self.sent:.2f} · {self.rate:.2f} · {errors}{left} · {self.duplicates} · {self.reordered}{lost}"

    @property
    def bad(self) -> int:
        return sum(self.errors.values()) + self.unresolved + self.duplicates + self.lost


def settings(mode: str, rows: Iterable[str]) -> dict[str, Any]:
    """A gateway's limits: one of QUOTA for each row."""
    names = [client_id(row) for row in rows]
    if mode == "quota":
        return {"client_quotas": [{"client_id": name, "producer_byte_rate": QUOTA} for name in names]}
    if mode == "group":
        groups = {name: {"publishRateInBytes": QUOTA} for name in names}
        return {"resource_groups": {"groups": groups, "tenants": {name: name for name in names}}}
    total = {"total.bytes.in.per.sec.threshold": QUOTA * len(names), "on_exceed": "delay"}  # which all want a part of
    return {"thresholds": total}


def client_id(row: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in row)


def topic_of(row: str, kind: str, mark: str) -> str:
    return f"{client_id(row)}.{kind}.{mark}"


def drive(row: str, bootstrap: str, name: str, topic: str, count: int, rate: float, timeout_s: float) -> harness.Result:
    client, given = ROWS[row]
    return harness.run(
        client,
        "produce",
        bootstrap,
        topics=[topic],
        partitions=PARTITIONS,
        count=count,
        record_bytes=RECORD,
        rate=rate,
        run="storm",
        client_id=name,
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


def judged(row: str, direct: str, topic: str, result: harness.Result, sent: dict[str, float]) -> Outcome:
    log = harness.read_back(direct, [topic], ROWS[row][0], "storm", record_bytes=RECORD, timeout_s=120)
    verdict = harness.judge(result, log)
    there = len(log.numbers())
    each = sent.get("accepted", 0.0) / max(1, there)
    if "--verbose" in sys.argv:
        print(row, dict(sent), there, result["elapsed_s"], result["timeline"], file=sys.stderr, flush=True)
    middle = result["timeline"][SETTLE_S:-SETTLE_S]
    return Outcome(
        sum(sent.get(outcome, 0.0) for outcome in SENT) / max(1.0, each * verdict.acknowledged),
        sum(middle) * each / QUOTA / max(1, len(middle)),
        result["errors"],
        len(result["unresolved"]),
        verdict.duplicates,
        verdict.reordered,
        len(verdict.lost),
    )


def measure(mode: str, times: float, backlog_s: float, rows: list[str]) -> dict[str, list[Outcome]]:
    """Row -> under the gateway's limit, and under Kafka's own quota (mode quota)."""
    mark = uuid.uuid4().hex[:6]
    offer_s = backlog_s / (times - 1)  # until so much is in the client's queue
    count, rate = round(times * QUOTA * offer_s / RECORD), times * QUOTA / RECORD
    timeout_s = backlog_s + offer_s + SPARE_S
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(1, {}, heap_mb=384))
        direct = cluster.bootstrap_servers
        limited = stack.enter_context(Gateway(direct, settings(mode, rows), node_ids=1))
        plain = stack.enter_context(Gateway(direct, {"client_quotas_api": "upstream"}, node_ids=1))
        names = [f"{client_id(row)}.kafka" for row in rows]  # of their own: the other ones' requests come there too
        ops = [Alteration(Entity(None, name).pairs, [Op("producer_byte_rate", float(QUOTA))]) for name in names]
        refused = QuotaClient(direct).alter(ops)
        assert not any(refused), refused
        kinds = {"gateway": limited, "kafka": plain} if mode == "quota" else {"gateway": limited}
        runs = [(row, kind) for row in rows for kind in kinds]
        harness.create_topics(direct, [topic_of(row, kind, mark) for row, kind in runs], PARTITIONS)
        for row in rows:
            harness.PRODUCERS[ROWS[row][0]].command()  # built, before the time runs
        with ThreadPoolExecutor(len(runs)) as pool:
            futures = []
            for row, kind in runs:
                name = client_id(row) + (".kafka" if kind == "kafka" else "")
                topic = topic_of(row, kind, mark)
                futures.append(pool.submit(drive, row, kinds[kind].bootstrap, name, topic, count, rate, timeout_s))
            results = [future.result() for future in futures]
        time.sleep(3)  # /metrics is a little behind
        found: dict[str, list[Outcome]] = {row: [] for row in rows}
        counted = sent_to([limited, plain])
        for (row, kind), result in zip(runs, results, strict=True):
            topic = topic_of(row, kind, mark)
            found[row].append(judged(row, direct, topic, result, counted[topic]))
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--modes", nargs="+", default=["quota", "group", "threshold"])
    parser.add_argument("--times", nargs="+", type=float, default=[2.0, 4.0, 10.0])
    parser.add_argument("--backlog", type=float, default=60.0, help="seconds of the limit, in the client's queue")
    parser.add_argument("--rows", nargs="+", default=list(ROWS))
    parser.add_argument("--verbose", action="store_true", help="what was acknowledged in each second, on stderr")
    options = parser.parse_args(arguments)
    status = 0
    print("bytes sent for one acknowledged · rate, of the limit · errors · duplicates · out of order\n")
    print("| Limit | Client | Gateway | Kafka's own quota, beside it |\n|---|---|---|---|", flush=True)
    for mode in options.modes:
        for times in options.times:
            for row, outcomes in measure(mode, times, options.backlog, options.rows).items():
                ours, kafkas = outcomes[0], outcomes[1] if len(outcomes) > 1 else None
                print(f"| {mode}, {times:g}x | {row} | {ours} | {kafkas or '–'} |", flush=True)
                worst = max(MOST, kafkas.sent if kafkas else 0.0)
                status |= ours.sent > worst or ours.bad > (kafkas.bad if kafkas else 0)
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
