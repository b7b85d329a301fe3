# `produce-gateway groups`: resource groups of a running gateway, over REST: which there are, their limits, what they
# are attached to, and what is used of them. Judges nothing.

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

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
from gateway.commands.policies import describe_change
from policies.definitions.rollout import ALL_CLIENTS
from policies.groups.names import (
    DISPATCH_BYTES,
    DISPATCH_MSGS,
    GROUP_KEYS,
    KEY_MEANINGS,
    PUBLISH_BYTES,
    PUBLISH_MSGS,
    rate_text,
)
from policies.units import parse_size

OVERVIEW_PATH: Final = "/v1/resource-groups"
GROUPS_PATH: Final = "/admin/v2/resourcegroup"
RATE_OPTIONS: Final = {
    "--publish-bytes": PUBLISH_BYTES,
    "--publish-msgs": PUBLISH_MSGS,
    "--dispatch-bytes": DISPATCH_BYTES,
    "--dispatch-msgs": DISPATCH_MSGS,
}
GROUP_COLUMNS: Final = ("GROUP", "PUBLISH", "DISPATCH", "ATTACHED TO")
USAGE_COLUMNS: Final = ("GROUP", "RATE", "LIMIT", "ALL GATEWAYS", "USED", "HERE", "PART", "WAITS")
MAX_ATTACHMENTS: Final = 4
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
    return run_command(args.parser, args, lambda gateway: args.run(gateway, args))


def make_parser() -> CommandParser:
    parser = CommandParser(
        prog="produce-gateway groups",
        description="Resource groups of a running gateway: limits that tenants and namespaces share over all gateways.",
    )
    actions = parser.add_subparsers(required=True, metavar="list|get|set|delete|attach|detach|usage")

    def add(name: str, run: Callable[[AdminEndpoint, argparse.Namespace], str], text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=text)
        action.set_defaults(run=run, parser=action)
        add_examples(action, *_EXAMPLES[name])
        return action

    listing = add("list", _list_groups, "all groups with their limits and attachments")
    usage = add("usage", _show_usage, "the usage of each limit, by all gateways and here")
    get = add("get", _get_group, "one group")
    change = add("set", _set_group, "create a group, or change the limits that are given")
    delete = add("delete", _delete_group, "delete a group that is attached to nothing")
    attach = add("attach", _attach_group, "attach a group to a tenant or a namespace")
    detach = add("detach", _detach_group, "take the group off a tenant or a namespace")
    for action in (get, change, delete, attach):
        action.add_argument("group", metavar="GROUP")
    usage.add_argument("--group", metavar="GROUP", help="only this one")
    for option, key in RATE_OPTIONS.items():
        direction, unit = KEY_MEANINGS[key]
        what = "a size such as 12MB" if unit == "bytes" else "messages"
        change.add_argument(
            option, type=_parse_byte_rate if unit == "bytes" else _parse_message_rate, dest=key, metavar="RATE",
            help=f"{direction}: {what} per second; none: no limit",
        )  # fmt: skip
    add_until_argument(change)
    for action in (attach, detach):
        place = action.add_mutually_exclusive_group(required=True)
        place.add_argument("--tenant", metavar="TENANT")
        place.add_argument("--namespace", type=_parse_namespace, metavar="TENANT/NAMESPACE")
    for action in (listing, usage, get, change, delete, attach, detach):
        add_endpoint_arguments(action)
    add_examples(
        parser,
        "list",
        "usage gateway.yaml -o json",
        "set gold --publish-bytes 12MB --until 2h",
        "attach gold --tenant acme",
    )
    return parser


# --- what is shown ----------------------------------------------------------------------------------------------------


def _list_groups(gateway: AdminEndpoint, args: argparse.Namespace) -> str:
    return _show_overview(gateway, args, _describe_groups)


def _show_usage(gateway: AdminEndpoint, args: argparse.Namespace) -> str:
    return _show_overview(gateway, args, lambda response: _describe_usage(response, args.group))


def _show_overview(
    gateway: AdminEndpoint, args: argparse.Namespace, describe: Callable[[Mapping[str, Any]], list[str]]
) -> str:
    return render_answer(gateway.url + OVERVIEW_PATH, request_json(gateway, OVERVIEW_PATH), args.output, describe)


def _describe_groups(response: Mapping[str, Any]) -> list[str]:
    groups = response["groups"]
    if not groups:
        return ["there are no resource groups: produce-gateway groups set NAME --publish-bytes 12MB makes one"]
    rows = [
        [name, _limits_text(group, "publish"), _limits_text(group, "dispatch"), _attachments_text(group)]
        for name, group in groups.items()
    ]
    lines = format_table(GROUP_COLUMNS, rows, left=len(GROUP_COLUMNS))
    if response["mode"] == "observe":
        lines.append("mode observe: nothing is limited, it is only counted")
    elif response["enforce_percent"] < ALL_CLIENTS:
        lines.append(
            f"enforce_percent {response['enforce_percent']:g}: all other clients are not limited, only counted"
        )
    return [*lines, *(f"warning: {text}" for text in response["warnings"])]


