# The section `authentication`: SASL that ends at the gateway, and the gateway's own credentials for each client. Keys
# have Kafka's names where there are any (KIP-255, KIP-368, KIP-768).

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import field_validator, model_validator

from gateway.config.sections.fields import Count, Milliseconds, Seconds, Section, setting
from gateway.system.hosts import holds_credentials

BEARER_MECHANISM: Final = "OAUTHBEARER"
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
_JWKS: Final = "sasl.oauthbearer.jwks.endpoint.url"
_AUDIENCE: Final = "sasl.oauthbearer.expected.audience"
_ISSUER: Final = "sasl.oauthbearer.expected.issuer"
_JAAS_HINT: Final = "credentials_file: credentials.yaml, or credentials_command: [PROGRAM]"


def _split_names(value: object) -> object:
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


class Authentication(Section):
    enabled: bool = setting(
        True, "false: SASL passes through to the brokers; for a single listener, or to switch the section off."
    )
    mechanisms: tuple[Mechanism, ...] = setting(
        (),
        "Mechanisms that clients may use, in a list or separated by commas. None: clients are known by their"
        " certificates.",
        alias="sasl.enabled.mechanisms",
    )
    credentials_file: Path | None = setting(
        None, "Users and their SCRAM records; PLAIN passwords are checked by these too."
    )
    credentials_command: tuple[str, ...] = setting(
        (), "A program and its arguments, asked about users that aren't in the file."
    )
    # A worker waits 10 s.
    credentials_command_timeout: Seconds = setting(5.0, "How long that program may take.", gt=0, le=8)
    credentials_command_cache: Seconds = setting(60.0, "How long its answer holds.", ge=0, le=3600)
    upstream_credentials_file: Path | None = setting(
        None,
        "By principal, or under default, the credentials for brokers. Without it the gateway doesn't authenticate"
        " to brokers for its clients.",
    )
    # Tokens have an end of their own.
    max_reauth_ms: Milliseconds = setting(
        0,
        "How long a client's session lasts before it has to authenticate again; 0: as long as the connection.",
        alias="connections.max.reauth.ms",
        ge=0,
    )
    # Kafka's default.
    failure_delay_ms: Milliseconds = setting(
        100,
        "Delay of the answer to a failed attempt.",
        alias="connection.failed.authentication.delay.ms",
        ge=0,
        le=5000,
    )
    jwks_url: str = setting("", "The issuer's keys: https://… or file:///….", alias=_JWKS)
    jwks_ca: Path | None = setting(
        None, "A PEM file with the CAs for that address. Without it, the system's.", alias="ssl.truststore.location"
    )
    jwks_refresh_ms: Milliseconds = setting(
        3_600_000,
        "How often keys are fetched; also when a token names an unknown one.",
        alias="sasl.oauthbearer.jwks.endpoint.refresh.ms",
        ge=1000,
    )
    audience: tuple[str, ...] = setting((), "What the claim aud of a token must be: one of these.", alias=_AUDIENCE)
    issuer: str = setting("", "What the claim iss of a token must be.", alias=_ISSUER)
    sub_claim: str = setting(
        "sub", "The claim with the client's name.", alias="sasl.oauthbearer.sub.claim.name", min_length=1
    )
    clock_skew_s: Count = setting(
        30,
        "How much the issuer's clock and the gateway's may differ.",
        alias="sasl.oauthbearer.clock.skew.seconds",
        ge=0,
        le=3600,
        unit="seconds",
    )

    _split_mechanisms = field_validator("mechanisms", "audience", mode="before")(_split_names)

    @model_validator(mode="after")
    def _check_mechanisms(self) -> Self:
        if not self.enabled:
            for name, field in type(self).model_fields.items():
                if name != "enabled" and getattr(self, name) != field.default:
                    raise ValueError(f"{field.alias or name}: has no effect with enabled: false")
            return self
        has_passwords = bool(self.credentials_file or self.credentials_command)
        uses_passwords = any(name != BEARER_MECHANISM for name in self.mechanisms)
        if uses_passwords and not has_passwords:
            raise ValueError(f"sasl.enabled.mechanisms: nobody has a password: write {_JAAS_HINT}")
        if has_passwords and not uses_passwords:
            raise ValueError(
                "credentials_file, credentials_command: have no effect: write sasl.enabled.mechanisms: SCRAM-SHA-512"
            )
        if not self.mechanisms and not self.upstream_credentials_file:
            raise ValueError(
                "has no effect: write sasl.enabled.mechanisms: SCRAM-SHA-512 where clients are to authenticate at the"
                " gateway, upstream_credentials_file: FILE where it is to authenticate to brokers for each of them"
            )
        self._check_bearer()
        return self

    def _check_bearer(self) -> None:
        if BEARER_MECHANISM not in self.mechanisms:
            for key, value in ((_JWKS, self.jwks_url), (_AUDIENCE, self.audience), (_ISSUER, self.issuer)):
                if value:
                    raise ValueError(f"{key}: has no effect without OAUTHBEARER in sasl.enabled.mechanisms")
            return
        if holds_credentials(self.jwks_url):
            raise ValueError(f"{_JWKS}: a user name or a password doesn't belong there")
        if not self.jwks_url.startswith(("https://", "file:///", "http://127.0.0.1:", "http://localhost:")):
            raise ValueError(
                f"{_JWKS}: the keys of OAUTHBEARER tokens are needed: write https://idp.example.com/keys, or"
                " file:///etc/produce-gateway/jwks.json"
            )
        if not self.audience:  # else a token for any other service of the same issuer would do
            raise ValueError(f"{_AUDIENCE}: must be given with OAUTHBEARER: the audience of the tokens, such as kafka")
        if not self.issuer:
            raise ValueError(
                f"{_ISSUER}: must be given with OAUTHBEARER: the issuer of the tokens, as in their claim iss"
            )
