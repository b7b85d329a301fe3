# `python -m gateway.data --fd N --worker W`: one worker, started by the parent (supervisor.py) and by nobody else.

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc

import trio

from gateway.data.worker import Worker
from gateway.supervisor import ParentGone, ParentLink, attach

LARGE_BLOCK = 512 * 2**10
HEAP_KEPT = 16 * 2**20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.data")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--worker", type=int, required=True)
    args = parser.parse_args()
    # Everything that lives as long as the process is made by now; what a request makes is freed by its reference count.
    # The cyclic collector would walk every connection again and again for nothing, in the middle of the traffic.
    _return_large_blocks()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    code = 0
    try:
        trio.run(_run, attach(args.fd), args.worker)
    except* ParentGone:
        code = 1
    return code


def _return_large_blocks() -> None:
    """Have the C library give memory back as soon as it is freed, for blocks as large as answers about a whole cluster.

    It would do so for the first one only, and then keep ever larger ones in a heap with holes: memory was three times
    what connections held. Where the library is another one this does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)
        library.mallopt(
            _M_TRIM_THRESHOLD, HEAP_KEPT
        )  # else it would follow the other down, and be trimmed all the time


async def _run(parent: ParentLink, number: int) -> None:
    await Worker(parent, number).run()


if __name__ == "__main__":
    raise SystemExit(main())
