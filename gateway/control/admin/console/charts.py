# The traffic over time as a drawing: paths in a box of WIDTH by HEIGHT units, which the page stretches, and the words
# beside it. Pure: numbers in, text out. `now` and times are Unix time in milliseconds.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from policies.units import format_rate

WIDTH: Final = 1000
HEIGHT: Final = 200
COLUMNS: Final = 60  # at most this many points that show their numbers
_STEPS: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
_MIN_SCALE: Final = 1000.0  # bytes per second: the scale of a quiet gateway
_LAYERS: Final = ("accepted", "delayed", "rejected")  # from the bottom up; accepted without what was delayed

Point = Mapping[str, Any]  # as GET /v1/traffic has them


class ChartSpot(NamedTuple):
    """A part of the time, and its numbers in words."""

    x: float
    width: float
    words: str


class TrafficChart(NamedTuple):
    """`layers`: by name, the outline of an area. `offered`: a line. `top`, `middle`: the scale's numbers, 0 is below.
    `words`: the whole in one sentence, for those who can't see it.
    """

    layers: Sequence[tuple[str, str]]
    offered: str
    spots: Sequence[ChartSpot]
    top: str
    middle: str
    begin_ms: int
    end_ms: int
    words: str


def draw_traffic(points: Sequence[Point], step_ms: int, end_ms: int, minutes: int) -> TrafficChart:
    """The last `minutes` before `end_ms`. Time of which there are no points stays empty."""
    begin_ms = end_ms - minutes * 60_000
    shown = [point for point in points if begin_ms <= point["at_ms"] < end_ms]
    most = round_scale(max((max(point["offered"], _layer_edges(point)[-1]) for point in shown), default=0.0))

    def x_of(at_ms: float) -> float:
        return (at_ms - begin_ms) / (end_ms - begin_ms) * WIDTH

    def y_of(rate: float) -> float:
        return HEIGHT - rate / most * HEIGHT

    middles = [x_of(point["at_ms"] + step_ms / 2) for point in shown]
    edges = [[0.0] * len(shown), *map(list, zip(*map(_layer_edges, shown), strict=True))]
    layers = [
        (name, _area_path(middles, lower, upper, y_of))
        for name, lower, upper in zip(_LAYERS, edges, edges[1:], strict=False)
        if upper != lower
    ]
    return TrafficChart(
        layers,
        "M" + " ".join(_point_text(x, y_of(point["offered"])) for x, point in zip(middles, shown, strict=True))
        if shown
        else "",
        [
            ChartSpot(
                x_of(some[0]["at_ms"]),
                x_of(some[-1]["at_ms"] + step_ms) - x_of(some[0]["at_ms"]),
                _describe_points(some),
            )
            for some in _group_points(shown)
        ],
        _rate_text(most),
        _rate_text(most / 2),
        begin_ms,
        end_ms,
        f"The last {minutes} minutes: " + (_describe_points(shown) if shown else "nothing is known yet"),
    )


def round_scale(most: float) -> float:
    """The end of an axis that has room for `most`: a round number whose half is round as well."""
    power = _MIN_SCALE
    while power * _STEPS[-1] < most:
        power *= 10
    return next(power * step for step in _STEPS if power * step >= most)


def _layer_edges(point: Point) -> tuple[float, ...]:
    """The upper edges of the layers."""
    accepted = point["accepted"]
    return accepted - min(point["delayed"], accepted), accepted, accepted + point["rejected"]


def _area_path(
    xs: Sequence[float], lower: Sequence[float], upper: Sequence[float], y_of: Callable[[float], float]
) -> str:
    there = [_point_text(x, y_of(rate)) for x, rate in zip(xs, upper, strict=True)]
    back = [_point_text(x, y_of(rate)) for x, rate in zip(reversed(xs), reversed(lower), strict=True)]
    return "M" + " ".join([*there, *back]) + "Z"


def _group_points(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    size = -(-len(points) // COLUMNS) or 1
    return (points[at : at + size] for at in range(0, len(points), size))


def _describe_points(points: Sequence[Point]) -> str:
    means = {name: sum(point[name] for point in points) / len(points) for name in ("offered", *_LAYERS)}
    return ", ".join(f"{name if name != 'offered' else 'in'} {format_rate(rate)}" for name, rate in means.items())


def _rate_text(rate: float) -> str:
    return format_rate(rate).replace(".0 ", " ")


def _point_text(x: float, y: float) -> str:
    return f"{x:.1f},{y:.1f}"
