# The parent, with real processes: who is started again, what survives whom, and how everything ends.

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import trio

from gateway import parent_link, supervisor
from gateway.channel import ProcessChannel
from gateway.embedded import find_free_port
from gateway.parent_link import KeptState, StartControl

FAMILY = Path(__file__).with_name("family.py")
DEADLINE_S = 60.0


class Family:
    """A running parent, and what its children reported."""

    def __init__(
        self, mood: Any = "", drain_s: Any = 10.0, boot: Any = None, broker: Any = None, workers: int = 1,
        delay_s: float = 0.0,
    ) -> None:  # fmt: skip
        first = find_free_port(3)
        self.boot, self.broker = boot or first, broker or first + 1
        env = {
            **os.environ,
            "FAMILY": mood,
            "FAMILY_DRAIN": str(drain_s),
            "FAMILY_DELAY": str(delay_s),
            "FAMILY_WORKERS": str(workers),
            "FAMILY_BOOT": str(self.boot),
            "FAMILY_PORT": str(self.broker),
        }
        self.process = subprocess.Popen(
            [sys.executable, str(FAMILY), "run", str(self.boot)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self._said = self.process.stdout
        self.told: list[dict[str, Any]] = []
        self._rest = b""

    def wait_for(self, who: Any, event: Any, count: Any = 1, **more: Any) -> Any:
        """The count-th event like this."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = [t for t in self.told if {**t, "who": who, "event": event, **more} == t]
            if len(found) >= count:
                return found[count - 1]
            left = deadline - time.monotonic()
            assert left > 0, f"no {who} {event} {more} x {count} in {self.told}"
            if select.select([self._said], [], [], left)[0]:
                data = os.read(self._said.fileno(), 65536)
                assert data, f"the family ended without {who} {event} {more}: {self.told} {self.process.communicate()}"
                *lines, self._rest = (self._rest + data).split(b"\n")
                self.told += [json.loads(line) for line in lines]

    def running(self) -> Any:
        """Pids of all children, once all are up."""
        self.wait_for("control", "listening", name="broker 1")
        hello = self.wait_for("control", "hello")
        return self.wait_for("control", "started")["pid"], hello["worker_pid"]

    def end(self) -> Any:
        """Exit code and log."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        self.told += [json.loads(line) for line in (self._rest + out).splitlines()]
        self._rest = b""
        return self.process.returncode, err.decode()


@pytest.fixture
def start() -> Iterator[Any]:
    families = []

    def start(*args: Any, **kwargs: Any) -> Any:
        families.append(Family(*args, **kwargs))
        return families[-1]

    yield start
    for family in families:
        for pid in {told["pid"] for told in family.told} | {family.process.pid}:
            with contextlib.suppress(ProcessLookupError):
                if pid == family.process.pid or is_alive(pid):
                    os.kill(pid, signal.SIGKILL)
        family.process.communicate(timeout=DEADLINE_S)


def is_alive(pid: Any) -> Any:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Any, what: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_control_gets_the_settings_and_the_sockets_that_are_open_and_the_only_worker_no_memory(start: Any) -> None:
    family = start()
    family.running()
    assert family.wait_for("control", "started")["settings"] == "{}"
    assert family.wait_for("control", "started")["inherited"] == ["bootstrap"]
    assert family.wait_for("worker", "born")["starts"] == []
    for name, port in (("bootstrap", family.boot), ("broker 1", family.broker)):
        socket.create_connection(("127.0.0.1", port)).close()
        family.wait_for("control", "accepted", name=name)


def test_a_worker_that_dies_is_started_again_and_control_stays(start: Any) -> None:
    family = start()
    control, worker = family.running()
    os.kill(worker, signal.SIGKILL)
    again = family.wait_for("control", "hello", restarts=1)
    assert again["worker_pid"] != worker
    assert again["pid"] == control
    family.wait_for("control", "channel closed")
    family.process.terminate()
    code, log = family.end()
    assert code == 0
    assert "worker 0 ended (SIGKILL) and is started again" in log


def test_workers_share_memory_that_outlives_each_of_them_and_control_has_none(start: Any) -> None:
    family = start(workers=2)
    first, _ = (family.wait_for("worker", "born", number=number) for number in "01")
    os.kill(first["pid"], signal.SIGKILL)
    again = family.wait_for("worker", "born", starts=[2, 1])
    assert again["pid"] != first["pid"]
    assert family.wait_for("control", "born")["starts"] == []


def test_a_control_that_dies_gets_the_listeners_again_and_the_worker_stays(start: Any) -> None:
    family = start()
    control, worker = family.running()
    os.kill(control, signal.SIGKILL)
    wait_until(lambda: not is_alive(control), "control is dead")
    waiting = socket.create_connection(("127.0.0.1", family.broker))  # nobody accepts, nobody refuses
    second = family.wait_for("control", "started", count=2)
    assert second["pid"] != control
    assert second["inherited"] == ["bootstrap", "broker 1"]
    assert family.wait_for("control", "hello", pid=second["pid"])["worker_pid"] == worker
    family.wait_for("control", "accepted", pid=second["pid"], name="broker 1")
    waiting.close()


def test_a_port_in_use_at_start_is_one_clear_line_and_exit_code_1(start: Any) -> None:
    with socket.create_server(("127.0.0.1", find_free_port())) as other:
        port = other.getsockname()[1]
        family = start(boot=port)
        code, log = family.end()
    assert code == 1
    assert log == f"can't listen on 127.0.0.1:{port}: Address already in use\n"
    assert [told["event"] for told in family.told] == ["started"]  # no child was started


def test_a_port_that_control_asks_for_in_vain_is_its_own_affair(start: Any) -> None:
    with socket.create_server(("127.0.0.1", find_free_port())) as other:
        family = start(broker=other.getsockname()[1])
        refused = family.wait_for("control", "refused", name="broker 1")
        assert refused["error"] == f"127.0.0.1:{family.broker}: Address already in use"
        family.wait_for("control", "hello")


@pytest.mark.parametrize(
    ("number", "to_all"),
    [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGINT, True)],
)
def test_a_signal_ends_all_in_order_also_one_to_the_whole_process_group(start: Any, number: Any, to_all: bool) -> None:
    family = start(drain_s=10)
    control, worker = family.running()
    if to_all:
        os.killpg(family.process.pid, number)  # a terminal's Ctrl-C, systemd's KillMode=control-group
    else:
        family.process.send_signal(number)
    code, log = family.end()
    assert code == 0
    # Workers end first, then control, so it hears what they say last; all of it before the deadline.
    assert family.wait_for("worker", "stop")["timeout"] == pytest.approx(7)
    assert family.wait_for("control", "stop")["timeout"] == pytest.approx(9)
    assert not is_alive(control)
    assert not is_alive(worker)
    assert "started again" not in log
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", family.broker))


def test_a_hangup_ends_nobody_and_is_told_to_control(start: Any) -> None:
    family = start()
    before = family.running()
    os.killpg(family.process.pid, signal.SIGHUP)  # as the end of a terminal does
    os.kill(before[1], signal.SIGHUP)
    family.wait_for("control", "reload")
    with socket.create_connection(("127.0.0.1", family.boot), timeout=DEADLINE_S):
        family.wait_for("control", "accepted", name="bootstrap")
    assert all(is_alive(pid) for pid in before)
    family.process.send_signal(signal.SIGTERM)
    code, log = family.end()
    assert (code, log.count("SIGHUP: reading the configuration again")) == (0, 1), log
    assert len([told for told in family.told if told["event"] == "started"]) == 2  # parent and control, once each


def test_a_configuration_that_was_adopted_is_that_of_later_controls_and_of_the_end(start: Any) -> None:
    family = start("adopt", drain_s=10)
    control, _ = family.running()
    assert family.wait_for("control", "started")["files"] == []
    family.process.send_signal(signal.SIGHUP)
    family.wait_for("control", "adopted")
    os.kill(control, signal.SIGKILL)
    second = family.wait_for("control", "started", count=2)
    assert (second["settings"], second["files"], second["was_up"]) == ('{"new": 1}', ["gw.yaml"], True)
    assert (second["thresholds"], second["gateways"]) == ("[1,{}]", 3)
    family.process.send_signal(signal.SIGTERM)
    assert family.end()[0] == 0
    assert family.wait_for("control", "stop")["timeout"] == pytest.approx(27)


def test_between_not_ready_and_closed_connections_are_still_accepted(start: Any) -> None:
    family = start(delay_s=3600)
    control, _ = family.running()
    family.process.send_signal(signal.SIGTERM)
    assert family.wait_for("control", "leaving")["stopping"] is False
    with socket.create_connection(("127.0.0.1", family.boot), timeout=DEADLINE_S):
        family.wait_for("control", "accepted", name="bootstrap")
    os.kill(control, signal.SIGKILL)
    family.wait_for("control", "leaving", 2)  # the next control knows as well
    family.process.send_signal(signal.SIGTERM)  # the rest of the delay isn't waited for
    code, log = family.end()
    assert code == 0
    assert log.index("SIGTERM: not ready any more; no new connections in 3600 s") < log.index("SIGTERM: finishing,")
    assert "killed" not in log


@pytest.mark.parametrize(("number", "delay_s"), [(signal.SIGTERM, 0.1), (signal.SIGINT, 3600)])
def test_the_delay_ends_by_itself_and_an_interrupt_has_none(start: Any, number: Any, delay_s: float) -> None:
    family = start(delay_s=delay_s)
    family.running()
    family.process.send_signal(number)
    code, log = family.end()
    assert (code, "finishing, at most 10 s" in log) == (0, True)
    assert ("not ready any more" in log) == (number == signal.SIGTERM)


def test_a_child_that_does_not_finish_in_time_is_killed(start: Any) -> None:
    family = start("stubborn", drain_s=1)
    _, worker = family.running()
    family.process.terminate()
    code, log = family.end()
    assert code == 0
    assert "worker 0 did not finish within 1 s and is killed" in log
    assert not is_alive(worker)


def test_a_control_that_dies_during_a_stop_is_started_again_while_a_worker_waits_for_it(start: Any) -> None:
    family = start("stubborn", drain_s=1000)
    control, worker = family.running()
    os.kill(control, signal.SIGSTOP)  # else it has ended by itself
    family.process.terminate()
    family.wait_for("worker", "stop")
    os.kill(control, signal.SIGKILL)
    second = family.wait_for("control", "started", count=2)
    assert (second["inherited"], second["was_up"]) == ([], True)
    assert 0 < family.wait_for("control", "stop", pid=second["pid"])["timeout"] < 900
    os.kill(worker, signal.SIGKILL)
    code, log = family.end()
    assert code == 0
    assert log.count("is started again") == 1  # the second one ended in order
    assert "killed" not in log


@pytest.mark.parametrize("why", ["its time is up", "the worker has ended", "another signal"])
async def test_no_pause_before_another_control_makes_a_stop_longer(
    why: Any, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    start = StartControl(b"{}", kept=KeptState(was_up=True))
    parent = supervisor._ProcessSupervisor(start, 1, 0, (0.0, 20.0), supervisor.child_command)
    monkeypatch.setattr(parent, "_run_child", AsyncMock(return_value=-signal.SIGKILL))
    (worker,) = parent._workers
    worker.channel = Mock()
    parent._stop_children()
    since = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parent._keep_running, parent._control)
        await trio.sleep(15)  # it dies each time: the pause is 10 s now, from the 13th second on
        if why == "the worker has ended":
            worker.channel = None
        elif why == "another signal":
            parent._stop_by = trio.current_time()
    assert trio.current_time() - since <= (20 if why == "its time is up" else 15) + 2 * supervisor.STOP_CHECK_S


def test_a_second_signal_ends_at_once(start: Any) -> None:
    family = start("stubborn", drain_s=1000)
    family.running()
    family.process.terminate()
    family.wait_for("worker", "stop")
    family.process.terminate()
    assert "SIGTERM once more: ending at once" in family.end()[1]


@pytest.mark.parametrize("mood", ["", "deaf"])
def test_children_do_not_outlive_a_parent_that_is_killed(start: Any, mood: Any) -> None:
    if mood == "deaf" and sys.platform != "linux":
        pytest.skip("only Linux has PR_SET_PDEATHSIG")
    family = start(mood)
    pids = [family.wait_for(who, "born")["pid"] for who in ("control", "worker")]
    family.process.kill()
    for pid in pids:
        wait_until(lambda pid=pid: not is_alive(pid), f"{pid} ended with its parent")


@pytest.mark.parametrize(
    ("mood", "again", "line"),
    [
        ("crash", ("worker", "born"), "worker 0 ended (exit code 3)"),
        ("break", ("control", "hello"), "worker 0 and control lost"),
    ],
)
def test_a_child_that_keeps_dying_and_a_channel_that_keeps_breaking_are_replaced_at_longer_and_longer_intervals(
    start: Any, mood: str, again: tuple[str, str], line: str
) -> None:
    family = start(mood)
    family.wait_for(*again, count=4)
    family.process.terminate()
    log = family.end()[1]
    pauses = [each.rpartition(" in ")[2] for each in log.splitlines() if each.startswith(line)]
    assert pauses[:3] == ["0.1 s", "0.2 s", "0.4 s"]


def test_a_child_that_cannot_be_started_is_tried_again_and_the_others_stay(start: Any) -> None:
    family = start("vanish")
    control, worker = family.running()
    os.kill(worker, signal.SIGKILL)
    later = family.wait_for("control", "hello", count=2)
    assert later["worker_pid"] != worker
    assert is_alive(control)
    family.process.terminate()
    code, log = family.end()
    assert code == 0
    assert "worker 0 can't be run ([Errno 2] No such file or directory: '/no/such/python') and is started again" in log


async def test_a_channel_whose_descriptor_was_lost_is_asked_for_again(nursery: trio.Nursery) -> None:
    ours, theirs = socket.socketpair()
    parent: ProcessChannel[Any, parent_link.ToParent] = ProcessChannel(ours, parent_link.decode_for_parent)
    link = parent_link.ParentLink(theirs)
    nursery.start_soon(link.run)
    nursery.start_soon(parent.run)
    parent.post(parent_link.NewChannel(worker=3, restarts=0, control=0))  # as it arrives where there are too many files
    with contextlib.closing(parent), trio.fail_after(DEADLINE_S):
        assert await parent.receive() == (parent_link.ReconnectRequest(3), -1)
        nursery.cancel_scope.cancel()


def test_control_can_give_up_for_all(start: Any) -> None:
    family = start("give-up")
    code, log = family.end()
    assert code == 1
    assert "no spool to write to" in log
    assert "started again" not in log


def test_once_all_was_up_no_control_ends_the_gateway(start: Any) -> None:
    family = start("give-up-later")
    control, worker = family.running()
    os.kill(control, signal.SIGKILL)
    later = family.wait_for("control", "started", count=3, was_up=True)  # the second one gave up, and ended
    assert later["pid"] != control
    assert is_alive(worker)
    family.process.terminate()
    code, log = family.end()
    assert code == 0
    assert "no spool to write to" in log


def test_pauses_grow_to_a_bound_and_begin_anew_after_a_child_that_lived_long() -> None:
    backoff = supervisor.RestartBackoff()
    assert [backoff.next_pause(0.0) for _ in range(9)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10])
    assert [backoff.next_pause(lived) for lived in (supervisor.STEADY_S, 0.0)] == [0.1, 0.2]


