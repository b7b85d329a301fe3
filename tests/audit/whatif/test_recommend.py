# Thresholds from usage: what counts as demand, how it is cut to fit a total, and that the gateway's own reader takes
# what is written. That a gateway takes it is tested in test_whatif_gateway.py.

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import policy_document as document
from gateway.audit import cli
from gateway.audit.local.records import LocalRecords
from gateway.audit.whatif import rates
from gateway.audit.whatif.recommend import (
    InfeasibleThresholds,
    RecommendOptions,
    ThresholdAdvice,
    TopicPeak,
    advice_json,
    advice_yaml,
    advise_thresholds,
    find_peaks,
    measure_rates,
    rate_question,
    threshold_reasons,
)
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from tests.audit import records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def topic(name: str, rate: float, **more: Any) -> TopicPeak:
    made = {"topic": name, "broker": 1, "rate": rate, "most": rate, "windows": 60, "unknown": False, **more}
    return TopicPeak(**{"brokers": (made["broker"],), **made})


def thresholds(advice: Sequence[ThresholdAdvice]) -> dict[str, float]:
    return {each.peak.topic: each.threshold for each in advice}


# --- who gets how much ------------------------------------------------------------------------------------------------


def test_the_wanted_rate_and_some_head_room_with_few_digits() -> None:
    advice = advise_thresholds([topic("clicks", 4_123_456), topic("orders", 87)], RecommendOptions(20e6, headroom=0.2))
    assert thresholds(advice) == {"clicks": 5_000_000, "orders": 110}
    assert not any(each.is_lowered for each in advice)


def test_when_it_does_not_fit_small_wants_are_met_and_the_others_get_alike() -> None:
    advice = advise_thresholds(
        [topic("a", 1e6), topic("b", 30e6), topic("c", 60e6)], RecommendOptions(20e6, headroom=0.0, reserve=0.05)
    )
    assert thresholds(advice) == {"a": 1_000_000, "b": 9_000_000, "c": 9_000_000}
    assert [each.is_lowered for each in advice] == [False, True, True]


def test_every_topic_gets_the_least_even_when_it_does_not_fit() -> None:
    advice = advise_thresholds(
        [topic("idle", 0.0), topic("busy", 90e6)], RecommendOptions(10e6, min_threshold=1e6, reserve=0.0)
    )
    assert thresholds(advice) == {"idle": 1_000_000, "busy": 9_000_000}


