# The bytes of gateways' reports: a version, and the message that resource_usage.proto describes. The Kafka
# client compresses them.
#
# A limit's name travels as a number of 64 bits. Names in clear, even compressed, would take more than half of PIP-82's
# own traffic (docs/exchange.md has the figures), and no gateway reads all of them: it looks for the numbers of the
# limits that it uses itself. Pure: no I/O, no clock. No input raises anything but `MalformedUsage` and
# `UnknownVersion`.

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from gateway.control.fleet.exchange.resource_usage_pb2 import BrokerRate, Limits, ResourceUsage
from gateway.control.fleet.exchange.resource_usage_pb2 import Flow as FlowEntry
from policies.explain import TopicFlow
from policies.fleet.keys import FleetKey, group_key
from policies.fleet.shares import LimitDemand

VERSION: Final = 3
MAX_BYTES: Final = 2**20  # of one message; ours have far less
MAX_ENTRIES: Final = 500  # of one message, so that making it and taking it in take a few milliseconds
MAX_PROCESSES: Final = 10_000
MAX_NAME: Final = 255  # characters of a gateway's name
MAX_SALT: Final = 64  # bytes: BLAKE2b's
MAX_FLOWS: Final = 50  # of topics, and as many of clients
MAX_CLIENT: Final = 255  # characters of a principal, and of a client id; longer ones are cut
MAX_TOPIC: Final = 249  # characters of a topic's name: Kafka's own limit
_MAX_FLOAT: Final = 3e38  # of what travels as 32 bits
_MIN_FLOAT: Final = 1e-37

K = TypeVar("K")

# A group's four limits have numbers that differ in the last two bits only: one number almost, when it is compressed.
_GROUP_KEY_HEAD: Final = '["g","'
_GROUP_KEY_TAILS: Final = (
    group_key("", "publish", "bytes").removeprefix(_GROUP_KEY_HEAD),
    group_key("", "publish", "msgs").removeprefix(_GROUP_KEY_HEAD),
    group_key("", "dispatch", "bytes").removeprefix(_GROUP_KEY_HEAD),
    group_key("", "dispatch", "msgs").removeprefix(_GROUP_KEY_HEAD),
)


class MalformedUsage(Exception):
    """The message is not a usage report, or contradicts itself."""


class UnknownVersion(Exception):
    """The message has the format of another release."""


class RatePlace(NamedTuple):
    """The place where V1's rates are measured: a broker (`topic` None), or a topic there."""

    node_id: int
    topic: str | None


def limit_id(key: FleetKey, salt: bytes = b"") -> int:
    """The number that stands for a limit in messages, the same at every gateway.

    `salt`: of all gateways, at most 64 bytes, which clients don't know. Of 62 bits and a hundred thousand names that
    are in use, an attacker who can compute numbers finds a name with the number of one of them by some 2^45 attempts,
    hours on a graphics card, and could disturb how that limit is shared.
    """
    column = next(
        (n for n, tail in enumerate(_GROUP_KEY_TAILS) if key.startswith(_GROUP_KEY_HEAD) and key.endswith(tail)), None
    )
    if column is not None:
        key = key.removesuffix(_GROUP_KEY_TAILS[column])
    return int.from_bytes(blake2b(key.encode(), digest_size=8, key=salt).digest(), "little") & ~3 | (column or 0)


def encode_usage(message: ResourceUsage) -> bytes:
    return bytes((VERSION,)) + message.SerializeToString()


def decode_usage(data: bytes) -> ResourceUsage:
    """A message whose columns are of one length, and whose numbers are such.

    Raises:
        UnknownVersion, MalformedUsage
    """
    if not 2 <= len(data) <= MAX_BYTES:
        raise MalformedUsage("too short, or too long")
    if data[0] >= ord(" "):  # text: another program's
        raise MalformedUsage("no version")
    if data[0] != VERSION:
        raise UnknownVersion(str(data[0]))
    try:
        message = ResourceUsage.FromString(data[1:])
    except DecodeError as error:
        raise MalformedUsage(str(error)) from error
    if len(message.boot) != 8 or not message.broker or message.workers > MAX_PROCESSES:
        raise MalformedUsage("no header")
    if len(message.broker) > MAX_NAME or not message.broker.isprintable():
        raise MalformedUsage("no name")
    limits = message.limits
    count = len(limits.limit)
    if count + len(message.rates) > MAX_ENTRIES or len(limits.rate) != count:
        raise MalformedUsage("too many entries, or a limit without a rate")
    optional: tuple[Sequence[Any], ...] = (limits.hungry, limits.weight, limits.topics, limits.claim)
    if any(len(column) not in (0, count) for column in optional):
        raise MalformedUsage("a column that doesn't fit")
    if not _are_valid_rates(limits.rate) or not _are_valid_rates(limits.weight) or 0.0 in limits.weight:
        raise MalformedUsage("no rate, or no weight")
    if not _are_valid_rates(limits.claim) or not _are_valid_rates(rate.rate for rate in message.rates):
        raise MalformedUsage("no rate")
    if any(len(rate.topic) > MAX_TOPIC or rate.broker < 0 for rate in message.rates):
        raise MalformedUsage("no broker, or no topic")
    if len(message.flows) > 2 * MAX_FLOWS or not all(map(_is_valid_flow, message.flows)):
        raise MalformedUsage("too many flows, or one that can't be")
    return message


