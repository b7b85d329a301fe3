# What fills volumes: sums against those made without Spark, records of all versions, and retentions against every other
# one tried.

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit import cli, store
from gateway.audit.batch import transforms
from gateway.audit.batch.job import AuditRecords
from gateway.audit.batch.query import AuditQuery, LogIntegrity
from gateway.audit.errors import AuditError
from gateway.audit.local.records import LocalRecords
from gateway.audit.local.tables import LocalTables
from gateway.audit.storage import filling, spark_counts, text
from gateway.audit.storage.filling import VolumeOptions, VolumeReport, VolumeUsage, WindowUsage
from gateway.audit.storage.local_counts import VolumeCollector
from gateway.audit.storage.retention import RetentionAdvice, advise_retention, longest_fitting_run
from gateway.audit.stream import stream
from policies.usage import DiskNotes, SpreadNote, VolumeNote
from tests.audit.records import START, LineSource, Row, interval, topic_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.audit.store import AuditTables

    Make = Callable[[Sequence[str | None]], DataFrame]

TRUST: dict[str, Any] = {"malformed": 0, "problems": {}, "samples": [], "duplicates": 0, "conflicts": 0}
WINDOW = 60_000

# --- retention --------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 100), max_size=12), st.integers(0, 400))
def test_the_longest_run_of_windows_that_always_fits(written: list[int], room: int) -> None:
    def fits(windows: int) -> bool:
        return all(sum(written[i : i + windows]) <= room for i in range(len(written) - windows + 1))

    assert longest_fitting_run(written, room) == max(windows for windows in range(len(written) + 1) if fits(windows))


@given(
    st.integers(0, 10**12),
    st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 10**12), st.integers(1, 50)), max_size=9),
)
def test_retention_by_bytes_fits_whatever_comes(room: int, topics: dict[str, tuple[int, int]]) -> None:
    found = advise_retention([1], 1000, room, topics).topic_bytes
    assert sum(found[topic] * topics[topic][1] for topic in found) <= room


def test_a_retention_is_a_whole_number_of_windows_or_any() -> None:
    topics = {"a": (30, 2), "b": (10, 1)}
    assert advise_retention([10, 0, 20, 10], 60_000, 30, topics) == RetentionAdvice(30, 180_000, {"a": 11, "b": 7})
    assert advise_retention([10, 0, 20, 10], 60_000, 40, topics).ms is None
    assert advise_retention([10, 0, 20, 10], 60_000, 15, topics).ms == 0
    assert advise_retention([10], 60_000, -5, topics) == RetentionAdvice(0, 0, {"a": 0, "b": 0})


# --- over records -----------------------------------------------------------------------------------------------------


def disks(available: int, *spread: SpreadNote) -> DiskNotes:
    return DiskNotes((VolumeNote(3, "/d", 1000, available, None, 100.0), VolumeNote(1, "/a", 9000, 8000)), spread)


LEADS, FOLLOWS = SpreadNote(3, "leads", 1, 2), SpreadNote(3, "follows", 1, 1)
ELSEWHERE = SpreadNote(1, "follows", 1, 1)


def lines() -> list[str]:
    """Four minutes; in the third, nobody notes anything, and in the fourth nothing of `leads`."""
    found: list[str] = []
    rows = [
        Row(1, "leads", "User:a", bytes=200),
        Row(1, "follows", "User:b", bytes=100),
        Row(1, "follows", "User:b", outcome="rejected", reason="storage-pause", bytes=7777),
        Row(1, "follows", "User:b", outcome="unacknowledged", bytes=50),
        Row(1, "nobody-knows", "User:b", bytes=11),
    ]
    noted = [
        disks(700, LEADS, FOLLOWS, ELSEWHERE),
        disks(100, LEADS, FOLLOWS, ELSEWHERE),
        None,
        disks(500, FOLLOWS, ELSEWHERE),
    ]
    for minute, each in enumerate(noted):
        found += interval(2 * minute, rows, start_ms=START + minute * WINDOW, disks=each)
        # A second note within the minute; version 1 says nothing of disks.
        later = disks(800) if minute == 0 else None
        found += interval(
            2 * minute + 1, [Row(1, "leads", "User:a", bytes=2)], start_ms=START + minute * WINDOW + 30_000,
            disks=later, version=1 if minute == 3 else 2,
        )  # fmt: skip
    return found


def report_volumes(unique: Make, lines: Sequence[str], wish: VolumeOptions) -> VolumeReport:
    """What both engines say."""
    question = AuditQuery((), None, wish.from_ms, wish.to_ms)
    local = LocalRecords([LineSource(lines)])
    counts = local.collect(lambda: VolumeCollector(wish), question).make_counts()
    found = unique(lines)
    records = AuditRecords(transforms.explode_rows(found), found, [], TRUST | {"records": len(lines)})
    assert spark_counts.count_volumes(records, wish) == counts
    return filling.make_report(counts, wish, [], local.find_gaps(question))


