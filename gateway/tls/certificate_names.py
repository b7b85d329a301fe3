# Whether a listener's certificate is for the names that clients are told: one line for each that it isn't for. Without
# that an operator learns it from the first client, whose handshake fails.
#
# OpenSSL itself reads the certificate and judges what isn't about names (it has expired, it is no server's), in a
# handshake in memory with a client that trusts just this certificate.

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.tls.certificates import ListenerTls, make_listener_context
from gateway.tls.server_names import NODE_ID, expand_node_id

_MAX_HANDSHAKE_STEPS: Final = 10  # of a handshake; three are usual
_MAX_NAMES_SHOWN: Final = 10  # names of a certificate that a line repeats


class AdvertisedHost(NamedTuple):
    """A host that clients are told to connect to, with NODE_ID where it stands for each broker's; and the key of the
    listener's configuration that says so.
    """

    host: str
    key: str


class CertificateNames(NamedTuple):
    """Those in a certificate's subjectAltName, host names in lower case."""

    hosts: tuple[str, ...]
    addresses: tuple[str, ...] = ()

    def covers_host(self, host: str) -> bool:
        """Whether every client takes the certificate for that host, or address.

        `*` stands for one whole label, the first, before at least two others: what some clients take beyond that
        (`b*.example.com`, `*.example`) others refuse (RFC 6125, 6.4.3; Java, OpenSSL, Go, Node).
        """
        try:
            return str(ipaddress.ip_address(host)) in self.addresses
        except ValueError:
            pass
        host = host.lower().removesuffix(".")
        first, _, parent = host.partition(".")
        return host in self.hosts or (first != "" and "." in parent and f"*.{parent}" in self.hosts)

    def covers_brokers(self, pattern: str) -> bool:
        """Whether it is for all brokers' names, or at least for one that is written out: which brokers there are, and
        will be, is not known here.
        """
        before, _, behind = pattern.lower().partition(NODE_ID)
        one = re.compile(f"{re.escape(before)}(0|[1-9][0-9]*){re.escape(behind)}")
        return self.covers_host(expand_node_id(pattern, 0)) or any(map(one.fullmatch, self.hosts))

    def __str__(self) -> str:
        names = [*self.hosts, *self.addresses]
        more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
        return ", ".join(names[:_MAX_NAMES_SHOWN]) + more or "none"


def find_name_warnings(tls: ListenerTls, hosts: Sequence[AdvertisedHost]) -> list[str]:
    """Why clients that verify the listener's certificate will refuse it, with what would be right. Each line begins
    with a key of the listener.

    Raises:
        CertificateError: its files can't be used.
    """
    try:
        names = read_certificate_names(tls)
    except ssl.SSLCertVerificationError as error:
        return [
            f"ssl.keystore.location: clients will refuse {tls.keystore}: {error.verify_message}: another one is needed"
        ]
    except (ssl.SSLError, ValueError):
        return []  # nothing can be said of it
    return [
        f"ssl.keystore.location: {tls.keystore} is not for {host}, which clients are told ({key}): those that check"
        f" names will refuse it. It is for {names}: it needs {_needed_alt_name(host)} in its subjectAltName"
        for host, key in hosts
        if not (names.covers_brokers(host) if NODE_ID in host else names.covers_host(host))
    ]


def _needed_alt_name(host: str) -> str:
    """The subjectAltName that would be right."""
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        pass
    if NODE_ID not in host:
        return f"DNS:{host}"
    first, _, parent = host.partition(".")
    if NODE_ID in first and "." in parent:
        return f"DNS:*.{parent}"
    return f"DNS:{expand_node_id(host, 0)}, DNS:{expand_node_id(host, 1)} and so on, one for each broker"


def read_certificate_names(tls: ListenerTls) -> CertificateNames:
    """The names that the listener's certificate is for.

    Raises:
        CertificateError: its files can't be used.
        ssl.SSLCertVerificationError: nobody would take it, whatever its names.
        ssl.SSLError, ValueError: OpenSSL can't do a handshake with it.
    """
    server = make_listener_context(msgspec.structs.replace(tls, truststore="", client_auth="none"))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.minimum_version = server.minimum_version
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    certificate = _do_handshake(client, server).getpeercert(binary_form=True)
    client.verify_mode = ssl.CERT_REQUIRED
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trusted as it is, whoever has signed it
    client.verify_flags &= ~ssl.VERIFY_X509_STRICT
    client.load_verify_locations(cadata=certificate)
    found = (_do_handshake(client, server).getpeercert() or {}).get("subjectAltName", ())
    kinds = [(str(each[0]), str(each[1])) for each in found]
    return CertificateNames(
        tuple(value.lower() for kind, value in kinds if kind == "DNS"),
        tuple(str(ipaddress.ip_address(value.strip())) for kind, value in kinds if kind == "IP Address"),
    )


def _do_handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    """The client's side, behind the handshake."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(up, down, server_side=True)
    ours = client.wrap_bio(down, up)
    for _ in range(_MAX_HANDSHAKE_STEPS):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is ours:
                return ours
    raise ssl.SSLError("the handshake has no end")
