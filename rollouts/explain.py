"""Why does it wait, why was it halted: one answer for page, API, command and notification."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from fleet.lifecycle import State
from fleet.models import Machine
from rollouts import contamination, headroom, selectors
from rollouts.analysis.verdicts import Reason, Verdict
from rollouts.lifecycle import IN_FLIGHT, WAITING, AttemptStatus, Status, WaveStatus
from rollouts.models import Attempt, Rollout, Wave

#: Different caps that are named when machines wait for them.
MOST_REASONS = 3
#: Attempts that wait for a time which they know.
DEFERRED = Q(status=AttemptStatus.DEFERRED, forecast_at__isnull=False)
#: Machines that wait for triage and are named.
MOST_UNTRIAGED = 20

ENGINE = "the engine"
OPERATOR = "an operator"
TWO_PEOPLE = "an operator with a reason and a second person"


@dataclass(frozen=True)
class Condition:
    """One thing that has to become true: what is, what is needed, since when, whose move it is.

    `due` is when it becomes true by itself or somebody is reminded; None where neither is known.
    """

    what: str
    present: str
    needed: str
    since: datetime | None
    who: str
    due: datetime | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.present} → {self.needed} (up to {self.who})"


def explain(subject: Rollout | Wave | Attempt | Machine) -> list[Condition]:
    """List everything that a rollout, wave, attempt or machine waits for now.

    Empty exactly where nothing is awaited: the subject has ended, or the machine takes work.
    """
    match subject:
        case Rollout():
            return _rollout(subject)
        case Wave():
            return _wave(subject)
        case Attempt():
            return _attempt(subject)
        case Machine():
            return _machine(subject)


def in_words(conditions: Sequence[Condition]) -> str:
    """Return the same answer as text: one line per condition, as a command or message has it."""
    return "\n".join(map(str, conditions)) or "waits for nothing"


# --- rollout ---------------------------------------------------------------------------------


_BY_PERSON: Mapping[Status, tuple[str, str, str]] = {
    Status.DRAFT: ("submission", "submitted", "its author"),
    Status.AWAITING_APPROVAL: ("approval", "approved", "anybody but its author"),
    Status.APPROVED: ("start", "started", OPERATOR),
    Status.PAUSED: ("resumption", "resumed", OPERATOR),
    Status.HALTED: (
        "a decision after the halt",
        "rolled back, overridden or cancelled",
        "an operator, with a second person to override",
    ),
}


def _rollout(rollout: Rollout) -> list[Condition]:
    conditions = _by_status(rollout)
    if rollout.status == Status.RUNNING:
        wave = selectors.current_wave(rollout)
        conditions += _by_wave(rollout, wave) if wave is not None else [_surveillance(rollout)]
        conditions += _by_clock(rollout)
    return conditions + _by_crashes(rollout) + _by_triage(rollout)


def _by_status(rollout: Rollout) -> list[Condition]:
    if rollout.status == Status.ROLLING_BACK:
        return [_going_back(rollout)]
    words = _BY_PERSON.get(Status(rollout.status))
    if words is None:
        return []
    what, wanted, who = words
    since = selectors.standing_since(rollout)
    due = selectors.reminded_at(Status(rollout.status), since)
    present = _until_approval_ends(rollout)
    return [Condition(what, present, wanted + _while_approval_holds(rollout), since, who, due)]


def _until_approval_ends(rollout: Rollout) -> str:
    """Return the status; of an approved rollout with the time after which it is asked for anew."""
    ends = selectors.approval_ends(rollout)
    if rollout.status != Status.APPROVED or ends is None:
        return rollout.status
    return f"{rollout.status} until {ends:%Y-%m-%d %H:%M} UTC"


def _while_approval_holds(rollout: Rollout) -> str:
    """Say beforehand how long an approval will hold."""
    if rollout.status != Status.AWAITING_APPROVAL:
        return ""
    days = selectors.approval_holds(rollout).total_seconds() / 86_400
    return f", which then holds for {days:g} {'day' if days == 1 else 'days'}"


def _going_back(rollout: Rollout) -> Condition:
    since = selectors.standing_since(rollout)
    in_flight = rollout.attempts.filter(status__in=IN_FLIGHT).count()
    child = rollout.children.exclude(status__in=selectors.ENDED).order_by("-pk").first()
    if in_flight:
        present, who = f"{in_flight} attempts are in flight", "the machines"
    elif child is not None:
        present, who = f"{child} is {child.status}", f"whoever {child} waits for"
    else:
        present, who = "its roll back begins", ENGINE
    due = selectors.reminded_at(Status.ROLLING_BACK, since)
    return Condition("roll back", present, "every machine that goes back is done", since, who, due)


def _surveillance(rollout: Rollout) -> Condition:
    days = rollout.plan["surveillance_days"]
    return Condition(
        "surveillance",
        "released everywhere",
        f"{days:g} days without a halt",
        rollout.released_at,
        ENGINE,
        selectors.surveillance_end(rollout),
    )


# --- wave ------------------------------------------------------------------------------------


def _wave(wave: Wave) -> list[Condition]:
    """Say what a wave waits for; one that is not its rollout's turn waits for that."""
    if wave.status in selectors.WAVE_OVER:
        return []
    rollout = wave.rollout
    current = selectors.current_wave(rollout)
    if current is not None and current.pk != wave.pk:
        present = f"wave {current.number} is {current.status}"
        return [Condition(f"wave {current.number}", present, "over", current.started_at, ENGINE)]
    if rollout.status != Status.RUNNING:
        return _by_status(rollout) or [
            Condition("rollout", rollout.status, "running", rollout.finished_at, "nobody: it ended")
        ]
    return _by_wave(rollout, wave)


