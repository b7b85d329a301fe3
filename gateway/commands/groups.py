# `produce-gateway groups`: resource groups of a running gateway, over REST: which there are, their limits, what they
# are attached to, and what is used of them. Judges nothing; a change is told to the gateway as anybody else's would be.

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from gateway.cli_support.arguments import Parser, add_examples
from gateway.commands.asking import (
    CannotAsk,
    Place,
    add_place,
    add_until,
    ask,
    find_place,
    shown,
)
from gateway.commands.output import rendered, table
from gateway.commands.policies import describe
from policies.definitions.rollout import EVERYBODY
from policies.groups.names import (
    DISPATCH_BYTES,
    DISPATCH_MSGS,
    GROUP_KEYS,
    MEANS,
    PUBLISH_BYTES,
    PUBLISH_MSGS,
    rate_text,
)
from policies.units import parse_size

OVERVIEW: Final = "/v1/resource-groups"
GROUPS: Final = "/admin/v2/resourcegroup"
OPTIONS: Final = {
    "--publish-bytes": PUBLISH_BYTES,
    "--publish-msgs": PUBLISH_MSGS,
    "--dispatch-bytes": DISPATCH_BYTES,
    "--dispatch-msgs": DISPATCH_MSGS,
}
COLUMNS: Final = ("GROUP", "PUBLISH", "DISPATCH", "ATTACHED TO")
USE_COLUMNS: Final = ("GROUP", "RATE", "LIMIT", "ALL GATEWAYS", "USED", "HERE", "PART", "WAITS")
MAX_PLACES: Final = 4
_EXAMPLES: Final = {
    "list": ("", "gateway.yaml -o yaml"),
    "usage": ("", "--group gold --url http://gw1:9190"),
    "get": ("gold", "gold -o json"),
    "set": ("gold --publish-bytes 12MB", "gold --publish-msgs none --until 2h gateway.yaml"),
    "delete": ("gold",),
    "attach": ("gold --tenant acme", "gold --namespace acme/orders gateway.yaml"),
    "detach": ("--tenant acme",),
}


