# Whether an address has a user name or a password in it.

from __future__ import annotations

import pytest

from gateway.system.hosts import holds_credentials


@pytest.mark.parametrize(
    "url",
    ["https://u:p@host/x", "//u:p@host", "u:p@host:9090", "http:/u:p@host", "https://u@[::1]:1", "https://u:p/p@host"],
)
def test_credentials_are_found_in_valid_addresses_and_others(url: str) -> None:
    assert holds_credentials(url)


@pytest.mark.parametrize(
    "url",
    ["", "host:9090", "http://host", "https://host:8443/realms/@x/keys", "http://[::1]:9090/@x", "http://[::1]/@x"],
)
def test_what_comes_behind_host_and_port_are_no_credentials(url: str) -> None:
    assert not holds_credentials(url)
