# "Did you mean …?": what is said of a name that isn't known. Knows no key, and not what the names are for.

from __future__ import annotations

from collections.abc import Iterable


def find_nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that resembles it most, upper and lower case being the same; None: none does."""
    import difflib  # noqa: PLC0415 - for whoever mistypes, not for every start

    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def name_hint(name: str, known: Iterable[str]) -> str:
    """A hint at the right name: the nearest one, or else all of them."""
    known = list(known)
    near = find_nearest_name(name, known)
    return f"did you mean {near}?" if near else f"known here: {', '.join(known)}"
