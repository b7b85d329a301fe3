# One admin request with keys of ours in it, as kafka_admin.py works on it: the question to the broker, the change made
# here, the rest that is left for the broker, and the client's answer. Each kind of request has a module:
# admin_configs.py, admin_topics.py, admin_quotas.py.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from gateway.control.policies.service import NO_PLANS, Altered, Planned
from policies.definitions.policy_records import Source
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    Held,
    Op,
    PolicyKey,
)
from policies.quotas import store as client_quotas
from policies.quotas.names import QuotaKey
from protocol import api

_HALF: Final = "produce-gateway's own keys are changed already"


class Policies(Protocol):
    """The part of gateway.control.policies.service.PolicyService used here."""

    @property
    def policies(self) -> PolicySet: ...

    async def alter(
        self, ops: Sequence[Op], source: Source, *, validate_only: bool = False, planned: Planned = NO_PLANS
    ) -> Altered: ...

    async def fitting(self, ops: Sequence[Op], *, planned: Planned = NO_PLANS) -> list[str | None]: ...

    async def take_back(self, before: Mapping[PolicyKey, Held], made: Sequence[Op], source: Source) -> Altered: ...

    async def remove_topics(self, deleted: Mapping[str, Held], source: Source) -> None: ...

    async def alter_quotas(
        self,
        alterations: Sequence[client_quotas.Alteration],
        source: Source,
        *,
        validate_only: bool = False,
        lost: Sequence[Sequence[QuotaKey]] = (),
    ) -> Altered: ...


class Result(NamedTuple):
    """The result of the resource that is at `place` in the request."""

    place: int
    code: int
    message: str | None


class Memo(msgspec.Struct, array_like=True):
    """The state of a request between two questions about it."""

    stage: Literal["describe", "probe", "rest", "delete"]
    own: list[Result] = []
    asked: list[int] = []  # places of the resources that the probe was about
    before: dict[int, Held] = {}  # by place, the run-time value before: of a change that may be taken back, a deletion


encode_memo: Final = msgspec.msgpack.Encoder().encode
decode_memo: Final = msgspec.msgpack.Decoder(Memo).decode


class Describing(ABC):
    """A request to describe something of which we have a part. `request`: the request to the broker."""

    request: bytes

    @abstractmethod
    def merge(self, answer: bytes) -> bytes:
        """The client's frame, from the broker's answer (without size prefix)."""


class Changing(ABC):
    """A request to change something that is ours, or that must be refused because of that.

    Attributes:
        wanted: places of the resources with keys of ours.
        before: the old values of changes that may have to be taken back, see Memo.
    """

    wanted: Mapping[int, Any]
    validate_only: bool

    def __init__(self) -> None:
        self.before: dict[int, Held] = {}

    @abstractmethod
    def refused(self) -> list[Result]:
        """The resources that can be neither ours nor the broker's."""

    @abstractmethod
    def probe(self) -> bytes:
        """The frame that asks the broker whether this may be."""

    @abstractmethod
    def denied(self, answer: bytes, asked: Sequence[int]) -> list[Result]:
        """The broker's denials."""

    @abstractmethod
    async def change(self, policies: Policies, allowed: Sequence[int], source: Source) -> list[Result]:
        """Change our part of these resources, or only see whether it could be changed; the result of each.

        Raises:
            StoreError: nothing was changed.
        """

    async def give_up(self, policies: Policies, source: Source) -> None:  # noqa: B027  (most leave it)
        """The rest can't be sent any more: take back the changes that must not stay without it."""

    async def settle(self, policies: Policies, answer: bytes, before: Mapping[int, Held], source: Source) -> bytes:
        """The broker's answer to the rest is here: take back the changes that must not stay; the answer, with a note of
        that.
        """
        return answer

    @abstractmethod
    def rest(self, own: Iterable[Result]) -> bytes:
        """The frame with the changes for the broker; b"": nothing is left, given these results."""

    @abstractmethod
    def merge(self, answer: bytes, own: Iterable[Result]) -> bytes:
        """The client's frame, from the broker's answer to the rest (b"": it was sent none) and our results."""


class Unfit(Exception):
    """A value that is impossible beside any others."""


def places(keys: Iterable[Any]) -> dict[Any, int]:
    """The first place of each key."""
    places: dict[Any, int] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, place)
    return places


def half(row: Any, changed: bool) -> Any:
    """The broker's result; where it is an error, with a note of the changes made nevertheless."""
    if row.error_code == api.NONE or not changed:
        return row
    return row._replace(error_message=f"{row.error_message or api.ERROR_NAMES.get(row.error_code, '')} ({_HALF})")
