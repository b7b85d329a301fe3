# What gateways say to each other and hear, without a topic: a `Fleet` carries messages from everybody to everybody, in
# order or not. A cycle is a second.

from __future__ import annotations

import itertools
import math
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet import form, names, peers, reports
from gateway.fleet.peers import Heard, Peers
from gateway.fleet.reports import Rate
from gateway.fleet.resource_usage_pb2 import ResourceUsage
from policies.fleet.keys import group_key, quota_key, total_key
from policies.fleet.shares import IDLE, Use
from tests.gateway.fleet_play import Reporter

ROOT = Path(__file__).parents[2]
GOLD, SILVER = group_key("gold", "publish", "bytes"), group_key("silver", "dispatch", "msgs")
QUOTA = quota_key("producer_byte_rate.bps", "Ünal", None, 3)
TOTAL = total_key(7)
KEYS = (GOLD, group_key("gold", "publish", "msgs"), SILVER, QUOTA, TOTAL)
QUARTER_PERCENT = 0.002504

Uses = dict[str, Use]


def boot(n: int) -> bytes:
    return struct.pack(">Q", n)


class Gateway:
    def __init__(self, name: str, number: int, **options: Any) -> None:
        room = {key: options.pop(key) for key in ("room", "room_entries") if key in options}
        self.reporter = Reporter(name, boot(number), **options)
        self.peers = Peers(self.reporter, **room)
        self.uses: Uses = {}
        self.rates: list[Rate] = []
        self.heard: list[Heard] = []
        self.label = f"{name}#{boot(number).hex()}"

    def say(self, now: float = 0.0) -> list[bytes]:
        return self.reporter.say(self.uses, self.rates, wants=self.peers.wants(now))

    def knows(self, key: str) -> list[Use]:
        return self.peers.of(key)[0]


class Fleet:
    """Every message comes to everybody, its sender included, stamped with the cluster's time."""

    def __init__(self, *gateways: Gateway) -> None:
        self.gateways = list(gateways)
        self.now = 1000.0
        self.said: list[ResourceUsage] = []

    @property
    def cluster_ms(self) -> int:
        return round(self.now * 1000) + 1_790_000_000_000

    def deliver(self, message: bytes, stamp: int | None = None) -> None:
        self.said.append(decoded(message))
        for gateway in self.gateways:
            heard = gateway.peers.take(message, self.cluster_ms if stamp is None else stamp, self.now)
            if heard is not None:
                gateway.heard.append(heard)

    def cycle(self, count: int = 1, *, silent: tuple[Gateway, ...] = ()) -> None:
        for _ in range(count):
            self.now += 1.0
            for gateway in self.gateways:
                if gateway not in silent:
                    messages = gateway.say(self.now)
                    gateway.peers.said(self.now)
                    for message in messages:
                        self.deliver(message)
                    gateway.reporter.arrived()
            for gateway in self.gateways:
                for message in gateway.reporter.answer() if gateway.reporter.has_answers else ():
                    self.deliver(message)


def trio_of(**options: Any) -> tuple[Fleet, Gateway, Gateway, Gateway]:
    gateways = [Gateway(name, n, **options) for n, name in enumerate("abc", 1)]
    return (Fleet(*gateways), *gateways)


def close(a: float, b: float, tolerance: float = QUARTER_PERCENT) -> bool:
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-9)


def decoded(message: bytes) -> ResourceUsage:
    return form.unpack(message)


# --- an independent reader: Protocol Buffers' wire format and resource_usage.proto, from scratch ----------------------


