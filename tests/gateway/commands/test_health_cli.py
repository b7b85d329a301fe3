# `produce-gateway health`: against a real admin server on a thread, which says what the test wants.

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.embedded import find_free_port
from tests.background import Says, serving


@pytest.mark.parametrize(("options", "path"), [([], "/healthz"), (["--ready"], "/readyz")])
def test_a_gateway_that_says_yes_is_exit_code_0(
    options: list[str], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Says(path)) as server:
        server.say({"ready": True})
        assert main(["health", "--url", server.url + "/", *options]) == 0
    assert json.loads(capsys.readouterr().out) == {"ready": True}


def test_a_gateway_that_is_not_ready_is_exit_code_1_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Says("/readyz")) as server:
        server.say({"ready": False, "problems": ["no broker answers"]}, 503)
        assert main(["health", "--url", server.url, "--ready"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "no broker answers" in said.err


def test_the_address_is_that_of_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.yaml"
    with serving(Says("/healthz")) as server:
        server.say({})
        port = server.url.rpartition(":")[2]
        # With a certificate that is required at the admin port, which a probe has none of.
        admin = "admin: {host: 0.0.0.0, ssl.keystore.location: k, ssl.truststore.location: t, ssl.client.auth: required"
        path.write_text(f"upstream: {{bootstrap_servers: 'b:1'}}\n{admin}, open: true}}\nhealth: {{port: {port}}}\n")
        assert main(["health", str(path)]) == 0
    capsys.readouterr()


def test_nobody_there_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{find_free_port()}"
    assert main(["health", "--url", url, "--timeout", "30"]) == 1
    assert capsys.readouterr().err == f"{url}/healthz: can't be reached: Connection refused\n"


@pytest.mark.parametrize("timeout", ["0", "soon", "1e9"])
def test_a_time_limit_is_a_number_of_seconds(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["health", "--timeout", timeout])
    assert end.value.code == 2
    assert f"'{timeout}' is not a valid number of seconds" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://admin:hush@gw:9190", "admin:hush@gw:9190", "http://admin:hush/now@gw:9190"])
def test_a_password_in_an_address_is_refused_and_not_repeated(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--url", url]) == 1
    said = capsys.readouterr().err
    assert "--url: a user name or a password doesn't belong there: give --token-file" in said
    assert "hush" not in said
