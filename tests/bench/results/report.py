# From samples to tables: medians over rounds, and ratios to kafka-proxy and to HAProxy taken round by round (what
# disturbs a machine for longer than a round disturbs both sides of a ratio).

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

DIRECT = "direct"
CLIENTS, BOTH = "-tls", "-tls-both"  # in the names of targets: TLS with clients; with clients and the broker
# What all others are compared with, and the TLS that there is of each: such a target is compared with that one.
REFERENCES = {"kafka-proxy": ("", BOTH), "haproxy": ("", CLIENTS, BOTH)}
PAIRS = (("gateway", "gateway-2"), ("gateway-tls", "gateway-tls-2"))  # one worker, and two
WORKER = "gateway.data"  # what a worker's command line has in it

Round = Mapping[str, Mapping[str, Any]]  # target -> sample

_UNITS = {
    "request": ("requests/s", "CPU µs/request", "cpu_us_per_request"),
    "GB": ("MB/s", "CPU s/GB", "cpu_s_per_gb"),
    "record": ("records/s", "CPU µs/record", "cpu_us_per_request"),
}


COST = {per: key for per, (_, _, key) in _UNITS.items()}  # the figure of a sample that says it


def _over(rounds: Sequence[Round], target: str, key: str) -> list[float]:
    return [float(samples[target][key]) for samples in rounds if key in samples.get(target, {})]


def tls_of(target: str) -> str:
    """CLIENTS, BOTH, or nothing."""
    return next((tls for tls in (BOTH, CLIENTS) if tls in target), "")


def reference_of(target: str, by: str) -> str:
    """Which target of that reference the target is compared with."""
    return by + tls_of(target) if tls_of(target) in REFERENCES.get(by, ()) else by


def references(rounds: Sequence[Round]) -> list[str]:
    """Those that were measured."""
    return [by for by in REFERENCES if any(target.startswith(by) for target in rounds[0])]


def ratios(rounds: Sequence[Round], target: str, key: str, by: str) -> list[float]:
    """That figure of the target by that of `by`, one per round that has both."""
    both = (samples for samples in rounds if key in samples.get(target, {}) and key in samples.get(by, {}))
    return [float(samples[target][key] / samples[by][key]) for samples in both if samples[by][key]]


def _speed(rounds: Sequence[Round], target: str, per: str) -> float:
    if per == "GB":
        return median([float(samples[target]["bytes"] / samples[target]["seconds"] / 1e6) for samples in rounds])
    return median(_over(rounds, target, "requests_per_s"))


def _ratio_text(found: Sequence[float]) -> str:
    return f"{median(found):.2f} ({min(found):.2f}–{max(found):.2f})" if found else "–"


def _median_text(found: Sequence[float]) -> str:
    return f"{median(found):.2f}" if found else "–"


def _by(rounds: Sequence[Round], target: str, key: str, by: str) -> str:
    return "1" if target == by else _ratio_text(ratios(rounds, target, key, by))


def _row(rounds: Sequence[Round], target: str, per: str, compared: Sequence[str]) -> list[str]:
    key = COST[per]
    return [
        target,
        f"{_speed(rounds, target, per):,.0f}",
        _median_text(_over(rounds, target, key)),
        *(_by(rounds, target, key, reference_of(target, by)) for by in compared),
        _median_text(_over(rounds, target, "p50_ms")),
        _median_text(_over(rounds, target, "p99_ms")),
    ]


def _table(scenario: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    speed, cpu, _ = _UNITS[scenario["per"]]
    rounds, own = scenario["rounds"], scenario.get("reference")
    compared = [own] if own else references(rounds)
    head = ["", speed, cpu, *(f"of {by}'s" for by in compared), "p50 ms", "p99 ms"]
    rows = [_row(rounds, target, scenario["per"], compared) for target in rounds[0]]
    if scenario["per"] == "record":  # of real clients, for whom nothing but this counts
        head.insert(2, f"of {DIRECT}'s")
        for row in rows:
            row.insert(2, _by(rounds, row[0], "requests_per_s", DIRECT))
    return head, rows


def _notes(scenario: Mapping[str, Any]) -> list[str]:
    """What was measured beside CPU and time, and what clients and targets agreed on."""
    rounds = scenario["rounds"]
    memory = {target: _over(rounds, target, "kib_per_connection") for target in rounds[0]}
    ciphers: dict[str, list[str]] = {}
    for target, sample in rounds[0].items():
        if "cipher" in sample:
            ciphers.setdefault(sample["cipher"], []).append(target)
    return [
        *(f"{target}: {median(found):.1f} KiB of memory each" for target, found in memory.items() if found),
        *(f"{cipher} with clients: {', '.join(targets)}" for cipher, targets in ciphers.items()),
    ]


def bars(scenarios: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, list[float], float]]:
    """(scenario, other target, ratios of the gateway's CPU to its, highest ratio we accept) where both ran."""
    found = []
    for scenario in scenarios:
        for other, bar in scenario.get("bars", {}).items():
            got = ratios(scenario["rounds"], f"gateway{tls_of(other)}", COST[scenario["per"]], by=other)
            if got:
                found.append((scenario["title"], other, got, float(bar)))
    return found


