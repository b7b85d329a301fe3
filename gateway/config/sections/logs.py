# The sections `log` (how lines look, and from which level on there are any) and `usage_log`.

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import field_validator, model_validator

from gateway.config.sections.fields import (
    Copies,
    Count,
    FieldFaults,
    KafkaName,
    Seconds,
    Section,
    Size,
    WrittenPath,
    setting,
)
from gateway.kafka import topic_names
from gateway.log.logs import LOGGERS, LogFormat, LogLevel
from gateway.name_hints import name_hint


class Log(Section):
    """What the gateway logs, on stderr. `levels`: of single loggers (docs/logs.md), which else have `level`."""

    format: LogFormat = setting("console", "console for people; json: each line is a JSON object.")
    level: LogLevel = setting("info", "From which level on there are lines.", live=True)
    levels: dict[str, LogLevel] = setting({}, "The same for single loggers, by name.", live=True)

    @field_validator("levels")
    @classmethod
    def _check_levels(cls, value: dict[str, LogLevel]) -> dict[str, LogLevel]:
        unknown = [
            f"{name}: there is no such logger; {name_hint(name, LOGGERS)}" for name in value if name not in LOGGERS
        ]
        if unknown:
            raise FieldFaults(unknown)
        return value


class UsageLog(Section):
    topic: KafkaName = setting(topic_names.USAGE, "The topic for usage records; created if it is missing.")
    spool_dir: WrittenPath = setting(
        Path("./spool"), "Folder to which records are written before they are published. Each gateway needs its own."
    )
    # A day without Kafka at 12 kB/s: about 50 busy clients.
    max_spool_bytes: Size = setting(2**30, "Maximum size of the spool.", ge=2**20)
    retention: Seconds = setting(
        7 * 86400.0, "How long published files are kept, so that the audit can read them too.", ge=0
    )
    partitions: Count = setting(
        3, "Partitions of the topic, if the gateway creates it.", ge=1, le=1000, unit="partitions"
    )
    replication: Copies | None = setting(None, "Copies of it. Without it 3, or the number of brokers if that is less.")
    chain: bool = setting(
        False, "Records have digests of themselves and of the one before, so that the audit finds changed ones."
    )
    chain_key_file: Path | None = setting(
        None, "A file with a key for these digests, without which nobody can write such a record. It needs chain: true."
    )

    @model_validator(mode="after")
    def _check_chain(self) -> Self:
        if self.chain_key_file is not None and not self.chain:
            raise ValueError("chain_key_file: it has no effect without chain: true")
        return self
