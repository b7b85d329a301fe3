# Several limits at once, as they are written, and as they are shown where one of them is reached.

from __future__ import annotations

import pytest
from trio.testing import MockClock

from gateway.cli import _describe_limits
from gateway.commands.storage import describe_storage
from gateway.config import ConfigError, Storage, parse_settings
from gateway.control.storage.sources import make_policy_and_source
from policies.storage import SoftHard, Volume
from tests.gateway.control.storage.storage_scene import Disks, Scene, lines, scene_fixture, seen
from tests.policies.storage.storage_play import GB

scene = scene_fixture(Scene)

HEAD = "upstream: {bootstrap_servers: 'b:1'}\nthresholds: {total.bytes.in.per.sec.threshold: 1MB}\n"
BOTH = """storage:
  soft: {type: MinFreePercentage, level: 0.2}
  hard: [{type: MinFreeBytes, level: 10GB}, {type: MinFreePercentage, level: 0.05}]
  volumes:
    - match: '2:/b'
      hard: {type: MinFreeBytes, level: 4GB}
"""


def limits(text: str) -> str:
    """%GB, %2GB: limits of free bytes."""
    return text.replace("%GB", "{type: MinFreeBytes, level: 1GB}").replace("%2GB", "{type: MinFreeBytes, level: 2GB}")


def storage_of(text: str) -> Storage:
    storage = parse_settings(HEAD + text).storage
    assert storage is not None
    return storage


def test_the_file_s_limits_are_those_that_hold() -> None:
    settings = parse_settings(HEAD + BOTH)
    assert settings.storage is not None
    policy, _ = make_policy_and_source(settings, settings.storage)
    assert policy.levels(Volume(1, "/a", 100 * GB, 0)) == (20 * GB, 10 * GB)
    assert policy.levels(Volume(1, "/a", 1000 * GB, 0)) == (200 * GB, 50 * GB)
    assert policy.levels(Volume(2, "/b", 100 * GB, 0)) == (20 * GB, 4 * GB)
    assert parse_settings(HEAD + BOTH).model_validate_json(settings.model_dump_json(by_alias=True)) == settings
    assert _describe_limits(settings.storage) == (
        "soft MinFreePercentage 20 %, hard MinFreeBytes 10.0 GB, hard MinFreePercentage 5 %;"
        " 2:/b: hard MinFreeBytes 4.0 GB"
    )


async def test_the_one_that_is_reached_is_told_everywhere(
    mock_clock: MockClock, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    settings = parse_settings(HEAD + BOTH)
    assert settings.storage is not None
    policy, _ = make_policy_and_source(settings, settings.storage)
    assert isinstance(policy, SoftHard)
    scene.observe(Disks(seen(3 * GB)), policy)
    await scene.at(0)
    why = "broker 2 volume /b: 3.0 GB of 100.0 GB free, hard limit at 4.0 GB (MinFreeBytes 4.0 GB of volumes 2:/b)"
    assert scene.last.factor.why == why
    assert lines(caplog)[-1].endswith(why)
    status = scene.control.status()
    assert status["brokers"][1]["volumes"][0]["hard_limit"] == "MinFreeBytes 4.0 GB of volumes 2:/b"
    assert f"reason      {why}" in describe_storage(status)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{hard: [%GB, {type: MinFreeBytes, levl: 1GB}]}", "hard.1.levl: unknown key; did you mean level"),
        ("{hard: [{type: MinFreeBytes, levl: 1GB}]}", "storage.hard.0.levl: unknown key; did you mean level"),
        ("{min.available.bytes: 1GB, min.available.ratio: 0.1}", "keep one of them, or write hard: \\[{type"),
        ("{min.available.bytes: 1GB, volumes: [{match: '1:/a', hard: %GB}]}", "min.available.bytes is one limit"),
        ("{volumes: [{match: '1:/a'}]}", "storage.volumes.0: match 1:/a: no limit is given"),
        ("{volumes: [{match: '/a', hard: %GB}]}", "write BROKER:LOG_DIR"),
        ("{volumes: [{match: '1:/a', hard: %GB, soft: %GB}]}", "reached no earlier"),
        ("{soft: [%GB], hard: [{type: MinFreePercentage, level: 0.1}, %2GB]}", "reached no earlier"),
        ("{factor_source: mine, volumes: [{match: '1:/a', hard: %GB}]}", "factor_source mine stands in its place"),
    ],
)  # fmt: skip
def test_what_can_t_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        storage_of("storage: " + limits(text))


def test_limits_of_volumes_alone_are_enough() -> None:
    assert storage_of(limits("storage: {volumes: [{match: '*', hard: %GB}]}")).volumes
