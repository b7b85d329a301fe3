# The page that the workers of one gateway share, as each of them sees it, in one process.

from __future__ import annotations

from contextlib import nullcontext

from policies.fleet import page
from policies.fleet.page import SharedPage


def pages(workers: int, memory: memoryview | None = None, apart_s: float = 0.0) -> list[SharedPage]:
    """`apart_s`: each worker's own clock is so much further behind the shared one than the one's before it."""
    memory = memory or memoryview(bytearray(page.page_size(workers)))
    return [SharedPage(memory, workers, each, nullcontext, apart_s * (each + 1)) for each in range(workers)]