def _by_wave(rollout: Rollout, wave: Wave) -> list[Condition]:
    found = _WAVE_STATES[WaveStatus(wave.status)](rollout, wave)
    return found + _by_advisory(wave) if wave.status != WaveStatus.PENDING else found


def _pending(rollout: Rollout, wave: Wave) -> list[Condition]:
    refused = selectors.refused_start(wave)
    if refused is not None:
        return [
            Condition(
                f"start of wave {wave.number}",
                refused.reason,
                "skipped, or the rollout cancelled and drawn anew",
                refused.as_of,
                TWO_PEOPLE,
                selectors.reminded_at(WaveStatus.PENDING, refused.as_of),
            )
        ]
    since = selectors.standing_since(rollout)
    return [Condition(f"start of wave {wave.number}", "due", "started", since, ENGINE, since)]


def _installing(rollout: Rollout, wave: Wave) -> list[Condition]:
    found = _by_install(wave)
    in_flight = rollout.attempts.filter(status__in=IN_FLIGHT)
    if not found:
        present = f"{in_flight.count()} attempts are in flight"
        last = in_flight.order_by("-deadline_at").values_list("deadline_at", flat=True).first()
        what, who = f"installs of wave {wave.number}", "the machines, up to their deadlines"
        found = [Condition(what, present, "every attempt ended", wave.started_at, who, last)]
    return found


def _by_install(wave: Wave) -> list[Condition]:
    waiting = wave.attempts.filter(status__in=WAITING).count()
    if not waiting:
        return []
    since = wave.started_at
    return [
        Condition(
            f"installs of wave {wave.number}",
            f"{waiting} attempts wait{_in_the_way(wave)}",
            "machines in service, within the caps of the plan",
            since,
            "the scheduler, and whoever owns the machines",
            since and selectors.reminded_at(WaveStatus.INSTALLING, since),
        )
    ]


def _in_the_way(wave: Wave) -> str:
    """Say what keeps the machines that are ready; no waiting mends what is blocked."""
    block = wave.blocks.filter(clock_start=None, started_at__isnull=False).first()
    if block is None:
        return ""
    # Who is deferred has its own words: a window, a freeze, or the job that it waits for.
    deferred = wave.attempts.filter(status=AttemptStatus.DEFERRED).exclude(detail="")
    said = deferred.order_by("detail").values_list("detail", flat=True).distinct()[:99]
    ready = headroom.ready_attempts(block, epoch=wave.rollout.epoch, leave_out=DEFERRED)
    words = {*said, *headroom.startable(block, ready).waiting.values()}
    reasons = sorted({word for word in words if word.startswith("blocked: ")} or words)
    named = "; ".join(reasons[:MOST_REASONS]) + ("; …" if len(reasons) > MOST_REASONS else "")
    return f": {named}" if named else ""


