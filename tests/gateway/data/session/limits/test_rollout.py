# A policy that is brought in by steps: it holds some of the clients to their limits, and the others are only counted.

from __future__ import annotations

import struct
from typing import Any

import pytest

from gateway.channel import GroupSnapshot, QuotaSnapshot
from policies.definitions.rollout import rollout_place
from policies.groups.group_limiters import GroupLimitValues
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from tests.gateway.data.play import Play, answer, request
from tests.gateway.data.session.fetch_frames import fetch, fetched, told
from tests.gateway.data.session.limits_play import REASONS, SIZE, TOPIC, Kind, set_limit, take_turns

MANY = [f"client-{number}" for number in range(20)]
KINDS = pytest.mark.parametrize("kind", ["quota", "group", "threshold"])


def limit(on: Play, kind: Kind, percent: float, rate: float = 20 * SIZE, **how: Any) -> None:
    """A limit for all clients together or for each."""
    set_limit(on, kind, rate, Entity(DEFAULT), enforce_percent=percent, **how)


def connected(on: Play, user: str = "", client_id: str = "app") -> Play:
    """A connection to the same worker."""
    made = on.beside()
    if user:
        made.session.client.set_principal(f"User:{user}")
    return made


def produce(on: Play, size: int = 7, client_id: str = "app") -> int:
    """Send a request and its answer; return how long the client has to wait."""
    return on.exchange(1, {TOPIC: [0]}, values=(bytes(size),), client_id=client_id)


@KINDS
def test_a_policy_holds_so_many_percent_of_the_clients(kind: Kind) -> None:
    for percent in (0, 20, 50, 100):
        on = Play()
        limit(on, kind, percent)
        for user in MANY:
            each = connected(on, user)
            for _ in range(2):
                is_held = produce(each) > 0
                assert is_held is (rollout_place(f"User:{user}", "") < percent)
                each.session.hold.muted_until = 0.0
        rows = on.rows()
        held = sum(rollout_place(f"User:{user}", "") < percent for user in MANY)
        assert rows.get((TOPIC, "delayed", REASONS[kind]), (0, 0, 0))[2] == 2 * held
        assert rows.get((TOPIC, "would_delay", REASONS[kind]), (0, 0, 0))[2] == 2 * (len(MANY) - held)


@KINDS
def test_clients_without_a_principal_are_told_apart_by_their_ids_and_can_t_compute_who_is_held(kind: Kind) -> None:
    key = b"a secret"
    on = Play(rollout_key=key)
    limit(on, kind, 50)
    held = {name for name in MANY if produce(connected(on), client_id=name) > 0}
    assert held == {name for name in MANY if rollout_place("User:ANONYMOUS", name, key) < 50}
    assert held != {name for name in MANY if rollout_place("User:ANONYMOUS", name) < 50}


@KINDS
def test_a_percentage_that_changes_holds_for_the_next_request(kind: Kind) -> None:
    on = Play()
    limit(on, kind, 0)
    alice = connected(on, "alice")
    assert produce(alice) == 0
    limit(on, kind, 100)
    assert produce(alice) > 0


@KINDS
def test_in_mode_observe_it_holds_no_client(kind: Kind) -> None:
    on = Play()
    limit(on, kind, 100, mode="observe")
    assert produce(connected(on, "alice")) == 0
    assert on.rows()[TOPIC, "would_delay", REASONS[kind]][2] == 1


def test_a_thread_s_time_that_only_observed_clients_take_beyond_their_quota_is_not_owed_by_the_others() -> None:
    on = Play()
    entries = {Entity(None, "app"): {QuotaKey("request_percentage", "percent"): 10.0}}
    on.world.set_quotas(QuotaSnapshot(1, entries, enforce_percent=50), on.now)
    users = {rollout_place(f"User:{user}", "app") < 50: user for user in MANY}
    observed, held = connected(on, users[False]), connected(on, users[True])
    produce(observed)
    produce(held)
    for _ in range(100):
        observed.session.client.charge_time(0.05, on.now)
    (line,) = held.session.client.quota_limit.time_limiters
    assert line is observed.session.client.quota_limit.time_limiters[0]
    assert line.debt_wait_s(on.now) <= 0.5, "the one look at which it was within its quota"


