# TLS of a port of the gateway's own, in Kafka's names: of listeners, and of the admin port. PEM only. `check` and
# `serve` ask whether the files can be used, not this: control validates these settings again whenever it starts, and a
# file that was changed for the worse must not stop it.

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import field_validator, model_validator

from gateway.config.sections.clients import property_text
from gateway.config.sections.fields import Section, setting
from gateway.tls.certificates import PROTOCOLS, ListenerTls
from gateway.tls.principal_rules import DEFAULT_RULE, PrincipalRules

PEM: Final = "PEM"
TLS_PROTOCOLS: Final = tuple(PROTOCOLS)


class TlsSection(Section):
    """The keys `ssl.…` of a section."""

    keystore: str = setting(
        "",
        "A PEM file with the gateway's certificate, intermediate certificates and private key. With this key the"
        " port accepts only TLS.",
        live=True,
        alias="ssl.keystore.location",
    )
    keystore_type: str = setting(PEM, "PEM; nothing else is read.", alias="ssl.keystore.type")
    # "": it is in the keystore's file, as Kafka has it.
    key: str = setting("", "The private key if it has a file of its own.", live=True, alias="ssl.key.location")
    key_password: str = setting(
        "",
        "The key's password, as text or as {file: PATH}.",
        live=True,
        alias="ssl.key.password",
        max_length=1000,
        repr=False,
    )
    truststore: str = setting(
        "", "A PEM file with the CAs that sign clients' certificates.", live=True, alias="ssl.truststore.location"
    )
    truststore_type: str = setting(PEM, "PEM; nothing else is read.", alias="ssl.truststore.type")
    client_auth: Literal["none", "requested", "required"] = setting(
        "none",
        "required: clients must present a certificate. requested: one that is presented must be valid.",
        live=True,
        alias="ssl.client.auth",
    )
    protocols: tuple[str, ...] = setting(
        TLS_PROTOCOLS,
        "Versions of TLS, in a list or separated by commas.",
        live=True,
        alias="ssl.enabled.protocols",
        min_length=1,
    )
    principal_rules: str = setting(
        DEFAULT_RULE,
        "Which principals clients' certificates make, in Kafka's syntax (KIP-371).",
        live=True,
        alias="ssl.principal.mapping.rules",
    )

    @field_validator("keystore_type", "truststore_type")
    @classmethod
    def _check_type(cls, value: str) -> str:
        if value.upper() != PEM:
            raise ValueError(
                f"{value} can't be read, only PEM: convert it with openssl pkcs12 -in FILE -out FILE.pem (a JKS file"
                " first with keytool -importkeystore -deststoretype pkcs12)"
            )
        return PEM

    @field_validator("key_password", mode="before")
    @classmethod
    def _read_password(cls, value: object) -> object:
        return property_text("ssl.key.password", value)

    @field_validator("protocols", mode="before")
    @classmethod
    def _check_protocols(cls, value: object) -> object:
        names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
        for name in names if isinstance(names, list) else ():
            if name not in TLS_PROTOCOLS:
                raise ValueError(f"{name} is not spoken: write one or both of {', '.join(TLS_PROTOCOLS)}")
        return names

    @field_validator("principal_rules")
    @classmethod
    def _check_rules(cls, value: str) -> str:
        PrincipalRules(value)
        return value

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        for name in ("key", "key_password", "truststore", "client_auth", "protocols", "principal_rules"):
            field = type(self).model_fields[name]
            if not self.keystore and getattr(self, name) != field.default:
                raise ValueError(
                    f"{field.alias}: has no effect without a certificate: write ssl.keystore.location: server.pem"
                )
        if self.client_auth != "none" and not self.truststore:
            raise ValueError(
                f"ssl.client.auth: {self.client_auth} needs the CAs to trust: write"
                " ssl.truststore.location: clients-ca.pem"
            )
        if self.truststore and self.client_auth == "none":
            raise ValueError(
                "ssl.truststore.location: clients are asked for no certificate: write ssl.client.auth: required, or"
                " requested, or leave it out"
            )
        if self.principal_rules != DEFAULT_RULE and self.client_auth == "none":
            raise ValueError(
                "ssl.principal.mapping.rules: clients are asked for no certificate: write ssl.client.auth: required, or"
                " leave the rules out"
            )
        return self

    @property
    def tls(self) -> ListenerTls | None:
        """None: plain TCP."""
        if not self.keystore:
            return None
        return ListenerTls(
            self.keystore,
            self.key,
            self.key_password,
            self.truststore,
            self.client_auth,
            self.protocols,
            self.principal_rules,
        )
