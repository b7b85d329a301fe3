# The command that makes a record: the credentials file takes what it prints, and only the password opens it.

from __future__ import annotations

import io
from pathlib import Path

import pytest

from gateway.commands.credentials.scram_record import main
from gateway.control.sasl.credentials import read_records
from protocol.authentication.scram import HASHES, matches_password


def given(text: str) -> io.TextIOWrapper:
    """As standard input where the locale is another one than UTF-8."""
    return io.TextIOWrapper(io.BytesIO(text.encode()), "latin-1")


@pytest.mark.parametrize("mechanism", sorted(HASHES))
@pytest.mark.parametrize("user", ["alice", "true", "a: b", "7", "zoë"])
def test_what_it_prints_is_a_line_of_the_file(
    user: str, mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", given("pass word\nmore"))
    assert main([user, "--mechanism", mechanism, "--iterations", "4096"]) == 0
    printed = capsys.readouterr().out
    assert "pass word" not in printed
    path = tmp_path / "credentials.yaml"
    path.write_text(printed)
    record = read_records(path)[user][mechanism]
    assert matches_password(record, HASHES[mechanism], b"pass word")
    assert not matches_password(record, HASHES[mechanism], b"pass word\n")


def test_a_password_is_utf_8_whatever_the_locale_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", given("pässword\n"))
    assert main(["alice"]) == 0
    path = tmp_path / "credentials.yaml"
    path.write_text(capsys.readouterr().out)
    record = read_records(path)["alice"]["SCRAM-SHA-512"]
    assert matches_password(record, HASHES["SCRAM-SHA-512"], "pässword".encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"p\xe4ssword\n")))
    assert main(["alice"]) == 1
    assert capsys.readouterr().err == "scram-record: the password must be UTF-8 text\n"


@pytest.mark.parametrize("user", ["", "a\nb", " a", "ANONYMOUS", "\udcff"])
def test_a_name_that_the_file_could_not_have_is_refused(user: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The gateway would refuse the file as a whole."""
    with pytest.raises(SystemExit) as end:
        main([user])
    assert end.value.code == 2
    assert "error: user: " in capsys.readouterr().err


def test_no_password_and_too_few_iterations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", given("\n"))
    assert main(["alice"]) == 1
    with pytest.raises(SystemExit):
        main(["alice", "--iterations", "100"])
    assert "4096 to" in capsys.readouterr().err
