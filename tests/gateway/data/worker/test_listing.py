# The list of connections: what is shown of a link, which are asked for, and in which order.

from __future__ import annotations

import trio

from gateway.channel import FindConnections, FoundConnections
from gateway.data.worker import listing
from gateway.data.worker.listing import ConnectionListing, describe_link, matches_query
from tests.gateway.data.play import JAVA, Play, request
from tests.gateway.data.relay.stage import passes, staged
from tests.gateway.data.worker.shown import shown


def test_what_is_asked_for_is_found_and_no_other() -> None:
    one = shown("[2001:db8::1]:5", muted_s=1.0)
    for question in (
        FindConnections(),
        FindConnections(principal="User:a", client_id="c", address="2001:db8::1", broker=1, muted=True),
    ):
        assert matches_query(one, question)
    for question in (
        FindConnections(principal="User:b"),
        FindConnections(client_id=""),
        FindConnections(address="2001:db8::2"),
        FindConnections(broker=2),
    ):
        assert not matches_query(one, question)
    assert not matches_query(shown(), FindConnections(muted=True))


async def test_a_connection_is_shown_with_who_it_is_and_why_it_waits() -> None:
    play = Play(total=100, topics={"clicks": 50})
    play.now = trio.current_time()
    async with staged(play) as stage:
        link, client, broker = stage.connect()
        client_of = link.session.client
        client_of.set_software(JAVA)
        client_of.set_principal("User:alice")
        fresh = describe_link(link, trio.current_time())
        assert (fresh.broker, fresh.principal, fresh.software) == (1, "User:alice", "apache-kafka-java 4.1.0")
        assert (fresh.peer, fresh.in_flight, fresh.muted_s, fresh.why) == ("test:1", 0, 0.0, "")
        frame = request(1)
        await passes(client, broker, frame)
        assert describe_link(link, trio.current_time()).in_flight == 1
        assert describe_link(link, trio.current_time()).client_id == "app"
        later = describe_link(link, trio.current_time() + 7)
        assert later.age_s >= 7
        assert 7 <= later.idle_s <= later.age_s

        now = trio.current_time()
        link.session.hold.muted_until, link.session.hold.mute_reason = now + 3, "topic-threshold"
        assert (describe_link(link, now).muted_s, describe_link(link, now).why) == (3.0, "topic-threshold")
        assert (describe_link(link, now + 4).muted_s, describe_link(link, now + 4).why) == (0.0, "")
        link.session.hold.paused_since = now
        assert describe_link(link, now).why == "storage-pause"


async def test_a_wait_has_its_own_reason_and_not_that_of_an_earlier_one() -> None:
    async with staged() as stage:
        link, _, _ = stage.connect()
        session, now = link.session, trio.current_time()
        hold = session.hold
        hold.muted_until, hold.mute_reason = now - 1, "topic-threshold"
        session.fetch_limiter.muted_until = now + 3
        assert (describe_link(link, now).muted_s, describe_link(link, now).why) == (3.0, "fetch")
        hold.held_until = now + 10  # for control, which answers an admin request
        assert (describe_link(link, now).muted_s, describe_link(link, now).why) == (10.0, "")
        hold.muted_until = hold.held_until
        assert describe_link(link, now).why == "topic-threshold"


def test_a_rejection_says_why_its_connection_waits() -> None:
    play = Play(total=100.0, topics={"clicks": 50.0}).named()
    play.client(request(1))
    assert play.session.hold.mute_reason == ""
    play.overload()
    play.client(request(2))
    assert play.session.hold.muted_until > play.now
    assert play.session.hold.mute_reason == "topic-threshold"


async def test_a_worker_answers_with_the_longest_muted_and_how_many_there_are() -> None:
    said: list[FoundConnections] = []
    async with staged() as stage, trio.open_nursery() as nursery:
        links = [stage.connect()[0] for _ in range(5)]
        now = trio.current_time()
        for number, link in enumerate(links):
            link.peer = f"10.0.0.{number}:1"
            link.session.hold.muted_until = now + 1000 * (number % 3)
        there = ConnectionListing(lambda: iter(stage.reactor.links), said.append)
        for token in range(1, 9):
            there.enqueue_query(FindConnections(token, limit=3))  # more than there is room for are left out
        nursery.start_soon(there.run)
        while len(said) < listing.MAX_WAITING_QUERIES:
            await trio.lowlevel.checkpoint()
        assert [each.token for each in said] == [1, 2, 3, 4]
        assert (said[0].total, said[0].matched) == (5, 5)
        assert [each.peer for each in said[0].connections] == ["10.0.0.2:1", "10.0.0.1:1", "10.0.0.4:1"]
        there.enqueue_query(FindConnections(9, muted=True, address="10.0.0.4"))
        while len(said) < 5:
            await trio.lowlevel.checkpoint()
        assert (said[4].total, said[4].matched, [each.peer for each in said[4].connections]) == (5, 1, ["10.0.0.4:1"])
        nursery.cancel_scope.cancel()
