# `import-strimzi`: from a broker's properties or a Kafka resource to YAML that gateway.config takes, and what is said
# on standard error. Expectations are about the settings that come out, not about the text.

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from gateway import config
from gateway.config import Settings
from gateway.config.sections.storage import Storage
from gateway.strimzi import command as strimzi
from gateway.strimzi.command import ImportResult
from gateway.strimzi.plugin_settings import (
    ADMIN_PREFIX,
    BOOTSTRAP_KEY,
    CLASS_KEY,
    PLUGIN_CLASSES,
    PLUGIN_PREFIX,
    ImportRefused,
)

BASE = {CLASS_KEY: PLUGIN_CLASSES[0], BOOTSTRAP_KEY: "kafka-1:9092,kafka-2:9092"}
PER_VOLUME = "storage.per.volume.limit.min.available."


def convert(*, bootstrap: str = "", aggregate: bool = False, drop: tuple[str, ...] = (), **given: str) -> ImportResult:
    return convert_all(given, bootstrap, aggregate, drop)


def convert_all(
    given: dict[str, str], bootstrap: str = "", aggregate: bool = False, drop: tuple[str, ...] = ()
) -> ImportResult:
    """Properties by their names without the prefix, added to BASE."""
    named = {**BASE, **{PLUGIN_PREFIX + key: value for key, value in given.items()}}
    text = "\n".join(f"{key}={value}" for key, value in named.items() if key not in drop)
    return strimzi.convert_settings(text, "server.properties", bootstrap, aggregate_limits=aggregate)


def settings_of(result: ImportResult) -> Settings:
    return config.parse_settings(result.text)


def storage_of(given: dict[str, str], *, aggregate: bool = False) -> Storage:
    storage = settings_of(convert_all(given, aggregate=aggregate)).storage
    assert storage is not None
    return storage


def refused(given: dict[str, str], **options: Any) -> str:
    with pytest.raises(ImportRefused) as error:
        convert_all(given, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- what the released plugin knows -----------------------------------------------------------------------------------


def test_the_readme_of_the_plugin_comes_through() -> None:
    result = convert_all(
        {
            "produce": "1000000",
            "fetch": "1000000",
            PER_VOLUME + "bytes": "5368709120",
            "storage.check-interval": "5",
            "throttle.factor.fallback": "0.0",
            "throttle.factor.validity.duration": "pt2m",
            "excluded.principal.name.list": "User:principal1;User:CN=two,O=acme",
        }
    )
    settings = settings_of(result)
    assert settings.upstream.bootstrap_servers == "kafka-1:9092,kafka-2:9092"
    assert (settings.thresholds.total, settings.thresholds.on_exceed) == (1_000_000, "delay")
    assert settings.internal.principals == ("User:principal1", "User:CN=two,O=acme")
    storage = settings.storage
    assert storage is not None
    assert (storage.check_interval, storage.fallback, storage.validity) == (5, 0.0, 120)
    assert (storage.min_available_bytes, storage.min_available_ratio) == (5_368_709_120, None)
    assert "# Per broker, shared by all clients that are not excluded. The plugin slowed producers down" in result.text
    assert len(result.remarks) == 1
    assert result.remarks[0].startswith(
        f"{PLUGIN_PREFIX}fetch=1000000: becomes a quota of each user, where the plugin's was"
    )
    assert settings.client_quotas == ({"user": "<default>", "consumer_byte_rate": 1_000_000},)
    assert "# Per broker, and each user has it: the plugin's was shared by all clients of a broker." in result.text


def test_defaults_of_the_plugin_write_nothing() -> None:
    result = convert(produce="1.7976931348623157e+308", fetch="1.7976931348623157E308")
    assert settings_of(result) == config.parse_settings(f"upstream: {{bootstrap_servers: '{BASE[BOOTSTRAP_KEY]}'}}")
    assert result.remarks == []


def test_fetch_and_request_become_quotas_of_each_user() -> None:
    result = convert(fetch="0.5", request="2e6", produce="1e6")
    values = {
        str(key.quota_key): value for key, value in settings_of(result).policy_values().items() if key.kind == "quota"
    }
    assert values == {"consumer_byte_rate:broker_bps": 1, "request_percentage:percent": 100_000}
    assert settings_of(convert(request="0.1")).client_quotas == ({"user": "<default>", "request_percentage": 1},)


@pytest.mark.parametrize(("text", "total"), [("1e6", 10**6), ("2500.9", 2500), ("0", 1), ("0.5", 1), ("40d", 40)])
def test_rates_are_javas_doubles_and_at_least_one_byte(text: str, total: int) -> None:
    assert settings_of(convert(produce=text)).thresholds.total == total


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({PER_VOLUME + "ratio": "0.00001"}, {"min_available_ratio": 0.00001}),
        ({PER_VOLUME + "bytes": "0"}, {"min_available_bytes": 1}),
        ({PER_VOLUME + "ratio": "0"}, {"min_available_bytes": 1}),
        ({PER_VOLUME + "bytes": "1", "storage.check.interval": "PT1M30S"}, {"check_interval": 90, "fallback": 1}),
        ({PER_VOLUME + "bytes": "1", "storage.check-interval": "0"}, {"is_disabled": True}),
        ({"storage.hard": "5"}, {"fallback": 1}),
    ],
)
def test_limits_and_intervals_of_the_released_plugin_are_taken(given: dict[str, str], found: dict[str, float]) -> None:
    """0 is the last byte, or off; and the plugin's fallback is 1."""
    storage = storage_of(given, aggregate=True)
    assert {name: getattr(storage, name) for name in found} == found


