# The parent: starts the control process and the worker, starts them again when they die, passes signals on. It owns
# what must outlive them: the listening sockets, the memory that workers share, the making of the socketpairs between
# them, and the answers of the health port (health.py), for which control reports its condition every second.
#
# It knows nothing of Kafka, metrics or policies and imports none of it, so there is little in it that could fail. Each
# child has a socketpair to it (parent_link.py).
#
# Stop: `readyz` turns and everything goes on for the delay that was asked for, so that whoever sends clients
# here stops doing so. Then listening sockets close, children get StopChild, workers drain, control writes down what
# they reported; what is left at the deadline is killed. A control that has died, or dies meanwhile, is started again as
# long as a worker waits for one, since workers keep what they counted until a control has it.

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import trio
from msgspec.structs import replace

from gateway.channel import ChannelClosed, ProcessChannel
from gateway.health import HealthServer, ReportedHealth
from gateway.parent_link import (
    NO_ORIGIN,
    PARENT_SIGNALS,
    AdoptConfig,
    ConfigOrigin,
    GiveUp,
    HealthReport,
    KeptState,
    ListenFailed,
    ListeningSocket,
    ListenRequest,
    NewChannel,
    ReconnectRequest,
    ReloadConfig,
    StartControl,
    StopChild,
    StopNotice,
    ToChild,
    ToParent,
    UnlistenRequest,
    decode_for_parent,
)
from gateway.system import shared_memory
from gateway.system.sockets import address_text

log = logging.getLogger("gateway.supervisor")

BACKLOG = 1024  # connections that wait while control restarts
BACKOFF_S = (0.1, 10.0)  # first and longest pause before a dead child is started again, or a broken channel replaced
STOP_CHECK_S = 0.1  # how often a pause during a stop looks whether it still has a purpose
STEADY_S = 30.0  # a child that lived this long starts at the first pause again

CONTROL_NUMBER = -1  # the number of the control process among the children; workers count from 0

# A child's command line by its number; `--fd N`, and for workers what else they need, are put behind it.
ChildCommand = Callable[[int], Sequence[str]]


def child_command(number: int) -> Sequence[str]:
    """The gateway's own children."""
    return [sys.executable, "-m", "gateway.control" if number == CONTROL_NUMBER else "gateway.data"]


