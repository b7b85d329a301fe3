# Which keys of a change go to the broker and which don't, what is refused, and one answer out of two.

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import api
from protocol.admin.configs import (
    APPEND,
    BROKER,
    DELETE,
    DYNAMIC_TOPIC_CONFIG,
    LONG,
    SET,
    SUBTRACT,
    TOPIC,
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    AlterConfigsResult,
    ConfigOperation,
    ConfigSynonym,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    merge_altered,
    merge_described,
    split_incremental,
    split_replacing,
    without_resources,
)
from tests.protocol.admin_cases import error

IN = "bytes.in.per.sec.threshold"
OUT = "bytes.out.per.sec.threshold"
THEIRS = ("retention.ms", "cleanup.policy")
INVALID_CONFIG, INVALID_REQUEST = error("INVALID_CONFIG"), error("INVALID_REQUEST")
DENIED = api.TOPIC_AUTHORIZATION_FAILED


def is_ours(kind: int, _name: str, key: str) -> bool:
    return kind == TOPIC and key in (IN, OUT)


def nothing(_kind: int, _name: str) -> tuple[str, ...]:
    return ()


def change(name: str, *operations: tuple[str, int, str | None], kind: int = TOPIC) -> IncrementalAlterConfigsResource:
    return IncrementalAlterConfigsResource(kind, name, tuple(ConfigOperation(*row) for row in operations))


def replacement(name: str, *configs: tuple[str, str | None], kind: int = TOPIC) -> AlterConfigsResource:
    return AlterConfigsResource(kind, name, tuple(AlterableConfig(*row) for row in configs))


def incremental(*resources: IncrementalAlterConfigsResource) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(resources, False)


def replacing(*resources: AlterConfigsResource) -> AlterConfigsRequest:
    return AlterConfigsRequest(resources, True)


# --- IncrementalAlterConfigs ------------------------------------------------------------------------------------------


def test_our_keys_are_taken_out_and_the_others_are_left() -> None:
    request = incremental(
        change("a", ("retention.ms", SET, "1"), (IN, SET, "1000"), ("cleanup.policy", APPEND, "compact")),
        change("b", (OUT, DELETE, None)),
        change("c", ("retention.ms", DELETE, None)),
        change("1", (IN, SET, "not ours on a broker"), kind=BROKER),
    )
    ours, rest, refused = split_incremental(request, is_ours)
    assert ours == (change("a", (IN, SET, "1000")), change("b", (OUT, DELETE, None)))
    assert rest == incremental(
        change("a", ("retention.ms", SET, "1"), ("cleanup.policy", APPEND, "compact")),
        change("c", ("retention.ms", DELETE, None)),
        change("1", (IN, SET, "not ours on a broker"), kind=BROKER),
    )
    assert refused == ()


def test_nothing_of_ours_is_the_request_itself_and_nothing_else_leaves_no_rest() -> None:
    for request in (incremental(), incremental(change("a")), incremental(change("a", ("retention.ms", SET, "1")))):
        ours, rest, refused = split_incremental(request, is_ours)
        assert rest is request
        assert (ours, refused) == ((), ())
    request = incremental(change("a", (IN, SET, "1"), (OUT, SET, "2")))
    assert split_incremental(request, is_ours) == (request.resources, None, ())
    request = incremental(change("a", (IN, SET, "1"), ("retention.ms", SET, "2")))._replace(validate_only=True)
    assert split_incremental(request, is_ours).rest == incremental(change("a", ("retention.ms", SET, "2")))._replace(
        validate_only=True
    )


def test_the_value_of_a_delete_is_ignored() -> None:
    assert split_incremental(incremental(change("a", (IN, DELETE, "5"))), is_ours).ours == (
        change("a", (IN, DELETE, None)),
    )


