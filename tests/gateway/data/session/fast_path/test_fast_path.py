# Usual requests and answers, taken by the run, against a session that looks at each step by step, as all do where
# nothing is compiled: the same bytes go on, and the same is counted and charged.

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.channel import API_REQUESTS
from gateway.data.pending import in_flight, pending
from gateway.data.shared.admin_turn import AdminTurn
from gateway.data.shared.budget import MemoryAccount, MemoryBudget
from gateway.data.shared.errors import UpstreamError
from policies.quotas.names import Entity
from protocol import api, framing
from protocol.rewriting.stream import EndpointHider
from tests.gateway.data.play import APP, Play, answer, other_answer, other_request, request, size_of
from tests.gateway.data.session.fetch_frames import fetch, fetched
from tests.variants import COMPILED, PURE, module, running

TOPICS: tuple[dict[str, list[int]], ...] = (
    {"clicks": [0]}, {"clicks": [1]}, {"views": [0]}, {"clicks": [0, 2]}, {"clicks": [0], "views": [1, 0]},
    {"clicks": list(range(20))},
)  # fmt: skip


said = st.fixed_dictionaries(
    {
        "topics": st.sampled_from(TOPICS),
        "version": st.sampled_from([3, 8, 9, 9, 9, 11]),
        "acks": st.sampled_from([-1, -1, 1, 0]),
        "producer": st.sampled_from([(-1, -1, -1), (-1, -1, -1), (7, 0, 0), (7, 0, 1), (8, 0, 0)]),
        "client_id": st.sampled_from(["app", "app", "app", "another", None]),
        "trailing": st.sampled_from([b"", b"", b"", b"more"]),
        "values": st.sampled_from([(b"payload",), (b"a", b"bc")]),
    }
)
# A request and what the broker says to it: an error code and offset, and whether in another order.
exchanges = st.one_of(
    st.tuples(said, st.sampled_from([0, 0, 0, 6]), st.integers(0, 2), st.booleans()),
    st.sampled_from(["heartbeat", "fetch"]),
)


@pytest.fixture(scope="module", autouse=True)
def fast_path() -> ModuleType:
    return module("gateway.data.session.fast_path", COMPILED)


def counted_of(play: Play) -> Any:
    return play.session.response_counters


def broker_says(entry: pending.PendingEntry, code: int = 0, offset: int = 0, turned: bool = False) -> bytes:
    """To what it was sent of a request: some of its partitions may not have come so far."""
    if entry[1] == pending.PASS:
        return other_answer(entry[0])
    if entry[1] == pending.STREAM:
        return fetched(entry[0], entry[2])
    correlation, _, version, parts, *_ = entry
    topics: dict[str, dict[int, tuple[int, int]]] = {}
    for topic, index, *_ in sorted(parts, reverse=turned):
        topics.setdefault(topic.decode(), {})[index] = (code, offset)
    return answer(correlation, topics, version=version)


def told(play: Play, batches: list[list[Any]], step: int) -> list[Any]:
    """What goes on and what is counted, batch by batch of exchanges; the broker answers what it gets."""
    found: list[Any] = []
    correlation = 0
    for batch in batches:
        sent, says = b"", {}
        for exchange in batch:
            correlation += 1
            if exchange == "heartbeat":
                sent += other_request(correlation)
            elif exchange == "fetch":
                sent += fetch(correlation, 17)
            else:
                asked, *says[correlation] = exchange
                sent += request(correlation, **asked)
        found.append(play.client(sent, step))
        owed = [entry for entry in play.session.in_flight if entry[1] != pending.LOCAL]
        found.append(play.broker(b"".join(broker_says(entry, *says.get(entry[0], ())) for entry in owed), step))
        meters = play.engine.broker_meters(1)
        found.append({name: (each.uncounted, each.messages) for name, each in meters.topics.items()})
        found.append((meters.total.uncounted, meters.throttled.uncounted, len(play.session.in_flight)))
        if len(found) % 8 == 0:  # an interval is over: rows and meters are looked up again
            found.append(play.rows())
    return [*found, play.rows(), play.session.account.used_bytes]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(exchanges, min_size=1, max_size=8), min_size=1, max_size=6), st.sampled_from([0, 0, 1, 50]),
       st.booleans())  # fmt: skip
