# Client quotas, described and altered by Kafka's own APIs for them.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.control.policies.admin_requests import (
    Changing,
    Describing,
    Policies,
    Result,
    Unfit,
    half,
    places,
)
from policies.definitions.policy_records import Source
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    PolicyKey,
)
from policies.definitions.rollout import EVERYBODY
from policies.quotas import filter as quota_filter
from policies.quotas import store as client_quotas
from policies.quotas.names import UNITS, Entity, QuotaError, QuotaKey
from policies.units import LAST_TIME_MS
from protocol import api, quotas, wire
from protocol.quotas import AlterClientQuotasResult, EntityPart, Entry, Value

_OF_ADDRESS: Final = (
    "not set: brokers see the gateway's address in place of its clients', so this would hold for none of them, and the"
    " default for all of them together; at the gateway, limits.max_connections_per_address bounds connections; for"
    " clients that connect to brokers themselves, set it at a broker's port"
)


class DescribingQuotas(Describing):
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
            found = policies.quotas().describe(components, body.strict)
        except QuotaError:
            found = ()  # the broker names the fault of the filter
        self.found = tuple(
            Entry(
                tuple(EntityPart(*pair) for pair in entity.pairs),
                (
                    *(Value(key.wire, value) for key, value in values.items()),
                    *(self._ends(policies, entity, values) if self.is_apart else ()),
                    *((Value(quotas.ENFORCED, percent),) if self.is_apart and percent < EVERYBODY else ()),
                ),
            )
            for entity, values in found
        )

    @staticmethod
    def _ends(policies: PolicySet, entity: Entity, values: Iterable[QuotaKey]) -> Iterable[Value]:
        for key in values:
            if (end := policies.ends.get(PolicyKey.of_quota(entity, key))) is not None:
                yield Value(key.wire + quotas.ENDS, float(end.until_ms))

    def merge(self, answer: bytes) -> bytes:
        spoken, head = quotas.DESCRIBE_CLIENT_QUOTAS, self._head
        _, said = spoken.decode_answer(answer, 0, len(answer), head.version)
        merged = quotas.merge_described(said, self.found, _is_quota_ours if self.is_apart else None)
        return spoken.encode_answer(merged, head.version, head.correlation_id)


