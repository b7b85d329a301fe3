# The REST API over real HTTP (rest_server.py).

from __future__ import annotations

import json
import math
import re
from typing import Any
from urllib.parse import quote

import pytest
import trio
from jsonschema import Draft202012Validator

from gateway import channel
from gateway.channel import PROTOCOL, UsageInterval, UsageRow
from gateway.control.admin.rest import guard
from gateway.control.fleet.exchange.usage_codec import GatewayTraffic
from gateway.control.gateway_health import FleetStatus
from gateway.data.shared.client import MAX_CLIENT_ID, MAX_PRINCIPAL
from gateway.worker_config import WorkerInternal, WorkerInternalClient
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.explain import TopicFlow
from policies.limits.description import FleetUse
from policies.limits.limit_use import LimitUse
from policies.meters.broker_meters import PeerTraffic
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.quota_limiters import QuotaRate
from policies.storage import StorageFactor
from policies.thresholds.broker_limits import BrokerRate, TopicRate
from protocol.rewriting.identity import UNKNOWN_PRINCIPAL
from tests.gateway.control.admin.rest_server import ALICE, BASE, JSON, MB, NOW_MS, Server, rates

# --- paths ------------------------------------------------------------------------------------------------------------


async def test_head_is_get_without_the_body(server: Server) -> None:
    _, kind, body = await server.raw("GET", "/v1/thresholds")
    assert body
    assert await server.raw("HEAD", "/v1/thresholds") == (200, kind, b"")
    assert (await server.raw("HEAD", "/v1/nothing"))[::2] == (404, b"")


async def test_the_description_has_every_path_and_says_how_errors_look(server: Server) -> None:
    status, said = await server.ask("GET", "/openapi.json")
    assert status == 200
    assert set(said["paths"]) == {
        "/v1/thresholds", "/v1/thresholds/total", "/v1/thresholds/total/{broker}", "/v1/thresholds/topics/{topic}",
        "/v1/thresholds/total-out", "/v1/thresholds/total-out/{broker}",
        "/v1/client-quotas", "/v1/client-quotas:alter", "/v1/client-quotas/effective", "/v1/policies",
        "/v1/policies/history", "/v1/policies:apply", "/v1/explain", "/v1/topics", "/v1/top", "/v1/resource-groups",
        "/v1/reload", "/v1/status", "/v1/peers", "/v1/clients", "/v1/connections", "/v1/traffic", "/v1/decisions",
        "/v1/session", "/v1/storage", "/v1/storage/override",
        "/admin/v2/resourcegroup", "/admin/v2/resourcegroup/{resourcegroup}",
        "/admin/v2/resourcegroups", "/admin/v2/resourcegroups/{resourcegroup}",
        "/admin/v2/namespaces/{tenant}/{namespace}/resourcegroup",
        "/admin/v2/namespaces/{tenant}/{namespace}/resourcegroup/{resourcegroup}",
        "/admin/v2/tenants/{tenant}/resourcegroup", "/admin/v2/tenants/{tenant}/resourcegroup/{resourcegroup}",
    }  # fmt: skip
    schemas = said["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    assert "HTTPValidationError" not in schemas
    assert {"factor", "brokers", "override"} <= schemas["StorageStatus"]["properties"].keys()
    for path in said["paths"].values():
        for operation in path.values():
            assert list(operation["responses"]["401"]["content"]) == ["application/problem+json"]
    for path in ("/docs", "/redoc", "/v1/docs"):  # they load scripts from elsewhere
        assert (await server.raw("GET", path))[0] == 404


async def test_other_paths_and_methods_are_problems(server: Server) -> None:
    assert (await server.ask("GET", "/v1/nothing"))[1]["detail"] == "no such path: GET /openapi.json lists them"
    status, said = await server.ask("PUT", "/v1/thresholds")
    assert (status, said["detail"]) == (405, "here are GET: see GET /openapi.json")
    assert (await server.ask("GET", "/v1/thresholds/"))[0] == 404
    here = b"here are /metrics, /healthz, /readyz, /v1/storage, /openapi.json\n"
    assert (await server.raw("GET", "/"))[::2] == (404, here)


# --- thresholds -------------------------------------------------------------------------------------------------------


def threshold(value: float, origin: str, file: float, run_time: float | None, **more: Any) -> dict[str, Any]:
    values = {"value": value, "file": file, "run_time": run_time, "until": None, "then": None}
    return values | {"origin": origin, "base_origin": "file"} | more


def committed(total: float, explicit: float, text: str, excess: float = 0.0) -> dict[str, Any]:
    """Of a total, in MB/s."""
    shares = {"reserved": 0, "utilization": pytest.approx(explicit / total), "utilization_text": text}
    return {"total": total * MB, "explicit": explicit * MB, "excess": excess * MB} | shares


async def test_thresholds_are_shown_with_their_origin(server: Server) -> None:
    await server.ask("PUT", "/v1/thresholds/topics/clicks", {"value": "4MB"})
    status, said = await server.ask("GET", "/v1/thresholds")
    assert status == 200
    assert said == {
        "version": 1,
        "on_exceed": "reject",
        "mode": "enforce",
        "enforce_percent": 100.0,
        "total": {"default": threshold(12.0 * MB, "file", 12.0 * MB, None), "brokers": {}},
        "total_out": {"default": None, "brokers": {}},
        "topics": {"clicks": threshold(4.0 * MB, "run time", 5.0 * MB, 4.0 * MB)},
        "committed": {},
        "warnings": [],
    }


async def test_thresholds_of_topics_under_each_brokers_total_are_shown_and_judged_by_broker(server: Server) -> None:
    server.policies.places = {1: {"clicks"}, 2: {"clicks", "views"}}
    path = "/v1/thresholds/topics/views"
    status, said = await server.ask("PUT", path, {"value": "8MB"})
    assert status == 422
    (error,) = said["errors"]
    assert error["what"].startswith("broker 2: its topics' bytes.in.per.sec.threshold sum up to 13,000,000 bytes/s")
    assert (await server.ask("PUT", path, {"value": "6MB"}))[0] == 200
    server.policies.places = {1: {"clicks", "views"}, 3: set()}
    assert (await server.ask("PUT", path, {"value": "7MB"}))[0] == 200
    server.policies.policies = PolicySet({**BASE, PolicyKey.of_broker(1): 10.0 * MB}, server.policies.policies.changes)
    _, said = await server.ask("GET", "/v1/thresholds")
    assert said["committed"] == {"1": committed(10, 12, "120%", excess=2), "3": committed(12, 0, "0%")}
    assert [warning[:23] for warning in said["warnings"]] == ["broker 1: its topics' b"]
    _, would_be = await server.ask("PUT", path + "?validate_only=true", {"value": "4MB"})
    assert would_be["committed"] == {"1": committed(10, 9, "90%"), "3": committed(12, 0, "0%")}
    assert (await server.ask("GET", "/v1/thresholds"))[1]["committed"] == said["committed"]


async def test_thresholds_are_shown_beside_an_attached_group(server: Server) -> None:
    """The attachment's value is a name: this used to be a 500."""
    server.policies.policies = PolicySet({**BASE, PolicyKey.of_group("gold"): 1, PolicyKey.of_tenant("acme"): "gold"})
    status, said = await server.ask("GET", "/v1/thresholds")
    assert (status, list(said["topics"])) == (200, ["clicks"])


async def test_a_total_for_consumers_lets_them_have_shares(server: Server) -> None:
    entity, ops = [{"type": "user", "name": "alice"}], [{"key": "consumer_byte_rate.shares", "value": 2}]
    shares = {"alterations": [{"entity": entity, "ops": ops}]}
    status, said = await server.ask("POST", "/v1/client-quotas:alter", shares)
    assert status == 422
    assert "have no total.bytes.out.per.sec.threshold to share: set one first" in said["errors"][0]["what"]
    assert (await server.ask("PUT", "/v1/thresholds/total-out", {"value": "8MB"}))[0] == 200
    assert (await server.ask("PUT", "/v1/thresholds/total-out/2", {"value": "4MB"}))[0] == 200
    said = (await server.ask("GET", "/v1/thresholds"))[1]
    assert said["total_out"]["default"]["value"] == 8 * MB
    assert said["total_out"]["brokers"]["2"]["value"] == 4 * MB
    assert said["total"]["brokers"] == {}
    assert (await server.ask("POST", "/v1/client-quotas:alter", shares))[0] == 200
    values = server.policies.policies.quota_store().entries[Entity("alice")]
    assert values[QuotaKey("consumer_byte_rate", "shares")] == 2


async def test_a_threshold_is_set_and_goes_back_to_the_file(server: Server) -> None:
    path = "/v1/thresholds/topics/clicks"
    status, said = await server.ask("PUT", path, {"value": "6MB"})
    change = {"kind": "topic", "name": "clicks", "key": "bytes.in.per.sec.threshold", "old": 5 * MB, "new": 6 * MB}
    assert (status, said) == (
        200,
        {"version": 1, "validate_only": False, "changes": [change | {"until": None}], "warnings": [],
         "committed": {"": committed(12, 6, "50%")}},
    )  # fmt: skip
    assert (await server.ask("GET", path))[1]["value"] == 6 * MB
    status, said = await server.ask("DELETE", path, headers={})
    assert (status, said["version"], said["changes"][0]["new"]) == (200, 2, 5 * MB)
    status, said = await server.ask("DELETE", path, headers={})
    assert (status, said["detail"]) == (422, "refused, nothing was changed")
    assert "is set in the configuration file" in said["errors"][0]["what"]
    assert said["errors"][0]["where"] == "bytes.in.per.sec.threshold of topic clicks"


async def test_totals_are_of_all_brokers_or_of_one(server: Server) -> None:
    assert (await server.ask("PUT", "/v1/thresholds/total", {"value": 20 * MB}))[0] == 200
    assert (await server.ask("PUT", "/v1/thresholds/total/2", {"value": "8MB"}))[0] == 200
    assert (await server.ask("GET", "/v1/thresholds/total"))[1]["value"] == 20 * MB
    assert (await server.ask("GET", "/v1/thresholds/total/2"))[1]["value"] == 8 * MB
    assert list((await server.ask("GET", "/v1/thresholds"))[1]["total"]["brokers"]) == ["2"]
    assert (await server.ask("DELETE", "/v1/thresholds/total/2"))[0] == 200
    for method in ("GET", "DELETE"):
        status, said = await server.ask(method, "/v1/thresholds/total/2")
        assert (status, "is not set" in said["detail"]) == (404, True)
    assert server.policies.policies.broker_total(2) == 20 * MB


async def test_a_validation_changes_nothing(server: Server) -> None:
    status, said = await server.ask("PUT", "/v1/thresholds/total", {"value": "20MB"}, validate_only="true")
    assert (status, said["validate_only"], said["version"]) == (200, True, 0)
    assert said["changes"][0]["new"] == 20 * MB
    assert server.policies.policies.broker_total() == 12 * MB


@pytest.mark.parametrize(
    ("path", "body", "where", "what"),
    [
        ("topics/views", {"value": "8XB"}, "body.value", "is not a valid size; for example: 20MB"),
        ("topics/views", {"value": True}, "body.value", "a number is needed here, not true or false"),
        ("topics/views", {"value": None}, "body.value", "a number is needed here"),
        ("topics/views", {"value": math.nan}, "body.value", "finite number"),
        ("topics/views", {"valu": 1}, "body", "unknown: 'valu'; did you mean value?"),
        ("topics/views", {}, "body.value", "is required"),
        ("topics/views", [], "body", "an object is needed here"),
        ("topics/a b", {"value": 1}, "", "can't be a topic's name"),
        ("topics/views", {"value": "8MB"}, "", "raise the total to at least 13,000,000 bytes/s"),
        ("total", {"value": 0}, "", "must be a finite number above 0"),
        ("total/-1", {"value": 1}, "", "is not a valid broker id"),
        ("total/x", {"value": 1}, "path.broker", "a whole number is needed here"),
    ],
)
async def test_a_mistake_is_told_with_its_place(
    server: Server, path: str, body: dict[str, Any] | list[Any], where: str, what: str
) -> None:
    status, said = await server.ask("PUT", "/v1/thresholds/" + quote(path), body)
    assert status == 422
    found = said["errors"] or [{"where": "", "what": said["detail"]}]
    assert what in found[0]["what"]
    assert where in found[0]["where"]
    assert server.policies.policies.version == 0


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000, b""])
async def test_a_body_that_is_no_json_is_said_to_be_none(server: Server, body: bytes) -> None:
    status, kind, said = await server.raw("PUT", "/v1/thresholds/total", body)
    assert kind == "application/problem+json"
    assert status == (422 if body == b"" else 400)
    assert json.loads(said)["status"] == status


