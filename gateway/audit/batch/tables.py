# How a Report is shown: as JSON of a stable shape (docs/audit.md), and as text tables. Pure: a report in, text out.
#
# Numbers are exact in both; nothing is rounded to "1.2 GB", because these sums are compared byte by byte with others.
# Client ids and topics come from strangers: what could move a terminal's cursor is escaped. Rejected attempts and what
# was dropped in the end stand side by side everywhere (dropped.py says how they differ).

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Final, Protocol

from gateway.audit import columns
from gateway.audit.answers.answer import AuditAnswer, map_rows
from gateway.audit.answers.windows import time_text
from gateway.audit.batch import dropped
from gateway.audit.batch.query import AuditQuery, LogIntegrity
from policies import usage

JSON_VERSION: Final = 1
_ALWAYS_SHOWN: Final = (columns.OFFERED, "accepted", "rejected", "errored")  # shown even where they are 0
AT_MOST_MARK: Final = "≤"
WINDOW_TEXT: Final = "window_start"
NAMELESS_LABEL: Final = "(none)"
_BOUND_NOTE: Final = (
    "≤ at most: attempts at one batch may be in several rows, at several workers, or be indistinguishable"
    " (docs/audit.md)"
)
_NESTED: Final = tuple(
    (name, tuple((measure, columns.sum_column(name, measure)) for measure in usage.MEASURES)) for name in columns.SUMS
)
SUM_COLUMNS: Final = (*(column for _, of in _NESTED for _, column in of), *columns.SINGLE_SUMS)
_DROPPED_KINDS: Final = {dropped.BYTES_FIELD: int, dropped.LEAST_FIELD: int, dropped.UPPER_BOUND_FIELD: bool}
_SUM_KINDS: Final[Mapping[str, type]] = {**dict.fromkeys(SUM_COLUMNS, int), **_DROPPED_KINDS}
_MAX_LISTED: Final = 20  # gaps and incomplete boots in the text


class SummedReport(Protocol):
    """An AuditReport, or one whose rows are read from somewhere each time."""

    @property
    def query(self) -> AuditQuery: ...

    @property
    def sources(self) -> list[dict[str, Any]]: ...

    @property
    def rows(self) -> Iterable[Mapping[str, Any]]: ...

    @property
    def integrity(self) -> LogIntegrity: ...


def report_answer(report: SummedReport, measures: Sequence[str] = usage.MEASURES) -> AuditAnswer:
    """The report in all its forms: JSON in the shape that docs/audit.md describes, text with these measures, and rows
    with a column for each sum. Every sum is always there.
    """
    question = report.query
    keys = _key_columns(report)
    torn, trust = dropped.tears_attempts(question.by, question.window_ms), report.integrity
    seen = trust.sees_repeats
    return AuditAnswer(
        rows=map_rows(lambda row: flatten_sums(row, keys, question, seen), report.rows),
        kinds=column_kinds(keys),
        is_complete=trust.complete,
        findings=integrity_text(trust, report.sources, question.from_ms, question.zone),
        make_head=lambda: _json_head(report),
        make_tail=lambda: {"integrity": integrity_json(trust)},
        make_lines=lambda: report_lines(report, measures),
        nest_row=lambda row: {key: row[key] for key in keys} | nest_sums(row, torn, seen),
    )


def question_json(question: AuditQuery) -> dict[str, Any]:
    """Windows and bounds, as each JSON has them."""
    calendar = question.calendar
    return {
        "window_ms": None if calendar else question.window_ms,
        "from_ms": question.from_ms,
        "to_ms": question.to_ms,
        "calendar": calendar and {"window": calendar.unit, "time_zone": calendar.zone},
    }


def column_kinds(keys: Sequence[str]) -> dict[str, type]:
    """The columns of flatten_sums."""
    shown = [name for key in keys for name in ((key, WINDOW_TEXT) if key == columns.WINDOW_COLUMN else (key,))]
    kinds = columns.dimension_kinds(shown)
    return {**{name: int if name == columns.WINDOW_COLUMN else kind for name, kind in kinds.items()}, **_SUM_KINDS}


def _json_head(report: SummedReport) -> dict[str, Any]:
    question = report.query
    return {
        "version": JSON_VERSION,
        "by": list(question.by),
        **question_json(question),
        "sources": report.sources,
        "totals": nest_sums(sum_rows(report.rows), False, report.integrity.sees_repeats),
    }


