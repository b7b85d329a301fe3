# The latest rejections and delays, whose they were, and how much of each topic passes: from the rows of workers'
# intervals, in bounded memory. For explanations and `top`; accounts are the usage log's.
#
# Time is cut into slots. A slot keeps its own sums, so what is old goes away with its slot. An interval is of the slot
# in which it begins; a longer one, as where the spool takes nothing, is spread. Names beyond the caps are counted under
# OTHER, as the ledger and the metrics do. Knows no worker and no clock: `now_ms` is Unix time.

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from gateway.channel import UsageInterval
from gateway.control.fleet.exchange.usage_codec import GatewayTraffic
from policies.explain import RECENT_MS, HeldTraffic, TopicFlow
from policies.usage import DELAYED, OBSERVED_OUTCOMES

OTHER: Final = "other"
SLOT_MS: Final = 5_000
FLOW_SLOTS: Final = 3  # rates are means over this many whole slots
ASKED_SLOTS: Final = FLOW_SLOTS + 2  # … which are among so many latest ones
LATE_MS: Final = 2_000  # an interval arrives at most this long after its end: until then its slot is not whole
_HELD: Final = frozenset({"rejected", "dropped", DELAYED, *OBSERVED_OUTCOMES})
_ACCEPTED: Final = 0
_FLOWS: Final = {
    "accepted": _ACCEPTED,
    "unacknowledged": _ACCEPTED,
    "rejected": 1,
    "dropped": 1,
    DELAYED: 2,
    OBSERVED_OUTCOMES[0]: 3,
    OBSERVED_OUTCOMES[1]: 3,
}

_Name = TypeVar("_Name", str, tuple[str, str])
_Key = tuple[str, str, str, int, str, str]  # topic, principal, client id, broker, outcome, reason


class _RecentSlot:
    __slots__ = ("clients", "flows", "held", "number", "writers")

    def __init__(self, number: int) -> None:
        self.number = number
        self.flows: dict[str, list[int]] = {}  # by topic: bytes by kind of flow
        self.clients: dict[tuple[str, str], list[int]] = {}  # the same by principal and client id
        self.writers: dict[tuple[str, str], list[int]] = {}  # by topic and principal: the bytes that got in
        self.held: dict[_Key, list[int]] = {}  # first, last, bytes, requests, milliseconds of delay