def varints(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0


def fields(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        end = next(i for i in itertools.count(at) if data[i] < 0x80) + 1
        value = next(varints(data[at:end]))
        at = end
        return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            found.setdefault(tag >> 3, []).append(varint())
        else:
            assert tag & 7 == 2
            size = varint()
            found.setdefault(tag >> 3, []).append(data[at : at + size])
            at += size
    return found


def oracle(message: bytes) -> dict[str, Any]:
    """Ids' names and usages of a message, as the .proto says."""
    assert message[0] == 1
    body = zlib.decompress(message[2:], -15) if message[1] else message[2:]
    said = fields(body)
    ids = lambda data: list(itertools.accumulate(varints(data)))  # noqa: E731

    def names_in(number: int) -> dict[int, str]:
        if number not in said:
            return {}
        inner = fields(said[number][0])
        return dict(zip(ids(inner[1][0]), [name.decode() for name in inner[2]], strict=True))

    rate = lambda code: 0.001 * 1.005 ** (code - 1) if code else 0.0  # noqa: E731
    weight = lambda code: 1.0 if code == 0 else code if code <= 255 else 1e-6 * 1.005 ** (code - 256)  # noqa: E731
    usages: dict[tuple[int, int], tuple[float, bool, float, int]] = {}
    for table, columns in ((13, (5, 4, 7, 6)), (14, (4,))):  # published_bytes, _msg, dispatched_bytes, _msg; use
        if table in said:
            inner = fields(said[table][0])
            numbers = ids(inner[1][0])
            topics = list(varints(inner.get(2, [b""])[0])) or [0] * len(numbers)
            hungry = list(varints(inner.get(3, [b""])[0])) or [0] * len(numbers)
            for column, field in enumerate(columns):
                part = fields(inner[field][0]) if field in inner else {}
                rates = list(varints(part.get(1, [b""])[0])) or [0] * len(numbers)
                weights = list(varints(part.get(2, [b""])[0])) or [0] * len(numbers)
                for at, number in enumerate(numbers):
                    use = rate(rates[at]), bool(hungry[at] >> column & 1), weight(weights[at]), topics[at]
                    if use[0] or use[1]:
                        usages[number, column] = use
    return {
        "broker": said[1][0].decode(),
        "boot": said[2][0],
        "sequence": said.get(3, [0])[0],
        "names": names_in(11),
        "usages": usages,
    }


rates = st.one_of(st.just(0.0), st.floats(0.001, 1e13))
uses_of_keys = st.dictionaries(
    st.sampled_from(KEYS),
    st.builds(Use, rates, st.booleans(), st.one_of(st.just(1.0), st.floats(1e-3, 1e6)), st.integers(0, 60_000)),
)


@given(uses_of_keys)
def test_an_independent_decoder_reads_what_was_reported(uses: Uses) -> None:
    reporter = Reporter("broker-1.example.com", boot(1))
    [message] = reporter.say(uses)
    said = oracle(message)
    assert (said["broker"], said["boot"], said["sequence"]) == ("broker-1.example.com", boot(1), 0)
    found = {names.key_of(said["names"][number], column): Use(*use) for (number, column), use in said["usages"].items()}
    active = {key: use for key, use in uses.items() if use.rate or use.hungry}
    assert found.keys() == active.keys()
    for key, use in active.items():
        assert close(found[key].rate, use.rate)
        assert found[key].hungry == use.hungry
        assert close(found[key].weight, use.weight)
    assert len([number for number, name in said["names"].items() if name == "ggold"]) <= 1


@given(uses_of_keys)
def test_what_is_heard_is_what_was_said_within_a_quarter_of_a_percent(uses: Uses) -> None:
    fleet, a, b, _ = trio_of()
    a.uses = uses
    fleet.cycle()
    for key in KEYS:
        use = uses.get(key, Use(0.0))
        if not use.rate and not use.hungry:
            assert b.knows(key) == []
            continue
        [found] = b.knows(key)
        assert close(found.rate, use.rate)
        assert (found.hungry, close(found.weight, use.weight)) == (use.hungry, True)
        assert found == a.reporter.told(key)
        assert key in b.heard[0].keys


@given(st.floats(0.001, 1e15))
def test_rates_are_a_quarter_of_a_percent_off_at_most(rate: float) -> None:
    assert close(form.rate_of(form.rate_code(rate)), rate)


@given(st.floats(0.001, 1e15), st.floats(1.0, 2.0))
def test_the_scale_keeps_the_order(rate: float, factor: float) -> None:
    assert form.rate_code(rate) <= form.rate_code(rate * factor)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_what_is_no_rate_is_none(rate: float) -> None:
    assert form.rate_code(rate) == 0


@pytest.mark.parametrize("rate", [5e-324, 1e-9, 1e33, 1e308, math.inf])
def test_a_rate_beyond_the_scale_is_its_end(rate: float) -> None:
    assert form.rate_code(rate) in (1, form.MAX_CODE)


@pytest.mark.parametrize("weight", [1.0, 2.0, 7.0, 255.0])
def test_small_whole_weights_are_exact(weight: float) -> None:
    assert form.weight_of(form.weight_code(weight)) == weight


# --- what is reported, and when ---------------------------------------------------------------------------------------


def listed(message: bytes) -> set[int]:
    """Ids with numbers in a message."""
    return {number for number, _ in oracle(message)["usages"]}


def only(messages: list[bytes]) -> bytes:
    [message] = messages
    return message


def settled(uses: Uses, **options: Any) -> Reporter:
    """It has reported these."""
    reporter = Reporter("a", boot(1), **options)
    reporter.say(uses)
    return reporter


def test_a_message_comes_every_cycle_and_one_that_says_nothing_is_small() -> None:
    reporter = Reporter("broker-1.example.com", boot(1))
    for _ in range(20):
        assert len(only(reporter.say({}))) < 60


@pytest.mark.parametrize(("factor", "told"), [(1.10, True), (0.90, True), (1.09, False), (0.91, False)])
def test_a_change_of_a_tenth_is_told_at_once(factor: float, told: bool) -> None:
    for start in (3.0, 1000.0, 12345.678, 9.9e9):
        reporter = settled({GOLD: Use(start), TOTAL: Use(1.0)}, every=10**6)
        reporter.say({GOLD: Use(start), TOTAL: Use(1.0)})
        assert bool(listed(only(reporter.say({GOLD: Use(start * factor), TOTAL: Use(1.0)})))) == told


@pytest.mark.parametrize(
    "use",
    [Use(100.0, True), Use(100.0, False, 2.0), Use(0.0, True)],
    ids=["hungry", "weight", "starving"],
)
def test_a_change_of_heart_is_told_at_once(use: Use) -> None:
    reporter = settled({GOLD: Use(100.0)}, every=10**6)
    assert listed(only(reporter.say({GOLD: use}))) == {0}


def test_the_end_of_hunger_is_told_at_once() -> None:
    reporter = settled({GOLD: Use(100.0, True)}, every=10**6)
    assert listed(only(reporter.say({GOLD: Use(100.0)}))) == {0}


def test_a_change_by_two_percent_of_the_limit_is_told_at_once() -> None:
    reporter = settled({GOLD: Use(600.0), TOTAL: Use(600.0)}, every=10**6, limit_of={GOLD: 1000.0}.get)
    reporter.say({GOLD: Use(600.0), TOTAL: Use(600.0)})
    assert listed(only(reporter.say({GOLD: Use(615.0), TOTAL: Use(615.0)}))) == set()
    assert listed(only(reporter.say({GOLD: Use(625.0), TOTAL: Use(625.0)}))) == {0}


@pytest.mark.parametrize("every", [1, 2, 5, 7])
def test_in_n_cycles_each_usage_is_reported_although_nothing_changed(every: int) -> None:
    uses = {group_key(f"g{n}", "publish", "bytes"): Use(100.0) for n in range(23)}
    reporter = settled(uses, every=every)
    spans = [decoded(only(reporter.say(uses))).unchanged for _ in range(3 * every)]
    sizes = [span.end - span.first for span in spans]
    assert max(sizes) <= -(-23 // every)  # spread over the cycles
    for first in range(2 * every):
        seen = {n for span in spans[first : first + every] for n in range(span.first, span.end)}
        assert seen == set(range(23))


def test_what_is_said_between_two_cycles_takes_nobody_s_turn() -> None:
    uses = {group_key(f"g{n}", "publish", "bytes"): Use(100.0) for n in range(10)}
    reporter = settled(uses)
    seen: set[int] = set()
    for n in range(5):
        between = decoded(only(reporter.say(uses | {TOTAL: Use(1.0 + n)}, is_turn=False)))
        assert len(between.limits.id) == 1
        assert not between.HasField("unchanged")
        span = decoded(only(reporter.say(uses | {TOTAL: Use(1.0 + n)}))).unchanged
        seen.update(range(span.first, span.end))
    assert seen == set(range(11))


def test_in_n_cycles_a_usage_that_crept_is_told_with_its_numbers() -> None:
    fleet, a, b, _ = trio_of()
    for step in range(60):
        a.uses = {GOLD: Use(1000.0 * 1.003**step)}
        fleet.cycle()
        [known] = b.knows(GOLD)
        # five cycles of 0.3 %, then again within 1 %
        assert close(known.rate, a.uses[GOLD].rate, 0.026)
    fleet.cycle(5)
    assert close(b.knows(GOLD)[0].rate, a.uses[GOLD].rate, 0.01)


def test_only_what_changed_has_to_be_noted() -> None:
    publish, dispatch = group_key("gold", "publish", "bytes"), group_key("gold", "dispatch", "bytes")
    reporter = reports.Reporter("a", boot(1))
    reporter.note({publish: Use(100.0, topics=5), dispatch: Use(7.0, topics=3), TOTAL: Use(50.0)})
    said = decoded(only(list(reporter.report())))
    assert list(said.groups.topics) == [5]
    assert sorted(reporter.take_said()) == sorted([publish, dispatch, TOTAL])
    for uses, topics in (
        ({publish: Use(200.0, topics=2)}, 3),
        ({publish: IDLE}, 3),
        ({publish: Use(1.0, topics=9)}, 9),
    ):
        reporter.note(uses)
        said = decoded(only(list(reporter.report())))
        assert (list(said.groups.topics), list(said.limits.id)) == ([topics], [])
        assert reporter.take_said() == [publish]
        assert close(reporter.told(dispatch).rate, 7.0)
        assert close(reporter.told(publish).rate, uses[publish].rate)
    reporter.note({publish: IDLE, dispatch: IDLE, SILVER: IDLE})
    list(reporter.report())
    assert [reporter.told(key) for key in (publish, dispatch, SILVER)] == [IDLE] * 3


def test_a_message_is_never_so_large_that_it_takes_long() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = b.uses = {group_key(f"g{n}", "publish", "bytes"): Use(n + 1.0) for n in range(1200)}
    fleet.cycle()
    assert max(len(said.groups.id) for said in fleet.said) == reports.MAX_ENTRIES
    assert all(len(b.knows(key)) == 1 for key in a.uses)


def test_a_topic_that_is_lost_while_a_report_is_made_loses_no_name() -> None:
    fleet, a, b, _ = trio_of()
    fleet.cycle()
    uses = {group_key(f"g{n}", "publish", "bytes"): Use(n + 1.0) for n in range(1200)}
    a.reporter.note(uses)
    messages = a.reporter.report()
    next(messages)
    a.reporter.lost()
    list(messages)
    a.reporter.lost()
    a.uses = uses
    fleet.cycle(1)
    assert all(len(b.knows(key)) == 1 for key in uses)
    assert not any(b.peers.wants(fleet.now))


def test_a_name_is_said_once() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(100.0)}
    fleet.cycle(2)
    for step in range(10):
        a.uses = {GOLD: Use(100.0 * 1.5**step)}
        [message] = a.say()
        assert b"gold" not in decoded(message).SerializeToString()
        fleet.deliver(message)
        assert close(b.knows(GOLD)[0].rate, a.uses[GOLD].rate)


def test_a_group_s_four_limits_are_one_name() -> None:
    keys = [group_key("gold", d, u) for d in ("publish", "dispatch") for u in ("bytes", "msgs")]  # type: ignore[arg-type]
    [message] = Reporter("a", boot(1)).say({key: Use(float(n + 1)) for n, key in enumerate(keys)})
    assert oracle(message)["names"] == {0: "ggold"}
    assert [use[0] for use in oracle(message)["usages"].values()] == pytest.approx([1, 2, 3, 4], rel=QUARTER_PERCENT)


def test_no_usage_takes_the_gateway_out_of_that_limit() -> None:
    fleet, a, b, c = trio_of()
    a.uses = b.uses = {GOLD: Use(100.0), TOTAL: Use(5.0)}
    fleet.cycle(2)
    assert len(c.knows(GOLD)) == 2
    a.uses = {TOTAL: Use(5.0)}
    fleet.cycle()
    assert len(c.knows(GOLD)) == len(b.knows(TOTAL)) == 1
    assert c.heard[-2].keys == {GOLD}
    # and it comes back without its name
    a.uses = {GOLD: Use(70.0), TOTAL: Use(5.0)}
    fleet.cycle()
    assert sorted(round(use.rate) for use in c.knows(GOLD)) == [70, 100]


def test_messages_stay_below_kafka_s_limit_however_many_names_there_are() -> None:
    chance = random.Random(1)
    uses = {
        group_key("".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=200)), "publish", "bytes"): Use(1.0)
        for _ in range(10_000)
    }
    fleet, a, b, _ = trio_of()
    b.uses = uses  # so it is concerned
    fleet.cycle()
    a.uses = uses
    messages = a.say()
    assert len(messages) > 5
    assert max(map(len, messages)) < 500_000
    for message in messages:
        fleet.deliver(message)
    assert all(len(b.knows(key)) == 1 for key in uses)
    a.reporter.ask(names=True)
    for message in a.say():
        fleet.deliver(message)
    assert all(len(b.knows(key)) == 1 for key in uses)


