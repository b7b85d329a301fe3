# What brokers are asked about themselves against kio, in every version that is spoken, both ways.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.admin.cluster import DESCRIBE_CLUSTER, DESCRIBE_LOG_DIRS, DESCRIBE_PRODUCERS, METADATA
from tests.examples import FEW
from tests.protocol.admin_cases import Case, assert_goes_both_ways, cases_of
from tests.protocol.kio_messages import messages


@pytest.mark.parametrize("case", cases_of([DESCRIBE_CLUSTER, DESCRIBE_LOG_DIRS, DESCRIBE_PRODUCERS, METADATA]), ids=str)
@FEW
@given(data=st.data())
def test_messages_are_read_and_written_as_kio_does(case: Case, data: st.DataObject) -> None:
    assert_goes_both_ways(case, data.draw(messages(case.cls)))
