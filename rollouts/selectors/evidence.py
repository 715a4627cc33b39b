"""What was seen of a rollout: looks, what they decided, outcomes of installs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import BigIntegerField, Count, Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from fleet.models import Observation
from rollouts.analysis import surveillance
from rollouts.analysis.policy import Metric
from rollouts.analysis.pooling import pooled_z, upper_tail
from rollouts.analysis.verdicts import DecisionKind, Reason
from rollouts.lifecycle import FAILURES, AttemptStatus, WaveTrigger
from rollouts.models import Attempt, Decision, Evaluation, Order, Rollout, Wave
from rollouts.selectors.waves import reopened_at

#: Reasons of a later decision that take back the advice to widen.
_CONTRADICTS = (
    Reason.HARMFUL,
    Reason.HARD_STOP,
    Reason.REVIEW,
    Reason.INTERFERENCE,
    Reason.ENVIRONMENT,
    Reason.NO_DATA,
)


def decisions_of(rollout: Rollout) -> QuerySet[Decision]:
    """Return the decisions, newest first."""
    return rollout.decisions.select_related("wave", "evaluation").order_by("-pk")


def headline(rollout: Rollout) -> Decision | None:
    """Return the decision that tells how the rollout stands: the newest, or what led to it.

    A roll back is what the plan does after a halt; the halt says why.
    """
    latest = decisions_of(rollout).first()
    if latest is not None and latest.kind == DecisionKind.ROLL_BACK:
        return decisions_of(rollout).filter(kind=DecisionKind.HALT).first() or latest
    return latest


def refused_start(wave: Wave) -> Decision | None:
    """Return the decision that keeps a wave from starting, or None."""
    return wave.decisions.filter(reason_code=Reason.BLOCKED).order_by("-pk").first()


def standing_decisions(wave: Wave) -> QuerySet[Decision]:
    """Return the wave's decisions of its present window, newest first.

    What was decided before an override stays in the timeline and is not carried out again.
    """
    reopened = wave.transitions.filter(trigger=WaveTrigger.REOPEN, at__gte=OuterRef("as_of"))
    return wave.decisions.filter(~Exists(reopened)).order_by("-pk")


def advised_widen(wave: Wave) -> Decision | None:
    """Return the widen that the engine has advised and nothing later speaks against.

    Widens are issued at checkpoints only; the looks between them do not take one back, but a
    halt, a review, suspected interference or missing data does.
    """
    standing = standing_decisions(wave)
    advice = standing.filter(kind=DecisionKind.WIDEN).first()
    if advice is None:
        return None
    latest = standing.first()
    is_contradicted = latest is not None and latest.reason_code in _CONTRADICTS
    return None if is_contradicted else advice


def looks(wave: Wave) -> QuerySet[Evaluation]:
    """Return the evaluations of a wave's own evidence."""
    return wave.evaluations.filter(kind=Evaluation.Kind.LOOK)


def surveillance_of(rollout: Rollout) -> dict[str, Any] | None:
    """Return the newest look at the machines of the waves that are over, for people, or None."""
    watched = rollout.evaluations.filter(kind=Evaluation.Kind.SURVEILLANCE)
    newest = watched.order_by("-as_of", "-pk").first()
    if newest is None:
        return None
    return {
        "as_of": newest.as_of,
        "rows": [
            {
                **seen,
                "e": surveillance.in_words(seen["details"]["log_e"]),
                "highest": surveillance.in_words(seen["details"]["highest_log_e"]),
                "needed": seen["details"]["needed"],
            }
            for seen in newest.guardrails
        ],
    }


def latest_evaluation(wave: Wave) -> Evaluation | None:
    """Return the wave's newest evaluation."""
    return looks(wave).order_by("-look").first()


def deciding_evaluation(wave: Wave) -> Evaluation | None:
    """Return the evaluation that widened or halted the wave, else the newest."""
    return deciding_evaluations(Wave.objects.filter(pk=wave.pk)).get(wave.pk)


def deciding_evaluations(waves: QuerySet[Wave]) -> dict[int, Evaluation]:
    """Return the same for each of these waves that was looked at, by wave."""
    decided = Decision.objects.filter(
        wave=OuterRef("pk"),
        kind__in=(DecisionKind.WIDEN, DecisionKind.HALT),
        evaluation__kind=Evaluation.Kind.LOOK,
    ).order_by("pk")
    newest = Evaluation.objects.filter(wave=OuterRef("pk"), kind=Evaluation.Kind.LOOK)
    chosen = Coalesce(
        Subquery(decided.values("evaluation")[:1]),
        Subquery(newest.order_by("-look").values("pk")[:1]),
        output_field=BigIntegerField(),
    )
    pks = waves.order_by().annotate(deciding=chosen).values("deciding")
    found = Evaluation.objects.filter(pk__in=pks).order_by("wave__number")
    return {evaluation.wave_id: evaluation for evaluation in found}