@pytest.mark.parametrize(
    ("text", "principals"),
    [
        ("User:a", ("User:a",)),
        (" User:a ; User:b;", ("User:a", "User:b")),
        ("User:CN=a\\\\,b,O=c;User:d", ("User:CN=a\\,b,O=c", "User:d")),
        ("principal1, principal2", ("User:principal1", "User:principal2")),
    ],
)
def test_principals_are_read_as_the_plugin_does(text: str, principals: tuple[str, ...]) -> None:
    result = convert_all({"excluded.principal.name.list": text})
    assert settings_of(result).internal.principals == principals
    assert ("before plugin 0.3" in "".join(result.remarks)) == ("User:" not in text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("User:a,User:b", "'User:a,User:b': principals are separated by ';', not by ','"),
        ("User:a;b", "'b' is not a valid principal: write User:name;User:name"),
        ("CN=a,O=b", "'CN=a,O=b' is not a valid principal: write User:name;User:name"),
        ("User:", "'User:' is not a valid principal: write User:name;User:name"),
    ],
)
def test_principals_that_are_none_are_refused(text: str, told: str) -> None:
    assert refused({"excluded.principal.name.list": text}) == f"{PLUGIN_PREFIX}excluded.principal.name.list: {told}"


# --- [035] and the limits of before -----------------------------------------------------------------------------------


@pytest.mark.seed("035.38")
def test_soft_and_hard_of_the_proposal_become_limits() -> None:
    given = {"produce": "100", "storage.soft.min-free-percent": "0.2", "storage.hard.min-free-bytes": "1000000000"}
    storage = storage_of(given)
    ((soft,), (hard,)) = storage.soft, storage.hard
    assert (soft.type, soft.level) == ("MinFreePercentage", 0.2)
    assert (hard.type, hard.level) == ("MinFreeBytes", 10**9)


@pytest.mark.seed("035.38")
@pytest.mark.parametrize("side", ["soft", "hard"])
@pytest.mark.parametrize("what", ["min-free-bytes", "min-free-percent"])
def test_limits_of_the_proposal_keep_its_fail_safe(side: str, what: str) -> None:
    given = {"produce": "100", f"storage.{side}.{what}": "0.2" if "percent" in what else "5"}
    assert storage_of(given).fallback == 0  # 035: "Defaulting to PAUSE as the fail-safe option"
    assert storage_of({**given, "throttle.factor.fallback": "1.0"}).fallback == 1


def test_a_soft_limit_without_a_quota_is_left_out_with_a_word() -> None:
    result = convert_all({"storage.soft.min-free-bytes": "2", "storage.hard.min-free-bytes": "1"})
    storage = settings_of(result).storage
    assert storage is not None
    assert (storage.soft, bool(storage.hard)) == ((), True)
    assert result.remarks == [
        f"{PLUGIN_PREFIX}storage.soft.min-free-bytes: left out: without {PLUGIN_PREFIX}produce there is nothing"
        " that a soft limit"
        " could reduce"
    ]


