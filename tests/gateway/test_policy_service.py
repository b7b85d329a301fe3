# The one way by which policies change, over a file: what is answered, told, counted, audited and kept.

from __future__ import annotations

import json
import logging
import os
import resource
import stat
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from pytest_trio import trio_fixture

from gateway.control.policies.service import OUTCOMES, PolicyService
from gateway.control.policies.store import Decide, FileStore, RetriedStore, StoreError, Written
from gateway.policy_document import DocumentError
from policies.policy_set import Op, PolicyError, PolicyKey, PolicySet, Source
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.store import Alteration
from policies.quotas.store import Op as QuotaOp

CLICKS, VIEWS, ORDERS = (PolicyKey.of_topic(name) for name in ("clicks", "views", "orders"))
TOTAL = PolicyKey.of_broker()
ALICE_SHARES = PolicyKey.of_quota(Entity("alice"), QuotaKey("producer_byte_rate", "shares"))
BASE = {TOTAL: 12.0, CLICKS: 5.0}
ALICE = Source("User:alice", "kafka", "127.0.0.1:5")


class Metrics:
    """What a service says to be shown."""

    def __init__(self) -> None:
        self.version = -1
        self.up = False
        self.outcomes = dict.fromkeys(OUTCOMES, 0)

    def show_policy_version(self, version: int) -> None:
        self.version = version

    def show_policy_store(self, up: bool) -> None:
        self.up = up

    def count_policy_change(self, outcome: str) -> None:
        self.outcomes[outcome] += 1


class Gateway:
    """A service that runs, and what it told."""

    def __init__(self, path: Path, nursery: trio.Nursery, base: dict[PolicyKey, float] | None = None) -> None:
        self.metrics = Metrics()
        self.told: list[PolicySet] = []
        self.gone: frozenset[str] = frozenset()
        self.store = FileStore(path, BASE if base is None else base)
        self.service = PolicyService(self.store, self.metrics, self.told.append, lambda: self.gone)
        self._nursery = nursery

    async def start(self) -> Gateway:
        self._nursery.start_soon(self.service.run)
        await self.service.loaded.wait()
        return self

    @property
    def topics(self) -> dict[str, float]:
        return self.service.policies.topics()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "policies.jsonl"


@trio_fixture
async def gateway(path: Path, nursery: trio.Nursery) -> Gateway:
    return await Gateway(path, nursery).start()


def content(path: Path) -> bytes:
    return path.read_bytes()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.lowlevel.checkpoint()


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- changes ----------------------------------------------------------------------------------------------------------


async def test_who_has_the_answer_finds_his_change_in_force_told_and_kept(gateway: Gateway, path: Path) -> None:
    altered = await gateway.service.alter([Op(CLICKS, 6), Op(VIEWS, 1)], ALICE)
    assert gateway.topics == {"clicks": 6, "views": 1}
    assert [policies.topics() for policies in gateway.told] == [{"clicks": 6, "views": 1}]
    assert (altered.version, gateway.metrics.version, gateway.metrics.up) == (1, 1, True)
    assert [(change.key, change.old, change.new) for change in altered.changes] == [(CLICKS, 5, 6), (VIEWS, None, 1)]
    records = lines(path)[-1]["records"]
    assert [(r["key"][1], r["value"]["value"], r["value"]["who"]) for r in records[:2]] == [
        ("clicks", 6, "User:alice"), ("views", 1, "User:alice"),
    ]  # fmt: skip


