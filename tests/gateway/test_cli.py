# The command as a user runs it: output, exit codes, and no traceback for any mistake.

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

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
        "total      20,000,000 bytes/s per broker",
        "topic      clicks: 5,000,000 bytes/s",
    ):
        assert line in done.stdout
    assert "warning" not in done.stdout


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
    assert all(command in done.stdout for command in ("serve", "check", "demo", "audit", "schema", "version"))


def test_schema_is_json_and_version_is_a_version():
    assert json.loads(run("schema").stdout)["title"] == "Settings"
    assert run("version").stdout.startswith("produce-gateway 0.")


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
