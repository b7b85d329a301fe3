# Dispatch limits of resource groups in a session (PIP-82): what Fetch answers hold is charged to the groups of their
# topics, and the connection's next Fetch waits. Answers are kio's, batches real.

from __future__ import annotations

import struct
from typing import Any

import pytest

from gateway.data.session.dispatch import DEBT_S, FETCH_PART
from policies.groups.finder import GroupResolver
from policies.groups.group_limiters import GroupLimit, GroupLimitValues
from policies.quotas.names import Entity
from protocol import api, framing
from protocol.wire import MalformedFrame
from tests.examples import matrix
from tests.gateway.data.play import APP, Play, answer, other_answer, other_request, present, request
from tests.gateway.data.session.fetch_frames import (
    CLICKS,
    FREE,
    IDS,
    ONE,
    ORDERS,
    PLAIN,
    MiB,
    asked,
    consume,
    consume_all,
    fetch,
    fetched,
    told,
)
from tests.protocol import kio_messages
from tests.protocol.produce_cases import framed

SIZE = len(ONE)
CONSUME = "consumer_byte_rate"
GOLD = {"gold": GroupLimitValues(dispatch_bytes=float(SIZE))}


def play(
    limits: dict[str, GroupLimitValues] | None = None,
    *,
    tenants: dict[str, str] | None = None,
    namespaces: dict[str, str] | None = None,
    principal_pattern: str = "",
    observes: bool = False,
    **settings: Any,
) -> Play:
    made = Play(**settings).named()
    finder = GroupResolver(
        "{tenant}.{namespace}.{topic}", principal_pattern, tenants or {"acme": "gold"}, namespaces or {}
    )
    made.engine.set_groups(GOLD if limits is None else limits, finder, made.now, observes=observes)
    made.world.cluster.topic_ids.update({id_.bytes: name.encode() for name, id_ in IDS.items()})
    return made


def side(on: Play, topic: str = ORDERS) -> GroupLimit:
    return present(on.engine.groups.dispatch_limit(topic.encode(), "", on.now))


def counts(on: Play) -> dict[str, int]:
    on.ledger()
    return on.counts


# --- a limit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "version"), matrix([0, 1, 7, 1000], range(4, 19)))
def test_an_answer_is_charged_to_its_group_and_the_next_fetch_waits(version: int, step: int) -> None:
    on = play()
    on.client(fetch(1, version), step)
    frame = fetched(1, version, {ORDERS: [ONE, ONE], FREE: [ONE], CLICKS: [ONE]})
    passed = on.broker(frame, step)
    free = Play()
    free.client(fetch(1, version))
    plain = bytearray(free.broker(frame))  # addresses in it are hidden
    if not step:
        assert told(passed, version) == 3000
        struct.pack_into(">i", plain, 9 if version >= 12 else 8, 3000)
    assert passed == plain
    assert (side(on).byte_meter.charged, side(on).message_meter.charged) == (3 * SIZE, 12)
    assert on.client(fetch(2, version)) == (b"", b"")
    assert on.session.hold.held_until == on.now + 3.0
    on.now += 3.0
    assert len(on.again()[0]) == len(fetch(2, version))
    assert counts(on)["fetches_delayed"] == 1
    assert on.counts["fetch_delay_ms"] == 3000


@pytest.mark.parametrize("step", [0, 1, 100])
def test_answers_behind_one_that_is_charged_pass_in_their_order(step: int) -> None:
    on = play()
    unknown = other_request(3, key=api.API_VERSIONS, version=100)  # the gateway answers it
    on.client(fetch(1) + other_request(2) + unknown + other_request(4))
    said = fetched(1), other_answer(2), other_answer(4)
    passed = on.broker(b"".join(said), step)
    correlations = []
    while passed:
        size, correlation = framing.RESPONSE_HEAD.unpack_from(passed)
        correlations.append(correlation)
        passed = passed[4 + size :]
    assert correlations == [1, 2, 3, 4]
    assert not on.session.in_flight


def test_an_answer_is_charged_to_the_quota_of_the_client_id_that_asked_for_it() -> None:
    on = Play().named().set_quotas((APP, CONSUME, float(SIZE)))
    on.client(fetch(1))
    on.client(request(2, client_id="other"))
    frame = fetched(1)
    wait_ms = round(1000 * len(frame) / SIZE)
    assert told(on.broker(frame)) == wait_ms
    assert on.session.fetch_limiter.muted_until == pytest.approx(on.now + wait_ms / 1000, abs=0.001)


