# Which topics a full volume holds: placement x limit x failure.

from __future__ import annotations

from collections.abc import Mapping

import pytest

from policies.storage import (
    AffectedTopics,
    MinAvailable,
    ReplicaPlacement,
    Volume,
    VolumeAssessment,
    assess_volumes,
    crowded_brokers,
    find_affected,
    topic_matcher,
)
from policies.storage.scope import MAX_TOPICS
from tests.policies.storage.storage_play import GB, SOFT_HARD

REPLICAS = {1: frozenset({"a", "ab", "abc"}), 2: frozenset({"ab", "abc", "b"}), 3: frozenset({"abc", "c"})}


def judged(*free: tuple[int, str, int], paused: bool = False) -> VolumeAssessment:
    """(broker, volume, free GB)."""
    return assess_volumes([Volume(b, name, 100 * GB, left * GB) for b, name, left in free], SOFT_HARD, paused)


def held(
    assessment: VolumeAssessment,
    dirs: Mapping[tuple[int, str], frozenset[str]] | None = None,
    unknown: Mapping[int, str] | None = None,
    *exempt: str,
) -> dict[str, tuple[float, str]]:
    found = find_affected(assessment, ReplicaPlacement(REPLICAS, dirs or {}), unknown or {}, topic_matcher(exempt))
    assert found is not None
    return {each.key: (round(each.value, 3), " ".join(each.topics)) for each in found}


DIRS = {(2, "/d1"): frozenset({"ab"}), (2, "/d2"): frozenset({"abc", "b"})}
MOVING = {(2, "/d1"): frozenset({"ab", "b"}), (2, "/d2"): frozenset({"abc", "b"})}  # b is on its way between the two
NEW = {(2, "/d1"): frozenset({"ab"}), (2, "/d2"): frozenset({"abc"})}  # no log dir has b yet


@pytest.mark.parametrize(
    ("free", "dirs", "expected"),
    [
        pytest.param([(1, "/d", 50), (2, "/d", 50), (3, "/d", 50)], {}, {}, id="room everywhere"),
        pytest.param([(1, "/d", 50), (2, "/d", 10)], {}, {"broker 2 /d": (0, "ab abc b")}, id="hard: replicas too"),
        pytest.param([(1, "/d", 50), (2, "/d", 15)], {}, {"broker 2 /d": (0.5, "ab abc b")}, id="throttled"),
        pytest.param(
            [(2, "/d", 15), (3, "/d", 5)], {}, {"broker 3 /d": (0, "abc c"), "broker 2 /d": (0.5, "ab b")},
            id="a topic on two volumes counts for the stricter one",
        ),
        pytest.param(
            [(1, "/d", 1), (2, "/d", 2), (3, "/d", 3)], {},
            {"broker 1 /d": (0, "a ab abc"), "broker 2 /d": (0, "b"), "broker 3 /d": (0, "c")}, id="all full",
        ),
        pytest.param([(2, "/d1", 5), (2, "/d2", 50)], DIRS, {"broker 2 /d1": (0, "ab")}, id="JBOD: only that log dir"),
        pytest.param([(2, "/d1", 50), (2, "/d2", 5)], DIRS, {"broker 2 /d2": (0, "abc b")}, id="JBOD: the other one"),
        pytest.param([(2, "/d1", 5), (2, "/d2", 50)], {}, {"broker 2 /d1": (0, "ab abc b")}, id="JBOD, silent"),
        pytest.param(
            [(2, "/d1", 5), (2, "/d2", 50)], {(2, "/d1"): frozenset({"ab"})}, {"broker 2 /d1": (0, "ab abc b")},
            id="JBOD of which one log dir tells",
        ),
        pytest.param(
            [(2, "/d1", 50), (2, "/d2", 5)], {(2, "/d1"): frozenset({"ab"})}, {"broker 2 /d2": (0, "ab abc b")},
            id="JBOD of which the full log dir doesn't tell",
        ),
        pytest.param([(2, "/d1", 5), (2, "/d2", 50)], MOVING, {"broker 2 /d1": (0, "ab b")}, id="a replica that moves"),
        pytest.param([(2, "/d1", 5), (2, "/d2", 50)], NEW, {"broker 2 /d1": (0, "ab b")}, id="a topic that is new"),
        pytest.param([(4, "/d", 5)], {}, {"broker 4 /d": (0, "")}, id="a broker without topics"),
    ],
)  # fmt: skip
def test_the_topics_of_full_volumes(
    free: list[tuple[int, str, int]],
    dirs: dict[tuple[int, str], frozenset[str]],
    expected: dict[str, tuple[float, str]],
) -> None:
    assert held(judged(*free), dirs) == expected