class ChangingQuotas(Changing):
    def __init__(self, request: bytes, percent: float) -> None:
        super().__init__()
        self._head = quotas.ALTER_CLIENT_QUOTAS.decode_request(request, 0, len(request))
        self.validate_only = self._head.body.validate_only
        self._split = quotas.split(self._head.body, _is_quota_ours, _for_broker)
        self._places = places(quotas.entity_key(entity) for entity, _ in self._head.body.entries)
        self.wanted = {self._places[quotas.entity_key(each.entity)]: each for each in self._split.ours}
        self._unsafe = (
            []
            if percent >= EVERYBODY
            else [
                place for place, each in self.wanted.items() if any(op.key.endswith(quotas.UPSTREAM) for op in each.ops)
            ]
        )
        for place in self._unsafe:
            del self.wanted[place]
        self._percent = percent
        self._of_addresses = [
            place for place, each in enumerate(self._head.body.entries) if _is_of_address(each.entity) and _sets(each)
        ]

    def refused(self) -> list[Result]:
        """Also what only brokers enforce, where it would be removed there: then nobody would enforce it. And quotas of
        addresses, which brokers enforce for others than is meant.
        """
        text = (
            f"the gateway enforces client quotas for {self._percent:g}% of the clients only, so the brokers' stay: set"
            " mode and client_quotas_mode to enforce and client_quotas_enforce_percent to 100 first"
        )
        return [
            *(Result(self._places[quotas.entity_key(row.entity)], *row[:2]) for row in self._split.refused),
            *(Result(place, api.ERROR_CODES["POLICY_VIOLATION"], text) for place in self._unsafe),
            *(Result(place, api.ERROR_CODES["POLICY_VIOLATION"], _OF_ADDRESS) for place in self._of_addresses),
        ]

    def probe(self) -> bytes:
        entries = self._head.body.entries
        theirs = tuple(
            entry._replace(ops=quotas.ops_for_broker(entry, _is_quota_ours, _for_broker))
            for entry in (entries[place] for place in self.wanted)
        )
        return self._encode(quotas.AlterClientQuotasRequest(theirs, True))

    def denied(self, answer: bytes, asked: Sequence[int]) -> list[Result]:
        said = {quotas.entity_key(row.entity): row for row in self._decode(answer).entries}
        results = []
        for place in asked:
            entity = self._head.body.entries[place].entity
            row = said.get(quotas.entity_key(entity)) or AlterClientQuotasResult(
                -1, "The broker gave no result for this entity.", entity
            )
            if row.error_code != api.NONE:
                results.append(Result(place, *row[:2]))
        return results

    async def change(self, policies: Policies, allowed: Sequence[int], source: Source) -> list[Result]:
        alterations: dict[int, client_quotas.Alteration] = {}
        results: list[Result] = []
        for place in allowed:
            try:
                alterations[place] = self._alteration(place)
            except Unfit as error:
                results.append(Result(place, api.ERROR_CODES["INVALID_REQUEST"], str(error)))
        lost = [
            [QuotaKey.parse(theirs.key) for op in self.wanted[place].ops if (theirs := _for_broker(op)) is not None]
            for place in alterations
        ]
        altered = await policies.alter_quotas(
            list(alterations.values()), source, validate_only=self.validate_only, lost=lost
        )
        return results + [
            Result(place, api.NONE, note or None) if e is None else Result(place, api.ERROR_CODES[e.error], str(e))
            for place, e, note in zip(alterations, altered.errors, altered.notes, strict=True)
        ]

    def _alteration(self, place: int) -> client_quotas.Alteration:
        entity, ops = self.wanted[place]
        kept = [
            client_quotas.Op(op.key, None if op.remove else op.value)
            for op in ops
            if op.key != quotas.UNTIL and not (op.remove and op.key.endswith(quotas.UPSTREAM))
        ]
        until = next((op for op in ops if op.key == quotas.UNTIL), None)
        if until is None:
            return client_quotas.Alteration(entity, kept)
        if until.remove or not 0 <= until.value <= LAST_TIME_MS:  # NaN is not
            raise Unfit(f"{quotas.UNTIL} needs a time: Unix time in milliseconds")
        if not kept or len(ops) < len(self._head.body.entries[place].ops):
            raise Unfit("Only quotas of the gateway have an end: set others in a request of their own, without one.")
        return client_quotas.Alteration(entity, kept, round(until.value))

    def rest(self, own: Iterable[Result]) -> bytes:
        failed = [self._head.body.entries[place].entity for place, code, _ in own if code != api.NONE]
        rest = self._split.rest and quotas.without(self._split.rest, failed)
        return self._encode(rest) if rest else b""

    def merge(self, answer: bytes, own: Iterable[Result]) -> bytes:
        head = self._head
        rows = [AlterClientQuotasResult(code, text, head.body.entries[place].entity) for place, code, text in own]
        said = self._decode(answer) if answer else None
        if said is not None:
            done = {quotas.entity_key(row.entity) for row in rows if row.error_code == api.NONE}
            said = said._replace(
                entries=tuple(half(row, quotas.entity_key(row.entity) in done) for row in said.entries)
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
    is_ours = key.replace(":", ".").partition(".")[0] in UNITS or key == quotas.UNTIL
    return is_ours and not _is_of_address(entity)


def _is_of_address(entity: quotas.Entity) -> bool:
    return quotas.IP in [part.entity_type for part in entity]


def _sets(alteration: quotas.Alteration) -> bool:
    """Not only removes: what the brokers have already may go."""
    return not all(op.remove for op in alteration.ops)


def _for_broker(op: quotas.QuotaOperation) -> quotas.QuotaOperation | None:
    """The removal of a key that brokers know means theirs as well: it may be the only one there is. With UPSTREAM
    behind it, it is theirs alone.
    """
    try:
        key = QuotaKey.parse(op.key.removesuffix(quotas.UPSTREAM))
    except QuotaError:
        return None
    return quotas.QuotaOperation(key.type, 0.0, True) if op.remove and key.wire == key.type else None
