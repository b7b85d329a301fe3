# What we write, a real broker reads, and what it answers, we read: all five admin APIs in every version that it offers,
# over a plain socket. And what protocol/admin/configs.py and protocol/admin/quotas.py say was measured, measured again.

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from gateway.embedded import EmbeddedCluster, wait_for
from protocol import api
from protocol.admin import configs as c
from protocol.admin import quotas as q
from protocol.message_codec import ApiCodec
from tests.integration.gateways import wait_writable
from tests.integration.wire import Wire
from tests.protocol import kio_messages as kio
from tests.protocol.admin_cases import APIS, error

Q = TypeVar("Q")
A = TypeVar("A")

TOPIC = "admin-codec"
OURS = "bytes.in.per.sec.threshold"
EVERY = [(spoken, version) for spoken in APIS for version in range(spoken.lowest, spoken.highest + 1)]
DESCRIBES = range(1, 5)
REPLACES = range(3)
CHANGES = range(2)


def ask(wire: Wire, spoken: ApiCodec[Q, A], version: int, body: Q) -> A:
    wire.send(spoken.encode_request(body, version, 4711, b"codec"))
    frame = wire.receive()
    correlation_id, answer = spoken.decode_response(frame, 4, len(frame), version)
    assert correlation_id == 4711
    # What was read is all that there was: written again, it is the broker's own bytes.
    assert spoken.encode_response(answer, version, correlation_id) == frame
    return answer


def config_probe(ours: Iterable[c.IncrementalAlterConfigsResource]) -> c.IncrementalAlterConfigsRequest:
    """May this client change these resources? As the door asks where nothing of the broker's own is in them."""
    return c.IncrementalAlterConfigsRequest(tuple(resource._replace(configs=()) for resource in ours), True)


def quota_probe(ours: Iterable[q.EntityAlteration]) -> q.AlterClientQuotasRequest:
    return q.AlterClientQuotasRequest(tuple(alteration._replace(ops=()) for alteration in ours), True)


@pytest.fixture(scope="module")
def port(kafka: EmbeddedCluster) -> int:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(120)
    wait_writable(kafka, TOPIC)
    return kafka.broker(1).port


@pytest.fixture
def wire(port: int) -> Iterator[Wire]:
    with Wire(port) as connection:
        yield connection


def test_we_speak_what_the_broker_offers(wire: Wire) -> None:
    wire.send(struct.pack(">ihhih", 10, api.API_VERSIONS, 0, 1, -1))
    frame = wire.receive()
    answer = kio.kio_decode(kio.answer_class(api.API_VERSIONS, 0), frame[8:])
    offered = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert {spoken.key: (spoken.lowest, spoken.highest) for spoken in APIS} == {
        spoken.key: offered[spoken.key] for spoken in APIS
    }


# --- DescribeConfigs --------------------------------------------------------------------------------------------------


def described(wire: Wire, version: int, keys: tuple[str, ...] | None, **include: bool) -> dict[str, c.DescribedConfig]:
    body = c.DescribeConfigsRequest((c.DescribeConfigsResource(c.TOPIC, TOPIC, keys),), **include)
    (result,) = ask(wire, c.DESCRIBE_CONFIGS, version, body).results
    assert (result.error_code, result.error_message or "", *result[2:4]) == (0, "", c.TOPIC, TOPIC)
    return {config.name: config for config in result.configs}


def wait_until(wire: Wire, **values: str | None) -> None:
    """Until the topic has these (with _ for .), None for a default: a broker answers before it has learned a change."""

    def learned() -> bool:
        rows = described(wire, 4, tuple(key.replace("_", ".") for key in values))
        return all(
            (None if row.config_source == c.DEFAULT_CONFIG else row.value) == values[key.replace(".", "_")]
            for key, row in rows.items()
        )

    wait_for(f"{values}", learned)


