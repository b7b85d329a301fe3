# Rejected attempts and bytes that were dropped in the end are not the same: a client sends again what was rejected, so
# one batch may be rejected many times, and nothing is lost if its last attempt got in. The gateway tells the bytes that
# had been sent before (`repeats`); here that becomes one number, and whether it is exact. Pure: sums in, numbers out.
#
# Only the life of a worker that rejected a batch recognises the next attempt: where that may have been another's, the
# number is a bound. So it is with discarded bytes, whose client may have come back with them.
#
# Attempts of one batch share topic and client, but neither reason, outcome, time, broker nor worker: sums by one of
# these tear them apart. There each refusal is charged where it came first, whatever became of it later: an upper bound.

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

BYTES_FIELD: Final = "finally_dropped_bytes"
LEAST_FIELD: Final = "finally_dropped_least_bytes"
UPPER_BOUND_FIELD: Final = "finally_dropped_upper_bound"

# The dimensions that all attempts of a batch have in common. Any other dimension, and a window, may tear them apart.
_SHARED_DIMENSIONS: Final = frozenset({"topic", "principal", "client_id", "software", "group"})


class DroppedBytes(NamedTuple):
    """Bytes that never got in: at most `bytes`, at least `least`; the same where all repeats are known."""

    bytes: int
    least: int

    @property
    def upper_bound(self) -> bool:
        """Whether `bytes` is no more than that."""
        return self.least < self.bytes


def tears_attempts(by: Collection[str], window_ms: int | None = None) -> bool:
    """Whether sums by these dimensions tear the attempts of a batch apart."""
    return bool(window_ms) or not _SHARED_DIMENSIONS.issuperset(by)


def count_finally_dropped(sums: Mapping[str, int], torn: bool = False, sees_repeats: bool = True) -> DroppedBytes:
    """Rejected bytes less those sent again, and bytes dropped or discarded before a client could send them again.

    `sums`: a row of transforms.totals; `torn`: the answer of `tears_attempts` for its grouping; `sees_repeats`:
    LogIntegrity's.
    """
    dropped = sums["dropped_bytes"]
    gone = dropped + sums["discarded_bytes"]
    rejected = sums["rejected_bytes"]
    if torn:
        return DroppedBytes(rejected - sums["rejected_again_bytes"] + gone, dropped)
    # Below 0 only where --from cuts between a rejection and the attempt that followed it.
    left = max(0, rejected - sums["repeats_bytes"])
    surely = max(0, left - sums["repeats_unknown_bytes"]) if sees_repeats else 0
    return DroppedBytes(left + gone, surely + dropped)
