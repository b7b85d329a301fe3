# Limits that delay, in a replay: thresholds with on_exceed delay, client quotas and resource groups. A client under one
# sends piece by piece: a piece passes, and the client waits for the throttle time before it sends the next. So what
# does not fit into a second of the record moves into later ones, at the pace of the limit. A piece for which there is
# no room is held while its client waits, as at the gateway, and rejected then.
#
# One client of the record may have been many connections; here it has one, which waits for all of them. Bytes come out
# right, since limits count them; the sum of all delays is that of one connection. Knows neither record nor file nor
# clock.

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from policies.client_timeouts import max_response_wait_s
from policies.decision import ClientPatience, PartitionLimits, RequestDecision, charge_admitted, decide_request
from policies.definitions.policy_set import PolicySet
from policies.engine import PolicyEngine
from policies.fleet.fleet_limiter import FleetShares
from policies.groups.finder import GroupResolver
from policies.groups.group_limiters import GroupLimit, GroupLimiters, GroupLimitValues
from policies.limited_broker import LimitedBroker
from policies.limits.limiter import recheck_delay_s
from policies.meters.broker_meters import OTHER_TOPICS
from policies.meters.topic_meter import TopicMeter
from policies.quotas.quota_limiters import ALLOCATE_S, NO_QUOTA_LIMIT, ConnectionQuotaLimit, QuotaLimiters
from policies.thresholds.broker_limits import TopicThresholdLimit
from policies.verdict import Verdict
from policies.whatif.client import ReplayStream
from policies.whatif.rows import ReplayRules

PIECE_S: Final = 0.25  # of a limit's rate: this much passes at once, unless requests are larger
# Records don't say what software their clients were: most wait for 30 s.
PATIENCE_S: Final = max_response_wait_s(None, 30_000)


@dataclass(slots=True)
class ReplayOffer:
    """The bytes that a client wants to get in within a slot: all that it holds. `rejects`: its topic's threshold does
    so with all of it; `was_rejecting`: so it did in the record. `passed`: the bytes that got in, `again` of them not
    for the first time.
    """

    stream: ReplayStream
    broker: LimitedBroker
    meter: TopicMeter
    rejects: bool
    was_rejecting: bool
    passed: float = 0.0
    again: float = 0.0
    piece: float = 0.0  # bytes that may pass at once, as the one before met no limit


