# What a caller of the admin port may do: three roles, each with all that the one before it may. Which request needs
# which is gateway/control/access/rules.py's. Knows no caller.

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Role(IntEnum):
    NONE = 0
    VIEWER = 1  # reads
    OPERATOR = 2  # also does what an on-call does, and what ends by itself
    ADMIN = 3  # also changes everything else

    @property
    def text(self) -> str:
        return self.name.lower()


NAMES: Final = tuple(role.text for role in Role if role)


def role_of(text: str) -> Role:
    """
    Raises:
        ValueError: there is none of that name; the text says which there are.
    """
    if text not in NAMES:
        raise ValueError(f"a role is {', '.join(NAMES[:-1])} or {NAMES[-1]}")
    return Role[text.upper()]
