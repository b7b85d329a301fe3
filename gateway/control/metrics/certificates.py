# When the gateway's own certificates expire. Files are read again once they have changed, so a renewal is seen whether
# or not a client has come since.

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.config import Settings
from gateway.control.metrics.family import PREFIX, Family
from gateway.listener_names import path_of

CERTIFICATES: Final = (
    Family(
        "certificate_expiry_timestamp_seconds",
        "gauge",
        ("certificate",),
        "Unix time at which the certificate that the gateway shows, or the first of its chain, expires; no series "
        "while the file can't be read.",
    ),
)


class Place(NamedTuple):
    """Of a certificate: a PEM file, or its contents."""

    path: str = ""
    pem: str = ""


def places_of(settings: Settings) -> dict[str, Place]:
    """The certificates of a gateway, by their use."""
    found = {
        path_of(name): Place(listener.tls.keystore)
        for name, listener in settings.all_listeners.items()
        if listener.tls is not None
    }
    if settings.admin.tls is not None:
        found["admin"] = Place(settings.admin.tls.keystore)
    upstream = settings.upstream.tls
    if upstream is not None and upstream.has_certificate:
        found["upstream"] = Place(upstream.certificate, upstream.certificate_pem)
    return found


class _Read(NamedTuple):
    mark: tuple[object, ...]  # of the place, and of the file when it was read
    expires: float | None


class CertificateExpiry(Collector):
    """`places`: by the certificate's use, which is its label."""

    def __init__(self) -> None:
        self.places: Mapping[str, Place] = {}
        self._known: dict[str, _Read] = {}

    def collect(self) -> Iterator[Metric]:
        (family,) = CERTIFICATES
        gauge = GaugeMetricFamily(f"{PREFIX}_{family.name}", family.help, labels=family.labels)
        for name, place in self.places.items():
            expires = self._expiry(name, place)
            if expires is not None:
                gauge.add_metric([name], expires)
        yield gauge

    def _expiry(self, name: str, place: Place) -> float | None:
        mark = (place, *_mark(place.path))
        known = self._known.get(name)
        if known is None or known.mark != mark:
            known = self._known[name] = _Read(mark, expiry_of(place))
        return known.expires


def expiry_of(place: Place) -> float | None:
    """When the first of its certificates expires, as Unix time; None: they can't be read, which their users report."""
    try:
        data = Path(place.path).read_bytes() if place.path else place.pem.encode()
        from cryptography import x509  # noqa: PLC0415 - no start without TLS has to wait for it

        return min(each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(data))
    except (OSError, ValueError):
        return None


def _mark(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
