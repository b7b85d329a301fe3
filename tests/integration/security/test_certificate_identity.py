# The principal of a client's certificate: distinguished_name.py and principal_rules.py against Kafka's own classes,
# which SslNames.java asks.
#
# Whatever principal the gateway finds must be the broker's. It may find none: for rules with parts of patterns that are
# Java's only, and for names with several lines.

from __future__ import annotations

import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, event, example, given, settings
from hypothesis import strategies as st

from gateway import embedded
from gateway.tls.java_patterns import LINE_TERMINATORS
from gateway.tls.principal_rules import NoPrincipal, PrincipalRules, RuleError
from protocol.authentication.distinguished_name import subject_of
from protocol.rewriting.identity import UnusableName, principal_name
from tests.certificates import Authority, openssl
from tests.protocol.der import attribute, name_of, with_subject

PROGRAM = Path(__file__).with_name("SslNames.java")
REFUSED, NO_RULES = "refused", "rules"

EXAMPLES = max(300, settings().max_examples)  # more with HYPOTHESIS_PROFILE=exhaustive
many = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Kafka:
    """Kafka's classes, one certificate or name at a time."""

    def __init__(self) -> None:
        command = embedded.java_command(str(PROGRAM))
        self.process = embedded.spawn_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _ask(self, kind: str, rules: str, subject: bytes) -> str:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(b"%s %s %s\n" % (kind.encode(), b64encode(rules.encode()), subject))
        stdin.flush()
        said: list[str] = stdout.readline().decode().rstrip("\n").split(" ")
        assert said != [""], "SslNames ended"
        return "User:" + bytes.fromhex(said[1]).decode("utf-16-be") if said[0] == "user" else said[0]

    def names(self, certificate: bytes | None, rules: str = "DEFAULT") -> str:
        """`User:…`, or REFUSED, or NO_RULES."""
        return self._ask("certificate", rules, b"-" if certificate is None else b64encode(certificate))

    def maps(self, name: str, rules: str) -> str:
        """The same for a distinguished name."""
        return self._ask("name", rules, b64encode(name.encode()))


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    kafka = Kafka()
    try:
        yield kafka
    finally:
        for pipe in (kafka.process.stdin, kafka.process.stdout):
            assert pipe is not None
            pipe.close()
        embedded.reap_process(kafka.process, 10)


@pytest.fixture(scope="module")
def template(authority: Authority) -> bytes:
    """A certificate in DER."""
    return as_der(authority.certificate)


def as_der(path: Path) -> bytes:
    openssl("x509", "-in", path, "-outform", "DER", "-out", path.with_suffix(".der"))
    return path.with_suffix(".der").read_bytes()


def ours(name: str, rules: str) -> str:
    try:
        return "User:" + PrincipalRules(rules).apply_rules(name)
    except RuleError:
        return NO_RULES
    except NoPrincipal:
        return REFUSED


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "subject",
    [
        "/C=DE/ST=Hessen/L=Darmstadt/O=Acme, Inc./OU=Producers/CN=alice",
        "/DC=org/DC=example/UID=4711/CN=Zoë Müller",
        "/CN=host.example.com/emailAddress=ops@example.com/serialNumber=7",
        '/O=a+b <c> "d" #e; f\\\\g/CN= padded ',
        "/street=Long Street 1/title=Dr/GN=Bob/SN=Smith/CN=bob+OU=one",
        "/CN=#begins",
        "/CN=日本語\U0001f600",
    ],
)
@pytest.mark.parametrize("kind", ["utf8only", "default"])
def test_a_certificate_as_openssl_makes_it_has_kafkas_name(
    kafka: Kafka, tmp_path: Path, subject: str, kind: str
) -> None:
    config = tmp_path / "openssl.cnf"
    config.write_text(f"[req]\nstring_mask={kind}\nutf8=yes\ndistinguished_name=dn\n[dn]\n")
    path = tmp_path / "own.pem"
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-config", config),
        *("-subj", subject, "-multivalue-rdn", "-utf8", "-keyout", tmp_path / "key.pem", "-out", path),
    )
    certificate = as_der(path)
    assert kafka.names(certificate) == PrincipalRules().principal_of(certificate) == f"User:{subject_of(certificate)}"


