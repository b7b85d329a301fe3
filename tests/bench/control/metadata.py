"""What the metadata of a large cluster costs: control's refresh, what workers do with the topics that it tells them,
and a client's Metadata answer for all topics, which a worker rewrites while its other connections wait.

    .venv/bin/python -m tests.bench.control.metadata                     # 20,000 topics of 10 partitions, 12 brokers
    .venv/bin/python -m tests.bench.control.metadata --topics 2000 --partitions 100

CPU milliseconds, best and median of the runs. The broker that control asks is a process of its own, which answers
without a look at its topics. Of a refresh the whole process counts, librdkafka's threads with it.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import statistics
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway import channel
from gateway.compiled import apply_pure_python, compilation_state
from tests.gateway.control.null_broker import NullBroker, text

BROKERS: Final = range(12)
REPLICAS: Final = 3
ANSWERS: Final = (1, 4)  # versions of Metadata that NullBroker is asked


def name(topic: int) -> str:
    return f"tenant-{topic % 50}.namespace.topic-{topic}"


def nodes(topics: int, partitions: int) -> list[list[list[int]]]:
    """By topic and partition: the replicas, the leader first."""
    chance = random.Random(1)
    return [[chance.sample(BROKERS, REPLICAS) for _ in range(partitions)] for _ in range(topics)]


class Broker(NullBroker):
    """`NullBroker` with an answer that is made once for each version."""

    def prepare(self, placed: list[list[list[int]]]) -> None:
        out = bytearray(struct.pack(">ii", 1, len(placed)))  # controller
        for topic, of_topic in enumerate(placed):
            out += struct.pack(">h", 0) + text(name(topic)) + struct.pack(">bi", 0, len(of_topic))
            for index, of_partition in enumerate(of_topic):
                replicas = struct.pack(f">{1 + REPLICAS}i", REPLICAS, *of_partition)
                out += struct.pack(">hii", 0, index, of_partition[0]) + replicas + replicas
        brokers = struct.pack(">i", len(BROKERS))
        for node_id in BROKERS:
            brokers += struct.pack(">i", node_id) + text("127.0.0.1") + struct.pack(">ih", self.port, -1)
        self.answers = {
            version: (bytes(4) if version >= 3 else b"") + brokers + (text("c") if version >= 2 else b"") + out
            for version in ANSWERS
        }

    def _metadata(self, version: int) -> bytes:
        return self.answers[version]


def serve(said: Any, topics: int, partitions: int) -> None:
    """The broker's process: says its port."""
    broker = Broker()
    broker.prepare(nodes(topics, partitions))
    said.put(broker.port)
    while True:
        time.sleep(60)


def answer(version: int, placed: list[list[list[int]]]) -> bytearray:
    """A Metadata answer of v9 to v13, without its size."""
    from protocol.wire import put_compact_string, put_uvarint

    chance = random.Random(2)
    out = bytearray(struct.pack(">ixi", 7, 0) + put_uvarint(len(BROKERS) + 1))
    for node_id in BROKERS:
        host = put_compact_string(b"broker-%d.kafka.example" % node_id)
        out += struct.pack(">i", node_id) + host + struct.pack(">i", 9092) + put_compact_string(None) + b"\0"
    out += put_compact_string(b"a cluster's id of 22 b") + struct.pack(">i", 0) + put_uvarint(len(placed) + 1)
    for topic, of_topic in enumerate(placed):
        out += bytes(2) + put_compact_string(name(topic).encode())
        out += (chance.randbytes(16) if version >= 10 else b"") + b"\0" + put_uvarint(len(of_topic) + 1)
        for index, of_partition in enumerate(of_topic):
            replicas = struct.pack(f">B{REPLICAS}i", REPLICAS + 1, *of_partition)
            out += struct.pack(">hiii", 0, index, of_partition[0], 5) + replicas + replicas + b"\1\0"
        out += bytes(4) + b"\0"
    return out + (bytes(4) if version <= 10 else b"") + (bytes(2) if version >= 13 else b"") + b"\0"


