# Which files count: every order of arrival, every moment in which a writer can have been killed.

from __future__ import annotations

import itertools
import random

import pytest

from gateway.audit import commits
from gateway.audit.commits import Commit, Coverage, Group, State, UnreadableCommit, doomed, resolve

HOUR = 3_600_000


def _group(name: str, date: str = "2025-11-20") -> Group:
    return Group("usage", date, f"usage/commit={name}/date={date}", 1, 10)


def _batch(epoch: int, owner: str, number: int, at: int = 0) -> Commit:
    name = f"{owner}{number}"
    ranges: Coverage = {"t": {0: [(number * 10, number * 10 + 9)]}}
    return Commit(
        commits.BATCH, at, owner, epoch=epoch, number=number, groups=(_group(name),), coverage=ranges
    )  # fmt: skip


def _claim(epoch: int, owner: str, accepts: list[Commit], at: int = 0) -> Commit:
    return Commit(commits.CLAIM, at, owner, epoch=epoch, accepts=frozenset(each.name for each in accepts))


def _rewrite(at: int, inputs: list[Commit], name: str = "r", horizon: str = "") -> Commit:
    """Says what its inputs say: which of their rows it holds is in its group's path."""
    rows = "+".join(sorted(row for each in inputs for row in _rows_of([each])))
    coverage: Coverage = {}
    for each in inputs:
        commits.cover(coverage, each.coverage)
    replaces = frozenset(each.name for each in inputs)
    return Commit(
        commits.REWRITE, at, name, groups=(_group(rows),), coverage=coverage, replaces=replaces, horizon=horizon
    )  # fmt: skip


def _rows_of(found: list[Commit]) -> list[str]:
    paths = [group.path.split("/")[1].removeprefix("commit=") for each in found for group in each.groups]
    return sorted(row for path in paths for row in path.split("+"))


def _rows(state: State) -> list[str]:
    return _rows_of(list(state.live.values()))


A = [_batch(1, "a", number) for number in range(4)]
CLAIM_A = _claim(1, "a", [])


def test_the_order_in_which_files_are_listed_does_not_matter() -> None:
    log = [CLAIM_A, *A[:3], _rewrite(5, A[:2]), _claim(2, "b", A[:3]), _batch(2, "b", 0)]
    for order in itertools.permutations(log):
        assert _rows(resolve(order)) == ["a0", "a1", "a2", "b0"]


def test_a_batch_of_a_driver_that_should_have_been_dead_never_counts() -> None:
    claim = _claim(2, "b", A[:2])
    state = resolve([CLAIM_A, *A, claim, _batch(2, "b", 0)])
    assert _rows(state) == ["a0", "a1", "b0"]
    assert state.coverage == {"t": {0: [(0, 19)]}}
    # Nor in the eyes of a third one, which saw it and let it lie.
    assert _rows(resolve([CLAIM_A, *A, claim, _claim(3, "c", A[:2])])) == ["a0", "a1"]
    # And two that start at the same moment can't both add.
    assert _rows(resolve([_claim(1, "a", []), _claim(1, "b", []), _batch(1, "a", 0), _batch(1, "b", 0)])) == ["b0"]


def test_of_two_rewrites_of_the_same_files_one_counts() -> None:
    one, two = _rewrite(5, A[:2], "x"), _rewrite(6, A[1:3], "y")
    assert _rows(resolve([CLAIM_A, *A, one, two])) == ["a0", "a1", "a2", "a3"]
    over = _rewrite(9, [two, A[3]], "z")  # made before the other one was seen
    assert _rows(resolve([CLAIM_A, *A, two, over])) == ["a0", "a1", "a2", "a3"]
    assert _rows(resolve([CLAIM_A, *A, one, two, over])) == ["a0", "a1", "a2", "a3"]


