# The relays that `make bench` compares the gateway with: those in Python relay; how those in C are configured. That the
# latter relay is seen there: they need not be installed where tests run.

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gateway.embedded import HOST
from tests.bench.bench import SECURED, TARGETS, takes_part
from tests.bench.load import SCENARIOS
from tests.bench.processes import free_ports
from tests.bench.proxies.native_relays import CIPHER, Route, haproxy_config, nginx_config
from tests.bench.proxies.peers import load_stream_module, versions, why_not_measured
from tests.bench.targets import relay_loop

RELAYS = [name for name in TARGETS if name.startswith(("haproxy", "nginx"))]
PLAIN = Route(1, f"{HOST}:2")
SECURE = Route(1, f"{HOST}:2", Path("/own.pem"), Path("/broker.pem"))


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def nginx(folder: Path, flags: str) -> None:
    program(folder, "nginx", f"echo 'nginx version: nginx/1.22.1\nconfigure arguments: {flags}' >&2")


@pytest.mark.parametrize("name", ["bare-loop", "splice-loop"])
def test_the_loops_in_python_relay(name: str, tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as broker:
        broker.settimeout(60)
        upstream = f"{HOST}:{broker.getsockname()[1]}"
        with relay_loop(name, upstream, free_ports(21_300, 1), tmp_path) as target:
            broker.accept()[0].close()  # who looked whether it listens
            host, port = target.bootstrap.split(":")
            with socket.create_connection((host, int(port)), timeout=60) as client:
                accepted, _ = broker.accept()
                with accepted:
                    client.sendall(b"request")
                    assert accepted.recv(100) == b"request"
                    accepted.sendall(b"answer")
                    assert client.recv(100) == b"answer"


def test_each_relays_bytes_in_one_thread() -> None:
    haproxy = lines(haproxy_config(PLAIN))
    assert {"nbthread 1", "mode tcp", f"bind {HOST}:1", f"server broker {HOST}:2"} <= set(haproxy)
    nginx = lines(nginx_config(PLAIN, "load_module /m.so;", Path("/run")))
    assert nginx[0] == "load_module /m.so;"
    assert {"worker_processes 1;", "stream {", f"listen {HOST}:1;", f"proxy_pass {HOST}:2;"} <= set(nginx)
    assert not [line for line in haproxy + nginx if "ssl" in line]


def test_tls_is_that_of_the_gateway_and_the_broker_is_verified() -> None:
    bind, server = lines(haproxy_config(SECURE))[-2:]
    assert bind == f"bind {HOST}:1 ssl crt /own.pem ssl-min-ver TLSv1.3 ciphersuites {CIPHER}"
    assert f"verify required verifyhost {HOST} ca-file /broker.pem" in server
    assert set(lines(nginx_config(SECURE, "", Path("/run")))) >= {
        f"listen {HOST}:1 ssl;", "ssl_certificate /own.pem;", "ssl_certificate_key /own.pem;", "ssl_protocols TLSv1.3;",
        f"ssl_conf_command Ciphersuites {CIPHER};", "proxy_ssl on;", "proxy_ssl_verify on;",
        "proxy_ssl_trusted_certificate /broker.pem;",
    }  # fmt: skip


def test_raw_loads_measure_each_and_tls_where_a_scenario_says_so() -> None:
    for scenario in SCENARIOS:
        wanted = [name for name in RELAYS if scenario.secured or name not in SECURED]
        assert [name for name in RELAYS if takes_part(name, scenario)] == wanted
    assert {scenario.name for scenario in SCENARIOS if scenario.secured} == {"small-64", "wide-64", "100KB", "1MB"}


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [why_not_measured(name) for name in ("haproxy-tls", "nginx", "kroxylicious", "kafka-proxy-tls-both")] == [
        "no haproxy on PATH", "no nginx on PATH", "no kroxylicious-start.sh on PATH", "no kafka-proxy on PATH",
    ]  # fmt: skip
    assert [why_not_measured(name) for name in ("direct", "gateway-tls", "bare-loop")] == [None] * 3


def test_nginx_needs_its_stream_module_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tls, missing = "--with-stream_ssl_module", "no stream module with TLS in nginx"
    dynamic = f"--modules-path={tmp_path} --with-stream=dynamic {tls}"
    for flags, said in {
        "--with-http_ssl_module": missing, "--with-stream": missing, f"--with-stream {tls}": None, dynamic: missing,
    }.items():  # fmt: skip
        nginx(tmp_path, flags)
        assert why_not_measured("nginx") == said
    (tmp_path / "ngx_stream_module.so").touch()
    assert why_not_measured("nginx-tls-both") is None
    assert load_stream_module(dynamic) == f"load_module {tmp_path}/ngx_stream_module.so;"
    assert load_stream_module(f"--with-stream {tls}") == ""


def test_versions_are_what_the_programs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "haproxy", "echo 'HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/'")
    program(tmp_path, "kafka-proxy", "echo unknown")
    nginx(tmp_path, "")
    targets = ["gateway", "kafka-proxy", "kroxylicious", "haproxy", "nginx", "haproxy-tls"]
    assert versions(targets) == [
        "kafka-proxy unknown", "kroxylicious of unknown version", "haproxy 2.6.12-1+deb12u4", "nginx 1.22.1",
    ]  # fmt: skip