async def test_an_unknown_query_is_an_error_and_not_everything(server: Server) -> None:
    status, said = await server.ask("GET", "/v1/client-quotas", usr="alice")
    assert status == 422
    assert said["errors"] == [{"where": "query", "what": "unknown: 'usr'; did you mean user?"}]


async def test_no_path_passes_over_a_parameter(server: Server) -> None:
    _, api = await server.ask("GET", "/openapi.json")
    assert len(api["paths"]) > 30
    for path, methods in api["paths"].items():
        for method in methods:
            _, said = await server.ask(method.upper(), f"{re.sub('{.*?}', '1', path)}?validate_onyl=true", {})
            assert "unknown: 'validate_onyl'" in str(said), (method, path)
    _, said = await server.ask("GET", "/openapi.json?x=1")
    assert said["errors"] == [{"where": "query", "what": "unknown: 'x'; GET takes no parameters here"}]
    alterations = [{"entity": [{"type": "user", "name": "a"}], "ops": [{"key": "producer_byte_rate", "value": 1e6}]}]
    status, said = await server.ask("POST", "/v1/client-quotas:alter?validate_only=true", {"alterations": alterations})
    what = "unknown: 'validate_only'; POST takes no parameters here: write it into the body"
    assert (status, said["errors"]) == (422, [{"where": "query", "what": what}])
    assert server.policies.policies.version == 0


async def test_no_path_passes_over_a_body(server: Server) -> None:
    group = "/admin/v2/namespaces/public/default/resourcegroup"
    paths = [("POST", "/v1/reload"), ("POST", f"{group}/free"), ("DELETE", group), ("GET", "/v1/storage")]
    for method, path in (*paths, ("GET", "/openapi.json")):
        status, said = await server.ask(method, path, {"validate_only": True})
        assert (status, said["errors"]) == (422, [{"where": "body", "what": f"{method} takes no body here"}])
    assert server.policies.policies.version == 0
    _, said = await server.ask("POST", "/v1/reload?validate_only=true")
    assert said["errors"][0]["what"] == "unknown: 'validate_only'; POST takes no parameters here"


