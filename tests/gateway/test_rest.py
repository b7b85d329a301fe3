# The REST API over real HTTP: Hypercorn on trio, the real PolicySet and store of a file-less service.

from __future__ import annotations

import http.client
import json
import math
from urllib.parse import quote, urlencode

import pytest
import trio
from jsonschema import Draft202012Validator
from pytest_trio import trio_fixture

from gateway import channel
from gateway import policy_document as document
from gateway.channel import PROTOCOL, Interval, Row
from gateway.control.admin import make_application, serve
from gateway.control.policies.service import Altered
from gateway.control.policies.store import StoreError
from gateway.control.recent import Recent
from gateway.control.rest import api as rest
from gateway.control.rest import guard
from gateway.control.rest.context import Gateway
from gateway.control.rest.rights import Rights
from gateway.supervisor import open_listener
from policies.engine import BrokerRate, TopicRate
from policies.policy_set import PolicyKey, PolicySet
from policies.quotas.lines import QuotaRate
from policies.quotas.names import Entity, QuotaKey
from policies.storage import Factor
from tests.gateway.test_supervisor import free_ports

MB = 10**6
NOW_MS = 1_700_000_000_000
JSON = {"Content-Type": "application/json"}
ALICE = Entity("alice")
RATE = QuotaKey.parse("producer_byte_rate.bps")
BASE = {
    PolicyKey.of_broker(): 12.0 * MB,
    PolicyKey.of_topic("clicks"): 5.0 * MB,
    PolicyKey.of_quota(ALICE, RATE): 3.0 * MB,
}


class Service:
    """The real rules in memory, changes at once."""

    def __init__(self, base=BASE):
        self.policies = PolicySet(base)
        self.sources = []
        self.problem = ""
        self.bug = False

    async def alter(self, ops, source, *, validate_only=False):
        return self._take(self.policies.alter(ops), source, validate_only)

    async def alter_quotas(self, alterations, source, *, validate_only=False):
        new, errors = self.policies.alter_quotas(alterations)
        altered = self._take(new, source, validate_only)
        altered.errors = errors
        return altered

    async def apply(self, data, source, *, dry_run=False, prune=False, groups=True):
        wanted = document.of_data(data)
        return self._take(self.policies.apply(wanted, prune=prune, groups=groups), source, dry_run)

    def overview(self):
        policies = self.policies
        return {
            "version": policies.version,
            "document": document.export(policies),
            "origins": document.origins(policies.settings()),
        }

    def _take(self, new, source, validate_only):
        if self.problem:
            raise StoreError(self.problem)
        if self.bug:
            raise KeyError("a bug")
        self.sources.append(source)
        changes = new.changes_since(self.policies)
        if not validate_only:
            self.policies = new
        return Altered(self.policies.version, changes, new.warnings())


class Server:
    def __init__(self):
        self.policies = Service()
        self.recent = Recent()
        self.told = {
            channel.WorkerSettings: channel.WorkerSettings(
                PROTOCOL, "gw", protected_topics=("__usage",), internal_principals=("User:mirror",)
            ),
            channel.Policy: channel.Policy(1, 12.0 * MB, {"clicks": 5.0 * MB}),
            channel.Topics: channel.Topics({1: ("clicks", "views")}),
        }
        self.port = free_ports(1)[0]
        self.rights = Rights()
        self.fleet = {}
        self.asking = trio.CapacityLimiter(200)  # the server needs threads of its own

    def give_rights(self, rights):
        """Also while it serves."""
        self.rights.__dict__.update(rights.__dict__)

    def latest(self, kind):
        return self.told.get(kind)

    def application(self):
        gateway = Gateway(
            self.policies,
            self.recent,
            self.latest,
            fleet=lambda: self.fleet,
            clock=lambda: NOW_MS / 1000,
        )
        api = rest.make_api(gateway, hosts=("gw.example",), rights=self.rights)
        views = {"/v1/storage": lambda: {"enabled": False}}
        return make_application(lambda: b"metric 1\n", list, views, api, hosts={"gw.example"})

    async def raw(self, method, path, body=None, headers=JSON):
        def ask():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            try:
                return answer.status, answer.getheader("content-type"), answer.read()
            finally:
                connection.close()

        return await trio.to_thread.run_sync(ask, limiter=self.asking)

    async def ask(self, method, path, body=None, headers=JSON, **query):
        """(status, JSON): errors must be problem documents of the same status."""
        path += f"?{urlencode(query)}" if query else ""
        status, kind, said = await self.raw(method, path, None if body is None else json.dumps(body), headers)
        value = json.loads(said, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
        if status >= 400:
            assert kind == "application/problem+json"
            assert value["status"] == status
            assert value["title"]
            assert value["detail"]
        else:
            assert kind == "application/json"
        return status, value


@trio_fixture
async def server():
    server = Server()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, open_listener("127.0.0.1", server.port), server.application())
        yield server
        nursery.cancel_scope.cancel()


