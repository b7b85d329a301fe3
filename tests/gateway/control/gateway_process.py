# A whole gateway as a user starts it, with its log and its admin port.

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from gateway.embedded import find_free_port
from policies import usage
from tests.gateway.control.null_broker import NullBroker

DEADLINE_S = 60.0
Found = TypeVar("Found")


class Gateway:
    """`produce-gateway serve`, its log and its admin port."""

    def __init__(self, path: Path, upstream: str, extra: str = "", spool: Path | None = None, files: int = 0) -> None:
        first = find_free_port(11)
        self.admin, self.port, self.health = first, first + 1, first + 10
        self.spool = spool or path / "spool"
        self.config = config = path / f"gw-{first}.yaml"
        config.write_text(
            f"upstream: {{bootstrap_servers: '{upstream}', metadata_refresh: 300ms}}\n"
            f"listener: {{port: {self.port}}}\nadmin: {{port: {self.admin}}}\n"
            f"health: {{port: {self.health}}}\n"
            f"usage_log: {{spool_dir: {self.spool}}}\ngateway_id: gw\n{extra}\n"
        )
        command = [sys.executable, "-m", "gateway", "serve", str(config)]
        if files:
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        self._said = self.process.stderr
        os.set_blocking(self._said.fileno(), False)
        self.log = ""

    def read_log(self, seconds: float = 0.0) -> str:
        if select.select([self._said], [], [], seconds)[0]:
            self.log += (self._said.read() or b"").decode()
        return self.log

    def wait_for(self, what: str, condition: Callable[[], Found]) -> Found:
        deadline = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            self.read_log(0.02)
            assert time.monotonic() < deadline, f"{what}; the log says:\n{self.log}"
        return found

    def wait_for_log(self, pattern: str, count: int = 1) -> None:
        self.wait_for(pattern, lambda: len(re.findall(pattern, self.read_log())) >= count)

    def get(self, path: str, port: int = 0) -> tuple[int, str]:
        """From the admin port, or that one."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.admin, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def ready(self) -> Gateway:
        self.wait_for("ready", lambda: self.get("/readyz")[0] == 200)
        return self

    def put(self, path: str, value: dict[str, int]) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request("PUT", path, json.dumps(value), {"Content-Type": "application/json"})
            return connection.getresponse().status

    def metric(self, name: str, **labels: str) -> float | None:
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == f"produce_gateway_{name}" and sample.labels == labels:
                    return sample.value
        return None

    def child(self, module: str) -> int:
        """The pid of the child that runs this module; 0: there is none."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(stat[1]) == self.process.pid and module.encode() in (entry / "cmdline").read_bytes():
                    return int(entry.name)
        return 0

    def records(self) -> list[Any]:
        files = sorted(self.spool.glob("*.jsonl"))
        return [usage.decode_record(line) for file in files for line in file.read_bytes().splitlines()]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.finish()

    def finish(self) -> int:
        code = self.process.wait(timeout=DEADLINE_S)
        os.set_blocking(self._said.fileno(), True)
        self.log += self._said.read().decode()
        assert "Traceback" not in self.log, self.log
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=DEADLINE_S)
        self._said.close()


def at(broker: NullBroker) -> str:
    return f"127.0.0.1:{broker.port}"
