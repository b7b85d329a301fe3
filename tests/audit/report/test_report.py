# The report: what it says of records (against sums made without Spark), that it is one page which needs nothing else,
# whatever topics and clients call themselves, and that a real browser shows it without a complaint or a request.

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import io
import os
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from gateway.audit import cli
from gateway.audit.answers import files
from gateway.audit.batch import tables
from gateway.audit.batch.query import AuditQuery, CountedRecords, LogIntegrity
from gateway.audit.local.records import LocalRecords
from gateway.audit.questions import episodes, slo
from gateway.audit.report import downloads, page, plots, report
from gateway.audit.report.facts import (
    ReasonTraffic,
    RefusalEpisodes,
    ReportBreakdowns,
    ReportFacts,
    TopicTraffic,
    UsageGroup,
)
from gateway.audit.report.plots import TimeWindows
from gateway.audit.spark import schema
from policies import usage
from tests.audit.records import START, LineSource, Row, interval, topic_batch, truth
from tests.browser import open_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECTIONS = (
    *("sums", "topics", "groups", "places", "rejections", "dropped", "episodes", "storage", "heat", "clients"),
    *("integrity", "exact", "data"),
)
FIGURES = 6  # offered, rejected, would be rejected, storage, two heat maps
HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=http://127.0.0.1:9/x onerror=alert(1)>",
    "'); background: url(http://127.0.0.1:9/y)",
    "{{ 7 * 7 }}{% raw %}",
    "$\\frac{1}{0}$",
    "]]></svg></style>&amp;\u202egnp.exe\x1b[2J\x00",
    "\u65e5\u672c\u8a9e \U0001f4a5",
    "x" * 30_000,
    "",
)  # fmt: skip


def _sums(**bytes_: int) -> dict[str, int]:
    zero = {schema.sum_column(name, measure): 0 for name in schema.SUMS for measure in usage.MEASURES}
    return zero | dict.fromkeys(schema.SINGLE_SUMS, 0) | {f"{name}_bytes": value for name, value in bytes_.items()}


def _integrity(**changes: Any) -> LogIntegrity:
    fields: dict[str, Any] = {
        "records": 5, "duplicates": 1, "conflicts": 0, "malformed": 0, "problems": {}, "samples": [], "boots": 2,
        "gaps": [], "gaps_total": 0, "incomplete": [], "incomplete_total": 0, "lost": 0,
    }  # fmt: skip
    return LogIntegrity(**(fields | changes))


