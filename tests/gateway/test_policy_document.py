# The document of export, diff and apply, and the command that carries it to a gateway: over a real socket, to the
# real admin server.

from __future__ import annotations

import getpass
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import policy_document as document
from gateway.commands import policies as cli
from gateway.embedded import find_free_port
from gateway.policy_document import DocumentError
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyError, PolicyKey, PolicyOperation, PolicyValue, file_origin
from policies.groups.names import GROUP_KEYS
from policies.quotas.names import DEFAULT, QUOTA_KEYS, Entity, QuotaKey
from tests.background import Says, serving
from tests.gateway.control.admin.rest_server import Server

MB = 10**6
CLICKS, VIEWS = PolicyKey.of_topic("clicks"), PolicyKey.of_topic("views")
TOTAL, TOTAL_2 = PolicyKey.of_broker(), PolicyKey.of_broker(2)
PRODUCE = QuotaKey("producer_byte_rate", "broker_bps")

TEXT = """\
thresholds:
  total: {default: 12MB, "2": 8MB}
  topics: {clicks: 5MB}
client_quotas:
  - {user: alice, client_id: <default>, producer_byte_rate: 1MiB, consumer_byte_rate.bps: 1500}
  - {client_id: batch, "producer_byte_rate:shares": 3, request_percentage: 12.5}
"""
VALUES = {
    TOTAL: 12.0 * MB,
    TOTAL_2: 8.0 * MB,
    CLICKS: 5.0 * MB,
    PolicyKey.of_quota(Entity("alice", DEFAULT), PRODUCE): 2.0**20,
    PolicyKey.of_quota(Entity("alice", DEFAULT), QuotaKey("consumer_byte_rate", "bps")): 1500.0,
    PolicyKey.of_quota(Entity(None, "batch"), QuotaKey("producer_byte_rate", "shares")): 3.0,
    PolicyKey.of_quota(Entity(None, "batch"), QuotaKey("request_percentage", "percent")): 12.5,
}


def refused(text: str) -> list[str]:
    with pytest.raises(DocumentError) as error:
        document.parse_document(text, "p.yaml")
    assert not any("\n" in line for line in error.value.lines)
    return list(error.value.lines)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_document_is_read_with_the_sizes_of_the_configuration_file() -> None:
    assert document.parse_document(TEXT) == VALUES
    assert document.parse_document(json.dumps(document.load_document(TEXT))) == VALUES


def test_a_total_alone_is_the_default_and_an_id_needs_no_quotes() -> None:
    assert document.parse_document("thresholds: {total: 12MB}") == {TOTAL: 12.0 * MB}
    assert document.parse_document("thresholds: {total: {2: 8MB}}") == {TOTAL_2: 8.0 * MB}


def test_empty_sections_are_no_policies() -> None:
    assert document.parse_document("thresholds:\nclient_quotas:\n") == {}
    assert document.parse_document("thresholds: {topics: , total: }\nclient_quotas: []") == {}


def test_groups_are_read_in_any_spelling_with_what_they_are_attached_to() -> None:
    text = """
        resource_groups:
          groups:
            gold: {publishRateInBytes: 12MB, PublishRateInmsgs: 1.5}
            silver:
          tenants: {acme: gold}
          namespaces: {acme/orders: silver}
    """
    values: dict[PolicyKey, PolicyValue] = {
        PolicyKey.of_group("gold"): 1.0,
        PolicyKey.of_group("gold", "publishRateInBytes"): 12.0 * MB,
        PolicyKey.of_group("gold", "publishRateInMsgs"): 1.5,
        PolicyKey.of_group("silver"): 1.0,
        PolicyKey.of_tenant("acme"): "gold",
        PolicyKey.of_namespace("acme", "orders"): "silver",
    }
    assert document.parse_document(text) == values
    assert document.render_document(document.export_policies(PolicySet(values))) == (
        "resource_groups:\n"
        "  groups:\n"
        "    gold:\n"
        "      publishRateInMsgs: 1.5\n"
        "      publishRateInBytes: 12MB\n"
        "    silver: {}\n"
        "  tenants:\n"
        "    acme: gold\n"
        "  namespaces:\n"
        "    acme/orders: silver\n"
    )