# --- beside what was there --------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_what_the_admin_server_had_stays_as_it_was(server):
    assert (await server.raw("GET", "/metrics"))[::2] == (200, b"metric 1\n")
    assert (await server.raw("HEAD", "/metrics"))[::2] == (200, b"")
    assert (await server.raw("GET", "/healthz"))[2] == b"ok\n"
    said = b'{"ready": true, "problems": [], "lacking": []}\n'
    assert await server.raw("GET", "/readyz") == (200, "application/json", said)
    assert await server.raw("GET", "/v1/storage") == (200, "application/json", b'{"enabled": false}\n')
    assert await server.raw("POST", "/v1/storage") == (405, "text/plain; charset=utf-8", b"only GET\n")
    status, _, body = await server.raw("GET", "/")
    assert (status, body) == (404, b"here are /metrics, /healthz, /readyz, /v1/storage, /openapi.json\n")


@pytest.mark.trio
async def test_head_is_get_without_the_body(server):
    _, kind, body = await server.raw("GET", "/v1/thresholds")
    assert body
    assert await server.raw("HEAD", "/v1/thresholds") == (200, kind, b"")
    assert (await server.raw("HEAD", "/v1/nothing"))[::2] == (404, b"")


@pytest.mark.trio
async def test_the_description_has_every_path_and_says_how_errors_look(server):
    status, said = await server.ask("GET", "/openapi.json")
    assert status == 200
    assert set(said["paths"]) == {
        "/v1/thresholds", "/v1/thresholds/total", "/v1/thresholds/total/{broker}", "/v1/thresholds/topics/{topic}",
        "/v1/client-quotas", "/v1/client-quotas:alter", "/v1/client-quotas/effective", "/v1/policies",
        "/v1/policies:apply", "/v1/explain", "/v1/topics", "/v1/top", "/v1/resource-groups",
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
    for path in said["paths"].values():
        for operation in path.values():
            assert list(operation["responses"]["422"]["content"]) == ["application/problem+json"]
    for path in ("/docs", "/redoc", "/v1/docs"):  # they load scripts from elsewhere
        assert (await server.raw("GET", path))[0] == 404


@pytest.mark.trio
async def test_other_paths_and_methods_are_problems(server):
    assert (await server.ask("GET", "/v1/nothing"))[1]["detail"] == "no such path: GET /openapi.json lists them"
    status, said = await server.ask("PUT", "/v1/thresholds")
    assert (status, said["detail"]) == (405, "here are GET: see GET /openapi.json")
    assert (await server.ask("GET", "/v1/thresholds/"))[0] == 404


# --- thresholds -------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_thresholds_are_shown_with_where_they_come_from(server):
    await server.ask("PUT", "/v1/thresholds/topics/clicks", {"value": "4MB"})
    status, said = await server.ask("GET", "/v1/thresholds")
    assert status == 200
    assert said == {
        "version": 1,
        "on_exceed": "reject",
        "mode": "enforce",
        "total": {
            "default": {"value": 12.0 * MB, "origin": "file", "file": 12.0 * MB, "run_time": None},
            "brokers": {},
        },
        "topics": {"clicks": {"value": 4.0 * MB, "origin": "run time", "file": 5.0 * MB, "run_time": 4.0 * MB}},
        "warnings": [],
    }


@pytest.mark.trio
async def test_a_threshold_is_set_and_goes_back_to_the_file(server):
    path = "/v1/thresholds/topics/clicks"
    status, said = await server.ask("PUT", path, {"value": "6MiB"})
    change = {"kind": "topic", "name": "clicks", "key": "bytes.in.per.sec.threshold", "old": 5 * MB, "new": 6 * 2**20}
    assert (status, said) == (200, {"version": 1, "validate_only": False, "changes": [change], "warnings": []})
    assert (await server.ask("GET", path))[1]["value"] == 6 * 2**20
    status, said = await server.ask("DELETE", path, headers={})
    assert (status, said["version"], said["changes"][0]["new"]) == (200, 2, 5 * MB)
    status, said = await server.ask("DELETE", path, headers={})
    assert status == 422
    assert "is set in the configuration file" in said["errors"][0]["what"]
    assert said["errors"][0]["where"] == "bytes.in.per.sec.threshold of topic clicks"


@pytest.mark.trio
async def test_totals_are_of_all_brokers_or_of_one(server):
    assert (await server.ask("PUT", "/v1/thresholds/total", {"value": 20 * MB}))[0] == 200
    assert (await server.ask("PUT", "/v1/thresholds/total/2", {"value": "8MB"}))[0] == 200
    assert (await server.ask("GET", "/v1/thresholds/total"))[1]["value"] == 20 * MB
    assert (await server.ask("GET", "/v1/thresholds/total/2"))[1]["value"] == 8 * MB
    assert list((await server.ask("GET", "/v1/thresholds"))[1]["total"]["brokers"]) == ["2"]
    assert (await server.ask("DELETE", "/v1/thresholds/total/2"))[0] == 200
    for method in ("GET", "DELETE"):
        status, said = await server.ask(method, "/v1/thresholds/total/2")
        assert (status, "is not set" in said["detail"]) == (404, True)
    assert server.policies.policies.total(2) == 20 * MB


@pytest.mark.trio
async def test_a_validation_changes_nothing(server):
    status, said = await server.ask("PUT", "/v1/thresholds/total", {"value": "20MB"}, validate_only="true")
    assert (status, said["validate_only"], said["version"]) == (200, True, 0)
    assert said["changes"][0]["new"] == 20 * MB
    assert server.policies.policies.total() == 12 * MB


@pytest.mark.trio
async def test_a_sum_beyond_the_total_is_refused_with_what_would_be_right(server):
    status, said = await server.ask("PUT", "/v1/thresholds/topics/views", {"value": "8MB"})
    assert (status, said["detail"]) == (422, "refused, nothing was changed")
    assert "raise the total to at least 13,000,000 bytes/s" in said["errors"][0]["what"]
    assert server.policies.policies.version == 0


@pytest.mark.parametrize(
    ("path", "body", "where", "what"),
    [
        ("topics/views", {"value": "8XB"}, "body.value", "is not a valid size; for example: 20MB"),
        ("topics/views", {"value": True}, "body.value", "a number is needed here, not true or false"),
        ("topics/views", {"value": None}, "body.value", "valid number"),
        ("topics/views", {"value": math.nan}, "body.value", "finite number"),
        ("topics/views", {"valu": 1}, "body", "unknown: 'valu'; did you mean value?"),
        ("topics/views", {}, "body.value", "Field required"),
        ("topics/views", [], "body", "dictionary"),
        ("topics/a b", {"value": 1}, "", "can't be a topic's name"),
        ("total", {"value": 0}, "", "must be a finite number above 0"),
        ("total/-1", {"value": 1}, "", "is no broker id"),
        ("total/x", {"value": 1}, "path.broker", "valid integer"),
    ],
)
@pytest.mark.trio
async def test_what_is_wrong_is_said_with_its_place(server, path, body, where, what):
    status, said = await server.ask("PUT", "/v1/thresholds/" + quote(path), body)
    assert status == 422
    found = said["errors"] or [{"where": "", "what": said["detail"]}]
    assert what in found[0]["what"]
    assert where in found[0]["where"]
    assert server.policies.policies.version == 0


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000, b""])
@pytest.mark.trio
async def test_a_body_that_is_no_json_is_said_to_be_none(server, body):
    status, kind, said = await server.raw("PUT", "/v1/thresholds/total", body)
    assert kind == "application/problem+json"
    assert status == (422 if body == b"" else 400)
    assert json.loads(said)["status"] == status


