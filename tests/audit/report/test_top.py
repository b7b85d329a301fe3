# The top offenders: against sums made without Spark, in text and JSON.

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway.audit import cli
from gateway.audit.batch import dropped, tables
from gateway.audit.batch.query import DROPPED, AuditQuery, LogIntegrity
from gateway.audit.report import top, top_command
from gateway.audit.report.top import RankingOptions, UsageRanking
from gateway.audit.spark import schema
from policies import usage
from tests.audit.records import START, Row, as_json, interval

if TYPE_CHECKING:
    from gateway.audit.batch.query import CountedRecords

    Make = Callable[[Sequence[str | None]], CountedRecords]

TRUST: dict[str, Any] = {"malformed": 0, "problems": {}, "samples": [], "duplicates": 0, "conflicts": 0}


def _lines(rows: Sequence[Row]) -> list[str | None]:
    return [line for at in range(0, len(rows), 5) for line in interval(at // 5, rows[at : at + 5])]


def _rows(chance: random.Random) -> list[Row]:
    outcomes = ("accepted", "rejected", "errored", "dropped", "delayed")
    return [
        Row(
            client_id=f"client-{chance.randrange(12)}",
            outcome=(outcome := chance.choice(outcomes)),
            reason="" if outcome == "accepted" else "some-reason",
            bytes=(size := chance.randrange(1, 1000)),
            repeats=chance.choice((None, 0, size // 3)),
        )
        for _ in range(200)
    ]


def _truth(rows: Sequence[Row], what: str) -> dict[str, int]:
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        sums = found.setdefault(row.client_id, dict.fromkeys(("discarded", "repeats", "dropped", "rejected"), 0))
        sums[row.outcome] = sums.get(row.outcome, 0) + row.bytes
        if row.outcome != "delayed":
            sums["repeats"] += row.repeats or 0
            sums["offered"] = sums.get("offered", 0) + row.bytes
    if what == "dropped":
        return {name: max(0, sums["rejected"] - sums["repeats"]) + sums["dropped"] for name, sums in found.items()}
    return {name: sums.get(what, 0) for name, sums in found.items()}


def test_the_choices_are_sums_that_exist() -> None:
    assert set(top_command.RANKED_SUMS) - {DROPPED} <= set(schema.SUMS)


def test_the_largest_come_first(records: Make) -> None:
    rows = _rows(random.Random(1))
    read = records(_lines(rows))
    for what in (DROPPED, "delayed"):
        found = top.rank_groups(read, RankingOptions(AuditQuery(("client_id",)), what, 4))
        sums = {name: value for name, value in _truth(rows, what).items() if value}
        best = sorted(sums, key=lambda name: (-sums[name], name))[:4]
        assert [row["client_id"] for row in found.rows] == best
        assert found.groups == len(sums)
        amounts = [
            dropped.count_finally_dropped(row).bytes if what == DROPPED else row[f"{what}_bytes"] for row in found.rows
        ]
        assert amounts == [sums[name] for name in best]
        assert found.totals["offered_bytes"] == sum(_truth(rows, "offered").values())


def test_each_window_has_a_top_of_its_own(records: Make) -> None:
    # Five rows a second: of each second the largest two, the equal ones by their names.
    rows = [
        Row(client_id=name, bytes=size) for name, size in zip("abcdeabcde", [5, 9, 9, 1, 0, 7, 0, 0, 8, 0], strict=True)
    ]
    asked = RankingOptions(AuditQuery(("client_id",), 1000), "accepted", 2)
    ranking = top.rank_groups(records(_lines(rows)), asked)
    seen = [(row[schema.WINDOW_COLUMN] - START, row["client_id"], row["accepted_bytes"]) for row in ranking.rows]
    assert seen == [(0, "b", 9), (0, "c", 9), (1000, "d", 8), (1000, "a", 7)]
    assert ranking.groups == 6
    assert [row["rank"] for row in as_json(top.ranking_answer(ranking))["rows"]] == [1, 2, 1, 2]


def test_by_reason_each_refusal_is_charged_where_it_came_first(records: Make) -> None:
    # One batch: rejected for one reason, again for another, then taken.
    chain = [
        Row(outcome="rejected", reason="fence", repeats=0),
        Row(outcome="rejected", reason="client-quota", repeats=100),
    ]
    read = records(_lines([*chain, Row(repeats=100)]))
    ranking = top.rank_groups(read, RankingOptions(AuditQuery(("reason",)), DROPPED, 5))
    assert [row["reason"] for row in ranking.rows] == ["fence"]
    answer = as_json(top.ranking_answer(ranking))
    assert (answer["rows"][0][dropped.BYTES_FIELD], answer["rows"][0][dropped.UPPER_BOUND_FIELD]) == (100, True)
    assert (answer["totals"][dropped.BYTES_FIELD], answer["totals"][dropped.UPPER_BOUND_FIELD]) == (0, False)


def _ranking(**trust_changes: Any) -> UsageRanking:
    def sums(**bytes_: int) -> dict[str, Any]:
        zero = {schema.sum_column(name, measure): 0 for name in schema.SUMS for measure in usage.MEASURES}
        return zero | dict.fromkeys(schema.SINGLE_SUMS, 0) | {f"{name}_bytes": value for name, value in bytes_.items()}

    rows = [
        {"client_id": "a\x1b[2J"} | sums(offered=5000, accepted=3000, rejected=2000, repeats=500, repeats_unknown=100),
        {"client_id": "b"} | sums(offered=900, accepted=100, rejected=800),
    ]
    totals = tables.sum_rows(rows) | {"offered_bytes": 10_000}
    trust = LogIntegrity(**TRUST, records=3, boots=1, gaps=[], gaps_total=0, incomplete=[], incomplete_total=0, lost=0)
    trust = replace(trust, **trust_changes)
    return UsageRanking(
        RankingOptions(AuditQuery(("client_id",)), DROPPED, 2),
        [{"kind": "spool", "name": "x"}],
        rows,
        7,
        totals,
        trust,
    )


def test_the_text_tells_rejected_attempts_and_finally_dropped_apart() -> None:
    assert top.ranking_text(_ranking()) == (
        "bytes by client id, most finally dropped first; 7 have any\n"
        "#  client id  finally dropped  rejected attempts  delayed  errored  offered  accepted\n"
        "-  ---------  ---------------  -----------------  -------  -------  -------  --------\n"
        "1  a\\x1b[2J            ≤1,500              2,000        0        0    5,000     3,000\n"
        "2  b                      800                800        0        0      900       100\n"
        "-  ---------  ---------------  -----------------  -------  -------  -------  --------\n"
        "   all                 ≤2,300              2,800        0        0   10,000     3,100\n"
        "≤ at most: attempts at one batch may be in several rows, at several workers, or be indistinguishable"
        " (docs/audit.md)\n"
        "\n"
        "records 3, duplicates 0, malformed 0, gaps 0, workers' lives 1, without an end 0\n"
        "complete"
    )


def test_what_another_worker_may_have_seen_again_is_a_bound() -> None:
    assert [line for line in top.ranking_text(_ranking(lives_overlap=True)).splitlines() if "  ≤800  " in line]
    answer = as_json(top.ranking_answer(_ranking(lives_overlap=True)))
    assert [sums[dropped.LEAST_FIELD] for sums in (*answer["rows"], answer["totals"])] == [0, 0, 0]


def test_the_json_has_every_sum() -> None:
    answer = as_json(top.ranking_answer(_ranking()))
    assert list(answer) == [
        "version", "what", "by", "window_ms", "from_ms", "to_ms", "calendar", "limit", "sources", "groups", "totals",
        "rows", "integrity",
    ]  # fmt: skip
    assert list(answer["rows"][0]) == [
        "rank", "client_id", *schema.SUMS, *schema.SINGLE_SUMS, dropped.BYTES_FIELD, dropped.LEAST_FIELD,
        dropped.UPPER_BOUND_FIELD,
    ]  # fmt: skip
    assert [
        answer["rows"][0][name] for name in (dropped.BYTES_FIELD, dropped.LEAST_FIELD, dropped.UPPER_BOUND_FIELD)
    ] == [
        1500,
        1400,
        True,
    ]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "nothing to read"),
        (("--spool", "x", "--by", ""), "--by: name the dimensions to rank"),
        (("--spool", "x", "--by", "user"), "--by: 'user' is not one of broker"),
        (("--spool", "x", "--what", "lost"), "argument --what: invalid choice: 'lost'"),
        (("--spool", "x", "--limit", "0"), "--limit: 0 is not a valid number of rows"),
        (("--spool", "x", "--window", "x"), "--window: 'x' is not a valid duration"),
    ],
)
def test_wrong_options(args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]