def _settling(rollout: Rollout, wave: Wave) -> list[Condition]:
    hours = rollout.plan["burn_in_hours"]
    end = selectors.settles_at(wave)
    what, wanted = f"burn-in of wave {wave.number}", f"{hours:g} hours after the last install"
    return [Condition(what, "not over", wanted, wave.started_at, ENGINE, end)]


def _held(rollout: Rollout, wave: Wave) -> list[Condition]:
    since = selectors.wave_since(wave)
    return [
        Condition(
            f"wave {wave.number}",
            "held: unproven at the end of its window",
            "advanced, skipped or rolled back",
            since,
            TWO_PEOPLE,
            selectors.reminded_at(WaveStatus.HELD, since),
        )
    ]


def _halted(rollout: Rollout, wave: Wave) -> list[Condition]:
    since = selectors.wave_since(wave)
    return [Condition(f"wave {wave.number}", "halted", "a new window", since, OPERATOR)]


def _observing(rollout: Rollout, wave: Wave) -> list[Condition]:
    evaluation = selectors.latest_evaluation(wave)
    if evaluation is None:
        at = wave.next_look_at
        what, since = f"wave {wave.number}", wave.started_at
        return [Condition(what, "no look taken yet", "a first look", since, ENGINE, at)]
    conditions = [
        Condition(
            f"guardrail {g['name']}",
            f"{g['verdict']}: {g['reason']}",
            Verdict.NOT_WORSE.value,
            evaluation.as_of,
            "the engine, as evidence comes in",
            wave.window_end,
        )
        for g in evaluation.guardrails
        if g["required"] and g["verdict"] != Verdict.NOT_WORSE
    ]
    conditions += [
        Condition(
            f"workloads of wave {wave.number}",
            seen["words"],
            "enough machines of both arms have run them",
            evaluation.as_of,
            "the scheduler, and whoever submits jobs",
            wave.window_end,
        )
        for seen in evaluation.inputs.get("workload_conditions", ())
        if not seen["is_met"]
    ]
    return conditions + _by_advice(wave) or _by_last_word(wave)


def _by_advice(wave: Wave) -> list[Condition]:
    advice = selectors.advised_widen(wave)
    if advice is not None and not contamination.widens_by_itself(wave):
        return [
            Condition(
                f"wave {wave.number}",
                "the engine advises to widen",
                "advanced",
                advice.as_of,
                OPERATOR,
                selectors.reminded_at(WaveStatus.OBSERVING, advice.as_of),
            )
        ]
    latest = selectors.standing_decisions(wave).first()
    if latest is not None and latest.reason_code == Reason.REVIEW:
        due = selectors.reminded_at(WaveStatus.OBSERVING, latest.as_of)
        return [Condition("review", latest.reason, "acknowledged", latest.as_of, OPERATOR, due)]
    return []


def _by_last_word(wave: Wave) -> list[Condition]:
    """Where no guardrail is in the way: what the engine said last, and does next by itself."""
    latest = selectors.standing_decisions(wave).first()
    if latest is None:
        since, at = wave.clock_start, wave.next_look_at
        return [Condition(f"wave {wave.number}", "no decision yet", "a look", since, ENGINE, at)]
    present = f"{latest.kind}: {latest.reason}"
    at = wave.next_look_at or latest.as_of
    what = f"decision on wave {wave.number}"
    return [Condition(what, present, "carried out, or looked at again", latest.as_of, ENGINE, at)]


def _by_advisory(wave: Wave) -> list[Condition]:
    """Say why the engine will not widen this wave by itself, whatever the evidence."""
    return [
        Condition(
            f"wave {wave.number} is advisory",
            reason,
            "a widen that a person confirms",
            wave.started_at,
            OPERATOR,
        )
        for reason in contamination.advisory_because(wave)
    ]


_WAVE_STATES: Mapping[WaveStatus, Callable[[Rollout, Wave], list[Condition]]] = {
    WaveStatus.PENDING: _pending,
    WaveStatus.INSTALLING: _installing,
    WaveStatus.SETTLING: _settling,
    WaveStatus.OBSERVING: _observing,
    WaveStatus.HELD: _held,
    WaveStatus.HALTED: _halted,
}