async def test_a_parameter_that_is_given_twice_is_an_error(server: Server) -> None:
    for path in ("/v1/client-quotas?user=a&user=b", "/v1/explain?topic=a&user=&user=b", "/v1/top?limit=5&limit=5"):
        status, said = await server.ask("GET", path)
        assert (status, len(said["errors"])) == (422, 1)
        assert said["errors"][0]["what"] == "given 2 times: once"
    status, said = await server.ask(
        "PUT", "/v1/thresholds/topics/a?validate_only=true&validate_only=false", {"value": 1}
    )
    assert (status, said["errors"][0]["where"]) == (422, "query.validate_only")
    assert PolicyKey.of_topic("a") not in server.policies.policies.effective_values()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/thresholds/topics/clicks", {"\ud800": 1}),
        ("PUT", "/v1/thresholds/topics/clicks", {"value": "\ud800"}),
        ("PUT", "/v1/thresholds/topics/clicks", {"value": "9" * 400 + "TB"}),
        ("POST", "/v1/client-quotas:alter", {"alterations": [
            {"entity": [{"type": "user", "name": "a"}], "ops": [{"key": "\ud800", "value": 1}]}
        ]}),
        ("POST", "/v1/policies:apply", {"document": {"\ud800": 1}}),
        ("POST", "/v1/policies:apply", {"document": {"thresholds": {"topics": {"\ud800": 1}}}}),
        ("POST", "/v1/policies:apply", {"document": {"client_quotas": [{"user": "\ud800", "producer_byte_rate": 1}]}}),
        ("POST", "/v1/policies:apply", {"document": {"client_quotas": [{"user": "a", "\ud800": 1}]}}),
    ],
)  # fmt: skip
async def test_a_value_that_no_answer_could_hold_is_refused_and_no_fault(
    server: Server, method: str, path: str, body: dict[str, Any]
) -> None:
    status, said = await server.ask(method, path, body)
    assert status == 422
    assert said["errors"]
    assert all(each["what"] for each in said["errors"])


async def test_a_change_that_cannot_be_kept_just_now_is_503(server: Server) -> None:
    server.policies.problem = "topic __produce_gateway_policies: no answer"
    status, said = await server.ask("PUT", "/v1/thresholds/total", {"value": "20MB"})
    assert status == 503
    assert said["detail"] == "policies can't be changed just now: topic __produce_gateway_policies: no answer"


async def test_a_changes_source_is_the_name_that_the_caller_gives_and_its_address(server: Server) -> None:
    headers = {**JSON, "Produce-Gateway-User": quote("zoë")}
    await server.ask("PUT", "/v1/thresholds/total", {"value": "20MB"}, headers)
    (source,) = server.policies.sources
    assert (source.who, source.door) == ("zoë", "rest")
    assert source.peer.startswith("127.0.0.1:")


# --- client quotas ----------------------------------------------------------------------------------------------------


def alteration(key: str, value: int | str | None, **names: str | None) -> dict[str, Any]:
    kinds = {"user": "user", "client_id": "client-id"}
    return {
        "entity": [{"type": kinds[kind], "name": name} for kind, name in names.items()],
        "ops": [{"key": key, "value": value}],
    }


async def alter(server: Server, *alterations: dict[str, list[dict[Any, Any]]], **more: bool) -> tuple[Any, ...]:
    return await server.ask("POST", "/v1/client-quotas:alter", {"alterations": list(alterations), **more})


@pytest.mark.seed("546.8")
async def test_quotas_are_altered_and_described_by_every_filter(server: Server) -> None:
    status, said = await alter(
        server,
        alteration("producer_byte_rate", "1MB", user="alan"),
        alteration("request_percentage", 50, user=None, client_id="app"),
        alteration("consumer_byte_rate.bps", 10, client_id=None),
        alteration("producer_byte_rate:bps", None, user="nobody"),
    )
    assert (status, said["version"], len(said["changes"])) == (200, 1, 3)
    assert {result["error"] for result in said["results"]} == {None}

    async def found(**query: Any) -> list[str]:
        status, said = await server.ask("GET", "/v1/client-quotas", **query)
        assert status == 200
        return [entry["text"] for entry in said["entries"]]

    alice, alan, app = "{user=alice}", "{user=alan}", "{user=<default>, client-id=app}"
    anybody = "{client-id=<default>}"
    assert await found() == [alan, alice, app, anybody]
    assert await found(user="alice") == [alice]
    assert await found(user_prefix="al") == [alan, alice]
    assert await found(default_user="true") == [app]
    assert await found(any_user="true") == [alan, alice, app]
    assert await found(any_user="true", strict="true") == [alan, alice]
    assert await found(any_client_id="true", default_user="true") == [app]
    assert await found(default_client_id="true") == [anybody]
    _, said = await server.ask("GET", "/v1/client-quotas", client_id_prefix="ap")
    assert said["entries"] == [
        {
            "entity": [{"type": "user", "name": None}, {"type": "client-id", "name": "app"}],
            "text": app,
            "values": {"request_percentage": 50.0},
            "brokers": {},
            "until": {},
        }
    ]
    status, said = await server.ask("GET", "/v1/client-quotas", user="a", user_prefix="b")
    assert (status, said["detail"]) == (422, "entity type user has two filters: one is enough")


@pytest.mark.seed("546.24")
async def test_a_refused_entity_leaves_the_others_alone(server: Server) -> None:
    wrong = alteration("producer_byte_rate", -1, user="bob")
    right = alteration("producer_byte_rate", 1000, user="carol")
    status, said = await alter(server, wrong, right)
    assert status == 200
    first, second = said["results"]
    assert (first["error"], second["error"]) == ("INVALID_REQUEST", None)
    assert "above 0" in first["message"]
    assert [change["name"] for change in said["changes"]] == ["/config/users/carol"]

    status, said = await alter(server, wrong)
    assert (status, said["errors"][0]["where"]) == (422, "body.alterations.0")
    status, said = await alter(server, wrong, alteration("producer_byte_rate", 1000, user="dan"), validate_only=True)
    assert (status, said["validate_only"], len(said["changes"])) == (200, True, 1)
    assert server.policies.policies.version == 1


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("request_percentage", "50MB", "takes a number, not '50MB'"),
        ("producer_byte_rate", "fast", "is not a valid size"),
        ("nonsense", "1MB", "unknown quota 'nonsense'"),
    ],
)
async def test_a_size_is_a_number_of_bytes_and_nothing_else(server: Server, key: str, value: str, what: str) -> None:
    status, said = await alter(server, alteration(key, value, user="bob"))
    assert (status, said["errors"][0]["where"]) == (422, "body.alterations.0.ops.0.value")
    assert what in said["errors"][0]["what"]