def _facts(names: Sequence[str] = ("clicks", "payments"), **changes: Any) -> ReportFacts:
    windows = 12
    offered, accepted = [1000 * i for i in range(windows)], [min(1000 * i, 6000) for i in range(windows)]
    rejected = [o - a for o, a in zip(offered, accepted, strict=True)]
    sums = _sums(
        offered=sum(offered), accepted=sum(accepted), rejected=sum(rejected), repeats=9000, rejected_again=2000
    )
    sums |= {"repeats_unknown_bytes": 500}
    total = {name: value * len(names) for name, value in sums.items()}
    life = {"gateway": names[0], "boot": "b1", "worker": 0}
    gap = life | {
        "gap": "seq",
        "first_seq": 1,
        "last_seq": 2,
        "missing": 2,
        "after_ms": None,
        "before_ms": START + 9999,
    }
    reasons = [
        ReasonTraffic("rejected", "topic-threshold", sum(rejected), 15, 3, 2000, rejected),
        *(ReasonTraffic("rejected", name or "?", 0, 0, 0, 0, [0] * windows) for name in names[-4:]),
        ReasonTraffic("errored", "NOT_LEADER_OR_FOLLOWER", 10, 1, 1, 0, [10, *[0] * (windows - 1)]),
        ReasonTraffic("delayed", "storage-throttle", 70, 7, 7, 0, [0, 70, *[0] * (windows - 2)]),
        ReasonTraffic("would_reject", "client-quota", sum(rejected), 15, 3, 0, rejected),
    ]
    clients = [UsageGroup((name, name, name), sums) for name in names]
    groups = [*(UsageGroup((name,), sums) for name in names), UsageGroup((), sums, 3)]
    episode = dict.fromkeys(episodes.KINDS, 1) | {"outcome": "open", "start": "", "end": ""}
    refused = [episode | dict.fromkeys((*episodes.WHOSE, "reasons"), name) for name in names]
    level = dict.fromkeys(slo.slo_kinds(AuditQuery(("group",))), 1)
    brokers = [each._replace(names=(str(at),)) if each.names else each for at, each in enumerate(groups)]
    more = ReportBreakdowns(
        groups, brokers, groups, groups, 60_000, [level | {"group": name} for name in names],
        RefusalEpisodes(refused, 99), total | {"offered_bytes": total["offered_bytes"] // 2},
        _integrity(),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "sources": [{"kind": "spool", "name": names[0]}], "first_ms": START, "last_ms": START + 60_000,
        "times": TimeWindows(START, 5000, windows), "cell_ms": 10_000, "totals": total,
        "topics": [TopicTraffic(UsageGroup((name,), sums), offered, accepted, rejected) for name in names],
        "clients": [*clients, UsageGroup((), sums, 3)], "losers": clients, "reasons": reasons,
        "factor": [None, 1.0, 0.5, 0.0, *[1.0] * (windows - 4)],
        "integrity": _integrity(gaps=[gap], gaps_total=1, incomplete=[life | {"state": "lost", "last_seq": None,
                                "end_ms": None}], incomplete_total=1, lost=1),
        "breakdowns": more,
    }  # fmt: skip
    return ReportFacts(**(fields | changes))


class _Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    handle_startendtag = handle_starttag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def _said(html: str) -> str:
    return " ".join(" ".join(_Page(html).text).split())


@pytest.fixture(scope="module")
def html() -> str:
    """The page of _facts()."""
    return page.render_page(_facts())


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_same_facts_give_the_same_bytes_and_no_time_of_its_own(html: str) -> None:
    assert page.render_page(_facts()) == html
    assert "made 2025" not in html
    assert "made 2025-11-20 00:54:00 UTC" in page.render_page(_facts(), START)


def test_every_section_is_there_and_every_picture_has_words(html: str) -> None:
    found = _Page(html)
    assert tuple(each["id"] for each in found.all("section")) == SECTIONS
    images = found.all("img")
    assert len(images) == FIGURES
    for image in images:
        assert len(image["alt"] or "") > 20
        head, _, data = (image["src"] or "").partition(",")
        assert head == "data:image/svg+xml;base64"
        assert ET.fromstring(base64.b64decode(data)).tag == "{http://www.w3.org/2000/svg}svg"
    links = [each for each in found.all("a") if "download" not in each]
    assert {each["href"] for each in links} == {f"#{name}" for name in SECTIONS}
    saved = [each["download"] for each in found.all("a") if "download" in each]
    assert saved == [each.name for each in downloads.make_downloads(_facts())]
    assert all(each.get("scope") in ("col", "row") for each in found.all("th"))


def test_nothing_may_run_or_load(html: str) -> None:
    found = _Page(html)
    policy = next(each["content"] for each in found.all("meta") if each.get("http-equiv") == "Content-Security-Policy")
    style = html[html.index("<style>") + 7 : html.index("</style>")]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert not found.all("script")
    assert not [attributes for _, attributes in found.tags if any(name.startswith("on") for name in attributes)]
    assert not [attributes for _, attributes in found.tags if "style" in attributes]  # the policy would not let them
    assert "url(" not in style
    assert "@import" not in style


def test_names_from_strangers_are_text_and_nothing_else() -> None:
    plain, hostile = _Page(page.render_page(_facts(["a"] * len(HOSTILE)))), _Page(page.render_page(_facts(HOSTILE)))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    words = [image["alt"] or "" for image in hostile.all("img")]
    text = "".join((*hostile.text, *words))
    for name in HOSTILE[:5]:
        assert name in text
    assert "\\u202egnp.exe\\x1b[2J\\x00" in text
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    assert "x" * 200 not in text
    assert "49{%" not in text


def test_rejected_attempts_and_finally_dropped_are_told_apart(html: str) -> None:
    # Of each: rejected 15,000, 9,000 of the offered bytes are repeats, of 500 it is not known.
    said = _said(html)
    assert "Rejected attempts 30.0 kB" in said
    assert "Finally dropped ≤ 12.0 kB" in said
    assert "Between 0 B and 12.0 kB" in said, "there is a gap, in which they may have come again"
    assert "finally dropped, at most 12,000" in said
    assert "Between 11.0 kB and 12.0 kB" in _said(page.render_page(_facts(integrity=_integrity())))
    totals = _sums(offered=30_000, rejected=30_000, repeats=18_000)
    exact = _said(page.render_page(_facts(totals=totals, integrity=_integrity())))
    assert "Finally dropped 12.0 kB" in exact
    assert "Exactly: rejected attempts less" in exact
    seen = _integrity(lives_overlap=True)
    bound = _said(page.render_page(_facts(totals=_sums(rejected=30_000, repeats=18_000), integrity=seen)))
    assert "Between 0 B and 12.0 kB" in bound
    assert "At least 0 B: a worker doesn't recognise what another one rejected." in bound


def test_the_verdict_comes_first_and_says_what_is_missing(html: str) -> None:
    said = _said(html)
    assert said.index("Not complete.") < said.index("In short")
    assert "1 gap in what workers numbered" in said
    assert "1 worker died" in said
    assert "Complete. Every interval" in _said(page.render_page(_facts(integrity=_integrity())))


def test_without_records_it_says_so() -> None:
    nothing = _facts(
        topics=[], clients=[], losers=[], reasons=[], factor=[None] * 12, totals=_sums(), breakdowns=ReportBreakdowns()
    )
    html = page.render_page(nothing)
    assert not _Page(html).all("img")
    assert tuple(each["id"] for each in _Page(html).all("section")) == SECTIONS
    assert "Nothing was sent in this time." in _said(html)
    assert "No usage was recorded, from spool clicks" in _said(html)


def test_it_is_compared_with_the_time_before_and_says_of_tenants_how_long_they_were_within_limits(html: str) -> None:
    said = _said(html)
    assert "Offered 132 kB 66.0 kB +100.0 %" in said
    assert "Accepted 102 kB 102 kB the same" in said
    assert "99 episodes, the 2 that lost most" in said
    assert "clicks 100 % 100 % 100 % 100 % 1 ms 1 ms" in said


def test_the_time_before_has_bounds_and_gaps_of_its_own_and_is_as_long_as_what_there_has_been() -> None:
    refused = [Row(outcome="rejected", reason="fence", repeats=0)]
    lines = [*interval(0, refused), *interval(2, refused, start_ms=START + 20_000, final=True)]
    for now_ms, before in ((START + 25_000, 0), (START + 35_000, 100)):
        read = LocalRecords([LineSource(lines)])
        found = report.gather_facts(read, START + 15_000, START + 86_400_000, 5, 5, now_ms=now_ms)
        assert found.breakdowns.before is not None
        assert (found.totals["rejected_bytes"], found.breakdowns.before["rejected_bytes"]) == (100, before)
    found = report.gather_facts(LocalRecords([LineSource(lines)]), START + 20_000, START + 40_000, 5, 5)
    said = _said(page.render_page(dataclasses.replace(found, sources=[])))
    assert "Compared with as long a time before, of which records are missing" in said
    assert "Finally dropped 100 B ≤ 100 B" in said


def test_the_data_can_be_saved_with_every_name_and_sum() -> None:
    found = {}
    for name, _, address in downloads.make_downloads(_facts(HOSTILE)):
        head, _, data = address.partition(",")
        assert head == "data:text/csv;charset=utf-8;base64"
        text = base64.b64decode(data).decode()
        found[name] = [*csv.DictReader(io.StringIO(text, newline=""))]
    assert [row["group"] for row in found["groups.csv"]] == [*HOSTILE, "(others)"]
    assert [row["accepted_bytes"] for row in found["clients.csv"]] == ["51000"] * (len(HOSTILE) + 1)
    windows = [row for row in found["topics-over-time.csv"] if row["topic"] == ""]
    assert [(row["window_start"][11:], row["offered_bytes"]) for row in windows[:2]] == [
        ("00:54:00Z", "0"), ("00:54:05Z", "1000"),
    ]  # fmt: skip
    assert {"brokers.csv", "gateways.csv", "software.csv", "topics.csv", "episodes.csv"} < found.keys()


def test_one_spike_does_not_flatten_the_others() -> None:
    edges, usual = [0.0, 1.0, 2.0, 3.0, 4.0], np.array([1.0, 2.0, 0.0, 1.0])
    for spike, top in ((7.9, 8), (100.0, 2.8)):
        axes = Figure().subplots()
        axes.set_ylim(0, 8)
        plots._cut_spikes(axes, edges, np.where(usual == 0, spike, usual))
        assert axes.get_ylim() == (0, top)
        assert [each.get_text() for each in axes.texts] == ([] if top == 8 else ["up to 100.0 B/s"])


CHANGE = 1_792_890_000_000  # 2026-10-25T01:00Z: in Berlin, 3:00 becomes 2:00
BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("zone", "ticks"),
    [
        (BERLIN, {"25 Oct": CHANGE - 3 * 3_600_000, "26 Oct": CHANGE + 22 * 3_600_000}),
        ("UTC", {"25 Oct": CHANGE - 3_600_000, "26 Oct": CHANGE + 23 * 3_600_000}),
    ],
)
def test_days_of_an_axis_begin_where_the_zone_s_clocks_say(zone: str, ticks: dict[str, int]) -> None:
    figure = Figure()
    axes = figure.subplots()
    plots._format_time_axis(axes, TimeWindows(CHANGE - 24 * 3_600_000, 3_600_000, 60, zone))
    figure.draw_without_rendering()
    found = {label.get_text(): round(label.get_position()[0] * 86_400_000) for label in axes.get_xticklabels()}
    assert {name: found[name] for name in ticks} == ticks


