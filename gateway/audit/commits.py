# What belongs to the audit's Parquet tables: pure arithmetic over the small files in their `_log` folder. Knows neither
# Spark nor any file system; store.py reads and writes those files.
#
# Every writer adds files of its own and changes nobody else's, so nothing here needs a lock or an atomic
# "create if absent", which object stores don't have. What counts follows from the set of files alone:
#
#   batch    what one micro-batch of a stream added. Its owner is one start of a stream.
#   claim    a stream has started: it names the batches of its forerunners that it saw. A batch of a forerunner that it
#            did not see came from a driver that should have been dead, and never counts.
#   rewrite  takes the place of the commits that it names, all of them or none (compaction, retention). Of two that name
#            the same commit the earlier one counts; the other one, which says the same, does not.
#   derived  the tables that follow from the others (gaps, lives), as of some moment: the last one counts.

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

LAYOUT: Final = 1
BATCH, CLAIM, REWRITE, DERIVED = "batch", "claim", "rewrite", "derived"

# Offsets that were read, both ends included, by topic id and partition. A topic made again has another id.
Coverage = dict[str, dict[int, list[tuple[int, int]]]]
# (gateway, boot, lowest seq, highest seq)
Span = tuple[str, str, int, int]


class UnreadableCommit(ValueError):
    """A file of the log is no commit of a layout that this program knows; the text is one line."""


@dataclass(frozen=True, slots=True)
class Group:
    """Files of one table and date (`date` is "" where a table has none) in one directory, relative to the tables'."""

    table: str
    date: str
    path: str
    files: int
    bytes: int
    spans: tuple[Span, ...] = ()  # of `intervals`: which identities can be in it


@dataclass(frozen=True, slots=True)
class Commit:
    """One file of the log."""

    kind: str
    at_ms: int
    id: str  # of a claim and its batches the stream's, else the commit's own
    epoch: int = 0  # of a claim and its batches
    number: int = 0  # of a batch: that stream's own count
    groups: tuple[Group, ...] = ()
    coverage: Coverage = field(default_factory=dict)
    accepts: frozenset[str] = frozenset()  # of a claim
    replaces: frozenset[str] = frozenset()  # of a rewrite
    horizon: str = ""  # of a rewrite: usage of days before it is expired

    @property
    def name(self) -> str:
        """Its file's name, without the ending; names of a kind sort by age."""
        if self.kind == CLAIM:
            return f"{self.kind}-{self.epoch:08d}-{self.id}"
        if self.kind == BATCH:
            return f"{self.kind}-{self.epoch:08d}-{self.id}-{self.number:010d}"
        return f"{self.kind}-{self.at_ms:015d}-{self.id}"


@dataclass(frozen=True, slots=True)
class State:
    """What the log says."""

    live: dict[str, Commit]  # the batches and rewrites that count
    allowed: frozenset[str]  # batches that count, or are in a rewrite that does: what the next claim has to accept
    derived: Commit | None
    claim: Commit | None
    coverage: Coverage
    horizon: str
    everything: dict[str, Commit]

    def groups(self, table: str, first: str = "", last: str = "") -> list[Group]:
        """The groups of a table, of days from `first` to `last`, both included, where they are given."""
        source: Iterable[Commit] = self.live.values()
        if table in DERIVED_TABLES:
            source = (self.derived,) if self.derived else ()
        least = max(first, self.horizon) if table in EXPIRING else first
        found = [group for commit in source for group in commit.groups if group.table == table]
        return [group for group in found if group.date >= least and (not last or group.date <= last)]


DERIVED_TABLES: Final = frozenset({"gaps", "lives"})
# Of days before the horizon these tables have nothing. `intervals` keeps the lives that reach beyond it: without them
# each such life would seem to begin with a gap, and a copy of one of their records would count again.
EXPIRING: Final = frozenset({"usage", "malformed", "duplicates"})


def resolve(commits: Iterable[Commit]) -> State:
    """What counts, out of all commits of a log in any order."""
    everything = {commit.name: commit for commit in commits}
    by_name = [everything[name] for name in sorted(everything)]
    claims = [commit for commit in by_name if commit.kind == CLAIM]
    live = {commit.name: commit for commit in by_name if commit.kind == BATCH and _allowed(commit, claims)}
    allowed = frozenset(live)
    taken: set[str] = set()
    for commit in by_name:
        if commit.kind != REWRITE:
            continue
        # An input that is not in the log at all was replaced by this very commit and has been cleared away since.
        if commit.replaces & taken or any(name in everything and name not in live for name in commit.replaces):
            continue
        taken |= commit.replaces
        live = {name: kept for name, kept in live.items() if name not in commit.replaces} | {commit.name: commit}
    coverage: Coverage = {}
    for commit in live.values():
        cover(coverage, commit.coverage)
    derived = [commit for commit in by_name if commit.kind == DERIVED]
    return State(
        live,
        allowed,
        derived[-1] if derived else None,
        claims[-1] if claims else None,
        coverage,
        max((commit.horizon for commit in live.values()), default=""),
        everything,
    )


def _allowed(batch: Commit, claims: Sequence[Commit]) -> bool:
    mine = (batch.epoch, batch.id)
    return all(batch.name in claim.accepts for claim in claims if (claim.epoch, claim.id) > mine)


def cover(into: Coverage, more: Mapping[str, Mapping[int, Sequence[tuple[int, int]]]]) -> None:
    """Add ranges to `into`; those that touch become one."""
    for topic, partitions in more.items():
        for partition, ranges in partitions.items():
            known = into.setdefault(topic, {}).get(partition, [])
            into[topic][partition] = _merged([*known, *ranges])


