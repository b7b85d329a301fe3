# Policies at run time, for everything in the control process: what holds now, and the one way by which any door changes
# it. A change is judged, kept, read again, audited, and only then answered.
#
# Changes wait for each other here and are made one after another, in a thread; between them the store is polled for
# those of other gateways. A client may give up waiting; its change is made nevertheless. Knows no door and no worker:
# `changed` is told what holds.
#
# A change with an end is taken back here: by each gateway that finds it over, also one that was down at that time. The
# first one makes the change, and for all others there is nothing left to be done. So it goes by the brokers' time where
# that is known (brokers_time.py): a machine whose clock is ahead would end it for all.
#
# A topic's threshold ends with its topic. If the topic is deleted through a gateway, that gateway removes it
# (`remove_topics`). If it is deleted elsewhere, each gateway finds out by the id of the next topic of that name
# (`see_topics`), and again the first one makes the change.

from __future__ import annotations

import heapq
import logging
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Final, Protocol

import trio

from gateway import policy_document as document
from gateway.control.policies.store import Store, StoreError, Written
from gateway.control.policies.topic_ids import SeenIds
from gateway.control.policies.topic_log import MAX_HISTORY
from policies.definitions.fitting import fitting
from policies.definitions.policy_records import BY_ITSELF, TOPIC_DELETED, Past, Source, time_text
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    NO_IDS,
    Change,
    Held,
    Op,
    PolicyError,
    PolicyKey,
    TopicIds,
    Value,
    Values,
    as_number,
    order,
    value_text,
)
from policies.definitions.small_limits import small_limits, small_text
from policies.quotas.names import Entity, QuotaError, QuotaKey
from policies.quotas.store import Alteration, QuotaStore
from policies.quotas.text import lesser_text
from policies.text import ERROR_CHARS, one_line
from policies.thresholds.sums import Committed, Places, overcommitted, unplaced
from policies.thresholds.values import TOPIC_KEY

log = logging.getLogger("gateway.policy")
audit_log = logging.getLogger("gateway.audit")

POLL_S: Final = 0.2  # how long a change may have to wait for a poll
LOADING_S: Final = 8.0  # for what was kept, after a start; clients of Kafka's admin APIs are told after 10 s
AGAIN_S: Final = 5.0  # after something that is over could not be taken back
LAG_S: Final = 1.0  # gateways take back one after the other, or they would fence each other off
LOOK_S: Final = 60.0  # the clock may be set
UNSURE_S: Final = 1.0  # until it is looked at again whether the time is known
IDENTIFY_S: Final = 2.0  # for the cluster to name the ids of topics before a change; without, looks find them
OUTCOMES: Final = ("accepted", "unchanged", "refused", "failed")


class PolicyMetrics(Protocol):
    """The receiver of metrics about policies."""

    def show_policy_version(self, version: int) -> None: ...

    def show_policy_store(self, up: bool) -> None:
        """Whether everything was read and changes can be made."""

    def show_committed(self, committed: Mapping[str, Committed]) -> None:
        """By broker, its total threshold and the sum that topics take of it."""

    def count_policy_change(self, outcome: str) -> None:
        """One request to change something, by OUTCOMES; those that only validate don't count."""


class Altered:
    """A request's result, or, if it was only to be validated, its would-be result.

    `version`: in force. `errors`: of client quotas, one per entity, None = fine. `warnings`: about the values that hold
    then; `notes`: those about an entity's quotas, one per entity, "" = none. `committed`: by broker, its total and the
    sum that topics take of it then.
    """

    __slots__ = ("changes", "committed", "errors", "notes", "version", "warnings")

    def __init__(
        self,
        version: int,
        changes: tuple[Change, ...],
        warnings: tuple[str, ...],
        errors: tuple[QuotaError | None, ...] = (),
        committed: Mapping[str, Committed] = MappingProxyType({}),
    ) -> None:
        self.version = version
        self.changes = changes
        self.warnings = warnings
        self.errors = errors
        self.committed = committed
        self.notes: tuple[str, ...] = ("",) * len(errors)


Around = Callable[[], AbstractContextManager[None]]


