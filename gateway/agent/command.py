# `produce-gateway volume-agent`: the process. The main thread only waits for a signal. All else is one daemon thread,
# since neither a file system that hangs nor a cluster that doesn't answer may keep the process from ending.

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from confluent_kafka import KafkaException
from prometheus_client import disable_created_metrics, start_http_server

from gateway.agent.arguments import read_settings
from gateway.agent.metrics import AgentMetrics
from gateway.agent.publishing import STOP_S, VolumeAgent
from gateway.agent.settings import AgentSettings, SettingsError
from gateway.log.logs import DefaultLogSettings, configure_logging
from gateway.system.process_exit import exit_process

log = logging.getLogger("gateway.volume-agent")


def main(argv: Sequence[str]) -> int:
    """Run the agent until SIGTERM or SIGINT, and end the process; the result is the exit code where it can't begin."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        settings = read_settings(argv)
        # Before any thread: all of them inherit it, and the signal waits for `sigwait`.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        configure_logging(DefaultLogSettings(settings.log_format))
        metrics = AgentMetrics(settings.log_dirs)
        agent = VolumeAgent(settings, metrics)
        _serve_metrics(settings.metrics, metrics)
    except SettingsError as error:
        return _print_error(str(error))
    except KafkaException as error:
        return _print_error(f"kafka: {error.args[0].str()}")
    _log_start(settings)
    return _run_until_signal(agent)


def _run_until_signal(agent: VolumeAgent) -> NoReturn:
    ended: list[bool] = []
    worker = threading.Thread(target=_run_agent, args=(agent, ended), name="publish", daemon=True)
    worker.start()
    number = signal.sigwait((signal.SIGTERM, signal.SIGINT))
    if ended:
        exit_process(1)
    agent.stop_requested.set()
    worker.join(STOP_S)
    log.info("stopped by %s", signal.Signals(number).name)
    exit_process(0)  # the thread may be in a call that doesn't come back


def _run_agent(agent: VolumeAgent, ended: list[bool]) -> None:
    try:
        agent.run()
    except Exception:
        log.exception("the agent ends because of a bug")
        ended.append(True)
        os.kill(os.getpid(), signal.SIGTERM)


def _serve_metrics(address: str, metrics: AgentMetrics) -> None:
    if address == "off":
        return
    host, _, port = address.rpartition(":")
    try:
        start_http_server(int(port), host.strip("[]"), metrics.registry)
    except (OSError, socket.gaierror) as error:
        raise SettingsError(f"--metrics {address}: {error.strerror or error}") from None


def _log_start(settings: AgentSettings) -> None:
    soft, hard = (str(limit or "the gateway's") for limit in (settings.soft, settings.hard))
    log.info(
        "volume agent of broker %d: %s every %g s to topic %s at %s; soft limit: %s, hard limit: %s; metrics: %s",
        settings.broker_id,
        ", ".join(settings.log_dirs),
        settings.interval,
        settings.topic,
        settings.client_properties()["bootstrap.servers"],
        soft,
        hard,
        settings.metrics,
    )


def _print_error(line: str) -> int:
    sys.stderr.write(f"{line}\n")
    return 1
