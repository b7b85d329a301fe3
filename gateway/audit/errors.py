# The words of a failed audit: one line, whatever chain of Java exceptions it was. Knows nothing of sessions or tables.

from __future__ import annotations

import re
from typing import Any, Final

RECORDS_GONE: Final = (
    "records that were there at the start are gone (retention removed them, or the topic was recreated): run again, and"
    " give the topic a longer retention"
)
NO_CONNECT_TEXT: Final = "SPARK_REMOTE: not by Spark Connect; by spark-submit, or on one machine"
_MAX_MESSAGE_CHARS: Final = 500  # characters of another program's message
_MAX_CHAIN: Final = 20
_TRACEBACK: Final = "Traceback (most recent call last)"
_TERMINAL_COLORS: Final = re.compile(r"\x1b\[[0-9;]*m")  # with which deltalake tells of object stores
# Innermost, and yet not what went wrong.
_UNINFORMATIVE_ERRORS: Final = ("java.lang.InterruptedException",)


class AuditError(Exception):
    """The audit can't be made; the text is one line that says why and, where possible, what to do."""


def explain_error(error: BaseException) -> str:
    """The failure in Spark or Kafka, in one line."""
    chain = list_causes(error)
    if any("OffsetOutOfRangeException" in name for name, _ in chain) or any(
        "data loss" in text.lower() or "lost data" in text.lower() for _, text in chain
    ):
        return RECORDS_GONE
    full = next((text for _, text in chain if "No space left on device" in text), None)
    if isinstance(error, OSError) and full is not None:  # not Java's: its tables and files to sort aren't at fault
        return f"{error.filename or 'standard output'}: can't be written: {error.strerror}"
    if full is not None:
        return _full_disk_text(_first_line(full))
    for name, text in reversed(chain):
        if text.strip() and name not in _UNINFORMATIVE_ERRORS:
            return f"{name.rpartition('.')[2]}: {_first_line(text)}"
    return f"{type(error).__name__}: {_first_line(str(error)) if str(error).strip() else 'no message'}"


def explain_storage_error(place: str, error: Exception) -> str:
    """The failure of deltalake's in a place, in one line."""
    said = plain_line(error)
    return _full_disk_text(said) if "No space left on device" in said else f"{place}: {said[:_MAX_MESSAGE_CHARS]}"


def plain_line(error: Exception) -> str:
    """What an error says, in one line and without a terminal's colors."""
    return " ".join(_TERMINAL_COLORS.sub("", str(error)).split())


def _full_disk_text(said: str) -> str:
    return f"the disk is full ({said}): it needs room for the tables, and in spark.local.dir for sorting"


def list_causes(error: BaseException) -> list[tuple[str, str]]:
    """The chain of Java exceptions as (class name, message), outermost first; of Python ones just this."""
    chain = [(java.getClass().getName(), java.getMessage() or "") for java in _java_causes(error)]
    return chain or [(type(error).__name__, str(error))]


def raising_class(error: BaseException) -> str:
    """The Java class whose method raised the innermost exception; "" where that isn't known."""
    causes = _java_causes(error)
    frames: Any = causes[-1].getStackTrace() if causes else ()
    return str(frames[0].getClassName()) if len(frames) else ""


def _java_causes(error: BaseException) -> list[Any]:
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    chain: list[Any] = []
    while java is not None and len(chain) < _MAX_CHAIN:
        chain.append(java)
        java = java.getCause()
    return chain


def _first_line(text: str) -> str:
    """The first line, or what a traceback in it ends with: that of one of Spark's Python processes."""
    lines = text.strip().splitlines()
    begins = next((at for at, line in enumerate(lines) if line.lstrip().startswith(_TRACEBACK)), None)
    rest = () if begins is None else lines[begins + 1 :]
    return next((line for line in rest if line and not line[0].isspace()), lines[0])[:_MAX_MESSAGE_CHARS]