def test_the_same_goes_on_and_is_counted_as_where_each_is_looked_at(
    batches: list[list[Any]], step: int, is_over: bool
) -> None:
    def begin() -> Play:
        play = Play(total=100.0, topics={"views": 1e9}).named()
        return play.overload() if is_over else play

    usual = told(begin(), batches, step)
    with running(PURE):
        assert told(begin(), batches, step) == usual


def terms_of(fast_path: ModuleType, play: Play, *, by_name: bool = True, flight: Any = None, awaits: Any = None) -> Any:
    """Terms of a run over this session, of which the client's name and some bounds have yet to be said."""
    gate = play.session.gate
    flight = play.session.in_flight if flight is None else flight
    names = (gate.topics.by_name, gate.topics.by_id) if by_name else ({}, {})
    return fast_path.ForwardingTerms(
        flight, *names, gate.broker.total, awaits or gate.accounts.awaits_repeats, gate.find_credit, gate.world.ledger,
    )  # fmt: skip


def admit(
    terms: Any, play: Play, data: bytes | bytearray, end: int | None = None, arrived_s: float = 0.0, **how: bool
) -> Any:
    """Up to where requests passed, and how many; `arrived_s`: so long ago they came."""
    end = len(data) if end is None else end
    return terms.admit_requests(bytearray(data), 0, end, play.now, play.now - arrived_s, how.get("asks", False))


def run(fast_path: ModuleType, play: Play, data: bytes, end: int | None = None) -> Any:
    terms = terms_of(fast_path, play)
    terms.update_terms(0, play.session.client.client_id, False, 10**6, 10**4)
    return admit(terms, play, data, end)


def test_a_run_ends_before_the_first_that_is_not_whole(fast_path: ModuleType) -> None:
    play = Play().named()
    play.client(request(1))
    play.broker(answer(1))
    play.client(request(2))  # its topic is known from here on
    play.broker(answer(2))
    one, two = request(3), request(4)
    for end in range(len(one + two) + 1):
        passed = (end >= len(one)) + (end >= len(one + two))
        assert run(fast_path, play, one + two, end) == (
            passed and (len(one) if passed == 1 else len(one + two)),
            passed,
        )


@pytest.mark.parametrize(
    "other",
    [
        other_request(4), request(4, acks=0), request(4, client_id="another"), request(4, {"unknown": [0]}),
        request(4)[:4] + b"\0\0\0\x02" + request(4)[8:], b"\x7f\xff\xff\xff" + request(4)[4:],
        b"\xff\xff\xff\xff" + request(4)[4:],
    ],
)  # fmt: skip
def test_a_run_ends_before_another_kind(fast_path: ModuleType, other: bytes) -> None:
    play = Play().named()
    for correlation in (1, 2):
        play.client(request(correlation))
        play.broker(answer(correlation))
    one = request(3)
    data = one + other + request(5)
    assert run(fast_path, play, data) == (len(one), 1)


def fetching(fast_path: ModuleType, play: Play, most: int = 1000) -> Any:
    """Terms on which Fetch requests pass: up to version 15 their answers as they are, those of 16 and 17 walked."""
    terms = terms_of(fast_path, play, by_name=False)
    terms.update_terms(0, play.session.client.client_id, False, 10**6, 10**4)
    terms.update_fetch_terms((pending.PASS,) * 16 + (pending.STREAM,) * 2, most)
    return terms


