# Two gateways, with clients above a quota and a group at both of them: /metrics, REST, the command and the console of
# each say the same of every limit, and the parts of both make up the whole.

from __future__ import annotations

import html
import json
import math
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer

from gateway import cli
from gateway.embedded import EmbeddedCluster, wait_for
from tests.background import Background
from tests.integration.gateways import Gateway, create_topic, fleet, metric_in

QUOTA, GROUP, TOTAL = 200_000, 300_000, 50_000_000
VALUE = b"x" * 2000
NEAR = 0.15  # of a limit: parts follow the use of the last moments
LATEST_S = 90.0  # the machine may be busy with something else
SLOW = "slow"


class Offer(Background):
    """A producer that offers as much as it is let."""

    def __init__(self, gateway: Gateway, topic: str, client_id: str) -> None:
        super().__init__()
        self._topic = topic
        own = {"bootstrap.servers": gateway.bootstrap, "client.id": client_id, "log_level": 0}
        self._producer = Producer({**own, "linger.ms": 20, "batch.size": 20_000, "queue.buffering.max.messages": 200})

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._producer.purge()
        self._producer.flush(5)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._producer.produce(self._topic, VALUE)
            except BufferError:
                self._producer.poll(0.05)


@contextmanager
def loaded(kafka: EmbeddedCluster) -> Iterator[tuple[list[Gateway], str, str]]:
    """Two gateways, the topic of a client with a quota, and that of a group."""
    name = f"shown{uuid.uuid4().hex[:8]}"
    plain, grouped = create_topic(kafka, f"{name}-plain"), create_topic(kafka, f"{name}.orders.new")
    settings = {
        "client_quotas": [{"client_id": SLOW, "producer_byte_rate": QUOTA}],
        "resource_groups": {"groups": {"gold": {"publishRateInBytes": GROUP}}, "tenants": {name: "gold"}},
        "thresholds": {"total.bytes.in.per.sec.threshold": TOTAL},
        "policies_store": {"topic": f"{name}-policies"},
        "usage_log": {"topic": f"{name}-accounts"},
    }
    with fleet(kafka, 2, settings=settings) as gateways, ExitStack() as stack:
        for gateway in gateways:
            wait_for("the other one", partial(is_met, gateway), LATEST_S)
        for gateway in gateways:
            stack.enter_context(Offer(gateway, plain, SLOW))
            stack.enter_context(Offer(gateway, grouped, "other"))
        yield gateways, plain, grouped


def is_met(gateway: Gateway) -> bool:
    return gateway.metric("fleet_members") == 2 and gateway.metric("fleet_share_state", state="shared") == 1


