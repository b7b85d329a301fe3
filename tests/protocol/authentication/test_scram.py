# SCRAM as a server says it: the examples of the RFCs, a client of its own kind as oracle, and clients that lie.

from __future__ import annotations

import random
import re
import string
import struct
from base64 import b64decode
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.sasl.scram import ScramClient

from protocol.authentication import scram
from protocol.authentication.scram import (
    HASHES,
    RecordShape,
    ScramRecord,
    ScramRefused,
    make_challenge,
    make_decoy,
    make_record,
    matches_password,
    parse_record,
    record_text,
    shape_of,
)
from protocol.rewriting import identity

MECHANISMS = pytest.mark.parametrize("mechanism", sorted(HASHES))
# RFC 7677, 3.
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCE = b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
VERDICT = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
RECORD = make_record("sha256", "pencil", b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)


def test_the_exchange_is_the_rfc_s() -> None:
    first = scram.read_first_message(FIRST)
    assert make_challenge(first, RECORD, NONCE) == CHALLENGE
    assert scram.verify_final("sha256", RECORD, first, CHALLENGE, FINAL) == VERDICT


@pytest.mark.parametrize("module", [identity, scram])
def test_no_pattern_has_possessive_repetition(module: ModuleType) -> None:
    """In Python up to 3.11.4 it fails where it should match, which no other Python's tests would show."""
    patterns = [value.pattern for value in vars(module).values() if isinstance(value, re.Pattern)]
    assert patterns
    assert not [pattern for pattern in patterns if any(each in pattern for each in (b"++", b"*+", b"?+", b"}+"))]


@MECHANISMS
@given(
    name=st.text(st.characters(min_codepoint=1, max_codepoint=0x7F), min_size=1, max_size=20),
    password=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20),
    wrong=st.booleans(),
)
def test_a_client_of_another_make_gets_in_with_its_password_alone(
    mechanism: str, name: str, password: str, wrong: bool
) -> None:
    hash_name = HASHES[mechanism]
    client: Any = ScramClient(name.replace("=", "=3D").replace(",", "=2C"), password, mechanism)
    record = make_record(hash_name, password + "x" * wrong, b"salt and pepper", 4096)
    first = scram.read_first_message(client.first_message())
    assert first.name == name
    challenged = make_challenge(first, record, b"ours")
    client.process_server_first_message(challenged)
    final = client.final_message()
    if wrong:
        with pytest.raises(ScramRefused, match="wrong password"):
            scram.verify_final(hash_name, record, first, challenged, final)
    else:
        client.process_server_final_message(scram.verify_final(hash_name, record, first, challenged, final))
    assert matches_password(record, hash_name, password.encode()) is not wrong


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,n=user",
        b"n,,r=x,n=user",
        b"y,,n=user,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"n,a=other,n=user,r=x",
        b"n,,m=x,n=user,r=x",
        b"n,,n=us=er,r=x",
        b"n,,n=,r=x",
        b"n,,n=user,r=",
        b"n,,n=user,r=x,tokenauth=true",
        b"n,,n=user,r=x,TokenAuth=True",
        b"n,,n=" + 5000 * b"u" + b",r=x",
    ],
)
def test_first_messages_that_no_server_takes(message: bytes) -> None:
    with pytest.raises(ScramRefused):
        scram.read_first_message(message)


@pytest.mark.parametrize(
    "final",
    [
        b"",
        FINAL.replace(b"c=biws", b"c=eSws"),  # of another header
        FINAL.replace(b"k0,p", b"k1,p"),  # of another exchange
        FINAL.replace(b"p=dHzb", b"p=dHzc"),
        FINAL[: FINAL.index(b"p=")] + b"p=AAAA",
        FINAL[: FINAL.index(b",p=")],
        FINAL.replace(b",p=", b",x=y,p="),
        FINAL + b",x=y",
    ],
)
def test_final_messages_that_prove_nothing(final: bytes) -> None:
    with pytest.raises(ScramRefused):
        scram.verify_final("sha256", RECORD, scram.read_first_message(FIRST), CHALLENGE, final)


