# The Produce requests of one connection, and how far they are allowed: which partitions are over a limit, and which
# stand behind a rejected batch.
#
# Knows partitions as the tuples that produce_request.skim_request gives; knows no bytes on the wire and no order of
# answers. How every byte is counted is the accounts' (accounts.py).

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gateway.data.session.accounts import ProduceAccounts
from gateway.data.shared.client import ConnectedClient
from gateway.data.shared.topics import ConnectionTopics, is_counted_name, is_valid_name, shown_name
from policies import decision, verdict
from policies.decision import NO_LIMITS, AdmissionCredit, ClientPatience, PartitionLimits
from policies.idempotence.fence import ProducerFence
from policies.meters.broker_meters import OTHER_TOPICS
from policies.plugin import PluginLimit
from policies.storage.request_limits import StoragePause, StorageThrottle
from policies.thresholds.broker_limits import TopicThresholdLimit
from policies.usage import OBSERVED_OUTCOMES
from policies.verdict import Verdict
from protocol import api

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.data.pending.steps import ProduceRequest
    from policies.decision import PartitionKey, RefusedPartitions, RequestDecision
    from policies.groups.group_limiters import GroupLimit
    from policies.meters.topic_meter import TopicMeter
    from protocol.produce.produce_request import PartitionBatch

UNLIMITED_CREDIT: Final = AdmissionCredit(NO_LIMITS, math.inf, math.inf, math.inf)
# The Kafka error codes of partitions that are refused regardless of limits.
_ERROR_CODES = {
    verdict.UNKNOWN_TOPIC_ID: api.UNKNOWN_TOPIC_ID,
    verdict.PROTECTED_TOPIC: api.TOPIC_AUTHORIZATION_FAILED,
}


