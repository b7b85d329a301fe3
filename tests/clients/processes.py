# Which process is connected to which TCP port, from /proc: a child's children, the owner of a socket, a watcher that
# keeps looking while a test runs. Linux only.

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.background import Background

PROC = Path("/proc")


@dataclass(frozen=True)
class Connection:
    """One end of a TCP connection: the one that dialled `remote_port`."""

    local_port: int
    remote_port: int
    inode: int


def connections_to(ports: Iterable[int]) -> list[Connection]:
    """Every socket of this machine whose other end is one of these ports, but for those that nobody owns any more."""
    wanted = set(ports)
    found = []
    for table in ("tcp", "tcp6"):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            local, remote = (int(address.rpartition(":")[2], 16) for address in fields[1:3])
            inode = int(fields[9])
            if remote in wanted and inode:  # 0: TIME_WAIT
                found.append(Connection(local, remote, inode))
    return found


def owners() -> dict[int, int]:
    """Inode of each socket -> process id of an owner."""
    found = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            found.update(dict.fromkeys(sockets_of(int(folder.name)), int(folder.name)))
    return found


def sockets_of(pid: int) -> list[int]:
    """Inodes of a process's sockets; none if it is gone."""
    found = []
    try:
        names = os.listdir(PROC / str(pid) / "fd")
    except OSError:
        return []
    for name in names:
        try:
            link = os.readlink(PROC / str(pid) / "fd" / name)
        except OSError:
            continue
        if link.startswith("socket:["):
            found.append(int(link[8:-1]))
    return found


def tree(pid: int) -> set[int]:
    """A process and everything below it."""
    found, todo = set(), [pid]
    while todo:
        one = todo.pop()
        found.add(one)
        for children in (PROC / str(one) / "task").glob("*/children"):
            try:
                todo += map(int, children.read_text().split())
            except OSError:
                continue
    return found


def command_of(pid: int) -> str:
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "(gone)"
    return " ".join(word.decode(errors="replace")[-300:] for word in words)


class Watch(Background):
    """Looks many times a second at who is connected to `ports`, until the `with` ends.

    Args:
        ports: remote ports of interest.
        allowed: the processes that may be connected; asked anew at every new connection, since they may restart.

    Attributes:
        seen: remote port -> processes that were allowed and connected.
        strangers: process -> its command line, of everybody else.
        unresolved: connections that were gone before their owner could be found.
    """

    INTERVAL_S = 0.1

    def __init__(self, ports: Iterable[int], allowed: Callable[[], set[int]]) -> None:
        super().__init__()
        self._ports = set(ports)
        self._allowed = allowed
        self._known: set[int] = set()
        self.seen: dict[int, set[int]] = {port: set() for port in self._ports}
        self.strangers: dict[int, str] = {}
        self.unresolved = 0

    def _run(self) -> None:
        while not self._stop.wait(self.INTERVAL_S):
            self.look()

    def look(self) -> None:
        now = connections_to(self._ports)
        new = [connection for connection in now if connection.inode not in self._known]
        self._known &= {connection.inode for connection in now}  # inodes are used again
        if not new:
            return
        allowed, owner = self._allowed(), owners()
        for connection in new:
            pid = owner.get(connection.inode)
            if pid is None:
                self.unresolved += 1
                continue
            self._known.add(connection.inode)
            if pid in allowed:
                self.seen[connection.remote_port].add(pid)
            else:
                self.strangers.setdefault(pid, command_of(pid))
