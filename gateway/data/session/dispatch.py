# Fetches of one connection from resource groups with a dispatch limit (PIP-82): which groups those are, what its
# answers cost them, and how long it has to wait.
#
# One Fetch may ask for FETCH_PART of what is left until the group owes DEBT_S. So the debt stays below that however
# many share the group, and they get equal parts: who comes right behind others may take less and waits longer, and
# comes at a better time then (taking all that is left, the one behind the largest gap would always have most). But the
# broker gives one batch however little is asked for: a Fetch waits itself while more is owed than the throttle time of
# an answer may say.
#
# A connection new to a group waits for the debt that is there. Since all consumers may start at once, what is promised
# to those that are new counts as owed until their first answers are there.
#
# Knows no bytes on the wire: topics are what requests and answers call them.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from policies.decision import ClientPatience, strictest_verdict
from policies.limits.limiter import MIN_WAIT_S
from policies.verdict import REJECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gateway.data.shared.client import ConnectedClient
    from policies.groups.group_limiters import GroupLimit

DEBT_S: Final = 3.0  # with more of it all consumers wait longer, with less more batches are cut in two
FETCH_PART: Final = 1 / 3
RECENT_S: Final = 30.0  # a connection counts as fetching from a group for this long
MAX_UNNAMED_IDS: Final = 1000  # topic ids without a name that are remembered as such
MAX_TOPICS: Final = 10_000  # that are remembered: a client may ask for any that it makes up
MAX_NAME: Final = 249  # of a topic: Kafka makes no longer ones
ASSUMED_MESSAGE_BYTES: Final = 1000.0  # bytes that a message is taken to have before one was seen


class _FetchedGroup:
    """One connection's fetches from one resource group.

    Attributes:
        is_new: no response has brought any of it yet.
        promised_s: seconds of the group's rates, promised for its first response.
        mean_message_bytes: bytes of a message, in the last response that had any.
        is_passing: the response that is passing has some of it: `passing_bytes`, `passing_messages`.
        last_bytes, last_messages: of the last response, of `last_frame_bytes` in all; 0 where it had none of the group.
    """

    __slots__ = (
        "is_new",
        "is_passing",
        "last_bytes",
        "last_fetched_at",
        "last_frame_bytes",
        "last_messages",
        "limit",
        "mean_message_bytes",
        "passing_bytes",
        "passing_messages",
        "promised_s",
    )

    def __init__(self, limit: GroupLimit) -> None:
        self.limit = limit
        self.is_new = True
        self.last_fetched_at = -math.inf
        self.promised_s = 0.0
        self.mean_message_bytes = ASSUMED_MESSAGE_BYTES
        self.is_passing = False
        self.passing_bytes = self.passing_messages = 0
        self.last_bytes = self.last_messages = self.last_frame_bytes = 0

    def is_recent(self, now: float) -> bool:
        return now - self.last_fetched_at <= RECENT_S

    def has_debt(self) -> bool:
        return any(limiter.bucket.in_debt or limiter.bucket.excess_debt for limiter in self.limit.limiters)

    def max_fetch_bytes(self, now: float) -> int | None:
        """Bytes that the next request may ask for; None: any number."""
        limit, left, rates = self.limit, DEBT_S, []
        for limiter, mean in ((limit.byte_limiter, 1.0), (limit.message_limiter, self.mean_message_bytes)):
            if limiter is not None:
                left = min(left, DEBT_S + limiter.bucket.token_level(now) / limiter.bucket.rate)
                rates.append(limiter.bucket.rate * mean)
        if not rates:
            return None
        if self.is_new:
            self.release_promise()
            left -= limit.promised_s
            self.promised_s = max(0.0, left * FETCH_PART)
            limit.promised_s += self.promised_s
        return max(1, int(left * FETCH_PART * min(rates)))

    def release_promise(self) -> None:
        self.limit.promised_s -= self.promised_s
        self.promised_s = 0.0

    def charge_passing(self, size: int, messages: int, now: float) -> None:
        """Charge a part of the response that is passing."""
        self.limit.charge_request(size, messages, now)
        self.is_passing = True
        self.passing_bytes += size
        self.passing_messages += messages

    def end_response(self, frame_bytes: int, now: float) -> float:
        """The response is complete: the seconds until the next one may be requested."""
        self.release_promise()
        wait = 0.0
        if self.is_passing:
            self.is_new = False
            if self.passing_messages:
                self.mean_message_bytes = self.passing_bytes / self.passing_messages
            wait = self.limit.wait_after_charge(now)
        self.last_bytes, self.last_messages = self.passing_bytes, self.passing_messages
        self.last_frame_bytes = frame_bytes if self.is_passing else 0
        self.is_passing, self.passing_bytes, self.passing_messages = False, 0, 0
        return wait

    def expected_wait(self, frame_bytes: int, now: float) -> float:
        """The probable result of `end_response` for a response that begins now, taken to be like the last one."""
        wait = 0.0
        if self.last_frame_bytes:
            amounts = (self.limit.byte_limiter, self.last_bytes), (self.limit.message_limiter, self.last_messages)
            for limiter, last in amounts:
                if limiter is not None:
                    amount = frame_bytes * (last / self.last_frame_bytes)
                    after = (amount - limiter.bucket.token_level(now)) / limiter.bucket.rate
                    wait = max(wait, min(after, limiter.max_wait_s(now, used_up=limiter.is_used_up(now))))
        return wait


