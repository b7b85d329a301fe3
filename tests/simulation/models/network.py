# A simulated network: connections of two one-way streams with delays, windows and faults, and on top of them what the
# data plane sees of sockets: an object with `recv_into`, `send` and the like, a poller with epoll's masks, a listener.
#
# A model (a client, a broker) gets what comes by a call; the product's sockets are read when the product reads them.
# Knows no Kafka.

from __future__ import annotations

import errno
import math
import os
import socket as real_socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import trio

from tests.simulation.clock import Agenda

IN, OUT, ERR, HUP, RDHUP, ONESHOT = 0x001, 0x004, 0x008, 0x010, 0x2000, 1 << 30
SEND_BUFFER: Final = 512 * 1024
WINDOW: Final = 512 * 1024
CHUNK: Final = 64 * 1024
CLOSE_WAIT: Final = 8
CLOSED: Final = object()


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Stream:
    """One direction of a connection.

    Attributes:
        unsent: bytes that the sender's kernel holds.
        received: bytes that the receiver has not read.
        arrives_at: when the last of what is under way does.
        delay_s: of each byte. `rate`: bytes per second, 0: no bound. `is_hole`: nothing gets through any more.
    """

    __slots__ = (
        "_agenda", "_fin", "_in_flight", "arrives_at", "delay_s", "fin_arrived", "is_hole", "queue", "rate",
        "received", "receiver", "sender", "unsent", "window",
    )  # fmt: skip

    def __init__(self, agenda: Agenda, delay_s: float) -> None:
        self._agenda = agenda
        self.arrives_at = 0.0
        self._fin = False
        self._in_flight = 0
        self.delay_s = delay_s
        self.rate = 0.0
        self.is_hole = self.fin_arrived = False
        self.queue: deque[bytes] = deque()
        self.unsent = 0
        self.received = bytearray()
        self.window = WINDOW
        self.sender: End
        self.receiver: End

    @property
    def room(self) -> int:
        return SEND_BUFFER - self.unsent

    def send(self, data: bytes) -> None:
        self.queue.append(data)
        self.unsent += len(data)
        self.pump()

    def finish(self) -> None:
        """Nothing more comes behind what was sent."""
        if not self._fin:
            self._fin = True
            self.pump()

    def pump(self) -> None:
        """Send what the receiver's window has room for."""
        if self.is_hole:
            return
        queue, was_full = self.queue, self.room <= 0
        while queue and (left := min(CHUNK, self.window - self._in_flight - len(self.received))) > 0:
            data = queue.popleft()
            if len(data) > left:
                queue.appendleft(data[left:])
                data = data[:left]
            self.unsent -= len(data)
            self._in_flight += len(data)
            self._agenda.at(self._arrival(len(data)), self._arrive, data)
        if was_full and self.room > 0:
            self.sender.on_room()
        if self._fin and not queue and not self.fin_arrived:
            self._agenda.at(self._arrival(0), self._arrive_end)

    def _arrival(self, size: int) -> float:
        now = self._agenda.now
        self.arrives_at = max(now + self.delay_s, self.arrives_at)
        if self.rate:
            self.arrives_at += size / self.rate
        self.arrives_at = math.ceil(self.arrives_at * 2000.0) / 2000.0  # fewer moments in which something happens
        return self.arrives_at

    def _arrive(self, data: bytes) -> None:
        self._in_flight -= len(data)
        receiver = self.receiver
        if self.is_hole or receiver.is_reset:
            return
        if receiver.is_closed:
            receiver.reset_peer()
            return
        self.received += data
        receiver.on_readable()

    def _arrive_end(self) -> None:
        if not self.fin_arrived and not self.is_hole:
            self.fin_arrived = True
            if not (self.receiver.is_closed or self.receiver.is_reset):
                self.receiver.on_readable()


