# Requests of SASL as frames.

from __future__ import annotations

from protocol.authentication.handshake import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)


def handshake(mechanism: str, correlation: int = 5) -> bytes:
    return SASL_HANDSHAKE.encode_request(SaslHandshakeRequest(mechanism), 1, correlation, b"app")


def authenticate(message: bytes, correlation: int = 6, version: int = 2) -> bytes:
    return SASL_AUTHENTICATE.encode_request(SaslAuthenticateRequest(message), version, correlation, b"app")