def test_each_volume_has_what_came_to_it_by_time_topic_and_principal(unique: Make) -> None:
    report = report_volumes(unique, lines(), VolumeOptions(WINDOW))
    other, full = report.volumes
    assert (full.place, full.total, full.used_first, full.used_last) == ((3, "/d"), 1000, 300, 500)
    assert (full.limit, full.least_free, full.limit_reached_ms, full.is_only_volume) == (100, 100, START + WINDOW, True)
    # Half of `leads`, where it has a replica; in the third minute, as on average of the two that say something of it.
    came = [101 + 150, 101 + 150, 101 + 150, 150 + 101]
    assert [step.free for step in full.windows] == [700, 100, None, 500]
    assert [step.written for step in full.windows] == came
    assert full.topics == {"follows": (600, 1), "leads": (404, 1)}
    assert full.principals == {"User:b": 600, "User:a": 404}
    assert full.advice is not None
    assert (full.advice.room, full.advice.ms) == (600, 2 * WINDOW)
    assert (other.place, other.limit, other.written, other.advice) == ((1, "/a"), None, 600, None)
    assert report.unplaced == 4 * 11
    assert report.integrity.gaps_total == 0


def test_where_a_topic_is_goes_by_the_records_of_the_time(unique: Make) -> None:
    moved = [disks(500, SpreadNote(3, "clicks", 1, 1)), disks(500, SpreadNote(1, "clicks", 1, 1)), None]
    made = [
        line
        for minute, each in enumerate(moved)
        for line in interval(minute, [Row(bytes=100)], start_ms=START + minute * WINDOW, disks=each)
    ]
    report = report_volumes(unique, made, VolumeOptions(WINDOW, keep_free=550))
    other, full = report.volumes
    assert [step.written for step in full.windows] == [100, 0, 50], "half of the time it was here"
    assert [step.written for step in other.windows] == [0, 100, 50]
    assert full.limit_reached_ms == START, "500 free are less than what was to be kept"
    assert full.advice is not None
    assert full.advice.room == 0


def test_one_of_several_volumes_of_a_broker_gets_no_advice(unique: Make) -> None:
    both = tuple(VolumeNote(3, name, 1000, 500, None, 100.0) for name in ("/d", "/e"))
    noted = DiskNotes(both, (FOLLOWS,))
    made = interval(0, [Row(1, "follows", bytes=10)], disks=noted)
    report = report_volumes(unique, made, VolumeOptions(WINDOW))
    assert [(each.is_only_volume, each.written, each.advice) for each in report.volumes] == [(False, 10, None)] * 2