OIDS = [
    *("2.5.4.3", "2.5.4.6", "2.5.4.7", "2.5.4.8", "2.5.4.9", "2.5.4.10", "2.5.4.11", "2.5.4.12", "2.5.4.5", "2.5.4.4"),
    *("2.5.4.42", "2.5.4.46", "2.5.4.44", "1.2.840.113549.1.9.1", "0.9.2342.19200300.100.1.25", "1.3.6.1.4.1.42"),
    *("0.9.2342.19200300.100.1.1", "1.3.6.1.4.1.42.2.11.2.1", "2.999.1", "2.39.1", "1.39.4294967296", "0.0"),
]
TEXTS = [0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E, 0x1C, 0x12, 0x1A, 0x04, 0x03, 0x30, 0x2C, 0x02]
odd = st.sampled_from(
    [b"", b" ", b"  a  ", b"\r a \r", b" \\ ", b"a,b", b'+<>;"\\=#', b"#", b"a\0b", b"\n", b"a\r\nb", b"\xed\xa0\x80"]
) | st.sampled_from(
    [
        b"\xf0\x9f\x98\x80",
        b"\xed\xa0\xbd\xed\xb8\x80",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"\xf0\x9f",
        b"M\xfcller",
    ]
)
values = st.one_of(
    odd, st.text().map(str.encode), st.binary(max_size=8), st.text('ab ,=+\\"#\r ', max_size=8).map(str.encode)
)
attributes = st.tuples(st.sampled_from(OIDS), st.one_of(st.just(0x0C), st.sampled_from(TEXTS)), values)
subjects = st.lists(st.lists(attributes, min_size=1, max_size=3), max_size=4)


@many
@given(subject=subjects)
@example(subject=[])
@example(subject=[[("2.5.4.3", 0x0C, bytes(300))], [("2.5.4.12", 0x0C, bytes(70_000))]])
def test_any_name_in_a_certificate_is_written_as_java_writes_it(
    kafka: Kafka, template: bytes, subject: list[list[tuple[str, int, bytes]]]
) -> None:
    certificate = with_subject(template, name_of(*([attribute(*each) for each in part] for part in subject)))
    theirs = kafka.names(certificate)
    event(theirs.partition(":")[0])
    assume(theirs != REFUSED)  # its handshake would have failed
    try:
        own = PrincipalRules().principal_of(certificate)
    except NoPrincipal:
        with pytest.raises(UnusableName):
            principal_name(theirs.removeprefix("User:"))
    else:
        assert own == theirs


@many
@given(at=st.floats(0, 1, exclude_max=True), cut=st.integers(0, 2), put=st.binary(max_size=2))
def test_no_damaged_certificate_has_another_name(
    kafka: Kafka, template: bytes, at: float, cut: int, put: bytes
) -> None:
    subject = [
        [attribute("2.5.4.10", 0x13, b"Acme")],
        [attribute("2.5.4.3", 0x0C, b"alice"), attribute("2.5.4.11", 0x13, b"x")],
    ]
    whole = name_of(*subject)
    place = int(len(whole) * at)
    certificate = with_subject(template, whole[:place] + put + whole[place + cut :])
    theirs = kafka.names(certificate)
    try:
        own = PrincipalRules().principal_of(certificate)
    except NoPrincipal:
        own = REFUSED
    event(f"broker {theirs.partition(':')[0]}, gateway {own.partition(':')[0]}")
    assert theirs == REFUSED or own in (theirs, REFUSED)


def test_a_client_without_a_certificate_is_anonymous(kafka: Kafka) -> None:
    rules = "RULE:^CN=(.*)$/$1/"
    assert kafka.names(None, rules) == PrincipalRules(rules).principal_of(None) == "User:ANONYMOUS"


# --- rules ------------------------------------------------------------------------------------------------------------

