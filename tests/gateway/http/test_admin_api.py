# Requests to the REST API, and what its responses say.

from __future__ import annotations

import json

import pytest

from gateway.http.admin_api import AdminRequest, ApiError, decode_response


def test_a_query_has_what_is_given_as_json_spells_it() -> None:
    request = AdminRequest("GET", "/v1/top", {"limit": 1, "held": True, "muted": False, "by": "a&b", "user": None})
    assert request.query_string == "limit=1&held=true&muted=false&by=a%26b"
    assert AdminRequest("GET", "/v1/top").query_string == ""


def test_a_body_is_json_or_none() -> None:
    assert AdminRequest("DELETE", "/v1/session").content == b""
    assert json.loads(AdminRequest("POST", "/v1/reload", body={}).content) == {}


def test_a_response_is_its_json() -> None:
    assert decode_response(200, b'{"a": 1}') == {"a": 1}
    assert decode_response(204, b"") is None


@pytest.mark.parametrize(
    ("status", "body", "title", "detail", "findings"),
    [
        (422, b'{"title": "No", "detail": "why", "errors": [{"where": "x", "what": "a"}]}', "No", "why",
         [{"where": "x", "what": "a"}]),
        (503, b'{"title": "Not now"}', "Not now", "", []),
        (404, b"not found\n", "", "not found", []),
        (503, b'{"title": "Not now", "errors": [5]}', "", '{"title": "Not now", "errors": [5]}', []),
        (302, b"", "", "", []),
        (200, b"<html>", "", "<html>", []),
    ],
)  # fmt: skip
def test_all_else_is_an_error(
    status: int, body: bytes, title: str, detail: str, findings: list[dict[str, str]]
) -> None:
    with pytest.raises(ApiError) as caught:
        decode_response(status, body)
    error = caught.value
    assert (error.status, error.title, error.detail, list(error.findings)) == (status, title, detail, findings)