def test_windows_that_are_no_hours_or_days_of_the_zone_are_said_to_be_utc_s() -> None:
    aligned = " (windows aligned to UTC)"
    for step, zone, said in (
        (86_400_000, "UTC", ""),
        (3_600_000, BERLIN, ""),
        (21_600_000, BERLIN, aligned),
        (3_600_000, "Asia/Kolkata", aligned),
        (900_000, "Asia/Kathmandu", ""),
    ):
        assert page._zone_text(TimeWindows(CHANGE - CHANGE % step, step, 12, zone)) == zone + said
    facts = _facts(times=TimeWindows(CHANGE - CHANGE % 3_600_000, 3_600_000, 12, BERLIN), cell_ms=21_600_000)
    found = re.findall(r"ean rate of each ([\w ]+), (.*?)(?:\.|, on top) ", _said(page.render_page(facts)))
    assert found == [*[("hour", BERLIN)] * 3, ("6 hours", BERLIN + aligned)]
    saved = downloads.make_downloads(facts)[0]
    assert (
        base64.b64decode(saved.address.partition("base64,")[2])
        .splitlines()[1]
        .startswith(b"2026-10-25T02:00:00+01:00,")
    )


def test_a_gap_beside_a_clock_that_was_set_back_is_before_and_after() -> None:
    facts = _facts()
    (gap,) = facts.integrity.gaps
    for after, spans in (
        (None, [(START, START + 9999)]),
        (START + 10_000, [(START, START + 9999), (START + 10_000, facts.last_ms)]),
        (START + 9000, [(START + 9000, START + 9999)]),
    ):
        trust = dataclasses.replace(facts.integrity, gaps=[gap | {"after_ms": after}])
        assert page._gap_spans(dataclasses.replace(facts, integrity=trust)) == spans
        assert ("by a clock that was set back" in tables.integrity_text(trust)) is (len(spans) == 2)


