# Which topic of a name is the present one. Metadata has the ids of topics; but a broker whose metadata is
# behind has the id of an earlier topic, so one that differs from what is known counts only once looks have found
# nothing else for a while. A topic that a look doesn't find says nothing: it may only be away.
#
# Pure: no I/O, no clock.

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policies.definitions.policy_values import TopicId, TopicIds

CONFIRM_S: Final = 10.0  # longer than a controller lets a broker fall behind (broker.session.timeout.ms, 9 s)


class SeenIds:
    """Ids from metadata that differ from the known ones."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[TopicId | None, TopicId, float]] = {}

    def find_confirmed(self, known: Mapping[str, TopicId | None], seen: TopicIds, now: float) -> TopicIds:
        """Those found for CONFIRM_S. `known`: of the topics with a threshold, what it was set for; `seen`: by this
        look.
        """
        self._since = {name: found for name, found in self._since.items() if name in known}
        due = {}
        for name in seen.keys() & known.keys():
            difference = known[name], seen[name]
            former = self._since.pop(name, None)
            if difference[0] != difference[1]:
                since = now if former is None or former[:2] != difference else former[2]
                self._since[name] = *difference, since
                if now - since >= CONFIRM_S:
                    due[name] = seen[name]
        return due
