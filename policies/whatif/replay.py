# Recorded usage, decided once more by other policies: what would have got in, and what not. The decisions are those of
# the engine, of quotas and of groups themselves; what is here stands in for the clients.
#
# A record has a row per client, topic and outcome for each second. It says what happened as long as the replay decides
# as was decided then. Where it decides otherwise, bytes go another way:
#
#   admitted here, rejected then    they are in; their recorded repeats fall away
#   rejected here, admitted then    the client holds them back for the throttle time, and sends them again (client.py)
#
# So differences are all that is reported (`OutcomeShift`); where both decide alike there are none.
#
# Thresholds that reject are decided in each worker, as they were: at its own ticks, knowing the others' rates. All
# other limits hold over the fleet as if one worker had all connections (replay_limits.py). Bytes that storage, fences
# and the operator's own policies rejected stay rejected. Knows no file, no frame and no clock.

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import groupby
from typing import Final

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyValues
from policies.engine import PolicyEngine
from policies.limited_broker import LimitedBroker
from policies.meters.broker_meters import PeerTraffic
from policies.meters.meter import TICK_S
from policies.meters.topic_meter import ALWAYS_ASK, NEVER_ASK, TopicMeter
from policies.usage import APPENDED_ERRORS, DELAYED, NOTES
from policies.verdict import CLIENT_QUOTA, FENCE, RESOURCE_GROUP, TOPIC_THRESHOLD
from policies.whatif.client import IN_FLIGHT, ReplayStream
from policies.whatif.replay_limits import ReplayLimits, ReplayOffer
from policies.whatif.rows import OutcomeShift, ReplayRow, ReplayRules, StreamKey, WorkerLife
from policies.whatif.tick_phase import TickPhase

# Rejections that the replay decides again.
DECIDED: Final = frozenset({TOPIC_THRESHOLD, CLIENT_QUOTA, RESOURCE_GROUP})
# Outcomes that passed the policies; meters count bytes that got into the log, or may have (see `_is_metered`).
METERED: Final = frozenset({"accepted", "unacknowledged", "unanswered"})
ADMITTED: Final = METERED | {"errored", "duplicate"}
# The order of a second's bytes and a tick is not always known, so rates are known to about a hundredth. Where one is as
# near to its limit as that, the decision is the one that was made then.
TOLERANCE_BAND: Final = 0.01
SNAP_S: Final = 0.1  # workers end an interval at each tick: one that seems to be so near to an edge is there
NEWS_S: Final = 2.0  # until then a worker may not have heard of the others' newest rates
# Each worker ticks every five seconds, and reporting costs as much as there are workers: of more than a few once a
# second, as often as gateways report to each other.
FEW_WORKERS: Final = 8
EXCHANGE_S: Final = 1.0
FORGET_S: Final = 600.0
WARM_UP_S: Final = 300.0  # rates that begin unknown are right to a hundredth after this long
WAITING: Final = "waiting"  # outcome: held back at the end, and never sent
GIVEN_UP: Final = "delivery-timeout"  # reason: held back for too long, and never sent


def replay_usage(
    rows: Iterable[ReplayRow],
    rules: ReplayRules,
    phases: Mapping[WorkerLife, TickPhase],
    *,
    window_ms: int | None = None,
    from_ms: int = 0,
) -> Iterator[OutcomeShift]:
    """All differences by window, client, topic, outcome and reason; those of the same may come in several pieces.

    Args:
        rows: in the order of start_ms, those of one interval together.
        phases: the times of each life's ticks; those of a life that isn't there are not known, and don't matter much
            unless it rejected batches.
        window_ms: length of windows, aligned to Unix time; None for a single one, called 0.
        from_ms: earlier intervals are only there to warm up (WARM_UP_S).
    """
    run = UsageReplay(rules, phases, window_ms, from_ms)
    for _, interval in groupby(rows, lambda row: (row.start_ms, row.life)):
        run.replay_interval(list(interval))
        yield from run.drain_shifts()
    run.finish_replay()
    yield from run.drain_shifts()