@pytest.mark.parametrize("version", DESCRIBES)
def test_configs_of_a_topic_with_synonyms_types_and_documentation(wire: Wire, version: int) -> None:
    rows = described(wire, version, None, include_synonyms=True, include_documentation=True)
    assert len(rows) > 20
    row = rows["preallocate"]
    assert row.value == "false"
    assert (row.read_only, row.is_sensitive, row.config_source) == (False, False, c.DEFAULT_CONFIG)
    assert row.synonyms == (("log.preallocate", "false", c.DEFAULT_CONFIG),)
    kinds = {name: rows[name].config_type for name in ("retention.ms", "cleanup.policy", "preallocate")}
    if version >= 3:
        assert kinds == {"retention.ms": c.LONG, "cleanup.policy": c.LIST, "preallocate": c.BOOLEAN}
        assert "preallocate the file" in (row.documentation or "")
    else:
        assert set(kinds.values()) == {c.UNKNOWN_TYPE}
        assert row.documentation is None
    assert not described(wire, version, ("preallocate",))["preallocate"].synonyms


@pytest.mark.parametrize("version", DESCRIBES)
def test_an_unknown_key_gives_no_row_and_an_empty_list_all(wire: Wire, version: int) -> None:
    assert described(wire, version, (OURS,)) == {}
    assert set(described(wire, version, (OURS, "retention.ms"))) == {"retention.ms"}
    assert described(wire, version, ()) == described(wire, version, None) != {}


@pytest.mark.parametrize("version", DESCRIBES)
def test_configs_of_a_broker_and_of_what_is_not_there(wire: Wire, version: int) -> None:
    resources = (
        c.DescribeConfigsResource(c.TOPIC, "admin-codec-missing", None),
        c.DescribeConfigsResource(c.BROKER, "1", None),
        c.DescribeConfigsResource(c.BROKER, "", None),
        c.DescribeConfigsResource(c.BROKER, "7", None),
        c.DescribeConfigsResource(c.BROKER_LOGGER, "1", ("kafka",)),
        c.DescribeConfigsResource(c.TOPIC, TOPIC, ("retention.ms",)),
        c.DescribeConfigsResource(c.TOPIC, TOPIC, ("cleanup.policy",)),
    )
    request = c.DescribeConfigsRequest(resources, True, True)
    answer = ask(wire, c.DESCRIBE_CONFIGS, version, request)
    codes = [(r.resource_type, r.resource_name, r.error_code) for r in answer.results]
    assert sorted(codes) == sorted(
        [
            (c.TOPIC, "admin-codec-missing", api.UNKNOWN_TOPIC_OR_PARTITION),
            (c.BROKER, "1", 0),
            (c.BROKER, "", 0),
            (c.BROKER, "7", error("INVALID_REQUEST")),
            (c.BROKER_LOGGER, "1", 0),
            (c.TOPIC, TOPIC, 0),
            (c.TOPIC, TOPIC, 0),
        ]
    )
    failed = next(r for r in answer.results if r.resource_name == "7")
    assert failed.error_message
    assert failed.configs == ()
    of_broker = {config.name: config for r in answer.results if r[2:4] == (c.BROKER, "1") for config in r.configs}
    assert of_broker["ssl.keystore.password"].is_sensitive
    assert of_broker["ssl.keystore.password"].value is None
    assert of_broker["node.id"].read_only
    assert of_broker["node.id"].config_source == c.STATIC_BROKER_CONFIG

    # In one answer with ours: what was asked for, nowhere twice, and nothing for what has an error.
    mine = c.DescribedConfig(OURS, "1000", False, c.DYNAMIC_TOPIC_CONFIG, config_type=c.LONG, documentation="limit")
    merged = c.merge_described(request, answer, lambda kind, _: (mine,) if kind == c.TOPIC else ())
    assert [r[2:4] for r in merged.results] == [r[:2] for r in resources]
    assert merged == answer._replace(results=merged.results)
    frame = c.DESCRIBE_CONFIGS.encode_response(merged, version, 1)
    assert kio.kio_decode(kio.answer_class(32, version), frame[9 if version == 4 else 8 :])


# --- IncrementalAlterConfigs, AlterConfigs ----------------------------------------------------------------------------


def change(*operations: tuple[str, int, str | None], name: str = TOPIC) -> c.IncrementalAlterConfigsRequest:
    rows = tuple(c.ConfigOperation(*operation) for operation in operations)
    return c.IncrementalAlterConfigsRequest((c.IncrementalAlterConfigsResource(c.TOPIC, name, rows),))


