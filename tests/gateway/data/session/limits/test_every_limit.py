# What every limit has in common: who is over it is told so, who is internal isn't asked, and one that only observes
# changes nothing.

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.examples import matrix
from tests.gateway.data.play import Play, answer, decode_answer, request
from tests.gateway.data.session.limits_play import (
    SIZE,
    TOPIC,
    full_volume,
    group,
    pause,
    quota,
    storage,
    thresholds,
    volume,
)

Limit = Callable[..., None]
DELAYS: list[tuple[Limit, str]] = [
    (quota, "client-quota"),
    (group, "resource-group"),
    (storage, "storage-throttle"),
    (volume, "storage-throttle"),
    (thresholds, "topic-threshold"),
]
HOLDS: list[tuple[Limit, str]] = [(pause, "storage-pause"), (full_volume, "storage-pause")]


def frame(correlation: int = 1) -> bytes:
    return request(correlation, {TOPIC: [0]})


@pytest.mark.parametrize(("limit", "reason", "step"), matrix(DELAYS, [0, 1, 7]))
def test_a_client_over_a_limit_is_delayed_and_told_so(limit: Limit, reason: str, step: int) -> None:
    on = Play().named()
    limit(on, observes=False)
    assert on.client(frame(), step) == (frame(), b"")
    assert decode_answer(on.broker(answer(1, {TOPIC: {0: (0, 0)}})))[1] == 1000
    assert on.session.hold.muted_until == on.now + 1.0
    assert on.rows()[TOPIC, "delayed", reason] == (SIZE, 1, 1)
    assert on.client(frame(2), step) == (b"", b"")
    assert on.session.hold.held_until == on.now + 1.0


@pytest.mark.parametrize(("limit", "_"), DELAYS + HOLDS)
@pytest.mark.seed("035.21")
def test_internal_clients_are_under_no_limit(limit: Limit, _: str) -> None:
    on = Play(internal_principals=("User:mirror",)).named()
    on.session.client.set_principal("User:mirror")
    limit(on, observes=False)
    for correlation in range(5):
        assert on.client(frame(correlation)) == (frame(correlation), b"")
        reply = answer(correlation, {TOPIC: {0: (0, 0)}})
        assert on.broker(reply) == reply
    assert on.session.hold.muted_until == 0.0
    other = on.beside()
    other.client(frame(9))
    assert (other.session.hold.muted_until or other.session.hold.held_until) > on.now


@pytest.mark.parametrize("mode", ["enforce", "observe"])  # the gateway's own
@pytest.mark.parametrize(
    ("limit", "reason", "outcome"),
    [(*each, "would_delay") for each in DELAYS] + [(*each, "would_reject") for each in HOLDS],
)
def test_a_limit_that_observes_touches_nothing_and_counts_what_would_have_been(
    limit: Limit, reason: str, outcome: str, mode: str
) -> None:
    on = Play(mode=mode).named()
    limit(on, observes=True)
    assert on.client(frame()) == (frame(), b"")
    reply = answer(1, {TOPIC: {0: (0, 0)}})
    assert on.broker(reply) == reply
    assert on.session.hold.muted_until == 0.0
    assert on.rows() == {(TOPIC, "accepted", ""): (SIZE, 1, 1), (TOPIC, outcome, reason): (SIZE, 1, 1)}
