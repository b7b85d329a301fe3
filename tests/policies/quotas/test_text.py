# The text of kafka-quotas: what is printed, what is read, and what is said about what can't be read.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.quotas.filter import Component, Match
from policies.quotas.names import DEFAULT, Entity, QuotaError, QuotaKey, parse_name, sanitize_name
from policies.quotas.store import Op, QuotaStore
from policies.quotas.text import (
    check_flags,
    enforced_text,
    entity_text,
    limit_text,
    number_text,
    parse_components,
    parse_entity,
    parse_ops,
    quota_text,
)

PRODUCE = QuotaKey("producer_byte_rate", "broker_bps")
REQUEST = QuotaKey("request_percentage", "percent")
DN = "CN=alice,OU=Data & More,O=Größe/1"
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
ENTITIES = st.builds(Entity, *[st.one_of(NAMES, st.just(DEFAULT), st.none())] * 2).filter(any)


def read(text: str) -> Entity:
    """What `entity_text` wrote."""
    pairs = [part.split("=") for part in text.removeprefix("{").removesuffix("}").split(", ")]
    return Entity(**{kind.replace("client-id", "client_id"): parse_name(name) for kind, name in pairs})


# --- output -----------------------------------------------------------------------------------------------------------


@pytest.mark.seed("546.32")
@pytest.mark.parametrize(
    ("entity", "text"),
    [
        (Entity("alice", "app"), "{user=alice, client-id=app}"),
        (Entity(DEFAULT, "app"), "{user=<default>, client-id=app}"),
        (Entity(None, DEFAULT), "{client-id=<default>}"),
        (Entity("<default>"), "{user=%3Cdefault%3E}"),
        (Entity("CN=a,OU=b"), "{user=CN%3Da%2COU%3Db}"),
    ],
)
def test_entities(entity: Entity, text: str) -> None:
    assert entity_text(entity) == text
    assert read(text) == entity


@given(ENTITIES)
def test_every_entity_can_be_read_again(entity: Entity) -> None:
    assert read(entity_text(entity)) == entity


@pytest.mark.seed("546.33")
@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (PRODUCE, 10_000_000.0, "producer_byte_rate:broker_bps=10000000"),
        (PRODUCE, 2.0**62, f"producer_byte_rate:broker_bps={2**62}"),
        (REQUEST, 12.5, "request_percentage:percent=12.5"),
        (REQUEST, 200.0, "request_percentage:percent=200"),
    ],
)
def test_quotas(key: QuotaKey, value: float, text: str) -> None:
    assert quota_text(key, value) == text
    (op,) = parse_ops(add=text)
    assert (QuotaKey.parse(op.key), op.value) == (key, value)


def test_nothing_is_printed_for_nothing() -> None:
    assert enforced_text([]) == ""


@pytest.mark.seed("546.21")
def test_overridden_values_have_a_star_if_they_were_asked_for() -> None:
    made = QuotaStore({Entity("a"): {REQUEST: 1.5}, Entity(DEFAULT): {REQUEST: 2.0}})
    (asked,) = made.effective_quotas(Entity("a", "c"))
    assert enforced_text([(asked, "", None, "")]) == (
        "request_percentage:percent=1.5 {user=a}\n*request_percentage:percent=2 {user=<default>}"
    )
    (not_asked,) = made.effective_quotas(Entity("a", "c"), omit_overridden_values=True)
    assert enforced_text([(not_asked, "", None, "")]) == "request_percentage:percent=1.5 {user=a}"


def test_a_limit_says_where_it_comes_from() -> None:
    made = QuotaStore({Entity(DEFAULT): {PRODUCE: 500.0}})
    (limit,) = made.connection_limits("alice", "app").produce
    assert limit_text(limit) == "producer_byte_rate:broker_bps=500 {user=<default>}"


# --- input ------------------------------------------------------------------------------------------------------------


@pytest.mark.seed("546.28")
def test_names_and_defaults_make_an_entity() -> None:
    assert parse_entity("user=alice,client-id=app") == Entity("alice", "app")
    assert parse_entity("client-id=app", "user") == Entity(DEFAULT, "app")
    assert parse_entity(defaults="user,client-id") == Entity(DEFAULT, DEFAULT)
    assert parse_entity("user=CN=alice") == Entity("CN=alice")
    assert parse_entity(f"user={sanitize_name(DN)}") == Entity(DN)
    assert parse_entity("user=%3Cdefault%3E") == Entity("<default>")


@pytest.mark.seed("546.29")
def test_the_given_names_make_a_filter() -> None:
    assert parse_components() == ()
    assert parse_components("user=a%2Cb", "client-id") == (
        Component("user", Match.EXACT, "a,b"),
        Component("client-id", Match.DEFAULT),
    )
    assert parse_components(prefix="user=team-,client-id=x") == (
        Component("user", Match.PREFIX, "team-"),
        Component("client-id", Match.PREFIX, "x"),
    )


