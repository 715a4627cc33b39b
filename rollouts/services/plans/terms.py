"""What a plan fixes in advance of how its comparison is made, in words for people."""

from collections.abc import Mapping
from typing import Any

from rollouts import policies
from rollouts.analysis.policy import WorkloadCondition
from rollouts.planning import probing
from rollouts.services.waves import placement


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
    return [
        *_purity(plan.get("keep_jobs_pure")),
        *_probe(plan.get("node_probe")),
        *(_condition(condition) for condition in conditions),
    ]


def _purity(how: object) -> list[str]:
    if not how:
        return []
    means = "a reservation of the canaries" if how == placement.RESERVATION else "a feature per arm"
    return [f"new jobs are kept on machines of one arm by {means}"]


def _probe(probe: Mapping[str, Any] | None) -> list[str]:
    if not probe:
        return []
    most = probing.LONGEST.total_seconds() / 60
    words = (
        f"every {probe['every_hours']:g} h idle machines of both arms are probed together, by a "
        f"fixed test of at most {most:g} minutes each; throughput is judged by machine"
    )
    return [words]


def _condition(condition: WorkloadCondition) -> str:
    share = f", and {condition.least_share:.0%} of each," if condition.least_share else ""
    return (
        f"no wave widens before {condition.least_canaries} canaries and "
        f"{condition.least_controls} controls{share} have run {condition.kinds} for "
        f"{condition.least_hours:g} h".replace("%", " %")
    )
