# The agent's configuration: flags and file.

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gateway.agent.arguments import read_settings
from gateway.agent.settings import SettingsError
from policies.storage import VolumeLimit

ROOT = Path(__file__).parent.parent.parent.parent
BASE = ["--broker-id", "1", "--log-dirs", "/a,/b"]


def test_flags_and_defaults() -> None:
    settings = read_settings(["--broker-id", "0", "--log-dirs", "/a, /b,/a"])
    assert (settings.broker_id, settings.log_dirs, settings.interval) == (0, ("/a", "/b"), 30.0)
    assert (settings.soft, settings.hard) == (None, None)
    assert settings.metrics == "127.0.0.1:9191"
    assert settings.client_properties()["bootstrap.servers"] == "127.0.0.1:9092"


def test_limits_intervals_and_properties() -> None:
    flags = ["--soft", "MinFreePercentage:20", "--hard", "MinFreeBytes:10GB", "--interval", "PT1M"]
    settings = read_settings([*BASE, *flags, "--kafka", "kafka.ssl.key.password=a=b", "--kafka", "retries=3"])
    assert settings.soft == VolumeLimit("MinFreePercentage", 0.2)
    assert settings.hard == VolumeLimit("MinFreeBytes", 1e10)
    assert settings.interval == 60.0
    assert settings.kafka == {"ssl.key.password": "a=b", "retries": "3"}
    assert read_settings([*BASE, "--interval", "90s"]).interval == 90.0


