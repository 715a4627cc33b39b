"""What a plan fixes in advance of how its comparison is made, in words for people."""

from collections.abc import Mapping
from typing import Any

from rollouts import policies
from rollouts.analysis.policy import WorkloadCondition


def terms_of(plan: Mapping[str, Any]) -> list[str]:
    """Return one sentence per term that a plan asks for beyond its guardrails; none by default.

    Examples
    --------
    >>> terms_of({"workload_conditions": [{"workloads": ["pretraining"], "least_canaries": 5,
    ...           "least_controls": None, "least_share": 0.5, "least_hours": 1.0}]})
    ['no wave widens before 5 canaries and 5 controls, and 50 % of each, have run pretraining for \
1 h']
    """
    conditions = map(policies.condition_from, plan.get("workload_conditions", ()))
    return [_condition(condition) for condition in conditions]


def _condition(condition: WorkloadCondition) -> str:
    share = f", and {condition.least_share:.0%} of each," if condition.least_share else ""
    return (
        f"no wave widens before {condition.least_canaries} canaries and "
        f"{condition.least_controls} controls{share} have run {condition.kinds} for "
        f"{condition.least_hours:g} h".replace("%", " %")
    )
