# A Kafka client and the files among its properties. librdkafka reads them when a client is made, and connects with what
# it read then for as long as the client lives. So a client is made anew once its files have changed: with the former
# ones it would be refused when its certificate has expired, or know the brokers' former CA alone.

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import KafkaException

from gateway.system.files import FileSignature, file_signature

log = logging.getLogger("gateway.cluster")

FILE_PROPERTIES: Final = (
    "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.crl.location",
)  # fmt: skip

C = TypeVar("C")


class RenewableClient(Generic[C]):
    """A client, and the files that it was made with.

    Attributes:
        client: the present one. Whoever has another one made closes the former.

    Args:
        properties: librdkafka's, of which `make` makes the client.

    Raises:
        KafkaException: `make` does.
    """

    def __init__(self, properties: Mapping[str, Any], make: Callable[[], C]) -> None:
        self._paths = [str(properties[key]) for key in FILE_PROPERTIES if properties.get(key)]
        self._make = make
        self.replace()

    def replace(self) -> None:
        """Have another client made.

        Raises:
            KafkaException: `make` does; the present client stays.
        """
        signatures = self._read_signatures()  # before the client reads the files: a later change is seen
        self.client = self._make()
        self._signatures = signatures

    def renew(self) -> bool:
        """Have another client made where the files have changed; whether there is another one. Where they can't be used
        just now (one may be new before the other), the present client stays, and the next call tries again.
        """
        if self._read_signatures() == self._signatures:
            return False
        try:
            self.replace()
        except KafkaException as error:
            log.debug("no client with the files that are there now: %s", error)
            return False
        return True

    def _read_signatures(self) -> list[FileSignature | None]:
        return [file_signature(path) for path in self._paths]
