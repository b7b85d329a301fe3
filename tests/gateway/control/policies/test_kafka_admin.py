# Kafka admin requests as Kafka's tools send them, a broker played by the test, and the real policy service over a
# file. The same against a real Kafka is tests/integration/admin_apis/test_kafka_admin.py's.

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from pytest_trio import trio_fixture
from trio.testing import MockClock

from gateway.channel import AdminAnswer, AdminQuery
from gateway.control.policies.kafka_admin import admin_service as kafka_admin
from gateway.control.policies.kafka_admin.admin_configs import FEW_RESOURCES
from gateway.control.policies.kafka_admin.admin_service import LATE_S, KafkaAdmin, managed_apis
from gateway.control.policies.service import LOADING_TIMEOUT_S
from gateway.control.policies.store import Decide, InDoubtError, StoreError, WrittenChange
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_values import (
    PolicyKey,
    PolicyOperation,
    RuntimeValue,
    TopicId,
    ValueEnd,
)
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.store import QuotaStore
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY, TOTAL_OUT_KEY
from protocol import api
from protocol.admin import configs as c
from protocol.admin import quotas as q
from protocol.admin import topic_deletion as d
from protocol.admin import topics as t
from protocol.admin.topics import NO_ID
from protocol.message_codec import ApiCodec
from tests.background import until
from tests.gateway.control.contexts import OWN_SASL
from tests.gateway.control.policies.policy_scene import PolicyScene

TOOL = b"admin-1"
SET, DELETE = c.SET, c.DELETE
DENIED, NO_TOPIC, ELSEWHERE = 29, 3, 42
TOTAL = 1000.0
TOPIC_ID = bytes(range(16))


class Stage(PolicyScene):
    """A client, its gateway's control and the broker behind it.

    `sent`: what the broker got, decoded. `errors`: what it refuses, by the name of the resource or of the user; None as
    the key: all. `late`: what it refuses only when it shall really be done. `meanwhile`: is done behind each answer.
    """

    def __init__(self, path: Path, base: dict[PolicyKey, float]) -> None:
        super().__init__(path / "policies.jsonl", base)
        self.door = KafkaAdmin(self.context, self.service)
        self.sent: list[Any] = []
        self.errors: dict[str | None, int] = {}
        self.late: dict[str, int] = {}
        self.described: tuple[c.DescribedConfig, ...] = (c.DescribedConfig("retention.ms", "5", config_type=c.LONG),)
        self.entries: tuple[q.EntityQuotas, ...] | None = ()
        self.meanwhile: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint
        self.until = float("inf")

    async def ask(self, spoken: ApiCodec[Any, Any], body: Any, version: int | None = None) -> Any:
        """The client's answer; None: the request passes as it is."""
        version = spoken.highest if version is None else version
        request = spoken.encode_request(body, version, 77, TOOL)[4:]
        memo = answer = b""
        for token in range(1, 9):
            said = await self.door.answer_query(
                AdminQuery(token, self.until, "10.0.0.9:5", "User:alice", request, memo, answer)
            )
            assert said.token == token
            if said.client:
                correlation, found = spoken.decode_response(said.client, 4, len(said.client), version)
                assert correlation == 77
                return found
            if not said.upstream:
                return None
            memo, answer = said.memo, self.broker(spoken, version, said.upstream)
            await self.meanwhile()
        raise AssertionError("it never ends")

    def broker(self, spoken: ApiCodec[Any, Any], version: int, frame: bytes) -> bytes:
        head = spoken.decode_request(frame, 4, len(frame))
        assert (head.version, head.client_id) == (version, TOOL)
        body = head.body
        self.sent.append(body)
        if spoken.key == api.DESCRIBE_CLIENT_QUOTAS:
            code = self.errors.get(None, 0)
            said: Any = q.DescribeClientQuotasResponse(0, code, None, None if code else self.entries)
        elif spoken.key == api.ALTER_CLIENT_QUOTAS:
            said = q.AlterClientQuotasResponse(
                3,
                tuple(
                    q.AlterClientQuotasResult(*self.error(str(dict(entity).get(q.USER)), body), entity)
                    for entity, _ in reversed(body.entries)
                ),
            )
        elif spoken.key == api.DESCRIBE_CONFIGS:
            said = c.DescribeConfigsResponse(
                0,
                tuple(
                    c.DescribeConfigsResult(
                        *self.error(name, None), kind, name, () if self.errors.get(name) else self.described
                    )
                    for kind, name, _ in reversed(body.resources)
                ),
            )
        elif spoken.key == api.DELETE_TOPICS:
            names = body.topic_names if version < 6 else [topic.name or "by-id" for topic in body.topics]
            ids = dict.fromkeys(names, TOPIC_ID if version >= 6 else NO_ID)
            gone = [d.DeleteTopicsResult(name, ids[name], *self.error(name, None)) for name in reversed(names)]
            said = d.DeleteTopicsResponse(3, tuple(gone))
        elif spoken.key == api.CREATE_TOPICS:
            created = []
            for topic in reversed(body.topics):
                code, text = self.error(topic.name, body)
                own = tuple(t.CreatedConfig(name, value, False, 1, False) for name, value in topic.configs)
                created.append(t.CreateTopicsResult(topic.name, bytes(16), code, text, 3, 1, () if code else own))
            said = t.CreateTopicsResponse(3, tuple(created))
        else:
            rows = [c.AlterConfigsResult(*self.error(row[1], body), *row[:2]) for row in reversed(body.resources)]
            said = c.AlterConfigsResponse(3, tuple(rows))
        return spoken.encode_response(said, version, head.correlation_id)[4:]

    def error(self, name: str, body: Any) -> tuple[int, str | None]:
        code = self.errors.get(name) or self.errors.get(None) or 0
        if body is not None and not body.validate_only:
            code = code or self.late.get(name, 0)
        return code, f"no {name}" if code else None

    async def incremental(self, *rows: tuple[int, str, Mapping[str, str | None]], check: bool = False) -> Any:
        """IncrementalAlterConfigs: (type, name, {key: value, or None to delete})."""
        return await self.ask(c.INCREMENTAL_ALTER_CONFIGS, incremental(*rows, check=check))

    async def create(
        self, *topics: t.CreatableTopic, check: bool = False, version: int | None = None
    ) -> list[tuple[str, int, str | None]]:
        """CreateTopics: what is said of each topic; nothing where the request passes as it is."""
        said = await self.ask(t.CREATE_TOPICS, t.CreateTopicsRequest(topics, 1000, check), version)
        return [(row.name, row.error_code, row.error_message) for row in said.topics] if said else []

    async def delete(self, *topics: str | bytes, version: int = 6) -> list[tuple[str | None, int]]:
        """DeleteTopics, by name or by id: what is said of each topic; nothing where the request passes as it is."""
        if version < 6:
            names = d.DeleteNamedTopicsRequest(tuple(str(topic) for topic in topics), 1000)
            said = await self.ask(d.DELETE_NAMED_TOPICS, names, version)
        else:
            given = [(each, NO_ID) if isinstance(each, str) else (None, each) for each in topics]
            body = d.DeleteTopicsRequest(tuple(d.DeletableTopic(*each) for each in given), 1000)
            said = await self.ask(d.DELETE_TOPICS, body)
        return [(row.name, row.error_code) for row in said.responses] if said else []

    async def replace(self, *rows: tuple[int, str, Mapping[str, str | None]], check: bool = False) -> Any:
        resources = tuple(
            c.AlterConfigsResource(kind, name, tuple(c.AlterableConfig(*item) for item in values.items()))
            for kind, name, values in rows
        )
        return await self.ask(c.ALTER_CONFIGS, c.AlterConfigsRequest(resources, check))

    async def quotas(self, *rows: tuple[q.Entity, Mapping[str, float | None]], check: bool = False) -> Any:
        entries = tuple(
            q.EntityAlteration(
                entity,
                tuple(
                    q.QuotaOperation(key, 0.0 if value is None else value, value is None) for key, value in ops.items()
                ),
            )
            for entity, ops in rows
        )
        return await self.ask(q.ALTER_CLIENT_QUOTAS, q.AlterClientQuotasRequest(entries, check))

    async def configs(
        self, *resources: tuple[int, str, tuple[str, ...] | None], version: int = 4, **include: bool
    ) -> Any:
        body = c.DescribeConfigsRequest(tuple(c.DescribeConfigsResource(*row) for row in resources), **include)
        return await self.ask(c.DESCRIBE_CONFIGS, body, version)


