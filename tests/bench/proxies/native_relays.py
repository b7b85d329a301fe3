# HAProxy (`mode tcp`) and nginx (`stream`) as relays in C that move bytes and know nothing of Kafka: what one more hop
# costs at best, with TLS and without.
#
# Each has one thread, and its defaults but for what stands here. As they change no answer, a client that follows
# metadata would leave them for the broker: the raw load, which doesn't, measures them, and Kafka's own tools where the
# broker has a listener that advertises the relay's address.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import running, wait_for_port
from tests.bench.proxies.peers import PEERS, load_stream_module, nginx_build, peer_of
from tests.bench.results.report import BOTH, tls_of
from tests.bench.targets import HOST, Target, make_keystore

# The load offers three ciphers, and the gateway's listeners choose this one. nginx would go by the load's order, which
# begins with AES-128. With the broker all have AES-128, which the null broker chooses.
CIPHER = "TLS_AES_256_GCM_SHA384"


@dataclass(frozen=True)
class Route:
    """`keystore`: certificate and key for TLS with clients. `ca`: the certificate that a broker with TLS has."""

    port: int
    broker: str
    keystore: Path | None = None
    ca: Path | None = None


def haproxy_config(route: Route) -> str:
    bind, server = f"bind {HOST}:{route.port}", f"server broker {route.broker}"
    if route.keystore is not None:
        bind += f" ssl crt {route.keystore} ssl-min-ver TLSv1.3 ciphersuites {CIPHER}"
    if route.ca is not None:
        server += f" ssl ssl-min-ver TLSv1.3 verify required verifyhost {HOST} ca-file {route.ca}"
    return f"""\
global
    nbthread 1
    maxconn 500
defaults
    mode tcp
    timeout connect 10s
    timeout client 10m
    timeout server 10m
listen load
    {bind}
    {server}
"""


def nginx_config(route: Route, load_module: str, folder: Path) -> str:
    """`load_module`: that line, where there must be one. `folder`: for the file with its process id."""
    lines = [f"listen {HOST}:{route.port};"]
    if route.keystore is not None:
        lines = [
            f"listen {HOST}:{route.port} ssl;",
            f"ssl_certificate {route.keystore};",
            f"ssl_certificate_key {route.keystore};",
            "ssl_protocols TLSv1.3;",
            f"ssl_conf_command Ciphersuites {CIPHER};",
        ]
    lines.append(f"proxy_pass {route.broker};")
    if route.ca is not None:
        lines += [
            "proxy_ssl on;",
            "proxy_ssl_protocols TLSv1.3;",
            "proxy_ssl_verify on;",
            f"proxy_ssl_name {HOST};",
            f"proxy_ssl_trusted_certificate {route.ca};",
        ]
    server = "\n        ".join(lines)
    # Without a master process its worker is the process that we started, and can't outlive it.
    return f"""\
{load_module}
daemon off;
master_process off;
worker_processes 1;
pid {folder}/nginx.pid;
events {{
}}
stream {{
    server {{
        {server}
    }}
}}
"""


@contextmanager
def native_relay(name: str, broker: str, port: int, run_dir: Path, ca: Path | None = None) -> Iterator[Target]:
    """`name`: haproxy or nginx, with `-tls` or `-tls-both` behind it. With the latter `broker` has TLS; `ca`: its
    certificate, else unused.
    """
    program, tls = peer_of(name) or "", tls_of(name)
    folder = run_dir / name
    folder.mkdir()
    keystore = make_keystore(folder / "listener.pem") if tls else None
    route = Route(port, broker, keystore, ca if tls == BOTH else None)
    log, config = folder / "log", folder / f"{program}.cfg"
    if program == "haproxy":
        config.write_text(haproxy_config(route))
        arguments = ["-db", "-f", str(config)]
    else:
        config.write_text(nginx_config(route, load_stream_module(nginx_build()) or "", folder))
        arguments = ["-p", str(folder), "-e", "stderr", "-c", str(config)]
    with running([PEERS[program].command, *arguments], log) as process:
        wait_for_port(process, port, log)
        yield Target(name, f"{HOST}:{port}", f"{HOST}:{port}", process.pid, keystore)
