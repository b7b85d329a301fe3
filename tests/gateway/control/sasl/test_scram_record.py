# The command that makes a record: the credentials file takes what it prints, and only the password opens it.

from __future__ import annotations

import io
from pathlib import Path

import pytest

from gateway.commands.credentials.scram_record import main
from gateway.control.sasl.credentials import read_records
from protocol.authentication.scram import HASHES, matches_password


@pytest.mark.parametrize("mechanism", sorted(HASHES))
@pytest.mark.parametrize("user", ["alice", "true", "a: b", "7", "zoë"])
def test_what_it_prints_is_a_line_of_the_file(
    user: str, mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("pass word\nmore"))
    assert main([user, "--mechanism", mechanism, "--iterations", "4096"]) == 0
    printed = capsys.readouterr().out
    assert "pass word" not in printed
    path = tmp_path / "credentials.yaml"
    path.write_text(printed)
    record = read_records(path)[user][mechanism]
    assert matches_password(record, HASHES[mechanism], b"pass word")
    assert not matches_password(record, HASHES[mechanism], b"pass word\n")


def test_no_password_and_too_few_iterations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["alice"]) == 1
    with pytest.raises(SystemExit):
        main(["alice", "--iterations", "100"])
    assert "4096 to" in capsys.readouterr().err