@pytest.mark.seed("546.5")
async def test_a_value_in_force_is_shown_with_those_that_it_overrides(server: Server) -> None:
    await alter(server, alteration("producer_byte_rate.bps", 1000, user=None))
    path = "/v1/client-quotas/effective"
    status, said = await server.ask("GET", path, user="alice", client_id="app")
    assert status == 200
    assert said["quotas"] == [
        {
            "key": "producer_byte_rate.bps",
            "by": "gateway",
            "mode": "enforce",
            "value": 3.0 * MB,
            "in_force": 3.0 * MB,
            "entity": [{"type": "user", "name": "alice"}],
            "text": "producer_byte_rate:bps=3000000 {user=alice}",
            "overridden": [
                {
                    "entity": [{"type": "user", "name": None}],
                    "value": 1000.0,
                    "text": "producer_byte_rate:bps=1000 {user=<default>}",
                }
            ],
            "also": None,
        }
    ]
    assert said["storage"] == {"factor": 1.0, "state": "OFF", "origin": None, "why": "", "mode": "enforce"}
    server.told[channel.StorageSnapshot] = channel.StorageSnapshot(
        StorageFactor(0.25, "kept", "broker 1 volume /a: 1.0 GB free")
    )
    _, said = await server.ask("GET", path, user="alice", omit_overridden="true")
    assert said["quotas"][0]["in_force"] == 0.75 * MB
    assert said["storage"] == {
        "factor": 0.25, "state": "THROTTLE", "origin": "kept", "why": "broker 1 volume /a: 1.0 GB free",
        "mode": "enforce",
    }  # fmt: skip
    server.told[channel.WorkerSettings] = channel.WorkerSettings(PROTOCOL, "gw", mode="observe")
    _, said = await server.ask("GET", path, user="alice", omit_overridden="true")
    assert (said["quotas"][0]["in_force"], said["storage"]["mode"]) == (3.0 * MB, "observe")
    assert said["quotas"][0]["overridden"] is None
    _, said = await server.ask("GET", path, default_user="true")
    assert [each["value"] for each in said["quotas"]] == [1000.0]
    assert (await server.ask("GET", path))[0] == 422
    assert (await server.ask("GET", path, user="a", default_user="true"))[0] == 422


async def test_brokers_quotas_are_a_source_of_their_own_and_the_lesser_value_holds(server: Server) -> None:
    await alter(server, alteration("producer_byte_rate", 5 * MB, user="alice"))
    server.upstream = [
        (ALICE, {QuotaKey.parse("producer_byte_rate"): 1.0 * MB, QuotaKey.parse("request_percentage"): 5.0})
    ]
    path = "/v1/client-quotas/effective"
    said = (await server.ask("GET", path, user="alice", client_id="app"))[1]
    assert said["brokers_problem"] == ""
    shown = {each["key"]: each for each in said["quotas"]}
    assert {key: (each["by"], each["value"]) for key, each in shown.items()} == {
        "producer_byte_rate": ("brokers", 1.0 * MB),
        "producer_byte_rate.bps": ("gateway", 3.0 * MB),
        "request_percentage": ("brokers", 5.0),
    }
    also = shown["producer_byte_rate"]["also"]
    assert (also["by"], also["value"], also["also"]) == ("gateway", 5.0 * MB, None)
    server.told[channel.StorageSnapshot] = channel.StorageSnapshot(StorageFactor(0.1, "kept", "little is free"))
    said = (await server.ask("GET", path, user="alice"))[1]
    (least,) = (each for each in said["quotas"] if each["key"] == "producer_byte_rate")
    assert (least["by"], least["in_force"], least["also"]["in_force"]) == ("gateway", 0.5 * MB, 1.0 * MB)

    (entry,) = (await server.ask("GET", "/v1/client-quotas", user="alice"))[1]["entries"]
    assert entry["values"] == {"producer_byte_rate": 5.0 * MB, "producer_byte_rate.bps": 3.0 * MB}
    assert entry["brokers"] == {"producer_byte_rate": 1.0 * MB, "request_percentage": 5.0}
    said = (await server.ask("GET", "/v1/explain", topic="clicks", user="alice"))[1]
    assert [rule["levels"][0]["origin"] for rule in said["rules"] if rule["name"] == "broker-quota"] == ["brokers"] * 2


@pytest.mark.parametrize(
    ("told", "mode"),
    [
        (channel.QuotaSnapshot(1, mode="observe"), "observe"),
        (channel.QuotaSnapshot(1, enforce_percent=5), "enforce for 5 % of the clients"),
    ],
)
async def test_the_brokers_value_comes_first_unless_the_gateways_is_enforced_for_all(
    server: Server, told: channel.QuotaSnapshot, mode: str
) -> None:
    await alter(server, alteration("producer_byte_rate", 1 * MB, user="alice"))
    server.upstream = [(ALICE, {QuotaKey.parse("producer_byte_rate"): 5.0 * MB})]
    path = "/v1/client-quotas/effective"
    shown = {each["key"]: each for each in (await server.ask("GET", path, user="alice"))[1]["quotas"]}
    assert (shown["producer_byte_rate"]["by"], shown["producer_byte_rate"]["mode"]) == ("gateway", "enforce")
    server.told[channel.QuotaSnapshot] = told
    shown = {each["key"]: each for each in (await server.ask("GET", path, user="alice"))[1]["quotas"]}
    both = shown["producer_byte_rate"]
    assert (both["by"], both["mode"], both["value"]) == ("brokers", "enforce", 5.0 * MB)
    assert (both["also"]["by"], both["also"]["mode"], both["also"]["value"]) == ("gateway", mode, 1.0 * MB)
    assert (shown["producer_byte_rate.bps"]["by"], shown["producer_byte_rate.bps"]["mode"]) == ("gateway", mode)


async def test_of_an_internal_client_the_gateway_enforces_nothing(server: Server) -> None:
    """As explain says it: metered, never limited."""
    internal = WorkerInternal(principals=("User:alice",), client_ids=("mirror",))
    server.told[channel.WorkerSettings] = channel.WorkerSettings(PROTOCOL, "gw", internal=internal)
    await alter(server, alteration("producer_byte_rate", 1 * MB, user="alice"))
    server.upstream = [(ALICE, {QuotaKey.parse("producer_byte_rate"): 5.0 * MB})]
    path = "/v1/client-quotas/effective"
    for client in ("?user=alice", "?user=alice&client_id=mirror"):
        shown = {each["key"]: each for each in (await server.ask("GET", path + client))[1]["quotas"]}
        assert (shown["producer_byte_rate"]["by"], shown["producer_byte_rate"]["value"]) == ("brokers", 5.0 * MB)
        assert shown["producer_byte_rate.bps"]["mode"] == "observe"
    await alter(server, alteration("producer_byte_rate", 1 * MB, user=None))
    (other,) = (await server.ask("GET", path, user="bob"))[1]["quotas"]
    assert (other["by"], other["mode"]) == ("gateway", "enforce")
    (other,) = (await server.ask("GET", path, user="bob", client_id="mirror"))[1]["quotas"]
    assert (other["by"], other["mode"]) == ("gateway", "observe")
    one = WorkerInternal(clients=(WorkerInternalClient(principal="User:bob", client_id="sync"),))
    server.told[channel.WorkerSettings] = channel.WorkerSettings(PROTOCOL, "gw", internal=one)
    for client_id, mode in (("sync", "observe"), ("app", "enforce")):
        (other,) = (await server.ask("GET", path, user="bob", client_id=client_id))[1]["quotas"]
        assert other["mode"] == mode
        _, said = await server.ask("GET", "/v1/explain", topic="clicks", user="bob", client_id=client_id)
        assert bool(said["internal"]) == (mode == "observe")


