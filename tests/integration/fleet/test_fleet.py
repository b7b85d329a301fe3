# One limit over several gateways with several workers each, with real producers: the sum of what all of them pass on,
# whoever is killed. Short windows, and an exchange twice as fast as usual: fleet_full.py is the whole of it.

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest
from confluent_kafka import Producer

from gateway.embedded import EmbeddedCluster, wait_for
from tests.background import Background
from tests.clients import processes
from tests.integration.gateways import Gateway, create_topic, fleet

LIMIT = 2_000_000
VALUE = b"x" * 5000
CYCLE_S = 0.5
SETTLE_S = 2.0  # two cycles, and a busy machine
LOOK_S = 4.0
LOOKS = 12  # until one is as it should be: a machine that stands still spoils some
OFF = 0.15  # of a limit, over few seconds of producers that share two cores with all the rest


class Offer(Background):
    """A producer that offers so many bytes per second over topics, whatever is taken of them."""

    def __init__(self, gateway: Gateway, topics: list[str], rate: float = 2_500_000) -> None:
        super().__init__()
        self._topics, self._rate = topics, rate
        self._taken: list[tuple[float, int]] = []
        self._producer = Producer(
            {
                "bootstrap.servers": gateway.bootstrap,
                "linger.ms": 20,
                "batch.size": 50_000,
                "queue.buffering.max.kbytes": 8_000,
                "log_level": 2,
                "on_delivery": self._settle,
            }
        )

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._producer.purge()
        self._producer.flush(5)

    def taken(self, since: float, until: float) -> float:
        """Bytes per second that were acknowledged."""
        return sum(size for at, size in list(self._taken) if since <= at < until) / (until - since)

    def _settle(self, error: object, message: object) -> None:
        if error is None:
            self._taken.append((time.monotonic(), len(VALUE)))

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._stop.is_set():
            due = (time.monotonic() - began) * self._rate
            while sent < due:
                try:
                    self._producer.produce(self._topics[sent // len(VALUE) % len(self._topics)], VALUE)
                except BufferError:  # held back for long: not to be made up for
                    began = time.monotonic() - sent / self._rate
                    break
                sent += len(VALUE)
            self._producer.poll(0.01)


@contextmanager
def two_gateways(kafka: EmbeddedCluster, name: str) -> Iterator[tuple[list[Gateway], list[str]]]:
    """With a group `gold` over several topics."""
    topics = [create_topic(kafka, f"{name}.orders.{number}") for number in range(6)]
    settings = {
        "resource_groups": {"groups": {"gold": {"publishRateInBytes": LIMIT}}, "tenants": {name: "gold"}},
        "resourceUsagePublishTopicName": f"{name}-usage",
        "resourceUsagePublishIntervalInSecs": CYCLE_S,
        "policies_store": {"topic": f"{name}-policies"},
        "usage_log": {"topic": f"{name}-accounts"},
    }
    with fleet(kafka, 2, workers=2, settings=settings) as gateways:
        yield gateways, topics


def over(offers: list[Offer], seconds: float = LOOK_S) -> list[float]:
    """What each has got through in the next seconds, per second."""
    since = time.monotonic()
    time.sleep(seconds)
    until = time.monotonic()
    time.sleep(0.3)  # acknowledgements are told a little later
    return [offer.taken(since, until) for offer in offers]


def served(offers: list[Offer]) -> None:
    """Return once each gets something through at present."""

    def is_served() -> bool:
        now = time.monotonic()
        return all(offer.taken(now - 1.0, now) > 0 for offer in offers)

    wait_for("everybody to be served", is_served)


def is_near(value: float, wanted: float, off: float = OFF) -> bool:
    return abs(value - wanted) <= off * wanted


def at_limit(offers: list[Offer], limit: int) -> list[float]:
    """What each gets through when it is the limit in sum. It may be less for a while, of producers that have no core;
    and more, of a limit's savings, or of a control that had no core and was taken for dead.
    """
    seen = []
    for _ in range(LOOKS):
        seen.append(over(offers))
        if is_near(sum(seen[-1]), limit) and min(seen[-1]) > 0:
            return seen[-1]
    pytest.fail(f"never at {limit}, but at {seen}")


def put_limit(gateway: Gateway, limit: int) -> None:
    request = urllib.request.Request(
        f"{gateway.admin}/admin/v2/resourcegroup/gold",
        json.dumps({"publishRateInBytes": limit}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=60):
        pass


def wait_limit(gateways: list[Gateway], limit: int) -> None:
    """Return some time after all of them have heard of it."""
    labels = {"group": "gold", "direction": "publish"}
    wait_for(
        f"a limit of {limit}",
        lambda: all(gateway.metric("group_limit_bytes_per_second", **labels) == limit for gateway in gateways),
    )
    time.sleep(SETTLE_S)


@pytest.mark.seed("82.5")
def test_a_groups_limit_holds_over_gateways_and_workers_that_come_and_go(kafka: EmbeddedCluster) -> None:
    with two_gateways(kafka, "fleetgold") as (gateways, topics), ExitStack() as stack:
        first, second = gateways
        for gateway in gateways:
            wait_for("the other one", partial(meets_all, gateway))
        offers = [stack.enter_context(Offer(gateway, topics)) for gateway in (first, second) for _ in range(2)]
        served(offers)
        time.sleep(SETTLE_S)

        at_limit(offers, LIMIT)
        assert is_near(first.metric("group_limit_bytes_per_second", group="gold", direction="publish"), LIMIT, 0)
        # One may have had all for a moment, while the other's control had no core.
        wait_for("parts that make up the limit", lambda: is_near(sum(map(part, gateways)), LIMIT))

        put_limit(first, LIMIT // 2)
        os.kill(first.worker(0), signal.SIGKILL)
        wait_limit(gateways, LIMIT // 2)
        at_limit(offers, LIMIT // 2)

        put_limit(second, LIMIT)
        wait_limit(gateways, LIMIT)
        control = second.child("gateway.control")
        second.process.send_signal(signal.SIGSTOP)  # so that control stays dead for as long as it takes to see it
        try:
            os.kill(control, signal.SIGKILL)
            # A control that is late itself takes nobody for dead.
            wait_for("the others to miss it", lambda: first.metric("fleet_members") == 2, 120)
            time.sleep(SETTLE_S)
            for _ in range(LOOKS):
                got = over(offers)
                if sum(got) <= (1 + OFF) * LIMIT:
                    break
            else:
                pytest.fail(f"its workers take what others have by now: {got}")
        finally:
            second.process.send_signal(signal.SIGCONT)
        wait_for("another control", lambda: second.child("gateway.control") not in (0, control))
        wait_for("everybody", lambda: first.metric("fleet_members") == 4)
        at_limit(offers, LIMIT)

        kill_all(second)
        time.sleep(SETTLE_S)
        at_limit(offers[:2], LIMIT)  # what the other one had is ours
        assert first.metric("fleet_peers") == 0
        assert first.metric("fleet_members") == 2


def meets_all(gateway: Gateway) -> bool:
    return gateway.metric("fleet_members") == 4 and gateway.metric("fleet_share_state", state="shared") == 1


def part(gateway: Gateway) -> float:
    return gateway.metric("group_part_bytes_per_second", group="gold", direction="publish")


def kill_all(gateway: Gateway) -> None:
    """As if its machine were gone."""
    family = gateway.pids()
    for pid in family:
        with suppress(ProcessLookupError):  # ended with its parent
            os.kill(pid, signal.SIGKILL)
    wait_for("the end", lambda: not any((processes.PROC / str(pid) / "exe").exists() for pid in family))
    gateway.forget()
