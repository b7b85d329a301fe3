# How far Spark is with the step that was announced last, as a line every few seconds, for jobs that take minutes.
#
# Spark's own bar writes over the terminal's last line and knows nothing of quiet runs or files; its UI is a server. The
# status tracker has the same numbers and costs one call for each stage at work. Knows nothing of records or tables.

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

PROGRESS_INTERVAL_S: Final = 5.0


@contextmanager
def watch_progress(
    spark: SparkSession, tell: Callable[[str], None], every_s: float = PROGRESS_INTERVAL_S
) -> Iterator[None]:
    """While it lasts, `tell` gets a line every `every_s` about the tasks at hand, from a thread of its own."""
    context: Any = getattr(spark, "sparkContext", None)
    if context is None:  # Spark Connect
        with _watch_remote(spark, tell, every_s):
            yield
        return
    over = threading.Event()
    tracker = context.statusTracker()

    def watch() -> None:
        while not over.wait(every_s):
            try:
                done, tasks = _count_tasks(tracker)
            except (Py4JError, OSError):  # the session is being stopped, which its owner reports
                return
            if tasks:
                tell(_progress_text(done, tasks))

    # Not PySpark's kind of thread: that one asks the JVM for a job's properties first, which this one has no use for,
    # and ends with a traceback where Ctrl-C stops the session at that moment.
    thread = threading.Thread(target=watch, daemon=True)
    try:
        thread.start()
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join()


@contextmanager
def _watch_remote(spark: SparkSession, tell: Callable[[str], None], every_s: float) -> Iterator[None]:
    """The same with what a server sends beside its answers."""
    told = time.monotonic()

    def hear(stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str, done: bool) -> None:
        nonlocal told
        tasks = sum(stage.num_tasks for stage in stages or ())
        if tasks and time.monotonic() - told >= every_s:
            told = time.monotonic()
            tell(_progress_text(sum(stage.num_completed_tasks for stage in stages or ()), tasks))

    spark.registerProgressHandler(hear)
    try:
        yield
    finally:
        spark.removeProgressHandler(hear)


def _progress_text(done: int, tasks: int) -> str:
    return f"… {100 * done // tasks} % ({done:,} of {tasks:,} tasks)"


def _count_tasks(tracker: Any) -> tuple[int, int]:
    # A stage can end between the two calls.
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in found if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