# --- what gets lost ---------------------------------------------------------------------------------------------------


def assert_all_is_known(fleet: Fleet) -> None:
    for gateway in fleet.gateways:
        others = [other for other in fleet.gateways if other is not gateway]
        for key in KEYS:
            told = [use for use in (other.reporter.told(key) for other in others) if use != IDLE]
            assert sorted(gateway.knows(key), key=repr) == sorted(told, key=repr), (gateway.label, key)


@given(
    st.lists(
        st.tuples(
            st.lists(uses_of_keys, min_size=3, max_size=3),
            st.lists(st.sampled_from(["ok", "lost", "late", "twice", "half"]), min_size=3, max_size=3),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_was_lost_all_is_known_again_a_few_cycles_later(steps: list[tuple[list[Uses], list[str]]]) -> None:
    fleet, *gateways = trio_of()
    late: list[bytes] = []
    for uses, fates in steps:
        fleet.now += 1.0
        for gateway, present, fate in zip(gateways, uses, fates, strict=True):
            gateway.uses = present
            for message in gateway.say():
                if fate == "late":
                    late.append(message)
                elif fate == "half":  # one of the two others doesn't get it
                    listener = gateways[gateways.index(gateway) - 1]
                    listener.peers.take(message, fleet.cluster_ms, fleet.now)
                elif fate != "lost":
                    fleet.deliver(message)
                    if fate == "twice":
                        fleet.deliver(message)
        if len(late) > 1:
            fleet.deliver(late.pop(0))
    for message in late:
        fleet.deliver(message)
    fleet.cycle(2 * peers.ASK_AGAIN_CYCLES + 2)
    assert_all_is_known(fleet)


def test_a_lost_message_is_noticed_by_the_next_one_and_asked_for() -> None:
    fleet, a, b, c = trio_of()
    a.uses = {GOLD: Use(100.0)}
    fleet.cycle(2)
    a.uses = {GOLD: Use(200.0)}
    a.say()  # nobody hears it
    fleet.said.clear()
    fleet.cycle()
    assert round(b.knows(GOLD)[0].rate) == 100
    asked = [said.want_usage for said in fleet.said if said.want_usage]
    assert asked == [[boot(1)], [boot(1)]]
    fleet.cycle(2)
    assert round(b.knows(GOLD)[0].rate) == round(c.knows(GOLD)[0].rate) == 200
    assert not any(said.want for said in fleet.said)


def test_a_lost_name_is_noticed_and_numbers_of_an_unknown_id_harm_nobody() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(100.0)}
    fleet.cycle()
    a.uses = {GOLD: Use(100.0), TOTAL: Use(50.0)}
    a.say()
    a.uses = {GOLD: Use(300.0), TOTAL: Use(70.0)}
    [message] = a.say()
    fleet.deliver(message)
    assert b.peers.counts["unknown-ids"] == 1
    assert b.knows(TOTAL) == []
    fleet.cycle(4)
    assert close(b.knows(TOTAL)[0].rate, 70)
    assert close(b.knows(GOLD)[0].rate, 300)


def test_what_the_topic_did_not_take_is_said_again_without_being_asked_for() -> None:
    fleet, a, b, _ = trio_of()
    fleet.cycle()
    a.uses = {GOLD: Use(100.0)}
    a.say()
    a.reporter.lost()
    fleet.cycle()
    assert round(b.knows(GOLD)[0].rate) == 100
    assert not any(b.peers.wants(fleet.now))


def test_a_message_that_comes_twice_or_after_a_later_one_is_dropped() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(100.0)}
    fleet.cycle(2)
    a.uses = {GOLD: Use(200.0)}
    [early] = a.say()
    a.uses = {GOLD: Use(400.0)}
    [later] = a.say()
    for message in (later, early, later):
        b.peers.take(message, fleet.cluster_ms, fleet.now)
    assert b.peers.counts["late"] == 2
    assert close(b.knows(GOLD)[0].rate, 400)


# --- who begins, and who ends -----------------------------------------------------------------------------------------


def test_a_late_joiner_gets_names_and_usages() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(100.0), QUOTA: Use(7.0)}
    b.uses = {TOTAL: Use(50.0, True)}
    fleet.cycle(7)
    late = Gateway("d", 4)
    fleet.gateways.append(late)
    fleet.cycle(3)
    assert [round(late.knows(key)[0].rate) for key in (GOLD, QUOTA, TOTAL)] == [100, 7, 50]
    assert late.peers.counts["unknown-ids"] <= 4


