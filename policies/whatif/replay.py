# Recorded usage, decided once more by other policies: what would have got in, and what not. The decisions are those of
# the engine, of quotas and of groups themselves; what is here stands in for the clients.
#
# A record has a row per client, topic and outcome for each second. It says what happened as long as the replay decides
# as was decided then. Where it decides otherwise, bytes go another way:
#
#   admitted here, rejected then    they are in; their recorded repeats fall away
#   rejected here, admitted then    the client holds them back as long as it is told, and sends them again (client.py)
#
# So differences are all that is told (`Shift`); where both decide alike there are none.
#
# Thresholds that reject are decided in each worker, as they were: at its own ticks, knowing the others' rates. All
# other limits hold over the fleet as if one worker had all connections (whatif/lines.py). Bytes that storage, fences
# and the operator's own policies rejected stay rejected. Knows no file, no frame and no clock.

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import groupby
from typing import Final

from policies.decision import Patience
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import Values
from policies.engine import Engine
from policies.limits.meter import TICK_S
from policies.thresholds.broker_meters import BrokerMeters, Others
from policies.thresholds.topic_meter import TopicMeter
from policies.usage import DELAYED, NOTES
from policies.verdict import CLIENT_QUOTA, FENCE, RESOURCE_GROUP, TOPIC_THRESHOLD
from policies.whatif.client import IN_FLIGHT, Stream
from policies.whatif.lines import Lines, Offer
from policies.whatif.rows import Life, Row, Rules, Shift, StreamKey
from policies.whatif.tick_phase import Phase

# Rejections that the replay decides again.
DECIDED: Final = frozenset({TOPIC_THRESHOLD, CLIENT_QUOTA, RESOURCE_GROUP})
# Outcomes that passed the policies; meters count bytes that got into the log, or may have.
METERED: Final = frozenset({"accepted", "unacknowledged", "unanswered"})
ADMITTED: Final = METERED | {"errored", "duplicate"}
# The order of a second's bytes and a tick is not always known, so rates are known to about a hundredth. Where one is as
# near to its limit as that, the decision is the one that was made then.
BAND: Final = 0.01
SNAP_S: Final = 0.1  # workers end an interval at each tick: one that seems to be so near to an edge is there
NEWS_S: Final = 2.0  # until then a worker may not have heard of the others' newest rates
# Each worker ticks every five seconds, and telling costs as much as there are workers: of more than a few once a
# second, as often as gateways tell each other.
FEW: Final = 8
TELL_S: Final = 1.0
FORGET_S: Final = 600.0
WARM_UP_S: Final = 300.0  # rates that begin unknown are right to a hundredth after this long
WAITING: Final = "waiting"  # outcome: held back at the end, and never sent
GIVEN_UP: Final = "delivery-timeout"  # reason: held back for too long, and never sent


def replay(
    rows: Iterable[Row], rules: Rules, phases: Mapping[Life, Phase], *, window_ms: int | None = None, from_ms: int = 0
) -> Iterator[Shift]:
    """All differences by window, client, topic, outcome and reason; those of the same may come in several pieces.

    Args:
        rows: in the order of start_ms, those of one interval together.
        phases: the times of each life's ticks; those of a life that isn't there are not known, and don't matter much
            unless it rejected batches.
        window_ms: length of windows, aligned to Unix time; None for a single one, called 0.
        from_ms: earlier intervals are only there to warm up (WARM_UP_S).
    """
    run = Replay(rules, phases, window_ms, from_ms)
    for _, interval in groupby(rows, lambda row: (row.start_ms, row.life)):
        run.interval(list(interval))
        yield from run.take()
    run.end()
    yield from run.take()


