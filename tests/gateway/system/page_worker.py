# A process of test_shared_memory.py that uses a page as a worker does, told what to do line by line; each is answered.
#
#   page_worker.py FD WORKER
#
#   take NOW SIZE      from one limit of 1000 per second: its level
#   many NOW SIZE      the same 20,000 times; a NOW of 0: whatever it is
#   level NOW
#   lock               what all workers wait for, and never let it go

from __future__ import annotations

import sys
import time

from gateway.system.shared_memory import SharedMemoryRegion
from policies.fleet.page import SharedPage
from policies.fleet.shared_bucket import SharedBucket

WORKERS = 3
MANY = 20_000
RATE = 1000.0
KEY = "limit"


def bucket(page: SharedPage) -> SharedBucket:
    row = page.acquire_row(KEY)
    assert row is not None
    return SharedBucket(RATE, 1.0, 1e9, 1.0, row, page.ahead_s, RATE)


def main() -> None:
    memory = SharedMemoryRegion(int(sys.argv[1]))
    one = bucket(SharedPage(memory.view, WORKERS, int(sys.argv[2]), memory.hold_lock))
    print("ready", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        if what == "lock":
            with memory.hold_lock():
                print("locked", flush=True)
                sys.stdin.read()
        now, size = [*map(float, numbers), 0.0][:2]
        for _ in range({"take": 1, "many": MANY, "level": 0}[what]):
            one.consume_tokens(size, now or time.monotonic())
        print(one.token_level(now or time.monotonic()), flush=True)


if __name__ == "__main__":
    main()
