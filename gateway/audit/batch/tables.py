# How a Report is shown: as JSON of a stable shape (docs/audit.md), and as text tables. Pure: a report in, text out.
#
# Numbers are exact in both; nothing is rounded to "1.2 GB", because these sums are compared byte by byte with others.
# Client ids and topics come from strangers: what could move a terminal's cursor is escaped. Rejected attempts and what
# was dropped in the end stand side by side everywhere (dropped.py says how they differ).

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final

from gateway.audit import schema
from gateway.audit.batch import dropped
from gateway.audit.batch.job import Integrity, Report
from policies import usage

JSON_VERSION: Final = 1
_ALWAYS: Final = (schema.OFFERED, "accepted", "rejected", "errored")  # shown even where they are 0
AT_MOST: Final = "≤"
NAMELESS: Final = "(none)"
_NOTE: Final = "≤ at most: attempts at one batch may be in several rows, or can't be told apart (docs/audit.md)"
_LISTED: Final = 20  # gaps and incomplete boots in the text


def as_json(report: Report) -> dict[str, Any]:
    """The report in the shape that docs/audit.md describes: every sum is always there."""
    question = report.question
    keys = _keys(report)
    torn = dropped.tears(question.by, question.window_ms)
    return {
        "version": JSON_VERSION,
        "by": list(question.by),
        "window_ms": question.window_ms,
        "from_ms": question.from_ms,
        "to_ms": question.to_ms,
        "sources": report.sources,
        "totals": nested(total(report.rows)),
        "rows": [{key: row[key] for key in keys} | nested(row, torn) for row in report.rows],
        "integrity": integrity_json(report.integrity),
    }


def integrity_json(trust: Integrity) -> dict[str, Any]:
    """The object that docs/audit.md calls `integrity`."""
    return {
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
    }


def dumps(answer: Mapping[str, Any]) -> str:
    """An answer in JSON as text, without a newline at its end."""
    return json.dumps(answer, indent=1, ensure_ascii=True)


def as_text(report: Report, measures: Sequence[str] = usage.MEASURES) -> str:
    """Tables for a terminal: one per measure, then the faults of the records."""
    blocks = []
    if "outcome" in report.question.by:  # each row is one outcome: its columns would be a diagonal
        blocks.append(_flat_table(report, measures))
    else:
        blocks += [_measure_table(report, measure) for measure in measures]
    return "\n\n".join([*blocks, integrity_text(report.integrity, report.sources, report.question.from_ms)])


def _keys(report: Report) -> list[str]:
    return [*([schema.WINDOW] if report.question.window_ms else []), *report.question.by]


