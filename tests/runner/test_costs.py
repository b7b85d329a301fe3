# The report that `make test` ends with (costs.py), of a run of two tests: one waits, one lets another process compute.

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.runner import costs

ROOT = Path(__file__).parents[2]
TOLD = ("waits", "lets_compute", "is_brief")
TESTS = """
import subprocess
import sys
import threading

BURN = "import time\\nwhile time.process_time() < 1:\\n    pass"


def test_that_waits():
    threading.Event().wait(1.5)


def test_that_lets_compute():
    subprocess.run([sys.executable, "-c", BURN], check=True)


def test_that_is_brief():
    pass
"""


def test_the_slowest_tests_are_told_with_what_they_cost_and_where_they_stood(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "runner").mkdir()
    for name in ("conftest.py", "certificates.py", "runner/costs.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib --no-loadscope-reorder\n")
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadscope", "tests"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT), "TEST_COSTS": str(tmp_path / "costs.json")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    found = json.loads((tmp_path / "costs.json").read_text())
    waits, computes, brief = (found[f"tests/test_it.py::test_that_{name}"] for name in TOLD)
    assert waits["wall"] >= 1.5
    assert waits["where"].startswith("test_it.py:10: threading.Event().wait(1.5)")
    assert computes["cpu"] > 0.9 > waits["cpu"]
    assert brief["cpu"] < computes["cpu"]
    told = re.findall(r"^ +[\d.]+ s +[\d.]+ s  test_it.py::test_that_(\w+)$", done.stdout, re.MULTILINE)
    assert set(told) == set(TOLD)
    assert re.search(r"^all 3: \d+ s, \d+ s of CPU time$", done.stdout, re.MULTILINE)
    assert set(costs.by_file(found)) == {"tests/test_it.py"}
