# The log of a whole gateway, whose cluster is away and whose clients are strangers: every process writes lines of JSON,
# one event each, and no password or token is in them.

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import embedded

SECRETS = [f"canary-{name}-0123456789" for name in ("upstream", "admin", "guess", "client")]
UPSTREAM, ADMIN, GUESS, CLIENT = SECRETS
CONFIG = """
upstream:
  bootstrap_servers: 127.0.0.1:1
  security.protocol: SASL_PLAINTEXT
  sasl.mechanism: PLAIN
  sasl.username: gateway
  sasl.password: {upstream}
  metadata_refresh: 500ms
listener: {{port: {port}}}
admin: {{port: {admin_port}, tokens: [{admin}]}}
health: {{port: {health_port}}}
usage_log: {{spool_dir: {spool}}}
drain_timeout: 3s
log: {{format: json, levels: {{gateway.cluster: debug}}}}
"""


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come about in time")


class Served:
    def __init__(self, folder: Path) -> None:
        self.admin_port = embedded.find_free_port(3)
        self.port = self.admin_port + 1
        file, self.log = folder / "gw.yaml", folder / "log"
        names = {"upstream": UPSTREAM, "admin": ADMIN, "spool": folder / "spool"}
        ports = {"port": self.port, "admin_port": self.admin_port, "health_port": self.admin_port + 2}
        file.write_text(CONFIG.format(**ports, **names))
        with self.log.open("wb") as out:
            self.process = subprocess.Popen([sys.executable, "-m", "gateway", "serve", str(file)], stderr=out)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text("utf-8").splitlines()]

    def has(self, words: str) -> bool:
        return any(words in event["event"] for event in self.events)

    def ask(self, path: str, token: str = "", method: str = "GET") -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin_port}{path}", headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    gateway = Served(tmp_path)
    try:
        yield gateway
    finally:
        gateway.process.kill()
        gateway.process.wait()


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the worker in /proc")
def test_every_line_of_every_process_is_one_event_and_none_shows_a_secret(served: Served) -> None:
    until(lambda: served.ask("/healthz") == 200)
    until(lambda: served.has("does not answer"))
    assert served.ask("/v1/thresholds", GUESS, "PATCH") >= 400
    assert served.ask(f"/v1/nothing?token={GUESS}") == 401
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as stranger:
        stranger.sendall(f"password={CLIENT}\r\n\r\n".encode() * 4)
    (worker,) = [
        pid for pid in children(served.process.pid) if "gateway.data" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(worker, signal.SIGKILL)
    until(lambda: served.has("worker 0 ended (SIGKILL)"))
    served.process.terminate()
    assert served.process.wait(60) == 0
    events = served.events
    assert {"gateway.supervisor", "gateway.cluster"} <= {event["logger"] for event in events}
    assert all(event.keys() >= {"timestamp", "level", "logger", "event"} for event in events)
    whole = served.log.read_text("utf-8")
    assert [secret for secret in SECRETS if secret in whole] == []
