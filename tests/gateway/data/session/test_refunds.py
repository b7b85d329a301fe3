# What was forwarded and didn't get into the log is given back to the limits that others share, if they were charged; a
# client's own quota keeps it, as in Kafka.

from __future__ import annotations

from collections.abc import Callable

import pytest

from policies.quotas.names import Entity
from policies.quotas.quota_limiters import CLAIMED_DEBT_S
from tests.examples import matrix
from tests.gateway.data.play import (
    APP,
    TOOK,
    Play,
    answer,
    decode_answer,
    present,
    request,
    size_of,
    with_question,
)
from tests.gateway.data.session.limits_play import (
    SIZE,
    TOPIC,
    WHOLE,
    group,
    group_level,
    quota,
    quota_level,
    storage,
    storage_level,
    threshold_level,
    thresholds,
)  # fmt: skip
from tests.protocol.produce_cases import framed, uvarint

ALICE = Entity("alice")
REFUSED = {TOPIC: {0: (10, -1)}}  # MESSAGE_TOO_LARGE


def produce(on: Play, **how: tuple[int, int, int]) -> None:
    assert on.client(request(1, {TOPIC: [0]}, **how))[0]  # type: ignore[arg-type]
    on.broker(answer(1, {TOPIC: {0: (0, 0)}}))


def refused(on: Play) -> None:
    """The gateway forwards a request, and the broker refuses it."""
    assert on.client(request(1, {TOPIC: [0]}))[0]
    on.broker(answer(1, REFUSED))


def lost(on: Play) -> None:
    """The connection ends before the broker has answered."""
    assert on.client(request(1, {TOPIC: [0]}))[0]
    on.session.close()


LIMITS = pytest.mark.parametrize(
    ("limit", "level"),
    [(quota, quota_level), (group, group_level), (storage, storage_level), (thresholds, threshold_level)],
    ids=["quota", "group", "storage", "thresholds"],
)
ENDS = pytest.mark.parametrize("end", [refused, lost])


@pytest.mark.parametrize(
    ("limit", "level"),
    [(group, group_level), (storage, storage_level), (thresholds, threshold_level)],
    ids=["group", "storage", "thresholds"],
)
@ENDS
def test_a_limit_that_others_share_has_it_back(
    limit: Callable[..., None], level: Callable[[Play], float], end: Callable[[Play], None]
) -> None:
    on = Play().named()
    limit(on, observes=False)
    on.client(request(1))  # the connection's first one, for a topic under no group
    on.broker(answer(1))
    before = level(on)
    on.session.hold.muted_until = 0.0
    end(on)
    assert level(on) == before


@LIMITS
@pytest.mark.parametrize("code", [7, 20])
def test_what_is_in_the_log_is_not_given_back_though_its_answer_is_an_error(
    limit: Callable[..., None], level: Callable[[Play], float], code: int
) -> None:
    """REQUEST_TIMED_OUT, which a client gets at will by acks=all and a timeout of 0, and
    NOT_ENOUGH_REPLICAS_AFTER_APPEND.
    """
    written, errored = Play().named(), Play().named()
    for on, said in ((written, 0), (errored, code)):
        limit(on, observes=False)
        assert on.client(request(1, {TOPIC: [0]}, timeout_ms=0))[0]
        on.broker(answer(1, {TOPIC: {0: (said, 0)}}))
    assert level(errored) == level(written)


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
        produce(on.beside())
    rows = on.rows()
    assert any(outcome == "would_reject" for _, outcome, _ in rows)
    before = level(on)
    refused(on)
    assert any(outcome == "would_reject" for _, outcome, _ in on.rows())
    assert level(on) == before


def test_a_limit_that_was_set_after_a_request_was_forwarded_gets_nothing_back() -> None:
    on = Play().named()
    assert on.client(request(1, {TOPIC: [0]}))[0]
    storage(on, observes=False)
    assert on.client(request(2, {TOPIC: [0]}))[0]
    before = storage_level(on)
    on.broker(answer(1, REFUSED))
    assert storage_level(on) == before
    on.broker(answer(2, REFUSED))
    assert storage_level(on) == before + SIZE