def incremental(
    *rows: tuple[int, str, Mapping[str, str | None]], check: bool = False
) -> c.IncrementalAlterConfigsRequest:
    return c.IncrementalAlterConfigsRequest(
        tuple(
            c.IncrementalAlterConfigsResource(
                kind,
                name,
                tuple(c.ConfigOperation(key, DELETE if value is None else SET, value) for key, value in values.items()),
            )
            for kind, name, values in rows
        ),
        check,
    )


def codes(answer: Any) -> list[tuple[int, int, str]]:
    return [(row.error_code, *row[2:]) for row in answer.responses]


BASE = {PolicyKey.of_broker(): TOTAL, PolicyKey.of_topic("filed"): 300.0}


@trio_fixture
async def stage(nursery: trio.Nursery, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path, BASE)
    nursery.start_soon(stage.service.run)
    await stage.service.loaded.wait()
    with trio.fail_after(30):
        yield stage


# --- thresholds -------------------------------------------------------------------------------------------------------


async def test_a_threshold_is_set_and_deleted_once_the_broker_has_said_that_this_client_may(stage: Stage) -> None:
    said = await stage.incremental((c.TOPIC, "clicks", {TOPIC_KEY: "500"}))
    assert codes(said) == [(0, c.TOPIC, "clicks")]
    assert stage.sent == [incremental((c.TOPIC, "clicks", {}), check=True)]
    assert stage.changes == {PolicyKey.of_topic("clicks"): 500.0}
    assert codes(await stage.incremental((c.TOPIC, "clicks", {TOPIC_KEY: None}))) == [(0, c.TOPIC, "clicks")]
    assert stage.changes == {}


@pytest.mark.parametrize("version", [0, 1])
async def test_a_client_without_the_right_is_refused_in_the_brokers_words_and_nothing_is_changed(
    stage: Stage, version: int
) -> None:
    stage.errors = {"clicks": DENIED, "gone": NO_TOPIC, "7": ELSEWHERE}
    said = await stage.ask(
        c.INCREMENTAL_ALTER_CONFIGS,
        incremental(
            (c.TOPIC, "gone", {TOPIC_KEY: "1"}),
            (c.TOPIC, "clicks", {TOPIC_KEY: "1", "retention.ms": "9"}),
            (c.TOPIC, "mine", {TOPIC_KEY: "1"}),
            (c.BROKER, "7", {TOTAL_KEY: "900"}),
        ),
        version,
    )
    assert said.responses == (
        c.AlterConfigsResult(NO_TOPIC, "no gone", c.TOPIC, "gone"),
        c.AlterConfigsResult(DENIED, "no clicks", c.TOPIC, "clicks"),
        c.AlterConfigsResult(0, None, c.TOPIC, "mine"),
        c.AlterConfigsResult(ELSEWHERE, "no 7", c.BROKER, "7"),
    )
    assert stage.changes == {PolicyKey.of_topic("mine"): 1.0}
    assert len(stage.sent) == 1, "what is denied must not be sent again to be done"


async def test_our_keys_and_the_brokers_are_split_and_merged_in_the_order_of_the_request(stage: Stage) -> None:
    wanted = (
        (c.BROKER, "1", {"log.retention.ms": "1"}),
        (c.TOPIC, "clicks", {"retention.ms": "7", TOPIC_KEY: "5", "cleanup.policy": None}),
        (c.TOPIC, "other", {TOPIC_KEY: "6"}),
        (c.TOPIC, "third", {"segment.ms": "1"}),
    )
    stage.errors = {"third": 40}
    said = await stage.incremental(*wanted)
    assert said.throttle_time_ms == 3
    assert codes(said) == [(0, c.BROKER, "1"), (0, c.TOPIC, "clicks"), (0, c.TOPIC, "other"), (40, c.TOPIC, "third")]
    theirs = (c.TOPIC, "clicks", {"retention.ms": "7", "cleanup.policy": None})
    assert stage.sent == [
        incremental(theirs, (c.TOPIC, "other", {}), check=True),  # also whether the rest of it can be
        incremental(wanted[0], theirs, wanted[3]),
    ]
    assert stage.changes == {PolicyKey.of_topic("clicks"): 5.0, PolicyKey.of_topic("other"): 6.0}


async def test_a_request_with_nothing_of_ours_passes_as_it_is(stage: Stage) -> None:
    assert await stage.incremental((c.TOPIC, "clicks", {"retention.ms": "7"}), (c.GROUP, "g", {TOPIC_KEY: "1"})) is None
    assert await stage.replace((c.TOPIC, "clicks", {"retention.ms": "7"})) is None
    assert await stage.configs((c.TOPIC, "clicks", ("retention.ms",)), (c.GROUP, "g", None)) is None
    assert await stage.quotas((user("bob"), {"controller_mutation_rate": 1.0})) is None
    assert await stage.create(new("a", None, retention_ms="5")) == []
    assert stage.sent == []


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "code", "text"),
    [
        (c.TOPIC, "clicks", TOPIC_KEY, "fast", 40, "Invalid value fast for configuration bytes.in.per.sec.threshold"),
        (c.TOPIC, "clicks", TOPIC_KEY, "1.5", 40, "LONG"),
        (c.TOPIC, "clicks", TOPIC_KEY, "-1", 40, "0 or more"),
        (c.BROKER, "1", TOTAL_KEY, "0", 40, "above 0"),
        (c.BROKER, "1", TOPIC_KEY, "5", 40, "for brokers there is total.bytes.in.per.sec.threshold"),
        (c.TOPIC, "clicks", TOTAL_KEY, "5", 40, "for topics there is bytes.in.per.sec.threshold"),
        (c.TOPIC, "clicks", TOPIC_KEY, "900", 44, "exceeds total.bytes.in.per.sec.threshold = 1,000 bytes/s by 200"),
        (c.BROKER, "3", TOTAL_KEY, "299", 44, "broker 3: "),
        (c.TOPIC, "filed", TOPIC_KEY, None, 44, "configuration file"),
        (c.BROKER, "one", TOTAL_KEY, "900", 44, "not a valid broker id"),
    ],
)
async def test_an_impossible_alteration_is_refused_with_one_line_and_the_rest_of_that_resource_too(
    stage: Stage, kind: int, name: str, key: str, value: str | None, code: int, text: str
) -> None:
    said = await stage.incremental((kind, name, {key: value, "x.y": "1"}), (c.TOPIC, "fine", {"retention.ms": "7"}))
    assert codes(said) == [(code, kind, name), (0, c.TOPIC, "fine")]
    message = said.responses[0].error_message
    assert text in message
    assert "\n" not in message
    assert stage.sent[1:] == [incremental((c.TOPIC, "fine", {"retention.ms": "7"}))]
    assert stage.changes == {}


