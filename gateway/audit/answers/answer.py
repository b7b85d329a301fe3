# An answer of the audit, and the forms in which it can be had. Rows are asked for as often as a form needs them, and
# each is let go before the next: a table needs them twice, as widths come first. Pure; knows neither engine nor file.

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

import msgspec

TABLE, JSON, YAML, CSV, NDJSON = FORMATS = ("table", "json", "yaml", "csv", "ndjson")

FlatRow = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditAnswer:
    """`rows` can be read several times. `kinds`: the columns that each of them has, in order (int, str, float, bool;
    Decimal for money; a value may be None). `make_head`, `make_tail`: the fields of the JSON before and after `rows`;
    `make_lines`: it all as text; `nest_row`: a row as the JSON has it; `is_complete`: whether nothing is known to be
    missing; `findings`: what is, as text; `notes`: lines about the rows, which no row has.
    """

    rows: Iterable[FlatRow]
    kinds: Mapping[str, type]
    is_complete: bool
    findings: str
    make_head: Callable[[], Mapping[str, Any]]
    make_tail: Callable[[], Mapping[str, Any]]
    make_lines: Callable[[], Iterable[str]]
    nest_row: Callable[[FlatRow], Mapping[str, Any]] = dict
    notes: Sequence[str] = ()


class RepeatedRows(Iterable[Any]):
    """What a function gives, called each time the rows are read."""

    def __init__(self, read: Callable[[], Iterator[Any]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[Any]:
        return self._read()


def map_rows(function: Callable[[Any], Any], rows: Iterable[Any]) -> Iterable[Any]:
    """What a function makes of rows, each time they are read."""
    return RepeatedRows(lambda: map(function, rows))


def render_answer(answer: AuditAnswer, form: str) -> Iterator[str]:
    """The answer in one of FORMATS, as lines without their ends."""
    if form == TABLE:
        yield from answer.make_lines()
    elif form == JSON:
        yield from _json_lines(answer)
    elif form == YAML:
        yield from _yaml_lines(answer)
    else:
        yield from csv_lines(answer.kinds, answer.rows) if form == CSV else ndjson_lines(answer)


def dump_json(answer: object) -> str:
    """An answer in JSON as text, without a newline at its end."""
    # As json.dumps with an indent, which takes four times as long: it does that in Python.
    return msgspec.json.format(json.dumps(answer, ensure_ascii=True, default=str), indent=1)


def csv_lines(names: Iterable[str], rows: Iterable[FlatRow]) -> Iterator[str]:
    """A line with the columns' names, and one for each row; None is empty, and no text is a formula."""
    names = list(names)
    found: list[str] = []
    # What ends a line is quoted in a name: Python does so with the characters that end its own.
    write = csv.writer(_LineSink(found), lineterminator=_LINE_END).writerow
    for row in chain([names], ([_csv_cell(row[name]) for name in names] for row in rows)):
        write(row)
        yield "".join(found).removesuffix(_LINE_END)
        found.clear()


def ndjson_lines(answer: AuditAnswer) -> Iterator[str]:
    """An object for each row."""
    for row in answer.rows:
        yield json.dumps({name: row[name] for name in answer.kinds}, default=str)


_LINE_END: Final = "\r\n"


class _LineSink:
    def __init__(self, into: list[str]) -> None:
        self.write = into.append


# Spreadsheets execute a cell that begins so, and clients choose their names: behind an apostrophe it is text.
# The last four are the first ones in full width, as East Asian spreadsheets take them.
_FORMULA_MARKS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_MARKS) else value


_ROWS_AT_ONCE: Final = 1000


def _json_lines(answer: AuditAnswer) -> Iterator[str]:
    """As dump_json has it, some rows at once: one by one they would take five times as long."""
    rows = iter(answer.rows)
    head = dump_json(answer.make_head()).removesuffix("\n}")
    before = f'{head},\n "rows": ['  # what may need a comma behind it
    is_empty = True
    while some := [answer.nest_row(row) for row in islice(rows, _ROWS_AT_ONCE)]:
        yield before if is_empty else f"{before},"
        is_empty = False
        inner = dump_json(some).removeprefix("[\n").removesuffix("\n]")
        before = " " + inner.replace("\n", "\n ")
    yield f"{before}]," if is_empty else f"{before}\n ],"
    yield dump_json(answer.make_tail()).removeprefix("{\n")


def _yaml_lines(answer: AuditAnswer) -> Iterator[str]:
    from gateway.commands.output import render_structured

    def dump(value: Any) -> list[str]:
        return render_structured(json.loads(json.dumps(value, default=str)), YAML).splitlines()

    yield from dump(answer.make_head())
    is_empty = True
    for row in answer.rows:
        if is_empty:
            yield "rows:"
        is_empty = False
        yield from dump([answer.nest_row(row)])
    if is_empty:
        yield "rows: []"
    yield from dump(answer.make_tail())
