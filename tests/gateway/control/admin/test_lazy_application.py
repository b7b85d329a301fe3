# An application that is made when it is first asked for; and that control starts without those which are.

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import trio

from gateway.control.admin.lazy_application import LazyApplication


class Maker:
    """Makes an application that notes down whom it was asked by; the first `failures` times it can't."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.threads: list[int] = []
        self.asked: list[str] = []

    def __call__(self) -> Any:
        self.threads.append(threading.get_ident())
        if len(self.threads) <= self.failures:
            raise ImportError("half of an update")
        return self.serve

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        assert (receive, send) == ("receive", "send")
        self.asked.append(scope["path"])


async def test_it_is_made_once_in_a_thread_and_not_before_somebody_asks() -> None:
    maker = Maker()
    application = LazyApplication(maker)
    assert maker.threads == []
    async with trio.open_nursery() as nursery:
        for path in ("/a", "/b", "/c"):
            nursery.start_soon(application, {"path": path}, "receive", "send")
    assert sorted(maker.asked) == ["/a", "/b", "/c"]
    assert len(maker.threads) == 1
    assert maker.threads[0] != threading.get_ident()


async def test_what_could_not_be_made_is_tried_again_with_the_next_request() -> None:
    maker = Maker(failures=1)
    application = LazyApplication(maker)
    with pytest.raises(ImportError):
        await application({"path": "/a"}, "receive", "send")
    await application({"path": "/b"}, "receive", "send")
    assert maker.asked == ["/b"]


def test_control_starts_without_frameworks_of_what_it_may_never_be_asked_for() -> None:
    code = "import sys, gateway.control.app; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=240)
    assert {"h11", "prometheus_client"} <= set(done.stdout.split())  # those it needs at once
    assert not {"fastapi", "starlette", "jinja2", "jwt"} & set(done.stdout.split())
