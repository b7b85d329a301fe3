# The counts of filling.py, of records that are added one after the other, without Spark.

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from math import floor
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gateway.audit.storage.filling import (
    ACCEPTED_OUTCOMES,
    MAX_TOPICS,
    WHOLE_SHARE,
    VolumeCounts,
    VolumeLook,
    VolumeOptions,
    WindowLooks,
)
from policies.storage import VolumeKey

if TYPE_CHECKING:
    from gateway.audit.records.decoding import RecordSpread, RecordVolume, UsageRecord

_Shares = Mapping[int, tuple[int, int]]  # by broker: of WHOLE_SHARE, and of how many partitions at most
_NO_SHARES: Final[_Shares] = {}
_Name = TypeVar("_Name", int, str)


class VolumeCollector:
    """A RecordCollector (gateway/audit/local/records.py)."""

    def __init__(self, wish: VolumeOptions) -> None:
        self._wish = wish
        self._looks: defaultdict[VolumeKey, dict[int, WindowLooks]] = defaultdict(dict)
        self._spreads: defaultdict[tuple[int, str], dict[int, _ReplicaShare]] = defaultdict(dict)  # window, topic
        self._bytes: Counter[tuple[int, str, str]] = Counter()  # window, topic, principal

    def add_record(self, record: UsageRecord) -> None:
        """Add a record that counts."""
        wish, start, end = self._wish, record.start_ms, record.end_ms
        if (wish.from_ms is not None and start < wish.from_ms) or (wish.to_ms is not None and start >= wish.to_ms):
            return
        window = start - start % wish.window_ms
        for row in record.rows:
            if row.outcome in ACCEPTED_OUTCOMES:
                self._bytes[window, row.topic, row.principal] += row.bytes
        window = end - end % wish.window_ms
        for volume in record.volumes or ():
            self._add_look(window, end, volume)
        for spread in record.spread or ():
            if spread.partitions > 0:
                self._add_spread(window, spread)

    def _add_look(self, window: int, end_ms: int, volume: RecordVolume) -> None:
        look = VolumeLook(end_ms, volume.total, volume.available, volume.hard)
        windows = self._looks[volume.broker, volume.log_dir]
        known = windows.get(window, WindowLooks(window, look.available, look, look))
        least = min(known.least, look.available)
        windows[window] = WindowLooks(
            window, least, min(known.first, look, key=_look_order), max(known.last, look, key=_look_order)
        )

    def _add_spread(self, window: int, spread: RecordSpread) -> None:
        brokers = self._spreads[window, spread.topic]
        if spread.broker not in brokers:
            brokers[spread.broker] = _ReplicaShare()
        brokers[spread.broker].add_note(spread)

    def make_counts(self) -> VolumeCounts:
        """What the records say."""
        noted: dict[tuple[int, str], _Shares] = {
            place: {broker: each.mean() for broker, each in found.items()} for place, found in self._spreads.items()
        }
        usual = _usual_shares(noted)
        by_window, by_topic, by_principal = _BrokerSums[int](), _BrokerSums[str](), _BrokerSums[str]()
        unplaced = 0
        for (window, topic, principal), size in self._bytes.items():
            brokers = noted.get((window, topic)) or usual.get(topic, _NO_SHARES)
            unplaced += 0 if brokers else size
            for broker, (share, here) in brokers.items():
                by_window.add_bytes(broker, window, size * share)
                by_topic.add_bytes(broker, topic, size * share, here)
                by_principal.add_bytes(broker, principal, size * share)
        return VolumeCounts(
            {place: [found[window] for window in sorted(found)] for place, found in self._looks.items()},
            {broker: {name: came for name, (came, _) in found} for broker, found in by_window.ranked()},
            {broker: dict(found[:MAX_TOPICS]) for broker, found in by_topic.ranked()},
            {broker: {name: came for name, (came, _) in found[:MAX_TOPICS]} for broker, found in by_principal.ranked()},
            unplaced,
        )


class _ReplicaShare:
    """Of a topic's partitions, how many have a replica on a broker: the mean share, and the most of them."""

    def __init__(self) -> None:
        self._shares, self._notes, self._most = 0.0, 0, 0

    def add_note(self, spread: RecordSpread) -> None:
        self._shares += spread.here / spread.partitions
        self._notes += 1
        self._most = max(self._most, spread.here)

    def mean(self) -> tuple[int, int]:
        return floor(self._shares / self._notes * WHOLE_SHARE + 0.5), self._most


def _usual_shares(noted: Mapping[tuple[int, str], _Shares]) -> Mapping[str, _Shares]:
    """Of each topic over all windows: a broker that has it for half of the time has half of it on average."""
    windows = Counter(topic for _, topic in noted)
    found: defaultdict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for (_, topic), brokers in noted.items():
        for broker, (share, here) in brokers.items():
            shares, most = found[topic].get(broker, (0, 0))
            found[topic][broker] = (shares + share, max(most, here))
    return {
        topic: {broker: (shares // windows[topic], most) for broker, (shares, most) in brokers.items()}
        for topic, brokers in found.items()
    }


class _BrokerSums(Generic[_Name]):
    """By broker and name: bytes that came, times WHOLE_SHARE, and the most partitions with a replica there."""

    def __init__(self) -> None:
        self._sums: defaultdict[int, dict[_Name, tuple[int, int]]] = defaultdict(dict)

    def add_bytes(self, broker: int, name: _Name, size: int, here: int = 0) -> None:
        came, most = self._sums[broker].get(name, (0, 0))
        self._sums[broker][name] = (came + size, max(most, here))

    def ranked(self) -> Iterator[tuple[int, list[tuple[_Name, tuple[int, int]]]]]:
        """Bytes, the largest first."""
        for broker, found in self._sums.items():
            whole = [(name, ((came + WHOLE_SHARE // 2) // WHOLE_SHARE, most)) for name, (came, most) in found.items()]
            yield broker, sorted(whole, key=lambda each: (-each[1][0], each[0]))


def _look_order(look: VolumeLook) -> tuple[int, int, int, bool, int]:
    return (*look[:3], look.hard is not None, look.hard or 0)
