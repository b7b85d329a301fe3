"""What a change of client quotas costs a running gateway, by the way it comes: CPU time of control and of the worker,
and for how long either had no turn for anybody else. A change of all quotas, and of one while the others stay.

    .venv/bin/python -m tests.bench.control.policy_change              # REST API and file, in front of the null broker
    .venv/bin/python -m tests.bench.control.policy_change --kafka      # a real broker: also AlterClientQuotas

The median of several changes, and the best. A pause is the longest time that an answer to GET /healthz, or to a Produce
request of another client, took while the change was made: with other work on the machine it is too long, never too
short. Its CPU time is that of all its threads (/proc), less what these questions cost.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import yaml

from gateway.embedded import EmbeddedCluster
from protocol.admin import quotas as wire
from protocol.admin.quotas import AlterClientQuotasRequest, EntityAlteration, EntityData, QuotaOperation
from tests.bench.cpu import command_line, process_cpu, tree_cpu
from tests.bench.java_producer import create_topic
from tests.bench.load import build_rawload
from tests.bench.processes import BenchError, free_ports
from tests.bench.targets import HOST, IDLE_THRESHOLDS, ROOT, Target, gateway, null_broker
from tests.gateway.data.play import request

PORTS: Final = 28_500
TOPIC: Final = "load"
KEY: Final = "producer_byte_rate"
SETTLE_S: Final = 1.0  # until everything that follows a change is done
PAUSE_S: Final = 0.005  # between two questions
QUOTAS: Final = 10_000
LARGE_ENOUGH: Final = 4 * 2**20  # bytes of an admin request


class Cost(NamedTuple):
    """Of one change, in seconds. `pause_control`, `pause_worker`: see above."""

    answered: float
    control: float
    worker: float
    pause_control: float
    pause_worker: float


class Pinger:
    """Asks one question again and again, in a thread. `asked`: how often; `longest`: seconds, of one answer."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.asked = 0
        self.longest = 0.0

    def __enter__(self) -> Pinger:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._over.wait(PAUSE_S):
            began = time.perf_counter()
            self._ask()
            self.longest = max(self.longest, time.perf_counter() - began)
            self.asked += 1


class Running:
    """A gateway with its control process and its worker."""

    def __init__(self, target: Target, admin: int, config: Path) -> None:
        self.target = target
        self.admin = admin
        self.config = config
        lines = {pid: command_line(pid) for pid in tree_cpu(target.pid or 0)}
        self.control, self.worker = (
            next(pid for pid, line in lines.items() if part in line) for part in ("gateway.control", "gateway.data")
        )

    def post(self, path: str, body: bytes) -> None:
        connection = http.client.HTTPConnection(HOST, self.admin, timeout=60)
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        if answer.status != 200:
            raise BenchError(f"POST {path}: {answer.status} {said[:500]!r}")

    @contextmanager
    def watched(self) -> Iterator[tuple[Pinger, Pinger]]:
        """Control and worker, asked all the time."""
        with contextlib.closing(http.client.HTTPConnection(HOST, self.admin, timeout=60)) as health:

            def ask_health() -> None:
                health.request("GET", "/healthz")
                health.getresponse().read()

            host, _, port = self.target.node.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=60) as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                frame = request(1, {TOPIC: [0]}, values=(b"x" * 100,), client_id="pinger")

                def produce() -> None:
                    client.sendall(frame)
                    read_frame(client)

                with Pinger(ask_health) as control, Pinger(produce) as worker:
                    yield control, worker


def read_frame(sock: socket.socket) -> bytes:
    size = int.from_bytes(_read(sock, 4), "big")
    return _read(sock, size)


def _read(sock: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        data = sock.recv(size - len(found))
        if not data:
            raise BenchError("the gateway closed the connection")
        found += data
    return bytes(found)


# --- the ways ---------------------------------------------------------------------------------------------------------


class Way(Protocol):
    """How a change comes. `name`: for people."""

    name: str

    def prepare(self, values: dict[str, int]) -> Callable[[], None]:
        """Makes the change of these users' quotas, which is then called."""


class Rest:
    """POST /v1/client-quotas:alter."""

    name = "REST"

    def __init__(self, running: Running) -> None:
        self._running = running

    def prepare(self, values: dict[str, int]) -> Callable[[], None]:
        entries = [
            {"entity": [{"type": "user", "name": user}], "ops": [{"key": KEY, "value": value}]}
            for user, value in values.items()
        ]
        body = json.dumps({"alterations": entries}).encode()
        return lambda: self._running.post("/v1/client-quotas:alter", body)


class Kafka:
    """AlterClientQuotas."""

    name = "AlterClientQuotas"

    def __init__(self, running: Running) -> None:
        self._address = running.target.node

    def prepare(self, values: dict[str, int]) -> Callable[[], None]:
        entries = tuple(
            EntityAlteration((EntityData("user", user),), (QuotaOperation(KEY, float(value)),))
            for user, value in values.items()
        )
        frame = wire.ALTER_CLIENT_QUOTAS.encode_request(AlterClientQuotasRequest(entries), 1, 1, b"bench")

        def change() -> None:
            host, _, port = self._address.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=60) as client:
                client.sendall(frame)
                answer = read_frame(client)
            said = wire.ALTER_CLIENT_QUOTAS.decode_response(answer, 0, len(answer), 1)[1]
            wrong = [row for row in said.entries if row.error_code]
            if wrong:
                raise BenchError(f"AlterClientQuotas: {wrong[0]}")

        return change


