# How a broker is reached and trusted, from librdkafka's properties: the same names that the gateway's other clients
# take, for connections of our own (gateway/kafka/client.py). A property that decides which broker is reached, or
# trusted, is understood or refused; those of TLS by broker_tls.py. Reads certificates and keys; opens no connection.

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple

from gateway.kafka import oauthbearer, sasl
from gateway.kafka.oauthbearer import TokenSource, parse_token_source
from gateway.tls import broker_tls
from gateway.tls.broker_tls import BrokerTls, InvalidProperties, make_broker_context, parse_broker_tls
from gateway.tls.certificates import CertificateError

CLIENT_ID: Final = "produce-gateway"
ACCESS_PROPERTIES: Final = (broker_tls.TLS_PROPERTIES | oauthbearer.BEARER_PROPERTIES) | {
    "client.id",
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
}
# How librdkafka works with its sockets: no broker is reached or trusted by them, so they are passed over.
_SOCKET_PROPERTIES: Final = frozenset(
    {
        "broker.address.family",  # here every address of a name is tried
        "broker.address.ttl",
        "socket.blocking.max.ms",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.max.fails",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
    }
)


class SaslCredentials(NamedTuple):
    mechanism: str  # one of sasl.MECHANISMS, or OAUTHBEARER, with its first message as the password
    username: str
    password: str


class BrokerAccess(NamedTuple):
    """`tls_context`, `credentials`: None where there is none. `broker_tls`: what `tls_context` was made of.
    `wants_sasl`: brokers answer little before authentication. `token_source`: where tokens come from, which are the
    credentials then.
    """

    client_id: str
    tls_context: ssl.SSLContext | None
    credentials: SaslCredentials | None
    broker_tls: BrokerTls | None = None
    wants_sasl: bool = False
    token_source: TokenSource | None = None


def parse_access(properties: Mapping[str, str]) -> BrokerAccess:
    """Translate librdkafka's properties.

    Raises:
        InvalidProperties: one is unknown, missing, or names a file that can't be used.
    """
    trust = parse_broker_tls(properties)
    for key in properties:
        if key not in ACCESS_PROPERTIES and key not in _SOCKET_PROPERTIES:
            raise InvalidProperties(f"{key}: not understood here; known are {', '.join(sorted(ACCESS_PROPERTIES))}")
    is_sasl = properties.get("security.protocol", "").upper().startswith("SASL_")
    bearer = (
        parse_token_source(properties) if is_sasl and _sasl_mechanism(properties) == oauthbearer.MECHANISM else None
    )
    credentials = _parse_credentials(properties) if is_sasl and bearer is None else None
    try:
        tls = make_broker_context(trust) if trust is not None else None
    except CertificateError as error:
        raise InvalidProperties(str(error)) from error
    return BrokerAccess(properties.get("client.id", CLIENT_ID), tls, credentials, trust, is_sasl, bearer)


def check_credentials(properties: Mapping[str, str]) -> None:
    """For librdkafka, which names no key where credentials are missing, and waits for ever for a token that nothing
    fetches. What it understands beyond that is left to it.

    Raises:
        InvalidProperties: what a client is to authenticate with is missing.
    """
    if not properties.get("security.protocol", "").upper().startswith("SASL_"):
        return
    mechanism = _sasl_mechanism(properties)
    method = properties.get(f"{oauthbearer.PROPERTY_PREFIX}method", "").lower()
    if mechanism in sasl.MECHANISMS:
        _parse_credentials(properties)
    elif mechanism == oauthbearer.MECHANISM and method != "oidc":
        parse_token_source(properties)


def _sasl_mechanism(properties: Mapping[str, str]) -> str:
    return (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms", "")).upper()


def _parse_credentials(properties: Mapping[str, str]) -> SaslCredentials:
    mechanism = _sasl_mechanism(properties)
    if mechanism not in sasl.MECHANISMS:
        known = ", ".join((*sasl.MECHANISMS, oauthbearer.MECHANISM))
        raise InvalidProperties(f"sasl.mechanism: must be one of {known} here")
    for key in ("sasl.username", "sasl.password"):
        if not properties.get(key):
            raise InvalidProperties(f"{key}: needed with sasl.mechanism {mechanism}")
    return SaslCredentials(mechanism, properties["sasl.username"], properties["sasl.password"])


__all__ = [
    "ACCESS_PROPERTIES",
    "CLIENT_ID",
    "BrokerAccess",
    "InvalidProperties",
    "SaslCredentials",
    "check_credentials",
    "parse_access",
]
