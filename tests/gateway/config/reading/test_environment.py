# The configuration's keys as variables of the environment, and secrets in files.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigError, Settings, examine_config
from gateway.config.reading.environment import VARIABLE_PREFIX, read_variables
from gateway.config.reading.loading import parse_all

UPSTREAM = "upstream: {bootstrap_servers: 'k:9092'}\n"


def settings(text: str = UPSTREAM, **variables: str) -> Settings:
    return parse_all(text, "gw.yaml", {VARIABLE_PREFIX + name: value for name, value in variables.items()}).settings


def problems(text: str = UPSTREAM, **variables: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        settings(text, **variables)
    return caught.value.lines


@pytest.mark.parametrize(
    ("name", "value", "path", "found"),
    [
        ("MODE", "observe", "mode", "observe"),
        ("WORKERS", "4", "workers", 4),
        ("WORKERS", "auto", "workers", "auto"),
        ("REJECT_CODE", "19", "reject_code", 19),
        ("ADMIN__PORT", "9191", "admin.port", 9191),
        ("DRAIN_TIMEOUT", "12s", "drain_timeout", 12.0),
        ("LIMITS__MAX_REQUEST_BYTES", "20MB", "limits.max_request_bytes", 20_000_000),
        ("UPSTREAM__BOOTSTRAP_SERVERS", "a:1,b:2", "upstream.bootstrap_servers", "a:1,b:2"),
        ("upstream__bootstrap_servers", "a:1", "upstream.bootstrap_servers", "a:1"),
        ("THRESHOLDS__TOTAL_BYTES_IN_PER_SEC_THRESHOLD", "20MB", "thresholds.total", 20_000_000),
        ("RESOURCEUSAGEPUBLISHTOTOPIC", "false", "publishes_usage", False),
        ("INTERNAL__PRINCIPALS", "User:a, User:b", "internal.principals", ("User:a", "User:b")),
        ("INTERNAL__PRINCIPALS", "['User:a,b']", "internal.principals", ("User:a,b",)),
        ("USAGE_LOG__SPOOL_DIR", "/var/spool", "usage_log.spool_dir", Path("/var/spool")),
        ("STORAGE", "{min.available.bytes: 1GB}", "storage.min_available_bytes", 10**9),
        ("LOG__LEVELS__gateway.traffic", "error", "log.levels", {"gateway.traffic": "error"}),
        ("POLICIES_STORE__REPLICATION", "null", "policies_store.replication", None),
    ],
)
def test_a_variable_gives_its_key_a_value(name: str, value: str, path: str, found: Any) -> None:
    value_of: Any = settings(**{name: value})
    for part in path.split("."):
        value_of = getattr(value_of, part)
    assert value_of == found


def test_it_stands_before_the_file_and_leaves_what_is_beside_it() -> None:
    text = UPSTREAM + "admin: {port: 1000, hosts: [a]}\n"
    admin = settings(text, ADMIN__PORT="2000").admin
    assert (admin.port, admin.hosts) == (2000, ("a",))


def test_a_key_of_a_section_stands_before_the_section_as_a_whole() -> None:
    found = settings(LIMITS="{max_connections: 5, max_client_keys: 6}", LIMITS__MAX_CONNECTIONS="7").limits
    assert (found.max_connections, found.max_client_keys) == (7, 6)


def test_a_broker_of_the_file_keeps_what_the_variable_does_not_give() -> None:
    """YAML has its id as a number, a variable as text."""
    text = UPSTREAM + "thresholds: {brokers: {1: {total.bytes.in.per.sec.threshold: 5MB}}}\n"
    text += "listener: {brokers: {1: {advertised_host: b1, port: 2000}}}\n"
    found = settings(
        text,
        THRESHOLDS__BROKERS__1__TOTAL_BYTES_OUT_PER_SEC_THRESHOLD="7MB",
        LISTENER__BROKERS__1__PORT="3000",
    )
    assert found.thresholds.by_broker() == {1: 5e6}
    assert found.thresholds.outbound_by_broker() == {1: 7e6}
    (listener,) = found.all_listeners.values()
    assert (listener.broker_port(1), listener.broker_address(1)) == (3000, ("b1", 3000))


def test_null_gives_the_default_and_text_may_be_empty() -> None:
    text = UPSTREAM + "gateway_id: a\nworkers: 4\nlimits: {max_connections: 5}\n"
    found = settings(text, LIMITS="null", WORKERS="null", GATEWAY_ID="")
    assert (found.limits.max_connections, found.workers, found.gateway_id) == (20_000, 1, "")


def test_two_variables_of_one_key_are_refused(tmp_path: Path) -> None:
    assert problems(MODE="observe", mode="enforce") == [
        "PRODUCE_GATEWAY_mode: mode: is given by PRODUCE_GATEWAY_MODE as well"
    ]
    (tmp_path / "secret").write_text("x")
    (found,) = problems(UPSTREAM__SASL_PASSWORD="a", UPSTREAM__SASL_PASSWORD_FILE=str(tmp_path / "secret"))
    assert found.endswith("upstream.sasl.password: is given by PRODUCE_GATEWAY_UPSTREAM__SASL_PASSWORD as well")


def test_all_of_it_may_be_given_so() -> None:
    assert settings("", UPSTREAM__BOOTSTRAP_SERVERS="k:1").upstream.bootstrap_servers == "k:1"


def test_names_of_the_operators_own_are_taken_as_they_are_written() -> None:
    found = settings(
        THRESHOLDS__TOTAL_BYTES_IN_PER_SEC_THRESHOLD="20MB",
        THRESHOLDS__TOPICS__cLicks_raw__BYTES_IN_PER_SEC_THRESHOLD="1MB",
    )
    assert found.thresholds.by_topic() == {"cLicks_raw": 10**6}


@pytest.mark.parametrize("password", ["0123", "true", "{x", "[a, b]", "a: b", " - ", "p,q", "~"])
def test_text_is_taken_as_it_is(password: str) -> None:
    assert settings(UPSTREAM__SASL_PASSWORD=password).upstream.properties == {"sasl.password": password}


def test_properties_of_librdkafka_have_dots() -> None:
    found = settings(
        UPSTREAM__SECURITY_PROTOCOL="SASL_PLAINTEXT", UPSTREAM__SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL="u",
        UPSTREAM__SOCKET_NEW_THING_MS="1",
    )  # fmt: skip
    assert found.upstream.properties == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.oauthbearer.token.endpoint.url": "u",
        "socket.new.thing.ms": "1",
    }


