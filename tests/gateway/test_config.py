# The configuration file: what is understood, and that every mistake is told with its place and what would be right.

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import config
from gateway.certificates import ListenerTls
from gateway.config import ConfigError, Settings, parse, warnings
from gateway.control.snapshots import worker_settings

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


def problems(text):
    with pytest.raises(ConfigError) as caught:
        parse(text, "gw.yaml")
    return caught.value.lines


def test_the_documented_example_is_understood():
    settings = parse(ISSUE)
    assert settings.upstream.addresses() == (("127.0.0.1", 9092),)
    assert settings.thresholds.total == 20 * 10**6
    assert settings.thresholds.by_topic() == {"clicks": 5e6}
    assert [settings.listener.broker_port(n) for n in (0, 7)] == [19093, 19100]
    assert settings.limits.max_request_bytes == 100 * 2**20
    assert config.warnings(settings) == []


def test_only_upstream_is_required():
    settings = parse(UPSTREAM)
    assert settings.reject_code == "auto"
    assert settings.thresholds.total is None
    assert settings.usage_log.topic == "__produce_gateway_usage"
    assert settings.gateway.endswith("-19092")


def test_settings_survive_the_way_to_control():
    text = ISSUE + "internal: {principals: ['User:mm'], client_ids: [mm]}\nreject_code: 19\ndrain_timeout: 1m\n"
    settings = parse(text.replace('"127.0.0.1:9092"}', '"127.0.0.1:9092", sasl.password: s3cret, ssl.x: true}'))
    assert settings.upstream.properties == {"sasl.password": "s3cret", "ssl.x": "true"}
    assert Settings.model_validate_json(settings.model_dump_json(by_alias=True)) == settings


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (UPSTREAM + "listner: {port: 1}", "gw.yaml:2: listner: unknown key; did you mean listener?"),
        (UPSTREAM + "listener:\n  prot: 1", "gw.yaml:3: listener.prot: unknown key; did you mean port?"),
        (
            UPSTREAM + "thresholds:\n  topics:\n    a: {bytes.in.per.sec.treshold: 5MB, bytes.in.per.sec.threshold: 1}",
            "gw.yaml:4: thresholds.topics.a.bytes.in.per.sec.treshold: unknown key; did you mean"
            " bytes.in.per.sec.threshold?",
        ),
        (
            "upstream: {bootstrap_servers: 'b:1', sasl_mechanism: PLAIN}",
            "gw.yaml:1: upstream.sasl_mechanism: unknown key; did you mean sasl.mechanism?",
        ),
        (UPSTREAM + "zzz: 1", "gw.yaml:2: zzz: unknown key; known here: acks0, admin, "),
        ("listener: {}", "gw.yaml:1: upstream: is required"),
        ("upstream: {bootstrap_servers: 'b'}", "'b' is not a valid host:port; for example: broker1:9092,broker2:9092"),
        ("upstream: {bootstrap_servers: 'b:1,c:70000'}", "'c:70000' is not a valid host:port"),
        ("upstream: [1]", "gw.yaml:1: upstream: keys with values are needed here, not [1]"),
        (UPSTREAM + "listener: {port: 70000}", "listener.port: should be less than or equal to 65535, not 70000"),
        (UPSTREAM + "listener: {port: x}", "listener.port: should be a valid integer"),
        (UPSTREAM + "listener: {host: 0.0.0.0}", "listener: advertised_host is needed, because 0.0.0.0"),
        (
            UPSTREAM + "listener: {port: 5000, brokers: {1: 6000, 2: 6000}}",
            "listener: brokers.2: port 6000 is taken by broker 1",
        ),
        (
            UPSTREAM + "listener:\n  ssl.keystore.location: x.jks\n  ssl.keystore.type: JKS",
            "gw.yaml:4: listener.ssl.keystore.type: JKS can't be read, only PEM: convert it with openssl pkcs12",
        ),
        (
            UPSTREAM + "listener:\n  ssl.keystore.location: x.pem\n  ssl.enabled.protocols: TLSv1.1,TLSv1.2",
            "gw.yaml:4: listener.ssl.enabled.protocols: TLSv1.1 is not spoken: write one or both of TLSv1.2, TLSv1.3",
        ),
        (
            UPSTREAM + "listener:\n  port: 5000\n  ssl.client.auth: required",
            "gw.yaml:4: listener: ssl.client.auth: has no effect without a certificate: write ssl.keystore.location",
        ),
        (
            UPSTREAM + "listener: {ssl.keystore.location: x.pem, ssl.client.auth: required}",
            "listener: ssl.client.auth: required needs to know whose certificates to take: write ssl.truststore",
        ),
        (
            UPSTREAM + "listener: {ssl.keystore.location: x.pem, ssl.truststore.location: y.pem}",
            "listener: ssl.truststore.location: clients are asked for no certificate: write ssl.client.auth: required",
        ),
        (
            UPSTREAM + "listener: {ssl.keystore.location: x.pem, ssl.key.password: [geheim]}",
            "listener.ssl.key.password: should be a valid string, not what is there",
        ),
        (UPSTREAM + "listener: {ssl.keystore.locaton: x.pem}", "did you mean ssl.keystore.location?"),
        (UPSTREAM + "listener: {brokers: {1: 19092}}", "brokers.1: port 19092 is taken by the bootstrap listener"),
        (UPSTREAM + "admin: {port: 19092}", "admin.port: 19092 is a port of the listener as well"),
        (UPSTREAM + "internal_topics: yes", "internal_topics: should be 'kafka' or 'none', not True"),
        (UPSTREAM + "reject_code: 9999", "reject_code: 9999 is neither auto nor the number of a Kafka error"),
        (UPSTREAM + "reject_code: sometimes", "reject_code: 'sometimes' is neither auto nor"),
        (UPSTREAM + "drain_timeout: 7x", "gw.yaml:2: drain_timeout: '7x' is not a valid duration; for example"),
        (UPSTREAM + "drain_timeout: true", "drain_timeout: a number is needed here, not true or false"),
        (UPSTREAM + "drain_timeout: .nan", "drain_timeout: should be"),
        (UPSTREAM + "gateway_id: 'a/b'", "gateway_id: 'a/b': letters, digits"),
        (UPSTREAM + "internal: {principals: [alice]}", "'alice' is not a valid principal: write User:alice"),
        (UPSTREAM + "usage_log: {topic: 'a b'}", "usage_log.topic: 'a b' can't be a topic's name"),
        *[
            (UPSTREAM + f"workers: {text}", f"workers: {shown} is neither a number of processes, 1 to 256, nor auto")
            for text, shown in (("0", "0"), ("257", "257"), ("-1", "-1"), ("true", "True"), ("many", "'many'"))
        ],
        (UPSTREAM + "resourceUsagePublishInterval: 1", "did you mean resourceUsagePublishIntervalInSecs?"),
        (UPSTREAM + "resourceUsagePublishIntervalInSecs: 0", "InSecs: should be greater than or equal to 0.1, not 0"),
        (UPSTREAM + "resource_usage_report_every: 0", "_every: should be greater than or equal to 1, not 0"),
        (
            UPSTREAM + "resourceUsagePublishTopicName: __produce_gateway_usage",
            "gw.yaml:2: resourceUsagePublishTopicName: __produce_gateway_usage is another one's: name another topic",
        ),
        (UPSTREAM + "resourceUsagePublishTopicName: a/b", "'a/b' can't be a topic's name"),
        (
            UPSTREAM + "resource_groups:\n  topic_pattern: '{namespace}.{topic}'",
            "gw.yaml:3: resource_groups.topic_pattern: {tenant} is missing: for example",
        ),
        (
            UPSTREAM + "resource_groups: {principal_pattern: '('}",
            "principal_pattern: not a valid regular expression (RE2's): missing )",
        ),
        (
            UPSTREAM + "resource_groups:\n  groups:\n    gold: {publishRateInByte: 1}",
            "gw.yaml:4: resource_groups.groups.gold.publishRateInByte: unknown key; did you mean publishRateInBytes?",
        ),
        (
            UPSTREAM + "resource_groups: {groups: {gold: {dispatchRateInMsgs: 0}}}",
            "resource_groups.groups.gold.dispatchRateInMsgs: should be greater than 0, not 0",
        ),
        (UPSTREAM + "resource_groups: {groups: {'a/b': {}}}", "'a/b' can't be a group's name"),
        (
            UPSTREAM + "resource_groups: {groups: {gold: {}}, namespaces: {orders: gold}}",
            "'orders' is not a valid namespace; for example: acme/orders",
        ),
        (
            UPSTREAM + "resource_groups:\n  groups: {gold: , silver: }\n  tenants: {acme: gould}",
            "gw.yaml:4: resource_groups: tenants.acme: there is no group gould; groups has gold, silver",
        ),
        (UPSTREAM + "resource_groups: {mode: off}", "resource_groups.mode: should be 'enforce' or 'observe'"),
        (
            UPSTREAM + "limits: {max_request_bytes: 2MiB, max_buffered_bytes: 1MiB}",
            "limits.max_request_bytes: 2,097,152 bytes could never be read under limits.max_buffered_bytes = 1,048,576",
        ),
        (
            UPSTREAM + "thresholds: {topics: {1: {bytes.in.per.sec.threshold: 1}}}",
            "thresholds.topics.1: YAML takes this key for no text but int: put it in quotes",
        ),
        (
            UPSTREAM + "thresholds: {topics: {'a b': {bytes.in.per.sec.threshold: 1}}}",
            "'a b' can't be a topic's name",
        ),
        (
            UPSTREAM + "thresholds: {total.bytes.in.per.sec.threshold: 5MB,\n"
            " topics: {a: {bytes.in.per.sec.threshold: 3MB}, b: {bytes.in.per.sec.threshold: 4MB}}}",
            "thresholds: the topics' bytes.in.per.sec.threshold sum up to 7,000,000 bytes/s, which exceeds"
            " total.bytes.in.per.sec.threshold = 5,000,000 bytes/s by 2,000,000 bytes/s",
        ),
        (UPSTREAM + UPSTREAM, "gw.yaml:2: upstream is there twice"),
        ("a: [", "gw.yaml:1: "),
        ("a: 1\n\tb: 2", "gw.yaml:2: found character '\\t'"),
        ("", "keys such as upstream: and listener: are needed"),
        ("just text", "keys such as upstream: and listener: are needed"),
        ("upstream: {bootstrap_servers: 'b:1', sasl.password: {file: /nowhere}}", "file /nowhere can't be read"),
        (
            "upstream: {bootstrap_servers: 'b:1', sasl.password: [1]}",
            "upstream.properties.sasl.password: should be a valid string",
        ),
    ],
)
def test_a_mistake_is_told_with_place_and_remedy(text, finding):
    lines = problems(text)
    assert any(finding in line for line in lines), lines


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
        (" {hard: {type: MinFreePercentage, level: 20%}}", "storage.hard.level: should be a valid number"),
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
def test_a_mistake_in_storage_is_told_with_place_and_remedy(storage, finding):
    lines = problems(UPSTREAM + TOTAL + "storage:" + storage)
    assert len(lines) == 1, lines
    assert finding in lines[0]


