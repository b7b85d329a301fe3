# A question to the audit, its answer, and what either engine gives of the records: Spark's (job.py) or the one without
# Java (gateway/audit/local/). Pure.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from gateway.audit.answers.windows import CalendarWindows
from gateway.audit.columns import BOOT_COLUMNS
from gateway.audit.tables.table_log import day_start_ms
from policies.idempotence import repeats

MAX_LISTED: Final = 1000  # gaps, incomplete boots: beyond it only their number is given
DROPPED: Final = "dropped"
# Within which gateways recognise a rejected batch that comes again: lives that are closer to each other may both have
# seen it. The clocks of two gateways differ by less.
REPEAT_MS: Final = round(repeats.RETENTION_S * 1000)
# Columns of a life that aren't told of those without an end.
_NOT_TOLD: Final = ("final_seq", "clusters", "changed", "unchecked", "chained")
_ONE_CLUSTER: Final = ("topic", "tables")  # sources that gateways of one cluster write to; spool files may be anyone's


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """The question: sums `by` some of usage.DIMENSIONS, per window, over intervals that start in [from_ms, to_ms).

    With `calendar` windows are the calendar's, and `window_ms` is what each consists of: windows.QUARTER_HOUR_MS.
    `time_zone`: in which times are told, without a calendar, which has its own.
    `only`: rows with another name as the first of `by` (one of a row's) are left out; `noted`: groups without any of
    these sums are.
    """

    by: tuple[str, ...] = ()
    window_ms: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    calendar: CalendarWindows | None = None
    only: tuple[str, ...] | None = None
    noted: tuple[str, ...] = ()
    time_zone: str = "UTC"

    @property
    def zone(self) -> str:
        """The time zone in which times are told."""
        return self.time_zone if self.calendar is None else self.calendar.zone

    def has_start(self, start_ms: int) -> bool:
        """Whether an interval that starts then is within the bounds."""
        return (self.from_ms is None or start_ms >= self.from_ms) and (self.to_ms is None or start_ms < self.to_ms)


class IntervalSpan(NamedTuple):
    """The intervals of one window (0: of all time): the first start, the last one, the last end, all in Unix ms, and
    the lowest storage factor in millionths, None where none of them knows it.
    """

    window_ms: int
    first_ms: int
    latest_ms: int
    last_ms: int
    factor_ppm: int | None


@dataclass(frozen=True, slots=True)
class LogIntegrity:
    """Whether the sums can be trusted: all records that were read and not counted, or were not there to be read."""

    records: int  # read in all
    duplicates: int  # copies of a record that was counted already
    conflicts: int  # those of them which say something else than the one that was counted
    malformed: int
    problems: dict[str, int]  # malformed ones by what is wrong with them
    samples: list[dict[str, Any]]
    boots: int
    gaps: list[dict[str, Any]]
    gaps_total: int
    incomplete: list[dict[str, Any]]  # boots that are "lost" or "open"
    incomplete_total: int
    lost: int
    after_final: Sequence[Mapping[str, Any]] = ()  # lives with intervals behind the one that said it was the last
    after_final_total: int = 0
    clusters: Sequence[str] = ()  # the ids of those that the records name, the first MAX_LISTED
    changed: int = 0  # records that aren't as they were written, or don't follow the one before (record_digests.py)
    changed_lives: Sequence[Mapping[str, Any]] = ()  # the lives of which they are
    unchecked: int = 0  # records with a digest by a key that isn't here
    mixes_clusters: bool = False  # they are several, and a source has the records of one cluster's gateways
    expired: bool = False  # the question is about days, too, whose usage the tables keep no more
    empty: bool = False  # no source has, or ever had, a record
    lives_overlap: bool = False  # some were, or one began within REPEAT_MS of another's end, between the query's bounds

    @property
    def complete(self) -> bool:
        """Nothing is known to be missing, and there was something to look at. A worker that still runs ("open") doesn't
        count against it.
        """
        found = self.gaps_total or self.lost or self.malformed or self.conflicts or self.after_final_total
        return not (found or self.mixes_clusters or self.changed or self.expired or self.empty)

    @property
    def sees_repeats(self) -> bool:
        """Whether each attempt at a batch is known to have been where the one before it was, and recorded."""
        return self.complete and not self.lives_overlap


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The answer: one row per group, columns as transforms.totals gives them, ordered by window and group."""

    query: AuditQuery
    sources: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    integrity: LogIntegrity = field(repr=False)


@dataclass(frozen=True, slots=True)
class StreamedReport:
    """The same, with rows that are held only as long as each is looked at; they can be read several times."""

    query: AuditQuery
    sources: list[dict[str, Any]]
    rows: Iterable[dict[str, Any]] = field(repr=False)
    integrity: LogIntegrity = field(repr=False)


class LargestGroups(NamedTuple):
    """`rows`: the largest groups (of each window, if there are any), largest first. `totals`: the sums over all groups;
    `groups`: the number of those that could have been among the rows.
    """

    rows: list[dict[str, Any]]
    totals: dict[str, int]
    groups: int


class CountedRecords(Protocol):
    """The records that were read, each once, in either engine."""

    @property
    def sources(self) -> list[dict[str, Any]]: ...

    def prepare(self, questions: Sequence[AuditQuery], spans: AuditQuery, tell: Callable[[str], None] = ...) -> None:
        """Say which sums (or ranks of them) and which spans will be asked for next: an engine that reads its sources
        for each question then does so once for all of these.
        """

    def measure_spans(self, question: AuditQuery, tell: Callable[[str], None] = ...) -> list[IntervalSpan]:
        """Of each of the question's windows that has intervals within its bounds, in the order of time."""

    def sum_groups(self, question: AuditQuery, tell: Callable[[str], None] = ...) -> list[dict[str, Any]]:
        """The rows of an AuditReport."""

    def open_groups(
        self, question: AuditQuery, tell: Callable[[str], None] = ...
    ) -> AbstractContextManager[Iterable[dict[str, Any]]]:
        """The same rows, not held: they can be read as often as wanted until the exit."""

    def rank_groups(
        self, question: AuditQuery, what: str, limit: int, tell: Callable[[str], None] = ..., least: int = 1
    ) -> LargestGroups:
        """The `limit` groups with the largest sum of `what`: DROPPED (bytes that never got in), or any of columns.SUMS,
        in bytes, and `least` or more of it. Equal ones are in the order of their names, so that the same data ranks
        alike.
        """

    def find_gaps(self, question: AuditQuery, tell: Callable[[str], None] = ...) -> LogIntegrity:
        """The certain and possible gaps in the records between the question's bounds."""


