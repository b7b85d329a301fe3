# The what-if over Spark: the replay's differences beside what really happened, by broker and by client; and how it is
# told. What the replay itself finds is tested in tests/policies/whatif/test_replay.py.

from __future__ import annotations

import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.audit.batch.query import AuditQuery
from gateway.audit.engines import LOCAL, SPARK
from gateway.audit.errors import explain_error
from gateway.audit.local.records import LocalRecords
from gateway.audit.whatif import local_reading, whatif
from gateway.audit.whatif.local_reading import LocalUsage
from gateway.audit.whatif.text import what_if_json
from gateway.audit.whatif.whatif import WhatIfAnswer
from policies import usage
from policies.definitions.policy_values import PolicyKey
from policies.definitions.rollout import rollout_place
from policies.whatif.replay import replay_usage
from policies.whatif.rows import ReplayRow, ReplayRules
from tests.audit import records
from tests.policies.whatif.replay_play import phases_of, play
from tests.policies.whatif.test_replay import MINUTE_MS, START, limits, worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Read = Callable[[Sequence[str]], Any]
START_MS = round(START * 1000)


def ask_here(
    lines: Sequence[str], rules: ReplayRules, by: Iterable[str] = (), window_ms: int | None = None, **more: Any
) -> WhatIfAnswer:
    """What-if of these lines in the local engine: rules, by, window, and other arguments."""
    question = AuditQuery(tuple(by), window_ms, more.pop("from_ms", None), more.pop("to_ms", None))
    found = LocalUsage(LocalRecords([records.LineSource(lines)]))
    return whatif.evaluate_policy(found, rules, question, **more)


@pytest.fixture
def ask_spark(raw: Callable[[Sequence[str | None]], DataFrame]) -> Callable[..., WhatIfAnswer]:
    """The same of Spark."""
    from gateway.audit.batch import spark_sources
    from gateway.audit.batch.query import AuditQuery
    from gateway.audit.whatif import reading

    def ask(
        lines: Sequence[str], rules: ReplayRules, by: Iterable[str] = (), window_ms: int | None = None, **more: Any
    ) -> WhatIfAnswer:
        question = AuditQuery(tuple(by), window_ms, more.pop("from_ms", None), more.pop("to_ms", None))
        with reading.read_pieces([spark_sources.AuditSource(raw(lines), {})]) as found:
            return whatif.evaluate_policy(found, rules, question, **more)

    return ask


# Both engines replay by the same functions: test_spark_answers_the_same_to_the_byte compares what they are given.
@pytest.fixture(params=[pytest.param(SPARK, marks=pytest.mark.full), LOCAL])
def answer(request: pytest.FixtureRequest) -> Any:
    return ask_here if request.param == LOCAL else request.getfixturevalue("ask_spark")


def lines_of(rows: Iterable[ReplayRow]) -> list[str]:
    """As the gateway writes them."""
    intervals: dict[tuple[Any, ...], list[records.Row]] = defaultdict(list)
    for row in rows:
        broker, topic, principal, client_id = row.stream
        intervals[(row.life, row.seq, row.start_ms, row.end_ms)].append(
            records.Row(broker, topic, principal, client_id, row.outcome, row.reason, row.bytes, row.messages,
                        row.requests, row.delay_ms, repeats=row.repeats)
        )  # fmt: skip
    return [
        line.decode()
        for (life, seq, start_ms, end_ms), own in intervals.items()
        for line in usage.encode_interval(life[0], life[1], life[2], seq, own, start_ms=start_ms, end_ms=end_ms)
    ]


def on_broker(rows: Iterable[ReplayRow], broker: int) -> list[ReplayRow]:
    return [row._replace(stream=(broker, *row.stream[1:])) for row in rows]


def two_brokers() -> list[ReplayRow]:
    """The same traffic to each, by one worker."""
    rows = play([worker()], START, 120)
    return sorted([*rows, *on_broker(rows, 2)], key=lambda row: (row.start_ms, row.stream))


def rules_for_two(times: float = 1.0) -> ReplayRules:
    return ReplayRules(limits(times).values)


