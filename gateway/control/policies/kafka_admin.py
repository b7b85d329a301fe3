# The Kafka protocol's door to policies, control's side: what Kafka's own tools say about thresholds (as configs of
# topics and brokers) and about client quotas, done and answered. A worker brings the request (channel.Ask), sends on
# the client's own connection what is said here, and comes back with what the broker answered; nothing is kept here in
# between, so a control that was started again goes on where the former one stopped.
#
#   describe    the broker is asked, and what is ours goes into its answer
#   change      what is ours is taken out; the broker is asked, by a change that is only to be validated and has all the
#               rest in it, whether this client may change these resources and whether the rest can be; then ours is
#               changed, then the rest is sent, and both results become one answer
#   other       a request that has nothing of ours passes as it is
#
# So who may change a policy is who may change that resource in Kafka. Each resource succeeds or fails by itself, as in
# Kafka, and as a whole: only a broker that refuses what it has just found valid can leave one changed by half, and then
# the answer says so. Knows no sockets; how messages look is protocol/, what may be set is policies/policy_set.py.

from __future__ import annotations

import functools
import itertools
import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

import msgspec
import trio

from gateway.channel import Answer, Ask
from gateway.control.policies.service import Altered
from gateway.control.policies.store import StoreError
from policies.policy_set import (
    EVERY_BROKER,
    InvalidPolicy,
    Op,
    PolicyError,
    PolicyKey,
    PolicySet,
    Source,
    as_number,
    check_value,
)
from policies.quotas import filter as quota_filter
from policies.quotas import store as client_quotas
from policies.quotas.names import UNITS, QuotaError, QuotaKey
from policies.text import one_line
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY
from protocol import api, configs, quotas, refusal, wire
from protocol.configs import BROKER, TOPIC, AlterConfigsResult, Config, Synonym
from protocol.quotas import AlterClientQuotasResult, EntityPart, Entry, Value
from protocol.wire import MalformedFrame

log = logging.getLogger("gateway.policy")
P = ParamSpec("P")
T = TypeVar("T")

CONFIG_APIS: Final = (api.DESCRIBE_CONFIGS, api.ALTER_CONFIGS, api.INCREMENTAL_ALTER_CONFIGS)
QUOTA_APIS: Final = (api.DESCRIBE_CLIENT_QUOTAS, api.ALTER_CLIENT_QUOTAS)
THREAD_BYTES: Final = 64 * 1024  # what is larger is read and written beside trio's thread: 10 ms and more
THREADS: Final = 1  # more of them would only take the interpreter from trio's thread, which accepts connections
# Of requests that are worked on at the same time. What is beyond is not begun: its worker tells the client within
# seconds that nobody answered (REQUEST_TIMED_OUT, which is retried), and reading it to say so now would be the work.
MAX_REQUESTS: Final = 64
MAX_OF_ONE: Final = 16  # for one principal
MAX_BYTES: Final = 32 * 2**20
SAY_AGAIN_S: Final = 60.0
FEW: Final = 50  # resources of which also those without a value of ours get a row: kafka-python sets no key that it
# doesn't see. With more of them, as consoles ask every minute, it isn't worth decoding all that the broker said.
DOOR: Final = "kafka"

_OURS: Final = (TOPIC_KEY, TOTAL_KEY)
_KEY_OF: Final = {TOPIC: TOPIC_KEY, BROKER: TOTAL_KEY}
_LONG: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DOCUMENTATION: Final = {
    TOPIC: "Bytes per second that producers may write into this topic on each broker, enforced by produce-gateway."
    f" Topics without one share evenly what the others leave of the broker's {TOTAL_KEY}. A topic is over its"
    " threshold only while its broker is over the total.",
    BROKER: "Bytes per second that producers may write to this broker, enforced by produce-gateway: no topic is held to"
    f" its {TOPIC_KEY} before this is exceeded. These must not exceed it together.",
}
_HALF: Final = "produce-gateway's own keys are changed already"