def integrity_json(trust: LogIntegrity) -> dict[str, Any]:
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
        "after_final_total": trust.after_final_total,
        "after_final": list(trust.after_final),
        "lives_overlap": trust.lives_overlap,
        "clusters": list(trust.clusters),
        "changed": trust.changed,
        "changed_lives": list(trust.changed_lives),
        "unchecked": trust.unchecked,
        "expired": trust.expired,
    }


def report_lines(report: SummedReport, measures: Sequence[str] = usage.MEASURES) -> Iterator[str]:
    """Tables for a terminal: one per measure, then the faults of the records."""
    whole = sum_rows(report.rows)
    if "outcome" in report.query.by:  # each row is one outcome: its columns would be a diagonal
        yield from _flat_table(report, whole, measures)
        yield ""
    else:
        for measure in measures:
            yield from _measure_table(report, whole, measure)
            yield ""
    yield integrity_text(report.integrity, report.sources, report.query.from_ms, report.query.zone)


def _key_columns(report: SummedReport) -> list[str]:
    return [*([columns.WINDOW_COLUMN] if report.query.window_ms else []), *report.query.by]


def sum_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The sums over all rows."""
    whole = dict.fromkeys(SUM_COLUMNS, 0)
    for row in rows:
        for name in SUM_COLUMNS:
            whole[name] += row[name]
    return whole


def flatten_sums(
    row: Mapping[str, Any], keys: Sequence[str], question: AuditQuery, sees_repeats: bool
) -> dict[str, Any]:
    """The values of `keys`, and all sums of the row, each in a column of its own; the window's start also as text."""
    torn = dropped.tears_attempts(question.by, question.window_ms)
    gone = dropped.count_finally_dropped(row, torn, sees_repeats)
    found = {name: row[name] for name in (*keys, *SUM_COLUMNS)}
    if question.window_ms:
        found[WINDOW_TEXT] = time_text(row[columns.WINDOW_COLUMN], question.zone)
    return found | dict(zip(_DROPPED_KINDS, (gone.bytes, gone.least, gone.upper_bound), strict=True))


def nest_sums(row: Mapping[str, Any], torn: bool, sees_repeats: bool) -> dict[str, Any]:
    """A row's sums as docs/audit.md has them; `torn`, `sees_repeats`: as dropped.count_finally_dropped has them."""
    gone = dropped.count_finally_dropped(row, torn, sees_repeats)
    sums: dict[str, Any] = {name: {measure: row[column] for measure, column in of} for name, of in _NESTED}
    sums |= {name: row[name] for name in columns.SINGLE_SUMS}
    return sums | {
        dropped.BYTES_FIELD: gone.bytes,
        dropped.LEAST_FIELD: gone.least,
        dropped.UPPER_BOUND_FIELD: gone.upper_bound,
    }


def _measure_table(report: SummedReport, whole: Mapping[str, int], measure: str) -> Iterator[str]:
    shown = [
        name
        for name in (columns.OFFERED, *usage.OUTCOMES, *usage.NOTES)
        if name in _ALWAYS_SHOWN or any(whole[columns.sum_column(name, each)] for each in usage.MEASURES)
    ]
    keys = _key_columns(report)
    torn, seen = dropped.tears_attempts(report.query.by, report.query.window_ms), report.integrity.sees_repeats

    def cells(row: Mapping[str, Any], torn: bool) -> list[str]:
        found = [f"{row[columns.sum_column(name, measure)]:,}" for name in shown]
        return found + ([dropped_text(row, torn, seen)] if measure == "bytes" else [])

    head = [*map(column_title, keys), *map(column_title, shown), *(["finally dropped"] if measure == "bytes" else [])]
    body = map_rows(lambda row: [*row_labels(row, keys, report.query.zone), *cells(row, torn)], report.rows)
    foot = [*_total_labels(keys), *cells(whole, False)]
    yield measure
    yield from add_bound_note(align_lines(head, body, foot if keys else None, len(keys)))


