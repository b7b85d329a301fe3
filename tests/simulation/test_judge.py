# What the judge takes for a limit that is not used up.

from __future__ import annotations

import pytest

from tests.simulation.judge import WINDOW_S, Judge, Limit, RejectingTotal, Transaction, Transactions
from tests.simulation.models.wire import Batch

RATE = 1000.0


@pytest.mark.parametrize(
    ("share", "second_gateway", "is_wrong"),
    [
        (0.98, (900.0, 900.0), False),
        (0.95, (900.0, 900.0), True),
        (0.95, (0.0, 0.0), True),
        (0.95, (900.0, 0.0), False),  # in turns: the first one learns of it too late
        (0.95, (100.0, 0.0), True),  # it never wanted more
        (0.90, (900.0, 0.0), True),
    ],
)
def test_a_gateway_whose_clients_are_in_turns_costs_others_a_part(
    share: float, second_gateway: tuple[float, float], is_wrong: bool
) -> None:
    now = 100.0
    judge = Judge(lambda: now)
    held = {"gw0": 5 * RATE, "gw1": 0.0}
    limit = Limit("total", RATE, lambda: 5 * RATE, lambda: True, 0.0, lambda: dict(held))
    judge.limits["total"] = limit
    for second in range(WINDOW_S):
        now += 1.0
        limit.taken, held["gw1"] = share * RATE, second_gateway[second // 3 % 2]
        judge.end_second()
    assert bool(judge.violations) is is_wrong


@pytest.mark.parametrize(("beyond_s", "is_wrong"), [(2.5, False), (4.5, True)])
def test_what_a_stopped_control_lets_through_counts_in_all_windows_that_have_some_of_it(
    beyond_s: float, *, is_wrong: bool
) -> None:
    now = 100.0
    judge = Judge(lambda: now)
    limit = judge.limits["group"] = Limit("group", RATE, lambda: 5 * RATE, lambda: True, 0.0)
    limit.over_from, limit.is_lower_judged = 1000.0, False
    limit.excuses.append((140.0, 145.0, 3.0))  # it was stopped then, and more came some seconds later
    for second in range(3 * WINDOW_S):
        now += 1.0
        limit.taken = RATE + (beyond_s * RATE if second == 43 else 0.0)
        judge.end_second()
    assert bool(judge.violations) is is_wrong


@pytest.mark.parametrize(("part", "is_wrong"), [(0.5, False), (0.0, True)])
def test_a_gateway_that_starts_may_let_its_part_of_two_bursts_pass_again(part: float, *, is_wrong: bool) -> None:
    total = RejectingTotal("total", RATE, 5.0, 0.0)
    total.excuse("gw1", 0.0, 2.0 * 5.0 * part)
    total.taken["gw1"] = round(15.0 * RATE)
    assert bool(total.end_second()) is is_wrong


@pytest.mark.parametrize("is_another", [False, True])
def test_a_topic_that_is_made_again_has_other_batches_at_the_same_places(*, is_another: bool) -> None:
    found: list[str] = []
    transactions = Transactions(lambda kind, text: found.append(kind))
    transactions.append(Transaction("one"), "orders", 0, 7, Batch(0, 0, 1, 100, 1, 1, 0, 0))
    transactions.mark(1, "orders", 0, commits=True)
    if is_another:
        transactions.forget_topic("orders")
        transactions.append(Transaction("two"), "orders", 0, 7, Batch(0, 0, 1, 100, 1, 1, 0, 0))
        transactions.mark(1, "orders", 0, commits=False)
    transactions.pass_by("orders", 0, 7)
    assert found == ([] if is_another else ["unread"])
