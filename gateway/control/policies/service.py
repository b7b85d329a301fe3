# Policies at run time, for everything in the control process: what holds now, and the one way by which any door changes
# it. A change is judged, kept, read again, audited, and only then answered.
#
# Changes wait for each other here and are made one after another, in a thread; between them the store is polled for
# those of other gateways. A client may give up waiting; its change is made nevertheless. Publishes the fact `policies`;
# knows no door and no worker.
#
# A change with an end is taken back here: by each gateway that finds it over, also one that was down at that time. The
# first one makes the change, and for all others there is nothing left to be done. So it goes by the brokers' time where
# that is known (brokers_time.py): a machine whose clock is ahead would end it for all.
#
# A topic's threshold ends with its topic. If the topic is deleted through a gateway, that gateway removes it
# (`remove_topics`). If it is deleted elsewhere, each gateway finds out by the id of the next topic of that name
# (`on_cluster_answer`), and again the first one makes the change.

from __future__ import annotations

import heapq
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Final

import trio

from gateway import policy_document as document
from gateway.control.cluster.broker_quotas import BrokerQuotas
from gateway.control.cluster.brokers_time import BrokersTime
from gateway.control.cluster.client_names import find_other_names
from gateway.control.cluster.metadata import MetadataSource
from gateway.control.context import ControlContext
from gateway.control.facts import ClusterState
from gateway.control.policies.store import PolicyStore, StoreError, WrittenChange
from gateway.control.policies.topic_ids import SeenIds
from gateway.control.policies.topic_log import MAX_HISTORY
from policies.definitions.fitting import find_misfits
from policies.definitions.policy_records import BY_EXPIRY, BY_TOPIC_DELETION, ChangeSource, PastChange, end_text
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    NO_IDS,
    BaseOrigin,
    PolicyChange,
    PolicyError,
    PolicyKey,
    PolicyOperation,
    PolicyValue,
    PolicyValues,
    RuntimeValue,
    TopicIds,
    as_number,
    policy_order,
    value_text,
)
from policies.definitions.small_limits import small_limit_text, small_limit_warnings
from policies.quotas.names import Entity, QuotaError, QuotaKey
from policies.quotas.store import Alteration, Op, QuotaStore
from policies.quotas.text import lesser_text
from policies.text import ERROR_CHARS, one_line
from policies.thresholds.sums import CommittedTotal, TopicPlaces, find_overcommitted, unplaced_topics
from policies.thresholds.values import TOPIC_KEY

log = logging.getLogger("gateway.policy")
audit_log = logging.getLogger("gateway.audit")

POLL_S: Final = 0.2  # how long a change may have to wait for a poll
LOADING_TIMEOUT_S: Final = 8.0  # for stored changes, after a start; Kafka's admin clients get an answer after 10 s
REVERT_RETRY_S: Final = 5.0  # after something that is over could not be taken back
LAG_S: Final = 1.0  # gateways take back one after the other, or they would fence each other off
CLOCK_CHECK_S: Final = 60.0  # the clock may be set
CLOCK_RETRY_S: Final = 1.0  # until it is looked at again whether the time is known
IDENTIFY_TIMEOUT_S: Final = 2.0  # for the cluster to name the ids of topics before a change; without, looks find them
OUTCOMES: Final = ("accepted", "unchanged", "refused", "failed")


class ChangeResult:
    """A request's result, or, with `validate_only`, its would-be result.

    `version`: in force. `errors`: of client quotas, one per entity, None = fine. `warnings`: about the values that hold
    then; `notes`: those about an entity's quotas, one per entity, "" = none. `committed`: by broker, its total and the
    sum that topics take of it then.
    """

    __slots__ = ("changes", "committed", "errors", "notes", "validate_only", "version", "warnings")

    def __init__(
        self,
        version: int,
        changes: tuple[PolicyChange, ...],
        warnings: tuple[str, ...],
        errors: tuple[QuotaError | None, ...] = (),
        committed: Mapping[str, CommittedTotal] = MappingProxyType({}),
    ) -> None:
        self.version = version
        self.changes = changes
        self.warnings = warnings
        self.errors = errors
        self.committed = committed
        self.validate_only = False
        self.notes: tuple[str, ...] = ("",) * len(errors)


