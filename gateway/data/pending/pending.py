# What requests in flight are owed: the kinds of their entries.
#
# A broker answers the requests of one connection strictly in order, and so do we, with answers of our own among the
# upstream's: a FIFO of entries (gateway/data/pending/in_flight.py), not a map by correlation id (a client may reuse
# one). Requests with acks=0 are owed nothing and never enter. An entry is a tuple: correlation id, kind, and what
# belongs to the kind.

from __future__ import annotations

from typing import Any, Final

# Kinds, and what their entries hold behind (correlation id, kind). An answer of the first three streams through; others
# are handled whole.
PASS: Final = 0  # ()  the upstream answer goes to the client as it is
STREAM: Final = 1  # (version, API key)  the same, walked for addresses at its end
FETCH: Final = 2  # (version, API key, what it is charged to)  the same, and charged
# (version, partitions, rejected rows or None, throttle ms, what limits were charged or None, its times if it is
# measured or None)  read, and the rejected rows merged in
PRODUCE: Final = 3
REWRITE: Final = 4  # (version, API key)  addresses in it are replaced
CAP_VERSIONS: Final = 5  # (version,)  ApiVersions: maxima lowered
SASL: Final = 6  # (claim or None,)  says whether the broker has accepted the principal
LOOKUP: Final = 7  # (version,)  the gateway asked for topics' names; the client never sees it
ADMIN: Final = 8  # ()  the gateway asked, for an admin request of the client's that control answers
LOCAL: Final = 9  # (frame,)  answered by the gateway
# (version, partitions, what limits were charged or None)  the gateway asked behind a request with acks=0: any answer
# says that all of these are in the log; the client never sees it
ACKS0: Final = 10
NOTHING: Final = -1  # no entry at all: nothing is owed

STREAMED_KINDS: Final = (PASS, STREAM, FETCH)

PendingEntry = tuple[Any, ...]
