# A log with digests, and what somebody may do to it.

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from gateway.audit.batch.query import AuditQuery, LogIntegrity
from gateway.audit.local.records import LocalRecords
from policies.record_digests import chain_record
from tests.audit.records import LineSource, Row, chained, interval, lost

KEY = b"k" * 32
MANY = [Row(client_id=str(number)) for number in range(2300)]
PLAIN = [
    *interval(0), *interval(1), *interval(2, [Row(bytes=7)]), *interval(3, MANY), *interval(4),
    *interval(5, (), final=True),
]  # fmt: skip
Log = Callable[[list[str], bytes | None], list[str]]


def _strip(line: str) -> str:
    record = json.loads(line)
    return json.dumps({name: value for name, value in record.items() if not name.endswith("_digest")})


def _forge(line: str, key: bytes | None) -> str:
    """The record with other contents, and the digest that somebody can make who has no more than the log."""
    record = json.loads(line.replace('"bytes":7', '"bytes":8'))
    previous = record.pop("previous_digest", "")
    del record["record_digest"]
    return chain_record(json.dumps(record, separators=(",", ":")).encode(), previous, None).decode()


# What is done, how many records are told as changed, and how many with the key at hand where the log has one.
DEEDS: dict[str, tuple[Log, int, int]] = {
    "nothing": (lambda log, _: log, 0, 0),
    "any order, and twice": (lambda log, _: [*log[::-1], *log[3:5]], 0, 0),
    "a part of the log": (lambda log, _: log[2:5], 0, 0),
    "a record removed": (lambda log, _: [*log[:2], *log[3:]], 0, 0),  # which is a gap
    "a record changed": (lambda log, _: [line.replace('"bytes":7', '"bytes":8') for line in log], 1, 1),
    "and digested anew": (lambda log, key: [*log[:2], _forge(log[2], key), *log[3:]], 1, 2),
    "a record of another chain": (lambda log, key: [*log[:1], *chained(PLAIN[1:2], key), *log[2:]], 2, 2),
    "a record added": (lambda log, _: [*log, *interval(6)], 1, 2),
    "a digest taken away": (lambda log, _: [*log[:2], _strip(log[2]), *log[3:]], 2, 3),
    "the first digest taken away": (lambda log, _: [_strip(log[0]), *log[1:]], 1, 2),
    "a part's digest taken away": (lambda log, _: [*log[:3], _strip(log[3]), *log[4:]], 2, 3),
    "all digests taken away": (lambda log, _: list(map(_strip, log)), 0, 8),
    "a note of loss": (lambda log, key: chained([*PLAIN[:3], lost(2)], key), 0, 0),
    "a note of loss added": (lambda log, _: [*log[:3], lost(2)], 1, 2),
}


def _assess(lines: list[str], *keys: bytes) -> LogIntegrity:
    return LocalRecords([LineSource(lines)], keys).find_gaps(AuditQuery())


@pytest.mark.parametrize("deed", DEEDS)
def test_what_was_done_to_a_log_is_told(deed: str) -> None:
    act, changed, with_key = DEEDS[deed]
    for order in range(4):
        for key in (None, KEY):
            log = act(chained(PLAIN, key), key)
            random.Random(order).shuffle(log) if order else None
            if key is not None:
                assert _assess(log, b"o" * 32, KEY).changed == with_key
                continue
            trust = _assess(log)
            assert (trust.changed, trust.unchecked) == (changed, 0)
            assert not (changed and trust.complete)
            assert [life["changed"] for life in trust.changed_lives] == [changed] * (changed > 0)


def test_without_the_key_only_the_chain_is_looked_at() -> None:
    log = chained(PLAIN, KEY)
    for lines, changed in ((log, 0), ([line.replace('"bytes":7', '"bytes":8') for line in log], 0), (log[:-1], 0)):
        assert (_assess(lines).changed, _assess(lines).unchecked) == (changed, len(lines))
    assert _assess(DEEDS["a digest taken away"][0](log, KEY)).changed == 2
    assert _assess(log).complete
