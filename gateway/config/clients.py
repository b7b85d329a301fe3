# How a client of the gateway's own reaches a cluster: addresses, and librdkafka's properties. It is `check`
# (gateway/cli.py) that asks librdkafka whether it knows a property: the parent process reads this package and stays
# small.

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, field_validator, model_validator

from gateway.config.fields import Section

_ADDRESS: Final = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:,/]+):(\d{1,5})")

# What may be handed to the gateway's own Kafka clients: how to reach and trust brokers, nothing that changes how they
# work. The names are librdkafka's.
CLIENT_PROPERTIES: Final = (
    "security.",
    "sasl.",
    "ssl.",
    "enable.ssl.",
    "enable.sasl.",
    "https.",
    "socket.",
    "broker.address.",
)
USUAL_PROPERTIES: Final = (
    "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.location",
    "ssl.certificate.location", "ssl.key.location", "ssl.key.password", "ssl.endpoint.identification.algorithm",
)  # fmt: skip


class Client(Section):
    """How a client of the gateway's own reaches a cluster."""

    model_config = ConfigDict(
        json_schema_extra={"patternProperties": {rf"^({'|'.join(map(re.escape, CLIENT_PROPERTIES))})": {}}},
    )
    bootstrap_servers: str
    properties: dict[str, str] = {}  # those that begin as CLIENT_PROPERTIES say; written beside the others in YAML

    @model_validator(mode="before")
    @classmethod
    def _collect_properties(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        properties = dict(data.get("properties") or {})
        for key in [key for key in data if isinstance(key, str) and key.startswith(CLIENT_PROPERTIES)]:
            properties[key] = data[key]
        rest = {key: value for key, value in data.items() if key not in properties}
        return {**rest, "properties": {key: property_text(key, value) for key, value in properties.items()}}

    @field_validator("bootstrap_servers", mode="before")
    @classmethod
    def _check_servers(cls, value: object) -> object:
        if value == "" and not cls.model_fields["bootstrap_servers"].is_required():
            return value
        servers = value if isinstance(value, list) else str(value).split(",")
        texts = [str(server).strip() for server in servers]
        for text in texts:
            match = _ADDRESS.fullmatch(text)
            if match is None or not 1 <= int(match[1]) <= 65535:
                raise ValueError(f"{text!r} is not a valid host:port; for example: broker1:9092,broker2:9092")
        return ",".join(texts)


def property_text(key: str, value: object) -> object:
    """librdkafka takes text only. A secret may stand in a file: {file: /run/secrets/password}.

    What is neither text, number, boolean nor such a file is given back as it is: it is the caller's to refuse.

    Raises:
        ValueError: the file can't be read.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict) and set(value) == {"file"}:
        try:
            return Path(str(value["file"])).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{key}: file {value['file']} can't be read: {error}") from error
    return str(value) if isinstance(value, (int, float)) else value
