# `kafka-quotas`: KIP-546's command line for client quotas, with a gateway or a plain cluster behind it.
#
# Its texts are policies.quotas.text's, its calls gateway.quotas.client's. Output is for people and for scripts: in a
# fixed order, names sanitized, nothing on success of --alter; each error is one line on standard error.

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from gateway.cli_support.arguments import CommandParser
from gateway.cli_support.running import run_program
from gateway.commands.output import OUTPUT_FORMATS, render_structured
from gateway.commands.quota_files import enforced_as_data, list_as_data, plan_changes, read_quota_file, set_value_text
from gateway.kafka import java_properties
from gateway.quotas.client import (
    TIMEOUT_S,
    BrokerOnlyQuota,
    DescribedQuotas,
    EnforcedQuota,
    QuotaApi,
    QuotaClient,
    QuotaClientError,
    QuotaTakeover,
)
from policies.definitions.rollout import ALL_CLIENTS, rollout_text
from policies.quotas.filter import Component
from policies.quotas.names import Entity, QuotaError, sanitize_name
from policies.quotas.store import Alteration, ResolvedQuota
from policies.quotas.text import (
    check_flags,
    enforced_text,
    entity_text,
    number_text,
    parse_components,
    parse_entity,
    parse_ops,
    quota_text,
)
from policies.units import parse_until

PROG: Final = "kafka-quotas"
FAILED: Final = 1
WRONG_USE: Final = 2
MAX_SHOWN: Final = 20  # of those for whom another value holds

ConnectClient = Callable[[str, java_properties.ClientProperties], QuotaApi]

_EPILOG: Final = """\
Quotas are producer_byte_rate and consumer_byte_rate in bps (bytes per second in the whole cluster), broker_bps (on each
broker) or shares (parts of a broker's total), and request_percentage in percent. Brokers without a gateway know
broker_bps and percent only. A comma or an equals sign in a name is written %2C or %3D, a % itself %25, as it is
printed; --names=user=%3Cdefault%3E is a user of that name, --defaults=user the default.

  kafka-quotas --bootstrap-server localhost:9092 --list --prefix=user=user-
  kafka-quotas --bootstrap-server localhost:9092 --describe --names=user=user-one,client-id=my-client
  kafka-quotas --bootstrap-server localhost:9092 --list -o yaml > quotas.yaml
  kafka-quotas --bootstrap-server localhost:9092 --import quotas.yaml
  kafka-quotas --bootstrap-server localhost:9092 --alter --names=client-id=my-client --defaults=user \\
      --add=producer_byte_rate:broker_bps=500000 --delete=consumer_byte_rate:bps
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Exit codes: 0 done, 1 not done, 2 a wrong command line, 130 interrupted."""
    return run_program(lambda: run_command(sys.argv[1:] if argv is None else argv, _connect_client))


def run_command(argv: Sequence[str], connect: ConnectClient) -> int:
    """`main` with the client that `connect` makes.

    Raises:
        SystemExit: --help, or a wrong command line.
    """
    args = _QuotasParser().parse_args(_check_unicode(argv))
    try:
        flags = {name.replace("_", "-"): value for name, value in vars(args).items() if value not in (None, False)}
        operation = check_flags(flags)
        names, defaults, prefix = (_join_values(args, flag) for flag in ("names", "defaults", "prefix"))
        add, delete = (_join_values(args, flag) for flag in ("add", "delete"))
        components, ops = parse_components(names, defaults, prefix), parse_ops(add, delete)
        entity = parse_entity(names, defaults) if operation in ("describe", "alter") else None
        until_ms = None if args.until is None else parse_until(args.until, round(time.time() * 1000))
    except ValueError as error:  # QuotaError is one
        _QuotasParser().error(str(error))
    try:
        given = (
            _NO_PROPERTIES
            if args.command_config is None
            else java_properties.load_properties(Path(args.command_config))
        )
        quotas = connect(args.bootstrap_server, given)
        if operation == "take-over":
            return _take_over_quotas(quotas, components, args.yes)
        if operation == "import":
            return _import_quotas(quotas, getattr(args, "import"), args.yes)
        if entity is not None and operation == "alter":
            return _alter_quotas(quotas, Alteration(entity.wire_pairs, ops, until_ms), args.validate_only)
        _print_text(_described_text(quotas, args, components, entity))
    except (QuotaError, QuotaClientError, java_properties.InvalidPropertiesFile) as error:
        return _report_failure(str(error))
    return 0


def _described_text(
    quotas: QuotaApi, args: argparse.Namespace, components: Sequence[Component], entity: Entity | None
) -> str:
    """What is enforced for the entity; None: all quotas that the components find."""
    if entity is None:
        described = quotas.describe(components, apart=True)
        return (
            quota_list_text(described)
            if args.output is None
            else render_structured(list_as_data(described), args.output)
        )
    found = quotas.describe_enforced(entity, omit_overridden_values=not args.include_overrides)
    theirs = quotas.describe_others(entity)
    if args.output is not None:
        return render_structured(enforced_as_data(found, theirs), args.output)
    ours, others = _enforced_text(found), _other_lines(theirs, args.include_overrides)
    return "\n".join([ours, *others] if ours else others)


