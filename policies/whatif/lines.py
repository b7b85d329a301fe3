# Limits that delay, in a replay: thresholds with on_exceed delay, client quotas and resource groups. A client under one
# sends piece by piece: a piece passes, and the client waits as long as it is told before it sends the next. So what
# does not fit into a second of the record moves into later ones, at the pace of the limit. A piece for which there is
# no room is held while its client waits, as at the gateway, and rejected then.
#
# One client of the record may have been many connections; here it has one, which waits for all of them. Bytes come out
# right, since lines count them; the sum of all delays is that of one connection. Knows no record, no file and no clock.

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from policies.client_timeouts import patience_s
from policies.decision import Limits, Patience, admit, decide
from policies.definitions.policy_set import PolicySet
from policies.engine import Engine
from policies.fleet.lines import OurParts
from policies.groups.finder import Finder
from policies.groups.lines import GroupLimits, GroupLines, GroupSide
from policies.groups.names import PUBLISH_BYTES, PUBLISH_MSGS
from policies.limits.line import look_again_in
from policies.quotas.lines import DEAL_S, NONE, QuotaLines
from policies.quotas.lines import Lines as OwnLines
from policies.thresholds.broker_limits import TopicThreshold
from policies.thresholds.broker_meters import OTHER, BrokerMeters
from policies.thresholds.topic_meter import TopicMeter
from policies.whatif.client import Stream
from policies.whatif.rows import Rules

PIECE_S: Final = 0.25  # of a limit's rate: this much passes at once, unless requests are larger
PATIENCE_S: Final = patience_s(None, 30_000)  # records don't say what software their clients were: most wait for 30 s


@dataclass(slots=True)
class Offer:
    """The bytes that a client wants to get in within a slot: all that it holds. `rejects`: its topic's threshold does
    so with all of it; `was`: so it did in the record. `passed`: the bytes that got in, `again` of them not for the
    first time.
    """

    stream: Stream
    broker: BrokerMeters
    meter: TopicMeter
    rejects: bool
    was: bool
    passed: float = 0.0
    again: float = 0.0
    piece: float = 0.0  # bytes that may pass at once, as the one before met no limit


