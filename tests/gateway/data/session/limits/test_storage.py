# A session while disks fill up: everybody is slowed down, then held, then rejected; never silently lost.

from __future__ import annotations

from typing import Any

import pytest

from gateway.data.pending.hold import MAX_WAIT_S
from tests.gateway.data.play import Play, answer, decode_answer, other_request, present, request, size_of, with_question

WHY = "broker 2 volume /data: 0.9 GB of 100.0 GB free, hard limit at 1.0 GB"
SIZE = size_of()


def play(factor: float = 0.0, total: float | None = None, storage_mode: str = "enforce", **settings: Any) -> Play:
    made = Play(total=total, **settings).named()
    made.engine.set_storage_factor(factor, WHY, made.now, mode=storage_mode)  # type: ignore[arg-type]
    return made


def lift(on: Play, factor: float = 1.0) -> tuple[bytes, bytes]:
    on.engine.set_storage_factor(factor, WHY if factor < 1 else "", on.now)
    assert on.session.hold.end_pause(on.now)
    return on.again()


@pytest.mark.seed("DISK.19")
@pytest.mark.parametrize("step", [0, 1, 7])
def test_in_a_pause_nothing_is_forwarded_and_nothing_answered(step: int) -> None:
    on = play()
    assert on.client(request(1) + request(2), step) == (b"", b"")
    assert on.session.hold.held_until == on.now + MAX_WAIT_S
    assert on.rows() == {}


def test_when_the_pause_ends_held_requests_go_on_in_order_and_the_wait_is_in_the_accounts() -> None:
    on = play()
    frames = request(1) + request(2)
    on.client(frames)
    on.now += 3.0
    assert lift(on) == (frames, b"")
    on.broker(answer(1) + answer(2))
    rows = {(row.outcome, row.reason): (row.requests, row.delay_ms) for row in on.ledger()}
    assert rows["accepted", ""][0] == 2
    assert rows["delayed", "storage-pause"] == (1, 3000)  # the head of the queue: what is behind it waits for it


def test_the_wait_is_in_the_accounts_where_the_topic_of_what_was_held_is_known() -> None:
    on = play(1.0)
    for correlation in (1, 2):
        on.client(request(correlation))
        on.broker(answer(correlation))
    on.engine.set_storage_factor(0.0, WHY, on.now)
    assert on.client(request(3)) == (b"", b"")
    on.now += 3.0  # within one interval: then topics are looked up again
    assert lift(on) == (request(3), b"")
    assert on.session.hold.paused_since == 0.0
    assert [row.delay_ms for row in on.ledger() if row.reason == "storage-pause"] == [3000]


@pytest.mark.parametrize("count", [1, 3])
def test_a_pause_longer_than_clients_may_be_kept_ends_in_a_retriable_rejection_that_names_the_volume(
    count: int,
) -> None:
    """For the requests queued behind it, too."""
    on = play()
    on.client(request(1) * count)
    on.now += MAX_WAIT_S
    upstream, client = on.again()
    assert upstream == b""
    first = client[: len(client) // count]
    assert client == first * count
    _, throttle_ms, rows = decode_answer(first)
    code, text = rows["clicks", 0]
    assert (code, throttle_ms) == (89, 1000)
    assert WHY in str(text)
    assert on.rows() == {("clicks", "rejected", "storage-pause"): (count * SIZE, count, count)}


def test_a_batch_of_an_idempotent_producer_rejected_in_a_pause_stands_before_its_successors() -> None:
    on = play()
    on.client(request(1, producer=(7, 0, 0)))
    on.now += MAX_WAIT_S
    on.again()
    on.now = on.session.hold.muted_until
    on.engine.set_storage_factor(1.0, "", on.now)
    upstream, _ = on.client(request(2, producer=(7, 0, 1)))
    assert upstream == b""
    again = request(3, producer=(7, 0, 0))
    assert on.client(again)[0] == again


def test_requests_other_than_produce_pass_before_a_held_one() -> None:
    on = play()
    heartbeat = other_request(1)
    assert on.client(heartbeat + request(2) + other_request(3))[0] == heartbeat


def test_acks_0_waits_on_and_is_forwarded_when_the_pause_is_over() -> None:
    on = play()
    frame = request(1, acks=0)
    on.client(frame)
    for _ in range(10):
        on.now = on.session.hold.held_until
        assert on.again() == (b"", b"")
    on.session.hold.is_client_gone = True  # nobody can be told, and nobody sends it again
    on.now = on.session.hold.held_until
    assert on.again() == (b"", b"")
    assert lift(on)[0] == with_question(frame)
    assert on.rows()["clicks", "unacknowledged", ""][2] == 1


def test_acks_0_is_dropped_and_counted_where_the_operator_says_so_or_the_gateway_stops() -> None:
    drops = play(acks0="drop")
    assert drops.client(request(1, acks=0)) == (b"", b"")
    assert drops.rows() == {("clicks", "dropped", "acks0-limit"): (SIZE, 1, 1)}
    stops = play()
    stops.session.hold.is_draining = True
    assert stops.client(request(1, acks=0)) == (b"", b"")
    assert stops.rows() == {("clicks", "dropped", "connection-lost"): (SIZE, 1, 1)}


def test_acks_0_that_waits_in_a_pause_goes_when_others_need_the_memory() -> None:
    on = play()
    on.client(request(1, acks=0))
    on.now = on.session.hold.held_until
    on.session.hold.is_memory_short = True
    assert on.again() == (b"", b"")
    assert on.session.hold.held_until == 0.0
    assert on.rows() == {("clicks", "dropped", "acks0-limit"): (SIZE, 1, 1)}


def test_requests_held_in_a_pause_are_discarded_when_their_client_has_gone() -> None:
    on = play()
    on.client(request(1))
    on.session.hold.is_client_gone = True
    on.now = on.session.hold.held_until
    assert on.again() == (b"", b"")
    assert on.rows() == {("clicks", "discarded", ""): (SIZE, 1, 1)}


def test_topics_of_the_gateways_own_stay_refused_for_good() -> None:
    on = play(protected_topics=("mine",))
    on.client(request(1, {"mine": [0], "clicks": [0]}))
    on.now += MAX_WAIT_S
    _, client = on.again()
    rows = decode_answer(client)[2]
    assert rows["mine", 0][0] == 29
    assert rows["clicks", 0][0] == 89


def test_a_request_under_several_topics_is_charged_once() -> None:
    on = play(0.5, total=2 * SIZE)
    on.client(request(1, {"a": [0], "b": [0]}))
    limit = present(on.engine.broker_meters(1).limits.storage_throttle)
    line = limit.limiter
    assert line.bucket.token_level(on.now) == -2 * SIZE


def test_rejected_bytes_are_not_charged() -> None:
    on = play(0.5, total=2 * SIZE)
    limit = present(on.engine.broker_meters(1).limits.storage_throttle)
    line = limit.limiter
    line.charge_amount(20 * SIZE, on.now)
    line.check_admission(1, on.now, True, 0.0, "another client")
    on.session.hold.drained_at -= 60.0  # its client may not be kept any longer
    _, client = on.client(request(1))
    assert "share" in str(decode_answer(client)[2]["clicks", 0][1])
    assert on.rows() == {("clicks", "rejected", "storage-throttle"): (SIZE, 1, 1)}
    assert line.bucket.token_level(on.now) == -20 * SIZE
