# -o and --output: the form of an answer, and where its rows go.

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.audit.answers.answer import FORMATS, JSON, TABLE, YAML, dump_json
from gateway.audit.answers.files import FILE_SUFFIXES, is_table

_WRONG_PLACE: Final = (
    f"the name of a file ends with one of {', '.join(FILE_SUFFIXES)}, that of a directory for a Delta table has no dot,"
    " or ends with /"
)


def add_format_option(parser: argparse.ArgumentParser, forms: Sequence[str] = (TABLE, JSON, YAML)) -> None:
    """The form of what goes to stdout, the first one being the default: `options.format`."""
    add = parser.add_argument
    add("-o", "--format", choices=forms, default=forms[0], help="the format (%(default)s)")
    add("--json", action="store_const", const=JSON, dest="format", help="the same as -o json")


def add_answer_options(parser: argparse.ArgumentParser) -> None:
    """The same for answers with rows, and `options.destination`: where these go instead, or None."""
    add_format_option(parser, FORMATS)
    parser.add_argument(
        "--output",
        dest="destination",
        type=_parse_place,
        metavar="FILE|DIR",
        help="write the rows to FILE.parquet, .csv or .ndjson, or to DIR as a Delta table; replaces what is there",
    )


def render_document(document: Mapping[str, Any], form: str, text: Callable[[], str]) -> str:
    """An answer without rows: JSON or YAML of `document`, or `text`."""
    if form == YAML:
        from gateway.commands.output import render_structured

        return render_structured(document, YAML).rstrip("\n")
    return dump_json(document) if form == JSON else text()


def _parse_place(text: str) -> str:
    if is_table(text):
        if "." in Path(text).name and not text.endswith("/"):
            raise argparse.ArgumentTypeError(f"{text!r}: {_WRONG_PLACE}")
        if Path(text).exists() and not Path(text).is_dir():
            raise argparse.ArgumentTypeError(f"{text} is no directory: {_WRONG_PLACE}")
        return text
    if fault := find_path_fault(Path(text)):
        raise argparse.ArgumentTypeError(fault)
    return text


def find_path_fault(path: Path) -> str:
    """Why no file can be made there; "": one can."""
    if path.is_dir():
        return f"{path} is a folder: give the path of a file"
    return "" if path.parent.is_dir() else f"{path}: there is no folder {path.parent}"
