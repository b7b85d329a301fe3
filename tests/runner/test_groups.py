# How `make test` divides the tests between its processes (conftest.py): one process runs all of a group, or each would
# start the clusters, Spark and gateways that the group's tests share.

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("clients/test_a.py", "clients/test_b.py", "policies/test_c.py", "policies/test_d.py", "policies/test_e.py")
TESTS = "import pytest\n\n@pytest.mark.parametrize('at', range(6))\ndef test_it(at):\n    pass\n"


def test_a_group_is_run_by_one_process(tmp_path: Path) -> None:
    for name in FILES:
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TESTS)
    (tmp_path / "tests" / "runner").mkdir()
    for name in ("conftest.py", "certificates.py", "runner/costs.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib --no-loadscope-reorder\n")
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadscope", "tests"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ran: dict[str, set[str]] = defaultdict(set)
    for process, name in re.findall(r"^\[(gw\d)\].* PASSED tests/(\S+)::", done.stdout, re.MULTILINE):
        ran["clients" if name.startswith("clients/") else name].add(process)
    assert ran.keys() == {"clients", *FILES[2:]}
    assert all(len(processes) == 1 for processes in ran.values()), dict(ran)
