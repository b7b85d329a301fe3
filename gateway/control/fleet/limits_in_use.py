# The limits of all gateways that the workers of this one use just now, and how much each is. Limits are looked up as
# their keys turn up, since a quota's bucket has names that only traffic brings; a key that no worker has used
# anything for a while is forgotten.
#
# Knows no shares and no clock: `now` is seconds on a monotonic clock.

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from policies.definitions.policy_set import PolicySet
from policies.fleet.keys import CONSUMER_SHARES, FleetKey, GroupName, LimitName, QuotaName, TotalName, parse_key
from policies.groups.names import RATE_KEYS
from policies.quotas.names import Entity, QuotaError, QuotaKey
from policies.quotas.store import BucketKey

IDLE_S: Final = 60.0
MAX_KEYS: Final = 100_000  # clients may make names of quotas' buckets up: the rest has even shares


class ConfiguredLimits:
    """The configured limits, per second: bytes or messages."""

    def __init__(self, policies: PolicySet) -> None:
        self._policies = policies

    def find_limit(self, name: LimitName) -> float | None:
        """None: there is no such limit (any more)."""
        match name:
            case GroupName(group, direction, unit):
                return self._policies.group_limits().get(group, {}).get(RATE_KEYS[direction, unit])
            case TotalName(node_id):
                return self._policies.broker_total(node_id)
            case QuotaName(key, None, None, int() as node_id) if key == CONSUMER_SHARES:
                return self._policies.broker_total_out(node_id)
            case QuotaName(key, user, client_id):
                return self._find_quota(key, user, client_id)

    def _find_quota(self, key: str, user: str | None, client_id: str | None) -> float | None:
        """A bucket has the names of its entity's types, so it was made from the quota in force for these."""
        try:
            bucket = BucketKey(QuotaKey.parse(key), user, client_id)
        except QuotaError:
            return None
        if bucket.key.unit in ("shares", "percent"):  # of a broker's total, and of this machine's threads
            return None
        for found in self._policies.quota_store().effective_quotas(
            Entity(user, client_id), omit_overridden_values=True
        ):
            if found.bucket == bucket:
                return found.value
        return None


class LimitsInUse:
    """Keys of limits in use. `limits`: the size of each."""

    def __init__(self, policies: PolicySet) -> None:
        self.limits: dict[FleetKey, float] = {}
        self._configured = ConfiguredLimits(policies)
        self._names: dict[FleetKey, LimitName] = {}
        self._busy: dict[int, set[FleetKey]] = {}  # by worker
        self._idle_since: dict[FleetKey, float] = {}
        self._new: set[FleetKey] = set()

    def set_policies(self, policies: PolicySet) -> None:
        self._configured = ConfiguredLimits(policies)
        self._new.update(self._names)

    def find_limit(self, key: FleetKey) -> float | None:
        """The size of any limit, in use or not; None: there is none."""
        if key in self.limits and key not in self._new:
            return self.limits[key]
        try:
            return self._configured.find_limit(parse_key(key))
        except ValueError:
            return None

    def record_use(self, worker: int, key: FleetKey, idle: bool) -> bool:
        """A worker uses the limit, or has ceased to. False: it is not a key, or there are too many."""
        if key not in self._names:
            if len(self._names) >= MAX_KEYS:
                return False
            try:
                self._names[key] = parse_key(key)
            except ValueError:
                return False
            self._new.add(key)
        busy = self._busy.setdefault(worker, set())
        if idle:
            busy.discard(key)
        else:
            busy.add(key)
        return True

    def set_busy(self, worker: int, keys: Iterable[FleetKey]) -> None:
        """All limits that this worker uses."""
        self._busy[worker] = set(keys)

    def forget_worker(self, worker: int) -> None:
        self._busy.pop(worker, None)

    def forget_idle_limits(self, now: float) -> None:
        """Forget keys unused for IDLE_S; call it now and then."""
        used: set[FleetKey] = set().union(*self._busy.values())
        idle = {key: self._idle_since.get(key, now) for key in self._names.keys() - used}
        for key in [key for key, since in idle.items() if now - since >= IDLE_S]:
            del idle[key], self._names[key]
            self._new.add(key)
        self._idle_since = idle

    @property
    def is_behind(self) -> bool:
        """Whether `refresh_limits` has more to look up."""
        return bool(self._new)

    def refresh_limits(self, most: int | None = None) -> dict[FleetKey, float | None]:
        """Look limits up where something changed, at most so many; returns those of `limits` that changed, None: it is
        no limit any more.
        """
        changed: dict[FleetKey, float | None] = {}
        for _ in range(len(self._new) if most is None else min(most, len(self._new))):
            key = self._new.pop()
            name = self._names.get(key)
            limit = None if name is None else self._configured.find_limit(name)
            if self.limits.get(key) == limit:
                continue
            changed[key] = limit
            if limit is None:
                del self.limits[key]
            else:
                self.limits[key] = limit
        self._new = self._new or set()  # an emptied set keeps its memory
        return changed
