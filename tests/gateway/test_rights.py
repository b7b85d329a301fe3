# Who has admin rights: tokens, their file while it changes, and without any of them this machine alone.

from __future__ import annotations

import logging

import pytest
import trio
from pytest_trio import trio_fixture

from gateway import config
from gateway.control.admin import serve
from gateway.control.rest.rights import Rights
from gateway.policy_document import of_data
from gateway.supervisor import open_listener
from gateway.tokens import check_token, read_tokens
from tests.gateway.test_rest import JSON, Server

ONE, TWO = "one-0123456789abcdef", "two-0123456789abcdef"
HERE, AWAY = "127.0.0.1", "192.0.2.7"


async def refuse(rights, method="GET", path="/admin/v2/resourcegroup", token=None, peer=AWAY, **headers):
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    return await rights.refuse(method, path, headers, peer)


# --- without tokens ---------------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("peer", [HERE, "127.8.8.8", "::1", "::ffff:127.0.0.1"])
async def test_without_tokens_who_is_on_this_machine_has_admin_rights(peer):
    rights = Rights()
    for method in ("GET", "PUT", "DELETE"):
        assert await refuse(rights, method, peer=peer) == ""


@pytest.mark.trio
@pytest.mark.parametrize("peer", [AWAY, "10.0.0.1", "::2", "::ffff:192.0.2.7", "", "localhost"])
async def test_without_tokens_nobody_else_has_and_is_told_what_would_be_right(peer):
    rights = Rights()
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        text = await refuse(rights, method, peer=peer)
        assert "admin.tokens or admin.token_file" in text
        assert await refuse(rights, method, "/v1/thresholds/total", peer=peer) == ""  # as before


# --- with tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_with_tokens_changes_and_all_of_the_admin_api_need_one_of_them():
    rights = Rights([ONE, TWO])
    needed = [("GET", "/admin/v2/resourcegroup"), ("HEAD", "/admin/v2/tenants/a/resourcegroup"),
              ("OPTIONS", "/admin/v2/x"), ("GET", "/v1/resource-groups"),
              ("PUT", "/v1/thresholds/total"), ("POST", "/v1/policies:apply"),
              ("DELETE", "/v1/thresholds/topics/t"), ("PUT", "/openapi.json")]  # fmt: skip
    for method, path in needed:
        for token in (None, "", "x", ONE[:-1], ONE + "x", ONE.upper(), "\xe9" * 20):
            assert "admin.tokens" in await refuse(rights, method, path, token, peer=HERE)
        for token in (ONE, TWO):
            assert await refuse(rights, method, path, token) == ""
    for path in ("/v1/thresholds", "/v1/explain", "/v1/resource", "/openapi.json"):
        assert await refuse(rights, "GET", path) == ""


@pytest.mark.trio
async def test_only_a_bearer_token_is_one():
    rights = Rights([ONE])
    for said in (ONE, f"Basic {ONE}", f"Bearer{ONE}", "Bearer", "Bearer "):
        assert await refuse(rights, authorization=said) != ""
    assert await refuse(rights, authorization=f"bearer  {ONE} ") == ""


@pytest.mark.trio
async def test_a_refusal_never_has_a_token_in_it():
    rights = Rights([ONE])
    assert ONE not in await refuse(rights, token=TWO)
    assert TWO not in await refuse(rights, token=TWO)


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_the_file_is_read_again_when_it_changes(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"# of alice\n{ONE}\n\n")
    rights = Rights(token_file=path)
    assert await refuse(rights, token=ONE) == ""
    assert await refuse(rights, token=TWO) != ""
    fresh = tmp_path / "fresh"
    fresh.write_text(f"{TWO}\n")  # as long, and perhaps in the same moment
    fresh.replace(path)
    assert await refuse(rights, token=TWO) == ""
    assert await refuse(rights, token=ONE) != ""


@pytest.mark.trio
async def test_a_file_that_can_not_be_read_gives_nobody_rights_until_it_can(tmp_path, caplog):
    caplog.set_level(logging.INFO, "gateway.control")
    path = tmp_path / "tokens"
    rights = Rights([TWO], path)
    for _ in range(2):
        assert "as the token file can't be read" in await refuse(rights, token=ONE, peer=HERE)
    assert await refuse(rights, token=TWO) == ""  # those of the configuration stay
    path.write_text(ONE)
    assert await refuse(rights, token=ONE) == ""
    path.write_text("")
    assert await refuse(rights, token=ONE) != ""
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"admin.token_file: {path}: No such file or directory: no token of it is valid",
        "admin.token_file can be read again",
        f"admin.token_file: {path}: there is no token in it: openssl rand -hex 32 makes one: no token of it is valid",
    ]


def test_a_file_is_refused_as_a_whole_and_without_its_tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"{ONE}\nhunter2\n")
    with pytest.raises(ValueError, match=r"line 2: a token has 16 to 4096 characters, not 7") as error:
        read_tokens(path)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("token", ["", "short", "x" * 4097, "with spaces in it 1234", "=0123456789abcdef", "ü" * 20])
