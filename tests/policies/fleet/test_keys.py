from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fleet import keys as fleet_keys
from policies.fleet.keys import GroupName, QuotaName, TotalName

TEXT = st.text(max_size=20)


@given(TEXT, st.sampled_from(["publish", "dispatch"]), st.sampled_from(["bytes", "msgs"]))
def test_a_groups_key_says_what_it_was_made_of(group: str, direction: str, unit: str) -> None:
    key = fleet_keys.group_key(group, direction, unit)  # type: ignore[arg-type]
    assert fleet_keys.parse_key(key) == GroupName(group, direction, unit)  # type: ignore[arg-type]


@given(TEXT, st.none() | TEXT, st.none() | TEXT, st.none() | st.integers(0, 2**31 - 1))
def test_a_quotas_key_says_what_it_was_made_of(
    name: str, user: str | None, client_id: str | None, node_id: int | None
) -> None:
    assert fleet_keys.parse_key(fleet_keys.quota_key(name, user, client_id, node_id)) == QuotaName(
        name, user, client_id, node_id
    )


def test_a_totals_key_says_which_broker() -> None:
    assert fleet_keys.parse_key(fleet_keys.total_key(7)) == TotalName(7)


def test_a_user_called_none_is_a_user() -> None:
    keys = {fleet_keys.quota_key("producer_byte_rate.bps", user, None, None) for user in (None, "", "null", "None")}
    assert len(keys) == 4


@pytest.mark.parametrize(
    "key", ["", "g", "[]", '["g","a"]', '["g","a","up","bytes"]', '["t","1"]', '["t",1.5]', '{"t":1}', "[" * 100_000]
)
def test_an_invalid_key_is_refused_with_its_text(key: str) -> None:
    with pytest.raises(ValueError, match="names no limit of a fleet"):
        fleet_keys.parse_key(key)
