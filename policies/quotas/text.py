# The texts that `kafka-quotas` reads and prints: entities, quotas and flags as text, word for word as in KIP-546's
# draft, its slips apart (the names of its two users are swapped between --list and --describe; --describe takes no
# --add).
#
# Names are printed sanitized and read so: what was printed can be pasted, and a comma in a name is `%2C`. Knows neither
# the store nor how text gets in or out.

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Final

from policies.quotas.filter import Component, Match
from policies.quotas.names import (
    ENTITY_TYPES,
    DefaultName,
    Entity,
    QuotaError,
    QuotaKey,
    parse_name,
    spell_name,
    unknown_entity_type,
)
from policies.quotas.store import Op, ResolvedQuota
from policies.units import parse_size

if TYPE_CHECKING:
    from policies.quotas.store import QuotaLimit

# Flags that only one operation has; all have --names and --defaults.
OPERATIONS: Final[Mapping[str, Set[str]]] = {
    "list": frozenset({"prefix", "output"}),
    "describe": frozenset({"include-overrides", "output"}),
    "alter": frozenset({"add", "delete", "until", "validate-only"}),
    "take-over": frozenset({"prefix", "yes"}),
    "import": frozenset({"yes"}),
}
_ENTITY_FLAGS: Final = frozenset({"names", "defaults"})
_LARGEST_LONG: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")  # float() takes more: 1_000, inf, other digits
_BYTES: Final = ("producer_byte_rate", "consumer_byte_rate")


# --- output -----------------------------------------------------------------------------------------------------------


def entity_text(entity: Entity) -> str:
    """For instance `{user=<default>, client-id=my-client}`."""
    return "{" + ", ".join(f"{entity_type}={spell_name(name)}" for entity_type, name in entity.typed_names) + "}"


def quota_text(key: QuotaKey, value: float) -> str:
    """For instance `producer_byte_rate:bps=10000000`."""
    return f"{key}={number_text(value)}"


def number_text(value: float) -> str:
    """The shortest digits that identify the number; the largest long exactly, although its double is one more."""
    return str(min(int(value), _LARGEST_LONG)) if value == int(value) else repr(value)


def enforced_text(enforced: Iterable[tuple[ResolvedQuota, str, ResolvedQuota | None, str]]) -> str:
    """--describe of values that two sources enforce: (the value in force, its source, the other source's value, and
    that source). A plus sign precedes the latter value; source "": not mentioned.
    """
    lines: list[str] = []
    for effective, by, also, also_by in enforced:
        lines += _resolved_texts(effective, by)
        if also is not None:
            first, *overridden = _resolved_texts(also, also_by)
            lines += [f"+{first}", *overridden]
    return "\n".join(lines)


def lesser_text(entity: Entity, key: QuotaKey, value: float, theirs: ResolvedQuota, other_names: str = "") -> str:
    """Why a value that is set is not in force: brokers have a lower one. `other_names`: why it may be for others."""
    return (
        f"{quota_text(key, value)} of {entity_text(entity)} {'may not' if other_names else 'does not'} hold: brokers"
        f" enforce {quota_text(key, theirs.value)} {entity_text(theirs.source)} of their own, which is less"
    ) + (f", but {other_names}" if other_names else "")


def limit_text(limit: QuotaLimit) -> str:
    """One limit and where it is set, as --describe shows it: for messages to clients and explanations."""
    return f"{quota_text(limit.bucket.key, limit.rate)} {entity_text(limit.source)}"


def _resolved_texts(effective: ResolvedQuota, by: str = "") -> Iterator[str]:
    first = f"{quota_text(effective.key, effective.value)} {entity_text(effective.source)}"
    yield f"{first} ({by})" if by else first
    for source, value in effective.overridden or ():
        yield f"*{quota_text(effective.key, value)} {entity_text(source)}"


# --- input ------------------------------------------------------------------------------------------------------------


