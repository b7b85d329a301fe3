# The messages between the control process and a worker, and how they are framed on their socketpair.
#
# One message = 4 bytes of length (big-endian) and one msgpack-encoded struct. A file descriptor travels as SCM_RIGHTS
# with the first byte of its message, and the length's top bit says that there is one, so that descriptors and messages
# can't be paired wrongly.
# The payloads are the policies' own types; only the envelopes are defined here.
# Both ends are of one release: PROTOCOL guards against a worker that outlived an upgrade of control (and the reverse).
#
# Down go immutable snapshots (a worker replaces; QuotaChanges alone it merges); up go numbers and events. Neither side
# ever blocks the other: `ProcessChannel.post` queues, one task per end writes.

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Generic, Literal, TypeVar

import msgspec
import trio

from gateway.listener_names import DEFAULT_LISTENER
from gateway.system.sockets import network_of_peer
from gateway.tls.broker_tls import BrokerTls
from gateway.tls.certificate_names import AdvertisedHost
from gateway.tls.certificates import ListenerTls
from gateway.tls.server_names import ServerNames
from gateway.worker_config import WorkerConfig
from policies.decision import Mode
from policies.engine import OnExceed
from policies.fleet.keys import FleetKey
from policies.fleet.shares import LimitDemand, ShareGrant
from policies.groups.group_limiters import GroupLimitValues, GroupRate
from policies.meters.broker_meters import PeerTraffic
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.quota_limiters import QuotaRate
from policies.storage import AffectedTopics, KeptVolumes, StorageFactor
from policies.thresholds.broker_limits import BrokerRate

PROTOCOL = 14
MAX_QUOTA_RATES = 2000
# Of histograms, in seconds: of a loopback's round trip, of a send through a WAN, of the longest that a client waits.
LATENCY_BOUNDS = (
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0,
)  # fmt: skip
API_REQUESTS = "api_requests_"  # what names of counts by API key begin with
MAX_MESSAGE = 256 * 2**20  # a snapshot of a very large cluster's topics; beyond it something is wrong
_LENGTH = struct.Struct(">I")
_HAS_FD = 1 << 31
_FD_SIZE = array("i").itemsize
# Of the kernel's memory, or of descriptors on their way to processes that don't read: they pass.
_SHORTAGES: Final = frozenset({errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS})
_SHORTAGE_PAUSE_S: Final = 0.1


class ChannelClosed(Exception):
    """The other process is gone."""


# --- down: control -> worker ------------------------------------------------------------------------------------------


class TerminatedSasl(msgspec.Struct, frozen=True):
    """SASL that ends at the gateway.

    Attributes:
        mechanisms: that clients are offered; none: who they are is known from their certificates.
        authenticates_upstream: the gateway authenticates to brokers for each client.
    """

    mechanisms: tuple[str, ...]
    authenticates_upstream: bool = False


class ListenerSettings(msgspec.Struct, frozen=True):
    """The beginning of connections to one listener."""

    tls: ListenerTls | None = None  # None: plain TCP
    names: ServerNames | None = None  # that tell brokers apart; None: their ports do
    advertised_hosts: tuple[
        AdvertisedHost, ...
    ] = ()  # the hosts that clients are told, which the certificate must be for
    sasl: TerminatedSasl | None = None  # None: SASL passes through


class WorkerSettings(WorkerConfig, frozen=True, tag=True):
    """First message: the facts that a worker needs before its first connection. Those of the configuration are as its
    fields say, but of `limits.max_buffered_bytes` and `.max_connections_per_principal` a worker has its part.
    """

    protocol: int
    gateway: str  # name of this gateway in usage records
    protected_topics: tuple[str, ...] = ()  # the gateway's own: clients may not produce to them
    managed_apis: tuple[int, ...] = ()  # requests with these API keys are for control to answer: see AdminQuery
    listeners: dict[str, ListenerSettings] = msgspec.field(
        default_factory=lambda: {DEFAULT_LISTENER: ListenerSettings()}
    )
    upstream_tls: BrokerTls | None = None  # what relayed connections to brokers begin with
    rollout_key: bytes = b""  # see policies.definitions.rollout
    upstream_sasl: bool = False  # brokers want clients to authenticate; where False that is learned from their answers


class UpstreamBroker(msgspec.Struct, frozen=True):
    """One upstream broker."""

    node_id: int
    host: str
    port: int


