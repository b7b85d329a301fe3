# An admin request that control answers, as a play: what goes to the broker and to the client, in which order, and what
# control is asked. Control is played by the test, so messages need not mean anything here; what they mean is
# gateway/control/policies/test_kafka_admin.py's.

from __future__ import annotations

import struct
from typing import Any

import pytest

from gateway.channel import AdminAnswer
from gateway.data.shared import admin_turn
from gateway.data.shared.admin_turn import CONTROL_TIMEOUT_S, AdminTurn, UnanswerableRequest
from gateway.data.shared.worker_state import AdminQuerier
from protocol import api
from protocol.admin import configs as c
from protocol.admin import quotas as q
from protocol.admin import topic_deletion as d
from protocol.admin import topics as t
from protocol.wire import MalformedFrame
from tests.gateway.data.play import Play, answer, other_answer, other_request, request, size_of

STEPS = pytest.mark.parametrize("step", [0, 1, 7], ids=["glued", "byte by byte", "by sevens"])
MANAGED = (19, 20, 32, 33, 44, 48, 49)
PROBE = other_request(-7, 44, 1, b"may this client?")
REST = other_request(-8, 44, 1, b"the rest")
CLIENTS = other_answer(5, b"what the client gets")


def change(correlation: int = 5, *, keys: int = 1) -> bytes:
    rows = tuple(c.ConfigOperation(f"bytes.in.per.sec.threshold.{i}", c.SET, "5") for i in range(keys))
    resources = (c.IncrementalAlterConfigsResource(c.TOPIC, "clicks", rows),)
    return c.INCREMENTAL_ALTER_CONFIGS.encode_request(
        c.IncrementalAlterConfigsRequest(resources), 1, correlation, b"tool"
    )


class Managed(Play):
    """A play with a control. `asked`: the questions that turns have put."""

    def __init__(self, managed: tuple[int, ...] = MANAGED, **options: Any) -> None:
        super().__init__(managed_apis=managed, **options)
        self.asked: list[AdminQuerier] = []
        self.woken = 0
        self.world.control_queries._post_query = self.asked.append
        self.session.admin_requests.wake_link = self._wake

    def _wake(self) -> None:
        self.woken += 1

    @property
    def turn(self) -> AdminTurn:
        assert self.session.admin_requests.turn is not None
        return self.session.admin_requests.turn

    def control(self, **said: Any) -> tuple[bytes, bytes]:
        """Control answers; the bytes that go (upstream, to the client)."""
        token = self.turn.token
        self.world.control_queries.pending.pop(token).on_control_answer(AdminAnswer(token, **said))
        return self.go_on()

    def go_on(self) -> tuple[bytes, bytes]:
        """Go on as the link does after any event."""
        return (
            self.again()
            if self.session.admin_requests.can_advance(self.session.hold.held_until, self.now)
            else (b"", b"")
        )


# --- order ------------------------------------------------------------------------------------------------------------


@STEPS
def test_control_is_asked_about_a_request_and_its_answer_goes_to_the_client(step: int) -> None:
    play = Managed()
    assert play.client(change(), step) == (b"", b"")
    assert len(play.asked) == 1
    assert play.turn.request == change()[4:]
    assert (play.turn.memo, play.turn.answer) == (b"", b"")
    assert play.control(client=CLIENTS) == (b"", CLIENTS)
    assert play.session.admin_requests.turn is None
    assert play.session.is_idle
    assert play.world.control_queries.pending == {}


@STEPS
def test_a_request_that_is_none_of_ours_passes_as_it_is(step: int) -> None:
    play = Managed()
    play.client(change(), step)
    assert play.control() == (change(), b"")
    assert play.broker(other_answer(5, b"the broker's"), step) == other_answer(5, b"the broker's")
    assert play.session.is_idle


@STEPS
def test_the_broker_is_asked_on_the_same_connection_and_the_client_sees_nothing_of_it(step: int) -> None:
    play = Managed()
    play.client(change(), step)
    assert play.control(upstream=PROBE, memo=b"probed") == (PROBE, b"")
    assert play.asked[1:] == []
    assert play.broker(other_answer(-7, b"it may"), step) == b""
    assert play.go_on() == (b"", b"")
    assert len(play.asked) == 2
    assert (play.turn.memo, play.turn.answer) == (b"probed", other_answer(-7, b"it may")[4:])
    assert play.control(upstream=REST, memo=b"sent") == (REST, b"")
    play.broker(other_answer(-8, b"done"), step)
    play.go_on()
    assert (play.turn.memo, play.turn.answer) == (b"sent", other_answer(-8, b"done")[4:])
    assert play.control(client=CLIENTS) == (b"", CLIENTS)
    assert play.session.is_idle


