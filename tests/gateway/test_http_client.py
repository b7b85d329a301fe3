# The gateway's own HTTP clients: no redirect is followed, so no credential goes where somebody else says.

from __future__ import annotations

import http.server
import threading

import pytest

from gateway.commands import asking
from gateway.policy import cli


@pytest.fixture
def redirecting():
    """A server that sends everybody on to itself, and what was asked of it."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_no_command_follows_a_redirect_with_its_token(redirecting):
    url, asked = redirecting
    with pytest.raises(asking.CannotAsk, match="answers 302"):
        asking.call(url, "/v1/storage", token="secret")
    with pytest.raises(cli._Failed, match="answers 302"):
        cli._ask(f"{url}/v1/policies", token="secret")
    assert asked == [("/v1/storage", "Bearer secret"), ("/v1/policies", "Bearer secret")]