def test_fetches_pass_and_are_owed_what_others_are_that_are_looked_at(fast_path: ModuleType) -> None:
    play = Play().named()
    data = fetch(1, 4) + fetch(2, 15) + fetch(3, 16) + fetch(4, 17)
    assert admit(fetching(fast_path, play), play, data) == (len(data), 4)
    play.ledger()
    assert play.counts[f"{API_REQUESTS}{api.FETCH}"] == 4
    looked_at = Play().named()
    assert looked_at.client(data)[0] == data
    assert list(play.session.in_flight) == list(looked_at.session.in_flight)


@pytest.mark.parametrize(
    "other",
    [
        fetch(4, 18), fetch(4)[:6] + b"\xff\xff" + fetch(4)[8:], fetch(4)[:-1], b"\0\0\0\x07" + fetch(4)[4:],
        fetch(4, topics=("a" * 1000,)), other_request(4), fetch(4, 1, key=api.SHARE_FETCH),
    ],
    ids=["a version that may not", "a negative one", "cut", "too short", "too large", "another API", "ShareFetch"],
)  # fmt: skip
def test_a_run_ends_before_a_fetch_that_has_to_be_looked_at(fast_path: ModuleType, other: bytes) -> None:
    play, one = Play().named(), fetch(3)
    assert admit(fetching(fast_path, play), play, one + other) == (len(one), 1)


def test_a_fetch_as_large_as_one_may_be_passes_and_no_larger_one(fast_path: ModuleType) -> None:
    play, size = Play().named(), len(fetch(3)) - 4
    for most, passed in ((size, 1), (size - 1, 0)):
        assert admit(fetching(fast_path, play, most), play, fetch(3))[1] == passed


def test_a_sessions_terms_let_no_larger_fetch_pass_than_its_api_needs(fast_path: ModuleType) -> None:
    play = Play(max_request_bytes=2 * api.MAX_OTHER_REQUEST_BYTES).named()
    for size, passed in ((api.MAX_OTHER_REQUEST_BYTES, 1), (api.MAX_OTHER_REQUEST_BYTES + 1, 0)):
        data = bytearray(4 + size)
        framing.REQUEST_HEAD.pack_into(data, 0, size, api.FETCH, 17, 3)
        assert admit(play.session.current_terms(play.now), play, data)[1] == passed


def test_no_fetch_passes_where_the_most_are_owed_or_no_one_said_so(fast_path: ModuleType) -> None:
    play = Play().named()
    terms, flight = fetching(fast_path, play), play.session.in_flight
    while len(flight) < in_flight.MAX_PENDING - 1:
        flight.append((1, pending.PASS))
    assert [admit(terms, play, fetch(3))[1] for _ in range(2)] == [1, 0]
    flight.drop_all()
    terms.update_terms(0, b"app", False, 10**6, 10**4)
    assert admit(terms, play, fetch(3))[1] == 0


def _quota_of_another(play: Play) -> None:
    play.set_quotas((Entity(client_id="other"), "consumer_byte_rate", 1e9))


def _group_that_limits_consumers(play: Play) -> None:
    play.engine.groups.has_dispatch_limits = True


def _goodbye(play: Play) -> None:
    play.session.stop_answering()


def _admin_request(play: Play) -> None:
    play.session.admin_requests.turn = AdminTurn(b"", 1000)


def _mute(play: Play) -> None:
    play.session.fetch_limiter.muted_until = play.now + 1.0


@pytest.mark.parametrize("change", [_quota_of_another, _group_that_limits_consumers, _goodbye, _admin_request, _mute])
def test_a_sessions_terms_let_fetches_pass_as_long_as_nothing_concerns_them(
    fast_path: ModuleType, change: Callable[[Play], None]
) -> None:
    play = familiar([0])
    assert admit(play.session.current_terms(play.now), play, fetch(3))[1] == 1
    change(play)
    assert admit(play.session.current_terms(play.now), play, fetch(3))[1] == 0


