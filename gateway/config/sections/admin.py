# The sections `admin` and `health`: the ports of the gateway's own, who may ask there, and under which names.

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gateway.access_tokens.tokens import parse_token_line
from gateway.config.sections.fields import Host, Network, Port, Principal, Section
from gateway.config.sections.tls import TlsSection
from gateway.system.hosts import is_loopback
from gateway.system.sockets import address_text
from gateway.tls.principal_rules import ANONYMOUS


def local_url(scheme: str, host: str, port: int) -> str:
    """Under which this machine reaches what is bound to that host."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"{scheme}://{address_text(host, port)}"


def _check_token(line: str) -> str:
    parse_token_line(line)
    return line


class Admin(TlsSection):
    """`tokens` and the lines of `token_file` say who may do what, and so do `principals` of client certificates.
    Without any of them a client on this machine may do everything; and with `open` so may any client that reaches the
    port, as far as it needn't say who it is.
    """

    host: Host = "127.0.0.1"  # metrics name topics and clients
    port: Port = 9190
    # Each as a line of the file.
    tokens: tuple[Annotated[str, AfterValidator(_check_token)], ...] = Field(default=(), repr=False)
    token_file: Path | None = None  # read again when it changes
    principals: dict[Principal, Literal["viewer", "operator", "admin"]] = {}  # of client certificates
    anonymous: Literal["viewer", "none"] = "viewer"  # callers without any of these, where there are some
    metrics: Literal["open", "viewer"] = "open"  # the least role for /metrics; Prometheus often has no token
    hosts: tuple[str, ...] = ()  # more names under which it is asked, such as that of a Kubernetes service
    # Whose X-Forwarded-For is believed. Others could claim any address, and spend its attempts.
    trusted_proxies: tuple[Network, ...] = ()
    open: bool = False

    @model_validator(mode="after")
    def _check_open(self) -> Self:
        if not (is_loopback(self.host) or self.has_credentials or self.open):
            raise ValueError(
                f"host: {self.host or 'every address'} is reached from elsewhere, and any client that reaches it"
                " could change policies: write token_file: FILE, or open: true if that is meant"
            )
        return self

    @model_validator(mode="after")
    def _check_roles(self) -> Self:
        if self.principals and self.client_auth == "none":
            raise ValueError(
                "principals: clients are asked for no certificate: write ssl.client.auth: requested, or required"
            )
        if ANONYMOUS in self.principals:
            raise ValueError(f"principals.{ANONYMOUS}: every client without a certificate is that: leave it out")
        for key in ("anonymous", "metrics"):
            value = getattr(self, key)
            if value != type(self).model_fields[key].default and not self.has_credentials:
                raise ValueError(f"{key}: {value} would need credentials, and there are none: write token_file: FILE")
        return self

    @property
    def has_credentials(self) -> bool:
        return bool(self.tokens or self.token_file or self.principals)

    @property
    def url(self) -> str:
        """Under which this machine reaches it."""
        return local_url("https" if self.tls else "http", self.host, self.port)

    @property
    def host_names(self) -> frozenset[str]:
        """Lower-case names that a request's header Host may have."""
        return frozenset(name.lower() for name in (self.host, *self.hosts))


class Health(Section):
    """The port that answers nothing but /healthz and /readyz, which load on the admin port doesn't reach."""

    host: Host | None = None  # None: as of the admin server, so that whoever reached that reaches this
    port: Port | None = None  # None: admin.port + HEALTH_SHIFT
