# Client quotas, described and altered by Kafka's own APIs for them.

from __future__ import annotations

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
from gateway.control.policies.service import PolicyService
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    PolicyKey,
)
from policies.definitions.rollout import ALL_CLIENTS
from policies.quotas import filter as quota_filter
from policies.quotas import store as client_quotas
from policies.quotas.names import UNITS, Entity, QuotaError, QuotaKey
from policies.quotas.text import entity_text
from policies.units import LAST_TIME_MS
from protocol import api, wire
from protocol.admin import quotas
from protocol.admin.quotas import AlterClientQuotasResult, EntityData, EntityQuotas, QuotaValue

_OF_ADDRESS: Final = (
    "not set: brokers see the gateway's address in place of its clients', so this would hold for none of them, and the"
    " default for all of them together; at the gateway, limits.max_connections_per_address bounds connections; for"
    " clients that connect to brokers themselves, set it at a broker's port"
)


class DescribingQuotas(DescribingRequest):
    def __init__(self, request: bytes, policies: PolicySet, percent: float) -> None:
        spoken = quotas.DESCRIBE_CLIENT_QUOTAS
        self._head = head = spoken.decode_request(request, 0, len(request))
        body = quotas.without_apart(head.body)
        self.is_apart = body is not None
        self.request = request
        if body is None:
            body = head.body
        else:
            framed = spoken.encode_request(body, head.version, head.correlation_id, head.client_id)
            self.request = framed[wire.INT32.size :]
        components = [quota_filter.Component(*component) for component in body.components]
        try:
            found = policies.quota_store().describe_quotas(components, body.strict)
        except QuotaError:
            found = ()  # the broker names the fault of the filter
        self.found = tuple(
            EntityQuotas(
                tuple(EntityData(*pair) for pair in entity.wire_pairs),
                (
                    *(QuotaValue(key.wire_name, value) for key, value in values.items()),
                    *(self._end_values(policies, entity, values) if self.is_apart else ()),
                    *((QuotaValue(quotas.ENFORCED_KEY, percent),) if self.is_apart and percent < ALL_CLIENTS else ()),
                ),
            )
            for entity, values in found
        )

    @staticmethod
    def _end_values(policies: PolicySet, entity: Entity, values: Iterable[QuotaKey]) -> Iterable[QuotaValue]:
        for key in values:
            if (end := policies.ends.get(PolicyKey.of_quota(entity, key))) is not None:
                yield QuotaValue(key.wire_name + quotas.END_SUFFIX, float(end.until_ms))

    def merge_response(self, answer: bytes) -> bytes:
        spoken, head = quotas.DESCRIBE_CLIENT_QUOTAS, self._head
        _, response = spoken.decode_response(answer, 0, len(answer), head.version)
        merged = quotas.merge_described(response, self.found, _is_quota_ours if self.is_apart else None)
        return spoken.encode_response(merged, head.version, head.correlation_id)


