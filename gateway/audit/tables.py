# How a Report is shown: as JSON of a stable shape (docs/audit.md), and as text tables. Pure: a report in, text out.
#
# Numbers are exact in both; nothing is rounded to "1.2 GB", because these sums are compared byte by byte with others.
# Client ids and topics come from strangers: what could move a terminal's cursor is escaped.

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final

from gateway.audit import schema
from gateway.audit.job import Integrity, Report
from policies import usage

JSON_VERSION: Final = 1
_ALWAYS: Final = (schema.OFFERED, "accepted", "rejected", "errored")  # shown even where they are 0
_LISTED: Final = 20  # gaps and incomplete boots in the text


def as_json(report: Report) -> dict[str, Any]:
    """The report in the shape that docs/audit.md describes: every sum is always there."""
    question, trust = report.question, report.integrity
    keys = _keys(report)
    return {
        "version": JSON_VERSION,
        "by": list(question.by),
        "window_ms": question.window_ms,
        "from_ms": question.from_ms,
        "to_ms": question.to_ms,
        "sources": report.sources,
        "totals": _nested(_total(report.rows)),
        "rows": [{key: row[key] for key in keys} | _nested(row) for row in report.rows],
        "integrity": {
            "complete": trust.complete,
            "records": trust.records,
            "duplicates": trust.duplicates,
            "conflicts": trust.conflicts,
            "malformed": trust.malformed,
            "malformed_problems": trust.problems,
            "malformed_samples": trust.samples,
            "boots": trust.boots,
            "gaps_total": trust.gaps_total,
            "gaps": trust.gaps,
            "incomplete_total": trust.incomplete_total,
            "incomplete": trust.incomplete,
        },
    }


def dumps(report: Report) -> str:
    """as_json as text, without a newline at its end."""
    return json.dumps(as_json(report), indent=1, ensure_ascii=True)


def as_text(report: Report, measures: Sequence[str] = schema.MEASURES) -> str:
    """Tables for a terminal: one per measure, then what was not right with the records."""
    blocks = []
    if "outcome" in report.question.by:  # each row is one outcome: its columns would be a diagonal
        blocks.append(_flat_table(report, measures))
    else:
        blocks += [_measure_table(report, measure) for measure in measures]
    return "\n\n".join([*blocks, _integrity_text(report.integrity)])


def _keys(report: Report) -> list[str]:
    return [*([schema.WINDOW] if report.question.window_ms else []), *report.question.by]


