# The names of client quotas: who one is for (Entity), what it limits (QuotaKey), and their spellings. Entities are
# ordered as Kafka looks them up, from /config/users/U/clients/C down to /config/clients/<default>.
#
# Names are opaque and may hold anything, as the DN of a certificate holds `,` and `=`: wherever text has separators of
# its own they are encoded as Kafka's Sanitizer encodes them, so `<default>` can't be mistaken for a name. Knows no
# values and no traffic. Source: KIP-546 (draft), Background, Units and Types Rationale; org.apache.kafka.common.utils.

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

USER: Final = "user"
CLIENT_ID: Final = "client-id"
ENTITY_TYPES: Final = (USER, CLIENT_ID)
IP: Final = "ip"  # Kafka has it, with connection_creation_rate; the brokers see only the gateway's address

QuotaType = Literal["producer_byte_rate", "consumer_byte_rate", "request_percentage"]
# bps: bytes per second in the whole cluster. broker_bps: on each broker. shares: parts of the broker's contested total.
# percent: of the time of one thread, on each broker.
QuotaUnit = Literal["bps", "broker_bps", "shares", "percent"]
ErrorName = Literal["INVALID_REQUEST", "UNSUPPORTED_VERSION"]

_RATE_UNITS: Final[tuple[QuotaUnit, ...]] = ("broker_bps", "bps", "shares")
# The first unit of a type is what its bare key means: Kafka's own meaning.
UNITS: Final[dict[QuotaType, tuple[QuotaUnit, ...]]] = {
    "consumer_byte_rate": _RATE_UNITS,
    "producer_byte_rate": _RATE_UNITS,
    "request_percentage": ("percent",),
}
# Keys that Kafka has beside these: about operations that the gateway leaves to the brokers.
_BROKERS_OWN: Final = {"controller_mutation_rate", "connection_creation_rate"}

_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")


class QuotaError(ValueError):
    """An invalid request: the text names the fault, its place and a valid form. `error`: the name of Kafka's error."""

    def __init__(self, message: str, error: ErrorName = "INVALID_REQUEST") -> None:
        super().__init__(message)
        self.error: Final = error


class DefaultName(Enum):
    """The name that stands for every name without a quota of its own. Not a string, since names may be any string; its
    value is not a string either, so that messages between processes can distinguish it from a name.
    """

    DEFAULT = 0


DEFAULT: Final = DefaultName.DEFAULT
DEFAULT_TEXT: Final = "<default>"
# Users whose names are not known, or who have none.
UNNAMED_USERS: Final = frozenset({"", "ANONYMOUS"})
EntityName = str | DefaultName | None  # None: quotas of this entity have nothing to do with that type


class Entity(NamedTuple):
    """The clients that a quota is for: by user, by client id, or by both. Each value of a quota is for exactly one
    entity.
    """

    user: EntityName = None
    client_id: EntityName = None

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, str | None]]) -> Entity:
        """From (entity type, name) as in the Kafka protocol; name None is the default.

        Raises:
            QuotaError: there is no type, an unknown one, one given twice, or an empty name.
        """
        names: dict[str, EntityName] = {}
        for entity_type, name in pairs:
            if entity_type not in ENTITY_TYPES:
                raise unknown_entity_type(entity_type)
            if entity_type in names:
                raise QuotaError(f"entity type {entity_type} is given twice: once is enough")
            names[entity_type] = DEFAULT if name is None else name
        return cls(names.get(USER), names.get(CLIENT_ID)).validate_entity()

    def validate_entity(self) -> Entity:
        """The entity itself.

        Raises:
            QuotaError: quotas can't be set for it.
        """
        if self.user is None and self.client_id is None:
            raise QuotaError(f"an empty entity: give a name or the default for {USER}, {CLIENT_ID} or both")
        for entity_type, name in zip(ENTITY_TYPES, self, strict=True):
            if name == "":
                raise QuotaError(f"an empty name for {entity_type}: leave the type out, or give the default for it")
            if isinstance(name, str) and not _is_unicode(name):
                raise QuotaError(f"the name {name!r} for {entity_type} is not Unicode text")
        return self

    @property
    def typed_names(self) -> tuple[tuple[str, str | DefaultName], ...]:
        """(entity type, name) of each type that the entity has, user first."""
        return tuple((t, name) for t, name in zip(ENTITY_TYPES, self, strict=True) if name is not None)

    @property
    def wire_pairs(self) -> tuple[tuple[str, str | None], ...]:
        """The pairs that `from_pairs` takes."""
        return tuple((entity_type, None if name is DEFAULT else name) for entity_type, name in self.typed_names)

    @property
    def specificity_level(self) -> int:
        """0 for the most specific of the eight levels, 7 for the least."""
        return 3 * _specificity(self.user) + _specificity(self.client_id)

    @property
    def sort_key(self) -> tuple[int, str, str]:
        """Sorts by level, the most specific first, then by names."""
        return self.specificity_level, _sort_text(self.user), _sort_text(self.client_id)

    @property
    def path(self) -> str:
        """The entity in the form of Kafka's documentation, with sanitized names. Paths and entities correspond one to
        one.
        """
        parts = ["/config"]
        if self.user is not None:
            parts += ("users", spell_name(self.user))
        if self.client_id is not None:
            parts += ("clients", spell_name(self.client_id))
        return "/".join(parts)

    @classmethod
    def from_path(cls, path: str) -> Entity:
        """The entity with this `path`.

        Raises:
            QuotaError: it is not the path of an entity.
        """
        match path.split("/"):
            case ["", "config", "users", user]:
                return cls(parse_name(user), None).validate_entity()
            case ["", "config", "clients", client_id]:
                return cls(None, parse_name(client_id)).validate_entity()
            case ["", "config", "users", user, "clients", client_id]:
                return cls(parse_name(user), parse_name(client_id)).validate_entity()
        raise QuotaError(
            f"{path!r} is not a valid entity: write /config/users/NAME/clients/NAME, or one of the two parts"
        )