def is_ours(kind: int, _name: str, key: str) -> bool:
    return kind == c.TOPIC and key == OURS


@pytest.mark.parametrize("version", CHANGES)
def test_operations_and_their_results(wire: Wire, version: int) -> None:
    done = ask(
        wire,
        c.INCREMENTAL_ALTER_CONFIGS,
        version,
        change(("retention.ms", c.SET, f"360000{version}"), ("cleanup.policy", c.APPEND, "compact")),
    )
    assert [row[::2] for row in done.responses] == [(0, c.TOPIC)]
    wait_until(wire, retention_ms=f"360000{version}", cleanup_policy="delete,compact")
    row = described(wire, 4, ("retention.ms",), include_synonyms=True)["retention.ms"]
    assert row.config_source == row.synonyms[0].source == c.DYNAMIC_TOPIC_CONFIG

    for operation, code in (
        (("retention.ms", c.APPEND, "1"), "INVALID_CONFIG"),
        (("retention.ms", c.SET, None), "INVALID_REQUEST"),
        ((OURS, c.SET, "1"), "INVALID_CONFIG"),
        (("retention.ms", c.SET, "never"), "INVALID_CONFIG"),
    ):
        (refused,) = ask(wire, c.INCREMENTAL_ALTER_CONFIGS, version, change(operation)).responses
        assert refused.error_code == error(code), operation
        assert refused.error_message
    less = change(("cleanup.policy", c.SUBTRACT, "compact"))
    assert ask(wire, c.INCREMENTAL_ALTER_CONFIGS, version, less).responses[0].error_code == 0
    wait_until(wire, cleanup_policy="delete")
    undo = change(("retention.ms", c.DELETE, None), ("cleanup.policy", c.DELETE, None))
    assert ask(wire, c.INCREMENTAL_ALTER_CONFIGS, version, undo).responses[0].error_code == 0
    wait_until(wire, retention_ms=None, cleanup_policy=None)


