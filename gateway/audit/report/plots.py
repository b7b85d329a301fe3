# The report's plots: numbers in, an SVG's text out. Drawn by matplotlib without a display, its fonts as paths, so that
# a plot looks alike everywhere and fetches nothing; and no clock or random name in it, so that the same
# numbers give the same bytes. Knows nothing of records, sums or HTML.
#
# Colours are Okabe and Ito's, which people with any colour vision can tell apart; where areas touch, a hatch or a line
# says the same in print without colours.

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import dates, font_manager
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, Formatter, PercentFormatter

from gateway.audit.answers.windows import load_zone

BLUE: Final = "#0072B2"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
YELLOW: Final = "#F0E442"
ORANGE: Final = "#E69F00"
RED: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
INK: Final = "#1b2733"
GREY: Final = "#8a96a3"
PALE: Final = "#eef1f4"
_STACK_STYLES: Final = (
    (RED, ""),
    (ORANGE, "////"),
    (PURPLE, ""),
    (YELLOW, "...."),
    (SKY, "\\\\\\\\"),
    (GREEN, ""),
    (BLUE, "xx"),
)

_WIDTH: Final = 10.0  # inches; the page scales it
_LEGEND_COLUMNS: Final = 4  # of a legend
_MAX_LABEL_CHARS: Final = 36  # characters of a name
_SPIKE_RATIO: Final = 4  # of the highest window to the usual ones, from which it is cut off
_USUAL_SHARE: Final = 0.95  # of the windows with anything, which are usual
_LOG_SCALE_RATIO: Final = 100  # from there on a linear scale shows the largest only
# By years, months, days, hours, minutes, seconds; and where one of them begins.
_TICKS: Final = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"]
_ROUND_TICKS: Final = ["", "%Y", "%d %b", "%d %b", "%H:%M", "%H:%M"]
STYLE: Final[Any] = {
    "svg.hashsalt": "produce-gateway",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # matplotlib brings it along
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a topic may be called $x$
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dfe4e9",
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


class TimeWindows(NamedTuple):
    """Windows side by side: the first begins at `start_ms` (Unix), each is `step_ms` long; `zone`: in which times are
    told, by IANA's name.
    """

    start_ms: int
    step_ms: int
    windows: int
    zone: str = "UTC"

    def window_edges(self) -> list[float]:
        """The bounds of windows, in matplotlib's days."""
        return [_to_days(self.start_ms + i * self.step_ms) for i in range(self.windows + 1)]

    def per_second(self, amounts: Sequence[int]) -> Any:
        """Amounts of each window as a mean rate."""
        return np.array(amounts, dtype=float) * 1000 / self.step_ms


class TrafficSeries(NamedTuple):
    """Of one topic, per window: bytes that were offered, and those of them that were accepted."""

    name: str
    offered: Sequence[int]
    accepted: Sequence[int]


class AmountSeries(NamedTuple):
    """Something per window; `amounts` in bytes."""

    name: str
    amounts: Sequence[int]


TimeSpan = tuple[int, int]  # from, to in Unix ms: records of that time are missing


def plot_offered_accepted(times: TimeWindows, pairs: Sequence[TrafficSeries], gaps: Sequence[TimeSpan] = ()) -> str:
    """A panel for each topic: the accepted bytes as an area, the other offered bytes on top of it."""
    columns = 2 if len(pairs) > 1 else 1
    rows = math.ceil(len(pairs) / columns)
    with _open_figure(0.55 + 1.55 * rows) as (figure, out):
        grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
        edges = times.window_edges()
        for axes, pair in zip(grid.flat, pairs, strict=False):
            offered, accepted = times.per_second(pair.offered), times.per_second(pair.accepted)
            axes.stairs(accepted, edges, fill=True, color=BLUE, alpha=0.85)
            axes.stairs(
                offered, edges, baseline=accepted, fill=True, facecolor="#f6c9ad", edgecolor=RED, hatch="////", lw=0
            )
            axes.stairs(offered, edges, color=INK, lw=1.0)
            _mark_gaps(axes, times, gaps)
            _format_rate_axis(axes, edges, offered)
            axes.set_title(_drawable_label(pair.name), loc="left", fontsize=9.5, fontweight="bold", pad=4)
        for axes in grid.flat[len(pairs) :]:
            axes.set_visible(False)
            grid[-2, -1].tick_params(labelbottom=True)  # what would stand below the empty place
        _add_legend(
            figure,
            [
                Patch(facecolor=BLUE, alpha=0.85, label="accepted"),
                Patch(facecolor="#f6c9ad", edgecolor=RED, hatch="////", lw=0, label="offered, not accepted"),
                Patch(facecolor="none", edgecolor=INK, lw=1.0, label="offered in all"),
            ],
            gaps,
        )
    return out[0]


def plot_stacked(times: TimeWindows, lines: Sequence[AmountSeries], gaps: Sequence[TimeSpan] = ()) -> str:
    """Rates on top of each other, the first at the bottom; the legend has them as they lie."""
    with _open_figure(3.0) as (figure, out):
        axes = figure.subplots()
        patches = _draw_stack(axes, times, lines, _stack_styles(len(lines)))
        _mark_gaps(axes, times, gaps)
        _format_rate_axis(axes, times.window_edges(), _stack_tops(times, lines))
        _add_legend(figure, patches, gaps)
    return out[0]


def plot_storage(
    times: TimeWindows, factor: Sequence[float | None], held: Sequence[AmountSeries], gaps: Sequence[TimeSpan] = ()
) -> str:
    """The storage factor (None: not known), and beneath it the bytes that storage protection held back, if any."""
    known = any(each is not None for each in factor)
    heights = [*([1.3] if known else []), *([1.0] if held else [])]
    with _open_figure(0.6 + 1.55 * sum(heights)) as (figure, out):
        panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0].tolist()
        edges, patches = times.window_edges(), []
        if known:
            axes = panels[0]
            values = np.array([math.nan if each is None else each for each in factor])
            axes.stairs(np.nan_to_num(values), edges, fill=True, color=GREEN, alpha=0.35)
            axes.stairs(values, edges, baseline=None, color=GREEN, lw=1.8)
            for start, end, each in zip(edges, edges[1:], factor, strict=False):
                if each == 0:
                    axes.axvspan(start, end, facecolor=RED, alpha=0.25, lw=0)
            axes.set_ylim(-0.04, 1.08)
            axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])
            axes.set_title("factor", loc="left", fontsize=9.5, fontweight="bold", pad=4)
            patches.append(Patch(facecolor=GREEN, alpha=0.5, label="factor (lowest of each window)"))
            if any(each == 0 for each in factor):
                patches.append(Patch(facecolor=RED, alpha=0.25, label="pause: nothing gets in"))
            _mark_gaps(axes, times, gaps)
        if held:
            axes = panels[-1]
            patches += _draw_stack(axes, times, held, ((ORANGE, ""), (RED, "////")))
            axes.set_title("held back", loc="left", fontsize=9.5, fontweight="bold", pad=4)
            _mark_gaps(axes, times, gaps)
            _format_rate_axis(axes, edges, _stack_tops(times, held))
        _add_legend(figure, patches, gaps)
    return out[0]


