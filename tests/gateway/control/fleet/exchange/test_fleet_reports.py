# What gateways say to each other and hear, without a topic: a `Fleet` carries messages from everybody to everybody, in
# order or not. A cycle is a second.

from __future__ import annotations

import itertools
import math
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.fleet.exchange import peers, reports
from gateway.control.fleet.exchange import usage_codec as form
from gateway.control.fleet.exchange.peers import PeerNews, PeerTable
from gateway.control.fleet.exchange.reports import ThresholdRate
from gateway.control.fleet.exchange.resource_usage_pb2 import Flow as FlowEntry
from gateway.control.fleet.exchange.resource_usage_pb2 import Limits, ResourceUsage
from policies.explain import TopicFlow
from policies.fleet.keys import group_key, quota_key, total_key
from policies.fleet.shares import IDLE, LimitDemand
from tests.gateway.control.fleet.fleet_play import Reporter

ROOT = Path(__file__).parents[5]
GOLD, SILVER = group_key("gold", "publish", "bytes"), group_key("silver", "dispatch", "msgs")
QUOTA = quota_key("producer_byte_rate.bps", "Ünal", None, 3)
TOTAL = total_key(7)
KEYS = (GOLD, group_key("gold", "publish", "msgs"), SILVER, QUOTA, TOTAL)
NAMES = {form.limit_id(key): key for key in KEYS}
SINGLE = 1e-6  # what a rate of 32 bits may be off

Uses = dict[str, LimitDemand]
BUSY = form.GatewayTraffic({"clicks": TopicFlow(5.0, 1.0)}, {("User:alice", "app"): TopicFlow(4.0, 0.0, 3.0, 2.0)})


def boot(n: int) -> bytes:
    return struct.pack(">Q", n)


class Gateway:
    def __init__(self, name: str, number: int, **options: Any) -> None:
        room = options.pop("room", peers.DEMAND_ROOM)
        self.reporter = Reporter(name, boot(number), **options)
        self.peers = PeerTable(self.reporter, room=room)
        self.uses: Uses = {}
        self.rates: list[ThresholdRate] = []
        self.heard: list[PeerNews] = []
        self.label = f"{name}#{boot(number).hex()}"

    def say(self) -> list[bytes]:
        return self.reporter.say(self.uses, self.rates)

    def knows(self, key: str) -> list[LimitDemand]:
        return self.peers.demands_for(key)


class Fleet:
    """Every message reaches every gateway, its sender included, stamped with the cluster's time."""

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
            heard = gateway.peers.handle_report(message, self.cluster_ms if stamp is None else stamp, self.now)
            if heard is not None:
                gateway.heard.append(heard)

    def cycle(self, count: int = 1, *, silent: tuple[Gateway, ...] = ()) -> None:
        for _ in range(count):
            self.now += 1.0
            for gateway in self.gateways:
                if gateway not in silent:
                    messages = gateway.say()
                    gateway.peers.record_sent(self.now)
                    for message in messages:
                        self.deliver(message)
                    gateway.reporter.on_report_arrived()
            for gateway in self.gateways:
                if gateway.reporter.is_report_requested and gateway not in silent:
                    self.answer(gateway)

    def answer(self, gateway: Gateway) -> None:
        """The reporter doesn't wait for its next cycle."""
        for message in gateway.reporter.make_report(is_turn=False):
            self.deliver(message)
        gateway.reporter.on_report_arrived()


def trio_of(**options: Any) -> tuple[Fleet, Gateway, Gateway, Gateway]:
    gateways = [Gateway(name, n, **options) for n, name in enumerate("abc", 1)]
    a, b, c = gateways
    return Fleet(a, b, c), a, b, c


def close(a: float, b: float, tolerance: float = SINGLE) -> bool:
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-9)


def decoded(message: bytes) -> ResourceUsage:
    return form.decode_usage(message)


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


rates = st.one_of(st.just(0.0), st.floats(0.001, 1e13))
uses_of_keys = st.dictionaries(
    st.sampled_from(KEYS),
    st.builds(
        LimitDemand,
        rates,
        st.booleans(),
        st.one_of(st.just(1.0), st.floats(1e-3, 1e6)),
        st.integers(0, 60_000),
        st.one_of(st.just(0.0), rates),
    ),
)


def oracle(message: bytes) -> dict[str, Any]:
    """The limits in a message by their numbers, as in the .proto."""
    assert message[0] == 3
    said = fields(message[1:])
    columns = fields(said[8][0]) if 8 in said else {}
    numbers = struct.unpack(f"<{len(columns.get(1, [b''])[0]) // 8}Q", columns.get(1, [b""])[0])
    count = len(numbers)
    rates = struct.unpack(f"<{count}f", columns.get(2, [b""])[0])
    hungry = list(columns.get(3, [bytes(count)])[0])
    weights = struct.unpack(f"<{count}f", columns[4][0]) if 4 in columns else [1.0] * count
    topics = list(varints(columns[5][0])) if 5 in columns else [0] * count
    claims = struct.unpack(f"<{count}f", columns[6][0]) if 6 in columns else [0.0] * count
    uses = zip(rates, map(bool, hungry), weights, topics, claims, strict=True)
    return {
        "broker": said[1][0].decode(),
        "boot": said[2][0],
        "sequence": said.get(3, [0])[0],
        "usages": {number: LimitDemand(*use) for number, use in zip(numbers, uses, strict=True)},
    }


def is_like(found: LimitDemand, use: LimitDemand) -> bool:
    """Equal, apart from the rounding of numbers on the wire."""
    return (
        close(found.rate, use.rate)
        and close(found.weight, use.weight)
        and close(found.claim, use.claim)
        and (found.hungry, found.topics) == (use.hungry, use.topics)
    )


@pytest.mark.seed("82.21")
@given(uses_of_keys)
def test_an_independent_decoder_reads_what_was_reported(uses: Uses) -> None:
    reporter = Reporter("broker-1.example.com", boot(1))
    [message] = reporter.say(uses)
    said = oracle(message)
    assert (said["broker"], said["boot"], said["sequence"]) == ("broker-1.example.com", boot(1), 0)
    found = {NAMES[number]: use for number, use in said["usages"].items()}
    active = {key: use for key, use in uses.items() if not use.is_idle}
    assert found.keys() == active.keys()
    assert all(is_like(found[key], use) for key, use in active.items())


@pytest.mark.seed("82.21")
@pytest.mark.parametrize("topics", [2**32 - 1, 2**40])
def test_the_number_of_topics_is_one_of_32_bits(topics: int) -> None:
    [message] = Reporter("a", boot(1)).say({GOLD: LimitDemand(1.0, topics=topics)})
    assert [use.topics for use in oracle(message)["usages"].values()] == [2**32 - 1]


