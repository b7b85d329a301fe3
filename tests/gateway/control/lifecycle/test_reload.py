# Reading the configuration again while the gateway runs: what comes of a file, and that it holds as a whole.

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from pytest_trio import trio_fixture

from gateway import channel
from gateway.commands.views import commands as views
from gateway.config import ConfigExamination, Settings, examine_config
from gateway.control.lifecycle.reload import BY_FILE, BY_SIGNAL, ConfigReloader
from gateway.control.policies.policy_base import PolicyBase
from gateway.control.policies.store import FileStore
from gateway.control.workers.effects import expect_effects
from gateway.control.workers.snapshot_publisher import SnapshotPublisher
from gateway.parent_link import ConfigOrigin
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_values import PolicyKey, PolicyOperation
from tests.background import until
from tests.gateway.control.contexts import Parent, Surroundings, Told, make_context, make_policy_service
from tests.gateway.control.gateway_process import Gateway, at
from tests.gateway.control.null_broker import NullBroker

UPSTREAM = "upstream: {bootstrap_servers: 'b:9092'}\n"
TOTAL = "thresholds: {total.bytes.in.per.sec.threshold: %s}\n"
CLICKS = PolicyKey.of_topic("clicks")
AT_S = 1_700_000_000.0


class Control:
    """A reloader between a file and what workers are told."""

    def __init__(self, path: Path, text: str) -> None:
        self.file = path / "gw.yaml"
        self.file.write_text(text)
        found = examine_config(self.file, environ={})
        assert found.settings is not None
        assert not found.findings, found.lines
        self.told, self.parent = Told(), Parent(ConfigOrigin((str(self.file),), 10**9))
        self.context = make_context(found.settings, parent=self.parent, unix_time=lambda: AT_S)
        self.metrics = self.context.metrics
        self.store = FileStore(path / "policies.jsonl", found.settings.policy_values())
        surroundings = Surroundings()
        surroundings.now_s = AT_S
        self.service = make_policy_service(self.context, self.store, surroundings)
        workers: Any = self.told
        self.publisher = SnapshotPublisher(self.context, workers, self.service.loaded, b"")
        facts = self.context.facts
        facts.configuration.subscribe("workers", self.publisher.publish_settings)
        facts.policies.subscribe("workers", self.publisher.publish_policies)
        facts.policies.subscribe("effects", partial(expect_effects, self.context))
        facts.configuration.publish(found.settings)
        facts.policies.publish(self.service.policies)
        self.told.all.clear()
        self.reloader = self.make_reloader()

    def make_reloader(self) -> ConfigReloader:
        workers: Any = self.told
        base = PolicyBase(self.context, self.service)
        return ConfigReloader(self.context, self.service, base, workers, lambda path: examine_config(path, environ={}))

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self.context.settings

    @property
    def adopted(self) -> list[tuple[Settings, ConfigOrigin]]:
        """What the parent keeps."""
        return [(Settings.model_validate_json(each.settings), each.origin) for each in self.parent.adopted]

    async def reload(self, text: str, source: ChangeSource = BY_FILE) -> tuple[str, tuple[str, ...]]:
        self.file.write_text(text)
        attempt = await self.reloader.reload_config(source)
        return attempt.outcome, attempt.problems or attempt.changed

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"produce_gateway_{name}", labels)


@trio_fixture
async def make(tmp_path: Path, nursery: trio.Nursery) -> Callable[..., Any]:
    async def make(text: str) -> Control:
        control = Control(tmp_path, UPSTREAM + text)
        nursery.start_soon(control.service.run)
        await control.service.loaded.wait()
        return control

    return make


async def test_what_changed_is_told_at_once_and_in_one(make: Any) -> None:
    control = await make(TOTAL % "1MB")
    changed = "mode: observe\nclient_quotas: [{user: a, producer_byte_rate: 1}]\n" + TOTAL % "2MB"
    outcome, keys = await control.reload(UPSTREAM + changed)
    assert outcome == "applied"
    assert set(keys) == {"mode", "client_quotas", "thresholds.total.bytes.in.per.sec.threshold"}
    (messages,) = control.told.all
    assert [type(each) for each in messages] == [
        channel.WorkerSettings, channel.ThresholdPolicy, channel.QuotaSnapshot, channel.GroupSnapshot,
    ]  # fmt: skip
    settings, policy, *_ = messages
    assert (settings.mode, policy.total, policy.mode) == ("observe", 2e6, "observe")
    (adopted,) = control.adopted
    assert adopted[0] == control.settings
    assert adopted[1].files == (str(control.file),)
    assert adopted[1].read_at_ns > 10**9