def test_answers_that_stream_through_pass_cut_anywhere_up_to_the_gateways_own(fast_path: ModuleType) -> None:
    walked = bytearray(fetched(2, 17))
    said = fetched(1, 15) + bytes(walked) + other_answer(3, b"") + other_answer(4)
    EndpointHider(api.FETCH, 17, len(walked) - 4).feed(walked, 4, len(walked))
    expected = fetched(1, 15) + bytes(walked) + other_answer(3, b"")
    assert len(other_answer(3, b"")) == 8
    for cut in range(len(said)):
        play = Play().named()
        counted, flight = counted_of(play), play.session.in_flight
        flight.append((1, pending.PASS))
        flight.append((2, pending.STREAM, 17, api.FETCH))
        flight.append((3, pending.PASS))
        flight.append((-1, pending.LOCAL, b""))
        buf = bytearray(said)
        pos = counted.count_responses(buf, 0, cut, play.now, False)
        assert cut - pos < 8 or cut > len(said) - len(other_answer(4))
        pos = counted.count_responses(buf, pos, len(buf), play.now, False)
        assert buf[:pos] == expected
        assert counted.in_flight.stream_walker is None
        assert [entry[0] for entry in flight] == [-1]


def test_half_a_list_of_addresses_comes_again_with_the_rest_behind_it(fast_path: ModuleType) -> None:
    said = fetched(1, 2, key=api.SHARE_FETCH)
    expected = bytearray(said)
    EndpointHider(api.SHARE_FETCH, 2, len(said) - 4).feed(expected, 4, len(said))
    held = 0
    for cut in range(8, len(said)):
        play, buf = Play().named(), bytearray(said)
        counted, flight = counted_of(play), play.session.in_flight
        flight.append((1, pending.STREAM, 2, api.SHARE_FETCH))
        pos = counted.count_responses(buf, 0, cut, play.now, False)
        held += pos < cut
        assert counted.count_responses(buf, pos, len(buf), play.now, False) == len(said)
        assert buf == expected
        assert counted.in_flight.stream_walker is None
        assert not flight
    assert held


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 3])
@pytest.mark.parametrize("owed", [(1, pending.PASS), (1, pending.STREAM, 17, api.FETCH)])
def test_an_answer_too_short_for_its_correlation_id_is_not_passed(fast_path: ModuleType, owed: Any, size: int) -> None:
    play = Play().named()
    play.session.in_flight.append(owed)
    buf = bytearray(framing.RESPONSE_HEAD.pack(size, 1) + bytes(8))
    assert counted_of(play).count_responses(buf, 0, len(buf), play.now, False) == 0
    assert counted_of(play).in_flight.stream_walker is None
    with pytest.raises(UpstreamError, match=f"a size of {size} bytes"):
        play.broker(bytes(buf))


def exchange(play: Play, correlation: int, topics: dict[str, list[int]]) -> bytes:
    """A request that the broker gets; its answer, which it has yet to give."""
    play.client(request(correlation, topics))
    return answer(correlation, {topic: dict.fromkeys(indexes, (0, 7)) for topic, indexes in topics.items()})


def familiar(indexes: list[int]) -> Play:
    """Whose topic was looked up: requests of these partitions pass by the run."""
    play = Play().named()
    for correlation in (1, 2):
        play.broker(exchange(play, correlation, {"clicks": indexes}))
    return play


def test_the_memory_of_many_partitions_is_given_back_with_their_answer(fast_path: ModuleType) -> None:
    play = Play().named()
    account = play.session.account
    wide = {"clicks": list(range(in_flight.FEW_PARTITIONS + 1))}
    for correlation in range(1, 4):  # from the second one on they pass by the run
        said = exchange(play, correlation, wide)
        assert account.used_bytes
        play.broker(said)
        assert not account.used_bytes