NAME = "CN=kafka1,OU=SRE Team,O=Acme\\, Inc.,L=Darmstadt,ST=Hessen,C=DE"


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", f"User:{NAME}"),
        ("RULE:^CN=([^,]+),.*$/$1/", "User:kafka1"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U", "User:KAFKA1@SRE TEAM"),
        (
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=.*$/$1 of $2/L,DEFAULT",
            "User:kafka1 of sre team",
        ),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", "User:kafka1"),
        ("RULE:.*/x/", "User:xx"),  # the second x: replaceAll goes by each match, and the last one is empty
        ("RULE:CN=(.*?)/$1/", "User:kafka1,OU=SRE Team,O=Acme\\, Inc.,L=Darmstadt,ST=Hessen,C=DE"),
        ("RULE:CN=(?<cn>[^,]*),.*/${cn}\\/\\$1$10/", "User:kafka1/$1kafka10"),
        ("RULE:CN=([^,]*),.*/$1@$2/", "User:kafka1@$2"),
        ("RULE:^CN=([\\w-]{2,9}),(?:OU=|DC=)(\\S+)\\s.*$/$2-$1-$0/", f"User:SRE-kafka1-{NAME}"),
        ("RULE:nobody/x/", REFUSED),
        ("RULE:CN=([^,]*),.*/$1/L , \n  DEFAULT", "User:kafka1"),
    ],
)
def test_rules_have_kafkas_results(kafka: Kafka, rules: str, principal: str) -> None:
    assert kafka.maps(NAME, rules) == ours(NAME, rules) == principal


@pytest.mark.parametrize(
    "rules",
    [
        "DEFAULTx",
        "RULE:a/b",
        "RULE:a/b/X",
        "RULE:a/b/LU",
        "rule:a/b/",
        "RULE:(a/b/",
        "RULE:[a/b/",
        "RULE:a**/b/",
        "RULE:/b/L,x",
    ],
)
def test_rules_that_kafka_refuses_are_refused(kafka: Kafka, rules: str) -> None:
    assert kafka.maps(NAME, rules) == ours(NAME, rules) == NO_RULES


@pytest.mark.parametrize(
    "rules",
    ["RULE:CN=(.*?),.*/$2 $3/", "RULE:CN=.*/$1/", "RULE:CN=.*/${x}/", "RULE:CN=.*/$/", "RULE:CN=(.*)/$1 \\/ $x/", ""],
)
def test_rules_with_which_kafka_lets_nobody_in_are_refused(kafka: Kafka, rules: str) -> None:
    assert kafka.maps(NAME, rules) == REFUSED
    assert ours(NAME, rules) == NO_RULES


good = [
    *(
        "CN=",
        "OU=",
        "O=",
        ",",
        "a",
        "b",
        "ab",
        "\\,",
        "\\.",
        "\\/",
        "\\\\",
        "é",
        "\U0001f600",
        " ",
        "-",
        "]",
        "}",
        "=",
        "\\+",
    ),
    *(
        ".",
        ".*",
        ".*?",
        ".+",
        ".+?",
        ".?",
        "^",
        "$",
        "\\A",
        "\\z",
        "\\Z",
        "\\d",
        "\\w+",
        "\\W",
        "\\s*",
        "\\S+?",
        "\\D{1,3}",
    ),
    *(
        "[^,]*",
        "[^,]+?",
        "[a-z]",
        "[A-Za-z0-9.-]{2,}",
        "[\\w.]+",
        "[^\\s]",
        "[é-ü]",
        "[a-]",
        "[-a]",
        "[\\-\\]]",
        "[\\S]",
    ),
    *(
        "a{2}",
        "a{1,2}?",
        "a??",
        "a*?",
        "(?:a|b)*",
        "(a)*",
        "(a|b)+?",
        "(a|ab)(b?)",
        "(a*)",
        "(a?)?",
        "(.*)?",
        "([^,]*),",
    ),
    *("((a)|b)+", "(?:(a)|b)*", "(ab|a)*?", "(,[^,]*)*", "(|a)", "(a|)", "(?:)", "()", "[\\w-]", "[\\W]"),
]
bad = [
    *("(?<x>a|b)", "(?<cn>[^,]+)"),  # a second time, that is
    *(
        "a*+",
        "(?=a)",
        "(?!a)",
        "(?i)a",
        "\\b",
        "\\1",
        "[a[b]]",
        "[a&&b]",
        "\\p{L}",
        "\\Qa\\E",
        "{",
        "a{,2}",
        "*",
        "\\h",
        "[]a]",
    ),
]
pieces = st.integers(0, 20).flatmap(lambda n: st.sampled_from(good if n else bad))
patterns = st.recursive(
    st.lists(pieces, max_size=4).map("".join),
    lambda inner: st.one_of(
        inner.map(lambda it: f"({it})"),
        st.tuples(inner, inner).map("|".join),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, st.sampled_from(["", "*", "+", "?", "{0,2}", "{2}", "*?"])).map(
            lambda it: f"(?:{it[0]}){it[1]}"
        ),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "+?", "{1,3}"])).map(lambda it: f"({it[0]}){it[1]}"),
    ),
    max_leaves=4,
)
replacements = st.one_of(
    st.just("<$1>"),
    st.lists(
        st.sampled_from(
            [
                "$1",
                "$2",
                "$0",
                "$10",
                "$12",
                "$3",
                "x",
                "\\$",
                "\\/",
                "\\\\",
                "@",
                "é",
                "${x}",
                "$",
                " ",
                "Ab",
                "\\a",
                "$01",
            ]
        ),
        max_size=4,
    ).map("".join),
)
texts = st.one_of(
    st.lists(
        st.sampled_from(
            [
                "CN=",
                "OU=",
                "O=",
                ",",
                "a",
                "b",
                "ab",
                "aab",
                "\\,",
                ".",
                "/",
                "\\\\",
                "é",
                "ü",
                "\U0001f600",
                " ",
                "1",
                "-",
                "x",
            ]
        ),
        max_size=10,
    ).map("".join),
    st.text("ab,=CN1 é", max_size=12),
)
tails = st.sampled_from(["", "", "", ".*", "$", ",.*$"])


