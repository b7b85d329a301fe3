# A gateway's knowledge of its peers, and the only place where it is kept: policies/fleet/shares.py reads it here. Pure:
# no I/O, no clock; `now` is seconds on a monotonic clock, times of publishing are the cluster's (LogAppendTime, ms).
#
# A message counts by the time when the cluster took it, against the cluster's clock, which is learned from our own
# messages as they come back: clocks of gateways don't matter. While ours don't come back no peer is forgotten. No
# message raises an error: what can't be is dropped and counted. A usage ends when a peer says so, or doesn't repeat it
# in a whole round of which no message is missing. How that can be enough: reports.py.

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from gateway.control.fleet.exchange.reports import UsageReporter
from gateway.control.fleet.exchange.resource_usage_pb2 import ResourceUsage
from gateway.control.fleet.exchange.usage_codec import (
    NO_TRAFFIC,
    VERSION,
    GatewayTraffic,
    MalformedUsage,
    RatePlace,
    UnknownVersion,
    decode_usage,
    rate_place,
    read_demands,
    read_flows,
)
from policies.fleet.keys import FleetKey
from policies.fleet.shares import LimitDemand
from policies.text import one_line

SILENT_CYCLES: Final = 2.0  # without a message: the peer is gone
MISSED_CYCLES: Final = 1.25
FORGOTTEN_CYCLES: Final = 20.0  # and so is what it used: a peer that was only late continues where it was
STALE_CYCLES: Final = 3.0  # old messages: what a peer did then says nothing about now
CLASH_CYCLES: Final = 10.0  # a name that two gateways have is complained about for this long after it was seen
# usages altogether up to which those of limits that this gateway doesn't use are remembered
DEMAND_ROOM: Final = 20_000
MAX_RATES: Final = 100_000  # of brokers and topics, of all peers; for whole brokers there is as much room again
MAX_PEERS: Final = 1000
MIN_CYCLE_S: Final = 0.05
MAX_CYCLE_S: Final = 60.0  # by which a peer can claim to live on; our own cycle may be longer

DROP_REASONS: Final = ("stale", "malformed", "version", "late", "too-many")

K = TypeVar("K")
V = TypeVar("V")


class PeerNews(NamedTuple):
    """The news of one message. `peer` names one boot of a gateway.

    `keys`: limits that this gateway uses, or did lately, of which the peer takes something else than before;
    `PeerTable.demands_for` has the amounts. `left`: a leave message. `rates`: whether `PeerTable.broker_rates` changed.
    """

    peer: str
    gateway: str
    keys: Set[FleetKey] = frozenset()
    left: bool = False
    rates: bool = False


class PeerStatus(NamedTuple):
    """Another gateway as its messages show it. `since`, `heard`: seconds ago. `is_living`: it counts; else it was
    silent for too long, and isn't forgotten yet.
    """

    gateway: str
    workers: int
    cycle_s: float
    since: float
    heard: float
    is_living: bool


class ClusterClock:
    """The cluster's clock, as learned from our own messages when they come back."""

    def __init__(self) -> None:
        self.began: float | None = None  # when the first one came back
        self.heard_at: float | None = None  # and the last one that wasn't late
        self.round_trip_s = math.nan  # of that one
        self._ahead_ms: float | None = None

    def learn_offset(self, publish_ms: int | None, sent: float, now: float, at_most: float) -> None:
        """One of our messages came back, published then. If it took longer than a cycle (`at_most`), it was read late
        and gives only bounds: it was published between `sent` and now. Without them a fleet whose messages always take
        so long would keep the clock of a former leader, and call all messages of others stale. If it took so long that
        others' messages are stale by then, we can't hear them either.
        """
        self.round_trip_s = now - sent
        is_heard = self.round_trip_s <= STALE_CYCLES * at_most
        if is_heard:
            self.heard_at = now
            if self.began is None:
                self.began = now
        if publish_ms is None:
            self._ahead_ms = None
        elif self.round_trip_s <= at_most or self._ahead_ms is None:
            self._ahead_ms = publish_ms - now * 1000
        elif is_heard:
            self._ahead_ms = min(max(self._ahead_ms, publish_ms - now * 1000), publish_ms - sent * 1000)

    def unix_time(self, now: float) -> float | None:
        """Unix time of the cluster, late by the time that a message takes; None: not known."""
        return None if self._ahead_ms is None else now + self._ahead_ms / 1000

    def message_age(self, publish_ms: int | None, now: float) -> float | None:
        """The message's age in seconds, or a little more; None: not known."""
        if publish_ms is None or self._ahead_ms is None:
            return None
        return now + (self._ahead_ms - publish_ms) / 1000