def test_many_topics_and_reasons_are_taken_together() -> None:
    facts = _facts([f"topic-{i}" for i in range(40)])
    reasons = [facts.reasons[0]._replace(reason=f"reason-{i}") for i in range(12)]
    images = _Page(page.render_page(dataclasses.replace(facts, reasons=reasons))).all("img")
    words = "33 other topics: offered 2.18 MB, accepted 77.3 %, busiest 5 seconds 72.6 kB/s"
    assert (images[0]["alt"] or "").endswith(words)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (9994, "9.99 kB"), (9996, "10.0 kB"), (99_960, "100 kB"),
     (1_234_567_890, "1.23 GB"), (5e15, "5.00 PB"), (999_499, "999 kB"), (999_500, "1.00 MB"), (0.03, "< 1 B")],
)  # fmt: skip
def test_sizes_have_three_digits(count: float, text: str) -> None:
    assert page.size_text(count) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 10, "0 %"), (10, 10, "100 %"), (1, 3, "33.3 %"), (1, 10**9, "< 0.1 %"), (10**9 - 1, 10**9, "> 99.9 %"),
     (0, 0, "–")],
)  # fmt: skip
def test_shares_are_never_rounded_to_all_or_nothing(part: int, whole: int, text: str) -> None:
    assert page._share_text(part, whole) == text


