# Thresholds as configs of topics and brokers: described, and changed by both of Kafka's APIs.

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gateway.control.policies.kafka_admin.admin_requests import (
    ChangingRequest,
    DescribingRequest,
    ResourceResult,
    UnfitValue,
    first_places,
    mark_half_changed,
)
from gateway.control.policies.service import NO_PLANS, Planned, PolicyService
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    InvalidPolicy,
    PolicyError,
    PolicyKey,
    PolicyOperation,
    as_number,
    check_value,
)
from policies.thresholds.sums import EVERY_BROKER
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY, TOTAL_OUT_KEY
from protocol import api, wire
from protocol.admin import configs
from protocol.admin.configs import BROKER, TOPIC, AlterConfigsResult, ConfigSynonym, DescribedConfig

# Resources of which also those without a value of ours get a row: kafka-python sets no key that it doesn't see. With
# more of them, as consoles ask every minute, it isn't worth decoding all that the broker said.
FEW_RESOURCES: Final = 50

_OWN_KEYS: Final = (TOPIC_KEY, TOTAL_KEY, TOTAL_OUT_KEY)
KEYS_OF: Final = {TOPIC: (TOPIC_KEY,), BROKER: (TOTAL_KEY, TOTAL_OUT_KEY)}
_LONG: Final = re.compile(r"[+-]?[0-9]{1,19}")
_LARGEST_LONG: Final = 2**63 - 1
_DOCUMENTATION: Final = {
    TOPIC_KEY: "Bytes per second that producers may write into this topic on each broker, enforced by produce-gateway."
    f" Topics without one share evenly the rest of the broker's {TOTAL_KEY}. A topic is over its"
    " threshold only while its broker is over the total.",
    TOTAL_KEY: "Bytes per second that producers may write to this broker, enforced by produce-gateway: no topic is held"
    f" to its {TOPIC_KEY} before this is exceeded. These must not exceed it together.",
    TOTAL_OUT_KEY: "Bytes per second of this broker that consumers with a quota of consumer_byte_rate.shares"
    " have shares of,"
    " enforced by produce-gateway.",
}


class DescribingConfigs(DescribingRequest):
    def __init__(self, request: bytes, policies: PolicySet) -> None:
        self._head = configs.DESCRIBE_CONFIGS.decode_request(request, 0, len(request))
        self.request = request
        self._policies = policies
        self._unset = len(self._head.body.resources) <= FEW_RESOURCES
        self.is_concerned = any(
            resource.requests_key(config.name)
            for resource in self._head.body.resources
            for config in self._own_configs(*resource[:2])
        )

    def _own_configs(self, kind: int, name: str) -> tuple[DescribedConfig, ...]:
        return own_config_rows(self._policies, kind, name, unset=self._unset)

    def merge_response(self, answer: bytes) -> bytes:
        spoken, head = configs.DESCRIBE_CONFIGS, self._head
        _, response = spoken.decode_response(answer, 0, len(answer), head.version)
        merged = configs.merge_described(head.body, response, self._own_configs)
        return spoken.encode_response(merged, head.version, head.correlation_id)


def own_config_rows(policies: PolicySet, kind: int, name: str, *, unset: bool) -> tuple[DescribedConfig, ...]:
    """The gateway's rows of a config resource: all values that are set, the one in force first. `unset`: also a row
    without any, null, as Kafka has one for each LONG without a default.
    """
    rows = (_own_config_row(policies, kind, name, key, unset) for key in KEYS_OF.get(kind, ()))
    return tuple(row for row in rows if row is not None)


