# The section `authentication`: SASL that ends at the gateway, and the gateway's own credentials for each client. Keys
# have Kafka's names where there are any (KIP-255, KIP-368, KIP-768).

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from gateway.config.sections.fields import Seconds, Section

BEARER_MECHANISM: Final = "OAUTHBEARER"
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
_JWKS: Final = "sasl.oauthbearer.jwks.endpoint.url"
_AUDIENCE: Final = "sasl.oauthbearer.expected.audience"
_ISSUER: Final = "sasl.oauthbearer.expected.issuer"
_JAAS_HINT: Final = "credentials_file: credentials.yaml, or credentials_command: [PROGRAM]"


def _split_names(value: object) -> object:
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


class Authentication(Section):
    enabled: bool = True  # False: SASL passes through, also where all other listeners' ends at the gateway
    mechanisms: Annotated[tuple[Mechanism, ...], Field(alias="sasl.enabled.mechanisms")] = ()
    # Names and SCRAM records, by which PLAIN's passwords are checked as well; read again when the file changes.
    credentials_file: Path | None = None
    credentials_command: tuple[str, ...] = ()  # asked about names that the file doesn't have
    credentials_command_timeout: Seconds = Field(default=5.0, gt=0, le=8)  # a worker waits 10 s
    credentials_command_cache: Seconds = Field(default=60.0, ge=0, le=3600)  # how long its answers hold
    # Principal -> the credentials by which the gateway authenticates to brokers for it. None: it doesn't.
    upstream_credentials_file: Path | None = None
    max_reauth_ms: Annotated[int, Field(alias="connections.max.reauth.ms", ge=0)] = 0  # 0: no end; tokens have theirs
    failure_delay_ms: Annotated[int, Field(alias="connection.failed.authentication.delay.ms", ge=0, le=5000)] = (
        100  # Kafka's
    )
    jwks_url: Annotated[str, Field(alias=_JWKS)] = ""  # https://… or file:///…
    jwks_ca: Annotated[Path | None, Field(alias="ssl.truststore.location")] = None  # PEM; None: the system's
    jwks_refresh_ms: Annotated[int, Field(alias="sasl.oauthbearer.jwks.endpoint.refresh.ms", ge=1000)] = 3_600_000
    audience: Annotated[tuple[str, ...], Field(alias=_AUDIENCE)] = ()
    issuer: Annotated[str, Field(alias=_ISSUER)] = ""
    sub_claim: Annotated[str, Field(alias="sasl.oauthbearer.sub.claim.name", min_length=1)] = "sub"
    clock_skew_s: Annotated[int, Field(alias="sasl.oauthbearer.clock.skew.seconds", ge=0, le=3600)] = 30

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