def ignore_progress(_: str) -> None:
    """For callers that want no progress."""


def answer_query(
    records: CountedRecords, question: AuditQuery, tell: Callable[[str], None] = ignore_progress
) -> AuditReport:
    """The sums that are asked for, and whether they can be trusted."""
    rows = records.sum_groups(question, tell)
    return AuditReport(question, records.sources, rows, records.find_gaps(question, tell))


@contextmanager
def stream_report(
    records: CountedRecords, question: AuditQuery, tell: Callable[[str], None] = ignore_progress
) -> Iterator[StreamedReport]:
    """The same, for answers of any size; until the exit."""
    with records.open_groups(question, tell) as rows:
        yield StreamedReport(question, records.sources, rows, records.find_gaps(question, tell))


def count_kinds(
    counted: Sequence[tuple[bool | None, bool | None, str | None, int]],
    find_samples: Callable[[], list[dict[str, Any]]],
) -> dict[str, Any]:
    """The fields of LogIntegrity that are known before gaps are looked for; `counted`: of tables, `counts`, `conflict`
    and `problem` of so many records.
    """
    problems: dict[str, int] = {}
    for _, _, problem, number in counted:
        if problem is not None:
            problems[problem] = problems.get(problem, 0) + number
    return {
        "malformed": sum(problems.values()),
        "problems": dict(sorted(problems.items())),
        "samples": find_samples() if problems else [],
        "records": sum(number for *_, number in counted),
        "duplicates": sum(number for counts, _, _, number in counted if counts is False),
        "conflicts": sum(number for _, conflict, _, number in counted if conflict),
    }


