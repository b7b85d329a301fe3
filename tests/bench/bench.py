"""What the gateway costs, beside nothing in between, native relays and other proxies (docs/benchmarks.md).

All that is compared runs in one go and takes turns (A, B, C, A, B, C, …); figures are medians over rounds, ratios are
taken round by round. Figures of different runs, or different machines, don't compare; ratios do, roughly.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gateway.embedded import EmbeddedCluster, EmbeddedError
from tests.bench import features
from tests.bench.cpu import machine
from tests.bench.java_consumer import CONSUMER_SCENARIOS, ConsumerScenario, measure_consumer, store_records
from tests.bench.java_producer import (
    BROKER_CONFIG,
    JAVA_SCENARIOS,
    TOPIC_CONFIG,
    JavaScenario,
    create_topic,
    measure_java,
)
from tests.bench.load import SCENARIOS, Scenario, build_rawload, limit_in_force, measure
from tests.bench.processes import BenchError, free_ports
from tests.bench.profile_worker import INSTRUMENTS, profile
from tests.bench.proxies.native_relays import native_relay
from tests.bench.proxies.peers import versions, why_not_measured
from tests.bench.results.plot import draw
from tests.bench.results.report import BOTH, as_markdown, as_text, tls_of
from tests.bench.targets import (
    BUSY_THRESHOLDS,
    EVERYTHING,
    HOST,
    IDLE_THRESHOLDS,
    MANY_GROUPS,
    ROOT,
    Target,
    cache_dir,
    direct,
    gateway,
    kafka_proxy,
    kroxylicious,
    make_keystore,
    null_broker,
    relay_loop,
    tls_address,
)

# Two workers, also with groups whose limits they share, and with TLS: measured where a scenario says so.
SCALED = ("gateway-2", "gateway-2-groups", "gateway-tls-2")
VARIANTS = ("gateway-limited", "gateway-groups")  # measured with small requests only
EVERYTHING_ON = "gateway-everything"  # measured with small requests and with those of many partitions
NATIVE = ("haproxy", "nginx")  # measured with the raw load only, but for TLS with clients of one real broker
# TLS with clients; with clients and with the broker.
SECURED = (
    "gateway-tls", "haproxy-tls", "nginx-tls",
    "gateway-tls-both", "kafka-proxy-tls-both", "haproxy-tls-both", "nginx-tls-both",
)  # fmt: skip
# Relays that change no answer: a real broker has a listener for each, which advertises the relay's addresses. Each with
# its first port and the first of the brokers' listeners for it, counted from the run's first port.
BARE, SPLICE = "bare-loop", "splice-loop"
RELAYS = {BARE: (36, 136), SPLICE: (33, 139)}
# Likewise, each of one broker: a native relay has one address. Real clients speak TLS to these, and to the gateway.
SECURE_RELAYS = {"haproxy-tls": (3, 142), "nginx-tls": (6, 143)}
SECURE_JAVA = ("gateway-tls", *SECURE_RELAYS)
TARGETS = (
    "direct", "gateway", *VARIANTS, EVERYTHING_ON, *SCALED, *RELAYS, "kafka-proxy", "kroxylicious", *NATIVE, *SECURED,
)  # fmt: skip
JAVA_RUNS: tuple[JavaScenario | ConsumerScenario, ...] = (*JAVA_SCENARIOS, *CONSUMER_SCENARIOS)
JAVA = tuple(scenario.name for scenario in JAVA_RUNS)
FEATURED = (features.SCENARIO.name, features.FLEET_SCENARIO.name)
ROUNDS, JAVA_ROUNDS, QUICK_SHARE = 5, 3, 0.25
PROFILE_FACTOR = 5  # of requests: a sampler on the kernel's tick gets some 250 samples a second
NO_RELAYS: Mapping[str, Any] = MappingProxyType({})
PORTS = 28_000  # below the range from which Linux gives ports to outgoing connections

Sample = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything started is stopped
    try:
        if options.read is not None:
            run = json.loads(options.read.read_text())
        elif options.profile is not None:
            run_profile(options)
            return 0
        else:
            run = run_all(options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if options.plot is not None:
        draw(run, options.plot)
    if options.json is not None:
        options.json.write_text(json.dumps(run, indent=1) + "\n")
    print(as_markdown(run) if options.markdown else as_text(run))
    return complain(run)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    names = [*(scenario.name for scenario in SCENARIOS), *JAVA, *FEATURED]
    parser = argparse.ArgumentParser(prog="bench.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{JAVA_ROUNDS} rounds of a quarter of the requests")
    parser.add_argument("--only", type=names_of(names), help=f"scenarios, comma-separated: {', '.join(names)}")
    parser.add_argument("--targets", type=names_of(TARGETS), help=f"comma-separated: {', '.join(TARGETS)}")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} if not given, {JAVA_ROUNDS} with Java")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--read", type=Path, metavar="FILE", help="measure nothing: print what --json wrote")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="draw the CPU of each by kafka-proxy's and HAProxy's"
    )
    parser.add_argument("--profile", choices=INSTRUMENTS, help="where a worker's time goes, in the first of --only")
    parser.add_argument("--ports", type=int, default=PORTS, help=f"first of about 150 ports to use ({PORTS})")
    return parser.parse_args(arguments)


def names_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    def split(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is not one of {', '.join(known)}")
        return names

    return split


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    wanted = options.only or [*(scenario.name for scenario in SCENARIOS), *JAVA, *FEATURED]
    targets = list(options.targets or TARGETS)
    missing = {name: why for name in targets if (why := why_not_measured(name))}
    targets = [name for name in targets if name not in missing]
    reasons = list(dict.fromkeys(missing.values()))
    for why in reasons:
        say(f"not measured: {why}")
    facts = machine(ROOT) | {"peers": versions(targets), "not_measured": reasons}
    rawload = build_rawload()
    rounds = options.rounds or (JAVA_ROUNDS if options.quick else ROUNDS)
    share = QUICK_SHARE if options.quick else 1.0
    with tempfile.TemporaryDirectory(prefix="run-", dir=cache_dir()) as folder:
        run_dir = Path(folder)

        def run_each() -> Iterator[dict[str, Any]]:
            if raw := [scenario for scenario in SCENARIOS if scenario.name in wanted]:
                yield from run_raw(rawload, raw, targets, rounds, share, options.ports, run_dir)
            if java := [name for name in JAVA if name in wanted]:
                yield from run_java(java, targets, options.rounds or JAVA_ROUNDS, share, options.ports, run_dir)
            if features.SCENARIO.name in wanted:
                yield run_features(rawload, rounds, share, options.ports, run_dir)
            if features.FLEET_SCENARIO.name in wanted:
                yield run_fleet(rawload, rounds, share, options.ports, run_dir)

        results: list[dict[str, Any]] = []
        broken = ""
        try:
            for result in run_each():
                results.append(result)
        except BenchError as error:
            if not results:
                raise
            broken = str(error)  # the scenarios before it took minutes each, and stand
    return {"machine": facts | {"load_after": os.getloadavg()[0]}, "scenarios": results, "broken": broken}


def run_raw(
    rawload: Path,
    scenarios: Sequence[Scenario],
    names: Sequence[str],
    rounds: int,
    share: float,
    ports: int,
    run_dir: Path,
) -> Iterator[dict[str, Any]]:
    """The Go load against the Go null broker."""
    with ExitStack() as stack:
        ports = free_ports(ports, 130)
        keystore = make_keystore(run_dir / "broker.pem") if any(tls_of(name) == BOTH for name in names) else None
        upstream, broker = stack.enter_context(null_broker(rawload, ports, run_dir, keystore))
        needed = [name for name in names if any(takes_part(name, scenario) for scenario in scenarios)]
        targets = start(stack, needed, upstream, ports, run_dir, keystore)
        for scenario in scenarios:
            requests = int(scenario.requests * share)

            def take(target: Target, scenario: Scenario = scenario, requests: int = requests) -> Sample:
                with in_force(rawload, target):
                    return measure(rawload, target, scenario, requests, broker)

            turns = [target for target in targets if takes_part(target.name, scenario)]
            for target in turns:
                if target.name == "kroxylicious":
                    take(target)  # a JVM compiles what runs often: that is over before anything counts
            yield {
                "name": scenario.name, "title": scenario.title, "per": scenario.per, "bars": dict(scenario.bars),
                "units": requests, "rounds": take_turns(scenario.title, turns, rounds, take),
            }  # fmt: skip


def takes_part(target: str, scenario: Scenario) -> bool:
    if target in VARIANTS:
        return scenario.limited
    if target == EVERYTHING_ON:
        return scenario.limited or scenario.partitions > 1
    if target in SECURED:
        return scenario.secured
    if target == SPLICE:
        return False  # it is for what real clients can reach at best
    return scenario.scaled or target not in SCALED


def run_java(
    wanted: Sequence[str], names: Sequence[str], rounds: int, share: float, ports: int, run_dir: Path
) -> Iterator[dict[str, Any]]:
    """Kafka's own performance tools against real clusters, of one broker and of three."""
    raw_only = {*VARIANTS, EVERYTHING_ON, *SCALED, *NATIVE, *SECURED}
    asked = [scenario for scenario in JAVA_RUNS if scenario.name in wanted]
    for brokers in sorted({scenario.brokers for scenario in asked}):
        ports = free_ports(ports, 144)
        taking_part = [name for name in names if name not in raw_only or (brokers == 1 and name in SECURE_JAVA)]
        with ExitStack() as stack:
            relayed = {
                name: [(f"{HOST}:{ports + at + place}", f"{HOST}:{ports + own + place}") for place in range(brokers)]
                for name, (at, own) in (RELAYS | (SECURE_RELAYS if brokers == 1 else {})).items()
            }
            cluster = real_cluster(stack, ports + 130, brokers, relayed)
            behind = {name: ",".join(own for _, own in pairs) for name, pairs in relayed.items()}
            targets = start(stack, taking_part, cluster.bootstrap_servers, ports, run_dir, behind=behind)
            for scenario in asked:
                if scenario.brokers == brokers:
                    records = int(scenario.records * share)
                    if isinstance(scenario, JavaScenario):
                        yield run_producer(cluster, targets, scenario, rounds, records)
                    else:
                        yield run_consumer(cluster, targets, scenario, rounds, records)


