# The chart: rendered by Helm with each file of values in its ci/, judged by Kubernetes' own schemas, and compared with
# the program: its configuration is parsed, and its ports, paths and times are those that the manifests have.

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate
import pytest
import yaml

from gateway import cli, config
from gateway.commands import health
from gateway.health import DEAD_S
from tests.deploy import programs

pytestmark = pytest.mark.timeout(1200)  # the first test on a machine compiles Helm

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "produce-gateway"
VALUES = sorted((CHART / "ci").glob("*.yaml"))
ids = [path.stem for path in VALUES]
MINIMAL = CHART / "ci" / "minimal.yaml"
RELEASE, NAMESPACE = "gw", "kafka"
NAME = f"{RELEASE}-produce-gateway"
KUBERNETES = ("1.27", programs.KUBERNETES)  # the oldest that Chart.yaml allows, and the newest
CUSTOM = {"PrometheusRule", "ServiceMonitor"}  # of an operator: Kubernetes has no schema of them
each_values = pytest.mark.parametrize("values", VALUES, ids=ids)


class _Loader(yaml.SafeLoader):
    """Refuses what YAML forbids and PyYAML takes: a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"{node.start_mark}: {keys}"
        return super().construct_mapping(node, deep)


def run(*words: object) -> tuple[int, str, str]:
    command = [str(programs.helm()), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


class Rendered(NamedTuple):
    manifests: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.manifests if each["kind"] == kind]

    def one(self, kind: str, name: str = NAME) -> dict[str, Any]:
        (found,) = (each for each in self.of(kind) if each["metadata"]["name"] == name)
        return found

    @property
    def pod(self) -> dict[str, Any]:
        """Of the gateways."""
        spec: dict[str, Any] = self.one("StatefulSet")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.pod["containers"]
        return dict(container)

    @property
    def settings(self) -> config.Settings:
        return config.parse_settings(self.one("ConfigMap")["data"]["gateway.yaml"].replace(_PASSWORD, " secret"))

    def service_ports(self, name: str = NAME) -> dict[str, int]:
        """Of a Service, by the name of the container's port."""
        return {port["targetPort"]: port["port"] for port in self.one("Service", name)["spec"]["ports"]}

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}


_PASSWORD = "\n    file: /etc/produce-gateway/upstream/password"  # which is not there when the test runs


@functools.cache
def _rendered(values: Path, sets: tuple[str, ...]) -> Rendered:
    more = [word for each in sets for word in ("--set", each)]
    code, said, error = run("template", RELEASE, CHART, "--namespace", NAMESPACE, "--values", values, *more)
    assert code == 0, error
    return Rendered([each for each in yaml.load_all(said, _Loader) if each])


def rendered(values: Path, *sets: str) -> Rendered:
    return _rendered(values, sets)


def refusal(*sets: str, values: Path = MINIMAL) -> str:
    more = [word for each in sets for word in ("--set", each)]
    code, _, error = run("template", RELEASE, CHART, "--values", values, *more)
    assert code != 0, sets
    return error


@each_values
def test_helm_lint_finds_nothing(values: Path) -> None:
    code, said, error = run("lint", "--strict", "--values", values, CHART)
    assert (code, error) == (0, ""), said
    assert not re.findall(r"^\[(?:ERROR|WARNING)\].*", said, re.MULTILINE)


