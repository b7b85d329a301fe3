# What the gateway knows passwords by: files that change, and a command.

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
import trio
import trio.testing
import yaml
from trio.testing import MockClock

from gateway.control.sasl import credentials
from gateway.control.sasl.credentials import (
    COMMANDS_OF_ADDRESS,
    UNKNOWN_USER_S,
    BrokerCredentials,
    BrokerTokens,
    CredentialsCommand,
    CredentialsError,
    WatchedFile,
    read_broker_credentials,
    read_records,
)
from gateway.kafka.oauthbearer import NoTokenError, TokenSource
from protocol.authentication.scram import make_record, record_text
from tests.integration.security.oidc import Issuer

RECORD = make_record("sha256", "pencil", b"salt and pepper", 4096)
TEXT = record_text(RECORD)
DEADLINE_S = 30.0


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return path


def test_users_and_their_records(tmp_path: Path) -> None:
    path = written(tmp_path, yaml.safe_dump({"alice": {"SCRAM-SHA-256": TEXT}}))
    assert read_records(path) == {"alice": {"SCRAM-SHA-256": RECORD}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names with what belongs to each"),
        ("alice", "names with what belongs to each"),
        ("alice: pencil", "alice: must have a record"),
        ("alice: {PLAIN: pencil}", "alice: must have a record"),
        ("alice: {SCRAM-SHA-256: pencil}", "alice: SCRAM-SHA-256: must have exactly salt="),
        (f"alice: {{SCRAM-SHA-512: '{TEXT}'}}", "64 bytes each"),
        (f"7: {{SCRAM-SHA-256: '{TEXT}'}}", "7: must be a user's name, in quotes"),
        (f"ANONYMOUS: {{SCRAM-SHA-256: '{TEXT}'}}", "ANONYMOUS: not a valid name"),
        (f'"a\\u0007": {{SCRAM-SHA-256: "{TEXT}"}}', "the unprintable character U\\+0007"),
        ("alice: {}\nalice: {}", "alice is there twice"),
    ],
)
def test_files_of_users_that_can_t_be_used(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CredentialsError, match=said) as caught:
        read_records(written(tmp_path, text))
    assert "pencil" not in str(caught.value)


def test_credentials_for_brokers(tmp_path: Path) -> None:
    path = written(tmp_path, "User:alice: {mechanism: PLAIN, username: a, password: 7}\n")
    assert read_broker_credentials(path) == {"User:alice": BrokerCredentials("PLAIN", "a", "7")}


def test_tokens_for_brokers(tmp_path: Path) -> None:
    text = """
User:alice: {mechanism: OAUTHBEARER, token_file: /run/token}
default:
  mechanism: OAUTHBEARER
  sasl.oauthbearer.method: oidc
  sasl.oauthbearer.client.id: gateway
  sasl.oauthbearer.client.secret: hidden
  sasl.oauthbearer.token.endpoint.url: https://idp.example/token
"""
    assert read_broker_credentials(written(tmp_path, text)) == {
        "User:alice": BrokerCredentials("OAUTHBEARER", "/run/token", token_file="/run/token"),
        "default": BrokerCredentials(
            "OAUTHBEARER", "gateway", bearer=TokenSource("https://idp.example/token", "gateway", "hidden")
        ),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("default: {mechanism: OAUTHBEARER}", "sasl.oauthbearer.method: must be oidc"),
        ("default: {mechanism: OAUTHBEARER, password: hidden}", "password: not understood with OAUTHBEARER"),
        ("default: {mechanism: OAUTHBEARER, token_file: /x, password: hidden}", "write token_file: FILE, or"),
        ("alice: {mechanism: PLAIN, username: a, password: hidden}", "write User:alice, or default"),
        ("default: {mechanism: GSSAPI, username: a, password: hidden}", "mechanism must be one of PLAIN"),
        ("default: {mechanism: PLAIN, username: a}", "exactly mechanism, username, password"),
        ("default: {mechanism: PLAIN, username: a, password: ''}", "with username and password"),
        ("default: hidden", "exactly mechanism"),
        ("default: {mechanism: PLAIN, username: a, password: no}", "password: YAML takes this for no text"),
        ("default: {mechanism: PLAIN, username: a, password: 1.50}", "password: YAML takes this for no text"),
        ("default: {mechanism: PLAIN, username: a, password: 012}", "YAML takes this for a number whose value depends"),
    ],
)
def test_files_for_brokers_that_can_t_be_used(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CredentialsError, match=said) as caught:
        read_broker_credentials(written(tmp_path, text))
    assert "hidden" not in str(caught.value)