def test_who_begins_is_told_everything_at_once_where_there_is_room() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(100.0)}
    fleet.cycle(3)
    late = Gateway("d", 4)
    fleet.gateways.append(late)
    for message in late.say(fleet.now):
        fleet.deliver(message)
    assert a.reporter.is_asked
    assert b.reporter.is_asked
    for message in a.say(fleet.now):
        fleet.deliver(message)
    assert [round(use.rate) for use in late.knows(GOLD)] == [100]
    assert not late.peers.asks
    assert not a.reporter.is_asked


def test_who_begins_in_a_large_fleet_asks_nobody_but_names_what_he_uses() -> None:
    fleet, a, b, c = trio_of(room=2)
    a.uses = b.uses = c.uses = {key: Use(1.0) for key in KEYS}
    fleet.cycle(3)
    late = Gateway("d", 4, room=2)
    late.uses = {TOTAL: Use(5.0)}
    fleet.gateways.append(late)
    fleet.said.clear()
    fleet.cycle(3)
    assert len(late.knows(TOTAL)) == 3
    assert not any(said.want or said.want_usage or said.HasField("complete") for said in fleet.said)
    # but whoever was there, and misses names, asks for them
    a.uses = {}
    a.say()
    a.uses = {group_key("late", "publish", "bytes"): Use(1.0)}
    a.say()
    fleet.cycle(1)
    assert any(said.want == [boot(1)] for said in fleet.said)


