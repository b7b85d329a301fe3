# When the gateway's own certificates expire. Files are read again once they have changed, so a renewal is seen whether
# or not a client has come since.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.config import Settings
from gateway.control.metrics.family import PREFIX, gauge
from gateway.listener_names import config_path
from gateway.system.files import file_signature

CERTIFICATES: Final = (
    gauge(
        "certificate_expiry_timestamp_seconds",
        "Unix time at which the certificate, or the first of its chain, expires; no series while the file can't be "
        "read.",
        ("certificate",),
    ),
)


class CertificateLocation(NamedTuple):
    """Of a certificate: a PEM file, or its contents."""

    path: str = ""
    pem: str = ""


def certificate_locations(settings: Settings) -> dict[str, CertificateLocation]:
    """The certificates of a gateway, by their use."""
    found = {
        config_path(name): CertificateLocation(listener.tls.keystore)
        for name, listener in settings.all_listeners.items()
        if listener.tls is not None
    }
    if settings.admin.tls is not None:
        found["admin"] = CertificateLocation(settings.admin.tls.keystore)
    upstream = settings.upstream.tls
    if upstream is not None and upstream.has_certificate:
        found["upstream"] = CertificateLocation(upstream.certificate, upstream.certificate_pem)
    return found


class _ReadExpiry(NamedTuple):
    mark: tuple[object, ...]  # of the place, and of the file when it was read
    expires: float | None


class CertificateExpiry(Collector):
    """`locations`: by the certificate's use, which is its label."""

    def __init__(self) -> None:
        self.locations: Mapping[str, CertificateLocation] = {}
        self._known: dict[str, _ReadExpiry] = {}

    def collect(self) -> Iterator[Metric]:
        (family,) = CERTIFICATES
        shown = GaugeMetricFamily(f"{PREFIX}_{family.name}", family.help, labels=family.labels)
        for name, place in self.locations.items():
            expires = self._cached_expiry(name, place)
            if expires is not None:
                shown.add_metric([name], expires)
        yield shown

    def _cached_expiry(self, name: str, place: CertificateLocation) -> float | None:
        mark = (place, file_signature(place.path))
        known = self._known.get(name)
        if known is None or known.mark != mark or known.expires is None:
            known = self._known[name] = _ReadExpiry(mark, read_expiry(place))
        return known.expires


def read_expiry(place: CertificateLocation) -> float | None:
    """When the first of its certificates expires, as Unix time; None: they can't be read, which their users report."""
    try:
        data = Path(place.path).read_bytes() if place.path else place.pem.encode()
        from cryptography import x509  # noqa: PLC0415 - no start without TLS has to wait for it

        return min(each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(data))
    except (OSError, ValueError):
        return None
