# Reads the configuration again while the gateway runs: when SIGHUP or the API asks for it, and when its
# file has changed. A file with a fault changes nothing; what is wrong with it is said as `check` says it. What is right
# holds at once, in control and in every worker as a whole, and what takes a restart is named.
#
# Which keys may be others than before is gateway/config/changes.py's; the effect of each is that of a follower of the
# configuration (app.py). Knows no sockets.

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple

import trio
from msgspec.structs import replace

from gateway import config
from gateway.config import ConfigExamination, Settings
from gateway.control.context import ControlContext
from gateway.control.lifecycle.examination import TO_SERVE
from gateway.control.lifecycle.file_watch import SettledFiles, is_any_newer, read_file_states
from gateway.control.policies.policy_base import PolicyBase
from gateway.control.policies.service import PolicyService
from gateway.control.policies.store import StoreError
from gateway.control.workers.workers import WorkerPool
from gateway.parent_link import AdoptConfig, ConfigOrigin
from gateway.system import cores
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_values import PolicyError
from policies.text import one_line

log = logging.getLogger("gateway.control")

LINE_CHARS: Final = 1000  # of a fault, in the log and for the API
UNWATCHED_INTERVAL_S: Final = 5.0  # while the file is not looked at: until it is asked whether it is to be
DOOR: Final = "reload"
BY_FILE: Final = ChangeSource("file", DOOR)
BY_SIGNAL: Final = ChangeSource("SIGHUP", DOOR)

Outcome = Literal["applied", "unchanged", "refused", "failed"]


class ReloadResult(NamedTuple):
    """What came of reading the configuration once more.

    Attributes:
        problems: why nothing was changed, a line each.
        changed: keys whose values hold since then.
    """

    outcome: Outcome
    at_ms: int
    problems: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class ConfigStatus(NamedTuple):
    """The configuration in force. `file` "": it came from standard input, and can't be read again. `loaded_ms`: Unix
    time at which it was last read and accepted. `pending`: keys of the file that wait for a restart, as far as is
    known. `last`: the last attempt; None: there was none.
    """

    file: str = ""
    loaded_ms: int = 0
    pending: tuple[str, ...] = ()
    last: ReloadResult | None = None


def examine_to_serve(path: Path) -> ConfigExamination:
    """Read a file, and say what is wrong with it for a running gateway; for a thread."""
    return config.examine_config(path, *TO_SERVE)


