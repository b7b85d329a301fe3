# What the control process knows of the cluster, and that a listener is open before its address is told.

from __future__ import annotations

import itertools
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from operator import attrgetter
from typing import Any, TypeVar, cast

import pytest
import trio
from pytest_trio import trio_fixture
from trio.testing import MockClock

from gateway import embedded
from gateway.channel import BrokerTable, TopicSnapshot, UpstreamBroker
from gateway.config import Listener, Settings
from gateway.config.sections.listeners import BrokerPlace
from gateway.control.cluster.cluster import KEEP_LISTENER_S, ClusterMonitor
from gateway.control.cluster.listeners import BrokerListeners
from gateway.control.cluster.metadata import DESCRIBE_AT_ONCE, AdminSource, ClusterMetadata, ClusterUnreachable
from gateway.control.facts import ClusterState, PublishedCluster
from gateway.control.workers.snapshot_publisher import SnapshotPublisher
from gateway.listener_names import DEFAULT_LISTENER
from policies.definitions.policy_values import TopicId, TopicIds
from policies.thresholds.sums import TopicPlaces
from tests.background import until
from tests.gateway.control.contexts import SETTINGS, Told, make_context
from tests.gateway.control.null_broker import NullBroker

Message = TypeVar("Message", BrokerTable, TopicSnapshot)
BOOTSTRAP = (("b", 9092),)
TIME_OF_DAY = r"\d\d:\d\d:\d\dZ"


class Scene:
    """A cluster that answers as the test wants, and a record of the effects."""

    def __init__(self, nursery: trio.Nursery, **more: Listener) -> None:
        self.nursery = nursery
        self.view: ClusterMetadata | str = ClusterMetadata({1: ("b1", 9092)}, {1: ("a",)})
        self.asked = 0
        self.open: dict[str, int] = {}  # name -> port
        self.taken: set[int] = set()  # ports that can't be opened
        self.accepting: set[int] = set()
        self.moves: list[TopicPlaces | None] = []
        self.seen: list[TopicIds] = []
        self.relocations: list[Mapping[int, frozenset[str]] | None] = []
        self.context = make_context(parent=self, cluster=PublishedCluster())
        self.metrics, self.facts = self.context.metrics, self.context.facts
        self.configured = {DEFAULT_LISTENER: Listener(port=19092, advertised_host="gw"), **more}
        surroundings: Any = self
        self.facts.configuration.latest = self.settings(5.0, **self.configured)
        self.cluster = ClusterMonitor(self.context, surroundings, BrokerListeners(self.context, surroundings))
        self.workers = Told()
        snapshots = SnapshotPublisher(self.context, cast("Any", self.workers), trio.Event(), b"")
        follow = self.facts.cluster.subscribe
        follow("addresses", self.check_addresses)
        follow("workers", snapshots.publish_cluster)
        follow("moves", lambda view: self.moves.append(view.places), part=attrgetter("places"))
        follow("relocations", lambda view: self.relocations.append(view.replicas), part=attrgetter("replicas"))
        follow("looks", lambda view: self.seen.append(view.topic_ids), part=attrgetter("answers"))

    def settings(self, refresh_s: float, **listeners: Listener) -> Settings:
        upstream = SETTINGS.upstream.model_copy(update={"metadata_refresh": refresh_s})
        return SETTINGS.model_copy(update={"upstream": upstream, "listener": None, "listeners": listeners})

    async def fetch_metadata(self) -> ClusterMetadata:
        await trio.sleep(0.01)
        self.asked += 1
        if isinstance(self.view, str):
            raise ClusterUnreachable(self.view)
        return self.view

    async def listen(self, name: str, host: str, port: int) -> str:
        await trio.lowlevel.checkpoint()
        if port in self.taken or port > 65535:
            raise OSError(f"{host}:{port}: taken")
        self.open[name] = port
        return name

    def close_listener(self, name: str) -> None:
        del self.open[name]

    async def run(self, listener: str, broker: int | None, sock: str) -> None:
        """Accept."""
        node_id = broker
        assert node_id is not None
        assert self.open[sock] == self.configured[listener].broker_port(node_id)
        self.accepting.add(node_id)
        try:
            await trio.sleep_forever()
        finally:
            self.accepting.discard(node_id)

    def check_addresses(self, view: ClusterState) -> None:
        assert view.brokers is not None
        for node_id, (_, port) in view.brokers.addresses.get(DEFAULT_LISTENER, {}).items():
            assert self.open[f"broker {node_id} default"] == port

    @property
    def told(self) -> list[BrokerTable | TopicSnapshot]:
        return list(itertools.chain.from_iterable(self.workers.all))

    def last(self, kind: type[Message]) -> Message:
        return [message for message in self.told if isinstance(message, kind)][-1]

    def start(self) -> None:
        self.nursery.start_soon(self.cluster.run, self.nursery)

    def brokers(self) -> list[int]:
        return [broker.node_id for broker in self.last(BrokerTable).brokers]


