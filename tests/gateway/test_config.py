# The configuration file: what is understood, and that every mistake is told with its place and what would be right.

from __future__ import annotations

import pytest

from gateway import config
from gateway.config import ConfigError, Settings, parse, parse_duration, parse_size

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
    ("text", "size"),
    [
        ("20MB", 20_000_000), ("20MiB", 20 * 2**20), ("1.5kB", 1500), ("1KB", 1000), ("3 GiB", 3 * 2**30),
        ("17", 17), ("17B", 17), (17, 17), ("0", 0), ("2TB", 2 * 10**12),
    ],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["20mb", "MB", "-1MB", "1e6", "20 MBit", "", "1,000"])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="is no size: write for example 20MB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("3s", 3), ("1h30m", 5400), ("2d", 172_800), (2.5, 2.5), ("1.5m", 90)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["3", "3 s", "s", "1h 30m", "-1s", "1h30", ""])
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="is no duration: write for example 500ms"):
        parse_duration(text)


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
        ("upstream: {bootstrap_servers: 'b'}", "'b' is no host:port; write for example broker1:9092,broker2:9092"),
        ("upstream: {bootstrap_servers: 'b:1,c:70000'}", "'c:70000' is no host:port"),
        ("upstream: [1]", "gw.yaml:1: upstream: keys with values are needed here, not [1]"),
        (UPSTREAM + "listener: {port: 70000}", "listener.port: should be less than or equal to 65535, not 70000"),
        (UPSTREAM + "listener: {port: x}", "listener.port: should be a valid integer"),
        (UPSTREAM + "listener: {host: 0.0.0.0}", "listener: advertised_host is needed, because 0.0.0.0"),
        (
            UPSTREAM + "listener: {port: 5000, brokers: {1: 6000, 2: 6000}}",
            "listener: brokers.2: port 6000 is taken by broker 1",
        ),
        (UPSTREAM + "listener: {brokers: {1: 19092}}", "brokers.1: port 19092 is taken by the bootstrap listener"),
        (UPSTREAM + "admin: {port: 19092}", "admin.port: 19092 is a port of the listener as well"),
        (UPSTREAM + "internal_topics: yes", "internal_topics: should be 'kafka' or 'none', not True"),
        (UPSTREAM + "reject_code: 9999", "reject_code: 9999 is neither auto nor the number of a Kafka error"),
        (UPSTREAM + "reject_code: sometimes", "reject_code: 'sometimes' is neither auto nor"),
        (UPSTREAM + "drain_timeout: 7x", "gw.yaml:2: drain_timeout: '7x' is no duration: write for example"),
        (UPSTREAM + "drain_timeout: true", "drain_timeout: a number is needed here, not true or false"),
        (UPSTREAM + "drain_timeout: .nan", "drain_timeout: should be"),
        (UPSTREAM + "gateway_id: 'a/b'", "gateway_id: 'a/b': letters, digits"),
        (UPSTREAM + "internal: {principals: [alice]}", "'alice' is no principal: write User:alice"),
        (UPSTREAM + "usage_log: {topic: 'a b'}", "usage_log.topic: 'a b' can't be a topic's name"),
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
