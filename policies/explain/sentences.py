# The sentences about the whole: which rule comes first, what storage protection does, and what else to know.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from policies.definitions.rollout import ALL_CLIENTS, rollout_place
from policies.explain import groups
from policies.explain.case import ExplainCase
from policies.explain.model import PRINCIPAL_TYPE, ExplainInputs, HeldTraffic, TopicFlow
from policies.limits.description import MAX_NAMED, LimitDescription
from policies.text import ERROR_CHARS, one_line
from policies.thresholds.sums import find_overcommitted, over_text
from policies.units import format_rate, format_time

START_MS: Final = 5_000  # of a run of rejections that goes on at a start the first one comes within so long
_ACTION_TEXTS: Final = {"refuse": "refused", "hold": "held", "reject": "rejected", "delay": "delayed"}
_ENFORCED: Final = ("rejected", "dropped", "delayed")
_POLICY_NAMES: Final = {"threshold": "thresholds", "quota": "client quotas", "group": "resource groups"}


def summarize_rules(
    first: LimitDescription | None,
    internal: str,
    rules: Sequence[LimitDescription],
    lately: Sequence[HeldTraffic],
    now_ms: int,
) -> str:
    """Why this traffic is or isn't held back, in one sentence: what is done to it, by which rule, rate and limit, where
    that is set, and how long requests waited. `lately`: what was held of it, the newest first.

    The rules for produced traffic, as most users ask about that, behind those that hold this client's Fetch requests
    back.
    """
    fetch = [rule for rule in rules if rule.traffic == "fetch" and rule.mode == "enforce" and rule.limits_now]
    produced = _produce_summary(first, internal, rules, lately, now_ms)
    if not fetch:
        return produced
    held = "; ".join(
        f"{rule.name}{_broker_text(rule)} limits this client's Fetch requests now: {rule.text}" for rule in fetch
    )
    if first is None:
        return f"{held}; nothing limits what it produces"
    return f"{held}; of what it produces: {produced}"


def _produce_summary(
    first: LimitDescription | None,
    internal: str,
    rules: Sequence[LimitDescription],
    lately: Sequence[HeldTraffic],
    now_ms: int,
) -> str:
    held = [each for each in lately if each.outcome in _ENFORCED]
    if first is not None and first.limits_now:
        mine = [  # with what was dropped (acks=0): the reason there is that, and not the limit
            each
            for each in held
            if (each.is_by(first.name) or each.outcome == "dropped") and first.broker in (None, each.broker)
        ]
        parts = (
            f"{_ACTION_TEXTS[first.action]} now by {first.name}{_broker_text(first)}: {first.text}",
            _limit_sources(first),
        )
        return "; ".join(filter(None, (*parts, _effect_text(mine, now_ms))))
    last = f"; {held[0].reason} {held[0].outcome} some of it {_age_text(held[0], now_ms)}" if held else ""
    if first is None:
        return (internal or "nothing limits this traffic") + last
    others = "" if sum(1 for rule in rules if rule.levels) > 1 else ", the only limit"
    return (
        f"nothing limits this traffic now{last}; {first.name}{_broker_text(first)} would be first{others}: {first.text}"
    )


def _limit_sources(rule: LimitDescription) -> str:
    """Where its limits are set; "" where that is nowhere."""
    origins = dict.fromkeys(level.origin for level in rule.levels if level.origin)
    return f"{'limits' if len(rule.levels) > 1 else 'limit'} from {' and '.join(origins)}" if origins else ""


def _effect_text(held: Sequence[HeldTraffic], now_ms: int) -> str:
    """What clients notice of it. `held`: by that rule, the newest first."""
    parts = []
    for outcome in dict.fromkeys(each.outcome for each in held):
        mine = [each for each in held if each.outcome == outcome]
        requests, delay_ms = sum(each.requests for each in mine), sum(each.delay_ms for each in mine)
        waits = f" by {delay_ms / requests / 1000:.1f} s each" if outcome == "delayed" and requests else ""
        parts.append(f"{requests:,} {'request was' if requests == 1 else 'requests were'} {outcome}{waits}")
    return f"{' and '.join(parts)} lately, the latest {_age_text(held[0], now_ms)}" if parts else ""


def _age_text(held: HeldTraffic, now_ms: int) -> str:
    return f"{max(0, now_ms - held.last_ms) / 1000:.0f} s ago"


def _broker_text(rule: LimitDescription) -> str:
    return "" if rule.broker is None else f" on broker {rule.broker}"


