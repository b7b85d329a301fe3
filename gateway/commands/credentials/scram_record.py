# `produce-gateway scram-record USER`: a user's line for authentication.credentials_file, from a password on standard
# input, so that no command line has it. The password itself is printed nowhere.

from __future__ import annotations

import getpass
import json
import secrets
import sys
from typing import Final

from gateway.cli_support.arguments import CommandParser, add_examples
from protocol.authentication import scram
from protocol.rewriting.identity import UnusableName, principal_name

_DEFAULT_SHAPE: Final = scram.RecordShape()
DEFAULT_ITERATIONS: Final = _DEFAULT_SHAPE.iterations  # 4 ms: as long as each guess takes with a stolen file


def main(argv: list[str]) -> int:
    """Print the record; the result is the exit code."""
    parser = CommandParser(
        prog="produce-gateway scram-record",
        description="Make a user's record for authentication.credentials_file, of the password on standard input.",
    )
    parser.add_argument("user", help="its name, without User:")
    parser.add_argument("--mechanism", choices=sorted(scram.HASHES), default="SCRAM-SHA-512")
    parser.add_argument("--iterations", type=int, default=DEFAULT_ITERATIONS, help=f"default: {DEFAULT_ITERATIONS}")
    add_examples(parser, "alice >> credentials.yaml", "alice --mechanism SCRAM-SHA-256 < password")
    args = parser.parse_args(argv)
    if not scram.MIN_ITERATIONS <= args.iterations <= scram.MAX_ITERATIONS:
        parser.error(f"--iterations: must be {scram.MIN_ITERATIONS} to {scram.MAX_ITERATIONS}")
    try:
        principal_name(args.user)
    except UnusableName as error:
        parser.error(f"user: {error}")
    try:
        password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.buffer.readline().decode().rstrip("\r\n")
    except UnicodeDecodeError:
        print("scram-record: the password must be UTF-8 text", file=sys.stderr)
        return 1
    if not password:
        print("scram-record: a password is needed on standard input", file=sys.stderr)
        return 1
    salt = secrets.token_bytes(_DEFAULT_SHAPE.salt_bytes)
    record = scram.make_record(scram.HASHES[args.mechanism], password, salt, args.iterations)
    name = json.dumps(args.user, ensure_ascii=False)  # YAML reads it as the same text
    print(f'{name}: {{{args.mechanism}: "{scram.record_text(record)}"}}')
    return 0