def test_many_partitions_are_looked_at_where_some_may_have_been_rejected_before(fast_path: ModuleType) -> None:
    play = Play().named()
    play.broker(exchange(play, 1, {"clicks": [0, 1]}))
    said = bytearray(exchange(play, 2, {"clicks": [0, 1]}))
    counted = counted_of(play)
    assert counted.count_responses(said, 0, len(said), play.now, True) == 0
    assert counted.count_responses(said, 0, len(said), play.now, False) == len(said)


@pytest.mark.parametrize("indexes", [[0], [0, 1]])
def test_a_request_is_looked_at_where_its_checksums_may_be_asked_for(fast_path: ModuleType, indexes: list[int]) -> None:
    play = familiar(indexes)
    asked: list[Any] = []

    def awaits(parts: Any, version: int) -> bool:
        asked.append(list(parts))
        return True

    terms = terms_of(fast_path, play, awaits=awaits)
    terms.update_terms(0, b"app", False, 10**6, 10**4)
    data = request(2, {"clicks": indexes})
    assert admit(terms, play, data, asks=True) == (0, 0)
    assert [[part[1] for part in parts] for parts in asked] == [indexes]
    assert admit(terms, play, data) == (len(data), 1)


@pytest.mark.parametrize("indexes", [[0], [0, 1]])
@pytest.mark.parametrize("names", [["app", "other", "app"], ["app", "app", "other"], ["other", "app", "app", "other"]])
def test_a_run_ends_where_the_client_id_is_another_and_goes_on_with_that_one(
    fast_path: ModuleType, names: list[str], indexes: list[int]
) -> None:
    """What a connection is owed counts for the client id of its last request."""
    play, topics = familiar(indexes), {"clicks": indexes}
    play.ledger()
    play.client(b"".join(request(correlation, topics, client_id=name) for correlation, name in enumerate(names, 3)))
    said = {"clicks": dict.fromkeys(indexes, (0, 0))}
    play.broker(b"".join(answer(correlation, said) for correlation, _ in enumerate(names, 3)))
    rows = [(row.client_id, row.requests) for row in play.ledger() if row.outcome == "accepted"]
    assert rows == [(names[-1], len(names))]


@pytest.mark.parametrize("indexes", [[0], [0, 1]])
def test_a_run_ends_at_what_is_larger_than_any_may_be_and_where_the_most_are_owed(
    fast_path: ModuleType, indexes: list[int]
) -> None:
    play = familiar(indexes)
    terms, flight, data = terms_of(fast_path, play), play.session.in_flight, request(3, {"clicks": indexes})
    size = len(data) - 4
    for max_bytes, most, expected in ((size - 1, 2, 0), (size, 2, 1), (size, 1, 2 - len(indexes))):
        terms.update_terms(0, b"app", False, max_bytes, most)
        assert admit(terms, play, data)[1] == expected
    terms.update_terms(0, b"app", False, size, 2)
    while len(flight) < in_flight.MAX_PENDING - 1:
        flight.append((1, pending.PASS))
    assert [admit(terms, play, data)[1] for _ in range(2)] == [1, 0]


