# Client quotas in a session: who it is decides the lines; Produce and Fetch are delayed, each by its own quota.

from __future__ import annotations

import functools
import struct
from itertools import pairwise
from typing import Any

import pytest

from gateway.channel import QuotaChanges
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from protocol import api
from tests.examples import matrix
from tests.gateway.data.play import APP, Play, answer, decode_answer, present, request, size_of
from tests.gateway.data.session.fetch_frames import asked, consume_all, fetch, fetched, told

SIZE = len(request()) - 4  # the whole request but for its size prefix, as in Kafka
BATCH = size_of()
PRODUCE, CONSUME = "producer_byte_rate", "consumer_byte_rate"


def play(*quotas: tuple[Entity, str, float], observes: bool = False, **settings: Any) -> Play:
    return Play(**settings).named().set_quotas(*quotas, observes=observes)


def authenticated(made: Play, user: str) -> Play:
    made.session.client.set_principal(f"User:{user}")
    return made


def throttle_of(made: Play, correlation: int = 1) -> int:
    return decode_answer(made.broker(answer(correlation)))[1]


def fetch_request(correlation: int, version: int = 11, client_id: bytes = b"app", max_bytes: int = 1) -> bytes:
    return fetch(correlation, version, (), client_id=client_id, max_bytes=max_bytes)


def fetch_answer(correlation: int, version: int, throttle_ms: int = 0) -> bytes:
    return fetched(correlation, version, {}, throttle_ms=throttle_ms)


def test_two_connections_of_one_user_share_its_quota() -> None:
    on = authenticated(play((Entity("alice"), PRODUCE, 2 * SIZE)), "alice")
    other = authenticated(Play(), "alice")
    other.world.quotas = on.world.quotas
    on.client(request(1))
    other.client(request(1))
    assert throttle_of(on) == 500
    assert throttle_of(other) == 1000


def test_a_user_is_known_only_once_the_broker_has_accepted_it() -> None:
    on = play((Entity("alice"), PRODUCE, SIZE), (Entity("ANONYMOUS"), PRODUCE, 4 * SIZE))
    on.client(request(1))
    assert throttle_of(on) == 250
    on.now += 1
    authenticated(on, "alice").client(request(2))
    assert throttle_of(on, 2) == 1000


def test_the_client_id_of_each_request_counts() -> None:
    on = play((Entity(None, "slow"), PRODUCE, len(request(client_id="slow")) - 4))
    assert on.client(request(1, client_id="fast") + request(2, client_id="slow"))[1] == b""
    assert throttle_of(on) == 0
    assert throttle_of(on, 2) == 1000


@pytest.mark.parametrize("client_id", [None, "", "whoever"])
def test_clients_without_an_id_are_under_the_default(client_id: str | None) -> None:
    on = play((Entity(None, DEFAULT), PRODUCE, len(request(client_id=client_id)) - 4))
    on.client(request(1, client_id=client_id))
    assert throttle_of(on) == 1000


def test_a_quota_set_while_connected_binds_with_the_next_request() -> None:
    on = play()
    on.client(request(1))
    assert throttle_of(on) == 0
    on.set_quotas((APP, PRODUCE, float(SIZE)))
    on.client(request(2))
    assert throttle_of(on, 2) == 1000
    on.now += 1
    on.set_quotas()
    on.client(request(3))
    assert throttle_of(on, 3) == 0


@pytest.mark.parametrize("removed", [False, True])
def test_an_answer_is_charged_to_the_quotas_that_there_are_when_it_comes(removed: bool) -> None:
    on = play((APP, CONSUME, 100.0))
    on.client(fetch())
    on.set_quotas(*([] if removed else [(APP, CONSUME, 200.0)]))
    assert (told(on.broker(fetched())) == 0) is removed
    assert bool(on.client(fetch(2))[0]) is removed


