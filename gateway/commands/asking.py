# How a command finds a running gateway's admin server, asks it, and says what came instead of an answer: one line. Also
# what is common to tables. Knows no command and no answer.

from __future__ import annotations

import argparse
import getpass
import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gateway import config
from gateway.http_client import direct_opener
from gateway.tokens import FILE_VARIABLE, read_tokens

DEFAULT_URL: Final = "http://127.0.0.1:9190"
TIMEOUT_S: Final = 10.0
CHANGE_TIMEOUT_S: Final = 60.0  # a change is one transaction; its coordinator may have to be found first
USER_HEADER: Final = "Produce-Gateway-User"  # who runs the command, percent-encoded
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  not bound


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


def ask(url: str, path: str, query: Mapping[str, object] | None = None) -> dict[str, Any]:
    """GET. `query`: what is None is left out.

    Raises:
        CannotAsk: no answer, an error, or no object.
    """
    said = call(url, path, query)
    if not isinstance(said, dict):
        raise CannotAsk(f"{url.rstrip('/')}{path}: does not answer as a gateway's admin server does")
    return said


def call(
    url: str,
    path: str,
    query: Mapping[str, object] | None = None,
    *,
    method: str = "GET",
    body: Any = None,
    token: str | None = None,
) -> Any:
    """The JSON that is answered. `query`: what is None is left out. `body`: as JSON; None: none.

    Raises:
        CannotAsk: no answer, or an error.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CannotAsk(f"--url {url}: is no address: write for example {DEFAULT_URL}")
    place = url.rstrip("/") + path
    given = {name: value for name, value in (query or {}).items() if value is not None}
    address = f"{place}?{urllib.parse.urlencode(given)}" if given else place
    headers = {"Accept": "application/json", USER_HEADER: urllib.parse.quote(_user())}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None
    if body is not None:
        data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
    request = urllib.request.Request(address, data, headers, method=method)  # noqa: S310  the scheme was looked at
    try:
        with direct_opener().open(request, timeout=TIMEOUT_S if method == "GET" else CHANGE_TIMEOUT_S) as answer:
            said = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            raise CannotAsk(_problem(place, error)) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or reason
        raise CannotAsk(f"{place}: can't be asked: {text}: is the gateway running, and admin: right?") from error
    except ValueError as error:
        raise CannotAsk(f"{place}: does not answer as a gateway's admin server does") from error
    return said


def shown(place: str, answer: Mapping[str, Any], describe: Callable[[Mapping[str, Any]], list[str]]) -> list[str]:
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


def _problem(place: str, error: urllib.error.HTTPError) -> str:
    """What a problem document says (RFC 9457), else that there is none."""
    try:
        said = json.loads(error.read())
        found = [f"{each['where']}: {each['what']}" for each in said.get("errors", ())]
        return printable(f"{place}: {'; '.join(found) or said['detail']}")
    except (ValueError, TypeError, KeyError, AttributeError, OSError, http.client.HTTPException):
        phrase = error.reason or http.client.responses.get(error.code, "")
        return f"{place}: answers {error.code} {phrase}: is it a gateway's admin server?"
