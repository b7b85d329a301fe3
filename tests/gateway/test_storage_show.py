# `produce-gateway storage`: against a real admin server on a thread, which says what the test wants.

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gateway.commands import storage as show
from tests.gateway.test_supervisor import free_ports

GB = 10**9


def volume(name, free, soft=20.0 * GB, hard=10.0 * GB, factor=1.0):
    return {
        "name": name, "total_bytes": 100 * GB, "available_bytes": free, "consumed_bytes": 100 * GB - free,
        "soft_limit_bytes": soft, "hard_limit_bytes": hard, "factor": factor,
    }  # fmt: skip


def status(**more):
    return {
        "enabled": True, "source": "log-dirs", "mode": "enforce", "factor": 0.42, "state": "THROTTLE",
        "origin": "valid", "why": "broker 2 volume /b: 14.2 GB of 100.0 GB free", "observed_at": "2026-01-01T00:00:00Z",
        "age_s": 12.0, "check_interval_s": 60.0, "next_check_s": 48.0, "connected": True, "problem": "",
        "next": {"in_s": 348.0, "factor": 1.0, "state": "OPEN", "origin": "fallback", "why": "no valid factor"},
        "soft_limit_without_effect": False,
        "brokers": [
            {"id": 1, "unknown": "", "offline": ["/bad"], "volumes": [volume("/a", 80 * GB)]},
            {"id": 12, "unknown": "", "offline": [], "volumes": [volume("/long/name", int(14.2 * GB), factor=0.42)]},
        ],
        **more,
    }  # fmt: skip


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        code, body = self.server.said if self.path == "/v1/storage" else (404, b"here are /metrics")
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def admin():
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.say = lambda value, code=200: setattr(server, "said", (code, json.dumps(value).encode()))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_every_volume_and_what_is_in_force_is_shown(admin, capsys):
    admin.say(status())
    assert show.main(["--url", admin.url + "/"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "BROKER  VOLUME         TOTAL     FREE  FREE %  SOFT AT  HARD AT  FACTOR",
        "1       /a          100.0 GB  80.0 GB    80.0  20.0 GB  10.0 GB       1",
        "1       /bad         offline",
        "12      /long/name  100.0 GB  14.2 GB    14.2  20.0 GB  10.0 GB    0.42",
        "",
        "factor      0.42  THROTTLE (valid, 12 s old)",
        "reason      broker 2 volume /b: 14.2 GB of 100.0 GB free",
        "then        1  OPEN (fallback) in 6 min, unless the disks are seen again",
        "source      log-dirs",
        "next check  in 48 s, every 60 s",
    ]


def test_what_is_unknown_is_said(capsys):
    broker = {"id": 3, "unknown": "stale", "offline": [], "volumes": []}
    lines = show.describe(
        status(
            factor=0.0, state="PAUSE", origin="fail-safe", age_s=None, next=None, brokers=[broker], connected=False,
            problem="no answer", why="broker 3 has no snapshot", mode="observe", source="snapshots",
            soft_limit_without_effect=True,
        )
    )  # fmt: skip
    assert lines[1] == "3       snapshot stale"
    assert lines[3:] == [
        "factor      0  PAUSE (fail-safe, never seen, mode observe: nothing is held back)",
        "reason      broker 3 has no snapshot",
        "problem     no answer",
        "problem     the soft limit has no effect: there is no produce limit that could be lowered",
        "source      snapshots, not connected",
        "next check  in 48 s, every 60 s",
    ]


def test_volumes_without_limits_have_none():
    lines = show.describe(
        status(brokers=[{"id": 1, "unknown": "", "offline": [], "volumes": [volume("/a", 1, None, None)]}])
    )
    assert lines[1].split()[-3:] == ["-", "-", "1"]
    assert show.describe(status(brokers=[]))[0].startswith("factor")


def test_json_is_the_answer_itself(admin, capsys):
    admin.say(status())
    assert show.main(["--json", "--url", admin.url]) == 0
    assert json.loads(capsys.readouterr().out) == status()


def test_a_gateway_without_storage_protection_says_so(admin, capsys):
    admin.say({"enabled": False})
    assert show.main(["--url", admin.url]) == 0
    assert capsys.readouterr().out.startswith("storage protection is off")


def test_the_configuration_says_where_to_ask(admin, capsys, tmp_path):
    admin.say({"enabled": False})
    path = tmp_path / "gw.yaml"
    path.write_text(
        f"upstream: {{bootstrap_servers: 'b:1'}}\nadmin: {{host: 0.0.0.0, open: true, port: {admin.server_port}}}"
    )
    assert show.main([str(path)]) == 0
    path.write_text("upstream: {}")
    assert show.main([str(path)]) == 1
    assert capsys.readouterr().err == f"{path}:1: upstream.bootstrap_servers: is required\n"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ((503, b""), "/v1/storage: answers 503 Service Unavailable: is it a gateway's admin server?"),
        ((200, b"<html>"), "/v1/storage: does not answer as a gateway's admin server does"),
        ((200, b"[]"), "/v1/storage: does not answer as a gateway's admin server does"),
        ((200, b"\xff"), "/v1/storage: does not answer as a gateway's admin server does"),
    ],
)
def test_an_answer_that_is_none_is_one_line(admin, capsys, said, line):
    admin.said = said
    assert show.main(["--url", admin.url]) == 1
    assert capsys.readouterr().err == admin.url + line + "\n"


def test_a_gateway_that_is_not_there_is_one_line(capsys):
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    assert show.main(["--url", url]) == 1
    assert capsys.readouterr().err == (
        f"{url}/v1/storage: can't be asked: Connection refused: is the gateway running, and admin: right?\n"
    )
    assert show.main(["--url", "localhost:9190"]) == 1
    assert "is not a valid address; for example: http://127.0.0.1:9190" in capsys.readouterr().err


def test_two_places_to_ask_are_a_wrong_command_line(capsys):
    with pytest.raises(SystemExit) as ended:
        show.main(["gw.yaml", "--url", "http://x"])
    assert ended.value.code == 2
