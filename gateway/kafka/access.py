# How a broker is reached and trusted, from librdkafka's properties: the same names that the gateway's other clients
# take, for connections of our own (gateway/kafka/client.py). A property that decides which broker is reached, or
# trusted, is understood or refused. Reads certificates and keys; opens no connection.

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gateway.kafka import sasl

CLIENT_ID: Final = "produce-gateway"
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
KNOWN: Final = frozenset(
    {
        "client.id",
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "enable.ssl.certificate.verification",
        "ssl.endpoint.identification.algorithm",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.crl.location",
        "ssl.cipher.suites",
    }
)
# How librdkafka works with its sockets: no broker is reached or trusted by them, so they are passed over.
_TUNING: Final = frozenset(
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


class InvalidProperties(ValueError):
    """Connection properties that can't be used: one line with the key and what would be right, never its value."""


class Credentials(NamedTuple):
    mechanism: str  # one of sasl.MECHANISMS
    username: str
    password: str


class Access(NamedTuple):
    """`tls`, `credentials`: None where there is none."""

    client_id: str
    tls: ssl.SSLContext | None
    credentials: Credentials | None


def access_of(properties: Mapping[str, str]) -> Access:
    """Translate librdkafka's properties.

    Raises:
        InvalidProperties: one is unknown, missing, or names a file that can't be used.
    """
    for key in properties:
        if key not in KNOWN and key not in _TUNING:
            raise InvalidProperties(f"{key}: not understood here; known are {', '.join(sorted(KNOWN))}")
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise InvalidProperties(f"security.protocol: must be one of {', '.join(PROTOCOLS)}")
    credentials = _credentials(properties) if protocol.startswith("SASL_") else None
    tls = _tls(properties) if protocol.endswith("SSL") else None
    return Access(properties.get("client.id", CLIENT_ID), tls, credentials)


def _credentials(properties: Mapping[str, str]) -> Credentials:
    mechanism = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms", "")).upper()
    if mechanism not in sasl.MECHANISMS:
        raise InvalidProperties(f"sasl.mechanism: must be one of {', '.join(sasl.MECHANISMS)} here")
    for key in ("sasl.username", "sasl.password"):
        if not properties.get(key):
            raise InvalidProperties(f"{key}: needed with sasl.mechanism {mechanism}")
    return Credentials(mechanism, properties["sasl.username"], properties["sasl.password"])


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "none", ""):
        raise InvalidProperties("ssl.endpoint.identification.algorithm: must be https or none")
    verify = properties.get("enable.ssl.certificate.verification", "true").lower()
    if verify not in ("true", "false"):
        raise InvalidProperties("enable.ssl.certificate.verification: must be true or false")
    context.check_hostname = algorithm == "https" and verify == "true"
    context.verify_mode = ssl.CERT_REQUIRED if verify == "true" else ssl.CERT_NONE

    authorities, pem = properties.get("ssl.ca.location"), properties.get("ssl.ca.pem")
    if authorities and authorities != "probe":
        with _blaming("ssl.ca.location", authorities):
            kind = "capath" if Path(authorities).is_dir() else "cafile"
            context.load_verify_locations(**{kind: authorities})
    if pem:
        with _blaming("ssl.ca.pem"):
            context.load_verify_locations(cadata=pem)
    if not pem and authorities in (None, "", "probe"):
        context.load_default_certs()
    if revoked := properties.get("ssl.crl.location"):
        with _blaming("ssl.crl.location", revoked):
            context.load_verify_locations(revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if ciphers := properties.get("ssl.cipher.suites"):
        with _blaming("ssl.cipher.suites"):
            context.set_ciphers(ciphers)
    _load_own_certificate(context, properties)
    return context


def _load_own_certificate(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    certificate, key = properties.get("ssl.certificate.location"), properties.get("ssl.key.location")
    if not certificate:
        if key:
            raise InvalidProperties("ssl.certificate.location: needed with ssl.key.location")
        return
    for name, path in (("ssl.certificate.location", certificate), ("ssl.key.location", key)):
        if path:
            with _blaming(name, path), open(path, "rb"):
                pass
    with _blaming("ssl.certificate.location, ssl.key.location, ssl.key.password"):
        # Never None: OpenSSL would ask at the terminal.
        context.load_cert_chain(certificate, key, password=properties.get("ssl.key.password", ""))


@contextlib.contextmanager
def _blaming(key: str, path: str = "") -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error) or "can't be used"
        raise InvalidProperties(": ".join(filter(None, (key, path, " ".join(str(reason).split()))))) from error
