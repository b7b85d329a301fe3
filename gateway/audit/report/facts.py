# What a report says, before it is a page: sums, plots' numbers, findings. Types only.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gateway.audit.batch.query import LogIntegrity
from gateway.audit.report.plots import TimeWindows


class UsageGroup(NamedTuple):
    """The sums of one name: a row of transforms.totals. Without `names`: all others, `members` of them."""

    names: tuple[str, ...]
    sums: Mapping[str, int]
    members: int = 1


class TopicTraffic(NamedTuple):
    """A topic (or all others: name None) with its offered, accepted and rejected bytes per window."""

    group: UsageGroup
    offered: Sequence[int]
    accepted: Sequence[int]
    rejected: Sequence[int]


class ReasonTraffic(NamedTuple):
    """All rows of one outcome and reason; `per_window` in bytes, `again`: those of the bytes that are repeats."""

    outcome: str
    reason: str
    bytes: int
    messages: int
    requests: int
    again: int
    per_window: Sequence[int]


class RefusalEpisodes(NamedTuple):
    """`listed`: those that lost most, as episodes.find_episodes has them; `total`: how many there are."""

    listed: Sequence[Mapping[str, Any]]
    total: int


NO_EPISODES: Final = RefusalEpisodes((), 0)


@dataclass(frozen=True, slots=True)
class ReportBreakdowns:
    """Sums by other names, the largest first and the others together at the end; `levels` by group
    (slo.measure_levels), of steps of `step_ms`, as `episodes`; `before`: the sums of the time before, if it's known;
    `before_trust`: what is missing there.
    """

    groups: Sequence[UsageGroup] = ()
    brokers: Sequence[UsageGroup] = ()
    gateways: Sequence[UsageGroup] = ()
    software: Sequence[UsageGroup] = ()
    step_ms: int = 60_000
    levels: Sequence[Mapping[str, Any]] = ()
    episodes: RefusalEpisodes = NO_EPISODES
    before: Mapping[str, int] | None = None
    before_trust: LogIntegrity | None = None


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """The report's contents. Topics and clients come with the largest first, and the others together at the end."""

    sources: Sequence[Mapping[str, Any]]
    first_ms: int  # when the first interval begins and the last one ends, Unix ms
    last_ms: int
    times: TimeWindows
    cell_ms: int  # how long a column of the heat map is: some windows
    totals: Mapping[str, int]
    topics: Sequence[TopicTraffic]
    clients: Sequence[UsageGroup]  # names: principal, client id, software
    losers: Sequence[UsageGroup]  # the same, those who lost most
    reasons: Sequence[ReasonTraffic]
    factor: Sequence[float | None]  # the lowest storage factor of each window, where it is known
    integrity: LogIntegrity
    breakdowns: ReportBreakdowns = field(default_factory=ReportBreakdowns)