class ConfigReloader:
    """`run` has to be running for anything but `reload_config` to happen."""

    def __init__(
        self,
        context: ControlContext,
        policies: PolicyService,
        base: PolicyBase,
        workers: WorkerPool,
        examine: Callable[[Path], ConfigExamination] = examine_to_serve,
    ) -> None:
        origin = context.link.origin
        self._context = context
        self._policies = policies
        self._base = base
        self._workers = workers
        self._examine = examine
        self._origin = origin
        self._reload_lock = trio.Lock()
        self._settled_files = SettledFiles(())
        self.state = ConfigStatus(
            origin.files[0] if origin.files else "", origin.read_at_ns // 10**6, pending=origin.pending
        )
        context.metrics.set_loaded_at(origin.read_at_ns / 1e9)
        context.metrics.show_pending_keys(len(origin.pending))

    async def run(self) -> None:
        """Read the configuration again whenever the parent asks for it, and when its files have changed; until
        cancelled.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_signal)  # who asks is answered, if only why it can't be
            await self._policies.loaded.wait()
            await self._follow_files()

    async def _follow_signal(self) -> None:
        link = self._context.link
        while True:
            await link.reload.wait()
            link.reload = trio.Event()  # before it is done: who asks meanwhile may have changed the file since
            await self.reload_config(BY_SIGNAL)

    async def _follow_files(self) -> None:
        self._settled_files.mark_known(await self._read_file_states())
        # Since it was read for this gateway's start, or by an earlier control, it may have changed.
        files, read_at_ns = self._origin.files, self._origin.read_at_ns
        if await trio.to_thread.run_sync(lambda: is_any_newer(files, read_at_ns)):
            await self.reload_config(BY_FILE)
        while True:
            interval_s = self._context.settings.reload_interval
            await trio.sleep(interval_s or UNWATCHED_INTERVAL_S)
            if interval_s and self._settled_files.is_settled_change(await self._read_file_states()):
                await self.reload_config(BY_FILE)

    async def _read_file_states(self) -> tuple[tuple[int, ...] | None, ...]:
        return await trio.to_thread.run_sync(read_file_states, self._origin.files)

    async def reload_config(self, source: ChangeSource) -> ReloadResult:
        """Read the configuration now."""
        async with self._reload_lock:
            try:
                attempt = await self._try_reload(source)
            except _ReloadRefused as refused:
                problems = tuple(one_line(each, LINE_CHARS) for each in refused.lines)
                attempt = ReloadResult(refused.outcome, self._context.now_ms(), problems)
                for line in attempt.problems:
                    log.error("configuration not taken over: %s", line)
            except StoreError as error:  # the gateway is stopping
                attempt = ReloadResult("failed", self._context.now_ms(), (one_line(str(error), LINE_CHARS),))
            except Exception as bug:  # whatever is in the file, the gateway goes on
                log.exception("configuration not taken over, because of a bug")
                attempt = ReloadResult("failed", self._context.now_ms(), (f"a bug: {one_line(repr(bug), LINE_CHARS)}",))
        accepted = attempt.outcome in ("applied", "unchanged")
        loaded_ms = attempt.at_ms if accepted else self.state.loaded_ms
        self.state = self.state._replace(last=attempt, loaded_ms=loaded_ms)
        self._context.metrics.count_reload(attempt.outcome, is_accepted=accepted)
        if accepted:
            self._context.metrics.set_loaded_at(attempt.at_ms / 1000)
        return attempt

    async def _try_reload(self, source: ChangeSource) -> ReloadResult:
        """
        Raises:
            _Refused: nothing was changed.
        """
        if not self._origin.files:
            raise _ReloadRefused(
                "refused", ["it came from standard input and can't be read again: restart the gateway"]
            )
        read_at_ns = time.time_ns()
        self._settled_files.mark_known(await self._read_file_states())
        examined = await trio.to_thread.run_sync(self._examine, Path(self._origin.files[0]))
        files = tuple(map(str, examined.files))
        if files != self._origin.files:  # other secrets: they are looked at from here on
            self._origin = replace(self._origin, files=files)
            self._settled_files.mark_known(await self._read_file_states())
        if examined.settings is None or examined.findings:
            raise _ReloadRefused("refused", examined.lines)
        if not self._policies.loaded.is_set():
            raise _ReloadRefused(
                "failed", [f"the policies changed at run time are not known yet: {self._policies.problem}"]
            )
        running, wanted = self._context.settings, _with_worker_count(examined.settings)
        changes = await trio.to_thread.run_sync(config.compare_settings, running, wanted)
        self._record_pending(changes.pending)
        if changes.problems:
            together = (
                f"settings that apply at once conflict with those that need a restart ({', '.join(changes.pending)})"
            )
            raise _ReloadRefused("refused", [f"{together}: {problem}" for problem in changes.problems])
        former_origin, self._origin = self._origin, ConfigOrigin(files, read_at_ns, changes.pending)
        if not changes.live:
            log.info(
                "configuration read again: nothing has changed%s", " that applies at once" if changes.pending else ""
            )
            return ReloadResult("unchanged", self._context.now_ms())
        before = frozenset(config.find_warnings(running))
        try:
            base = self._base.of_settings(changes.settings)
        except PolicyError as error:
            raise _ReloadRefused("refused", [f"thresholds.source: {error}"]) from error
        around = functools.partial(self._switch_to, changes.settings, self._origin)
        try:
            await self._policies.replace_base(base, source, around)
        except Exception:  # some parts have the new one, others haven't
            self._origin = former_origin
            back = functools.partial(self._switch_to, running, former_origin)
            # Made now: the source of thresholds may have others meanwhile.
            await self._policies.replace_base(self._base.of_settings(running), None, back)
            raise
        log.info("configuration taken over: %s", ", ".join(changes.live))
        for warning in config.find_warnings(changes.settings):
            if warning not in before:
                log.warning("%s", warning)
        return ReloadResult("applied", self._context.now_ms(), changed=changes.live)

    @contextmanager
    def _switch_to(self, settings: Settings, origin: ConfigOrigin) -> Iterator[None]:
        """The configuration takes effect together with the policies that are published within, in all parts of control
        at once and in each worker at once: nothing in here waits. The parent then keeps it for the next control.
        """
        facts = self._context.facts
        with self._workers.batch_snapshots():
            facts.configuration.publish(settings)
            yield
            facts.policies.publish(facts.policies.latest)  # how they are enforced is the configuration's
        self._context.link.adopt_config(
            AdoptConfig(
                settings.model_dump_json(by_alias=True).encode(),
                origin,
                settings.shutdown_delay,
                settings.drain_timeout,
            )
        )

    def _record_pending(self, pending: tuple[str, ...]) -> None:
        if pending and pending != self.state.pending:
            log.warning("configuration: a restart is needed before these apply: %s", ", ".join(pending))
        self.state = self.state._replace(pending=pending)
        self._context.metrics.show_pending_keys(len(pending))


class _ReloadRefused(Exception):
    def __init__(self, outcome: Outcome, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.outcome = outcome
        self.lines = lines


def _with_worker_count(settings: Settings) -> Settings:
    """With the number of workers that the parent would start."""
    return settings.model_copy(update={"workers": cores.count_cores()}) if settings.workers == "auto" else settings