@pytest.mark.parametrize(
    ("now", "before", "text"),
    [(10**9, 10**9, "the same"), (10**9 + 1, 10**9, "< +0.1 %"), (10**9 - 1, 10**9, "> -0.1 %"), (3, 2, "+50.0 %"),
     (1, 10**9, "> -100.0 %"), (0, 10**9, "-100.0 %"), (1, 0, "–")],
)  # fmt: skip
def test_changes_are_never_rounded_to_none_or_all(now: int, before: int, text: str) -> None:
    assert page._change_text(now, before) == text


def test_waits_are_never_rounded_to_none() -> None:
    assert [page._lasting_text(ms) for ms in (0, 0.03, 0.7, 999, 12_000_000)] == [
        *("0 s", "< 1 ms", "1 ms", "1 s", "3 h 20 min")
    ]


def test_a_plot_is_drawn_of_any_numbers() -> None:
    times = TimeWindows(START, 5000, 3)
    zero, huge = [0, 0, 0], [2**60, 0, 1]
    pairs = [
        plots.TrafficSeries("a", zero, zero),
        plots.TrafficSeries("b", huge, zero),
        plots.TrafficSeries("c", huge, huge),
    ]
    assert plots.plot_offered_accepted(times, pairs, [(START - 5, START + 7000), (START + 90_000, START + 99_000)])
    assert plots.plot_stacked(times, [plots.AmountSeries(str(i), huge) for i in range(9)])
    assert plots.plot_heat_map(times, [plots.AmountSeries("a", huge), plots.AmountSeries("b", zero)])
    assert plots.plot_heat_map(times, [plots.AmountSeries("a", zero)])
    assert plots.plot_heat_map(times, [plots.AmountSeries("a", zero)], [plots.AmountSeries("a", huge)])
    assert plots.plot_storage(times, [None, 0.0, 1.0], [])
    assert plots.plot_storage(times, [None] * 3, [plots.AmountSeries("a", zero)])


# --- in a browser -----------------------------------------------------------------------------------------------------


