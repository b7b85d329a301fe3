# The seed's model of memory and bandwidth (PIP-82, "Resource consumption considerations") at a hundredth of its size,
# with the real reports and shares. The whole of it: tests/bench/control/resource_model.py; its figures:
# docs/exchange.md.

from __future__ import annotations

import random

import pytest

from gateway.control.fleet.exchange.reports import REPORT_CYCLES
from tests.bench.control.resource_model import Figures, Model, each_minute, each_second

# A tenth of the seed's namespaces per gateway, on 10 gateways. No room for names of others: nor is there in the seed's
# scenario, where a gateway has more names of its own.
MODEL = Model(namespaces=1000, gateways=10, room=0)
SHARE = 500 / 5000
# What the seed reckons per gateway and minute: 32 bytes of usage and 80 of name for each namespace.
SEED_PUBLISHED = MODEL.gateways * 500 * (32 + 80)


@pytest.fixture(scope="module")
def figures() -> Figures:
    return each_minute(MODEL, random.Random(82))


@pytest.mark.seed("82.36")
def test_memory_is_below_twenty_megabytes(figures: Figures) -> None:
    assert figures.memory <= 20e6 * SHARE, figures


@pytest.mark.seed("82.37")
def test_traffic_is_below_half_both_ways(figures: Figures) -> None:
    assert figures.usages <= SEED_PUBLISHED / 2, figures
    assert figures.consumed <= SEED_PUBLISHED * MODEL.gateways / 2, figures


def test_a_gateway_that_begins_tells_no_more_than_any_report_of_everything(figures: Figures) -> None:
    assert figures.begin <= 1.1 * figures.usages


@pytest.mark.parametrize("drift", [False, True])
def test_traffic_is_below_half_where_reports_come_every_second_as_well(drift: bool) -> None:
    """The seed's own protocol sends as many: everything once in N cycles, and changes at once."""
    size, _ = each_second(MODEL, random.Random(82), 1, drift=drift)
    reports = 60 / REPORT_CYCLES + (not drift)
    assert size <= reports * SEED_PUBLISHED / MODEL.gateways / 2
