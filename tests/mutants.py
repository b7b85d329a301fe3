# Whether the tests of a row of docs/seeds.md fail when the code that implements its sentence is broken: `make mutants`.
#
#     python -m tests.mutants [ROW …] [--jobs N] [--units]      such as V1.13, or V1 for all of its rows
#
# tests/seeds.toml says which code that is. Each way to break a line of it (a mutant) is tried in a copy of this tree,
# where compiled modules are missing, with the tests that the page names for the row and no others: those that start no
# cluster first. One that no test sees (a survivor) is a fault of the row, or has its reason in that file.
#
# The ways are mutmut's operators, without those for texts and for arguments that are missing, and a few more: what is
# done is not done, a condition is its opposite, the least is the most, and what goes by a name is 0. mutmut's own
# runner is not used: it chooses tests by their coverage, where the point here is a row's own, and it can't break what
# has a decorator, as properties.
#
# What was found is kept in .mutants.jsonl and taken from there as long as neither that code nor those tests change, so
# a run that was ended goes on.

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

from tests import seeds

ROOT: Final = Path(__file__).parent.parent
FOUND: Final = ROOT / ".mutants.jsonl"
LEFT_OUT: Final = (
    ".git", ".venv", "build", "dist", "node_modules", "*.so", ".mypy_cache", ".ruff_cache", ".pytest_cache",
    "*.egg-info", FOUND.name,
)  # fmt: skip
LIMIT_S: Final = (30.0, 5.0)  # tests of a mutant may take so many seconds more than without it, and times as long


class Mutant(NamedTuple):
    """A file with one place broken. `line`: the number of that line; `old`, `new`: its text, before and after."""

    file: str
    line: int
    old: str
    new: str
    source: str


class Verdict(NamedTuple):
    """`killed`: whether a test failed, None: the tests fail without the mutant as well. `said`: of their last lines."""

    row: str
    mutant: Mutant
    killed: bool | None
    said: str = ""


# --- how code is broken -----------------------------------------------------------------------------------------------


_FALSE: Final = ("None", "False")


def _not_done(line: Any) -> Iterator[Any]:
    # A statement without its effect.
    match line.body:
        case [
            cst.Expr(cst.Call() | cst.Await() | cst.Yield())
            | cst.Raise()
            | cst.Assign([cst.AssignTarget(cst.Attribute() | cst.Subscript())])
            | cst.AugAssign(cst.Attribute() | cst.Subscript())
        ]:
            yield line.with_changes(body=[cst.Pass()])
        case [cst.Return(cst.BaseExpression() as value)] if not (isinstance(value, cst.Name) and value.value in _FALSE):
            yield line.with_changes(body=[cst.Return(cst.Name("None"))])


def _opposite(node: Any) -> Iterator[Any]:
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test))


_ENDS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


def _other_end(call: Any) -> Iterator[Any]:
    if isinstance(call.func, cst.Name) and call.func.value in _ENDS:
        yield call.with_changes(func=cst.Name(_ENDS[call.func.value]))


def _zero(argument: Any) -> Iterator[Any]:
    if argument.keyword is not None and not isinstance(argument.value, cst.Integer):
        yield argument.with_changes(value=cst.Integer("0"))


OPERATORS: Final = (
    *(
        (kind, operator)
        for kind, operator in mutators.mutation_operators
        if operator not in (mutators.operator_string, mutators.operator_arg_removal)
    ),
    (cst.SimpleStatementLine, _not_done),
    (cst.If, _opposite),
    (cst.While, _opposite),
    (cst.CompIf, _opposite),
    (cst.Call, _other_end),
    (cst.Arg, _zero),
)
# What is never broken: types, invariants, decorators.
_KEPT: Final = (cst.Annotation, cst.Assert, cst.Decorator)


def mutants_of(place: str) -> list[Mutant]:
    """All of one place of tests/seeds.toml.

    Raises:
        LookupError: there is no such place.
    """
    file, lines = seeds.lines_of(place)
    parsed = _parsed(file)
    found: dict[str, Mutant] = {}
    for line, statement, node in parsed.nodes:
        for kind, operator in OPERATORS if line in lines else ():
            for new in operator(node) if isinstance(node, kind) else ():
                broken = parsed.with_another(statement, node, new)
                found.setdefault(broken, _mutant(file, parsed.source, broken))
    return [mutant for broken, mutant in found.items() if _compiles(broken)]


