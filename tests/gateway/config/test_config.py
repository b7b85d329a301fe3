# The configuration file: what is understood, and that every mistake is told with its place and what would be right.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway import config
from gateway.access_tokens.tokens import read_first_token
from gateway.config import ConfigError, Settings, find_warnings, parse_settings, property_text
from gateway.config.sections.fields import MAX_GATEWAY_ID
from gateway.config.sections.storage import Storage
from gateway.control.fleet.exchange import usage_codec as form
from gateway.control.workers.snapshots import worker_settings
from gateway.listener_names import DEFAULT_LISTENER
from gateway.tls.broker_tls import BrokerTls
from gateway.tls.certificates import ListenerTls
from gateway.worker_config import WorkerInternalClient
from policies.definitions.policy_values import PolicyKey
from policies.quotas.names import Entity, QuotaKey
from policies.thresholds.values import TOTAL_OUT_KEY
from tests.gateway.config.every_setting import NAME, every_setting, is_number

ISSUE = """
upstream: {bootstrap_servers: "127.0.0.1:9092"}
listener: {host: 127.0.0.1, port: 19092, advertised_host: 127.0.0.1}   # broker N: port + 1 + node id
admin: {host: 127.0.0.1, port: 9190}                                    # /metrics /healthz /readyz
thresholds:
  total.bytes.in.per.sec.threshold: 20MB          # 20 * 10^6; MiB = 2^20
  topics:
    clicks: {bytes.in.per.sec.threshold: 5MB}
usage_log: {topic: __produce_gateway_usage, spool_dir: ./spool}
internal_topics: kafka            # or none
"""
UPSTREAM = "upstream: {bootstrap_servers: 'b:9092'}\n"


def storage_of(text: str) -> Storage:
    found = parsed(UPSTREAM + text).storage
    assert found is not None
    return found


def parsed(text: str) -> Settings:
    """The settings, which survive the way to control."""
    settings = parse_settings(text)
    assert Settings.model_validate_json(settings.model_dump_json(by_alias=True)) == settings
    return settings


def warnings_of(text: str) -> list[str]:
    return find_warnings(parse_settings(UPSTREAM + text))


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_settings(text, "gw.yaml")
    return caught.value.lines


def test_the_documented_example_is_understood_and_survives_the_way_to_control() -> None:
    settings = parsed(ISSUE)
    assert settings.upstream.addresses() == (("127.0.0.1", 9092),)
    assert settings.thresholds.total == 20 * 10**6
    assert settings.thresholds.by_topic() == {"clicks": 5e6}
    assert [settings.all_listeners[DEFAULT_LISTENER].broker_port(n) for n in (0, 7)] == [19093, 19100]
    assert find_warnings(settings) == []
    more = ISSUE.replace('"127.0.0.1:9092"}', '"127.0.0.1:9092", sasl.password: s3cret, socket.nagle.disable: true}')
    more += "internal: {principals: ['User:mm'], client_ids: [mm]}\nreject_code: 19\ndrain_timeout: 1m\n"
    assert parsed(more).upstream.properties == {"sasl.password": "s3cret", "socket.nagle.disable": "true"}