@pytest.mark.seed("DISK.41", "035.39")
def test_aggregate_limits_are_taken_with_their_flag_only() -> None:
    given = {"produce": "100", "storage.soft": "80000000000", "storage.hard": "100000000000"}
    result = convert_all(given)
    assert settings_of(result).storage is None
    assert [remark.partition(": left out: it limited ")[0] for remark in result.remarks] == [
        PLUGIN_PREFIX + "storage.soft",
        PLUGIN_PREFIX + "storage.hard",
    ]
    assert all("--aggregate-limits" in remark for remark in result.remarks)
    flagged = convert_all(given, aggregate=True)
    storage = settings_of(flagged).storage
    assert storage is not None
    ((soft,), (hard,)) = storage.soft, storage.hard
    assert (soft.type, soft.level) == ("ConsumedBytes", 8 * 10**10)
    assert (hard.type, hard.level) == ("ConsumedBytes", 10**11)
    assert flagged.remarks == []
    assert "# Of each volume; the plugin compared the used bytes of all volumes of a broker together." in flagged.text


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (PER_VOLUME + "bytes", PER_VOLUME + "ratio"),
        (PER_VOLUME + "bytes", "storage.hard.min-free-bytes"),
        ("storage.hard.min-free-bytes", "storage.hard.min-free-percent"),
        ("storage.hard.min-free-bytes", "storage.hard"),
        ("storage.check-interval", "storage.check.interval"),
    ],
)
def test_keys_that_exclude_each_other_are_refused_by_name(one: str, two: str) -> None:
    given = {PER_VOLUME + "bytes": "1"} if "interval" in one else {}
    told = refused({**given, one: "1", two: "1"}, aggregate=True)
    assert told == f"{PLUGIN_PREFIX}{one} and {PLUGIN_PREFIX}{two} exclude each other: keep one"


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("produce", "fast", "is not a number of 0 or more"),
        ("produce", "NaN", "is not a number of 0 or more"),
        (
            "produce",
            "1000 # 1 kB",
            "is not a number of 0 or more: the text behind a # in such a line is part of the value",
        ),
        (PER_VOLUME + "bytes", "-1", "is not a number of 0 or more"),
        (PER_VOLUME + "ratio", "1.5", ": a share between 0 and 1 is needed, for example 0.05"),
        ("throttle.factor.fallback", "2", ": a share between 0 and 1 is needed, for example 0.05"),
        ("throttle.factor.validity.duration", "5m", "is not a valid ISO 8601 duration, such as PT5M"),
        ("storage.check-interval", "1.5", ": whole seconds are needed, for example 60"),
    ],
)
def test_values_that_are_none_are_refused(key: str, text: str, told: str) -> None:
    given = {key: text} if PER_VOLUME in key else {PER_VOLUME + "bytes": "1", key: text}
    line = refused(given)
    assert line.lower().startswith(f"{PLUGIN_PREFIX}{key}={text}".lower())
    assert line.endswith(told)


def test_a_refusal_of_the_configuration_is_one_line_too() -> None:
    given = {"produce": "9", "storage.soft.min-free-bytes": "1", "storage.hard.min-free-bytes": "2"}
    assert "the resulting YAML:" in refused(given)
    with pytest.raises(ImportRefused, match="is not a valid host:port"):
        convert(bootstrap="nonsense")


def test_unknown_keys_are_named() -> None:
    result = convert_all({"consume": "1", "exclude.principal.name.list": "a"})
    assert result.remarks == [
        f"{PLUGIN_PREFIX}consume: unknown: left out",
        f"{PLUGIN_PREFIX}exclude.principal.name.list: unknown (did you mean"
        f" {PLUGIN_PREFIX}excluded.principal.name.list?): left out",
    ]


def test_another_plugin_or_none_is_told() -> None:
    assert convert(drop=(CLASS_KEY,), produce="1").remarks == [
        f"{CLASS_KEY} is not set: the plugin is not in use there, its settings are imported anyway"
    ]
    text = f"{CLASS_KEY}=com.acme.Quota\n{BOOTSTRAP_KEY}=a:1\n"
    assert strimzi.convert_settings(text, "server.properties").remarks == [
        f"{CLASS_KEY} is com.acme.Quota, not Strimzi's: its settings are imported by their names"
    ]
    with pytest.raises(ImportRefused, match="nothing to import"):
        strimzi.convert_settings("broker.id=1\n", "server.properties")


