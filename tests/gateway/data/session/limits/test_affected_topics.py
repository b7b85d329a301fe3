# A session while full disks hold some topics: these wait or are rejected, and all others pass.

from __future__ import annotations

from typing import Any

import pytest

from gateway.data.pending.hold import MAX_WAIT_S
from gateway.data.pending.steps import ProduceRequest
from gateway.data.session.enforcement import FIRST_HOLD_S
from gateway.data.session.gate import ProduceGate
from policies.decision import PartitionLimits
from policies.storage import AffectedTopics
from tests.gateway.data.play import Play, answer, decode_answer, request, size_of, with_question

WHY = "broker 2 volume /data: 0.9 GB of 100.0 GB free, hard limit at 1.0 GB"
SIZE = size_of()
FULL = {"full": [0]}
FREE = {"free": [0]}
SARAMA = ("sarama", "1.46.0")


def play(value: float = 0.0, total: float | None = None, mode: str = "enforce", **settings: Any) -> Play:
    made = Play(total=total, **settings).named()
    made.engine.set_listed_topics(1, ["full", "free"])
    hold(made, value, mode)
    return made


def hold(on: Play, value: float = 0.0, mode: str = "enforce") -> None:
    on.engine.set_affected_topics([AffectedTopics("broker 2 /data", value, WHY, ("full",), (2,))], on.now, mode=mode)  # type: ignore[arg-type]
    on.world.ledger.advance_epoch()


def lift(on: Play) -> tuple[bytes, bytes]:
    on.engine.set_affected_topics((), on.now)
    on.world.ledger.advance_epoch()
    assert on.session.hold.end_pause(on.now)
    return on.again()


def pass_free(on: Play, correlation: int = 100) -> None:
    """The connection writes to another topic, and its broker takes it."""
    frame = request(correlation, FREE)
    assert on.client(frame) == (frame, b"")
    assert on.broker(answer(correlation, {"free": {0: (0, 0)}}))


@pytest.mark.parametrize("step", [0, 1, 7])
def test_other_topics_pass_and_a_held_one_waits(step: int) -> None:
    on = play()
    frame = request(1, FREE)
    assert on.client(frame, step) == (frame, b"")
    assert on.client(request(2, FULL), step) == (b"", b"")
    assert on.session.hold.paused_since == on.now


def test_a_connection_that_writes_to_nothing_else_waits_longer_each_time() -> None:
    on = play()
    waits = []
    for correlation in range(6):
        on.session.hold.drained_at = began = on.now
        assert on.client(request(correlation, FULL)) == (b"", b"")
        on.now = on.session.hold.held_until
        waits.append(on.now - began)
        upstream, client = on.again()
        assert upstream == b""
        _, throttle_ms, rows = decode_answer(client)
        code, text = rows["full", 0]
        assert (code, throttle_ms) == (89, 0)
        assert WHY in str(text)
        assert on.session.hold.muted_until <= on.now
    assert waits == [FIRST_HOLD_S, 2.0, 4.0, 8.0, MAX_WAIT_S, MAX_WAIT_S]


def test_a_connection_that_writes_to_other_topics_is_told_at_once_and_they_keep_their_rate() -> None:
    on = play()
    pass_free(on)
    upstream, client = on.client(request(1, FULL) + request(2, FREE))
    assert upstream == request(2, FREE)
    assert decode_answer(client)[2]["full", 0][0] == 89
    on.broker(answer(2, {"free": {0: (0, 1)}}))
    rows = on.rows()
    assert rows["full", "rejected", "storage-pause"] == (SIZE, 1, 1)
    assert rows["free", "accepted", ""][2] == 2


def test_of_a_mixed_request_the_rest_passes() -> None:
    on = play()
    upstream, client = on.client(request(1, FULL | FREE))
    assert upstream == request(1, FREE)
    assert client == b""
    rows = decode_answer(on.broker(answer(1, {"free": {0: (0, 7)}})))[2]
    assert rows["free", 0][0] == 0
    assert rows["full", 0][0] == 89


@pytest.mark.parametrize("software", [SARAMA, None])
def test_clients_that_give_up_after_a_few_rejections_are_held_as_long_as_may_be(
    software: tuple[str, str] | None,
) -> None:
    on = play().named(software)
    pass_free(on)
    assert on.client(request(1, FULL)) == (b"", b"")
    assert on.session.hold.held_until == on.now + MAX_WAIT_S


def test_when_the_volume_has_room_held_requests_go_on_and_the_wait_is_in_the_accounts() -> None:
    on = play().named(SARAMA)
    frames = request(1, FULL) + request(2, FULL)
    on.client(frames)
    on.now += 3.0
    assert lift(on) == (frames, b"")
    rows = {(row.outcome, row.reason): row.delay_ms for row in on.ledger()}
    assert rows["delayed", "storage-pause"] == 3000


def test_requests_held_for_a_topic_stay_held_when_another_one_is_freed() -> None:
    on = play().named(SARAMA)
    on.client(request(1, FULL))
    since = on.session.hold.paused_since
    on.now += 3.0
    hold(on)
    assert on.session.hold.end_pause(on.now)
    assert on.again() == (b"", b"")
    assert on.session.hold.paused_since == since
    assert on.session.hold.held_until == since + MAX_WAIT_S


def test_acks_0_waits_and_is_forwarded_when_there_is_room() -> None:
    on = play()
    pass_free(on)
    frame = request(1, FULL, acks=0)
    assert on.client(frame) == (b"", b"")
    on.now = on.session.hold.held_until
    assert on.again() == (b"", b"")
    assert lift(on)[0] == with_question(frame)


def test_batches_behind_a_rejected_one_are_fenced_for_that_topic_alone() -> None:
    on = play()
    pass_free(on)
    on.client(request(1, FULL, producer=(7, 0, 0)))
    on.engine.set_affected_topics((), on.now)
    on.world.ledger.advance_epoch()
    assert on.client(request(2, FULL, producer=(7, 0, 1)))[0] == b""
    free = request(3, FREE, producer=(7, 0, 0))
    assert on.client(free)[0] == free
    again = request(4, FULL, producer=(7, 0, 0))
    assert on.client(again)[0] == again


def test_no_other_limit_is_asked_about_a_paused_topic() -> None:
    """Or bytes that don't pass would make those wait that do."""
    on = play()
    on.engine.set_thresholds(1000.0, {}, on_exceed="delay")
    gate = ProduceGate(on.session.client)
    gate.refresh_epoch()
    parts = [(topic, 0, 10, 1, -1, -1, -1, 0) for topic in (b"full", b"free")]
    limits = gate.judge_request(ProduceRequest(bytearray(), 0, 0, 9, 1, -1, parts), on.now).limits
    assert limits[b"free", 0].threshold is not None
    assert limits[b"full", 0] == PartitionLimits(storage=limits[b"full", 0].storage)
