"""The cycle on one screen: look at the evidence when a look is due, enact what was decided.

Both halves read the rows and do the next thing that they say is due; each may run twice, late
or never without harm, because every effect is a conditional update with its record.
"""

from dataclasses import asdict, replace
from datetime import datetime, timedelta

from django.db import transaction

from fleet import selectors as fleet_selectors
from rollouts import aggregation, contamination, headroom, policies, selectors
from rollouts.analysis import judge, proportions, spending
from rollouts.analysis.pauses import Pause, without_pauses
from rollouts.analysis.samples import Samples
from rollouts.analysis.verdicts import DecisionKind, Reason
from rollouts.analysis.wave import Look, WavePlan, WaveState
from rollouts.errors import StaleRollout
from rollouts.lifecycle import AttemptStatus, Status, Trigger, WaveStatus, WaveTrigger
from rollouts.models import Action, Attempt, Decision, Rollout, Wave
from rollouts.services.attempts import retries, starts
from rollouts.services.evidence import cycles, draw_check, surveillance
from rollouts.services.orders import steering
from rollouts.services.records import lock, lock_family, move, move_wave
from rollouts.services.waves import course, on_halt, outside, placement, probing

#: A look is taken once its telemetry has come in, and at the latest this long after its cutoff.
GRACE = timedelta(minutes=15)
#: Between two checks whether the telemetry of a due look has come in (by the clock).
POLL = timedelta(minutes=1)
#: Between two looks at a wave whose attempts wait for caps, machines or triage (by the clock).
WAITING = timedelta(minutes=10)
_LOOKED_AT = (WaveStatus.INSTALLING, WaveStatus.SETTLING, WaveStatus.OBSERVING)


# --- look ------------------------------------------------------------------------------------


def run_cycle(wave: Wave, *, as_of: datetime, now: datetime) -> Decision:
    """One forward pass over one wave: each line feeds the next, none looks back.

    What had happened by `as_of` is judged from the rows that had arrived by `now`.
    """
    policy = policies.policy_from(wave.rollout.plan, kind=policies.Kind.PLAN)
    samples = samples_at(wave, as_of=as_of, now=now)
    plan = wave_plan(wave)
    look = look_at(wave, samples, as_of=as_of)
    # Before the clock of the first block starts there is no evidence to carry along.
    before = wave.judge_state.get("state") if wave.clock_start else None
    state = WaveState.from_dict(before) if before else judge.initial_state(samples, policy)
    (outcome,), state = judge.evaluate(samples, policy, plan, looks=[look], state=state)
    return cycles.record_cycle(
        wave,
        outcome=outcome,
        as_of=as_of,
        state={**wave.judge_state, "state": state.to_dict(), "alpha_spent": spent(wave, look)},
        inputs={
            "seed": policy.seed,
            "resamples": policy.resamples,
            "alpha": plan.alpha,
            "purity": samples.purity,
            "state_before": before,
            "workload_conditions": [asdict(condition) for condition in outcome.conditions],
        },
        engine_version=judge.ENGINE_VERSION,
        next_look_at=next_look(wave, as_of=as_of),
    )


def samples_at(wave: Wave, *, as_of: datetime, now: datetime) -> Samples:
    """Return what is known of the wave at the cutoff, with the time of pauses cut out."""
    samples = aggregation.samples_for(wave, as_of=as_of, arrived_by=now)
    reopened = selectors.reopened_at(wave)
    if reopened is not None and samples.attempts is not None:
        # Installs before an override were overridden; those after it count.
        since = (reopened - samples.origin).total_seconds()
        samples = replace(samples, attempts=samples.attempts.later_than(since))
    return without_pauses(
        samples,
        [
            Pause((start - samples.origin).total_seconds(), (end - samples.origin).total_seconds())
            for start, end in selectors.pauses(wave.rollout)
        ],
    )


def look_at(wave: Wave, samples: Samples, *, as_of: datetime) -> Look:
    """Return how much of the window, and of its extension, has passed at the cutoff."""
    elapsed = extended = 0.0
    if wave.window_end is not None and wave.extension_end is not None:
        window = timedelta(hours=wave.window_hours)
        elapsed = _share(as_of - (wave.window_end - window), window)
        if wave.is_extended:
            extended = _share(as_of - wave.window_end, wave.extension_end - wave.window_end)
    return Look(
        number=wave.looks + 1,
        as_of_seconds=samples.as_of_seconds,
        elapsed=elapsed,
        extension_elapsed=extended,
    )


