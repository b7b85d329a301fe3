# What a gateway is doing just now, over REST and as the commands show it.

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import channel, cli
from gateway.channel import FindConnections, UsageInterval, UsageRow
from gateway.commands import output
from gateway.commands.views import commands as views
from gateway.control.fleet.exchange.peers import PeerStatus
from gateway.control.fleet.exchange.usage_codec import GatewayTraffic
from gateway.control.gateway_health import FleetStatus, HealthStatus, WorkerCounts
from gateway.control.lifecycle.reload import ConfigStatus, ReloadResult
from gateway.control.usage.timeline import SLOT_MS
from gateway.control.workers.inquiries import InquiryResult
from policies.definitions.policy_records import ChangeSource, PastChange
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.explain import TopicFlow
from policies.storage import StorageFactor
from tests.gateway.control.admin.rest_server import NOW_MS, Server
from tests.gateway.data.worker.shown import shown

MB = 10**6


def busy(server: Server) -> None:
    server.told[channel.StorageSnapshot] = channel.StorageSnapshot(StorageFactor(0.5, why="broker 1 /data: 91 % used"))
    server.standing = HealthStatus(
        "b:9092", NOW_MS - 7_200_000, ("no worker is connected",), ("spool: full",), WorkerCounts(2, 1), 1234
    )
    state = ConfigStatus("gw.yaml", 5, ("workers",), ReloadResult("refused", 9, ("gw.yaml:3: mode: …",)))
    server.config = state
    seen = (PeerStatus("gw-2", 2, 1.0, 600.0, 0.4, True), PeerStatus("gw-3", 1, 1.0, 700.0, 12.5, False))
    server.peers = FleetStatus(True, "__usage", True, "", 0.034, seen)
    server.found = InquiryResult(
        40,
        3,
        (
            shown("10.0.0.1:5", software="librdkafka 2.8", muted_s=2.5, why="topic-threshold", id="ab12-7"),
            shown(broker=-1),
        ),
        1,
    )
    rows = (
        UsageRow(1, "clicks", "User:alice", "app", "accepted", "", 60 * MB, 1, 1, 0),
        UsageRow(1, "clicks", "User:alice", "app", "rejected", "topic-threshold", 15 * MB, 2, 2, 1000),
        UsageRow(-1, "views", "User:bob", "", "accepted", "", 90 * MB, 1, 1, 0),
    )
    server.recent.add_interval(UsageInterval("b", 0, 1, NOW_MS - 20_000, NOW_MS - 19_000, ()), NOW_MS - 20_000)
    server.recent.add_interval(UsageInterval("b", 0, 2, NOW_MS - 8_000, NOW_MS - 7_000, rows), NOW_MS)
    old = (UsageRow(1, "clicks", "User:carol", "x", "delayed", "client-quota", 7, 1, 1, 50),)
    server.recent.add_interval(UsageInterval("b", 0, 3, NOW_MS - 90_000, NOW_MS - 89_000, old), NOW_MS)


async def test_the_state_of_a_gateway_is_told_in_short(server: Server) -> None:
    status, said = await server.ask("GET", "/v1/status")
    assert (status, said["ready"], said["peers"], said["storage"]["state"]) == (200, True, None, "OFF")
    busy(server)
    _, said = await server.ask("GET", "/v1/status")
    assert said.pop("version")
    assert said.pop("hot_path") in ("compiled", "pure Python")
    assert said == {
        "gateway": "gw",
        "upstream": "b:9092",
        "at_ms": NOW_MS,
        "since_ms": NOW_MS - 7_200_000,
        "ready": False,
        "problems": ["no worker is connected"],
        "lacking": ["spool: full"],
        "mode": "enforce",
        "workers": {"configured": 2, "connected": 1},
        "connections": 1234,
        "flow": {"accepted": 10.0 * MB, "rejected": 1.0 * MB, "delayed": 0.0, "would": 0.0},
        "storage": {"factor": 0.5, "state": "THROTTLE", "why": "broker 1 /data: 91 % used", "mode": "enforce",
                    "text": "THROTTLE, every produce limit x 0.5: broker 1 /data: 91 % used"},
        "policies_version": 0,
        "elsewhere": 0.0,
        "peers": 1,
        "config": {"file": "gw.yaml", "loaded_ms": 5, "pending": ["workers"], "last": {
            "outcome": "refused", "at_ms": 9, "problems": ["gw.yaml:3: mode: …"], "changed": [],
        }},
    }  # fmt: skip