@pytest.mark.parametrize("version", [1, 2])
def test_a_share_fetch_is_charged_and_waits_as_well(version: int) -> None:
    on = play()
    on.client(fetch(1, version, key=api.SHARE_FETCH))
    assert told(on.broker(fetched(1, version, key=api.SHARE_FETCH)), version, api.SHARE_FETCH) == 1000
    assert on.client(fetch(2, version, key=api.SHARE_FETCH)) == (b"", b"")
    on.now += 1.0
    upstream, _ = on.again()
    assert asked(upstream, version, api.SHARE_FETCH) == int(DEBT_S * FETCH_PART * SIZE)


def test_messages_are_limited_whatever_their_size() -> None:
    on = play({"gold": GroupLimitValues(dispatch_msgs=2.0)})
    assert consume(on) == 2000
    assert on.session.fetch_limiter.muted_until == on.now + 2.0


def test_the_longer_wait_of_bytes_and_messages_counts() -> None:
    on = play({"gold": GroupLimitValues(dispatch_bytes=float(SIZE), dispatch_msgs=1.0)})
    assert consume(on) == 4000


def test_all_topics_and_connections_of_a_group_share_its_limit() -> None:
    on = play()
    other = on.beside(None)
    on.client(fetch())
    other.client(fetch(topics=(CLICKS,)))
    on.broker(fetched())
    assert told(other.broker(fetched(topics={CLICKS: [ONE]}))) == 2000


def test_each_group_is_charged_for_its_own_topics_and_the_longest_wait_counts() -> None:
    limits = {"gold": GroupLimitValues(dispatch_bytes=float(SIZE)), "web": GroupLimitValues(dispatch_bytes=SIZE / 5)}
    on = play(limits, namespaces={"acme/web": "web"})
    assert consume(on, 1, {ORDERS: [ONE, ONE], CLICKS: [ONE]}) == 5000
    assert side(on, ORDERS).byte_meter.charged == 2 * SIZE
    assert side(on, CLICKS).byte_meter.charged == SIZE


def test_a_new_consumer_of_several_groups_waits_for_the_one_that_owes_most() -> None:
    limits = {"gold": GroupLimitValues(dispatch_bytes=float(SIZE)), "web": GroupLimitValues(dispatch_bytes=SIZE / 5)}
    on = play(limits, namespaces={"acme/web": "web"})
    consume(on, 1, {ORDERS: [ONE], CLICKS: [ONE]})
    for topics in ((ORDERS, CLICKS), (CLICKS, ORDERS)):
        other = on.beside(None)
        assert other.client(fetch(topics=topics)) == (b"", b"")
        assert other.session.hold.held_until == on.now + 5.0


def test_one_wait_is_bounded() -> None:
    on = play({"gold": GroupLimitValues(dispatch_bytes=1.0)})
    assert consume(on) == 10_000
    assert on.session.fetch_limiter.muted_until == on.now + 10.0


def test_the_principal_may_say_which_group_it_is() -> None:
    on = play(tenants={"billing": "gold"}, principal_pattern="User:(?P<tenant>[a-z]+)-app")
    on.session.client.set_principal("User:billing-app")
    assert consume(on, 1, {FREE: [ONE]}) == 0  # its name says another tenant
    assert consume(on, 2, {PLAIN: [ONE]}) == 1000
    other = on.beside(None)
    assert consume(other, 1, {PLAIN: [ONE]}) == 0


def test_an_answer_without_records_costs_nothing() -> None:
    on = play()
    on.client(fetch())
    frame = fetched(topics={ORDERS: [b""]})
    assert on.broker(frame) == frame
    on.client(fetch(2, topics=()))
    frame = fetched(2, topics={})
    assert on.broker(frame) == frame
    assert on.session.fetch_limiter.muted_until == 0.0


def test_the_brokers_own_throttle_time_is_never_lowered() -> None:
    on = play()
    assert consume(on, throttle_ms=60_000) == 60_000


def test_other_requests_pass_while_fetch_waits() -> None:
    """Heartbeats above all: the consumer group stays as it is."""
    on = play()
    consume(on)
    assert on.client(other_request(2))[0] == other_request(2)
    assert on.broker(other_answer(2)) == other_answer(2)
    assert on.client(request(3))[0] == request(3)
    assert on.broker(answer(3)) == answer(3)
    assert on.client(fetch(4)) == (b"", b"")


