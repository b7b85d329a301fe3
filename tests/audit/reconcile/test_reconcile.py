# Whether logs and sums agree: what bytes and offsets must be exactly, what widens that, and what is said of the rest.
# test_reconcile_kafka.py asks a real Kafka the same.

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.audit.batch.query import AuditQuery
from gateway.audit.local.records import LocalRecords
from gateway.audit.reconcile import command as reconcile_command
from gateway.audit.reconcile.local_sums import AdditionCollector
from gateway.audit.reconcile.reconcile import (
    AGREES,
    DIFFERS,
    UNKNOWN,
    CountedUsage,
    InvalidLogSnapshot,
    LogGrowth,
    LogSnapshot,
    PartitionLog,
    ReconciledTopicLog,
    TopicVerdict,
    UsageSum,
    bound_additions,
    dump_snapshot,
    judge_topic,
    load_snapshot,
    measure_growth,
    merge_topic_ids,
    reconcile_topics,
    verdicts_json,
    verdicts_text,
)
from tests.audit.records import START, LineSource, Row, interval

EMPTY = PartitionLog(1, 0, 0, 0)


def _topic(*partitions: PartitionLog, **settings: Any) -> ReconciledTopicLog:
    log = ReconciledTopicLog("id", "producer", "delete", False, dict(enumerate(partitions)))
    return dataclasses.replace(log, **settings)


def _snapshot(at: int, topics: Mapping[str, ReconciledTopicLog], cluster: str = "c") -> LogSnapshot:
    return LogSnapshot(cluster, at, at + 10, topics)


def _part(size: int, end: int, start: int = 0, **fields: Any) -> PartitionLog:
    return dataclasses.replace(PartitionLog(1, size, start, end), **fields)


# --- growth -----------------------------------------------------------------------------------------------------------


def test_logs_grow_by_what_their_leaders_hold_more_and_a_partition_may_be_new() -> None:
    before, after = _topic(_part(100, 5), EMPTY), _topic(_part(150, 7), EMPTY, _part(30, 1))
    assert measure_growth(before, after) == LogGrowth(3, 80, 80)
    assert measure_growth(None, after) == LogGrowth(8, 180, 180)


@pytest.mark.parametrize(
    ("before", "after", "grown", "said"),
    [
        (_topic(_part(100, 5)), _topic(_part(90, 9, 3)), (4, None, -10), "have lost their beginnings"),
        (None, _topic(_part(90, 9, 3)), (9, None, 90), "have lost their beginnings"),
        (_topic(_part(9, 5), cleanup="compact,delete"), _topic(_part(20, 9)), (4, None, 11), "compaction takes"),
        (_topic(_part(9, 5)), _topic(_part(20, 9), remote=True), (4, None, 11), "tiered storage takes"),
        (_topic(_part(9, 5), compression="gzip"), _topic(_part(20, 9)), (4, None, None), "compression.type=gzip"),
        (_topic(_part(9, 5, 2)), _topic(_part(20, 9, 2, leader=2)), (4, None, 11), "leaders have moved"),
        (_topic(_part(9, 5, 2), EMPTY), _topic(_part(20, 9, 2, leader=2), EMPTY), (4, None, 11), "leaders have moved"),
    ],
)
def test_offsets_alone_are_compared_when_bytes_are_taken_away_or_changed(
    before: ReconciledTopicLog | None, after: ReconciledTopicLog, grown: tuple[int, int | None, int | None], said: str
) -> None:
    found = measure_growth(before, after)
    assert (found.messages, found.bytes, found.least_bytes) == grown
    assert len(found.reasons) == 1
    assert said in found.reasons[0]
    assert found.reasons[0].endswith(": messages only")


def test_a_leader_that_moved_has_the_same_log_from_the_beginning() -> None:
    assert measure_growth(_topic(_part(9, 5)), _topic(_part(20, 9, leader=2))) == LogGrowth(4, 11, 11)
    assert measure_growth(_topic(_part(9, 5, 2)), _topic(_part(20, 9, 2))) == LogGrowth(4, 11, 11), "nor has any moved"


@pytest.mark.parametrize(("before", "after"), [(False, True), (True, False), (True, True)])
def test_a_transaction_is_remembered_by_either_look(before: bool, after: bool) -> None:
    looks = (_topic(_part(9, 5, transactional=each)) for each in (before, after))
    assert measure_growth(*looks).transactional