def managed_apis(client_quotas_api: Literal["gateway", "upstream"]) -> tuple[int, ...]:
    """API keys for channel.WorkerSettings: with `upstream`, client quotas stay the brokers' own affair."""
    return (*CONFIG_APIS, *QUOTA_APIS) if client_quotas_api == "gateway" else CONFIG_APIS


class Policies(Protocol):
    """What is used of gateway.control.policies.service.PolicyService."""

    @property
    def policies(self) -> PolicySet: ...

    async def alter(self, ops: Sequence[Op], source: Source, *, validate_only: bool = False) -> Altered: ...

    async def fitting(self, ops: Sequence[Op]) -> list[str | None]: ...

    async def alter_quotas(
        self, alterations: Sequence[client_quotas.Alteration], source: Source, *, validate_only: bool = False
    ) -> Altered: ...


class KafkaAdmin:
    """Answers workers' questions. `take` is for control/workers.py; `run` must be running."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._nursery: trio.Nursery | None = None
        self._threads = trio.CapacityLimiter(THREADS)
        self._busy: Counter[str] = Counter()  # requests by principal
        self._busy_bytes = 0
        self._left_out = 0
        self._said_at = -math.inf

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def take(self, ask: Ask, reply: Callable[[Answer], None]) -> None:
        """Answer in a task that outlives the worker: a change that has begun goes on when its client has gone. As many
        as that: with too many at once (or too large ones) the question stays without an answer.
        """
        if self._nursery is None:
            return
        if self._has_room(ask):
            self._nursery.start_soon(self._serve, ask, reply)
            self._busy[ask.principal] += 1
            self._busy_bytes += _size(ask)
        else:
            self._complain(ask)

    def _has_room(self, ask: Ask) -> bool:
        if self._busy.total() >= MAX_REQUESTS or self._busy_bytes + _size(ask) > MAX_BYTES:
            return False
        return self._busy[ask.principal] < MAX_OF_ONE or bool(ask.memo)  # what has begun is brought to its end

    def _complain(self, ask: Ask) -> None:
        self._left_out += 1
        now = time.monotonic()
        if now - self._said_at >= SAY_AGAIN_S:
            log.warning(
                "%d admin requests too many at once, lately from %s (%s): they stay without an answer",
                self._left_out, one_line(ask.peer), one_line(ask.principal),
            )  # fmt: skip
            self._said_at, self._left_out = now, 0

    async def _serve(self, ask: Ask, reply: Callable[[Answer], None]) -> None:
        try:
            if time.monotonic() < ask.until:  # else its client has been told that nobody answered
                reply(await self.answer(ask))
        finally:
            self._busy_bytes -= _size(ask)
            self._busy[ask.principal] -= 1
            if not self._busy[ask.principal]:
                del self._busy[ask.principal]

    async def answer(self, ask: Ask) -> Answer:
        """What becomes of the request now. Whatever goes wrong is told to its client."""
        try:
            return await self._answer(ask)
        except MalformedFrame as error:
            if not ask.answer:  # the broker will say what is wrong with it, or close
                return Answer(ask.token)
            return await self._refuse(ask, api.ERROR_CODES["UNKNOWN_SERVER_ERROR"], f"the broker's answer: {error}")
        except StoreError as error:
            return await self._refuse(ask, api.REQUEST_TIMED_OUT, str(error))
        except Exception:
            log.exception("an admin request from %s (%s) failed", one_line(ask.peer), one_line(ask.principal))
            text = "an error in produce-gateway, see its log"
            return await self._refuse(ask, api.ERROR_CODES["UNKNOWN_SERVER_ERROR"], text)

    async def _answer(self, ask: Ask) -> Answer:
        size = len(ask.request) + len(ask.answer)
        memo = _decode_memo(ask.memo) if ask.memo else None
        turn = await self._beside(size, _read, ask.request, self._policies.policies)
        if turn is None:
            return Answer(ask.token)
        if isinstance(turn, _Describing):
            if memo is None:
                return Answer(ask.token, wire.framed(ask.request), memo=_encode_memo(_Memo("describe")))
            return Answer(ask.token, client=await self._beside(size, turn.merge, ask.answer))
        if memo is None:
            own = turn.refused()
            if turn.wanted:
                probe = await self._beside(size, turn.probe)
                return Answer(ask.token, probe, memo=_encode_memo(_Memo("probe", own, sorted(turn.wanted))))
        elif memo.stage == "probe":
            own = memo.own + await self._change(turn, memo.asked, ask, size)
        else:
            return Answer(ask.token, client=await self._beside(size, turn.merge, ask.answer, memo.own))
        rest = await self._beside(size, turn.rest, own)
        if rest:
            return Answer(ask.token, rest, memo=_encode_memo(_Memo("rest", own)))
        return Answer(ask.token, client=await self._beside(size, turn.merge, b"", own))

    async def _change(self, turn: _Changing, asked: Sequence[int], ask: Ask, size: int) -> list[_Result]:
        """Change what the broker allows of ours; results of what it denies, and of what was changed or can't be."""
        denied = await self._beside(size, turn.denied, ask.answer, asked)
        refused = {result.place for result in denied}
        allowed = [place for place in asked if place in turn.wanted and place not in refused]
        if not allowed:
            return denied
        return denied + await turn.change(self._policies, allowed, Source(ask.principal, DOOR, ask.peer))

    async def _refuse(self, ask: Ask, code: int, text: str) -> Answer:
        frame = await self._beside(len(ask.request), refusal.refuse, ask.request, code, text)
        return Answer(ask.token, client=frame)

    async def _beside(self, size: int, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if size <= THREAD_BYTES:
            return call(*args, **kwargs)
        return await trio.to_thread.run_sync(functools.partial(call, *args, **kwargs), limiter=self._threads)


def _size(ask: Ask) -> int:
    return len(ask.request) + len(ask.memo) + len(ask.answer)


# --- one request ------------------------------------------------------------------------------------------------------


class _Result(NamedTuple):
    """What became of the resource that is at `place` in the request."""

    place: int
    code: int
    message: str | None


class _Memo(msgspec.Struct, array_like=True):
    """What is known of a request between two questions about it."""

    stage: Literal["describe", "probe", "rest"]
    own: list[_Result] = []
    asked: list[int] = []  # places of the resources that the probe was about


_encode_memo: Final = msgspec.msgpack.Encoder().encode
_decode_memo: Final = msgspec.msgpack.Decoder(_Memo).decode


class _Describing(ABC):
    """A request to describe something of which we have a part."""

    @abstractmethod
    def merge(self, answer: bytes) -> bytes:
        """The client's frame, from the broker's answer (without size prefix)."""


class _Changing(ABC):
    """A request to change something that is ours, or that must be refused because of that.

    Attributes:
        wanted: places of the resources with keys of ours.
    """

    wanted: Mapping[int, Any]
    validate_only: bool

    @abstractmethod
    def refused(self) -> list[_Result]:
        """What can be neither ours nor the broker's."""

    @abstractmethod
    def probe(self) -> bytes:
        """The frame that asks the broker whether this may be."""

    @abstractmethod
    def denied(self, answer: bytes, asked: Sequence[int]) -> list[_Result]:
        """What the broker said to that may not."""

    @abstractmethod
    async def change(self, policies: Policies, allowed: Sequence[int], source: Source) -> list[_Result]:
        """Change what is ours of these resources, or only see whether it could be; what became of each.

        Raises:
            StoreError: nothing was changed.
        """

    @abstractmethod
    def rest(self, own: Iterable[_Result]) -> bytes:
        """The frame with what the broker shall change; b"": nothing is left, given these results."""

    @abstractmethod
    def merge(self, answer: bytes, own: Iterable[_Result]) -> bytes:
        """The client's frame, from the broker's answer to the rest (b"": it was sent none) and our results."""


def _read(request: bytes, policies: PolicySet) -> _Describing | _Changing | None:
    """None: nothing in it is ours.

    Raises:
        MalformedFrame: it can't be read.
    """
    key, _ = wire.int16(request, 0, len(request))
    turn: _Describing | _Changing
    if key == api.DESCRIBE_CONFIGS:
        turn = _DescribingConfigs(request, policies)
        return turn if turn.concerned else None
    if key == api.DESCRIBE_CLIENT_QUOTAS:
        turn = _DescribingQuotas(request, policies)
        return turn if turn.found else None
    turn = _ChangingQuotas(request) if key == api.ALTER_CLIENT_QUOTAS else _ChangingConfigs(request, policies)
    return turn if turn.wanted or turn.refused() else None


# --- configs ----------------------------------------------------------------------------------------------------------


class _DescribingConfigs(_Describing):
    def __init__(self, request: bytes, policies: PolicySet) -> None:
        self._head = configs.DESCRIBE_CONFIGS.decode_request(request, 0, len(request))
        self._policies = policies
        self._unset = len(self._head.body.resources) <= FEW
        self.concerned = any(
            resource.asks_for(config.name)
            for resource in self._head.body.resources
            for config in self._ours(*resource[:2])
        )

    def _ours(self, kind: int, name: str) -> tuple[Config, ...]:
        return described(self._policies, kind, name, unset=self._unset)

    def merge(self, answer: bytes) -> bytes:
        spoken, head = configs.DESCRIBE_CONFIGS, self._head
        _, said = spoken.decode_answer(answer, 0, len(answer), head.version)
        merged = configs.merge_described(head.body, said, self._ours)
        return spoken.encode_answer(merged, head.version, head.correlation_id)


def described(policies: PolicySet, kind: int, name: str, *, unset: bool) -> tuple[Config, ...]:
    """Our row of a config resource, if there is one: all values that are set, the one in force first.

    `unset`: also without any, as Kafka has a row for its LONGs without a default: null.
    """
    key = _KEY_OF.get(kind)
    if key is None:
        return ()
    if kind == TOPIC:
        places = [(PolicyKey.of_topic(name), configs.DYNAMIC_TOPIC_CONFIG)]
    else:
        places = [(PolicyKey("broker", name, TOTAL_KEY), configs.DYNAMIC_BROKER_CONFIG)] if name else []
        places.append((PolicyKey("broker", EVERY_BROKER, TOTAL_KEY), configs.DYNAMIC_DEFAULT_BROKER_CONFIG))
    synonyms = [
        Synonym(key, _number(as_number(values[place])), source)
        for place, dynamic in places
        for values, source in ((policies.changes, dynamic), (policies.base, configs.STATIC_BROKER_CONFIG))
        if place in values
    ]
    if not synonyms and not unset:
        return ()
    _, value, source = synonyms[0] if synonyms else Synonym(key, None, configs.DEFAULT_CONFIG)
    text = _DOCUMENTATION[kind]
    return (Config(key, value, False, source, False, tuple(synonyms), configs.LONG, text),)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


class _ChangingConfigs(_Changing):
    def __init__(self, request: bytes, policies: PolicySet) -> None:
        self._spoken: Any
        self._split: configs.Split[Any]
        if wire.int16(request, 0, len(request))[0] == api.ALTER_CONFIGS:
            self._spoken = configs.ALTER_CONFIGS
            self._head: Any = self._spoken.decode_request(request, 0, len(request))
            self._split = configs.split_replacing(self._head.body, _is_config_ours, lambda *key: _held(policies, *key))
        else:
            self._spoken = configs.INCREMENTAL_ALTER_CONFIGS
            self._head = self._spoken.decode_request(request, 0, len(request))
            self._split = configs.split_incremental(self._head.body, _is_config_ours)
        self.validate_only = self._head.body.validate_only
        self._places = _places(resource[:2] for resource in self._head.body.resources)
        self.wanted = {self._places[resource[:2]]: resource for resource in self._split.ours}

    def refused(self) -> list[_Result]:
        return [_Result(self._places[row[2:]], *row[:2]) for row in self._split.refused]

    def probe(self) -> bytes:
        resources = self._head.body.resources
        theirs = tuple(
            resource._replace(configs=tuple(row for row in resource.configs if row.name not in _OURS))
            for resource in (resources[place] for place in self.wanted)
        )
        return self._encode(self._head.body._replace(resources=theirs, validate_only=True))

    def denied(self, answer: bytes, asked: Sequence[int]) -> list[_Result]:
        said = {row[2:]: row for row in self._decode(answer).responses}
        results = []
        for place in asked:
            key = self._head.body.resources[place][:2]
            row = said.get(key) or AlterConfigsResult(-1, "The broker gave no result for this resource.", *key)
            if row.error_code != api.NONE:
                results.append(_Result(place, *row[:2]))
        return results

    async def change(self, policies: Policies, allowed: Sequence[int], source: Source) -> list[_Result]:
        ops: dict[int, list[Op]] = {}
        results: list[_Result] = []
        for place in allowed:
            resource = self.wanted[place]
            try:
                ops[place] = [_op(*resource[:2], *row) for row in resource.configs]
            except _Unfit as error:
                results.append(_Result(place, api.ERROR_CODES["INVALID_CONFIG"], str(error)))
        failed = await self._alter(policies, ops, source)
        if failed is not None:
            ops, refused = await _as_far_as_possible(policies, ops)
            results += refused
            failed = await self._alter(policies, ops, source)
        if failed is not None:  # somebody else's change came between
            return results + [_violation(place, str(failed)) for place in ops]
        return results + [_Result(place, api.NONE, None) for place in ops]

    async def _alter(self, policies: Policies, ops: Mapping[int, list[Op]], source: Source) -> PolicyError | None:
        if ops:
            try:
                await policies.alter(_joined(ops.values()), source, validate_only=self.validate_only)
            except PolicyError as error:
                return error
        return None

    def rest(self, own: Iterable[_Result]) -> bytes:
        failed = {self._head.body.resources[place][:2] for place, code, _ in own if code != api.NONE}
        rest = self._split.rest and configs.without(self._split.rest, failed)
        return self._encode(rest) if rest else b""

    def merge(self, answer: bytes, own: Iterable[_Result]) -> bytes:
        resources = self._head.body.resources
        rows = [AlterConfigsResult(code, text, *resources[place][:2]) for place, code, text in own]
        said = self._decode(answer) if answer else None
        if said is not None:
            done = {row[2:] for row in rows if row.error_code == api.NONE}
            said = said._replace(responses=tuple(_half(row, row[2:] in done) for row in said.responses))
        merged = configs.merge_altered(self._head.body, said, rows)
        return bytes(self._spoken.encode_answer(merged, self._head.version, self._head.correlation_id))

    def _encode(self, body: Any) -> bytes:
        head = self._head
        return bytes(self._spoken.encode_request(body, head.version, head.correlation_id, head.client_id))

    def _decode(self, answer: bytes) -> configs.AlterConfigsAnswer:
        found: configs.AlterConfigsAnswer = self._spoken.decode_answer(answer, 0, len(answer), self._head.version)[1]
        return found


class _Unfit(Exception):
    """A value that can't be, whatever the others are."""


def _joined(ops: Iterable[list[Op]]) -> list[Op]:
    return [op for each in ops for op in each]


async def _as_far_as_possible(
    policies: Policies, ops: Mapping[int, list[Op]]
) -> tuple[dict[int, list[Op]], list[_Result]]:
    """Those that go together, taken in the order of the request, and what is wrong with the others."""
    errors = iter(await policies.fitting(_joined(ops.values())))
    fit: dict[int, list[Op]] = {}
    results = []
    for place, own in ops.items():
        wrong = [error for error in itertools.islice(errors, len(own)) if error is not None]
        if wrong:
            results.append(_violation(place, "; ".join(wrong)))
        else:
            fit[place] = own
    return fit, results


def _violation(place: int, text: str) -> _Result:
    """A value that could be, but not beside the others."""
    return _Result(place, api.ERROR_CODES["POLICY_VIOLATION"], text)


def _is_config_ours(kind: int, _name: str, key: str) -> bool:
    return kind in _KEY_OF and key in _OURS  # both of both: brokers take any key, and a topic's would do nothing there


def _held(policies: PolicySet, kind: int, name: str) -> tuple[str, ...]:
    """Keys that are set at run time: what the configuration file says can't be removed."""
    key = _KEY_OF.get(kind)
    return (key,) if key is not None and _policy_key(kind, name) in policies.changes else ()


def _policy_key(kind: int, name: str) -> PolicyKey:
    return PolicyKey("topic" if kind == TOPIC else "broker", name, _KEY_OF[kind])


def _op(kind: int, name: str, key: str, operation: int, value: str | None) -> Op:
    if key != _KEY_OF[kind]:
        here, there = ("topics", "brokers") if kind == TOPIC else ("brokers", "topics")
        raise _Unfit(f"{key} is a config of {there}: for {here} there is {_KEY_OF[kind]}")
    policy = _policy_key(kind, name)
    if operation == configs.DELETE:
        return Op(policy, None)
    text = (value or "").strip()
    if not _LONG.fullmatch(text):
        raise _Unfit(f"Invalid value {value} for configuration {key}: not a number of type LONG (bytes per second)")
    try:
        return Op(policy, check_value(policy, float(text)))
    except InvalidPolicy as error:
        raise _Unfit(str(error)) from error


# --- client quotas ----------------------------------------------------------------------------------------------------


class _DescribingQuotas(_Describing):
    def __init__(self, request: bytes, policies: PolicySet) -> None:
        self._head = quotas.DESCRIBE_CLIENT_QUOTAS.decode_request(request, 0, len(request))
        body = self._head.body
        components = [quota_filter.Component(*component) for component in body.components]
        try:
            found = policies.quotas().describe(components, body.strict)
        except QuotaError:
            found = ()  # the broker says what is wrong with the filter
        self.found = tuple(
            Entry(
                tuple(EntityPart(*pair) for pair in entity.pairs),
                tuple(Value(key.wire, value) for key, value in values.items()),
            )
            for entity, values in found
        )

    def merge(self, answer: bytes) -> bytes:
        spoken, head = quotas.DESCRIBE_CLIENT_QUOTAS, self._head
        _, said = spoken.decode_answer(answer, 0, len(answer), head.version)
        return spoken.encode_answer(quotas.merge_described(said, self.found), head.version, head.correlation_id)


class _ChangingQuotas(_Changing):
    def __init__(self, request: bytes) -> None:
        self._head = quotas.ALTER_CLIENT_QUOTAS.decode_request(request, 0, len(request))
        self.validate_only = self._head.body.validate_only
        self._split = quotas.split(self._head.body, _is_quota_ours, _for_broker)
        self._places = _places(quotas.entity_key(entity) for entity, _ in self._head.body.entries)
        self.wanted = {self._places[quotas.entity_key(each.entity)]: each for each in self._split.ours}

    def refused(self) -> list[_Result]:
        return [_Result(self._places[quotas.entity_key(row.entity)], *row[:2]) for row in self._split.refused]

    def probe(self) -> bytes:
        entries = self._head.body.entries
        theirs = tuple(
            entry._replace(ops=quotas.ops_for_broker(entry, _is_quota_ours, _for_broker))
            for entry in (entries[place] for place in self.wanted)
        )
        return self._encode(quotas.AlterClientQuotasRequest(theirs, True))

    def denied(self, answer: bytes, asked: Sequence[int]) -> list[_Result]:
        said = {quotas.entity_key(row.entity): row for row in self._decode(answer).entries}
        results = []
        for place in asked:
            entity = self._head.body.entries[place].entity
            row = said.get(quotas.entity_key(entity)) or AlterClientQuotasResult(
                -1, "The broker gave no result for this entity.", entity
            )
            if row.error_code != api.NONE:
                results.append(_Result(place, *row[:2]))
        return results

    async def change(self, policies: Policies, allowed: Sequence[int], source: Source) -> list[_Result]:
        alterations = [
            client_quotas.Alteration(
                self.wanted[place].entity,
                [client_quotas.Op(op.key, None if op.remove else op.value) for op in self.wanted[place].ops],
            )
            for place in allowed
        ]
        altered = await policies.alter_quotas(alterations, source, validate_only=self.validate_only)
        return [
            _Result(place, api.NONE, None) if e is None else _Result(place, api.ERROR_CODES[e.error], str(e))
            for place, e in zip(allowed, altered.errors, strict=True)
        ]

    def rest(self, own: Iterable[_Result]) -> bytes:
        failed = [self._head.body.entries[place].entity for place, code, _ in own if code != api.NONE]
        rest = self._split.rest and quotas.without(self._split.rest, failed)
        return self._encode(rest) if rest else b""

    def merge(self, answer: bytes, own: Iterable[_Result]) -> bytes:
        head = self._head
        rows = [AlterClientQuotasResult(code, text, head.body.entries[place].entity) for place, code, text in own]
        said = self._decode(answer) if answer else None
        if said is not None:
            done = {quotas.entity_key(row.entity) for row in rows if row.error_code == api.NONE}
            said = said._replace(
                entries=tuple(_half(row, quotas.entity_key(row.entity) in done) for row in said.entries)
            )
        merged = quotas.merge_altered(head.body, said, rows)
        return quotas.ALTER_CLIENT_QUOTAS.encode_answer(merged, head.version, head.correlation_id)

    def _encode(self, body: quotas.AlterClientQuotasRequest) -> bytes:
        head = self._head
        return quotas.ALTER_CLIENT_QUOTAS.encode_request(body, head.version, head.correlation_id, head.client_id)

    def _decode(self, answer: bytes) -> quotas.AlterClientQuotasAnswer:
        return quotas.ALTER_CLIENT_QUOTAS.decode_answer(answer, 0, len(answer), self._head.version)[1]


def _is_quota_ours(entity: quotas.Entity, key: str) -> bool:
    """Also with a unit that doesn't exist: the broker would say less about it. Quotas of addresses are the broker's."""
    return re.split("[.:]", key, maxsplit=1)[0] in UNITS and all(part.entity_type != quotas.IP for part in entity)


def _for_broker(op: quotas.Operation) -> quotas.Operation | None:
    """Who removes a key that brokers know means theirs as well: it may be the only one there is."""
    try:
        key = QuotaKey.parse(op.key)
    except QuotaError:
        return None
    return quotas.Operation(key.type, 0.0, True) if op.remove and key.wire == key.type else None


# --- steps that they share --------------------------------------------------------------------------------------------


def _places(keys: Iterable[Any]) -> dict[Any, int]:
    """Where each key is for the first time."""
    places: dict[Any, int] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, place)
    return places


def _half(row: Any, changed: bool) -> Any:
    """The broker's result; where it is an error, with what is done nevertheless."""
    if row.error_code == api.NONE or not changed:
        return row
    return row._replace(error_message=f"{row.error_message or api.ERROR_NAMES.get(row.error_code, '')} ({_HALF})")
