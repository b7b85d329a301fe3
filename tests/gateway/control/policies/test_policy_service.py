# The one way by which policies change, over a file: what is answered, told, counted, audited and kept.

from __future__ import annotations

import json
import logging
import os
import resource
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import trio
import trio.testing
from pytest_trio import trio_fixture
from trio.testing import MockClock

from gateway.control.facts import ClusterState, PublishedCluster
from gateway.control.policies.service import (
    CLOCK_CHECK_S,
    LOADING_TIMEOUT_S,
    ChangeResult,
    watched_topics,
)
from gateway.control.policies.store import Decide, FileStore, RetriedStore, StoreError, WrittenChange
from gateway.control.policies.topic_ids import CONFIRM_S
from gateway.control.policies.topic_log import MAX_HISTORY
from gateway.policy_document import DocumentError
from policies.definitions.policy_records import BY_EXPIRY, BY_TOPIC_DELETION, ChangeSource, PastChange
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    PolicyError,
    PolicyKey,
    PolicyOperation,
    PolicyValue,
    RuntimeValue,
    TopicId,
    TopicIds,
    ValueEnd,
    file_origin,
)
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from policies.quotas.store import Alteration, QuotaStore
from policies.quotas.store import Op as QuotaOp
from policies.thresholds.sums import CommittedTotal, TopicPlaces
from tests.background import until
from tests.gateway.control.contexts import OWN_SASL, make_context, make_policy_service
from tests.gateway.control.policies.policy_scene import PolicyMetrics, PolicyScene

CLICKS, VIEWS, ORDERS = (PolicyKey.of_topic(name) for name in ("clicks", "views", "orders"))
TOTAL = PolicyKey.of_broker()
ALICE_SHARES = PolicyKey.of_quota(Entity("alice"), QuotaKey("producer_byte_rate", "shares"))
BASE = {TOTAL: 12.0, CLICKS: 5.0}
ALICE = ChangeSource("User:alice", "kafka", "127.0.0.1:5")
AT_S = 1_700_000_000.0  # Unix time when trio's clock begins
HOUR_MS = 3_600_000


class Gateway(PolicyScene):
    """A running service, and what it told workers."""

    def __init__(self, path: Path, nursery: trio.Nursery, base: dict[PolicyKey, float] | None = None) -> None:
        super().__init__(path, BASE if base is None else base, PublishedCluster())
        self.told: list[PolicySet] = []
        self.fresh: TopicPlaces | None = None
        self.context.facts.policies.subscribe("test", self.told.append)
        self._nursery = nursery

    async def start(self) -> Gateway:
        self._nursery.start_soon(self.service.run)
        self._nursery.start_soon(self._refresh)
        await self.service.loaded.wait()
        assert len(self.told) == 1, "that they are loaded"
        self.told.clear()
        return self

    def now(self) -> float:
        return AT_S + trio.current_time()

    async def _refresh(self) -> None:
        cluster = self.context.facts.cluster
        while True:
            await cluster.wait_requested()
            with cluster.refreshing():
                self.places = self.fresh or self.places

    def answer(self, ids: TopicIds) -> None:
        """The cluster answers, with these ids of topics."""
        self.service.on_cluster_answer(ClusterState(places=self.places, topic_ids=ids))

    async def look(self, mock_clock: MockClock) -> None:
        """Looks at the cluster, until what they find counts."""
        self.answer(self.ids)
        mock_clock.jump(CONFIRM_S)
        self.answer(self.ids)

    @property
    def topics(self) -> Mapping[str, float]:
        return self.service.policies.topic_thresholds()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "policies.jsonl"


@trio_fixture
async def gateway(path: Path, nursery: trio.Nursery) -> Gateway:
    return await Gateway(path, nursery).start()


def content(path: Path) -> bytes:
    return path.read_bytes()


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- changes ----------------------------------------------------------------------------------------------------------


async def test_a_caller_that_has_the_answer_finds_its_change_in_force_told_and_kept(
    gateway: Gateway, path: Path
) -> None:
    altered = await gateway.service.alter_policies([PolicyOperation(CLICKS, 6), PolicyOperation(VIEWS, 1)], ALICE)
    assert gateway.topics == {"clicks": 6, "views": 1}
    assert [policies.topic_thresholds() for policies in gateway.told] == [{"clicks": 6, "views": 1}]
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
    await gateway.service.alter_policies([PolicyOperation(CLICKS, 6), PolicyOperation(VIEWS, 1)], ALICE)
    await gateway.service.alter_policies([PolicyOperation(CLICKS, None)], ChangeSource("evil\nname", "cli"))
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
        await gateway.service.alter_policies([PolicyOperation(VIEWS, 1), PolicyOperation(ORDERS, 20)], ALICE)
    assert content(path) == before
    assert gateway.told == []
    assert gateway.metrics.outcomes == {"accepted": 0, "unchanged": 0, "refused": 1, "failed": 0}


async def test_topics_count_on_brokers_that_have_a_partition_of_them(gateway: Gateway) -> None:
    gateway.places = {1: {"clicks"}, 2: {"views"}}
    await gateway.service.alter_policies([PolicyOperation(VIEWS, 12)], ALICE)
    assert gateway.topics == {"clicks": 5, "views": 12}
    assert gateway.metrics.excess == {"1": 5 - 12, "2": 0}
    with pytest.raises(PolicyError, match=r"^broker 2: its topics' .* by 1"):
        await gateway.service.alter_policies([PolicyOperation(VIEWS, 13)], ALICE)
    assert await gateway.service.find_misfits([PolicyOperation(CLICKS, 12)]) == [None]
    (error,) = await gateway.service.find_misfits(
        [PolicyOperation(ORDERS, 1)]
    )  # that isn't there yet, and may come to broker 2
    assert error is not None
    assert error.startswith("broker 2: ")