def test_of_a_topic_made_again_only_the_new_log_is_known() -> None:
    found = measure_growth(_topic(_part(500, 50)), _topic(_part(20, 3), id="other"))
    assert (found.messages, found.bytes, found.was_recreated) == (3, 20, True)
    assert measure_growth(_topic(_part(500, 50)), None).messages is None


# --- verdicts ---------------------------------------------------------------------------------------------------------


def _judged(counted: CountedUsage, messages: int | None, size: int | None, **fields: Any) -> TopicVerdict:
    return judge_topic("t", counted, LogGrowth(messages, size, size, **fields))


EXACT = CountedUsage(UsageSum(1000, 10))
LOOSE = CountedUsage(UsageSum(1000, 10), UsageSum(200, 2), UsageSum(100, 1))


@pytest.mark.parametrize(
    ("counted", "messages", "size", "verdict", "said"),
    [
        (EXACT, 10, 1000, AGREES, []),
        (EXACT, 10, None, AGREES, []),
        (LOOSE, 10, 1000, AGREES, []),
        (LOOSE, 13, 1300, AGREES, []),
        (EXACT, 11, 1100, DIFFERS, ["100 bytes and 1 messages were not produced through the gateway"]),
        (EXACT, 10, 1001, DIFFERS, ["1 bytes were not produced through the gateway"]),
        (LOOSE, 14, 1300, DIFFERS, ["1 messages were not produced through the gateway"]),
        (EXACT, 12, None, DIFFERS, ["2 messages were not produced through the gateway"]),
        (EXACT, 9, None, DIFFERS, ["1 messages were acknowledged and are not in the log: it was cut"]),
        (EXACT, 9, 1000, DIFFERS, ["1 messages were acknowledged and are not in the log: it was cut"]),
        (EXACT, 10, 999, DIFFERS, ["1 bytes were acknowledged and are not in the log: it was cut"]),
        (EXACT, 8, 900, DIFFERS, ["100 bytes and 2 messages were acknowledged and are not in the log"]),
        (CountedUsage(), 0, 0, AGREES, []),
        (CountedUsage(), 5, 400, DIFFERS, ["400 bytes and 5 messages were not produced through the gateway"]),
    ],
)
def test_growth_lies_between_accepted_and_what_may_have_been_appended_as_well(
    counted: CountedUsage, messages: int, size: int | None, verdict: str, said: list[str]
) -> None:
    found = _judged(counted, messages, size)
    assert found.verdict == verdict
    assert len(found.reasons) == len(said)
    assert all(reason.startswith(start) for reason, start in zip(found.reasons, said, strict=True))


@pytest.mark.parametrize(
    ("counted", "messages", "size", "markers"),
    [
        (EXACT, 13, 1000 + 3 * 78, (3, 3)),
        (EXACT, 13, 1000 + 3 * 78 + 1, None),
        (EXACT, 13, 1000 + 2 * 78, None),
        (EXACT, 14, 1000 + 3 * 78, None),
        (LOOSE, 16, 1150 + 5 * 78, (4, 6)),  # one to three of the messages in doubt, and the rest are markers
        (LOOSE, 16, 1300 + 6 * 78 + 1, None),
    ],
)
def test_transaction_markers_are_78_bytes_and_one_offset_each_and_nothing_else_is(
    counted: CountedUsage, messages: int, size: int, markers: tuple[int, int] | None
) -> None:
    found = _judged(counted, messages, size, transactional=True)
    assert found.verdict == (AGREES if markers else DIFFERS)
    assert found.markers == markers
    if markers:
        assert _judged(counted, messages, size).verdict == DIFFERS, "without a transaction there"


def test_a_difference_that_only_looks_like_markers_is_said_to() -> None:
    found = _judged(EXACT, 13, 1000 + 3 * 78)
    assert found.verdict == DIFFERS
    assert found.reasons[-1].startswith("3 transaction markers would be just as large, but no broker remembers")


def test_without_bytes_markers_and_records_can_not_be_told_apart() -> None:
    found = judge_topic("t", EXACT, LogGrowth(13, None, 900, transactional=True))
    assert (found.verdict, found.markers) == (UNKNOWN, (3, 3))
    assert "that can't be decided" in found.reasons[-1]
    # … unless even what is left of the log is more than they explain.
    assert judge_topic("t", EXACT, LogGrowth(13, None, 1000 + 3 * 78, transactional=True)).verdict == UNKNOWN
    found = judge_topic("t", EXACT, LogGrowth(13, None, 1000 + 3 * 78 + 1, transactional=True))
    assert (found.verdict, found.reasons[0][:24]) == (DIFFERS, "235 bytes and 3 messages")


