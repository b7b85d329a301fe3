# Whom a SASL message names: protocol/rewriting/identity.py against Kafka's own classes, which SaslNames.java asks.
#
# Whatever the broker accepts must give exactly the broker's principal, or `unknown` for a delegation token, or end the
# connection (AmbiguousIdentity). What the broker refuses may be anything: no acceptance comes.

from __future__ import annotations

import hashlib
import hmac
import json
import struct
import subprocess
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gateway import embedded
from protocol import api
from protocol.rewriting.identity import UNKNOWN_PRINCIPAL, AmbiguousIdentity, SaslFollower

PROGRAM = Path(__file__).with_name("SaslNames.java")
KEY = b"thirty-two bytes that are no secret"
KEY_ID = "test"
REFUSED, TOKEN, AMBIGUOUS = "refused", "token", "ambiguous"

EXAMPLES = max(300, settings().max_examples)  # more with HYPOTHESIS_PROFILE=exhaustive
many = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Kafka:
    """Kafka's classes, one message at a time."""

    def __init__(self, jwks: Path) -> None:
        command = embedded.java_command(str(PROGRAM), str(jwks))
        self.process = embedded.spawn_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def takes(self, kind: str, message: bytes) -> str:
        """`User:alice`, or TOKEN, or REFUSED."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(b"%s %s\n" % (kind.encode(), b64encode(message)))
        stdin.flush()
        said: list[str] = stdout.readline().decode().split()
        assert said, "SaslNames ended"
        if said[0] != "user":
            return said[0]
        return "User:" + ("\ud800" if said[-1] == "lone" else bytes.fromhex(said[1]).decode("utf-16-be"))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    jwks = tmp_path_factory.mktemp("keys") / "jwks.json"
    jwks.write_text(json.dumps({"keys": [{"kty": "oct", "kid": KEY_ID, "k": encoded(KEY).decode(), "alg": "HS256"}]}))
    kafka = Kafka(jwks)
    try:
        yield kafka
    finally:
        for pipe in (kafka.process.stdin, kafka.process.stdout):
            assert pipe is not None
            pipe.close()
        embedded.reap_process(kafka.process, 10)


def ours(kind: str, message: bytes) -> str:
    mechanism = kind.removesuffix("-SIGNED").encode()
    sasl = SaslFollower()
    frame = struct.pack(">hhihh", api.SASL_HANDSHAKE, 1, 1, -1, len(mechanism)) + mechanism
    sasl.on_handshake(frame, 0, len(frame))
    frame = struct.pack(">hhihi", api.SASL_AUTHENTICATE, 1, 2, -1, len(message)) + message
    try:
        return sasl.read_claim(frame, 0, len(frame)).principal
    except AmbiguousIdentity:
        return AMBIGUOUS


def compare(kafka: Kafka, kind: str, message: bytes) -> None:
    theirs, own = kafka.takes(kind, message), ours(kind, message)
    event(f"broker {theirs.partition(':')[0]}, gateway {own.partition(':')[0]}")
    if theirs != REFUSED:
        assert own in (AMBIGUOUS, UNKNOWN_PRINCIPAL if theirs == TOKEN else theirs)


# --- messages ---------------------------------------------------------------------------------------------------------


def encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def signed(header: bytes, payload: bytes) -> bytes:
    return encoded(hmac.digest(KEY, header + b"." + payload, hashlib.sha256))


def jwt(kind: str, header: bytes, payload: bytes) -> bytes:
    return b".".join((header, payload, signed(header, payload) if kind.endswith("SIGNED") else b""))


def headed(kind: str, **more: Any) -> bytes:
    own = {"alg": "HS256", "kid": KEY_ID} if kind.endswith("SIGNED") else {"alg": "none"}
    return encoded(json.dumps({**own, **more}).encode())


def members(*pairs: tuple[str, str]) -> str:
    """A JSON object from names and values that are JSON already; the times are right."""
    return "{" + ",".join(f"{name}:{value}" for name, value in (*pairs, ('"iat"', "1"), ('"exp"', "9999999999"))) + "}"


def claims(text: str) -> bytes:
    return encoded(text.encode(errors="surrogatepass"))


def bearer(*fields: bytes, gs2: bytes = b"n,,") -> bytes:
    return gs2 + b"\x01" + b"".join(field + b"\x01" for field in fields) + b"\x01"


def token_of(kind: str, name: str) -> bytes:
    return jwt(kind, headed(kind), claims(members(('"sub"', json.dumps(name, ensure_ascii=False)))))


BEARERS = ["OAUTHBEARER", "OAUTHBEARER-SIGNED"]
SCRAMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]

# Names as people give them: what a broker takes for each must be what we take for it.
ascii_names = st.text(st.characters(min_codepoint=1, max_codepoint=0x7F), min_size=1, max_size=40)
names = st.one_of(ascii_names, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
extensions = st.dictionaries(
    st.text("abcxyz", min_size=1).filter(lambda key: key not in ("auth", "tokenauth")),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=","), min_size=1),
    max_size=4,
)


@st.composite
def nearly(draw: st.DrawFn, /, **parts: tuple[Any, st.SearchStrategy[Any]]) -> dict[str, Any]:
    """Of each part what is right, but for one or two of them: most of it is still accepted, one way or another."""
    wrong = draw(st.sets(st.sampled_from(sorted(parts)), max_size=2))
    return {name: draw(other) if name in wrong else right for name, (right, other) in parts.items()}


def one_of(*wrong: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(wrong)


changes = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 2), st.binary(max_size=2))


def changed(message: bytes, change: tuple[float, int, bytes] | None) -> bytes:
    """With some bytes at that place of it replaced by others."""
    if change is None:
        return message
    at = int(len(message) * change[0])
    return message[:at] + change[2] + message[at + change[1] :]


odd_utf8 = [
    b"",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\xef\xbf\xbd",
    b"\xc0\x80",
    b"a\xe2\x82",
    b" a ",
]
plain_names = st.one_of(one_of(*odd_utf8), st.binary(max_size=6), names.map(str.encode))
plain_messages = nearly(
    authzid=(b"", one_of(b"alice", b"bob", *odd_utf8)),
    name=(b"alice", plain_names),
    password=(b"secret", plain_names),
    behind=(b"", one_of(b"\0", b"\0x", b"\0\0")),
    same=(False, one_of(True)),  # the authorization id is the name, byte by byte
    change=(None, changes),
).map(
    lambda it: changed(
        b"\0".join((it["name"] if it["same"] else it["authzid"], it["name"], it["password"])) + it["behind"],
        it["change"],
    )
)

scram_names = [b"a=2Cb", b"=3D2C", b"a=2c", b"a=b", b"=2C=3D", b"\xc3\xa9", b"", b"a\x7f\x01\n", b"a" * 1025, b"\xff"]
scram_extensions = one_of(
    b"x=1", b"x==", b"X=1", b"x=2", b"tokenauth=true", b"tokenauth=tRuE", b"tokenauth=false", b"TokenAuth=true"
) | one_of(b"a1=x", b"ext=\x7f", b"", b"x", b"x=", b"=x", b"m=x", b"n=bob", b"r=other", b"x=\xc3\xa9")
scram_messages = nearly(
    gs2=(b"n,,", one_of(b"n,a=alice,", b"n,a=bob,", b"n,a=a=2Cb,", b"y,,", b"n,", b"n,a=,", b"N,,", b",,")),
    reserved=(b"", one_of(b"m=x,", b"m=n=bob,", b"m=,", b"m,", b"M=x,")),
    name=(b"n=alice", st.one_of(one_of(*scram_names), ascii_names.map(str.encode)).map(b"n=".__add__)),
    nonce=(b",r=nonce", one_of(b",r=", b",r=x y", b",r=a=b", b"", b",r=x\n", b",R=x", b",r=x,r=y", b",n=bob,r=x")),
    extensions=([], st.lists(scram_extensions, min_size=1, max_size=4)),
    change=(None, changes),
).map(
    lambda it: changed(
        b"".join((it["gs2"], it["reserved"], it["name"], it["nonce"], *(b"," + each for each in it["extensions"]))),
        it["change"],
    )
)

texts = st.text(max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False))
subjects = st.one_of(
    one_of(
        '" alice"', '"alice\\n"', '""', '" "', "5", "true", "false", "null", "[]", '["x"]', "{}", '{"sub":"bob"}', "NaN"
    ),
    one_of(
        '"\\ud83d\\ude00"', '"\\ud800"', '"\\udc00\\ud800"', '"\\/\\u0041"', '"\\x"', '"\t"', '"\\u000g"', '"\\u 41"'
    ),
    one_of(
        '"\u00a0alice"',
        '"alice\x7f"',
        '"\\u0000alice"',
        '"\ud800"',
        "'alice'",
        "alice",
        '"a" "b"',
        '"' + 1025 * "a" + '"',
    ),
    texts,
    texts.map(lambda text: text.replace("\\", "\\\\")),
)
claim_names = one_of(
    '"sub"', '"\\u0073ub"', '"s\\u0075b"', '"Sub"', '"x"', '"scope"', '"cty"', '"iat"', '"exp"', "sub", '"s\\ub"', ""
)
other_claims = st.lists(
    st.tuples(claim_names, st.one_of(one_of('"bob"', "1", "01", "1e999"), subjects)), min_size=1, max_size=2
)
# As lenient readers of JSON might take it: comments, a second value, a mark of byte order, commas too many.
texts_around = one_of(
    " %s\n", "%s{}", '%s{"sub":"bob"}', "%s,", "\ufeff%s", "[%s]", "/**/%s", "%s//", "%s%s", "", "%s\0", '""%s'
)


def in_base64(data: bytes, how: str) -> bytes:
    """As one decoder or another takes it."""
    right = encoded(data)
    if how == "other alphabet":
        return b64encode(data).rstrip(b"=")
    if how == "bits at the end":
        return right[:-1] + b"_" if len(data) % 3 else right
    return right[:8] + how.encode() + right[8:]


def bearer_message(it: dict[str, Any]) -> bytes:
    kind = it["kind"]
    text = it["around"].replace("%s", members(*it["before"], ('"sub"', it["subject"]), *it["behind"]))
    data = text.encode(it["charset"], "surrogatepass" if it["charset"].startswith("utf") else "replace")
    header, payload = headed(kind, **it["header"]), in_base64(data, it["base64"])
    token = changed(header + b"." + payload, it["change in the token"])
    if kind.endswith("SIGNED"):
        token += b"." + encoded(hmac.digest(KEY, token, hashlib.sha256)) + it["tail"]
    else:
        token += b"." + it["tail"]
    auth = it["scheme"] + token
    return changed(bearer(*it["first"], it["key"] + auth, *it["last"], gs2=it["gs2"]), it["change"])


def bearer_messages(kind: str) -> st.SearchStrategy[bytes]:
    another = b"=Bearer " + token_of(kind, "bob")
    fields = one_of(
        b"auth" + another, b"AUTH" + another, b"Auth" + another, b"auth=x", b"auth=", b"x=1", b"x==", b"x=2", b"X=1"
    )
    fields |= one_of(b"x=", b"a1=1", b"x=\xc3\xa9", b"x=a\tb", b"", b"x", b"tokenauth=true", b"x=auth" + another)
    return nearly(
        kind=(kind, st.just(kind)),
        gs2=(
            b"n,,",
            one_of(b"n,a=alice,", b"n,a=bob,", b"n,a=\x01,", b"n,a=,", b"y,,", b"n,", b"n,a=a=2Cb,", b"n,a=\xc3\xa9,"),
        ),
        first=([], st.lists(fields, min_size=1, max_size=3)),
        last=([], st.lists(fields, min_size=1, max_size=3)),
        key=(b"auth=", one_of(b"AUTH=", b"Auth=", b" auth=", b"auth==", b"auth", b"")),
        scheme=(
            b"Bearer ",
            one_of(b"bearer ", b"BEARER  ", b"Basic ", b" ", b"Bearer", b"Bearer\t", b"Bea\xc5\x84er "),
        ),
        header=(
            {},
            one_of({"cty": "JWT"}, {"cty": "jwt"}, {"typ": "JWT"}, {"b64": False}, {"alg": "none"}, {"kid": "x"}),
        ),
        around=("%s", texts_around),
        subject=('"alice"', subjects),
        before=([], other_claims),
        behind=([], other_claims),
        charset=("utf-8", one_of("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1")),
        base64=("", one_of("~", "~~", "A", "AA", "AAA", "+", "other alphabet", "bits at the end", "=")),
        tail=(b"", one_of(b".", b"=", b"==", b".x", b"~", b"x")),
        **{"change in the token": (None, changes)},
        change=(None, changes),
    ).map(bearer_message)


# --- tests ------------------------------------------------------------------------------------------------------------


@many
@given(name=names, password=names, repeated=st.booleans())
def test_an_ordinary_plain_message_names_the_brokers_principal(
    kafka: Kafka, name: str, password: str, repeated: bool
) -> None:
    message = "\0".join((name if repeated else "", name, password)).encode()
    assert kafka.takes("PLAIN", message) == ours("PLAIN", message) == f"User:{name}"


@many
@given(name=ascii_names, more=extensions, kind=st.sampled_from(SCRAMS))
def test_an_ordinary_scram_message_names_the_brokers_principal(
    kafka: Kafka, name: str, more: dict[str, str], kind: str
) -> None:
    written = name.replace("=", "=3D").replace(",", "=2C")
    message = ",".join(("n,", f"n={written}", "r=nonce", *(f"{key}={value}" for key, value in more.items()))).encode()
    assert kafka.takes(kind, message) == ours(kind, message) == f"User:{name}"


@many
@given(
    name=names.filter(lambda name: name.strip("".join(map(chr, range(33)))) == name),
    more=extensions,
    kind=st.sampled_from(BEARERS),
)
def test_an_ordinary_bearer_token_names_the_brokers_principal(
    kafka: Kafka, name: str, more: dict[str, str], kind: str
) -> None:
    fields = [f"{key}={value}".encode() for key, value in more.items()]
    message = bearer(b"auth=Bearer " + token_of(kind, name), *fields)
    assert kafka.takes(kind, message) == ours(kind, message) == f"User:{name}"


@many
@given(message=plain_messages)
def test_no_plain_message_names_another(kafka: Kafka, message: bytes) -> None:
    compare(kafka, "PLAIN", message)


@many
@given(message=scram_messages, kind=st.sampled_from(SCRAMS))
def test_no_scram_message_names_another(kafka: Kafka, message: bytes, kind: str) -> None:
    compare(kafka, kind, message)


@many
@given(message=bearer_messages("OAUTHBEARER"))
def test_no_unsecured_token_names_another(kafka: Kafka, message: bytes) -> None:
    compare(kafka, "OAUTHBEARER", message)


@many
@given(message=bearer_messages("OAUTHBEARER-SIGNED"))
def test_no_signed_token_names_another(kafka: Kafka, message: bytes) -> None:
    compare(kafka, "OAUTHBEARER-SIGNED", message)


MALLORY, ALICE = "User:mallory", "User:alice"


def named(sub: str, *more: tuple[str, str]) -> bytes:
    return claims(members(('"sub"', sub), *more))


def unsecured(payload: bytes, **header: str) -> bytes:
    return bearer(b"auth=Bearer " + jwt("OAUTHBEARER", headed("OAUTHBEARER", **header), payload))


def secured(payload: bytes, **header: str) -> bytes:
    return bearer(b"auth=Bearer " + jwt("OAUTHBEARER-SIGNED", headed("OAUTHBEARER-SIGNED", **header), payload))


NESTED = jwt("OAUTHBEARER-SIGNED", headed("OAUTHBEARER-SIGNED"), named('"mallory"'))
AUTH_MALLORY = b"auth=Bearer " + token_of("OAUTHBEARER", "mallory")
AUTH_ALICE = b"auth=Bearer " + token_of("OAUTHBEARER", "alice")


@pytest.mark.parametrize(
    ("kind", "message", "theirs", "own"),
    [
        ("PLAIN", b"mallory\0mallory\0x", MALLORY, MALLORY),
        ("PLAIN", b"alice\0mallory\0x", REFUSED, MALLORY),
        ("PLAIN", b"\0mallory\0x\0alice", REFUSED, UNKNOWN_PRINCIPAL),
        ("PLAIN", b"\0mallory\xff\0x", "User:mallory\ufffd", AMBIGUOUS),
        ("PLAIN", b"\0" + b"a" * 1025 + b"\0x", "User:" + "a" * 1025, AMBIGUOUS),
        ("SCRAM-SHA-256", b"n,,m=x,n=mallory,r=x", MALLORY, AMBIGUOUS),
        ("SCRAM-SHA-256", b"n,,n=mallory,r=x,tokenauth=true", TOKEN, UNKNOWN_PRINCIPAL),
        ("SCRAM-SHA-256", b"n,,n=mallory,r=x,tokenauth=TRUE", TOKEN, UNKNOWN_PRINCIPAL),
        ("SCRAM-SHA-256", b"n,,n=mallory,r=x,TokenAuth=true", MALLORY, AMBIGUOUS),
        ("SCRAM-SHA-256", b"n,,n=mallory,r=x,tokenauth=true,tokenauth=false", MALLORY, AMBIGUOUS),
        ("SCRAM-SHA-256", b"n,,n=mallory,r=x,y=tokenauth=true", MALLORY, MALLORY),
        ("SCRAM-SHA-256", b"n,a=alice,n=mallory,r=x", REFUSED, MALLORY),
        ("SCRAM-SHA-256", b"n,,n=mallory,n=alice,r=x", REFUSED, UNKNOWN_PRINCIPAL),
        ("OAUTHBEARER", bearer(AUTH_ALICE, AUTH_MALLORY), MALLORY, AMBIGUOUS),
        ("OAUTHBEARER", bearer(AUTH_ALICE.replace(b"auth", b"AUTH"), AUTH_MALLORY), MALLORY, AMBIGUOUS),
        ("OAUTHBEARER", bearer(b"x=" + AUTH_ALICE, AUTH_MALLORY), MALLORY, MALLORY),
        ("OAUTHBEARER", unsecured(named('"alice"', ('"sub"', '"mallory"'))), MALLORY, AMBIGUOUS),
        ("OAUTHBEARER", unsecured(claims(members(('"sub"', '"mallory"')) + '{"sub":"alice"}')), MALLORY, AMBIGUOUS),
        ("OAUTHBEARER", unsecured(named("true")), "User:true", AMBIGUOUS),
        ("OAUTHBEARER", unsecured(named("null")), "User:null", AMBIGUOUS),
        ("OAUTHBEARER", unsecured(named('" mallory"')), "User: mallory", AMBIGUOUS),
        ("OAUTHBEARER-SIGNED", secured(named('" mallory"')), MALLORY, AMBIGUOUS),
        ("OAUTHBEARER-SIGNED", secured(b"~" + named('"mallory"')), MALLORY, AMBIGUOUS),
        ("OAUTHBEARER-SIGNED", secured(encoded(NESTED), cty="JWT"), MALLORY, AMBIGUOUS),
        ("OAUTHBEARER-SIGNED", secured(named('"mallory"').replace(b"-", b"+").replace(b"_", b"/")), MALLORY, MALLORY),
    ],
)
def test_the_gateway_and_kafka_agree_on_messages_a_client_can_try(
    kafka: Kafka, kind: str, message: bytes, theirs: str, own: str
) -> None:
    assert (kafka.takes(kind, message), ours(kind, message)) == (theirs, own)
