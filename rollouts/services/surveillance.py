"""Between a wave's window and the release: do treated machines fail more than untreated ones?

The evidence is that of `analysis.surveillance`, at its own share of alpha. It is looked at with
every look of a later wave, and a crossing halts with its own words.
"""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta

import numpy as np

from rollouts import policies, selectors
from rollouts.analysis.policy import Guardrail, Metric
from rollouts.analysis.policy import Policy as JudgePolicy
from rollouts.analysis.samples import FloatArray
from rollouts.analysis.spending import surveillance_alpha
from rollouts.analysis.surveillance import Watch, Watched, watch
from rollouts.analysis.verdicts import DecisionKind, Reason
from rollouts.lifecycle import WaveStatus
from rollouts.models import Assignment, Decision, Order, Rollout, Wave
from rollouts.services import cycles
from rollouts.services.drawn import Drawn, stored
from rollouts.services.past import clusters_of, episode_starts, microseconds

#: Bursts that began before the surveillance are no first episodes of it.
_BURST = timedelta(days=1)
_WORDS = "surveillance after the windows"


def look_back(wave: Wave, *, as_of: datetime) -> Decision | None:
    """Halt if machines of the earlier waves fail too often since; None if nothing is to say.

    Safe to repeat: one crossing is one decision.
    """
    rollout = wave.rollout
    joins = _joins(rollout)
    began = min(joins.values(), default=as_of)
    said = rollout.decisions.filter(
        kind=DecisionKind.HALT, reason__startswith=_WORDS, as_of__gt=began
    )
    if began >= as_of or said.exists():
        return None
    policy = policies.policy_from(rollout.plan, kind=policies.Kind.PLAN)
    crossed = _crossed(rollout, policy, joins=joins, began=began, as_of=as_of)
    if crossed is None:
        return None
    return cycles.decide(
        rollout, DecisionKind.HALT, Reason.HARMFUL, crossed, as_of=as_of, wave=wave
    )


def _joins(rollout: Rollout) -> dict[int, datetime]:
    """Return when each widened wave's machines began to count: after its window, or an override.

    A person who overrides a halt has seen the evidence so far; it does not halt again.
    """
    last = rollout.orders.filter(kind=Order.Kind.OVERRIDE).order_by("-pk").first()
    widened = rollout.waves.filter(
        kind=Wave.Kind.CANARY, status=WaveStatus.WIDENED, window_end__isnull=False
    )
    overridden = [last.at] if last is not None else []
    return {
        wave.pk: max(
            at for at in (wave.window_end, wave.finished_at, *overridden) if at is not None
        )
        for wave in widened
    }


def _crossed(
    rollout: Rollout,
    policy: JudgePolicy,
    *,
    joins: Mapping[int, datetime],
    began: datetime,
    as_of: datetime,
) -> str | None:
    families = [g for g in policy.guardrails if g.metric is Metric.FAULTS and g.halt]
    if not families:
        return None
    population = stored(Assignment.objects.filter(rollout=rollout))
    watched = _watched(rollout, population, joins=joins, began=began)
    needed = len(families) / float(surveillance_alpha(policy.alpha))
    firsts = _first_episodes(rollout, policy, population, began=began, as_of=as_of)
    for family in families:
        found = watch(watched, firsts[family.name], tolerance=family.tolerance)
        if found.highest >= math.log(needed):
            return _words(family, found, watched, needed=needed)
    return None


def _watched(
    rollout: Rollout, population: Drawn, *, joins: Mapping[int, datetime], began: datetime
) -> Watched:
    """Return each unit's times as seconds since the surveillance began."""
    started = dict(rollout.waves.values_list("pk", "started_at"))
    treated = dict(
        Assignment.objects.filter(rollout=rollout).order_by().values_list("unit", "wave_id")
    )

    def seconds(times: Mapping[int, datetime | None]) -> FloatArray:
        instants = [times.get(treated[name] or 0) for name in population.names]
        return np.array(
            [math.inf if at is None else (at - began).total_seconds() for at in instants]
        )

    return Watched(
        stratum=population.stratum, leaves_seconds=seconds(started), joins_seconds=seconds(joins)
    )


def _first_episodes(
    rollout: Rollout,
    policy: JudgePolicy,
    population: Drawn,
    *,
    began: datetime,
    as_of: datetime,
) -> dict[str, FloatArray]:
    pauses = selectors.pauses(rollout)
    found = {}
    clusters = clusters_of(population, since=began - _BURST, until=as_of)
    origin = microseconds(began)
    for name, (machine, start) in episode_starts(clusters, policy).items():
        counted = start > origin
        for pause_start, pause_end in pauses:
            counted &= ~((start >= microseconds(pause_start)) & (start < microseconds(pause_end)))
        first = np.full(population.units, np.inf)
        units, _ = population.unit_of(machine[counted])
        np.minimum.at(first, units, (start[counted] - origin) / 1e6)
        found[name] = first
    return found


def _words(family: Guardrail, found: Watch, watched: Watched, *, needed: float) -> str:
    treated = int(np.isfinite(watched.joins_seconds).sum())
    untreated = int(np.isinf(watched.leaves_seconds).sum())
    return (
        f"{_WORDS}: {found.canary_episodes} of {found.episodes} first episodes of {family.name} "
        f"were on units with the new bundle ({treated} of them, {untreated} untreated); "
        f"E = {math.exp(found.highest):.0f}, {needed:.0f} halts"
    )
