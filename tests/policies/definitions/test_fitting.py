# Which thresholds go together, taken one after the other.

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from policies.definitions.fitting import find_misfits
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyError, PolicyKey, PolicyOperation, TopicId
from policies.thresholds.sums import TopicPlaces
from tests.policies.definitions.policy_play import CLICKS, MB, ORDERS, TOTAL, TOTAL_2, VIEWS

_thresholds = st.builds(
    PolicyOperation,
    st.sampled_from((CLICKS, VIEWS, ORDERS, TOTAL, TOTAL_2)),
    st.none() | st.sampled_from((0.1, 0.2, 0.3, 1.0, 2.0)),
    st.none(),  # thresholds that are set by Kafka's protocol have no end
)


@given(
    st.dictionaries(st.sampled_from((CLICKS, VIEWS, TOTAL)), st.sampled_from((0.3, 0.9, 1.0))),
    st.dictionaries(st.sampled_from((CLICKS, ORDERS, TOTAL, TOTAL_2)), st.sampled_from((0.2, 0.3, 2.0))),
    st.lists(_thresholds, max_size=8),
    st.none() | st.dictionaries(st.sampled_from((1, 2, 3)), st.sets(st.sampled_from(("clicks", "views")))),
    st.dictionaries(st.sampled_from(("clicks", "orders")), st.just(TopicId("c", "t"))),
)
@example({CLICKS: 0.3}, {}, [PolicyOperation(CLICKS, 0.1), PolicyOperation(CLICKS, None)], None, {})
def test_the_fitting_changes_are_those_alter_takes_one_after_the_other(
    base: dict[PolicyKey, float],
    changes: dict[PolicyKey, float],
    ops: list[PolicyOperation],
    places: TopicPlaces | None,
    ids: dict[str, TopicId],
) -> None:
    ids = {name: topic_id for name, topic_id in ids.items() if PolicyKey.of_topic(name) in changes}
    policies = PolicySet(base, changes, topic_ids=ids)
    fit: list[PolicyOperation] = []
    errors: list[str | None] = []
    for op in ops:
        try:
            policies.alter_policies([*fit, op], places=places)
            fit.append(op)
            errors.append(None)
        except PolicyError as error:
            errors.append(str(error))
    found = find_misfits(policies, ops, places=places)
    assert [error is None for error in found] == [error is None for error in errors]
    assert all(said == error for said, error in zip(found, errors, strict=True))


def test_changes_that_fit_on_each_of_thirty_brokers_are_told_apart_from_those_that_do_not() -> None:
    places = {broker: {f"t{broker}", "everywhere"} for broker in range(30)}
    policies = PolicySet({TOTAL: 10.0 * MB})
    ops = [PolicyOperation(PolicyKey.of_topic(f"t{broker}"), 8 * MB) for broker in range(30)]
    *errors, everywhere = find_misfits(
        policies, [*ops, PolicyOperation(PolicyKey.of_topic("everywhere"), 3 * MB)], places=places
    )
    assert errors == [None] * 30
    assert everywhere is not None
    assert everywhere.endswith("27 more brokers are overcommitted as well")