def test_a_topic_that_was_made_again_is_unknown_unless_the_new_log_alone_is_too_large() -> None:
    counted = CountedUsage(UsageSum(5000, 50))
    again = LogGrowth(10, 1000, 1000, was_recreated=True, reasons=("made again",))
    assert judge_topic("t", counted, again).verdict == UNKNOWN
    assert judge_topic("t", EXACT, dataclasses.replace(again, bytes=1001, least_bytes=1001)).verdict == DIFFERS
    marked = dataclasses.replace(again, messages=11, bytes=1078, least_bytes=1078, transactional=True)
    assert judge_topic("t", EXACT, marked).verdict == UNKNOWN
    assert judge_topic("t", counted, measure_growth(_topic(_part(9, 9)), None)).verdict == UNKNOWN


def test_a_usage_log_with_gaps_may_lack_what_the_log_has_more() -> None:
    found = judge_topic("t", EXACT, LogGrowth(11, 1100, 1100), complete=False)
    assert found.reasons == [
        "100 bytes and 1 messages were not produced through the gateway, or are in the gaps of the usage log"
    ]


def test_topics_of_both_snapshots_and_of_the_usage_log_are_all_there() -> None:
    since = _snapshot(0, {"gone": _topic(_part(1, 1)), "same": _topic(_part(5, 1))})
    until = _snapshot(
        100, {"same": _topic(_part(5, 1)), "new": _topic(_part(1000, 10)), "by-id": _topic(_part(7, 1), id="AbC")}
    )
    counted = {
        "new": EXACT,
        "topic-id:AbC": CountedUsage(UsageSum(7, 1)),
        "elsewhere": CountedUsage(UsageSum(1, 1)),
        "refused": CountedUsage(),  # rejected, errored: no log has to have it
    }
    found = {each.topic: each.verdict for each in reconcile_topics(since, until, merge_topic_ids(counted, until))}
    assert found == {"gone": UNKNOWN, "same": AGREES, "new": AGREES, "by-id": AGREES, "elsewhere": UNKNOWN}


def test_what_is_counted_under_no_topics_name_is_in_no_log() -> None:
    counted = {name: CountedUsage(maybe=UsageSum(75, 1)) for name in ("<invalid>", "a/b", "..", "topic-id:AA", "gone")}
    found = {each.topic: each.verdict for each in reconcile_topics(None, _snapshot(5, {}), counted)}
    assert found == {"topic-id:AA": UNKNOWN, "gone": UNKNOWN}


def test_a_topic_is_called_deleted_only_if_a_snapshot_has_had_it() -> None:
    counted = {"misspelt": CountedUsage(maybe=UsageSum(75, 1))}  # with acks=0, which is forwarded to any name
    found = reconcile_topics(_snapshot(0, {"gone": _topic(_part(1, 1))}), _snapshot(100, {}), counted)
    assert {each.topic: each.reasons for each in found} == {
        "gone": ["the topic is deleted: its log's contents are not known"],
        "misspelt": ["there is no such topic: it was deleted, or never existed: its log's contents are not known"],
    }


def test_snapshots_have_to_be_of_one_cluster_and_in_order() -> None:
    one, two = _snapshot(0, {}), _snapshot(100, {})
    with pytest.raises(InvalidLogSnapshot, match="of --since is the later one"):
        reconcile_topics(two, one, {})
    with pytest.raises(InvalidLogSnapshot, match="of different clusters"):
        reconcile_topics(_snapshot(0, {}, "other"), two, {})


# --- files, options, what is shown ------------------------------------------------------------------------------------


def test_a_snapshot_survives_its_file_and_anything_else_is_refused_in_one_line() -> None:
    snapshot = _snapshot(5, {"t": _topic(_part(7, 8, 1, transactional=True), EMPTY, cleanup="compact", remote=True)})
    assert load_snapshot(dump_snapshot(snapshot)) == snapshot
    for text in ("", "[]", "{}", dump_snapshot(snapshot)[:-20], dump_snapshot(snapshot).replace('"size"', '"length"')):
        with pytest.raises(InvalidLogSnapshot, match=r"^not a valid snapshot: [^\n]*$"):
            load_snapshot(text)
    with pytest.raises(InvalidLogSnapshot, match=r"^a snapshot of version 9, this program knows 1$"):
        load_snapshot(dump_snapshot(snapshot).replace('"version": 1', '"version": 9'))


