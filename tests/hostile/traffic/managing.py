# Admin requests that control answers, with the gateway's own keys in them, and what an honest broker says to the part
# that is left for it.

from __future__ import annotations

import struct
from random import Random
from typing import Any, Final

from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY, TOTAL_OUT_KEY
from protocol.admin import configs as c
from protocol.admin import quotas as q
from protocol.admin import topics as t
from protocol.message_codec import ApiCodec
from protocol.wire import MalformedFrame
from tests.hostile.traffic.frames import NAMES, STRANGE

APIS: Final[dict[int, ApiCodec[Any, Any]]] = {
    spoken.key: spoken
    for spoken in (
        t.CREATE_TOPICS, c.DESCRIBE_CONFIGS, c.ALTER_CONFIGS, c.INCREMENTAL_ALTER_CONFIGS,
        q.DESCRIBE_CLIENT_QUOTAS, q.ALTER_CLIENT_QUOTAS,
    )
}  # fmt: skip
_KEYS = (TOPIC_KEY, TOPIC_KEY, TOTAL_KEY, TOTAL_KEY, TOTAL_OUT_KEY, "retention.ms", "segment.ms", "x" + TOPIC_KEY)
_VALUES = (
    "500",
    "500",
    "400",
    "2000000",
    "2000001",
    "300",
    "1",
    "0",
    "-1",
    "1e400",
    "NaN",
    "9" * 400,
    "5MB",
    "",
    None,
    None,
    "\u0665",
    "1" * 5000,
    "a\nb",
)
_QUOTAS = (
    "producer_byte_rate", "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
    "producer_byte_rate.bps", "connection_creation_rate", "a\nb", "x" * 300,
)  # fmt: skip
_RATES = (1.0, 1000.0, 2000.0, 1e6, 1e300, 0.0, -1.0, float("inf"), float("nan"), 5e-324)
_ENTITIES: Final = (("user",), ("client-id",), ("user", "client-id"), ("ip",), ("user", "user"), ("", "x" * 300), ())
_MATCHED: Final = ("user", "client-id", "ip", "", "x")
DENIED: Final = 29


