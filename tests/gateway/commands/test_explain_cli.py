# The commands explain, topics and top against the real API on a real server.

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import channel
from gateway.channel import UsageInterval, UsageRow
from gateway.commands import admin_client as asking
from gateway.commands.views import commands as views
from gateway.commands.views.topics import describe_topic_table
from gateway.embedded import find_free_port
from policies.definitions.policy_set import PolicySet
from tests.gateway.control.admin.rest_server import BASE, MB, NOW_MS, Server, rates


def busy(server: Server) -> None:
    server.told[channel.TopicSnapshot] = channel.TopicSnapshot({1: ("clicks", "views"), 12: ("views",)})
    server.told[channel.WorkerRates] = rates(
        [("clicks", 4.0 * MB, 5.0 * MB, True), ("views", 1.5 * MB, 7.0 * MB, False)]
    )
    rows = (
        UsageRow(1, "clicks", "User:alice", "app", "accepted", "", 60_000_000, 1, 1, 0),
        UsageRow(1, "clicks", "User:alice", "app", "rejected", "topic-threshold", 15_000, 2, 2, 1000),
    )
    server.recent.add_interval(UsageInterval("b", 0, 1, NOW_MS - 20_000, NOW_MS - 19_000, ()), NOW_MS - 20_000)
    server.recent.add_interval(UsageInterval("b", 0, 2, NOW_MS - 8_000, NOW_MS - 7_000, rows), NOW_MS)


def out(capsys: pytest.CaptureFixture[str]) -> list[str]:
    said = capsys.readouterr()
    assert said.err == ""
    return said.out.splitlines()


