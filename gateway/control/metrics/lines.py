# Lines of Prometheus' text format, for the families that have series for each topic or client. There may be hundreds of
# thousands of lines, and prometheus_client takes 8 us for each: it makes an object of every sample, and escapes its
# labels at every scrape. Here labels are escaped once, into a template that a scrape only fills in: 0.1 us. (Steps of
# 1,000 lines take three times as much, one body of 48 MB 130 ms of page faults.)

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import Any, Final

from gateway.control.metrics.family import MetricFamily

# Lines that are made in one step, in which no other thread has a turn: half a millisecond. Fewer cost more: the
# allocator gives small pieces back and fetches them again.
_LINES_PER_STEP: Final = 5000
_SEPARATOR: Final = "\0"  # in no name: those of clients are cleaned


def labels_text(names: Iterable[str], values: Iterable[str]) -> bytes:
    """Labels as a line of the exposition has them, in a template of `%`, the value's place behind them."""
    pairs = sorted(zip(names, values, strict=True))  # as prometheus_client does
    text = ",".join(f'{name}="{_escape_label(value)}"' for name, value in pairs)
    return f"{{{text}}} ".replace("%", "%%").encode() + b"%r\n"


def join_labels(*labels: str) -> str:
    """One string for several values of labels, or for what such strings stand for."""
    return _SEPARATOR.join(labels)


def family_comments(family: MetricFamily) -> bytes:
    """The comments that a family begins with."""
    name = family.exposed_name
    return f"# HELP {name} {_escape_help(family.help)}\n# TYPE {name} {family.kind}\n".encode()


def gauge_lines(family: MetricFamily, labels: Sequence[bytes], values: Sequence[float]) -> Iterator[bytes]:
    """A gauge's part of the exposition, in pieces. `labels`: of each series, by `labels_text`; its value is in the same
    place of `values`.
    """
    yield family_comments(family)
    name = family.exposed_name.encode()
    for at in range(0, len(labels), _LINES_PER_STEP):
        present = tuple(values[at : at + _LINES_PER_STEP])
        found = (name + name.join(labels[at : at + _LINES_PER_STEP])) % present
        if not all(map(math.isfinite, present)):  # no label's text has a line end: only values are changed
            found = found.replace(b"} inf\n", b"} +Inf\n").replace(b"} nan\n", b"} NaN\n")
        yield found


class CounterLines:
    """A counter with labels. Its text may be made in another thread than the one that adds to it.

    It is made of strings, bytes and arrays, which Python's garbage collector doesn't look into: tuples and lists of
    200,000 series cost it 12 ms, about once a scrape.

    `typecode`: of an array; "q": only integers are added, "d": fractions as well.
    """

    def __init__(self, family: MetricFamily, typecode: str = "q") -> None:
        self._family = family
        self._name = family.exposed_name.encode()
        self._series_places: dict[str, int] = {}  # of series, by their labels
        self._values: array[Any] = array(typecode)
        self._templates: list[bytearray] = []  # of _LINES_PER_STEP lines each
        self._growing = Lock()  # there are as many values as lines

    def add_amount(self, labels: str, amount: float) -> None:
        """`labels`: their values, `join_labels` in the family's order. Begins the series, also with 0."""
        place = self._series_places.get(labels)
        if place is None:
            self._begin_series(labels, amount)
        else:
            self._values[place] += amount

    def _begin_series(self, labels: str, amount: float) -> None:
        self._series_places[labels] = place = len(self._values)
        names = self._family.labels
        line = self._name + labels_text(names, labels.split(_SEPARATOR, len(names) - 1))
        if place % _LINES_PER_STEP == 0:
            self._templates.append(bytearray())
        with self._growing:
            self._values.append(amount)
            self._templates[-1] += line

    def render_text(self) -> Iterator[bytes]:
        """Its part of the exposition, in pieces."""
        yield family_comments(self._family)
        for number, template in enumerate(self._templates):
            with self._growing:
                piece = template % tuple(self._values[number * _LINES_PER_STEP : (number + 1) * _LINES_PER_STEP])
            yield bytes(piece)


def _escape_label(value: str) -> str:
    return _escape_help(value).replace('"', r"\"")


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