@pytest.mark.seed("546.30")
def test_additions_and_deletions_make_operations_for_the_wire() -> None:
    assert parse_ops("producer_byte_rate:bps=5,request_percentage=1.5", "consumer_byte_rate:broker_bps") == (
        Op("producer_byte_rate.bps", 5.0),
        Op("request_percentage", 1.5),
        Op("consumer_byte_rate", None),
    )


@pytest.mark.parametrize(
    ("names", "defaults", "prefix", "said"),
    [
        ("user", "", "", "'user' in --names: type=name is needed"),
        ("user=", "", "", "type=name is needed"),
        ("user=CN=alice,OU=x", "", "", "unknown entity type 'OU'"),
        ("user=a,smith", "", "", "a comma in a name is written %2C"),
        ("user=a,", "", "", "nothing between two commas"),
        ("user=100%", "", "", "written %25"),
        ("user=<default>", "", "", "use --defaults"),
        ("user=a,user=b", "", "", "user is given twice"),
        ("user=a", "user", "", "user is given twice"),
        ("user=a", "", "user=a", "user is given twice"),
        ("", "users", "", "unknown entity type 'users'"),
        ("", "user,", "", "nothing between two commas"),
        ("", "", "user", "'user' in --prefix"),
        ("", "", "ip=1.2", "the brokers' own"),
    ],
)
def test_the_error_of_a_specification_is_said(names: str, defaults: str, prefix: str, said: str) -> None:
    with pytest.raises(QuotaError) as caught:
        parse_components(names, defaults, prefix)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("add", "delete", "said"),
    [
        ("producer_byte_rate:bps", "", "name:unit=value is needed"),
        ("producer_byte_rate:bps=fast", "", "'fast' is not a valid size"),
        ("producer_byte_rate:mbps=1", "", "unknown unit"),
        ("bytes:bps=1", "", "unknown quota"),
        ("", "producer_byte_rate:mbps", "unknown unit"),
        ("", "producer_byte_rate:bps,,", "nothing between two commas"),
    ],
)
def test_the_error_of_a_change_is_said(add: str, delete: str, said: str) -> None:
    with pytest.raises(QuotaError) as caught:
        parse_ops(add, delete)
    assert said in str(caught.value)


@pytest.mark.seed("546.27")
@pytest.mark.parametrize(
    ("flags", "operation"),
    [
        ("list", "list"),
        ("list names prefix bootstrap-server command-config", "list"),
        ("describe names include-overrides", "describe"),
        ("alter defaults add validate-only", "alter"),
        ("alter names delete", "alter"),
    ],
)
def test_flags_that_go_together(flags: str, operation: str) -> None:
    assert check_flags(flags.split()) == operation


@pytest.mark.seed("546.26", "546.27")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "one of --list, --describe, --alter, --take-over and --import is needed"),
        ("names", "one of --list, --describe, --alter, --take-over and --import is needed"),
        ("list alter names", "--list and --alter exclude each other"),
        ("describe names add", "--describe has no --add: did you mean --alter?"),
        ("list names delete", "--list has no --delete: did you mean --alter?"),
        ("list names include-overrides", "--list has no --include-overrides: did you mean --describe?"),
        ("alter names add prefix", "--alter has no --prefix: did you mean --list?"),
        ("describe", "--describe needs an entity"),
        ("alter add", "--alter needs an entity"),
        ("alter names add output", "--alter has no --output: did you mean --list?"),
        ("import names", "--import takes its entities from the file"),
        ("list import", "--list and --import exclude each other"),
        ("import prefix", "--import has no --prefix: did you mean --list?"),
        ("alter names validate-only", "--alter needs --add, --delete or both"),
    ],
)
def test_flags_that_dont(flags: str, said: str) -> None:
    with pytest.raises(QuotaError) as caught:
        check_flags(flags.split())
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("value", "text"),
    [(10_000_000.0, "10000000"), (0.1, "0.1"), (62.5, "62.5"), (float(2**63 - 1), "9223372036854775807")],
)
def test_numbers_are_printed_with_no_more_digits_than_they_need(value: float, text: str) -> None:
    assert number_text(value) == text


def test_printed_entities_can_be_pasted() -> None:
    entity = Entity("CN=a,OU=b", "my client")
    assert parse_entity(entity_text(entity).strip("{}")) == entity


@pytest.mark.parametrize(
    ("add", "value"),
    [("producer_byte_rate=10MB", 1e7), ("consumer_byte_rate:bps=1MiB", 2**20), ("request_percentage=2.5e1", 25.0)],
)
def test_sizes_may_be_written_as_in_the_configuration(add: str, value: float) -> None:
    assert [op.value for op in parse_ops(add)] == [value]


@pytest.mark.parametrize("value", ["1_000", "inf", "nan", "\u0661\u0660", "0x10", "1MB"])
def test_a_text_only_python_takes_for_a_number_is_none(value: str) -> None:
    with pytest.raises(QuotaError, match="is not a number"):
        parse_ops(f"request_percentage={value}")


def test_a_comma_in_a_name_is_hinted_at_where_it_made_two_names() -> None:
    with pytest.raises(QuotaError, match=r"unknown entity type 'OU'.*a comma in a name is written %2C"):
        parse_entity("user=CN=a,OU=b")
