# Gateways of a simulated world: the product's own control process and workers, whole, as tasks of one thread. What is
# below them is simulated: sockets, the channel's bytes between the two, the parent process, the system's clocks,
# librdkafka. Their admin port is not opened.
#
# A killed process ends as by SIGKILL: its sockets are closed by the kernel, and nothing that its code does on its way
# out has an effect. One that is stopped, as by SIGSTOP, does nothing until it goes on; its sockets' buffers fill.

from __future__ import annotations

import contextlib
import errno
import math
import socket as real_socket
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final
from unittest import mock

import msgspec
import trio
from msgspec.structs import replace

from gateway import channel
from gateway.channel import ChannelClosed
from gateway.config.reading.loading import parse_settings
from gateway.control import app
from gateway.control.cluster.broker_quotas import BrokerQuotas
from gateway.control.fleet.exchange.usage_codec import RatePlace
from gateway.control.http_server import serve_http
from gateway.control.metrics import GatewayMetrics
from gateway.control.policies.service import PolicyService
from gateway.control.usage.usage_spool import UsageSpool
from gateway.data.relay import links, sides
from gateway.data.relay.no_shortcut import NoShortcut
from gateway.data.sockets import calls, reactor, slices
from gateway.data.sockets.inbound import SharedReadBuffer
from gateway.data.worker.worker import DataPlane, DataWorker
from gateway.parent_link import NO_ORIGIN, NOTHING_KEPT, KeptState, NewChannel
from gateway.storage.log_dirs import LogDirs
from policies.fleet.page import SharedPage, page_size
from policies.storage import Observation, ObservationFailed, Volume
from tests.simulation.clock import MONOTONIC_S, Agenda, Process, block, current_process
from tests.simulation.models.cluster import Cluster
from tests.simulation.models.librdkafka import simulated_clients
from tests.simulation.models.network import DialledStream, Listener, Network, Poller, Socket, os_error
from tests.variants import PURE
from tests.variants import module as variant_of

PORT: Final = 19_092
RESTART_S: Final = 0.3
LARGE_DISK: Final = 10**12  # bytes
CHANNEL_BUFFER: Final = 212_992  # bytes of unread messages that the kernel keeps of a channel …
MESSAGE_OVERHEAD: Final = 768  # … each with this much around it


class ChannelEnd:
    """One end of the socketpair between control and a worker: messages that have come."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.fd = network.new_fd(self)
        self.inbox: deque[tuple[bytes, int]] = deque()
        self.peer: ChannelEnd = self
        self.is_closed = False
        self.came, self.closed = trio.Event(), trio.Event()

    def close(self) -> None:
        for end in (self, self.peer):
            end.is_closed = True
            end.came.set()
            end.closed.set()
        self.network.ends.pop(self.fd, None)
        for _, fd in self.inbox:
            if fd >= 0:
                self.network.close_fd(fd)
        self.inbox.clear()


def make_channel(network: Network) -> tuple[ChannelEnd, ChannelEnd]:
    one, other = ChannelEnd(network), ChannelEnd(network)
    one.peer, other.peer = other, one
    return one, other


class MemoryChannel:
    """In the place of `gateway.channel.ProcessChannel`: the same messages, encoded and decoded."""

    def __init__(self, sock: ChannelEnd, decode: Callable[[bytes], Any]) -> None:
        self._end = sock
        self._decode = decode

    def fileno(self) -> int:
        return self._end.fd

    def post(self, message: Any, fd: int = -1) -> None:
        peer = self._end.peer
        if peer.is_closed or current_process.get().is_dead:
            if fd >= 0:
                self._end.network.close_fd(fd)
            return
        if fd >= 0:
            self._end.network.ends[fd].owner = peer
        peer.inbox.append((channel._encode(message), fd))
        peer.came.set()

    @property
    def _unwritten(self) -> list[bytes]:
        """What the kernel has no room for, because the other process doesn't read."""
        used, found = 0, []
        for data, _ in self._end.peer.inbox:
            used += len(data) + MESSAGE_OVERHEAD
            if used > CHANNEL_BUFFER:
                found.append(data)
        return found

    @property
    def backlog(self) -> int:
        return len(self._unwritten)

    @property
    def backlog_bytes(self) -> int:
        return sum(map(len, self._unwritten))

    async def wait_flushed(self) -> None:
        await trio.lowlevel.checkpoint()

    async def run(self) -> None:
        await self._end.closed.wait()

    def finish_writing(self) -> None:
        self._end.peer.is_closed = True
        self._end.peer.came.set()

    async def receive(self) -> tuple[Any, int]:
        end = self._end
        if not end.inbox:
            await trio.lowlevel.checkpoint()
        while not end.inbox:
            if end.is_closed:
                raise ChannelClosed("closed by the other process")
            end.came = trio.Event()
            await end.came.wait()
        data, fd = end.inbox.popleft()
        try:
            return self._decode(data), fd
        except msgspec.DecodeError as error:
            raise ChannelClosed(str(error)) from error

    def close(self) -> None:
        self._end.close()


