# What a stranger sends, claims or holds is believed by nobody: one test for each way that was found, named after what
# it must not lead to. On sessions and the worker's own parts; with sockets and processes: test_strangers_live.py.

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from gateway.channel import (
    PROTOCOL,
    GroupSnapshot,
    ProcessChannel,
    ToControl,
    ToWorker,
    UsageInterval,
    WorkerSettings,
    decode_for_worker,
)
from gateway.control.metrics import GatewayMetrics
from gateway.data.session.session import ClientSession
from gateway.data.shared.client import MAX_CLIENT_ID, MAX_PRINCIPAL
from gateway.data.shared.errors import IdentityChanged, TooManyConnections, UnauthenticatedRequest
from gateway.data.shared.ledger import MAX_INTERVAL_BYTES, OTHER_NAME
from gateway.data.shared.topics import INVALID_TOPIC
from gateway.data.shared.warning_limiter import MAX_PER_PERIOD, NO_LOG_FIELDS, PERIOD_S, WarningLimiter
from gateway.data.worker.worker import DataWorker
from gateway.parent_link import ParentLink
from policies import usage
from policies.groups.group_limiters import GroupLimitValues
from policies.meters.meter import TICK_S
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.store import QuotaStore
from protocol import api
from protocol.rewriting.identity import AmbiguousIdentity
from protocol.wire import MalformedFrame
from tests.gateway.data.play import (
    TOPIC_ID,
    Play,
    account,
    answer,
    decode_answer,
    other_answer,
    other_request,
    request,
    size_of,
)
from tests.protocol.produce_cases import framed
from tests.protocol.rewriting import test_identity as sasl

OWN = "__produce_gateway_policies"
GOLD = GroupSnapshot(1, {"gold": GroupLimitValues(10**9)}, {"acme": "gold"})
REFUSED = api.TOPIC_AUTHORIZATION_FAILED


def wants_sasl(**settings: Any) -> Play:
    return Play(upstream_sasl=True, **settings).named()


def handshake(play: Play, mechanism: str = "PLAIN", error: int = 0) -> None:
    play.client(framed(sasl.handshake(mechanism)))
    play.broker(framed(struct.pack(">ihi", 77, error, 0)))


def authenticate(play: Play, name: str = "alice", error: int = 0) -> None:
    play.client(framed(sasl.authenticate(b"\0%s\0secret" % name.encode())))
    play.broker(framed(sasl.authenticated(b"", error=error)))


# --- the gateway's own topics -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize("groups", [None, GOLD], ids=["no groups", "groups"])
def test_a_protected_topic_is_refused_every_time(version: int, groups: GroupSnapshot | None) -> None:
    # With groups the first refusal put the topic's meter where the hot path looks: the second request passed.
    play = Play(protected_topics=(OWN,)).named()
    play.world.cluster.topic_ids[TOPIC_ID] = OWN.encode()
    if groups is not None:
        play.world.set_groups(groups, play.now)
    for correlation in range(3):
        upstream, client = play.client(request(correlation, {OWN: [0]}, version=version))
        assert upstream == b""
        assert {code for code, _ in decode_answer(client, version)[2].values()} == {REFUSED}
    gate = play.session.gate
    assert not gate.topics.by_name
    assert not gate.topics.by_id
    assert OWN.encode() not in gate.broker.topics
    assert [key for key in play.rows() if key[1] != "rejected"] == []


def test_a_protected_topic_is_charged_to_no_group() -> None:
    own = "acme.own.policies"
    play = Play(protected_topics=(own,)).named()
    play.world.set_groups(GOLD, play.now)
    play.client(request(1, {own: [0], "acme.shop.orders": [0]}))
    play.engine.pace_limits(play.now)
    play.engine.apply_due_ticks(play.engine.next_tick_at)
    assert [
        side.bytes.rate * TICK_S for side in play.engine.groups.collect_rates(play.engine.next_tick_at - TICK_S)
    ] == [size_of()]


# --- before authentication --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [request(1), request(1, acks=0), other_request(1, 3, 1, bytes(4)), other_request(1)])
def test_before_authentication_nothing_passes_and_nothing_is_counted(frame: bytes) -> None:
    play = wants_sasl(total=1.0, topics={"clicks": 1.0}).overload()
    handshake(play)
    with pytest.raises(UnauthenticatedRequest):
        play.client(frame)
    assert play.session.to_upstream == []
    assert play.session.to_client == []
    play.session.close()
    assert play.ledger() == ()
    assert play.engine.broker_meters(1).total.uncounted == 0