def test_only_upstream_is_required_and_an_empty_section_is_an_absent_one() -> None:
    settings = parsed(UPSTREAM)
    assert settings.gateway_name.endswith("-19092")
    assert settings.policies_file.name == "policies.jsonl"
    assert parsed(UPSTREAM + "listener:\nadmin:\nthresholds:\n").thresholds == settings.thresholds


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("listner: {port: 1}", "gw.yaml:2: listner: unknown key; did you mean listener?"),
        ("listener:\n  prot: 1", "gw.yaml:3: listener.prot: unknown key; did you mean port?"),
        (
            "thresholds:\n  topics:\n    a: {bytes.in.per.sec.treshold: 5MB, bytes.in.per.sec.threshold: 1}",
            "gw.yaml:4: thresholds.topics.a.bytes.in.per.sec.treshold: unknown key; did you mean"
            " bytes.in.per.sec.threshold?",
        ),
        ("zzz: 1", "gw.yaml:2: zzz: unknown key; known here: acks0, admin, "),
        ("listener: {port: 70000}", "listener.port: should be less than or equal to 65535, not 70000"),
        ("listener: {port: x}", "listener.port: a whole number is needed here, not 'x'"),
        (
            "thresholds:\n  enforce_percent: 5%",
            "gw.yaml:3: thresholds.enforce_percent: '5%' is not a valid percentage: write a number"
            " from 0 to 100 without a sign",
        ),
        ("client_quotas_enforce_percent: 101", "gw.yaml:2: client_quotas_enforce_percent: 101 is not a valid percent"),
        ("resource_groups: {enforce_percent: .nan}", "resource_groups.enforce_percent: nan is not a valid percentage"),
        ("resource_groups: {enforce_percent: true}", "resource_groups.enforce_percent: True is not a valid percentage"),
        ("listener: {host: 0.0.0.0}", "listener: advertised_host is needed, because 0.0.0.0"),
        ("listener: {port: 5000, brokers: {1: 6000, 2: 6000}}", "listener: brokers.2: port 6000 is taken by broker 1"),
        (
            "listener:\n  ssl.keystore.location: x.jks\n  ssl.keystore.type: JKS",
            "gw.yaml:4: listener.ssl.keystore.type: JKS can't be read, only PEM: convert it with openssl pkcs12",
        ),
        (
            "listener:\n  ssl.keystore.location: x.pem\n  ssl.enabled.protocols: TLSv1.1,TLSv1.2",
            "gw.yaml:4: listener.ssl.enabled.protocols: TLSv1.1 is not spoken: write one or both of TLSv1.2, TLSv1.3",
        ),
        (
            "listener:\n  port: 5000\n  ssl.client.auth: required",
            "gw.yaml:4: listener: ssl.client.auth: has no effect without a certificate: write ssl.keystore.location",
        ),
        (
            "listener: {ssl.keystore.location: x.pem, ssl.client.auth: required}",
            "listener: ssl.client.auth: required needs the CAs to trust: write ssl.truststore",
        ),
        (
            "listener: {ssl.keystore.location: x.pem, ssl.truststore.location: y.pem}",
            "listener: ssl.truststore.location: clients are asked for no certificate: write ssl.client.auth: required",
        ),
        (
            "listener: {ssl.keystore.location: x.pem, ssl.key.password: [geheim]}",
            "listener.ssl.key.password: text is needed here, not a list",
        ),
        ("listener: {ssl.keystore.locaton: x.pem}", "did you mean ssl.keystore.location?"),
        (
            "listener:\n  ssl.keystore.location: x.pem\n  ssl.principal.mapping.rules: RULE:(?=x)/y/",
            "gw.yaml:4: listener.ssl.principal.mapping.rules: 'RULE:(?=x)/y/': (?=: lookahead is Java's only",
        ),
        (
            "listener: {ssl.keystore.location: x.pem, ssl.principal.mapping.rules: RULE:x/y/}",
            "listener: ssl.principal.mapping.rules: clients are asked for no certificate: write ssl.client.auth: req",
        ),
        (
            "listener:\n  proxy_protocol: {from: [10.0.0.1/8]}",
            "proxy_protocol.from.0: '10.0.0.1/8' is not a valid network: 10.0.0.1/8 has host bits set;"
            " for example 10.0.0.0/8",
        ),
        ("listener: {proxy_protocol: {from: []}}", "listener.proxy_protocol.from: "),
        ("listener: {brokers: {1: 19092}}", "brokers.1: port 19092 is taken by the bootstrap listener"),
        ("admin: {port: 19092}", "admin.port: 19092 is a port of the listener as well"),
        ("internal_topics: yes", "internal_topics: should be 'kafka' or 'none', not True"),
        ("reject_code: 9999", "reject_code: 9999 is neither auto nor the number of a Kafka error"),
        ("reject_code: sometimes", "reject_code: 'sometimes' is neither auto nor"),
        ("drain_timeout: 7x", "gw.yaml:2: drain_timeout: '7x' is not a valid duration; for example"),
        ("drain_timeout: true", "drain_timeout: a number is needed here, not true or false"),
        ("drain_timeout: .nan", "drain_timeout: should be"),
        ("gateway_id: 'a/b'", "gateway_id: 'a/b': letters, digits"),
        (
            f"gateway_id: {'g' * 201}",
            f"gateway_id: '{'g' * 20}…, 201 characters': letters, digits, '.', '_' and '-' only, at most 200,",
        ),
        ("internal: {principals: [alice]}", "'alice' is not a valid principal: write User:alice"),
        ("usage_log: {topic: 'a b'}", "usage_log.topic: 'a b' can't be a topic's name"),
        *[
            (f"workers: {text}", f"workers: {shown} is neither a number of processes, 1 to 256, nor auto")
            for text, shown in (("0", "0"), ("257", "257"), ("-1", "-1"), ("true", "True"), ("many", "'many'"))
        ],
        (
            "storage: {admin: {properties: [a]}}",
            "storage.admin: properties: librdkafka's properties are written beside",
        ),
        (
            "storage: {admin: {properties: text}}",
            "storage.admin: properties: librdkafka's properties are written beside",
        ),
        (
            "storage: {admin: {properties: {acks: '0'}}}",
            "gw.yaml:2: storage.admin: properties.acks: unknown key; known",
        ),
        (
            "storage: {admin: {sasl.password: a, properties: {sasl.password: b}}}",
            "storage.admin: sasl.password: is in properties as well, with another value: keep one of them",
        ),
        (
            "storage: {admin: {sasl.mechanism: PLAIN, sasl.mechanisms: SCRAM-SHA-256}}",
            "storage.admin: sasl.mechanisms: is another name of sasl.mechanism, with another value: keep one of them",
        ),
        ("resourceUsagePublishInterval: 1", "did you mean resourceUsagePublishIntervalInSecs?"),
        ("resourceUsagePublishIntervalInSecs: 0", "InSecs: should be greater than or equal to 0.1, not 0"),
        ("resource_usage_report_every: 0", "_every: should be greater than or equal to 1, not 0"),
        (
            "resourceUsagePublishTopicName: __produce_gateway_usage",
            "gw.yaml:2: resourceUsagePublishTopicName: __produce_gateway_usage is another one's: name another topic",
        ),
        ("resourceUsagePublishTopicName: a/b", "'a/b' can't be a topic's name"),
        (
            "resource_groups:\n  topic_pattern: '{namespace}.{topic}'",
            "gw.yaml:3: resource_groups.topic_pattern: {tenant} is missing: for example",
        ),
        (
            "resource_groups: {principal_pattern: '('}",
            "principal_pattern: not a valid regular expression (RE2's): missing )",
        ),
        (
            "resource_groups:\n  groups:\n    gold: {publishRateInByte: 1}",
            "gw.yaml:4: resource_groups.groups.gold.publishRateInByte: unknown key; did you mean publishRateInBytes?",
        ),
        (
            "resource_groups: {groups: {gold: {dispatchRateInMsgs: 0}}}",
            "resource_groups.groups.gold.dispatchRateInMsgs: should be greater than 0, not 0",
        ),
        ("resource_groups: {groups: {'a/b': {}}}", "'a/b' can't be a group's name"),
        (
            "resource_groups: {groups: {gold: {}}, namespaces: {orders: gold}}",
            "'orders' is not a valid namespace; for example: acme/orders",
        ),
        (
            "resource_groups:\n  groups: {gold: , silver: }\n  tenants: {acme: gould}",
            "gw.yaml:4: resource_groups: tenants.acme: there is no group gould; groups has gold, silver",
        ),
        ("resource_groups: {mode: off}", "resource_groups.mode: should be 'enforce' or 'observe'"),
        (
            "limits: {max_request_bytes: 2MiB, max_buffered_bytes: 1MiB}",
            "limits.max_request_bytes: 2,097,152 bytes could never be read under limits.max_buffered_bytes = 1,048,576",
        ),
        (
            "thresholds: {topics: {1: {bytes.in.per.sec.threshold: 1}}}",
            "thresholds.topics.1: YAML takes this key for no text but int: put it in quotes",
        ),
        ("thresholds: {topics: {'a b': {bytes.in.per.sec.threshold: 1}}}", "'a b' can't be a topic's name"),
        (
            "thresholds: {total.bytes.in.per.sec.threshold: 5MB,\n"
            " topics: {a: {bytes.in.per.sec.threshold: 3MB}, b: {bytes.in.per.sec.threshold: 7MB}}}",
            "thresholds: bytes.in.per.sec.threshold of topic b is 7,000,000 bytes/s, which exceeds"
            " total.bytes.in.per.sec.threshold = 5,000,000 bytes/s by 2,000,000 bytes/s",
        ),
    ],
)
def test_a_mistake_is_told_with_place_and_remedy(text: str, finding: str) -> None:
    lines = problems(UPSTREAM + text)
    assert any(finding in line for line in lines), lines


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (
            "upstream: {bootstrap_servers: 'b:1', sasl_mechanism: PLAIN}",
            "gw.yaml:1: upstream.sasl_mechanism: unknown key; did you mean sasl.mechanism?",
        ),
        ("listener: {}", "gw.yaml:1: upstream: is required"),
        ("upstream: {bootstrap_servers: 'b'}", "'b' is not a valid host:port; for example: broker1:9092,broker2:9092"),
        ("upstream: {bootstrap_servers: 'b:1,c:70000'}", "'c:70000' is not a valid host:port"),
        ("upstream: [1]", "gw.yaml:1: upstream: keys with values are needed here, not a list"),
        ("upstream: {bootstrap_servers: 'b:1', proxy_protocol: v3}", "upstream.proxy_protocol: "),
        (UPSTREAM + UPSTREAM, "gw.yaml:2: upstream is there twice"),
        ("a: [", "gw.yaml:1: "),
        ("a: 1\n\tb: 2", "gw.yaml:2: a tab: YAML is indented by spaces"),
        ("", "keys such as upstream: and listener: are needed"),
        ("just text", "keys such as upstream: and listener: are needed"),
        ("upstream: {bootstrap_servers: 'b:1', sasl.password: {file: /nowhere}}", "file /nowhere can't be read"),
        (
            "upstream: {bootstrap_servers: 'b:1', sasl.password: [1]}",
            "upstream.sasl.password: text is needed here",
        ),
    ],
)
def test_a_mistake_in_or_around_upstream_is_told_with_place_and_remedy(text: str, finding: str) -> None:
    lines = problems(text)
    assert any(finding in line for line in lines), lines


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("thresholds: {total.bytes.in.per.sec.threshold: 1" + "0" * 400 + "}", "should be less than or equal to 92233"),
        ("thresholds: {total.bytes.in.per.sec.threshold: 10000000TB}", "gw.yaml:2: thresholds.total.bytes.in.per.sec"),
        ("limits: {max_buffered_bytes: 1" + "0" * 400 + "}", "limits.max_buffered_bytes: should be less than or equal"),
        ("limits: " + "{a: " * 2000 + "1" + "}" * 2000, "gw.yaml: sections are nested too deeply"),
        ("gateway_id: 2026-13-45", "gw.yaml:2: YAML takes this for a value of the type timestamp"),
        ("listener: {brokers: {1: 2000, '01': 3000}}", "'01' is not a broker's id: write decimal digits without a"),
        (
            "thresholds: {brokers: {1: {total.bytes.in.per.sec.threshold: 1MB},"
            " '01': {total.bytes.in.per.sec.threshold: 2MB}}}",
            "'01' is not a broker's id",
        ),
        (
            "listener: {advertised_host: 'gw.example:9092'}",
            "gw.yaml:2: listener.advertised_host: 'gw.example:9092'",
        ),
        ("listener: {advertised_host: 'http://gw.example'}", "'http://gw.example' is neither a host name nor an IP"),
        ("listener: {advertised_host: ' gw.example'}", "' gw.example' is neither a host name nor an IP address"),
        ("listener: {advertised_host: 0.0.0.0}", "advertised_host: 0.0.0.0 is not an address that clients can"),
        ("listener: {brokers: {1: {advertised_host: '::'}}}", "brokers.1.advertised_host: :: is not an address that"),
        ("listener: {host: '*', advertised_host: a}", "gw.yaml:2: listener.host: '*' is neither a host name nor an IP"),
        ("admin: {hosts: ['gw.example:9190']}", "gw.yaml:2: admin.hosts.0: 'gw.example:9190' is neither a host name"),
        ("usage_log: {spool_dir: ~/spool}", "gw.yaml:2: usage_log.spool_dir: ~/spool: ~ and variables are a shell's"),
        ("policies_store: {file: $HOME/policies}", "policies_store.file: $HOME/policies: ~ and variables are a shell"),
        ("workers: 010", "gw.yaml:2: YAML takes this for a number whose value depends on YAML's version"),
    ],
)
def test_values_that_can_not_be_are_findings(text: str, finding: str) -> None:
    assert any(finding in line for line in problems(UPSTREAM + text)), problems(UPSTREAM + text)


