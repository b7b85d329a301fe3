# `python -m tests.chaos.soak [SECONDS]` (or `make soak DURATION=…`; an hour if nothing is said): does anything grow?
# The three producers and the consumer of a scene at their limits, an operator who changes thresholds, and strangers who
# come and go all the time: clients with an id and a topic that nobody has heard of, and on all ports those who try to
# do harm (tests/hostile/live/everywhere.py). Prints a table every minute; exit code 1: a line through the figures,
# without the beginning (WARM), rises by more than noise, a process has ended, /readyz or a client that behaves was
# silenced (tests/hostile/live/unharmed.py), or the accounts are wrong.

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import statistics
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from gateway.embedded import wait_for
from tests.background import Background, Telling
from tests.chaos.faults import API_VERSIONS, nothing, resident
from tests.chaos.scene import BROKERS, HEADER, RECOVERY_S, Chaos, Fault, Scene
from tests.clients import processes
from tests.gateway.data import play
from tests.hostile.live import everywhere
from tests.hostile.live.unharmed import Good, unharmed, versions
from tests.integration.gateways import Gateway
from tests.integration.wire import Wire

HOUR_S = 3600.0
EVERY_S = 60.0
LEAST_SAMPLES = 10
WARM = 0.2  # of the time: caches and lists of names fill up to their bounds …
WARM_S = 150.0  # … which takes so long at least, or half of a short time
PER_S = 10.0  # strangers
PACE = 0.25  # of a scene's load: an hour of it fits on a disk
NOISE = 0.05  # of the mean: what a line may rise by
HELD_FILES = 60.0  # of strangers, more or less of whom are there when somebody counts
MEMORY = 512 * 2**20  # that a process may have more at any time; what stays is in the table
MIB = 2**20


class Measure(NamedTuple):
    """One thing that must stay as it is; `slack`: what it may rise by even where 5 % are less."""

    name: str
    slack: float
    form: str = "{:.0f}"


class Inventive(Background):
    """Opens connections, asks, produces to a topic that isn't there, and goes; from the beginning of its `with` on."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self._gateway = gateway
        self.came = self.turned_away = 0

    def _run(self) -> None:
        while not self._stop.wait(1 / PER_S):
            name = uuid.uuid4().hex
            try:
                with Wire(self._gateway.broker_port(random.randint(1, BROKERS))) as wire:
                    wire.send(API_VERSIONS)
                    wire.receive()
                    wire.produce(play.request(self.came, {f"made-up-{name}": [0]}, client_id=f"stranger-{name}"))
            except OSError:
                self.turned_away += 1
            self.came += 1


def measures(gateway: Gateway) -> dict[Measure, float]:
    """All of them, just now."""
    family = {"parent": gateway.process.pid, "control": gateway.child("gateway.control")}
    family |= {f"worker {number}": pid for number, pid in sorted(gateway.workers().items())}
    found: dict[Measure, float] = {}
    for name, pid in family.items():
        folder = processes.PROC / str(pid)
        found[Measure(f"{name} MiB", 8.0, "{:.1f}")] = resident(pid) / MIB
        found[Measure(f"{name} files", HELD_FILES)] = len(list((folder / "fd").iterdir()))
        found[Measure(f"{name} threads", 1.0)] = len(list((folder / "task").iterdir()))
    found[Measure("/metrics KiB", 4.0, "{:.1f}")] = len(gateway.metrics()) / 1024
    return found


@contextlib.contextmanager
def harmed(gateway: Gateway, good: Good) -> Iterator[list[str]]:
    """What strangers have done that they must not, once it is over."""
    found: list[str] = []
    try:
        with unharmed(gateway, good, memory=MEMORY) as seen:
            yield found
    except AssertionError as error:
        found.append(str(error))
    for name, took in (("/readyz", seen.ready), ("a client that behaves", seen.good), ("a bare server", seen.bare)):
        waits = sorted(each.waited for each in took)
        if waits:
            p99 = waits[int(0.99 * (len(waits) - 1))]
            print(
                f"{name:<22} asked {len(waits):>7,} times: p99 {1000 * p99:.0f} ms, longest {1000 * waits[-1]:.0f} ms"
            )
    for name, more in seen.more.items():
        print(f"{name:<22} had at most {more / MIB:+.0f} MiB")


def growth(times: Sequence[float], values: Sequence[float]) -> float:
    """By how much the line through these points rises from the first to the last of them. Its slope is the median of
    those between any two of them (Theil and Sen): what stands still but for a few moments of a starved machine, when
    strangers wait in hundreds, has none.
    """
    points = list(zip(times, values, strict=True))
    slopes = [(later - value) / (then - at) for (at, value), (then, later) in itertools.combinations(points, 2)]
    return statistics.median(slopes) * (times[-1] - times[0])


def main(duration_s: float) -> int:
    """The exit code."""
    every_s = min(EVERY_S, duration_s / LEAST_SAMPLES)
    samples: list[tuple[float, dict[Measure, float]]] = []
    faults: list[str] = []
    with ExitStack() as stack:
        settings, ports = stack.enter_context(everywhere.listeners(BROKERS))
        kafka = stack.enter_context(Chaos())
        scene = stack.enter_context(Scene(kafka, Fault("soak", nothing, pace=PACE, settings=settings)))
        gateway = scene.gateway
        good = functools.partial(versions, gateway.broker_port(1))
        with scene.squeeze, harmed(gateway, good) as found, Inventive(gateway) as inventive:
            others = Telling(everywhere.command(everywhere.all_ports(gateway, ports), duration_s))
            stack.callback(others.close)
            started = time.monotonic()
            while (now := time.monotonic() - started) < duration_s:
                samples.append((now, measures(gateway)))
                if len(samples) == 1:
                    print(f"{'minute':>6} {'strangers':>9}  " + "  ".join(each.name for each in samples[0][1]))
                said = "  ".join(
                    f"{each.form.format(value):>{len(each.name)}}" for each, value in samples[-1][1].items()
                )
                print(f"{now / 60:>6.1f} {inventive.came + others.progress:>9,}  {said}", flush=True)
                time.sleep(max(0.0, every_s * len(samples) - (time.monotonic() - started)))
            scene.progress(1)
        faults += found
        standing = len(scene.loads) * (BROKERS + 1) + 10
        wait_for("strangers to be gone", lambda: scene.gateway.metric("connections") <= standing, RECOVERY_S)
        row = scene.finish()
    print(
        f"\n{inventive.came:,} inventive clients, {inventive.turned_away} of them turned away;"
        f" {others.progress:,} connections of others on {len(everywhere.WAYS)} ports\n{HEADER}\n{row}"
    )
    faults += row.faults
    begin = max(WARM * duration_s, min(WARM_S, duration_s / 2))
    warm = [(at, found) for at, found in samples if at >= begin]
    for each in warm[0][1]:
        values = [found[each] for _, found in warm]
        rise = growth([at for at, _ in warm], values)
        most = max(each.slack, NOISE * statistics.fmean(values))
        print(f"{each.name:<18} {values[0]:>8.1f} to {values[-1]:>8.1f}, line {rise:+.1f} (at most {most:.1f})")
        faults += [f"{each.name} grows"] if rise > most else []
    print(f"FAILED: {'; '.join(faults)}" if faults else "passed: flat, and all accounted for")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else HOUR_S))