@pytest.mark.trio
async def test_an_unknown_query_is_an_error_and_not_everything(server):
    status, said = await server.ask("GET", "/v1/client-quotas", usr="alice")
    assert status == 422
    assert said["errors"] == [{"where": "query", "what": "unknown: 'usr'; did you mean user?"}]


@pytest.mark.trio
async def test_a_parameter_that_is_given_twice_is_an_error(server):
    for path in ("/v1/client-quotas?user=a&user=b", "/v1/explain?topic=a&user=&user=b", "/v1/top?limit=5&limit=5"):
        status, said = await server.ask("GET", path)
        assert (status, len(said["errors"])) == (422, 1)
        assert said["errors"][0]["what"] == "given 2 times: once"
    status, said = await server.ask(
        "PUT", "/v1/thresholds/topics/a?validate_only=true&validate_only=false", {"value": 1}
    )
    assert (status, said["errors"][0]["where"]) == (422, "query.validate_only")
    assert PolicyKey.of_topic("a") not in server.policies.policies.effective()


@pytest.mark.trio
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
async def test_what_no_answer_could_hold_is_refused_and_no_fault(server, method, path, body):
    status, said = await server.ask(method, path, body)
    assert status == 422
    assert said["errors"]
    assert all(each["what"] for each in said["errors"])