class _Worker:
    """One life: its engine, its clients, and the topics that the record has `rejecting` just then."""

    __slots__ = ("_is_first", "engine", "forced", "holding", "over_before", "rejecting", "seen", "streams",
                 "ticks_at_edges", "told")  # fmt: skip

    def __init__(self, engine: Engine, is_first: bool, ticks_at_edges: bool) -> None:
        """`is_first`: it produced nothing just before its first record. `ticks_at_edges`: intervals end at ticks."""
        self.engine = engine
        self.ticks_at_edges = ticks_at_edges
        self._is_first = is_first
        self.rejecting: dict[tuple[int, str], bool] = {}
        self.forced: list[TopicMeter] = []  # decided as they were, not as the engine has it
        self.told = -math.inf  # when it was told others' rates
        self.over_before: set[TopicMeter] = set()  # what was over before that
        self.streams: dict[StreamKey, Stream] = {}
        self.holding: set[Stream] = set()
        self.seen = 0.0

    def broker(self, node_id: int) -> BrokerMeters:
        broker = self.engine.broker(node_id)
        if self._is_first and not broker.total.started:
            broker.start_at_zero()  # it ticks from its worker's start on, until now without any bytes
        return broker

    @property
    def due(self) -> float:
        """The time at which its engine has something to do next."""
        engine = self.engine
        return min(engine.due, engine.second) if engine.has_begun else engine.due

    def unforce(self) -> None:
        """Before the engine decides anew."""
        for meter in self.forced:
            meter.ask_thresholds(False)
        self.forced = []


