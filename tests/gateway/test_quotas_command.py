# `kafka-quotas` and its client against the real store of client quotas, reached as a server's is: entities, names and
# wire keys. Flags, texts, exit codes. With a real Kafka: tests/integration/test_kafka_quotas.py.

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway.commands import kafka_quotas as command
from gateway.kafka.java_properties import ClientProperties
from gateway.quotas.client import QuotaClient, QuotaClientError, Quotas, Refused, Row
from policies.quotas.filter import Component, Match
from policies.quotas.names import DEFAULT, Entity, QuotaError, QuotaKey
from policies.quotas.store import Alteration, Op, QuotaStore

PRODUCE = QuotaKey("producer_byte_rate", "broker_bps")
CONSUME = QuotaKey("consumer_byte_rate", "broker_bps")


class Server:
    """An `Endpoint` with a store behind it. `others`: rows that only a broker has, found by every filter."""

    def __init__(self, store: QuotaStore, others: Sequence[Row] = ()) -> None:
        self.store, self.others = store, others
        self.altered = 0

    def describe(self, components: Sequence[Component], strict: bool) -> Sequence[Row]:
        assert all(component.match_type <= Match.SPECIFIED for component in components)  # what the wire has
        found = self.store.describe(components, strict)
        # In no order that means anything: neither entities, nor types, nor keys.
        rows = [Row(e.pairs[::-1], {key.wire: values[key] for key in reversed(list(values))}) for e, values in found]
        return [*self.others, *reversed(rows)]

    def alter(self, alterations: Sequence[Alteration], validate_only: bool) -> Sequence[Refused | None]:
        self.altered += 1
        done = self.store.alter(alterations, frozenset({"producer_byte_rate", "consumer_byte_rate"}), validate_only)
        self.store = done.store
        return [Refused(error.error, str(error)) if error else None for error in done.errors]


class Said(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Said]


@pytest.fixture
def server() -> Server:
    """What the seed's examples have set before they begin."""
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
            code = command.run(["--bootstrap-server", "localhost:9092", *argv], lambda _servers, _given: Quotas(server))
        except SystemExit as end:
            code = end.code
        assert isinstance(code, int)
        return Said(code, *capsys.readouterr())

    return run


def refused(said: Said) -> str:
    """What a wrong command line is told: one line."""
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith("kafka-quotas: ")
    return said.err.removeprefix("kafka-quotas: ").rstrip("\n")


# --- the seed's examples ----------------------------------------------------------------------------------------------


def test_list_by_client_id(run: Run) -> None:
    assert run("--list", "--names=client-id=my-client") == (
        0,
        """\
{user=user-one, client-id=my-client}
consumer_byte_rate:shares=200
producer_byte_rate:bps=10000000

{user=user-two, client-id=my-client}
producer_byte_rate:broker_bps=2000000

{user=<default>, client-id=my-client}
consumer_byte_rate:shares=100
producer_byte_rate:broker_bps=500000
""",
        "",
    )


def test_list_by_prefix(run: Run) -> None:
    assert run("--list", "--prefix=user=user-") == (
        0,
        """\
{user=user-one, client-id=my-client}
consumer_byte_rate:shares=200
producer_byte_rate:bps=10000000

{user=user-two, client-id=my-client}
producer_byte_rate:broker_bps=2000000
""",
        "",
    )


def test_describe(run: Run) -> None:
    assert run("--describe", "--names=user=user-one,client-id=my-client") == (
        0,
        """\
consumer_byte_rate:shares=200 {user=user-one, client-id=my-client}
producer_byte_rate:bps=10000000 {user=user-one, client-id=my-client}
producer_byte_rate:broker_bps=500000 {user=<default>, client-id=my-client}
""",
        "",
    )


def test_describe_with_overrides(run: Run) -> None:
    assert run("--describe", "--names=user=user-two,client-id=my-client", "--include-overrides") == (
        0,
        """\
consumer_byte_rate:shares=100 {user=<default>, client-id=my-client}
producer_byte_rate:broker_bps=2000000 {user=user-two, client-id=my-client}
*producer_byte_rate:broker_bps=500000 {user=<default>, client-id=my-client}
""",
        "",
    )


CHANGE = (
    "--names=client-id=my-client",
    "--defaults=user",
    "--add=producer_byte_rate:shares=100",
    "--delete=producer_byte_rate:broker_bps",
)


def test_alter(run: Run) -> None:
    assert run("--alter", *CHANGE) == (0, "", "")
    assert run("--list", "--names=client-id=my-client", "--defaults=user") == (
        0,
        """\
{user=<default>, client-id=my-client}
consumer_byte_rate:shares=100
producer_byte_rate:shares=100
""",
        "",
    )


def test_a_describe_never_writes(run: Run, server: Server) -> None:
    assert refused(run("--describe", *CHANGE)) == "--describe has no --add: did you mean --alter?"
    assert server.altered == 0


