# The four facts that parts of control follow: the configuration, the policies and the storage factor in force, and the
# cluster as its brokers describe it. Each has one publisher. Who follows it, and in which order, is app.py's.
#
# Each snapshot that workers get tells one of these facts (channel.SNAPSHOTS_BY_FACT).

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

import trio

from gateway.channel import BrokerTable, StorageSnapshot, TopicSnapshot
from gateway.config import Settings
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import NO_IDS, TopicIds
from policies.storage import ReplicaSpread
from policies.thresholds.sums import TopicPlaces

T = TypeVar("T")

REFRESH_S: Final = 3.0  # Kafka's tools wait for 30 s or more in all


class Published(Generic[T]):
    """A value that changes, and those who follow it.

    Attributes:
        latest: the value. Its publisher may replace it without a word, if the new one says the same to all followers.
    """

    def __init__(self, latest: T) -> None:
        self.latest = latest
        self._followers: dict[str, Callable[[T], None]] = {}

    def subscribe(self, name: str, callback: Callable[[T], None], *, part: Callable[[T], object] | None = None) -> None:
        """Call `callback` with each value that is published from now on.

        Args:
            name: the follower's, for errors; each has its own.
            part: what the follower needs of the value: it is called only if that differs from the last one.
        """
        if name in self._followers:
            raise ValueError(f"there is a follower {name} already")
        self._followers[name] = callback if part is None else _follow_part(callback, part, part(self.latest))

    def publish(self, value: T) -> None:
        """Replace the value, and tell all followers, in the order in which they subscribed.

        Raises:
            Exception: that of a follower, once all others have got the value; of several, all in an ExceptionGroup.
        """
        self.latest = value
        failures: list[Exception] = []
        for name, notify in self._followers.items():
            try:
                notify(value)
            except Exception as error:
                error.add_note(f"raised by the follower {name!r} of a {type(value).__name__}")
                failures.append(error)
        if failures:
            raise failures[0] if len(failures) == 1 else ExceptionGroup("several followers failed", failures)


def _follow_part(callback: Callable[[T], None], part: Callable[[T], object], known: object) -> Callable[[T], None]:
    def notify(value: T) -> None:
        nonlocal known
        before, known = known, part(value)
        if known != before:
            callback(value)

    return notify


class ClusterState(NamedTuple):
    """The cluster as its brokers described it last.

    Attributes:
        brokers, topics: None: nothing is known yet.
        places: where topics have partitions, see metadata.ClusterMetadata; None: not known.
        replicas: where they have replicas, likewise.
        spread: how much of them, likewise.
        topic_ids: of watched topics, as found by the latest answer.
        answers: how often the brokers have answered.
        cluster_id: Kafka's; "": not known.
    """

    brokers: BrokerTable | None = None
    topics: TopicSnapshot | None = None
    places: TopicPlaces | None = None
    replicas: Mapping[int, frozenset[str]] | None = None
    spread: ReplicaSpread | None = None
    topic_ids: TopicIds = NO_IDS
    answers: int = 0
    cluster_id: str = ""


class PublishedCluster(Published[ClusterState]):
    """The view of the cluster, whose brokers are asked again and again, and at once on request."""

    def __init__(self) -> None:
        super().__init__(ClusterState())
        self._refresh_requested = trio.Event()
        self._refresh_waiters: list[trio.Event] = []  # for an answer to what is asked next

    def request_refresh(self) -> None:
        """Refresh soon: a client or a change has newer metadata."""
        self._refresh_requested.set()

    async def await_refresh(self) -> None:
        """Refresh, and return when that is done, or after a while."""
        over = trio.Event()
        self._refresh_waiters.append(over)
        self.request_refresh()
        with trio.move_on_after(REFRESH_S):
            await over.wait()

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """For the publisher: the brokers are asked within. Requests from then on are about the next time."""
        self._refresh_requested = trio.Event()
        waiting, self._refresh_waiters = self._refresh_waiters, []
        yield
        for over in waiting:
            over.set()

    async def wait_requested(self) -> None:
        """For the publisher: return when another refresh is requested."""
        await self._refresh_requested.wait()


@dataclass(frozen=True)
class ControlFacts:
    """What parts of control follow."""

    configuration: Published[Settings]
    policies: Published[PolicySet] = field(default_factory=lambda: Published(PolicySet()))
    cluster: PublishedCluster = field(default_factory=PublishedCluster)
    storage_factor: Published[StorageSnapshot | None] = field(default_factory=lambda: Published(None))
