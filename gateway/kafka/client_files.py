# The files among a Kafka client's properties. librdkafka reads them when a client is made, and connects with what it
# read then for as long as the client lives. So a client is made anew once its files have changed: with the former ones
# it would be refused when its certificate has expired, or know the brokers' former CA alone.

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException

from gateway.system.files import FileSignature, file_signature

log = logging.getLogger("gateway.cluster")

FILE_PROPERTIES: Final = (
    "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.crl.location",
)  # fmt: skip

T = TypeVar("T")


class ClientFiles:
    """The files of one client. Make this before the client. `properties`: librdkafka's."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._paths = [str(properties[key]) for key in FILE_PROPERTIES if properties.get(key)]
        self._known = self._read_signatures()

    def renew_client(self, client: T, make: Callable[[], T]) -> T:
        """Another client where the files have changed, and the caller closes this one; else this one, as also where
        they can't be used just now (one may be new before the other): then the next call tries again.
        """
        seen = self._read_signatures()
        if seen == self._known:
            return client
        try:
            fresh = make()
        except KafkaException as error:
            log.debug("no client with the files that are there now: %s", error)
            return client
        self._known = seen
        return fresh

    def _read_signatures(self) -> list[FileSignature | None]:
        return [file_signature(path) for path in self._paths]