def test_no_limit_gets_back_more_than_it_took_from_a_refused_request() -> None:
    """Else a client could pay for what got in with what did not."""
    on = Play().named()
    on.set_quotas((APP, "producer_byte_rate", 1.0))
    on.client(request(1, values=(bytes(10_000),)))
    on.broker(answer(1))
    on.now += 1e5
    got_in = request(2, values=(bytes(10_000),))
    on.client(got_in)
    on.broker(answer(2))
    owed = -quota_level(on)
    on.session.hold.muted_until = 0.0
    other = on.beside()
    (line,) = on.world.quotas._limiters.values()
    frame = request(3, {TOPIC: [0, 1, 2]}, trailing=bytes(1000))
    line.bucket.consume_tokens(-owed, on.now)  # so that it passes …
    other.client(frame)
    line.bucket.consume_tokens(owed, on.now)  # … and what got in is still owed
    other.broker(answer(3, {TOPIC: dict.fromkeys(range(3), (10, -1))}))
    assert -quota_level(on) == pytest.approx(owed)


def test_a_limit_that_was_lifted_meanwhile_has_it_back_for_when_it_holds_again() -> None:
    on = Play().named()
    storage(on, observes=False)
    assert on.client(request(1, {TOPIC: [0]}))[0]
    limit = present(on.engine.broker_meters(1).limits.storage_throttle)
    on.engine.set_storage_factor(1.0, "", on.now)
    assert limit.limiter.bucket.token_level(on.now) == -SIZE
    on.broker(answer(1, REFUSED))
    assert limit.limiter.bucket.token_level(on.now) == 0


# --- a client's own quota ---------------------------------------------------------------------------------------------


@ENDS
@pytest.mark.parametrize("rate", [1.0, float(SIZE)], ids=["minutes of it", "a second of it"])
def test_a_users_quota_keeps_what_it_sent(rate: float, end: Callable[[Play], None]) -> None:
    on = Play().named().set_quotas((ALICE, "producer_byte_rate", rate))
    on.session.client.set_principal("User:alice")
    end(on)
    assert quota_level(on) == -WHOLE
    (line,) = on.world.quotas._limiters.values()
    assert (line.meter.charged, line.spent) == (WHOLE, WHOLE)


@ENDS
@pytest.mark.parametrize(("rate", "owed_s"), [(1.0, CLAIMED_DEBT_S), (float(SIZE), WHOLE / SIZE)])
def test_who_only_says_a_client_id_leaves_a_bounded_debt(
    rate: float, owed_s: float, end: Callable[[Play], None]
) -> None:
    """Else who may write nothing keeps everybody of that client id out, for as long as he likes."""
    on = Play().named()
    on.set_quotas((APP, "producer_byte_rate", rate))
    end(on)
    assert -quota_level(on) / rate == pytest.approx(owed_s)


def test_a_duplicate_counts_in_its_clients_quota_as_in_kafka() -> None:
    on = Play().named().set_quotas((ALICE, "producer_byte_rate", 1e6))
    on.session.client.set_principal("User:alice")
    for correlation in range(3):
        on.client(request(correlation, producer=(5, 0, 0)))
        on.broker(answer(correlation))
    assert on.rows()["clicks", "duplicate", ""][2] == 2
    (line,) = on.world.quotas._limiters.values()
    assert line.meter.charged == 3 * (len(request(1, producer=(5, 0, 0))) - 4)


def padded(tags: bytes) -> bytes:
    """A request that carries these bytes as an unknown tagged field behind its topics."""
    frame = request(1)
    content = frame[4:-1] + b"\x01\x63" + uvarint(len(tags)) + tags
    return framed(content)


SENT = {
    "refused": (request(1, values=(b"x" * 10**6,)), 2),
    "trailing": (request(1, trailing=b"y" * 10**6), 0),
    "tagged fields": (padded(b"z" * 10**6), 0),
    "a name": (request(1, {"t" * 20_000: [0]}, client_id="app"), 17),
    "no partition": (request(1, {"t" * 20_000: []}), 0),
}