@pytest.mark.seed("82.12", "82.21", "82.22")
@given(uses_of_keys)
def test_usages_are_heard_as_they_were_said(uses: Uses) -> None:
    fleet, a, b, _ = trio_of()
    a.uses = uses
    fleet.cycle()
    for key in KEYS:
        use = uses.get(key, IDLE)
        found = b.knows(key)
        assert [is_like(one, use) for one in found] == ([] if use.is_idle else [True])
        assert a.reporter.published_demand(key) == (IDLE if use.is_idle else use)


@pytest.mark.seed("82.39")
def test_numbers_of_limits_are_the_same_everywhere_and_alike_within_a_group() -> None:
    assert form.limit_id(TOTAL) == 15960522592990813184  # gateways of all machines and releases agree
    numbers = [form.limit_id(group_key("gold", d, u)) for d in ("publish", "dispatch") for u in ("bytes", "msgs")]
    assert [number & 3 for number in numbers] == [0, 1, 2, 3]
    assert len({number >> 2 for number in numbers}) == 1
    many = [quota_key("producer_byte_rate.bps", None, f"client-{n}", None) for n in range(20_000)]
    assert len({form.limit_id(key) for key in many}) == len(many)


def test_numbers_of_limits_depend_on_what_gateways_share_and_clients_do_not_know() -> None:
    salted = [
        form.limit_id(key, salt) for key in KEYS for salt in (b"", b"one topic", b"another", b"x" * form.MAX_SALT)
    ]
    assert len(set(salted)) == len(salted)
    numbers = [form.limit_id(key, b"one topic") for key in KEYS[:2]]
    assert numbers[0] ^ numbers[1] == 1, "limits of one group still differ in their last bits only"


def test_after_a_change_of_the_salt_everything_is_told_by_the_new_numbers_and_heard() -> None:
    fleet, a, b, _ = trio_of()
    a.uses, a.rates = {GOLD: LimitDemand(100.0), QUOTA: LimitDemand(5.0)}, [ThresholdRate(1, None, 7.0)]
    fleet.cycle(2)
    a.uses = {GOLD: LimitDemand(100.0)}
    for gateway in fleet.gateways:
        gateway.reporter.set_salt(b"another topic")
    [message] = a.say()
    assert set(oracle(message)["usages"]) == {form.limit_id(key, b"another topic") for key in (GOLD, QUOTA)}
    fleet.deliver(message)
    assert ([use.rate for use in b.knows(GOLD)], b.knows(QUOTA)) == ([100.0], [])
    assert (a.reporter.published_demand(GOLD), a.reporter.published_demand(QUOTA)) == (LimitDemand(100.0), IDLE)
    assert b.peers.broker_rates() == {1: (7.0, {})}
    fleet.cycle(2 * reports.REPORT_CYCLES)
    assert [use.rate for use in b.knows(GOLD)] == [100.0]


def test_a_limit_without_use_is_forgotten_after_a_change_of_the_salt_as_before() -> None:
    reporter = settled({GOLD: LimitDemand(1.0)})
    reporter.set_salt(b"another topic")
    for _ in range(round(reports.IDLE_S) + 2 * reports.REPORT_CYCLES):
        reporter.say({}, [])
    assert GOLD not in reporter.limits


@pytest.mark.parametrize("rate", [math.nan, -1.0, math.inf, 1e308])
def test_a_rate_that_is_none_harms_no_other_usage(rate: float) -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: LimitDemand(rate, True), TOTAL: LimitDemand(5.0)}
    fleet.cycle()
    assert [use.rate for use in b.knows(TOTAL)] == [5.0]
    [known] = b.knows(GOLD)
    assert known.hungry
    assert 0.0 <= known.rate <= 3.1e38


# --- what is reported, and when ---------------------------------------------------------------------------------------


def listed(message: bytes) -> set[str]:
    """The limits of KEYS that a message names."""
    return {NAMES[number] for number in oracle(message)["usages"]}


def keys_in(messages: list[bytes], keys: Iterable[str]) -> set[str]:
    """The keys of `keys` that are in messages."""
    said = {number for message in messages for number in oracle(message)["usages"]}
    return {key for key in keys if form.limit_id(key) in said}


def only(messages: list[bytes]) -> bytes:
    [message] = messages
    return message


def settled(uses: Uses, **options: Any) -> Reporter:
    """A reporter that has reported these limits."""
    reporter = Reporter("a", boot(1), **options)
    reporter.say(uses)
    return reporter


def test_a_message_comes_every_cycle_and_one_that_says_nothing_is_small() -> None:
    reporter = Reporter("broker-1.example.com", boot(1))
    for _ in range(20):
        assert len(only(reporter.say({}))) < 60


@pytest.mark.seed("82.19")
@pytest.mark.parametrize(("factor", "told"), [(1.10, True), (0.90, True), (1.09, False), (0.91, False)])
def test_a_change_of_a_tenth_is_told_at_once(factor: float, told: bool) -> None:
    for start in (3.0, 1000.0, 12345.678, 9.9e9):
        reporter = settled({GOLD: LimitDemand(start), TOTAL: LimitDemand(1.0)}, every=10**6)
        reporter.say({GOLD: LimitDemand(start), TOTAL: LimitDemand(1.0)})
        assert (
            GOLD in listed(only(reporter.say({GOLD: LimitDemand(start * factor), TOTAL: LimitDemand(1.0)})))
        ) == told


@pytest.mark.parametrize(
    ("before", "use"),
    [
        (LimitDemand(100.0), LimitDemand(100.0, True)),
        (LimitDemand(100.0, True), LimitDemand(100.0)),
        (LimitDemand(100.0), LimitDemand(100.0, False, 2.0)),
        (LimitDemand(100.0), LimitDemand(0.0, True)),
        (LimitDemand(100.0), LimitDemand(100.0, claim=11.0)),
    ],
    ids=["hungry", "content", "weight", "starving", "claim"],
)
def test_a_change_of_heart_is_told_at_once(before: LimitDemand, use: LimitDemand) -> None:
    reporter = settled({GOLD: before}, every=10**6)
    assert listed(only(reporter.say({GOLD: use}))) == {GOLD}


def test_a_change_by_two_percent_of_the_limit_is_told_at_once() -> None:
    reporter = settled({GOLD: LimitDemand(600.0), TOTAL: LimitDemand(600.0)}, every=10**6, limit_of={GOLD: 1000.0}.get)
    reporter.say({GOLD: LimitDemand(600.0), TOTAL: LimitDemand(600.0)})
    assert listed(only(reporter.say({GOLD: LimitDemand(615.0), TOTAL: LimitDemand(615.0)}))) == set()
    assert listed(only(reporter.say({GOLD: LimitDemand(625.0), TOTAL: LimitDemand(625.0)}))) == {GOLD}