def _by_clock(rollout: Rollout) -> list[Condition]:
    return [
        Condition("clock", str(hold.jump), "acknowledged", hold.at, OPERATOR)
        for hold in selectors.clock_holds(rollout)
    ]


def _by_crashes(rollout: Rollout) -> list[Condition]:
    last = rollout.decisions.order_by("-pk").first()
    if last is None or last.reason_code != Reason.EVALUATION_CRASHES:
        return []
    who = "whoever runs Coalmine; it is tried again by itself"
    due = rollout.due_at
    return [Condition("evaluation", last.reason, "an evaluation that ends", last.as_of, who, due)]


def _by_triage(rollout: Rollout) -> list[Condition]:
    lost = selectors.untriaged(rollout)
    named = [_triage(attempt) for attempt in lost[:MOST_UNTRIAGED]]
    more = lost.count() - len(named) if len(named) == MOST_UNTRIAGED else 0
    return [*named, *_more_triage(more)]


def _triage(attempt: Attempt) -> Condition:
    return Condition(
        f"triage of {attempt.machine.name}",
        "never returned",
        "recovered, coincident hardware, or bricked",
        attempt.finished_at,
        "triage",
    )


def _more_triage(count: int) -> Iterable[Condition]:
    if count > 0:
        what, wanted = f"triage of {count} machines more", "a word on each"
        yield Condition(what, "never returned", wanted, None, "triage")


# --- attempt ---------------------------------------------------------------------------------

#: What an attempt waits for in each step of its way, and who makes it go on.
_STEPS: Mapping[AttemptStatus, tuple[str, str]] = {
    AttemptStatus.DRAINING: ("its work ended, and its versions read", "the scheduler"),
    AttemptStatus.STAGING: ("the images written", "the installer"),
    AttemptStatus.ACTIVATING: ("the images activated", "the installer"),
    AttemptStatus.AWAITING_REBOOT: ("an answer after a new boot", "the machine"),
    AttemptStatus.VERIFYING: ("the intended versions, read back several times", "the machine"),
}


def _attempt(attempt: Attempt) -> list[Condition]:
    status = AttemptStatus(attempt.status)
    if status in _STEPS:
        wanted, who = _STEPS[status]
        since = selectors.attempt_since(attempt)
        due = attempt.deadline_at
        return [Condition(f"attempt on {attempt.machine}", status, wanted, since, who, due)]
    if status in WAITING:
        return _waiting(attempt)
    if status is AttemptStatus.NEVER_RETURNED and not attempt.triage:
        return [_triage(attempt)]
    return []


def _waiting(attempt: Attempt) -> list[Condition]:
    rollout, since = attempt.rollout, selectors.attempt_since(attempt)
    if rollout.status != Status.RUNNING:
        return _by_status(rollout)
    lost = selectors.untriaged(rollout).first()
    if lost is not None:
        return [_triage(lost)]
    if attempt.machine.state != State.IN_SERVICE or not attempt.machine.may_take_work:
        return _machine(attempt.machine)
    ready = headroom.ready_attempts(attempt.block, epoch=rollout.epoch, leave_out=DEFERRED)
    found = headroom.startable(attempt.block, ready)
    name, wanted, who = attempt.machine.name, "room within the caps of the plan", ENGINE
    present = found.waiting.get(name) or attempt.detail or "due"
    return [Condition(f"start on {name}", present, wanted, since, who, attempt.forecast_at)]


# --- machine ---------------------------------------------------------------------------------


def _machine(machine: Machine) -> list[Condition]:
    """Say what keeps a machine from work: its state, every cordon, the attempt on it."""
    conditions = []
    if machine.state == State.RETIRED:
        return []
    if machine.state != State.IN_SERVICE:
        conditions.append(
            Condition(
                "state",
                machine.state,
                machine.next_step or State.IN_SERVICE,
                machine.entered_at,
                machine.owner_role,
                machine.deadline_at,
            )
        )
    conditions += [
        Condition("cordon", cordon.reason, "lifted", cordon.since, cordon.owner)
        for cordon in machine.cordons.filter(lifted_at=None).order_by("since", "pk")
    ]
    flying = Attempt.objects.filter(machine=machine, status__in=IN_FLIGHT)
    for attempt in flying.select_related("machine", "rollout"):
        conditions += _attempt(attempt)
    return conditions
