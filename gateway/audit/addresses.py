# The brokers' addresses, before anything is started that would take long to find them wrong.

from __future__ import annotations

import socket
from typing import Final

from gateway.audit.errors import AuditError

_CONNECT_TIMEOUT_S: Final = 5.0


def check_reachable(bootstrap_servers: str) -> None:
    """A cheap look before Spark is started: does any of the addresses take a connection?

    Raises:
        AuditError: none does.
    """
    failed = []
    for address in bootstrap_servers.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise AuditError(f"--bootstrap-servers: {address!r} is not HOST:PORT")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
        except (OSError, OverflowError) as error:
            failed.append(f"{address}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise AuditError(f"no broker can be reached ({'; '.join(failed)})")
