# Policies at run time, for everything in the control process: what holds now, and the one way by which any door changes
# it. A change is judged, kept, read again, audited, and only then answered.
#
# Changes wait for each other here and are made one after another, in a thread; between them the store is polled for
# those of other gateways. Who asks for one may give up, the change is made all the same. Knows no door and no worker:
# `changed` is told what holds.

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence, Set
from typing import Any, Final, Protocol

import trio

from gateway import policy_document as document
from gateway.control.policies.store import Store, StoreError, Written
from policies.policy_set import Change, Op, PolicyError, PolicySet, Source, Values, value_text
from policies.quotas.names import QuotaError
from policies.quotas.store import Alteration
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.policy")
audit_log = logging.getLogger("gateway.audit")

POLL_S: Final = 0.2  # how long a change may have to wait for a poll
OUTCOMES: Final = ("accepted", "unchanged", "refused", "failed")


class PolicyMetrics(Protocol):
    """What is told to whoever shows metrics."""

    def show_policy_version(self, version: int) -> None: ...

    def show_policy_store(self, up: bool) -> None:
        """Whether everything was read and changes can be made."""

    def count_policy_change(self, outcome: str) -> None:
        """One request to change something, by OUTCOMES; those that only validate don't count."""


class Altered:
    """What a request came to, or, if it was only to be validated, would.

    `version`: in force. `errors`: of client quotas, one per entity, None = fine. `warnings`: about what then holds.
    """

    __slots__ = ("changes", "errors", "version", "warnings")

    def __init__(
        self,
        version: int,
        changes: tuple[Change, ...],
        warnings: tuple[str, ...],
        errors: tuple[QuotaError | None, ...] = (),
    ) -> None:
        self.version = version
        self.changes = changes
        self.warnings = warnings
        self.errors = errors


