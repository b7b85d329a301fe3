# A gateway's reports to its peers. Pure: no I/O, no clock; a cycle is one call of `report`. Use is noted where it
# changes, and a report looks only at what is new and at whose turn it is: there may be tens of thousands of usages.
#
# A report is sent every cycle, even without news: so others know that this gateway lives. A report
# has each usage that began, ended, turned hungry or content, changed by 10 % (or 2 % of its limit, where that is less),
# and in turn, once in N cycles (a round), every usage. So what a peer has missed is right again after a round.
#
# A peer needn't remember what it doesn't use. So everything is reported to a new one, where that isn't too much, and a
# usage again when a peer begins to use the same. Knows no share: that is policies/fleet/shares.py. The other direction:
# peers.py.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gateway.control.fleet.exchange.resource_usage_pb2 import ResourceUsage
from gateway.control.fleet.exchange.usage_codec import (
    MAX_ENTRIES,
    MAX_TOPIC,
    NO_TRAFFIC,
    GatewayTraffic,
    RatePlace,
    add_flows,
    add_limits,
    encode_usage,
    limit_id,
    make_broker_rate,
)
from policies.fleet.keys import FleetKey
from policies.fleet.shares import IDLE, LimitDemand

REPORT_CYCLES: Final = 5  # cycles: PIP-82's N
CHANGED_SHARE: Final = 0.0999  # of the reported rate, so that rounding hides no change of 10 %
CHANGED_LIMIT_SHARE: Final = 0.02  # shares are exact to 3 %
DRIFTED_SHARE: Final = 0.01  # of the reported rate: a smaller change isn't news, only repeated
IDLE_S: Final = 600.0  # a limit that isn't used for this long is forgotten
MAX_FOR_NEW: Final = 10_000  # usages: more aren't repeated because a peer is new
RATES_PER_STEP: Final = 500  # rates noted at once

ReportEntry = int | RatePlace  # a limit's number, or where a rate is measured


class ThresholdRate(NamedTuple):
    """Bytes per second to a broker (`topic` None), or to a topic there: V1's one-minute EWMA, unadjusted. `topic` "":
    topics that share a meter, which peers don't hear of.
    """

    node_id: int
    topic: str | None
    rate: float


