# The seed's model of memory and bandwidth (PIP-82, "Resource consumption considerations") at a hundredth of its size,
# with the real reports and shares. The whole of it: tests/bench/resource_model.py; its figures: docs/exchange.md.

from __future__ import annotations

import random

import pytest

from tests.bench.resource_model import Figures, Model, each_minute, each_second

# A tenth of the seed's namespaces per gateway, on 10 gateways. No room for names of others: nor is there in the seed's
# scenario, where a gateway has more names of its own.
MODEL = Model(namespaces=1000, gateways=10, room=0)
SHARE = 500 / 5000
# What the seed reckons per gateway and minute: 32 bytes of usage and 80 of name for each namespace.
SEED_PUBLISHED = MODEL.gateways * 500 * (32 + 80)


@pytest.fixture(scope="module")
def figures() -> Figures:
    return each_minute(MODEL, random.Random(82))


def test_memory_is_at_most_two_megabytes(figures: Figures) -> None:
    assert figures.memory <= 2e6 * SHARE, figures


def test_traffic_is_at_most_a_tenth_both_ways(figures: Figures) -> None:
    assert figures.usages <= SEED_PUBLISHED / 10, figures
    assert figures.consumed <= SEED_PUBLISHED * MODEL.gateways / 10, figures


def test_names_travel_once(figures: Figures) -> None:
    assert figures.names > MODEL.gateways * 500 * 50  # names at random don't compress below that
    assert figures.usages < figures.names / 5


def test_a_report_every_second_costs_hardly_more_than_one_a_minute(figures: Figures) -> None:
    size, _ = each_second(MODEL, random.Random(82), 1, drift=False)
    heartbeats = 60 * 60  # bytes: the same for few namespaces as for many
    assert size - heartbeats <= 2 * figures.usages / MODEL.gateways
