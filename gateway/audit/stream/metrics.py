# How a continuous stream is watched: metrics for Prometheus at /metrics, and at /healthz whether it gets on. What Spark
# tells of each batch (listener.py) becomes numbers here, and a line of progress while there is more to read. Knows
# neither Spark nor tables.

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, make_wsgi_app

from gateway.audit.addresses import place_text
from gateway.audit.errors import AuditError
from policies.units import format_duration

PREFIX: Final = "produce_gateway_audit_stream"
STATES: Final = ("starting", "reading", "waiting", "ended")
SILENT_S: Final = 1800.0  # without a sign of progress, after which it isn't healthy


class StreamMetrics:
    """The metrics of one stream; all there from the start."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._newest_s: float | None = None
        self._missing = 0  # records, as last seen
        self._last_sign_s, self._last_text = clock(), ""
        self._state = Enum(f"{PREFIX}_state", "What it does.", states=STATES, registry=self.registry)
        self._records = Counter(f"{PREFIX}_records", "Records read into the tables.", registry=self.registry)
        self._lag = self._make_gauge("lag_records", "Records of the topic that are not in the tables, as last seen.")
        age = self._make_gauge("lag_seconds", "Age of the newest record in the tables; 0 while none is missing.")
        age.set_function(self._count_lag_seconds)
        self._batch_records = self._make_gauge("batch_records", "Records of the last batch.")
        self._batch_seconds = self._make_gauge("batch_seconds", "Its duration.")
        self._committed = self._make_gauge("commit_timestamp_seconds", "When the last batch was committed; 0: not yet.")
        self._checked = self._make_gauge(
            "checked_timestamp_seconds", "When it last committed, or found nothing to read; at first its start."
        )
        self._checked.set(clock())

    def _make_gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, registry=self.registry)

    def _count_lag_seconds(self) -> float:
        if self._newest_s is None or not self._missing:
            return 0.0
        return max(0.0, self._clock() - self._newest_s)

    def note_state(self, state: str) -> None:
        """One of STATES."""
        self._state.state(state)
        self._last_sign_s = self._clock()

    def note_commit(self, records: int, newest_ms: int | None) -> None:
        """A batch is in the tables; `newest_ms`: Kafka's time of its newest record."""
        self._records.inc(records)
        if newest_ms is not None:
            self._newest_s = newest_ms / 1000
        self._committed.set(self._clock())
        self._checked.set(self._clock())
        self.note_state("reading")

    def note_progress(self, progress: Mapping[str, Any]) -> None:
        """Spark's StreamingQueryProgress of a batch."""
        self._batch_records.set(progress["numInputRows"])
        self._batch_seconds.set(progress["durationMs"].get("triggerExecution", 0) / 1000)
        self._missing = count_lag(progress)
        self._lag.set(self._missing)
        self.note_waiting()

    def note_waiting(self) -> None:
        """It has looked for records, and waits for the next time."""
        self._checked.set(self._clock())
        self.note_state("waiting")

    def note_text(self, text: str) -> None:
        """A line of progress: a sign of life, if it isn't the last one again."""
        if text != self._last_text:
            self._last_text, self._last_sign_s = text, self._clock()

    def is_healthy(self) -> bool:
        """Whether there was a sign of progress lately."""
        return self._clock() - self._last_sign_s < SILENT_S


def count_lag(progress: Mapping[str, Any]) -> int:
    """The records of the topic behind the end of a batch."""
    known = [source for source in progress["sources"] if source.get("latestOffset")]
    return sum(sum(_offsets(source["latestOffset"])) - sum(_offsets(source["endOffset"])) for source in known)


def _offsets(found: Any) -> Iterable[int]:
    topics = json.loads(found) if isinstance(found, str) else found or {}
    return [offset for partitions in topics.values() for offset in partitions.values()]


def rest_text(progress: Mapping[str, Any]) -> str:
    """How much there is to read yet, and how long that takes at the rate of this batch; "": nothing."""
    rest, rate = count_lag(progress), progress.get("processedRowsPerSecond") or 0
    if rest <= 0 or rate <= 0:
        return ""
    return f"{rest:,} records to go, some {format_duration(max(1, round(rest / rate)))}"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve_metrics(metrics: StreamMetrics, host: str, port: int) -> WSGIServer:
    """Serve /metrics and /healthz in a thread of its own, until `shutdown` and `server_close`.

    Raises:
        AuditError: the address can't be listened on.
    """
    exposition = make_wsgi_app(metrics.registry)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/healthz":
            found: Iterable[bytes] = exposition(environ, start)
            return found
        is_healthy = metrics.is_healthy()
        start("200 OK" if is_healthy else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if is_healthy else b"no progress\n"]

    try:
        server = make_server(host, port, answer, _Server6 if ":" in host else _Server, _SilentHandler)
    except OSError as error:
        place = place_text(host, port)
        raise AuditError(f"--metrics-port: {place} can't be listened on: {error.strerror or error}") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