CommitContext = Callable[[], AbstractContextManager[None]]


class _StoreRequest:
    """Work for the store's thread, and its result. What it changes is published within `commit_context`."""

    def __init__(self, work: Callable[[], Any], around: CommitContext = nullcontext) -> None:
        self.work = work
        self.commit_context = around
        self.done = trio.Event()
        self.result: Any = None
        self.error: Exception | None = StoreError("the gateway is stopping; if the change was made, it will show")


Planned = Mapping[str, Collection[int] | None]
NO_PLANS: Final[Planned] = {}


def _with_planned(places: TopicPlaces | None, planned: Planned) -> TopicPlaces | None:
    """`places` as they may be when these topics are there; one that any broker may get is on none yet."""
    if places is None or not planned:
        return places
    found: dict[int, set[str]] = {broker_id: set(names) - planned.keys() for broker_id, names in places.items()}
    for topic, brokers in planned.items():
        for broker_id in brokers or ():
            found.setdefault(broker_id, set()).add(topic)
    return found


class PolicyService:
    """One gateway's policies. Publishes those in force when they, or their ends, are others than before, and once they
    are loaded; never in the constructor.

    `loaded` is set when all that was kept has been read once: before, only the base holds, and changes wait for it,
    LOADING_TIMEOUT_S at most.
    """

    def __init__(
        self,
        context: ControlContext,
        store: PolicyStore,
        clock: BrokersTime,
        cluster: MetadataSource,
        upstream: BrokerQuotas,
    ) -> None:
        """`clock`: by which policies end. `upstream`: the brokers' own quotas."""
        self._published = context.facts.policies
        self._cluster = context.facts.cluster
        self._configuration = context.facts.configuration
        self._metrics = context.metrics
        self._store = store
        self._clock = clock
        self._source = cluster
        self._upstream = upstream
        self._lag_s = random.uniform(0, LAG_S) if store.has_other_writers else 0.0  # noqa: S311  (no secret)
        self._revert_at = -math.inf  # not before, trio's clock
        self._failures: dict[str, str] = {}  # of changes by itself, by what was to be done: why
        self._seen_ids = SeenIds()
        self._new_topic_ids: TopicIds = NO_IDS  # ids of topics that are others than those known, to be taken over
        self._queue: deque[_StoreRequest] = deque()
        self._base_history: deque[PastChange] = deque(maxlen=MAX_HISTORY)  # changes by another base, the oldest first
        self._wake = trio.Event()
        self._published.latest = store.policies
        self._warned: frozenset[str] = frozenset()
        self._warned_reserved: frozenset[str] = frozenset()
        self._overcommitted: Mapping[str, CommittedTotal] = {}
        self.loaded = trio.Event()
        self._loads_until = -math.inf  # trio's clock

    @property
    def policies(self) -> PolicySet:
        """The policies in force."""
        return self._published.latest

    @property
    def history(self) -> Sequence[PastChange]:
        """Changes of single values, see PolicyStore; and those of the base since the start, which no store keeps."""
        kept = self._store.history
        return tuple(heapq.merge(kept, self._base_history, key=lambda past: past.at_ms)) if self._base_history else kept

    @property
    def other_names(self) -> str:
        """Why brokers may know clients by other names; "": they don't."""
        return find_other_names(self._configuration.latest)

    @property
    def problem(self) -> str:
        """Why policies can't be changed now, one line; "": they can."""
        return self._store.problem

    @property
    def lacking(self) -> Mapping[str, str]:
        return {"policies": self.problem}

    async def run(self) -> None:
        """Follow the store and make changes, until cancelled."""
        self._loads_until = trio.current_time() + LOADING_TIMEOUT_S
        try:
            while True:
                self._announce_changes()
                while self._queue:
                    await self._serve_request(self._queue.popleft())
                left_s = self._seconds_to_end()
                if left_s <= 0:
                    await self._revert_expired()
                elif self._new_topic_ids:
                    await self._follow_topic_ids()
                elif self._store.has_other_writers:
                    # Abandoned at the end: a cluster that doesn't answer must not hold up a stop.
                    await trio.to_thread.run_sync(self._poll_store, abandon_on_cancel=True)
                else:
                    self._wake = trio.Event()
                    with trio.move_on_after(min(left_s, CLOCK_CHECK_S)):
                        await self._wake.wait()
                    if self._store.problem:
                        await trio.to_thread.run_sync(self._poll_store, abandon_on_cancel=True)
        finally:
            for request in self._queue:
                request.done.set()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._store.close)

    async def await_loaded(self) -> None:
        """Return once all that was kept is known, or LOADING_TIMEOUT_S after the start."""
        if not self.loaded.is_set():
            with trio.move_on_at(self._loads_until):
                await self.loaded.wait()

    def _seconds_to_end(self) -> float:
        """Seconds until a value has to be reverted."""
        until_ms = self._store.policies.next_end_ms if self._store.is_loaded else None
        if until_ms is None:
            return math.inf
        left_s = max(until_ms / 1000 + self._lag_s - self._clock.now(), self._revert_at - trio.current_time())
        return left_s if self._clock.is_sure else max(left_s, CLOCK_RETRY_S)

    async def _revert_expired(self) -> None:
        now_ms = self.now_ms()
        what = "ended values can't be taken back"
        if not await self._change_automatically(lambda policies: policies.revert_expired(now_ms), BY_EXPIRY, what):
            self._revert_at = trio.current_time() + REVERT_RETRY_S

    async def _follow_topic_ids(self) -> None:
        present, self._new_topic_ids = self._new_topic_ids, NO_IDS  # after a failure the next look finds them again
        what = "thresholds of deleted topics can't be removed"
        await self._change_automatically(lambda policies: policies.follow_topic_ids(present), BY_TOPIC_DELETION, what)

    async def _change_automatically(
        self, decide: Callable[[PolicySet], PolicySet], source: ChangeSource, failure: str
    ) -> bool:
        """Whether the change was made. `failure`: for the log, once for each reason."""
        request = _StoreRequest(lambda: self._write_and_audit(decide, source))
        await self._serve_request(request)
        error = request.error
        why = "" if error is None else one_line(str(error) or repr(error), ERROR_CHARS)
        if why and why != self._failures.get(failure):
            log.warning("policies: %s: %s", failure, why)
        self._failures[failure] = why
        return error is None

    def now_ms(self) -> int:
        """The time by which policies end: Unix time in milliseconds."""
        return round(self._clock.now() * 1000)

    async def alter_policies(
        self,
        ops: Sequence[PolicyOperation],
        source: ChangeSource,
        *,
        validate_only: bool = False,
        planned: Planned = NO_PLANS,
    ) -> ChangeResult:
        """Apply all of these operations, or none.

        Args:
            planned: topics that are about to be created, and the brokers that may have a partition of each; None: any.

        Raises:
            PolicyError: the faults, by key.
            StoreError: the change can't be stored now.
        """
        topics = _topics_set(ops)
        places = _with_planned(await self._find_places(topics), planned)
        ids = NO_IDS if validate_only else await self._fetch_topic_ids(topics - planned.keys(), places)
        now_ms = self.now_ms()
        return await self._request_change(
            lambda policies: policies.alter_policies(ops, places=places, now_ms=now_ms, topic_ids=ids),
            source,
            validate_only,
        )

    async def find_misfits(self, ops: Sequence[PolicyOperation], *, planned: Planned = NO_PLANS) -> list[str | None]:
        """The faults of these thresholds beside each other, see policies.definitions.fitting; changes nothing.
        `planned`: see `alter_policies`.
        """
        places = _with_planned(await self._find_places(_topics_set(ops)), planned)
        return await trio.to_thread.run_sync(lambda: find_misfits(self.policies, ops, places=places))

    async def revert_changes(
        self, before: Mapping[PolicyKey, RuntimeValue], made: Sequence[PolicyOperation], source: ChangeSource
    ) -> ChangeResult:
        """Undo the effect of `made`, so that the keys are as `before`, except those that were changed since.

        Raises:
            PolicyError, StoreError: see `alter_policies`.
        """
        made_values = {op.key: RuntimeValue(op.value) for op in made}

        def decide(policies: PolicySet) -> PolicySet:
            own = {key for key, held in made_values.items() if policies.runtime_value(key) == held}
            return policies.restore_values({key: held for key, held in before.items() if key in own})

        return await self._request_change(decide, source, validate_only=False)

    async def remove_topics(self, deleted: Mapping[str, RuntimeValue], source: ChangeSource) -> None:
        """These topics were deleted: remove their thresholds that are still the same.

        Raises:
            StoreError: see `alter_policies`.
        """
        await self._request_change(lambda policies: policies.without_topics(deleted), source, validate_only=False)

    async def alter_quotas(
        self,
        alterations: Sequence[Alteration],
        source: ChangeSource,
        *,
        validate_only: bool = False,
        lost: Sequence[Sequence[QuotaKey]] = (),
    ) -> ChangeResult:
        """AlterClientQuotas: a refused entity (see `errors`) does not affect the others.

        Args:
            lost: by alteration, quotas that brokers lose by the same request; empty: none.

        Raises:
            StoreError: the change can't be stored now.
        """
        errors: tuple[QuotaError | None, ...] = ()
        now_ms = self.now_ms()

        def decide(policies: PolicySet) -> PolicySet:
            nonlocal errors
            new, errors = policies.alter_quotas(alterations, now_ms=now_ms)
            if errors and None not in errors and not validate_only:
                raise _AllRefused
            return new

        try:
            altered = await self._request_change(decide, source, validate_only)
        except _AllRefused:
            return ChangeResult(self.policies.version, (), (), errors)
        altered.errors = errors
        altered.notes = ("",) * len(errors)
        if any(op.value is not None for each in alterations for op in each.ops):
            upstream = await self._upstream.fetch_quotas()
            if upstream is not None and upstream.entries:
                altered.notes = await trio.to_thread.run_sync(
                    _upstream_notes, alterations, errors, lost, upstream, self.other_names
                )
                altered.warnings += tuple(filter(None, altered.notes))
            altered.notes = tuple(map(_with_small_note, altered.notes, alterations, errors))
        return altered

    async def apply_document(
        self,
        data: object,
        source: ChangeSource,
        *,
        dry_run: bool = False,
        prune: bool = False,
        until_ms: int | None = None,
        groups: bool = True,
    ) -> ChangeResult:
        """Make a document hold; where it does, nothing is changed. `prune`: remove other values set at run time.
        `until_ms`: the end of the changed values. `groups`: whether resource groups, and their attachments, may change
        by it.

        Raises:
            DocumentError: it can't be read.
            PolicyError: what is wrong, by key.
            StoreError: it can't be kept just now.
        """
        wanted = await trio.to_thread.run_sync(document.read_document, data)
        topics = _topics_set(self.policies.diff_values(wanted, until_ms=until_ms))
        places = await self._find_places(topics)
        ids = NO_IDS if dry_run else await self._fetch_topic_ids(topics, places)
        now_ms = self.now_ms()

        def decide(policies: PolicySet) -> PolicySet:
            return policies.apply_values(
                wanted, prune=prune, until_ms=until_ms, groups=groups, places=places, now_ms=now_ms, topic_ids=ids
            )

        altered = await self._request_change(decide, source, dry_run)
        quotas = [each for each in altered.changes if each.key.kind == "quota" and each.new is not None]
        upstream = await self._upstream.fetch_quotas() if quotas else None
        if upstream is not None and upstream.entries:
            altered.warnings += await trio.to_thread.run_sync(_weaker_upstream, quotas, upstream, self.other_names)
        return altered

    async def replace_base(
        self, base: PolicyValues, source: ChangeSource | None = None, around: CommitContext = nullcontext
    ) -> None:
        """Keep the changes over another base. `source`: its author, for the history; None: it has no place there.
        `around`: a context for everything else that changes along with it: entered before the new values are published,
        left afterwards. What is raised in it is raised here, with the new base and perhaps a part of the rest in force.
        """
        before, after = await self._queue_and_wait(lambda: self._replace_base(base), around)
        if source is not None:
            self._base_history.extend(await trio.to_thread.run_sync(_audit_base, before, after, source, self.now_ms()))

    def _replace_base(self, base: PolicyValues) -> tuple[PolicySet, PolicySet]:
        before = self._store.policies
        self._store.replace_base(base)
        return before, self._store.policies

    def export_overview(self, base: BaseOrigin) -> dict[str, Any]:
        """The version, the document of the values in force, and the origin of each."""
        policies = self.policies
        return {
            "version": policies.version,
            "document": document.export_policies(policies),
            "origins": document.describe_origins(policies.list_settings(), base),
        }

    async def _find_places(self, topics: Collection[str]) -> TopicPlaces | None:
        """The brokers where topics have partitions. A topic that was just created is known after another metadata
        refresh.
        """
        if unplaced_topics(topics, self._places):
            await self._cluster.await_refresh()
        return self._places

    @property
    def _places(self) -> TopicPlaces | None:
        return self._cluster.latest.places

    async def _fetch_topic_ids(self, topics: Set[str], places: TopicPlaces | None) -> TopicIds:
        """The ids of those topics that exist, fetched now: the last refresh may have found an earlier topic."""
        there = topics - unplaced_topics(topics, places)
        if there and places is not None:
            with trio.move_on_after(IDENTIFY_TIMEOUT_S):
                return await self._source.fetch_topic_ids(there)
        return NO_IDS

    # --- one after another --------------------------------------------------------------------------------------------

    async def _request_change(
        self, decide: Callable[[PolicySet], PolicySet], source: ChangeSource, validate_only: bool
    ) -> ChangeResult:
        try:
            if not self._store.is_loaded:  # a first start makes the topic while clients are let in already
                with trio.move_on_after(LOADING_TIMEOUT_S):
                    await self.loaded.wait()
            if not self._store.is_loaded or (validate_only and self._store.problem):
                raise StoreError(self._store.problem)
            if validate_only:
                return await trio.to_thread.run_sync(self._validate_change, decide, self._places)
            written: WrittenChange = await self._queue_and_wait(lambda: self._write_and_audit(decide, source))
        except (PolicyError, _AllRefused):
            self._count_change("refused", validate_only)
            raise
        except StoreError:
            self._count_change("failed", validate_only)
            raise
        changes = tuple(change for change in written.changes if not change.only_topic_id)
        self._count_change("accepted" if changes else "unchanged", validate_only)
        return self._make_result(written.after.version, changes, written.after, self._places)

    @staticmethod
    def _make_result(
        version: int, changes: tuple[PolicyChange, ...], after: PolicySet, places: TopicPlaces | None
    ) -> ChangeResult:
        return ChangeResult(
            version, changes, after.collect_warnings(places), committed=after.commitments_by_broker(places)
        )

    def _count_change(self, outcome: str, validate_only: bool) -> None:
        if not validate_only:
            self._metrics.count_policy_change(outcome)

    def _validate_change(self, decide: Callable[[PolicySet], PolicySet], places: TopicPlaces | None) -> ChangeResult:
        before = self.policies
        after = decide(before)
        result = self._make_result(before.version, after.changes_since(before), after, places)
        result.validate_only = True
        return result

    def _write_and_audit(self, decide: Callable[[PolicySet], PolicySet], source: ChangeSource) -> WrittenChange:
        written = self._store.write_change(decide, source)
        if written.changes:
            by = _author_text(source)
            for change in written.changes:
                if change.only_topic_id:
                    log.debug("policies: %s is for %s", change.key, change.topic_id)
                    continue
                fields = _log_fields(change.key, change.old, change.new)
                what = _change_text(fields)
                end = f" until {end_text(change.end)}" if change.end is not None else ""
                version = written.after.version
                fields |= {"by": by, "version": str(version), "until": end.removeprefix(" until ")}
                audit_log.info("policy version %d: %s%s, %s", version, what, end, by, extra=fields)
        return written

    async def _queue_and_wait(self, work: Callable[[], Any], around: CommitContext = nullcontext) -> Any:
        request = _StoreRequest(work, around)
        self._queue.append(request)
        self._wake.set()
        await request.done.wait()
        if request.error is not None:
            raise request.error
        return request.result

    def _poll_store(self) -> None:
        self._store.poll_changes(POLL_S)
        self._store.policies.quota_store()  # computed here, where nothing waits for it

    def _run_work(self, request: _StoreRequest) -> Any:
        result = request.work()
        self._store.policies.quota_store()
        return result

    async def _serve_request(self, request: _StoreRequest) -> None:
        try:
            request.result = await trio.to_thread.run_sync(self._run_work, request, abandon_on_cancel=True)
            request.error = None
        except Exception as error:  # the asker's, also if it is a bug
            request.error = error
        finally:
            # Before the answer: a client that has it finds its change in force.
            if request.error is None and request.commit_context is not nullcontext:
                self._announce_within(request)
            else:
                self._announce_changes()
            request.done.set()

    def _announce_within(self, request: _StoreRequest) -> None:
        """Whatever else is to change along may fail: that is the asker's affair, as only it can take all of it back."""
        try:
            with request.commit_context():
                self._announce_changes()
        except Exception as error:
            request.error = error

    def _announce_changes(self) -> None:
        """Publish the policies in force if they changed, or have just been loaded."""
        store, before, policies = self._store, self.policies, self._store.policies
        self._published.latest = policies
        # Workers keep to the end of an override of storage protection by themselves, and clients are told of it.
        is_news = policies is not before and (
            policies.effective_values() != before.effective_values() or policies.ends != before.ends
        )
        if store.is_loaded and not self.loaded.is_set():
            self.loaded.set()
            is_news = True
        self._metrics.show_policy_version(policies.version)
        self._metrics.show_policy_store(store.is_loaded and not store.problem)
        if is_news:
            self._log_warnings()
            self._published.publish(policies)

    def on_places_changed(self, view: ClusterState) -> None:
        """Partitions of topics may have moved."""
        if self.loaded.is_set():
            self._log_warnings()

    def on_cluster_answer(self, view: ClusterState) -> None:
        """Metadata was fetched, with the ids of topics among `watched_topics`."""
        if not self.loaded.is_set():
            return
        known = {name: self.policies.topic_ids.get(name) for name in watched_topics(self.policies)}
        self._new_topic_ids = self._seen_ids.find_confirmed(known, view.topic_ids, trio.current_time())
        if self._new_topic_ids:
            self._wake.set()
        # Not with each change: a topic that is created with a threshold has it a moment before it is there.
        reserved = frozenset(self.policies.reserved_warnings(self._places))
        for warning in sorted(reserved - self._warned_reserved):
            log.warning("policies: %s", one_line(warning, 2 * ERROR_CHARS))
        self._warned_reserved = reserved

    def _log_warnings(self) -> None:
        policies, places = self.policies, self._places
        warnings = frozenset(policies.collect_warnings(places)) - set(policies.reserved_warnings(places))
        for warning in sorted(warnings - self._warned):
            log.warning("policies: %s", one_line(warning, 2 * ERROR_CHARS))
        self._warned = warnings
        now = policies.commitments_by_broker(places) if places is not None else {}
        over = find_overcommitted(now)
        for broker in self._overcommitted.keys() - over.keys():
            log.info("policies: broker %s: the topics' %s do not exceed its total any more", broker, TOPIC_KEY)
        self._overcommitted = over
        self._metrics.show_committed(now)


