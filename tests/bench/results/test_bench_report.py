# What `make bench` says: of two workers beside one, what the cores would allow and what was measured; of the gateway
# beside its peers.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench.results.plot import draw
from tests.bench.results.report import allowed, as_markdown, as_text

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


def run_of(rounds: list[dict[str, Any]], bars: dict[str, float]) -> dict[str, Any]:
    facts = ("time", "revision", "cpu", "memory_gib", "kernel", "python")
    machine: dict[str, Any] = dict.fromkeys(facts, "?") | {"cores": 2, "load_before": 0.0, "load_after": 0.0}
    machine |= {"peers": ["haproxy 2.6.12"], "not_measured": ["no nginx on PATH"]}
    scenario = {"name": "wide-64", "title": "wide", "per": "request", "units": 1000, "rounds": rounds, "bars": bars}
    return {"machine": machine, "scenarios": [scenario]}


def test_workers_that_are_the_bottleneck_may_do_twice_as_much_on_cores_that_are_free() -> None:
    assert allowed(sample((0.9,), 0.1), workers=1, cores=8) == pytest.approx(1000 / 0.9)
    assert allowed(sample((0.9,), 0.1), workers=2, cores=8) == pytest.approx(2000 / 0.9)


def test_two_cores_that_load_and_broker_share_allow_less() -> None:
    assert allowed(sample((0.9,), 0.5), workers=2, cores=2) == pytest.approx(2000 / 1.5)
    assert allowed(sample((0.3,), 1.6), workers=2, cores=2) == allowed(sample((0.3,), 1.6), workers=1, cores=2)


def test_each_pair_that_was_measured_has_a_line() -> None:
    text = as_text(run_of(2 * [{"gateway": sample((0.9,), 0.5), "gateway-2": sample((0.5, 0.4), 0.5, 0.8)}], {}))
    (line,) = [line for line in text.splitlines() if line.startswith("wide: gateway-2")]
    assert line.split()[2:] == [
        "1.25", "(1.25–1.25)", "1.20", "(1.20–1.20)", "1.00", "(1.00–1.00)", "90%", "62%",
    ]  # fmt: skip
    assert "gateway-tls-2" not in text


TLS_ROUNDS = [
    {
        "gateway": sample((0.9,), 0.5), "kafka-proxy": sample((1.9,), 0.5), "haproxy": sample((0.7,), 0.5),
        "gateway-tls": sample((1.4,), 0.5) | {"cipher": "AES"}, "haproxy-tls": sample((0.9,), 0.5) | {"cipher": "AES"},
    }
]  # fmt: skip


def test_ratios_to_haproxy_stand_beside_those_to_kafka_proxy() -> None:
    text = as_text(run_of(TLS_ROUNDS, {}))
    rows = {line.split()[0]: line.split()[3:-2] for line in text.splitlines() if line.startswith(("gate", "hap"))}
    assert rows["gateway"] == ["0.50", "(0.50–0.50)", "1.25", "(1.25–1.25)"]
    assert rows["haproxy"] == ["0.40", "(0.40–0.40)", "1"]
    assert rows["gateway-tls"] == ["0.75", "(0.75–0.75)", "1.50", "(1.50–1.50)"]  # HAProxy has TLS with clients as well
    assert rows["haproxy-tls"] == ["0.50", "(0.50–0.50)", "1"]
    assert "of kafka-proxy's" in text
    assert "of haproxy's" in text
    assert "of haproxy's" not in as_text(run_of([{"gateway": sample((0.9,), 0.5)}], {}))


def test_a_bar_compares_gateways_with_the_tls_of_the_other_target() -> None:
    text = as_text(run_of(TLS_ROUNDS, {"haproxy": 1.3, "haproxy-tls": 1.3, "haproxy-tls-both": 1.3}))
    assert "wide: 1.25 (1.25–1.25) of haproxy's, bar 1.30: met" in text
    assert "wide: 1.50 (1.50–1.50) of haproxy-tls's, bar 1.30: MISSED" in text
    assert "of haproxy-tls-both's" not in text


def test_the_report_says_versions_and_what_was_not_measured_and_ciphers() -> None:
    text = as_text(run_of(TLS_ROUNDS, {}))
    assert "Python ?, haproxy 2.6.12\nnot measured: no nginx on PATH\n" in text
    assert "AES with clients: gateway-tls, haproxy-tls" in text
    assert "\n- not measured: no nginx on PATH\n" in as_markdown(run_of(TLS_ROUNDS, {}))


def test_the_picture_has_a_panel_for_each_that_others_are_compared_with(tmp_path: Path) -> None:
    draw(run_of(TLS_ROUNDS, {}), tmp_path / "both.svg")
    draw(run_of([{"gateway": sample((0.9,), 0.5), "haproxy": sample((0.7,), 0.5)}], {}), tmp_path / "one.svg")
    panels = {path.stem: path.read_text().count('id="axes_') for path in tmp_path.iterdir()}
    assert panels == {"both": 2, "one": 1}