def _name(rng: Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.85 else rng.choice(STRANGE)


def _resource(rng: Random) -> tuple[int, str]:
    kind = rng.choice((c.TOPIC, c.TOPIC, c.TOPIC, c.BROKER, c.BROKER, c.GROUP, 8, 16, 127, -1))
    return kind, rng.choice(("", "1", "2", "-1", "9" * 40, "one")) if kind == c.BROKER else _name(rng)


def _key(rng: Random, kind: int) -> str:
    """Of a config: mostly one that a resource of that kind may have."""
    if rng.random() < 0.3:
        return rng.choice(_KEYS)
    return TOPIC_KEY if kind == c.TOPIC else rng.choice((TOTAL_KEY, TOTAL_OUT_KEY))


def _entity(rng: Random) -> Any:
    kinds = rng.choice(_ENTITIES)
    return tuple(q.EntityData(kind, rng.choice((None, "alice", "app", "10.0.0.1", *STRANGE))) for kind in kinds)


def _body(rng: Random, key: int) -> Any:
    many, check = range(rng.choice((0, 1, 1, 1, 1, 1, 2, 3, 8))), rng.random() < 0.3
    few = rng.choice((1, 1, 1, 1, 2, 3))
    if key == t.CREATE_TOPICS.key:
        topics = []
        for _ in many:
            options = tuple(t.TopicConfig(_key(rng, c.TOPIC), rng.choice(_VALUES)) for _ in range(few))
            placed = (t.ReplicaAssignment(0, (1, 2)),) if rng.random() < 0.2 else ()
            topics.append(t.CreatableTopic(_name(rng), rng.choice((1, 3, -1, 2**31 - 1)), 1, placed, options))
        return t.CreateTopicsRequest(tuple(topics), 1000, check)
    if key == c.DESCRIBE_CONFIGS.key:
        keys = rng.choice((None, (), (TOPIC_KEY,), ("retention.ms", TOTAL_KEY), STRANGE))
        return c.DescribeConfigsRequest(tuple(c.DescribeConfigsResource(*_resource(rng), keys) for _ in many))
    if key == c.ALTER_CONFIGS.key:
        rows = []
        for _ in many:
            kind, name = _resource(rng)
            given = tuple(c.AlterableConfig(_key(rng, kind), rng.choice(_VALUES)) for _ in range(few))
            rows.append(c.AlterConfigsResource(kind, name, given))
        return c.AlterConfigsRequest(tuple(rows), check)
    if key == c.INCREMENTAL_ALTER_CONFIGS.key:
        changes = []
        for _ in many:
            kind, name = _resource(rng)
            ops = tuple(
                c.ConfigOperation(_key(rng, kind), rng.choice((0, 0, 0, 0, 1, 1, 2, 3, 127)), rng.choice(_VALUES))
                for _ in range(few)
            )
            changes.append(c.IncrementalAlterConfigsResource(kind, name, ops))
        return c.IncrementalAlterConfigsRequest(tuple(changes), check)
    if key == q.DESCRIBE_CLIENT_QUOTAS.key:
        parts = tuple(
            q.FilterComponent(rng.choice(_MATCHED), rng.randint(0, 3), rng.choice((None, "alice")))
            for _ in range(rng.choice((0, 1, 2)))
        )
        return q.DescribeClientQuotasRequest(parts, check)
    entries = tuple(
        q.EntityAlteration(
            _entity(rng),
            tuple(q.QuotaOperation(rng.choice(_QUOTAS), rng.choice(_RATES), rng.random() < 0.3) for _ in range(few)),
        )
        for _ in many
    )
    return q.AlterClientQuotasRequest(entries, check)


def request(rng: Random) -> bytes:
    """A frame, of any of these APIs in any version."""
    spoken = rng.choice(list(APIS.values()))
    version = rng.randint(spoken.lowest, spoken.highest)
    return spoken.encode_request(_body(rng, spoken.key), version, 7, rng.choice((b"app", None)))


def answer(rng: Random, frame: bytes) -> bytes | None:
    """The broker's, to a request of the gateway's making; None: it isn't one that can be read."""
    key, version, correlation = struct.unpack_from(">hhi", frame, 4)
    spoken = APIS[key]
    try:
        body = spoken.decode_request(frame, 4, len(frame)).body
        said = _said(rng, spoken, body)
        return spoken.encode_response(said, version, correlation)
    except (ValueError, MalformedFrame):  # what passes as it is may be anything
        return None


def _said(rng: Random, spoken: ApiCodec[Any, Any], body: Any) -> Any:
    def code() -> tuple[int, str | None]:
        return rng.choice(((0, None), (0, None), (0, None), (DENIED, "no"), (3, None), (42, "x" * 3000)))

    if spoken is q.DESCRIBE_CLIENT_QUOTAS:
        entry = q.EntityQuotas(
            (q.EntityData("user", "alice"),), (q.QuotaValue("producer_byte_rate", rng.choice(_RATES)),)
        )
        return q.DescribeClientQuotasResponse(0, 0, None, rng.choice((None, (), (entry,))))
    if spoken is q.ALTER_CLIENT_QUOTAS:
        return q.AlterClientQuotasResponse(
            0, tuple(q.AlterClientQuotasResult(*code(), entity) for entity, _ in body.entries)
        )
    if spoken is c.DESCRIBE_CONFIGS:
        own = (c.DescribedConfig("retention.ms", "5", config_type=c.LONG),)
        return c.DescribeConfigsResponse(
            0, tuple(c.DescribeConfigsResult(*code(), kind, name, own) for kind, name, _ in body.resources)
        )
    if spoken is t.CREATE_TOPICS:
        rows = []
        for topic in body.topics:
            made = tuple(t.CreatedConfig(name, value, False, 1, False) for name, value in topic.configs)
            rows.append(t.CreateTopicsResult(topic.name, bytes(16), *code(), 3, 1, made))
        return t.CreateTopicsResponse(0, tuple(rows))
    return c.AlterConfigsResponse(0, tuple(c.AlterConfigsResult(*code(), *row[:2]) for row in body.resources))