class _Request:
    """Work for the store's thread, and its result. What it changes is told within `around`."""

    def __init__(self, work: Callable[[], Any], around: Around = nullcontext) -> None:
        self.work = work
        self.around = around
        self.done = trio.Event()
        self.result: Any = None
        self.error: Exception | None = StoreError("the gateway is stopping; if the change was made, it will show")


Planned = Mapping[str, Collection[int] | None]
NO_PLANS: Final[Planned] = {}


def _planned(places: Places | None, planned: Planned) -> Places | None:
    """`places` as they may be when these topics are there; one that any broker may get is on none yet."""
    if places is None or not planned:
        return places
    found: dict[int, set[str]] = {broker_id: set(names) - planned.keys() for broker_id, names in places.items()}
    for topic, brokers in planned.items():
        for broker_id in brokers or ():
            found.setdefault(broker_id, set()).add(topic)
    return found


async def _nothing() -> None:
    pass


async def _no_ids(topics: Collection[str]) -> TopicIds:
    return NO_IDS


async def _unknown() -> QuotaStore | None:
    return None


class PolicyService:
    """One gateway's policies.

    `loaded` is set when all that was kept has been read once: before, only the base holds, and changes wait for it,
    LOADING_S at most.
    """

    def __init__(
        self,
        store: Store,
        metrics: PolicyMetrics,
        changed: Callable[[PolicySet], None],
        places: Callable[[], Places | None] = lambda: None,
        refresh: Callable[[], Awaitable[None]] = _nothing,
        upstream: Callable[[], Awaitable[QuotaStore | None]] = _unknown,
        clock: Callable[[], float] = time.time,
        is_sure: Callable[[], bool] = lambda: True,
        identify: Callable[[Collection[str]], Awaitable[TopicIds]] = _no_ids,
    ) -> None:
        """`changed` is called with the policies in force whenever they differ from `policies`; never by the
        constructor. `places`: where topics have partitions, None while that is unknown; `refresh` brings it up to date.
        `upstream`: the brokers' own quotas, None: unknown. `clock`: Unix time; nothing is taken back before it
        `is_sure`. `identify` asks the cluster for the ids of topics, and gives those that it can get.
        """
        self._store = store
        self._metrics = metrics
        self._changed = changed
        self._places = places
        self._refresh = refresh
        self._upstream = upstream
        self._clock = clock
        self._is_sure = is_sure
        self._identify = identify
        self._lag_s = random.uniform(0, LAG_S) if store.follows else 0.0  # noqa: S311  (no secret)
        self._take_back_at = -math.inf  # not before, trio's clock
        self._failures: dict[str, str] = {}  # of changes by itself, by what was to be done: why
        self._seen_ids = SeenIds()
        self._present: TopicIds = NO_IDS  # ids of topics that are others than those known, to be taken over
        self._queue: deque[_Request] = deque()
        self._of_base: deque[Past] = deque(maxlen=MAX_HISTORY)  # changes by another base, the oldest first
        self._wake = trio.Event()
        self._told = store.policies
        self._warned: frozenset[str] = frozenset()
        self._warned_reserved: frozenset[str] = frozenset()
        self._overcommitted: Mapping[str, Committed] = {}
        self.loaded = trio.Event()

    @property
    def policies(self) -> PolicySet:
        """The policies in force, as far as `changed` was told."""
        return self._told

    @property
    def history(self) -> Sequence[Past]:
        """Changes of single values, see Store; and those of the base since the start, which no store keeps."""
        kept = self._store.history
        return tuple(heapq.merge(kept, self._of_base, key=lambda past: past.at_ms)) if self._of_base else kept

    @property
    def problem(self) -> str:
        """The reason why nothing can be changed just now, one line; "" where it can."""
        return self._store.problem

    async def run(self) -> None:
        """Follow and change, until cancelled."""
        try:
            while True:
                self._note()
                while self._queue:
                    await self._serve(self._queue.popleft())
                left_s = self._left_s()
                if left_s <= 0:
                    await self._take_back()
                elif self._present:
                    await self._follow_topics()
                elif self._store.follows:
                    # Abandoned at the end: a cluster that doesn't answer must not hold up a stop.
                    await trio.to_thread.run_sync(self._poll, abandon_on_cancel=True)
                else:
                    self._wake = trio.Event()
                    with trio.move_on_after(min(left_s, LOOK_S)):
                        await self._wake.wait()
        finally:
            for request in self._queue:
                request.done.set()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._store.close)

    def _left_s(self) -> float:
        """Seconds until something has to be taken back."""
        until_ms = self._store.policies.next_end_ms if self._store.loaded else None
        if until_ms is None:
            return math.inf
        left_s = max(until_ms / 1000 + self._lag_s - self._clock(), self._take_back_at - trio.current_time())
        return left_s if self._is_sure() else max(left_s, UNSURE_S)

    async def _take_back(self) -> None:
        now_ms = self._now_ms()
        what = "ended values can't be taken back"
        if not await self._change_by_itself(lambda policies: policies.taken_back(now_ms), BY_ITSELF, what):
            self._take_back_at = trio.current_time() + AGAIN_S

    async def _follow_topics(self) -> None:
        present, self._present = self._present, NO_IDS  # after a failure the next look finds them again
        what = "thresholds of deleted topics can't be removed"
        await self._change_by_itself(lambda policies: policies.following(present), TOPIC_DELETED, what)

    async def _change_by_itself(self, decide: Callable[[PolicySet], PolicySet], source: Source, failure: str) -> bool:
        """Whether it is done. `failure`: for the log, which has it once for each reason."""
        request = _Request(lambda: self._write(decide, source))
        await self._serve(request)
        error = request.error
        why = "" if error is None else one_line(str(error) or repr(error), ERROR_CHARS)
        if why and why != self._failures.get(failure):
            log.warning("policies: %s: %s", failure, why)
        self._failures[failure] = why
        return error is None

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)

    async def alter(
        self, ops: Sequence[Op], source: Source, *, validate_only: bool = False, planned: Planned = NO_PLANS
    ) -> Altered:
        """All of these, or nothing.

        Args:
            planned: topics that are about to be created, and the brokers that may have a partition of each; None: any.

        Raises:
            PolicyError: what is wrong, by key.
            StoreError: it can't be kept just now.
        """
        topics = _topics_set(ops)
        places = _planned(await self._find(topics), planned)
        ids = NO_IDS if validate_only else await self._ids(topics - planned.keys(), places)
        now_ms = self._now_ms()
        return await self._change(
            lambda policies: policies.alter(ops, places=places, now_ms=now_ms, topic_ids=ids), source, validate_only
        )

    async def fitting(self, ops: Sequence[Op], *, planned: Planned = NO_PLANS) -> list[str | None]:
        """The thresholds of these that go together, see policies.definitions.fitting; changes nothing. `planned`: see
        `alter`.
        """
        places = _planned(await self._find(_topics_set(ops)), planned)
        return await trio.to_thread.run_sync(lambda: fitting(self.policies, ops, places=places))

    async def take_back(self, before: Mapping[PolicyKey, Held], made: Sequence[Op], source: Source) -> Altered:
        """Undo the effect of `made`, so that the keys are as `before`, except those that were changed since.

        Raises:
            PolicyError, StoreError: see `alter`.
        """
        made_values = {op.key: Held(op.value) for op in made}

        def decide(policies: PolicySet) -> PolicySet:
            own = {key for key, held in made_values.items() if policies.held(key) == held}
            return policies.restored({key: held for key, held in before.items() if key in own})

        return await self._change(decide, source, validate_only=False)

    async def remove_topics(self, deleted: Mapping[str, Held], source: Source) -> None:
        """These topics were deleted: remove their thresholds that are still as they were held by then.

        Raises:
            StoreError: see `alter`.
        """
        await self._change(lambda policies: policies.without_topics(deleted), source, validate_only=False)

    async def alter_quotas(
        self,
        alterations: Sequence[Alteration],
        source: Source,
        *,
        validate_only: bool = False,
        lost: Sequence[Sequence[QuotaKey]] = (),
    ) -> Altered:
        """AlterClientQuotas: an entity that is refused, see `errors`, leaves the others alone.

        Args:
            lost: by alteration, quotas that brokers lose by the same request; none: nothing is lost.

        Raises:
            StoreError: it can't be kept just now.
        """
        errors: tuple[QuotaError | None, ...] = ()
        now_ms = self._now_ms()

        def decide(policies: PolicySet) -> PolicySet:
            nonlocal errors
            new, errors = policies.alter_quotas(alterations, now_ms=now_ms)
            if errors and None not in errors and not validate_only:
                raise _AllRefused
            return new

        try:
            altered = await self._change(decide, source, validate_only)
        except _AllRefused:
            return Altered(self.policies.version, (), (), errors)
        altered.errors = errors
        altered.notes = ("",) * len(errors)
        if any(op.value is not None for each in alterations for op in each.ops):
            upstream = await self._upstream()
            if upstream is not None and upstream.entries:
                altered.notes = await trio.to_thread.run_sync(_noted, alterations, errors, lost, upstream)
                altered.warnings += tuple(filter(None, altered.notes))
            altered.notes = tuple(map(_with_small, altered.notes, alterations, errors))
        return altered

    async def apply(
        self,
        data: object,
        source: Source,
        *,
        dry_run: bool = False,
        prune: bool = False,
        until_ms: int | None = None,
        groups: bool = True,
    ) -> Altered:
        """Make a document hold; where it does, nothing is changed. `prune`: remove other values set at run time.
        `until_ms`: the end of the changed values. `groups`: whether resource groups, and their attachments, may change
        by it.

        Raises:
            DocumentError: it can't be read.
            PolicyError: what is wrong, by key.
            StoreError: it can't be kept just now.
        """
        wanted = await trio.to_thread.run_sync(document.of_data, data)
        topics = _topics_set(self.policies.diff(wanted, until_ms=until_ms))
        places = await self._find(topics)
        ids = NO_IDS if dry_run else await self._ids(topics, places)
        now_ms = self._now_ms()

        def decide(policies: PolicySet) -> PolicySet:
            return policies.apply(
                wanted, prune=prune, until_ms=until_ms, groups=groups, places=places, now_ms=now_ms, topic_ids=ids
            )

        altered = await self._change(decide, source, dry_run)
        quotas = [each for each in altered.changes if each.key.kind == "quota" and each.new is not None]
        upstream = await self._upstream() if quotas else None
        if upstream is not None and upstream.entries:
            altered.warnings += await trio.to_thread.run_sync(_weaker, quotas, upstream)
        return altered

    async def rebase(self, base: Values, source: Source | None = None, around: Around = nullcontext) -> None:
        """Keep the changes over another base. `source`: its author, for the history; None: it has no place there.
        `around`: what else changes along with it: it is entered before the new values are told, and left behind that.
        """
        before, after = await self._ask(lambda: self._rebase(base), around)
        if source is not None:
            self._of_base.extend(await trio.to_thread.run_sync(_audit_base, before, after, source, self._now_ms()))

    def _rebase(self, base: Values) -> tuple[PolicySet, PolicySet]:
        before = self._store.policies
        self._store.rebase(base)
        return before, self._store.policies

    def overview(self) -> dict[str, Any]:
        """Version, the document of the values in force, and the origin of each."""
        policies = self.policies
        return {
            "version": policies.version,
            "document": document.export(policies),
            "origins": document.origins(policies.settings()),
        }

    async def _find(self, topics: Collection[str]) -> Places | None:
        """The brokers where topics have partitions. A topic that was made a moment ago is known after another look."""
        places = self._places()
        if unplaced(topics, places):
            await self._refresh()
            places = self._places()
        return places

    async def _ids(self, topics: Set[str], places: Places | None) -> TopicIds:
        """Of those of the topics that are there, asked for now: the last look may have found an earlier topic."""
        there = topics - unplaced(topics, places)
        if there and places is not None:
            with trio.move_on_after(IDENTIFY_S):
                return await self._identify(there)
        return NO_IDS

    # --- one after another --------------------------------------------------------------------------------------------

    async def _change(self, decide: Callable[[PolicySet], PolicySet], source: Source, validate_only: bool) -> Altered:
        try:
            if not self._store.loaded:  # a first start makes the topic while clients are let in already
                with trio.move_on_after(LOADING_S):
                    await self.loaded.wait()
            if not self._store.loaded or (validate_only and self._store.problem):
                raise StoreError(self._store.problem)
            if validate_only:
                return await trio.to_thread.run_sync(self._try, decide, self._places())
            written: Written = await self._ask(lambda: self._write(decide, source))
        except (PolicyError, _AllRefused):
            self._count("refused", validate_only)
            raise
        except StoreError:
            self._count("failed", validate_only)
            raise
        changes = tuple(change for change in written.changes if not change.only_id)
        self._count("accepted" if changes else "unchanged", validate_only)
        return self._altered(written.after.version, changes, written.after, self._places())

    @staticmethod
    def _altered(version: int, changes: tuple[Change, ...], after: PolicySet, places: Places | None) -> Altered:
        return Altered(version, changes, after.warnings(places), committed=after.committed(places))

    def _count(self, outcome: str, validate_only: bool) -> None:
        if not validate_only:
            self._metrics.count_policy_change(outcome)

    def _try(self, decide: Callable[[PolicySet], PolicySet], places: Places | None) -> Altered:
        before = self.policies
        after = decide(before)
        return self._altered(before.version, after.changes_since(before), after, places)

    def _write(self, decide: Callable[[PolicySet], PolicySet], source: Source) -> Written:
        written = self._store.write(decide, source)
        if written.changes:
            by = _by(source)
            for change in written.changes:
                if change.only_id:
                    log.debug("policies: %s is for %s", change.key, change.topic_id)
                    continue
                fields = _fields(change.key, change.old, change.new)
                what = _described(fields)
                end = f" until {time_text(change.end)}" if change.end is not None else ""
                version = written.after.version
                fields |= {"by": by, "version": str(version), "until": end.removeprefix(" until ")}
                audit_log.info("policy version %d: %s%s, %s", version, what, end, by, extra=fields)
        return written

    async def _ask(self, work: Callable[[], Any], around: Around = nullcontext) -> Any:
        request = _Request(work, around)
        self._queue.append(request)
        self._wake.set()
        await request.done.wait()
        if request.error is not None:
            raise request.error
        return request.result

    def _poll(self) -> None:
        self._store.poll(POLL_S)
        self._store.policies.quotas()  # worked out here, where nobody waits for it

    def _work(self, request: _Request) -> Any:
        result = request.work()
        self._store.policies.quotas()
        return result

    async def _serve(self, request: _Request) -> None:
        try:
            request.result = await trio.to_thread.run_sync(self._work, request, abandon_on_cancel=True)
            request.error = None
        except Exception as error:  # the asker's, also if it is a bug
            request.error = error
        finally:
            # Before the answer: a client that has it finds its change in force.
            with request.around() if request.error is None else nullcontext():
                self._note()
            request.done.set()

    def _note(self) -> None:
        """Tell the news."""
        store, told = self._store, self._told
        self._told = store.policies
        if store.loaded and not self.loaded.is_set():
            self.loaded.set()
            self._warn()
        self._metrics.show_policy_version(self._told.version)
        self._metrics.show_policy_store(store.loaded and not store.problem)
        if self._told is not told and self._told.effective() != told.effective():
            self._warn()
            self._changed(self._told)

    def look(self) -> None:
        """Topics may have partitions elsewhere by now."""
        if self.loaded.is_set():
            self._warn()

    @property
    def watched(self) -> list[str]:
        """The topics whose ids matter at a look at the cluster: those that have a threshold set at run time."""
        return sorted(key.name for key in self._told.changes if key.kind == "topic")

    def see_topics(self, seen: TopicIds) -> None:
        """A look at the cluster found topics with these ids, among those `watched`."""
        if not self.loaded.is_set():
            return
        known = {name: self._told.topic_ids.get(name) for name in self.watched}
        self._present = self._seen_ids.look(known, seen, trio.current_time())
        if self._present:
            self._wake.set()
        # Not with each change: a topic that is created with a threshold has it a moment before it is there.
        reserved = frozenset(self._told.reserved_warnings(self._places()))
        for warning in sorted(reserved - self._warned_reserved):
            log.warning("policies: %s", one_line(warning, 2 * ERROR_CHARS))
        self._warned_reserved = reserved

    def _warn(self) -> None:
        places = self._places()
        warnings = frozenset(self._told.warnings(places)) - set(self._told.reserved_warnings(places))
        for warning in sorted(warnings - self._warned):
            log.warning("policies: %s", one_line(warning, 2 * ERROR_CHARS))
        self._warned = warnings
        now = self._told.committed(places) if places is not None else {}
        over = overcommitted(now)
        for broker in self._overcommitted.keys() - over.keys():
            log.info("policies: broker %s: the topics' %s do not exceed its total any more", broker, TOPIC_KEY)
        self._overcommitted = over
        self._metrics.show_committed(now)


