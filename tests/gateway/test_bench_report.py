# What `make bench` says of two workers beside one: what the cores would allow, and what was measured.

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.report import allowed, as_text

WORKERS = ("11 python -m gateway.data --fd 5 --worker 0", "12 python -m gateway.data --fd 6 --worker 1")


def sample(workers: tuple[float, ...], others_s: float, seconds: float = 1.0) -> dict[str, Any]:
    """1,000 requests: CPU seconds of each worker, and of load and broker together."""
    processes = dict(zip(WORKERS, workers, strict=False)) | {"10 python -m gateway.control --fd 4": 0.1}
    cpu_s = sum(processes.values())
    return {
        "requests": 1000, "seconds": seconds, "requests_per_s": 1000 / seconds, "bytes": 215_000, "failed": 0,
        "cpu_s": cpu_s, "cpu_us_per_request": cpu_s * 1000, "cpu_s_per_gb": 0.0, "processes": processes,
        "load_cpu_s": others_s / 2, "broker_cpu_s": others_s / 2, "p50_ms": 1.0, "p99_ms": 2.0,
    }  # fmt: skip


def test_workers_that_are_the_bottleneck_may_do_twice_as_much_on_cores_that_are_free() -> None:
    assert allowed(sample((0.9,), 0.1), workers=1, cores=8) == pytest.approx(1000 / 0.9)
    assert allowed(sample((0.9,), 0.1), workers=2, cores=8) == pytest.approx(2000 / 0.9)


def test_two_cores_that_load_and_broker_share_allow_less() -> None:
    assert allowed(sample((0.9,), 0.5), workers=2, cores=2) == pytest.approx(2000 / 1.5)
    assert allowed(sample((0.3,), 1.6), workers=2, cores=2) == allowed(sample((0.3,), 1.6), workers=1, cores=2)


def test_each_pair_that_was_measured_has_a_line() -> None:
    rounds = [
        {"gateway": sample((0.9,), 0.5), "gateway-2": sample((0.5, 0.4), 0.5, 0.8)},
        {"gateway": sample((0.9,), 0.5), "gateway-2": sample((0.5, 0.4), 0.5, 0.8)},
    ]
    scenario = {"name": "wide-64", "title": "wide", "per": "request", "units": 1000, "rounds": rounds}
    facts = ("time", "revision", "cpu", "memory_gib", "kernel", "python")
    machine = dict.fromkeys(facts, "?") | {"cores": 2, "load_before": 0.0, "load_after": 0.0}
    text = as_text({"machine": machine, "scenarios": [scenario]})
    (line,) = [line for line in text.splitlines() if line.startswith("wide: gateway-2")]
    assert line.split()[2:] == [
        "1.25", "(1.25–1.25)", "1.20", "(1.20–1.20)", "1.00", "(1.00–1.00)", "90%", "62%",
    ]  # fmt: skip
    assert "gateway-tls-2" not in text