@pytest.mark.parametrize("seed", range(15))
def test_clearing_away_can_be_killed_after_every_file(seed: int) -> None:
    """Streams start, add, die and come back as zombies; rewrites race; whatever may go goes, file by file."""
    chance = random.Random(seed)
    log: dict[str, Commit] = {}
    true: list[str] = []
    epoch = at = 0

    def put(commit: Commit) -> None:
        log[commit.name] = commit

    for step in range(40):
        at += HOUR // 2
        state = resolve(log.values())
        what = chance.choice(["claim", "batch", "batch", "batch", "rewrite", "rewrite", "race", "zombie", "clear"])
        if what == "claim" or not epoch:
            epoch += 1
            put(_claim(epoch, f"o{epoch}x", [state.everything[name] for name in state.allowed], at))
        elif what == "batch":
            put(_batch(epoch, f"o{epoch}x", step, at))
            true.append(f"o{epoch}x{step}")
        elif what == "zombie" and epoch > 1:
            put(_batch(epoch - 1, f"o{epoch - 1}x", step, at))
        elif what in ("rewrite", "race") and state.live:
            inputs = chance.sample(list(state.live.values()), chance.randint(1, len(state.live)))
            put(_rewrite(at, inputs, f"r{step}", state.horizon))
            if what == "race":  # each has seen its inputs count, and a clock may be slow
                put(_rewrite(at + chance.choice([-1, 1]), inputs[:1], f"s{step}"))
        if what == "clear":
            for name in doomed(resolve(log.values()), at, HOUR):
                del log[name]
                assert _rows(resolve(log.values())) == sorted(true)
        assert _rows(resolve(log.values())) == sorted(true)
    at += 3 * HOUR
    for name in doomed(resolve(log.values()), at, HOUR):
        del log[name]
        assert _rows(resolve(log.values())) == sorted(true)
    left = resolve(log.values())
    assert set(log) == {*left.live, *(each.name for each in log.values() if each.kind == commits.CLAIM)}


def test_what_a_reader_may_still_be_reading_stays_for_the_time_of_grace() -> None:
    log = [_claim(1, "a", []), *A[:2], _rewrite(HOUR, A[:2])]
    assert doomed(resolve(log), 2 * HOUR - 1, HOUR) == []
    assert doomed(resolve(log), 2 * HOUR, HOUR) == [each.name for each in A[:2]]


def test_a_directory_that_somebody_may_be_writing_is_not_abandoned() -> None:
    state = resolve([CLAIM_A, *A[:2], _claim(2, "b", A[:2]), latest := _batch(2, "b", 5)])

    def gone(directory: str, now: int = 100 * HOUR) -> bool:
        return commits.abandoned(directory, state, now, 24 * HOUR)

    assert gone(A[3].name)
    assert gone(_batch(2, "b", 4).name)
    assert not gone(_batch(2, "b", 6).name)
    assert not gone(_batch(3, "c", 0).name)
    assert not gone(latest.name)
    assert gone(_rewrite(75 * HOUR, []).name)
    assert not gone(_rewrite(77 * HOUR, []).name)
    assert not gone("something else")


def test_expired_days_are_not_seen_and_lives_that_go_on_are() -> None:
    old, new = (Group("usage", date, date, 1, 1) for date in ("2025-01-01", "2025-02-01"))
    life = Group("intervals", "2025-01-01", "i", 1, 1)
    batch = Commit(commits.BATCH, 0, "a", epoch=1, groups=(old, new, life))
    rewrite = Commit(commits.REWRITE, 1, "r", horizon="2025-01-15")
    state = resolve([CLAIM_A, batch, rewrite])
    assert state.groups("usage") == [new]
    assert state.groups("intervals") == [life]
    assert resolve([CLAIM_A, batch]).groups("usage", "2025-01-01", "2025-01-31") == [old]


def test_spans_choose_the_files_that_can_hold_a_copy() -> None:
    groups = [
        Group("intervals", "", name, 1, 1, ((gateway, boot, *bounds),))
        for name, gateway, boot, bounds in (("1", "g", "b", (0, 9)), ("2", "g", "b", (10, 19)), ("3", "h", "b", (0, 9)))
    ]

    def chosen(*spans: commits.Span) -> list[str]:
        return [group.path for group in commits.overlapping(groups, spans)]

    assert chosen(("g", "b", 20, 30)) == []
    assert chosen(("g", "b", 19, 30)) == ["2"]
    assert chosen(("g", "b", 30, 31), ("g", "b", 5, 6)) == ["1", "2"]
    assert chosen(("h", "b", 9, 9), ("g", "c", 0, 100)) == ["3"]


def test_a_commit_survives_its_file_and_a_newer_layout_is_refused() -> None:
    group = Group("intervals", "2025-11-20", "p", 2, 77, (("g", "b", -1, 4),))
    commit = Commit(
        commits.REWRITE, 5, "x", 1, 2, (group,), {"t": {0: [(0, 9)]}}, frozenset("a"), frozenset("bc"), "2025-01-01"
    )
    text = commits.encode(commit)
    assert commits.decode(commit.name, text) == commit
    with pytest.raises(UnreadableCommit, match=r"^n: layout 99, this program knows 1: use a newer one$"):
        commits.decode("n", b'{"layout":99}')
    for broken in (text[:50], b"[]", b'{"layout":1,"colour":2}', b"", text.replace(b'"x"', b'"y"')):
        with pytest.raises(UnreadableCommit, match=r"^[^\n]+$"):
            commits.decode(commit.name, broken)
