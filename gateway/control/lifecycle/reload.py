# Reads the configuration again while the gateway runs: when SIGHUP or somebody at the API asks for it, and when its
# file has changed. A file with a fault changes nothing; what is wrong with it is said as `check` says it. What is right
# holds at once, in control and in every worker as a whole (takeover.py), and what takes a restart is named.
#
# Knows no sockets, and not what becomes of a configuration.

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

import trio

from gateway import config
from gateway.config import Examined, Settings
from gateway.control.lifecycle.examination import TO_SERVE
from gateway.control.lifecycle.file_watch import Settled, is_newer, look
from gateway.control.policies.store import StoreError
from gateway.control.workers.orders import Orders
from gateway.supervisor import Origin
from gateway.system import cores
from policies.definitions.policy_records import Source
from policies.definitions.policy_values import PolicyError, Values
from policies.text import one_line

log = logging.getLogger("gateway.control")

LINE_CHARS: Final = 1000  # of a fault, in the log and for the API
IDLE_S: Final = 5.0  # while the file is not looked at: until it is asked whether it is to be
DOOR: Final = "reload"
BY_FILE: Final = Source("file", DOOR)
BY_SIGNAL: Final = Source("SIGHUP", DOOR)

Outcome = Literal["applied", "unchanged", "refused", "failed"]


class Attempt(NamedTuple):
    """What came of reading the configuration once more.

    Attributes:
        problems: why nothing was changed, a line each.
        changed: keys whose values hold since then.
    """

    outcome: Outcome
    at_ms: int
    problems: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class State(NamedTuple):
    """The configuration in force. `file` "": it came from standard input, and can't be read again. `loaded_ms`: Unix
    time at which it was last read and accepted. `pending`: keys of the file that wait for a restart, as far as is
    known. `last`: the last attempt; None: there was none.
    """

    file: str = ""
    loaded_ms: int = 0
    pending: tuple[str, ...] = ()
    last: Attempt | None = None


class Policies(Protocol):
    """See gateway.control.policies.service.PolicyService."""

    @property
    def problem(self) -> str: ...

    @property
    def loaded(self) -> trio.Event: ...

    async def rebase(
        self, base: Values, source: Source | None, around: Callable[[], AbstractContextManager[None]]
    ) -> None: ...


class ReloadMetrics(Protocol):
    def show_loaded(self, at_s: float) -> None: ...

    def count_reload(self, outcome: str, *, is_accepted: bool, pending: int) -> None: ...


