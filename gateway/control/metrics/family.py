# What one metric is, in words: for the exposition and for docs/metrics.md.

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

PREFIX: Final = "produce_gateway"
Kind = Literal["counter", "gauge", "histogram"]
_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)#]*)(?:#[^)]*)?\)")


class MetricFamily(NamedTuple):
    """`name`: without PREFIX, a counter's without `_total`. `text`: Markdown, as on docs/metrics.md."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    text: str

    @property
    def exposed_name(self) -> str:
        """The name that Prometheus' queries use; of a histogram, what its three names begin with."""
        return f"{PREFIX}_{self.name}{'_total' if self.kind == 'counter' else ''}"

    @property
    def help(self) -> str:
        """The text without Markdown."""
        return _LINK.sub(_plain_link, self.text).replace("`", "")


def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> MetricFamily:
    return MetricFamily(name, "counter", labels, text)


def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> MetricFamily:
    return MetricFamily(name, "gauge", labels, text)


def histogram(name: str, text: str, labels: tuple[str, ...] = ()) -> MetricFamily:
    return MetricFamily(name, "histogram", labels, text)


def _plain_link(link: re.Match[str]) -> str:
    words, page = link[1], link[2]
    return f"{words} (docs/{page})" if page else words


def make_counters(families: Iterable[MetricFamily]) -> dict[str, CounterMetricFamily]:
    """Those of `families` that are counters, empty, by name: for one exposition."""
    return {
        each.name: CounterMetricFamily(f"{PREFIX}_{each.name}", each.help, labels=each.labels)
        for each in families
        if each.kind == "counter"
    }


def make_gauges(families: Iterable[MetricFamily]) -> dict[str, GaugeMetricFamily]:
    """Likewise the gauges."""
    return {
        each.name: GaugeMetricFamily(f"{PREFIX}_{each.name}", each.help, labels=each.labels)
        for each in families
        if each.kind == "gauge"
    }
