# The table of docs/seeds.md: which test holds which sentence of the five proposals. The sentences are written there and
# nowhere else; tests name them by the marker `seed`, and `python -m tests.seeds` writes the column of tests anew. The
# code that implements them is in seeds.toml, for mutants.py.

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "seeds.md"
ROW = re.compile(r"^\| ((?:V1|DISK|035|546|82)\.\d+) \| (.+?) \|(.*)\|$", re.MULTILINE)


def tests_of_rows() -> dict[str, list[str]]:
    """Row of the page -> `path::name` of its tests."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for row in _rows_of(node):
                    found[row].append(f"{path.relative_to(TESTS).as_posix()}::{node.name}")
    return found


def _rows_of(test: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    markers = [each for each in test.decorator_list if isinstance(each, ast.Call)]
    return [
        str(ast.literal_eval(row))
        for marker in markers
        if ast.unparse(marker.func) == "pytest.mark.seed"
        for row in marker.args
    ]


def written(page: str) -> str:
    """The page with the tests there are; the reason for a deviation, before them, stays."""
    tests = tests_of_rows()

    def row(match: re.Match[str]) -> str:
        said = match[3].strip().partition("<br>")[0]
        reason = [said] if said.startswith("Not so") else []
        return (
            f"| {match[1]} | {match[2]} | {'<br>'.join(reason + [f'`{test}`' for test in tests.get(match[1], ())])} |"
        )

    return ROW.sub(row, page)


def table() -> dict[str, Any]:
    """seeds.toml: `rows`, each with the places of its code or why it has none; `equivalent`: mutants that are none."""
    return tomllib.loads((TESTS / "seeds.toml").read_text("utf-8"))


def lines_of(place: str) -> tuple[str, set[int]]:
    """The file of a place in seeds.toml, and its lines.

    Raises:
        LookupError: there is no such place.
    """
    where, _, text = place.partition(": ")
    file, _, name = where.partition(" ")
    source = (TESTS.parent / file).read_text("utf-8")
    first, last = _span(source, name, place) if name else (1, source.count("\n"))
    lines = {number for number, line in enumerate(source.splitlines(), 1) if first <= number <= last and text in line}
    if not lines:
        raise LookupError(f"{place}: no such line")
    return file, lines


def _span(source: str, name: str, place: str) -> tuple[int, int]:
    found: Any = ast.parse(source)
    for part in name.split("."):
        found = next((each for each in found.body if getattr(each, "name", None) == part), None)
        if found is None:
            raise LookupError(f"{place}: there is no {part}")
    return found.lineno, found.end_lineno


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