@pytest.mark.parametrize(
    ("operations", "code", "words"),
    [
        ([(IN, APPEND, "1")], INVALID_CONFIG, f"{IN}: APPEND is for lists"),
        ([(IN, SUBTRACT, "1")], INVALID_CONFIG, f"{IN}: SUBTRACT is for lists"),
        ([(OUT, SET, "1"), (IN, APPEND, "1")], INVALID_CONFIG, f"{IN}: APPEND"),
        ([(IN, SET, None)], INVALID_REQUEST, "SET needs a value"),
        ([(IN, 4, "1")], INVALID_REQUEST, "no operation 4"),
        ([(IN, -1, "1")], INVALID_REQUEST, "no operation -1"),
        ([(IN, SET, "1"), (IN, SET, "1")], INVALID_REQUEST, f"{IN} is named 2 times"),
        ([(IN, SET, "1"), (IN, DELETE, None)], INVALID_REQUEST, f"{IN} is named 2 times"),
    ],
)
def test_a_resource_is_refused_whole(operations: list[tuple[str, int, str | None]], code: int, words: str) -> None:
    request = incremental(
        change("a", ("retention.ms", SET, "1"), *operations),
        change("b", (IN, SET, "1"), ("retention.ms", SET, "2")),
    )
    ours, rest, refused = split_incremental(request, is_ours)
    assert ours == (change("b", (IN, SET, "1")),)
    assert rest == incremental(change("b", ("retention.ms", SET, "2")))
    assert [(row.error_code, row.resource_type, row.resource_name) for row in refused] == [(code, TOPIC, "a")]
    assert words in (refused[0].error_message or "")


def test_append_and_twice_on_their_keys_are_the_brokers_business() -> None:
    rows = (("cleanup.policy", APPEND, "compact"), ("cleanup.policy", APPEND, "compact"), ("x", 9, None))
    ours, rest, refused = split_incremental(incremental(change("a", *rows, (IN, SET, "1"))), is_ours)
    assert ours == (change("a", (IN, SET, "1")),)
    assert rest == incremental(change("a", *rows))
    assert refused == ()


def test_a_resource_that_is_there_twice_is_refused_if_one_of_them_has_a_key_of_ours() -> None:
    twice = (change("a", ("retention.ms", SET, "1")), change("a", (IN, SET, "1")))
    for resources in (twice, twice[::-1]):
        ours, rest, refused = split_incremental(incremental(*resources), is_ours)
        assert (ours, rest) == ((), None)
        assert [(row.error_code, row.resource_name) for row in refused] == [(INVALID_REQUEST, "a")]
    theirs = incremental(change("a", ("retention.ms", SET, "1")), change("a"))
    assert split_incremental(theirs, is_ours).rest is theirs
    of_two_types = incremental(change("1", (IN, SET, "1")), change("1", ("x", SET, "1"), kind=BROKER))
    assert split_incremental(of_two_types, is_ours).refused == ()


def test_resources_can_be_taken_out_after_a_probe() -> None:
    request = incremental(change("a", ("x", SET, "1")), change("b", ("x", SET, "1")))
    assert without_resources(request, {(TOPIC, "a")}) == incremental(change("b", ("x", SET, "1")))
    assert without_resources(request, {(BROKER, "a")}) == request
    assert without_resources(request, {(TOPIC, "a"), (TOPIC, "b")}) is None
    assert without_resources(replacing(replacement("a")), {(TOPIC, "a")}) is None


_keys = st.sampled_from((IN, OUT, *THEIRS))
_changes = st.builds(
    lambda name, rows: change(name, *rows),
    st.sampled_from("abc"),
    st.lists(st.tuples(_keys, st.integers(0, 3), st.none() | st.text(max_size=2)), max_size=4),
)


@given(st.lists(_changes, max_size=4).map(tuple))
def test_no_key_of_ours_reaches_the_broker_and_every_resource_is_somewhere(
    resources: tuple[IncrementalAlterConfigsResource, ...],
) -> None:
    ours, rest, refused = split_incremental(incremental(*resources), is_ours)
    left = rest.resources if rest else ()
    assert not [op for resource in left for op in resource.configs if is_ours(TOPIC, "", op.name)]
    assert all(resource.configs for resource in ours)
    assert all(is_ours(TOPIC, "", op.name) and op[1] in (SET, DELETE) for each in ours for op in each.configs)
    out = {row.resource_name for row in refused}
    assert not out & {resource.resource_name for resource in (*ours, *left)}
    taken = Counter(op[:2] for each in (*ours, *left) for op in each.configs)
    assert taken == Counter(op[:2] for each in resources if each.resource_name not in out for op in each.configs)
    assert {each.resource_name for each in resources} == out | {each.resource_name for each in (*ours, *left)}


