# A limit whose queue is full, as more clients want to send than it has room for: requests are held while their clients
# wait, and come in turn.

from __future__ import annotations

from typing import Final

import pytest

from policies.limits.limiter import DEBT_S, RECHECK_S
from tests.gateway.data.play import Play, answer, decode_answer, request, size_of
from tests.gateway.data.session.limits_play import REASONS, SIZE, TOPIC, Kind, set_limit, take_turns

PATIENCE_S: Final = 25.0  # of Java
KINDS = pytest.mark.parametrize("kind", list(REASONS))


def filled(on: Play, kind: Kind, seconds: int) -> Play:
    """A connection that finds that another one's request has used up so many seconds of the limit."""
    client_id = "app" if kind == "quota" else "other"
    frame = request(1, {TOPIC: [0]}, values=(bytes(100_000),), client_id=client_id)
    set_limit(on, kind, (len(frame) - 4 if kind == "quota" else size_of((bytes(100_000),))) / seconds)
    other = on.beside()
    assert other.client(frame)[0]
    other.broker(answer(1, {TOPIC: {0: (0, 0)}}))
    on.engine.pace_limits(on.now)
    return on.beside()


@KINDS
def test_a_request_for_which_there_is_no_room_is_held_and_passes_in_time(kind: Kind) -> None:
    on = Play()
    each = filled(on, kind, 12)
    frame = request(1, {TOPIC: [0]})
    assert each.client(frame) == (b"", b"")
    began, looks = each.now, 0
    while not (passed := each.again()[0]) and looks < 100:
        assert each.now < each.session.hold.held_until <= each.now + RECHECK_S[1]
        each.now, looks = each.session.hold.held_until, looks + 1
        if kind in ("threshold", "storage"):
            each.engine.pace_limits(each.now)
    assert passed == frame
    assert 0 < each.now - began < 5
    assert decode_answer(each.broker(answer(1, {TOPIC: {0: (0, 0)}})))[1] > 5000
    rows = each.ledger()
    assert not [row for row in rows if row.outcome == "rejected"]
    delayed = sum(row.delay_ms for row in rows if (row.outcome, row.reason) == ("delayed", REASONS[kind]))
    assert delayed >= 1000 * (each.now - began), "the time for which it was held counts as well"


