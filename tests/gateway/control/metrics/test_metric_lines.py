# Lines of Prometheus' text format, beside those that prometheus_client writes and as it reads them.

from __future__ import annotations

import gc
import math

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.control.metrics.family import PREFIX, MetricFamily
from gateway.control.metrics.lines import CounterLines, gauge_lines, join_labels, labels_text

COUNTER = MetricFamily("things", "counter", ("topic", "client"), "Things, by `client`.\nA \\ and a line's end.")
GAUGE = MetricFamily("level", "gauge", ("topic", "client"), "A level.")
NAMES = [
    "a",
    "",
    'say "x"',
    "back\\slash",
    "two\nlines",
    "100 %",
    "%r %s %%",
    "naïve 🙂",
    "{x}",
    '"} inf',
    "} nan",
    "\\n",
]


def read(text: bytes) -> dict[tuple[str, ...], float]:
    """(topic, client) -> value."""
    (family,) = text_string_to_metric_families(text.decode())
    return {(each.labels["topic"], each.labels["client"]): each.value for each in family.samples}


def counter_text(lines: CounterLines) -> bytes:
    return b"".join(lines.render_text())


def test_lines_are_those_of_prometheus_client_for_any_name() -> None:
    registry = CollectorRegistry()
    theirs = Counter(COUNTER.name, COUNTER.help, COUNTER.labels, namespace=PREFIX, registry=registry)
    ours = CounterLines(COUNTER, "d")
    for number, name in enumerate(NAMES):
        theirs.labels(name, f"app {name}").inc(number + 0.5)
        ours.add_amount(join_labels(name, f"app {name}"), number + 0.5)
    expected = [line for line in generate_latest(registry).splitlines() if b"_created" not in line]
    assert counter_text(ours).splitlines() == expected
    assert read(counter_text(ours)) == {(name, f"app {name}"): n + 0.5 for n, name in enumerate(NAMES)}


def test_gauges_are_those_of_prometheus_client_for_any_name_and_value() -> None:
    values = [0.1 + 0.2, math.inf, -2.5, math.nan, 1e300, 5e-324, 0.0, -1.5, 1e16, 123456.0, 1 / 3, 7.0]
    registry = CollectorRegistry()
    theirs = Gauge(GAUGE.name, GAUGE.help, GAUGE.labels, namespace=PREFIX, registry=registry)
    for name, value in zip(NAMES, values, strict=True):
        theirs.labels(name, "app").set(value)
    labels = [labels_text(GAUGE.labels, (name, "app")) for name in NAMES]
    text = b"".join(gauge_lines(GAUGE, labels, values))
    ours, expected = read(text), read(generate_latest(registry))
    assert [repr(value) for value in ours.values()] == [repr(value) for value in expected.values()]
    assert ours.keys() == expected.keys()
    shown = [line.rpartition(b" ")[2] for line in text.splitlines()[2:]]
    assert shown[:4] == [b"0.30000000000000004", b"+Inf", b"-2.5", b"NaN"]


def test_a_family_without_series_is_its_comments() -> None:
    head = b"# HELP produce_gateway_level A level.\n# TYPE produce_gateway_level gauge\n"
    assert b"".join(gauge_lines(GAUGE, [], [])) == head
    assert counter_text(CounterLines(COUNTER)).count(b"\n") == 2


def test_integers_are_exact_however_large() -> None:
    lines = CounterLines(COUNTER)
    lines.add_amount(join_labels("a", "b"), 2**53)
    lines.add_amount(join_labels("a", "b"), 1)
    assert b" 9007199254740993\n" in counter_text(lines)


def test_each_of_many_series_has_its_own_value() -> None:
    lines = CounterLines(COUNTER)
    count = 12_345  # several steps, the last of them not full
    for again in range(2):
        for number in range(count):
            lines.add_amount(join_labels("t", str(number)), number + again)
    assert read(counter_text(lines)) == {("t", str(number)): 2 * number + 1 for number in range(count)}
    values = [float(number) for number in range(count)]
    labels = [labels_text(GAUGE.labels, ("t", str(number))) for number in range(count)]
    assert read(b"".join(gauge_lines(GAUGE, labels, values))) == {("t", str(n)): n for n in range(count)}


@pytest.mark.timeout(20)
def test_series_may_begin_between_two_pieces() -> None:
    lines = CounterLines(COUNTER)
    for number in range(6000):
        lines.add_amount(join_labels("t", str(number)), 1)
    found = []
    for piece in lines.render_text():
        found.append(piece)
        if len(found) <= 3:
            lines.add_amount(join_labels("new", str(len(found))), 5)
    shown = read(b"".join(found))
    assert {key: value for key, value in shown.items() if key[0] == "t"} == {("t", str(n)): 1 for n in range(6000)}
    assert {value for key, value in shown.items() if key[0] == "new"} == {5}


def test_a_separator_in_the_last_label_does_no_harm() -> None:
    lines = CounterLines(COUNTER)
    lines.add_amount(join_labels("t", "a\0b"), 1)
    assert read(counter_text(lines)) == {("t", "a\0b"): 1}


def test_the_garbage_collector_has_nothing_to_visit_in_series() -> None:
    lines = CounterLines(COUNTER)
    for number in range(2000):
        lines.add_amount(join_labels("t", str(number)), number)
    gc.collect()
    visited = [each for each in vars(lines).values() if gc.is_tracked(each)]
    assert all(len(gc.get_referents(each)) < 100 for each in visited)
