# What is compared: nothing in between, the gateway in its forms, the least that a relay in Python does, and
# the peers that forward Kafka (native_relays.py has those that forward bytes).
#
# Each is started once per run and stands idle while another is measured. A target is an address to send to, and the
# process whose tree's CPU counts.

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import AdminClient

from tests.bench.processes import BenchError, running, wait_for_port
from tests.bench.proxies.peers import PEERS

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
NODE_ID = 1  # of the null broker and of a one-broker embedded cluster
MOST_BROKERS = 3

# Thresholds nobody reaches: they are looked up for every request and reject none.
IDLE_THRESHOLDS = {
    "total.bytes.in.per.sec.threshold": "1000000MB",
    "topics": {
        "load": {"bytes.in.per.sec.threshold": "500000MB"},
        "clicks": {"bytes.in.per.sec.threshold": "5MB"},
    },
}
# Topic `busy` is held at its limit once the total is passed, while `load` stays below its own: 40 MB/s are 235,000 of
# the small requests.
BUSY_THRESHOLDS = {
    "total.bytes.in.per.sec.threshold": "42MB",
    "topics": {
        "load": {"bytes.in.per.sec.threshold": "40MB"},
        "busy": {"bytes.in.per.sec.threshold": "1MB"},
    },
}
# Topic `load` is in one of many resource groups, which is far from its limits.
MANY_GROUPS = {
    "resource_groups": {
        "topic_pattern": "{tenant}",
        "groups": {f"g{i}": {"publishRateInBytes": "100GB", "publishRateInMsgs": 100_000_000} for i in range(5000)},
        "tenants": {"load": "g0"} | {f"t{i}": f"g{i}" for i in range(1, 5000)},
    }
}

# All policies at once, none of which is reached.
EVERYTHING = MANY_GROUPS | {
    "client_quotas": [{"client_id": "<default>", "producer_byte_rate": "100GB"}],
    "storage": {"min.available.bytes": "1GB", "throttle.factor.fallback": 1.0, "check_interval": "PT1H"},
}


@dataclass(frozen=True)
class Target:
    """An address to load. `bootstrap` is for clients that follow metadata, `node` for a load that sends straight."""

    name: str
    bootstrap: str
    node: str
    pid: int | None  # root of the tree whose CPU counts; None: nothing is in between
    keystore: Path | None = None  # of its listener, where clients speak TLS to it: PEM with certificate and key

    @property
    def secure(self) -> bool:
        return self.keystore is not None

    def client_options(self) -> list[str]:
        """Options of Kafka's own tools for clients that speak TLS to it."""
        if self.keystore is None:
            return []
        file = self.keystore.with_suffix(".properties")
        file.write_text(
            "security.protocol=SSL\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.keystore.with_suffix('.crt')}\n"
        )
        return ["--command-config", str(file)]


def direct(upstream: str) -> Target:
    return Target("direct", upstream, upstream, None)


