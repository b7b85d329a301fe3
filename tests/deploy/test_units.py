# systemd's units: its own programs judge them where they are installed, and what these can't know is looked at here:
# that commands and paths are the program's, and that stopping takes no longer than the unit waits.

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway import cli
from gateway.config import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
MOST_EXPOSED = 1.5  # of 10, by `systemd-analyze security`; the pages say 1.3
# What each of them is shut off from. RemoveIPC is the gateway's alone: the agent's user is the broker's.
SHUT_OFF = {
    "AmbientCapabilities": "",
    "CapabilityBoundingSet": "",
    "LockPersonality": "yes",
    "MemoryDenyWriteExecute": "yes",
    "NoNewPrivileges": "yes",
    "PrivateDevices": "yes",
    "PrivateTmp": "yes",
    "PrivateUsers": "yes",
    "ProtectClock": "yes",
    "ProtectControlGroups": "yes",
    "ProtectHome": "yes",
    "ProtectHostname": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectProc": "invisible",
    "ProtectSystem": "strict",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallArchitectures": "native",
    "SystemCallErrorNumber": "EPERM",
    "SystemCallFilter": "~@privileged @resources",  # the last of two lines
    "UMask": "0077",
}
# In CI nothing is skipped: there a missing program is a failure.
MISSING = shutil.which("systemd-analyze") is None and not os.environ.get("CI")
with_systemd = pytest.mark.skipif(MISSING, reason="systemd-analyze is not installed")


class _Unit(configparser.RawConfigParser):
    """Keys keep their case, and may be there several times: their values are lines of one."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def read(path: Path) -> _Unit:
    unit = _Unit(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#", ";"))
    unit.read_string(path.read_text("utf-8"))
    return unit


def runnable(path: Path, folder: Path) -> Path:
    """The unit with programs that exist here, since systemd looks for them."""
    program = folder / "produce-gateway"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = folder / path.name
    copy.write_text(path.read_text("utf-8").replace("/opt/produce-gateway/bin/produce-gateway", str(program)))
    return copy


@with_systemd
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_understands_it(path: Path, tmp_path: Path) -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(runnable(path, tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    own = [line for line in done.stderr.splitlines() if path.name in line]
    assert (done.returncode, own) == (0, [])


@with_systemd
def test_systemd_would_see_a_key_that_there_is_not(tmp_path: Path) -> None:
    path = runnable(UNITS[0], tmp_path)
    path.write_text(path.read_text().replace("[Service]", "[Service]\nProtectSystems=strict"))
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert "ProtectSystems" in done.stderr


@with_systemd
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_each_is_exposed_to_little(path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    found = re.search(r"exposure level for [\w.-]+: (\d+\.\d+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= MOST_EXPOSED


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_each_is_shut_off_from_the_same(path: Path) -> None:
    service = read(path)["Service"]
    assert {key: service.get(key) for key in SHUT_OFF} == SHUT_OFF
    assert "SystemCallFilter=@system-service\n" in path.read_text("utf-8")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_commands_are_the_programs(path: Path) -> None:
    service = read(path)["Service"]
    commands = [service[key] for key in ("ExecStartPre", "ExecStart") if key in service]
    assert commands
    for command in commands:
        program, name, *rest = command.split()
        assert program.endswith("/bin/produce-gateway")
        assert name in cli._command_names()
        assert [word for word in rest if word.startswith("/etc/produce-gateway/")]


def test_the_gateway_has_time_to_drain_and_room_for_its_connections() -> None:
    service = read(FOLDER / "produce-gateway.service")["Service"]
    fields = Settings.model_fields
    assert int(service["TimeoutStopSec"]) > fields["shutdown_delay"].default + fields["drain_timeout"].default + 10
    limits = fields["limits"].default
    assert int(service["LimitNOFILE"]) > 2 * limits.max_connections
    assert service["KillMode"] == "mixed"  # SIGTERM to the parent alone


def test_its_user_is_made_and_its_state_is_where_it_works() -> None:
    service = read(FOLDER / "produce-gateway.service")["Service"]
    sysusers = (FOLDER / "produce-gateway.sysusers").read_text("utf-8")
    assert re.search(rf"^u {service['User']} ", sysusers, re.MULTILINE)
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