@pytest.mark.parametrize(
    ("kind", "how", "size", "seconds", "warm_up_s"),
    [("group", {}, 10_000, 120, 20), ("threshold", {}, 10_000, 120, 20),
     ("threshold", {"on_exceed": "reject"}, 100_000, 600, 200)],
)  # fmt: skip
def test_clients_that_are_held_get_as_much_as_if_all_were(
    kind: Kind, how: dict[str, Any], size: int, seconds: int, warm_up_s: int
) -> None:
    """Twenty clients want twice as much as there is. Clients that are not held yet must not use up what there is for
    the others, nor leave it all to them. (Client quotas: each has one of its own.)
    """
    rate = 1e6
    frame, shares = request(1, {TOPIC: [0]}, values=(bytes(size),)), []
    held = {number for number, user in enumerate(MANY) if rollout_place(f"User:{user}", "") < 20}
    want_s = size / (2 * rate / len(MANY))  # between two requests of one client
    for percent in (20, 100):
        on = Play()
        limit(on, kind, percent, rate, **how)
        got, all_, began = 0, [connected(on, user) for user in MANY], on.now
        for now, number, passed, _ in take_turns(on, all_, seconds, lambda _: frame, want_s):
            got += size if passed and number in held and now > began + warm_up_s else 0
        shares.append(got / len(held) / (seconds - warm_up_s))
    assert 0.7 * shares[1] <= shares[0] <= 1.6 * shares[1]


@pytest.mark.parametrize("code", [0, 6])
def test_bytes_that_a_threshold_would_have_rejected_of_clients_that_are_not_in_are_not_metered(code: int) -> None:
    for percent in (0, 100):
        on = Play()
        limit(on, "threshold", percent, on_exceed="reject")
        alice = connected(on.overload(TOPIC), "alice")
        meters = on.engine.broker_meters(1)
        upstream, _ = alice.client(request(1, {TOPIC: [0]}))
        assert bool(upstream) is (percent == 0)
        assert meters.total.uncounted == meters.topics[TOPIC.encode()].uncounted == 0
        if upstream:
            alice.broker(answer(1, {TOPIC: {0: (code, 0)}}))
        assert meters.total.uncounted == meters.topics[TOPIC.encode()].uncounted == 0


# --- Fetch ------------------------------------------------------------------------------------------------------------


def test_consumers_that_are_not_in_are_neither_held_nor_bounded_and_counted() -> None:
    on = Play()
    entries = {Entity(DEFAULT): {QuotaKey("consumer_byte_rate", "broker_bps"): 1000.0}}
    on.world.set_quotas(QuotaSnapshot(1, entries, enforce_percent=50), on.now)
    held, free = (
        next(user for user in MANY if (rollout_place(f"User:{user}", "") < 50) is is_in) for is_in in (True, False)
    )
    for user, is_held in ((held, True), (free, False)):
        each = connected(on, user)
        upstream, _ = each.client(fetch())
        assert (upstream != fetch()) is is_held
        assert (told(each.broker(fetched())) > 0) is is_held
        assert (each.session.fetch_limiter.muted_until > on.now) is is_held
        assert bool(each.client(fetch(2))[0]) is not is_held
    on.ledger()
    assert on.counts["fetches_would_be_delayed"] == 1


def test_consumers_of_a_group_that_are_not_in_leave_the_others_what_they_would_get() -> None:
    on = Play()
    rate = 1e6
    groups = {"gold": GroupLimitValues(dispatch_bytes=rate)}
    on.world.set_groups(GroupSnapshot(1, groups, {"acme": "gold"}, enforce_percent=50), on.now)
    users = [
        next(user for user in MANY if (rollout_place(f"User:{user}", "") < 50) is is_in) for is_in in (True, False)
    ]
    held, free = (connected(on, user) for user in users)
    got, began = 0, on.now
    for step in range(600):
        now = began + step / 10
        for each in (held, free):
            each.now = now
            if now < each.session.fetch_limiter.muted_until:
                continue
            upstream, _ = each.again() if each.unhandled else each.client(fetch())
            if upstream:
                frame = fetched(topics={TOPIC: [LARGE]})
                each.broker(frame)
                got += len(frame) if each is held else 0
    assert got / 60 == pytest.approx(rate / 2, rel=0.25)


def test_a_session_of_another_connection_is_refused_by_the_client_id_of_the_request() -> None:
    """Of clients without a principal it says who is held. A Fetch may be the first request with it."""
    on = Play()
    groups = {"gold": GroupLimitValues(dispatch_bytes=1e9)}
    on.world.set_groups(GroupSnapshot(1, groups, {"acme": "gold"}, enforce_percent=50), on.now)
    for name in MANY:
        is_held = rollout_place("User:ANONYMOUS", name) < 50
        upstream, answered = connected(on).client(fetch(topics=(), client_id=name.encode(), session=(3, 1)))
        assert (bool(upstream), bool(answered)) == (not is_held, is_held)


LARGE = struct.pack(">q", 0) + struct.pack(">i", 99_988) + bytes(4) + b"\x02" + bytes(99_983)