def test_a_head_is_enough_to_end_an_unauthenticated_connection() -> None:
    # 100 MiB are announced: nothing is kept for them.
    play = wants_sasl()
    with pytest.raises(UnauthenticatedRequest):
        play.client(struct.pack(">ihhi", 100 * 2**20, api.PRODUCE, 9, 1))


def test_requests_that_lead_to_authentication_pass_one_step_at_a_time() -> None:
    play = wants_sasl()
    versions = other_request(1, api.API_VERSIONS, 0)
    first = framed(sasl.handshake("PLAIN"))
    second = framed(sasl.authenticate(b"\0alice\0secret"))
    assert play.client(versions + first + second + request(5))[0] == versions + first
    assert play.again() == (b"", b"")
    play.broker(other_answer(1, struct.pack(">hi", 0, 0)) + framed(struct.pack(">ihi", 77, 0, 0)))
    assert play.again()[0] == second
    assert play.again() == (b"", b"")
    play.broker(framed(sasl.authenticated(b"")))
    assert play.again()[0] == request(5)
    assert play.session.client.principal == "User:alice"


@pytest.mark.parametrize("version", [-22527, 3])
def test_a_step_of_sasl_that_can_not_be_read_passes_nowhere(version: int) -> None:
    play = wants_sasl()
    handshake(play)
    with pytest.raises(MalformedFrame):
        play.client(other_request(1, api.SASL_AUTHENTICATE, version, struct.pack(">i", 10) + b"\0alice\0pwd"))


def test_that_brokers_want_sasl_is_learned_from_an_answer() -> None:
    play = Play().named()
    handshake(play, error=34)  # ILLEGAL_SASL_STATE: this one doesn't
    assert play.client(request(1))[0] == request(1)
    play.broker(answer(1))
    handshake(play)
    with pytest.raises(UnauthenticatedRequest):
        play.client(request(2))


# --- who it is --------------------------------------------------------------------------------------------------------


def test_an_accepted_claim_is_that_of_its_own_request() -> None:
    # handshake, mallory, handshake, replicator in one segment: the answer that accepted mallory confirmed replicator.
    play = wants_sasl(internal_principals=("User:replicator",))
    mallory, replicator = (framed(sasl.authenticate(b"\0%s\0x" % name)) for name in (b"mallory", b"replicator"))
    shake = framed(sasl.handshake("PLAIN"))
    assert play.client(shake + mallory + shake + replicator)[0] == shake
    play.broker(framed(struct.pack(">ihi", 77, 0, 0)))
    assert play.again()[0] == mallory
    play.broker(framed(sasl.authenticated(b"")))
    assert play.again()[0] == shake
    play.broker(framed(struct.pack(">ihi", 77, 34, 0)))  # ILLEGAL_SASL_STATE, and the connection stays
    assert play.again()[0] == replicator
    play.broker(framed(sasl.authenticated(b"", error=34)))
    assert (play.session.client.principal, play.session.client.is_exempt) == ("User:mallory", False)


def test_a_principal_can_be_confirmed_and_never_replaced() -> None:
    play = wants_sasl()
    handshake(play)
    authenticate(play)
    handshake(play)
    authenticate(play)
    assert play.session.client.principal == "User:alice"
    handshake(play)
    with pytest.raises(IdentityChanged):
        authenticate(play, "bob")
    assert play.session.client.principal == "User:alice"


def test_a_claim_that_can_be_read_in_two_ways_ends_the_connection() -> None:
    play = wants_sasl()
    handshake(play, "SCRAM-SHA-256")
    with pytest.raises(AmbiguousIdentity):
        play.client(framed(sasl.authenticate(b"n,,m=x,n=mallory,r=abc")))


def test_clients_that_only_the_broker_can_tell_apart_are_not_one_principal() -> None:
    play = wants_sasl(max_connections_per_principal=1)
    for _ in range(3):
        handshake(play, "OAUTHBEARER")
        play.client(framed(sasl.authenticate(b"n,,\x01auth=Bearer opaque\x01\x01")))
        play.broker(framed(sasl.authenticated(b"")))
        assert play.session.authentication.is_authenticated
        play.session = ClientSession(play.world, 1, account(), play.now)
    assert play.world.principal_counts == {}


