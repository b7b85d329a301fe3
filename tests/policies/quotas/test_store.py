# Client quotas: changes, what is set, what holds. Resolution is compared with an oracle that walks Kafka's eight paths
# as text and knows nothing else of ours.

from __future__ import annotations

from collections.abc import Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.quotas.filter import Component, Match
from policies.quotas.names import DEFAULT, DEFAULT_TEXT, QUOTA_KEYS, Entity, EntityName, QuotaError, QuotaKey, QuotaType
from policies.quotas.store import (
    NO_QUOTA_LIMITS,
    Alteration,
    BucketKey,
    EntityValues,
    Op,
    QuotaLimit,
    QuotaSetting,
    QuotaStore,
    check_quota,
)

PRODUCE = QuotaKey("producer_byte_rate", "broker_bps")
PRODUCE_BPS = QuotaKey("producer_byte_rate", "bps")
PRODUCE_SHARES = QuotaKey("producer_byte_rate", "shares")
CONSUME = QuotaKey("consumer_byte_rate", "broker_bps")
REQUEST = QuotaKey("request_percentage", "percent")
PRODUCERS: frozenset[QuotaType] = frozenset({"producer_byte_rate"})

Pairs = list[tuple[str, str | None]]
ALICE: Pairs = [("user", "alice")]


def store(entries: dict[Entity, EntityValues] | None = None) -> QuotaStore:
    return QuotaStore(entries or {Entity("alice"): {PRODUCE: 1000.0, REQUEST: 50.0}})


def set_quota(
    made: QuotaStore, entity: Entity, key: QuotaKey, value: float | None, totals: Set[QuotaType] = frozenset()
) -> QuotaStore:
    """`value` None removes it."""
    done = made.alter_quotas([Alteration(entity.wire_pairs, [Op(key.wire_name, value)])], totals)
    for error in done.errors:
        if error is not None:
            raise error
    return done.store


def values(made: QuotaStore, *names: EntityName) -> dict[str, float]:
    return {str(key): value for key, value in made.entries.get(Entity(*names), {}).items()}


# --- changes ----------------------------------------------------------------------------------------------------------


def test_a_change_is_a_new_store_with_a_higher_version() -> None:
    old = store()
    new = set_quota(old, Entity("alice"), PRODUCE, 2000.0)
    assert new.version > old.version
    assert values(old, "alice")["producer_byte_rate:broker_bps"] == 1000.0
    assert values(new, "alice")["producer_byte_rate:broker_bps"] == 2000.0


def test_a_change_of_nothing_gives_the_same_store() -> None:
    old = store()
    assert set_quota(old, Entity("alice"), PRODUCE, 1000.0) is old
    assert set_quota(old, Entity("alice"), PRODUCE_BPS, None) is old


@pytest.mark.seed("546.10", "546.19")
def test_an_entity_without_values_is_gone() -> None:
    made = set_quota(set_quota(store(), Entity("alice"), PRODUCE, None), Entity("alice"), REQUEST, None)
    assert dict(made.entries) == {}


@pytest.mark.seed("546.10", "546.22", "546.23")
def test_alter_sets_and_removes_at_once() -> None:
    ops = [Op("producer_byte_rate.bps", 5e6), Op("producer_byte_rate", None), Op("request_percentage", 12.3)]
    done = store().alter_quotas([Alteration(ALICE, ops)])
    assert done.errors == (None,)
    assert done.changed == (Entity("alice"),)
    assert values(done.store, "alice") == {"producer_byte_rate:bps": 5e6, "request_percentage:percent": 12.3}


def test_removing_what_is_not_there_is_no_error() -> None:
    old = store()
    done = old.alter_quotas([Alteration(ALICE, [Op("consumer_byte_rate", None)]), Alteration([("user", "bob")], [])])
    assert done.errors == (None, None)
    assert done.changed == ()
    assert done.store is old


@pytest.mark.seed("546.24")
def test_one_wrong_operation_undoes_its_entity_and_no_other() -> None:
    done = store().alter_quotas(
        [
            Alteration(ALICE, [Op("producer_byte_rate", 1.0), Op("producer_byte_rate.bps", -1.0)]),
            Alteration([("user", "bob")], [Op("producer_byte_rate", 2.0)]),
        ],
    )
    assert [error is None for error in done.errors] == [False, True]
    assert done.changed == (Entity("bob"),)
    assert values(done.store, "alice") == values(store(), "alice")
    assert values(done.store, "bob") == {"producer_byte_rate:broker_bps": 2.0}