def test_topics_make_room_for_each_other_only_on_brokers_that_have_both() -> None:
    """Thirty brokers with three topics each get as much as one broker's three would."""
    topics = [topic(f"t{number}", 30e6, broker=number // 3) for number in range(90)]
    assert set(thresholds(advise_thresholds(topics, RecommendOptions(20e6, headroom=0.0, reserve=0.1))).values()) == {
        6_000_000
    }
    wide = topic("wide", 30e6, broker=0, brokers=(0, 1))
    found = thresholds(advise_thresholds([wide, *topics[:4]], RecommendOptions(20e6, headroom=0.0, reserve=0.0)))
    assert found == {"wide": 5_000_000, "t0": 5_000_000, "t1": 5_000_000, "t2": 5_000_000, "t3": 15_000_000}


def test_more_topics_than_the_least_has_room_for_is_refused_with_what_would_do() -> None:
    with pytest.raises(
        InfeasibleThresholds,
        match=r"3 topics of broker 1 with at least 1.0 MB/s each need 3.0 MB/s.*lower --min to 666666",
    ):
        advise_thresholds([topic(name, 1.0) for name in "abc"], RecommendOptions(2e6, min_threshold=1e6, reserve=0.0))


def test_nothing_recorded_is_only_the_total() -> None:
    assert advise_thresholds([], RecommendOptions(1e6)) == []
    assert document.parse_document(advice_yaml([], RecommendOptions(1e6))) == {PolicyKey.of_broker(): 1e6}


def test_it_says_when_records_are_missing() -> None:
    text = advice_yaml([], RecommendOptions(1e6), complete=False)
    assert "# Records are missing" in text
    assert document.parse_document(text) == document.parse_document(advice_yaml([], RecommendOptions(1e6)))
    assert "missing" not in advice_yaml([], RecommendOptions(1e6))


@given(
    rates=st.lists(st.tuples(st.floats(0, 1e12), st.sets(st.integers(1, 4), min_size=1)), max_size=30),
    total=st.floats(1e3, 1e12),
    headroom=st.floats(0, 3),
    reserve=st.floats(0, 0.9),
    least=st.floats(0, 1),
)
def test_never_more_than_the_total_less_the_reserve(
    rates: list[tuple[float, set[int]]], total: float, headroom: float, reserve: float, least: float
) -> None:
    wish = RecommendOptions(
        total,
        headroom=headroom,
        reserve=reserve,
        min_threshold=least * total * (1 - reserve) / max(1, len(rates)) * 0.99,
    )
    topics = [topic(f"t{n}", rate, broker=min(on), brokers=tuple(on)) for n, (rate, on) in enumerate(rates)]
    advice = advise_thresholds(topics, wish)
    on = {broker: [each for each in advice if broker in each.peak.brokers] for broker in range(1, 5)}
    used = {broker: sum(each.threshold for each in each_on) for broker, each_on in on.items()}
    assert all(size <= total * (1 - reserve) * (1 + 1e-9) for size in used.values())
    for each in advice:  # what is lowered is on a full broker, of whose topics none has more; but for two digits
        full = [broker for broker in each.peak.brokers if used[broker] >= 0.89 * total * (1 - reserve)]
        most = [max(other.threshold for other in on[broker]) for broker in full]
        assert not each.is_lowered or min(most) <= each.threshold / 0.89
    assert all(wish.min_threshold * (1 - 1e-9) <= each.threshold <= each.wanted for each in advice)


# --- how it is written ------------------------------------------------------------------------------------------------

NAMES = ("clicks", "123", "null", "a" * 249, "x.y_z-1")


def test_the_gateway_s_own_reader_takes_it_with_any_names_of_topics() -> None:
    advice = advise_thresholds(
        [topic(name, 100_000.0 + number) for number, name in enumerate(NAMES)], RecommendOptions(20e6)
    )
    text = advice_yaml(advice, RecommendOptions(20e6))
    values = document.parse_document(text)
    assert values == {
        PolicyKey.of_broker(): 20e6,
        **{PolicyKey.of_topic(each.peak.topic): each.threshold for each in advice},
    }
    PolicySet().alter_policies(PolicySet().diff_values(values), places={1: set(NAMES)})
    assert advice_json(advice, RecommendOptions(20e6))["document"] == document.load_document(text)


def test_each_topic_has_its_reason_beside_it() -> None:
    wish = RecommendOptions(2e6, percentile=95, headroom=0.5, min_threshold=50_000, reserve=0.1)
    advice = advise_thresholds([topic("calm", 1000.0), topic("clicks", 8e6, most=9e6, broker=3, unknown=True)], wish)
    lines = advice_yaml(advice, wish).splitlines()
    (calm,) = [line for line in lines if line.startswith("    calm:")]
    (clicks,) = [line for line in lines if line.startswith("    clicks:")]
    assert calm.startswith("    calm: 50kB  # p95 of 1m rates 1.0 kB/s on broker 1 (60 with traffic, most 1.0 kB/s)")
    assert calm.endswith("raised to the least")
    assert "8.0 MB/s on broker 3" in clicks
    assert (
        "lowered to fit in 1.8 MB/s together with the others; repeats of rejected requests aren't all known" in clicks
    )
    assert threshold_reasons(advice, wish)["clicks"] in clicks
    exactly = RecommendOptions(2e6, percentile=99.99999, headroom=0.005)
    (said,) = threshold_reasons(advise_thresholds([topic("calm", 1000.0)], exactly), exactly).values()
    assert said.startswith("p99.99999 of 1m rates")
    assert "), 0.5% head-room:" in said


# --- what is wanted ---------------------------------------------------------------------------------------------------


Peaks = Callable[[Sequence[str], RecommendOptions], list[TopicPeak]]


@pytest.fixture
def peaks(records: Callable[[Sequence[str | None]], Any]) -> Peaks:
    """The peaks of these lines, in either engine."""

    def find(lines: Sequence[str], wish: RecommendOptions) -> list[TopicPeak]:
        found = records(lines)
        if isinstance(found, LocalRecords):
            return find_peaks(measure_rates(found.sum_groups(rate_question(wish, None, None)), wish), wish)
        return find_peaks(rates.measure_rates(found.rows, wish), wish)

    return find


def test_spark_measures_the_same_rates(unique: Callable[[Sequence[str | None]], DataFrame]) -> None:
    from gateway.audit.batch import transforms

    chance, lines = random.Random(5), []
    for seq in range(150):
        rows = [
            records.Row(
                chance.randrange(-1, 2),
                chance.choice(("clicks", "é", "quiet", "__consumer_offsets")),
                outcome=chance.choice(("accepted", "rejected", "errored", "would_reject")),
                reason="x",
                bytes=chance.choice((0, 7, chance.randrange(10**9))),
                repeats=chance.choice((None, 0, 7)),
            )
            for _ in range(4)
        ]
        lines += records.interval(seq, [row for row in rows if not row.repeats or row.bytes], version=1 + seq % 2)
    wish = RecommendOptions(1e9, percentile=37.3, window_ms=7000)
    bounds = (records.START + 500, records.START + 120_000)
    ours = measure_rates(LocalRecords([records.LineSource(lines)]).sum_groups(rate_question(wish, *bounds)), wish)
    rows_of_usage = transforms.filter_by_start(transforms.explode_rows(unique(lines)), *bounds)
    assert sorted(ours) == sorted(rates.measure_rates(rows_of_usage, wish))
    assert len(ours) == 9
    assert len({rate.usual % 1 for rate in ours}) > 3


def test_the_percentile_of_first_attempts_on_the_busiest_broker(peaks: Peaks) -> None:
    lines = []
    for second in range(200):  # windows of a second: 1000, 2000, … 200,000 bytes on broker 2, half as much on broker 1
        size = 1000 * (second + 1)
        rows = [
            records.Row(2, bytes=size // 2, repeats=0),
            records.Row(2, outcome="rejected", reason="topic-threshold", bytes=size // 2, repeats=0),
            records.Row(2, outcome="rejected", reason="topic-threshold", bytes=777_777, repeats=777_777),  # once more
            records.Row(2, outcome="delayed", reason="client-quota", bytes=size // 2),  # no bytes of their own
            records.Row(1, bytes=size // 2, repeats=0),
            records.Row(1, topic="__consumer_offsets", bytes=10**9, repeats=0),
        ]
        lines += records.interval(second, rows)
    (found,) = peaks(lines, RecommendOptions(1e9, percentile=50, window_ms=1000))
    assert found == TopicPeak("clicks", 2, 100_500.0, 200_000.0, 200, unknown=False, brokers=(1, 2))


def test_rates_are_those_of_windows_with_traffic(peaks: Peaks) -> None:
    lines = [*records.interval(0, [records.Row(bytes=60_000)]), *records.interval(3600, [records.Row(bytes=120_000)])]
    (found,) = peaks(lines, RecommendOptions(1e9, percentile=50))
    assert (found.rate, found.most, found.windows) == (1500.0, 2000.0, 2), "not diluted by an hour without"


def test_attempts_that_can_not_be_told_from_repeats_are_said_so(peaks: Peaks) -> None:
    rejected = records.Row(outcome="rejected", reason="topic-threshold", bytes=60_000)
    (found,) = peaks(records.interval(0, [rejected], version=1), RecommendOptions(1e9))
    assert found.unknown


def test_what_no_topic_is_called_gets_no_threshold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["<invalid>", "topic-id:AAAAAAAAAAAAAAAAAAAAAQ", "..", "", "clicks"]
    rows = [records.Row(topic=name, outcome="errored", reason="x", bytes=60_000) for name in names]
    (tmp_path / "a.jsonl").write_text("\n".join(records.interval(0, rows, final=True)))
    assert cli.main(["recommend", "--total", "1MB", "--spool", str(tmp_path), "--quiet"]) == 0
    found = document.parse_document(capsys.readouterr().out)  # as `policies apply` reads it
    assert [key.name for key in found if key.kind == "topic"] == ["clicks"]


# --- the command's options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--spool", "x"), "--total"),
        (("--total", "much", "--spool", "x"), "--total: 'much' is not a valid size"),
        (("--total", "0", "--spool", "x"), "--total: above 0 is needed"),
        (("--total", "1MB"), "nothing to read"),
        (("--total", "1MB", "--spool", "x", "--percentile", "0"), "--percentile: 0 is not a valid percentile"),
        (("--total", "1MB", "--spool", "x", "--headroom", "-1"), "--headroom: '-1' is not a valid share"),
        (("--total", "1MB", "--spool", "x", "--headroom", "much"), "--headroom: 'much' is not a valid share"),
        (("--total", "1MB", "--spool", "x", "--reserve", "100%"), "--reserve: 100% leaves nothing"),
        (("--total", "1MB", "--spool", "x", "--window", "day"), "for example: 30s, 1m, 1h or 1d\n"),
    ],
)
def test_wrong_options(argv: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recommend", *argv]) == 2
    assert words in capsys.readouterr().err