class _Parsed:
    """A file. `nodes`: each with the number of its first line and of its statement at the top level."""

    def __init__(self, file: str) -> None:
        self.source = (ROOT / file).read_text("utf-8")
        wrapper = MetadataWrapper(cst.parse_module(self.source), unsafe_skip_copy=True)
        positions = wrapper.resolve(PositionProvider)
        self._module: Any = wrapper.module
        self._codes = [self._module.code_for_node(each) for each in self._module.body]
        self._head = self.source[: self.source.index(self._codes[0])]
        self.nodes = [
            (positions[node].start.line, number, node)
            for number, statement in enumerate(self._module.body)
            for node in (statement, *_walk(statement))
        ]

    def with_another(self, number: int, node: Any, new: Any) -> str:
        """The source with one node replaced. Only its statement is written anew: a whole file takes a tenth of what the
        tests do.
        """
        statement = self._module.body[number]
        changed = new if statement is node else statement.deep_replace(node, new)
        codes = [*self._codes[:number], self._module.code_for_node(changed), *self._codes[number + 1 :]]
        return self._head + "".join(codes)


_parsed = functools.cache(_Parsed)


def _walk(node: Any) -> Iterator[Any]:
    for child in node.children:
        if not isinstance(child, _KEPT):
            yield child
            yield from _walk(child)


def _mutant(file: str, source: str, broken: str) -> Mutant:
    before, after = source.splitlines(), broken.splitlines()
    first = next((n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), 0)
    return Mutant(file, first + 1, before[first].strip(), after[first].strip(), broken)


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


# --- the runs ---------------------------------------------------------------------------------------------------------


class Copies:
    """Copies of this tree, one for each process that breaks something in it."""

    def __init__(self, directory: Path, count: int) -> None:
        self._free: queue.Queue[tuple[int, Path]] = queue.Queue()
        self._count = count
        for number in range(count):
            copy = directory / str(number)
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
            self._free.put((number, copy))

    def run(self, tests: Iterable[str], mutant: Mutant | None, limit_s: float) -> tuple[bool, str]:
        """Whether they pass, and what was said last."""
        number, copy = self._free.get()
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy),
            "PURE_PYTHON": "1",
            # pytest-xdist's: ports of its own for each.
            "PYTEST_XDIST_WORKER": f"gw{number}",
            "PYTEST_XDIST_WORKER_COUNT": str(self._count),
        }
        if mutant is not None:  # nothing compiled of it may be there for the next one
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
        try:
            with _broken(copy, mutant):
                return _run([*command, *(f"tests/{test}" for test in tests)], copy, environment, limit_s)
        finally:
            self._free.put((number, copy))


@contextlib.contextmanager
def _broken(copy: Path, mutant: Mutant | None) -> Iterator[None]:
    if mutant is None:
        yield
        return
    path = copy / mutant.file
    before, times = path.read_bytes(), path.stat()
    path.write_text(mutant.source, "utf-8")
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # what is compiled of it is good again


def _run(command: list[str], copy: Path, environment: Mapping[str, str], limit_s: float) -> tuple[bool, str]:
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=copy, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            passed = process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            passed = False
        finally:  # whatever its tests had started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return passed, "\n".join(output.read().splitlines()[-3:])


class Trial:
    """Rows, and what was found of their mutants."""

    def __init__(self, copies: Copies, units: bool) -> None:
        self._copies = copies
        self._units = units
        self._tests = seeds.tests_of_rows()
        # As the copies have them.
        files = {test.partition("::")[0] for named in self._tests.values() for test in named}
        self._sources = {file: (ROOT / "tests" / file).read_bytes() for file in files}
        self._lock = threading.Lock()
        lines = FOUND.read_text("utf-8").splitlines() if FOUND.exists() else []
        self._known = dict(json.loads(line) for line in lines)
        self._needs_s: dict[tuple[str, ...], float | None] = {}
        self._first = defaultdict[tuple[str, ...], threading.Lock](threading.Lock)

    def judge(self, row: str, mutant: Mutant) -> Verdict:
        key = self._key(row, mutant)
        known = self._known.get(key)
        if known in ("killed", "survived") or (known and self._units):
            return Verdict(row, mutant, known == "killed")
        verdict = self._try(row, mutant)
        if verdict.killed is not None:
            found = "killed" if verdict.killed else "survived units" if self._units else "survived"
            with self._lock, FOUND.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, found]) + "\n")
        return verdict

    def _try(self, row: str, mutant: Mutant) -> Verdict:
        for tests in self._steps(row):
            needs_s, said = self._needed(tests)
            if needs_s is None:
                return Verdict(row, mutant, None, said)
            passed, _ = self._copies.run(tests, mutant, LIMIT_S[0] + LIMIT_S[1] * needs_s)
            if not passed:
                return Verdict(row, mutant, True)
        return Verdict(row, mutant, False)

    def _steps(self, row: str) -> list[tuple[str, ...]]:
        # Seconds first; what starts clusters only for what they let live.
        named = self._tests[row]
        slow = tuple(test for test in named if test.startswith("integration/") or "/test_control_app.py" in test)
        quick = tuple(test for test in named if test not in slow)
        return [step for step in (quick, () if self._units and quick else slow) if step]

    def _needed(self, tests: tuple[str, ...]) -> tuple[float | None, str]:
        # Seconds that these tests take where nothing is broken; None: they fail.
        with self._lock:
            first = self._first[tests]
        with first:
            said = ""
            if tests not in self._needs_s:
                began = time.monotonic()
                passed, said = self._copies.run(tests, None, 600.0)
                self._needs_s[tests] = time.monotonic() - began if passed else None
            return self._needs_s[tests], said

    def _key(self, row: str, mutant: Mutant) -> str:
        made = hashlib.sha256(mutant.source.encode())
        for test in sorted(self._tests[row]):
            made.update(test.encode() + self._sources[test.partition("::")[0]])
        return f"{row} {made.hexdigest()[:24]}"