def test_the_policy_in_force_changes_nothing_and_sums_are_what_happened(answer: Callable[..., Any]) -> None:
    rows = two_brokers()
    found = answer(lines_of(rows), rules_for_two(), ["broker", "topic"], MINUTE_MS)
    truth: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in rows:
        window = row.start_ms - row.start_ms % MINUTE_MS
        truth[window, *row.stream[:2], row.outcome, row.reason] += row.bytes
    seen = {
        (*effect.keys.values(), *outcome): actual["bytes"]
        for effect in found.rows
        for outcome, (actual, _) in effect.outcomes.items()
    }
    assert seen == truth
    changed = [each for effect in found.rows for each in effect.outcomes.values() if any(each[1].values())]
    assert changed == []
    assert not found.unknown
    assert found.topics_sharing == {1: 5, 2: 5}


@pytest.mark.parametrize("fleet_wide", [False, True], ids=["broker by broker", "all in one"])
def test_another_policy_gives_what_its_replay_gives(answer: Callable[..., Any], fleet_wide: bool) -> None:
    rows = two_brokers()
    rules = rules_for_two(0.5)
    topics = {broker: limits().topics[1] for broker in (1, 2)}
    if fleet_wide:
        rules = ReplayRules({**rules.values, PolicyKey.of_group("silver"): 1.0, PolicyKey.of_tenant("acme"): "silver"})
    whole = ReplayRules(rules.values, topics=topics)
    parts = [rows] if fleet_wide else [[row for row in rows if row.stream[0] == broker] for broker in (1, 2)]
    truth: dict[tuple[Any, ...], int] = defaultdict(int)
    for part in parts:
        for shift in replay_usage(part, whole, phases_of(rows)):
            truth[*shift.stream[1:], shift.outcome, shift.reason] += shift.bytes
    found = {
        (*effect.keys.values(), *outcome): change["bytes"]
        for effect in answer(lines_of(rows), rules).clients
        for outcome, (_, change) in effect.outcomes.items()
    }
    assert {key: change for key, change in found.items() if change} == {k: v for k, v in truth.items() if v}
    assert sum(map(abs, truth.values())) > 1e6


def test_where_there_is_no_room_for_what_waits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: open("/dev/full", "w+b"))  # noqa: SIM115
    with pytest.raises(OSError, match="No space left") as error:
        ask_here(lines_of(two_brokers()), rules_for_two())
    assert explain_error(error.value) == f"{tempfile.gettempdir()}: can't be written: No space left on device"


@pytest.mark.parametrize("held", [7, 50_000])
def test_spark_answers_the_same_to_the_byte(
    ask_spark: Callable[..., WhatIfAnswer], held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_reading, "_HELD_PIECES", held)
    monkeypatch.setattr(local_reading, "_BLOCK_PIECES", 3)
    by_broker, baseline = ReplayRules(limits(0.5).values), rules_for_two()
    # Quotas in bytes per second hold over all brokers.
    fleet_wide = ReplayRules({**baseline.values, PolicyKey.of_group("g"): 1e5, PolicyKey.of_tenant("acme"): "g"})
    lines = lines_of(two_brokers())
    parted = [records.Row(broker=seq % 3 - 1, client_id=f"c{seq}") for seq in range(1100)]
    rejected = [records.Row(broker=2, topic="é", outcome="rejected", reason="x", repeats=None), *parted]
    more = [records.interval(seq, rejected, boot="b2", start_ms=START_MS + 700 * seq) for seq in range(3)]
    lines += [
        "rubbish",
        lines[3],
        records.changed(lines[5], end_ms=START_MS + 10**6),
        records.lost(4),
        *more[0],
        *more[2],
    ]
    random.Random(1).shuffle(lines)
    bounds = {"from_ms": START_MS + MINUTE_MS, "to_ms": START_MS + 2 * MINUTE_MS - 500}
    asked: tuple[Any, ...] = (
        (by_broker, ("topic", "broker"), MINUTE_MS, {"baseline": baseline, **bounds}),
        (fleet_wide, ("principal", "client_id"), None, {"topics": 9, "baseline": fleet_wide}),
    )
    rules, by, window, options = asked[0 if held == 7 else 1]
    ours, sparks = (ask(lines, rules, by, window, **options) for ask in (ask_here, ask_spark))
    assert json.dumps(what_if_json(ours, {}, None)) == json.dumps(what_if_json(sparks, {}, None))
    assert ours == sparks
    assert ours.baseline_deviation is not None
    assert sum(abs(each.outcome_bytes("accepted", "change")) for each in ours.clients) > 1e6