def test_a_browser_shows_it_without_a_complaint_or_a_request(tmp_path: Path) -> None:
    html = page.render_page(_facts(HOSTILE))
    dom, console, asked = open_page(html, tmp_path)
    assert (console, asked) == ([], [])
    found = _Page(dom)
    assert tuple(each["id"] for each in found.all("section")) == SECTIONS
    assert len(found.all("img")) == FIGURES
    assert not found.all("script")


def test_the_browser_would_have_told(html: str, tmp_path: Path) -> None:
    beyond = '<img src="http://127.0.0.1:9/x.png"><script>console.log("ran")</script></body>'
    html = html.replace("</body>", beyond)
    (tmp_path / "held").mkdir()
    _, console, asked = open_page(html, tmp_path / "held")
    assert asked == []
    assert len(console) == 2
    assert all("Content Security Policy" in line for line in console)
    (tmp_path / "free").mkdir()
    _, console, asked = open_page(
        re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", html), tmp_path / "free"
    )
    assert asked == ["http://127.0.0.1:9/x.png"]
    assert any('"ran"' in line for line in console)


# --- from records -----------------------------------------------------------------------------------------------------


def test_it_says_of_records_what_they_hold(records: Callable[[Sequence[str | None]], CountedRecords]) -> None:
    chance = random.Random(3)
    lines: list[str] = []
    for seq in range(200):
        rows = [
            Row(
                topic=f"topic-{chance.randrange(6)}",
                client_id=f"client-{chance.randrange(9)}",
                outcome=outcome,
                reason="topic-threshold" if outcome == "rejected" else "",
                bytes=chance.randrange(1, 1000),
                repeats=chance.choice((None, 0)),
            )
            for outcome in chance.choices(("accepted", "rejected"), (3, 1), k=4)
        ]
        lines += interval(seq, rows, storage_factor=None if seq < 10 else 0.25 if seq == 17 else 1.0)
    before = interval(200, [Row(bytes=77)], start_ms=START - 50_000)
    read = records([*lines, *before, *interval(201, (), final=True)])
    found = report.gather_facts(read, START, None, 3, 4)

    by_topic, by_client = (
        {key[0]: sums for key, sums in truth(lines, (name,)).items()} for name in ("topic", "client_id")
    )
    best = sorted(by_topic, key=lambda name: -by_topic[name][0])
    assert [each.group.names for each in found.topics] == [*((name,) for name in best[:3]), ()]
    assert found.topics[3].group.members == 3
    for each, names in zip(found.topics, [best[:1], best[1:2], best[2:3], best[3:]], strict=True):
        whole = [sum(amounts) for amounts in zip(*(by_topic[name] for name in names), strict=True)]
        assert [sum(each.offered), sum(each.accepted), sum(each.rejected)] == whole[:3]
        assert [each.group.sums[f"{name}_bytes"] for name in ("offered", "accepted", "rejected")] == whole[:3]
    per_window = {key: sums[0] for (key,), sums in truth(lines, (), found.times.step_ms).items()}
    grid = range(found.times.start_ms, found.times.start_ms + found.times.windows * found.times.step_ms, 5000)
    assert [sum(each.offered[i] for each in found.topics) for i in range(found.times.windows)] == [
        per_window.get(start, 0) for start in grid
    ]
    busiest = sorted(by_client, key=lambda name: -by_client[name][0])[:4]
    assert [each.names[1] for each in found.clients if each.names] == busiest
    assert found.clients[-1].members == 5
    assert [(each.outcome, each.reason, each.bytes) for each in found.reasons] == [
        ("accepted", "", found.totals["accepted_bytes"]),
        ("rejected", "topic-threshold", found.totals["rejected_bytes"]),
    ]
    assert found.factor[:4] == [None, None, 1.0, 0.25]
    assert set(found.factor[4:]) == {1.0, None}  # the last interval, which says nothing, has a window of its own
    assert found.integrity.complete
    assert (found.first_ms, found.last_ms) == (START, START + 202_000)
    more = found.breakdowns
    assert more.before is not None
    assert more.before["offered_bytes"] == 77
    assert [each.sums for each in (*more.groups, *more.brokers, *more.gateways)] == [found.totals] * 3
    assert more.episodes.total == sum(sums[2] > 0 for sums in truth(lines, ("client_id", "topic")).values())
    assert [(each["group"], each["steps"]) for each in more.levels] == [("", 4)]