@pytest.mark.trio
async def test_what_cannot_be_kept_just_now_is_503(server):
    server.policies.problem = "topic __produce_gateway_policies: no answer"
    status, said = await server.ask("PUT", "/v1/thresholds/total", {"value": "20MB"})
    assert status == 503
    assert said["detail"] == "policies can't be changed just now: topic __produce_gateway_policies: no answer"


@pytest.mark.trio
async def test_who_changes_is_what_the_caller_says_and_where_from(server):
    headers = {**JSON, "Produce-Gateway-User": quote("zoë")}
    await server.ask("PUT", "/v1/thresholds/total", {"value": "20MB"}, headers)
    (source,) = server.policies.sources
    assert (source.who, source.door) == ("zoë", "rest")
    assert source.peer.startswith("127.0.0.1:")


# --- client quotas ----------------------------------------------------------------------------------------------------


def alteration(key, value, **names):
    kinds = {"user": "user", "client_id": "client-id"}
    return {
        "entity": [{"type": kinds[kind], "name": name} for kind, name in names.items()],
        "ops": [{"key": key, "value": value}],
    }


async def alter(server, *alterations, **more):
    return await server.ask("POST", "/v1/client-quotas:alter", {"alterations": list(alterations), **more})


@pytest.mark.trio
async def test_quotas_are_altered_and_described_by_every_filter(server):
    status, said = await alter(
        server,
        alteration("producer_byte_rate", "1MB", user="alan"),
        alteration("request_percentage", 50, user=None, client_id="app"),
        alteration("consumer_byte_rate.bps", 10, client_id=None),
        alteration("producer_byte_rate:bps", None, user="nobody"),
    )
    assert (status, said["version"], len(said["changes"])) == (200, 1, 3)
    assert {result["error"] for result in said["results"]} == {None}

    async def found(**query):
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
        }
    ]
    status, said = await server.ask("GET", "/v1/client-quotas", user="a", user_prefix="b")
    assert (status, said["detail"]) == (422, "entity type user has two filters: one is enough")