@pytest.mark.parametrize(
    "host", ["gw", "gw_1", "GW.Example.", "10.0.0.1", "2001:db8::1", "[2001:db8::1]", "fe80::1%eth0"]
)
def test_what_a_host_may_be(host: str) -> None:
    (listener,) = parsed(UPSTREAM + f"listener: {{advertised_host: '{host}'}}").all_listeners.values()
    assert listener.public_host == host.strip("[]")


@pytest.mark.parametrize("path", [path for path, field in every_setting() if is_number(field.annotation)], ids=".".join)
def test_yes_and_no_are_no_numbers(path: tuple[str, ...]) -> None:
    """They would be 1 and 0: `max_connections: yes` would be one connection."""
    *outer, last = path
    data: Any = {last: True}
    for part in reversed(outer):
        data = [data] if part == "0" else {"1" if part == NAME else part: data}
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"upstream": {"bootstrap_servers": "b:1"}} | data)
    assert any(last in error["loc"] for error in caught.value.errors())


@pytest.mark.parametrize("key", ["expected_brokers: [yes]", "brokers: {a: yes}"])
def test_yes_is_no_broker(key: str) -> None:
    with pytest.raises(ConfigError, match="a number is needed here, not true or false"):
        parse_settings(f"{UPSTREAM}storage: {{source: prometheus, prometheus: {{url: 'http://p', {key}}}}}")


def test_a_quota_of_a_principal_is_warned_of() -> None:
    quotas = "{user: alice, producer_byte_rate: 1MB}, {user: User:bob, producer_byte_rate: 1MB}"
    (warning,) = warnings_of(f"client_quotas: [{quotas}]")
    assert warning == "client_quotas.1.user: User:bob: quotas name users without their type: write bob"


@pytest.mark.parametrize("text", ["no", "1.50", "1e+3", "!hunter2", "*hunter2", "1.0e+5", "2026-01-01"])
def test_a_password_is_never_another_text_than_was_written(text: str) -> None:
    """What YAML reads as no text, but for decimal digits, has lost its form; and none is repeated."""
    upstream = "upstream: {bootstrap_servers: b1:9092, sasl.password: "
    found, refusal = text, ""
    try:
        found = parse_settings(f"{upstream}{text}}}", "gw.yaml").upstream.properties["sasl.password"]
    except ConfigError as error:
        refusal = str(error)
    assert found == text
    assert "hunter2" not in refusal
    assert parse_settings(f"{upstream}'{text}'}}").upstream.properties["sasl.password"] == text


TOTAL = "thresholds: {total.bytes.in.per.sec.threshold: 1MB}\n"


