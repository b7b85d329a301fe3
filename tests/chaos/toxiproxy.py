# Toxiproxy (Shopify's), for everything that a network does to connections: it is built once from its Go module, of one
# version, into the cache that Kafka is in too, and runs as a process that ends with the test.

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from gateway import embedded
from gateway.embedded import wait_for
from tests.deploy.go_programs import built

VERSION = "v2.12.0"


def build() -> Path:
    """The program; the first call on a machine fetches and compiles it, which takes about a minute."""
    return built("github.com/Shopify/toxiproxy/v2/cmd/server", VERSION, "server", folder="toxiproxy")


class Toxiproxy:
    """A running proxy.

    Args:
        ways: (where it listens, where it passes connections on to), each as host:port, by a name of the caller's.
    """

    def __init__(self, ways: Mapping[str, tuple[str, str]]) -> None:
        self._ways = ways
        self._port = embedded.find_free_port()

    def __enter__(self) -> Toxiproxy:
        command = [str(build()), "-host", embedded.HOST, "-port", str(self._port)]
        self._process = embedded.spawn_process(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for("toxiproxy", self._answers)
        for name, (listen, upstream) in self._ways.items():
            self._ask("POST", "/proxies", {"name": name, "listen": listen, "upstream": upstream, "enabled": True})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        embedded.reap_process(self._process)

    @contextlib.contextmanager
    def toxic(
        self, names: Sequence[str], kind: str, streams: Sequence[str] = ("upstream", "downstream"), **attributes: int
    ) -> Iterator[None]:
        """So it is on these ways until the `with` ends, also for connections that stand; kinds are toxiproxy's."""
        put = []
        for name in names:
            for stream in streams:
                toxic = {"name": f"{kind}-{stream}", "type": kind, "stream": stream, "attributes": attributes}
                self._ask("POST", f"/proxies/{name}/toxics", toxic)
                put.append(f"/proxies/{name}/toxics/{kind}-{stream}")
        try:
            yield
        finally:
            for path in put:
                self._ask("DELETE", path)

    def _answers(self) -> bool:
        try:
            self._ask("GET", "/version")
        except OSError:
            return False
        return True

    def _ask(self, method: str, path: str, body: Any = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://{embedded.HOST}:{self._port}{path}"
        urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=30).close()
