# The questions, asked of both engines and of the command; what a service level is.

from __future__ import annotations

import base64
import csv
import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.audit import cli
from gateway.audit.answers.windows import QUARTER_HOUR_MS, CalendarWindows
from gateway.audit.batch.query import AuditQuery, stream_report
from gateway.audit.questions import cost, episodes, slo
from gateway.audit.questions.prices import parse_prices
from tests.audit.records import START, Row, interval

if TYPE_CHECKING:
    from gateway.audit.batch.query import CountedRecords

DAYS = AuditQuery(("group",), QUARTER_HOUR_MS, calendar=CalendarWindows("day", "Europe/Berlin"))
PRICES = "currency: EUR\ncharged: offered\nprices: [{per_gb: 1000000, topic: clicks}]"


def _lines() -> list[str]:
    """Three minutes of two tenants: one is refused and then let in, waits in the third; the other isn't. A day later
    by Berlin's clock, both go on.
    """
    busy = {"group": "web", "client_id": "busy"}
    calm = Row(group="batch", topic="logs", repeats=0)
    minutes = [
        [Row(**busy, outcome="rejected", reason="client-quota", repeats=0), calm],  # type: ignore[arg-type]
        [Row(**busy, repeats=100), calm],  # type: ignore[arg-type]
        [
            Row(**busy, repeats=0, requests=9, delay_ms=300),  # type: ignore[arg-type]
            Row(**busy, outcome="delayed", reason="client-quota", requests=3),  # type: ignore[arg-type]
        ],
    ]
    lines = [line for at, rows in enumerate(minutes) for line in interval(at, rows, start_ms=START + 60_000 * at)]
    return lines + interval(3, [Row(**busy, repeats=0), calm], start_ms=START + 86_400_000, final=True)  # type: ignore[arg-type]