@pytest.mark.seed("82.20")
@pytest.mark.parametrize("every", [1, 2, 5, 7])
def test_in_n_cycles_each_usage_is_reported_although_nothing_changed(every: int) -> None:
    uses = {quota_key("producer_byte_rate.bps", None, f"c{n}", None): LimitDemand(100.0) for n in range(200)}
    reporter = settled(uses, every=every)
    said = [keys_in(reporter.say(uses), uses) for _ in range(3 * every)]
    assert max(map(len, said)) < 1.5 * 200 / every  # spread over the cycles
    for first in range(2 * every):
        assert set().union(*said[first : first + every]) == uses.keys()
    assert [decoded(only(reporter.say(uses))).round for _ in range(every)] == [3] * (every - 1) + [4]


@pytest.mark.seed("82.20")
def test_a_report_between_two_cycles_takes_no_usage_s_turn() -> None:
    uses = {group_key(f"g{n}", "publish", "bytes"): LimitDemand(100.0) for n in range(10)}
    reporter = settled(uses)
    seen: set[str] = set()
    for n in range(5):
        between = reporter.say(uses | {TOTAL: LimitDemand(1.0 + n)}, is_turn=False)
        assert listed(only(between)) == {TOTAL}
        seen |= keys_in(reporter.say(uses | {TOTAL: LimitDemand(1.0 + n)}), uses)
    assert seen == uses.keys()


def test_only_usages_that_changed_have_to_be_noted() -> None:
    other = group_key("gold", "dispatch", "bytes")
    reporter = reports.UsageReporter("a", boot(1))
    reporter.record_demands(
        {GOLD: LimitDemand(100.0, topics=5), other: LimitDemand(7.0, topics=3), TOTAL: LimitDemand(50.0)}
    )
    list(reporter.make_report(is_turn=False))
    assert sorted(reporter.pop_changed_limits()) == sorted([GOLD, other, TOTAL])
    for uses in ({GOLD: LimitDemand(200.0, topics=2)}, {GOLD: IDLE}, {GOLD: LimitDemand(1.0, topics=9)}):
        reporter.record_demands(uses)
        assert listed(only(list(reporter.make_report(is_turn=False)))) == {GOLD}
        assert reporter.pop_changed_limits() == [GOLD]
        assert (reporter.published_demand(other), reporter.published_demand(GOLD)) == (
            LimitDemand(7.0, topics=3),
            uses[GOLD],
        )
    reporter.record_demands({GOLD: IDLE, other: IDLE, SILVER: IDLE})
    list(reporter.make_report())
    assert [reporter.published_demand(key) for key in (GOLD, other, SILVER)] == [IDLE] * 3


def test_a_usage_that_changed_by_less_than_a_percent_is_repeated_and_no_news() -> None:
    fleet, a, b, _ = trio_of(every=1)
    a.uses = b.uses = {GOLD: LimitDemand(100.0)}
    fleet.cycle(2)
    a.uses = {GOLD: LimitDemand(100.9)}
    b.heard.clear()
    fleet.cycle(3)
    assert not any(heard.keys for heard in b.heard)
    a.uses = {GOLD: LimitDemand(101.1)}
    fleet.cycle()
    assert [close(use.rate, 101.1) for use in b.knows(GOLD)] == [True]


def test_a_message_is_never_so_large_that_it_takes_long() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = b.uses = {group_key(f"g{n}", "publish", "bytes"): LimitDemand(n + 1.0) for n in range(1200)}
    a.rates = [ThresholdRate(n, "t" * 249, 1.0) for n in range(1200)]
    fleet.cycle()
    sizes = [len(said.limits.limit) + len(said.rates) for said in fleet.said]
    assert max(sizes) == form.MAX_ENTRIES
    assert max(said.ByteSize() for said in fleet.said) < 200_000
    assert all(len(b.knows(key)) == 1 for key in a.uses)
    assert len(b.peers.broker_rates()) == 1200


def test_a_topic_that_is_lost_while_a_report_is_made_loses_no_usage() -> None:
    fleet, a, b, _ = trio_of()
    fleet.cycle()
    a.uses = {group_key(f"g{n}", "publish", "bytes"): LimitDemand(n + 1.0) for n in range(1200)}
    a.reporter.record_demands(a.uses)
    messages = a.reporter.make_report()
    next(messages)
    a.reporter.on_report_lost()
    list(messages)
    a.reporter.on_report_lost()
    fleet.cycle(1)
    assert all(len(b.knows(key)) == 1 for key in a.uses)


def test_in_n_cycles_a_usage_that_crept_is_told_with_its_numbers() -> None:
    fleet, a, b, _ = trio_of()
    for step in range(60):
        a.uses = {GOLD: LimitDemand(1000.0 * 1.003**step)}
        fleet.cycle()
        [known] = b.knows(GOLD)
        # five cycles of 0.3 %, then again within 1 %
        assert close(known.rate, a.uses[GOLD].rate, 0.026)
    fleet.cycle(5)
    assert close(b.knows(GOLD)[0].rate, a.uses[GOLD].rate, 0.01)


@pytest.mark.seed("82.18", "82.32")
def test_no_usage_takes_the_gateway_out_of_that_limit() -> None:
    fleet, a, b, c = trio_of()
    a.uses = b.uses = {GOLD: LimitDemand(100.0), TOTAL: LimitDemand(5.0)}
    fleet.cycle(2)
    assert len(c.knows(GOLD)) == 2
    a.uses = {TOTAL: LimitDemand(5.0)}
    fleet.cycle()
    assert len(c.knows(GOLD)) == len(b.knows(TOTAL)) == 1
    # and it comes back
    a.uses = {GOLD: LimitDemand(70.0), TOTAL: LimitDemand(5.0)}
    fleet.cycle()
    assert sorted(round(use.rate) for use in c.knows(GOLD)) == [70, 100]


# --- what gets lost ---------------------------------------------------------------------------------------------------


def assert_all_is_known(fleet: Fleet, gateway: Gateway, keys: Iterable[str]) -> None:
    others = [other for other in fleet.gateways if other is not gateway]
    for key in keys:
        told = sorted(use for use in (other.reporter.published_demand(key) for other in others) if use != IDLE)
        found = sorted(gateway.knows(key))
        assert len(found) == len(told), (gateway.label, key)
        assert all(map(is_like, found, told)), (gateway.label, key)


def lose(gateway: Gateway) -> list[bytes]:
    """A report that no peer hears, although the topic took it."""
    messages = gateway.say()
    gateway.reporter.on_report_arrived()
    return messages


