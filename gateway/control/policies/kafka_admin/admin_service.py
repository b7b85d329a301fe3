# Changes of policies by the Kafka protocol, control's side: does and answers what Kafka's tools ask about thresholds
# (as configs of topics and brokers) and about client quotas. A worker brings the request (channel.Ask), sends control's
# message on the client's own connection, and comes back with the broker's answer. Nothing is kept here in between, so a
# control that was started again goes on where the former one stopped.
#
#   describe    the broker is asked, and our values go into its answer
#   change      our keys are taken out; the broker is asked, by a change of all the rest that it only validates, whether
#               this client may change these resources and whether the rest is valid; then our values are changed, the
#               rest is sent, and both results become one answer
#   create      the same for topics that come with a threshold. The threshold is set before the topic exists, so that no
#               topic is ever without it, and taken back if the broker then refuses the topic that it has just found
#               valid, or if keeping it took so long that the client got an answer that there was none; it stays after
#               an error that leaves open whether the topic exists
#   delete      topics that have a threshold: the request passes as it is, and once the broker has deleted a topic, its
#               threshold is removed. Whatever fails here, the client gets what the broker said
#   other       a request without keys of ours passes unchanged
#
# So the right to change a policy is the right to change that resource in Kafka. Each resource succeeds or fails alone,
# as in Kafka, and as a whole: only a broker that refuses a change that it has just found valid can leave one changed by
# half, and then the answer says so. Knows no sockets; protocol/ has the messages, policies/definitions/policy_values.py
# the values that may be set.

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, ParamSpec, TypeVar

import trio

from gateway.channel import AdminAnswer, AdminQuery
from gateway.config import Settings
from gateway.control.context import ControlContext
from gateway.control.internal_errors import KAFKA_ADMIN
from gateway.control.policies.kafka_admin.admin_configs import (
    ChangingConfigs,
    DescribingConfigs,
)
from gateway.control.policies.kafka_admin.admin_deletions import DOOR as DELETED
from gateway.control.policies.kafka_admin.admin_deletions import DeletingTopics
from gateway.control.policies.kafka_admin.admin_quotas import ChangingQuotas, DescribingQuotas
from gateway.control.policies.kafka_admin.admin_requests import (
    ChangingRequest,
    DescribingRequest,
    RequestMemo,
    ResourceResult,
    decode_memo,
    encode_memo,
)
from gateway.control.policies.kafka_admin.admin_topics import CreatingTopics
from gateway.control.policies.service import PolicyService
from gateway.control.policies.store import InDoubtError, StoreError
from gateway.control.query_tasks import QueryTasks, Reply, TaskShare
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import RuntimeValue
from policies.text import ERROR_CHARS, one_line
from policies.thresholds.values import TOPIC_KEY
from protocol import api, wire
from protocol.admin import refusal
from protocol.wire import MalformedFrame

log = logging.getLogger("gateway.policy")
P = ParamSpec("P")
T = TypeVar("T")

CONFIG_APIS: Final = (
    api.CREATE_TOPICS, api.DELETE_TOPICS, api.DESCRIBE_CONFIGS, api.ALTER_CONFIGS, api.INCREMENTAL_ALTER_CONFIGS,
)  # fmt: skip
QUOTA_APIS: Final = (api.DESCRIBE_CLIENT_QUOTAS, api.ALTER_CLIENT_QUOTAS)
THREAD_BYTES: Final = 64 * 1024  # larger requests are read and written beside trio's thread: 10 ms and more
THREADS: Final = 1  # more of them would only take the interpreter from trio's thread, which accepts connections
# Requests that are worked on at the same time. Further ones are not begun: their worker answers the client within
# seconds that there was no answer (REQUEST_TIMED_OUT, which is retried); to read them only to say so now would cost as
# much.
MAX_REQUESTS: Final = 64
MAX_OF_PRINCIPAL: Final = 16  # for one principal
MAX_BYTES: Final = 32 * 2**20
LOG_AGAIN_S: Final = 60.0
LATE_S: Final = 0.5  # before the worker answers in control's place: later its client may not read one
DOOR: Final = "kafka"


def managed_apis(client_quotas_api: Literal["gateway", "upstream"]) -> tuple[int, ...]:
    """API keys for channel.WorkerSettings: with `upstream`, client quotas stay with the brokers."""
    return (*CONFIG_APIS, *QUOTA_APIS) if client_quotas_api == "gateway" else CONFIG_APIS