def _share(part: timedelta, whole: timedelta) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole else 1.0


def wave_plan(wave: Wave) -> WavePlan:
    """Return what was fixed before the wave started, and what its installs say by now."""
    rollout, word = wave.rollout, wave.forecast
    return WavePlan(
        window_seconds=wave.window_hours * 3600,
        alpha=wave_alpha(wave),
        has_extension=rollout.plan["extension"] > 0,
        is_extended=wave.is_extended,
        allows_smoke=wave.allows_smoke and rollout.plan["smoke_widen"],
        expected_excess_faults=word.get("expected_excess_faults"),
        frozen_fault_rate=word.get("frozen_fault_rate", {}),
        decidable=word.get("decidable", {}),
        hard_stop=hard_stop(wave),
        acknowledged=selectors.acknowledged_signatures(rollout),
        cumulative_attempts=selectors.cumulative_attempts(rollout),
        earlier=selectors.earlier_differences(wave),
    )


def wave_alpha(wave: Wave) -> float:
    """Return the wave's part of the error budget, less what it spent before an override."""
    canary_waves = wave.rollout.waves.filter(kind=Wave.Kind.CANARY).count()
    whole = float(wave.rollout.plan["alpha"]) * float(spending.WAVES_SHARE) / canary_waves
    return max(whole - wave.judge_state.get("alpha_spent_before", 0.0), 0.0)


def spent(wave: Wave, look: Look) -> float:
    """Return how much of the wave's alpha has been spent by this look."""
    return float(
        spending.halt_level(
            wave_alpha(wave),
            look.elapsed,
            look.extension_elapsed,
            has_extension=wave.rollout.plan["extension"] > 0,
        )
    )


def hard_stop(wave: Wave) -> str | None:
    """Return why the installs alone stop the rollout, outside the error budget; else None."""
    outcomes = selectors.install_outcomes(wave)
    most = wave.rollout.plan["max_bricks"]
    if most is None:
        most = 0 if wave.allows_smoke else 1
    stop = proportions.hard_stop(
        [outcome != AttemptStatus.SUCCEEDED for outcome in outcomes],
        bricks=outcomes.count(Attempt.Triage.BRICKED.value),
        max_bricks=most,
    )
    return None if stop is None else str(stop)


def next_look(wave: Wave, *, as_of: datetime) -> datetime:
    """Return the next cutoff: one interval on, but never past the end of the window."""
    following = as_of + timedelta(minutes=wave.rollout.plan["look_minutes"])
    for end in (wave.window_end, wave.extension_end):
        if end is not None and as_of < end:
            return min(following, end)
    return following


def due_cutoff(wave: Wave, *, now: datetime) -> datetime | None:
    """Return the latest cutoff that is due, or None; looks that were missed are not made up."""
    if wave.next_look_at is None or wave.status not in _LOOKED_AT or wave.next_look_at > now:
        return None
    cutoff = wave.next_look_at
    while (following := next_look(wave, as_of=cutoff)) <= now and following > cutoff:
        cutoff = following
    return cutoff


def has_telemetry(cutoff: datetime, *, now: datetime) -> bool:
    """Tell whether what is to be judged has come in, or has had its time to."""
    collected = fleet_selectors.collected_until()
    return collected is None or collected >= cutoff or now >= cutoff + GRACE


def evaluate(rollout: Rollout, *, now: datetime) -> Decision | None:
    """Take the look that is due, if one is, and look back at the waves before."""
    wave = selectors.current_wave(rollout)
    if wave is None or rollout.status != Status.RUNNING:
        return None
    if _enact_decision(rollout, wave, now=now):
        # A worker died before it carried this out; a later look must not speak over it.
        rollout.refresh_from_db()
        return None
    cutoff = due_cutoff(wave, now=now)
    if cutoff is None:
        return _look_back(wave, now=now)
    if not has_telemetry(cutoff, now=now):
        return None
    outside.record_contamination(wave, now=now)
    decision = run_cycle(wave, as_of=cutoff, now=now)
    if decision.kind == DecisionKind.HALT:
        return decision
    return surveillance.look_back(wave, as_of=cutoff) or decision


def _look_back(wave: Wave, *, now: datetime) -> Decision | None:
    """Look at the earlier waves alone: the present one waits, or its own look is not due yet."""
    cutoff = surveillance.due_cutoff(wave.rollout, now=now)
    if cutoff is None or not has_telemetry(cutoff, now=now):
        return None
    return surveillance.look_back(wave, as_of=cutoff)