def storage_effect_text(known: ExplainInputs) -> str:
    """The effect of the storage factor on produce limits, one line."""
    storage = known.storage
    if storage is None:
        return "storage protection is off: full disks change no limit"
    origin = "" if storage.origin == "valid" else f" ({storage.origin})"
    why = f": {storage.why}" if storage.why else ""
    if storage.value >= 1:
        return f"OPEN{origin}: every limit holds as it is configured{why}"
    topics = ""
    if known.affected is not None:
        topics = f" of {sum(len(each.topics) for each in known.affected):,} topics with a replica on a full volume"
    if known.effective_mode(known.storage_mode) == "observe":
        seen = "mode observe: limits stay as they are, it is only counted"
        return f"{storage.state}{origin}{topics}, factor {storage.value:.3g}, {seen}{why}"
    if topics:
        return f"{storage.state}{origin}{topics}{why}"
    if storage.state == "PAUSE":
        return f"PAUSE{origin}, factor 0: nothing is forwarded{why}"
    return f"THROTTLE{origin}, every produce limit x {storage.value:.3g}{why}"


def explain_notes(case: ExplainCase) -> Iterator[str]:
    asked, known = case.subject, case.inputs
    if known.observe:
        yield "mode observe: nothing is enforced, all of it is only counted"
    yield from _rollout_notes(case)
    if asked.user.startswith(PRINCIPAL_TYPE):
        user, principal = one_line(asked.user), one_line(asked.principal)
        yield f"the user is {user}, whose principal is {principal}: did you mean {user.removeprefix(PRINCIPAL_TYPE)}?"
    if known.led_topics and not case.leaders:
        yield f"the metadata has no topic {asked.topic}: the explanation assumes that every broker leads a part of it"
    elif case.leaders and asked.broker is not None and asked.broker not in case.leaders:
        yield (
            f"broker {asked.broker} leads no partition of topic {asked.topic}:"
            f" {', '.join(map(str, case.leaders))} {'does' if len(case.leaders) == 1 else 'do'}"
        )
    here = {broker: frozenset(known.led_topics.get(broker, ())) for broker in case.brokers if broker is not None}
    for name, each in find_overcommitted(known.policies.commitments_by_broker(here)).items():
        yield over_text(name, each)
    yield from _other_clients_note(case)
    for gateway, flow in sorted(known.elsewhere.items()):
        only = "what holds it back there only its explain says"
        yield f"gateway {one_line(gateway)} has such traffic too; {only}: {_flow_text(flow)}"
    if known.unheard:
        yield (
            "other gateways can't be heard: what they use is not known, and this gateway's shares of limits become even"
            f" ones: {one_line(known.unheard, ERROR_CHARS)}"
        )
    if note := groups.missing_group_note(case):
        yield note
    if known.broker_quotas_problem:
        yield f"client quotas that the brokers enforce are not known: {known.broker_quotas_problem}"
    if known.rates.partial:
        yield (
            f"rates are known of the {len(known.rates.quotas):,} busiest client quotas only: one that is not among"
            " them may limit as well"
        )
    if not known.rates.brokers:
        yield "no rates are known yet: the meters report every 5 seconds"


def unknown_before_note(rules: Sequence[LimitDescription], known: ExplainInputs) -> Iterator[str]:
    """Where a rule may limit for longer than this control process knows."""
    if any(rule.since_ms is not None and rule.since_ms <= known.counted_since_ms + START_MS for rule in rules):
        began = format_time(known.counted_since_ms)
        yield f"this gateway's control process began at {began}, and knows of nothing that was held back before"


def held_elsewhere_text(known: ExplainInputs) -> str:
    """The end of a summary that names nothing which limits: the other gateways that hold such traffic back."""
    found = sorted(one_line(name) for name, flow in known.elsewhere.items() if flow.rejected or flow.delayed)
    return f"; but ask {' and '.join(found)}, where such traffic is held back" if found else ""


def _flow_text(flow: TopicFlow) -> str:
    return ", ".join(
        f"{format_rate(rate)} {what.replace('would', 'would be held')}" for what, rate in flow._asdict().items() if rate
    )


def _other_clients_note(case: ExplainCase) -> Iterator[str]:
    """Where the question leaves user or client id open: rules are of one client, what was held back is of all."""
    asked = case.subject
    others = dict.fromkeys(
        f"{one_line(each.principal)} {one_line(each.client_id)!r}"
        for each in case.held
        if not (asked.principal.startswith(each.principal) and asked.client_id.startswith(each.client_id))
    )
    if others:
        named = ", ".join([*others][:MAX_NAMED])
        more = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
        yield (
            f"the rules are those of {asked.principal} {asked.client_id!r}: also ask for {named}{more}, of whom"
            " something was held back"
        )


def _rollout_notes(case: ExplainCase) -> Iterator[str]:
    """Policies that are enforced for a part of the clients."""
    known = case.inputs
    modes = {"threshold": known.threshold_mode, "quota": known.quota_mode, "group": known.group_mode}
    for policy, mode in modes.items():
        percent = float(getattr(known.rollout, policy))
        if percent < ALL_CLIENTS and known.effective_mode(mode) == "enforce":
            at = rollout_place(case.subject.principal, case.subject.client_id, known.rollout_key)
            among = "is not" if policy in case.observed else "is"
            yield (
                f"{_POLICY_NAMES[policy]} are enforced for {percent:g} % of the clients: this one, at {at:.2f} of 100,"
                f" {among} among them"
            )
