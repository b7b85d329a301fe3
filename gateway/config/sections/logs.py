# The sections `log` (how lines look, and from which level on there are any) and `usage_log`.

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, field_validator

from gateway.cli_support.suggest import name_hint
from gateway.config.sections.fields import FieldFaults, KafkaName, Seconds, Section, Size
from gateway.kafka import topic_names
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


class UsageLog(Section):
    topic: KafkaName = topic_names.USAGE
    spool_dir: Path = Path("./spool")
    max_spool_bytes: Size = Field(default=2**30, ge=2**20)  # a day without Kafka at 12 kB/s: about 50 busy clients
    retention: Seconds = Field(default=7 * 86400.0, ge=0)  # published files are kept this long, for the audit
    partitions: int = Field(default=3, ge=1, le=1000)
    replication: int | None = Field(default=None, ge=1, le=100)  # None: 3, or the number of brokers where that is less