@pytest.mark.parametrize(
    ("host", "port", "why"),
    [
        ("127.0.0.1", 70000, "a port is at most 65535"),
        ("no-such-host.invalid", 32099, "no-such-host.invalid:32099: "),
        ("192.0.2.1", 32099, "192.0.2.1:32099: Cannot assign requested address"),
    ],
)
def test_an_address_that_cannot_be_opened_says_which_and_why(host: Any, port: Any, why: Any) -> None:
    with pytest.raises(parent_link.ListenFailed, match=why):
        supervisor.open_listener(host, port)


def test_ipv6_listens_too() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        sock = supervisor.open_listener("::1", find_free_port())
    except parent_link.ListenFailed:
        pytest.skip("this machine has no ::1")
    with sock, socket.create_connection(sock.getsockname()[:2]):
        pass


async def test_each_of_many_workers_that_dies_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """More children than there are threads that trio shares out."""

    def program(number: int) -> list[str]:
        return ["/bin/sh", "-c", "exec sleep 600", "child"]

    start = parent_link.StartControl(b"{}")
    family = supervisor._ProcessSupervisor(start, 41, 0, (0.0, DEADLINE_S), program)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(family.run)
            for worker, restarts in ((family._workers[0], 1), (family._workers[0], 2), (family._workers[40], 1)):
                while worker.channel is None or worker.restarts != restarts - 1:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                worker.kill()
                while worker.restarts != restarts:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


