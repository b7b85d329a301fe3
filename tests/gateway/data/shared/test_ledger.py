# The counters of one interval. Compiled and not.

from __future__ import annotations

from typing import Any

import pytest

from gateway.channel import UsageRow
from gateway.data.shared.ledger import OTHER_NAME
from tests.variants import COMPILED, PURE, module


@pytest.fixture(params=[PURE, COMPILED])
def ledgers(request: pytest.FixtureRequest) -> Any:
    return module("gateway.data.shared.ledger", request.param).UsageLedger


def test_names_that_clients_give_are_bounded_together(ledgers: Any) -> None:
    ledger = ledgers(max_names=2)
    for n in range(5):
        ledger.find_row(1, "t", "User:a", "app", "accepted", software=f"client-{n}")[0] += 10
    ledger.find_row(1, "t", "User:b", "app", "accepted", software="client-0")[0] += 10
    rows, _ = ledger.close_interval()
    assert [(row.principal, row.client_id, row.software, row.bytes) for row in rows] == [
        ("User:a", "app", "client-0", 10),
        ("User:a", "app", "client-1", 10),
        (OTHER_NAME, OTHER_NAME, OTHER_NAME, 40),
    ]


def test_a_row_of_nothing_but_bytes_that_may_be_repeats_is_one_row(ledgers: Any) -> None:
    ledger = ledgers()
    row = ledger.find_row(1, "t", "User:a", "app", "accepted")
    row[:] = [100, 3, 2, 50, 0, 100, 3]
    assert ledger.close_interval()[0] == (UsageRow(1, "t", "User:a", "app", "accepted", "", 100, 3, 2, 50),)
    row = ledger.find_row(1, "t", "User:a", "app", "accepted", "", "gold", "kgo")
    row[:] = [100, 3, 2, 50, 20, 70, 2]
    assert ledger.close_interval()[0] == (
        UsageRow(1, "t", "User:a", "app", "accepted", "", 30, 1, 2, 50, "gold", "kgo", 20),
        UsageRow(1, "t", "User:a", "app", "accepted", "", 70, 2, 0, 0, "gold", "kgo"),
    )


def test_each_interval_has_its_own_counts(ledgers: Any) -> None:
    ledger = ledgers()
    ledger.find_row(1, "t", "User:a", "app", "accepted")[0] += 10
    ledger.request_count += 3
    ledger.count_event("requests")
    ledger.count_event("mutes", 2)
    rows, counts = ledger.close_interval()
    assert [row.bytes for row in rows] == [10]
    assert counts == {"requests": 4, "mutes": 2}
    assert (ledger.epoch, ledger.size_bytes, ledger.request_count) == (1, 0, 0)
    assert ledger.close_interval() == ((), {})


def test_who_keeps_something_looks_it_up_anew_where_another_epoch_begins(ledgers: Any) -> None:
    ledger = ledgers()
    ledger.advance_epoch()
    assert ledger.epoch == 1
    assert ledger.find_row(1, "t", "User:a", "app", "accepted") is ledger.find_row(1, "t", "User:a", "app", "accepted")