class Reloader:
    """`run` has to be running for anything but `reload` to happen.

    Args:
        takeover: makes a configuration hold; what it encloses are the policies that hold with it.
        examine: reads the file and says what is wrong with it; in a thread.
    """

    def __init__(
        self,
        origin: Origin,
        orders: Orders,
        policies: Policies,
        metrics: ReloadMetrics,
        takeover: Callable[[Settings, Origin], AbstractContextManager[None]],
        *,
        examine: Callable[[Path], Examined] = lambda path: config.examine(path, *TO_SERVE),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._origin = origin
        self._orders = orders
        self._policies = policies
        self._metrics = metrics
        self._takeover = takeover
        self._examine = examine
        self._clock = clock
        self._one_at_a_time = trio.Lock()
        self._settled = Settled(())
        self.state = State(origin.files[0] if origin.files else "", origin.read_at_ns // 10**6)
        metrics.show_loaded(origin.read_at_ns / 1e9)

    async def run(self, asked: Callable[[], trio.Event]) -> None:
        """Read it again whenever `asked()` is set, and when its files have changed; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_signal, asked)  # who asks is answered, if only why it can't be
            await self._policies.loaded.wait()
            await self._follow_files()

    async def _follow_signal(self, asked: Callable[[], trio.Event]) -> None:
        while True:
            await asked().wait()
            await self.reload(BY_SIGNAL)

    async def _follow_files(self) -> None:
        self._settled.take(await self._look())
        # Since it was read for this gateway's start, or by an earlier control, it may have changed.
        files, read_at_ns = self._origin.files, self._origin.read_at_ns
        if await trio.to_thread.run_sync(lambda: is_newer(files, read_at_ns)):
            await self.reload(BY_FILE)
        while True:
            interval_s = self._orders.settings.reload_interval
            await trio.sleep(interval_s or IDLE_S)
            if interval_s and self._settled.is_news(await self._look()):
                await self.reload(BY_FILE)

    async def _look(self) -> tuple[tuple[int, ...] | None, ...]:
        return await trio.to_thread.run_sync(look, self._origin.files)

    async def reload(self, source: Source) -> Attempt:
        """Read it now."""
        async with self._one_at_a_time:
            try:
                attempt = await self._try(source)
            except _Refused as refused:
                problems = tuple(one_line(each, LINE_CHARS) for each in refused.lines)
                attempt = Attempt(refused.outcome, self._now_ms(), problems)
                for line in attempt.problems:
                    log.error("configuration not taken over: %s", line)
            except StoreError as error:  # the gateway is stopping
                attempt = Attempt("failed", self._now_ms(), (one_line(str(error), LINE_CHARS),))
            except Exception as bug:  # whatever is in the file, the gateway goes on
                log.exception("configuration not taken over, by a bug")
                attempt = Attempt("failed", self._now_ms(), (f"a bug: {one_line(repr(bug), LINE_CHARS)}",))
        accepted = attempt.outcome in ("applied", "unchanged")
        loaded_ms = attempt.at_ms if accepted else self.state.loaded_ms
        self.state = self.state._replace(last=attempt, loaded_ms=loaded_ms)
        self._metrics.count_reload(attempt.outcome, is_accepted=accepted, pending=len(self.state.pending))
        if accepted:
            self._metrics.show_loaded(attempt.at_ms / 1000)
        return attempt

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)

    async def _try(self, source: Source) -> Attempt:
        """
        Raises:
            _Refused: nothing was changed.
        """
        if not self._origin.files:
            raise _Refused("refused", ["it came from standard input and can't be read again: restart the gateway"])
        read_at_ns = time.time_ns()
        self._settled.take(await self._look())
        examined = await trio.to_thread.run_sync(self._examine, Path(self._origin.files[0]))
        files = tuple(map(str, examined.files))
        if files != self._origin.files:  # other secrets: they are looked at from here on
            self._origin = Origin(files, self._origin.read_at_ns)
            self._settled.take(await self._look())
        if examined.settings is None or examined.findings:
            raise _Refused("refused", examined.lines)
        if not self._policies.loaded.is_set():
            raise _Refused("failed", [f"the policies changed at run time are not known yet: {self._policies.problem}"])
        running, wanted = self._orders.settings, _counted(examined.settings)
        changes = await trio.to_thread.run_sync(config.compare, running, wanted)
        self._note_pending(changes.pending)
        if changes.problems:
            together = f"what holds at once doesn't go with what takes a restart ({', '.join(changes.pending)})"
            raise _Refused("refused", [f"{together}: {problem}" for problem in changes.problems])
        self._origin = Origin(files, read_at_ns)
        if not changes.live:
            log.info(
                "configuration read again: nothing has changed%s", " that holds at once" if changes.pending else ""
            )
            return Attempt("unchanged", self._now_ms())
        before = frozenset(config.warnings(running))
        try:
            base = self._orders.base(changes.settings)
        except PolicyError as error:
            raise _Refused("refused", [f"thresholds.source: {error}"]) from error
        around = functools.partial(self._takeover, changes.settings, self._origin)
        await self._policies.rebase(base, source, around)
        log.info("configuration taken over: %s", ", ".join(changes.live))
        for warning in config.warnings(changes.settings):
            if warning not in before:
                log.warning("%s", warning)
        return Attempt("applied", self._now_ms(), changed=changes.live)

    def _note_pending(self, pending: tuple[str, ...]) -> None:
        if pending and pending != self.state.pending:
            log.warning("configuration: a restart is needed before these hold: %s", ", ".join(pending))
        self.state = self.state._replace(pending=pending)


class _Refused(Exception):
    def __init__(self, outcome: Outcome, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.outcome = outcome
        self.lines = lines


def _counted(settings: Settings) -> Settings:
    """With the number of workers that the parent would start."""
    return settings.model_copy(update={"workers": cores.count()}) if settings.workers == "auto" else settings
