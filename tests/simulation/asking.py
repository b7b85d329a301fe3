# Asks a gateway's explain and /metrics while the world goes on, and compares both with what its clients were told and
# with each other. Like the judge it shares no code with the product.

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from operator import itemgetter
from typing import Any, Final

from tests.simulation.clock import START_S, UNIX_S
from tests.simulation.judge import HELD_BACK, HeldBack, Judge, metric_sums
from tests.simulation.processes import Gateway

LATE_S: Final = 3.0  # for which control may not know yet what a worker did
LATELY_S: Final = 20.0  # explain has to know what was held back in this time
PAUSE_S: Final = 35.0  # without anything held back after which "since" begins again …
PAUSE_SLACK_S: Final = 4.0  # … give or take
FENCE: Final = "fence"  # behind what any limit rejects of an idempotent producer
REASONS: Final = {  # that explain may name, by a world's theme
    "group": {"resource-group"}, "percent": {"resource-group"}, "quota": {"client-quota"}, "total": {"topic-threshold"},
    "reject": {"topic-threshold", FENCE}, "mixed": {"resource-group", "client-quota"},
    "storage": {"topic-threshold", "storage-throttle", "storage-pause", FENCE},
    "affected": {"topic-threshold", "storage-throttle", "storage-pause", FENCE},
}  # fmt: skip


def since_bounds(spans: list[tuple[float, float]]) -> tuple[float, float]:
    """Between which the latest run began of moments that lie somewhere in these spans, whatever a pause of about
    PAUSE_S counts as. `spans`: in the order of their ends, at least one.
    """
    earliest, latest = spans[-1]
    for (from_s, to_s), (after_from_s, after_to_s) in zip(reversed(spans[:-1]), reversed(spans), strict=False):
        if after_to_s - from_s <= PAUSE_S - PAUSE_SLACK_S and latest == after_to_s:
            latest = to_s
        if min(earliest, after_from_s) - to_s > PAUSE_S + PAUSE_SLACK_S:
            break
        earliest = min(earliest, from_s)
    return earliest, latest