def test_bounds_leave_out_what_is_outside_and_warm_up_before(answer: Callable[..., Any]) -> None:
    rows = [row for row in two_brokers() if row.stream[0] == 1]
    bounds = {"from_ms": START_MS + MINUTE_MS, "to_ms": START_MS + MINUTE_MS + 30_000}
    found = answer(lines_of(rows), limits(0.5), ["topic"], **bounds)
    wanted = sum(
        row.bytes
        for row in rows
        if row.stream[1] == "clicks"
        and row.outcome == "accepted"
        and bounds["from_ms"] <= row.start_ms < bounds["to_ms"]
    )
    (clicks,) = [effect for effect in found.rows if effect.keys == {"topic": "clicks"}]
    assert clicks.outcome_bytes("accepted", "actual") == wanted
    truth = sum(
        shift.bytes
        for shift in replay_usage([row for row in rows if row.start_ms < bounds["to_ms"]], limits(0.5), phases_of(rows),
                            from_ms=bounds["from_ms"])
        if shift.stream[1] == "clicks" and shift.outcome == "accepted"
    )  # fmt: skip
    assert clicks.outcome_bytes("accepted", "change") == pytest.approx(truth, rel=0.05, abs=1e5)


def test_topics_that_brokers_lead_beside_those_with_traffic_share_as_well(answer: Callable[..., Any]) -> None:
    rows = [row for row in two_brokers() if row.stream[0] == 1]
    rules = ReplayRules({PolicyKey.of_broker(): 900_000.0})
    few, many = (answer(lines_of(rows), rules, ["topic"], topics=count) for count in (None, 50))
    assert (few.topics_sharing, many.topics_sharing) == ({1: 5}, {1: 50})
    calm = [each for effect in many.rows if effect.keys["topic"] == "calm" for each in effect.outcomes]
    assert ("rejected", "topic-threshold") in calm, "a fiftieth of the total is less than it brings"
    assert ("rejected", "topic-threshold") not in [
        each for effect in few.rows if effect.keys["topic"] == "calm" for each in effect.outcomes
    ]


def test_of_no_records_nothing_is_told(answer: Callable[..., Any]) -> None:
    found = answer(["rubbish"], rules_for_two(), ["topic"], MINUTE_MS)
    assert (found.rows, found.clients, found.unknown, found.topics_sharing) == ([], [], False, {})


def test_records_without_repeats_give_an_upper_bound(answer: Callable[..., Any]) -> None:
    rejected = records.Row(outcome="rejected", reason="topic-threshold", bytes=5000, requests=5)
    lines = [line for seq in range(3) for line in records.interval(seq, [rejected], version=1)]
    found = answer(lines, ReplayRules({}))
    assert found.unknown
    (client,) = found.clients
    assert client.dropped_bytes("actual") == 15_000
    assert client.dropped_bytes("change") == -15_000


# --- how it is told ---------------------------------------------------------------------------------------------------


def effect(topic: str, **changes: tuple[int, int]) -> Any:
    """Bytes of outcomes: (really, change)."""
    from gateway.audit.whatif.whatif import PolicyEffect

    outcomes = {}
    for outcome, (actual, change) in changes.items():
        reason = "topic-threshold" if outcome in ("rejected", "delayed") else ""
        numbers = {"requests": 0, "delay_ms": 0, "repeats": 0}
        outcomes[outcome, reason] = {"bytes": actual, **numbers}, {"bytes": change, **numbers}
    keys = {"topic": topic, "principal": "User:alice", "client_id": f"app-{topic}"}
    return PolicyEffect(keys, outcomes)


def told(*clients: Any, unknown: bool = False) -> Any:
    from gateway.audit.batch.query import AuditQuery

    return WhatIfAnswer(AuditQuery(("topic",)), list(clients), list(clients), unknown, {1: 1})


def test_words_name_the_clients_that_would_be_hit_and_by_how_much() -> None:
    from gateway.audit.whatif.text import describe_effects

    found = told(
        effect("clicks", rejected=(0, 900_000_000), accepted=(5, -900_000_000)),
        effect("orders", rejected=(1_000, 300_000_000)),
        effect("calm", accepted=(7, 0)),
    )
    text = describe_effects(found, "wish.yaml")
    assert "With wish.yaml you would have dropped for good 1.2 GB, and not 1.0 kB." in text
    assert "It differs for these 2 clients:" in text
    assert "User:alice, client id app-clicks, topic clicks: 900.0 MB, really 0 B" in text
    assert "calm" not in text
    assert "at most 1.2 GB" in describe_effects(told(*found.clients, unknown=True), "wish.yaml")