@pytest.mark.parametrize(
    ("storage", "finding"),
    [
        (
            "\n  min.available.bytes: 1GB\n  min.available.ratio: 0.01",
            "gw.yaml:4: storage: min.available.bytes and min.available.ratio: two kinds of limit at once",
        ),
        (
            "\n  check_interval: PT1M\n  soft: {type: MinFreePercentage, level: 0.2}\n  min.available.ratio: 0.01",
            "storage: min.available.ratio and soft: two kinds of limit at once: keep one of them",
        ),
        (
            " {hard: {type: MinFreeBytes, level: 1GB}, limit_policy: mine}",
            "storage: hard and limit_policy: two kinds of limit at once",
        ),
        (" {}", "gw.yaml:3: storage: no limit is given: write min.available.bytes: 1GB, or "),
        (" {source: prometheus, prometheus: {url: 'http://p'}}", "storage: no limit is given"),
        (" {min.available.ratio: 0}", "min.available.ratio: 0 is not a valid share of a volume, which is above 0"),
        (" {min.available.ratio: 1.01}", "storage.min.available.ratio: 1.01 is not a valid share of a volume"),
        (" {min.available.ratio: .nan}", "storage.min.available.ratio: should be a finite number, not nan"),
        (" {min.available.ratio: true}", "storage.min.available.ratio: a number is needed here, not true or false"),
        (" {min.available.bytes: 0}", "storage.min.available.bytes: should be greater than 0, not 0"),
        (" {min.available.bytes: 1 Gig}", "min.available.bytes: '1 Gig' is not a valid size; for example: 20MB"),
        (
            "\n  min.available.bytes: 1GB\n  throttle.factor.fallback: 1.5",
            "gw.yaml:5: storage.throttle.factor.fallback: 1.5 is not a valid factor: write 1.0 to leave limits as",
        ),
        (" {min.available.bytes: 1GB, throttle.factor.fallback: -0.1}", "-0.1 is not a valid factor"),
        (
            " {min.available.bytes: 1GB, throttle.factor.validity.duration: 5 minutes}",
            "storage.throttle.factor.validity.duration: '5 minutes' is not a valid duration; for example: 500ms, 3s,"
            " 1h30m or PT1M",
        ),
        (" {min.available.bytes: 1GB, check_interval: -1}", "storage.check_interval: should be greater than or equal"),
        (" {min.available.byte: 1GB}", "storage.min.available.byte: unknown key; did you mean min.available.bytes?"),
        (
            " {min.available.bytes: 1GB, admin: {security_protocol: SSL}}",
            "storage.admin.security_protocol: unknown key; did you mean security.protocol?",
        ),
        (
            " {hard: {type: MinFreeBytes, level: 1, typ: 1}}",
            "storage.hard.typ: unknown key; did you mean type?",
        ),
        (
            "\n  hard: {type: MinFreeSpace, level: 1GB}",
            "gw.yaml:4: storage.hard.type: should be 'ConsumedBytes', 'MinFreeBytes' or 'MinFreePercentage', not",
        ),
        (
            " {hard: {type: MinFreePercentage, level: 20}}",
            "storage.hard: level: 20 is not a valid share of a volume; for example: 0.2 for 20 %",
        ),
        (" {hard: {type: MinFreePercentage, level: 20%}}", "storage.hard.level: a number is needed here, not '20%'"),
        (
            " {hard: {type: ConsumedBytes, level: 0.8}}",
            "storage.hard: level: 0.8 is less than a byte: write a size such as 10GB, or type: MinFreePercentage for",
        ),
        (" {hard: {type: MinFreeBytes, level: 0}}", "storage.hard.level: should be greater than 0, not 0"),
        (
            "\n  soft: {type: MinFreeBytes, level: 1GB}\n  hard: {type: MinFreeBytes, level: 2GB}",
            "gw.yaml:4: storage: soft: level 1e+09 is reached no earlier than hard's 2e+09: more MinFreeBytes for soft",
        ),
        (
            " {soft: {type: ConsumedBytes, level: 2GB}, hard: {type: ConsumedBytes, level: 2GB}}",
            "storage: soft: level 2e+09 is reached no earlier than hard's 2e+09: less ConsumedBytes for soft than for",
        ),
        (
            " {min.available.bytes: 1GB, options: {a: 1}}",
            "storage: options: are handed to a source of your own, and log-dirs is built in: write source: NAME",
        ),
        (
            " {min.available.bytes: 1GB, snapshots: {max_age: 1m}}",
            "storage: snapshots: has no effect with source log-dirs: write source: snapshots, or leave it out",
        ),
        (" {min.available.bytes: 1GB, source: prometheus}", "storage: source prometheus: its address is needed"),
        (
            " {source: snapshots, throttle.factor.fallback: 0.5}",
            "storage: throttle.factor.fallback: has no effect with source snapshots: write snapshots: {fail_safe: …}",
        ),
        (" {source: snapshots, snapshots: {fail_safe: open}}", "fail_safe: should be 'PAUSE' or 'OPEN', not 'open'"),
        (" {source: snapshots, snapshots: {max_age: 0}}", "storage.snapshots.max_age: should be greater than 0"),
        (" {source: snapshots, snapshots: {topic: 'a b'}}", "storage.snapshots.topic: 'a b' can't be a topic's name"),
        (
            " {source: snapshots, snapshots: {topic: __produce_gateway_usage}}",
            "gw.yaml:3: storage.snapshots.topic: __produce_gateway_usage is the usage log's",
        ),
        (" {factor_source: mine, min.available.bytes: 1GB}", "min.available.bytes: factor_source mine stands in its"),
        (
            " {factor_source: mine, snapshots: {max_age: 1m}}",
            "storage: snapshots: factor_source mine stands in its place: keep one of them",
        ),
        (
            " {limit_policy: mine, options: {a: 1}}",
            "storage: options: are handed to a source of your own, and log-dirs is built in: write source: NAME"
            " (produce_gateway.volume_sources), or limit_policy_options for those of limit_policy",
        ),
        (
            " {min.available.bytes: 1GB, limit_policy_options: {a: 1}}",
            "storage: limit_policy_options: are handed to limits of your own: write limit_policy: NAME",
        ),
        (
            " {min.available.bytes: 1GB, check_interval: 99ms}",
            "storage.check_interval: 0.099 s is too often: write at least 100ms, or PT0S for off",
        ),
        (" {factor_source: mine, source: snapshots}", "storage: source: factor_source mine stands in its place"),
        (" {source: 'my source'}", "storage.source: 'my source' can't be the name of an entry point"),
    ],
)  # fmt: skip
def test_a_mistake_in_storage_is_told_with_place_and_remedy(storage: str, finding: str) -> None:
    lines = problems(UPSTREAM + TOTAL + "storage:" + storage)
    assert len(lines) == 1, lines
    assert finding in lines[0]


SOFT = "storage: {soft: {type: MinFreeBytes, level: 2GB}, hard: {type: MinFreeBytes, level: 1GB}}\n"


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("", False),
        (TOTAL, True),
        ("thresholds: {source: mine}", True),
        ("thresholds: {topics: {clicks: {bytes.in.per.sec.threshold: 1MB}}}", False),  # limits nothing without a total
        ("client_quotas: [{user: alice, producer_byte_rate: 1MB}]", True),
        ("client_quotas: [{client_id: <default>, 'producer_byte_rate:bps': 1MB}]", True),
        ("client_quotas: [{user: alice, consumer_byte_rate: 1MB}]", False),
        ("resource_groups: {groups: {gold: {publishRateInBytes: 1MB}}}", True),
        ("resource_groups: {groups: {gold: {publishRateInMsgs: 5}}}", True),
        ("resource_groups: {groups: {gold: {dispatchRateInBytes: 1}}}", False),
    ],
)
def test_a_soft_limit_needs_a_produce_limit_that_it_can_lower(text: str, accepted: bool) -> None:
    if accepted:
        assert storage_of(SOFT + text).soft
    else:
        (line,) = problems(UPSTREAM + SOFT + text)
        assert line.startswith(
            "gw.yaml:2: storage.soft: a soft limit has no effect where no produce limit exists: write"
        )


def test_a_source_of_thresholds_takes_options_and_without_one_they_are_refused() -> None:
    settings = parse_settings(
        UPSTREAM + "thresholds: {source: mine, interval: PT30S, options: {url: 'http://x', n: 3}}"
    )
    assert (settings.thresholds.source, settings.thresholds.interval) == ("mine", 30)
    assert settings.thresholds.options == {"url": "http://x", "n": 3}
    (line,) = problems(UPSTREAM + "thresholds: {options: {url: 1}}")
    assert "thresholds: options: are handed to a source of your own: write source: NAME" in line


FULL_STORAGE = """
storage:
  source: snapshots
  check_interval: PT30S
  admin: {bootstrap_servers: "r1:9091", security.protocol: SSL, ssl.ca.location: /ca.pem}
  soft: {type: MinFreePercentage, level: 0.2}
  hard: {type: MinFreeBytes, level: 10GB}
  mode: observe
  snapshots: {topic: volumes, max_age: PT3M, fail_safe: OPEN, replication: 2}
"""


def test_a_burst_is_off_unless_it_is_set_and_goes_with_rejections_only() -> None:
    assert parse_settings(UPSTREAM).thresholds.burst == 0
    assert parse_settings(UPSTREAM + "thresholds: {burst: 10s}").thresholds.burst == 10
    said = problems(UPSTREAM + "thresholds: {burst: 10s, on_exceed: delay}")[0]
    assert "burst: has no effect with on_exceed: delay" in said


