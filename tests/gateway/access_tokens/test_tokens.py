# Tokens and files of them: what is taken, what is refused, and that no text of theirs gets into a message.

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access_tokens.roles import ROLE_NAMES, AccessRole, parse_role
from gateway.access_tokens.tokens import (
    MAX_HOLDERS,
    TokenHolder,
    check_name,
    check_token,
    format_token_line,
    make_token,
    parse_token_line,
    read_first_token,
    read_holders,
)

ONE, TWO = "one-0123456789abcdef", "two-0123456789abcdef"
HEX = hashlib.sha256(ONE.encode()).hexdigest()


def test_a_line_has_name_role_and_hash() -> None:
    assert (
        format_token_line("alice@example.org", AccessRole.OPERATOR, ONE) == f"alice@example.org:operator:sha256:{HEX}"
    )
    assert parse_token_line(f"bob:viewer:sha256:{HEX}") == TokenHolder("bob", AccessRole.VIEWER, bytes.fromhex(HEX))
    assert parse_token_line(ONE) == TokenHolder("", AccessRole.ADMIN, bytes.fromhex(HEX))  # as in earlier releases


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}", fullmatch=True),
    st.sampled_from(ROLE_NAMES),
    st.from_regex(r"[A-Za-z0-9._~+/-]{16,64}", fullmatch=True),
)
def test_a_line_that_was_made_is_read_as_it_was_meant(name: str, role: str, token: str) -> None:
    line = format_token_line(name, parse_role(role), token)
    assert parse_token_line(line) == TokenHolder(name, parse_role(role), hashlib.sha256(token.encode()).digest())
    assert token not in line.removeprefix(name)  # a name may be anything


@given(st.text(max_size=200))
def test_any_other_line_is_refused_and_not_shown(line: str) -> None:
    try:
        holder = parse_token_line(line)
    except ValueError as error:
        assert len(line) < 10 or line not in str(error)  # noqa: PT017  a short one may be part of the text by chance
    else:
        assert isinstance(holder.role, AccessRole)
        assert len(holder.digest) == 32


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (f"alice:operator:{HEX}", "3 parts where four are needed"),
        (f"alice:operator:md5:{HEX}", "only sha256 is known"),
        (f"alice:operator:sha256:{HEX[:-1]}", "a hash has 64"),
        (f"alice:operator:sha256:{HEX.upper()}", "a hash has 64"),
        (f"alice:root:sha256:{HEX}", "a role is viewer, operator or admin"),
        (f"alice:none:sha256:{HEX}", "a role is viewer, operator or admin"),
        (f":operator:sha256:{HEX}", "a name has letters"),
        (f"al ice:operator:sha256:{HEX}", "a name has letters"),
        (f"{'a' * 101}:operator:sha256:{HEX}", "at most 100"),
        ("short", "a token has 16 to 4096 characters, not 5"),
    ],
)
def test_a_line_with_a_fault_is_refused_with_what_would_be_right(line: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_token_line(line)


def test_a_file_has_comments_and_empty_lines_and_a_name_may_have_several_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(
        f"# of the team\n\n  alice:admin:sha256:{HEX}  \n{format_token_line('alice', AccessRole.ADMIN, TWO)}\n"
    )
    assert [holder.name for holder in read_holders(path)] == ["alice", "alice"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"{ONE}\nhunter2\n", "line 2: a token has 16 to 4096 characters, not 7"),
        (f"{ONE}\n\nalice:admin:sha256:{HEX}\n", "line 3: the token of line 1 once more"),
        ("# nothing\n", "there is no token in it: produce-gateway token create"),
        ("".join(f"{n:020}\n" for n in range(MAX_HOLDERS + 1)), "1001 tokens, 1000 are the most"),
    ],
)
def test_a_file_is_refused_as_a_whole_and_without_its_tokens(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ValueError, match=fault) as error:
        read_holders(path)
    assert "hunter2" not in str(error.value)
    assert ONE not in str(error.value)


def test_a_command_sends_the_first_token_of_a_file_but_no_hash(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"# mine\n{TWO}\n{ONE}\n")
    assert read_first_token(path) == TWO
    path.write_text(f"alice:admin:sha256:{HEX}\n")
    with pytest.raises(ValueError, match="line 1: this is the gateway's file, with hashes of tokens"):
        read_first_token(path)
    path.write_text("hunter2")
    with pytest.raises(ValueError, match="line 1: a token has 16"):
        read_first_token(path)
    path.write_text("")
    with pytest.raises(ValueError, match="there is no token in it"):
        read_first_token(path)


@pytest.mark.parametrize("token", ["", "short", "x" * 4097, "with spaces in it 1234", "=0123456789abcdef", "ü" * 20])
def test_a_text_that_can_be_no_token_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(ValueError, match="produce-gateway token create --name NAME --role ROLE makes one") as error:
        check_token(token)
    assert not token or token not in str(error.value)
    assert check_token("0123456789abcdef._~+/-==") == "0123456789abcdef._~+/-=="


def test_tokens_are_random_long_and_to_be_found_by_scanners() -> None:
    made = {make_token() for _ in range(100)}
    assert len(made) == 100
    for token in made:
        assert check_token(token).startswith("pgw_")
        assert len(token) == 4 + 43  # 256 bits


def test_names_are_fit_for_a_log_line() -> None:
    for name in ("", "-a", ".a", "a b", "a:b", "a\n", "ü"):
        with pytest.raises(ValueError, match="a name has"):
            check_name(name)
