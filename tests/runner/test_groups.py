# How `make test` divides the tests between its processes (conftest.py): one process runs all of a group, or each would
# start the clusters, Spark and gateways that the group's tests share.

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("clients/test_a.py", "clients/test_b.py", "policies/test_c.py", "policies/test_d.py", "policies/test_e.py")
TESTS = "import pytest\n\n@pytest.mark.parametrize('at', range(6))\ndef test_it(at):\n    pass\n"


# The last test of a group fails at first; the next group sees that what was shared has ended.
SHARED = """
import os
import pytest

@pytest.mark.kafka
def test_it(group_stack):
    if os.environ["TEST_ATTEMPT"] == "1":
        group_stack.callback(os.environ.__setitem__, "ENDED", "yes")
    assert os.environ["TEST_ATTEMPT"] == "2"
    assert "ENDED" not in os.environ
"""
NEXT = "import os\n\ndef test_it():\n    assert os.environ['ENDED'] == 'yes'\n"


def test_a_group_is_run_by_one_process(tmp_path: Path) -> None:
    said = _run_tests(tmp_path, dict.fromkeys(FILES, TESTS), "-v", "-n", "2", "--dist", "loadscope")
    ran: dict[str, set[str]] = defaultdict(set)
    for process, name in re.findall(r"^\[(gw\d)\].* PASSED tests/(\S+)::", said, re.MULTILINE):
        ran["clients" if name.startswith("clients/") else name].add(process)
    assert ran.keys() == {"clients", *FILES[2:]}
    assert all(len(processes) == 1 for processes in ran.values()), dict(ran)


def test_what_a_group_shares_is_there_when_its_last_test_runs_again(tmp_path: Path) -> None:
    said = _run_tests(tmp_path, {"clients/test_a.py": SHARED, "policies/test_b.py": NEXT}, "-p", "no:randomly")
    assert "2 passed, 1 rerun" in said


def _run_tests(folder: Path, files: Mapping[str, str], *options: str) -> str:
    """What a run of these files under our conftest.py says; all tests pass."""
    for name, text in files.items():
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "tests" / "runner").mkdir()
    for name in ("conftest.py", "certificates.py", "runner/costs.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests" / name)
    markers = "markers =\n    kafka: as in pyproject.toml\n"
    addopts = "addopts = --import-mode=importlib --no-loadscope-reorder\n"
    (folder / "pytest.ini").write_text(f"[pytest]\n{addopts}{markers}")
    command = [sys.executable, "-m", "pytest", *options, "tests"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
