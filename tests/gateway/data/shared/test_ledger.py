# The counters of one interval. Compiled and not.

from __future__ import annotations

from typing import Any

import pytest

from gateway.channel import Row
from gateway.data.shared.ledger import OTHER
from tests.variants import COMPILED, PURE, module


@pytest.fixture(params=[PURE, COMPILED])
def ledgers(request: pytest.FixtureRequest) -> Any:
    return module("gateway.data.shared.ledger", request.param).Ledger


def test_names_that_clients_give_are_bounded_together(ledgers: Any) -> None:
    ledger = ledgers(max_names=2)
    for n in range(5):
        ledger.row(1, "t", "User:a", "app", "accepted", software=f"client-{n}")[0] += 10
    ledger.row(1, "t", "User:b", "app", "accepted", software="client-0")[0] += 10
    rows, _ = ledger.close()
    assert [(row.principal, row.client_id, row.software, row.bytes) for row in rows] == [
        ("User:a", "app", "client-0", 10),
        ("User:a", "app", "client-1", 10),
        (OTHER, OTHER, OTHER, 40),
    ]


def test_a_row_of_nothing_but_bytes_that_may_be_repeats_is_one_row(ledgers: Any) -> None:
    ledger = ledgers()
    row = ledger.row(1, "t", "User:a", "app", "accepted")
    row[:] = [100, 3, 2, 50, 0, 100, 3]
    assert ledger.close()[0] == (Row(1, "t", "User:a", "app", "accepted", "", 100, 3, 2, 50),)
    row = ledger.row(1, "t", "User:a", "app", "accepted", "", "gold", "kgo")
    row[:] = [100, 3, 2, 50, 20, 70, 2]
    assert ledger.close()[0] == (
        Row(1, "t", "User:a", "app", "accepted", "", 30, 1, 2, 50, "gold", "kgo", 20),
        Row(1, "t", "User:a", "app", "accepted", "", 70, 2, 0, 0, "gold", "kgo"),
    )


def test_each_interval_has_its_own_counts(ledgers: Any) -> None:
    ledger = ledgers()
    ledger.row(1, "t", "User:a", "app", "accepted")[0] += 10
    ledger.requests += 3
    ledger.count("requests")
    ledger.count("mutes", 2)
    rows, counts = ledger.close()
    assert [row.bytes for row in rows] == [10]
    assert counts == {"requests": 4, "mutes": 2}
    assert (ledger.epoch, ledger.size, ledger.requests) == (1, 0, 0)
    assert ledger.close() == ((), {})


def test_who_keeps_something_looks_it_up_anew_where_another_epoch_begins(ledgers: Any) -> None:
    ledger = ledgers()
    ledger.renew()
    assert ledger.epoch == 1
    assert ledger.row(1, "t", "User:a", "app", "accepted") is ledger.row(1, "t", "User:a", "app", "accepted")
