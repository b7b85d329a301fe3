# Tables of docs/metrics.md, docs/logs.md, docs/rest.md and docs/design.md are those of the code: run
# `python -m tests.pages` to write them anew. The words between them are written there and nowhere else.

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from gateway.control.access.rules import requests_by_role
from gateway.control.metrics import LABELS, PREFIX, SECTIONS, MetricFamily
from gateway.data.relay.states import LINK_STATES, SHUT, SIDE_STATES
from gateway.log import logs

DOCS = Path(__file__).parent.parent / "docs"
# Labels whose few values are in the texts of their metrics.
_NAMED = frozenset(
    (
        *("direction", "where", "policy", "cause", "limit", "part", "state"),
        *("version", "python", "gateway", "upstream", "internal_topics", "usage_topic"),
    )
)
_TABLE = re.compile(r"^\|.*\n(?:^\|.*\n?)+", re.MULTILINE)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]]) + "\n"


def _row(family: MetricFamily) -> tuple[str, str]:
    """The page says once which type a name has: `_total` is a counter, histograms are those of Latency."""
    labels = f"{{{','.join(family.labels)}}}" if family.labels else ""
    return f"`{family.exposed_name.removeprefix(PREFIX + '_')}{labels}`", family.text


def _pairs(head: str, texts: Mapping[str, str]) -> str:
    return _table((head, "Meaning"), ((f"`{name}`", text) for name, text in texts.items()))


def tables() -> dict[str, dict[str, str]]:
    """By page, and by the title of their section."""
    labels = ((f"`{name}`", label.values, label.most) for name, label in LABELS.items() if name not in _NAMED)
    metrics = {"Which labels there are": _table(("Label", "Values", "At most"), labels)}
    for title, families in SECTIONS.items():
        metrics[title] = _table(("Metric", "Meaning"), map(_row, families))
    roles = ((needed, "<br>".join(requests)) for needed, requests in requests_by_role().items())
    of_links = (
        (state.name, state.meaning, *(text or "–" for text in (state.from_client, state.to_client, state.to_broker)),
         state.ends or "–")
        for state in LINK_STATES
    )  # fmt: skip
    of_sides = (
        (state.name, state.meaning, "yes" if state.is_read else "–", "–" if state.is_broken or state is SHUT else "yes")
        for state in SIDE_STATES
    )
    return {
        "design.md": {
            "States of a connection": _table(
                ("State", "Meaning", "Read from the client", "Sent to it", "Sent to the broker", "Ends when"), of_links
            ),
            "States of a side": _table(("State", "Meaning", "Read", "Sent to"), of_sides),
        },
        "metrics.md": metrics,
        "rest.md": {"Which role for what": _table(("Least role", "Requests"), roles)},
        "logs.md": {
            "Kinds of events": _pairs("Kind", logs.EVENT_KINDS),
            "Fields": _pairs("Field", logs.FIELDS),
            "Loggers": _pairs("Logger", logs.LOGGERS),
        },
    }


def written(name: str) -> str:
    """The page with the tables that there have to be; a section without one gets it behind its words.

    Raises:
        ValueError: it lacks a section.
    """
    parts = re.split(r"^(?=## )", (DOCS / name).read_text("utf-8"), flags=re.MULTILINE)
    left = tables()[name]
    for i, part in enumerate(parts):
        table = left.pop(part.removeprefix("## ").partition("\n")[0], None)
        if table is not None and _TABLE.search(part):
            parts[i] = _TABLE.sub(lambda _, table=table: table, part, count=1)
        elif table is not None:
            parts[i] = f"{part.rstrip()}\n\n{table}\n"
    if left:
        raise ValueError(f"docs/{name} has no section {', '.join(left)}")
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    for name in tables():
        (DOCS / name).write_text(written(name), "utf-8")
