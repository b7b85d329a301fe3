# Usage records for the audit's tests, as the gateway writes them, and what they add up to, told without Spark.

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gateway.audit.answers.answer import JSON, AuditAnswer, render_answer
from gateway.audit.local.spool import ValueBatch
from policies import usage
from policies.record_digests import chain_record, find_digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = 1_763_600_040_000  # 2025-11-20T00:54:00Z: a whole minute


@dataclass(frozen=True)
class Row:
    broker: int = 1
    topic: str = "clicks"
    principal: str = "User:alice"
    client_id: str = "app"
    outcome: str = "accepted"
    reason: str = ""
    bytes: int = 100
    messages: int = 2
    requests: int = 1
    delay_ms: int = 0
    group: str = ""
    software: str = ""
    repeats: int | None = None


def interval(
    seq: int,
    rows: Iterable[Row] = (Row(),),
    *,
    boot: str = "b1",
    worker: int = 0,
    final: bool = False,
    start_ms: int | None = None,
    storage_factor: float | None = None,
    disks: usage.DiskNotes | None = None,
    cluster: str = "",
    version: int = usage.VERSION,
) -> list[str]:
    """The lines of one interval; by default interval N is the N-th second after START."""
    start = START + 1000 * seq if start_ms is None else start_ms
    lines = usage.encode_interval(
        "gw", boot, worker, seq, rows, start_ms=start, end_ms=start + 1000, final=final, storage_factor=storage_factor,
        disks=disks, cluster=cluster, version=version,
    )  # fmt: skip
    return [line.decode() for line in lines]


def lost(seq: int, *, boot: str = "b1", worker: int = 0, now_ms: int = START + 60_000) -> str:
    return usage.encode_lost("gw", boot, worker, seq, now_ms).decode()


def topic_batch(spark: SparkSession, found: Iterable[tuple[int, int, str | None]]) -> DataFrame:
    """Lines with their partition and offset, as Spark's Kafka source gives them."""
    at = datetime.fromtimestamp(START / 1000, UTC)
    rows = [
        (None if line is None else bytearray(line.encode(errors="surrogateescape")), "usage", partition, offset, at)
        for partition, offset, line in found
    ]
    return spark.createDataFrame(rows, "value binary, topic string, partition int, offset bigint, timestamp timestamp")


# What frames of records' numbers have beside these.
UNCHAINED = (0, None, None, None, None)
UNCHAINED_COLUMNS = "part long, cluster string, previous_digest string, record_digest string, changed boolean"


def chained(lines: Iterable[str], key: bytes | None = None) -> list[str]:
    """The same with digests, as a gateway writes them."""
    before: dict[tuple[object, ...], str] = {}
    found = []
    for line in lines:
        record = json.loads(line)
        life = record["gateway"], record["boot"], record["worker"]
        made = chain_record(line.encode(), before.get(life, ""), key)
        found.append(made.decode())
        if record["kind"] == usage.INTERVAL:
            before[life] = find_digest(made)
    return found


class LineSource:
    """Lines as a source of the local engine."""

    def __init__(self, lines: Sequence[str | None]) -> None:
        self.description: dict[str, Any] = {"kind": "lines"}
        self.sizes = [len(lines)]
        self._lines = lines

    def read_batches(self, part: int = 0) -> Iterator[ValueBatch]:
        for at in range(0, len(self._lines), 7):
            some = [
                None if line is None else line.encode("utf-8", "surrogatepass") for line in self._lines[at : at + 7]
            ]
            yield ValueBatch(some, lambda number, at=at: f"line {at + number}", len(some))  # type: ignore[misc]


def truth(lines: Sequence[str], by: Sequence[str], window_ms: int | None = None) -> dict[tuple[object, ...], list[int]]:
    """(window, *by) -> bytes of offered, accepted, rejected, errored; messages offered; every record counted once."""
    sums: dict[tuple[object, ...], list[int]] = defaultdict(lambda: [0] * 5)
    seen = set()
    for line in lines:
        try:
            record = usage.decode_record(line)
        except usage.InvalidUsageRecord:
            continue
        name = (record["kind"], *usage.record_identity(record))  # a note of loss repeats the number of an interval
        if name in seen:
            continue
        seen.add(name)
        window = [record["start_ms"] // window_ms * window_ms] if window_ms else []
        for row in record["rows"]:
            into = sums[(*window, *(row[name] for name in by))]
            into[0] += row["bytes"]
            for i, outcome in enumerate(("accepted", "rejected", "errored"), start=1):
                into[i] += row["bytes"] if row["outcome"] == outcome else 0
            into[4] += row["messages"]
    return dict(sums)


def summed(rows: Iterable[dict[str, object]], keys: Sequence[str]) -> dict[tuple[object, ...], list[object]]:
    """The same of the rows that the audit gives."""
    columns = ("offered_bytes", "accepted_bytes", "rejected_bytes", "errored_bytes", "offered_messages")
    return {tuple(row[key] for key in keys): [row[column] for column in columns] for row in rows}


def as_json(answer: AuditAnswer) -> Any:
    """What -o json prints, read again."""
    return json.loads("\n".join(render_answer(answer, JSON)))


def changed(line: str, **fields: object) -> str:
    """The record with other fields; a field that is `...` is left out."""
    record = json.loads(line) | fields
    return json.dumps({name: value for name, value in record.items() if value is not ...})