def assess_integrity(
    counted: Mapping[str, Any],
    boots: Sequence[dict[str, Any]],
    gaps: Iterable[dict[str, Any]],
    question: AuditQuery,
    sources: Sequence[Mapping[str, Any]] = (),
    broken: Mapping[tuple[Any, ...], int] | None = None,
) -> LogIntegrity:
    """`counted`: the fields that are known before gaps are looked for; `boots`, `gaps`: all, in order
    (transforms.summarize_boots, detect_gaps); `sources`: CountedRecords'; `broken`: transforms.count_broken_links,
    by life. Gaps and boots without an end are those that touch the question's bounds.
    """
    listed: list[dict[str, Any]] = []
    gaps_total = 0
    for gap in gaps:  # a broken log may have millions: count all, keep some
        if is_within_bounds(gap["after_ms"], gap["before_ms"], question):
            gaps_total += 1
            listed += [gap] if gaps_total <= MAX_LISTED else []
    after_final = [
        {name: boot[name] for name in (*BOOT_COLUMNS, "final_seq", "last_seq", "end_ms")}
        for boot in boots
        if boot["final_seq"] is not None and boot["last_seq"] > boot["final_seq"]
    ]
    endless = [
        {name: value for name, value in boot.items() if name not in _NOT_TOLD}
        for boot in boots
        if boot["state"] != "final"
    ]
    changed = [
        {name: boot[name] for name in BOOT_COLUMNS} | {"changed": count}
        for boot in boots
        if (count := boot["changed"] + (broken or {}).get(tuple(boot[name] for name in BOOT_COLUMNS), 0))
    ]
    clusters = sorted({cluster for boot in boots for cluster in boot["clusters"]})
    incomplete = [boot for boot in endless if is_within_bounds(boot["start_ms"], _last_sign_ms(boot), question)]
    return LogIntegrity(
        **counted,
        boots=len(boots),
        gaps=listed,
        gaps_total=gaps_total,
        incomplete=incomplete[:MAX_LISTED],
        incomplete_total=len(incomplete),
        lost=sum(boot["state"] == "lost" for boot in incomplete),
        after_final=after_final[:MAX_LISTED],
        after_final_total=len(after_final),
        clusters=clusters[:MAX_LISTED],
        changed=sum(life["changed"] for life in changed),
        changed_lives=changed[:MAX_LISTED],
        unchecked=sum(boot["unchecked"] for boot in boots),
        mixes_clusters=len(clusters) > 1 and any(source["kind"] in _ONE_CLUSTER for source in sources),
        expired=any(_asks_for_expired(source.get("expired_before"), question) for source in sources),
        empty=not counted["records"] and not any(map(_had_records, sources)),
        lives_overlap=_lives_overlap(boots, question),
    )


def _had_records(source: Mapping[str, Any]) -> bool:
    """Whether a source without records, or none since a bound, had some: then all may have been idle."""
    return bool(source.get("expired_before")) or any(each["end_offset"] for each in source.get("partitions", ()))


def _asks_for_expired(day: str | None, question: AuditQuery) -> bool:
    """Whether a bound says so: without any, the question is about all that there is. `day`: the first that is kept."""
    first = question.to_ms if question.from_ms is None else question.from_ms
    return day is not None and first is not None and first < day_start_ms(day)


def _last_sign_ms(life: Mapping[str, Any]) -> int | None:
    """When a life was found to be over, or later, where the clock was set back in between; None: unknown."""
    lost_ms: int | None = life["lost_ms"]
    start_ms: int | None = life["start_ms"]
    return lost_ms if lost_ms is None or start_ms is None or lost_ms < start_ms else max(lost_ms, life["end_ms"])


def _lives_overlap(boots: Sequence[Mapping[str, Any]], question: AuditQuery) -> bool:
    """Whether lives that may be of one cluster do, as LogIntegrity has it; one that names none may be of any."""
    spans = sorted(
        (boot["start_ms"], boot["end_ms"], boot["clusters"]) for boot in boots if boot["start_ms"] is not None
    )
    latest: dict[str, int] = {}  # the last end so far, by cluster; "": of those that name none
    latest_of_all = None
    for start, end, clusters in spans:
        if question.from_ms is not None:
            start = max(start, question.from_ms)
        if question.to_ms is not None:
            end = min(end, question.to_ms)
        if start > end:
            continue
        if clusters:
            before = max((latest[name] for name in (*clusters, "") if name in latest), default=None)
        else:
            before = latest_of_all
        if before is not None and start <= before + REPEAT_MS:
            return True
        for name in clusters or [""]:
            latest[name] = max(end, latest.get(name, end))
        latest_of_all = end if latest_of_all is None else max(latest_of_all, end)
    return False


def is_within_bounds(begins_ms: int | None, ends_ms: int | None, question: AuditQuery) -> bool:
    """Whether a gap or a life may touch the question's bounds. It lies somewhere between two times, either of which may
    be unknown: then it may reach as far as it likes. Where the end is before the beginning, the clock was set back: it
    may reach on from the beginning, and from any time to the end.
    """
    is_early = question.from_ms is not None and ends_ms is not None and ends_ms <= question.from_ms
    is_late = question.to_ms is not None and begins_ms is not None and begins_ms >= question.to_ms
    if begins_ms is not None and ends_ms is not None and ends_ms < begins_ms:
        return not (is_early and is_late)
    return not (is_early or is_late)
