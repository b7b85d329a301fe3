# The REST API of resource groups over real HTTP, as PIP-82 has it, whose sentences are in docs/seeds.md. Where the
# proposal leaves a status open, Pulsar's is taken.

from __future__ import annotations

import pytest

from policies import explain
from policies.definitions.policy_set import PolicySet
from policies.groups.finder import GroupResolver
from tests.gateway.control.admin.rest_server import Server

GROUP = "/admin/v2/resourcegroup"
NAMESPACE = "/admin/v2/namespaces/acme/orders/resourcegroup"
TENANT = "/admin/v2/tenants/acme/resourcegroup"
LIMITS = {
    "publishRateInmsgs": 100, "PublishRateInbytes": 1000, "DispatchRateInmsgs": 200, "DispatchRateInbytes": 2000,
}  # fmt: skip


@pytest.fixture
async def server(server: Server) -> Server:
    """Without any policy."""
    server.policies.policies = PolicySet()
    return server


async def make(server: Server, *names: str) -> None:
    for name in names:
        assert (await server.ask("PUT", f"{GROUP}/{name}", LIMITS))[0] == 200


# --- Non-goals --------------------------------------------------------------------------------------------------------


def find_in(policies: PolicySet) -> GroupResolver:
    return GroupResolver("{tenant}.{namespace}.{topic}", "", policies.tenant_groups(), policies.namespace_groups())


@pytest.mark.seed("82.7")
async def test_a_tenants_limit_is_not_divided_among_its_namespaces_nor_a_namespaces_among_topics(
    server: Server,
) -> None:
    await make(server, "gold")
    await server.ask("PUT", f"{TENANT}/gold")
    find = find_in(server.policies.policies)
    for topic in ("acme.a.t", "acme.b.t", "acme.b.u"):
        known = explain.ExplainInputs(server.policies.policies, finder=find)
        rules = explain.explain_traffic(explain.ExplainSubject(topic), known).rules
        assert [r.levels[0].limit for r in rules if r.name == "resource-group"] == [100, 1000, 200, 2000]


# --- ResourceGroup REST-API -------------------------------------------------------------------------------------------


@pytest.mark.seed("82.42")
async def test_put_creates_a_group(server: Server) -> None:
    """With the proposal's four keys in its two spellings."""
    status, said = await server.ask("PUT", f"{GROUP}/gold", LIMITS)
    assert status == 200
    assert {change["key"]: change["new"] for change in said["changes"]} == {
        "exists": 1, "publishRateInMsgs": 100, "publishRateInBytes": 1000, "dispatchRateInMsgs": 200,
        "dispatchRateInBytes": 2000,
    }  # fmt: skip
    assert server.policies.sources[0].door == "rest"


@pytest.mark.seed("82.42")
async def test_put_updates_a_group_and_limits_that_are_not_given_stay(server: Server) -> None:
    """As in Pulsar, an update leaves fields alone that aren't given."""
    await make(server, "gold")
    status, said = await server.ask("PUT", f"{GROUP}/gold", {"publishRateInMsgs": 500})
    assert (status, [change["key"] for change in said["changes"]]) == (200, ["publishRateInMsgs"])
    _, said = await server.ask("GET", f"{GROUP}/gold")
    assert [said["publishRateInMsgs"], said["publishRateInBytes"], said["dispatchRateInBytes"]] == [500, 1000, 2000]


@pytest.mark.seed("82.42")
@pytest.mark.parametrize("nothing", [None, -1])
async def test_a_limit_is_taken_away_by_null_or_minus_one(server: Server, nothing: int | None) -> None:
    """As in Pulsar: -1 is no limit; null is what JSON has for it."""
    await make(server, "gold")
    status, said = await server.ask("PUT", f"{GROUP}/gold", {"publishRateInBytes": nothing})
    assert (status, said["changes"]) == (
        200, [{"kind": "group", "name": "gold", "key": "publishRateInBytes", "old": 1000, "new": None,
               "until": None}],
    )  # fmt: skip
    _, said = await server.ask("GET", f"{GROUP}/gold")
    assert (said["publishRateInBytes"], said["publishRateInMsgs"]) == (-1, 100)


@pytest.mark.seed("82.43")
async def test_get_answers_the_limits_in_both_spellings(server: Server) -> None:
    """The proposal's names, and Pulsar's beside them; whole numbers as such."""
    await make(server, "gold")
    await server.ask("PUT", f"{GROUP}/gold", {"publishRateInMsgs": 2.5})
    status, said = await server.ask("GET", f"{GROUP}/gold")
    assert (status, said) == (
        200,
        {
            "PublishRatelimitinmsgs": 2.5, "PublishRatelimitinbytes": 1000,
            "DispatchRatelimitinmsgs": 200, "DispatchRatelimitinbytes": 2000,
            "publishRateInMsgs": 2.5, "publishRateInBytes": 1000, "dispatchRateInMsgs": 200,
            "dispatchRateInBytes": 2000,
        },
    )  # fmt: skip
    assert all(isinstance(value, int) == (value != 2.5) for value in said.values())


