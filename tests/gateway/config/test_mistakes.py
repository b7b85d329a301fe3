# docs/config-mistakes.md: `check` says of each of its rows what stands there, no more and no less.

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gateway import cli

PAGE = (Path(__file__).parents[3] / "docs" / "config-mistakes.md").read_text("utf-8")
BASE = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0].splitlines()
ROWS = re.findall(r"^\| `(.*?)` \| `(.*)` \|$", PAGE, re.MULTILINE)


def configuration(line: str) -> str:
    """With this line in place of the one with the same key, else behind them."""
    key = line.partition(":")[0]
    lines = [line if each.startswith(f"{key}:") else each for each in BASE]
    return "\n".join(lines if line in lines else [*lines, line]) + "\n"


def test_the_page_s_rows_are_found_and_what_they_are_added_to_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(ROWS) == sum(line.startswith("| `") for line in PAGE.splitlines())
    assert len(ROWS) > 30
    monkeypatch.chdir(tmp_path)
    Path("gw.yaml").write_text("\n".join(BASE), "utf-8")
    assert cli.main(["check", "--strict", "gw.yaml"]) == 0


@pytest.mark.parametrize(("written", "said"), ROWS, ids=[written for written, _ in ROWS])
def test_a_mistake_is_answered_as_the_page_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    written: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PRODUCE_GATEWAY_")]:
        monkeypatch.delenv(name)
    Path("gw.yaml").write_text(configuration(written), "utf-8")
    expected = said.split("`<br>`")
    assert cli.main(["check", "--strict", "gw.yaml"]) == 1
    assert capsys.readouterr().err.splitlines() == expected
    assert cli.main(["check", "gw.yaml"]) == (0 if all(": warning: " in line for line in expected) else 1)
