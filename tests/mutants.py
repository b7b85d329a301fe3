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
import importlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

from tests import seeds

ROOT: Final = Path(__file__).parent.parent
FOUND: Final = ROOT / ".mutants.jsonl"
LEFT_OUT: Final = (
    ".git", ".venv", "build", "dist", "node_modules", "*.so", ".mypy_cache", ".ruff_cache", ".pytest_cache",
    "*.egg-info", FOUND.name,
)  # fmt: skip
# What tests and what they test import of others: once, and not for each mutant.
IMPORTED: Final = ("confluent_kafka.admin", "fastapi", "httpx", "hypothesis", "pytest_trio", "trio.testing")
KILLED, SURVIVED, UNITS, FAILS, EXPLAINED = "killed", "survived", "survived units", "failing", "explained"
LIMIT_S: Final = (15.0, 5.0)  # tests of a mutant may take so many seconds more than without it, and times as long


class Mutant(NamedTuple):
    """A file with one place broken. `line`: the number of that line; `old`, `new`: its text, before and after."""

    file: str
    line: int
    old: str
    new: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old}  ->  {self.new}"


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


def _is_kept(node: Any) -> bool:
    # Never broken: types, decorators, invariants, of which zip's `strict` is one.
    match node:
        case cst.Annotation() | cst.Assert() | cst.Decorator() | cst.Arg(keyword=cst.Name("strict")):
            return True
    return False


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
        if not _is_kept(child):
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


class Runner:
    """A process that breaks one thing after the other in a copy of this tree of its own.

    Tests run in a fork of it, where what they import of others is imported already, and nothing of this project is.
    """

    def __init__(self, copy: Path, number: int, count: int) -> None:
        self.copy = copy
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        self._environment = {
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "",
            "PURE_PYTHON": "1",
            "HYPOTHESIS_PROFILE": "unshrunk",
            # pytest-xdist's: ports of its own for each.
            "PYTEST_XDIST_WORKER": f"gw{number}",
            "PYTEST_XDIST_WORKER_COUNT": str(count),
        }

    def passes(self, tests: Sequence[str], mutant: Mutant | None, limit_s: float) -> tuple[bool, str]:
        """Whether they do, and what was said last."""
        with _broken(self.copy, mutant), tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = os.fork()
            if not process:
                try:
                    os._exit(self._pytest(tests, mutant is not None, limit_s, output.fileno()))
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            try:
                _, status = os.waitpid(process, 0)
            finally:
                with contextlib.suppress(ProcessLookupError):  # whatever its tests had started
                    os.killpg(process, signal.SIGKILL)
            output.seek(0)
            return status == 0, "\n".join(output.read().splitlines()[-3:])

    def _pytest(self, tests: Sequence[str], is_broken: bool, limit_s: float, output: int) -> int:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.alarm(math.ceil(limit_s))  # ends it
        os.chdir(self.copy)
        os.environ.update(self._environment)
        if is_broken:  # nothing that is compiled of it may be there for the next one
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            sys.dont_write_bytecode = True
        sys.path[:] = [str(self.copy), *(path for path in sys.path if path not in ("", str(ROOT)))]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        options = ["-x", "-q", "--assert=plain", "--tb=line", "--timeout=0", f"--basetemp={self.copy}.tmp"]
        options += ["-p", "no:cacheprovider", "-p", "no:randomly"]
        return pytest.main([*options, *(f"tests/{test}" for test in tests)])


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