class BrokerTable(msgspec.Struct, frozen=True, tag=True):
    """Every upstream broker that can be reached through some listener; and by listener, the addresses (host, port) that
    its clients are told. A broker that is missing there is withheld from them.
    """

    bootstrap: tuple[tuple[str, int], ...]
    brokers: tuple[UpstreamBroker, ...]
    addresses: dict[str, dict[int, tuple[str, int]]] = {}


class TopicSnapshot(msgspec.Struct, frozen=True, tag=True):
    """From metadata: the topics that each broker leads a partition of (no internal ones), and topic ids."""

    leads: dict[int, tuple[str, ...]]
    ids: dict[bytes, str] = {}


class ThresholdPolicy(msgspec.Struct, frozen=True, tag=True):
    """V1 thresholds in bytes per second; `total` None = no limit; `totals`: of brokers with their own.
    `enforce_percent`: of the clients, for which they are enforced (policies.definitions.rollout).
    `burst_s`: policies.thresholds.broker_limits.ThresholdRules.
    """

    version: int
    total: float | None = None
    topics: dict[str, float] = {}
    on_exceed: OnExceed = "reject"
    mode: Mode = "enforce"
    totals: dict[int, float] = {}
    enforce_percent: float = 100.0
    burst_s: float = 0.0


class QuotaSnapshot(msgspec.Struct, frozen=True, tag=True):
    """All client quotas, as policies.quotas.store.QuotaStore.from_validated has them: a worker judges none of them
    again. `total_out`, `totals_out`: the totals that consumers have shares of, of each broker and of those with their
    own.
    """

    version: int
    entries: dict[Entity, dict[QuotaKey, float]] = {}
    mode: Mode = "enforce"
    enforce_percent: float = 100.0
    total_out: float | None = None
    totals_out: dict[int, float] = {}


# To make and judge 10,000 quotas takes a worker 50 ms, in which all its clients wait; to decode them takes 5.
class QuotaChanges(msgspec.Struct, frozen=True, tag=True):
    """The entities whose client quotas are others than those told last, with all of their values; none: {}. Everything
    else of that `QuotaSnapshot` stays.
    """

    entries: dict[Entity, dict[QuotaKey, float]]


class StorageSnapshot(msgspec.Struct, frozen=True, tag=True):
    """The storage factor that multiplies every produce limit, and the one that follows it. Times are
    `time.monotonic()`, which is one clock for all processes of a host, so a worker can follow its last orders when
    control is gone.

    `affected`: the topics that the factor is about, by volume, each once and with its own factor, the strictest first;
    None: all of them. `following` is about all.
    """

    factor: StorageFactor = StorageFactor(1.0)
    mode: Mode = "enforce"
    valid_until: float | None = None  # None: until told otherwise
    following: StorageFactor = StorageFactor(1.0, "fallback")  # in force from then on
    affected: tuple[AffectedTopics, ...] | None = None
    kept_volumes: dict[int, KeptVolumes] = {}  # for a control that is started again, see policies.storage.VolumeKeeper


class GroupSnapshot(msgspec.Struct, frozen=True, tag=True):
    """All resource groups, and their attachments; a namespace's replaces its tenant's (PIP-82).

    Patterns as in the configuration: policies.groups.finder.GroupResolver reads them.
    """

    version: int
    groups: dict[str, GroupLimitValues] = {}
    tenants: dict[str, str] = {}
    namespaces: dict[str, str] = {}  # "tenant/namespace"
    topic_pattern: str = "{tenant}.{namespace}.{topic}"
    principal_pattern: str = ""
    mode: Mode = "enforce"
    enforce_percent: float = 100.0


Snapshot = (
    WorkerSettings | BrokerTable | TopicSnapshot | ThresholdPolicy | QuotaSnapshot | GroupSnapshot | StorageSnapshot
)
# By the fact that they tell (gateway/control/facts.py), in the order in which a worker needs them. How policies are
# enforced is said with the policies. They are three, and the cluster two, because each may be large.
SNAPSHOTS_BY_FACT: Final[Mapping[str, tuple[type, ...]]] = {
    "configuration": (WorkerSettings,),
    "cluster": (BrokerTable, TopicSnapshot),
    "policies": (ThresholdPolicy, QuotaSnapshot, GroupSnapshot),
    "storage_factor": (StorageSnapshot,),
}


class SnapshotBundle(msgspec.Struct, frozen=True, tag=True):
    """Snapshots that hold together: a worker goes by all of them from one moment on, between two requests. All that is
    new of a fact comes in one.
    """

    snapshots: tuple[Snapshot | QuotaChanges, ...]


