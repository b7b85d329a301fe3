# The usage log's promise: what a worker was told is on disk is there after any end, and all of it gets to the topic.

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from confluent_kafka import KafkaError, KafkaException
from trio.testing import MockClock

from gateway.channel import UsageInterval, UsageRow
from gateway.config import parse_settings
from gateway.config.sections.logs import UsageLog
from gateway.control.components.optional_components import ComponentUnusable
from gateway.control.components.usage_pipeline import make_chain
from gateway.control.metrics import GatewayMetrics
from gateway.control.outside import Outside
from gateway.control.usage import usage_log, usage_publisher, usage_spool
from gateway.control.usage.usage_log import LogChain, UsageLogWriter
from gateway.control.usage.usage_publisher import UsagePublisher
from gateway.control.usage.usage_spool import SpoolFull, SpoolInUse, UsageSpool
from gateway.embedded import EmbeddedCluster
from gateway.kafka.internal_topic import InternalTopic
from policies import usage
from policies.record_digests import find_digest, is_changed
from tests.background import until

MiB = 2**20


def interval(seq: int, boot: str = "boot-1", final: bool = False, topic: str = "t", rows: int = 1) -> UsageInterval:
    row = UsageRow(1, topic, "User:ANONYMOUS", "app", "accepted", "", 100, 1, 1)
    return UsageInterval(boot, 0, seq, 1000 * seq, 1000 * seq + 1000, (row,) * rows, {}, final)


