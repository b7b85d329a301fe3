# deploy/compose: valid by Compose's own schema (compose-spec.json, with its licence beside it), and what it says fits
# together: files, networks, ports, versions, the gateway's configuration.

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway import cli, config
from gateway.audit.stream import command as audit
from gateway.embedded import KAFKA_VERSION

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "compose"
SCHEMA = json.loads((Path(__file__).parent / "compose-spec" / "compose-spec.json").read_text("utf-8"))
TEXT = (FOLDER / "compose.yaml").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]
GATEWAY = config.parse_settings((FOLDER / "gateway.yaml").read_text("utf-8"))


def test_it_is_valid_by_the_schema_of_compose() -> None:
    validator = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
    assert [error.message for error in validator.iter_errors(COMPOSE)] == []


@pytest.mark.parametrize("wrong", [{"port": ["1:1"]}, {"healthcheck": {"tests": []}}, {"read_only": 3}])
def test_the_schema_would_refuse_what_is_wrong(wrong: dict[str, Any]) -> None:
    bad = {**COMPOSE, "services": {**SERVICES, "gateway": {**SERVICES["gateway"], **wrong}}}
    validator = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
    assert list(validator.iter_errors(bad))


def test_images_are_of_one_version_each() -> None:
    images = {service["image"] for service in SERVICES.values()}
    for image in images:
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", image), image
    assert f"apache/kafka:{KAFKA_VERSION}" in images


def test_files_and_names_that_it_refers_to_exist() -> None:
    for each in COMPOSE["configs"].values():
        assert (FOLDER / each["file"]).is_file()
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            found = (FOLDER / source).is_dir() if source.startswith(".") else source in COMPOSE["volumes"]
            assert found, (name, source)
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert set(service.get("depends_on", ())) <= set(SERVICES)
        assert {each["source"] for each in service.get("configs", ())} <= set(COMPOSE["configs"])
        if "build" in service:
            context = (FOLDER / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"].get("dockerfile", "Dockerfile")).is_file()


def test_everything_is_published_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) > 4
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert GATEWAY.admin.open  # which is right only because of that


def test_brokers_are_reached_through_the_gateway_alone() -> None:
    inside = {name for name, service in SERVICES.items() if "brokers" in service["networks"]}
    assert inside == {"kafka-1", "kafka-2", "kafka-3", "gateway", "audit"}
    assert not [name for name in inside if name.startswith("kafka") and SERVICES[name].get("ports")]


def test_each_broker_is_one_of_the_voters_and_advertises_its_own_name() -> None:
    nodes = {name: service["environment"] for name, service in SERVICES.items() if name.startswith("kafka-")}
    quorum = nodes["kafka-1"]["KAFKA_CONTROLLER_QUORUM_VOTERS"]
    voters = {name: number for number, name in re.findall(r"(\d+)@([\w-]+):9093", quorum)}
    assert {name: own["KAFKA_NODE_ID"] for name, own in nodes.items()} == voters
    for name, own in nodes.items():
        assert own["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{name}:9092"
        assert SERVICES[name]["volumes"] == [f"{name}:{own['KAFKA_LOG_DIRS']}"]
    assert len({own["CLUSTER_ID"] for own in nodes.values()}) == 1
    assert GATEWAY.upstream.bootstrap_servers.split(",") == [f"{name}:9092" for name in nodes]


def test_the_ports_of_the_gateway_are_published() -> None:
    listener = GATEWAY.all_listeners["machine"]
    wanted = {listener.port, *(listener.broker_port(node_id) for node_id in (1, 2, 3)), GATEWAY.admin.port}
    wanted.add(GATEWAY.health_address[1])
    published = set()
    for port in SERVICES["gateway"]["ports"]:
        _, outside, inside = port.rsplit(":", 2)
        assert outside == inside  # else clients are told the wrong one
        first, _, last = inside.partition("-")
        published |= set(range(int(first), int(last or first) + 1))
    assert published == wanted


def test_the_gateway_is_asked_under_the_names_that_it_knows() -> None:
    prometheus = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text("utf-8"))
    (target,) = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in GATEWAY.admin.host_names
    assert int(port) == GATEWAY.admin.port
    assert "gateway" in SERVICES


def test_the_gateway_has_time_to_drain() -> None:
    seconds = int(SERVICES["gateway"]["stop_grace_period"].removesuffix("s"))
    assert seconds > GATEWAY.shutdown_delay + GATEWAY.drain_timeout


def test_check_finds_nothing_to_warn_of_but_what_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(FOLDER / "gateway.yaml")]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert [line for line in warnings if "admin" not in line] == []


def test_the_audit_is_given_options_that_there_are() -> None:
    words = SERVICES["audit"]["command"]
    assert words[:3] == ["produce-gateway", "audit", "stream"]
    audit._PARSERS["stream"]().parse_args(words[3:])


def test_pages_use_services_and_profiles_that_there_are() -> None:
    page = (ROOT / "docs" / "how-to" / "compose.md").read_text("utf-8")
    profiles = {profile for service in SERVICES.values() for profile in service.get("profiles", ())}
    for line in re.findall(r"^docker compose (.*)$", page, re.MULTILINE):
        words = shlex.split(line.partition("#")[0])
        if "--profile" in words:
            assert words[words.index("--profile") + 1] in profiles
        if words[0] in ("run", "exec"):
            assert next(word for word in words[1:] if not word.startswith("-")) in SERVICES