@pytest.mark.seed("546.23")
def test_validate_only_says_the_same_and_changes_nothing() -> None:
    old = store()
    alterations = [
        Alteration(ALICE, [Op("producer_byte_rate", 1.0)]),
        Alteration([("user", "")], [Op("producer_byte_rate", 1.0)]),
    ]
    dry, wet = old.alter_quotas(alterations, validate_only=True), old.alter_quotas(alterations)
    assert dry.store is old
    assert [str(error) for error in dry.errors] == [str(error) for error in wet.errors]
    assert dry.changed == wet.changed == (Entity("alice"),)


def test_an_entity_that_is_altered_twice_is_not_altered_at_all() -> None:
    both: Pairs = [("user", "alice"), ("client-id", None)]
    done = store().alter_quotas(
        [
            Alteration(both, [Op("producer_byte_rate", 1.0)]),
            Alteration([("user", "bob")], [Op("producer_byte_rate", 2.0)]),
            Alteration(both[::-1], [Op("consumer_byte_rate", 1.0)]),
        ],
    )
    assert [error and error.error for error in done.errors] == ["INVALID_REQUEST", None, "INVALID_REQUEST"]
    assert done.changed == (Entity("bob"),)


@pytest.mark.seed("546.14", "546.15")
@pytest.mark.parametrize(
    ("entity", "ops", "said"),
    [
        (ALICE, [Op("producer_byte_rate", 1.0), Op("producer_byte_rate", 2.0)], "given twice"),
        (ALICE, [Op("producer_byte_rate", 1.0), Op("producer_byte_rate.broker_bps", None)], "given twice"),
        (ALICE, [Op("bad", 1.0)], "unknown quota"),
        (ALICE, [Op("bad", None)], "unknown quota"),
        (ALICE, [Op("producer_byte_rate", 10000.5)], "no fractions, 10001 would do"),
        ([], [Op("producer_byte_rate", 1.0)], "an empty entity"),
        ([("group", "a")], [Op("producer_byte_rate", 1.0)], "unknown entity type"),
        ([("user", "")], [Op("producer_byte_rate", 1.0)], "an empty name"),
        (ALICE, [Op("consumer_byte_rate.shares", 1.0)], "brokers have no total.bytes.out.per.sec.threshold to share"),
    ],
)
def test_the_alterations_that_are_refused(entity: Pairs, ops: list[Op], said: str) -> None:
    old = store()
    (error,) = (done := old.alter_quotas([Alteration(entity, ops)], totals=PRODUCERS)).errors
    assert error is not None
    assert said in str(error)
    assert error.error == "INVALID_REQUEST"
    assert done.store is old


@pytest.mark.parametrize("key", QUOTA_KEYS, ids=str)
@pytest.mark.parametrize("value", [0.0, -1.0, -0.0, float("nan"), float("inf"), -float("inf")])
def test_a_value_is_finite_and_above_0(key: QuotaKey, value: float) -> None:
    with pytest.raises(QuotaError, match="finite number above 0"):
        check_quota(key, value)


@pytest.mark.seed("546.39")
@pytest.mark.parametrize("key", [key for key in QUOTA_KEYS if key != REQUEST], ids=str)
def test_byte_rates_and_shares_are_whole_numbers_as_large_as_kafka_takes(key: QuotaKey) -> None:
    assert check_quota(key, 1.0) == 1.0
    assert check_quota(key, 2.0**63) == 2.0**63  # Long.MAX_VALUE as it comes in, a double
    for wrong in (0.5, 1.25, 2.0**64):
        with pytest.raises(QuotaError):
            check_quota(key, wrong)


@pytest.mark.parametrize("value", [5e-324, 0.0009, 100_001.0, 1.7e308])
def test_a_percentage_beyond_what_can_be_measured_is_refused(value: float) -> None:
    with pytest.raises(QuotaError, match=r"from 0\.001 to 100,000 % can be had"):
        set_quota(QuotaStore(), Entity("alice"), REQUEST, value)
    for fine in (0.001, 12.34, 100_000.0):
        set_quota(QuotaStore(), Entity("alice"), REQUEST, fine)


