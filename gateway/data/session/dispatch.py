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

from typing import TYPE_CHECKING, Final

from policies.decision import ClientPatience, strictest_verdict
from policies.limits.limiter import MIN_WAIT_S
from policies.verdict import REJECT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.data.shared.client import ConnectedClient
    from policies.groups.group_limiters import GroupLimit

DEBT_S: Final = 3.0  # with more of it all consumers wait longer, with less more batches are cut in two
FETCH_PART: Final = 1 / 3
RECENT_S: Final = 30.0  # a connection counts as fetching from a group for this long
MAX_UNNAMED_IDS: Final = 1000  # topic ids without a name that are remembered as such
MAX_TOPICS: Final = 10_000  # that are remembered: a client may ask for any that it makes up
MAX_NAME: Final = 249  # of a topic: Kafka makes no longer ones
ASSUMED_MESSAGE_BYTES: Final = 1000.0  # bytes that a message is taken to have before one was seen
_NOTHING: Final = (0, 0)


class GroupDispatch:
    """Resource groups' dispatch limits on one connection. Topics are names, or ids (`by_id`) from Fetch v13 on and in
    ShareFetch.
    """

    __slots__ = (
        "_client",
        "_current_totals",
        "_denied_since",
        "_group_limits",
        "_last_fetched_at",
        "_last_ratios",
        "_last_totals",
        "_mean_message_bytes",
        "_promised",
        "_snapshot_key",
        "_unnamed_ids",
    )  # fmt: skip

    def __init__(self, client: ConnectedClient) -> None:
        self._client = client
        self._snapshot_key: tuple[int, str] | None = None  # version of the groups, and principal, that all this is for
        self._group_limits: dict[tuple[bytes, bool], tuple[GroupLimit, bytes] | None] = {}
        self._unnamed_ids: set[bytes] = set()
        self._last_fetched_at: dict[GroupLimit, float] = {}  # when last
        self._promised: dict[GroupLimit, float] = {}  # for the first answer: seconds of the group's rates
        self._mean_message_bytes: dict[GroupLimit, float] = {}  # bytes of a message, in the last answer
        self._current_totals: dict[GroupLimit, list[int]] = {}  # of the answer that is passing: bytes, messages
        self._last_totals: dict[GroupLimit, list[int]] = {}  # likewise, of the last answer
        self._denied_since = 0.0  # the first request since then found no room
        self._last_ratios: dict[
            GroupLimit, tuple[float, float]
        ] = {}  # of the last answer: the same per byte of its frame

    def wait_before_fetch(self, topics: Iterable[bytes], by_id: bool, now: float) -> float:
        """The seconds that a request for these topics has to wait."""
        self._refresh_groups()
        for group_limit, then in list(self._last_fetched_at.items()):
            if now - then > RECENT_S:
                del self._last_fetched_at[group_limit]
        wait = 0.0
        for topic in topics:
            found = self._find_group_limit(topic, by_id, now)
            if found is not None:
                group_limit = found[0]
                if group_limit not in self._last_fetched_at:
                    wait = max(wait, group_limit.wait_after_charge(now))
                self._last_fetched_at[group_limit] = now
        wait = max(wait, self._wait_for_credit(now))
        self._denied_since = (self._denied_since or now) if wait else 0.0
        return wait

    def _wait_for_credit(self, now: float) -> float:
        """Seconds until a group may have room for a response as large as the last one; 0.0: it has room."""
        patience = ClientPatience(denied_s=now - self._denied_since if self._denied_since else 0.0)
        verdicts = []
        for group_limit in self._last_fetched_at:
            if any(limiter.bucket.in_debt or limiter.bucket.excess_debt for limiter in group_limit.limiters):
                size, messages = self._last_totals.get(group_limit, _NOTHING)
                verdicts.append(group_limit.judge_request(size, messages, patience, now))
        why = strictest_verdict(verdicts)
        return why.throttle_ms / 1000 if why is not None and why.action == REJECT else 0.0

    def max_fetch_bytes(self, now: float) -> int | None:
        """Bytes that the request may ask for, at least 1; None: any number. For each group that it has fetched nothing
        of yet, its next response counts as its first.
        """
        most = None
        for group_limit in self._last_fetched_at:
            left, rate = DEBT_S, []
            for limiter, mean in (
                (group_limit.byte_limiter, 1.0),
                (group_limit.message_limiter, self._mean_message_bytes.get(group_limit, ASSUMED_MESSAGE_BYTES)),
            ):
                if limiter is not None:
                    left = min(left, DEBT_S + limiter.bucket.token_level(now) / limiter.bucket.rate)
                    rate.append(limiter.bucket.rate * mean)
            if not rate:
                continue
            if group_limit not in self._mean_message_bytes:
                group_limit.promised_s -= self._promised.get(group_limit, 0.0)
                left -= group_limit.promised_s
                self._promised[group_limit] = max(0.0, left * FETCH_PART)
                group_limit.promised_s += self._promised[group_limit]
            size = max(1, int(left * FETCH_PART * min(rate)))
            most = size if most is None else min(most, size)
        return most

    def charge_topics(
        self, rows: Iterable[tuple[bytes, int, int]], by_id: bool, now: float, *, would_wait: bool = False
    ) -> None:
        """Charge bytes and messages of these topics that pass. `would_wait`: if groups were enforced, they would not
        have been requested yet.
        """
        self._refresh_groups()
        for topic, size, messages in rows:
            found = self._find_group_limit(topic, by_id, now)
            if found is None:
                continue
            group_limit, name = found
            self._last_fetched_at[group_limit] = now
            group_limit.topics.add(name)
            if would_wait:
                group_limit.record_only(size, messages)
                continue
            group_limit.charge_request(size, messages, now)
            sums = self._current_totals.setdefault(group_limit, [0, 0])
            sums[0] += size
            sums[1] += messages

    def end_response(self, size: int, now: float) -> float:
        """A response of `size` bytes is complete: the seconds until the next one may be requested."""
        self._release_promises()
        wait = 0.0
        self._last_ratios = {}
        for group_limit, (taken, messages) in self._current_totals.items():
            self._last_ratios[group_limit] = taken / size, messages / size
            self._mean_message_bytes[group_limit] = (
                taken / messages if messages else self._mean_message_bytes.get(group_limit, ASSUMED_MESSAGE_BYTES)
            )
            wait = max(wait, group_limit.wait_after_charge(now))
        self._last_totals, self._current_totals = self._current_totals, {}
        return wait

    def expected_wait(self, size: int, now: float) -> float:
        """The probable result of `end_response` for a response of `size` bytes that begins now, taken to be like the
        last one.
        """
        wait = 0.0
        for group_limit, parts in self._last_ratios.items():
            for limiter, part in zip((group_limit.byte_limiter, group_limit.message_limiter), parts, strict=True):
                if limiter is not None:
                    after = (size * part - limiter.bucket.token_level(now)) / limiter.bucket.rate
                    wait = max(wait, min(after, limiter.max_wait_s(now)))
        return wait if wait >= MIN_WAIT_S else 0.0

    def close(self) -> None:
        """The connection has ended, or the groups have changed."""
        self._release_promises()
        (
            self._group_limits,
            self._last_fetched_at,
            self._mean_message_bytes,
            self._last_ratios,
            self._current_totals,
            self._last_totals,
        ) = {}, {}, {}, {}, {}, {}

    def _release_promises(self) -> None:
        for group_limit, promised in self._promised.items():
            group_limit.promised_s -= promised
        self._promised = {}

    def _refresh_groups(self) -> None:
        who = self._client.world.engine.groups.version, self._client.principal
        if self._snapshot_key != who:
            self._snapshot_key = who
            self.close()

    def _find_group_limit(self, topic: bytes, by_id: bool, now: float) -> tuple[GroupLimit, bytes] | None:
        """The topic's group and its name. None: the topic is in no group with a dispatch limit, or its name is not
        known.
        """
        key = topic, by_id
        try:
            return self._group_limits[key]
        except KeyError:
            pass
        world = self._client.world
        name = world.cluster.topic_ids.get(topic) if by_id else topic
        if name is None:
            self._record_unknown_id(topic)
            return None
        if len(name) > MAX_NAME:
            return None
        group_limit = world.engine.groups.dispatch_limit(name, self._client.principal, now)
        if len(self._group_limits) >= MAX_TOPICS:
            self._group_limits.clear()
        found = self._group_limits[key] = (
            None if group_limit is None or not group_limit.limiters else (group_limit, name)
        )
        return found

    def _record_unknown_id(self, topic_id: bytes) -> None:
        if topic_id not in self._unnamed_ids:
            if len(self._unnamed_ids) >= MAX_UNNAMED_IDS:
                self._unnamed_ids.clear()
            self._unnamed_ids.add(topic_id)
            self._client.world.ledger.count_event("topic_ids_unknown")
            self._client.world.cluster.request_metadata()
