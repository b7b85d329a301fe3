# The JSON of requests' bodies: a key that an object has twice is refused. RFC 8259 leaves open which of its values
# counts, and one of them would be ignored without a word.

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from gateway.control.admin.rest.models import MAX_NAME
from gateway.control.admin.rest.problems import MAX_ERRORS, Finding, RequestRefused


class StrictJsonRoute(APIRoute):
    """A route that reads its body so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return handle_strictly


class _StrictRequest(Request):
    async def json(self) -> Any:
        return json.loads(await self.body(), object_pairs_hook=_refuse_repeated)


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = [Finding(where="body", what=f"{name[:MAX_NAME]!r} is given {n} times in one object: once")
                 for name, n in counts.items() if n > 1]  # fmt: skip
        raise RequestRefused("a key is given more than once: nothing was done", twice[:MAX_ERRORS])
    return found
