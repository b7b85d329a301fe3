# Rejected attempts against bytes that never got in: attempts of batches by chance, and what became of each of them told
# by looking at its last attempt.

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.audit.batch.dropped import DroppedBytes, count_finally_dropped, tears_attempts
from gateway.audit.batch.query import REPEAT_MS, AuditQuery, assess_integrity
from policies.idempotence.repeats import RejectedBatches


def _sums(**given: int) -> dict[str, int]:
    names = ("rejected", "dropped", "discarded", "repeats", "repeats_unknown", "rejected_again")
    return {f"{name}_bytes": given.get(name, 0) for name in names}


@pytest.mark.parametrize(
    ("given", "torn", "found"),
    [
        ({}, False, DroppedBytes(0, 0)),
        ({"rejected": 100}, False, DroppedBytes(100, 100)),
        ({"rejected": 300, "repeats": 300, "rejected_again": 200}, False, DroppedBytes(0, 0)),
        ({"rejected": 300, "repeats": 200, "rejected_again": 200}, False, DroppedBytes(100, 100)),
        ({"rejected": 300, "repeats": 200, "repeats_unknown": 30}, False, DroppedBytes(100, 70)),
        ({"rejected": 300, "repeats": 200, "repeats_unknown": 9999}, False, DroppedBytes(100, 0)),
        ({"repeats_unknown": 9999}, False, DroppedBytes(0, 0)),
        ({"rejected": 100, "dropped": 7, "discarded": 5, "repeats_unknown": 200}, False, DroppedBytes(112, 7)),
        ({"repeats": 100, "dropped": 7}, False, DroppedBytes(7, 7)),  # --from was between the attempts
        ({"rejected": 300, "repeats": 250, "rejected_again": 200}, True, DroppedBytes(100, 0)),
        ({"repeats": 100, "dropped": 7}, True, DroppedBytes(7, 7)),
    ],
)
def test_the_dropped_part_of_the_rejected_bytes(given: dict[str, int], torn: bool, found: DroppedBytes) -> None:
    assert count_finally_dropped(_sums(**given), torn) == found
    assert found.upper_bound == (found.least < found.bytes)
    unseen = count_finally_dropped(_sums(**given), torn, sees_repeats=False)
    assert unseen == DroppedBytes(found.bytes, given.get("dropped", 0))


@pytest.mark.parametrize("by", [(), ("topic",), ("principal", "client_id", "software", "group")])
def test_a_client_s_attempts_stay_together(by: tuple[str, ...]) -> None:
    assert not tears_attempts(by)
    assert tears_attempts(by, 60_000)


@pytest.mark.parametrize("name", ["reason", "outcome", "broker", "gateway", "worker"])
def test_these_tear_them_apart(name: str) -> None:
    assert tears_attempts(("topic", name))


def _attempts(chance: random.Random) -> Iterator[tuple[int, bool, str, str, bool]]:
    """(size, whether its last attempt was rejected, and of each attempt: outcome, reason, whether it is a repeat)."""
    for _ in range(300):
        size = chance.randrange(1, 1000)
        outcomes = chance.choices(("rejected", "errored", "accepted"), (6, 1, 3), k=chance.randrange(1, 6))
        if "accepted" in outcomes:
            outcomes = outcomes[: outcomes.index("accepted") + 1]
        before = ""
        for i, outcome in enumerate(outcomes):
            reason = chance.choice(("topic-threshold", "client-quota")) if outcome == "rejected" else ""
            last = i == len(outcomes) - 1
            yield size, last and outcome == "rejected", outcome, reason, before == "rejected"
            before = outcome