class ChangingQuotas(ChangingRequest):
    resource_word = "entity"

    def __init__(self, request: bytes, percent: float) -> None:
        super().__init__(quotas.ALTER_CLIENT_QUOTAS, request)
        self._split = quotas.split_alterations(self._head.body, _is_quota_ours, _removal_for_broker)
        self._places = first_places(quotas.entity_key(entity) for entity, _ in self._head.body.entries)
        self.wanted = {self._places[quotas.entity_key(each.entity)]: each for each in self._split.ours}
        self._unsafe = (
            []
            if percent >= ALL_CLIENTS
            else [
                place
                for place, each in self.wanted.items()
                if any(op.key.endswith(quotas.UPSTREAM_SUFFIX) for op in each.ops)
            ]
        )
        for place in self._unsafe:
            del self.wanted[place]
        self._percent = percent
        self._of_addresses = [
            place
            for place, each in enumerate(self._head.body.entries)
            if _is_of_address(each.entity) and _sets_value(each)
        ]

    def refused_results(self) -> list[ResourceResult]:
        """Refuses also the removal of quotas that only brokers enforce, since nothing would enforce them then; and
        quotas of addresses, which brokers would enforce for other clients than intended.
        """
        text = (
            f"the gateway enforces client quotas for {self._percent:g}% of the clients only, so the brokers' stay: set"
            " mode and client_quotas_mode to enforce and client_quotas_enforce_percent to 100 first"
        )
        return [
            *(ResourceResult(self._places[quotas.entity_key(row.entity)], *row[:2]) for row in self._split.refused),
            *(ResourceResult(place, api.ERROR_CODES["POLICY_VIOLATION"], text) for place in self._unsafe),
            *(ResourceResult(place, api.ERROR_CODES["POLICY_VIOLATION"], _OF_ADDRESS) for place in self._of_addresses),
        ]

    def encode_probe(self) -> bytes:
        entries = self._head.body.entries
        theirs = tuple(
            entry._replace(ops=quotas.ops_for_broker(entry, _is_quota_ours, _removal_for_broker))
            for entry in (entries[place] for place in self.wanted)
        )
        return self._encode_request(quotas.AlterClientQuotasRequest(theirs, True))

    def key_at(self, place: int) -> Any:
        return quotas.entity_key(self._head.body.entries[place].entity)

    def rows_by_key(self, response: quotas.AlterClientQuotasResponse) -> Mapping[Any, AlterClientQuotasResult]:
        return {quotas.entity_key(row.entity): row for row in response.entries}

    async def apply_change(
        self, policies: PolicyService, allowed: Sequence[int], source: ChangeSource
    ) -> list[ResourceResult]:
        alterations: dict[int, client_quotas.Alteration] = {}
        results: list[ResourceResult] = []
        for place in allowed:
            try:
                alterations[place] = self._make_alteration(place)
            except UnfitValue as error:
                results.append(ResourceResult(place, api.ERROR_CODES["INVALID_REQUEST"], str(error)))
        lost = [
            [
                QuotaKey.parse(theirs.key)
                for op in self.wanted[place].ops
                if (theirs := _removal_for_broker(op)) is not None
            ]
            for place in alterations
        ]
        altered = await policies.alter_quotas(
            list(alterations.values()), source, validate_only=self.validate_only, lost=lost
        )
        return results + [
            ResourceResult(place, api.NONE, "; ".join(filter(None, (note, self._moved_note(place, policies)))) or None)
            if e is None
            else ResourceResult(place, api.ERROR_CODES[e.error], str(e))
            for place, e, note in zip(alterations, altered.errors, altered.notes, strict=True)
        ]

    def _moved_note(self, place: int, policies: PolicyService) -> str:
        """A warning where brokers lose quotas of a user that may be another one here: nothing would limit that one."""
        entity, ops = self.wanted[place]
        is_moved = any(op.remove and op.key.endswith(quotas.UPSTREAM_SUFFIX) for op in ops)
        if not (is_moved and policies.other_names and quotas.USER in [part.entity_type for part in entity]):
            return ""
        text = entity_text(Entity.from_pairs(entity))
        return f"the brokers' quotas of {text} may be for other clients than the gateway's: {policies.other_names}"

    def _make_alteration(self, place: int) -> client_quotas.Alteration:
        entity, ops = self.wanted[place]
        kept = [
            client_quotas.Op(op.key, None if op.remove else op.value)
            for op in ops
            if op.key != quotas.UNTIL_KEY and not (op.remove and op.key.endswith(quotas.UPSTREAM_SUFFIX))
        ]
        until = next((op for op in ops if op.key == quotas.UNTIL_KEY), None)
        if until is None:
            return client_quotas.Alteration(entity, kept)
        if until.remove or not 0 <= until.value <= LAST_TIME_MS:  # NaN is not
            raise UnfitValue(f"{quotas.UNTIL_KEY} needs a time: Unix time in milliseconds")
        if not kept or len(ops) < len(self._head.body.entries[place].ops):
            raise UnfitValue(
                "Only quotas of the gateway have an end: set others in a request of their own, without one."
            )
        return client_quotas.Alteration(entity, kept, round(until.value))

    def encode_rest(self, own: Iterable[ResourceResult]) -> bytes:
        failed = [self._head.body.entries[place].entity for place, code, _ in own if code != api.NONE]
        rest = self._split.rest and quotas.without_entities(self._split.rest, failed)
        return self._encode_request(rest) if rest else b""

    def merge_response(self, answer: bytes, own: Iterable[ResourceResult]) -> bytes:
        head = self._head
        rows = [AlterClientQuotasResult(code, text, head.body.entries[place].entity) for place, code, text in own]
        response = self._decode_response(answer) if answer else None
        if response is not None:
            done = {quotas.entity_key(row.entity) for row in rows if row.error_code == api.NONE}
            response = response._replace(
                entries=tuple(mark_half_changed(row, quotas.entity_key(row.entity) in done) for row in response.entries)
            )
        return self._encode_response(quotas.merge_altered(head.body, response, rows))


def _is_quota_ours(entity: quotas.Entity, key: str) -> bool:
    """Also with a unit that doesn't exist: the broker would say less about it. Quotas of addresses are the broker's."""
    is_ours = key.replace(":", ".").partition(".")[0] in UNITS or key == quotas.UNTIL_KEY
    return is_ours and not _is_of_address(entity)


def _is_of_address(entity: quotas.Entity) -> bool:
    return quotas.IP in [part.entity_type for part in entity]


def _sets_value(alteration: quotas.EntityAlteration) -> bool:
    """Whether the alteration not only removes: quotas that brokers already have may be removed."""
    return not all(op.remove for op in alteration.ops)


def _removal_for_broker(op: quotas.QuotaOperation) -> quotas.QuotaOperation | None:
    """The removal of a key that brokers know applies to theirs as well: it may be the only one. With
    UPSTREAM_SUFFIX behind the key, it applies to theirs alone.
    """
    try:
        key = QuotaKey.parse(op.key.removesuffix(quotas.UPSTREAM_SUFFIX))
    except QuotaError:
        return None
    return quotas.QuotaOperation(key.type, 0.0, True) if op.remove and key.wire_name == key.type else None