class Trial:
    """Rows, and what was found of their mutants."""

    def __init__(self, runner: Runner, units: bool) -> None:
        self._runner = runner
        self._units = units
        self._tests = seeds.tests_of_rows()
        lines = FOUND.read_text("utf-8").splitlines() if FOUND.exists() else []
        self._known: dict[str, str] = dict(json.loads(line) for line in lines)

    def judge(self, row: str, mutant: Mutant) -> str:
        """KILLED, SURVIVED, UNITS: survived so far, FAILS: so do the tests where nothing is broken."""
        key = self._key(row, mutant)
        known = self._known.get(key)
        if known in (KILLED, SURVIVED) or (known and self._units):
            return known
        found = self._try(row, mutant)
        if found != FAILS:
            with FOUND.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, found]) + "\n")
        return found

    def _try(self, row: str, mutant: Mutant) -> str:
        # Seconds first; what starts clusters only for what they let live.
        named = self._tests[row]
        slow = tuple(test for test in named if test.startswith("integration/") or "/control/test_app.py" in test)
        quick = tuple(test for test in named if test not in slow)
        is_half = bool(self._units and quick and slow)
        for tests in (quick, () if is_half else slow):
            needs_s = self._needs_s(tests) if tests else 0.0
            if needs_s is None:
                return FAILS
            if tests and not self._runner.passes(tests, mutant, LIMIT_S[0] + LIMIT_S[1] * needs_s)[0]:
                return KILLED
        return UNITS if is_half else SURVIVED

    @functools.cache  # noqa: B019  # there is one
    def _needs_s(self, tests: tuple[str, ...]) -> float | None:
        # Seconds that these tests take where nothing is broken; None: they fail.
        began = time.monotonic()
        passed, said = self._runner.passes(tests, None, 600.0)
        if not passed:
            print(f"{' '.join(tests)} fail where nothing is broken: {said}", flush=True)
        return time.monotonic() - began if passed else None

    def _key(self, row: str, mutant: Mutant) -> str:
        made = hashlib.sha256(mutant.source.encode())
        for test in sorted(self._tests[row]):
            made.update(test.encode() + (self._runner.copy / "tests" / test.partition("::")[0]).read_bytes())
        return f"{row} {made.hexdigest()[:24]}"


_trial: Trial  # a process's own


def _begin(directory: Path, numbers: Any, count: int, units: bool) -> None:
    global _trial  # noqa: PLW0603
    number = numbers.get()
    _trial = Trial(Runner(directory / str(number), number, count), units)


def _judge(given: tuple[str, Sequence[Mutant]]) -> list[str]:
    row, mutants = given
    return [_trial.judge(row, mutant) for mutant in mutants]


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
    work = [
        (row, list(dict.fromkeys(mutant for place in places for mutant in mutants_of(place))))
        for row, places in given["rows"].items()
        if isinstance(places, list) and (not asked.rows or {row, row.partition(".")[0]} & set(asked.rows))
    ]
    print(f"{len(work)} rows, {sum(len(mutants) for _, mutants in work)} mutants", flush=True)
    if asked.list:
        for row, mutants in work:
            print("\n".join(f"{row:8} {mutant}" for mutant in mutants))
        return 0
    for name in IMPORTED:
        importlib.import_module(name)
    context = multiprocessing.get_context("fork")
    numbers = context.SimpleQueue()
    for number in range(asked.jobs):
        numbers.put(number)
    counts = {}
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as directory,
        ProcessPoolExecutor(asked.jobs, context, _begin, (Path(directory), numbers, asked.jobs, asked.units)) as pool,
    ):
        for (row, mutants), verdicts in zip(work, pool.map(_judge, work), strict=True):
            counts[row] = Counter[str]()
            for mutant, verdict in zip(mutants, verdicts, strict=True):
                explained = verdict in (SURVIVED, UNITS) and reason_of(mutant, given["equivalent"])
                counts[row][EXPLAINED if explained else verdict] += 1
                if verdict in (SURVIVED, UNITS) and not explained:
                    print(f"{verdict.upper():14} {row:8} {mutant}", flush=True)
    return _report(counts)


def reason_of(mutant: Mutant, equivalent: Sequence[Mapping[str, str]]) -> str:
    """Why it makes no difference that a sentence is about; "": nobody has said."""
    same = (each["why"] for each in equivalent if (each["file"], each["old"], each["new"]) == mutant[:1] + mutant[2:4])
    return next(same, "")


def _report(counts: Mapping[str, Counter[str]]) -> int:
    columns = (KILLED, EXPLAINED, SURVIVED, UNITS, FAILS)
    print(f"\n{'row':8} {'mutants':>15}", *(f"{column:>15}" for column in columns))
    total = sum(counts.values(), Counter[str]())
    for row, found in [*counts.items(), ("all", total)]:
        print(f"{row:8} {found.total():15}", *(f"{found[column]:15}" for column in columns))
    return int(total.total() > total[KILLED] + total[EXPLAINED])


if __name__ == "__main__":
    sys.exit(main())