def test_shares_need_a_total_to_be_shares_of() -> None:
    old = store()
    with pytest.raises(QuotaError, match="brokers have no total"):
        set_quota(old, Entity("alice"), PRODUCE_SHARES, 100.0)
    made = set_quota(old, Entity("alice"), PRODUCE_SHARES, 100.0, PRODUCERS)
    # when the total goes later, what is stored stays, can be removed, and is warned about
    assert QuotaStore(made.entries).entries == made.entries
    assert made.collect_warnings(PRODUCERS) == ()
    assert made.collect_warnings(frozenset())[0].startswith("1 quotas in shares have no effect")
    assert values(set_quota(made, Entity("alice"), PRODUCE_SHARES, None), "alice") == values(old, "alice")


@pytest.mark.parametrize(
    "entries", [{Entity(): {PRODUCE: 1.0}}, {Entity(""): {PRODUCE: 1.0}}, {Entity("a"): {PRODUCE: 0.0}}]
)
def test_a_store_takes_only_what_could_be_set(entries: dict[Entity, EntityValues]) -> None:
    with pytest.raises(QuotaError):
        QuotaStore(entries)


# --- what is set ------------------------------------------------------------------------------------------------------


@pytest.mark.seed("546.7", "546.20", "546.19")
def test_describe_gives_what_matches_in_a_fixed_order() -> None:
    entries = {
        Entity(None, "c"): {PRODUCE: 1.0},
        Entity(DEFAULT, "c"): {PRODUCE: 2.0},
        Entity("b", "c"): {REQUEST: 5.0, PRODUCE_BPS: 4.0, CONSUME: 3.0},
        Entity("a", "c"): {PRODUCE: 3.0},
        Entity("a"): {PRODUCE: 3.0},
    }
    for order in (entries, dict(reversed(entries.items()))):
        said = QuotaStore(order).describe_quotas([Component("client-id", Match.EXACT, "c")])
        assert [entity for entity, _ in said] == [*map(Entity, "ab", "cc"), Entity(DEFAULT, "c"), Entity(None, "c")]
        assert list(said[1][1].items()) == [(CONSUME, 3.0), (PRODUCE_BPS, 4.0), (REQUEST, 5.0)]
    assert len(QuotaStore(entries).describe_quotas()) == 5
    assert QuotaStore(entries).describe_quotas(strict=True) == ()
    assert [e for e, _ in QuotaStore(entries).describe_quotas([Component("user", Match.EXACT, "a")], strict=True)] == [
        Entity("a")
    ]


# --- what holds -------------------------------------------------------------------------------------------------------


@pytest.mark.seed("546.5", "546.9", "546.21")
def test_each_key_takes_its_own_way_through_the_levels() -> None:
    made = QuotaStore(
        {
            Entity("alice", "app"): {CONSUME: 1.0},
            Entity("alice"): {PRODUCE: 2.0, CONSUME: 3.0},
            Entity(DEFAULT, DEFAULT): {PRODUCE_BPS: 4.0, PRODUCE: 5.0},
            Entity(None, "app"): {PRODUCE: 6.0},
        },
    )
    said = {each.key: each for each in made.effective_quotas(Entity("alice", "app"))}
    assert list(said) == [CONSUME, PRODUCE_BPS, PRODUCE]
    assert said[CONSUME][1:] == (
        Entity("alice", "app"),
        1.0,
        BucketKey(CONSUME, "alice", "app"),
        (QuotaSetting(Entity("alice"), 3.0),),
    )
    assert said[PRODUCE][1:] == (
        Entity("alice"),
        2.0,
        BucketKey(PRODUCE, "alice", None),
        (QuotaSetting(Entity(DEFAULT, DEFAULT), 5.0), QuotaSetting(Entity(None, "app"), 6.0)),
    )
    assert said[PRODUCE_BPS].bucket == BucketKey(PRODUCE_BPS, "alice", "app")
    assert said[PRODUCE_BPS].overridden == ()
    assert {each.overridden for each in made.effective_quotas(Entity("alice", "app"), omit_overridden_values=True)} == {
        None
    }


