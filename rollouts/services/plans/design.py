"""The one calculation behind preview and submission: who is drawn, in what order, what digest."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from fleet import adapters
from fleet.models import BundleStatus
from rollouts import headroom, planning, policies
from rollouts.analysis.labels import ENUMERATION_LIMIT
from rollouts.analysis.policy import Metric, Policy
from rollouts.models import Rollout
from rollouts.services.plans.forecast import wave_alphas
from rollouts.services.plans.population import (
    Place,
    Population,
    read_population,
    recent_faults,
    units_of,
    unknown_keys,
)
from rollouts.services.waves import placement

#: So long a draft's previews keep the faults that decide a machine's stratum.
SAME_DRAW = timedelta(hours=24)
#: Metrics that are judged by re-assignment, so that the design has to reach their alpha.
_DRAWN = frozenset(Metric) - {Metric.INSTALL}


@dataclass(frozen=True)
class Design:
    """A population in its drawn order, under one digest, and everything that speaks against it."""

    population: Population
    assignments: planning.Assignments
    policy: Policy
    digest: str
    drawn_as_of: datetime
    reasons: tuple[str, ...]


def design(rollout: Rollout, *, now: datetime) -> Design:
    """Draw the random order of a draft over the fleet as it stands.

    The order follows from the draft's own seed and each unit's name, so a machine that joins or
    leaves moves nobody past anybody else, and a second look never re-rolls.
    """
    policy = policies.policy_from(rollout.plan, kind=policies.Kind.PLAN)
    as_of = drawn_as_of(rollout, now=now)
    keys = (policy.unit, *(policy.strata or planning.DEFAULT_STRATA))
    population = read_population(rollout.bundle, rollout.selector, besides=rollout.pk, keys=keys)
    assignments = draw(rollout, population, policy=policy, as_of=as_of)
    return Design(
        population=population,
        assignments=assignments,
        policy=policy,
        digest=planning.plan_digest(signed_document(rollout), assignments.rows),
        drawn_as_of=as_of,
        reasons=tuple(reasons_against(rollout, population, assignments, policy=policy)),
    )


def signed_document(rollout: Rollout) -> Mapping[str, Any]:
    """Return what the digest covers besides the members: the plan, its seed and the bundle."""
    return {**rollout.plan, "seed": rollout.seed, "bundle": rollout.bundle.digest}


def drawn_as_of(rollout: Rollout, *, now: datetime) -> datetime:
    """Return the time up to which faults count for the strata; a day long that of the last look.

    So that a fault between preview and submission does not change the digest.
    """
    if rollout.pk is None:
        return now  # a draft that nobody wrote down has no previews
    last = rollout.previews.order_by("-drawn_as_of").first()
    return last.drawn_as_of if last and now - last.drawn_as_of < SAME_DRAW else now


def draw(
    rollout: Rollout, population: Population, *, policy: Policy, as_of: datetime
) -> planning.Assignments:
    """Draw the one random order of the rollout from its own seed: same draft, same order.

    Salted with the rollout's name, which is given once and never changes: so a draft is drawn
    before it is written down as it is drawn afterwards.
    """
    keys = policy.strata or planning.DEFAULT_STRATA
    units = units_of(
        population,
        unit=policy.unit,
        keys=keys,
        kinds=population.kinds,
        faults=recent_faults(rollout.selector, as_of=as_of) if "recent_faults" in keys else {},
    )
    specs = [planning.WaveSpec.of(wave) for wave in rollout.plan["waves"]]
    return planning.draw_order(
        units,
        sizes=planning.wave_sizes(len(units), specs, hold_back=policy.hold_back),
        seed=rollout.seed,
        salt=f"rollout {rollout.name}",
        strata=keys,
    )


def reasons_against(
    rollout: Rollout,
    population: Population,
    assignments: planning.Assignments,
    *,
    policy: Policy,
) -> list[str]:
    """Return everything that keeps the plan from being submitted, at once."""
    reasons = []
    bundle = rollout.bundle
    if bundle.status != BundleStatus.APPROVED:
        reasons.append(f"bundle {bundle} is {bundle.status}, not approved")
    if not population.members:
        reasons.append(_nobody(rollout, population))
    reasons += [
        f"machines are in rollout {conflict.rollout!r} already: {conflict.machines.count} "
        f"({conflict.machines.named}), "
        f"which writes {', '.join(conflict.kinds)} too or what that depends on"
        for conflict in population.conflicts
        if conflict.blocks
    ]
    if not rollout.plan.get("leave_out_unfit", False):
        reasons += _unfit(population)
    if cannot := placement.refusal(rollout.plan):
        reasons.append(cannot)
    if population.members:
        reasons += _unknown(population, policy=policy)
    if rollout.plan.get("node_probe") and adapters.prober() is None:
        reasons.append("node_probe: nothing is set up (PROBER) that could probe machines")
    reasons += _divided(population, assignments, unit=policy.unit)
    alphas = wave_alphas(policy, waves=len(assignments.sizes))
    judged = {g.name: alphas[g.name] for g in policy.guardrails if g.halt and g.metric in _DRAWN}
    return reasons + planning.refuse(
        rollout.plan,
        assignments=assignments,
        alphas=judged,
        metrics=[metric.value for metric in Metric],
        most_enumerated=ENUMERATION_LIMIT,
    )


def _unknown(population: Population, *, policy: Policy) -> list[str]:
    """Say which names of units and strata are nobody's."""
    fields = ", ".join(sorted({*Place._fields, "machine"}))
    return [
        f"{what}: no selected machine has a {key!r}; accepted: {fields}, or a label that they have"
        for what, key in unknown_keys(population, unit=policy.unit, strata=policy.strata)
    ]


def _divided(population: Population, assignments: planning.Assignments, *, unit: str) -> list[str]:
    """Say which machines that activate as one the draw would treat apart."""
    domain = headroom.widest(population.domains)
    if not domain:
        return []
    unit_of = {name: row.unit for row in assignments.rows for name in row.machines}
    places = ((getattr(m.place, domain), unit_of[m.name]) for m in population.members)
    return planning.split_domains(places, domain=domain, unit=unit)


def _unfit(population: Population) -> list[str]:
    """Say which selected machines the bundle is not for, unless the plan leaves them out."""
    return [
        f"{group.count} selected machines ({group.named}): {reason}; narrow the selector, or set "
        "leave_out_unfit"
        for reason, group in sorted(population.excluded.items())
        if reason in population.unfit
    ]


def _nobody(rollout: Rollout, population: Population) -> str:
    """Say why nobody is left: what the selector selects, and what keeps all of them out."""
    said = (
        f"selector {rollout.selector!r} selects no machine in service that bundle "
        f"{rollout.bundle} fits"
    )
    why = [f"{group.count} {reason}" for reason, group in population.excluded.items()]
    return f"{said}: {'; '.join(why)}" if why else said
