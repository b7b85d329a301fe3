# What MkDocs runs: pages that are not in docs/ (README, CHANGELOG and others of the top; references made of the
# program), and links that lead out of docs/, which on a site lead to those pages, or nowhere: then their text remains.

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # MkDocs loads this file by its path

from mkdocs.structure.files import File, Files  # noqa: E402

from tools.site import cli, rest, settings  # noqa: E402

# Files at the top, by their pages.
TOP_PAGES: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
GENERATED_PAGES: Final[dict[str, Callable[[], str]]] = {
    "reference/settings.md": settings.make_page,
    "reference/cli.md": cli.make_page,
    "reference/rest.md": rest.make_page,
}
_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)\s#]*)(#[^)\s]*)?\)")
_IMAGE: Final = re.compile(r"(!\[[^\]]*\]\()([^)\s]+)\)")
_CODE: Final = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, *, config: Any) -> Files:
    for source, page in TOP_PAGES.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, page, content=rewrite_links(text, page, from_top=True)))
    for page, make in GENERATED_PAGES.items():
        files.append(File.generated(config, page, content=make()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    uri = page.file.src_uri
    return (
        markdown
        if uri in GENERATED_PAGES or uri in TOP_PAGES.values()
        else rewrite_links(markdown, uri, from_top=False)
    )


def rewrite_links(markdown: str, page: str, *, from_top: bool) -> str:
    """The text with links as the site has them.

    Args:
        page: where it is on the site, relative to docs/.
        from_top: it is a file at the top of the repository; else it is in docs/.
    """
    parts = _CODE.split(markdown)
    folder = "." if from_top else posixpath.join("docs", posixpath.dirname(page))
    for index in range(0, len(parts), 2):  # the others are code
        parts[index] = _LINK.sub(lambda match: _rewrite_link(match, folder, page), parts[index])
        if from_top:
            parts[index] = _IMAGE.sub(lambda match: f"{match[1]}{_link_target(match[2], folder, page)})", parts[index])
    return "".join(parts)


def _rewrite_link(match: re.Match[str], folder: str, page: str) -> str:
    target = _link_target(match[2], folder, page)
    return match[1] if target is None else f"[{match[1]}]({target}{match[3] or ''})"


def _link_target(path: str, folder: str, page: str) -> str | None:
    """The same file for that page of the site; None: the site doesn't have it."""
    whole = posixpath.normpath(posixpath.join(folder, path))
    inside = TOP_PAGES.get(whole) or (whole.removeprefix("docs/") if whole.startswith("docs/") else None)
    return None if inside is None else posixpath.relpath(inside, posixpath.dirname(page) or ".")