def _flat_table(report: SummedReport, whole: Mapping[str, int], measures: Sequence[str]) -> Iterator[str]:
    keys = _key_columns(report)
    seen = report.integrity.sees_repeats
    shown = [*(columns.sum_column(columns.OFFERED, measure) for measure in measures), columns.DELAY]
    has_bytes = "bytes" in measures  # of which finally dropped ones are
    head = [*map(column_title, keys), *measures, "delay ms", *(["finally dropped"] if has_bytes else [])]

    def lost(row: Mapping[str, Any], torn: bool) -> list[str]:
        return [dropped_text(row, torn, seen)] if has_bytes else []

    def cells(row: Mapping[str, Any]) -> list[str]:
        amounts = [f"{_row_amount(row, measure):,}" for measure in measures]
        return [*row_labels(row, keys, report.query.zone), *amounts, f"{row[columns.DELAY]:,}", *lost(row, True)]

    foot = [*_total_labels(keys), *(f"{whole[name]:,}" for name in shown), *lost(whole, False)]
    return add_bound_note(align_lines(head, map_rows(cells, report.rows), foot, len(keys)))


def dropped_text(row: Mapping[str, Any], torn: bool, sees_repeats: bool) -> str:
    """Finally dropped bytes, with a mark where it is an upper bound."""
    gone = dropped.count_finally_dropped(row, torn, sees_repeats)
    return f"{AT_MOST_MARK if gone.upper_bound else ''}{gone.bytes:,}"


def add_bound_note(table: Iterable[str]) -> Iterator[str]:
    """The table's lines, with an explanation of the mark of an upper bound, if it occurs."""
    is_marked = False
    for line in table:
        is_marked = is_marked or AT_MOST_MARK in line
        yield line
    if is_marked:
        yield _BOUND_NOTE


def with_bound_note(table: str) -> str:
    """The same of a whole table."""
    return "\n".join(add_bound_note(table.split("\n")))


def _row_amount(row: Mapping[str, Any], measure: str) -> int:
    """A row of one outcome holds offered bytes or a policy's would-be effect, never both."""
    return sum(row[columns.sum_column(name, measure)] for name in (columns.OFFERED, *usage.NOTES))


def column_title(key: str) -> str:
    """The heading of a column."""
    return {columns.WINDOW_COLUMN: "window", "rejected": "rejected attempts"}.get(key, key.replace("_", " "))


def row_labels(row: Mapping[str, Any], keys: Sequence[str], zone: str = "UTC") -> list[str]:
    """A row's subject, fit to be shown; `NAMELESS_LABEL` for an empty name, which would look like a fault."""
    return [
        time_text(row[key], zone)
        if key == columns.WINDOW_COLUMN
        else escape_unprintable(str(row[key])) or NAMELESS_LABEL
        for key in keys
    ]


def _total_labels(keys: Sequence[str]) -> list[str]:
    return ["total", *[""] * (len(keys) - 1)] if keys else []


def align_table(head: list[str], body: list[list[str]], foot: list[str] | None, left: int) -> str:
    """A table whose first `left` columns are words, and the others numbers."""
    return "\n".join(align_lines(head, body, foot, left))


def align_lines(head: list[str], body: Iterable[list[str]], foot: list[str] | None, left: int) -> Iterator[str]:
    """The same as lines; the body is read twice."""
    widths = [*map(len, head)]
    for row in chain([foot] if foot else (), body):
        widths = [*map(max, widths, map(len, row))]
    rule = "  ".join("-" * width for width in widths)

    def align(row: list[str]) -> str:
        return "  ".join(map(_pad_cell, row, widths, range(len(row)), repeat(left))).rstrip()

    yield align(head)
    yield rule
    yield from map(align, body)
    if foot:
        yield from (rule, align(foot))


def _pad_cell(cell: str, width: int, column: int, left: int) -> str:
    return cell.ljust(width) if column < left else cell.rjust(width)


