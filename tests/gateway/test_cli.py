# The command as a user runs it: output, exit codes, and no traceback for any mistake.

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from tests.certificates import Authority

GOOD = """
upstream: {bootstrap_servers: "127.0.0.1:9092"}
listener: {port: 32101, brokers: {100000: 32105}}
admin: {port: 32100}
thresholds: {total.bytes.in.per.sec.threshold: 20MB, topics: {clicks: {bytes.in.per.sec.threshold: 5MB}}}
"""


def run(*args):
    command = [sys.executable, "-m", "gateway", *args]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "gw.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_check_shows_what_a_configuration_comes_to(write):
    done = run("check", write(GOOD))
    assert done.returncode == 0, done.stderr
    for line in (
        "gw.yaml: OK",
        "bootstrap  127.0.0.1:32101",
        "broker 1   127.0.0.1:32103",
        "broker 100000 127.0.0.1:32105",
        "broker N   127.0.0.1:32102+N, up to N = 33433",
        "TLS        none on the listeners: plain TCP",
        "total      20,000,000 bytes/s per broker",
        "topic      clicks: 5,000,000 bytes/s",
        "storage    not looked at, full disks hold nothing back",
    ):
        assert line in done.stdout
    assert "warning" not in done.stdout


GROUPS = """
workers: auto
resource_groups:
  groups: {gold: {publishRateInBytes: 12MB, dispatchRateInMsgs: 1000}, silver: }
  tenants: {acme: gold}
  mode: observe
resourceUsagePublishIntervalInSecs: 2
"""


def test_check_shows_workers_and_groups_and_how_far_limits_hold(write):
    done = run("check", write(GOOD + GROUPS))
    assert done.returncode == 0, done.stderr
    for line in (
        "workers    auto: ",
        "groups     by {tenant}.{namespace}.{topic}; mode observe",
        "group      gold: publishRateInBytes 12,000,000 bytes/s, dispatchRateInMsgs 1,000 messages/s",
        "group      silver: no limits",
        "attached   tenant acme to gold",
        "limits     hold over all gateways that share topic __produce_gateway_resource_usage, told every 2 s",
    ):
        assert line in done.stdout, done.stdout
    done = run("check", write(GOOD + "internal_topics: none\nworkers: 3\n"))
    assert "workers    3\n" in done.stdout
    assert "limits     hold over this gateway alone" in done.stdout


def test_check_warns_of_what_is_hardly_meant(write):
    done = run("check", write(GOOD.replace("total.bytes.in.per.sec.threshold: 20MB, ", "")))
    assert done.returncode == 0
    assert "warning: 1 topics have a bytes.in.per.sec.threshold, but without" in done.stdout


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (GOOD + "listner: {}", "gw.yaml:6: listner: unknown key; did you mean listener?"),
        (GOOD.replace('9092"', '9092", ssl.nonsense: 1'), 'No such configuration property: "ssl.nonsense"'),
        (GOOD.replace('9092"', '9092", security.protocol: TLS'), 'Invalid value "TLS"'),
    ],
)
def test_check_refuses_with_a_clear_message(write, text, finding):
    done = run("check", write(text))
    assert done.returncode == 1
    assert finding in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_missing_file_is_one_line(command):
    done = run(command, "/nowhere/gw.yaml")
    assert (done.returncode, done.stderr) == (1, "/nowhere/gw.yaml: can't be read: No such file or directory\n")


def test_serve_says_so_when_a_port_is_taken(write):
    with socket.create_server(("127.0.0.1", 32101)):
        done = run("serve", write(GOOD))
    assert done.returncode == 1
    assert done.stderr.endswith("can't listen on 127.0.0.1:32101: Address already in use\n")
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_command_line_is_exit_code_2():
    assert run("serve").returncode == 2
    assert run("frobnicate").returncode == 2
    done = run()
    assert done.returncode == 2
    assert all(
        command in done.stdout
        for command in ("serve", "check", "demo", "audit", "storage", "volume-agent", "import-strimzi", "schema")
    )


def test_schema_is_json_and_version_is_a_version():
    assert json.loads(run("schema").stdout)["title"] == "Settings"
    assert run("version").stdout.startswith("produce-gateway 0.")