def run_producer(
    cluster: EmbeddedCluster, targets: Sequence[Target], scenario: JavaScenario, rounds: int, records: int
) -> dict[str, Any]:
    # The brokers warm up, and what comes directly is known.
    straight = measure_java(cluster, direct(cluster.bootstrap_servers), scenario, records)["requests_per_s"]
    per_s = straight / 2 if scenario.at_half else None

    def produce(target: Target) -> Sample:
        return measure_java(cluster, target, scenario, records, per_s)

    done = take_turns(scenario.title, targets, rounds, produce)
    return {"name": scenario.name, "title": scenario.title, "per": "record", "units": records, "rounds": done}


def run_consumer(
    cluster: EmbeddedCluster, targets: Sequence[Target], scenario: ConsumerScenario, rounds: int, records: int
) -> dict[str, Any]:
    store_records(cluster, scenario, records)

    def consume(target: Target) -> Sample:
        return measure_consumer(cluster, target, scenario, records)

    consume(direct(cluster.bootstrap_servers))  # the brokers warm up
    done = take_turns(scenario.title, targets, rounds, consume)
    return {"name": scenario.name, "title": scenario.title, "per": "record", "units": records, "rounds": done}


def real_cluster(
    stack: ExitStack, port: int, brokers: int = 1, relayed: Mapping[str, Sequence[tuple[str, str]]] = NO_RELAYS
) -> EmbeddedCluster:
    """Until the stack is left. `relayed`: for each relay that changes no answer, an address to advertise and an address
    to listen on, one pair for each broker: it gets one more listener.
    """
    own: dict[int, dict[str, str]] = {}
    names = [name.upper().replace("-", "_") for name in relayed]
    for place, pairs in enumerate(zip(*relayed.values(), strict=True)):
        plain = f"PLAINTEXT://{HOST}:{port + place}"
        extra = [(f"{name}://{at}", f"{name}://{own}") for name, (at, own) in zip(names, pairs, strict=True)]
        own[place + 1] = {
            "listeners": ",".join(
                [plain, f"CONTROLLER://{HOST}:{port + brokers + place}", *(listener for _, listener in extra)]
            ),
            "advertised.listeners": ",".join([plain, *(advertised for advertised, _ in extra)]),
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in ("CONTROLLER", "PLAINTEXT", *names)
            ),
        }
    try:
        cluster = EmbeddedCluster(brokers, BROKER_CONFIG, per_broker_overrides=own, port=port).open()
    except EmbeddedError as error:
        raise BenchError(f"no real broker: {error}") from error
    stack.callback(cluster.stop)
    return cluster


