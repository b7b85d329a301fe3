# Sessions of browsers: a random id in a cookie stands for the token that was brought once. They are kept in memory and
# nowhere else, so a restart of control ends them. A session is about a token, not about rights: which role it has is
# asked anew at each request, and it is over as soon as the token is.
#
# Pure: `now` is monotonic, in seconds.

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

IDLE_S: Final = 30 * 60.0  # OWASP: 15 to 30 minutes; a page that is open and live keeps its session
ABSOLUTE_S: Final = 12 * 3600.0  # a shift
MOST: Final = 1000
MOST_OF_ONE: Final = 50  # with the same token
_BYTES: Final = 32


class Session(NamedTuple):
    """`token`: the digest of the one that was brought. `csrf`: what its pages send along with a change."""

    token: bytes
    csrf: str
    ends_at: float


class _Kept(NamedTuple):
    session: Session
    used_at: float


def _random() -> str:
    return secrets.token_urlsafe(_BYTES)


class Sessions:
    """By id. Ids are kept as their digests: how long a look takes says nothing about any."""

    def __init__(
        self,
        idle_s: float = IDLE_S,
        absolute_s: float = ABSOLUTE_S,
        most: int = MOST,
        most_of_one: int = MOST_OF_ONE,
        make: Callable[[], str] = _random,
    ) -> None:
        self._idle_s = idle_s
        self._absolute_s = absolute_s
        self._most = most
        self._most_of_one = most_of_one
        self._make = make
        self._kept: dict[bytes, _Kept] = {}  # the one used longest ago first

    def __len__(self) -> int:
        return len(self._kept)

    def create(self, token: bytes, now: float) -> tuple[str, Session]:
        """A new one with its id. Where there are too many, the one that was used longest ago is over."""
        self._drop_ended(now)
        same = [key for key, kept in self._kept.items() if kept.session.token == token]
        if len(same) >= self._most_of_one:
            del self._kept[same[0]]
        elif len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
        name, session = self._make(), Session(token, self._make(), now + self._absolute_s)
        self._kept[_digest(name)] = _Kept(session, now)
        return name, session

    def find(self, name: str, now: float) -> Session | None:
        """The one with that id, which is used by this; None: there is none, or its time is over."""
        key = _digest(name)
        kept = self._kept.pop(key, None)
        if kept is None or self._is_over(kept, now):
            return None
        self._kept[key] = kept._replace(used_at=now)
        return kept.session

    def end(self, name: str) -> None:
        self._kept.pop(_digest(name), None)

    def _drop_ended(self, now: float) -> None:
        self._kept = {key: kept for key, kept in self._kept.items() if not self._is_over(kept, now)}

    def _is_over(self, kept: _Kept, now: float) -> bool:
        return now >= kept.session.ends_at or now - kept.used_at >= self._idle_s


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
