# PUT and DELETE /v1/storage/override: an operator's override of storage protection.

from __future__ import annotations

from typing import Any

import pytest

from gateway.commands import storage_override
from gateway.control.storage.override import OVERRIDE_KEY, find_override
from gateway.control.storage.status import ShownOverride
from policies.units import format_time
from tests.gateway.control.admin.rest_server import NOW_MS, Server

PATH = "/v1/storage/override"
UNTIL_MS = NOW_MS + 1_800_000
PAUSE = {"state": "PAUSE", "reason": "a disk is replaced", "until": format_time(UNTIL_MS)}
OPEN = {**PAUSE, "state": "OPEN"}


def status(scope: str = "cluster", factor: float = 1.0) -> dict[str, Any]:
    volumes = [{"name": "/a", "factor": factor}, {"name": "/b", "factor": 0.5}]
    return {"enabled": True, "mode": "enforce", "scope": scope, "brokers": [{"id": 1, "volumes": volumes}]}


async def test_it_is_kept_as_a_policy_with_author_reason_and_end(server: Server) -> None:
    server.storage = status()
    code, said = await server.ask(
        "PUT", PATH, PAUSE, {"content-type": "application/json", "produce-gateway-user": "eve"}
    )
    assert (code, said["still_full"]) == (200, [])
    (change,) = said["changes"]
    assert (change["kind"], change["old"], change["new"]) == ("storage", None, "PAUSE: a disk is replaced")
    policies = server.policies
    override = find_override(policies.policies, policies.history, NOW_MS)
    assert override is not None
    assert ShownOverride.model_validate(override).model_dump() == {
        "state": "PAUSE", "force": False, "reason": "a disk is replaced", "who": "eve", "at": format_time(NOW_MS),
        "until": format_time(UNTIL_MS), "left_s": 1800.0,
    }  # fmt: skip
    assert find_override(policies.policies, policies.history, UNTIL_MS) is None
    _, history = await server.ask("GET", "/v1/policies/history", kind="storage")
    assert [(each["who"], each["new"]) for each in history["changes"]] == [("eve", "PAUSE: a disk is replaced")]
    _, exported = await server.ask("GET", "/v1/policies")
    assert "PAUSE" not in str(exported["document"])
    assert (await server.ask("DELETE", PATH))[0] == 200
    assert OVERRIDE_KEY not in server.policies.policies.changes
    assert (await server.ask("DELETE", PATH))[0] == 404


def test_a_pause_that_is_only_counted_is_not_called_one(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for mode, said in (("enforce", 1), ("observe", 2)):
        gateway.storage = {**status(), "mode": mode}
        assert storage_override.main(["pause", "--for", "30m", "--reason", "a test", "--url", gateway.url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == said
        assert lines[0].startswith("producers are paused until ")
        assert lines[1:] == ["mode observe: that is only counted, and nobody is held back"][: said - 1]


async def test_an_opening_is_refused_at_a_hard_limit_that_is_everybody_s_and_told_where_it_is_some_topics(
    server: Server,
) -> None:
    server.storage = status(factor=0.0)
    code, said = await server.ask("PUT", PATH, OPEN)
    assert (code, said["detail"]) == (
        409, "broker 1 /a: at the hard limit, which pauses all producers: make room, or set force",
    )  # fmt: skip
    assert server.policies.policies.changes == {}
    assert (await server.ask("PUT", PATH, {**OPEN, "force": True}))[0] == 200
    assert server.policies.policies.changes == {OVERRIDE_KEY: "OPEN forced: a disk is replaced"}
    server.storage = status("affected", 0.0)
    code, said = await server.ask("PUT", PATH, OPEN)
    assert (code, said["still_full"]) == (200, ["broker 1 /a"])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({**PAUSE, "until": None}, 422),
        ({key: value for key, value in PAUSE.items() if key != "until"}, 422),
        ({**PAUSE, "until": format_time(NOW_MS - 1000)}, 422),
        ({**PAUSE, "force": True}, 422),
        ({**PAUSE, "state": "THROTTLE"}, 422),
        ({**PAUSE, "reason": "a\nb"}, 422),
        ({**PAUSE, "resaon": "a"}, 422),
    ],
)
async def test_what_can_t_be_is_refused(server: Server, body: dict[str, Any], code: int) -> None:
    server.storage = status()
    assert (await server.ask("PUT", PATH, body))[0] == code
    assert server.policies.policies.changes == {}


async def test_without_storage_protection_there_is_nothing_to_override(server: Server) -> None:
    assert (await server.ask("PUT", PATH, PAUSE))[0] == 409