class GroupDispatch:
    """Resource groups' dispatch limits on one connection. Topics are names, or ids (`by_id`) from Fetch v13 on and in
    ShareFetch.
    """

    __slots__ = ("_by_topic", "_client", "_denied_since", "_groups", "_snapshot_key", "_unnamed_ids")

    def __init__(self, client: ConnectedClient) -> None:
        self._client = client
        self._snapshot_key: tuple[int, str] | None = None  # version of the groups, and principal, that all this is for
        self._groups: dict[GroupLimit, _FetchedGroup] = {}
        self._by_topic: dict[tuple[bytes, bool], tuple[_FetchedGroup, bytes] | None] = {}
        self._unnamed_ids: set[bytes] = set()
        self._denied_since = 0.0  # the first request since then found no room

    def wait_before_fetch(self, topics: Iterable[bytes], by_id: bool, now: float) -> float:
        """The seconds that a request for these topics has to wait."""
        self._refresh_groups()
        wait = 0.0
        for topic in topics:
            found = self._find_group(topic, by_id, now)
            if found is not None:
                group = found[0]
                if not group.is_recent(now):
                    wait = max(wait, group.limit.wait_after_charge(now))
                group.last_fetched_at = now
        wait = max(wait, self._wait_for_credit(now))
        self._denied_since = (self._denied_since or now) if wait else 0.0
        return wait

    def _wait_for_credit(self, now: float) -> float:
        """Seconds until a group may have room for a response as large as the last one; 0.0: it has room."""
        patience = ClientPatience(denied_s=now - self._denied_since if self._denied_since else 0.0)
        why = strictest_verdict(
            group.limit.judge_request(group.last_bytes, group.last_messages, patience, now)
            for group in self._recent_groups(now)
            if group.has_debt()
        )
        return why.throttle_ms / 1000 if why is not None and why.action == REJECT else 0.0

    def max_fetch_bytes(self, now: float) -> int | None:
        """Bytes that the request may ask for, at least 1; None: any number. For each group that it has fetched nothing
        of yet, its next response counts as its first.
        """
        found = [group.max_fetch_bytes(now) for group in self._recent_groups(now)]
        return min((most for most in found if most is not None), default=None)

    def charge_topics(
        self, rows: Iterable[tuple[bytes, int, int]], by_id: bool, now: float, *, would_wait: bool = False
    ) -> None:
        """Charge bytes and messages of these topics that pass. `would_wait`: if groups were enforced, they would not
        have been requested yet.
        """
        self._refresh_groups()
        for topic, size, messages in rows:
            found = self._find_group(topic, by_id, now)
            if found is None:
                continue
            group, name = found
            group.last_fetched_at = now
            group.limit.topics.add(name)
            if would_wait:
                group.limit.record_only(size, messages)
            else:
                group.charge_passing(size, messages, now)

    def end_response(self, size: int, now: float) -> float:
        """A response of `size` bytes is complete: the seconds until the next one may be requested."""
        return max((group.end_response(size, now) for group in self._groups.values()), default=0.0)

    def expected_wait(self, size: int, now: float) -> float:
        """The probable result of `end_response` for a response of `size` bytes that begins now, taken to be like the
        last one.
        """
        wait = max((group.expected_wait(size, now) for group in self._groups.values()), default=0.0)
        return wait if wait >= MIN_WAIT_S else 0.0

    def close(self) -> None:
        """The connection has ended, or the groups have changed."""
        for group in self._groups.values():
            group.release_promise()
        self._groups, self._by_topic = {}, {}

    def _recent_groups(self, now: float) -> Iterator[_FetchedGroup]:
        return (group for group in self._groups.values() if group.is_recent(now))

    def _refresh_groups(self) -> None:
        who = self._client.world.engine.groups.version, self._client.principal
        if self._snapshot_key != who:
            self._snapshot_key = who
            self.close()

    def _find_group(self, topic: bytes, by_id: bool, now: float) -> tuple[_FetchedGroup, bytes] | None:
        """The topic's group and its name. None: the topic is in no group with a dispatch limit, or its name is not
        known.
        """
        key = topic, by_id
        try:
            return self._by_topic[key]
        except KeyError:
            pass
        world = self._client.world
        name = world.cluster.topic_ids.get(topic) if by_id else topic
        if name is None:
            self._record_unknown_id(topic)
            return None
        if len(name) > MAX_NAME:
            return None
        limit = world.engine.groups.dispatch_limit(name, self._client.principal, now)
        if len(self._by_topic) >= MAX_TOPICS:
            self._by_topic.clear()
        found = None
        if limit is not None and limit.limiters:
            found = self._groups.setdefault(limit, _FetchedGroup(limit)), name
        self._by_topic[key] = found
        return found

    def _record_unknown_id(self, topic_id: bytes) -> None:
        if topic_id not in self._unnamed_ids:
            if len(self._unnamed_ids) >= MAX_UNNAMED_IDS:
                self._unnamed_ids.clear()
            self._unnamed_ids.add(topic_id)
            self._client.world.ledger.count_event("topic_ids_unknown")
            self._client.world.cluster.request_metadata()