@pytest.mark.parametrize("over", ["is_client_gone", "is_draining"])
def test_a_fetch_that_would_have_to_wait_for_its_group_is_not_sent_for_a_client_that_has_gone_or_a_drain(
    over: str,
) -> None:
    on = play()
    consume(on)
    setattr(on.session.hold, over, True)
    assert on.client(fetch(2) + request(3)) == (b"", b"")


# --- what a client is told while the answer still comes ---------------------------------------------------------------


def test_the_wait_to_be_expected_after_an_answer_of_many_pieces_is_told_in_its_head() -> None:
    """The estimate goes by the last answer's composition; the answer's end decides how long the next request waits."""
    on = play({"gold": GroupLimitValues(dispatch_bytes=100.0 * SIZE)})
    records = {ORDERS: [ONE] * 150, FREE: [ONE] * 150}
    on.client(fetch())
    assert told(on.broker(fetched(topics=records), 50_000)) == 0  # nobody knows yet
    assert on.session.fetch_limiter.muted_until == on.now + 1.5
    on.now += 1.5
    on.client(fetch(2))
    assert told(on.broker(fetched(2, topics=records), 50_000)) == 1500
    assert on.session.fetch_limiter.muted_until == on.now + 1.5


def test_a_debt_is_charged_while_a_long_answer_passes() -> None:
    on = play()
    on.client(fetch())
    frame = fetched(topics={ORDERS: [ONE], CLICKS: [ONE]})
    on.broker(frame[: len(frame) // 2])
    assert side(on).byte_meter.charged == SIZE
    assert on.session.fetch_limiter.muted_until == 0.0
    on.now += 1.0
    on.broker(frame[len(frame) // 2 :])
    assert on.session.fetch_limiter.muted_until == on.now + 1.0


# --- how much a Fetch may ask for -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 7, 11, 12, 17, 18])
def test_a_fetch_may_ask_for_what_the_group_pays_for_in_a_while(version: int) -> None:
    on = play({"gold": GroupLimitValues(dispatch_bytes=1e6)})
    assert asked(on.client(fetch(1, version))[0], version) == int(DEBT_S * FETCH_PART * 1e6)


def test_the_slowest_group_that_it_is_about_counts() -> None:
    limits = {"gold": GroupLimitValues(dispatch_bytes=1e6), "web": GroupLimitValues(dispatch_bytes=1e3)}
    on = play(limits, namespaces={"acme/web": "web"})
    assert asked(on.client(fetch(1, topics=(ORDERS, CLICKS)))[0]) == int(DEBT_S * FETCH_PART * 1e3)
    on.broker(fetched(1, topics={}))
    # in a session it lists nothing any more
    assert asked(on.client(fetch(2, topics=()))[0]) == int(DEBT_S * FETCH_PART * 1e3)


def test_bytes_that_are_owed_already_are_not_asked_for() -> None:
    on = play({"gold": GroupLimitValues(dispatch_bytes=1e6)})
    other = on.beside(None)
    on.client(fetch())
    on.broker(fetched(topics={ORDERS: []}))
    side(on).charge_request(500_000, 1, on.now)
    assert asked(on.client(fetch(2))[0]) == pytest.approx(FETCH_PART * (DEBT_S * 1e6 - 500_000), abs=1)
    side(on).charge_request(9 * 10**6, 1, on.now)
    on.broker(fetched(2, topics={ORDERS: []}))
    assert asked(on.client(fetch(3))[0]) == 1  # the broker gives one batch
    assert other.client(fetch()) == (b"", b"")


def take(on: Play, size: int) -> None:
    """An answer with so many bytes of records."""
    found = present(on.session.fetch_limiter.dispatch)
    found.charge_topics([(ORDERS.encode(), size, 1)], False, on.now)
    on.session.fetch_limiter._end_owed_response()
    on.session.fetch_limiter._mute_fetches(found.end_response(size, on.now), on.now)
    on.session.in_flight.drop_all()


def test_consumers_that_share_a_group_get_equal_parts_however_many_they_are() -> None:
    rate, many = 1e6, 12
    on = play({"gold": GroupLimitValues(dispatch_bytes=rate)})
    taken = [0] * many
    for at, number, size in consume_all([on.beside(None) for _ in range(many)], 60.0, 0, take):
        taken[number] += size if at >= on.now + 20.0 else 0
    assert sum(taken) / 40.0 == pytest.approx(rate, rel=0.03)
    assert min(taken) > 0.8 * max(taken)


@pytest.mark.parametrize(("rate", "many", "batch"), [(1000, 1, 100_000), (1000, 10, 100_000), (1e5, 30, 100_000)])
def test_a_group_gets_its_limit_whatever_its_number_of_consumers_and_their_batches(
    rate: float, many: int, batch: int
) -> None:
    on = play({"gold": GroupLimitValues(dispatch_bytes=rate)})
    got = consume_all([on.beside(None) for _ in range(many)], 400, batch, take)
    once = many * batch + 11 * rate  # all may begin at once, with a batch each
    assert 0.95 * rate * 400 <= sum(size for _, _, size in got) <= 1.02 * rate * 400 + once


def test_consumers_that_all_start_at_once_do_not_all_take_everything() -> None:
    on = play({"gold": GroupLimitValues(dispatch_bytes=1e6)})
    all_ = [on.beside(None) for _ in range(20)]
    sizes = [asked(each.client(fetch())[0]) for each in all_]
    assert sizes[0] == int(DEBT_S * FETCH_PART * 1e6)
    assert sum(sizes) < DEBT_S * 1e6
    for each in all_:
        each.broker(fetched(topics={ORDERS: []}))
    assert side(on).promised_s == pytest.approx(0.0)
    assert asked(all_[1].client(fetch(2))[0]) == int(DEBT_S * FETCH_PART * 1e6)


def test_bytes_promised_to_a_connection_that_closes_are_free_again() -> None:
    on = play({"gold": GroupLimitValues(dispatch_bytes=1e6)})
    gone = on.beside(None)
    gone.client(fetch())
    gone.session.close()
    assert asked(on.client(fetch())[0]) == int(DEBT_S * FETCH_PART * 1e6)


def test_a_consumer_that_is_new_to_a_group_waits_for_the_debt_that_is_there() -> None:
    """Otherwise a consumer could escape by reconnecting."""
    on = play()
    consume(on)
    other = on.beside(None)
    assert other.client(fetch()) == (b"", b"")
    assert other.session.hold.held_until == on.now + 1.0
    assert other.client(fetch(2, topics=(FREE,))) == (b"", b"")  # in order
    other.now += 1.0
    assert len(other.again()[0]) == len(fetch())
    other.broker(fetched(topics={ORDERS: []}))
    assert len(other.again()[0]) == len(fetch(2, topics=(FREE,)))


@pytest.mark.parametrize("version", [1, 2])
def test_a_new_member_of_a_share_group_waits_for_the_debt_that_is_there(version: int) -> None:
    on = play()
    consume(on)
    other = on.beside(None)
    assert other.client(fetch(1, version, key=api.SHARE_FETCH)) == (b"", b"")
    assert other.session.hold.held_until == on.now + 1.0
    other.now += 1.0
    assert asked(other.again()[0], version, api.SHARE_FETCH) == int(DEBT_S * FETCH_PART * SIZE)


@pytest.mark.parametrize("version", range(7, 19))
def test_a_session_goes_on_over_its_connection_only(version: int) -> None:
    """Later requests of a session don't list its topics (KIP-227): elsewhere they would pass at once."""
    on = play({"gold": GroupLimitValues(dispatch_bytes=1e9)})
    later = fetch(2, version, (), session=(3, 1))
    for each, begins in ((on, True), (on.beside(None), False)):
        if begins:
            each.client(fetch(1, version))
            each.broker(fetched(1, version))
        upstream, answered = each.client(later)
        assert bool(upstream) is begins
        assert bool(answered) is not begins
    cls = kio_messages.answer_class(api.FETCH, version)
    head = len(kio_messages.answer_header(cls, 2))
    assert answered[4 : 4 + head] == kio_messages.answer_header(cls, 2)
    said = kio_messages.kio_decode(cls, answered[4 + head :])
    assert (said.error_code, said.session_id, said.responses) == (api.FETCH_SESSION_ID_NOT_FOUND, 0, ())
    assert on.beside(None).client(fetch(2, version, session=(3, 0)))[0], "the client begins another one"
    free = play({})
    assert free.client(later)[0] == later


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("limit", ["group", "quota", "both"])
def test_a_fetch_that_was_sent_ahead_waits_for_the_answer_before_it(limit: str, step: int) -> None:
    """A broker gives each of them a batch at least, and all would be here before the first one is charged."""
    rate = 1e9  # neither makes them wait by itself
    on = play({"gold": GroupLimitValues(dispatch_bytes=rate)} if limit != "quota" else {})
    if limit != "group":
        on.set_quotas((APP, CONSUME, rate))
    sent = fetch(1) + other_request(2) + fetch(3) + fetch(4) + other_request(5)
    assert on.client(sent)[0] == fetch(1) + other_request(2)
    assert not on.session.may_resume(on.now)
    on.broker(fetched(1), step)
    assert on.session.may_resume(on.now)
    assert on.again()[0] == fetch(3)
    on.broker(other_answer(2) + fetched(3), step)
    assert on.again()[0] == fetch(4) + other_request(5)
    on.broker(fetched(4) + other_answer(5), step)
    assert on.session.is_idle
    assert "fetches_delayed" not in counts(on)


def test_without_a_limit_that_is_enforced_fetches_may_be_sent_ahead() -> None:
    for on in (play({}), play(observes=True), play({}).set_quotas((APP, CONSUME, 1.0), observes=True)):
        assert on.client(fetch(1) + fetch(2))[0] == fetch(1) + fetch(2)


def test_a_message_limit_bounds_bytes_by_what_messages_were_like() -> None:
    on = play({"gold": GroupLimitValues(dispatch_msgs=1000.0)})
    consume(on)
    assert asked(on.client(fetch(2))[0]) == pytest.approx((DEBT_S * 1000 - 4) * FETCH_PART * SIZE / 4, rel=0.01)


# --- who is not limited -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{}, {"gold": GroupLimitValues(publish_bytes=1.0)}])
def test_without_a_dispatch_limit_fetches_cost_nothing(limits: dict[str, GroupLimitValues]) -> None:
    on = play(limits)
    assert on.client(fetch())[0] == fetch()
    assert on.session.in_flight.oldest_entry() == (1, 0)
    assert on.broker(fetched()) == fetched()
    assert on.session.fetch_limiter.dispatch is None


def test_topics_without_a_group_are_not_limited() -> None:
    on = play()
    assert on.client(fetch(topics=(FREE,)))[0] == fetch(topics=(FREE,))
    frame = fetched(topics={FREE: [ONE] * 3})
    assert on.broker(frame) == frame
    assert on.client(fetch(2, topics=(FREE,)))[0] == fetch(2, topics=(FREE,))


@pytest.mark.parametrize("settings", [{"internal_client_ids": ("app",)}, {"internal_principals": ("User:ANONYMOUS",)}])
def test_internal_consumers_are_not_limited(settings: dict[str, Any]) -> None:
    """Replication above all (PIP-82)."""
    on = play(**settings)
    assert on.client(fetch())[0] == fetch()
    assert on.broker(fetched()) == fetched()
    assert on.session.fetch_limiter.muted_until == 0.0


def test_observed_limits_are_counted_and_touch_nothing() -> None:
    on = play(observes=True)
    for correlation in (1, 2):
        assert on.client(fetch(correlation))[0] == fetch(correlation)
        assert on.broker(fetched(correlation)) == fetched(correlation)
    assert counts(on)["fetches_would_be_delayed"] == 2
    assert "fetches_delayed" not in on.counts
    meter = side(on).byte_meter
    assert (meter.charged, meter.uncharged) == (SIZE, SIZE)


# --- beside client quotas ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 100])
def test_the_longest_of_quota_and_group_counts(step: int) -> None:
    frame = fetched()
    for rate, wait in ((len(frame) / 5, 5.0), (10.0 * SIZE, 1.0)):
        on = play().set_quotas((APP, CONSUME, rate))
        on.client(fetch())
        throttle_ms = told(on.broker(frame, step))
        assert on.session.fetch_limiter.muted_until == pytest.approx(on.now + wait)
        assert counts(on)["fetches_delayed"] == 1
        assert on.counts["fetch_delay_ms"] == wait * 1000
        if not step:
            assert throttle_ms == wait * 1000


def test_an_observed_quota_beside_a_group_that_is_not() -> None:
    on = play().set_quotas((APP, CONSUME, 1.0), observes=True)
    assert consume(on) == 1000
    assert counts(on)["fetches_delayed"] == 1


def test_an_observed_group_beside_a_quota_that_is_not() -> None:
    on = play({"gold": GroupLimitValues(dispatch_bytes=1.0)}, observes=True).set_quotas(
        (APP, CONSUME, float(len(fetched())))
    )
    assert consume(on) == 1000


# --- what can't be told -----------------------------------------------------------------------------------------------


def test_an_unknown_topic_id_is_in_no_group_and_counted_once() -> None:
    on = play()
    wanted = []
    on.world.cluster.request_metadata = lambda: wanted.append(True)
    name = on.world.cluster.topic_ids.pop(IDS[ORDERS].bytes)
    assert consume(on, 1, version=13) == 0
    consume(on, 2, version=13)
    assert counts(on)["topic_ids_unknown"] == 1
    assert wanted == [True]
    on.world.cluster.topic_ids[IDS[ORDERS].bytes] = name
    assert consume(on, 3, version=13) == 1000


def test_names_that_a_client_makes_up_fill_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.data.session.dispatch.MAX_TOPICS", 10)
    on = play()
    for n in range(25):
        on.client(fetch(n, topics=(f"acme.shop.{n}", "acme.shop." + "x" * 240 + str(n))))
        on.broker(fetched(n, topics={}))
    assert len(present(on.session.fetch_limiter.dispatch)._by_topic) <= 10
    assert max(map(len, on.engine.groups._groups_by_topic)) <= 249


def old_fetch(version: int) -> bytes:
    """A request of twenty topics, of a version below the lowest that is read (KIP-896)."""
    bounds = struct.pack(">iii", -1, 500, 1) + (struct.pack(">i", 50 * MiB) if version == 3 else b"")
    topic = struct.pack(">h", len(ORDERS)) + ORDERS.encode() + struct.pack(">iiqi", 1, 0, 0, MiB)
    head = struct.pack(">hhih", api.FETCH, version, 1, 3) + b"app"
    return framed(head + bounds + struct.pack(">i", 20) + topic * 20)


@pytest.mark.parametrize("version", range(4))
def test_an_older_fetch_is_no_way_around_a_limit(version: int) -> None:
    with pytest.raises(MalformedFrame, match=f"Fetch version {version}: versions 4 to 18 are spoken"):
        play().client(old_fetch(version))
    frame = old_fetch(version)
    observing = play(observes=True)
    assert observing.client(frame)[0] == frame
    answered = other_answer(1, b"\0" * 8)
    assert observing.broker(answered) == answered


@pytest.mark.parametrize("version", range(4))
def test_a_quota_reads_of_an_older_fetch_what_is_there(version: int) -> None:
    on = Play().named().set_quotas((APP, CONSUME, 1.0))  # so 10 bytes are the most
    frame = old_fetch(version)
    assert (on.client(frame)[0] == frame) == (version < 3)  # before there is no bound, but the count of topics
    answered = other_answer(1, b"\0" * 8)
    assert (on.broker(answered) == answered) == (version == 0)  # there is no throttle time yet
    assert on.session.fetch_limiter.muted_until > on.now


@pytest.mark.parametrize("version", [11, 17])
def test_an_answer_that_can_not_be_followed_passes_and_is_counted(version: int) -> None:
    on = play()
    on.client(fetch(1, version))
    cut = framed(fetched(1, version)[4:-200])  # within the last records
    assert on.broker(cut)[20:] == cut[20:]
    assert counts(on)["answers_not_followed"] == 1
    assert on.session.is_idle


def test_a_group_whose_limit_is_lifted_limits_nothing_from_the_next_answer_on() -> None:
    on = play()
    consume(on)
    on.engine.set_groups({}, GroupResolver("", "", {}, {}), on.now)
    on.now += 1.0
    assert on.client(fetch(2))[0] == fetch(2)
    assert on.broker(fetched(2)) == fetched(2)


def test_a_limit_that_is_lifted_while_an_answer_passes() -> None:
    on = play()
    on.client(fetch())
    frame = fetched()
    on.broker(frame[:100])
    on.engine.set_groups({}, GroupResolver("", "", {}, {}), on.now)
    on.broker(frame[100:])
    assert on.session.fetch_limiter.muted_until == 0.0


def test_bytes_of_consumers_without_shares_are_counted_beside_those_with_shares() -> None:
    on, alice = Play().named(), Entity("alice")
    for key, counted in (("consumer_byte_rate", 0), ("consumer_byte_rate:shares", len(fetched()))):
        on.set_quotas((alice, key, 1.0))
        on.client(fetch())
        assert on.broker(fetched()) == fetched()
        assert on.world.quotas.fetched_bytes.get(1, 0) == counted
    on.client(fetch(key=api.SHARE_FETCH, version=1))
    share = fetched(key=api.SHARE_FETCH, version=1)
    on.broker(share)
    assert on.world.quotas.fetched_bytes[1] == len(fetched()) + len(share)
