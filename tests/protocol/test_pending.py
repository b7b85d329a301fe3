# The order of answers.

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from protocol.pending import LOCAL, PASS, Pending


def test_a_local_answer_goes_at_once_when_nothing_is_owed() -> None:
    out: list[Any] = []
    pending = Pending()
    pending.answer_locally(b"ours", out)
    assert out == [b"ours"]
    assert len(pending) == 0


def test_a_local_answer_waits_behind_what_is_owed() -> None:
    out: list[Any] = []
    pending = Pending()
    pending.entries.append((1, PASS))
    pending.answer_locally(b"ours", out)
    pending.entries.append((2, PASS))
    pending.answer_locally(b"ours too", out)
    pending.release(out)
    assert out == []
    pending.entries.popleft()
    pending.release(out)
    assert out == [b"ours"]
    pending.entries.popleft()
    pending.release(out)
    assert out == [b"ours", b"ours too"]


@given(st.lists(st.sampled_from(["request", "local", "answer"]), max_size=40))
def test_answers_leave_in_the_order_of_the_requests(steps: list[str]) -> None:
    pending, out, asked = Pending(), [], 0
    for step in steps:
        if step == "request":
            pending.entries.append((asked, PASS))
            asked += 1
        elif step == "local":
            pending.answer_locally(asked, out)  # type: ignore[arg-type]
            asked += 1
        elif pending.entries:
            out.append(pending.entries.popleft()[0])
            pending.release(out)
    assert out == list(range(len(out)))
    left = [entry[2] if entry[1] == LOCAL else entry[0] for entry in pending.entries]
    assert out + left == list(range(asked))