async def test_a_file_is_read_again_when_it_changes_and_kept_when_it_breaks(
    tmp_path: Path, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file.yaml"
    watched = WatchedFile(path, read_records)
    with pytest.raises(CredentialsError):
        await watched.get()
    assert len(caplog.records) == 1
    written(tmp_path, yaml.safe_dump({"alice": {"SCRAM-SHA-256": TEXT}}))
    with pytest.raises(CredentialsError):  # not looked at with every client
        await watched.get()
    await trio.sleep(1)
    assert (await watched.get()).keys() == {"alice"}
    # Of another size: coarse clocks of file systems may give both the same time.
    written(tmp_path, yaml.safe_dump({"bob": {"SCRAM-SHA-256": TEXT}}))
    await trio.sleep(1)
    assert (await watched.get()).keys() == {"bob"}
    written(tmp_path, "broken")
    for _ in range(3):
        await trio.sleep(1)
        assert (await watched.get()).keys() == {"bob"}
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 2
    assert "stays in force" in caplog.text


async def test_a_file_that_could_not_be_read_for_a_while_is_read_later_unchanged(
    tmp_path: Path, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    path, faults = tmp_path / "file", iter((None, "too many open files", "too many open files"))

    def read(file: Path) -> str:
        if fault := next(faults, None):
            raise CredentialsError(fault)
        return file.read_text()

    path.write_text("old")
    watched = WatchedFile(path, read)
    assert await watched.get() == "old"
    path.write_text("newer")
    found = []
    for _ in range(30):
        await trio.sleep(1)
        found.append(await watched.get())
    assert set(found[:20]) == {"old"}
    assert found[-1] == "newer"
    assert len(caplog.records) == 1


# --- tokens -----------------------------------------------------------------------------------------------------------


async def test_a_token_of_a_file_is_the_one_that_is_there_now(tmp_path: Path) -> None:
    file = tmp_path / "token"
    own = BrokerCredentials("OAUTHBEARER", str(file), token_file=str(file))
    tokens = BrokerTokens()
    with pytest.raises(NoTokenError, match="can't be read: No such file"):
        await tokens.fill_token(own)
    for token in ("first.of.them", "second.of.them"):
        file.write_text(token + "\n")
        assert (await tokens.fill_token(own)).password == f"n,,\1auth=Bearer {token}\1\1"
    file.write_text("hidden \1 thing")
    with pytest.raises(NoTokenError, match="has no valid Bearer token") as caught:
        await tokens.fill_token(own)
    assert "hidden" not in str(caught.value)


async def test_an_issuer_is_asked_once_while_its_token_holds() -> None:
    with Issuer() as issuer:
        tokens = BrokerTokens()
        for name in ("gateway", "gateway", "another"):
            bearer = TokenSource(issuer.token_url, name, "a secret", extensions=("logicalCluster=lkc-1",))
            message = (await tokens.fill_token(BrokerCredentials("OAUTHBEARER", name, bearer=bearer))).password
            assert message.startswith("n,,\1auth=Bearer ey")
            assert message.endswith("\1logicalCluster=lkc-1\1\1")
        assert [asked["id"] for asked in issuer.asked] == ["gateway", "another"]


async def test_an_issuer_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "TOKEN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bearer = TokenSource(f"http://127.0.0.1:{silent.getsockname()[1]}/", "gateway", "a secret")
        with pytest.raises(NoTokenError, match=r"gateway: no answer within 0\.05 s"):
            await BrokerTokens().fill_token(BrokerCredentials("OAUTHBEARER", "gateway", bearer=bearer))


async def test_others_need_no_token() -> None:
    own = BrokerCredentials("PLAIN", "a", "7")
    assert await BrokerTokens().fill_token(own) is own


# --- the command ------------------------------------------------------------------------------------------------------


def command(tmp_path: Path, body: str, timeout_s: float = DEADLINE_S, cache_s: float = 60.0) -> CredentialsCommand:
    program = tmp_path / "program.py"
    program.write_text(f"import json, sys\nasked = json.load(sys.stdin)\nopen({str(tmp_path / 'asked')!r}, 'a')"
                       f".write(asked['username'] + ' ' + asked['mechanism'] + chr(10))\n{body}\n")  # fmt: skip
    return CredentialsCommand((sys.executable, "-S", "-E", str(program)), timeout_s, cache_s)


async def test_a_command_is_asked_once_while_its_answer_holds(tmp_path: Path, mock_clock: MockClock) -> None:
    said = json.dumps({"SCRAM-SHA-256": TEXT})
    asked = command(tmp_path, f"print({said!r}) if asked['username'] == 'alice' else None")
    for _ in range(2):
        assert await asked.fetch_records("alice", "PLAIN", "192.0.2.1") == {"SCRAM-SHA-256": RECORD}
        assert await asked.fetch_records("nobody", "PLAIN", "192.0.2.1") == {}
    assert (tmp_path / "asked").read_text().split("\n") == ["alice PLAIN", "nobody PLAIN", ""]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(3)", "ended with 3"),
        ("print('pencil')", "printed no JSON"),
        ("print('{}')", "must have a record"),
        ("import time; time.sleep(60)", "did not answer within 1 s"),
    ],
)
async def test_commands_that_say_nothing_useful(tmp_path: Path, body: str, said: str) -> None:
    asked = command(tmp_path, body, 1.0 if "sleep" in body else DEADLINE_S)
    with pytest.raises(CredentialsError, match=said):
        await asked.fetch_records("alice", "PLAIN", "192.0.2.1")