def test_head_room_is_reckoned_from_the_largest_total() -> None:
    text = """\
storage: {min.available.bytes: 1GB, throttle.factor.fallback: 0}
thresholds:
  on_exceed: delay
  brokers: {1: {total.bytes.in.per.sec.threshold: 1MB}, 2: {total.bytes.in.per.sec.threshold: 20MB}}
"""
    (warning,) = warnings_of(text)
    assert "less than the 1,500,000,000 bytes that 20,000,000 bytes/s bring to a broker" in warning
    (warning,) = warnings_of(text + "  total.bytes.in.per.sec.threshold: 30MB\n")
    assert "30,000,000 bytes/s" in warning


def test_options_of_limits_of_ones_own_are_apart() -> None:
    text = "storage: {source: mine, options: {path: /x}, limit_policy: theirs, limit_policy_options: {level: 3}}"
    storage = storage_of(text)
    assert (storage.options, storage.limit_policy_options) == ({"path": "/x"}, {"level": 3})


@pytest.mark.seed("035.25")
def test_the_storage_section_is_understood_and_survives_the_way_to_control() -> None:
    settings = parsed(UPSTREAM + TOTAL + FULL_STORAGE)
    storage = storage_of(TOTAL + FULL_STORAGE)
    assert storage.check_interval == 30
    ((soft,), (hard,)) = storage.soft, storage.hard
    assert (soft.level, hard.level) == (0.2, 10 * 10**9)
    snapshots = {"topic": "volumes", "max_age": 180, "fail_safe": "OPEN", "replication": 2}
    assert storage.snapshot_settings.model_dump() == snapshots
    assert settings.storage_admin.bootstrap_servers == "r1:9091"
    assert settings.storage_admin.properties == {"security.protocol": "SSL", "ssl.ca.location": "/ca.pem"}
    assert settings.gateway_topics[-1] == "volumes"


@pytest.mark.seed("DISK.15", "DISK.27", "DISK.31")
def test_storage_defaults_are_the_proposal_s() -> None:
    storage = storage_of("storage: {min.available.ratio: 0.01}")
    assert (storage.source, storage.check_interval, storage.fallback, storage.validity) == ("log-dirs", 60, 1.0, 300)
    assert storage.snapshot_settings.fail_safe == "PAUSE"
    assert parse_settings(UPSTREAM).storage is None


def test_a_file_s_byte_order_mark_is_no_part_of_a_secret(tmp_path: Path) -> None:
    """Editors of Windows write one, and none shows it."""
    file = tmp_path / "secret"
    file.write_bytes(b"\xef\xbb\xbfhunter2hunter2hunter2\r\n")
    secret = f"{{file: {file}}}"
    settings = parse_settings(
        f"upstream: {{bootstrap_servers: 'b:1', sasl.password: {secret}}}\nadmin: {{tokens: [{secret}]}}"
    )
    assert (settings.upstream.properties["sasl.password"], *settings.admin.tokens) == ("hunter2hunter2hunter2",) * 2
    assert property_text("sasl.password", {"file": str(file)}) == "hunter2hunter2hunter2"
    assert read_first_token(file) == "hunter2hunter2hunter2"


@pytest.mark.seed("DISK.16")
@pytest.mark.parametrize(
    ("admin", "servers", "protocol"),
    [
        ("", "b:9092", "SASL_PLAINTEXT"),
        (", admin: {bootstrap_servers: 'r:1'}", "r:1", "SASL_PLAINTEXT"),
        (", admin: {security.protocol: SSL}", "b:9092", "SSL"),
    ],
)
def test_the_storage_admin_falls_back_to_upstream_s_values(admin: str, servers: str, protocol: str) -> None:
    text = "upstream: {bootstrap_servers: 'b:9092', security.protocol: SASL_PLAINTEXT}\n"
    found = parsed(f"{text}storage: {{min.available.bytes: 1GB{admin}}}").storage_admin
    assert (found.bootstrap_servers, found.properties) == (servers, {"security.protocol": protocol})


@pytest.mark.seed("DISK.33")
def test_storage_that_is_off_needs_no_limit() -> None:
    text = "storage: {check_interval: PT0S, source: log-dirs}"
    assert storage_of(text).is_disabled
    assert warnings_of(text) == ["storage.check_interval PT0S: disks are not observed"]


@pytest.mark.parametrize(
    ("storage", "warning"),
    [
        ("hard: {type: MinFreePercentage, level: 1}", "storage.hard 1: never more than the whole volume is free, so"),
        ("volumes: [{match: '*', hard: {type: MinFreePercentage, level: 1.0}}]", "storage.volumes.0.hard 1: never"),
        ("min.available.ratio: 1", "storage.min.available.ratio 1: never more than the whole volume is free, so"),
        ("min.available.bytes: 74MB", "storage.min.available.bytes: 74,000,000 bytes of head-room are less than the"
         " 75,000,000 bytes that 1,000,000 bytes/s bring to a broker within 60 s and the 15 s that a request may be on"
         " its way, not counting the bytes that replication adds: raise the limit or check more often"),
        ("hard: {type: MinFreeBytes, level: 74MB}", "storage.hard: 74,000,000 bytes of head-room are less"),
        ("min.available.bytes: 1GB", "storage: thresholds.on_exceed reject goes by the average of a minute"),
        ("min.available.ratio: 0.1", "storage: throttle.factor.fallback 1.0: when nothing has been learned of the disks"
         " for 300 s, nothing is held back"),
        ("source: snapshots, snapshots: {fail_safe: OPEN}", "storage.snapshots.fail_safe OPEN: a broker whose"),
        ("min.available.ratio: 0.1, mode: observe", "storage.mode observe: full disks hold nothing back"),
        ("soft: {type: MinFreePercentage, level: 0.1}", "storage.soft: without a hard limit producers are held only"),
    ],
)  # fmt: skip
def test_storage_that_is_hardly_meant_is_warned_about(storage: str, warning: str) -> None:
    assert any(warning in line for line in warnings_of(TOTAL + f"storage: {{{storage}}}"))


@pytest.mark.parametrize(
    "storage",
    [
        "min.available.bytes: 75MB, throttle.factor.fallback: 0.0",
        "hard: {type: MinFreePercentage, level: 0.1}, throttle.factor.fallback: 0.5",
        "source: snapshots",
    ],
)
def test_storage_as_it_should_be_is_not_warned_about(storage: str) -> None:
    delays = TOTAL.replace("1MB}", "1MB, on_exceed: delay}")
    assert config.find_warnings(parse_settings(UPSTREAM + delays + f"storage: {{{storage}}}")) == []


@pytest.mark.parametrize(
    ("storage", "what"),
    [
        ("min.available.bytes: 1TB, throttle.factor.fallback: 0.1", "storage: throttle.factor.fallback 0.1: a factor"),
        ("factor_source: mine", "storage: factor_source mine: a factor between 0 and 1 holds nothing back"),
        ("limit_policy: mine", "storage: limit_policy mine: a factor between 0 and 1 holds nothing back"),
    ],
)
@pytest.mark.parametrize(
    ("more", "count"), [("", 1), (TOTAL, 0), ("client_quotas: [{user: <default>, producer_byte_rate: 1MB}]", 0)]
)
def test_a_factor_that_could_throttle_nothing_is_warned_about(storage: str, what: str, more: str, count: int) -> None:
    assert sum(line.startswith(what) for line in warnings_of(f"storage: {{{storage}}}\n{more}")) == count