@pytest.mark.seed("82.16")
@given(
    st.lists(
        st.tuples(
            st.lists(uses_of_keys, min_size=3, max_size=3),
            st.lists(st.sampled_from(["ok", "lost", "late", "twice", "half"]), min_size=3, max_size=3),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([0, peers.DEMAND_ROOM]),
)
def test_after_any_loss_all_is_known_again_two_rounds_later(
    steps: list[tuple[list[Uses], list[str]]], room: int
) -> None:
    fleet, *gateways = trio_of(room=room)
    late: list[bytes] = []
    for uses, fates in steps:
        fleet.now += 1.0
        for gateway, present, fate in zip(gateways, uses, fates, strict=True):
            gateway.uses = present
            for message in lose(gateway):
                if fate == "late":
                    late.append(message)
                elif fate == "half":  # one of the two others doesn't get it
                    listener = gateways[gateways.index(gateway) - 1]
                    listener.peers.handle_report(message, fleet.cluster_ms, fleet.now)
                elif fate != "lost":
                    fleet.deliver(message)
                    if fate == "twice":
                        fleet.deliver(message)
        if len(late) > 1:
            fleet.deliver(late.pop(0))
    for message in late:
        fleet.deliver(message)
    fleet.cycle(3 * reports.REPORT_CYCLES)
    for gateway in gateways if room else ():
        assert_all_is_known(fleet, gateway, KEYS)
    for gateway in gateways:
        assert_all_is_known(fleet, gateway, [key for key, use in gateway.uses.items() if not use.is_idle])


@pytest.mark.seed("82.16")
@pytest.mark.parametrize("fate", ["lost", "stale"])
@pytest.mark.parametrize("first", range(reports.REPORT_CYCLES, 2 * reports.REPORT_CYCLES))
@pytest.mark.parametrize("count", [1, 2, 2 * reports.REPORT_CYCLES])
def test_a_round_of_which_a_message_is_missing_ends_nothing(fate: str, first: int, count: int) -> None:
    fleet, a, b, _ = trio_of()
    a.uses = b.uses = {group_key(f"g{n}", "publish", "bytes"): LimitDemand(1.0) for n in range(40)}
    a.rates = [ThresholdRate(n, None, 1.0) for n in range(40)]
    fleet.cycle(first)
    for _ in range(count):
        for message in lose(a):
            if fate == "stale":
                b.peers.handle_report(message, fleet.cluster_ms - 4000, fleet.now)
    assert b.peers.drop_counts["stale"] == (count if fate == "stale" else 0)
    for _ in range(3 * reports.REPORT_CYCLES):
        fleet.cycle()
        assert [len(b.knows(key)) for key in a.uses] == [1] * 40
        assert len(b.peers.broker_rates()) == 40
    # a round that was heard from end to end ends what it doesn't mention
    a.uses, a.rates = {}, []
    lose(a)
    fleet.cycle(3 * reports.REPORT_CYCLES)
    assert not any(b.knows(key) for key in b.uses)
    assert b.peers.broker_rates() == {}


@pytest.mark.parametrize("before", range(reports.REPORT_CYCLES, 2 * reports.REPORT_CYCLES))
def test_what_the_topic_did_not_take_and_is_said_again_in_the_next_round_has_not_ended(before: int) -> None:
    fleet, a, b, _ = trio_of()
    a.uses = b.uses = {group_key(f"g{n}", "publish", "bytes"): LimitDemand(1.0) for n in range(600)}
    fleet.cycle(before)
    a.say()
    a.reporter.on_report_lost()
    fleet.deliver(a.say()[0])
    assert all(b.knows(key) for key in a.uses)


@pytest.mark.seed("82.16")
def test_a_report_that_the_topic_did_not_take_is_said_again_without_being_asked_for() -> None:
    fleet, a, b, _ = trio_of()
    fleet.cycle()
    a.uses = {GOLD: LimitDemand(100.0)}
    a.say()
    a.reporter.on_report_lost()
    fleet.cycle()
    assert round(b.knows(GOLD)[0].rate) == 100
    # an end as well
    a.uses = {}
    a.say()
    a.reporter.on_report_lost()
    fleet.cycle()
    assert b.knows(GOLD) == []


def test_a_message_that_comes_twice_or_after_a_later_one_is_dropped() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: LimitDemand(100.0)}
    fleet.cycle(2)
    a.uses = {GOLD: LimitDemand(200.0)}
    [early] = a.say()
    a.uses = {GOLD: LimitDemand(400.0)}
    [later] = a.say()
    for message in (later, early, later):
        b.peers.handle_report(message, fleet.cluster_ms, fleet.now)
    assert b.peers.drop_counts["late"] == 2
    assert close(b.knows(GOLD)[0].rate, 400)


# --- who begins, and who ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "known"), [(1, [100]), (reports.MAX_FOR_NEW, [])])
def test_a_gateway_that_begins_is_told_everything_at_once_where_that_is_not_too_much(
    others: int, known: list[int]
) -> None:
    fleet, a, *_ = trio_of(every=1000)
    a.uses = {GOLD: LimitDemand(100.0)} | {
        group_key(f"g{n}", "publish", "bytes"): LimitDemand(1.0) for n in range(others)
    }
    fleet.cycle(3)
    late = Gateway("d", 4)
    fleet.gateways.append(late)
    for message in late.say():
        fleet.deliver(message)
    assert a.reporter.is_report_requested == bool(known)
    fleet.answer(a)
    assert [round(use.rate) for use in late.knows(GOLD)] == known
    assert not a.reporter.is_report_requested


def test_many_gateways_that_begin_are_told_everything_once_per_cycle() -> None:
    fleet, a, *_ = trio_of(every=1000)
    a.uses = {GOLD: LimitDemand(100.0)}
    fleet.cycle(3)
    fleet.said.clear()
    for n in range(10):
        for message in Gateway(f"late-{n}", 10 + n).say():
            fleet.deliver(message)
        if a.reporter.is_report_requested:
            fleet.answer(a)
    fleet.cycle(3)
    assert len([said for said in fleet.said if said.broker == "a" and said.limits.limit]) == 2


def test_a_gateway_that_begins_to_use_a_limit_of_others_is_answered_at_once() -> None:
    # given gateways that have no room for what doesn't concern them
    fleet, a, b, c = trio_of(room=0, every=1000)
    a.uses = b.uses = {GOLD: LimitDemand(100.0)}
    fleet.cycle(5)
    assert c.knows(GOLD) == []
    # when one of them begins with it
    c.uses = {GOLD: LimitDemand(1.0, True)}
    fleet.now += 1
    for message in c.say():
        fleet.deliver(message)
    # then the others tell theirs, before their next cycle
    for gateway in (a, b):
        assert gateway.reporter.is_report_requested
        fleet.answer(gateway)
        assert not gateway.reporter.is_report_requested
    assert [round(use.rate) for use in c.knows(GOLD)] == [100, 100]
    assert {key for heard in c.heard[-2:] for key in heard.keys} == {GOLD}
    # it ends there, after one answer to the answers
    fleet.answer(c)
    assert not any(gateway.reporter.is_report_requested for gateway in fleet.gateways)


def test_a_usage_that_comes_and_goes_is_not_answered_each_time() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: LimitDemand(100.0)}
    fleet.cycle(5)
    b.uses = {GOLD: LimitDemand(1.0)}
    fleet.cycle(1)
    for _ in range(3):
        b.uses = {} if b.uses else {GOLD: LimitDemand(1.0)}
        for message in b.say():
            fleet.deliver(message)
        assert not a.reporter.is_report_requested


