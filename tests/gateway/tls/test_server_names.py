# Which broker a server name means: names made of a pattern lead back to their node id, and nothing else leads anywhere.

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tls.server_names import NO_SERVER_NAME, NODE_ID, UNKNOWN_SERVER_NAME, ServerNames, UnknownServerName

NAMES = ServerNames("kafka.example", "broker-$(node_id).kafka.example")
node_ids = st.integers(0, 2**31 - 1)
labels = st.text("abcz019-", max_size=8)


@st.composite
def patterns(draw: st.DrawFn) -> ServerNames:
    """Also such as begin or end with the node id, or have digits beside it."""
    behind = draw(labels) + draw(st.sampled_from(("", ".k", ".9.k")))
    return ServerNames("boot.example", draw(labels) + NODE_ID + behind)


def by_regex(names: ServerNames, name: str) -> int | None:
    """The oracle: whether the pattern as a regular expression has that name, and with which number."""
    before, behind = names.brokers.split(NODE_ID)
    found = re.fullmatch(re.escape(before) + "([0-9]+)" + re.escape(behind), name)
    if found is None or str(int(found[1])) != found[1] or int(found[1]) >= 2**31:
        return None
    return int(found[1])


@given(patterns(), node_ids)
def test_a_brokers_name_leads_back_to_it(names: ServerNames, node_id: int) -> None:
    for name in (names.broker_name(node_id), names.broker_name(node_id).upper(), names.broker_name(node_id) + "."):
        assert names.find_broker(name) == node_id


@given(patterns(), st.text("abcz019-.AZk", max_size=20) | st.text(max_size=20))
def test_any_other_name_is_refused(names: ServerNames, name: str) -> None:
    wanted = by_regex(names, name.lower().removesuffix("."))
    if wanted is not None:
        assert names.find_broker(name) == wanted
        return
    with pytest.raises(UnknownServerName) as refused:
        names.find_broker(name)
    assert refused.value.reason == (UNKNOWN_SERVER_NAME if name else NO_SERVER_NAME)


@given(patterns(), node_ids, st.integers(0, 30), st.sampled_from("0-.9x"))
def test_a_name_with_a_letter_more_is_another_brokers_or_nobodys(
    names: ServerNames, node_id: int, at: int, letter: str
) -> None:
    name = names.broker_name(node_id)
    changed = name[:at] + letter + name[at:]
    wanted = by_regex(names, changed.removesuffix("."))
    if wanted is None:
        with pytest.raises(UnknownServerName):
            names.find_broker(changed)
    else:
        assert names.find_broker(changed) == wanted


@pytest.mark.parametrize("name", ["kafka.example", "KAFKA.Example", "kafka.example."])
def test_the_bootstraps_name_is_nobodys_in_particular(name: str) -> None:
    assert NAMES.find_broker(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "broker-.kafka.example",
        "broker-01.kafka.example",
        "broker--1.kafka.example",
        "broker-1.kafka.example.evil",
        "evil.broker-1.kafka.example",
        "broker-1.kafka.example..",
        "broker-2147483648.kafka.example",
        "broker-1²3.kafka.example",
        "127.0.0.1",
    ],
)
def test_names_that_are_nearly_a_brokers_are_not(name: str) -> None:
    with pytest.raises(
        UnknownServerName, match=re.escape(f"{name!r} is neither kafka.example nor one like broker-$(node_id)")
    ):
        NAMES.find_broker(name)


def test_a_long_name_is_said_in_part() -> None:
    with pytest.raises(UnknownServerName) as refused:
        NAMES.find_broker("x" * 10_000)
    assert len(str(refused.value)) < 400


def test_a_client_without_a_server_name_is_told_what_to_write() -> None:
    with pytest.raises(UnknownServerName) as refused:
        NAMES.find_broker(None)
    assert "sent no server name (SNI)" in str(refused.value)
    assert "its bootstrap.servers must name kafka.example" in str(refused.value)
    assert refused.value.reason == NO_SERVER_NAME


@pytest.mark.parametrize(
    ("bootstrap", "brokers", "problem"),
    [
        ("kafka.example", "broker.kafka.example", "must have $(node_id) once"),
        ("kafka.example", "$(node_id).$(node_id).example", "must have $(node_id) once"),
        ("1.kafka.example", "$(node_id).kafka.example", "is a broker's as well"),
        ("10.0.0.1", "b$(node_id).kafka.example", "10.0.0.1 is not a valid host name"),
        ("kafka_.exa mple", "b$(node_id).kafka.example", "is not a valid host name"),
        ("kafka.example", "-$(node_id).kafka.example", "is not a valid host name"),
        ("kafka.example", "b$(node_id)." + "x" * 64, "is not a valid host name"),
        ("kafka.example", "b$(node_id)", ""),
        ("b", "b$(node_id)", ""),
    ],
)
def test_names_that_can_not_tell_brokers_apart_are_found(bootstrap: str, brokers: str, problem: str) -> None:
    said = ServerNames(bootstrap, brokers).find_problem()
    assert problem in said
    assert bool(problem) == bool(said)
