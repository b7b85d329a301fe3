# The report as a page: facts in, one HTML file's text out, which needs nothing else: no script at all, no font, style
# or picture from anywhere. Pure; knows neither Spark nor files.
#
# Names come from strangers. Jinja escapes all that goes into the page, the policy in its head (CSP) lets nothing run or
# load even if that failed, and plots are images, in which nothing can run either.

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final, NamedTuple

import jinja2

from gateway.audit.batch import dropped, tables
from gateway.audit.batch.job import Integrity
from gateway.audit.report import plots
from gateway.audit.report.plots import Line, Pair, Times
from policies import usage

_LISTED: Final = 50  # gaps, workers without an end
_PANELS: Final = 8  # topics with a plot of their own, the others taken together among them
_REASONS: Final = 7  # that a plot can tell apart
_UNITS: Final = (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


class Group(NamedTuple):
    """The sums of one name: a row of transforms.totals. Without `names`: all others, `members` of them."""

    names: tuple[str, ...]
    sums: Mapping[str, int]
    members: int = 1


class Topic(NamedTuple):
    """A topic (or all others: name None) with its offered, accepted and rejected bytes per window."""

    group: Group
    offered: Sequence[int]
    accepted: Sequence[int]
    rejected: Sequence[int]


class Reason(NamedTuple):
    """All rows of one outcome and reason; `per_window` in bytes, `again`: those of the bytes that are repeats."""

    outcome: str
    reason: str
    bytes: int
    messages: int
    requests: int
    again: int
    per_window: Sequence[int]


@dataclass(frozen=True, slots=True)
class Facts:
    """The report's contents. Topics and clients come with the largest first, and the others together at the end."""

    sources: Sequence[Mapping[str, Any]]
    first_ms: int  # when the first interval begins and the last one ends, Unix ms
    last_ms: int
    times: Times
    cell_ms: int  # how long a column of the heat map is: some windows
    totals: Mapping[str, int]
    topics: Sequence[Topic]
    clients: Sequence[Group]  # names: principal, client id, software
    losers: Sequence[Group]  # the same, those who lost most
    reasons: Sequence[Reason]
    factor: Sequence[float | None]  # the lowest storage factor of each window, where it is known
    integrity: Integrity


def render(facts: Facts, generated_ms: int | None = None) -> str:
    """The page. The same facts give the same bytes; `generated_ms`: say when it was made."""
    folder = resources.files("gateway.audit")
    style = (folder / "report.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "size": size,
        "exact": "{:,}".format,
        "of": _of,
        "time": _time,
        "name": _name,
        "share": _share,
    }
    template = environment.from_string((folder / "report.html").read_text(encoding="utf-8"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    trust = facts.integrity
    return template.render(
        facts=facts,
        style=style,
        style_digest=digest,
        generated_ms=generated_ms,
        whole=dropped.finally_dropped(facts.totals),
        dropped=_dropped,
        lost=dropped.finally_dropped,
        outcomes=usage.OUTCOMES,
        notes=usage.NOTES,
        sources=[_source(source) for source in facts.sources],
        figures=_figures(facts),
        window=_duration(facts.times.step_ms),
        cell=_duration(facts.cell_ms),
        gaps=trust.gaps[:_LISTED],
        unfinished=trust.incomplete[:_LISTED],
        still_open=trust.incomplete_total - trust.lost,
        life=lambda row: f"{row['gateway']}/{row['boot']}/{row['worker']}",
    )


class Figure(NamedTuple):
    """A plot as an image's address, and the same in words."""

    source: str
    words: str


def _figures(facts: Facts) -> dict[str, Figure]:
    """Only those for which there is something to show."""
    if not facts.topics:
        return {}
    found = {"topics": _topics(facts), "heat": _heat(facts)}
    rejected = [each for each in facts.reasons if each.outcome == "rejected"]
    would = [each for each in facts.reasons if each.outcome == "would_reject"]
    if rejected:
        found["reasons"] = _reasons(facts, rejected)
        found["rejected_heat"] = _rejected_heat(facts)
    if would:
        found["would"] = _reasons(facts, would)
    held = _held(facts)
    if held or any(each is not None for each in facts.factor):
        found["storage"] = _storage(facts, held)
    return found


def _topics(facts: Facts) -> Figure:
    shown = list(facts.topics)
    if len(shown) > _PANELS:
        shown = [*shown[: _PANELS - 1], _together(shown[_PANELS - 1 :])]
    pairs = [Pair(_topic_name(each), each.offered, each.accepted) for each in shown]
    words = [
        f"{_topic_name(each)}: offered {size(each.group.sums['offered_bytes'])}, accepted"
        f" {_share(each.group.sums['accepted_bytes'], each.group.sums['offered_bytes'])},"
        f" busiest {_duration(facts.times.step_ms)} {_peak(facts.times, each.offered)}"
        for each in shown
    ]
    return _figure(plots.offered_and_accepted(facts.times, pairs, _gaps(facts)), words)


def _together(topics: Sequence[Topic]) -> Topic:
    names = {name for each in topics for name in each.group.sums}
    sums = {name: sum(each.group.sums[name] for each in topics) for name in names}

    def added(lines: Sequence[Sequence[int]]) -> list[int]:
        return [sum(amounts) for amounts in zip(*lines, strict=True)]

    return Topic(
        Group((), sums, sum(each.group.members for each in topics)),
        added([each.offered for each in topics]),
        added([each.accepted for each in topics]),
        added([each.rejected for each in topics]),
    )


def _reasons(facts: Facts, reasons: Sequence[Reason]) -> Figure:
    lines = [Line(f"{each.reason} ({size(each.bytes)})", each.per_window) for each in reasons]
    if len(lines) > _REASONS:
        rest = [each.per_window for each in reasons[_REASONS - 1 :]]
        amount = sum(each.bytes for each in reasons[_REASONS - 1 :])
        others = [sum(amounts) for amounts in zip(*rest, strict=True)]
        lines = [*lines[: _REASONS - 1], Line(f"{_of(len(rest), 'other reason')} ({size(amount)})", others)]
    words = [f"{each.reason}: {size(each.bytes)}, at most {_peak(facts.times, each.per_window)}" for each in reasons]
    return _figure(plots.stacked(facts.times, lines, _gaps(facts)), words)


def _heat(facts: Facts) -> Figure:
    times = _columns(facts)
    rows = [Line(_topic_name(each), _wider(facts, each.offered)) for each in facts.topics]
    words = [f"{row.name}: busiest {_duration(times.step_ms)} {_peak(times, row.amounts)}" for row in rows]
    return _figure(plots.heat(times, rows), words)


def _rejected_heat(facts: Facts) -> Figure:
    times = _columns(facts)
    topics = [each for each in facts.topics if any(each.rejected)]
    rows = [Line(_topic_name(each), _wider(facts, each.rejected)) for each in topics]
    of = [Line(_topic_name(each), _wider(facts, each.offered)) for each in topics]
    words = [
        f"{_topic_name(each)}: {_share(each.group.sums['rejected_bytes'], each.group.sums['offered_bytes'])} rejected"
        for each in topics
    ]
    return _figure(plots.heat(times, rows, of), words)


def _held(facts: Facts) -> list[Line]:
    """The bytes that storage protection delayed and rejected."""
    names = {"delayed": "delayed by storage protection", "rejected": "rejected by storage protection"}
    found = []
    for outcome, name in names.items():
        rows = [r.per_window for r in facts.reasons if r.outcome == outcome and r.reason.startswith("storage-")]
        if rows:
            found.append(Line(name, [sum(amounts) for amounts in zip(*rows, strict=True)]))
    return found


def _storage(facts: Facts, held: Sequence[Line]) -> Figure:
    known = [each for each in facts.factor if each is not None]
    words = [f"lowest factor {min(known):g}, known in {len(known)} of {len(facts.factor)} windows"] if known else []
    words += [f"{line.name}: {size(sum(line.amounts))}" for line in held]
    return _figure(plots.storage(facts.times, facts.factor, held, _gaps(facts)), words)


def _figure(svg: str, words: Sequence[str]) -> Figure:
    return Figure(f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}", "; ".join(words))


def _gaps(facts: Facts) -> list[tuple[int, int]]:
    return [
        (gap["after_ms"] if gap["after_ms"] is not None else facts.first_ms, gap["before_ms"])
        for gap in facts.integrity.gaps
    ]


def _columns(facts: Facts) -> Times:
    """The heat map's columns: longer windows, which begin at whole minutes, hours, days."""
    start = facts.times.start_ms - facts.times.start_ms % facts.cell_ms
    end = facts.times.start_ms + facts.times.windows * facts.times.step_ms
    return Times(start, facts.cell_ms, -(-(end - start) // facts.cell_ms))


def _wider(facts: Facts, amounts: Sequence[int]) -> list[int]:
    columns = _columns(facts)
    found = [0] * columns.windows
    for i, amount in enumerate(amounts):
        found[(facts.times.start_ms + i * facts.times.step_ms - columns.start_ms) // facts.cell_ms] += amount
    return found


def _topic_name(topic: Topic) -> str:
    return _name(topic.group.names[0]) if topic.group.names else _of(topic.group.members, "other topic")


def _peak(times: Times, amounts: Sequence[int]) -> str:
    return f"{size(max(amounts) * 1000 / times.step_ms)}/s"


def size(count: float) -> str:
    """Bytes for people, three digits: 1.24 GB. 10^9, as Kafka's quotas are given."""
    for unit, factor in _UNITS:
        if count >= factor:
            value = count / factor
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{count:.0f} B"


def _dropped(sums: Mapping[str, int], torn: bool = False) -> str:
    gone = dropped.finally_dropped(sums, torn)
    return f"{tables.AT_MOST + ' ' if gone.upper_bound else ''}{size(gone.bytes)}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(round(ms / 1000), UTC).strftime("%Y-%m-%d %H:%M:%S")


def _share(part: int, whole: int) -> str:
    """A part in percent; never 0 or 100 unless it is."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f} %" if 0 < percent < 100 else f"{percent:.0f} %"


def _of(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def _duration(ms: int) -> str:
    for unit, length in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if ms % length == 0:
            count = ms // length
            return unit if count == 1 else f"{count} {unit}s"
    return f"{ms} ms"


def _name(text: str) -> str:
    """A client's own name: visible, and no longer than a line or two."""
    shown = tables.safe(text)
    return (shown if len(shown) <= 120 else f"{shown[:80]}…{shown[-39:]}") or "(none)"


def _source(source: Mapping[str, Any]) -> str:
    if source["kind"] == "topic":
        return f"topic {source['name']} of {source['bootstrap_servers']}"
    kept = f" (kept from {source['expired_before']} on)" if source.get("expired_before") else ""
    return f"{'tables' if source['kind'] == 'tables' else 'spool'} {source['name']}{kept}"
