# Resource groups in a session (PIP-82): a group's topics share its limit, on the fast way and on the longer one.

from __future__ import annotations

from typing import Any

import pytest

from gateway.channel import GroupSnapshot
from policies.groups.group_limiters import GroupLimit, GroupLimitValues
from policies.meters import broker_meters
from policies.quotas.quota_limiters import QuotaLimiter
from policies.thresholds.pacing import PACE_S
from tests.gateway.data.play import APP, TOPIC_ID, Play, answer, present, request, size_of

SIZE = size_of()
ACME = "acme.orders.t"
GOLD = {"acme": "gold"}


def play(limit: GroupLimitValues, groups: GroupSnapshot | None = None, **settings: Any) -> Play:
    made = Play(**settings).named()
    made.world.set_groups(groups or GroupSnapshot(1, {"gold": limit}, GOLD), made.now)
    return made


def produce(on: Play, correlation: int = 1, topic: str = ACME, **how: object) -> int:
    """Send a request and its answer; return how long the client has to wait."""
    return on.exchange(correlation, {topic: [0]}, **how)


def side(on: Play) -> GroupLimit:
    return on.engine.groups._group_limits["gold", "publish"]


def free(on: Play, topic: str = ACME) -> None:
    """Let time pass until that topic needn't ask."""
    on.now += 1.0
    produce(on, 999, topic)
    while on.engine.broker_meters(1).topics[topic.encode()].needs_decision:
        on.now += PACE_S
        on.engine.pace_limits(on.now)
        if on.now > 2000:
            pytest.fail("it asks for ever")


def fill(on: Play) -> None:
    """Other connections wait as long as any client may, one of this client and those of another."""
    for number in range(15):
        on.beside().client(request(1, {ACME: [0]}, client_id="other" if number else "app"))


@pytest.mark.seed("82.34", "82.48")
def test_topics_connections_and_brokers_share_one_limit() -> None:
    on = play(GroupLimitValues(2 * SIZE))
    other = on.beside(node_id=2)
    assert produce(on) == 500
    assert produce(other, topic="acme.clicks.t") == 1000


def test_messages_have_a_limit_of_their_own() -> None:
    on = play(GroupLimitValues(publish_msgs=2))
    assert produce(on, values=(b"a", b"b", b"c", b"d", b"e", b"f")) == 3000


def test_a_request_with_several_topics_is_judged_by_all_it_has_for_the_group() -> None:
    on = play(GroupLimitValues(SIZE))
    on.client(request(1, {ACME: [0, 1], "acme.clicks.t": [0], "plain": [0]}))
    rows = on.rows()
    delayed = {topic for topic, outcome, _ in rows if outcome == "delayed"}
    assert delayed == {ACME, "acme.clicks.t"}
    assert on.session.hold.muted_until == on.now + 3.0
    assert side(on).byte_meter.charged == 3 * SIZE


def test_only_the_groups_part_of_a_request_is_refused() -> None:
    on = play(GroupLimitValues(SIZE))
    on.now += 1
    fill(on)
    on.rows()
    on.session.hold.drained_at -= 60.0  # its client may not be kept any longer
    _, client = on.client(request(1, {ACME: [0], "plain": [0]}))
    assert client == b""
    assert on.rows()[ACME, "rejected", "resource-group"] == (SIZE, 1, 1)


def test_bytes_that_another_policy_rejects_cost_the_group_nothing() -> None:
    on = play(GroupLimitValues(1000 * SIZE), total=1.0, topics={ACME: 1.0})
    on.overload(ACME)
    before = side(on).byte_meter.charged if ("gold", "publish") in on.engine.groups._group_limits else 0
    on.client(request(1, {ACME: [0]}))
    assert (ACME, "rejected", "topic-threshold") in on.rows()
    assert side(on).byte_meter.charged == before


def test_bytes_that_the_group_rejects_cost_a_client_quota_nothing() -> None:
    on = play(GroupLimitValues(SIZE))
    on.set_quotas((APP, "producer_byte_rate", 1000.0 * SIZE))
    fill(on)
    (line,) = (each for each in on.engine.fleet.limiters.values() if isinstance(each, QuotaLimiter))
    spent = line.spent
    on.session.hold.drained_at -= 60.0
    on.client(request(1, {ACME: [0]}))
    assert on.rows()[ACME, "rejected", "resource-group"][0] > 0
    assert line.spent == spent


