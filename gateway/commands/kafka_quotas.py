# `kafka-quotas`: KIP-546's command line for client quotas, with a gateway or a plain cluster behind it.
#
# Its texts are policies.quotas.text's, its calls gateway.quotas.client's. Output is for people and for scripts: in a
# fixed order, names sanitized, nothing on success of --alter; each error is one line on standard error.

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from gateway.kafka import java_properties
from gateway.quotas.client import TIMEOUT_S, Described, QuotaClient, QuotaClientError, Quotas
from policies.quotas.names import QuotaError, sanitize
from policies.quotas.store import Alteration
from policies.quotas.text import check_flags, components_of, describe_text, entity_of, number_text, ops_of, quota_text

PROG: Final = "kafka-quotas"
FAILED: Final = 1
WRONG_USE: Final = 2

Connect = Callable[[str, java_properties.ClientProperties], Quotas]

_EPILOG: Final = """\
Quotas are producer_byte_rate and consumer_byte_rate in bps (bytes per second in the whole cluster), broker_bps (on each
broker) or shares (parts of a broker's total), and request_percentage in percent. Brokers without a gateway know
broker_bps and percent only. A comma or an equals sign in a name is written %2C or %3D, a % itself %25, as it is
printed; --names=user=%3Cdefault%3E is somebody of that name, --defaults=user the default.

  kafka-quotas --bootstrap-server localhost:9092 --list --prefix=user=user-
  kafka-quotas --bootstrap-server localhost:9092 --describe --names=user=user-one,client-id=my-client
  kafka-quotas --bootstrap-server localhost:9092 --alter --names=client-id=my-client --defaults=user \\
      --add=producer_byte_rate:broker_bps=500000 --delete=consumer_byte_rate:bps
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Exit codes: 0 done, 1 not done, 2 a wrong command line, 130 interrupted."""
    try:
        try:
            code = run(sys.argv[1:] if argv is None else argv, _connect)
        except SystemExit as end:  # argparse's, with its own text said
            code = int(end.code or 0)
        sys.stdout.flush()
    except BrokenPipeError:  # `kafka-quotas --list | head`: the flush at exit must not complain either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    except KeyboardInterrupt:
        code = 130
    return code


def run(argv: Sequence[str], connect: Connect) -> int:
    """`main` with whatever `connect` reaches.

    Raises:
        SystemExit: --help, or a wrong command line.
    """
    args = _Parser().parse_args(_unicode(argv))
    try:
        flags = {name.replace("_", "-"): value for name, value in vars(args).items() if value not in (None, False)}
        operation = check_flags(flags)
        names, defaults, prefix = (_joined(args, flag) for flag in ("names", "defaults", "prefix"))
        add, delete = (_joined(args, flag) for flag in ("add", "delete"))
        components, ops = components_of(names, defaults, prefix), ops_of(add, delete)
        entity = None if operation == "list" else entity_of(names, defaults)
    except QuotaError as error:
        _Parser().error(str(error))
    try:
        given = _NOTHING_GIVEN if args.command_config is None else java_properties.load(Path(args.command_config))
        quotas = connect(args.bootstrap_server, given)
        if entity is None:
            _say(list_text(quotas.describe(components)))
        elif operation == "describe":
            effective = quotas.describe_effective(entity, omit_overridden_values=not args.include_overrides)
            _say(describe_text(effective))
        else:
            (refused,) = quotas.alter([Alteration(entity.pairs, ops)], args.validate_only)
            if refused is not None:
                return _fail(str(refused))
    except (QuotaError, QuotaClientError, java_properties.InvalidFile) as error:
        return _fail(str(error))
    return 0


def list_text(described: Sequence[Described]) -> str:
    """--list: each entity with what is set for it, keys that only brokers have behind ours; "" for none."""
    return "\n\n".join("\n".join(_lines(each)) for each in described)


def _lines(described: Described) -> list[str]:
    names = (f"{kind}={'<default>' if name is None else sanitize(name)}" for kind, name in described.pairs)
    return [
        "{" + ", ".join(names) + "}",
        *(quota_text(key, value) for key, value in described.values.items()),
        *(f"{key}={number_text(value)}" for key, value in described.others.items()),
    ]


# --- arguments --------------------------------------------------------------------------------------------------------

_NOTHING_GIVEN: Final = java_properties.ClientProperties({}, None)


class _Parser(argparse.ArgumentParser):
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
            ("list", "entities that match, with what is set for them; a type that isn't given matches anything"),
            ("describe", "what holds for an entity, and where it is set"),
            ("alter", "change what is set for an entity"),
        ):
            self.add_argument(f"--{flag}", action="store_true", help=text)
        for flag, form, text in (
            ("names", "TYPE=NAME,…", "user=NAME, client-id=NAME"),
            ("defaults", "TYPE,…", "types with the default name"),
            ("prefix", "TYPE=PREFIX,…", "with --list: names that begin so"),
            ("add", "NAME:UNIT=VALUE,…", "with --alter: quotas to set"),
            ("delete", "NAME:UNIT,…", "with --alter: quotas to remove"),
        ):
            self.add_argument(f"--{flag}", action="append", metavar=form, help=text)
        for flag, text in (
            ("include-overrides", "with --describe: also what is overridden, behind a *"),
            ("validate-only", "with --alter: say what would be refused, change nothing"),
        ):
            self.add_argument(f"--{flag}", action="store_true", help=text)

    def error(self, message: str) -> NoReturn:
        """One line, without argparse's usage in front of it."""
        self.exit(WRONG_USE, f"{PROG}: {message}\n")


def _unicode(argv: Sequence[str]) -> list[str]:
    for argument in argv:
        try:
            argument.encode()
        except UnicodeEncodeError:
            _Parser().error(f"{argument!r} is not Unicode text: other bytes of a name are written %XX")
    return list(argv)


def _joined(args: argparse.Namespace, flag: str) -> str:
    """What is given, also in several flags of the name, as one list."""
    given: list[str] | None = getattr(args, flag)
    if given is not None and "" in given:
        raise QuotaError(f"--{flag} is empty: leave it out")
    return ",".join(given or ())


def _connect(bootstrap_server: str, given: java_properties.ClientProperties) -> Quotas:
    try:
        return QuotaClient(bootstrap_server, given.properties, given.timeout_s or TIMEOUT_S)
    except QuotaClientError as error:
        raise QuotaClientError(java_properties.in_java_names(str(error))) from error


def _say(text: str) -> None:
    if text:
        sys.stdout.write(text + "\n")


def _fail(text: str) -> int:
    sys.stderr.write(f"{PROG}: {text}\n")
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