@pytest.mark.parametrize("seed", range(5))
def test_sums_say_what_became_of_every_batch(seed: int) -> None:
    truth = 0
    whole = defaultdict(int, _sums())
    by_reason: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int, _sums()))
    for size, lost, outcome, reason, again in _attempts(random.Random(seed)):
        truth += size * lost
        for sums in (whole, by_reason[reason]):
            sums[f"{outcome}_bytes"] += size
            sums["repeats_bytes"] += size * again
            sums["rejected_again_bytes"] += size * (again and outcome == "rejected")
    assert count_finally_dropped(whole) == DroppedBytes(truth, truth)
    parts = [count_finally_dropped(sums, torn=True) for sums in by_reason.values()]
    assert sum(part.bytes for part in parts) >= truth >= sum(part.least for part in parts)
    assert sum(part.bytes for part in parts) < whole["rejected_bytes"]


LIFE = {
    "gateway": "gw", "boot": "b", "worker": 0, "state": "final", "lost_ms": None, "final_seq": None, "changed": 0,
    "unchecked": 0,
}  # fmt: skip
COUNTED = {"records": 9, "duplicates": 0, "conflicts": 0, "malformed": 0, "problems": {}, "samples": []}


def _sees_repeats(*spans: tuple[int, int], query: AuditQuery | None = None, **found: Any) -> bool:
    about = LIFE | {"clusters": ()}
    lives = [about | {"start_ms": start, "end_ms": end} for start, end in spans]
    return assess_integrity(COUNTED | found, lives, [], query or AuditQuery()).sees_repeats


def test_a_retry_may_be_at_another_life_within_ten_minutes() -> None:
    for later, alone in ((-1, False), (REPEAT_MS, False), (REPEAT_MS + 1, True)):
        assert _sees_repeats((1000, 2000), (2000 + later, 2000 + later + 5)) is alone
        assert _sees_repeats((2000 + later, 2000 + later + 5), (1000, 2000)) is alone
    assert not _sees_repeats((0, 10**9), (5, 6), (10**8, 10**8 + 1))


@pytest.mark.parametrize(("kind", "is_mixed"), [("topic", True), ("tables", True), ("spool", False)])
def test_a_topic_has_the_records_of_one_cluster(kind: str, is_mixed: bool) -> None:
    life = LIFE | {"start_ms": 0, "end_ms": 0}
    for clusters, several in ((["a"], False), (["a", "b"], True)):
        lives = [life | {"clusters": [each]} for each in clusters]
        trust = assess_integrity(COUNTED, lives, [], AuditQuery(), [{"kind": kind}])
        assert (trust.clusters, trust.mixes_clusters) == (clusters, several and is_mixed)
        assert trust.complete is not trust.mixes_clusters


def test_lives_outside_of_the_question_see_nothing_of_it() -> None:
    spans = (0, 10**7), (10**7, 2 * 10**7)
    for query, alone in (
        (AuditQuery((), None, None, 10**7 - 1), True),
        (AuditQuery((), None, 10**7 + 1, None), True),
        (AuditQuery((), None, 5, 10**7), False),
    ):
        assert _sees_repeats(*spans, query=query) is alone


def test_what_is_missing_may_have_been_a_retry() -> None:
    assert _sees_repeats((0, 1))
    assert not _sees_repeats((0, 1), malformed=1)


@pytest.mark.parametrize("workers", [1, 2])
def test_bounds_hold_whichever_worker_sees_the_retry(workers: int) -> None:
    chance = random.Random(workers)
    rejected = [RejectedBatches() for _ in range(workers)]
    sums, truth = defaultdict(int, _sums()), 0
    for number in range(300):
        batch = (0, number, chance.randrange(1, 1000), 1)
        for outcome in chance.choices(("rejected", "rejected", "accepted"), k=chance.randrange(1, 5)):
            seen = chance.choice(rejected)
            sums[f"{outcome}_bytes"] += batch[2]
            sums["repeats_bytes"] += seen.match_retry(7, b"t", 0, batch) or 0
            if outcome == "rejected":
                seen.record_rejection(7, b"t", 0, batch, 0.0)
            else:
                break
        truth += batch[2] * (outcome == "rejected")
    found = count_finally_dropped(sums, sees_repeats=_sees_repeats(*[(0, 1000)] * workers))
    assert found.bytes >= truth >= found.least
    assert found.upper_bound == (workers > 1)