def main(argv: list[str]) -> int:
    """Exit codes: 0 done, 1 not, 2 a wrong command line."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        text: str = args.run(find_place(args.parser, args), args)
    except CannotAsk as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.write(text)
    return 0


def make_parser() -> Parser:
    parser = Parser(
        prog="produce-gateway groups",
        description="Resource groups of a running gateway: limits that tenants and namespaces share over all gateways.",
    )
    actions = parser.add_subparsers(required=True, metavar="list|get|set|delete|attach|detach|usage")

    def add(name: str, run: Callable[[Place, argparse.Namespace], str], text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=text)
        action.set_defaults(run=run, parser=action)
        add_examples(action, *_EXAMPLES[name])
        return action

    listing = add("list", _list, "all groups with their limits and attachments")
    usage = add("usage", _usage, "the usage of each limit, by all gateways and here")
    get = add("get", _get, "one group")
    change = add("set", _set, "create a group, or change the limits that are given")
    delete = add("delete", _delete, "delete a group that is attached to nothing")
    attach = add("attach", _attach, "attach a group to a tenant or a namespace")
    detach = add("detach", _detach, "take the group off a tenant or a namespace")
    for action in (get, change, delete, attach):
        action.add_argument("group", metavar="GROUP")
    usage.add_argument("--group", metavar="GROUP", help="only this one")
    for option, key in OPTIONS.items():
        direction, unit = MEANS[key]
        what = "a size such as 12MB" if unit == "bytes" else "messages"
        change.add_argument(
            option, type=_size if unit == "bytes" else _count, dest=key, metavar="RATE",
            help=f"{direction}: {what} per second; none: no limit",
        )  # fmt: skip
    add_until(change)
    for action in (attach, detach):
        place = action.add_mutually_exclusive_group(required=True)
        place.add_argument("--tenant", metavar="TENANT")
        place.add_argument("--namespace", type=_namespace, metavar="TENANT/NAMESPACE")
    for action in (listing, usage, get, change, delete, attach, detach):
        add_place(action)
    add_examples(
        parser,
        "list",
        "usage gateway.yaml -o json",
        "set gold --publish-bytes 12MB --until 2h",
        "attach gold --tenant acme",
    )
    return parser


# --- what is shown ----------------------------------------------------------------------------------------------------


def _list(gateway: Place, args: argparse.Namespace) -> str:
    return _show(gateway, args, _describe)


def _usage(gateway: Place, args: argparse.Namespace) -> str:
    return _show(gateway, args, lambda said: _describe_use(said, args.group))


def _show(gateway: Place, args: argparse.Namespace, describe: Callable[[Mapping[str, Any]], list[str]]) -> str:
    answer = ask(gateway, OVERVIEW)
    return rendered(answer, args.output, lambda: shown(gateway.url + OVERVIEW, answer, describe))


def _describe(said: Mapping[str, Any]) -> list[str]:
    groups = said["groups"]
    if not groups:
        return ["there are no resource groups: produce-gateway groups set NAME --publish-bytes 12MB makes one"]
    rows = [
        [name, _limits(group, "publish"), _limits(group, "dispatch"), _places(group)] for name, group in groups.items()
    ]
    lines = table(COLUMNS, rows, left=len(COLUMNS))
    if said["mode"] == "observe":
        lines.append("mode observe: nothing is limited, it is only counted")
    elif said["enforce_percent"] < EVERYBODY:
        lines.append(f"enforce_percent {said['enforce_percent']:g}: all other clients are not limited, only counted")
    return [*lines, *(f"warning: {text}" for text in said["warnings"])]


def _limits(group: Mapping[str, Any], direction: str) -> str:
    found = [
        rate_text(key, group["rates"][key]["limit"])
        for key in GROUP_KEYS
        if MEANS[key][0] == direction and group["rates"][key]["limit"] is not None
    ]
    return ", ".join(found) or "-"


def _places(group: Mapping[str, Any]) -> str:
    names = [*(f"tenant {name}" for name in group["tenants"]), *(f"namespace {name}" for name in group["namespaces"])]
    some = ", ".join(names[:MAX_PLACES])
    return (some if len(names) <= MAX_PLACES else f"{some} and {len(names) - MAX_PLACES:,} more") or "-"


def _describe_use(said: Mapping[str, Any], wanted: str | None) -> list[str]:
    if wanted is not None and wanted not in said["groups"]:
        raise CannotAsk(f"there is no group {wanted}: produce-gateway groups list shows those that there are")
    rows = []
    for name, group in said["groups"].items():
        if wanted in (None, name):
            rows += [_use(name, group, key) for key in GROUP_KEYS]
    return table(USE_COLUMNS, rows, left=2) if rows else _describe(said)


def _use(name: str, group: Mapping[str, Any], key: str) -> list[str]:
    """`USED`: by all gateways as far as that is known, else here."""
    rate = group["rates"][key]
    taken = rate["here"] if rate["fleet"] is None else rate["fleet"]
    is_limited = rate["limit"] is not None and taken is not None
    return [
        name,
        key,
        *("-" if rate[part] is None else rate_text(key, round(rate[part])) for part in ("limit", "fleet")),
        f"{taken / rate['limit']:.0%}" if is_limited else "-",
        *("-" if rate[part] is None else rate_text(key, round(rate[part])) for part in ("here", "part")),
        "yes" if MEANS[key][0] in group["waiting"] and rate["limit"] is not None else "",
    ]


def _get(gateway: Place, args: argparse.Namespace) -> str:
    path = f"{GROUPS}/{_quoted(args.group)}"
    said = ask(gateway, path)

    def describe(said: Mapping[str, Any]) -> list[str]:
        return [f"{key}: {'no limit' if said[key] < 0 else rate_text(key, said[key])}" for key in GROUP_KEYS]

    def show() -> list[str]:
        return [f"group {args.group}", *(f"  {line}" for line in shown(gateway.url + path, said, describe))]

    return rendered(said, args.output, show)


# --- what is changed --------------------------------------------------------------------------------------------------


def _set(gateway: Place, args: argparse.Namespace) -> str:
    body = {key: getattr(args, key) for key in (*GROUP_KEYS, "until") if getattr(args, key) is not None}
    return _change(gateway, args, "PUT", f"{GROUPS}/{_quoted(args.group)}", body)


def _delete(gateway: Place, args: argparse.Namespace) -> str:
    return _change(gateway, args, "DELETE", f"{GROUPS}/{_quoted(args.group)}")


def _attach(gateway: Place, args: argparse.Namespace) -> str:
    return _change(gateway, args, "PUT", f"{_place(args)}/{_quoted(args.group)}")


def _detach(gateway: Place, args: argparse.Namespace) -> str:
    return _change(gateway, args, "DELETE", _place(args))


def _change(gateway: Place, args: argparse.Namespace, method: str, path: str, body: Any = None) -> str:
    said = ask(gateway, path, method=method, body=body)
    return rendered(said, args.output, lambda: shown(gateway.url + path, said, _describe_change))


def _describe_change(said: Mapping[str, Any]) -> list[str]:
    lines = [describe(op) for op in said["changes"]]
    lines.append(f"version {said['version']}" if lines else "nothing to change: it is so already")
    return [*lines, *(f"warning: {text}" for text in said["warnings"])]


def _place(args: argparse.Namespace) -> str:
    if args.tenant is not None:
        return f"/admin/v2/tenants/{_quoted(args.tenant)}/resourcegroup"
    tenant, _, namespace = args.namespace.partition("/")
    return f"/admin/v2/namespaces/{_quoted(tenant)}/{_quoted(namespace)}/resourcegroup"


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _namespace(text: str) -> str:
    if text.count("/") != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid namespace; for example: acme/orders")
    return text


def _size(text: str) -> float:
    try:
        return -1 if text == "none" else parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> float:
    try:
        return -1 if text == "none" else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid number of messages; for example: 100000, or none"
        ) from error
