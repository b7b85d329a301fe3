# Answers in files and tables: what is in them, and what is left when they can't be written.

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
import yaml
from pyarrow import parquet

from gateway.audit import cli
from gateway.audit.answers import files
from gateway.audit.answers.answer import AuditAnswer, dump_json, render_answer
from gateway.audit.batch.query import ignore_progress
from gateway.audit.errors import AuditError
from gateway.audit.tables import table_version
from tests.audit.records import Row, interval

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS: dict[str, type] = {"topic": str, "bytes": int, "share": float, "is_bound": bool, "price": Decimal}
ROWS: list[dict[str, Any]] = [
    {
        "topic": 'q"u,o\nte\u2028\U0001f389',
        "bytes": 2**60,
        "share": 0.1,
        "is_bound": True,
        "price": Decimal("0.1"),
    },
    {"topic": "", "bytes": 0, "share": None, "is_bound": False, "price": Decimal("12.000001")},
]


def _answer(rows: Iterable[dict[str, Any]]) -> AuditAnswer:
    return AuditAnswer(
        rows=rows, kinds=KINDS, is_complete=True, findings="complete", make_head=lambda: {"version": 1, "by": []},
        make_tail=lambda: {"integrity": {"complete": True}}, make_lines=lambda: ["topic  bytes"],
    )  # fmt: skip


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS])
def test_json_and_yaml_are_as_if_they_had_been_made_at_once(rows: list[dict[str, Any]]) -> None:
    whole = {"version": 1, "by": [], "rows": rows, "integrity": {"complete": True}}
    text = "\n".join(render_answer(_answer(rows), "json"))
    assert text == dump_json(whole)
    assert yaml.safe_load("\n".join(render_answer(_answer(rows), "yaml"))) == json.loads(text)