class LimitShares(msgspec.Struct, frozen=True, tag=True):
    """This gateway's shares of limits that hold over several, by fleet key (policies.fleet.keys): those that changed.

    `gateways`: that share: a key without a share yet begins with limit / gateways. `settle_s`: two cycles: for so long
    the share of a gateway whose clients begin to wait is provisional. Told at once where this gateway is alone as well,
    with gateways 1.
    """

    grants: dict[FleetKey, ShareGrant] = {}
    gateways: int = 1
    valid_until: float | None = None  # time.monotonic(); later `fallback` holds; None: until told otherwise
    settle_s: float = 2.0
    # So long after control's end other gateways still leave us our shares; then, and after `valid_until`, only a floor
    # is ours. None: there are none, or they can't be heard.
    lease_s: float | None = None
    whole: bool = False  # what isn't in `grants` has none


class PeerRates(msgspec.Struct, frozen=True, tag=True):
    """The rates of all other workers of the fleet, by broker: V1's thresholds limit the sum. A broker that is
    missing here gets nothing from others. `processes`: workers of all gateways.
    """

    brokers: dict[int, PeerTraffic] = {}
    processes: int = 1


class SaslIdentity(msgspec.Struct, frozen=True):
    """The identity of a client whose SASL exchange has ended at the gateway, and how long that holds, from now on in ms
    (0: as long as the connection).
    """

    principal: str
    session_ms: int = 0  # later the client has to authenticate again (KIP-368)
    upstream_ms: int | None = None  # later the gateway has to; None: the broker has not been told anew


class AdminAnswer(msgspec.Struct, frozen=True, tag=True):
    """The fate of the request that an `AdminQuery` was about: one of four.

    `upstream`: this frame is for the broker, on the same connection; ask again with its answer and with `memo`.
    `client`: this frame is the client's answer. `closes`: there is none, and the connection ends, for `why`. None of
    these: the request passes as it is; or the broker has been told who the client is, if the request was none.
    """

    token: int
    upstream: bytes = b""
    client: bytes = b""
    memo: bytes = b""  # for control alone, which sends it back
    identity: SaslIdentity | None = None  # SASL has come to its end
    why: str = ""  # SASL has failed, for the log: the connection ends behind the client's answer
    # The client's fault: its request can't be read. Or the gateway's own: there was an error in control.
    closes: Literal["", "malformed", "error"] = ""


class AcceptedConnection(msgspec.Struct, frozen=True, tag=True):
    """A client's connection; its descriptor travels with this message. `broker` None: it came to the listener's own
    port, the bootstrap's, and where server names tell brokers apart everybody's. `proxied`: `peer` is a proxy, whose
    header says where the client is.
    """

    broker: int | None
    peer: str
    proxied: bool = False
    listener: str = DEFAULT_LISTENER

    @property
    def address(self) -> str:
        """The key that it is counted by. One whose client isn't known yet must not use up that of its proxy."""
        network = network_of_peer(self.peer)
        return f"via {network}" if self.proxied else network


class AddressVerdict(msgspec.Struct, frozen=True, tag=True):
    """Whether the connection that a `LocatedConnection` was about may go on. One that may not is counted no longer, at
    that `address`.
    """

    token: int
    is_welcome: bool
    address: str


class FindConnections(msgspec.Struct, frozen=True, tag=True):
    """Which connections are there? None: any. At most `limit` are told, the longest muted first, then the oldest."""

    token: int = 0  # names the question, for its answer
    limit: int = 100
    principal: str | None = None
    client_id: str | None = None
    address: str | None = None
    broker: int | None = None
    muted: bool = False  # only those


class SpoolConfirmation(msgspec.Struct, frozen=True, tag=True):
    """Intervals up to and including `seq` are on disk: the worker may forget them."""

    seq: int


class DrainRequest(msgspec.Struct, frozen=True, tag=True):
    """Finish: answer the requests in flight, then close every connection, at the latest after `timeout_s`."""

    timeout_s: float


# --- up: worker -> control --------------------------------------------------------------------------------------------


class WorkerHello(msgspec.Struct, frozen=True, tag=True):
    protocol: int
    worker: int
    pid: int
    boot: str  # a new one at every start of a worker: together with seq it names an interval once and for all
    # the factor it was told last: a new control goes on with it, not with the fallback
    storage: StorageSnapshot | None = None
    gateways: int = 1  # likewise: that share; 1: alone, or just started
    informed: bool = False  # it has had all policies, so until a new control knows better they hold
    addresses: dict[str, int] = {}  # clients' connections that it has, by address