def _alter_quotas(quotas: QuotaApi, alteration: Alteration, validate_only: bool) -> int:
    (refused,) = quotas.alter([alteration], validate_only)
    if refused is not None:
        return _report_failure(str(refused))
    _report_warnings(quotas)
    return 0


def _import_quotas(quotas: QuotaApi, name: str, yes: bool) -> int:
    """Without `yes` the command only prints the changes that it would make, and the refusals."""
    changes = plan_changes(read_quota_file(name), quotas.describe(apart=True))
    if not changes:
        _print_text("nothing to change: all of it is set already")
        return 0
    _print_text("\n\n".join("\n".join(lines) for _, lines in changes))
    refusals = quotas.alter([alteration for alteration, _ in changes], not yes)
    for (_, lines), why in zip(changes, refusals, strict=True):
        if why is not None:
            _report_failure(f"{lines[0]}: {why}")
    done = sum(why is None for why in refusals)
    count = f"{done} {'entity' if done == 1 else 'entities'}"
    _print_text(f"\n{count} changed" if yes else f"\n{count} to change; nothing was done: --yes does it")
    _report_warnings(quotas)
    return FAILED if done < len(changes) else 0


def _take_over_quotas(quotas: QuotaApi, components: Sequence[Component], yes: bool) -> int:
    """Without `yes` the command only prints the changes that it would make, and the refusals."""
    plan = quotas.plan_takeover(components)
    _print_text(takeover_plan_text(plan))
    if not plan.moves:
        _print_text(
            "\nnothing to take over now" if plan.temporary else "the brokers have no such quotas: nothing to take over"
        )
        return 0
    refused = {entity: why for entity, why in quotas.take_over(plan.moves, not yes).items() if why is not None}
    for why in dict.fromkeys(refused.values()):  # one line, where a gateway refuses all for one reason
        first, *others = (entity for entity, each in refused.items() if each == why)
        _report_failure(f"{entity_text(first)}{f' and {len(others)} more' if others else ''}: {why}")
    moved = sum(move.entity not in refused for move in plan.moves)
    count = f"{moved} quota{'' if moved == 1 else 's'}"
    _print_text(f"\n{count} moved" if yes else f"\n{count} to move; nothing was done: --yes does it")
    _report_warnings(quotas)
    return FAILED if refused else 0


def takeover_plan_text(plan: QuotaTakeover) -> str:
    """The values that go (-) and come (+), by entity, and the entities for which another value holds then."""
    lines: list[str] = []
    entity = None
    for move in plan.moves:
        if move.entity != entity:
            entity = move.entity
            lines += ["", entity_text(entity)] if lines else [entity_text(entity)]
        lines.append(f"-{quota_text(move.key, move.theirs)} (brokers)")
        if move.ours != move.value:
            lines += [f"-{quota_text(move.key, move.ours)}"] if move.ours is not None else []
            lines.append(f"+{quota_text(move.key, move.value)}")
    if plan.temporary:
        lines += [""] if lines else []
        lines += [f"{entity_text(entity)}: {key} has an end: take it over afterwards" for entity, key in plan.temporary]
    if plan.changes:
        lines += ["", "other values hold then for"]
        lines += [
            f"{entity_text(entity)}: {key} {_limit_text(before)} -> {_limit_text(after)}"
            for entity, key, before, after in plan.changes[:MAX_SHOWN]
        ]
    if len(plan.changes) > MAX_SHOWN:
        lines.append(f"… and {len(plan.changes) - MAX_SHOWN} more")
    return "\n".join(lines)


def _limit_text(value: float) -> str:
    return "no limit" if math.isinf(value) else number_text(value)


def quota_list_text(described: Sequence[DescribedQuotas]) -> str:
    """--list: each entity with its own values, keys that only brokers have behind ours; "" for none."""
    return "\n\n".join("\n".join(_entity_lines(each)) for each in described)


def _enforced_text(enforced: Sequence[EnforcedQuota]) -> str:
    """--describe; it names the enforcer where both brokers and a gateway enforce quotas, and where the gateway doesn't
    enforce its own for all clients.
    """
    both = len({each.by for each in enforced}) > 1 or any(each.also for each in enforced)
    return enforced_text((each.effective, *_enforcer_texts(each, both)) for each in enforced)