async def test_each_change_is_a_line_that_says_who_from_where_old_and_new(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.audit")
    await gateway.service.alter([Op(CLICKS, 6), Op(VIEWS, 1)], ALICE)
    await gateway.service.alter([Op(CLICKS, None)], Source("evil\nname", "cli"))
    assert [record.getMessage() for record in caplog.records if record.name == "gateway.audit"] == [
        "policy version 1: bytes.in.per.sec.threshold of topic clicks: 5 bytes/s -> 6 bytes/s,"
        " by User:alice via kafka from 127.0.0.1:5",
        "policy version 1: bytes.in.per.sec.threshold of topic views: none -> 1 bytes/s,"
        " by User:alice via kafka from 127.0.0.1:5",
        "policy version 2: bytes.in.per.sec.threshold of topic clicks: 6 bytes/s -> 5 bytes/s, by evil name via cli",
    ]


async def test_a_refusal_changes_tells_and_keeps_nothing(gateway: Gateway, path: Path) -> None:
    before = content(path)
    with pytest.raises(PolicyError, match="which exceeds"):
        await gateway.service.alter([Op(VIEWS, 1), Op(ORDERS, 20)], ALICE)
    assert content(path) == before
    assert gateway.told == []
    assert gateway.metrics.outcomes == {"accepted": 0, "unchanged": 0, "refused": 1, "failed": 0}


async def test_deleted_topics_leave_the_sum(gateway: Gateway) -> None:
    gateway.gone = frozenset({"clicks"})
    await gateway.service.alter([Op(VIEWS, 12)], ALICE)
    assert gateway.service.policies.topics(gateway.gone) == {"views": 12}


async def test_to_validate_changes_nothing_but_says_what_would(gateway: Gateway, path: Path) -> None:
    before = content(path)
    altered = await gateway.service.alter([Op(VIEWS, 7)], ALICE, validate_only=True)
    assert altered.version == 0
    assert [(change.key, change.new) for change in altered.changes] == [(VIEWS, 7)]
    assert "use up" in altered.warnings[0]
    with pytest.raises(PolicyError):
        await gateway.service.alter([Op(VIEWS, 8)], ALICE, validate_only=True)
    assert content(path) == before
    assert gateway.told == []
    assert sum(gateway.metrics.outcomes.values()) == 0


async def test_what_alters_only_where_a_value_comes_from_is_kept_but_told_nobody(gateway: Gateway) -> None:
    altered = await gateway.service.alter([Op(CLICKS, 5)], ALICE)
    assert altered.version == 1
    assert gateway.told == []
    assert gateway.service.overview()["origins"][1]["origin"] == "run time"


async def test_many_at_once_are_made_one_after_another(gateway: Gateway) -> None:
    async def put(number: int) -> None:
        await gateway.service.alter([Op(PolicyKey.of_topic(f"t{number}"), 1)], ALICE)

    async with trio.open_nursery() as nursery:
        for number in range(7):
            nursery.start_soon(put, number)
    assert len(gateway.topics) == 8
    assert gateway.service.policies.version == 7
    assert gateway.metrics.outcomes["accepted"] == 7


async def test_losing_the_last_total_while_there_are_shares_is_a_warning(
    path: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await Gateway(path, nursery, {}).start()
    await gateway.service.alter([Op(TOTAL, 10), Op(ALICE_SHARES, 3)], ALICE)
    altered = await gateway.service.alter([Op(TOTAL, None)], ALICE)
    assert altered.warnings == ("1 quotas in shares have no effect: there is no broker total to share",)
    assert altered.warnings[0] in caplog.text


# --- client quotas ----------------------------------------------------------------------------------------------------


def of(user: str, value: float) -> Alteration:
    return Alteration([("user", user)], [QuotaOp("producer_byte_rate", value)])


async def test_an_entity_that_is_refused_leaves_the_others_alone(gateway: Gateway) -> None:
    altered = await gateway.service.alter_quotas([of("alice", 5), of("bob", -1)], ALICE)
    assert [error is None for error in altered.errors] == [True, False]
    assert list(gateway.service.policies.quotas().entries) == [Entity("alice")]
    only_errors = await gateway.service.alter_quotas([of("bob", -1)], ALICE)
    assert "finite number above 0" in str(only_errors.errors[0])
    assert only_errors.version == 1
    assert gateway.metrics.outcomes == {"accepted": 1, "unchanged": 0, "refused": 1, "failed": 0}
    validated = await gateway.service.alter_quotas([of("carol", 5), of("bob", -1)], ALICE, validate_only=True)
    assert [error is None for error in validated.errors] == [True, False]
    assert list(gateway.service.policies.quotas().entries) == [Entity("alice")]


# --- documents --------------------------------------------------------------------------------------------------------


async def test_an_apply_twice_does_it_once(gateway: Gateway, path: Path) -> None:
    document = {
        "thresholds": {"total": {"default": "20kB"}, "topics": {"views": "2kB"}},
        "client_quotas": [{"user": "alice", "producer_byte_rate": "1MB"}],
    }
    dry = await gateway.service.apply(document, ALICE, dry_run=True)
    assert gateway.told == []
    altered = await gateway.service.apply(document, ALICE)
    assert altered.changes == dry.changes
    assert len(altered.changes) == 3
    before = content(path)
    assert (await gateway.service.apply(document, ALICE)).changes == ()
    assert content(path) == before
    assert gateway.metrics.outcomes["unchanged"] == 1
    pruned = await gateway.service.apply({}, ALICE, prune=True)
    assert len(pruned.changes) == 3
    assert gateway.service.policies.effective() == BASE


async def test_an_apply_of_what_is_no_document_is_refused(gateway: Gateway) -> None:
    with pytest.raises(DocumentError, match="'5XB' is not a valid size"):
        await gateway.service.apply({"thresholds": {"total": "5XB"}}, ALICE)


async def test_ten_thousand_values_are_one_line_in_the_file(gateway: Gateway, path: Path) -> None:
    topics = {f"t{number}": number for number in range(10_000)}
    before = len(lines(path))
    await gateway.service.apply({"thresholds": {"total": "1GB", "topics": topics}}, ALICE)
    assert len(lines(path)) == before + 1
    assert len(gateway.told) == 1
    assert len(gateway.topics) == 10_001


async def test_the_overview_is_a_document_that_changes_nothing(gateway: Gateway) -> None:
    await gateway.service.alter([Op(VIEWS, 7), Op(ALICE_SHARES, 3)], ALICE)
    overview = gateway.service.overview()
    assert overview["version"] == 1
    assert (await gateway.service.apply(overview["document"], ALICE, prune=True)).changes == ()


# --- the file ---------------------------------------------------------------------------------------------------------


def put(store: FileStore, *ops: Op, source: Source = ALICE) -> Written:
    return store.write(lambda policies: policies.alter(ops), source)


def reopened(path: Path, base: dict[PolicyKey, float] | None = None) -> PolicySet:
    with closing(FileStore(path, BASE if base is None else base)) as store:
        return store.policies


def test_a_restart_finds_everything_and_compacts(path: Path) -> None:
    with closing(FileStore(path, BASE)) as store:
        for value in (1, 2, 3):
            put(store, Op(VIEWS, value), Op(ORDERS, 1))
            put(store, Op(ORDERS, None), source=Source("bob", "cli"))
    assert len(lines(path)) == 6
    policies = reopened(path)
    assert (policies.version, policies.changes) == (6, {VIEWS: 3})
    (kept,) = lines(path)
    views, head = kept["records"]
    assert (views["value"]["who"], views["value"]["version"]) == ("User:alice", 5)  # who set it is still known
    assert (head["value"]["who"], head["value"]["version"]) == ("bob", 6)
    assert reopened(path, {}).effective() == {VIEWS: 3}
    assert sorted(file.name for file in path.parent.iterdir()) == ["policies.jsonl", "policies.jsonl.lock"]


def test_half_a_line_of_a_crash_is_dropped(path: Path) -> None:
    with closing(FileStore(path, BASE)) as store:
        put(store, Op(VIEWS, 1))
        one = path.read_bytes()
        put(store, Op(VIEWS, 2))
    for size in range(len(one), path.stat().st_size):
        whole = path.read_bytes()
        path.write_bytes(whole[:size])
        assert reopened(path).topics()["views"] == 1
        assert path.read_bytes() == one
        path.write_bytes(whole)
    assert reopened(path).topics()["views"] == 2


def test_a_damaged_line_is_left_out_and_stays_for_a_look(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(FileStore(path, BASE)) as store:
        put(store, Op(VIEWS, 1))
    whole = path.read_bytes()
    path.write_bytes(b"garbage\n" + whole + b'{"records":[{"key":5,"value":5}]}\n' + whole[:-5])
    with closing(FileStore(path, BASE)) as store:
        put(store, Op(VIEWS, 2))
    assert path.read_bytes().startswith(b"garbage\n" + whole)
    assert path.read_bytes().count(b"\n") == 4
    assert f"{path}, line 1 is left out" in caplog.text
    assert f"{path}, line 3 is left out" in caplog.text
    assert reopened(path).topics()["views"] == 2


def test_a_file_has_one_gateway(path: Path) -> None:
    with (
        closing(FileStore(path, BASE)),
        pytest.raises(StoreError, match=rf"{path} is in use by another gateway: give each its own policies_store.file"),
    ):
        FileStore(path, {})


def test_who_has_which_limit_is_no_business_of_other_users(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "policies.jsonl"
    before = os.umask(0)
    try:
        with closing(FileStore(path, BASE)) as store:
            put(store, Op(VIEWS, 1))
        with closing(FileStore(path, BASE)):  # which writes it anew
            pass
    finally:
        os.umask(before)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)}
    assert modes == {"policies.jsonl": 0o640, "kept": 0o750}


def test_a_store_that_can_not_be_opened_yet_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "policies.jsonl"
    store = RetriedStore(lambda: FileStore(path, BASE), BASE)
    assert not store.loaded
    assert "can't be used" in store.problem
    assert store.policies.effective() == BASE
    with pytest.raises(StoreError, match="can't be used"):
        put(store, Op(VIEWS, 1))
    store.rebase({})
    (tmp_path / "file").unlink()
    while not store.loaded:
        store.poll(0.01)
    with closing(store):
        assert (store.problem, store.policies.effective()) == ("", {})
        put(store, Op(VIEWS, 1))
        assert store.policies.changes == {VIEWS: 1}


def test_a_place_that_can_not_be_used_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't be used"):
        FileStore(tmp_path / "file" / "policies.jsonl", {})


def test_a_deleted_file_is_written_anew_with_all_that_is_known(path: Path) -> None:
    with closing(FileStore(path, BASE)) as store:
        put(store, Op(VIEWS, 1))
        path.unlink()
        put(store, Op(ORDERS, 2))
    assert reopened(path).changes == {VIEWS: 1, ORDERS: 2}


def test_a_full_disk_refuses_changes_and_leaves_no_half_line(path: Path) -> None:
    with closing(FileStore(path, BASE)) as store:
        put(store, Op(VIEWS, 1))
        whole = path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 50, limits[1]))  # a disk with room for 50 more bytes
        try:
            with pytest.raises(StoreError, match=rf"{path}: can't be written: File too large"):
                put(store, Op(VIEWS, 2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == whole
        assert "File too large" in store.problem
        assert store.policies.topics() == {"clicks": 5, "views": 1}
        put(store, Op(VIEWS, 3))
        assert store.problem == ""
    assert reopened(path).topics()["views"] == 3


# --- a store that is away ---------------------------------------------------------------------------------------------


class Away:
    """A store that others write as well, and that can be out of reach."""

    follows = True

    def __init__(self) -> None:
        self.policies = PolicySet(BASE)
        self.loaded = False
        self.problem = "not read yet"
        self.arriving: Sequence[Op] = ()

    def poll(self, timeout_s: float) -> None:
        if self.arriving:
            self.policies, self.arriving = self.policies.alter(self.arriving), ()

    def write(self, decide: Decide, source: Source) -> Written:
        if self.problem:
            raise StoreError(self.problem)
        raise ZeroDivisionError("a bug")

    def rebase(self, base: Any) -> None:
        self.policies = self.policies.rebased(base)

    def close(self) -> None:
        self.problem = "closed"


async def test_before_all_was_read_and_while_it_is_away_changes_are_refused_with_the_reason(
    nursery: trio.Nursery,
) -> None:
    store, metrics, told = Away(), Metrics(), list[PolicySet]()
    service = PolicyService(store, metrics, told.append)
    nursery.start_soon(service.run)
    with pytest.raises(StoreError, match="not read yet"):
        await service.alter([Op(CLICKS, 1)], ALICE)
    assert not metrics.up
    store.loaded, store.problem, store.arriving = True, "", [Op(CLICKS, 2)]
    await service.loaded.wait()
    await until(lambda: bool(told))
    assert service.policies.topics() == {"clicks": 2}
    assert metrics.up
    store.problem = "the topic is gone"
    for validate_only in (False, True):
        with pytest.raises(StoreError, match="the topic is gone"):
            await service.alter([Op(CLICKS, 1)], ALICE, validate_only=validate_only)
    await until(lambda: not metrics.up)
    assert service.policies.topics() == {"clicks": 2}  # what was known last stays
    assert metrics.outcomes["failed"] == 2
    store.problem = ""
    with pytest.raises(ZeroDivisionError):  # a bug is the asker's, not everybody's
        await service.alter([Op(CLICKS, 1)], ALICE)
    await service.rebase({})
    assert service.policies.topics() == {"clicks": 2}
    assert service.policies.total() is None


async def test_a_stop_closes_the_store_and_who_waits_is_told() -> None:
    store = Away()
    store.loaded, store.problem = True, ""
    service = PolicyService(store, Metrics(), [].append)
    async with trio.open_nursery() as askers:

        async def ask() -> None:
            with pytest.raises(StoreError, match="the gateway is stopping"):
                await service.alter([Op(CLICKS, 1)], ALICE)

        askers.start_soon(ask)
        askers.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await service.run()
    assert store.problem == "closed"
