# How much of each broker's total threshold the thresholds of topics take together. A topic's own counts on each broker
# that has a partition of it, and on no other; where nobody knows what is where, on every broker.
#
# A change is refused if it takes a sum above a total, or further above. Partitions move later on, whatever was judged:
# then some broker is overcommitted. Knows no traffic and no change.

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import Final, NamedTuple

from policies.thresholds.values import ThresholdError, check_each, excess_text, used_up_text

EVERY_BROKER: Final = ""  # Kafka's own name of the defaults of all brokers
MAX_TOLD: Final = 3  # brokers, in one refusal

Places = Mapping[int, Set[str]]  # by broker, the topics that have a partition there
NOWHERE: Final[Places] = MappingProxyType({})  # no topic has any partition


class Committed(NamedTuple):
    """A total threshold, and the topics' part of it: bytes per second."""

    total: float
    explicit: float

    @property
    def excess(self) -> float:
        """Above 0: the broker is overcommitted by that much."""
        return self.explicit - self.total


def committed(totals: Mapping[str, float], topics: Mapping[str, float], places: Places | None) -> dict[str, Committed]:
    """Of each broker that has a total, by its id; `places` None: of each total, by its name.

    Args:
        totals: by broker id, EVERY_BROKER for those that have none of their own.
        topics: explicit thresholds.
    """
    if places is None:
        explicit = math.fsum(topics.values())
        return {name: Committed(total, explicit) for name, total in sorted(totals.items())}
    found = {}
    for broker_id, names in sorted(places.items()):
        total = totals.get(str(broker_id), totals.get(EVERY_BROKER))
        if total is not None:
            few, many = (topics, names) if len(topics) < len(names) else (names, topics)
            found[str(broker_id)] = Committed(total, math.fsum(topics[name] for name in few if name in many))
    return found


def overcommitted(now: Mapping[str, Committed], before: Mapping[str, Committed] = {}) -> dict[str, Committed]:
    """Those that exceed their total, and did so by less before."""
    return {
        name: each
        for name, each in now.items()
        if each.excess > (max(0.0, before[name].excess) if name in before else 0.0)
    }


def is_unplaced(topic: str, places: Places | None) -> bool:
    """Whether it is known to have no partition yet."""
    return places is not None and not any(topic in names for names in places.values())


def over_texts(over: Mapping[str, Committed]) -> list[tuple[str, str]]:
    """The fault of each: the worst few one by one, of the rest their number."""
    worst = {name for name, _ in heapq.nlargest(MAX_TOLD, over.items(), key=lambda found: found[1].excess)}
    texts = [(name, over_text(name, each)) for name, each in over.items() if name in worst]
    more = len(over) - len(texts)
    return texts + ([(EVERY_BROKER, f"{more:,} more brokers are overcommitted as well")] if more else [])


def over_text(broker: str, each: Committed) -> str:
    return excess_text(each.explicit, each.total, _whose(broker))


def unplaced_texts(totals: Mapping[str, float], topics: Mapping[str, float], places: Places | None) -> dict[str, str]:
    """The faults of topics that are nowhere yet and would fit on no broker."""
    found = {}
    for name, threshold in topics.items() if EVERY_BROKER in totals else ():
        if is_unplaced(name, places):
            try:
                check_each(totals.values(), {name: threshold})
            except ThresholdError as error:
                found[name] = str(error)
    return found


def sum_warnings(now: Mapping[str, Committed]) -> list[str]:
    """Brokers that are overcommitted, or have nothing left for topics without a threshold of their own."""
    found = [over_text(name, each) for name, each in now.items() if each.excess > 0]
    return found + [used_up_text(each.total, _whose(name)) for name, each in now.items() if each.excess == 0]


def _whose(broker: str) -> str:
    return f"broker {broker}: its topics'" if broker else "the topics'"
