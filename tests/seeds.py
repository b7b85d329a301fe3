# The table of docs/seeds.md: which test holds which sentence of the five proposals. The sentences are written there and
# nowhere else; tests name them by the marker `seed`, and `python -m tests.seeds` writes the column of tests anew.

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

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


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
