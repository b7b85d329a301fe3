# Composition root of one worker: its conversation with control, and what it consists of once control has told it its
# settings.
#
# Data plane only: no metadata, no files, no HTTP, no library with threads of its own. A worker goes on with what it was
# last told when control dies; what it has counted is kept until a (new) control says that it is on disk.

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import trio

from gateway.channel import (
    PROTOCOL,
    Accepted,
    Answer,
    Brokers,
    Channel,
    ChannelClosed,
    Down,
    Drain,
    FindConnections,
    Groups,
    Hello,
    Orders,
    OtherRates,
    Parts,
    Policy,
    QuotaChanges,
    Quotas,
    Spooled,
    Storage,
    Topics,
    Up,
    Verdict,
    WorkerSettings,
    decode_down,
)
from gateway.data.connecting.connections import Connections
from gateway.data.shared.uplink import Uplink
from gateway.data.shared.world import World
from gateway.data.worker.clockwork import Clockwork
from gateway.data.worker.intervals import Intervals
from gateway.data.worker.listing import Listing
from gateway.data.worker.share_reporter import ShareReporter
from gateway.data.worker.storage_follower import StorageFollower
from policies.engine import Engine

if TYPE_CHECKING:
    from gateway.data.shared.world import Asker
    from gateway.supervisor import ParentLink
    from policies.fleet.page import Page

DRAIN_SHARE = 0.8  # of the time to stop: connections; the rest is for handing the last counts over


class Plane:
    """All that a worker consists of, from its first settings on."""

    def __init__(
        self, settings: WorkerSettings, uplink: Uplink, boot: str, number: int, page: Page | None = None
    ) -> None:
        engine = Engine(trio.current_time(), page=page)
        self._uplink = uplink
        self.world = World(settings, engine, uplink.log, uplink.want_metadata, self._ask, uplink.complain_of_client)
        self.connections = Connections(self.world, uplink)
        self.intervals = Intervals(boot, number, self.world.ledger, uplink)
        self.clockwork = Clockwork(self.world, self.connections, self.intervals, uplink)
        self.storage = StorageFollower(
            self.world, self.connections.reactor, self.clockwork, uplink, self.intervals.factor
        )
        self.listing = Listing(lambda: iter(self.connections.reactor.links), uplink.post_if_heard)
        self.connections.reactor.hurried = self._is_hurried
        self.shares = ShareReporter(engine, uplink.post_if_heard, uplink.log, lambda: uplink.is_up)

    async def run(self) -> None:
        """Relay until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.connections.reactor.run)
            nursery.start_soon(self.connections.reactor.run_timers)
            nursery.start_soon(self.clockwork.run)
            nursery.start_soon(self.storage.run)
            nursery.start_soon(self.shares.report, self.world.quotas)
            nursery.start_soon(self.shares.watch)
            nursery.start_soon(self.listing.run)

    def take(self, message: Down) -> None:
        """Take a message from control, of any kind but connections and the end."""
        now = trio.current_time()
        match message:
            case Orders(parts):
                for part in parts:
                    self.take(part)
            case WorkerSettings():
                self.connections.configure(message)
                self.world.configure(message)
                self.world.ledger.max_names = message.max_client_keys
                self.world.ledger.renew()  # which topics are protected, and who is internal, may have changed
            case Brokers(bootstrap):
                self.connections.dialling.bootstrap = bootstrap
                self.world.cluster.set_brokers(message)
            case Topics():
                self.world.set_topics(message)
                self.clockwork.tell_rates()
            case Policy():
                self.world.set_policy(message)
                self.clockwork.wake()
                self.clockwork.tell_rates()
            case Quotas():
                self.world.set_quotas(message, now)
                self.clockwork.wake()
            case QuotaChanges():
                self.world.change_quotas(message, now)
                self.clockwork.wake()
            case Groups():
                self.world.set_groups(message, now)
                self.clockwork.tell_rates()
            case Storage():
                self.storage.take(message)
            case Parts():
                self.shares.take_parts(message, now)
            case OtherRates(brokers, processes):
                self.world.engine.set_others(brokers, processes)
            case Answer(token):
                asker = self.world.questions.open.pop(token, None)
                if asker is not None:  # else its client has gone, or was told that control did not answer
                    asker.tell(message)
                    self.connections.reactor.settle(now)
            case FindConnections():
                self.listing.take(message)
            case Verdict():
                self.connections.arrivals.proxied.take(message)
            case Spooled(seq):
                self.intervals.confirm(seq)

    def _is_hurried(self) -> bool:
        """Each of these takes a turn of trio's for every step."""
        return bool(
            self.connections.opening or self._uplink.backlog or self.listing.is_busy or self.storage.is_resuming
        )

    def _ask(self, asker: Asker) -> None:
        self._uplink.ask(asker)
        self.connections.reactor.give_way()

    async def stop(self, timeout_s: float) -> None:
        """Answer the requests in flight, close everything, hand the last counts over."""
        now = trio.current_time()
        await self.connections.drain(now + timeout_s * DRAIN_SHARE)
        self.intervals.close(final=True)
        with trio.move_on_at(now + timeout_s):
            await self.intervals.all_confirmed()


