# `produce-gateway policies`: the policies of a running gateway, each with where it comes from or as a document, what
# another document would change, and making it hold. Asks the gateway's admin server; a document is looked through here
# first, where its lines are known.
#
# A user's mistake is one or more lines on stderr and exit code 1 (2 for a wrong command line), never a traceback.

from __future__ import annotations

import argparse
import getpass
import http.client
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gateway import config
from gateway.commands.asking import CannotAsk, add_token_file, find_token, table
from gateway.http_client import direct_opener
from gateway.policy import document
from policies.policy_set import InvalidPolicy, PolicyKey, value_text
from policies.quota_text import entity_text

PATH: Final = "/v1/policies"
DEFAULT_URL: Final = "http://127.0.0.1:9190"
COLUMNS: Final = ("KIND", "NAME", "KEY", "IN FORCE", "FROM", "OTHER")
TIMEOUT_S: Final = 60.0  # thousands of values are one transaction; its coordinator may have to be found first
USER_HEADER: Final = "Produce-Gateway-User"  # who runs the command, percent-encoded


class _Failed(Exception):
    """Lines that say why."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))


def main(argv: list[str]) -> int:
    """Exit codes: 0 done, 1 not, 2 a wrong command line."""
    args = _make_parser().parse_args(argv)
    try:
        url = _address(args.url, args.config)
        if args.action == "show":
            return _show(url, args.json)
        if args.action == "export":
            return _export(url, args.json)
        data = _read(args.file)
        dry_run = args.action == "diff" or args.dry_run
        return _apply(url, data, find_token(args), dry_run=dry_run, prune=args.prune, as_json=args.json)
    except (_Failed, CannotAsk) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="produce-gateway policies", description="Thresholds and client quotas of a running gateway, as a document."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|export|diff|apply")
    show = actions.add_parser("show", help="print what holds as a table: value, where it comes from, the other value")
    export = actions.add_parser("export", help="print what holds, as a document that `apply` takes")
    diff = actions.add_parser("diff", help="show what `apply` would change")
    apply = actions.add_parser("apply", help="make a document hold: all of it, or nothing; twice does it once")
    for action in (diff, apply):
        action.add_argument("file", metavar="FILE", help="the document, YAML or JSON; - for standard input")
    for action in (show, export, diff, apply):
        action.add_argument(
            "config", nargs="?", type=Path, metavar="CONFIG", help="the gateway's YAML file: its admin:"
        )
        action.add_argument("--url", help=f"of its admin server (default {DEFAULT_URL})")
        action.add_argument("--json", action="store_true", help="print JSON")
        add_token_file(action)
    for action in (diff, apply):
        action.add_argument(
            "--prune", action="store_true", help="remove what was set at run time and is not in the document"
        )
    apply.add_argument("--dry-run", action="store_true", help="change nothing: the same as diff")
    return parser


def _export(url: str, as_json: bool) -> int:
    answer = _ask(url + PATH)
    sys.stdout.write(document.render(_part(answer, "document", dict), as_json=as_json))
    return 0


def _show(url: str, as_json: bool) -> int:
    rows = _part(_ask(url + PATH), "origins", list)
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
        return 0
    try:
        lines = table(COLUMNS, [_row(row) for row in rows], left=len(COLUMNS))
    except (InvalidPolicy, TypeError, KeyError, ValueError) as error:
        raise _Failed(f"{url}: answers with something that this release doesn't know: {error!r}") from error
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _row(said: Mapping[str, Any]) -> list[str]:
    """`OTHER`: what doesn't hold, as run time has another value."""
    key = PolicyKey(said["kind"], said["name"], said["key"]).checked()
    name = entity_text(key.entity) if key.kind == "quota" else key.name or "all brokers"
    other = said["file"] if said["origin"] == "run time" else said["run_time"]
    text = "-" if other is None else f"{value_text(key, other)} (file)"
    return [key.kind, name, key.key, value_text(key, said["value"]), said["origin"], text]


