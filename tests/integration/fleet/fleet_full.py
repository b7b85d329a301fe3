# One resource group over a whole fleet: three brokers, two gateways with two workers each, real producers, 20 topics.
# Events follow each other (a gateway that was idle gets busy, a producer joins, the limit changes, a worker, a control
# process and a whole gateway are killed); after each the sum over all gateways is looked at, from two cycles on. What
# got in is taken from the gateways' own usage logs, second by second.
#
# `python -m tests.integration.fleet.fleet_full [SECONDS]` (or `make fleet`) looks for 30 s each and prints a table;
# exit code 1: a sum is more than 3 % off, a second above 1.1 times the limit, a producer got nothing, or lost
# something. test_fleet.py is a short form.

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

from gateway import embedded
from gateway.embedded import EmbeddedCluster, wait_for
from policies import usage
from tests.integration.fleet.fleet_load import Load, Task
from tests.integration.fleet.test_policy_fleet import Mortal
from tests.integration.gateways import create_topic

LIMIT = 12_000_000
LOWER = 8_000_000
TOPICS = 20
OFFER = 9_000_000
SMALL = 300_000
REQUEST = 900_000  # 7.5 % of the limit, and three seconds of a small one's offer
CYCLES_S = 2.0  # two of a second: what settling may take
CONNECT_S = 1.5  # until a producer that starts, or has lost a connection, is there (again)
OFF = 0.03  # of the limit, the sum of all
MOST = 1.1  # of the limit, in any second
BACK_S = 8.0  # how long is looked at a gateway whose control was killed and comes back
GROUP = "gold"


class Window(NamedTuple):
    """What got in after an event; bytes per second."""

    event: str
    limit: int
    rate: float
    seconds: list[float]
    producers: list[float]
    is_steady: bool = True  # nobody comes or goes meanwhile

    @property
    def faults(self) -> list[str]:
        """What must not be."""
        found = []
        if self.is_steady and abs(self.error) > OFF:
            found.append(f"sum off by {self.error:+.1%}")
        if self.worst > MOST:
            at = self.seconds.index(max(self.seconds))
            around = " ".join(f"{rate / self.limit:.2f}" for rate in self.seconds[max(0, at - 2) : at + 2])
            found.append(f"a second of {self.worst:.3f} ({around})")
        if min(self.producers) <= 0:
            found.append("a producer got nothing")
        return found

    @property
    def error(self) -> float:
        return self.rate / self.limit - 1

    @property
    def worst(self) -> float:
        """The fullest second, of the limit."""
        return max(self.seconds) / self.limit

    def __str__(self) -> str:
        shares = " ".join(f"{rate / 1e6:.1f}" for rate in self.producers)
        error = f"{self.error:+.1%}" if self.is_steady else f"({self.error:+.1%})"
        return (
            f"{self.event:<34} {self.limit / 1e6:>5.0f} {len(self.seconds):>4} {self.rate / 1e6:>7.2f} {error:>8}"
            f" {self.worst:>6.3f}   {', '.join(self.faults) or 'ok':<8}  {shares}"
        )


HEADER = (
    f"{'event':<34} {'limit':>5} {'s':>4} {'MB/s':>7} {'error':>8} {'worst':>6}   {'verdict':<8}  MB/s of each producer"
)