class ReplayLimits:
    """All limits that delay, over the whole fleet.

    Args:
        rejected: called for each attempt in vain: the stream, the reason, bytes, and how many not for the first time.
        delayed: called for each wait: the stream, the reason, bytes, seconds.
    """

    def __init__(
        self,
        rules: ReplayRules,
        rejected: Callable[[ReplayStream, str, float, float], None],
        delayed: Callable[[ReplayStream, str, float, float], None],
    ) -> None:
        self._rejected = rejected
        self._delayed = delayed
        self.delays_requests = rules.on_exceed == "delay"
        fleet = FleetShares()
        self._quotas = QuotaLimiters(fleet)
        self._groups = GroupLimiters(fleet)
        self._patterns = rules.topic_pattern, rules.principal_pattern
        self._standing = (
            PolicyEngine(0.0).broker_meters(0).add_topic(OTHER_TOPICS)
        )  # one that stands for several topics asks always
        self._limits_by_stream: dict[ReplayStream, tuple[ConnectionQuotaLimit, GroupLimit | None]] = {}
        self._clock = 0.0
        self._allocated_at = 0.0
        self._counted_bytes: dict[int, float] = {}
        self.set_policies(PolicySet(rules.values), 0.0)

    def set_policies(self, policies: PolicySet, now: float) -> None:
        """Go by these from now on. Debts of limits that stay, stay; clients have to call `find_limits` again."""
        self._policies = policies
        self._quotas.set_quotas(policies.quota_store(), now)
        finder = GroupResolver(*self._patterns, policies.tenant_groups(), policies.namespace_groups())
        limits = {name: GroupLimitValues.from_rates(rates) for name, rates in policies.group_limits().items()}
        self._groups.set_groups(limits, finder, now)
        self._limits_by_stream.clear()

    def find_limits(self, stream: ReplayStream, now: float) -> None:
        """Find the limits of this client."""
        broker, topic, principal, client_id = stream.key
        quotas = self._quotas.connection_limit(broker, principal.partition(":")[2], client_id, now)
        group_limit = self._find_group_limit(topic, principal, now)
        stream.is_limited = False
        if quotas.produce_limiters or group_limit is not None:
            self._limits_by_stream[stream] = ConnectionQuotaLimit(quotas.produce_limiters), group_limit
            stream.is_limited = True
        elif self.delays_requests and self._policies.broker_total(broker) is not None:
            stream.is_limited = True

    def admit_offers(self, wants: Iterable[ReplayOffer], now: float, until: float) -> None:
        """Let the bytes pass that may between `now` and `until`."""
        turns = [(max(now, want.stream.muted_until), number, want) for number, want in enumerate(wants)]
        heapq.heapify(turns)
        while turns:
            at, number, want = heapq.heappop(turns)
            stream = want.stream
            if at >= until or stream.held <= 0.0:
                continue
            self._clock = max(self._clock, at)  # slots of several workers overlap: no limit's clock goes back
            self._decide_piece(want, at)
            heapq.heappush(turns, (max(at, stream.muted_until), number, want))

    def judge_rejected(self, want: ReplayOffer, at: float) -> Verdict:
        """The verdict on a request to a topic that is over its threshold."""
        stream, now = want.stream, max(self._clock, at)
        part, decision = self._decide_request(want, stream.request, ClientPatience(client=stream.key[2:]), now)
        return decision.refused[part[:2]]

    def charge_quotas(self, stream: ReplayStream, size: float, now: float, *, refused: bool) -> None:
        """Charge the client's own quotas for bytes that got to the broker and not into the log. `refused`: else they
        were trimmed.
        """
        quota_limit, _ = self._limits_by_stream.get(stream, _NO_STREAM_LIMITS)
        quota_limit.charge_request(round(size), 0, max(self._clock, now))
        if refused:
            quota_limit.refund_request(round(size), 0)

    @property
    def has_shares(self) -> bool:
        """Whether there is anything for `allocate_shares` to do."""
        return self._quotas.has_shares

    def allocate_shares(self, brokers: Mapping[int, float], now: float) -> None:
        """Deal shares of totals out, if it is time. `brokers`: bytes that each has got since ever."""
        if now - self._allocated_at < ALLOCATE_S:
            return
        self._allocated_at = now
        totals = {}
        for node_id, taken in brokers.items():
            totals[node_id] = (self._policies.broker_total(node_id), taken - self._counted_bytes.get(node_id, taken))
            self._counted_bytes[node_id] = taken
        self._quotas.allocate_shares(totals, now)

    def _decide_piece(self, want: ReplayOffer, at: float) -> None:
        stream, now = want.stream, self._clock
        size = min(stream.held, max(want.piece, stream.request, PIECE_S * self._lowest_rate(want)))
        latest = (stream.waits_since or at) + PATIENCE_S
        denied_s = now - stream.denied_since if stream.denied_since else 0.0
        patience = ClientPatience(at < latest, denied_s, stream.key[2:])
        part, decision = self._decide_request(want, size, patience, now)
        refused = decision.refused.get(part[:2])
        if refused is not None:
            stream.denied_since = stream.denied_since or now
            if refused.room_in_s and at < latest:
                stream.waits_since = stream.waits_since or at
                stream.muted_until = min(at + recheck_delay_s(refused.room_in_s), latest)
                self._delayed(stream, refused.reason, 0.0, stream.muted_until - at)
                return
            stream.waits_since = 0.0
            self._rejected(stream, refused.reason, *stream.attempt_bytes(size))
            stream.muted_until = at + max(refused.throttle_ms / 1000, PIECE_S)
            return
        stream.denied_since = stream.waits_since = 0.0
        size, again = stream.release_bytes(size)
        want.passed += size
        want.again += again
        charge_admitted(decision, [part], now)
        want.meter.uncounted += size  # type: ignore[assignment]  # of a fluid
        want.broker.total.uncounted += size  # type: ignore[assignment]
        want.piece = 0.0 if decision.notes else 2 * size  # there is room: not by thousands of pieces
        for _, _, reason, delay_ms in decision.notes:
            self._delayed(stream, reason, size, delay_ms / 1000)
            stream.muted_until = at + delay_ms / 1000

    def _decide_request(
        self, want: ReplayOffer, size: float, patience: ClientPatience, now: float
    ) -> tuple[_Part, RequestDecision[_Part]]:
        """One request of the client, and what all its limits say about it."""
        quota_limit, group_limit = self._limits_by_stream.get(want.stream, _NO_STREAM_LIMITS)
        meter, limits = want.meter, want.broker.limits
        asks = want.rejects or (meter.thresholds_ask and limits.strategy.delays_requests)
        threshold = TopicThresholdLimit(limits, meter, meter.name) if asks else None
        under = PartitionLimits(quota=quota_limit, group=group_limit, threshold=threshold)
        part = (meter.name, 0, round(size), round(size * want.stream.messages))
        return part, decide_request([part], {part[:2]: under}, patience, now)

    def _lowest_rate(self, want: ReplayOffer) -> float:
        """The lowest rate that holds, bytes per second."""
        quota_limit, group_limit = self._limits_by_stream.get(want.stream, _NO_STREAM_LIMITS)
        rates = [limiter.bucket.rate for limiter in quota_limit.produce_limiters]
        if group_limit is not None and group_limit.byte_limiter is not None:
            rates.append(group_limit.byte_limiter.bucket.rate)
        if group_limit is not None and group_limit.message_limiter is not None and want.stream.messages:
            rates.append(group_limit.message_limiter.bucket.rate / want.stream.messages)
        limits = want.broker.limits
        limit = limits.thresholds.effective_threshold(want.meter) if limits.strategy.delays_requests else None
        if limit is not None:
            rates.append(limit)
        return min(rates, default=0.0)

    def _find_group_limit(self, topic: str, principal: str, now: float) -> GroupLimit | None:
        if not self._groups.has_groups:
            return None
        name = topic.encode()
        group_limit = self._groups.activate_publish_limit(self._standing, name, now)
        if group_limit is None and self._groups.depends_on_principal(name):
            group_limit = self._groups.principal_publish_limit(principal, now)
        return group_limit if group_limit is not None and group_limit.limiters else None


_Part = tuple[bytes, int, int, int]
_NO_STREAM_LIMITS: Final[tuple[ConnectionQuotaLimit, None]] = (NO_QUOTA_LIMIT, None)
