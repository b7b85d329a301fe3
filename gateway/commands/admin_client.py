# The commands' client of the REST API: finds a running gateway's admin server, asks it, and prints its response in the
# format of -o, or why there is none: one line. Formats are output.py's. Knows no command and no response.

from __future__ import annotations

import argparse
import getpass
import http.client
import os
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from gateway import config
from gateway.access_tokens.tokens import FILE_VARIABLE, read_first_token
from gateway.commands.output import add_format_arguments, render_response, replace_unprintable
from gateway.http.admin_api import USER_HEADER, AdminRequest, ApiError, decode_response
from gateway.http.http_client import HttpError, HttpResponse, TlsError, TlsFault, fetch_url
from gateway.system.hosts import holds_credentials
from gateway.tls.certificates import CertificateError, check_certificates, load_chain
from policies.units import format_time, parse_until

DEFAULT_URL: Final = "http://127.0.0.1:9190"
TIMEOUT_S: Final = 10.0
CHANGE_TIMEOUT_S: Final = 60.0  # a change is one transaction; its coordinator may have to be found first
MAX_RESPONSE_BYTES: Final = 100 * 2**20  # far beyond all topics and policies of a cluster
_OTHER_SERVER: Final = "does not answer as a gateway's admin server does"
_HINTS: Final[Mapping[TlsFault, str]] = {
    "untrusted": ": --ca FILE names its authority",
    "plain": ": give --url http://…",
    "wanted": ": give --cert FILE and --key FILE",
    "other": "",
}

T = TypeVar("T")


class CommandError(Exception):
    """No answer that could be shown; one line, or several where several things are wrong."""


class AdminEndpoint(NamedTuple):
    """A gateway's admin server, and what is shown to it. `tls_context`: for https; None: the system's authorities."""

    url: str
    token: str | None = None
    tls_context: ssl.SSLContext | None = None


def add_endpoint_arguments(
    parser: argparse.ArgumentParser, *, formats: bool = True, server: str = "admin server", url: str = DEFAULT_URL
) -> None:
    """Arguments that say where the gateway is, who asks and, with `formats`, how its answer is printed. `server`: which
    one of its servers is asked, by default at `url`.
    """
    parser.add_argument(
        "config", nargs="?", type=Path, metavar="CONFIG", help="the gateway's YAML file: admin: has the address"
    )
    parser.add_argument("--url", help=f"address of its {server} (default {url})")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE",
        help=f"file with a token for the admin server (default ${FILE_VARIABLE}, else that of CONFIG)",
    )  # fmt: skip
    parser.add_argument(
        "--ca", type=Path, metavar="FILE",
        help="PEM file with the authority of its certificate (default: the certificate in CONFIG, else the system's)",
    )  # fmt: skip
    parser.add_argument("--cert", type=Path, metavar="FILE", help="PEM file with a client certificate, for https")
    parser.add_argument("--key", type=Path, metavar="FILE", help="PEM file with its key, unless that is in --cert")
    if formats:
        add_format_arguments(parser)


def add_until_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--until",
        type=parse_end,
        metavar="TIME",
        help="the change ends then, and the earlier value holds again: a duration such as 2h, or 2026-11-22T21:00:00Z",
    )


