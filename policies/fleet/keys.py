# Names of limits that hold over several processes: of one gateway's workers, and of all gateways of a cluster. A key is
# one text, the same wherever it is made, so that it can be a dictionary's key, travel, and be interned.
#
# Knows no limit and no traffic.

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final, Literal, NamedTuple

FleetKey = str
Direction = Literal["publish", "dispatch"]
LimitUnit = Literal["bytes", "msgs"]

GROUP: Final = "g"
QUOTA: Final = "q"
TOTAL: Final = "t"
CONSUMER_SHARES: Final = "consumer_byte_rate.shares"


class GroupName(NamedTuple):
    """A resource group's limit in one direction and unit (PIP-82)."""

    group: str
    direction: Direction
    unit: LimitUnit


class QuotaName(NamedTuple):
    """One bucket of a client quota (KIP-546). `key`: as the wire spells it. `user`, `client_id`, `node_id` None: the
    bucket does not depend on it. Of CONSUMER_SHARES: the total that all of them share.
    """

    key: str
    user: str | None
    client_id: str | None
    node_id: int | None


class TotalName(NamedTuple):
    """A broker's `total.bytes.in.per.sec.threshold` (V1), where it delays."""

    node_id: int


LimitName = GroupName | QuotaName | TotalName


def group_key(group: str, direction: Direction, unit: LimitUnit) -> FleetKey:
    return _encode_key([GROUP, group, direction, unit])


def quota_key(key: str, user: str | None, client_id: str | None, node_id: int | None) -> FleetKey:
    return _encode_key([QUOTA, key, user, client_id, node_id])


@lru_cache(maxsize=1024)
def total_key(node_id: int) -> FleetKey:
    return _encode_key([TOTAL, node_id])


@lru_cache(maxsize=1024)
def total_out_key(node_id: int) -> FleetKey:
    """The key of a broker's `total.bytes.out.per.sec.threshold`, which all consumers with shares share."""
    return quota_key(CONSUMER_SHARES, None, None, node_id)


def parse_key(key: FleetKey) -> LimitName:
    """
    Raises:
        ValueError: it is not a valid key.
    """
    try:
        match json.loads(key):
            case ["g", str(group), ("publish" | "dispatch") as direction, ("bytes" | "msgs") as unit]:
                return GroupName(group, direction, unit)
            case ["q", str(name), str() | None as user, str() | None as client_id, int() | None as node_id]:
                return QuotaName(name, user, client_id, node_id)
            case ["t", int(node_id)]:
                return TotalName(node_id)
    except (ValueError, RecursionError):
        pass
    raise ValueError(f"{key[:80]!r} names no limit of a fleet")


def _encode_key(parts: list[str | int | None]) -> FleetKey:
    return json.dumps(parts, separators=(",", ":"))