def _topics_set(ops: Iterable[Op]) -> set[str]:
    """The topics that get a threshold."""
    return {op.key.name for op in ops if op.value is not None and op.key.kind == "topic"}


class _AllRefused(Exception):
    """Of an AlterClientQuotas nothing is left to be done."""


def _noted(
    alterations: Sequence[Alteration],
    errors: Sequence[QuotaError | None],
    lost: Sequence[Sequence[QuotaKey]],
    upstream: QuotaStore,
) -> tuple[str, ...]:
    """Of each alteration, where brokers have less, without what is lost there then."""
    entities = [
        Entity.of(each.entity) if error is None else None for each, error in zip(alterations, errors, strict=True)
    ]
    if any(lost):
        left = {entity: dict(values) for entity, values in upstream.entries.items()}
        for entity, keys in zip(entities, lost, strict=True):
            if entity is not None:
                for key in keys:
                    left.get(entity, {}).pop(key, None)
        upstream = QuotaStore.accepted(left)
    return tuple(
        "; ".join(filter(None, (_lesser(entity, QuotaKey.parse(op.key), op.value, upstream) for op in ops)))
        if entity is not None
        else ""
        for entity, (_, ops, _) in zip(entities, alterations, strict=True)
    )


def _with_small(note: str, alteration: Alteration, error: QuotaError | None) -> str:
    """The note with what is hardly meant: the answer's warnings, which are about all values, have it already."""
    small = [op for op in alteration.ops if small_text(op.value)] if error is None else []
    if not small:
        return note
    entity = Entity.of(alteration.entity)
    values = {PolicyKey.of_quota(entity, QuotaKey.parse(op.key)): op.value for op in small if op.value is not None}
    return "; ".join(filter(None, (note, *small_limits(values))))


