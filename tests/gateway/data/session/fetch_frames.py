# Fetch requests and their answers as frames, encoded by kio, and consumers that send and get them.

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

from protocol import api
from tests.gateway.data.play import Play
from tests.protocol import kio_messages
from tests.protocol.batches import batch
from tests.protocol.produce_cases import framed

MiB = 2**20
ORDERS, CLICKS, FREE, PLAIN = "acme.shop.orders", "acme.web.clicks", "other.web.clicks", "plain"
IDS = {name: uuid.UUID(int=n + 1) for n, name in enumerate((ORDERS, CLICKS, FREE, PLAIN))}
ONE = batch((b"x" * 1000,) * 4)


def topics_of(cls: Any, topics: dict[str, Any], **more: Any) -> tuple[Any, ...]:
    by_id = any(field.name == "topic_id" for field in kio_messages.fields(cls))
    part_cls = kio_messages.element(cls, "partitions")
    return tuple(
        cls(
            **({"topic_id": IDS[name]} if by_id else {"topic": name}),
            partitions=tuple(
                kio_messages.filled(part_cls, **{**more, **({} if records is None else {"records": records})})
                for records in parts
            ),
        )
        for name, parts in topics.items()
    )


def fetch(
    correlation: int = 1,
    version: int = 11,
    topics: tuple[str, ...] = (ORDERS,),
    *,
    key: int = api.FETCH,
    client_id: bytes = b"app",
    max_bytes: int = 50 * MiB,
    session: tuple[int, int] = (0, 0),
) -> bytes:
    """`session`: its id and epoch, where requests have them; an answer of `fetched` begins session 3."""
    cls = kio_messages.request_class(key, version)
    rows = topics_of(kio_messages.element(cls, "topics"), dict.fromkeys(topics, (None,)))
    names = {field.name for field in kio_messages.fields(cls)}
    more = dict(zip(("session_id", "session_epoch"), session, strict=True)) if "session_id" in names else {}
    message = kio_messages.filled(cls, min_bytes=1, max_bytes=max_bytes, topics=rows, **more)
    head = struct.pack(">hhih", key, version, correlation, len(client_id)) + client_id
    return framed(head + (b"\0" if version >= 12 or key != api.FETCH else b"") + kio_messages.kio_encode(message))


def fetched(
    correlation: int = 1,
    version: int = 11,
    topics: dict[str, list[bytes]] | None = None,
    *,
    key: int = api.FETCH,
    throttle_ms: int = 0,
) -> bytes:
    cls = kio_messages.answer_class(key, version)
    rows = topics_of(kio_messages.element(cls, "responses"), {ORDERS: [ONE]} if topics is None else topics)
    body = kio_messages.kio_encode(kio_messages.filled(cls, responses=rows))
    return framed(kio_messages.answer_header(cls, correlation) + struct.pack(">i", throttle_ms) + body[4:])


def told(frame: bytes, version: int = 11, key: int = api.FETCH) -> int:
    """The throttle time in an answer."""
    (throttle_ms,) = struct.unpack_from(">i", frame, 9 if version >= 12 or key != api.FETCH else 8)
    return int(throttle_ms)


def asked(frame: bytes, version: int = 11, key: int = api.FETCH) -> int:
    """The bound of a request as the broker gets it."""
    head = 4 + 8 + 2 + len("app") + (1 if version >= 12 or key != api.FETCH else 0)
    return int(kio_messages.kio_decode(kio_messages.request_class(key, version), frame[head:]).max_bytes)


def consume(
    on: Play, correlation: int = 1, topics: dict[str, list[bytes]] | None = None, version: int = 11, **how: int
) -> int:
    """A Fetch and its answer; return the throttle time that is told."""
    on.client(fetch(correlation, version, (ORDERS,) if topics is None else tuple(topics)))
    return told(on.broker(fetched(correlation, version, topics, **how)), version)


def consume_all(
    consumers: list[Play], seconds: float, batch: int, take: Callable[[Play, int], object]
) -> list[tuple[float, int, int]]:
    """When each of them got how much, of those that ask for all they can as soon as they may, from a broker that gives
    at least one batch of so many bytes. `take`: an answer of so many bytes comes.
    """
    now = began = consumers[0].now
    next_at, got = [now] * len(consumers), []
    while now < began + seconds:
        under_way = []
        for number, each in enumerate(consumers):
            each.now = now
            if now >= next_at[number]:
                upstream, _ = each.again() if each.unhandled else each.client(fetch())
                next_at[number] = each.session.hold.held_until
                under_way += [(number, max(batch, asked(upstream)))] if upstream else []
        for number, size in under_way:
            take(consumers[number], size)
            next_at[number] = consumers[number].session.fetch_limiter.muted_until
            got.append((now, number, size))
        now += 0.1
    return got
