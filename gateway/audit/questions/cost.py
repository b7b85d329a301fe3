# What tenants owe: bytes of each window, at the price that a file has for them. Pure: sums in, invoice lines out.
#
# A line's amount is rounded once, from exact decimals, and totals add up rounded lines, as an invoice has to.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, localcontext
from typing import Any, Final

from gateway.audit import columns
from gateway.audit.answers.windows import time_text
from gateway.audit.batch.query import AuditQuery
from gateway.audit.questions.prices import GIGABYTE, PriceList

_KEYS: Final = ("window_start_ms", "window_start")


def cost_question(question: AuditQuery, prices: PriceList) -> AuditQuery:
    """The sums that lines by `question.by` are made of."""
    by = tuple(dict.fromkeys((*question.by, *prices.dimensions)))
    return AuditQuery(by, question.window_ms, question.from_ms, question.to_ms, question.calendar)


def cost_kinds(by: tuple[str, ...]) -> dict[str, type]:
    """The columns of `make_lines`."""
    names = {_KEYS[0]: int, _KEYS[1]: str, **columns.dimension_kinds(by), "currency": str}
    return names | {"bytes": int, "amount": Decimal, "unpriced_bytes": int}


def make_lines(rows: Iterable[Mapping[str, Any]], question: AuditQuery, prices: PriceList) -> list[dict[str, Any]]:
    """A line for each window and group of `question.by`, of the rows of `cost_question`. `bytes` are all that are
    charged, `unpriced_bytes` those of them that have no price.
    """
    found: dict[tuple[Any, ...], tuple[int, Decimal, int]] = {}
    charged = columns.sum_column(prices.charged, "bytes")
    with localcontext(prec=60):
        for row in rows:
            key = (row[columns.WINDOW_COLUMN], *(row[name] for name in question.by))
            price = prices.find_price(row)
            size, amount, unpriced = found.get(key, (0, Decimal(0), 0))
            more = row[charged]
            cost = more * price / GIGABYTE if price is not None else Decimal(0)
            found[key] = (size + more, amount + cost, unpriced + (more if price is None else 0))
    return [
        {
            _KEYS[0]: window,
            _KEYS[1]: time_text(window, question.zone),
            **dict(zip(question.by, names, strict=True)),
            "currency": prices.currency,
            "bytes": size,
            "amount": prices.round_amount(amount),
            "unpriced_bytes": unpriced,
        }
        for (window, *names), (size, amount, unpriced) in sorted(found.items())
    ]


def total_lines(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums over all lines."""
    lines = list(lines)
    total = sum((line["amount"] for line in lines), Decimal(0))
    return {name: sum(line[name] for line in lines) for name in ("bytes", "unpriced_bytes")} | {"amount": total}
