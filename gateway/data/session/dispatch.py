# Fetches of one connection from resource groups with a dispatch limit (PIP-82): which groups those are, what its
# answers cost them, and how long it has to wait.
#
# One Fetch may ask for a PART of what is left until the group owes DEBT_S. So the debt stays below that however many
# share the group, and they get equal parts: who comes right behind others may take less and waits longer, and comes at
# a better time then (taking all that is left, the one behind the largest gap would always have most). But the broker
# gives one batch however little is asked for: a Fetch waits itself while more is owed than an answer may tell.
#
# A connection new to a group waits for the debt that is there. Since all consumers may start at once, what is promised
# to those that are new counts as owed until their first answers are there.
#
# Knows no bytes on the wire: topics are what requests and answers call them.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policies.decision import Patience
from policies.limits.line import MIN_WAIT_S
from policies.verdict import REJECT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.data.shared.client import Client
    from policies.groups.lines import GroupSide

DEBT_S: Final = 3.0  # with more of it all consumers wait longer, with less more batches are cut in two
PART: Final = 1 / 3
LATELY_S: Final = 30.0  # a connection counts as fetching from a group for this long
MAX_NAMELESS: Final = 1000  # topic ids without a name that are remembered as such
MAX_TOPICS: Final = 10_000  # that are remembered: a client may ask for any that it makes up
MAX_NAME: Final = 249  # of a topic: Kafka makes no longer ones
MESSAGE: Final = 1000.0  # bytes that a message is taken to have before one was seen
_NOTHING: Final = (0, 0)


