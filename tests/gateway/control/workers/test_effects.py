# The effects that limits in force can have: by what there is of each, and by whether it is enforced.

from __future__ import annotations

import pytest

from gateway import config
from gateway.control.workers.effects import possible_effects
from policies.definitions.policy_set import PolicySet
from policies.usage import NOTES, OUTCOMES, REASONS

UPSTREAM = "upstream: {bootstrap_servers: broker:9092}\n"
TOTAL = "thresholds: {total.bytes.in.per.sec.threshold: 10MB"
QUOTAS = "client_quotas: [{client_id: app, producer_byte_rate: 1MB}]\n"
GROUPS = "resource_groups: {groups: {gold: {publishRateInBytes: 1MB}}, topic_pattern: '{tenant}.{topic}'}\n"
STORAGE = "storage: {min.available.ratio: 0.1}\n"


def effects(text: str) -> set[tuple[str, str]]:
    settings = config.parse_settings(UPSTREAM + text)
    return set(possible_effects(PolicySet(settings.policy_values()), settings))


def both(reason: str) -> set[tuple[str, str]]:
    return {("rejected", reason), ("delayed", reason), ("rejected", "fence"), ("dropped", "connection-lost")}


def test_without_limits_there_are_none() -> None:
    assert effects("") == set()
    assert effects("thresholds: {topics: {a: {bytes.in.per.sec.threshold: 1MB}}}\n") == set()  # without a total
    assert effects("storage: {check_interval: 0}\n") == set()


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (TOTAL + "}\n", ["topic-threshold"]),
        (QUOTAS, ["client-quota"]),
        (GROUPS, ["resource-group"]),
        (STORAGE, ["storage-throttle", "storage-pause"]),
    ],
)
def test_each_limit_has_its_own(text: str, reasons: list[str]) -> None:
    assert effects(text) == set().union(*map(both, reasons))
    observed = {("would_reject", reason) for reason in reasons} | {("would_delay", reason) for reason in reasons}
    assert effects(text + "mode: observe\n") == observed - {("would_delay", "storage-pause")}


def test_what_is_enforced_for_some_is_observed_for_the_others() -> None:
    some = both("topic-threshold") | {("would_reject", "topic-threshold"), ("would_delay", "topic-threshold")}
    assert effects(TOTAL + ", enforce_percent: 5}\n") == some
    assert effects(TOTAL + ", enforce_percent: 0}\n") == some - both("topic-threshold")


def test_bytes_are_dropped_for_their_limit_only_where_that_is_configured() -> None:
    assert effects(QUOTAS + "acks0: drop\n") == both("client-quota") | {("dropped", "acks0-limit")}
    assert effects("acks0: drop\n") == set()


def test_all_of_them_are_outcomes_and_notes_with_their_reasons() -> None:
    found = effects(TOTAL + ", enforce_percent: 5}\nacks0: drop\n" + QUOTAS + GROUPS + STORAGE)
    assert all(outcome in (*OUTCOMES, *NOTES) and reason in REASONS[outcome] for outcome, reason in found)