class Lines:
    """All limits that delay, over the whole fleet.

    Args:
        rejected: told about each attempt in vain: the stream, the reason, bytes, and how many not for the first time.
        delayed: told about each wait: the stream, the reason, bytes, seconds.
    """

    def __init__(
        self,
        rules: Rules,
        rejected: Callable[[Stream, str, float, float], None],
        delayed: Callable[[Stream, str, float, float], None],
    ) -> None:
        self._rejected = rejected
        self._delayed = delayed
        self.paces = rules.on_exceed == "delay"
        fleet = OurParts()
        self._quotas = QuotaLines(fleet)
        self._groups = GroupLines(fleet)
        self._patterns = rules.topic_pattern, rules.principal_pattern
        self._standing = Engine(0.0).broker(0).add_topic(OTHER)  # one that stands for several topics asks always
        self._own: dict[Stream, tuple[OwnLines, GroupSide | None]] = {}
        self._clock = 0.0
        self._dealt = 0.0
        self._taken: dict[int, float] = {}
        self.set_policies(PolicySet(rules.values), 0.0)

    def set_policies(self, policies: PolicySet, now: float) -> None:
        """Go by these from now on. Debts of limits that stay, stay; clients have to `join` again."""
        self._policies = policies
        self._quotas.set_store(policies.quotas(), now)
        finder = Finder(*self._patterns, policies.tenants(), policies.namespaces())
        limits = {
            name: GroupLimits(publish_bytes=rates.get(PUBLISH_BYTES), publish_msgs=rates.get(PUBLISH_MSGS))
            for name, rates in policies.groups().items()
        }
        self._groups.set_groups(limits, finder, now)
        self._own.clear()

    def join(self, stream: Stream, now: float) -> None:
        """Find the limits of this client."""
        broker, topic, principal, client_id = stream.key
        quotas = self._quotas.of(broker, principal.partition(":")[2], client_id, now)
        side = self._side(topic, principal, now)
        stream.limited = False
        if quotas.produce or side is not None:
            self._own[stream] = OwnLines(quotas.produce), side
            stream.limited = True
        elif self.paces and self._policies.total(broker) is not None:
            stream.limited = True

    def flow(self, wants: Iterable[Offer], now: float, until: float) -> None:
        """Let the bytes pass that may between `now` and `until`."""
        turns = [(max(now, want.stream.muted_until), number, want) for number, want in enumerate(wants)]
        heapq.heapify(turns)
        while turns:
            at, number, want = heapq.heappop(turns)
            stream = want.stream
            if at >= until or stream.held <= 0.0:
                continue
            self._clock = max(self._clock, at)  # slots of several workers overlap: no limit's clock goes back
            self._one(want, at)
            heapq.heappush(turns, (max(at, stream.muted_until), number, want))

    def charge(self, stream: Stream, size: float, now: float, *, refused: bool) -> None:
        """Charge the client's own quotas for bytes that got to the broker and not into the log. `refused`: else they
        were trimmed.
        """
        lines, _ = self._own.get(stream, _NOTHING)
        lines.take(round(size), 0, max(self._clock, now))
        if refused:
            lines.give_back(round(size), 0)

    @property
    def has_shares(self) -> bool:
        """Whether there is anything to `deal`."""
        return self._quotas.has_shares

    def deal(self, brokers: Mapping[int, float], now: float) -> None:
        """Deal shares of totals out, if it is time. `brokers`: bytes that each has got since ever."""
        if now - self._dealt < DEAL_S:
            return
        self._dealt = now
        totals = {}
        for node_id, taken in brokers.items():
            totals[node_id] = (self._policies.total(node_id), taken - self._taken.get(node_id, taken))
            self._taken[node_id] = taken
        self._quotas.deal(totals, now)

    def _one(self, want: Offer, at: float) -> None:
        stream, now = want.stream, self._clock
        size = min(stream.held, max(want.piece, stream.request, PIECE_S * self._pace_of(want)))
        messages = round(size * stream.messages)
        key = want.meter.name, 0
        latest = (stream.waits_since or at) + PATIENCE_S
        denied_s = now - stream.denied_since if stream.denied_since else 0.0
        patience = Patience(at < latest, denied_s, stream.key[2:])
        decision = decide([(*key, round(size), messages)], {key: self._limits(want)}, patience, now)
        refused = decision.refused.get(key)
        if refused is not None:
            stream.denied_since = stream.denied_since or now
            if refused.room_in_s and at < latest:
                stream.waits_since = stream.waits_since or at
                stream.muted_until = min(at + look_again_in(refused.room_in_s), latest)
                self._delayed(stream, refused.reason, 0.0, stream.muted_until - at)
                return
            stream.waits_since = 0.0
            self._rejected(stream, refused.reason, *stream.attempt(size))
            stream.muted_until = at + max(refused.throttle_ms / 1000, PIECE_S)
            return
        stream.denied_since = stream.waits_since = 0.0
        size, again = stream.release(size)
        want.passed += size
        want.again += again
        admit(decision, [(*key, round(size), messages)], now)
        want.meter.uncounted += size  # type: ignore[assignment]  # of a fluid
        want.broker.total.uncounted += size  # type: ignore[assignment]
        want.piece = 0.0 if decision.notes else 2 * size  # there is room: not by thousands of pieces
        for _, _, reason, delay_ms in decision.notes:
            self._delayed(stream, reason, size, delay_ms / 1000)
            stream.muted_until = at + delay_ms / 1000

    def _limits(self, want: Offer) -> Limits:
        lines, side = self._own.get(want.stream, _NOTHING)
        asks = self.paces and want.meter.thresholds_ask
        threshold = TopicThreshold(want.broker.limits, want.meter, want.meter.name) if asks else None
        return Limits(quota=lines, group=side, threshold=threshold)

    def _pace_of(self, want: Offer) -> float:
        """The lowest rate that holds, bytes per second."""
        lines, side = self._own.get(want.stream, _NOTHING)
        rates = [line.bucket.rate for line in lines.produce]
        if side is not None and side.bytes is not None:
            rates.append(side.bytes.bucket.rate)
        if side is not None and side.msgs is not None and want.stream.messages:
            rates.append(side.msgs.bucket.rate / want.stream.messages)
        limit = want.meter.threshold if self.paces else None
        if limit is not None:
            rates.append(limit)
        return min(rates, default=0.0)

    def _side(self, topic: str, principal: str, now: float) -> GroupSide | None:
        if not self._groups.exists:
            return None
        name = topic.encode()
        side = self._groups.publish(self._standing, name, now)
        if side is None and self._groups.depends_on_principal(name):
            side = self._groups.publish_by_principal(principal, now)
        return side if side is not None and side.lines else None


_NOTHING: Final[tuple[OwnLines, None]] = (NONE, None)