def test_the_table_that_is_shown() -> None:
    verdicts = [
        _judged(EXACT, 10, 1000),
        judge_topic("longer", LOOSE, LogGrowth(20, None, None, reasons=("because: messages only",))),
        judge_topic("quiet", CountedUsage(), LogGrowth(0, 0, 0)),
    ]
    assert verdicts_text(verdicts, complete=False).splitlines() == [
        "topic   accepted bytes  maybe appended bytes  in-flight bytes  growth bytes  accepted messages"
        "  growth messages  verdict",
        "t                1,000                     0                0         1,000                 10"
        "               10  agrees",
        "longer           1,000                   200              100             ?                 10"
        "               20  differs",
        "    because: messages only",
        "    7 messages were not produced through the gateway",
        "the usage log is NOT COMPLETE: `produce-gateway audit` names the gaps",
        "3 topics: 2 agrees, 1 differs, 0 unknown",
    ]
    answer = verdicts_json(None, _snapshot(5, {}), verdicts, complete=True)
    assert answer["agrees"] is False
    assert answer["topics"][1] == {
        "topic": "longer",
        "verdict": DIFFERS,
        "accepted": {"bytes": 1000, "messages": 10},
        "maybe_appended": {"bytes": 200, "messages": 2},
        "in_flight": {"bytes": 100, "messages": 1},
        "growth": {"bytes": None, "messages": 20},
        "markers": None,
        "reasons": ["because: messages only", "7 messages were not produced through the gateway"],
    }


def test_a_name_of_a_client_moves_no_cursor() -> None:
    assert "\x1b" not in verdicts_text([judge_topic("\x1b[2J", LOOSE, LogGrowth(20, None, None))], complete=True)


def test_a_topic_that_is_nowhere_agrees_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = interval(0, [Row(topic="gone", bytes=1000, messages=10)], final=True)
    (tmp_path / "usage.jsonl").write_text("\n".join(lines) + "\n")
    until = _snapshot(START + 9000, {"clicks": _topic(_part(0, 0))})
    (tmp_path / "until").write_text(dump_snapshot(until))
    asked = ["reconcile", "--quiet", "--spool", str(tmp_path / "usage.jsonl"), "--until", str(tmp_path / "until")]
    assert reconcile_command.main([*asked, "--topics", "clicks, gone"]) == 3  # the usage log knows the other
    capsys.readouterr()
    said = "produce-gateway audit: --topics: there is no topic clikcs\n"
    assert reconcile_command.main([*asked, "--topics", "clicks,clikcs"]) == 1
    assert capsys.readouterr() == ("", said)
    monkeypatch.setattr(reconcile_command, "_ask_brokers", lambda *_: until)
    noted = tmp_path / "noted"
    snapshot = ["reconcile", "snapshot", "--quiet", "--bootstrap-servers", "x:1", "--out", str(noted), "--topics"]
    assert reconcile_command.main([*snapshot, "clikcs,clicks"]) == 1
    assert capsys.readouterr() == ("", said)
    assert not noted.exists()


def test_exit_code_0_is_for_agreement_alone(capsys: pytest.CaptureFixture[str]) -> None:
    until = _snapshot(5, {})
    for verdicts, code in (([_judged(EXACT, 10, 1000)], 0), ([], 0), ([_judged(EXACT, 10, 1000), _again()], 3)):
        assert reconcile_command._print_verdicts("json", None, until, verdicts, True) == code
        assert json.loads(capsys.readouterr().out)["agrees"] is (code == 0)


