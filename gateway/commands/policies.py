# `produce-gateway policies`: the policies of a running gateway, each with where it comes from or as a document, what
# another document would change, and making it hold. Asks the gateway's admin server; a document is looked through here
# first, where its lines are known.
#
# A user's mistake is one or more lines on stderr and exit code 1 (2 for a wrong command line), never a traceback.

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gateway import policy_document as document
from gateway import yaml_text
from gateway.commands.asking import CannotAsk, add_place, add_token_file, ask, find_place, find_token, shown, table
from policies.policy_set import PolicyKey, value_text
from policies.quotas.text import entity_text

PATH: Final = "/v1/policies"
COLUMNS: Final = ("KIND", "NAME", "KEY", "IN FORCE", "FROM", "OTHER")


def main(argv: list[str]) -> int:
    """Exit codes: 0 done, 1 not, 2 a wrong command line."""
    parser = _make_parser()
    args = parser.parse_args(argv)
    try:
        url = find_place(parser, args)
        if args.action == "show":
            return _show(url, args.json)
        if args.action == "export":
            return _export(url, args.json)
        data = _read(args.file)
        dry_run = args.action == "diff" or args.dry_run
        return _apply(url, data, find_token(args), dry_run=dry_run, prune=args.prune, as_json=args.json)
    except CannotAsk as error:
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
        add_place(action)
        add_token_file(action)
    for action in (diff, apply):
        action.add_argument(
            "--prune", action="store_true", help="remove what was set at run time and is not in the document"
        )
    apply.add_argument("--dry-run", action="store_true", help="change nothing: the same as diff")
    return parser


def _export(url: str, as_json: bool) -> int:
    answer = ask(url, PATH)
    sys.stdout.write(document.render(_part(answer, "document", dict), as_json=as_json))
    return 0


def _show(url: str, as_json: bool) -> int:
    rows = _part(ask(url, PATH), "origins", list)
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
        return 0
    lines = shown(url + PATH, rows, lambda rows: table(COLUMNS, [_row(row) for row in rows], left=len(COLUMNS)))
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
    body = {"document": data, "dry_run": dry_run, "prune": prune}
    answer = ask(url, f"{PATH}:apply", method="POST", body=body, token=token)
    ops = _part(answer, "ops", list)
    if as_json:
        sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
        return 0
    lines = shown(url + PATH, ops, lambda ops: [describe(op) for op in ops])
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
        text = sys.stdin.read() if name == "-" else yaml_text.read(Path(name))
        document.parse(text, source)
        return document.load(text, source)
    except (OSError, UnicodeDecodeError) as error:  # of standard input
        raise CannotAsk(f"{source}: can't be read: {error}") from error
    except (yaml_text.YamlError, document.DocumentError) as error:
        raise CannotAsk(str(error)) from error


def _part(answer: Mapping[str, Any], name: str, kind: type) -> Any:
    part = answer.get(name)
    if not isinstance(part, kind):
        raise CannotAsk(f"the answer has no {name}: is it a gateway of this release?")
    return part
