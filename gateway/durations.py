# ISO-8601 durations as the proposals write them (PT1M, PT0S, P1DT12H): seconds, or nothing. Only what Java's
# Duration.parse takes as well, without signs: a year or a month has no fixed length, so neither is a duration here.
#
# Knows no other notation: `gateway.config.parse_duration` has that of the YAML file (30s, 1h30m).

from __future__ import annotations

import re
from typing import Final

_ISO: Final = re.compile(
    r"P(?=[0-9T])(?:([0-9]+)D)?(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:[.,][0-9]{1,9})?)S)?)?",
    re.IGNORECASE,
)
_SECONDS: Final = (86400.0, 3600.0, 60.0, 1.0)
_MAX_CHARS: Final = 60  # more digits than any duration needs would not fit into a float


def parse_iso8601(text: str) -> float | None:
    """Seconds of an ISO-8601 duration; None for any other text, one with years, months or weeks among them."""
    match = _ISO.fullmatch(text.strip()) if len(text) <= _MAX_CHARS else None
    if match is None:
        return None
    return sum(float(number.replace(",", ".")) * unit for number, unit in zip(match.groups("0"), _SECONDS, strict=True))
