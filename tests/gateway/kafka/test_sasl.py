# What a client says in PLAIN and SCRAM: the examples of the RFCs, and servers that are none.

from __future__ import annotations

import pytest

from gateway.kafka.sasl import MAX_ITERATIONS, SaslExchangeFailed, scram_exchange, start_exchange

# RFC 7677, 3.
NONCE = b"rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
VERDICT = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_plain_says_it_all_at_once() -> None:
    steps = start_exchange("PLAIN", "tim", "täns=,t")
    assert next(steps) == b"\0tim\0t\xc3\xa4ns=,t"
    with pytest.raises(StopIteration):
        steps.send(b"")


def test_scram_is_the_rfc_s() -> None:
    steps = scram_exchange("sha256", "user", "pencil", NONCE)
    assert next(steps) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert steps.send(CHALLENGE) == FINAL
    with pytest.raises(StopIteration):
        steps.send(VERDICT)


def test_a_name_s_commas_and_equals_signs_are_escaped() -> None:
    assert next(scram_exchange("sha512", "a=b,c", "p", b"x")) == b"n,,n=a=3Db=2Cc,r=x"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_no_two_exchanges_begin_alike(mechanism: str) -> None:
    assert next(start_exchange(mechanism, "u", "p")) != next(start_exchange(mechanism, "u", "p"))


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"e=other-error",
        b"r=another,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        CHALLENGE.replace(b"i=4096", b"i=-1"),
        CHALLENGE.replace(b"i=4096", b"i=0"),
        CHALLENGE.replace(b"i=4096", b"i=%d" % (MAX_ITERATIONS + 1)),
        CHALLENGE.replace(b"s=W22", b"s=?"),
    ],
)
def test_a_challenge_that_is_none(challenge: bytes) -> None:
    steps = scram_exchange("sha256", "user", "pencil", NONCE)
    next(steps)
    with pytest.raises(SaslExchangeFailed, match="SCRAM"):
        steps.send(challenge)


@pytest.mark.parametrize("verdict", [b"", b"v=", b"v=6rriTRBi", b"v=" + 44 * b"A", b"e=invalid-proof"])
def test_a_server_that_does_not_know_the_password(verdict: bytes) -> None:
    steps = scram_exchange("sha256", "user", "pencil", NONCE)
    next(steps)
    steps.send(CHALLENGE)
    with pytest.raises(SaslExchangeFailed, match="SCRAM"):
        steps.send(verdict)