def test_a_soft_limit_needs_a_limit_that_it_can_lower():
    soft = "storage:\n  hard: {type: MinFreeBytes, level: 1GB}\n  soft: {type: MinFreePercentage, level: 0.2}\n"
    (line,) = problems(UPSTREAM + soft)
    assert line.startswith("gw.yaml:4: storage.soft: a soft limit has no effect where no produce limit exists: write")
    parse(UPSTREAM + TOTAL + soft)
    parse(UPSTREAM + "thresholds: {source: mine}\n" + soft)


def test_a_source_of_thresholds_takes_options_and_without_one_they_are_refused():
    settings = parse(UPSTREAM + "thresholds: {source: mine, interval: PT30S, options: {url: 'http://x', n: 3}}")
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


@pytest.mark.parametrize(
    ("quota", "accepted"),
    [
        ("{user: alice, producer_byte_rate: 1MB}", True),
        ("{client_id: <default>, 'producer_byte_rate:bps': 1MB}", True),
        ("{user: alice, consumer_byte_rate: 1MB}", False),
    ],
)
def test_a_soft_limit_may_lower_client_quotas_alone(quota, accepted):
    text = UPSTREAM + "storage: {soft: {type: MinFreeBytes, level: 2GB}, hard: {type: MinFreeBytes, level: 1GB}}\n"
    text += "thresholds: {topics: {clicks: {bytes.in.per.sec.threshold: 1MB}}}\n"  # limits nothing without a total
    text += f"client_quotas:\n- {quota}\n"
    if accepted:
        assert parse(text).storage.soft
    else:
        assert "storage.soft: a soft limit has no effect where no produce limit exists" in problems(text)[0]