def run_features(rawload: Path, rounds: int, share: float, ports: int, run_dir: Path) -> dict[str, Any]:
    """A gateway with each of them, beside one without."""
    scenario, requests = features.SCENARIO, int(features.SCENARIO.requests * share)
    with ExitStack() as stack:
        ports = free_ports(ports, (len(features.FEATURES) + 1) * features.PORTS_EACH)
        keystore = make_keystore(run_dir / "features-broker.pem")
        running = {each.target.name: each for each in features.start_features(stack, rawload, ports, run_dir, keystore)}

        def take(target: Target) -> Sample:
            with running[target.name].feature.during(target) as more:
                return measure(rawload, target, scenario, requests, running[target.name].broker) | more

        done = take_turns(scenario.title, [each.target for each in running.values()], rounds, take)
    return result_of(scenario, requests, done, features.PLAIN)


def run_fleet(rawload: Path, rounds: int, share: float, ports: int, run_dir: Path) -> dict[str, Any]:
    """A group that two gateways share, in front of a real broker."""
    scenario, requests = features.FLEET_SCENARIO, int(features.FLEET_SCENARIO.requests * share)
    with ExitStack() as stack:
        ports = free_ports(ports, 50)
        cluster = real_cluster(stack, ports + 40)
        create_topic(cluster, "load", 4, TOPIC_CONFIG)
        targets = features.start_fleet(stack, cluster.bootstrap_servers, ports, run_dir)
        done = take_turns(
            scenario.title, targets, rounds,
            lambda target: measure(rawload, target, scenario, requests, cluster.broker(1).pid or 0),
        )  # fmt: skip
    return result_of(scenario, requests, done, features.PLAIN)