async def test_what_limits_can_do_is_in_the_metrics_before_they_do_it(make: Any) -> None:
    control = await make("")
    row = channel.UsageRow(1, "t", "User:u", "app", "accepted", "", 1, 1, 1)
    control.metrics.add_interval(channel.UsageInterval("boot", 0, 0, 0, 1000, (row,)))
    expected = 'outcome="rejected",reason="topic-threshold",topic="t"} 0'
    assert expected not in b"".join(control.metrics.render_text()).decode()
    assert (await control.reload(UPSTREAM + TOTAL % "2MB"))[0] == "applied"
    assert expected in b"".join(control.metrics.render_text()).decode()


async def test_what_is_no_policy_is_told_too(make: Any) -> None:
    control = await make("")
    assert await control.reload(UPSTREAM + "limits: {idle_timeout: 7m}") == ("applied", ("limits.idle_timeout",))
    ((settings,),) = control.told.all
    assert settings.limits.idle_timeout == 420.0


async def test_a_file_with_a_fault_changes_nothing_at_all(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    control = await make(TOTAL % "1MB")
    before = control.settings
    bad = UPSTREAM + "mode: obsrve\nadmin: {prt: 1}\n" + TOTAL % "2MB"
    outcome, problems = await control.reload(bad)
    assert outcome == "refused"
    assert problems == (
        f"{control.file}:2: mode: should be 'enforce' or 'observe', not 'obsrve'",
        f"{control.file}:3: admin.prt: unknown key; did you mean port?",
    )
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"configuration not taken over: {problem}" for problem in problems
    ]
    assert (control.told.all, control.adopted) == ([], [])
    assert control.settings is before
    assert control.service.policies.broker_total() == 1e6
    assert (control.metric("config_reload_total", outcome="refused"), control.metric("config_last_reload_successful")) \
        == (1, 0)  # fmt: skip
    assert control.reloader.state.loaded_ms == 1000
    assert (await control.reload(UPSTREAM + TOTAL % "2MB"))[0] == "applied"
    assert control.metric("config_last_reload_successful") == 1
    assert control.metric("config_last_reload_success_timestamp_seconds") == AT_S
    assert control.service.policies.broker_total() == 2e6