class Asking:
    """
    Args:
        limit: the present one.
    """

    def __init__(self, judge: Judge, theme: str, limit: Callable[[], float]) -> None:
        self._judge = judge
        self._theme = theme
        self._reasons = REASONS.get(theme, set())
        self._limit = limit
        self._holds_clients = theme in ("group", "quota", "percent")  # whatever the topics

    async def ask(self, gateway: Gateway, client_id: str, topic: str, *, is_quiet: bool) -> None:
        """`is_quiet`: no fault is at work, nor was lately. What took long to be answered, or isn't yet, may have been
        held, though nobody was told to wait.
        """
        judge = self._judge
        began = judge.now()
        answer = await gateway.ask("/v1/explain", f"topic={topic}&client_id={client_id}")
        if answer is None:
            return
        judge.counts["explained"] += 1
        found: dict[str, Any] = json.loads(answer)
        times = list(judge.held_back.get((gateway.host, client_id, topic), ()))
        slow = [*judge.slow_answers.get((gateway.host, client_id, topic), ())]
        slow += judge.unanswered(gateway.host, client_id, topic)
        where = f"{gateway.name}, {client_id}, {topic}"
        reasons = self._reasons | ({FENCE} if self._reasons else set())
        for held in found["held"]:
            if held["outcome"] in ("delayed", "rejected") and held["reason"] not in reasons:
                judge.accuse("explain", f"{where}: {held['outcome']} for {held['reason']!r}")
        if is_quiet:
            forgotten_s = times[0].at if len(times) == HELD_BACK else 0.0  # until when nothing is known
            times = [each for each in times if each.at <= began]
            self._compare_times(found, times, forgotten_s, slow, began, where)
            if self._theme not in ("storage", "affected"):  # where limits are parts of what is configured
                self._compare_limits(found, where)

    def _compare_times(
        self,
        found: dict[str, Any],
        times: list[HeldBack],
        forgotten_s: float,
        slow: list[HeldBack],
        now: float,
        where: str,
    ) -> None:
        judge = self._judge
        held = [each for each in found["held"] if each["outcome"] in ("delayed", "rejected")]
        # Of a topic's own limit another topic in the same request may be over.
        certain = [each for each in times if each.is_alone or self._holds_clients]
        known = max((each.at for each in certain if each.at + each.wait_s <= now - LATE_S), default=0.0)
        if known > now - LATELY_S:
            last_s = max((each["last_ms"] / 1000 for each in held), default=0.0) - UNIX_S + START_S
            if last_s < known - LATE_S:
                judge.accuse("explain", f"{where}: held back at {known:.3f}, but explain knows nothing of it")
            judge.counts["explained that was held back"] += 1
        for rule in found["rules"]:
            if rule["since_ms"] is None:
                continue
            since_s = rule["since_ms"] / 1000 - UNIX_S + START_S
            mine, perhaps = (
                [each for each in many if rule["broker"] in (None, each.node_id)] for many in (times, slow)
            )
            past_s = now - PAUSE_S - PAUSE_SLACK_S
            if not mine or mine[-1].at + mine[-1].wait_s < past_s:
                if not perhaps or perhaps[-1].at < past_s:
                    judge.accuse("explain", f"{where}: limited by {rule['name']} since {since_s:.3f}, but nobody was")
                continue
            spans = sorted(((each.sent_at, each.at) for each in (*mine, *perhaps)), key=itemgetter(1))
            earliest, _ = since_bounds(spans)
            if earliest < forgotten_s + PAUSE_S + PAUSE_SLACK_S:
                earliest = 0.0
            latest = self._latest_since(mine, now, rule["name"])
            if not earliest - LATE_S <= since_s <= latest + LATE_S:
                judge.accuse(
                    "explain",
                    f"{where}: limited by {rule['name']} since {since_s:.3f}, clients since {earliest:.3f}"
                    f" to {latest:.3f}",
                )

    def _latest_since(self, mine: list[HeldBack], now: float, rule: str) -> float:
        """When the first of the runs at the brokers began at the latest, of those that surely go on by that rule."""
        latest = mine[-1].at if mine[-1].at > now - PAUSE_S + PAUSE_SLACK_S else now
        for node_id in {each.node_id for each in mine}:
            there = [each for each in mine if each.node_id == node_id]
            # Clients aren't told for which limit of several, or for which topic of a request.
            is_sure = self._reasons == {rule} and (self._holds_clients or all(each.is_alone for each in there))
            if is_sure and there[-1].at > now - PAUSE_S + PAUSE_SLACK_S:
                latest = min(latest, since_bounds([(each.sent_at, each.at) for each in there])[1])
        return latest

    def _compare_limits(self, found: dict[str, Any], where: str) -> None:
        limit = self._limit()
        rule = next((each for each in found["rules"] if each["first"]), None)
        if rule is None or rule["since_ms"] is None or rule["name"] == FENCE:
            return
        configured = {level["configured"] for level in rule["levels"]}
        if limit not in configured:
            self._judge.accuse("explain", f"{where}: {rule['name']} of {configured}, but the limit is {limit:.0f}")

    async def ask_storage(self, gateway: Gateway, on_full_disks: Collection[str]) -> None:
        """Only topics with a replica on a disk that may fill up are held. `on_full_disks`: they."""
        answer = await gateway.ask("/v1/storage")
        if answer is not None:
            self._judge.counts["storage asked"] += 1
            found: list[Any] = json.loads(answer).get("affected") or []
            for each in found:
                if each["factor"] < 1.0 and not set(each["topics"]) <= set(on_full_disks):
                    self._judge.accuse("held without need", f"{gateway.name}: {each['by']} holds {each['topics']}")

    async def compare_metrics(self, gateway: Gateway, topic: str) -> None:
        """Explain's sum of what was rejected is that of /metrics."""
        sums: list[int] = []
        for path in ("/metrics", "/v1/explain", "/metrics"):
            answer = await gateway.ask(path, f"topic={topic}" if path == "/v1/explain" else "")
            if answer is None:
                return
            if path == "/metrics":
                sums.append(metric_sums(answer.decode())[topic, "rejected"])
            else:
                held: Iterable[Any] = json.loads(answer)["held"]
                sums.append(sum(each["bytes"] for each in held if each["outcome"] == "rejected"))
        self._judge.counts["metrics compared"] += 1
        before, explained, after = sums
        if not before <= explained <= after:
            self._judge.accuse(
                "explain", f"{gateway.name}, {topic}: {explained} bytes rejected, /metrics {before} to {after}"
            )