# --- the admin client -------------------------------------------------------------------------------------------------

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p\\\\"# w:";'


def test_java_names_become_librdkafkas() -> None:
    result = convert_all(
        {
            "kafka.admin.security.protocol": "SASL_SSL",
            "kafka.admin.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.admin.sasl.jaas.config": JAAS,
            "kafka.admin.ssl.truststore.location": "/etc/ca.pem",
            "kafka.admin.ssl.truststore.type": "PEM",
            "kafka.admin.ssl.keystore.location": "/etc/client.pem",
            "kafka.admin.ssl.keystore.type": "PEM",
            "kafka.admin.ssl.key.password": "secret",
            "kafka.admin.ssl.endpoint.identification.algorithm": "",
            "kafka.admin.request.timeout.ms": "1000",
        }
    )
    assert settings_of(result).upstream.properties == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": 'p"# w:',
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.certificate.location": "/etc/client.pem",
        "ssl.key.location": "/etc/client.pem",
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert f"# Not taken over, since it is about Java's client: {ADMIN_PREFIX}request.timeout.ms." in result.text
    for key in ("sasl.password", "ssl.key.password"):
        assert f"the output holds {key} in clear: better from a file, as the comment says" in result.remarks
    assert "plaintext" not in result.text + "".join(result.remarks)  # upstream's own TLS relays clients' connections


def test_java_stores_are_explained_and_passwords_left_out() -> None:
    result = convert_all(
        {
            "kafka.admin.ssl.truststore.location": "/etc/trust.jks",
            "kafka.admin.ssl.truststore.password": "hush",
            "kafka.admin.ssl.keystore.location": "/etc/client.p12",
            "kafka.admin.ssl.keystore.password": "hush",
            "kafka.admin.ssl.keystore.key": "-----BEGIN",
            "kafka.admin.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;",
            "kafka.admin.ssl.key.password": "${strimzisecrets:ns/name:key}",
        }
    )
    lines = result.text.splitlines()
    assert settings_of(result).upstream.properties == {}
    for command in (
        "keytool -importkeystore -srckeystore /etc/trust.jks -destkeystore truststore.p12 -deststoretype PKCS12",
        "openssl pkcs12 -in truststore.p12 -nokeys -out ca.pem",
        "openssl pkcs12 -in /etc/client.p12 -nokeys -out client.crt",
        "openssl pkcs12 -in /etc/client.p12 -nocerts -noenc -out client.key",
    ):
        assert f"  #   {command}" in lines
    assert "hush" not in result.text
    assert "BEGIN" not in result.text
    assert sorted(remark.removeprefix(ADMIN_PREFIX) for remark in result.remarks) == [
        "sasl.jaas.config: see the comment in the output",
        "ssl.key.password: see the comment in the output",
        "ssl.keystore.key: see the comment in the output",
        "ssl.keystore.location: see the comment in the output",
        "ssl.truststore.location: see the comment in the output",
    ]


def test_another_listener_for_clients_leaves_the_plugins_one_to_storage() -> None:
    given = {PER_VOLUME + "bytes": "1", "kafka.admin.security.protocol": "SSL"}
    settings = settings_of(convert_all(given, "plain:9092"))
    assert (settings.upstream.bootstrap_servers, settings.upstream.properties) == ("plain:9092", {})
    assert settings.storage_admin.bootstrap_servers == BASE[BOOTSTRAP_KEY]
    assert settings.storage_admin.properties == {"security.protocol": "SSL"}


def test_without_an_address_the_flag_is_asked_for() -> None:
    with pytest.raises(ImportRefused, match=r"bootstrap\.servers is missing, .*: give --bootstrap-servers host:port"):
        convert(drop=(BOOTSTRAP_KEY,), produce="1")
    assert settings_of(convert(drop=(BOOTSTRAP_KEY,), produce="1", bootstrap="a:1")).upstream.bootstrap_servers == "a:1"


# --- files ------------------------------------------------------------------------------------------------------------


