# `python -m gateway.embedded`: `make env` runs `java` before and `fetch` after it installs the packages; `run` is a
# Kafka to try things on, until Ctrl-C; its records go with it.

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence

from gateway.cli_support.arguments import CommandParser
from gateway.embedded import class_data
from gateway.embedded.cluster import EmbeddedCluster
from gateway.embedded.errors import EmbeddedError
from gateway.embedded.jars import fetch_kafka, find_java_path
from gateway.embedded.ports import HOST, find_port_fault

# Kafka's default; tests turn it off, since they want to see a typing error.
_AUTO_CREATE = {"auto.create.topics.enable": "true"}


def main(arguments: Sequence[str]) -> int:
    """Print Java's path, or that of the folder with Kafka's jars and classes, or run Kafka; return the exit status."""
    args = _make_parser().parse_args(arguments)
    try:
        if args.command == "run":
            return _run_cluster(args.port, args.brokers)
        if args.command == "java":
            found = find_java_path()
        else:
            found = str(fetch_kafka())
            class_data.make_archive()
        sys.stdout.write(f"{found}\n")
    except EmbeddedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _make_parser() -> CommandParser:
    parser = CommandParser(prog="python -m gateway.embedded")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in (("java", "print the path of the Java to run Kafka with"), ("fetch", "fetch Kafka")):
        commands.add_parser(name, help=text, description=text)
    text = "run a Kafka to try things on, until Ctrl-C"
    run = commands.add_parser("run", help=text, description=text)
    run.add_argument("--port", type=_parse_port, default=9092, help="of the first broker (default %(default)s)")
    run.add_argument("--brokers", type=int, choices=range(1, 10), default=1, metavar="N", help="1 to 9 (default 1)")
    return parser


def _parse_port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_500:
        raise argparse.ArgumentTypeError(f"{text!r}: 1 to 65500")
    return int(text)


def _run_cluster(port: int, brokers: int) -> int:
    for each in range(port, port + 2 * brokers):  # a listener and a controller each
        if fault := find_port_fault(each):  # whatever is there would pass for the Kafka that is started
            raise EmbeddedError(f"{HOST}:{each}: {fault}: --port chooses other ports")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), EmbeddedCluster(brokers, _AUTO_CREATE, port=port) as cluster:
        sys.stdout.write(f"{cluster.bootstrap_servers}\n")
        sys.stdout.flush()
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
