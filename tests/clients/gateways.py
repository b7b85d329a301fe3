# A gateway as an operator starts it: `python -m gateway serve CONFIG`, its ports, its processes, its end.

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from gateway import embedded
from tests.clients import processes

READY_TIMEOUT_S = 120.0
DRAIN_S = 90.0  # drain_timeout is 20 s, and a machine may be busy


class GatewayFailed(AssertionError):
    """It did not come up, or did not end well; with what it logged."""


class Gateway:
    """A running gateway in front of `upstream`; `settings` are sections of the configuration file.

    Attributes:
        bootstrap: where clients connect first, unless `settings` have listeners of their own.
        admin: base URL of /metrics and /readyz.
    """

    def __init__(self, upstream: str, settings: dict[str, Any] | None = None, node_ids: int = 3) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="produce-gateway-")
        folder = Path(self._folder.name)
        # bootstrap, then port + 1 + node id for 1..node_ids, then admin and health
        self.port = embedded.find_free_port(node_ids + 4)
        self._admin_port = self.port + node_ids + 2
        self.bootstrap = f"{embedded.HOST}:{self.port}"
        self.admin = f"http://{embedded.HOST}:{self._admin_port}"
        self.health = f"http://{embedded.HOST}:{self._admin_port + 1}"
        config: dict[str, Any] = {
            "upstream": {"bootstrap_servers": upstream},
            "listener": {"host": embedded.HOST, "port": self.port},
            "admin": {"host": embedded.HOST, "port": self._admin_port},
            "health": {"host": embedded.HOST, "port": self._admin_port + 1},
            "usage_log": {"spool_dir": str(folder / "spool")},
            # A fleet of its own: limits hold over all gateways that share this topic, and tests share a cluster.
            "resourceUsagePublishTopicName": f"__produce_gateway_resource_usage_{self.port}",
        }
        self._file = folder / "gateway.yaml"
        given = dict(settings or {})
        given["usage_log"] = {
            **config["usage_log"],
            **given.get("usage_log", {}),
        }  # never a spool in the working directory
        given["admin"] = config["admin"] | given.get("admin", {})
        if "listeners" in given:
            own = config.pop("listener")
            given["listeners"] = {name: own | listener for name, listener in given["listeners"].items()}
        else:
            given["listener"] = config["listener"] | given.get("listener", {})
        self._file.write_text(yaml.safe_dump(config | given))
        self._log = folder / "log"
        self.process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "gateway", "serve", str(self._file)]
        with open(self._log, "ab") as log:
            return embedded.spawn_process(command, stdout=log, stderr=log, cwd=Path(__file__).parents[2])

    def broker_port(self, node_id: int) -> int:
        return self.port + 1 + node_id

    def ports(self, node_ids: int = 3) -> set[int]:
        return {self.port, *(self.broker_port(node) for node in range(1, node_ids + 1))}

    def pids(self) -> set[int]:
        """The parent, the control process, the workers."""
        return processes.tree(self.process.pid)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.admin}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    def restart(self) -> int:
        """SIGTERM, and the same once more; the exit status."""
        status = embedded.reap_process(self.process, DRAIN_S)
        self.process = self._spawn()
        self.__enter__()
        return status

    def __enter__(self) -> Gateway:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self.log()[-3000:]
                self._end(None)
                raise GatewayFailed(f"the gateway is not ready (exit status {self.process.poll()}): {said}")
            time.sleep(0.05)
        return self

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.admin}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        said = self.log()
        status = self._end(DRAIN_S)
        if kind is None and status != 0:
            raise GatewayFailed(f"the gateway ended with {status}: {said[-3000:]}")

    def _end(self, terminate_s: float | None) -> int:
        children = self.pids()
        status = embedded.reap_process(self.process, terminate_s)
        self._folder.cleanup()
        left = {pid for pid in children if (processes.PROC / str(pid)).exists() and pid != self.process.pid}
        if status == 0 and left:
            raise GatewayFailed(f"the gateway left processes behind: {[processes.command_of(pid) for pid in left]}")
        return status