@pytest.mark.parametrize(
    ("fleet", "note"),
    [
        (FleetStatus(), ""),
        (FleetStatus(True, "__usage", up=True), ""),
        (FleetStatus(True, "__usage", problem="no rights"), "become even ones: no rights"),
        (FleetStatus(True, "__usage"), "become even ones: topic __usage is silent"),
    ],
)
async def test_that_other_gateways_can_not_be_heard_is_noted(server: Server, fleet: FleetStatus, note: str) -> None:
    server.peers = fleet
    _, said = await server.ask("GET", "/v1/explain", topic="clicks", user="alice")
    notes = [each for each in said["notes"] if each.startswith("other gateways can't be heard: what they use")]
    assert [each.endswith(note) for each in notes] == [True] * bool(note)


async def test_where_brokers_know_clients_by_other_names_their_quotas_are_noted_so(server: Server) -> None:
    server.upstream = [(ALICE, {QuotaKey.parse("producer_byte_rate"): 1.0 * MB})]
    for server.other_names, noted in (("", False), ("SASL ends at the gateway", True)):
        _, said = await server.ask("GET", "/v1/client-quotas/effective", user="alice")
        text = said["brokers_problem"]
        assert text == ("SASL ends at the gateway; those shown are of the name here" if noted else "")
        _, explained = await server.ask("GET", "/v1/explain", topic="clicks", user="alice")
        assert (f"client quotas that the brokers enforce are not known: {text}" in explained["notes"]) == noted


async def test_a_principal_in_place_of_a_user_is_noted(server: Server) -> None:
    for user, noted in (("User:alice", True), ("alice", False)):
        _, said = await server.ask("GET", "/v1/explain", topic="clicks", user=user)
        note = "the user is User:alice, whose principal is User:User:alice: did you mean alice?"
        assert (note in said["notes"]) == noted


async def test_the_reason_why_brokers_quotas_are_not_known_is_told(server: Server) -> None:
    server.upstream = "kafka:9092: no answer in time"
    for path in ("/v1/client-quotas", "/v1/client-quotas/effective?user=alice"):
        assert (await server.ask("GET", path))[1]["brokers_problem"] == server.upstream
    notes = (await server.ask("GET", "/v1/explain", topic="clicks"))[1]["notes"]
    assert f"client quotas that the brokers enforce are not known: {server.upstream}" in notes


# --- documents --------------------------------------------------------------------------------------------------------


async def test_a_document_is_exported_and_applied(server: Server) -> None:
    status, said = await server.ask("GET", "/v1/policies")
    assert status == 200
    assert said["document"]["thresholds"] == {"total": {"default": "12MB"}, "topics": {"clicks": "5MB"}}
    assert said["origins"][0]["origin"] == "file"
    said["document"]["thresholds"]["topics"]["views"] = "1MB"
    body = {"document": said["document"]}
    status, applied = await server.ask("POST", "/v1/policies:apply", {**body, "dry_run": True})
    assert (status, applied["dry_run"], applied["version"]) == (200, True, 0)
    op = {"kind": "topic", "name": "views", "key": "bytes.in.per.sec.threshold", "old": None, "new": 1.0 * MB,
          "until": None}  # fmt: skip
    assert applied["ops"] == [op]
    assert (await server.ask("POST", "/v1/policies:apply", body))[1]["version"] == 1
    assert (await server.ask("POST", "/v1/policies:apply", body))[1]["ops"] == []
    del body["document"]["thresholds"]["topics"]["views"]
    assert (await server.ask("POST", "/v1/policies:apply", body))[1]["ops"] == []
    pruned = (await server.ask("POST", "/v1/policies:apply", {**body, "prune": True}))[1]["ops"]
    assert pruned == [{**op, "old": 1.0 * MB, "new": None}]


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"thresholds": {"total": "x"}}, {"thresholds.total": "'x' is not a valid size"}),
        (
            {"thresholds": {"topic": {}}, "client_quotas": [{"user": "a"}]},
            {"thresholds.topic": "did you mean topics?", "client_quotas.0": "{user=a} has no quota"},
        ),
        ({"thresholds": {"topics": {"a: b": 1}}}, {"thresholds.topics.a: b": "can't be a topic's name"}),
        (None, {"": "keys such as thresholds:, client_quotas:, resource_groups: with values are needed here, not"}),
    ],
)
async def test_mistakes_in_a_document_are_told_line_by_line(
    server: Server, document: Any, found: dict[str, str]
) -> None:
    status, said = await server.ask("POST", "/v1/policies:apply", {"document": document})
    assert status == 422
    assert {each["where"] for each in said["errors"]} == found.keys()
    assert all(found[each["where"]] in each["what"] for each in said["errors"])


async def test_more_quotas_than_are_told_of_leave_a_rate_unknown(server: Server) -> None:
    lines = tuple(
        QuotaRate("producer_byte_rate:bps", "{user=x}", f"u{i}", None, None, LimitUse(1.0, 1.0), 1.0)
        for i in range(channel.MAX_QUOTA_RATES)
    )
    for count, rate in ((channel.MAX_QUOTA_RATES - 1, 0.0), (channel.MAX_QUOTA_RATES, None)):
        server.told[channel.WorkerRates] = rates([], quotas=lines[:count])
        _, said = await server.ask("GET", "/v1/explain", topic="clicks", user="alice")
        assert next(rule["rate"] for rule in said["rules"] if rule["name"] == "client-quota") == rate


# --- explanations -----------------------------------------------------------------------------------------------------


def interval(*rows: UsageRow) -> UsageInterval:
    return UsageInterval("boot", 0, 1, NOW_MS - 8_000, NOW_MS - 7_000, rows)


async def test_topics_and_thresholds_are_of_all_gateways_together(server: Server) -> None:
    clicks = TopicRate("clicks", 2.0 * MB, 5.0 * MB, True, 6.0 * MB)
    server.told[channel.WorkerRates] = channel.WorkerRates(
        (BrokerRate(1, 3.0 * MB, 0, 0, 12.0 * MB, [clicks], 7.0 * MB),)
    )
    away = FleetUse(None, {"gwb": 4.0 * MB}, 2)
    server.brought = {(1, "clicks"): away, (1, None): away}
    server.elsewhere = {1: PeerTraffic(4.0 * MB, {b"clicks": 4.0 * MB, b"away": 1.0 * MB})}
    server.others = {"gwb": GatewayTraffic({"clicks": TopicFlow(3.0 * MB, 1.0 * MB)})}
    _, said = await server.ask("GET", "/v1/explain", topic="clicks")
    (rule,) = [rule for rule in said["rules"] if rule["name"] == "topic-threshold"]
    found = [
        (level["rate"], level["used"], level["used_here"], level["limit"], level["utilization"])
        for level in rule["levels"]
    ]
    assert found[0][:3] == (6.0 * MB, 6.0 * MB, 2.0 * MB)
    assert found[1] == (7.0 * MB, 7.0 * MB, 3.0 * MB, 12.0 * MB, pytest.approx(7 / 12))
    assert "12.0 MB/s over 2 gateways: 7.0 MB/s used (58%) (3.0 MB/s here, 4.0 MB/s at gwb)" in rule["text"]
    _, said = await server.ask("GET", "/v1/topics")
    topics = {each["topic"]: each for each in said["topics"]}
    assert (topics["clicks"]["rate"], topics["clicks"]["elsewhere"]) == (6.0 * MB, 4.0 * MB)
    assert topics["clicks"]["utilization"] == pytest.approx(6.0 / 5)
    assert (topics["clicks"]["accepted"], topics["clicks"]["rejected"]) == (3.0 * MB, 1.0 * MB)
    assert topics["clicks"]["others"]["gwb"]["accepted"] == 3.0 * MB
    assert (topics["away"]["rate"], topics["away"]["brokers"]) == (1.0 * MB, [1])