async def test_each_of_thousands_of_topics_is_judged_in_one_pass(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    alter = stage.service.alter_policies

    async def counted(*args: Any, **more: Any) -> Any:
        calls.append(args)
        return await alter(*args, **more)

    monkeypatch.setattr(stage.service, "alter_policies", counted)
    said = await stage.incremental(*((c.TOPIC, f"t{i}", {TOPIC_KEY: "300"}) for i in range(1000)))
    assert [row.error_code for row in said.responses] == [0] * 2 + [44] * 998
    assert len(stage.changes) == 2
    assert len(calls) == 2


@pytest.mark.parametrize("kind", ["incremental", "replace"])
async def test_a_request_that_is_only_to_be_validated_changes_nothing(stage: Stage, kind: str) -> None:
    send = getattr(stage, kind)
    said = await send(
        (c.TOPIC, "clicks", {TOPIC_KEY: "5", "retention.ms": "9"}), (c.TOPIC, "big", {TOPIC_KEY: "900"}), check=True
    )
    assert codes(said) == [(0, c.TOPIC, "clicks"), (44, c.TOPIC, "big")]
    assert all(body.validate_only for body in stage.sent)
    assert stage.changes == {}
    assert not any(stage.metrics.outcomes.values())


async def test_append_and_a_key_given_twice_are_refused_without_asking_the_broker(stage: Stage) -> None:
    resource = c.IncrementalAlterConfigsResource
    request = c.IncrementalAlterConfigsRequest(
        (
            resource(c.TOPIC, "a", (c.ConfigOperation(TOPIC_KEY, c.APPEND, "5"),)),
            resource(c.TOPIC, "b", (c.ConfigOperation(TOPIC_KEY, SET, "5"), c.ConfigOperation(TOPIC_KEY, SET, "6"))),
            resource(c.TOPIC, "d", (c.ConfigOperation(TOPIC_KEY, SET, "5"),)),
            resource(c.TOPIC, "d", (c.ConfigOperation("retention.ms", SET, "5"),)),
        )
    )
    said = await stage.ask(c.INCREMENTAL_ALTER_CONFIGS, request)
    assert [row.error_code for row in said.responses] == [40, 42, 42, 42]
    assert stage.sent == []
    assert stage.changes == {}


async def test_a_resource_refused_at_once_is_not_forgotten_while_the_broker_is_asked_about_the_others(
    stage: Stage,
) -> None:
    resource = c.IncrementalAlterConfigsResource
    request = c.IncrementalAlterConfigsRequest(
        (
            resource(
                c.TOPIC,
                "a",
                (c.ConfigOperation(TOPIC_KEY, c.SUBTRACT, "5"), c.ConfigOperation("retention.ms", SET, "5")),
            ),
            resource(
                c.TOPIC, "b", (c.ConfigOperation(TOPIC_KEY, SET, "5"), c.ConfigOperation("retention.ms", SET, "5"))
            ),
        )
    )
    said = await stage.ask(c.INCREMENTAL_ALTER_CONFIGS, request)
    assert codes(said) == [(40, c.TOPIC, "a"), (0, c.TOPIC, "b")]
    assert "SUBTRACT is for lists" in said.responses[0].error_message
    assert stage.sent[1:] == [incremental((c.TOPIC, "b", {"retention.ms": "5"}))]


async def test_an_alteration_that_the_broker_refuses_only_when_it_shall_do_it_is_told_as_half_done(
    stage: Stage,
) -> None:
    stage.late = {"clicks": 41}
    said = await stage.incremental((c.TOPIC, "clicks", {TOPIC_KEY: "5", "retention.ms": "9"}))
    assert codes(said) == [(41, c.TOPIC, "clicks")]
    assert said.responses[0].error_message == "no clicks (produce-gateway's own keys are changed already)"
    assert stage.changes == {PolicyKey.of_topic("clicks"): 5.0}


# --- AlterConfigs -----------------------------------------------------------------------------------------------------


async def test_a_replacement_deletes_the_keys_that_it_does_not_name_ours_as_well(stage: Stage) -> None:
    await stage.incremental((c.TOPIC, "clicks", {TOPIC_KEY: "5"}), (c.TOPIC, "other", {TOPIC_KEY: "6"}))
    stage.sent.clear()
    said = await stage.replace((c.TOPIC, "clicks", {"retention.ms": "9"}), (c.TOPIC, "other", {TOPIC_KEY: "7"}))
    assert codes(said) == [(0, c.TOPIC, "clicks"), (0, c.TOPIC, "other")]
    assert stage.changes == {PolicyKey.of_topic("other"): 7.0}
    probe, rest = stage.sent
    assert probe.validate_only
    assert not rest.validate_only
    assert probe.resources == rest.resources
    assert [(row.resource_name, [config.name for config in row.configs]) for row in rest.resources] == [
        ("clicks", ["retention.ms"]),
        ("other", []),  # and the broker deletes all that it has
    ]


async def test_a_replacement_that_repeats_the_value_in_force_leaves_its_end(stage: Stage) -> None:
    until_ms = round(time.time() * 1000) + 3_600_000
    clicks = PolicyKey.of_topic("clicks")
    await stage.set({clicks: 5.0}, until_ms)
    said = await stage.replace((c.TOPIC, "clicks", {"retention.ms": "9", TOPIC_KEY: "5"}))
    assert codes(said) == [(0, c.TOPIC, "clicks")]
    assert stage.service.policies.ends == {clicks: ValueEnd(until_ms, None)}
    await stage.incremental((c.TOPIC, "clicks", {TOPIC_KEY: "5"}))
    assert (stage.service.policies.ends, stage.changes) == ({}, {clicks: 5.0})


async def test_a_replacement_can_not_remove_a_value_of_the_file_and_leaves_it(stage: Stage) -> None:
    assert await stage.replace((c.TOPIC, "filed", {"retention.ms": "9"})) is None


async def test_a_replacement_that_is_denied_is_not_done_by_half(stage: Stage) -> None:
    await stage.incremental((c.TOPIC, "clicks", {TOPIC_KEY: "5"}))
    stage.errors = {"clicks": DENIED}
    stage.sent.clear()
    said = await stage.replace((c.TOPIC, "clicks", {"retention.ms": "9"}))
    assert codes(said) == [(DENIED, c.TOPIC, "clicks")]
    assert len(stage.sent) == 1
    assert stage.changes == {PolicyKey.of_topic("clicks"): 5.0}


# --- DescribeConfigs --------------------------------------------------------------------------------------------------


@pytest.mark.seed("V1.6")
@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_a_threshold_is_described_among_the_brokers_configs(stage: Stage, version: int) -> None:
    await stage.incremental((c.TOPIC, "filed", {TOPIC_KEY: "400"}))
    said = await stage.configs(
        (c.TOPIC, "other", None),
        (c.TOPIC, "filed", ()),
        version=version,
        include_synonyms=True,
        **({"include_documentation": True} if version >= 3 else {}),
    )
    other, filed = said.results
    assert other.configs[1][:6] == (TOPIC_KEY, None, False, c.DEFAULT_CONFIG, False, ())
    assert [config.name for config in filed.configs] == ["retention.ms", TOPIC_KEY]
    row = filed.configs[1]
    assert row[:5] == (TOPIC_KEY, "400", False, c.DYNAMIC_TOPIC_CONFIG, False)
    assert row.synonyms == ((TOPIC_KEY, "400", c.DYNAMIC_TOPIC_CONFIG), (TOPIC_KEY, "300", c.STATIC_BROKER_CONFIG))
    if version >= 3:
        assert row.config_type == c.LONG
        assert "Bytes per second" in (row.documentation or "")


async def test_a_value_of_the_file_is_a_static_value(stage: Stage) -> None:
    said = await stage.configs((c.TOPIC, "filed", (TOPIC_KEY,)))
    row = said.results[0].configs[-1]
    assert row[:4] == (TOPIC_KEY, "300", False, c.STATIC_BROKER_CONFIG)
    assert (row.synonyms, row.documentation) == ((), None)
    assert await stage.configs((c.TOPIC, "filed", ("retention.ms",))) is None


async def test_of_many_resources_only_those_with_a_value_get_a_row(stage: Stage) -> None:
    many = [(c.TOPIC, f"topic-{i}", None) for i in range(FEW_RESOURCES)]
    assert await stage.configs(*many, (c.TOPIC, "other", None)) is None
    said = await stage.configs(*many, (c.TOPIC, "filed", None))
    found = [result.resource_name for result in said.results if result.configs[-1].name == TOPIC_KEY]
    assert found == ["filed"]


@pytest.mark.seed("V1.5")
async def test_a_brokers_total_has_the_default_and_the_file_behind_it(stage: Stage) -> None:
    await stage.incremental((c.BROKER, "", {TOTAL_KEY: "5000"}), (c.BROKER, "2", {TOTAL_KEY: "800"}))
    said = await stage.configs(
        (c.BROKER, "2", None), (c.BROKER, "1", None), (c.BROKER, "", None), include_synonyms=True
    )
    rows = [next(row for row in result.configs if row.name == TOTAL_KEY) for result in said.results]
    assert [(row.name, row.value) for row in said.results[0].configs[-1:]] == [(TOTAL_OUT_KEY, None)]
    synonyms = [[row[1:] for row in each.synonyms] for each in rows]
    own, every, filed = (
        ("800", c.DYNAMIC_BROKER_CONFIG),
        ("5000", c.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("1000", c.STATIC_BROKER_CONFIG),
    )
    assert synonyms == [[own, every, filed], [every, filed], [every, filed]]
    assert [(row.value, row.config_source) for row in rows] == [own, every, every]
    for broker_id, (value, _) in ((2, own), (1, every)):
        assert stage.service.policies.broker_total(broker_id) == float(value), "what is shown is what holds"


async def test_what_is_described_is_a_long_that_can_be_set(stage: Stage) -> None:
    most = str(2**63 - 1)
    assert codes(await stage.incremental((c.BROKER, "", {TOTAL_KEY: most}))) == [(0, c.BROKER, "")]
    clicks, end = PolicyKey.of_topic("clicks"), stage.service.now_ms() + 60_000
    await stage.service.alter_policies([PolicyOperation(clicks, 0.5, end)], ChangeSource("alice", "rest"))
    for kind, name, key, value in ((c.BROKER, "", TOTAL_KEY, most), (c.TOPIC, "clicks", TOPIC_KEY, "1")):
        (row,) = (await stage.configs((kind, name, (key,)))).results[0].configs[-1:]
        assert (row.name, row.config_type, row.value) == (key, c.LONG, value)
        assert codes(await stage.replace((kind, name, {key: value}))) == [(0, kind, name)]
    assert stage.service.policies.ends[clicks].until_ms == end  # the client repeats what it has read


async def test_a_client_that_may_not_describe_a_resource_is_not_told_our_part_of_it(stage: Stage) -> None:
    stage.errors = {"filed": DENIED}
    said = await stage.configs((c.TOPIC, "filed", None))
    assert said.results == (c.DescribeConfigsResult(DENIED, "no filed", c.TOPIC, "filed", ()),)


# --- topics that are to be created ------------------------------------------------------------------------------------


def new(name: str, threshold: str | None = "100", *, led_by: tuple[int, ...] = (), **configs: str) -> t.CreatableTopic:
    rows = {key.replace("_", "."): value for key, value in configs.items()}
    rows |= {} if threshold is None else {TOPIC_KEY: threshold}
    assignments = tuple(t.ReplicaAssignment(index, (broker, 9)) for index, broker in enumerate(led_by))
    return t.CreatableTopic(name, 3, 1, assignments, tuple(t.TopicConfig(*row) for row in rows.items()))


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_created_with_its_threshold(version: int, stage: Stage) -> None:
    body = t.CreateTopicsRequest((new("b", retention_ms="5"), new("a", None), new("c")), 1000)
    said = await stage.ask(t.CREATE_TOPICS, body, version)
    assert [(row.name, row.error_code) for row in said.topics] == [("b", 0), ("a", 0), ("c", 0)]
    if version >= 5:
        ours = t.CreatedConfig(TOPIC_KEY, "100", False, c.DYNAMIC_TOPIC_CONFIG, False)
        theirs = t.CreatedConfig("retention.ms", "5", False, 1, False)
        assert [row.configs for row in said.topics] == [(theirs, ours), (), (ours,)]
    plain = new("b", None, retention_ms="5"), new("a", None), new("c", None)
    probe, rest = stage.sent
    assert probe == t.CreateTopicsRequest((plain[0], plain[2]), 1000, True)
    assert rest == t.CreateTopicsRequest(plain, 1000)
    assert stage.changes == {PolicyKey.of_topic("b"): 100.0, PolicyKey.of_topic("c"): 100.0}


async def test_a_topic_that_the_broker_would_not_create_gets_no_threshold(stage: Stage) -> None:
    stage.errors = {"exists": 36, "denied": 29}
    said = await stage.create(new("exists"), new("fine"), new("denied"), new("theirs", None))
    assert said == [
        ("exists", 36, "no exists"), ("fine", 0, None), ("denied", 29, "no denied"), ("theirs", 0, None),
    ]  # fmt: skip
    assert [topic.name for topic in stage.sent[1].topics] == ["fine", "theirs"]
    assert stage.changes == {PolicyKey.of_topic("fine"): 100.0}


async def test_a_topic_whose_threshold_is_refused_is_not_created(stage: Stage) -> None:
    said = await stage.create(new("words", "many"), new("large", "701"), new("fits", "700"), new("late", "1"))
    assert [(name, code) for name, code, _ in said] == [("words", 40), ("large", 44), ("fits", 0), ("late", 44)]
    assert "not a number of type LONG" in (said[0][2] or "")
    assert "sum up to 1,001 bytes/s, which exceeds" in (said[1][2] or "")
    assert [topic.name for topic in stage.sent[1].topics] == ["fits"]
    assert stage.changes == {PolicyKey.of_topic("fits"): 700.0}


async def test_a_threshold_has_to_fit_wherever_the_controller_may_put_the_topic(stage: Stage) -> None:
    stage.places = {1: {"filed"}, 2: set()}
    ((_, code, text),) = await stage.create(new("anywhere", "800"))
    assert code == 44
    assert (text or "").startswith("broker 1: its topics' bytes.in.per.sec.threshold sum up to 1,100 bytes/s")
    assert len(stage.sent) == 1, "nothing but the probe"
    assert await stage.create(new("placed", "800", led_by=(2, 2))) == [("placed", 0, None)]
    stage.places = {1: {"filed"}, 2: {"placed"}}
    ((_, code, _),) = await stage.create(new("placed-2", "300", led_by=(2, 1)))
    assert code == 44
    assert stage.changes == {PolicyKey.of_topic("placed"): 800.0}


async def test_a_topic_that_is_only_to_be_validated(stage: Stage) -> None:
    said = await stage.create(new("a"), new("b", "5000"), check=True)
    assert [code for _, code, _ in said] == [0, 44]
    assert all(body.validate_only for body in stage.sent)
    assert not stage.changes


async def test_a_threshold_is_taken_back_where_the_broker_refuses_what_it_had_found_valid(stage: Stage) -> None:
    await stage.incremental((c.TOPIC, "again", {TOPIC_KEY: "50"}))  # of a topic that was there once
    stage.late = {"again": 36, "new": 44}
    said = await stage.create(new("again"), new("new"), new("made"))
    assert said == [("again", 36, "no again"), ("new", 44, "no new"), ("made", 0, None)]
    assert stage.changes == {PolicyKey.of_topic("again"): 50.0, PolicyKey.of_topic("made"): 100.0}


async def test_a_threshold_with_an_end_has_it_again_where_the_broker_refuses_the_topic(stage: Stage) -> None:
    topic, far = PolicyKey.of_topic("again"), 253_000_000_000_000
    await stage.set({topic: 40.0})
    await stage.set({topic: 50.0}, far)
    stage.late = {"again": 36}
    assert await stage.create(new("again")) == [("again", 36, "no again")]
    assert stage.changes == {topic: 50.0}
    assert stage.service.policies.ends == {topic: ValueEnd(far, 40.0)}


@pytest.mark.parametrize("code", [-1, 7, 13, 15, 16, 41])
async def test_a_threshold_stays_where_the_topic_may_be_there(stage: Stage, code: int) -> None:
    stage.late = {"a": code, "b": 17}
    said = await stage.create(new("a"), new("b"))
    text = f"no a (produce-gateway keeps its {TOPIC_KEY}: the topic may have been created)"
    assert said == [("a", code, text), ("b", 17, "no b")]
    assert stage.changes == {PolicyKey.of_topic("a"): 100.0}


async def test_a_threshold_that_was_kept_too_late_is_taken_back_and_its_topic_not_created(stage: Stage) -> None:
    topic = PolicyKey.of_topic("again")
    await stage.set({topic: 50.0})
    stage.until = time.monotonic() + LATE_S / 2
    said = await stage.create(new("again"), new("new"))
    text = "keeping the threshold took too long, so the topic is not created: try again"
    assert said == [("again", 7, text), ("new", 7, text)]
    assert all(body.validate_only for body in stage.sent)
    assert stage.changes == {topic: 50.0}
    stage.until = float("inf")
    assert await stage.create(new("again"), new("new")) == [("again", 0, None), ("new", 0, None)]


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_threshold_of_which_nobody_knows_whether_it_was_kept_is_taken_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    store = stage.store
    write = store.write_change

    def lose_the_answer(decide: Decide, source: ChangeSource) -> WrittenChange:
        monkeypatch.undo()
        if is_written:
            write(decide, source)
        raise InDoubtError("no answer; if it was written all the same, it will show")

    monkeypatch.setattr(store, "write_change", lose_the_answer)
    ((_, code, text),) = await stage.create(new("a"))
    assert (code, stage.changes) == (7, {})
    assert text is not None
    assert text.startswith("no answer")
    assert all(body.validate_only for body in stage.sent)
    assert await stage.create(new("a")) == [("a", 0, None)]


async def test_a_value_that_another_client_set_in_between_is_not_taken_back(stage: Stage) -> None:
    await stage.set({PolicyKey.of_topic("a"): 100.0})
    await stage.service.revert_changes(
        {PolicyKey.of_topic("a"): RuntimeValue()},
        [PolicyOperation(PolicyKey.of_topic("a"), 70.0)],
        ChangeSource("User:alice", "kafka"),
    )
    assert stage.changes == {PolicyKey.of_topic("a"): 100.0}


async def test_a_threshold_that_cant_be_taken_back_is_told(stage: Stage) -> None:
    stage.late = {"a": 44}
    broker = stage.broker

    def break_then(*args: Any) -> bytes:
        answer = broker(*args)
        if not stage.sent[-1].validate_only:
            stage.service.revert_changes = fail  # type: ignore[assignment, method-assign]
        return answer

    async def fail(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise StoreError("no place to write to")

    stage.broker = break_then  # type: ignore[assignment, method-assign]
    ((_, code, text),) = await stage.create(new("a"))
    assert (code, stage.changes) == (44, {PolicyKey.of_topic("a"): 100.0})
    assert text == (
        f"no a (produce-gateway keeps its {TOPIC_KEY} nevertheless, since that can't be taken back: no place to write"
        " to)"
    )


@pytest.mark.seed("V1.5")
async def test_a_brokers_config_is_none_of_a_topic(stage: Stage) -> None:
    topic = t.CreatableTopic("a", 1, 1, (), (t.TopicConfig(TOTAL_KEY, "5"),))
    ((_, code, text),) = await stage.create(topic)
    assert (code, text) == (40, f"{TOTAL_KEY} is a config of brokers: for topics there is {TOPIC_KEY}")


async def test_a_version_that_brokers_of_today_lack_is_the_brokers_to_answer(stage: Stage) -> None:
    frame = t.CREATE_TOPICS.encode_request(t.CreateTopicsRequest((new("a"),), 1000), 2, 77, TOOL)
    old = frame[4:6] + b"\0\1" + frame[8:]
    assert await stage.door.answer_query(AdminQuery(1, stage.until, "", "User:alice", old, b"", b"")) == AdminAnswer(1)


# --- topics that are deleted ------------------------------------------------------------------------------------------

A, B, FILED = (PolicyKey.of_topic(name) for name in ("a", "b", "filed"))


@pytest.mark.seed("V1.6")
@pytest.mark.parametrize("version", range(1, 7))
async def test_a_threshold_is_deleted_with_its_topic_and_the_history_says_by_whom(stage: Stage, version: int) -> None:
    await stage.service.alter_policies(
        [PolicyOperation(A, 100.0, 10**14), PolicyOperation(B, 50.0)], ChangeSource("User:eve", "kafka")
    )
    assert await stage.delete("a", "other", version=version) == [("other", 0), ("a", 0)], "the broker's own answer"
    assert stage.changes == {B: 50.0}
    assert stage.service.policies.ends == {}
    past = stage.service.history[-1]
    assert (past.source, past.key, past.old, past.new) == (
        ChangeSource("User:alice", "topic deleted", "10.0.0.9:5"), A, 100.0, None,
    )  # fmt: skip


async def test_a_threshold_is_deleted_with_a_topic_that_is_named_by_its_id(stage: Stage) -> None:
    stage.places, stage.ids = {1: {"by-id"}}, {"by-id": TopicId("c", d.topic_id_text(TOPIC_ID))}
    named = PolicyKey.of_topic("by-id")
    await stage.set({named: 100.0})
    assert await stage.delete(TOPIC_ID) == [("by-id", 0)]
    assert stage.changes == {}
    stage.ids = {}
    await stage.set({named: 100.0})
    assert await stage.delete(TOPIC_ID) == [("by-id", 0)], "an id that isn't known yet: the answer has the name"
    assert stage.changes == {}


async def test_a_topic_that_the_broker_does_not_delete_keeps_its_threshold(stage: Stage) -> None:
    await stage.set({A: 100.0, B: 50.0})
    stage.errors = {"a": 29}
    assert await stage.delete("a", "b") == [("b", 0), ("a", 29)]
    assert stage.changes == {A: 100.0}
    stage.errors = {"a": 7}  # it may be gone, or going
    assert await stage.delete("a") == [("a", 7)]
    assert stage.changes == {A: 100.0}


async def test_topics_without_a_threshold_are_the_brokers_to_delete(stage: Stage) -> None:
    await stage.set({A: 100.0})
    assert await stage.delete("other") == []
    await stage.set({A: None})
    stage.sent.clear()
    assert await stage.delete("a") == []
    assert stage.sent == []


async def test_what_the_file_says_of_a_deleted_topic_stays_and_is_told(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await stage.set({FILED: 200.0})
    assert await stage.delete("filed") == [("filed", 0)]
    assert stage.service.policies.topic_thresholds() == {"filed": 300.0}
    assert await stage.delete("filed") == [("filed", 0)]
    said = (
        "topic filed was deleted: its threshold in the configuration"
        " (thresholds.topics.filed.bytes.in.per.sec.threshold or thresholds.source) stays, for the next topic of"
        " that name"
    )
    assert caplog.messages.count(said) == 2


@pytest.mark.parametrize("value", ["100", "70"])
async def test_a_topic_that_is_made_anew_before_the_answer_is_here_keeps_what_it_was_made_with(
    stage: Stage, value: str
) -> None:
    stage.places, stage.ids = {1: {"a"}}, {"a": TopicId("c", "earlier")}
    await stage.set({A: 100.0})
    broker = stage.broker
    frame = d.DELETE_NAMED_TOPICS.encode_request(d.DeleteNamedTopicsRequest(("a",), 1000), 5, 77, TOOL)[4:]
    first = await stage.door.answer_query(AdminQuery(1, stage.until, "", "User:alice", frame, b"", b""))
    answer = broker(d.DELETE_NAMED_TOPICS, 5, first.upstream)
    assert await stage.create(new("a", value)) == [("a", 0, None)]
    last = await stage.door.answer_query(AdminQuery(2, stage.until, "", "User:alice", frame, first.memo, answer))
    assert last.client[4:] == answer
    assert stage.changes == {A: float(value)}


@pytest.mark.parametrize("error", [StoreError("no place to write to"), RuntimeError("a bug")])
async def test_whatever_fails_here_the_client_is_told_what_the_broker_said(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    await stage.set({A: 100.0})

    def fail(*_: object) -> None:
        raise error

    caplog.set_level("WARNING", logger="gateway.policy")  # another test may have set it
    monkeypatch.setattr(stage.store, "write_change", fail)
    assert await stage.delete("a") == [("a", 0)]
    assert str(error) in caplog.text
    frame = d.DELETE_NAMED_TOPICS.encode_request(d.DeleteNamedTopicsRequest(("a",), 1000), 5, 77, TOOL)[4:]
    memo = (await stage.door.answer_query(AdminQuery(1, stage.until, "", "User:alice", frame, b"", b""))).memo
    last = await stage.door.answer_query(AdminQuery(2, stage.until, "", "User:alice", frame, memo, b"nonsense"))
    assert last.client == b"\0\0\0\x08nonsense"


async def test_a_removal_that_takes_long_keeps_no_client_waiting(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.set({A: 100.0})
    write, goes_on = stage.store.write_change, threading.Event()

    def wait(decide: Decide, source: ChangeSource) -> WrittenChange:
        assert goes_on.wait(60)
        return write(decide, source)

    monkeypatch.setattr(stage.store, "write_change", wait)
    stage.until = time.monotonic() + LATE_S
    assert await stage.delete("a") == [("a", 0)]
    assert stage.changes == {A: 100.0}
    goes_on.set()
    await until(lambda: not stage.changes)


# --- client quotas ----------------------------------------------------------------------------------------------------


def user(name: str | None) -> q.Entity:
    return (q.EntityData(q.USER, name),)


def client(name: str | None) -> q.Entity:
    return (q.EntityData(q.CLIENT_ID, name),)


def results(answer: Any) -> list[tuple[q.Entity, int]]:
    return [(row.entity, row.error_code) for row in answer.entries]


@pytest.mark.seed("546.40")
async def test_quotas_of_every_unit_are_kept_here_and_others_by_the_broker(stage: Stage) -> None:
    both = user("bob") + client(None)
    said = await stage.quotas(
        (user("bob"), {"producer_byte_rate": 10.0, "controller_mutation_rate": 2.0}),
        (both, {"consumer_byte_rate.bps": 20.0, "request_percentage": 12.5, "producer_byte_rate.shares": 3.0}),
        (user(None), {"controller_mutation_rate": 4.0}),
    )
    assert said.throttle_time_ms == 3
    assert results(said) == [(user("bob"), 0), (both, 0), (user(None), 0)]
    rest = (q.QuotaOperation("controller_mutation_rate", 2.0),)
    assert stage.sent == [
        q.AlterClientQuotasRequest((q.EntityAlteration(user("bob"), rest), q.EntityAlteration(both, ())), True),
        q.AlterClientQuotasRequest(
            (
                q.EntityAlteration(user("bob"), rest),
                q.EntityAlteration(user(None), (q.QuotaOperation("controller_mutation_rate", 4.0),)),
            )
        ),
    ]
    assert {(key.name, key.key): value for key, value in stage.changes.items()} == {
        ("/config/users/bob", "producer_byte_rate"): 10.0,
        ("/config/users/bob/clients/<default>", "consumer_byte_rate.bps"): 20.0,
        ("/config/users/bob/clients/<default>", "request_percentage"): 12.5,
        ("/config/users/bob/clients/<default>", "producer_byte_rate.shares"): 3.0,
    }
    assert results(await stage.quotas((user("bob"), {"producer_byte_rate": None}))) == [(user("bob"), 0)]
    assert PolicyKey.of_quota(Entity("bob"), QuotaKey.parse("producer_byte_rate")) not in stage.changes


async def test_quotas_of_an_entity_have_an_end_where_the_request_says_one(stage: Stage) -> None:
    until_ms = round(time.time() * 1000) + 3_600_000
    rate = PolicyKey.of_quota(Entity("bob"), QuotaKey.parse("producer_byte_rate"))
    said = await stage.quotas((user("bob"), {"producer_byte_rate": 10.0, q.UNTIL_KEY: float(until_ms)}))
    assert results(said) == [(user("bob"), 0)]
    assert stage.changes == {rate: 10.0}
    assert stage.service.policies.ends == {rate: ValueEnd(until_ms, None)}
    assert [op for body in stage.sent for entry in body.entries for op in entry.ops] == [], "it is no broker's business"
    assert results(await stage.quotas((user("bob"), {"producer_byte_rate": 10.0}))) == [(user("bob"), 0)]
    assert stage.service.policies.ends == {}


@pytest.mark.parametrize(
    ("ops", "text"),
    [
        ({"producer_byte_rate": 10.0, q.UNTIL_KEY: float("nan")}, "needs a time"),
        ({"producer_byte_rate": 10.0, q.UNTIL_KEY: None}, "needs a time"),
        ({"producer_byte_rate": 10.0, q.UNTIL_KEY: 1000.0}, "has to be later than now"),
        ({"producer_byte_rate": None, q.UNTIL_KEY: 4e12}, "a value that is removed has no end"),
        ({q.UNTIL_KEY: 4e12}, "Only quotas of the gateway have an end"),
        ({"producer_byte_rate": 1.0, "controller_mutation_rate": 4.0, q.UNTIL_KEY: 4e12}, "Only quotas of the gateway"),
    ],
)
async def test_an_end_that_can_not_be_refuses_all_of_its_entity(
    stage: Stage, ops: dict[str, float | None], text: str
) -> None:
    await stage.quotas((user("bob"), {"producer_byte_rate": 10.0}))
    before, sent = stage.changes, len(stage.sent)
    said = await stage.quotas((user("bob"), ops), (user("carol"), {"producer_byte_rate": 3.0}))
    assert results(said) == [(user("bob"), api.ERROR_CODES["INVALID_REQUEST"]), (user("carol"), 0)]
    assert text in said.entries[0].error_message
    assert {key: value for key, value in stage.changes.items() if key.entity == Entity("bob")} == before
    assert all(entry.entity != user("bob") for body in stage.sent[sent + 1 :] for entry in body.entries)


async def test_a_quota_that_only_the_broker_has_is_removed_there(stage: Stage) -> None:
    keys = ("producer_byte_rate", "consumer_byte_rate.broker_bps", "request_percentage")
    bare = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
    ops = {**dict.fromkeys(keys), "producer_byte_rate.bps": None}
    theirs = (q.EntityAlteration(user("bob"), tuple(q.QuotaOperation(key, 0.0, True) for key in bare)),)
    assert results(await stage.quotas((user("bob"), ops))) == [(user("bob"), 0)]
    assert stage.sent == [q.AlterClientQuotasRequest(theirs, True), q.AlterClientQuotasRequest(theirs)]
    stage.sent.clear()
    assert results(await stage.quotas((user("bob"), ops), check=True)) == [(user("bob"), 0)]
    assert all(body.validate_only for body in stage.sent)
    stage.late = {"bob": 42}
    said = await stage.quotas((user("bob"), {"request_percentage": None}))
    assert results(said) == [(user("bob"), 42)]


async def test_a_brokers_quota_is_taken_away_from_it_alone(stage: Stage) -> None:
    ops = {"producer_byte_rate": 5.0, "producer_byte_rate.upstream": None}
    theirs = (q.EntityAlteration(user("bob"), (q.QuotaOperation("producer_byte_rate", 0.0, True),)),)
    assert results(await stage.quotas((user("bob"), ops), check=True)) == [(user("bob"), 0)]
    assert not stage.changes
    stage.sent.clear()
    assert results(await stage.quotas((user("bob"), ops))) == [(user("bob"), 0)]
    assert stage.sent == [q.AlterClientQuotasRequest(theirs, True), q.AlterClientQuotasRequest(theirs)]
    rate = PolicyKey.of_quota(Entity("bob"), QuotaKey.parse("producer_byte_rate"))
    assert stage.changes == {rate: 5.0}
    assert results(await stage.quotas((user("bob"), {"producer_byte_rate.upstream": None}))) == [(user("bob"), 0)]
    assert stage.changes == {rate: 5.0}
    stage.errors = {"bob": 31}
    assert results(await stage.quotas((user("bob"), {**ops, "producer_byte_rate": 7.0}))) == [(user("bob"), 31)]
    assert stage.changes == {rate: 5.0}
    stage.errors = {}
    said = await stage.quotas((user("bob"), {"producer_byte_rate.upstream": 9.0}))
    assert "unknown unit in quota 'producer_byte_rate.upstream'" in said.entries[0].error_message


async def test_a_client_that_sets_a_senseless_quota_or_one_above_the_brokers_reads_so_in_the_answer(
    stage: Stage,
) -> None:
    rate = QuotaKey.parse("producer_byte_rate")
    stage.upstream = QuotaStore({Entity("bob"): {rate: 3000.0}, Entity("carol"): {rate: 3000.0}})
    more = {"producer_byte_rate": 5000.0}
    said = await stage.quotas(
        (user("bob"), more),
        (user("carol"), {**more, "producer_byte_rate.upstream": None}),  # what brokers lose is no reason to warn
        (user("eve"), more),
        (user("dan"), {"producer_byte_rate": 10.0}),
        (user("ida"), {"request_percentage": 10.0}),
    )
    assert [row.error_code for row in said.entries] == [0] * 5
    above, *fine, senseless, share = (row.error_message for row in said.entries)
    assert "does not hold: brokers enforce producer_byte_rate:broker_bps=3000 {user=bob} of their own" in above
    assert "{user=dan}: 10 bytes/s is less than one usual batch of 16 KiB in 10 s" in senseless
    assert (*fine, share) == (None, None, None)


async def test_who_moves_the_brokers_quota_of_a_user_reads_where_it_is_another_user_here(stage: Stage) -> None:
    moved = {"producer_byte_rate": 5e6, "producer_byte_rate.upstream": None}
    asked = (
        (user("tenant"), moved),
        ((q.EntityData(q.CLIENT_ID, "app"),), moved),
        (user("eve"), {"producer_byte_rate": 5e6}),
    )
    for settings, noted in ((stage.context.settings, False), (OWN_SASL, True)):
        stage.context.facts.configuration.latest = settings
        for check in (True, False):
            said = await stage.quotas(*asked, check=check)
            assert [row.error_code for row in said.entries] == [0] * 3
            tenant, *others = (row.error_message for row in said.entries)
            assert others == [None, None]
            about = "the brokers' quotas of {user=tenant} may be for other clients than the gateway's: SASL ends at"
            assert (tenant or "").startswith(about) == noted


async def test_each_entity_is_refused_by_itself(stage: Stage) -> None:
    stage.errors = {"mallory": 31}
    said = await stage.quotas(
        (user("mallory"), {"producer_byte_rate": 1.0}),
        (user("zero"), {"producer_byte_rate": 0.0}),
        (user("fine"), {"producer_byte_rate": 7.0}),
        (user("odd"), {"producer_byte_rate.furlongs": 7.0}),
    )
    assert results(said) == [(user("mallory"), 31), (user("zero"), 42), (user("fine"), 0), (user("odd"), 42)]
    texts = [row.error_message for row in said.entries]
    assert texts[0] == "no mallory"
    assert "above 0" in texts[1]
    assert "unknown unit in quota 'producer_byte_rate.furlongs'" in texts[3]
    assert [key.name for key in stage.changes] == ["/config/users/fine"]
    assert len(stage.sent) == 1


async def test_an_entity_that_does_not_exist_is_refused_as_the_broker_refuses_it(stage: Stage) -> None:
    stage.errors = {None: 42}
    planet = (q.EntityData("planet", "x"),)
    said = await stage.quotas((planet, {"producer_byte_rate": 1.0}), ((), {"producer_byte_rate": 1.0}))
    assert results(said) == [(planet, 42), ((), 42)]
    assert stage.changes == {}


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("name", ["10.0.0.1", None])
async def test_quotas_of_addresses_are_not_set_where_they_would_hold_for_the_gateway(
    stage: Stage, name: str | None, version: int, check: bool
) -> None:
    """As kafka-configs.sh --entity-type ips --entity-name 10.0.0.1, or --entity-default, writes it."""
    address = (q.EntityData(q.IP, name),)
    rate = q.QuotaOperation("connection_creation_rate", 20.0, False)
    request = q.AlterClientQuotasRequest((q.EntityAlteration(address, (rate,)),), check)
    said = await stage.ask(q.ALTER_CLIENT_QUOTAS, request, version)
    assert results(said) == [(address, api.ERROR_CODES["POLICY_VIOLATION"])]
    assert "limits.max_connections_per_address" in said.entries[0].error_message
    assert stage.sent == []


async def test_quotas_of_addresses_keep_no_other_change_back_and_may_be_removed(stage: Stage) -> None:
    address = (q.EntityData(q.IP, "10.0.0.1"),)
    assert await stage.quotas((address, {"connection_creation_rate": None})) is None  # it passes as it is
    said = await stage.quotas(
        (address, {"connection_creation_rate": 20.0}),
        (user("bob"), {"producer_byte_rate": 5.0, "controller_mutation_rate": 5.0}),
    )
    assert results(said) == [(address, api.ERROR_CODES["POLICY_VIOLATION"]), (user("bob"), 0)]
    assert [key.name for key in stage.changes] == ["/config/users/bob"]
    assert [entity for entity, _ in stage.sent[-1].entries] == [user("bob")]


@pytest.mark.seed("546.23")
async def test_quotas_that_are_only_to_be_validated(stage: Stage) -> None:
    said = await stage.quotas(
        (user("bob"), {"producer_byte_rate": 5.0}), (user("zero"), {"producer_byte_rate": 0.0}), check=True
    )
    assert results(said) == [(user("bob"), 0), (user("zero"), 42)]
    assert stage.changes == {}


def component(kind: str, match_type: int, match: str | None = None) -> q.FilterComponent:
    return q.FilterComponent(kind, match_type, match)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ((component("user", q.EXACT, "bob"),), True, ["bob"]),
        ((component("user", q.DEFAULT),), False, ["<default>"]),
        ((component("user", q.SPECIFIED), component("client-id", q.EXACT, "app")), False, ["bob/app"]),
    ],
)
async def test_filters_find_ours_beside_the_brokers(
    stage: Stage, version: int, components: tuple[q.FilterComponent, ...], strict: bool, found: list[str]
) -> None:
    ours = {"bob": user("bob"), "bob/app": user("bob") + client("app"), "<default>": user(None), "-/app": client("app")}
    await stage.quotas(*((entity, {"producer_byte_rate": 5.0}) for entity in ours.values()))
    theirs = q.EntityQuotas(user("carol"), (q.QuotaValue("controller_mutation_rate", 1.0),))
    stage.entries = (theirs, q.EntityQuotas(user("bob"), (q.QuotaValue("producer_byte_rate", 1.0),)))
    said = await stage.ask(q.DESCRIBE_CLIENT_QUOTAS, q.DescribeClientQuotasRequest(components, strict), version)
    assert theirs in said.entries
    entries = {q.entity_key(entry.entity): entry.values for entry in said.entries}
    own = q.QuotaValue("producer_byte_rate", 5.0)
    assert [name for name, entity in ours.items() if own in entries.get(q.entity_key(entity), ())] == sorted(
        found, key=list(ours).index
    )


async def test_the_brokers_quotas_are_told_apart_from_ours_where_that_is_asked_for(stage: Stage) -> None:
    await stage.quotas((user("bob"), {"producer_byte_rate": 5.0}))
    stage.entries = (
        q.EntityQuotas(user("bob"), (q.QuotaValue("producer_byte_rate", 9.0),)),
        q.EntityQuotas(
            user("eve"), (q.QuotaValue("producer_byte_rate", 1.0), q.QuotaValue("controller_mutation_rate", 2.0))
        ),
    )
    asked = q.DescribeClientQuotasRequest((q.FilterComponent(q.APART_TYPE, q.SPECIFIED, None),))
    said = await stage.ask(q.DESCRIBE_CLIENT_QUOTAS, asked)
    assert {q.entity_key(entry.entity): dict(entry.values) for entry in said.entries} == {
        q.entity_key(user("bob")): {"producer_byte_rate": 5.0, "producer_byte_rate.upstream": 9.0},
        q.entity_key(user("eve")): {"producer_byte_rate.upstream": 1.0, "controller_mutation_rate": 2.0},
    }
    plain = await stage.ask(q.DESCRIBE_CLIENT_QUOTAS, q.DescribeClientQuotasRequest(()))
    assert dict(plain.entries[0].values) == {"producer_byte_rate": 5.0, "producer_byte_rate.upstream": 9.0}
    assert dict(plain.entries[1].values) == {"producer_byte_rate": 1.0, "controller_mutation_rate": 2.0}


@pytest.mark.parametrize("percent", [0.0, 99.0, 100.0])
async def test_brokers_keep_their_quotas_while_not_all_of_ours_are_enforced(stage: Stage, percent: float) -> None:
    stage.door.quotas_percent = percent
    moved = (user("bob"), {"producer_byte_rate": 5.0, "producer_byte_rate.upstream": None})
    said = await stage.quotas(moved, (user("eve"), {"producer_byte_rate": 7.0}))
    code = 0 if percent == 100.0 else api.ERROR_CODES["POLICY_VIOLATION"]
    assert results(said) == [(user("bob"), code), (user("eve"), 0)]
    assert {key.entity for key in stage.changes} == ({Entity("eve")} if code else {Entity("bob"), Entity("eve")})
    removed = [op.key for body in stage.sent if not body.validate_only for entry in body.entries for op in entry.ops]
    assert removed == ([] if code else ["producer_byte_rate"])
    if code:
        assert f"for {percent:g}% of the clients only" in said.entries[0].error_message


async def test_whoever_wants_ours_told_apart_learns_for_how_many_clients_they_are_enforced(stage: Stage) -> None:
    await stage.quotas((user("bob"), {"producer_byte_rate": 5.0}))
    asked = q.DescribeClientQuotasRequest((q.FilterComponent(q.APART_TYPE, q.SPECIFIED, None),))
    for percent, told in ((0.0, {q.ENFORCED_KEY: 0.0}), (5.0, {q.ENFORCED_KEY: 5.0}), (100.0, {})):
        stage.door.quotas_percent = percent
        said = await stage.ask(q.DESCRIBE_CLIENT_QUOTAS, asked)
        assert [dict(entry.values) for entry in said.entries] == [{"producer_byte_rate": 5.0, **told}]
    stage.door.quotas_percent = 5.0
    plain = await stage.ask(q.DESCRIBE_CLIENT_QUOTAS, asked._replace(components=()))
    assert [dict(entry.values) for entry in plain.entries] == [{"producer_byte_rate": 5.0}]


async def test_ends_are_told_only_to_who_wants_ours_and_the_brokers_told_apart(stage: Stage) -> None:
    end = float(round(time.time() * 1000) + 3_600_000)
    await stage.quotas((user("bob"), {"producer_byte_rate.bps": 5.0, q.UNTIL_KEY: end}))
    apart = q.DescribeClientQuotasRequest((q.FilterComponent(q.APART_TYPE, q.SPECIFIED, None),))
    values = {"producer_byte_rate.bps": 5.0}
    for asked, told in (
        (apart, {**values, "producer_byte_rate.bps.until": end}),
        (apart._replace(components=()), values),
    ):
        said = await stage.ask(q.DESCRIBE_CLIENT_QUOTAS, asked)
        assert [dict(entry.values) for entry in said.entries] == [told]


async def test_a_client_that_may_not_describe_quotas_is_not_told_ours_and_a_wrong_filter_is_the_brokers_to_refuse(
    stage: Stage,
) -> None:
    await stage.quotas((user("bob"), {"producer_byte_rate": 5.0}))
    stage.errors = {None: 31}
    said = await stage.ask(q.DESCRIBE_CLIENT_QUOTAS, q.DescribeClientQuotasRequest(()))
    assert (said.error_code, said.entries) == (31, None)
    wrong = q.DescribeClientQuotasRequest((component("planet", q.EXACT, "x"),))
    assert await stage.ask(q.DESCRIBE_CLIENT_QUOTAS, wrong) is None


# --- what can go wrong ------------------------------------------------------------------------------------------------


async def test_a_store_that_is_away_refuses_with_its_reason_and_nothing_is_sent(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.service._store, "is_loaded", False)
    monkeypatch.setattr(stage.service._store, "problem", "topic __policies can't be read: broker away")
    said = await stage.incremental((c.TOPIC, "clicks", {TOPIC_KEY: "5", "retention.ms": "9"}))
    assert codes(said) == [(api.REQUEST_TIMED_OUT, c.TOPIC, "clicks")]
    assert said.responses[0].error_message == "topic __policies can't be read: broker away"
    assert len(stage.sent) == 1


async def test_a_request_that_can_not_be_read_is_the_brokers_to_refuse(stage: Stage) -> None:
    for request in (b"\0\x2c\0\1\0\0\0\5", b"\0\x2c\0\7\0\0\0\5\xff\xff", b"\0\x20\0\0\0\0\0\5\xff\xff"):
        assert await stage.door.answer_query(AdminQuery(1, 0.0, "peer", "User:a", request)) == AdminAnswer(1)


async def test_an_answer_that_can_not_be_read_and_a_bug_are_errors_of_their_own(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    frame = c.INCREMENTAL_ALTER_CONFIGS.encode_request(incremental((c.TOPIC, "a", {TOPIC_KEY: "5"})), 1, 77, None)
    said = await stage.door.answer_query(AdminQuery(1, 0.0, "peer", "User:a", frame[4:]))
    for memo, answer in ((said.memo, b"\0\0\0\1"), (b"\xc1", b"\0")):
        broken = await stage.door.answer_query(AdminQuery(2, 0.0, "peer", "User:a", frame[4:], memo, answer))
        _, found = c.INCREMENTAL_ALTER_CONFIGS.decode_response(broken.client, 4, len(broken.client), 1)
        assert codes(found) == [(-1, c.TOPIC, "a")]
    assert "internal error (kafka_admin), which ends the request of peer" in caplog.text
    assert stage.changes == {}


async def test_what_was_kept_is_waited_for_but_not_for_ever(
    nursery: trio.Nursery, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """As after a restart of control."""
    rate = PolicyKey.of_quota(Entity("bob"), QuotaKey.parse("producer_byte_rate"))
    stage = Stage(tmp_path, BASE)
    stage.store.is_loaded = False
    nursery.start_soon(stage.service.run)
    await trio.testing.wait_all_tasks_blocked()

    async def load() -> None:
        await trio.sleep(1)
        stage.store.policies = stage.store.policies.alter_policies([PolicyOperation(rate, 5.0)])
        stage.store.is_loaded = True
        stage.service._wake.set()

    nursery.start_soon(load)
    said = await stage.ask(q.DESCRIBE_CLIENT_QUOTAS, q.DescribeClientQuotasRequest((), False))
    assert said is not None
    assert [values for _, values in said.entries] == [(q.QuotaValue("producer_byte_rate", 5.0),)]
    away = Stage(tmp_path / "away", BASE)
    away.store.is_loaded = False
    nursery.start_soon(away.service.run)
    await trio.testing.wait_all_tasks_blocked()
    for waits_s in (LOADING_TIMEOUT_S, 0):
        began = trio.current_time()
        assert await away.create(new("a", None)) == []
        assert trio.current_time() - began == pytest.approx(waits_s)


async def test_a_request_that_has_begun_is_not_sent_again_where_nothing_of_ours_is_left(stage: Stage) -> None:
    """A topic that was made anew meanwhile would be deleted, too."""

    async def remove() -> None:
        await stage.set({A: None})

    stage.meanwhile = remove
    await stage.set({A: 100})
    assert await stage.delete("a") == [("a", 0)]
    assert len(stage.sent) == 1
    for stage.meanwhile in (trio.lowlevel.checkpoint, remove):  # by the request itself, or by another one
        await stage.set({A: 100})
        stage.sent.clear()
        assert codes(await stage.replace((c.TOPIC, "a", {"retention.ms": "5"}))) == [(0, c.TOPIC, "a")]
        assert [each.validate_only for each in stage.sent] == [True, False]


async def test_another_control_can_go_on_where_the_former_one_stopped(stage: Stage) -> None:
    frame = c.INCREMENTAL_ALTER_CONFIGS.encode_request(
        incremental((c.TOPIC, "a", {TOPIC_KEY: "5", "retention.ms": "1"})), 1, 77, TOOL
    )
    memo = answer = b""
    for _ in range(3):
        said = await KafkaAdmin(stage.context, stage.service).answer_query(
            AdminQuery(1, 0.0, "peer", "User:a", frame[4:], memo, answer)
        )
        if said.upstream:
            memo, answer = said.memo, stage.broker(c.INCREMENTAL_ALTER_CONFIGS, 1, said.upstream)
    assert codes(c.INCREMENTAL_ALTER_CONFIGS.decode_response(said.client, 4, len(said.client), 1)[1]) == [
        (0, c.TOPIC, "a")
    ]


async def test_a_question_that_came_too_late_changes_nothing(stage: Stage, nursery: trio.Nursery) -> None:
    nursery.start_soon(stage.door.run)
    await trio.testing.wait_all_tasks_blocked()
    frame = c.INCREMENTAL_ALTER_CONFIGS.encode_request(incremental((c.TOPIC, "a", {TOPIC_KEY: "5"})), 1, 77, None)
    said: list[AdminAnswer] = []
    stage.door.submit_query(AdminQuery(1, time.monotonic() - 1, "peer", "User:a", frame[4:]), said.append)
    stage.door.submit_query(AdminQuery(2, time.monotonic() + 60, "peer", "User:a", frame[4:]), said.append)
    while not said:
        await trio.testing.wait_all_tasks_blocked()
    assert [answer.token for answer in said] == [2]
    nursery.cancel_scope.cancel()


async def test_requests_too_many_at_once_are_not_begun_and_take_no_other_client_s_place(
    stage: Stage, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    nursery.start_soon(stage.door.run)
    await trio.testing.wait_all_tasks_blocked()
    frame = c.INCREMENTAL_ALTER_CONFIGS.encode_request(incremental((c.TOPIC, "a", {TOPIC_KEY: "5"})), 1, 77, None)
    said: list[AdminAnswer] = []

    def ask(token: int, principal: str, padding: int = 0) -> None:
        answer = b"x" * padding  # of a broker: counted with the request
        stage.door.submit_query(
            AdminQuery(token, time.monotonic() + 60, "peer", principal, frame[4:], b"", answer), said.append
        )

    for token in range(kafka_admin.MAX_OF_PRINCIPAL + 5):
        ask(token, "User:a\n\x1b[31m")
    ask(100, "User:b")
    ask(101, "User:c", kafka_admin.MAX_BYTES)
    while len(said) < kafka_admin.MAX_OF_PRINCIPAL + 1:
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(answer.token for answer in said) == [*range(kafka_admin.MAX_OF_PRINCIPAL), 100]
    assert caplog.text.count("over the concurrency limit") == 1
    assert "the latest from peer (User:a  [31m)" in caplog.text
    ask(102, "User:a\n\x1b[31m")  # those that were begun are over
    while said[-1].token != 102:
        await trio.testing.wait_all_tasks_blocked()
    nursery.cancel_scope.cancel()


def test_a_gateway_that_leaves_quotas_to_the_brokers_manages_configs_only() -> None:
    assert managed_apis("gateway") == (19, 20, 32, 33, 44, 48, 49)
    assert managed_apis("upstream") == (19, 20, 32, 33, 44)
    assert set(managed_apis("gateway")) <= api.HIGHEST_VERSIONS.keys()
    assert kafka_admin.THREAD_BYTES < 2**20
