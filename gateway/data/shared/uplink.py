# A worker's way up to control: messages, log lines, and what has to wait while there is no control or it doesn't read.
#
# Knows no policy and no socket but the channel. Intervals, which control must not miss, are kept by their maker.

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING

import trio

from gateway.channel import AdminQuery, LogMessage, ProcessChannel, RefreshRequest, ToControl, ToWorker
from gateway.data.shared.warning_limiter import NO_LOG_FIELDS, LogFields, WarningLimiter
from policies.text import one_line

if TYPE_CHECKING:
    from gateway.data.shared.worker_state import AdminQuerier

METADATA_PAUSE_S = 0.2  # many sessions see the same new broker at once: ask once
MAX_BACKLOG = 500  # messages that control has not read
MAX_BACKLOG_BYTES = 64 * 2**20  # likewise, of admin requests and what brokers say to them
MAX_LOG_LINES = 1000  # kept while there is no control
MAX_LINE_CHARS = 1000  # characters of a line for the log


class ControlUplink:
    """The worker's messages to control. `channel`: to the present control process, or None."""

    def __init__(self) -> None:
        self.channel: ProcessChannel[ToControl, ToWorker] | None = None
        self._log_backlog: deque[LogMessage] = deque(maxlen=MAX_LOG_LINES)
        self._warning_limiter = WarningLimiter(self.log)
        self._metadata_requested_at = 0.0

    @property
    def is_connected(self) -> bool:
        """Whether a control process is connected."""
        return self.channel is not None

    @property
    def is_control_reading(self) -> bool:
        """Whether a control process is connected and reads."""
        return self.channel is not None and self.channel.backlog < MAX_BACKLOG

    @property
    def backlog(self) -> int:
        """Messages that are not written yet."""
        return self.channel.backlog if self.channel is not None else 0

    def post(self, message: ToControl) -> None:
        """Post a message; without a control process it is dropped."""
        if self.channel is not None:
            self.channel.post(message)

    def post_if_reading(self, message: ToControl) -> bool:
        """Post a message that the next one replaces, unless control doesn't read: such messages must not fill the
        memory. Returns whether it was posted.
        """
        is_heard = self.is_control_reading
        if is_heard:
            self.post(message)
        return is_heard

    def log(self, level: str, text: str, fields: LogFields = NO_LOG_FIELDS) -> None:
        """Log a line. `level`: "info", "warning" or "error". Without a control process the line is kept."""
        shown = {name: one_line(each) if isinstance(each, str) else each for name, each in fields.items()}
        line = LogMessage(level, one_line(text, MAX_LINE_CHARS), shown)
        if self.channel is None:
            self._log_backlog.append(line)
        else:
            self.channel.post(line)

    def log_warning(self, about: str, text: str, fields: LogFields = NO_LOG_FIELDS) -> None:
        """Log a line that is the same for all clients: not with every connection."""
        self._warning_limiter.log_warning(about, text, trio.current_time(), burst=1, fields=fields)

    def log_client_warning(self, kind: str, text: str, fields: LogFields = NO_LOG_FIELDS) -> None:
        """Log a line that a client causes; there may be many (warning_limiter.py)."""
        self._warning_limiter.log_warning(kind, text, trio.current_time(), fields=fields)

    def log_unraisable(self, found: sys.UnraisableHookArgs) -> None:
        """For `sys.unraisablehook`: errors that Python can't raise, such as a server name that is not ASCII."""
        kind = found.exc_type.__name__
        self.log_warning(f"unraisable {kind}", f"an error could not be reported: {kind}: {found.exc_value}")

    def request_metadata(self) -> None:
        """A client has seen something newer than the worker's snapshots."""
        now = trio.current_time()
        if now - self._metadata_requested_at >= METADATA_PAUSE_S:
            self._metadata_requested_at = now
            self.post(RefreshRequest("metadata"))

    def post_query(self, asker: AdminQuerier) -> None:
        """Send the query of a querier's turn to control."""
        turn = asker.turn
        assert turn is not None
        until = time.monotonic() + turn.until - trio.current_time()
        if self.channel is not None and self.channel.backlog_bytes > MAX_BACKLOG_BYTES:
            return  # after a while its client gets an answer that says so
        self.post_if_reading(
            AdminQuery(
                turn.token,
                until,
                asker.peer,
                asker.principal,
                turn.request,
                turn.memo,
                turn.answer,
                turn.mechanism,
                asker.listener,
            )
        )

    def log_suppressed(self, now: float) -> None:
        """Log how many lines were left out; call it now and then."""
        self._warning_limiter.log_suppressed(now)

    def post_log_backlog(self) -> None:
        """Post the lines that were kept while there was no control process."""
        while self._log_backlog:
            self.post(self._log_backlog.popleft())