def asked(gateway: Gateway, path: str, **query: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{gateway.admin}/v1/{path}?{urllib.parse.urlencode(query)}", timeout=60) as answer:
        said: dict[str, Any] = json.load(answer)
    return said


def explained(gateway: Gateway, topic: str, client_id: str) -> dict[str, Any]:
    return asked(gateway, "explain", topic=topic, client_id=client_id)


def rule_of(said: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (rule for rule in said["rules"] if rule["name"] == name)
    return dict(found)


def is_near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= NEAR * wanted


class Difference(Exception):
    """Two places say something else of the same limit."""


def must(condition: bool, *about: object) -> None:
    if not condition:
        raise Difference(" ".join(map(str, about)))


def agreed(look: Callable[[], None]) -> None:
    """Return once `look` finds no difference: each place is asked a moment after the other."""
    deadline = time.monotonic() + LATEST_S
    while True:
        try:
            return look()
        except Difference as found:
            if time.monotonic() > deadline:
                pytest.fail(str(found))
        time.sleep(0.3)


def compare(gateway: Gateway, name: str, topic: str, client_id: str, measured: Callable[[], dict[str, float]]) -> None:
    """The rule by that name, in REST, metrics, console and command."""
    before = measured()
    said = explained(gateway, topic, client_id)
    query = urllib.parse.urlencode({"topic": topic, "client_id": client_id})
    with urllib.request.urlopen(f"{gateway.admin}/console/explain?{query}", timeout=60) as page:
        console = html.unescape(page.read().decode())
    must(before == measured(), "the meters spoke meanwhile")
    rule = rule_of(said, name)
    level = rule["levels"][0]
    told = {"limit": rule["limit"], "rate": rule["rate"], "utilization": rule["utilization"]}
    told = {key: told[key] for key in before if key != "waiting"}
    for key, value in told.items():
        must(math.isclose(value, before[key], rel_tol=1e-6), "explain and metrics:", key, value, before)
    must(rule["limits_now"] is bool(before["waiting"]), "limits now:", rule, before)
    must(rule["limits_now"], "nobody waits:", rule)
    must((level["gateways"], level["limit"]) == (2, rule["limit"]), "the part:", level)
    must(math.isclose(level["used"], level["used_here"] + sum(level["others"].values())), "the sum:", level)
    for shown in (rule["text"].split(": ")[1], f"the share of this gateway is now {size(rule['limit'])}"):
        must(shown in console, "the console lacks", shown, "of", rule["text"])


def size(rate: float) -> str:
    return f"{rate / 1000:.1f} kB/s"


def of_quota(gateway: Gateway) -> dict[str, float]:
    names = {"limit": "limit", "rate": "rate", "utilization": "utilization_ratio", "waiting": "waiting"}
    return measured(gateway, "client_quota", names, client_id=SLOW)


def of_group(gateway: Gateway) -> dict[str, float]:
    names = {"limit": "part_bytes_per_second", "rate": "rate_bytes_per_second", "waiting": "waiting"}
    return measured(gateway, "group", names, group="gold", direction="publish")


def measured(gateway: Gateway, prefix: str, names: dict[str, str], **labels: str) -> dict[str, float]:
    """All at one moment."""
    text = gateway.metrics()
    return {key: metric_in(text, f"{prefix}_{name}", **labels) for key, name in names.items()}


@pytest.mark.kafka
def test_every_place_says_the_same_of_a_limit_that_two_gateways_share(
    kafka: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with loaded(kafka) as (gateways, plain, grouped):
        limits = (("client-quota", plain, SLOW, QUOTA, of_quota), ("resource-group", grouped, "other", GROUP, of_group))
        for gateway in gateways:
            for name, topic, client_id, whole, measured in limits:
                agreed(partial(compare, gateway, name, topic, client_id, partial(measured, gateway)))
                rule = rule_of(explained(gateway, topic, client_id), name)
                assert (rule["levels"][0]["configured"], rule["levels"][0]["whole"]) == (whole, whole)

                def command_says(gateway: Gateway = gateway, topic: str = topic, client_id: str = client_id) -> None:
                    asks = ["explain", "--url", gateway.admin, "--topic", topic, "--client-id", client_id]
                    must(cli.main(asks) == 0, "the command fails")
                    said = capsys.readouterr().out
                    for words in (f"{size(whole)} over 2 gateways: ", " here, ", "the share of this gateway is now "):
                        must(words in said, "the command lacks", words, "in", said)
                    must("LIMITS NOW" in said, "nobody waits, the command says:", said)

                agreed(command_says)

        def make_up(name: str, topic: str, client_id: str, whole: int) -> None:
            levels = [rule_of(explained(each, topic, client_id), name)["levels"][0] for each in gateways]
            must(is_near(sum(level["limit"] for level in levels), whole), "parts:", levels)
            for level in levels:
                must(is_near(level["used"], whole), "used:", level)
                (other,) = level["others"].values()
                must(is_near(other, whole / 2), "the other one:", level)

        for name, topic, client_id, whole, _ in limits:
            agreed(partial(make_up, name, topic, client_id, whole))

        def is_one_threshold() -> None:
            """By the rates that both bring, and the same at both."""
            for each in gateways:
                (level,) = (
                    level
                    for level in rule_of(explained(each, plain, SLOW), "topic-threshold")["levels"]
                    if level["what"].startswith("total.")
                )
                here = [gateway.metric("broker_rate_bytes_per_second") for gateway in gateways]
                must(min(here) > 0, "nothing is measured yet")
                must(is_near(level["rate"], sum(here)), "the total:", level, here)
                must(level["gateways"] == 2, "the total:", level)
                ratio = each.metric("broker_threshold_utilization_ratio")
                must(is_near(level["utilization"], ratio), "the total:", level, ratio)

        agreed(is_one_threshold)

        first, second = gateways
        away = create_topic(kafka, f"{plain}-away")
        with Offer(first, away, f"far-{away}"):

            def is_seen() -> None:
                """At the other gateway, by topic and client."""
                found = [each for each in asked(second, "top", topic=away)["topics"] if each["elsewhere"]]
                must(bool(found), "no such topic")
                must(found[0]["accepted"] > 0, "it is told with the busiest ones:", found)
                clients = asked(second, "clients", client_id=f"far-{away}")["clients"]
                must(len(clients) == 1 and clients[0]["flow"]["accepted"] > 0, "the client:", clients)
                must(len(clients[0]["others"]) == 1, "the client:", clients)

            agreed(is_seen)
