# The beginning of a connection to a broker: the versions that both speak, and credentials. These are the messages of
# the gateway's own connections (gateway/kafka/client.py); protocol/rewriting/identity.py follows those of strangers. It
# refuses to know any SASL mechanism: tokens are bytes here.
#
# Spec: KIP-35, KIP-511 (ApiVersions), KIP-43, KIP-152 (SaslHandshake v1, SaslAuthenticate).

from __future__ import annotations

from typing import Annotated, NamedTuple

from protocol import api
from protocol.message_codec import ApiCodec, Bytes, ErrorText, Int16, Int32, Int64, Since, Text


class ApiVersionsRequest(NamedTuple):
    client_software_name: Annotated[Text, Since(3)]
    client_software_version: Annotated[Text, Since(3)]


class ApiVersion(NamedTuple):
    api_key: Int16
    min_version: Int16
    max_version: Int16


class ApiVersionsResponse(NamedTuple):
    error_code: Int16
    api_keys: tuple[ApiVersion, ...]
    throttle_time_ms: Annotated[Int32, Since(1, default=0)]


class SaslHandshakeRequest(NamedTuple):
    mechanism: Text


class SaslHandshakeResponse(NamedTuple):
    error_code: Int16
    mechanisms: tuple[Text, ...]  # that the broker has


class SaslAuthenticateRequest(NamedTuple):
    auth_bytes: Bytes


class SaslAuthenticateResponse(NamedTuple):
    error_code: Int16
    error_message: ErrorText | None
    auth_bytes: Bytes
    session_lifetime_ms: Annotated[Int64, Since(1, default=0)]


API_VERSIONS = ApiCodec(api.API_VERSIONS, 0, 4, ApiVersionsRequest, ApiVersionsResponse)
# After version 0 come raw tokens, no SaslAuthenticate.
SASL_HANDSHAKE = ApiCodec(api.SASL_HANDSHAKE, 1, 1, SaslHandshakeRequest, SaslHandshakeResponse)
SASL_AUTHENTICATE = ApiCodec(api.SASL_AUTHENTICATE, 0, 2, SaslAuthenticateRequest, SaslAuthenticateResponse)
