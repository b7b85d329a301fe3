# The seed of client quotas (KIP-546, draft), sentence by sentence, as far as no traffic and no wire is needed: each
# test's name and docstring say what one sentence demands. Its examples are here word for word, apart from two slips:
# the names of its two users are swapped in --list (as --describe shows), and its last --describe should be --alter.

from __future__ import annotations

import random

import pytest

from policies.quotas.filter import Component, Match
from policies.quotas.names import DEFAULT, KEYS, UNITS, Entity, QuotaError, QuotaKey, QuotaType
from policies.quotas.store import Alteration, Entry, Op, QuotaStore, Values
from policies.quotas.text import (
    check_flags,
    components_of,
    describe_text,
    entity_of,
    list_text,
    ops_of,
    quota_text,
)

PRODUCE = QuotaKey("producer_byte_rate", "broker_bps")
PRODUCE_BPS = QuotaKey("producer_byte_rate", "bps")
CONSUME = QuotaKey("consumer_byte_rate", "broker_bps")
REQUEST = QuotaKey("request_percentage", "percent")
TOTALS: frozenset[QuotaType] = frozenset({"producer_byte_rate", "consumer_byte_rate"})

# Kafka's order, as the seed lists it.
HIERARCHY = (
    Entity("test-user", "test-client"),
    Entity("test-user", DEFAULT),
    Entity("test-user"),
    Entity(DEFAULT, "test-client"),
    Entity(DEFAULT, DEFAULT),
    Entity(DEFAULT),
    Entity(None, "test-client"),
    Entity(None, DEFAULT),
)


def alter(made: QuotaStore, add: str = "", delete: str = "", names: str = "", defaults: str = "") -> QuotaStore:
    """kafka-quotas --alter."""
    done = made.alter([Alteration(entity_of(names, defaults).pairs, ops_of(add, delete))], totals=TOTALS)
    assert done.errors == (None,)
    return done.store


@pytest.fixture
def examples() -> QuotaStore:
    """What the seed's examples have set before they begin."""
    made = alter(
        QuotaStore(),
        "consumer_byte_rate:shares=200,producer_byte_rate:bps=10000000",
        names="user=user-one,client-id=my-client",
    )
    made = alter(made, "producer_byte_rate:broker_bps=2000000", names="user=user-two,client-id=my-client")
    return alter(
        made,
        "consumer_byte_rate:shares=100,producer_byte_rate:broker_bps=500000",
        names="client-id=my-client",
        defaults="user",
    )


# --- background -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entity", HIERARCHY, ids=lambda entity: entity.path)
def test_user_and_client_id_may_be_named_the_default_or_omitted(entity: Entity) -> None:
    """An administrator has flexibility: user and client id may be named, be the default, or be omitted entirely."""
    made = QuotaStore().set(entity, PRODUCE, 1000.0)
    assert [each.source for each in made.resolve("test-user", "test-client")] == [entity]


def test_the_most_specific_defined_quota_is_matched() -> None:
    """The most specific, defined quota is matched to a request's user and client id, in the order of the paths."""
    shuffled = list(HIERARCHY)
    random.Random(546).shuffle(shuffled)
    made = QuotaStore({entity: {PRODUCE: 1.0 + HIERARCHY.index(entity)} for entity in shuffled})
    for entity in HIERARCHY:
        (limit,) = made.limits("test-user", "test-client").produce
        assert limit.source == entity
        made = made.delete(entity, PRODUCE)
    assert made.limits("test-user", "test-client").produce == ()


def test_the_order_is_that_of_the_paths() -> None:
    """The order in which quotas are matched is that of the listed /config paths."""
    assert [entity.path for entity in sorted(HIERARCHY, key=lambda entity: entity.order)] == [
        "/config/users/test-user/clients/test-client",
        "/config/users/test-user/clients/<default>",
        "/config/users/test-user",
        "/config/users/<default>/clients/test-client",
        "/config/users/<default>/clients/<default>",
        "/config/users/<default>",
        "/config/clients/test-client",
        "/config/clients/<default>",
    ]


