# `python -m tests.simulation --seed 1 --hours 0.1 --worlds 20`: worlds from consecutive seeds, with what came of each.

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from tests.simulation.minimising import as_test, kind_of, minimise
from tests.simulation.models.clients import describe
from tests.simulation.mutations import breaking, run_all
from tests.simulation.world import NEWER_THEMES, NEWEST_THEMES, THEMES, Plan, World, make_plan


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1000, help="of the first world")
    parser.add_argument("--hours", type=float, default=0.1, help="simulated hours of each world")
    parser.add_argument("--worlds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="worlds at a time, each on a core")
    parser.add_argument(
        "--theme", choices=(*THEMES, *NEWER_THEMES, *NEWEST_THEMES), help="which limits; by default the seed says"
    )
    parser.add_argument("--calm", action=argparse.BooleanOptionalAction, help="without faults, or with")
    parser.add_argument("--nights", action="store_true", help="long worlds: of each hour next to nothing in 58 minutes")
    parser.add_argument("--minimise", action="store_true", help="cut a failing world down, and print its plan")
    parser.add_argument("--show", action="store_true", help="clients, limits and the log's last lines of each world")
    parser.add_argument(
        "--mutations",
        nargs="?",
        const="",
        metavar="NAME",
        help="break the product on purpose: which does the judge see?",
    )
    parser.add_argument(
        "--broken", metavar="NAME", help="break the product so in all worlds: a mutation's name, or a part"
    )
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what happens
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    if args.mutations is not None:
        return run_all(args.mutations)
    with breaking(args.broken):
        return _run_worlds(args)


class Found(NamedTuple):
    """What came of one world. `took_s`: of CPU."""

    plan: Plan
    lines: list[str]
    violations: list[str]
    counts: Counter[str]
    simulated_s: float
    took_s: float


def _run_world(seed: int, args: Any) -> Found:
    plan = make_plan(seed, args.hours, theme=args.theme, calm=args.calm, has_nights=args.nights)
    began, world = time.process_time(), World(plan)
    judge = world.run()
    took_s = time.process_time() - began
    if not gc.get_freeze_count():
        gc.freeze()  # what is there now is there for all worlds
    lines = [
        f"seed {seed}: {plan.theme}, {plan.gateways} gateways with {plan.workers} workers, {len(plan.faults)} faults,"
        f" {world.simulated_s:.0f} s in {took_s:.1f} s, {judge.counts['records acknowledged']} records,"
        f" digest {judge.digest}: {len(judge.violations)} violations",
        *(f"    {violation}" for violation in judge.violations[:10]),
        *(_show(world) if args.show else ()),
    ]
    return Found(plan, lines, judge.violations, judge.counts, world.simulated_s, took_s)


def _run_worlds(args: Any) -> int:
    totals: Counter[str] = Counter()
    simulated_s = took_s = 0.0
    failed = []
    # Forked, so that they are broken as this process is.
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        seeds = range(args.seed, args.seed + args.worlds)
        run = partial(_run_world, args=args)
        for seed, found in zip(seeds, pool.map(run, seeds) if args.jobs > 1 else map(run, seeds), strict=True):
            print("\n".join(found.lines), flush=True)
            simulated_s, took_s = simulated_s + found.simulated_s, took_s + found.took_s
            totals += found.counts
            if found.violations:
                failed.append(seed)
                if args.minimise:
                    _minimise(found.plan, kind_of(found.violations[0]))
    speed = simulated_s / max(took_s, 0.1)
    print(f"{simulated_s / 3600:.2f} simulated hours in {took_s:.0f} s of CPU, {speed:.0f} times real time")
    for kind in ("records", "records acknowledged", "records in logs", "records failed", "rejected by a gateway"):
        print(f"{kind}: {totals[kind]}")
    for kind, count in sorted(totals.items()):
        if kind.startswith(("fault", "violation")):
            print(f"{kind}: {count}")
    print("failed seeds:", *failed)
    return bool(failed)


def _show(world: World) -> Iterator[str]:
    for client in world.clients:
        yield f"    {describe(client)}"
    for limit in world.judge.limits.values():
        yield (
            f"    {limit.name}: {limit.rate:.0f}, {limit.checked} windows judged of {limit.windows}, lowest"
            f" {limit.lowest:.3f}, highest {limit.highest:.3f}, fullest second {limit.fullest:.3f}"
        )
    for total in world.judge.rejecting.values():
        yield f"    {total.name}: {total.rate:.0f}, at most {total.most:.1f} s of it beyond it"
    for line in world.logs:
        yield f"    {line[:240]}"


def _minimise(plan: Plan, kind: str) -> None:
    """`kind`: of the violation that has to stay."""
    smaller = minimise(plan, kind, told=lambda text: print(f"    {text}", flush=True))
    print(f"    the smallest plan found that is still {kind!r}, as a test:\n{as_test(smaller)}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
