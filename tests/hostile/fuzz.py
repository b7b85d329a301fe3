# Fuzzing for as long as one likes: plays of sessions with everything on (plays.py, player.py) on all cores, and in one
# more process crowds on sockets (crowd.py) and visitors of the admin server (web.py), in turns. Tests play some of the
# same (test_everything_on.py); this is for millions.
#
#   python -m tests.hostile.fuzz [--inputs N] [--seconds S] [--seed N] [--processes N] [--save FOLDER] [--slow]
#   python -m tests.hostile.fuzz --replay FILE
#
# An input is what one side sends at once: a frame, several glued together, or a piece of one. A play is a few hundred
# of them on one worker. What fails is cut down, saved with its seed, and told; --replay shows it with its traceback.

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import re
import resource
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.hostile.fuzzing.control import Ended
from tests.hostile.fuzzing.crowd import gather
from tests.hostile.fuzzing.player import Player
from tests.hostile.fuzzing.plays import Cost, Op, Violation, again, perform
from tests.hostile.fuzzing.web import surf

INPUTS = 500  # of one play
PLAYS = 40  # of one task
CROWDS = 20  # likewise, or so many of web.py
DEAR = 0.0005  # of the requests are dear to read …
DEAR_BYTES = 100_000  # … and up to so long
MINIMISE_S = 20.0
MAX_S_PER_MB = 1.0  # loose: what an ordinary machine needs a tenth of, also while it does something else
MAX_HELD = 4 * 2**20  # bytes, of one connection


ENDS = "control would end"


class Failure(NamedTuple):
    seed: int
    kind: str  # where it came from: failures of the same kind are told once
    text: str
    ops: list[Op]


def play(seed: int, cost: Cost, *, dear: float = DEAR, inputs: int = INPUTS) -> Failure | None:
    try:
        perform(Player(seed, inputs, dear, DEAR_BYTES), cost)
    except Exception as error:
        trace: list[Op] = error.trace  # type: ignore[attr-defined]
        return Failure(seed, _kind(error), f"{type(error).__name__}: {str(error)[:500]}", trace)
    return None


def _kind(error: Exception) -> str:
    if isinstance(error, Violation):
        return "rule broken: " + "".join(letter for letter in re.split("[{'(]", str(error))[0] if not letter.isdigit())
    if isinstance(error, Ended):
        return f"{ENDS}: {str(error).split(': ')[0]}"
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {os.path.basename(at.filename)}:{at.lineno} {at.name}"


def minimise(failure: Failure) -> Failure:
    """The same failure with as few operations as can be found soon."""
    ops, until = failure.ops, time.monotonic() + MINIMISE_S
    size = len(ops) // 2
    while size and time.monotonic() < until:
        at = 0
        while at < len(ops) and time.monotonic() < until:
            fewer = ops[:at] + ops[at + size :]
            if _fails_as(fewer, failure.kind):
                ops = fewer
            else:
                at += size
        size //= 2
    return failure._replace(ops=ops)


def _fails_as(ops: list[Op], kind: str) -> bool:
    try:
        again(ops)
    except Exception as error:
        return _kind(error) == kind
    return False


class Task(NamedTuple):
    seeds: range
    dear: float
    play: str = "session"  # or "crowd", "web"


_Found = tuple[Cost, list[Failure], int]


def _on_sockets(seed: int, cost: Cost, task: Task) -> Failure | None:
    try:
        if task.play == "web":
            surf(seed, cost)
        else:
            gather(seed, cost)
    except Exception as error:
        return Failure(seed, f"{task.play}, {_kind(error)}", "".join(traceback.format_exception(error))[-1500:], [])
    return None


