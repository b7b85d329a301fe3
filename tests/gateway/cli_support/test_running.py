# How a command line ends where its output can't be written, or not as text: an exit code, and no traceback.

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCHEMA = (sys.executable, "-m", "gateway", "schema")


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(SCHEMA, check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (1, "standard output: can't be written: No space left on device\n")


def test_output_that_nobody_reads_is_no_error_to_be_shown() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(SCHEMA, check=False, stdout=writer, stderr=subprocess.PIPE, timeout=240)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("output", ["1>&-", "1>/dev/null"])
def test_the_exit_code_is_the_same_without_an_output(output: str, tmp_path: Path) -> None:
    path = tmp_path / "gw.yaml"
    path.write_text("upstream: {bootstrap_servers: b1:9092}")
    command = ["sh", "-c", f'exec "$@" {output}', "sh", sys.executable, "-m", "gateway", "check", str(path)]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, timeout=240)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_belongs_to_standard_error_is_never_on_standard_output() -> None:
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-m", "gateway", "check", "/nonexistent"]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, timeout=240)
    assert (done.returncode, done.stdout) == (1, b"")


def test_letters_that_the_output_lacks_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "gw.yaml"
    path.write_text("upstream: {bootstrap_servers: b1:9092}\ninternal: {principals: ['User:zo\u00eb']}", "utf-8")
    command = [sys.executable, "-m", "gateway", "check", str(path)]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"User:zo\xeb: metered, never limited" in done.stdout


@pytest.mark.parametrize("module", ["gateway", "gateway.audit"])
def test_an_audit_says_where_its_answer_can_not_be_written(module: str, tmp_path: Path) -> None:
    (tmp_path / "usage-00000001-0.jsonl").touch()
    audit = [sys.executable, "-m", module, *(["audit"] if module == "gateway" else []), "--spool", str(tmp_path)]
    code = {}
    for output in ("1>/dev/full", "1>&-"):
        command = ["sh", "-c", f'exec "$@" {output}', "sh", *audit, "--engine", "local", "--quiet"]
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True, timeout=240)
        code[output] = done.returncode, done.stderr.rpartition("produce-gateway audit: ")[2]
    assert code == {"1>/dev/full": (1, "standard output: can't be written: No space left on device\n"), "1>&-": (0, "")}