def test_what_can_be_no_token_is_refused_without_being_shown(token):
    with pytest.raises(ValueError, match="openssl rand -hex 32 makes one") as error:
        check_token(token)
    assert not token or token not in str(error.value)
    assert check_token("0123456789abcdef._~+/-==") == "0123456789abcdef._~+/-=="


# --- over HTTP --------------------------------------------------------------------------------------------------------


@trio_fixture
async def server():
    server = Server()
    server.rights = Rights([ONE])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, open_listener("127.0.0.1", server.port), server.application())
        yield server
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_change_without_a_token_is_refused_whatever_its_path(server):
    for method, path, body in (
        ("PUT", "/v1/thresholds/total", {"value": 1}), ("DELETE", "/v1/thresholds/topics/clicks", None),
        ("POST", "/v1/policies:apply", {"document": {}}), ("POST", "/v1/client-quotas:alter", {"alterations": []}),
        ("PUT", "/v1/nothing", {}), ("GET", "/admin/v2/nothing", None), ("GET", "/admin/v2/", None),
    ):  # fmt: skip
        status, said = await server.ask(method, path, body)
        assert status == 403
        assert "Authorization: Bearer TOKEN" in said["detail"]
    assert server.policies.sources == []
    headers = {**JSON, "Authorization": f"Bearer {ONE}"}
    assert (await server.ask("PUT", "/v1/thresholds/total", {"value": "20MB"}, headers))[0] == 200
    assert (await server.ask("GET", "/v1/thresholds"))[0] == 200


class _Away(Rights):
    """As if everybody asked from another machine."""

    async def missing(self, headers, peer):
        return await super().missing(headers, AWAY)


GOLD = {"groups": {"gold": {"publishRateInMsgs": 1}}, "tenants": {"acme": "gold"}}


@trio_fixture
async def from_away():
    server = Server()
    server.rights = _Away()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, open_listener("127.0.0.1", server.port), server.application())
        yield server
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_document_is_no_way_around_the_rights_to_groups(from_away):
    apply, server = "/v1/policies:apply", from_away
    before = server.policies.policies = server.policies.policies.apply(of_data({"resource_groups": GOLD}))
    for document, more in (
        ({"resource_groups": {"groups": {"silver": {}}}}, {}),
        ({"resource_groups": {"tenants": {"other": "gold"}}}, {}),
        ({"resource_groups": {"namespaces": {"acme/orders": "gold"}}}, {}),
        ({"resource_groups": {"groups": {"silver": {}}}}, {"dry_run": True}),
        ({}, {"prune": True}),
    ):
        status, said = await server.ask("POST", apply, {"document": document, **more})
        assert status == 403
        assert "is not yours to change" in said["detail"]
        assert "admin.tokens or admin.token_file" in said["detail"]
    assert server.policies.policies is before
    kept = {"thresholds": {"total": "20MB"}, "resource_groups": GOLD}
    status, said = await server.ask("POST", apply, {"document": kept, "prune": True})  # changes no group
    assert (status, [each["kind"] for each in said["ops"]]) == (200, ["broker"])


@pytest.mark.trio
async def test_who_has_no_rights_is_told_so_before_anything_else(server):
    for method, path, headers in (
        ("PUT", "/admin/v2/resourcegroup/gold", {"Content-Type": "text/plain"}),
        ("PUT", "/admin/v2/resourcegroup/gold?a=1&a=2", JSON),
        ("POST", "/admin/v2/tenants/acme/resourcegroup/gold", {}),
    ):
        status, _, body = await server.raw(method, path, b"{}", headers)
        assert status == 403
        assert b"Authorization: Bearer TOKEN" in body


# --- the configuration ------------------------------------------------------------------------------------------------


def warnings_of(admin):
    text = f"upstream: {{bootstrap_servers: broker:9092}}\nadmin: {admin}\n"
    return [each for each in config.warnings(config.parse(text)) if each.startswith("admin.")]


@pytest.mark.parametrize("host", ["0.0.0.0", "'::'", "''", "10.0.0.7", "gw.example"])
def test_a_port_for_others_without_tokens_is_refused_unless_that_is_meant(host):
    with pytest.raises(config.ConfigError, match="write token_file: FILE, or open: true if that is meant"):
        warnings_of(f"{{host: {host}}}")
    assert [each.partition(":")[0] for each in warnings_of(f"{{host: {host}, open: true}}")] == ["admin.open"]
    for more in ("tokens: [0123456789abcdef]", "token_file: t"):
        assert warnings_of(f"{{host: {host}, {more}}}") == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.9", "'::1'"])
def test_a_port_for_this_machine_needs_no_token(host):
    assert warnings_of(f"{{host: {host}}}") == []


def test_a_token_that_can_not_be_is_refused_with_its_place_and_not_shown():
    with pytest.raises(config.ConfigError) as error:
        warnings_of("{tokens: [0123456789abcdef, hunter2]}")
    assert error.value.lines == [
        "configuration:2: admin.tokens.1: a token has 16 to 4096 characters, not 7: openssl rand -hex 32 makes one"
    ]
