# The section `upstream`, and how any client of the gateway's own reaches a cluster: addresses, and librdkafka's
# properties. It is `check`
# (gateway/cli.py) that asks librdkafka whether it knows a property: the parent process reads this package and stays
# small.

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import ConfigDict, field_validator, model_validator

from gateway.config.sections.fields import Seconds, Section, setting
from gateway.kafka.property_text import as_property_text
from gateway.tls.broker_tls import BrokerTls, parse_broker_tls

_ADDRESS: Final = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:,/]+):([0-9]{1,5})")

# Settings that may be handed to the gateway's own Kafka clients: how to reach and trust brokers, nothing that changes
# how they work. The names are librdkafka's.
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

# More of them that a client of ours has a use for: for "did you mean", since librdkafka can't be asked for its list.
KNOWN_PROPERTIES: Final = (
    *USUAL_PROPERTIES, "broker.address.family", "broker.address.ttl", "enable.sasl.oauthbearer.unsecure.jwt",
    "enable.ssl.certificate.verification", "https.ca.location", "https.ca.pem", "sasl.kerberos.keytab",
    "sasl.kerberos.principal", "sasl.kerberos.service.name", "sasl.mechanisms", "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config", "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.method", "sasl.oauthbearer.scope", "sasl.oauthbearer.token.endpoint.url",
    "socket.connection.setup.timeout.ms", "socket.keepalive.enable", "socket.max.fails", "socket.nagle.disable",
    "socket.receive.buffer.bytes", "socket.send.buffer.bytes", "socket.timeout.ms", "ssl.ca.certificate.stores",
    "ssl.ca.pem", "ssl.certificate.pem", "ssl.cipher.suites", "ssl.crl.location", "ssl.curves.list", "ssl.key.pem",
    "ssl.keystore.location", "ssl.keystore.password", "ssl.providers", "ssl.sigalgs.list",
)  # fmt: skip


# Of both librdkafka takes the last, and connections of our own the first.
_MECHANISM_KEYS: Final = ("sasl.mechanism", "sasl.mechanisms")


class Client(Section):
    """The properties by which a client of the gateway's own reaches a cluster."""

    model_config = ConfigDict(
        json_schema_extra={"patternProperties": {rf"^({'|'.join(map(re.escape, CLIENT_PROPERTIES))})": {}}},
    )
    bootstrap_servers: str = setting(..., "host:port,host:port of the cluster.")
    # Those that begin as CLIENT_PROPERTIES say; written beside the others in YAML. Passwords are among them.
    properties: dict[str, str] = setting(
        {},
        "librdkafka's properties (security.*, sasl.*, ssl.*, socket.* and some others), written beside the other"
        " keys of this section. security.protocol and ssl.* hold for relayed connections too.",
        repr=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _collect_properties(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = data.get("properties") or {}
        if not isinstance(given, dict):
            raise ValueError("properties: librdkafka's properties are written beside the other keys, without this one")
        own = {key: value for key, value in data.items() if isinstance(key, str) and key.startswith(CLIENT_PROPERTIES)}
        _check_properties(given, own)
        rest = {key: value for key, value in data.items() if key not in own}
        properties = {key: property_text(key, value) for key, value in (given | own).items()}
        return {**rest, "properties": properties}

    @field_validator("bootstrap_servers", mode="before")
    @classmethod
    def _check_bootstrap_servers(cls, value: object) -> object:
        if value == "" and not cls.model_fields["bootstrap_servers"].is_required():
            return value
        servers = value if isinstance(value, list) else str(value).split(",")
        texts = [str(server).strip() for server in servers]
        for text in texts:
            match = _ADDRESS.fullmatch(text)
            if match is None or not 1 <= int(match[1]) <= 65535:
                raise ValueError(f"{text!r} is not a valid host:port; for example: broker1:9092,broker2:9092")
        return ",".join(texts)


def _check_properties(given: dict[Any, Any], own: dict[str, Any]) -> None:
    """`given`: under the key `properties`, as control gets them; `own`: written beside it.

    Raises:
        ValueError: one that is none of CLIENT_PROPERTIES, or two that contradict each other.
    """
    for key, value in given.items():
        if isinstance(key, str) and not key.startswith(CLIENT_PROPERTIES):
            raise ValueError(
                f"properties.{key}: unknown key; known are {', '.join(f'{each}*' for each in CLIENT_PROPERTIES)}"
            )
        if own.get(key, value) != value:
            raise ValueError(f"{key}: is in properties as well, with another value: keep one of them")
    both = given | own
    one, other = (both.get(key) for key in _MECHANISM_KEYS)
    if one and other and one != other:
        raise ValueError(
            f"{_MECHANISM_KEYS[1]}: is another name of {_MECHANISM_KEYS[0]}, with another value: keep one of them"
        )


def property_text(key: str, value: object) -> object:
    """The text of a librdkafka property. A secret may stand in a file: {file: /run/secrets/password}, which editors of
    Windows begin with a byte order mark. A value without a
    text (`as_property_text`) is given back as it is: it is the caller's to refuse.

    Raises:
        ValueError: the file can't be read.
    """
    if isinstance(value, dict) and set(value) == {"file"}:
        try:
            return Path(str(value["file"])).read_text("utf-8-sig").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ValueError(f"{key}: file {value['file']} can't be read: {why}") from error
    text = as_property_text(key, value)
    return value if text is None else text


class Upstream(Client):
    """The cluster behind the gateway, and how relayed connections and the gateway's own clients reach it. Whether files
    can be used is asked by `check` and `serve`, as with the listener's.
    """

    # A new topic changes implicit shares: a tick is 5 s too.
    metadata_refresh: Seconds = setting(
        5.0, "How often the gateway asks the cluster for brokers and topics.", live=True, ge=0.1, le=3600
    )
    # Clients give up a dead broker after 10 to 30 s themselves.
    connect_timeout: Seconds = setting(
        3.0,
        "Time limit for each connection to a broker, its TLS handshake included.",
        live=True,
        workers=True,
        gt=0,
        le=60,
    )
    proxy_protocol: Literal["none", "v1", "v2"] = setting(
        "none",
        "Each connection to a broker begins with a PROXY protocol header that has the client's address.",
        workers=True,
    )

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        parse_broker_tls(self.properties)
        return self

    @property
    def tls(self) -> BrokerTls | None:
        """None: brokers are spoken to in plain text."""
        return parse_broker_tls(self.properties)

    @property
    def wants_sasl(self) -> bool:
        """Whether brokers want clients to authenticate by SASL; False: that isn't known from here."""
        return self.properties.get("security.protocol", "").upper().startswith("SASL")

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The bootstrap servers as (host, port)."""
        pairs = (server.rpartition(":") for server in self.bootstrap_servers.split(","))
        return tuple((host.strip("[]"), int(port)) for host, _, port in pairs)
