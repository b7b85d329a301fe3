from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway.config import Settings
from gateway.control.lifecycle.examination import find_chain_key_faults, find_secret_key_faults
from gateway.secret_key import KEY_FILE_NAME, derive_key, find_secret, obtain_secret


def settings(spool: Path, **more: object) -> Settings:
    given = {"upstream": {"bootstrap_servers": "127.0.0.1:9092"}, "usage_log": {"spool_dir": spool}, **more}
    return Settings.model_validate(given)


def test_a_gateway_makes_its_secret_once(tmp_path: Path) -> None:
    own = settings(tmp_path / "spool")
    assert find_secret(own) is None
    made = obtain_secret(own)
    assert made == obtain_secret(own) == find_secret(own)
    assert stat.S_IMODE((tmp_path / "spool" / KEY_FILE_NAME).stat().st_mode) == 0o600
    assert made != obtain_secret(settings(tmp_path / "other"))
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [KEY_FILE_NAME]


def test_gateways_may_share_one(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.write_text("0123456789abcdef0123456789abcdef\n")
    secrets = [obtain_secret(settings(tmp_path / name, secret_key_file=path)) for name in ("a", "b")]
    assert secrets == [b"0123456789abcdef0123456789abcdef"] * 2
    assert not (tmp_path / "a").exists()


def test_one_that_can_t_be_used_is_told_before_the_start(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    given = settings(tmp_path, secret_key_file=path)
    assert find_secret_key_faults(given) == [f"secret_key_file: {path}: No such file or directory"]
    path.write_text("short")
    (fault,) = find_secret_key_faults(given)
    assert "must have 32 bytes or more" in fault
    assert "short" not in fault.removeprefix(f"secret_key_file: {path}")
    path.write_text("x" * 32)
    assert find_secret_key_faults(given) == find_secret_key_faults(settings(tmp_path)) == []


def test_a_chain_s_key_that_can_t_be_read_is_told_before_the_start(tmp_path: Path) -> None:
    kept = {"spool_dir": tmp_path, "chain": True, "chain_key_file": tmp_path / "key"}
    faults = find_chain_key_faults(settings(tmp_path, usage_log=kept))
    assert faults == [f"usage_log.chain_key_file: {tmp_path / 'key'}: No such file or directory"]
    assert find_chain_key_faults(settings(tmp_path)) == []


def test_without_a_disk_clients_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    lacking = settings(tmp_path / "file" / "spool")
    assert len(obtain_secret(lacking)) == 32
    assert obtain_secret(lacking) != obtain_secret(lacking)
    assert "going on with one that lasts until this process ends" in caplog.text


def test_each_purpose_has_a_key_of_its_own() -> None:
    keys = {derive_key(secret, purpose) for secret in (b"a", b"b") for purpose in ("decoys", "rollout")}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {32}
