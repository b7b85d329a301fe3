# The command as a user runs it: output, exit codes, and no traceback for any mistake.

from __future__ import annotations

import contextlib
import io
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway import cli, embedded
from tests.certificates import Authority

GOOD = """
upstream: {bootstrap_servers: "127.0.0.1:9092"}
listener: {port: 32101, brokers: {100000: 32105}}
admin: {port: 32100}
thresholds: {total.bytes.in.per.sec.threshold: 20MB, topics: {clicks: {bytes.in.per.sec.threshold: 5MB}}}
"""


LISTENER = "listener: {port: 32101, brokers: {100000: 32105}}"


def run(*args: Any, given: bytes = b"") -> Any:
    """As a user runs it, with `given` on standard input, but in this process: to start one takes it half a second."""
    out, err, stdin = io.StringIO(), io.StringIO(), io.TextIOWrapper(io.BytesIO(given))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", stdin)
        try:
            code: Any = cli.main([str(each) for each in args])
        except SystemExit as end:
            code = end.code or 0
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())


def run_process(*args: Any) -> Any:
    command = [sys.executable, "-m", "gateway", *args]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("words", [["explain", "--topic", "a\udcff"], ["groups", "get", "a\udcff"]])
def test_an_argument_that_is_no_text_is_one_line(words: list[str]) -> None:
    done = run(*words)
    assert (done.returncode, done.stderr) == (1, r"'a\udcff': is not Unicode text" + "\n")


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: Any) -> Any:
        path = tmp_path / "gw.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_check_shows_what_a_configuration_comes_to(write: Any) -> None:
    done = run_process("check", write(GOOD))
    assert done.returncode == 0, done.stderr
    for line in (
        "gw.yaml: OK",
        "upstream   127.0.0.1:9092; plain TCP",
        "bootstrap  127.0.0.1:32101",
        "broker 1   127.0.0.1:32103",
        "broker 100000 127.0.0.1:32105",
        "broker N   127.0.0.1:32102+N, up to N = 33433",
        "TLS        none: plain TCP",
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


def test_check_shows_workers_and_groups_and_how_far_limits_hold(write: Any) -> None:
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


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (GOOD.replace('9092"', '9092", ssl.nonsense: 1'), 'No such configuration property: "ssl.nonsense"'),
        (
            GOOD.replace('9092"', '9092", security.protocol: TLS'),
            "upstream: security.protocol: must be one of PLAINTEXT, SSL",
        ),
    ],
)
def test_check_refuses_with_a_clear_message(write: Any, text: Any, finding: Any) -> None:
    done = run("check", write(text))
    assert (done.returncode, done.stdout) == (1, "")
    assert finding in done.stderr


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ("sasl.mechanism: PLAIN, sasl.username: a", "upstream.sasl.password: needed with sasl.mechanism PLAIN"),
        ("sasl.mechanism: scram-sha-256, sasl.password: a", "upstream.sasl.username: needed with sasl.mechanism SCRAM"),
        ("sasl.mechanism: OAUTHBEARER", "upstream.sasl.oauthbearer.method: must be oidc with sasl.mechanism OAUTH"),
    ],
)
def test_check_names_what_the_gateway_would_need_to_authenticate_with(write: Any, properties: str, said: str) -> None:
    done = run("check", write(GOOD.replace('9092"', f'9092", security.protocol: SASL_PLAINTEXT, {properties}')))
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert said in line


def test_a_missing_file_is_one_line() -> None:
    done = run("check", "/nowhere/gw.yaml")
    assert (done.returncode, done.stderr) == (1, "/nowhere/gw.yaml: can't be read: No such file or directory\n")


def test_serve_says_so_when_a_port_is_taken(write: Any) -> None:
    with socket.create_server(("127.0.0.1", 32101)):
        done = run_process("serve", write(GOOD))
    assert done.returncode == 1
    assert done.stderr.endswith("can't listen on 127.0.0.1:32101: Address already in use\n")
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_command_line_is_exit_code_2() -> None:
    assert run("serve").returncode == 2
    done = run()
    assert done.returncode == 2
    for command in ("serve", "check", "demo", "audit", "storage", "volume-agent", "import-strimzi", "schema"):
        assert command in done.stdout
    for command in ("storage", "volume-agent", "import-strimzi"):
        done = run(command, "--help")
        assert (done.returncode, f"produce-gateway {command}" in done.stdout) == (0, True)


def test_version_is_a_version() -> None:
    assert run("version").stdout.startswith("produce-gateway 0.")
    assert run("version").stdout.endswith((", hot path: compiled\n", ", hot path: pure Python\n"))


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
def test_check_shows_how_disks_are_looked_at(write: Any, storage: Any, lines: Any) -> None:
    done = run("check", write(GOOD + f"storage: {{{storage}}}\n"))
    assert done.returncode == 0, done.stderr
    assert [line for line in lines if line not in done.stdout] == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("storage: {source: mine}", "storage: produce_gateway.volume_sources mine: "),
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
def test_check_tries_what_storage_names(write: Any, text: Any, finding: Any) -> None:
    done = run("check", write(GOOD + text + "\n"))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "gw.yaml:6: storage" in line
    assert finding in line
    assert done.stdout == ""