def test_changes_of_some_quotas_leave_all_others_as_they_are() -> None:
    on = play((APP, PRODUCE, float(SIZE)), (Entity("bob"), PRODUCE, 1.0))
    bob = on.world.quotas.store.entries[Entity("bob")]
    on.world.change_quotas(QuotaChanges({APP: {}}), on.now)
    on.client(request(1))
    on.client(request(2))
    assert throttle_of(on, 1) == throttle_of(on, 2) == 0
    assert on.world.quotas.store.entries[Entity("bob")] is bob
    on.world.change_quotas(QuotaChanges({APP: {QuotaKey.parse(PRODUCE): 1.0}}), on.now)
    on.client(request(3))
    assert throttle_of(on, 3) > 0


def test_the_longest_of_quota_and_storage_wins_and_both_are_charged() -> None:
    on = play((APP, PRODUCE, SIZE))
    on.engine.set_thresholds(4 * BATCH, {})
    on.engine.set_storage_factor(0.5, "broker 2 volume /data", on.now)
    on.client(request(1))
    assert throttle_of(on) == 1000
    assert present(on.engine.broker_meters(1).limits.storage_throttle).limiter.bucket.token_level(on.now) == -BATCH


# --- Fetch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "version"), matrix([0, 1, 3], range(4, 19)))
def test_a_fetch_answer_carries_its_throttle_time_and_the_next_fetch_waits(version: int, step: int) -> None:
    frame = fetch_answer(1, version)
    on = play((APP, CONSUME, len(frame)))
    on.client(fetch_request(1, version))
    free = play()
    free.client(fetch_request(1, version))
    expected = bytearray(free.broker(frame))  # addresses in it are hidden
    struct.pack_into(">i", expected, 9 if version >= 12 else 8, 1000)
    assert on.broker(frame, step) == expected
    assert on.client(fetch_request(2, version)) == (b"", b"")
    assert on.session.hold.held_until == on.now + 1.0
    on.now += 1.0
    assert on.again()[0] == fetch_request(2, version)


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_share_group_gets_is_under_the_quota_as_well(version: int) -> None:
    """As in Kafka (KafkaApis.processShareFetchResponse)."""
    share = functools.partial(fetch, version=version, key=api.SHARE_FETCH)
    frame = fetched(1, version, key=api.SHARE_FETCH)
    on = play((APP, CONSUME, len(frame)))
    assert asked(on.client(share(1))[0], version, api.SHARE_FETCH) < 10 * len(frame)
    assert told(on.broker(frame), version, api.SHARE_FETCH) == 1000
    assert on.client(share(2)) == (b"", b"")
    on.now += 1.0
    assert on.again()[0]


@pytest.mark.parametrize("step", [0, 1, 7])
def test_a_fetch_may_ask_for_what_can_be_paid_for_by_the_longest_wait(step: int) -> None:
    # Else a wide fetch would take many times what is allowed: one wait is bounded.
    on = play((APP, CONSUME, 1000))
    assert on.client(fetch_request(1, max_bytes=52_428_800), step)[0] == fetch_request(1, max_bytes=3333)
    free = play((Entity(None, "other"), CONSUME, 1000))
    assert free.client(fetch_request(1, max_bytes=52_428_800), step)[0] == fetch_request(1, max_bytes=52_428_800)


def test_observed_fetches_are_counted_and_not_touched() -> None:
    on = play((APP, CONSUME, 1), observes=True)
    assert on.client(fetch_request(1, max_bytes=52_428_800))[0] == fetch_request(1, max_bytes=52_428_800)
    assert on.broker(fetch_answer(1, 11)) == fetch_answer(1, 11)
    on.rows()
    assert on.counts["fetches_would_be_delayed"] == 1
    assert on.client(fetch_request(2))[0] == fetch_request(2)


def test_produce_behind_a_fetch_under_another_client_id_is_under_that_ones_quota() -> None:
    on = play((Entity(None, "slow"), PRODUCE, SIZE), (Entity(None, "slow"), CONSUME, 10**6))
    on.client(request(1, client_id="fast"))
    upstream, _ = on.client(
        fetch_request(2, client_id=b"slow") + request(3, client_id="slow") + request(4, client_id="slow")
    )
    assert upstream == fetch_request(2, client_id=b"slow") + request(3, client_id="slow")