async def test_what_takes_a_restart_is_named_and_all_else_holds(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    control = await make("")
    assert await control.reload(UPSTREAM + "workers: 3\nmode: observe\n") == ("applied", ("mode",))
    assert control.reloader.state.pending == ("workers",)
    assert control.metric("config_keys_pending") == 1
    assert "a restart is needed before these apply: workers" in caplog.text
    assert control.settings.workers == 1
    caplog.clear()
    assert await control.reload(UPSTREAM + "workers: 3\nmode: observe\nacks0: drop\n") == ("applied", ("acks0",))
    assert "a restart" not in caplog.text, "it has been said"
    assert await control.reload(UPSTREAM + "mode: observe\nacks0: drop\n") == ("unchanged", ())
    assert control.reloader.state.pending == ()
    assert control.metric("config_keys_pending") == 0


async def test_a_new_control_knows_what_waits_for_a_restart(make: Any) -> None:
    """Nothing else would tell it: the file has not changed since, so it isn't read again."""
    control = await make("")
    assert (await control.reload(UPSTREAM + "workers: 3\nmode: observe\n"))[0] == "applied"
    control.parent.origin = control.adopted[-1][1]
    control.metrics.show_pending_keys(0)
    assert control.make_reloader().state.pending == ("workers",)
    assert control.metric("config_keys_pending") == 1


async def test_what_would_not_go_with_what_waits_is_refused_as_a_whole(make: Any) -> None:
    storage = "storage: {soft: {type: MinFreeBytes, level: 2}, hard: {type: MinFreeBytes, level: 1}}\n"
    control = await make(TOTAL % "1MB" + storage)
    outcome, (problem,) = await control.reload(UPSTREAM + "mode: observe\n")
    assert outcome == "refused"
    assert problem.startswith(
        "settings that apply at once conflict with those that need a restart (storage): storage.soft: "
    )
    assert control.told.all == []


async def test_the_same_file_again_is_unchanged(make: Any) -> None:
    control = await make("mode: observe\n")
    assert await control.reload(UPSTREAM + "# said more clearly\nmode:  observe\n") == ("unchanged", ())
    assert (control.told.all, control.adopted) == ([], [])
    assert control.reloader.state.loaded_ms == AT_S * 1000


async def test_the_new_values_are_the_base_of_changes_at_run_time_and_in_their_history(make: Any) -> None:
    control = await make(TOTAL % "9MB" + "client_quotas: [{user: a, producer_byte_rate: 1}]\n")
    await control.service.alter_policies([PolicyOperation(CLICKS, 5.0)], ChangeSource("alice", "rest"))
    topics = "thresholds: {total.bytes.in.per.sec.threshold: 9MB, topics: {clicks: {bytes.in.per.sec.threshold: 1},"
    await control.reload(UPSTREAM + topics + " views: {bytes.in.per.sec.threshold: 2}}}\n", BY_SIGNAL)
    assert control.service.policies.topic_thresholds() == {"clicks": 5.0, "views": 2.0}, (
        "what was set at run time still wins"
    )
    await control.service.alter_policies([PolicyOperation(CLICKS, None)], ChangeSource("alice", "rest"))
    assert control.service.policies.topic_thresholds() == {"clicks": 1.0, "views": 2.0}
    of_file = [past for past in control.service.history if past.source is BY_SIGNAL]
    assert {(past.key.kind, past.key.name, past.old, past.new) for past in of_file} == {
        ("topic", "views", None, 2.0),
        ("quota", of_file[-1].key.name, 1.0, None),
    }
    assert len(control.service.history) == 4


async def test_a_secret_in_a_file_of_its_own_is_watched_with_the_configuration(make: Any, tmp_path: Path) -> None:
    control = await make("")
    (tmp_path / "secret").write_text("geheim")
    text = f"upstream: {{bootstrap_servers: 'b:9092', sasl.password: {{file: '{tmp_path}/secret'}}}}\nmode: observe\n"
    await control.reload(text)
    assert control.adopted[0][1].files == (str(control.file), str(tmp_path / "secret"))
    assert control.reloader.state.pending == ("upstream.sasl.password",)


async def test_standard_input_can_not_be_read_again(make: Any) -> None:
    control = await make("")
    control.parent.origin = ConfigOrigin()
    attempt = await control.make_reloader().reload_config(BY_SIGNAL)
    assert (attempt.outcome, len(attempt.problems)) == ("refused", 1)
    assert "standard input" in attempt.problems[0]


async def test_before_the_policies_are_known_it_fails_and_says_so(tmp_path: Path) -> None:
    control = Control(tmp_path, UPSTREAM)  # its service doesn't run
    with contextlib.closing(control.store):
        outcome, problems = await control.reload(UPSTREAM + "mode: observe")
        assert (outcome, len(problems)) == ("failed", 1)
        refused = await control.reload(UPSTREAM + "mode: obsrve")
        assert refused[0] == "refused", "a fault of the file is told whatever else is amiss"
        assert "not 'obsrve'" in refused[1][0]
    assert control.told.all == []


async def test_who_asks_before_the_policies_are_known_is_answered(tmp_path: Path, nursery: trio.Nursery) -> None:
    control = Control(tmp_path, UPSTREAM)  # its service doesn't run
    nursery.start_soon(control.reloader.run)
    await trio.testing.wait_all_tasks_blocked()
    control.parent.ask_for_reload()
    await until(lambda: control.reloader.state.last is not None)
    control.store.close()
    assert control.reloader.state.last is not None
    assert control.reloader.state.last.outcome == "failed"


async def test_who_asks_while_it_is_read_has_it_read_once_more(make: Any, nursery: trio.Nursery) -> None:
    control = await make("reload_interval: 0s\n")
    control.reloader._origin = ConfigOrigin(control.reloader._origin.files, time.time_ns() + 10**12)  # nothing is newer
    examine: Callable[[Path], ConfigExamination] = control.reloader._examine

    def change_behind(path: Path) -> ConfigExamination:
        found = examine(path)
        if control.reloader.state.last is None:
            control.file.write_text(UPSTREAM + "reload_interval: 0s\nmode: observe\n")
            trio.from_thread.run_sync(control.parent.ask_for_reload)
        return found

    control.reloader._examine = change_behind
    nursery.start_soon(control.reloader.run)
    control.parent.ask_for_reload()
    await until(lambda: control.settings.mode == "observe")


async def test_a_stop_in_the_middle_of_it_is_no_fault(tmp_path: Path) -> None:
    control = Control(tmp_path, UPSTREAM)
    control.service.loaded.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.reload, UPSTREAM + "mode: observe")
        await until(lambda: control.service._queue)
        nursery.start_soon(control.service.run)
        nursery.cancel_scope.cancel()
    assert control.told.all == []


