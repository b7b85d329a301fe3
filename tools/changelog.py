# The part of CHANGELOG.md that announces a release. The heading of a release is `## VERSION (DATE)`; until it is
# released the date is the word "unreleased".
#
#     python -m tools.changelog VERSION          prints that part; fails while the release has no date

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"
_HEADING = re.compile(r"^## (\S+) \((\d{4}-\d{2}-\d{2}|unreleased)\)$", re.MULTILINE)


class NotReleasedError(ValueError):
    """One line."""


def find_release_notes(changelog: str, version: str) -> str:
    """What changed in that release.

    Raises:
        NotReleased: there is no such release, or it has no date yet.
    """
    headings = list(_HEADING.finditer(changelog))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        if heading[1] == version:
            if heading[2] == "unreleased":
                raise NotReleasedError(f"{CHANGELOG.name}: {version} has no date: write ## {version} (YYYY-MM-DD)")
            return changelog[heading.end() : following.start() if following else None].strip()
    raise NotReleasedError(f"{CHANGELOG.name}: there is no heading ## {version} (YYYY-MM-DD)")


def main(argv: list[str]) -> int:
    try:
        print(find_release_notes(CHANGELOG.read_text("utf-8"), argv[0].removeprefix("v")))
    except NotReleasedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
