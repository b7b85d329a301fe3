# The socketpair between the parent (supervisor.py) and each child: its messages, in channel.py's framing, and the
# child's end. Children listen to their parent only: SIGTERM, SIGINT and SIGHUP are blocked from before their exec and
# then ignored (systemd signals a whole control group, a terminal a whole process group), and they end with their parent
# (PR_SET_PDEATHSIG where there is one, else the end of their socket).

from __future__ import annotations

import ctypes
import math
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import trio
from msgspec.structs import replace

from gateway.channel import ChannelClosed, ProcessChannel
from gateway.system.sockets import address_text

PARENT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # children ignore them
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


# --- parent -> child --------------------------------------------------------------------------------------------------


class ListeningSocket(msgspec.Struct, frozen=True, tag=True):
    """A listening socket, its descriptor with it; or why there is none. Unasked to a control that was restarted."""

    name: str
    host: str
    port: int
    error: str = ""


class ConfigOrigin(msgspec.Struct, frozen=True):
    """The files that a configuration was read from, the configuration file first, and the Unix time in ns before that.
    No file: it can't be read again. `pending`: keys in them that wait for a restart of the gateway.
    """

    files: tuple[str, ...] = ()
    read_at_ns: int = 0
    pending: tuple[str, ...] = ()


NO_ORIGIN = ConfigOrigin()


class KeptState(msgspec.Struct, frozen=True, tag=True):
    """What a control leaves to the next one, and so tells the parent whenever it changes.

    `was_up`: connections were accepted, so clients may be at work; from then on nothing that control lacks ends the
    gateway. `thresholds`: the last valid ones of the operator's source, b"" for none. `gateways`: so many share limits,
    this one included.
    """

    was_up: bool = False
    thresholds: bytes = b""
    gateways: int = 1


NOTHING_KEPT = KeptState()


class StartControl(msgspec.Struct, frozen=True, tag=True):
    """To control, after the sockets that were open already: the validated configuration, as JSON."""

    settings: bytes
    origin: ConfigOrigin = NO_ORIGIN
    kept: KeptState = NOTHING_KEPT


class ReloadConfig(msgspec.Struct, frozen=True, tag=True):
    """To control: somebody asks for the configuration to be read again."""


class NewChannel(msgspec.Struct, frozen=True, tag=True):
    """One end of a fresh socketpair between control and that worker; it replaces an earlier one."""

    worker: int
    restarts: int  # of that worker so far
    # The number of times that control was started: a channel may be renewed without that, and only a control that ended
    # counts against a question that it had.
    control: int


class StopNotice(msgspec.Struct, frozen=True, tag=True):
    """To control: StopChild comes before long. Readiness is to say so; everything else goes on."""


class StopChild(msgspec.Struct, frozen=True, tag=True):
    timeout_s: float


# --- child -> parent --------------------------------------------------------------------------------------------------


class ListenRequest(msgspec.Struct, frozen=True, tag=True):
    """Open that address, or give it again if it is open under this name; answered by ListeningSocket."""

    name: str
    host: str
    port: int


class UnlistenRequest(msgspec.Struct, frozen=True, tag=True):
    name: str


class ReconnectRequest(msgspec.Struct, frozen=True, tag=True):
    """Control and a worker lack a channel; if both are alive, they get a new one."""

    worker: int


class AdoptConfig(msgspec.Struct, frozen=True, tag=True):
    """Control: another configuration holds from here on, for later control processes as well. Times: see
    `run_gateway`.
    """

    settings: bytes
    origin: ConfigOrigin
    shutdown_delay_s: float
    drain_timeout_s: float


class HealthReport(msgspec.Struct, frozen=True, tag=True):
    """Control, when these change and every second: why the gateway isn't ready, and what it goes on without."""

    problems: tuple[str, ...]
    lacking: tuple[str, ...]


class GiveUp(msgspec.Struct, frozen=True, tag=True):
    """It makes no sense to start this child again: the parent prints why, ends everything and exits with 1. After
    `KeptState.was_up` only the child ends, and is started again.
    """

    text: str


ToChild = ListeningSocket | StartControl | ReloadConfig | NewChannel | StopNotice | StopChild
ToParent = ListenRequest | UnlistenRequest | ReconnectRequest | AdoptConfig | KeptState | HealthReport | GiveUp

_decode_for_child = msgspec.msgpack.Decoder(ToChild).decode
decode_for_parent = msgspec.msgpack.Decoder(ToParent).decode


class ParentGone(Exception):
    """The parent is dead; there is no process left to work for."""


class ListenFailed(OSError):
    """The parent could not open an address; the text says which and why."""


# --- the child's side -------------------------------------------------------------------------------------------------


