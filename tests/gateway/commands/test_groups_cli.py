# `produce-gateway groups` against the real admin server; what users see, and how a token is found.

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway import channel, cli
from gateway.commands import admin_client as asking
from gateway.commands import groups, policies
from gateway.control.access.gate import AccessGate
from gateway.control.access.holders import CredentialHolders
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.fleet.keys import group_key
from policies.groups.group_limiters import GroupRate
from policies.groups.names import GROUP_KEYS
from policies.limits.description import FleetUse
from policies.limits.limit_use import LimitUse
from tests.gateway.commands.test_explain_cli import out
from tests.gateway.control.admin.rest_server import MB, Server

TOKEN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def bare(gateway: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.policies.policies = PolicySet()
    monkeypatch.delenv("PRODUCE_GATEWAY_TOKEN_FILE", raising=False)


def run(server: Server, *args: str, code: int = 0) -> None:
    assert groups.main([*args, "--url", server.url]) == code


def failed(server: Server, capsys: pytest.CaptureFixture[str], *args: str) -> str:
    run(server, *args, code=1)
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def test_a_group_from_beginning_to_end(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    run(gateway, "list")
    assert out(capsys)[0].startswith("there are no resource groups: produce-gateway groups set NAME")
    run(gateway, "set", "gold", "--publish-bytes", "12MB", "--dispatch-msgs", "200000")
    assert out(capsys) == [
        "publishRateInBytes of group gold: none -> 12,000,000 bytes/s",
        "dispatchRateInMsgs of group gold: none -> 200,000 messages/s",
        "group gold: none -> exists",
        "version 1",
    ]
    run(gateway, "attach", "gold", "--tenant", "acme")
    run(gateway, "attach", "gold", "--namespace", "acme/orders")
    assert "resourcegroup of namespace acme/orders: none -> gold" in out(capsys)
    run(gateway, "list")
    assert out(capsys) == [
        "GROUP  PUBLISH             DISPATCH            ATTACHED TO",
        "gold   12,000,000 bytes/s  200,000 messages/s  tenant acme, namespace acme/orders",
    ]
    run(gateway, "get", "gold")
    assert out(capsys) == [
        "group gold", "  publishRateInMsgs: no limit", "  publishRateInBytes: 12,000,000 bytes/s",
        "  dispatchRateInMsgs: 200,000 messages/s", "  dispatchRateInBytes: no limit",
    ]  # fmt: skip
    run(gateway, "set", "gold", "--publish-bytes", "none")
    assert out(capsys)[0] == "publishRateInBytes of group gold: 12,000,000 bytes/s -> none"
    run(gateway, "set", "gold")
    assert out(capsys) == ["nothing to change: these values are set already"]
    run(gateway, "detach", "--tenant", "acme")
    run(gateway, "detach", "--namespace", "acme/orders")
    run(gateway, "delete", "gold")
    assert gateway.policies.policies.effective_values() == {}
    assert {source.door for source in gateway.policies.sources} == {"rest"}


def test_limits_have_an_end(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    run(gateway, "set", "gold", "--publish-bytes", "12MB", "--until", "2999-01-01T00:00:00Z")
    assert out(capsys)[:2] == [
        "publishRateInBytes of group gold: none -> 12,000,000 bytes/s until 2999-01-01T00:00:00Z",
        "group gold: none -> exists",
    ]
    assert "says when limits end: give one of" in failed(gateway, capsys, "set", "gold", "--until", "2h")
    assert policies.main(["history", "--url", gateway.url]) == 0
    first, second = out(capsys)
    assert first.startswith("2023-11-14T22:13:20Z version 1: ")
    assert "-> 12,000,000 bytes/s until 2999-01-01T00:00:00Z, by " in first + second
    assert " via rest from 127.0.0.1:" in first


def test_the_usage_of_all_gateways_and_of_this_one(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.policies.policies = PolicySet(
        {PolicyKey.of_group("gold", "publishRateInBytes"): 12.0 * MB, PolicyKey.of_group("rest"): 1.0}
    )
    rate = GroupRate("gold", "publish", 7, LimitUse(4.0 * MB, 5.0 * MB, True), LimitUse(400.0, None))
    gateway.told[channel.WorkerRates] = channel.WorkerRates((), groups=(rate,))
    gateway.fleet[group_key("gold", "publish", "bytes")] = FleetUse(5.0 * MB, {"gwb": 7.5 * MB}, 2)
    run(gateway, "usage", "--group", "gold")
    header, msgs, size, *_ = out(capsys)
    assert header.split() == ["GROUP", "RATE", "LIMIT", "ALL", "GATEWAYS", "USED", "HERE", "PART", "WAITS"]
    assert msgs.split() == ["gold", "publishRateInMsgs", "-", "-", "-", "400", "messages/s", "-"]
    assert size.split() == [
        "gold", "publishRateInBytes", "12,000,000", "bytes/s", "11,500,000", "bytes/s", "96%", "4,000,000", "bytes/s",
        "5,000,000", "bytes/s", "yes",
    ]  # fmt: skip
    run(gateway, "usage")
    assert len(out(capsys)) == 9
    assert failed(gateway, capsys, "usage", "--group", "x") == (
        "there is no group x: produce-gateway groups list shows all of them"
    )


def test_small_limits_are_not_rounded_away_and_the_one_that_clients_wait_for_is_marked(
    gateway: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.policies.policies = PolicySet(
        {PolicyKey.of_group("gold", "publishRateInMsgs"): 0.5, PolicyKey.of_group("gold", "publishRateInBytes"): 1e6}
    )
    rate = GroupRate("gold", "publish", 7, LimitUse(1234.5, 1e6), LimitUse(0.25, 0.25, True))
    gateway.told[channel.WorkerRates] = channel.WorkerRates((), groups=(rate,))
    run(gateway, "usage")
    _, msgs, size, *_ = out(capsys)
    assert msgs.split() == [
        "gold", "publishRateInMsgs", "0.500", "messages/s", "-", "50%", "0.250", "messages/s", "0.250", "messages/s",
        "yes",
    ]  # fmt: skip
    assert size.split()[-4:] == ["1,234", "bytes/s", "1,000,000", "bytes/s"]


def test_json_is_the_answer_itself(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for args, key in (
        (["set", "gold"], "version"), (["get", "gold"], "publishRateInMsgs"), (["list"], "groups"),
        (["usage"], "groups"), (["delete", "gold"], "changes"),
    ):  # fmt: skip
        run(gateway, *args, "--json")
        assert key in json.loads("\n".join(out(capsys)))


def test_errors_are_one_line(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no group gold: PUT here creates it" in failed(gateway, capsys, "get", "gold")
    assert "namespace a/b: there is no group gold: create it first" in failed(
        gateway, capsys, "attach", "gold", "--namespace", "a/b"
    )
    assert "no group is attached to tenant a" in failed(gateway, capsys, "detach", "--tenant", "a")
    assert "0 is not a valid limit" in failed(gateway, capsys, "set", "gold", "--publish-msgs", "0")
    assert "can't be a group's name" in failed(gateway, capsys, "set", "a b")
    run(gateway, "set", "gold")
    run(gateway, "attach", "gold", "--tenant", "a")
    capsys.readouterr()
    assert "in use by tenant a" in failed(gateway, capsys, "delete", "gold")
    closed = Server()
    assert "can't be reached" in failed(closed, capsys, "list")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([], "the following arguments are required"),
        (["attach", "gold"], "one of the arguments --tenant --namespace is required"),
        (["attach", "gold", "--tenant", "a", "--namespace", "a/b"], "not allowed with"),
        (["detach", "--namespace", "acme"], "'acme' is not a valid namespace; for example: acme/orders"),
        (["set", "gold", "--publish-bytes", "12XB"], "'12XB' is not a valid size; for example: 20MB"),
        (["set", "gold", "--publish-msgs", "many"], "'many' is not a valid number of messages"),
        (["list", "gateway.yaml", "--url", "http://x"], "CONFIG and --url both name the gateway's address"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], args: list[str], text: str
) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(["groups", *args])
    assert error.value.code == 2
    assert text in capsys.readouterr().err


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_commands_send_the_token_from_wherever_it_is(
    gateway: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.give_gate(AccessGate(CredentialHolders([TOKEN])))
    assert "admin.tokens or admin.token_file; commands take --token-file" in failed(gateway, capsys, "set", "gold")
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    run(gateway, "set", "gold", "--token-file", str(file))
    monkeypatch.setenv("PRODUCE_GATEWAY_TOKEN_FILE", str(file))
    run(gateway, "get", "gold")
    document = tmp_path / "p.yaml"
    document.write_text("resource_groups: {groups: {silver: {publishRateInBytes: 1MB}}}")
    assert policies.main(["apply", str(document), "--url", gateway.url]) == 0
    assert "publishRateInBytes of group silver: none -> 1,000,000 bytes/s" in out(capsys)
    monkeypatch.delenv("PRODUCE_GATEWAY_TOKEN_FILE")
    assert policies.main(["apply", str(document), "--url", gateway.url]) == 1
    assert "Unauthorized: operator rights are needed" in capsys.readouterr().err
    assert policies.main(["show", "--url", gateway.url]) == 0  # reading is open, as before


@pytest.mark.parametrize("where", ["tokens: [0123456789abcdef]", "token_file: {file}"])
def test_the_configuration_has_the_token_as_well(
    gateway: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path, where: str
) -> None:
    gateway.give_gate(AccessGate(CredentialHolders([TOKEN])))
    file, config = tmp_path / "token", tmp_path / "gateway.yaml"
    file.write_text(TOKEN)
    config.write_text(
        f"upstream: {{bootstrap_servers: broker:9092}}\nadmin: {{port: {gateway.port}, {where.format(file=file)}}}\n"
    )
    assert groups.main(["set", "gold", str(config)]) == 0
    assert out(capsys)[-1] == "version 1"


def test_a_token_file_that_can_not_be_used_is_one_line(
    gateway: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    line = failed(gateway, capsys, "get", "gold", "--token-file", str(missing))
    assert line == f"{missing}: No such file or directory"
    missing.write_text("short\n")
    line = failed(gateway, capsys, "get", "gold", "--token-file", str(missing))
    assert line.startswith(f"{missing}: line 1: a token has 16 to 4096 characters, not 5")


def test_names_can_not_command_the_terminal(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"mode": "enforce", "enforce_percent": 100, "warnings": ["\x1b[2J"], "groups": {}}
    assert all(
        char.isprintable() for line in asking.describe_response("x", answer, groups._describe_groups) for char in line
    )


def test_a_list_says_for_how_many_of_the_clients_groups_are_enforced() -> None:
    group = {"rates": {key: {"limit": None} for key in GROUP_KEYS}, "tenants": [], "namespaces": []}
    answer = {"mode": "enforce", "enforce_percent": 0.5, "warnings": [], "groups": {"gold": group}}
    note = "enforce_percent 0.5: all other clients are not limited, only counted"
    assert groups._describe_groups(answer)[-1] == note
    assert note not in groups._describe_groups({**answer, "mode": "observe"})
    assert note not in groups._describe_groups({**answer, "enforce_percent": 100.0})