def test_who_begins_to_use_what_others_use_is_answered_at_once() -> None:
    # given gateways that have no room for what doesn't concern them
    fleet, a, b, c = trio_of(room=0)
    a.uses = b.uses = {GOLD: Use(100.0)}
    fleet.cycle(5)
    assert c.knows(GOLD) == []
    # when one of them begins with it
    c.uses = {GOLD: Use(1.0, True)}
    fleet.now += 1
    for message in c.say():
        fleet.deliver(message)
    # then the others tell theirs, before their next cycle
    for gateway in (a, b):
        assert gateway.reporter.has_answers
        for message in gateway.reporter.answer():
            assert len(message) < 100
            fleet.deliver(message)
        assert not gateway.reporter.has_answers
    assert [round(use.rate) for use in c.knows(GOLD)] == [100, 100]
    assert {key for heard in c.heard[-2:] for key in heard.keys} == {GOLD}
    # and it ends there: an answer asks nobody
    assert not any(gateway.reporter.has_answers for gateway in fleet.gateways)


def test_foreign_names_go_when_there_is_no_room() -> None:
    fleet, a, b, _ = trio_of(room=20)
    a.uses = {group_key(f"a{n}", "publish", "bytes"): Use(1.0) for n in range(15)}
    fleet.cycle(2)
    assert len(b.knows(group_key("a3", "publish", "bytes"))) == 1
    b.uses = {group_key(f"b{n}", "publish", "bytes"): Use(1.0) for n in range(10)} | {
        group_key("a3", "publish", "bytes"): Use(2.0)
    }
    fleet.cycle(2)
    assert len(b.knows(group_key("a3", "publish", "bytes"))) == 1
    assert b.knows(group_key("a4", "publish", "bytes")) == []
    assert b.reporter.names.foreign == 0


