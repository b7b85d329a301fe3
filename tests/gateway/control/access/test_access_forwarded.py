# Where a client behind proxies is, by fields that the client may have written itself.

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.access.forwarded import MAX_PROXIES, client_address

PROXIES = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "fd00::/8")))
INGRESS = "10.0.0.5"
addresses = st.ip_addresses().map(str)


def found(*fields: str, peer: str = INGRESS) -> str:
    headers = [(b"host", b"gw"), *((b"x-forwarded-for", field.encode()) for field in fields), (b"forwarded", b"for=9")]
    return client_address(peer, headers, PROXIES)


@pytest.mark.parametrize(
    ("fields", "client"),
    [
        (("192.0.2.7",), "192.0.2.7"),
        (("192.0.2.7:4711",), "192.0.2.7"),
        (("2001:db8::1",), "2001:db8::1"),
        (("2001:DB8:0:0::1",), "2001:db8::1"),
        (("[2001:db8::1]",), "2001:db8::1"),
        (("[2001:db8::1]:4711",), "2001:db8::1"),
        (("::ffff:192.0.2.7",), "192.0.2.7"),
        ((" \t192.0.2.7 ",), "192.0.2.7"),
        (("127.0.0.1, 192.0.2.7",), "192.0.2.7"),  # the client wrote the first
        (("127.0.0.1", "192.0.2.7"), "192.0.2.7"),  # in a field of its own
        (("192.0.2.7", "10.0.0.9"), "192.0.2.7"),  # two proxies, each with a field of its own
        (("6.6.6.6, 192.0.2.7, 10.0.0.9, fd00::1",), "192.0.2.7"),
        (("10.0.0.7, 10.0.0.8",), "10.0.0.7"),  # a client among the proxies
        # What can't be read is no client's address: that of the proxy that wrote it is the best that is known.
        ((), INGRESS),
        (("",), INGRESS),
        (("192.0.2.7,",), INGRESS),
        (("unknown",), INGRESS),
        (("192.0.2.7, _hidden",), INGRESS),
        (("192.0.2.7, [::1",), INGRESS),
        (("192.0.2.7]",), INGRESS),
        (("192.0.2.256",), INGRESS),
        (("192.0.2.7:",), INGRESS),
        (("192.0.2.7:123456",), INGRESS),
        (("0x7f000001",), INGRESS),
        (("127.1",), INGRESS),
        (("fe80::1%eth0",), INGRESS),
        (('"192.0.2.7"',), INGRESS),
        (("192.0.2.7\nadmin: forged",), INGRESS),
        (("192.0.2.7, nobody, 10.0.0.9",), "10.0.0.9"),
    ],
)
def test_a_client_behind_listed_proxies(fields: tuple[str, ...], client: str) -> None:
    assert found(*fields) == client


@pytest.mark.parametrize("peer", ["192.0.2.1", "11.0.0.1", "::1", "", "localhost", "fe80::1%eth0"])
def test_nobody_else_s_word_is_believed(peer: str) -> None:
    assert found("127.0.0.1", peer=peer) == peer
    assert client_address(INGRESS, [(b"x-forwarded-for", b"127.0.0.1")], ()) == INGRESS


@pytest.mark.parametrize("peer", ["::ffff:10.0.0.5", "fd00::5", "fd00::5%eth0"])
def test_a_proxy_is_known_in_each_form(peer: str) -> None:
    assert found("192.0.2.7", peer=peer) == "192.0.2.7"


@given(st.lists(addresses | st.text(max_size=30)), addresses.filter(lambda each: not _is_proxy(each)))
def test_whatever_a_client_writes_it_is_where_its_proxy_saw_it(forged: list[str], client: str) -> None:
    fields = [*(text.encode("utf-8", "replace").decode("latin-1") for text in forged), client]
    headers = [(b"x-forwarded-for", field.encode("latin-1")) for field in fields]
    seen = ipaddress.ip_address(client)
    expected = seen.ipv4_mapped or seen if isinstance(seen, ipaddress.IPv6Address) else seen
    assert client_address(INGRESS, headers, PROXIES) == str(expected)
    glued = [(b"x-forwarded-for", ",".join(fields).encode("latin-1"))]
    assert client_address(INGRESS, glued, PROXIES) == str(expected)


def test_a_field_without_end_costs_no_more_than_a_few_addresses() -> None:
    assert found(", ".join(["192.0.2.7", *(f"10.0.0.{n}" for n in range(MAX_PROXIES))])) == "10.0.0.0"
    assert found(",".join(["10.0.0.1"] * 100_000)) == "10.0.0.1"


def _is_proxy(text: str) -> bool:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return any(address in network for network in PROXIES)