def test_a_principal_has_so_many_connections_and_no_more() -> None:
    play = wants_sasl(max_connections_per_principal=1)
    handshake(play)
    authenticate(play)
    play.world.principal_counts["User:bob"] = 1
    other = wants_sasl(max_connections_per_principal=1)
    other.world.principal_counts = play.world.principal_counts
    handshake(other)
    with pytest.raises(TooManyConnections):
        authenticate(other, "bob")
    other.session.close()
    play.session.close()
    assert play.world.principal_counts == {"User:bob": 1}


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_of_strangers_are_cut_before_anything_is_counted_by_them() -> None:
    play = Play().named()
    topics = ["t" * 30_000, "x\n2026-01-01 ERROR gateway: \x1b[31mforged", "ok"]
    play.session.client.principal = "User:" + "p" * 1000
    play.client(request(1, {topic: [0] for topic in topics}, client_id="\u20ac" * 10_000))
    play.broker(answer(1, {topic: {0: (17, -1)} for topic in topics}))
    rows = play.ledger()
    assert {row.topic for row in rows} == {INVALID_TOPIC, "ok"}
    assert {len(row.client_id) for row in rows} == {MAX_CLIENT_ID}
    assert {len(row.principal) for row in rows} == {MAX_PRINCIPAL}


def test_an_interval_has_a_bound_for_any_names_of_strangers() -> None:
    # 3,000 topics under a client id of 32,767 bytes made a message of 295 MB: the worker was cut off for ever.
    play = Play(max_client_keys=1_000_000).named()
    for client in range(100):
        topics = {f"{client}-{'t' * 240}-{n}": [0] for n in range(500)}
        frame = request(client, topics, client_id=f"{client}{'c' * 30_000}")
        play.client(frame)
        play.broker(answer(client, {topic: {0: (3, -1)} for topic in topics}))
    rows = play.ledger()
    interval = UsageInterval("boot", 0, 1, 1, 2, rows)
    assert len(msgspec.msgpack.encode(interval)) < 2 * MAX_INTERVAL_BYTES
    assert sum(row.bytes for row in rows) == 50_000 * size_of()  # what has no name is counted all the same
    assert any(row.topic == OTHER_NAME for row in rows)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ProcessChannel[ToControl, ToWorker](ours, decode_for_worker).post(
            interval
        )  # raises where it could not be received


def test_made_up_topics_leave_nothing_in_a_connection_or_a_meter() -> None:
    play = Play(total=10**9).named()
    before = play.engine.broker_meters(1).limits.thresholds.implicit_share
    topics = {f"made-up-{n}": [0] for n in range(5000)}
    play.client(request(1, topics))
    assert play.engine.broker_meters(1).limits.thresholds.implicit_share == before  # nobody else gets less
    assert play.session.gate.topics.by_name == {}
    play.broker(answer(1, {topic: {0: (3, -1)} for topic in topics}))
    play.engine.apply_due_ticks(play.engine.next_tick_at)
    assert play.engine.broker_meters(1).topics == {}


def test_a_topic_counts_once_the_broker_has_taken_something_for_it() -> None:
    play = Play(total=10**9).named()
    play.client(request(1, {"new": [0]}))
    play.broker(answer(1, {"new": {0: (0, 0)}}))
    assert play.engine.broker_meters(1).topics[b"new"].is_confirmed
    play.client(request(2, {"new": [0]}))
    assert set(play.session.gate.topics.by_name) == {b"new"}


# --- what never got in ------------------------------------------------------------------------------------------------


def test_bytes_of_a_connection_from_which_nothing_ever_got_in_do_not_count_against_others() -> None:
    play = Play(total=1000.0).named()
    play.client(request(1))
    assert play.engine.broker_meters(1).total.uncounted == size_of()
    play.session.close()  # a broker closes what is malformed or not allowed, without an answer
    assert play.engine.broker_meters(1).total.uncounted == 0
    assert play.rows() == {("clicks", "unanswered", ""): (size_of(), 1, 1)}


def test_one_record_in_a_topic_of_its_own_lets_no_client_use_up_anothers() -> None:
    play = Play(total=1000.0).named()
    play.client(request(1, {"mine": [0]}))
    play.broker(answer(1, {"mine": {0: (0, 0)}}))
    play.client(request(2, {"clicks": [0]}))
    play.session.close()
    assert play.engine.broker_meters(1).topics[b"clicks"].uncounted == 0
    assert play.engine.broker_meters(1).total.uncounted == size_of()


def test_a_group_is_given_back_bytes_that_never_got_in_after_a_tick_too() -> None:
    play = Play().named()
    play.world.set_groups(GroupSnapshot(1, {"gold": GroupLimitValues(1000.0)}, {"acme": "gold"}), play.now)
    play.client(request(1, {"acme.orders.madeup": [0]}, values=(bytes(20_000),)))
    play.now = play.engine.next_tick_at
    play.engine.apply_due_ticks(play.now)
    play.broker(answer(1, {"acme.orders.madeup": {0: (3, -1)}}))
    side = play.engine.groups.charged_limit(b"acme.orders.madeup")
    assert side is not None
    assert side.refunded_bytes > 20_000