@pytest.mark.full  # answers of tables: batch/rollups/test_rollups.py; Spark's reports, and those of tables: local/
def test_tables_say_the_same(spark: SparkSession, tmp_path: Path) -> None:
    from gateway.audit import store
    from gateway.audit.batch import job
    from gateway.audit.batch.rollups import update
    from gateway.audit.local.tables import LocalTables
    from gateway.audit.stream import stream

    lines = [
        *interval(0, [Row(), Row(outcome="rejected", reason="fence", repeats=20)], storage_factor=1.0),
        *interval(2, [Row(topic="payments")], storage_factor=0.5),
        *interval(3, (), final=True),
    ]
    direct = report.gather_facts(LocalRecords([LineSource(lines)]), None, None, 5, 5)
    tables = store.open_tables(spark, str(tmp_path / "tables"), make=True)
    batch = topic_batch(spark, [(0, offset, line) for offset, line in enumerate(lines)])
    stream.add_batch(store.TableWriter(tables), batch, "id")
    update.update_rollups(tables)
    with job.read_tables(tables) as read:
        found = report.gather_facts(read, None, None, 5, 5)
    assert report.gather_facts(LocalTables(str(tmp_path / "tables")), None, None, 5, 5) == found
    assert dataclasses.replace(found, sources=direct.sources) == direct
    assert found.factor == [0.5]
    assert found.integrity.gaps_total == 1


@pytest.mark.parametrize("span_ms", [0, 60_000, 3_600_000, 86_400_000, 30 * 86_400_000, 5 * 365 * 86_400_000])
def test_windows_hold_the_whole_time_and_columns_are_made_of_them(span_ms: int) -> None:
    first = START + 123
    times, cell_ms = report.choose_windows(first, first + span_ms)
    assert times.start_ms <= first < times.start_ms + times.step_ms
    last = times.start_ms + (times.windows - 1) * times.step_ms
    assert last <= first + span_ms < last + times.step_ms
    assert cell_ms % times.step_ms == 0
    assert times.windows <= 400


def test_columns_of_the_heat_map_begin_at_whole_hours() -> None:
    facts = _facts(times=TimeWindows(START - START % 3_600_000 + 3_000_000, 300_000, 3), cell_ms=3_600_000)
    assert page._heat_columns(facts) == TimeWindows(START - START % 3_600_000, 3_600_000, 2)
    assert page._widen_windows(facts, [1, 10, 100]) == [11, 100]


def test_no_reader_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    with path.open() as reader:  # has begun to read
        with files.replace_file(path) as file:
            file.write(b"after")
        assert reader.read() == "before"
    assert path.read_text(encoding="utf-8") == "after"
    with pytest.raises(ZeroDivisionError), files.replace_file(path) as file:
        file.write(b"%d" % (1 // 0))
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_pipe_is_written_and_a_link_leads_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link.html", tmp_path / "target.html"
    os.mkfifo(pipe)
    link.symlink_to(target)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for place in (pipe, link):
        with files.replace_file(place) as file:
            file.write(b"said")
    assert os.read(reader, 100) == b"said"
    os.close(reader)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert target.read_text("utf-8") == "said"


def test_an_open_file_is_written_behind_what_is_in_it(tmp_path: Path) -> None:
    """A script's log, say, as which --output /dev/stdout would else be replaced."""
    with (tmp_path / "log").open("w+b") as log:
        log.write(b"before ")
        log.flush()
        with files.replace_file(Path(f"/dev/fd/{log.fileno()}")) as file:
            file.write(b"said ")
        log.write(b"after")
        log.seek(0)
        assert log.read() == b"before said after"
        assert os.path.samestat(os.fstat(log.fileno()), (tmp_path / "log").stat())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "the following arguments are required: --output"),
        (("--output", "x.html"), "nothing to read"),
        (("--spool", "x", "--output", "."), "--output: . is a folder: give the path of a file"),
        (("--spool", "x", "--output", "/nowhere/x.html"), "--output: /nowhere/x.html: there is no folder /nowhere"),
        (("--spool", "x", "--output", "x.html", "--topics", "0"), "--topics: 0 is not a valid number of rows"),
    ],
)
def test_wrong_options(args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]


