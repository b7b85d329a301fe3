# An ASGI application that is made when it is first asked for. The API brings FastAPI along and the console Jinja: to
# import them, and to describe every path, takes a third of what control needs to start, and many a gateway is never
# asked for more than /metrics and /readyz.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from gateway.control.http_server import Application


class LazyApplication:
    """`make`: imports and makes the application; called in a thread, so that everything else goes on. If it fails, the
    request does, and the next one tries again.
    """

    def __init__(self, make: Callable[[], Application]) -> None:
        self._make_application = make
        self._application: Application | None = None
        self._making = trio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._application is None:
            async with self._making:
                if self._application is None:
                    self._application = await trio.to_thread.run_sync(self._make_application)
        await self._application(scope, receive, send)
