# The audit's arithmetic on static DataFrames: what is malformed, what counts once, sums, windows, gaps.

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from gateway.audit import schema
from gateway.audit.batch import transforms
from policies import usage
from tests.audit.records import START, Row, changed, interval, lost, summed, truth

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Make = Callable[[Sequence[str | None]], DataFrame]

GOOD = interval(0)[0]


def _row(**fields: object) -> str:
    """GOOD with a second row that differs in these fields."""
    fine = {name: getattr(Row(), name) for name in usage.ROW_FIELDS}
    return changed(GOOD, rows=[fine, {name: value for name, value in (fine | fields).items() if value is not ...}])


VOLUME = {"broker": 1, "log_dir": "/a", "total": 5, "available": 4}
SPREAD = {"broker": 1, "topic": "clicks", "here": 1, "partitions": 3}
MALFORMED = {
    "nothing": "",
    "blanks": "  ",
    "no JSON": "offered",
    "a list": f"[{GOOD}]",
    "a number": "5",
    "null": "null",
    "an empty object": "{}",
    "half a line": GOOD[: len(GOOD) // 2],
    "a line without its end": GOOD[:-2],
    "two records on one line": GOOD + GOOD,
    "half a record, then a whole one": GOOD[:50] + GOOD,
    "two records with a comma": f"{GOOD},{GOOD}",
    "rubbish behind": GOOD + " rubbish",
    "a bracket behind": GOOD + "]",
    "quoted by apostrophes": GOOD.replace('"', "'"),
    "a byte order mark": "\ufeff" + GOOD,
    "not a number": GOOD.replace('"seq":0', '"seq":NaN'),
    "another version": changed(GOOD, version=max(usage.READ_VERSIONS) + 1),
    "version as text": changed(GOOD, version="1"),
    "version as a fraction": changed(GOOD, version=1.0),
    "no version": changed(GOOD, version=...),
    "unknown kind": changed(GOOD, kind="day"),
    "no kind": changed(GOOD, kind=...),
    "no gateway": changed(GOOD, gateway=None),
    "seq as text": changed(GOOD, seq="5"),
    "seq as a fraction": changed(GOOD, seq=1.5),
    "seq null": changed(GOOD, seq=None),
    "seq beyond 64 bits": changed(GOOD, seq=2**63),
    "seq below 0": changed(GOOD, seq=-1),
    "worker below 0": changed(GOOD, worker=-1),
    "part beyond parts": changed(GOOD, part=1),
    "part below 0": changed(GOOD, part=-1),
    "no part": changed(GOOD, part=...),
    "final as text": changed(GOOD, final="true"),
    "ends before it starts": changed(GOOD, end_ms=START - 1),
    "a storage factor below 0": changed(GOOD, storage_factor_ppm=-1),
    "a storage factor above 1": changed(GOOD, storage_factor_ppm=usage.PPM + 1),
    "a storage factor as text": changed(GOOD, storage_factor_ppm="1"),
    "volumes that are no list": changed(GOOD, volumes={}),
    "a volume that is null": changed(GOOD, volumes=[None]),
    "a volume without its free space": changed(GOOD, volumes=[{"broker": 1, "log_dir": "/a", "total": 5}]),
    "a volume's limit below 0": changed(GOOD, volumes=[VOLUME | {"hard": -1}]),
    "a topic's replicas as text": changed(GOOD, spread=[SPREAD | {"here": "1"}]),
    "a topic's replicas below 0": changed(GOOD, spread=[SPREAD | {"here": -1}]),
    "no rows": changed(GOOD, rows=...),
    "rows as an object": changed(GOOD, rows={}),
    "a row that is a number": changed(GOOD, rows=[5]),
    "a row that is null": changed(GOOD, rows=[None]),
    "an empty interval that is not final": changed(GOOD, rows=[]),
    "a lost worker with rows": changed(GOOD, kind="lost"),
    "a lost worker with a final interval": changed(lost(0), final=True),
    "a lost worker's seq": changed(lost(0), seq=-2),
    "bytes as text": _row(bytes="1"),
    "bytes as a fraction": _row(bytes=1.5),
    "bytes null": _row(bytes=None),
    "bytes below 0": _row(bytes=-1),
    "no bytes": _row(bytes=...),
    "topic null": _row(topic=None),
    "unknown outcome": _row(outcome="vanished"),
    "a rejection without a reason": _row(outcome="rejected"),
    "broker -2": _row(broker=-2),
}
WELL_FORMED = {
    "an interval": GOOD,
    "a final interval without rows": interval(1, (), final=True)[0],
    "disks": changed(GOOD, volumes=[VOLUME, VOLUME | {"soft": None, "hard": 3}], spread=[SPREAD], other=1),
    "no disks": changed(GOOD, volumes=None, spread=[]),
    "a lost worker": lost(3),
    "a worker lost before its first interval": lost(-1),
    "a field that is new": changed(GOOD, region="eu", tags=[1, {"a": None}]),
    "a row's field that is new": _row(region="eu"),
    "any character": interval(2, [Row(client_id='é\u2028"\\\n\x00😀', topic="]}")])[0],
    "an unknown broker": _row(broker=-1),
}
# What a reader that sums up has to refuse and a writer's check need not.
STRICTER = {
    "a time before there was a gateway": changed(GOOD, start_ms=5, end_ms=6),
    "a time in microseconds": changed(GOOD, start_ms=START * 1000, end_ms=START * 1000),
    "a count that overflows when summed up": _row(bytes=2**62),
    "parts without end": changed(GOOD, parts=2**40),
}


def test_decode_takes_what_the_writer_takes_and_refuses_what_it_refuses(raw: Make) -> None:
    for name, line in MALFORMED.items():
        with pytest.raises(usage.InvalidUsageRecord):
            pytest.fail(f"{name} is well-formed: {usage.decode_record(line)}")
    for line in (*WELL_FORMED.values(), *STRICTER.values()):
        usage.decode_record(line)
    lines = [*MALFORMED.values(), *STRICTER.values(), None, *WELL_FORMED.values()]
    names = [*MALFORMED, *STRICTER, "a null value", *WELL_FORMED]
    found = {row["origin"]: row for row in transforms.decode_records(raw(lines)).collect()}
    assert len(found) == len(lines)
    good = {name for i, name in enumerate(names) if found[f"line {i}"]["problem"] is None}
    assert good == set(WELL_FORMED)
    strange = found[f"line {names.index('any character')}"]
    assert strange["rows"][0]["client_id"] == 'é\u2028"\\\n\x00😀'
    half = found[f"line {names.index('half a line')}"]
    assert half["sample"] == MALFORMED["half a line"][:200]


def test_bytes_that_are_no_text_are_malformed(spark: object, raw: Make) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    broken = (
        raw([GOOD])
        .select(F.regexp_replace("value", "alice", "ali").alias("value"), "origin")
        .select(F.concat(F.substring("value", 1, 5), F.unhex(F.lit("ff")).cast("string")).alias("value"), "origin")
    )
    assert transforms.decode_records(broken).collect()[0]["problem"] == "not UTF-8"


def test_a_record_is_decoded_once_per_pass(raw: Make) -> None:
    decoded = transforms.decode_records(raw([GOOD]))
    plan = decoded._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_json") == 1


def _log() -> list[str]:
    """Two workers over ten minutes; a third's interval has three parts; every number different."""
    chance = random.Random(7)
    fates = [("accepted", ""), ("rejected", "topic-threshold"), ("errored", "MESSAGE_TOO_LARGE"), ("unanswered", "")]

    def rows(count: int) -> list[Row]:
        return [
            Row(
                chance.randrange(3), f"t{chance.randrange(4)}", f"User:{chance.randrange(3)}", f"c{i}",
                *chance.choice(fates), chance.randrange(10**6), chance.randrange(1000), 1, 0,
            )
            for i in range(count)
        ]  # fmt: skip

    lines = [line for w in (0, 1) for seq in range(20) for line in interval(seq * 1, rows(5), worker=w)]
    lines += interval(0, rows(2300), worker=2)
    lines += [line for seq in range(3) for line in interval(seq, rows(5), boot="b2", start_ms=START + 61_000 * seq)]
    return lines


@pytest.mark.parametrize(("by", "window"), [(("topic", "principal"), 60_000), (("broker", "outcome", "reason"), None)])
def test_sums_are_exact_with_any_rows_twice_and_in_any_order(
    unique: Make, by: tuple[str, ...], window: int | None
) -> None:
    lines = _log()
    several = lines + lines[3:30] + lines[-4:] * 3 + [lines[0][:80], "rubbish"]
    random.Random(3).shuffle(several)
    rows = [row.asDict() for row in transforms.sum_records(unique(several), by, window).collect()]
    keys = [*([schema.WINDOW_COLUMN] if window else []), *by]
    assert summed(rows, keys) == truth(lines, by, window)
    assert len({row[schema.WINDOW_COLUMN] for row in rows if window}) == (3 if window else 0)


def test_the_effects_of_an_observed_policy_are_beside_the_offered_bytes_not_among_them(unique: Make) -> None:
    rows = [
        Row(outcome="accepted", bytes=100, messages=1, requests=1, delay_ms=5),
        Row(outcome="would_reject", reason="topic-threshold", bytes=70, messages=1, requests=1, delay_ms=3000),
        Row(outcome="would_delay", reason="topic-threshold", bytes=30, messages=1, requests=1, delay_ms=400),
    ]
    (row,) = transforms.sum_records(unique(interval(0, rows))).collect()
    assert (row["offered_bytes"], row["accepted_bytes"], row["delay_ms"]) == (100, 100, 5)
    assert (row["would_reject_bytes"], row["would_delay_bytes"]) == (70, 30)


def test_every_outcome_has_its_sums_and_offered_is_all_of_them(unique: Make) -> None:
    reason = {"rejected": "fence", "errored": "REQUEST_TIMED_OUT", "dropped": "acks0"}
    rows = [
        Row(outcome=outcome, reason=reason.get(outcome, ""), bytes=2**i, messages=3**i, requests=i, delay_ms=i)
        for i, outcome in enumerate(usage.OUTCOMES)
    ]
    rows.append(Row(outcome="errored", reason="MESSAGE_TOO_LARGE", bytes=2**20))
    sums = transforms.sum_records(unique(interval(0, rows))).collect()[0].asDict()
    assert {outcome: sums[f"{outcome}_bytes"] for outcome in usage.OUTCOMES} == {
        outcome: 2**i + (2**20 if outcome == "errored" else 0) for i, outcome in enumerate(usage.OUTCOMES)
    }
    assert sums["rejected_messages"] == 3 ** usage.OUTCOMES.index("rejected")
    assert sums["offered_bytes"] == sum(row.bytes for row in rows)
    assert sums["offered_requests"] == sum(row.requests for row in rows)
    assert sums["delay_ms"] == sum(row.delay_ms for row in rows)
    assert sums["maybe_appended_bytes"] == sum(
        row.bytes for row in rows if usage.may_be_appended(row.outcome, row.reason)
    )


def test_an_interval_counts_whole_in_the_window_in_which_it_starts(unique: Make) -> None:
    lines = [line for seq, at in enumerate((-1, 0, 59_999, 60_000)) for line in interval(seq, start_ms=START + at)]
    records = unique(lines)
    sums = transforms.sum_records(records, (), 60_000)
    windows = {row[schema.WINDOW_COLUMN]: row["offered_bytes"] for row in sums.collect()}
    assert windows == {START - 60_000: 100, START: 200, START + 60_000: 100}
    chosen = transforms.filter_by_start(records, START, START + 60_000)
    assert sorted(row["start_ms"] for row in chosen.collect()) == [START, START + 59_999]


def test_copies_that_differ_are_conflicts_and_the_choice_among_them_depends_on_no_order(raw: Make) -> None:
    one, other = interval(0, [Row(bytes=1)])[0], interval(0, [Row(bytes=2)])[0]
    kept = set()
    for lines in ([one, other, one], [other, one, one]):
        marked = transforms.mark_copies(transforms.decode_records(raw(lines))).collect()
        assert sorted(row["copy"] for row in marked) == [1, 2, 3]
        first = next(row["rows"] for row in marked if row["copy"] == 1)
        assert all(row["conflict"] == (row["rows"] != first) for row in marked)
        assert any(row["conflict"] for row in marked)
        kept.add(first[0]["bytes"])
    assert len(kept) == 1


def test_a_note_of_loss_is_no_copy_of_the_interval_that_it_names(unique: Make) -> None:
    assert unique([*interval(0), lost(0)]).count() == 2


def test_gaps_are_found_at_the_start_in_the_middle_at_the_end_and_within_an_interval(unique: Make) -> None:
    parts = interval(5, [Row(client_id=str(i)) for i in range(2300)], boot="parts")
    lines = [
        *interval(0, boot="whole"), *interval(1, (), boot="whole", final=True),
        *interval(2, boot="start"), *interval(3, boot="start"),
        *interval(0, boot="middle"), *interval(4, boot="middle"), *interval(6, boot="middle"),
        *interval(0, boot="end"), lost(3, boot="end"),
        lost(1, boot="nothing"), lost(-1, boot="stillborn"),
        *(line for seq in range(5) for line in interval(seq, boot="parts")), parts[1],
        *interval(0, boot="worker", worker=0), *interval(1, boot="worker", worker=1),
    ]  # fmt: skip
    assert len(parts) == 3
    names = ("boot", "worker", "gap", "first_seq", "last_seq", "missing", "after_ms", "before_ms")
    found = {tuple(row[name] for name in names) for row in transforms.detect_gaps(unique(lines)).collect()}
    second = [START + 1000 * i for i in range(8)]
    assert found == {
        ("start", 0, "seq", 0, 1, 2, None, second[2]),
        ("middle", 0, "seq", 1, 3, 3, second[1], second[4]),
        ("middle", 0, "seq", 5, 5, 1, second[5], second[6]),
        ("end", 0, "seq", 1, 3, 3, second[1], START + 60_000),
        ("nothing", 0, "seq", 0, 1, 2, None, START + 60_000),
        ("parts", 0, "parts", 5, 5, 2, second[5], second[6]),
        ("worker", 1, "seq", 0, 0, 1, None, second[1]),
    }


def test_boots_are_final_lost_or_open(unique: Make) -> None:
    lines = [
        *interval(0, boot="final"), *interval(1, boot="final", final=True), lost(0, boot="final"),
        *interval(0, boot="lost"), *interval(2, boot="lost"), lost(2, boot="lost"),
        *interval(0, boot="open"), *interval(0, boot="open"),
        lost(-1, boot="stillborn"),
    ]  # fmt: skip
    names = ("state", "intervals", "first_seq", "last_seq", "start_ms", "end_ms", "lost_seq")
    found = {
        row["boot"]: tuple(row[name] for name in names) for row in transforms.summarize_boots(unique(lines)).collect()
    }
    assert found == {
        "final": ("final", 2, 0, 1, START, START + 2000, 0),
        "lost": ("lost", 2, 0, 2, START, START + 3000, 2),
        "open": ("open", 1, 0, 0, START, START + 1000, None),
        "stillborn": ("lost", 0, None, None, None, None, -1),
    }


def test_a_life_is_whole_only_if_it_has_no_gaps(spark: SparkSession) -> None:
    chance = random.Random(5)
    rows = []
    for life in range(300):
        numbers = list(range(chance.choice((0, 0, 0, 1)), chance.randrange(5)))
        if numbers and chance.random() < 0.3:
            numbers.remove(chance.choice(numbers))
        for seq in numbers:
            parts = chance.choice((1, 1, 1, 1, 1, 1, 2))
            rows += [
                ("gw", f"b{life}", 0, usage.INTERVAL, seq, parts, False, START, START + 1)
                for _ in range(chance.randint(1, parts))
            ]
        if chance.random() < 0.4 or not numbers:
            rows.append(("gw", f"b{life}", 0, usage.LOST, chance.randrange(-1, 5), 1, False, START, START + 1))
    kinds = (
        "string, boot string, worker long, kind string, seq long, parts long, final boolean, start_ms long, end_ms long"
    )
    records = spark.createDataFrame(rows, f"gateway {kinds}").persist()
    lives = {row["boot"]: row[transforms.WHOLE_COLUMN] for row in transforms.summarize_boots(records).collect()}
    torn = {row["boot"] for row in transforms.detect_gaps(records).collect()}
    parted = {row[1] for row in rows if row[5] > 1}
    assert {boot for boot, is_whole in lives.items() if not is_whole} == torn | parted
    assert len(lives) == 300
    assert 20 < len(torn) < 280
    records.unpersist()
