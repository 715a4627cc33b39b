"""Run checks: who is at one, and what it came to. Each result is kept once, and a pass is a pass.

A check that came to a value is not run again until it passes: a failed one ends the gate, and the
gate may be tried once more as a whole.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from fleet import clock
from fleet.errors import CheckClaimed, CheckRefused, IllegalGateMove, ResultConflict
from fleet.gate_state import CheckState, check_states, norm_of, present_stage
from fleet.lifecycle import State, Trigger
from fleet.models import CheckResult, Gate, GateCheck, Machine
from fleet.repair import gating
from fleet.repair.gating import Judgement, Stage, Status
from fleet.services.evidence import StoredFile, attach_evidence
from fleet.services.gates.course import refuse_void, settle
from fleet.services.gates.records import closed, lock
from fleet.services.lifecycle import move_machine

#: Wall time after which a check whose runner fell silent is open to another one.
CLAIM = timedelta(minutes=15)
_MOST_NOTE, _MOST_REFERENCE, _MOST_KEY, _MOST_ACTOR = 800, 500, 200, 100


@dataclass(frozen=True)
class Outcome:
    """What a run of a check came to, as it is reported.

    `has_failed` says that it came to nothing: it crashed, or was cut short. `reference` tells where
    evidence lies that is kept elsewhere; `files` are in the store already.
    """

    value: float | None = None
    unit: str = ""
    has_failed: bool = False
    note: str = ""
    reference: str = ""
    files: Sequence[StoredFile] = field(default=())


# --- claims ------------------------------------------------------------------


def claim_check(
    check: GateCheck, *, actor: str, now: datetime, user: User | None = None, token: str = ""
) -> GateCheck:
    """Take a check, for nobody else to run it meanwhile; with its `token` take it for longer.

    Raises
    ------
    IllegalGateMove
        If its gate is over, or void now.
    CheckRefused
        If it is not its turn, has passed, or is made by the product itself.
    CheckClaimed
        If somebody else is at it.
    """
    refuse_void(check.gate, now=now)
    return _claim(check, actor=_clean(actor, "actor", _MOST_ACTOR), now=now, user=user, token=token)


@transaction.atomic
def _claim(
    check: GateCheck, *, actor: str, now: datetime, user: User | None, token: str
) -> GateCheck:
    gate = lock(check.gate)
    _its_turn(gate, check)
    wall = clock.steady_time()
    own = GateCheck.objects.filter(pk=check.pk)
    new = token or secrets.token_hex(16)
    free = Q(claim_token=token) if token else _free(wall)
    claimed = own.filter(free, results__is_passed__isnull=True)
    if not claimed.update(claimed_by=actor, claim_token=new, claimed_until=wall + CLAIM):
        raise CheckClaimed(_who_has(own.get(), wall))
    _begin(gate, actor=actor, user=user, now=now)
    return own.select_related("gate__machine").get()


def _free(wall: datetime) -> Q:
    """Match checks that nobody is at: never claimed, run out, or of a wall that was set back."""
    return Q(claimed_until=None) | Q(claimed_until__lt=wall) | Q(claimed_until__gt=wall + 2 * CLAIM)


def is_claimed(check: GateCheck, *, wall: datetime) -> bool:
    """Tell whether somebody is at the check now."""
    return check.claimed_until is not None and wall <= check.claimed_until <= wall + 2 * CLAIM


def _who_has(check: GateCheck, wall: datetime) -> str:
    if is_claimed(check, wall=wall):
        return f"{check.name} is claimed by {check.claimed_by} until {check.claimed_until:%H:%M:%S}"
    return f"the claim of {check.name} has run out; claim it again"


@transaction.atomic
def give_back_check(check: GateCheck, *, token: str) -> None:
    """Let somebody else take the check; nothing is said about what it came to."""
    own = GateCheck.objects.filter(pk=check.pk, claim_token=token).exclude(claim_token="")
    if not own.update(claimed_by="", claim_token="", claimed_until=None):
        raise CheckClaimed(_who_has(check, clock.steady_time()))


def _begin(gate: Gate, *, actor: str, user: User | None, now: datetime) -> None:
    if gate.made_for or gate.machine.state != State.AWAITING_VALIDATION:
        return
    reason = f"gate {gate.pk}"
    move_machine(
        gate.machine, Trigger.START_VALIDATION, actor=actor, user=user, now=now, reason=reason
    )
    hours = gating.run_hours(gate.plan.checks)
    if hours and gate.machine.deadline_at is not None:
        # A check that takes a day is not overdue after four hours.
        later = gate.machine.deadline_at + timedelta(hours=hours)
        Machine.objects.filter(pk=gate.machine_id).update(deadline_at=later)
        gate.machine.deadline_at = later


def _its_turn(gate: Gate, check: GateCheck) -> list[CheckState]:
    """Refuse a check that cannot be run now, and say what comes first."""
    states = check_states(gate)
    own = next(one for one in states if one.check.pk == check.pk)
    needed = Status.OBSERVING if own.stage is Stage.OBSERVATION else Status.OPEN
    if gate.status in (Status.OPEN, Status.OBSERVING) and own.is_computed:
        raise CheckRefused(f"{check.name} is made by the product itself, of what it reads back")
    if gate.status not in (Status.OPEN, Status.OBSERVING):
        raise IllegalGateMove(closed(gate))
    if own.is_passed:
        raise CheckRefused(f"{check.name} has passed already")
    stage = present_stage(states)
    first = [one.check.name for one in states if one.stage is stage and not one.is_passed]
    if gate.status != needed or own.stage is not stage:
        raise CheckRefused(
            f"{check.name} is out of order: the gate is {gate.status} and first needs "
            f"{', '.join(first)}"
        )
    if check.needs_partner and gate.partner_id is None:
        raise CheckRefused(f"{check.name} runs over several machines; reserve a partner first")
    return states


# --- results -----------------------------------------------------------------


def report_result(
    check: GateCheck,
    outcome: Outcome,
    *,
    actor: str,
    now: datetime,
    user: User | None = None,
    token: str = "",
    key: str = "",
) -> CheckResult:
    """Keep what a check came to, and take the gate on.

    A missing value, and missing evidence where the plan asks for it, fail the check.

    Parameters
    ----------
    token : str
        Of the claim; an automation has one. Without it, nobody may be at the check.
    key : str
        An automation's own name of the result. The same key twice is the same result.

    Raises
    ------
    ResultConflict
        If the key was used for another result of this check.
    IllegalGateMove, CheckRefused, CheckClaimed
        If nothing of it can be taken; nothing is kept then.
    """
    actor = _clean(actor, "actor", _MOST_ACTOR)
    key = _clean(key, "key", _MOST_KEY)
    _check_form(check, outcome)
    if key and not token:
        raise CheckClaimed(f"{check.name}: an automation reports under its claim; token is missing")
    if told := _told_before(check, outcome, key=key):
        return told
    refuse_void(check.gate, now=now)
    return _report(check, outcome, actor=actor, now=now, user=user, token=token, key=key)


@transaction.atomic
def _report(
    check: GateCheck,
    outcome: Outcome,
    *,
    actor: str,
    now: datetime,
    user: User | None,
    token: str,
    key: str,
) -> CheckResult:
    gate = lock(check.gate)
    if told := _told_before(check, outcome, key=key):
        return told  # of two who report it at once, the second one waited for the row
    _its_turn(gate, check)
    _check_observed(gate, check, outcome, now=now)
    _hold_claim(check, token=token)
    _begin(gate, actor=actor, user=user, now=now)
    judged = _judged(gate, check, outcome, now=now)
    result = CheckResult.objects.create(
        gate_check=check,
        is_passed=judged.is_passed,
        value=outcome.value,
        unit=outcome.unit,
        threshold=judged.threshold[:200],
        note="; ".join(filter(None, (judged.note, outcome.note)))[:1000],
        reference=outcome.reference,
        actor=actor,
        user=user,
        source_key=key,
        at=now,
        recorded_at=timezone.now(),
    )
    for file in outcome.files:
        attach_evidence(file, actor=actor, user=user, now=now, result=result)
    settle(gate, now=now, actor=actor, user=user)
    return result


def _judged(gate: Gate, check: GateCheck, outcome: Outcome, *, now: datetime) -> Judgement:
    norm = norm_of(check, machine=gate.machine, now=now) if check.rule["kind"] == "norm" else ()
    judged = gating.judge(outcome.value, rule=check.rule, unit=check.unit, norm=norm)
    if outcome.has_failed:
        return Judgement(False, judged.threshold, "the run itself failed")
    if check.needs_evidence and not (outcome.files or outcome.reference):
        return Judgement(False, judged.threshold, "no evidence was given")
    return judged


def _check_observed(gate: Gate, check: GateCheck, outcome: Outcome, *, now: datetime) -> None:
    """Refuse what an observation came to while it goes on; that it broke off may be told early."""
    until = gate.observe_until
    if check.stage != Stage.OBSERVATION or outcome.has_failed or until is None or now >= until:
        return
    raise CheckRefused(
        f"{check.name} tells of the whole observation, which ends {until:%Y-%m-%d %H:%M} UTC"
    )


def _told_before(check: GateCheck, outcome: Outcome, *, key: str) -> CheckResult | None:
    """Return the result of this key, if it says the same.

    Raises
    ------
    ResultConflict
        If it says something else.
    """
    told = check.results.filter(source_key=key).first() if key else None
    if told is None:
        return None
    if (told.value, told.unit, told.reference) != (outcome.value, outcome.unit, outcome.reference):
        raise ResultConflict(f"key {key!r} of {check.name} was used before, for another result")
    return told


def _hold_claim(check: GateCheck, *, token: str) -> None:
    """Give up the claim with the result; refuse a token that holds none."""
    wall = clock.steady_time()
    own = GateCheck.objects.filter(pk=check.pk)
    if token:
        held = own.filter(claim_token=token, claimed_until__gte=wall)
    else:
        held = own.filter(_free(wall))
    if not held.update(claimed_by="", claim_token="", claimed_until=None):
        raise CheckClaimed(_who_has(own.get(), wall))


def _check_form(check: GateCheck, outcome: Outcome) -> None:
    """Refuse what cannot be a result of this check, whatever it came to."""
    value = outcome.value
    if value is not None and not math.isfinite(value):
        raise CheckRefused(f"{check.name}: the value is {value}; a finite number is accepted")
    if value is not None and outcome.unit != check.unit:
        unit = check.unit or "none"
        raise CheckRefused(f"{check.name}: the unit is {outcome.unit!r}; accepted: {unit}")
    _clean(outcome.note.replace("\n", " "), "note", _MOST_NOTE)
    _clean(outcome.reference, "reference", _MOST_REFERENCE)


def _clean(text: str, name: str, most: int) -> str:
    """Refuse text that is too long or holds what is not shown, such as a change of direction."""
    if len(text) > most or not text.isprintable():
        raise CheckRefused(f"{name}: {text[:40]!r}; at most {most} printable characters accepted")
    return text