def test_files_have_every_value(tmp_path: Path) -> None:
    for suffix in files.FILE_SUFFIXES:
        assert files.write_answer(_answer(ROWS), str(tmp_path / f"x{suffix}"), ignore_progress) == 2
    assert parquet.read_table(tmp_path / "x.parquet").to_pylist() == ROWS
    lines = (tmp_path / "x.ndjson").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{**row, "price": str(row["price"])} for row in ROWS]
    with (tmp_path / "x.csv").open(newline="") as file:
        found = [*csv.reader(file)]
    assert found[0] == list(KINDS)
    assert found[1:] == [
        [ROWS[0]["topic"], str(2**60), "0.1", "true", "0.1"], ["", "0", "", "false", "12.000001"],
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", files.FILE_SUFFIXES)
def test_a_long_export_says_how_far_it_is(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    place = str(tmp_path / f"x{suffix}")
    monkeypatch.setattr(files, "PROGRESS_INTERVAL_S", 0.0)
    files.write_answer(_answer(ROWS), place, told.append)
    assert told == [f"writing {place}", "… 0 rows", "… 1 rows"]
    monkeypatch.undo()
    files.write_answer(_answer(ROWS), place, told.append)
    assert told[3:] == [f"writing {place}"]


def test_a_client_s_name_is_no_formula_in_a_spreadsheet() -> None:
    names = ["=1+1", "+1", "-1", "@a", "\t=1", "\n=1", "\uff1d1", "a=1", "'x"]
    lines = [*render_answer(_answer([{**ROWS[1], "topic": name, "bytes": -1} for name in names]), "csv")]
    cells = [row[:2] for row in csv.reader(io.StringIO("\n".join(lines[1:]), newline=""))]
    assert cells == [[name, "-1"] for name in ["'=1+1", "'+1", "'-1", "'@a", "'\t=1", "'\n=1", "'\uff1d1", "a=1", "'x"]]


def test_a_client_s_name_begins_no_line_of_its_own() -> None:
    names = ["a\nb", "a\rb", "a\r\nb", "a\n=1", '"\n"']
    text = "\n".join(render_answer(_answer([{**ROWS[1], "topic": name} for name in names]), "csv"))
    assert [row[0] for row in csv.reader(io.StringIO(text, newline=""))] == ["topic", *names]


def test_a_sum_that_parquet_has_no_room_for_is_said(tmp_path: Path) -> None:
    large = _answer([ROWS[0] | {"bytes": 2**63}])
    with pytest.raises(AuditError, match=r"have 64 bits for a sum, and one is beyond: write .csv or .ndjson"):
        files.write_answer(large, str(tmp_path / "x.parquet"), ignore_progress)
    assert not [*tmp_path.iterdir()]
    assert files.write_answer(large, str(tmp_path / "x.csv"), ignore_progress) == 1


def test_a_file_that_fails_halfway_leaves_the_one_before(tmp_path: Path) -> None:
    class BrokenRows(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield ROWS[0]
            raise ZeroDivisionError

    for suffix in files.FILE_SUFFIXES:
        path = tmp_path / f"x{suffix}"
        path.write_text("before")
        with pytest.raises(ZeroDivisionError):
            files.write_answer(_answer(BrokenRows()), str(path), ignore_progress)
        assert path.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == len(files.FILE_SUFFIXES)


def test_a_table_that_fails_halfway_is_the_one_before(tmp_path: Path) -> None:
    def broken_rows() -> Iterator[Any]:
        yield ROWS[0]
        raise ZeroDivisionError

    place = tmp_path / "sums"
    with pytest.raises(ZeroDivisionError):
        files.write_answer(_answer(broken_rows()), str(place), ignore_progress)
    assert not [*place.iterdir()]
    assert files.write_answer(_answer(ROWS), str(place), ignore_progress) == len(ROWS)
    with pytest.raises(ZeroDivisionError):
        files.write_answer(_answer(broken_rows()), str(place), ignore_progress)
    assert deltalake.DeltaTable(place).count() == len(ROWS)
    assert len([*place.glob("*.parquet")]) == 1


def test_a_table_keeps_its_file_if_the_export_is_interrupted_behind_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = table_version.replace_rows

    def commit_and_interrupt(*args: Any) -> None:
        commit(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(table_version, "replace_rows", commit_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write_answer(_answer(ROWS), str(tmp_path / "sums"), ignore_progress)
    (file,) = deltalake.DeltaTable(tmp_path / "sums").file_uris()
    assert parquet.read_table(file).num_rows == len(ROWS)


@pytest.mark.parametrize("place", ["x.json", "nowhere/x.csv"])
def test_wrong_places_are_said(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--spool", "x", "--output", place]) == 2
    assert "argument --output:" in capsys.readouterr().err


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    lines = [line for seq in range(3) for line in interval(seq, [Row(topic=f"t{seq}", bytes=seq)], final=seq == 2)]
    (tmp_path / "usage-00000001-aa.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_command_writes_a_delta_table_and_replaces_no_other_one(
    spark: SparkSession, command: Callable[..., int], spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = spool / "sums"
    for engine in ("spark", "local"):
        assert command("--spool", spool, "--by", "topic", "--output", place, "--quiet", "--engine", engine) == 0
    out, _ = capsys.readouterr()
    assert out.splitlines()[0] == f"{place}: 3 rows"
    assert out.splitlines()[-1] == "complete"
    found = spark.read.format("delta").load(str(place)).orderBy("topic").collect()
    assert [(row["topic"], row["accepted_bytes"]) for row in found] == [("t0", 0), ("t1", 1), ("t2", 2)]
    assert command("--spool", spool, "--by", "client_id", "--output", place, "--quiet") == 1
    assert "has a table with other columns" in capsys.readouterr().err
    assert spark.read.format("delta").load(str(place)).count() == 3


def test_the_local_engine_writes_files(spool: Path) -> None:
    assert cli.main(["--spool", str(spool), "--output", str(spool / "x.ndjson"), "--quiet"]) == 0
    assert [json.loads(line)["topic"] for line in (spool / "x.ndjson").read_text().splitlines()] == ["t0", "t1", "t2"]
    assert cli.main(["--spool", str(spool / "*.jsonl"), "--output", str(spool / ".csv"), "--quiet"]) == 0
    assert (spool / ".csv").read_text().startswith("topic,")