@pytest.mark.trio
async def test_a_refused_entity_leaves_the_others_alone(server):
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
@pytest.mark.trio
async def test_a_size_is_a_number_of_bytes_and_nothing_else(server, key, value, what):
    status, said = await alter(server, alteration(key, value, user="bob"))
    assert (status, said["errors"][0]["where"]) == (422, "body.alterations.0.ops.0.value")
    assert what in said["errors"][0]["what"]


@pytest.mark.trio
async def test_what_holds_is_shown_with_what_it_overrides(server):
    await alter(server, alteration("producer_byte_rate.bps", 1000, user=None))
    path = "/v1/client-quotas/effective"
    status, said = await server.ask("GET", path, user="alice", client_id="app")
    assert status == 200
    assert said["quotas"] == [
        {
            "key": "producer_byte_rate.bps",
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
        }
    ]
    assert said["storage"] == {"factor": 1.0, "state": "OFF", "origin": None, "why": "", "mode": "enforce"}
    server.told[channel.Storage] = channel.Storage(Factor(0.25, "kept", "broker 1 volume /a: 1.0 GB free"))
    _, said = await server.ask("GET", path, user="alice", omit_overridden="true")
    assert said["quotas"][0]["in_force"] == 0.75 * MB
    assert said["storage"] == {
        "factor": 0.25, "state": "THROTTLE", "origin": "kept", "why": "broker 1 volume /a: 1.0 GB free",
        "mode": "enforce",
    }  # fmt: skip
    server.told[channel.WorkerSettings] = channel.WorkerSettings(PROTOCOL, "gw", observe=True)
    _, said = await server.ask("GET", path, user="alice", omit_overridden="true")
    assert (said["quotas"][0]["in_force"], said["storage"]["mode"]) == (3.0 * MB, "observe")
    assert said["quotas"][0]["overridden"] is None
    _, said = await server.ask("GET", path, default_user="true")
    assert [each["value"] for each in said["quotas"]] == [1000.0]
    assert (await server.ask("GET", path))[0] == 422
    assert (await server.ask("GET", path, user="a", default_user="true"))[0] == 422


# --- documents --------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_document_is_exported_and_applied(server):
    status, said = await server.ask("GET", "/v1/policies")
    assert status == 200
    assert said["document"]["thresholds"] == {"total": {"default": "12MB"}, "topics": {"clicks": "5MB"}}
    assert said["origins"][0]["origin"] == "file"
    said["document"]["thresholds"]["topics"]["views"] = "1MB"
    body = {"document": said["document"]}
    status, applied = await server.ask("POST", "/v1/policies:apply", {**body, "dry_run": True})
    assert (status, applied["dry_run"], applied["version"]) == (200, True, 0)
    op = {"kind": "topic", "name": "views", "key": "bytes.in.per.sec.threshold", "old": None, "new": 1.0 * MB}
    assert applied["ops"] == [op]
    assert (await server.ask("POST", "/v1/policies:apply", body))[1]["version"] == 1
    assert (await server.ask("POST", "/v1/policies:apply", body))[1]["ops"] == []
    del body["document"]["thresholds"]["topics"]["views"]
    assert (await server.ask("POST", "/v1/policies:apply", body))[1]["ops"] == []
    pruned = (await server.ask("POST", "/v1/policies:apply", {**body, "prune": True}))[1]["ops"]
    assert pruned == [{**op, "old": 1.0 * MB, "new": None}]


@pytest.mark.trio
async def test_what_is_wrong_with_a_document_is_said_line_by_line(server):
    wrong = {"thresholds": {"total": "x", "topic": {}}, "client_quotas": [{"user": "a"}]}
    status, said = await server.ask("POST", "/v1/policies:apply", {"document": wrong})
    assert status == 422
    assert {each["where"] for each in said["errors"]} == {
        "thresholds.total", "thresholds.topic", "client_quotas.0",
    }  # fmt: skip
    assert "did you mean topics?" in next(e["what"] for e in said["errors"] if e["where"] == "thresholds.topic")


