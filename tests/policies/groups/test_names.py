# Names of groups, tenants and namespaces, and every spelling of a rate.

from __future__ import annotations

from collections.abc import Callable

import pytest

from policies.groups.names import (
    EXISTS,
    GROUP_KEYS,
    PROPOSAL_KEYS,
    GroupNameError,
    check_group,
    check_namespace,
    check_rate,
    check_tenant,
    rate_key,
    rate_text,
)


def test_each_spelling_of_a_rate_is_known() -> None:
    seed = ["publishRateInmsgs", "publishRateInbytes", "DispatchRateInmsgs", "DispatchRateInbytes"]
    assert [rate_key(name) for name in seed] == list(GROUP_KEYS)
    assert [rate_key(name) for name in PROPOSAL_KEYS.values()] == list(GROUP_KEYS)
    assert [rate_key(name.upper()) for name in GROUP_KEYS] == list(GROUP_KEYS)
    assert [rate_key(name) for name in ("publishRate", EXISTS, "", "publishRateInMsgs ")] == [None] * 4


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (check_group, ["gold", "a.b_c-d=e:f", "g" * 200], ["", ".", "..", "a b", "a/b", "ü", "g" * 201, "a\n"]),
        (
            check_tenant,
            ["acme", "Acme Corp, Inc.", "ü"],
            ["", ".", "..", "a/b", "a\n", "\x1b[2J", "t" * 201, " ", "a "],
        ),
        (
            check_namespace,
            ["acme/orders", "Acme Corp/x"],
            ["acme", "/orders", "acme/", "a/b/c", "a/..", "a/b\n", " / "],
        ),
    ],
)
def test_names(check: Callable[[str], None], good: list[str], bad: list[str]) -> None:
    for name in good:
        check(name)
    for name in bad:
        with pytest.raises(GroupNameError):
            check(name)


def test_a_rate_is_above_nothing_and_finite() -> None:
    for value in (0.001, 1, 2.0**63):
        check_rate("publishRateInMsgs", value)
    for value in (0, -1, float("inf"), float("nan"), 2.0**64):
        with pytest.raises(GroupNameError, match="or -1 or null for none"):
            check_rate("publishRateInMsgs", value)


def test_a_rate_is_shown_with_its_unit() -> None:
    assert rate_text("publishRateInBytes", 12e6) == "12,000,000 bytes/s"
    assert rate_text("dispatchRateInMsgs", 1000) == "1,000 messages/s"
    assert rate_text("dispatchRateInMsgs", 0.5) == "0.500 messages/s"
