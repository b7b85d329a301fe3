# The names of resource groups (PIP-82): of their rates, in all the spellings that are about, of groups themselves, and
# of the tenants and namespaces that they are attached to. The proposal spells its keys in two ways, Pulsar in a third;
# they differ in case and in `limit`, so they are read without regard to both.
#
# Knows no traffic, and not which groups there are.

from __future__ import annotations

import re
from typing import Final

from policies.fleet.keys import Direction, LimitUnit
from policies.thresholds.values import MAX_THRESHOLD
from policies.units import exact_rate

EXISTS: Final = "exists"
ATTACHMENT_KEY: Final = "resourcegroup"
PUBLISH_MSGS: Final = "publishRateInMsgs"
PUBLISH_BYTES: Final = "publishRateInBytes"
DISPATCH_MSGS: Final = "dispatchRateInMsgs"
DISPATCH_BYTES: Final = "dispatchRateInBytes"
GROUP_KEYS: Final = (PUBLISH_MSGS, PUBLISH_BYTES, DISPATCH_MSGS, DISPATCH_BYTES)  # as Pulsar has them
KEY_MEANINGS: Final[dict[str, tuple[Direction, LimitUnit]]] = {
    PUBLISH_MSGS: ("publish", "msgs"),
    PUBLISH_BYTES: ("publish", "bytes"),
    DISPATCH_MSGS: ("dispatch", "msgs"),
    DISPATCH_BYTES: ("dispatch", "bytes"),
}
RATE_KEYS: Final = {meaning: key for key, meaning in KEY_MEANINGS.items()}
PROPOSAL_KEYS: Final = {  # by the proposal, beside Pulsar's own
    PUBLISH_MSGS: "PublishRatelimitinmsgs",
    PUBLISH_BYTES: "PublishRatelimitinbytes",
    DISPATCH_MSGS: "DispatchRatelimitinmsgs",
    DISPATCH_BYTES: "DispatchRatelimitinbytes",
}
MAX_NAME_CHARS: Final = 200

_GROUP: Final = re.compile(r"[A-Za-z0-9._=:-]{1,200}")  # as Pulsar's NamedEntity has it
_BY_LOWER: Final = {
    spelled.lower(): key
    for names in ({key: key for key in GROUP_KEYS}, PROPOSAL_KEYS)
    for key, spelled in names.items()
}


class GroupNameError(ValueError):
    """An invalid name or rate: the text names the fault and a valid form."""


def rate_key(name: str) -> str | None:
    """The key in GROUP_KEYS with this spelling, in any case of letters; None: none."""
    return _BY_LOWER.get(name.lower())


def check_group(name: str) -> None:
    """
    Raises:
        GroupNameError: it is not a valid name of a group.
    """
    if not _GROUP.fullmatch(name) or name in (".", ".."):
        raise GroupNameError(
            f"{name[:MAX_NAME_CHARS]!r} can't be a group's name: letters, digits, '.', '_', '-', '=' and ':', 1"
            f" to {MAX_NAME_CHARS}"
        )


def check_tenant(name: str) -> None:
    """
    Raises:
        GroupNameError: it is not a valid name of a tenant or namespace.
    """
    if (
        not 0 < len(name) <= MAX_NAME_CHARS
        or "/" in name
        or not name.isprintable()
        or name in (".", "..")
        or name != name.strip()
    ):
        raise GroupNameError(
            f"{name[:MAX_NAME_CHARS]!r} can't be the name of a tenant or namespace: 1 to {MAX_NAME_CHARS}"
            " printable characters"
            " without '/', and no blank at either end"
        )


def check_namespace(name: str) -> None:
    """`name`: with its tenant.

    Raises:
        GroupNameError: it is not valid.
    """
    tenant, slash, namespace = name.partition("/")
    if not slash:
        raise GroupNameError(f"{name[:MAX_NAME_CHARS]!r} is not a valid namespace; for example: acme/orders")
    check_tenant(tenant)
    check_tenant(namespace)


def check_rate(key: str, value: float) -> None:
    """Units: bytes or messages per second.

    Raises:
        GroupNameError: it can't be.
    """
    if key == EXISTS:
        if value != 1:
            raise GroupNameError(f"{EXISTS}: is 1 where there is the group, not {_number_text(value)}")
    elif not 0 < value <= MAX_THRESHOLD:
        raise GroupNameError(
            f"{key}: {_number_text(value)} is not a valid limit: a number above 0 and at most {2**63 - 1} is, or -1 or"
            " null for none"
        )


def _number_text(value: float) -> str:
    """JSON may bring an int that is too large for a float."""
    return "such a number" if isinstance(value, int) and abs(value) > MAX_THRESHOLD else f"{value:g}"


def rate_text(key: str, value: float) -> str:
    """A rate for people: all its digits, and its unit."""
    return exact_rate(value, "bytes" if KEY_MEANINGS[key][1] == "bytes" else "messages")