@KINDS
def test_what_still_finds_no_room_when_its_client_may_not_be_kept_any_longer_is_rejected(kind: Kind) -> None:
    on = Play()
    each = filled(on, kind, 43 if kind == "quota" else 28)
    began, client = each.now, b""
    each.client(request(1, {TOPIC: [0]}, timeout_ms=15_000) + request(2, {TOPIC: [0]}))
    while each.unhandled:
        assert not client
        each.now = on.now = each.session.hold.held_until
        _, client = each.again()
    assert each.now - began == pytest.approx(12.0)
    _, throttle_ms, rows = decode_answer(client[: len(client) // 2])
    assert rows[TOPIC, 0][0] == 89
    assert throttle_ms > 0
    assert [row.requests for row in each.ledger() if row.outcome == "rejected"] == [2], "which waited as long"


@KINDS
@pytest.mark.parametrize("other_asks", [False, True])
def test_large_requests_of_a_client_that_waits_for_itself_only_pass_before_it_gives_them_up(
    kind: Kind, other_asks: bool
) -> None:
    """franz-go writes several at once, each many seconds of its limit, and waits 20 s for each."""
    on = Play()
    values = (bytes(100_000),)
    frame = request(1, {TOPIC: [0]}, values=values, timeout_ms=10_000)
    set_limit(on, kind, (len(frame) - 4 if kind == "quota" else size_of(values)) / 20)
    each = on.beside(("kgo", "v1.22.2"))
    began = each.now
    assert each.client(3 * frame)[0] == frame
    told = [decode_answer(each.broker(answer(1, {TOPIC: {0: (0, 0)}})))[1]]
    if other_asks:
        on.beside().client(request(1, {TOPIC: [0]}, client_id="other"))
    rejected = 0
    while each.unhandled:
        each.now = each.session.hold.held_until
        each.engine.pace_limits(each.now)
        upstream, client = each.again()
        rejected += bool(client)
        for _ in upstream[:: len(frame)]:
            told.append(decode_answer(each.broker(answer(1, {TOPIC: {0: (0, 0)}})))[1])
    assert each.now - began == pytest.approx(16.0)
    if other_asks and kind != "quota":
        assert rejected, "others would wait for it"
    else:
        assert not rejected, "all of it would come again"
        assert len(told) == 3
        assert told[1:] == [30_000, 30_000]


@pytest.mark.parametrize("acks", [-1, 0])
@pytest.mark.parametrize("connections", [1, 10])
@pytest.mark.parametrize("reconnects", [False, True])
def test_however_a_client_sends_it_gets_some_of_its_quota_in_advance_once_and_then_its_quota(
    acks: int, connections: int, reconnects: bool
) -> None:
    on = Play()
    frame, answered = request(1, {TOPIC: [0]}, values=(bytes(30_000),), acks=acks), answer(1, {TOPIC: {0: (0, 0)}})
    set_limit(on, "quota", float(len(frame) - 4))
    passed: list[float] = []
    all_ = [on.beside() for _ in range(connections)]
    began, seconds = on.now, 300
    while on.now < began + seconds:
        on.now += 0.5
        for number, each in enumerate(all_):
            if reconnects and not each.unhandled:
                each.session.close()
                on.world.quotas.renew_limits()
                each = all_[number] = on.beside()
            each.now = on.now
            if not each.unhandled:
                each.session.hold.drained_at = each.now - 60.0  # what it sends now has waited for long
            for _ in range(20):
                upstream, _ = each.again() if each.unhandled else each.client(frame)
                if not upstream:
                    break
                passed.append(each.now)
                if acks:
                    each.broker(answered)
    later = [at for at in passed if at >= began + 60]
    assert len(passed) <= seconds + DEBT_S + 3
    assert len(later) == pytest.approx(seconds - 60, abs=2)


def test_a_limit_that_is_raised_lets_pass_at_the_next_look() -> None:
    on = Play()
    each = filled(on, "quota", 12)
    frame = request(1, {TOPIC: [0]})
    each.client(frame)
    set_limit(on, "quota", 1000 * SIZE)
    each.now += RECHECK_S[1]
    assert each.again() == (frame, b"")


def test_behind_a_rejected_batch_of_an_idempotent_producer_nothing_is_held() -> None:
    on = Play()
    each = filled(on, "group", 12)
    each.session.hold.drained_at -= PATIENCE_S
    each.client(request(1, {TOPIC: [0]}, producer=(7, 0, 0)))
    each.session.hold.drained_at = each.now = each.session.hold.muted_until or each.now
    _, client = each.client(request(2, {TOPIC: [0]}, producer=(7, 0, 1)))
    assert "earlier batch" in str(decode_answer(client)[2][TOPIC, 0][1])


@pytest.mark.parametrize("memory_short", [True, False])
def test_a_request_is_not_held_where_memory_is_short(memory_short: bool) -> None:
    on = Play()
    each = filled(on, "quota", 12)
    each.session.hold.is_memory_short = memory_short
    _, client = each.client(request(1, {TOPIC: [0]}))
    assert bool(client) is memory_short


@KINDS
@pytest.mark.parametrize("connections", [30, 60, 120])
def test_many_connections_come_in_turn_and_get_the_whole_limit(kind: Kind, connections: int) -> None:
    """Each has one request of a quarter of a second at a time: of 30 connections one waits 7.5 s in all, of 60 15 s,
    of 120 30 s.
    """
    on = Play()
    value = (bytes(25_000),)
    ids = ["app" if kind == "quota" else f"app{number}" for number in range(connections)]
    frames = [request(1, {TOPIC: [0]}, values=value, client_id=client_id) for client_id in ids]
    set_limit(on, kind, 4.0 * (len(frames[0]) - 4 if kind == "quota" else size_of(value)))
    got, rejected, seconds, began = [0] * connections, 0, 160, on.now
    all_ = [on.beside() for _ in range(connections)]
    for now, number, passed, refused in take_turns(on, all_, seconds, lambda number: frames[number]):
        rejected += refused
        got[number] += passed and now > began + 60
    total = sum(got)
    whole = 4 * (seconds - 60)
    # One entity may have some in advance, once, where its connections can't wait any longer.
    advance = 4 * DEBT_S if kind == "quota" and connections == 120 else 0.0
    assert 0.95 * whole <= total <= 1.05 * whole + advance
    assert min(got) > 0.5 * total / connections
    assert max(got) < 1.6 * total / connections
    assert bool(rejected) is (connections == 120)