def _enforcer_texts(enforced: EnforcedQuota, both: bool) -> tuple[str, ResolvedQuota | None, str]:
    """The rest of a row for `enforced_text`."""
    percent = enforced.percent
    gateway = f"gateway, {rollout_text(percent)}" if percent < ALL_CLIENTS else ""
    by = gateway if enforced.by == "gateway" else ""
    return by or (enforced.by if both else ""), enforced.also, gateway if enforced.by == "brokers" else ""


def _other_lines(others: Sequence[BrokerOnlyQuota], include_overrides: bool) -> list[str]:
    lines = []
    for key, source, value, overridden in others:
        lines.append(f"{key}={number_text(value)} {entity_text(source)}")
        lines += [
            f"*{key}={number_text(less)} {entity_text(entity)}" for entity, less in overridden if include_overrides
        ]
    return lines


def _entity_lines(described: DescribedQuotas) -> list[str]:
    names = (f"{kind}={'<default>' if name is None else sanitize_name(name)}" for kind, name in described.pairs)
    return [
        "{" + ", ".join(names) + "}",
        *(set_value_text(described, key) for key in described.values),
        *(f"{quota_text(key, value)} (brokers)" for key, value in described.upstream.items()),
        *(f"{key}={number_text(value)}" for key, value in described.others.items()),
    ]


# --- arguments --------------------------------------------------------------------------------------------------------

_NO_PROPERTIES: Final = java_properties.ClientProperties({}, None)


class _QuotasParser(CommandParser):
    def __init__(self) -> None:
        super().__init__(
            prog=PROG,
            description="List, explain and change client quotas (KIP-546).",
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT", help="a gateway or a Kafka broker")
        self.add_argument("--command-config", metavar="FILE", help="a Java client's properties: SASL, TLS")
        for flag, text in (
            ("list", "entities that match, with their own values; a type that isn't given matches anything"),
            ("describe", "the values in force for an entity, and where they are set"),
            ("alter", "change the values set for an entity"),
            ("take-over", "move quotas of the brokers behind a gateway into it: says which, and does it with --yes"),
        ):
            self.add_argument(f"--{flag}", action="store_true", help=text)
        for flag, form, text in (
            ("names", "TYPE=NAME,…", "user=NAME, client-id=NAME"),
            ("defaults", "TYPE,…", "types with the default name"),
            ("prefix", "TYPE=PREFIX,…", "with --list, --take-over: names that begin so"),
            ("add", "NAME:UNIT=VALUE,…", "with --alter: quotas to set"),
            ("delete", "NAME:UNIT,…", "with --alter: quotas to remove"),
        ):
            self.add_argument(f"--{flag}", action="append", metavar=form, help=text)
        self.add_argument(
            "--import",
            metavar="FILE",
            help="make the entities of the file (client_quotas, JSON or YAML; -: standard input) have just its values:"
            " says which change, and does it with --yes",
        )
        self.add_argument(
            "-o",
            "--output",
            choices=OUTPUT_FORMATS[1:],
            help="with --list, --describe: as data; that of --list can be imported",
        )
        self.add_argument(
            "--until",
            metavar="TIME",
            help="with --alter: the values of --add end then, the earlier ones hold again: 2h, 2026-11-22T21:00:00Z",
        )
        for flag, text in (
            ("include-overrides", "with --describe: also the overridden values, behind a *"),
            ("yes", "with --take-over, --import: do it"),
            ("validate-only", "with --alter: print the refusals, change nothing"),
        ):
            self.add_argument(f"--{flag}", action="store_true", help=text)

    def error(self, message: str) -> NoReturn:
        """One line, without argparse's usage in front of it."""
        self.exit(WRONG_USE, f"{PROG}: {self.describe_error(message)}\n")


def _check_unicode(argv: Sequence[str]) -> list[str]:
    for argument in argv:
        try:
            argument.encode()
        except UnicodeEncodeError:
            _QuotasParser().error(f"{argument!r} is not Unicode text: other bytes of a name are written %XX")
    return list(argv)


def _join_values(args: argparse.Namespace, flag: str) -> str:
    """The given values, also of several flags of the name, as one list."""
    given: list[str] | None = getattr(args, flag)
    if given is not None and "" in given:
        raise QuotaError(f"--{flag} is empty: leave it out")
    return ",".join(given or ())


def _connect_client(bootstrap_server: str, given: java_properties.ClientProperties) -> QuotaApi:
    try:
        return QuotaClient(bootstrap_server, given.properties, given.timeout_s or TIMEOUT_S)
    except QuotaClientError as error:
        raise QuotaClientError(java_properties.use_java_names(str(error))) from error


def _print_text(text: str) -> None:
    if text:
        sys.stdout.write(text.removesuffix("\n") + "\n")


def _report_warnings(quotas: QuotaApi) -> None:
    sys.stderr.write("".join(f"{PROG}: warning: {warning}\n" for warning in quotas.warnings))


def _report_failure(text: str) -> int:
    sys.stderr.write(f"{PROG}: {text}\n")
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
