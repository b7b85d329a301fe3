# What each test costs: wall time, CPU time of its process and of all that this has started, and the line in tests/ that
# it stood at for most of the time. `make test` ends with the slowest; TEST_COSTS=file keeps them all, and
# `python -m tests.runner.costs file` prints them by file. It knows nothing of what the tests do.

from __future__ import annotations

import faulthandler
import json
import linecache
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

SLOWEST = 20
_TICK = os.sysconf("SC_CLK_TCK")
_TESTS = Path(__file__).parents[1]
_OURS, _NOBODYS = f"{_TESTS}{os.sep}", ("costs.py", "conftest.py")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)  # of faulthandler.dump_traceback
_LOOK_S = 0.1  # between two looks at where a test stands
_BRIEF_S = (
    0.3  # a test that is shorter is not worth a look at all processes: the next one's CPU time has its children's
)
_TOLD_S = 0.5
_COSTS = "costs"


class Costs:
    """Plugin of pytest: measures where tests run, and reports where they are reported."""

    def __init__(self) -> None:
        self._clock = _Clock()
        self._watch = _Watch()
        self._found: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._clock.begin()
        self._watch.begin()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            wall, cpu = self._clock.end()
            report.user_properties = [*report.user_properties, (_COSTS, [wall, cpu, *self._watch.end()])]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        value: Any
        for name, value in report.user_properties:
            if name == _COSTS:
                self._found[report.nodeid] = dict(zip(("wall", "cpu", "where", "stood"), value, strict=True))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if path := os.environ.get("TEST_COSTS"):
            Path(path).write_text(json.dumps(self._found))
        slowest = sorted(self._found.items(), key=lambda each: -each[1]["wall"])[:SLOWEST]
        if not slowest or slowest[0][1]["wall"] < 1:
            return
        terminalreporter.section(f"slowest {len(slowest)} tests: wall time, CPU time, where they stood the longest")
        for name, cost in slowest:
            terminalreporter.write_line(f"{cost['wall']:6.1f} s {cost['cpu']:6.1f} s  {name.removeprefix('tests/')}")
            if cost["stood"] >= _TOLD_S:
                terminalreporter.write_line(f"{'':19}{cost['stood']:.1f} s at {cost['where']}")
        all_of = sum_of(self._found.values())
        terminalreporter.write_line(
            f"all {len(self._found)}: {all_of['wall']:.0f} s, {all_of['cpu']:.0f} s of CPU time"
        )


class _Clock:
    """CPU time of this process and of its descendants, those that have ended included."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._own = time.process_time()
        self._of_all = _cpu_of_all()
        self._brief = 0.0  # CPU time of brief tests since then, which they have been told

    def begin(self) -> None:
        self._wall, self._own = time.monotonic(), time.process_time()

    def end(self) -> tuple[float, float]:
        wall = time.monotonic() - self._wall
        if wall < _BRIEF_S:
            own = time.process_time() - self._own
            self._brief += own
            return wall, own
        before, self._of_all = self._of_all, _cpu_of_all()
        told, self._brief = self._brief, 0.0
        return wall, max(0.0, self._of_all - before - told)


def _cpu_of_all() -> float:
    """Seconds. Where there is no /proc: of this process and of its children that have ended."""
    if not os.path.exists("/proc/self/stat"):
        return sum(os.times()[:4])
    parents, times = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(name)], times[int(name)] = int(fields[1]), sum(map(int, fields[11:15]))
    children = defaultdict(list)
    for process, parent in parents.items():
        children[parent].append(process)
    found = [os.getpid()]
    for process in found:
        found += children[process]
    return sum(times.get(process, 0) for process in found) / _TICK


class _Watch:
    """Looks ten times per second at the line in tests/ where the main thread is."""

    def __init__(self) -> None:
        self._thread = threading.main_thread().ident or 0
        self._stacks = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - for as long as the thread lives
        self._stood: Counter[tuple[str, int]] = Counter()
        self._started = False
        self._turn = threading.Lock()  # a counter may not grow while the most common is looked for

    def begin(self) -> None:
        if not self._started:
            self._started = True
            threading.Thread(target=self._look, name="costs", daemon=True).start()
        with self._turn:
            self._stood.clear()

    def end(self) -> tuple[str, float]:
        """The line, and for how many seconds."""
        with self._turn:
            if not self._stood:
                return "", 0.0
            ((file, number), looks) = self._stood.most_common(1)[0]
        if not file:
            return "trio, outside of tests/", looks * _LOOK_S
        line = linecache.getline(file, number).strip()
        return f"{Path(file).relative_to(_TESTS).as_posix()}:{number}: {line[:70]}", looks * _LOOK_S

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            place = self._find_place()
            with self._turn:
                self._stood[place] += 1

    def _find_place(self) -> tuple[str, int]:
        """The innermost line in tests/, as file and number; no file: there is none."""
        # In one call, which no other thread runs beside: of frames that are walked in Python, the thread that they
        # belong to may end some meanwhile, and CPython 3.11 crashed at that.
        os.lseek(self._stacks.fileno(), 0, os.SEEK_SET)
        os.ftruncate(self._stacks.fileno(), 0)
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._stacks.seek(0)
        told = self._stacks.read().decode(errors="replace")
        stack = told.partition(f"Thread 0x{self._thread:016x} (most recent call first):\n")[2].partition("\n\n")[0]
        for file, number in _FRAME.findall(stack):
            if file.startswith(_OURS) and not file.endswith(_NOBODYS):
                return file, int(number)
        return "", 0


def sum_of(costs: Any) -> dict[str, float]:
    costs = list(costs)
    return {key: sum(each[key] for each in costs) for key in ("wall", "cpu")}


def by_file(costs: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    files = defaultdict(list)
    for name, cost in costs.items():
        files[name.partition("::")[0]].append(cost)
    return {name: sum_of(each) for name, each in files.items()}


if __name__ == "__main__":
    for file, cost in sorted(
        by_file(json.loads(Path(sys.argv[1]).read_text())).items(), key=lambda each: -each[1]["cpu"]
    ):
        print(f"{cost['wall']:7.1f} s {cost['cpu']:7.1f} s  {file}")