@STEPS
def test_it_waits_for_the_answers_before_it_and_requests_behind_it_wait(step: int) -> None:
    play = Managed()
    behind = request(6) + other_request(7)
    upstream, client = play.client(request(1) + other_request(2) + change() + behind, step)
    assert upstream == request(1) + other_request(2)
    assert client == b""
    assert play.asked == []  # who the client is may be among these answers
    assert play.broker(answer(1), step) == answer(1)
    assert play.go_on() == (b"", b"")
    assert play.asked == []
    assert play.broker(other_answer(2), step) == other_answer(2)
    assert play.go_on() == (b"", b"")
    assert len(play.asked) == 1
    assert play.control(upstream=PROBE, memo=b"m") == (PROBE, b"")
    assert play.broker(other_answer(-7), step) == b""
    assert play.go_on() == (b"", b"")
    assert play.control(client=CLIENTS) == (behind, CLIENTS)
    answers = answer(6) + other_answer(7)
    assert play.broker(answers, step) == answers
    assert play.rows() == {("clicks", "accepted", ""): (2 * size_of(), 2, 2)}
    assert play.session.is_idle


def test_two_in_a_row_are_taken_one_after_the_other() -> None:
    play = Managed()
    play.client(change(5) + change(6))
    assert play.turn.request == change(5)[4:]
    assert play.control() == (change(5), b"")
    assert play.turn.request == change(6)[4:]
    assert len(play.asked) == 1
    play.broker(other_answer(5))
    play.go_on()
    assert len(play.asked) == 2
    assert play.control(client=CLIENTS) == (b"", CLIENTS)


@pytest.mark.parametrize("managed", [(), (32, 33, 44)])
def test_only_the_apis_that_control_answers_wait_for_it(managed: tuple[int, ...]) -> None:
    for number, key in enumerate((*MANAGED, 12), 1):
        play = Managed(managed)
        frame = other_request(number, key, 1, b"anything")
        assert play.client(frame) == ((b"", b"") if key in managed else (frame, b""))
        assert len(play.asked) == (key in managed)


@STEPS
@pytest.mark.parametrize("version", range(2, 8))
def test_control_is_asked_about_topics_with_a_key_of_ours_alone(version: int, step: int) -> None:
    for key, asked in (("retention.ms", 0), ("bytes.in.per.sec.threshold", 1)):
        play = Managed()
        topic = t.CreatableTopic("clicks", 1, 1, (), (t.TopicConfig(key, "5"),))
        frame = t.CREATE_TOPICS.encode_request(t.CreateTopicsRequest((topic,), 1000), version, 5, b"tool")
        passed = play.client(frame + other_request(6, 18, 0), step)[0]
        assert len(play.asked) == asked
        assert passed.startswith(frame) is not bool(asked)


def deletion(*topics: str | bytes, version: int = 6) -> bytes:
    """DeleteTopics, by name or by id."""
    if version < 6:
        return d.DELETE_NAMED_TOPICS.encode_request(
            d.DeleteNamedTopicsRequest(tuple(map(str, topics)), 1000), version, 5, b"tool"
        )
    given = tuple(d.DeletableTopic(each) if isinstance(each, str) else d.DeletableTopic(None, each) for each in topics)
    return d.DELETE_TOPICS.encode_request(d.DeleteTopicsRequest(given, 1000), version, 5, b"tool")


@STEPS
@pytest.mark.parametrize("version", range(1, 7))
def test_control_is_asked_about_the_deletion_of_topics_with_a_threshold_alone(version: int, step: int) -> None:
    for names, asked in ((("other", "click"), 0), (("other", "clicks"), 1)):
        play = Managed()
        play.world.engine.set_thresholds(None, {"clicks": 5.0})
        frame = deletion(*names, version=version)
        passed = play.client(frame + other_request(6, 18, 0), step)[0]
        assert len(play.asked) == asked
        assert passed.startswith(frame) is not bool(asked)


