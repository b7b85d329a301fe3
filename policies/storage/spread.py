# What reaches a volume from where: the topics with replicas there, by what producers write to them; the brokers whose
# producers fill it, by replication as well; and so, whether what may come before the next check has room behind the
# hard limit.
#
# A partition counts as much as each other one of its topic: which of them a record went to is not recorded. Rates are
# in bytes per second. Knows no clock, no source and no limit's meaning.

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from policies.storage.judging import VolumeFinding

REQUEST_S: Final = 15.0  # a request that was admitted may be so long on its way (docs/non-obvious.md)
MAX_SHOWN: Final = 5


class ReplicaShare(NamedTuple):
    """Of a topic's partitions, those with a replica on a broker."""

    here: int
    partitions: int

    @property
    def fraction(self) -> float:
        return self.here / self.partitions if self.partitions else 0.0


class ReplicaSpread(NamedTuple):
    """`shares`: by broker, the topics with a replica there. `feeds`: by broker, those that lead a partition with a
    replica there, whose producers fill it.
    """

    shares: Mapping[int, Mapping[str, ReplicaShare]]
    feeds: Mapping[int, frozenset[int]]


class WriterRate(NamedTuple):
    """Of a topic or principal: bytes per second that come to a volume."""

    name: str
    rate: float


class VolumeWriters(NamedTuple):
    """Who fills a volume: the busiest topics and principals."""

    topics: tuple[WriterRate, ...]
    principals: tuple[WriterRate, ...]


class VolumeHeadroom(NamedTuple):
    """`room`: the bytes behind the hard limit. `needed`: what may arrive before the next check ends it; None: that has
    no bound.
    """

    room: float
    needed: float | None

    @property
    def is_short(self) -> bool:
        return self.needed is not None and self.room < self.needed


def find_writers(
    rates: Mapping[tuple[str, str], float], shares: Mapping[str, ReplicaShare], topics: Collection[str] | None = None
) -> VolumeWriters:
    """Who fills a volume of a broker that has these shares. `rates`: by topic and principal. `topics`: those on that
    volume; None: all of its broker.
    """
    by_topic: dict[str, float] = {}
    by_principal: dict[str, float] = {}
    for (topic, principal), rate in rates.items():
        share = shares.get(topic)
        if share is None or (topics is not None and topic not in topics) or not rate:
            continue
        by_topic[topic] = by_topic.get(topic, 0.0) + rate * share.fraction
        by_principal[principal] = by_principal.get(principal, 0.0) + rate * share.fraction
    return VolumeWriters(_top_rates(by_topic), _top_rates(by_principal))


def _top_rates(rates: Mapping[str, float]) -> tuple[WriterRate, ...]:
    busiest = sorted(rates.items(), key=lambda each: (-each[1], each[0]))[:MAX_SHOWN]
    return tuple(WriterRate(*each) for each in busiest)


def find_headroom(
    finding: VolumeFinding, feeds: Collection[int], total: Callable[[int], float | None], interval_s: float
) -> VolumeHeadroom | None:
    """None: the volume has no hard limit. `total`: of a broker, what its producers get at most; None: no bound.

    `feeds`: the brokers whose producers fill it; the volume's own is among them in any case.
    """
    if finding.hard_free is None:
        return None
    totals = [total(broker_id) for broker_id in {finding.volume.broker_id, *feeds}]
    known = [each for each in totals if each is not None]
    needed = sum(known) * (interval_s + REQUEST_S) if len(known) == len(totals) else None
    return VolumeHeadroom(finding.hard_free, needed)