class End:
    """One end of a connection. `rx`, `tx`: its streams."""

    def __init__(self, agenda: Agenda, peer_address: tuple[str, int]) -> None:
        self.agenda = agenda
        self.peer_address = peer_address
        self.rx: Stream
        self.tx: Stream
        self.is_closed = self.is_reset = self.is_shut = False

    def on_readable(self) -> None: ...

    def on_room(self) -> None: ...

    def on_reset(self) -> None: ...

    def shutdown_write(self) -> None:
        if not self.is_shut:
            self.is_shut = True
            self.tx.finish()

    def close(self, *, with_reset: bool = False) -> None:
        """Close as a kernel does: unread bytes make it a reset."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.is_reset:
            return
        if with_reset or self.rx.received:
            self.reset_peer()
        else:
            self.shutdown_write()

    def reset_peer(self) -> None:
        """Whatever is in flight is lost; the other end sees a reset."""
        peer = self.tx.receiver
        if not self.tx.is_hole and not peer.is_reset:
            self.tx.queue.clear()
            self.agenda.after(self.tx.delay_s, peer.arrive_reset)

    def arrive_reset(self) -> None:
        if not (self.is_reset or self.is_closed):
            self.is_reset = True
            self.on_reset()


class ModelEnd(End):
    """A model's end. `on_bytes`, `on_end`: called with what comes, and when the connection has ended in any way."""

    on_bytes: Callable[[bytes], None]
    on_end: Callable[[str], None]

    def on_readable(self) -> None:
        received = self.rx.received
        if received:
            data = bytes(received)
            received.clear()
            self.on_bytes(data)
            if self.rx.queue:
                self.rx.pump()
        if self.rx.fin_arrived and not self.is_closed:
            self.on_end("closed")

    def on_reset(self) -> None:
        self.on_end("reset")

    def send(self, data: bytes) -> None:
        if not (self.is_closed or self.is_reset or self.is_shut):
            self.tx.send(data)


class KernelEnd(End):
    """What the kernel holds of one of the product's sockets. `owner`: the process whose end closes it."""

    def __init__(self, agenda: Agenda, peer_address: tuple[str, int], fd: int, owner: object) -> None:
        super().__init__(agenda, peer_address)
        self.fd = fd
        self.owner = owner
        self.poller: Poller | None = None
        self.waiter: trio.lowlevel.Task | None = None
        self.lingers = True

    @property
    def events(self) -> int:
        """Epoll's mask of what is the case."""
        if self.is_reset:
            return IN | OUT | ERR | HUP | RDHUP
        found = IN if self.rx.received or self.rx.fin_arrived else 0
        if self.tx.room > 0:
            found |= OUT
        if self.rx.fin_arrived:
            found |= RDHUP | (HUP if self.is_shut else 0)
        return found

    def on_readable(self) -> None:
        if self.poller is not None:
            self.poller.mark(self.fd)
        elif self.waiter is not None:
            task, self.waiter = self.waiter, None
            trio.lowlevel.reschedule(task)

    on_room = on_reset = on_readable

    def read(self, size: int, *, peek: bool = False) -> bytes:
        if self.is_reset:
            raise os_error(errno.ECONNRESET)
        received = self.rx.received
        if not received:
            if self.rx.fin_arrived:
                return b""
            raise BlockingIOError(errno.EAGAIN, "nothing to read")
        data = bytes(received[:size])
        if not peek:
            del received[:size]
            if self.rx.queue:
                self.rx.pump()
        return data

    def write(self, parts: list[Any]) -> int:
        if self.is_reset or self.is_shut:
            raise os_error(errno.EPIPE)
        room = self.tx.room
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "no room")
        data = b"".join(parts)[:room]
        self.tx.send(data)
        return len(data)