@pytest.mark.parametrize("who", [("anybody", "any"), ("ANONYMOUS", ""), ("test-user", None)])
def test_default_matches_all_users_or_client_ids(who: tuple[str, str | None]) -> None:
    """<default> is a special default that matches all users or client ids."""
    made = QuotaStore({Entity(DEFAULT): {PRODUCE: 1.0}, Entity(None, DEFAULT): {CONSUME: 2.0}})
    assert [(each.key, each.value) for each in made.resolve(*who)] == [(CONSUME, 2.0), (PRODUCE, 1.0)]


def test_it_can_be_told_which_quotas_apply_to_a_user_and_client_id() -> None:
    """Providing descriptive information about how quotas are matched is a goal."""
    made = QuotaStore({entity: {PRODUCE: 1.0 + level} for level, entity in enumerate(HIERARCHY)})
    (said,) = made.resolve("test-user", "test-client")
    assert [said.source, *(source for source, _ in said.overridden or ())] == list(HIERARCHY)


def test_a_subset_of_the_entity_types_is_enough_for_a_quota() -> None:
    """When specifying a quota, only a subset of the types need be given, for example {user=<default>}."""
    made = QuotaStore().set(Entity.of([("user", None)]), PRODUCE, 5.0)
    assert [limit.rate for limit in made.limits("test-user", "test-client").produce] == [5.0]


# --- the three calls --------------------------------------------------------------------------------------------------


def test_the_config_centric_mode_describes_exactly_what_is_specified(examples: QuotaStore) -> None:
    """DescribeQuotas describes what is exactly specified for the given entity match, and nothing that is inherited."""
    components = [Component("user", Match.EXACT, "user-two"), Component("client-id", Match.EXACT, "my-client")]
    assert examples.describe(components) == ((Entity("user-two", "my-client"), {PRODUCE: 2_000_000.0}),)


def test_a_filter_tells_which_matches_have_values(examples: QuotaStore) -> None:
    """A filter gathers which matches have configuration values defined."""
    named = [entity for entity, _ in examples.describe([Component("user", Match.SPECIFIED)])]
    assert named == [Entity("user-one", "my-client"), Entity("user-two", "my-client"), Entity(DEFAULT, "my-client")]
    assert examples.describe([Component("user", Match.EXACT, "user-three")]) == ()


def test_the_entity_centric_mode_matches_various_entries() -> None:
    """An entity may match various entries: the producer rate that of the user, the consumer rate that of the client."""
    made = QuotaStore({Entity("u"): {PRODUCE: 1.0}, Entity(None, "c"): {CONSUME: 2.0}})
    said = {each.key: (each.source, each.value) for each in made.effective(Entity("u", "c"))}
    assert said == {PRODUCE: (Entity("u"), 1.0), CONSUME: (Entity(None, "c"), 2.0)}


def test_a_removed_quota_doesnt_match_any_more(examples: QuotaStore) -> None:
    """Existing quotas can be removed so they don't match."""
    made = alter(examples, delete="producer_byte_rate:bps", names="user=user-one,client-id=my-client")
    assert PRODUCE_BPS not in {each.key for each in made.resolve("user-one", "my-client")}


# --- units ------------------------------------------------------------------------------------------------------------


def test_entries_are_the_cross_product_of_types_and_units() -> None:
    """The possible entries are the cross product of types and units; a percentage has but its own."""
    rates = [(kind, unit) for kind in ("consumer", "producer") for unit in ("bps", "broker_bps", "shares")]
    assert [str(key) for key in KEYS if key != REQUEST] == [f"{kind}_byte_rate:{unit}" for kind, unit in rates]
    assert UNITS["request_percentage"] == ("percent",)


