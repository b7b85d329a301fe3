# The report as a page: facts in, one HTML file's text out, which needs nothing else: no script at all, no font, style
# or picture from anywhere. Pure; knows neither Spark nor files.
#
# Names come from strangers. Jinja escapes all that goes into the page, the policy in its head (CSP) lets nothing run or
# load even if that failed, and plots are images, in which nothing can run either.

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from functools import partial
from importlib import resources
from typing import Any, Final, NamedTuple

import jinja2

from gateway.audit.answers.windows import find_offset, load_zone
from gateway.audit.batch import dropped, tables
from gateway.audit.report import downloads, plots
from gateway.audit.report.facts import ReasonTraffic, ReportFacts, TopicTraffic, UsageGroup
from gateway.audit.report.plots import AmountSeries, TimeWindows, TrafficSeries
from policies import usage

_MAX_LISTED: Final = 50  # gaps, workers without an end
_MAX_PANELS: Final = 8  # topics with a plot of their own, the others taken together among them
_MAX_REASONS: Final = 7  # that a plot can tell apart
_SIZE_UNITS: Final = (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def render_page(facts: ReportFacts, generated_ms: int | None = None) -> str:
    """The page. The same facts give the same bytes; `generated_ms`: say when it was made."""
    folder = resources.files("gateway.audit")
    style = (folder / "report.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "size": size_text,
        "exact": "{:,}".format,
        "of": _count_text,
        "time": partial(_time_text, zone=load_zone(facts.times.zone)),
        "name": _name_text,
        "share": _share_text,
        "percent": _percent_text,
        "lasting": _lasting_text,
    }
    template = environment.from_string((folder / "report.html").read_text(encoding="utf-8"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    trust = facts.integrity
    return template.render(
        facts=facts,
        style=style,
        style_digest=digest,
        generated_ms=generated_ms,
        whole=dropped.count_finally_dropped(facts.totals, False, trust.sees_repeats),
        bound_reasons="; ".join(_bound_reasons(facts)),
        dropped=lambda sums, torn=False, of=trust: _dropped_text(sums, torn, of.sees_repeats),
        lost=dropped.count_finally_dropped,
        outcomes=usage.OUTCOMES,
        notes=usage.NOTES,
        sources=[_source_text(source) for source in facts.sources],
        figures=_make_figures(facts),
        window=_duration_text(facts.times.step_ms),
        cell=_duration_text(facts.cell_ms),
        window_zone=_zone_text(facts.times),
        cell_zone=_zone_text(_heat_columns(facts)),
        gaps=trust.gaps[:_MAX_LISTED],
        unfinished=trust.incomplete[:_MAX_LISTED],
        still_open=trust.incomplete_total - trust.lost,
        downloads=downloads.make_downloads(facts),
        change=_change_text,
        step=_duration_text(facts.breakdowns.step_ms),
        life=lambda row: f"{row['gateway']}/{row['boot']}/{row['worker']}",
    )


class PageFigure(NamedTuple):
    """A plot as an image's address, and the same in words."""

    source: str
    words: str


def _make_figures(facts: ReportFacts) -> dict[str, PageFigure]:
    """Only those for which there is something to show."""
    if not facts.topics:
        return {}
    found = {"topics": _topics_figure(facts), "heat": _heat_figure(facts)}
    rejected = [each for each in facts.reasons if each.outcome == "rejected"]
    would = [each for each in facts.reasons if each.outcome == "would_reject"]
    if rejected:
        found["reasons"] = _reasons_figure(facts, rejected)
        found["rejected_heat"] = _rejected_heat_figure(facts)
    if would:
        found["would"] = _reasons_figure(facts, would)
    held = _held_series(facts)
    if held or any(each is not None for each in facts.factor):
        found["storage"] = _storage_figure(facts, held)
    return found


def _topics_figure(facts: ReportFacts) -> PageFigure:
    shown = list(facts.topics)
    if len(shown) > _MAX_PANELS:
        shown = [*shown[: _MAX_PANELS - 1], _merge_topics(shown[_MAX_PANELS - 1 :])]
    pairs = [TrafficSeries(_topic_name(each), each.offered, each.accepted) for each in shown]
    words = [
        f"{_topic_name(each)}: offered {size_text(each.group.sums['offered_bytes'])}, accepted"
        f" {_share_text(each.group.sums['accepted_bytes'], each.group.sums['offered_bytes'])},"
        f" busiest {_duration_text(facts.times.step_ms)} {_peak_rate_text(facts.times, each.offered)}"
        for each in shown
    ]
    return _make_figure(plots.plot_offered_accepted(facts.times, pairs, _gap_spans(facts)), words)


def _merge_topics(topics: Sequence[TopicTraffic]) -> TopicTraffic:
    names = {name for each in topics for name in each.group.sums}
    sums = {name: sum(each.group.sums[name] for each in topics) for name in names}

    def added(lines: Sequence[Sequence[int]]) -> list[int]:
        return [sum(amounts) for amounts in zip(*lines, strict=True)]

    return TopicTraffic(
        UsageGroup((), sums, sum(each.group.members for each in topics)),
        added([each.offered for each in topics]),
        added([each.accepted for each in topics]),
        added([each.rejected for each in topics]),
    )


def _reasons_figure(facts: ReportFacts, reasons: Sequence[ReasonTraffic]) -> PageFigure:
    lines = [AmountSeries(f"{_name_text(each.reason)} ({size_text(each.bytes)})", each.per_window) for each in reasons]
    if len(lines) > _MAX_REASONS:
        rest = [each.per_window for each in reasons[_MAX_REASONS - 1 :]]
        amount = sum(each.bytes for each in reasons[_MAX_REASONS - 1 :])
        others = [sum(amounts) for amounts in zip(*rest, strict=True)]
        lines = [
            *lines[: _MAX_REASONS - 1],
            AmountSeries(f"{_count_text(len(rest), 'other reason')} ({size_text(amount)})", others),
        ]
    words = [
        f"{_name_text(each.reason)}: {size_text(each.bytes)}, at most {_peak_rate_text(facts.times, each.per_window)}"
        for each in reasons
    ]
    return _make_figure(plots.plot_stacked(facts.times, lines, _gap_spans(facts)), words)


def _heat_figure(facts: ReportFacts) -> PageFigure:
    times = _heat_columns(facts)
    rows = [AmountSeries(_topic_name(each), _widen_windows(facts, each.offered)) for each in facts.topics]
    words = [
        f"{row.name}: busiest {_duration_text(times.step_ms)} {_peak_rate_text(times, row.amounts)}" for row in rows
    ]
    return _make_figure(plots.plot_heat_map(times, rows), words)


def _rejected_heat_figure(facts: ReportFacts) -> PageFigure:
    times = _heat_columns(facts)
    topics = [each for each in facts.topics if any(each.rejected)]
    rows = [AmountSeries(_topic_name(each), _widen_windows(facts, each.rejected)) for each in topics]
    of = [AmountSeries(_topic_name(each), _widen_windows(facts, each.offered)) for each in topics]
    words = [
        f"{_topic_name(each)}: {_share_text(each.group.sums['rejected_bytes'], each.group.sums['offered_bytes'])}"
        " rejected"
        for each in topics
    ]
    return _make_figure(plots.plot_heat_map(times, rows, of), words)


def _held_series(facts: ReportFacts) -> list[AmountSeries]:
    """The bytes that storage protection delayed and rejected."""
    names = {"delayed": "delayed by storage protection", "rejected": "rejected by storage protection"}
    found = []
    for outcome, name in names.items():
        rows = [r.per_window for r in facts.reasons if r.outcome == outcome and r.reason.startswith("storage-")]
        if rows:
            found.append(AmountSeries(name, [sum(amounts) for amounts in zip(*rows, strict=True)]))
    return found


def _storage_figure(facts: ReportFacts, held: Sequence[AmountSeries]) -> PageFigure:
    known = [each for each in facts.factor if each is not None]
    words = [f"lowest factor {min(known):g}, known in {len(known)} of {len(facts.factor)} windows"] if known else []
    words += [f"{line.name}: {size_text(sum(line.amounts))}" for line in held]
    return _make_figure(plots.plot_storage(facts.times, facts.factor, held, _gap_spans(facts)), words)


def _make_figure(svg: str, words: Sequence[str]) -> PageFigure:
    return PageFigure(f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}", "; ".join(words))


def _gap_spans(facts: ReportFacts) -> list[tuple[int, int]]:
    spans = []
    for gap in facts.integrity.gaps:
        after, before = gap["after_ms"], gap["before_ms"]
        if after is not None and before < after:  # the clock was set back: it reaches on, and from any time before
            spans += [(facts.first_ms, before), (after, facts.last_ms)]
        else:
            spans.append((facts.first_ms if after is None else after, before))
    return spans


def _heat_columns(facts: ReportFacts) -> TimeWindows:
    """The heat map's columns: longer windows, which begin at whole minutes, hours, days."""
    start = facts.times.start_ms - facts.times.start_ms % facts.cell_ms
    end = facts.times.start_ms + facts.times.windows * facts.times.step_ms
    return TimeWindows(start, facts.cell_ms, -(-(end - start) // facts.cell_ms), facts.times.zone)


def _widen_windows(facts: ReportFacts, amounts: Sequence[int]) -> list[int]:
    columns = _heat_columns(facts)
    found = [0] * columns.windows
    for i, amount in enumerate(amounts):
        found[(facts.times.start_ms + i * facts.times.step_ms - columns.start_ms) // facts.cell_ms] += amount
    return found


def _topic_name(topic: TopicTraffic) -> str:
    return _name_text(topic.group.names[0]) if topic.group.names else _count_text(topic.group.members, "other topic")


def _peak_rate_text(times: TimeWindows, amounts: Sequence[int]) -> str:
    return f"{size_text(max(amounts) * 1000 / times.step_ms)}/s"


def size_text(count: float) -> str:
    """Bytes for people, three digits: 1.24 GB. 10^9, as Kafka's quotas are given."""
    for unit, factor in _SIZE_UNITS:
        if count >= 0.9995 * factor:  # with three digits it is one of this unit
            value = count / factor
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return "< 1 B" if 0 < count < 0.5 else f"{count:.0f} B"  # a rate


def _bound_reasons(facts: ReportFacts) -> list[str]:
    """Why the bytes finally dropped are an upper bound."""
    totals, trust = facts.totals, facts.integrity
    reasons = {
        "a worker doesn't recognise what another one rejected": trust.lives_overlap,
        "new attempts may be in what these sums leave out": not trust.complete,
        f"of {size_text(totals['repeats_unknown_bytes'])} it is unknown whether they had been sent before": (
            totals["repeats_unknown_bytes"] > 0
        ),
        "clients may have come back with what was discarded": totals["discarded_bytes"] > 0,
    }
    return [reason for reason, holds in reasons.items() if holds]


def _dropped_text(sums: Mapping[str, int], torn: bool, sees_repeats: bool) -> str:
    gone = dropped.count_finally_dropped(sums, torn, sees_repeats)
    return f"{tables.AT_MOST_MARK + ' ' if gone.upper_bound else ''}{size_text(gone.bytes)}"


def _time_text(ms: int, zone: tzinfo) -> str:
    """With the offset only where the zone's clocks show the same time twice."""
    moment = datetime.fromtimestamp(round(ms / 1000), zone)
    is_twofold = moment.utcoffset() != moment.replace(fold=1 - moment.fold).utcoffset()
    return moment.isoformat(" ")[: None if is_twofold else 19]


def _share_text(part: int, whole: int) -> str:
    """A part in percent; never 0 or 100 unless it is."""
    if not whole:
        return "–"
    return _percent_text(part / whole)


def _percent_text(share: float) -> str:
    return tables.share_text(share) if 0 < share < 1 else f"{100 * share:.0f} %"


def _change_text(now: int, before: int) -> str:
    """How much more or less it is than before."""
    if not before or now == before:
        return "–" if now != before else "the same"
    return tables.change_text(before, now - before)


def _lasting_text(ms: int | float) -> str:
    """A length of time for people: 3 h 20 min."""
    seconds = round(ms / 1000)
    for unit, length, rest, smaller in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            left = seconds % length // smaller
            return f"{seconds // length} {unit}" + (f" {left} {rest}" if left else "")
    if seconds or not ms:
        return f"{seconds} s"
    return "< 1 ms" if ms < 0.5 else f"{ms:.0f} ms"


def _count_text(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def _duration_text(ms: int) -> str:
    for unit, length in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if ms % length == 0:
            count = ms // length
            return unit if count == 1 else f"{count} {unit}s"
    return f"{ms} ms"


def _zone_text(times: TimeWindows) -> str:
    """The zone in which times are told, and whether its days or hours aren't those of the windows."""
    ends = (times.start_ms, times.start_ms + times.windows * times.step_ms)
    is_whole = not any(find_offset(load_zone(times.zone), ms) % times.step_ms for ms in ends)
    return times.zone if is_whole else f"{times.zone} (windows aligned to UTC)"


def _name_text(text: str) -> str:
    """A client's own name: visible, and no longer than a line or two."""
    shown = tables.escape_unprintable(text)
    return (shown if len(shown) <= 120 else f"{shown[:80]}…{shown[-39:]}") or "(none)"


def _source_text(source: Mapping[str, Any]) -> str:
    if source["kind"] == "topic":
        return f"topic {source['name']} of {source['bootstrap_servers']}"
    kept = f" (kept from {source['expired_before']} on)" if source.get("expired_before") else ""
    return f"{'tables' if source['kind'] == 'tables' else 'spool'} {source['name']}{kept}"