class UsageRow(msgspec.Struct, frozen=True, array_like=True):
    """The outcomes of one (broker, topic, principal, client id, outcome, reason, group, software) within one interval.

    There may be two of the same: one of the bytes of which `repeats` can be told, one of those of which it can't.
    """

    broker: int  # -1: the bootstrap connection's broker is not known yet
    topic: str
    principal: str
    client_id: str
    outcome: str  # policies.usage.OUTCOMES
    reason: str  # "" where the outcome says it all
    bytes: int
    messages: int
    requests: int  # Produce requests with at least one partition of that topic in this row
    delay_ms: int = 0
    group: str = ""  # resource group that the bytes are charged to
    software: str = ""  # the client's name of its software (KIP-511)
    repeats: int | None = None  # those of `bytes` that had been rejected when they came before; None: can't be told


class UsageInterval(msgspec.Struct, frozen=True, tag=True):
    """One second of a worker. Sent again on a new channel until `SpoolConfirmation` confirms it.

    With `seq` -1 it holds counts only: no part of the accounts, neither kept nor confirmed.
    """

    boot: str
    worker: int
    seq: int
    start_ms: int  # Unix time
    end_ms: int
    rows: tuple[UsageRow, ...]
    counts: dict[str, int] = {}  # deltas, names in COUNT_NAMES
    final: bool = False  # the worker ended in order; nothing follows
    storage_factor: float | None = None  # the lowest that was enforced; None where storage protection is off


class WorkerRates(msgspec.Struct, frozen=True, tag=True):
    """At every tick of the meters (5 s) and after a change of policy."""

    brokers: tuple[BrokerRate, ...]
    warnings: tuple[str, ...] = ()  # for example a topic whose implicit share is 0
    quotas: tuple[QuotaRate, ...] = ()  # the busiest, at most MAX_QUOTA_RATES
    groups: tuple[GroupRate, ...] = ()  # of all resource groups with traffic


class DemandReport(msgspec.Struct, frozen=True, tag=True):
    """Several times a second, while there is anything new: uses that changed (policies.demand), by limit. `whole`: all
    of them, those not listed are idle.
    """

    demands: dict[FleetKey, LimitDemand]
    whole: bool = False


class WorkerGauges(msgspec.Struct, frozen=True, tag=True):
    """Several times a second at most: the present state."""

    connections: int
    muted: int
    buffered_bytes: int
    dialling: int = 0  # connections on their way to a broker, not among the others yet
    # `AcceptedConnection` that came through this channel: what control gave and is missing here is on its way
    accepted_count: int = 0


class DurationBuckets(msgspec.Struct, frozen=True, array_like=True):
    """Durations. `counts`: of those up to each of LATENCY_BOUNDS and above the bound before; at last, of longer ones.
    `total`: their sum in seconds.
    """

    counts: tuple[int, ...]
    total: float


class LatencyReport(msgspec.Struct, frozen=True, tag=True):
    """Once a second: durations since the last time (gateway.data.shared.latencies says what each is)."""

    requests: DurationBuckets
    round_trips: dict[int, DurationBuckets] = {}  # by broker
    waits: dict[str, DurationBuckets] = {}  # by reason
    batches: DurationBuckets | None = None  # of socket events
    cpu_s: float = 0.0  # CPU time of this worker since its start


class EndedConnections(msgspec.Struct, frozen=True, tag=True):
    """Clients' connections that have ended since the last time, by address."""

    addresses: dict[str, int]


class ConnectionInfo(msgspec.Struct, frozen=True, array_like=True):
    """A client's connection, joined to that broker; -1: not known yet."""

    peer: str
    broker: int
    principal: str
    client_id: str
    software: str  # name and version (KIP-511)
    age_s: float
    idle_s: float  # since the last byte from either side
    in_flight: int  # requests that are owed an answer
    muted_s: float  # for so long its next request of some kind waits; 0.0: none does
    why: str  # the reason of that, one of policies.verdict's; "" where none is known
    id: str = ""  # in the log


class FoundConnections(msgspec.Struct, frozen=True, tag=True):
    """The answer to FindConnections. `total`: relayed connections of this worker; `matched`: those asked for."""

    token: int
    total: int
    matched: int
    connections: tuple[ConnectionInfo, ...]


class LocatedConnection(msgspec.Struct, frozen=True, tag=True):
    """A connection through a proxy: it was counted by the address `before` and is by `address` from here on. Control
    answers with a `AddressVerdict`.
    """

    token: int
    before: str
    address: str