async def test_a_client_that_another_gateway_holds_back_is_sent_there(server: Server) -> None:
    clients = {("User:alice", "app"): TopicFlow(3.0 * MB, 1.0 * MB), ("User:bob", "app"): TopicFlow(1.0 * MB)}
    server.others = {"gwb": GatewayTraffic({"clicks": TopicFlow(4.0 * MB, 1.0 * MB)}, clients), "gwc": GatewayTraffic()}
    of_alice = await server.ask("GET", "/v1/explain", topic="clicks", user="alice", client_id="app")
    of_apps = await server.ask("GET", "/v1/explain", topic="clicks", client_id="app")
    of_topic = await server.ask("GET", "/v1/explain", topic="clicks")
    for (_, said), accepted in ((of_alice, "3.0"), (of_apps, "4.0"), (of_topic, "4.0")):
        assert said["summary"].startswith("nothing limits this traffic now; ")
        assert said["summary"].endswith("; but ask gwb, where such traffic is held back")
        held = f"{accepted} MB/s accepted, 1.0 MB/s rejected"
        note = f"gateway gwb has such traffic too; what holds it back there only its explain says: {held}"
        assert [each for each in said["notes"] if each.startswith("gateway ")] == [note]
    _, said = await server.ask("GET", "/v1/explain", topic="clicks", user="bob")
    assert "but ask" not in said["summary"]
    _, said = await server.ask("GET", "/v1/explain", topic="clicks", user="eve")
    assert not any(each.startswith("gateway ") for each in said["notes"])


async def test_a_threshold_that_delays_is_explained_by_the_bucket_of_this_gateways_part(server: Server) -> None:
    use = LimitUse(2.5 * MB, 2.5 * MB, True, 3.1)
    clicks = TopicRate("clicks", 2.0 * MB, 5.0 * MB, True, 4.0 * MB, use)
    total = LimitUse(6.0 * MB, 6.0 * MB, True, 1.5)
    server.told[channel.WorkerRates] = channel.WorkerRates(
        (BrokerRate(1, 3.0 * MB, 0, 0, 12.0 * MB, [clicks], 7.0 * MB, total),)
    )
    server.brought = {(1, None): FleetUse(None, {"gwb": 4.0 * MB}, 2)}
    _, said = await server.ask("GET", "/v1/explain", topic="clicks")
    (rule,) = [rule for rule in said["rules"] if rule["name"] == "topic-threshold"]
    assert [(level["limit"], level["rate"], level["wait_s"]) for level in rule["levels"]] == [
        (2.5 * MB, 2.5 * MB, 3.1), (6.0 * MB, 6.0 * MB, 1.5),
    ]  # fmt: skip
    assert rule["limits_now"]
    assert "the share of this gateway is now 6.0 MB/s (100%); held 1.5 s" in rule["text"]


async def test_traffic_is_explained(server: Server) -> None:
    server.told[channel.WorkerRates] = rates([("clicks", 4.0 * MB, 5.0 * MB, False)])
    server.recent.add_interval(
        interval(
            UsageRow(1, "clicks", "User:alice", "app", "rejected", "topic-threshold", 100, 1, 1, 500),
            UsageRow(1, "clicks", "User:bob", "app", "rejected", "topic-threshold", 200, 1, 1, 500),
            UsageRow(1, "views", "User:alice", "app", "rejected", "topic-threshold", 300, 1, 1, 500),
        ),
        NOW_MS,
    )
    status, said = await server.ask("GET", "/v1/explain", topic="clicks", user="alice", client_id="app")
    assert status == 200
    assert [rule["name"] for rule in said["rules"]] == ["client-quota", "topic-threshold", "fence"]
    threshold = said["rules"][1]
    assert (threshold["limits_now"], threshold["first"]) == (True, True)
    assert (threshold["limit"], threshold["rate"], threshold["utilization"]) == (5.0 * MB, 4.0 * MB, 0.8)
    assert [level["utilization_text"] for level in threshold["levels"]] == ["80%", "92%"]
    assert said["rules"][2]["utilization"] is None
    assert said["rules"][2]["utilization_text"] == "no limit"
    assert said["summary"].startswith("rejected now by topic-threshold on broker 1: ")
    assert [(held["principal"], held["bytes"]) for held in said["held"]] == [("User:alice", 100)]
    assert said["brokers"] == [1]
    _, said = await server.ask("GET", "/v1/explain", topic="clicks")
    assert said["user"] == "ANONYMOUS"
    assert len(said["held"]) == 2


async def test_clients_whose_name_only_brokers_know_are_explained(server: Server) -> None:
    """Those of GSSAPI and of delegation tokens. Their principal has no type, and no user is called so."""
    row = UsageRow(1, "clicks", UNKNOWN_PRINCIPAL, "app", "rejected", "topic-threshold", 100, 1, 1, 500)
    user = UsageRow(1, "clicks", "User:unknown", "app", "rejected", "topic-threshold", 200, 1, 1, 500)
    server.recent.add_interval(interval(row, user), NOW_MS)
    _, said = await server.ask("GET", "/v1/explain", topic="clicks", user="", client_id="app")
    assert [(held["principal"], held["bytes"]) for held in said["held"]] == [(UNKNOWN_PRINCIPAL, 100)]
    assert said["summary"].startswith("rejected now by topic-threshold on broker 1: ")
    _, said = await server.ask("GET", "/v1/clients", user="")
    assert [client["principal"] for client in said["clients"]] == [UNKNOWN_PRINCIPAL]
    _, said = await server.ask("GET", "/v1/decisions", user="unknown")
    assert [held["bytes"] for held in said["decisions"]] == [200]


async def test_long_names_are_found_as_workers_cut_them(server: Server) -> None:
    """Names of certificates are long where organisations are; quotas go by all of them, counts by their beginning."""
    name, client_id = "CN=" + "x" * 400, "c" * 400
    principal = f"User:{name}"[:MAX_PRINCIPAL]
    row = UsageRow(1, "clicks", principal, client_id[:MAX_CLIENT_ID], "rejected", "topic-threshold", 100, 1, 1, 500)
    server.recent.add_interval(interval(row), NOW_MS)
    _, said = await server.ask("GET", "/v1/explain", topic="clicks", user=name, client_id=client_id)
    assert (said["user"], [held["bytes"] for held in said["held"]]) == (name, [100])
    for path, rows in (("/v1/clients", "clients"), ("/v1/decisions", "decisions")):
        _, said = await server.ask("GET", path, user=name, client_id=client_id)
        assert len(said[rows]) == 1


