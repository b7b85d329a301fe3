# The log of all processes but workers, which post their lines to control: for people or as JSON, on stderr.
#
# Modules use the standard `logging`, under the names of LOGGERS, and give fields as `extra`.
# A line is one write of at most PIPE_BUF bytes, which no other process's write can come between. Of one event there are
# LINE_BURST lines within BURST_PERIOD_S, then their number; changes of policies are always told. Knows no configuration
# file.

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Literal, Protocol

from gateway.log.log_bound import LogRateLimiter, SuppressedLines
from policies.text import one_line

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

LOGGERS: Final = {
    "gateway": "Everything.",
    "gateway.audit": "Each change of a policy.",
    "gateway.authentication": "SASL that ends at the gateway: credentials, keys, brokers that refuse the gateway.",
    "gateway.cluster": "Brokers and listeners.",
    "gateway.control": "The control process, its parts and the admin server.",
    "gateway.fleet": "Limits that are shared with other gateways.",
    "gateway.health": "The health port.",
    "gateway.policy": "The store of policies that are changed at run time.",
    "gateway.storage": "Storage protection.",
    "gateway.supervisor": "Processes: started, ended, stopped.",
    "gateway.topics": "The gateway's own topics.",
    "gateway.traffic": "Clients' connections and requests: refused, rejected, delayed or ended.",
    "gateway.usage": "The usage log.",
    "gateway.volume-agent": "The volume agent, a program of its own.",
    "gateway.workers": "The channels between control and workers.",
}
# Fields of a line besides `timestamp`, `level`, `logger` and `event`.
FIELDS: Final = {
    "kind": "The sort of event, as above.",
    "reason": "Why: the cause of a connection's end, the policy or broker's error that decided, the limit reached.",
    "connection": "The connection's id, the same in all of its lines and in the list of connections.",
    "peer": "Address and port of the client.",
    "listener": "The listener that it came to.",
    "principal": "Who the client is.",
    "client_id": "As its last request has it.",
    "software": "Name and version of the client's library (KIP-511).",
    "clients": "Of several: principal and client id of the first three.",
    "broker": "Node id; -1 where it is not known yet.",
    "topic": "Name of the topic.",
    "outcome": "[What became](audit.md#what-it-answers) of the requests.",
    "bytes": "Bytes of record batches.",
    "messages": "Records.",
    "requests": "Produce requests.",
    "seconds": "The time within which they came.",
    "key": "What was changed.",
    "old": "Its value before.",
    "new": "Its value now.",
    "until": "When the value ends, if it does.",
    "by": "Who changed it, and by which way in.",
    "version": "Of the policies, with the change.",
    "state": "Of storage protection: `OPEN`, `THROTTLE` or `PAUSE`.",
    "factor": "By which every produce limit is multiplied.",
    "worker": "Number of the worker.",
    "lines_left_out": "Number of lines of the kind that were left out.",
}
EVENT_KINDS: Final = {
    "connection-closed": "The gateway ends a client's connection.",
    "connection-refused": "A limit of connections is reached.",
    "admin-refused": "A request to the admin port has a wrong token, comes from a foreign page, or has no TLS.",
    "tls-handshake-failed": "A client's TLS handshake fails.",
    "broker-unreachable": "A broker can't be connected to.",
    "broker-tls-failed": "There is no TLS with a broker, or no more.",
    "traffic": "Produce requests were rejected, delayed, dropped or refused by a broker.",
    "policy-changed": "A policy has another value.",
    "storage-state": "Storage protection begins, ends, or goes on by other means.",
    "left-out": "Lines of a kind were left out.",
}
LINE_BURST: Final = 100  # lines of one event …
BURST_PERIOD_S: Final = 10.0  # … within so long
MAX_LINE_BYTES: Final = 4096  # bytes; <limits.h>'s PIPE_BUF of Linux: a write of so many is one piece in a pipe
_UNLIMITED_LOGGERS: Final = frozenset({"gateway.audit"})  # never left out
_MAX_EVENT_CHARS: Final = 2000  # characters
_SHOWN_FIELDS: Final = ("connection",)  # fields that a line for people ends with; its words say the others
# Whatever looks like a secret in another system's words: a second line of defence, as no line is made of one.
_SENSITIVE_WORD: Final = r"(?:password|passwd|secret|token|api[-_]?key|authorization)"
_SECRET_PATTERNS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(\b{_SENSITIVE_WORD}\s*=\s*[\"']?|[\"']{_SENSITIVE_WORD}[\"']\s*:\s*[\"']?)(?:(?:bearer|basic)\s+)?[^\s\"',;]+",
        r"(\b(?:bearer|basic)\s+)[\w+/=.~-]{16,}",
        r"(://[^/\s:@]*:)[^\s@/]+(?=@)",
        r"()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",  # a JWT
    )
)
# Nearly all lines have none of these, in lower case, so nothing in them can match: to look for each pattern in each
# field was half of what a line costs.
_SECRET_HINTS: Final = ("passw", "secret", "token", "api", "authorization", "bearer", "basic", "://", "eyj")
REDACTED_TEXT: Final = "***"

LogEvent = dict[str, Any]


class LogSettings(Protocol):
    """The section `log` (gateway.config.sections.logs.Log)."""

    @property
    def format(self) -> LogFormat: ...
    @property
    def level(self) -> LogLevel: ...
    @property
    def levels(self) -> Mapping[str, LogLevel]: ...


class DefaultLogSettings:
    """What holds before there is a configuration."""

    level: LogLevel = "info"
    levels: Mapping[str, LogLevel] = {}

    def __init__(self, format: LogFormat = "console") -> None:
        self.format: LogFormat = format


