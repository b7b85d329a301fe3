# When an id that looks at the cluster find is taken for that of the present topic.

from __future__ import annotations

from gateway.control.policies.topic_ids import CONFIRM_S, SeenIds
from policies.definitions.policy_values import TopicId

OLD, NEW = TopicId("c", "old"), TopicId("c", "new")


def test_another_id_counts_once_looks_have_found_it_for_a_while() -> None:
    seen = SeenIds()
    known = {"clicks": OLD, "views": None}
    assert seen.find_confirmed(known, {"clicks": NEW, "views": NEW}, 100) == {}
    assert seen.find_confirmed(known, {"clicks": NEW, "views": NEW}, 99 + CONFIRM_S) == {}
    assert seen.find_confirmed(known, {"clicks": NEW, "views": NEW}, 100 + CONFIRM_S) == {"clicks": NEW, "views": NEW}
    assert seen.find_confirmed(known, {"clicks": NEW}, 101 + CONFIRM_S) == {"clicks": NEW}, "until it is taken over"
    assert seen.find_confirmed({"clicks": NEW}, {"clicks": NEW, "views": NEW}, 102 + CONFIRM_S) == {}


def test_the_known_id_in_between_begins_it_anew() -> None:
    """A broker whose metadata is behind still has the earlier topic."""
    seen = SeenIds()
    for at, found in ((0, OLD), (5, NEW), (10, OLD)):
        assert seen.find_confirmed({"clicks": NEW}, {"clicks": found}, at) == {}
    assert seen.find_confirmed({"clicks": NEW}, {"clicks": OLD}, 9 + CONFIRM_S) == {}
    assert seen.find_confirmed({"clicks": NEW}, {"clicks": OLD}, 10 + CONFIRM_S) == {"clicks": OLD}


def test_a_topic_that_a_look_does_not_find_says_nothing() -> None:
    seen = SeenIds()
    assert seen.find_confirmed({"clicks": OLD}, {"clicks": NEW}, 0) == {}
    assert seen.find_confirmed({"clicks": OLD}, {}, CONFIRM_S) == {}
    assert seen.find_confirmed({"clicks": OLD}, {"clicks": NEW}, CONFIRM_S) == {"clicks": NEW}


def test_what_has_no_threshold_any_more_is_forgotten() -> None:
    seen = SeenIds()
    seen.find_confirmed({"clicks": OLD}, {"clicks": NEW}, 0)
    seen.find_confirmed({}, {}, 1)
    assert seen.find_confirmed({"clicks": OLD}, {"clicks": NEW}, CONFIRM_S) == {}