class UsageReporter:
    """Our own side.

    Args:
        boot: 8 bytes, others at every start.
        cycle_s: how often `make_report` is called.
        every: cycles in which each usage is reported at least once (PIP-82's N).
        limit_of: a limit by its key, per second, where there is one.

    Attributes:
        sequence: of the next message.
    """

    def __init__(
        self,
        gateway: str,
        boot: bytes,
        *,
        cycle_s: float = 1.0,
        every: int = REPORT_CYCLES,
        limit_of: Callable[[FleetKey], float | None] | None = None,
    ) -> None:
        self.gateway = gateway
        self.boot = boot
        self.cycle_s = cycle_s
        self.limits = KnownLimits()
        self.sequence = 0
        self._limit_of = limit_of
        self._cycle = 0
        self._current: dict[ReportEntry, LimitDemand] = {}  # neither here nor …
        self._published: dict[ReportEntry, LimitDemand] = {}  # … there is anything idle
        self._turns: list[dict[ReportEntry, int]] = [{} for _ in range(max(1, every))]  # when each was noted last
        self._news: set[ReportEntry] = set()  # has to be reported at once
        self._unsure: set[ReportEntry] = set()  # was reported, and may not have arrived
        self._changed_limits: list[FleetKey] = []  # limits with another report than before
        self._is_peer_waiting = False  # a peer waits for something
        self._repeats_all = False  # a new peer needs everything …
        self._traffic = NO_TRAFFIC
        self._repeat_all_from = 0  # … which isn't reported before this cycle

    @property
    def is_report_requested(self) -> bool:
        """Whether a peer waits for a report."""
        return self._is_peer_waiting or (self._repeats_all and self._cycle >= self._repeat_all_from)

    def record_demands(self, uses: Mapping[FleetKey, LimitDemand]) -> None:
        """The present usage of these limits; idle: no longer used. All others are unchanged."""
        for key, use in uses.items():
            if key in self.limits or not use.is_idle:
                self._record_demand(
                    self.limits.add_limit(key), use, None if self._limit_of is None else self._limit_of(key)
                )

    def record_rates(self, rates: Iterable[ThresholdRate]) -> Iterator[None]:
        """All of V1's rates; those not given have ended. A generator, since there may be many: exhaust it, with time
        for other work between its steps.
        """
        ended = {entry for entry in self._current if isinstance(entry, RatePlace)}
        for at, (node_id, topic, rate) in enumerate(rates):
            if rate > 0.0 and (topic is None or 0 < len(topic) <= MAX_TOPIC):
                place = RatePlace(node_id, topic)
                ended.discard(place)
                self._record_demand(place, LimitDemand(rate))
            if at % RATES_PER_STEP == RATES_PER_STEP - 1:
                yield
        for place in ended:
            self._record_demand(place, IDLE)

    def record_traffic(self, traffic: GatewayTraffic) -> None:
        """The busiest topics and clients; reported once per round."""
        self._traffic = traffic

    @property
    def includes_traffic(self) -> bool:
        """Whether the next report of a cycle contains them."""
        return self._cycle % len(self._turns) == 0

    def make_report(self, *, workers: int = 1, is_turn: bool = True) -> Iterator[bytes]:
        """A cycle's messages, in their order. Mostly one. A generator, for it may take some time to make one: take all
        of them, and call nothing but `repeat_limit` and `repeat_all` meanwhile; or `on_report_lost`, which has to be
        called again then.

        `is_turn`: False between two cycles, where something can't wait.
        """
        news, self._news = self._news, set()
        listed = news | (self._due_entries() if is_turn else set())
        if self._repeats_all and self._cycle >= self._repeat_all_from:
            listed |= self._current.keys()
            self._repeats_all, self._repeat_all_from = False, self._cycle + 1
        self._is_peer_waiting = False
        entries = list(listed)  # a set has numbers that are close to each other side by side: so groups' compress
        traffic = self._traffic if is_turn and self.includes_traffic else NO_TRAFFIC
        for at in range(0, max(1, len(entries)), MAX_ENTRIES):
            yield self._make_message(entries[at : at + MAX_ENTRIES], news, workers, NO_TRAFFIC if at else traffic)
        self._cycle += is_turn

    def make_leave_message(self) -> list[bytes]:
        """The last message."""
        message = self._make_header(0)
        message.leaving = True
        return [encode_usage(message)]

    def on_report_lost(self) -> None:
        """The news since the last `on_report_arrived` may not have reached any peer."""
        self._news |= self._unsure
        self._unsure = set()

    def on_report_arrived(self) -> None:
        """Everything reported so far has reached the topic."""
        self._unsure.clear()

    def repeat_limit(self, number: int) -> None:
        """A peer began to use this limit: it needs to know the other users."""
        if number in self._published:
            self._news.add(number)
            self._is_peer_waiting = True

    def repeat_all(self) -> None:
        """A peer is new. Done at most once per cycle: many may come at once."""
        self._repeats_all = 0 < len(self._current) <= MAX_FOR_NEW

    def published_demand(self, key: FleetKey) -> LimitDemand:
        """The demand that others count: a limit's usage as last reported."""
        return self._published.get(self.limits.limit_number(key), IDLE)

    def pop_changed_limits(self) -> list[FleetKey]:
        """Limits whose report has changed since the last call."""
        changed, self._changed_limits = self._changed_limits, []
        return changed

    def set_salt(self, salt: bytes) -> None:
        """Use the limits' numbers of this salt from now on. Not while a report is being made."""
        if salt == self.limits.salt:
            return
        numbers = self.limits.replace_salt(salt)

        def renamed(entry: ReportEntry) -> ReportEntry:
            return entry if isinstance(entry, RatePlace) else numbers[entry]

        for uses in (self._current, self._published):
            renewed = {renamed(entry): use for entry, use in uses.items()}
            uses.clear()
            uses.update(renewed)
        noted = [item for turn in self._turns for item in turn.items()]
        self._turns = [{} for _ in self._turns]
        for entry, cycle in noted:
            self._turns[self._turn_index(renamed(entry))][renamed(entry)] = cycle
        self._unsure = set()
        self._news = {*self._current, *self._published}

    # --- what is so ---

    def _record_demand(self, entry: ReportEntry, use: LimitDemand, limit: float | None = None) -> None:
        self._turns[self._turn_index(entry)][entry] = self._cycle
        if use.is_idle:
            self._current.pop(entry, None)
        else:
            self._current[entry] = use
        published = self._published.get(entry, IDLE)
        change, claim_change = abs(use.rate - published.rate), abs(use.claim - published.claim)
        if (
            (published.hungry, published.weight, published.is_idle) != (use.hungry, use.weight, use.is_idle)
            or change > CHANGED_SHARE * published.rate
            or claim_change > CHANGED_SHARE * max(published.claim, published.rate)
            or (limit is not None and max(change, claim_change) > CHANGED_LIMIT_SHARE * limit)
        ):
            self._news.add(entry)

    def _turn_index(self, entry: ReportEntry) -> int:
        """The cycle of a round in which the limit is repeated. A group's four limits belong together, so that they
        compress well.
        """
        return (hash(entry) if isinstance(entry, RatePlace) else entry >> 2) % len(self._turns)

    def _due_entries(self) -> set[ReportEntry]:
        """The repeats of this cycle. Forgets limits unused for long."""
        mine = self._turns[self._cycle % len(self._turns)]
        before = self._cycle - IDLE_S / self.cycle_s
        for entry in [entry for entry, noted in mine.items() if noted < before and entry not in self._current]:
            del mine[entry]
            if not isinstance(entry, RatePlace):
                self.limits.remove_limit(entry)
        return mine.keys() & self._current.keys()

    # --- messages ---

    def _make_header(self, workers: int) -> ResourceUsage:
        message = ResourceUsage(
            broker=self.gateway,
            boot=self.boot,
            sequence=self.sequence,
            round=self._cycle // len(self._turns),
            workers=workers,
            cycle_ms=round(self.cycle_s * 1000),
        )
        self.sequence += 1
        return message

    def _make_message(
        self, entries: list[ReportEntry], news: set[ReportEntry], workers: int, traffic: GatewayTraffic
    ) -> bytes:
        message = self._make_header(workers)
        add_flows(message, traffic)
        limits = []
        for entry in entries:
            use = self._publish_entry(entry, is_news=entry in news)
            if isinstance(entry, RatePlace):
                message.rates.append(make_broker_rate(entry, use.rate))
            else:
                limits.append((entry, use))
        add_limits(message.limits, sorted(limits))
        self._unsure.update(entries)
        return encode_usage(message)

    def _publish_entry(self, entry: ReportEntry, *, is_news: bool) -> LimitDemand:
        published, use = self._published.get(entry, IDLE), self._current.get(entry, IDLE)
        if published == use or (not is_news and _is_close(published, use)):
            return published
        if use.is_idle:
            self._published.pop(entry, None)
        else:
            self._published[entry] = use
        if not isinstance(entry, RatePlace) and (key := self.limits.limit_key(entry)) is not None:
            self._changed_limits.append(key)
        return use


