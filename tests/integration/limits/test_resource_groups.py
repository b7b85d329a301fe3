# Resource groups with two real gateways and a real Kafka: made over REST at one gateway by a plain HTTP client with an
# admin token, they bind producers of the other, survive both, and are known to `groups` and `explain`.

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import embedded
from gateway.embedded import EmbeddedCluster, wait_for
from tests.clients.gateways import READY_TIMEOUT_S
from tests.gateway.data import play
from tests.integration.gateways import Gateway, create_topic
from tests.integration.wire import Wire

TOKEN = "integration-0123456789abcdef"
DEADLINE_S = 60.0


class Pair:
    """Two gateways that know of each other only through the internal topics."""

    def __init__(self, kafka: EmbeddedCluster, folder: Path) -> None:
        name = uuid.uuid4().hex[:8]
        self.kafka = kafka
        self.tenant = f"t{name}"
        self.topic = create_topic(kafka, f"{self.tenant}.orders.new")
        self.file = folder / "token"
        self.file.write_text(TOKEN)
        self._settings: dict[str, Any] = {
            "policies_store": {"topic": f"__policies-{name}"},
            "usage_log": {"topic": f"__usage-{name}"},
            "resourceUsagePublishTopicName": f"__resource-usage-{name}",
        }
        self.gateways: list[Gateway] = []

    def start(self) -> None:
        self.gateways = [self._make(f"gateway-{number}") for number in range(2)]
        for gateway in self.gateways:
            wait_for("the gateway to be ready", gateway.ready, READY_TIMEOUT_S)

    def _make(self, gateway_id: str) -> Gateway:
        port = embedded.find_free_port()
        admin = {"host": embedded.HOST, "port": port, "token_file": str(self.file)}
        given = {**self._settings, "admin": admin, "gateway_id": gateway_id}
        gateway = Gateway(self.kafka.bootstrap_servers, given, wait=False)
        gateway.admin = f"http://{embedded.HOST}:{port}"
        return gateway

    def stop(self) -> None:
        for gateway in self.gateways:
            gateway.__exit__(None, None, None)

    def ask(self, at: int, method: str, path: str, body: Any = None, token: str = TOKEN) -> tuple[int, Any]:
        """As curl -X METHOD -H 'Authorization: Bearer …' [-H 'Content-Type: application/json' -d BODY] does."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        request = urllib.request.Request(self.gateways[at].admin + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def is_bound(self, at: int) -> bool:
        """Whether small batches of a new connection are slowed down there."""
        with Wire(self.gateways[at].broker_port(1)) as wire:
            frame = play.request(1, {self.topic: [0]}, client_id="probe")
            for _ in range(30):
                throttle_ms, rows = wire.produce(frame)
                assert {code for code, _ in rows.values()} == {0}
                if throttle_ms:
                    return True
        return False


@pytest.fixture
def pair(kafka: EmbeddedCluster, tmp_path: Path) -> Iterator[Pair]:
    running = Pair(kafka, tmp_path)
    running.start()
    yield running
    running.stop()


def command(pair: Pair, *args: str) -> str:
    root = Path(__file__).parents[3]
    said = subprocess.run(
        [sys.executable, "-m", "gateway", *args, "--url", pair.gateways[1].admin],
        cwd=root, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    return said.stdout


def test_a_group_made_at_one_gateway_binds_at_the_other_and_survives_both(pair: Pair) -> None:
    namespace = f"/admin/v2/namespaces/{pair.tenant}/orders/resourcegroup"
    assert not pair.is_bound(1)
    for method, path, body in (
        ("PUT", "/admin/v2/resourcegroup/gold", {"publishRateInmsgs": 2}),
        ("PUT", f"{namespace}/gold", None),
    ):
        assert pair.ask(0, method, path, body, token="")[0] == 401
        assert pair.ask(0, method, path, body)[0] == 200

    wait_for("the other gateway to know it", lambda: pair.ask(1, "GET", namespace) == (200, "gold"), DEADLINE_S)
    wait_for("the group to bind there", lambda: pair.is_bound(1), DEADLINE_S)
    assert pair.ask(1, "DELETE", "/admin/v2/resourcegroup/gold")[0] == 412

    said = command(pair, "explain", "--topic", pair.topic)
    assert f"publishRateInMsgs of group gold, attached to namespace {pair.tenant}/orders" in said
    assert "2 messages/s over 2 gateways: " in said
    listed = command(pair, "groups", "list", "--token-file", str(pair.file))
    assert f"gold   2 messages/s  -         namespace {pair.tenant}/orders" in listed

    pair.stop()
    pair.start()
    assert pair.ask(1, "GET", "/admin/v2/resourcegroup/") == (200, ["gold"])
    assert pair.ask(1, "GET", "/admin/v2/resourcegroup/gold")[1]["PublishRatelimitinmsgs"] == 2
    wait_for("the group to bind again", lambda: pair.is_bound(0), DEADLINE_S)

    command(pair, "groups", "detach", "--namespace", f"{pair.tenant}/orders", "--token-file", str(pair.file))
    command(pair, "groups", "delete", "gold", "--token-file", str(pair.file))
    wait_for("it to be gone", lambda: pair.ask(0, "GET", "/admin/v2/resourcegroup") == (200, []), DEADLINE_S)
    wait_for("nobody to be held", lambda: not pair.is_bound(0), DEADLINE_S)

    fresh = pair.file.with_name("fresh")
    fresh.write_text("another-0123456789abcdef\n")
    fresh.replace(pair.file)
    assert pair.ask(0, "GET", "/admin/v2/resourcegroup")[0] == 401, "a token that was taken out of the file"
    assert pair.ask(0, "GET", "/admin/v2/resourcegroup", token="another-0123456789abcdef")[0] == 200
    assert pair.ask(0, "GET", "/v1/thresholds", token="")[0] == 200