class File:
    """`client_quotas` of the configuration file, and POST /v1/reload."""

    name = "file"

    def __init__(self, running: Running) -> None:
        self._running = running
        self._settings: dict[str, Any] = yaml.load(running.config.read_text(), yaml.CSafeLoader)
        self._values: dict[str, int] = {}

    def prepare(self, values: dict[str, int]) -> Callable[[], None]:
        self._values |= values
        entries = [{"user": user, KEY: value} for user, value in self._values.items()]
        text = yaml.dump(self._settings | {"client_quotas": entries}, Dumper=yaml.CSafeDumper)

        def change() -> None:
            fresh = self._running.config.with_suffix(".new")
            fresh.write_text(text)
            fresh.replace(self._running.config)
            self._running.post("/v1/reload", b"{}")

        return change


def measure(running: Running, change: Callable[[], None]) -> Cost:
    def spent() -> list[tuple[float, int]]:
        pids = running.control, running.worker
        return [(process_cpu(pid), pinger.asked) for pid, pinger in zip(pids, pingers, strict=True)]

    with running.watched() as pingers:
        time.sleep(0.2)
        idle_from = spent()
        time.sleep(SETTLE_S)
        before = spent()
        each = [(cpu - from_cpu) / (asked - at) for (from_cpu, at), (cpu, asked) in zip(idle_from, before, strict=True)]
        for pinger in pingers:
            pinger.longest = 0.0
        began = time.perf_counter()
        change()
        answered = time.perf_counter() - began
        time.sleep(SETTLE_S)
        after = spent()
        used = [
            max(0.0, cpu - from_cpu - (asked - at) * cost)
            for (from_cpu, at), (cpu, asked), cost in zip(before, after, each, strict=True)
        ]
        return Cost(answered, *used, *(pinger.longest for pinger in pingers))


def run(stack: ExitStack, options: argparse.Namespace) -> dict[str, list[Cost]]:
    run_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="policy-change-")))
    ports = free_ports(PORTS, 30)
    more: dict[str, Any] = {"reload_interval": 0, "limits": {"max_admin_request": LARGE_ENOUGH}}
    if options.kafka:
        cluster = stack.enter_context(EmbeddedCluster())
        upstream, more = cluster.bootstrap_servers, more | {"internal_topics": "kafka"}
        create_topic(cluster, "load", 4)
    else:
        upstream, _ = stack.enter_context(null_broker(build_rawload(), ports, run_dir))
    target = stack.enter_context(
        gateway("gateway", upstream, ports + 10, IDLE_THRESHOLDS, run_dir, more=more, root=options.root)
    )
    running = Running(target, ports + 19, run_dir / "gateway.yaml")
    wait_until_ready(ports + 19)
    found: dict[str, list[Cost]] = {}
    ways: list[Way] = [Rest(running), *([Kafka(running)] if options.kafka else []), File(running)]
    for way in ways:
        if way.name not in options.only:
            continue
        # Users of each way's own: what is set at run time wins over the file.
        users = [f"{way.name}-{number}" for number in range(options.quotas)]
        for number in range(options.rounds + 1):
            everything = dict.fromkeys(users, 1000000 + 100 * number)
            for what, values in (
                (f"{len(users):,} quotas", everything), (f"one of {len(users):,}", {users[7]: 2_000_000 + number}),
            ):  # fmt: skip
                cost = measure(running, way.prepare(values))
                if number:  # the first one loads the API, and adds quotas instead of changing them
                    found.setdefault(f"{way.name}, {what}", []).append(cost)
    return found


def wait_until_ready(admin: int, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(HOST, admin, timeout=10)
        with contextlib.suppress(OSError):
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.05)
    raise BenchError("the gateway is not ready")


def table(found: dict[str, list[Cost]]) -> str:
    columns = ("answered", "control, CPU", "worker, CPU", "longest pause of control", "… of the worker")
    lines = [f"| Change, in ms: median (best) | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for what, costs in found.items():
        cells = [f"{1e3 * statistics.median(each):.0f} ({1e3 * min(each):.0f})" for each in zip(*costs, strict=True)]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quotas", type=int, default=QUOTAS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--root", type=Path, default=ROOT, help="of the checkout that is measured")
    parser.add_argument("--kafka", action="store_true", help="in front of a real broker, where policies are in a topic")
    parser.add_argument("--only", nargs="+", default=["REST", "AlterClientQuotas", "file"], metavar="WAY")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything started is stopped
    with ExitStack() as stack:
        found = run(stack, options)
    print(f"load {os.getloadavg()[0]:.1f}\n\n{table(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
