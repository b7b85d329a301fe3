# The readers at the ends of their buffers, for a moment: C says what Python says. `make sanitize` does it for long, and
# sees what is read besides.

from __future__ import annotations

from array import array

import pytest

from tests.hostile.boundaries import Boundaries
from tests.variants import COMPILED, module

KINDS = {"request", "answer", "written", "new_ids", "hiding", "seen", "seen of", "sums", "offsets"}


@pytest.fixture
def boundaries() -> Boundaries:
    module("protocol.produce.produce_fast", COMPILED)  # fails or skips where it was not built
    return Boundaries(seed=1)


def test_wherever_the_bytes_are_both_say_the_same(boundaries: Boundaries) -> None:
    for _ in range(1500):
        boundaries.play()
    assert boundaries.findings == []
    assert {what.split(",")[0] for what, count in boundaries.counts.items() if count} == KINDS
    for rare in ("request, careful reader", "answer, careful reader", "written, careful reader", "seen of"):
        assert boundaries.counts[rare] > 3, rare


def test_a_difference_is_found(boundaries: Boundaries, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = module("gateway.data.session.fast_path", COMPILED)
    monkeypatch.setattr(compiled, "sums_by_topic", lambda parts: [])
    monkeypatch.setattr(
        module("protocol.rewriting.metadata_topics", COMPILED), "read_new_ids", lambda *_: array("q")[1]
    )
    for _ in range(1000):
        boundaries.play()
    assert {line.split(":")[0] for line in boundaries.findings} == {"sums", "topic_ids"}
