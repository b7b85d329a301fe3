# Tokens that give admin rights on the REST API (RFC 6750): how they look, and where a command or a gateway reads them.
# Knows no request.

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

MIN_LENGTH: Final = 16  # of 64 characters: nobody guesses that
MAX_LENGTH: Final = 4096
FILE_VARIABLE: Final = "PRODUCE_GATEWAY_TOKEN_FILE"
_MAKE: Final = "openssl rand -hex 32 makes one"
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def check_token(token: str) -> str:
    """
    Raises:
        ValueError: what is wrong with it; without the token, since others may read that.
    """
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"a token has letters, digits, '.', '_', '~', '+', '/' and '-', '=' at its end: {_MAKE}")
    if not MIN_LENGTH <= len(token) <= MAX_LENGTH:
        raise ValueError(f"a token has {MIN_LENGTH} to {MAX_LENGTH} characters, not {len(token)}: {_MAKE}")
    return token


def read_tokens(path: Path) -> tuple[str, ...]:
    """One in each line; empty lines, and those that begin with #, are left out.

    Raises:
        OSError: it can't be read.
        ValueError: what is wrong with which line, or that there is no token.
    """
    tokens = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        token = line.strip()
        if not token or token.startswith("#"):
            continue
        try:
            tokens.append(check_token(token))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if not tokens:
        raise ValueError(f"there is no token in it: {_MAKE}")
    return tuple(tokens)