@pytest.mark.seed("546.1", "546.4", "546.6")
@pytest.mark.parametrize(
    ("entity", "alone", "together"),
    [
        (Entity("alice", "app"), set(), {("alice", "app")}),
        (Entity("alice"), set(), {("alice", "app"), ("alice", "web")}),
        (Entity(DEFAULT), {("bob", "app")}, {("alice", "app"), ("alice", "web")}),
        (Entity(None, "app"), set(), {("alice", "app"), ("bob", "app")}),
        (Entity(None, DEFAULT), {("bob", "web")}, {("alice", "app"), ("bob", "app")}),
        (Entity("alice", DEFAULT), {("alice", "web")}, {("alice", "app")}),
        (Entity(DEFAULT, "app"), {("bob", "app")}, {("alice", "app")}),
        (Entity(DEFAULT, DEFAULT), {("bob", "app"), ("alice", "web")}, {("alice", "app")}),
    ],
)
def test_a_bucket_is_per_actual_name_of_the_matched_types(
    entity: Entity,
    alone: set[tuple[str, str]],
    together: set[tuple[str, str]],
) -> None:
    made = QuotaStore({entity: {PRODUCE: 1.0}})
    shared = {limit.bucket for who in together for limit in made.connection_limits(*who).produce}
    others = {limit.bucket for who in alone for limit in made.connection_limits(*who).produce}
    assert len(shared) == 1
    assert len(others) == len(alone)
    assert not others & shared


def test_a_bucket_outlives_a_change_of_level() -> None:
    """Alice's debt stays hers when she gets a value of her own in place of the default's."""
    by_default = QuotaStore({Entity(DEFAULT): {PRODUCE: 1.0}})
    of_her_own = set_quota(by_default, Entity("alice"), PRODUCE, 2.0)
    (before,), (after,) = (
        by_default.connection_limits("alice", "a").produce,
        of_her_own.connection_limits("alice", "a").produce,
    )
    assert before.bucket == after.bucket
    assert (before.rate, after.rate) == (1.0, 2.0)


@pytest.mark.seed("546.4")
@pytest.mark.parametrize("unnamed", [None, ""])
def test_clients_without_a_client_id_match_the_default_and_share_a_bucket(unnamed: str | None) -> None:
    made = QuotaStore({Entity(None, DEFAULT): {PRODUCE: 1.0}, Entity(None, "app"): {PRODUCE: 2.0}})
    (limit,) = made.connection_limits("alice", unnamed).produce
    assert limit == QuotaLimit(BucketKey(PRODUCE, None, ""), "broker_bps", 1.0, Entity(None, DEFAULT))


@pytest.mark.seed("546.4")
@pytest.mark.parametrize("unnamed", [None, ""])
def test_an_unknown_user_matches_the_default_and_no_others_name(unnamed: str | None) -> None:
    made = QuotaStore({Entity(DEFAULT): {PRODUCE: 1.0}, Entity("ANONYMOUS"): {PRODUCE: 2.0}})
    assert [limit.rate for limit in made.connection_limits(unnamed, "app").produce] == [1.0]
    assert [limit.rate for limit in made.connection_limits("ANONYMOUS", "app").produce] == [2.0]


def test_a_name_that_is_spelled_like_the_default_is_a_name() -> None:
    made = QuotaStore({Entity(DEFAULT): {PRODUCE: 1.0}, Entity("<default>"): {PRODUCE: 2.0}})
    assert [limit.rate for limit in made.connection_limits("<default>", "app").produce] == [2.0]
    assert [limit.rate for limit in made.connection_limits("alice", "app").produce] == [1.0]


@pytest.mark.seed("546.12")
def test_limits_are_sorted_by_what_they_limit_and_all_hold() -> None:
    made = QuotaStore({Entity("a"): dict.fromkeys(QUOTA_KEYS, 7.0)})
    produce, consume, request = made.connection_limits("a", "c")
    assert [limit.unit for limit in produce] == [limit.unit for limit in consume] == ["bps", "broker_bps", "shares"]
    assert [limit.unit for limit in request] == ["percent"]
    assert {limit.bucket.key.type for limit in consume} == {"consumer_byte_rate"}
    assert made.connection_limits("b", "c") is NO_QUOTA_LIMITS


@pytest.mark.seed("546.1", "546.2", "546.4")
def test_defaults_can_be_asked_about_themselves_and_types_left_out() -> None:
    made = QuotaStore(
        {
            Entity("alice", "app"): {PRODUCE: 1.0},
            Entity("alice"): {PRODUCE: 2.0},
            Entity(DEFAULT, DEFAULT): {PRODUCE: 3.0},
            Entity(DEFAULT): {PRODUCE: 4.0},
            Entity(None, DEFAULT): {PRODUCE: 5.0},
        },
    )
    for entity, expected in (
        (Entity("alice"), [2.0, 4.0]),
        (Entity(DEFAULT, DEFAULT), [3.0, 4.0, 5.0]),
        (Entity(None, "app"), [5.0]),
    ):
        (found,) = made.effective_quotas(entity)
        assert [found.value, *(entry.value for entry in found.overridden or ())] == expected
    assert made.effective_quotas(Entity()) == ()


