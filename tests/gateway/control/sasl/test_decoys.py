# The challenges that names without a user get, by the real Authenticator: nobody can tell them from users'.

from __future__ import annotations

import random
import stat
import sys
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.channel import AdminQuery
from gateway.config import AuthenticationSettings
from gateway.control.sasl.authentication import SaslAuthenticator
from gateway.control.sasl.decoys import MAX_PROFILES, DecoyRecords
from protocol.authentication.handshake import SASL_AUTHENTICATE, SaslAuthenticateRequest
from protocol.authentication.scram import RecordShape, ScramRecord, record_text

SECRET = b"a secret of the gateway's own, of all gateways that share it"
USERS = 300
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


def record(salt: bytes, iterations: int, size: int) -> ScramRecord:
    keys = random.Random(salt)
    return ScramRecord(salt, keys.randbytes(size), keys.randbytes(size), iterations)


def users(chance: random.Random) -> dict[str, dict[str, str]]:
    """Three generations of records: of the product's tool, Kafka's, and a third tool's, which are for one hash only."""
    found: dict[str, dict[str, str]] = {}
    for number in range(USERS):
        if number % 10 < 6:
            made = {SHA_512: record(chance.randbytes(24), 8192, 64)}
        elif number % 10 < 9:
            salts = [_kafkas(chance.getrandbits(130)) for _ in range(2)]
            made = {SHA_256: record(salts[0], 4096, 32), SHA_512: record(salts[1], 4096, 64)}
        else:
            made = {SHA_256: record(chance.randbytes(16), 10_000, 32)}
        found[f"user-{number}"] = {mechanism: record_text(each) for mechanism, each in made.items()}
    return found


def _kafkas(number: int) -> bytes:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.encode()


def authenticator(folder: Path, secret: bytes = SECRET, **settings: Any) -> SaslAuthenticator:
    given = {"sasl.enabled.mechanisms": ["PLAIN", SHA_256, SHA_512], **settings}
    given["connection.failed.authentication.delay.ms"] = 0
    return SaslAuthenticator(AuthenticationSettings.model_validate(given), secret, folder)


def of_file(folder: Path, known: dict[str, dict[str, str]], secret: bytes = SECRET) -> SaslAuthenticator:
    path = folder / "credentials.yaml"
    path.write_text(yaml.safe_dump(known))
    return authenticator(folder, secret, credentials_file=path)


async def ask(asked: SaslAuthenticator, mechanism: str, message: bytes) -> bytes:
    frame = SASL_AUTHENTICATE.encode_request(SaslAuthenticateRequest(message), 2, 1, b"app")[4:]
    said = await asked.answer_query(AdminQuery(1, 2.0**40, "192.0.2.1:1", "User:ANONYMOUS", frame, b"", b"", mechanism))
    return SASL_AUTHENTICATE.decode_response(said.client, 4, len(said.client), 2)[1].auth_bytes


async def challenge(asked: SaslAuthenticator, name: str, mechanism: str = SHA_512) -> tuple[bytes, int]:
    """Salt and iterations."""
    said = await ask(asked, mechanism, f"n,,n={name},r=nonce".encode())
    fields = dict(field.split(b"=", 1) for field in said.split(b","))
    return b64decode(fields[b"s"]), int(fields[b"i"])


def look(said: tuple[bytes, int]) -> tuple[int, bool, int]:
    salt, iterations = said
    return len(salt), salt.isalnum(), iterations


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
async def test_challenges_of_users_and_of_nobody_are_distributed_alike(tmp_path: Path, mechanism: str) -> None:
    known = users(random.Random(1))
    asked = of_file(tmp_path, known)
    really = Counter([look(await challenge(asked, name, mechanism)) for name in known])
    nobody = Counter([look(await challenge(asked, f"name-{number}", mechanism)) for number in range(USERS)])
    for each in really | nobody:  # seldom one of Kafka's has 23 or 24 digits: perhaps none of these
        # Decoys follow from the file's path too, another one in each run: 0.15 is 4.7 standard deviations of a share.
        assert abs(really[each] - nobody[each]) < 0.15 * USERS, (really, nobody)


async def test_a_name_s_challenge_stays_over_restarts_and_changes_of_the_file(tmp_path: Path) -> None:
    known = users(random.Random(2))
    names = [f"name-{number}" for number in range(100)]
    keys = [(name, mechanism) for name in names for mechanism in (SHA_256, SHA_512)]

    async def challenges(asked: SaslAuthenticator) -> dict[tuple[str, str], tuple[bytes, int]]:
        return {key: await challenge(asked, *key) for key in keys}

    asked = of_file(tmp_path, known)
    first = await challenges(asked)
    assert await challenges(asked) == first
    assert await challenges(of_file(tmp_path, known)) == first
    assert all(first[name, SHA_256][0] != first[name, SHA_512][0] for name in names)  # as a user's two records
    del known["user-0"]
    others = await challenges(of_file(tmp_path, known))
    moved = [key for key in first if others[key] != first[key]]
    assert len(moved) <= 5
    assert all(others[key][0] != first[key][0] for key in moved)  # as if it had got another password