def test_check_tries_the_source_of_thresholds(write: Any) -> None:
    done = run("check", write(GOOD.replace("thresholds: {", "thresholds: {source: mine, ")))
    assert (done.returncode, done.stderr.count("thresholds: produce_gateway.quota_sources mine: ")) == (1, 1)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("nonexist:make", "No module named 'nonexist'"),
        ("json:make", "has no attribute 'make'"),
        ("builtins:dict", "has no method decide"),
    ],
)
def test_a_policy_that_cannot_be_made_is_one_line(write: Any, policy: Any, why: Any) -> None:
    done = run("check", write(GOOD + f"policies: ['{policy}']\n"))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"gw.yaml:6: policies.0: {policy}: " in line
    assert why in line


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            GOOD.replace(LISTENER, "listener: {port: 32101, ssl.keystore.location: MISSING}"),
            "3: listener.ssl.keystore.location",
        ),
        (
            GOOD.replace(LISTENER, "listeners: {a: {port: 32101}, b: {port: 32201, ssl.keystore.location: MISSING}}"),
            "3: listeners.b.ssl.keystore.location",
        ),
        (
            GOOD.replace('9092"', '9092", security.protocol: SSL, ssl.ca.location: MISSING'),
            "2: upstream.ssl.ca.location",
        ),
    ],
)
def test_a_certificate_that_can_not_be_used_is_told_with_its_place(
    write: Any, tmp_path: Path, text: str, place: str
) -> None:
    missing = tmp_path / "missing.pem"
    done = run("check", write(text.replace("MISSING", str(missing))))
    assert done.returncode == 1
    assert f"gw.yaml:{place}: {missing} can't be read: No such file" in done.stderr.splitlines()[0]


def test_a_certificate_that_is_not_for_what_clients_are_told_is_a_warning(write: Any, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).sign("gateway", names="subjectAltName=DNS:*.kafka.example")
    tls = f"ssl.keystore.location: {certificate}, ssl.key.location: {key}"
    sni = "bootstrap_address: kafka.example, advertised_broker_address_pattern: b$(node_id).kafka.example"
    text = f"listeners: {{in: {{port: 32101}}, out: {{port: 32201, {tls}, sni: {{{sni}}}}}}}"
    path = write(GOOD.replace(LISTENER, text))
    said = (
        f"listeners.out.ssl.keystore.location: {certificate} is not for kafka.example, which clients are told"
        " (sni.bootstrap_address): those that check names will refuse it. It is for *.kafka.example: it needs"
        " DNS:kafka.example in its subjectAltName"
    )
    done = run("check", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if "not for" in line] == [f"{path}:3: warning: {said}"]
    strict = run("check", "--strict", path)
    assert strict.returncode == 1
    assert f"warning: {said}" in strict.stderr


def test_check_says_how_brokers_are_trusted_and_how_listeners_speak_tls(write: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("gateway")
    mine = f"ssl.certificate.location: {certificate}, ssl.key.location: {key}"
    upstream = f'9092", security.protocol: SSL, ssl.ca.location: {authority.certificate}, {mine}'
    asked = f"ssl.client.auth: requested, ssl.truststore.location: {authority.certificate}"
    listener = f"listener: {{port: 32101, ssl.keystore.location: {certificate}, ssl.key.location: {key}, {asked}}}"
    done = run("check", write(GOOD.replace('9092"', upstream).replace(LISTENER, listener)))
    assert done.returncode == 0, done.stderr
    trusted = f"certificates verified by {authority.certificate}, host names as well"
    assert f"upstream   127.0.0.1:9092; TLS, {trusted}; own certificate {certificate}" in done.stdout
    spoken = f"TLSv1.2 and TLSv1.3, certificate {certificate}"
    assert f"TLS        {spoken}; client certificates checked where one is sent" in done.stdout


def test_check_connects_where_it_is_told_to(write: Any) -> None:
    port = embedded.find_free_port()
    text = GOOD.replace("9092", str(port))
    assert run("check", write(text)).returncode == 0
    done = run("check", "--connect", write(text))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"gw.yaml: upstream: 127.0.0.1:{port}: Connection refused (ECONNREFUSED)")


