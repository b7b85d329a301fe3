# The figures of a run as a picture: how much CPU each target took for the same work, by that of one of them.

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.report import COST, REFERENCE, ratios

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = ("gateway", "gateway-everything", "bare-loop", "kroxylicious")
HEIGHT = 0.8  # of a scenario's bars together


def draw(run: Mapping[str, Any], path: Path) -> None:
    """Bars for each scenario in which the target was that others are compared with; whiskers are the range over the
    rounds.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from gateway.audit.report import plots

    found = {scenario["title"]: _compared(scenario) for scenario in run["scenarios"]}
    found = {title: targets for title, targets in found.items() if targets}
    colors = dict(zip(DRAWN, (plots.BLUE, plots.SKY, plots.GREY, plots.ORANGE), strict=True))
    with mpl.rc_context(plots.STYLE):
        figure = Figure(figsize=(8, 0.7 + 0.16 * sum(map(len, found.values())) + 0.12 * len(found)))
        axes = figure.subplots()
        for place, targets in enumerate(found.values()):
            each = HEIGHT / len(targets)
            for row, (name, values) in enumerate(targets.items()):
                middle = median(values)
                axes.barh(
                    place - HEIGHT / 2 + (row + 0.5) * each, middle, each * 0.9, color=colors[name],
                    xerr=[[middle - min(values)], [max(values) - middle]], error_kw={"lw": 0.6},
                )  # fmt: skip
        axes.axvline(1.0, color=plots.INK, lw=0.8)
        axes.set_yticks(range(len(found)), labels=list(found), fontsize=7)
        axes.invert_yaxis()
        axes.set(xlabel=f"CPU of the process, {REFERENCE} = 1")
        axes.legend(handles=[Patch(color=colors[name], label=name) for name in DRAWN], fontsize=7, loc="lower right")
        save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """As SVG that is the same whenever the figures are."""
    figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")
    text = path.read_text("utf-8")
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")


def _compared(scenario: Mapping[str, Any]) -> dict[str, list[float]]:
    rounds = scenario["rounds"]
    found = {name: ratios(rounds, name, COST[scenario["per"]], by=REFERENCE) for name in DRAWN}
    return {name: values for name, values in found.items() if values}