async def test_a_pause_that_holds_nobody_back_is_not_told_as_one(server: Server) -> None:
    server.told[channel.StorageSnapshot] = channel.StorageSnapshot(StorageFactor(0.0, why="full"), "observe")
    _, said = await server.ask("GET", "/v1/status")
    assert (said["storage"]["state"], said["storage"]["mode"]) == ("PAUSE", "observe")
    assert said["storage"]["text"] == "PAUSE, factor 0, mode observe: limits stay as they are, it is only counted: full"
    assert (await server.ask("GET", "/v1/explain", topic="clicks"))[1]["storage"]["text"] == said["storage"]["text"]


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("/v1/decisions?outcome=reject", "outcome"),
        ("/v1/policies/history?kind=quotas", "kind"),
        ("/v1/explain?topic=", "topic"),
    ],
)
async def test_a_question_about_what_there_is_not_is_an_error_and_not_an_empty_answer(
    server: Server, path: str, wrong: str
) -> None:
    status, said = await server.ask("GET", path)
    assert (status, [each["where"] for each in said["errors"]]) == (422, [f"query.{wrong}"])


async def test_peers_are_those_that_were_heard(server: Server) -> None:
    _, said = await server.ask("GET", "/v1/peers")
    assert said == {"enabled": False, "topic": "", "up": False, "problem": "", "round_trip_s": None, "peers": []}
    busy(server)
    _, said = await server.ask("GET", "/v1/peers")
    assert [(each["gateway"], each["living"], each["heard_s"]) for each in said["peers"]] == [
        ("gw-2", True, 0.4),
        ("gw-3", False, 12.5),
    ]


async def test_clients_are_sorted_filtered_and_cut(server: Server) -> None:
    busy(server)

    async def ask(**query: Any) -> list[tuple[str, str]]:
        status, said = await server.ask("GET", "/v1/clients", **query)
        assert status == 200, said
        return [(each["principal"], each["client_id"]) for each in said["clients"]]

    alice, bob, carol = ("User:alice", "app"), ("User:bob", ""), ("User:carol", "x")
    assert await ask() == [bob, alice, carol]
    assert await ask(by="rejected") == [alice, carol, bob]
    assert await ask(by="rejected", limit=1) == [alice]
    assert await ask(user="bob") == [bob]
    assert await ask(client_id="x") == [carol]
    _, said = await server.ask("GET", "/v1/clients", limit=1)
    assert said["total"] == 3
    _, said = await server.ask("GET", "/v1/clients", user="alice")
    assert said["clients"][0] == {
        "principal": "User:alice",
        "client_id": "app",
        "flow": {"accepted": 4.0 * MB, "rejected": 1.0 * MB, "delayed": 0.0, "would": 0.0},
        "others": {},
        "held": {
            "outcome": "rejected", "reason": "topic-threshold", "topic": "clicks", "broker": 1,
            "last_ms": NOW_MS - 7_000, "bytes": 15 * MB, "requests": 2, "delay_ms": 1000,
        },
    }  # fmt: skip
    assert (await server.ask("GET", "/v1/clients", by="size"))[0] == 422
    assert (await server.ask("GET", "/v1/clients", nobody="x"))[0] == 422