def test_a_name_that_was_idle_for_long_is_taken_back_and_its_id_may_mean_something_else() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(100.0), TOTAL: Use(1.0)}
    fleet.cycle()
    a.uses = {TOTAL: Use(1.0)}
    fleet.cycle(round(reports.IDLE_S) + 20)
    assert [gateway.reporter.names.number("ggold") for gateway in fleet.gateways] == [None] * 3
    a.uses = {TOTAL: Use(1.0), SILVER: Use(30.0)}
    fleet.cycle()
    assert b.knows(GOLD) == []
    assert [round(use.rate) for use in b.knows(SILVER)] == [30]
    assert a.reporter.names.number("gsilver") == 0


def test_a_gateway_that_starts_again_has_ids_of_its_own() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(100.0), TOTAL: Use(1.0)}
    fleet.cycle(3)
    fleet.gateways.remove(a)
    fleet.now += 0.5
    again = Gateway("a", 77)
    again.uses = {TOTAL: Use(9.0), GOLD: Use(50.0)}  # the ids are the other way round
    fleet.gateways.append(again)
    fleet.cycle(1)
    # the old one counts until it was silent for two cycles; a restart is no clash
    assert sorted(round(use.rate) for use in b.knows(GOLD)) == [50, 100]
    fleet.cycle(2)
    assert b.peers.expire(fleet.now) == [a.label]
    assert [round(use.rate) for use in b.knows(GOLD)] == [50]
    assert [round(use.rate) for use in b.knows(TOTAL)] == [9]
    assert b.peers.problem == ""


def test_two_gateways_of_one_name_are_two_peers_and_a_complaint() -> None:
    fleet, a, b, _ = trio_of()
    twin = Gateway("a", 77)
    fleet.gateways.append(twin)
    a.uses, twin.uses = {GOLD: Use(100.0)}, {GOLD: Use(50.0)}
    fleet.cycle(2)
    assert sorted(round(use.rate) for use in b.knows(GOLD)) == [50, 100]
    for gateway in (a, b, twin):
        assert "two gateways call themselves 'a'" in gateway.peers.problem
    # until one of them is gone
    fleet.gateways.remove(twin)
    for _ in range(round(peers.CLASH_CYCLES) + 4):
        fleet.cycle()
        a.peers.expire(fleet.now)
        b.peers.expire(fleet.now)
    assert (a.peers.problem, b.peers.problem) == ("", "")


def test_who_says_goodbye_is_gone_at_once() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(100.0)}
    fleet.cycle(2)
    for message in a.reporter.leave():
        fleet.deliver(message)
    assert b.heard[-1].left
    assert b.heard[-1].peer == a.label
    assert b.knows(GOLD) == []
    assert b.peers.living == 1


def test_a_peer_that_is_silent_for_two_cycles_is_gone() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(100.0)}
    fleet.cycle(3)
    fleet.cycle(1, silent=(a,))
    assert b.peers.expire(fleet.now + 0.95) == []
    fleet.cycle(1, silent=(a,))
    assert b.peers.expire(fleet.now + 0.05) == [a.label]
    assert (b.knows(GOLD), b.peers.living, b.peers.workers) == ([], 1, 1)
    assert b.peers.expire(fleet.now + 0.1) == []


def test_who_was_only_late_is_taken_back_with_all_that_he_uses() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(100.0), TOTAL: Use(3.0)}
    fleet.cycle(3)
    fleet.cycle(4, silent=(a,))
    assert b.peers.expire(fleet.now) == [a.label]
    fleet.cycle()
    heard = next(heard for heard in reversed(b.heard) if heard.peer == a.label)
    assert heard.keys == {GOLD, TOTAL}
    assert round(b.knows(GOLD)[0].rate) == 100


@pytest.mark.parametrize("before", [0.0, 0.3, 0.9])
def test_nobody_is_gone_while_the_topic_is_away(before: float) -> None:
    # given a peer that speaks so long before us, and a topic that fails just before its next turn
    fleet, a, b, _ = trio_of()
    fleet.cycle(3)
    [message] = a.say(fleet.now)
    b.peers.take(message, None, fleet.now)
    [own] = b.say(fleet.now + before)
    b.peers.take(own, None, fleet.now + before)
    # then it is silent for longer than we are, but for no fault of its own
    for tenths in range(60):
        assert a.label not in b.peers.expire(fleet.now + before + tenths / 10)
    assert not b.peers.is_heard(fleet.now + before + 2.1)
    # and when the topic is back, the peer has two cycles to be heard of
    fleet.now += 100
    b.peers.excuse(fleet.now)
    fleet.cycle(1, silent=(a,))
    assert b.peers.expire(fleet.now + 0.5) == []
    fleet.cycle(2, silent=(a,))
    assert b.peers.expire(fleet.now) == [a.label]