@pytest.mark.parametrize(
    ("rate", "accepted"),
    [("publishRateInBytes: 1MB", True), ("publishRateInMsgs: 5", True), ("dispatchRateInBytes: 1", False)],
)
def test_a_soft_limit_may_lower_resource_groups_alone(rate, accepted):
    text = UPSTREAM + "storage: {soft: {type: MinFreeBytes, level: 2GB}, hard: {type: MinFreeBytes, level: 1GB}}\n"
    text += f"resource_groups: {{groups: {{gold: {{{rate}}}}}}}\n"
    if accepted:
        assert parse(text).storage.soft
    else:
        assert "storage.soft: a soft limit has no effect where no produce limit exists" in problems(text)[0]


def test_head_room_is_reckoned_from_the_largest_total():
    text = (
        UPSTREAM + "storage: {min.available.bytes: 1GB, throttle.factor.fallback: 0}\nthresholds:\n  on_exceed: delay\n"
    )
    own = (
        "  brokers:\n    1: {total.bytes.in.per.sec.threshold: 1MB}\n    2: {total.bytes.in.per.sec.threshold: 20MB}\n"
    )
    (warning,) = config.warnings(parse(text + own))
    assert "less than the 1,500,000,000 bytes that 20,000,000 bytes/s bring to a broker" in warning
    (warning,) = config.warnings(parse(text + own + "  total.bytes.in.per.sec.threshold: 30MB\n"))
    assert "30,000,000 bytes/s" in warning


