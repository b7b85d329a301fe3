# ApiVersions and the two requests of SASL against kio, in every version that is spoken, both ways.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.authentication.handshake import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, SaslAuthenticateRequest
from protocol.wire import MalformedFrame
from tests.examples import FEW
from tests.protocol.admin_cases import Case, assert_goes_both_ways, cases_of
from tests.protocol.kio_messages import messages


@pytest.mark.parametrize("case", cases_of([API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE]), ids=str)
@FEW
@given(data=st.data())
def test_messages_are_read_and_written_as_kio_does(case: Case, data: st.DataObject) -> None:
    assert_goes_both_ways(case, data.draw(messages(case.cls)))


def test_bytes_are_never_null_nor_longer_than_the_frame() -> None:
    frame = SASL_AUTHENTICATE.encode_request(SaslAuthenticateRequest(b"token"), 0, 1, None)[4:]
    for size in (b"\xff\xff\xff\xff", b"\0\0\0\6"):
        broken = frame[:-9] + size + b"token"
        with pytest.raises(MalformedFrame, match="auth_bytes"):
            SASL_AUTHENTICATE.decode_request(broken, 0, len(broken))