@pytest.mark.parametrize(("what", "user"), matrix(list(SENT), ["alice", "ANONYMOUS"]))
def test_nothing_that_a_client_can_send_passes_its_quota(user: str, what: str) -> None:
    rate, began, seconds = 1e5, 60, 240  # a client that can't wait any longer has some of it in advance, once
    frame, code = SENT[what]
    on = Play().named()
    on.set_quotas(*((entity, "producer_byte_rate", rate) for entity in (ALICE, APP)))
    if user == "alice":
        on.session.client.set_principal("User:alice")
    passed, start = 0, on.now + began
    while on.now < start + seconds:
        for _ in range(20):
            upstream, _ = on.client(frame)
            if not upstream:
                break
            passed += len(upstream) if on.now >= start else 0
            on.broker(answer(1, {"t" * 20_000 if what == "a name" else "clicks": {0: (code, -1 if code else 0)}}))
        on.unhandled = b""
        on.now += 1.0
        if on.now >= on.engine.next_tick_at:
            on.engine.apply_due_ticks(on.now)
            on.world.quotas.close_tick(on.now)
    assert passed <= rate * seconds + 2 * len(frame)


def test_a_request_without_a_partition_is_answered_here() -> None:
    """No limit would be asked about it, whatever else is in it."""
    on = Play().named()
    upstream, client = on.client(request(7, {"clicks": []}) + request(8, {"clicks": []}, acks=0))
    assert upstream == b""
    assert decode_answer(client) == (7, 0, {})


# --- acks=0 -----------------------------------------------------------------------------------------------------------


@LIMITS
def test_acks_0_that_the_broker_has_not_taken_is_given_back_at_any_end(
    limit: Callable[..., None], level: Callable[[Play], float]
) -> None:
    """A broker ends the connection of who may not write; but the client may be the first to do so."""
    on = Play().named()
    limit(on, observes=False)
    on.client(request(1))
    on.broker(answer(1))
    on.session.hold.muted_until = 0.0
    before = level(on)
    upstream, _ = on.client(request(1, {TOPIC: [0]}, acks=0))
    assert upstream == with_question(request(1, {TOPIC: [0]}, acks=0))
    assert not on.session.is_idle
    assert level(on) < before
    on.session.close()
    assert level(on) == (before - WHOLE if limit is quota else before)


@LIMITS
def test_acks_0_that_the_broker_has_taken_counts(limit: Callable[..., None], level: Callable[[Play], float]) -> None:
    """It answers what is asked behind it, so it has not ended the connection because of it."""
    on = Play().named()
    limit(on, observes=False)
    on.client(request(1))
    on.broker(answer(1))
    on.session.hold.muted_until = 0.0
    on.client(request(1, {TOPIC: [0]}, acks=0))
    charged = level(on)
    assert on.broker(TOOK) == b""
    assert on.session.is_idle
    on.session.hold.muted_until = 0.0
    assert on.client(request(2, {TOPIC: [0]}, acks=0))[0] == request(2, {TOPIC: [0]}, acks=0), "asked once"
    again = level(on)
    assert again < charged
    on.session.close()
    assert level(on) == again


def test_many_partitions_with_acks_0_are_given_back_as_well_as_one() -> None:
    on = Play(total=1e6).named()
    indexes = list(range(3000))
    on.client(request(1, {TOPIC: indexes}, acks=0, values=(b"",)))
    assert on.engine.broker_meters(1).total.uncounted == 3000 * size_of((b"",))
    assert on.session.account.used_bytes > 0
    on.session.close()
    assert on.engine.broker_meters(1).total.uncounted == 0
    assert on.session.account.used_bytes == 0


def test_acks_0_of_which_a_second_has_passed_is_given_back_too() -> None:
    on = Play(total=1e6).named()
    on.client(request(1, acks=0))
    on.world.ledger.close_interval()
    on.world.ledger.advance_epoch()
    on.session.close()
    assert on.engine.broker_meters(1).total.uncounted == 0


def test_a_broker_vouches_for_no_name_that_a_topic_can_not_have() -> None:
    """Else a client could fill the memory, and what others are shown, with such names."""
    on = Play(total=1e6).named()
    on.client(request(1, {"z" * 4000: [0]}, acks=0))
    on.broker(TOOK)
    assert on.session.gate.accounts.accepted_topics == set()
    assert not any(meter.is_confirmed for meter in on.engine.broker_meters(1).topics.values())