class Fleet:
    """The cluster's gateways, and what they did."""

    def __init__(self, kafka: EmbeddedCluster, gateways: int = 2, workers: int = 2, **settings: Any) -> None:
        name = uuid.uuid4().hex[:8]
        self.tenant = f"t{name}"
        self.kafka = kafka
        self.topics = [f"{self.tenant}.orders.{number:02}" for number in range(TOPICS)]
        for topic in self.topics:
            create_topic(kafka, topic, 3, min_insync_replicas="1")
        self.settings: dict[str, Any] = {
            "workers": workers,
            "policies_store": {"topic": f"__policies-{name}"},
            "usage_log": {"topic": f"__usage-{name}"},
            "resourceUsagePublishTopicName": f"__resource-usage-{name}",
            "resource_groups": {
                "groups": {GROUP: {"publishRateInBytes": LIMIT}},
                "tenants": {self.tenant: GROUP},
            },
            **settings,
        }
        self.gateways = [Mortal(kafka.bootstrap_servers, self.settings, node_ids=3) for _ in range(gateways)]
        self.loads: list[Load] = []

    def __enter__(self) -> Fleet:
        self._stack = ExitStack()
        for gateway in self.gateways:
            self._stack.enter_context(gateway)
        return self

    def __exit__(self, *error: Any) -> None:
        for load in self.loads:
            if load.process.poll() is None:
                embedded.reap_process(load.process)
        self._stack.__exit__(*error)

    def produce(self, at: int, rate: float = OFFER, topics: list[str] | None = None, **how: float) -> Load:
        """A producer whose first gateway is that one; it knows the others as well. `how`: see fleet_load.Task."""
        order = [*self.gateways[at:], *self.gateways[:at]]
        task = Task(",".join(gateway.bootstrap for gateway in order), rate, topics or self.topics, **how)  # type: ignore[arg-type]
        load = Load(task)
        self.loads.append(load)
        return load

    def set_limit(self, limit: int, at: int = 0) -> None:
        request = urllib.request.Request(
            f"{self.gateways[at].admin}/admin/v2/resourcegroup/{GROUP}",
            json.dumps({"publishRateInBytes": limit}).encode(),
            {"content-type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(request, timeout=30).close()

    def look(
        self, event: str, limit: int, window_s: float, after_s: float = CYCLES_S, *, is_steady: bool = True
    ) -> Window:
        """Wait two cycles, then look for so long. `event` has just happened."""
        time.sleep(after_s)
        start = time.time()
        acknowledged = [load.progress for load in self.loads]
        time.sleep(window_s)
        end = time.time()
        producers = [
            (load.progress - before) / (end - start)
            for load, before in zip(self.loads, acknowledged, strict=True)
            if load.process.poll() is None
        ]
        wait_for("the usage logs to come so far", lambda: self._spooled_until() >= end, 60)
        time.sleep(CONNECT_S)  # one that is busy was so far; intervals of the others end within the next second
        seconds = self.seconds(start, end)
        return Window(event, limit, sum(seconds) / len(seconds), seconds, producers, is_steady)

    def seconds(self, start: float, end: float) -> list[float]:
        """Bytes of the group that were accepted in each second from `start` to `end`, over all gateways."""
        found = [0.0] * int(end - start)
        for record in self._records():
            size = sum(
                row["bytes"]
                for row in record["rows"]
                if row["topic"].startswith(self.tenant) and row["outcome"] == "accepted"
            )
            begins, ends = record["start_ms"] / 1000 - start, record["end_ms"] / 1000 - start
            for second in range(max(0, int(begins)), min(len(found), int(ends) + 1)):
                shared = min(ends, second + 1) - max(begins, second)
                if shared > 0 and ends > begins:
                    found[second] += size * shared / (ends - begins)
        return found

    def _records(self) -> list[dict[str, Any]]:
        return [record for gateway in self.gateways for record in gateway.spooled() if record["kind"] == usage.INTERVAL]

    def _spooled_until(self) -> float:
        """Until when the first of the gateways that live has written down what it did."""
        living = [gateway for gateway in self.gateways if gateway.process.poll() is None]
        return max([record["end_ms"] / 1000 for gateway in living for record in gateway.spooled()[-10:]], default=0.0)


def play(fleet: Fleet, window_s: float) -> Iterator[Window]:
    """All events, one after the other."""
    first, second = fleet.gateways
    half = TOPICS // 2
    fleet.produce(0, topics=fleet.topics[:half])
    fleet.produce(0, topics=fleet.topics[half:])
    yield fleet.look("two producers at one gateway", LIMIT, window_s, after_s=CYCLES_S + 3)  # and their start
    fleet.produce(1)
    yield fleet.look("the idle gateway gets busy", LIMIT, window_s, after_s=CYCLES_S + CONNECT_S)
    fleet.produce(1, rate=2_000_000)
    yield fleet.look("a small producer joins", LIMIT, window_s, after_s=CYCLES_S + CONNECT_S)
    fleet.set_limit(LOWER)
    yield fleet.look("the limit is lowered", LOWER, window_s)
    fleet.set_limit(LIMIT, at=1)
    yield fleet.look("the limit is raised", LIMIT, window_s)
    os.kill(first.worker(0), signal.SIGKILL)
    yield fleet.look("a worker is killed", LIMIT, window_s, after_s=CYCLES_S + CONNECT_S)
    control = second.child("gateway.control")
    os.kill(control, signal.SIGKILL)
    # Both sides have changed in full after two cycles; what is known of the second before is a sum over that second.
    yield fleet.look("a control process is killed …", LIMIT, BACK_S, after_s=CYCLES_S + 1.0, is_steady=False)
    wait_for("all to be back", lambda: second.metric("fleet_members") == first.metric("fleet_members") == 4, 60)
    yield fleet.look("… and is back", LIMIT, window_s)
    second.murder()
    second.is_dead = True
    yield fleet.look("a gateway is killed", LIMIT, window_s, after_s=CYCLES_S + CONNECT_S)


def play_requests(fleet: Fleet, window_s: float) -> Iterator[Window]:
    """Requests that are large for those who send them, and producers that come and go."""
    gateways, number = len(fleet.gateways), iter(range(TOPICS))
    half = TOPICS // 2
    fleet.produce(0, topics=fleet.topics[:half])
    fleet.produce(0, topics=fleet.topics[half:])
    for count in (2, 4):
        for _ in range(count):
            topic = next(number)
            fleet.produce(topic % gateways, SMALL, [fleet.topics[topic]], request=REQUEST)
        seen = f"{len(fleet.loads) - 2} small ones, large requests"
        yield fleet.look(seen, LIMIT, window_s, after_s=CYCLES_S + 2 * REQUEST / SMALL)
    fleet.produce(gateways - 1, turn_s=2.0)
    yield fleet.look("and one in turns of 2 s", LIMIT, window_s, after_s=CYCLES_S + CONNECT_S)


def main() -> int:
    window_s = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    faults = 0
    with EmbeddedCluster(3) as kafka:
        for title, gateways, workers, events in (
            ("two gateways with two workers each", 2, 2, play),
            ("one gateway with four workers", 1, 4, play_requests),
            ("four gateways with one worker each", 4, 1, play_requests),
        ):
            print(title, HEADER, sep="\n", flush=True)
            with Fleet(kafka, gateways, workers) as fleet:
                for window in events(fleet, window_s):
                    print(window, flush=True)
                    faults += len(window.faults)
                for load in fleet.loads:
                    sent, acknowledged, failed = load.finish()
                    print(f"producer: {sent} records sent, {acknowledged} acknowledged, {failed} failed")
                    faults += sent != acknowledged
    print(f"FAILED: {faults} of what must not be" if faults else "passed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