def test_usages_that_do_not_concern_a_gateway_are_remembered_while_there_is_room() -> None:
    fleet, a, b, _ = trio_of(room=20)
    keys = [group_key(f"a{n}", "publish", "bytes") for n in range(30)]
    a.uses = dict.fromkeys(keys, LimitDemand(1.0))
    fleet.cycle(10)
    assert sum(len(b.knows(key)) for key in keys) == 20
    # what it uses itself always is
    b.uses = a.uses
    fleet.cycle(reports.REPORT_CYCLES)
    assert [len(b.knows(key)) for key in keys] == [1] * 30
    # and when there is room again, others are
    a.uses = b.uses = {}
    fleet.cycle(3 * reports.REPORT_CYCLES)
    a.uses = {GOLD: LimitDemand(1.0)}
    fleet.cycle()
    assert len(b.knows(GOLD)) == 1


@pytest.mark.parametrize("cycle_s", [1.0, 2.0])
def test_a_limit_that_was_idle_for_long_is_forgotten(cycle_s: float) -> None:
    fleet, a, b, _ = trio_of(cycle_s=cycle_s)
    a.uses = {GOLD: LimitDemand(100.0), TOTAL: LimitDemand(1.0)}
    a.rates = [ThresholdRate(1, "t", 5.0)]
    fleet.cycle()
    a.uses, a.rates = {TOTAL: LimitDemand(1.0)}, []
    fleet.cycle(round(reports.IDLE_S / cycle_s))
    assert GOLD in a.reporter.limits
    fleet.cycle(20)
    assert (GOLD in a.reporter.limits, TOTAL in a.reporter.limits) == (False, True)
    a.uses = {TOTAL: LimitDemand(1.0), GOLD: LimitDemand(30.0)}
    fleet.cycle()
    assert [round(use.rate) for use in b.knows(GOLD)] == [30]


def test_a_gateway_that_starts_again_is_another_peer() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: LimitDemand(100.0), TOTAL: LimitDemand(1.0)}
    fleet.cycle(3)
    fleet.gateways.remove(a)
    fleet.now += 0.5
    again = Gateway("a", 77)
    again.uses = {TOTAL: LimitDemand(9.0), GOLD: LimitDemand(50.0)}
    fleet.gateways.append(again)
    fleet.cycle(1)
    # the old one counts until it was silent for two cycles; a restart is no clash
    assert sorted(round(use.rate) for use in b.knows(GOLD)) == [50, 100]
    fleet.cycle(2)
    assert b.peers.expire_peers(fleet.now) == [a.label]
    assert [round(use.rate) for use in b.knows(GOLD)] == [50]
    assert [round(use.rate) for use in b.knows(TOTAL)] == [9]
    assert b.peers.problem == ""


def test_two_gateways_of_one_name_are_two_peers_and_a_complaint() -> None:
    fleet, a, b, _ = trio_of()
    twin = Gateway("a", 77)
    fleet.gateways.append(twin)
    a.uses, twin.uses = {GOLD: LimitDemand(100.0)}, {GOLD: LimitDemand(50.0)}
    fleet.cycle(2)
    assert sorted(round(use.rate) for use in b.knows(GOLD)) == [50, 100]
    for gateway in (a, b, twin):
        assert "two gateways call themselves 'a'" in gateway.peers.problem
    # until one of them is gone
    fleet.gateways.remove(twin)
    for _ in range(round(peers.CLASH_CYCLES) + 4):
        fleet.cycle()
        a.peers.expire_peers(fleet.now)
        b.peers.expire_peers(fleet.now)
    assert (a.peers.problem, b.peers.problem) == ("", "")


def test_a_gateway_that_says_goodbye_is_gone_at_once_with_its_traffic() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: LimitDemand(100.0)}
    a.reporter.record_traffic(BUSY)
    fleet.cycle(2)
    assert b.peers.traffic_by_gateway() == {"a": BUSY}
    for message in a.reporter.make_leave_message():
        fleet.deliver(message)
    assert b.heard[-1].left
    assert b.heard[-1].peer == a.label
    assert (b.knows(GOLD), b.peers.peer_count, b.peers.traffic_by_gateway()) == ([], 1, {})