def test_a_fault_names_the_variable_and_a_fault_of_the_file_its_line() -> None:
    text = UPSTREAM + "admin: {prt: 1}\nlistener:\n  port: 70000\n"
    assert problems(text, ADMIN__PORT="nine", THRESHOLDS__MODE="off", DRAIN_TIMEOUT="7x") == [
        "PRODUCE_GATEWAY_ADMIN__PORT: admin.port: a whole number is needed here, not 'nine'",
        "PRODUCE_GATEWAY_DRAIN_TIMEOUT: drain_timeout: '7x' is not a valid duration; for example: 500ms, 3s, 1h30m or"
        " PT1M",
        "PRODUCE_GATEWAY_THRESHOLDS__MODE: thresholds.mode: should be 'enforce' or 'observe', not 'off'",
        "gw.yaml:2: admin.prt: unknown key; did you mean port?",
        "gw.yaml:4: listener.port: should be less than or equal to 65535, not 70000",
    ]  # fmt: skip


def test_what_several_keys_say_together_names_the_one_that_the_environment_gave() -> None:
    assert problems(ADMIN__HOST="0.0.0.0")[0].startswith("PRODUCE_GATEWAY_ADMIN__HOST: admin: host: 0.0.0.0 is reached")


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("ADMN__PORT", "1", "PRODUCE_GATEWAY_ADMN__PORT: admn: unknown key; did you mean admin?"),
        ("ADMIN__PROT", "1", "PRODUCE_GATEWAY_ADMIN__PROT: admin.prot: unknown key; did you mean port?"),
        ("ADMIN_PROT", "1", "PRODUCE_GATEWAY_ADMIN_PROT: admin_prot: unknown key; "),
        ("MODE__X", "1", "PRODUCE_GATEWAY_MODE__X: mode has no keys, so there is none named x"),
        ("THRESHOLDS", "", "PRODUCE_GATEWAY_THRESHOLDS: is empty: unset it, or write null"),
        ("WORKERS", " ", "PRODUCE_GATEWAY_WORKERS: is empty: "),
        ("INTERNAL__PRINCIPALS", "", "PRODUCE_GATEWAY_INTERNAL__PRINCIPALS: is empty: "),
        ("ADMIN_PORT", "9000", "PRODUCE_GATEWAY_ADMIN_PORT: admin_port: unknown key; "),
        ("PORT", "9000", "PRODUCE_GATEWAY_PORT: port: unknown key; "),
        ("WORKERS_FILE", "/x", "PRODUCE_GATEWAY_WORKERS_FILE: workers_file: unknown key; "),
        ("THRESHOLDS", "{a: [", "PRODUCE_GATEWAY_THRESHOLDS: "),
    ],
)
def test_a_variable_that_can_not_be_is_told_with_what_was_meant(name: str, value: str, line: str) -> None:
    (found,) = problems(**{name: value})
    assert found.startswith(line)


def test_variables_of_kubernetes_services_are_nobodys_mistake() -> None:
    service = {"HOST": "10.0.0.1", "PORT": "9092", "PORT_ADMIN": "9190"}
    link = {"": "tcp://10.0.0.1:9092", "_9092_TCP": "tcp://…", "_9092_TCP_PROTO": "tcp", "_9092_TCP_ADDR": "10.0.0.1"}
    for ours in ("PRODUCE_GATEWAY", "PRODUCE_GATEWAY_ADMIN", "PRODUCE_GATEWAY_BROKER_0"):
        environ = {f"{ours}_SERVICE_{name}": value for name, value in service.items()}
        environ |= {f"{ours}_PORT{name}": value for name, value in link.items()}
        assert read_variables(environ) == ([], []), ours


