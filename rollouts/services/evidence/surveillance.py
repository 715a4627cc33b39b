"""Between a wave's window and the release: do treated machines fail more than untreated ones?

The evidence is that of `analysis.surveillance`, at its own share of alpha. It is looked at on the
plan's grid from the first window's end until the release starts, whatever the waves wait for; each
look is an evaluation of its own, and a crossing halts with its own words. A pause freezes it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

import numpy as np
from django.db import transaction
from django.db.models import QuerySet

from rollouts import policies, selectors
from rollouts.analysis.judge import ENGINE_VERSION
from rollouts.analysis.policy import Guardrail, Metric
from rollouts.analysis.policy import Policy as JudgePolicy
from rollouts.analysis.samples import FloatArray
from rollouts.analysis.spending import surveillance_alpha
from rollouts.analysis.surveillance import Watch, Watched, in_words, watch
from rollouts.analysis.verdicts import DecisionKind, Reason, Verdict
from rollouts.lifecycle import Status, WaveStatus
from rollouts.models import Assignment, Decision, Evaluation, Order, Rollout, Wave
from rollouts.services.evidence import cycles
from rollouts.services.evidence.drawn import Drawn, stored
from rollouts.services.evidence.past import clusters_of, episode_starts, microseconds

#: Bursts that began before the surveillance are no first episodes of it.
_BURST = timedelta(days=1)
_WORDS = "surveillance after the windows"
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Term:
    """When a wave's machines left the untreated, and when they joined the treated, if they have.

    In microseconds since the surveillance began.
    """

    wave: int
    left: int
    joined: int | None


# --- when ------------------------------------------------------------------------------------


def next_look(rollout: Rollout) -> datetime | None:
    """Return when the next look falls due, or None where nothing is watched."""
    if rollout.status != Status.RUNNING or rollout.kind != Rollout.Kind.UPDATE:
        return None
    began = min(_joins(rollout).values(), default=None)
    if began is None or not _families(_policy(rollout)) or _is_released(rollout):
        return None
    last = _looks(rollout).filter(as_of__gte=began).order_by("-as_of").first()
    return (last.as_of if last else began) + _interval(rollout)


def due_cutoff(rollout: Rollout, *, now: datetime) -> datetime | None:
    """Return the latest cutoff that is due, or None; looks that were missed are not made up."""
    following = next_look(rollout)
    if following is None or following > now:
        return None
    return following + (now - following) // _interval(rollout) * _interval(rollout)


def _interval(rollout: Rollout) -> timedelta:
    return timedelta(minutes=rollout.plan["look_minutes"])


def _is_released(rollout: Rollout) -> bool:
    return rollout.waves.filter(kind=Wave.Kind.RELEASE, started_at__isnull=False).exists()


def _looks(rollout: Rollout) -> QuerySet[Evaluation]:
    return rollout.evaluations.filter(kind=Evaluation.Kind.SURVEILLANCE)


def _policy(rollout: Rollout) -> JudgePolicy:
    return policies.policy_from(rollout.plan, kind=policies.Kind.PLAN)


def _families(policy: JudgePolicy) -> list[Guardrail]:
    return [g for g in policy.guardrails if g.metric is Metric.FAULTS and g.halt]


# --- a look ----------------------------------------------------------------------------------


@transaction.atomic
def look_back(wave: Wave, *, as_of: datetime) -> Decision | None:
    """Look at the machines of the earlier waves; halt if they fail too often, else None.

    Safe to repeat: a cutoff has one evaluation, and one crossing is one decision.
    """
    rollout = wave.rollout
    joins = _joins(rollout)
    began = min(joins.values(), default=as_of)
    policy = _policy(rollout)
    families = _families(policy)
    is_over = rollout.kind != Rollout.Kind.UPDATE or _is_released(rollout)
    if began >= as_of or not families or is_over:
        return None
    if _looks(rollout).filter(as_of__gte=as_of).exists():
        return None
    drawn = stored(Assignment.objects.filter(rollout=rollout))
    terms = _terms(rollout, joins=joins, began=began)
    watched = watched_at(rollout, drawn, terms)
    firsts = _first_episodes(rollout, policy, drawn, began=began, as_of=as_of)
    needed = Fraction(len(families)) / surveillance_alpha(policy.alpha)
    found = {
        family.name: watch(watched, firsts[family.name], tolerance=family.tolerance)
        for family in families
    }
    evaluation = cycles.record_check(
        wave,
        Evaluation.Kind.SURVEILLANCE,
        as_of=as_of,
        guardrails=[
            _shown(family, found[family.name], watched, needed=needed) for family in families
        ],
        scores=_scores(firsts),
        inputs={
            "began": began.isoformat(),
            "waves": [vars(term) for term in terms],
            "tolerance": {family.name: family.tolerance for family in families},
            "needed": str(needed),
        },
        engine_version=ENGINE_VERSION,
    )
    crossed = [family for family in families if found[family.name].highest.reaches(needed)]
    if not crossed or _has_said(rollout, since=began):
        return None
    words = _words(crossed[0], found[crossed[0].name], watched, needed=needed)
    return cycles.decide(
        rollout,
        DecisionKind.HALT,
        Reason.HARMFUL,
        words,
        as_of=as_of,
        wave=wave,
        evaluation=evaluation,
    )


def _has_said(rollout: Rollout, *, since: datetime) -> bool:
    return rollout.decisions.filter(
        kind=DecisionKind.HALT, reason__startswith=_WORDS, as_of__gt=since
    ).exists()


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


def _terms(rollout: Rollout, *, joins: Mapping[int, datetime], began: datetime) -> list[Term]:
    return [
        Term(
            wave=wave.pk,
            left=(wave.started_at - began) // _MICROSECOND,
            joined=(joins[wave.pk] - began) // _MICROSECOND if wave.pk in joins else None,
        )
        for wave in rollout.waves.filter(started_at__isnull=False).order_by("number")
        if wave.started_at is not None
    ]


def watched_at(rollout: Rollout, drawn: Drawn, terms: Sequence[Term]) -> Watched:
    """Return each unit's times in seconds since the beginning; other waves are untreated."""
    treated = dict(
        Assignment.objects.filter(rollout=rollout).order_by().values_list("unit", "wave_id")
    )
    left = {term.wave: term.left / 1e6 for term in terms}
    joined = {term.wave: term.joined / 1e6 for term in terms if term.joined is not None}

    def seconds(times: Mapping[int, float]) -> FloatArray:
        return np.array([times.get(treated[name] or 0, math.inf) for name in drawn.names])

    return Watched(
        stratum=drawn.stratum, leaves_seconds=seconds(left), joins_seconds=seconds(joined)
    )


