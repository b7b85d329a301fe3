# Who has admin rights. Where the configuration names tokens, who brings one of them (RFC 6750); all that is about
# resource groups needs them, reading included, as their proposal (PIP-82) has it, and so does whatever changes
# something else. Without tokens, who asks from this machine has them, and resource groups are closed to everybody else.
#
# A token file that can't be read gives nobody rights: a token that somebody took out of it must not go on. Knows no
# policy.

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import trio

from gateway.tokens import read_tokens

log = logging.getLogger("gateway.control")

ADMIN_API: Final = ("/admin/v2/", "/v1/resource-groups")  # also for who only reads
SAFE: Final = ("GET", "HEAD", "OPTIONS")
MISSING: Final = "produce-gateway.missing"  # in a scope: `Rights.missing` of this request, for who asks once more


class Rights:
    """`token_file`: read when it changes, at the earliest with the next request."""

    def __init__(self, tokens: Collection[str] = (), token_file: Path | None = None) -> None:
        self._tokens = tuple(tokens)
        self._file = token_file
        self._seen: tuple[int, ...] | None = None  # the file that `_in_file` was read from
        self._in_file: tuple[str, ...] = ()
        self._problem = ""

    async def refuse(self, method: str, path: str, headers: Mapping[str, str], peer: str) -> str:
        """Why this request may not be, and what would be right; "" where it may.

        Args:
            peer: the address that it came from, without a port.
        """
        is_open = not self._tokens and self._file is None
        if not path.startswith(ADMIN_API) and (is_open or method in SAFE):
            return ""
        return await self.missing(headers, peer)

    async def missing(self, headers: Mapping[str, str], peer: str) -> str:
        """Why this asker has no admin rights, and what would be right; "" for one who has."""
        if not self._tokens and self._file is None:
            if _is_here(peer):
                return ""
            return (
                "admin rights are needed, and this gateway has no admin.tokens or admin.token_file: so only the machine"
                f" that it runs on has them, not {peer or 'an unknown address'}"
            )
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            return (
                "admin rights are needed: send the header Authorization: Bearer TOKEN, with a token of admin.tokens or"
                " admin.token_file; commands take --token-file"
            )
        known = self._tokens + await self._read_file()
        digest = sha256(given.strip().encode()).digest()
        # All of them, each by its digest: the time this takes says nothing about any token.
        found = [hmac.compare_digest(digest, sha256(token.encode()).digest()) for token in known]
        if any(found):
            return ""
        return f"the token gives no admin rights{self._problem}: bring one of admin.tokens or admin.token_file"

    async def _read_file(self) -> tuple[str, ...]:
        if self._file is None:
            return ()
        return await trio.to_thread.run_sync(self._load, self._file)

    def _load(self, path: Path) -> tuple[str, ...]:
        try:
            stat = os.stat(path)
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen != self._seen:
                self._in_file, self._seen = read_tokens(path), seen
                self._note("")
        except (OSError, ValueError) as error:
            self._in_file, self._seen = (), None
            self._note(f"{path}: {(error.strerror if isinstance(error, OSError) else None) or error}")
        return self._in_file

    def _note(self, problem: str) -> None:
        text = ", as the token file can't be read" if problem else ""
        if problem and not self._problem:
            log.warning("admin.token_file: %s: no token of it is valid", problem)
        elif self._problem and not problem:
            log.info("admin.token_file can be read again")
        self._problem = text


def _is_here(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
