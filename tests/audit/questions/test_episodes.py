# Refusals as episodes: from sums of windows, when each began and ended, and what became of it.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.audit.questions import episodes
from gateway.audit.questions.episodes import find_episodes
from gateway.audit.spark import schema
from tests.audit.records import START

MINUTE = 60_000
ZERO = dict.fromkeys(episodes.NOTED_SUMS, 0)


def _row(minute: int, client: str = "app", reason: str = "", **bytes_: int) -> dict[str, Any]:
    window = {schema.WINDOW_COLUMN: START + minute * MINUTE}
    names = {"principal": "User:alice", "client_id": client, "topic": "clicks", "reason": reason}
    return window | names | ZERO | {f"{name}_bytes": size for name, size in bytes_.items()}


def _found(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Client, first and last minute, outcome, finally dropped at most and least, minutes until accepted."""
    found = [*find_episodes(rows, MINUTE)]
    assert all([*each] == [*episodes.KINDS] for each in found)
    return [
        (
            each["client_id"], (each["start_ms"] - START) // MINUTE, (each["end_ms"] - START) // MINUTE,
            each["outcome"], each["finally_dropped_bytes"], each["finally_dropped_least_bytes"],
            each["until_accepted_ms"] and each["until_accepted_ms"] // MINUTE,
        )
        for each in found
    ]  # fmt: skip


def test_all_that_was_refused_got_in_later() -> None:
    rows = [
        _row(0, reason="client-quota", rejected=100),
        _row(1, reason="client-quota", rejected=100, repeats=100, rejected_again=100),
        _row(3, repeats=100),
        _row(20),
    ]
    assert _found(rows) == [("app", 0, 4, "accepted", 0, 0, 4)]


def test_what_got_in_within_the_window_of_its_refusal_is_not_dropped() -> None:
    rows = [
        _row(0, "a", repeats=100), _row(0, "a", "fence", rejected=100),
        _row(0, "b", repeats_unknown=60), _row(0, "b", "fence", rejected=100), _row(20),
    ]  # fmt: skip
    assert _found(rows) == [("a", 0, 1, "accepted", 0, 0, 1), ("b", 0, 1, "dropped", 100, 40, None)]


def test_what_never_came_again_is_dropped_after_ten_minutes_and_open_before() -> None:
    refused = [_row(0, reason="fence", rejected=100), _row(2, repeats=60)]
    assert _found([*refused, _row(9, "other")]) == [("app", 0, 3, "open", 40, 40, None)]
    assert _found([*refused, _row(13, "other")]) == [("app", 0, 3, "dropped", 40, 40, None)]
    assert [each["outcome"] for each in find_episodes(refused, MINUTE, START + 13 * MINUTE)] == ["dropped"]


def test_where_another_worker_may_have_seen_the_retry_nothing_is_certainly_lost() -> None:
    rows = [_row(0, reason="fence", rejected=100, dropped=3), _row(1, discarded=7)]
    (seen,), (unseen,) = ([*find_episodes(rows, MINUTE, sees_repeats=sees)] for sees in (True, False))
    bounds = [(each["finally_dropped_least_bytes"], each["finally_dropped_bytes"]) for each in (seen, unseen)]
    assert bounds == [(103, 110), (3, 110)]


def test_acks_0_over_a_limit_is_dropped_at_once_and_unknown_repeats_make_a_bound() -> None:
    assert _found([_row(0, reason="acks0-limit", dropped=5)]) == [("app", 0, 1, "dropped", 5, 5, None)]
    rows = [_row(0, reason="fence", rejected=100, repeats_unknown=100), _row(1, repeats_unknown=70), _row(12)]
    assert _found(rows) == [("app", 0, 1, "dropped", 100, 0, None)]


def test_clients_have_episodes_of_their_own_and_one_that_is_over_begins_anew() -> None:
    rows = [
        _row(0, "a", "fence", rejected=1),
        _row(0, "b", "client-quota", rejected=2),
        _row(1, "a", repeats=1),
        _row(3, "a", "fence", rejected=4),
        _row(4, "a", repeats=4),
    ]
    found = sorted(_found(rows))
    assert found == [
        ("a", 0, 2, "accepted", 0, 0, 2), ("a", 3, 5, "accepted", 0, 0, 2), ("b", 0, 1, "open", 2, 2, None),
    ]  # fmt: skip
    reasons = [_row(0, "a", "fence", rejected=1), _row(0, "a", "client-quota", rejected=2)]
    assert next(find_episodes(reasons, MINUTE))["reasons"] == "client-quota, fence"
