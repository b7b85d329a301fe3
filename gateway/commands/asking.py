# How a command finds a running gateway's admin server, asks it, and says what came instead of an answer: one line. Also
# what is common to tables. Knows no command and no answer.

from __future__ import annotations

import argparse
import getpass
import http.client
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from gateway import config
from gateway.http_client import Answer, HttpError, fetch
from gateway.tokens import FILE_VARIABLE, read_tokens

DEFAULT_URL: Final = "http://127.0.0.1:9190"
TIMEOUT_S: Final = 10.0
CHANGE_TIMEOUT_S: Final = 60.0  # a change is one transaction; its coordinator may have to be found first
MAX_ANSWER_BYTES: Final = 100 * 2**20  # far beyond all topics and policies of a cluster
USER_HEADER: Final = "Produce-Gateway-User"  # who runs the command, percent-encoded
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  not bound

T = TypeVar("T")


class CannotAsk(Exception):
    """No answer that could be shown; one line, or several where several things are wrong."""


def add_place(parser: argparse.ArgumentParser) -> None:
    """Arguments that say where the gateway is."""
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="its YAML file: where admin: says")
    parser.add_argument("--url", help=f"of its admin server (default {DEFAULT_URL})")
    parser.add_argument("--json", action="store_true", help="print the answer as it is")


def add_token_file(parser: argparse.ArgumentParser) -> None:
    """The argument that says where the token for admin rights is."""
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE",
        help=f"with a token for admin rights (default ${FILE_VARIABLE}, else that of CONFIG)",
    )  # fmt: skip


def find_token(args: argparse.Namespace) -> str | None:
    """The token for admin rights: of the file that is named on the command line, in the environment, or of CONFIG.

    Raises:
        CannotAsk: the file can't be read.
    """
    path = args.token_file or os.environ.get(FILE_VARIABLE)
    if not path and args.config:
        admin = _load(args.config).admin
        if admin.tokens:
            return admin.tokens[0]
        path = admin.token_file
    if not path:
        return None
    try:
        return read_tokens(Path(path))[0]
    except (OSError, ValueError) as error:
        raise CannotAsk(f"{path}: {(error.strerror if isinstance(error, OSError) else None) or error}") from error


def find_place(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """The address that these arguments mean.

    Raises:
        CannotAsk: the file can't be read.
    """
    if args.config and args.url:
        parser.error("CONFIG and --url both say where the gateway is: give one of them")
    return args.url or (_url_of(args.config) if args.config else DEFAULT_URL)


def ask(
    url: str,
    path: str,
    query: Mapping[str, object] | None = None,
    *,
    method: str = "GET",
    body: Any = None,
    token: str | None = None,
) -> dict[str, Any]:
    """The JSON object that is answered. `query`: what is None is left out. `body`: as JSON; None: none.

    Raises:
        CannotAsk: no answer, an error, or no object.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise CannotAsk(f"--url {url}: is not a valid address; for example: {DEFAULT_URL}")
    place = url.rstrip("/") + path
    given = {name: value for name, value in (query or {}).items() if value is not None}
    headers = {"Accept": "application/json", USER_HEADER: quote(_user())}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        answer = fetch(
            f"{place}?{urlencode(given)}" if given else place,
            method=method,
            headers=headers,
            body=None if body is None else json.dumps(body).encode(),
            timeout_s=TIMEOUT_S if method == "GET" else CHANGE_TIMEOUT_S,
            max_bytes=MAX_ANSWER_BYTES,
        )
    except HttpError as error:
        raise CannotAsk(f"{place}: can't be asked: {error}: is the gateway running, and admin: right?") from error
    if not 200 <= answer.status < 300:
        raise CannotAsk(_problem(place, answer))
    try:
        said = json.loads(answer.body)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise CannotAsk(f"{place}: does not answer as a gateway's admin server does")
    return said


def shown(place: str, answer: T, describe: Callable[[T], list[str]]) -> list[str]:
    """The answer as lines, without anything in it that a terminal would obey: names are others' choice.

    Raises:
        CannotAsk: it is another release's.
    """
    try:
        return [printable(line) for line in describe(answer)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CannotAsk(f"{place}: answers with something that this release doesn't know: {error!r}") from error


def printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned columns, the first `left` of them to the left."""
    clean = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *clean, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (columns, *clean)
    ]


def _load(path: Path) -> config.Settings:
    try:
        return config.load(path)
    except config.ConfigError as error:
        raise CannotAsk(str(error)) from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return ""


def _url_of(path: Path) -> str:
    admin = _load(path).admin
    host = _EVERYWHERE.get(admin.host, admin.host)
    return f"http://[{host}]:{admin.port}" if ":" in host else f"http://{host}:{admin.port}"


def _problem(place: str, answer: Answer) -> str:
    """What a problem document says (RFC 9457), else that there is none. A line for each of several findings."""
    try:
        said = json.loads(answer.body)
        found = [f"{each['where']}: {each['what']}" for each in said.get("errors", ())]
        told = [found[0]] if len(found) == 1 else [": ".join(filter(None, (said["title"], said.get("detail"))))]
    except (ValueError, TypeError, KeyError, AttributeError):
        reason = answer.reason or http.client.responses.get(answer.status, "")
        return f"{place}: answers {answer.status} {reason}: is it a gateway's admin server?"
    return "\n  ".join(printable(line) for line in (f"{place}: {told[0]}", *(found if len(found) > 1 else ())))