class _Request:
    """Work for the store's thread, and what came of it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done = trio.Event()
        self.result: Any = None
        self.error: Exception | None = StoreError("the gateway is stopping; if the change was made, it will show")


class PolicyService:
    """One gateway's policies.

    `loaded` is set when all that was kept has been read once: before, only the base holds, and nothing can be changed.
    """

    def __init__(
        self,
        store: Store,
        metrics: PolicyMetrics,
        changed: Callable[[PolicySet], None],
        gone: Callable[[], Set[str]] = frozenset,
    ) -> None:
        """`changed` is called with what holds whenever it is something else than `policies` was; never by the
        constructor. `gone`: names of deleted topics.
        """
        self._store = store
        self._metrics = metrics
        self._changed = changed
        self._gone = gone
        self._queue: deque[_Request] = deque()
        self._wake = trio.Event()
        self._told = store.policies
        self._warned: frozenset[str] = frozenset()
        self.loaded = trio.Event()

    @property
    def policies(self) -> PolicySet:
        """What holds, as far as `changed` was told."""
        return self._told

    @property
    def problem(self) -> str:
        """Why nothing can be changed just now, one line; "" where it can."""
        return self._store.problem

    async def run(self) -> None:
        """Follow and change, until cancelled."""
        try:
            while True:
                self._note()
                while self._queue:
                    await self._serve(self._queue.popleft())
                if self._store.follows:
                    # Abandoned at the end: a cluster that doesn't answer must not hold up a stop.
                    await trio.to_thread.run_sync(self._store.poll, POLL_S, abandon_on_cancel=True)
                else:
                    self._wake = trio.Event()
                    await self._wake.wait()
        finally:
            for request in self._queue:
                request.done.set()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._store.close)

    async def alter(self, ops: Sequence[Op], source: Source, *, validate_only: bool = False) -> Altered:
        """All of these, or nothing.

        Raises:
            PolicyError: what is wrong, by key.
            StoreError: it can't be kept just now.
        """
        gone = frozenset(self._gone())
        return await self._change(lambda policies: policies.alter(ops, gone=gone), source, validate_only)

    async def fitting(self, ops: Sequence[Op]) -> list[str | None]:
        """Which of these thresholds go together, see PolicySet.fitting; changes nothing."""
        gone = frozenset(self._gone())
        return await trio.to_thread.run_sync(lambda: self.policies.fitting(ops, gone=gone))

    async def alter_quotas(
        self, alterations: Sequence[Alteration], source: Source, *, validate_only: bool = False
    ) -> Altered:
        """AlterClientQuotas: an entity that is refused, see `errors`, leaves the others alone.

        Raises:
            StoreError: it can't be kept just now.
        """
        errors: tuple[QuotaError | None, ...] = ()

        def decide(policies: PolicySet) -> PolicySet:
            nonlocal errors
            new, errors = policies.alter_quotas(alterations)
            if errors and None not in errors and not validate_only:
                raise _AllRefused
            return new

        try:
            altered = await self._change(decide, source, validate_only)
        except _AllRefused:
            return Altered(self.policies.version, (), (), errors)
        altered.errors = errors
        return altered

    async def apply(
        self, data: object, source: Source, *, dry_run: bool = False, prune: bool = False, groups: bool = True
    ) -> Altered:
        """Make a document hold; where it does, nothing is changed. `prune`: remove what else was set at run time.
        `groups`: whether resource groups, and what they are attached to, may change by it.

        Raises:
            DocumentError: it can't be read.
            PolicyError: what is wrong, by key.
            StoreError: it can't be kept just now.
        """
        wanted = await trio.to_thread.run_sync(document.of_data, data)
        gone = frozenset(self._gone())
        return await self._change(
            lambda policies: policies.apply(wanted, prune=prune, groups=groups, gone=gone), source, dry_run
        )

    async def rebase(self, base: Values) -> None:
        """Keep the changes over another base."""
        await self._ask(lambda: self._store.rebase(base))

    def overview(self) -> dict[str, Any]:
        """Version, the document of what holds, and where each value comes from."""
        policies = self.policies
        return {
            "version": policies.version,
            "document": document.export(policies),
            "origins": document.origins(policies.settings()),
        }

    # --- one after another --------------------------------------------------------------------------------------------

    async def _change(self, decide: Callable[[PolicySet], PolicySet], source: Source, validate_only: bool) -> Altered:
        try:
            if not self._store.loaded or (validate_only and self._store.problem):
                raise StoreError(self._store.problem)
            if validate_only:
                return await trio.to_thread.run_sync(self._try, decide, frozenset(self._gone()))
            written: Written = await self._ask(lambda: self._write(decide, source))
        except (PolicyError, _AllRefused):
            self._count("refused", validate_only)
            raise
        except StoreError:
            self._count("failed", validate_only)
            raise
        self._count("accepted" if written.changes else "unchanged", validate_only)
        return Altered(written.after.version, written.changes, written.after.warnings(self._gone()))

    def _count(self, outcome: str, validate_only: bool) -> None:
        if not validate_only:
            self._metrics.count_policy_change(outcome)

    def _try(self, decide: Callable[[PolicySet], PolicySet], gone: Set[str]) -> Altered:
        before = self.policies
        after = decide(before)
        return Altered(before.version, after.changes_since(before), after.warnings(gone))

    def _write(self, decide: Callable[[PolicySet], PolicySet], source: Source) -> Written:
        written = self._store.write(decide, source)
        if written.changes:
            by = _by(source)
            for change in written.changes:
                old, new = value_text(change.key, change.old), value_text(change.key, change.new)
                key = one_line(str(change.key), ERROR_CHARS)
                audit_log.info("policy version %d: %s: %s -> %s, %s", written.after.version, key, old, new, by)
        return written

    async def _ask(self, work: Callable[[], Any]) -> Any:
        request = _Request(work)
        self._queue.append(request)
        self._wake.set()
        await request.done.wait()
        if request.error is not None:
            raise request.error
        return request.result

    async def _serve(self, request: _Request) -> None:
        try:
            request.result = await trio.to_thread.run_sync(request.work, abandon_on_cancel=True)
            request.error = None
        except Exception as error:  # the asker's, also if it is a bug
            request.error = error
        finally:
            self._note()  # before the answer: who has it finds his change in force
            request.done.set()

    def _note(self) -> None:
        """Tell what is new."""
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

    def _warn(self) -> None:
        warnings = frozenset(self._told.warnings(self._gone()))
        for warning in sorted(warnings - self._warned):
            log.warning("policies: %s", one_line(warning, 2 * ERROR_CHARS))
        self._warned = warnings


class _AllRefused(Exception):
    """Of an AlterClientQuotas nothing is left to be done."""


def _by(source: Source) -> str:
    who, door, peer = map(one_line, source)
    return f"by {who or 'unknown'} via {door}{' from ' + peer if peer else ''}"
