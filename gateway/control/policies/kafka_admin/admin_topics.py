# Topics that are created with a threshold.

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gateway.control.policies.kafka_admin.admin_configs import (
    alter_each,
    config_op,
    is_config_ours,
)
from gateway.control.policies.kafka_admin.admin_requests import (
    ChangingRequest,
    ResourceResult,
    UnfitValue,
    first_places,
)
from gateway.control.policies.service import PolicyService
from gateway.control.policies.store import StoreError
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_values import (
    PolicyError,
    PolicyOperation,
    RuntimeValue,
)
from policies.text import one_line
from policies.thresholds.values import TOPIC_KEY
from protocol import api, wire
from protocol.admin import configs, topics
from protocol.admin.configs import TOPIC

log = logging.getLogger("gateway.policy")

# After these a topic isn't there by this request. After all others (REQUEST_TIMED_OUT, NOT_CONTROLLER, …) it may be.
_NOT_CREATED: Final = frozenset(
    api.ERROR_CODES[name]
    for name in (
        "INVALID_TOPIC_EXCEPTION", "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION",
        "TOPIC_ALREADY_EXISTS", "INVALID_PARTITIONS", "INVALID_REPLICATION_FACTOR", "INVALID_REPLICA_ASSIGNMENT",
        "INVALID_CONFIG", "INVALID_REQUEST", "POLICY_VIOLATION", "THROTTLING_QUOTA_EXCEEDED",
    )
)  # fmt: skip


class CreatingTopics(ChangingRequest):
    """The placement of partitions is not known before, unless the request gives it: so a threshold has to fit on every
    broker that may get one.
    """

    resource_word = "topic"

    def __init__(self, request: bytes) -> None:
        super().__init__(topics.CREATE_TOPICS, request)
        self._split = topics.split_topics(self._head.body, _is_topics_ours)
        self._places = first_places(topic.name for topic in self._head.body.topics)
        self.wanted = {self._places[topic.name]: topic for topic in self._split.ours}

    def refused_results(self) -> list[ResourceResult]:
        return [
            ResourceResult(self._places[row.name], row.error_code, row.error_message) for row in self._split.refused
        ]

    def encode_probe(self) -> bytes:
        body = self._head.body
        theirs = tuple(topics.without_ours(body.topics[place], _is_topics_ours) for place in self.wanted)
        return self._encode_request(body._replace(topics=theirs, validate_only=True))

    def key_at(self, place: int) -> str:
        name: str = self._head.body.topics[place].name
        return name

    def rows_by_key(self, response: topics.CreateTopicsResponse) -> Mapping[str, topics.CreateTopicsResult]:
        return {row.name: row for row in response.topics}

    async def apply_change(
        self, policies: PolicyService, allowed: Sequence[int], source: ChangeSource
    ) -> list[ResourceResult]:
        ops: dict[int, list[PolicyOperation]] = {}
        results: list[ResourceResult] = []
        for place in allowed:
            try:
                ops[place] = self._make_ops(place)
            except UnfitValue as error:
                results.append(ResourceResult(place, api.ERROR_CODES["INVALID_CONFIG"], str(error)))
        planned: dict[str, frozenset[int] | None] = {}
        for place in ops:
            name, _, _, assignments, _ = self.wanted[place]
            leads = frozenset(broker_id for each in assignments for broker_id in each.broker_ids[:1])
            planned[name] = leads or None
        now = policies.policies
        before = {place: now.runtime_value(op.key) for place, (op,) in ops.items()}
        if not self.validate_only:
            self.before = before
        changed = await alter_each(policies, ops, source, self.validate_only, planned)
        made = {place for place, code, _ in changed if code == api.NONE}
        self.before = {place: held for place, held in self.before.items() if place in made}
        return results + changed

    def _make_ops(self, place: int) -> list[PolicyOperation]:
        name, _, _, _, own = self.wanted[place]
        return [config_op(TOPIC, name, key, configs.SET, value) for key, value in own]

    async def revert_changes(self, policies: PolicyService, source: ChangeSource) -> None:
        try:
            await self._revert_thresholds(policies, self.before, source)
        except (StoreError, PolicyError) as error:
            names = ", ".join(one_line(self.wanted[place].name) for place in self.before)
            log.warning("topics that were not created keep their %s, as that can't be taken back: %s: %s",
                        TOPIC_KEY, names, one_line(str(error)))  # fmt: skip

    async def _revert_thresholds(
        self, policies: PolicyService, before: Mapping[int, RuntimeValue], source: ChangeSource
    ) -> None:
        made = {place: self._make_ops(place) for place in before}
        undo = {op.key: before[place] for place, (op,) in made.items()}
        await policies.revert_changes(undo, [op for ops in made.values() for op in ops], source)

    async def settle_response(
        self, policies: PolicyService, answer: bytes, before: Mapping[int, RuntimeValue], source: ChangeSource
    ) -> bytes:
        response = self._decode_response(answer)
        codes = {row.name: row.error_code for row in response.topics}
        failed = {
            place: codes.get(self.wanted[place].name, api.ERROR_CODES["UNKNOWN_SERVER_ERROR"]) for place in before
        }
        gone = [place for place, code in failed.items() if code in _NOT_CREATED]
        unsure = {self.wanted[place].name for place, code in failed.items() if code and code not in _NOT_CREATED}
        notes = dict.fromkeys(unsure, f"produce-gateway keeps its {TOPIC_KEY}: the topic may have been created")
        try:
            if gone:
                await self._revert_thresholds(policies, {place: before[place] for place in gone}, source)
        except (StoreError, PolicyError) as error:
            text = f"produce-gateway keeps its {TOPIC_KEY} nevertheless, since that can't be taken back: {error}"
            notes.update({self.wanted[place].name: text for place in gone})
        if not notes:
            return answer
        rows = tuple(
            row._replace(error_message=f"{row.error_message or api.ERROR_NAMES.get(row.error_code, '')} ({note})")
            if (note := notes.get(row.name))
            else row
            for row in response.topics
        )
        return self._encode_response(response._replace(topics=rows))[wire.INT32.size :]

    def encode_rest(self, own: Iterable[ResourceResult]) -> bytes:
        failed = {self.key_at(place) for place, code, _ in own if code != api.NONE}
        rest = self._split.rest and topics.without_topics(self._split.rest, failed)
        return self._encode_request(rest) if rest else b""

    def merge_response(self, answer: bytes, own: Iterable[ResourceResult]) -> bytes:
        failed = [topics.topic_result(self.key_at(place), code, text) for place, code, text in own if code != api.NONE]
        response = self._decode_response(answer) if answer else None
        return self._encode_response(topics.merge_created(self._head.body, response, failed, self._created_configs))

    def _created_configs(self, name: str) -> tuple[topics.CreatedConfig, ...]:
        own = self.wanted.get(self._places[name])
        return tuple(
            topics.CreatedConfig(key, (value or "").strip(), False, configs.DYNAMIC_TOPIC_CONFIG, False)
            for key, value in (own.configs if own is not None else ())
        )


def _is_topics_ours(key: str) -> bool:
    return is_config_ours(TOPIC, "", key)