def line(seq: int, boot: str = "boot-1", final: bool = False, padding: int = 0, version: int = usage.VERSION) -> bytes:
    rows = [UsageRow(1, "t", "User:ANONYMOUS", "x" * 200, "accepted", "", 100, 1, 1)] * max(1, padding // 330)
    return usage.encode_interval("gw", boot, 0, seq, rows, start_ms=0, end_ms=1, final=final, version=version)[0]


OpenSpool = Callable[..., UsageSpool]


@pytest.fixture
def open_spool(tmp_path: Path) -> Iterator[OpenSpool]:
    """Opens the spool below `tmp_path`, or in a folder of it, and closes it at the end."""
    with ExitStack() as stack:

        def open_spool(
            folder: str = "", max_bytes: int = 64 * MiB, retention_s: float = 3600.0, published_only: bool = True
        ) -> UsageSpool:
            spool = UsageSpool(tmp_path / folder, max_bytes, retention_s, published_only=published_only)
            stack.callback(spool.close)
            return spool

        yield open_spool


@asynccontextmanager
async def writing(log: UsageLogWriter) -> AsyncIterator[None]:
    """It runs meanwhile; in the end all that it was given is on disk."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        yield
        await drained(log)
        nursery.cancel_scope.cancel()


async def drained(log: UsageLogWriter) -> None:
    with trio.fail_after(20):
        await log.wait_drained()


def fill(spool: UsageSpool, boot: str) -> int:
    """Append up to the bound; return how many records went in."""
    for seq in range(1000):
        try:
            spool.append([line(seq, boot=boot, padding=30_000)])
        except SpoolFull:
            return seq
    raise AssertionError("there is no bound")


def lines_on_disk(path: Path) -> list[bytes]:
    """Every record in every file, in order."""
    return [line for file in sorted(path.glob("*.jsonl")) for line in file.read_bytes().splitlines()]


def on_disk(path: Path) -> list[Any]:
    """The same, decoded."""
    return list(map(usage.decode_record, lines_on_disk(path)))


def break_oldest_file(path: Path) -> Path:
    broken = min(path.glob("*.jsonl"))
    broken.unlink()
    broken.symlink_to("/proc/self/mem")  # whose first page gives EIO
    return broken


def sample(metrics: GatewayMetrics, name: str, labels: dict[str, str] | None = None) -> float | None:
    return metrics.registry.get_sample_value(f"produce_gateway_{name}", labels or {})


# --- the spool --------------------------------------------------------------------------------------------------------


def test_records_are_read_in_order_from_where_the_topic_has_them(open_spool: OpenSpool, tmp_path: Path) -> None:
    spool = open_spool()
    spool.append([line(0), line(1)])
    lines, position = spool.read_unpublished()
    assert lines == [line(0), line(1)]
    spool.mark_published(position)
    size = len(line(0)) + len(line(1)) + 2
    assert json.loads((tmp_path / "published.json").read_text()) == {"segment": 1, "offset": size}
    assert spool.read_unpublished()[0] == []
    spool.append([line(2)])
    assert spool.read_unpublished()[0] == [line(2)]
    assert spool.backlog_bytes == len(line(2)) + 1


def test_a_restart_goes_on_publishing_where_the_last_one_stopped(open_spool: OpenSpool) -> None:
    first = open_spool()
    first.append([line(0)])
    first.mark_published(first.read_unpublished()[1])
    first.append([line(1)])
    first.close()
    second = open_spool()
    second.append([line(2)])
    lines, position = second.read_unpublished()
    assert lines == [line(1)]
    second.mark_published(position)
    assert second.read_unpublished()[0] == [line(2)]


def test_an_upgrade_goes_on_with_what_the_release_before_has_left(open_spool: OpenSpool) -> None:
    first = open_spool()
    first.append([line(0, version=1), line(1, version=1)])
    first.close()
    second = open_spool()
    assert second.unfinished_lives() == [(0, "gw", "boot-1", 1)]
    second.append([line(0, boot="boot-2")])
    lines, position = second.read_unpublished()
    second.mark_published(position)
    lines += second.read_unpublished()[0]
    assert [(usage.decode_record(each)["version"], usage.decode_record(each)["seq"]) for each in lines] == [
        (1, 0),
        (1, 1),
        (2, 0),
    ]


def test_a_lost_position_means_copies_and_never_a_gap(open_spool: OpenSpool, tmp_path: Path) -> None:
    for content in (None, "", "{}", '{"segment": "x"}'):
        spool = open_spool(str(content))
        spool.append([line(0)])
        spool.mark_published(spool.read_unpublished()[1])
        spool.close()
        position = tmp_path / str(content) / "published.json"
        if content is None:
            position.unlink()
        else:
            position.write_text(content)
        again = open_spool(str(content))
        assert again.read_unpublished()[0] == [line(0)]
        again.close()


def test_half_a_record_left_by_a_crash_is_cut_off(open_spool: OpenSpool, tmp_path: Path) -> None:
    spool = open_spool()
    spool.append([line(0), line(1)])
    spool.close()
    (file,) = tmp_path.glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-10])
    again = open_spool()
    assert again.last_seq("boot-1") == 0
    again.append([line(1)])
    assert [record["seq"] for record in on_disk(tmp_path)] == [0, 1]


def test_an_interval_of_which_a_crash_left_only_the_first_parts_is_cut_off(
    open_spool: OpenSpool, tmp_path: Path
) -> None:
    rows = [UsageRow(1, "t", "User:ANONYMOUS", "app", "accepted", "", 100, 1, 1)] * (2 * usage.MAX_ROWS + 1)
    whole = [usage.encode_interval("gw", "boot-1", 0, seq, rows, start_ms=0, end_ms=1) for seq in range(2)]
    assert [len(parts) for parts in whole] == [3, 3]
    first = open_spool()
    first.append([line for parts in whole for line in parts])
    first.close()
    (file,) = tmp_path.glob("usage-*.jsonl")
    for left in (whole[1][:2], whole[1][:1]):
        file.write_bytes(b"\n".join([*whole[0], *left, whole[1][len(left)][:100]]))
        again = open_spool()
        assert again.last_seq("boot-1") == 0, "its worker sends it again"
        assert lines_on_disk(tmp_path) == whole[0]
        again.close()


async def test_only_one_gateway_writes_to_a_directory(open_spool: OpenSpool, tmp_path: Path) -> None:
    settings = parse_settings(f"upstream: {{bootstrap_servers: 'b:1'}}\nusage_log: {{spool_dir: {tmp_path}}}")
    spool = open_spool()
    with pytest.raises(SpoolInUse, match="give each its own"):
        open_spool()
    with pytest.raises(ComponentUnusable, match=r"give each its own usage_log\.spool_dir"):
        await Outside().make_components(settings).make_all(patient=False)
    spool.close()
    open_spool()


def test_a_write_that_fails_half_way_leaves_nothing_of_it(open_spool: OpenSpool, tmp_path: Path) -> None:
    spool = open_spool()
    spool.append([line(0)])
    size = next(tmp_path.glob("*.jsonl")).stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, limits[1]))  # as a disk with room for 50 more bytes
    try:
        with pytest.raises(OSError, match="too large"):
            spool.append([line(1)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert next(tmp_path.glob("*.jsonl")).stat().st_size == size
    spool.append([line(2)])
    assert [record["seq"] for record in on_disk(tmp_path)] == [0, 2]
    assert spool.read_unpublished()[0] == [line(0), line(2)]


def test_the_bound_refuses_rather_than_deleting_records_that_the_topic_lacks(
    open_spool: OpenSpool, tmp_path: Path
) -> None:
    spool = open_spool(max_bytes=MiB)
    seq = fill(spool, "boot-1")
    assert sum(file.stat().st_size for file in tmp_path.glob("*.jsonl")) <= MiB
    assert [record["seq"] for record in on_disk(tmp_path)] == list(range(seq))


def test_room_is_made_by_deleting_records_that_the_topic_has_oldest_first(
    open_spool: OpenSpool, tmp_path: Path
) -> None:
    spool = open_spool(max_bytes=MiB)
    for seq in range(100):
        spool.append([line(seq, padding=30_000)])
        spool.mark_published(spool.read_unpublished()[1])
    kept = [record["seq"] for record in on_disk(tmp_path)]
    assert kept == list(range(kept[0], 100))
    assert 20 < len(kept) < 36


def test_retention_deletes_old_files_once_they_are_published(open_spool: OpenSpool, tmp_path: Path) -> None:
    spool = open_spool(max_bytes=MiB, retention_s=60)
    for seq in range(8):
        spool.append([line(seq, padding=50_000)])  # files end at an eighth of the bound: 3 records each
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) == 3
    for file in files:
        os.utime(file, (time.time() - 100, time.time() - 100))
    spool.prune_expired()
    assert sorted(tmp_path.glob("*.jsonl")) == files  # nothing is published
    while (batch := spool.read_unpublished(max_bytes=60_000))[1][0] < 3:
        spool.mark_published(batch[1])
    spool.prune_expired()
    assert sorted(tmp_path.glob("*.jsonl")) == files[2:]  # the last one is written to
    assert spool.read_unpublished()[0]


def test_without_a_topic_age_alone_deletes(open_spool: OpenSpool, tmp_path: Path) -> None:
    spool = open_spool(retention_s=60, published_only=False)
    spool.append([line(0, final=True)])
    spool.close()
    (file,) = tmp_path.glob("*.jsonl")
    again = open_spool(retention_s=60, published_only=False)
    again.prune_expired()
    assert file.exists()
    os.utime(file, (time.time() - 100, time.time() - 100))
    again.prune_expired()
    assert not file.exists()


def test_the_last_sign_of_a_worker_without_an_end_is_kept(open_spool: OpenSpool, tmp_path: Path) -> None:
    spool = open_spool(retention_s=0, published_only=False)
    spool.append([line(0, boot="open"), line(0, boot="ended", final=True)])
    spool.close()
    again = open_spool(retention_s=0, published_only=False)
    again.prune_expired()
    assert again.unfinished_lives() == [(0, "gw", "open", 0)]
    again.append([usage.encode_lost("gw", "open", 0, 0, 1)])
    again.prune_expired()
    assert len(list(tmp_path.glob("*.jsonl"))) == 1


def test_its_size_can_be_asked_while_a_thread_begins_a_file(open_spool: OpenSpool, tmp_path: Path) -> None:
    spool = open_spool()

    class GrowingSegment(usage_spool._SpoolSegment):
        @property
        def size(self) -> int:
            spool._segments[2] = usage_spool._SpoolSegment(tmp_path, 0)
            return 7

        @size.setter
        def size(self, _: int) -> None:
            pass

    spool._segments[1] = GrowingSegment(tmp_path, 0)
    assert spool.total_bytes == 7


def test_for_room_files_go_that_have_the_last_sign_of_a_worker_which_stays_known(
    open_spool: OpenSpool, tmp_path: Path
) -> None:
    spool = open_spool(max_bytes=MiB)
    for number in range(100):  # idle workers, each in a file of its own or nearly so
        spool.append([line(0, boot=f"idle-{number}", padding=100_000)])
        spool.mark_published(spool.read_unpublished()[1])
    assert spool.total_bytes <= MiB
    assert len(spool.unfinished_lives()) == 100
    assert spool.last_seq("idle-0") == 0


def test_what_is_more_than_the_bound_by_itself_is_written_once_the_topic_has_the_rest(
    open_spool: OpenSpool, tmp_path: Path
) -> None:
    spool = open_spool(max_bytes=MiB)
    spool.append([line(0)])
    large = [line(1, padding=400_000), line(2, padding=400_000), line(3, padding=400_000)]
    with pytest.raises(SpoolFull):
        spool.append(large)
    spool.mark_published(spool.read_unpublished()[1])
    spool.append(large)
    assert [record["seq"] for record in on_disk(tmp_path)] == [1, 2, 3]
    assert spool.read_unpublished()[0] == large


def test_a_file_that_is_deleted_while_it_is_written_to_is_noticed(
    open_spool: OpenSpool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = open_spool()
    spool.append([line(0)])
    next(tmp_path.glob("*.jsonl")).unlink()
    spool.append([line(1)])
    assert [record["seq"] for record in on_disk(tmp_path)] == [1]
    assert "was deleted while it was written to" in caplog.text
    spool.close()


def test_a_file_that_vanishes_when_the_topic_has_a_part_of_it_leaves_no_backlog(
    open_spool: OpenSpool, tmp_path: Path
) -> None:
    spool = open_spool()
    spool.append([line(0), line(1)])
    _, position = spool.read_unpublished(max_bytes=len(line(0)) + 1)
    spool.mark_published(position)
    assert spool.backlog_bytes == len(line(1)) + 1
    next(tmp_path.glob("*.jsonl")).unlink()
    assert spool.read_unpublished()[0] == []
    assert spool.backlog_bytes == 0


def test_a_file_that_cannot_be_read_is_named_and_the_log_goes_on_once_it_is_gone(
    open_spool: OpenSpool, tmp_path: Path
) -> None:
    before = open_spool()
    before.append([line(0)])
    before.close()
    spool = open_spool()
    spool.append([line(1)])
    broken = break_oldest_file(tmp_path)
    with pytest.raises(OSError, match=broken.name):
        spool.read_unpublished()
    broken.unlink()
    assert spool.read_unpublished()[0] == [line(1)]


# --- intervals into the spool -----------------------------------------------------------------------------------------


async def test_an_interval_is_confirmed_only_when_it_is_on_disk(open_spool: OpenSpool, tmp_path: Path) -> None:
    metrics, confirmed = GatewayMetrics(), list[tuple[int, int]]()
    log = UsageLogWriter(open_spool(), "gw", metrics)
    for seq in range(3):
        assert log.enqueue_interval(
            interval(seq), partial(lambda n: confirmed.append((n, len(on_disk(tmp_path)))), seq)
        )
    assert confirmed == []
    async with writing(log):
        pass
    assert confirmed == [(0, 3), (1, 3), (2, 3)]
    assert sample(metrics, "usage_log_records_written_total") == 3
    assert not [record for record in on_disk(tmp_path) if "record_digest" in record], "there is no chain"


async def test_what_was_seen_of_disks_is_in_one_record_once_the_disk_has_it(
    open_spool: OpenSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_log, "RETRY_S", 0.01)
    spool = open_spool()
    log = UsageLogWriter(spool, "gw", GatewayMetrics())
    disks = usage.DiskNotes((usage.VolumeNote(1, "/a", 100, 80),))
    log.record_disks(disks)
    log.enqueue_lost(1, "other")  # which says nothing of disks

    def refuse(lines: list[bytes], append: Any = spool.append) -> None:
        monkeypatch.setattr(spool, "append", append)
        raise OSError("no room")

    async with writing(log):
        await drained(log)
        monkeypatch.setattr(spool, "append", refuse)
        for seq in range(2):
            log.enqueue_interval(interval(seq), lambda: None)
        await drained(log)
        log.enqueue_interval(interval(2), lambda: None)
    assert ["volumes" in record for record in on_disk(tmp_path)] == [False, True, False, False]


async def test_records_name_the_cluster_from_the_first_that_knows_it(open_spool: OpenSpool, tmp_path: Path) -> None:
    log = UsageLogWriter(open_spool(), "gw", GatewayMetrics())
    async with writing(log):
        for seq, cluster in enumerate(("", "A")):
            log.record_cluster(cluster)
            log.enqueue_interval(interval(seq), lambda: None)
            await drained(log)
        log.enqueue_lost(0, "boot-1")
    assert [record.get("cluster", "") for record in on_disk(tmp_path)] == ["", "A", "A"]


async def _write(spool: UsageSpool, chain: LogChain | None, *items: UsageInterval | tuple[int, str]) -> None:
    log = UsageLogWriter(spool, "gw", GatewayMetrics(), chain)
    async with writing(log):
        for item in items:
            if isinstance(item, UsageInterval):
                log.enqueue_interval(item, lambda: None)
            else:
                log.enqueue_lost(*item)


@pytest.mark.parametrize("key", [None, b"k" * 32])
async def test_a_chain_goes_on_in_another_control_and_each_life_has_its_own(
    open_spool: OpenSpool, tmp_path: Path, key: bytes | None
) -> None:
    for items in (
        [interval(0), interval(0, boot="boot-2"), interval(1, rows=2500), interval(2)],
        [interval(2), (0, "boot-2"), interval(3), interval(1, boot="boot-2")],  # who is said to be lost may be there
        [interval(4, final=True), (0, "boot-3")],
    ):
        spool = open_spool()
        await _write(spool, LogChain(key), *items)
        spool.close()
    lines = lines_on_disk(tmp_path)
    assert not any(is_changed(line, find_digest(line), () if key is None else (key,)) for line in lines)
    told = [usage.decode_record(line) for line in lines]
    assert len(told) == 11
    for boot in ("boot-1", "boot-2", "boot-3"):
        before: str | None = None
        for record in (record for record in told if record["boot"] == boot):
            assert record.get("previous_digest") == before
            before = before if record["kind"] == "lost" else record["record_digest"]


def test_the_chain_is_what_the_configuration_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "key"
    assert (make_chain(UsageLog()), make_chain(UsageLog(chain=True))) == (None, LogChain())
    kept = UsageLog(chain=True, chain_key_file=path)
    assert make_chain(kept) is None
    assert f"usage_log.chain_key_file: {path}: No such file or directory" in caplog.text
    path.write_text("k" * 32 + "\n")
    assert make_chain(kept) == LogChain(b"k" * 32)
    with pytest.raises(ValueError, match="chain_key_file: it has no effect without chain: true"):
        UsageLog(chain_key_file=path)


async def test_an_interval_that_comes_again_is_confirmed_and_not_written_twice(
    open_spool: OpenSpool, tmp_path: Path
) -> None:
    before, confirmed = open_spool(), list[int]()
    before.append([line(0)])
    before.close()  # control was restarted; the worker sends what it had no answer for
    log = UsageLogWriter(open_spool(), "gw", GatewayMetrics())
    async with writing(log):
        assert not log.enqueue_interval(interval(0), lambda: confirmed.append(0))
        assert log.enqueue_interval(interval(1), lambda: confirmed.append(1))
        assert not log.enqueue_interval(interval(1), lambda: confirmed.append(1))
    assert confirmed == [0, 1, 1]
    assert [record["seq"] for record in on_disk(tmp_path)] == [0, 1]


async def test_intervals_wait_while_the_disk_takes_none(
    nursery: trio.Nursery, open_spool: OpenSpool, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    spool, metrics, confirmed = open_spool(max_bytes=MiB), GatewayMetrics(), list[int]()
    fill(spool, "old")
    log = UsageLogWriter(spool, "gw", metrics)
    nursery.start_soon(log.run)
    seq = 0
    while log.has_room:
        log.enqueue_interval(interval(seq, rows=20), partial(confirmed.append, seq))
        seq += 1
        assert sample(metrics, "usage_log_queued_intervals") == seq  # at once: readers go by it
    assert seq == usage_log.MAX_QUEUED
    await trio.testing.wait_all_tasks_blocked()
    await until(lambda: (sample(metrics, "usage_log_spool_errors_total") or 0) >= 2, 0.5)
    assert confirmed == []
    assert caplog.text.count("can't write to the spool") == 1
    assert "max_spool_bytes" in log.problem

    def publish() -> bool:  # now there is something that may be deleted; all that waits is more than the bound
        spool.mark_published(spool.read_unpublished()[1])
        assert spool.total_bytes <= MiB
        return not log.queued

    await until(publish, 0.5)
    assert confirmed == list(range(usage_log.MAX_QUEUED))
    assert sample(metrics, "usage_log_queued_intervals") == 0
    assert log.has_room
    assert log.problem == ""
    assert "can be written again" in caplog.text


async def test_an_interval_that_no_reader_would_take_is_left_out_and_counted(
    open_spool: OpenSpool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics, confirmed = GatewayMetrics(), list[int]()
    log = UsageLogWriter(open_spool(), "gw", metrics)
    backwards = msgspec.structs.replace(interval(0), start_ms=2000, end_ms=1999)
    async with writing(log):
        log.enqueue_interval(backwards, lambda: confirmed.append(0))
        log.enqueue_interval(interval(1), lambda: confirmed.append(1))
    assert confirmed == [0, 1]  # saying it again would help nobody
    assert [record["seq"] for record in on_disk(tmp_path)] == [1]
    assert sample(metrics, "usage_log_dropped_total", {"reason": "invalid"}) == 1
    assert "end_ms: before start_ms" in caplog.text


async def test_rows_that_wait_are_bounded_as_well(tmp_path: Path) -> None:
    log = UsageLogWriter(None, "gw", GatewayMetrics())
    for seq in range(4):
        assert log.has_room
        log.enqueue_interval(interval(seq, rows=usage_log.MAX_QUEUED_ROWS // 4), lambda: None)
    assert not log.has_room


async def test_a_spool_that_opens_late_gets_all_that_waited_once(
    nursery: trio.Nursery, open_spool: OpenSpool, tmp_path: Path
) -> None:
    before = open_spool()
    before.append([line(0, boot="boot-1"), line(4, boot="old")])
    before.close()
    metrics, confirmed = GatewayMetrics(), list[int]()
    log = UsageLogWriter(None, "gw", metrics)
    nursery.start_soon(log.run)
    assert log.enqueue_lost_before(0, "boot-1") == []
    for seq in (0, 1, 2):  # the first of them is on disk, and nobody can know it yet
        log.enqueue_interval(interval(seq), partial(confirmed.append, seq))
    await trio.testing.wait_all_tasks_blocked()
    assert confirmed == []
    spool = open_spool()
    log.attach_spool(spool)
    await until(lambda: not log.queued, 0.5)
    assert confirmed == [0, 1, 2]
    assert [(r["boot"], r["seq"], r["kind"]) for r in on_disk(tmp_path)] == [
        ("boot-1", 0, "interval"),
        ("old", 4, "interval"),
        ("boot-1", 1, "interval"),
        ("boot-1", 2, "interval"),
        ("old", 4, "lost"),
    ]
    assert sample(metrics, "workers_lost_total") == 1


async def test_a_life_without_an_end_is_noted_as_lost_when_the_next_one_begins(
    open_spool: OpenSpool, tmp_path: Path
) -> None:
    before = open_spool()
    before.append([line(4, boot="old"), line(9, boot="done", final=True)])
    before.close()
    log = UsageLogWriter(open_spool(), "gw", GatewayMetrics())
    async with writing(log):
        assert log.enqueue_lost_before(0, "new") == ["old"]
        await drained(log)
        assert log.enqueue_lost_before(0, "new") == []
    lost = on_disk(tmp_path)[-1]
    assert (lost["kind"], lost["boot"], lost["seq"]) == ("lost", "old", 4)


async def test_a_life_of_a_worker_that_there_is_no_longer_is_noted_as_lost(
    open_spool: OpenSpool, tmp_path: Path
) -> None:
    before = open_spool()
    before.append([line(4, boot="kept"), line(9, boot="gone").replace(b'"worker":0', b'"worker":2')])
    before.close()
    metrics = GatewayMetrics()
    log = UsageLogWriter(open_spool(), "gw", metrics)
    async with writing(log):
        log.enqueue_lost_beyond(2)
    assert [(each["worker"], each["boot"], each["seq"]) for each in on_disk(tmp_path) if each["kind"] == "lost"] == [
        (2, "gone", 9)
    ]
    assert sample(metrics, "workers_lost_total") == 1


# --- the topic --------------------------------------------------------------------------------------------------------


def read_topic(servers: str, topic: str, count: int) -> tuple[list[tuple[bytes, bytes]], int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "x", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    found: list[tuple[bytes, bytes]] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append((message.key() or b"", message.value() or b""))
    consumer.close()
    return found, len(partitions)


@pytest.mark.kafka
def test_a_record_that_the_topic_refuses_for_ever_does_not_hold_up_the_others(
    open_spool: OpenSpool, kafka: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    config = {"max.message.bytes": "2000", "cleanup.policy": "compact"}
    topic = NewTopic("usage-b", num_partitions=1, replication_factor=1, config=config)
    admin.create_topics([topic])["usage-b"].result(timeout=30)
    metrics = GatewayMetrics()
    spool = open_spool()
    client = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 2}
    publisher = UsagePublisher(spool, client, "usage-b", 2, None, metrics)
    large = os.urandom(30_000).hex().join(['{"gateway":"', '","rows":[]}']).encode()
    spool.append([line(0), large, line(1)])
    assert publisher.publish_batch() == 3
    assert sample(metrics, "usage_log_dropped_total", {"reason": "refused"}) == 1
    assert spool.read_unpublished()[0] == []
    found, _ = read_topic(kafka.bootstrap_servers, "usage-b", 2)
    assert sorted(value for _, value in found) == [line(0), line(1)]
    assert "topic usage-b has cleanup.policy=compact, so of each worker all records but the last get" in caplog.text


def test_a_topic_that_cannot_be_reached_leaves_all_in_the_spool(open_spool: OpenSpool) -> None:
    spool = open_spool()
    spool.append([line(0)])
    publisher = UsagePublisher(spool, {"bootstrap.servers": "127.0.0.1:1", "log_level": 2}, "u", 1, 1, GatewayMetrics())
    with pytest.raises(usage_publisher.PublishError, match="topic u is not available"):
        publisher.publish_batch()
    assert spool.read_unpublished()[0] == [line(0)]


async def test_a_publisher_whose_spool_has_become_readable_has_no_problem_though_nothing_is_left(
    open_spool: OpenSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_publisher, "PUBLISH_BACKOFF_S", (0.01, 0.01))
    spool, metrics = open_spool(), GatewayMetrics()
    spool.append([line(0)])
    broken = break_oldest_file(tmp_path)
    publisher = UsagePublisher(spool, {}, "u", 1, 1, metrics)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publisher.run, UsageLogWriter(spool, "gw", metrics))
        await until(lambda: broken.name in publisher.problem)
        broken.unlink()
        await until(lambda: not publisher.problem)
        nursery.cancel_scope.cancel()


def test_a_certificate_that_is_gone_is_like_a_topic_that_cannot_be_reached(open_spool: OpenSpool) -> None:
    spool = open_spool()
    spool.append([line(0)])
    client = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", "ssl.ca.location": "/gone.pem"}
    publisher = UsagePublisher(spool, {**client, "log_level": 2}, "u", 1, 1, GatewayMetrics())
    with pytest.raises(usage_publisher.PublishError, match=r"ssl\.ca\.location failed"):
        publisher.publish_batch()


@pytest.mark.parametrize("poll", [0, 1])  # before the records, or while they are on their way
def test_a_producer_that_has_failed_for_good_is_replaced(
    open_spool: OpenSpool, monkeypatch: pytest.MonkeyPatch, poll: int
) -> None:
    """As librdkafka has it where the gateway may not write yet: see `is_fatal`."""
    spool = open_spool()
    spool.append([line(0)])
    producers: list[FailingProducer] = []

    class FailingProducer:
        def __init__(self, _: object) -> None:
            self._polls = 0
            self._is_first = not producers
            self._waiting: list[Any] = []
            producers.append(self)

        def produce(self, topic: str, *, value: bytes, key: bytes, on_delivery: Any) -> None:
            self._waiting.append(on_delivery)

        def poll(self, timeout: float) -> None:
            self._polls += 1
            if self._is_first and self._polls == poll + 1:
                raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no right", True))
            while not self._is_first and self._waiting:
                self._waiting.pop()(None, None)

    monkeypatch.setattr(usage_publisher, "Producer", FailingProducer)
    monkeypatch.setattr(InternalTopic, "ensure_topic", lambda _: "")
    publisher = UsagePublisher(spool, {"bootstrap.servers": "127.0.0.1:1"}, "u", 1, 1, GatewayMetrics())
    with pytest.raises(usage_publisher.PublishError, match="topic u: no right"):
        publisher.publish_batch()
    assert publisher.publish_batch() == 1
    assert len(producers) == 2
