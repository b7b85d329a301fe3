# The agent's settings: limits, log dirs and how the cluster is reached. Knows no flag and no file.

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, field_validator, model_validator

from gateway.config.sections.fields import Copies, reject_bool
from gateway.kafka import topic_names
from gateway.log.logs import LogFormat
from policies.storage import LIMIT_TYPES, VolumeLimit
from policies.units import parse_duration, parse_size


class SettingsError(Exception):
    """The agent can't be started like this: one line."""


def parse_limit(value: object) -> VolumeLimit:
    """A limit from TYPE:LEVEL or {type: TYPE, level: LEVEL}: a size, or whole percent for MinFreePercentage.

    Raises:
        ValueError: it is none, or one that says nothing.
    """
    if isinstance(value, dict) and set(value) == {"type", "level"}:
        kind, level = value["type"], value["level"]
    elif isinstance(value, str) and ":" in value:
        kind, _, level = value.partition(":")
    else:
        raise ValueError(f"{value!r} is not a valid limit; for example: MinFreeBytes:10GB or MinFreePercentage:20")
    if kind not in LIMIT_TYPES:
        raise ValueError(f"{kind!r} is not a valid type of limit; there are {', '.join(LIMIT_TYPES)}")
    if kind == "MinFreePercentage":
        percent = re.fullmatch(r"([0-9]{1,3})\s*%?", str(level).strip())
        if percent is None or not 1 <= int(percent[1]) <= 100:
            raise ValueError(f"{level!r}: MinFreePercentage is a whole percentage from 1 to 100 here, such as 20")
        return VolumeLimit(kind, int(percent[1]) / 100)
    size = parse_size(level)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 2**63:
        raise ValueError(f"{level!r}: a size above 0 is needed, such as 10GB; for no limit leave it out")
    return VolumeLimit(kind, float(size))


def _own_limit(value: object) -> VolumeLimit | None:
    return None if value in ("none", None) else parse_limit(value)


def _parse_interval(value: object) -> float:
    seconds = parse_duration(value)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 1 <= seconds <= 3600:
        raise ValueError(f"{value!r}: between 1s and 1h is needed, such as PT30S or 30s")
    return float(seconds)


class _AgentSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class OwnLimits(_AgentSection):
    """Of one log dir's volume, in place of the agent's; None: not the agent's either, only the gateway's."""

    soft: Annotated[VolumeLimit | None, PlainValidator(_own_limit)] = None
    hard: Annotated[VolumeLimit | None, PlainValidator(_own_limit)] = None


class AgentSettings(_AgentSection):
    broker_id: Annotated[int, BeforeValidator(reject_bool)] = Field(ge=0, le=2**31 - 1)
    log_dirs: tuple[str, ...]
    bootstrap_servers: str = "127.0.0.1:9092"
    topic: str = Field(default=topic_names.VOLUMES, pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    replication: Copies | None = None
    interval: Annotated[float, PlainValidator(_parse_interval)] = 30.0
    soft: Annotated[VolumeLimit | None, PlainValidator(_own_limit)] = None
    hard: Annotated[VolumeLimit | None, PlainValidator(_own_limit)] = None
    volumes: dict[str, OwnLimits] = {}
    metrics: str = "127.0.0.1:9191"
    log_format: LogFormat = "console"
    kafka: dict[str, str] = {}

    @field_validator("log_dirs", mode="before")
    @classmethod
    def _split_log_dirs(cls, value: object) -> object:
        dirs = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        if not isinstance(dirs, list) or not dirs or not all(isinstance(path, str) and path for path in dirs):
            raise ValueError("paths are needed, with commas between them, as in the broker's log.dirs")
        return tuple(dict.fromkeys(dirs))

    @field_validator("metrics")
    @classmethod
    def _check_metrics(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value != "off" and not (host and port.isdecimal() and 1 <= int(port) <= 65535):
            raise ValueError(f"{value!r} is neither HOST:PORT nor off")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        _check_limits("", self.soft, self.hard)
        for path in self.volumes:
            if path not in self.log_dirs:
                raise ValueError(f"volumes: {path} is not one of the log dirs {', '.join(self.log_dirs)}")
            _check_limits(f"volumes: {path}: ", *self.find_limits([path]))
        return self

    def find_limits(self, log_dirs: Sequence[str]) -> tuple[VolumeLimit | None, VolumeLimit | None]:
        """Soft and hard limit of the volume under these log dirs; the first that has its own decides."""
        chosen: dict[str, VolumeLimit | None] = {"soft": self.soft, "hard": self.hard}
        for path in reversed(log_dirs):
            own = self.volumes.get(path)
            if own is not None:
                chosen |= {name: getattr(own, name) for name in own.model_fields_set}
        return chosen["soft"], chosen["hard"]

    def client_properties(self) -> dict[str, Any]:
        """librdkafka properties that reach the cluster."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": f"produce-gateway-volume-agent-{self.broker_id}",
            "log_level": 2,  # what matters is reported by the calls; librdkafka repeats itself on stderr
            "reconnect.backoff.max.ms": 2000,
            **self.kafka,
        }


def _check_limits(where: str, soft: VolumeLimit | None, hard: VolumeLimit | None) -> None:
    if hard is not None and (hard.type, hard.level) == ("MinFreePercentage", 1):
        raise ValueError(f"{where}the hard limit ({hard}) would always hold all producers: no more can ever be free")
    if soft is not None and hard is not None and (soft.lag_behind(hard) or 0.0) > 0:
        raise ValueError(f"{where}the soft limit ({soft}) would be reached after the hard one ({hard})")
