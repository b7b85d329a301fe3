# Which group a topic or principal is in: templates, regular expressions, what replaces what, and that no name keeps a
# pattern busy.

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.groups.finder import (
    DEFAULT_PATTERN,
    MAX_NAME_CHARS,
    MAX_PATTERN_CHARS,
    GroupPatternError,
    GroupResolver,
    TenantNamespace,
    check_pattern,
)
from tests.effort import growth

TENANTS = {"acme": "gold"}
NAMESPACES = {"acme/orders": "silver"}


def finder(topic: str = DEFAULT_PATTERN, principal: str = "") -> GroupResolver:
    return GroupResolver(topic, principal, TENANTS, NAMESPACES)


def place(pattern: str, topic: str) -> TenantNamespace | None:
    return finder(pattern).find_namespace(topic, "")


# --- which group ------------------------------------------------------------------------------------------------------


def test_a_namespace_has_its_own_group_or_its_tenants() -> None:
    find = finder()
    assert find.find_group("acme.orders.new", "User:x") == "silver"
    assert find.find_group("acme.clicks.new", "User:x") == "gold"
    assert find.find_group("other.orders.new", "User:x") is None


def test_a_topic_that_does_not_fit_has_no_place() -> None:
    find = finder()
    for name in ("acme", "acme.orders", "acme.orders.", ".orders.new", "acme..new", "..", ""):
        assert find.find_namespace(name, "User:x") is None
        assert find.find_group(name, "User:x") is None


def test_a_tenant_that_is_called_like_another_ones_namespace_is_not_confused_with_it() -> None:
    find = GroupResolver(DEFAULT_PATTERN, "", {}, {"a/b": "one"})
    assert find.find_group("a.b.t", "") == "one"
    assert find.find_group("b.a.t", "") is None


def test_the_topics_name_goes_before_the_principal() -> None:
    find = finder(principal=r"User:(?P<tenant>\w+)-(?P<namespace>\w+)")
    assert find.find_group("other.x.new", "User:acme-orders") is None  # its name says whose it is
    assert find.find_group("plain", "User:acme-orders") == "silver"
    assert find.find_group("plain", "User:acme-x") == "gold"
    assert find.find_group("plain", "User:acme") is None


def test_a_principal_may_say_the_tenant_alone() -> None:
    find = finder(principal=r"User:CN=[^,]+,O=(?P<tenant>[^,]+).*")
    assert find.find_namespace("plain", "User:CN=app,O=acme,C=DE") == TenantNamespace("acme", "")
    assert find.find_group("plain", "User:CN=app,O=acme,C=DE") == "gold"


def test_only_with_a_principal_pattern_and_attachments_the_answer_depends_on_the_principal() -> None:
    assert not finder().by_principal
    assert finder(principal="User:{tenant}").by_principal
    assert not GroupResolver(DEFAULT_PATTERN, "User:{tenant}", {}, {}).by_principal
    assert finder("", "User:{tenant}").find_group("acme.orders.new", "User:acme") == "gold"


def test_without_attachments_there_is_nothing_to_find() -> None:
    assert GroupResolver(DEFAULT_PATTERN, "", {}, {}).find_group("acme.orders.new", "") is None


# --- templates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "topic", "found"),
    [
        (DEFAULT_PATTERN, "acme.orders.new", ("acme", "orders")),
        (DEFAULT_PATTERN, "acme.orders.new.eu-1", ("acme", "orders")),  # the topic may hold the separator
        (DEFAULT_PATTERN, "acme.orders..", ("acme", "orders")),
        ("{tenant}.{topic}", "acme.orders.new", ("acme", "")),
        ("{tenant}_{namespace}.{topic}", "acme_orders.new", ("acme", "orders")),
        ("{tenant}_{namespace}.{topic}", "ac.me_orders.new", None),
        ("{tenant}--{topic}", "ac-me--new--x", ("ac-me", "")),  # one '-' is no separator
        ("{topic}.{tenant}", "orders.new.acme", ("acme", "")),
        ("prod.{tenant}.{namespace}.{topic}", "prod.acme.orders.new", ("acme", "orders")),
        ("prod.{tenant}.{namespace}.{topic}", "prodXacme.orders.new", None),  # '.' is no wildcard
        ("{namespace}.{tenant}.{topic}", "orders.acme.new", ("acme", "orders")),
        ("{tenant}-{namespace}", "acme-orders", ("acme", "orders")),
        ("{tenant}-{namespace}", "acme-orders-new", None),
    ],
)
def test_a_template_is_read(pattern: str, topic: str, found: tuple[str, str] | None) -> None:
    assert place(pattern, topic) == (found and TenantNamespace(*found))


@given(
    st.from_regex(r"[a-z_-]{1,20}", fullmatch=True),
    st.from_regex(r"[a-z_-]{1,20}", fullmatch=True),
    st.from_regex(r"[a-z._-]{1,100}", fullmatch=True),
)
def test_a_name_put_together_by_the_template_is_taken_apart_again(tenant: str, namespace: str, topic: str) -> None:
    assert place(DEFAULT_PATTERN, f"{tenant}.{namespace}.{topic}") == TenantNamespace(tenant, namespace)