@pytest.mark.parametrize("leaves", [True, False])
def test_gateways_that_are_gone_leave_room_for_others(leaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_PEERS", 3)
    fleet, _, b, _ = trio_of()
    for number in range(100, 105):
        again = Gateway("again", number)
        fleet.gateways.append(again)
        fleet.cycle(2)
        assert set(b.peers.living_gateways.values()) == {"a", "c", "again"}
        fleet.gateways.remove(again)
        for message in again.reporter.make_leave_message() if leaves else []:
            fleet.deliver(message)
        fleet.cycle(1 if leaves else round(peers.FORGOTTEN_CYCLES) + 1)
        b.peers.expire_peers(fleet.now)
        assert [peer.gateway for peer in b.peers.peer_statuses(fleet.now)] == ["a", "c"]


@pytest.mark.seed("82.33")
@pytest.mark.parametrize("cycle_s", [1.0, 2.0])
def test_a_peer_is_gone_that_was_silent_for_more_than_two_cycles_while_we_were_not(cycle_s: float) -> None:
    fleet, a, b, _ = trio_of(cycle_s=cycle_s)
    a.uses = {GOLD: LimitDemand(100.0)}
    fleet.cycle(3)
    last = fleet.now

    def speak(cycles: float) -> None:
        """All but that peer, so many cycles after its last message."""
        fleet.now = last + cycles * cycle_s - 1.0
        fleet.cycle(1, silent=(a,))

    speak(1.25)
    assert b.peers.expire_peers(last + 10 * cycle_s) == [], "perhaps only the topic failed"
    speak(1.5)
    assert b.peers.expire_peers(last + 2.0 * cycle_s) == []
    assert b.peers.expire_peers(last + 2.1 * cycle_s) == [a.label]
    assert (b.knows(GOLD), b.peers.peer_count, b.peers.worker_count) == ([], 1, 1)
    assert b.peers.expire_peers(last + 2.1 * cycle_s) == []


def test_a_gateway_that_claims_a_cycle_of_an_hour_is_gone_after_two_minutes() -> None:
    fleet, a, b, _ = trio_of()
    a.reporter.cycle_s = 3600.0
    fleet.cycle(2)
    fleet.now += 117.0
    fleet.cycle(2, silent=(a,))
    assert a.label not in b.peers.expire_peers(fleet.now)
    fleet.cycle(2, silent=(a,))
    assert a.label in b.peers.expire_peers(fleet.now)


def test_a_gateway_that_was_only_late_is_taken_back_with_all_that_it_uses() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = b.uses = {GOLD: LimitDemand(100.0), TOTAL: LimitDemand(3.0)}
    fleet.cycle(3)
    fleet.cycle(4, silent=(a,))
    assert b.peers.expire_peers(fleet.now) == [a.label]
    fleet.cycle()
    heard = next(heard for heard in reversed(b.heard) if heard.peer == a.label)
    assert heard.keys == {GOLD, TOTAL}
    assert round(b.knows(GOLD)[0].rate) == 100


@pytest.mark.parametrize("silent", [3, 15, 25])
def test_a_gateway_that_was_away_is_told_at_once_what_changed_meanwhile(silent: int) -> None:
    a, b = Gateway("a", 1, every=60), Gateway("b", 2, every=60)
    fleet = Fleet(a, b)
    a.uses = b.uses = {GOLD: LimitDemand(5.0)}
    fleet.cycle(3)
    fleet.gateways = [b]  # nothing reaches the other one
    b.uses = {GOLD: LimitDemand(80.0, True), SILVER: LimitDemand(7.0, True)}
    fleet.cycle(silent)
    b.peers.expire_peers(fleet.now)
    assert not b.peers.living_gateways
    fleet.gateways = [a, b]
    fleet.cycle()
    assert a.knows(GOLD) == [LimitDemand(80.0, True)]
    assert a.knows(SILVER) == [LimitDemand(7.0, True)]


@pytest.mark.seed("82.33")
@pytest.mark.parametrize("before", [0.0, 0.3, 0.9])
def test_no_gateway_is_gone_while_the_topic_is_away(before: float) -> None:
    # given a peer that speaks so long before us, and a topic that fails just before its next turn
    fleet, a, b, _ = trio_of()
    fleet.cycle(3)
    [message] = a.say()
    b.peers.handle_report(message, None, fleet.now)
    [own] = b.say()
    b.peers.handle_report(own, None, fleet.now + before)
    # then it is silent for longer than we are, but for no fault of its own
    for tenths in range(60):
        assert a.label not in b.peers.expire_peers(fleet.now + before + tenths / 10)
    assert not b.peers.is_own_heard(fleet.now + before + 2.1)
    # and when the topic is back, the peer has two cycles to be heard of
    fleet.now += 100
    b.peers.excuse_silence(fleet.now)
    fleet.cycle(1, silent=(a,))
    assert b.peers.expire_peers(fleet.now + 0.5) == []
    fleet.cycle(2, silent=(a,))
    assert b.peers.expire_peers(fleet.now) == [a.label]


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.seed("82.35")
@pytest.mark.parametrize(("cycles_s", "limit"), [((1.0, 1.0), 3.0), ((1.0, 2.0), 6.0), ((2.0, 1.0), 6.0)])
def test_old_messages_are_dropped_by_the_time_of_publishing(cycles_s: tuple[float, float], limit: float) -> None:
    fleet, a, b, _ = trio_of()
    a.reporter.cycle_s, b.reporter.cycle_s = cycles_s
    fleet.cycle(2)
    a.uses = {GOLD: LimitDemand(100.0)}
    for age, dropped in ((limit + 0.5, True), (limit, False)):
        [message] = a.say()
        heard = b.peers.handle_report(message, fleet.cluster_ms - round(age * 1000), fleet.now)
        assert (heard is None) == dropped
    assert b.peers.drop_counts["stale"] == 1


def test_clocks_of_hosts_do_not_matter() -> None:
    # `now` is each host's own: 1000 here, while the cluster's clock may be years off
    fleet, a, b, _ = trio_of()
    fleet.cycle(2)
    a.uses = {GOLD: LimitDemand(100.0)}
    [message] = a.say()
    assert b.peers.handle_report(message, fleet.cluster_ms, fleet.now) is not None
    # a cluster's clock that is set back by an hour is followed with our next message
    back = fleet.cluster_ms - 3_600_000
    [own] = b.say()
    b.peers.record_sent(fleet.now)
    b.peers.handle_report(own, back, fleet.now + 0.01)
    [message] = a.say()
    assert b.peers.handle_report(message, back, fleet.now + 0.02) is not None
    assert b.peers.drop_counts["stale"] == 0


def test_the_clusters_time_is_known_from_our_own_messages() -> None:
    fleet, _, b, _ = trio_of()
    assert PeerTable(b.reporter).clock.unix_time(fleet.now) is None
    fleet.cycle(2)
    found = b.peers.clock.unix_time(fleet.now)
    assert found is not None
    assert fleet.cluster_ms / 1000 - 1.0 <= found <= fleet.cluster_ms / 1000
    [own] = b.say()
    b.peers.record_sent(fleet.now)
    b.peers.handle_report(own, None, fleet.now)  # the topic has the producers' times
    assert b.peers.clock.unix_time(fleet.now) is None


def test_a_message_of_ours_that_was_read_late_does_not_make_old_ones_new() -> None:
    fleet, a, b, _ = trio_of()
    fleet.cycle(2)
    [own], [theirs] = b.say(), a.say()
    b.peers.record_sent(fleet.now)
    published = fleet.cluster_ms
    fleet.now += 20.0  # the gateway was stopped
    b.peers.handle_report(own, published, fleet.now)
    assert b.peers.handle_report(theirs, published, fleet.now) is None
    assert b.peers.drop_counts["stale"] == 1


@pytest.mark.parametrize("step_s", [-3600.0, -6.0, 6.0, 3600.0])
def test_another_leader_s_clock_is_followed_where_each_message_takes_longer_than_a_cycle(step_s: float) -> None:
    fleet, a, b, _ = trio_of()
    fleet.cycle(2)
    late, ahead = 1.5, 0.0
    for number in range(30):
        ahead = step_s if number >= 10 else 0.0  # another broker leads the partition
        [own], [theirs] = b.say(), a.say()
        b.peers.record_sent(fleet.now)
        published = fleet.cluster_ms + round(1000 * (late / 2 + ahead))
        for message in (own, theirs):
            b.peers.handle_report(message, published, fleet.now + late)
        fleet.now += 1.0
        assert b.peers.is_own_heard(fleet.now - 1.0 + late)
        assert a.label not in b.peers.expire_peers(fleet.now - 1.0 + late)
    # what was published six seconds ago is stale by the new clock
    [theirs] = a.say()
    assert b.peers.handle_report(theirs, published - 6000, fleet.now - 1.0 + late) is None


@pytest.mark.parametrize(("late", "heard"), [(2.9, True), (3.1, False)])
def test_who_reads_so_late_that_others_are_stale_is_not_heard_and_forgets_nobody(late: float, heard: bool) -> None:
    fleet, a, b, _ = trio_of()
    fleet.cycle(2)
    for _ in range(10):
        [own], [theirs] = b.say(), a.say()
        b.peers.record_sent(fleet.now)
        for message in (theirs, own):
            b.peers.handle_report(message, fleet.cluster_ms, fleet.now + late)
        fleet.now += 1.0
    assert b.peers.is_own_heard(fleet.now - 1.0 + late) == heard
    assert (b.peers.drop_counts["stale"] == 0) == heard
    assert a.label not in b.peers.expire_peers(fleet.now - 1.0 + late)
    assert a.label in b.peers.living_gateways


def test_without_the_cluster_s_time_nothing_is_called_old() -> None:
    fleet, a, b, _ = trio_of()
    fleet.cycle(2)
    [message] = a.say()
    assert b.peers.handle_report(message, None, fleet.now + 1000) is not None


# --- what is no message -----------------------------------------------------------------------------------------------


def test_our_own_messages_are_neither_heard_nor_dropped() -> None:
    fleet, a, *_ = trio_of()
    a.uses = {GOLD: LimitDemand(1.0)}
    fleet.gateways = [a]
    fleet.cycle(3)
    assert (a.heard, a.knows(GOLD), sum(a.peers.drop_counts.values())) == ([], [], 0)
    assert a.peers.is_own_heard(fleet.now)


def test_a_form_of_another_release_is_dropped() -> None:
    fleet, a, b, _ = trio_of()
    [message] = a.say()
    assert b.peers.handle_report(b"\x04" + message[1:], None, fleet.now) is None
    assert (b.peers.drop_counts["version"], b.peers.drop_counts["malformed"]) == (1, 0)
    assert "version 4" in b.peers.problem
    fleet.cycle(10, silent=(a,))
    b.peers.expire_peers(fleet.now)
    assert "version 4" in b.peers.problem
    fleet.cycle(1, silent=(a,))
    b.peers.expire_peers(fleet.now)
    assert b.peers.problem == ""


def broken(change: Callable[[ResourceUsage], object]) -> bytes:
    reporter = Reporter("a", boot(1))
    uses = {GOLD: LimitDemand(100.0, True), SILVER: LimitDemand(5.0, False, 2.0), TOTAL: LimitDemand(1.0, topics=3)}
    [message] = reporter.say(uses, [ThresholdRate(1, None, 5.0), ThresholdRate(1, "t", 4.0)])
    said = decoded(message)
    change(said)
    return form.encode_usage(said)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x03",
        b"\x03\x0a\xff",
        b'{"not": "a report"}',  # nor one of a release 123
        broken(lambda m: m.ClearField("broker")),
        broken(lambda m: setattr(m, "broker", "x" * 256)),
        broken(lambda m: setattr(m, "broker", "a\nforged line")),
        broken(lambda m: setattr(m, "boot", b"short")),
        broken(lambda m: setattr(m, "workers", 10_001)),
        broken(lambda m: m.limits.limit.append(7)),
        broken(lambda m: m.limits.rate.append(1.0)),
        broken(lambda m: m.limits.rate.__setitem__(0, -1.0)),
        broken(lambda m: m.limits.rate.__setitem__(0, math.nan)),
        broken(lambda m: m.limits.rate.__setitem__(1, math.nan)),
        broken(lambda m: m.limits.rate.__setitem__(0, math.inf)),
        broken(lambda m: m.limits.hungry.append(True)),
        broken(lambda m: m.limits.weight.append(1.0)),
        broken(lambda m: m.limits.weight.__setitem__(0, 0.0)),
        broken(lambda m: m.limits.weight.__setitem__(0, math.inf)),
        broken(lambda m: m.limits.topics.append(1)),
        broken(lambda m: m.limits.claim.append(1.0)),
        broken(lambda m: m.limits.claim.extend([1.0, math.nan, 1.0])),
        broken(lambda m: m.limits.claim.extend([1.0, -1.0, 1.0])),
        broken(lambda m: m.limits.MergeFrom(Limits(limit=range(498), rate=[1.0] * 498))),
        broken(lambda m: setattr(m.rates[0], "rate", math.nan)),
        broken(lambda m: setattr(m.rates[0], "rate", -1.0)),
        broken(lambda m: setattr(m.rates[0], "broker", -1)),
        broken(lambda m: setattr(m.rates[1], "topic", "t" * 250)),
        broken(lambda m: m.flows.add(accepted=math.nan)),
        broken(lambda m: m.flows.add(would=-1.0)),
        broken(lambda m: m.flows.add(client_id="c" * 256)),
        broken(lambda m: m.flows.extend([FlowEntry(topic="t")] * 101)),
        broken(lambda m: None) + b"\xfa\x7f\x80\x80\x40" + bytes(2**20),
    ],
    ids=lambda message: message[:12].hex(),
)  # fmt: skip
def test_a_malformed_message_is_dropped_and_changes_nothing(message: bytes) -> None:
    b = Gateway("b", 2)
    b.reporter.say({GOLD: LimitDemand(1.0)})
    assert b.peers.handle_report(message, None, 0.0) is None
    assert b.peers.drop_counts["malformed"] == 1
    assert (b.peers.peer_count, b.knows(GOLD), b.peers.broker_rates()) == (0, [], {})


