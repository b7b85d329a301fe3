# Where a client has a certificate's principal and SASL's, and how connections are counted by principal and by address.

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from gateway.channel import AcceptedConnection
from gateway.control.admission import ADDRESS, CONNECTIONS, ConnectionAdmission
from gateway.data.shared.errors import IdentityChanged, TooManyConnections
from gateway.system.sockets import is_in_networks
from protocol.rewriting.identity import UNKNOWN_PRINCIPAL
from tests.gateway.data.play import Play
from tests.hostile.traffic import frames

ALICE, BOB = "User:CN=alice", "User:bob"


def log_in(play: Play, user: str = "bob") -> None:
    """By SASL, accepted by the broker."""
    _, handshake, token = frames.login(user)
    play.client(frames.numbered(handshake, 1))
    play.broker(frames.handshake_answer(1))
    play.client(frames.numbered(token, 2))
    play.broker(frames.sasl_answer(1, 2, 0, b""))


def certified(**settings: Any) -> Play:
    play = Play(**settings)
    play.session.authentication.accept_certificate(ALICE)
    return play


def test_a_certificates_principal_counts_until_sasl_says_another() -> None:
    play = certified()
    client, principals = play.session.client, play.world.principal_counts
    assert (client.principal, client.counted_names[0], principals) == (ALICE, ALICE, {ALICE: 1})
    log_in(play)
    assert (client.principal, client.counted_names[0], principals) == (BOB, BOB, {BOB: 1})
    play.session.close()
    assert principals == {}


def test_a_certificate_gives_nobody_a_second_way_round_the_limit_of_his_principal() -> None:
    play = certified(max_connections_per_principal=1)
    play.world.principal_counts[BOB] = 1
    with pytest.raises(TooManyConnections):
        log_in(play)
    play.session.close()
    assert play.world.principal_counts == {BOB: 1}


def test_a_principal_of_sasl_that_nobody_knows_is_not_the_certificates() -> None:
    play = certified()
    play.session.authentication._adopt_principal(UNKNOWN_PRINCIPAL)  # a delegation token
    assert play.session.client.principal == UNKNOWN_PRINCIPAL
    assert play.world.principal_counts == {}


def test_another_principal_in_a_later_sasl_session_still_ends_the_connection() -> None:
    play = certified()
    log_in(play)
    with pytest.raises(IdentityChanged):
        log_in(play, "alice")


def test_an_exempt_principal_may_be_a_certificates() -> None:
    play = Play(internal_principals=(ALICE,))
    assert not play.session.client.is_exempt
    play.session.authentication.accept_certificate(ALICE)
    assert play.session.client.is_exempt


# --- by address -------------------------------------------------------------------------------------------------------


def test_a_connection_through_a_proxy_counts_for_its_client_once_that_is_known() -> None:
    admission = ConnectionAdmission(4, 2)
    via = AcceptedConnection(1, "10.0.0.1:7", proxied=True).address
    for _ in range(3):
        assert admission.refusal_reason("10.0.0.1", proxied=True) == ""
        admission.add_connection(0, via)
    assert admission.refusal_reason("10.0.0.1") == ""  # of its own it has none
    assert [admission.move_connection(0, via, "192.0.2.7") for _ in range(3)] == ["", "", ADDRESS]
    admission.end_connections(0, {"192.0.2.7": 1})
    assert admission.refusal_reason("192.0.2.7") == ADDRESS
    admission.add_connection(1, via)
    assert admission.move_connection(1, via, "192.0.2.7") == ADDRESS  # over all workers
    admission.add_connection(1, via)
    assert admission.refusal_reason("10.0.0.1", proxied=True) == CONNECTIONS
    admission.replace_connections(0, {})
    admission.replace_connections(1, {})
    assert admission.refusal_reason("192.0.2.7") == ""


def test_other_limits_hold_for_those_who_come_and_turn_nobody_out() -> None:
    admission = ConnectionAdmission(10, 2)
    for _ in range(2):
        admission.add_connection(0, "192.0.2.7")
    assert admission.refusal_reason("192.0.2.7") == ADDRESS
    admission.set_limits(10, 3)
    assert admission.refusal_reason("192.0.2.7") == ""
    admission.set_limits(1, 3)
    assert admission.refusal_reason("192.0.2.8") == CONNECTIONS
    admission.end_connections(0, {"192.0.2.7": 2})
    assert admission.refusal_reason("192.0.2.8") == ""


def test_a_move_that_control_has_counted_already_counts_once() -> None:
    """A worker's hello to a new control may say what it says again."""
    admission = ConnectionAdmission(10, 2)
    admission.replace_connections(0, {"192.0.2.7": 1})
    assert admission.move_connection(0, "via 10.0.0.1", "192.0.2.7") == ""
    admission.end_connections(0, {"192.0.2.7": 1})
    assert admission._addresses == {}


@pytest.mark.parametrize(
    ("peer", "is_in"),
    [
        ("10.1.2.3:5", True),
        ("::ffff:10.1.2.3:5", True),
        ("11.0.0.1:5", False),
        ("fd00::1:5", True),
        ("[fd00::1]:5", True),
        ("[::ffff:10.1.2.3]:5", True),
        ("fe80::1%lo:5", False),
    ],
)
def test_networks_hold_for_both_ways_to_write_an_address(peer: str, is_in: bool) -> None:
    networks = [ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")]
    assert is_in_networks(peer, networks) == is_in
    assert not is_in_networks(peer, ())
