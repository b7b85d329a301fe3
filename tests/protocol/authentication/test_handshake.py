# ApiVersions and the two requests of SASL against kio, in every version that is spoken, both ways.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.authentication.handshake import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, SaslAuthenticateRequest
from protocol.wire import MalformedFrame
from tests.protocol import kio_messages as kio
from tests.protocol.admin_cases import Case, cases_of, messages, ours

CASES = cases_of([API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE])


@pytest.mark.parametrize("case", CASES, ids=str)
@given(data=st.data())
def test_messages_that_kio_writes_are_read(case: Case, data: st.DataObject) -> None:
    message = data.draw(messages(case.cls))
    frame = case.head() + kio.kio_encode(message)
    assert case.decode(b"1234" + frame + b"more", 4, 4 + len(frame)) == ours(case.struct, message)


@pytest.mark.parametrize("case", CASES, ids=str)
@given(data=st.data())
def test_kio_reads_written_messages(case: Case, data: st.DataObject) -> None:
    message = data.draw(messages(case.cls))
    frame = case.encode(ours(case.struct, message))[4:]
    assert frame.startswith(case.head())
    again = kio.kio_decode(case.cls, frame[len(case.head()) :])
    assert ours(case.struct, again) == ours(case.struct, message)


def test_bytes_are_never_null_nor_longer_than_the_frame() -> None:
    frame = SASL_AUTHENTICATE.encode_request(SaslAuthenticateRequest(b"token"), 0, 1, None)[4:]
    for size in (b"\xff\xff\xff\xff", b"\0\0\0\6"):
        broken = frame[:-9] + size + b"token"
        with pytest.raises(MalformedFrame, match="auth_bytes"):
            SASL_AUTHENTICATE.decode_request(broken, 0, len(broken))
