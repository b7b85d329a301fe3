# A secret of the gateway's own, for what clients must not be able to compute: whether a user exists (decoys), and which
# client ids a rollout begins with. It is the file `secret_key_file`, which the gateways of a cluster share, or else one
# in the spool, made once. Each purpose has a key of its own, derived from it.
#
# Knows no use of them.

from __future__ import annotations

import hmac
import logging
import os
import secrets
from pathlib import Path
from typing import Final

from gateway.config import Settings
from gateway.system.files import sync_directory

log = logging.getLogger("gateway.control")

KEY_FILE_NAME: Final = "secret-key"  # in the spool
MIN_BYTES: Final = 32  # of the text: 128 bits, where it is hexadecimal digits
ROLLOUT_PURPOSE: Final = "rollout"  # the purpose of the key of policies.definitions.rollout
_BYTES: Final = 32


def read_secret(path: Path) -> bytes:
    """The contents of that file, without white space around them.

    Raises:
        OSError: it can't be read.
        ValueError: it is too short.
    """
    secret = path.read_bytes().strip()
    if len(secret) < MIN_BYTES:
        raise ValueError(f"must have {MIN_BYTES} bytes or more, and has {len(secret)}: openssl rand -hex 32 makes one")
    return secret


def find_secret(settings: Settings) -> bytes | None:
    """The gateway's secret, where it can be read from here."""
    try:
        return read_secret(_secret_path(settings))
    except (OSError, ValueError):
        return None


def obtain_secret(settings: Settings) -> bytes:
    """The gateway's secret, made now where it has none. If that can't be had, one that lasts until the process ends:
    clients go on.
    """
    path = _secret_path(settings)
    try:
        if settings.secret_key_file is None and not path.exists():
            _write_secret(path)
        return read_secret(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        log.error("secret key: %s: %s; going on with one that lasts until this process ends", path, why)
        return secrets.token_bytes(_BYTES)


def derive_key(secret: bytes, purpose: str) -> bytes:
    """A key of 32 bytes for that purpose alone: who knows one can compute no other."""
    return hmac.digest(secret, purpose.encode(), "sha256")


def _secret_path(settings: Settings) -> Path:
    return settings.secret_key_file or settings.usage_log.spool_dir / KEY_FILE_NAME


def _write_secret(path: Path) -> None:
    """The spool is this process' alone, so nobody else makes one at the same time."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{secrets.token_hex(_BYTES)}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)
