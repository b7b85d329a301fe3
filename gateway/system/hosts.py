# Whose name a request's header Host may give. A page of any site can have its own name lead to this machine (DNS
# rebinding); its requests then look like ours but for that name. An address can't be rebound, so addresses are fine.
# And which addresses must not be repeated, as there is a password in them.

from __future__ import annotations

import ipaddress
import re
from collections.abc import Set
from typing import Final
from urllib.parse import urlsplit

_HOST_AND_PORT: Final = re.compile(r"([^:]*|\[.*\])(:\d*)?")


def is_own_host(host: str, names: Set[str]) -> bool:
    """Whether `host` (as in the header: perhaps with a port) is localhost, an address, or one of these lower-case
    names. "": no browser sent it.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    name = name.removesuffix(".")
    return not host or name == "localhost" or name in names or is_ip_address(name)


def is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a socket bound to that host."""
    return host == "localhost" or (is_ip_address(host) and ipaddress.ip_address(host).is_loopback)


def holds_credentials(url: str) -> bool:
    """Whether there is a user name or a password in it, so that no text may repeat it; also if it isn't valid, as it
    lacks its scheme, or the password has a slash.
    """
    _, slashes, rest = url.partition("//")
    if not slashes:
        return "@" in url
    authority, _, path = rest.partition("/")
    return "@" in authority or ("@" in path and not _HOST_AND_PORT.fullmatch(authority))
