# Policies in a real topic: gateways that see each other's changes, that change against each other, that die while they
# write, and a topic that is compacted, deleted, made again or out of reach. A store stands for a gateway here; what the
# gateway puts around it is tested in tests/gateway/control/policies/test_policy_service.py.

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic

from gateway import embedded
from gateway.control.policies.store import StoreError, WrittenChange
from gateway.control.policies.topic_store import TopicStore
from gateway.embedded import EmbeddedCluster
from policies.definitions.policy_records import AlterationHead, ChangeSource, encode_alteration
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyChange, PolicyError, PolicyKey, PolicyOperation
from tests.background import Background

ROOT = Path(__file__).parents[3]
WAIT_S = 60.0
MB = 10**6
CLICKS, VIEWS, ORDERS = (PolicyKey.of_topic(name) for name in ("clicks", "views", "orders"))
TOTAL = PolicyKey.of_broker()
ALICE = ChangeSource("User:alice", "kafka", "127.0.0.1:5")


def new_topic() -> str:
    return f"policies-{uuid.uuid4().hex[:8]}"


def setting(*ops: PolicyOperation) -> Callable[[PolicySet], PolicySet]:
    return lambda policies: policies.alter_policies(ops)


class Gateway(Background):
    """A store that is polled by a thread, as a gateway does."""

    def __init__(self, servers: str, topic: str, base: dict[PolicyKey, float] | None = None, member: str = "a") -> None:
        super().__init__()
        self.store = TopicStore({"bootstrap.servers": servers}, topic, base or {}, member=member)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.store.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.store.poll_changes(0.1)
            time.sleep(0.001)  # a lock is not fair, and somebody may want to write

    @property
    def topics(self) -> Mapping[str, float]:
        return self.store.policies.topic_thresholds()

    def until(self, what: str, condition: Callable[[PolicySet], bool]) -> PolicySet:
        try:
            embedded.wait_for(what, lambda: condition(self.store.policies), WAIT_S, every_s=0.01)
        except embedded.EmbeddedError as error:
            raise AssertionError(f"{error}: {self.store.policies.changes}, {self.store.problem}") from None
        return self.store.policies

    def ready(self) -> Gateway:
        self.until("a store that is read", lambda _: self.store.is_loaded and not self.store.problem)
        return self

    def put(self, *ops: PolicyOperation, source: ChangeSource = ALICE) -> WrittenChange:
        return self.store.write_change(setting(*ops), source)


def ready(*gateways: Gateway) -> None:
    for gateway in gateways:
        gateway.ready()


@pytest.fixture
def topic() -> str:
    return new_topic()


@pytest.fixture
def servers(kafka: EmbeddedCluster) -> str:
    return kafka.bootstrap_servers