@pytest.mark.parametrize("version", CHANGES)
def test_a_probe_changes_nothing_and_says_what_is_wrong(wire: Wire, version: int) -> None:
    split = c.split_incremental(change((OURS, c.SET, "1000")), is_ours)
    assert split.rest is None
    (allowed,) = ask(wire, c.INCREMENTAL_ALTER_CONFIGS, version, config_probe(split.ours)).responses
    assert allowed.error_code == 0
    elsewhere = c.IncrementalAlterConfigsResource(c.BROKER, "7", ())
    missing = c.IncrementalAlterConfigsResource(c.TOPIC, "admin-codec-missing", ())
    answer = ask(wire, c.INCREMENTAL_ALTER_CONFIGS, version, config_probe((elsewhere, missing)))
    assert {row.resource_name: row.error_code for row in answer.responses} == {
        "7": error("INVALID_REQUEST"),
        "admin-codec-missing": api.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("version", CHANGES)
def test_the_rest_of_a_change_is_taken_and_merged(wire: Wire, version: int) -> None:
    request = c.IncrementalAlterConfigsRequest(
        (
            *change(("max.message.bytes", c.SET, "5000"), (OURS, c.SET, "1000")).resources,
            *change((OURS, c.SET, "1"), name="admin-codec-missing").resources,
            c.IncrementalAlterConfigsResource(c.BROKER, "7", ()),
        )
    )
    split = c.split_incremental(request, is_ours)
    assert split.rest is not None
    answer = ask(wire, c.INCREMENTAL_ALTER_CONFIGS, version, split.rest)
    ours = [c.AlterConfigsResult(0, None, *resource[:2]) for resource in split.ours]
    merged = c.merge_altered(request, answer, ours)
    assert [(row.resource_name, row.error_code) for row in merged.responses] == [
        (TOPIC, 0),
        ("admin-codec-missing", 0),
        ("7", error("INVALID_REQUEST")),
    ]
    wait_until(wire, max_message_bytes="5000")
    undo = change(("max.message.bytes", c.DELETE, None))
    assert ask(wire, c.INCREMENTAL_ALTER_CONFIGS, version, undo).responses[0].error_code == 0
    wait_until(wire, max_message_bytes=None)


@pytest.mark.parametrize("version", CHANGES)
def test_a_resource_or_a_key_that_is_there_twice_is_refused_by_the_broker_too(wire: Wire, version: int) -> None:
    once = change(("max.message.bytes", c.SET, "5000"))
    twice = once._replace(resources=once.resources * 2)
    rows = ask(wire, c.INCREMENTAL_ALTER_CONFIGS, version, twice).responses
    assert [row.error_code for row in rows] == [error("INVALID_REQUEST")] * 2
    keys = change(("max.message.bytes", c.SET, "1"), ("max.message.bytes", c.SET, "2"))
    (row,) = ask(wire, c.INCREMENTAL_ALTER_CONFIGS, version, keys).responses
    assert row.error_code == error("INVALID_REQUEST")


@pytest.mark.parametrize("version", REPLACES)
def test_a_replacement_deletes_what_it_does_not_name_also_if_only_ours_was_in_it(wire: Wire, version: int) -> None:
    assert ask(wire, c.INCREMENTAL_ALTER_CONFIGS, 1, change(("retention.ms", c.SET, "3600000"))).responses[0][0] == 0
    wait_until(wire, retention_ms="3600000")
    request = c.AlterConfigsRequest(
        (
            c.AlterConfigsResource(
                c.TOPIC, TOPIC, (c.AlterableConfig("segment.ms", "70000"), c.AlterableConfig(OURS, "9"))
            ),
        )
    )
    assert ask(wire, c.ALTER_CONFIGS, version, request).responses[0].error_code == error("INVALID_CONFIG")
    split = c.split_replacing(request, is_ours, lambda *_: ())
    assert split.rest is not None
    checked = split.rest._replace(validate_only=True)
    assert ask(wire, c.ALTER_CONFIGS, version, checked).responses[0].error_code == 0
    wait_until(wire, retention_ms="3600000", segment_ms=None)
    assert ask(wire, c.ALTER_CONFIGS, version, split.rest).responses[0].error_code == 0
    wait_until(wire, retention_ms=None, segment_ms="70000")

    only_ours = c.AlterConfigsRequest((c.AlterConfigsResource(c.TOPIC, TOPIC, (c.AlterableConfig(OURS, "9"),)),))
    rest = c.split_replacing(only_ours, is_ours, lambda *_: ()).rest
    assert rest is not None
    assert ask(wire, c.ALTER_CONFIGS, version, rest).responses[0].error_code == 0
    wait_until(wire, segment_ms=None)
    null = c.AlterConfigsRequest(
        (c.AlterConfigsResource(c.TOPIC, TOPIC, (c.AlterableConfig("segment.ms", None),)),), True
    )
    assert ask(wire, c.ALTER_CONFIGS, version, null).responses[0].error_code == error("INVALID_REQUEST")


# --- quotas -----------------------------------------------------------------------------------------------------------

ALICE: q.Entity = (q.EntityData(q.USER, "admin-codec-älice"),)
BOTH: q.Entity = (q.EntityData(q.USER, "admin-codec-älice"), q.EntityData(q.CLIENT_ID, None))
NOBODY: q.Entity = (q.EntityData(q.CLIENT_ID, None),)
RATE = "producer_byte_rate"
OUR_RATE = "producer_byte_rate.bps"


def quotas(wire: Wire, version: int, *components: q.FilterComponent, strict: bool = False) -> dict[q.EntityKey, Any]:
    body = q.DescribeClientQuotasRequest(components, strict)
    answer = ask(wire, q.DESCRIBE_CLIENT_QUOTAS, version, body)
    assert (answer.throttle_time_ms, answer.error_code, answer.error_message or "") == (0, 0, "")
    return {q.entity_key(entry.entity): dict(entry.values) for entry in answer.entries or ()}


def altered(
    wire: Wire, version: int, *alterations: q.EntityAlteration, check: bool = False
) -> list[tuple[q.EntityKey, int]]:
    body = q.AlterClientQuotasRequest(alterations, check)
    answer = ask(wire, q.ALTER_CLIENT_QUOTAS, version, body)
    return [(q.entity_key(row.entity), row.error_code) for row in answer.entries]


@pytest.mark.parametrize("version", CHANGES)
def test_quotas_are_set_found_and_removed(wire: Wire, version: int) -> None:
    assert altered(
        wire,
        version,
        q.EntityAlteration(ALICE, (q.QuotaOperation(RATE, 1048576.0), q.QuotaOperation("request_percentage", 12.5))),
    ) == [(q.entity_key(ALICE), 0)]
    assert dict(
        altered(
            wire,
            version,
            q.EntityAlteration(BOTH, (q.QuotaOperation(RATE, 7.0),)),
            q.EntityAlteration(NOBODY, (q.QuotaOperation(RATE, 8.0),)),
            q.EntityAlteration((q.EntityData("planet", "x"),), (q.QuotaOperation(RATE, 1.0),)),
        )
    ) == {
        q.entity_key(BOTH): 0,
        q.entity_key(NOBODY): 0,
        frozenset({("planet", "x")}): error("INVALID_REQUEST"),
    }
    exact = q.FilterComponent(q.USER, q.EXACT, "admin-codec-älice")
    try:
        alice = {q.entity_key(ALICE): {RATE: 1048576.0, "request_percentage": 12.5}}
        both = {q.entity_key(BOTH): {RATE: 7.0}}
        wait_for("the quotas", lambda: quotas(wire, version, exact) == alice | both)
        assert quotas(wire, version, exact, strict=True) == alice
        assert quotas(wire, version, exact, q.FilterComponent(q.CLIENT_ID, q.DEFAULT, None)) == both
        assert quotas(wire, version, exact, q.FilterComponent(q.CLIENT_ID, q.SPECIFIED, None)) == both
        assert quotas(wire, version, q.FilterComponent(q.CLIENT_ID, q.SPECIFIED, None), strict=True) == {
            q.entity_key(NOBODY): {RATE: 8.0}
        }
        merged = q.merge_described(
            q.DescribeClientQuotasResponse(0, 0, None, (q.EntityQuotas(ALICE, (q.QuotaValue(RATE, 1.0),)),)),
            (q.EntityQuotas(ALICE, (q.QuotaValue(OUR_RATE, 2.0),)),),
        )
        assert merged.entries == (q.EntityQuotas(ALICE, (q.QuotaValue(RATE, 1.0), q.QuotaValue(OUR_RATE, 2.0))),)
    finally:
        drop = q.QuotaOperation(RATE, 0.0, True)
        both_keys = (drop, q.QuotaOperation("request_percentage", 0.0, True))
        altered(
            wire,
            version,
            q.EntityAlteration(ALICE, both_keys),
            *(q.EntityAlteration(e, (drop,)) for e in (BOTH, NOBODY)),
        )
    wait_for("no quotas", lambda: quotas(wire, version, exact) == {})


@pytest.mark.parametrize("version", CHANGES)
def test_a_filter_that_is_wrong_is_answered_with_an_error(wire: Wire, version: int) -> None:
    body = q.DescribeClientQuotasRequest((q.FilterComponent("planet", q.EXACT, "x"),))
    answer = ask(wire, q.DESCRIBE_CLIENT_QUOTAS, version, body)
    assert answer.error_code != 0
    assert answer.error_message
    assert not answer.entries
    assert q.merge_described(answer, (q.EntityQuotas(ALICE, ()),)) is answer


@pytest.mark.parametrize("version", CHANGES)
def test_a_probe_of_quotas_changes_nothing_and_the_rest_is_taken_and_merged(wire: Wire, version: int) -> None:
    request = q.AlterClientQuotasRequest(
        (
            q.EntityAlteration(BOTH, (q.QuotaOperation(OUR_RATE, 5.0),)),
            q.EntityAlteration(ALICE, (q.QuotaOperation(OUR_RATE, 5.0), q.QuotaOperation(RATE, 6.0))),
        ),
        True,
    )
    (refused, *_) = altered(wire, version, request.entries[0], check=True)
    assert refused[1] == error("INVALID_REQUEST")
    split = q.split_alterations(request, lambda _, key: key == OUR_RATE)
    probed = ask(wire, q.ALTER_CLIENT_QUOTAS, version, quota_probe(split.ours))
    assert {q.entity_key(row.entity): row.error_code for row in probed.entries} == {
        q.entity_key(BOTH): 0,
        q.entity_key(ALICE): 0,
    }
    for nobody in ((q.EntityData("planet", "x"),), ()):
        assert altered(wire, version, q.EntityAlteration(nobody, ()), check=True)[0][1] == error("INVALID_REQUEST")
    assert split.rest is not None
    answer = ask(wire, q.ALTER_CLIENT_QUOTAS, version, split.rest)
    merged = q.merge_altered(request, answer, [q.AlterClientQuotasResult(0, None, a.entity) for a in split.ours])
    assert [row[::2] for row in merged.entries] == [(0, BOTH), (0, ALICE)]
    assert quotas(wire, version, q.FilterComponent(q.USER, q.EXACT, "admin-codec-älice")) == {}


# --- who may not ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def denied() -> Iterator[Wire]:
    """A connection of a user who may nothing, to a cluster that asks."""
    overrides = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedCluster(1, overrides, users={"mallory": "secret"}) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(120)
        wait_writable(cluster, TOPIC)
        allowed = AclBinding(
            ResourceType.TOPIC,
            TOPIC,
            ResourcePatternType.LITERAL,
            "User:mallory",
            "*",
            AclOperation.DESCRIBE,
            AclPermissionType.ALLOW,
        )
        admin.create_acls([allowed])[allowed].result(120)
        port = int(cluster.sasl_bootstrap_servers.rpartition(":")[2])
        with Wire(port) as wire:
            for key, version, fields in (
                (api.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}),
                (api.SASL_AUTHENTICATE, 0, {"auth_bytes": b"\0mallory\0secret"}),
            ):
                body = kio.kio_encode(kio.request_class(key, version)(**fields))
                wire.send(struct.pack(">ihhih", 10 + len(body), key, version, 1, -1) + body)
                assert wire.receive()[8:10] == b"\0\0"
            yield wire


