# Limits that hold over more than this process: what part of each is ours, and lines (line.py) that go by it. Who deals
# parts out knows everybody's demand; here they are only kept, and multiplied by what makes a limit smaller just now
# (the storage factor). A limit without a part yet begins with an even share of it.
#
# Alone (`members` 1) every limit is whole, parts are not looked at, and lines are what they were without a fleet.
#
# Where nobody deals parts out any more, lines go by what they were told for that case: an even share; or, where others
# have given away what was ours, by a floor, and all parts are forgotten: they are somebody else's.
#
# Who was idle has next to no part, and its true one a cycle or two later. So whoever has to wait for a line that has
# just become busy waits no longer than that, whatever it owes; the debt stays.
#
# Knows no traffic, no clock and no other member.

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final
from weakref import WeakValueDictionary

from policies.fleet.keys import FleetKey
from policies.fleet.shares import FLOORS, Part
from policies.limits.line import AT_ONCE, BURST_S, Answer, Line

LOWEST: Final = 1.0  # per second: a line needs a rate, also where nothing is left
# Seconds that are saved of a part: less than of a whole limit, as what all have saved may come in one second; and
# when our part becomes smaller, what was saved of it is somebody else's by then.
SHARED_BURST_S: Final = 0.25


class OurParts:
    """What is ours of every limit. `members`: processes that share. `settle_s`: 0 while we are alone."""

    def __init__(self) -> None:
        self.members = 1
        self.settle_s = 0.0
        self.lines: WeakValueDictionary[FleetKey, FleetLine] = WeakValueDictionary()
        self._parts: dict[FleetKey, Part] = {}
        self._falls_back = False
        self._is_lost = False

    def share(self, key: FleetKey, limit: float) -> float:
        """Ours of `limit`, the whole one as configured; never more than that."""
        if self.members == 1:
            return limit
        if self._is_lost:
            return FLOORS * limit / self.members
        part = self._parts.get(key)
        if part is None:
            return limit / self.members
        return min(limit, part.fallback if self._falls_back else part.rate)

    def fraction(self, key: FleetKey, limit: float) -> float:
        """Ours of that limit, 0..1."""
        return 1.0 if self.members == 1 or limit <= 0.0 else self.share(key, limit) / limit

    def tell(self, parts: Mapping[FleetKey, Part], members: int, settle_s: float, now: float) -> None:
        """Parts that are new; those not mentioned stay. A rate below 0 takes one away."""
        for key, part in parts.items():
            if part.rate < 0.0:
                self._parts.pop(key, None)
            else:
                self._parts[key] = part
        others_came = members != self.members
        everything = others_came or self._falls_back
        self._falls_back = self._is_lost = False
        self.members = max(1, members)
        self.settle_s = settle_s if self.members > 1 else 0.0
        if everything:
            for line in list(self.lines.values()):
                if others_came:
                    line.unsettle(now)
                line.retune(now)
            return
        for key in parts:
            changed = self.lines.get(key)
            if changed is not None:
                changed.retune(now)

    def fall_back(self, now: float) -> None:
        """Nobody has said anything for too long."""
        if not self._falls_back:
            self._falls_back = True
            for line in list(self.lines.values()):
                line.retune(now)

    def lose(self, now: float) -> None:
        """Nobody has, and others have what was ours: until we are told something new, a floor is left, as for somebody
        who is idle. It may be over soon, so whoever has to wait waits for no longer than `settle_s` at first.
        """
        if not self._is_lost:
            self._falls_back = self._is_lost = True
            self._parts.clear()
            for line in list(self.lines.values()):
                line.unsettle(now)
                line.retune(now)

    @property
    def falls_back(self) -> bool:
        """Whether nobody has said anything for too long."""
        return self._falls_back


class FleetLine(Line):
    """Our part of one limit.

    `limit`: the whole one, as configured; times `factor` it is in force. `spent`: of it since ever, in the unit of
    `bucket`. `hungry`: somebody had to wait for it or was turned away since somebody set this to False. `key` "": its
    rate is not a fleet's. `topics`: with traffic. `noted`: for whoever looks at `spent`.

    Debts are bytes: our part and the factor change, what is owed doesn't. A limit that is cut takes effect at once: a
    debt of some seconds is one of as many at the new rate, not of a multiple.
    """

    __slots__ = ("__weakref__", "_least", "_settled", "_used", "factor", "fleet", "hungry", "key", "limit", "noted",
                 "spent", "topics")  # fmt: skip

    def __init__(
        self,
        fleet: OurParts,
        key: FleetKey,
        limit: float,
        factor: float,
        now: float,
        least: float = LOWEST,
        *,
        own: bool = False,
    ) -> None:
        super().__init__(max(least, limit * factor), now, own=own)
        self.fleet = fleet
        self.key = key
        self.limit = limit
        self.factor = factor
        self.spent = self.noted = 0.0
        self.hungry = False
        self.topics = 0
        self._least = least
        self._used = -math.inf  # when something was taken
        self._settled = -math.inf  # until then its rate is provisional
        if key:
            fleet.lines[key] = self
            self.retune(now)

    def ask(self, size: float, now: float, may_wait: bool, denied_s: float) -> Answer:
        answer = super().ask(size, now, may_wait, denied_s)
        if answer is AT_ONCE:
            return answer
        self.hungry = True
        longest = self.longest_wait(now)
        return answer if answer.wait <= longest else answer._replace(wait=longest)

    def take(self, size: float, now: float) -> None:
        self.bucket.take(size, now)
        self.note_use(size, now)

    def give_back(self, size: float) -> None:
        self.bucket.give_back(size)
        self.spent -= size

    def note_use(self, size: float, now: float) -> None:
        """So much was taken from the bucket."""
        self.spent += size
        settle_s = self.fleet.settle_s
        if now - self._used > settle_s:
            self._settled = now + settle_s
        self._used = now

    def wait(self, now: float) -> float:
        """Seconds until the debt is paid, and then what one has to wait for it; 0.0 without one."""
        wait = self.bucket.wait(now)
        return min(wait, self.longest_wait(now)) if wait else 0.0

    def longest_wait(self, now: float) -> float:
        """Seconds that anybody may have to wait: without an end unless its rate is provisional."""
        settle_s = self.fleet.settle_s
        provisional = settle_s > 0.0 and (now < self._settled or now - self._used > settle_s)
        return settle_s if provisional else math.inf

    def unsettle(self, now: float) -> None:
        """Its rate is provisional from now on."""
        self._settled = now + self.fleet.settle_s

    def set_limit(self, limit: float, factor: float, now: float) -> None:
        """Another limit, or another factor."""
        if limit < self.limit:
            self.bucket.forgive(max(0.0, -self.bucket.level(now)) * limit / self.limit)
        self.limit = limit
        self.factor = factor
        self.retune(now)

    def retune(self, now: float) -> None:
        """Go by our part as it is now."""
        self.bucket.set_burst(SHARED_BURST_S if self.fleet.members > 1 else BURST_S, now)
        rate = max(self._least, self.fleet.share(self.key, self.limit) * self.factor)
        # The bound of an entity's debt goes by the whole limit, since a part goes when it isn't used.
        self.bucket.set_rate(rate, now, max(self._least, self.limit) if self.own else rate)