def _again() -> TopicVerdict:
    return judge_topic("t", EXACT, LogGrowth(None, None, was_recreated=True))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "no broker to ask: give --bootstrap-servers, or --until FILE"),
        (("--until", "{good}"), "nothing to compare with: give --bootstrap-servers"),
        (("--until", "{good}", "--tables", "t", "--spool", "s"), "--tables can't be read together with --spool"),
        (
            ("--until", "{good}", "--spool", "s", "--topic", "clicks"),
            "--topic is the usage log's topic in Kafka, which",
        ),
        (
            ("--bootstrap-servers", "x:1", "--tables", "t", "--topic", "clicks"),
            "--topic is the usage log's topic in Kafka, which isn't read here",
        ),
        (
            ("--until", "{good}", "--tables", "t", "--property", "a=b"),
            "--property and --command-config are the Kafka cl",
        ),
        (("--bootstrap-servers", "x:1", "--since", "/nowhere"), "--since: /nowhere: No such file or directory"),
        (("--bootstrap-servers", "x:1", "--since", "{bad}"), "not a valid snapshot: JSONDecodeError"),
        (("--bootstrap-servers", "x:1", "--margin", "soon"), "--margin: 'soon' is not a valid duration"),
        (("--bootstrap-servers", "x:1", "--topics", " ,"), "--topics: no name is given"),
        (("--bootstrap-servers", "x:1", "--engine", "local", "--conf", "a=b"), "--engine local needs no Spark: --conf"),
        (("snapshot", "--bootstrap-servers", "x:1", "--out", "-", "--conf", "a=b"), "unrecognized arguments: --conf"),
        (("snapshot", "--bootstrap-servers", "x:1"), "the following arguments are required: --out"),
        (("snapshot", "--bootstrap-servers", "x:1", "--out", "/nowhere/f"), "--out: there is no directory /nowhere"),
    ],
)
def test_wrong_options_are_one_line_before_anything_is_started(
    args: tuple[str, ...], said: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text(dump_snapshot(_snapshot(0, {})))
    bad.write_text("x")
    given = [arg.format(good=good, bad=bad) for arg in args]
    assert reconcile_command.main(["reconcile", *given]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]


# --- over records -----------------------------------------------------------------------------------------------------


def test_intervals_that_touch_a_snapshot_are_in_flight() -> None:
    def rows(size: int) -> list[Row]:
        return [
            Row(bytes=size, messages=1),
            Row(bytes=size * 10, messages=2, outcome="unanswered"),
            Row(bytes=size * 100, messages=3, outcome="rejected", reason="fence"),
            Row(1, "refused", bytes=size, outcome="errored", reason="INVALID_RECORD"),
        ]

    lines = [line for seq in range(10) for line in interval(seq, rows(2**seq))]  # the N-th second each

    def count(since: LogSnapshot | None, margin_ms: int) -> dict[str, CountedUsage]:
        bounds = bound_additions(since, _snapshot(START + 6500, {}), margin_ms)  # snapshots take 10 ms
        return LocalRecords([LineSource(lines)]).collect(lambda: AdditionCollector(bounds), AuditQuery()).make_counted()

    since = _snapshot(START + 2500, {})
    exact = count(since, 0)["clicks"]
    certain, doubtful = 2**3 + 2**4 + 2**5, 2**2 + 2**6
    assert exact.accepted == UsageSum(certain, 3)
    assert exact.maybe == UsageSum(10 * certain, 6)
    assert exact.in_flight == UsageSum(11 * doubtful, 6)
    wide = count(since, 1000)["clicks"]
    assert wide.accepted == UsageSum(2**4, 1)
    assert wide.in_flight.messages == 3 * 6
    all_before = count(None, 0)
    assert all_before["clicks"].accepted == UsageSum(2**6 - 1, 6)
    assert all_before["refused"] == CountedUsage()


def test_the_command_says_the_same_in_either_engine(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of files; of tables: local/test_tables.py; of a topic: local/test_topic.py."""
    chance = random.Random(5)
    outcomes = [("accepted", ""), ("unacknowledged", ""), ("errored", "REQUEST_TIMED_OUT"), ("rejected", "fence")]
    lines = []
    for seq in range(200):
        rows = [
            Row(1, f"t{chance.randrange(5)}", bytes=chance.randrange(1000), outcome=outcome, reason=reason)
            for outcome, reason in outcomes
        ]
        lines += interval(seq, rows, final=seq == 199)
    lines.remove(lines[150])  # a gap between the two
    (tmp_path / "usage.jsonl").write_text("\n".join(lines) + "\n")
    asked = ["reconcile", "--quiet", "--format", "json", "--spool", str(tmp_path / "usage.jsonl")]
    for name, at, size in (("since", 100_000, 0), ("until", 180_000, 9000)):
        topics = {f"t{number}": _topic(_part(size, 5), id=f"id-{number}") for number in range(4)}
        (tmp_path / name).write_text(dump_snapshot(_snapshot(START + at, topics)))
        asked += [f"--{name}", str(tmp_path / name)]
    answers = []
    for engine in ("local", "spark"):
        assert command(*asked, "--engine", engine) == 3
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    answer = json.loads(answers[0])
    assert answer["usage_log_complete"] is False
    assert [each["topic"] for each in answer["topics"]] == [f"t{number}" for number in range(5)]
    assert all(each["accepted"]["bytes"] and each["in_flight"]["bytes"] for each in answer["topics"])
