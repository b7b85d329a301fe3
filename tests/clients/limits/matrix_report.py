# Writes what the matrix of enforcement measured into docs/clients.md, between its markers: a table of all cells, and
# the errors that applications were shown. It invents nothing: a cell that wasn't run says so. By hand: `python -m
# tests.clients.limits.matrix_report OUTCOMES.jsonl "Measured on …"` with what enforcement.save left.

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.clients.limits.enforcement import SCENARIOS, VARIANTS, Outcome, Scenario, Variant, findings, load

DOCUMENT = Path(__file__).parents[3] / "docs" / "clients.md"
BEGIN, END = "<!-- make clients: begin -->", "<!-- make clients: end -->"
LEGEND = (
    "all: every record was delivered once and in order, and the application saw no error; **bold**: the differences."
    " Behind it, requests rejected/seconds until the last record had its outcome. –: not part of the matrix."
)


def render(outcomes: Sequence[Outcome], measured: str) -> str:
    """The generated part of the document; `measured` says when and where."""
    by_cell = {(outcome.scenario, outcome.variant): outcome for outcome in outcomes}
    shown = [variant for variant in VARIANTS.values() if any(variant.name == o.variant for o in outcomes)]
    lines = [measured, "", LEGEND, "", *_head(list(SCENARIOS.values()))]
    for variant in shown:
        cells = [_cell(by_cell.get((name, variant.name)), scenario) for name, scenario in SCENARIOS.items()]
        lines.append(f"| {_title(variant)} | " + " | ".join(cells) + " |")
    lines += ["", "Versions: " + ", ".join(_versions(outcomes)) + ".", "", *_unclean(outcomes)]
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
    return f"{variant.title}, as recommended" if variant.needs else variant.title


def _cell(outcome: Outcome | None, scenario: Scenario) -> str:
    """How often a client came back while it was rejected is in it: a retry storm would show here."""
    if outcome is None:
        return "–"
    if outcome.failure:
        return "**no result**"
    parts = [f"{outcome.delivered} of {outcome.sent}"] if outcome.delivered != outcome.sent else []
    errors = sum(outcome.errors.values()) + outcome.unresolved
    counts = {
        "error" if errors == 1 else "errors": errors,
        "twice": outcome.duplicates,
        "out of order": outcome.reordered,
        "LOST": outcome.lost,
    }
    parts += [f"{count} {what}" for what, count in counts.items() if count]
    text = f"**{', '.join(parts)}**" if parts else "all"
    return text if scenario.delays else f"{text}; {outcome.rejected}/{outcome.elapsed_s:.0f}"


def _versions(outcomes: Sequence[Outcome]) -> list[str]:
    """Each library once: variants of one share its version."""
    return sorted({f"{VARIANTS[o.variant].client} {o.version}" for o in outcomes if o.version})


def _unclean(outcomes: Sequence[Outcome]) -> list[str]:
    """The errors that applications were shown, each text once, and what broke a promise of ours."""
    lines = []
    texts: set[str] = set()
    for outcome in outcomes:
        where = f"- {SCENARIOS[outcome.scenario].title}, {_title(VARIANTS[outcome.variant])}:"
        if outcome.failure:
            lines.append(f"{where} no result: {' '.join(outcome.failure.split())[-200:]}")
        elif outcome.errors or outcome.unresolved:
            names = ", ".join(f"{count} x {name}" for name, count in sorted(outcome.errors.items()))
            without = f"{outcome.unresolved} without an outcome at the deadline" if outcome.unresolved else ""
            text = " ".join(outcome.first_error.split())[:160]
            first = f' ("{text}")' if text and text not in texts and text not in outcome.errors else ""
            texts.add(text)
            lines.append(f"{where} {', '.join(filter(None, (names, without)))}{first}.")
        elif broken := findings(outcome):
            lines.append(f"{where} {'; '.join(broken)}.")
    return ["Not clean:", "", *lines] if lines else []


if __name__ == "__main__":
    write(load(Path(sys.argv[1])), sys.argv[2])
