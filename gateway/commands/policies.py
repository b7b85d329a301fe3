# `produce-gateway policies`: the policies of a running gateway, each with its origin or as a document, the changes that
# another document would make, and making them. A document is validated here first, where its lines are known.
#
# A user's mistake is one or more lines on stderr and exit code 1 (2 for a wrong command line), never a traceback.

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway import policy_document as document
from gateway import yaml_text
from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.commands.admin_client import (
    AdminEndpoint,
    CommandError,
    add_endpoint_arguments,
    add_until_argument,
    render_answer,
    request_json,
    run_command,
)
from gateway.commands.output import format_table
from policies.definitions.policy_values import PolicyKey, value_text
from policies.quotas.text import entity_text

PATH: Final = "/v1/policies"
HISTORY_PATH: Final = f"{PATH}/history"
POLICY_COLUMNS: Final = ("KIND", "NAME", "KEY", "IN FORCE", "FROM", "OTHER")


def main(argv: list[str]) -> int:
    """Exit codes: 0 done, 1 not, 2 a wrong command line."""
    parser = make_parser()
    args = parser.parse_args(argv)
    return run_command(parser, args, lambda gateway: _ACTIONS[args.action](gateway, args))


def make_parser() -> CommandParser:
    parser = CommandParser(
        prog="produce-gateway policies", description="Thresholds and client quotas of a running gateway, as a document."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|export|history|diff|apply")
    show = actions.add_parser(
        "show", help="print the values in force as a table, with their origin and the value that is not in force"
    )
    export = actions.add_parser("export", help="print the values in force, as a document that `apply` takes")
    history = actions.add_parser(
        "history", help="print the changes with their author, time and old value, the newest first"
    )
    history.add_argument("--limit", type=int, default=20, metavar="N", help="changes, 1 to 1000 (%(default)s)")
    diff = actions.add_parser("diff", help="show the changes that `apply` would make")
    apply = actions.add_parser(
        "apply", help="make the values of a document hold, all or none; to apply it again changes nothing"
    )
    for action in (diff, apply):
        action.add_argument("file", metavar="FILE", help="the document, YAML or JSON; - for standard input")
    for action in (show, export, history, diff, apply):
        add_endpoint_arguments(action)
    for action in (diff, apply):
        add_until_argument(action)
        action.add_argument(
            "--prune", action="store_true", help="remove values that were set at run time and are not in the document"
        )
    apply.add_argument("--dry-run", action="store_true", help="change nothing: the same as diff")
    for action, *examples in (
        (show, "", "gateway.yaml -o json"),
        (export, "> policies.yaml"),
        (history, "--limit 100"),
        (diff, "policies.yaml", "policies.yaml --prune"),
        (apply, "policies.yaml gateway.yaml", "policies.yaml --until 2h", "- < policies.yaml"),
    ):
        add_examples(action, *examples)
    add_examples(parser, "show", "export > policies.yaml", "diff policies.yaml", "apply policies.yaml gateway.yaml")
    return parser


def _export_document(gateway: AdminEndpoint, args: argparse.Namespace) -> str:
    """There is no table of a document: it is YAML then."""
    exported = _require_part(request_json(gateway, PATH), "document", dict)
    return document.render_document(exported, as_json=args.output == "json")


def _show_policies(gateway: AdminEndpoint, args: argparse.Namespace) -> str:
    def describe(rows: list[Any]) -> list[str]:
        return format_table(POLICY_COLUMNS, [_policy_row(row) for row in rows], left=len(POLICY_COLUMNS))

    rows = _require_part(request_json(gateway, PATH), "origins", list)
    return render_answer(gateway.url + PATH, rows, args.output, describe)


def _policy_row(policy: Mapping[str, Any]) -> list[str]:
    """`OTHER`: the value not in force, as run time has another one."""
    key = PolicyKey(policy["kind"], policy["name"], policy["key"]).validate_key()
    name = (
        entity_text(key.entity)
        if key.kind == "quota"
        else key.name or ("cluster" if key.kind == "storage" else "all brokers")
    )
    other = policy["file"] if policy["origin"] == "run time" else policy["run_time"]
    text = "-" if other is None else f"{value_text(key, other)} ({policy['base_origin']})"
    origin = policy["origin"]
    if policy["until"] is not None:
        origin += f" until {policy['until']}"
        text = text if policy["then"] is None else f"{value_text(key, policy['then'])} (then)"
    return [key.kind, name, key.key, value_text(key, policy["value"]), origin, text]


def _show_history(gateway: AdminEndpoint, args: argparse.Namespace) -> str:
    answer = request_json(gateway, HISTORY_PATH, {"limit": args.limit})
    return render_answer(gateway.url + HISTORY_PATH, answer, args.output, describe_history)


def describe_history(response: Mapping[str, Any]) -> list[str]:
    """The changes as lines."""
    nothing = "no such change is known" if response["version"] else "nothing was changed at run time"
    return [_history_line(each) for each in response["changes"]] or [nothing]


def _history_line(change: Mapping[str, Any]) -> str:
    """One change as a line: time, key, from, to, author."""
    source = (
        f"by {change['who'] or 'unknown'} via {change['door']}{' from ' + change['peer'] if change['peer'] else ''}"
    )
    return f"{change['at']} version {change['version']}: {describe_change(change)}, {source}"


def _apply_document(gateway: AdminEndpoint, args: argparse.Namespace) -> str:
    dry_run = args.action == "diff" or args.dry_run
    body = {"document": _read_document(args.file), "dry_run": dry_run, "prune": args.prune, "until": args.until}
    answer = request_json(gateway, f"{PATH}:apply", method="POST", body=body)
    ops = _require_part(answer, "ops", list)
    if args.output == "table":
        sys.stderr.write("".join(f"warning: {warning}\n" for warning in answer.get("warnings", ())))

    def describe(answer: Mapping[str, Any]) -> list[str]:
        lines = [describe_change(op) for op in ops]
        if not lines:
            return ["nothing to change: all of it holds already"]
        count = f"{len(lines)} {'change' if len(lines) == 1 else 'changes'}"
        return [*lines, f"{count}; nothing was done" if dry_run else f"{count} made; version {answer.get('version')}"]

    return render_answer(gateway.url + PATH, answer, args.output, describe)


_ACTIONS: Final[Mapping[str, Callable[[AdminEndpoint, argparse.Namespace], str]]] = {
    "show": _show_policies,
    "export": _export_document,
    "history": _show_history,
    "diff": _apply_document,
    "apply": _apply_document,
}


def describe_change(op: Mapping[str, Any]) -> str:
    """One change as a line: key, from, to."""
    key = PolicyKey(op["kind"], op["name"], op["key"]).validate_key()
    end = " without an end" if op["old"] == op["new"] else ""
    end = end if op["until"] is None else f" until {op['until']}"
    return f"{key}: {value_text(key, op['old'])} -> {value_text(key, op['new'])}{end}"


def _read_document(name: str) -> Any:
    source = yaml_text.STDIN_NAME if name == "-" else name
    try:
        text = yaml_text.read_input(name)
        document.parse_document(text, source)
        return document.load_document(text, source)
    except (yaml_text.YamlError, document.DocumentError) as error:
        raise CommandError(str(error)) from error


def _require_part(answer: Mapping[str, Any], name: str, kind: type) -> Any:
    part = answer.get(name)
    if not isinstance(part, kind):
        raise CommandError(f"the answer has no {name}: is it a gateway of this release?")
    return part