def main() -> int:
    """1: a mutant survived without a reason, or the tests of a row fail by themselves."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Break the code behind docs/seeds.md.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows, or proposals, such as V1.13 82; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one per core")
    parser.add_argument(
        "--units", action="store_true", help="without tests that start clusters, where there are others"
    )
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    asked = parser.parse_args()
    given = seeds.table()
    rows = {
        row: places
        for row, places in given["rows"].items()
        if isinstance(places, list) and (not asked.rows or {row, row.partition(".")[0]} & set(asked.rows))
    }
    found = [[(row, mutant) for place in places for mutant in mutants_of(place)] for row, places in rows.items()]
    # By turns: a run that is ended has looked at each row.
    work = [each for turn in itertools.zip_longest(*found) for each in turn if each is not None]
    if asked.list:
        for row, mutant in work:
            print(f"{row:8} {mutant.file}:{mutant.line}: {mutant.old}  ->  {mutant.new}")
        print(f"{len(rows)} rows, {len(work)} mutants")
        return 0
    print(f"{len(rows)} rows, {len(work)} mutants, {asked.jobs} at a time", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory, ThreadPoolExecutor(asked.jobs) as pool:
        trial = Trial(Copies(Path(directory), asked.jobs), asked.units)
        verdicts = []
        try:
            for verdict in pool.map(lambda each: trial.judge(*each), work):
                verdicts.append(verdict)
                _show(verdict, given["equivalent"])
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
    return _report(verdicts, given["equivalent"])


def reason_of(mutant: Mutant, equivalent: Iterable[Mapping[str, str]]) -> str:
    """Why it makes no difference that a sentence is about; "": nobody has said."""
    return next(
        (
            each["why"]
            for each in equivalent
            if (each["file"], each["old"], each["new"]) == (mutant.file, mutant.old, mutant.new)
        ),
        "",
    )


def _show(verdict: Verdict, equivalent: Sequence[Mapping[str, str]]) -> None:
    row, mutant, killed, said = verdict
    place = f"{row:8} {mutant.file}:{mutant.line}: {mutant.old}  ->  {mutant.new}"
    if killed is None:
        print(f"FAILS    {place}: its tests fail where nothing is broken: {said}", flush=True)
    elif not killed and not reason_of(mutant, equivalent):
        print(f"SURVIVED {place}", flush=True)


def _report(verdicts: Iterable[Verdict], equivalent: Sequence[Mapping[str, str]]) -> int:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row, mutant, killed, _ in verdicts:
        place = 3 if killed is None else 0 if killed else 1 if reason_of(mutant, equivalent) else 2
        counts[row][place] += 1
    print(f"\n{'row':8} {'mutants':>8} {'killed':>8} {'explained':>10} {'survived':>9} {'failing':>8}")
    sums = [sum(column) for column in zip(*counts.values(), strict=True)]
    for row, found in [*counts.items(), ("all", sums)]:
        killed, explained, survived, failing = found
        print(f"{row:8} {sum(found):8} {killed:8} {explained:10} {survived:9} {failing:8}")
    return int(bool(sums[2] or sums[3]))


if __name__ == "__main__":
    sys.exit(main())
