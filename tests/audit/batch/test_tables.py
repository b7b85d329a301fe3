# What a report looks like: the JSON shape that others rely on, and the text.

from __future__ import annotations

from typing import Any

import pytest

from gateway.audit.batch import query, tables
from gateway.audit.batch.query import AuditQuery, AuditReport, LogIntegrity
from gateway.audit.spark import schema
from policies import usage
from tests.audit.records import START, as_json


def _sums(**bytes_: int) -> dict[str, int]:
    zero = {schema.sum_column(name, measure): 0 for name in schema.SUMS for measure in usage.MEASURES}
    given = {schema.sum_column(name, "bytes"): value for name, value in bytes_.items()}
    return zero | given | {"offered_bytes": sum(bytes_.values())} | dict.fromkeys(schema.SINGLE_SUMS, 0)


def _integrity(**changes: Any) -> LogIntegrity:
    fields: dict[str, Any] = {
        "records": 5, "duplicates": 1, "conflicts": 0, "malformed": 0, "problems": {}, "samples": [], "boots": 2,
        "gaps": [], "gaps_total": 0, "incomplete": [], "incomplete_total": 0, "lost": 0,
    }  # fmt: skip
    return LogIntegrity(**(fields | changes))


def test_shares_and_changes_are_never_rounded_to_none_or_all() -> None:
    shares = (0, 1e-9, 0.005, 0.5, 0.996, 1 - 1e-9, 1)
    assert [tables.share_text(each, 0) for each in shares] == [
        *("0 %", "< 1 %", "< 1 %", "50 %", "> 99 %", "> 99 %", "100 %")
    ]
    assert [tables.share_text(each, 3) for each in shares] == [
        *("0.000 %", "< 0.001 %", "0.500 %", "50.000 %", "99.600 %", "> 99.999 %", "100.000 %")
    ]
    changes = (0, 1, -1, 500, -(10**6) + 1, -(10**6))
    assert [tables.change_text(10**6, each) for each in changes] == [
        *("+0.0 %", "< +0.1 %", "> -0.1 %", "+0.1 %", "> -100.0 %", "-100.0 %")
    ]


def _report(by: tuple[str, ...] = ("topic",), window_ms: int | None = None, **changes: Any) -> AuditReport:
    key = {"topic": "clicks", "client_id": "app", "outcome": "accepted"}
    window = {schema.WINDOW_COLUMN: START} if window_ms else {}
    rows = [
        window | {name: key[name] for name in by} | _sums(accepted=1_234_567),
        window | {name: f"{key[name]}2" for name in by} | _sums(accepted=3, rejected=1000),
    ]
    return AuditReport(AuditQuery(by, window_ms), [{"kind": "spool", "name": "x"}], rows, _integrity(**changes))


def _text(report: AuditReport, measures: tuple[str, ...] = usage.MEASURES) -> str:
    return "\n".join(tables.report_lines(report, measures))


def test_json_has_every_sum_at_every_row_and_in_total() -> None:
    answer = as_json(tables.report_answer(_report(window_ms=60_000)))
    assert list(answer) == [
        "version", "by", "window_ms", "from_ms", "to_ms", "calendar", "sources", "totals", "rows", "integrity",
    ]  # fmt: skip
    sums = [
        *("offered", *usage.OUTCOMES, *usage.NOTES, "maybe_appended", *schema.SINGLE_SUMS),
        *("finally_dropped_bytes", "finally_dropped_least_bytes", "finally_dropped_upper_bound"),
    ]
    assert list(answer["totals"]) == sums
    assert list(answer["rows"][0]) == ["window_start_ms", "topic", *sums]
    assert answer["rows"][1]["rejected"] == {"bytes": 1000, "messages": 0, "requests": 0}
    assert answer["totals"]["offered"]["bytes"] == 1_235_570
    assert list(answer["integrity"]) == [
        "complete", "records", "duplicates", "conflicts", "malformed", "malformed_problems", "malformed_samples",
        "boots", "gaps_total", "gaps", "incomplete_total", "incomplete", "after_final_total",
        "after_final", "lives_overlap", "clusters", "changed", "changed_lives", "unchecked", "expired",
    ]  # fmt: skip
    assert answer["integrity"]["complete"] is True