def result_of(scenario: Scenario, requests: int, rounds: list[dict[str, Sample]], reference: str) -> dict[str, Any]:
    """As run_raw has them; ratios are to `reference`."""
    return {
        "name": scenario.name, "title": scenario.title, "per": scenario.per, "units": requests,
        "reference": reference, "rounds": rounds,
    }  # fmt: skip


def start(
    stack: ExitStack,
    names: Sequence[str],
    upstream: str,
    ports: int,
    run_dir: Path,
    ca: Path | None = None,
    behind: Mapping[str, str] = NO_RELAYS,
) -> list[Target]:
    """In the order in which they take turns. They take ports `ports` + 2 to `ports` + 129. `behind`: the upstream of a
    relay by its name, where it is another.
    """
    run_dir = Path(tempfile.mkdtemp(dir=run_dir))
    secure_upstream = tls_address(upstream)

    def idle(name: str, port: int, workers: int = 1, *, secure: bool = False) -> Target:
        more = {"workers": workers}
        return stack.enter_context(gateway(name, upstream, port, IDLE_THRESHOLDS, run_dir, more=more, secure=secure))

    def relay(name: str) -> Target:
        port, _ = RELAYS[name]
        return stack.enter_context(relay_loop(name, behind.get(name, upstream), ports + port, run_dir))

    def native(name: str, port: int) -> Target:
        broker = secure_upstream if tls_of(name) == BOTH else behind.get(name, upstream)
        return stack.enter_context(native_relay(name, broker, port, run_dir, ca))

    begin = {
        "direct": lambda: direct(upstream),
        "gateway": lambda: idle("gateway", ports + 10),
        "gateway-limited": lambda: stack.enter_context(
            gateway("gateway-limited", upstream, ports + 20, BUSY_THRESHOLDS, run_dir)
        ),
        "gateway-groups": lambda: stack.enter_context(
            gateway("gateway-groups", upstream, ports + 40, IDLE_THRESHOLDS, run_dir, more=MANY_GROUPS)
        ),
        EVERYTHING_ON: lambda: stack.enter_context(
            gateway(EVERYTHING_ON, upstream, ports + 120, IDLE_THRESHOLDS, run_dir, more=EVERYTHING)
        ),
        "gateway-2": lambda: idle("gateway-2", ports + 50, workers=2),
        "gateway-2-groups": lambda: stack.enter_context(
            gateway(
                "gateway-2-groups", upstream, ports + 80, IDLE_THRESHOLDS, run_dir, more=MANY_GROUPS | {"workers": 2}
            )
        ),
        "gateway-tls": lambda: idle("gateway-tls", ports + 60, secure=True),
        "gateway-tls-2": lambda: idle("gateway-tls-2", ports + 70, workers=2, secure=True),
        BARE: lambda: relay(BARE),
        SPLICE: lambda: relay(SPLICE),
        "kroxylicious": lambda: stack.enter_context(kroxylicious(upstream, ports + 110, run_dir)),
        "kafka-proxy": lambda: stack.enter_context(kafka_proxy(upstream, ports + 30, run_dir)),
        "gateway-tls-both": lambda: stack.enter_context(
            gateway("gateway-tls-both", secure_upstream, ports + 90, IDLE_THRESHOLDS, run_dir, secure=True, ca=ca)
        ),
        "kafka-proxy-tls-both": lambda: stack.enter_context(
            kafka_proxy(secure_upstream, ports + 100, run_dir, "kafka-proxy-tls-both", ca)
        ),
        "haproxy": lambda: native("haproxy", ports + 2),
        "haproxy-tls": lambda: native("haproxy-tls", ports + 3),
        "haproxy-tls-both": lambda: native("haproxy-tls-both", ports + 4),
        "nginx": lambda: native("nginx", ports + 5),
        "nginx-tls": lambda: native("nginx-tls", ports + 6),
        "nginx-tls-both": lambda: native("nginx-tls-both", ports + 7),
    }
    return [begin[name]() for name in TARGETS if name in names]