@each_values
@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_are_valid_for_kubernetes(values: Path, version: str) -> None:
    for manifest in rendered(values).manifests:
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schemas_would_refuse_a_key_that_there_is_not() -> None:
    manifest = rendered(MINIMAL).one("PodDisruptionBudget")
    wrong = {**manifest, "spec": {**manifest["spec"], "maxUnavailables": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[1], strict=True)


@each_values
def test_the_configuration_is_one_that_the_gateway_takes(values: Path) -> None:
    made = rendered(values)
    settings = made.settings
    listener = settings.all_listeners["default"]
    assert (listener.host, settings.admin.host) == ("0.0.0.0", "0.0.0.0")
    ports = made.ports
    assert ports.pop("kafka") == listener.port
    assert ports.pop("admin") == settings.admin.port
    assert settings.health_address == ("0.0.0.0", ports.pop("health"))
    assert ports == {f"broker-{node}": listener.broker_port(node) for node in _ids(ports)}
    assert made.container["args"][0] in cli._command_names()


@each_values
def test_clients_are_told_addresses_that_services_have(values: Path) -> None:
    made = rendered(values)
    listener = made.settings.all_listeners["default"]
    host, port = listener.bootstrap_address
    assert made.service_ports()["kafka"] == port
    if host.endswith(".svc"):
        assert host == f"{NAME}.{NAMESPACE}.svc"
    for node in _ids(made.ports):
        host, port = listener.broker_address(node)
        own = f"{NAME}-broker-{node}"
        if host == f"{own}.{NAMESPACE}.svc":
            assert made.service_ports(own) == {f"broker-{node}": port}
        else:
            assert made.service_ports()[f"broker-{node}"] == port


def _ids(names: Mapping[str, Any]) -> list[int]:
    return [int(name.removeprefix("broker-")) for name in names if name.startswith("broker-")]


def test_with_sni_all_brokers_are_behind_one_port() -> None:
    made = rendered(CHART / "ci" / "sni-tls.yaml")
    assert made.service_ports() == {"kafka": 443}
    assert set(made.ports) == {"kafka", "admin", "health"}
    listener = made.settings.all_listeners["default"]
    assert listener.broker_address(7) == ("broker-7.kafka.example", 443)
    assert listener.bootstrap_address == ("kafka.example", 443)
    assert made.settings.upstream.properties["sasl.password"] == "secret"


def test_large_numbers_are_written_as_they_were_given() -> None:
    made = rendered(CHART / "ci" / "everything.yaml")
    assert made.settings.thresholds.total == 20_000_000
    assert made.settings.all_listeners["default"].bootstrap_address == ("gateway.example", 19092)


@each_values
def test_files_that_the_configuration_names_are_mounted(values: Path) -> None:
    made = rendered(values)
    mounts = {mount["name"]: mount["mountPath"] for mount in made.container["volumeMounts"]}
    statefulset = made.one("StatefulSet")["spec"]
    volumes = {volume["name"] for volume in made.pod["volumes"]}
    claims = {claim["metadata"]["name"] for claim in statefulset.get("volumeClaimTemplates", ())}
    assert mounts.keys() == volumes | claims
    assert not volumes & claims
    text = made.one("ConfigMap")["data"]["gateway.yaml"]
    for path in re.findall(r"/etc/produce-gateway/[\w./-]+", text + " ".join(made.container["args"])):
        assert str(Path(path).parent) in mounts.values(), path
    assert mounts["state"] == "/var/lib/produce-gateway"  # where the image works


@each_values
def test_there_is_time_to_drain(values: Path) -> None:
    made = rendered(values)
    settings = made.settings
    assert made.pod["terminationGracePeriodSeconds"] == settings.shutdown_delay + settings.drain_timeout + 10


@each_values
def test_pods_fit_the_restricted_profile(values: Path) -> None:
    for pod in _pods(rendered(values).manifests):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


def _pods(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for each in value.values():
            yield from _pods(each)
    elif isinstance(value, list):
        for each in value:
            yield from _pods(each)


@each_values
def test_selectors_find_the_gateways_and_nothing_else(values: Path) -> None:
    made = rendered(values)
    labels = made.one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    other = made.one("Pod", f"{NAME}-test-ready")["metadata"]["labels"]
    selectors = [each["spec"]["selector"] for each in made.of("Service")]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in made.of("PodDisruptionBudget")]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in made.of("NetworkPolicy")]
    selectors.append(made.one("StatefulSet")["spec"]["selector"]["matchLabels"])
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not selector.items() <= other.items()


PROBES = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


@each_values
def test_probes_ask_the_port_that_load_on_the_admin_server_does_not_reach(values: Path) -> None:
    made = rendered(values)
    for name, path in PROBES.items():
        probe = made.container[name]
        assert probe["httpGet"] == {"path": path, "port": "health"}  # in plain HTTP, without a certificate
    # A restart of the pod ends all connections: control has a minute to come back, and liveness asks for another one.
    liveness = made.container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= DEAD_S