def test_options_of_limits_of_ones_own_are_apart():
    text = "storage: {source: mine, options: {path: /x}, limit_policy: theirs, limit_policy_options: {level: 3}}"
    storage = parse(UPSTREAM + text).storage
    assert (storage.options, storage.limit_policy_options) == ({"path": "/x"}, {"level": 3})


def test_the_storage_section_is_understood_and_survives_the_way_to_control():
    settings = parse(UPSTREAM + TOTAL + FULL_STORAGE)
    storage = settings.storage
    assert storage.check_interval == 30
    assert (storage.soft.level, storage.hard.level) == (0.2, 10 * 10**9)
    assert storage.reads.model_dump() == {"topic": "volumes", "max_age": 180, "fail_safe": "OPEN", "replication": 2}
    assert settings.storage_admin.bootstrap_servers == "r1:9091"
    assert settings.storage_admin.properties == {"security.protocol": "SSL", "ssl.ca.location": "/ca.pem"}
    assert settings.own_topics == (
        "__produce_gateway_usage",
        "__produce_gateway_policies",
        "__produce_gateway_resource_usage",
        "volumes",
    )
    assert Settings.model_validate_json(settings.model_dump_json(by_alias=True)) == settings
    plain = parse(UPSTREAM + "storage: {min.available.bytes: 1GB}")
    assert Settings.model_validate_json(plain.model_dump_json(by_alias=True)) == plain


def test_storage_defaults_are_the_proposal_s():
    storage = parse(UPSTREAM + "storage: {min.available.ratio: 0.01}").storage
    assert (storage.source, storage.check_interval, storage.fallback, storage.validity) == ("log-dirs", 60, 1.0, 300)
    assert storage.reads.fail_safe == "PAUSE"
    assert parse(UPSTREAM).storage is None