def integrity_text(
    trust: LogIntegrity, sources: Sequence[Mapping[str, Any]] = (), from_ms: int | None = None, zone: str = "UTC"
) -> str:
    """The faults of the records, a line each, and the verdict as the last one; times in that time zone."""
    lines = [
        f"records {trust.records:,}, duplicates {trust.duplicates:,}, malformed {trust.malformed:,},"
        f" gaps {trust.gaps_total:,}, workers' lives {trust.boots:,}, without an end {trust.incomplete_total:,}"
    ]
    if len(trust.clusters) > 1:
        more = ["…"] if len(trust.clusters) > _MAX_LISTED else []
        names = ", ".join([*map(escape_unprintable, trust.clusters[:_MAX_LISTED]), *more])
        why = "; a topic has the records of one" if trust.mixes_clusters else ""
        lines.append(
            f"CLUSTERS  records of {len(trust.clusters)} clusters, which --by cluster tells apart: {names}{why}"
        )
    if trust.unchecked:
        lines.append(f"UNCHECKED  {trust.unchecked:,} records have digests by a key: --chain-key checks them")
    lines += [
        f"CHANGED  {_life_name(life)}: {life['changed']:,} records are not as they were written, or not where they were"
        for life in trust.changed_lives[:_MAX_LISTED]
    ]
    lines += _more_lines(len(trust.changed_lives))
    if trust.conflicts:
        lines.append(f"CONFLICT  {trust.conflicts:,} copies say something else than the record that was counted")
    lines += [f"MALFORMED  {count:,} x {problem}" for problem, count in trust.problems.items()]
    lines += [
        f"  {escape_unprintable(each['origin'])}: {escape_unprintable(each['sample'] or '')}" for each in trust.samples
    ]
    lines += [_gap_line(gap, zone) for gap in trust.gaps[:_MAX_LISTED]]
    lines += _more_lines(trust.gaps_total)
    lines += [_after_final_line(life, zone) for life in trust.after_final[:_MAX_LISTED]]
    lines += _more_lines(trust.after_final_total)
    lines += [_boot_line(boot, zone) for boot in trust.incomplete[:_MAX_LISTED]]
    lines += _more_lines(trust.incomplete_total)
    lines += _expired_lines(sources, from_ms)
    lines.append(_verdict_line(trust))
    return "\n".join(lines)


def _verdict_line(trust: LogIntegrity) -> str:
    if not trust.records:
        return "no records were found: nothing to sum up"
    return "complete" if trust.complete else "NOT COMPLETE: the sums above leave out the items named here"


def _expired_lines(sources: Sequence[Mapping[str, Any]], from_ms: int | None) -> list[str]:
    """Tables that hold nothing of days that were asked for, because these days were let go of."""
    found = []
    for source in sources:
        day = source.get("expired_before")
        if day and (from_ms is None or time_text(from_ms)[: len(day)] < day):
            found.append(
                f"EXPIRED  {escape_unprintable(source['name'])}: usage of days before {day} is not kept any more"
            )
    return found


def _gap_line(gap: Mapping[str, Any], zone: str) -> str:
    if gap["gap"] == "parts":
        what = f"{gap['missing']:,} parts of interval {gap['first_seq']}"
    else:
        what = f"intervals {gap['first_seq']} to {gap['last_seq']} ({gap['missing']:,})"
    after = time_text(gap["after_ms"], zone) if gap["after_ms"] is not None else "the start"
    back = ", by a clock that was set back" if gap["before_ms"] < (gap["after_ms"] or 0) else ""
    return f"GAP  {_life_name(gap)}: {what} missing, between {after} and {time_text(gap['before_ms'], zone)}{back}"


def _after_final_line(life: Mapping[str, Any], zone: str) -> str:
    later = f"up to {life['last_seq']} ({time_text(life['end_ms'], zone)})"
    return f"AFTER THE END  {_life_name(life)}: interval {life['final_seq']} was its last, and there are some {later}"


def _boot_line(boot: Mapping[str, Any], zone: str) -> str:
    seq = boot["last_seq"]
    last = "nothing" if seq is None else f"interval {seq} ({time_text(boot['end_ms'], zone)})"
    if boot["state"] == "lost":
        return f"LOST  {_life_name(boot)}: died; seen up to {last}, its later work is not known"
    return f"OPEN  {_life_name(boot)}: no final interval; seen up to {last}; it still runs, or died unnoticed"


def _life_name(row: Mapping[str, Any]) -> str:
    return escape_unprintable(f"{row['gateway']}/{row['boot']}/{row['worker']}")


def _more_lines(total: int) -> list[str]:
    return [f"  … and {total - _MAX_LISTED:,} more"] if total > _MAX_LISTED else []


def share_text(share: float, digits: int = 1) -> str:
    """A share in percent; never 0 or 100 unless it is."""
    percent, least = 100 * share, 10**-digits
    if 0 < percent < least:
        return f"< {least:.{digits}f} %"
    if 100 - least < percent < 100:
        return f"> {100 - least:.{digits}f} %"
    return f"{percent:.{digits}f} %"


def change_text(before: int, change: int) -> str:
    """A change in percent of what there was; never 0, nor -100, unless it is."""
    text = f"{100 * change / before:+,.1f} %"
    if change and text in ("+0.0 %", "-0.0 %"):
        return "< +0.1 %" if change > 0 else "> -0.1 %"
    return f"> {text}" if text == "-100.0 %" and change != -before else text


def escape_unprintable(text: str) -> str:
    """Foreign text with all invisible characters escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
