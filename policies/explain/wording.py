# Numbers, places and ends as people read them.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from policies.definitions.policy_records import end_text
from policies.definitions.policy_values import PolicySetting
from policies.units import format_rate


def amount_text(unit: str) -> Callable[[float], str]:
    """Text of a Level's numbers."""
    return _AMOUNTS.get(unit, format_rate)


def place_text(broker: int | None) -> str:
    return "each broker" if broker is None else f"broker {broker}"


def scale_text(scale: float) -> str:
    return "" if scale == 1.0 else f"times the storage factor {scale:.3g}"


def until_text(setting: PolicySetting) -> str:
    return f"was set at run time until {end_text(setting.end)}, then this one holds again"


def _percent_text(value: float) -> str:
    return f"{value:.3g} %"


def _messages_text(value: float) -> str:
    return f"{value:,.0f} messages/s" if value >= 10 or value == int(value) else f"{value:.2g} messages/s"


_AMOUNTS: Final[Mapping[str, Callable[[float], str]]] = {
    "%": _percent_text, "bytes/s": format_rate, "messages/s": _messages_text,
}  # fmt: skip
