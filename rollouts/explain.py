"""Why does it wait, why was it halted: one answer for page, API, command and notification."""

from dataclasses import dataclass
from datetime import datetime

from rollouts import headroom, selectors
from rollouts.analysis.verdicts import Reason, Verdict
from rollouts.lifecycle import WAITING, Status, WaveStatus
from rollouts.models import Rollout, Wave

#: Different caps that are named when machines wait for them.
MOST_REASONS = 3


@dataclass(frozen=True)
class Condition:
    """One thing that has to become true: what is, what is needed, since when, whose move it is."""

    what: str
    present: str
    needed: str
    since: datetime | None
    who: str


def explain(rollout: Rollout) -> list[Condition]:
    """List everything that the rollout waits for now; empty when nothing is in its way."""
    conditions = _by_status(rollout)
    wave = selectors.current_wave(rollout)
    if rollout.status == Status.RUNNING and wave is not None:
        conditions += _by_wave(rollout, wave)
    return conditions + _by_crashes(rollout) + _by_triage(rollout)


def _by_status(rollout: Rollout) -> list[Condition]:
    needed = {
        Status.DRAFT: ("submission", "submitted", "its author"),
        Status.AWAITING_APPROVAL: ("approval", "approved", "anybody but its author"),
        Status.APPROVED: ("start", "started", "an operator"),
        Status.PAUSED: ("resumption", "resumed", "an operator"),
        Status.HALTED: (
            "a decision after the halt",
            "rolled back, overridden or cancelled",
            "an operator, with a second person to override",
        ),
    }.get(Status(rollout.status))
    if needed is None:
        return []
    what, wanted, who = needed
    last = rollout.transitions.filter(wave=None).order_by("-pk").first()
    return [Condition(what, rollout.status, wanted, last.at if last else rollout.created_at, who)]


def _by_wave(rollout: Rollout, wave: Wave) -> list[Condition]:
    refused = selectors.refused_start(wave) if wave.status == WaveStatus.PENDING else None
    if refused is not None:
        return [
            Condition(
                f"start of wave {wave.number}",
                refused.reason,
                "skipped, or the rollout cancelled and drawn anew",
                refused.as_of,
                "an operator with a reason and a second person",
            )
        ]
    if wave.status == WaveStatus.INSTALLING:
        return _by_install(wave)
    if wave.status == WaveStatus.HELD:
        return [
            Condition(
                f"wave {wave.number}",
                "held: unproven at the end of its window",
                "advanced, skipped or rolled back",
                wave.extension_end,
                "an operator with a reason and a second person",
            )
        ]
    evaluation = selectors.latest_evaluation(wave)
    if evaluation is None:
        return [
            Condition(
                f"wave {wave.number}",
                "no look taken yet",
                "a first look",
                wave.started_at,
                "the engine",
            )
        ]
    conditions = [
        Condition(
            f"guardrail {g['name']}",
            f"{g['verdict']}: {g['reason']}",
            Verdict.NOT_WORSE.value,
            evaluation.as_of,
            "the engine, as evidence comes in",
        )
        for g in evaluation.guardrails
        if g["required"] and g["verdict"] != Verdict.NOT_WORSE
    ]
    return conditions + _by_advice(rollout, wave)


def _by_advice(rollout: Rollout, wave: Wave) -> list[Condition]:
    advice = selectors.advised_widen(wave)
    if advice is not None and rollout.mode != Rollout.Mode.AUTOMATIC:
        return [
            Condition(
                f"wave {wave.number}",
                "the engine advises to widen",
                "advanced",
                advice.as_of,
                "an operator",
            )
        ]
    latest = selectors.standing_decisions(wave).first()
    if latest is not None and latest.reason_code == Reason.REVIEW:
        return [Condition("review", latest.reason, "acknowledged", latest.as_of, "an operator")]
    return []


def _by_install(wave: Wave) -> list[Condition]:
    waiting = wave.attempts.filter(status__in=WAITING).count()
    if not waiting:
        return []
    return [
        Condition(
            f"installs of wave {wave.number}",
            f"{waiting} attempts wait{_in_the_way(wave)}",
            "machines in service, within the caps of the plan",
            wave.started_at,
            "the scheduler, and whoever owns the machines",
        )
    ]


def _in_the_way(wave: Wave) -> str:
    """Say what keeps the machines that are ready; no waiting mends what is blocked."""
    block = wave.blocks.filter(clock_start=None, started_at__isnull=False).first()
    if block is None:
        return ""
    ready = headroom.ready_attempts(block, epoch=wave.rollout.epoch)
    found = headroom.startable(block, ready)
    reasons = found.blocked or tuple(sorted(set(found.waiting.values())))
    named = "; ".join(reasons[:MOST_REASONS]) + ("; …" if len(reasons) > MOST_REASONS else "")
    return f": {named}" if named else ""


def _by_crashes(rollout: Rollout) -> list[Condition]:
    last = rollout.decisions.order_by("-pk").first()
    if last is None or last.reason_code != Reason.EVALUATION_CRASHES:
        return []
    who = "whoever runs Coalmine; it is tried again by itself"
    return [Condition("evaluation", last.reason, "an evaluation that ends", last.as_of, who)]


def _by_triage(rollout: Rollout) -> list[Condition]:
    return [
        Condition(
            f"triage of {attempt.machine.name}",
            "never returned",
            "recovered, coincident hardware, or bricked",
            attempt.finished_at,
            "triage",
        )
        for attempt in selectors.untriaged(rollout)[:20]
    ]