def test_a_probe_of_configs_says_that_a_principal_may_not(denied: Wire) -> None:
    ours = (
        c.IncrementalAlterConfigsResource(c.TOPIC, TOPIC, ()),
        c.IncrementalAlterConfigsResource(c.BROKER, "1", ()),
        c.IncrementalAlterConfigsResource(c.TOPIC, "admin-codec-missing", ()),
    )
    for version in CHANGES:
        answer = ask(denied, c.INCREMENTAL_ALTER_CONFIGS, version, config_probe(ours))
        assert {row.resource_name: row.error_code for row in answer.responses} == {
            TOPIC: api.TOPIC_AUTHORIZATION_FAILED,
            "1": error("CLUSTER_AUTHORIZATION_FAILED"),
            "admin-codec-missing": api.TOPIC_AUTHORIZATION_FAILED,
        }
        assert all(row.error_message for row in answer.responses)
    for version in DESCRIBES:
        request = c.DescribeConfigsRequest((c.DescribeConfigsResource(c.TOPIC, TOPIC, None),))
        described = ask(denied, c.DESCRIBE_CONFIGS, version, request)
        assert [row.error_code for row in described.results] == [api.TOPIC_AUTHORIZATION_FAILED]
        assert c.merge_described(request, described, lambda *_: (c.DescribedConfig(OURS, "1"),)) == described


@pytest.mark.parametrize("version", CHANGES)
def test_a_probe_of_quotas_says_that_a_principal_may_not(denied: Wire, version: int) -> None:
    ours = (q.EntityAlteration(ALICE, ()), q.EntityAlteration(NOBODY, ()))
    answer = ask(denied, q.ALTER_CLIENT_QUOTAS, version, quota_probe(ours))
    assert {q.entity_key(row.entity): row.error_code for row in answer.entries} == {
        q.entity_key(ALICE): error("CLUSTER_AUTHORIZATION_FAILED"),
        q.entity_key(NOBODY): error("CLUSTER_AUTHORIZATION_FAILED"),
    }
    described = ask(denied, q.DESCRIBE_CLIENT_QUOTAS, version, q.DescribeClientQuotasRequest(()))
    assert described.error_code == error("CLUSTER_AUTHORIZATION_FAILED")
    assert not described.entries