def test_nobody_gets_in_by_a_decoy_which_is_always_the_same() -> None:
    shape = RecordShape(24, 4096)
    fake = make_decoy("sha256", b"secret", "user", shape)
    assert fake == make_decoy("sha256", b"secret", "user", shape)
    others = [
        make_decoy("sha256", b"secret", "users", shape),
        make_decoy("sha256", b"secrets", "user", shape),
        make_decoy("sha512", b"secret", "user", shape),  # a user's records have a salt each
        make_decoy("sha256", b"secret", "user", RecordShape(24, 8192)),  # as when a user got another password
    ]
    assert len({fake.salt, *(each.salt for each in others)}) == 5
    assert not matches_password(fake, "sha256", b"pencil")
    zeros = struct.pack("32x")
    first = scram.read_first_message(FIRST)
    challenged = make_challenge(first, fake, NONCE)
    with pytest.raises(ScramRefused):  # nor by a proof made with its known keys
        scram.verify_final(
            "sha256", fake, first, challenged, FINAL[: FINAL.index(b",r=")] + b",r=" + NONCE + b",p=" + zeros
        )


@given(salt_bytes=st.integers(8, 100), iterations=st.integers(4096, 1_000_000), name=st.text())
def test_a_decoy_has_the_shape_that_it_is_to_have(salt_bytes: int, iterations: int, name: str) -> None:
    shape = RecordShape(salt_bytes, iterations)
    assert shape_of(make_decoy("sha512", b"secret", name, shape)) == shape


def _kafka_salt(seed: int) -> bytes:
    """As `new BigInteger(130, random).toString(36)`, in which Kafka has 25 or 26 digits, seldom less."""
    number, text = random.Random(seed).getrandbits(130), ""
    while number:
        number, digit = divmod(number, 36)
        text = (string.digits + string.ascii_lowercase)[digit] + text
    return text.encode()


def test_a_decoy_s_salt_is_distributed_as_kafka_s_own() -> None:
    made = [_kafka_salt(number) for number in range(2000)]
    faked = [make_decoy("sha256", b"secret", str(number), RecordShape(0, 4096)).salt for number in range(2000)]
    assert {shape_of(ScramRecord(salt, b"", b"", 4096)) for salt in made + faked} == {RecordShape(0, 4096)}
    for look in (len, lambda salt: salt[:1]):
        really, fake = (Counter(map(look, salts)) for salts in (made, faked))
        assert all(abs(really[key] - fake[key]) < 200 for key in really | fake), (really, fake)


@MECHANISMS
@given(salt=st.binary(min_size=8, max_size=40), rounds=st.integers(4096, 1_000_000))
def test_a_record_is_read_as_it_was_written(mechanism: str, salt: bytes, rounds: int) -> None:
    made = make_record(HASHES[mechanism], "x", salt, 1)._replace(iterations=rounds)
    assert parse_record(record_text(made), HASHES[mechanism]) == made


def test_a_record_is_kafka_s() -> None:
    """Of ScramCredentialUtils, its keys in any order."""
    text = (
        "server_key=wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=,stored_key=WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=,"
        "iterations=4096,salt=W22ZaJ0SNY7soEsUEjb6gQ=="
    )
    assert parse_record(text, "sha256") == RECORD


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("iterations=4096", "iterations=4095", "iterations must be 4096 to"),
        ("iterations=4096", "iterations=9999999999", "iterations must be"),
        ("iterations=4096", "iterations=x", "iterations must be"),
        (",iterations=4096", "", "exactly salt="),
        ("salt=", "pepper=", "exactly salt="),
        ("salt=W22Z", "salt=?", "base64"),
        ("salt=W22ZaJ0SNY7soEsUEjb6gQ==", "salt=AAAA", "8 bytes or more"),
    ],
)
def test_a_record_that_is_none(old: str, new: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_record(record_text(RECORD).replace(old, new), "sha256")


def test_a_record_of_the_other_hash_is_none() -> None:
    with pytest.raises(ValueError, match="64 bytes each"):
        parse_record(record_text(RECORD), "sha512")
    assert isinstance(RECORD, ScramRecord)