def test_a_group_that_is_not_there_is_refused_when_the_document_is_judged() -> None:
    wanted = document.parse_document("resource_groups: {tenants: {acme: gold}}")
    with pytest.raises(PolicyError, match="tenant acme: there is no group gold: create it first"):
        PolicySet().alter_policies(PolicySet().diff_values(wanted))


def test_the_default_and_a_user_of_that_name_are_two() -> None:
    read = document.parse_document(
        "client_quotas:\n- {user: <default>, request_percentage: 1}\n- {user: {name: <default>}, request_percentage: 2}"
    )
    assert [(key.entity, value) for key, value in read.items()] == [(Entity(DEFAULT), 1.0), (Entity("<default>"), 2.0)]
    assert document.parse_document(document.render_document(document.export_policies(PolicySet(read)))) == read


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "",
            "p.yaml:1: keys such as thresholds:, client_quotas:, resource_groups: with values are needed here,"
            " not None",
        ),
        ("a: [", "p.yaml:1: expected the node content"),
        ("thresholds: {}\nthresholds: {}", "p.yaml:2: thresholds is there twice"),
        ('{"thresholds": {},\n"thresholds": {}}', "p.yaml:2: thresholds is there twice"),
        ("threshold: {}", "p.yaml:1: threshold: unknown key; did you mean thresholds?"),
        ("thresholds:\n  topic: 3", "p.yaml:2: thresholds.topic: unknown key; did you mean topics?"),
        (
            "resource_groups:\n  groups:\n    gold: {publishRate: 1}",
            "p.yaml:3: resource_groups.groups.gold.publishRate: unknown key; did you mean publishRateInMsgs?",
        ),
        (
            "resource_groups: {groups: {gold: {publishRateInMsgs: 1, PublishRateInmsgs: 2}}}",
            "p.yaml:1: resource_groups.groups.gold.PublishRateInmsgs: publishRateInMsgs is given twice",
        ),
        (
            "resource_groups: {groups: {gold: {publishRateInBytes: 0}}}",
            "p.yaml:1: resource_groups.groups.gold.publishRateInBytes: group gold: publishRateInBytes:"
            " 0 is not a valid limit",
        ),
        (
            "resource_groups: {tenants: {acme: 3}}",
            "p.yaml:1: resource_groups.tenants.acme: the name of a group is needed",
        ),
        (
            "resource_groups: {namespaces: {acme: g}}",
            "p.yaml:1: resource_groups.namespaces.acme: 'acme' is not a valid namespace",
        ),
        (
            "resource_groups: {mode: observe}",
            "p.yaml:1: resource_groups.mode: is the configuration file's: it can't be changed while the gateway runs",
        ),
        ("resource_groups: {group: {}}", "p.yaml:1: resource_groups.group: unknown key; did you mean groups?"),
        ("resource_groups: 3", "p.yaml:1: resource_groups: keys such as groups:, tenants:, namespaces: with values"),
        ("thresholds: 3", "p.yaml:1: thresholds: keys such as total:, total_out:, topics: with values are needed"),
        (
            "thresholds:\n  topics:\n    a: 1\n    b: 5XB",
            "p.yaml:4: thresholds.topics.b: '5XB' is not a valid size; for example",
        ),
        ("thresholds: {topics: {a: true}}", "p.yaml:1: thresholds.topics.a: a number is needed here, not True"),
        ("thresholds: {topics: {a: .nan}}", "p.yaml:1: thresholds.topics.a: nan is not a finite number"),
        ("thresholds: {topics: {a: {b: 3}}}", "p.yaml:1: thresholds.topics.a: a number is needed here, not keys with"),
        ("thresholds:\n  topics: {on: 1MB}", "p.yaml:2: thresholds.topics.True: YAML takes this key for no text but"),
        (
            "thresholds: {total: {all: 1}}",
            "p.yaml:1: thresholds.total.all: 'all' is not a valid broker id: a number is needed",
        ),
        ("thresholds: {total: {'': 1}}", "p.yaml:1: thresholds.total.: \"''\" is not a valid broker id"),
        ("thresholds: {total: 0}", "p.yaml:1: thresholds.total: total.bytes.in.per.sec.threshold: 0.0 must be a"),
        ("client_quotas: {user: a}", "p.yaml:1: client_quotas: a list of quotas is needed here: - {user: alice"),
        ("client_quotas:\n- 3", "p.yaml:2: client_quotas.0: keys with values are needed here, not 3"),
        ("client_quotas:\n- {producer_byte_rate: 3}", "p.yaml:2: client_quotas.0: an empty entity: give a name"),
        ("client_quotas:\n- {user: 5, producer_byte_rate: 3}", "p.yaml:2: client_quotas.0: user: YAML takes 5 for no"),
        (
            "client_quotas:\n- {user: null, client_id: a, producer_byte_rate: 3}",
            "p.yaml:2: client_quotas.0: user: is empty: leave it out, write <default>, or put a name such as null in",
        ),
        ("client_quotas:\n- {user: a, client_id: , producer_byte_rate: 3}", "p.yaml:2: client_quotas.0: client_id: is"),
        ("client_quotas:\n- {user: a}", "p.yaml:2: client_quotas.0: {user=a} has no quota: write for example"),
        (
            "client_quotas:\n- {client-id: a}",
            "p.yaml:2: client_quotas.0.client-id: unknown key; did you mean client_id?",
        ),
        (
            "client_quotas:\n- {user: a, request_percentage: 1}\n- {user: a, producer_byte_rate: 1}",
            "p.yaml:3: client_quotas.1: {user=a} is there already, as client_quotas.0",
        ),
        (
            "client_quotas:\n- user: a\n  bytes: 1",
            "p.yaml:3: client_quotas.0.bytes: unknown quota 'bytes': known are consumer_byte_rate,",
        ),
        (
            "client_quotas: [{user: a, producer_byte_rate: 1, producer_byte_rate.broker_bps: 2}]",
            "p.yaml:1: client_quotas.0.producer_byte_rate.broker_bps: producer_byte_rate:broker_bps is given twice",
        ),
        (
            "client_quotas: [{user: a, producer_byte_rate.shares: 1kB}]",
            "p.yaml:1: client_quotas.0.producer_byte_rate.shares: a number is needed here, not '1kB'",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_place(text: str, line: str) -> None:
    assert refused(text)[0].startswith(line)


def test_all_that_is_wrong_is_said_at_once_but_not_without_end() -> None:
    lines = refused("thresholds:\n  topics:\n" + "".join(f"    t{i}: -1\n" for i in range(50)))
    assert len(lines) == document.MAX_ERRORS + 1
    assert lines[-1] == "… and 30 more"


def test_data_has_paths_and_no_lines() -> None:
    with pytest.raises(DocumentError, match=r"^thresholds\.topics\.a: '5XB' is not a valid size"):
        document.read_document({"thresholds": {"topics": {"a": "5XB"}}})
    with pytest.raises(DocumentError, match="not a list"):
        document.read_document([])


def test_the_base_is_what_the_configuration_file_says_and_is_judged_as_a_whole() -> None:
    quotas = document.load_document(TEXT)["client_quotas"]
    assert document.configured_policies(12 * MB, {"clicks": 5 * MB}, {2: 8 * MB}, quotas) == VALUES
    assert document.configured_policies(None, {}, {}) == {}
    assert document.configured_policies(
        12 * MB, {"clicks": 9 * MB, "views": 9 * MB}, {2: 8 * MB}
    )  # on different brokers, perhaps
    with pytest.raises(PolicyError, match="of topic clicks is 13,000,000 bytes/s, which exceeds"):
        document.configured_policies(12 * MB, {"clicks": 13 * MB}, {2: 8 * MB})
    with pytest.raises(PolicyError, match="no total"):
        document.configured_policies(None, {}, {}, [{"user": "a", "producer_byte_rate.shares": 1}])


# --- writing ----------------------------------------------------------------------------------------------------------


def test_an_export_is_as_short_as_a_human_would_write_it() -> None:
    assert document.render_document(document.export_policies(PolicySet(VALUES))) == (
        "thresholds:\n"
        "  total:\n"
        "    default: 12MB\n"
        "    '2': 8MB\n"
        "  topics:\n"
        "    clicks: 5MB\n"
        "client_quotas:\n"
        "- {user: alice, client_id: <default>, consumer_byte_rate.bps: 1500, producer_byte_rate: 1MiB}\n"
        "- {client_id: batch, producer_byte_rate.shares: 3, request_percentage: 12.5}\n"
    )
    assert document.render_document(document.export_policies(PolicySet())) == "{}\n"


@pytest.mark.parametrize("name", ["\x85", "\x7f", "a\u2028b", "CN=a,O=b %2C", "null", "~", "", " ", "5", "é"])
def test_any_name_comes_back(name: str) -> None:
    values = {PolicyKey.of_quota(Entity(name or None, "c"), PRODUCE): 1.0}
    for as_json in (False, True):
        assert (
            document.parse_document(
                document.render_document(document.export_policies(PolicySet(values)), as_json=as_json)
            )
            == values
        )


names = st.one_of(st.none(), st.just(DEFAULT), st.text(min_size=1, max_size=8)).filter(
    lambda name: not isinstance(name, str) or not any(0xD800 <= ord(char) <= 0xDFFF for char in name)
)
entities = st.builds(Entity, names, names).filter(lambda entity: entity != (None, None))
group_names = st.from_regex(r"[a-zA-Z0-9._=:-]{3,20}", fullmatch=True)
place_names = st.text(st.characters(blacklist_categories=("C", "Z"), blacklist_characters="/"), min_size=3, max_size=8)
documents = st.dictionaries(
    st.one_of(
        st.builds(PolicyKey.of_topic, st.from_regex(r"[a-zA-Z0-9._-]{3,20}", fullmatch=True)),
        st.builds(PolicyKey.of_broker, st.none() | st.integers(0, 2**31 - 1)),
        st.builds(PolicyKey.of_group, group_names, st.sampled_from([*GROUP_KEYS, "exists"])),
        st.builds(PolicyKey.of_tenant, place_names),
        st.builds(PolicyKey.of_namespace, place_names, place_names),
        st.builds(
            PolicyKey.of_quota,
            entities,
            st.sampled_from([key for key in QUOTA_KEYS if str(key) != "consumer_byte_rate:shares"]),
        ),
    ),
    st.integers(1, 2**50).map(float),
    max_size=10,
).map(
    lambda values: {
        **{key: possible(key, value) for key, value in values.items()},
        **{PolicyKey.of_group(key.name): 1.0 for key in values if key.kind == "group"},
    }
)


def possible(key: PolicyKey, value: float) -> PolicyValue:
    if key.kind in ("tenant", "namespace"):
        return f"g{value:.0f}"
    return 1.0 if key.key == "exists" else min(value, 1e5) if key.key == "request_percentage" else value


@given(documents, st.booleans())
def test_an_export_is_read_as_the_same_values(values: dict[PolicyKey, PolicyValue], as_json: bool) -> None:
    exported = document.export_policies(PolicySet(values))
    assert document.parse_document(document.render_document(exported, as_json=as_json)) == values
    assert document.read_document(json.loads(json.dumps(exported))) == values


def test_origins_show_both_values_and_which_wins() -> None:
    policies = PolicySet({CLICKS: 5.0 * MB, TOTAL: 12.0 * MB}, {CLICKS: 6.0 * MB, VIEWS: 0.5})
    shown = {
        (each["name"], each["value"]): (each["origin"], each["file"], each["run_time"])
        for each in document.describe_origins(policies.list_settings(), file_origin)
    }
    assert shown == {
        ("", 12 * MB): ("file", 12 * MB, None),
        ("clicks", 6 * MB): ("run time", 5 * MB, 6 * MB),
        ("views", 0.5): ("run time", None, 0.5),
    }
    assert (
        document.describe_origins(policies.list_settings(), file_origin)[0]["key"] == "total.bytes.in.per.sec.threshold"
    )


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(gateway: Server) -> Server:
    gateway.policies.policies = PolicySet({CLICKS: 5.0 * MB, TOTAL: 12.0 * MB})
    return gateway


@pytest.fixture
def says() -> Iterator[Says]:
    """A server in place of the admin server."""
    with serving(Says()) as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(TEXT)
    return path


def test_diff_changes_nothing_and_apply_does_once(
    server: Server, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["diff", str(file), "--url", server.url]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == "total.bytes.in.per.sec.threshold of broker 2: none -> 8,000,000 bytes/s"
    assert "producer_byte_rate:broker_bps of {user=alice, client-id=<default>}: none -> 1,048,576 bytes/s" in shown
    assert shown.splitlines()[-1] == "5 changes; nothing was done"
    assert cli.main(["apply", str(file), "--dry-run", "--url", server.url]) == 0
    assert capsys.readouterr().out == shown
    assert server.policies.policies.version == 0
    assert cli.main(["apply", str(file), "--url", server.url + "/"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "5 changes made; version 1"
    assert cli.main(["apply", str(file), "--url", server.url]) == 0
    assert capsys.readouterr().out == "nothing to change: all of it holds already\n"
    assert server.policies.policies.effective_values() == VALUES
    assert {source.who for source in server.policies.sources} == {getpass.getuser()}


def test_show_names_the_source_of_a_value_that_run_time_replaces(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.policies.policies = server.policies.policies.alter_policies([PolicyOperation(CLICKS, 6.0 * MB)])
    server.base_origin = lambda key: "source acme" if key.kind == "topic" else "file"
    assert cli.main(["show", "--url", server.url]) == 0
    total, clicks = capsys.readouterr().out.splitlines()[1:]
    assert total.split()[-2:] == ["file", "-"]
    assert clicks.endswith("run time  5,000,000 bytes/s (source acme)")


def test_show_says_where_each_value_comes_from_and_what_the_other_is(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = PolicyKey.of_quota(Entity("a\x1b[2J"), PRODUCE)
    policies = server.policies.policies.alter_policies(
        [PolicyOperation(CLICKS, 6.0 * MB), PolicyOperation(TOTAL_2, 8.0 * MB), PolicyOperation(hostile, 5.0)]
    )
    server.policies.policies = policies
    assert cli.main(["show", "--url", server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["KIND", "NAME", "KEY", "IN", "FORCE", "FROM", "OTHER"],
        ["broker", "all", "brokers", TOTAL.key, "12,000,000", "bytes/s", "file", "-"],
        ["broker", "2", TOTAL.key, "8,000,000", "bytes/s", "run", "time", "-"],
        ["topic", "clicks", CLICKS.key, "6,000,000", "bytes/s", "run", "time", "5,000,000", "bytes/s", "(file)"],
        ["quota", "{user=a%1B%5B2J}", "producer_byte_rate", "5", "bytes/s", "run", "time", "-"],
    ]
    assert cli.main(["show", "--json", "--url", server.url]) == 0
    assert json.loads(capsys.readouterr().out) == document.describe_origins(policies.list_settings(), file_origin)


@pytest.mark.parametrize("origins", [[{}], [3], [{"kind": "planet", "name": "", "key": "", "origin": ""}]])
def test_show_of_another_release_is_one_line(
    says: Says, origins: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    says.said = 200, json.dumps({"origins": origins}).encode()
    assert cli.main(["show", "--url", says.url]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_an_export_that_is_applied_changes_nothing(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in ([], ["--json"]):
        assert cli.main(["export", "--url", server.url, *flags]) == 0
        path = tmp_path / "exported"
        path.write_text(capsys.readouterr().out)
        assert cli.main(["diff", str(path), "--url", server.url, "--prune"]) == 0
        assert capsys.readouterr().out == "nothing to change: all of it holds already\n"


def test_prune_removes_what_run_time_has_beside_the_document(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.policies.policies = PolicySet(server.policies.policies.base, {VIEWS: 2.0 * MB, CLICKS: 6.0 * MB})
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"thresholds: {}")))
    config = tmp_path / "gateway.yaml"
    config.write_text(f"upstream: {{bootstrap_servers: a:1}}\nadmin: {{port: {server.url.rpartition(':')[2]}}}\n")
    assert cli.main(["apply", "-", str(config), "--prune"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "bytes.in.per.sec.threshold of topic clicks: 6,000,000 bytes/s -> 5,000,000 bytes/s",
        "bytes.in.per.sec.threshold of topic views: 2,000,000 bytes/s -> none",
        "2 changes made; version 1",
    ]


def test_until_is_a_time_or_a_duration_and_is_shown(
    server: Server, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("thresholds: {topics: {clicks: 6MB}}")
    until = "2999-11-22T21:00:00Z"
    assert cli.main(["apply", str(file), "--url", server.url, "--until", "2999-11-22T22:00:00+01:00"]) == 0
    line = f"bytes.in.per.sec.threshold of topic clicks: 5,000,000 bytes/s -> 6,000,000 bytes/s until {until}"
    assert capsys.readouterr().out.splitlines()[0] == line
    assert cli.main(["show", "--url", server.url]) == 0
    shown = capsys.readouterr().out.splitlines()[-1]
    assert shown.split()[3:] == f"6,000,000 bytes/s run time until {until} 5,000,000 bytes/s (file)".split()
    file.write_text("thresholds: {topics: {clicks: 7MB}}")
    before = time.time()
    assert cli.main(["apply", str(file), "--url", server.url, "--until", "2h"]) == 0
    (end,) = server.policies.policies.ends.values()
    assert 7199 < end.until_ms / 1000 - before < 7260
    with pytest.raises(SystemExit) as stop:
        cli.main(["apply", str(file), "--url", server.url, "--until", "tomorrow"])
    assert stop.value.code == 2
    assert "'tomorrow' is neither a time nor a duration; for example: 2h" in capsys.readouterr().err


def test_json_is_the_answer_as_it_is(server: Server, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", str(file), "--url", server.url, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ops"][0] == {
        "kind": "broker", "name": "2", "key": "total.bytes.in.per.sec.threshold", "old": None, "new": 8_000_000,
        "until": None,
    }  # fmt: skip


def test_a_refusal_is_told_line_by_line(server: Server, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("thresholds: {topics: {views: 8MB}}")
    assert cli.main(["apply", str(file), "--url", server.url]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    fault = "total.bytes.in.per.sec.threshold of all brokers: the topics' bytes.in.per.sec.threshold"
    assert line.startswith(f"{server.url}/v1/policies:apply: {fault}")
    assert server.policies.policies.version == 0


def test_a_warning_is_shown_beside_what_was_done(
    server: Server, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("thresholds: {topics: {views: 7MB}}")
    assert cli.main(["apply", str(file), "--url", server.url]) == 0
    assert capsys.readouterr().err.startswith("warning: the topics' bytes.in.per.sec.threshold use up")


@pytest.mark.parametrize("flags", [["diff", "FILE"], ["apply", "FILE"], ["apply", "FILE", "--dry-run"]])
def test_a_document_that_can_not_be_read_goes_nowhere(
    server: Server, file: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("thresholds:\n  topics: {a: 5XB}\n")
    assert cli.main([*(str(file) if flag == "FILE" else flag for flag in flags), "--url", server.url]) == 1
    assert capsys.readouterr().err.startswith(f"{file}:2: thresholds.topics.a: '5XB' is not a valid size")
    assert server.policies.sources == []


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ((404, b"not found"), "answers 404 Not Found: is it a gateway's admin server?"),
        ((503, b'{"title": "Not now", "detail": "the topic is gone", "errors": ["the topic is gone", 5]}'), "503"),
        ((503, b'{"title": "Not now", "detail": "the topic is gone"}'), "Not now: the topic is gone"),
        (
            (422, b'{"title": "No", "errors": [{"where": "x", "what": "a"}, {"where": "y", "what": "b"}]}'),
            "No\n  x: a\n  y: b\n",
        ),
        ((500, b'{"detail": 5}'), "answers 500"),
        ((200, b"<html>"), "does not answer as a gateway's admin server does"),
        ((200, b"[]"), "does not answer as a gateway's admin server does"),
        ((200, b"{}"), "the answer has no ops"),
        (
            (200, b'{"ops": [{"kind": "group", "name": "", "key": "", "old": 1, "new": 2}]}'),
            "this release doesn't know",
        ),
        ((200, b'{"ops": [3]}'), "this release doesn't know"),
    ],
)
def test_strange_answers_are_lines_too(
    says: Says, file: Path, raw: tuple[int, bytes], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    says.said = raw
    assert cli.main(["apply", str(file), "--url", says.url]) == 1
    assert text in capsys.readouterr().err


def test_mistakes_of_the_command_line(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = find_free_port()
    for argv, text in (
        (["export", "--url", f"http://127.0.0.1:{port}"], "can't be reached: Connection refused"),
        (["export", "--url", "ftp://x"], "--url ftp://x: is not a valid address; for example: http"),
        (["export", str(tmp_path / "none.yaml")], "none.yaml: can't be read"),
        (["diff", str(tmp_path / "none.yaml")], "none.yaml: can't be read: No such file"),
    ):
        assert cli.main(argv) == 1
        err = capsys.readouterr().err
        assert text in err
        assert err.count("\n") == 1
    for argv in (["apply"], ["diff", str(file), "c.yaml", "--url", "http://a"]):
        with pytest.raises(SystemExit) as end:
            cli.main(argv)
        assert end.value.code == 2