# --- regular expressions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "topic", "found"),
    [
        (r"(?P<tenant>[a-z]+)-(?P<namespace>[a-z]+)-.*", "acme-orders-new", ("acme", "orders")),
        (r"(?P<tenant>[a-z]+)-(?P<namespace>[a-z]+)-.*", "x.acme-orders-new", None),  # the whole name
        (r"(?P<tenant>[a-z]+)(?:-(?P<namespace>[a-z]+))?\..*", "acme.new", ("acme", "")),
        (r"(?P<tenant>[a-z]*)\..*", ".new", None),  # an empty tenant is none
        (r"(?i:(?P<tenant>a+))\..*", "AAA.new", ("AAA", "")),
        (r"(?P<tenant>(?:eu|us){1,2})\..*", "euus.new", ("euus", "")),
    ],
)
def test_a_regular_expression_is_read(pattern: str, topic: str, found: tuple[str, str] | None) -> None:
    assert place(pattern, topic) == (found and TenantNamespace(*found))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("{namespace}.{topic}", "{tenant} is missing: for example {tenant}.{namespace}.{topic}"),
        ("{tenant}{topic}", "two parts without anything between them"),
        ("{tenant}.{tenant}.{topic}", "{tenant} is there twice"),
        ("{tenant}.{name}", "{name} is not part of a template: {tenant}, {namespace} and {topic} are"),
        ("(", "not a valid regular expression (RE2's): missing ): ("),
        ("[a-z]+", r"says nothing of a tenant: write a template such as {tenant}.{namespace}.{topic}"),
        ("(?P<tenant>a)(?P<team>b)", "(?P<team>…) means nothing: tenant, namespace and topic do"),
        ("(?P<tenant>" + "a" * MAX_PATTERN_CHARS + ")", "1000 are the most"),
        ("(?P<tenant>a)-x|y-(?P<tenant>b)", "(?P<tenant>…) is there twice"),
        (r"(?P<tenant>(a+)\2)", "it has no back-references: say what a part may hold"),
        ("(?P<tenant>a+)(?P=tenant)", "it has no back-references: say what a part may hold"),
        (
            "(?P<tenant>(?:(?!--).)+)--.*",
            "it has no look-around, atomic groups or conditions: say what a part may hold",
        ),
        ("(?P<tenant>.*(?<=a))", "it has no look-around"),
        ("(?P<tenant>(?>a+))", "it has no look-around, atomic groups"),
        (r"(?P<tenant>[^.]++)\..*", "it needs no possessive repetition: write [^.]+ for [^.]++"),
        (r"(?P<tenant>a)\Z", "invalid escape sequence: \\Z"),
        ("(?P<tenant>a{1001})", "invalid repetition size: {1001}"),
        ("(?P<tenant>\ud800)", "not a valid regular expression (RE2's): "),
    ],
)
def test_a_pattern_that_can_not_be_is_refused_with_what_would_be_right(pattern: str, text: str) -> None:
    for check in (lambda: check_pattern(pattern), lambda: finder("", pattern)):
        with pytest.raises(GroupPatternError) as error:
            check()
        assert text in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        (r"(?P<tenant>.*).*.*.*x", "a"),
        (r"(?P<tenant>[a-z]+).*(?:-.*)?x", "-"),
        (r"(?P<tenant>(?:(?:a|a).*){2}.*)x", "a"),
        (r"(?P<tenant>(a+)+)b", "a"),
        (r"(?P<tenant>(a|aa)+)b", "a"),
        (r"(?P<tenant>(?:a?){25}a{25})b", "a"),
        ("(?P<tenant>" + "(?:" * 150 + "a+" + ")+" * 150 + ")b", "a"),
        ("{topic}.{tenant}.{namespace}.x", "."),
        ("{topic}--{tenant}--{namespace}", "-a"),
    ],
)
def test_an_accepted_pattern_keeps_no_worker_busy_for_long(pattern: str, part: str) -> None:
    find = finder(pattern)

    def of_length(size: int) -> Callable[[], None]:
        name = part * (size // len(part))

        def often() -> None:
            for _ in range(100):
                assert find.find_namespace(name, "") is None

        return often

    # 8 in proportion; 64 where a part is tried again for each character, and years where parts are nested.
    assert growth(of_length, 31, 8, bound=20) < 20


def test_a_name_with_half_a_character_has_no_place() -> None:
    assert finder(r"(?P<tenant>a+).*").find_namespace("a\ud800", "") is None


def test_a_longer_name_than_a_topic_can_have_has_no_place() -> None:
    find = finder("", "User:{tenant}")
    assert find.find_namespace("t", "User:" + "a" * (MAX_NAME_CHARS - 5)) is not None
    assert find.find_namespace("t", "User:" + "a" * (MAX_NAME_CHARS - 4)) is None


@given(st.text(max_size=40))
def test_any_text_is_a_pattern_or_a_pattern_error(pattern: str) -> None:
    try:
        find = finder(pattern, pattern)
    except GroupPatternError:
        return
    find.find_group("acme.orders.new", "User:x")
