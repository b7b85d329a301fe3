# `python -m gateway.embedded java | fetch`: `make env` runs it before and after it installs the packages.
# `python -m gateway.embedded run [--port 9092] [--brokers 1]`: a Kafka to try things on, until Ctrl-C; its records go
# with it.

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence

from gateway.embedded import class_data
from gateway.embedded.cluster import EmbeddedCluster
from gateway.embedded.errors import EmbeddedError
from gateway.embedded.jars import fetch_kafka, find_java_path

# Kafka's default; tests turn it off, since they want to see a typing error.
_AUTO_CREATE = {"auto.create.topics.enable": "true"}


def main(arguments: Sequence[str]) -> int:
    """Print Java's path, or that of the folder with Kafka's jars and classes, or run Kafka; return the exit status."""
    try:
        if arguments and arguments[0] == "run":
            return _run_cluster(arguments[1:])
        if list(arguments) == ["java"]:
            found = find_java_path()
        else:
            found = str(fetch_kafka())
            class_data.make_archive()
        sys.stdout.write(f"{found}\n")
    except EmbeddedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _run_cluster(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.embedded run", description="A Kafka to try things on.")
    parser.add_argument("--port", type=int, default=9092, help="of the first broker (default %(default)s)")
    parser.add_argument("--brokers", type=int, default=1, help="number of brokers (default %(default)s)")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), EmbeddedCluster(args.brokers, _AUTO_CREATE, port=args.port) as cluster:
        sys.stdout.write(f"{cluster.bootstrap_servers}\n")
        sys.stdout.flush()
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