def test_without_a_total_no_head_room_is_known_to_suffice() -> None:
    found = warnings_of("storage: {min.available.bytes: 1TB, throttle.factor.fallback: 0}")
    assert ["no bound to the bytes written between two checks" in line for line in found] == [True]


def test_bootstrap_servers_may_be_a_list_and_ipv6() -> None:
    settings = parse_settings("upstream: {bootstrap_servers: [b1:9092, '[::1]:9093']}")
    assert settings.upstream.addresses() == (("b1", 9092), ("::1", 9093))


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("thresholds: {topics: {a: {bytes.in.per.sec.threshold: 1}}}", "without total.bytes.in.per.sec.threshold"),
        (
            "thresholds: {total.bytes.in.per.sec.threshold: 5, brokers: {2: {total.bytes.in.per.sec.threshold: 9}},"
            " topics: {a: {bytes.in.per.sec.threshold: 3}, b: {bytes.in.per.sec.threshold: 4}}}",
            "by 2 bytes/s: lower some of them, or raise the total to at least 7 bytes/s, unless no broker has all of"
            " these topics",
        ),
        (
            "thresholds: {total.bytes.in.per.sec.threshold: 9, brokers: {2: {total.bytes.in.per.sec.threshold: 7}},"
            " topics: {a: {bytes.in.per.sec.threshold: 3}, b: {bytes.in.per.sec.threshold: 4}}}",
            "thresholds: brokers.2: the topics' bytes.in.per.sec.threshold use up",
        ),
        ("reject_code: 87", "reject_code 87 (INVALID_RECORD) is not retriable"),
        ("reject_code: 20", "reject_code 20 (NOT_ENOUGH_REPLICAS_AFTER_APPEND): not every client retries it"),
        ("reject_code: 89", "reject_code 89 (THROTTLING_QUOTA_EXCEEDED): librdkafka, sarama, aiokafka"),
        ("mode: observe", "mode observe: nothing is limited, only counted"),
        ("thresholds: {enforce_percent: 5}", "thresholds.enforce_percent 5: all other clients are not limited"),
        ("thresholds: {enforce_percent: 5}", "with several gateways write secret_key_file: FILE"),
        (
            "mode: observe\nclient_quotas_enforce_percent: 0.5",
            "client_quotas_enforce_percent 0.5: has no effect with mode observe",
        ),
        (
            "resource_groups: {mode: observe, enforce_percent: 50}",
            "resource_groups.enforce_percent 50: has no effect with resource_groups.mode observe",
        ),
        (
            "client_quotas: [{user: alice, producer_byte_rate: 10}]",
            "of {user=alice}: 10 bytes/s is less than one usual",
        ),
        ("acks0: drop", "acks0 drop: batches over a limit are lost"),
        ("limits: {max_connections_per_address: 10001}", "two addresses can take every place"),
        ("thresholds: {on_exceed: delay}", "thresholds.on_exceed delay: without a total"),
        ("internal_topics: none", "are not published to a topic"),
        ("internal_topics: none", "every limit holds for this gateway alone"),
        ("resourceUsagePublishToTopic: false", "every limit holds for this gateway alone"),
    ],
)
def test_settings_that_are_hardly_meant_are_warned_about(text: str, warning: str) -> None:
    assert any(warning in line for line in warnings_of(text))


def test_gateways_that_share_a_secret_and_one_that_is_alone_agree_on_clients() -> None:
    for text in ("secret_key_file: key", "internal_topics: none"):
        found = warnings_of(f"{text}\nthresholds: {{enforce_percent: 5}}")
        assert not any("secret_key_file" in line for line in found)


def test_tls_to_brokers_is_what_librdkafka_s_properties_say() -> None:
    settings = parsed("""\
upstream:
  bootstrap_servers: b:1
  security.protocol: sasl_ssl
  ssl.ca.location: /ca.pem
  ssl.certificate.location: /tls.crt
  ssl.key.location: /tls.key
  ssl.key.password: secret
  ssl.endpoint.identification.algorithm: none
""")
    tls = BrokerTls("/ca.pem", "", "/tls.crt", "", "/tls.key", "", "secret", checks_name=False)
    assert settings.upstream.tls == worker_settings(settings, b"").upstream_tls == tls
    assert worker_settings(parse_settings(UPSTREAM), b"").upstream_tls is None


@pytest.mark.parametrize(
    ("properties", "warning"),
    [
        ("security.protocol: SSL, ssl.endpoint.identification.algorithm: none", "algorithm none: any server with a"),
        (
            "security.protocol: SSL, enable.ssl.certificate.verification: false",
            "false: any server is taken for a broker",
        ),
        ("ssl.ca.location: /ca.pem", "upstream.ssl.ca.location: has no effect without security.protocol: SSL"),
        ("security.protocol: SSL", ""),
    ],
)
def test_brokers_that_are_not_verified_are_warned_about(properties: str, warning: str) -> None:
    found = find_warnings(parse_settings(f"upstream: {{bootstrap_servers: 'b:1', {properties}}}"))
    assert [warning in line for line in found if "upstream" in line] == [True] * bool(warning)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            "ssl.keystore.location",
            "PKCS#12 is not read by relayed connections: convert it with openssl pkcs12 -in FILE",
        ),
        (
            "ssl.keystore.password",
            "PKCS#12 is not read by relayed connections: convert it with openssl pkcs12 -in FILE",
        ),
        ("ssl.truststore.location", "is a name of Java's: write ssl.ca.location: ca.pem"),
        ("ssl.engine.location", "can't be set for relayed connections: leave it out, or set it for all of OpenSSL"),
        ("ssl.providers", "can't be set for relayed connections"),
        ("ssl.curves.list", "can't be set for relayed connections"),
        ("ssl.sigalgs.list", "can't be set for relayed connections"),
        ("ssl.magic", "not understood here; known are enable.ssl.certificate.verification, ssl.ca.location,"),
        ("ssl.key.pem", "needed with ssl.key.pem"),
    ],
)
def test_properties_that_relayed_connections_can_not_honour_are_refused_where_tls_is_on(key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(f"upstream: {{bootstrap_servers: 'b:1', security.protocol: SSL, {key}: hidden-value}}")
    (line,) = caught.value.lines
    assert said in line
    assert "hidden-value" not in line
    parse_settings(f"upstream: {{bootstrap_servers: 'b:1', security.protocol: PLAINTEXT, {key}: hidden-value}}")


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="can't be read"):
            config.load_settings(path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        config.load_settings(tmp_path / "binary")


FLEET = """
resource_groups:
  principal_pattern: "User:(?P<tenant>[^-]+)-.*"
  mode: observe
  groups:
    gold: {publishRateInBytes: 12MB, publishRateInMsgs: 0.5, dispatchRateInBytes: 24MB, dispatchRateInMsgs: 200000}
    silver:
  tenants: {acme: gold}
  namespaces: {acme/orders: silver}
resourceUsagePublishTopicName: usage-of-all
resourceUsagePublishIntervalInSecs: 2
resource_usage_report_every: 10
"""


def test_groups_and_the_exchange_are_understood_and_survive_the_way_to_control() -> None:
    settings = parsed(UPSTREAM + FLEET)
    gold = settings.resource_groups.groups["gold"]
    assert (gold.publish_bytes, gold.publish_msgs) == (12_000_000, 0.5)
    assert (gold.dispatch_bytes, gold.dispatch_msgs) == (24_000_000, 200_000)
    assert (settings.usage_interval, settings.resource_usage_report_every) == (2.0, 10)
    assert settings.gateway_topics == ("__produce_gateway_usage", "__produce_gateway_policies", "usage-of-all")


def test_groups_of_the_file_are_part_of_the_base_of_what_may_be_changed() -> None:
    settings = parse_settings(UPSTREAM + FLEET)
    values = {(key.kind, key.name, key.key): value for key, value in settings.policy_values().items()}
    assert values["group", "gold", "publishRateInBytes"] == 12_000_000
    assert values["group", "silver", "exists"] == 1
    assert values["namespace", "acme/orders", "resourcegroup"] == "silver"
    assert values["tenant", "acme", "resourcegroup"] == "gold"
    again = settings.policy_values_with(5e6, {"clicks": 1e6})  # as a source of thresholds says
    assert {key for key in again if key.kind not in ("topic", "broker")} == set(settings.policy_values())
    assert len(again) == len(values) + 2


@pytest.mark.parametrize("text", ["internal_topics: none", "resourceUsagePublishToTopic: false"])
def test_a_gateway_that_exchanges_nothing_has_no_topic_for_it(text: str) -> None:
    settings = parse_settings(UPSTREAM + text)
    assert not settings.exchanges_usage
    assert "__produce_gateway_resource_usage" not in settings.gateway_topics
    assert parse_settings(UPSTREAM).exchanges_usage


# --- policies that may be changed at run time -------------------------------------------------------------------------


def test_thresholds_and_client_quotas_of_the_file_are_the_base_of_what_may_be_changed() -> None:
    settings = parsed(
        UPSTREAM
        + """
thresholds:
  total.bytes.in.per.sec.threshold: 20MB
  brokers: {2: {total.bytes.in.per.sec.threshold: 8MB}}
  topics: {clicks: {bytes.in.per.sec.threshold: 5MB}}
client_quotas:
  - {user: alice, client_id: <default>, producer_byte_rate: 1MiB, request_percentage: 50}
"""
    )
    assert sorted(map(float, settings.policy_values().values())) == [50, 2**20, 5_000_000, 8_000_000, 20_000_000]


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (
            "thresholds:\n  total.bytes.in.per.sec.threshold: 2MB\n"
            "  brokers: {2: {total.bytes.in.per.sec.threshold: 4MB}}\n"
            "  topics: {clicks: {bytes.in.per.sec.threshold: 5MB}}\n",
            "thresholds: bytes.in.per.sec.threshold of topic clicks is 5,000,000 bytes/s",
            "by 1,000,000 bytes/s",
        ),
        ("client_quotas:\n  - {user: alice, producer_byte_rate: -1}\n", "client_quotas", "producer_byte_rate"),
        ("client_quotas:\n  - {user: alice, producer_byte_rate.shares: 1}\n", "client_quotas", "no total"),
        ("policies_store: {topic: __produce_gateway_usage}\n", "policies_store.topic", "name another topic"),
    ],
)
def test_policies_that_can_not_be_are_refused_with_place_and_reason(text: str, where: str, what: str) -> None:
    line = problems(UPSTREAM + text)[0]
    assert where in line
    assert what in line