def records(servers: str, topic: str) -> list[Message]:
    """All that is committed, read by somebody else's consumer."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "test", "enable.partition.eof": True, "enable.auto.commit": False}
    )
    found: list[Message] = []
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
    finally:
        consumer.close()


# --- two gateways -----------------------------------------------------------------------------------------------------


def test_a_change_through_one_gateway_is_at_the_other_and_survives_both(servers: str, topic: str) -> None:
    with Gateway(servers, topic) as one, Gateway(servers, topic) as two:
        ready(one, two)
        written = one.put(PolicyOperation(CLICKS, 5 * MB), PolicyOperation(TOTAL, 12 * MB))
        assert one.topics == {"clicks": 5 * MB}  # who has the answer finds it in force
        assert written.after.version == 1
        two.until("the change", lambda policies: policies.topic_thresholds() == {"clicks": 5 * MB})
        assert two.put(PolicyOperation(CLICKS, None), PolicyOperation(VIEWS, MB)).before.broker_total() == 12 * MB
        one.until("the change back", lambda policies: policies.topic_thresholds() == {"views": MB})
        assert one.store.policies.version == two.store.policies.version == 2
    with Gateway(servers, topic) as third:
        third.ready()
        assert third.store.policies.changes == {TOTAL: 12 * MB, VIEWS: MB}
        assert third.store.policies.version == 2


def test_each_has_its_own_base_under_the_changes_of_all(servers: str, topic: str) -> None:
    with Gateway(servers, topic, {CLICKS: 1.0, TOTAL: 100.0}) as one, Gateway(servers, topic, {CLICKS: 2.0}) as two:
        ready(one, two)
        two.put(PolicyOperation(VIEWS, 500))  # one's base would not have allowed it, but it holds for both alike
        one.until("the change", lambda policies: policies.topic_thresholds() == {"clicks": 1.0, "views": 500})
        with pytest.raises(PolicyError, match="which exceeds"):
            one.put(PolicyOperation(ORDERS, 1))
        one.store.replace_base({TOTAL: 1000.0})
        assert one.put(PolicyOperation(ORDERS, 1)).after.topic_thresholds() == {"views": 500, "orders": 1}
        two.until("the other change", lambda policies: "orders" in policies.topic_thresholds())
        assert one.store.policies.changes == two.store.policies.changes


def test_contradicting_changes_at_once_one_is_refused_and_both_gateways_agree(servers: str, topic: str) -> None:
    with Gateway(servers, topic, {TOTAL: 10.0}) as one, Gateway(servers, topic, {TOTAL: 10.0}) as two:
        ready(one, two)
        for turn in range(5):
            barrier = threading.Barrier(2)

            def change(
                gateway: Gateway, key: PolicyKey, barrier: threading.Barrier = barrier
            ) -> WrittenChange | PolicyError:
                asked = 0

                def decide(policies: PolicySet) -> PolicySet:
                    nonlocal asked
                    asked += 1
                    after = policies.alter_policies([PolicyOperation(key, 6.0)])
                    if asked == 1:
                        barrier.wait(WAIT_S)  # both have judged it fine before either has written
                    return after

                try:
                    return gateway.store.write_change(decide, ALICE)
                except PolicyError as error:
                    return error

            with ThreadPoolExecutor(2) as pool:
                outcomes = list(pool.map(change, (one, two), (CLICKS, VIEWS)))
            refused = [outcome for outcome in outcomes if isinstance(outcome, PolicyError)]
            assert len(refused) == 1, outcomes
            assert "sum up to 12 bytes/s" in str(refused[0])
            version = 2 * turn + 1
            for gateway in (one, two):
                gateway.until("the change", lambda policies: policies.version == version)
            assert one.store.policies.changes == two.store.policies.changes
            assert len(one.topics) == 1
            one.put(*(PolicyOperation(PolicyKey.of_topic(name), None) for name in one.topics))
            two.until("the clearing", lambda policies: not policies.topic_thresholds())


def test_changes_that_agree_all_get_in_however_many_write_at_once(servers: str, topic: str) -> None:
    with Gateway(servers, topic) as one, Gateway(servers, topic) as two, Gateway(servers, topic) as three:
        gateways = [one, two, three]
        ready(*gateways)
        keys = [PolicyKey.of_topic(f"t{number}") for number in range(9)]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda n: [gateways[n].put(PolicyOperation(key, 1.0)) for key in keys[n::3]], range(3)))
        for gateway in gateways:
            policies = gateway.until("all changes", lambda policies: policies.version == len(keys))
            assert set(policies.changes) == set(keys)


def test_ten_thousand_values_are_one_change(servers: str, topic: str) -> None:
    with Gateway(servers, topic) as one, Gateway(servers, topic) as two:
        ready(one, two)
        seen: set[int] = set()
        ops = [PolicyOperation(PolicyKey.of_topic(f"t{number}"), float(number)) for number in range(10_000)]
        written = one.put(*ops)
        assert len(written.changes) == 10_000
        assert len(one.topics) == 10_000

        def arrived(policies: PolicySet) -> bool:
            seen.add(len(policies.changes))
            return len(policies.changes) == 10_000

        two.until("all of it", arrived)
        assert seen <= {0, 10_000}  # never a part
        assert two.store.policies.version == 1
        found = records(servers, topic)
        assert len(found) == 10_001
        assert one.put(*ops).changes == ()  # once more
        assert len(records(servers, topic)) == 10_001


def test_a_kept_record_says_who_when_from_where_old_and_new(servers: str, topic: str) -> None:
    began_ms = time.time_ns() // 10**6
    with Gateway(servers, topic, {CLICKS: 4.0}) as one:
        one.ready().put(PolicyOperation(CLICKS, 5.0), PolicyOperation(VIEWS, 1.0))
        one.put(PolicyOperation(VIEWS, None), source=ChangeSource("bob", "cli", "10.0.0.1:9"))
    found = records(servers, topic)
    said = json.loads(found[0].value() or b"")
    assert began_ms <= said.pop("at_ms") <= time.time_ns() // 10**6
    assert said == {
        "v": 1, "value": 5, "version": 1, "who": "User:alice", "door": "kafka", "peer": "127.0.0.1:5",
        "old": 4, "new": 5,
    }  # fmt: skip
    (removal,) = [message for message in found if message.value() is None]
    headers = dict(removal.headers() or [])
    audit = json.loads(headers["audit"] or b"")
    assert {name: audit[name] for name in ("version", "who", "door", "peer", "old", "new")} == {
        "version": 2, "who": "bob", "door": "cli", "peer": "10.0.0.1:9", "old": 1, "new": None,
    }  # fmt: skip


# --- dying ------------------------------------------------------------------------------------------------------------

WRITER = """
import sys
from gateway.control.policies.topic_store import TopicStore
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_values import PolicyKey, PolicyOperation
servers, topic = sys.argv[1:]
store = TopicStore({"bootstrap.servers": servers}, topic, {})
while not store.is_loaded:
    store.poll_changes(0.1)