def test_the_fast_way_is_charged_by_the_next_pace() -> None:
    on = play(GroupLimitValues(10_000 * SIZE, 10_000))
    free(on)
    line = present(side(on).byte_limiter)
    spent, asked = line.spent, side(on).message_meter.charged
    for correlation in range(1, 11):
        produce(on, correlation, values=(b"payload",))
    assert line.spent == spent
    on.engine.pace_limits(on.now)
    assert line.spent == spent + 10 * SIZE
    assert side(on).message_meter.charged == asked + 10


def test_a_topic_that_used_up_its_groups_credit_on_the_fast_way_has_to_ask() -> None:
    on = play(GroupLimitValues(10 * SIZE))
    free(on)
    correlation = 1
    while not (wait := produce(on, correlation)):
        correlation += 1
    assert 0 < wait <= 200
    assert 8 <= correlation <= 11, "what it has saved, and no more"


def test_duplicates_and_batches_that_the_broker_refused_are_given_back() -> None:
    on = play(GroupLimitValues(1000 * SIZE))
    for correlation, (code, producer) in enumerate([(0, (7, 0, 0)), (0, (7, 0, 0)), (22, (7, 0, 1))]):
        on.client(request(correlation, {ACME: [0]}, producer=producer))
        on.broker(answer(correlation, {ACME: {0: (code, 5)}}))
    outcomes = [outcome for _, outcome, _ in on.rows()]
    assert {"accepted", "duplicate", "errored"} <= set(outcomes)
    on.engine.pace_limits(on.now)
    assert side(on).byte_meter.charged == SIZE
    assert present(side(on).byte_limiter).spent == SIZE


@pytest.mark.seed("82.8")
@pytest.mark.parametrize(
    "internal", [{"internal_client_ids": ("app",)}, {"internal_principals": ("User:mirror",)}], ids=str
)
def test_internal_clients_are_neither_limited_nor_charged(internal: dict[str, Any]) -> None:
    on = play(GroupLimitValues(1000 * SIZE), **internal)
    on.session.client.set_principal("User:mirror")
    for correlation in range(1, 5):
        assert produce(on, correlation) == 0
    free_one = on.beside()
    free_one.session.client.set_principal("User:somebody")
    produce(free_one, 1, client_id="other")
    on.now += 2
    on.engine.pace_limits(on.now)
    for correlation in range(5, 10):  # the topic is in use and needn't ask
        assert produce(on, correlation) == 0
    on.engine.pace_limits(on.now)
    assert side(on).byte_meter.charged == SIZE


def test_topics_that_are_called_by_id_are_in_their_groups() -> None:
    on = play(GroupLimitValues(SIZE))
    on.world.cluster.topic_ids[TOPIC_ID] = ACME.encode()
    assert produce(on, version=13) == 1000


def test_a_topic_of_unknown_name_is_in_no_group() -> None:
    on = play(GroupLimitValues(1))
    on.client(request(1, {ACME: [0]}, version=13))
    on.now += 1.0
    on.session.hold.held_until = 0.0
    on.again()
    assert not any(outcome == "delayed" for _, outcome, _ in on.rows())


def test_acks_0_over_its_groups_limit_waits() -> None:
    on = play(GroupLimitValues(SIZE))
    for _ in range(15):
        on.beside().client(request(1, {ACME: [0]}, acks=0))
    upstream, _ = on.client(request(1, {ACME: [0]}, acks=0))
    assert upstream == b""
    assert on.session.hold.held_until > on.now
    on.now = on.session.hold.held_until + 10
    assert on.again()[0] != b""


