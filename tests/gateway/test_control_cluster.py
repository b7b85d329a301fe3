# What the control process knows of the cluster, and that a listener is open before its address is told.

from __future__ import annotations

import base64
import time

import pytest
import trio
from pytest_trio import trio_fixture

from gateway.channel import Broker, Brokers, Topics
from gateway.config import Listener
from gateway.control.cluster import KEEP_LISTENER_S, AdminSource, Cluster, Unreachable, View
from gateway.control.metrics import Metrics
from tests.gateway.null_broker import NullBroker

BOOTSTRAP = (("b", 9092),)


class Scene:
    """A cluster that says what the test wants, and a record of what came of it."""

    def __init__(self, **listener):
        self.view: View | str = View({1: ("b1", 9092)}, {1: ("a",)})
        self.asked = 0
        self.open = {}  # name -> port
        self.taken = set()  # ports that can't be opened
        self.accepting = set()
        self.told = []
        self.metrics = Metrics()
        self.cluster = Cluster(
            self, BOOTSTRAP, Listener(port=19092, advertised_host="gw", **listener), 5.0, self.metrics,
            listen=self.listen, unlisten=self.open.pop, accept=self.accept, tell=self.tell,
        )  # fmt: skip

    async def ask(self):
        await trio.sleep(0.01)
        self.asked += 1
        if isinstance(self.view, str):
            raise Unreachable(self.view)
        return self.view

    async def listen(self, name, host, port):
        await trio.lowlevel.checkpoint()
        if port in self.taken or port > 65535:
            raise OSError(f"{host}:{port}: taken")
        self.open[name] = port
        return name

    async def accept(self, node_id, sock):
        assert self.open[sock] == 19093 + node_id
        self.accepting.add(node_id)
        try:
            await trio.sleep_forever()
        finally:
            self.accepting.discard(node_id)

    def tell(self, message):
        if isinstance(message, Brokers):
            for broker in message.brokers:
                assert self.open[f"broker {broker.node_id}"] == broker.advertised_port
        self.told.append(message)

    def last(self, kind):
        return [message for message in self.told if isinstance(message, kind)][-1]

    def brokers(self):
        return [broker.node_id for broker in self.last(Brokers).brokers]


async def until(condition):
    with trio.fail_after(10_000):
        while not condition():  # noqa: ASYNC110  the clock jumps
            await trio.sleep(0.1)


@trio_fixture
async def scene():
    scene = Scene()
    async with trio.open_nursery() as nursery:
        scene.nursery = nursery
        scene.run = lambda: nursery.start_soon(scene.cluster.run, nursery)
        yield scene
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_each_broker_gets_a_listener_and_is_told_with_it(autojump_clock, scene):
    scene.view = View({1: ("b1", 9092), 5: ("b5", 9095)}, {1: ("a",), 5: ("a", "c")}, {b"i" * 16: "a"})
    scene.run()
    await until(lambda: scene.accepting == {1, 5})
    assert scene.last(Brokers) == Brokers(
        BOOTSTRAP, (Broker(1, "b1", 9092, "gw", 19094), Broker(5, "b5", 9095, "gw", 19098))
    )
    assert scene.last(Topics) == Topics({1: ("a",), 5: ("a", "c")}, {b"i" * 16: "a"})


@pytest.mark.trio
async def test_nothing_is_told_twice(autojump_clock, scene):
    scene.run()
    await until(lambda: scene.asked >= 5)
    assert len(scene.told) == 2


@pytest.mark.trio
async def test_a_broker_that_joins_later_is_there_at_once_when_a_worker_asks(autojump_clock, scene):
    scene.run()
    await until(lambda: scene.told)
    scene.view = View({1: ("b1", 9092), 2: ("b2", 9092)}, {})
    now = trio.current_time()
    scene.cluster.want()
    await until(lambda: scene.brokers() == [1, 2])
    assert trio.current_time() - now < 1.0


@pytest.mark.trio
async def test_asking_all_the_time_does_not_ask_the_cluster_all_the_time(autojump_clock, scene):
    scene.run()
    begin = trio.current_time()
    while trio.current_time() < begin + 10:
        scene.cluster.want()
        await trio.sleep(0.01)
    assert 20 <= scene.asked <= 45


@pytest.mark.trio
async def test_a_broker_whose_port_cannot_be_opened_is_withheld_until_it_can(autojump_clock, scene, caplog):
    scene.taken.add(19095)
    scene.view = View({1: ("b1", 9092), 2: ("b2", 9092), 60_000: ("b3", 9092)}, {})
    scene.run()
    await until(lambda: scene.asked >= 4)
    assert scene.brokers() == [1]
    assert caplog.text.count("broker 2 is withheld from clients") == 1
    assert scene.metrics.registry.get_sample_value("produce_gateway_upstream_brokers_without_listener") == 2
    scene.taken.clear()
    await until(lambda: scene.brokers() == [1, 2])


@pytest.mark.trio
async def test_a_broker_that_left_keeps_its_listener_for_a_while(autojump_clock, scene):
    scene.view = View({1: ("b1", 9092), 2: ("b2", 9092)}, {})
    scene.run()
    await until(lambda: scene.accepting == {1, 2})
    scene.view = View({1: ("b1", 9092)}, {})
    left = trio.current_time()
    await until(lambda: trio.current_time() > left + KEEP_LISTENER_S - 20)
    assert scene.brokers() == [1, 2]
    await until(lambda: scene.accepting == {1})
    assert scene.brokers() == [1]
    assert scene.open == {"broker 1": 19094}


