# The beginning of a connection to a broker: the versions that both speak, and credentials. These are the messages of
# the gateway's own connections (gateway/kafka/client.py); protocol/rewriting/identity.py follows those of strangers. It
# refuses to know any SASL mechanism: tokens are bytes here.
#
# Spec: KIP-35, KIP-511 (ApiVersions), KIP-43, KIP-152 (SaslHandshake v1, SaslAuthenticate).

from __future__ import annotations

from typing import NamedTuple

from protocol import api
from protocol.message_codec import ApiCodec, MessageField, MessageStruct


class ApiVersionsRequest(NamedTuple):
    client_software_name: str | None  # from version 3 on
    client_software_version: str | None


class ApiVersion(NamedTuple):
    api_key: int
    min_version: int
    max_version: int


class ApiVersionsResponse(NamedTuple):
    error_code: int
    api_keys: tuple[ApiVersion, ...]
    throttle_time_ms: int


class SaslHandshakeRequest(NamedTuple):
    mechanism: str


class SaslHandshakeResponse(NamedTuple):
    error_code: int
    mechanisms: tuple[str, ...]  # that the broker has


class SaslAuthenticateRequest(NamedTuple):
    auth_bytes: bytes


class SaslAuthenticateResponse(NamedTuple):
    error_code: int
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int


_ERROR_CODE = MessageField("error_code", "int16")
_AUTH_BYTES = MessageField("auth_bytes", "bytes")
_VERSION = MessageStruct(
    ApiVersion,
    MessageField("api_key", "int16"),
    MessageField("min_version", "int16"),
    MessageField("max_version", "int16"),
)

API_VERSIONS: ApiCodec[ApiVersionsRequest, ApiVersionsResponse] = ApiCodec(
    api.API_VERSIONS,
    0,
    4,
    MessageStruct(
        ApiVersionsRequest,
        MessageField("client_software_name", "text", since=3),
        MessageField("client_software_version", "text", since=3),
    ),
    MessageStruct(
        ApiVersionsResponse,
        _ERROR_CODE,
        MessageField("api_keys", _VERSION, array=True),
        MessageField("throttle_time_ms", "int32", since=1, default=0),
    ),
)

SASL_HANDSHAKE: ApiCodec[SaslHandshakeRequest, SaslHandshakeResponse] = ApiCodec(
    api.SASL_HANDSHAKE,
    1,  # after version 0 come raw tokens, no SaslAuthenticate
    1,
    MessageStruct(SaslHandshakeRequest, MessageField("mechanism", "text")),
    MessageStruct(SaslHandshakeResponse, _ERROR_CODE, MessageField("mechanisms", "text", array=True)),
)

SASL_AUTHENTICATE: ApiCodec[SaslAuthenticateRequest, SaslAuthenticateResponse] = ApiCodec(
    api.SASL_AUTHENTICATE,
    0,
    2,
    MessageStruct(SaslAuthenticateRequest, _AUTH_BYTES),
    MessageStruct(
        SaslAuthenticateResponse,
        _ERROR_CODE,
        MessageField("error_message", "message", nullable=True),
        _AUTH_BYTES,
        MessageField("session_lifetime_ms", "int64", since=1, default=0),
    ),
)