async def test_clients_at_other_gateways_are_among_them(server: Server) -> None:
    busy(server)
    clients = {("User:alice", "app"): TopicFlow(2.0 * MB, 1.0 * MB), ("User:away", "far"): TopicFlow(1.0)}
    server.others = {
        "gwb": GatewayTraffic({"t": TopicFlow(2.0 * MB)}, clients),
        "gwc": GatewayTraffic({"t": TopicFlow(1.0 * MB)}),
    }
    _, said = await server.ask("GET", "/v1/clients", user="alice")
    (alice,) = said["clients"]
    assert (alice["flow"]["accepted"], alice["flow"]["rejected"]) == (6.0 * MB, 2.0 * MB)
    assert list(alice["others"]) == ["gwb"]
    assert alice["others"]["gwb"]["accepted"] == 2.0 * MB
    _, said = await server.ask("GET", "/v1/clients", user="away")
    assert [(each["flow"]["accepted"], each["held"]) for each in said["clients"]] == [(1.0, None)]
    _, said = await server.ask("GET", "/v1/status")
    assert said["elsewhere"] == 3.0 * MB


async def test_clients_that_were_held_back_come_the_latest_first(server: Server) -> None:
    busy(server)
    _, said = await server.ask("GET", "/v1/clients", by="held", held="true")
    assert [each["principal"] for each in said["clients"]] == ["User:alice", "User:carol"]
    assert said["total"] == 2
    _, said = await server.ask("GET", "/v1/clients", by="held")
    assert [each["principal"] for each in said["clients"]] == ["User:alice", "User:carol", "User:bob"]


async def test_decisions_are_what_was_held_back_of_any_topic(server: Server) -> None:
    busy(server)

    async def ask(**query: Any) -> list[str]:
        status, said = await server.ask("GET", "/v1/decisions", **query)
        assert status == 200, said
        assert (said["at_ms"], said["total"] >= len(said["decisions"])) == (NOW_MS, True)
        return [f"{each['topic']} {each['principal']} {each['outcome']}" for each in said["decisions"]]

    alices, carols = "clicks User:alice rejected", "clicks User:carol delayed"
    assert await ask() == [alices, carols]
    assert await ask(limit=1) == [alices]
    assert await ask(user="carol") == [carols]
    assert await ask(outcome="rejected") == [alices]
    assert await ask(topic="views") == []
    assert await ask(client_id="app", topic="clicks") == [alices]
    _, said = await server.ask("GET", "/v1/decisions", limit=1)
    assert said["total"] == 2
    assert said["decisions"][0] == {
        "topic": "clicks", "principal": "User:alice", "client_id": "app", "broker": 1, "outcome": "rejected",
        "reason": "topic-threshold", "first_ms": NOW_MS - 8_000, "last_ms": NOW_MS - 7_000, "bytes": 15 * MB,
        "requests": 2, "delay_ms": 1000, "mean_delay_s": 0.5, "since_ms": NOW_MS - 8_000,
    }  # fmt: skip
    assert (await server.ask("GET", "/v1/decisions", limit=0))[0] == 422