@trio_fixture
async def scene(nursery: trio.Nursery) -> AsyncIterator[Scene]:
    yield Scene(nursery)


async def test_each_broker_gets_a_listener_and_is_told_with_it(autojump_clock: MockClock, scene: Scene) -> None:
    scene.view = ClusterMetadata({1: ("b1", 9092), 5: ("b5", 9095)}, {1: ("a",), 5: ("a", "c")}, {b"i" * 16: "a"})
    scene.start()
    await until(lambda: scene.accepting == {1, 5}, 0.1)
    assert scene.last(BrokerTable) == BrokerTable(
        BOOTSTRAP,
        (UpstreamBroker(1, "b1", 9092), UpstreamBroker(5, "b5", 9095)),
        {DEFAULT_LISTENER: {1: ("gw", 19094), 5: ("gw", 19098)}},
    )
    assert scene.last(TopicSnapshot) == TopicSnapshot({1: ("a",), 5: ("a", "c")}, {b"i" * 16: "a"})


async def test_nothing_is_told_twice(autojump_clock: MockClock, scene: Scene) -> None:
    scene.start()
    await until(lambda: scene.asked >= 5, 0.1)
    assert len(scene.told) == 2


async def test_readers_of_places_and_of_replicas_are_told_when_these_changed(
    autojump_clock: MockClock, scene: Scene
) -> None:
    known = scene.facts.cluster.latest
    assert (known.places, known.replicas) == (None, None), "nobody knows"
    scene.start()
    await until(lambda: scene.asked >= 3, 0.1)
    assert (scene.moves, scene.relocations) == ([{}], [{}])
    places = {1: frozenset("a"), 2: frozenset("a")}
    scene.view = ClusterMetadata({1: ("b1", 9092)}, {1: ("a",)}, places=places)
    await until(lambda: scene.asked >= 7, 0.1)
    assert (scene.moves[1:], scene.relocations[1:]) == ([{1: {"a"}, 2: {"a"}}], [])
    scene.view = ClusterMetadata({1: ("b1", 9092)}, {1: ("a",)}, places=places, replicas={2: frozenset("a")})
    await until(lambda: scene.asked >= 11, 0.1)
    assert (len(scene.moves), scene.relocations[1:]) == (2, [{2: frozenset("a")}])


async def test_the_ids_of_topics_are_told_at_every_look(autojump_clock: MockClock, scene: Scene) -> None:
    scene.view = ClusterMetadata({1: ("b1", 9092)}, topic_ids={"a": TopicId("c", "t")}, cluster_id="c")
    scene.start()
    await trio.sleep(12)
    assert len(scene.seen) > 2
    assert scene.seen == [{"a": TopicId("c", "t")}] * len(scene.seen), (
        "also where nothing has changed: it counts for how long"
    )
    assert scene.facts.cluster.latest.cluster_id == "c"


