# How the gateway's own HTTP clients go: no proxy unless asked for, and never where a redirect says. Knows no address.

from __future__ import annotations

import urllib.request
from typing import Any


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the credentials to whoever is there."""

    def redirect_request(self, *_: Any) -> None:
        return None


def direct_opener() -> urllib.request.OpenerDirector:
    """For a server next door."""
    return urllib.request.build_opener(NoRedirect(), urllib.request.ProxyHandler({}))
