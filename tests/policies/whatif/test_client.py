# What one client holds back and sends again, in a replay.

from __future__ import annotations

import pytest

from policies.whatif.client import ReplayStream
from policies.whatif.rows import ReplayRow

KEY = (1, "clicks", "User:alice", "app")


def test_it_tries_held_batches_in_the_order_in_which_they_came() -> None:
    stream = ReplayStream(KEY)
    stream.hold_bytes(100, 0, now=0.0)
    assert stream.attempt_bytes(60) == (60, 0), "for the first time"
    assert stream.attempt_bytes(60) == (60, 60), "the same ones again"
    stream.hold_bytes(50, 0, now=5.0)
    assert stream.untried_bytes == 90
    assert stream.release_bytes(80) == (80, 60), "20 of them were never tried"
    assert stream.held == 70
    assert stream.release_bytes(1000) == (70, 0)
    assert stream.held == stream.untried_bytes == 0


def test_a_batch_rejected_before_is_tried_already() -> None:
    stream = ReplayStream(KEY)
    stream.hold_bytes(100, 40, now=0.0)
    assert stream.untried_bytes == 60
    assert stream.release_bytes(100) == (100, 40)


def test_it_gives_up_what_it_has_for_too_long() -> None:
    stream = ReplayStream(KEY)
    stream.hold_bytes(100, 0, now=0.0)
    stream.hold_bytes(70, 0, now=60.0)
    stream.attempt_bytes(30)
    assert stream.expire_held(before=60.0) == 70, (
        "30 of the first hundred were tried: those were rejected, not dropped unseen"
    )
    assert stream.held == 70
    assert stream.expire_held(before=60.0) == 0


def test_rejected_bytes_are_pending_until_they_come_again() -> None:
    stream = ReplayStream(KEY)
    stream.record_owed(100)
    stream.record_owed(-60)
    assert stream.pending == 40
    stream.record_owed(-100)
    assert stream.pending == 0, "what it repeats of a time before the record"


def test_of_repeats_as_much_falls_away_as_is_in_of_what_is_pending() -> None:
    stream = ReplayStream(KEY)
    assert stream.replayed_share == 0
    stream.record_owed(100)
    stream.replayed = 25.0
    assert stream.replayed_share == 0.25
    stream.record_owed(-90)
    assert stream.replayed_share == 1.0, "no more than is pending"


def test_it_learns_how_large_its_requests_are() -> None:
    stream = ReplayStream(KEY)
    row = ReplayRow(("gw", "b", 0), 0, 0, 1000, KEY, "unacknowledged", "", 5000, 50, 10, 0, 0)
    stream.learn_requests([row, row._replace(bytes=900, requests=0)])
    assert (stream.request, stream.messages, stream.outcome) == (500, 0.01, "unacknowledged")


@pytest.mark.parametrize("size", [0, -3])
def test_nothing_is_nothing(size: int) -> None:
    stream = ReplayStream(KEY)
    stream.hold_bytes(size, 0, now=0.0)
    assert stream.release_bytes(10) == (0, 0)