class Worker:
    """One data-plane process. `plane`: None until control has told the settings. `page`: the limits' state that the
    workers of this gateway share, None for the only one.
    """

    def __init__(self, parent: ParentLink, number: int, page: Page | None = None) -> None:
        self.uplink = Uplink()
        self.plane: Plane | None = None
        self._parent = parent
        self._number = number
        self._page = page
        self._boot = uuid.uuid4().hex
        self._is_configured = trio.Event()
        self._control = 0  # the number of the one that it talks, or talked, to

    async def run(self) -> None:
        """Serve until the parent says stop, or is gone."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._parent.run)
            nursery.start_soon(self._keep_channel, nursery)
            nursery.start_soon(self._run_plane)
            await self._parent.stopping.wait()
            if self.plane is not None:
                await self.plane.stop(self._parent.drain_timeout_s)
            nursery.cancel_scope.cancel()

    async def _run_plane(self) -> None:
        await self._is_configured.wait()
        await self.configured.run()

    async def _keep_channel(self, dialling: trio.Nursery) -> None:
        """Talk to control; to the next one when it was started again."""
        while True:
            message, sock = await self._parent.next_channel()
            await self.converse(Channel(sock, decode_down), dialling, message.control)

    async def converse(self, channel: Channel[Up, Down], dialling: trio.Nursery, control: int) -> None:
        """Talk to that control until it is gone; connections begin in `dialling`."""
        self.uplink.channel = channel
        self._heed(channel)
        self._greet(lost=control != self._control)
        self._control = control
        try:
            async with trio.open_nursery() as talk:
                talk.start_soon(channel.run)
                while True:
                    message, fd = await channel.receive()
                    if isinstance(message, Accepted):
                        self.configured.connections.accept(message, fd, dialling)
                        continue
                    is_first = self.plane is None
                    self.obey(message)
                    if is_first:
                        self._heed(channel)
        except* ChannelClosed:
            pass  # the parent will bring a new one
        finally:
            self.uplink.channel = None
            if self.plane is not None:
                self.plane.shares.end()
                self.plane.connections.reactor.ignore(channel)
            channel.close()

    def _heed(self, channel: Channel[Up, Down]) -> None:
        """Connections that control hands over, and its orders, don't wait for the end of the reactor's slice."""
        if self.plane is not None:
            self.plane.connections.reactor.heed(channel)

    def _greet(self, *, lost: bool) -> None:
        """A new control knows nothing of us. `lost`: it is another one, not only another channel to it."""
        uplink, plane = self.uplink, self.plane
        if plane is None:
            uplink.post(Hello(PROTOCOL, self._number, os.getpid(), self._boot))
            uplink.post_lines()
            return
        plane.shares.begin()
        gateways, addresses = plane.world.engine.fleet.gateways, plane.connections.begin()
        uplink.post(
            Hello(PROTOCOL, self._number, os.getpid(), self._boot, plane.storage.held, gateways, True, addresses)
        )
        plane.world.questions.ask_again(lost=lost)  # the former control took them with it
        plane.connections.reactor.settle(trio.current_time())
        plane.connections.arrivals.proxied.ask_again(lost=lost)
        plane.intervals.post_again()
        uplink.post_lines()

    @property
    def configured(self) -> Plane:
        assert self.plane is not None, "control sends WorkerSettings before anything else"
        return self.plane

    def obey(self, message: Down) -> None:
        """Obey a message from control."""
        match message:
            case WorkerSettings() if self.plane is None:
                self.plane = Plane(message, self.uplink, self._boot, self._number, self._page)
                self._is_configured.set()
            case Drain(timeout_s):
                self._parent.drain_timeout_s = timeout_s
                self._parent.stopping.set()
            case _:
                self.configured.take(message)