class _OrderedSet(dict[Any, None]):
    """A set in the order of its making: links have no other."""

    def add(self, one: Any) -> None:
        self[one] = None

    def discard(self, one: Any) -> None:
        self.pop(one, None)


class ParentEnd:
    """In the place of `gateway.parent_link.ParentLink`."""

    def __init__(self, gateway: Gateway, process: Process, settings: bytes, kept: KeptState) -> None:
        self._gateway = gateway
        self._process = process
        self._sender, self._receiver = trio.open_memory_channel[tuple[NewChannel, ChannelEnd]](math.inf)
        self.leaving, self.stopping, self.started, self.reload = (trio.Event() for _ in range(4))
        self.drain_timeout_s = 0.0
        self.settings = settings
        self.origin = NO_ORIGIN
        self.kept = kept
        self.inherited = {
            name: (*address, gateway.network.listen(address)) for name, address in gateway.listeners.items()
        }
        self.started.set()

    async def run(self) -> None:
        await trio.sleep_forever()

    def bring_channel(self, message: NewChannel, end: ChannelEnd) -> None:
        self._sender.send_nowait((message, end))

    async def next_channel(self) -> tuple[NewChannel, ChannelEnd]:
        return await self._receiver.receive()

    async def listen(self, name: str, host: str, port: int) -> Listener:
        await trio.lowlevel.checkpoint()
        self._gateway.listeners[name] = (host, port)
        return self._gateway.network.listen((host, port))

    def close_listener(self, name: str) -> None:
        address = self._gateway.listeners.pop(name, None)
        if address is not None:
            self._gateway.network.close_listeners([address])

    def request_reconnect(self, worker: int) -> None:
        self._gateway.agenda.after(0.1, self._gateway.connect_worker, worker)

    def adopt_config(self, message: Any) -> None: ...

    def keep(self, **changes: Any) -> None:
        self.kept = self._gateway.kept = replace(self.kept, **changes)

    def report_health(self, problems: Any, lacking: Any) -> None:
        self._gateway.problems = tuple(problems)

    async def give_up(self, text: str) -> None:
        self._gateway.tell("gave up", text)
        await trio.lowlevel.checkpoint()


class _Child:
    """A process that runs: control or a worker."""

    def __init__(self, process: Process, parent: ParentEnd) -> None:
        self.process = process
        self.parent = parent
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.worker: DataWorker | None = None


