# A disk of 200 MB under one of three brokers, producers at full load, `scope: affected`: the topics with a replica on
# it pause before it is full, all others keep their rate; reading and deleting go on. Twice: records are deleted by an
# operator, and then by retention, which keeps the disk where it is from then on. What is free is asked from the kernel,
# what was acknowledged from the producers, and what the gateway expected from its API.
#
# `python -m tests.integration.storage.disk_full [--plot FILE.svg] [--json FILE]` (or `make disk`) takes three minutes
# and prints a table; exit code 1: something was not so. test_storage_disk.py has a short form. Mounting a disk takes
# root.

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from gateway.embedded import EmbeddedCluster, wait_for
from tests.background import Background
from tests.integration.gateways import Gateway, end_offsets, read_topic
from tests.integration.storage.disks import SmallDisk, Watch
from tests.integration.storage.test_storage_disk import BROKER, DISK, MB, create_at, delete_all

TOTAL = 3 * MB  # bytes per second of each broker
INTERVAL_S = 1.0
HARD = 100 * MB  # the totals of both brokers that fill it, for a look and the 15 s of a request, are 96 MB
RECORD = 10_000
KEPT = 5 * MB  # by retention, of each topic
SETTINGS = {
    "thresholds": {"total.bytes.in.per.sec.threshold": TOTAL, "on_exceed": "delay"},
    "storage": {
        "check_interval": f"{INTERVAL_S:g}s",
        "scope": "affected",
        "hard": {"type": "MinFreeBytes", "level": HARD},
        "throttle.factor.fallback": 0.0,
    },
}
# By topic: its brokers, the first of which leads it, and the bytes per second that are offered; None: as much as is let
# in.
TOPICS: dict[str, tuple[list[int], float | None]] = {
    "full-leads": ([3, 2], None),
    "full-follows": ([1, 3], 1.2 * MB),
    "free-1": ([1, 2], 1.2 * MB),
    "free-2": ([2, 1], None),
}
AFFECTED = [topic for topic, (brokers, _) in TOPICS.items() if 3 in brokers]
FREE = [topic for topic in TOPICS if topic not in AFFECTED]
PAUSED_S, KEPT_S = 20.0, 30.0
STARTS_S = 4.0  # until producers are there, and until what waited is through
LEAST = 0.9  # of its rate before, which a topic must keep
SEEN_S = 120.0
FORECAST_S = 10.0  # before the pause, from where on its time must be known …
FORECAST_OFF_S = 8.0  # … to this: what is new is known in full after twice the 10 s of its mean


