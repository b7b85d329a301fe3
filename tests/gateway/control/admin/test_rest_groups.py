# Resource groups over REST: what is refused and how that is said, the file's groups, what all groups use; and how
# `explain` shows them. What PIP-82 says of it is in test_rest_pip82.py.

from __future__ import annotations

import threading
from typing import Any

import pytest

from gateway import channel
from gateway.control.admin.rest.routers import groups as rest_groups
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey, PolicyValue
from policies.fleet.keys import group_key
from policies.groups.group_limiters import GroupRate
from policies.groups.names import PUBLISH_BYTES
from policies.limits.description import FleetUse
from policies.limits.limit_use import LimitUse
from policies.storage import StorageFactor
from policies.thresholds.broker_limits import BrokerRate
from tests.gateway.control.admin.rest_server import MB, Server

GROUP = "/admin/v2/resourcegroup"
NAMESPACE = "/admin/v2/namespaces/acme/orders/resourcegroup"
BASE: dict[PolicyKey, PolicyValue] = {
    PolicyKey.of_group("gold"): 1.0,
    PolicyKey.of_group("gold", PUBLISH_BYTES): 12.0 * MB,
    PolicyKey.of_tenant("acme"): "gold",
}


@pytest.fixture
async def server(server: Server) -> Server:
    """With groups of the file."""
    server.policies.policies = PolicySet(BASE)
    return server


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "where", "text"),
    [
        ({"publishRate": 1}, "body", "unknown: 'publishRate'; did you mean publishRateInMsgs?"),
        ({"x": 1}, "body", "unknown: 'x'; known here: publishRateInMsgs, publishRateInBytes,"),
        ({"publishRateInMsgs": 1, "PublishRateInmsgs": 2}, "body", "publishRateInMsgs is given twice, as 1 and as 2"),
        ({"publishRateInMsgs": 0}, "body.publishRateInMsgs", "0 is not a valid limit: a number above 0"),
        ({"publishRateInMsgs": -5}, "body.publishRateInMsgs", "-5 is not a valid limit"),
        ({"publishRateInMsgs": float("nan")}, "body.publishRateInMsgs", "nan is not a valid limit"),
        (
            {"publishRateInMsgs": 10**400},
            "body.publishRateInMsgs",
            "such a number is not a valid limit: a number above 0",
        ),
        ({"dispatchRateInBytes": -(10**400)}, "body.dispatchRateInBytes", "such a number is not a valid limit"),
        ({"PublishRateInmsgs": "many"}, "body.publishRateInMsgs", "messages per second, such as 100000, are needed"),
        ({"publishRateInMsgs": True}, "body.publishRateInMsgs", "messages per second"),
        ({"publishRateInMsgs": [1]}, "body.publishRateInMsgs", "messages per second"),
        ({"dispatchRateInBytes": "12XB"}, "body.dispatchRateInBytes", "'12XB' is not a valid size; for example: 20MB"),
        ({"dispatchRateInBytes": {}}, "body.dispatchRateInBytes", "bytes per second, such as 12000000 or 12MB"),
        ([], "body", "an object is needed here"),
        (None, "body", "is required"),
    ],
)
async def test_a_mistake_is_told_with_its_place(
    server: Server, body: dict[str, Any] | list[Any] | None, where: str, text: str
) -> None:
    before = server.policies.policies
    status, said = await server.ask("PUT", f"{GROUP}/gold", body)
    assert status == 422
    assert said["errors"][0]["where"] == where
    assert text in said["errors"][0]["what"]
    assert server.policies.policies is before


async def test_a_group_that_is_put_is_there_whatever_became_of_its_limits_meanwhile(server: Server) -> None:
    limit = PolicyKey.of_group("silver", PUBLISH_BYTES)
    server.policies.policies = PolicySet(changes={limit: 5.0})
    assert (await server.ask("PUT", f"{GROUP}/silver", {"publishRateInBytes": -1}))[0] == 200
    assert server.policies.policies.group_limits() == {"silver": {}}