async def test_storage_internal_clients_and_quotas_at_work_are_part_of_it(server: Server) -> None:
    server.told[channel.StorageSnapshot] = channel.StorageSnapshot(
        StorageFactor(0.5, "valid", "broker 1 volume /a: 1.0 GB free")
    )
    line = QuotaRate(
        "producer_byte_rate:bps", "{user=alice}", "alice", None, None, LimitUse(1.5 * MB, 1.5 * MB, True), 3.0 * MB
    )
    server.told[channel.WorkerRates] = rates([("clicks", 0.0, 2.5 * MB, False)], ((1, 1.0 * MB),), (line,))
    _, said = await server.ask("GET", "/v1/explain", topic="clicks", user="alice")
    (first,) = [rule for rule in said["rules"] if rule["first"]]
    assert (first["name"], first["limit"], first["limits_now"]) == ("client-quota", 1.5 * MB, True)
    assert first["levels"][0]["configured"] == 3.0 * MB
    assert said["storage"]["factor"] == 0.5
    _, said = await server.ask("GET", "/v1/explain", topic="clicks", user="mirror")
    assert said["rules"] == []
    assert said["summary"] == "User:mirror is an internal principal: metered, never limited"
    _, said = await server.ask("GET", "/v1/explain", topic="__usage", user="mirror")
    assert [rule["name"] for rule in said["rules"]] == ["protected-topic"]


async def test_nothing_known_is_null_with_a_text(server: Server) -> None:
    server.told.clear()
    server.policies.policies = PolicySet({PolicyKey.of_topic("clicks"): 1.0})
    status, said = await server.ask("GET", "/v1/explain", topic="clicks")
    assert status == 200
    assert said["shadowed"][0]["why"].startswith("without total.bytes.in.per.sec.threshold")
    assert (await server.ask("GET", "/v1/explain"))[0] == 422
    for broker in ("-1", str(2**31)):
        assert (await server.ask("GET", "/v1/explain", topic="clicks", broker=broker))[0] == 422
    status, said = await server.ask("GET", "/v1/topics")
    assert (said["topics"][0]["utilization"], said["topics"][0]["utilization_text"]) == (None, "no limit")


async def test_topics_are_listed_and_the_busiest_come_first(server: Server) -> None:
    server.policies.policies = PolicySet({**BASE, PolicyKey.of_topic("none"): 0.0})
    server.told[channel.TopicSnapshot] = channel.TopicSnapshot({1: ("clicks", "views", "none")})
    server.told[channel.WorkerRates] = rates(
        [("clicks", 4.0 * MB, 5.0 * MB, False), ("views", 6.0 * MB, 7.0 * MB, False), ("none", 5.0, 0.0, True)]
    )
    server.recent.add_interval(
        interval(UsageRow(1, "clicks", "User:a", "", "rejected", "fence", 30_000, 1, 1, 0)), NOW_MS - 20_000
    )
    server.recent.add_interval(interval(UsageRow(1, "clicks", "User:a", "", "accepted", "", 15_000, 1, 1, 0)), NOW_MS)
    _, said = await server.ask("GET", "/v1/topics")
    assert [line["topic"] for line in said["topics"]] == ["clicks", "none", "views"]
    clicks, none, views = said["topics"]
    assert clicks["kind"], clicks["origin"] == ("explicit", "file")
    assert (clicks["accepted"], clicks["rejected"]) == (1000.0, 0.0)  # the other came from its future
    assert (views["kind"], views["threshold"], views["broker"]) == ("implicit", 7.0 * MB, 1)
    assert (none["utilization"], none["utilization_text"]) == (None, "over a limit of 0")

    async def top(**query: Any) -> list[str]:
        return [line["topic"] for line in (await server.ask("GET", "/v1/top", **query))[1]["topics"]]

    assert await top() == ["views", "clicks", "none"]
    assert await top(by="utilization", limit=2) == ["none", "views"]
    assert await top(contains="i") == ["views", "clicks"]
    assert (await server.ask("GET", "/v1/top", contains="i", limit=1))[1]["total"] == 2
    server.recent.add_interval(
        interval(UsageRow(1, "clicks", "User:a", "", "rejected", "fence", 30_000, 1, 1, 0)), NOW_MS
    )
    assert (await top(by="rejected"))[0] == "clicks"
    for wrong in ({"by": "size"}, {"limit": 0}, {"limit": "all"}):
        assert (await server.ask("GET", "/v1/top", **wrong))[0] == 422


# --- who may ask ------------------------------------------------------------------------------------------------------


async def change(server: Server, method: str = "PUT", **headers: str) -> int:
    given = {**JSON, **{name.replace("_", "-"): value for name, value in headers.items()}}
    body = None if method == "DELETE" else b'{"value": "20MB"}'
    return (await server.raw(method, "/v1/thresholds/total/7", body, given))[0]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8080", "Host": "127.0.0.1:9190"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
async def test_a_page_of_another_site_changes_nothing(server: Server, headers: dict[str, str]) -> None:
    await change(server)
    for method in ("PUT", "DELETE"):
        assert await change(server, method, **headers) == 403
    assert server.policies.policies.version == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://127.0.0.1:9190", "Host": "127.0.0.1:9190", "Sec_Fetch_Site": "same-origin"},
        {"Origin": "http://localhost:9190", "Host": "localhost:9190"},
        {"Origin": "http://[::1]:9190", "Host": "[::1]:9190"},
        {"Origin": "https://gw.example", "Host": "gw.example"},
        {"Sec_Fetch_Site": "none"},
        {"Content_Type": "application/json; charset=utf-8"},
    ],
)
async def test_programs_and_pages_of_its_own_may_change(server: Server, headers: dict[str, str]) -> None:
    assert await change(server, **headers) == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_request_that_a_form_can_send_is_refused(server: Server, kind: str) -> None:
    assert await change(server, Content_Type=kind) == 415
    assert server.policies.policies.version == 0
    _, _, said = await server.raw("PUT", "/v1/thresholds/total", "{}", {"Content-Type": kind} if kind else {})
    named = f"content type '{kind}'" if kind else "no content type"
    assert json.loads(said)["detail"] == f"{named}: send changes as application/json"


async def test_no_other_site_is_allowed_to_look(server: Server) -> None:
    status, _, _ = await server.raw("OPTIONS", "/v1/thresholds/total", headers={"Origin": "https://evil.example"})
    assert status == 405


async def test_a_body_without_end_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_BODY", 1000)
    assert (await server.raw("PUT", "/v1/thresholds/total", b" " * 1001))[0] == 413
    status, kind, _ = await server.raw("PUT", "/v1/thresholds/total", iter([b" " * 600] * 3))  # chunked
    assert (status, kind) == (413, "application/problem+json")


@pytest.mark.parametrize(
    ("method", "path", "body", "key"),
    [
        ("PUT", "/v1/thresholds/topics/clicks", '{"value": "1MB", "value": "2MB"}', "value"),
        ("PUT", "/admin/v2/resourcegroups/gold", '{"until": null, "until": null}', "until"),
        ("POST", "/v1/policies:apply", '{"document": {"thresholds": {"total": 1e6, "total": 2e6}}}', "total"),
        ("POST", "/v1/policies:apply", '{"document": {}, "dry_run": true, "dry_run": false}', "dry_run"),
        ("POST", "/v1/client-quotas:alter", '{"alterations": [], "\\u0061lterations": []}', "alterations"),
        ("POST", "/v1/session", '{"token": "a", "token": "b"}', "token"),
        ("PUT", "/v1/storage/override", '{"state": "OPEN", "state": "PAUSE"}', "state"),
    ],
)  # fmt: skip
async def test_no_key_of_a_body_comes_twice(server: Server, method: str, path: str, body: str, key: str) -> None:
    status, kind, said = await server.raw(method, path, body)
    assert (status, kind) == (422, "application/problem+json")
    assert json.loads(said)["errors"] == [{"where": "body", "what": f"{key!r} is given 2 times in one object: once"}]
    assert server.policies.policies.version == 0


