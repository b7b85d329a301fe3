# The text of a librdkafka property whose value a YAML file gives: librdkafka takes nothing else. Knows no property's
# meaning.

from __future__ import annotations

import re
from typing import Final

_SWITCH: Final = re.compile(r"\b(?:enable|disable)\b")  # in the names of properties that are true or false


def as_property_text(key: str, value: object) -> str | None:
    """None: the text isn't known any more, as of a password 1.50, which YAML reads as 1.5, or of a password no, which
    it reads as false; or the value is no scalar.
    """
    if isinstance(value, bool):
        return str(value).lower() if _SWITCH.search(key) else None
    return str(value) if isinstance(value, str | int) else None