def attach_to_parent(fd: int) -> ParentLink:
    """Take up the socket to the parent, first thing in a child's main function, before `trio.run`."""
    for number in PARENT_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENT_SIGNALS)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return ParentLink(socket.socket(fileno=fd))


class ParentLink:
    """A child's view of its parent. `run_gateway` has to be running for anything else to happen.

    Attributes:
        leaving: control only: set when the gateway is about to stop, or stops.
        stopping: set when the parent asks this child to finish within `drain_timeout_s` seconds.
        settings: control only, set once `started` is: the configuration as JSON.
        origin: control only, likewise: where the configuration was read.
        kept: control only, likewise: what an earlier control left, and this one since.
        reload: control only: set when somebody asks for that; whoever does it first puts another event in its place.
        inherited: control only: (host, port, socket) by name of the listeners that were open before this process.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._channel: ProcessChannel[ToParent, ToChild] = ProcessChannel(sock, _decode_for_child)
        self._channels, self._next_channel = trio.open_memory_channel[tuple[NewChannel, socket.socket]](math.inf)
        self._listen_events: dict[str, trio.Event] = {}
        self._listen_answers: dict[str, tuple[ListeningSocket, int]] = {}
        self.leaving = trio.Event()
        self.stopping = trio.Event()
        self.drain_timeout_s = 0.0
        self.started = trio.Event()
        self.settings = b""
        self.origin = NO_ORIGIN
        self.kept = NOTHING_KEPT
        self.reload = trio.Event()
        self.inherited: dict[str, tuple[str, int, socket.socket]] = {}

    async def run(self) -> None:
        """Read from and write to the parent.

        Raises:
            ParentGone: it closed its end.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._channel.run)
                while True:
                    self._handle_message(*await self._channel.receive())
        except* ChannelClosed:
            raise ParentGone from None
        finally:
            self._channel.close()

    async def next_channel(self) -> tuple[NewChannel, socket.socket]:
        """The next socketpair end between control and a worker. A later one of a worker replaces an earlier one."""
        return await self._next_channel.receive()

    async def listen(self, name: str, host: str, port: int) -> socket.socket:
        """Have the parent open an address. One call per name at a time.

        Raises:
            ListenFailed: it could not.
        """
        if name in self.inherited:
            held_host, held_port, held = self.inherited.pop(name)
            if (held_host, held_port) == (host, port):
                return held
            held.close()
        self._listen_events[name] = trio.Event()
        self._channel.post(ListenRequest(name, host, port))
        await self._listen_events[name].wait()
        del self._listen_events[name]
        answer, fd = self._listen_answers.pop(name)
        if answer.error or fd < 0:
            raise ListenFailed(answer.error or f"{address_text(host, port)}: too many open files")
        return socket.socket(fileno=fd)

    def close_listener(self, name: str) -> None:
        """Let the parent close the socket that it holds under that name; closing our own is up to us."""
        self._channel.post(UnlistenRequest(name))

    def request_reconnect(self, worker: int) -> None:
        """Ask for a new channel between control and that worker; the parent may take its time."""
        self._channel.post(ReconnectRequest(worker))

    def keep(self, **changes: Any) -> None:
        """Control: the next control gets these values of `KeptState`."""
        self.kept = replace(self.kept, **changes)
        self._channel.post(self.kept)

    def adopt_config(self, message: AdoptConfig) -> None:
        """Control: another configuration holds."""
        self._channel.post(message)

    def report_health(self, problems: Sequence[str], lacking: Sequence[str]) -> None:
        """Control: what the health port says from here on."""
        self._channel.post(HealthReport(tuple(problems), tuple(lacking)))

    async def give_up(self, text: str) -> None:
        """Ask the parent to end the whole gateway with this message; returns when it knows."""
        self._channel.post(GiveUp(text))
        await self._channel.wait_flushed()

    def _handle_message(self, message: ToChild, fd: int) -> None:
        match message:
            case ListeningSocket(name=name) if name in self._listen_events:
                self._listen_answers[name] = (message, fd)
                self._listen_events[name].set()
            case ListeningSocket() if fd >= 0:
                self.inherited[message.name] = (message.host, message.port, socket.socket(fileno=fd))
            case NewChannel() if fd >= 0:
                self._channels.send_nowait((message, socket.socket(fileno=fd)))
            case NewChannel():  # this process has too many open files: nobody else knows that it lacks this one
                self.request_reconnect(message.worker)
            case StartControl():
                self.settings, self.origin, self.kept = message.settings, message.origin, message.kept
                self.started.set()
            case ReloadConfig():
                self.reload.set()
            case StopNotice():
                self.leaving.set()
            case StopChild():
                self.drain_timeout_s = message.timeout_s
                self.leaving.set()
                self.stopping.set()
