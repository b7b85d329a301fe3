# Whom a full volume holds: with scope "cluster" every producer, with scope "affected" only topics with a replica on it.
# Where the source reports which topics are on which volume, that counts; otherwise, a broker's topics are on
# all of its volumes. A topic that has come since then may be on any of them.
#
# Knows no Kafka and no clock; `value` and `why` are those of a factor.

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from policies.storage.judging import VolumeAssessment, VolumeFinding
from policies.storage.keeping import FactorState, state_of

StorageScope = Literal["cluster", "affected"]
VolumeKey = tuple[int, str]  # broker id, volume

MAX_TOPICS: Final = 100_000  # in one message to workers; where more are affected, all are held


class AffectedTopics(NamedTuple):
    """The topics that one volume holds; `value` 0: they are paused, else they share that part of each broker's total.

    `key`: names it for as long as it holds: "broker 2 /data/1". `topics`: sorted, each of one volume only: the fullest.
    `brokers`: whatever topic they lead that metadata doesn't list yet is among them.
    """

    key: str
    value: float
    why: str
    topics: tuple[str, ...] = ()
    brokers: tuple[int, ...] = ()

    @property
    def state(self) -> FactorState:
        return state_of(self.value)


class ReplicaPlacement(NamedTuple):
    """`replicas`: by broker id, the topics with a replica there, as metadata has it; a partition that moves has one at
    either end. `dirs`: the topics of a volume, of brokers that reported them.
    """

    replicas: Mapping[int, frozenset[str]]
    dirs: Mapping[VolumeKey, frozenset[str]] = {}

    def topics_on(self, finding: VolumeFinding, volumes: Iterable[str]) -> frozenset[str]:
        """The topics on that volume. `volumes`: all of its broker."""
        broker_id, name = finding.volume.broker_id, finding.volume.name
        here = self.replicas.get(broker_id, frozenset())
        known = [self.dirs.get((broker_id, each)) for each in volumes]
        told = [each for each in known if each is not None]
        if len(known) < 2 or len(told) < len(known):
            return here
        return self.dirs[broker_id, name] | here.difference(*told)


def find_affected(
    assessment: VolumeAssessment,
    placement: ReplicaPlacement | None,
    unknown: Mapping[int, str] | None,
    is_exempt: Callable[[str], bool] = lambda topic: False,
) -> tuple[AffectedTopics, ...] | None:
    """The affected topics, those of the fullest volume first; None: all topics there are.

    `placement` None: not known. `unknown`: active brokers of which nothing is known and that are to be taken for full,
    each with the reason; None: nothing is known at all.
    """
    if unknown is None:
        return None
    limiting = sorted(
        (each for each in assessment.findings if assessment.factor_of(each) < 1), key=_severity_order(assessment)
    )
    if not limiting and not unknown:
        return ()
    if placement is None:
        return None
    found: list[AffectedTopics] = []
    seen: set[str] = set()
    for key, value, why, broker_id, topics in _topic_claims(limiting, assessment, placement, unknown):
        own = {topic for topic in topics if topic not in seen and not is_exempt(topic)}
        seen |= own
        found.append(AffectedTopics(key, value, why, tuple(sorted(own)), (broker_id,)))
    return tuple(found) if len(seen) <= MAX_TOPICS else None


def _topic_claims(
    limiting: list[VolumeFinding], assessment: VolumeAssessment, placement: ReplicaPlacement, unknown: Mapping[int, str]
) -> Iterator[tuple[str, float, str, int, frozenset[str]]]:
    """The strictest first."""
    for broker_id, why in sorted(unknown.items()):
        yield f"broker {broker_id}", 0.0, why, broker_id, placement.replicas.get(broker_id, frozenset())
    volumes: dict[int, list[str]] = {}
    for each in assessment.findings:
        volumes.setdefault(each.volume.broker_id, []).append(each.volume.name)
    for finding in limiting:
        broker_id, name = finding.volume.broker_id, finding.volume.name
        value, why = assessment.factor_of(finding), finding.reason_text(assessment.held)
        yield f"broker {broker_id} {name}", value, why, broker_id, placement.topics_on(finding, volumes[broker_id])


def crowded_brokers(assessment: VolumeAssessment) -> frozenset[int]:
    """The active brokers of which one volume is at a limit and another one is there: it matters what lies where."""
    active = [each for each in assessment.findings if not each.volume.left]
    number = Counter(each.volume.broker_id for each in active)
    limiting = {each.volume.broker_id for each in active if assessment.factor_of(each) < 1}
    return frozenset(broker_id for broker_id in limiting if number[broker_id] > 1)


def topic_matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a topic's name is one of these; `*` stands for any characters."""
    texts = ["".join(".*" if each == "*" else re.escape(each) for each in pattern) for pattern in patterns]
    if not texts:
        return lambda topic: False
    found = re.compile("|".join(f"(?:{text})" for text in texts))
    return lambda topic: found.fullmatch(topic) is not None


def _severity_order(assessment: VolumeAssessment) -> Callable[[VolumeFinding], tuple[float, float, int, str]]:
    def key(finding: VolumeFinding) -> tuple[float, float, int, str]:
        volume = finding.volume
        return assessment.factor_of(finding), volume.available_ratio, volume.broker_id, volume.name

    return key