@each_values
def test_others_ask_the_ports_as_they_have_to_be_asked(values: Path) -> None:
    made = rendered(values)
    admin = made.settings.admin
    (test,) = made.one("Pod", f"{NAME}-test-ready")["spec"]["containers"]
    args = health.make_parser().parse_args(test["args"][1:])
    assert (test["args"][0], args.ready) == ("health", True)
    service, _, port = args.url.removeprefix("http://").partition(":")
    ports = {"admin": admin.port, "health": made.settings.health_address[1]}
    assert made.service_ports(service) == ports
    assert int(port) == ports["health"]
    for monitor in made.of("ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint.get("scheme", "http") == ("https" if admin.tls else "http")
        assert ("cert" in endpoint.get("tlsConfig", {})) == (admin.client_auth == "required")


def test_a_network_policy_names_each_port_and_lets_the_nodes_probe() -> None:
    made = rendered(CHART / "ci" / "everything.yaml")
    rules = made.one("NetworkPolicy")["spec"]["ingress"]
    named = [port["port"] for rule in rules for port in rule["ports"]]
    assert sorted(named) == sorted(made.ports)
    (probing,) = [rule for rule in rules if rule["ports"][0]["port"] == "health"]
    assert "from" not in probing  # which is everybody: no selector means a node


def test_a_network_policy_lets_the_chart_s_own_test_in() -> None:
    values = ["networkPolicy.health[0].ipBlock.cidr=10.0.0.0/8", "networkPolicy.enabled=true"]
    (rules,) = rendered(MINIMAL, *values).of("NetworkPolicy")
    (without,) = rendered(MINIMAL, *values, "tests.enabled=false").of("NetworkPolicy")
    (test,) = rendered(MINIMAL).of("Pod")
    *given, own = rules["spec"]["ingress"][2]["from"]
    assert given == without["spec"]["ingress"][2]["from"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    wanted = own["podSelector"]["matchLabels"]
    assert wanted.items() <= test["metadata"]["labels"].items()


def test_everything_is_there_when_it_is_asked_for_and_not_before() -> None:
    optional = {"HorizontalPodAutoscaler", "NetworkPolicy", "PrometheusRule", "ServiceMonitor"}
    kinds = {each["kind"] for each in rendered(CHART / "ci" / "everything.yaml").manifests}
    assert optional <= kinds
    assert not optional & {each["kind"] for each in rendered(MINIMAL).manifests}
    everything = rendered(CHART / "ci" / "everything.yaml")
    assert "replicas" not in everything.one("StatefulSet")["spec"]  # which the autoscaler sets
    target = everything.one("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("StatefulSet", NAME)
    monitor = everything.one("ServiceMonitor")["spec"]
    admin = everything.one("Service", f"{NAME}-admin")
    assert monitor["endpoints"][0]["port"] in [port["name"] for port in admin["spec"]["ports"]]
    found = [each["metadata"]["name"] for each in everything.of("Service") if _selects(monitor["selector"], each)]
    assert found == [f"{NAME}-admin"]


def _selects(selector: dict[str, Any], manifest: dict[str, Any]) -> bool:
    labels: dict[str, str] = manifest["metadata"]["labels"]
    return bool(selector["matchLabels"].items() <= labels.items())


@pytest.mark.parametrize("sets", [(), ("fullnameOverride=gw",), ("nameOverride=kafka-gate",)])
def test_the_alerts_know_gateways_by_their_job(sets: tuple[str, ...]) -> None:
    made = rendered(MINIMAL, "serviceMonitor.enabled=true", *sets)
    (monitor,) = made.of("ServiceMonitor")
    (service,) = (each for each in made.of("Service") if each["metadata"]["name"].endswith("-admin"))
    (endpoint,) = monitor["spec"]["endpoints"]
    jobs = [each["replacement"] for each in endpoint.get("relabelings", ()) if each["targetLabel"] == "job"]
    (known,) = set(re.findall(r'job=~"(.*?)"', (CHART / "rules.yml").read_text()))
    assert re.fullmatch(known, jobs[0] if jobs else service["metadata"]["name"])


def test_the_alerts_are_those_that_are_tested() -> None:
    rules = CHART.parents[1] / "prometheus" / "rules.yml"
    assert (CHART / "rules.yml").read_text("utf-8") == rules.read_text("utf-8"), f"cp {rules} {CHART}"
    everything = rendered(CHART / "ci" / "everything.yaml")
    assert everything.one("PrometheusRule")["spec"] == yaml.safe_load(rules.read_text("utf-8"))


def test_a_changed_configuration_restarts_pods_and_nothing_else_does() -> None:
    def checksum(*sets: str) -> str:
        made = rendered(MINIMAL, *sets)
        return str(made.one("StatefulSet")["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum() == checksum("replicaCount=5")
    assert checksum() != checksum("config.mode=observe")
    kept = rendered(MINIMAL, "restartOnConfigChange=false").one("StatefulSet")["spec"]["template"]["metadata"]
    assert "checksum/config" not in (kept["annotations"] or {})


def test_a_configuration_of_ones_own_replaces_the_one_that_is_made() -> None:
    made = rendered(MINIMAL, "existingConfigSecret=mine")
    assert not made.of("ConfigMap")
    (volume,) = (volume for volume in made.pod["volumes"] if volume["name"] == "config")
    assert volume["secret"]["secretName"] == "mine"


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["replicas=3"], "replicas"),
        (["replicaCount=many"], "replicaCount"),
        (["listener.mode=nodes"], "listener"),
        (["listener.port=80"], "port"),
        (["listener.brokerIds={1,1}"], "brokerIds"),
        (["listener.advertisedBrokerHostPattern=broker.example"], "advertisedBrokerHostPattern"),
        (["upstream.bootstrapServers=kafka"], "bootstrapServers"),
        (["upstream.properties.sasl\\.password=secret"], "password"),
        (["upstream.properties.group\\.id=x"], "group.id"),
        (["tls.clientAuth=maybe"], "clientAuth"),
        (["persistence.size=big"], "size"),
        (["service.type=ExternalName"], "type"),
        (["config=null"], "missing property 'config'"),
        (["admin.extra=null"], "at '/admin': missing property 'extra'"),
        (["drainTimeoutSeconds=null"], "missing property 'drainTimeoutSeconds'"),  # it would be 0
        (["upstream.bootstrapServers="], "upstream.bootstrapServers is required"),
        (["admin.existingSecret="], "admin.existingSecret is required"),
        (["admin.clientAuth=requested"], "admin.clientAuth needs admin.tlsSecret"),
        (["admin.extra.ssl\\.client\\.auth=required"], "which is made of admin.clientAuth"),
        (["admin.extra.hosts={gw.example}"], "admin.extra.hosts is made of other values"),
        (["admin.extra.port=9999"], "admin.extra.port is made of other values"),
        (["admin.extra.host=127.0.0.1"], "admin.extra.host is made of other values"),
        (
            [
                *(f"admin.{key}" for key in ("tlsSecret=x", "clientCaSecret=x", "clientAuth=required")),
                "serviceMonitor.enabled=true",
            ],
            "serviceMonitor.tlsConfig.cert",
        ),
        (["config.listener.port=1"], "config.listener is made of other values"),
        (["listener.mode=sni"], "listener.mode sni needs TLS"),
        (["listener.mode=sni", "tls.existingSecret=x"], "needs listener.advertisedHost"),
        (["tls.existingSecret=x", "tls.clientAuth=required"], "and tls.clientCaSecret: a Secret with ca.crt"),
        (["tls.clientCaSecret=x", "tls.clientAuth=required"], "tls.clientAuth needs tls.existingSecret"),
        (["tls.existingSecret=x", "tls.clientCaSecret=x"], "tls.clientCaSecret: clients are asked for no certificate"),
        (["admin.tlsSecret=x", "admin.clientCaSecret=x"], "admin.clientCaSecret: clients are asked for no certificate"),
        (["config.storage.admin.sasl\\.password=hunter2"], "a password or key in clear"),
        (["config.x.ssl\\.key\\.password=hunter2"], "a password or key in clear"),
        (["admin.tlsSecret=x", "admin.extra.ssl\\.key\\.password=hunter2"], "a password or key in clear"),
        (["upstream.properties.ssl\\.key\\.pem=hunter2"], "a password or key in clear"),
        (["admin.extra.tokens={hunter2hunter2hunter2}"], "admin.extra.tokens has a token in clear"),
        (
            ["extraEnv[0].name=PRODUCE_GATEWAY_UPSTREAM__SASL_PASSWORD", "extraEnv[0].value=hunter2"],
            "extraEnv has PRODUCE_GATEWAY_UPSTREAM__SASL_PASSWORD in clear",
        ),
        (
            ["autoscaling.enabled=true", "autoscaling.minReplicas=5", "autoscaling.maxReplicas=2"],
            "autoscaling.minReplicas: 5 is more than autoscaling.maxReplicas, 2",
        ),
        (["config.gateway_id=gw", "replicaCount=2"], "config.gateway_id would be the same for all gateways"),
        (["podLabels.app\\.kubernetes\\.io/name=x"], "podLabels has app.kubernetes.io/name"),
        (["listener.port=30000", "listener.brokerIds={40000}"], "broker 40000 would have port 70001"),
        (["listener.advertisedPort=65530", "listener.brokerIds={7}"], "broker 7 would have port 65538"),
        (["listener.port=9092", "listener.brokerIds={97}"], "admin.port and listener.brokerIds: broker 97"),
        (["health.port=9190"], "admin.port and health.port: both would be port 9190"),
        (["service.type=NodePort"], "service.type NodePort needs listener.advertisedPort"),
        (["service.type=NodePort", "listener.mode=perBrokerServices"], "choose mode ports or sni"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_wrong_values_are_refused(sets: list[str], words: str) -> None:
    assert words in refusal(*sets)


def test_ports_of_the_nodes_are_those_that_clients_are_told() -> None:
    made = rendered(MINIMAL, "service.type=NodePort", "listener.advertisedPort=30092", "listener.brokerIds={1,2}")
    service = next(each for each in made.of("Service") if each["spec"].get("type") == "NodePort")
    assert [port["nodePort"] for port in service["spec"]["ports"]] == [30092, 30094, 30095]
    assert "advertised_port: 30092" in made.one("ConfigMap")["data"]["gateway.yaml"]
    others = [each["spec"] for each in rendered(MINIMAL).of("Service")]
    assert not [port for spec in others for port in spec["ports"] if "nodePort" in port]


def test_passwords_in_files_are_no_secrets() -> None:
    sets = (
        "config.storage.admin.sasl\\.password.file=/run/x",
        "config.secret_key_file=/run/y",
        "admin.extra.tokens={a:b}",
        "admin.extra.tokens[1].file=/run/z",
        "extraEnv[0].name=PRODUCE_GATEWAY_UPSTREAM__SASL_PASSWORD",
        "extraEnv[0].valueFrom.secretKeyRef.name=x",
    )
    made = rendered(MINIMAL, *sets).one("ConfigMap")["data"]["gateway.yaml"]
    assert "file: /run/x" in made
    assert "file: /run/z" in made


@pytest.mark.parametrize(
    ("name", "value", "is_taken"),
    [
        ("UPSTREAM__SASL_PASSWORD", "$(OF_A_SECRET)", True),
        ("UPSTREAM__SASL_PASSWORD", "hunter$(OF_A_SECRET)", False),
        ("UPSTREAM__SASL_PASSWORD", "{file: /run/x}", True),
        ("ADMIN__TOKENS", '[{"file": "/run/x"}]', True),
        ("ADMIN__TOKENS", "anna:admin:sha256:6f,otto:operator:sha256:77", True),
        ("ADMIN__TOKENS", "anna:admin:sha256:6f,hunter2hunter2hunter2", False),
    ],
)
def test_a_variable_that_has_no_secret_in_clear_is_taken(name: str, value: str, is_taken: bool, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"extraEnv": [{"name": f"PRODUCE_GATEWAY_{name}", "value": value}]}))
    code, _, error = run("template", RELEASE, CHART, "--values", MINIMAL, "--values", values)
    assert (code == 0) == is_taken, error
    assert is_taken or "in clear" in error


def test_names_that_look_like_numbers_are_text() -> None:
    secrets = [f"{key}=123" for key in ("tls.existingSecret", "admin.existingSecret", "upstream.existingSecret")]
    names = ["fullnameOverride=123", "nameOverride=1e3", "priorityClassName=123", "serviceAccount.name=123"]
    sets = [word for each in (*secrets, *names) for word in ("--set-string", each)]
    sets += ["--set", "serviceMonitor.enabled=true,networkPolicy.enabled=true,autoscaling.enabled=true"]
    code, said, error = run("template", "7e10", CHART, "--namespace", "123", "--values", MINIMAL, *sets)
    assert code == 0, error
    made = Rendered([each for each in yaml.load_all(said, _Loader) if each])
    for manifest in made.manifests:
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, KUBERNETES[1], strict=True)
        assert {type(each) for each in manifest["metadata"]["labels"].values()} == {str}
    (monitor,) = made.of("ServiceMonitor")
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["123"]}


@pytest.fixture(scope="module")
def chart_with_notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # `helm install` alone prints notes, and wants a cluster even for a dry run: here they are part of a manifest.
    chart = tmp_path_factory.mktemp("notes") / "chart"
    shutil.copytree(CHART, chart)
    path = chart / "templates" / "NOTES.txt"
    wrapped = f'{{{{ define "notes" }}}}{path.read_text("utf-8")}{{{{ end }}}}'
    manifest = 'kind: ConfigMap\nmetadata: {name: notes}\ndata:\n  notes: |\n    {{ include "notes" . | nindent 4 }}\n'
    path.with_name("notes.yaml").write_text(wrapped + manifest)
    return chart


def notes_of(chart: Path, values: Path, *sets: str) -> str:
    more = [word for each in sets for word in ("--set", each)]
    only = ("--show-only", "templates/notes.yaml")
    code, said, error = run("template", RELEASE, chart, "--namespace", NAMESPACE, "--values", values, *only, *more)
    assert code == 0, error
    return str(yaml.safe_load(said)["data"]["notes"])


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ((), ()),
        (("resources.limits.memory=1Gi",), ("limits.max_buffered_bytes (1GiB) and 200 MiB",)),
        (("resources.limits.memory=1300M", "config.limits.max_buffered_bytes=1GB"), ()),
        (("config.limits.max_buffered_bytes=4GiB",), ("limits.max_buffered_bytes (4GiB)",)),
        (("config.limits.max_buffered_bytes=1950000000",), ("limits.max_buffered_bytes (1950000000)",)),
        (("config.limits.max_buffered_bytes=64MiB", "resources.limits.memory=null"), ()),
        (("persistence.size=1Gi",), ("usage_log.max_spool_bytes (1GiB)",)),
        (("config.usage_log.max_spool_bytes=10GiB",), ("usage_log.max_spool_bytes (10GiB)",)),
        (("config.usage_log.max_spool_bytes=10GiB", "persistence.enabled=false"), ("persistence.enabled is false",)),
        (("existingConfigSecret=mine", "resources.limits.memory=1Gi"), ()),
        (("resources=null",), ()),
        (("resources.limits.memory=2e9",), ()),
    ],
)
def test_the_notes_warn_of_sizes_that_do_not_fit(
    sets: tuple[str, ...], words: tuple[str, ...], chart_with_notes: Path
) -> None:
    warnings = [line for line in notes_of(chart_with_notes, MINIMAL, *sets).splitlines() if "WARNING" in line]
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))


def test_the_notes_have_a_size_as_it_was_written(chart_with_notes: Path, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"  # in a file, unlike by --set, a number is a float to Helm
    values.write_text(f"{MINIMAL.read_text('utf-8')}\nconfig: {{limits: {{max_buffered_bytes: 4000000000}}}}\n")
    assert "limits.max_buffered_bytes (4000000000)" in notes_of(chart_with_notes, values)


def test_the_notes_say_where_clients_begin(chart_with_notes: Path) -> None:
    for values in VALUES:
        notes = notes_of(chart_with_notes, values)
        host, port = rendered(values).settings.all_listeners["default"].bootstrap_address
        assert f"{host}:{port}" in notes
        commands = re.findall(r"-- produce-gateway (\S+)", notes)
        assert commands
        assert set(commands) <= set(cli._command_names())
