# What both processes do to a client's socket.

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Final

_AT_ONCE: Final = struct.pack("ii", 1, 0)  # struct linger: nothing is sent any more, the other side sees a reset


def reset(client: socket.socket) -> None:
    """Close a connection on which nothing was answered.

    By a reset, which is as near as one can come to a connection that is refused, what a dead broker's clients see. If
    it merely ended before the first answer some would suspect that TLS is missing, and give records up (franz-go).
    """
    with contextlib.suppress(OSError):  # it has gone already
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    client.close()