def _own_config_row(policies: PolicySet, kind: int, name: str, key: str, unset: bool) -> DescribedConfig | None:
    if kind == TOPIC:
        places = [(PolicyKey.of_topic(name), configs.DYNAMIC_TOPIC_CONFIG)]
    else:
        places = [(PolicyKey("broker", name, key), configs.DYNAMIC_BROKER_CONFIG)] if name else []
        places.append((PolicyKey("broker", EVERY_BROKER, key), configs.DYNAMIC_DEFAULT_BROKER_CONFIG))
    synonyms = [
        ConfigSynonym(key, _long_text(as_number(values[place])), source)
        for place, dynamic in places
        for values, source in ((policies.changes, dynamic), (policies.base, configs.STATIC_BROKER_CONFIG))
        if place in values
    ]
    if not synonyms and not unset:
        return None
    _, value, source = synonyms[0] if synonyms else ConfigSynonym(key, None, configs.DEFAULT_CONFIG)
    return DescribedConfig(key, value, False, source, False, tuple(synonyms), configs.LONG, _DOCUMENTATION[key])


def _long_text(value: float) -> str:
    """As Kafka's LONG, which tools read and write back: over REST it may be a fraction, and the float of the largest
    LONG is one more.
    """
    return str(min(math.ceil(value), _LARGEST_LONG))


class ChangingConfigs(ChangingRequest):
    resource_word = "resource"

    def __init__(self, request: bytes, policies: PolicySet) -> None:
        self._split: configs.ConfigSplit[Any]
        self._is_replacing = wire.read_int16(request, 0, len(request))[0] == api.ALTER_CONFIGS
        if self._is_replacing:
            super().__init__(configs.ALTER_CONFIGS, request)
            self._split = configs.split_replacing(
                self._head.body, is_config_ours, lambda *key: _runtime_keys(policies, *key)
            )
        else:
            super().__init__(configs.INCREMENTAL_ALTER_CONFIGS, request)
            self._split = configs.split_incremental(self._head.body, is_config_ours)
        self._places = first_places(resource[:2] for resource in self._head.body.resources)
        self.wanted = {self._places[resource[:2]]: resource for resource in self._split.ours}

    def refused_results(self) -> list[ResourceResult]:
        return [ResourceResult(self._places[row[2:]], *row[:2]) for row in self._split.refused]

    def encode_probe(self) -> bytes:
        resources = self._head.body.resources
        theirs = tuple(
            resource._replace(configs=tuple(row for row in resource.configs if row.name not in _OWN_KEYS))
            for resource in (resources[place] for place in self.wanted)
        )
        return self._encode_request(self._head.body._replace(resources=theirs, validate_only=True))

    def key_at(self, place: int) -> Any:
        return self._head.body.resources[place][:2]

    def rows_by_key(self, response: configs.AlterConfigsResponse) -> Mapping[Any, AlterConfigsResult]:
        return {row[2:]: row for row in response.responses}

    async def apply_change(
        self, policies: PolicyService, allowed: Sequence[int], source: ChangeSource
    ) -> list[ResourceResult]:
        ops: dict[int, list[PolicyOperation]] = {}
        results: list[ResourceResult] = []
        # A client that replaces all configs repeats the values that it has read: one with an end must keep its end.
        now = policies.policies
        ending = [key for key in now.ends if self._is_replacing and key.kind in ("topic", "broker")]
        kept = {key: _long_text(as_number(now.changes[key])) for key in ending}
        for place in allowed:
            resource = self.wanted[place]
            try:
                found = [config_op(*resource[:2], *row) for row in resource.configs]
                ops[place] = [
                    op for op in found if op.value is None or kept.get(op.key) != _long_text(as_number(op.value))
                ]
            except UnfitValue as error:
                results.append(ResourceResult(place, api.ERROR_CODES["INVALID_CONFIG"], str(error)))
        return results + await alter_each(policies, ops, source, self.validate_only)

    def encode_rest(self, own: Iterable[ResourceResult]) -> bytes:
        failed = {self.key_at(place) for place, code, _ in own if code != api.NONE}
        rest = self._split.rest and configs.without_resources(self._split.rest, failed)
        return self._encode_request(rest) if rest else b""

    def merge_response(self, answer: bytes, own: Iterable[ResourceResult]) -> bytes:
        rows = [AlterConfigsResult(code, text, *self.key_at(place)) for place, code, text in own]
        response = self._decode_response(answer) if answer else None
        if response is not None:
            done = {row[2:] for row in rows if row.error_code == api.NONE}
            response = response._replace(
                responses=tuple(mark_half_changed(row, row[2:] in done) for row in response.responses)
            )
        merged = configs.merge_altered(self._head.body, response, rows)
        return self._encode_response(merged)