class Gateway:
    """One gateway.

    Attributes:
        metrics, policies: of the present control process. `all_metrics`: of all there were.
        spool_dir: where its usage log is.
        is_frozen: all its processes are stopped, the parent too.
        tell: called with what happens, and about what.
    """

    def __init__(
        self, agenda: Agenda, network: Network, nursery: trio.Nursery, folder: Path, number: int, workers: int,
        config: str, tell: Callable[..., None],
    ) -> None:  # fmt: skip
        self.agenda = agenda
        self.network = network
        self.number = number
        self.name = f"gateway-{number}"
        self.host = f"gw{number}"
        self.listeners: dict[str, tuple[str, int]] = {}
        self.problems: tuple[str, ...] = ()
        self.kept = NOTHING_KEPT  # by its parent
        self.tell = tell
        self.spool_dir = folder / self.name
        self.metrics: GatewayMetrics | None = None
        self.all_metrics: list[GatewayMetrics] = []
        self.policies: PolicyService | None = None
        self.admin: tuple[Any, Process] | None = None  # the admin server's application, and whose it is
        self.wall_offset_s = 0.0
        self.full_spools = 0  # faults by which its spool's disk is full
        self.spools: list[tuple[Process, UsageSpool]] = []
        self._nursery = nursery
        self.worker_count = workers
        self._settings = (
            parse_settings(
                f"{config}\ngateway_id: {self.name}\nworkers: {workers}\n"
                f"listener: {{host: {self.host}, port: {PORT}}}\n"
                f"usage_log: {{spool_dir: {self.spool_dir}}}\n"
            )
            .model_dump_json(by_alias=True)
            .encode()
        )
        self._page = memoryview(bytearray(page_size(workers)))
        self.control: _Child | None = None
        self.workers: dict[int, _Child] = {}
        self.is_frozen = False
        self._controls = 0
        self._restarts: dict[int, int] = dict.fromkeys(range(workers), 0)
        self.is_stopped = True

    @property
    def bootstrap(self) -> tuple[str, int]:
        return self.host, PORT

    @property
    def children(self) -> list[_Child]:
        """Processes that are there."""
        return [child for child in (self.control, *self.workers.values()) if child and not child.process.is_dead]

    @property
    def is_answering(self) -> bool:
        """Whether its control is there, and not stopped."""
        return self.control is not None and not self.control.process.is_stopped

    @property
    def _restarts_children(self) -> bool:
        return not (self.is_stopped or self._nursery.cancel_scope.cancel_called)  # else the world has failed

    def start(self) -> None:
        self.is_stopped = False
        self._start_control()
        for number in range(self.worker_count):
            self._start_worker(number)

    async def stop(self, timeout_s: float = 20.0) -> None:
        """Stop as at SIGTERM: control drains the workers, and ends when all is told."""
        self.is_stopped = True
        control = self.control
        if control is not None:
            control.parent.drain_timeout_s = timeout_s
            control.parent.leaving.set()
            control.parent.stopping.set()
            with trio.move_on_after(timeout_s + 10):
                await control.ended.wait()
        for child in self.children:
            if child.process.is_stopped:
                self.kill(child)
        for child in list(self.workers.values()):
            child.scope.cancel()
        self.network.close_listeners(list(self.listeners.values()))
        self.listeners.clear()

    async def ask(self, path: str, query: str = "") -> bytes | None:
        """What the admin server answers; None: it is not there, or its process has ended or was stopped meanwhile."""
        if self.admin is None or self.admin[1].is_dead or self.admin[1].is_stopped:
            return None
        application, process = self.admin
        stops = process.stops
        answer: list[Any] = []

        async def receive() -> dict[str, Any]:
            await trio.lowlevel.checkpoint()
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            await trio.lowlevel.checkpoint()
            answer.append(message)

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": path,
            "raw_path": path.encode(), "query_string": query.encode(), "headers": [(b"host", b"localhost")],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 9190), "scheme": "http", "root_path": "",
        }  # fmt: skip
        token = current_process.set(process)
        try:
            await application(scope, receive, send)
        finally:
            current_process.reset(token)
        body = b"".join(message.get("body", b"") for message in answer[1:])
        if process.is_dead or process.stops > stops:
            return None
        if answer[0]["status"] != 200:
            self.tell("admin", f"{path}: {answer[0]['status']} {body[:200]!r}")
            return None
        return body

    # --- processes ----------------------------------------------------------------------------------------------------

    def _spawn(self, process: Process, child: _Child, main: Callable[[], Any], ended: Callable[[], None]) -> None:
        process.wall_offset_s = self.wall_offset_s
        token = current_process.set(process)
        try:
            self._nursery.start_soon(self._run_child, process, child, main, ended, name=process.name)
        finally:
            current_process.reset(token)

    async def _run_child(
        self, process: Process, child: _Child, main: Callable[[], Any], ended: Callable[[], None]
    ) -> None:
        try:
            with child.scope:
                await main()
        except* Exception as bugs:  # its own end: the judge's business
            if not process.is_dead:
                self.tell("crashed", f"{process.name}: {_leaf(bugs)!r}")
        finally:
            process.is_dead = True
            self._close_files(process)
            child.ended.set()
            ended()

    def _start_control(self) -> None:
        process = Process(f"{self.name}/control")
        parent = ParentEnd(self, process, self._settings, self.kept)
        child = self.control = _Child(process, parent)
        self._controls += 1
        run_control: Any = app.run
        self._spawn(process, child, lambda: run_control(parent), lambda: self._on_control_end(child))
        for number in self.workers:
            self.connect_worker(number)

    def _on_control_end(self, child: _Child) -> None:
        if self.control is child:
            self.control = None
            if self._restarts_children:
                self.agenda.after(RESTART_S, self._restart_control)

    def _restart_control(self) -> None:
        if self.is_frozen:
            self.agenda.after(RESTART_S, self._restart_control)
        elif self._restarts_children and self.control is None:
            self._start_control()

    def _start_worker(self, number: int) -> None:
        process = Process(f"{self.name}/worker-{number}")
        parent = ParentEnd(self, process, b"", NOTHING_KEPT)
        child = self.workers[number] = _Child(process, parent)

        async def main() -> None:
            page = None
            if self._page is not None:
                page = SharedPage(self._page, self.worker_count, number, contextlib.nullcontext, MONOTONIC_S)
            child.worker = DataWorker(parent, number, page)  # type: ignore[arg-type]
            await child.worker.run()

        self._spawn(process, child, main, lambda: self._on_worker_end(number, child))
        self.connect_worker(number)

    def _on_worker_end(self, number: int, child: _Child) -> None:
        if self.workers.get(number) is child:
            del self.workers[number]
            if self._restarts_children:
                self._restarts[number] += 1
                self.agenda.after(RESTART_S, self._restart_worker, number)

    def _restart_worker(self, number: int) -> None:
        if self.is_frozen:
            self.agenda.after(RESTART_S, self._restart_worker, number)
        elif self._restarts_children and number not in self.workers:
            self._start_worker(number)

    def connect_worker(self, number: int) -> None:
        """Give control and that worker a new channel."""
        control, child = self.control, self.workers.get(number)
        if control is None or child is None or control.process.is_dead or child.process.is_dead:
            return
        one, other = make_channel(self.network)
        message = NewChannel(number, self._restarts[number], self._controls)
        control.parent.bring_channel(message, one)
        child.parent.bring_channel(message, other)

    def kill(self, child: _Child | None) -> bool:
        """As by SIGKILL."""
        if child is None or child.process.is_dead:
            return False
        child.process.is_dead = True
        self._close_files(child.process)
        child.process.resume()  # to its end
        child.scope.cancel()
        return True

    def _close_files(self, process: Process) -> None:
        """What the kernel closes when a process ends: also the lock on its spool."""
        self.network.close_owned(process)
        for owner, spool in self.spools:
            if owner is process:
                spool.close()
        self.spools = [(owner, spool) for owner, spool in self.spools if owner is not process]

    def step_wall_clock(self, seconds: float) -> None:
        self.wall_offset_s += seconds
        for child in (self.control, *self.workers.values()):
            if child is not None:
                child.process.wall_offset_s = self.wall_offset_s


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# --- what is below the product ----------------------------------------------------------------------------------------