def add_limits(into: Limits, uses: Sequence[tuple[int, LimitDemand]]) -> None:
    into.limit.extend([number for number, _ in uses])
    into.rate.extend([_clamp_float(use.rate) for _, use in uses])
    if any(use.hungry for _, use in uses):
        into.hungry.extend([use.hungry for _, use in uses])
    if any(use.weight != 1.0 for _, use in uses):
        into.weight.extend([_clamp_float(use.weight, _MIN_FLOAT) for _, use in uses])
    if any(use.topics for _, use in uses):
        into.topics.extend([min(use.topics, 2**32 - 1) for _, use in uses])
    if any(use.claim for _, use in uses):
        into.claim.extend([_clamp_float(use.claim) for _, use in uses])


def read_demands(limits: Limits) -> Iterator[tuple[int, tuple[float, bool, float, int, float]]]:
    """Numbers of limits, and the fields of a demand."""
    count = len(limits.limit)
    hungry = list(limits.hungry) or [False] * count
    weights = list(limits.weight) or [1.0] * count
    topics = list(limits.topics) or [0] * count
    claims = list(limits.claim) or [0.0] * count
    fields = zip(list(limits.rate), hungry, weights, topics, claims, strict=True)
    return zip(list(limits.limit), fields, strict=True)


def make_broker_rate(place: RatePlace, rate: float) -> BrokerRate:
    return BrokerRate(broker=place.node_id, topic=place.topic or "", rate=_clamp_float(rate))


def rate_place(rate: BrokerRate) -> RatePlace:
    return RatePlace(rate.broker, rate.topic or None)


class GatewayTraffic(NamedTuple):
    """The busiest topics of a gateway, and its busiest clients by principal and client id."""

    topics: Mapping[str, TopicFlow] = {}
    clients: Mapping[tuple[str, str], TopicFlow] = {}


NO_TRAFFIC: Final = GatewayTraffic()


def add_flows(into: ResourceUsage, traffic: GatewayTraffic) -> None:
    """`traffic`: its busiest flows are added."""
    for topic, flow in _busiest_flows(traffic.topics):
        into.flows.append(FlowEntry(**_flow_fields(flow), topic=_truncate_name(topic)))
    for (principal, client_id), flow in _busiest_flows(traffic.clients):
        into.flows.append(
            FlowEntry(**_flow_fields(flow), principal=_truncate_name(principal), client_id=_truncate_name(client_id))
        )


def read_flows(message: ResourceUsage) -> GatewayTraffic:
    topics: dict[str, TopicFlow] = {}
    clients: dict[tuple[str, str], TopicFlow] = {}
    for entry in message.flows:
        flow = TopicFlow(entry.accepted, entry.rejected, entry.delayed, entry.would)
        if entry.topic:
            topics[entry.topic] = flow
        else:
            clients[entry.principal, entry.client_id] = flow
    return GatewayTraffic(topics, clients)


def _busiest_flows(flows: Mapping[K, TopicFlow]) -> list[tuple[K, TopicFlow]]:
    return heapq.nlargest(MAX_FLOWS, flows.items(), key=lambda each: each[1].accepted + each[1].rejected)


def _truncate_name(name: str) -> str:
    """The name, short enough for a message."""
    return name[:MAX_CLIENT].encode("utf-8", "replace").decode()


def _is_valid_flow(entry: FlowEntry) -> bool:
    names = entry.topic, entry.principal, entry.client_id
    rates = entry.accepted, entry.rejected, entry.delayed, entry.would
    return max(map(len, names)) <= MAX_CLIENT and _are_valid_rates(rates)


def _flow_fields(flow: TopicFlow) -> dict[str, Any]:
    return {name: _clamp_float(value) for name, value in flow._asdict().items()}


def _clamp_float(value: float, least: float = 0.0) -> float:
    """The number, small enough for a message."""
    return min(max(least, value), _MAX_FLOAT)


def _are_valid_rates(column: Iterable[float]) -> bool:
    """Whether all of them are finite, and none is below 0."""
    values = list(column)
    return not values or (min(values) >= 0.0 and math.isfinite(sum(values)))