@pytest.mark.seed("82.43")
async def test_the_answer_of_get_can_be_put(server: Server) -> None:
    await make(server, "gold")
    await server.ask("PUT", f"{GROUP}/gold", {"dispatchRateInMsgs": -1})
    _, said = await server.ask("GET", f"{GROUP}/gold")
    assert (await server.ask("PUT", f"{GROUP}/copy", said))[0] == 200
    assert (await server.ask("GET", f"{GROUP}/copy"))[1] == said


@pytest.mark.seed("82.44")
async def test_the_list_is_an_array_of_names(server: Server) -> None:
    assert await server.ask("GET", f"{GROUP}/") == (200, [])
    await make(server, "silver", "gold")
    for path in (GROUP, f"{GROUP}/", f"{GROUP}s", f"{GROUP}s/"):
        assert await server.ask("GET", path) == (200, ["gold", "silver"])


@pytest.mark.seed("82.45")
async def test_delete_deletes_a_group(server: Server) -> None:
    await make(server, "gold")
    assert (await server.ask("DELETE", f"{GROUP}/gold"))[0] == 200
    assert server.policies.policies.effective_values() == {}
    assert (await server.ask("GET", f"{GROUP}/gold"))[0] == 404


@pytest.mark.seed("82.45")
async def test_a_group_in_use_is_not_deleted(server: Server) -> None:
    """412, as Pulsar has it."""
    await make(server, "gold")
    await server.ask("PUT", f"{NAMESPACE}/gold")
    status, said = await server.ask("DELETE", f"{GROUP}/gold")
    assert (status, said["detail"]) == (
        412, "group gold is in use by namespace acme/orders: detach it there first",
    )  # fmt: skip
    await server.ask("DELETE", NAMESPACE)
    assert (await server.ask("DELETE", f"{GROUP}/gold"))[0] == 200


@pytest.mark.seed("82.9", "82.46")
@pytest.mark.parametrize("path", [NAMESPACE, TENANT])
async def test_attach_get_and_detach(server: Server, path: str) -> None:
    await make(server, "gold", "silver")
    assert (await server.ask("GET", path))[0] == 404
    assert (await server.raw("PUT", f"{path}/gold", None, {}))[0] == 200
    assert await server.ask("GET", path) == (200, "gold")
    assert (await server.ask("PUT", f"{path}/silver"))[0] == 200  # takes the other's place
    assert await server.ask("GET", path) == (200, "silver")
    assert (await server.ask("DELETE", path))[0] == 200
    assert (await server.ask("GET", path))[0] == 404
    assert (await server.ask("DELETE", path))[0] == 404
    assert (await server.ask("POST", f"{path}/gold"))[0] == 200  # Pulsar's method
    assert await server.ask("GET", path) == (200, "gold")


@pytest.mark.seed("82.46")
async def test_a_group_that_is_not_there_is_not_found(server: Server) -> None:
    for method, path in (
        ("GET", f"{GROUP}/nowhere"), ("DELETE", f"{GROUP}/nowhere"), ("GET", NAMESPACE), ("GET", TENANT),
        ("DELETE", NAMESPACE), ("PUT", f"{NAMESPACE}/nowhere"), ("PUT", f"{TENANT}/nowhere"),
    ):  # fmt: skip
        status, said = await server.ask(method, path)
        assert status == 404
        assert "no group" in said["detail"]


async def test_pulsars_path_is_taken_and_keys_are_read_without_regard_to_case(server: Server) -> None:
    body = {"PUBLISHRATEINMSGS": 1, "publishratelimitinbytes": 2, "dispatchRateInMSGS": 3, "DISPATCHrateinbytes": "4kB"}
    assert (await server.ask("PUT", "/admin/v2/resourcegroups/gold", body))[0] == 200
    limits = {"publishRateInMsgs": 1, "publishRateInBytes": 2, "dispatchRateInMsgs": 3, "dispatchRateInBytes": 4000}
    assert server.policies.policies.group_limits() == {"gold": limits}
    _, said = await server.ask("GET", "/admin/v2/resourcegroups/gold")
    assert {key: said[key] for key in limits} == limits
    assert (await server.ask("DELETE", "/admin/v2/resourcegroups/gold"))[0] == 200
