# Entities, keys and their spellings: what goes in comes out again, and what can't be is refused by name.

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.quotas.names import (
    DEFAULT,
    QUOTA_KEYS,
    UNITS,
    Entity,
    EntityName,
    QuotaError,
    QuotaKey,
    desanitize_name,
    parse_name,
    sanitize_name,
    spell_name,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
ENTITIES = st.builds(Entity, *[st.one_of(NAMES, st.just(DEFAULT), st.none())] * 2).filter(any)

LEVELS = (
    (Entity("U", "C"), "/config/users/U/clients/C"),
    (Entity("U", DEFAULT), "/config/users/U/clients/<default>"),
    (Entity("U"), "/config/users/U"),
    (Entity(DEFAULT, "C"), "/config/users/<default>/clients/C"),
    (Entity(DEFAULT, DEFAULT), "/config/users/<default>/clients/<default>"),
    (Entity(DEFAULT), "/config/users/<default>"),
    (Entity(None, "C"), "/config/clients/C"),
    (Entity(None, DEFAULT), "/config/clients/<default>"),
)


# --- entities ---------------------------------------------------------------------------------------------------------


@pytest.mark.seed("546.3")
@pytest.mark.parametrize(("level", "entity", "path"), [(i, *row) for i, row in enumerate(LEVELS)])
def test_the_eight_levels_and_their_paths(level: int, entity: Entity, path: str) -> None:
    assert entity.specificity_level == level
    assert entity.path == path
    assert Entity.from_path(path) == entity


def test_entities_sort_by_level_and_then_by_name() -> None:
    others = [Entity("b"), Entity("b", "a"), Entity("a", "b"), Entity(None, "a")]
    assert sorted(others, key=lambda entity: entity.sort_key) == [others[2], others[1], others[0], others[3]]


@given(ENTITIES)
def test_pairs_and_paths_tell_the_whole_entity(entity: Entity) -> None:
    assert Entity.from_pairs(entity.wire_pairs) == entity
    assert Entity.from_pairs(reversed(entity.wire_pairs)) == entity
    assert Entity.from_path(entity.path) == entity


@given(ENTITIES, ENTITIES)
def test_different_entities_have_different_paths(one: Entity, other: Entity) -> None:
    assert (one == other) == (one.path == other.path)


def test_a_user_called_default_is_not_the_default() -> None:
    user = Entity("<default>")
    assert user != Entity(DEFAULT)
    assert user.path == "/config/users/%3Cdefault%3E"
    assert Entity.from_path(user.path) == user


@pytest.mark.seed("546.16", "546.41")
@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([], "an empty entity"),
        ([("user", "")], "an empty name for user"),
        ([("client-id", "")], "an empty name for client-id"),
        ([("user", "a"), ("user", None)], "user is given twice"),
        ([("", "a")], "unknown entity type ''"),
        ([("group", "a")], "unknown entity type 'group'"),
        ([("ip", "1.2.3.4")], "the brokers' own"),
        ([("user", "a"), ("ip", None)], "the brokers' own"),
        ([("user", "\ud800")], "not Unicode"),
    ],
)
def test_an_invalid_entity_is_refused_as_kafka_does(pairs: list[tuple[str, str | None]], said: str) -> None:
    with pytest.raises(QuotaError, match=said) as caught:
        Entity.from_pairs(pairs)
    assert caught.value.error == "INVALID_REQUEST"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/config",
        "/config/",
        "/config/users",
        "/config/users/",
        "/config/topics/a",
        "/config/clients/a/users/b",
        "/config/users/a/users/b",
        "/config/users/a/clients",
        "/config/users/a/clients/b/c",
        "/config/users/a%",
        "config/users/a",
        "/users/a",
    ],
)
def test_an_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(QuotaError):
        Entity.from_path(path)


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", QUOTA_KEYS, ids=str)
def test_both_spellings_name_the_same_key(key: QuotaKey) -> None:
    assert QuotaKey.parse(str(key)) == key == QuotaKey.parse(f"{key.type}.{key.unit}") == QuotaKey.parse(key.wire_name)
    assert str(key) == f"{key.type}:{key.unit}"
    assert ":" not in key.wire_name


