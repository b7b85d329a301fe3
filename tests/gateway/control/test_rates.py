# Rates of several workers as one gateway's.

from __future__ import annotations

from gateway.channel import MAX_QUOTA_RATES, WorkerRates
from gateway.control.rates import merge_rates
from policies.fleet.keys import Direction
from policies.groups.group_limiters import GroupRate
from policies.limits.limit_use import LimitUse
from policies.quotas.quota_limiters import QuotaRate
from policies.thresholds.broker_limits import BrokerRate, TopicRate


def broker(node_id: int, rate: float, *topics: TopicRate, threshold: float | None = 100.0) -> BrokerRate:
    return BrokerRate(node_id, rate, rate / 10, rate / 100, threshold, list(topics))


def quota(rate: float, limit: float = 10.0, user: str = "alice", waiting: bool = False) -> QuotaRate:
    return QuotaRate("producer_byte_rate:bps", "user=alice", user, None, None, LimitUse(rate, limit, waiting), limit)


def test_one_workers_rates_are_the_gateways() -> None:
    said = WorkerRates((broker(1, 5.0),), ("w",))
    assert merge_rates([said]) is said
    assert merge_rates([]) == WorkerRates(())


def test_rates_of_brokers_and_topics_add_up() -> None:
    first = WorkerRates((broker(1, 30.0, TopicRate("a", 20.0, 50.0, False), TopicRate("b", 10.0, 50.0, False)),))
    second = WorkerRates((broker(1, 50.0, TopicRate("a", 50.0, 50.0, True)), broker(2, 7.0, threshold=None)))
    one, two = merge_rates([first, second]).brokers
    assert one == BrokerRate(
        1, 80.0, 8.0, 0.8, 100.0, [TopicRate("a", 70.0, 50.0, True), TopicRate("b", 10.0, 50.0, False)]
    )
    assert two == broker(2, 7.0, threshold=None)


def test_a_topic_that_is_over_in_one_worker_is_over() -> None:
    for said in ((True, False), (False, True)):
        many = [WorkerRates((broker(1, 1.0, TopicRate("a", 1.0, 0.5, over)),)) for over in said]
        assert merge_rates(many).brokers[0].topics[0].over
    many = [WorkerRates((broker(1, 1.0, TopicRate("a", 1.0, 0.5, False)),))] * 2
    assert not merge_rates(many).brokers[0].topics[0].over


def test_rates_of_workers_under_a_quota_add_up_and_its_limit_is_of_them_all() -> None:
    first, second = (
        WorkerRates((), (), (quota(2.0, 6.0),)),
        WorkerRates((), (), (quota(3.0, 6.0), quota(1.0, 5.0, "bob"))),
    )
    assert merge_rates([first, second]).quotas == (quota(5.0, 6.0), quota(1.0, 5.0, "bob"))
    used_up = WorkerRates((), (), (quota(6.0, 6.0, waiting=True),))
    assert merge_rates([first, used_up]).quotas == (quota(6.0, 6.0, waiting=True),), "workers share one bucket"


def test_of_shares_each_worker_has_its_own_slice() -> None:
    first, second = (
        WorkerRates((), (), (quota(4.0, limit)._replace(key="producer_byte_rate:shares"),)) for limit in (6.0, 3.0)
    )
    assert merge_rates([first, second]).quotas[0].use.limit == 9.0


def test_only_the_busiest_quotas_are_kept() -> None:
    many = [
        WorkerRates(
            (),
            (),
            tuple(quota(float(i), 10.0, f"u{i}") for i in range(half * MAX_QUOTA_RATES, (half + 1) * MAX_QUOTA_RATES)),
        )
        for half in (0, 1)
    ]
    kept = merge_rates(many).quotas
    assert len(kept) == MAX_QUOTA_RATES
    assert {each.user for each in kept} == {f"u{i}" for i in range(MAX_QUOTA_RATES, 2 * MAX_QUOTA_RATES)}


def test_groups_add_up_by_direction_and_no_limit_is_none() -> None:
    def group(
        direction: Direction, rate: float, limit: float | None, waiting: bool = False, topics: int = 2
    ) -> GroupRate:
        return GroupRate("gold", direction, topics, LimitUse(rate, limit, waiting), LimitUse(rate / 10, None))

    first = WorkerRates((), (), (), (group("publish", 10.0, 20.0, topics=7), group("dispatch", 1.0, None)))
    second = WorkerRates((), (), (), (group("publish", 20.0, 20.0, waiting=True),))
    assert merge_rates([first, second]).groups == (
        group("publish", 20.0, 20.0, waiting=True, topics=7)._replace(msgs=LimitUse(3.0, None)),
        group("dispatch", 1.0, None),
    )


def test_a_warning_of_all_is_one() -> None:
    assert merge_rates([WorkerRates((), ("a", "b")), WorkerRates((), ("b", "c"))]).warnings == ("a", "b", "c")