class ProduceGate:
    """What policies decide about one client's connection to one broker. Its topics and rows are valid while `epoch` is
    the ledger's. `denied_since`: the time of the first rejection after which nothing was admitted; 0.0: none.
    """

    __slots__ = ("_would_wait_until", "accounts", "broker", "client", "denied_since", "epoch", "fence", "topics",
                 "world")  # fmt: skip

    def __init__(self, client: ConnectedClient) -> None:
        self.client = client
        self.world = client.world
        self.broker = self.world.engine.broker_meters(client.node_id)
        self.topics = ConnectionTopics(self.world, self.broker)
        self.accounts = ProduceAccounts(client, self.topics, self.broker)
        self.fence = ProducerFence()
        self.epoch = -1
        self.denied_since = 0.0
        self._would_wait_until = 0.0  # if what is only observed were enforced

    def refresh_epoch(self) -> None:
        """The ledger's epoch has changed: drop the rows and meters of the former one."""
        self.epoch = self.world.ledger.epoch
        self.topics.reset_meters()
        self.accounts.reset_rows()

    def enforced_pause(self) -> Verdict | None:
        """The storage pause, if it is enforced: nothing from this connection may be forwarded now."""
        pause = self.world.engine.pause
        return None if pause is None or self._only_observes(pause) else pause.verdict

    def count_paused_partitions(self, parts: Iterable[PartitionBatch], version: int) -> int:
        """How many of these partitions wait because full disks hold their topics, and not all topics."""
        pauses, storage_of, name = (
            self.world.engine.affected_topics.pauses_by_part,
            self.broker.storage_limit_of,
            self.topics.resolve_name,
        )
        if not pauses:
            return 0
        found = [storage_of(name(part[0], version)) for part in parts]
        return sum(isinstance(each, StoragePause) and not self._only_observes(each) for each in found)

    def find_unnamed(self, parts: Iterable[PartitionBatch], version: int) -> frozenset[bytes]:
        """The topic ids whose names have to be known before this request is judged. Of a request by name: those of
        batches that were rejected under their ids, behind which its own may stand.
        """
        if version >= api.PRODUCE_TOPIC_IDS:
            return self.topics.find_unnamed(parts)
        is_behind = bool(self.fence.entries) and any(part[4] >= 0 for part in parts)
        return self.topics.find_unnamed_refused() if is_behind else frozenset()

    @property
    def passes_other_topics(self) -> bool:
        """Whether something from this connection got into the log that would also pass now, while full disks hold some
        topics.
        """
        return any(
            not isinstance(self.broker.storage_limit_of(name), StoragePause) for name in self.accounts.accepted_topics
        )

    def _only_observes(self, pause: StoragePause) -> bool:
        return pause.observes or self.client.is_exempt or self.world.settings.mode == "observe"

    def judge_request(
        self, request: ProduceRequest, now: float, *, wait_ms: int = 0, may_delay: bool = True
    ) -> RequestDecision[PartitionBatch]:
        """Decide which partitions of the request may pass. Charges nothing: `record_admission` charges for those that
        are forwarded.

        `wait_ms`: milliseconds that this connection is muted already. `may_delay`: False when its oldest request has
        waited as long as any may; then partitions that would have to wait are refused.
        """
        parts, version = request.parts, request.version
        reject_code = self.world.settings.reject_code
        beside = request.stop - request.start - sum([part[2] for part in parts])
        standing = self._fixed_refusals(parts, version, now, wait_ms)
        if standing:
            parts = [part for part in parts if part[:2] not in standing]
        return decision.decide_request(
            parts,
            {} if self.client.is_exempt else self._find_limits(parts, version, beside, now),
            ClientPatience(may_delay, now - self.denied_since if self.denied_since else 0.0, self.client.counted_names),
            now,
            standing=standing,
            observed=self.client.observed_policies,
            would_wait=now < self._would_wait_until,
            # Clients without a name send the whole request again: what passed now would be written twice. With acks=0
            # nothing comes again: what could pass would be lost.
            one_fate=request.acks != 0 and verdict.needs_whole_request(self.client.software_name, reject_code),
        )

    @property
    def must_ask_limits(self) -> bool:
        """Whether some limit has to judge requests to every topic."""
        client = self.client
        if client.is_exempt:
            return False
        return (
            client.produce_quota is not None
            or client.group_limit is not None
            or self.broker.limits.storage_throttle is not None
        )

    def find_credit(self, meter: TopicMeter, now: float) -> tuple[AdmissionCredit, float] | None:
        """The bytes and messages that requests to that topic may bring now without being judged (fast_path.pyx), and
        the bytes beyond which other limits have to judge; None: each request has to be judged. Charges nothing: see
        decision.spend_credit.
        """
        client, engine = self.client, self.world.engine
        if client.is_exempt:
            return UNLIMITED_CREDIT, math.inf
        storage = self.broker.limits.storage_throttle
        if meter.is_affected:
            held_by = (
                None if meter.name == OTHER_TOPICS else self.broker.storage_limit_of(meter.name)
            )  # OTHER_TOPICS is several
            if not isinstance(held_by, StorageThrottle):
                return None
            storage = held_by
        group, threshold, left = None, None, math.inf
        if meter.group_asks:
            group = engine.groups.asking_limit(meter, now)
            if group is None:
                return None
        else:
            left = meter.ask_group_at - meter.uncounted
            if meter.by_principal:
                group = client.group_limit
        if meter.thresholds_ask:
            threshold = TopicThresholdLimit(self.broker.limits, meter, meter.name)
        else:
            left = min(left, meter.ask_thresholds_at - meter.uncounted)
        limits = PartitionLimits(storage, client.produce_quota, group, threshold)
        found = decision.find_credit(limits, client.counted_names, now, client.observed_policies)
        return None if found is None else (found, left)

    def _fixed_refusals(
        self, parts: Iterable[PartitionBatch], version: int, now: float, wait_ms: int
    ) -> dict[PartitionKey, Verdict]:
        """The partitions that are refused independently of any limit."""
        world, fence = self.world, self.fence
        known = world.cluster.topic_ids
        refused: dict[PartitionKey, Verdict] = {}
        for topic, index, _, _, pid, producer_epoch, sequence, _ in parts:
            name = self.topics.resolve_name(topic, version)
            if version >= api.PRODUCE_TOPIC_IDS and topic not in known:  # which may be a protected one's
                refused[topic, index] = verdict.unknown_topic_id(shown_name(name))
            elif name in world.protected_topics:
                refused[topic, index] = verdict.protected_topic(shown_name(name))
            elif (
                fence.entries
                and pid >= 0
                and any(
                    fence.blocks_batch(pid, producer_epoch, each, index, sequence, now)
                    for each in self.topics.list_names(topic, version, possible=True)
                )
            ):
                refused[topic, index] = verdict.behind_fence(shown_name(name), index, wait_ms)
        return refused

    def _find_limits(
        self, parts: Iterable[PartitionBatch], version: int, beside: int, now: float
    ) -> dict[PartitionKey, PartitionLimits]:
        """The limits on each of these partitions, none of which is among the fixed refusals. `beside`: bytes of their
        request that belong to no batch.
        """
        client, engine, plugins = self.client, self.world.engine, self.world.plugins
        if self.enforced_pause() is not None:  # no other limit is asked
            return dict.fromkeys((part[:2] for part in parts), PartitionLimits(storage=engine.pause))
        whole = PartitionLimits(
            storage=engine.pause or self.broker.limits.storage_throttle,  # of all topics
            quota=client.quota_limit.for_request(beside)
            if client.quota_limit.produce_limiters or client.quota_limit.time_limiters
            else None,
        )
        found: dict[PartitionKey, PartitionLimits] = {}
        by_topic: dict[bytes, PartitionLimits] = {}
        for part in parts:
            topic = part[0]
            limits = by_topic.get(topic)
            if limits is None:
                limits = by_topic[topic] = self._topic_limits(topic, version, whole, now)
            if plugins:
                batch = client.node_id, self.topics.resolve_name(topic, version), part[1], part[4]
                limits = limits._replace(
                    plugin=PluginLimit(plugins, batch, (client.principal, client.counted_names[1]))
                )
            if limits is not NO_LIMITS:
                found[part[:2]] = limits
        return found

    def _topic_limits(self, topic: bytes, version: int, whole: PartitionLimits, now: float) -> PartitionLimits:
        """`whole`: the limits on the whole request."""
        storage = whole.storage
        if self.world.engine.affected_topics.parts:
            storage = self.broker.storage_limit_of(self.topics.resolve_name(topic, version))
            if isinstance(storage, StoragePause) and not self._only_observes(storage):
                return PartitionLimits(storage=storage)  # no other limit is asked
        meter = self.topics.find_meter(topic, version)
        group = None
        if self.world.engine.groups.has_groups:
            group = self._find_group_limit(meter, self.topics.resolve_name(topic, version), now)
        threshold = None
        if meter.thresholds_ask:
            threshold = TopicThresholdLimit(self.broker.limits, meter, self.topics.resolve_name(topic, version))
        found = PartitionLimits(storage, whole.quota, group, threshold)
        return NO_LIMITS if found == NO_LIMITS else found

    def _find_group_limit(self, meter: TopicMeter, name: bytes, now: float) -> GroupLimit | None:
        """The group that judges requests to that topic; None: there is none, or it has enough credit. `name`: the
        topic's; several topics may share a meter.
        """
        groups, is_shared = self.world.engine.groups, meter.name == OTHER_TOPICS  # which a client may send as a name
        if is_shared and not is_valid_name(name):  # groups remember the names that they are asked about
            return self.client.group_limit
        if meter.group_asks:
            group_limit = groups.activate_publish_limit(meter, name, now)
            if group_limit is not None:
                return group_limit
        by_principal = groups.depends_on_principal(name) if is_shared else meter.by_principal
        return self.client.group_limit if by_principal else None

    def error_code(self, why: Verdict) -> int:
        """The Kafka error code that reports this verdict to the client."""
        own = None if why.deferred else _ERROR_CODES.get(why.reason)
        return own or self.world.reject_code(self.client.software)

    def record_admission(
        self, judged: RequestDecision[PartitionBatch], parts: Sequence[PartitionBatch], version: int, now: float
    ) -> None:
        """Record and charge for the forwarded partitions of a request (V1: only admitted bytes are recorded)."""
        fence, total, limits, is_exempt = self.fence, self.broker.total, judged.limits, self.client.is_exempt
        self.denied_since = 0.0
        decision.charge_admitted(judged, parts, now)
        if judged.notes and now >= self._would_wait_until:
            would_ms = max(
                (wait_ms for _, outcome, _, wait_ms in judged.notes if outcome in OBSERVED_OUTCOMES), default=0
            )
            self._would_wait_until = now + would_ms / 1000
        for topic, index, size, messages, pid, producer_epoch, _, _ in parts:
            meter = self.topics.find_meter(topic, version)
            meter.uncounted += size
            total.uncounted += size
            if is_exempt or (limits and limits.get((topic, index), NO_LIMITS).group is not None):
                meter.counted_in_group += size  # not for the group to find once more
            else:
                meter.messages += messages
            if fence.entries and pid >= 0:
                for each in self.topics.list_names(topic, version):
                    fence.record_admission(pid, producer_epoch, each, index)

    def record_rejection(
        self, parts: Iterable[PartitionBatch], version: int, refused: RefusedPartitions, now: float
    ) -> None:
        """Count the rejected partitions, and fence the batches that their producers may have in flight behind them."""
        self.denied_since = self.denied_since or now
        self.accounts.record_rejection(parts, version, refused)
        name, version_of = self.client.software or (None, None)
        for part in parts:
            topic, index, _, _, pid, producer_epoch, sequence, _ = part
            topic_name = self.topics.resolve_name(topic, version)
            # Behind a code that its client doesn't retry the base never comes back, and a fence would stay shut.
            if verdict.is_retried(self.error_code(refused[topic, index]), name, version_of) and is_counted_name(
                topic_name
            ):
                if pid >= 0:
                    if not self.fence.entries:
                        self.topics.refused_ids.clear()
                    self.fence.record_rejection(pid, producer_epoch, topic_name, index, sequence, now)
                    if version >= api.PRODUCE_TOPIC_IDS and topic not in self.world.cluster.topic_ids:
                        self.topics.record_refused_id(topic)
                self.accounts.expect_retry(part, topic_name, now)