@pytest.mark.trio
async def test_what_is_wrong_with_the_whole_document_has_no_place_and_is_said_whole(server):
    _, said = await server.ask("POST", "/v1/policies:apply", {"document": None})
    what = "keys such as thresholds:, client_quotas:, resource_groups: with values are needed here, not None"
    assert said["errors"] == [{"where": "", "what": what}]
    _, said = await server.ask("POST", "/v1/policies:apply", {"document": {"thresholds": {"topics": {"a: b": 1}}}})
    assert said["errors"][0]["where"] == "thresholds.topics.a: b"


@pytest.mark.trio
async def test_more_quotas_than_are_told_of_leave_a_rate_unknown(server):
    lines = tuple(
        QuotaRate("producer_byte_rate:bps", "{user=x}", f"u{i}", None, None, 1.0, 1.0, False)
        for i in range(channel.MAX_QUOTA_RATES)
    )
    for count, rate in ((channel.MAX_QUOTA_RATES - 1, 0.0), (channel.MAX_QUOTA_RATES, None)):
        server.told[channel.Rates] = rates([], quotas=lines[:count])
        _, said = await server.ask("GET", "/v1/explain", topic="clicks", user="alice")
        assert next(rule["rate"] for rule in said["rules"] if rule["name"] == "client-quota") == rate


# --- explanations -----------------------------------------------------------------------------------------------------


def rates(topics, brokers=((1, 11.0 * MB),), quotas=()):
    return channel.Rates(
        tuple(
            BrokerRate(node, rate, 0.0, 0.0, 12.0 * MB, tuple(TopicRate(*each) for each in topics))
            for node, rate in brokers
        ),
        (),
        quotas,
    )


def interval(*rows):
    return Interval("boot", 0, 1, NOW_MS - 8_000, NOW_MS - 7_000, rows)