def test_global_and_per_broker_rates_hold_together() -> None:
    """Bytes per second may be given globally and per broker; whichever limit is hit first is enforced: both hold."""
    made = QuotaStore({Entity("u"): {PRODUCE_BPS: 10.0}, Entity(DEFAULT): {PRODUCE: 2.0}})
    produce = made.limits("u", "c").produce
    assert [(limit.unit, limit.rate) for limit in produce] == [("bps", 10.0), ("broker_bps", 2.0)]
    assert len({limit.bucket for limit in produce}) == 2


def test_shares_are_counted_per_entity() -> None:
    """When bandwidth is contested, the share count of the various entities determines their throughput."""
    shares = QuotaKey("producer_byte_rate", "shares")
    made = QuotaStore({Entity("big"): {shares: 200.0}, Entity(DEFAULT): {shares: 100.0}})
    parts = {limit.bucket: limit.rate for user in ("big", "a", "b") for limit in made.limits(user, "c").produce}
    assert sorted(parts.values()) == [100.0, 100.0, 200.0]


# --- types ------------------------------------------------------------------------------------------------------------


def test_entity_types_that_arent_understood_return_an_error() -> None:
    """Any entity types that aren't understood return an error to the client."""
    done = QuotaStore().alter([Alteration([("GROUP", "internal-group")], [Op("producer_byte_rate", 1.0)])])
    assert [error and error.error for error in done.errors] == ["INVALID_REQUEST"]
    with pytest.raises(QuotaError, match="GROUP") as caught:
        QuotaStore().describe([Component("GROUP", Match.EXACT, "internal-group")])
    assert caught.value.error == "UNSUPPORTED_VERSION"


@pytest.mark.parametrize("key", ["fetch_byte_rate", "producer_byte_rate.rate_bps", "producer_byte_rate.percent"])
@pytest.mark.parametrize("value", [1.0, None])
def test_modification_of_unknown_types_or_units_fails(key: str, value: float | None) -> None:
    """Modification of quota types or units that are unknown fails with an error."""
    old = QuotaStore({Entity("u"): {PRODUCE: 1.0}})
    done = old.alter([Alteration([("user", "u")], [Op(key, value)])])
    assert done.errors != (None,)
    assert done.store is old


def test_an_entity_that_cant_be_inferred_is_an_error() -> None:
    """Types that aren't specified are inferred (here: they don't matter), otherwise an error is returned."""
    assert Entity.of([("client-id", "test-client")]) == Entity(None, "test-client")
    with pytest.raises(QuotaError, match="an empty entity"):
        Entity.of([])


# --- filters ----------------------------------------------------------------------------------------------------------


def test_exact_is_an_exact_name_and_prefix_all_names_with_it() -> None:
    """EXACT: exact name match. PREFIX: all names with the given prefix."""
    made = QuotaStore({Entity(name): {PRODUCE: 1.0} for name in ("a", "ab", "b", DEFAULT)})
    assert [e for e, _ in made.describe([Component("user", Match.EXACT, "a")])] == [Entity("a")]
    assert [e for e, _ in made.describe([Component("user", Match.PREFIX, "a")])] == [Entity("a"), Entity("ab")]


@pytest.mark.parametrize("rule", [Match.EXACT, Match.PREFIX])
def test_the_string_of_a_rule_is_non_null(rule: Match) -> None:
    """The string that a rule is applied to is non-null."""
    with pytest.raises(QuotaError, match="needs a name"):
        QuotaStore().describe([Component("user", rule, None)])


def test_all_filters_must_match(examples: QuotaStore) -> None:
    """Entities that match all filters are described: logical AND."""
    components = [Component("user", Match.PREFIX, "user-"), Component("client-id", Match.EXACT, "another")]
    assert examples.describe(components[:1]) != ()
    assert examples.describe(components) == ()


def test_only_entities_with_at_least_one_value_are_described(examples: QuotaStore) -> None:
    """Entities are described that have at least one value; a type without a value is not in the result."""
    made = alter(examples, delete="producer_byte_rate", names="user=user-two,client-id=my-client")
    said: dict[Entity, Values] = dict(made.describe())
    assert Entity("user-two", "my-client") not in said
    assert PRODUCE not in said[Entity("user-one", "my-client")]