def plot_heat_map(times: TimeWindows, rows: Sequence[AmountSeries], of: Sequence[AmountSeries] | None = None) -> str:
    """A row for each name, the first on top, and a column for each window: bytes/s, or their share `of` others."""
    with _open_figure(0.9 + 0.24 * max(3, len(rows))) as (figure, out):
        axes = figure.subplots()
        axes.grid(visible=False)
        values = np.array([times.per_second(row.amounts) for row in rows])
        if of is None:
            shown = np.ma.masked_less_equal(values, 0)
            norm, colors = _color_norm(shown), "YlGnBu"
            unit: Formatter = EngFormatter("B/s")
        else:
            whole = np.array([times.per_second(row.amounts) for row in of])
            shown = np.ma.masked_array(values, whole <= 0) / np.where(whole > 0, whole, 1)
            norm, colors, unit = Normalize(0, 1), "Oranges", PercentFormatter(1, decimals=0)
        axes.set_facecolor(PALE)
        mesh = axes.pcolormesh(
            times.window_edges(), range(len(rows) + 1), shown, norm=norm, cmap=colors, edgecolor="white", linewidth=0.4
        )
        axes.set_yticks([i + 0.5 for i in range(len(rows))], [_drawable_label(row.name) for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        _format_time_axis(axes, times)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        bar = figure.colorbar(mesh, ax=axes, format=unit, pad=0.01, fraction=0.03, aspect=1.2 * max(3, len(rows)))
        bar.outline.set_visible(False)
    return out[0]


@contextmanager
def _open_figure(height: float) -> Iterator[tuple[Figure, list[str]]]:
    """A figure, and a list that has its SVG in the end."""
    out: list[str] = []
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, height))
        yield figure, out
        text = io.StringIO()
        # No date and no version in it. The prologue is for files of their own.
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    out.append(svg[svg.index("<svg") :])


def _mark_gaps(axes: Axes, times: TimeWindows, gaps: Sequence[TimeSpan]) -> None:
    _format_time_axis(axes, times)
    first, last = times.start_ms, times.start_ms + times.windows * times.step_ms
    for start, end in gaps:
        if start < last and end > first:
            axes.axvspan(
                _to_days(max(start, first)),
                _to_days(min(end, last)),
                facecolor=GREY,
                edgecolor=INK,
                hatch="xxxx",
                lw=0,
                alpha=0.4,
            )