def _join_ops(ops: Iterable[list[PolicyOperation]]) -> list[PolicyOperation]:
    return [op for each in ops for op in each]


async def alter_each(
    policies: PolicyService,
    ops: dict[int, list[PolicyOperation]],
    source: ChangeSource,
    validate_only: bool,
    planned: Planned = NO_PLANS,
) -> list[ResourceResult]:
    """Change those that fit together; the result of each."""
    results: list[ResourceResult] = []
    failed = await _try_alter(policies, ops, source, validate_only, planned)
    if failed is not None:
        ops, results = await _split_fitting(policies, ops, planned)
        failed = await _try_alter(policies, ops, source, validate_only, planned)
    if failed is not None:  # another change came between
        return results + [_policy_violation(place, str(failed)) for place in ops]
    return results + [ResourceResult(place, api.NONE, None) for place in ops]


async def _try_alter(
    policies: PolicyService,
    ops: Mapping[int, list[PolicyOperation]],
    source: ChangeSource,
    validate_only: bool,
    planned: Planned,
) -> PolicyError | None:
    if ops:
        try:
            await policies.alter_policies(_join_ops(ops.values()), source, validate_only=validate_only, planned=planned)
        except PolicyError as error:
            return error
    return None


async def _split_fitting(
    policies: PolicyService, ops: Mapping[int, list[PolicyOperation]], planned: Planned
) -> tuple[dict[int, list[PolicyOperation]], list[ResourceResult]]:
    """Those that fit together, in the order of the request, and the faults of the others."""
    errors = iter(await policies.find_misfits(_join_ops(ops.values()), planned=planned))
    fit: dict[int, list[PolicyOperation]] = {}
    results = []
    for place, own in ops.items():
        wrong = [error for error in itertools.islice(errors, len(own)) if error is not None]
        if wrong:
            results.append(_policy_violation(place, "; ".join(wrong)))
        else:
            fit[place] = own
    return fit, results


def _policy_violation(place: int, text: str) -> ResourceResult:
    """A value that is valid, but does not fit the others."""
    return ResourceResult(place, api.ERROR_CODES["POLICY_VIOLATION"], text)


def is_config_ours(kind: int, _name: str, key: str) -> bool:
    return (
        kind in KEYS_OF and key in _OWN_KEYS
    )  # all of both: brokers take any key, and a topic's would do nothing there


def _runtime_keys(policies: PolicySet, kind: int, name: str) -> tuple[str, ...]:
    """Keys that are set at run time: those of the configuration file can't be removed."""
    return tuple(key for key in KEYS_OF.get(kind, ()) if _policy_key(kind, name, key) in policies.changes)


def _policy_key(kind: int, name: str, key: str) -> PolicyKey:
    return PolicyKey("topic" if kind == TOPIC else "broker", name, key)


def config_op(kind: int, name: str, key: str, operation: int, value: str | None) -> PolicyOperation:
    if key not in KEYS_OF[kind]:
        here, there = ("topics", "brokers") if kind == TOPIC else ("brokers", "topics")
        raise UnfitValue(f"{key} is a config of {there}: for {here} there is {' and '.join(KEYS_OF[kind])}")
    policy = _policy_key(kind, name, key)
    if operation == configs.DELETE:
        return PolicyOperation(policy, None)
    text = (value or "").strip()
    if not _LONG.fullmatch(text):
        raise UnfitValue(f"Invalid value {value} for configuration {key}: not a number of type LONG (bytes per second)")
    try:
        return PolicyOperation(policy, check_value(policy, float(text)))
    except InvalidPolicy as error:
        raise UnfitValue(str(error)) from error