def watched_topics(policies: PolicySet) -> list[str]:
    """The topics whose ids matter in metadata: those with a threshold set at run time."""
    return sorted(key.name for key in policies.changes if key.kind == "topic")


def _topics_set(ops: Iterable[PolicyOperation]) -> set[str]:
    """The topics that get a threshold."""
    return {op.key.name for op in ops if op.value is not None and op.key.kind == "topic"}


class _AllRefused(Exception):
    """Nothing of an AlterClientQuotas request is left to do."""


def _upstream_notes(
    alterations: Sequence[Alteration],
    errors: Sequence[QuotaError | None],
    lost: Sequence[Sequence[QuotaKey]],
    upstream: QuotaStore,
    other_names: str,
) -> tuple[str, ...]:
    """A note per alteration where brokers have lower quotas, except those that this request removes there."""
    entities = [
        Entity.from_pairs(each.entity) if error is None else None
        for each, error in zip(alterations, errors, strict=True)
    ]
    if any(lost):
        left = {entity: dict(values) for entity, values in upstream.entries.items()}
        for entity, keys in zip(entities, lost, strict=True):
            if entity is not None:
                for key in keys:
                    left.get(entity, {}).pop(key, None)
        upstream = QuotaStore.from_broker(left)

    def find_notes(entity: Entity, ops: Sequence[Op]) -> str:
        notes = (_lesser_note(entity, QuotaKey.parse(op.key), op.value, upstream, other_names) for op in ops)
        return "; ".join(filter(None, notes))

    return tuple(
        "" if entity is None else find_notes(entity, ops)
        for entity, (_, ops, _) in zip(entities, alterations, strict=True)
    )