@pytest.mark.parametrize(
    ("storage", "lines"),
    [
        (
            "min.available.bytes: 10GB, check_interval: PT30S, throttle.factor.fallback: 0.5",
            [
                "storage    log-dirs, every 30 s; 127.0.0.1:9092",
                "limits     min.available.bytes 10,000,000,000",
                "no data    factor 0.5 when nothing was learned for 300 s; mode enforce",
            ],
        ),
        (
            "source: snapshots, admin: {bootstrap_servers: 'r:9091'}, mode: observe",
            [
                "storage    snapshots __produce_gateway_volumes, every 60 s; r:9091",
                "limits     the volumes' own",
                "no data    PAUSE when a broker has no snapshot younger than 180 s; mode observe",
            ],
        ),
        (
            "source: prometheus, prometheus: {url: 'http://p:9090'}, hard: {type: MinFreePercentage, level: 0.05}",
            ["storage    prometheus http://p:9090, every 60 s", "limits     hard MinFreePercentage 5 %"],
        ),
        ("check_interval: PT0S", ["storage    not looked at", "warning: storage.check_interval PT0S"]),
    ],
)
def test_check_shows_how_disks_are_looked_at(write, storage, lines):
    done = run("check", write(GOOD + f"storage: {{{storage}}}\n"))
    assert done.returncode == 0, done.stderr
    assert [line for line in lines if line not in done.stdout] == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("storage: {source: mine}", "storage: produce_gateway.volume_sources mine: "),
        ("storage: {min.available.bytes: 1GB, limit_policy: mine}", "two kinds of limit at once"),
        ("storage: {limit_policy: mine}", "storage: produce_gateway.limit_policies mine: "),
        ("storage: {factor_source: mine}", "storage: produce_gateway.factor_sources mine: "),
        (
            "storage: {min.available.bytes: 1GB, admin: {security.protocol: TLS}}",
            "storage.admin: security.protocol: must be one of PLAINTEXT, SSL",
        ),
        ("storage: {source: snapshots, admin: {ssl.nonsense: 1}}", "storage.admin: ssl.nonsense: not understood"),
        (
            "storage: {source: prometheus, min.available.bytes: 1GB, prometheus: {url: 'http://p', available: x}}",
            "storage.prometheus: available and size belong together",
        ),
    ],
)
def test_check_tries_what_storage_names(write, text, finding):
    done = run("check", write(GOOD + text + "\n"))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert finding in line
    assert done.stdout == ""


def test_check_tries_the_source_of_thresholds(write):
    done = run("check", write(GOOD.replace("thresholds: {", "thresholds: {source: mine, ")))
    assert (done.returncode, done.stderr.count("thresholds: produce_gateway.quota_sources mine: ")) == (1, 1)


@pytest.mark.parametrize("command", ["storage", "volume-agent", "import-strimzi"])
def test_the_storage_commands_are_there(command):
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"produce-gateway {command}" in done.stdout


@pytest.mark.parametrize("command", ["check", "serve"])
@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("nonexist:make", "No module named 'nonexist'"),
        ("json:make", "has no attribute 'make'"),
        ("builtins:dict", "has no method decide"),
    ],
)
def test_a_policy_that_cannot_be_made_is_one_line(write, command, policy, why):
    done = run(command, write(GOOD + f"policies: ['{policy}']\n"))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"policies: {policy}: " in line
    assert why in line


@pytest.mark.parametrize("command", ["check", "serve"])
def test_certificates_that_can_not_be_used_end_the_start(command, write, tmp_path):
    text = f"{{port: 32101, ssl.keystore.location: {tmp_path}/missing.pem}}"
    done = run(command, write(GOOD.replace("{port: 32101, brokers: {100000: 32105}}", text)))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"gw.yaml: listener.ssl.keystore.location: {tmp_path}/missing.pem can't be read: No such file" in line


def test_check_says_how_listeners_speak_tls(write, tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("gateway")
    text = f"ssl.keystore.location: {certificate}, ssl.key.location: {key}, ssl.client.auth: requested"
    text = f"{{port: 32101, {text}, ssl.truststore.location: {authority.certificate}}}"
    done = run("check", write(GOOD.replace("{port: 32101, brokers: {100000: 32105}}", text)))
    assert done.returncode == 0, done.stderr
    spoken = "TLSv1.2 and TLSv1.3"
    assert (
        f"TLS        {spoken}, certificate {certificate}; client certificates checked where one is sent" in done.stdout
    )
