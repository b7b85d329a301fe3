# The three kinds of buffer that frames lie in: a socket's (bytearray), a constant's (bytes), a window (memoryview).

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture(params=[bytearray, bytes, memoryview], ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Callable[[bytes], bytes | bytearray | memoryview]:
    return request.param  # type: ignore[no-any-return]