class _SocketModule:
    """The module `socket`, whose sockets are simulated ones."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def socket(self, *_: Any, fileno: int) -> Socket:
        return Socket(self._network, fileno)

    def close(self, fd: int) -> None:
        self._network.close_fd(fd)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_socket, name)


class _Ioctl:
    """The module `fcntl`, for the number of unread bytes."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def ioctl(self, fd: int, request: int, count: bytearray) -> int:
        count[:] = self._network.unread_bytes(fd).to_bytes(4, sys.byteorder)
        return 0


def _with_fake_defaults(modules: list[ModuleType], fakes: dict[Any, Any]) -> Iterator[Any]:
    """Patches of functions that have a real clock as a default."""
    seen = set()
    for module in modules:
        owners = [module, *(each for each in vars(module).values() if isinstance(each, type))]
        for owner in owners:
            for function in list(vars(owner).values()):
                if not isinstance(function, FunctionType) or id(function) in seen:
                    continue
                seen.add(id(function))
                if any(each in fakes for each in function.__defaults__ or () if callable(each)):
                    found = tuple(
                        fakes.get(each, each) if callable(each) else each for each in function.__defaults__ or ()
                    )
                    yield mock.patch.object(function, "__defaults__", found)
                named = function.__kwdefaults__ or {}
                if any(each in fakes for each in named.values() if callable(each)):
                    yield mock.patch.object(
                        function, "__kwdefaults__",
                        {key: fakes.get(each, each) if callable(each) else each for key, each in named.items()},
                    )  # fmt: skip