def test_control_is_asked_about_a_deletion_by_id_where_the_topic_may_have_a_threshold() -> None:
    ids = {bytes((number,)) * 16: name for number, name in enumerate((b"clicks", b"other"), 1)}
    clicks, other = ids
    for topics, thresholds, asked in (
        ([clicks], {"clicks": 5.0}, 1),
        ([other], {"clicks": 5.0}, 0),
        ([other, b"unknown to us..."], {"clicks": 5.0}, 1),
        ([clicks], {}, 0),
    ):
        play = Managed()
        play.world.engine.set_thresholds(None, thresholds)
        play.world.cluster.topic_ids.update(ids)
        play.client(deletion(*topics))
        assert len(play.asked) == asked


def test_a_large_deletion_is_controls_to_read_and_one_beyond_all_measure_the_brokers() -> None:
    names = [f"topic-{number:0200}" for number in range(6000)]
    for count, asked in ((100, 1), (6000, 0)):
        play = Managed()
        play.world.engine.set_thresholds(None, {"clicks": 5.0})
        play.client(deletion(*names[:count]))
        assert len(play.asked) == asked


def test_a_deletion_that_can_not_be_read_is_the_brokers_to_refuse() -> None:
    play = Managed()
    play.world.engine.set_thresholds(None, {"clicks": 5.0})
    frame = other_request(5, 20, 0, b"clicks")
    assert play.client(frame) == (frame, b"")


def test_a_turn_goes_on_where_the_gateway_was_told_meanwhile_that_it_manages_nothing() -> None:
    play = Managed()
    play.client(change())
    play.world.control_queries.apis = frozenset()
    assert play.control(client=CLIENTS) == (b"", CLIENTS)


# --- nobody answers ---------------------------------------------------------------------------------------------------


def test_control_that_does_not_answer_in_time_is_an_error_for_each_resource() -> None:
    play = Managed()
    play.client(change() + other_request(6))
    late = play.turn.token
    assert play.session.hold.held_until == play.now + CONTROL_TIMEOUT_S
    play.now += CONTROL_TIMEOUT_S - 0.001
    assert play.go_on() == (b"", b"")
    play.now += 0.001
    upstream, client = play.go_on()
    assert upstream == other_request(6)
    correlation, said = c.INCREMENTAL_ALTER_CONFIGS.decode_response(client, 4, len(client), 1)
    assert correlation == 5
    (row,) = said.responses
    assert (row.error_code, *row[2:]) == (api.REQUEST_TIMED_OUT, c.TOPIC, "clicks")
    assert row.error_message == "the gateway's control process did not answer within 10 s; nothing was changed"
    assert play.world.control_queries.pending == {}
    play.session.admin_requests.on_control_answer(AdminAnswer(late, client=CLIENTS))  # too late
    assert play.client(b"") == (b"", b"")


def test_a_deletion_of_topics_does_not_depend_on_control() -> None:
    play = Managed()
    play.world.engine.set_thresholds(None, {"clicks": 5.0})
    play.client(deletion("clicks"))
    play.now += CONTROL_TIMEOUT_S
    assert play.go_on() == (deletion("clicks"), b"")
    assert play.broker(other_answer(5, b"deleted")) == other_answer(5, b"deleted")
    assert play.session.is_idle

    play.client(deletion("clicks"))
    assert play.control(upstream=deletion("clicks"), memo=b"deleting") == (deletion("clicks"), b"")
    play.broker(other_answer(5, b"deleted"))
    assert play.go_on() == (b"", b"")
    play.now += CONTROL_TIMEOUT_S
    assert play.go_on() == (b"", other_answer(5, b"deleted")), "the broker's answer, which is here already"
    assert play.session.is_idle


def test_control_that_goes_away_in_the_middle_leaves_the_outcome_open() -> None:
    play = Managed()
    play.client(change())
    play.control(upstream=PROBE, memo=b"m")
    play.now += 25  # that the broker takes its time is no fault of control's
    play.broker(other_answer(-7))
    assert play.go_on() == (b"", b"")
    play.now += CONTROL_TIMEOUT_S
    _, client = play.go_on()
    (row,) = c.INCREMENTAL_ALTER_CONFIGS.decode_response(client, 4, len(client), 1)[1].responses
    assert (row.error_message or "").endswith("; check whether the change was made")


def test_an_answer_to_an_earlier_question_is_none_to_the_present_one() -> None:
    play = Managed()
    play.client(change())
    first = play.turn.token
    play.control(upstream=PROBE, memo=b"m")
    play.broker(other_answer(-7))
    play.go_on()
    assert play.turn.token != first
    play.session.admin_requests.on_control_answer(AdminAnswer(first, client=CLIENTS))
    assert play.go_on() == (b"", b"")
    assert play.control(client=other_answer(5, b"right")) == (b"", other_answer(5, b"right"))