def test_bytes_that_may_be_in_the_log_stay_counted() -> None:
    play = Play(total=1000.0).named()
    play.client(request(1) + request(2))
    play.broker(answer(1))
    play.session.close()
    assert play.engine.broker_meters(1).total.uncounted == 2 * size_of()


# --- the log ----------------------------------------------------------------------------------------------------------


def test_so_many_lines_caused_by_strangers_are_logged_and_the_rest_is_counted() -> None:
    lines: list[tuple[str, str]] = []
    complaints = WarningLimiter(lambda level, text, fields=NO_LOG_FIELDS: lines.append((level, text)))
    for n in range(3000):
        complaints.log_warning("malformed", f"10.0.0.{n}: connection closed", n / 1000)
    complaints.log_warning("dial 1", "broker 1 can't be reached", 3.0, burst=1)
    complaints.log_warning("dial 1", "broker 1 can't be reached", 3.5, burst=1)
    assert len(lines) == MAX_PER_PERIOD + 1
    complaints.log_suppressed(3.0 + PERIOD_S)
    assert lines[MAX_PER_PERIOD + 1 :] == [
        ("warning", f"{3000 - MAX_PER_PERIOD:,} more of the same in 10 s: malformed"),
        ("warning", "1 more of the same in 10 s: dial 1"),
    ]


# --- the wall clock ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def lone() -> AsyncIterator[DataWorker]:
    """A worker without a control."""
    ours, theirs = socket.socketpair()
    theirs.close()
    link = ParentLink(ours)
    made = DataWorker(link, 0)
    made.handle_control_message(WorkerSettings(PROTOCOL, "gw"))
    yield made
    link._channel.close()
    made.configured_plane.connections.reactor._poller.close()


@pytest.mark.parametrize("step_s", [-3600.0, -1.5, 0.0, 3600.0])
async def test_a_clock_that_is_set_shortens_no_interval(
    lone: DataWorker, monkeypatch: pytest.MonkeyPatch, mock_clock: Any, step_s: float
) -> None:
    # An interval that ended before it began was no usage record: what had been accepted was missing from the audit.
    wall = [1_000_000.0]
    monkeypatch.setattr("gateway.data.worker.intervals.time.time", lambda: wall[0])
    for moved in (1.0, 1.0 + step_s, 1.0):
        lone.configured_plane.world.ledger.find_row(1, "clicks", "User:a", "app", "accepted")[0] += 75
        mock_clock.jump(1.0)
        wall[0] += moved
        lone.configured_plane.intervals.close_interval(final=False)
    unspooled = lone.configured_plane.intervals.unspooled
    for interval in unspooled:
        for line in usage.encode_interval(
            "gw", "boot", 0, interval.seq, interval.rows, start_ms=interval.start_ms, end_ms=interval.end_ms
        ):
            usage.decode_record(line)
    assert [interval.end_ms - interval.start_ms for interval in list(unspooled)[1:]] == [
        1000,
        1000,
    ]


# --- half an hour of it -----------------------------------------------------------------------------------------------


def test_half_an_hour_of_made_up_names_leaves_nothing_behind() -> None:
    quotas = {Entity.from_pairs((("client-id", None),)): {QuotaKey.parse("producer_byte_rate"): 1e9}}
    play = Play(total=10**9).named()
    play.world.quotas.set_quotas(QuotaStore(quotas), play.now)
    play.world.set_groups(GroupSnapshot(1, {"gold": GroupLimitValues(10**9)}, {"acme": "gold"}), play.now)
    metrics = GatewayMetrics(max_clients=100, max_topics=100)
    held: list[tuple[int, ...]] = []
    number = 0
    while number < 1800 * 2:
        for _ in range(10):  # five seconds of two a second
            number += 1
            topics = {f"acme.made-up.{number}": [0], f"made-up-{number}": [0]}
            play.client(request(number, topics, client_id=f"app-{number}"))
            play.broker(answer(number, {topic: {0: (3, -1)} for topic in topics}))
        play.now = play.engine.next_tick_at
        play.engine.apply_due_ticks(play.now)
        play.world.quotas.close_tick(play.now)
        play.engine.pace_limits(play.now)
        metrics.add_interval(UsageInterval("boot", 0, number, number, number + 1, play.ledger()))
        metrics.produced.recheck_waiting()
        lines = len(play.world.quotas.busiest_rates(10_000, play.now))
        metered, known = play.engine.broker_meters(1).topics, play.session.gate.topics.by_name
        held.append((len(metered), len(known), lines, len(b"".join(metrics.render_text()))))
    assert max(lines for _, _, lines, _ in held) > 0
    quarter = len(held) // 4
    for early, late in zip(held[quarter], held[-1], strict=True):
        assert late <= early + early // 100