WRONG_ALL_OVER = """\
upstream:
  bootstrap_servers: "localhost:32101"
  ssl.ca.loction: /x
  broker.address.family: v5
listener:
  port: 32101
  ssl.keystore.location: /nowhere.pem
policies: [nosuch_module:make]
thresholds: {mode: obsrve}
"""
FAULTS = [
    (9, "thresholds.mode: should be 'enforce' or 'observe', not 'obsrve'"),
    (2, "upstream.bootstrap_servers: localhost:32101 is this gateway's own address (listener): write those of brokers"),
    (3, 'upstream.ssl.ca.loction: No such configuration property: "ssl.ca.loction"; did you mean ssl.ca.location?'),
    (4, 'upstream.broker.address.family: Invalid value "v5" for configuration property "broker.address.family"'),
    (7, "listener.ssl.keystore.location: /nowhere.pem can't be read: No such file or directory"),
    (8, "policies.0: nosuch_module:make: ModuleNotFoundError: No module named 'nosuch_module'"),
]


def test_check_tells_what_each_stage_finds_at_once_with_its_line(write: Any) -> None:
    path = write(WRONG_ALL_OVER)
    done = run("check", path)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"{path}:{line}: {text}" for line, text in FAULTS]


UNREADABLE = """\
upstream:
  bootstrap_servers: broker:9092
  security.protocol: SSL
  ssl.ca.location: /nowhere/ca.pem
  ssl.certificate.location: /nowhere/a.pem
  ssl.key.location: /nowhere/a.key
listener:
  ssl.keystore.location: /nowhere/b.pem
  ssl.key.location: /nowhere/b.key
  ssl.truststore.location: /nowhere/clients.pem
  ssl.client.auth: required
"""


def test_check_names_each_file_that_can_not_be_read_once(write: Any) -> None:
    path = write(UNREADABLE)
    lines = enumerate(UNREADABLE.splitlines(), 1)
    files = [(number, line.strip().split(": ")) for number, line in lines if "/nowhere/" in line]
    prefixes = ["upstream"] * 3 + ["listener"] * 3
    done = run("check", path)
    assert done.stderr.splitlines() == [
        f"{path}:{number}: {prefix}.{key}: {file} can't be read: No such file or directory"
        for prefix, (number, (key, file)) in zip(prefixes, files, strict=True)
    ]


def test_serve_refuses_what_check_refuses(write: Any) -> None:
    text = "upstream: {bootstrap_servers: '127.0.0.1:32101'}\nlistener: {port: 32101}\n"
    done = run_process("serve", write(text))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "gw.yaml:1: upstream.bootstrap_servers: 127.0.0.1:32101 is this gateway's own address" in done.stderr


def test_check_reads_standard_input_and_answers_in_json() -> None:
    done = run("check", "--json", "-", given=WRONG_ALL_OVER.encode())
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout) == {
        "config": "standard input",
        "ok": False,
        "errors": [{"line": line, "variable": None, "message": text} for line, text in FAULTS],
        "warnings": [],
        "effect": [],
    }
    done = run("check", "--json", "-", given=GOOD.encode())
    said = json.loads(done.stdout)
    assert (done.returncode, said["ok"], said["errors"], said["warnings"]) == (0, True, [], [])
    assert "bootstrap  127.0.0.1:32101, listening on 127.0.0.1" in said["effect"]
    done = run("check", "-", given=b"\xff")
    assert (done.returncode, done.stderr) == (1, "standard input: not UTF-8 text: invalid start byte at byte 0\n")


def test_strict_makes_warnings_errors(write: Any) -> None:
    path = write(GOOD + "mode: observe\n")
    done = run("check", path)
    assert (done.returncode, "warning: mode observe: " in done.stdout) == (0, True)
    done = run("check", "--strict", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{path}:6: warning: mode observe: ")
    done = run("check", "--strict", "--json", path)
    assert (done.returncode, json.loads(done.stdout)["ok"], len(json.loads(done.stdout)["warnings"])) == (1, False, 1)


@pytest.mark.parametrize(
    ("hidden", "wanted"),
    [
        ("'pyspark': None, 'deltalake': None", "PySpark, deltalake: pip install 'produce-gateway[demo]'"),
        (
            "'gateway.demo': None",
            "produce-gateway-extras: pip install 'produce-gateway[demo]' (in the repository: pip install '.[demo]'"
            " ./extras)",
        ),
    ],
)
def test_the_demo_looks_for_what_it_needs_before_it_begins(hidden: str, wanted: str) -> None:
    code = f"import sys; sys.modules |= {{{hidden}}}; from gateway.cli import main; sys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (1, f"the demo needs {wanted}\n")


def test_check_looks_into_the_files_of_authentication(write: Any, tmp_path: Path) -> None:
    users = tmp_path / "users.yaml"
    kept = f'{{sasl.enabled.mechanisms: "PLAIN, SCRAM-SHA-256", credentials_file: {users}}}'
    path = write(f"{GOOD}authentication: {kept}\n")
    done = run("check", path)
    assert done.returncode == 1
    assert f"gw.yaml:6: authentication: {users}: can't be read: No such file" in done.stderr
    users.write_text(run("scram-record", "alice", given=b"pencil\n").stdout)
    done = run("check", path)
    assert done.returncode == 0, done.stderr
    assert "clients    SASL ends here: PLAIN, SCRAM-SHA-256; to brokers: none" in done.stdout
