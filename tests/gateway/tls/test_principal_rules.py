# ssl.principal.mapping.rules: what is refused and in which words, and what a search may cost. That results are Kafka's
# is tested with Kafka's own class, in tests/integration/security/test_certificate_identity.py.

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from gateway.tls.principal_rules import NoPrincipal, PrincipalRules, RuleError
from tests.certificates import Authority
from tests.protocol.der import attribute, name_of, with_subject

NAME = "CN=kafka1,OU=SRE,O=Acme"


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", NAME),
        ("RULE:^CN=([^,]+),.*$/$1/", "kafka1"),
        ("RULE:nobody/x/,RULE:CN=(?<cn>.*?),OU=(.*?),.*/$2.${cn}/U", "SRE.KAFKA1"),
        ("RULE:CN=(.*?)/$1/", "kafka1,OU=SRE,O=Acme"),  # replaceAll goes by each match, not by the whole
        ("RULE:.*/x/", "xx"),
        ("RULE:CN=(.*?),.*/$1@$2/", "kafka1@$2"),
        ("RULE:(CN=kafka1.*)|(x)/<$2>/", "<>"),
    ],
)
def test_the_first_rule_that_matches_says_the_principal(rules: str, principal: str) -> None:
    assert PrincipalRules(rules).apply_rules(NAME) == principal


def test_a_certificate_that_no_rule_matches_makes_no_principal() -> None:
    with pytest.raises(NoPrincipal, match=r"no rule of ssl\.principal\.mapping\.rules applies to 'CN=kafka1,OU=SRE"):
        PrincipalRules("RULE:CN=[^,]*/x/").apply_rules(NAME)


def test_a_certificate_that_is_none_makes_no_principal() -> None:
    with pytest.raises(NoPrincipal, match="the name in the client's certificate can't be read: not an X"):
        PrincipalRules().principal_of(b"\x30\0")


def test_a_name_with_several_lines_is_its_own_principal_or_none() -> None:
    assert PrincipalRules().apply_rules("CN=a\nb") == "CN=a\nb"
    with pytest.raises(NoPrincipal, match=r"several lines: 'CN=a\\nb'"):
        PrincipalRules("RULE:.*/x/,DEFAULT").apply_rules("CN=a\nb")


@pytest.mark.parametrize(
    ("rules", "finding"),
    [
        ("", "no rule is there, so no certificate would make a principal: write DEFAULT, or for example RULE:"),
        ("CN=(.*)", "'CN=(.*)' is not a valid rule: write DEFAULT, or RULE:pattern/replacement/ with L or U"),
        ("RULE:CN=(.*)/$1", "is not a valid rule"),
        (
            "RULE:(?i)cn=(.*)/$1/",
            "(?i): of groups with ? only (?:…) and (?<name>…) are known; for case, write /L or /U",
        ),
        ("RULE:CN=(?=a)(.*)/$1/", "(?=: lookahead is Java's only"),
        ("RULE:CN=(?<!a)(.*)/$1/", "(?<!: negative lookbehind is Java's only"),
        ("RULE:(.)\\1/$1/", "\\1: references to groups are Java's only"),
        ("RULE:\\bCN=.*/x/", "\\b: is Java's only, or of another meaning there"),
        ("RULE:.*+/x/", "*+: possessive quantifiers are Java's only"),
        ("RULE:a**/x/", "**: two quantifiers"),
        ("RULE:(a*)*/x/", "* behind a group that may be empty"),
        ("RULE:[a[b]]/x/", "[ in a class: unions are Java's only: write \\["),
        ("RULE:[a&&b]/x/", "&& in a class"),
        ("RULE:[b-a]/x/", "b-a: the first character is the greater one"),
        ("RULE:[]a]/x/", "[]: write \\]"),
        ("RULE:[a/x/", "ends too early"),
        ("RULE:(a/x/", "( without its )"),
        ("RULE:a)/x/", ") without its ("),
        ("RULE:a{x}/x/", "{ that begins no number"),
        ("RULE:a{3,2}/x/", "{3,2}: the first number is the greater one"),
        ("RULE:a{1001}/x/", "too large, or more than 1000 repetitions"),
        ("RULE:^*/x/", "* behind ^, where nothing can be repeated"),
        ("RULE:+a/x/", "+ with nothing before it: write \\+"),
        ("RULE:(?<a>.)(?<a>.)/x/", "(?<a>…) is there twice"),
        ("RULE:a/$1/", "$1: the pattern has 0 groups"),
        ("RULE:(a)/$2 $3/", "$3: the pattern has 1 groups"),  # Kafka itself escapes only the first
        ("RULE:(a)/$/", "$ without a number or {name}: write \\$"),
        ("RULE:(a)/${b}/", "${b}: the pattern has no (?<b>…)"),
        ("RULE:(a)/$99999999999999999999/", "no group has that number"),
        (f"RULE:{'a' * 2001}/x/", "2001 characters, 2000 are the most"),
        ("DEFAULT," * 3000, "24000 characters, 20000 are the most"),
    ],
)
def test_rules_that_cannot_be_used_are_refused(rules: str, finding: str) -> None:
    with pytest.raises(RuleError) as caught:
        PrincipalRules(rules)
    assert finding in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_nested_quantifiers_take_no_longer_than_others() -> None:
    """Java needs years for these; here a name of the greatest length ends at all."""
    rules = PrincipalRules("RULE:(([a-z])+.)+x/$1/, RULE:(a|aa)+x/$1/, RULE:(.*,){9}(.*),x/$2/, DEFAULT")
    for name in ("a" * 4096, "a," * 2048):
        assert rules.apply_rules(name) == name


@pytest.mark.parametrize(("name", "rules"), [(b"ANONYMOUS", "RULE:CN=(.*)/$1/"), (b"a\xe2\x80\xaeb", "DEFAULT")])
def test_a_name_that_nobody_may_have_makes_no_principal(tmp_path: Path, name: bytes, rules: str) -> None:
    template = ssl.PEM_cert_to_DER_cert(Authority(tmp_path).certificate.read_text())
    certificate = with_subject(template, name_of([attribute("2.5.4.3", 0x0C, name)]))
    with pytest.raises(NoPrincipal, match="the name that the client's certificate makes"):
        PrincipalRules(rules).principal_of(certificate)
    assert PrincipalRules(rules).principal_of(with_subject(template, name_of([attribute("2.5.4.3", 0x0C, b"a")])))
