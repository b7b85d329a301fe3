# Tokens of the admin port (RFC 6750): how they look, how a file of them looks, and how one is made.
#
# A file has one holder in each line, as NAME:ROLE:sha256:HEX, where HEX is the SHA-256 of the token; so who reads the
# file can't use it. A fast hash is right for these, where it would be wrong for passwords: a token of ours has 256 bits
# from the operating system's source, nobody guesses one however fast, and a slow hash would only let strangers keep
# the gateway busy. A line that is a token itself, as earlier releases had them, has no name and all rights.
#
# Knows no request.

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from gateway.access_tokens.roles import ROLE_NAMES, AccessRole, parse_role

MIN_TOKEN_LENGTH: Final = 16  # of 64 characters: not to be guessed
MAX_TOKEN_LENGTH: Final = 4096
MAX_NAME_LENGTH: Final = 100
MAX_HOLDERS: Final = 1000  # each is compared with at each request
FILE_VARIABLE: Final = "PRODUCE_GATEWAY_TOKEN_FILE"
SCANNER_PREFIX: Final = "pgw_"  # by which scanners of repositories and logs find a token
TOKEN_BYTES: Final = 32
HASH_NAME: Final = "sha256"
_CREATE_HINT: Final = "produce-gateway token create --name NAME --role ROLE makes one"
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{MAX_NAME_LENGTH - 1}}}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class TokenHolder(NamedTuple):
    """Who has a token. `name` "": nobody said; `digest`: SHA-256 of the token."""

    name: str
    role: AccessRole
    digest: bytes


def make_token() -> str:
    return SCANNER_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def format_token_line(name: str, role: AccessRole, token: str) -> str:
    """The line of a token file."""
    return f"{check_name(name)}:{role.label}:{HASH_NAME}:{hash_token(token).hex()}"


def check_name(name: str) -> str:
    """
    Raises:
        ValueError: nobody can have that name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a name has letters, digits, '.', '_', '@' and '-', begins with one of the first two, and has at most"
            f" {MAX_NAME_LENGTH} characters"
        )
    return name


def check_token(token: str) -> str:
    """
    Raises:
        ValueError: its fault; without the token, since others may read that.
    """
    if not _TOKEN.fullmatch(token):
        raise ValueError(
            f"a token has letters, digits, '.', '_', '~', '+', '/' and '-', '=' at its end: {_CREATE_HINT}"
        )
    if not MIN_TOKEN_LENGTH <= len(token) <= MAX_TOKEN_LENGTH:
        raise ValueError(
            f"a token has {MIN_TOKEN_LENGTH} to {MAX_TOKEN_LENGTH} characters, not {len(token)}: {_CREATE_HINT}"
        )
    return token


def parse_token_line(line: str) -> TokenHolder:
    """A line of a token file.

    Raises:
        ValueError: its fault; without the line, which may have a token in it.
    """
    if ":" not in line:
        return TokenHolder("", AccessRole.ADMIN, hash_token(check_token(line)))
    parts = line.split(":")
    if len(parts) != 4:
        raise ValueError(f"{len(parts)} parts where four are needed: NAME:ROLE:{HASH_NAME}:HEX: {_CREATE_HINT}")
    name, role, kind, digest = parts
    if kind != HASH_NAME:
        raise ValueError(f"the third part names the hash, and only {HASH_NAME} is known: {_CREATE_HINT}")
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"a hash has 64 of the characters 0 to 9 and a to f: {_CREATE_HINT}")
    return TokenHolder(check_name(name), parse_role(role), bytes.fromhex(digest))


def read_holders(path: Path) -> tuple[TokenHolder, ...]:
    """One in each line; empty lines, and those that begin with #, are left out.

    Raises:
        OSError: it can't be read.
        ValueError: the line and its fault, or that there is no token.
    """
    found: dict[bytes, tuple[int, TokenHolder]] = {}
    for number, line in _numbered_lines(path):
        try:
            holder = parse_token_line(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if holder.digest in found:
            raise ValueError(f"line {number}: the token of line {found[holder.digest][0]} once more: take one away")
        found[holder.digest] = (number, holder)
    if not found:
        raise ValueError(f"there is no token in it: {_CREATE_HINT}")
    if len(found) > MAX_HOLDERS:
        raise ValueError(f"{len(found)} tokens, {MAX_HOLDERS} are the most")
    return tuple(holder for _, holder in found.values())


def read_first_token(path: Path) -> str:
    """The first token of a file, for a command to send.

    Raises:
        OSError: it can't be read.
        ValueError: the line and its fault, or that there is no token.
    """
    for number, line in _numbered_lines(path):
        if ":" in line:
            raise ValueError(
                f"line {number}: this is the gateway's file, with hashes of tokens: give one that has the token itself"
            )
        try:
            return check_token(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    raise ValueError(f"there is no token in it: {_CREATE_HINT}")


def _numbered_lines(path: Path) -> Iterable[tuple[int, str]]:
    for number, line in enumerate(path.read_text("utf-8-sig").splitlines(), 1):
        if (text := line.strip()) and not text.startswith("#"):
            yield number, text


__all__ = [
    "FILE_VARIABLE",
    "ROLE_NAMES",
    "TokenHolder",
    "check_name",
    "check_token",
    "format_token_line",
    "hash_token",
    "make_token",
    "parse_token_line",
    "read_first_token",
    "read_holders",
]
