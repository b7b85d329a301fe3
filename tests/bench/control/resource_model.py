"""The seed's estimate of memory and bandwidth (PIP-82, "Resource consumption considerations") against the real reports.

100,000 namespaces of 80 bytes' names, 100 gateways, each namespace on 5 of them; of each, bytes and messages, published
and dispatched. The seed: 1 MB of memory per broker; per minute, all usages once, 56 MB published and 5.6 GB consumed.

Bytes are those of Kafka's record batches, compressed as the exchange's producer compresses them.

    .venv/bin/python -m tests.bench.control.resource_model
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import tracemalloc
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.control.fleet.exchange import reports
from gateway.control.fleet.exchange.peers import DEMAND_ROOM, PeerTable
from gateway.control.fleet.exchange.reports import REPORT_CYCLES
from policies.fleet import keys as fleet_keys
from policies.fleet.shares import LimitDemand, ShareAllocator
from tests.gateway.control.fleet.fleet_play import Reporter

SEED_MEMORY = 1e6
SEED_PUBLISHED = 56e6
SEED_CONSUMED = 5.6e9
BATCH_HEADER = 61
BATCH_BYTES = 1_000_000  # librdkafka's batch.size: what one batch holds before it is compressed
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
LIMIT = 1e6  # of each of them
COLUMNS = (("publish", "bytes"), ("publish", "msgs"), ("dispatch", "bytes"), ("dispatch", "msgs"))

Uses = dict[str, LimitDemand]


@dataclass(frozen=True)
class Model:
    namespaces: int = 100_000
    gateways: int = 100
    spread: int = 5  # gateways per namespace
    name_bytes: int = 80
    gateway_bytes: int = 40
    room: int = DEMAND_ROOM

    def names(self, chance: random.Random) -> list[str]:
        """Letters at random: names that compress worse than anybody's."""
        return ["".join(chance.choices(LETTERS, k=self.name_bytes)) for _ in range(self.namespaces)]

    def places(self, chance: random.Random) -> list[list[int]]:
        """By gateway: its namespaces. Every gateway has the same number of them."""
        total = self.namespaces * self.spread
        while True:
            places: list[set[int]] = [set() for _ in range(self.gateways)]
            left = dict.fromkeys(range(self.gateways), total // self.gateways)
            for namespace in range(self.namespaces):
                # Those with most left first, by chance among equals: nobody remains with what he can't place.
                order = sorted(chance.sample(sorted(left), min(len(left), 4 * self.spread)), key=lambda g: -left[g])
                for gateway in order[: self.spread]:
                    places[gateway].add(namespace)
                    left[gateway] -= 1
                    if not left[gateway]:
                        del left[gateway]
            if all(len(place) == total // self.gateways for place in places):
                return [sorted(place) for place in places]


@dataclass
class Figures:
    """Of one model. Bytes are those of all gateways, per minute."""

    memory: int  # of one gateway: what it has to keep of others and for them, beside what its own workers take
    begin: int  # once, when everybody begins
    usages: int  # a report each minute, everything in it
    consumed: int
    report_s: float  # to make one
    take_s: float  # to take in one of another gateway


def usage(names: Iterable[str], chance: random.Random) -> Uses:
    found: Uses = {}
    for name in names:
        size = chance.lognormvariate(7, 1)
        topics = chance.randint(1, 20)
        factors: dict[fleet_keys.Direction, float] = {"publish": 1.0, "dispatch": chance.uniform(0.5, 4.0)}
        for direction, factor in factors.items():
            messages = chance.lognormvariate(5, 2) * factor
            hungry = chance.random() < 0.02
            found[fleet_keys.group_key(name, direction, "bytes")] = LimitDemand(messages * size, hungry, 1.0, topics)
            found[fleet_keys.group_key(name, direction, "msgs")] = LimitDemand(messages, False, 1.0, topics)
    return found


def changed(one: LimitDemand, chance: random.Random) -> LimitDemand:
    """By more than a tenth, up or down."""
    factor = chance.uniform(1.11, 2.0)
    return one._replace(rate=one.rate * (factor if chance.random() < 0.5 else 1 / factor))


def boot_of(gateway: int) -> bytes:
    return random.Random(gateway).randbytes(8)


def each_minute(model: Model, chance: random.Random, minutes: int = 2) -> Figures:
    """Everybody begins; then, each minute, everything changes and is reported once. Gateway 0 hears all of it."""
    names, places = model.names(chance), model.places(chance)
    said: list[list[list[bytes]]] = [[] for _ in range(minutes + 1)]  # by minute, by gateway
    for n, place in enumerate(places[1:], 1):
        reporter = Reporter(title_of(n, model), boot_of(n), cycle_s=60.0)
        present = usage((names[namespace] for namespace in place), chance)
        for at, messages in enumerate(said):
            messages.append(reporter.say(present))
            if at < minutes:
                present = {key: changed(one, chance) for key, one in present.items()}
    own = [usage((names[namespace] for namespace in places[0]), chance)]
    for _ in range(minutes):
        own.append({key: changed(one, chance) for key, one in own[-1].items()})
    del names, places, reporter, present
    alone, *_ = _live(model, own, said, exchanges=False)
    memory, ours, peers, mine = _live(model, own, said)
    memory -= alone
    assert peers.peer_count == model.gateways - 1
    assert peers.drop_counts == dict.fromkeys(peers.drop_counts, 0)
    assert all(len(peers.demands_for(key)) == model.spread - 1 for key in own[0])
    sizes = [here + sum(map(total, there)) for here, there in zip(mine, said, strict=True)]
    present = {key: changed(one, chance) for key, one in own[-1].items()}
    clock = time.process_time()
    ours.record_demands(present)
    list(ours.make_report())
    report_s = time.process_time() - clock
    clock = time.process_time()
    hearer = PeerTable(ours)
    for report in said[0]:
        take(hearer, report)
    clock = time.process_time()
    for report in said[1]:
        take(hearer, report)
    take_s = (time.process_time() - clock) / len(said[1])
    return Figures(memory, sizes[0], sizes[-1], sizes[-1] * model.gateways, report_s, take_s)


def _live(
    model: Model, own: list[Uses], said: list[list[list[bytes]]], *, exchanges: bool = True
) -> tuple[int, reports.UsageReporter, PeerTable, list[int]]:
    """A gateway's life, with two workers that take all that: its memory, and what it said, in bytes per minute.
    `exchanges`: False: the same, and nobody says or hears anything.
    """
    mine = []
    gc.collect()
    tracemalloc.start()
    try:
        ours = reports.UsageReporter(title_of(0, model), boot_of(0), cycle_s=60.0)
        peers = PeerTable(ours, room=model.room)
        fleet = ShareAllocator(peers)
        fleet.thaw_shares(0.0)
        fleet.update_limits(dict.fromkeys(own[0], LIMIT))
        for minute, (present, there) in enumerate(zip(own, said, strict=True)):
            for worker, share in (("one", 0.6), ("other", 0.4)):
                fleet.update_demand(worker, {key: use._replace(rate=share * use.rate) for key, use in present.items()})
            if exchanges:
                ours.record_demands(fleet.drain_changes())
                mine.append(total(list(ours.make_report())))
                fleet.mark_published(ours.pop_changed_limits())
                for messages in there:
                    for message in messages:
                        heard = peers.handle_report(message, None, 0.0)
                        fleet.mark_peers_changed(() if heard is None else heard.keys)
                list(
                    ours.make_report(is_turn=False)
                )  # who begins to use what we use as well is answered, at the beginning
                fleet.mark_published(ours.pop_changed_limits())
                ours.on_report_arrived()
                heard = None
            fleet.allocate_shares(60.0 * minute)
        del present, there
        gc.collect()
        return tracemalloc.get_traced_memory()[0], ours, peers, mine
    finally:
        tracemalloc.stop()


def total(messages: list[bytes]) -> int:
    """Bytes on the wire of one report: record batches v2, each deflated as librdkafka's gzip does it."""
    batches, records = 0, b""
    for message in messages:
        # length, attributes, times and offsets since the batch's first, key, value, number of headers
        body = b"\0\0" + _varint(len(records) // 100) + _varint(8) + bytes(8) + _varint(len(message)) + message + b"\0"
        if records and len(records) + len(body) > BATCH_BYTES:
            batches, records = batches + _batch(records), b""
        records += _varint(len(body)) + body
    return batches + _batch(records)


def _batch(records: bytes) -> int:
    gzip = zlib.compressobj(-1, zlib.DEFLATED, 15 + 16)
    return BATCH_HEADER + min(len(records), len(gzip.compress(records) + gzip.flush()))


def _varint(number: int) -> bytes:
    """Zigzag, of what is not below 0."""
    number *= 2
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


def title_of(gateway: int, model: Model) -> str:
    return f"broker-{gateway}.".ljust(model.gateway_bytes, "x")


def take(peers: PeerTable, messages: list[bytes]) -> None:
    for message in messages:
        peers.handle_report(message, None, 0.0)


def each_second(model: Model, chance: random.Random, gateways: int, drift: bool) -> tuple[float, float]:
    """Bytes and messages per minute of one gateway, mean of so many, at a cycle of 1 s, each usage repeated every 5 s:
    every usage changes by more than a tenth once within the minute; or, `drift`, on and on by as much per minute.
    """
    count = model.namespaces * model.spread // model.gateways
    size = messages = 0
    for n in range(gateways):
        names = Model(namespaces=count, name_bytes=model.name_bytes).names(chance)
        reporter = Reporter(title_of(n, model), boot_of(n))
        present = usage(names, chance)
        reporter.say(present)
        keys = list(present)
        turns = [chance.sample(range(60), 60) for _ in range(len(keys) // 4 // 60 + 1)]
        when = [turn for some in turns for turn in some][: len(keys) // 4]
        for second in range(60):
            for at, turn in enumerate(when):
                if drift or turn == second:
                    for key in keys[4 * at : 4 * at + 4]:
                        one = present[key]
                        present[key] = one._replace(rate=one.rate * 1.11 ** (1 / 60)) if drift else changed(one, chance)
            said = reporter.say(present)
            size += total(said)
            messages += len(said)
    return size / gateways, messages / gateways


def megabytes(number: float) -> str:
    return f"{number / 1e6:,.2f} MB" if number < 1e9 else f"{number / 1e9:,.2f} GB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=2, help="gateways simulated at a cycle of 1 s")
    options = parser.parse_args()
    model = Model()
    found = each_minute(model, random.Random(82))
    print(f"{'':58}{'ours':>12}{'the seed':>12}")
    print(f"{'memory of one gateway, 5,000 namespaces':58}{megabytes(found.memory):>12}{megabytes(SEED_MEMORY):>12}")
    print(f"{'published per minute, one report each':58}{megabytes(found.usages):>12}{megabytes(SEED_PUBLISHED):>12}")
    print(f"{'consumed per minute':58}{megabytes(found.consumed):>12}{megabytes(SEED_CONSUMED):>12}")
    print(f"{'published once, when all begin':58}{megabytes(found.begin):>12}")
    print(f"{'to make a report / to take one in':58}{found.report_s * 1e3:>9.0f} ms{found.take_s * 1e3:>9.1f} ms")
    print(f"at a cycle of 1 s, each usage at least every {REPORT_CYCLES} s; the seed's own reports as often")
    for drift, what in ((False, "each changing once"), (True, "each growing on and on by 11 %")):
        size, _ = each_second(model, random.Random(82), options.sample, drift)
        seed = SEED_PUBLISHED * (60 / REPORT_CYCLES + (not drift))
        print(f"{'   published per minute, ' + what:58}{megabytes(size * model.gateways):>12}{megabytes(seed):>12}")
        consumed, seed = size * model.gateways**2, seed * model.gateways
        print(f"{'   consumed per minute':58}{megabytes(consumed):>12}{megabytes(seed):>12}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