@contextmanager
def in_force(rawload: Path, target: Target) -> Iterator[None]:
    if target.name != "gateway-limited":
        yield
    else:
        with limit_in_force(rawload, target):
            yield


def take_turns(
    title: str, targets: Sequence[Target], rounds: int, take: Callable[[Target], Sample]
) -> list[dict[str, Sample]]:
    done = []
    for number in range(1, rounds + 1):
        samples = {}
        for target in targets:
            begun = time.monotonic()
            samples[target.name] = take(target)
            took = time.monotonic() - begun
            say(f"{title}: round {number} of {rounds}: {target.name}: {brief(samples[target.name])} ({took:.1f} s)")
        done.append(samples)
    return done


def brief(sample: Sample) -> str:
    cpu = ""
    if "cpu_s" in sample:
        cpu = f", {sample['cpu_us_per_request']:.2f} µs each, {sample['cpu_s_per_gb']:.2f} s/GB"
    return f"{sample['requests_per_s']:,.0f}/s{cpu}"


def run_profile(options: argparse.Namespace) -> None:
    name = (options.only or ["small-64"])[0]
    scenario = next((scenario for scenario in SCENARIOS if scenario.name == name), None)
    if scenario is None:
        raise BenchError(f"--profile is for the raw loads, not for {name}")
    requests = int(scenario.requests * (QUICK_SHARE if options.quick else 1.0) * PROFILE_FACTOR)
    with tempfile.TemporaryDirectory(prefix="run-", dir=cache_dir()) as run_dir:
        ports = free_ports(options.ports, 40)
        print(profile(options.profile, build_rawload(), scenario, requests, ports, Path(run_dir)))


def complain(run: dict[str, Any]) -> int:
    """Figures count only where every request was taken; the bars are for people to judge."""
    bad = [
        f"{scenario['title']}: {target}: {sample['failed']} answers with an error {sample.get('errors', '')}"
        for scenario in run["scenarios"]
        for samples in scenario["rounds"]
        for target, sample in samples.items()
        if sample["failed"]
    ]
    if run.get("broken"):
        bad.append(f"{run['broken']}: this scenario and those after it are missing")
    for line in bad:
        say(f"NOT VALID: {line}")
    return 1 if bad else 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
