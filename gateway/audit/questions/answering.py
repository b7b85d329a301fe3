# What a question's rows look like as an answer: one table, JSON, files. Pure.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.audit import columns
from gateway.audit.answers.answer import AuditAnswer, map_rows
from gateway.audit.batch import dropped, tables
from gateway.audit.batch.query import LogIntegrity

JSON_VERSION: Final = 1
NOT_KNOWN: Final = "–"


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """`from_ms`: the bound that was asked for; `kinds`: columns of the rows (AuditAnswer), those of names first;
    `about`: further fields of the JSON; `notes`: lines under the table; `zone`: in which times are told. `rows`
    can be read several times.
    """

    from_ms: int | None
    sources: Sequence[Mapping[str, Any]]
    integrity: LogIntegrity
    kinds: Mapping[str, type]
    rows: Iterable[Mapping[str, Any]]
    about: Mapping[str, Any]
    notes: Sequence[str] = ()
    zone: str = "UTC"


def make_answer(found: AnsweredQuestion) -> AuditAnswer:
    """All its forms; the JSON has the rows as they are, behind `about`."""
    trust = found.integrity
    head = {"version": JSON_VERSION, **found.about, "sources": found.sources}
    findings = tables.integrity_text(trust, found.sources, found.from_ms, found.zone)
    return AuditAnswer(
        rows=found.rows,
        kinds=found.kinds,
        is_complete=trust.complete,
        findings=findings,
        make_head=lambda: head,
        make_tail=lambda: {"integrity": tables.integrity_json(trust)},
        make_lines=lambda: _show_lines(found, findings),
        notes=found.notes,
    )


def _show_lines(found: AnsweredQuestion, findings: str) -> Iterator[str]:
    # Times are shown as text: the columns of milliseconds say the same.
    shown = {
        name: kind for name, kind in found.kinds.items() if not (name.endswith("_ms") and name[:-3] in found.kinds)
    }
    are_words = [kind is str or name in columns.NUMBERED_DIMENSIONS for name, kind in shown.items()]
    words = max((at for at, is_word in enumerate(are_words, 1) if is_word), default=0)
    body = map_rows(lambda row: [_bound_mark(row, name) + _cell_text(row[name], name) for name in shown], found.rows)
    yield from tables.add_bound_note(tables.align_lines([_column_title(name) for name in shown], body, None, words))
    yield from found.notes
    yield from ("", findings)


def _bound_mark(row: Mapping[str, Any], name: str) -> str:
    is_bound = name == dropped.BYTES_FIELD and row[dropped.LEAST_FIELD] < row[name]
    return tables.AT_MOST_MARK if is_bound else ""


def _column_title(name: str) -> str:
    return tables.column_title({"window_start": "window"}.get(name, name))


def _cell_text(value: Any, name: str) -> str:
    if value is None:
        return NOT_KNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in columns.NUMBERED_DIMENSIONS:
        return str(value)
    if isinstance(value, str):
        return tables.escape_unprintable(value) or tables.NAMELESS_LABEL
    if name.endswith("_share"):
        return tables.share_text(value, 3)
    if isinstance(value, float):
        return "<0.1" if 0 < value < 0.05 else f"{value:,.1f}"
    return f"{value:,}"
