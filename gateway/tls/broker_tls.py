# TLS to brokers, from librdkafka's properties: the SSLContext of relayed connections
# (gateway/data/connecting/dialling.py) and of requests of our own (gateway/kafka/client.py), and what a handshake that
# failed means, with the key that is to be changed.
#
# A property of TLS is honoured or refused with a line, never passed over: librdkafka makes other connections by the
# same ones. Reads files; knows no sockets.

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gateway.tls.certificates import CertificateError, check_certificates, load_chain
from gateway.tls.tls_reasons import BROKEN_RECORD, BROKEN_RECORD_REASON, NOT_TLS, openssl_reason

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TLS_PROPERTIES: Final = frozenset(
    {
        "enable.ssl.certificate.verification",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.crl.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
    }
)
_TLS_PREFIXES: Final = ("ssl.", "enable.ssl.")  # of the names of TLS's properties
_P12_TO_PEM: Final = "openssl pkcs12 -in FILE -nodes -out FILE.pem"
_KEYSTORE_REFUSAL: Final = (
    f"PKCS#12 is not read by relayed connections: convert it with {_P12_TO_PEM}, and write ssl.certificate.location and"
    " ssl.key.location: FILE.pem"
)
_TRUSTSTORE_REFUSAL: Final = (
    "is a name of Java's: write ssl.ca.location: ca.pem (from a JKS file by keytool -importkeystore -deststoretype"
    " pkcs12, then openssl pkcs12 -in FILE -nokeys -out ca.pem)"
)
_OPENSSL_REFUSAL: Final = (
    "can't be set for relayed connections: leave it out, or set it for all of OpenSSL in openssl.cnf"
)
_REFUSALS: Final = {
    "ssl.keystore.": _KEYSTORE_REFUSAL,
    "ssl.truststore.": _TRUSTSTORE_REFUSAL,
    "ssl.curves.list": _OPENSSL_REFUSAL,
    "ssl.sigalgs.list": _OPENSSL_REFUSAL,
    "ssl.providers": _OPENSSL_REFUSAL,
    "ssl.engine.": _OPENSSL_REFUSAL,
}


class InvalidProperties(ValueError):
    """Connection properties that can't be used: one line with the key and a right value, never the given one."""


class BrokerTls(msgspec.Struct, frozen=True):
    """How brokers are trusted, and what they are shown. Paths are those of PEM files, `ca` may be a folder of OpenSSL's
    kind; each `…_pem` stands for the contents of such a file.

    Attributes:
        ca: with `ca_pem`, the CAs of brokers' certificates; neither: the system's.
        certificate, key: the gateway's own; "": none. `key` "": it is in the certificate's file.
        crl: certificates that CAs have revoked.
        ciphers: of TLS 1.2, as OpenSSL writes them.
        checks_name: the broker's host name must be in its certificate.
        verifies: False: any certificate will do.
    """

    ca: str = ""
    ca_pem: str = ""
    certificate: str = ""
    certificate_pem: str = ""
    key: str = ""
    key_pem: str = ""
    password: str = ""
    crl: str = ""
    ciphers: str = ""
    checks_name: bool = True
    verifies: bool = True

    def __repr__(self) -> str:
        return f"BrokerTls({self.ca!r}, …)"  # never a password or a key

    def files_by_key(self) -> dict[str, str]:
        files = {
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.key,
            "ssl.crl.location": self.crl,
        }
        return {key: path for key, path in files.items() if path}

    @property
    def has_certificate(self) -> bool:
        return bool(self.certificate or self.certificate_pem)


