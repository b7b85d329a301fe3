# A broker that offers ApiVersions and Metadata up to v4 (v1 and v4 are answered), and takes Produce with acks=0 without
# a word: enough to be a cluster for the control process. What it says may be changed while it runs.

from __future__ import annotations

import contextlib
import socket
import struct
import threading


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


class NullBroker:
    """`brokers`: node id -> (host, port), itself by default. `topics`: name -> node ids that lead its partitions.
    `controller`: its node id.
    """

    def __init__(self, port: int = 0) -> None:
        self._server = socket.create_server(("127.0.0.1", port))
        self.port = self._server.getsockname()[1]
        self.brokers = {1: ("127.0.0.1", self.port)}
        self.controller = 1
        self.topics: dict[str, list[int | tuple[int, int]]] = {}  # by partition: the leader, or it and the replica
        self._clients: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError):
            file = client.makefile("rb")
            with file:
                while len(prefix := file.read(4)) == 4:
                    request = file.read(struct.unpack(">i", prefix)[0])
                    key, version, correlation = struct.unpack_from(">hhi", request)
                    if key == 0:
                        continue  # acks=0 is answered by nobody
                    body = {18: self._api_versions, 3: self._metadata}[key](version)
                    client.sendall(struct.pack(">ii", 4 + len(body), correlation) + body)

    def _api_versions(self, version: int) -> bytes:
        apis = b"".join(struct.pack(">hhh", key, 0, highest) for key, highest in ((3, 4), (18, 0)))
        return struct.pack(">hi", 35 if version > 0 else 0, 2) + apis

    def _metadata(self, version: int) -> bytes:
        assert version in (1, 4)
        out = struct.pack(">i", 0) if version >= 3 else b""
        out += struct.pack(">i", len(self.brokers))
        for node_id, (host, port) in self.brokers.items():
            out += struct.pack(">i", node_id) + text(host) + struct.pack(">ih", port, -1)
        out += text("cluster") if version >= 2 else b""
        out += struct.pack(">ii", self.controller, len(self.topics))
        for name, leaders in self.topics.items():
            out += struct.pack(">h", 0) + text(name) + struct.pack(">bi", 0, len(leaders))
            for index, said in enumerate(leaders):
                leader, replica = said if isinstance(said, tuple) else (said, said)
                out += struct.pack(">hiiiiii", 0, index, leader, 1, replica, 1, replica)
        return out
