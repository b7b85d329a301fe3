# How much work a call is, as a number that a busy machine doesn't change: seconds are for `make bench`.

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec

P = ParamSpec("P")

MOST_TRIES = 250


def lines_run(call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> int:
    """The lines of Python that the call runs, each as often as it runs; of what is written in C, nothing."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call(*args, **kwargs)
    finally:
        sys.settrace(before)
    return count


def growth(prepare: Callable[[int], Callable[[], object]], size: int, factor: int, bound: float) -> float:
    """For what is written in C and touches little memory: how many times as long the work of size × factor takes as
    that of `size`, each the least of several tries in turns. It is tried until that is less than `bound`.

    Whether caches are others' changes how long work takes that touches much: count `lines_run` there.
    """
    least = dict.fromkeys((size, size * factor), float("inf"))
    found = float("inf")
    for _ in range(MOST_TRIES):
        for count in least:
            call = prepare(count)
            began = time.process_time()
            call()
            least[count] = min(least[count], time.process_time() - began)
        found = least[size * factor] / least[size]
        if found < bound:
            break
    return found