def _workers_cpu(sample: Mapping[str, Any]) -> list[float]:
    """CPU seconds of each worker, the busiest first."""
    return sorted((cpu for name, cpu in sample["processes"].items() if WORKER in name), reverse=True)


def allowed(sample: Mapping[str, Any], workers: int, cores: int) -> float:
    """Requests/s that so many workers could do at this CPU per request, on cores that load and broker share."""
    everybody = sample["cpu_s"] + sample["load_cpu_s"] + sample["broker_cpu_s"]
    return float(sample["requests"] * min(cores / everybody, workers / sum(_workers_cpu(sample))))


def _scaling(scenario: Mapping[str, Any], cores: int) -> list[list[str]]:
    """A row for each pair that was measured: two workers by one, round by round."""
    rows = []
    for one, two in PAIRS:
        both = [(samples[one], samples[two]) for samples in scenario["rounds"] if one in samples and two in samples]
        if not both:
            continue
        busy = [median([_workers_cpu(pair[i])[0] / pair[i]["seconds"] for pair in both]) for i in (0, 1)]
        rows.append(
            [
                f"{scenario['title']}: {two}",
                _ratio_text([b["requests_per_s"] / a["requests_per_s"] for a, b in both]),
                _ratio_text([allowed(a, 2, cores) / allowed(a, 1, cores) for a, _ in both]),
                _ratio_text([b["cpu_us_per_request"] / a["cpu_us_per_request"] for a, b in both]),
                f"{busy[0]:.0%}",
                f"{busy[1]:.0%}",
            ]
        )
    return rows


_SCALING_HEAD = [
    "two workers by one", "requests/s", "cores allow", "CPU/request", "busiest of one", "busiest of two",
]  # fmt: skip


def _all_scaling(run: Mapping[str, Any]) -> list[list[str]]:
    cores = run["machine"]["cores"]
    return [row for scenario in run["scenarios"] for row in _scaling(scenario, cores)]


def _facts(run: Mapping[str, Any]) -> list[str]:
    m = run["machine"]
    python = f"Python {m['python']}" + (f" with {m['openssl']}" if "openssl" in m else "")
    versions = [python, *(str(m[key]) for key in ("go", "java") if m.get(key)), *m.get("peers", ())]
    return [
        f"{m['time']}, revision {m['revision'] or 'unknown'}",
        f"{m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB, {m['kernel']}; load {m['load_before']:.1f} before, "
        f"{m['load_after']:.1f} after",
        ", ".join(versions),
        *(f"not measured: {why}" for why in m.get("not_measured", ())),
    ]


def _size(scenario: Mapping[str, Any]) -> str:
    what = "records" if scenario["per"] == "record" else "requests"
    return f"{len(scenario['rounds'])} rounds of {scenario['units']:,} {what}"


def as_text(run: Mapping[str, Any]) -> str:
    lines = _facts(run)
    for scenario in run["scenarios"]:
        lines += ["", f"{scenario['title']} ({_size(scenario)})", *_aligned(*_table(scenario)), *_notes(scenario)]
    if rows := _all_scaling(run):
        lines += ["", *_aligned(_SCALING_HEAD, rows)]
    if met := bars(run["scenarios"]):
        lines += ["", "Gateway's CPU by that of others, and the bar:"]
        for title, other, got, bar in met:
            verdict = "met" if median(got) <= bar else "MISSED"
            lines.append(f"  {title}: {_ratio_text(got)} of {other}'s, bar {bar:.2f}: {verdict}")
    return "\n".join(lines)


def _aligned(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for name, *cells in [head, *rows]:
        figures = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *figures]))
    return lines


def _in_markdown(head: list[str], rows: list[list[str]]) -> list[str]:
    ruler = "|---|" + "---:|" * (len(head) - 1)
    return ["| " + " | ".join(head) + " |", ruler, *("| " + " | ".join(row) + " |" for row in rows)]


def as_markdown(run: Mapping[str, Any]) -> str:
    lines = [f"- {fact}" for fact in _facts(run)]
    for scenario in run["scenarios"]:
        lines += ["", f"**{scenario['title']}** ({_size(scenario)})", "", *_in_markdown(*_table(scenario))]
        lines += [line for note in _notes(scenario) for line in ("", f"{note}.")]
    if rows := _all_scaling(run):
        lines += ["", *_in_markdown(_SCALING_HEAD, rows)]
    if met := bars(run["scenarios"]):
        rows = [[title, other, _ratio_text(got), f"{bar:.2f}"] for title, other, got, bar in met]
        lines += ["", *_in_markdown(["gateway's CPU by that of others", "by", "measured", "bar"], rows)]
    return "\n".join(lines)
