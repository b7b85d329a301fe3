# A reload of the configuration reaches connections that are open already.

from __future__ import annotations

from typing import Any

from gateway.tls.principal_rules import ANONYMOUS
from tests.gateway.data.made_settings import made_settings
from tests.gateway.data.play import APP, JAVA, Play, request, size_of

QUOTA = "producer_byte_rate"


def reload(made: Play, **settings: Any) -> None:
    """As a worker takes new settings over."""
    made.world.apply_settings(made_settings(**settings))
    made.world.ledger.advance_epoch()


def test_a_client_is_exempt_from_the_reload_on_that_names_it_until_one_does_no_more() -> None:
    made = Play().named().set_quotas((APP, QUOTA, size_of() // 10))
    assert made.exchange(1) > 0
    reload(made, internal_principals=(ANONYMOUS,))
    made.now += 60
    assert [made.exchange(number) for number in (2, 3)] == [0, 0]
    reload(made)
    made.now += 60
    assert made.exchange(4) > 0


def test_requests_are_held_for_the_longest_time_of_the_last_reload() -> None:
    made = Play(max_hold=50.0).named(JAVA)
    made.exchange(1)
    hold = made.session.hold
    usual_s = hold.patience_s
    reload(made, max_hold=3.0)
    made.client(request(2))
    assert hold.patience_s == 3.0
    reload(made, max_hold=50.0)
    made.client(request(3))
    assert hold.patience_s == usual_s
