# The command: options and their errors, exit codes, what goes to stdout and stderr, and where its classes come from.

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.audit import class_data, cli
from gateway.audit.answers.windows import CalendarWindows
from gateway.audit.batch.query import AuditQuery
from gateway.audit.engines import ENGINES
from gateway.audit.errors import AuditError
from gateway.audit.local import opening
from gateway.audit.reconcile.reconcile import LogSnapshot, dump_snapshot
from gateway.audit.spark import spark_session
from gateway.embedded import find_free_port, jars
from tests.audit.records import START, Row, chained, interval

NOW = START + 86_400_000


def _command(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.audit", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=os.environ | env)


def _checked(*args: str) -> tuple[AuditQuery, cli.SourceOptions]:
    return cli._check_options(cli._make_parser().parse_args(["--spool", "x", *args]), NOW)


@pytest.mark.parametrize(
    ("args", "question"),
    [
        ((), (("topic",), None, None, None)),
        (("--by", ""), ((), None, None, None)),
        (("--by", "topic, client-id,topic", "--window", "5m"), (("topic", "client_id"), 300_000, None, None)),
        (("--window", "1d"), (("topic",), 86_400_000, None, None)),
        (("--from", "2025-11-20T00:54Z", "--to", "1h"), (("topic",), None, START, NOW - 3_600_000)),
        (("--from", "2025-11-20T01:54:00+01:00"), (("topic",), None, START, None)),
        (("--from", "2025-11-20T00:54"), (("topic",), None, START, None)),
        (("--from", "2025-11-20T00:54:00.001Z"), (("topic",), None, START + 1, None)),
        (("--from", "1000000d", "--to", "9999-12-31T23:59-12:00"), (("topic",), None, 0, 32_503_680_000_000)),
        (("--window", "month"), (("topic",), 900_000, None, None, CalendarWindows("month"))),
        (
            ("--window", "day", "--time-zone", "Europe/Berlin", "--from", "2025-11-20T01:54"),
            (("topic",), 900_000, START, None, CalendarWindows("day", "Europe/Berlin")),
        ),
        (
            ("--time-zone", "Europe/Berlin", "--from", "2025-11-20T01:54"),
            (("topic",), None, START, None, None, None, (), "Europe/Berlin"),
        ),
    ],
)
def test_questions(args: tuple[str, ...], question: tuple[object, ...]) -> None:
    found, _ = _checked(*args)
    assert found == AuditQuery(*question)  # type: ignore[arg-type]


def test_what_is_written_to_standard_output_is_alone_there(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(interval(0, final=True)))
    (tmp_path / "out.csv").symlink_to("/dev/stdout")
    for args, end in (
        (("--output", str(tmp_path / "out.csv")), ",0,0,false"),
        (("report", "--output", "/dev/stdout"), "</html>"),
    ):
        ran = _command(*args, "--spool", str(tmp_path), "--quiet")
        assert ran.returncode == 0
        assert ran.stdout.rstrip().endswith(end)
        assert ran.stderr.rstrip().endswith("complete")
    ran = _command("--output", "/dev/stdout", "--spool", str(tmp_path))
    assert ran.returncode == 2
    assert "/dev/stdout is no directory: the name of a file ends with" in ran.stderr


def test_properties_come_from_a_file_and_from_options_with_or_without_the_prefix(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        '# ours\nsecurity.protocol=SASL_SSL\n\nsasl.jaas.config=a b="c";\nssl.key.password = x\n'
        "client.id: \\\n  caf\\u00e9\n"
    )
    _, reading = _checked(
        *("--bootstrap-servers", "x:1", "--command-config", str(path), "--property", "kafka.security.protocol=SSL"),
        *("--conf", "spark.driver.memory=2g"),
    )
    assert reading.properties == {
        "security.protocol": "SSL", "sasl.jaas.config": 'a b="c";', "ssl.key.password": "x", "client.id": "café",
    }  # fmt: skip
    assert reading.conf == {"spark.driver.memory": "2g"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "nothing to read: give --bootstrap-servers, or --spool, or both, or --tables"),
        (("--spool", "x", "--by", "topic,user"), "--by: 'user' is not one of broker, topic, principal"),
        (("--spool", "x", "--measure", "litres"), "--measure: 'litres' is not one of bytes, messages, requests"),
        (("--spool", "x", "--window", "0m"), "--window: '0m' is not a valid duration; for example"),
        (("--spool", "x", "--window", "minute"), "--window: 'minute' is not a valid duration; for example"),
        (("--spool", "x", "--window", "minute"), "30s, 1m, 1h or 1d, or one of hour, day, week, month, quarter, year"),
        (("--spool", "x", "--time-zone", "Berlin"), "--time-zone: 'Berlin' is not a time zone that this system knows"),
        (("--spool", "x", "--window", "1d", "--time-zone", "Europe/Berlin"), "--time-zone: windows of 1d are in UTC"),
        (("--spool", "x", "--from", "noon"), "--from: 'noon' is neither a time such as"),
        (("--spool", "x", "--from", "2025-01-02", "--to", "2025-01-01"), "--to must be later than --from"),
        (("--spool", "x", "--property", "acks"), "--property: 'acks' is not KEY=VALUE"),
        (
            ("--spool", "x", "--property", "securty.protocol=SSL"),
            "securty.protocol is not a property of the Kafka client; did you mean security.protocol?",
        ),
        (("--spool", "x", "--command-config", "/nowhere"), "--command-config: /nowhere: No such file or directory"),
        (
            ("tops", "--spool", "x"),
            "'tops' is not a command of the audit, and options begin with --; did you mean top?",
        ),
        (
            ("--spool", "x", "--topic", "clicks"),
            "--topic is the usage log's topic in Kafka, which isn't read here; --by",
        ),
        (("--tables", "x", "--topic", "clicks"), "--topic is the usage log's topic in Kafka, which isn't read here"),
        (("top", "--spool", "x", "--topic", "clicks"), "--topic is the usage log's topic in Kafka, which isn't read"),
        (
            ("--spool", "x", "--property", "acks=1"),
            "--property and --command-config are the Kafka client's: they need",
        ),
        (("--tables", "x", "--command-config", "/dev/null"), "--property and --command-config are the Kafka client's"),
        (("--spool", "x", "--command-config", ""), "--command-config: : Is a directory"),
        (("--spool", "x", "--chain-key", "/nowhere"), "--chain-key: /nowhere: No such file or directory"),
        (("--spool", "x", "--chain-key", "/dev/null"), "--chain-key: /dev/null: must have 32 bytes or more"),
        (("--tables", "x", "--chain-key", __file__), "--chain-key: tables hold no text to check"),
        (("--spool", "x", "--colour"), "unrecognized arguments: --colour"),
        (
            ("--tables", "x", "--conf", "a=b", "--engine", "local"),
            "--engine local needs no Spark: --conf, --jars",
        ),
        (("--spool", "x", "--engine", "duckdb"), "argument --engine: invalid choice: 'duckdb'"),
    ],
)
def test_wrong_options_are_said_before_anything_is_started(
    args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(list(args)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "3 with --strict" in capsys.readouterr().out


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    done = _command("--engine", "spark", "--spool", str(tmp_path), "--quiet", JAVA_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("produce-gateway audit: ")
    assert "Java 17" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_broker_it_says_so_before_it_starts_spark(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--bootstrap-servers", f"127.0.0.1:{find_free_port()}", "--engine", engine]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("produce-gateway audit: no broker can be reached (127.0.0.1:")
    assert err.count("\n") == 1


def test_the_result_alone_goes_to_stdout_a_gap_is_exit_code_3_and_classes_come_from_the_archive(tmp_path: Path) -> None:
    assert class_data.make_archive() == jars.class_data_path(spark_session.SPARK_JARS)
    loaded = tmp_path / "loaded"
    loaded.mkdir()
    rows = [Row(bytes=10), Row(outcome="rejected", reason="fence", bytes=5)]
    lines = [*interval(0, rows), *interval(2, rows), *interval(2, rows), *interval(3, (), final=True)]
    (tmp_path / "usage-00000001-aa.jsonl").write_text("\n".join(lines) + "\n")
    done = _command(
        *("--spool", str(tmp_path), "--format", "json", "--strict", "--by", "reason", "--engine", "spark"),
        JDK_JAVA_OPTIONS=f"-Xlog:class+load:file={loaded}/%p.log",
    )
    assert done.returncode == 3, done.stderr
    answer = json.loads(done.stdout)
    assert answer["totals"]["offered"] == {"bytes": 30, "messages": 8, "requests": 4}
    assert [(row["reason"], row["accepted"]["bytes"], row["rejected"]["bytes"]) for row in answer["rows"]] == [
        ("", 20, 0),
        ("fence", 0, 10),
    ]
    assert answer["integrity"]["duplicates"] == 1
    assert [gap["first_seq"] for gap in answer["integrity"]["gaps"]] == [1]
    assert answer["integrity"]["complete"] is False
    progress = done.stderr.splitlines()
    assert progress[0].endswith("starting Spark")
    assert all(line.startswith("audit ") for line in progress), done.stderr
    lines = [line for file in loaded.iterdir() for line in file.read_text(errors="replace").splitlines()]
    of_spark = [line for line in lines if " org.apache.spark." in line]
    assert len([line for line in of_spark if "source: shared objects file (top)" in line]) > len(of_spark) // 2


def test_strict_does_not_pass_where_there_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for strict, code in (((), 0), (("--strict",), 3)):
        assert cli.main(["--spool", str(tmp_path), "--quiet", *strict]) == code
        assert "no records were found: nothing to sum up" in capsys.readouterr().out


def test_small_audits_need_neither_java_nor_pyspark(tmp_path: Path) -> None:
    lines = [*interval(0), *interval(2), *interval(3, (), final=True)]
    (tmp_path / "usage-00000001-aa.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "gateway.yaml").write_text("upstream: {bootstrap_servers: 'k:9092'}\n")
    until = tmp_path / "until.json"
    until.write_text(dump_snapshot(LogSnapshot("c", START + 60_000, START + 60_000, {})))
    source = ["--spool", str(tmp_path), "--strict"]
    asked = [
        ["reconcile", "--spool", str(tmp_path), "--until", str(until), "--quiet"],
        ["report", *source, "--output", str(tmp_path / "report.html"), "--quiet"],
        ["what-if", str(tmp_path / "gateway.yaml"), *source, "--quiet"],
        [*source, "--format", "json"],
    ]
    code = (
        "import io, sys; sys.modules |= dict.fromkeys(('pyspark', 'py4j', 'pyarrow'))\n"
        "from contextlib import redirect_stdout\n"
        "from gateway.audit import cli\n"
        "from gateway.audit.reconcile import brokers\n"
        f"*others, last = {asked}\n"
        "with redirect_stdout(io.StringIO()):\n"
        "    found = [cli.main(each) for each in others]\n"
        "assert found == [3] * len(others), found\n"
        "sys.exit(cli.main(last))"
    )
    environment = os.environ | {"JAVA_HOME": str(tmp_path), "PATH": ""}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 3, done.stderr
    answer = json.loads(done.stdout)
    assert answer["totals"]["offered"]["bytes"] == 200
    assert [gap["first_seq"] for gap in answer["integrity"]["gaps"]] == [1]
    assert all(line.startswith("audit ") for line in done.stderr.splitlines()), done.stderr


@pytest.mark.parametrize(
    "args",
    [("--spool", "a.jsonl"), ("--spool", "a.jsonl.gz"), ("--spool", "a.jsonl", "--conf", "spark.driver.memory=1g")],
)
def test_without_pyspark_what_is_sparks_says_what_to_install(
    args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(opening, "LOCAL_BYTES", 5)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    Path("a.jsonl").write_text("more than five bytes\n")
    assert cli.main([*args, "--quiet"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "produce-gateway audit: this audit needs PySpark, PyArrow and deltalake: pip install 'produce-gateway[audit]'"
    )
    # Asked for, the local engine takes all that it can read.
    assert cli.main(["--spool", "a.jsonl", "--engine", "local", "--quiet"]) == 0
    assert "records 1" in capsys.readouterr().out


def test_what_is_to_be_replayed_is_left_to_spark_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = tmp_path / "a.jsonl"
    spool.write_text(interval(0)[0] + "\n")
    for size, replays, is_local in ((8, True, True), (7, True, False), (1, False, True)):
        monkeypatch.setattr(opening, "LOCAL_BYTES", size * spool.stat().st_size)
        found = opening.open_sources(None, "", {}, [str(spool)], always=False, replays=replays)
        assert (found is not None) is is_local


def test_packed_files_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.jsonl", "b.jsonl.gz"):
        (tmp_path / name).write_text(interval(0)[0] + "\n")
    for path, is_local in ((tmp_path, False), (tmp_path / "b*", False), (tmp_path / "*.jsonl", True)):
        assert (opening.open_sources(None, "", {}, [str(path)], always=False) is not None) is is_local
    with pytest.raises(AuditError, match=r"b\.jsonl\.gz is packed: --engine spark unpacks it"):
        opening.open_sources(None, "", {}, [str(tmp_path)], always=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(AuditError, match=r"b\.jsonl\.gz is packed"):
        opening.open_sources(None, "", {}, [str(tmp_path)], always=False)


def test_the_ranking_is_local_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row(client_id="a", outcome="rejected", reason="fence", bytes=5), Row(client_id="b", bytes=7)]
    (tmp_path / "usage-00000001-aa.jsonl").write_text("\n".join(interval(0, rows)) + "\n")
    assert cli.main(["top", "--spool", str(tmp_path), "--engine", "local", "--format", "json", "--quiet"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(row["rank"], row["client_id"], row["finally_dropped_bytes"]) for row in answer["rows"]] == [(1, "a", 5)]


def test_changed_records_are_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, usage = tmp_path / "key", tmp_path / "usage-00000001-aa.jsonl"
    key.write_text("k" * 32 + "\n")
    lines = chained([*interval(0), *interval(1, (), final=True)], b"k" * 32)
    for log, code, said in (
        (lines, 0, "complete"),
        ([lines[0].replace('"bytes":100', '"bytes":99'), lines[1]], 3, "CHANGED  gw/b1/0: 1 records are not"),
    ):
        usage.write_text("\n".join(log) + "\n")
        options = ["--spool", str(usage), "--engine", "local", "--strict", "--quiet", "--chain-key", str(key)]
        assert cli.main(options) == code
        assert said in capsys.readouterr().out


def test_a_java_that_has_ended_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from gateway.audit import errors

    def gone(error: BaseException) -> str:
        raise ConnectionRefusedError

    def failing(error: Exception) -> int:
        raise error

    monkeypatch.setattr(errors, "explain_error", gone)
    for error in (RuntimeError("somewhere in Java"), ConnectionResetError()):
        assert cli.run_guarded(lambda error=error: failing(error)) == 1  # type: ignore[misc]
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"produce-gateway audit: Java ended before it was done ({type(error).__name__})")


def test_ctrl_c_is_an_interrupt_whatever_putting_away_raises(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("Answer from Java side is empty")

    assert cli.run_guarded(interrupted) == 130
    assert capsys.readouterr().err == "produce-gateway audit: interrupted\n"


@pytest.mark.parametrize(("engine", "at"), [("spark", "reading and decoding\n"), ("local", "reading and adding up\n")])
def test_ctrl_c_is_one_line(engine: str, at: str, tmp_path: Path) -> None:
    lines = [line for seq in range(2000) for line in interval(seq)]
    # So many that it is still at it when it is interrupted, whoever is held up between.
    (tmp_path / "usage-00000001-aa.jsonl").write_text(("\n".join(lines) + "\n") * 200)
    command = [sys.executable, "-m", "gateway.audit", "--spool", str(tmp_path), "--engine", engine]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.endswith(at):
                process.send_signal(signal.SIGINT)
        assert process.wait(600) == 130, said
    assert said[-1] == "produce-gateway audit: interrupted\n"
    assert all(line.startswith("audit ") for line in said[:-1]), said