def test_a_former_pause_is_over_for_each_volume_by_itself() -> None:
    free = (1, "/d", 50), (2, "/d", 11), (3, "/d", 12)
    assert held(judged(*free)) == {"broker 2 /d": (0.1, "ab abc b"), "broker 3 /d": (0.2, "c")}
    assert held(judged(*free, paused=True)) == {"broker 2 /d": (0, "ab abc b"), "broker 3 /d": (0.2, "c")}


def test_a_broker_of_which_nothing_is_known_holds_its_topics() -> None:
    room = judged((1, "/d", 50), (2, "/d", 50))
    assert held(room, {}, {3: "broker 3 has no snapshot"}) == {"broker 3": (0, "abc c")}
    assert held(judged((1, "/d", 15)), {}, {3: "…"}) == {"broker 3": (0, "abc c"), "broker 1 /d": (0.5, "a ab")}


def test_where_nothing_is_known_at_all_every_topic_is_held() -> None:
    assert find_affected(VolumeAssessment(1.0, (), None), ReplicaPlacement(REPLICAS), None) is None
    assert find_affected(judged((1, "/d", 5)), None, {}) is None
    assert find_affected(judged((1, "/d", 50)), None, {}) == ()


def test_what_is_said_of_each_volume_is_what_it_is_said_of_the_cluster() -> None:
    found = find_affected(judged((2, "/d", 5), (1, "/d", 15)), ReplicaPlacement(REPLICAS), {})
    assert found == (
        AffectedTopics("broker 2 /d", 0.0, "broker 2 volume /d: 5.0 GB of 100.0 GB free, hard limit at 10.0 GB",
                 ("ab", "abc", "b"), (2,)),
        AffectedTopics("broker 1 /d", 0.5, "broker 1 volume /d: 15.0 GB of 100.0 GB free, between"
                 " soft limit 20.0 GB and hard"
                 " limit 10.0 GB", ("a",), (1,)),
    )  # fmt: skip
    assert [each.state for each in found] == ["PAUSE", "THROTTLE"]


def test_exempt_topics_are_not_held() -> None:
    assert held(judged((2, "/d", 5)), {}, {}, "abc", "x*") == {"broker 2 /d": (0, "ab b")}
    assert held(judged((2, "/d", 5)), {}, {}, "a*") == {"broker 2 /d": (0, "b")}


def test_a_star_stands_for_any_characters_and_nothing_else_is_special() -> None:
    is_exempt = topic_matcher(["connect-*", "app-*-changelog", "a.b"])
    assert [name for name in ("connect-", "connect-x", "app-1-changelog", "a.b") if not is_exempt(name)] == []
    assert [name for name in ("my-connect-x", "app-1-changelog2", "a-b") if is_exempt(name)] == []
    assert not topic_matcher([])("a")


def test_more_topics_than_one_message_should_have_hold_all() -> None:
    many = {1: frozenset(f"t{number}" for number in range(MAX_TOPICS + 1))}
    assert find_affected(judged((1, "/d", 5)), ReplicaPlacement(many), {}) is None


def test_it_matters_what_lies_where_only_where_one_of_several_volumes_is_at_a_limit() -> None:
    free = (1, "/d1", 50), (1, "/d2", 50), (2, "/d", 5), (3, "/d1", 5), (3, "/d2", 50)
    assert crowded_brokers(judged(*free)) == {3}


def test_a_limit_without_hysteresis_holds_too() -> None:
    assessment = assess_volumes([Volume(1, "/d", 100, 5)], MinAvailable(bytes=5), False)
    assert held(assessment) == {"broker 1 /d": (0, "a ab abc")}