# --- against an oracle ------------------------------------------------------------------------------------------------

SOME = st.sampled_from(["a", "b", "<default>"])
ENTITIES = st.builds(Entity, *[st.one_of(SOME, st.just(DEFAULT), st.none())] * 2).filter(any)
SETTINGS = st.dictionaries(
    ENTITIES,
    st.dictionaries(st.sampled_from(QUOTA_KEYS), st.integers(1, 9).map(float), min_size=1),
    max_size=16,
)
ASKED = st.sampled_from(["a", "b", "<default>", "unheard-of", ""])


def eight_paths(user: str, client: str) -> list[str]:
    """Kafka's documentation, with names in quotes so that none is the default."""
    u, c, default = f'"{user}"', f'"{client}"', "<default>"
    return [
        f"/config/users/{u}/clients/{c}",
        f"/config/users/{u}/clients/{default}",
        f"/config/users/{u}",
        f"/config/users/{default}/clients/{c}",
        f"/config/users/{default}/clients/{default}",
        f"/config/users/{default}",
        f"/config/clients/{c}",
        f"/config/clients/{default}",
    ]


def quoted(entity: Entity) -> str:
    parts = ["/config"]
    for folder, name in zip(("users", "clients"), entity, strict=True):
        if name is not None:
            parts += [folder, DEFAULT_TEXT if name is DEFAULT else f'"{name}"']
    return "/".join(parts)


@pytest.mark.seed("546.1", "546.2", "546.3")
@given(SETTINGS, ASKED, ASKED)
def test_resolution_is_a_walk_along_the_eight_paths(
    settings: dict[Entity, EntityValues], user: str, client: str
) -> None:
    tree = {quoted(entity): (entity, settings[entity]) for entity in settings}
    walked = [tree[path] for path in eight_paths(user, client) if path in tree]
    made = QuotaStore(settings)
    said = {
        each.key: (QuotaSetting(each.source, each.value), *(each.overridden or ()))
        for each in made.effective_quotas(Entity(user, client))
    }
    expected = {
        key: tuple(QuotaSetting(entity, here[key]) for entity, here in walked if key in here)
        for key in {key for _, here in walked for key in here}
    }
    assert said == expected
    flat = [limit for kind in made.connection_limits(user, client) for limit in kind]
    assert {(limit.bucket.key, limit.source, limit.rate) for limit in flat} == {
        (key, *entries[0]) for key, entries in expected.items()
    }


@given(SETTINGS, ASKED, ASKED, ASKED, ASKED)
def test_two_connections_share_a_bucket_only_with_the_same_limit(
    settings: dict[Entity, EntityValues],
    user: str,
    client: str,
    other_user: str,
    other_client: str,
) -> None:
    made = QuotaStore(settings)
    one = {limit.bucket: limit for kind in made.connection_limits(user, client) for limit in kind}
    other = {limit.bucket: limit for kind in made.connection_limits(other_user, other_client) for limit in kind}
    for bucket in one.keys() & other.keys():
        assert one[bucket] == other[bucket]
        assert bucket.user in (None, user)
        assert bucket.client_id in (None, client)


@given(SETTINGS, SETTINGS)
def test_changing_is_the_same_as_building_anew(
    before: dict[Entity, EntityValues], after: dict[Entity, EntityValues]
) -> None:
    gone: dict[Entity, EntityValues] = {entity: {} for entity in before.keys() - after.keys()}
    made = QuotaStore(before).overlay_entries({**after, **gone}, 1)
    assert made.entries == QuotaStore(after).entries
    assert made.describe_quotas() == QuotaStore(after).describe_quotas()
    by_ops = QuotaStore(before).alter_quotas(
        [
            Alteration(e.wire_pairs, [Op(key.wire_name, after.get(e, {}).get(key)) for key in QUOTA_KEYS])
            for e in before.keys() | after.keys()
        ],
        totals={"producer_byte_rate", "consumer_byte_rate"},
    )
    assert set(by_ops.errors) <= {None}
    assert by_ops.store.entries == made.entries
