# How much of each broker's total threshold the thresholds of topics take together. A topic's own counts on each broker
# that has a partition of it, and on no other; where nobody knows what is where, on every broker. A topic that isn't
# there yet takes nothing so far, but it may be placed on any broker: its threshold is reserved on each, or two changes
# that are fine one by one would exceed a total once it is created.
#
# A change is refused if it takes a sum above a total, or further above, what is reserved included. Partitions move
# later on, whatever was judged: then some broker is overcommitted. Knows no traffic and no change.

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Set
from types import MappingProxyType
from typing import Final, NamedTuple

from policies.limits.description import ratio_text
from policies.limits.limit_use import limit_utilization
from policies.thresholds.values import TOPIC_KEY, ThresholdError, check_single_thresholds, excess_text, used_up_text

EVERY_BROKER: Final = ""  # Kafka's own name of the defaults of all brokers
MAX_NAMED: Final = 3  # brokers, in one refusal

TopicPlaces = Mapping[int, Set[str]]  # by broker, the topics that have a partition there
NO_PLACES: Final[TopicPlaces] = MappingProxyType({})  # no topic has any partition


class CommittedTotal(NamedTuple):
    """A total threshold, the part of it of topics that are there, and that of topics that aren't yet: bytes per
    second.
    """

    total: float
    explicit: float
    reserved: float = 0.0

    @property
    def excess(self) -> float:
        """Above 0: the broker is overcommitted by that much."""
        return self.explicit - self.total

    @property
    def overcommitted(self) -> float:
        """By how much; 0: the topics that are there fit."""
        return max(0.0, self.excess)

    @property
    def utilization(self) -> float:
        """The part of the total that topics that are there take; not capped."""
        return limit_utilization(self.explicit, self.total)

    @property
    def utilization_text(self) -> str:
        return ratio_text(self.utilization, is_limited=True)

    @property
    def full_excess(self) -> float:
        """The same with what is reserved."""
        return self.explicit + self.reserved - self.total


def sum_commitments(
    totals: Mapping[str, float],
    topics: Mapping[str, float],
    places: TopicPlaces | None,
    reserved: Iterable[float] = (),
) -> dict[str, CommittedTotal]:
    """Of each broker that has a total, by its id; `places` None: of each total, by its name.

    Args:
        totals: by broker id, EVERY_BROKER for those that have none of their own.
        topics: explicit thresholds.
        reserved: those of topics that aren't there yet.
    """
    everywhere = math.fsum(reserved)
    if places is None:
        explicit = math.fsum(topics.values())
        return {name: CommittedTotal(total, explicit) for name, total in sorted(totals.items())}
    found = {}
    for broker_id, names in sorted(places.items()):
        total = totals.get(str(broker_id), totals.get(EVERY_BROKER))
        if total is not None:
            few, many = (topics, names) if len(topics) < len(names) else (names, topics)
            explicit = math.fsum(topics[name] for name in few if name in many)
            found[str(broker_id)] = CommittedTotal(total, explicit, everywhere)
    return found


def find_overcommitted(now: Mapping[str, CommittedTotal]) -> dict[str, CommittedTotal]:
    """Those whose topics that are there exceed the total."""
    return {name: each for name, each in now.items() if each.excess > 0}


def find_exceeded(now: Mapping[str, CommittedTotal], before: Mapping[str, CommittedTotal]) -> dict[str, CommittedTotal]:
    """Those whose topics exceed the total, the ones that aren't there yet included, and did so by less before."""
    return {
        name: each
        for name, each in now.items()
        if each.full_excess > (max(0.0, before[name].full_excess) if name in before else 0.0)
    }


def is_unplaced(topic: str, places: TopicPlaces | None) -> bool:
    """Whether it is known to have no partition yet."""
    return places is not None and not any(topic in names for names in places.values())


def unplaced_topics(topics: Iterable[str], places: TopicPlaces | None) -> set[str]:
    """Those that are known to have no partition yet."""
    left = set(topics) if places is not None else set()
    for names in (places or {}).values():
        left -= left & names
    return left


def over_texts(over: Mapping[str, CommittedTotal]) -> list[tuple[str, str]]:
    """The fault of each: the worst few one by one, of the rest their number."""
    worst = {name for name, _ in heapq.nlargest(MAX_NAMED, over.items(), key=lambda found: found[1].full_excess)}
    texts = [(name, _full_text(name, each)) for name, each in over.items() if name in worst]
    more = len(over) - len(texts)
    return texts + ([(EVERY_BROKER, f"{more:,} more brokers are overcommitted as well")] if more else [])


def over_text(broker: str, each: CommittedTotal) -> str:
    return excess_text(each.explicit, each.total, _owner_text(broker))


def _full_text(broker: str, each: CommittedTotal) -> str:
    return excess_text(each.explicit + each.reserved, each.total, _owner_text(broker), each.reserved)


def oversized_texts(totals: Mapping[str, float], topics: Mapping[str, float]) -> dict[str, str]:
    """The faults of topics that would fit on no broker alone: all that can be said before any broker is known."""
    found = {}
    for name, threshold in topics.items() if EVERY_BROKER in totals else ():
        try:
            check_single_thresholds(totals.values(), {name: threshold})
        except ThresholdError as error:
            found[name] = str(error)
    return found


def reserved_warnings(now: Mapping[str, CommittedTotal], topics: Collection[str]) -> list[str]:
    """Thresholds of topics that aren't there yet, and the brokers that will be overcommitted by these topics."""
    if not topics:
        return []
    some = ", ".join(heapq.nsmallest(MAX_NAMED, topics))
    more = f" and {len(topics) - MAX_NAMED:,} more" if len(topics) > MAX_NAMED else ""
    text = (
        f"{TOPIC_KEY} of topics that are not there ({some}{more}): each takes its part of every broker's total until it"
        " is created, or its threshold removed"
    )
    return [text, *(_full_text(name, each) for name, each in now.items() if each.excess <= 0 < each.full_excess)]


def sum_warnings(now: Mapping[str, CommittedTotal]) -> list[str]:
    """Brokers that are overcommitted, or have nothing left for topics without a threshold of their own."""
    found = [over_text(name, each) for name, each in now.items() if each.excess > 0]
    return found + [used_up_text(each.total, _owner_text(name)) for name, each in now.items() if each.excess == 0]


def _owner_text(broker: str) -> str:
    return f"broker {broker}: its topics'" if broker else "the topics'"