class _ReplayWorker:
    """One life: its engine, its clients, and the topics that the record has `rejecting` just then."""

    __slots__ = (
        "_is_first",
        "engine",
        "exchanged_at",
        "forced_topics",
        "holding_streams",
        "over_before",
        "rejecting",
        "replayed_until",
        "streams",
        "ticks_at_edges",
    )  # fmt: skip

    def __init__(self, engine: PolicyEngine, is_first: bool, ticks_at_edges: bool) -> None:
        """`is_first`: it produced nothing just before its first record. `ticks_at_edges`: intervals end at ticks."""
        self.engine = engine
        self.ticks_at_edges = ticks_at_edges
        self._is_first = is_first
        self.rejecting: dict[tuple[int, str], bool] = {}
        self.forced_topics: list[TopicMeter] = []  # decided as they were, not as the engine has it
        self.exchanged_at = -math.inf  # when it got others' rates
        self.over_before: set[TopicMeter] = set()  # what was over before that
        self.streams: dict[StreamKey, ReplayStream] = {}
        self.holding_streams: dict[ReplayStream, None] = {}  # a set's order would depend on addresses
        self.replayed_until = 0.0

    def broker_meters(self, node_id: int) -> LimitedBroker:
        broker = self.engine.broker_meters(node_id)
        if self._is_first and not broker.total.started:
            broker.start_at_zero()  # it ticks from its worker's start on, until now without any bytes
        return broker

    @property
    def next_event_at(self) -> float:
        """The time at which its engine has something to do next."""
        engine = self.engine
        return min(engine.next_tick_at, engine.next_second_at) if engine.has_new_meters else engine.next_tick_at

    def release_forced(self) -> None:
        """Before the engine decides anew."""
        for meter in self.forced_topics:
            meter.set_thresholds_credit(NEVER_ASK)
        self.forced_topics = []


class _SlotPart:
    """A client's data for a topic within a slot, where `shares` of three kinds of rows are in that slot: those that
    were admitted, those that were rejected by limits that are decided anew, and the rest.

    `accepted`, `over`: bytes that show whether the topic's threshold rejected just then. `metered`: bytes that meters
    count. `owed`: of each kind, bytes that were rejected less bytes that came again.
    """

    __slots__ = ("accepted", "admitted", "metered", "over", "owed", "rejected", "rest", "shares", "stream")

    def __init__(self, stream: ReplayStream) -> None:
        self.stream = stream
        self.admitted: list[ReplayRow] = []
        self.rejected: list[ReplayRow] = []
        self.rest: list[ReplayRow] = []
        self.accepted = self.over = self.metered = 0
        self.owed = [0, 0, 0]
        self.shares = _WHOLE_SHARES

    def add_row(self, row: ReplayRow) -> None:
        size, outcome, repeats = row.bytes, row.outcome, row.repeats or 0
        if outcome in ADMITTED:
            self.admitted.append(row)
            self.owed[0] -= repeats
            if _is_metered(row):
                self.metered += size
            if outcome == "accepted":  # acks=0 waits where others are rejected
                self.accepted += size
        elif outcome == "rejected" and row.reason in DECIDED:
            self.rejected.append(row)
            self.owed[1] += size - repeats
            if row.reason == TOPIC_THRESHOLD:
                self.over += size
        else:
            self.rest.append(row)
            self.owed[2] += (size if outcome == "rejected" else 0) - repeats

    def scaled_part(self, shares: tuple[float, float, float]) -> _SlotPart:
        """A part of it."""
        made = copy(self)
        made.shares = shares
        return made

    def record_owed(self) -> float:
        """Record rejected and repeated bytes with the stream; returns the bytes that meters count."""
        a, x, r = self.shares
        admitted, rejected, rest = self.owed
        if admitted or rejected or rest:
            self.stream.record_owed(a * admitted + x * rejected + r * rest)
        return a * self.metered