def test_a_run_ends_where_memory_is_short_for_what_is_owed(fast_path: ModuleType) -> None:
    indexes = list(range(in_flight.FEW_PARTITIONS + 1))
    play = familiar(indexes)
    data = b"".join(request(each, {"clicks": indexes}) for each in (3, 4))
    flight = in_flight.InFlightRequests(MemoryAccount(MemoryBudget(1), ""))
    terms = terms_of(fast_path, play, flight=flight)
    terms.update_terms(0, b"app", False, 10**6, 10**4)
    assert admit(terms, play, data) == (len(data) // 2, 1)
    assert flight.is_reading_blocked


@pytest.mark.parametrize("indexes", [[0], [0, 1]])
def test_those_that_are_measured_are_noted_with_when_they_came(fast_path: ModuleType, indexes: list[int]) -> None:
    play = familiar(indexes)
    terms = terms_of(fast_path, play)
    terms.update_terms(1, b"app", False, 10**6, 10**4)
    data = b"".join(request(correlation, {"clicks": indexes}) for correlation in (4, 5))
    admit(terms, play, data, arrived_s=0.5)
    assert [entry[7] for entry in play.session.in_flight] == [(play.now - 0.5, play.now, 2), None]


@pytest.mark.parametrize("indexes", [[0], [0, 1]])
def test_the_quota_that_a_request_was_charged_to_is_noted(fast_path: ModuleType, indexes: list[int]) -> None:
    """It is told of the bytes that the broker doesn't write."""
    play = Play().named().set_quotas((APP, "producer_byte_rate", 1e9))
    for correlation in (1, 2):
        play.broker(exchange(play, correlation, {"clicks": indexes}))
    play.now += 10.0  # a quota saves nothing before it is used
    (line,) = play.session.client.quota_limit.produce_limiters
    free = line.bucket.token_level(play.now)
    frame = request(3, {"clicks": indexes})
    play.client(frame)
    (entry,) = play.session.in_flight
    assert entry[6].quota is play.session.client.produce_quota, "it was looked at"
    assert line.bucket.token_level(play.now) == free - (len(frame) - 4)
    play.broker(answer(3, {"clicks": dict.fromkeys(indexes, (6, -1))}))
    assert line.bucket.token_level(play.now) == free - (len(frame) - 4)  # a client's own limit counts them all the same


@pytest.mark.parametrize("of", ["thresholds", "group"])
@pytest.mark.parametrize("indexes", [[0], [0, 1]])
def test_what_is_free_of_one_limit_ends_a_run_that_another_one_has_credit_for(
    fast_path: ModuleType, indexes: list[int], of: str
) -> None:
    play = familiar(indexes).set_quotas((APP, "producer_byte_rate", 1e9))
    play.broker(exchange(play, 3, {"clicks": indexes}))
    play.now += 10.0
    meter = play.engine.broker_meters(1).topics[b"clicks"]
    (meter.set_thresholds_credit if of == "thresholds" else meter.set_group_credit)(1.0)
    data = b"".join(request(correlation, {"clicks": indexes}) for correlation in (4, 5))
    assert play.session.gate.must_ask_limits
    assert admit(play.session.current_terms(play.now), play, data) == (len(data) // 2, 1)


@pytest.mark.parametrize(("rows", "throttle_ms"), [([(b"views", 0, 89, "")], 0), (None, 5)])
def test_an_answer_that_has_more_to_say_is_looked_at(fast_path: ModuleType, rows: Any, throttle_ms: int) -> None:
    play = familiar([0, 1])
    said = bytearray(exchange(play, 3, {"clicks": [0, 1]}))
    flight = play.session.in_flight
    entry = flight.oldest_entry()
    flight.drop_all()
    flight.append((*entry[:4], rows, throttle_ms, *entry[6:]))
    assert counted_of(play).count_responses(said, 0, len(said), play.now, False) == 0
    flight.drop_all()
    flight.append(entry)
    assert counted_of(play).count_responses(said, 0, len(said), play.now, False) == len(said)


def test_a_topic_named_like_the_id_of_another_is_not_that_one(fast_path: ModuleType) -> None:
    """In one run, one behind the other: the same bytes, and another version."""
    play, alike = Play().named(), b"sixteen-bytes-id"
    play.world.cluster.topic_ids[alike] = b"clicks"

    def pair(correlation: int) -> bytes:
        by_id = request(correlation + 1, {"clicks": [0]}, version=13, topic_id=alike, values=(bytes(100),))
        return request(correlation, {alike.decode(): [0]}) + by_id

    for correlation in (1, 3, 5):
        play.client(pair(correlation))
        entries = list(play.session.in_flight)
        play.broker(b"".join(broker_says_to(entry, alike) for entry in entries))
    meters = play.engine.broker_meters(1).topics
    assert meters[alike].uncounted == 3 * size_of()
    assert meters[b"clicks"].uncounted == 3 * size_of((bytes(100),))
    rows = play.rows()
    assert rows[alike.decode(), "accepted", ""] == (3 * size_of(), 3, 3)
    assert rows["clicks", "accepted", ""] == (3 * size_of((bytes(100),)), 3, 3)


def test_a_request_counts_once_in_a_row_that_its_topics_share(fast_path: ModuleType) -> None:
    """Where there are too many names for the ledger, they are counted as one."""
    play = Play().named()
    play.world.ledger.max_names = 1
    play.world.ledger.find_row(1, "first", "User:x", "id", "accepted")
    for correlation in range(1, 6):
        play.broker(exchange(play, correlation, {"clicks": [0], "views": [1, 0]}))
    (counts,) = (counts for (_, outcome, _), counts in play.rows().items() if outcome == "accepted" and counts[0])
    assert counts == (15 * size_of(), 15, 5)


def broker_says_to(entry: pending.PendingEntry, topic: bytes) -> bytes:
    """The answer to the only partition of a request, by name or id."""
    return answer(entry[0], {topic.decode(): {0: (0, 7)}}, version=entry[2], topic_id=topic)


@pytest.mark.parametrize(
    ("run_of", "passed"),
    [([[0], [0], [0]], 2), ([[0], [0, 1], [0]], 2), ([[0, 1], [0]], 1), ([[0, 1], [0, 1]], 1)],
)
def test_what_a_run_has_brought_counts_within_it(fast_path: ModuleType, run_of: list[list[int]], passed: int) -> None:
    """Two batches have room; whatever finds some passes whole."""
    play = Play().named()
    play.broker(exchange(play, 1, {"clicks": [0, 1]}))
    play.broker(exchange(play, 2, {"clicks": [0]}))
    meter = play.engine.broker_meters(1).topics[b"clicks"]
    meter.set_thresholds_credit(2 * size_of())
    data = b"".join(request(10 + place, {"clicks": indexes}) for place, indexes in enumerate(run_of))
    before = meter.uncounted
    assert run(fast_path, play, data)[1] == passed
    assert meter.uncounted - before == sum(map(len, run_of[:passed])) * size_of()


def told_of_ids(seed: int) -> list[Any]:
    """As `told`, of requests with topic ids among others, some for a topic that is named like the id."""
    chance, alike = random.Random(seed), b"sixteen-bytes-id"
    play = Play().named()
    play.world.cluster.topic_ids[alike] = b"clicks"
    found: list[Any] = []
    for first in range(1, 40, 4):
        asked, said = b"", b""
        for correlation in range(first, first + 4):
            version = chance.choice([9, 12, 13, 13])
            topic = chance.choice(["clicks", alike.decode()]) if version < api.PRODUCE_TOPIC_IDS else "clicks"
            indexes = chance.choice([[0], [1], [0, 1], list(range(20))])
            producer = chance.choice([(-1, -1, -1), (7, 0, chance.randrange(3))])
            asked += request(correlation, {topic: indexes}, version=version, topic_id=alike, producer=producer)
            offset, turned = chance.randrange(3), chance.choice([1, -1])
            results = {index: (chance.choice([0, 0, 0, 6]), offset) for index in indexes[::turned]}
            said += answer(correlation, {topic: results}, version=version, topic_id=alike)
        found += [play.client(asked), play.broker(said), play.session.account.used_bytes]
        meters = play.engine.broker_meters(1)
        found.append({name: (each.uncounted, each.messages) for name, each in meters.topics.items()})
        found.append((meters.total.uncounted, play.rows() if chance.random() < 0.2 else None))
    return [*found, play.rows()]


@pytest.mark.parametrize("seed", range(30))
def test_the_same_is_counted_of_topic_ids(fast_path: ModuleType, seed: int) -> None:
    usual = told_of_ids(seed)
    with running(PURE):
        assert told_of_ids(seed) == usual