async def test_traffic_is_told_by_steps_up_to_the_last_whole_one(server: Server) -> None:
    assert (await server.ask("GET", "/v1/traffic"))[1] == {"at_ms": NOW_MS, "step_ms": SLOT_MS, "points": []}
    rows = (
        UsageRow(1, "t", "u", "c", "accepted", "", 20 * MB, 1, 1, 0),
        UsageRow(1, "t", "u", "c", "rejected", "x", MB, 1, 1, 0),
    )
    for ago_s in (130, 40):
        at_ms = NOW_MS - ago_s * 1000
        server.timeline.add_interval(UsageInterval("b", 0, 1, at_ms, at_ms + 1000, rows, storage_factor=0.5), at_ms)
    _, said = await server.ask("GET", "/v1/traffic")
    assert [(NOW_MS - point["at_ms"]) // 1000 for point in said["points"]] == list(range(130, 10, -10))
    assert said["points"][0] == {
        "at_ms": NOW_MS - 130_000, "offered": 2.1 * MB, "accepted": 2.0 * MB, "rejected": 0.1 * MB, "delayed": 0.0,
        "would": 0.0, "factor": 0.5,
    }  # fmt: skip
    assert said["points"][1]["factor"] is None
    _, said = await server.ask("GET", "/v1/traffic", minutes=1)
    assert len(said["points"]) == 6
    assert (await server.ask("GET", "/v1/traffic", minutes=61))[0] == 422


async def test_workers_are_asked_for_the_connections_that_are_wanted(server: Server) -> None:
    busy(server)
    status, said = await server.ask("GET", "/v1/connections", limit=7, principal="User:a", address="::1", muted="true")
    assert status == 200
    assert server.questions == [FindConnections(0, 7, "User:a", None, "::1", None, True)]
    assert (said["total"], said["matched"], said["missing"]) == (40, 3, 1)
    assert said["connections"][0] == {
        "peer": "10.0.0.1:5", "broker": 1, "principal": "User:a", "client_id": "c", "software": "librdkafka 2.8",
        "age_s": 1.0, "idle_s": 0.0, "in_flight": 0, "muted_s": 2.5, "why": "topic-threshold", "id": "ab12-7",
    }  # fmt: skip
    assert said["connections"][1]["broker"] is None
    assert (await server.ask("GET", "/v1/connections", limit=1001))[0] == 422
    assert (await server.ask("GET", "/v1/connections", broker=2**64))[0] == 422


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(gateway: Server, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Runs a command; its output by lines."""

    def run(name: str, *args: str) -> list[str]:
        assert views.main(name, [*args, "--url", gateway.url]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out.splitlines()

    return run


def test_status_is_readable(gateway: Server, lines: Callable[..., list[str]]) -> None:
    busy(gateway)
    said = dict(line.split(None, 1) for line in lines("status"))
    assert said["gateway"].endswith("up 2 h")
    assert said["ready"] == "NO: no worker is connected"
    assert said["workers"] == "1 of 2"
    assert said["connections"] == "1,234"
    assert said["accepted"] == "10.0 MB/s"
    assert said["storage"] == "THROTTLE, every produce limit x 0.5: broker 1 /data: 91 % used"
    assert said["config"] == "gw.yaml, read again: refused: gw.yaml:3: mode: …; a restart is needed for workers"


def test_clients_connections_and_peers_are_tables(gateway: Server, lines: Callable[..., list[str]]) -> None:
    busy(gateway)
    clients = lines("clients", "--limit", "2")
    assert clients[0].split("  ")[0] == "PRINCIPAL"
    assert "rejected clicks on broker 1: topic-threshold" in clients[2]
    assert clients[2].endswith("7 s")
    assert clients[3] == "… and 1 more clients: --limit"
    connections = lines("connections", "--muted", "--broker", "1")
    assert gateway.questions == [FindConnections(0, 50, None, None, None, 1, True)]
    assert connections[1].split()[0] == "10.0.0.1:5"
    assert connections[1].endswith("2.5 s  topic-threshold")
    assert connections[3:] == [
        "1 workers did not answer in time: theirs are missing",
        "… and 1 more connections: --limit",
    ]
    peers = lines("peers")
    assert peers[1].split() == ["gw-2", "2", "10", "min", "0.4", "s", "1", "s", "lives"]
    assert peers[-1] == "topic __usage: heard, round trip 34 ms"
    gateway.peers = gateway.peers._replace(up=False)
    assert lines("peers")[1].endswith("not heard"), "so nobody knows whether it lives"


def test_what_runs_through_other_gateways_has_a_column(
    gateway: Server, lines: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    busy(gateway)
    gateway.others = {"gwb": GatewayTraffic({"away": TopicFlow(2.0 * MB)}, {("User:away", "far"): TopicFlow(9.0 * MB)})}
    clients = lines("clients")
    assert clients[0].endswith("ALSO AT")
    assert next(line for line in clients if line.startswith("User:away")).endswith("gwb")
    assert views.main("topics", ["--url", gateway.url]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.endswith("ELSEWHERE")
    assert next(row for row in rows if row.startswith("away")).endswith("2.0 MB/s")


def test_nothing_is_said_in_words(lines: Callable[..., list[str]]) -> None:
    assert lines("clients") == ["no such client has produced lately, or was held back in the last ten minutes"]
    assert lines("connections") == ["no client is connected"]
    assert lines("peers") == ["limits hold for this gateway alone: the configuration switches the exchange off"]
    assert lines("history") == ["nothing was changed at run time"]


def test_history_can_be_asked_of_one_thing(gateway: Server, lines: Callable[..., list[str]]) -> None:
    source = ChangeSource("ann", "rest", "127.0.0.1:5")
    gateway.policies.history = [
        PastChange(version, NOW_MS, source, key, None, 5.0 * MB, None)
        for version, key in ((1, PolicyKey.of_topic("clicks")), (2, PolicyKey.of_topic("views")))
    ]
    assert len(lines("history")) == 2
    (only,) = lines("history", "--kind", "topic", "--name", "clicks")
    assert "by ann via rest from 127.0.0.1:5" in only
    gateway.policies.policies = PolicySet(version=2)
    assert lines("history", "--kind", "quota") == ["no such change is known"]


@pytest.mark.parametrize("name", [name for name, view in views.VIEWS.items() if view.method == "GET"])
def test_json_and_yaml_are_the_answer(gateway: Server, lines: Callable[..., list[str]], name: str) -> None:
    busy(gateway)
    args = ["--topic", "clicks"] if name == "explain" else []
    as_json = json.loads("\n".join(lines(name, *args, "-o", "json")))
    assert as_json == json.loads("\n".join(lines(name, *args, "--json")))
    assert as_json == yaml.safe_load("\n".join(lines(name, *args, "-o", "yaml")))


def test_a_name_writes_nothing_but_text(gateway: Server, lines: Callable[..., list[str]]) -> None:
    evil = "x\x1b[2J\nz\N{RIGHT-TO-LEFT OVERRIDE}"
    gateway.found = InquiryResult(1, 1, (shown(principal=evil, client_id=evil, software=evil),))
    for form in output.OUTPUT_FORMATS:
        said = lines("connections", "-o", form)
        assert "x" in "".join(said)
        assert all(char.isprintable() for line in said for char in line)


def test_columns_are_as_wide_as_a_terminal_shows_them() -> None:
    rows = output.format_table(("NAME", "N"), [["集群", "1"], ["abc", "22"]])
    assert rows == ["NAME   N", "集群   1", "abc   22"]


# --- the command line as a whole --------------------------------------------------------------------------------------


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The exit code, and what is printed."""

    def run(*args: str) -> tuple[int, str, str]:
        code: Any = 0
        try:
            code = cli.main(list(args))
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return run


def test_a_misspelt_command_is_told_the_right_one(run: Run) -> None:
    assert run("serv", "gateway.yaml") == (2, "", "produce-gateway: unknown command 'serv'; did you mean serve?\n")
    code, _, said = run("frobnicate")
    assert (code, "known here: serve, check" in said) == (2, True)


def test_version_and_help_are_there_in_every_spelling(run: Run) -> None:
    number = run("--version")[1].strip()
    assert run("version")[1].startswith(f"{number}, hot path: ")
    assert run("help") == run("--help")
    assert "Exit codes: 0 done, 1 not done, 2 a wrong command line" in run("help")[1]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_and_their_options(shell: str, run: Run, tmp_path: Path) -> None:
    code, said, _ = run("completion", shell)
    assert code == 0
    assert all(word in said for word in ("connections", "--muted", "kafka-quotas", "attach", "--strict"))
    if shell == "bash":
        script = tmp_path / "completion.bash"
        script.write_text(said)
        words = "COMP_WORDS=(produce-gateway conn); COMP_CWORD=1; _shtab_produce_gateway; echo ${COMPREPLY[@]}"
        asked = subprocess.run(
            ["bash", "-c", f". {script}; {words}"], check=False, capture_output=True, text=True, timeout=60
        )
        assert "connections" in asked.stdout, asked.stderr
