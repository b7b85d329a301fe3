# The policies that a replay decides by, as plain values.

from __future__ import annotations

import pickle

import pytest

from policies.definitions.policy_values import PolicyKey
from policies.quotas.names import Entity, QuotaKey
from policies.whatif.rows import ReplayRules


def quota(key: str) -> PolicyKey:
    return PolicyKey.of_quota(Entity("alice", None), QuotaKey.parse(key))


@pytest.mark.parametrize(
    ("values", "alone"),
    [
        ({PolicyKey.of_broker(): 1e6, PolicyKey.of_topic("clicks"): 1e5}, True),
        ({quota("producer_byte_rate:broker_bps"): 1e6}, True),
        ({quota("producer_byte_rate:shares"): 2.0, PolicyKey.of_broker(): 1e6}, True),
        ({quota("producer_byte_rate:bps"): 1e6}, False),
        ({PolicyKey.of_group("gold"): 1.0}, False),
    ],
)
def test_brokers_are_replayed_by_themselves_unless_a_limit_holds_over_all(
    values: dict[PolicyKey, float], alone: bool
) -> None:
    assert ReplayRules(values).is_per_broker is alone


def test_the_clients_that_are_exempt() -> None:
    rules = ReplayRules(
        {},
        exempt_principals=frozenset({"User:mirror"}),
        exempt_client_ids=frozenset({"tool"}),
        exempt_clients=frozenset({("User:bob", "sync")}),
    )
    assert rules.exempts_stream((1, "clicks", "User:mirror", "x"))
    assert rules.exempts_stream((1, "clicks", "User:alice", "tool"))
    assert not rules.exempts_stream((1, "clicks", "User:alice", "app"))
    assert rules.exempts_stream((1, "clicks", "User:bob", "sync"))
    assert not rules.exempts_stream((1, "clicks", "User:bob", "app"))
    assert not rules.exempts_stream((1, "clicks", "User:alice", "sync"))


def test_they_travel_to_other_processes() -> None:
    rules = ReplayRules({PolicyKey.of_broker(): 1e6, quota("producer_byte_rate:bps"): 5.0}, topics={1: ("clicks",)})
    assert pickle.loads(pickle.dumps(rules)) == rules
