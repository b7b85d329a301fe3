# What strangers must not do to a gateway of real processes, whatever they try meanwhile: no process ends, /readyz goes
# on to answer within a second, a client that behaves gets its answers, and no process keeps more memory than it may.
#
# A machine that stands still fails nobody. Beside the gateway stands a server of bytes that does nothing else, in a
# process of its own, asked from the same threads: what is late is late only beyond what was late there at that time, or
# what a process of the gateway or the test's own, which have more to do than that server, waited for a core meanwhile.

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Final, NamedTuple

from gateway import embedded
from tests.clients import gateways, processes
from tests.integration.wire import Wire
from tests.protocol.produce_cases import framed

MIB: Final = 2**20
EVERY_S: Final = 0.1
PROMPT_S: Final = 1.0  # within this time everybody is answered …
MOST_LATE: Final = 0.01  # … but for so many of the answers (the 99th percentile holds), or for two of few
FEW_LATE: Final = 2
NO_ANSWER_S: Final = 10.0  # behind it there was none
BESIDE: Final = 3.0  # times what the bare server took, or a process waited for a core, may be added
MEMORY: Final = 128 * MIB  # that a process may have more than before
DEATHS: Final = "and is started again"  # the parent's line
VERSIONS: Final = framed(b"\0\x12\0\0\0\0\0\1\0\4good")  # ApiVersions v0
_BARE: Final = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
client, _ = server.accept()
while data := client.recv(100):
    client.sendall(data)
"""

RoundTrip = Callable[[], object]
Good = Callable[[], AbstractContextManager[RoundTrip]]


class Took(NamedTuple):
    """One question: when it was asked, and for how long it waited, in seconds.

    Attributes:
        error: what came instead of an answer.
        is_refused: one came, and said no.
    """

    began: float
    waited: float
    error: str = ""
    is_refused: bool = False


class Asking:
    """Asks the same again and again, in a thread, until the `with` ends; `took` gets what came of it."""

    def __init__(self, ask: RoundTrip, took: list[Took]) -> None:
        self._ask = ask
        self._took = took
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            began, error, is_refused = time.monotonic(), "", False
            try:
                self._ask()
            except urllib.error.HTTPError as refusal:
                refusal.close()
                is_refused = True
            except (OSError, ValueError) as failure:
                error = f"{type(failure).__name__}: {failure}"
            self._took.append(Took(began, time.monotonic() - began, error, is_refused))


class Unharmed:
    """What was seen of a gateway from the beginning of `unharmed` to its end.

    Attributes:
        ready, good, bare: the questions to /readyz, those of the client that behaves (none where there is no such
            client), and to the bare server.
        starved: the times of looks, in order, and the `starved_s` of each process then.
        more: by process, the most memory above what it had at first, in bytes.
    """

    def __init__(self, gateway: gateways.Gateway, memory: int) -> None:
        self._gateway = gateway
        self._memory = memory
        self.family = family(gateway)
        self._deaths = gateway.log().count(DEATHS)
        self._before = {name: resident(pid) for name, pid in self.family.items()}
        self.more = dict.fromkeys(self._before, 0)
        self.ready: list[Took] = []
        self.good: list[Took] = []
        self.bare: list[Took] = []
        self.starved: list[tuple[float, dict[str, float]]] = []  # the time, and each process's `starved_s` then

    def look(self) -> None:
        """Measure memory, and how long the processes have waited for a core."""
        pids = {"the test": os.getpid(), **self.family}
        self.starved.append((time.monotonic(), {name: starved_s(pid) for name, pid in pids.items()}))
        for name, pid in self.family.items():
            with suppress(OSError):  # it has ended, which is told by `faults`
                self.more[name] = max(self.more[name], resident(pid) - self._before[name])

    def late(self, took: list[Took]) -> list[Took]:
        """Those without an answer, or with a no, or that waited longer than they may, though the machine did not stand
        still.
        """
        return [each for each in took if each.error or each.is_refused or self._is_late(each)]

    def _is_late(self, took: Took) -> bool:
        # The first comparison is for an hour's 36,000 answers, each of which would be compared with as many others.
        return took.waited > PROMPT_S and took.waited > PROMPT_S + BESIDE * self._beside(took)

    def _beside(self, took: Took) -> float:
        ended = took.began + took.waited
        near = (
            bare.waited for bare in self.bare if bare.began < ended + 1 and bare.began + bare.waited > took.began - 1
        )
        return max(*near, *self._starved_s(took.began, ended), 0.0)

    def _starved_s(self, began: float, ended: float) -> list[float]:
        """For how long each process had no core in that time, at most."""
        before = [each for at, each in self.starved if at <= began]
        behind = [each for at, each in self.starved if at >= ended] or [each for _, each in self.starved[-1:]]
        return [behind[0][name] - before[-1][name] for name in before[-1]] if before else []

    def faults(self) -> list[str]:
        """What strangers have done that they must not do; none: []."""
        found = []
        now, deaths = family(self._gateway), self._gateway.log().count(DEATHS) - self._deaths
        if now != self.family or deaths:
            found.append(f"processes were {self.family} and are {now}; {deaths} deaths in the log")
        for name, took in (("/readyz", self.ready), ("the good client", self.good)):
            late = self.late(took)
            none = [each for each in late if each.error or each.waited > NO_ANSWER_S]
            if none:
                found.append(f"{name}: no answer for {len(none)} of {len(took)} questions, such as {none[0]}")
            elif len(late) > max(FEW_LATE, MOST_LATE * len(took)):
                longest = max(each.waited for each in late)
                found.append(f"{name}: {len(late)} of {len(took)} answers were late or no, up to {longest:.1f} s")
        found += [
            f"{name} had {more / MIB:.0f} MiB more, at most {self._memory / MIB:.0f} are allowed"
            for name, more in self.more.items()
            if more > self._memory
        ]
        return found


def family(gateway: gateways.Gateway) -> dict[str, int]:
    """The gateway's processes."""
    found = {"parent": gateway.process.pid}
    for pid in sorted(gateway.pids()):
        words = processes.command_of(pid).split()
        if "gateway.control" in words:
            found["control"] = pid
        elif "gateway.data" in words and "--worker" in words:
            found[f"worker {words[words.index('--worker') + 1]}"] = pid
    return found