def _work(task: Task) -> _Found:
    """In a process of its own: its cost, what failed, and the most memory that the process ever had, in bytes."""
    cost, failures = Cost(), {}
    for seed in task.seeds:
        cost.seed = seed
        if task.play == "session":
            failure = play(seed, cost, dear=task.dear)
        else:
            failure = _on_sockets(seed, cost, task)
        if failure is not None and failure.kind not in failures:
            failures[failure.kind] = failure
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return cost, list(failures.values()), most


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile.fuzz", description="Fuzz sessions of the data plane, and control."
    )
    parser.add_argument("--inputs", type=int, default=10**18, help="stop after about so many")
    parser.add_argument("--seconds", type=float, default=None, help="stop after so long (60, unless --inputs is given)")
    parser.add_argument("--seed", type=int, default=None, help="of the first play; the others follow it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--save", type=Path, default=Path("build/fuzz"), help="folder for what fails")
    parser.add_argument("--dear", type=float, default=DEAR, help="share of requests that are dear to read")
    parser.add_argument("--slow", action="store_true", help="no bound on CPU time per MB: sanitizers take most of it")
    parser.add_argument("--replay", type=Path, help="play a saved failure once more")
    options = parser.parse_args(arguments)
    if options.replay:
        again(msgspec.json.decode(options.replay.read_bytes(), type=list[Op]))
        print("nothing fails")
        return 0
    if options.seconds is None:
        options.seconds = 1e9 if options.inputs < 10**18 else 60.0
    seed = options.seed if options.seed is not None else int(time.time()) * 1_000_000
    print(f"seed {seed}, {options.processes} processes", flush=True)
    return _fuzz(options, seed)


def _fuzz(options: Any, seed: int) -> int:
    cost, most, kinds = Cost(), 0, Counter[str]()
    began = told = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes + 1, context) as pool:
        at_work: set[Future[_Found]] = set()
        on_sockets: Future[_Found] | None = None
        kinds_on_sockets = itertools.cycle(("crowd", "web"))
        while True:
            goes_on = cost.inputs < options.inputs and time.monotonic() - began < options.seconds
            if goes_on and (on_sockets is None or on_sockets.done()):
                kind = next(kinds_on_sockets)
                on_sockets = pool.submit(_work, Task(range(seed, seed + CROWDS), 0.0, kind))
                at_work.add(on_sockets)
            while goes_on and len(at_work) <= 2 * options.processes:
                task = Task(range(seed, seed + PLAYS), options.dear)
                at_work.add(pool.submit(_work, task))
                seed += PLAYS
            if not at_work:
                break
            done, at_work = wait(at_work, return_when=FIRST_COMPLETED)
            for found, failures, held in (one.result() for one in done):
                cost.merge(found)
                most = max(most, held)
                for failure in failures:
                    kinds[failure.kind] += 1
                    if kinds[failure.kind] == 1:
                        _tell(minimise(failure), options.save)
            now = time.monotonic()
            if now - told > 60:
                told = now
                print(f"{cost.inputs:,} inputs, {cost.inputs / (now - began):,.0f}/s", flush=True)
    return _report(cost, kinds, most, time.monotonic() - began, slow=options.slow)


def _tell(failure: Failure, folder: Path) -> None:
    print(f"{failure.kind} (seed {failure.seed})\n  {failure.text}", flush=True)
    if failure.ops:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{failure.seed}.json"
        path.write_bytes(msgspec.json.encode(failure.ops))
        print(f"  {len(failure.ops)} operations in {path}", flush=True)


def _report(cost: Cost, kinds: Counter[str], most: int, seconds: float, *, slow: bool) -> int:
    broken = sum(count for kind, count in kinds.items() if "rule broken" in kind)
    ends = sum(count for kind, count in kinds.items() if ENDS in kind)
    rows = [
        ("inputs", f"{cost.inputs:,}"),
        ("bytes", f"{cost.bytes / 1e6:,.0f} MB"),
        ("connections", f"{cost.ends.total():,}: " + ", ".join(f"{n:,} {why}" for why, n in cost.ends.most_common())),
        ("ends of a control", str(ends)),
        ("unexpected exceptions", str(kinds.total() - broken - ends)),
        ("rules broken", str(broken)),
        ("slowest input", f"{cost.slowest[0] * 1e3:.1f} ms of CPU (seed {cost.slowest[1]})"),
        (
            "dearest input",
            f"{cost.dearest[0]:.2f} s of CPU per MB, of {Cost.DEAR_BYTES:,} bytes on (seed {cost.dearest[1]})",
        ),
        ("most memory of a connection", f"{cost.most_held / 1024:,.0f} KiB"),
        ("most memory of a process", f"{most / 2**20:,.0f} MiB"),
        ("time", f"{seconds:,.0f} s, {cost.inputs / seconds:,.0f} inputs/s"),
    ]
    for name, value in rows:
        print(f"{name:<28} {value}")
    dear = (cost.dearest[0] > MAX_S_PER_MB and not slow) or cost.most_held > MAX_HELD
    if dear:
        print(f"beyond {MAX_S_PER_MB} s per MB or {MAX_HELD / 2**20:.0f} MiB per connection", file=sys.stderr)
    return 1 if kinds or dear else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
