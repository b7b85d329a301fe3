# Client quotas in a session: who it is decides the lines; Produce and Fetch are delayed, each by its own quota.

from __future__ import annotations

import struct

import pytest

from policies.quotas.names import DEFAULT, Entity, QuotaKey
from policies.quotas.store import QuotaStore
from tests.gateway.play import Play, answer, decode_answer, request, size_of
from tests.protocol import kio_messages
from tests.protocol.produce_cases import framed

SIZE = size_of()
FETCH = 1


def play(*quotas: tuple[Entity, str, float], observes: bool = False, **settings: object) -> Play:
    made = Play(**settings).named()
    values: dict[Entity, dict[QuotaKey, float]] = {}
    for entity, key, value in quotas:
        values.setdefault(entity, {})[QuotaKey.parse(key)] = value
    made.world.quotas.set_store(QuotaStore(values), made.now, observes=observes)
    return made


def authenticated(made: Play, user: str) -> Play:
    made.session.gate.authenticate(f"User:{user}")
    return made


def throttle_of(made: Play, correlation: int = 1) -> int:
    return decode_answer(made.broker(answer(correlation)))[1]


def fetch_request(correlation: int, version: int = 11, client_id: bytes = b"app", max_bytes: int = 1) -> bytes:
    head = struct.pack(">hhih", FETCH, version, correlation, len(client_id)) + client_id
    message = kio_messages.filled(kio_messages.request_class(FETCH, version), min_bytes=1, max_bytes=max_bytes)
    return framed(head + (b"\0" if version >= 12 else b"") + kio_messages.kio_encode(message))


def fetch_answer(correlation: int, version: int, throttle_ms: int = 0) -> bytes:
    message = kio_messages.filled(kio_messages.answer_class(FETCH, version))
    body = kio_messages.kio_encode(message)
    header = struct.pack(">i", correlation) + (b"\0" if version >= 12 else b"")
    return framed(header + struct.pack(">i", throttle_ms) + body[4:])


@pytest.mark.parametrize("step", [0, 1, 7])
def test_a_client_over_its_quota_is_delayed_and_told_so(step: int) -> None:
    on = play((Entity(None, "app"), "producer_byte_rate", SIZE))
    assert on.client(request(1), step) == (request(1), b"")
    assert throttle_of(on) == 1000
    assert on.session.hold.mute_until == on.now + 1.0
    assert on.rows()["clicks", "delayed", "client-quota"] == (SIZE, 1, 1)


def test_two_connections_of_one_user_share_his_quota() -> None:
    on = authenticated(play((Entity("alice"), "producer_byte_rate", 2 * SIZE)), "alice")
    other = authenticated(Play(), "alice")
    other.world.quotas = on.world.quotas
    on.client(request(1))
    other.client(request(1))
    assert throttle_of(on) == 500
    assert throttle_of(other) == 1000


def test_a_user_is_known_only_once_the_broker_has_accepted_him() -> None:
    on = play((Entity("alice"), "producer_byte_rate", SIZE), (Entity("ANONYMOUS"), "producer_byte_rate", 4 * SIZE))
    on.client(request(1))
    assert throttle_of(on) == 250
    on.now += 1
    authenticated(on, "alice").client(request(2))
    assert throttle_of(on, 2) == 1000


def test_the_client_id_of_each_request_counts() -> None:
    on = play((Entity(None, "slow"), "producer_byte_rate", SIZE))
    assert on.client(request(1, client_id="fast") + request(2, client_id="slow"))[1] == b""
    assert throttle_of(on) == 0
    assert throttle_of(on, 2) == 1000


@pytest.mark.parametrize("client_id", [None, "", "whoever"])
def test_clients_without_an_id_are_under_the_default(client_id: str | None) -> None:
    on = play((Entity(None, DEFAULT), "producer_byte_rate", SIZE))
    on.client(request(1, client_id=client_id))
    assert throttle_of(on) == 1000


def test_a_quota_set_while_connected_binds_with_the_next_request() -> None:
    on = play()
    on.client(request(1))
    assert throttle_of(on) == 0
    on.world.quotas.set_store(
        QuotaStore({Entity(None, "app"): {QuotaKey.parse("producer_byte_rate"): float(SIZE)}}), on.now
    )
    on.client(request(2))
    assert throttle_of(on, 2) == 1000
    on.now += 1
    on.world.quotas.set_store(QuotaStore(), on.now)
    on.client(request(3))
    assert throttle_of(on, 3) == 0


def test_internal_clients_are_under_no_quota() -> None:
    on = play((Entity(None, DEFAULT), "producer_byte_rate", 1), internal_client_ids=("app",))
    on.client(request(1))
    assert throttle_of(on) == 0


def test_the_longest_of_quota_and_storage_wins_and_both_are_charged() -> None:
    on = play((Entity(None, "app"), "producer_byte_rate", SIZE))
    on.engine.set_policy(4 * SIZE, {})
    on.engine.set_storage(0.5, "broker 2 volume /data", on.now)
    on.client(request(1))
    assert throttle_of(on) == 1000
    storage = on.engine.broker(1).storage
    assert storage is not None
    assert storage.line.bucket.level(on.now) == -SIZE