def unknown_entity_type(entity_type: str, error: ErrorName = "INVALID_REQUEST") -> QuotaError:
    """Kafka returns INVALID_REQUEST where quotas are altered, UNSUPPORTED_VERSION where they are described."""
    known = f"known are {USER} and {CLIENT_ID}"
    if entity_type == IP:
        return QuotaError(f"quotas for {IP} are the brokers' own, set them there: here {known}", error)
    return QuotaError(f"unknown entity type {entity_type!r}: {known}", error)


class QuotaKey(NamedTuple):
    """What a quota limits, and the unit. str() is the spelling of kafka-quotas."""

    type: QuotaType
    unit: QuotaUnit

    @classmethod
    def parse(cls, text: str) -> QuotaKey:
        """From `type:unit` (kafka-quotas), `type.unit` (the wire: kafka-configs.sh refuses a colon) or the bare type.

        Raises:
            QuotaError: unknown type or unit.
        """
        key = _SPELLINGS.get(text)
        if key is not None:
            return key
        name = text.replace(":", ".").partition(".")[0]
        if name in _BROKERS_OWN:
            raise QuotaError(f"{name} is the brokers' own, set it there: known here are {', '.join(UNITS)}")
        for known, units in UNITS.items():
            if known == name:
                raise QuotaError(f"unknown unit in quota {text!r}: {name} has {', '.join(sorted(units))}")
        raise QuotaError(f"unknown quota {text!r}: known are {', '.join(UNITS)}")

    @property
    def wire_name(self) -> str:
        """The key in the Kafka protocol; bare where Kafka's own key means the same, so that Kafka's tools find it."""
        return self.type if self.unit == UNITS[self.type][0] else f"{self.type}.{self.unit}"

    def __str__(self) -> str:
        return f"{self.type}:{self.unit}"


QUOTA_KEYS: Final = tuple(sorted((QuotaKey(kind, unit) for kind, units in UNITS.items() for unit in units), key=str))
_SPELLINGS: Final = {
    spelling: key for key in QUOTA_KEYS for spelling in (str(key), f"{key.type}.{key.unit}", key.wire_name)
}


def sanitize_name(name: str) -> str:
    """`name` without any separator character, encoded like Kafka's Sanitizer (URL encoding)."""
    if name.isalnum() and name.isascii():
        return name
    return quote(name, safe="", errors="replace").replace("~", "%7E")


def desanitize_name(text: str) -> str:
    """The name that `sanitize_name` encoded. Unlike in Kafka, `+` stays `+`: `sanitize_name` never writes it for a
    space.

    Raises:
        QuotaError: a % that encodes nothing.
    """
    if "%" not in text:
        return text
    if not _ESCAPE.search(text):
        try:
            return unquote(text, errors="strict")
        except UnicodeDecodeError:
            pass
    raise QuotaError(f"the name {text!r} holds a % that encodes no character: a % itself is written %25")


def spell_name(name: str | DefaultName) -> str:
    """The sanitized name; the default as DEFAULT_TEXT."""
    return DEFAULT_TEXT if isinstance(name, DefaultName) else sanitize_name(name)


def parse_name(text: str) -> str | DefaultName:
    """The name that `spell_name` wrote.

    Raises:
        QuotaError: see `desanitize_name`.
    """
    return DEFAULT if text == DEFAULT_TEXT else desanitize_name(text)


def _specificity(name: EntityName) -> int:
    return 2 if name is None else 1 if name is DEFAULT else 0


def _sort_text(name: EntityName) -> str:
    return name if isinstance(name, str) else ""


def _is_unicode(name: str) -> bool:
    """Whether there is no lone surrogate: encoded, two different names would become the same."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
