# `kafka-quotas` and its client against the real store of client quotas, reached as a server's is: entities, names and
# wire keys. Flags, texts, exit codes. With a real Kafka: tests/integration/limits/test_kafka_quotas.py.

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from gateway.commands import kafka_quotas as command
from gateway.kafka.java_properties import ClientProperties
from gateway.quotas.client import QuotaApi, QuotaClient, QuotaClientError, QuotaRefusal, QuotaRow
from policies.quotas.filter import Component, Match
from policies.quotas.names import DEFAULT, Entity, QuotaError, QuotaKey
from policies.quotas.store import Alteration, Op, QuotaStore
from protocol.admin.quotas import END_SUFFIX, ENFORCED_KEY, UPSTREAM_SUFFIX

PRODUCE = QuotaKey("producer_byte_rate", "broker_bps")
CONSUME = QuotaKey("consumer_byte_rate", "broker_bps")


class Server:
    """An `Endpoint` with a store behind it. `others`: rows that only a broker has, found by every filter. `upstream`:
    of the brokers behind it; None: it is no gateway.
    """

    def __init__(self, store: QuotaStore, others: Sequence[QuotaRow] = ()) -> None:
        self.store, self.others = store, others
        self.upstream: Sequence[QuotaRow] | None = None
        self.altered = 0
        self.asked: list[Alteration] = []
        self.note: str | None = None  # what it says of what it made

    def describe_apart(self, components: Sequence[Component] = (), strict: bool = False) -> Sequence[QuotaRow] | None:
        if self.upstream is None:
            return None
        assert not components
        rows: dict[frozenset[tuple[str, str | None]], QuotaRow] = {}
        for row in (*self.describe((), False), *self.upstream):  # one row for each entity
            known = rows.get(frozenset(row.pairs), row)
            rows[frozenset(row.pairs)] = QuotaRow(row.pairs, {**known.values, **row.values})
        return list(rows.values())

    def describe(self, components: Sequence[Component], strict: bool) -> Sequence[QuotaRow]:
        assert all(component.match_type <= Match.SPECIFIED for component in components)  # what the wire has
        found = self.store.describe_quotas(components, strict)
        # In no order that means anything: neither entities, nor types, nor keys.
        rows = [
            QuotaRow(e.wire_pairs[::-1], {key.wire_name: values[key] for key in reversed(list(values))})
            for e, values in found
        ]
        return [*self.others, *reversed(rows)]

    def alter(self, alterations: Sequence[Alteration], validate_only: bool) -> Sequence[QuotaRefusal | str | None]:
        self.altered += 1
        self.asked += alterations
        gone = {(frozenset(e), op.key) for e, ops, _ in alterations for op in ops if op.key.endswith(UPSTREAM_SUFFIX)}
        if gone and not validate_only:
            self.upstream = [
                QuotaRow(
                    row.pairs, {key: v for key, v in row.values.items() if (frozenset(row.pairs), key) not in gone}
                )
                for row in self.upstream or ()
            ]
        alterations = [
            Alteration(e, [op for op in ops if not op.key.endswith(UPSTREAM_SUFFIX)]) for e, ops, _ in alterations
        ]
        done = self.store.alter_quotas(
            alterations, frozenset({"producer_byte_rate", "consumer_byte_rate"}), validate_only
        )
        self.store = done.store
        return [QuotaRefusal(error.error, str(error)) if error else self.note for error in done.errors]


class Said(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Said]


@pytest.fixture
def server() -> Server:
    """The quotas that the seed's examples begin with."""
    one = {QuotaKey.parse("consumer_byte_rate:shares"): 200.0, QuotaKey.parse("producer_byte_rate:bps"): 1e7}
    default = {QuotaKey.parse("consumer_byte_rate:shares"): 100.0, PRODUCE: 500_000.0}
    return Server(
        QuotaStore(
            {
                Entity("user-one", "my-client"): one,
                Entity("user-two", "my-client"): {PRODUCE: 2_000_000.0},
                Entity(DEFAULT, "my-client"): default,
            }
        )
    )


@pytest.fixture
def run(server: Server, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str) -> Said:
        code: int | str | None = None
        try:
            code = command.run_command(
                ["--bootstrap-server", "localhost:9092", *argv], lambda _servers, _given: QuotaApi(server)
            )
        except SystemExit as end:
            code = end.code
        assert isinstance(code, int)
        return Said(code, *capsys.readouterr())

    return run


def refused(said: Said) -> str:
    """The one line that a wrong command line prints."""
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith("kafka-quotas: ")
    return said.err.removeprefix("kafka-quotas: ").rstrip("\n")


# --- the seed's examples ----------------------------------------------------------------------------------------------


ONE = """\
{user=user-one, client-id=my-client}
consumer_byte_rate:shares=200
producer_byte_rate:bps=10000000
"""
TWO = """\
{user=user-two, client-id=my-client}
producer_byte_rate:broker_bps=2000000
"""
OTHERS = """\
{user=<default>, client-id=my-client}
consumer_byte_rate:shares=100
producer_byte_rate:broker_bps=500000
"""