def test_observed_quotas_touch_nothing() -> None:
    on = play((Entity(None, "app"), "producer_byte_rate", SIZE), observes=True)
    on.client(request(1))
    assert throttle_of(on) == 0
    assert on.rows()["clicks", "would_delay", "client-quota"] == (SIZE, 1, 1)


# --- Fetch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize("version", range(4, 19))
def test_a_fetch_answer_carries_its_throttle_time_and_the_next_fetch_waits(version: int, step: int) -> None:
    frame = fetch_answer(1, version)
    on = play((Entity(None, "app"), "consumer_byte_rate", len(frame)))
    on.client(fetch_request(1, version))
    free = play()
    free.client(fetch_request(1, version))
    expected = bytearray(free.broker(frame))  # addresses in it are hidden
    struct.pack_into(">i", expected, 9 if version >= 12 else 8, 1000)
    assert on.broker(frame, step) == expected
    assert on.client(fetch_request(2, version)) == (b"", b"")
    assert on.session.hold.until == on.now + 1.0
    on.now += 1.0
    assert on.again()[0] == fetch_request(2, version)


@pytest.mark.parametrize("step", [0, 1, 7])
def test_a_fetch_may_ask_for_what_can_be_paid_for_by_the_longest_wait(step: int) -> None:
    # Else a wide fetch would take many times what is allowed: one wait is bounded.
    on = play((Entity(None, "app"), "consumer_byte_rate", 1000))
    assert on.client(fetch_request(1, max_bytes=52_428_800), step)[0] == fetch_request(1, max_bytes=10_000)
    free = play((Entity(None, "other"), "consumer_byte_rate", 1000))
    assert free.client(fetch_request(1, max_bytes=52_428_800), step)[0] == fetch_request(1, max_bytes=52_428_800)


def test_observed_fetches_are_counted_and_not_touched() -> None:
    on = play((Entity(None, "app"), "consumer_byte_rate", 1), observes=True)
    assert on.client(fetch_request(1, max_bytes=52_428_800))[0] == fetch_request(1, max_bytes=52_428_800)
    assert on.broker(fetch_answer(1, 11)) == fetch_answer(1, 11)
    on.rows()
    assert on.counts["fetches_would_be_delayed"] == 1
    assert on.client(fetch_request(2))[0] == fetch_request(2)


def test_produce_behind_a_fetch_under_another_client_id_is_under_that_ones_quota() -> None:
    on = play((Entity(None, "slow"), "producer_byte_rate", SIZE), (Entity(None, "slow"), "consumer_byte_rate", 10**6))
    on.client(request(1, client_id="fast"))
    upstream, _ = on.client(
        fetch_request(2, client_id=b"slow") + request(3, client_id="slow") + request(4, client_id="slow")
    )
    assert upstream == fetch_request(2, client_id=b"slow") + request(3, client_id="slow")


def test_the_larger_throttle_time_of_a_fetch_answer_wins() -> None:
    on = play((Entity(None, "app"), "consumer_byte_rate", 100))
    on.client(fetch_request(1))
    theirs = fetch_answer(1, 11, throttle_ms=60_000)
    assert on.broker(theirs) == theirs


def test_who_consumes_too_much_may_still_produce_and_the_other_way_round() -> None:
    on = play((Entity(None, "app"), "consumer_byte_rate", 1), (Entity(None, "app"), "producer_byte_rate", 1))
    on.client(fetch_request(1))
    on.broker(fetch_answer(1, 11))
    assert on.client(request(2))[0] == request(2)
    on.broker(answer(2))
    on.now = on.session.fetches.mute_until
    assert on.session.hold.mute_until >= on.now
    assert on.client(fetch_request(3))[0] == fetch_request(3)


def test_fetches_without_a_quota_are_not_touched() -> None:
    on = play((Entity(None, "other"), "consumer_byte_rate", 1))
    on.client(fetch_request(1))
    frame = fetch_answer(1, 11)
    assert on.broker(frame) == frame
    assert on.session.fetches.mute_until == 0.0


def test_a_fetch_answer_of_a_consumer_that_has_left_charges_his_line() -> None:
    on = play((Entity(None, "app"), "consumer_byte_rate", 100))
    on.client(fetch_request(1))
    frame = fetch_answer(1, 11)
    on.broker(frame)
    (line,) = on.engine.fleet.lines.values()
    assert line.bucket.level(on.now) == -len(frame)


# --- request_percentage -----------------------------------------------------------------------------------------------


def test_time_spent_on_a_connection_delays_its_next_requests() -> None:
    on = play((Entity(None, "app"), "request_percentage", 10))
    on.client(request(1))
    assert throttle_of(on) == 0
    assert on.session.gate.timed
    on.session.gate.spend(0.2, on.now)
    on.client(request(2))
    assert throttle_of(on, 2) == 2000
    on.now += 2
    on.session.gate.spend(0.1, on.now)
    on.client(fetch_request(3))
    on.broker(fetch_answer(3, 11))
    assert on.session.fetches.mute_until == pytest.approx(on.now + 1.0)
