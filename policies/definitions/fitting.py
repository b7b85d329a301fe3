# The thresholds of many that go together, taken one after the other as `PolicySet.alter_policies` would take them: in
# one pass, however many there are, since only the sums of the brokers at hand are looked at.

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import InvalidPolicy, PolicyKey, PolicyOperation, PolicyValue, as_number
from policies.thresholds.sums import (
    EVERY_BROKER,
    CommittedTotal,
    TopicPlaces,
    find_exceeded,
    is_unplaced,
    over_texts,
)
from policies.thresholds.values import TOTAL_KEY


def find_misfits(
    policies: PolicySet, ops: Sequence[PolicyOperation], *, places: TopicPlaces | None = None
) -> list[str | None]:
    """One result per operation: its fault, or None."""
    fits = _ThresholdFit(policies, places)
    errors: list[str | None] = []
    for op in ops:
        try:
            fits.check_unique(op.key.validate_key())  # first, as `alter_policies` does
            fits.add_value(*policies.check_operation(op))
            errors.append(None)
        except ValueError as error:
            errors.append(str(error))
    return errors


class _ThresholdFit:
    """A set of thresholds that is being built. Sums are exact, and rounded where they are compared, as in
    `alter_policies`.
    """

    def __init__(self, policies: PolicySet, places: TopicPlaces | None) -> None:
        self._base = policies.base
        self._places = places
        self._former = policies.commitments_by_broker(places)
        self._totals = {
            key.name: as_number(v) for key, v in policies.effective_values().items() if key.key == TOTAL_KEY
        }
        self._topics = dict(policies.topic_thresholds())
        self._reserved = policies.reserved_thresholds(places)
        self._sum = self._sum_thresholds(self._topics)  # of all topics
        placed = sorted((places or {}).items())
        self._sums = {str(broker_id): self._sum_thresholds(self._topics.keys() & names) for broker_id, names in placed}
        self._reserved_sum = sum(map(Fraction, self._reserved.values()), Fraction())
        self._added: set[PolicyKey] = set()

    def check_unique(self, key: PolicyKey) -> None:
        """Raises InvalidPolicy if that key was added."""
        if key in self._added:
            raise InvalidPolicy(f"{key} is given twice: set or remove it once per request")

    def add_value(self, key: PolicyKey, value: PolicyValue | None) -> None:
        """Raises InvalidPolicy if it doesn't fit; nothing is added then."""
        wanted = self._base.get(key) if value is None else value
        number = None if wanted is None else as_number(wanted)
        if key.key == TOTAL_KEY:
            self._add_total(key.name, number)
        elif key.kind == "topic":
            self._add_topic(key.name, number or 0.0)
        self._added.add(key)

    def _add_total(self, name: str, total: float | None) -> None:
        totals = {other: value for other, value in self._totals.items() if other != name}
        if total is not None:
            totals[name] = total
        if self._places is None:
            sums = {name: self._sum}
        else:
            sums = {on: each for on, each in self._sums.items() if on == name or (not name and on not in totals)}
        self._refuse_excess(sums, self._reserved_sum, totals)
        self._totals = totals

    def _add_topic(self, name: str, value: float) -> None:
        everywhere = self._reserved_sum
        more = Fraction(value) - Fraction(self._topics.get(name, 0.0))
        if self._places is None:
            sums = dict.fromkeys(sorted(self._totals), self._sum + more)
        elif is_unplaced(name, self._places):
            sums = self._sums
            everywhere += Fraction(value) - Fraction(self._reserved.get(name, 0.0))
        else:
            brokers = (str(broker_id) for broker_id, names in sorted(self._places.items()) if name in names)
            sums = {broker: self._sums[broker] + more for broker in brokers}
        self._refuse_excess(sums, everywhere, self._totals)
        if self._places is not None:
            self._sums |= sums
        if everywhere != self._reserved_sum:
            self._reserved_sum, self._reserved[name] = everywhere, value
        self._sum += more
        self._topics[name] = value

    def _refuse_excess(self, sums: Mapping[str, Fraction], everywhere: Fraction, totals: Mapping[str, float]) -> None:
        default = None if self._places is None else totals.get(EVERY_BROKER)
        now = {}
        for name, each in sums.items():
            total = totals.get(name, default)
            if total is not None:
                now[name] = CommittedTotal(total, float(each), float(everywhere))
        texts = [text for _, text in over_texts(find_exceeded(now, self._former))]
        if texts:
            raise InvalidPolicy("; ".join(texts))

    def _sum_thresholds(self, names: Iterable[str]) -> Fraction:
        return sum((Fraction(self._topics[name]) for name in names), Fraction())