def test_the_storage_admin_falls_back_to_upstream_s_values():
    text = "upstream: {bootstrap_servers: 'b:9092', security.protocol: SASL_PLAINTEXT}\n"
    limit = "storage: {min.available.bytes: 1GB"
    admin = parse(text + limit + "}").storage_admin
    assert (admin.bootstrap_servers, admin.properties) == ("b:9092", {"security.protocol": "SASL_PLAINTEXT"})
    admin = parse(text + limit + ", admin: {bootstrap_servers: 'r:1'}}").storage_admin
    assert (admin.bootstrap_servers, admin.properties) == ("r:1", {"security.protocol": "SASL_PLAINTEXT"})
    settings = parse(text + limit + ", admin: {security.protocol: SSL}}")
    assert settings.storage_admin.properties == {"security.protocol": "SSL"}
    assert settings.storage_admin.bootstrap_servers == "b:9092"
    assert Settings.model_validate_json(settings.model_dump_json(by_alias=True)) == settings


def test_storage_that_is_off_needs_no_limit():
    settings = parse(UPSTREAM + "storage: {check_interval: PT0S, source: log-dirs}")
    assert settings.storage.off
    assert config.warnings(settings) == ["storage.check_interval PT0S: full disks are not looked for"]


@pytest.mark.parametrize(
    ("storage", "warning"),
    [
        ("min.available.bytes: 74MB", "storage.min.available.bytes: 74,000,000 bytes of head-room are less than the"
         " 75,000,000 bytes that 1,000,000 bytes/s bring to a broker within 60 s and the 15 s that a request may be on"
         " its way, not counting what replication adds: raise the limit or check more often"),
        ("hard: {type: MinFreeBytes, level: 74MB}", "storage.hard: 74,000,000 bytes of head-room are less"),
        ("min.available.bytes: 1GB", "storage: thresholds.on_exceed reject goes by the average of a minute"),
        ("min.available.ratio: 0.1", "storage: throttle.factor.fallback 1.0: when nothing has been learned of the disks"
         " for 300 s, nothing is held back"),
        ("source: snapshots, snapshots: {fail_safe: OPEN}", "storage.snapshots.fail_safe OPEN: a broker whose"),
        ("min.available.ratio: 0.1, mode: observe", "storage.mode observe: full disks hold nothing back"),
        ("soft: {type: MinFreePercentage, level: 0.1}", "storage.soft: without a hard limit producers are held only"),
    ],
)  # fmt: skip
def test_storage_that_is_hardly_meant_is_warned_about(storage, warning):
    assert any(warning in line for line in config.warnings(parse(UPSTREAM + TOTAL + f"storage: {{{storage}}}")))


@pytest.mark.parametrize(
    "storage",
    [
        "min.available.bytes: 75MB, throttle.factor.fallback: 0.0",
        "hard: {type: MinFreePercentage, level: 0.1}, throttle.factor.fallback: 0.5",
        "source: snapshots",
    ],
)
def test_storage_as_it_should_be_is_not_warned_about(storage):
    delays = TOTAL.replace("1MB}", "1MB, on_exceed: delay}")
    assert config.warnings(parse(UPSTREAM + delays + f"storage: {{{storage}}}")) == []


def test_without_a_total_no_head_room_is_known_to_suffice():
    found = config.warnings(parse(UPSTREAM + "storage: {min.available.bytes: 1TB, throttle.factor.fallback: 0}"))
    assert ["no bound to what is written between two checks" in line for line in found] == [True]


def test_a_secret_is_not_repeated():
    assert "s3cret" not in str(problems("upstream: {bootstrap_servers: 'b:1', sasl.password: [s3cret]}"))


def test_all_mistakes_are_told_at_once():
    assert len(problems(UPSTREAM + "listener: {port: 0}\nadmin: {prt: 1}\ndrain_timeout: 0s")) == 3


def test_a_secret_may_stand_in_a_file(tmp_path):
    (tmp_path / "password").write_text("s3cret\n")
    text = f"upstream: {{bootstrap_servers: 'b:1', sasl.password: {{file: {tmp_path}/password}}}}"
    assert parse(text).upstream.properties == {"sasl.password": "s3cret"}