def test_an_unknown_boot_that_came_and_went_leaves_nothing() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(100.0), TOTAL: Use(1.0)}
    fleet.cycle(2)
    fleet.gateways.remove(a)
    for _ in range(30):
        fleet.cycle()
        b.peers.expire(fleet.now)
    b.peers.wants(fleet.now)
    assert (b.reporter.names.foreign, b.peers.living) == (0, 1)


# --- time -------------------------------------------------------------------------------------------------------------


def test_old_messages_are_dropped_by_the_time_of_publishing() -> None:
    fleet, a, b, _ = trio_of()
    fleet.cycle(2)
    a.uses = {GOLD: Use(100.0)}
    for age, dropped in ((3.5, True), (2.5, False)):
        [message] = a.say()
        heard = b.peers.take(message, fleet.cluster_ms - round(age * 1000), fleet.now)
        assert (heard is None) == dropped
    assert b.peers.counts["stale"] == 1


def test_clocks_of_hosts_do_not_matter() -> None:
    # `now` is each host's own: 1000 here, while the cluster's clock may be years off
    fleet, a, b, _ = trio_of()
    fleet.cycle(2)
    a.uses = {GOLD: Use(100.0)}
    [message] = a.say()
    assert b.peers.take(message, fleet.cluster_ms, fleet.now) is not None
    # a cluster's clock that is set back by an hour is followed with our next message
    back = fleet.cluster_ms - 3_600_000
    [own] = b.say()
    b.peers.said(fleet.now)
    b.peers.take(own, back, fleet.now + 0.01)
    [message] = a.say()
    assert b.peers.take(message, back, fleet.now + 0.02) is not None
    assert b.peers.counts["stale"] == 0


def test_a_message_of_ours_that_was_read_late_does_not_make_old_ones_new() -> None:
    fleet, a, b, _ = trio_of()
    fleet.cycle(2)
    [own], [theirs] = b.say(), a.say()
    b.peers.said(fleet.now)
    published = fleet.cluster_ms
    fleet.now += 20.0  # the gateway was stopped
    b.peers.take(own, published, fleet.now)
    assert b.peers.take(theirs, published, fleet.now) is None
    assert b.peers.counts["stale"] == 1


def test_without_the_cluster_s_time_nothing_is_called_old() -> None:
    fleet, a, b, _ = trio_of()
    fleet.cycle(2)
    [message] = a.say()
    assert b.peers.take(message, None, fleet.now + 1000) is not None


# --- what is no message -----------------------------------------------------------------------------------------------


def test_dropped_messages_are_counted_from_the_start() -> None:
    assert Gateway("a", 1).peers.counts == dict.fromkeys(peers.DROPPED, 0)


def test_our_own_messages_are_neither_heard_nor_dropped() -> None:
    fleet, a, *_ = trio_of()
    a.uses = {GOLD: Use(1.0)}
    fleet.gateways = [a]
    fleet.cycle(3)
    assert (a.heard, a.knows(GOLD), sum(a.peers.counts.values())) == ([], [], 0)
    assert a.peers.is_heard(fleet.now)


def test_a_form_of_another_release_is_dropped() -> None:
    _fleet, a, b, _ = trio_of()
    [message] = a.say()
    assert b.peers.take(b"\x02" + message[1:], None, 0.0) is None
    assert (b.peers.counts["version"], b.peers.counts["malformed"]) == (1, 0)


def test_fields_of_a_later_release_are_skipped() -> None:
    _fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(100.0)}
    [message] = a.say()
    later = bytes((1, 0)) + decoded(message).SerializeToString() + b"\xfa\x7f\x03new"
    assert b.peers.take(later, None, 0.0) is not None
    assert round(b.knows(GOLD)[0].rate) == 100


def broken(change: Callable[[ResourceUsage], object]) -> bytes:
    reporter = Reporter("a", boot(1))
    [message] = reporter.say({GOLD: Use(100.0), SILVER: Use(5.0), TOTAL: Use(1.0)}, [Rate(1, None, 5.0)])
    said = decoded(message)
    change(said)
    return form.pack(said)


