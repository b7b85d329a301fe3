# What runs beside a test, and how trio's tests wait for it. Others wait with `gateway.embedded.wait_for`.

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final, Self, TypeVar

import trio
from trio.testing import wait_all_tasks_blocked

from gateway import embedded

DEADLINE_S: Final = 60.0  # for a machine that is busy with something else
SomeServer = TypeVar("SomeServer", bound=HTTPServer)


class Background:
    """`_run` in a thread from the beginning of a `with` to its end; it has to return once `_stop` is set."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)

    def _run(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Telling:
    """A process whose lines of stdout say how far it is, each a number, and the `last` one what came of it."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = embedded.spawn_process(command, stdout=subprocess.PIPE, text=True)
        self.progress = 0
        self.last = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        """End it whatever it is doing; what it has told is known then."""
        embedded.reap_process(self.process)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = line.strip()
            if self.last.isdigit():
                self.progress = int(self.last)


class Handler(BaseHTTPRequestHandler):
    """One of an HTTP server that logs nothing; `answer` writes a whole answer."""

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(server: SomeServer) -> Iterator[SomeServer]:
    """That server answers until the `with` ends."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Says(HTTPServer):
    """Answers what the test wants to every question, or to those for `path` alone."""

    def __init__(self, path: str = "") -> None:
        super().__init__((embedded.HOST, 0), _SaysIt)
        self.path = path
        self.said = 200, b""

    @property
    def url(self) -> str:
        return url_of(self)

    def say(self, value: object, code: int = 200) -> None:
        self.said = code, json.dumps(value).encode()


class _SaysIt(Handler):
    server: Says

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.answer(*(self.server.said if self.path.startswith(self.server.path) else (404, b"here are /metrics")))

    do_POST = do_GET  # noqa: N815  (the name is http.server's)


def url_of(server: HTTPServer) -> str:
    return f"http://{embedded.HOST}:{server.server_port}"


@contextmanager
def accepting(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a TCP server that has `serve` for one connection after the other."""
    with socket.create_server((embedded.HOST, 0)) as listener:

        def accept() -> None:
            with suppress(OSError):  # it was shut down
                while True:
                    sock, _ = listener.accept()
                    with sock:
                        serve(sock)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"{embedded.HOST}:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


async def until(condition: Callable[..., object], every_s: float = 0.0) -> None:
    """Let all tasks come to rest until it holds; a clock of trio's that jumps goes on by `every_s` each time."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        if every_s:
            await trio.sleep(every_s)
        else:
            await wait_all_tasks_blocked(0.002)
        if condition():
            return
        assert time.monotonic() < deadline, "waited in vain"
