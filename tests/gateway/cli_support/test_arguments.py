# The command line of every command: --help ends with examples that the command itself takes, and a word that it doesn't
# know is answered with the one that may be meant.

from __future__ import annotations

import re
import shlex

import pytest

from gateway import cli
from gateway.commands.views import commands as views

ACTIONS = [
    *(f"groups {name}" for name in ("list", "usage", "get", "set", "delete", "attach", "detach")),
    *(f"policies {name}" for name in ("show", "export", "history", "diff", "apply")),
    "token create",
]
AUDIT = "audit"  # whose options tests/audit looks at: they take Spark's modules
COMMANDS = [name for name in cli._command_names() if name not in (AUDIT, "help")]


def run(words: list[str]) -> object:
    """The exit code."""
    try:
        return cli.main(words)
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize("command", ["", *COMMANDS, *ACTIONS])
def test_help_ends_with_examples_of_the_command(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run([*command.split(), "--help"]) == 0
    said = capsys.readouterr().out
    name = command if command == "kafka-quotas" else f"produce-gateway {command}".strip()
    assert said.startswith(f"usage: {name} ")
    examples = said.partition("\nexamples:\n")[2] if command != "kafka-quotas" else said.partition("the default.\n")[2]
    assert re.search(rf"^  {name}( |$)", examples, re.MULTILINE), said


@pytest.mark.parametrize("name", sorted(views.VIEWS))
def test_examples_are_taken(name: str) -> None:
    parser = views.make_parser(name)
    assert parser.epilog is not None
    for line in parser.epilog.splitlines()[1:]:
        program, command, *words = shlex.split(line, comments=True)
        assert (program, command) == ("produce-gateway", name)
        parser.parse_args(words)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("explain --tpic clicks --topic clicks", "--topic"),
        ("status --otput json", "--output"),
        ("status -o jsn", "json"),
        ("top --by rat", "rate"),
        ("groups lst", "list"),
        ("groups set gold --publish-byts 1MB", "--publish-bytes"),
        ("policies aply x", "apply"),
        ("check --strct gateway.yaml", "--strict"),
        ("completion zhs", "zsh"),
        ("token create --name a --role opertor", "operator"),
        ("kafka-quotas --bootstrap-server a:1 --lst", "--list"),
        ("volume-agent --brokr-id 1", "--broker-id"),
        ("explain --topc clicks", "--topic"),
        ("token create --nme=a --role admin", "--name"),
        ("kafka-quotas --bootstrap-sever a:1 --list", "--bootstrap-server"),
    ],
)
def test_a_slip_is_answered_with_what_may_be_meant(capsys: pytest.CaptureFixture[str], line: str, meant: str) -> None:
    assert run(line.split()) == 2
    assert f"; did you mean {meant}?" in capsys.readouterr().err


def test_what_resembles_nothing_is_not_guessed_at(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("status --zzz", "groups qqqq", "status a b c", "explain --us alice", "explain --zzz"):
        assert run(line.split()) == 2
        assert "did you mean" not in capsys.readouterr().err
