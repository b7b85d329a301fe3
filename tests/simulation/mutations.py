# The product broken on purpose, one part at a time: each has to be seen by the judge in its own small world, which is
# in order without it. `python -m tests.simulation --mutations` runs them all.

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple
from unittest import mock

from gateway.control.fleet.exchange.peers import PeerTable
from gateway.control.metrics import GatewayMetrics
from gateway.control.storage import storage_control
from gateway.control.usage.recent import RecentTraffic
from gateway.control.usage.usage_spool import UsageSpool
from gateway.control.workers.snapshot_publisher import SnapshotPublisher
from gateway.data.control_requests.authentication import ClientAuthentication
from gateway.data.pending.steps import ANSWER, DROPPED
from gateway.data.session.accounts import ProduceAccounts
from gateway.data.session.enforcement import ProduceEnforcement
from gateway.data.session.gate import ProduceGate
from gateway.data.shared.client import ConnectedClient
from gateway.data.sockets.reactor import SocketReactor
from gateway.data.worker.intervals import UnspooledIntervals
from gateway.data.worker.periodic_tasks import PeriodicTasks
from gateway.data.worker.storage_follower import StorageFollower
from policies.definitions.policy_set import PolicySet
from policies.definitions.rollout import PolicyRollout
from policies.explain.case import ExplainCase
from policies.fleet.fleet_limiter import FleetShares
from policies.idempotence.fence import ProducerFence
from policies.limits.bucket import TokenBucket
from policies.quotas.quota_limiters import ConnectionQuotaLimit
from policies.storage import StorageOverride
from policies.thresholds.bursting import BurstRejecter
from protocol.authentication import scram
from protocol.produce import produce_request
from protocol.rewriting import rewrite
from tests.simulation.clock import current_process
from tests.simulation.models.sasl import MECHANISMS
from tests.simulation.world import SASL_THEMES, ClientPlan, Fault, Plan, World, limits_theme

_TOPICS: Final = {"acme.orders.new": 3, "acme.orders.paid": 3}


class Mutation(NamedTuple):
    """`patch`: what is put in the place of what; `kinds`: of violations, one of which must be found."""

    name: str
    patch: tuple[Any, str, Any]
    plan: Plan
    kinds: tuple[str, ...]


def _plan(
    theme: str, profiles: tuple[str, ...], *, gateways: int = 1, workers: int = 1, faults: tuple[Fault, ...] = (),
    seconds: float = 60.0, over: float = 2.0, starts_s: tuple[float, ...] = (), limit: float = 100_000.0, seed: int = 1,
) -> Plan:  # fmt: skip
    """A world whose clients bring `over` times the limit together."""
    by_broker = limits_theme(theme, seed) in ("quota", "total", "reject", "affected", "users")
    per_client = limit * over / len(profiles) * (3 if by_broker else 1)
    clients = tuple(
        ClientPlan(
            profile, f"app-{number}", _TOPICS, round(per_client), round(limit / 30), (number % gateways,),
            starts_s[number] if starts_s else 0.0, 24 if starts_s else 0,
            *((f"user-{number % 2}", MECHANISMS[number % 2]) if theme in SASL_THEMES else ()),
        )
        for number, profile in enumerate(profiles)
    )  # fmt: skip
    return Plan(seed, seconds, theme, limit, gateways, workers, _TOPICS, clients, faults)


def _drop_tenth(append: Callable[..., None]) -> Callable[..., None]:
    def lossy(spool: UsageSpool, lines: list[bytes]) -> None:
        append(spool, [line for line in lines if sum(line) % 10])

    return lossy


def _overtaking(enforce: Callable[..., Any]) -> Callable[..., Any]:
    """Answers of the gateway's own don't wait for those of the broker to earlier requests."""

    def enforce_request(enforcement: ProduceEnforcement, request: Any, now: float) -> Any:
        step = enforce(enforcement, request, now)
        if step[0] != ANSWER:
            return step
        enforcement._in_flight.outgoing.append(step[1])
        return DROPPED

    return enforce_request


def _twice(add: Callable[..., None]) -> Callable[..., None]:
    def add_twice(metrics: GatewayMetrics, interval: Any) -> None:
        add(metrics, interval)
        add(metrics, interval)

    return add_twice