def test_without_internal_topics_changes_are_kept_in_a_file() -> None:
    settings = parse_settings(UPSTREAM + "internal_topics: none\npolicies_store: {file: /tmp/policies.jsonl}\n")
    assert str(settings.policies_file) == "/tmp/policies.jsonl"
    assert settings.gateway_topics == ("__produce_gateway_usage",)


def test_listeners_with_tls_are_as_kafka_names_them_and_control_reads_the_same(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    settings = parsed(
        UPSTREAM
        + f"""
listener:
  ssl.keystore.location: /etc/gw/tls.crt
  ssl.keystore.type: pem
  ssl.key.location: /etc/gw/tls.key
  ssl.key.password: {{file: {password}}}
  ssl.truststore.location: /etc/gw/clients.pem
  ssl.client.auth: required
  ssl.enabled.protocols: TLSv1.3
  ssl.principal.mapping.rules: RULE:CN=(.*?),.*/$1/L
"""
    )
    files = ("/etc/gw/tls.crt", "/etc/gw/tls.key", "open sesame", "/etc/gw/clients.pem")
    tls = ListenerTls(*files, "required", ("TLSv1.3",), "RULE:CN=(.*?),.*/$1/L")
    assert settings.all_listeners[DEFAULT_LISTENER].tls == tls
    assert parse_settings(UPSTREAM).all_listeners[DEFAULT_LISTENER].tls is None


def test_proxies_before_the_gateway_and_before_brokers_are_named_and_control_reads_the_same() -> None:
    text = "upstream: {bootstrap_servers: 'b:1', proxy_protocol: v2}\n"
    settings = parsed(text + "listener: {proxy_protocol: {from: [10.0.0.0/8, '::1']}}")
    assert settings.all_listeners[DEFAULT_LISTENER].proxy_networks == ("10.0.0.0/8", "::1")
    assert worker_settings(settings, b"").upstream.proxy_protocol == "v2"
    assert "the gateway's own clients can't send it" in find_warnings(settings)[0]
    assert parse_settings(UPSTREAM).all_listeners[DEFAULT_LISTENER].proxy_networks == ()


def test_an_internal_client_id_alone_is_warned_of_and_pairs_are_not() -> None:
    alone = warnings_of("internal: {client_ids: [mirror]}")
    assert [each for each in alone if each.startswith("internal.client_ids: any client can claim")]
    pairs = parse_settings(UPSTREAM + "internal: {clients: [{principal: 'User:mirror', client_id: mirror}]}")
    assert not [each for each in find_warnings(pairs) if each.startswith("internal")]
    pair = WorkerInternalClient(principal="User:mirror", client_id="mirror")
    assert worker_settings(pairs, b"").internal.clients == (pair,)
    assert problems(UPSTREAM + "internal: {clients: [{principal: mirror, client_id: mirror}]}") == [
        "gw.yaml:2: internal.clients.0.principal: 'mirror' is not a valid principal: write User:mirror"
    ]


def test_a_request_is_held_for_50_s_at_most_unless_the_operator_says_less() -> None:
    assert worker_settings(parse_settings(UPSTREAM), b"").limits.max_hold == 50.0
    assert worker_settings(parse_settings(UPSTREAM + "limits: {max_hold: 12s}\n"), b"").limits.max_hold == 12.0
    assert "max_hold" in problems(UPSTREAM + "limits: {max_hold: 5m}\n")[0]


def test_names_of_the_admin_server_are_its_host_s_and_more() -> None:
    admin = parse_settings(UPSTREAM + "admin: {host: GW.example, hosts: [gw.monitoring.svc], open: true}").admin
    assert admin.host_names == {"gw.example", "gw.monitoring.svc"}


def test_totals_that_consumers_share() -> None:
    shares = "client_quotas: [{user: a, consumer_byte_rate.shares: 2}]"
    settings = parse_settings(
        f"{UPSTREAM}thresholds:\n  {TOTAL_OUT_KEY}: 50MB\n  brokers: {{2: {{{TOTAL_OUT_KEY}: 20MB}}}}\n{shares}",
        "g.yaml",
    )
    assert settings.policy_values() == {
        PolicyKey.of_broker(key=TOTAL_OUT_KEY): 50e6,
        PolicyKey.of_broker(2, TOTAL_OUT_KEY): 20e6,
        PolicyKey.of_quota(Entity("a"), QuotaKey("consumer_byte_rate", "shares")): 2.0,
    }
    assert not settings.thresholds.limits_bytes
    assert any("a total of its own is needed" in each for each in problems(UPSTREAM + "thresholds: {brokers: {2: {}}}"))
    assert any(
        f"brokers have no {TOTAL_OUT_KEY} to share: set one first" in each for each in problems(UPSTREAM + shares)
    )


def test_other_gateways_take_any_name_that_a_gateway_may_have() -> None:
    longest = "g" * MAX_GATEWAY_ID
    assert parse_settings(f"{UPSTREAM}gateway_id: {longest}\n").gateway_name == longest
    assert len(f"{longest}-65535") <= form.MAX_NAME  # made of host name and port


SECRET = "correct-horse-battery-staple-42"
NUMBER = "31415926535897932"  # YAML takes it for no text


@pytest.mark.parametrize(
    "text",
    [
        f"admin: {{tokens: {SECRET}}}",
        f"admin: {SECRET}",
        f"admin: {{tokens: {{a: {SECRET}}}}}",
        f"admin: [{{tokens: [{SECRET}]}}]",
        f"listener: {{ssl.key.password: [{SECRET}]}}",
        f"upstream: {{bootstrap_servers: 'b:1', sasl.password: [{SECRET}]}}",
        f"upstream: {{bootstrap_servers: 'b:1', ssl.key.pem: [{SECRET}]}}",
        f"upstream: {SECRET}",
        f"thresholds: {{source: x, options: {SECRET}}}",
        f"storage: {{source: x, options: {SECRET}}}",
        f"storage: {{source: prometheus, prometheus: {{bearer_token_file: [{SECRET}]}}}}",
        f"admin: {{tokens: [{NUMBER}]}}",
        f"admin: {{tokens: {NUMBER}}}",
        f"admin: {{token_file: {NUMBER}}}",
    ],
)
def test_no_finding_repeats_a_secret(text: str) -> None:
    found = problems(text if text.startswith("upstream") else UPSTREAM + text)
    assert found
    assert SECRET not in str(found)
    assert NUMBER not in str(found)


def test_one_fault_hides_no_other_and_each_has_its_line() -> None:
    text = (
        "listener:\n  ssl.keystore.type: JKS\n  ssl.keystore.location: x\n  ssl.client.auth: required\n"
        "storage:\n  prometeus: {url: x}\n  min.available.bytes: 1GB\n  min.available.ratio: 0.1\n"
        "client_quotas:\n- {usr: a, producer_byte_rate: 1}\n- {user: b}\n- {user: c, request_percentage: 0}\n"
        "admin: {port: 19092}\n"
    )
    starts = [
        "gw.yaml:3: listener.ssl.keystore.type: JKS can't be read",
        "gw.yaml:5: listener: ssl.client.auth: required needs the CAs to trust",
        "gw.yaml:7: storage.prometeus: unknown key; did you mean prometheus?",
        "gw.yaml:8: storage: min.available.bytes and min.available.ratio: two kinds of limit at once",
        "gw.yaml:11: client_quotas.0.usr: unknown key; did you mean user?",
        "gw.yaml:12: client_quotas.1: {user=b} has no quota",
        "gw.yaml:13: client_quotas.2.request_percentage: ",
        "gw.yaml:14: admin.port: 19092 is a port of the listener as well",
    ]
    found = problems(UPSTREAM + text)
    assert [line[: len(start)] for line, start in zip(found, starts, strict=True)] == starts


@pytest.mark.parametrize(
    "text",
    [
        "upstream: {bootstrap_server: 'b:1'}",  # not also: bootstrap_servers is required
        UPSTREAM + "listener: {ssl.keystore.location: x, ssl.client.auth: required, ssl.truststore.locaton: ca.pem}",
        UPSTREAM + "storage: {source: prometheus, prometeus: {url: 'http://p'}, min.available.bytes: 1GB}",
        UPSTREAM + "storage: {soft: {type: MinFreeBytes, level: 1GB}, hard: {type: MinFreeBytes, level: 1}}\n"
        "thresholds: {total.bytes.in.per.sec.threshold: 5x}",  # not also: no produce limit exists
    ],
)
def test_what_only_follows_from_a_fault_is_not_told(text: str) -> None:
    assert len(problems(text)) == 1


def test_the_rest_of_a_wrong_configuration_can_be_looked_at() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings("upstream: {bootstrap_server: 'b:1'}\nlistener: {port: 0, host: h}\nadmin: {port: 7}\n")
    rest = caught.value.usable_settings
    assert rest is not None
    listener = rest.all_listeners[DEFAULT_LISTENER]
    assert (listener.host, listener.port, rest.admin.port) == ("h", 19092, 7)
    assert caught.value.explains_fault("upstream.bootstrap_servers: nobody is there")
    assert not caught.value.explains_fault("storage: nobody is there")


@pytest.mark.parametrize(
    ("upstream", "listener", "is_loop"),
    [
        ("127.0.0.1:19092", "", True),
        ("LocalHost:19092", "host: 127.0.0.1", True),
        ("b1:9092,gw.example:9092", "host: 0.0.0.0, advertised_host: GW.example, port: 9092", True),
        ("localhost:9092", "host: 0.0.0.0, advertised_host: gw, port: 9092", True),
        ("10.0.0.7:9092", "host: 10.0.0.7, port: 9092", True),
        ("localhost:9092", "host: 10.0.0.7, port: 9092", False),  # Kafka on the same machine, at another address
        ("localhost:9092", "", False),
        ("b1:19092", "", False),
    ],
)
def test_a_gateway_that_would_relay_to_itself_is_found(upstream: str, listener: str, is_loop: bool) -> None:
    settings = parse_settings(f"upstream: {{bootstrap_servers: '{upstream}'}}\nlistener: {{{listener}}}\n")
    assert bool(config.find_relay_loops(settings.upstream, dict(settings.all_listeners))) == is_loop


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (UPSTREAM + "listener: {brokers: {5: 19094}}", "listener.brokers.5: 19094 is the port that broker 1 would"),
        (UPSTREAM + "listener: {brokers: {5: 19094, 1: 19200}}", ""),
        (UPSTREAM + "listener: {brokers: {100001: 19094}}", ""),  # all of that cluster's ids will be like this one
        ("upstream: {bootstrap_servers: 'localhost:19095'}", "upstream.bootstrap_servers: 19095 is the port that"),
        ("upstream: {bootstrap_servers: 'b:19095'}", ""),
    ],
)  # fmt: skip
def test_a_port_that_some_broker_would_need_is_warned_about(text: str, warning: str) -> None:
    found = [line for line in find_warnings(parse_settings(text)) if "withheld from clients" in line]
    assert len(found) == bool(warning)
    assert all(line.startswith(warning) for line in found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{}", 2000),
        ("{max_connections: 5000}", 500),
        ("{max_connections: 300}", 100),  # a machine with many producers
        ("{max_connections: 50}", 50),
        ("{max_connections_per_address: 7}", 7),
        ("{max_connections: 50, max_connections_per_address: 25}", 25),
    ],
)
def test_one_address_has_a_tenth_of_all_connections_unless_the_file_says_otherwise(text: str, found: int) -> None:
    settings = parse_settings(f"{UPSTREAM}limits: {text}")
    assert settings.limits.connections_per_address == found
    assert not any("max_connections_per_address" in line for line in config.find_warnings(settings))