def _total(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    names = [schema.column(name, measure) for name in schema.SUMS for measure in schema.MEASURES]
    return {name: sum(row[name] for row in rows) for name in (*names, *schema.SINGLE_SUMS)}


def _nested(row: Mapping[str, Any]) -> dict[str, Any]:
    sums: dict[str, Any] = {
        name: {measure: row[schema.column(name, measure)] for measure in schema.MEASURES} for name in schema.SUMS
    }
    return sums | {name: row[name] for name in schema.SINGLE_SUMS}


def _measure_table(report: Report, measure: str) -> str:
    total = _total(report.rows)
    shown = [
        name
        for name in (schema.OFFERED, *usage.OUTCOMES, *usage.NOTES)
        if name in _ALWAYS or any(total[schema.column(name, each)] for each in schema.MEASURES)
    ]
    keys = _keys(report)
    head = [*map(_title, keys), *shown]
    body = [[*_labels(row, keys), *(f"{row[schema.column(n, measure)]:,}" for n in shown)] for row in report.rows]
    foot = [*_total_labels(keys), *(f"{total[schema.column(n, measure)]:,}" for n in shown)]
    return f"{measure}\n{_align(head, body, foot if keys else None, len(keys))}"


def _flat_table(report: Report, measures: Sequence[str]) -> str:
    keys = _keys(report)
    total = _total(report.rows)
    columns = [*(schema.column(schema.OFFERED, measure) for measure in measures), "delay_ms"]
    head = [*map(_title, keys), *measures, "delay ms"]
    body = [
        [*_labels(row, keys), *(f"{_either(row, measure):,}" for measure in measures), f"{row['delay_ms']:,}"]
        for row in report.rows
    ]
    foot = [*_total_labels(keys), *(f"{total[name]:,}" for name in columns)]
    return _align(head, body, foot, len(keys))


def _either(row: Mapping[str, Any], measure: str) -> int:
    """A row of one outcome holds offered bytes or what a policy would have done, never both."""
    return sum(row[schema.column(name, measure)] for name in (schema.OFFERED, *usage.NOTES))


def _title(key: str) -> str:
    return "window" if key == schema.WINDOW else key.replace("_", " ")


def _labels(row: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    return [_time(row[key]) if key == schema.WINDOW else _safe(str(row[key])) for key in keys]


def _total_labels(keys: Sequence[str]) -> list[str]:
    return ["total", *[""] * (len(keys) - 1)] if keys else []


def _align(head: list[str], body: list[list[str]], foot: list[str] | None, left: int) -> str:
    rows = [head, *body, *([foot] if foot else [])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(_pad, row, widths, range(len(row)), repeat(left))) for row in rows]
    rule = "  ".join("-" * width for width in widths)
    lines.insert(1, rule)
    if foot:
        lines.insert(-1, rule)
    return "\n".join(line.rstrip() for line in lines)


def _pad(cell: str, width: int, column: int, left: int) -> str:
    return cell.ljust(width) if column < left else cell.rjust(width)


def _integrity_text(trust: Integrity) -> str:
    lines = [
        f"records {trust.records:,}, duplicates {trust.duplicates:,}, malformed {trust.malformed:,},"
        f" gaps {trust.gaps_total:,}, workers' lives {trust.boots:,}, without an end {trust.incomplete_total:,}"
    ]
    if trust.conflicts:
        lines.append(f"CONFLICT  {trust.conflicts:,} copies say something else than the record that was counted")
    lines += [f"MALFORMED  {count:,} x {problem}" for problem, count in trust.problems.items()]
    lines += [f"  {_safe(each['origin'])}: {_safe(each['sample'] or '')}" for each in trust.samples]
    lines += map(_gap_line, trust.gaps[:_LISTED])
    lines += _more(trust.gaps_total)
    lines += map(_boot_line, trust.incomplete[:_LISTED])
    lines += _more(trust.incomplete_total)
    lines.append("complete" if trust.complete else "NOT COMPLETE: the sums above leave out what is named here")
    return "\n".join(lines)


def _gap_line(gap: Mapping[str, Any]) -> str:
    if gap["gap"] == "parts":
        what = f"{gap['missing']:,} parts of interval {gap['first_seq']}"
    else:
        what = f"intervals {gap['first_seq']} to {gap['last_seq']} ({gap['missing']:,})"
    after = _time(gap["after_ms"]) if gap["after_ms"] is not None else "the start"
    return f"GAP  {_life(gap)}: {what} missing, between {after} and {_time(gap['before_ms'])}"


def _boot_line(boot: Mapping[str, Any]) -> str:
    last = "nothing" if boot["last_seq"] is None else f"interval {boot['last_seq']} ({_time(boot['end_ms'])})"
    if boot["state"] == "lost":
        return f"LOST  {_life(boot)}: died; seen up to {last}, what it did after that is not known"
    return f"OPEN  {_life(boot)}: no final interval; seen up to {last}; it still runs, or died unnoticed"


def _life(row: Mapping[str, Any]) -> str:
    return _safe(f"{row['gateway']}/{row['boot']}/{row['worker']}")


def _more(total: int) -> list[str]:
    return [f"  … and {total - _LISTED:,} more"] if total > _LISTED else []


def _time(ms: int) -> str:
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds" if ms % 1000 else "seconds")
    return text.replace("+00:00", "Z")


def _safe(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
