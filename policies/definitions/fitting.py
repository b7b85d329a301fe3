# The thresholds of many that go together, taken one after the other as `PolicySet.alter` would take them: in one pass,
# however many there are, since only the sums of the brokers at hand are looked at.

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import InvalidPolicy, Op, PolicyKey, Value, as_number
from policies.thresholds.sums import (
    EVERY_BROKER,
    Committed,
    Places,
    exceeded,
    is_unplaced,
    over_texts,
)
from policies.thresholds.values import TOTAL_KEY


def fitting(policies: PolicySet, ops: Sequence[Op], *, places: Places | None = None) -> list[str | None]:
    """One per op: its fault, or None."""
    fits = _Fitting(policies, places)
    errors: list[str | None] = []
    for op in ops:
        try:
            fits.take(*policies.checked(op))
            errors.append(None)
        except ValueError as error:
            errors.append(str(error))
    return errors


class _Fitting:
    """Thresholds in the making. Sums are exact, and rounded where they are compared, as `alter` has them."""

    def __init__(self, policies: PolicySet, places: Places | None) -> None:
        self._base = policies.base
        self._places = places
        self._former = policies.committed(places)
        self._totals = {key.name: as_number(v) for key, v in policies.effective().items() if key.key == TOTAL_KEY}
        self._topics = dict(policies.topics())
        self._reserved = policies.reserved(places)
        self._sum = self._add_up(self._topics)  # of all topics
        placed = sorted((places or {}).items())
        self._sums = {str(broker_id): self._add_up(self._topics.keys() & names) for broker_id, names in placed}
        self._everywhere = sum(map(Fraction, self._reserved.values()), Fraction())
        self._taken: set[PolicyKey] = set()

    def take(self, key: PolicyKey, value: Value | None) -> None:
        """Raises InvalidPolicy if it doesn't fit; nothing is taken then."""
        if key in self._taken:
            raise InvalidPolicy(f"{key} is given twice: set or remove it once per request")
        wanted = self._base.get(key) if value is None else value
        number = None if wanted is None else as_number(wanted)
        if key.key == TOTAL_KEY:
            self._take_total(key.name, number)
        elif key.kind == "topic":
            self._take_topic(key.name, number or 0.0)
        self._taken.add(key)

    def _take_total(self, name: str, total: float | None) -> None:
        totals = {other: value for other, value in self._totals.items() if other != name}
        if total is not None:
            totals[name] = total
        if self._places is None:
            sums = {name: self._sum}
        else:
            sums = {on: each for on, each in self._sums.items() if on == name or (not name and on not in totals)}
        self._refuse(sums, self._everywhere, totals)
        self._totals = totals

    def _take_topic(self, name: str, value: float) -> None:
        everywhere = self._everywhere
        more = Fraction(value) - Fraction(self._topics.get(name, 0.0))
        if self._places is None:
            sums = dict.fromkeys(sorted(self._totals), self._sum + more)
        elif is_unplaced(name, self._places):
            sums = self._sums
            everywhere += Fraction(value) - Fraction(self._reserved.get(name, 0.0))
        else:
            brokers = (str(broker_id) for broker_id, names in sorted(self._places.items()) if name in names)
            sums = {broker: self._sums[broker] + more for broker in brokers}
        self._refuse(sums, everywhere, self._totals)
        if self._places is not None:
            self._sums |= sums
        if everywhere != self._everywhere:
            self._everywhere, self._reserved[name] = everywhere, value
        self._sum += more
        self._topics[name] = value

    def _refuse(self, sums: Mapping[str, Fraction], everywhere: Fraction, totals: Mapping[str, float]) -> None:
        default = None if self._places is None else totals.get(EVERY_BROKER)
        now = {}
        for name, each in sums.items():
            total = totals.get(name, default)
            if total is not None:
                now[name] = Committed(total, float(each), float(everywhere))
        texts = [text for _, text in over_texts(exceeded(now, self._former))]
        if texts:
            raise InvalidPolicy("; ".join(texts))

    def _add_up(self, names: Iterable[str]) -> Fraction:
        return sum((Fraction(self._topics[name]) for name in names), Fraction())