def test_a_table_shows_exact_numbers_and_the_outcomes_that_occur() -> None:
    text = _text(_report(window_ms=60_000), ("bytes",))
    assert text == (
        "bytes\n"
        "window                topic      offered   accepted  rejected attempts  errored  finally dropped\n"
        "--------------------  -------  ---------  ---------  -----------------  -------  ---------------\n"
        "2025-11-20T00:54:00Z  clicks   1,234,567  1,234,567                  0        0                0\n"
        "2025-11-20T00:54:00Z  clicks2      1,003          3              1,000        0           ≤1,000\n"
        "--------------------  -------  ---------  ---------  -----------------  -------  ---------------\n"
        "total                          1,235,570  1,234,570              1,000        0            1,000\n"
        "≤ at most: attempts at one batch may be in several rows, at several workers, or be indistinguishable"
        " (docs/audit.md)\n"
        "\n"
        "records 5, duplicates 1, malformed 0, gaps 0, workers' lives 2, without an end 0\n"
        "complete"
    )


def test_what_another_worker_may_have_seen_again_is_a_bound() -> None:
    for changes in ({"lives_overlap": True}, {"gaps_total": 1}):
        assert _text(_report(**changes), ("bytes",)).count("≤1,000") == 2
        answer = as_json(tables.report_answer(_report(**changes)))
        for sums in (answer["rows"][1], answer["totals"]):
            assert (sums["finally_dropped_least_bytes"], sums["finally_dropped_upper_bound"]) == (0, True)
    assert "≤" not in _text(_report(), ("bytes",))


def test_clusters_are_named_where_there_are_several() -> None:
    assert "CLUSTERS" not in _text(_report(clusters=["a"]))
    line = "CLUSTERS  records of 2 clusters, which --by cluster tells apart: a, b"
    assert line in _text(_report(clusters=["a", "b"])).splitlines()
    mixed = _text(_report(clusters=["a", "b"], mixes_clusters=True)).splitlines()
    assert f"{line}; a topic has the records of one" in mixed
    assert mixed[-1].startswith("NOT COMPLETE")


def test_of_nothing_it_is_not_said_that_it_is_complete() -> None:
    assert _text(_report(records=0)).splitlines()[-1] == "no records were found: nothing to sum up"


def test_by_outcome_there_is_one_table_with_a_column_for_each_measure() -> None:
    head = _text(_report(("outcome",))).splitlines()[0].split("  ")
    assert [each.strip() for each in head if each] == [
        *("outcome", "bytes", "messages", "requests", "delay ms", "finally dropped"),
    ]


def test_what_is_told_of_messages_or_requests_has_no_column_of_bytes() -> None:
    for by in (("outcome",), ("topic",)):
        assert "finally dropped" in _text(_report(by), ("requests", "bytes"))
        assert "finally dropped" not in _text(_report(by), ("requests", "messages"))


def test_the_name_a_client_gives_itself_can_not_move_the_cursor() -> None:
    report = _report(("client_id",))
    report.rows[0]["client_id"] = "a\x1b[2Jb\nc\u202e"
    text = _text(report, ("bytes",))
    assert "a\\x1b[2Jb\\nc\\u202e" in text


def test_a_client_without_a_name_is_said_to_have_none() -> None:
    report = _report(("client_id",))
    report.rows[0]["client_id"] = ""
    assert "\n(none)  " in _text(report, ("bytes",))
    assert as_json(tables.report_answer(report))["rows"][0]["client_id"] == ""


