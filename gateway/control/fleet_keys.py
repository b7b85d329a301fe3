# Which limits the workers of this gateway take of just now, how much each is, and how far it holds: over all gateways,
# or over this one's workers. Limits are looked up as their keys turn up, since a quota's bucket has names that only
# traffic brings; a key of which nobody has taken anything for a while is forgotten.
#
# Knows no shares and no clock: `now` is seconds on a monotonic clock.

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from policies.fleet.keys import FleetKey, GroupName, Name, QuotaName, TotalName, parse
from policies.groups.names import MEANS
from policies.policy_set import PolicySet
from policies.quotas.names import Entity, QuotaError, QuotaKey
from policies.quotas.store import BucketKey, QuotaStore

IDLE_S: Final = 60.0
MAX_KEYS: Final = 100_000  # clients may make names of quotas' buckets up: the rest has even parts
_RATES: Final = {means: key for key, means in MEANS.items()}


class Limits:
    """What is configured, per second: bytes, messages, or seconds of a thread's time."""

    def __init__(self, policies: PolicySet) -> None:
        self._groups = policies.groups()
        self._quotas: QuotaStore = policies.quotas()
        self._total, self._totals = policies.total(), policies.totals()

    def of(self, name: Name) -> float | None:
        """None: there is no such limit (any more)."""
        match name:
            case GroupName(group, direction, unit):
                return self._groups.get(group, {}).get(_RATES[direction, unit])
            case TotalName(node_id):
                return self._totals.get(node_id, self._total)
            case QuotaName(key, user, client_id):
                return self._quota(key, user, client_id)

    def _quota(self, key: str, user: str | None, client_id: str | None) -> float | None:
        """A bucket has the names of its entity's types, so what holds for these is what it was made from."""
        try:
            bucket = BucketKey(QuotaKey.parse(key), user, client_id)
        except QuotaError:
            return None
        unit = bucket.key.unit
        if unit == "shares":  # parts of a broker's total, which workers deal out
            return None
        for found in self._quotas.effective(Entity(user, client_id), omit_overridden_values=True):
            if found.bucket == bucket:
                return found.value / 100.0 if unit == "percent" else found.value
        return None


def holds_here(name: Name) -> bool:
    """Over this gateway's workers alone: a share of a thread's time is one of this machine's."""
    return isinstance(name, QuotaName) and name.key.startswith("request_percentage")


class Keys:
    """Keys in use. `fleet`, `here`: their limits, by how far they hold. `began`: set when somebody is the first to take
    of one.
    """

    def __init__(self, policies: PolicySet) -> None:
        self.fleet: dict[FleetKey, float] = {}
        self.here: dict[FleetKey, float] = {}
        self.began = False
        self._limits = Limits(policies)
        self._names: dict[FleetKey, Name] = {}
        self._busy: dict[int, set[FleetKey]] = {}  # by worker
        self._idle_since: dict[FleetKey, float] = {}
        self._new: set[FleetKey] = set()

    def set_policies(self, policies: PolicySet) -> None:
        self._limits = Limits(policies)
        self._new.update(self._names)

    def use(self, worker: int, key: FleetKey, idle: bool) -> bool:
        """Somebody takes of it, or has ended to; False: it is no key, or there are too many."""
        if key not in self._names:
            if len(self._names) >= MAX_KEYS:
                return False
            try:
                self._names[key] = parse(key)
            except ValueError:
                return False
            self._new.add(key)
        busy = self._busy.setdefault(worker, set())
        if idle:
            busy.discard(key)
        elif key not in busy:
            self.began |= not any(key in other for other in self._busy.values())
            busy.add(key)
        return True

    def is_here(self, key: FleetKey) -> bool:
        """Of one in use: whether it holds over this gateway's workers alone."""
        return holds_here(self._names[key])

    def set_busy(self, worker: int, keys: Iterable[FleetKey]) -> None:
        """All that this worker takes of."""
        self._busy[worker] = set(keys)

    def forget_worker(self, worker: int) -> None:
        self._busy.pop(worker, None)

    def sweep(self, now: float) -> None:
        """Forget what nobody has used for IDLE_S; call it now and then."""
        used: set[FleetKey] = set().union(*self._busy.values())
        idle = {key: self._idle_since.get(key, now) for key in self._names.keys() - used}
        for key in [key for key, since in idle.items() if now - since >= IDLE_S]:
            del idle[key], self._names[key]
            self._new.add(key)
        self._idle_since = idle

    def refresh(self) -> bool:
        """Look limits up where something is new; whether `fleet` or `here` are others now."""
        changed = False
        for key in self._new:
            name = self._names.get(key)
            limit = None if name is None else self._limits.of(name)
            here, fleet = (None, limit) if name is None or not holds_here(name) else (limit, None)
            for limits, own in ((self.here, here), (self.fleet, fleet)):
                changed |= limits.get(key) != own
                if own is None:
                    limits.pop(key, None)
                else:
                    limits[key] = own
        self._new.clear()
        return changed