def configure_logging(settings: LogSettings, write: Callable[[bytes], object] | None = None) -> None:
    """Log by these settings from here on; may be called again with others. `write`: takes one line; by default it goes
    to stderr.
    """
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, LineHandler)]:
        root.removeHandler(handler)
    handler = LineHandler(write or _write_stderr)
    handler.setFormatter(LineFormatter(settings.format))
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # libraries
    logging.captureWarnings(True)
    # No line says these, and to find them is a fifth of what a line costs.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for name in LOGGERS:
        own = settings.levels.get(name) or (settings.level if name == "gateway" else None)
        logging.getLogger(name).setLevel(logging.NOTSET if own is None else own.upper())


def install_hooks() -> None:
    """Log what would end this process or one of its threads, in the same form as everything else."""
    log = logging.getLogger("gateway")

    def report(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None, where: str) -> None:
        if error is not None and not issubclass(kind, KeyboardInterrupt | SystemExit):
            log.critical("%s ends because of a bug: %s", where, kind.__name__, exc_info=(kind, error, trace))

    sys.excepthook = lambda kind, error, trace: report(kind, error, trace, "the process")
    threading.excepthook = lambda args: report(args.exc_type, args.exc_value, args.exc_traceback, "a thread")


def select_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """As `extra` of a record: nothing but FIELDS, as a record has attributes of its own."""
    return {name: value for name, value in fields.items() if name in FIELDS}


class LineHandler(logging.Handler):
    """Writes each record as one line, and bounds how many there are of one event."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        super().__init__()
        self._write = write
        self._log_limiter: LogRateLimiter[tuple[str, int, str]] = LogRateLimiter(LINE_BURST, BURST_PERIOD_S)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            now = time.monotonic()
            for left_out in self._log_limiter.end_periods(now):
                self._write_record(_make_summary(left_out))
            if record.name in _UNLIMITED_LOGGERS or self._log_limiter.allow_line(_limiter_kind(record), now):
                self._write_record(record)
        except Exception:
            self.handleError(record)

    def _write_record(self, record: logging.LogRecord) -> None:
        self._write(self.format(record).encode("utf-8", "backslashreplace") + b"\n")


def _limiter_kind(record: logging.LogRecord) -> tuple[str, int, str]:
    """By which lines are bounded: the words without the values in them."""
    words = getattr(record, "kind", "") or (record.getMessage()[:100] if record.msg == "%s" else str(record.msg))
    return record.name, record.levelno, words


def _make_summary(left_out: SuppressedLines[tuple[str, int, str]]) -> logging.LogRecord:
    name, level, words = left_out.kind
    text = f"{left_out.lines:,} more lines like this were left out {left_out.period_text}: {one_line(words)}"
    record = logging.LogRecord(name, level, __file__, 0, text, None, None)
    record.__dict__.update(kind="left-out", lines_left_out=left_out.lines)
    return record


def _write_stderr(line: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        while line:
            line = line[os.write(2, line) :]


# --- from a record to a line ------------------------------------------------------------------------------------------


class LineFormatter(logging.Formatter):
    """From a record to one line, with the fields that the record was given as `extra`."""

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self._render = _render_json if form == "json" else _render_console

    def format(self, record: logging.LogRecord) -> str:
        event = _record_fields(record)
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return self._render(_hide_secrets(event))


def _record_fields(record: logging.LogRecord) -> LogEvent:
    stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    event: LogEvent = {"timestamp": stamp, "level": record.levelname.lower(), "logger": record.name}
    event["event"] = one_line(record.getMessage(), _MAX_EVENT_CHARS)
    return event | {name: value for name in FIELDS if (value := record.__dict__.get(name)) not in (None, "")}


def _hide_secrets(event: LogEvent) -> LogEvent:
    if not _may_contain_secret("\n".join([value for value in event.values() if isinstance(value, str)])):
        return event
    return {name: hide_secrets(value) if isinstance(value, str) else value for name, value in event.items()}


def _may_contain_secret(text: str) -> bool:
    """Whether any of _SECRET_PATTERNS could match. In other letters than ASCII's there are more that are the same but
    for case.
    """
    lower = text.lower()
    return not text.isascii() or any(hint in lower for hint in _SECRET_HINTS)


def hide_secrets(text: str) -> str:
    """Without what looks like a password or a token."""
    for pattern in _SECRET_PATTERNS:
        text = pattern.sub(rf"\1{REDACTED_TEXT}", text)
    return text


def _render_json(event: LogEvent) -> str:
    line = _as_json(event)
    for name in ("exception", "event", *FIELDS):  # what is longest first
        while (
            (excess := _encoded_size(line) + 1 - MAX_LINE_BYTES) > 0
            and isinstance(value := event.get(name), str)
            and len(value) > 1
        ):
            size = _encoded_size(_as_json(value))
            kept = max(0, len(value) * (size - excess) // size - 4)
            event[name] = value[len(value) - kept :] if name == "exception" else f"{value[:kept]}…"
            line = _as_json(event)
    return line


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _encoded_size(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))


def _render_console(event: LogEvent) -> str:
    words = f"{event['timestamp']} {event['level'].upper()} {event['logger']}: {event['event']}"
    head = words + "".join(f" [{name} {event[name]}]" for name in _SHOWN_FIELDS if name in event)
    trace = "".join(f"\n    {line}" for line in str(event.get("exception", "")).splitlines())
    room = MAX_LINE_BYTES - 1 - _encoded_size(head)
    if _encoded_size(trace) > room:
        trace = "\n    …" + trace.encode("utf-8", "replace")[8 - room :].decode("utf-8", "ignore")
    return head + trace
