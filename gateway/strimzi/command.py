# The command: FILE is a broker's server.properties or a Kafka resource (spec.kafka.quotas, spec.kafka.config). What it
# can't take over it says: in the output as a comment where it belongs, on standard error where the reader has to act.
#
# Knows no cluster: it only translates. Its output has passed gateway.config.

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

from gateway import config
from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.kafka import java_properties
from gateway.strimzi.kafka_resource import parse_resource
from gateway.strimzi.plugin_settings import PLUGIN_PREFIX, ImportInput, ImportRefused
from gateway.strimzi.yaml_writer import YamlWriter


class ImportResult(NamedTuple):
    text: str  # YAML
    remarks: list[str]


def main(argv: list[str]) -> int:
    """Run the command; the result is the exit code."""
    parser = CommandParser(
        prog="produce-gateway import-strimzi",
        description="Print a gateway configuration made from that of Strimzi's quotas plugin.",
    )
    parser.add_argument(
        "file", metavar="FILE", help="server.properties, or a Kafka resource as YAML or JSON; - is stdin"
    )
    parser.add_argument(
        "--bootstrap-servers",
        metavar="HOST:PORT,…",
        default="",
        help="the brokers' listener that clients' connections go to, where FILE names another one or none",
    )
    parser.add_argument(
        "--aggregate-limits",
        action="store_true",
        help="take storage.soft and storage.hard, which limited a broker's volumes together, as limits of each volume",
    )
    add_examples(
        parser,
        "server.properties --bootstrap-servers kafka:9092 > gateway.yaml",
        "- < kafka-resource.yaml                          # kubectl get kafka NAME -o yaml",
    )
    args = parser.parse_args(argv)
    name = "standard input" if args.file == "-" else args.file
    try:
        result = convert_settings(
            _read_file(args.file), name, args.bootstrap_servers, aggregate_limits=args.aggregate_limits
        )
    except ImportRefused as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    for remark in result.remarks:
        print(f"{name}: {remark}", file=sys.stderr)
    print(result.text, end="")
    return 0


def convert_settings(
    text: str, name: str, bootstrap_servers: str = "", *, aggregate_limits: bool = False
) -> ImportResult:
    """Translate a file's text; its `name` decides between properties and YAML where the text doesn't.

    Raises:
        ImportRefused: there is nothing of the plugin, or its settings can't be.
    """
    given = parse_resource(text) if _is_kafka_resource(text, name) else _parse_properties(text)
    properties = {key: value.strip() for key, value in given.properties.items()}
    if not any(key.startswith(PLUGIN_PREFIX) for key in properties):
        raise ImportRefused(
            f"there is no {PLUGIN_PREFIX}* in it, and no spec.kafka.quotas of type strimzi: nothing to import"
        )
    writer = YamlWriter(properties, list(given.remarks), aggregate_limits)
    writer.check_property_names()
    printed = writer.write_yaml(name, bootstrap_servers, given.listeners)
    try:
        config.parse_settings(printed, "the resulting YAML")
    except config.ConfigError as error:
        raise ImportRefused("; ".join(error.lines)) from error
    return ImportResult(printed, writer.remarks)


def _parse_properties(text: str) -> ImportInput:
    try:
        return ImportInput(java_properties.parse_properties(text), [], [])
    except java_properties.InvalidPropertiesFile as error:
        raise ImportRefused(str(error)) from error


def _read_file(file: str) -> str:
    try:
        return sys.stdin.buffer.read().decode() if file == "-" else Path(file).read_text("utf-8")
    except OSError as error:
        raise ImportRefused(f"can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ImportRefused(f"not UTF-8 text: {error.reason} at byte {error.start}") from error


def _is_kafka_resource(text: str, name: str) -> bool:
    if name.endswith((".yaml", ".yml", ".json")):
        return True
    return not name.endswith(".properties") and bool(re.search(r'^[\s{-]*"?kind"?\s*:', text, re.MULTILINE))