async def test_a_command_that_is_not_there() -> None:
    with pytest.raises(CredentialsError, match="No such file"):
        await CredentialsCommand(("/no/such/program",), 5.0, 0.0).fetch_records("alice", "PLAIN", "192.0.2.1")


async def test_names_that_nobody_has_are_asked_again_soon(tmp_path: Path, mock_clock: MockClock) -> None:
    said = json.dumps({"SCRAM-SHA-256": TEXT})
    asked = command(tmp_path, f"print({said!r}) if asked['username'] == 'alice' else None")
    for _ in range(2):
        for name in ("alice", "nobody"):
            await asked.fetch_records(name, "PLAIN", "192.0.2.1")
        mock_clock.jump(UNKNOWN_USER_S)
    assert (tmp_path / "asked").read_text().split() == ["alice", "PLAIN", "nobody", "PLAIN", "nobody", "PLAIN"]


async def test_made_up_names_drive_no_user_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "MAX_CACHED", 2)
    said = json.dumps({"SCRAM-SHA-256": TEXT})
    asked = command(tmp_path, f"print({said!r}) if asked['username'] == 'alice' else None")
    for name in ("alice", "a", "b", "c", "alice", "a"):
        await asked.fetch_records(name, "PLAIN", "192.0.2.1")
    assert (tmp_path / "asked").read_text().split()[::2] == ["alice", "a", "b", "c", "a"]


async def test_made_up_names_from_one_address_leave_room_for_others(tmp_path: Path) -> None:
    said = json.dumps({"SCRAM-SHA-256": TEXT})
    asked = command(tmp_path, f"print({said!r}) if asked['username'] == 'alice' else __import__('time').sleep(60)")
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for at in range(20):
                nursery.start_soon(asked.fetch_records, f"stranger-{at}", "PLAIN", "192.0.2.1")
            await trio.testing.wait_all_tasks_blocked()
            assert await asked.fetch_records("alice", "PLAIN", "192.0.2.2") == {"SCRAM-SHA-256": RECORD}
            nursery.cancel_scope.cancel()


async def test_what_many_ask_at_the_same_time_is_asked_once_they_have_a_turn(tmp_path: Path) -> None:
    said = json.dumps({"SCRAM-SHA-256": TEXT})
    asked = command(tmp_path, f"print({said!r})")
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(asked.fetch_records, "alice", "PLAIN", "192.0.2.1")
    assert (tmp_path / "asked").read_text().count("alice") == COMMANDS_OF_ADDRESS