@pytest.mark.seed("546.34")
@pytest.mark.parametrize(
    ("flag", "found"), [("--names=client-id=my-client", (ONE, TWO, OTHERS)), ("--prefix=user=user-", (ONE, TWO))]
)
def test_a_list_is_of_all_that_names_or_a_prefix_match(run: Run, flag: str, found: tuple[str, ...]) -> None:
    assert run("--list", flag) == (0, "\n".join(found), "")


@pytest.mark.seed("546.35")
@pytest.mark.parametrize(
    ("user", "flags", "lines"),
    [
        (
            "user-one",
            [],
            "consumer_byte_rate:shares=200 {user=user-one, client-id=my-client}\n"
            "producer_byte_rate:bps=10000000 {user=user-one, client-id=my-client}\n"
            "producer_byte_rate:broker_bps=500000 {user=<default>, client-id=my-client}\n",
        ),
        (
            "user-two",
            ["--include-overrides"],
            "consumer_byte_rate:shares=100 {user=<default>, client-id=my-client}\n"
            "producer_byte_rate:broker_bps=2000000 {user=user-two, client-id=my-client}\n"
            "*producer_byte_rate:broker_bps=500000 {user=<default>, client-id=my-client}\n",
        ),
    ],
)
def test_a_description_has_values_in_force_and_if_asked_for_what_they_override(
    run: Run, user: str, flags: list[str], lines: str
) -> None:
    assert run("--describe", f"--names=user={user},client-id=my-client", *flags) == (0, lines, "")


CHANGE = (
    "--names=client-id=my-client",
    "--defaults=user",
    "--add=producer_byte_rate:shares=100",
    "--delete=producer_byte_rate:broker_bps",
)


@pytest.mark.seed("546.36")
def test_alter(run: Run) -> None:
    assert run("--alter", *CHANGE) == (0, "", "")
    assert run("--list", "--names=client-id=my-client", "--defaults=user") == (
        0, OTHERS.replace("broker_bps=500000", "shares=100"), ""
    )  # fmt: skip


@pytest.mark.seed("546.36")
def test_a_describe_never_writes(run: Run, server: Server) -> None:
    assert refused(run("--describe", *CHANGE)) == "--describe has no --add: did you mean --alter?"
    assert server.altered == 0


# --- flags ------------------------------------------------------------------------------------------------------------


