# What was forwarded and didn't get into the log is given back to the limits that it was charged to, and to no others.

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.channel import Groups
from gateway.data.session import Session
from policies.groups.lines import GroupLimits
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.store import QuotaStore
from policies.thresholds.pacing import Pacer
from tests.gateway.play import JAVA, Play, account, answer, request, size_of

SIZE = size_of()
TOPIC = "acme.orders.t"
REFUSED = {TOPIC: {0: (10, -1)}}  # MESSAGE_TOO_LARGE


def produce(on: Play, **how: tuple[int, int, int]) -> None:
    assert on.client(request(1, {TOPIC: [0]}, **how))[0]  # type: ignore[arg-type]
    on.broker(answer(1, {TOPIC: {0: (0, 0)}}))


def beside(on: Play) -> Play:
    """Another connection to the same worker."""
    made = Play().named()
    made.now, made.engine, made.world = on.now, on.engine, on.world
    made.session = Session(on.world, 1, account(), on.now)
    made.session.client.software = JAVA
    return made


def refused(on: Play) -> None:
    """The gateway forwards a request, and the broker refuses it."""
    assert on.client(request(1, {TOPIC: [0]}))[0]
    on.broker(answer(1, REFUSED))


def lost(on: Play) -> None:
    """The connection ends before the broker has answered."""
    assert on.client(request(1, {TOPIC: [0]}))[0]
    on.session.close()


def quota(on: Play, *, observes: bool) -> None:
    values = {Entity(None, "app"): {QuotaKey.parse("producer_byte_rate"): float(SIZE)}}
    on.world.quotas.set_store(QuotaStore(values), on.now, observes=observes)


def quota_level(on: Play) -> float:
    (line,) = on.world.quotas._lines.values()
    return line.bucket.level(on.now)


def group(on: Play, *, observes: bool) -> None:
    mode = "observe" if observes else "enforce"
    on.world.set_groups(Groups(1, {"gold": GroupLimits(SIZE)}, {"acme": "gold"}, mode=mode), on.now)  # type: ignore[arg-type]


def group_level(on: Play) -> float:
    on.engine.pace(on.now)
    line = on.engine.groups._side("gold", "publish", on.now).bytes
    assert line is not None
    return line.bucket.level(on.now)


def storage(on: Play, *, observes: bool) -> None:
    on.engine.set_policy(2 * SIZE, {})
    on.engine.set_storage(0.5, "a full disk", on.now, mode="observe" if observes else "enforce")


def storage_level(on: Play) -> float:
    limit = on.engine.broker(1).limits.storage
    assert limit is not None
    return limit.line.bucket.level(on.now)


def thresholds(on: Play, *, observes: bool) -> None:
    mode = "observe" if observes else "enforce"
    on.engine.set_policy(SIZE, {TOPIC: SIZE}, on_exceed="delay", mode=mode)  # type: ignore[arg-type]


def threshold_level(on: Play) -> float:
    on.engine.pace(on.now)
    strategy = on.engine.broker(1).limits.strategy
    assert isinstance(strategy, Pacer)
    return strategy.bucket.level(on.now)


LIMITS = pytest.mark.parametrize(
    ("limit", "level"),
    [(quota, quota_level), (group, group_level), (storage, storage_level), (thresholds, threshold_level)],
    ids=["quota", "group", "storage", "thresholds"],
)
ENDS = pytest.mark.parametrize("end", [refused, lost])


@LIMITS
@ENDS
def test_a_limit_that_was_charged_has_it_back(
    limit: Callable[..., None], level: Callable[[Play], float], end: Callable[[Play], None]
) -> None:
    on = Play().named()
    limit(on, observes=False)
    on.client(request(1))  # the connection's first one, for a topic under no group
    on.broker(answer(1))
    before = level(on)
    on.session.hold.mute_until = 0.0
    end(on)
    assert level(on) == before


@LIMITS
def test_bytes_that_would_not_have_been_sent_yet_are_not_given_back_to_a_limit_that_only_observes(
    limit: Callable[..., None], level: Callable[[Play], float]
) -> None:
    on = Play().named()
    limit(on, observes=True)
    produce(on)
    produce(on)
    before = level(on)
    refused(on)
    assert level(on) == before


@LIMITS
def test_a_limit_that_only_observed_and_was_not_charged_gets_nothing(
    limit: Callable[..., None], level: Callable[[Play], float]
) -> None:
    on = Play().named()
    limit(on, observes=True)
    for _ in range(20):  # more than there is room for: it would reject
        produce(beside(on))
    rows = on.rows()
    assert any(outcome == "would_reject" for _, outcome, _ in rows)
    before = level(on)
    refused(on)
    assert any(outcome == "would_reject" for _, outcome, _ in on.rows())
    assert level(on) == before


def test_a_limit_that_was_set_after_a_request_was_forwarded_gets_nothing_back() -> None:
    on = Play().named()
    assert on.client(request(1, {TOPIC: [0]}))[0]
    quota(on, observes=False)
    assert on.client(request(2, {TOPIC: [0]}))[0]
    before = quota_level(on)
    on.broker(answer(1, REFUSED))
    assert quota_level(on) == before
    on.broker(answer(2, REFUSED))
    assert quota_level(on) == before + SIZE


def test_a_limit_that_was_lifted_meanwhile_has_it_back_for_when_it_holds_again() -> None:
    on = Play().named()
    quota(on, observes=False)
    assert on.client(request(1, {TOPIC: [0]}))[0]
    line = next(iter(on.world.quotas._lines.values()))
    on.world.quotas.set_store(QuotaStore(), on.now)
    assert on.client(request(2, {TOPIC: [0]}))[0] == b""  # muted: it has been charged
    assert line.bucket.level(on.now) == -SIZE
    on.broker(answer(1, REFUSED))
    assert line.bucket.level(on.now) == 0


def test_a_batch_that_the_broker_takes_for_a_duplicate_is_given_back_as_it_was_charged() -> None:
    on = Play().named()
    quota(on, observes=True)
    for _ in range(20):
        produce(on, producer=(5, 0, 0))
    assert on.rows()[TOPIC, "duplicate", ""][2] == 19
    # 1 got into the log; of the other 19 those that the quota would have rejected were never charged
    assert quota_level(on) == -SIZE