class LogMessage(msgspec.Struct, frozen=True, tag=True):
    """A line for the gateway's log: workers write none themselves. `fields`: of gateway.log.logs.FIELDS, those that it
    is about.
    """

    level: str  # "info" | "warning" | "error"
    text: str
    fields: dict[str, str | int] = {}


class RefreshRequest(msgspec.Struct, frozen=True, tag=True):
    """The worker saw something newer than its snapshot (a broker without a listener, a topic it doesn't know)."""

    what: str  # "metadata"


class AdminQuery(msgspec.Struct, frozen=True, tag=True):
    """A client's admin request that control has to answer, with all that control must know about it: it keeps nothing
    between two questions, so one that was started again can answer as well.
    """

    token: int  # names the question, for its `AdminAnswer`
    until: float  # time.monotonic(); after it the client has been told that control didn't answer
    peer: str
    principal: str
    request: bytes  # the frame without its size prefix, as are all of these
    memo: bytes = b""  # what control said the last time …
    answer: bytes = b""  # … and what the broker answered to that
    # Of an exchange of SASL that ends at the gateway, where `request` is a step of one. Without a request: the broker
    # is to be told who the client is.
    mechanism: str = ""
    listener: str = DEFAULT_LISTENER  # whose credentials count


# Names of UsageInterval.counts; control exports each as a counter, present at 0 from the start.
# Beside them API_REQUESTS with an API key, of requests other than Produce.
COUNT_NAMES = (
    "connections_accepted",
    "requests",  # whole request frames from clients, of every API
    "answers_local",  # answered by the gateway itself
    "answers_merged",
    "requests_malformed",
    "tls_handshakes_failed",
    # Of these, on listeners where server names tell brokers apart: server_names.NAME_FAULT_REASONS.
    "server_names_refused_no_server_name",
    "server_names_refused_unknown_server_name",
    "authentications_failed",  # SASL, at the gateway or at a broker
    "upstream_tls_handshakes_failed",
    "upstream_failed",  # dial failed or the broker closed first
    "brokers_withheld",  # a broker left out of an answer because it has no listener
    "answers_not_followed",  # of a layout that we don't know: addresses in them, if any, were not hidden
    "topic_ids_unknown",  # requests refused in part because no broker told a topic's name in time
    "mutes",
    "fetches_delayed",  # times that a client quota or resource group holds the next Fetch request
    "fetch_delay_ms",
    "fetches_would_be_delayed",  # in mode observe
    "disconnects_client",
    "disconnects_upstream",
    "disconnects_malformed",
    "disconnects_unauthenticated",  # a request that has to come behind authentication
    "disconnects_identity",  # the principal is ambiguous, or changed
    "disconnects_error",
    "disconnects_too_large",  # a request larger than its API needs, with too many partitions or tagged fields
    "disconnects_timeout",
    "disconnects_age",  # limits.max_connection_age
    "disconnects_first_byte",  # nothing came, or no whole head of a request
    "disconnects_slow_request",  # a frame that did not come fast enough
    "disconnects_slow_reader",  # answers that the client did not read
    "disconnects_memory",  # it waited for memory when that was far exceeded
    "disconnects_idle",
    "disconnects_principal_limit",  # more connections of one principal than limits.max_connections_per_principal
    "disconnects_drain",
)

ToWorker = (
    Snapshot
    | QuotaChanges
    | SnapshotBundle
    | LimitShares
    | PeerRates
    | AdminAnswer
    | AcceptedConnection
    | FindConnections
    | AddressVerdict
    | SpoolConfirmation
    | DrainRequest
)
ToControl = (
    WorkerHello
    | UsageInterval
    | WorkerRates
    | DemandReport
    | WorkerGauges
    | LatencyReport
    | EndedConnections
    | LocatedConnection
    | FoundConnections
    | LogMessage
    | RefreshRequest
    | AdminQuery
)

_encode = msgspec.msgpack.Encoder().encode
decode_for_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_for_control = msgspec.msgpack.Decoder(ToControl).decode

Posted = TypeVar("Posted", bound=msgspec.Struct)
Received = TypeVar("Received")