async def test_a_bug_is_no_answer_with_a_traceback(server: Server) -> None:
    server.policies.bug = True
    status, said = await server.ask("PUT", "/v1/thresholds/total", {"value": 20 * MB})
    assert (status, said["detail"]) == (500, "a fault of the gateway's own: its log says more")
    server.policies.bug = False
    assert (await server.ask("PUT", "/v1/thresholds/total", {"value": 20 * MB}))[0] == 200


async def test_a_hundred_at_once_are_all_answered(server: Server) -> None:
    found = []

    async def ask() -> None:
        found.append((await server.ask("GET", "/v1/explain", topic="clicks"))[0])

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(ask)
    assert found == [200] * 100


async def test_for_how_many_clients_a_policy_is_enforced_is_shown_and_explained(server: Server) -> None:
    server.told[channel.ThresholdPolicy] = channel.ThresholdPolicy(
        1, 12.0 * MB, {"clicks": 5.0 * MB}, enforce_percent=5
    )
    server.told[channel.QuotaSnapshot] = channel.QuotaSnapshot(1, enforce_percent=60)
    server.told[channel.GroupSnapshot] = channel.GroupSnapshot(1, enforce_percent=0.5)
    assert (await server.ask("GET", "/v1/thresholds"))[1]["enforce_percent"] == 5
    assert (await server.ask("GET", "/v1/client-quotas"))[1]["enforce_percent"] == 60
    assert (await server.ask("GET", "/v1/resource-groups"))[1]["enforce_percent"] == 0.5
    _, said = await server.ask("GET", "/v1/explain", topic="clicks", user="alice")
    assert [note for note in said["notes"] if "%" in note] == [
        "thresholds are enforced for 5 % of the clients: this one, at 51.75 of 100, is not among them",
        "client quotas are enforced for 60 % of the clients: this one, at 51.75 of 100, is among them",
        "resource groups are enforced for 0.5 % of the clients: this one, at 51.75 of 100, is not among them",
    ]
    assert {rule["name"]: rule["mode"] for rule in said["rules"]} == {
        "client-quota": "enforce", "topic-threshold": "observe", "fence": "enforce",
    }  # fmt: skip


# --- with an end ------------------------------------------------------------------------------------------------------

UNTIL = "2023-11-15T00:00:00Z"


async def test_a_value_has_an_end_through_every_path(server: Server) -> None:
    path = "/v1/thresholds/topics/clicks"
    await server.ask("PUT", path, {"value": "4MB"})
    status, said = await server.ask("PUT", path, {"value": "6MB", "until": "2023-11-15T01:00:00+01:00"})
    assert (status, said["changes"][0]["until"]) == (200, UNTIL)
    shown = threshold(6.0 * MB, "run time", 5.0 * MB, 6.0 * MB, until=UNTIL, then=4.0 * MB)
    assert (await server.ask("GET", path))[1] == shown
    entity = [{"type": "user", "name": "bob"}]
    ops = [{"key": "producer_byte_rate", "value": "1MB"}]
    body: dict[str, Any] = {"alterations": [{"entity": entity, "ops": ops, "until": UNTIL}]}
    _, said = await server.ask("POST", "/v1/client-quotas:alter", body)
    assert said["changes"][0]["until"] == UNTIL
    _, said = await server.ask("GET", "/v1/client-quotas", user="bob")
    assert [entry["until"] for entry in said["entries"]] == [{"producer_byte_rate": UNTIL}]
    body = {"document": {"thresholds": {"topics": {"views": "1MB"}}}, "until": UNTIL}
    _, said = await server.ask("POST", "/v1/policies:apply", body)
    assert [(each["name"], each["until"]) for each in said["ops"]] == [("views", UNTIL)]
    group = "/admin/v2/resourcegroup/gold"
    _, said = await server.ask("PUT", group, {"publishRateInBytes": "2MB", "until": UNTIL})
    assert [(each["key"], each["until"]) for each in said["changes"]] == [
        ("publishRateInBytes", UNTIL), ("exists", None),
    ]  # fmt: skip
    _, said = await server.ask("GET", "/v1/resource-groups")
    assert said["groups"]["gold"]["rates"]["publishRateInBytes"]["until"] == UNTIL
    _, said = await server.ask("GET", "/v1/explain", topic="clicks", user="bob")
    origins = {level["origin"] for rule in said["rules"] for level in rule["levels"]}
    assert f"run time until {UNTIL}" in origins
    assert [(each["value"], each["why"]) for each in said["shadowed"] if each["origin"] == "run time"] == [
        ("4,000,000 bytes/s", f"another value was set at run time until {UNTIL}, then this one holds again")
    ]
    _, said = await server.ask("GET", "/v1/policies")
    assert [each["then"] for each in said["origins"] if each["name"] == "clicks"] == [4 * MB]


@pytest.mark.parametrize(
    ("until", "what"),
    [
        ("2023-11-14T22:00:00Z", "until 2023-11-14T22:00:00Z has to be later than now, which is 2023-11-14T22:13:20Z"),
        ("2h", "'2h' is not a valid time; for example: 2026-11-22T21:00:00Z (RFC 3339)"),
        ("2023-11-15", "'2023-11-15' is not a valid time"),
        (1_800_000_000_000, "a time is needed here, as text; for example"),
    ],
)
async def test_an_end_that_can_not_be_is_refused_with_what_would_be(server: Server, until: object, what: str) -> None:
    path = "/v1/thresholds/topics/clicks"
    status, said = await server.ask("PUT", path, {"value": "6MB", "until": until})
    assert status == 422
    assert what in said["errors"][0]["what"]
    status, said = await server.ask("PUT", "/admin/v2/resourcegroup/gold", {"until": UNTIL})
    assert (status, "says when limits end" in said["errors"][0]["what"]) == (422, True)
    assert server.policies.policies.version == 0


async def test_the_history_says_who_changed_what_when_and_from_what(server: Server) -> None:
    await server.ask("PUT", "/v1/thresholds/topics/clicks", {"value": "6MB", "until": UNTIL})
    await server.ask("PUT", "/v1/thresholds/total/2", {"value": "9MB"})
    status, said = await server.ask("GET", "/v1/policies/history")
    assert (status, said["version"]) == (200, 2)
    assert [each["name"] for each in said["changes"]] == ["2", "clicks"]
    peer = said["changes"][1].pop("peer")
    assert peer.startswith("127.0.0.1:")
    assert said["changes"][1] == {
        "kind": "topic", "name": "clicks", "key": "bytes.in.per.sec.threshold", "old": 5.0 * MB, "new": 6.0 * MB,
        "until": UNTIL, "version": 1, "at": "2023-11-14T22:13:20Z", "who": "", "door": "rest",
    }  # fmt: skip
    for query, names in (({"limit": 1}, ["2"]), ({"kind": "topic"}, ["clicks"]), ({"name": "2"}, ["2"])):
        _, said = await server.ask("GET", "/v1/policies/history", **query)
        assert [each["name"] for each in said["changes"]] == names
    for limit in (0, 1001):
        assert (await server.ask("GET", "/v1/policies/history", limit=limit))[0] == 422