class RecentTraffic:
    """Sums of the last minutes.

    Args:
        minutes: how long rejections and delays are kept.
        max_held: (topic, principal, client id, broker, outcome, reason), in all slots together.
        max_topics, max_clients, max_writers: in each slot.
    """

    def __init__(
        self,
        minutes: float = 10,
        max_held: int = 20_000,
        max_topics: int = 2_000,
        max_clients: int = 2_000,
        max_writers: int = 4_000,
    ) -> None:
        self._slots: deque[_RecentSlot] = deque()  # oldest first
        self._keep = max(FLOW_SLOTS + 2, round(minutes * 60_000 / SLOT_MS))
        self._max_held = max_held
        self._max_topics = max_topics
        self._max_clients = max_clients
        self._max_writers = max_writers
        self._held = 0
        # First and last of the latest that follow each other without a pause, and the slots that have the key.
        self._runs: dict[_Key, list[int]] = {}
        self._since_ms: int | None = None

    def add_interval(self, interval: UsageInterval, now_ms: int) -> None:
        """One that was not added before. One that is older than the kept minutes, or from the future, is left out."""
        if self._since_ms is None or now_ms < self._since_ms:
            self._since_ms = now_ms
        self._forget_old(now_ms)
        shares, newest = _time_shares(interval), now_ms // SLOT_MS + 1
        last = max(shares)
        if not interval.rows or not newest - 1 - self._keep < last <= newest:
            return
        for number, share in shares.items():
            self._add_flows(self._find_slot(number), interval, share)
        slot = self._find_slot(last)
        for row in interval.rows:
            if row.outcome in _HELD:
                key = (row.topic, row.principal, row.client_id, row.broker, row.outcome, row.reason)
                sums = self._held_sums(slot, key, interval)
                sums[0] = min(sums[0], interval.start_ms)
                sums[1] = max(sums[1], interval.end_ms)
                sums[2] += row.bytes
                sums[3] += row.requests
                sums[4] += row.delay_ms

    def _add_flows(self, slot: _RecentSlot, interval: UsageInterval, share: float) -> None:
        for row in interval.rows:
            flow = _FLOWS.get(row.outcome)
            if flow is not None:
                size = round(row.bytes * share)
                self._topic_sums(slot, row.topic)[flow] += size
                self._client_sums(slot, row.principal, row.client_id)[flow] += size
                if flow == _ACCEPTED:
                    self._writer_sums(slot, row.topic, row.principal)[0] += size

    def find_held(
        self, now_ms: int, topic: str | None = None, principal: str | None = None, client_id: str | None = None,
        broker: int | None = None,
    ) -> list[HeldTraffic]:  # fmt: skip
        """Traffic that was held back; the newest first. None: of any topic, of any client."""
        self._forget_old(now_ms)
        found: dict[_Key, list[int]] = {}
        for slot in self._slots:
            for key, sums in slot.held.items():
                if topic in (None, key[0]) and principal in (None, key[1]) and client_id in (None, key[2]):
                    if broker not in (None, key[3]):
                        continue
                    before = found.setdefault(key, [sums[0], sums[1], 0, 0, 0])
                    before[0], before[1] = min(before[0], sums[0]), max(before[1], sums[1])
                    for index in (2, 3, 4):
                        before[index] += sums[index]
        held = [HeldTraffic(*key, *(*sums, self._runs[key][0])) for key, sums in found.items()]
        return sorted(held, key=lambda each: each.last_ms, reverse=True)

    def topic_flows(self, now_ms: int) -> dict[str, TopicFlow]:
        """Bytes per second by topic, over the last whole slots; only topics that had traffic."""
        return self._mean_flows(now_ms, lambda slot: slot.flows)

    def writer_rates(self, now_ms: int) -> dict[tuple[str, str], float]:
        """Bytes per second that got into the log, over the last whole slots, by topic and principal."""
        return {name: sums[0] for name, sums in self._mean_flows(now_ms, lambda slot: slot.writers).items() if sums[0]}

    def client_flows(self, now_ms: int) -> dict[tuple[str, str], tuple[TopicFlow, HeldTraffic | None]]:
        """Those of the last whole slots, and those that were held back in the kept minutes, by principal and client id:
        bytes per second, and what was held back of them last.
        """
        flows = self._mean_flows(now_ms, lambda slot: slot.clients)
        last: dict[tuple[str, str], HeldTraffic] = {}
        for slot in self._slots:
            for key, sums in slot.held.items():
                client, held = key[1:3], last.get(key[1:3])
                if held is not None and held[:6] == key:
                    *_, first_ms, last_ms, size, requests, delay_ms, since_ms = held
                    earliest, latest = min(first_ms, sums[0]), max(last_ms, sums[1])
                    more = (size + sums[2], requests + sums[3], delay_ms + sums[4])
                    last[client] = HeldTraffic(*key, earliest, latest, *more, since_ms=since_ms)
                elif held is None or sums[1] >= held.last_ms:
                    last[client] = HeldTraffic(*key, *(*sums, self._runs[key][0]))
        return {client: (flows.get(client, TopicFlow()), last.get(client)) for client in flows.keys() | last.keys()}

    def gateway_traffic(self, now_ms: int) -> GatewayTraffic:
        """Topics and clients that had traffic, over the last whole slots."""
        return GatewayTraffic(self.topic_flows(now_ms), self._mean_flows(now_ms, lambda slot: slot.clients))

    def _mean_flows(
        self, now_ms: int, flows_of: Callable[[_RecentSlot], dict[_Name, list[int]]]
    ) -> dict[_Name, TopicFlow]:
        self._forget_old(now_ms)
        whole = (now_ms - LATE_MS) // SLOT_MS
        since = 0 if self._since_ms is None else self._since_ms // SLOT_MS
        slots = max(1, min(FLOW_SLOTS, whole - since))
        sums: dict[_Name, list[int]] = {}
        for slot in self._slots:
            if whole - slots <= slot.number < whole:
                for name, flow in flows_of(slot).items():
                    before = sums.setdefault(name, [0, 0, 0, 0])
                    for index, size in enumerate(flow):
                        before[index] += size
        seconds = slots * SLOT_MS / 1000
        return {name: TopicFlow(*(size / seconds for size in flow)) for name, flow in sums.items()}

    @property
    def since_ms(self) -> int:
        """When counting began, with this control process; 0: it hasn't."""
        return self._since_ms or 0

    @property
    def size(self) -> int:
        """The number of keys kept, against `max_held`."""
        return self._held

    def _find_slot(self, number: int) -> _RecentSlot:
        for slot in reversed(self._slots):
            if slot.number == number:
                return slot
            if slot.number < number:
                break
        slot = _RecentSlot(number)
        self._slots.append(slot)
        if len(self._slots) > 1 and self._slots[-2].number > number:  # late: put it into its place
            self._slots = deque(sorted(self._slots, key=lambda each: each.number))
        return slot

    def _topic_sums(self, slot: _RecentSlot, topic: str) -> list[int]:
        if topic not in slot.flows and len(slot.flows) >= self._max_topics:
            topic = OTHER
        return slot.flows.setdefault(topic, [0, 0, 0, 0])

    def _client_sums(self, slot: _RecentSlot, principal: str, client_id: str) -> list[int]:
        name = principal, client_id
        if name not in slot.clients and len(slot.clients) >= self._max_clients:
            name = OTHER, OTHER
        return slot.clients.setdefault(name, [0, 0, 0, 0])

    def _writer_sums(self, slot: _RecentSlot, topic: str, principal: str) -> list[int]:
        name = topic, principal
        if name not in slot.writers and len(slot.writers) >= self._max_writers:
            name = OTHER, OTHER
        return slot.writers.setdefault(name, [0])

    def _held_sums(self, slot: _RecentSlot, key: _Key, interval: UsageInterval) -> list[int]:
        if key not in slot.held:
            if self._held >= self._max_held:
                key = (OTHER, OTHER, OTHER, -1, *key[4:])
            if key not in slot.held:
                slot.held[key] = [interval.start_ms, interval.end_ms, 0, 0, 0]
                self._held += 1
                self._runs.setdefault(key, [interval.start_ms, interval.end_ms, 0])[2] += 1
        run = self._runs[key]
        if interval.start_ms - run[1] > RECENT_MS:
            run[0] = interval.start_ms
        run[1] = max(run[1], interval.end_ms)
        return slot.held[key]

    def _forget_old(self, now_ms: int) -> None:
        """And what is of the future, which would be the latest until the clock is there again."""
        oldest = now_ms // SLOT_MS - self._keep
        while self._slots and self._slots[0].number <= oldest:
            self._forget_slot(self._slots.popleft())
        if self._slots and self._slots[-1].number > now_ms // SLOT_MS + 1:  # the clock was set back
            while self._slots and self._slots[-1].number > now_ms // SLOT_MS + 1:
                self._forget_slot(self._slots.pop())
            for run in self._runs.values():
                run[:2] = min(run[0], now_ms), min(run[1], now_ms)

    def _forget_slot(self, gone: _RecentSlot) -> None:
        self._held -= len(gone.held)
        for key in gone.held:
            self._runs[key][2] -= 1
            if not self._runs[key][2]:
                del self._runs[key]


def _time_shares(interval: UsageInterval) -> dict[int, float]:
    """The slots of an interval, and the part of it that each gets: of the usual one a single slot, of a longer one the
    last of its slots, as rates of earlier ones aren't asked for any more.
    """
    start, end = interval.start_ms, max(interval.end_ms, interval.start_ms + 1)
    if end - start <= SLOT_MS:
        return {start // SLOT_MS: 1.0}
    last = (end - 1) // SLOT_MS
    return {
        number: (min(end, (number + 1) * SLOT_MS) - max(start, number * SLOT_MS)) / (end - start)
        for number in range(max(start // SLOT_MS, last - ASKED_SLOTS + 1), last + 1)
    }
