# Writes what the matrix of enforcement measured into docs/clients.md, between its markers: tables of all cells, and
# what applications were told in those that were not clean. It invents nothing: a cell that wasn't run says so. By hand:
# `python -m tests.clients.matrix_report OUTCOMES.jsonl "Measured on …"` with what enforcement.save left.

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.clients.enforcement import SCENARIOS, VARIANTS, Outcome, Scenario, Variant, findings, load

DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"
BEGIN, END = "<!-- make clients: begin -->", "<!-- make clients: end -->"
LEGEND = (
    "Each cell: records delivered of those sent · errors that the application was shown · duplicates · records out of"
    " order. **Bold**: not everything, not once, or not in order. –: not part of the matrix."
)


def render(outcomes: Sequence[Outcome], measured: str) -> str:
    """The generated part of the document; `measured` says when and where."""
    by_cell = {(outcome.scenario, outcome.variant): outcome for outcome in outcomes}
    shown = [variant for variant in VARIANTS.values() if any(variant.name == o.variant for o in outcomes)]
    lines = [measured, "", LEGEND, "", *_head(list(SCENARIOS.values()))]
    for variant in shown:
        cells = [_cell(by_cell.get((scenario, variant.name))) for scenario in SCENARIOS]
        lines.append(f"| {_title(variant)} | " + " | ".join(cells) + " |")
    lines += ["", "Versions: " + ", ".join(_versions(outcomes)) + ".", "", *_rejections(outcomes), "", *_told(outcomes)]
    return "\n".join(lines).rstrip() + "\n"


def write(outcomes: Sequence[Outcome], measured: str, document: Path = DOCUMENT) -> None:
    before, rest = document.read_text().split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    document.write_text(f"{before}{BEGIN}\n{render(outcomes, measured)}{END}{after}")


def _head(scenarios: list[Scenario]) -> list[str]:
    return [
        "| Client | " + " | ".join(scenario.title for scenario in scenarios) + " |",
        "|---" * (len(scenarios) + 1) + "|",
    ]


def _title(variant: Variant) -> str:
    return f"{variant.title} with `{variant.needs}`" if variant.needs else variant.title


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "–"
    if outcome.failure:
        return "**no result**"
    errors = sum(outcome.errors.values()) + outcome.unresolved
    order = f"{outcome.reordered} out of order" if outcome.reordered else "in order"
    text = f"{outcome.delivered}/{outcome.sent} · {errors} · {outcome.duplicates} · {order}"
    text += f" · {outcome.lost} LOST" if outcome.lost else ""
    clean = outcome.delivered == outcome.sent and not (
        errors or outcome.duplicates or outcome.reordered or outcome.lost
    )
    return text if clean else f"**{text}**"


def _versions(outcomes: Sequence[Outcome]) -> list[str]:
    """Each library once: variants of one share its version."""
    return sorted({f"{VARIANTS[o.variant].client} {o.version}" for o in outcomes if o.version})


def _rejections(outcomes: Sequence[Outcome]) -> list[str]:
    """How often a client came back while it was rejected: a retry storm would show here."""
    lines = ["Requests rejected, and seconds until the last record had its outcome:", ""]
    scenarios = [scenario for scenario in SCENARIOS.values() if not scenario.delays]
    lines += _head(scenarios)
    by_cell = {(outcome.scenario, outcome.variant): outcome for outcome in outcomes}
    for variant in VARIANTS.values():
        cells = []
        for scenario in scenarios:
            found = by_cell.get((scenario.name, variant.name))
            cells.append(f"{found.rejected} · {found.elapsed_s:.0f} s" if found and not found.failure else "–")
        if any(cell != "–" for cell in cells):
            lines.append(f"| {_title(variant)} | " + " | ".join(cells) + " |")
    return lines


def _told(outcomes: Sequence[Outcome]) -> list[str]:
    """What applications were told, and what broke a promise of ours."""
    lines = []
    for outcome in outcomes:
        where = f"- {SCENARIOS[outcome.scenario].title}, {_title(VARIANTS[outcome.variant])}:"
        if outcome.failure:
            lines.append(f"{where} no result: {' '.join(outcome.failure.split())[-200:]}")
        elif outcome.errors or outcome.unresolved:
            names = ", ".join(f"{count} x {name}" for name, count in sorted(outcome.errors.items()))
            without = f"{outcome.unresolved} without an outcome at the deadline" if outcome.unresolved else ""
            said = f'; the first: "{" ".join(outcome.first_error.split())[:160]}"' if outcome.first_error else ""
            lines.append(f"{where} {', '.join(filter(None, (names, without)))}{said}.")
        elif broken := findings(outcome):
            lines.append(f"{where} {'; '.join(broken)}.")
    return ["What was not clean:", "", *lines] if lines else []


if __name__ == "__main__":
    write(load(Path(sys.argv[1])), sys.argv[2])