print("ready", flush=True)
turn = store.policies.version
while True:
    turn += 1
    keys = [PolicyKey.of_topic(f"t{number}") for number in range(2000)]
    ops = [PolicyOperation(key, float(turn)) for key in keys]
    store.write_change(lambda policies: policies.alter_policies(ops), ChangeSource("writer", "test"))
    print(turn, flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_changes_and_nothing_that_was_answered_is_lost(
    servers: str, topic: str
) -> None:
    with Gateway(servers, topic) as witness:
        witness.ready()
        answered = 0
        for _ in range(3):
            writer = embedded.spawn_process(
                [sys.executable, "-c", WRITER, servers, topic], stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            assert writer.stdout is not None
            try:
                assert writer.stdout.readline() == "ready\n"
                for _ in range(3):
                    answered = int(writer.stdout.readline())
                writer.send_signal(signal.SIGKILL)  # in the midst of the next one
                answered = max([answered, *(int(line) for line in writer.stdout)])
            finally:
                embedded.reap_process(writer)
                writer.stdout.close()
            with Gateway(servers, topic) as restarted:
                restarted.ready()
                assert restarted.store.policies.version >= answered
                # Behind an open transaction of the dead writer: writing ends it.
                restarted.put(PolicyOperation(PolicyKey.of_topic("after"), float(answered)))
                policies = restarted.store.policies
            values = {value for key, value in policies.changes.items() if key.name != "after"}
            assert len(values) == 1  # all 2000 are of one change
            assert values.pop() in (answered, answered + 1)
            assert len(policies.changes) == 2001
            witness.until("the same", lambda found: found.changes == policies.changes)


def test_half_a_change_of_a_dead_writer_is_never_seen_and_the_next_change_ends_it(servers: str, topic: str) -> None:
    with Gateway(servers, topic) as one:
        one.ready().put(PolicyOperation(CLICKS, 5))
        dead = Producer({"bootstrap.servers": servers, "transactional.id": topic, "log_level": 0})
        dead.init_transactions(30)
        dead.begin_transaction()
        (half, _) = encode_alteration([PolicyChange(VIEWS, 3.0, None, 3.0)], AlterationHead(2, "", 0, ALICE, 2))
        dead.produce(topic, half.value, half.key, partition=0)
        dead.flush(30)  # on the broker, not committed
        with Gateway(servers, topic) as two:
            two.ready()
            assert two.topics == {"clicks": 5}
            assert two.put(PolicyOperation(ORDERS, 1)).after.topic_thresholds() == {"clicks": 5, "orders": 1}
            one.until(
                "the change behind it", lambda policies: policies.topic_thresholds() == {"clicks": 5, "orders": 1}
            )
            assert two.store.policies.version == 2


# --- the topic --------------------------------------------------------------------------------------------------------


def admin_of(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers})


def test_the_topic_is_made_compacted_with_one_partition(servers: str, topic: str) -> None:
    with Gateway(servers, topic) as one:
        one.ready()
    admin = admin_of(servers)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    config = {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(120).items()}
    assert config["cleanup.policy"] == "compact"
    assert config["delete.retention.ms"] == "604800000"
    assert len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == 1


def test_compaction_keeps_all_that_holds(kafka: EmbeddedCluster, topic: str) -> None:
    servers = kafka.bootstrap_servers
    eager = {
        "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.0001",
        "delete.retention.ms": "0", "max.compaction.lag.ms": "100", "segment.bytes": str(2**20),
    }  # fmt: skip
    admin = admin_of(servers)
    admin.create_topics([NewTopic(topic, 1, 1, config=eager)])[topic].result(120)
    with Gateway(servers, topic, {TOTAL: 10.0}) as one:
        one.ready().put(PolicyOperation(TOTAL, 100), PolicyOperation(VIEWS, 1))
        one.put(
            PolicyOperation(CLICKS, 50)
        )  # more than the base's total: without the record before it this looks wrong
        one.put(PolicyOperation(TOTAL, 200), PolicyOperation(VIEWS, None))

        puts = 0

        def compacted() -> bool:
            nonlocal puts
            puts += 1
            one.put(PolicyOperation(ORDERS, one.topics.get("orders", 0) + 1))  # a closed segment needs a later one
            keys = [message.key() for message in records(servers, topic)]
            return (
                keys.count(b'["broker","","total.bytes.in.per.sec.threshold"]') == 1
                and keys.count(b'["topic","orders","bytes.in.per.sec.threshold"]') < puts
            )

        embedded.wait_for("compaction", compacted, WAIT_S, every_s=0.3)
        want = one.store.policies
    with Gateway(servers, topic, {TOTAL: 10.0}) as restarted:
        restarted.ready()
        assert restarted.store.policies.changes == want.changes
        assert restarted.store.policies.version == want.version
        assert restarted.topics == {"clicks": 50, "orders": want.topic_thresholds()["orders"]}


def test_a_deleted_topic_leaves_what_is_known_and_refuses_changes_until_it_is_made_again(
    servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin = admin_of(servers)
    caplog.set_level(logging.INFO, "gateway.policy")
    with Gateway(servers, topic) as one, Gateway(servers, topic, member="b") as two:
        ready(one, two)
        one.put(PolicyOperation(CLICKS, 5), PolicyOperation(VIEWS, 6))
        two.until("the change", lambda policies: len(policies.changes) == 2)
        admin.delete_topics([topic])[topic].result(120)
        for gateway in (one, two):
            gateway.until("the loss", lambda _: "was deleted" in gateway.store.problem)
            assert gateway.topics == {"clicks": 5, "views": 6}
            with pytest.raises(StoreError, match=f"topic {topic} was deleted; the last known policies stay"):
                gateway.put(PolicyOperation(CLICKS, 7))
        with Gateway(servers, topic, member="c") as restarted:  # a restarted gateway makes the topic anew
            restarted.until("what the others know", lambda policies: len(policies.changes) == 2)
            ready(restarted, one, two)
            for gateway in (one, two, restarted):
                gateway.until("one version", lambda policies: policies.version == 2)
                assert gateway.topics == {"clicks": 5, "views": 6}
            two.put(PolicyOperation(CLICKS, None))
            for gateway in (one, restarted):
                gateway.until("the next change", lambda policies: policies.topic_thresholds() == {"views": 6})
    restored = [record.getMessage() for record in caplog.records if "known values into the new topic" in record.message]
    assert len(restored) == 1  # by one of them, not by both
    assert caplog.text.count("was deleted") == 2  # once by each


def test_a_topic_that_forgets_is_warned_about(servers: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    admin = admin_of(servers)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
    embedded.wait_for("the broker to learn of it", lambda: topic in admin.list_topics(timeout=10).topics)
    with Gateway(servers, topic) as one:
        one.ready()
    assert f"topic {topic} has cleanup.policy=delete, so policies in it are forgotten: " in caplog.text


def test_a_cluster_out_of_reach_leaves_what_is_known_and_refuses_changes() -> None:
    topic = new_topic()
    with EmbeddedCluster(1) as cluster, Gateway(cluster.bootstrap_servers, topic) as one:
        one.ready().put(PolicyOperation(CLICKS, 5))
        cluster.kill_broker(1)
        with Gateway(cluster.bootstrap_servers, topic, {VIEWS: 1.0}) as late:  # it starts before its cluster

            def complain(gateway: Gateway) -> None:
                gateway.until("a complaint", lambda _: "can't be looked up" in gateway.store.problem)
                with pytest.raises(StoreError, match=f"topic {topic} can't be"):
                    gateway.put(PolicyOperation(CLICKS, 6))  # it tries for half a minute

            with ThreadPoolExecutor(2) as pool:
                list(pool.map(complain, (one, late)))
            assert one.topics == {"clicks": 5}
            assert late.topics == {"views": 1.0}
            assert not late.store.is_loaded
            cluster.start_broker(1)
            ready(one, late)
            assert late.topics == {"views": 1.0, "clicks": 5}
            assert one.put(PolicyOperation(CLICKS, 7)).after.topic_thresholds() == {"clicks": 7}


def test_a_closed_store_is_quiet(topic: str) -> None:
    store = TopicStore({"bootstrap.servers": "127.0.0.1:1"}, topic, {})
    store.close()
    store.poll_changes(60)
    assert not store.is_loaded
