# Composition root of one worker: its conversation with control, and what it consists of once control has sent its
# settings.
#
# Data plane only: no metadata, no files, no HTTP, no library with threads of its own. A worker goes on with what it was
# last told when control dies; what it has counted is kept until a (new) control says that it is on disk.

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import trio
from msgspec.structs import replace

from gateway.channel import (
    PROTOCOL,
    SNAPSHOTS_BY_FACT,
    AcceptedConnection,
    AddressVerdict,
    AdminAnswer,
    BrokerTable,
    ChannelClosed,
    DrainRequest,
    FindConnections,
    GroupSnapshot,
    LimitShares,
    PeerRates,
    ProcessChannel,
    QuotaChanges,
    QuotaSnapshot,
    SnapshotBundle,
    SpoolConfirmation,
    StorageSnapshot,
    ThresholdPolicy,
    ToControl,
    TopicSnapshot,
    ToWorker,
    WorkerHello,
    WorkerSettings,
    decode_for_worker,
)
from gateway.data.connecting.connections import WorkerConnections
from gateway.data.shared.uplink import ControlUplink
from gateway.data.shared.worker_state import WorkerState
from gateway.data.worker.intervals import UnspooledIntervals
from gateway.data.worker.listing import ConnectionListing
from gateway.data.worker.periodic_tasks import PeriodicTasks
from gateway.data.worker.share_reporter import ShareReporter
from gateway.data.worker.storage_follower import StorageFollower
from policies.engine import PolicyEngine

if TYPE_CHECKING:
    from gateway.data.shared.worker_state import AdminQuerier
    from gateway.parent_link import ParentLink
    from policies.fleet.page import SharedPage

DRAIN_SHARE = 0.8  # of the time to stop: connections; the rest is for handing the last counts over
# Names of brokers that are looked up at the same time, each in a thread that waits for a name server. With trio's 40
# and one of 100 ms only 1,110 of 2,000 clients that came back at once reached their broker within connect_timeout.
MAX_NAME_LOOKUPS = 400


class DataPlane:
    """Everything that a worker consists of, from its first settings on."""

    def __init__(
        self, settings: WorkerSettings, uplink: ControlUplink, boot: str, number: int, page: SharedPage | None = None
    ) -> None:
        engine = PolicyEngine(trio.current_time(), page=page)
        self._uplink = uplink
        self._lacking_policies = set(SNAPSHOTS_BY_FACT["policies"])
        self.world = WorkerState(
            settings, engine, uplink.log, uplink.request_metadata, self._post_query, uplink.log_client_warning
        )
        self.connections = WorkerConnections(self.world, uplink)
        self.intervals = UnspooledIntervals(boot, number, self.world.ledger, uplink)
        self.periodic_tasks = PeriodicTasks(self.world, self.connections, self.intervals, uplink)
        self.storage_follower = StorageFollower(
            self.world, self.connections.reactor, self.periodic_tasks, uplink, self.intervals.lowest_factor
        )
        self.listing = ConnectionListing(lambda: iter(self.connections.reactor.links), uplink.post_if_reading)
        self.connections.reactor.is_hurried = self._is_hurried
        self.share_reporter = ShareReporter(
            engine, uplink.post_if_reading, uplink.log, lambda: uplink.is_connected, self.periodic_tasks.idle_watch
        )

    async def run(self) -> None:
        """Relay until cancelled."""
        async with trio.open_nursery() as nursery:
            wake_sleepers = self.periodic_tasks.idle_watch.wake_sleepers
            nursery.start_soon(self.connections.reactor.run, wake_sleepers)
            nursery.start_soon(self.connections.reactor.run_timers, wake_sleepers)
            nursery.start_soon(self.periodic_tasks.run)
            nursery.start_soon(self.storage_follower.run)
            nursery.start_soon(self.share_reporter.run_reports, self.world.quotas)
            nursery.start_soon(self.share_reporter.watch_expiry)
            nursery.start_soon(self.listing.run)

    @property
    def is_informed(self) -> bool:
        """Whether control has sent all policies: it may have ended in between."""
        return not self._lacking_policies

    def apply_message(self, message: ToWorker) -> None:
        """Apply a message from control, of any kind but connections and the end."""
        self._lacking_policies.discard(type(message))
        self.periodic_tasks.idle_watch.wake_sleepers()  # requests may go on with it
        now = trio.current_time()
        match message:
            case SnapshotBundle(parts):
                for part in parts:
                    self.apply_message(part)
            case WorkerSettings():
                self.connections.apply_settings(message)
                self.world.apply_settings(message)
                self.world.ledger.max_names = message.limits.max_client_keys
                self.world.ledger.advance_epoch()  # which topics are protected, and who is internal, may have changed
            case BrokerTable(bootstrap):
                self.connections.dialler.bootstrap = bootstrap
                self.world.cluster.set_brokers(message)
            case TopicSnapshot():
                self.world.set_topics(message)
                self.periodic_tasks.report_rates()
            case ThresholdPolicy():
                self.world.set_policy(message)
                self.periodic_tasks.wake_tasks()
                self.periodic_tasks.report_rates()
            case QuotaSnapshot():
                self.world.set_quotas(message, now)
                self.periodic_tasks.wake_tasks()
            case QuotaChanges():
                self.world.change_quotas(message, now)
                self.periodic_tasks.wake_tasks()
            case GroupSnapshot():
                self.world.set_groups(message, now)
                self.periodic_tasks.report_rates()
            case StorageSnapshot():
                self.storage_follower.receive_storage(message)
            case LimitShares():
                fleet = self.world.engine.fleet
                had_others = fleet.has_others
                self.share_reporter.apply_shares(message, now)
                if fleet.has_others != had_others:
                    self.periodic_tasks.wake_tasks()  # thresholds with a burst are paced among several
            case PeerRates(brokers, processes):
                self.world.engine.set_peer_traffic(brokers, processes)
            case AdminAnswer(token):
                asker = self.world.control_queries.pending.pop(token, None)
                if asker is not None:  # else its client has gone, or got an answer that control did not respond
                    asker.on_control_answer(message)
                    self.connections.reactor.run_deferred(now)
            case FindConnections():
                self.listing.enqueue_query(message)
            case AddressVerdict():
                self.connections.arrivals.proxied.on_verdict(message)
            case SpoolConfirmation(seq):
                self.intervals.confirm_spooled(seq)

    def _is_hurried(self) -> bool:
        """Whether one of trio's tasks needs several turns soon: opening connections, unwritten messages, a list of
        connections, or requests that a pause held.
        """
        return bool(
            self.connections.opening_count
            or self._uplink.backlog
            or self.listing.is_busy
            or self.storage_follower.is_resuming
        )

    def _post_query(self, asker: AdminQuerier) -> None:
        self._uplink.post_query(asker)
        self.connections.reactor.end_slice()

    async def stop(self, timeout_s: float) -> None:
        """Answer the requests in flight, close everything, and hand over the last counts."""
        now = trio.current_time()
        await self.connections.drain(now + timeout_s * DRAIN_SHARE)
        self.intervals.close_interval(final=True)
        with trio.move_on_at(now + timeout_s):
            await self.intervals.wait_all_confirmed()