def test_a_well_formed_message_is_taken() -> None:
    b = Gateway("b", 2)
    assert b.peers.handle_report(broken(lambda m: None), None, 0.0) is not None
    assert (len(b.knows(GOLD)), b.peers.broker_rates()) == (1, {1: (5.0, {"t": 4.0})})


def test_forged_messages_fill_no_more_than_the_room() -> None:
    b = Gateway("b", 2)
    for n in range(60):
        said = ResourceUsage(broker="x", boot=boot(99), sequence=n, round=n)
        said.limits.MergeFrom(Limits(limit=range(500 * n, 500 * n + 500), rate=[1.0] * 500))
        b.peers.handle_report(form.encode_usage(said), None, 0.0)
    assert len(b.peers._peers[boot(99)].demands) <= peers.DEMAND_ROOM


@given(st.binary(max_size=200))
def test_bytes_raise_nothing(data: bytes) -> None:
    Gateway("b", 2).peers.handle_report(data, 5, 0.0)
    Gateway("b", 2).peers.handle_report(b"\x03" + data, 5, 0.0)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_message_with_wrong_bytes_raises_nothing(changes: list[tuple[int, int]]) -> None:
    data = bytearray(broken(lambda m: None))
    for at, byte in changes:
        data[1 + at % (len(data) - 1)] = byte
    fleet, a, b, _ = trio_of()
    a.uses = {GOLD: LimitDemand(5.0)}
    fleet.cycle()
    b.peers.handle_report(bytes(data), fleet.cluster_ms, fleet.now)
    b.peers.expire_peers(fleet.now)
    b.peers.broker_rates()
    fleet.cycle(5)
    for key in KEYS:
        assert all(math.isfinite(use.rate) for use in b.knows(key))