# --- enact -----------------------------------------------------------------------------------


def enact(rollout: Rollout, *, now: datetime) -> None:
    """Carry out what was decided and whatever else the rows say is due."""
    if rollout.status == Status.RUNNING:
        _run(rollout, now=now)
    elif rollout.status == Status.HALTED:
        on_halt.carry_out(rollout, now=now)
        _after_halt(rollout, now=now)
    elif rollout.status == Status.ROLLING_BACK:
        on_halt.carry_out(rollout, now=now)
        _watch_roll_back(rollout, now=now)
    placement.arrange(now=now)
    if rollout.status == Status.RUNNING and (wave := selectors.current_wave(rollout)) is not None:
        probing.carry_on(wave, now=now)


def _run(rollout: Rollout, *, now: datetime) -> None:
    wave = selectors.current_wave(rollout)
    if wave is None:
        _start_waiting(rollout, now=now)
        _finish(rollout, now=now)
        return
    if wave.status == WaveStatus.PENDING:
        if draw_check.refusal(wave, now=now) is not None:
            _start_waiting(rollout, now=now)
            return
        course.start_wave(wave, cause=selectors.cause_of_next_wave(rollout), now=now)
    if _stop_on_installs(rollout, wave, now=now) or _enact_decision(rollout, wave, now=now):
        return
    if wave.status == WaveStatus.INSTALLING:
        course.progress_install(wave, now=now)
    elif wave.status == WaveStatus.SETTLING:
        course.settle(wave, now=now)
    retries.retry_due(rollout, now=now)
    _start_waiting(rollout, now=now)


def _start_waiting(rollout: Rollout, *, now: datetime) -> None:
    """Start who waits: the open block's machines, and those of any wave that are tried again."""
    for block in selectors.blocks_that_wait(rollout):
        starts.start_waiting(block, now=now)


def _stop_on_installs(rollout: Rollout, wave: Wave, *, now: datetime) -> bool:
    """Halt on a hard stop at once, without waiting for the next look."""
    reason = hard_stop(wave)
    if reason is None or rollout.mode == Rollout.Mode.OBSERVE:
        return False
    _halt(rollout, wave, f"hard stop: {reason}", now=now)
    return True


@transaction.atomic
def _halt(rollout: Rollout, wave: Wave, reason: str, *, now: datetime) -> None:
    """Record the decision and halt; a failing roll back halts its parent, and so itself."""
    if lock_family(rollout).status != Status.RUNNING:
        raise StaleRollout(f"{rollout} does not run any more")
    decision = cycles.decide(
        rollout, DecisionKind.HALT, Reason.HARD_STOP, reason, as_of=now, wave=wave
    )
    parent = rollout.parent
    if parent is not None and parent.status == Status.ROLLING_BACK:
        steering.halt(parent, now=now, decision=decision)
    steering.halt(rollout, now=now, decision=decision)


def _enact_decision(rollout: Rollout, wave: Wave, *, now: datetime) -> bool:
    """Carry out the wave's newest decision as far as the mode lets the engine act by itself."""
    decision = selectors.standing_decisions(wave).first()
    if decision is None or rollout.mode == Rollout.Mode.OBSERVE:
        return False
    if decision.kind == DecisionKind.HALT:
        steering.halt(rollout, now=now, decision=decision)
        return True
    if wave.status != WaveStatus.OBSERVING:
        return False
    if decision.kind == DecisionKind.WIDEN and selectors.clock_holds(rollout):
        return False  # it waits until somebody has looked at what became of the window
    if decision.kind == DecisionKind.WIDEN and contamination.widens_by_itself(wave):
        move_wave(
            wave, WaveTrigger.WIDEN, cause=decision, now=now, finished_at=now, next_look_at=None
        )
        return True
    if selectors.advised_widen(wave) is not None:
        return False  # it waits for its confirmation, however long that takes
    if decision.reason_code == Reason.EXTENDED and not wave.is_extended:
        course.extend_window(wave, now=decision.as_of)
    elif decision.reason_code == Reason.INCONCLUSIVE or _is_blind_at_the_end(wave, decision):
        move_wave(wave, WaveTrigger.HOLD, cause=decision, now=now, next_look_at=None)
        return True
    return False