def _limits_text(group: Mapping[str, Any], direction: str) -> str:
    found = [
        rate_text(key, group["rates"][key]["limit"])
        for key in GROUP_KEYS
        if KEY_MEANINGS[key][0] == direction and group["rates"][key]["limit"] is not None
    ]
    return ", ".join(found) or "-"


def _attachments_text(group: Mapping[str, Any]) -> str:
    names = [*(f"tenant {name}" for name in group["tenants"]), *(f"namespace {name}" for name in group["namespaces"])]
    some = ", ".join(names[:MAX_ATTACHMENTS])
    return (some if len(names) <= MAX_ATTACHMENTS else f"{some} and {len(names) - MAX_ATTACHMENTS:,} more") or "-"


def _describe_usage(response: Mapping[str, Any], wanted: str | None) -> list[str]:
    if wanted is not None and wanted not in response["groups"]:
        raise CommandError(f"there is no group {wanted}: produce-gateway groups list shows all of them")
    rows = []
    for name, group in response["groups"].items():
        if wanted in (None, name):
            rows += [_usage_row(name, group, key) for key in GROUP_KEYS]
    return format_table(USAGE_COLUMNS, rows, left=2) if rows else _describe_groups(response)


def _usage_row(name: str, group: Mapping[str, Any], key: str) -> list[str]:
    """`USED`: by all gateways as far as that is known."""
    rate = group["rates"][key]
    return [
        name,
        key,
        "-" if rate["limit"] is None else rate_text(key, rate["limit"]),
        _measured_text(key, rate["fleet"]),
        "-" if rate["limit"] is None else rate["utilization_text"],
        _measured_text(key, rate["here"]),
        _measured_text(key, rate["part"]),
        "yes" if rate["waiting"] else "",
    ]


def _measured_text(key: str, rate: float | None) -> str:
    """Without digits that say nothing."""
    return "-" if rate is None else rate_text(key, round(rate, 0 if rate >= 10 else 2))


def _get_group(gateway: AdminEndpoint, args: argparse.Namespace) -> str:
    path = f"{GROUPS_PATH}/{_quote_name(args.group)}"

    def describe(group: Mapping[str, Any]) -> list[str]:
        limits = [f"  {key}: {'no limit' if group[key] < 0 else rate_text(key, group[key])}" for key in GROUP_KEYS]
        return [f"group {args.group}", *limits]

    return render_answer(gateway.url + path, request_json(gateway, path), args.output, describe)


# --- what is changed --------------------------------------------------------------------------------------------------


def _set_group(gateway: AdminEndpoint, args: argparse.Namespace) -> str:
    body = {key: getattr(args, key) for key in (*GROUP_KEYS, "until") if getattr(args, key) is not None}
    return _send_change(gateway, args, "PUT", f"{GROUPS_PATH}/{_quote_name(args.group)}", body)


def _delete_group(gateway: AdminEndpoint, args: argparse.Namespace) -> str:
    return _send_change(gateway, args, "DELETE", f"{GROUPS_PATH}/{_quote_name(args.group)}")


def _attach_group(gateway: AdminEndpoint, args: argparse.Namespace) -> str:
    return _send_change(gateway, args, "PUT", f"{_attachment_path(args)}/{_quote_name(args.group)}")


def _detach_group(gateway: AdminEndpoint, args: argparse.Namespace) -> str:
    return _send_change(gateway, args, "DELETE", _attachment_path(args))


def _send_change(gateway: AdminEndpoint, args: argparse.Namespace, method: str, path: str, body: Any = None) -> str:
    answer = request_json(gateway, path, method=method, body=body)
    return render_answer(gateway.url + path, answer, args.output, _describe_result)


def _describe_result(response: Mapping[str, Any]) -> list[str]:
    lines = [describe_change(op) for op in response["changes"]]
    lines.append(f"version {response['version']}" if lines else "nothing to change: these values are set already")
    return [*lines, *(f"warning: {text}" for text in response["warnings"])]


def _attachment_path(args: argparse.Namespace) -> str:
    if args.tenant is not None:
        return f"/admin/v2/tenants/{_quote_name(args.tenant)}/resourcegroup"
    tenant, _, namespace = args.namespace.partition("/")
    return f"/admin/v2/namespaces/{_quote_name(tenant)}/{_quote_name(namespace)}/resourcegroup"


def _quote_name(name: str) -> str:
    return quote(name, safe="")


def _parse_namespace(text: str) -> str:
    if text.count("/") != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid namespace; for example: acme/orders")
    return text


def _parse_byte_rate(text: str) -> float:
    try:
        return -1 if text == "none" else parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parse_message_rate(text: str) -> float:
    try:
        return -1 if text == "none" else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid number of messages; for example: 100000, or none"
        ) from error
