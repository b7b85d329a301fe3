# TCP ports that no two of our processes get.

from __future__ import annotations

import random
import socket
import threading

from gateway.embedded.errors import EmbeddedError

HOST = "127.0.0.1"
# Below the ports that systems hand out to outgoing connections (from 32768 on Linux, 49152 elsewhere): a broker that is
# killed and started again must find its port free, and no client may have been given it meanwhile.
PORT_RANGE = range(20_000, 31_000)

_handed_out: set[int] = set()
_random = random.SystemRandom()  # seeded, as by test runners, `random` would give the same ports again and again
_ports_lock = threading.Lock()


def find_free_port(count: int = 1) -> int:
    """The first of `count` consecutive free TCP ports; no two calls in a process give the same."""
    with _ports_lock:
        for _ in range(1000):
            first = _random.randrange(PORT_RANGE.start, PORT_RANGE.stop - count)
            wanted = range(first, first + count)
            if _handed_out.isdisjoint(wanted) and not any(map(find_port_fault, wanted)):
                _handed_out.update(wanted)
                return first
    raise EmbeddedError(f"no {count} consecutive free ports between {PORT_RANGE.start} and {PORT_RANGE.stop}")


def find_port_fault(port: int) -> str:
    """Why nothing can listen there; "": it is free."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
