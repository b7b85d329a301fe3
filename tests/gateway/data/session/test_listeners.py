# The addresses of brokers in answers: those of the listener that the client came to, and no others.

from __future__ import annotations

import struct

import pytest

from gateway.channel import BrokerTable, ListenerSettings, TerminatedSasl, UpstreamBroker
from gateway.data.session.session import ClientSession
from gateway.data.shared.errors import UnauthenticatedRequest
from gateway.data.shared.worker_state import AdminQuerier
from protocol import api
from tests.gateway.data.play import TOPIC_ID, Play, account, other_answer, other_request, request
from tests.gateway.data.session.sasl_frames import authenticate, handshake
from tests.protocol import produce_cases as cases

TOLD = {
    "internal": {1: ("gw", 19094), 2: ("gw", 19095)},
    "external": {1: ("broker-1.kafka.example", 443)},  # broker 2 is withheld there
}


def play_at(listener: str) -> Play:
    play = Play()
    play.world.cluster.set_brokers(
        BrokerTable((), (UpstreamBroker(1, "b1", 9092), UpstreamBroker(2, "b2", 9092)), TOLD)
    )
    play.session = ClientSession(play.world, 1, account(), play.now, listener)
    return play


def metadata(*brokers: tuple[int, str, int]) -> bytes:
    """An answer of version 0, without topics."""
    rows = [
        struct.pack(f">ih{len(host)}si", node_id, len(host), host.encode(), port) for node_id, host, port in brokers
    ]
    return other_answer(1, struct.pack(">i", len(rows)) + b"".join(rows) + struct.pack(">i", 0))


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("listener", ["internal", "external", "unknown"])
def test_brokers_have_the_addresses_of_the_clients_listener(listener: str, step: int) -> None:
    play = play_at(listener)
    request = other_request(1, api.METADATA, 0, struct.pack(">i", 0))
    assert play.client(request, step)[0] == request
    told = [(node_id, *address) for node_id, address in TOLD.get(listener, {}).items()]
    assert play.broker(metadata((1, "b1", 9092), (2, "b2", 9092)), step) == metadata(*told)
    assert play.world.ledger.counts.get("brokers_withheld", 0) == 2 - len(told)


@pytest.mark.parametrize("brokers_want_it", [False, True])
def test_sasl_ends_here_at_the_listeners_that_say_so(brokers_want_it: bool) -> None:
    listeners = {"internal": ListenerSettings(), "external": ListenerSettings(sasl=TerminatedSasl(("PLAIN",)))}
    play = Play(listeners=listeners, upstream_sasl=brokers_want_it)
    asked: list[AdminQuerier] = []
    play.world.control_queries._post_query = asked.append
    sent = handshake("PLAIN"), authenticate(b"\0alice\0secret")

    play.session = ClientSession(play.world, 1, account(), play.now, "internal")
    assert play.client(sent[0]) == (sent[0], b"")
    assert not asked

    play.session = ClientSession(play.world, 1, account(), play.now, "external")
    upstream, answered = play.client(sent[0])
    assert upstream == b""
    assert answered.endswith(b"PLAIN")
    assert play.client(sent[1]) == (b"", b"")
    assert [asker.listener for asker in asked] == ["external"]


@pytest.mark.parametrize("listener", ["internal", "external"])
def test_before_authentication_nothing_else_passes_where_it_is_wanted(listener: str) -> None:
    listeners = {"internal": ListenerSettings(), "external": ListenerSettings(sasl=TerminatedSasl(("PLAIN",)))}
    play = Play(listeners=listeners)  # brokers want none
    play.session = ClientSession(play.world, 1, account(), play.now, listener)
    asked = other_request(1, api.METADATA, 0, struct.pack(">i", 0))
    if listener == "internal":
        assert play.client(asked) == (asked, b"")
    else:
        with pytest.raises(UnauthenticatedRequest):
            play.client(asked)


@pytest.mark.parametrize("listener", ["internal", "external"])
def test_new_leaders_in_answers_to_produce_have_them_as_well(listener: str) -> None:
    play = play_at(listener)

    def answer(*endpoints: cases.Endpoint) -> bytes:
        topic = cases.AnswerTopic("clicks", TOPIC_ID, [cases.Answer(0, api.NOT_LEADER_OR_FOLLOWER)])
        return cases.framed(cases.encode_answer(cases.Response(10, 1, [topic], 0, endpoints)))

    play.client(request(1, version=10))
    told = [cases.Endpoint(node_id, *address, None) for node_id, address in TOLD[listener].items()]
    assert play.broker(answer(cases.Endpoint(1, "b1", 9092, None), cases.Endpoint(2, "b2", 9092, None))) == answer(
        *told
    )


def test_a_newer_snapshot_holds_for_connections_that_are_there() -> None:
    play = play_at("external")
    newer = {**TOLD, "external": {1: ("a", 1), 2: ("b", 2)}}
    play.world.cluster.set_brokers(
        BrokerTable((), (UpstreamBroker(1, "b1", 9092), UpstreamBroker(2, "b2", 9092)), newer)
    )
    play.client(other_request(1, api.METADATA, 0, struct.pack(">i", 0)))
    assert play.broker(metadata((1, "b1", 9092), (2, "b2", 9092))) == metadata((1, "a", 1), (2, "b", 2))