class _LatestRounds(Generic[K, V]):
    """The last news of each thing from a peer, in this round of its reports and in the one before."""

    def __init__(self) -> None:
        self._new: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def __iter__(self) -> Iterator[K]:
        yield from self._new
        yield from self._old

    def get(self, what: K) -> V | None:
        found = self._new.get(what)
        return self._old.get(what) if found is None else found

    def set_value(self, what: K, value: V) -> None:
        self._old.pop(what, None)
        self._new[what] = value

    def next_round(self) -> dict[K, V]:
        """A round has ended. Returns the things that it did not mention, which so have ended."""
        ended, self._old, self._new = self._old, self._new, {}
        return ended

    def miss_round(self) -> None:
        """A round has ended of which a part was not received."""
        self._old |= self._new
        self._new = {}


@dataclass(slots=True, eq=False)
class _PeerState:
    boot: bytes
    gateway: str
    label: str
    since: float
    heard: float
    round: int
    workers: int = 1
    cycle_s: float = 1.0
    sequence: int = -1
    has_gap: bool = False  # a message is missing that may have belonged to this round
    is_living: bool = False
    demands: _LatestRounds[int, LimitDemand] = field(default_factory=_LatestRounds)  # by the limit's number
    rates: _LatestRounds[RatePlace, float] = field(default_factory=_LatestRounds)
    traffic: GatewayTraffic = NO_TRAFFIC
    traffic_round: int = 0  # when that was reported


