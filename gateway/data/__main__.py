# `python -m gateway.data --fd N --worker W [--workers M --memory N]`: one worker, started by the parent (supervisor.py)
# and by no other module.

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import logging
import sys
import time

import trio

from gateway.data.worker.worker import DataWorker
from gateway.parent_link import ParentGone, ParentLink, attach_to_parent
from gateway.system.shared_memory import SharedMemoryRegion
from policies.fleet.page import SharedPage

LARGE_BLOCK_BYTES = 512 * 2**10
HEAP_KEPT_BYTES = 16 * 2**20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.data")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--memory", type=int, help="what all workers share, and those that replace them")
    parser.add_argument("--log-format", choices=("console", "json"), default="console", help="of a crash")
    args = parser.parse_args()
    # Everything that lives as long as the process is made by now; what a request makes is freed by its reference count.
    # The cyclic collector would walk every connection again and again for nothing, in the middle of the traffic.
    _return_large_blocks()
    gc.collect()
    gc.freeze()
    # A connection that has ended is freed at once, but not always what opened it: trio's tasks, scopes and errors are
    # in circles. Those that a collection has seen alive wait for one of the second generation, which comes behind four
    # of the first: with strangers who come and go, fifty would be minutes.
    gc.set_threshold(50_000, 4, 50)
    code = 0
    try:
        trio.run(_run_worker, attach_to_parent(args.fd), args)
    except* ParentGone:
        code = 1
    except* Exception as bugs:
        _report_crash(bugs, args)
        code = 1
    return code


def _report_crash(bugs: BaseException, args: argparse.Namespace) -> None:
    """Log the bug that ends this worker. Only the worker itself can: all its other lines go through control."""
    from gateway.log import logs  # noqa: PLC0415 - nothing that a worker needs as long as it lives

    logs.configure_logging(logs.DefaultLogSettings(args.log_format))
    log = logging.getLogger("gateway.workers")
    log.critical("worker %d ends because of a bug", args.worker, exc_info=bugs, extra={"worker": args.worker})


def _return_large_blocks() -> None:
    """Have the C library (glibc) return freed memory at once, for blocks as large as responses about a whole cluster.
    By default it does so for the first block only, and then keeps ever larger ones in a fragmented heap: memory was
    three times what connections held. With another C library this does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        library.mallopt(
            _M_TRIM_THRESHOLD, HEAP_KEPT_BYTES
        )  # else it would follow the other down, and be trimmed all the time


async def _run_worker(parent: ParentLink, args: argparse.Namespace) -> None:
    page = None
    if args.memory is not None:
        memory, ahead_s = SharedMemoryRegion(args.memory), time.monotonic() - trio.current_time()
        page = SharedPage(memory.view, args.workers, args.worker, memory.hold_lock, ahead_s)
    worker = DataWorker(parent, args.worker, page)
    sys.unraisablehook = worker.uplink.log_unraisable  # not on stderr: strangers can cause it, as often as they like
    try:
        await worker.run()
    finally:
        sys.unraisablehook = sys.__unraisablehook__


if __name__ == "__main__":
    raise SystemExit(main())
