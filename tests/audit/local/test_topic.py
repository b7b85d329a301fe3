# Of a topic no more is read than the question needs: from an hour before its first interval on, and where records are
# missing there, older ones.

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.batch.query import AuditQuery, AuditReport, answer_query
from gateway.audit.local.records import LocalRecords
from gateway.audit.local.spool import ValueBatch
from gateway.audit.local.topic import TopicSource
from gateway.audit.reconcile import command as reconcile_command
from gateway.audit.reconcile.reconcile import LogSnapshot, UsageSum
from tests.audit.records import START, Row, interval, lost

if TYPE_CHECKING:
    from gateway.embedded import EmbeddedCluster

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
FROM_MS = START + 10 * DAY_MS
QUESTION = AuditQuery(by=("topic",), window_ms=HOUR_MS, from_ms=FROM_MS)


def _log(*seconds: int, boot: str) -> list[tuple[int, str]]:
    """(when it was published, record) of a life's intervals, that many seconds after FROM_MS, which is in Unix ms."""
    found = [
        (FROM_MS + 1000 * second + 1500, line)
        for seq, second in enumerate(seconds)
        for line in interval(seq, [Row(bytes=1 + seq)], boot=boot, start_ms=FROM_MS + 1000 * second)
    ]
    return [(at, line) for at, line in found if line]


BUSY = _log(*range(-9 * 86_400, 1800, 600), boot="busy")
IDLE = _log(-5 * 86_400, -5 * 86_400 + 1, 60, 61, boot="idle")
BRIEFLY_IDLE = _log(-5 * 86_400, -80_000, 60, 61, boot="briefly idle")
RETURNED = [*_log(-7200, boot="returned"), (FROM_MS + 90_000, lost(0, boot="returned", now_ms=FROM_MS + 90_000))]
TORN = [each for each in BUSY if each[0] < FROM_MS + 600_000 or each[0] >= FROM_MS + 1_200_000]


