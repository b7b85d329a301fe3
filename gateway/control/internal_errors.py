# Errors of the gateway's own in what control does for one client. Control is one process for all clients, and an
# exception that escapes a task ends its nursery, and so the process: one client's bytes would cost all others their
# gateway. So whatever control does for a client, or with a worker's message, is done within `contain_errors`: an
# exception ends that piece of work alone, is counted, and is logged once for each kind and time.
#
# Knows no client, and not what was to be done.

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from policies.text import one_line

log = logging.getLogger("gateway.control")

ACCEPT: Final = "accept"
ADMIN_SERVER: Final = "admin_server"
KAFKA_ADMIN: Final = "kafka_admin"
SASL: Final = "sasl"
WORKER_MESSAGE: Final = "worker_message"
PLACES: Final = (ACCEPT, ADMIN_SERVER, KAFKA_ADMIN, SASL, WORKER_MESSAGE)  # label `where` of the metric

REPEAT_S: Final = 10.0  # the same kind is logged once in this time
MAX_KINDS: Final = 20  # logged in this time: a client may know how to cause many


class InternalErrors:
    """Counts and logs internal errors. `count`: called for each of them with its place, one of PLACES."""

    def __init__(self, count: Callable[[str], None] = lambda where: None) -> None:
        self._count_error = count
        self._logged_at: dict[tuple[object, ...], float] = {}  # by place, class and line of code; time.monotonic()

    @contextmanager
    def contain_errors(self, where: str, peer: str = "") -> Iterator[None]:
        """Let no exception out but cancellation and the like. `peer`: the client's address, for the log."""
        try:
            yield
        except* Exception as group:  # trio may have put it into a group, beside cancellation
            self.record_error(where, peer, group.exceptions[0] if len(group.exceptions) == 1 else group)

    def record_error(self, where: str, peer: str, error: Exception) -> None:
        """Count an error that was caught, and log it with its traceback, unless one of its kind was logged lately."""
        self._count_error(where)
        now = time.monotonic()
        self._logged_at = {kind: at for kind, at in self._logged_at.items() if now - at < REPEAT_S}
        kind = (where, type(error), *_raising_line(error.__traceback__))
        if kind in self._logged_at or len(self._logged_at) >= MAX_KINDS:
            return
        self._logged_at[kind] = now
        log.error(
            "internal error (%s), which ends the request of %s and nothing else; not logged again within %g s",
            where, one_line(peer) or "a worker", REPEAT_S, exc_info=error,
        )  # fmt: skip


def _raising_line(trace: TracebackType | None) -> tuple[object, ...]:
    """The line of code that raised it."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return () if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
