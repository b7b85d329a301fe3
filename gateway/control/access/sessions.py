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
MAX_SESSIONS: Final = 1000
MAX_PER_TOKEN: Final = 50  # with the same token
_BYTES: Final = 32


class BrowserSession(NamedTuple):
    """`token`: the digest of the one that was brought. `csrf`: what its pages send along with a change."""

    token: bytes
    csrf: str
    ends_at: float


class _SessionEntry(NamedTuple):
    session: BrowserSession
    used_at: float


def _random_id() -> str:
    return secrets.token_urlsafe(_BYTES)


class BrowserSessions:
    """Sessions by id. Ids are stored as digests, so that the time of a look-up reveals nothing about them."""

    def __init__(
        self,
        idle_s: float = IDLE_S,
        absolute_s: float = ABSOLUTE_S,
        most: int = MAX_SESSIONS,
        most_of_one: int = MAX_PER_TOKEN,
        make: Callable[[], str] = _random_id,
    ) -> None:
        self._idle_s = idle_s
        self._absolute_s = absolute_s
        self._most = most
        self._most_of_one = most_of_one
        self._make_id = make
        self._entries: dict[bytes, _SessionEntry] = {}  # the one used longest ago first

    def __len__(self) -> int:
        return len(self._entries)

    def create_session(self, token: bytes, now: float) -> tuple[str, BrowserSession]:
        """A new session and its id. Where there are too many, the one that was used longest ago ends."""
        self._drop_expired(now)
        same = [key for key, kept in self._entries.items() if kept.session.token == token]
        if len(same) >= self._most_of_one:
            del self._entries[same[0]]
        elif len(self._entries) >= self._most:
            del self._entries[next(iter(self._entries))]
        name, session = self._make_id(), BrowserSession(token, self._make_id(), now + self._absolute_s)
        self._entries[_id_digest(name)] = _SessionEntry(session, now)
        return name, session

    def find_session(self, name: str, now: float) -> BrowserSession | None:
        """The session with that id, which this call marks as used; None: there is none, or it has expired."""
        key = _id_digest(name)
        kept = self._entries.pop(key, None)
        if kept is None or self._is_expired(kept, now):
            return None
        self._entries[key] = kept._replace(used_at=now)
        return kept.session

    def end_session(self, name: str) -> None:
        self._entries.pop(_id_digest(name), None)

    def _drop_expired(self, now: float) -> None:
        self._entries = {key: kept for key, kept in self._entries.items() if not self._is_expired(kept, now)}

    def _is_expired(self, kept: _SessionEntry, now: float) -> bool:
        return now >= kept.session.ends_at or now - kept.used_at >= self._idle_s


def _id_digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
