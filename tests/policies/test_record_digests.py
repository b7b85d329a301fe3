# Digests of usage records, told apart from each other by hand, as an auditor without our code would.

from __future__ import annotations

import hashlib
import hmac
import json

import pytest

from policies import usage
from policies.record_digests import chain_record, find_digest, is_changed

KEY = b"k" * 32
LINE = usage.encode_lost("gw", "b1", 0, 4, 1000, ',"rows":[],"record_digest":"x"}')  # a name may hold anything


@pytest.mark.parametrize("key", [None, KEY])
def test_a_record_has_its_digest_last_over_all_before_it(key: bytes | None) -> None:
    made = chain_record(LINE, "sha256:00", key)
    record = json.loads(made)
    assert list(record)[-3:] == ["previous_digest", "rows", "record_digest"]
    assert {name: record[name] for name in json.loads(LINE)} == json.loads(LINE)
    body = made[: -len(f',"record_digest":"{record["record_digest"]}"}}')]
    whole = hashlib.sha256(body) if key is None else hmac.new(key, body, hashlib.sha256)
    assert record["record_digest"] == f"{'sha256' if key is None else 'hmac-sha256'}:{whole.hexdigest()[:32]}"
    assert find_digest(made) == record["record_digest"]
    assert "previous_digest" not in json.loads(chain_record(LINE, "", key))
    assert find_digest(LINE) == ""


def test_any_other_byte_is_a_change() -> None:
    for key in (None, KEY):
        made, keys = chain_record(LINE, "", key), [] if key is None else [b"o" * 32, key]
        digest = find_digest(made)
        assert is_changed(made, digest, keys) is is_changed(made + b"\r", digest, keys) is False
        others = [made[:at] + bytes([made[at] ^ 1]) + made[at + 1 :] for at in range(len(made))]
        others += [b" " + made, made[:-1] + b" }", LINE, LINE[:-1] + f',"record_digest": "{digest}"}}'.encode()]
        assert {is_changed(other, digest, keys) for other in others} == {True}


def test_without_the_key_it_is_unknown_and_with_one_nothing_else_will_do() -> None:
    keyed, plain = (chain_record(LINE, "", key) for key in (KEY, None))
    assert is_changed(keyed, find_digest(keyed), []) is None
    assert is_changed(keyed, find_digest(keyed), [b"o" * 32]) is True
    assert is_changed(plain, find_digest(plain), [KEY]) is True
    assert (is_changed(LINE, None, []), is_changed(LINE, None, [KEY])) == (None, True)
    unknown = plain.replace(b'"sha256:', b'"md5:')
    assert is_changed(unknown, find_digest(unknown), []) is True
