# Clients that resolve names which are in no DNS: a process of its own, in a mount namespace with another /etc/hosts.
# As a program: `python -m tests.integration.named_clients CLIENT BOOTSTRAP CA TOPIC COUNT` produces COUNT records
# through TLS, waits for every acknowledgement, reads them back, and prints how many came.

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOSTS_SCRIPT = 'mount --bind "$0" /etc/hosts && exec "$@"'


def hosts_file(folder: Path, *names: str) -> Path:
    """In which these names are this machine."""
    path = folder / "hosts"
    path.write_text(f"127.0.0.1 localhost {' '.join(names)}\n")
    return path


def command(hosts: Path, *argv: str) -> list[str]:
    """Skips the test where nobody but root may have such a namespace."""
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    prefix = [*unshare, "sh", "-c", HOSTS_SCRIPT, str(hosts)]
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount namespace with another /etc/hosts here: {error}")
    return [*prefix, *argv]


def run(hosts: Path, client: str, bootstrap: str, ca: Path, topic: str, count: int) -> int:
    """How many records came back."""
    argv = (sys.executable, "-m", "tests.integration.named_clients", client, bootstrap, str(ca), topic, str(count))
    done = subprocess.run(
        command(hosts, *argv), check=False, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout)


def _librdkafka(bootstrap: str, ca: str, topic: str, count: int) -> int:
    from confluent_kafka import Consumer, Producer

    common = {"bootstrap.servers": bootstrap, "security.protocol": "SSL", "ssl.ca.location": ca}
    lost: list[Any] = []
    producer = Producer({**common, "enable.idempotence": True})
    for i in range(count):
        producer.produce(topic, b"%d" % i, on_delivery=lambda error, _: lost.extend((error,) if error else ()))
    if producer.flush(60) or lost:
        raise SystemExit(f"not delivered: {lost[:3]}")
    consumer = Consumer({**common, "group.id": f"{topic}-librdkafka", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        return sum(len(consumer.consume(1, 30)) for _ in range(count))
    finally:
        consumer.close()


def _kafka_python(bootstrap: str, ca: str, topic: str, count: int) -> int:
    from kafka import KafkaConsumer, KafkaProducer

    common: Any = {"bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_cafile": ca}
    producer = KafkaProducer(**common)
    sent = [producer.send(topic, b"%d" % i) for i in range(count)]
    producer.flush(60)
    for future in sent:
        future.get(10)
    producer.close()
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", group_id=f"{topic}-python", consumer_timeout_ms=30_000, **common
    )
    try:
        return sum(1 for _ in zip(range(count), consumer, strict=False))
    finally:
        consumer.close()


if __name__ == "__main__":
    client, bootstrap, ca, topic, count = sys.argv[1:]
    print({"librdkafka": _librdkafka, "kafka-python": _kafka_python}[client](bootstrap, ca, topic, int(count)))
