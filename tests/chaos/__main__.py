# `python -m tests.chaos [WORD…]` (or `make chaos`): every fault whose name has one of the words, all without any, each
# under load with limits active; prints a table. Exit code 1: something was lost, doubled, out of order, or miscounted
# in silence. test_chaos.py is a short form.

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.chaos import toxiproxy
from tests.chaos.faults import FAULTS
from tests.chaos.scene import HEADER, Chaos, play


def main(words: Sequence[str]) -> int:
    """The exit code."""
    chosen = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    if not chosen:
        print(f"no fault is called so; there are: {', '.join(fault.name for fault in FAULTS)}", file=sys.stderr)
        return 2
    if any(fault.proxied for fault in chosen):
        toxiproxy.build()
    failed = []
    with Chaos() as kafka:
        print(HEADER, flush=True)
        for fault in chosen:
            row = play(kafka, fault)
            print(row, flush=True)
            for found in row.faults:
                print(f"    {found}", flush=True)
            failed += [row] if row.faults else []
    print(f"FAILED: {len(failed)} of {len(chosen)}" if failed else f"passed: {len(chosen)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
