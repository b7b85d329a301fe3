# A family of processes for test_supervisor.py: the real parent with children that tell on stdout what happens to them.
#
#   family.py run PORT    the parent; "bootstrap" listens on PORT
#   family.py control | worker   its children, by their own start
#
# FAMILY says how children misbehave: stubborn (never ends), crash (dies at once), give-up, vanish (there is no program
# at their second start). "broker 1" listens on FAMILY_PORT. Of FAMILY_WORKERS, if there are several, each counts its
# starts in the memory that they share.

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import Counter
from itertools import pairwise

import trio

from gateway import parent_link, supervisor
from gateway.channel import (
    ChannelClosed,
    ProcessChannel,
    ToControl,
    ToWorker,
    WorkerHello,
    decode_for_control,
    decode_for_worker,
)
from gateway.system.shared_memory import SharedMemoryRegion

MOOD = os.environ.get("FAMILY", "")
WORKERS = int(os.environ.get("FAMILY_WORKERS", "1"))


def tell(who: str, event: str, **more: object) -> None:
    line = json.dumps({"who": who, "pid": os.getpid(), "event": event, **more}) + "\n"
    os.write(1, line.encode())  # in one piece: three processes share this pipe


def parent() -> int:
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    port, drain_timeout_s = int(sys.argv[2]), float(os.environ.get("FAMILY_DRAIN", "10"))
    tell("parent", "started")

    starts: Counter[int] = Counter()

    def program(number: int) -> list[str]:
        starts[number] += 1
        if MOOD == "vanish" and starts[number] == 2:
            return ["/no/such/python"]
        return [sys.executable, __file__, "control" if number == supervisor.CONTROL_NUMBER else "worker"]

    listeners = {"bootstrap": ("127.0.0.1", port)}
    return supervisor.run_gateway(
        b"{}",
        listeners,
        workers=WORKERS,
        memory_bytes=WORKERS if WORKERS > 1 else 0,
        drain_timeout_s=drain_timeout_s,
        shutdown_delay_s=float(os.environ.get("FAMILY_DELAY", "0")),
        program=program,
    )


async def control(link: parent_link.ParentLink) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await link.started.wait()
        tell(
            "control", "started",
            settings=link.settings.decode(), inherited=sorted(link.inherited), was_up=link.kept.was_up,
            files=link.origin.files, thresholds=link.kept.thresholds.decode(), gateways=link.kept.gateways,
        )  # fmt: skip
        if MOOD == "give-up" or (MOOD == "give-up-later" and link.kept.was_up):
            await link.give_up("no spool to write to")
            if link.kept.was_up:
                nursery.cancel_scope.cancel()
                return
        link.keep(was_up=True)
        for name, port in (("bootstrap", int(os.environ["FAMILY_BOOT"])), ("broker 1", int(os.environ["FAMILY_PORT"]))):
            try:
                sock = await link.listen(name, "127.0.0.1", port)
            except parent_link.ListenFailed as error:
                tell("control", "refused", name=name, error=str(error))
            else:
                tell("control", "listening", name=name)
                nursery.start_soon(accept, name, sock)
        nursery.start_soon(follow, link, nursery)
        nursery.start_soon(tell_leaving, link)
        nursery.start_soon(tell_reload, link)
        await link.stopping.wait()
        tell("control", "stop", timeout=link.drain_timeout_s)
        nursery.cancel_scope.cancel()


async def tell_leaving(link: parent_link.ParentLink) -> None:
    await link.leaving.wait()
    tell("control", "leaving", stopping=link.stopping.is_set())


async def tell_reload(link: parent_link.ParentLink) -> None:
    while True:
        await link.reload.wait()
        link.reload = trio.Event()
        tell("control", "reload")
        if MOOD == "adopt":
            link.adopt_config(
                parent_link.AdoptConfig(b'{"new": 1}', parent_link.ConfigOrigin(("gw.yaml",), 5), 0.0, 30.0)
            )
            link.keep(thresholds=b"[1,{}]")
            link.keep(gateways=3)
            # Messages are read in their order: with this answer the parent has these.
            (await link.listen("again", "127.0.0.1", int(os.environ["FAMILY_BOOT"]) + 2)).close()
            tell("control", "adopted")


async def accept(name: str, sock: object) -> None:
    listener = trio.socket.from_stdlib_socket(sock)  # type: ignore[arg-type]
    while True:
        client, _ = await listener.accept()
        client.close()
        tell("control", "accepted", name=name)


async def follow(link: parent_link.ParentLink, nursery: trio.Nursery) -> None:
    while True:
        message, sock = await link.next_channel()
        nursery.start_soon(greet, link, message.restarts, ProcessChannel(sock, decode_for_control))


async def greet(link: parent_link.ParentLink, restarts: int, channel: ProcessChannel[ToWorker, ToControl]) -> None:
    try:
        hello, _ = await channel.receive()
        assert isinstance(hello, WorkerHello)
        tell("control", "hello", worker_pid=hello.pid, restarts=restarts)
        if MOOD == "break":
            channel.close()
            link.request_reconnect(0)
            return
        await channel.receive()
    except ChannelClosed:
        tell("control", "channel closed")


async def worker(link: parent_link.ParentLink) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        nursery.start_soon(say_hello, link, nursery)
        await link.stopping.wait()
        tell("worker", "stop", timeout=link.drain_timeout_s)
        if MOOD == "stubborn":
            await trio.sleep_forever()
        nursery.cancel_scope.cancel()


async def say_hello(link: parent_link.ParentLink, nursery: trio.Nursery) -> None:
    while True:
        channel = ProcessChannel[ToControl, ToWorker]((await link.next_channel())[1], decode_for_worker)
        channel.post(WorkerHello(1, 0, os.getpid(), "boot"))
        nursery.start_soon(hold, channel)


async def hold(channel: ProcessChannel[ToControl, ToWorker]) -> None:
    await channel.run()
    channel.close()


def child(who: str) -> int:
    args = dict(pairwise(sys.argv))
    link = parent_link.attach_to_parent(int(args["--fd"]))
    starts: list[int] = []
    if "--memory" in args:
        assert int(args["--workers"]) == WORKERS
        memory = SharedMemoryRegion(int(args["--memory"]))
        with memory.hold_lock():
            memory.view[int(args["--worker"])] += 1
            starts = list(memory.view)
    tell(who, "born", number=args.get("--worker"), starts=starts)
    if MOOD == "crash" and who == "worker":
        return 3
    if MOOD == "deaf":  # hears of nothing, not even of its parent's end
        time.sleep(600)
    code = 0
    try:
        trio.run({"control": control, "worker": worker}[who], link)
    except* parent_link.ParentGone:
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(parent() if sys.argv[1] == "run" else child(sys.argv[1]))