def _is_metered(row: ReplayRow) -> bool:
    return row.outcome in METERED or (row.outcome == "errored" and row.reason in APPENDED_ERRORS)


_WHOLE_SHARES: Final = (1.0, 1.0, 1.0)
_Slot = dict[tuple[int, str], dict[StreamKey, _SlotPart]]  # by broker and topic


class UsageReplay:
    """What `replay_usage` does, interval by interval."""

    def __init__(
        self, rules: ReplayRules, phases: Mapping[WorkerLife, TickPhase], window_ms: int | None, from_ms: int
    ) -> None:
        """The arguments are those of `replay_usage`."""
        self._rules = rules
        self._policies = PolicySet(rules.values)
        self._later = deque(rules.later)
        self._phases = phases
        self._window_ms = window_ms
        self._from_ms = from_ms
        self._limits = ReplayLimits(rules, self._add_rejected, self._add_delayed)
        self._workers: dict[WorkerLife, _ReplayWorker] = {}
        self._forgotten: set[WorkerLife] = set()
        self._exchanged_at = -math.inf  # when workers heard of each other
        self._is_behind = False  # whether one of them has ticked since then
        self._shared: PolicyEngine | None = None  # where thresholds delay: one line for all workers
        self._at_ms = 0  # of the interval at hand
        self._shifts: dict[tuple[StreamKey, str, str], list[float]] = {}
        self._done: list[OutcomeShift] = []

    # --- the order of events ------------------------------------------------------------------------------------------

    def replay_interval(self, rows: list[ReplayRow]) -> None:
        """The rows of one life that begin at one time, at least one; none earlier than those before."""
        head = rows[0]
        start, end = head.start_ms / 1000, max(head.end_ms, head.start_ms + 1) / 1000
        worker = self._get_worker(head, start)
        self._catch_up_ticks(start, end)
        if self._later and self._later[0][0] <= head.start_ms:
            self._apply_policies(head.start_ms, start)
        _start_new_meters(worker.engine, start)
        if self._is_behind and start - self._exchanged_at >= EXCHANGE_S:
            self._exchange_rates(start)
        self._enter_window(head.start_ms)
        slot = self._build_slot(worker, rows, start)
        if self._limits.has_shares:
            self._limits.allocate_shares(self._bytes_by_broker(), start)
        now = start
        while not worker.ticks_at_edges and (due := worker.next_event_at) < end - SNAP_S:
            if due + TICK_S < end:  # nothing is known about the time between two ticks of one interval
                self._tick_worker(worker, due)
                continue
            before, slot = self._split_slot(worker, slot, (due - start) / (end - start))
            self._replay_span(worker, before, now, due)
            self._tick_worker(worker, due)
            now = due
        self._replay_span(worker, slot, now, end)
        while worker.next_event_at < end:
            self._tick_worker(worker, worker.next_event_at)  # as late as this interval ended
        worker.replayed_until = end

    def finish_replay(self) -> None:
        """Nothing more comes."""
        for worker in self._workers.values():
            for stream in worker.holding_streams:
                self._add_shift(stream, WAITING, "", stream.untried_bytes)
        self._flush_window()

    def drain_shifts(self) -> list[OutcomeShift]:
        """The differences that will not change any more."""
        done, self._done = self._done, []
        return done

    def _enter_window(self, at_ms: int) -> None:
        """The window of that time is the present one from now on."""
        if self._window_ms is not None and at_ms // self._window_ms != self._at_ms // self._window_ms:
            self._flush_window()
        self._at_ms = at_ms

    def _catch_up_ticks(self, start: float, end: float) -> None:
        """All ticks until `start`, and until `end` those of workers of which all is known so far; and the clients'
        further attempts where nothing was sent for so long.
        """
        while True:
            worker = min(self._workers.values(), key=lambda worker: worker.next_event_at)
            due = worker.next_event_at
            if due > start + SNAP_S and due > min(end, worker.replayed_until + SNAP_S):
                return
            holds = worker.engine.has_new_meters or any(each.holding_streams for each in self._workers.values())
            self._tick_worker(worker, due if holds else max(due, start))  # many at once after a long silence
            for each in self._workers.values() if self._shared is not None else (worker,):
                if each.holding_streams and each.replayed_until <= due < start:
                    self._enter_window(max(self._at_ms, round(due * 1000)))
                    self._replay_span(each, {}, due, min(start, due + TICK_S))

    def _get_worker(self, head: ReplayRow, start: float) -> _ReplayWorker:
        worker = self._workers.get(head.life)
        if worker is None:
            self._forget_idle(start)
            phase = self._phases.get(head.life, TickPhase(start))
            engine = self._shared or self._make_engine(start - (start - phase.at) % TICK_S, start)
            is_first = head.seq == 0 or head.life in self._forgotten
            worker = self._workers[head.life] = _ReplayWorker(engine, is_first, phase.at_edges)
        return worker

    def _apply_policies(self, at_ms: int, now: float) -> None:
        """The policies of that time are in force from now on."""
        values: PolicyValues = {}
        while self._later and self._later[0][0] <= at_ms:
            values = self._later.popleft()[1]
        self._policies = PolicySet(values)
        self._limits.set_policies(self._policies, now)
        for worker in self._workers.values():
            worker.release_forced()
            self._set_thresholds(worker.engine)
            for stream in worker.streams.values():
                if not stream.exempt:
                    self._limits.find_limits(stream, now)

    def _set_thresholds(self, engine: PolicyEngine) -> None:
        policies, on_exceed = self._policies, self._rules.on_exceed
        engine.set_thresholds(
            policies.broker_total(), policies.topic_thresholds(), totals=policies.broker_totals(), on_exceed=on_exceed
        )

    def _forget_idle(self, now: float) -> None:
        """Workers that ended, or have nothing to do: all their rates are 0 by now."""
        for life, worker in list(self._workers.items()):
            if now - worker.replayed_until > FORGET_S and not worker.holding_streams:
                del self._workers[life]
                self._forgotten.add(life)

    def _make_engine(self, began: float, start: float) -> PolicyEngine:
        """With ticks since `began`; its meters begin at `start`, from which on something is known."""
        engine = PolicyEngine(began)
        _start_new_meters(engine, start)
        self._set_thresholds(engine)
        for node_id, names in self._rules.topics.items():
            engine.set_listed_topics(node_id, names)
        if self._limits.delays_requests:
            self._shared = engine
        return engine

    def _tick_worker(self, worker: _ReplayWorker, due: float) -> None:
        worker.release_forced()
        worker.engine.apply_due_ticks(due)
        several = len(self._workers)
        if several > 1 and self._shared is None and (several <= FEW_WORKERS or due - self._exchanged_at >= EXCHANGE_S):
            self._exchange_rates(due)
        elif several > FEW_WORKERS:
            self._is_behind = True

    def _exchange_rates(self, now: float) -> None:
        self._exchanged_at, self._is_behind = now, False
        rates: dict[int, float] = {}
        topics: dict[int, dict[bytes, float]] = {}
        for worker in self._workers.values():
            for node_id, broker in worker.engine.brokers.items():
                rates[node_id] = rates.get(node_id, 0.0) + broker.total.rate
                sums = topics.setdefault(node_id, {})
                for name, meter in broker.topics.items():
                    sums[name] = sums.get(name, 0.0) + meter.rate
        for worker in self._workers.values():
            others = {}
            before = set()
            for node_id, broker in worker.engine.brokers.items():
                mine = broker.topics
                of_others = {
                    name: rate - (mine[name].rate if name in mine else 0.0) for name, rate in topics[node_id].items()
                }
                others[node_id] = PeerTraffic(rates[node_id] - broker.total.rate, of_others)
                before |= {meter for meter in mine.values() if meter.needs_decision}
            worker.release_forced()
            worker.engine.set_peer_traffic(others)
            if now - worker.exchanged_at > NEWS_S:
                worker.over_before = before
            worker.exchanged_at = now

    def _bytes_by_broker(self) -> dict[int, float]:
        taken: dict[int, float] = {}
        for engine in {id(worker.engine): worker.engine for worker in self._workers.values()}.values():
            for node_id, broker in engine.brokers.items():
                taken[node_id] = taken.get(node_id, 0.0) + broker.total_bytes
        return taken

    # --- what the record says -----------------------------------------------------------------------------------------

    def _build_slot(self, worker: _ReplayWorker, rows: list[ReplayRow], now: float) -> _Slot:
        slot: _Slot = {}
        streams = worker.streams
        for row in rows:
            key = row.stream
            if row.outcome in NOTES:
                if row.outcome == DELAYED and row.reason in DECIDED:  # a limit that delays says so itself
                    stream = streams.get(key) or self._make_stream(streams, key, now)
                    self._add_shift(stream, DELAYED, row.reason, -row.bytes, -row.requests, delay_ms=-row.delay_ms)
                continue
            parts = slot.get(key[:2])
            if parts is None:
                parts = slot[key[:2]] = {}
            part = parts.get(key)
            if part is None:
                part = parts[key] = _SlotPart(streams.get(key) or self._make_stream(streams, key, now))
            part.add_row(row)
        return slot

    def _make_stream(self, streams: dict[StreamKey, ReplayStream], key: StreamKey, now: float) -> ReplayStream:
        stream = streams[key] = ReplayStream(key, exempt=self._rules.exempts_stream(key))
        if not stream.exempt:
            self._limits.find_limits(stream, now)
        return stream

    def _split_slot(self, worker: _ReplayWorker, slot: _Slot, share: float) -> tuple[_Slot, _Slot]:
        """The parts before a tick (`share` of the time), and after. Where it changed the decision about a topic, all
        admitted bytes are on one side of it, and all rejected ones on the other.
        """
        before: _Slot = {}
        after: _Slot = {}
        for key, parts in slot.items():
            admitted, rejected = _sum_parts(parts)
            was_rejecting = worker.rejecting.get(key, False)
            a, x = share, share
            if admitted and (rejected or was_rejecting):
                a = 0.0 if was_rejecting else 1.0
            if rejected and (admitted or not was_rejecting):
                x = 1.0 if was_rejecting else 0.0
            before[key] = {name: part.scaled_part((a, x, share)) for name, part in parts.items()}
            after[key] = {name: part.scaled_part((1 - a, 1 - x, 1 - share)) for name, part in parts.items()}
        return before, after

    # --- between two ticks --------------------------------------------------------------------------------------------

    def _replay_span(self, worker: _ReplayWorker, slot: _Slot, now: float, until: float) -> None:
        """Replay the time from `now` to `until`: the recorded traffic, and the clients' attempts with bytes that they
        hold.
        """
        wants: list[ReplayOffer] = []
        silent = [stream for stream in worker.holding_streams if stream.key not in slot.get(stream.key[:2], ())]
        for key, parts in slot.items():
            broker, meter, rejects, was = self._topic_decision(worker, key, parts, now)
            for part in parts.values():
                stream = part.stream
                if stream.exempt or (rejects == was and not (stream.replayed or stream.held or stream.is_limited)):
                    _count_bytes(meter, broker, part.record_owed())
                    continue
                want = ReplayOffer(stream, broker, meter, rejects, was)
                self._divert_rows(want, part, now)
                wants.append(want)
        for stream in silent:
            broker = worker.broker_meters(stream.key[0])
            meter = _find_meter(broker, stream.key[1])
            rejects = meter.thresholds_ask and not broker.limits.strategy.delays_requests
            was = worker.rejecting.get(stream.key[:2], False)
            wants.append(ReplayOffer(stream, broker, meter, rejects, was))
        for want in wants:
            self._attempt_held(want, now)
        self._limits.admit_offers([want for want in wants if want.stream.is_limited and not want.rejects], now, until)
        for want in wants:
            stream = want.stream
            if want.passed:
                requests = want.passed / stream.request
                self._add_shift(stream, stream.outcome, "", want.passed, requests, repeats=want.again)
            if stream.held > 0.0:
                worker.holding_streams[stream] = None
            else:
                worker.holding_streams.pop(stream, None)

    def _topic_decision(
        self, worker: _ReplayWorker, key: tuple[int, str], parts: dict[StreamKey, _SlotPart], now: float
    ) -> tuple[LimitedBroker, TopicMeter, bool, bool]:
        """The meters of a topic; whether its threshold rejects here, and whether it did in the record."""
        broker = worker.broker_meters(key[0])
        meter = _find_meter(broker, key[1])
        if broker.limits.strategy.delays_requests:
            return broker, meter, False, False
        rejects = meter.thresholds_ask
        admitted, rejected = _sum_parts(parts)
        before = worker.rejecting.get(key, False)
        was = rejected >= admitted if admitted or rejected else before
        worker.rejecting[key] = was
        was = was or bool(admitted and rejected)  # what was accepted as well had been admitted before the tick
        if rejects == was or not (admitted or rejected):
            return broker, meter, rejects, was
        if now - worker.exchanged_at < NEWS_S and (meter in worker.over_before) == was:
            return broker, meter, was, was
        if _is_close(broker, meter):
            meter.set_thresholds_credit(ALWAYS_ASK if was else NEVER_ASK)
            worker.forced_topics.append(meter)
            rejects = was
        return broker, meter, rejects, was

    def _divert_rows(self, want: ReplayOffer, part: _SlotPart, now: float) -> None:
        """Let the bytes that a client sent go the way that they go here."""
        stream = part.stream
        stream.learn_requests(part.admitted or part.rejected)
        a, x, r = part.shares
        metered = 0.0
        gone = stream.replayed_share
        # Where both reject, a client whose bytes are in would have tried its next ones in vain instead.
        for row in () if want.rejects else part.rejected:
            left, again = self._remove_repeats(stream, row, x, gone)
            if want.was_rejecting or stream.is_limited or row.reason != TOPIC_THRESHOLD:
                stream.replayed += left
                self._hold_row(stream, row, left, again, now)
        stream.record_owed(x * part.owed[1])
        gone = stream.replayed_share
        holds = not want.was_rejecting if want.rejects else stream.is_limited
        for row in part.admitted:
            left, again = self._remove_repeats(stream, row, a, gone)
            stream.replayed -= a * (row.repeats or 0) - again
            if _is_metered(row):
                metered += left
                if holds:
                    self._hold_row(stream, row, left, again, now)
            elif stream.is_limited:
                self._limits.charge_quotas(stream, left, now, refused=True)
        for row in part.rest:
            left, again = self._remove_repeats(stream, row, r, gone)
            if row.outcome == "trailing" and stream.is_limited:
                self._limits.charge_quotas(stream, left, now, refused=False)
            if row.outcome != "rejected":
                stream.replayed -= r * (row.repeats or 0) - again
            elif (
                row.reason == FENCE and not want.rejects and (want.was_rejecting or gone)
            ):  # what it stood behind is in
                stream.replayed += left
                self._hold_row(stream, row, left, again, now)
        stream.record_owed(a * part.owed[0] + r * part.owed[2])
        if not holds:
            _count_bytes(want.meter, want.broker, metered)

    def _remove_repeats(self, stream: ReplayStream, row: ReplayRow, share: float, gone: float) -> tuple[float, float]:
        """Leave out repeats of bytes that are in already; returns the rest of a row's share: bytes, and its repeats."""
        repeats = (row.repeats or 0) * share
        fallen = repeats * gone
        if fallen:
            requests = row.requests * fallen / row.bytes
            self._add_shift(stream, row.outcome, row.reason, -fallen, -requests, repeats=-fallen)
        return row.bytes * share - fallen, repeats - fallen

    def _hold_row(self, stream: ReplayStream, row: ReplayRow, size: float, again: float, now: float) -> None:
        """It didn't happen so: its client still wants these bytes in."""
        if size > 0.0:
            self._add_shift(stream, row.outcome, row.reason, -size, -row.requests * size / row.bytes, repeats=-again)
            stream.hold_bytes(size, again, now)

    def _attempt_held(self, want: ReplayOffer, now: float) -> None:
        """The client's attempts with the bytes that it holds."""
        stream = want.stream
        if not stream.held or stream.muted_until > now:
            return
        self._add_shift(stream, "dropped", GIVEN_UP, stream.expire_held(now - self._rules.delivery_s))
        if want.rejects:
            why = self._limits.judge_rejected(want, now)
            if not want.was_rejecting:  # else what the record has it try stands for what it has in flight
                self._add_rejected(stream, why.reason, *stream.attempt_bytes(IN_FLIGHT * stream.request))
            stream.muted_until = now + why.throttle_ms / 1000
        elif not stream.is_limited:
            want.passed, want.again = stream.release_bytes(stream.held)
            _count_bytes(want.meter, want.broker, want.passed)

    # --- differences --------------------------------------------------------------------------------------------------

    def _add_rejected(self, stream: ReplayStream, reason: str, size: float, again: float) -> None:
        self._add_shift(stream, "rejected", reason, size, size / stream.request, repeats=again)

    def _add_delayed(self, stream: ReplayStream, reason: str, size: float, wait: float) -> None:
        self._add_shift(stream, DELAYED, reason, size, size / stream.request, delay_ms=wait * 1000)

    def _add_shift(
        self,
        stream: ReplayStream,
        outcome: str,
        reason: str,
        size: float,
        requests: float = 0.0,
        *,
        delay_ms: float = 0.0,
        repeats: float = 0.0,
    ) -> None:
        if self._at_ms < self._from_ms:
            return
        key = (stream.key, outcome, reason)
        sums = self._shifts.get(key)
        if sums is None:
            sums = self._shifts[key] = [0.0, 0.0, 0.0, 0.0]
        sums[0] += size
        sums[1] += requests
        sums[2] += delay_ms
        sums[3] += repeats

    def _flush_window(self) -> None:
        window = 0 if self._window_ms is None else self._at_ms - self._at_ms % self._window_ms
        for key, sums in self._shifts.items():
            rounded = [round(value) for value in sums]
            if any(rounded):
                self._done.append(OutcomeShift(window, *key, *rounded))
        self._shifts = {}


