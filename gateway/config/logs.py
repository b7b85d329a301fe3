# The section `log`: how lines look, and from which level on there are any.

from __future__ import annotations

from collections.abc import Mapping

from pydantic import field_validator

from gateway.cli_support.suggest import name_hint
from gateway.config.fields import FieldFaults, Section
from gateway.log.logs import LOGGERS, LogFormat, LogLevel


class Log(Section):
    """What the gateway logs, on stderr. `levels`: of single loggers (docs/logs.md), which else have `level`."""

    format: LogFormat = "console"
    level: LogLevel = "info"
    levels: Mapping[str, LogLevel] = {}

    @field_validator("levels")
    @classmethod
    def _check_levels(cls, value: Mapping[str, LogLevel]) -> Mapping[str, LogLevel]:
        unknown = [
            f"{name}: there is no such logger; {name_hint(name, LOGGERS)}" for name in value if name not in LOGGERS
        ]
        if unknown:
            raise FieldFaults(unknown)
        return value