@pytest.mark.trio
async def test_a_broker_that_comes_back_in_time_was_never_away(autojump_clock, scene):
    both = View({1: ("b1", 9092), 2: ("b2", 9092)}, {})
    scene.view = both
    scene.run()
    await until(lambda: scene.accepting == {1, 2})
    for _ in range(2):
        scene.view = View({1: ("b1", 9092)}, {})
        left = trio.current_time()
        await until(lambda left=left: trio.current_time() > left + KEEP_LISTENER_S * 0.7)
        scene.view = both
        await trio.sleep(20)
    assert len([message for message in scene.told if isinstance(message, Brokers)]) == 1


@pytest.mark.trio
async def test_a_broker_that_moved_is_told_with_its_new_address(autojump_clock, scene):
    scene.run()
    await until(lambda: scene.told)
    scene.view = View({1: ("elsewhere", 9999)}, {})
    await until(lambda: scene.last(Brokers).brokers[0].host == "elsewhere")
    assert scene.last(Brokers).brokers[0].advertised_port == 19094


@pytest.mark.trio
async def test_an_unreachable_cluster_is_one_line_and_is_asked_again(autojump_clock, scene, caplog):
    caplog.set_level("INFO")
    scene.view = "Connection refused"
    scene.run()
    await until(lambda: scene.asked >= 4)
    assert caplog.text.count("the cluster at b:9092 does not answer (Connection refused)") == 1
    assert scene.told == [Brokers(BOOTSTRAP, ())]
    assert not scene.cluster.known
    assert scene.cluster.asked.is_set()
    scene.view = View({1: ("b1", 9092)}, {})
    await until(lambda: scene.cluster.known)
    assert "the cluster answers again" in caplog.text
    assert scene.brokers() == [1]
    assert "try: kcat -b gw:19092 -L" in caplog.text


@pytest.mark.trio
async def test_an_outage_leaves_everything_as_it_was(autojump_clock, scene):
    scene.run()
    await until(lambda: scene.told)
    scene.view = "gone"
    before = list(scene.told)
    await trio.sleep(2 * KEEP_LISTENER_S)
    assert scene.told == before
    assert scene.accepting == {1}


@pytest.mark.trio
async def test_after_a_restart_listeners_accept_before_the_cluster_answers(autojump_clock, scene):
    scene.view = "unreachable"
    await scene.cluster.adopt(scene.nursery, ["bootstrap", "broker 1", "admin"])
    scene.run()
    await until(lambda: scene.asked >= 2)
    assert scene.accepting == {1}
    assert scene.told == []  # the worker keeps what it knows
    scene.view = View({1: ("b1", 9092)}, {})
    await until(lambda: scene.told)
    assert scene.brokers() == [1]


# --- over the wire ----------------------------------------------------------------------------------------------------


@pytest.fixture
def null_broker():
    broker = NullBroker()
    yield broker
    broker.close()


def test_a_broker_with_metadata_only_is_understood(null_broker):
    null_broker.brokers[2] = ("127.0.0.1", 9)
    null_broker.topics = {"a": [1, 2, -1], "b": [2], "__consumer_offsets": [1], "own": [1]}
    source = AdminSource({"bootstrap.servers": f"127.0.0.1:{null_broker.port}", "log_level": 2}, ["own"])
    for _ in range(2):  # topic ids can't be had, which must not spoil the rest
        view = trio.run(source.ask)
        assert view.brokers == {1: ("127.0.0.1", null_broker.port), 2: ("127.0.0.1", 9)}
        assert view.leads == {1: ("a",), 2: ("a", "b")}
        assert view.ids == {}


def test_no_broker_is_unreachable_with_the_cause():
    with pytest.raises(Unreachable, match="refused"):
        AdminSource({"bootstrap.servers": "127.0.0.1:1", "log_level": 2})._ask()


@pytest.mark.kafka
def test_topic_ids_are_the_brokers_own(kafka):
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic("ids-a", num_partitions=1, replication_factor=1)])["ids-a"].result(timeout=30)
    view = AdminSource({"bootstrap.servers": kafka.bootstrap_servers})._ask()
    (topic_id,) = [topic_id for topic_id, name in view.ids.items() if name == "ids-a"]
    described = admin.describe_topics(TopicCollection(["ids-a"]))["ids-a"].result(timeout=30)
    assert base64.b64encode(topic_id).rstrip(b"=").decode() == str(described.topic_id).rstrip("=")


@pytest.mark.kafka
def test_our_own_topics_keep_every_id_that_they_ever_had_and_are_led_by_nobody(kafka):
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    new = NewTopic("ids-own", num_partitions=1, replication_factor=1)
    admin.create_topics([new])["ids-own"].result(timeout=30)
    source = AdminSource({"bootstrap.servers": kafka.bootstrap_servers}, ["ids-own"], topic_ids=False)
    (first,) = source._ask().ids
    admin.delete_topics(["ids-own"])["ids-own"].result(timeout=30)
    deadline = time.monotonic() + 60
    while "ids-own" in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
    admin.create_topics([new])["ids-own"].result(timeout=30)
    while len(ids := (view := source._ask()).ids) < 2:
        assert time.monotonic() < deadline
    assert first in ids
    assert set(ids.values()) == {"ids-own"}
    assert "ids-own" not in {name for names in view.leads.values() for name in names}