@many
@given(pattern=patterns, tail=tails, replacement=replacements, case=st.sampled_from(["", "L", "U"]), name=texts)
@example(pattern="(a*)", tail="", replacement="x$1", case="", name="\U0001f600")
def test_no_rule_maps_a_name_to_another_principal_than_kafkas(
    kafka: Kafka, pattern: str, tail: str, replacement: str, case: str, name: str
) -> None:
    compare(kafka, f"RULE:{pattern}{tail}/{replacement}/{case}", name)


@many
@given(
    rules=st.lists(
        st.sampled_from(
            [
                *(
                    "DEFAULT",
                    "RULE:",
                    "a",
                    "/",
                    "/",
                    "/",
                    "L",
                    "U",
                    ",",
                    ", ",
                    " ",
                    "\n",
                    "\\",
                    "\\/",
                    "\\,",
                    "$1",
                    "(.*)",
                    ".*",
                    "DEF",
                ),
                *("RULE:^CN=(.*?),.*$/$1/L", "RULE:.*/x/", "RULE:b/,/U,", "\u2028", "\u00a0", "\r", "\x1c"),
            ]
        ),
        max_size=9,
    ).map("".join),
    name=st.sampled_from([NAME, "a", "b", "", "CN=a,OU=b"]),
)
def test_rules_are_told_apart_as_kafka_does(kafka: Kafka, rules: str, name: str) -> None:
    compare(kafka, rules, name)


@many
@given(
    name=st.text("aZäßÉΣσςİıŉǅﬁ, \U00010400\n\r\u2028", max_size=8),
    rules=st.sampled_from(["RULE:.*/$0/L", "RULE:(.*)/$1/U", "RULE:[^=]*$/x/, DEFAULT", "RULE:(.*?)$/$1/"]),
)
@example(name="Z\U00010400Σ", rules="RULE:.*/$0/L")
def test_letters_of_any_script_change_case_as_in_java(kafka: Kafka, name: str, rules: str) -> None:
    compare(kafka, rules, name)


def compare(kafka: Kafka, rules: str, name: str) -> None:
    theirs, own = kafka.maps(name, rules), ours(name, rules)
    event(f"broker {theirs.partition(':')[0]}, gateway {own.partition(':')[0]}")
    if own == REFUSED:
        assert theirs == REFUSED or not LINE_TERMINATORS.isdisjoint(name) or max(name) > "\uffff"
    elif own != NO_RULES:
        assert own == theirs