def test_an_explanation_is_readable(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    busy(gateway)
    args = ["--topic", "clicks", "--user", "alice", "--client-id", "app", "--url", gateway.url + "/"]
    assert views.main("explain", args) == 0
    lines = out(capsys)
    assert lines[0] == (
        "rejected now by topic-threshold on broker 1: bytes.in.per.sec.threshold of topic clicks: 4.0 MB/s of 5.0 MB/s"
        " (80%) and total.bytes.in.per.sec.threshold of broker 1: 11.0 MB/s of 12.0 MB/s (92%); limits from file;"
        " 2 requests were rejected lately, the latest 7 s ago"
    )
    assert lines[1:3] == ["", "asked    topic clicks, user alice, client id app, brokers 1"]
    assert lines[3] == "storage  storage protection is off: full disks change no limit"
    rules = lines.index("RULES, in the order in which they are asked (> binds first)")
    assert lines[rules + 1 : rules + 4] == [
        "  client-quota: delays: producer_byte_rate:bps=3000000 {user=alice}: 0.0 B/s of 3.0 MB/s (0%); from file",
        "> topic-threshold on broker 1: LIMITS NOW for 8 s, rejects: bytes.in.per.sec.threshold of topic clicks:"
        " 4.0 MB/s of 5.0 MB/s (80%) and total.bytes.in.per.sec.threshold of broker 1: 11.0 MB/s of 12.0 MB/s (92%);"
        " from file",
        "  fence: rejects: of an idempotent producer: batches behind a rejected one, until that one comes again",
    ]
    shadowed = lines.index("WITHOUT EFFECT on this traffic")
    assert lines[shadowed + 1] == (
        "  topic-threshold on broker 1: implicit share = 7,000,000 bytes/s (computed):"
        " the topic has bytes.in.per.sec.threshold of its own"
    )
    assert lines[-2:] == [
        "REJECTED OR DELAYED LATELY",
        "  22:13:13Z (7 s ago) rejected: topic-threshold on broker 1: 15,000 bytes in 2 requests, 0.5 s each,"
        " from User:alice 'app'",
    ]


def test_what_began_by_a_clock_that_was_set_back_began_now(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    busy(gateway)
    rows = (UsageRow(1, "clicks", "User:bob", "app", "rejected", "topic-threshold", 15_000, 2, 2, 1000),)
    then_ms = NOW_MS + 4_000
    gateway.recent.add_interval(UsageInterval("b", 0, 3, then_ms, then_ms + 500, rows), then_ms)
    assert views.main("explain", ["--topic", "clicks", "--user", "bob", "--url", gateway.url]) == 0
    assert any("LIMITS NOW for 0 s," in line for line in out(capsys))


def test_one_broker_can_be_asked_about(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    busy(gateway)
    assert views.main("explain", ["--topic", "views", "--broker", "12", "--url", gateway.url]) == 0
    lines = out(capsys)
    assert lines[2] == "asked    topic views, user ANONYMOUS, client id none, brokers 12"
    assert lines[-1] == "  nothing"


def test_topics_are_a_table(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    busy(gateway)
    assert views.main("topics", ["--url", gateway.url]) == 0
    assert out(capsys) == [
        "TOPIC   BROKERS  THRESHOLD      FROM  RATE 1 MIN  USED  ACCEPTED  REJECTED  DELAYED  WOULD",
        "clicks  1         5.0 MB/s      file    4.0 MB/s  80%!  4.0 MB/s  1.0 kB/s        -      -",
        "views   1,12      7.0 MB/s  computed    1.5 MB/s   21%         -         -        -      -",
    ]


def test_top_is_one_sorted_table_where_the_output_is_no_terminal(
    gateway: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    busy(gateway)
    for args, order in (
        ([], ["clicks", "views"]), (["--by", "rejected", "--limit", "1"], ["clicks"]), (["--once"], ["clicks", "views"])
    ):  # fmt: skip
        assert views.main("top", [*args, "--url", gateway.url]) == 0
        header, *lines = out(capsys)
        assert header.startswith("TOPIC ")
        assert [line.split()[0] for line in lines] == order


def test_no_topics_are_an_empty_table(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.told.clear()
    gateway.policies.policies = PolicySet()
    assert views.main("topics", ["--url", gateway.url]) == 0
    assert len(out(capsys)) == 1


def test_names_cannot_command_the_terminal(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "x\x1b[2Jy\nz\u202e"
    row = UsageRow(1, evil, f"User:{evil}", evil, "rejected", "r", 1, 1, 1, 0)
    gateway.recent.add_interval(UsageInterval("b", 0, 2, NOW_MS - 8_000, NOW_MS - 7_000, (row,)), NOW_MS)
    for command, *args in (("explain", "--topic", evil), ("topics",), ("top",)):
        assert views.main(command, [*args, "--url", gateway.url]) == 0
        said = capsys.readouterr().out
        assert "x" in said
        assert all(char.isprintable() or char == "\n" for char in said)
        assert not [line for line in said.splitlines() if line.startswith("z")]


def test_the_configuration_says_where_to_ask(
    gateway: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "gw.yaml"
    path.write_text(
        f"upstream: {{bootstrap_servers: 'b:1'}}\nadmin: {{host: 0.0.0.0, open: true, port: {gateway.port}}}"
    )
    assert views.main("topics", [str(path)]) == 0
    assert views.main("explain", [str(path), "--topic", "clicks"]) == 0
    assert views.main("top", [str(path)]) == 0
    capsys.readouterr()
    path.write_text("upstream: {}")
    assert views.main("topics", [str(path)]) == 1
    assert capsys.readouterr().err == f"{path}:1: upstream.bootstrap_servers: is required\n"


def test_a_question_that_cannot_be_asked_is_one_line(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert views.main("explain", ["--topic", "clicks", "--broker", "-1", "--url", gateway.url]) == 1
    assert "broker: should be greater than or equal to 0" in capsys.readouterr().err
    assert views.main("topics", ["--url", f"http://127.0.0.1:{find_free_port()}"]) == 1
    assert "Connection refused: is the gateway running, and admin: right?" in capsys.readouterr().err
    assert views.main("top", ["--url", "localhost:9190"]) == 1
    assert (
        capsys.readouterr().err == "--url localhost:9190: is not a valid address; for example: http://127.0.0.1:9190\n"
    )
    assert views.main("topics", ["--url", gateway.url + "/metrics?"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_an_older_gateway_has_no_such_path(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(asking.CommandError, match="404 Not Found: is it a gateway's admin server"):
        asking.request_json(asking.AdminEndpoint(gateway.url), "/nothing")
    with pytest.raises(asking.CommandError, match="this release doesn't know"):
        asking.describe_response("there", {"topics": [{}]}, describe_topic_table)


@pytest.mark.parametrize(
    "args",
    [
        ("explain", []),
        ("explain", ["--topic", "t", "--broker", "x"]),
        ("topics", ["gw.yaml", "--url", "http://x"]),
        ("top", ["--by", "size"]),
        ("top", ["--limit", "0"]),
        ("top", ["--interval", "0"]),
    ],
)
def test_a_wrong_command_line_is_2(args: tuple[Any, ...], capsys: pytest.CaptureFixture[str]) -> None:
    command, argv = args
    with pytest.raises(SystemExit) as ended:
        views.main(command, argv)
    assert ended.value.code == 2


class Terminal:
    """A command in a terminal of 100 columns."""

    def __init__(self, *args: str, command: str = "top", rows: int = 10) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))
        code = (
            f"import sys; from gateway.commands.views.commands import main; sys.exit(main({command!r}, sys.argv[1:]))"
        )
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        env["TERM"] = "xterm"
        self.process = subprocess.Popen([sys.executable, "-c", code, *args], stdin=slave, stdout=slave, env=env)
        os.close(slave)
        self.seen = ""

    def wait_for(self, pattern: str) -> str:
        while not re.search(pattern, self.seen, re.DOTALL):
            self.seen += os.read(self.master, 65536).decode()
        found, self.seen = self.seen, ""
        return found

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        said = self.wait_for(r"\x1b\[\?1049l")
        return self.process.wait(), said

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Starts a command, `top`, in a terminal."""
    terminals = []

    def make(*args: str, **more: Any) -> Terminal:
        terminals.append(Terminal(*args, **more))
        return terminals[-1]

    yield make
    for terminal in terminals:
        terminal.close()


def test_in_a_terminal_top_is_drawn_again_and_again_with_as_many_topics_as_fit(
    gateway: Server, start: Callable[..., Any]
) -> None:
    busy(gateway)
    gateway.told[channel.TopicSnapshot] = channel.TopicSnapshot({1: tuple(f"topic-{n}" for n in range(50))})
    terminal = start("--url", gateway.url, "--interval", "0.2", rows=40)
    before, opened, first = terminal.wait_for(r"clicks.*\x1b\[H.*clicks.*\x1b\[H").partition("\x1b[?1049h")
    assert (before, opened) == ("", "\x1b[?1049h")
    for frame in [frame for frame in first.split("\x1b[H")[:-1] if "clicks" in frame]:  # the last one may be cut
        assert len(set(re.findall(r"\n(clicks|views|topic-\d+)", frame))) == 37
    gateway.policies.policies = PolicySet({**BASE}, version=1)
    gateway.told[channel.WorkerRates] = rates([("views", 3.0 * MB, 7.0 * MB, False)])
    terminal.wait_for("views +1 .* 3.0 MB/s.*\x1b\\[H")
    code, _ = terminal.end()
    assert code == 0


def test_what_a_command_shows_once_can_be_watched(gateway: Server, start: Callable[..., Any]) -> None:
    busy(gateway)
    terminal = start("--url", gateway.url, "--topic", "views", "-w", "--interval", "0.2", command="explain")
    terminal.wait_for("/v1/explain, every 0.2 s; Ctrl-C ends.*1.5 MB/s")
    gateway.told[channel.WorkerRates] = rates([("views", 3.0 * MB, 7.0 * MB, False)])
    terminal.wait_for("3.0 MB/s")
    assert terminal.end()[0] == 0


def test_without_a_terminal_there_is_nothing_to_watch(gateway: Server, capsys: pytest.CaptureFixture[str]) -> None:
    busy(gateway)
    assert views.main("topics", ["--url", gateway.url, "--watch"]) == 0
    assert out(capsys)[0].startswith("TOPIC ")


def test_a_gateway_that_goes_away_is_said_and_asked_again(
    gateway: Server, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(gateway)
    terminal = start("--url", gateway.url, "--interval", "0.2")
    terminal.wait_for("clicks")
    monkeypatch.setattr(gateway.policies, "policies", None)  # it answers with an error
    terminal.wait_for("NOT ANSWERED.*clicks")
    gateway.policies.policies = PolicySet(BASE)
    terminal.wait_for("Ctrl-C ends *\r?\n")
    assert terminal.end()[0] == 0