_REAL_CLOCKS: Final = {
    name: getattr(time, name) for name in ("time", "time_ns", "monotonic", "perf_counter", "process_time", "sleep")
}


@contextmanager
def simulated_system(network: Network, cluster: Cluster, gateway_of: Callable[[], Gateway | None]) -> Iterator[None]:
    """Within it the product's modules find what is simulated; `deterministic` comes first. `gateway_of`: the gateway
    whose process runs now.
    """
    modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] in ("gateway", "policies")]

    async def serve_nobody(_: Any, application: Any, *__: Any, **___: Any) -> None:
        if (gateway := gateway_of()) is not None:
            gateway.admin = application, current_process.get()
        await trio.sleep_forever()

    async def fetch_no_quotas(*_: Any) -> None:
        await trio.lowlevel.checkpoint()

    real_metrics, real_policies = GatewayMetrics.__init__, PolicyService.__init__
    real_plane, real_spool, real_append = DataPlane.__init__, UsageSpool.__init__, UsageSpool.append

    def begin_metrics(self: Any, *args: Any, **named: Any) -> None:
        real_metrics(self, *args, **named)
        if (gateway := gateway_of()) is not None:
            gateway.metrics = self
            gateway.all_metrics.append(self)

    def begin_policies(self: Any, *args: Any, **named: Any) -> None:
        real_policies(self, *args, **named)
        if (gateway := gateway_of()) is not None:
            gateway.policies = self

    def begin_spool(self: Any, *args: Any, **named: Any) -> None:
        real_spool(self, *args, **named)
        if (gateway := gateway_of()) is not None:
            gateway.spools.append((current_process.get(), self))

    async def dial(host: str, port: int) -> DialledStream:
        gateway, _, process = current_process.get().name.partition("/")
        if process == "control" and cluster.cut_off[gateway]:
            await trio.sleep(1.0)
            raise os_error(errno.ETIMEDOUT)
        return await network.dial(host, port)

    def append(self: Any, lines: list[bytes]) -> None:
        if (gateway := gateway_of()) is not None and gateway.full_spools:
            raise os_error(errno.ENOSPC)
        real_append(self, lines)

    def observe_disks(self: Any) -> Observation:
        return _observe_disks(cluster)

    def place_topics(self: Any, brokers: Collection[int]) -> dict[tuple[int, str], frozenset[str]]:
        return _place_topics(cluster, brokers)

    def begin_plane(self: Any, *args: Any, **named: Any) -> None:
        real_plane(self, *args, **named)
        self.connections.reactor.links = _OrderedSet()

    fake_clocks = {real: getattr(time, name) for name, real in _REAL_CLOCKS.items()}
    stand_ins: dict[Any, Any] = {
        channel.ProcessChannel: MemoryChannel,
        real_socket: _SocketModule(network),
        serve_http: serve_nobody,
        reactor.new_poller: lambda: Poller(network),
        slices.EventSlice: variant_of("gateway.data.sockets.slices", PURE).EventSlice,
        vars(links)["Shortcut"]: NoShortcut,
        **fake_clocks,
    }
    patches = [
        mock.patch.object(module, name, stand_ins[value])
        for module in modules
        for name, value in list(vars(module).items())
        if isinstance(value, (type, FunctionType, ModuleType)) or callable(value)
        if _is_hashable(value) and value in stand_ins
    ]
    patches += _with_fake_defaults(modules, fake_clocks)
    patches += [
        mock.patch.object(calls, "is_socket_empty", network.is_empty),
        mock.patch.object(sides, "fcntl", _Ioctl(network)),
        mock.patch.object(SharedReadBuffer, "open_pipe", _do_nothing),
        mock.patch.object(BrokerQuotas, "fetch_quotas", fetch_no_quotas),
        mock.patch.object(GatewayMetrics, "__init__", begin_metrics),
        mock.patch.object(PolicyService, "__init__", begin_policies),
        mock.patch.object(DataPlane, "__init__", begin_plane),
        mock.patch.object(UsageSpool, "__init__", begin_spool),
        mock.patch.object(UsageSpool, "append", append),
        mock.patch.object(trio.lowlevel, "wait_readable", network.wait_readable),
        mock.patch.object(trio.lowlevel, "notify_closing", _do_nothing),
        mock.patch.object(trio, "open_tcp_stream", dial),
        mock.patch.object(trio.from_thread, "run_sync", lambda call, *args: call(*args)),
        mock.patch.object(trio.socket, "from_stdlib_socket", lambda sock: sock),
    ]
    patches += [
        mock.patch.object(LogDirs, "observe", observe_disks),
        mock.patch.object(LogDirs, "place", place_topics),
        mock.patch.object(RatePlace, "__hash__", _hash_place),
    ]
    for patch in patches:
        patch.start()
    try:
        with simulated_clients(cluster, modules):
            yield
    finally:
        for patch in reversed(patches):
            patch.stop()