class Dispatch:
    """One connection's. Topics are names, or ids (`by_id`) from Fetch v13 on and in ShareFetch."""

    __slots__ = ("_answer", "_client", "_denied_since", "_last", "_mean", "_mix", "_nameless", "_promised", "_sides",
                 "_used", "_who")  # fmt: skip

    def __init__(self, client: Client) -> None:
        self._client = client
        self._who: tuple[int, str] | None = None  # version of the groups, and principal, that all this is for
        self._sides: dict[tuple[bytes, bool], tuple[GroupSide, bytes] | None] = {}
        self._nameless: set[bytes] = set()
        self._used: dict[GroupSide, float] = {}  # when last
        self._promised: dict[GroupSide, float] = {}  # for the first answer: seconds of the group's rates
        self._mean: dict[GroupSide, float] = {}  # bytes of a message, in the last answer
        self._answer: dict[GroupSide, list[int]] = {}  # of the answer that is passing: bytes, messages
        self._last: dict[GroupSide, list[int]] = {}  # likewise, of the last answer
        self._denied_since = 0.0  # the first request since then found no room
        self._mix: dict[GroupSide, tuple[float, float]] = {}  # of the last answer: the same per byte of its frame

    def ask(self, topics: Iterable[bytes], by_id: bool, now: float) -> float:
        """The seconds that a request listing these topics has to wait."""
        self._renew()
        for side, then in list(self._used.items()):
            if now - then > LATELY_S:
                del self._used[side]
        wait = 0.0
        for topic in topics:
            found = self._find(topic, by_id, now)
            if found is not None:
                side = found[0]
                if side not in self._used:
                    wait = max(wait, side.wait(now))
                self._used[side] = now
        wait = max(wait, self._wait_for_room(now))
        self._denied_since = (self._denied_since or now) if wait else 0.0
        return wait

    def _wait_for_room(self, now: float) -> float:
        """Seconds until a group may have room for an answer like the last one; 0.0: it has."""
        patience = Patience(denied_s=now - self._denied_since if self._denied_since else 0.0)
        wait = 0.0
        for side in self._used:
            if any(line.bucket.in_debt or line.bucket.beyond for line in side.lines):
                size, messages = self._last.get(side, _NOTHING)
                why = side.judge(size, messages, patience, now)
                if why is not None and why.action == REJECT:
                    wait = max(wait, why.throttle_ms / 1000)
        return wait

    def most(self, now: float) -> int | None:
        """Bytes that the request may ask for, at least 1; None: as many as it likes. Its next answer is taken for its
        first of each group that it has had none of.
        """
        most = None
        for side in self._used:
            left, rate = DEBT_S, []
            for line, mean in ((side.bytes, 1.0), (side.msgs, self._mean.get(side, MESSAGE))):
                if line is not None:
                    left = min(left, DEBT_S + line.bucket.level(now) / line.bucket.rate)
                    rate.append(line.bucket.rate * mean)
            if not rate:
                continue
            if side not in self._mean:
                side.promised -= self._promised.get(side, 0.0)
                left -= side.promised
                self._promised[side] = max(0.0, left * PART)
                side.promised += self._promised[side]
            size = max(1, int(left * PART * min(rate)))
            most = size if most is None else min(most, size)
        return most

    def take(
        self, rows: Iterable[tuple[bytes, int, int]], by_id: bool, now: float, *, would_wait: bool = False
    ) -> None:
        """Bytes and messages of these topics pass. `would_wait`: they would not have been asked for yet if groups were
        enforced.
        """
        self._renew()
        for topic, size, messages in rows:
            found = self._find(topic, by_id, now)
            if found is None:
                continue
            side, name = found
            self._used[side] = now
            side.topics.add(name)
            if would_wait:
                side.spare(size, messages)
                continue
            side.take(size, messages, now)
            sums = self._answer.setdefault(side, [0, 0])
            sums[0] += size
            sums[1] += messages

    def end(self, size: int, now: float) -> float:
        """An answer of `size` bytes is over: seconds until the next one may be asked for."""
        self._release()
        wait = 0.0
        self._mix = {}
        for side, (taken, messages) in self._answer.items():
            self._mix[side] = taken / size, messages / size
            self._mean[side] = taken / messages if messages else self._mean.get(side, MESSAGE)
            wait = max(wait, side.wait(now))
        self._last, self._answer = self._answer, {}
        return wait

    def expect(self, size: int, now: float) -> float:
        """The probable result of `end` for an answer of `size` bytes that begins now: it is taken to be like the last
        one.
        """
        wait = 0.0
        for side, parts in self._mix.items():
            for line, part in zip((side.bytes, side.msgs), parts, strict=True):
                if line is not None:
                    after = (size * part - line.bucket.level(now)) / line.bucket.rate
                    wait = max(wait, min(after, line.longest_wait(now)))
        return wait if wait >= MIN_WAIT_S else 0.0

    def close(self) -> None:
        """The connection is over, or the groups are others."""
        self._release()
        self._sides, self._used, self._mean, self._mix, self._answer, self._last = {}, {}, {}, {}, {}, {}

    def _release(self) -> None:
        for side, promised in self._promised.items():
            side.promised -= promised
        self._promised = {}

    def _renew(self) -> None:
        who = self._client.world.engine.groups.version, self._client.principal
        if self._who != who:
            self._who = who
            self.close()

    def _find(self, topic: bytes, by_id: bool, now: float) -> tuple[GroupSide, bytes] | None:
        """The topic's group and its name. None: it is in no group with a dispatch limit, or its name is not known."""
        key = topic, by_id
        try:
            return self._sides[key]
        except KeyError:
            pass
        world = self._client.world
        name = world.cluster.topic_ids.get(topic) if by_id else topic
        if name is None:
            self._miss(topic)
            return None
        if len(name) > MAX_NAME:
            return None
        side = world.engine.groups.dispatch(name, self._client.principal, now)
        if len(self._sides) >= MAX_TOPICS:
            self._sides.clear()
        found = self._sides[key] = None if side is None or not side.lines else (side, name)
        return found

    def _miss(self, topic_id: bytes) -> None:
        if topic_id not in self._nameless:
            if len(self._nameless) >= MAX_NAMELESS:
                self._nameless.clear()
            self._nameless.add(topic_id)
            self._client.world.ledger.count("topic_ids_unknown")
            self._client.world.cluster.want_metadata()
