# Pages out of templates. Jinja escapes every name, since names are strangers' input; a name that a template doesn't
# know is an error (StrictUndefined). Filters show values as people read them; times are UTC.

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

import jinja2

from policies.units import exact_number, exact_rate, exact_size, format_duration, format_rate, format_size, parse_size

OUTCOMES: Final = {
    "rejected": "Rejected",
    "dropped": "Dropped",
    "delayed": "Delayed",
    "would_reject": "Would be rejected",
    "would_delay": "Would be delayed",
}


class ConsoleTemplates:
    """Compiles each once."""

    def __init__(self) -> None:
        self._environment = environment = jinja2.Environment(
            loader=jinja2.PackageLoader("gateway.control.admin.console"),
            autoescape=True,
            auto_reload=False,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {
            "rate": rate_text,
            "exact_rate": exact_rate_text,
            "number": exact_number,
            "size": size_text,
            "age": format_duration,
            "day": day_text,
            "clock": clock_text,
            "exact": exact_size,
            "percent": percent_text,
            "count": "{:,}".format,
            "outcome": outcome_text,
        }
        environment.globals |= {"url": make_url}
        # Blocks are rendered alone as well, so what a template imports would not be there.
        environment.globals["ui"] = environment.get_template("ui.html").module

    def render_page(self, name: str, values: Mapping[str, Any]) -> str:
        return self._environment.get_template(name).render(values)

    def render_block(self, name: str, block: str, values: Mapping[str, Any]) -> str:
        """One part of a page."""
        template = self._environment.get_template(name)
        return "".join(template.blocks[block](template.new_context(dict(values))))


def make_url(path: str, /, **query: Any) -> str:
    """A value None leaves the parameter out."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def outcome_text(name: str) -> str:
    """What became of bytes that a policy looked at."""
    return OUTCOMES.get(name, name)


def rate_text(value: float | None, unit: str = "bytes/s") -> str:
    """`value` None: there is none, or it is not known."""
    if value is None:
        return "–"
    if unit == "bytes/s":
        return format_rate(value) if value else "0 B/s"
    if value >= 100 or value == int(value):
        return f"{value:,.0f} {unit}"
    return f"{value:,.2f} {unit}" if value >= 0.01 else f"{value:.2g} {unit}"


def exact_rate_text(value: float) -> str:
    """Bytes per second that somebody has set: rounded only if no digit is lost, since two that differ must not look the
    same.
    """
    if 0 < value < 1:  # no size, though a limit may be as small
        return exact_rate(value)
    short = rate_text(value)
    return short if parse_size(short.removesuffix("/s")) == value else exact_rate(value)


def size_text(value: float | None) -> str:
    return "–" if value is None else format_size(value)


def day_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def clock_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%SZ")


def percent_text(ratio: float | None) -> str:
    return "–" if ratio is None or not math.isfinite(ratio) else f"{ratio:.0%}"
