# Whom a full volume holds: with scope "cluster" every producer, with scope "affected" only topics with a replica on it.
# Where the source reports which topics are on which volume, that counts; otherwise, a broker's topics are on
# all of its volumes. A topic that has come since then may be on any of them.
#
# Knows no Kafka and no clock; `value` and `why` are those of a factor.

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from policies.storage.judging import VolumeAssessment, VolumeFinding
from policies.storage.keeping import FactorState, state_of
from policies.storage.volumes import Volume, VolumeKey
from policies.text import compile_wildcards

StorageScope = Literal["cluster", "affected"]

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

    def topics_on(self, volume: Volume, names: Collection[str]) -> frozenset[str]:
        """The topics on that volume. `names`: of all volumes of its broker."""
        here = self.replicas.get(volume.broker_id, frozenset())
        if len(names) < 2 or not self.tells_volumes(volume.broker_id, names):
            return here
        return self.dirs[volume.key] | here.difference(*(self.dirs[volume.broker_id, each] for each in names))

    def tells_volumes(self, broker_id: int, names: Iterable[str]) -> bool:
        """Whether the broker reported the topics of each of these volumes."""
        return all((broker_id, each) in self.dirs for each in names)


def affected_key(volume: Volume) -> str:
    """The `key` of the topics that a volume holds."""
    return f"broker {volume.broker_id} {volume.name}"


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
    names = assessment.names_by_broker()
    for finding in limiting:
        volume, value, why = finding.volume, assessment.factor_of(finding), finding.reason_text(assessment.still_paused)
        topics = placement.topics_on(volume, names[volume.broker_id])
        yield affected_key(volume), value, why, volume.broker_id, topics


def crowded_brokers(assessment: VolumeAssessment) -> frozenset[int]:
    """The active brokers of which one volume is at a limit and another one is there: it matters what lies where."""
    names = assessment.names_by_broker()
    limiting = (each.volume for each in assessment.findings if assessment.factor_of(each) < 1)
    return frozenset(each.broker_id for each in limiting if not each.left and len(names[each.broker_id]) > 1)


def topic_matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a topic's name is one of these; `*` stands for any characters."""
    found = compile_wildcards(*patterns)
    return lambda topic: found.fullmatch(topic) is not None


def _severity_order(assessment: VolumeAssessment) -> Callable[[VolumeFinding], tuple[float, float, VolumeKey]]:
    def key(finding: VolumeFinding) -> tuple[float, float, VolumeKey]:
        return assessment.factor_of(finding), finding.volume.available_ratio, finding.volume.key

    return key
