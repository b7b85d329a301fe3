# The entities that DescribeClientQuotas means: one component per entity type, all of which must match. Kafka's three
# ways of matching, and the prefix rule of KIP-546's draft for our own command.
#
# Knows no values. It refuses what Kafka 4.3 refuses, with the same errors (ClientQuotasImage).

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from policies.quotas.names import DEFAULT, ENTITY_TYPES, IP, Entity, QuotaError, unknown_entity_type


class Match(IntEnum):
    """How a component matches names. The numbers of the first three are DescribeClientQuotas' own."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2  # any name, and the default
    PREFIX = 128  # names that begin so; no int8, so it can't come in with the Kafka protocol


class Component(NamedTuple):
    """`match`: the name for EXACT, the prefix for PREFIX, else None."""

    entity_type: str
    match_type: int
    match: str | None = None


class EntityFilter:
    """Components that must all match. `strict`: an entity with a type that no component names does not match."""

    __slots__ = ("_components", "_strict", "_types")

    def __init__(self, components: Sequence[Component], strict: bool) -> None:
        """Without components every entity matches, and with `strict` none.

        Raises:
            QuotaError: a component is not valid.
        """
        self._components = components
        self._strict = strict
        self._types: set[str] = set()
        for component in components:
            _check_component(component)
            if component.entity_type in self._types:
                raise QuotaError(f"entity type {component.entity_type} has two filters: one is enough")
            self._types.add(component.entity_type)
        if IP in self._types and len(self._types) > 1:
            raise QuotaError(f"a filter for {IP} goes with no other: leave it or the others out")

    def matches_entity(self, entity: Entity) -> bool:
        """Whether each component matches."""
        if self._strict and {entity_type for entity_type, _ in entity.typed_names} != self._types:
            return False
        return all(_component_matches(component, entity) for component in self._components)


def _check_component(component: Component) -> None:
    entity_type, match_type, match = component
    if not entity_type:
        raise QuotaError("an empty entity type in a filter")
    if entity_type not in (*ENTITY_TYPES, IP):
        raise unknown_entity_type(entity_type, "UNSUPPORTED_VERSION")
    if match_type not in tuple(Match):
        raise QuotaError(f"unknown match type {match_type} for {entity_type}: 0 exact, 1 default, 2 any specified")
    if (match is not None) != (match_type in (Match.EXACT, Match.PREFIX)):
        wrong = "needs a name" if match is None else f"takes no name, got {match!r}"
        raise QuotaError(f"match type {Match(match_type).name} for {entity_type} {wrong}")


def _component_matches(component: Component, entity: Entity) -> bool:
    if component.entity_type == IP:
        return False  # Kafka knows the type, but no quota of it is kept here
    name = entity[ENTITY_TYPES.index(component.entity_type)]
    if component.match_type == Match.SPECIFIED:
        return name is not None
    if component.match_type == Match.DEFAULT:
        return name is DEFAULT
    if component.match_type == Match.EXACT:
        return name == component.match
    return isinstance(name, str) and name.startswith(component.match or "")