#: What holds a wave without an end of its own: at the window's end a person has to say.
_WITHOUT_END = (Reason.NO_DATA, Reason.INTERFERENCE, Reason.ENVIRONMENT)


def _is_blind_at_the_end(wave: Wave, decision: Decision) -> bool:
    """Tell whether window and extension are over and there still is nothing to judge by."""
    return (
        decision.reason_code in _WITHOUT_END
        and wave.extension_end is not None
        and decision.as_of >= wave.extension_end
    )


@transaction.atomic
def _finish(rollout: Rollout, *, now: datetime) -> None:
    """After the release: watch for the surveillance period, then complete."""
    lock_family(rollout)
    Rollout.objects.filter(pk=rollout.pk, released_at=None).update(released_at=now)
    rollout.refresh_from_db(fields=["released_at"])
    end = selectors.surveillance_end(rollout)
    if end is None or now < end:
        return
    is_back = rollout.kind == Rollout.Kind.ROLL_BACK
    code, words = (
        (Reason.RELEASED, "every machine that was to go back has been dealt with")
        if is_back
        else (Reason.SURVEILLANCE_OVER, "released everywhere, and the surveillance is over")
    )
    decision = cycles.decide(rollout, DecisionKind.COMPLETE, code, words, as_of=now)
    move(rollout, Trigger.COMPLETE, cause=decision, now=now, finished_at=now)
    if rollout.parent is not None and rollout.parent.status == Status.ROLLING_BACK:
        course.finish_roll_back(rollout.parent, cause=decision, now=now)


@transaction.atomic
def _after_halt(rollout: Rollout, *, now: datetime) -> None:
    """Once nothing is in flight any more, roll back whom the plan says, by itself."""
    lock(rollout, Status.HALTED)
    if not _rolls_back(rollout) or selectors.is_in_flight(rollout):
        return
    decision = cycles.decide(
        rollout,
        DecisionKind.ROLL_BACK,
        Reason.ON_HALT,
        "the plan returns its canaries to the versions they came from after a halt",
        as_of=now,
    )
    course.start_roll_back(rollout, cause=decision, now=now)


def _rolls_back(rollout: Rollout) -> bool:
    """Tell whether a halted rollout is to take its canaries back and has not begun to."""
    return (
        Action.Kind.ROLL_BACK in rollout.plan["on_halt"].values()
        and rollout.mode != Rollout.Mode.OBSERVE
        and rollout.kind != Rollout.Kind.ROLL_BACK
        and not rollout.children.exists()
    )


def _watch_roll_back(rollout: Rollout, *, now: datetime) -> None:
    child = course.continue_roll_back(rollout, now=now)
    if child is not None and child.status == Status.COMPLETED:
        course.finish_roll_back(rollout, cause=child.decisions.order_by("-pk").first(), now=now)


# --- when next -------------------------------------------------------------------------------


def next_due(rollout: Rollout, *, now: datetime) -> datetime | None:
    """Return when the rollout wants to be looked at again; None: only when somebody orders.

    What usually wakes it (an attempt that ended, a child that completed) may get lost with its
    worker, so wherever it waits for machines it also looks by itself from time to time.
    """
    if rollout.status == Status.HALTED and selectors.is_in_flight(rollout):
        return now + WAITING
    if rollout.status == Status.HALTED and _rolls_back(rollout):
        return now
    if rollout.status == Status.HALTED and on_halt.is_left(rollout):
        return now + WAITING
    if rollout.status == Status.ROLLING_BACK:
        return now + WAITING
    if rollout.status != Status.RUNNING:
        return None
    wave = selectors.current_wave(rollout)
    start = headroom.next_start(rollout, now=now, poll=WAITING)
    instants = [start] if start else []
    if (following := surveillance.next_look(rollout)) is not None:
        instants.append(max(following, now + POLL))
    if wave is None:
        instants.append(selectors.surveillance_end(rollout) or now)
        return min(instants)
    if wave.status == WaveStatus.PENDING and selectors.refused_start(wave) is None:
        return now
    if wave.next_look_at is not None and wave.status in _LOOKED_AT:
        instants.append(max(wave.next_look_at, now + POLL))
    if (probe := probing.next_due(wave, now=now)) is not None:
        instants.append(probe)
    if wave.status == WaveStatus.SETTLING:
        instants.append(selectors.settles_at(wave) or now)
    if wave.status == WaveStatus.INSTALLING and (start is None or selectors.is_in_flight(rollout)):
        instants.append(now + WAITING)
    return min(instants, default=None)