def total(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The sums over all rows."""
    names = [schema.column(name, measure) for name in schema.SUMS for measure in usage.MEASURES]
    return {name: sum(row[name] for row in rows) for name in (*names, *schema.SINGLE_SUMS)}


def nested(row: Mapping[str, Any], torn: bool = False) -> dict[str, Any]:
    """A row's sums as docs/audit.md has them; `torn`: the answer of dropped.tears for its grouping."""
    gone = dropped.finally_dropped(row, torn)
    sums: dict[str, Any] = {
        name: {measure: row[schema.column(name, measure)] for measure in usage.MEASURES} for name in schema.SUMS
    }
    sums |= {name: row[name] for name in schema.SINGLE_SUMS}
    return sums | {dropped.BYTES: gone.bytes, dropped.LEAST: gone.least, dropped.UPPER_BOUND: gone.upper_bound}


def _measure_table(report: Report, measure: str) -> str:
    whole = total(report.rows)
    shown = [
        name
        for name in (schema.OFFERED, *usage.OUTCOMES, *usage.NOTES)
        if name in _ALWAYS or any(whole[schema.column(name, each)] for each in usage.MEASURES)
    ]
    keys = _keys(report)
    torn = dropped.tears(report.question.by, report.question.window_ms)

    def cells(row: Mapping[str, Any], torn: bool) -> list[str]:
        found = [f"{row[schema.column(name, measure)]:,}" for name in shown]
        return found + ([dropped_text(row, torn)] if measure == "bytes" else [])

    head = [*map(title, keys), *map(title, shown), *(["finally dropped"] if measure == "bytes" else [])]
    body = [[*labels(row, keys), *cells(row, torn)] for row in report.rows]
    foot = [*_total_labels(keys), *cells(whole, False)]
    return f"{measure}\n{with_note(align(head, body, foot if keys else None, len(keys)))}"


def _flat_table(report: Report, measures: Sequence[str]) -> str:
    keys = _keys(report)
    whole = total(report.rows)
    columns = [*(schema.column(schema.OFFERED, measure) for measure in measures), schema.DELAY]
    head = [*map(title, keys), *measures, "delay ms", "finally dropped"]
    body = [
        [
            *(*labels(row, keys), *(f"{_either(row, measure):,}" for measure in measures)),
            *(f"{row[schema.DELAY]:,}", dropped_text(row, torn=True)),
        ]
        for row in report.rows
    ]
    foot = [*_total_labels(keys), *(f"{whole[name]:,}" for name in columns), dropped_text(whole, torn=False)]
    return with_note(align(head, body, foot, len(keys)))


def dropped_text(row: Mapping[str, Any], torn: bool) -> str:
    """Finally dropped bytes, with a mark where it is an upper bound."""
    gone = dropped.finally_dropped(row, torn)
    return f"{AT_MOST if gone.upper_bound else ''}{gone.bytes:,}"


def with_note(table: str) -> str:
    """The table, with an explanation of the mark of an upper bound, if it occurs."""
    return f"{table}\n{_NOTE}" if AT_MOST in table else table


def _either(row: Mapping[str, Any], measure: str) -> int:
    """A row of one outcome holds offered bytes or a policy's would-be effect, never both."""
    return sum(row[schema.column(name, measure)] for name in (schema.OFFERED, *usage.NOTES))


def title(key: str) -> str:
    """The heading of a column."""
    return {schema.WINDOW: "window", "rejected": "rejected attempts"}.get(key, key.replace("_", " "))


def labels(row: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """A row's subject, fit to be shown; `NAMELESS` for an empty name, which would look like a fault."""
    return [time_text(row[key]) if key == schema.WINDOW else safe(str(row[key])) or NAMELESS for key in keys]


def _total_labels(keys: Sequence[str]) -> list[str]:
    return ["total", *[""] * (len(keys) - 1)] if keys else []


def align(head: list[str], body: list[list[str]], foot: list[str] | None, left: int) -> str:
    """A table whose first `left` columns are words, and the others numbers."""
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


def integrity_text(trust: Integrity, sources: Sequence[Mapping[str, Any]] = (), from_ms: int | None = None) -> str:
    """The faults of the records, a line each, and the verdict as the last one."""
    lines = [
        f"records {trust.records:,}, duplicates {trust.duplicates:,}, malformed {trust.malformed:,},"
        f" gaps {trust.gaps_total:,}, workers' lives {trust.boots:,}, without an end {trust.incomplete_total:,}"
    ]
    if trust.conflicts:
        lines.append(f"CONFLICT  {trust.conflicts:,} copies say something else than the record that was counted")
    lines += [f"MALFORMED  {count:,} x {problem}" for problem, count in trust.problems.items()]
    lines += [f"  {safe(each['origin'])}: {safe(each['sample'] or '')}" for each in trust.samples]
    lines += map(_gap_line, trust.gaps[:_LISTED])
    lines += _more(trust.gaps_total)
    lines += map(_boot_line, trust.incomplete[:_LISTED])
    lines += _more(trust.incomplete_total)
    lines += _expired_lines(sources, from_ms)
    lines.append(_verdict(trust))
    return "\n".join(lines)


def _verdict(trust: Integrity) -> str:
    if not trust.complete:
        return "NOT COMPLETE: the sums above leave out the items named here"
    return "complete" if trust.records else "no records were found: nothing to sum up"


def _expired_lines(sources: Sequence[Mapping[str, Any]], from_ms: int | None) -> list[str]:
    """Tables that hold nothing of days that were asked for, because these days were let go of."""
    found = []
    for source in sources:
        day = source.get("expired_before")
        if day and (from_ms is None or time_text(from_ms)[: len(day)] < day):
            found.append(f"EXPIRED  {safe(source['name'])}: usage of days before {day} is not kept any more")
    return found


def _gap_line(gap: Mapping[str, Any]) -> str:
    if gap["gap"] == "parts":
        what = f"{gap['missing']:,} parts of interval {gap['first_seq']}"
    else:
        what = f"intervals {gap['first_seq']} to {gap['last_seq']} ({gap['missing']:,})"
    after = time_text(gap["after_ms"]) if gap["after_ms"] is not None else "the start"
    return f"GAP  {_life(gap)}: {what} missing, between {after} and {time_text(gap['before_ms'])}"


def _boot_line(boot: Mapping[str, Any]) -> str:
    last = "nothing" if boot["last_seq"] is None else f"interval {boot['last_seq']} ({time_text(boot['end_ms'])})"
    if boot["state"] == "lost":
        return f"LOST  {_life(boot)}: died; seen up to {last}, its later work is not known"
    return f"OPEN  {_life(boot)}: no final interval; seen up to {last}; it still runs, or died unnoticed"


def _life(row: Mapping[str, Any]) -> str:
    return safe(f"{row['gateway']}/{row['boot']}/{row['worker']}")


def _more(total: int) -> list[str]:
    return [f"  … and {total - _LISTED:,} more"] if total > _LISTED else []


def time_text(ms: int) -> str:
    """Unix milliseconds as ISO 8601, UTC."""
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds" if ms % 1000 else "seconds")
    return text.replace("+00:00", "Z")


def safe(text: str) -> str:
    """Foreign text with all invisible characters escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