def _apply(url: str, data: Any, token: str | None, *, dry_run: bool, prune: bool, as_json: bool) -> int:
    answer = _ask(url + PATH + ":apply", {"document": data, "dry_run": dry_run, "prune": prune}, token)
    ops = _part(answer, "ops", list)
    if as_json:
        sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
        return 0
    try:
        lines = [describe(op) for op in ops]
    except (InvalidPolicy, TypeError, KeyError) as error:
        raise _Failed(f"{url}: answers with something that this release doesn't know: {error!r}") from error
    if lines:
        count = f"{len(lines)} {'change' if len(lines) == 1 else 'changes'}"
        lines.append(f"{count}; nothing was done" if dry_run else f"{count} made; version {answer.get('version')}")
    else:
        lines.append("nothing to change: all of it holds already")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stderr.write("".join(f"warning: {warning}\n" for warning in answer.get("warnings", ())))
    return 0


def describe(op: Mapping[str, Any]) -> str:
    """One change as a line: what, from, to."""
    key = PolicyKey(op["kind"], op["name"], op["key"]).checked()
    return f"{key}: {value_text(key, op['old'])} -> {value_text(key, op['new'])}"


def _read(name: str) -> Any:
    source = "standard input" if name == "-" else name
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
    except OSError as error:
        raise _Failed(f"{source}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _Failed(f"{source}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    try:
        document.parse(text, source)
        data = document.load(text, source)
    except document.DocumentError as error:
        raise _Failed(*error.lines) from error
    return data


def _address(url: str | None, path: Path | None) -> str:
    if path is None:
        return (url or DEFAULT_URL).rstrip("/")
    if url is not None:
        raise _Failed("CONFIG and --url both say where the gateway is: give one of them")
    try:
        admin = config.load(path).admin
    except config.ConfigError as error:
        raise _Failed(*error.lines) from error
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(admin.host, admin.host)  # noqa: S104  not bound
    return f"http://[{host}]:{admin.port}" if ":" in host else f"http://{host}:{admin.port}"


def _ask(address: str, body: Any = None, token: str | None = None) -> dict[str, Any]:
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _Failed(f"--url: {address.partition(PATH)[0]} is no address: write for example {DEFAULT_URL}")
    headers = {"Accept": "application/json", USER_HEADER: urllib.parse.quote(_user())}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(address, data, headers)  # noqa: S310  the scheme was looked at
    try:
        with direct_opener().open(request, timeout=TIMEOUT_S) as answer:
            said = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            raise _Failed(*_problem(address, error)) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or reason
        raise _Failed(f"{address}: can't be asked: {text}: is the gateway running, and admin: right?") from error
    except ValueError as error:
        raise _Failed(f"{address}: does not answer as a gateway's admin server does") from error
    if not isinstance(said, dict):
        raise _Failed(f"{address}: does not answer as a gateway's admin server does")
    return said


def _problem(address: str, error: urllib.error.HTTPError) -> list[str]:
    """What a problem document says (RFC 9457), else that there is none."""
    try:
        said = json.loads(error.read())
        title, detail, errors = str(said["title"]), said.get("detail"), said.get("errors") or ()
        found = [each if isinstance(each, str) else _joined(each) for each in errors]
    except (ValueError, TypeError, KeyError, AttributeError, OSError, http.client.HTTPException):
        return [f"{address}: answers {error.code} {error.reason}: is it a gateway's admin server?"]
    return [f"{title}: {detail}" if detail else title, *(f"  {line}" for line in found if line != detail)]


def _joined(said: Mapping[str, Any]) -> str:
    return ": ".join(str(part) for part in said.values() if part)


def _part(answer: Mapping[str, Any], name: str, kind: type) -> Any:
    part = answer.get(name)
    if not isinstance(part, kind):
        raise _Failed(f"the answer has no {name}: is it a gateway of this release?")
    return part


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return ""
