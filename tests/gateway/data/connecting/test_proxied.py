# Connections through a proxy, before control's word on them; the rest of their way: test_arriving.py.

from __future__ import annotations

import socket

from gateway.channel import AcceptedConnection, AddressVerdict
from gateway.control.admission import ConnectionAdmission
from gateway.data.connecting.addresses import AddressCounts, ArrivingConnection
from gateway.data.connecting.proxied import ProxiedConnections
from gateway.data.shared.uplink import ControlUplink
from tests.gateway.data.play import Play


async def test_a_refusal_that_comes_too_late_ends_no_other_connection(autojump_clock: object) -> None:
    addresses, admission = AddressCounts(), ConnectionAdmission(10, 1)
    proxied = ProxiedConnections(Play().world, ControlUplink(), addresses)
    accepted = AcceptedConnection(None, "10.0.0.1:5", proxied=True)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.sendall(b"PROXY TCP4 10.9.9.9 10.0.0.2 1234 9092\r\n")
        arriving = ArrivingConnection(accepted, ours)
        addresses.add_connection(accepted.address)
        admission.add_connection(0, "10.9.9.9")  # an earlier one
        admission.add_connection(0, accepted.address)
        assert not await proxied.locate_client(arriving), "control is silent"
    addresses.remove_connection(arriving.address)
    assert admission.move_connection(0, accepted.address, arriving.address)
    admission.end_connections(0, {arriving.address: 1})
    for refused in (False, True):
        if refused:
            proxied.on_verdict(AddressVerdict(1, False, arriving.address))
        admission.end_connections(0, addresses.ended_counts)
        addresses.ended_counts.clear()
    assert admission.refusal_reason("10.9.9.9"), "the earlier one is still there"