class Poller:
    """In the place of an epoll; also what a task waits for that awaits its descriptor."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._masks: dict[int, int] = {}
        self._marked: dict[int, None] = {}
        self._fd = network.new_fd(self)
        self.waiter: trio.lowlevel.Task | None = None

    def fileno(self) -> int:
        return self._fd

    def register(self, fd: int, mask: int) -> None:
        end = self._network.ends.get(fd)
        if isinstance(end, KernelEnd):
            end.poller = self
        self._masks[fd] = mask
        self.mark(fd)

    def modify(self, fd: int, mask: int) -> None:
        self._masks[fd] = mask
        self.mark(fd)

    def unregister(self, fd: int) -> None:
        del self._masks[fd]
        self._marked.pop(fd, None)
        end = self._network.ends.get(fd)
        if isinstance(end, KernelEnd):
            end.poller = None

    def mark(self, fd: int) -> None:
        """Something may have happened there."""
        self._marked[fd] = None
        if self.waiter is not None:
            task, self.waiter = self.waiter, None
            trio.lowlevel.reschedule(task)

    @property
    def is_ready(self) -> bool:
        for fd in list(self._marked):
            if self._events_of(fd):
                return True
            del self._marked[fd]
        return False

    def _events_of(self, fd: int) -> int:
        mask, end = self._masks.get(fd, 0), self._network.ends.get(fd)
        if not mask or not isinstance(end, KernelEnd):
            return 0
        return end.events & (mask | ERR | HUP)

    def poll(self, timeout: float = 0.0, maxevents: int = 256) -> list[tuple[int, int]]:
        found = []
        for fd in list(self._marked):
            events = self._events_of(fd)
            if not events:
                del self._marked[fd]
                continue
            found.append((fd, events))
            if self._masks[fd] & ONESHOT:
                self._masks[fd] = 0
        return found

    def close(self) -> None:
        self._network.ends.pop(self._fd, None)


class Socket:
    """In the place of a `socket.socket`, over a KernelEnd."""

    def __init__(self, network: Network, fd: int) -> None:
        self._network = network
        self._fd = fd
        self._end: KernelEnd | None = network.ends[fd]
        self._end.owner = network.current_owner()

    def fileno(self) -> int:
        return self._fd if self._end is not None else -1

    def detach(self) -> int:
        fd, self._end, self._fd = self._fd, None, -1
        return fd

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _open(self) -> KernelEnd:
        if self._end is None:
            raise os_error(errno.EBADF)
        return self._end

    def setblocking(self, flag: bool) -> None: ...

    def recv(self, size: int, flags: int = 0) -> bytes:
        return self._open.read(size, peek=bool(flags & real_socket.MSG_PEEK))

    def recv_into(self, room: Any, size: int = 0) -> int:
        data = self._open.read(size or len(room))
        room[: len(data)] = data
        return len(data)

    def send(self, data: Any) -> int:
        return self._open.write([data])

    def sendmsg(self, parts: Any) -> int:
        return self._open.write(list(parts))

    def shutdown(self, how: int) -> None:
        if self._open.is_reset:
            raise os_error(errno.ENOTCONN)
        self._open.shutdown_write()

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        end = self._open
        if (level, option) == (real_socket.SOL_SOCKET, real_socket.SO_LINGER):
            end.lingers = struct.unpack("ii", value) != (1, 0)
        elif (level, option) == (real_socket.SOL_SOCKET, real_socket.SO_RCVBUF):
            end.rx.window = 2 * value
            end.rx.pump()

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        end = self._open
        if (level, option) == (real_socket.SOL_SOCKET, real_socket.SO_RCVBUF):
            return end.rx.window
        return bytes([CLOSE_WAIT if end.rx.fin_arrived and not end.is_shut else 1] * max(1, size))

    def close(self) -> None:
        if self._end is not None:
            self._network.close_fd(self._fd)
            self._end, self._fd = None, -1


class Listener:
    """A listening socket of the product; `accept` waits for the next client's."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._waiting: deque[tuple[int, tuple[str, int]]] = deque()
        self._come = trio.Event()

    def enqueue(self, fd: int, address: tuple[str, int]) -> None:
        self._waiting.append((fd, address))
        self._come.set()

    async def accept(self) -> tuple[Socket, tuple[str, int]]:
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            self._come = trio.Event()
            await self._come.wait()
        fd, address = self._waiting.popleft()
        return Socket(self._network, fd), address

    def close(self) -> None: ...

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None: ...


