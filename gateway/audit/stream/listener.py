# Spark's own word on a query, handed on: as metrics, and as lines of progress.

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from gateway.audit.stream.metrics import StreamMetrics, rest_text

_END_TIMEOUT_S: Final = 30.0


class ProgressListener(StreamingQueryListener):
    """Hands on what Spark tells of a query."""

    def __init__(self, metrics: StreamMetrics, tell: Callable[[str], None]) -> None:
        self._metrics = metrics
        self._tell = tell
        self._is_over = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        self._metrics.note_state("reading")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = json.loads(event.progress.json)
        self._metrics.note_progress(progress)
        rest = rest_text(progress)
        if rest:
            self._tell(rest)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._metrics.note_waiting()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._metrics.note_state("ended")
        self._is_over.set()

    def wait_for_end(self) -> None:
        """Until it has been told of the query's end, which comes last, and later than to the query's owner."""
        self._is_over.wait(_END_TIMEOUT_S)