def test_the_bare_key_is_kafkas_own_per_broker() -> None:
    assert QuotaKey.parse("producer_byte_rate") == QuotaKey("producer_byte_rate", "broker_bps")
    assert QuotaKey.parse("consumer_byte_rate") == QuotaKey("consumer_byte_rate", "broker_bps")
    assert QuotaKey.parse("request_percentage") == QuotaKey("request_percentage", "percent")
    assert [key.wire_name for key in QUOTA_KEYS] == [
        "consumer_byte_rate.bps",
        "consumer_byte_rate",
        "consumer_byte_rate.shares",
        "producer_byte_rate.bps",
        "producer_byte_rate",
        "producer_byte_rate.shares",
        "request_percentage",
    ]


@pytest.mark.seed("546.15")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "unknown quota ''"),
        ("bad", "unknown quota 'bad': known are"),
        ("Producer_byte_rate", "unknown quota"),
        ("producer_byte_rate.", "unknown unit .*bps, broker_bps, shares"),
        ("producer_byte_rate:", "unknown unit"),
        ("producer_byte_rate.kbps", "unknown unit"),
        ("producer_byte_rate.bps.x", "unknown unit"),
        ("producer_byte_rate.percent", "unknown unit"),
        ("request_percentage:bps", "unknown unit .*has percent"),
        ("request_percentage.shares", "unknown unit"),
        ("controller_mutation_rate", "the brokers' own"),
        ("connection_creation_rate", "the brokers' own"),
    ],
)
def test_an_unknown_key_is_refused_as_kafka_does(text: str, said: str) -> None:
    with pytest.raises(QuotaError, match=said) as caught:
        QuotaKey.parse(text)
    assert caught.value.error == "INVALID_REQUEST"


@pytest.mark.seed("546.11")
def test_every_type_has_every_unit_of_its_own_once() -> None:
    assert set(QUOTA_KEYS) == {QuotaKey(kind, unit) for kind, units in UNITS.items() for unit in units}
    assert list(QUOTA_KEYS) == sorted(QUOTA_KEYS, key=str)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sanitized"),
    [
        ("my-client", "my-client"),
        ("a.b_c-1", "a.b_c-1"),
        ("a b", "a%20b"),
        ("a+b", "a%2Bb"),
        ("a*b~c", "a%2Ab%7Ec"),
        ("100%", "100%25"),
        ("CN=alice,OU=x", "CN%3Dalice%2COU%3Dx"),
        ("é€😀", "%C3%A9%E2%82%AC%F0%9F%98%80"),
        ("<default>", "%3Cdefault%3E"),
        ("\x00\n", "%00%0A"),
        ("\ud800", "%3F"),
    ],
)
def test_names_are_sanitized_as_kafka_does(name: str, sanitized: str) -> None:
    assert sanitize_name(name) == sanitized


@given(NAMES)
def test_a_sanitized_name_comes_back_and_separates_nothing(name: str) -> None:
    text = sanitize_name(name)
    assert desanitize_name(text) == name
    assert not set(text) & set(",=/{}:<>*?\"' \n")


def test_a_plus_is_no_space() -> None:
    assert desanitize_name("a+b") == "a+b"


@pytest.mark.parametrize("text", ["100%", "%zz", "a%2", "%ff", "%C3"])
def test_a_percent_sign_that_encodes_nothing_is_refused(text: str) -> None:
    with pytest.raises(QuotaError, match="written %25"):
        desanitize_name(text)


@given(st.one_of(NAMES, st.just(DEFAULT)))
def test_the_default_has_a_spelling_that_no_name_has(name: EntityName) -> None:
    assert name is not None
    assert parse_name(spell_name(name)) == name
    assert (spell_name(name) == "<default>") == (name is DEFAULT)


def test_levels_are_all_there_are() -> None:
    kinds: list[EntityName] = ["x", DEFAULT, None]
    assert {entity for entity, _ in LEVELS} == {
        Entity(u and (u if u is DEFAULT else "U"), c and (c if c is DEFAULT else "C"))
        for u, c in itertools.product(kinds, kinds)
        if u or c
    }
