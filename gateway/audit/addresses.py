# The addresses of brokers and of a Spark Connect server, before anything is started that would take long to find them
# wrong.

from __future__ import annotations

import socket
from typing import Final
from urllib.parse import urlsplit

from gateway.audit.errors import AuditError

_CONNECT_TIMEOUT_S: Final = 5.0
_CONNECT_PORT: Final = 15002  # of Spark Connect, unless one is named


def place_text(host: str, port: int) -> str:
    """An address as people write it, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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


def check_remote(remote: str) -> None:
    """The same of a Spark Connect server (`sc://host:port/;…`), which PySpark itself would ask for minutes.

    Raises:
        AuditError: it takes no connection.
    """
    place = urlsplit(remote)
    if place.scheme != "sc":  # "local": PySpark starts one
        return
    address = (place.hostname or "", place.port or _CONNECT_PORT)
    try:
        socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise AuditError(f"SPARK_REMOTE: no Spark Connect server at {place_text(*address)} ({why})") from None
