# An operator's override: its text, and what holds by it.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.definitions.policy_records import AlterationHead, ChangeSource, decode_record, encode_alteration
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    InvalidPolicy,
    PolicyChange,
    PolicyError,
    PolicyKey,
    PolicyOperation,
    ValueEnd,
)
from policies.storage import (
    AffectedTopics,
    InvalidOverride,
    ReplicaPlacement,
    SoftHard,
    StorageFactor,
    StorageOverride,
    apply_override,
    assess_volumes,
    find_affected,
)
from tests.policies.storage.storage_play import GB, SOFT_HARD, volume

KEY = PolicyKey.of_storage()
REPLICAS = {1: frozenset({"one"}), 2: frozenset({"two"})}
WHY = "an operator pauses all producers until then: a disk"


@given(st.sampled_from(["PAUSE", "OPEN"]), st.text(max_size=200), st.booleans())
def test_the_text_says_all_of_it(state: str, reason: str, force: bool) -> None:
    try:
        made = StorageOverride(state, reason, force).validate_override()  # type: ignore[arg-type]
    except InvalidOverride:
        return
    assert StorageOverride.parse_text(str(made)) == made


@pytest.mark.parametrize(
    "text", ["", "PAUSE:", "THROTTLE: x", "PAUSE forced: x", "OPEN: a\nb", "OPEN:  a", "open: x", f"OPEN: {'a' * 201}"]
)
def test_another_text_is_none(text: str) -> None:
    with pytest.raises(InvalidOverride):
        StorageOverride.parse_text(text)
    with pytest.raises(PolicyError, match="override of storage protection"):
        PolicySet().alter_policies([PolicyOperation(KEY, text, 1000)])


def test_it_is_a_policy_that_ends_and_that_no_document_prunes() -> None:
    kept = PolicySet().alter_policies([PolicyOperation(KEY, "PAUSE: a disk", 5000)], now_ms=1000)
    (change,) = kept.changes_since(PolicySet())
    (record, head) = encode_alteration([change], AlterationHead(1, "token", 1000, ChangeSource("alice", "rest"), 1))
    entry = decode_record(*record)
    assert (entry.key, entry.value, entry.end) == (KEY, "PAUSE: a disk", ValueEnd(5000, None))  # type: ignore[union-attr]
    assert decode_record(*head) is not None
    assert entry.past.source == ChangeSource("alice", "rest")  # type: ignore[union-attr]
    assert kept.diff_values({}, prune=True) == []
    assert kept.revert_expired(5000).changes == {}
    assert (kept.tenant_groups(), kept.namespace_groups(), kept.group_limits()) == ({}, {}, {})
    assert [str(each.key) for each in kept.list_settings()] == ["override of storage protection"]
    with pytest.raises(InvalidPolicy, match="it has no name"):
        PolicyKey("storage", "x", "override").validate_key()
    assert PolicyChange(KEY, None, None, None).key.validate_key() == KEY


def held(frees: dict[int, float], policy: SoftHard = SOFT_HARD) -> tuple[object, tuple[AffectedTopics, ...]]:
    said = assess_volumes([volume(free * GB, broker_id) for broker_id, free in frees.items()], policy, False)
    affected = find_affected(said, ReplicaPlacement(REPLICAS), {})
    assert affected is not None
    return said, affected


@pytest.mark.parametrize("by_topic", [False, True])
def test_a_pause_is_for_all(by_topic: bool) -> None:
    said, affected = held({1: 50, 2: 50})
    factor = StorageFactor(1.0, "valid")
    found = apply_override(StorageOverride("PAUSE"), WHY, factor, affected, said, by_topic=by_topic)  # type: ignore[arg-type]
    assert found == (StorageFactor(0.0, "operator", WHY), None, ())


@pytest.mark.parametrize("frees", [{1: 50, 2: 50}, {1: 15, 2: 50}, {1: 15, 2: 12}])
@pytest.mark.parametrize("origin", ["valid", "kept", "fallback", "fail-safe"])
def test_an_opening_lifts_what_is_no_hard_limit(frees: dict[int, float], origin: str) -> None:
    """A throttle, a fallback, and a fail-safe."""
    said, affected = held(frees)
    factor = StorageFactor(0.0, origin, "x")  # type: ignore[arg-type]
    found = apply_override(StorageOverride("OPEN"), WHY, factor, None, said, by_topic=False)  # type: ignore[arg-type]
    assert (found.factor.value, found.affected, found.full) == (1.0, None, ())
    found = apply_override(StorageOverride("OPEN"), WHY, factor, affected, said, by_topic=True)  # type: ignore[arg-type]
    assert (found.factor.value, found.affected, found.full) == (1.0, (), ())


def test_an_opening_never_opens_a_hard_limit_but_by_force() -> None:
    said, affected = held({1: 15, 2: 5})
    paused = StorageFactor(0.0, "valid", "broker 2 is full")
    everybody = apply_override(StorageOverride("OPEN"), WHY, paused, None, said, by_topic=False)  # type: ignore[arg-type]
    assert everybody == (paused, None, ("broker 2 volume /data/0",))
    by_topic = apply_override(StorageOverride("OPEN"), WHY, paused, affected, said, by_topic=True)  # type: ignore[arg-type]
    assert by_topic.affected is not None
    assert [(each.topics, each.value) for each in by_topic.affected] == [(("two",), 0.0)], "the slowed one is let in"
    assert (by_topic.factor.value, by_topic.factor.origin) == (0.0, "operator")
    forced = apply_override(StorageOverride("OPEN", "", True), WHY, paused, affected, said, by_topic=True)  # type: ignore[arg-type]
    assert (forced.factor.value, forced.affected, forced.full) == (1.0, (), ())
    unknown = apply_override(StorageOverride("OPEN"), WHY, StorageFactor(0.0, "fallback"), None, said, by_topic=True)  # type: ignore[arg-type]
    assert unknown.factor.origin == "fallback", "who knows which topics are there"