def test_words_where_nothing_differs() -> None:
    from gateway.audit.whatif.text import describe_effects

    assert (
        describe_effects(told(effect("calm", accepted=(7, 0))), "x.yaml")
        == "With x.yaml everything would have been as it was."
    )


def test_the_table_has_the_recorded_and_the_replayed_sums_and_the_difference() -> None:
    from gateway.audit.batch.query import AuditQuery
    from gateway.audit.whatif.text import what_if_text

    lines = what_if_text(told(effect("clicks", accepted=(4000, -1000))), "x.yaml").splitlines()
    assert lines[-1].split() == ["clicks", "accepted", "4,000", "3,000", "-1,000", "-25.0", "%"]
    found = told(effect("clicks", accepted=(4000, -1000)))
    found.rows[0].keys["window_start_ms"] = records.START
    there = replace(found, query=AuditQuery(("topic",), 60_000, time_zone="Europe/Berlin"))
    assert what_if_text(there, "x.yaml").splitlines()[-1].startswith("2025-11-20T01:54:00+01:00  clicks")


def test_beside_rejected_attempts_stand_the_bytes_finally_dropped() -> None:
    from gateway.audit.batch.query import AuditQuery
    from gateway.audit.whatif.text import what_if_text
    from gateway.audit.whatif.whatif import PolicyEffect

    def numbers(size: int, repeats: int) -> dict[str, int]:
        return {"bytes": size, "requests": 0, "delay_ms": 0, "repeats": repeats}

    outcomes = {
        ("rejected", "topic-threshold"): (numbers(9000, 6000), numbers(-1000, -1000)),
        ("accepted", ""): (numbers(5000, 2000), numbers(1000, 0)),
    }
    lost = PolicyEffect({"topic": "clicks", "broker": 1}, outcomes)
    calm = PolicyEffect({"topic": "calm", "broker": 1}, {("accepted", ""): (numbers(7, 0), numbers(0, 0))})

    def lines(by: tuple[str, ...], unknown: bool = False) -> list[list[str]]:
        text = what_if_text(WhatIfAnswer(AuditQuery(by), [lost, calm], [], unknown, {1: 1}), "x.yaml")
        return [line.split() for line in text.splitlines()]

    def row(answer: WhatIfAnswer) -> dict[str, Any]:
        (found,) = what_if_json(answer, {}, None)["finally_dropped"]
        return dict(found)

    shown = lines(("topic",))
    assert ["clicks", "rejected", "attempts", "topic-threshold", "9,000", "8,000", "-1,000", "-11.1", "%"] in shown
    assert shown[-1] == ["clicks", "1,000", "1,000", "0"]
    assert lines(("topic",), unknown=True)[-2] == ["clicks", "≤1,000", "≤1,000", "0"]
    # By broker attempts at one batch may be in several rows: each refusal is charged where it came first.
    assert lines(("topic", "broker"))[-2] == ["clicks", "1", "≤3,000", "≤3,000", "0"]
    assert row(WhatIfAnswer(AuditQuery(("topic",)), [lost, calm], [], False, {1: 1})) == {
        **lost.keys, "actual": 1000, "what_if": 1000, "difference": 0, "upper_bound": False,
    }  # fmt: skip


def test_the_json_has_all_three_of_each_measure() -> None:
    made = json.loads(json.dumps(what_if_json(told(effect("clicks", rejected=(10, 20))), {"policy": "x.yaml"}, None)))
    assert made["policy"] == "x.yaml"
    (row,) = made["rows"]
    assert [row[name]["bytes"] for name in ("actual", "what_if", "difference")] == [10, 30, 20]
    assert made["clients"][0]["what_if"]["finally_dropped_bytes"] == 30
    assert 0 <= made["clients"][0]["place"] < 100


