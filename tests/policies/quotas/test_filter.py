# Filters of DescribeClientQuotas, component by component, against the entities that Kafka's own tests use.

from __future__ import annotations

import pytest

from policies.quotas.filter import Component, EntityFilter, Match
from policies.quotas.names import DEFAULT, Entity, QuotaError

ENTITIES = [
    Entity("user-1", "client-id-1"),
    Entity("user-2", "client-id-1"),
    Entity("user-3", "client-id-2"),
    Entity(DEFAULT, "client-id-1"),
    Entity("user-1", DEFAULT),
    Entity("user-3", DEFAULT),
    Entity("user-1"),
    Entity("user-2"),
    Entity("user-3"),
    Entity(DEFAULT),
    Entity(None, "client-id-2"),
    Entity(None, DEFAULT),
]


def user(match_type: int, match: str | None = None) -> Component:
    return Component("user", match_type, match)


def client(match_type: int, match: str | None = None) -> Component:
    return Component("client-id", match_type, match)


def found(*components: Component, strict: bool = False) -> set[int]:
    wanted = EntityFilter(components, strict)
    return {index for index, entity in enumerate(ENTITIES) if wanted.matches_entity(entity)}


ALL = set(range(len(ENTITIES)))


@pytest.mark.seed("546.8", "546.17", "546.19", "546.29")
@pytest.mark.parametrize(
    ("components", "lenient", "strict"),
    [
        ([], ALL, set()),
        ([user(Match.EXACT, "user-1")], {0, 4, 6}, {6}),
        ([user(Match.EXACT, "nobody")], set(), set()),
        ([user(Match.DEFAULT)], {3, 9}, {9}),
        ([user(Match.SPECIFIED)], ALL - {10, 11}, {6, 7, 8, 9}),
        ([user(Match.PREFIX, "user-")], {0, 1, 2, 4, 5, 6, 7, 8}, {6, 7, 8}),
        ([user(Match.PREFIX, "user-3")], {2, 5, 8}, {8}),
        ([user(Match.PREFIX, "")], {0, 1, 2, 4, 5, 6, 7, 8}, {6, 7, 8}),
        ([client(Match.EXACT, "client-id-2")], {2, 10}, {10}),
        ([client(Match.DEFAULT)], {4, 5, 11}, {11}),
        ([client(Match.SPECIFIED)], {0, 1, 2, 3, 4, 5, 10, 11}, {10, 11}),
        ([user(Match.EXACT, "user-1"), client(Match.EXACT, "client-id-1")], {0}, {0}),
        ([client(Match.EXACT, "client-id-1"), user(Match.DEFAULT)], {3}, {3}),
        ([user(Match.SPECIFIED), client(Match.SPECIFIED)], {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}),
        ([user(Match.PREFIX, "user-"), client(Match.DEFAULT)], {4, 5}, {4, 5}),
        ([Component("ip", Match.SPECIFIED)], set(), set()),
    ],
)
def test_the_entities_that_match(components: list[Component], lenient: set[int], strict: set[int]) -> None:
    assert found(*components) == lenient
    assert found(*components, strict=True) == strict


def test_an_exact_default_is_a_name_and_not_the_default() -> None:
    assert not EntityFilter([user(Match.EXACT, "<default>")], strict=False).matches_entity(Entity(DEFAULT))
    assert EntityFilter([user(Match.EXACT, "<default>")], strict=False).matches_entity(Entity("<default>"))


@pytest.mark.seed("546.14", "546.18")
@pytest.mark.parametrize(
    ("components", "error", "said"),
    [
        ([Component("", 0, "a")], "INVALID_REQUEST", "empty entity type"),
        ([Component("group", 0, "a")], "UNSUPPORTED_VERSION", "unknown entity type 'group'"),
        ([user(0, "a"), user(1)], "INVALID_REQUEST", "user has two filters"),
        ([user(0)], "INVALID_REQUEST", "EXACT for user needs a name"),
        ([user(1, "a")], "INVALID_REQUEST", "DEFAULT for user takes no name, got 'a'"),
        ([user(2, "")], "INVALID_REQUEST", "SPECIFIED for user takes no name"),
        ([user(Match.PREFIX)], "INVALID_REQUEST", "PREFIX for user needs a name"),
        ([user(3)], "INVALID_REQUEST", "unknown match type 3"),
        ([user(-1)], "INVALID_REQUEST", "unknown match type -1"),
        ([user(2), Component("ip", 2)], "INVALID_REQUEST", "goes with no other"),
    ],
)
def test_filters_are_refused_as_kafka_does(components: list[Component], error: str, said: str) -> None:
    with pytest.raises(QuotaError, match=said) as caught:
        EntityFilter(components, strict=False)
    assert caught.value.error == error


def test_the_prefix_rule_cant_come_in_with_the_kafka_protocol() -> None:
    assert Match.PREFIX > 127  # MatchType is an int8