async def test_a_bug_leaves_the_old_configuration(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    control = await make("")

    def stumble(path: Path) -> ConfigExamination:
        raise ZeroDivisionError

    control.reloader._examine = stumble
    assert await control.reload(UPSTREAM + "mode: observe") == ("failed", ("a bug: ZeroDivisionError()",))
    assert "because of a bug" in caplog.text
    assert control.told.all == []


@pytest.mark.parametrize("fact", ["configuration", "policies"])
async def test_a_part_that_can_not_follow_leaves_the_old_configuration_everywhere(make: Any, fact: str) -> None:
    control = await make(TOTAL % "1MB")
    seen: list[str] = []

    def follow(_: object) -> None:
        seen.append(control.settings.mode)
        if control.settings.mode == "observe":
            raise ZeroDivisionError

    getattr(control.context.facts, fact).subscribe("a part with a bug", follow)
    before = control.settings
    outcome, problems = await control.reload(UPSTREAM + "mode: observe\n" + TOTAL % "2MB")
    assert (outcome, problems) == ("failed", ("a bug: ZeroDivisionError()",))
    assert (seen[0], {*seen[1:]}) == ("observe", {"enforce"})
    assert control.settings == before
    told = [each for messages in control.told.all for each in messages]
    last = {type(each): each for each in told}
    assert (last[channel.WorkerSettings].mode, last[channel.ThresholdPolicy].total) == ("enforce", 1e6)
    assert [settings for settings, _ in control.adopted] == [before]
    assert (await control.reload(UPSTREAM + TOTAL % "3MB"))[0] == "applied"
    assert control.told.latest_snapshot(channel.ThresholdPolicy).total == 3e6


async def test_what_is_taken_back_is_not_the_source_s_news(make: Any, nursery: trio.Nursery) -> None:
    control = await make(TOTAL % "1MB")
    came = trio.Event()

    def stumble(_: object) -> None:
        if control.settings.mode == "observe":
            came.set()
            raise ZeroDivisionError

    control.context.facts.configuration.subscribe("a part with a bug", stumble)

    async def follow_source(total: float) -> None:
        await came.wait()
        await control.reloader._base.use_source_thresholds(total, {})

    for total in range(1, 21):  # either may be the first to go on
        came = trio.Event()
        async with trio.open_nursery() as both:
            both.start_soon(follow_source, total)
            assert (await control.reload(UPSTREAM + "mode: observe\n" + TOTAL % "2MB"))[0] == "failed"
        assert control.told.latest_snapshot(channel.ThresholdPolicy).total == total
        assert control.settings.mode == "enforce"


async def test_a_change_of_the_file_is_seen_and_taken_over_when_it_has_settled(
    make: Any, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    control = await make("reload_interval: 10s\n")
    os.utime(control.file, (1, 1))
    nursery.start_soon(control.reloader.run)
    await trio.sleep(25)
    looked = control.reloader.state.last  # its inode's time says that it has changed since the start …
    control.file.write_text(UPSTREAM + "reload_interval: 10s\nmode: observe\n")
    await trio.sleep(11)
    assert control.reloader.state.last is looked, "it may be half a file"
    await until(lambda: control.settings.mode == "observe", every_s=1.0)


async def test_an_interval_of_0_leaves_it_to_those_who_ask(
    make: Any, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    control = await make("reload_interval: 0s\n")
    # The look at its start takes a file that was written just before for one that has changed since.
    control.reloader._origin = ConfigOrigin(control.reloader._origin.files, time.time_ns() + 10**12)
    looks, its_look = [0], control.reloader._read_file_states

    async def counted() -> Any:
        looks[0] += 1
        return await its_look()

    control.reloader._read_file_states = counted
    nursery.start_soon(control.reloader.run)
    for _ in range(5):
        await trio.sleep(100)
    control.file.write_text(UPSTREAM + "reload_interval: 0s\nmode: observe\n")
    for _ in range(5):
        await trio.sleep(100)
    assert looks == [1], "but for the one at its start it looks only when asked"
    assert control.settings.mode == "enforce"
    control.parent.ask_for_reload()
    await until(lambda: control.settings.mode == "observe")
    assert control.reloader.state.last is not None


# --- the whole gateway ------------------------------------------------------------------------------------------------


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    broker = NullBroker()
    gateway = Gateway(tmp_path, at(broker), "internal_topics: none\nreload_interval: 100ms\nworkers: 2\n")
    yield gateway
    gateway.close()
    broker.close()


def config_of(gateway: Gateway) -> Any:
    return json.loads(gateway.get("/v1/status")[1])["config"]


def post_reload(gateway: Gateway) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.admin, timeout=60)
    connection.request("POST", "/v1/reload", "{}", {"Content-Type": "application/json"})
    answer = connection.getresponse()
    status, said = answer.status, json.loads(answer.read())
    connection.close()
    return status, said


def test_a_running_gateway_follows_its_file(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.ready()
    text = gateway.config.read_text()
    assert config_of(gateway) == {
        "file": str(gateway.config), "loaded_ms": config_of(gateway)["loaded_ms"], "pending": [], "last": None,
    }  # fmt: skip

    def total() -> Any:
        return json.loads(gateway.get("/v1/thresholds")[1])["total"]["default"]

    assert total() is None
    gateway.config.write_text(text + TOTAL % "5MB")
    gateway.wait_for("by the file", lambda: (found := total()) and found["value"] == 5e6)
    gateway.wait_for_log("configuration: .*none -> 5,?000,?000.*by file via reload")

    def past() -> Any:
        changes = json.loads(gateway.get("/v1/policies/history")[1])["changes"]
        return [(each["who"], each["door"], each["new"]) for each in changes]

    gateway.wait_for("history", lambda: past() == [("file", "reload", 5e6)])

    gateway.config.write_text(text + TOTAL % "6MB" + "mode: obsrve\n")
    status, said = post_reload(gateway)
    assert (status, len(said["errors"])) == (422, 1)
    assert "mode: should be" in said["errors"][0]["what"]
    assert total()["value"] == 5e6
    assert (config_of(gateway)["last"]["outcome"], gateway.metric("config_last_reload_successful")) == ("refused", 0)
    assert gateway.get("/readyz")[0] == 200

    gateway.config.write_text(text.replace("workers: 2", "workers: 4") + TOTAL % "7MB")
    gateway.process.send_signal(signal.SIGHUP)
    gateway.wait_for("by the signal", lambda: total()["value"] == 7e6)
    gateway.wait_for("told", lambda: config_of(gateway)["pending"] == ["workers"])

    os.kill(gateway.child("gateway.control"), signal.SIGKILL)
    gateway.wait_for(
        "control again", lambda: ((gateway.get("/v1/status")[0] == 200 and total()) or {}).get("value") == 7e6
    )
    gateway.wait_for("told again", lambda: config_of(gateway)["pending"] == ["workers"])
    assert post_reload(gateway)[1]["last"]["outcome"] == "unchanged"
    command = ("reload", ["--url", f"http://127.0.0.1:{gateway.admin}"])
    assert views.main(*command) == 0
    assert capsys.readouterr() == (f"{gateway.config}: unchanged\ntakes a restart: workers\n", "")
    good = gateway.config.read_text()
    gateway.config.write_text(good + "mode: obsrve\n")
    assert views.main(*command) == 1
    out, err = capsys.readouterr()
    assert (out, f"{gateway.config}:" in err) == ("", True)
    assert "mode: should be 'enforce' or 'observe', not 'obsrve'" in err
    gateway.config.write_text(good)
    assert config_of(gateway)["pending"] == ["workers"]
    assert gateway.end() == 0