def _start_new_meters(engine: PolicyEngine, now: float) -> None:
    """Seconds that are over by now, or nearly."""
    while engine.next_second_at <= now + SNAP_S:
        engine.start_new_meters(max(now, engine.next_second_at))


def _sum_parts(parts: dict[StreamKey, _SlotPart]) -> tuple[float, float]:
    """The sums that show whether a topic is over: bytes that were accepted, and that its threshold rejected."""
    accepted = over = 0.0
    for part in parts.values():
        if not part.stream.exempt:
            accepted += part.accepted * part.shares[0]
            over += part.over * part.shares[1]
    return accepted, over


def _find_meter(broker: LimitedBroker, topic: str) -> TopicMeter:
    name = topic.encode()
    broker.confirm_topic(name)  # no client made it up: it is in the accounts
    return broker.topics.get(name) or broker.add_topic(name)


def _count_bytes(meter: TopicMeter, broker: LimitedBroker, size: float) -> None:
    meter.uncounted += size  # type: ignore[assignment]  # bytes of a fluid
    broker.total.uncounted += size  # type: ignore[assignment]


def _is_close(broker: LimitedBroker, meter: TopicMeter) -> bool:
    """Whether the records are too coarse to say which side of its limit a rate was on."""
    thresholds = broker.limits.thresholds
    total, limit = thresholds.total, thresholds.effective_threshold(meter)
    if not total or not limit:
        return False
    return abs(min(broker.total.fleet_rate / total, meter.fleet_rate / limit) - 1.0) < TOLERANCE_BAND