def deflated(body: bytes) -> bytes:
    return bytes((1, 1)) + zlib.compress(body, wbits=-15)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"\x01\x02abc",
        b"\x01\x01not deflated",
        b"\x01\x00\x0a\xff",
        broken(lambda m: m.ClearField("broker")),
        broken(lambda m: setattr(m, "boot", b"short")),
        broken(lambda m: setattr(m, "ids", 2**30)),
        broken(lambda m: setattr(m, "ids", 2)),
        broken(lambda m: m.groups.id.__setitem__(1, 0)),
        broken(lambda m: m.groups.published_bytes.rate.append(1)),
        broken(lambda m: m.groups.published_bytes.rate.__setitem__(0, 2**14)),
        broken(lambda m: m.groups.hungry.extend([16, 0])),
        broken(lambda m: m.limits.hungry.append(2)),
        broken(lambda m: m.names.id.append(0)),
        broken(lambda m: m.names.name.append("x")),
        broken(lambda m: m.names.name.__setitem__(0, "g" * 5000)),
        broken(lambda m: setattr(m.unchanged, "first", 9)),
        broken(lambda m: setattr(m.complete, "end", 9)),
        deflated(decoded(broken(lambda m: None)).SerializeToString() + b"\xfa\x7f\x80\x80\x80\x10" + bytes(2**25)),
    ],
    ids=lambda message: message[:12].hex(),
)  # fmt: skip
def test_what_is_malformed_is_dropped_and_changes_nothing(message: bytes) -> None:
    b = Gateway("b", 2)
    assert b.peers.take(message, None, 0.0) is None
    assert b.peers.counts["malformed"] == 1
    assert (b.peers.living, b.reporter.names.foreign) == (0, 0)


@given(st.binary(max_size=200))
def test_bytes_raise_nothing(data: bytes) -> None:
    Gateway("b", 2).peers.take(data, 5, 0.0)
    Gateway("b", 2).peers.take(b"\x01\x00" + data, 5, 0.0)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_message_with_wrong_bytes_raises_nothing(changes: list[tuple[int, int]]) -> None:
    data = bytearray(bytes((1, 0)) + decoded(broken(lambda m: None)).SerializeToString())
    for at, byte in changes:
        data[2 + at % (len(data) - 2)] = byte
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: Use(5.0)}
    fleet.cycle()
    b.peers.take(bytes(data), fleet.cluster_ms, fleet.now)
    b.peers.expire(fleet.now)
    b.peers.wants(fleet.now)
    b.peers.rates()
    fleet.cycle(5)
    for key in KEYS:
        assert all(math.isfinite(use.rate) for use in b.knows(key))


@pytest.mark.parametrize("name", ["", "x", "k[1,2]", 'k["g","gold","publish","bytes"]', "bx", "t7", "b7/x"])
def test_a_name_that_is_none_is_not_remembered(name: str) -> None:
    b = Gateway("b", 2)
    b.peers.take(broken(lambda m: m.names.name.__setitem__(0, name)), None, 0.0)
    assert b.reporter.names.number(name) is None


# --- V1's rates -------------------------------------------------------------------------------------------------------


def test_rates_of_brokers_and_topics_are_summed_over_peers() -> None:
    fleet, a, b, c = trio_of()
    a.rates = [Rate(1, None, 100.0), Rate(1, "clicks", 60.0), Rate(2, None, 7.0)]
    b.rates = [Rate(1, None, 50.0), Rate(1, "clicks", 30.0), Rate(1, "a/b", 20.0)]
    fleet.cycle(2)
    found = c.peers.rates()
    assert found.keys() == {1, 2}
    assert found[1][0] == pytest.approx(150, rel=0.003)
    assert found[1][1] == pytest.approx({"clicks": 90, "a/b": 20}, rel=0.003)
    assert a.peers.rates()[1][1] == pytest.approx({"clicks": 30, "a/b": 20}, rel=0.003)
    b.rates = [Rate(1, None, 50.0)]
    before = len(c.heard)
    fleet.cycle()
    assert any(heard.rates for heard in c.heard[before:])
    assert c.peers.rates()[1][1] == pytest.approx({"clicks": 60}, rel=0.003)
    fleet.cycle(3)
    before = len(c.heard)
    fleet.cycle(5)
    assert not any(heard.rates for heard in c.heard[before:])


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_generated_module_is_that_of_the_schema(tmp_path: Path) -> None:
    schema = "gateway/fleet/resource_usage.proto"
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", schema],
        cwd=ROOT, check=True,
    )  # fmt: skip
    for suffix in ("_pb2.py", "_pb2.pyi"):
        path = Path(schema.replace(".proto", suffix))
        assert (tmp_path / path).read_text() == (ROOT / path).read_text(), f"{path}: generate it again"


def test_names_that_are_too_long_for_peers_are_left_out() -> None:
    one, other = Gateway("one", 1), Gateway("other", 2)
    stem = quota_key("producer_byte_rate.bps", None, "", None)
    long = [quota_key("producer_byte_rate.bps", None, "x" * (size - len(stem)), None) for size in (4095, 4096, 4097)]
    one.uses = dict.fromkeys([GOLD, *long], Use(50.0, True))
    other.uses = dict.fromkeys([GOLD, *long], Use(70.0, True))
    one.rates = [Rate(1, "t" * 5000, 10.0), Rate(1, "t", 7.0)]
    fleet = Fleet(one, other)
    fleet.cycle(3)
    assert other.peers.counts["malformed"] == 0
    assert other.peers.rates() == {1: (0.0, {"t": pytest.approx(7.0, rel=QUARTER_PERCENT)})}
    assert [len(other.knows(key)) for key in (GOLD, *long)] == [1, 1, 0, 0]
