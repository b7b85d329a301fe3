# Writing policies in transactions, as far as it needs no brokers: tests/integration/fleet/test_policy_store.py has the
# rest.

from __future__ import annotations

import time

import pytest

from gateway.control.policies.transactions import PolicyTransactions, RetryableFailure


def test_a_certificate_that_is_gone_may_be_there_at_the_next_attempt() -> None:
    client = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", "ssl.ca.location": "/gone.pem"}
    with pytest.raises(RetryableFailure, match=r"ssl\.ca\.location failed"):
        PolicyTransactions({**client, "log_level": 2}, "p").open(time.monotonic())