def measure(what: str, work: Callable[[], object], runs: int, size: int = 0) -> None:
    found = []
    for _ in range(runs):
        began = time.process_time()
        work()
        found.append((time.process_time() - began) * 1000)
    more = f" | {size / 1e6:.1f} MB" if size else " |"
    print(f"| {what} | {min(found):.1f} | {statistics.median(found):.1f}{more} |", flush=True)


def refreshes(topics: int, partitions: int, runs: int) -> None:
    from gateway.control.cluster.metadata import AdminSource

    said: Any = multiprocessing.Queue()
    broker = multiprocessing.Process(target=serve, args=(said, topics, partitions), daemon=True)
    broker.start()
    try:
        bootstrap = {"bootstrap.servers": f"127.0.0.1:{said.get(timeout=60)}", "log_level": 2}
        for what, more in (("", False), (" with replicas and their spread", True)):
            source = AdminSource(bootstrap, topic_ids=False, replicas=more, spread=more)
            measure(f"control: the first refresh{what}", source._fetch_blocking, 1)
            measure(f"control: a refresh without a change{what}", source._fetch_blocking, runs)
    finally:
        broker.kill()


def told(topics: int, placed: list[list[list[int]]]) -> channel.TopicSnapshot:
    leads: dict[int, set[str]] = {node_id: set() for node_id in BROKERS}
    chance = random.Random(3)
    for topic in range(topics):
        for of_partition in placed[topic % len(placed)]:
            leads[of_partition[0]].add(name(topic))
    ids = {chance.randbytes(16): name(topic) for topic in range(topics)}
    return channel.TopicSnapshot({node_id: tuple(sorted(names)) for node_id, names in leads.items()}, ids)


def worker(topics: int, placed: list[list[list[int]]], runs: int) -> None:
    from gateway.data.shared.worker_state import WorkerState
    from policies.engine import PolicyEngine

    world = WorkerState(channel.WorkerSettings(channel.PROTOCOL, "gw"), PolicyEngine(0.0), lambda *said: None)
    messages = [channel._encode(told(number, placed)) for number in (topics, topics + 1)]
    world.set_topics(channel.decode_for_worker(messages[0]))
    for broker in world.engine.brokers.values():
        for topic in list(broker.existing_topics()):
            broker.add_topic(topic)
    turn = iter(range(10**9))
    measure(
        "worker: one topic more or less",
        lambda: world.set_topics(channel.decode_for_worker(messages[(next(turn) + 1) % 2])),
        runs,
        len(messages[0]),
    )


def answers(placed: list[list[list[int]]], runs: int) -> None:
    from protocol.rewriting import rewrite  # the form is chosen by now

    addresses = {node_id: (b"gateway.example", 19_000 + node_id) for node_id in BROKERS}
    for version, why in ((9, "no topic ids"), (12, "topic ids are known")):
        content, ids = answer(version, placed), dict[bytes, bytes]()
        rewrite.rewrite_metadata(content, 0, len(content), version, addresses, ids)

        def work(content: bytearray = content, version: int = version, ids: dict[bytes, bytes] = ids) -> object:
            return rewrite.rewrite_metadata(content, 0, len(content), version, addresses, ids)

        measure(f"worker: a client's answer, v{version}: {why}", work, runs, len(content))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--partitions", type=int, default=10, help="of each topic")
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args(arguments)
    placed = nodes(options.topics, options.partitions)
    print(f"hot path: {compilation_state()}\n\n| CPU ms | best | median | size |\n|---|---:|---:|---:|", flush=True)
    gc.freeze()
    gc.set_threshold(50_000)  # as in control and nearly as in a worker
    refreshes(options.topics, options.partitions, options.runs)
    worker(options.topics, placed, options.runs)
    answers(placed, options.runs)
    return 0


if __name__ == "__main__":
    apply_pure_python()
    sys.exit(main(sys.argv[1:]))