async def test_names_that_can_not_be_are_refused(server: Server) -> None:
    for path in (f"{GROUP}/a%20b", f"{GROUP}/{'g' * 201}", "/admin/v2/tenants/%0a/resourcegroup/gold"):
        status, said = await server.ask("PUT", path, {})
        assert status == 422
        assert "can't be" in said["errors"][0]["what"]


async def test_only_trying_changes_nothing(server: Server) -> None:
    before = server.policies.policies
    for method, path, body in (
        ("PUT", f"{GROUP}/new", {"publishRateInMsgs": 5}), ("PUT", f"{NAMESPACE}/gold", None),
    ):  # fmt: skip
        status, said = await server.ask(method, path, body, validate_only="true")
        assert (status, said["validate_only"], len(said["changes"]) > 0) == (200, True, True)
    assert server.policies.policies is before
    status, _ = await server.ask("PUT", f"{NAMESPACE}/nowhere", validate_only="true")
    assert status == 404


# --- the file's -------------------------------------------------------------------------------------------------------


async def test_a_group_of_the_file_is_changed_and_shows_again_when_that_is_deleted(server: Server) -> None:
    status, said = await server.ask("PUT", f"{GROUP}/gold", {"publishRateInBytes": "5MB"})
    assert [change["key"] for change in said["changes"]] == [PUBLISH_BYTES]  # that there is the group, the file says
    status, said = await server.ask("DELETE", f"{GROUP}/gold")
    assert (status, said["changes"][0]["new"]) == (200, 12 * MB)
    status, said = await server.ask("DELETE", f"{GROUP}/gold")
    assert status == 422
    assert {each["where"] for each in said["errors"]} == {"group gold", "publishRateInBytes of group gold"}
    assert "remove it there" in said["errors"][0]["what"]
    assert "gold" in server.policies.policies.group_limits()


async def test_a_limit_of_the_file_is_not_taken_away(server: Server) -> None:
    status, said = await server.ask("PUT", f"{GROUP}/gold", {"publishRateInBytes": -1})
    assert status == 422
    assert "resource_groups.groups.gold.publishRateInBytes" in said["errors"][0]["what"]
    status, said = await server.ask("DELETE", "/admin/v2/tenants/acme/resourcegroup")
    assert status == 422
    assert "resource_groups.tenants.acme" in said["errors"][0]["what"]


# --- what is used -----------------------------------------------------------------------------------------------------


def busy(server: Server) -> None:
    server.told[channel.GroupSnapshot] = channel.GroupSnapshot(1, mode="enforce")
    publish = GroupRate("gold", "publish", 7, LimitUse(4.0 * MB, 5.0 * MB, True, 3.1), LimitUse(400.0, None))
    server.told[channel.WorkerRates] = channel.WorkerRates((), groups=(publish,))
    server.fleet[group_key("gold", "publish", "bytes")] = FleetUse(5.0 * MB, {"gwb": 7.5 * MB}, 2)


async def test_all_groups_are_shown_with_their_usage(server: Server) -> None:
    busy(server)
    await server.ask("PUT", f"{NAMESPACE}/gold")
    status, said = await server.ask("GET", "/v1/resource-groups")
    assert status == 200
    group = said["groups"]["gold"]
    assert group["rates"]["publishRateInBytes"] == {
        "limit": 12 * MB, "origin": "file", "until": None, "here": 4 * MB, "part": 5 * MB, "fleet": 11.5 * MB,
        "others": {"gwb": 7.5 * MB}, "utilization": 11.5 / 12, "utilization_text": "96%", "wait_s": 3.1,
        "waiting": True,
    }  # fmt: skip
    assert group["rates"]["publishRateInMsgs"] == {
        "limit": None, "origin": "", "until": None, "here": 400, "part": None, "fleet": None,
        "others": {}, "utilization": None, "utilization_text": "no limit", "wait_s": 0.0,
        "waiting": False,
    }  # fmt: skip
    assert group["rates"]["dispatchRateInBytes"]["here"] is None
    assert (group["tenants"], group["namespaces"], group["waiting"], group["topics"]) == (
        ["acme"], ["acme/orders"], ["publish"], 7,
    )  # fmt: skip
    assert (said["topic_pattern"], said["mode"]) == ("{tenant}.{namespace}.{topic}", "enforce")