# --- V1's rates -------------------------------------------------------------------------------------------------------


def test_rates_of_brokers_and_topics_are_summed_over_peers() -> None:
    fleet, a, b, c = trio_of()
    a.rates = [ThresholdRate(1, None, 100.0), ThresholdRate(1, "clicks", 60.0), ThresholdRate(2, None, 7.0)]
    b.rates = [ThresholdRate(1, None, 50.0), ThresholdRate(1, "clicks", 30.0), ThresholdRate(1, "a/b", 20.0)]
    fleet.cycle(2)
    found = c.peers.broker_rates()
    assert found.keys() == {1, 2}
    assert found[1] == (150.0, {"clicks": 90, "a/b": 20})
    assert a.peers.broker_rates()[1][1] == {"clicks": 30, "a/b": 20}
    b.rates = [ThresholdRate(1, None, 50.0)]
    before = len(c.heard)
    fleet.cycle()
    assert any(heard.rates for heard in c.heard[before:])
    assert c.peers.broker_rates()[1][1] == {"clicks": 60}
    fleet.cycle(3)
    before = len(c.heard)
    fleet.cycle(5)
    assert not any(heard.rates for heard in c.heard[before:])


def test_where_there_are_too_many_topics_brokers_are_counted_and_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_RATES", 100)
    fleet, a, b, c = trio_of(cycle_s=2.0)
    a.rates = [ThresholdRate(1, f"t{n}", 1.0) for n in range(100)] + [ThresholdRate(1, None, 100.0)]
    b.rates = [ThresholdRate(1, f"t{n}", 1.0) for n in range(100)] + [ThresholdRate(1, None, 100.0)]
    fleet.cycle()
    total, topics = c.peers.broker_rates()[1]
    assert total == 200.0
    assert 90 < len(topics) <= 100
    assert c.peers.drop_counts["too-many"] >= 1
    assert "topics isn't counted" in c.peers.problem
    a.rates = b.rates = []
    for seconds, is_told in ((19, True), (2, False)):  # ten cycles
        fleet.cycle(seconds)
        c.peers.expire_peers(fleet.now)
        assert bool(c.peers.problem) == is_told


def test_topics_that_kafka_would_not_have_are_left_out() -> None:
    fleet, a, b, _ = trio_of()
    a.rates = [ThresholdRate(1, "t" * 250, 10.0), ThresholdRate(1, "t", 7.0)]
    fleet.cycle(3)
    assert b.peers.drop_counts["malformed"] == 0
    assert b.peers.broker_rates() == {1: (0.0, {"t": 7.0})}


def test_the_rate_of_topics_that_share_a_meter_is_not_that_of_their_broker() -> None:
    """Their name is empty, as is that of a whole broker in messages."""
    fleet, a, b, _ = trio_of()
    a.rates = [ThresholdRate(1, None, 100.0), ThresholdRate(1, "", 10.0)]
    fleet.cycle(6)
    assert b.peers.broker_rates() == {1: (100.0, {})}


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.seed("82.21")
def test_the_generated_module_is_that_of_the_schema(tmp_path: Path) -> None:
    schema = "gateway/control/fleet/exchange/resource_usage.proto"
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", schema],
        cwd=ROOT, check=True,
    )  # fmt: skip
    for suffix in ("_pb2.py", "_pb2.pyi"):
        path = Path(schema.replace(".proto", suffix))
        assert (tmp_path / path).read_text() == (ROOT / path).read_text(), f"{path}: generate it again"


# --- traffic that people ask any gateway about ------------------------------------------------------------------------


def test_the_busiest_topics_and_clients_are_told_once_in_a_round_and_forgotten_when_they_are_not() -> None:
    fleet, a, b, _ = trio_of()
    a.reporter.record_traffic(BUSY)
    fleet.cycle(reports.REPORT_CYCLES)
    assert b.peers.traffic_by_gateway() == {"a": BUSY}
    assert sum(bool(message.flows) for message in fleet.said) == 1
    a.reporter.record_traffic(form.NO_TRAFFIC)
    fleet.cycle(2 * reports.REPORT_CYCLES)
    assert b.peers.traffic_by_gateway() == {}


def test_of_many_topics_and_clients_the_busiest_are_told_by_names_that_can_travel() -> None:
    topics = {f"t{number}": TopicFlow(float(number)) for number in range(2 * form.MAX_FLOWS)}
    clients = {("User:" + "x" * 300, "\ud800" + str(number)): TopicFlow(rejected=float(number)) for number in range(99)}
    message = ResourceUsage()
    form.add_flows(message, form.GatewayTraffic(topics, clients))
    found = form.read_flows(message)
    assert set(found.topics) == {f"t{number}" for number in range(form.MAX_FLOWS, 2 * form.MAX_FLOWS)}
    assert set(found.clients) == {(("User:" + "x" * 300)[:255], f"?{number}") for number in range(49, 99)}


def test_a_gateway_of_an_earlier_release_skips_the_traffic() -> None:
    """Its schema has no such field; Protocol Buffers keep what they don't know, and the rest is as it was."""
    _, a, b, _ = trio_of()
    a.reporter.record_traffic(BUSY)
    [message] = a.reporter.say({GOLD: LimitDemand(5.0)})
    assert 10 in fields(message[1:])
    assert oracle(message)["usages"], "read by the schema without it"
    newer = message + b"\xfa\x7f\x01x"  # a field that no release has yet
    b.peers.handle_report(newer, None, 1.0)
    assert b.peers.traffic_by_gateway() == {"a": BUSY}


def test_what_each_gateway_takes_and_brings_is_known_by_its_name() -> None:
    fleet, a, b, c = trio_of()
    a.uses, a.rates = {GOLD: LimitDemand(5.0)}, [ThresholdRate(1, None, 7.0), ThresholdRate(1, "clicks", 6.0)]
    c.rates = [ThresholdRate(1, None, 2.0)]
    fleet.cycle(2)
    assert b.peers.rates_by_gateway(GOLD) == {"a": 5.0, "c": 0.0}
    assert b.peers.rates_by_gateway(QUOTA) == {"a": 0.0, "c": 0.0}
    assert b.peers.place_rates(form.RatePlace(1, None)) == {"a": 7.0, "c": 2.0}
    assert b.peers.place_rates(form.RatePlace(1, "clicks")) == {"a": 6.0}
    assert b.peers.place_rates(form.RatePlace(2, None)) == {}