def check_flags(flags: Iterable[str]) -> str:
    """The operation that these flags (without their dashes) ask for.

    Raises:
        QuotaError: no operation or several ones, one with another's flag, or without a flag that it needs.
    """
    given = set(flags)
    operations = [operation for operation in OPERATIONS if operation in given]
    if len(operations) != 1:
        named = " and ".join(f"--{operation}" for operation in operations)
        needed = "one of --list, --describe, --alter, --take-over and --import is needed"
        raise QuotaError(f"{named} exclude each other" if named else needed)
    (operation,) = operations
    for other, its_flags in OPERATIONS.items():
        wrong = sorted(given & its_flags - OPERATIONS[operation])
        if wrong:
            raise QuotaError(f"--{operation} has no --{wrong[0]}: did you mean --{other}?")
    if operation == "import" and given & _ENTITY_FLAGS:
        raise QuotaError("--import takes its entities from the file: leave --names and --defaults out")
    if operation in ("describe", "alter") and not given & _ENTITY_FLAGS:
        raise QuotaError(f"--{operation} needs an entity: --names=user=NAME,client-id=NAME, --defaults=user, or both")
    if operation == "alter" and not given & {"add", "delete"}:
        raise QuotaError("--alter needs --add, --delete or both")
    if "until" in given and "add" not in given:
        raise QuotaError("--until is the end of the values that --add sets: give both")
    return operation


def parse_entity(names: str = "", defaults: str = "") -> Entity:
    """The entity of --names and --defaults.

    Raises:
        QuotaError: it is not valid.
    """
    return Entity.from_pairs([(c.entity_type, c.match) for c in parse_components(names, defaults)])


def parse_components(names: str = "", defaults: str = "", prefix: str = "") -> tuple[Component, ...]:
    """The filter of --list: a type that isn't mentioned matches any name, and none. Raises QuotaError."""
    found = [
        Component(_check_entity_type(kind), Match.EXACT, _parse_plain_name(name))
        for kind, name in _split_pairs(names, "--names")
    ]
    found += [Component(_check_entity_type(kind), Match.DEFAULT) for kind in _split_parts(defaults, "--defaults")]
    found += [
        Component(_check_entity_type(kind), Match.PREFIX, _parse_plain_name(name))
        for kind, name in _split_pairs(prefix, "--prefix")
    ]
    types = [component.entity_type for component in found]
    for entity_type in types:
        if types.count(entity_type) > 1:
            raise QuotaError(f"{entity_type} is given twice: use one of --names, --defaults and --prefix for it")
    return tuple(found)


def parse_ops(add: str = "", delete: str = "") -> tuple[Op, ...]:
    """The changes of --add and --delete, their keys as the wire has them. Raises QuotaError."""
    ops = [
        Op(QuotaKey.parse(key).wire_name, _parse_number(key, value))
        for key, value in _split_pairs(add, "--add", "name:unit=value")
    ]
    return (*ops, *(Op(QuotaKey.parse(key).wire_name, None) for key in _split_parts(delete, "--delete")))


def _split_parts(text: str, where: str) -> list[str]:
    parts = text.split(",") if text else []
    if "" in parts:
        raise QuotaError(f"{where}={text}: nothing between two commas; a comma in a name is written %2C")
    return parts


def _split_pairs(text: str, where: str, form: str = "type=name") -> list[tuple[str, str]]:
    pairs = []
    for part in _split_parts(text, where):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise QuotaError(f"{part!r} in {where}: {form} is needed; a comma in a name is written %2C")
        pairs.append((key.strip(), value))  # printed entities have a blank behind each comma
    return pairs


def _check_entity_type(entity_type: str) -> str:
    if entity_type not in ENTITY_TYPES:
        error = unknown_entity_type(entity_type)
        raise QuotaError(f"{error}; a comma in a name is written %2C", error.error)
    return entity_type


def _parse_plain_name(text: str) -> str:
    name = parse_name(text)
    if isinstance(name, DefaultName):
        raise QuotaError(
            "<default> is not a valid name: use --defaults; a name that is spelled so is written %3Cdefault%3E"
        )
    return name


def _parse_number(key: str, value: str) -> float:
    if _NUMBER.fullmatch(value):
        return float(value)
    what, _, unit = key.partition(":")
    if what in _BYTES and unit in ("", "bps", "broker_bps"):
        try:
            return parse_size(value)
        except ValueError as error:
            raise QuotaError(f"{key}={value}: {error}") from None
    raise QuotaError(f"{key}={value}: {value!r} is not a number")