def parse_broker_tls(properties: Mapping[str, str]) -> BrokerTls | None:
    """None: connections to brokers are plain TCP. Reads no file.

    Raises:
        InvalidProperties: one of TLS's can't be honoured, or has no such value.
    """
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in SECURITY_PROTOCOLS:
        raise InvalidProperties(f"security.protocol: must be one of {', '.join(SECURITY_PROTOCOLS)}")
    if not protocol.endswith("SSL"):
        return None
    for key in properties:
        if key.startswith(_TLS_PREFIXES) and key not in TLS_PROPERTIES:
            raise InvalidProperties(f"{key}: {_refusal_text(key)}")
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "none", ""):
        raise InvalidProperties("ssl.endpoint.identification.algorithm: must be https or none")
    verify = properties.get("enable.ssl.certificate.verification", "true").lower()
    if verify not in ("true", "false"):
        raise InvalidProperties("enable.ssl.certificate.verification: must be true or false")
    authorities = properties.get("ssl.ca.location", "")
    tls = BrokerTls(
        ca="" if authorities == "probe" else authorities,
        ca_pem=properties.get("ssl.ca.pem", ""),
        certificate=properties.get("ssl.certificate.location", ""),
        certificate_pem=properties.get("ssl.certificate.pem", ""),
        key=properties.get("ssl.key.location", ""),
        key_pem=properties.get("ssl.key.pem", ""),
        password=properties.get("ssl.key.password", ""),
        crl=properties.get("ssl.crl.location", ""),
        ciphers=properties.get("ssl.cipher.suites", ""),
        checks_name=algorithm == "https" and verify == "true",
        verifies=verify == "true",
    )
    if (tls.key or tls.key_pem) and not tls.has_certificate:
        raise InvalidProperties(
            f"ssl.certificate.location: needed with {'ssl.key.location' if tls.key else 'ssl.key.pem'}"
        )
    return tls


def _refusal_text(key: str) -> str:
    for beginning, why in _REFUSALS.items():
        if key.startswith(beginning):
            return why
    return f"not understood here; known are {', '.join(sorted(TLS_PROPERTIES))}"


