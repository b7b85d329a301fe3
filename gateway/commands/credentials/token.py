# `produce-gateway token create`: a token for one person or program, and its line for admin.token_file. The token is
# printed once and kept nowhere; the line has its hash.

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gateway.access_tokens.roles import ROLE_NAMES, parse_role
from gateway.access_tokens.tokens import check_name, format_token_line, make_token, read_holders
from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.commands.output import add_format_arguments, format_pairs, render_response


def main(argv: list[str]) -> int:
    """Exit codes: 0 made, 1 the file can't be used, 2 a wrong command line."""
    args = make_parser().parse_args(argv)
    token = make_token()
    line = format_token_line(args.name, parse_role(args.role), token)
    if args.append is not None:
        try:
            _append_line(args.append, line)
        except (OSError, ValueError) as error:
            print(f"{args.append}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
            return 1
    result = {"token": token, "line": line}
    sys.stdout.write(render_response(result, args.output, lambda: format_pairs(result)))
    return 0


def make_parser() -> CommandParser:
    parser = CommandParser(
        prog="produce-gateway token",
        description="Tokens for the admin port. The token is printed once and can't be shown again.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a token, and its line for admin.token_file")
    create.add_argument("--name", required=True, type=_parse_name, help="its owner, recorded with each change")
    create.add_argument("--role", required=True, choices=ROLE_NAMES)
    create.add_argument("--append", type=Path, metavar="FILE", help="append the line to this token file")
    add_format_arguments(create)
    add_examples(
        create,
        "--name alice --role operator",
        "--name prometheus --role viewer --append /etc/produce-gateway/tokens -o json",
    )
    add_examples(parser, "create --name alice --role operator")
    return parser


def _parse_name(text: str) -> str:
    try:
        return check_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _append_line(path: Path, line: str) -> None:
    """In one write: a gateway that reads the file meanwhile sees the line or doesn't.

    Raises:
        OSError, ValueError: the file can't be used, and stays as it is.
    """
    before = b""
    if path.exists() and path.stat().st_size:
        before = path.read_bytes()
        if any(text.strip() and not text.lstrip().startswith(b"#") for text in before.splitlines()):
            read_holders(path)
    is_ended = not before or before.endswith(b"\n")
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"{'' if is_ended else chr(10)}{line}\n".encode())
    finally:
        os.close(fd)