class PeerTable:
    """The messages of others.

    Attributes:
        drop_counts: messages dropped, by reason (DROP_REASONS).
        peer_count: gateways beside this one.
        worker_count: of those, together.
    """

    def __init__(self, reporter: UsageReporter, *, room: int = DEMAND_ROOM) -> None:
        self.clock = ClusterClock()
        self.drop_counts = dict.fromkeys(DROP_REASONS, 0)
        self.peer_count = self.worker_count = 0
        self._reporter = reporter
        self._limits = reporter.limits
        self._room = room
        self._peers: dict[bytes, _PeerState] = {}
        self._sent_messages: deque[tuple[int, float]] = deque(
            maxlen=64
        )  # the sequence behind our messages, and when they went
        self._excused = 0.0  # no peer could be heard before this
        self._clashes: dict[str, float] = {}  # gateways of the same name, and when that was seen last
        self._crowded_at: float | None = None  # when there was no room for a rate last
        self._versions: dict[str, float] = {}  # of the form, that others write in, likewise

    # --- what is known ---

    @property
    def living_gateways(self) -> dict[str, str]:
        """Names of the living gateways, by `PeerNews.peer`."""
        return {peer.label: peer.gateway for peer in self._peers.values() if peer.is_living}

    def peer_statuses(self, now: float) -> list[PeerStatus]:
        """All gateways that are remembered, by name."""
        found = [
            PeerStatus(peer.gateway, peer.workers, peer.cycle_s, now - peer.since, now - peer.heard, peer.is_living)
            for peer in self._peers.values()
        ]
        return sorted(found)

    @property
    def problem(self) -> str:
        """Gateways with the same name, or of a release whose messages can't be read, one line; "": none."""
        versions = [
            f"messages of version {version} can't be read, only {VERSION}: what those gateways use isn't counted;"
            " run one release"
            for version in sorted(self._versions)
        ]
        names = [
            f"two gateways call themselves {one_line(name)!r} and run at the same time: each counts on its own; give"
            " them names of their own (`gateway`)"
            for name in sorted(self._clashes)
        ]
        crowd = [f"more than {MAX_RATES} rates of topics: some of what others bring to topics isn't counted"]
        return "; ".join(versions + names + (crowd if self._crowded_at is not None else []))

    def demands_for(self, key: FleetKey) -> list[LimitDemand]:
        """The demands of living peers for a limit, where they have any."""
        number = self._limits.limit_number(key)
        uses = [peer.demands.get(number) for peer in self._peers.values() if peer.is_living]
        return [use for use in uses if use is not None and not use.is_idle]

    def rates_by_gateway(self, key: FleetKey) -> dict[str, float]:
        """The rates, per second, at which living peers use a limit, by their names."""
        number, found = self._limits.limit_number(key), dict.fromkeys(self.living_gateways.values(), 0.0)
        for peer in self._peers.values():
            if peer.is_living and (use := peer.demands.get(number)) is not None:
                found[peer.gateway] += use.rate
        return found

    def place_rates(self, place: RatePlace) -> dict[str, float]:
        """The rates, in bytes per second, of living peers that produce there, by their names."""
        found: dict[str, float] = {}
        for peer in self._peers.values():
            if peer.is_living and (rate := peer.rates.get(place)):
                found[peer.gateway] = found.get(peer.gateway, 0.0) + rate
        return found

    def traffic_by_gateway(self) -> dict[str, GatewayTraffic]:
        """The busiest topics and clients of living peers, by name, as reported in this round or the last one."""
        return {
            peer.gateway: peer.traffic
            for peer in self._peers.values()
            if peer.is_living and peer.traffic is not NO_TRAFFIC and peer.round - peer.traffic_round <= 1
        }

    def published_demand(self, key: FleetKey) -> LimitDemand:
        """The demand that peers count for this gateway."""
        return self._reporter.published_demand(key)

    def broker_rates(self) -> dict[int, tuple[float, dict[str, float]]]:
        """By broker: the rates of all living peers together to it, and to topics there, in bytes per second."""
        totals: dict[int, float] = {}
        topics: dict[int, dict[str, float]] = {}
        for peer in self._peers.values():
            for place in peer.rates if peer.is_living else ():
                if rate := peer.rates.get(place):
                    node_id, topic = place
                    if topic is None:
                        totals[node_id] = totals.get(node_id, 0.0) + rate
                    else:
                        there = topics.setdefault(node_id, {})
                        there[topic] = there.get(topic, 0.0) + rate
        return {
            node_id: (totals.get(node_id, 0.0), topics.get(node_id, {})) for node_id in totals.keys() | topics.keys()
        }

    @property
    def round_trip_s(self) -> float:
        """The round trip of our last message; NaN: none has come back."""
        return self.clock.round_trip_s

    def is_own_heard(self, now: float) -> bool:
        """Whether our own messages come back: only then a peer's silence means anything."""
        return self.clock.heard_at is not None and now - self.clock.heard_at <= SILENT_CYCLES * self._reporter.cycle_s

    # --- what comes ---

    def record_sent(self, now: float) -> None:
        """Everything reported so far is in flight from now on."""
        self._sent_messages.append((self._reporter.sequence, now))

    def handle_report(self, data: bytes, publish_ms: int | None, now: float) -> PeerNews | None:
        """Handle one message. `publish_ms`: when the cluster accepted it; None: not known.

        Returns:
            Its news; None for our own messages, and for one that was dropped (`drop_counts`).
        """
        try:
            message = decode_usage(data)
        except UnknownVersion as version:
            self._versions[str(version)] = now
            self.drop_counts["version"] += 1
            return None
        except MalformedUsage:
            self.drop_counts["malformed"] += 1
            return None
        if message.boot == self._reporter.boot:
            sent = next((at for end, at in self._sent_messages if message.sequence < end), now)
            self.clock.learn_offset(publish_ms, sent, now, self._reporter.cycle_s)
            return None
        cycle_s = min(MAX_CYCLE_S, max(MIN_CYCLE_S, message.cycle_ms / 1000))
        age = self.clock.message_age(publish_ms, now)
        if age is not None and age > STALE_CYCLES * max(cycle_s, self._reporter.cycle_s):
            self.drop_counts["stale"] += 1
            return None
        peer = self._peers.get(message.boot)
        if peer is None:
            if len(self._peers) >= MAX_PEERS:
                self.drop_counts["too-many"] += 1
                return None
            peer = self._add_peer(message, now)
        elif message.sequence <= peer.sequence:
            self.drop_counts["late"] += 1
            return None
        else:
            self._check_name_clash(peer, now)
        returns = not peer.is_living
        is_next = message.sequence == peer.sequence + 1
        peer.heard, peer.cycle_s, peer.sequence = now, cycle_s, message.sequence
        self._set_workers(peer, max(1, message.workers))
        if message.leaving:
            self._remove_peer(peer)
            return PeerNews(peer.label, peer.gateway, left=True, rates=True)
        if returns:  # it is new, or was away and has missed what changed meanwhile
            self._reporter.repeat_all()
        numbers, rates = self._end_round(peer, message.round, is_next=is_next)
        if message.flows:
            peer.traffic, peer.traffic_round = read_flows(message), message.round
        numbers |= self._update_demands(peer, message)
        rates |= self._update_rates(peer, message, now)
        if returns:
            numbers.update(peer.demands)
        keys = frozenset(key for key in map(self._limits.limit_key, numbers) if key is not None)
        return PeerNews(peer.label, peer.gateway, keys, rates=rates or returns)

    def excuse_silence(self, now: float) -> None:
        """No peer could be received until now."""
        self._excused = now

    def expire_peers(self, now: float) -> list[str]:
        """Remove and return peers that were silent for too long; none while our own messages don't come back."""
        if self.clock.heard_at is None:
            return []
        gone = []
        for peer in list(self._peers.values()):
            cycle_s = max(peer.cycle_s, self._reporter.cycle_s)
            since = max(peer.heard, self._excused)
            # When the topic fails, a peer that spoke before us is silent for longer than we are: it missed a turn
            # while ours still came through.
            if now - since > SILENT_CYCLES * cycle_s and self.clock.heard_at - since > MISSED_CYCLES * cycle_s:
                if peer.is_living:
                    self._set_workers(peer, 0)
                    gone.append(peer.label)
                if now - since > FORGOTTEN_CYCLES * cycle_s:
                    self._remove_peer(peer)
        if self._crowded_at is not None and now - self._crowded_at > CLASH_CYCLES * self._reporter.cycle_s:
            self._crowded_at = None
        for complaints in (self._clashes, self._versions):
            for what, seen in list(complaints.items()):
                if now - seen > CLASH_CYCLES * self._reporter.cycle_s:
                    del complaints[what]
        return gone

    def _add_peer(self, message: ResourceUsage, now: float) -> _PeerState:
        label = f"{message.broker}#{message.boot.hex()}"
        peer = self._peers[message.boot] = _PeerState(message.boot, message.broker, label, now, now, message.round)
        return peer

    def _check_name_clash(self, peer: _PeerState, now: float) -> None:
        """A known peer reports after another one of its name has begun: that is not a restart."""
        began = self.clock.began
        if peer.gateway == self._reporter.gateway and began is not None and began < now:
            self._clashes[peer.gateway] = now
        for other in self._peers.values():
            if other.gateway == peer.gateway and other is not peer and other.is_living and other.since >= peer.since:
                self._clashes[peer.gateway] = now

    def _end_round(self, peer: _PeerState, number: int, *, is_next: bool) -> tuple[set[int], bool]:
        """Remove the things that ended in the round before: limits' numbers, and whether any rate did. Nothing has
        ended where a message is missing, lost or dropped as stale: it may have repeated that.
        """
        before, peer.round = peer.round, number
        peer.has_gap |= not is_next
        if number == before:
            return set(), False
        is_whole = number == before + 1 and not peer.has_gap
        peer.has_gap = not is_next  # what is missing may belong to either round
        if not is_whole:
            peer.demands.miss_round()
            peer.rates.miss_round()
            return set(), False
        ended = {number for number, use in peer.demands.next_round().items() if not use.is_idle}
        return ended, any(peer.rates.next_round().values())

    def _update_demands(self, peer: _PeerState, message: ResourceUsage) -> set[int]:
        """Accept demands for limits that this gateway uses, or that there is room for; returns the numbers of limits
        that changed.
        """
        changed = set()
        room = self._room - sum(len(other.demands) for other in self._peers.values())
        for number, fields in read_demands(message.limits):
            key, use = self._limits.limit_key(number), peer.demands.get(number)
            if use is None:
                rate, hungry, *_ = fields
                if not (rate or hungry) or (key is None and room <= 0):
                    continue
                room -= 1
                if key is not None:
                    self._reporter.repeat_limit(number)
            if use != fields:
                use = LimitDemand(*fields)
                changed.add(number)
            # One object for all peers that name it.
            peer.demands.set_value(number if key is None else self._limits.limit_number(key), use)
        return changed

    def _update_rates(self, peer: _PeerState, message: ResourceUsage, now: float) -> bool:
        """Whether any of them changed."""
        changed = is_crowded = False
        room = MAX_RATES - sum(len(other.rates) for other in self._peers.values()) if message.rates else 0
        for rate in message.rates:
            place = rate_place(rate)
            before = peer.rates.get(place)
            if before is not None or room > (0 if place.topic is not None else -MAX_RATES):
                room -= before is None
                peer.rates.set_value(place, rate.rate)
                changed |= rate.rate != (before or 0.0)
            elif rate.rate:
                is_crowded = True
        if is_crowded:
            self.drop_counts["too-many"] += 1
            self._crowded_at = now
        return changed

    def _set_workers(self, peer: _PeerState, workers: int) -> None:
        """The peer lives and has that many workers; 0: it doesn't live."""
        before = peer.workers if peer.is_living else 0
        self.worker_count += workers - before
        self.peer_count += (workers > 0) - (before > 0)
        peer.is_living = workers > 0
        peer.workers = workers or peer.workers

    def _remove_peer(self, peer: _PeerState) -> None:
        self._set_workers(peer, 0)
        del self._peers[peer.boot]