RESOURCE = """
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaNodePool
metadata: {name: pool-a}
---
apiVersion: kafka.strimzi.io/v1beta2
kind: Kafka
metadata:
  name: my-cluster
  namespace: kafka
spec:
  kafka:
    listeners:
      - {name: tls, port: 9093, type: internal, tls: true}
      - {name: plain, port: 9092, type: internal, tls: false}
    config:
      offsets.topic.replication.factor: 3
      client.quota.callback.static.storage.check-interval: 30
      client.quota.callback.static.produce: 5
    quotas:
      type: strimzi
      producerByteRate: 1000000
      consumerByteRate: 1000000
      minAvailableBytesPerVolume: 5368709120
      minAvailableRatioPerVolume: null
      excludedPrincipals:
        - User:my-user
        - User:CN=other,O=acme
"""


def test_a_kafka_resource_comes_through() -> None:
    result = strimzi.convert_settings(RESOURCE, "-")
    settings = settings_of(result)
    assert settings.upstream.bootstrap_servers == "my-cluster-kafka-bootstrap.kafka.svc:9092"
    assert settings.thresholds.total == 1_000_000
    assert settings.internal.principals == ("User:my-user", "User:CN=other,O=acme")
    assert settings.storage is not None
    assert (settings.storage.check_interval, settings.storage.min_available_bytes) == (30, 5_368_709_120)
    assert f"{PLUGIN_PREFIX}produce: left out: spec.kafka.quotas.producerByteRate replaces it" in result.remarks


TLS_LISTENER = "- {name: tls, port: 9093, type: internal, tls: true}"
PLAIN_LISTENER = "- {name: plain, port: 9092, type: internal, tls: false}"


@pytest.mark.parametrize(
    ("authentication", "protocol", "by_hand"),
    [
        ("", "SSL", ["ssl.ca.location"]),
        (", authentication: {type: tls}", "SSL", ["ssl.ca.location", "ssl.certificate.location, ssl.key.location"]),
        (", authentication: {type: scram-sha-512}", "SASL_SSL", ["ssl.ca.location", "sasl.mechanism (SCRAM-SHA-512)"]),
    ],
)
def test_a_resource_with_tls_listeners_only_comes_through(
    authentication: str, protocol: str, by_hand: list[str]
) -> None:
    text = RESOURCE.replace(PLAIN_LISTENER, "").replace(TLS_LISTENER, TLS_LISTENER[:-1] + authentication + "}")
    result = strimzi.convert_settings(text, "-")
    upstream = settings_of(result).upstream
    assert upstream.bootstrap_servers == "my-cluster-kafka-bootstrap.kafka.svc:9093"
    assert upstream.properties == {"security.protocol": protocol}
    assert "my-cluster-cluster-ca-cert" in result.text
    told = [remark for remark in result.remarks if remark.startswith("upstream.")]
    assert [remark.startswith(f"upstream.{key}") for remark, key in zip(told, by_hand, strict=True)] == [True] * len(
        told
    )


def test_an_external_listener_is_known_by_its_status() -> None:
    text = RESOURCE.replace(PLAIN_LISTENER, "").replace(
        TLS_LISTENER, "- {name: out, port: 9094, type: route, tls: true}"
    )
    with pytest.raises(ImportRefused, match="no listener with a known address"):
        strimzi.convert_settings(text, "-")
    status = "status:\n  listeners:\n  - {name: out, bootstrapServers: 'kafka.example.com:443'}\n"
    upstream = settings_of(strimzi.convert_settings(text + status, "-")).upstream
    assert (upstream.bootstrap_servers, upstream.properties) == ("kafka.example.com:443", {"security.protocol": "SSL"})


def test_a_listener_that_was_chosen_by_hand_has_its_own_security() -> None:
    text = RESOURCE.replace(
        "storage.check-interval",
        "kafka.admin.bootstrap.servers: c:9091\n      " + PLUGIN_PREFIX + "storage.check-interval",
    )
    chosen = "my-cluster-kafka-bootstrap.kafka.svc:9093"
    settings = settings_of(strimzi.convert_settings(text, "-", chosen))
    assert (settings.upstream.bootstrap_servers, settings.upstream.properties) == (chosen, {"security.protocol": "SSL"})
    assert settings.storage_admin.bootstrap_servers == "c:9091"