@pytest.mark.parametrize("key", [None, b"a secret"])
def test_the_place_of_a_client_that_chooses_its_name_is_known_to_who_has_the_key(key: bytes | None) -> None:
    hit = effect("clicks", rejected=(10, 20))
    hit.keys["principal"] = "User:ANONYMOUS"
    (client,) = what_if_json(told(hit), {}, key)["clients"]
    expected = None if key is None else round(rollout_place("User:ANONYMOUS", client["client_id"], key), 2)
    assert client["place"] == expected


# --- the command's options --------------------------------------------------------------------------------------------


def run(*argv: str) -> int:
    from gateway.audit import cli

    return cli.main(["what-if", *argv])


def test_a_wrong_policy_file_is_told_as_the_gateway_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("upstream: {bootstrap_servers: 'k:9092'}\nthresholds: {topic: {}}\n")
    assert run(str(path), "--spool", str(tmp_path)) == 1
    assert f"{path}:2: thresholds.topic: unknown key; did you mean topics?" in capsys.readouterr().err


def test_a_wrong_document_over_it_as_policies_apply_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, wish = tmp_path / "gateway.yaml", tmp_path / "wish.yaml"
    path.write_text("upstream: {bootstrap_servers: 'k:9092'}\n")
    wish.write_text("thresholds: {topics: {clicks: much}}\n")
    assert run(str(path), "--apply", str(wish), "--spool", str(tmp_path)) == 1
    assert f"{wish}:1: thresholds.topics.clicks: 'much' is not a valid size" in capsys.readouterr().err
    assert run(str(path), "--apply", str(tmp_path / "none"), "--spool", str(tmp_path)) == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "nothing to read"),
        (("--spool", "x", "--by", "software"), "--by: 'software' is not one of broker, topic, principal, client_id"),
        (("--spool", "x", "--topics", "0"), "--topics: 0 is not a valid number of topics"),
        (("--spool", "x", "--delivery-timeout", "soon"), "--delivery-timeout: 'soon' is not a valid duration"),
    ],
)
def test_wrong_options(argv: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("upstream: {bootstrap_servers: 'k:9092'}\n")
    assert run(str(path), *argv) == 2
    assert words in capsys.readouterr().err


HISTORY = {
    "version": 2,
    "changes": [
        {"kind": "topic", "name": "clicks", "key": "bytes.in.per.sec.threshold", "old": 1e6, "new": 3000000,
         "until": None, "version": 2, "at": "2025-11-20T01:00:00.500Z", "who": "", "door": "rest", "peer": ""},
        {"kind": "tenant", "name": "acme", "key": "resourcegroup", "old": None, "new": "gold",
         "until": None, "version": 1, "at": "2025-11-20T00:00:00Z", "who": "", "door": "rest", "peer": ""},
    ],
}  # fmt: skip


def test_changes_at_run_time_are_read_as_the_command_prints_them() -> None:
    from gateway.audit.whatif import history

    acme, clicks = history.parse_history(json.dumps(HISTORY))
    assert clicks == (1763600400500, PolicyKey.of_topic("clicks"), 1e6, 3e6)
    assert acme == (1763596800000, PolicyKey.of_tenant("acme"), None, "gold")


@pytest.mark.parametrize("former_at", ["2025-11-20T01:00:00Z", "2025-11-20T01:00:03Z"])
def test_changes_have_the_order_of_their_versions_whatever_clocks_said(former_at: str) -> None:
    from gateway.audit.whatif import history
    from policies.whatif.timetable import build_timetable

    common = {"kind": "topic", "name": "clicks", "key": "bytes.in.per.sec.threshold"}
    later = {**common, "version": 3, "at": "2025-11-20T01:00:00Z", "old": 2e6, "new": 3e6}
    former = {**common, "version": 2, "at": former_at, "old": 1e6, "new": 2e6}
    past = history.parse_history(json.dumps({"changes": [later, former]}))
    clicks = PolicyKey.of_topic("clicks")
    assert build_timetable({}, past, {}) == ({clicks: 1e6}, ((1763600400000, {clicks: 3e6}),))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no JSON", "Expecting value"),
        ("{}", "'changes' is missing"),
        ('{"changes": [{}]}', "'kind' is missing"),
        (json.dumps(HISTORY).replace("resourcegroup", "x"), "unknown key 'x'"),
        (json.dumps(HISTORY).replace("3000000", "true"), "its value is not a number: True"),
        (json.dumps(HISTORY).replace("2025-11-20T00:00:00Z", "now"), "'now' is not a valid time"),
    ],
)
def test_a_history_that_is_none_is_refused(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("upstream: {bootstrap_servers: 'k:9092'}\n")
    (tmp_path / "history").write_text(text)
    assert run(str(path), "--history", str(tmp_path / "history"), "--spool", str(tmp_path)) == 2
    assert f"--history: {tmp_path / 'history'}: " in (said := capsys.readouterr().err)
    assert words in said
    assert "policies history --limit 1000 -o json" in said


def test_the_changes_hold_from_their_times_on_and_the_wish_over_all() -> None:
    from gateway import config
    from gateway.audit.whatif import history
    from gateway.audit.whatif.command import make_rules

    past = history.parse_history(json.dumps(HISTORY))
    settings = config.parse_settings(
        "upstream: {bootstrap_servers: 'k:9092'}\nthresholds: {total.bytes.in.per.sec.threshold: 9MB}"
    )
    rules, _ = make_rules(settings, {PolicyKey.of_broker(): 5e6}, 30.0, past)
    assert rules.values == {PolicyKey.of_broker(): 5e6, PolicyKey.of_topic("clicks"): 1e6}
    assert [at_ms for at_ms, _ in rules.later] == [1763596800000, 1763600400500]
    assert rules.later[-1][1][PolicyKey.of_topic("clicks")] == 3e6


def test_a_baseline_that_does_not_explain_the_records_is_told(answer: Callable[..., Any]) -> None:
    from gateway.audit.whatif.command import _unexplained_notes

    lines = lines_of(two_brokers())
    right = answer(lines, rules_for_two(0.5), baseline=rules_for_two())
    assert right.baseline_deviation.share < 0.01
    assert _unexplained_notes(right, []) == []
    wrong = answer(lines, rules_for_two(0.5), baseline=rules_for_two(0.5))
    assert wrong.baseline_deviation.share > 0.1
    (note,) = _unexplained_notes(wrong, [])
    assert note.startswith("the baseline doesn't explain the records: by it alone ")
    assert "give --history" in note
    assert answer(lines, rules_for_two()).baseline_deviation is None


def test_policies_that_were_changed_on_the_way_explain_the_records(answer: Callable[..., Any]) -> None:
    made = worker()
    play([made], START, 120)
    made.engine.set_thresholds(150_000.0, {})
    lines = lines_of(play([made], START + 120, 120))
    changed = ReplayRules(limits().values, later=((START_MS + 120_000, {PolicyKey.of_broker(): 150_000.0}),))
    assert answer(lines, changed, baseline=changed).baseline_deviation.share < 0.02
    assert answer(lines, limits(), baseline=limits()).baseline_deviation.share > 0.1


def test_the_parts_of_a_configuration_that_are_replayed() -> None:
    from gateway import config
    from gateway.audit.whatif.command import make_rules

    settings = config.parse_settings(
        """
upstream: {bootstrap_servers: 'k:9092'}
mode: observe
thresholds: {total.bytes.in.per.sec.threshold: 10MB, topics: {clicks: {bytes.in.per.sec.threshold: 1MB}}}
client_quotas: [{user: alice, request_percentage: 50, producer_byte_rate: 1MB}]
internal: {principals: ["User:mirror"], clients: [{principal: "User:bob", client_id: sync}]}
"""
    )
    rules, notes = make_rules(settings, {PolicyKey.of_topic("clicks"): 2e6}, 30.0)
    assert rules.values[PolicyKey.of_broker()] == 1e7
    assert rules.values[PolicyKey.of_topic("clicks")] == 2e6, "a document stands over the file"
    assert rules.exempt_principals == {"User:mirror"}
    assert rules.exempt_clients == {("User:bob", "sync")}
    assert [note.split(":")[0].split(" is ")[0] for note in notes] == ["mode observe", "request_percentage"]
    burst = config.parse_settings("{upstream: {bootstrap_servers: 'k:9092'}, thresholds: {burst: 10s}}")
    assert make_rules(burst, {}, 30.0)[1][0].startswith("thresholds.burst is not replayed")
    steps = config.parse_settings("{upstream: {bootstrap_servers: 'k:9092'}, thresholds: {enforce_percent: 5}}")
    assert make_rules(steps, {}, 30.0)[1][0].startswith("enforce_percent: ")
