# For which clients a policy is enforced while it is brought in by steps.

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision import PartitionLimits
from policies.definitions.rollout import PolicyRollout, rollout_place

percents = st.floats(0, 100)
names = st.text(max_size=20)


@given(names, names, percents, percents)
def test_a_client_that_is_in_stays_in_when_there_are_more(user: str, client_id: str, one: float, other: float) -> None:
    fewer, more = sorted((one, other))
    in_fewer = "quota" not in PolicyRollout(quota=fewer).observed_policies(f"User:{user}", client_id)
    in_more = "quota" not in PolicyRollout(quota=more).observed_policies(f"User:{user}", client_id)
    assert in_more >= in_fewer


@given(names, names)
def test_no_client_is_in_at_0_and_every_client_at_100(user: str, client_id: str) -> None:
    policies = {"quota", "group", "threshold"}
    assert PolicyRollout().observed_policies(f"User:{user}", client_id) == set()
    assert PolicyRollout(0, 0, 0).observed_policies(f"User:{user}", client_id) == policies
    assert policies < set(PartitionLimits._fields)


@pytest.mark.parametrize("kind", ["User:client-{}", "User:CN={},OU=payments"])
@pytest.mark.parametrize("percent", [1, 5, 50, 95])
def test_so_many_of_the_clients_are_in(kind: str, percent: float) -> None:
    rollout = PolicyRollout(threshold=percent)
    found = sum(not rollout.observed_policies(kind.format(number), "app") for number in range(10_000))
    assert found / 100 == pytest.approx(percent, abs=1.5)


def test_it_is_the_principal_that_counts_and_the_client_id_of_clients_without_one() -> None:
    assert rollout_place("User:alice", "a") == rollout_place("User:alice", "b") != rollout_place("User:bob", "a")
    for nobody in ("User:ANONYMOUS", "unknown", "User:"):
        assert rollout_place(nobody, "a") == rollout_place("User:ANONYMOUS", "a") != rollout_place(nobody, "b")
    assert rollout_place("User:ANONYMOUS", "User:alice") == rollout_place("User:alice", "")


def test_a_key_moves_clients_that_choose_their_name_and_nobody_else() -> None:
    ids = [f"client-{number}" for number in range(1000)]
    places = {
        key: [rollout_place("User:ANONYMOUS", name, key) for name in ids] for key in (b"", b"a secret", bytes(64))
    }
    for one, other in itertools.combinations(places.values(), 2):
        both_low = sum(a < 50 and b < 50 for a, b in zip(one, other, strict=True))
        assert both_low == pytest.approx(250, abs=60)  # the one says nothing about the other
    assert rollout_place("User:alice", "app", b"a secret") == rollout_place("User:alice", "app")
    key, name = b"a secret", next(name for name in ids if places[b"a secret"][ids.index(name)] < 50)
    assert PolicyRollout(quota=50).observed_policies("User:ANONYMOUS", name, key) == frozenset()


def test_a_place_is_the_same_in_every_release() -> None:
    """Or an upgrade would let some out, and take others in."""
    assert rollout_place("User:alice", "") == pytest.approx(51.750109489554355)


def test_policies_are_brought_in_one_by_one_and_the_same_clients_come_first() -> None:
    at = rollout_place("User:alice", "")
    assert PolicyRollout(quota=at + 1, group=at - 1).observed_policies("User:alice", "") == {"group"}
    assert PolicyRollout(quota=at + 1, group=at + 1, threshold=0).observed_policies("User:alice", "") == {"threshold"}
