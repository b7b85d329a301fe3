# TLS on the admin port, over real sockets: certificates that change, client certificates with roles, and commands that
# reach it.

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from pytest_trio import trio_fixture

from gateway.access_tokens.roles import AccessRole
from gateway.access_tokens.tokens import format_token_line
from gateway.commands.views import commands as views
from gateway.control.access.admin_tls import AdminTls
from gateway.control.access.gate import AccessGate
from gateway.control.access.holders import CredentialHolders
from gateway.control.http_server import serve_http
from gateway.embedded import wait_for
from gateway.supervisor import open_listener
from gateway.tls.certificates import CHECK_INTERVAL_S, ListenerTls
from tests.certificates import Authority
from tests.gateway.control.admin.rest_server import JSON, Server

TOKEN = "vera-0123456789abcdef"
PRINCIPALS = {"User:CN=anna": AccessRole.ADMIN, "User:CN=otto": AccessRole.OPERATOR}


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


class Secured(Server):
    """`tls`: with certificates of this authority."""

    def __init__(self, authority: Authority, client_auth: Any = "requested") -> None:
        super().__init__()
        self.authority = authority
        self.counted: list[str] = []
        self.gate = AccessGate(
            CredentialHolders([format_token_line("vera", AccessRole.VIEWER, TOKEN)], None, PRINCIPALS),
            count=self.counted.append,
        )
        self.certificate, self.key = authority.sign("server")
        truststore = str(authority.certificate) if client_auth != "none" else ""
        settings = ListenerTls(str(self.certificate), str(self.key), "", truststore, client_auth)
        self.tls = AdminTls(settings, self.counted.append)
        self.url = f"https://127.0.0.1:{self.port}"

    async def serve(self) -> None:
        await serve_http(open_listener("127.0.0.1", self.port), self.application(), tls=self.tls)

    def connect(self, name: str = "", by: Authority | None = None) -> http.client.HTTPSConnection:
        """`name`: of a client certificate."""
        certificate = (by or self.authority).sign(name) if name else None
        context = self.authority.client_context(certificate)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)


def ask(connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str] = JSON) -> Any:
    body = b'{"value": "5MB"}' if method == "PUT" else None
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer


async def apart(work: Callable[[], Any]) -> Any:
    with trio.fail_after(60):
        return await trio.to_thread.run_sync(work)


@trio_fixture
async def port(nursery: trio.Nursery, authority: Authority) -> AsyncIterator[Any]:
    port = Secured(authority)
    nursery.start_soon(port.serve)
    yield port


async def test_a_client_certificate_gives_the_role_of_its_principal(port: Any) -> None:
    def work() -> None:
        for name, expected in (("anna", (200, 200, 200)), ("otto", (200, 200, 403)), ("mallory", (200, 403, 403)),
                               ("", (200, 401, 401))):  # fmt: skip
            connection = port.connect(name)
            found = [
                ask(connection, method, path).status
                for method, path in (("GET", "/v1/status"), ("GET", "/v1/connections"), ("PUT", "/v1/thresholds/total"))
            ]
            connection.close()
            assert tuple(found) == expected, name

    await apart(work)
    assert [source.who for source in port.policies.sources] == ["User:CN=anna"]
    assert port.counted == ["role", "certificate", "certificate", "missing", "missing"]


async def test_a_token_counts_more_than_a_certificate(port: Any) -> None:
    def work() -> None:
        connection = port.connect("anna")
        as_vera = {**JSON, "Authorization": f"Bearer {TOKEN}"}
        assert ask(connection, "GET", "/v1/connections", as_vera).status == 200
        assert ask(connection, "PUT", "/v1/thresholds/total", as_vera).status == 403
        as_nobody = {**JSON, "Authorization": "Bearer wrong-0123456789abcdef"}
        assert ask(connection, "GET", "/v1/connections", as_nobody).status == 401
        connection.close()

    await apart(work)