class KafkaAdmin:
    """Answers workers' queries. `submit_query` is for control/workers/workers.py; `run` must be running.

    Attributes:
        quotas_percent: the percentage of clients for which the gateway enforces client quotas; 0: it only observes.
    """

    def __init__(self, context: ControlContext, policies: PolicyService) -> None:
        self._policies = policies
        self._errors = context.errors
        self._monotonic = context.monotonic
        self.quotas_percent = context.settings.rollout.quota
        self._tasks = QueryTasks(
            KAFKA_ADMIN, self.answer_query, _share_of, self._errors, most=MAX_REQUESTS, most_bytes=MAX_BYTES
        )
        self._threads = trio.CapacityLimiter(THREADS)
        self._dropped = 0
        self._logged_at = -math.inf

    async def run(self) -> None:
        await self._tasks.run()

    def apply_settings(self, settings: Settings) -> None:
        self.quotas_percent = settings.rollout.quota

    def submit_query(self, ask: AdminQuery, reply: Reply) -> None:
        """Answer in a task. Over the concurrency limit (or the limit of bytes) the query is dropped."""
        if not self._tasks.submit_query(ask, reply):
            self._log_overload(ask)

    def _log_overload(self, ask: AdminQuery) -> None:
        self._dropped += 1
        now = self._monotonic()
        if now - self._logged_at >= LOG_AGAIN_S:
            log.warning(
                "%d admin requests over the concurrency limit were dropped, the latest from %s (%s)",
                self._dropped, one_line(ask.peer), one_line(ask.principal),
            )  # fmt: skip
            self._logged_at, self._dropped = now, 0

    async def answer_query(self, ask: AdminQuery) -> AdminAnswer:
        """The next step of the request. Its client learns of any failure."""
        try:
            return await self._answer_step(ask)
        except MalformedFrame as error:
            if not ask.answer:  # the broker will name its fault, or close
                return AdminAnswer(ask.token)
            return await self._refuse_request(
                ask, api.ERROR_CODES["UNKNOWN_SERVER_ERROR"], f"the broker's answer: {error}"
            )
        except StoreError as error:
            return await self._refuse_request(ask, api.REQUEST_TIMED_OUT, str(error))
        except Exception as error:
            self._errors.record_error(KAFKA_ADMIN, ask.peer, error)
            text = "an error in produce-gateway, see its log"
            return await self._refuse_request(ask, api.ERROR_CODES["UNKNOWN_SERVER_ERROR"], text)

    async def _answer_step(self, ask: AdminQuery) -> AdminAnswer:
        size = len(ask.request) + len(ask.answer)
        memo = decode_memo(ask.memo) if ask.memo else None
        # Before, only the file's would be described, and who writes back what it reads would delete all others.
        await self._policies.await_loaded()
        policies, percent = self._policies.policies, self.quotas_percent
        turn = await self._call_by_size(size, _read_request, ask.request, policies, percent, memo is not None)
        if turn is None:
            return AdminAnswer(ask.token)
        if isinstance(turn, DeletingTopics):
            if memo is None:
                return AdminAnswer(
                    ask.token,
                    wire.with_size_prefix(ask.request),
                    memo=encode_memo(RequestMemo("delete", before=turn.before)),
                )
            deleted = await self._call_by_size(size, turn.find_deleted, ask.answer, memo.before)
            await self._remove_thresholds(deleted, ask)
            return AdminAnswer(ask.token, client=wire.with_size_prefix(ask.answer))
        if isinstance(turn, DescribingRequest):
            if memo is None:
                return AdminAnswer(
                    ask.token, wire.with_size_prefix(turn.request), memo=encode_memo(RequestMemo("describe"))
                )
            return AdminAnswer(ask.token, client=await self._call_by_size(size, turn.merge_response, ask.answer))
        if memo is None:
            own = turn.refused_results()
            if turn.wanted:
                probe = await self._call_by_size(size, turn.encode_probe)
                return AdminAnswer(ask.token, probe, memo=encode_memo(RequestMemo("probe", own, sorted(turn.wanted))))
        elif memo.stage == "probe":
            own = memo.own + await self._change_allowed(turn, memo.probed, ask, size)
        else:
            settled = await turn.settle_response(self._policies, ask.answer, memo.before, _source_of(ask))
            return AdminAnswer(ask.token, client=await self._call_by_size(size, turn.merge_response, settled, memo.own))
        rest = await self._call_by_size(size, turn.encode_rest, own)
        if rest:
            return AdminAnswer(ask.token, rest, memo=encode_memo(RequestMemo("rest", own, before=turn.before)))
        return AdminAnswer(ask.token, client=await self._call_by_size(size, turn.merge_response, b"", own))

    async def _change_allowed(
        self, turn: ChangingRequest, asked: Sequence[int], ask: AdminQuery, size: int
    ) -> list[ResourceResult]:
        """Change the gateway's values that the broker allows; the results of denied, changed and impossible ones."""
        denied = await self._call_by_size(size, turn.read_denials, ask.answer, asked)
        refused = {result.place for result in denied}
        allowed = [place for place in asked if place in turn.wanted and place not in refused]
        if not allowed:
            return denied
        source = _source_of(ask)
        try:
            changed = await turn.apply_change(self._policies, allowed, source)
        except InDoubtError:
            await turn.revert_changes(self._policies, source)
            raise
        if turn.before and self._monotonic() >= ask.until - LATE_S:
            await turn.revert_changes(self._policies, source)
            raise StoreError("keeping the threshold took too long, so the topic is not created: try again")
        return denied + changed

    async def _remove_thresholds(self, deleted: Mapping[str, RuntimeValue], ask: AdminQuery) -> None:
        """Remove these topics' thresholds, and wait as long as the client does; the removal is completed anyway."""
        if deleted:
            with trio.move_on_after(max(0.0, ask.until - LATE_S - self._monotonic())):
                try:
                    await self._policies.remove_topics(deleted, _source_of(ask)._replace(door=DELETED))
                except StoreError as error:
                    names = one_line(", ".join(sorted(deleted)), ERROR_CHARS)
                    log.warning("the topics %s were deleted, but their %s can't be removed: %s",
                                names, TOPIC_KEY, one_line(str(error)))  # fmt: skip

    async def _refuse_request(self, ask: AdminQuery, code: int, text: str) -> AdminAnswer:
        if wire.read_int16(ask.request, 0, len(ask.request))[0] == api.DELETE_TOPICS:
            return AdminAnswer(ask.token, client=wire.with_size_prefix(ask.answer) if ask.answer else b"")
        frame = await self._call_by_size(len(ask.request), refusal.refuse_request, ask.request, code, text)
        return AdminAnswer(ask.token, client=frame)

    async def _call_by_size(self, size: int, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if size <= THREAD_BYTES:
            return call(*args, **kwargs)
        return await trio.to_thread.run_sync(functools.partial(call, *args, **kwargs), limiter=self._threads)


def _source_of(ask: AdminQuery) -> ChangeSource:
    return ChangeSource(ask.principal, DOOR, ask.peer)


def _share_of(ask: AdminQuery) -> TaskShare:
    return TaskShare(ask.principal, math.inf if ask.memo else MAX_OF_PRINCIPAL)  # a request that has begun is finished


def _read_request(
    request: bytes, policies: PolicySet, quotas_percent: float, has_begun: bool
) -> DescribingRequest | ChangingRequest | DeletingTopics | None:
    """None: nothing in it is ours, so it passes as it is. Not so one that has begun, whatever was removed meanwhile:
    the broker would get it twice.

    Raises:
        MalformedFrame: it can't be read.
    """
    key, _ = wire.read_int16(request, 0, len(request))
    turn: DescribingRequest | ChangingRequest
    if key == api.DESCRIBE_CONFIGS:
        turn = DescribingConfigs(request, policies)
        return turn if turn.is_concerned or has_begun else None
    if key == api.DESCRIBE_CLIENT_QUOTAS:
        turn = DescribingQuotas(request, policies, quotas_percent)
        return turn if turn.found or turn.is_apart or has_begun else None
    if key == api.DELETE_TOPICS:
        deleting = DeletingTopics(request, policies)
        return deleting if deleting.is_concerned or has_begun else None
    if key == api.CREATE_TOPICS:
        turn = CreatingTopics(request)
    else:
        is_quotas = key == api.ALTER_CLIENT_QUOTAS
        turn = ChangingQuotas(request, quotas_percent) if is_quotas else ChangingConfigs(request, policies)
    return turn if turn.wanted or turn.refused_results() or has_begun else None