class KnownLimits:
    """Limits that this gateway uses, or used recently, and their numbers in messages (usage_codec.limit_id)."""

    def __init__(self) -> None:
        self.salt = b""
        self._numbers: dict[FleetKey, int] = {}
        self._keys: dict[int, FleetKey] = {}

    def __contains__(self, key: FleetKey) -> bool:
        return key in self._numbers

    def add_limit(self, key: FleetKey) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = limit_id(key, self.salt)
            self._keys[number] = key
        return number

    def replace_salt(self, salt: bytes) -> dict[int, int]:
        """Use the numbers of this salt; returns them by the former ones."""
        self.salt = salt
        before = self._keys
        self._numbers = {key: limit_id(key, salt) for key in self._numbers}
        self._keys = {number: key for key, number in self._numbers.items()}
        return {number: self._numbers[key] for number, key in before.items()}

    def remove_limit(self, number: int) -> None:
        del self._numbers[self._keys.pop(number)]

    def limit_number(self, key: FleetKey) -> int:
        """The number of any limit."""
        number = self._numbers.get(key)
        return limit_id(key, self.salt) if number is None else number

    def limit_key(self, number: int) -> FleetKey | None:
        """None: it is the number of none of them."""
        return self._keys.get(number)


def _is_close(published: LimitDemand, use: LimitDemand) -> bool:
    """Whether the change is too small to report."""
    return (
        published._replace(rate=0.0) == use._replace(rate=0.0)
        and abs(use.rate - published.rate) <= DRIFTED_SHARE * published.rate
    )
