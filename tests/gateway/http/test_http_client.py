# The gateway's own HTTP client: no redirect is followed, and no answer takes longer or is larger than it may.

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest

from gateway.commands import admin_client as asking
from gateway.http.http_client import HttpError, ResponseTooLarge, fetch_url
from tests.background import Handler, serving, url_of

Asked = list[tuple[str, str | None]]


class Kept(Handler):
    """Redirects every request but /large to itself; keeps the requests."""

    asked: Asked

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        self.answer(200 if self.path == "/large" else 302, b" " * 1000, {"Location": "/elsewhere"})


@pytest.fixture
def server() -> Iterator[tuple[str, Asked]]:
    asked: Asked = []
    kind = type("Kept", (Kept,), {"asked": asked})
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), kind)) as server:
        yield url_of(server), asked


def test_no_command_follows_a_redirect_with_its_token(server: tuple[str, Asked]) -> None:
    url, asked = server
    with pytest.raises(asking.CommandError, match="answers 302"):
        asking.request_json(asking.AdminEndpoint(url, "secret"), "/v1/storage")
    assert asked == [("/v1/storage", "Bearer secret")]


def test_a_redirect_is_an_answer(server: tuple[str, Asked]) -> None:
    answer = fetch_url(f"{server[0]}/x", timeout_s=60, max_bytes=1000)
    assert (answer.status, answer.reason, answer.headers["location"]) == (302, "Found", "/elsewhere")


def test_an_answer_is_as_large_as_it_may_be(server: tuple[str, Asked]) -> None:
    url = f"{server[0]}/large"
    assert len(fetch_url(url, timeout_s=60, max_bytes=1000).body) == 1000
    with pytest.raises(ResponseTooLarge, match="larger than 999 bytes"):
        fetch_url(url, timeout_s=60, max_bytes=999)


def test_proxies_are_used_only_where_they_are_asked_for(
    server: tuple[str, Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server[0])
    with pytest.raises(HttpError):
        fetch_url("http://127.0.0.1:1/direct", timeout_s=60, max_bytes=1000)
    monkeypatch.setenv("no_proxy", "other")
    assert fetch_url("http://127.0.0.1:1/by-proxy", timeout_s=60, max_bytes=1000, proxies=True).status == 302
    assert [path for path, _ in server[1]] == ["http://127.0.0.1:1/by-proxy"]


@pytest.mark.parametrize("url", ["http://", "http://[", "http://127.0.0.1:x/", "ftp://127.0.0.1/", "http://a b/"])
def test_a_text_that_is_not_an_address_is_an_error(url: str) -> None:
    with pytest.raises(HttpError) as error:
        fetch_url(url, timeout_s=60, max_bytes=1)
    assert str(error.value)
    assert "\n" not in str(error.value)


def test_the_reason_is_what_the_system_said() -> None:
    with pytest.raises(HttpError, match=r"^Connection refused$"):
        fetch_url("http://127.0.0.1:1/", timeout_s=60, max_bytes=1)


@pytest.mark.parametrize("token", ["s\u20accret", "s\ncret", "s\x00cret"])
def test_a_token_that_no_header_can_hold_is_an_error_without_the_token(server: tuple[str, Asked], token: str) -> None:
    with pytest.raises(HttpError) as error:
        fetch_url(server[0], headers={"Authorization": f"Bearer {token}"}, timeout_s=60, max_bytes=1)
    assert "cret" not in str(error.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_silent_server_takes_no_longer_than_it_may(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(HttpError, match=r"^timed out$"):
        fetch_url(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/", timeout_s=0.3, max_bytes=1)