def _half(consume: Callable[..., None]) -> Callable[..., None]:
    return lambda bucket, size, level: consume(bucket, size / 2, level)


def _unfair(share_of: Callable[..., float]) -> Callable[..., float]:
    """The second gateway leaves a third of what is its own to the first."""

    def share(shares: FleetShares, key: Any, limit: float) -> float:
        part = share_of(shares, key, limit)
        return part * (2 / 3 if current_process.get().name.startswith("gateway-1") else 4 / 3)

    return share


def _half_fetched(charge: Callable[..., float]) -> Callable[..., float]:
    return lambda limit, size, now: charge(limit, size // 2, now)


def _double(consume: Callable[..., None]) -> Callable[..., None]:
    return lambda bucket, size, level: consume(bucket, size * 2, level)


def _always_accepted(record: Callable[..., None]) -> Callable[..., None]:
    def accepted(accounts: ProduceAccounts, parts: Any, version: int, refused: Any) -> None:
        accounts.record_outcome(parts, version, "accepted")

    return accepted


def _own_buckets(shares: FleetShares, key: Any, rate: float, *times: float, **_: Any) -> Any:
    return TokenBucket(rate, *times), 1


def _forgetting(make: Callable[..., Any]) -> Callable[..., Any]:
    def make_bucket(*args: Any, lasts: bool = False, **named: Any) -> Any:
        return make(*args, **named)

    return make_bucket


def _pass_metadata(buf: Any, start: int, stop: int, *_: Any) -> Any:
    return bytes(memoryview(buf)[start - 4 : stop]), ()


def _since_now(case: ExplainCase, *_: Any) -> int:
    return case.inputs.now_ms


def _leaking(discard: Callable[..., None]) -> Callable[..., None]:
    def discard_some(reactor: SocketReactor[Any], sock: Any) -> None:
        if sock._end.peer_address[0].startswith("10."):
            reactor._unregister(sock.fileno())
        else:
            discard(reactor, sock)

    return discard_some


def _all_affected(find: Callable[..., Any]) -> Callable[..., Any]:
    def find_all(*args: Any, **named: Any) -> Any:
        found = find(*args, **named)  # None: it can't be known, and all topics are held anyway
        return found and tuple(each._replace(topics=tuple(sorted(_TOPICS))) for each in found)

    return find_all


def _always_one(set_principal: Callable[..., None]) -> Callable[..., None]:
    return lambda client, principal: set_principal(client, "User:user-0")


def _keep_partitions(buf: Any, start: int, stop: int, _: Any) -> bytes:
    return bytes(memoryview(buf)[start - 4 : stop])


_NO_EFFECT: Final = lambda *_, **__: None  # noqa: E731
_KILLED: Final = (Fault(25.0, "gateway killed", 1, 60.0),)
_CONTROL: Final = tuple(Fault(20.0 + 5.0 * number, "control killed") for number in range(6))
_PAUSED: Final = (Fault(15.0, "storage paused", 0, 15.0),)
_WORKER: Final = (Fault(12.0, "worker killed"), Fault(20.0, "worker killed"))
_NO_PAUSE: Final = classmethod(lambda cls, text: cls("OPEN"))
_LENT: Final = (Fault(10.0, "limit lent", 0, 5.0, 0.9),)
_CHANGED: Final = (Fault(10.0, "limit changed", 0, 0.0, 0.0),)
_TRANSACTIONAL: Final = ("java-transactions", "java-transactions-2", "librdkafka-transactions")
_HUNGRY: Final = ("java", "librdkafka")
_LATE: Final = _plan(
    "reject", ("java-plain", *["java"] * 6), over=4.0, seconds=40.0, starts_s=(0.0, 11.2, 13.1, 17.7, 21.9, 23.3, 28.6)
)

MUTATIONS: Final = (
    Mutation("no fence behind a rejected batch", (ProducerFence, "blocks_batch", lambda *_: False), _LATE,
             ("lost", "out of order", "twice")),
    Mutation("rejections told as success", (ProduceGate, "error_code", lambda *_: 0), _plan("reject", _HUNGRY),
             ("told a wrong fate", "lost")),
    Mutation("rejected partitions forwarded",
             (produce_request, "strip_partitions", _keep_partitions),
             _LATE, ("rejected and in the log", "told a wrong fate", "sums differ")),
    Mutation("answers overtake each other",
             (ProduceEnforcement, "enforce_request", _overtaking(ProduceEnforcement.enforce_request)), _LATE,
             ("answers out of order",)),
    Mutation("each gateway takes the whole limit", (FleetShares, "share_of", lambda self, key, limit: limit),
             _plan("group", _HUNGRY, gateways=2, over=3.0), ("over a limit",)),
    Mutation("each worker has its own bucket", (FleetShares, "make_bucket", _own_buckets),
             _plan("group", ("java",) * 4, workers=2, over=4.0), ("over a limit",)),
    Mutation("half of a debt forgiven", (TokenBucket, "_withdraw_tokens", _half(TokenBucket._withdraw_tokens)),
             _plan("quota", ("java",), over=3.0), ("over a limit",)),
    Mutation("no mute behind a delayed request", (ProduceEnforcement, "_mute_client", _NO_EFFECT),
             _plan("group", ("librdkafka",) * 2, over=3.0), ("over a limit",)),
    Mutation("a dead gateway keeps its part", (PeerTable, "expire_peers", lambda *_: []),
             _plan("group", ("java", "java", "java"), gateways=2, over=6.0, faults=_KILLED, seconds=90.0),
             ("a limit unused",)),
    Mutation("a value's end is forgotten", (PolicySet, "revert_expired", lambda self, now_ms: self),
             _plan("group", _HUNGRY, over=4.0, faults=_LENT, seconds=70.0), ("over a limit",)),
    Mutation("a change reaches no worker", (SnapshotPublisher, "_is_news", lambda *_: False),
             _plan("group", _HUNGRY, over=3.0, faults=_CHANGED, seconds=60.0), ("over a limit",)),
    Mutation("the spool loses records", (UsageSpool, "append", _drop_tenth(UsageSpool.append)),
             _plan("free", _HUNGRY, over=1.0, seconds=40.0), ("sums differ",)),
    Mutation("intervals are not sent again", (UnspooledIntervals, "resend_unspooled", _NO_EFFECT),
             _plan("free", _HUNGRY, over=1.0, faults=_CONTROL, seconds=95.0), ("sums differ",)),
    Mutation("rejected bytes counted as accepted",
             (ProduceAccounts, "record_rejection", _always_accepted(ProduceAccounts.record_rejection)),
             _plan("reject", _HUNGRY), ("sums differ",)),
    Mutation("metrics count twice", (GatewayMetrics, "add_interval", _twice(GatewayMetrics.add_interval)),
             _plan("free", _HUNGRY, over=1.0, seconds=30.0), ("sums differ",)),
    Mutation("a pause is not carried out", (StorageFollower, "receive_storage", _NO_EFFECT),
             _plan("storage", _HUNGRY, over=4.0, seconds=60.0), ("a disk is full",)),
    Mutation("one gateway leaves its part to another", (FleetShares, "share_of", _unfair(FleetShares.share_of)),
             _plan("group", ("java",) * 4, gateways=2, over=3.0, seconds=60.0), ("not its fair share",)),
    Mutation("a quota counts twice", (TokenBucket, "_withdraw_tokens", _double(TokenBucket._withdraw_tokens)),
             _plan("quota", ("java",), over=0.8), ("a demand unserved",)),
    Mutation("explain forgets what was held back", (RecentTraffic, "add_interval", _NO_EFFECT),
             _plan("group", _HUNGRY, over=3.0, seconds=40.0), ("explain",)),
    Mutation("explain says that it has just begun", (ExplainCase, "held_since_ms", _since_now),
             _plan("group", _HUNGRY, over=3.0, seconds=40.0), ("explain",)),
    Mutation("brokers' sockets are not closed",
             (SocketReactor, "discard_socket", _leaking(SocketReactor.discard_socket)),
             _plan("free", _HUNGRY, over=1.0, seconds=30.0), ("a socket is left",)),
    Mutation("a new control is not told what there is", (PeriodicTasks, "on_control_started", _NO_EFFECT),
             _plan("free", _HUNGRY, over=0.05, faults=_CONTROL, seconds=60.0), ("gauges",)),
    Mutation("a full disk holds all topics",
             (storage_control, "find_affected", _all_affected(vars(storage_control)["find_affected"])),
             _plan("affected", _HUNGRY, over=3.0, seconds=60.0), ("held without need", "a demand unserved")),
    Mutation("an operator's pause is forgotten", (StorageOverride, "parse_text", _NO_PAUSE),
             _plan("affected", _HUNGRY, over=2.0, faults=_PAUSED, seconds=40.0), ("written in a pause",)),
    Mutation("a limit by percent holds everybody", (PolicyRollout, "observed_policies", lambda *_: frozenset()),
             _plan("percent", ("java",) * 4, over=4.0, seconds=30.0), ("held without need",)),
    Mutation("a total rejects nothing", (BurstRejecter, "judge_request", _NO_EFFECT),
             _plan("reject", _HUNGRY, over=4.0, seconds=50.0), ("over a limit",)),
    Mutation("a burst passes once more behind each end of a worker",
             (FleetShares, "make_bucket", _forgetting(FleetShares.make_bucket)),
             _plan("reject", _HUNGRY, over=3.0, faults=_WORKER, seconds=30.0), ("over a limit",)),
    Mutation("fetched bytes count half",
             (ConnectionQuotaLimit, "charge_fetch", _half_fetched(ConnectionQuotaLimit.charge_fetch)),
             _plan("fetch", _HUNGRY, over=3.0, seconds=60.0), ("over a limit",)),
    Mutation("every user is the same one",
             (ConnectedClient, "set_principal", _always_one(ConnectedClient.set_principal)),
             _plan("users", _HUNGRY, over=1.0, seconds=30.0), ("sums differ",)),
    Mutation("requests pass before authentication",
             (ClientAuthentication, "check_unauthenticated_api", staticmethod(_NO_EFFECT)),
             _plan("logins", _HUNGRY, over=1.0, seconds=30.0), ("let in", "passed before authentication")),
    Mutation("any password is right", (scram, "matches_password", lambda *_: True),
             _plan("logins", _HUNGRY, over=1.0, seconds=30.0), ("let in", "passed before authentication")),
    Mutation("rejections in a transaction told as success", (ProduceGate, "error_code", lambda *_: 0),
             _plan("transactions", _TRANSACTIONAL, seconds=30.0, seed=2), ("lost", "told a wrong fate")),
    Mutation("coordinators' own addresses handed out",
             (rewrite, "REWRITES", rewrite.REWRITES | {10: _pass_metadata}),
             _plan("transactions", _TRANSACTIONAL, over=1.0, seconds=20.0), ("around the gateway",)),
    Mutation("brokers' own addresses handed out", (rewrite, "REWRITES", rewrite.REWRITES | {3: _pass_metadata}),
             _plan("free", _HUNGRY, over=1.0, seconds=30.0), ("sums differ",)),
)  # fmt: skip


@contextmanager
def breaking(name: str | None) -> Iterator[None]:
    """Within it the product is broken in the way that has `name` in its name; None: in none.

    Raises:
        StopIteration: there is no such way.
    """
    with ExitStack() as stack:
        if name is not None:
            found = next(each for each in MUTATIONS if name in each.name)
            stack.enter_context(mock.patch.object(*found.patch))
        yield


def find_violations(mutation: Mutation, *, broken: bool) -> list[str]:
    """What the judge finds in its world."""
    with breaking(mutation.name if broken else None):
        return World(mutation.plan, mutation.kinds if broken else ()).run().violations


def is_seen(mutation: Mutation, violations: list[str]) -> bool:
    return any(violation.split(" ", 1)[1].startswith(mutation.kinds) for violation in violations)


def run_all(names: str = "") -> int:
    """Run those whose name contains `names`, and print what the judge saw of each; returns how many it did not see."""
    unseen, in_order = 0, dict[str, list[str]]()
    for mutation in MUTATIONS:
        if names not in mutation.name:
            continue
        began = time.perf_counter()
        broken, place = find_violations(mutation, broken=True), repr(mutation.plan)
        if place not in in_order:
            in_order[place] = find_violations(mutation, broken=False)
        whole = in_order[place]
        seen = is_seen(mutation, broken) and not whole
        unseen += not seen
        print(f"{'seen' if seen else 'NOT SEEN'}: {mutation.name}, {time.perf_counter() - began:.0f} s", flush=True)
        for violation in broken[:1]:
            print(f"    {violation}", flush=True)
        for violation in whole[:3]:
            print(f"    in order: {violation}", flush=True)
    return unseen
