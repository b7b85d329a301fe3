# Python runs this at start-up when its folder is on PYTHONPATH: it puts an instrument into the processes whose command
# line holds $BENCH_PROFILE_MATCH, and writes what it found to $BENCH_PROFILE_OUT when they end. See profile_worker.py.

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections import Counter
from types import FrameType

_INTERVAL_S = 0.001  # of CPU time; the kernel's tick may make it longer
_DEPTH = 60


def _profile_calls(path: str) -> None:
    import cProfile

    profiler = cProfile.Profile()

    def finish() -> None:
        profiler.disable()
        profiler.dump_stats(path)

    atexit.register(finish)
    profiler.enable()


def _sample_lines(path: str) -> None:
    lines: Counter[str] = Counter()
    own: Counter[str] = Counter()
    below: Counter[str] = Counter()  # a function and all it calls

    def sample(_number: int, frame: FrameType | None) -> None:
        stack: list[FrameType] = []
        while frame is not None and len(stack) < _DEPTH:
            stack.append(frame)
            frame = frame.f_back
        if any(frame.f_code.co_filename.startswith("<frozen importlib") for frame in stack):
            return  # start-up is not what is asked for
        seen = set()
        leaf = True
        for frame in stack:
            code = frame.f_code
            function = f"{os.path.basename(code.co_filename)}:{code.co_qualname}"
            if leaf:
                lines[f"{os.path.relpath(code.co_filename)}:{frame.f_lineno} {code.co_name}"] += 1
                own[function] += 1
                leaf = False
            if function not in seen:
                seen.add(function)
                below[function] += 1

    def finish() -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        total = sum(lines.values()) or 1
        tables = (("function", own, 25), ("function and what it calls", below, 25), ("line", lines, 45))
        with open(path, "w") as out:
            for title, counts, top in tables:
                print(f"\n{total} samples by {title}", file=out)
                for name, n in counts.most_common(top):
                    print(f"{100 * n / total:6.1f} %  {name}", file=out)

    atexit.register(finish)
    signal.signal(signal.SIGPROF, sample)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)


_instrument = os.environ.get("BENCH_PROFILE")
if _instrument in ("lines", "calls") and os.environ["BENCH_PROFILE_MATCH"] in " ".join(sys.orig_argv):
    _path = os.path.join(os.environ["BENCH_PROFILE_OUT"], f"profile-{_instrument}-{os.getpid()}")
    (_sample_lines if _instrument == "lines" else _profile_calls)(_path)