class ProcessChannel(Generic[Posted, Received]):
    """One end of the socketpair: `ProcessChannel[ToControl, ToWorker](sock, decode_for_worker)` is a worker's,
    `ProcessChannel[ToWorker, ToControl](sock, decode_for_control)` control's. The parent has messages of its own in
    the same framing.

    `post` never waits. `run` writes the posted messages until cancelled, or the other end takes no more: what that has
    sent before is still to be received, and `receive` says that it is gone.
    """

    def __init__(self, sock: socket.socket, decode: Callable[[bytes], Received]) -> None:
        sock.setblocking(False)
        self._sock = trio.socket.from_stdlib_socket(sock)
        self._decode = decode
        self._outgoing: deque[tuple[memoryview, int]] = deque()
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._buffer = bytearray()
        self._fds: deque[int] = deque()

    def fileno(self) -> int:
        """The number of this end's socket; -1 once it is closed."""
        return self._sock.fileno()

    def post(self, message: Posted, fd: int = -1) -> None:
        """Queue a message; a descriptor given with it is owned by the channel from here on and closed once sent."""
        body = _encode(message)
        if len(body) > MAX_MESSAGE:
            # The receiver would end the channel, and get the same message again.
            raise ValueError(f"{type(message).__name__} of {len(body)} bytes, at most {MAX_MESSAGE} are allowed")
        self._outgoing.append((memoryview(_LENGTH.pack(len(body) | (_HAS_FD if fd >= 0 else 0)) + body), fd))
        self._idle = trio.Event() if self._idle.is_set() else self._idle
        self._wake.set()

    @property
    def backlog(self) -> int:
        """Messages posted and not yet written."""
        return len(self._outgoing)

    @property
    def backlog_bytes(self) -> int:
        """Their size."""
        return sum(len(view) for view, _ in self._outgoing)

    async def wait_flushed(self) -> None:
        """Return when everything posted so far has been written to the socket."""
        while self._outgoing:
            await self._idle.wait()

    async def run(self) -> None:
        try:
            while True:
                while self._outgoing:
                    try:
                        await self._write_some()
                    except OSError as error:
                        if error.errno not in _SHORTAGES:
                            raise
                        await trio.sleep(_SHORTAGE_PAUSE_S)
                self._idle.set()
                self._wake = trio.Event()
                await self._wake.wait()
        except trio.ClosedResourceError:
            pass
        except OSError:
            self.finish_writing()  # if the other end is there nevertheless, it must not wait for the rest

    async def _write_some(self) -> None:
        data, fd = self._outgoing[0]
        if fd >= 0:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]).tobytes())]
            sent = await self._sock.sendmsg([data], rights)
        else:
            sent = await self._sock.send(data)
        if sent < len(data):
            self._outgoing[0] = data[sent:], -1
        else:
            self._outgoing.popleft()
        if fd >= 0:  # behind that, or `close` might close the number once more, as another file's
            socket.close(fd)

    async def receive(self) -> tuple[Received, int]:
        """The next message and the descriptor that came with it, or -1.

        An `AcceptedConnection` with -1 is a connection that the kernel dropped because this process has too many open
        files.

        Raises:
            ChannelClosed: the other end is gone, or is of another release; a half-received message is of no use.
        """
        buffer = self._buffer
        while True:
            if len(buffer) >= 4:
                (prefix,) = _LENGTH.unpack_from(buffer)
                size = prefix & ~_HAS_FD
                if size > MAX_MESSAGE:
                    raise ChannelClosed(f"a message of {size} bytes announced")
                if len(buffer) >= 4 + size:
                    return self._decode_message(size), self._fds.popleft() if prefix & _HAS_FD else -1
            await self._read_some()

    def _decode_message(self, size: int) -> Received:
        body = bytes(memoryview(self._buffer)[4 : 4 + size])
        del self._buffer[: 4 + size]
        try:
            return self._decode(body)
        except msgspec.DecodeError as error:
            raise ChannelClosed(f"a message that this release doesn't know: {error}") from error

    async def _read_some(self) -> None:
        try:
            data, ancillary, flags, _ = await self._sock.recvmsg(262_144, socket.CMSG_SPACE(16 * _FD_SIZE))
        except (OSError, trio.ClosedResourceError) as error:
            raise ChannelClosed(str(error)) from error
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % _FD_SIZE])
                self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC:
            self._fds.append(-1)  # EMFILE: the kernel closed the descriptor; its message must not take the next one's
        if not data:
            raise ChannelClosed("closed by the other process")
        self._buffer += data

    def finish_writing(self) -> None:
        """Let the other end find this one gone; what it sends until then is still to be received."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()
        for fd in [*self._fds, *(fd for _, fd in self._outgoing)]:
            if fd >= 0:
                socket.close(fd)
        self._fds.clear()
        self._outgoing.clear()