async def test_a_group_that_the_storage_factor_lowers_is_shown_as_it_is_in_force(server: Server) -> None:
    """Gateways tell each other what they take of a limit as it is configured."""
    busy(server)
    server.told[channel.StorageSnapshot] = channel.StorageSnapshot(StorageFactor(0.5))
    use = LimitUse(1.5 * MB, 2.5 * MB)
    publish = GroupRate("gold", "publish", 7, use, LimitUse(400.0, None), 0.5)
    server.told[channel.WorkerRates] = channel.WorkerRates((), groups=(publish,))
    _, said = await server.ask("GET", "/v1/resource-groups")
    shown = said["groups"]["gold"]["rates"]["publishRateInBytes"]
    assert (shown["limit"], shown["part"], shown["here"]) == (12 * MB, 2.5 * MB, 1.5 * MB)
    assert (shown["others"], shown["fleet"], shown["utilization"]) == ({"gwb": 3.75 * MB}, 5.25 * MB, 5.25 / 6)
    _, explained = await server.ask("GET", "/v1/explain", topic="acme.orders.new")
    (level,) = next(rule["levels"] for rule in explained["rules"] if rule["name"] == "resource-group")
    assert (level["used"], level["others"], level["configured"]) == (5.25 * MB, {"gwb": 3.75 * MB}, 12 * MB)


async def test_a_group_that_nobody_uses_has_its_part(server: Server) -> None:
    server.told[channel.WorkerRates] = channel.WorkerRates((BrokerRate(1, 0.0, 0.0, 0.0, None, []),))
    _, said = await server.ask("GET", "/v1/resource-groups")
    shown = said["groups"]["gold"]["rates"]
    assert [shown[PUBLISH_BYTES][name] for name in ("here", "part", "fleet", "utilization")] == [
        0.0,
        12 * MB,
        None,
        0.0,
    ]
    assert shown["publishRateInMsgs"]["here"] is None


async def test_thousands_of_groups_are_put_together_beside_the_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    shown = rest_groups._describe_groups

    def noting(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return shown(*args)

    monkeypatch.setattr(rest_groups, "_describe_groups", noting)
    assert (await server.ask("GET", "/v1/resource-groups"))[0] == 200
    assert threads
    assert threading.current_thread() not in threads


async def test_a_tenant_whose_group_is_not_there_is_warned_of(server: Server) -> None:
    server.policies.policies = PolicySet({}, {PolicyKey.of_tenant("acme"): "gone"})
    _, said = await server.ask("GET", "/v1/resource-groups")
    assert said["groups"] == {}
    assert said["warnings"] == ["there is no group gone, but tenant acme should belong to it: unlimited"]


async def test_an_explanation_knows_groups_and_the_fleet(server: Server) -> None:
    busy(server)
    status, said = await server.ask("GET", "/v1/explain", topic="acme.orders.new", user="alice")
    assert status == 200
    (rule,) = [rule for rule in said["rules"] if rule["name"] == "resource-group"]
    assert (rule["first"], rule["limits_now"], rule["limit"], rule["rate"]) == (True, True, 5 * MB, 4 * MB)
    assert rule["text"] == (
        "publishRateInBytes of group gold, attached to tenant acme: 12.0 MB/s over 2 gateways: 11.5 MB/s used"
        " (4.0 MB/s here, 7.5 MB/s at gwb), the share of this gateway is now 5.0 MB/s (80%); held 3.1 s"
    )
    level = rule["levels"][0]
    assert (level["whole"], level["gateways"], level["used"], level["used_here"], level["others"]) == (
        12 * MB, 2, 11.5 * MB, 4 * MB, {"gwb": 7.5 * MB},
    )  # fmt: skip
    assert (level["limit"], level["wait_s"]) == (5 * MB, 3.1)
    _, said = await server.ask("GET", "/v1/explain", topic="other.orders.new")
    assert "no resource group: none is attached to namespace other/orders or tenant other" in said["notes"]
    await server.ask("PUT", "/admin/v2/tenants/other/resourcegroup/gold")
    _, said = await server.ask("GET", "/v1/explain", topic="other.orders.new")
    assert said["rules"][0]["name"] == "resource-group"  # a change of attachments is seen at once
