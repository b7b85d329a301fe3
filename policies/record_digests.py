# A chain of digests through the usage records of a worker's life, so that a changed, removed or inserted record shows.
# Each record has the digest of the one before it in its life (`previous_digest`; none: it begins the chain), and as its
# last field its own, over all bytes before that field. So a record can be checked alone, in any order, and a pair of
# neighbours by comparing two texts. A note of a worker's loss follows the life's last record, and none follows it.
#
# A digest is `sha256:` and 32 hexadecimal digits, the first half of SHA-256: it shows that something changed unless all
# later records of the life were written anew. Or `hmac-sha256:` and as many of HMAC-SHA-256: nobody without the key can
# write such a record. Knows neither files nor the other fields of a record.

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

PLAIN: Final = "sha256"
KEYED: Final = "hmac-sha256"
_DIGITS: Final = 32  # hexadecimal ones: 128 bits
_ROWS: Final = b',"rows":'  # text in a record has its quotes escaped, so both marks stand for themselves
_MARK: Final = b',"record_digest":"'
_END: Final = b'"}'


def chain_record(line: bytes, previous: str, key: bytes | None) -> bytes:
    """The record (usage.encode_interval, encode_lost), with both digests. `previous`: "" for the first of a life."""
    head, mark, rows = line.partition(_ROWS)
    field = f',"previous_digest":"{previous}"'.encode() if previous else b""
    body = head + field + mark + rows.removesuffix(b"}")
    return body + _MARK + _make_digest(body, key).encode() + _END


def find_digest(line: bytes) -> str:
    """The digest of a record that `chain_record` made, else ""."""
    _, mark, rest = line.rpartition(_MARK)
    return rest.removesuffix(_END).decode("ascii", "replace") if mark else ""


def is_changed(line: bytes, digest: str | None, keys: Sequence[bytes]) -> bool | None:
    """Whether a record is not as it was written. None: unknown, as it has no digest, or needs a key and there is none.

    `digest`: what it says to be its own. With `keys`, it has to be made with one of them.
    """
    if digest is None:
        return True if keys else None
    body, _, rest = line.rpartition(_MARK)
    if rest.rstrip() != digest.encode() + _END:
        return True
    if keys:
        return not any(hmac.compare_digest(_make_digest(body, key), digest) for key in keys)
    return None if digest.startswith(f"{KEYED}:") else _make_digest(body, None) != digest


def _make_digest(body: bytes, key: bytes | None) -> str:
    if key is None:
        return f"{PLAIN}:{hashlib.sha256(body).hexdigest()[:_DIGITS]}"
    return f"{KEYED}:{hmac.digest(key, body, 'sha256').hex()[:_DIGITS]}"