# --- flags ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ("", "one of --list, --describe and --alter is needed"),
        ("--list --alter --names=user=a", "--list and --alter exclude each other"),
        ("--list --include-overrides", "--list has no --include-overrides: did you mean --describe?"),
        ("--alter --names=user=a --prefix=user=a", "--alter has no --prefix: did you mean --list?"),
        ("--describe --names=user=a --validate-only", "--describe has no --validate-only: did you mean --alter?"),
        ("--describe", "--describe needs an entity"),
        ("--alter --names=user=a", "--alter needs --add, --delete or both"),
        ("--alter --names=user=a --delete=", "--delete is empty"),
        ("--list --names=user", "type=name is needed"),
        ("--list --names=group=a", "unknown entity type 'group'"),
        ("--list --names=ip=10.0.0.1", "quotas for ip are the brokers' own"),
        ("--list --names=user=a --defaults=user", "user is given twice"),
        ("--alter --names=user=a --add=producer_byte_rate:bps=ten", "'ten' is not a valid size"),
        ("--alter --names=user=a --add=producer_byte_rate:percent=1", "producer_byte_rate has bps, broker_bps, shares"),
        ("--list --name=user=a", "unrecognized arguments: --name=user=a"),
        ("--list --names=user=\udcff", "is not Unicode text"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(argv: str, why: str, run: Run, server: Server) -> None:
    assert why in refused(run(*argv.split()))
    assert server.altered == 0


def test_an_endpoint_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 2
    assert capsys.readouterr().err == "kafka-quotas: the following arguments are required: --bootstrap-server\n"


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
    assert refused(run("--list", "--names=user=<default>")).startswith("<default> is no name: use --defaults")


def test_two_prefixes_go_together(run: Run, server: Server) -> None:
    server.store = server.store.set(Entity("user-one", "other"), PRODUCE, 1.0)
    assert run("--list", "--prefix=user=user-o,client-id=o").out == (
        "{user=user-one, client-id=other}\nproducer_byte_rate:broker_bps=1\n"
    )


def test_what_only_brokers_have_is_listed_and_comes_last(run: Run, server: Server) -> None:
    server.store = QuotaStore()
    server.others = [
        Row((("ip", None),), {"connection_creation_rate": 3.0}),
        Row((("ip", "10.0.0.1"),), {"connection_creation_rate": 20.5}),
        Row((("user", "a"),), {"controller_mutation_rate": 7.0, "producer_byte_rate": 1.0}),
    ]
    assert run("--list").out == (
        "{user=a}\nproducer_byte_rate:broker_bps=1\ncontroller_mutation_rate=7\n\n"
        "{ip=10.0.0.1}\nconnection_creation_rate=20.5\n\n"
        "{ip=<default>}\nconnection_creation_rate=3\n"
    )
    assert run("--describe", "--names=user=a").out == "producer_byte_rate:broker_bps=1 {user=a}\n"


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


def test_what_the_server_refuses_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    class Refusing(Server):
        def alter(self, alterations: Sequence[Alteration], validate_only: bool) -> Sequence[Refused | None]:
            return [Refused("POLICY_VIOLATION", "no more of these")]

        def describe(self, components: Sequence[Component], strict: bool) -> Sequence[Row]:
            raise QuotaClientError("somewhere:9092: no answer in time")

    def connect(_servers: str, _given: ClientProperties) -> Quotas:
        return Quotas(Refusing(QuotaStore()))

    change = ["--bootstrap-server=x", "--alter", "--names=user=a", "--add=producer_byte_rate=1"]
    assert command.run(change, connect) == 1
    assert capsys.readouterr() == ("", "kafka-quotas: POLICY_VIOLATION: no more of these\n")
    assert command.run(["--bootstrap-server=x", "--list"], connect) == 1
    assert capsys.readouterr() == ("", "kafka-quotas: somewhere:9092: no answer in time\n")


# --- the Python API ---------------------------------------------------------------------------------------------------


def test_each_alteration_has_its_own_result_and_only_good_ones_are_sent(server: Server) -> None:
    results = Quotas(server).alter(
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
    assert Quotas(server).alter([]) == ()
    assert server.altered == 1


def test_describe_has_strict_and_refuses_what_cant_be(server: Server) -> None:
    server.store = server.store.set(Entity("user-one"), PRODUCE, 1.0)
    by_user = [Component("user", Match.PREFIX, "user-o")]
    quotas = Quotas(server)
    assert [each.entity for each in quotas.describe(by_user)] == [Entity("user-one", "my-client"), Entity("user-one")]
    assert [each.entity for each in quotas.describe(by_user, strict=True)] == [Entity("user-one")]
    with pytest.raises(QuotaError, match="needs a name"):
        quotas.describe([Component("user", Match.EXACT)])


def test_effective_values_are_those_of_the_store(server: Server) -> None:
    entity = Entity("user-two", "my-client")
    for omit in (False, True):
        assert Quotas(server).describe_effective(entity, omit) == server.store.effective(entity, omit)
    with pytest.raises(QuotaError, match="an empty entity"):
        Quotas(server).describe_effective(Entity())


def test_a_value_that_brokers_take_and_we_refuse_is_shown_as_it_is(server: Server, run: Run) -> None:
    """Brokers of before KRaft took 0, and all take any percentage."""
    server.others = [Row((("user", "x"),), {"producer_byte_rate": 0.0, "request_percentage": 1e6})]
    assert len(Quotas(server).describe_effective(Entity("user-one", "my-client"))) == 3
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
        ("ssl.provider=x", "ssl.provider: can't be had here"),
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


def test_nobody_there_is_1_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--bootstrap-server=127.0.0.1:1", "--list"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("kafka-quotas: 127.0.0.1:1: ")
    assert (said.out, said.err.count("\n")) == ("", 1)
