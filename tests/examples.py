# How many examples tests take that have many dimensions. By HYPOTHESIS_PROFILE=exhaustive all of them, see conftest.py.

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
from typing import Any, Final

from hypothesis import settings

EXHAUSTIVE: Final = settings().max_examples > 100
FEW: Final = settings(max_examples=max(3, settings().max_examples // 5))  # of a property for each of many versions


def matrix(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All combinations, or so many that each value comes up; values that are tuples are for several parameters."""
    if EXHAUSTIVE:
        rows = list(product(*values))
    else:
        rows = [tuple(each[at % len(each)] for each in values) for at in range(max(map(len, values)))]
    return [tuple(chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in row)) for row in rows]