def test_bootstrap_servers_may_be_a_list_and_ipv6():
    settings = parse("upstream: {bootstrap_servers: [b1:9092, '[::1]:9093']}")
    assert settings.upstream.addresses() == (("b1", 9092), ("::1", 9093))


def test_an_empty_section_is_an_absent_one():
    assert parse(UPSTREAM + "listener:\nadmin:\nthresholds:\n").listener.port == 19092


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("thresholds: {topics: {a: {bytes.in.per.sec.threshold: 1}}}", "without total.bytes.in.per.sec.threshold"),
        ("reject_code: 87", "reject_code 87 (INVALID_RECORD) is not retriable"),
        ("reject_code: 20", "reject_code 20 (NOT_ENOUGH_REPLICAS_AFTER_APPEND): not every client retries it"),
        ("reject_code: 89", "reject_code 89 (THROTTLING_QUOTA_EXCEEDED): librdkafka, sarama, aiokafka"),
        ("mode: observe", "mode observe: nothing is limited, only counted"),
        ("acks0: drop", "acks0 drop: what is over a limit is lost"),
        ("thresholds: {on_exceed: delay}", "thresholds.on_exceed delay: without a total"),
        ("internal_topics: none", "are not published to a topic"),
        ("internal_topics: none", "every limit holds for this gateway alone"),
        ("resourceUsagePublishToTopic: false", "every limit holds for this gateway alone"),
    ],
)
def test_what_is_hardly_meant_is_warned_about(text, warning):
    assert any(warning in line for line in config.warnings(parse(UPSTREAM + text)))