def test_no_key_looks_like_a_variable_of_kubernetes() -> None:
    for name, field in Settings.model_fields.items():
        variable = VARIABLE_PREFIX + (field.alias or name).upper()
        given, faults = read_variables({variable: "1"})
        assert [each.variable for each in given] == [variable], (name, faults)


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("geheim, 0123\n")
    where = tmp_path / "secret"
    text = f"upstream: {{bootstrap_servers: 'k:9092', sasl.password: {{file: '{where}'}}}}\n"
    found = parse_all(text, "gw.yaml", {})
    assert found.settings.upstream.properties == {"sasl.password": "geheim, 0123"}
    assert found.secret_files == (where,)
    by_variable = settings(UPSTREAM__SASL_PASSWORD_FILE=str(where))
    assert by_variable.upstream.properties == {"sasl.password": "geheim, 0123"}
    key = settings(
        LISTENER__SSL_KEYSTORE_LOCATION="a.pem", LISTENER__SSL_KEY_PASSWORD_FILE=str(where),
    )  # fmt: skip
    assert key.listener is not None
    assert key.listener.key_password == "geheim, 0123"
    (tmp_path / "token").write_text("0123456789abcdef0123\n")
    tokens = settings(UPSTREAM + f"admin: {{tokens: [abcdefghijklmnopqrst, {{file: '{tmp_path}/token'}}]}}\n")
    assert tokens.admin.tokens == ("abcdefghijklmnopqrst", "0123456789abcdef0123")


def test_a_secret_of_a_file_stands_before_that_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("new")
    text = "upstream: {bootstrap_servers: 'k:9092', sasl.password: old}\n"
    found = settings(text, UPSTREAM__SASL_PASSWORD_FILE=str(tmp_path / "secret"))
    assert found.upstream.properties == {"sasl.password": "new"}


def test_a_file_that_can_not_be_used_is_told_with_the_place_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    text = f"upstream:\n  bootstrap_servers: 'k:9092'\n  sasl.password: {{file: {tmp_path}/none}}\n"
    text += f"  ssl.key.password: {{file: {tmp_path}/empty}}\n"
    assert problems(text, UPSTREAM__SSL_KEY_PEM_FILE=str(tmp_path / "binary")) == [
        f"PRODUCE_GATEWAY_UPSTREAM__SSL_KEY_PEM_FILE: upstream.ssl.key.pem: file {tmp_path}/binary is not UTF-8 text",
        f"gw.yaml:3: upstream.sasl.password: file {tmp_path}/none can't be read: No such file or directory",
        f"gw.yaml:4: upstream.ssl.key.password: file {tmp_path}/empty is empty",
    ]


def test_no_secret_is_ever_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gateway import cli

    (tmp_path / "secret").write_text("Zx81Zx81Zx81Zx81")
    (tmp_path / "gw.yaml").write_text(
        "upstream:\n  bootstrap_servers: 'k:9092'\n  security.protocol: SASL_PLAINTEXT\n"
        f"  sasl.mechanisms: PLAIN\n  sasl.username: u\n  sasl.password: {{file: {tmp_path}/secret}}\n"
        "  ssl.key.password: Zx81Zx81Zx81Zx81\n"
        "admin: {tokens: [Zx81Zx81Zx81Zx81, Zx81Zx81 Zx81]}\nmode: 7\n"
    )
    path = tmp_path / "gw.yaml"
    said = "".join(examine_config(path, environ={}).lines)
    for options in ({}, {"as_json": True}, {"strict": True}):
        cli.check_configuration(path, **options)
    path.write_text(path.read_text().replace(", Zx81Zx81 Zx81", "").replace("mode: 7", ""))
    assert cli.check_configuration(path) == 0
    assert cli.check_configuration(path, as_json=True) == 0
    out = capsys.readouterr()
    assert "Zx81" not in said + out.out + out.err
    assert "mode: " in said


def test_what_is_printed_of_a_configuration_has_no_secret() -> None:
    found = settings(
        UPSTREAM__SECURITY_PROTOCOL="SASL_SSL",
        UPSTREAM__SASL_PASSWORD="Zx81",
        UPSTREAM__SSL_KEY_PASSWORD="Zx81",
        LISTENER__SSL_KEYSTORE_LOCATION="a",
        LISTENER__SSL_KEY_PASSWORD="Zx81",
        ADMIN__TOKENS="Zx81Zx81Zx81Zx81",
    )
    assert found.listener is not None
    assert "Zx81" not in repr(found) + repr(found.listener.tls) + repr(found.upstream.tls)


def test_a_finding_of_check_names_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gateway import cli

    (tmp_path / "gw.yaml").write_text(UPSTREAM)
    monkeypatch.setenv("PRODUCE_GATEWAY_LISTENER__SSL_KEYSTORE_LOCATION", "/nowhere.pem")
    assert cli.check_configuration(tmp_path / "gw.yaml", as_json=True) == 1
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert (error["line"], error["variable"]) == (None, "PRODUCE_GATEWAY_LISTENER__SSL_KEYSTORE_LOCATION")
    assert error["message"].startswith("listener.ssl.keystore.location: /nowhere.pem can't be read")
