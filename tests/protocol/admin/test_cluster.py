# What brokers are asked about themselves against kio, in every version that is spoken, both ways.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.admin.cluster import DESCRIBE_CLUSTER, DESCRIBE_LOG_DIRS, METADATA
from tests.protocol import kio_messages as kio
from tests.protocol.admin_cases import Case, cases_of, messages, ours

CASES = cases_of([DESCRIBE_CLUSTER, DESCRIBE_LOG_DIRS, METADATA])


@pytest.mark.parametrize("case", CASES, ids=str)
@given(data=st.data())
def test_messages_that_kio_writes_are_read_and_kio_reads_what_is_written(case: Case, data: st.DataObject) -> None:
    message = data.draw(messages(case.cls))
    frame = case.head() + kio.kio_encode(message)
    assert case.decode(b"1234" + frame + b"more", 4, 4 + len(frame)) == ours(case.struct, message)
    frame = case.encode(ours(case.struct, message))[4:]
    assert frame.startswith(case.head())
    again = kio.kio_decode(case.cls, frame[len(case.head()) :])
    assert ours(case.struct, again) == ours(case.struct, message)
