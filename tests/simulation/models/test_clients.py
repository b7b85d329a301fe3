# Models of clients by themselves: what they must not forget, or a world would blame a gateway for it.

from __future__ import annotations

import random
from unittest.mock import Mock

from tests.simulation.clock import Agenda
from tests.simulation.models import wire
from tests.simulation.models.clients import KAFKA_PYTHON, Client, _Connection
from tests.simulation.models.sasl import Identity

PLACE = ("orders", 0)


def test_a_client_asks_nothing_before_it_has_authenticated() -> None:
    """A refresh was due between the two once, and a gateway closed the connection, as it should."""
    client = Client(
        0, KAFKA_PYTHON, Agenda(), Mock(), random.Random(1), Mock(), [("gateway", 9092)], {"orders": 1}, "app",
        rate=1000.0, batch_bytes=500, records=5, who=Identity("alice", "PLAIN"),
    )  # fmt: skip
    end = Mock()
    client._control_joined(end)
    client._ask_metadata()
    client._ask_producer()
    asked = [int.from_bytes(call.args[0][4:6], "big") for call in end.send.call_args_list]
    assert asked == [wire.API_VERSIONS]


def test_a_producer_that_gave_a_batch_up_while_nothing_was_in_flight_begins_anew() -> None:
    """It waited for ever once: only answers led to the question for another producer id."""
    agenda = Agenda()
    client = Client(
        0, KAFKA_PYTHON, agenda, Mock(), random.Random(1), Mock(), [("gateway", 9092)], {"orders": 1}, "app",
        rate=1000.0, batch_bytes=500, records=5,
    )  # fmt: skip
    connection = client._connections[1] = _Connection(1, ("gateway", 9093))
    connection.end, connection.is_greeted = Mock(), True
    client._control, client._leaders[PLACE], client._producer = Mock(), 1, (7, 0)
    client._is_control_greeted = True
    client._make_batch()
    assert len(connection.requests) == 1
    client._settle(connection.requests.popitem()[1], {})  # the connection ended
    connection.throttled_until = agenda.now + 2 * KAFKA_PYTHON.delivery_timeout_s
    agenda.now += KAFKA_PYTHON.delivery_timeout_s - 1.0
    client._make_batch()
    agenda.now = connection.throttled_until
    client._drain(connection)
    assert client.failed_bytes
    client._make_batch()
    assert client._producer == (-1, -1)
    client._control.send.assert_called_once()
    assert int.from_bytes(client._control.send.call_args.args[0][4:6], "big") == wire.INIT_PRODUCER_ID