def parse_end(text: str) -> str:
    """For argparse: a time, or a duration from now, as RFC 3339 has it."""
    try:
        return format_time(parse_until(text, round(time.time() * 1000)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def resolve_endpoint(parser: argparse.ArgumentParser, args: argparse.Namespace) -> AdminEndpoint:
    """The admin server that these arguments mean, with the token and the certificates for it.

    Raises:
        CommandError: a file can't be read.
    """
    if args.config and args.url:
        parser.error("CONFIG and --url both name the gateway's address: give only one")
    if args.key and not args.cert:
        parser.error("--key belongs to a certificate: give --cert as well")
    admin = load_config(args.config).admin if args.config else None
    url = args.url or (admin.url if admin else DEFAULT_URL)
    if holds_credentials(url):
        raise CommandError("--url: a user name or a password doesn't belong there: give --token-file")
    if not url.lower().startswith(("http://", "https://")):
        raise CommandError(f"--url {url}: is not a valid address; for example: {DEFAULT_URL}")
    if not url.lower().startswith("https://"):
        for option in ("ca", "cert"):
            if getattr(args, option):
                raise CommandError(f"--{option} is for TLS, but the address is {url}: give --url https://…")
        return AdminEndpoint(url, _find_token(args, admin))
    return AdminEndpoint(url, _find_token(args, admin), _make_tls_context(args, admin))


def _find_token(args: argparse.Namespace, admin: config.Admin | None) -> str | None:
    """The token of the file that is named on the command line, or in the environment, else one of CONFIG."""
    path = args.token_file or os.environ.get(FILE_VARIABLE)
    if path:
        return _read_token(Path(path))
    if admin is None:
        return None
    plain = [line for line in admin.tokens if ":" not in line]  # of others there are only hashes
    if plain or admin.token_file is None:
        return plain[0] if plain else None
    try:
        return read_first_token(admin.token_file)
    except (OSError, ValueError):
        return None  # the server says what is needed, if anything is


def _read_token(path: Path) -> str:
    try:
        return read_first_token(path)
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: {(error.strerror if isinstance(error, OSError) else None) or error}") from error


def _make_tls_context(args: argparse.Namespace, admin: config.Admin | None) -> ssl.SSLContext:
    """With CONFIG alone, the server is whoever has the certificate that is named there, whatever names are in it."""
    try:
        if args.ca:
            check_certificates("--ca", str(args.ca))
            context = ssl.create_default_context(cafile=args.ca)
        elif admin is not None and admin.tls is not None:
            check_certificates("admin.ssl.keystore.location", admin.tls.keystore)
            context = ssl.create_default_context(cafile=admin.tls.keystore)
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # its own certificate is enough
            context.check_hostname = False
        else:
            context = ssl.create_default_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13's: many CAs of companies are older
        if args.cert:
            load_chain(context, ("--cert", str(args.cert)), ("--key", str(args.key or "")), "")
    except CertificateError as error:
        raise CommandError(str(error)) from error
    return context


def request_json(
    place: AdminEndpoint,
    path: str,
    query: Mapping[str, object] | None = None,
    *,
    method: str = "GET",
    body: Any = None,
) -> dict[str, Any]:
    """The JSON object of the response. Arguments: as of AdminRequest.

    Raises:
        CommandError: no response, an error, or no object.
    """
    request = AdminRequest(method, path, query or {}, body)
    where = place.url.rstrip("/") + path
    headers = {"Accept": "application/json", USER_HEADER: quote(_current_user())}
    if place.token is not None:
        headers["Authorization"] = f"Bearer {place.token}"
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        response = fetch_url(
            f"{where}?{request.query_string}" if request.query_string else where,
            method=method,
            headers=headers,
            body=None if body is None else request.content,
            timeout_s=TIMEOUT_S if method == "GET" else CHANGE_TIMEOUT_S,
            max_bytes=MAX_RESPONSE_BYTES,
            trust=place.tls_context,
        )
        decoded = decode_response(response.status, response.body)
    except TlsError as error:
        raise CommandError(f"{where}: can't be reached: {error}{_HINTS[error.fault]}") from error
    except HttpError as error:
        raise CommandError(f"{where}: can't be reached: {error}: is the gateway running, and admin: right?") from error
    except ApiError as error:
        raise CommandError(_problem_text(where, error, response)) from error
    if not isinstance(decoded, dict):
        raise CommandError(f"{where}: {_OTHER_SERVER}")
    return decoded


def run_command(
    parser: argparse.ArgumentParser, args: argparse.Namespace, action: Callable[[AdminEndpoint], str]
) -> int:
    """Print what `action` makes of the gateway that the arguments mean. The exit code: 0; or 1, with the reason on
    stderr.
    """
    try:
        text = action(resolve_endpoint(parser, args))
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    except UnicodeEncodeError as error:  # bytes of the command line that are no UTF-8
        print(f"{error.object!r}: is not Unicode text", file=sys.stderr)
        return 1
    sys.stdout.write(text)
    return 0


def render_answer(where: str, answer: T, output: str, describe: Callable[[T], list[str]]) -> str:
    """The answer in the format of -o. `where`: the address that it is from; `describe`: it as lines, for a table.

    Raises:
        CommandError: see `describe_response`.
    """
    return render_response(answer, output, lambda: describe_response(where, answer, describe))


def describe_response(where: str, answer: T, describe: Callable[[T], list[str]]) -> list[str]:
    """The answer as lines, without anything in it that a terminal would obey: names are others' choice.

    Raises:
        CommandError: it is another release's.
    """
    try:
        return [replace_unprintable(line) for line in describe(answer)]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CommandError(f"{where}: the response has a form that this release doesn't know: {error!r}") from error


def load_config(path: Path) -> config.Settings:
    try:
        return config.load_settings(path)
    except config.ConfigError as error:
        raise CommandError(str(error)) from error


def _current_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return ""


def _problem_text(where: str, error: ApiError, response: HttpResponse) -> str:
    """The text of a problem document, a line for each of several findings; else that there is none."""
    if 200 <= error.status < 300:
        return f"{where}: {_OTHER_SERVER}"
    if not error.title:
        reason = response.reason or http.client.responses.get(error.status, "")
        return f"{where}: answers {error.status} {reason}: is it a gateway's admin server?"
    found = [f"{each['where']}: {each['what']}" for each in error.findings]
    first = found.pop() if len(found) == 1 else ": ".join(filter(None, (error.title, error.detail)))
    return "\n  ".join(replace_unprintable(line) for line in (f"{where}: {first}", *found))