class Network:
    """All connections of a world.

    Attributes:
        ends: by descriptor, the kernel's ends and pollers.
        current_owner: the process that runs now.

    Args:
        delay, rate: called for each new connection: its one-way delay in seconds, and bytes per second.
    """

    def __init__(
        self,
        agenda: Agenda,
        delay: Callable[[], float],
        rate: Callable[[], float],
        current_owner: Callable[[], object],
    ) -> None:
        self.agenda = agenda
        self.ends: dict[int, Any] = {}
        self.connections: dict[int, tuple[End, End]] = {}
        self.current_owner = current_owner
        self._delay = delay
        self._rate = rate
        self._fds = count(1_000_000)
        self._ports = count(20_000)
        self._numbers = count()
        self._models: dict[tuple[str, int], Callable[[ModelEnd], None]] = {}
        self._listeners: dict[tuple[str, int], Listener] = {}

    def new_fd(self, what: Any) -> int:
        fd = next(self._fds)
        self.ends[fd] = what
        return fd

    def close_fd(self, fd: int) -> None:
        end = self.ends.pop(fd, None)
        if isinstance(end, KernelEnd):
            end.poller = None
            end.close(with_reset=not end.lingers)

    def close_owned(self, owner: object) -> None:
        """A process has ended."""
        for fd in [fd for fd, end in self.ends.items() if isinstance(end, KernelEnd) and end.owner is owner]:
            self.close_fd(fd)

    def serve_model(self, address: tuple[str, int], accept: Callable[[ModelEnd], None] | None) -> None:
        """A model listens there; None: nobody does any more."""
        if accept is None:
            self._models.pop(address, None)
        else:
            self._models[address] = accept

    def listen(self, address: tuple[str, int]) -> Listener:
        return self._listeners.setdefault(address, Listener(self))

    def close_listeners(self, addresses: list[tuple[str, int]]) -> None:
        for address in addresses:
            self._listeners.pop(address, None)

    def _join(self, one: End, other: End, delay_s: float) -> None:
        there, back = Stream(self.agenda, delay_s), Stream(self.agenda, delay_s)
        there.rate = back.rate = self._rate()
        one.tx = other.rx = there
        one.rx = other.tx = back
        there.sender, there.receiver, back.sender, back.receiver = one, other, other, one
        number = next(self._numbers)
        self.connections[number] = (one, other)
        if not number % 256:
            self.connections = {
                number: ends
                for number, ends in self.connections.items()
                if not all(end.is_closed or end.is_reset for end in ends)
            }

    def connect_model(
        self, host: str, address: tuple[str, int], joined: Callable[[ModelEnd], None], failed: Callable[[str], None]
    ) -> None:
        """A model on that host dials a listener of the product, or another model."""
        delay_s = self._delay()

        def arrive() -> None:
            mine = ModelEnd(self.agenda, address)
            origin = (host, next(self._ports))
            if (listener := self._listeners.get(address)) is not None:
                theirs = KernelEnd(self.agenda, origin, 0, None)
                theirs.fd = self.new_fd(theirs)
                self._join(mine, theirs, delay_s)
                listener.enqueue(theirs.fd, origin)
            elif (accept := self._models.get(address)) is not None:
                other = ModelEnd(self.agenda, origin)
                self._join(mine, other, delay_s)
                accept(other)
            else:
                self.agenda.after(delay_s, failed, "refused")
                return
            self.agenda.after(delay_s, joined, mine)

        self.agenda.after(delay_s, arrive)

    async def dial(self, host: str, port: int) -> DialledStream:
        """In the place of `trio.open_tcp_stream`.

        Raises:
            OSError: nobody listens there.
        """
        delay_s = self._delay()
        await trio.sleep(2 * delay_s)
        accept = self._models.get((host, port))
        if accept is None:
            raise os_error(errno.ECONNREFUSED)
        mine = KernelEnd(self.agenda, (host, port), 0, self.current_owner())
        mine.fd = self.new_fd(mine)
        theirs = ModelEnd(self.agenda, ("gateway", next(self._ports)))
        self._join(mine, theirs, delay_s)
        accept(theirs)
        return DialledStream(self, Socket(self, mine.fd))

    async def wait_readable(self, sock: Any) -> None:
        """In the place of `trio.lowlevel.wait_readable`."""
        end = self.ends.get(sock if isinstance(sock, int) else sock.fileno())
        await trio.lowlevel.checkpoint()
        if isinstance(end, Poller):
            while not end.is_ready:
                end.waiter = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(_give_up_waiting(end))
        elif isinstance(end, KernelEnd):
            while not end.events & (IN | ERR | HUP):
                end.waiter = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(_give_up_waiting(end))

    def unread_bytes(self, fd: int) -> int:
        end = self.ends.get(fd)
        return len(end.rx.received) if isinstance(end, KernelEnd) else 0

    def is_empty(self, fd: int) -> bool:
        """In the place of `gateway.data.sockets.calls.is_socket_empty`."""
        end = self.ends.get(fd)
        return not (isinstance(end, KernelEnd) and end.events & (IN | ERR | HUP))

    def alive(self) -> Iterator[tuple[int, tuple[End, End]]]:
        """Connections that both ends still have, the oldest first."""
        for number, ends in list(self.connections.items()):
            if not any(end.is_closed or end.is_reset for end in ends):
                yield number, ends


def _give_up_waiting(end: Poller | KernelEnd) -> Callable[[Any], trio.lowlevel.Abort]:
    def give_up(_: Any) -> trio.lowlevel.Abort:
        end.waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    return give_up


class DialledStream(trio.abc.AsyncResource):
    """The part of a `trio.SocketStream` that the dialler uses, and whoever looks whether a broker is there."""

    def __init__(self, network: Network, sock: Socket) -> None:
        self.socket = sock
        self._network = network

    def setsockopt(self, *_: Any) -> None: ...

    async def send_all(self, data: bytes) -> None:
        self.socket.send(data)
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int = CHUNK) -> bytes:
        await self._network.wait_readable(self.socket)
        return self.socket.recv(max_bytes)

    async def aclose(self) -> None:
        self.socket.close()
        await trio.lowlevel.checkpoint()