class DataWorker:
    """One data-plane process. `plane`: None until control has sent the settings. `page`: the state of limits that the
    workers of this gateway share, and that outlives them.
    """

    def __init__(self, parent: ParentLink, number: int, page: SharedPage | None = None) -> None:
        self.uplink = ControlUplink()
        self.plane: DataPlane | None = None
        self._parent = parent
        self._number = number
        self._page = page
        self._boot = uuid.uuid4().hex
        self._is_configured = trio.Event()
        self._control_number = 0  # the number of the one that it talks, or talked, to

    async def run(self) -> None:
        """Serve until the parent says stop, or is gone."""
        trio.to_thread.current_default_thread_limiter().total_tokens = MAX_NAME_LOOKUPS
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._parent.run)
            nursery.start_soon(self._maintain_channel, nursery)
            nursery.start_soon(self._run_plane)
            await self._parent.stopping.wait()
            if self.plane is not None:
                await self.plane.stop(self._parent.drain_timeout_s)
            nursery.cancel_scope.cancel()

    async def _run_plane(self) -> None:
        await self._is_configured.wait()
        await self.configured_plane.run()

    async def _maintain_channel(self, dialling: trio.Nursery) -> None:
        """Serve the channel to control, and a new channel whenever control was restarted."""
        while True:
            message, sock = await self._parent.next_channel()
            await self.serve_channel(ProcessChannel(sock, decode_for_worker), dialling, message.control)

    async def serve_channel(
        self, channel: ProcessChannel[ToControl, ToWorker], dialling: trio.Nursery, control: int
    ) -> None:
        """Serve that control process until it is gone; connections begin in `dialling`."""
        self.uplink.channel = channel
        self._watch_channel()
        self._greet_control(lost=control != self._control_number)
        self._control_number = control
        try:
            async with trio.open_nursery() as talk:
                talk.start_soon(channel.run)
                while True:
                    message, fd = await channel.receive()
                    if isinstance(message, AcceptedConnection):
                        self.configured_plane.connections.accept_connection(message, fd, dialling)
                    else:
                        self.handle_control_message(message)
        except* ChannelClosed:
            pass  # the parent will bring a new one
        finally:
            self.uplink.channel = None
            if self.plane is not None:
                self.plane.share_reporter.on_control_lost()
                self.plane.connections.reactor.unwatch_channel(channel)
            channel.close()

    def _watch_channel(self) -> None:
        """Connections and messages from control must not wait for the end of the reactor's slice."""
        if self.plane is not None and self.uplink.channel is not None:
            self.plane.connections.reactor.watch_channel(self.uplink.channel)

    def _greet_control(self, *, lost: bool) -> None:
        """Introduce the worker to a new control process, which knows nothing of it. `lost`: it is another process, not
        only another channel.
        """
        uplink, plane = self.uplink, self.plane
        hello = WorkerHello(PROTOCOL, self._number, os.getpid(), self._boot)
        if plane is None:
            uplink.post(hello)
            uplink.post_log_backlog()
            return
        plane.share_reporter.on_control_started()
        plane.periodic_tasks.on_control_started()
        uplink.post(
            replace(
                hello,
                storage=plane.storage_follower.last_storage,
                gateways=plane.world.engine.fleet.gateways,
                informed=plane.is_informed,
                addresses=plane.connections.reset_for_control(),
            )
        )
        plane.world.control_queries.resend_queries(lost=lost)  # the former control took them with it
        plane.connections.reactor.run_deferred(trio.current_time())
        plane.connections.arrivals.proxied.resend_queries(lost=lost)
        plane.intervals.resend_unspooled()
        uplink.post_log_backlog()

    @property
    def configured_plane(self) -> DataPlane:
        assert self.plane is not None, "control sends WorkerSettings before anything else"
        return self.plane

    def handle_control_message(self, message: ToWorker) -> None:
        """Carry out a message from control."""
        match message:
            case WorkerSettings() if self.plane is None:
                self.plane = DataPlane(message, self.uplink, self._boot, self._number, self._page)
                self._watch_channel()
                self._is_configured.set()
            case DrainRequest(timeout_s):
                self._parent.drain_timeout_s = timeout_s
                self._parent.stopping.set()
            case _:
                self.configured_plane.apply_message(message)