def test_the_command_tells_times_in_a_zone_whose_clocks_change(tmp_path: Path) -> None:
    refused = [Row(outcome="rejected", reason="fence", repeats=0)]
    starts = [CHANGE - 5_400_000, CHANGE - 1_800_000, CHANGE + 1_800_000, CHANGE + 5_400_000]
    lines = [line for seq, start in enumerate(starts) for line in interval(2 * seq, refused, start_ms=start)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))

    def report(*args: str) -> tuple[str, str, list[list[str]]]:
        """What it says, its episodes' table, and their file."""
        output = tmp_path / "report.html"
        assert cli.main(["report", "--spool", str(tmp_path), "--output", str(output), "--quiet", *args]) == 0
        html = output.read_text(encoding="utf-8")
        (link,) = (each for each in _Page(html).all("a") if each.get("download") == "episodes.csv")
        text = base64.b64decode((link["href"] or "").partition("base64,")[2]).decode()
        section = html[html.index('id="episodes"') : html.index('id="storage"')]
        return _said(html), section, [*csv.reader(io.StringIO(text))][1:]

    said, section, saved = report("--from", "2026-10-25T00:00", "--to", "2026-10-25T03:00")
    assert said.startswith("Produce audit, 2026-10-25 00:30:00 to 2026-10-25 02:30:01 UTC")
    assert re.findall(r"<td>(2026[^<]*)", section) == [
        "2026-10-25 00:30:00",
        "2026-10-25 01:30:00",
        "2026-10-25 02:30:00",
    ]
    assert [row[1] for row in saved] == ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"]
    assert report("--from", "2026-10-25T00:00", "--to", "2026-10-25T03:00", "--time-zone", "UTC")[0] == said
    there, section, kept = report("--from", "2026-10-25T02:00", "--to", "2026-10-25T04:00", "--time-zone", BERLIN)
    # Where the clocks show a time twice, with the offset.
    assert there.startswith(f"Produce audit, 2026-10-25 02:30:00+02:00 to 2026-10-25 03:30:01 {BERLIN}")
    times = ["2026-10-25 02:30:00+02:00", "2026-10-25 02:30:00+01:00", "2026-10-25 03:30:00"]
    assert re.findall(r"<td>(2026[^<]*)", section) == times
    assert [row[1] for row in kept] == [
        "2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:30:00+01:00",
    ]  # fmt: skip
    assert [[row[0], *row[4:]] for row in kept] == [[row[0], *row[4:]] for row in saved]
    assert "UTC" not in there
    assert f"Times are exact to the minute, {BERLIN}." in there


def test_the_command_writes_the_file_and_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = [
        *interval(0, [Row(topic=HOSTILE[0], repeats=0)]),
        *interval(2, [Row(outcome="rejected", reason="fence", repeats=0)]),
    ]
    (tmp_path / "usage-00000001-aa.jsonl").write_text("\n".join(lines) + "\n")
    output = tmp_path / "report.html"
    assert cli.main(["report", "--spool", str(tmp_path), "--output", str(output), "--strict"]) == 3
    out, _ = capsys.readouterr()
    assert out == f"{output}: {output.stat().st_size:,} bytes, NOT COMPLETE, it names the gaps\n"
    said = _said(output.read_text(encoding="utf-8"))
    assert "intervals 1 to 1 (1)" in said
    assert "Finally dropped ≤ 100 B" in said
    assert HOSTILE[0] in said
