# Names in certificates as Java writes them. tests/integration/security/test_certificate_identity.py asks Java itself
# about any name; here is what its source says, without Java.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.authentication.distinguished_name import MAX_NAME, UnreadableName, subject_of
from tests.protocol.der import attribute, der, name_of

UTF8, PRINTABLE, IA5, BMP, INTEGER = 0x0C, 0x13, 0x16, 0x1E, 0x02
CN, ORG, DC, UID, EMAIL, TITLE = (
    *("2.5.4.3", "2.5.4.10", "0.9.2342.19200300.100.1.25", "0.9.2342.19200300.100.1.1"),
    *("1.2.840.113549.1.9.1", "2.5.4.12"),
)


def certificate(subject: bytes, *, version: bool = True) -> bytes:
    """As far as anybody looks at it."""
    head = [der(0xA0, der(2, b"\2"))] if version else []
    rest = (der(0x30), name_of([attribute(CN, UTF8, b"ca")]), der(0x30), subject, der(0x30, b"\xff"))
    return der(0x30, der(0x30, *head, der(2, b"\x07"), *rest), der(0x30), der(3, b"\0"))


def named(*parts: list[bytes]) -> str:
    return subject_of(certificate(name_of(*parts)))


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ([(CN, UTF8, b"alice")], "CN=alice"),
        ([(CN, UTF8, "Zoë".encode())], "CN=Zoë"),
        ([(ORG, PRINTABLE, b"Acme, Inc."), (CN, UTF8, b"alice")], "CN=alice,O=Acme\\, Inc."),
        ([(DC, IA5, b"org"), (DC, IA5, b"example"), (UID, UTF8, b"7")], "UID=7,DC=example,DC=org"),
        ([(CN, UTF8, b'+"\\<>;=#')], 'CN=\\+\\"\\\\\\<\\>\\;\\=\\#'),
        ([(CN, UTF8, b"  a b \r")], "CN=\\ \\ a b\\ \\\r"),
        ([(CN, UTF8, b"a\0b")], "CN=a\\00b"),
        ([(EMAIL, IA5, b"a@b")], "1.2.840.113549.1.9.1=#1603614062"),
        ([(TITLE, UTF8, bytes(200))], "2.5.4.12=#0c81c8" + "00" * 200),
        ([(CN, INTEGER, b"\x07")], "CN=#020107"),
        ([(CN, PRINTABLE, b"M\xfcller")], "CN=M\ufffdller"),
        ([(CN, UTF8, b"a\xed\xa0\x80b")], "CN=a\ufffdb"),
        ([(CN, BMP, b"\0a")], "CN=\\00a"),
        ([("2.999.4294967296", UTF8, b"")], "2.999.4294967296=#0c00"),
        ([], ""),
    ],
)
@pytest.mark.parametrize("version", [True, False])
def test_a_name_is_written_as_java_does(attributes: list[tuple[str, int, bytes]], text: str, version: bool) -> None:
    subject = name_of(*([attribute(*each)] for each in attributes))
    assert subject_of(certificate(subject, version=version)) == text


def test_attributes_of_one_relative_name_are_joined_in_their_order() -> None:
    both = [attribute(CN, UTF8, b"a"), attribute(UID, UTF8, b"b")]
    assert named([attribute(ORG, UTF8, b"o")], both) == "CN=a+UID=b,O=o"


def test_a_name_has_a_greatest_length() -> None:
    assert len(named([attribute(CN, UTF8, b"a" * (MAX_NAME - 3))])) == MAX_NAME
    with pytest.raises(UnreadableName, match="4097 characters"):
        named([attribute(CN, UTF8, b"a" * (MAX_NAME - 2))])


@pytest.mark.parametrize(
    "subject",
    [
        der(0x31),
        der(0x30, der(0x30)),
        der(0x30, der(0x31, der(0x30, der(6, b"\x55")))),
        der(0x30, der(0x31, der(0x30, der(6, b"\x55\x04\x83"), der(UTF8)))),
        der(0x30, der(0x31, der(0x30, der(6, b"\x55\x80\x03"), der(UTF8)))),
        der(0x30, der(0x31, der(0x30, der(6), der(UTF8)))),
        der(0x30, der(0x31, der(0x30, der(6, b"\xff" * 3000 + b"\x01"), der(UTF8)))),
        der(0x30, der(0x31, der(0x30, der(UTF8), der(UTF8)))),
        der(0x30, der(0x31, der(0x31, der(6, b"\x55\4\3"), der(UTF8)))),
        b"\x30\x80\0\0",
        b"\x30\x02\x1f\0",
        b"\x30\x7f",
    ],
)
def test_what_is_no_name_is_refused(subject: bytes) -> None:
    with pytest.raises(UnreadableName):
        subject_of(certificate(subject))


@given(data=st.binary(max_size=60), at=st.floats(0, 1, exclude_max=True), cut=st.integers(0, 60))
def test_any_bytes_are_a_name_or_refused(data: bytes, at: float, cut: int) -> None:
    whole = certificate(name_of([attribute(CN, UTF8, b"alice")], [attribute(ORG, PRINTABLE, b"Acme")]))
    place = int(len(whole) * at)
    for damaged in (data, whole[:place] + data + whole[place + cut :]):
        try:
            subject_of(damaged)
        except UnreadableName:
            pass
