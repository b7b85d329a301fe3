"""What /metrics costs control, by topics: CPU time of a scrape over HTTP and of taking workers' intervals, memory, and
how long the event loop's tasks wait meanwhile. Control's own registry and admin server, fed as by two workers.

    .venv/bin/python -m tests.bench.control.metrics_cost                            # a table, in Markdown
    .venv/bin/python -m tests.bench.control.metrics_cost --topics 10000 --places 3  # each topic on all three brokers

Active: between two scrapes each topic has had bytes that were accepted, rejected, delayed and refused by the broker, of
two clients at two workers, and has new rates under a threshold. Idle: nothing new. CPU time is that of all threads: the
least, the median and the most of `--scrapes`. Waits: the longest of each scrape. Each line is a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path
from statistics import median
from typing import Final
from unittest import mock

import trio

from gateway.channel import UsageInterval, UsageRow, WorkerRates
from gateway.control.admin import application
from gateway.control.http_server import serve_http
from gateway.control.metrics import GatewayMetrics
from policies.thresholds.broker_limits import BrokerRate, TopicRate

BROKERS: Final = 3
WORKERS: Final = 2
THRESHOLD: Final = 1e6
NAP_S: Final = 0.001
SIZES: Final = ((1000, 1), (10_000, 1), (10_000, 3))
EFFECTS: Final = frozenset({("rejected", "topic-threshold"), ("rejected", "fence"), ("delayed", "topic-threshold"),
                            ("dropped", "connection-lost")})  # fmt: skip
SEEN: Final = (
    ("accepted", ""),
    ("rejected", "topic-threshold"),
    ("delayed", "topic-threshold"),
    ("errored", "NOT_ENOUGH_REPLICAS"),
)
COLUMNS: Final = (
    *("Topics × brokers of each", "Lines", "MB", "A scrape, active", "A scrape, idle", "Longest wait of others"),
    *("A worker's interval taken", "Memory", "gzip -1, if it were"),
)
SCRAPER: Final = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
for _ in sys.stdin:
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    while response.read(1 << 16):
        pass
    print(response.status, flush=True)
"""


def places_of(topics: int, places: int) -> list[tuple[int, str]]:
    """Pairs of broker and topic: each topic has leaders on so many brokers."""
    names = [f"team-{topic % 97}.orders-of-region-{topic}" for topic in range(topics)]
    return [((topic + n) % BROKERS + 1, name) for topic, name in enumerate(names) for n in range(places)]


class Control:
    """What control has for /metrics."""

    def __init__(self, topics: int, places: int) -> None:
        self.pairs = places_of(topics, places)
        self.metrics = GatewayMetrics(max_topics=len(self.pairs))
        self.metrics.set_known_topics({topic for _, topic in self.pairs})
        self.metrics.produced.expect_effects(EFFECTS)
        self.taking: list[float] = []  # CPU seconds of an interval

    def hear(self, seq: int) -> None:
        """Of each worker, an interval and rates."""
        for worker in range(WORKERS):
            interval = self._interval(worker, seq)
            began = time.process_time()
            self.metrics.add_interval(interval)
            self.taking.append(time.process_time() - began)
        self.metrics.set_rates(*(self._rates(worker, seq) for worker in range(WORKERS)))

    def _interval(self, worker: int, seq: int) -> UsageInterval:
        rows = tuple(
            UsageRow(broker, topic, "User:a", f"app-{n % 200}-{worker}", *seen, 1000 + seq + n, 10, 1, 3, repeats=0)
            for n, (broker, topic) in enumerate(self.pairs)
            for seen in SEEN
        )
        return UsageInterval(
            f"boot-{worker}", worker, seq, 1000 * seq, 1000 * seq + 1000, rows, {"requests": len(rows)}
        )

    def _rates(self, worker: int, seq: int) -> WorkerRates:
        topics: dict[int, list[TopicRate]] = {broker: [] for broker in range(1, BROKERS + 1)}
        for n, (broker, topic) in enumerate(self.pairs):
            topics[broker].append(TopicRate(topic, 1e5 / 7 + n + seq / 3 + worker / 9, THRESHOLD, False))
        return WorkerRates(tuple(BrokerRate(broker, 1e9 / 7, 0.0, 1e3 / 7, 2e9, own) for broker, own in topics.items()))


@mock.patch.object(application, "EXPOSITION_S", 0.0)  # each scrape costs what it costs
async def measure(topics: int, places: int, scrapes: int) -> dict[str, list[float]]:
    """Seconds and bytes."""
    gc.collect()
    gc.freeze()  # as control does
    before = _resident()
    control, cost, waits = Control(topics, places), [], []
    with socket.create_server(("127.0.0.1", 0)) as sock:
        command = [sys.executable, "-c", SCRAPER, str(sock.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as scraper:  # noqa: ASYNC220
            assert scraper.stdin is not None
            assert scraper.stdout is not None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve_http, sock, application.AdminApplication(control.metrics.render_text, list))
                for scrape in range(2 * scrapes + 2):
                    if scrape % 2 == 0:
                        control.hear(scrape)
                    waited = [0.0]
                    began = time.process_time()
                    async with trio.open_nursery() as meanwhile:
                        meanwhile.start_soon(_look, waited)
                        scraper.stdin.write(b"\n")
                        scraper.stdin.flush()
                        assert await trio.to_thread.run_sync(scraper.stdout.readline) == b"200\n"
                        meanwhile.cancel_scope.cancel()
                    cost.append(time.process_time() - began)
                    waits.append(max(waited))
                scraper.stdin.close()
                nursery.cancel_scope.cancel()
    memory = _resident() - before
    text = b"".join(control.metrics.render_text())
    began = time.process_time()
    zipped = zlib.compress(text, 1)
    return {
        "active": cost[2::2],
        "idle": cost[3::2],
        "waits": waits,
        "taking": control.taking,
        "sizes": [text.count(b"\n"), len(text), memory, len(zipped)],
        "zipping": [time.process_time() - began],
    }


async def _look(waits: list[float]) -> None:
    """Notes how late a task gets its turn."""
    while True:
        began = time.perf_counter()
        await trio.sleep(NAP_S)
        waits.append(time.perf_counter() - began - NAP_S)


def _resident() -> int:
    status = Path("/proc/self/status").read_text("ascii", "replace")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def _ms(seconds: list[float]) -> str:
    return f"{min(seconds) * 1e3:.0f}, {median(seconds) * 1e3:.0f}, {max(seconds) * 1e3:.0f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=0)
    parser.add_argument("--places", type=int, default=1, help="brokers with leaders of a topic")
    parser.add_argument("--scrapes", type=int, default=10, help="of each kind, beside a first one")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)  # of one size, for the table
    options = parser.parse_args()
    if options.json:
        json.dump(trio.run(measure, options.topics, options.places, options.scrapes), sys.stdout)
        return 0
    print(f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", sep="\n")
    for topics, places in [(options.topics, options.places)] if options.topics else SIZES:
        command = [sys.executable, "-m", "tests.bench.control.metrics_cost", "--json", "--topics", str(topics)]
        command += ["--places", str(places), "--scrapes", str(options.scrapes)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        lines, size, memory, zipped = found["sizes"]
        print(
            f"| {topics:,} × {places} | {lines:,} | {size / 1e6:.1f} | {_ms(found['active'])} | {_ms(found['idle'])} "
            f"| {_ms(found['waits'])} | {_ms(found['taking'])} | {memory / 1e6:.0f} MB "
            f"| {found['zipping'][0] * 1e3:.0f} ms, {zipped / 1e6:.1f} MB |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