# --- effective quotas -------------------------------------------------------------------------------------------------


def test_overridden_values_are_those_lower_in_specificity_or_null() -> None:
    """Overridden entries are all values lower in specificity, each with its source; null if not requested."""
    made = QuotaStore({Entity("u"): {PRODUCE: 1.0}, Entity(DEFAULT): {PRODUCE: 2.0}, Entity(None, "c"): {PRODUCE: 3.0}})
    (said,) = made.effective(Entity("u", "c"))
    assert (said.source, said.value) == (Entity("u"), 1.0)
    assert said.overridden == (Entry(Entity(DEFAULT), 2.0), Entry(Entity(None, "c"), 3.0))
    (said,) = made.effective(Entity("u", "c"), omit_overridden_values=True)
    assert said.overridden is None


# --- altering ---------------------------------------------------------------------------------------------------------


def test_an_operation_sets_or_clears_one_value() -> None:
    """If value is set, the existing value is updated; if null, the existing value is cleared. Others stay."""
    made = QuotaStore({Entity("u"): {PRODUCE: 1.0, CONSUME: 2.0, REQUEST: 3.0}})
    ops = [Op("producer_byte_rate", 10.0), Op("consumer_byte_rate", None)]
    done = made.alter([Alteration([("user", "u")], ops)])
    assert done.store.entries == {Entity("u"): {PRODUCE: 10.0, REQUEST: 3.0}}


def test_validate_only_validates_without_altering() -> None:
    """validateOnly: whether the alteration should be validated, but not performed."""
    made = QuotaStore({Entity("u"): {PRODUCE: 1.0}})
    good, bad = Op("producer_byte_rate", 10.0), Op("producer_byte_rate", 0.0)
    for op, fine in ((good, True), (bad, False)):
        done = made.alter([Alteration([("user", "u")], [op])], validate_only=True)
        assert (done.errors == (None,)) is fine
        assert done.store is made


def test_each_entity_has_its_own_result() -> None:
    """The result has a future per entity; all succeed only if each does."""
    done = QuotaStore().alter(
        [
            Alteration([("user", "good")], [Op("producer_byte_rate", 1.0)]),
            Alteration([("user", "bad")], [Op("producer_byte_rate", -1.0)]),
        ],
    )
    assert [error is None for error in done.errors] == [True, False]
    assert list(done.store.entries) == [Entity("good")]


# --- kafka-quotas -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", ["list describe", "list alter", "describe alter", "list describe alter"])
def test_operations_are_mutually_exclusive(flags: str) -> None:
    """--list, --describe and --alter are mutually exclusive."""
    with pytest.raises(QuotaError, match="exclude each other"):
        check_flags([*flags.split(), "names"])


@pytest.mark.parametrize("operation", ["list", "describe", "alter"])
@pytest.mark.parametrize(
    ("flag", "owner"),
    [
        ("prefix", "list"),
        ("include-overrides", "describe"),
        ("add", "alter"),
        ("delete", "alter"),
        ("validate-only", "alter"),
    ],
)
def test_some_flags_are_exclusive_to_an_operation(operation: str, flag: str, owner: str) -> None:
    """--prefix is exclusive to --list, --include-overrides to --describe, the others to --alter."""
    flags = {operation, "names", flag} | ({"add"} if operation == "alter" else set())
    if operation == owner:
        assert check_flags(flags) == operation
    else:
        with pytest.raises(QuotaError, match=f"did you mean --{owner}"):
            check_flags(flags)


def test_names_and_defaults_are_comma_separated() -> None:
    """--names: type=name pairs, --defaults: entity types with the default name; names are opaque."""
    assert entity_of("user=some-user,client-id=some-client-id") == Entity("some-user", "some-client-id")
    assert entity_of(defaults="user,client-id") == Entity(DEFAULT, DEFAULT)
    assert entity_of("user=%3Cdefault%3E") == Entity("<default>") != entity_of(defaults="user")