class _Part:
    """A client's data for a topic within a slot, where `shares` of three kinds of rows are in that slot: those that
    were admitted, those that were rejected by limits that are decided anew, and the rest.

    `accepted`, `over`: bytes that tell whether the topic's threshold rejected just then. `metered`: bytes that meters
    count. `owed`: of each kind, bytes that were rejected less bytes that came again.
    """

    __slots__ = ("accepted", "admitted", "metered", "over", "owed", "rejected", "rest", "shares", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.admitted: list[Row] = []
        self.rejected: list[Row] = []
        self.rest: list[Row] = []
        self.accepted = self.over = self.metered = 0
        self.owed = [0, 0, 0]
        self.shares = _WHOLE

    def add(self, row: Row) -> None:
        size, outcome, repeats = row.bytes, row.outcome, row.repeats or 0
        if outcome in ADMITTED:
            self.admitted.append(row)
            self.owed[0] -= repeats
            if outcome in METERED:
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

    def part(self, shares: tuple[float, float, float]) -> _Part:
        """A part of it."""
        made = copy(self)
        made.shares = shares
        return made

    def settle(self) -> float:
        """Tell its stream the bytes that were rejected and that came again; returns the bytes that meters count."""
        a, x, r = self.shares
        admitted, rejected, rest = self.owed
        if admitted or rejected or rest:
            self.stream.note(a * admitted + x * rejected + r * rest)
        return a * self.metered


_WHOLE: Final = (1.0, 1.0, 1.0)
_Slot = dict[tuple[int, str], dict[StreamKey, _Part]]  # by broker and topic


class Replay:
    """What `replay` does, interval by interval."""

    def __init__(self, rules: Rules, phases: Mapping[Life, Phase], window_ms: int | None, from_ms: int) -> None:
        """The arguments are those of `replay`."""
        self._rules = rules
        self._policies = PolicySet(rules.values)
        self._later = deque(rules.later)
        self._phases = phases
        self._window_ms = window_ms
        self._from_ms = from_ms
        self._lines = Lines(rules, self._reject, self._delay)
        self._workers: dict[Life, _Worker] = {}
        self._forgotten: set[Life] = set()
        self._told_at = -math.inf  # when workers heard of each other
        self._is_behind = False  # whether one of them has ticked since then
        self._shared: Engine | None = None  # where thresholds delay: one line for all workers
        self._at_ms = 0  # of the interval at hand
        self._shifts: dict[tuple[StreamKey, str, str], list[float]] = {}
        self._done: list[Shift] = []

    # --- the order of events ------------------------------------------------------------------------------------------

    def interval(self, rows: list[Row]) -> None:
        """The rows of one life that begin at one time, at least one; none earlier than those before."""
        head = rows[0]
        start, end = head.start_ms / 1000, max(head.end_ms, head.start_ms + 1) / 1000
        worker = self._worker(head, start)
        self._catch_up(start, end)
        if self._later and self._later[0][0] <= head.start_ms:
            self._change(head.start_ms, start)
        _look(worker.engine, start)
        if self._is_behind and start - self._told_at >= TELL_S:
            self._tell_others(start)
        self._at(head.start_ms)
        slot = self._slot(worker, rows, start)
        if self._lines.has_shares:
            self._lines.deal(self._taken(), start)
        now = start
        while not worker.ticks_at_edges and (due := worker.due) < end - SNAP_S:
            if due + TICK_S < end:  # nothing is known about the time between two ticks of one interval
                self._tick(worker, due)
                continue
            before, slot = self._cut(worker, slot, (due - start) / (end - start))
            self._step(worker, before, now, due)
            self._tick(worker, due)
            now = due
        self._step(worker, slot, now, end)
        while worker.due < end:
            self._tick(worker, worker.due)  # as late as this interval ended
        worker.seen = end

    def end(self) -> None:
        """Nothing more comes."""
        for worker in self._workers.values():
            for stream in worker.holding:
                self._add(stream, WAITING, "", stream.untried)
        self._flush()

    def take(self) -> list[Shift]:
        """The differences that will not change any more."""
        done, self._done = self._done, []
        return done

    def _at(self, at_ms: int) -> None:
        """The window of that time is the present one from now on."""
        if self._window_ms is not None and at_ms // self._window_ms != self._at_ms // self._window_ms:
            self._flush()
        self._at_ms = at_ms

    def _catch_up(self, start: float, end: float) -> None:
        """All ticks until `start`, and until `end` those of workers of which all is known so far; and the clients'
        further attempts where nothing was sent for so long.
        """
        while True:
            worker = min(self._workers.values(), key=lambda worker: worker.due)
            due = worker.due
            if due > start + SNAP_S and due > min(end, worker.seen + SNAP_S):
                return
            holds = worker.engine.has_begun or any(each.holding for each in self._workers.values())
            self._tick(worker, due if holds else max(due, start))  # many at once after a long silence
            for each in self._workers.values() if self._shared is not None else (worker,):
                if each.holding and each.seen <= due < start:
                    self._at(max(self._at_ms, round(due * 1000)))
                    self._step(each, {}, due, min(start, due + TICK_S))

    def _worker(self, head: Row, start: float) -> _Worker:
        worker = self._workers.get(head.life)
        if worker is None:
            self._forget(start)
            phase = self._phases.get(head.life, Phase(start))
            engine = self._shared or self._engine(start - (start - phase.at) % TICK_S, start)
            is_first = head.seq == 0 or head.life in self._forgotten
            worker = self._workers[head.life] = _Worker(engine, is_first, phase.at_edges)
        return worker

    def _change(self, at_ms: int, now: float) -> None:
        """The policies of that time are in force from now on."""
        values: Values = {}
        while self._later and self._later[0][0] <= at_ms:
            values = self._later.popleft()[1]
        self._policies = PolicySet(values)
        self._lines.set_policies(self._policies, now)
        for worker in self._workers.values():
            worker.unforce()
            self._set_thresholds(worker.engine)
            for stream in worker.streams.values():
                if not stream.exempt:
                    self._lines.join(stream, now)

    def _set_thresholds(self, engine: Engine) -> None:
        policies, on_exceed = self._policies, self._rules.on_exceed
        engine.set_policy(policies.total(), policies.topics(), totals=policies.totals(), on_exceed=on_exceed)

    def _forget(self, now: float) -> None:
        """Workers that ended, or have nothing to do: all their rates are 0 by now."""
        for life, worker in list(self._workers.items()):
            if now - worker.seen > FORGET_S and not worker.holding:
                del self._workers[life]
                self._forgotten.add(life)

    def _engine(self, began: float, start: float) -> Engine:
        """With ticks since `began`; its meters begin at `start`, from which on something is known."""
        engine = Engine(began)
        _look(engine, start)
        self._set_thresholds(engine)
        for node_id, names in self._rules.topics.items():
            engine.set_topics(node_id, names)
        if self._lines.paces:
            self._shared = engine
        return engine

    def _tick(self, worker: _Worker, due: float) -> None:
        worker.unforce()
        worker.engine.tick(due)
        several = len(self._workers)
        if several > 1 and self._shared is None and (several <= FEW or due - self._told_at >= TELL_S):
            self._tell_others(due)
        elif several > FEW:
            self._is_behind = True

    def _tell_others(self, now: float) -> None:
        self._told_at, self._is_behind = now, False
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
                others[node_id] = Others(rates[node_id] - broker.total.rate, of_others)
                before |= {meter for meter in mine.values() if meter.over}
            worker.unforce()
            worker.engine.set_others(others)
            if now - worker.told > NEWS_S:
                worker.over_before = before
            worker.told = now

    def _taken(self) -> dict[int, float]:
        taken: dict[int, float] = {}
        for engine in {id(worker.engine): worker.engine for worker in self._workers.values()}.values():
            for node_id, broker in engine.brokers.items():
                taken[node_id] = taken.get(node_id, 0.0) + broker.taken
        return taken

    # --- what the record says -----------------------------------------------------------------------------------------

    def _slot(self, worker: _Worker, rows: list[Row], now: float) -> _Slot:
        slot: _Slot = {}
        streams = worker.streams
        for row in rows:
            key = row.stream
            if row.outcome in NOTES:
                if row.outcome == DELAYED and row.reason in DECIDED:  # a limit that delays says so itself
                    stream = streams.get(key) or self._stream(streams, key, now)
                    self._add(stream, DELAYED, row.reason, -row.bytes, -row.requests, delay_ms=-row.delay_ms)
                continue
            parts = slot.get(key[:2])
            if parts is None:
                parts = slot[key[:2]] = {}
            part = parts.get(key)
            if part is None:
                part = parts[key] = _Part(streams.get(key) or self._stream(streams, key, now))
            part.add(row)
        return slot

    def _stream(self, streams: dict[StreamKey, Stream], key: StreamKey, now: float) -> Stream:
        stream = streams[key] = Stream(key, exempt=self._rules.exempts(key))
        if not stream.exempt:
            self._lines.join(stream, now)
        return stream

    def _cut(self, worker: _Worker, slot: _Slot, share: float) -> tuple[_Slot, _Slot]:
        """The parts before a tick (`share` of the time), and after. Where it changed the decision about a topic, all
        admitted bytes are on one side of it, and all rejected ones on the other.
        """
        before: _Slot = {}
        after: _Slot = {}
        for key, parts in slot.items():
            admitted, rejected = _sums(parts)
            was_rejecting = worker.rejecting.get(key, False)
            a, x = share, share
            if admitted and (rejected or was_rejecting):
                a = 0.0 if was_rejecting else 1.0
            if rejected and (admitted or not was_rejecting):
                x = 1.0 if was_rejecting else 0.0
            before[key] = {name: part.part((a, x, share)) for name, part in parts.items()}
            after[key] = {name: part.part((1 - a, 1 - x, 1 - share)) for name, part in parts.items()}
        return before, after

    # --- between two ticks --------------------------------------------------------------------------------------------

    def _step(self, worker: _Worker, slot: _Slot, now: float, until: float) -> None:
        """Replay the time from `now` to `until`: the recorded traffic, and the clients' attempts with bytes that they
        hold.
        """
        wants: list[Offer] = []
        silent = [stream for stream in worker.holding if stream.key not in slot.get(stream.key[:2], ())]
        for key, parts in slot.items():
            broker, meter, rejects, was = self._decision(worker, key, parts, now)
            for part in parts.values():
                stream = part.stream
                if stream.exempt or (rejects == was and not (stream.gone or stream.held or stream.limited)):
                    _count(meter, broker, part.settle())
                    continue
                want = Offer(stream, broker, meter, rejects, was)
                self._divert(want, part, now)
                wants.append(want)
        for stream in silent:
            broker = worker.broker(stream.key[0])
            meter = _meter(broker, stream.key[1])
            rejects = meter.thresholds_ask and not self._lines.paces
            was = worker.rejecting.get(stream.key[:2], False)
            wants.append(Offer(stream, broker, meter, rejects, was))
        for want in wants:
            self._try(want, now)
        self._lines.flow([want for want in wants if want.stream.limited and not want.rejects], now, until)
        for want in wants:
            stream = want.stream
            if want.passed:
                requests = want.passed / stream.request
                self._add(stream, stream.outcome, "", want.passed, requests, repeats=want.again)
            if stream.held > 0.0:
                worker.holding.add(stream)
            else:
                worker.holding.discard(stream)

    def _decision(
        self, worker: _Worker, key: tuple[int, str], parts: dict[StreamKey, _Part], now: float
    ) -> tuple[BrokerMeters, TopicMeter, bool, bool]:
        """The meters of a topic; whether its threshold rejects here, and whether it did in the record."""
        broker = worker.broker(key[0])
        meter = _meter(broker, key[1])
        if self._lines.paces:
            return broker, meter, False, False
        rejects = meter.thresholds_ask
        admitted, rejected = _sums(parts)
        before = worker.rejecting.get(key, False)
        was = rejected >= admitted if admitted or rejected else before
        worker.rejecting[key] = was
        was = was or bool(admitted and rejected)  # what was accepted as well had been admitted before the tick
        if rejects == was or not (admitted or rejected):
            return broker, meter, rejects, was
        if now - worker.told < NEWS_S and (meter in worker.over_before) == was:
            return broker, meter, was, was
        if _is_close(broker, meter):
            meter.ask_thresholds(was)
            worker.forced.append(meter)
            rejects = was
        return broker, meter, rejects, was

    def _divert(self, want: Offer, part: _Part, now: float) -> None:
        """Let the bytes that a client sent go the way that they go here."""
        stream = part.stream
        stream.learn(part.admitted or part.rejected)
        a, x, r = part.shares
        metered = 0.0
        gone = stream.gone_share
        # Where both reject, a client whose bytes are in would have tried its next ones in vain instead.
        for row in () if want.rejects else part.rejected:
            left, again = self._fall_away(stream, row, x, gone)
            if want.was or stream.limited or row.reason != TOPIC_THRESHOLD:
                stream.gone += left
                self._hold(stream, row, left, again, now)
        stream.note(x * part.owed[1])
        gone = stream.gone_share
        holds = not want.was if want.rejects else stream.limited
        for row in part.admitted:
            left, again = self._fall_away(stream, row, a, gone)
            stream.gone -= a * (row.repeats or 0) - again
            if row.outcome in METERED:
                metered += left
                if holds:
                    self._hold(stream, row, left, again, now)
            elif stream.limited:
                self._lines.charge(stream, left, now, refused=True)
        for row in part.rest:
            left, again = self._fall_away(stream, row, r, gone)
            if row.outcome == "trailing" and stream.limited:
                self._lines.charge(stream, left, now, refused=False)
            if row.outcome != "rejected":
                stream.gone -= r * (row.repeats or 0) - again
            elif row.reason == FENCE and not want.rejects and (want.was or gone):  # what it stood behind is in
                stream.gone += left
                self._hold(stream, row, left, again, now)
        stream.note(a * part.owed[0] + r * part.owed[2])
        if not holds:
            _count(want.meter, want.broker, metered)

    def _fall_away(self, stream: Stream, row: Row, share: float, gone: float) -> tuple[float, float]:
        """Leave out repeats of bytes that are in already; returns the rest of a row's share: bytes, and its repeats."""
        repeats = (row.repeats or 0) * share
        fallen = repeats * gone
        if fallen:
            requests = row.requests * fallen / row.bytes
            self._add(stream, row.outcome, row.reason, -fallen, -requests, repeats=-fallen)
        return row.bytes * share - fallen, repeats - fallen

    def _hold(self, stream: Stream, row: Row, size: float, again: float, now: float) -> None:
        """It didn't happen so: its client still wants these bytes in."""
        if size > 0.0:
            self._add(stream, row.outcome, row.reason, -size, -row.requests * size / row.bytes, repeats=-again)
            stream.hold(size, again, now)

    def _try(self, want: Offer, now: float) -> None:
        """The client's attempts with the bytes that it holds."""
        stream = want.stream
        if not stream.held or stream.muted_until > now:
            return
        self._add(stream, "dropped", GIVEN_UP, stream.expire(now - self._rules.delivery_s))
        if want.rejects:
            if not want.was:  # else what the record has it try stands for what it has in flight
                self._reject(stream, TOPIC_THRESHOLD, *stream.attempt(IN_FLIGHT * stream.request))
            why = want.broker.limits.strategy.judge(want.meter, want.meter.name, 0, Patience(), now)
            assert why is not None
            stream.muted_until = now + why.throttle_ms / 1000
        elif not stream.limited:
            want.passed, want.again = stream.release(stream.held)
            _count(want.meter, want.broker, want.passed)

    # --- differences --------------------------------------------------------------------------------------------------

    def _reject(self, stream: Stream, reason: str, size: float, again: float) -> None:
        self._add(stream, "rejected", reason, size, size / stream.request, repeats=again)

    def _delay(self, stream: Stream, reason: str, size: float, wait: float) -> None:
        self._add(stream, DELAYED, reason, size, size / stream.request, delay_ms=wait * 1000)

    def _add(
        self,
        stream: Stream,
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

    def _flush(self) -> None:
        window = 0 if self._window_ms is None else self._at_ms - self._at_ms % self._window_ms
        for key, sums in self._shifts.items():
            rounded = [round(value) for value in sums]
            if any(rounded):
                self._done.append(Shift(window, *key, *rounded))
        self._shifts = {}


def _look(engine: Engine, now: float) -> None:
    """Seconds that are over by now, or nearly."""
    while engine.second <= now + SNAP_S:
        engine.look(max(now, engine.second))


def _sums(parts: dict[StreamKey, _Part]) -> tuple[float, float]:
    """The sums that tell whether a topic is over: bytes that were accepted, and that its threshold rejected."""
    accepted = over = 0.0
    for part in parts.values():
        if not part.stream.exempt:
            accepted += part.accepted * part.shares[0]
            over += part.over * part.shares[1]
    return accepted, over


def _meter(broker: BrokerMeters, topic: str) -> TopicMeter:
    name = topic.encode()
    broker.vouch(name)  # no client made it up: it is in the accounts
    return broker.topics.get(name) or broker.add_topic(name)


def _count(meter: TopicMeter, broker: BrokerMeters, size: float) -> None:
    meter.uncounted += size  # type: ignore[assignment]  # bytes of a fluid
    broker.total.uncounted += size  # type: ignore[assignment]


def _is_close(broker: BrokerMeters, meter: TopicMeter) -> bool:
    """Whether the records are too coarse to say which side of its limit a rate was on."""
    total, limit = broker.limits.total, meter.threshold
    if not total or not limit:
        return False
    return abs(min(broker.total.fleet_rate / total, meter.fleet_rate / limit) - 1.0) < BAND
