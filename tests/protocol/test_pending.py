# The order of answers.

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.pending import LOCAL, PASS, Pending


def test_a_local_answer_goes_at_once_when_nothing_is_owed() -> None:
    pending = Pending()
    pending.answer(b"ours")
    assert pending.out == [b"ours"]
    assert len(pending) == 0


def test_a_local_answer_waits_behind_what_is_owed() -> None:
    pending = Pending()
    pending.entries.append((1, PASS))
    pending.answer(b"ours")
    pending.entries.append((2, PASS))
    pending.answer(b"ours too")
    pending.release()
    assert pending.out == []
    pending.entries.popleft()
    pending.release()
    assert pending.out == [b"ours"]
    pending.entries.popleft()
    pending.release()
    assert pending.out == [b"ours", b"ours too"]


@given(st.lists(st.sampled_from(["request", "local", "answer"]), max_size=40))
def test_answers_leave_in_the_order_of_the_requests(steps: list[str]) -> None:
    pending, asked = Pending(), 0
    for step in steps:
        if step == "request":
            pending.entries.append((asked, PASS))
            asked += 1
        elif step == "local":
            pending.answer(asked)  # type: ignore[arg-type]
            asked += 1
        elif pending.entries:
            pending.out.append(pending.entries.popleft()[0])
            pending.release()
    assert pending.out == list(range(len(pending.out)))
    left = [entry[2] if entry[1] == LOCAL else entry[0] for entry in pending.entries]
    assert pending.out + left == list(range(asked))