def test_a_control_that_missed_a_listening_socket_is_given_the_one_that_is_open() -> None:
    """Clients wait at it. It had too many open files, and asks for the address once more."""
    parent = supervisor._ProcessSupervisor(parent_link.StartControl(b"{}"), 1, 0, (0.0, 20.0), supervisor.child_command)
    port = find_free_port(2)
    other_port = port + 1
    first = parent.open_socket("broker 1", "127.0.0.1", port)
    with socket.create_connection(("127.0.0.1", port)):
        assert parent.open_socket("broker 1", "127.0.0.1", port) is first
        first.accept()[0].close()
    moved = parent.open_socket("broker 1", "127.0.0.1", other_port)
    assert (first.fileno(), moved.getsockname()[1]) == (-1, other_port), "one address for each name"
    parent.close_socket("broker 1")
    assert moved.fileno() == -1


async def test_no_descriptors_for_a_new_channel_just_now_ends_no_child(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    parent = supervisor._ProcessSupervisor(parent_link.StartControl(b"{}"), 1, 0, (0.0, 20.0), supervisor.child_command)
    (worker,) = parent._workers
    channels = parent._control.channel, worker.channel = Mock(), Mock()
    pair, shortage = socket.socketpair(), OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr(socket, "socketpair", Mock(side_effect=[shortage, shortage, pair]))
    with trio.fail_after(60):
        await parent._reconnect_worker(worker)
    for channel in channels:
        (message, descriptor), _ = channel.post.call_args
        assert message == parent_link.NewChannel(0, -1, -1)
        os.close(descriptor)