def _weaker(quotas: Iterable[Change], upstream: QuotaStore) -> tuple[str, ...]:
    """Where brokers have less than these."""
    texts = (
        _lesser(each.key.entity, each.key.quota, None if each.new is None else as_number(each.new), upstream)
        for each in quotas
    )
    return tuple(filter(None, texts))


def _lesser(entity: Entity, key: QuotaKey, value: float | None, upstream: QuotaStore) -> str:
    """Why that value doesn't hold; "": it does, or there is none."""
    less = None if value is None else upstream.lesser(entity, key, value)
    return "" if less is None or value is None else lesser_text(entity, key, value, less)


def _audit_base(before: PolicySet, after: PolicySet, source: Source, at_ms: int) -> list[Past]:
    """Log the values in force that are others by another base; the newest of them for the history."""
    old, new = before.effective(), after.effective()
    by, found = _by(source), []
    for key in sorted((key for key in {**old, **new} if old.get(key) != new.get(key)), key=order):
        past = Past(after.version, at_ms, source, key, old.get(key), new.get(key), None)
        found.append(past)
        fields = _fields(key, past.old, past.new) | {"by": by}
        audit_log.info("configuration: %s, %s", _described(fields), by, extra=fields)
    return found


def _fields(key: PolicyKey, old: Value | None, new: Value | None) -> dict[str, str]:
    """Of the log's line."""
    return {
        "kind": "policy-changed",
        "key": one_line(str(key), ERROR_CHARS),
        "old": value_text(key, old),
        "new": value_text(key, new),
    }


def _described(fields: Mapping[str, str]) -> str:
    return f"{fields['key']}: {fields['old']} -> {fields['new']}"


def _by(source: Source) -> str:
    who, door, peer = map(one_line, source)
    return f"by {who or 'unknown'} via {door}{' from ' + peer if peer else ''}"
