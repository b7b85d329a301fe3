# A price file: what a GB costs, by patterns of names. YAML, or CSV with a header. Text in, prices out; pure.

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from gateway.audit import columns
from gateway.yaml_text import YamlError, load_yaml
from policies import usage

GIGABYTE: Final = 10**9
MATCHED: Final = ("group", "topic", "principal", "client_id", "software", "broker", "gateway")
MOST_DIGITS: Final = 6
_PRICE, _CURRENCY = "per_gb", "currency"
_BLANKS: Final = " \t"
_CHARGED: Final = (columns.OFFERED, *usage.OUTCOMES, columns.MAYBE_APPENDED)


class InvalidPrices(ValueError):
    """Not a price file; the text says where, and what would be right."""


class GigabytePrice(NamedTuple):
    """`patterns`: globs by dimension, all of which have to match."""

    per_gb: Decimal
    patterns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PriceList:
    """The first price that matches holds. `charged`: the sum whose bytes cost (columns.SUMS); `digits`: of an amount,
    behind the point.
    """

    prices: Sequence[GigabytePrice]
    currency: str
    charged: str = "accepted"
    digits: int = 2

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Those that the patterns look at."""
        return tuple(name for name in MATCHED if any(name in price.patterns for price in self.prices))

    def find_price(self, names: Mapping[str, Any]) -> Decimal | None:
        """The price of a GB for bytes of these names (`dimensions`); None: it has none."""
        for price in self.prices:
            if all(fnmatchcase(str(names[name]), pattern) for name, pattern in price.patterns.items()):
                return price.per_gb
        return None

    def round_amount(self, amount: Decimal) -> Decimal:
        """An amount as it is charged: halves go up."""
        with localcontext(prec=60):
            return amount.quantize(Decimal(1).scaleb(-self.digits), ROUND_HALF_UP)


def parse_prices(text: str, is_csv: bool) -> PriceList:
    """The price list in a file's text.

    Raises:
        InvalidPrices: it isn't one.
    """
    return _parse_csv(text) if is_csv else _parse_yaml(text)


def _parse_yaml(text: str) -> PriceList:
    try:
        found = load_yaml(text, "YAML")
    except YamlError as error:
        raise InvalidPrices(str(error)) from None
    if not isinstance(found, dict) or not isinstance(found.get("prices"), list):
        raise InvalidPrices("prices: a list of {per_gb: 0.10, group: team-*} is needed")
    _check_names(found, (_CURRENCY, "charged", "digits", "prices"), "")
    prices = [_make_price(each, f"prices[{number}]") for number, each in enumerate(found["prices"])]
    return _make_list(prices, found.get(_CURRENCY), found.get("charged", "accepted"), found.get("digits", 2))


def _parse_csv(text: str) -> PriceList:
    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="", restval="")
    prices: list[GigabytePrice] = []
    currencies: dict[str, str] = {}
    try:
        names = reader.fieldnames = [name.strip(_BLANKS) for name in reader.fieldnames or ()]
        _check_names(names, (_PRICE, *MATCHED, _CURRENCY), "line 1: ")
        for name in names:
            if names.count(name) > 1:
                raise InvalidPrices(f"line 1: {name} is there twice")
        for row in reader:
            where = f"line {reader.line_num}"
            if "" in row:
                raise InvalidPrices(f"{where}: it has more values than there are columns")
            # Spaces around a value are the file's, not the name's: a pattern with them would match nothing.
            row = {name: value.strip(_BLANKS) for name, value in row.items()}
            currencies[row.pop(_CURRENCY, "")] = where
            prices.append(_make_price({name: value for name, value in row.items() if value}, where))
    except csv.Error as error:
        raise InvalidPrices(f"line {reader.line_num + 1}: {error}") from None
    if len(currencies) > 1:
        found = ", ".join(f"{name or 'none'} ({where})" for name, where in sorted(currencies.items()))
        raise InvalidPrices(f"currency: {found}: all prices of a file need the same one")
    return _make_list(prices, next(iter(currencies), None), "accepted", 2)


def _make_list(prices: list[GigabytePrice], currency: Any, charged: Any, digits: Any) -> PriceList:
    if not prices:
        raise InvalidPrices("it has no price")
    if not isinstance(currency, str) or not currency:
        raise InvalidPrices("currency: a name such as EUR is needed")
    if charged not in _CHARGED:
        raise InvalidPrices(f"charged: {charged!r} is not one of {', '.join(_CHARGED)}")
    if type(digits) is not int or not 0 <= digits <= MOST_DIGITS:
        raise InvalidPrices(f"digits: {digits!r} is not between 0 and {MOST_DIGITS}")
    return PriceList(prices, currency, charged, digits)


def _make_price(entry: Any, where: str) -> GigabytePrice:
    if not isinstance(entry, dict):
        raise InvalidPrices(f"{where}: {{per_gb: 0.10, group: team-*}} is needed")
    _check_names(entry, (_PRICE, *MATCHED), f"{where}: ")
    if _PRICE not in entry:
        raise InvalidPrices(f"{where}: per_gb is missing")
    try:
        price = Decimal(str(entry[_PRICE]))
    except InvalidOperation:
        price = Decimal(-1)
    if not (price.is_finite() and 0 <= price < 10**9):
        raise InvalidPrices(f"{where}: per_gb: {entry[_PRICE]!r} is not a price such as 0.10")
    patterns = {name: entry[name] for name in MATCHED if name in entry}
    for name, pattern in patterns.items():
        # YAML takes `no` for false, 010 for 8: bytes would go on to the next price.
        if not isinstance(pattern, str) and not (name == "broker" and type(pattern) is int):
            raise InvalidPrices(f"{where}: {name}: {pattern!r} is not text: put the name into quotes")
    return GigabytePrice(price, {name: str(pattern) for name, pattern in patterns.items()})


def _check_names(found: Iterable[Any], known: Sequence[str], where: str) -> None:
    for name in found:
        if name not in known:
            raise InvalidPrices(f"{where}{name!r} is not one of {', '.join(known)}")
