# What all sessions of a worker share, as control tells it.

from __future__ import annotations

from gateway.channel import TopicSnapshot
from gateway.data.shared.worker_state import MAX_DELETED_TOPICS
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