class Offer(Background):
    """A producer of one topic, librdkafka, idempotent. `per_s`: bytes; None: as much as gets in."""

    def __init__(self, bootstrap: str, topic: str, per_s: float | None) -> None:
        super().__init__()
        self._topic, self._per_s = topic, per_s
        self.acknowledged = 0
        self.failed: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": f"app-{topic}",
                "enable.idempotence": True,
                "linger.ms": 20,
                "batch.size": 200_000,
                "queue.buffering.max.kbytes": 2_000,  # little is saved up while it is paused
                "log_level": 2,
                "on_delivery": self._settle,
            }
        )

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(SEEN_S)

    def _settle(self, error: Any, _: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed.append(error.str())

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._stop.is_set():
            due = sent if self._per_s is None else (time.monotonic() - began) * self._per_s / RECORD
            if sent > due:
                self._producer.poll(0.01)
                continue
            try:
                self._producer.produce(self._topic, bytes(RECORD), partition=0)
                sent += 1
            except BufferError:
                self._producer.poll(0.05)
                sent += 0 if self._per_s is None else 1  # not made up for later
            self._producer.poll(0)


class Look(NamedTuple):
    """`at`: seconds since the first one. `acknowledged`: records in all, by topic. `hard_s`: until the hard limit, by
    the gateway's forecast; None: never, or not known.
    """

    at: float
    free: int
    paused: bool
    fill: float | None
    hard_s: float | None
    acknowledged: dict[str, int]


class Looks(Background):
    """Four times a second."""

    def __init__(self, gateway: Gateway, disk: SmallDisk, offers: dict[str, Offer]) -> None:
        super().__init__()
        self._gateway, self._disk, self._offers = gateway, disk, offers
        self._began = time.monotonic()
        self.all: list[Look] = []

    def _run(self) -> None:
        while not self._stop.wait(0.25):
            status = storage(self._gateway)
            (volume,) = next(each["volumes"] for each in status["brokers"] if each["id"] == 3)
            forecast = volume["forecast"] or {}
            acknowledged = {topic: offer.acknowledged for topic, offer in self._offers.items()}
            self.all.append(
                Look(
                    time.monotonic() - self._began,
                    self._disk.free,
                    bool(status["affected"]) and status["factor"] == 0,
                    forecast.get("fill_bytes_per_s"),
                    forecast.get("hard_limit_in_s"),
                    acknowledged,
                )
            )

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    @property
    def paused(self) -> bool:
        return bool(self.all) and self.all[-1].paused

    def rate(self, topic: str, start: float, end: float) -> float:
        """Acknowledged bytes per second."""
        within = [look for look in self.all if start <= look.at <= end]
        first, last = within[0], within[-1]
        return (last.acknowledged[topic] - first.acknowledged[topic]) * RECORD / (last.at - first.at)


def storage(gateway: Gateway) -> Any:
    with urllib.request.urlopen(f"{gateway.admin}/v1/storage", timeout=30) as answer:
        return json.load(answer)


def keep(gateway: Gateway, topics: list[str], size: int) -> None:
    """Retention by bytes, through the gateway."""
    entry = [ConfigEntry("retention.bytes", str(size), incremental_operation=AlterConfigOpType.SET)]
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entry) for topic in topics]
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap, "log_level": 2})
    for future in admin.incremental_alter_configs(resources).values():
        future.result(120)


class Phase(NamedTuple):
    name: str
    start: float
    end: float


