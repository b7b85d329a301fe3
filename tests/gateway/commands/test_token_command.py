# `produce-gateway token create`.

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.access_tokens.roles import AccessRole
from gateway.access_tokens.tokens import hash_token, read_holders
from gateway.commands.credentials.token import main

CREATE = ["create", "--name", "alice", "--role", "operator"]


def test_the_token_is_that_of_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CREATE, "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["line"] == f"alice:operator:sha256:{hash_token(said['token']).hex()}"
    assert main(CREATE) == 0
    token, line = (text.split() for text in capsys.readouterr().out.splitlines())
    assert (token[0], line[0], len(token), len(line)) == ("token", "line", 2, 2)
    assert token[1] != said["token"]


@pytest.mark.parametrize("before", ["", "# of the team\n", "old-0123456789abcdef", "old-0123456789abcdef\n"])
def test_a_line_is_appended_to_what_is_there(tmp_path: Path, before: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens"
    if before:
        path.write_text(before)
    assert main([*CREATE, "--append", str(path), "-o", "json"]) == 0
    holder = read_holders(path)[-1]
    assert (holder.name, holder.role) == ("alice", AccessRole.OPERATOR)
    assert holder.digest == hash_token(json.loads(capsys.readouterr().out)["token"])
    assert path.read_text().startswith(before)
    assert before or path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_can_not_be_used_stays_as_it_is_and_no_token_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens"
    path.write_text("hunter2\n")
    assert main([*CREATE, "--append", str(path)]) == 1
    assert path.read_text() == "hunter2\n"
    said = capsys.readouterr()
    assert (said.out, "line 1: a token has 16" in said.err, "hunter2" in said.err) == ("", True, False)
    assert main([*CREATE, "--append", str(tmp_path / "no" / "tokens")]) == 1
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"), [(["create", "--name", "a b", "--role", "admin"], "a name has letters"), ([], "ACTION"),
                       (["create", "--name", "a", "--role", "root"], "invalid choice")],
)  # fmt: skip
def test_a_wrong_command_line_says_what_would_be_right(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert said in capsys.readouterr().err