def _with_small_note(note: str, alteration: Alteration, error: QuotaError | None) -> str:
    """The note, with a warning of a very small limit: the response's warnings, which are about all values, contain it
    already.
    """
    small = [op for op in alteration.ops if small_limit_text(op.value)] if error is None else []
    if not small:
        return note
    entity = Entity.from_pairs(alteration.entity)
    values = {PolicyKey.of_quota(entity, QuotaKey.parse(op.key)): op.value for op in small if op.value is not None}
    return "; ".join(filter(None, (note, *small_limit_warnings(values))))


def _weaker_upstream(quotas: Iterable[PolicyChange], upstream: QuotaStore, other_names: str) -> tuple[str, ...]:
    """Where brokers have lower quotas than these."""
    texts = (
        _lesser_note(each.key.entity, each.key.quota_key, as_number(each.new), upstream, other_names)
        for each in quotas
        if each.new is not None
    )
    return tuple(filter(None, texts))


def _lesser_note(entity: Entity, key: QuotaKey, value: float | None, upstream: QuotaStore, other_names: str) -> str:
    """Why that value is not in force; "": it is, or there is none. `other_names`: why brokers' quotas of a user may not
    be those of the gateway's user of that name, see client_names.py.
    """
    less = None if value is None else upstream.find_lesser(entity, key, value)
    if less is None or value is None:
        return ""
    return lesser_text(entity, key, value, less, other_names if less.source.user is not None else "")