class Run:
    """What happened, and what should not have."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.faults: list[str] = []
        self.said: list[str] = []

    def check(self, is_so: bool, text: str) -> None:
        self.said.append(text)
        if not is_so:
            self.faults.append(text)

    def play(self) -> None:
        with ExitStack() as stack:
            disk = stack.enter_context(SmallDisk(DISK))
            kafka = stack.enter_context(EmbeddedCluster(3, BROKER, log_dirs={3: [disk.path / "logs"]}))
            gateway = stack.enter_context(Gateway(kafka.bootstrap_servers, SETTINGS, node_ids=3))
            for topic, (brokers, _) in TOPICS.items():
                create_at(kafka, topic, brokers)
            self.disk = disk.total
            watch = stack.enter_context(Watch(disk))
            offers = {topic: Offer(gateway.bootstrap, topic, per_s) for topic, (_, per_s) in TOPICS.items()}
            self.looks = looks = Looks(gateway, disk, offers)
            for each in (*offers.values(), looks):
                stack.enter_context(each)
            self._pause_and_delete(gateway, looks)
            self._pause_and_keep(gateway, looks)
            for offer in offers.values():
                offer.finish()
            looks.finish()
            self.lowest = watch.lowest
            self._check(kafka, gateway, offers)
            gateway.stop()

    def _await(self, what: str, paused: bool) -> float:
        wait_for(what, lambda: self.looks.paused == paused, SEEN_S)
        return self.looks.now

    def _pause_and_delete(self, gateway: Gateway, looks: Looks) -> None:
        began = self._await("producers", paused=False)
        full = self._await("PAUSE", paused=True)
        self.phases.append(Phase("open", began + STARTS_S, full))
        time.sleep(STARTS_S)  # what was under way has come
        counts = {topic: looks.all[-1].acknowledged[topic] for topic in AFFECTED}
        read = {topic: len(read_topic_of(gateway, topic)) for topic in AFFECTED}
        self.check(read == counts, f"read meanwhile of the paused topics: {read}, acknowledged: {counts}")
        time.sleep(max(0.0, full + PAUSED_S - looks.now))
        self.phases.append(Phase("paused", full + STARTS_S, looks.now))
        delete_all(gateway, {(topic, 0): OFFSET_END for topic in AFFECTED})
        self.deleted = looks.now

    def _pause_and_keep(self, gateway: Gateway, looks: Looks) -> None:
        again = self._await("OPEN", paused=False)
        full = self._await("PAUSE", paused=True)
        self.phases.append(Phase("records deleted", again + STARTS_S, full))
        time.sleep(STARTS_S)
        keep(gateway, AFFECTED, KEPT)
        self.kept = looks.now
        again = self._await("OPEN", paused=False)
        time.sleep(STARTS_S + KEPT_S)
        self.phases.append(Phase("retention", again + STARTS_S, looks.now))

    def _check(self, kafka: EmbeddedCluster, gateway: Gateway, offers: dict[str, Offer]) -> None:
        looks, before = self.looks, self.phases[0]
        self.check(
            kafka.broker(3).is_running and self.lowest > 0, f"least free: {self.lowest / MB:.1f} MB; broker 3 lives"
        )
        for phase in self.phases:
            for topic in FREE:
                kept = looks.rate(topic, *phase[1:]) / looks.rate(topic, *before[1:])
                self.check(kept >= LEAST, f"{topic}, {phase.name}: {kept:.0%} of its rate before")
            for topic in AFFECTED:
                rate = looks.rate(topic, *phase[1:])
                self.check((rate == 0) == (phase.name == "paused"), f"{topic}, {phase.name}: {rate / MB:.2f} MB/s")
        for topic, offer in offers.items():
            inside = end_offsets(kafka, topic)
            self.check(
                inside == offer.acknowledged and not offer.failed,
                f"{topic}: {offer.acknowledged} records acknowledged, {inside} in the log, {len(offer.failed)} failed",
            )
        held = [gateway.metric("policy_bytes_total", topic="free-1", outcome="delayed")]
        held += [gateway.metric("produce_bytes_total", topic=topic, outcome="rejected") for topic in FREE]
        self.check(held == [0, 0, 0], f"bytes of free topics that were delayed or rejected by storage: {sum(held):.0f}")
        self._check_forecast()
        self._check_usage_log(gateway)

    def _check_forecast(self) -> None:
        """It knows when the disk is at its limit, and that retention keeps it from that."""
        for name, phase in (("first", self.phases[0]), ("second", self.phases[2])):
            known = [look for look in self.looks.all if phase.end - FORECAST_S <= look.at < phase.end - 1]
            off = [look.at + look.hard_s - phase.end for look in known if look.hard_s is not None]
            worst = max(off, key=abs, default=float("inf"))
            self.check(
                len(off) == len(known) and abs(worst) <= FORECAST_OFF_S,
                f"forecast of the {name} pause in the {FORECAST_S:g} s before it: at most {worst:+.1f} s off",
            )
        steady = self.phases[-1]
        rates = [look.fill or 0.0 for look in self.looks.all if look.at > steady.end - 10]
        self.check(max(rates) < 0.5 * MB, f"rate of fill with retention: {max(rates) / MB:+.2f} MB/s at most")

    def _check_usage_log(self, gateway: Gateway) -> None:
        """It has the disk once a minute, and where the topics are."""
        noted = [record for record in gateway.spooled() if "volumes" in record]
        sizes = [v["total"] for record in noted for v in record["volumes"] if v["broker"] == 3]
        here = {each["topic"] for record in noted for each in record.get("spread", ()) if each["broker"] == 3}
        self.check(
            len(noted) >= 2 and set(sizes) == {self.disk} and here == set(AFFECTED),
            f"the usage log has volumes {len(noted)} times, and on broker 3 {', '.join(sorted(here))}",
        )

    def table(self) -> str:
        head = f"{'MB/s acknowledged':<20}" + "".join(f"{phase.name:>18}" for phase in self.phases)
        rows = [
            f"{topic:<20}" + "".join(f"{self.looks.rate(topic, *phase[1:]) / MB:>18.2f}" for phase in self.phases)
            for topic in TOPICS
        ]
        return "\n".join([head, *rows])


def read_topic_of(gateway: Gateway, topic: str) -> list[bytes]:
    """All records, through the gateway."""

    class Through(NamedTuple):
        bootstrap_servers: str

    return read_topic(Through(gateway.bootstrap), topic)  # type: ignore[arg-type]


def draw(run: Run, path: Path) -> None:
    """Three plots over one time: what is free, what is acknowledged, what the forecast said."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from gateway.audit.report import plots

    colors = dict(zip(TOPICS, (plots.RED, plots.ORANGE, plots.BLUE, plots.SKY), strict=True))
    looks = run.looks.all
    at = [look.at for look in looks]
    with mpl.rc_context(plots.STYLE):
        figure = Figure(figsize=(8, 7))
        free, rate, said = figure.subplots(3, 1, sharex=True)
        free.plot(at, [look.free / MB for look in looks], color=plots.INK, label="free on the disk of broker 3")
        free.axhline(HARD / MB, color=plots.RED, linewidth=1, linestyle="--", label="hard limit")
        free.set_ylabel("MB")
        free.set_ylim(0, run.disk / MB)
        for topic in TOPICS:
            rate.plot(*_means(looks, topic, 2.0), color=colors[topic], label=topic)
        rate.set_ylabel("MB/s acknowledged")
        rate.set_ylim(0, 5.5)
        known = [(look.at, look.hard_s) for look in looks if look.hard_s]
        said.plot(*zip(*known, strict=True), ".", markersize=3, color=plots.BLUE, label="by the gateway's forecast")
        for phase in (run.phases[0], run.phases[2]):
            begin = phase.start - STARTS_S
            line = [(phase.end - begin), 0]
            said.plot(
                [begin, phase.end],
                line,
                color=plots.GREY,
                linewidth=1,
                label="as it came" if phase is run.phases[0] else None,
            )
        said.set_ylabel("s to the hard limit")
        said.set_ylim(0, 60)
        said.set_xlabel("s")
        for axes, place in ((free, "lower left"), (rate, "upper right"), (said, "center right")):
            for pause in _pauses(looks):
                axes.axvspan(*pause, color=plots.PALE, zorder=0)
            axes.legend(loc=place, ncols=4, fontsize=7)
        for x, text in ((run.deleted, "records deleted"), (run.kept, "retention.bytes set")):
            free.annotate(
                text, (x, HARD / MB), (x, 20), fontsize=7, arrowprops={"arrowstyle": "->", "color": plots.GREY}
            )
        figure.savefig(path, format="svg", metadata={"Date": None})
    text = path.read_text("utf-8")
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")


def _means(looks: list[Look], topic: str, over_s: float) -> tuple[list[float], list[float]]:
    at: list[float] = []
    rates: list[float] = []
    first = looks[0]
    for look in looks:
        if look.at - first.at >= over_s:
            at.append((look.at + first.at) / 2)
            rates.append((look.acknowledged[topic] - first.acknowledged[topic]) * RECORD / MB / (look.at - first.at))
            first = look
    return at, rates


def _pauses(looks: list[Look]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for before, look in pairwise(looks):
        if look.paused and found and found[-1][1] == before.at:
            found[-1] = (found[-1][0], look.at)
        elif look.paused:
            found.append((before.at, look.at))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.integration.storage.disk_full")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what was seen, four times a second")
    options = parser.parse_args()
    run = Run()
    run.play()
    print(run.table())
    for text in run.said:
        print(f"{'FAILED' if text in run.faults else 'ok':<7} {text}")
    if options.json:
        options.json.write_text(json.dumps([look._asdict() for look in run.looks.all]))
    if options.plot:
        draw(run, options.plot)
    print(f"FAILED: {len(run.faults)}" if run.faults else "passed")
    return 1 if run.faults else 0


if __name__ == "__main__":
    sys.exit(main())
