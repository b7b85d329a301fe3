# What the requests of SASL may hold; messages of every version: test_message_codec.py.

from __future__ import annotations

import pytest

from protocol.authentication.handshake import SASL_AUTHENTICATE, SaslAuthenticateRequest
from protocol.wire import MalformedFrame


def test_bytes_are_never_null_nor_longer_than_the_frame() -> None:
    frame = SASL_AUTHENTICATE.encode_request(SaslAuthenticateRequest(b"token"), 0, 1, None)[4:]
    for size in (b"\xff\xff\xff\xff", b"\0\0\0\6"):
        broken = frame[:-9] + size + b"token"
        with pytest.raises(MalformedFrame, match="auth_bytes"):
            SASL_AUTHENTICATE.decode_request(broken, 0, len(broken))
