# What each part of the gateway costs: the same load through a gateway without it and through one with it, in turns.
#
# One gateway for each, all in front of the null broker; only `fleet` needs a real one, as gateways tell each other of
# their usage through a topic.

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.bench.cpu import tree_memory
from tests.bench.load import Scenario
from tests.bench.processes import BenchError
from tests.bench.targets import IDLE_THRESHOLDS, MANY_GROUPS, Target, gateway, null_broker

PLAIN: Final = "gateway"
FLEET: Final = "gateway-fleet"
IDLE_CONNECTIONS: Final = 5_000
TOPICS: Final = 10_000
RULES: Final = 100_000
PORTS_EACH: Final = 10
SCENARIO: Final = Scenario(
    "features", "What each part costs: 215-byte requests, 64 connections", 215, 64, 150_000, "request"
)
FLEET_SCENARIO: Final = Scenario(
    "fleet", "A group that two gateways share: 215-byte requests, 16 connections, one real broker", 215, 16, 40_000,
    "request",
)  # fmt: skip
# Less than the load offers: the gateway holds it to that by delay.
NEAR_ITS_LIMIT: Final = {"total.bytes.in.per.sec.threshold": "5MB", "on_exceed": "delay"}
# The null broker describes no log dirs, so the fallback is what holds from the first second on.
FACTOR: Final = {"min.available.bytes": "1GB", "throttle.factor.fallback": 0.5, "check_interval": "PT1H"}


def _no_hold(_: Target) -> AbstractContextManager[dict[str, Any]]:
    return nullcontext({})


@dataclass(frozen=True)
class Feature:
    """`settings`: keys of the configuration beyond the plain gateway's. `during`: around each measurement; what it
    yields is added to the sample.
    """

    name: str
    says: str
    settings: dict[str, Any] = field(default_factory=dict)
    thresholds: dict[str, Any] = field(default_factory=lambda: IDLE_THRESHOLDS)
    secure: bool = False
    secure_upstream: bool = False
    topics: int = 0  # further ones that the broker has
    during: Callable[[Target], AbstractContextManager[dict[str, Any]]] = _no_hold


@contextmanager
def idle_connections(target: Target) -> Iterator[dict[str, Any]]:
    """Further connections that say nothing after they are there; yields their memory in the gateway, KiB each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < IDLE_CONNECTIONS + 500:
        if hard < IDLE_CONNECTIONS + 500:
            raise BenchError(f"{IDLE_CONNECTIONS} connections need more file descriptors than the {hard} allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (IDLE_CONNECTIONS + 500, hard))
    host, _, port = target.node.rpartition(":")
    with ExitStack() as stack:
        before = tree_memory(target.pid or 0)
        for _ in range(IDLE_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            connection.sendall(API_VERSIONS)
            if not connection.recv(4096):
                raise BenchError(f"{target.name} ended an idle connection")
        each = (tree_memory(target.pid or 0) - before) / IDLE_CONNECTIONS / 1024
        yield {"kib_per_connection": each}


# ApiVersions version 0, correlation id 1, no client id.
API_VERSIONS: Final = bytes.fromhex("0000000a0012000000000001ffff")

FEATURES: Final = (
    Feature(PLAIN, "thresholds, metering and the usage log"),
    Feature(
        "client quotas", "a quota for every client id, far from its limit",
        {"client_quotas": [{"client_id": "<default>", "producer_byte_rate": "100GB"}]},
    ),
    Feature("a group", "the topic is in one of 5,000 resource groups", MANY_GROUPS),
    Feature("storage factor 0.5", "every limit is halved", {"storage": FACTOR}),
    Feature("delay at the limit", "held to 5 MB/s by delay", thresholds=NEAR_ITS_LIMIT),
    Feature("2 workers", "", {"workers": 2}),
    Feature("2 workers, a group", "both share the group's limit", MANY_GROUPS | {"workers": 2}),
    Feature("TLS with clients", "", secure=True),
    Feature("TLS on both sides", "", secure=True, secure_upstream=True),
    Feature(
        "5,000 idle connections", "beside those of the load",
        {"limits": {"max_connections_per_address": IDLE_CONNECTIONS + 500}}, during=idle_connections,
    ),
    Feature("10,000 topics", "in the cluster's metadata", topics=TOPICS),
    Feature(
        "100,000 rules", "client quotas of other users",
        {"client_quotas": [{"user": f"u{number}", "producer_byte_rate": "1MB"} for number in range(RULES)]},
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Running:
    """A feature's gateway, and the process of the broker behind it."""

    feature: Feature
    target: Target
    broker: int


def start_features(stack: ExitStack, rawload: Path, ports: int, run_dir: Path, keystore: Path) -> list[Running]:
    """All of them; they take ports from `ports` on."""
    plain, plain_broker = stack.enter_context(null_broker(rawload, ports, run_dir, keystore))
    found = []
    for number, feature in enumerate(FEATURES, 1):
        at = ports + number * PORTS_EACH
        upstream, broker = plain, plain_broker
        if feature.topics:
            names = [f"t{each}" for each in range(feature.topics)]
            upstream, broker = stack.enter_context(null_broker(rawload, ports + 2, run_dir, more_topics=names))
        if feature.secure_upstream:
            host, _, port = plain.rpartition(":")
            upstream = f"{host}:{int(port) + 1}"
        target = stack.enter_context(
            gateway(
                feature.name, upstream, at, feature.thresholds, run_dir, more=feature.settings, secure=feature.secure,
                ca=keystore if feature.secure_upstream else None,
            )
        )  # fmt: skip
        found.append(Running(feature, target, broker))
    return found


def start_fleet(stack: ExitStack, upstream: str, ports: int, run_dir: Path) -> list[Target]:
    """In front of a real broker: a gateway by itself, and one of two that share a group's limit."""
    run_dir = run_dir / "fleet"
    run_dir.mkdir()
    shared = MANY_GROUPS | {"internal_topics": "kafka"}

    def begin(name: str, at: int, settings: dict[str, Any]) -> Target:
        return stack.enter_context(gateway(name, upstream, at, IDLE_THRESHOLDS, run_dir, more=settings))

    alone = begin(PLAIN, ports + 10, {})
    first = begin(FLEET, ports + 20, shared)
    begin(f"{FLEET} (the other)", ports + 30, shared)
    return [alone, first]