def install_outcomes(wave: Wave) -> list[str]:
    """Return the outcomes of the wave's finished attempts in order of finishing.

    After an override only those of the new window count: the old ones were overridden.
    """
    ended = (
        wave.attempts.filter(
            status__in=[AttemptStatus.SUCCEEDED, *FAILURES], finished_at__isnull=False
        )
        .first_tries()
        .order_by("finished_at", "pk")
    )
    reopened = reopened_at(wave)
    if reopened is not None:
        ended = ended.filter(finished_at__gt=reopened)
    return [
        triage if triage == Attempt.Triage.BRICKED else status
        for status, triage in ended.values_list("status", "triage")
    ]


def cumulative_attempts(rollout: Rollout) -> tuple[int, int]:
    """Return failures and finished attempts over all waves so far."""
    ended = rollout.attempts.filter(status__in=[AttemptStatus.SUCCEEDED, *FAILURES]).first_tries()
    counts = ended.aggregate(n=Count("pk"), failed=Count("pk", filter=Q(status__in=FAILURES)))
    return counts["failed"], counts["n"]


def earlier_differences(wave: Wave) -> dict[str, tuple[tuple[float, float], ...]]:
    """Return what earlier waves saw of silent machines: by guardrail, (difference, error) each.

    Its non-inferiority is shown over all waves so far: one wave's few silent machines prove little.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    decided = deciding_evaluations(wave.rollout.waves.filter(number__lt=wave.number))
    for evaluation in decided.values():
        for seen in evaluation.guardrails:
            difference = seen["details"].get("difference")
            if seen["metric"] == Metric.TELEMETRY and difference:
                pair = (difference["estimate"], difference["error"])
                found.setdefault(seen["name"], []).append(pair)
    return {name: tuple(pairs) for name, pairs in found.items()}


def pooled_evidence(decided: Sequence[tuple[Wave, Evaluation]]) -> list[dict[str, Any]]:
    """Return one z per guardrail over all judged waves, beside the verdicts; it decides nothing.

    Waves weigh by the information that was planned for them at submission: canaries and controls
    of the forecast, and the hours of the window.
    """
    judged = [pair for pair in decided if _information(pair[0]) > 0]
    names = dict.fromkeys(seen["name"] for _, found in judged for seen in found.guardrails)
    return [row for name in names if (row := _pooled_row(name, judged)) is not None]


def _pooled_row(name: str, judged: Sequence[tuple[Wave, Evaluation]]) -> dict[str, Any] | None:
    parts = [
        {"wave": wave.number, "z": seen["details"]["harm_z"], "information": _information(wave)}
        for wave, evaluation in judged
        for seen in evaluation.guardrails
        if seen["name"] == name and seen["details"].get("harm_z") is not None
    ]
    if len(parts) < 2:
        return None
    z = pooled_z([p["z"] for p in parts], information=[p["information"] for p in parts])
    return {"name": name, "z": z, "p_value": upper_tail(z), "waves": parts}


def _information(wave: Wave) -> float:
    """Planned, in machine-hours: of two arms the smaller counts most."""
    canaries, controls = (wave.forecast.get(arm, 0) for arm in ("canaries", "controls"))
    both = canaries + controls
    return float(canaries * controls / both * wave.window_hours) if both else 0.0


def paces_of_job(job: str, *, since: datetime, until: datetime) -> dict[tuple[float, str], float]:
    """Return, by interval end (seconds since 1970) and machine, one over its throughput.

    An interval without throughput, or at zero, tells no pace and is left out.
    """
    rows = Observation.objects.filter(
        job=job, end__gt=since, end__lte=until, throughput__gt=0, is_ahead=False
    )
    found = rows.order_by().values_list("end", "machine__name", "throughput")
    return {(end.timestamp(), name): 1 / level for end, name, level in found.iterator() if level}


def acknowledged_signatures(rollout: Rollout) -> frozenset[str]:
    """Return the novel signatures that people have acknowledged for this rollout."""
    orders = rollout.orders.filter(kind=Order.Kind.ACKNOWLEDGE).values_list("parameters", flat=True)
    return frozenset(name for parameters in orders for name in parameters.get("signatures", []))