async def test_challenges_of_nobody_can_t_be_computed_from_the_file(tmp_path: Path) -> None:
    known = users(random.Random(3))
    ours, theirs = of_file(tmp_path, known), of_file(tmp_path, known, b"another gateway's secret")
    assert (await challenge(ours, "nobody"))[0] != (await challenge(theirs, "nobody"))[0]
    assert await challenge(ours, "user-0") == await challenge(theirs, "user-0")


async def test_files_of_other_users_have_other_decoys(tmp_path: Path) -> None:
    """Else a name whose salt is the same at two listeners would be nobody's at both."""
    asked = []
    for listener in ("a", "b"):
        (tmp_path / listener).mkdir()
        asked.append(of_file(tmp_path / listener, users(random.Random(4))))
    assert (await challenge(asked[0], "nobody"))[0] != (await challenge(asked[1], "nobody"))[0]


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512, "PLAIN"])
async def test_a_user_and_nobody_take_the_same_hashes(tmp_path: Path, mechanism: str) -> None:
    known = {name: {SHA_256: record_text(record(bytes(16), 4096, 32))} for name in ("alice", "robert")}
    known["carol"] = {SHA_512: record_text(record(bytes(24), 4096, 64))}
    asked = of_file(tmp_path, known)
    await ask(asked, mechanism, b"the file is read with the first")
    counts = []
    for name in ("alice", "carol", "nobody", "somebody"):
        called: Counter[str] = Counter()

        def note(frame: Any, event: str, function: Any, called: Counter[str] = called) -> None:
            if event == "c_call" and getattr(function, "__module__", "") in ("_hashlib", "_blake2", "_sha3", "_hmac"):
                called[function.__name__] += 1

        message = f"\0{name}\0guess" if mechanism == "PLAIN" else f"n,,n={name},r=nonce"
        sys.setprofile(note)
        try:
            await ask(asked, mechanism, message.encode())
        finally:
            sys.setprofile(None)
        counts.append(called)
    assert counts[0]["hmac_digest"]
    assert counts == [counts[0]] * 4


async def test_what_a_command_s_users_look_like_is_kept(tmp_path: Path) -> None:
    """Only who has been asked about is known of them, and a decoy must not change when the gateway starts again."""
    text = record_text(record(b"a salt of 21 bytes...", 12_345, 64))
    program = tmp_path / "command.py"
    program.write_text(
        "import json, sys\n"
        f"known = {{'alice': {{'{SHA_512}': '{text}'}}}}\n"
        "found = known.get(json.load(sys.stdin)['username'])\n"
        "print(json.dumps(found) if found else '')\n"
    )
    settings: dict[str, Any] = {"credentials_command": [sys.executable, str(program)]}
    asked = authenticator(tmp_path, **settings)
    before = look(await challenge(asked, "nobody"))
    assert before[0::2] == (24, 8192)  # nothing is known of its users
    await challenge(asked, "alice")
    nobody = await challenge(asked, "nobody")
    assert look(nobody)[0::2] == (21, 12_345)
    assert await challenge(authenticator(tmp_path, **settings), "nobody") == nobody
    (kept,) = Path(tmp_path).glob("credentials-*.json")  # noqa: ASYNC240
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    kept.write_text('[[["SCRAM-SHA-512", [24, 1]]]]')  # by whoever: no challenge without strength
    assert look(await challenge(authenticator(tmp_path, **settings), "nobody")) == before
    for broken in ("{", "[1]", '[[["x", ["a", "b"]]]]', '[[["MD5", [8, 4096]]]]'):
        kept.write_text(broken)
        assert look(await challenge(authenticator(tmp_path, **settings), "nobody"))[0::2] == (24, 8192)


def test_profiles_are_bounded() -> None:
    """Each costs time in every step of a stranger."""
    decoys = DecoyRecords(SECRET)
    for number in range(2 * MAX_PROFILES):
        decoys.learn_profile({SHA_512: record(bytes(24), 5000 + number, 64)})
    decoys.set_users(
        {str(number): {SHA_256: record(bytes(8), 5000 + number, 32)} for number in range(2 * MAX_PROFILES)}
    )
    assert len(decoys._profiles) == MAX_PROFILES


def test_without_users_decoys_look_as_the_product_s_own_tool_makes_records() -> None:
    decoys = DecoyRecords(SECRET)
    made = decoys.decoy_record("nobody", SHA_512)
    assert (len(made.salt), made.iterations) == (RecordShape().salt_bytes, RecordShape().iterations)
    assert decoys.decoy_mechanisms("nobody") == [SHA_256, SHA_512]
