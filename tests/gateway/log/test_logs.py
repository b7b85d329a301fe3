# The log: what a line looks like in both forms, that it is one line and one write, what it never shows, and how many
# there may be.

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ConfigError, parse_settings
from gateway.log.logs import (
    EVENT_KINDS,
    FIELDS,
    LINE_BURST,
    LOGGERS,
    MAX_LINE_BYTES,
    DefaultLogSettings,
    LineHandler,
    _may_contain_secret,
    configure_logging,
    hide_secrets,
    select_fields,
)

GATEWAY = Path(__file__).parents[3] / "gateway"
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
CONFIG = "upstream: {bootstrap_servers: '127.0.0.1:9092'}\n"
Forms = Literal["console", "json"]


class Written:
    """What was written since the last look; each piece was one write."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def configure(self, form: Forms = "json", **more: Any) -> Written:
        settings = DefaultLogSettings(form)
        vars(settings).update(more)
        configure_logging(settings, self.pieces.append)
        return self

    @property
    def texts(self) -> list[str]:
        pieces, self.pieces[:] = list(self.pieces), []
        return [piece.decode() for piece in pieces]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.texts]


@pytest.fixture
def written() -> Iterator[Written]:
    root = logging.getLogger()
    before = {name: logging.getLogger(name).level for name in (*LOGGERS, None)}
    try:
        yield Written()
    finally:
        for handler in [each for each in root.handlers if isinstance(each, LineHandler)]:
            root.removeHandler(handler)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
        logging.captureWarnings(False)


def log(name: str = "gateway.traffic") -> logging.Logger:
    return logging.getLogger(name)


def test_a_line_of_json_has_its_fields_and_the_time(written: Written) -> None:
    written.configure()
    fields = {"kind": "traffic", "topic": "clicks", "broker": 1, "clients": [{"principal": "User:u", "client_id": "a"}]}
    log().warning("rejected: %d bytes", 5, extra=select_fields(fields | {"name": "none of ours", "reason": ""}))
    (event,) = written.events
    assert re.fullmatch(STAMP, event.pop("timestamp"))
    assert event == {"level": "warning", "logger": "gateway.traffic", "event": "rejected: 5 bytes"} | fields


def test_a_line_for_people_has_the_words_and_the_connection(written: Written) -> None:
    written.configure("console")
    log().info("connection closed: %s", "half a frame", extra={"connection": "ab12-7", "reason": "malformed"})
    (text,) = written.texts
    assert re.fullmatch(
        rf"{STAMP} INFO gateway\.traffic: connection closed: half a frame \[connection ab12-7\]\n", text
    )


@pytest.mark.parametrize("form", ["console", "json"])
def test_foreign_words_can_neither_forge_a_line_nor_paint_a_terminal(written: Written, form: Forms) -> None:
    written.configure(form)
    log().warning("topic %s", "x\n2026-01-01T00:00:00.000Z ERROR gateway.control: \x1b[31mlost\u202e\udcff")
    (text,) = written.texts
    assert text.endswith("\n")
    assert text[:-1].isprintable()


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("what", ["event", "exception", "field"])
def test_a_line_is_one_write_that_a_pipe_keeps_whole(written: Written, form: Forms, what: str) -> None:
    written.configure(form)
    try:
        raise ValueError("ü" * 9000 if what == "exception" else "x")
    except ValueError:
        log().error("%s", "ä" * 9000 if what == "event" else "x", exc_info=what == "exception",
                    extra={"reason": "ö" * 9000} if what == "field" else None)  # fmt: skip
    (piece,) = written.pieces
    assert len(piece) <= MAX_LINE_BYTES
    assert piece.endswith(b"\n")
    if form == "json":
        json.loads(piece)


def test_an_exception_is_a_field_and_for_people_indented_lines(written: Written) -> None:
    for form in ("json", "console"):
        written.configure(form)
        try:
            raise KeyError("what")
        except KeyError:
            log().exception("it failed")
    event, people = json.loads(written.pieces[0]), written.pieces[1].decode().splitlines()
    assert event["event"] == "it failed"
    assert event["exception"].endswith("KeyError: 'what'")
    assert people[0].endswith("ERROR gateway.traffic: it failed")
    assert all(line.startswith("    ") for line in people[1:])
    assert people[-1] == "    KeyError: 'what'"


def test_levels_are_those_of_each_logger_and_can_be_changed_again(written: Written) -> None:
    written.configure(level="warning", levels={"gateway.traffic": "debug"})
    log("gateway.cluster").info("no")
    log("gateway.traffic").debug("yes")
    log("some.library").info("no")
    assert [event["event"] for event in written.events] == ["yes"]
    written.configure("console")
    log("gateway.cluster").info("now")
    log("gateway.traffic").debug("no more")
    (text,) = written.texts
    assert text.endswith("gateway.cluster: now\n")  # by one handler


def test_a_storm_of_one_event_is_a_few_lines_and_their_number(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("gateway.log.logs.time.monotonic", lambda: now)
    written.configure()
    for n in range(3 * LINE_BURST):
        log().error("it failed %d times", n)
        log().error("%s", f"connection {n} closed", extra={"kind": "connection-closed"})
    log("gateway.audit").info("policy")
    assert len(written.events) == 2 * LINE_BURST + 1
    for n in range(3 * LINE_BURST):
        log("gateway.audit").info("policy version %d", n)
    assert len(written.events) == 3 * LINE_BURST  # each change is told
    now = 11.0
    log().info("all is well")
    told = written.events
    assert [event.get("lines_left_out") for event in told] == [2 * LINE_BURST, 2 * LINE_BURST, None]
    assert told[0]["event"] == "200 more lines like this were left out within 11 s: it failed %d times"
    assert (told[0]["kind"], told[0]["level"]) == ("left-out", "error")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sasl.password=hunter2, then", "sasl.password=***, then"),
        ('{"client_secret": "x", "secret": "hunter2"}', '{"client_secret": "x", "secret": "***"}'),
        ("Authorization: Bearer hunter2hunter2hunter2", "Authorization: Bearer ***"),
        ("authorization = Basic aHVudGVyMg", "authorization = ***"),
        ("https://operator:hunter2@prometheus/api", "https://operator:***@prometheus/api"),
        ("of eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl it", "of *** it"),
        ("the token has expired; password is wrong", "the token has expired; password is wrong"),
        ("admin.token_file: can't be read", "admin.token_file: can't be read"),
    ],
)
def test_words_of_others_that_look_like_a_secret_are_hidden(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown
    assert text == shown or _may_contain_secret(text)


@given(
    st.lists(st.sampled_from(["passWORD", "=", ": ", "x", "Bearer ", "a" * 16, "eyJ", ".", "://u:p@", '"', "ſecret"]))
)
def test_a_line_without_a_hint_of_a_secret_has_none(parts: list[str]) -> None:
    text = "".join(parts)
    assert hide_secrets(text) == text or _may_contain_secret(text)


def test_a_secret_is_hidden_in_every_part_of_a_line(written: Written) -> None:
    written.configure()
    try:
        raise RuntimeError("password=hunter2")
    except RuntimeError:
        log().exception("token=hunter2", extra={"reason": "secret=hunter2"})
    assert b"hunter2" not in written.pieces[0]
    assert written.pieces[0].count(b"***") >= 3


def calls() -> Iterator[tuple[Path, ast.Call]]:
    for path in GATEWAY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                yield path, node


def test_every_logger_of_the_gateway_is_in_the_table() -> None:
    named = {
        ast.literal_eval(call.args[0])
        for path, call in calls()
        if "audit/" not in path.as_posix()
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "getLogger"
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }
    own = {name for name in named if name.startswith("gateway")}
    assert {name for name in own if name not in LOGGERS} == {"gateway.policy.librdkafka"}  # which is silent
    assert LOGGERS.keys() - own == set()


def test_kinds_and_fields_in_the_code_are_those_of_the_tables() -> None:
    kinds = {
        value.value
        for part in ("control", "data")
        for path in (GATEWAY / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "kind" and isinstance(value, ast.Constant)
    }
    assert kinds <= EVENT_KINDS.keys()
    assert EVENT_KINDS.keys() - kinds <= {"connection-closed", "tls-handshake-failed"}  # which are said by name
    assert not FIELDS.keys() & vars(logging.makeLogRecord({})).keys()


def test_a_logger_that_there_is_not_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(f"{CONFIG}log: {{levels: {{gateway.trafic: error}}}}")
    said = "log.levels: gateway.trafic: there is no such logger; did you mean gateway.traffic?"
    assert said in caught.value.lines[0]