def test_a_type_omitted_from_list_is_a_wildcard() -> None:
    """If an entity type is omitted from the input, it is treated as a wildcard."""
    made = QuotaStore({entity: {PRODUCE: 1.0} for entity in HIERARCHY})
    assert [entity for entity, _ in made.describe(components_of("user=test-user"))] == list(HIERARCHY[:3])
    assert len(made.describe(components_of())) == 8


def test_output_is_sanitized() -> None:
    """Entities are of the form {entity-type=entity-name, ...}, where the name is sanitized since it is opaque."""
    made = QuotaStore({Entity("CN=alice,OU=x", DEFAULT): {PRODUCE: 1.0}})
    assert list_text(made.describe()) == (
        "{user=CN%3Dalice%2COU%3Dx, client-id=<default>}\nproducer_byte_rate:broker_bps=1"
    )


def test_values_are_name_unit_and_value() -> None:
    """Configuration values: quota-name:quota-unit=quota-value."""
    assert quota_text(QuotaKey("consumer_byte_rate", "shares"), 200.0) == "consumer_byte_rate:shares=200"


def test_example_list_by_client_id(examples: QuotaStore) -> None:
    """--list --names=client-id=my-client"""
    assert (
        list_text(examples.describe(components_of("client-id=my-client")))
        == """\
{user=user-one, client-id=my-client}
consumer_byte_rate:shares=200
producer_byte_rate:bps=10000000

{user=user-two, client-id=my-client}
producer_byte_rate:broker_bps=2000000

{user=<default>, client-id=my-client}
consumer_byte_rate:shares=100
producer_byte_rate:broker_bps=500000"""
    )


def test_example_list_by_prefix(examples: QuotaStore) -> None:
    """--list --prefix=user=user-"""
    assert (
        list_text(examples.describe(components_of(prefix="user=user-")))
        == """\
{user=user-one, client-id=my-client}
consumer_byte_rate:shares=200
producer_byte_rate:bps=10000000

{user=user-two, client-id=my-client}
producer_byte_rate:broker_bps=2000000"""
    )


def test_example_describe(examples: QuotaStore) -> None:
    """--describe --names=user=user-one,client-id=my-client"""
    entity = entity_of("user=user-one,client-id=my-client")
    assert (
        describe_text(examples.effective(entity, omit_overridden_values=True))
        == """\
consumer_byte_rate:shares=200 {user=user-one, client-id=my-client}
producer_byte_rate:bps=10000000 {user=user-one, client-id=my-client}
producer_byte_rate:broker_bps=500000 {user=<default>, client-id=my-client}"""
    )


def test_example_describe_with_overrides(examples: QuotaStore) -> None:
    """--describe --names=user=user-two,client-id=my-client --include-overrides"""
    entity = entity_of("user=user-two,client-id=my-client")
    assert (
        describe_text(examples.effective(entity))
        == """\
consumer_byte_rate:shares=100 {user=<default>, client-id=my-client}
producer_byte_rate:broker_bps=2000000 {user=user-two, client-id=my-client}
*producer_byte_rate:broker_bps=500000 {user=<default>, client-id=my-client}"""
    )


def test_example_alter(examples: QuotaStore) -> None:
    """--alter --names=client-id=my-client --defaults=user --add=… --delete=…, and --list after it."""
    made = alter(
        examples,
        "producer_byte_rate:shares=100",
        "producer_byte_rate:broker_bps",
        names="client-id=my-client",
        defaults="user",
    )
    assert (
        list_text(made.describe(components_of("client-id=my-client", "user")))
        == """\
{user=<default>, client-id=my-client}
consumer_byte_rate:shares=100
producer_byte_rate:shares=100"""
    )


def test_the_slip_in_the_example_of_alter_is_answered_with_what_was_meant() -> None:
    """Its --describe with --add and --delete is refused."""
    with pytest.raises(QuotaError, match=r"--describe has no --add: did you mean --alter\?"):
        check_flags(["bootstrap-server", "describe", "names", "defaults", "add", "delete"])