def test_the_engines_count_the_same_of_many_records_and_of_tables(
    unique: Make, spark: SparkSession, empty_tables: Callable[[Path], AuditTables], tmp_path: Path
) -> None:
    chance = random.Random(7)
    made = []
    for seq in range(60):
        spread = [SpreadNote(broker, f"t{chance.randrange(5)}", chance.randrange(3), 3) for broker in (1, 2, 3)]
        limit = chance.choice((None, 100.0))
        notes = tuple(VolumeNote(broker, "/d", 9000, chance.randrange(9000), None, limit) for broker in (1, 2))
        rows = [Row(1, f"t{topic}", f"u{topic % 2}", bytes=chance.randrange(1000)) for topic in range(6)]
        made += interval(seq, rows, start_ms=START + seq * 20_000, disks=DiskNotes(notes, tuple(spread)))
    wish = VolumeOptions(WINDOW, START + WINDOW, START + 15 * WINDOW)
    report = report_volumes(unique, made, wish)
    assert [len(volume.topics) for volume in report.volumes] == [5, 5]
    assert report.unplaced > 0
    tables = empty_tables(tmp_path / "tables")
    stream.add_batch(store.TableWriter(tables), topic_batch(spark, [(0, i, line) for i, line in enumerate(made)]), "id")
    question = AuditQuery((), None, wish.from_ms, wish.to_ms)
    counts = LocalTables(str(tmp_path / "tables")).collect(lambda: VolumeCollector(wish), question).make_counts()
    assert filling.make_report(counts, wish, [], report.integrity) == report


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_the_command_reads_a_spool_of_old_and_new_records(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    old = interval(0, [Row(bytes=5)], boot="old", final=True, version=1)
    (tmp_path / "a.jsonl").write_text("\n".join([*old, *lines()]) + "\n")
    audit = partial(command, "storage", "--spool", tmp_path, "--quiet", "--engine", engine)
    assert audit("--window", "1m", "--format", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(each["broker"], each["log_dir"]) for each in answer["volumes"]] == [(1, "/a"), (3, "/d")]
    assert answer["volumes"][1]["retention"]["retention.ms"] == 2 * WINDOW
    assert answer["unplaced_bytes"] == 4 * 11 + 5
    assert answer["integrity"]["malformed"] == 0
    (tmp_path / "a.jsonl").write_text("\n".join(old) + "\n")
    assert audit() == 0
    assert capsys.readouterr().out.startswith("no record says anything of volumes")


# --- how it is shown --------------------------------------------------------------------------------------------------


def filled(**more: Any) -> VolumeUsage:
    given: dict[str, Any] = {
        "place": (3, "/d\x1b"), "total": 200_000_000, "used_first": 10_000_000, "used_last": 100_000_000,
        "least_free": 99_000_000, "limit": 100_000_000, "limit_reached_ms": START, "is_only_volume": True,
        "written": 90_000_000,
        "topics": {"a": (60_000_000, 2), "b": (30_000_000, 1)}, "principals": {"User:a": 90_000_000},
        "windows": (WindowUsage(START, 99_000_000, 90_000_000), WindowUsage(START + WINDOW, None, 0)),
        "advice": RetentionAdvice(50_000_000, 120_000, {"a": 16_666_666, "b": 16_666_666}),
    }  # fmt: skip
    return VolumeUsage(**given | more)


def shown(*volumes: VolumeUsage, over_time: bool = False, unplaced: int = 0, zone: str = "UTC") -> list[str]:
    trust = LogIntegrity(**TRUST, records=3, boots=1, gaps=[], gaps_total=0, incomplete=[], incomplete_total=0, lost=0)
    wish = VolumeOptions(WINDOW, time_zone=zone)
    return text.volumes_text(VolumeReport(wish, [], volumes, unplaced, trust), over_time).splitlines()


def test_a_small_share_is_not_nothing_and_a_large_one_not_all() -> None:
    found = shown(filled(written=90_000_000, topics={"a": (89_999_000, 1), "b": (1000, 1)}))
    assert "  topics      a 90.0 MB (>99%), b 1.0 kB (<1%)" in found


def test_a_clock_that_was_off_by_decades_is_said() -> None:
    look = filling.VolumeLook(START, 9, 5, None)
    looks = {(1, "/a"): [filling.WindowLooks(at, 5, look, look) for at in (946_684_800_000, START)]}
    counts, trust = filling.VolumeCounts(looks, {}, {}, {}, 0), LocalRecords([]).find_gaps(AuditQuery())
    with pytest.raises(AuditError, match=r"^--window: 13,615,254 windows lie between 2000-01-01T00:00:00Z and 2025"):
        filling.make_report(counts, VolumeOptions(WINDOW), [], trust)
    assert len(filling.make_report(counts, VolumeOptions(3_600_000), [], trust).volumes[0].windows) > 200_000


def test_the_text_names_what_fills_a_volume_and_the_retention_that_would_have_done() -> None:
    found = shown(filled(), over_time=True, unplaced=1200)
    assert found[4:15] == [
        "broker 3 /d\\x1b",
        "  topics      a 60.0 MB (67%), b 30.0 MB (33%)",
        "  principals  User:a 90.0 MB (100%)",
        "  limit       100.0 MB free, first reached at 2025-11-20T00:54:00Z",
        "  retention   retention.ms 120000 (2.0 min) would have kept it below the limit; beside up to a segment of each"
        " of 3 partitions",
        "  retention   or retention.bytes, of a partition: a 16666666, b 16666666",
        "  window                least free     came",
        "  --------------------  ----------  -------",
        "  2025-11-20T00:54:00Z     99.0 MB  90.0 MB",
        "  2025-11-20T00:55:00Z           -      0 B",
        "",
    ]
    assert found[15] == "1,200 accepted bytes are of topics of which no record says where they are"
    assert found[-1] == "complete"
    there = shown(filled(), over_time=True, zone="Europe/Berlin")
    assert there[7].endswith("reached at 2025-11-20T01:54:00+01:00")
    assert there[12].split()[0] == "2025-11-20T01:54:00+01:00"


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            {"advice": None, "is_only_volume": False},
            "unknown: which topics lie on which volume of a broker isn't recorded",
        ),
        ({"advice": None}, "unknown: no traffic, or no limit"),
        ({"advice": RetentionAdvice(0, 0, {})}, "none of what came has room"),
        ({"advice": RetentionAdvice(5, 0, {})}, "no retention.ms as long as a window would have kept it"),
        ({"advice": RetentionAdvice(5, None, {})}, "any retention.ms would have kept it"),
        ({"limit": None}, "  limit       none"),
        ({"limit_reached_ms": None}, "free, not reached"),
        ({"topics": {str(i): (1, 1) for i in range(9)}}, ", 4 more"),
    ],
)
def test_what_can_not_be_told_is_said(more: dict[str, Any], line: str) -> None:
    assert line in "\n".join(shown(filled(**more)))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "nothing to read"),
        (("--spool", "x", "--window", "0"), "--window: '0' is not a valid duration"),
        (("--spool", "x", "--keep-free", "much"), "--keep-free: 'much' is not a valid size"),
    ],
)
def test_wrong_options(args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["storage", *args]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