async def test_a_refresh_is_over_when_a_question_asked_after_it_is_answered(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.start()
    await until(lambda: scene.told, 0.1)
    for topics in (("a", "b"), ("a", "b", "c")):
        scene.view = ClusterMetadata({1: ("b1", 9092)}, {1: topics}, places={1: frozenset(topics)})
        await scene.facts.cluster.await_refresh()
        assert scene.facts.cluster.latest.places == {1: set(topics)}
    scene.view = "away"
    began = trio.current_time()
    await scene.facts.cluster.await_refresh()
    assert trio.current_time() - began < 1.0, "there is nothing to wait for"


async def test_a_broker_that_joins_later_is_there_at_once_when_a_worker_asks(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.start()
    await until(lambda: scene.told, 0.1)
    scene.view = ClusterMetadata({1: ("b1", 9092), 2: ("b2", 9092)}, {})
    now = trio.current_time()
    scene.facts.cluster.request_refresh()
    await until(lambda: scene.brokers() == [1, 2], 0.1)
    assert trio.current_time() - now < 1.0


async def test_asking_all_the_time_does_not_ask_the_cluster_all_the_time(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.start()
    begin = trio.current_time()
    while trio.current_time() < begin + 10:
        scene.facts.cluster.request_refresh()
        await trio.sleep(0.01)
    assert 20 <= scene.asked <= 45


async def test_a_broker_whose_port_cannot_be_opened_is_withheld_until_it_can(
    autojump_clock: MockClock, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.taken.add(19095)
    scene.view = ClusterMetadata({1: ("b1", 9092), 2: ("b2", 9092), 60_000: ("b3", 9092)}, {})
    scene.start()
    await until(lambda: scene.asked >= 4, 0.1)
    assert scene.brokers() == [1]
    assert caplog.text.count("broker 2 is withheld from clients") == 1
    assert scene.metrics.registry.get_sample_value("produce_gateway_upstream_brokers_without_listener") == 2
    scene.taken.clear()
    await until(lambda: scene.brokers() == [1, 2], 0.1)


SNI = {"bootstrap_address": "kafka.example", "advertised_broker_address_pattern": "b$(node_id).kafka.example:443"}
EXTERNAL = Listener.model_validate({"port": 9093, "ssl.keystore.location": "x.pem", "sni": SNI})


async def test_each_listener_tells_addresses_of_its_own_and_withholds_brokers_for_itself(
    autojump_clock: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scene = Scene(nursery, external=EXTERNAL)
    scene.taken.add(19095)
    scene.view = ClusterMetadata({1: ("b1", 9092), 2: ("b2", 9092)}, {})
    scene.start()
    await until(lambda: scene.told, 0.1)
    assert scene.brokers() == [1, 2], "there is a way to each"
    assert scene.last(BrokerTable).addresses == {
        DEFAULT_LISTENER: {1: ("gw", 19094)},
        "external": {1: ("b1.kafka.example", 443), 2: ("b2.kafka.example", 443)},
    }
    assert scene.open == {"broker 1 default": 19094}, "no socket for names"
    assert scene.metrics.registry.get_sample_value("produce_gateway_upstream_brokers_without_listener") == 1
    for line in (
        "bootstrap: gw:19092 -> b:9092",
        "listener external: bootstrap: kafka.example:9093 -> b:9092",
        "listener external: broker 2: b2.kafka.example:443 -> b2:9092",
        "listener external: try: kcat -b kafka.example:9093 -X security.protocol=SSL -L",
    ):
        assert line in caplog.text
    scene.taken.add(19096)
    scene.view = ClusterMetadata({1: ("b1", 9092), 2: ("b2", 9092), 3: ("b3", 9092)}, {})
    await until(lambda: scene.brokers() == [1, 2, 3], 0.1)
    assert scene.last(BrokerTable).addresses["external"][3] == ("b3.kafka.example", 443)
    assert "listener external: broker 3: b3.kafka.example:443 -> b3:9092" in caplog.text


async def test_other_addresses_for_clients_are_told_at_once_and_on_the_same_sockets(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.view = ClusterMetadata({1: ("b1", 9092)}, {}, {})
    scene.cluster.apply_settings(scene.settings(5.0, default=Listener(port=19092, advertised_host="early")))
    assert scene.told == [], "nothing is known yet"
    scene.start()
    await until(lambda: scene.accepting == {1}, 0.1)
    before, told = dict(scene.open), len(scene.told)
    other = Listener(port=19092, advertised_host="other", brokers={1: BrokerPlace(advertised_host="b1.other")})
    scene.cluster.apply_settings(scene.settings(60.0, default=other))
    assert scene.last(BrokerTable).addresses == {DEFAULT_LISTENER: {1: ("b1.other", 19094)}}
    assert scene.open == before
    scene.cluster.apply_settings(scene.settings(60.0, default=other))
    assert len(scene.told) == told + 1
    asked = scene.asked
    await trio.sleep(50)
    assert scene.asked <= asked + 1, "it asks less often now"


async def test_an_advertised_port_that_can_not_be_is_not_told(
    autojump_clock: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(nursery, shifted=Listener(port=20000, advertised_host="gw", advertised_port=65000))
    scene.view = ClusterMetadata({1: ("b1", 9092), 600: ("b2", 9092)}, {})
    scene.start()
    await until(lambda: scene.told, 0.1)
    assert scene.last(BrokerTable).addresses["shifted"] == {1: ("gw", 65002)}
    said = "listener shifted: broker %d is withheld from clients: no listener on advertised port %d"
    assert said % (600, 65601) in caplog.text
    for port, told in ((65535, {}), (65000, {1: ("gw", 65002)})):  # by a reload, with the socket open
        moved = Listener(port=20000, advertised_host="gw", advertised_port=port)
        scene.cluster.apply_settings(scene.settings(60.0, **{**scene.configured, "shifted": moved}))
        assert scene.last(BrokerTable).addresses["shifted"] == told
    assert caplog.text.count(said % (1, 65537)) == 1


async def test_a_broker_that_left_keeps_its_listener_for_a_while(autojump_clock: MockClock, scene: Scene) -> None:
    scene.view = ClusterMetadata({1: ("b1", 9092), 2: ("b2", 9092)}, {})
    scene.start()
    await until(lambda: scene.accepting == {1, 2}, 0.1)
    scene.view = ClusterMetadata({1: ("b1", 9092)}, {})
    left = trio.current_time()
    await until(lambda: trio.current_time() > left + KEEP_LISTENER_S - 20, 0.1)
    assert scene.brokers() == [1, 2]
    assert re.fullmatch(rf"broker 2 has been away since {TIME_OF_DAY}", scene.cluster.problem)
    await until(lambda: scene.accepting == {1}, 0.1)
    assert scene.brokers() == [1]
    assert scene.cluster.problem == ""  # it has left for good
    assert scene.open == {"broker 1 default": 19094}


async def test_a_broker_that_comes_back_in_time_was_never_away_for_workers(
    autojump_clock: MockClock, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    both = ClusterMetadata({1: ("b1", 9092), 2: ("b2", 9092)}, {})
    scene.view = both
    scene.start()
    await until(lambda: scene.accepting == {1, 2}, 0.1)
    for _ in range(2):
        scene.view = ClusterMetadata({1: ("b1", 9092)}, {})
        left = trio.current_time()
        await until(lambda left=left: trio.current_time() > left + KEEP_LISTENER_S * 0.7, 0.1)
        scene.view = both
        await until(lambda: not scene.cluster.problem, 0.1)
        await trio.sleep(20)
    assert len([message for message in scene.told if isinstance(message, BrokerTable)]) == 1
    assert caplog.text.count("broker 2 is not in the cluster's metadata any more") == 2
    assert len(re.findall(r"broker 2 is back in the cluster's metadata after \d+ s", caplog.text)) == 2


async def test_a_broker_that_moved_is_told_with_its_new_address(autojump_clock: MockClock, scene: Scene) -> None:
    scene.start()
    await until(lambda: scene.told, 0.1)
    scene.view = ClusterMetadata({1: ("elsewhere", 9999)}, {})
    await until(lambda: scene.last(BrokerTable).brokers[0].host == "elsewhere", 0.1)
    assert scene.last(BrokerTable).addresses == {DEFAULT_LISTENER: {1: ("gw", 19094)}}


async def test_an_unreachable_cluster_is_one_line_and_is_asked_again(
    autojump_clock: MockClock, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scene.view = "Connection refused"
    scene.start()
    await until(lambda: scene.asked >= 4, 0.1)
    assert caplog.text.count("the cluster at b:9092 does not answer (Connection refused)") == 1
    assert scene.told == [BrokerTable(BOOTSTRAP, ())]
    assert not scene.cluster.is_known
    assert scene.cluster.attempted.is_set()
    scene.view = ClusterMetadata({1: ("b1", 9092)}, {})
    await until(lambda: scene.cluster.is_known, 0.1)
    assert "the cluster answers again" in caplog.text
    assert scene.brokers() == [1]
    assert "try: kcat -b gw:19092 -L" in caplog.text


async def test_an_outage_leaves_everything_as_it_was(autojump_clock: MockClock, scene: Scene) -> None:
    scene.start()
    await until(lambda: scene.told, 0.1)
    scene.view = "gone"
    before = list(scene.told)
    await trio.sleep(2 * KEEP_LISTENER_S)
    assert re.fullmatch(rf"no answer since {TIME_OF_DAY} \(gone\)", scene.cluster.problem)
    assert scene.told == before
    assert scene.accepting == {1}


async def test_after_a_restart_listeners_accept_before_the_cluster_answers(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.view = "unreachable"
    await scene.cluster.adopt_sockets(scene.nursery, ["bootstrap default", "broker 1 default", "admin"])
    scene.start()
    await until(lambda: scene.asked >= 2, 0.1)
    assert scene.accepting == {1}
    assert scene.told == []  # the worker keeps what it knows
    scene.view = ClusterMetadata({1: ("b1", 9092)}, {})
    await until(lambda: scene.told, 0.1)
    assert scene.brokers() == [1]


# --- over the wire ----------------------------------------------------------------------------------------------------


@pytest.fixture
def null_broker() -> Iterator[NullBroker]:
    broker = NullBroker()
    yield broker
    broker.close()


def test_a_broker_with_metadata_only_is_understood(null_broker: NullBroker) -> None:
    null_broker.brokers[2] = ("127.0.0.1", 9)
    null_broker.topics = {"a": [1, 2, -1], "b": [2], "__consumer_offsets": [1], "own": [1]}
    source = AdminSource({"bootstrap.servers": f"127.0.0.1:{null_broker.port}", "log_level": 2}, ["own"])
    for _ in range(2):  # topic ids can't be had, which must not spoil the rest
        view = trio.run(source.fetch_metadata)
        assert view.brokers == {1: ("127.0.0.1", null_broker.port), 2: ("127.0.0.1", 9)}
        assert view.leads == {1: ("a",), 2: ("a", "b")}
        assert (view.ids, view.cluster_id) == ({}, "cluster")


def test_a_topic_is_where_it_is_led_and_where_it_should_be_also_while_brokers_are_away(null_broker: NullBroker) -> None:
    null_broker.topics = {"a": [1, (-1, 3)], "b": [(1, 2)], "own": [(-1, 3)], "waits": [-1]}
    view = AdminSource(
        {"bootstrap.servers": f"127.0.0.1:{null_broker.port}", "log_level": 2}, ["own"]
    )._fetch_blocking()
    assert view.leads == {1: ("a", "b")}
    assert view.places == {1: {"a", "b"}, 2: {"b"}, 3: {"a", "own"}}, "a hidden topic is there as well"
    null_broker.brokers[4] = ("127.0.0.1", 9)  # it may get the next topic
    view = AdminSource(
        {"bootstrap.servers": f"127.0.0.1:{null_broker.port}", "log_level": 2}, ["own"]
    )._fetch_blocking()
    assert view.places == {1: {"a", "b"}, 2: {"b"}, 3: {"a", "own"}, 4: set()}


def test_how_topics_are_spread_is_told_where_somebody_wants_to_know(null_broker: NullBroker) -> None:
    null_broker.topics = {"a": [1, 1, (-1, 3)], "b": [(1, 2)], "own": [(-1, 3)]}
    source = AdminSource({"bootstrap.servers": f"127.0.0.1:{null_broker.port}", "log_level": 2}, ["own"], spread=True)
    spread = source._fetch_blocking().spread
    assert spread is not None
    assert spread.shares == {1: {"a": (2, 3)}, 2: {"b": (1, 1)}, 3: {"a": (1, 3)}}
    assert spread.feeds == {1: {1}, 2: {1}}, "nobody leads a's last partition"


def test_a_view_is_made_anew_only_where_something_has_changed(null_broker: NullBroker) -> None:
    null_broker.topics = {"a": [1, (1, 2)], "b": [1]}
    source = AdminSource({"bootstrap.servers": f"127.0.0.1:{null_broker.port}", "log_level": 2}, replicas=True)
    first = source._fetch_blocking()
    assert source._fetch_blocking() is first
    null_broker.topics["b"] = [(1, 2)]  # another replica, by the same leader
    second = source._fetch_blocking()
    assert second.replicas == {1: {"a"}, 2: {"a", "b"}}
    assert second.leads == first.leads
    null_broker.brokers = {**null_broker.brokers, 2: ("127.0.0.1", null_broker.port)}
    assert source._fetch_blocking().brokers.keys() == {1, 2}


def test_no_broker_is_unreachable_with_the_cause() -> None:
    with pytest.raises(ClusterUnreachable, match="refused"):
        AdminSource({"bootstrap.servers": "127.0.0.1:1", "log_level": 2})._fetch_blocking()


def test_of_many_watched_topics_each_look_asks_for_some_in_turn() -> None:
    source = AdminSource({"bootstrap.servers": "127.0.0.1:1", "log_level": 2})
    names = {f"t{number:04}" for number in range(2 * DESCRIBE_AT_ONCE + 1)}
    looks = [source._choose_watched(names) for _ in range(4)]
    assert [len(look) for look in looks] == [DESCRIBE_AT_ONCE, DESCRIBE_AT_ONCE, 1, DESCRIBE_AT_ONCE]
    assert {name for look in looks[:3] for name in look} == names
    assert source._choose_watched(set()) == []


@pytest.mark.kafka
def test_our_own_topics_keep_every_id_that_they_ever_had_and_are_led_by_no_broker(
    kafka: embedded.EmbeddedCluster,
) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    new = NewTopic("ids-own", num_partitions=1, replication_factor=1)
    admin.create_topics([new])["ids-own"].result(timeout=30)
    embedded.wait_for("the broker to learn of ids-own", lambda: "ids-own" in admin.list_topics(timeout=10).topics)
    source = AdminSource({"bootstrap.servers": kafka.bootstrap_servers}, ["ids-own"], topic_ids=False)
    embedded.wait_for("its id", lambda: bool(source._fetch_blocking().ids), 60)
    (first,) = source._fetch_blocking().ids
    admin.delete_topics(["ids-own"])["ids-own"].result(timeout=30)
    deadline = time.monotonic() + 60
    while "ids-own" in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
    admin.create_topics([new])["ids-own"].result(timeout=30)
    while len(ids := (view := source._fetch_blocking()).ids) < 2:
        assert time.monotonic() < deadline
    assert first in ids
    assert set(ids.values()) == {"ids-own"}
    assert "ids-own" not in {name for names in view.leads.values() for name in names}