@pytest.fixture
def publish(kafka: EmbeddedCluster) -> Iterator[Any]:
    """Make a topic of these records, in three partitions; gives its name."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    made = []

    def make(log: list[tuple[int, str]]) -> str:
        name = f"usage-range-{uuid.uuid4().hex[:8]}"
        forever = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**60)}
        admin.create_topics([NewTopic(name, 3, 1, config=forever)])[name].result(60)
        made.append(name)
        # In order, also where the broker is late: what is read from an offset on depends on it.
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
        choose = random.Random(len(log)).randrange
        for at, line in sorted(log, key=lambda each: each[0]):
            producer.produce(name, line, partition=choose(3), timestamp=at)
        assert producer.flush(60) == 0
        return name

    yield make
    for deleted in admin.delete_topics(made).values() if made else ():
        deleted.result(60)


@pytest.mark.kafka
def test_a_topic_is_read_from_shortly_before_the_question_and_further_back_where_something_is_missing(
    kafka: EmbeddedCluster, publish: Any
) -> None:
    for log, read_from_ms, gaps in (
        (BUSY, FROM_MS - HOUR_MS, 0),
        ([*BUSY, *BRIEFLY_IDLE], FROM_MS - DAY_MS, 0),
        ([*BUSY, *IDLE], None, 0),  # two intervals an hour, then none for days
        ([*BUSY, *RETURNED], FROM_MS - DAY_MS, 0),
        (TORN, None, 1),
    ):
        topic = publish(log)
        source = TopicSource(kafka.bootstrap_servers, topic, {}, FROM_MS)
        found = answer_query(LocalRecords([source]), QUESTION)
        whole = answer_query(LocalRecords([TopicSource(kafka.bootstrap_servers, topic, {})]), QUESTION)
        assert (found.rows, found.integrity.gaps) == (whole.rows, whole.integrity.gaps)
        assert found.rows
        assert found.integrity.gaps_total == gaps
        expected = [at for at, _ in log if read_from_ms is None or at >= read_from_ms]
        assert found.integrity.records == len(expected)
        partitions = source.description["partitions"]
        assert sum(each["end_offset"] - each["start_offset"] for each in partitions) == len(expected)
        assert whole.integrity.records == len(log)


@pytest.mark.kafka
def test_spark_reads_no_more_of_a_topic(
    kafka: EmbeddedCluster, publish: Any, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it, where something is missing; where nothing is: see the report below."""
    address = ("--bootstrap-servers", kafka.bootstrap_servers, "--topic", publish(TORN))
    since = datetime.fromtimestamp(FROM_MS / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    asked = ("--by", "topic", "--window", "1h", "--from", since, "--json", "--quiet")
    answers = []
    for engine in ("spark", "local"):
        assert command(*address, *asked, "--engine", engine) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert answers[0]["integrity"]["records"] == len(TORN)


@pytest.mark.kafka
def test_a_report_reads_what_it_shows_and_as_long_a_time_before(
    kafka: EmbeddedCluster,
    publish: Any,
    command: Callable[..., int],
    tmp_path: Path,
) -> None:
    address = ("--bootstrap-servers", kafka.bootstrap_servers, "--topic", publish(BUSY))
    since, until = (f"{datetime.fromtimestamp((FROM_MS + ms) / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" for ms in (0, HOUR_MS))
    pages = []
    for engine in ("spark", "local"):
        output = tmp_path / f"{engine}.html"
        assert command("report", *address, "--from", since, "--to", until, "--output", output, "--engine", engine) == 0
        pages.append(output.read_text())
    page = pages[0]
    assert pages[1] == page
    found = [at for at, _ in BUSY if at >= FROM_MS - 2 * HOUR_MS]
    assert f'Records read</th><td class="n">{len(found)}<' in page
    assert "<strong>Complete.</strong>" in page
    shown = [line for at, line in BUSY if FROM_MS <= at - 1500 < FROM_MS + HOUR_MS]
    assert f"{sum(json.loads(line)['rows'][0]['bytes'] for line in shown):,}" in page


@pytest.mark.kafka
def test_what_nothing_has_been_published_for_is_an_empty_answer(kafka: EmbeddedCluster, publish: Any) -> None:
    source = TopicSource(kafka.bootstrap_servers, publish(BUSY), {}, FROM_MS + 10 * DAY_MS)
    found = answer_query(LocalRecords([source]), AuditQuery(from_ms=FROM_MS + 10 * DAY_MS))
    assert (found.integrity.records, found.integrity.gaps_total) == (0, 0)


class _Parts:
    """The records of a log in parts by when they were published, the newest first."""

    description = {"kind": "topic"}

    def __init__(self, log: list[tuple[int, str]], bounds: list[int]) -> None:
        edges = [2**62, *sorted(bounds, reverse=True), -(2**62)]
        self._parts = [[line for at, line in log if low <= at < high] for high, low in pairwise(edges)]
        self.sizes = [len(part) for part in self._parts]

    def read_batches(self, part: int = 0) -> Iterator[ValueBatch]:
        yield ValueBatch([line.encode() for line in self._parts[part]], lambda _: "", len(self._parts[part]))


_LOOKS_BACK = "looking for what is missing in older records"
_ENGINES = (("--engine", "spark"), ("--engine", "local"))
_LIVES = st.lists(st.sets(st.integers(-400, 100), max_size=12), min_size=1, max_size=4)


@given(_LIVES, st.randoms(use_true_random=False), st.sets(st.integers(-400, -40), max_size=3), st.integers(0, 200))
def test_parts_say_of_the_question_what_all_records_say(
    lives: list[set[int]], chance: random.Random, bounds: set[int], missing: int
) -> None:
    log = [each for boot, seconds in enumerate(lives) for each in _log(*sorted(seconds), boot=f"boot {boot}")]
    log = [each for each in log if missing > 100 or chance.random() > missing / 500]  # some have gone
    log = [(at + chance.choice((0, 0, 5000, 90_000)), line) for at, line in log]  # some were published late

    def ask(cuts: list[int]) -> AuditReport:
        return answer_query(LocalRecords([_Parts(log, cuts)]), QUESTION)

    found, whole = ask([FROM_MS + 1000 * bound for bound in bounds]), ask([])
    assert found.rows == whole.rows
    assert found.integrity.gaps == whole.integrity.gaps
    assert found.integrity.lives_overlap == whole.integrity.lives_overlap


@pytest.mark.kafka
def test_storage_recommendations_and_what_ifs_read_what_they_need_and_say_what_all_says(
    kafka: EmbeddedCluster,
    publish: Any,
    command: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    address = ("--bootstrap-servers", kafka.bootstrap_servers, "--topic", publish(BUSY))
    spool, policy = tmp_path / "usage-all.jsonl", tmp_path / "gateway.yaml"
    spool.write_text("".join(f"{line}\n" for _, line in BUSY))
    limit = "thresholds: {total.bytes.in.per.sec.threshold: 10, topics: {clicks: {bytes.in.per.sec.threshold: 1}}}"
    policy.write_text(f"upstream: {{bootstrap_servers: 'k:9092'}}\n{limit}\n")
    since = f"{datetime.fromtimestamp(FROM_MS / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    for asked, engines, warm_up_ms in (
        (("storage",), ((),), 0),
        (("recommend", "--total", "1MB"), _ENGINES[:1], 0),
        (("what-if", policy), _ENGINES, 300_000),
    ):
        answers, counts = [], []
        for source in (("--spool", spool), *((*address, *engine) for engine in engines)):
            assert command(*asked, *source, "--from", since, "--format", "json", "--quiet") == 0
            answer = json.loads(capsys.readouterr().out)
            del answer["sources"]
            counts.append(answer.pop("integrity")["records"])
            answers.append(answer)
        assert all(answer == answers[0] for answer in answers)
        read = [at for at, _ in BUSY if at >= FROM_MS - HOUR_MS - warm_up_ms]
        assert counts == [len(BUSY), *[len(read) for _ in engines]]


@pytest.mark.kafka
@pytest.mark.usefixtures("command")
def test_a_reconciliation_with_an_earlier_look_reads_what_came_since(kafka: EmbeddedCluster, publish: Any) -> None:
    since, until = (LogSnapshot("c", at, at, {}) for at in (FROM_MS, FROM_MS + HOUR_MS))
    parser = reconcile_command._make_parser()

    def count(engine: str, topic: str, tell: Callable[[str], None]) -> tuple[UsageSum, bool]:
        address = ("--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic)
        options = parser.parse_args([*address, "--engine", engine])
        reading = reconcile_command._make_reading(options, {}, {}, since, until, 60_000)
        counted, complete = reconcile_command.count_usage(reading, since, until, 60_000, tell)
        assert counted["clicks"].in_flight.bytes
        return counted["clicks"].accepted, complete

    told: dict[str, list[str]] = {name: [] for name in ("busy", "torn", "spark")}
    busy = publish(BUSY)
    accepted, complete = count("local", busy, told["busy"].append)
    assert complete
    assert accepted.messages == 2 * 2  # of three intervals the one at the start is too near
    assert not count("local", publish(TORN), told["torn"].append)[1]
    assert [_LOOKS_BACK in told[name] for name in ("busy", "torn")] == [False, True]
    assert count("spark", busy, told["spark"].append) == (accepted, complete)
    read = sum(at >= FROM_MS - HOUR_MS - 60_000 for at, _ in BUSY)
    assert [text for text in told["spark"] if text.endswith(f": {read:,} records")]
