# Certificates for tests: a CA, and what it signs, as PEM files made by openssl. Elliptic keys: those are made quickly.

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
SERVER = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A CA in a folder of its own.

    Attributes:
        certificate: its own certificate, which clients (or the gateway) must trust.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        openssl(
            *("req", "-x509", *CURVE, "-nodes", "-days", "30", "-subj", f"/CN={name}"),
            *("-keyout", self._key, "-out", self.certificate),
        )

    def sign(self, name: str, *, password: str = "", names: str = SERVER, days: int = 30) -> tuple[Path, Path]:
        """(certificate, key) of that name, good for servers on this machine and for clients. `days`: how long it is
        valid; negative: it has expired.
        """
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        kept = ("-passout", f"pass:{password}") if password else ("-nodes",)
        openssl("req", *CURVE, *kept, "-subj", f"/CN={name}", "-addext", names, "-keyout", key, "-out", request)
        openssl(
            *("x509", "-req", "-days", str(days), "-in", request, "-copy_extensions", "copyall"),
            *("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-out", certificate),
        )
        return certificate, key

    def client_context(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Of a client that trusts this CA and checks the server's name; `certificate`: its own one and its key."""
        context = ssl.create_default_context(cafile=self.certificate)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13's; ours have just what is needed
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context