def test_tls_to_brokers_is_warned_about():
    settings = parse("upstream: {bootstrap_servers: 'b:1', security.protocol: SASL_SSL}")
    assert "plaintext in this release" in config.warnings(settings)[0]


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="can't be read"):
            config.load(path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        config.load(tmp_path / "binary")


def test_the_schema_names_the_keys_as_they_are_written():
    schema = Settings.model_json_schema(by_alias=True)
    assert "total.bytes.in.per.sec.threshold" in schema["$defs"]["Thresholds"]["properties"]
    assert schema["additionalProperties"] is False
    assert "patternProperties" in schema["$defs"]["Upstream"]


def test_workers_are_one_unless_somebody_says_more():
    assert parse(UPSTREAM).workers == 1
    assert parse(UPSTREAM + "workers: auto").workers == "auto"
    assert parse(UPSTREAM + "workers: 8").workers == 8


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


def test_groups_and_the_exchange_are_understood_and_survive_the_way_to_control():
    settings = parse(UPSTREAM + FLEET)
    gold = settings.resource_groups.groups["gold"]
    assert (gold.publish_bytes, gold.publish_msgs) == (12_000_000, 0.5)
    assert (gold.dispatch_bytes, gold.dispatch_msgs) == (24_000_000, 200_000)
    assert settings.resource_groups.topic_pattern == "{tenant}.{namespace}.{topic}"
    assert (settings.usage_topic, settings.usage_interval, settings.resource_usage_report_every) == (
        "usage-of-all", 2.0, 10,
    )  # fmt: skip
    assert settings.own_topics == ("__produce_gateway_usage", "__produce_gateway_policies", "usage-of-all")
    assert Settings.model_validate_json(settings.model_dump_json(by_alias=True)) == settings


def test_groups_of_the_file_are_part_of_the_base_of_what_may_be_changed():
    settings = parse(UPSTREAM + FLEET)
    values = {(key.kind, key.name, key.key): value for key, value in settings.policy_values().items()}
    assert values["group", "gold", "publishRateInBytes"] == 12_000_000
    assert values["group", "silver", "exists"] == 1
    assert values["namespace", "acme/orders", "resourcegroup"] == "silver"
    assert values["tenant", "acme", "resourcegroup"] == "gold"
    again = settings.base_with(5e6, {"clicks": 1e6})  # as a source of thresholds says
    assert {key for key in again if key.kind not in ("topic", "broker")} == set(settings.policy_values())
    assert len(again) == len(values) + 2


@pytest.mark.parametrize("text", ["internal_topics: none", "resourceUsagePublishToTopic: false"])
def test_a_gateway_that_exchanges_nothing_has_no_topic_for_it(text):
    settings = parse(UPSTREAM + text)
    assert not settings.exchanges
    assert "__produce_gateway_resource_usage" not in settings.own_topics
    assert parse(UPSTREAM).exchanges


# --- policies that may be changed at run time -------------------------------------------------------------------------


def test_thresholds_and_client_quotas_of_the_file_are_the_base_of_what_may_be_changed() -> None:
    settings = parse(
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
    values = {str(key): value for key, value in settings.policy_values().items()}
    assert len(values) == 5
    assert sorted(values.values()) == [50, 2**20, 5_000_000, 8_000_000, 20_000_000]
    assert Settings.model_validate_json(settings.model_dump_json(by_alias=True)) == settings


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (
            "thresholds:\n  total.bytes.in.per.sec.threshold: 20MB\n"
            "  brokers: {2: {total.bytes.in.per.sec.threshold: 4MB}}\n"
            "  topics: {clicks: {bytes.in.per.sec.threshold: 5MB}}\n",
            "thresholds: brokers.2:",
            "by 1,000,000 bytes/s",
        ),
        ("client_quotas:\n  - {usr: alice, producer_byte_rate: 1MB}\n", "client_quotas.0.usr", "user"),
        ("client_quotas:\n  - {user: alice, producer_byte_rate: -1}\n", "client_quotas", "producer_byte_rate"),
        ("client_quotas:\n  - {user: alice, producer_byte_rate.shares: 1}\n", "client_quotas", "no total"),
        ("policies_store: {topic: __produce_gateway_usage}\n", "policies_store.topic", "name another topic"),
    ],
)
def test_policies_that_can_not_be_are_refused_with_where_and_what(text: str, where: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(UPSTREAM + text)
    assert where in caught.value.lines[0]
    assert what in caught.value.lines[0]


def test_without_internal_topics_changes_are_kept_in_a_file() -> None:
    settings = parse(UPSTREAM + "internal_topics: none\npolicies_store: {file: /tmp/policies.jsonl}\n")
    assert str(settings.policies_file) == "/tmp/policies.jsonl"
    assert parse(UPSTREAM).policies_file.name == "policies.jsonl"
    assert settings.own_topics == ("__produce_gateway_usage",)


def test_listeners_with_tls_are_as_kafka_names_them_and_control_reads_the_same(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    settings = parse(
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
"""
    )
    tls = ListenerTls(
        "/etc/gw/tls.crt", "/etc/gw/tls.key", "open sesame", "/etc/gw/clients.pem", "required", ("TLSv1.3",)
    )
    assert settings.listener.tls == tls
    passed_on = Settings.model_validate_json(settings.model_dump_json(by_alias=True))
    assert passed_on.listener.tls == tls


def test_listeners_are_plain_unless_there_is_a_certificate() -> None:
    settings = parse(UPSTREAM)
    assert settings.listener.tls is None
    assert Settings.model_validate_json(settings.model_dump_json(by_alias=True)).listener.tls is None


def test_an_internal_client_id_alone_is_warned_of_and_pairs_are_not() -> None:
    alone = parse(UPSTREAM + "internal: {client_ids: [mirror]}")
    assert [each for each in warnings(alone) if each.startswith("internal.client_ids: any client can claim")]
    pairs = parse(UPSTREAM + "internal: {clients: [{principal: 'User:mirror', client_id: mirror}]}")
    assert not [each for each in warnings(pairs) if each.startswith("internal")]
    assert worker_settings(pairs).internal_clients == (("User:mirror", "mirror"),)
    assert problems(UPSTREAM + "internal: {clients: [{principal: mirror, client_id: mirror}]}") == [
        "gw.yaml:2: internal.clients.0.principal: 'mirror' is not a valid principal: write User:mirror"
    ]


def test_names_of_the_admin_server_are_its_host_s_and_more() -> None:
    admin = parse(UPSTREAM + "admin: {host: GW.example, hosts: [gw.monitoring.svc], open: true}").admin
    assert admin.names == {"gw.example", "gw.monitoring.svc"}