@pytest.mark.trio
async def test_traffic_is_explained(server):
    server.told[channel.Rates] = rates([("clicks", 4.0 * MB, 5.0 * MB, False)])
    server.recent.add(
        interval(
            Row(1, "clicks", "User:alice", "app", "rejected", "topic-threshold", 100, 1, 1, 500),
            Row(1, "clicks", "User:bob", "app", "rejected", "topic-threshold", 200, 1, 1, 500),
            Row(1, "views", "User:alice", "app", "rejected", "topic-threshold", 300, 1, 1, 500),
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
    assert said["summary"].startswith("topic-threshold on broker 1 limits this traffic now: ")
    assert [(held["principal"], held["bytes"]) for held in said["held"]] == [("User:alice", 100)]
    assert said["brokers"] == [1]
    _, said = await server.ask("GET", "/v1/explain", topic="clicks")
    assert said["user"] == "ANONYMOUS"
    assert len(said["held"]) == 2


@pytest.mark.trio
async def test_storage_internal_clients_and_quotas_at_work_are_part_of_it(server):
    server.told[channel.Storage] = channel.Storage(Factor(0.5, "valid", "broker 1 volume /a: 1.0 GB free"))
    line = QuotaRate("producer_byte_rate:bps", "{user=alice}", "alice", None, None, 1.6 * MB, 1.5 * MB, True)
    server.told[channel.Rates] = rates([("clicks", 0.0, 2.5 * MB, False)], ((1, 1.0 * MB),), (line,))
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


@pytest.mark.trio
async def test_nothing_known_is_null_with_a_text(server):
    server.told.clear()
    server.policies.policies = PolicySet({PolicyKey.of_topic("clicks"): 1.0})
    status, said = await server.ask("GET", "/v1/explain", topic="clicks")
    assert status == 200
    assert said["shadowed"][0]["why"].startswith("without total.bytes.in.per.sec.threshold")
    assert (await server.ask("GET", "/v1/explain"))[0] == 422
    assert (await server.ask("GET", "/v1/explain", topic="clicks", broker="-1"))[0] == 422
    status, said = await server.ask("GET", "/v1/topics")
    assert (said["topics"][0]["utilization"], said["topics"][0]["utilization_text"]) == (None, "no limit")


@pytest.mark.trio
async def test_topics_are_listed_and_the_busiest_come_first(server):
    server.policies.policies = PolicySet({**BASE, PolicyKey.of_topic("none"): 0.0})
    server.told[channel.Topics] = channel.Topics({1: ("clicks", "views", "none")})
    server.told[channel.Rates] = rates(
        [("clicks", 4.0 * MB, 5.0 * MB, False), ("views", 6.0 * MB, 7.0 * MB, False), ("none", 5.0, 0.0, True)]
    )
    server.recent.add(interval(Row(1, "clicks", "User:a", "", "rejected", "fence", 30_000, 1, 1, 0)), NOW_MS - 20_000)
    server.recent.add(interval(Row(1, "clicks", "User:a", "", "accepted", "", 15_000, 1, 1, 0)), NOW_MS)
    _, said = await server.ask("GET", "/v1/topics")
    assert [line["topic"] for line in said["topics"]] == ["clicks", "none", "views"]
    clicks, none, views = said["topics"]
    assert clicks["kind"], clicks["origin"] == ("explicit", "file")
    assert (clicks["accepted"], clicks["rejected"]) == (1000.0, 0.0)  # the other came from its future
    assert (views["kind"], views["threshold"], views["broker"]) == ("implicit", 7.0 * MB, 1)
    assert (none["utilization"], none["utilization_text"]) == (None, "over a limit of 0")

    async def top(**query):
        return [line["topic"] for line in (await server.ask("GET", "/v1/top", **query))[1]["topics"]]

    assert await top() == ["views", "clicks", "none"]
    assert await top(by="utilization", limit=2) == ["none", "views"]
    server.recent.add(interval(Row(1, "clicks", "User:a", "", "rejected", "fence", 30_000, 1, 1, 0)), NOW_MS)
    assert (await top(by="rejected"))[0] == "clicks"
    for wrong in ({"by": "size"}, {"limit": 0}, {"limit": "all"}):
        assert (await server.ask("GET", "/v1/top", **wrong))[0] == 422


# --- who may ask ------------------------------------------------------------------------------------------------------


async def change(server, method="PUT", **headers):
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
@pytest.mark.trio
async def test_a_page_of_another_site_changes_nothing(server, headers):
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
@pytest.mark.trio
async def test_programs_and_pages_of_its_own_may_change(server, headers):
    assert await change(server, **headers) == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
@pytest.mark.trio
async def test_what_a_form_can_send_is_refused(server, kind):
    assert await change(server, Content_Type=kind) == 415
    assert server.policies.policies.version == 0


@pytest.mark.trio
async def test_no_other_site_is_allowed_to_look(server):
    status, _, _ = await server.raw("OPTIONS", "/v1/thresholds/total", headers={"Origin": "https://evil.example"})
    assert status == 405


@pytest.mark.trio
async def test_a_body_without_end_is_refused(server, monkeypatch):
    monkeypatch.setattr(guard, "MAX_BODY", 1000)
    assert (await server.raw("PUT", "/v1/thresholds/total", b" " * 1001))[0] == 413
    status, kind, _ = await server.raw("PUT", "/v1/thresholds/total", iter([b" " * 600] * 3))  # chunked
    assert (status, kind) == (413, "application/problem+json")


@pytest.mark.trio
async def test_a_bug_is_no_answer_with_a_traceback(server):
    server.policies.bug = True
    status, said = await server.ask("PUT", "/v1/thresholds/total", {"value": 20 * MB})
    assert (status, said["detail"]) == (500, "a fault of the gateway's own: its log says more")
    server.policies.bug = False
    assert (await server.ask("PUT", "/v1/thresholds/total", {"value": 20 * MB}))[0] == 200


@pytest.mark.trio
async def test_a_hundred_at_once_are_all_answered(server):
    found = []

    async def ask():
        found.append((await server.ask("GET", "/v1/explain", topic="clicks"))[0])

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(ask)
    assert found == [200] * 100