def resident(pid: int) -> int:
    """Bytes."""
    return int((processes.PROC / str(pid) / "statm").read_text().split()[1]) * 4096


def starved_s(pid: int) -> float:
    """For how long a process's threads that run now were ready to run and had no core; 0.0 where Linux doesn't tell."""
    waited_ns = 0
    for stat in (processes.PROC / str(pid)).glob("task/*/schedstat"):
        with suppress(OSError):  # it has ended
            waited_ns += int(stat.read_text().split()[1])
    return waited_ns / 1e9


@contextmanager
def versions(port: int) -> Iterator[RoundTrip]:
    """A client that behaves, at a listener without TLS and SASL: it asks for the versions of APIs."""
    with Wire(port) as wire:

        def ask() -> None:
            wire.send(VERSIONS)
            wire.receive()

        yield ask


@contextmanager
def unharmed(
    gateway: gateways.Gateway, good: Good | None = None, *, health: str = "", memory: int = MEMORY
) -> Iterator[Unharmed]:
    """Strangers may come within it.

    Args:
        good: a client that behaves, all the time; None: there is none.
        health: where /readyz is; "": at the gateway's own place for that.
        memory: that each process may have more than before, in bytes.

    Raises:
        AssertionError: behind it, unless it was left by an error: they have done harm.
    """
    url = f"{health or gateway.health}/readyz"
    seen = Unharmed(gateway, memory)
    with _bare() as bare, good() if good is not None else nullcontext() as round_trip:
        asking = [
            Asking(lambda: _ready(url), seen.ready),
            Asking(bare, seen.bare),
            Asking(seen.look, []),
            *([Asking(round_trip, seen.good)] if round_trip is not None else []),
        ]
        for each in asking:
            each.__enter__()
        try:
            yield seen
        finally:
            for each in asking:
                each.__exit__()
    faults = seen.faults()
    assert not faults, "; ".join(faults)


@contextmanager
def _bare() -> Iterator[RoundTrip]:
    server = embedded.spawn_process([sys.executable, "-c", _BARE], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        with socket.create_connection(("127.0.0.1", int(server.stdout.readline()))) as sock:

            def ask() -> None:
                sock.sendall(b"x")
                assert sock.recv(1) == b"x"

            yield ask
    finally:
        embedded.reap_process(server)
        if server.stdout is not None:
            server.stdout.close()


def _ready(url: str) -> None:
    """
    Raises:
        OSError: it isn't, or nobody answers.
    """
    with urllib.request.urlopen(url, timeout=3 * NO_ANSWER_S) as answer:
        answer.read()
