# Price files, and the lines of an invoice: exact amounts, rounded once.

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from gateway.audit.answers.windows import QUARTER_HOUR_MS, CalendarWindows
from gateway.audit.batch.query import AuditQuery
from gateway.audit.questions import cost
from gateway.audit.questions.prices import InvalidPrices, parse_prices
from gateway.audit.spark import schema
from tests.audit.records import START

YAML = """
currency: EUR
prices:
  - {per_gb: 0.02, group: "batch-*", topic: logs}
  - {per_gb: 0.015, group: "batch-*"}
  - {per_gb: 0.1, group: web}
"""
CSV = "group,topic,per_gb,currency\nbatch-*,logs,0.02,EUR\nbatch-*,,0.015,EUR\nweb,,0.1,EUR\n"
MONTHS = AuditQuery(("group",), QUARTER_HOUR_MS, calendar=CalendarWindows("month", "Europe/Berlin"))


def _row(group: str, topic: str, size: int, window: int = START) -> dict[str, Any]:
    return {schema.WINDOW_COLUMN: window, "group": group, "topic": topic, "accepted_bytes": size}


def test_yaml_and_csv_say_the_same() -> None:
    found = parse_prices(YAML, is_csv=False)
    assert parse_prices(CSV, is_csv=True) == found
    assert (found.currency, found.charged, found.digits, found.dimensions) == ("EUR", "accepted", 2, ("group", "topic"))


def test_the_first_price_that_matches_holds_and_amounts_are_rounded_once_per_line() -> None:
    found = parse_prices(YAML, is_csv=False)
    question = cost.cost_question(MONTHS, found)
    assert question.by == ("group", "topic")
    rows = [
        _row("batch-1", "logs", 10**9 // 4),  # 0.005
        _row("batch-1", "other", 10**9 // 3 * 2),  # 0.00999… and with it 0.01499…
        _row("batch-2", "logs", 2**60),
        _row("free", "logs", 7),
        _row("web", "logs", 10**9, START + 30 * 86_400_000),
    ]
    lines = cost.make_lines(rows, MONTHS, found)
    assert [*lines[0]] == [*cost.cost_kinds(MONTHS.by)]
    shown = [(line["window_start"], line["group"], line["amount"], line["unpriced_bytes"]) for line in lines]
    assert shown == [
        ("2025-11-20T01:54:00+01:00", "batch-1", Decimal("0.01"), 0),
        ("2025-11-20T01:54:00+01:00", "batch-2", Decimal("23058430.09"), 0),
        ("2025-11-20T01:54:00+01:00", "free", Decimal("0.00"), 7),
        ("2025-12-20T01:54:00+01:00", "web", Decimal("0.10"), 0),
    ]
    total = cost.total_lines(lines)
    assert (total["amount"], total["unpriced_bytes"]) == (Decimal("23058430.20"), 7)


def test_spaces_around_a_value_of_a_csv_file_are_no_part_of_it() -> None:
    spaced = CSV.replace(",", " ,\t").replace("\n", " \n")
    assert parse_prices(spaced, is_csv=True) == parse_prices(CSV, is_csv=True)


def test_a_half_goes_up() -> None:
    found = parse_prices("currency: EUR\nprices: [{per_gb: 0.005}, ]", is_csv=False)
    assert cost.make_lines([_row("", "", 10**9)], MONTHS, found)[0]["amount"] == Decimal("0.01")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prices: {", "YAML:1: "),
        ("currency: EUR", "prices: a list of"),
        ("currency: EUR\nprices: []", "it has no price"),
        ("prices: [{per_gb: 1}]", "currency: a name such as EUR is needed"),
        ("currency: EUR\nprices: [{per_gb: -1}]", "prices[0]: per_gb: -1 is not a price such as 0.10"),
        ("currency: EUR\nprices: [{per_gb: .nan}]", "prices[0]: per_gb: nan is not a price such as 0.10"),
        ("currency: EUR\nprices: [{group: a}]", "prices[0]: per_gb is missing"),
        ("currency: EUR\nprices: [{per_gb: 1, tenant: a}]", "prices[0]: 'tenant' is not one of per_gb, group"),
        ("currency: EUR\ncharged: sent\nprices: [{per_gb: 1}]", "charged: 'sent' is not one of offered"),
        ("currency: EUR\nprices: [{per_gb: 1, group: no}]", "prices[0]: group: False is not text: put the name into q"),
        ("currency: EUR\nprices: [{per_gb: 1, topic: 010}]", "YAML:2: YAML takes this for a number"),
        ("currency: EUR\nprices: [{per_gb: 1, per_gb: 2}]", "per_gb is there twice"),
        ("currency: EUR\ndigits: 7\nprices: [{per_gb: 1}]", "digits: 7 is not between 0 and 6"),
        ("currency: EUR\ndigits: yes\nprices: [{per_gb: 1}]", "digits: True is not between 0 and 6"),
    ],
)
def test_what_is_no_price_file_says_where(text: str, said: str) -> None:
    with pytest.raises(InvalidPrices) as error:
        parse_prices(text, is_csv=False)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("per_gb,currency\n1,EUR\n2,USD\n", "currency: EUR (line 2), USD (line 3): all prices of a file need the same"),
        ("per_gb,currency\n1,EUR\n2\n", "currency: none (line 3), EUR (line 2): all prices"),
        ("per_gb,currency\n1,EUR\nx,EUR\n", "line 3: per_gb: 'x' is not a price such as 0.10"),
        ('group,per_gb,currency\n\n"a\nb",1,EUR\n\nc,,EUR\n', "line 6: per_gb is missing"),
        ("group;per_gb;currency\n", "line 1: 'group;per_gb;currency' is not one of per_gb, group, topic"),
        ("group,per_gb,group,currency\na,1,b,EUR\n", "line 1: group is there twice"),
        ("per_gb,currency\n1,EUR,0,1\n", "line 2: it has more values than there are columns"),
        (f"per_gb,currency\n1,{'x' * 200_000}\n", "line 2: field larger than field limit"),
        ("", "it has no price"),
    ],
)
def test_a_csv_file_has_one_currency_and_names_its_lines(text: str, said: str) -> None:
    with pytest.raises(InvalidPrices) as error:
        parse_prices(text, is_csv=True)
    assert said in str(error.value)


def test_names_are_text_to_the_letter() -> None:
    found = parse_prices('currency: EUR\nprices: [{per_gb: 1, group: "no", broker: 3}]', is_csv=False)
    assert found.find_price({"group": "no", "broker": 3}) == 1
    found = parse_prices('per_gb,group,currency\n1,"a\nb\u2028",EUR\n', is_csv=True)
    assert found.find_price({"group": "a\nb\u2028"}) == 1