def make_broker_context(tls: BrokerTls) -> ssl.SSLContext:
    """The context that connections to brokers are made with.

    Raises:
        CertificateError: a file, or a list of ciphers, can't be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = tls.checks_name
    context.verify_mode = ssl.CERT_REQUIRED if tls.verifies else ssl.CERT_NONE
    _load_authorities(context, tls)
    if tls.ciphers:
        with _blame_key("ssl.cipher.suites"):
            context.set_ciphers(tls.ciphers)
    if tls.has_certificate:
        with (
            _open_as_file("ssl.certificate.pem", tls.certificate_pem) as certificate,
            _open_as_file("ssl.key.pem", tls.key_pem) as key,
        ):
            load_chain(
                context,
                ("ssl.certificate.pem", certificate) if certificate else ("ssl.certificate.location", tls.certificate),
                ("ssl.key.pem", key) if key else ("ssl.key.location", tls.key),
                tls.password,
            )
    return context


def _load_authorities(context: ssl.SSLContext, tls: BrokerTls) -> None:
    with _blame_key("ssl.ca.location", tls.ca):
        is_folder = bool(tls.ca) and Path(tls.ca).is_dir()
    if is_folder:
        with _blame_key("ssl.ca.location", tls.ca):
            context.load_verify_locations(capath=tls.ca)
    elif tls.ca:
        check_certificates("ssl.ca.location", tls.ca)
        with _blame_key("ssl.ca.location", tls.ca):
            context.load_verify_locations(tls.ca)
    if tls.ca_pem:
        with _blame_key("ssl.ca.pem"):
            context.load_verify_locations(cadata=tls.ca_pem.encode("ascii", "ignore").decode())  # comments may be any
    if not tls.ca and not tls.ca_pem:
        context.load_default_certs()
    if tls.crl:
        with _blame_key("ssl.crl.location", tls.crl):
            context.load_verify_locations(tls.crl)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


@contextmanager
def _blame_key(key: str, path: str = "") -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        reason = (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
        raise CertificateError(f"{key}: {path or 'it'} can't be used: {reason}") from error
    except OSError as error:
        raise CertificateError(f"{key}: {path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise CertificateError(f"{key}: {path or 'it'} can't be used") from error


@contextmanager
def _open_as_file(key: str, pem: str) -> Iterator[str]:
    """A path under which OpenSSL reads that text; it never reaches a disk. "" where there is no text."""
    if not pem:
        yield ""
        return
    if sys.platform != "linux":
        raise CertificateError(f"{key}: is read on Linux only: write it to a file, and its path as {key[:-3]}location")
    try:
        fd = os.memfd_create("pem", os.MFD_CLOEXEC)
    except OSError as error:  # too many open files
        raise CertificateError(f"{key}: can't be read: {error.strerror}") from error
    path = f"/proc/self/fd/{fd}"
    try:
        os.write(fd, pem.encode())
        yield path
    except CertificateError as error:
        raise CertificateError(str(error).replace(path, "it")) from error
    finally:
        os.close(fd)


# --- what a failed handshake means ------------------------------------------------------------------------------------

_PLAINTEXT_HINT = "security.protocol must be PLAINTEXT or SASL_PLAINTEXT there, or the port that of a listener with TLS"
CLOSED_AT_ONCE: Final = (
    f"it closed the connection at the first byte of TLS, as a listener without TLS does ({_PLAINTEXT_HINT})"
)
CLOSED: Final = "it closed the connection in the middle of the TLS handshake"
NO_TLS: Final = f"it does not speak TLS ({_PLAINTEXT_HINT})"
SPEAKS_TLS: Final = "it speaks TLS (security.protocol must be SSL or SASL_SSL there)"
# OpenSSL's numbers of what is wrong with a certificate (X509_V_ERR_…).
_EXPIRED, _NOT_YET, _REVOKED = 10, 9, 23
_NAME, _ADDRESS = 62, 64
_NO_CRL, _CRL_EXPIRED = 3, 12
_UNKNOWN_CA: Final = (2, 18, 19, 20, 21)


def explain_tls_failure(error: ssl.SSLError, host: str, tls: BrokerTls) -> str:
    """Why there is no TLS with the broker at that host: the reason, and what would be right. Of bounded variety."""
    reason = openssl_reason(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(error, host, tls)
    if reason in NOT_TLS:
        return NO_TLS
    if reason == BROKEN_RECORD:
        return BROKEN_RECORD_REASON
    text = reason.lower().replace("_", " ")
    if " alert " in text or reason == "TLSV1_UNRECOGNIZED_NAME":
        return _explain_alert(text.partition(" alert ")[2] or "unrecognized name", tls)
    if reason == "UNSUPPORTED_PROTOCOL":
        return "it speaks no version of TLS that the gateway does (TLSv1.2, TLSv1.3)"
    return text or "it does not speak TLS as it should"


def _explain_certificate(error: ssl.SSLCertVerificationError, host: str, tls: BrokerTls) -> str:
    code = error.verify_code
    if code in (_NAME, _ADDRESS):
        return (
            f"its certificate is not for {host} (it must have the name by which the gateway reaches it, or write"
            " ssl.endpoint.identification.algorithm: none)"
        )
    if code == _EXPIRED:
        return "its certificate, or its CA's, has expired (it must be renewed there)"
    if code == _NOT_YET:
        return "its certificate is not valid yet (compare the clocks)"
    if code == _REVOKED:
        return "its certificate is revoked by ssl.crl.location"
    if code in (_NO_CRL, _CRL_EXPIRED):
        return f"ssl.crl.location has no present list of its CA: {error.verify_message}"
    if code in _UNKNOWN_CA:
        store = (
            "ssl.ca.location" if tls.ca else "ssl.ca.pem" if tls.ca_pem else "the system's CAs: write ssl.ca.location"
        )
        return f"its certificate is not signed by a CA in {store} ({error.verify_message})"
    return f"its certificate is not accepted: {error.verify_message}"


def _explain_alert(alert: str, tls: BrokerTls) -> str:
    if alert == "protocol version":
        return "it speaks no version of TLS that the gateway does (TLSv1.2, TLSv1.3)"
    if alert == "handshake failure":
        wants = (
            "" if tls.has_certificate else ", or it wants a certificate (ssl.certificate.location, ssl.key.location)"
        )
        return f"it refuses: handshake failure (no cipher suite in common{wants})"
    if "certificate" in alert or alert == "unknown ca":
        if not tls.has_certificate:
            return f"it wants a certificate ({alert}): write ssl.certificate.location and ssl.key.location"
        return f"it does not accept the certificate in ssl.certificate.location: {alert}"
    return f"it refuses: {alert}"