@pytest.mark.seed("546.26")
@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ("", "one of --list, --describe, --alter, --take-over and --import is needed"),
        ("--list --yes", "--list has no --yes: did you mean --take-over?"),
        ("--describe --names=user=a --validate-only", "--describe has no --validate-only: did you mean --alter?"),
        ("--alter --names=user=a --delete=", "--delete is empty"),
        ("--list --names=user", "type=name is needed"),
        ("--list --names=ip=10.0.0.1", "quotas for ip are the brokers' own"),
        ("--alter --names=user=a --add=producer_byte_rate:bps=ten", "'ten' is not a valid size"),
        ("--alter --names=user=a --add=producer_byte_rate:percent=1", "producer_byte_rate has bps, broker_bps, shares"),
        ("--list --name=user=a", "unrecognized arguments: --name=user=a"),
        ("--list --names=user=\udcff", "is not Unicode text"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(argv: str, why: str, run: Run, server: Server) -> None:
    assert why in refused(run(*argv.split()))
    assert server.altered == 0


@pytest.mark.seed("546.25")
def test_an_endpoint_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 2
    assert capsys.readouterr().err == "kafka-quotas: the following arguments are required: --bootstrap-server\n"


@pytest.mark.seed("546.25")
@pytest.mark.parametrize(("text", "properties"), [(None, {}), ("client.id=ops", {"client.id": "ops"})])
def test_the_client_is_made_for_the_server_with_what_the_file_says(
    text: str | None, properties: dict[str, str], server: Server, tmp_path: Path
) -> None:
    made = []

    def connect(servers: str, given: ClientProperties) -> QuotaApi:
        made.append((servers, given))
        return QuotaApi(server)

    flags = ["--bootstrap-server=kafka:9092", "--list"]
    if text is not None:
        (tmp_path / "client.properties").write_text(text)
        flags.append(f"--command-config={tmp_path / 'client.properties'}")
    assert command.run_command(flags, connect) == 0
    assert made == [("kafka:9092", ClientProperties(properties, None))]


def test_help_tells_how_names_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    assert "%3Cdefault%3E" in capsys.readouterr().out


def test_a_flag_may_be_repeated_and_take_its_value_as_the_next_word(run: Run) -> None:
    assert run("--describe", "--names", "user=user-two", "--names", "client-id=my-client") == run(
        "--describe", "--names=user=user-two,client-id=my-client"
    )


# --- what is set ------------------------------------------------------------------------------------------------------


def test_nothing_found_is_no_output(run: Run) -> None:
    assert run("--list", "--names=user=nobody") == (0, "", "")
    assert run("--describe", "--names=user=nobody") == (0, "", "")


def test_names_are_opaque_and_printed_so_that_they_can_be_pasted(run: Run, server: Server) -> None:
    name = "CN=Ä b,OU=50 %"
    pasted = "CN%3D%C3%84%20b%2COU%3D50%20%25"
    assert run("--alter", f"--names=user={pasted}", "--add=producer_byte_rate=5").code == 0
    assert server.store.entries[Entity(name)] == {PRODUCE: 5.0}
    listed = run("--list", f"--names=user={pasted}").out
    assert listed == f"{{user={pasted}}}\nproducer_byte_rate:broker_bps=5\n"
    assert run("--list", "--prefix=user=CN%3D%C3%84").out == listed


def test_a_user_of_the_name_default_is_not_the_default(run: Run, server: Server) -> None:
    assert run("--alter", "--names=user=%3Cdefault%3E", "--add=producer_byte_rate=5").code == 0
    assert Entity("<default>") in server.store.entries
    assert run("--list", "--names=user=%3Cdefault%3E").out.startswith("{user=%3Cdefault%3E}\n")
    assert refused(run("--list", "--names=user=<default>")).startswith("<default> is not a valid name: use --defaults")


def test_two_prefixes_go_together(run: Run, server: Server) -> None:
    server.store = server.store.overlay_entries({Entity("user-one", "other"): {PRODUCE: 1.0}}, 1)
    assert run("--list", "--prefix=user=user-o,client-id=o").out == (
        "{user=user-one, client-id=other}\nproducer_byte_rate:broker_bps=1\n"
    )


def test_quotas_that_only_brokers_have_are_listed_and_come_last(run: Run, server: Server) -> None:
    server.store = QuotaStore()
    server.others = [
        QuotaRow((("ip", None),), {"connection_creation_rate": 3.0}),
        QuotaRow((("ip", "10.0.0.1"),), {"connection_creation_rate": 20.5}),
        QuotaRow((("user", "a"),), {"controller_mutation_rate": 7.0, "producer_byte_rate": 1.0}),
    ]
    assert run("--list").out == (
        "{user=a}\nproducer_byte_rate:broker_bps=1\ncontroller_mutation_rate=7\n\n"
        "{ip=10.0.0.1}\nconnection_creation_rate=20.5\n\n"
        "{ip=<default>}\nconnection_creation_rate=3\n"
    )
    assert run("--describe", "--names=user=a").out == (
        "producer_byte_rate:broker_bps=1 {user=a}\ncontroller_mutation_rate=7 {user=a}\n"
    )
    server.others = [*server.others, QuotaRow((("user", None),), {"controller_mutation_rate": 9.5})]
    both = "controller_mutation_rate=7 {user=a}\n*controller_mutation_rate=9.5 {user=<default>}\n"
    assert run("--describe", "--names=user=a", "--include-overrides").out.endswith(both)
    assert run("--describe", "--names=user=b").out == "controller_mutation_rate=9.5 {user=<default>}\n"


@pytest.mark.seed("546.31")
def test_validate_only_says_what_is_wrong_and_changes_nothing(run: Run, server: Server) -> None:
    before = server.store
    good = "--add=producer_byte_rate:bps=5"
    assert run("--alter", "--names=user=a", good, "--validate-only") == (0, "", "")
    bad = run("--alter", "--names=user=a", "--add=producer_byte_rate:bps=0.5", "--validate-only")
    assert bad == (
        1,
        "",
        "kafka-quotas: INVALID_REQUEST: producer_byte_rate:bps=0.5: producer_byte_rate has no fractions, 1 would do\n",
    )
    assert server.store is before


@pytest.mark.parametrize(("value", "code"), [("nan", 2), ("inf", 2), ("0", 1), ("-1", 1), ("1e30", 1)])
def test_values_that_no_server_should_get_are_not_sent(value: str, code: int, run: Run, server: Server) -> None:
    """Kafka 4.3 takes a NaN."""
    said = run("--alter", "--names=user=a", f"--add=producer_byte_rate={value}")
    assert (said.code, said.out, said.err.count("\n")) == (code, "", 1)
    assert server.altered == 0


def test_one_key_in_two_spellings_is_refused(run: Run, server: Server) -> None:
    said = run("--alter", "--names=user=a", "--add=producer_byte_rate=1", "--delete=producer_byte_rate:broker_bps")
    assert said.code == 1
    assert "producer_byte_rate:broker_bps is given twice" in said.err
    assert server.altered == 0


@pytest.mark.seed("546.36")
def test_a_refusal_of_the_server_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    class Refusing(Server):
        def alter(self, alterations: Sequence[Alteration], validate_only: bool) -> Sequence[QuotaRefusal | str | None]:
            return [QuotaRefusal("POLICY_VIOLATION", "no more of these")]

        def describe(self, components: Sequence[Component], strict: bool) -> Sequence[QuotaRow]:
            raise QuotaClientError("somewhere:9092: no answer in time")

    def connect(_servers: str, _given: ClientProperties) -> QuotaApi:
        return QuotaApi(Refusing(QuotaStore()))

    change = ["--bootstrap-server=x", "--alter", "--names=user=a", "--add=producer_byte_rate=1"]
    assert command.run_command(change, connect) == 1
    assert capsys.readouterr() == ("", "kafka-quotas: POLICY_VIOLATION: no more of these\n")
    assert command.run_command(["--bootstrap-server=x", "--list"], connect) == 1
    assert capsys.readouterr() == ("", "kafka-quotas: somewhere:9092: no answer in time\n")


def test_a_warning_of_the_gateways_is_passed_on_and_the_change_is_made(run: Run, server: Server) -> None:
    server.note = "brokers enforce less"
    said = run("--alter", "--names=user=a", "--add=producer_byte_rate=1")
    assert said == (0, "", "kafka-quotas: warning: brokers enforce less\n")
    assert server.store.entries[Entity("a")] == {PRODUCE: 1.0}


# --- brokers' quotas into the gateway ---------------------------------------------------------------------------------


@pytest.fixture
def beside(server: Server) -> Server:
    """A gateway with quotas, in front of brokers that have their own."""
    server.store = QuotaStore(
        {Entity("alice"): {PRODUCE: 5e6}, Entity("bob"): {PRODUCE: 1e6}, Entity("dan"): {PRODUCE: 9e6}}
    )
    server.upstream = [
        QuotaRow((("user", None),), {"producer_byte_rate.upstream": 3e6, "controller_mutation_rate": 7.0}),
        QuotaRow((("user", "alice"),), {"producer_byte_rate.upstream": 2e6, "consumer_byte_rate.upstream": 4e6}),
        QuotaRow((("user", "bob"),), {"producer_byte_rate.upstream": 8e6}),
    ]
    return server


DIFF = """\
{user=alice}
-consumer_byte_rate:broker_bps=4000000 (brokers)
+consumer_byte_rate:broker_bps=4000000
-producer_byte_rate:broker_bps=2000000 (brokers)
-producer_byte_rate:broker_bps=5000000
+producer_byte_rate:broker_bps=2000000

{user=bob}
-producer_byte_rate:broker_bps=8000000 (brokers)

{user=<default>}
-producer_byte_rate:broker_bps=3000000 (brokers)
+producer_byte_rate:broker_bps=3000000

other values hold then for
{user=dan}: producer_byte_rate:broker_bps 3000000 -> 9000000
"""


def test_taking_over_shows_what_it_would_do_and_does_it_when_told(run: Run, beside: Server) -> None:
    before = beside.store
    assert run("--take-over") == (0, f"{DIFF}\n4 quotas to move; nothing was done: --yes does it\n", "")
    assert beside.store is before
    assert run("--take-over", "--yes") == (0, f"{DIFF}\n4 quotas moved\n", "")
    assert beside.store.entries == {
        Entity("alice"): {CONSUME: 4e6, PRODUCE: 2e6},
        Entity("bob"): {PRODUCE: 1e6},
        Entity("dan"): {PRODUCE: 9e6},
        Entity(DEFAULT): {PRODUCE: 3e6},
    }
    assert [dict(row.values) for row in beside.upstream or ()] == [{"controller_mutation_rate": 7.0}, {}, {}]
    assert run("--take-over", "--yes") == (0, "the brokers have no such quotas: nothing to take over\n", "")


def test_a_value_with_an_end_keeps_it_and_the_brokers_keep_theirs_meanwhile(run: Run, server: Server) -> None:
    server.store = QuotaStore({Entity("alice"): {PRODUCE: 5e6}})
    server.upstream = [
        QuotaRow((("user", "alice"),), {"producer_byte_rate.upstream": 2e6, "producer_byte_rate.until": 1e12}),
    ]
    left_out = "{user=alice}: producer_byte_rate:broker_bps has an end: take it over afterwards\n"
    assert run("--take-over", "--yes") == (0, f"{left_out}\nnothing to take over now\n", "")
    assert server.altered == 0
    server.upstream = [
        QuotaRow(server.upstream[0].pairs, {**server.upstream[0].values, "consumer_byte_rate.upstream": 4e6})
    ]
    moved = "{user=alice}\n-consumer_byte_rate:broker_bps=4000000 (brokers)\n+consumer_byte_rate:broker_bps=4000000\n"
    assert run("--take-over", "--yes") == (0, f"{moved}\n{left_out}\n1 quota moved\n", "")
    assert server.store.entries == {Entity("alice"): {CONSUME: 4e6, PRODUCE: 5e6}}
    assert "producer_byte_rate.upstream" in server.upstream[0].values


def test_what_the_gateway_has_already_is_not_set_again(run: Run, beside: Server) -> None:
    run("--take-over", "--yes", "--names=user=bob")
    assert [op for each in beside.asked for op in each.ops] == [Op("producer_byte_rate.upstream", None)]


def test_times_of_brokers_and_of_a_gateway_are_not_compared_and_stay_where_they_are(run: Run, server: Server) -> None:
    server.store = QuotaStore({Entity("alice"): {QuotaKey("request_percentage", "percent"): 50.0}})
    server.upstream = [QuotaRow((("user", "alice"),), {"request_percentage.upstream": 5.0})]
    assert run("--take-over", "--yes").out == "the brokers have no such quotas: nothing to take over\n"
    assert run("--describe", "--names=user=alice").out == (
        "request_percentage:percent=50 {user=alice} (gateway)\nrequest_percentage:percent=5 {user=alice} (brokers)\n"
    )
    theirs = QuotaStore({Entity("alice"): {QuotaKey("request_percentage", "percent"): 5.0}})
    assert theirs.find_lesser(Entity("alice"), QuotaKey("request_percentage", "percent"), 50.0) is None


def test_one_reason_for_all_is_one_line(run: Run, server: Server) -> None:
    server.upstream = [QuotaRow((("user", name),), {"producer_byte_rate.upstream": 0.0}) for name in ("x", "y", "z")]
    said = run("--take-over")
    assert said.err.count("\n") == 1
    assert said.err.startswith("kafka-quotas: {user=x} and 2 more: INVALID_REQUEST: ")


def test_some_entities_can_be_taken_over(run: Run, beside: Server) -> None:
    assert run("--take-over", "--yes", "--prefix=user=b").out.endswith("\n1 quota moved\n")
    assert [bool(row.values) for row in beside.upstream or ()] == [True, True, False]


def test_two_entities_that_one_client_is_are_told_where_their_values_no_longer_hold_together(
    run: Run, server: Server
) -> None:
    server.store = QuotaStore({Entity("alice"): {PRODUCE: 5e6}})
    server.upstream = [QuotaRow((("client-id", "etl"),), {"producer_byte_rate.upstream": 1e6})]
    told = run("--take-over").out
    assert "{user=alice, client-id=etl}: producer_byte_rate:broker_bps 1000000 -> 5000000\n" in told


def test_quotas_that_the_gateway_refuses_stay_with_the_brokers(run: Run, server: Server) -> None:
    server.upstream = [QuotaRow((("user", "x"),), {"producer_byte_rate.upstream": 0.0})]
    said = run("--take-over")
    assert said.code == 1
    assert said.err.startswith("kafka-quotas: {user=x}: INVALID_REQUEST: producer_byte_rate:broker_bps=0.0: a quota is")
    assert said.out.endswith("0 quotas to move; nothing was done: --yes does it\n")


def test_quotas_of_brokers_are_marked_in_a_list_whether_the_gateway_has_them_too_or_not(
    run: Run, beside: Server
) -> None:
    assert (
        run("--list").out
        == """\
{user=alice}
producer_byte_rate:broker_bps=5000000
consumer_byte_rate:broker_bps=4000000 (brokers)
producer_byte_rate:broker_bps=2000000 (brokers)

{user=bob}
producer_byte_rate:broker_bps=1000000
producer_byte_rate:broker_bps=8000000 (brokers)

{user=dan}
producer_byte_rate:broker_bps=9000000

{user=<default>}
producer_byte_rate:broker_bps=3000000 (brokers)
controller_mutation_rate=7
"""
    )


def test_brokers_without_a_gateway_keep_their_quotas(run: Run) -> None:
    said = run("--take-over", "--yes")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("kafka-quotas: this is not a gateway that keeps client quotas")


# --- the Python API ---------------------------------------------------------------------------------------------------


def test_each_alteration_has_its_own_result_and_only_good_ones_are_sent(server: Server) -> None:
    results = QuotaApi(server).alter(
        [
            Alteration([("user", "bad")], [Op("producer_byte_rate:bps", -1.0)]),
            Alteration([("user", "good")], [Op("producer_byte_rate:bps", 1.0)]),
            Alteration([("GROUP", "x")], [Op("producer_byte_rate", 1.0)]),
            Alteration([("user", None)], [Op("consumer_byte_rate:broker_bps", 2.0)]),
        ]
    )
    assert [result and result.error for result in results] == ["INVALID_REQUEST", None, "INVALID_REQUEST", None]
    assert server.store.entries[Entity("good")] == {QuotaKey("producer_byte_rate", "bps"): 1.0}
    assert server.store.entries[Entity(DEFAULT)] == {CONSUME: 2.0}
    assert server.altered == 1
    assert QuotaApi(server).alter([]) == ()
    assert server.altered == 1


def test_describe_has_strict_and_refuses_what_cant_be(server: Server) -> None:
    server.store = server.store.overlay_entries({Entity("user-one"): {PRODUCE: 1.0}}, 1)
    by_user = [Component("user", Match.PREFIX, "user-o")]
    quotas = QuotaApi(server)
    assert [each.entity for each in quotas.describe(by_user)] == [Entity("user-one", "my-client"), Entity("user-one")]
    assert [each.entity for each in quotas.describe(by_user, strict=True)] == [Entity("user-one")]
    with pytest.raises(QuotaError, match="needs a name"):
        quotas.describe([Component("user", Match.EXACT)])


def test_effective_values_are_those_of_the_store(server: Server) -> None:
    entity = Entity("user-two", "my-client")
    for omit in (False, True):
        assert QuotaApi(server).describe_effective(entity, omit) == server.store.effective_quotas(entity, omit)
    with pytest.raises(QuotaError, match="an empty entity"):
        QuotaApi(server).describe_effective(Entity())


def test_a_value_that_brokers_take_and_we_refuse_is_shown_as_it_is(server: Server, run: Run) -> None:
    """Brokers before KRaft accepted 0, and every broker accepts any percentage."""
    server.others = [QuotaRow((("user", "x"),), {"producer_byte_rate": 0.0, "request_percentage": 1e6})]
    assert len(QuotaApi(server).describe_effective(Entity("user-one", "my-client"))) == 3
    values = ("producer_byte_rate:broker_bps=0", "request_percentage:percent=1000000")
    assert run("--describe", "--names=user=x") == (0, "".join(f"{value} {{user=x}}\n" for value in values), "")
    assert run("--list", "--names=user=x").out == "\n".join(("{user=x}", *values, ""))


def test_properties_are_checked_before_anything_is_asked() -> None:
    with pytest.raises(QuotaClientError, match=r"security\.protocol: must be one of"):
        QuotaClient("localhost:1", {"security.protocol": "TELNET"})


# --- a Java client's properties file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file or directory"),
        ("ssl.provider=x", "ssl.provider: not supported here"),
        (
            "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=/none.pem",
            "ssl.truststore.location",
        ),
    ],
)
def test_a_file_that_cant_be_used_is_1(
    text: str | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    if text is not None:
        file.write_text(text)
    assert command.main(["--bootstrap-server=localhost:1", "--list", f"--command-config={file}"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert why in said.err


def test_a_server_that_is_not_there_is_1_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--bootstrap-server=127.0.0.1:1", "--list"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("kafka-quotas: 127.0.0.1:1: ")
    assert (said.out, said.err.count("\n")) == ("", 1)


# --- two that enforce quotas ------------------------------------------------------------------------------------------


def brokers_have(server: Server, **rates: float) -> None:
    """Quotas of users that the brokers enforce; "default": of all others."""
    server.upstream = [
        QuotaRow((("user", None if name == "default" else name),), {"producer_byte_rate.upstream": rate})
        for name, rate in rates.items()
    ]


@pytest.mark.seed("546.35")
@pytest.mark.parametrize(
    ("gateway", "brokers", "said"),
    [
        (
            {Entity(DEFAULT, None): {PRODUCE: 500_000.0}},
            {"alice": 1_000_000.0},
            "producer_byte_rate:broker_bps=500000 {user=<default>} (gateway)\n"
            "+producer_byte_rate:broker_bps=1000000 {user=alice}\n",
        ),
        (
            {Entity("alice", None): {PRODUCE: 5_000_000.0}},
            {"alice": 1_000_000.0},
            "producer_byte_rate:broker_bps=1000000 {user=alice} (brokers)\n"
            "+producer_byte_rate:broker_bps=5000000 {user=alice}\n",
        ),
        (
            {Entity("alice", None): {CONSUME: 5.0}},
            {"default": 7.0},
            "consumer_byte_rate:broker_bps=5 {user=alice} (gateway)\n"
            "producer_byte_rate:broker_bps=7 {user=<default>} (brokers)\n",
        ),
        ({Entity("alice", None): {PRODUCE: 5.0}}, {}, "producer_byte_rate:broker_bps=5 {user=alice}\n"),
    ],
)
def test_the_value_in_force_is_the_lesser_of_the_gateways_and_the_brokers(
    gateway: dict[Entity, dict[QuotaKey, float]], brokers: dict[str, float], said: str, run: Run, server: Server
) -> None:
    server.store = QuotaStore(gateway)
    brokers_have(server, **brokers)
    assert run("--describe", "--names=user=alice") == (0, said, "")


@pytest.mark.parametrize(("percent", "mode"), [(0.0, "observe"), (5.0, "enforce for 5 % of the clients")])
@pytest.mark.parametrize("ours", [5.0, 5_000_000.0])
def test_the_brokers_value_comes_first_unless_the_gateways_is_enforced_for_all(
    ours: float, percent: float, mode: str, run: Run, server: Server
) -> None:
    server.store = QuotaStore({Entity("alice", None): {PRODUCE: ours, CONSUME: 7.0}})
    server.upstream = [
        QuotaRow((("user", "alice"),), {"producer_byte_rate.upstream": 1_000_000.0, ENFORCED_KEY: percent}),
    ]
    assert run("--describe", "--names=user=alice").out.splitlines() == [
        f"consumer_byte_rate:broker_bps=7 {{user=alice}} (gateway, {mode})",
        "producer_byte_rate:broker_bps=1000000 {user=alice} (brokers)",
        f"+producer_byte_rate:broker_bps={ours:.0f} {{user=alice}} (gateway, {mode})",
    ]
    server.upstream = [QuotaRow((("user", "alice"),), {ENFORCED_KEY: percent})]
    assert run("--describe", "--names=user=alice").out.splitlines() == [
        f"consumer_byte_rate:broker_bps=7 {{user=alice}} (gateway, {mode})",
        f"producer_byte_rate:broker_bps={ours:.0f} {{user=alice}} (gateway, {mode})",
    ]
    assert ENFORCED_KEY not in run("--list").out


def test_values_that_each_of_them_overrides_are_told_with_it(run: Run, server: Server) -> None:
    server.store = QuotaStore({Entity("alice", None): {PRODUCE: 5.0}, Entity(DEFAULT, None): {PRODUCE: 3.0}})
    brokers_have(server, alice=9.0, default=1.0)
    assert run("--describe", "--names=user=alice", "--include-overrides").out.splitlines() == [
        "producer_byte_rate:broker_bps=5 {user=alice} (gateway)",
        "*producer_byte_rate:broker_bps=3 {user=<default>}",
        "+producer_byte_rate:broker_bps=9 {user=alice}",
        "*producer_byte_rate:broker_bps=1 {user=<default>}",
    ]


def test_the_list_tells_the_brokers_value_of_the_same_key(run: Run, server: Server) -> None:
    server.store = QuotaStore({})
    server.others = [QuotaRow((("user", "alice"),), {"producer_byte_rate.upstream": 1.0, "producer_byte_rate": 5.0})]
    assert run("--list").out.splitlines() == [
        "{user=alice}", "producer_byte_rate:broker_bps=5", "producer_byte_rate:broker_bps=1 (brokers)",
    ]  # fmt: skip


# --- with an end ------------------------------------------------------------------------------------------------------


def test_until_is_a_time_or_a_duration_from_now_on(run: Run, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)
    given: list[int | None] = []
    alter = server.alter

    def note(alterations: Sequence[Alteration], validate_only: bool) -> Sequence[QuotaRefusal | str | None]:
        given.extend(each.until_ms for each in alterations)
        return alter(alterations, validate_only)

    monkeypatch.setattr(server, "alter", note)
    change = ("--alter", "--names=user=a", "--add=producer_byte_rate:broker_bps=5")
    for until in ("--until=2h", "--until=2023-11-15T00:00:00Z"):
        assert run(*change, until) == (0, "", "")
    assert run(*change) == (0, "", "")
    assert given == [1_700_007_200_000, 1_700_006_400_000, None]
    assert "'soon' is neither a time nor a duration; for example: 2h" in refused(run(*change, "--until=soon"))
    assert refused(run("--alter", "--names=user=a", "--delete=producer_byte_rate:bps", "--until=2h")) == (
        "--until is the end of the values that --add sets: give both"
    )
    assert "--list has no --until: did you mean --alter?" in refused(run("--list", "--until=2h"))


# --- as data ----------------------------------------------------------------------------------------------------------


def test_a_list_is_data_that_can_be_imported(run: Run, tmp_path: Path) -> None:
    for output, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        said = run("--list", "-o", output)
        assert (said.code, said.err) == (0, "")
        assert load(said.out)["client_quotas"][0] == {
            "user": "user-one",
            "client_id": "my-client",
            "consumer_byte_rate:shares": 200.0,
            "producer_byte_rate:bps": 1e7,
        }
        assert load(said.out)["client_quotas"][2]["user"] == "<default>"
        path = tmp_path / "quotas"
        path.write_text(said.out)
        assert run("--import", str(path)) == (0, "nothing to change: all of it is set already\n", "")


def test_an_import_says_what_changes_and_does_it_when_told(run: Run, server: Server, tmp_path: Path) -> None:
    path = tmp_path / "quotas.yaml"
    path.write_text(
        "client_quotas:\n"
        "- {user: user-one, client_id: my-client, producer_byte_rate:bps: 20MB}\n"
        "- {user: {name: <default>}, consumer_byte_rate: 1MB}\n"
        "- {user: user-two, client_id: my-client, producer_byte_rate: 2000000}\n"
    )
    diff = """\
{user=user-one, client-id=my-client}
-consumer_byte_rate:shares=200
-producer_byte_rate:bps=10000000
+producer_byte_rate:bps=20000000

{user=%3Cdefault%3E}
+consumer_byte_rate:broker_bps=1000000
"""
    before = server.store
    said = run("--import", str(path))
    assert said == (0, diff + "\n2 entities to change; nothing was done: --yes does it\n", "")
    assert server.store is before or dict(server.store.describe_quotas()) == dict(before.describe_quotas())
    assert run("--import", str(path), "--yes") == (0, diff + "\n2 entities changed\n", "")
    now = dict(server.store.describe_quotas())
    assert now[Entity("user-one", "my-client")] == {QuotaKey.parse("producer_byte_rate:bps"): 2e7}
    assert now[Entity("<default>")] == {CONSUME: 1e6}
    assert Entity(DEFAULT, "my-client") in now  # the file doesn't name it
    assert run("--import", str(path), "--yes").out.startswith("nothing to change")


def test_a_gateways_warnings_of_a_move_are_told_before_it_is_made(run: Run, server: Server) -> None:
    server.upstream = [QuotaRow((("user", "tenant"),), {PRODUCE.wire_name + UPSTREAM_SUFFIX: 7.0})]
    server.note = "for other clients"
    for yes in ([], ["--yes"]):
        assert run("--take-over", *yes).err == "kafka-quotas: warning: for other clients\n"


def test_an_import_says_what_brokers_lose_by_it(run: Run, server: Server, tmp_path: Path) -> None:
    kept = {CONSUME.wire_name + UPSTREAM_SUFFIX: 3.0}
    values = {PRODUCE.wire_name + UPSTREAM_SUFFIX: 7.0, **kept}
    server.upstream = [QuotaRow((("user", "user-two"), ("client-id", "my-client")), values)]
    path = tmp_path / "quotas.yaml"
    path.write_text("- {user: user-two, client_id: my-client, producer_byte_rate:bps: 1MB}\n")
    assert run("--import", str(path)).out.splitlines()[:4] == [
        "{user=user-two, client-id=my-client}",
        "-producer_byte_rate:broker_bps=2000000",
        "-producer_byte_rate:broker_bps=7 (brokers)",
        "+producer_byte_rate:bps=1000000",
    ]


def test_a_value_with_an_end_is_listed_with_it_and_an_import_makes_it_last(
    run: Run, server: Server, tmp_path: Path
) -> None:
    ends = {PRODUCE.wire_name: 2e6, PRODUCE.wire_name + END_SUFFIX: 1_700_007_200_000.0}
    server.upstream = [QuotaRow((("user", "user-two"), ("client-id", "my-client")), ends)]
    listed = "{user=user-two, client-id=my-client}\nproducer_byte_rate:broker_bps=2000000"
    assert f"{listed} until 2023-11-15T00:13:20Z\n\n" in run("--list").out
    path = tmp_path / "quotas.yaml"
    path.write_text(run("--list", "-o", "yaml").out)
    key = "producer_byte_rate:broker_bps"
    end = {"user": "user-two", "client_id": "my-client", key: "2023-11-15T00:13:20Z"}
    assert yaml.safe_load(path.read_text())["until"] == [end]
    said = run("--import", str(path), "--yes")
    assert said.out.splitlines() == [
        "{user=user-two, client-id=my-client}",
        "-producer_byte_rate:broker_bps=2000000 until 2023-11-15T00:13:20Z",
        "+producer_byte_rate:broker_bps=2000000",
        "",
        "1 entity changed",
    ]
    assert [(each.ops, each.until_ms) for each in server.asked] == [([Op(PRODUCE.wire_name, 2e6)], None)]
    server.upstream = []
    assert run("--import", str(path)).out.startswith("nothing to change")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("client_quotas: 5", "a list of quotas is needed"),
        ("- {usr: alice, producer_byte_rate: 1MB}", "client_quotas.0.usr: unknown key; did you mean user?"),
        ("- {user: alice, producer_byte_rate: 10 potatoes}", "client_quotas.0.producer_byte_rate: "),
        ("a: [", "while parsing"),
    ],
)
def test_a_file_that_can_not_be_imported_changes_nothing(
    run: Run, server: Server, tmp_path: Path, text: str, fault: str
) -> None:
    path = tmp_path / "quotas.yaml"
    path.write_text(text)
    said = run("--import", str(path), "--yes")
    assert (said.code, said.out, server.altered) == (1, "", 0)
    assert fault in said.err or "expected" in said.err


def test_a_description_is_data(run: Run) -> None:
    said = run("--describe", "--names=user=user-one,client-id=my-client", "--include-overrides", "-o", "json")
    found = json.loads(said.out)
    assert [(each["key"], each["value"]) for each in found["quotas"]] == [
        ("consumer_byte_rate:shares", 200.0),
        ("producer_byte_rate:bps", 1e7),
        ("producer_byte_rate:broker_bps", 500_000.0),
    ]
    assert found["quotas"][0]["entity"] == {"user": "user-one", "client_id": "my-client"}
    assert found["quotas"][0]["overridden"] == [
        {"value": 100.0, "entity": {"user": "<default>", "client_id": "my-client"}}
    ]
    assert refused(run("--alter", "--names=user=a", "--add=producer_byte_rate=1", "-o", "json")).startswith(
        "--alter has"
    )
    assert "leave --names and --defaults out" in refused(run("--import", "x", "--names=user=a"))


def test_quotas_of_the_brokers_are_apart_and_no_import_takes_them_for_the_gateways(
    run: Run, server: Server, tmp_path: Path
) -> None:
    server.upstream = [QuotaRow((("user", "bob"),), {PRODUCE.wire_name + UPSTREAM_SUFFIX: 7.0})]
    found = yaml.safe_load(run("--list", "-o", "yaml").out)
    assert found["brokers"] == [{"user": "bob", "producer_byte_rate:broker_bps": 7.0}]
    assert not [each for each in found["client_quotas"] if each["user"] == "bob"]
    path = tmp_path / "quotas.yaml"
    path.write_text("- {user: bob, producer_byte_rate: 7}\n")
    assert run("--import", str(path)).out.startswith("{user=bob}\n+producer_byte_rate:broker_bps=7\n")