def test_days_that_were_let_go_of_are_named_where_they_were_asked_for() -> None:
    sources = [{"kind": "spool", "name": "x"}, {"kind": "tables", "name": "./audit", "expired_before": "2025-11-20"}]
    line = "EXPIRED  ./audit: usage of days before 2025-11-20 is not kept any more"
    day_ms = START - START % 86_400_000
    for from_ms, shown in ((None, True), (day_ms - 1, True), (day_ms, False)):
        assert (line in tables.integrity_text(_integrity(), sources, from_ms).splitlines()) is shown
    assert "EXPIRED" not in tables.integrity_text(_integrity(), [{**sources[1], "expired_before": None}])
    counted = {"records": 1, "duplicates": 0, "conflicts": 0, "malformed": 0, "problems": {}, "samples": []}
    for bounds, expired in (
        ((None, None), False),  # all that there is
        ((day_ms - 1, None), True),
        ((day_ms, None), False),
        ((None, day_ms - 1), True),
        ((None, day_ms + 1), False),
    ):
        trust = query.assess_integrity(counted, [], [], AuditQuery((), None, *bounds), sources)
        assert (trust.expired, trust.complete) == (expired, not expired)
        assert tables.integrity_json(trust)["expired"] is expired


@pytest.mark.parametrize(
    ("records", "source", "complete"),
    [
        (0, {"kind": "spool", "name": "x"}, False),
        (0, {"kind": "topic", "partitions": [{"partition": 0, "start_offset": 0, "end_offset": 0}]}, False),
        (0, {"kind": "topic", "partitions": [{"partition": 0, "start_offset": 9, "end_offset": 9}]}, True),
        (0, {"kind": "tables", "expired_before": "2025-11-20"}, True),
        (1, {"kind": "spool", "name": "x"}, True),
    ],
)
def test_a_log_that_never_had_a_record_is_not_complete(records: int, source: dict[str, Any], complete: bool) -> None:
    counted = {"records": records, "duplicates": 0, "conflicts": 0, "malformed": 0, "problems": {}, "samples": []}
    assert query.assess_integrity(counted, [], [], AuditQuery(), [source]).complete is complete


def test_everything_that_is_missing_is_named() -> None:
    life = {"gateway": "gw", "boot": "b1", "worker": 0}
    gaps = [
        life | {"gap": "seq", "first_seq": 1, "last_seq": 2, "missing": 2, "after_ms": None, "before_ms": START},
        life | {"gap": "parts", "first_seq": 5, "last_seq": 5, "missing": 1, "after_ms": START, "before_ms": START + 1},
    ]
    boots = [
        life | {"state": "lost", "last_seq": 7, "end_ms": START},
        life | {"state": "open", "last_seq": None, "end_ms": None},
    ]
    changed = [life | {"changed": 3}]
    ended = [life | {"final_seq": 8, "last_seq": 10, "end_ms": START}]
    text = _text(
        _report(
            changed=3, changed_lives=changed, unchecked=5,
            after_final=ended, after_final_total=1, gaps=gaps, gaps_total=30,
            incomplete=boots, incomplete_total=2, lost=1, conflicts=1, malformed=1,
            problems={"empty": 1}, samples=[{"origin": "0@7", "problem": "empty", "sample": None}],
        )
    )  # fmt: skip
    assert text.splitlines()[-12:] == [
        "UNCHECKED  5 records have digests by a key: --chain-key checks them",
        "CHANGED  gw/b1/0: 3 records are not as they were written, or not where they were",
        "CONFLICT  1 copies say something else than the record that was counted",
        "MALFORMED  1 x empty",
        "  0@7: ",
        "GAP  gw/b1/0: intervals 1 to 2 (2) missing, between the start and 2025-11-20T00:54:00Z",
        "GAP  gw/b1/0: 1 parts of interval 5 missing, between 2025-11-20T00:54:00Z and 2025-11-20T00:54:00.001Z",
        "  … and 10 more",
        "AFTER THE END  gw/b1/0: interval 8 was its last, and there are some up to 10 (2025-11-20T00:54:00Z)",
        "LOST  gw/b1/0: died; seen up to interval 7 (2025-11-20T00:54:00Z), its later work is not known",
        "OPEN  gw/b1/0: no final interval; seen up to nothing; it still runs, or died unnoticed",
        "NOT COMPLETE: the sums above leave out the items named here",
    ]
