# Which pages may change something here: those of this server. A browser on the gateway's machine, or one with a session
# or a certificate, sends what a page of any site makes it send. Knows no credentials.

from __future__ import annotations

from collections.abc import Mapping, Set
from urllib.parse import urlsplit

from gateway.system.hosts import is_own_host


def is_foreign_page(headers: Mapping[str, str], hosts: Set[str]) -> bool:
    """Whether a page of another site sent this request. Programs send neither header. `hosts`: as in application.py."""
    site = headers.get("sec-fetch-site", "none")
    return site not in ("same-origin", "none") or not _is_own_origin(
        headers.get("origin"), headers.get("host", ""), hosts
    )


def states_origin(headers: Mapping[str, str]) -> bool:
    """Whether a browser states the page's origin: each browser that lets a page send a form does, by one of the two
    headers.
    """
    return headers.get("sec-fetch-site") == "same-origin" or "origin" in headers


def _is_own_origin(origin: str | None, host: str, hosts: Set[str]) -> bool:
    """Whether the request comes from no page, or from a page of this server. A name that any DNS may resolve to this
    machine is not enough.
    """
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
        name = parts.hostname or ""
    except ValueError:
        return False
    if not host or parts.netloc.lower() != host.lower():
        return False
    return bool(name) and is_own_host(parts.netloc, hosts)
