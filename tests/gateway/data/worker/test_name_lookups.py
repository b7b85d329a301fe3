# Names of brokers are looked up in threads: clients that come at once must not wait for each other's.

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
import trio
import trio.testing

from gateway.channel import BrokerTable, UpstreamBroker
from gateway.data.connecting.dialling import BrokerDialler
from gateway.data.connecting.handshakes import TlsWorkspace
from gateway.data.shared.uplink import ControlUplink
from gateway.data.worker.worker import DataWorker
from gateway.parent_link import ParentLink
from tests.gateway.data.play import Play

DEADLINE_S = 60.0
CLIENTS = 100


async def test_many_names_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, all_ask = socket.getaddrinfo, threading.Barrier(CLIENTS, timeout=DEADLINE_S)

    def wait_for_all(host: Any, port: int, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0) -> Any:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "a name")
        all_ask.wait()
        return look_up("127.0.0.1", port, family, type, proto, flags)

    play, (ours, theirs) = Play(upstream_connect_timeout=DEADLINE_S), socket.socketpair()
    with socket.create_server(("127.0.0.1", 0), backlog=CLIENTS) as server, theirs, trio.fail_after(DEADLINE_S):
        play.world.cluster.set_brokers(BrokerTable((), (UpstreamBroker(1, "broker.test", server.getsockname()[1]),)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(DataWorker(ParentLink(ours), 0).run)
            await trio.testing.wait_all_tasks_blocked()
            dialler = BrokerDialler(play.world, ControlUplink(), TlsWorkspace())
            reached: list[Any] = []

            async def dial() -> None:
                reached.append(await dialler.dial_broker(1))

            monkeypatch.setattr(socket, "getaddrinfo", wait_for_all)
            async with trio.open_nursery() as clients:
                for _ in range(CLIENTS):
                    clients.start_soon(dial)
            monkeypatch.undo()
            nursery.cancel_scope.cancel()
    assert None not in reached
    for dialled in reached:
        dialled.sock.close()
