# One admin request with keys of ours in it, as admin_service.py works on it: the question to the broker, the change
# made here, the rest that is left for the broker, and the client's answer. Each kind of request has a module:
# admin_configs.py, admin_topics.py, admin_quotas.py.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from gateway.control.policies.service import PolicyService
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_values import (
    RuntimeValue,
)
from protocol import api
from protocol.message_codec import ApiCodec

_HALF_CHANGED: Final = "produce-gateway's own keys are changed already"


class ResourceResult(NamedTuple):
    """The result of the resource at `place` in the request."""

    place: int
    code: int
    message: str | None


class RequestMemo(msgspec.Struct, array_like=True):
    """The state of a request between two of its queries."""

    stage: Literal["describe", "probe", "rest", "delete"]
    own: list[ResourceResult] = []
    probed: list[int] = []  # places of the resources that the probe was about
    before: dict[
        int, RuntimeValue
    ] = {}  # by place, the run-time value before: of a change that may be taken back, a deletion


encode_memo: Final = msgspec.msgpack.Encoder().encode
decode_memo: Final = msgspec.msgpack.Decoder(RequestMemo).decode


class DescribingRequest(ABC):
    """A request to describe something of which the gateway has a part. `request`: the request to the broker."""

    request: bytes

    @abstractmethod
    def merge_response(self, answer: bytes) -> bytes:
        """The client's frame, from the broker's response (without size prefix)."""


class ChangingRequest(ABC):
    """A request to change something that is ours, or that must be refused because of that.

    Attributes:
        wanted: places of the resources with keys of ours.
        resource_word: for a text.
        before: the old values of changes that may have to be taken back, see RequestMemo.
    """

    wanted: Mapping[int, Any]
    resource_word: str

    def __init__(self, codec: ApiCodec[Any, Any], request: bytes) -> None:
        self._codec = codec
        self._head = codec.decode_request(request, 0, len(request))
        self.validate_only: bool = self._head.body.validate_only
        self.before: dict[int, RuntimeValue] = {}

    @abstractmethod
    def refused_results(self) -> list[ResourceResult]:
        """The resources that are neither valid for the gateway nor for the broker."""

    @abstractmethod
    def encode_probe(self) -> bytes:
        """The frame that asks the broker whether the client may make this change."""

    @abstractmethod
    def key_at(self, place: int) -> Any:
        """What names the resource at that place."""

    @abstractmethod
    def rows_by_key(self, response: Any) -> Mapping[Any, Any]:
        """The rows of the broker's response, by what `key_at` gives."""

    def read_denials(self, answer: bytes, asked: Sequence[int]) -> list[ResourceResult]:
        """The broker's denials."""
        rows = self.rows_by_key(self._decode_response(answer))
        results = []
        for place in asked:
            row = rows.get(self.key_at(place))
            if row is None:
                results.append(ResourceResult(place, -1, f"The broker gave no result for this {self.resource_word}."))
            elif row.error_code != api.NONE:
                results.append(ResourceResult(place, row.error_code, row.error_message))
        return results

    @abstractmethod
    async def apply_change(
        self, policies: PolicyService, allowed: Sequence[int], source: ChangeSource
    ) -> list[ResourceResult]:
        """Change the gateway's part of these resources, or only check whether it could be changed; the result of each.

        Raises:
            StoreError: nothing was changed.
        """

    async def revert_changes(self, policies: PolicyService, source: ChangeSource) -> None:  # noqa: B027  (most leave it)
        """The rest can't be sent any more: revert the changes that must not stay without it."""

    async def settle_response(
        self, policies: PolicyService, answer: bytes, before: Mapping[int, RuntimeValue], source: ChangeSource
    ) -> bytes:
        """The broker's response to the rest: revert the changes that must not stay. Returns the response, with a note
        of that.
        """
        return answer

    @abstractmethod
    def encode_rest(self, own: Iterable[ResourceResult]) -> bytes:
        """The frame with the changes for the broker; b"": these results leave nothing for it."""

    @abstractmethod
    def merge_response(self, answer: bytes, own: Iterable[ResourceResult]) -> bytes:
        """The client's frame, from the broker's response to the rest (b"": it got none) and the gateway's results."""

    def _encode_request(self, body: Any) -> bytes:
        head = self._head
        return self._codec.encode_request(body, head.version, head.correlation_id, head.client_id)

    def _decode_response(self, answer: bytes) -> Any:
        return self._codec.decode_response(answer, 0, len(answer), self._head.version)[1]

    def _encode_response(self, response: Any) -> bytes:
        return self._codec.encode_response(response, self._head.version, self._head.correlation_id)


class UnfitValue(Exception):
    """A value that does not fit the others."""


def first_places(keys: Iterable[Any]) -> dict[Any, int]:
    """The first place of each key."""
    places: dict[Any, int] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, place)
    return places


def mark_half_changed(row: Any, changed: bool) -> Any:
    """The broker's result; if it is an error, with a note of the changes that were made nevertheless."""
    if row.error_code == api.NONE or not changed:
        return row
    return row._replace(
        error_message=f"{row.error_message or api.ERROR_NAMES.get(row.error_code, '')} ({_HALF_CHANGED})"
    )
