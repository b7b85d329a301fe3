# Requests to the admin server's REST API and its responses, without I/O: commands send them over HTTP, the console
# within the process. Knows no path.

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

USER_HEADER: Final = "Produce-Gateway-User"  # the user of a command, percent-encoded; not verified


class ApiError(Exception):
    """The response is an error, or no JSON.

    Attributes:
        title, detail, findings: as its problem document (RFC 9457) has them, see control/admin/rest/problems.py.
            `title` "": it has none, and `detail` is its text.
    """

    def __init__(
        self, status: int, detail: str, findings: Sequence[Mapping[str, str]] = (), *, title: str = ""
    ) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.title = title
        self.detail = detail
        self.findings = findings


class AdminRequest(NamedTuple):
    """`query`: a value None leaves the parameter out. `body`: as JSON; None: none."""

    method: str
    path: str
    query: Mapping[str, object] = {}
    body: object = None

    @property
    def query_string(self) -> str:
        given = {name: value for name, value in self.query.items() if value is not None}
        return urlencode(
            {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
        )

    @property
    def content(self) -> bytes:
        return b"" if self.body is None else json.dumps(self.body).encode()


def decode_response(status: int, body: bytes) -> Any:
    """The JSON of the response; None: it has no body.

    Raises:
        ApiError: the response is an error, or no JSON.
    """
    text = body.decode("utf-8", "replace").strip()
    is_error = not 200 <= status < 300
    if not body and not is_error:
        return None
    try:
        decoded = json.loads(body)
        if not is_error:
            return decoded
        title, detail = decoded["title"], decoded.get("detail", "")
        findings = [{"where": each["where"], "what": each["what"]} for each in decoded.get("errors", ())]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ApiError(status, text) from None
    raise ApiError(status, detail, findings, title=title)