async def test_a_page_of_another_site_can_not_use_a_browser_s_certificate(port: Any) -> None:
    def work() -> None:
        connection = port.connect("anna")
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert ask(connection, "PUT", "/v1/thresholds/total", {**JSON, **headers}).status == 403
        own = {"Origin": f"https://127.0.0.1:{port.port}", "Sec-Fetch-Site": "same-origin"}
        assert ask(connection, "PUT", "/v1/thresholds/total", {**JSON, **own}).status == 200
        connection.close()

    await apart(work)


async def test_who_is_refused_before_its_body_is_there_may_go_on(port: Any) -> None:
    def work() -> None:
        connection = port.connect()
        connection.putrequest("PUT", "/v1/thresholds/total")
        for name, value in {**JSON, "Content-Length": "16"}.items():
            connection.putheader(name, value)
        connection.endheaders()
        wait_for("the refusal", lambda: port.counted)
        connection.send(b'{"value": "5MB"}')
        refused = connection.getresponse()
        assert (refused.status, refused.read() != b"") == (401, True)
        sock = connection.sock
        assert ask(connection, "GET", "/healthz").status == 200
        assert connection.sock is sock
        connection.close()

    await apart(work)


async def test_a_certificate_of_a_foreign_authority_ends_the_handshake(
    port: Any, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        with closing(port.connect("anna", by=stranger)) as connection, pytest.raises(OSError):
            ask(connection, "GET", "/v1/status")

    await apart(work)
    with trio.fail_after(60):
        while not port.counted:  # noqa: ASYNC110  the client knew first
            await trio.sleep(0.01)
    assert port.counted == ["tls"]
    assert "admin: 127.0.0.1: TLS handshake failed: " in caplog.text


async def test_who_speaks_plain_http_is_told_and_who_leaves_is_nobody_s_concern(port: Any) -> None:
    def work() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port.port, timeout=20)
        connection.request("GET", "/v1/status")
        answer = connection.getresponse()
        try:
            return answer.status, answer.read()
        finally:
            connection.close()

    assert await apart(work) == (
        400,
        b'{"title": "Bad Request", "status": 400, "detail": "here is TLS: use https://"}\n',
    )
    assert port.counted == ["tls"]
    for sent in (b"", b"\x16\x03"):
        stream = await trio.open_tcp_stream("127.0.0.1", port.port)
        if sent:
            await stream.send_all(sent)
        await stream.aclose()

    def ask_well() -> int:
        with closing(port.connect()) as connection:
            return int(ask(connection, "GET", "/healthz").status)

    assert await apart(ask_well) == 200
    assert port.counted == ["tls"]


async def test_a_session_s_cookie_is_for_this_host_and_for_tls_alone(port: Any) -> None:
    def work() -> str:
        connection = port.connect()
        connection.request("POST", "/v1/session", f'{{"token": "{TOKEN}"}}', JSON)
        answer = connection.getresponse()
        cookie = answer.getheader("Set-Cookie", "")
        answer.read()
        head = cookie.partition(";")[0]
        assert ask(connection, "GET", "/v1/connections", {"Cookie": head}).status == 200
        connection.close()
        return str(cookie)

    head, *attributes = (await apart(work)).split("; ")
    assert head.startswith(f"__Host-produce-gateway-{port.port}=")
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict", "Secure"]


