# What a caller of the admin port may do: three roles, each with all that the one before it may. Which request needs
# which is gateway/control/access/rules.py's. Knows no caller.

from __future__ import annotations

from enum import IntEnum
from typing import Final


class AccessRole(IntEnum):
    NONE = 0
    VIEWER = 1  # reads
    OPERATOR = 2  # also does what an on-call does, and what ends by itself
    ADMIN = 3  # also changes everything else

    @property
    def label(self) -> str:
        return self.name.lower()


ROLE_NAMES: Final = tuple(role.label for role in AccessRole if role)


def parse_role(text: str) -> AccessRole:
    """
    Raises:
        ValueError: there is none of that name; the text says which there are.
    """
    if text not in ROLE_NAMES:
        raise ValueError(f"a role is {', '.join(ROLE_NAMES[:-1])} or {ROLE_NAMES[-1]}")
    return AccessRole[text.upper()]
