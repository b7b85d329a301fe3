# The beginning of a connection to a broker: the versions that both speak, and credentials. These are the messages of
# the gateway's own connections (gateway/kafka/client.py); protocol/identity.py follows those of strangers. It refuses
# to know any SASL mechanism: tokens are bytes here.
#
# Spec: KIP-35, KIP-511 (ApiVersions), KIP-43, KIP-152 (SaslHandshake v1, SaslAuthenticate).

from __future__ import annotations

from typing import NamedTuple

from protocol import api
from protocol.admin import Api, Field, Struct


class ApiVersionsRequest(NamedTuple):
    client_software_name: str | None  # from version 3 on
    client_software_version: str | None


class ApiVersion(NamedTuple):
    api_key: int
    min_version: int
    max_version: int


class ApiVersionsAnswer(NamedTuple):
    error_code: int
    api_keys: tuple[ApiVersion, ...]
    throttle_time_ms: int


class SaslHandshakeRequest(NamedTuple):
    mechanism: str


class SaslHandshakeAnswer(NamedTuple):
    error_code: int
    mechanisms: tuple[str, ...]  # that the broker has


class SaslAuthenticateRequest(NamedTuple):
    auth_bytes: bytes


class SaslAuthenticateAnswer(NamedTuple):
    error_code: int
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int


_ERROR_CODE = Field("error_code", "int16")
_AUTH_BYTES = Field("auth_bytes", "bytes")
_VERSION = Struct(ApiVersion, Field("api_key", "int16"), Field("min_version", "int16"), Field("max_version", "int16"))

API_VERSIONS: Api[ApiVersionsRequest, ApiVersionsAnswer] = Api(
    api.API_VERSIONS,
    0,
    4,
    Struct(
        ApiVersionsRequest,
        Field("client_software_name", "text", since=3),
        Field("client_software_version", "text", since=3),
    ),
    Struct(
        ApiVersionsAnswer,
        _ERROR_CODE,
        Field("api_keys", _VERSION, array=True),
        Field("throttle_time_ms", "int32", since=1, default=0),
    ),
)

SASL_HANDSHAKE: Api[SaslHandshakeRequest, SaslHandshakeAnswer] = Api(
    api.SASL_HANDSHAKE,
    1,  # after version 0 come raw tokens, no SaslAuthenticate
    1,
    Struct(SaslHandshakeRequest, Field("mechanism", "text")),
    Struct(SaslHandshakeAnswer, _ERROR_CODE, Field("mechanisms", "text", array=True)),
)

SASL_AUTHENTICATE: Api[SaslAuthenticateRequest, SaslAuthenticateAnswer] = Api(
    api.SASL_AUTHENTICATE,
    0,
    2,
    Struct(SaslAuthenticateRequest, _AUTH_BYTES),
    Struct(
        SaslAuthenticateAnswer,
        _ERROR_CODE,
        Field("error_message", "message", nullable=True),
        _AUTH_BYTES,
        Field("session_lifetime_ms", "int64", since=1, default=0),
    ),
)
