# What a call leaves behind, told apart from what other threads of the tests do meanwhile: they run clients beside each
# other, so that the process's descriptors don't stand still.

from __future__ import annotations

import ctypes
import functools
import gc
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec

from trio._core import _thread_cache

P = ParamSpec("P")

_CLONE_FILES = 0x400  # unshare(2)


def no_descriptors_left(test: Callable[P, None]) -> Callable[P, None]:
    """The test in a thread with descriptors of its own (Linux), which must be the same before and after it."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        def alone() -> None:
            gc.collect()  # what earlier tests left must be closed here, and not in the copy
            if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_FILES) != 0:
                raise OSError(ctypes.get_errno(), "unshare")
            before = _descriptors()
            test(*args, **kwargs)
            assert _descriptors() == before

        # trio keeps idle threads for its next calls: one from here would know none of the others' descriptors.
        threads, _thread_cache.THREAD_CACHE = _thread_cache.THREAD_CACHE, _thread_cache.ThreadCache()
        try:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(alone).result()
        finally:
            _thread_cache.THREAD_CACHE = threads

    return run


def _descriptors() -> list[int]:
    return sorted(map(int, os.listdir("/proc/thread-self/fd")))