def _first_episodes(
    rollout: Rollout, policy: JudgePolicy, drawn: Drawn, *, began: datetime, as_of: datetime
) -> dict[str, FloatArray]:
    """Return each unit's first episode per family, in seconds since the surveillance began."""
    pauses = selectors.pauses(rollout)
    clusters = clusters_of(drawn, since=began - _BURST, until=as_of)
    origin = microseconds(began)
    found = {}
    for name, (machine, start) in episode_starts(clusters, policy).items():
        counted = start > origin
        for pause_start, pause_end in pauses:
            counted &= ~((start >= microseconds(pause_start)) & (start < microseconds(pause_end)))
        first = np.full(drawn.units, np.inf)
        units, _ = drawn.unit_of(machine[counted])
        np.minimum.at(first, units, (start[counted] - origin) / 1e6)
        found[name] = first
    return found


# --- what is kept ----------------------------------------------------------------------------


def _scores(firsts: Mapping[str, FloatArray]) -> dict[str, Any]:
    """Return which units had an episode, by index in order of name, and when (microseconds)."""
    scores: dict[str, Any] = {}
    for name, first in firsts.items():
        units = np.flatnonzero(np.isfinite(first))
        scores[f"{name}/unit"] = units
        scores[f"{name}/first"] = np.rint(first[units] * 1e6).astype(np.int64)
    return scores


def firsts_of(scores: Mapping[str, Sequence[int]], name: str, *, units: int) -> FloatArray:
    """Return what `_scores` kept of one family."""
    first = np.full(units, np.inf)
    first[np.array(scores[f"{name}/unit"], dtype=np.int64)] = (
        np.array(scores[f"{name}/first"], dtype=np.float64) / 1e6
    )
    return first


def _shown(
    family: Guardrail, found: Watch, watched: Watched, *, needed: Fraction
) -> dict[str, Any]:
    """Return one family as an evaluation stores it."""
    is_crossed = found.highest.reaches(needed)
    return {
        "name": family.name,
        "metric": family.metric.value,
        "verdict": (Verdict.HARMFUL if is_crossed else Verdict.INCONCLUSIVE).value,
        "unit": "ratio",
        "estimate": None,
        "repeated": None,
        "fixed_look": None,
        "canary": {"machines": _treated(watched), "events": found.canary_episodes},
        "control": {
            "machines": _untreated(watched),
            "events": found.episodes - found.canary_episodes,
        },
        "reason": _words(family, found, watched, needed=needed),
        "required": False,
        "is_decidable": None,
        "crossed": is_crossed,
        "shown": False,
        "details": {
            "log_e": found.latest.log,
            "highest_log_e": found.highest.log,
            "highest_exponent": found.highest.exponent,
            "highest_mantissa": int(found.highest.mantissa * 2**53),
            "needed": float(needed),
        },
    }


def _treated(watched: Watched) -> int:
    return int(np.isfinite(watched.joins_seconds).sum())


def _untreated(watched: Watched) -> int:
    return int(np.isinf(watched.leaves_seconds).sum())


def _words(family: Guardrail, found: Watch, watched: Watched, *, needed: Fraction) -> str:
    return (
        f"{_WORDS}: {found.canary_episodes} of {found.episodes} first episodes of {family.name} "
        f"were on units with the new bundle ({_treated(watched)} of them, "
        f"{_untreated(watched)} untreated); E = {in_words(found.highest.log)}, "
        f"{float(needed):.0f} halts"
    )