async def test_a_new_certificate_is_used_and_connections_that_are_there_go_on(
    port: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def serial(connection: http.client.HTTPSConnection) -> str:
        assert ask(connection, "GET", "/healthz").status == 200
        assert isinstance(connection.sock, ssl.SSLSocket)
        return str((connection.sock.getpeercert() or {})["serialNumber"])

    before = port.connect()
    old = await apart(lambda: serial(before))
    port.authority.sign("server")  # into the same files
    await trio.sleep(CHECK_INTERVAL_S)  # real time: the files are looked at so often at most
    after = port.connect()
    assert await apart(lambda: serial(after)) != old
    assert await apart(lambda: serial(before)) == old
    before.close()
    after.close()


async def test_a_client_that_offers_http_2_speaks_http_1(port: Any) -> None:
    def work() -> tuple[str | None, bytes]:
        context = port.authority.client_context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection(("127.0.0.1", port.port), 20) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            secured.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return secured.selected_alpn_protocol(), secured.recv(15)

    assert await apart(work) == ("http/1.1", b"HTTP/1.1 200 OK")


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def running(authority: Authority) -> Iterator[Callable[..., Secured]]:
    """Starts a server with TLS on a loop of its own."""
    threads: list[tuple[Any, trio.Event, threading.Thread]] = []

    def start(*args: Any) -> Secured:
        port = Secured(authority, *args)
        up, stop = threading.Event(), trio.Event()
        loop: list[Any] = []

        async def main() -> None:
            loop.append(trio.lowlevel.current_trio_token())
            sock = open_listener("127.0.0.1", port.port)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: serve_http(sock, port.application(), tls=port.tls))
                up.set()
                await stop.wait()
                nursery.cancel_scope.cancel()

        thread = threading.Thread(target=trio.run, args=(main,))
        thread.start()
        up.wait()
        threads.append((loop[0], stop, thread))
        return port

    yield start
    for token, stop, thread in threads:
        token.run_sync_soon(stop.set)
        thread.join()


def test_a_command_reaches_it_and_says_in_one_line_what_is_wrong(
    running: Callable[..., Secured],
    authority: Authority,
    stranger: Authority,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = running("required")
    certificate, key = map(str, authority.sign("anna"))
    foreign, foreign_key = map(str, stranger.sign("anna"))
    ca, mine = ["--ca", str(authority.certificate)], ["--cert", certificate, "--key", key]
    url = ["--url", port.url]
    assert views.main("topics", [*url, *ca, *mine]) == 0
    said = capsys.readouterr()
    assert ("clicks" in said.out, said.err) == (True, "")
    for args, words in (
        (
            [*url, *mine],
            "its certificate can't be verified: self-signed certificate in certificate chain: --ca",
        ),
        ([*url, "--ca", str(stranger.certificate), *mine], "its certificate can't be verified: "),
        ([*url, *ca], "it wants a client certificate, or another one: give --cert FILE and --key FILE"),
        ([*url, *ca, "--cert", foreign, "--key", foreign_key], "it wants a client certificate, or another one"),
        ([*url, *ca, "--cert", certificate, "--key", foreign_key], "--key: the key in"),
        ([*url, *ca, "--cert", certificate], "--cert: "),
        ([*url, "--ca", str(tmp_path / "none")], f"--ca: {tmp_path / 'none'} can't be read: No such file"),
        (["--url", port.url.replace("https", "http")], "/v1/topics: Bad Request: here is TLS: use https://"),
        (["--url", port.url.replace("https", "http"), *ca], "--ca is for TLS, but the address is http://"),
    ):
        assert views.main("topics", args) == 1, args
        said = capsys.readouterr()
        assert said.out == ""
        assert words in said.err, args
        assert said.err.count("\n") == 1


def test_tls_to_a_port_that_has_none_is_said_to_be_that(
    gateway: Server, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    url = gateway.url.replace("http", "https")
    assert views.main("topics", ["--url", url, "--ca", str(authority.certificate)]) == 1
    assert "can't be reached: there is no TLS: give --url http://" in capsys.readouterr().err


def test_with_a_configuration_the_certificate_in_it_is_enough(
    running: Callable[..., Secured], tmp_path: Path, stranger: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    """Signed by an authority that this machine doesn't know, and for other names."""
    port = running("none")
    config = tmp_path / "gateway.yaml"
    section = f"port: {port.port}, ssl.keystore.location: {port.certificate}, ssl.key.location: {port.key}"
    config.write_text(f"upstream: {{bootstrap_servers: broker:9092}}\nadmin: {{{section}, tokens: [{TOKEN}]}}\n")
    assert views.main("topics", [str(config)]) == 0
    other, _ = stranger.sign("server")
    config.write_text(f"upstream: {{bootstrap_servers: broker:9092}}\nadmin: {{port: {port.port}, "
                      f"ssl.keystore.location: {other}, tokens: [{TOKEN}]}}\n")  # fmt: skip
    assert views.main("topics", [str(config)]) == 1
    assert "its certificate can't be verified" in capsys.readouterr().err
