# Runs of each life's numbers (condensing.RUN_SCHEMA), joined to fewer that say the same: what follows each other
# becomes one run, and an interval of which all parts are there is as good as one of a single part. Pure: Arrow in,
# Arrow out; knows neither Spark nor a table.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa

from gateway.audit.columns import BOOT_COLUMNS
from gateway.audit.records.condensing import RUN_SCHEMA
from policies import usage

SORT_COLUMNS = (*BOOT_COLUMNS, "kind", "first_seq", "last_seq", "part")
_BATCH_RUNS = 10_000

_Run = dict[str, Any]
_life = itemgetter(*BOOT_COLUMNS, "kind")
_number = itemgetter(*BOOT_COLUMNS, "kind", "first_seq", "last_seq")


def join_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """RUN_SCHEMA of the same, in the order of SORT_COLUMNS and with all runs of a life in these batches."""
    found: list[_Run] = []
    for run in join_runs(run for batch in batches for run in batch.to_pylist()):
        found.append(run)
        if len(found) == _BATCH_RUNS:
            yield pa.RecordBatch.from_pylist(found, RUN_SCHEMA)
            found = []
    yield pa.RecordBatch.from_pylist(found, RUN_SCHEMA)


def join_runs(runs: Iterable[_Run]) -> Iterator[_Run]:
    """The same of rows."""
    last: _Run | None = None
    for run in _join_parts(runs):
        if last is not None and _follows(last, run):
            last |= {name: run[name] for name in ("last_seq", "end_ms", "final")} | _join_chain([last, run])
            continue
        if last is not None:
            yield last
        last = dict(run)
    if last is not None:
        yield last


def _join_parts(runs: Iterable[_Run]) -> Iterator[_Run]:
    for _, found in groupby(runs, _number):
        parts = list(found)
        count = parts[0]["parts"]
        numbers = [(part["part"], part["parts"]) for part in parts]
        if count > 1 and numbers == [(number, count) for number in range(count)] and len(set(map(_kind, parts))) == 1:
            yield parts[0] | {
                "part": 0,
                "parts": 1,
                "final": any(part["final"] for part in parts),
                "start_ms": min(part["start_ms"] for part in parts),
                "end_ms": max(part["end_ms"] for part in parts),
                **_join_chain(parts),
            }
        else:
            yield from parts


def _kind(run: _Run) -> tuple[str | None, bool]:
    """What all records of a run share."""
    return run[usage.CLUSTER], run[usage.RECORD_DIGEST] is None


def _join_chain(runs: list[_Run]) -> _Run:
    """What a run says of the digests of these, each of which follows the one before."""
    broken = sum(run[usage.PREVIOUS_DIGEST] != before[usage.RECORD_DIGEST] for before, run in pairwise(runs))
    return {
        usage.RECORD_DIGEST: runs[-1][usage.RECORD_DIGEST],
        "changed_records": broken + sum(run["changed_records"] for run in runs),
        "unchecked_records": sum(run["unchecked_records"] for run in runs),
    }


def _follows(last: _Run, run: _Run) -> bool:
    """Whether both are one run: of a run's times the first start is the earliest, and the last end the latest; only its
    last interval may be final.
    """
    return bool(
        run["kind"] == usage.INTERVAL
        and last["parts"] == run["parts"] == 1
        and not last["final"]
        and _kind(last) == _kind(run)
        and _life(last) == _life(run)
        and last["last_seq"] + 1 == run["first_seq"]
        and last["start_ms"] <= run["start_ms"]
        and last["end_ms"] <= run["end_ms"]
    )