def open_listener(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Raises:
        ListenFailed: the address with the reason, made for a human.
    """
    if not 0 < port <= 65535:
        raise ListenFailed(f"{address_text(host, port)}: a port is at most 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dualstack = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=dualstack)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        if isinstance(error, socket.gaierror):
            reason = error.strerror or str(error)
        raise ListenFailed(f"{address_text(host, port)}: {reason}") from error


def run_gateway(
    settings: bytes,
    listeners: dict[str, tuple[str, int]],
    *,
    workers: int = 1,
    memory_bytes: int = 0,
    drain_timeout_s: float = 20.0,
    shutdown_delay_s: float = 0.0,
    origin: ConfigOrigin = NO_ORIGIN,
    log_format: str = "console",
    health: tuple[str, int] | None = None,
    program: ChildCommand = child_command,
) -> int:
    """Run a gateway until SIGTERM or SIGINT, and return the exit code.

    `settings` goes to control as it is, and so does `origin`, where it was read. `listeners` (name -> host, port) are
    opened before anything is started: one that can't be opened is exit code 1 with one line. `memory_bytes`: of the
    memory that all workers map. `shutdown_delay_s`: from SIGTERM to the end of listening; another signal skips it, and
    SIGINT has none. `log_format`: of the lines of children that don't know the configuration yet, or never do.
    `health`: host and port of the health port.
    """
    _raise_file_limit()

    def start(number: int) -> Sequence[str]:
        return [*program(number), *([] if log_format == "console" else ["--log-format", log_format])]

    times_s = (shutdown_delay_s, drain_timeout_s)
    family = _ProcessSupervisor(StartControl(settings, origin=origin), workers, memory_bytes, times_s, start)
    try:
        for name, (host, port) in listeners.items():
            family.open_socket(name, host, port)
        if health is not None:
            family.open_health_socket(*health)
    except ListenFailed as error:
        log.error("can't listen on %s", error)
        return 1
    return trio.run(family.run)


class RestartBackoff:
    """Pauses between attempts, in seconds: longer each time, until one lived for STEADY_S."""

    def __init__(self) -> None:
        self._pause = BACKOFF_S[0]

    def next_pause(self, lived_s: float) -> float:
        """The pause behind an attempt that lived so long."""
        pause = BACKOFF_S[0] if lived_s >= STEADY_S else self._pause
        self._pause = min(2 * pause, BACKOFF_S[1])
        return pause


class _ChildProcess:
    def __init__(self, number: int) -> None:
        self.number = number
        self.name = "control" if number == CONTROL_NUMBER else f"worker {number}"
        self.channel: ProcessChannel[ToChild, ToParent] | None = None  # None while it isn't running
        self.process: subprocess.Popen[bytes] | None = None
        self.restarts = -1
        self.connected_at = -math.inf  # when a worker got its last channel to control
        self.reconnects = RestartBackoff()

    def spawn_process(
        self, program: ChildCommand, workers: int, memory: int | None
    ) -> ProcessChannel[ToChild, ToParent]:
        """`memory`: the one that `workers` workers share."""
        ours, theirs = socket.socketpair()
        argv, passed = [*program(self.number), "--fd", str(theirs.fileno())], [theirs.fileno()]
        if self.number != CONTROL_NUMBER:
            argv += ["--worker", str(self.number)]
            if memory is not None:
                argv += ["--workers", str(workers), "--memory", str(memory)]
                passed.append(memory)
        # In this thread, because PR_SET_PDEATHSIG follows the thread that forked; the mask is inherited (see
        # `attach_to_parent`).
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)
        try:
            self.process = subprocess.Popen(argv, pass_fds=passed, stdin=subprocess.DEVNULL)
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        self.restarts += 1
        self.channel = ProcessChannel(ours, decode_for_parent)
        return self.channel

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()


class _ProcessSupervisor:
    """Everything the parent keeps while it runs."""

    def __init__(
        self, start: StartControl, workers: int, memory_bytes: int, times_s: tuple[float, float], program: ChildCommand
    ) -> None:
        self._start = start  # of the next control
        self._shutdown_delay_s, self._drain_timeout_s = times_s
        self._program = program
        self._control = _ChildProcess(CONTROL_NUMBER)
        self._workers = [_ChildProcess(number) for number in range(workers)]
        self._memory = shared_memory.create_shared_memory(memory_bytes) if memory_bytes else None
        self._listening: dict[str, tuple[str, int, socket.socket]] = {}
        self._health = ReportedHealth()
        self._health_socket: socket.socket | None = None
        self._leaving = False
        self._stopping = trio.Event()
        self._stop_by = math.inf  # nothing is started then any more; trio's clock
        self._exit_code = 0

    def open_socket(self, name: str, host: str, port: int) -> socket.socket:
        """The socket of that name and address, opened now if it is not open."""
        if name in self._listening:
            if self._listening[name][:2] == (host, port):
                return self._listening[name][2]
            self.close_socket(name)
        sock = open_listener(host, port)
        self._listening[name] = (host, port, sock)
        return sock

    def open_health_socket(self, host: str, port: int) -> None:
        """Unlike the others it goes to no child, and is open to the end."""
        self._health_socket = open_listener(host, port)

    def close_socket(self, name: str) -> None:
        if name in self._listening:
            self._listening.pop(name)[2].close()

    async def run(self) -> int:
        try:
            with trio.open_signal_receiver(*PARENT_SIGNALS) as signals:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._follow_signals, signals, nursery)
                    if self._health_socket is not None:
                        nursery.start_soon(HealthServer(self._health_socket, self._health).run)
                    async with trio.open_nursery() as children:
                        children.start_soon(self._enforce_deadline, children.cancel_scope)
                        async with trio.open_nursery() as keepers:
                            for child in (self._control, *self._workers):
                                keepers.start_soon(self._keep_running, child)
                        children.cancel_scope.cancel()
                    nursery.cancel_scope.cancel()
        finally:
            for child in (self._control, *self._workers):
                child.kill()
            for name in list(self._listening):
                self.close_socket(name)
            if self._health_socket is not None:
                self._health_socket.close()
            if self._memory is not None:
                os.close(self._memory)
        return self._exit_code

    async def _follow_signals(self, signals: Any, nursery: trio.Nursery) -> None:
        async for number in signals:
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                log.info("%s: reading the configuration again", name)
                if self._control.channel is not None:  # else the next one looks by itself
                    self._control.channel.post(ReloadConfig())
            elif self._stopping.is_set():
                log.warning("%s once more: ending at once", name)
                self._stop_by = trio.current_time()
                for child in (self._control, *self._workers):
                    child.kill()
            elif number == signal.SIGTERM and self._shutdown_delay_s and not self._leaving:
                log.info("%s: not ready any more; no new connections in %g s", name, self._shutdown_delay_s)
                self._leaving = self._health.is_stopping = True
                if self._control.channel is not None:
                    self._control.channel.post(StopNotice())
                nursery.start_soon(self._stop_later)
            else:
                log.info("%s: finishing, at most %g s", name, self._drain_timeout_s)
                self._stop_children()

    async def _stop_later(self) -> None:
        await trio.sleep(self._shutdown_delay_s)
        if not self._stopping.is_set():
            log.info("finishing, at most %g s", self._drain_timeout_s)
            self._stop_children()

    def _stop_children(self) -> None:
        self._stopping.set()
        self._stop_by = trio.current_time() + self._drain_timeout_s
        self._health.is_stopping = True
        for name in list(self._listening):
            self.close_socket(name)
        for child in (self._control, *self._workers):
            self._post_stop(child, self._drain_timeout_s)

    def _post_stop(self, child: _ChildProcess, left_s: float) -> None:
        # Control writes down what the workers say last, so they end before it, and all of it before the deadline.
        part = 0.9 if child is self._control else 0.7
        if child.channel is not None:
            child.channel.post(StopChild(left_s * part))

    async def _enforce_deadline(self, children: trio.CancelScope) -> None:
        await self._stopping.wait()
        await trio.sleep_until(self._stop_by)
        for child in (self._control, *self._workers):
            if child.channel is not None:
                log.warning("%s did not finish within %g s and is killed", child.name, self._drain_timeout_s)
                child.kill()

    async def _keep_running(self, child: _ChildProcess) -> None:
        pauses = RestartBackoff()
        while self._is_needed(child):
            since = trio.current_time()
            try:
                code = await self._run_child(child)
                how = f"ended ({_describe_exit(code)})"
                if self._stopping.is_set() and code == 0:
                    return
            except* OSError as group:  # no memory, process or descriptor for it just now: the others go on
                child.kill()
                how = f"can't be run ({group.exceptions[0]})"
            if not self._is_needed(child):
                return
            pause = pauses.next_pause(trio.current_time() - since)
            log.error("%s %s and is started again in %g s", child.name, how, pause)
            with trio.move_on_after(pause):
                if not self._stopping.is_set():
                    await self._stopping.wait()
                else:
                    while self._is_needed(child):  # noqa: ASYNC110  a stop must not last longer for a pause
                        await trio.sleep(STOP_CHECK_S)

    def _is_needed(self, child: _ChildProcess) -> bool:
        """Whether the child has to run. During a stop only a control for workers that have something to report."""
        if not self._stopping.is_set():
            return True
        is_awaited = any(worker.channel is not None for worker in self._workers)
        return child is self._control and self._start.kept.was_up and is_awaited and trio.current_time() < self._stop_by

    async def _run_child(self, child: _ChildProcess) -> int:
        """One life of a child, from its start to its exit code."""
        line = child.spawn_process(self._program, len(self._workers), self._memory)
        assert child.process is not None
        try:
            self._introduce_child(child)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive_messages, child, line)
                # Not one of trio's 40 threads for everybody: this one is busy for as long as the child lives.
                place = trio.CapacityLimiter(1)
                code = await trio.to_thread.run_sync(child.process.wait, abandon_on_cancel=True, limiter=place)
                nursery.cancel_scope.cancel()
        finally:
            child.channel = None
            line.close()
        return code

    def _introduce_child(self, child: _ChildProcess) -> None:
        """Give a new child its sockets and settings, and its peers a fresh channel to it."""
        assert child.channel is not None
        if child is self._control:
            for name, (host, port, sock) in self._listening.items():
                child.channel.post(ListeningSocket(name, host, port), os.dup(sock.fileno()))
            child.channel.post(self._start)
            if self._leaving:
                child.channel.post(StopNotice())
        for worker in self._workers if child is self._control else [child]:
            self._connect_worker(worker)
        if self._stopping.is_set():
            self._post_stop(child, self._stop_by - trio.current_time())

    def _connect_worker(self, worker: _ChildProcess) -> None:
        if worker.channel is None or self._control.channel is None:
            return  # whichever comes later connects them
        control_end, worker_end = socket.socketpair()
        message = NewChannel(worker.number, worker.restarts, self._control.restarts)
        self._control.channel.post(message, control_end.detach())
        worker.channel.post(message, worker_end.detach())
        worker.connected_at = trio.current_time()

    async def _reconnect_worker(self, worker: _ChildProcess) -> None:
        """Not at once again and again: a channel may break of a message on it, which comes again on the next."""
        broken = worker.connected_at
        while True:
            pause = worker.reconnects.next_pause(trio.current_time() - broken)
            log.warning("%s and control lost their channel: a new one in %g s", worker.name, pause)
            await trio.sleep(pause)
            with contextlib.suppress(OSError):  # no descriptors just now: that ends neither of them
                if worker.connected_at == broken:  # else one of them was started again, and both have one
                    self._connect_worker(worker)
                return

    async def _receive_messages(self, child: _ChildProcess, line: ProcessChannel[ToChild, ToParent]) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(line.run)
                while True:
                    message, _ = await line.receive()
                    if isinstance(message, ReconnectRequest):
                        nursery.start_soon(self._reconnect_worker, self._workers[message.worker])
                    else:
                        self._handle_message(line, message)
        except* ChannelClosed:
            pass  # it is ending; its exit code tells more

    def _handle_message(self, line: ProcessChannel[ToChild, ToParent], message: ToParent) -> None:
        match message:
            case ListenRequest(name, host, port):
                if self._stopping.is_set():
                    line.post(ListeningSocket(name, host, port, "the gateway is stopping"))
                    return
                try:
                    fd = os.dup(self.open_socket(name, host, port).fileno())
                except OSError as error:
                    line.post(ListeningSocket(name, host, port, str(error)))
                else:
                    line.post(ListeningSocket(name, host, port), fd)
            case UnlistenRequest(name):
                self.close_socket(name)
            case AdoptConfig():
                self._start = replace(self._start, settings=message.settings, origin=message.origin)
                self._shutdown_delay_s, self._drain_timeout_s = message.shutdown_delay_s, message.drain_timeout_s
            case KeptState():
                self._start = replace(self._start, kept=message)
            case HealthReport(problems, lacking):
                self._health.record_report(problems, lacking, trio.current_time())
            case GiveUp(text):
                log.error("%s", text)
                if not self._start.kept.was_up:
                    self._exit_code = 1
                    if not self._stopping.is_set():
                        self._stop_children()


def _raise_file_limit() -> None:
    """A connection takes two descriptors in a worker, and the usual soft limit is 1,024; children inherit ours."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS: no process may have as many as its hard limit says
            log.info("the limit of open files stays at %d", soft)


def _describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