# --- AlterConfigs -----------------------------------------------------------------------------------------------------


def test_a_replacement_keeps_every_resource_also_an_empty_one() -> None:
    request = replacing(
        replacement("a", ("retention.ms", "1"), (IN, "1000")), replacement("b", (OUT, "5")), replacement("c")
    )
    ours, rest, refused = split_replacing(request, is_ours, nothing)
    assert ours == (change("a", (IN, SET, "1000")), change("b", (OUT, SET, "5")))
    assert rest == replacing(replacement("a", ("retention.ms", "1")), replacement("b"), replacement("c"))
    assert refused == ()


def test_our_key_that_a_replacement_does_not_name_is_deleted() -> None:
    request = replacing(replacement("a", ("retention.ms", "1"), (IN, "1000")), replacement("b", ("retention.ms", "1")))
    ours, rest, _ = split_replacing(request, is_ours, lambda _, name: (IN, OUT) if name == "a" else (OUT,))
    assert ours == (change("a", (IN, SET, "1000"), (OUT, DELETE, None)), change("b", (OUT, DELETE, None)))
    assert rest == replacing(replacement("a", ("retention.ms", "1")), replacement("b", ("retention.ms", "1")))


def test_a_replacement_with_nothing_of_ours_is_the_request_itself() -> None:
    request = replacing(replacement("a", ("retention.ms", "1")), replacement("b"))
    assert split_replacing(request, is_ours, nothing) == ((), request, ())
    assert split_replacing(request, is_ours, nothing).rest is request


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ([replacement("a", (IN, None), ("retention.ms", "1"))], "SET needs a value"),
        ([replacement("a", (IN, "1"), (IN, "2"))], "named 2 times"),
        ([replacement("a", (IN, "1")), replacement("a", ("retention.ms", "1"))], "more than once"),
    ],
)
def test_a_replacement_is_refused_whole(resources: list[AlterConfigsResource], words: str) -> None:
    ours, rest, refused = split_replacing(replacing(*resources, replacement("z")), is_ours, nothing)
    assert ours == ()
    assert rest == replacing(replacement("z"))
    assert [row[2:] + row[:1] for row in refused] == [(TOPIC, "a", INVALID_REQUEST)]
    assert words in (refused[0].error_message or "")


def test_two_replacements_of_what_holds_a_key_of_ours_are_refused() -> None:
    request = replacing(replacement("a", ("x", "1")), replacement("a", ("x", "2")))
    assert split_replacing(request, is_ours, lambda *_: (IN,)).rest is None
    assert split_replacing(request, is_ours, nothing).rest is request


# --- answers to changes -----------------------------------------------------------------------------------------------


def result(name: str, code: int = 0, kind: int = TOPIC) -> AlterConfigsResult:
    return AlterConfigsResult(code, "why" if code else None, kind, name)


def test_results_come_in_the_order_of_the_request_not_of_the_broker() -> None:
    names = [f"t{index}" for index in range(8)]
    request = incremental(*(change(name, ("x", SET, "1")) for name in names), change("t0", kind=BROKER))
    theirs = [result(name) for name in names if name not in ("t2", "t5")] + [result("t0", 42, BROKER)]
    for seed in range(5):
        random.Random(seed).shuffle(theirs)
        merged = merge_altered(request, AlterConfigsResponse(9, tuple(theirs)), [result("t5"), result("t2", 40)])
        assert merged.throttle_time_ms == 9
        assert merged.responses == (
            *(result(name, 40 if name == "t2" else 0) for name in names),
            result("t0", 42, BROKER),
        )


@pytest.mark.parametrize(
    ("broker", "own", "merged"), [(0, 0, 0), (0, 40, 40), (29, 0, 29), (29, 40, 29), (None, 40, 40), (29, None, 29)]
)
def test_of_two_results_an_error_counts_and_the_brokers_first(broker: int | None, own: int | None, merged: int) -> None:
    theirs = None if broker is None else AlterConfigsResponse(0, (result("a", broker),))
    ours = [] if own is None else [result("a", own)]
    request = replacing(replacement("a"))
    assert merge_altered(request, theirs, ours) == (0, (result("a", merged),))