def tls_address(address: str) -> str:
    """That of the null broker's listener with TLS: the port behind the plain one."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}"


@contextmanager
def null_broker(
    rawload: Path,
    port: int,
    run_dir: Path,
    keystore: Path | None = None,
    more_topics: Sequence[str] = (),
    partitions: int = 1,
) -> Iterator[tuple[str, int]]:
    """Address and process id of a broker that keeps nothing. With a keystore it listens at `tls_address` as well.
    `partitions`: of each topic.
    """
    log = run_dir / f"null-broker-{port}.log"
    address = f"{HOST}:{port}"
    secure = ["-null-tls", tls_address(address), "-pem", str(keystore)] if keystore is not None else []
    topics = ["-topics", ",".join(("load", "busy", *more_topics)), "-p", str(partitions)]
    with running([str(rawload), "-null", address, *topics, *secure], log) as process:
        wait_for_port(process, port, log)
        yield address, process.pid


def gateway_config(upstream: str, port: int, thresholds: dict[str, Any], spool: Path) -> dict[str, Any]:
    return {
        "upstream": {"bootstrap_servers": upstream},
        "listener": {"host": HOST, "port": port, "advertised_host": HOST},
        "admin": {"host": HOST, "port": port + 9},
        "thresholds": thresholds,
        "usage_log": {"topic": "__produce_gateway_usage", "spool_dir": str(spool)},
        "internal_topics": "none",
    }


@contextmanager
def gateway(
    name: str,
    upstream: str,
    port: int,
    thresholds: dict[str, Any],
    run_dir: Path,
    env: dict[str, str] | None = None,
    more: dict[str, Any] | None = None,
    secure: bool = False,
    ca: Path | None = None,
    root: Path = ROOT,
) -> Iterator[Target]:
    """Takes ports `port` to `port` + 9. `more`: keys of its configuration. `secure`: clients speak TLS to it. `ca`: so
    does it with the broker, whose certificate that is. `root`: of the checkout whose code it runs.
    """
    file = re.sub(r"\W+", "-", name)
    log, config = run_dir / f"{file}.log", run_dir / f"{file}.yaml"
    spool = run_dir / f"{file}-spool"
    spool.mkdir()
    settings = gateway_config(upstream, port, thresholds, spool) | (more or {})
    keystore = make_keystore(run_dir / f"{file}.pem") if secure else None
    if keystore is not None:
        settings["listener"]["ssl.keystore.location"] = str(keystore)
    if ca is not None:
        settings["upstream"] |= {"security.protocol": "SSL", "ssl.ca.location": str(ca)}
    config.write_text(yaml.safe_dump(settings))
    node_port = port + 1 + NODE_ID
    command = [sys.executable, "-m", "gateway", "serve", str(config)]
    with running(command, log, env={"PYTHONPATH": str(root)} | (env or {}), cwd=root) as process:
        wait_for_port(process, node_port, log)
        yield Target(name, f"{HOST}:{port}", f"{HOST}:{node_port}", process.pid, keystore)


def make_keystore(path: Path) -> Path:
    """A certificate for this host, signed by itself, and its key, as `ssl.keystore.location` takes them."""
    if shutil.which("openssl") is None:
        raise BenchError("the targets with TLS need openssl on PATH, for a certificate")
    certificate = path.with_suffix(".crt")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "30",
    ]
    command += [
        "-subj",
        f"/CN={HOST}",
        "-addext",
        f"subjectAltName=IP:{HOST}",
        "-keyout",
        str(path),
        "-out",
        str(certificate),
    ]
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(path.read_text() + certificate.read_text())
    return path


@contextmanager
def relay_loop(name: str, upstream: str, port: int, run_dir: Path) -> Iterator[Target]:
    """bare-loop or splice-loop. Each broker's address has a listener, from `port` on. It changes no answer: brokers
    must advertise these.
    """
    log, brokers = run_dir / f"{name}.log", upstream.split(",")
    addresses = [f"{HOST}:{port + place}" for place in range(len(brokers))]
    routes = [each for route in zip(addresses, brokers, strict=True) for each in route]
    module = f"tests.bench.proxies.{name.replace('-', '_')}"
    with running([sys.executable, "-m", module, *routes], log, cwd=ROOT) as process:
        wait_for_port(process, port, log)
        yield Target(name, ",".join(addresses), addresses[0], process.pid)


@contextmanager
def kafka_proxy(
    upstream: str, port: int, run_dir: Path, name: str = "kafka-proxy", ca: Path | None = None
) -> Iterator[Target]:
    """grepplabs' kafka-proxy with its defaults, on loopback. Each broker's address is mapped to a listener, from `port`
    on; `port` + 9 is its own. `ca`: with TLS on both sides; the brokers' certificate.
    """
    log, brokers = run_dir / f"{name}.log", upstream.split(",")
    addresses = [f"{HOST}:{port + place}" for place in range(len(brokers))]
    command = [PEERS["kafka-proxy"].command, "server", "--default-listener-ip", HOST]
    command += ["--http-listen-address", f"{HOST}:{port + 9}"]
    for broker, address in zip(brokers, addresses, strict=True):
        command += ["--bootstrap-server-mapping", f"{broker},{address}"]
    keystore = make_keystore(run_dir / f"{name}.pem") if ca is not None else None
    if keystore is not None:
        command += ["--tls-enable", "--tls-ca-chain-cert-file", str(ca), "--proxy-listener-tls-enable"]
        command += ["--proxy-listener-cert-file", str(keystore), "--proxy-listener-key-file", str(keystore)]
    with running(command, log) as process:
        wait_for_port(process, port, log)
        yield Target(name, ",".join(addresses), addresses[0], process.pid, keystore)


@contextmanager
def kroxylicious(upstream: str, port: int, run_dir: Path) -> Iterator[Target]:
    """Kroxylicious without filters: it decodes no Produce request. It takes ports `port` to `port` + 4."""
    log, config = run_dir / "kroxylicious.log", run_dir / "kroxylicious.yaml"
    listener = {
        "bootstrapAddress": f"{HOST}:{port}",
        "advertisedBrokerAddressPattern": HOST,
        "nodeIdRanges": [{"name": "all", "start": 0, "end": MOST_BROKERS}],
    }
    cluster = {
        "name": "bench",
        "targetCluster": {"bootstrapServers": upstream},
        "gateways": [{"name": "plain", "portIdentifiesNode": listener}],
    }
    config.write_text(yaml.safe_dump({"virtualClusters": [cluster]}))
    with running([PEERS["kroxylicious"].command, "--config", str(config)], log) as process:
        bootstrap, node_port = f"{HOST}:{port}", port + 1 + NODE_ID
        wait_for_port(process, node_port, log)
        # A broker's port relays once an answer to Metadata has told of that broker.
        AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=30)
        yield Target("kroxylicious", bootstrap, f"{HOST}:{node_port}", process.pid)


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base) / "produce-gateway" / "bench"
    path.mkdir(parents=True, exist_ok=True)
    return path