def test_in_mode_observe_nothing_is_delayed_and_traffic_that_would_have_been_is_counted() -> None:
    on = play(GroupLimitValues(SIZE), GroupSnapshot(1, {"gold": GroupLimitValues(SIZE)}, GOLD, mode="observe"))
    assert produce(on) == 0
    assert on.rows()[ACME, "would_delay", "resource-group"] == (SIZE, 1, 1)
    for _ in range(30):
        assert produce(on.beside()) == 0
    rows = on.rows()
    assert (ACME, "would_reject", "resource-group") in rows
    line = present(side(on).byte_limiter)
    assert line.bucket.token_level(on.now) >= -12 * SIZE  # who would have been rejected doesn't count


# --- by principal -----------------------------------------------------------------------------------------------------

BY_PRINCIPAL = GroupSnapshot(1, {"gold": GroupLimitValues(SIZE)}, GOLD, principal_pattern=r"User:(?P<tenant>\w+)")


def test_where_the_name_says_nothing_the_principal_says_the_group() -> None:
    on = play(GroupLimitValues(), BY_PRINCIPAL)
    on.session.client.set_principal("User:acme")
    assert produce(on, topic="plain") == 1000
    assert on.rows()["plain", "delayed", "resource-group"] == (SIZE, 1, 1)
    other = on.beside()
    other.session.client.set_principal("User:bob")
    assert produce(other, topic="plain") == 0
    assert not other.session.client.needs_judging
    assert produce(other, 2, topic=ACME) == 2000  # both are the group's


def test_a_principal_is_known_only_once_the_broker_has_accepted_it() -> None:
    on = play(GroupLimitValues(), BY_PRINCIPAL)
    assert produce(on, topic="plain") == 0
    on.session.client.set_principal("User:acme")
    assert produce(on, 2, topic="plain") == 1000


def test_a_charge_of_a_principals_group_is_given_back() -> None:
    on = play(GroupLimitValues(), BY_PRINCIPAL)
    on.session.client.set_principal("User:acme")
    on.client(request(1, {"plain": [0]}))
    on.broker(answer(1, {"plain": {0: (22, -1)}}))
    assert side(on).byte_meter.charged == 0


@pytest.mark.parametrize(("groups", "topic"), [(None, ACME), ("by principal", "plain")])
def test_topics_that_share_a_meter_are_under_the_group_of_each(
    monkeypatch: pytest.MonkeyPatch, groups: str | None, topic: str
) -> None:
    # Any client can name so many topics; what is refused would be given back to a group that was never charged.
    monkeypatch.setattr(broker_meters, "MAX_UNLISTED", 1)
    on = play(GroupLimitValues(SIZE), BY_PRINCIPAL if groups else None)
    on.session.client.set_principal("User:acme")
    names = ("made-up", "other", "no topic's name", "", topic)
    for correlation, name in enumerate(names, start=1):
        on.now += 10.0
        before = side(on).byte_meter.charged if ("gold", "publish") in on.engine.groups._group_limits else 0
        on.client(request(correlation, {name: [0]}))
    assert topic.encode() not in on.engine.broker_meters(1).topics
    assert side(on).byte_meter.charged == before + SIZE
    for correlation, name in enumerate(names, start=1):
        on.broker(answer(correlation, {name: {0: (3, -1)}}))
    assert side(on).byte_meter.charged == 0


# --- while connected --------------------------------------------------------------------------------------------------


def test_groups_that_change_hold_for_the_next_request() -> None:
    on = play(GroupLimitValues(1000 * SIZE))
    free(on)
    assert produce(on) == 0
    on.world.set_groups(GroupSnapshot(2, {"gold": GroupLimitValues(SIZE)}, GOLD), on.now)
    on.now += 1.0
    produce(on, 2)
    assert produce(on, 3) > 0
    on.now += 20
    on.world.set_groups(GroupSnapshot(3), on.now)
    assert produce(on, 4) == 0
    assert not on.engine.broker_meters(1).topics[ACME.encode()].needs_decision


def test_while_writes_are_paused_groups_are_not_charged() -> None:
    on = play(GroupLimitValues(SIZE))
    on.engine.set_storage_factor(0.0, "broker 2 volume /data is full", on.now)
    on.client(request(1, {ACME: [0]}))
    assert on.session.hold.held_until > on.now
    assert ("gold", "publish") not in on.engine.groups._group_limits or side(on).byte_meter.charged == 0
