# The figures of a run as a picture: how much CPU each target took for the same work, by kafka-proxy's and by HAProxy's.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.results.report import COST, REFERENCES, ratios

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = ("gateway", "gateway-everything", "bare-loop", "haproxy", "nginx", "kroxylicious")
HEIGHT = 0.8  # of a scenario's bars together


def draw(run: Mapping[str, Any], path: Path) -> None:
    """A panel for each target that others are compared with, and in it bars for each scenario; whiskers are the range
    over the rounds.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from gateway.audit.report import plots

    scenarios = run["scenarios"]
    panels = {by: [_compared(scenario, by) for scenario in scenarios] for by in REFERENCES}
    panels = {by: found for by, found in panels.items() if any(found)}
    shades = (plots.BLUE, plots.SKY, plots.GREY, plots.GREEN, plots.PURPLE, plots.ORANGE)
    colors = dict(zip(DRAWN, shades, strict=True))
    shown = {name for found in panels.values() for targets in found for name in targets}
    rows = max((sum(map(len, found)) for found in panels.values()), default=0)
    with mpl.rc_context(plots.STYLE):
        figure = Figure(figsize=(4 + 4 * len(panels), 0.7 + 0.16 * rows + 0.12 * len(scenarios)))
        drawn = figure.subplots(1, max(len(panels), 1), sharey=True, squeeze=False)[0]
        for axes, (by, found) in zip(drawn, panels.items(), strict=False):
            _draw_panel(axes, found, colors)
            axes.axvline(1.0, color=plots.INK, lw=0.8)
            axes.set(xlabel=f"CPU of the process, {by} = 1")
        drawn[0].set_yticks(range(len(scenarios)), labels=[scenario["title"] for scenario in scenarios], fontsize=7)
        drawn[0].invert_yaxis()
        drawn[-1].legend(
            handles=[Patch(color=colors[name], label=name) for name in DRAWN if name in shown],
            fontsize=7,
            loc="lower right",
        )
        save(figure, path)


def _draw_panel(axes: Axes, scenarios: Sequence[Mapping[str, list[float]]], colors: Mapping[str, str]) -> None:
    for place, targets in enumerate(scenarios):
        each = HEIGHT / max(len(targets), 1)
        for row, (name, values) in enumerate(targets.items()):
            middle = median(values)
            axes.barh(
                place - HEIGHT / 2 + (row + 0.5) * each, middle, each * 0.9, color=colors[name],
                xerr=[[middle - min(values)], [max(values) - middle]], error_kw={"lw": 0.6},
            )  # fmt: skip


def save(figure: Figure, path: Path) -> None:
    """As SVG that is the same whenever the figures are."""
    figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")
    text = path.read_text("utf-8")
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")


def _compared(scenario: Mapping[str, Any], by: str) -> dict[str, list[float]]:
    """The ratios of each target that is drawn, where it was measured."""
    rounds = scenario["rounds"]
    found = {name: ratios(rounds, name, COST[scenario["per"]], by) for name in DRAWN if name != by}
    return {name: values for name, values in found.items() if values}
