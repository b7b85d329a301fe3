# What a stream tells Prometheus, and whether it is said to live. A real stream's metrics: test_stream_kafka.py.

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import pytest

from gateway.audit.errors import AuditError
from gateway.audit.stream.metrics import PREFIX, SILENT_S, StreamMetrics, rest_text, serve_metrics


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _progress(end: int, latest: int) -> dict[str, Any]:
    """As Spark tells it: offsets as objects, or as text."""
    source = {"endOffset": {"usage": {"0": end, "1": 5}}, "latestOffset": f'{{"usage": {{"0": {latest}, "1": 5}}}}'}
    return {
        "numInputRows": 50,
        "durationMs": {"triggerExecution": 2500},
        "processedRowsPerSecond": 20.0,
        "sources": [source],
    }


def test_a_stream_that_is_behind_says_by_how_much() -> None:
    clock = _Clock()
    metrics = StreamMetrics(clock)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"{PREFIX}_{name}", labels)

    assert (value("lag_records"), value("lag_seconds"), value("commit_timestamp_seconds")) == (0, 0, 0)
    metrics.note_commit(50, 900_000)
    metrics.note_progress(_progress(100, 1300))
    clock.now = 1060.0
    assert (value("lag_records"), value("lag_seconds"), value("records_total")) == (1200, 160, 50)
    assert (value("batch_records"), value("batch_seconds"), value("commit_timestamp_seconds")) == (50, 2.5, 1000)
    assert value("state", **{f"{PREFIX}_state": "waiting"}) == 1
    metrics.note_progress(_progress(1300, 1300))
    assert (value("lag_records"), value("lag_seconds"), value("checked_timestamp_seconds")) == (0, 0, 1060)


def test_the_rest_and_how_long_it_takes_are_told_while_there_is_any() -> None:
    assert rest_text(_progress(100, 12_100)) == "12,000 records to go, some 10 min"
    assert rest_text(_progress(100, 100)) == ""


def test_a_stream_without_a_sign_of_progress_is_not_healthy() -> None:
    clock = _Clock()
    metrics = StreamMetrics(clock)
    server = serve_metrics(metrics, "127.0.0.1", 0)
    try:
        root = f"http://127.0.0.1:{server.server_port}"

        def status(path: str) -> int:
            try:
                with urllib.request.urlopen(root + path, timeout=60) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        for _ in range(3):
            clock.now += SILENT_S - 1
            assert status("/healthz") == 200
            metrics.note_text(f"… {clock.now} %")
        metrics.note_text(f"… {clock.now} %")  # the same again is no progress
        clock.now += SILENT_S
        assert (status("/healthz"), status("/metrics")) == (503, 200)
        with pytest.raises(AuditError, match=r"^--metrics-port: 127\.0\.0\.1:\d+ can't be listened on: "):
            serve_metrics(metrics, "127.0.0.1", server.server_port)
    finally:
        server.shutdown()
        server.server_close()
