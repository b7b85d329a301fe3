# `make differential`: random requests under random limits, through the fast path and through sessions without it, until
# INPUTS of them have been compared. The outcomes, states and rows must be equal.

from __future__ import annotations

import argparse
import sys
import time

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.gateway.data.session.fast_path.test_fast_path_limits import limits_at_work, steps, told
from tests.variants import COMPILED, PURE, module, running

EXAMPLES = 2000  # hypothesis remembers what it has generated: so many of each seed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gateway.data.session.fast_path.differential")
    parser.add_argument("--inputs", type=int, default=10_000_000, help="requests to compare (%(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--seed", type=int, default=1, help="the first; the others follow it")
    args = parser.parse_args(argv)
    module("gateway.data.session.fast_path", COMPILED)
    begun, number = time.monotonic(), args.seed
    compared = 0

    def compare(limits: object, played: list[tuple[float, int, list[tuple[object, int]], int]]) -> None:
        nonlocal compared
        compared += sum(times for _, _, requests, _ in played for _, times in requests)
        usual = told(limits, played)
        with running(PURE):
            expected = told(limits, played)
        for place, (one, other) in enumerate(zip(usual, expected, strict=True)):
            assert one == other, place

    examples = given(limits_at_work, st.lists(steps, min_size=1, max_size=30))
    while compared < args.inputs and time.monotonic() - begun < args.seconds:
        run = settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=False,
            phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
        )(seed(number)(examples(compare)))  # fmt: skip
        run()
        print(f"seed {number}: {compared:,} requests, {time.monotonic() - begun:,.0f} s, no difference", flush=True)
        number += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
