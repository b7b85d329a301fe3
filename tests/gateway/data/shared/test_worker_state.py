# What all sessions of a worker share, as control tells it.

from __future__ import annotations

from gateway.channel import TopicSnapshot
from gateway.data.shared.worker_state import MAX_DELETED_TOPICS, WorkerState
from policies.engine import PolicyEngine
from policies.meters.meter import TICK_S
from tests.gateway.data.made_settings import made_settings
from tests.gateway.data.play import Play


def test_ids_of_topics_that_come_and_go_do_not_pile_up() -> None:
    world = Play().world
    learned = b"\1" * 16
    world.cluster.topic_ids[learned] = b"new"  # from metadata that passed by
    for number in range(5 * MAX_DELETED_TOPICS):
        ids = {bytes(16): "kept", b"%016d" % number: f"t{number}"}
        world.set_topics(TopicSnapshot({1: ("kept", f"t{number}")}, ids))
        assert len(world.cluster.topic_ids) <= MAX_DELETED_TOPICS + 6
        assert world.cluster.topic_ids[bytes(16)] == b"kept"
        assert number >= MAX_DELETED_TOPICS or learned in world.cluster.topic_ids


def test_a_broker_that_left_the_cluster_has_rates_as_long_as_there_are_any() -> None:
    engine = PolicyEngine(0.0)
    world = WorkerState(made_settings(), engine, lambda *_: None)

    def shown() -> list[int]:
        return [each.node_id for each in engine.collect_rates()]

    engine.broker_meters(-1)
    world.set_topics(TopicSnapshot({1: ("clicks",), 2: ()}))
    assert shown() == [-1, 1, 2]
    engine.broker_meters(2).total.uncounted = 5000
    engine.apply_due_ticks(TICK_S)
    world.set_topics(TopicSnapshot({1: ("clicks",)}))
    assert shown() == [-1, 1, 2]
    engine.apply_due_ticks(600.0)
    assert shown() == [-1, 1]
    world.set_topics(TopicSnapshot({1: ("clicks",), 2: ()}))
    assert shown() == [-1, 1, 2], "it is back"