def test_a_resource_without_any_result_is_not_left_out() -> None:
    (row,) = merge_altered(replacing(replacement("a")), None, []).responses
    assert (row.error_code, row.resource_type, row.resource_name) == (error("UNKNOWN_SERVER_ERROR"), TOPIC, "a")


def test_a_resource_that_is_there_twice_is_answered_twice() -> None:
    request = incremental(change("a"), change("b"), change("a"))
    answer = AlterConfigsResponse(0, (result("b"), result("a", 42), result("a", 29)))
    assert [row.error_code for row in merge_altered(request, answer, []).responses] == [42, 0, 29]
    assert [row.error_code for row in merge_altered(request, None, [result("a", 42)]).responses] == [42, -1, 42]


def test_unrequested_results_come_last() -> None:
    answer = AlterConfigsResponse(0, (result("z"), result("a")))
    assert merge_altered(incremental(change("a")), answer, []).responses == (result("a"), result("z"))


# --- DescribeConfigs --------------------------------------------------------------------------------------------------

OUR_ROW = DescribedConfig(
    IN, "1000", False, DYNAMIC_TOPIC_CONFIG, False, (ConfigSynonym(IN, "1000", DYNAMIC_TOPIC_CONFIG),), LONG, "a limit"
)
BARE_ROW = OUR_ROW._replace(synonyms=(), documentation=None)
THEIR_ROW = DescribedConfig("retention.ms", "7")


def asked(*resources: tuple[str, tuple[str, ...] | None], synonyms: bool = False) -> DescribeConfigsRequest:
    rows = tuple(DescribeConfigsResource(TOPIC, name, keys) for name, keys in resources)
    return DescribeConfigsRequest(rows, synonyms, synonyms)


def described(name: str, *configs: DescribedConfig, code: int = 0) -> DescribeConfigsResult:
    return DescribeConfigsResult(code, "why" if code else None, TOPIC, name, configs)


def ours(_kind: int, name: str) -> tuple[DescribedConfig, ...]:
    return (OUR_ROW,) if name == "a" else ()


@pytest.mark.parametrize("keys", [None, (), (IN,), (IN, "retention.ms"), ("retention.ms",), ("other",)])
def test_our_rows_are_added_where_they_were_asked_for(keys: tuple[str, ...] | None) -> None:
    theirs = (THEIR_ROW,) if not keys or "retention.ms" in keys else ()
    answer = DescribeConfigsResponse(5, (described("a", *theirs), described("b", THEIR_ROW)))
    merged = merge_described(asked(("a", keys), ("b", keys)), answer, ours)
    added = (BARE_ROW,) if not keys or IN in keys else ()
    assert merged == (5, (described("a", *theirs, *added), described("b", THEIR_ROW)))


def test_synonyms_and_documentation_are_for_clients_that_want_them() -> None:
    answer = DescribeConfigsResponse(0, (described("a"),))
    assert merge_described(asked(("a", None), synonyms=True), answer, ours).results[0].configs == (OUR_ROW,)
    assert merge_described(asked(("a", None)), answer, ours).results[0].configs == (BARE_ROW,)


def test_a_resource_with_an_error_gets_no_rows() -> None:
    answer = DescribeConfigsResponse(0, (described("a", code=DENIED),))
    assert merge_described(asked(("a", None)), answer, ours) == answer


def test_our_row_replaces_one_of_the_same_key() -> None:
    answer = DescribeConfigsResponse(0, (described("a", DescribedConfig(IN, "a broker that knows it"), THEIR_ROW),))
    merged = merge_described(asked(("a", None)), answer, ours)
    assert merged.results[0].configs == (THEIR_ROW, BARE_ROW)


def test_descriptions_come_in_the_order_of_the_request() -> None:
    request = asked(("b", None), ("a", ("x",)), ("c", None), ("a", (IN,)))
    rows = (described("z"), described("a"), described("c", code=3), described("a"), described("b"))
    merged = merge_described(request, DescribeConfigsResponse(0, rows), ours)
    assert merged.results == (
        described("b"),
        described("a"),
        described("c", code=3),
        described("a", BARE_ROW),
        described("z"),
    )
