# What `make sanitize` relies on; it runs weekly, and before a release.

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.compiled import HOT_PATH_MODULES
from tests.hostile import sanitize
from tests.hostile.sanitize import Failed, Steps


def test_each_compiled_module_has_tests_that_drive_it() -> None:
    assert sanitize.TESTS.keys() == set(HOT_PATH_MODULES)
    for name in (*sanitize.TESTS.values(), *sanitize.MORE_TESTS, *sanitize.COPIED):
        assert (sanitize.ROOT / name).exists(), name


@pytest.mark.parametrize(
    ("compiler", "why"), [("no-such-compiler", "can't be used"), ("echo", "echo has no libasan.so")]
)
def test_a_machine_that_lacks_the_sanitizers_is_told_what_to_install(compiler: str, why: str) -> None:
    with pytest.raises(Failed, match=r"gcc libc6-dev") as error:
        sanitize.libraries(compiler)
    assert why in str(error.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sanitize, "FOLDER", tmp_path)
    return tmp_path


def test_what_fails_and_what_is_reported_is_counted(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps = Steps({})
    steps.run("good", ("-c", "pass"), ("-c", "pass"))
    steps.run("bad", ("-c", "pass"), ("-c", "open('report.1', 'w').close(); raise SystemExit(1)"))
    assert steps.failed == ["bad"]
    said = capfd.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in said] == ["good …", "good: ok", "bad …", "bad: failed"]
    assert said[-1].endswith("1 reports")


@pytest.mark.parametrize("report", ["", "open('report.1', 'w').write('use-after-poison in _json')"])
def test_without_a_report_of_a_forbidden_read_nothing_is_believed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, report: str
) -> None:
    hostile = folder / "tests" / "hostile"
    hostile.mkdir(parents=True)
    (hostile / "boundaries.py").write_text(f"{report}\nraise SystemExit(1)")
    with pytest.raises(Failed, match="was not reported"):
        Steps({}).somebody_looks()


def test_reports_are_a_failure_even_if_all_steps_went_well(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitize, "libraries", lambda compiler: [])
    monkeypatch.setattr(sanitize, "copy_sources", lambda: None)
    monkeypatch.setattr(sanitize, "build", lambda: None)
    monkeypatch.setattr(sanitize, "ROOT", folder.parent)
    monkeypatch.setattr(Steps, "somebody_looks", lambda self: None)
    monkeypatch.setattr(Steps, "run", lambda self, name, *commands: None)
    assert sanitize.main(["--seconds", "1"]) == 0
    (folder / "report.7").write_text("heap-buffer-overflow")
    assert sanitize.main(["--seconds", "1"]) == 1
    assert "heap-buffer-overflow" in capsys.readouterr().err
