# Which table answers which part of a question's time, and how runs of numbers become fewer: without Spark.

from __future__ import annotations

import random

import pytest

from gateway.audit.batch.rollups.runs import SORT_COLUMNS, join_runs
from gateway.audit.batch.rollups.windows import TimeRange, split_time
from gateway.audit.columns import WINDOW_LENGTHS
from policies import usage

DAY, HOUR, MINUTE = WINDOW_LENGTHS.values()


@pytest.mark.parametrize(
    ("bounds", "window_ms", "tables", "rest"),
    [
        ((None, None), None, {"usage_1d": [(None, None)]}, []),
        ((None, None), 7 * DAY, {"usage_1d": [(None, None)]}, []),
        ((None, None), 2 * HOUR, {"usage_1h": [(None, None)]}, []),
        ((None, None), 5 * MINUTE, {"usage_1m": [(None, None)]}, []),
        ((None, None), 90_000, {}, [(None, None)]),
        ((DAY, 2 * DAY), None, {"usage_1d": [(DAY, 2 * DAY)]}, []),
        ((DAY + 5, DAY + 6), None, {}, [(DAY + 5, DAY + 6)]),
        (
            (DAY - HOUR, 2 * DAY + MINUTE + 1),
            None,
            {
                "usage_1d": [(DAY, 2 * DAY)],
                "usage_1h": [(DAY - HOUR, DAY)],
                "usage_1m": [(2 * DAY, 2 * DAY + MINUTE)],
            },
            [(2 * DAY + MINUTE, 2 * DAY + MINUTE + 1)],
        ),
    ],
)
def test_the_longest_windows_answer_what_they_can(
    bounds: TimeRange, window_ms: int | None, tables: dict[str, list[TimeRange]], rest: list[TimeRange]
) -> None:
    assert split_time(bounds, window_ms, WINDOW_LENGTHS) == (tables, rest)


def test_the_parts_cover_the_time_without_an_overlap_and_are_whole_windows() -> None:
    chance = random.Random(4)
    for _ in range(300):
        begin, end = sorted(chance.sample(range(4 * DAY), 2))
        step = chance.choice((1, MINUTE, HOUR))
        bounds = (begin // step * step, end // step * step + step)
        usable = [table for table in WINDOW_LENGTHS if chance.random() < 0.8]
        found = split_time(bounds, chance.choice((None, MINUTE, 6 * HOUR, 1000)), usable)
        assert set(found.tables) <= set(usable)
        parts = sorted([*found.rest, *(part for parts in found.tables.values() for part in parts)])
        assert [part[0] for part in parts] + [bounds[1]] == [bounds[0]] + [part[1] for part in parts]
        for table, ranges in found.tables.items():
            assert all(edge % WINDOW_LENGTHS[table] == 0 for part in ranges for edge in part if edge is not None)


def _run(first: int, last: int, start: int, end: int, kind: str = usage.INTERVAL, **more: object) -> dict[str, object]:
    life = {"gateway": "g", "boot": "b", "worker": 0, "kind": kind, "part": 0, "parts": 1, "final": False}
    life |= dict.fromkeys((usage.CLUSTER, usage.PREVIOUS_DIGEST, usage.RECORD_DIGEST))
    life |= {"changed_records": 0, "unchecked_records": 0}
    return life | {"first_seq": first, "last_seq": last, "start_ms": start, "end_ms": end} | more


def _joined(*runs: dict[str, object]) -> list[tuple[object, ...]]:
    found = sorted(runs, key=lambda run: tuple(str(run[name]).zfill(9) for name in SORT_COLUMNS))
    return [tuple(run[name] for name in ("first_seq", "last_seq", "start_ms", "end_ms")) for run in join_runs(found)]


def test_runs_that_follow_each_other_become_one() -> None:
    assert _joined(_run(3, 5, 30, 60), _run(0, 2, 0, 30), _run(7, 7, 70, 80)) == [(0, 5, 0, 60), (7, 7, 70, 80)]
    # A clock that went back: the first start would not be the earliest, or the last end not the latest.
    assert _joined(_run(0, 2, 50, 60), _run(3, 5, 30, 70)) == [(0, 2, 50, 60), (3, 5, 30, 70)]
    assert _joined(_run(0, 2, 50, 90), _run(3, 5, 60, 70)) == [(0, 2, 50, 90), (3, 5, 60, 70)]
    # Neither another life nor the note of a loss.
    assert len(_joined(_run(0, 2, 0, 30), _run(3, 3, 30, 40, worker=1), _run(3, 3, 40, 50, usage.LOST))) == 3
    (only,) = join_runs([_run(0, 0, 0, 1), _run(1, 1, 1, 2, final=True)])
    assert only["final"] is True
    # Nothing follows the last interval, and nobody writes for two clusters.
    assert len(_joined(_run(0, 0, 0, 1, final=True), _run(1, 1, 1, 2))) == 2
    assert len(_joined(_run(0, 0, 0, 1, cluster="a"), _run(1, 1, 1, 2, cluster="b"))) == 2


def test_a_run_of_chained_records_tells_those_that_do_not_follow_the_one_before() -> None:
    def run(seq: int, previous: str | None, own: str | None, changed: int = 0, unchecked: int = 0) -> dict[str, object]:
        counts = {"changed_records": changed, "unchecked_records": unchecked}
        return _run(seq, seq, seq, seq + 1) | {"previous_digest": previous, "record_digest": own} | counts

    (only,) = join_runs([run(0, None, "a"), run(1, "a", "b", changed=1), run(2, "x", "c", unchecked=1)])
    assert [only[name] for name in ("previous_digest", "record_digest")] == [None, "c"]
    assert [only[name] for name in ("changed_records", "unchecked_records")] == [2, 1]
    assert len([*join_runs([run(0, None, "a"), run(1, None, None)])]) == 2


def test_an_interval_with_all_its_parts_is_as_good_as_one_of_a_single_part() -> None:
    parts = [_run(1, 1, 10 + i, 20 + i, part=i, parts=3) for i in range(3)]
    assert _joined(_run(0, 0, 0, 10), *parts, _run(2, 2, 22, 30)) == [(0, 2, 0, 30)]
    assert len(_joined(_run(0, 0, 0, 10), *parts[:2], _run(2, 2, 22, 30))) == 4
    # What contradicts itself stays as it is.
    assert len(_joined(_run(1, 1, 0, 10), *parts)) == 4