@pytest.mark.parametrize(
    "frame",
    [
        c.DESCRIBE_CONFIGS.encode_request(
            c.DescribeConfigsRequest((c.DescribeConfigsResource(c.TOPIC, "clicks", None),)), 4, 5, None
        ),
        q.DESCRIBE_CLIENT_QUOTAS.encode_request(q.DescribeClientQuotasRequest(()), 1, 5, None),
    ],
    ids=["configs", "quotas"],
)
def test_a_description_that_control_does_not_give_says_nothing_about_changes(frame: bytes) -> None:
    play = Managed()
    play.client(frame)
    play.now += CONTROL_TIMEOUT_S
    _, client = play.go_on()
    assert b"did not answer within 10 s" in client
    assert b"change" not in client


def test_a_large_request_that_control_does_not_answer_closes_its_connection() -> None:
    play = Managed()
    frame = change(keys=3000)
    assert len(frame) > admin_turn.MAX_REFUSED_BYTES
    play.client(frame)
    play.now += admin_turn.LARGE_CONTROL_TIMEOUT_S - 0.001  # thousands of entries take control seconds
    assert play.go_on() == (b"", b"")
    play.now += 0.001
    with pytest.raises(MalformedFrame, match=r"no answer to IncrementalAlterConfigs of .* within 25 s"):
        play.go_on()
    assert play.session.admin_requests.turn is None
    assert play.world.control_queries.pending == {}


def test_a_request_beyond_all_measure_is_not_even_asked_about() -> None:
    play = Managed()
    with pytest.raises(MalformedFrame, match="at most"):
        play.client(other_request(1, 49, 1, bytes(2**20)))
    assert play.asked == []


def test_an_answer_beyond_all_measure_closes_the_connection() -> None:
    turn = AdminTurn(change()[4:], 2**20)
    with pytest.raises(UnanswerableRequest, match="IncrementalAlterConfigs"):
        turn.on_broker_answer(bytes(admin_turn.MAX_RESPONSE_BYTES + 1))


def test_a_request_that_can_not_be_read_is_not_refused_but_ends_its_connection() -> None:
    play = Managed()
    play.client(other_request(1, 44, 1, b"\xff\xff\xff"))
    play.now += CONTROL_TIMEOUT_S
    with pytest.raises(MalformedFrame):
        play.go_on()


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_connection_that_closes_in_the_middle_forgets_its_question() -> None:
    play = Managed()
    play.client(change())
    token = play.turn.token
    assert not play.session.is_idle
    play.session.close()
    assert play.world.control_queries.pending == {}
    play.session.admin_requests.on_control_answer(AdminAnswer(token, client=CLIENTS))
    assert play.woken == 0
    assert play.session.is_idle


def test_an_answer_wakes_the_link() -> None:
    play = Managed()
    play.client(change())
    play.session.admin_requests.on_control_answer(AdminAnswer(play.turn.token, client=CLIENTS))
    assert play.woken == 1
    assert play.session.admin_requests.can_advance(play.session.hold.held_until, play.now)


def test_a_connection_that_is_drained_still_gets_its_answer() -> None:
    play = Managed()
    play.client(change() + request(6))
    play.session.hold.is_draining = True
    assert play.again() == (b"", b"")
    assert not play.session.is_idle
    assert play.control(client=CLIENTS) == (b"", CLIENTS)
    assert play.rows() == {("clicks", "discarded", ""): (size_of(), 1, 1)}


def test_requests_are_counted_once() -> None:
    play = Managed()
    play.client(change() + other_request(6))
    play.control(upstream=PROBE, memo=b"m")
    play.broker(other_answer(-7))
    play.go_on()
    play.control(client=CLIENTS)
    play.ledger()
    assert play.counts == {"requests": 2, "answers_local": 1, "api_requests_12": 1, "api_requests_44": 1}


def test_a_topic_id_that_is_asked_for_and_a_turn_do_not_mix_their_answers_up() -> None:
    play = Managed()
    upstream, _ = play.client(request(1, version=13, topic_id=b"\xee" * 16) + change())
    (lookup,) = struct.unpack_from(">i", upstream, 8)
    assert play.session.admin_requests.turn is None  # a request before it still waits
    play.now += 1
    upstream, _ = play.again()
    assert upstream == b""  # nobody knows that topic: refused, behind the answer to the question
    assert lookup in [entry[0] for entry in play.session.in_flight]
    assert play.asked == []
