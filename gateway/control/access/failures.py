# Failed attempts by address: after some in a row an address has to wait, whatever it brings. The cost of guesses is
# described by tokens.py; this keeps them from filling logs and from using the gateway's time, and bounds them for
# tokens that an operator chose himself. Sessions and certificates aren't asked: those can't be guessed.
#
# Pure: `now` is monotonic, in seconds.

from __future__ import annotations

import ipaddress
import math
from typing import Final

# Why a request was refused, as the metric has it.
REASONS: Final = ("missing", "token", "limited", "certificate", "role", "origin", "csrf", "tls")
MAX_BURST: Final = 20  # failures at once
FORGIVE_S: Final = 6.0  # one more is forgiven in so long
MAX_ADDRESSES: Final = 10_000
_IPV6_PREFIX: Final = 64  # one client has as many addresses there as it wants


class FailedAttempts:
    def __init__(self, burst: int = MAX_BURST, every_s: float = FORGIVE_S, most: int = MAX_ADDRESSES) -> None:
        self._burst = burst
        self._every_s = every_s
        self._most = most
        self._clear_at: dict[str, float] = {}  # when all of an address's failures will be forgiven; the oldest first

    def __len__(self) -> int:
        return len(self._clear_at)

    def wait_s(self, address: str, now: float) -> float:
        """Seconds for which this address may not try again; 0: it may."""
        clear_at = self._clear_at.get(_address_key(address), now)
        return max(0.0, clear_at - (self._burst - 1) * self._every_s - now)

    def record_failure(self, address: str, now: float) -> None:
        """Count a failed attempt from that address. With too many addresses, the one that failed longest ago is
        forgotten.
        """
        key = _address_key(address)
        clear_at = max(now, self._clear_at.pop(key, now)) + self._every_s
        if len(self._clear_at) >= self._most:
            del self._clear_at[next(iter(self._clear_at))]
        self._clear_at[key] = clear_at


def retry_after(wait_s: float) -> int:
    """Whole seconds, for the header Retry-After."""
    return max(1, math.ceil(wait_s))


def _address_key(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((int(found), _IPV6_PREFIX), strict=False))
    return str(found)