def _format_time_axis(axes: Axes, times: TimeWindows) -> None:
    edges = times.window_edges()
    axes.set_xlim(edges[0], edges[-1])
    zone = load_zone(times.zone)
    locator = dates.AutoDateLocator(tz=zone, minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    form = dates.ConciseDateFormatter(  # type: ignore[no-untyped-call]
        locator, tz=zone, formats=_TICKS, zero_formats=_ROUND_TICKS, show_offset=False
    )
    axes.xaxis.set_major_formatter(form)


def _format_rate_axis(axes: Axes, edges: Sequence[float], tops: Any) -> None:
    """From 0 up to the highest of `tops`, or to less than what a few of them reach."""
    axes.set_ylim(bottom=0)
    if axes.get_ylim()[1] <= 0:
        axes.set_ylim(0, 1)
    axes.locator_params(axis="y", nbins=4)
    axes.yaxis.set_major_formatter(EngFormatter("B/s"))
    _cut_spikes(axes, edges, tops)


def _cut_spikes(axes: Axes, edges: Sequence[float], tops: Any) -> None:
    """Where a few windows would flatten all others, they leave the plot at a mark, the highest with its value."""
    known = np.sort(tops[tops > 0])
    usual = known[int(_USUAL_SHARE * (known.size - 1))] if known.size else 0
    if not known.size or known[-1] <= _SPIKE_RATIO * usual:
        return
    limit = 1.4 * usual
    axes.set_ylim(0, limit)
    middles = (np.array(edges[:-1]) + np.array(edges[1:])) / 2
    spikes = np.flatnonzero(tops > limit)
    axes.plot(middles[spikes], [limit] * spikes.size, ls="", marker="^", ms=5, color=RED, clip_on=False)
    highest = int(np.argmax(tops))
    is_left = middles[highest] < (edges[0] + edges[-1]) / 2
    axes.annotate(
        f"up to {EngFormatter('B/s', places=1)(tops[highest])}", (middles[highest], limit),
        xytext=(7 if is_left else -7, -3), textcoords="offset points", ha="left" if is_left else "right", va="top",
        fontsize=8, color=RED,
    )  # fmt: skip


def _stack_tops(times: TimeWindows, lines: Sequence[AmountSeries]) -> Any:
    return sum((times.per_second(line.amounts) for line in lines), np.zeros(times.windows))


def _add_legend(figure: Figure, patches: list[Patch], gaps: Sequence[TimeSpan]) -> None:
    if gaps:
        patches = [
            *patches,
            Patch(facecolor=GREY, edgecolor=INK, hatch="xxxx", lw=0, alpha=0.4, label="records missing"),
        ]
    # It fills column after column; people read row after row.
    patches = [patches[i] for column in range(_LEGEND_COLUMNS) for i in range(column, len(patches), _LEGEND_COLUMNS)]
    figure.legend(handles=patches, loc="outside upper left", ncols=_LEGEND_COLUMNS, fontsize=8.5, borderaxespad=0.2)


def _color_norm(values: Any) -> Normalize:
    if values.count() and values.max() > _LOG_SCALE_RATIO * values.min():
        return LogNorm(values.min(), values.max())
    return Normalize(0, max(1.0, float(values.max()) if values.count() else 1.0))


def _draw_stack(
    axes: Axes, times: TimeWindows, lines: Sequence[AmountSeries], shades: Iterable[tuple[str, str]]
) -> list[Patch]:
    edges, base, patches = times.window_edges(), np.zeros(times.windows), []
    for line, (color, hatch) in zip(lines, shades, strict=False):
        top = base + times.per_second(line.amounts)
        axes.stairs(top, edges, baseline=base, fill=True, facecolor=color, edgecolor=INK, hatch=hatch, lw=0)
        axes.stairs(top, edges, color=INK, lw=0.5)
        patches.append(Patch(facecolor=color, edgecolor=INK, hatch=hatch, lw=0.4, label=_drawable_label(line.name)))
        base = top
    return patches


def _stack_styles(count: int) -> Iterator[tuple[str, str]]:
    for i in range(count):
        yield _STACK_STYLES[i] if i < len(_STACK_STYLES) else (GREY, "")


def _drawable_label(name: str) -> str:
    """A name as it can be drawn: not too long, and of characters that the font has."""
    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    known = font.get_charmap()
    text = (
        name
        if len(name) <= _MAX_LABEL_CHARS
        else f"{name[: _MAX_LABEL_CHARS * 2 // 3]}…{name[-(_MAX_LABEL_CHARS // 3 - 1) :]}"
    )
    return "".join(char if ord(char) in known else "\ufffd" for char in text)


def _to_days(ms: int) -> float:
    return ms / 86_400_000  # its epoch is Unix's
