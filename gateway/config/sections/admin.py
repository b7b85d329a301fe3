# The sections `admin` and `health`: the ports of the gateway's own, who may ask there, and under which names.

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from gateway.access_tokens.tokens import parse_token_line
from gateway.config.sections.fields import Host, Network, Port, Principal, Section, setting
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

    # Metrics name topics and clients.
    host: Host = setting(
        "127.0.0.1", "The address of the admin server. One that is reachable from other machines needs a token."
    )
    port: Port = setting(9190, "Its port.")
    tokens: tuple[Annotated[str, AfterValidator(_check_token)], ...] = setting(
        (), "Lines of a token file, or tokens of 16 characters or more, which give the role admin.", repr=False
    )
    token_file: Path | None = setting(
        None, "A file with a line for each token: its holder, role and hash. Read again when it changes."
    )
    principals: dict[Principal, Literal["viewer", "operator", "admin"]] = setting(
        {}, "By principal of a client certificate, its role: viewer, operator or admin."
    )
    anonymous: Literal["viewer", "none"] = setting(
        "viewer", "What clients without credentials may read where there are some: viewer, or none."
    )
    # Prometheus often has no token.
    metrics: Literal["open", "viewer"] = setting("open", "open, or viewer: /metrics needs credentials as well.")
    # Such as that of a Kubernetes service.
    hosts: tuple[Host, ...] = setting((), "Further names under which clients may address the admin server.")
    # Others could claim any address, and spend its attempts.
    trusted_proxies: tuple[Network, ...] = setting(
        (), "Networks of the reverse proxies before the admin port; only their X-Forwarded-For says where a client is."
    )
    open: bool = setting(False, "true: every client that reaches the port may change policies, without a token.")

    @model_validator(mode="after")
    def _check_open(self) -> Self:
        if not (is_loopback(self.host) or self.has_credentials or self.open):
            raise ValueError(
                f"host: {self.host or 'every address'} is reached from elsewhere, and any client that reaches it"
                " could change policies: write token_file: FILE, tokens, or open: true if that is meant"
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

    # So that whoever reached the admin server reaches this.
    host: Host | None = setting(
        None, "The address that the health port listens on. Without it, that of the admin server."
    )
    port: Port | None = setting(None, "The health port. Without it, the admin server's port + 105.")
