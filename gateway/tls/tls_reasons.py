# Why OpenSSL could not go on with a connection, by the names that Python gives its reasons.

from __future__ import annotations

import ssl
from typing import Final

# Those of a peer that does not speak TLS at all.
NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")
BROKEN_RECORD: Final = "RECORD_LAYER_FAILURE"
BROKEN_RECORD_REASON: Final = "it sends something other than TLS, or its data was changed in transit"


def openssl_reason(error: ssl.SSLError) -> str:
    """Its name; "" where there is none.

    OpenSSL from 3.2 on has BROKEN_RECORD for most of what can be wrong with a record, be it a broken one, one that is
    too long, or none at all. Python 3.11 doesn't know that reason, and only the text has it.
    """
    reason: str | None = getattr(error, "reason", None)
    return reason or (BROKEN_RECORD if "record layer failure" in str(error) else "")
