# DeleteTopics: a topic's threshold goes with its topic, as its configs do. The broker decides whether a client may
# delete a topic, and its answer says which are gone; neither request nor answer is changed. So nothing that fails here
# keeps a topic from being deleted: a threshold that stays is found by the id of the next topic of its name
# (PolicyService.on_cluster_answer).

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey, RuntimeValue
from policies.text import one_line
from protocol import api
from protocol.admin import topic_deletion
from protocol.admin.topic_deletion import topic_id_text
from protocol.admin.topics import NO_ID

log = logging.getLogger("gateway.policy")

DOOR: Final = "topic deleted"  # in the history


class DeletingTopics:
    """
    Attributes:
        is_concerned: topics with a threshold may be among those of the request.
        before: by place in the request, the thresholds that these topics have now.
    """

    def __init__(self, request: bytes, policies: PolicySet) -> None:
        self._head = topic_deletion.decode_request(request, 0, len(request))
        self._policies = policies
        self._by_id = {topic_id.topic: name for name, topic_id in policies.topic_ids.items()}
        topics = self._head.body.topics
        self._names = [topic.name or self._by_id.get(topic_id_text(topic.topic_id)) for topic in topics]
        found = {
            place: policies.runtime_value(PolicyKey.of_topic(name)) for place, name in enumerate(self._names) if name
        }
        self.before = {place: held for place, held in found.items() if held.value is not None}
        own = policies.topic_thresholds()
        self.is_concerned = bool(own) and any(name is None or name in own for name in self._names)

    def find_deleted(self, answer: bytes, before: Mapping[int, RuntimeValue]) -> dict[str, RuntimeValue]:
        """The thresholds to remove: those of topics that are gone by the broker's answer. `before`: as they were when
        the request was sent; any that were set since are for another topic.
        """
        earlier = {self._names[place]: held for place, held in before.items()}
        found: dict[str, RuntimeValue] = {}
        for name, topic_id, code, _ in topic_deletion.decode_response(answer, self._head.version):
            topic = name or self._by_id.get(topic_id_text(topic_id))
            if code != api.NONE or topic is None:
                continue
            key = PolicyKey.of_topic(topic)
            if key in self._policies.base:
                log.info("topic %s was deleted: its threshold in the configuration (%s) stays, for the next topic"
                         " of that name", one_line(topic), key.file_location)  # fmt: skip
            held = self._policies.runtime_value(key)
            if held.topic_id is None or topic_id == NO_ID:
                held = earlier.get(topic, held)
            elif held.topic_id.topic != topic_id_text(topic_id):
                continue
            if held.value is not None:
                found[topic] = held
        return found