async def test_a_topic_that_is_not_known_yet_is_looked_for_before_its_threshold_is_judged(gateway: Gateway) -> None:
    gateway.places = {1: {"clicks"}}
    gateway.fresh = {1: {"clicks", "views"}}  # it was made a moment ago
    document = {"thresholds": {"topics": {"views": 8}}}
    for change in (
        gateway.service.alter_policies([PolicyOperation(VIEWS, 8)], ALICE),
        gateway.service.apply_document(document, ALICE),
    ):
        gateway.places = {1: {"clicks"}}
        with pytest.raises(PolicyError, match=r"^broker 1: "):
            await change
    gateway.places = {1: {"clicks"}}
    assert [
        error is None
        for error in await gateway.service.find_misfits([PolicyOperation(VIEWS, 8), PolicyOperation(CLICKS, 6)])
    ] == [False, True]
    gateway.places = {1: {"clicks"}}
    await gateway.service.alter_policies([PolicyOperation(CLICKS, 6)], ALICE)
    assert gateway.places == {1: {"clicks"}}, "nobody has to be asked about what is known"


async def test_partitions_that_move_leave_policies_as_they_are_and_say_which_broker_has_too_much(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.places = {1: {"clicks"}, 2: {"views"}}
    await gateway.service.alter_policies([PolicyOperation(VIEWS, 11)], ALICE)
    caplog.set_level(logging.INFO)
    caplog.clear()
    gateway.places = {1: set(), 2: {"views", "clicks"}}
    gateway.service.on_places_changed(gateway.context.facts.cluster.latest)
    gateway.service.on_places_changed(gateway.context.facts.cluster.latest)
    assert [record.getMessage() for record in caplog.records] == [
        "policies: broker 2: its topics' bytes.in.per.sec.threshold sum up to 16 bytes/s, which exceeds"
        " total.bytes.in.per.sec.threshold = 12 bytes/s by 4 bytes/s: lower some of them, or raise the total to at"
        " least 16 bytes/s"
    ]
    assert gateway.metrics.excess == {"1": -12, "2": 4}
    assert gateway.topics == {"clicks": 5, "views": 11}
    caplog.clear()
    gateway.places = {1: {"clicks"}, 2: {"views"}}
    gateway.service.on_places_changed(gateway.context.facts.cluster.latest)
    assert [record.getMessage() for record in caplog.records] == [
        "policies: broker 2: the topics' bytes.in.per.sec.threshold do not exceed its total any more"
    ]
    assert gateway.metrics.excess == {"1": -7, "2": -1}


async def test_to_validate_changes_nothing_but_says_what_would(gateway: Gateway, path: Path) -> None:
    before = content(path)
    altered = await gateway.service.alter_policies([PolicyOperation(VIEWS, 7)], ALICE, validate_only=True)
    assert altered.version == 0
    assert [(change.key, change.new) for change in altered.changes] == [(VIEWS, 7)]
    assert "use up" in altered.warnings[0]
    with pytest.raises(PolicyError):
        await gateway.service.alter_policies([PolicyOperation(VIEWS, 8)], ALICE, validate_only=True)
    assert content(path) == before
    assert gateway.told == []
    assert sum(gateway.metrics.outcomes.values()) == 0


async def test_a_change_of_only_a_values_origin_is_kept_but_not_told(gateway: Gateway) -> None:
    altered = await gateway.service.alter_policies([PolicyOperation(CLICKS, 5)], ALICE)
    assert altered.version == 1
    assert gateway.told == []
    assert gateway.service.export_overview(file_origin)["origins"][1]["origin"] == "run time"


async def test_many_at_once_are_made_one_after_another(gateway: Gateway) -> None:
    async def put(number: int) -> None:
        await gateway.service.alter_policies([PolicyOperation(PolicyKey.of_topic(f"t{number}"), 1)], ALICE)

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
    await gateway.service.alter_policies([PolicyOperation(TOTAL, 10), PolicyOperation(ALICE_SHARES, 3)], ALICE)
    altered = await gateway.service.alter_policies([PolicyOperation(TOTAL, None)], ALICE)
    assert altered.warnings == ("1 quotas in shares have no effect: there is no broker total to share",)
    assert altered.warnings[0] in caplog.text


# --- with an end ------------------------------------------------------------------------------------------------------


async def test_a_value_with_an_end_is_taken_back_by_itself_and_is_in_the_history(
    gateway: Gateway, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.audit")
    until_ms = round(gateway.now() * 1000) + HOUR_MS
    await gateway.service.alter_policies([PolicyOperation(CLICKS, 4)], ALICE)
    await gateway.service.alter_policies(
        [PolicyOperation(CLICKS, 6, until_ms), PolicyOperation(VIEWS, 1, until_ms + HOUR_MS)], ALICE
    )
    mock_clock.jump(3599)
    await trio.testing.wait_all_tasks_blocked()
    assert gateway.topics == {"clicks": 6, "views": 1}
    mock_clock.jump(2)
    await until(lambda: gateway.topics == {"clicks": 4, "views": 1})
    mock_clock.jump(3600)
    await until(lambda: gateway.topics == {"clicks": 4})
    assert [policies.version for policies in gateway.told] == [1, 2, 3, 4]
    assert [record.getMessage() for record in caplog.records if record.name == "gateway.audit"][1:] == [
        "policy version 2: bytes.in.per.sec.threshold of topic clicks: 4 bytes/s -> 6 bytes/s until"
        " 2023-11-14T23:13:20Z, by User:alice via kafka from 127.0.0.1:5",
        "policy version 2: bytes.in.per.sec.threshold of topic views: none -> 1 bytes/s until"
        " 2023-11-15T00:13:20Z, by User:alice via kafka from 127.0.0.1:5",
        "policy version 3: bytes.in.per.sec.threshold of topic clicks: 6 bytes/s -> 4 bytes/s, by itself via until",
        "policy version 4: bytes.in.per.sec.threshold of topic views: 1 bytes/s -> none, by itself via until",
    ]
    assert [(past.version, past.key, past.source, past.old, past.new) for past in gateway.service.history] == [
        (1, CLICKS, ALICE, 5, 4), (2, CLICKS, ALICE, 4, 6), (2, VIEWS, ALICE, None, 1),
        (3, CLICKS, BY_EXPIRY, 6, 4), (4, VIEWS, BY_EXPIRY, 1, None),
    ]  # fmt: skip
    assert gateway.metrics.outcomes == {"accepted": 2, "unchanged": 0, "refused": 0, "failed": 0}


async def test_another_end_is_told(gateway: Gateway) -> None:
    key = PolicyKey.of_storage()
    until_ms = round(gateway.now() * 1000) + HOUR_MS
    for end_ms in (until_ms, until_ms + HOUR_MS, until_ms + HOUR_MS, until_ms):
        await gateway.service.alter_policies([PolicyOperation(key, "PAUSE: swap", end_ms)], ALICE)
    assert [policies.ends[key].until_ms - until_ms for policies in gateway.told] == [0, HOUR_MS, 0]


async def test_a_value_that_ended_while_no_gateway_ran_is_taken_back_at_the_start(
    path: Path, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    with closing(FileStore(path, BASE)) as store:
        put(store, PolicyOperation(CLICKS, 4))
        put(store, PolicyOperation(CLICKS, 6, 1))
        assert store.policies.topic_thresholds() == {"clicks": 6}
    with closing(FileStore(path, BASE)) as store:
        assert store.policies.ends == {CLICKS: ValueEnd(1, 4)}, "also after it was compacted"
    gateway = await Gateway(path, nursery).start()
    await until(lambda: gateway.topics == {"clicks": 4})
    assert gateway.service.history[-1].source == BY_EXPIRY
    assert gateway.service.policies.ends == {}


async def test_nothing_is_taken_back_before_the_time_is_known(
    path: Path, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    gateway = Gateway(path, nursery)
    gateway.is_sure = False
    await gateway.start()
    await gateway.service.alter_policies([PolicyOperation(CLICKS, 6, round(gateway.now() * 1000) + 1000)], ALICE)
    for value in (1, 2, 3):
        mock_clock.jump(2)
        await trio.testing.wait_all_tasks_blocked()
        await gateway.service.alter_policies([PolicyOperation(VIEWS, value)], ALICE)  # behind what was begun before it
        assert gateway.topics == {"clicks": 6, "views": value}
    gateway.is_sure = True
    mock_clock.jump(2)
    await until(lambda: gateway.topics == {"clicks": 5, "views": 3})


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (lambda number: StoreError(f"the disk is full, {number}"), "the disk is full, "),
        (lambda number: (TimeoutError, InterruptedError)[number - 1](), ""),
    ],
)
async def test_a_value_that_can_not_be_taken_back_is_tried_again(
    gateway: Gateway,
    path: Path,
    mock_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[int], Exception],
    text: str,
) -> None:
    await gateway.service.alter_policies([PolicyOperation(CLICKS, 6, round(gateway.now() * 1000) + 1000)], ALICE)
    write, tries = gateway.store.write_change, []

    def fail(decide: Decide, source: ChangeSource) -> WrittenChange:
        tries.append(source)
        if len(tries) < 3:
            raise error(len(tries))
        return write(decide, source)

    monkeypatch.setattr(gateway.store, "write_change", fail)
    said = f"policies: ended values can't be taken back: {text}"
    for count in (1, 2):
        mock_clock.jump(4)
        await until(lambda: caplog.text.count(said) == count)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(4)
        await trio.testing.wait_all_tasks_blocked()
        assert tries == [BY_EXPIRY] * count
    mock_clock.jump(4)
    await until(lambda: gateway.topics == {"clicks": 5})
    assert tries == [BY_EXPIRY] * 3


def test_the_history_survives_a_restart_as_far_as_it_is_kept(path: Path) -> None:
    with closing(FileStore(path, BASE)) as store:
        for value in (1, 2):
            put(store, PolicyOperation(VIEWS, value), PolicyOperation(ORDERS, 1))
        put(store, PolicyOperation(ORDERS, None), source=ChangeSource("bob", "cli"))
        all_of_it = store.history
    assert [(past.key, past.new) for past in all_of_it] == [
        (ORDERS, 1), (VIEWS, 1), (VIEWS, 2), (ORDERS, None),
    ]  # fmt: skip
    with closing(FileStore(path, BASE)) as store:
        assert store.history == all_of_it
    with closing(FileStore(path, BASE)) as store:
        assert [(past.key, past.new) for past in store.history] == [(VIEWS, 2)], "it was compacted"


def test_the_history_is_bounded(path: Path) -> None:
    with closing(FileStore(path, {})) as store:
        for count in (MAX_HISTORY, 3):
            put(store, *(PolicyOperation(PolicyKey.of_topic(f"t{number}"), count) for number in range(count)))
        assert len(store.history) == MAX_HISTORY
        assert [past.new for past in store.history[-3:]] == [3, 3, 3]


# --- topics come and go -----------------------------------------------------------------------------------------------

OLD, NEW = TopicId("c", "old"), TopicId("c", "new")


async def test_a_threshold_is_gone_once_another_topic_has_its_topics_name(
    gateway: Gateway, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.audit")
    gateway.places, gateway.ids = {1: {"views"}}, {"views": OLD}
    await gateway.service.alter_policies([PolicyOperation(VIEWS, 1)], ALICE)
    assert watched_topics(gateway.service.policies) == ["views"]
    for found in ({"views": OLD}, {}, {"clicks": NEW}):  # there, away, and another one's
        gateway.ids = found
        await gateway.look(mock_clock)
        await trio.testing.wait_all_tasks_blocked()
        assert gateway.topics == {"clicks": 5, "views": 1}
    gateway.ids = {"views": NEW}
    gateway.answer(gateway.ids)
    mock_clock.jump(CONFIRM_S - 0.001)
    gateway.answer(gateway.ids)
    await trio.testing.wait_all_tasks_blocked()
    assert gateway.topics == {"clicks": 5, "views": 1}, "a broker that is behind may say so"
    mock_clock.jump(0.001)
    gateway.answer(gateway.ids)
    await until(lambda: gateway.topics == {"clicks": 5})
    assert gateway.told[-1].topic_thresholds() == {"clicks": 5}
    past = gateway.service.history[-1]
    assert (past.source, past.key, past.old, past.new) == (BY_TOPIC_DELETION, VIEWS, 1, None)
    assert caplog.messages[-1].endswith("of topic views: 1 bytes/s -> none, by itself via topic deleted")
    version = gateway.service.policies.version
    await gateway.look(mock_clock)
    await trio.testing.wait_all_tasks_blocked()
    assert gateway.service.policies.version == version


async def test_the_topic_of_a_threshold_is_remembered_over_a_restart(
    path: Path, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    with closing(FileStore(path, BASE)) as store:
        put(store, PolicyOperation(VIEWS, 1), PolicyOperation(ORDERS, 1))
    gateway = await Gateway(path, nursery).start()
    gateway.ids = {"views": OLD}
    await gateway.look(mock_clock)  # the topic was made after its threshold was set
    await until(lambda: gateway.service.policies.topic_ids == gateway.ids)
    assert gateway.told == [], "for workers nothing has changed"
    history = gateway.service.history
    assert [past.source for past in history] == [ALICE] * 2, "nobody has changed anything"
    gateway.store.close()
    for _ in range(2):  # the file, and what remains when it is compacted
        with closing(FileStore(path, BASE)) as store:
            assert store.policies.topic_ids == {"views": OLD}
            assert set(store.history) == set(history)


async def test_a_value_that_is_set_again_is_the_present_topics(
    path: Path, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    """A script deletes a topic, makes it anew and sets its threshold, before any look has found out."""
    gateway = await Gateway(path, nursery).start()
    gateway.places, gateway.ids = {1: {"views"}}, {"views": OLD}
    document = {"thresholds": {"topics": {"views": 2}}}

    async def change(by_document: bool) -> ChangeResult:
        if by_document:
            return await gateway.service.apply_document(document, ALICE)
        return await gateway.service.alter_policies([PolicyOperation(VIEWS, 1)], ALICE)

    for by_document in (False, True):
        assert (await change(by_document)).changes
        assert gateway.service.policies.topic_ids == {"views": OLD}
        assert not (await change(by_document)).changes
        assert gateway.service.policies.topic_ids == {"views": OLD}
    gateway.ids = {"views": NEW}
    altered = await gateway.service.alter_policies([PolicyOperation(VIEWS, 2)], ALICE)
    assert altered.changes == ()
    assert gateway.service.policies.topic_ids == {"views": NEW}
    await gateway.look(mock_clock)
    await trio.testing.wait_all_tasks_blocked()
    assert gateway.topics["views"] == 2


async def test_a_cluster_that_does_not_name_ids_holds_no_change_up(
    path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    gateway = Gateway(path, nursery)

    async def wait(topics: Collection[str]) -> TopicIds:
        await trio.sleep_forever()
        return {}

    gateway.service._source = Mock(fetch_topic_ids=wait)
    await gateway.start()
    gateway.places = {1: {"views"}}
    await gateway.service.alter_policies([PolicyOperation(VIEWS, 1)], ALICE)
    assert gateway.topics["views"] == 1
    assert gateway.service.policies.topic_ids == {}


async def test_a_deletion_is_in_the_history_with_its_author(gateway: Gateway) -> None:
    await gateway.service.alter_policies([PolicyOperation(VIEWS, 1)], ALICE)
    held = gateway.service.policies.runtime_value(VIEWS)
    by = ChangeSource("User:bob", "topic deleted")
    await gateway.service.remove_topics({"views": RuntimeValue(2)}, by)
    assert gateway.topics["views"] == 1, "set since"
    await gateway.service.remove_topics({"views": held}, by)
    assert gateway.topics == {"clicks": 5}
    assert (gateway.service.history[-1].source, gateway.service.history[-1].new) == (by, None)


async def test_a_removal_that_fails_is_told_once_and_tried_again_at_the_next_look(
    gateway: Gateway,
    mock_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gateway.places, gateway.ids = {1: {"views"}}, {"views": OLD}
    await gateway.service.alter_policies([PolicyOperation(VIEWS, 1)], ALICE)
    tries = []

    def fail(decide: Decide, source: ChangeSource) -> WrittenChange:
        tries.append(source)
        raise StoreError("no disk")

    gateway.ids = {"views": NEW}
    with monkeypatch.context() as broken:
        broken.setattr(gateway.store, "write_change", fail)
        while len(tries) < 2:
            before = len(tries)
            await gateway.look(mock_clock)
            await until(lambda: len(tries) > before)
        assert caplog.text.count("policies: thresholds of deleted topics can't be removed: no disk") == 1
    await gateway.look(mock_clock)
    await until(lambda: gateway.topics == {"clicks": 5})


async def test_topics_that_are_not_there_are_in_the_answer_and_in_the_log_after_a_look(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.places = {1: {"clicks"}}
    said = "bytes.in.per.sec.threshold of topics that are not there (views): each takes its part of every broker's"
    altered = await gateway.service.alter_policies([PolicyOperation(VIEWS, 1)], ALICE)
    assert altered.warnings[0].startswith(said)
    assert altered.committed["1"] == CommittedTotal(12, 5, 1)
    assert "not there" not in caplog.text, "a topic that is created with a threshold has it a moment before"
    for _ in range(2):
        gateway.answer({})
    assert caplog.text.count(said) == 1
    gateway.places = {1: {"clicks", "views"}}
    gateway.answer({})
    gateway.places = {1: {"clicks"}}
    gateway.answer({})
    assert caplog.text.count(said) == 2


async def test_thresholds_of_the_file_for_topics_that_are_not_there_are_taken_with_a_warning(
    path: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await Gateway(path, nursery, {TOTAL: 120_000.0, CLICKS: 50_000.0}).start()
    gateway.places = {1: {"clicks"}, 2: set()}
    gateway.answer({})
    assert not caplog.messages
    await gateway.service.replace_base({TOTAL: 120_000.0, CLICKS: 50_000.0, VIEWS: 90_000.0})
    gateway.answer({})
    broker, topics = caplog.messages
    assert "of topics that are not there (views): each takes its part" in topics
    assert broker.startswith(
        "policies: broker 1: its topics' bytes.in.per.sec.threshold sum up to 140,000 bytes/s (90,000 bytes/s of it for"
    )
    assert gateway.topics["views"] == 90_000
    with pytest.raises(PolicyError, match="of it for topics that are not there yet"):
        await gateway.service.alter_policies([PolicyOperation(CLICKS, 60_000)], ALICE)
    await gateway.service.alter_policies([PolicyOperation(CLICKS, 40_000)], ALICE)


# --- client quotas ----------------------------------------------------------------------------------------------------


def of(user: str, value: float) -> Alteration:
    return Alteration([("user", user)], [QuotaOp("producer_byte_rate", value)])


async def test_an_entity_that_is_refused_leaves_the_others_alone(gateway: Gateway) -> None:
    altered = await gateway.service.alter_quotas([of("alice", 5), of("bob", -1)], ALICE)
    assert [error is None for error in altered.errors] == [True, False]
    assert list(gateway.service.policies.quota_store().entries) == [Entity("alice")]
    only_errors = await gateway.service.alter_quotas([of("bob", -1)], ALICE)
    assert "finite number above 0" in str(only_errors.errors[0])
    assert only_errors.version == 1
    assert gateway.metrics.outcomes == {"accepted": 1, "unchanged": 0, "refused": 1, "failed": 0}
    validated = await gateway.service.alter_quotas([of("carol", 5), of("bob", -1)], ALICE, validate_only=True)
    assert [error is None for error in validated.errors] == [True, False]
    assert list(gateway.service.policies.quota_store().entries) == [Entity("alice")]


async def test_a_senseless_limit_is_a_warning_at_every_door(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    text = "producer_byte_rate:broker_bps of {user=alice}: 10 bytes/s is less than one usual batch"
    altered = await gateway.service.alter_quotas([of("alice", 10), of("bob", 5000), of("carol", -1)], ALICE)
    assert [note.startswith(text) for note in altered.notes] == [True, False, False]
    assert altered.notes[1:] == ("", "")
    assert sum(warning.startswith(text) for warning in altered.warnings) == 1
    assert f"policies: {text}" in caplog.text
    altered = await gateway.service.alter_policies([PolicyOperation(VIEWS, 1), PolicyOperation(TOTAL, 10**9)], ALICE)
    assert any(
        warning.startswith("bytes.in.per.sec.threshold of topic views: 1 bytes/s") for warning in altered.warnings
    )
    document = {"client_quotas": [{"user": "dave", "producer_byte_rate": 10}]}
    applied = await gateway.service.apply_document(document, ALICE, dry_run=True)
    assert any("{user=dave}: 10 bytes/s" in warning for warning in applied.warnings)


# --- documents --------------------------------------------------------------------------------------------------------


async def test_an_apply_twice_does_it_once(gateway: Gateway, path: Path) -> None:
    document = {
        "thresholds": {"total": {"default": "20kB"}, "topics": {"views": "2kB"}},
        "client_quotas": [{"user": "alice", "producer_byte_rate": "1MB"}],
    }
    dry = await gateway.service.apply_document(document, ALICE, dry_run=True)
    assert gateway.told == []
    altered = await gateway.service.apply_document(document, ALICE)
    assert altered.changes == dry.changes
    assert len(altered.changes) == 3
    before = content(path)
    assert (await gateway.service.apply_document(document, ALICE)).changes == ()
    assert content(path) == before
    assert gateway.metrics.outcomes["unchanged"] == 1
    pruned = await gateway.service.apply_document({}, ALICE, prune=True)
    assert len(pruned.changes) == 3
    assert gateway.service.policies.effective_values() == BASE


async def test_an_apply_of_anything_but_a_document_is_refused(gateway: Gateway) -> None:
    with pytest.raises(DocumentError, match="'5XB' is not a valid size"):
        await gateway.service.apply_document({"thresholds": {"total": "5XB"}}, ALICE)


async def test_ten_thousand_values_are_one_line_in_the_file(gateway: Gateway, path: Path) -> None:
    topics = {f"t{number}": number for number in range(10_000)}
    before = len(lines(path))
    await gateway.service.apply_document({"thresholds": {"total": "1GB", "topics": topics}}, ALICE)
    assert len(lines(path)) == before + 1
    assert len(gateway.told) == 1
    assert len(gateway.topics) == 10_001


async def test_the_overview_is_a_document_that_changes_nothing(gateway: Gateway) -> None:
    await gateway.service.alter_policies([PolicyOperation(VIEWS, 7), PolicyOperation(ALICE_SHARES, 3)], ALICE)
    overview = gateway.service.export_overview(file_origin)
    assert overview["version"] == 1
    assert (await gateway.service.apply_document(overview["document"], ALICE, prune=True)).changes == ()


# --- the file ---------------------------------------------------------------------------------------------------------


def put(store: FileStore | RetriedStore, *ops: PolicyOperation, source: ChangeSource = ALICE) -> WrittenChange:
    return store.write_change(lambda policies: policies.alter_policies(ops), source)


def reopened(path: Path, base: dict[PolicyKey, float] | None = None) -> PolicySet:
    with closing(FileStore(path, BASE if base is None else base)) as store:
        return store.policies


def test_a_restart_finds_everything_and_compacts(path: Path) -> None:
    with closing(FileStore(path, BASE)) as store:
        for value in (1, 2, 3):
            put(store, PolicyOperation(VIEWS, value), PolicyOperation(ORDERS, 1))
            put(store, PolicyOperation(ORDERS, None), source=ChangeSource("bob", "cli"))
    assert len(lines(path)) == 6
    policies = reopened(path)
    assert (policies.version, policies.changes) == (6, {VIEWS: 3})
    (kept,) = lines(path)
    views, head = kept["records"]
    assert (views["value"]["who"], views["value"]["version"]) == ("User:alice", 5)  # who set it is still known
    assert (head["value"]["who"], head["value"]["version"]) == ("bob", 6)
    assert reopened(path, {}).effective_values() == {VIEWS: 3}
    assert sorted(file.name for file in path.parent.iterdir()) == ["policies.jsonl", "policies.jsonl.lock"]


def test_half_a_line_of_a_crash_is_dropped(path: Path) -> None:
    with closing(FileStore(path, BASE)) as store:
        put(store, PolicyOperation(VIEWS, 1))
        one = path.read_bytes()
        put(store, PolicyOperation(VIEWS, 2))
    for size in range(len(one), path.stat().st_size):
        whole = path.read_bytes()
        path.write_bytes(whole[:size])
        assert reopened(path).topic_thresholds()["views"] == 1
        assert path.read_bytes() == one
        path.write_bytes(whole)
    assert reopened(path).topic_thresholds()["views"] == 2


def test_a_damaged_line_is_left_out_and_stays_for_a_look(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(FileStore(path, BASE)) as store:
        put(store, PolicyOperation(VIEWS, 1))
    whole = path.read_bytes()
    path.write_bytes(b"garbage\n" + whole + b'{"records":[{"key":5,"value":5}]}\n' + whole[:-5])
    with closing(FileStore(path, BASE)) as store:
        put(store, PolicyOperation(VIEWS, 2))
    assert path.read_bytes().startswith(b"garbage\n" + whole)
    assert path.read_bytes().count(b"\n") == 4
    assert f"{path}, line 1 is left out" in caplog.text
    assert f"{path}, line 3: 1 of 1 records are left out" in caplog.text
    assert reopened(path).topic_thresholds()["views"] == 2


def test_of_a_compacted_file_a_record_that_means_nothing_here_is_left_out_alone(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a downgrade: the values of a compacted file are one line."""
    with closing(FileStore(path, {})) as store:
        put(store, PolicyOperation(VIEWS, 1), PolicyOperation(ORDERS, 2), PolicyOperation(CLICKS, 3))
    reopened(path)
    newer = path.read_bytes().replace(b'"topic","orders"', b'"kind of a newer release","orders"')
    path.write_bytes(newer)
    with closing(FileStore(path, {})) as store:
        assert (store.policies.version, store.policies.changes) == (1, {VIEWS: 1, CLICKS: 3})
        put(store, PolicyOperation(VIEWS, 4))
    assert f"{path}, line 1: 1 of 4 records are left out, the first since 'kind of a newer release'" in caplog.text
    assert path.read_bytes().startswith(newer), "for the release that knows it"
    assert reopened(path, {}).changes == {VIEWS: 4, CLICKS: 3}


def test_a_file_that_is_changed_for_ever_does_not_grow_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.control.policies.store.COMPACT_BYTES", 5000)
    with closing(FileStore(path, {})) as store:
        for value in range(1, 100):
            put(store, PolicyOperation(VIEWS, value), PolicyOperation(ORDERS, value))
            assert path.stat().st_size < 6000
        assert len(store.history) == 198
    assert reopened(path, {}).changes == {VIEWS: 99, ORDERS: 99}


def test_a_full_disk_at_the_start_keeps_all_values(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(FileStore(path, {})) as store:
        put(store, PolicyOperation(VIEWS, 1))
        put(store, PolicyOperation(ORDERS, 2))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])  # what a crash left of a change
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))  # a disk with room for no file
    try:
        store = FileStore(path, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with closing(store):
        assert store.policies.changes == {VIEWS: 1, ORDERS: 2}
        assert "can't be compacted: File too large" in caplog.text
        assert path.read_bytes() == whole
        assert sorted(file.name for file in path.parent.iterdir()) == ["policies.jsonl", "policies.jsonl.lock"]
        put(store, PolicyOperation(VIEWS, 3))  # there is room again
    assert reopened(path, {}).changes == {VIEWS: 3, ORDERS: 2}


def test_a_file_has_one_gateway(path: Path) -> None:
    with (
        closing(FileStore(path, BASE)),
        pytest.raises(StoreError, match=rf"{path} is in use by another gateway: give each its own policies_store.file"),
    ):
        FileStore(path, {})


def test_limits_are_no_business_of_other_users(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "policies.jsonl"
    before = os.umask(0)
    try:
        with closing(FileStore(path, BASE)) as store:
            put(store, PolicyOperation(VIEWS, 1))
        with closing(FileStore(path, BASE)):  # which writes it anew
            pass
    finally:
        os.umask(before)
    found = (path, path.parent, path.with_name("policies.jsonl.lock"))
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in found}
    assert modes == {"policies.jsonl": 0o640, "kept": 0o750, "policies.jsonl.lock": 0o640}


def test_a_store_that_can_not_be_opened_yet_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "policies.jsonl"
    store = RetriedStore(lambda: FileStore(path, BASE), BASE)
    assert not store.is_loaded
    assert "can't be used" in store.problem
    assert store.policies.effective_values() == BASE
    with pytest.raises(StoreError, match="can't be used"):
        put(store, PolicyOperation(VIEWS, 1))
    store.replace_base({})
    (tmp_path / "file").unlink()
    while not store.is_loaded:
        store.poll_changes(0.01)
    with closing(store):
        assert (store.problem, store.policies.effective_values()) == ("", {})
        put(store, PolicyOperation(VIEWS, 1))
        assert store.policies.changes == {VIEWS: 1}


def test_a_deleted_file_is_written_anew_with_all_that_is_known(path: Path) -> None:
    with closing(FileStore(path, BASE)) as store:
        put(store, PolicyOperation(VIEWS, 1))
        path.unlink()
        put(store, PolicyOperation(ORDERS, 2))
    assert reopened(path).changes == {VIEWS: 1, ORDERS: 2}


def test_a_full_disk_refuses_changes_and_leaves_no_half_line(path: Path) -> None:
    with closing(FileStore(path, BASE)) as store:
        put(store, PolicyOperation(VIEWS, 1))
    with closing(FileStore(path, BASE)) as store:
        whole = path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 50, limits[1]))  # a disk with room for 50 more bytes
        try:
            with pytest.raises(StoreError, match=rf"{path}: can't be written: File too large"):
                put(store, PolicyOperation(VIEWS, 2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == whole
        assert "File too large" in store.problem
        assert store.policies.topic_thresholds() == {"clicks": 5, "views": 1}
        put(store, PolicyOperation(VIEWS, 3))
        assert store.problem == ""
    assert reopened(path).topic_thresholds()["views"] == 3


async def test_a_disk_that_has_room_again_lets_changes_be_tried_out_again(
    gateway: Gateway, path: Path, mock_clock: MockClock
) -> None:
    """As the console does first."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(StoreError, match="File too large"):
            await gateway.service.alter_policies([PolicyOperation(VIEWS, 1)], ALICE)
        mock_clock.jump(CLOCK_CHECK_S)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StoreError, match="File too large"):
            await gateway.service.alter_policies([PolicyOperation(VIEWS, 1)], ALICE, validate_only=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    mock_clock.jump(CLOCK_CHECK_S)
    await until(lambda: not gateway.service.problem)
    assert (await gateway.service.alter_policies([PolicyOperation(VIEWS, 1)], ALICE, validate_only=True)).changes
    await gateway.set({VIEWS: 1})
    gateway.store.close()
    assert reopened(path).changes == {VIEWS: 1}


# --- a store that is away ---------------------------------------------------------------------------------------------


class Away:
    """A store that other gateways write too, and that can be out of reach."""

    has_other_writers = True

    def __init__(self) -> None:
        self.policies = PolicySet(BASE)
        self.history: Sequence[PastChange] = ()
        self.is_loaded = False
        self.problem = "not read yet"
        self.arriving: Sequence[PolicyOperation] = ()

    def poll_changes(self, timeout_s: float) -> None:
        if self.arriving:
            self.policies, self.arriving = self.policies.alter_policies(self.arriving), ()

    def write_change(self, decide: Decide, source: ChangeSource) -> WrittenChange:
        if self.problem:
            raise StoreError(self.problem)
        raise ZeroDivisionError("a bug")

    def replace_base(self, base: Any) -> None:
        self.policies = self.policies.with_base(base)

    def close(self) -> None:
        self.problem = "closed"


async def test_a_change_right_after_the_start_waits_until_all_was_read(
    path: Path, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    store: Any = FileStore(path, BASE)
    store.has_other_writers, store.is_loaded, store.problem = True, False, "not read yet"
    service = make_policy_service(make_context(metrics=PolicyMetrics()), store)
    found = dict[bool, PolicyValue | None]()
    nursery.start_soon(service.run)

    async def ask(validate_only: bool) -> None:
        value = 2 if validate_only else 1  # either may be first
        altered = await service.alter_policies([PolicyOperation(CLICKS, value)], ALICE, validate_only=validate_only)
        found[validate_only] = altered.changes[0].new

    async with trio.open_nursery() as askers:
        askers.start_soon(ask, True)
        askers.start_soon(ask, False)
        await trio.testing.wait_all_tasks_blocked()
        assert found == {}
        store.is_loaded, store.problem = True, ""
    assert found == {True: 2, False: 1}
    assert service.policies.topic_thresholds() == {"clicks": 1}


async def test_before_all_was_read_and_while_it_is_away_changes_are_refused_with_the_reason(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    store, metrics, told = Away(), PolicyMetrics(), list[PolicySet]()
    context = make_context(metrics=metrics)
    service = make_policy_service(context, store)
    context.facts.policies.subscribe("test", told.append)
    nursery.start_soon(service.run)
    async with trio.open_nursery() as askers:

        async def ask() -> None:
            with pytest.raises(StoreError, match="not read yet"):
                await service.alter_policies([PolicyOperation(CLICKS, 1)], ALICE)

        askers.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(LOADING_TIMEOUT_S)
    assert not metrics.up
    store.is_loaded, store.problem, store.arriving = True, "", [PolicyOperation(CLICKS, 2)]
    await service.loaded.wait()
    await until(lambda: told)
    assert service.policies.topic_thresholds() == {"clicks": 2}
    assert metrics.up
    store.problem = "the topic is gone"
    for validate_only in (False, True):
        with pytest.raises(StoreError, match="the topic is gone"):
            await service.alter_policies([PolicyOperation(CLICKS, 1)], ALICE, validate_only=validate_only)
    await until(lambda: not metrics.up)
    assert service.policies.topic_thresholds() == {"clicks": 2}  # what was known last stays
    assert metrics.outcomes["failed"] == 2
    store.problem = ""
    with pytest.raises(ZeroDivisionError):  # a bug is the asker's, not everybody's
        await service.alter_policies([PolicyOperation(CLICKS, 1)], ALICE)
    await service.replace_base({})
    assert service.policies.topic_thresholds() == {"clicks": 2}
    assert service.policies.broker_total() is None


async def test_a_stop_closes_the_store_and_callers_that_wait_are_told() -> None:
    store = Away()
    store.is_loaded, store.problem = True, ""
    service = make_policy_service(make_context(metrics=PolicyMetrics()), store)
    async with trio.open_nursery() as askers:

        async def ask() -> None:
            with pytest.raises(StoreError, match="the gateway is stopping"):
                await service.alter_policies([PolicyOperation(CLICKS, 1)], ALICE)

        askers.start_soon(ask)
        askers.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await service.run()
    assert store.problem == "closed"


# --- beside the brokers' own ------------------------------------------------------------------------------------------


async def test_a_caller_that_sets_a_quota_above_the_brokers_is_warned(gateway: Gateway) -> None:
    rate = QuotaKey.parse("producer_byte_rate")
    gateway.upstream = QuotaStore({Entity(DEFAULT): {rate: 2000.0}})
    more = QuotaOp("producer_byte_rate", 5000.0)
    altered = await gateway.service.alter_quotas(
        [
            Alteration([("user", "a")], [more]),
            Alteration([("user", "b")], [QuotaOp("producer_byte_rate", 2000.0)]),
            Alteration([("user", "c")], [QuotaOp("producer_byte_rate.bps", 5000.0)]),
            Alteration([("client-id", "d")], [more]),
            Alteration([("user", "e")], [QuotaOp("nonsense", 1.0)]),
        ],
        ALICE,
    )
    text = (
        "producer_byte_rate:broker_bps=5000 of {user=a} does not hold: brokers enforce"
        " producer_byte_rate:broker_bps=2000 {user=<default>} of their own, which is less"
    )
    assert altered.notes == (text, "", "", "", "")
    assert altered.warnings[-1:] == (text,)
    document = {"client_quotas": [{"user": "f", "producer_byte_rate": 6000}]}
    for dry_run in (True, False):
        applied = await gateway.service.apply_document(document, ALICE, dry_run=dry_run)
        assert applied.warnings[-1].startswith("producer_byte_rate:broker_bps=6000 of {user=f} does not hold")


async def test_where_sasl_ends_here_the_brokers_quota_of_a_user_may_be_for_others(gateway: Gateway) -> None:
    gateway.context.facts.configuration.latest = OWN_SASL
    rate = QuotaKey.parse("producer_byte_rate")
    gateway.upstream = QuotaStore({Entity("a"): {rate: 2000.0}, Entity(None, "c"): {rate: 2000.0}})
    more = [QuotaOp("producer_byte_rate", 5000.0)]
    named = [Alteration([("user", "a")], more), Alteration([("client-id", "c")], more)]
    of_user, of_client_id = (await gateway.service.alter_quotas(named, ALICE, validate_only=True)).notes
    assert of_user == (
        "producer_byte_rate:broker_bps=5000 of {user=a} may not hold: brokers enforce"
        " producer_byte_rate:broker_bps=2000 {user=a} of their own, which is less, but SASL ends at the gateway, so"
        " brokers know a client by the user of authentication.upstream_credentials_file, and by its quotas"
    )
    assert "{client-id=c} does not hold" in of_client_id
    document = {"client_quotas": [{"user": "a", "producer_byte_rate": 6000}]}
    applied = await gateway.service.apply_document(document, ALICE, dry_run=True)
    assert "6000 of {user=a} may not hold" in applied.warnings[-1]