def test_the_larger_throttle_time_of_a_fetch_answer_wins() -> None:
    on = play((APP, CONSUME, 100))
    on.client(fetch_request(1))
    theirs = fetch_answer(1, 11, throttle_ms=60_000)
    assert on.broker(theirs) == theirs


def test_a_client_that_consumes_too_much_may_still_produce_and_the_other_way_round() -> None:
    rate = len(fetch_answer(1, 11)) // 5
    on = play((APP, CONSUME, rate), (APP, PRODUCE, 1))
    on.client(fetch_request(1))
    on.broker(fetch_answer(1, 11))
    assert on.client(request(2))[0] == request(2)
    on.broker(answer(2))
    on.now = on.session.fetch_limiter.muted_until
    assert on.session.hold.muted_until >= on.now
    assert on.client(fetch_request(3))[0] == fetch_request(3)


def test_fetches_without_a_quota_are_not_touched() -> None:
    on = play((Entity(None, "other"), CONSUME, 1))
    on.client(fetch_request(1))
    frame = fetch_answer(1, 11)
    assert on.broker(frame) == frame
    assert on.session.fetch_limiter.muted_until == 0.0


def test_a_fetch_answer_of_a_consumer_that_has_left_charges_its_line() -> None:
    on = play((APP, CONSUME, 100))
    on.client(fetch_request(1))
    frame = fetch_answer(1, 11)
    on.broker(frame)
    (line,) = on.engine.fleet.limiters.values()
    assert line.bucket.token_level(on.now) == -len(frame)


def large_answer(correlation: int, size: int) -> bytes:
    """A Fetch that no limit needs to look into."""
    return struct.pack(">iii", size - 4, correlation, 0) + bytes(size - 12)


@pytest.mark.parametrize("user", ["app", "ANONYMOUS"])
@pytest.mark.parametrize(
    ("rate", "connections", "batch"),
    [(1000, 1, 100_000), (1000, 10, 100_000), (1e5, 1, 1000), (1e5, 30, 100_000), (1e5, 30, 1000)],
)
def test_consumers_get_their_quota_whatever_their_number_and_batches(
    rate: float, connections: int, batch: int, user: str
) -> None:
    on = play((APP if user == "app" else Entity(user), CONSUME, rate))
    consumers = [on.beside(None) for _ in range(connections)]
    got = consume_all(consumers, 300, batch, lambda each, size: each.broker(large_answer(1, size)))
    once = connections * batch + 11 * rate  # all may begin at once, with a batch each
    assert 0.95 * rate <= sum(size for _, _, size in got) / 300 <= 1.02 * rate + once / 300
    times = [on.now] + [at for at, _, _ in got]
    assert max(later - at for at, later in pairwise(times)) <= once / rate + 11.0


def test_consumers_that_all_start_at_once_do_not_all_take_everything() -> None:
    on = play((APP, CONSUME, 1e6))
    all_ = [on.beside(None) for _ in range(20)]
    sizes = [asked(each.client(fetch_request(1, max_bytes=50_000_000))[0]) for each in all_]
    assert sizes[0] > sizes[1] > sizes[2]
    assert sum(sizes) < 12e6
    for each in all_[:10]:
        each.broker(fetch_answer(1, 11))
    for each in all_[10:]:
        each.session.close()
    on.now += 10.0
    assert asked(on.client(fetch_request(1, max_bytes=50_000_000))[0]) >= sizes[0]


def test_a_fetch_waits_until_its_quota_has_room() -> None:
    on = play((APP, CONSUME, 1000))
    on.client(fetch_request(1))
    on.broker(large_answer(1, 60_000))
    other = on.beside(None)
    assert other.client(fetch_request(1)) == (b"", b"")
    held = 0.0
    while not (upstream := other.again()[0]):
        assert other.session.hold.held_until <= other.now + 10.0
        held += other.session.hold.held_until - other.now
        other.now = other.session.hold.held_until
    assert upstream == fetch_request(1)
    assert 50.0 <= held <= 60.0