def test_either_engine_answers(records: Callable[[Sequence[str | None]], CountedRecords]) -> None:
    found, prices = records(_lines()), parse_prices(PRICES, is_csv=False)

    def ask(question: AuditQuery) -> list[dict[str, Any]]:
        with stream_report(found, question) as report:
            assert report.integrity.complete
            return [*report.rows]

    lines = cost.make_lines(ask(cost.cost_question(DAYS, prices)), DAYS, prices)
    assert [(line["window_start"], line["group"], line["bytes"], line["amount"]) for line in lines] == [
        ("2025-11-20T00:00:00+01:00", "batch", 200, Decimal("0.00")),
        ("2025-11-20T00:00:00+01:00", "web", 300, Decimal("0.30")),
        ("2025-11-21T00:00:00+01:00", "batch", 100, Decimal("0.00")),
        ("2025-11-21T00:00:00+01:00", "web", 100, Decimal("0.10")),
    ]
    (episode,) = episodes.find_episodes(ask(AuditQuery(episodes.BY, 60_000)), 60_000)
    assert (episode["client_id"], episode["outcome"], episode["until_accepted_ms"]) == ("busy", "accepted", 120_000)
    levels = slo.measure_levels(ask(AuditQuery(("group",), 60_000)), DAYS, Fraction(1, 2))
    assert [*levels[0]] == [*slo.slo_kinds(DAYS)]
    first = levels[1]
    assert (first["group"], first["steps"], first["within_limits_share"], first["target_met"]) == (
        "web",
        3,
        1 / 3,
        False,
    )
    assert (first["without_rejection_share"], first["accepted_share"]) == (2 / 3, 2 / 3)
    assert (first["requests"], first["delayed_requests"], first["mean_wait_ms"]) == (11, 3, 100)
    assert first["p99_wait_at_most_ms"] == pytest.approx(300 * 100 / 11)
    assert [each["target_met"] for each in levels] == [True, False, True, True]


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "usage-00000001-aa.jsonl").write_text("\n".join(_lines()) + "\n")
    (tmp_path / "prices.yaml").write_text(PRICES)
    source = ("--spool", str(tmp_path), "--quiet")
    assert cli.main(["cost", *source, "--prices", str(tmp_path / "prices.yaml")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["window", "group", "currency", "bytes", "amount", "unpriced", "bytes"]
    assert said[3].split() == ["2025-11-01T00:00:00Z", "web", "EUR", "400", "0.40", "0"]
    assert said[4:6] == [
        "total 0.40 EUR for 700 offered bytes",
        f"UNPRICED  300 bytes match no price of {tmp_path}/prices.yaml",
    ]
    assert said[-1] == "complete"
    where = ("--spool", str(tmp_path), "--prices", str(tmp_path / "prices.yaml"))
    assert cli.main(["cost", *where, "--output", str(tmp_path / "invoice.csv")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [f"{tmp_path}/invoice.csv: 2 rows", *said[4:6], *said[7:]]
    assert cli.main(["cost", *where, "-o", "csv"]) == 0
    found = capsys.readouterr()
    assert found.out == (tmp_path / "invoice.csv").read_text()
    assert found.err.splitlines()[-len(told) + 1 :] == told[1:]
    assert cli.main(["slo", *source, "-o", "json", "--by", "group,topic", "--target", "99"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["by"], answer["step_ms"], answer["integrity"]["complete"]) == (["group", "topic"], 60_000, True)
    assert [row["target_met"] for row in answer["rows"]] == [True, False]
    assert cli.main(["trend", *source, "--what", "offered", "--from", "2025-11-20"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[2].split() == ["2025-11-20T00:00:00Z", "seen", "–", "500", "–"]
    assert said[3] == "no forecast: it takes 8 whole days"
    assert cli.main(["episodes", *source, "--output", str(tmp_path / "x.csv")]) == 0
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 2


def test_an_episode_may_have_lost_less_than_it_is_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = interval(
        0, [Row(outcome="discarded", repeats=0), Row(client_id="b", outcome="dropped", reason="acks0-limit")]
    )
    (tmp_path / "a.jsonl").write_text("\n".join([*lost, *interval(1, (), final=True)]))
    assert cli.main(["episodes", "--spool", str(tmp_path), "--quiet"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[-3:-1] for line in said[2:4]] == [["≤100", "0"], ["100", "100"]]
    assert said[4].startswith("≤ at most: ")
    assert cli.main(["report", "--spool", str(tmp_path), "--output", str(tmp_path / "r.html"), "--quiet"]) == 0
    told = re.findall("<td>(some[^<]* again)</td>", (tmp_path / "r.html").read_text())
    assert sorted(told) == ["some may never have come again", "some never came again"]


def test_episodes_are_told_in_a_time_zone_whose_clocks_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = 1_792_890_000_000  # 2026-10-25T01:00Z: in Berlin, 3:00 becomes 2:00
    refused = [Row(outcome="rejected", reason="fence", repeats=0)]
    hours = [change - 5_400_000, change - 1_800_000, change + 1_800_000]
    lines = [
        line for seq, start in zip((0, 1, 3), hours, strict=True) for line in interval(seq, refused, start_ms=start)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))

    def ask(*args: str) -> str:
        assert cli.main(["episodes", "--spool", str(tmp_path), "--quiet", *args]) == 0
        return capsys.readouterr().out

    found = {}
    for zone, bound, said in (
        ((), "2026-10-25T00:00", ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"]),
        (
            ("--time-zone", "Europe/Berlin"),
            "2026-10-25T02:00",
            ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"],
        ),
    ):
        asked = (*zone, "--from", bound)
        table = ask(*asked)
        assert [line.split()[0] for line in table.splitlines()[2:4]] == said
        assert f"between {said[0].replace(':30:00', ':30:01')} and {said[1]}" in table
        found[zone] = json.loads(ask(*asked, "-o", "json"))
        assert [row["start"] for row in found[zone]["rows"]] == said
        assert ask(*asked, "-o", "csv").splitlines()[1].split(",")[:2] == [str(hours[1]), said[0]]
    here, there = found.values()
    told = ("start", "end")
    assert [{**row, **dict.fromkeys(told)} for row in here["rows"]] == [
        {**row, **dict.fromkeys(told)} for row in there["rows"]
    ]
    assert {**here, "rows": []} == {**there, "rows": []}


def test_a_target_that_is_met_to_the_last_step_is_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = Row(outcome="rejected", reason="fence")
    lines = [
        line
        for at in range(1000)
        for line in interval(at, [Row() if at else refused], start_ms=START + 1000 * at, final=at == 999)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    for target, is_met in (("99.9", True), ("99.90001", False)):
        args = ["slo", "--spool", str(tmp_path), "--step", "1s", "--target", target, "-o", "ndjson", "--quiet"]
        assert cli.main(args) == 0
        row = json.loads(capsys.readouterr().out)
        assert (row["within_limits_share"], row["target_met"]) == (0.999, is_met)


def test_brokers_and_workers_are_numbers_as_in_the_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = interval(0, [Row(broker=broker) for broker in (-1, 1, 2, 10, 1001)], final=True)
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "prices.csv").write_text("per_gb,currency\n0.01,EUR\n")

    def ask(command: str, *args: str) -> str:
        asked = [*command.split(), "--spool", str(tmp_path), "--by", "broker,worker", "--quiet", *args]
        assert cli.main(asked) == 0
        return capsys.readouterr().out

    days = "--from 2025-11-20 --to 2025-11-21"
    for command in ("", "slo", f"cost --prices {tmp_path / 'prices.csv'}", f"trend {days}"):
        rows = [json.loads(line) for line in ask(command, "-o", "ndjson").splitlines()]
        assert [(row["broker"], row["worker"]) for row in rows] == [(each, 0) for each in (-1, 1, 2, 10, 1001)]
        told = [*csv.DictReader(ask(command, "-o", "csv").splitlines())]
        assert [row["broker"] for row in told] == ["-1", "1", "2", "10", "1001"]
    table = ask("slo").splitlines()
    assert [line[:14] for line in (table[0], table[2], table[6])] == [
        "broker  worker",
        "-1      0     ",
        "1001    0     ",
    ]
    assert cli.main(["report", "--spool", str(tmp_path), "--output", str(tmp_path / "r.html"), "--quiet"]) == 0
    (text,) = re.findall(r'download="brokers.csv" href="[^,]*,([^"]*)"', (tmp_path / "r.html").read_text())
    assert {line.split(",")[0] for line in base64.b64decode(text).decode().splitlines()[1:]} == {
        *("-1", "1", "2", "10", "1001")
    }


def test_the_table_rounds_nothing_to_none_or_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        Row(bytes=10**9, delay_ms=1, repeats=0),
        Row(outcome="rejected", reason="fence", bytes=1, requests=99, repeats=0),
        Row(outcome="delayed", reason="client-quota", requests=50),
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(interval(0, rows, final=True)))
    assert cli.main(["slo", "--spool", str(tmp_path), "--quiet"]) == 0
    head, _, said = capsys.readouterr().out.splitlines()[:3]
    assert re.split(r" {2,}", said) == [
        *("(none)", "1", "0.000 %", "0.000 %", "> 99.999 %", "–", "100", "50", "<0.1", "<0.1", "1.0")
    ], head
    (tmp_path / "prices.csv").write_text("per_gb,currency\n0.01,EUR\n")
    assert cli.main(["cost", "--spool", str(tmp_path), "--quiet", "--prices", str(tmp_path / "prices.csv")]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == [
        *("2025-11-01T00:00:00Z", "(none)", "EUR", "1,000,000,000", "0.01", "0")
    ]


def test_a_window_that_goes_on_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(_lines()))
    monkeypatch.setattr(cli, "now_ms", lambda: START + 86_400_000 + 5000)
    days = []
    for end in ("2025-11-21", "2025-11-22", "2026-01-01"):
        args = ["trend", "--spool", str(tmp_path), "--from", "2025-11-20", "--to", end, "-o", "ndjson", "--quiet"]
        assert cli.main(args) == 0
        days.append([json.loads(line)["window_start"][:10] for line in capsys.readouterr().out.splitlines()])
    assert days == [["2025-11-20"]] * 3


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("cost", "--prices", "/nowhere"), "--prices: /nowhere: No such file or directory"),
        (("slo", "--step", "20m"), "--step: 20m is more than 15m"),
        (("slo", "--step", "1h", "--window", "1d"), "--step: 1h is more than 15m"),
        (("slo", "--step", "7m"), "--step: 7m has to divide 15m"),
        (("slo", "--step", "1m", "--window", "90s"), "--step: 1m has to divide --window"),
        (("slo", "--target", "101"), "--target: 101 is not a share between 0 and 100 percent"),
        (("slo", "--target", "1/0"), "--target: 1/0 is not a share between 0 and 100 percent"),
        (("slo", "--target", "nan"), "--target: nan is not a share between 0 and 100 percent"),
        (("trend", "--window", "hour"), "argument --window: invalid choice: 'hour'"),
        (("trend", "--ahead", "-1"), "--ahead: -1 is not between 0 and 1000 windows"),
        (("episodes", "--step", "x"), "--step: 'x' is not a valid duration"),
    ],
)
def test_wrong_options(args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*args, "--spool", "x"]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_form_that_a_file_does_not_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(_lines()))
    place = str(tmp_path / "x.csv")
    for command in ((), ("top",), ("slo",)):
        args = [*command, "--spool", str(tmp_path), "--quiet", "--output", place]
        assert cli.main([*args, "-o", "json"]) == 2
        said = f"produce-gateway audit: -o json: --output {place} says itself in which format rows go there\n"
        assert capsys.readouterr() == ("", said)
        assert cli.main([*args, "-o", "csv"]) == 0
        capsys.readouterr()