def _observe_disks(cluster: Cluster) -> Observation:
    """In the place of DescribeLogDirs at all brokers.

    Raises:
        ObservationFailed: none of them is there.
    """
    block(0.01)
    if not cluster.alive:
        raise ObservationFailed("no broker answers")
    volumes = tuple(
        Volume(node_id, "/data", size := round(min(broker.capacity, LARGE_DISK)), size - broker.used)
        for node_id, broker in cluster.brokers.items()
        if broker.is_up
    )
    return Observation(frozenset(cluster.alive), volumes, registered=frozenset(cluster.brokers))


def _place_topics(cluster: Cluster, brokers: Collection[int]) -> dict[tuple[int, str], frozenset[str]]:
    """The topics on these brokers' disks.

    Raises:
        ObservationFailed: one of them is not there.
    """
    block(0.01)
    if not set(brokers) <= set(cluster.alive):
        raise ObservationFailed("a broker doesn't answer")
    return {
        (node_id, "/data"): frozenset(
            topic.name
            for topic in cluster.topics.values()
            if any(node_id in partition.replicas for partition in topic.partitions)
        )
        for node_id in brokers
    }


def _hash_place(place: RatePlace) -> int:
    """By which reports are ordered: before Python 3.12 `hash(None)` is another in each process."""
    return zlib.crc32(f"{place.node_id} {place.topic}".encode())


def _do_nothing(*_: Any) -> None:
    """In the place of what needs the system."""


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