def _merged(ranges: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return merged


def merged_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """One span for each life that occurs."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for gateway, boot, first, last in spans:
        known = found.get((gateway, boot), (first, last))
        found[gateway, boot] = min(known[0], first), max(known[1], last)
    return tuple((*life, *bounds) for life, bounds in sorted(found.items()))


def overlapping(groups: Iterable[Group], spans: Iterable[Span]) -> list[Group]:
    """The groups that may hold an identity within these spans."""
    wanted = {(gateway, boot): (first, last) for gateway, boot, first, last in merged_spans(spans)}
    return [
        group
        for group in groups
        if any(
            first <= wanted[gateway, boot][1] and last >= wanted[gateway, boot][0]
            for gateway, boot, first, last in group.spans
            if (gateway, boot) in wanted
        )
    ]


def encode(commit: Commit) -> bytes:
    """One commit as JSON."""
    values = {name: value for name, value in asdict(commit).items() if value or name == "at_ms"}
    for name in ("accepts", "replaces"):
        if name in values:
            values[name] = sorted(values[name])
    return json.dumps({"layout": LAYOUT} | values, separators=(",", ":")).encode()


def decode(name: str, text: bytes) -> Commit:
    """A commit from the file of that name.

    Raises:
        UnreadableCommit: another layout, or damaged.
    """
    try:
        values = json.loads(text)
        layout = values.pop("layout")
        if layout > LAYOUT:
            raise UnreadableCommit(f"{name}: layout {layout}, this program knows {LAYOUT}: use a newer one")
        values["groups"] = tuple(
            Group(**{**group, "spans": tuple((g, b, lo, hi) for g, b, lo, hi in group.get("spans", ()))})
            for group in values.get("groups", ())
        )
        values["coverage"] = {
            topic: {int(partition): [(first, last) for first, last in ranges] for partition, ranges in found.items()}
            for topic, found in values.get("coverage", {}).items()
        }
        for field_name in ("accepts", "replaces"):
            values[field_name] = frozenset(values.get(field_name, ()))
        commit = Commit(**values)
    except UnreadableCommit:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableCommit(f"{name} is damaged: {type(error).__name__}: {error}") from None
    if commit.name != name:
        raise UnreadableCommit(f"{name} holds {commit.name}")
    return commit


def doomed(state: State, now_ms: int, grace_ms: int) -> list[str]:
    """Commits that may be cleared away, in the order in which that has to happen.

    `grace_ms` is how long a reader that has read the log may go on reading the files named in it.
    """
    old = now_ms - grace_ms
    replaced = _behind(state, [commit for commit in state.live.values() if commit.at_ms <= old])
    served = _behind(state, state.live.values())
    strays = [
        commit
        for commit in state.everything.values()
        if (commit.kind == REWRITE or is_past(commit, state)) and commit.name not in state.live.keys() | served
    ]
    # Without its inputs a rewrite that never counted would count: it has to go first, and they stay as long as it does.
    if any(commit.kind == REWRITE and commit.at_ms > old for commit in strays):
        return []
    strays = [commit for commit in strays if commit.at_ms <= old]
    names = [commit.name for commit in sorted(strays, key=lambda each: (each.kind != REWRITE, each.name))]
    # And in the order of their names an input goes before what replaced it: else it would count once more.
    names += sorted(replaced)
    latest = state.derived
    if latest and latest.at_ms <= old:
        names += [each.name for each in state.everything.values() if each.kind == DERIVED and each.name < latest.name]
    return names + _needless_claims(state, set(names), old)


def _behind(state: State, commits: Iterable[Commit]) -> set[str]:
    """The commits that these have taken the place of, and those that those had."""
    found: set[str] = set()
    next_ones = [name for commit in commits for name in commit.replaces]
    while next_ones:
        name = next_ones.pop()
        if name not in found and name in state.everything:
            found.add(name)
            next_ones += state.everything[name].replaces
    return found


def _needless_claims(state: State, gone: set[str], old: int) -> list[str]:
    # A claim is needed as long as there are batches that it judges; the last one for ever.
    batches = [each for each in state.everything.values() if each.kind == BATCH and each.name not in gone]
    return [
        claim.name
        for claim in state.everything.values()
        if claim.kind == CLAIM
        and claim is not state.claim
        and claim.at_ms <= old
        and not any((batch.epoch, batch.id) < (claim.epoch, claim.id) for batch in batches)
    ]


def is_past(batch: Commit, state: State) -> bool:
    """Whether a batch belongs to a stream that a later one has taken the place of."""
    claim = state.claim
    return batch.kind == BATCH and claim is not None and (batch.epoch, batch.id) < (claim.epoch, claim.id)


def abandoned(directory: str, state: State, now_ms: int, longest_ms: int) -> bool:
    """Whether nobody can still be writing, or ever name, the directory `commit=…` that no commit names.

    A stream's is so when its stream has been replaced or has committed a later batch; any other when it was begun
    longer than `longest_ms` ago, which is more than those who write it allow themselves.
    """
    kind, _, rest = directory.partition("-")
    parts = rest.split("-")
    if kind != BATCH:
        return parts[0].isdecimal() and int(parts[0]) < now_ms - longest_ms
    if len(parts) != 3 or not parts[0].isdecimal() or not parts[2].isdecimal() or state.claim is None:
        return False
    mine, latest = (int(parts[0]), parts[1]), (state.claim.epoch, state.claim.id)
    if mine != latest:
        return mine < latest
    last = f"{BATCH}-{rest}"
    others = [each for each in state.everything.values() if (each.epoch, each.id, each.kind) == (*mine, BATCH)]
    return any(each.name > last for each in others)