def test_an_excluded_principal_that_is_none_does_not_end_the_import() -> None:
    text = RESOURCE.replace("- User:my-user", "- my-user\n        - Group:x")
    result = strimzi.convert_settings(text, "-")
    assert settings_of(result).internal.principals == ("User:my-user", "User:CN=other,O=acme")
    where = "spec.kafka.quotas.excludedPrincipals"
    assert [remark for remark in result.remarks if where in remark] == [
        f"{where}: 'my-user' is not a valid principal, such as User:name: taken as User:my-user",
        f"{where}: 'Group:x' is not a valid principal, such as User:name: left out",
    ]


def test_settings_of_older_operators_are_in_the_config_of_the_resource() -> None:
    text = f"""
kind: Kafka
metadata: {{name: c}}
spec:
  kafka:
    config:
      {CLASS_KEY}: {PLUGIN_CLASSES[0]}
      {PLUGIN_PREFIX}produce: 1000000
      {BOOTSTRAP_KEY}: c-kafka-bootstrap:9092
"""
    for whole in (text, "kind: List\nitems:\n- " + text.strip().replace("\n", "\n  ")):
        settings = settings_of(strimzi.convert_settings(whole, "kafka.yaml"))
        assert settings.thresholds.total == 1_000_000
        assert settings.upstream.bootstrap_servers == "c-kafka-bootstrap:9092"


def test_kafkas_own_quotas_are_left_to_the_brokers() -> None:
    with pytest.raises(ImportRefused, match="nothing to import"):
        strimzi.convert_settings("kind: Kafka\nspec: {kafka: {quotas: {type: kafka, producerByteRate: 1}}}", "k.yaml")
    text = "kind: Kafka\nspec: {kafka: {quotas: {type: strimzi, producerByteRate: 1, minAvailableBytes: 2}}}"
    assert strimzi.convert_settings(text, "k.yaml", "a:1").remarks == [
        "spec.kafka.quotas.minAvailableBytes: unknown (did you mean minAvailableBytesPerVolume?): left out"
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: Kafka\nmetadata: {name: a}\n---\nkind: Kafka\nmetadata: {name: b}", "there are 2 (a, b)"),
        ("kind: KafkaTopic", "there is no resource of kind: Kafka in it"),
        ("kind: List\nitems: 5", "there is no resource of kind: Kafka in it"),
        ("kind: Kafka\nstatus: {listeners: [5, {name: [x]}]}", "nothing to import"),
        ("kind: [", "YAML:1: expected the node content"),
        ("kind: Kafka\n---\nkind: Kafka\nkind: Kafka", "YAML:4: kind is there twice"),
        ("a: &a [*a]\nkind: Kafka", "YAML:1: an alias (*name) refers to"),
        ("kind: Kafka\nspec: none", "nothing to import"),
    ],
)
def test_resources_that_are_none_are_refused(text: str, told: str) -> None:
    with pytest.raises(ImportRefused) as error:
        strimzi.convert_settings(text, "kafka.yaml")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_yaml_and_remarks_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"{BOOTSTRAP_KEY}=a:1\n{PLUGIN_PREFIX}produce=7\n{PLUGIN_PREFIX}what=1\n")
    assert strimzi.main([str(path), "--bootstrap-servers", "b:2"]) == 0
    printed = capsys.readouterr()
    assert config.parse_settings(printed.out).upstream.bootstrap_servers == "b:2"
    assert printed.err.splitlines() == [
        f"{path}: {CLASS_KEY} is not set: the plugin is not in use there, its settings are imported anyway",
        f"{path}: {PLUGIN_PREFIX}what: unknown: left out",
    ]


def test_the_command_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(RESOURCE.encode())))
    assert strimzi.main(["-"]) == 0
    assert config.parse_settings(capsys.readouterr().out).thresholds.total == 1_000_000


def test_the_command_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "x.properties"
    binary.write_bytes(b"\xff")
    for path, told in ((tmp_path / "none", "can't be read: No such file"), (binary, "not UTF-8 text")):
        assert strimzi.main([str(path)]) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        (line,) = printed.err.splitlines()
        assert line.startswith(f"{path}: {told}")
