# `python -m gateway.data --fd N --worker W`: one worker, started by the parent (supervisor.py) and by nobody else.

from __future__ import annotations

import argparse
import gc

import trio

from gateway.data.worker import Worker
from gateway.supervisor import ParentGone, ParentLink, attach


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.data")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--worker", type=int, required=True)
    args = parser.parse_args()
    # Everything that lives as long as the process is made by now; what a request makes is freed by its reference count.
    # The cyclic collector would walk every connection again and again for nothing, in the middle of the traffic.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    code = 0
    try:
        trio.run(_run, attach(args.fd), args.worker)
    except* ParentGone:
        code = 1
    return code


async def _run(parent: ParentLink, number: int) -> None:
    await Worker(parent, number).run()


if __name__ == "__main__":
    raise SystemExit(main())