@pytest.mark.seed("035.14")
def test_the_file_has_the_same_names_and_flags_win(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("geheim\n")
    path = tmp_path / "agent.yaml"
    path.write_text(
        f"""
broker-id: 5
log_dirs: [/a, /b]
interval: PT10S
soft: {{type: MinFreePercentage, level: 30}}
hard: ConsumedBytes:5GiB
kafka.security.protocol: SSL
kafka: {{ssl.key.password: {{file: {tmp_path}/secret}}, socket.keepalive.enable: true}}
volumes:
  /b: {{soft: none, hard: MinFreeBytes:1MB}}
metrics: off
""".replace("metrics: off", "metrics: 'off'")
    )
    settings = read_settings(["--config", str(path), "--interval", "5s", "--volume-soft", "/a=MinFreeBytes:2MB"])
    assert (settings.broker_id, settings.log_dirs, settings.interval) == (5, ("/a", "/b"), 5.0)
    assert settings.kafka == {
        "security.protocol": "SSL",
        "ssl.key.password": "geheim",
        "socket.keepalive.enable": "true",
    }
    assert settings.client_properties().items() >= settings.kafka.items()
    assert settings.find_limits(["/a"]) == (VolumeLimit("MinFreeBytes", 2e6), VolumeLimit("ConsumedBytes", 5.0 * 2**30))
    assert settings.find_limits(["/b"]) == (None, VolumeLimit("MinFreeBytes", 1e6))
    assert settings.find_limits(["/a", "/b"]) == (VolumeLimit("MinFreeBytes", 2e6), VolumeLimit("MinFreeBytes", 1e6))


def test_examples_of_the_documentation_are_accepted(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "storage.md").read_text("utf-8")
    (command,) = re.findall(r"^produce-gateway volume-agent (.*)$", page, re.MULTILINE)
    assert read_settings(shlex.split(command)).log_dirs == ("/data/1", "/data/2")
    (text,) = (each for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "broker_id" in each)
    path = tmp_path / "volume-agent.yaml"
    path.write_text(text)
    settings = read_settings(["--config", str(path)])
    assert settings.find_limits(["/data/2"]) == (None, VolumeLimit("MinFreePercentage", 0.05))
    assert settings.kafka["ssl.key.location"] == "/etc/produce-gateway/agent.key"
    unit = (ROOT / "deploy" / "systemd" / "produce-gateway-volume-agent.service").read_text("utf-8")
    (line,) = re.findall(r"^ExecStart=\S+/produce-gateway volume-agent (.*)$", unit, re.MULTILINE)
    assert line == "--config /etc/produce-gateway/volume-agent.yaml"
    assert "`/etc/produce-gateway/volume-agent.yaml`" in page


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ([], "--broker-id is required (or broker_id in --config)"),
        (["--broker-id", "1"], "--log-dirs is required (or log_dirs in --config)"),
        (["--broker-id", "-1", "--log-dirs", "/a"], "--broker-id: should be greater than or equal to 0, not '-1'"),
        (
            ["--broker-id", "1", "--log-dirs", "/a,,/b"],
            "--log-dirs: paths are needed, with commas between them, as in the broker's log.dirs",
        ),
        (
            [*BASE, "--soft", "MinFreePercentage:0.2"],
            "--soft: '0.2': MinFreePercentage is a whole percentage from 1 to 100 here, such as 20",
        ),
        (
            [*BASE, "--soft", "Free:1"],
            "--soft: 'Free' is not a valid type of limit; there are ConsumedBytes, MinFreeBytes, MinFreePercentage",
        ),
        (
            [*BASE, "--hard", "10GB"],
            "--hard: '10GB' is not a valid limit; for example: MinFreeBytes:10GB or MinFreePercentage:20",
        ),
        (
            [*BASE, "--hard", "MinFreeBytes:0"],
            "--hard: '0': a size above 0 is needed, such as 10GB; for no limit leave it out",
        ),
        ([*BASE, "--interval", "PT0S"], "--interval: 'PT0S': between 1s and 1h is needed, such as PT30S or 30s"),
        ([*BASE, "--metrics", "9191"], "--metrics: '9191' is neither HOST:PORT nor off"),
        ([*BASE, "--kafka", "acks"], "--kafka acks: write KEY=VALUE, for example security.protocol=SSL"),
        (
            [*BASE, "--volume-soft", "/c=MinFreeBytes:1"],
            "volumes: /c is not one of the log dirs /a, /b",
        ),
        (
            [*BASE, "--soft", "MinFreeBytes:1MB", "--hard", "MinFreeBytes:2MB"],
            "the soft limit (MinFreeBytes 1.0 MB) would be reached after the hard one (MinFreeBytes 2.0 MB)",
        ),
        (
            [*BASE, "--soft", "ConsumedBytes:2MB", "--volume-hard", "/b=ConsumedBytes:1MB"],
            "volumes: /b: the soft limit (ConsumedBytes 2.0 MB) would be reached after the hard one"
            " (ConsumedBytes 1.0 MB)",
        ),
        (
            [*BASE, "--hard", "MinFreePercentage:100"],
            "the hard limit (MinFreePercentage 100 %) would always hold all producers: no more can ever be free",
        ),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: can't be read: No such file or directory"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_mistakes_are_one_line(flags: list[str], line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(flags)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("broker_id: 1\nlog_dir: /a", " log_dir: unknown key; did you mean log_dirs?"),
        ("broker_id: 1\nzzz: /a", " zzz: unknown key; known here: broker_id, log_dirs, "),
        ("broker_id: 1\nlog_dirs: /a\nvolumes: [/a]", " volumes: keys with values are needed here"),
        (
            "broker_id: 1\nlog_dirs: /a\nvolumes: {/a: {soft: 5}}",
            " volumes./a.soft: 5 is not a valid limit; for example: MinFreeBytes:10GB",
        ),
        ("broker_id: yes\nlog_dirs: /a", " broker_id: a number is needed here, not true or false"),
        ("broker_id: 1\nlog_dirs: /a\nreplication: on", " replication: a number is needed here, not true or false"),
        ("- a", " keys such as broker_id: and log_dirs: are needed at the top level"),
        ("broker_id: 1\nlog_dirs: /a\nbroker_id: 2\n", "3: broker_id is there twice"),
    ],
)
def test_mistakes_in_the_file_name_it(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_settings(["--config", str(path)])
    assert str(caught.value).startswith(f"{path}:{line}")


def test_a_secret_s_file_that_is_missing_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("{broker_id: 1, log_dirs: [/a], kafka.sasl.password: {file: /nowhere}}", "utf-8")
    with pytest.raises(SettingsError) as caught:
        read_settings(["--config", str(path)])
    assert str(caught.value) == "kafka.sasl.password: file /nowhere can't be read: No such file or directory"