def _audit_base(before: PolicySet, after: PolicySet, source: ChangeSource, at_ms: int) -> list[PastChange]:
    """Log the values in force that a new base changes; the newest of them go into the history."""
    old, new = before.effective_values(), after.effective_values()
    by, found = _author_text(source), []
    for key in sorted((key for key in {**old, **new} if old.get(key) != new.get(key)), key=policy_order):
        past = PastChange(after.version, at_ms, source, key, old.get(key), new.get(key), None)
        found.append(past)
        fields = _log_fields(key, past.old, past.new) | {"by": by}
        audit_log.info("configuration: %s, %s", _change_text(fields), by, extra=fields)
    return found


def _log_fields(key: PolicyKey, old: PolicyValue | None, new: PolicyValue | None) -> dict[str, str]:
    """Fields of the log line."""
    return {
        "kind": "policy-changed",
        "key": one_line(str(key), ERROR_CHARS),
        "old": value_text(key, old),
        "new": value_text(key, new),
    }


def _change_text(fields: Mapping[str, str]) -> str:
    return f"{fields['key']}: {fields['old']} -> {fields['new']}"


def _author_text(source: ChangeSource) -> str:
    who, door, peer = map(one_line, source)
    return f"by {who or 'unknown'} via {door}{' from ' + peer if peer else ''}"