def test_a_fetch_that_would_have_to_wait_is_not_sent_for_a_client_that_has_gone() -> None:
    """Or a client that closes half of its connection behind many of them would get all of them at once."""
    on = play((APP, CONSUME, 1000))
    on.client(fetch_request(1))
    on.broker(large_answer(1, 60_000))
    other = on.beside(None)
    assert other.client(fetch_request(1) + fetch_request(2)) == (b"", b"")
    other.session.hold.is_client_gone = True
    assert other.again() == (b"", b"")
    other.now += 60
    assert other.again() == (b"", b"")


# --- request_percentage -----------------------------------------------------------------------------------------------


def test_time_spent_on_a_connection_delays_its_next_requests() -> None:
    on = play((APP, "request_percentage", 10))
    on.client(request(1))
    assert throttle_of(on) == 0
    assert on.session.client.quota_limit.time_limiters
    on.session.client.charge_time(0.2, on.now)
    on.client(request(2))
    assert throttle_of(on, 2) == 2000
    on.now += 2
    on.session.client.charge_time(0.1, on.now)
    on.client(fetch_request(3))
    on.broker(fetch_answer(3, 11))
    assert on.session.fetch_limiter.muted_until == pytest.approx(on.now + 1.0)


# --- far below a quota: charged without being judged ------------------------------------------------------------------

ROOM = 1000 * SIZE


def saved(made: Play) -> float:
    (line,) = made.world.quotas._limiters.values()
    return line.bucket.token_level(made.now)


def with_room(**settings: Any) -> Play:
    """A client that has saved a second's worth of its quota."""
    made = play((APP, PRODUCE, ROOM), **settings)
    made.client(request(9))
    made.broker(answer(9))
    made.now += 60.0
    assert saved(made) == ROOM
    return made


@pytest.mark.parametrize("topics", [{"clicks": [0]}, {"clicks": [0, 1, 2], "orders": [0]}], ids=["one", "several"])
def test_what_a_quota_has_room_for_is_charged_to_it(topics: dict[str, list[int]]) -> None:
    on = with_room()
    size = len(request(1, topics)) - 4
    assert on.client(request(1, topics))[0]
    assert saved(on) == ROOM - size
    on.broker(answer(1, {topic: dict.fromkeys(parts, (0, 1)) for topic, parts in topics.items()}))
    assert saved(on) == ROOM - size
    (line,) = on.world.quotas._limiters.values()
    assert line.meter.charged == size + SIZE


@pytest.mark.parametrize("index", [0, 2])
def test_a_partition_that_the_broker_refuses_counts_all_the_same(index: int) -> None:
    on = with_room()
    parts = {"clicks": [0, 1, 2]}
    on.client(request(1, parts))
    on.broker(answer(1, {"clicks": {part: (10 if part == index else 0, 1) for part in range(3)}}))
    assert saved(on) == ROOM - (len(request(1, parts)) - 4)


def test_what_a_connection_loses_counts_all_the_same() -> None:
    on = with_room()
    lost = request(1, {"orders": [0]})
    on.client(lost)
    on.session.close()
    assert saved(on) == ROOM - (len(lost) - 4)


def test_a_request_that_is_larger_than_the_room_waits_as_it_would_alone() -> None:
    on = with_room()
    small = 999
    for correlation in range(small):
        on.client(request(correlation))
        on.broker(answer(correlation))
    assert saved(on) == SIZE
    assert not on.session.hold.muted_until
    three = request(1, {"clicks": [0, 1, 2]})
    on.client(three)
    assert saved(on) == SIZE - (len(three) - 4)
    assert not on.session.hold.muted_until  # 2 ms: not worth a timer


def test_a_quota_charges_a_topic_over_its_threshold_for_nothing() -> None:
    on = with_room(total=10, topics={"clicks": 5})
    on.overload("clicks")
    both = request(1, {"clicks": [0], "orders": [0]})
    on.client(both)
    assert on.rows()["clicks", "rejected", "topic-threshold"][0] == BATCH
    assert saved(on) == ROOM - (len(both) - 4 - BATCH)  # for the batch of the other topic alone
