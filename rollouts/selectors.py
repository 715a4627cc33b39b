"""Reads: what is due, what happened, what a page or a client asks for."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import (
    BigIntegerField,
    Count,
    Exists,
    F,
    Max,
    Min,
    OuterRef,
    Prefetch,
    Q,
    QuerySet,
    Subquery,
    Window,
)
from django.db.models.functions import Coalesce, Lag

from fleet import clock, leases
from fleet.lifecycle import State
from fleet.models import Cordon, FirmwareBundle, FirmwareImage, Observation, StateChange
from rollouts import planning
from rollouts.analysis import surveillance
from rollouts.analysis.policy import Metric
from rollouts.analysis.pooling import pooled_z, upper_tail
from rollouts.analysis.verdicts import DecisionKind, Reason
from rollouts.lifecycle import (
    FAILURES,
    IN_FLIGHT,
    PATIENCE,
    WAITING,
    WAVE_PATIENCE,
    AttemptStatus,
    Status,
    Trigger,
    WaveStatus,
    WaveTrigger,
)
from rollouts.models import (
    Assignment,
    Attempt,
    Block,
    ClockHold,
    Decision,
    Evaluation,
    Membership,
    Order,
    Preview,
    Reminder,
    Rollout,
    Transition,
    Wave,
)

#: Statuses in which the sweep looks at a rollout.
LIVE = (Status.RUNNING, Status.HALTED, Status.ROLLING_BACK)
#: Statuses in which a rollout is over.
ENDED = (Status.ROLLED_BACK, Status.COMPLETED, Status.CANCELLED)
#: Reasons of a later decision that take back the advice to widen.
_CONTRADICTS = (
    Reason.HARMFUL,
    Reason.HARD_STOP,
    Reason.REVIEW,
    Reason.INTERFERENCE,
    Reason.ENVIRONMENT,
    Reason.NO_DATA,
)
#: Moves after which the next wave begins; the first wave follows the rollout's own start.
_LET_THE_NEXT_BEGIN = (
    Trigger.START,
    WaveTrigger.WIDEN,
    WaveTrigger.ADVANCE,
    WaveTrigger.SKIP,
)
#: A wave in one of these is over.
WAVE_OVER = (WaveStatus.WIDENED, WaveStatus.SKIPPED)


def due_rollouts(now: datetime, *, limit: int = 500) -> list[int]:
    """Return the rollouts that want to be looked at and that no worker holds."""
    return list(
        Rollout.objects.filter(
            leases.free(wall=clock.steady_time()), due_at__lte=now, status__in=LIVE
        )
        .order_by("due_at")
        .values_list("pk", flat=True)[:limit]
    )


def due_attempts(now: datetime, *, limit: int = 5000) -> list[int]:
    """Return the attempts whose next step is due and that no worker holds."""
    return list(
        Attempt.objects.filter(leases.free(wall=clock.steady_time()), due_at__lte=now)
        .order_by("due_at")
        .values_list("pk", flat=True)[:limit]
    )


def has_due_work(now: datetime) -> bool:
    """Tell whether any row is due or any worker still holds one (for the stepped clock)."""
    held = leases.held(wall=clock.steady_time())
    return (
        Rollout.objects.filter(held | Q(due_at__lte=now, status__in=LIVE)).exists()
        or Attempt.objects.filter(held | Q(due_at__lte=now)).exists()
    )


def next_due_at() -> datetime | None:
    """Return the next instant at which some row is due; None when nothing waits for time."""
    instants = [
        Rollout.objects.filter(status__in=LIVE).aggregate(at=Min("due_at"))["at"],
        Attempt.objects.aggregate(at=Min("due_at"))["at"],
    ]
    return min((at for at in instants if at is not None), default=None)


def current_wave(rollout: Rollout) -> Wave | None:
    """Return the first wave that is not over, or None when all are."""
    return rollout.waves.exclude(status__in=WAVE_OVER).order_by("number").first()


def cause_of_next_wave(rollout: Rollout) -> Decision | Order | None:
    """Return why the next wave may begin: what ended the one before it, or the start."""
    moves = rollout.transitions.filter(trigger__in=_LET_THE_NEXT_BEGIN)
    return _cause(moves.exclude(decision=None, order=None))


def cause_of(wave: Wave) -> Decision | Order | None:
    """Return why a wave began."""
    return _cause(wave.transitions.filter(trigger=WaveTrigger.START))


def _cause(moves: QuerySet[Transition]) -> Decision | Order | None:
    last = moves.select_related("decision", "order").order_by("-pk").first()
    return (last.decision or last.order) if last else None


def waves_of(rollout: Rollout) -> QuerySet[Wave]:
    """Return the waves in order."""
    return rollout.waves.order_by("number")


def preview_of(rollout: Rollout) -> Preview | None:
    """Return the preview that counts: the newest of a draft, the promised one of a plan."""
    seen = rollout.previews.defer("members")
    if rollout.plan_digest and rollout.status != Status.DRAFT:
        return seen.filter(digest=rollout.plan_digest).first()
    return seen.first()


def digest_to_order(rollout: Rollout) -> str:
    """Return the digest that an order binds itself to: of the last preview, or of the plan."""
    if rollout.status != Status.DRAFT:
        return rollout.plan_digest
    seen = preview_of(rollout)
    return seen.digest if seen else ""


def shown_forecast(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a preview's forecast as `forecast_of` gives that of a submitted rollout."""
    return [
        {
            **word,
            "guardrails": [{"name": name, **row} for name, row in word["guardrails"].items()],
        }
        for word in summary.get("forecast", ())
        if word.get("guardrails")
    ]


def forecast_of(rollout: Rollout) -> list[dict[str, Any]]:
    """Return the planner's word on each judged wave: what an approver reads before the start.

    One row per guardrail: what the wave halts on (at 50, 80 and 90 % power), what it can rule
    out, and when, or what it lacks. Empty before submission.
    """
    judged = waves_of(rollout).filter(kind=Wave.Kind.CANARY)
    return [
        {
            "number": wave.number,
            **{
                key: wave.forecast.get(key)
                for key in (
                    "canaries",
                    "controls",
                    "days_before",
                    "read_from",
                    "summary",
                    "a_a_check",
                )
            },
            "guardrails": [
                {"name": name, **row} for name, row in wave.forecast["guardrails"].items()
            ],
        }
        for wave in judged
        if wave.forecast.get("guardrails")  # rollouts of earlier versions have figures only
    ]


def pauses(rollout: Rollout) -> list[tuple[datetime, datetime]]:
    """Return the rollout's pauses that are over, in order."""
    moves = rollout.transitions.filter(wave=None).order_by("pk").values_list("new_status", "at")
    over, began = [], None
    for status, at in moves:
        if status == Status.PAUSED and began is None:
            began = at
        elif status != Status.PAUSED and began is not None:
            over.append((began, at))
            began = None
    return over


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


def turning_points(rollout: Rollout, *, limit: int = 200) -> list[Decision]:
    """Return the decisions that changed the one before in kind or reason code, oldest first."""
    told = rollout.decisions.select_related("wave").annotate(own_wave=Coalesce("wave_id", 0))
    keys = ("own_wave", "kind", "reason_code")
    before = told.annotate(**{f"{key}_before": Window(Lag(key), order_by="pk") for key in keys})
    is_same = Q(**{key: F(f"{key}_before") for key in keys})
    changed = before.filter(Q(kind_before=None) | ~is_same).order_by("-pk")
    return list(reversed(changed[:limit]))


def readiness_of(
    bundle: FirmwareBundle, versions: Mapping[int, Mapping[str, str]], *, plan: Mapping[str, Any]
) -> planning.Readiness[int]:
    """Return which machines the bundle can go onto, and which of them cannot go back from it.

    `versions` maps machine ids to active versions, as `fleet.selectors.versions_now` gives them.
    """
    wanted = [place.image for place in bundle.places.select_related("image").order_by("position")]
    kept = FirmwareImage.objects.filter(kind__in={image.kind for image in wanted})
    return planning.readiness(
        versions,
        bundle=[_image(image) for image in wanted],
        images=[_image(image) for image in kept],
        allow_unordered=plan.get("allow_unordered", False),
    )


def held_machines(rollout: Rollout) -> QuerySet[Cordon]:
    """Return the cordons that stand in the rollout's own name, since a halt."""
    return Cordon.objects.filter(owner=rollout.actor, lifted_at=None).select_related("machine")


def cannot_go_back(rollout: Rollout, places: Iterable[Assignment]) -> dict[int, str]:
    """Return which of these machines could not go back to what ran before, and why.

    By what was read back before the update and by the images that are kept now; at planning it
    could only be foretold.
    """
    versions = {place.machine_id: place.previous_versions for place in places}
    ready = readiness_of(rollout.bundle, versions, plan=rollout.plan)
    return {**ready.blocked, **ready.irreversible}


def _image(image: FirmwareImage) -> planning.Image:
    return planning.Image(
        kind=image.kind,
        version=image.version,
        scheme=image.scheme,
        vendor=image.vendor,
        activation=image.activation,
        is_downgrade_allowed=image.is_downgrade_allowed,
        floor_version=image.floor_version,
    )


def reopened_at(wave: Wave) -> datetime | None:
    """Return when the wave's window was opened anew after an override, or None."""
    last = wave.transitions.filter(trigger=WaveTrigger.REOPEN).order_by("-pk").first()
    return last.at if last else None


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


def attempt_counts(rollout: Rollout) -> dict[str, int]:
    """Return how many attempts stand in each status."""
    counts = rollout.attempts.values("status").annotate(n=Count("pk")).order_by("status")
    return {row["status"]: row["n"] for row in counts}


def machines_exposed(rollout: Rollout) -> int:
    """Count machines on which an attempt got past draining: they ever saw the new bundle."""
    return (
        rollout.attempts.exclude(status__in=[*WAITING, AttemptStatus.DRAINING])
        .exclude(status=AttemptStatus.CALLED_OFF)
        .values("machine")
        .distinct()
        .count()
    )


def lost_machine_hours(rollout: Rollout, *, until: datetime) -> float:
    """Return the machine-hours out of service that this rollout caused, up to `until`.

    A machine is out from the rollout's drain until its next move into service.
    """
    changes = StateChange.objects.filter(
        machine__in=rollout.attempts.values("machine"), at__lte=until
    ).order_by("machine", "at", "pk")
    mine = f"rollout:{rollout.pk}"
    seconds, left_at, machine = 0.0, None, None
    rows = changes.values_list("machine", "new_state", "at", "actor").iterator(chunk_size=5000)
    for row_machine, state, at, actor in rows:
        if row_machine != machine:
            seconds += _open_seconds(left_at, until)
            machine, left_at = row_machine, None
        if state == State.DRAINING and actor == mine and left_at is None:
            left_at = at
        elif state == State.IN_SERVICE and left_at is not None:
            seconds += (at - left_at).total_seconds()
            left_at = None
    return (seconds + _open_seconds(left_at, until)) / 3600


def _open_seconds(left_at: datetime | None, until: datetime) -> float:
    return 0.0 if left_at is None else max((until - left_at).total_seconds(), 0.0)


def arm_sizes(rollout: Rollout) -> dict[int, dict[str, int]]:
    """Return, per wave number, how many machines each arm has."""
    rows = (
        Membership.objects.filter(wave__rollout=rollout)
        .values("wave__number", "arm")
        .annotate(n=Count("pk"))
        .order_by("wave__number")
    )
    sizes: dict[int, dict[str, int]] = {}
    for row in rows:
        sizes.setdefault(row["wave__number"], {})[row["arm"]] = row["n"]
    return sizes


def timeline(rollout: Rollout, *, limit: int = 100) -> list[dict[str, Any]]:
    """Return the newest orders, moves and turning decisions as one list, newest first."""
    orders = rollout.orders.select_related("actor", "second_person").order_by("-pk")[:limit]
    moves = rollout.transitions.select_related("wave").order_by("-pk")[:limit]
    holds = rollout.clock_holds.select_related("jump").order_by("-pk")[:limit]
    rows = [
        *_order_rows(orders),
        *_move_rows(moves),
        *_clock_rows(holds),
        *_decision_rows(reversed(turning_points(rollout))),
    ]
    return sorted(rows, key=lambda row: row["at"], reverse=True)[:limit]


def _order_rows(orders: Iterable[Order]) -> Iterable[dict[str, Any]]:
    for order in orders:
        yield {
            "at": order.at,
            "kind": "order",
            "what": order.kind,
            "who": str(order.actor),
            "reason": order.reason,
            "wave": order.parameters.get("wave"),
        }


def _move_rows(moves: Iterable[Transition]) -> Iterable[dict[str, Any]]:
    for transition in moves:
        yield {
            "at": transition.at,
            "kind": "move",
            "who": "",
            "what": f"{transition.old_status} → {transition.new_status}",
            "reason": transition.note,
            "wave": transition.wave.number if transition.wave else None,
        }


def _clock_rows(holds: Iterable[ClockHold]) -> Iterable[dict[str, Any]]:
    for hold in holds:
        yield {
            "at": hold.at,
            "kind": "clock",
            "who": hold.jump.host,
            "what": str(hold.jump),
            "reason": "windows keep their length; widening waits until somebody has looked",
            "wave": None,
        }


def _decision_rows(decisions: Iterable[Decision]) -> Iterable[dict[str, Any]]:
    for decision in decisions:
        yield {
            "at": decision.as_of,
            "kind": "decision",
            "who": "engine",
            "what": f"{decision.kind} ({decision.reason_code})",
            "reason": decision.reason,
            "wave": decision.wave.number if decision.wave else None,
        }


def has_leases() -> bool:
    """Tell whether some worker has taken a row and not given it back."""
    return (
        Rollout.objects.exclude(leased_until=None).exists()
        or Attempt.objects.exclude(leased_until=None).exists()
    )


def is_anything_in_flight() -> bool:
    """Tell whether any attempt of any rollout is being worked on."""
    return Attempt.objects.filter(status__in=IN_FLIGHT).exists()


def clock_holds(rollout: Rollout) -> list[ClockHold]:
    """Return the settings of the clock that hold the rollout's widening: nobody has looked yet."""
    holds = list(rollout.clock_holds.select_related("jump").order_by("pk"))
    if not holds:
        return []
    said = rollout.orders.filter(kind=Order.Kind.ACKNOWLEDGE).values_list("parameters", flat=True)
    seen = {jump for parameters in said for jump in parameters.get("clock_jumps", [])}
    return [hold for hold in holds if hold.jump_id not in seen]


def standing_since(rollout: Rollout) -> datetime:
    """Return since when the rollout has had its present status."""
    last = rollout.transitions.filter(wave=None).order_by("-pk").first()
    return last.at if last else rollout.created_at


def approval_holds(rollout: Rollout) -> timedelta:
    """Return how long an approval of the plan holds."""
    return timedelta(days=rollout.plan.get("approval_days", 7.0))


def approval_ends(rollout: Rollout) -> datetime | None:
    """Return until when the rollout's approval holds; None where nobody has approved it."""
    return rollout.approved_at + approval_holds(rollout) if rollout.approved_at else None


def wave_since(wave: Wave) -> datetime | None:
    """Return since when the wave has had its present status; None if it never moved."""
    last = wave.transitions.order_by("-pk").first()
    return last.at if last else wave.started_at


def attempt_since(attempt: Attempt) -> datetime:
    """Return since when the attempt has had its present status."""
    last = attempt.events.order_by("-pk").first()
    return last.at if last else attempt.created_at


def reminded_at(status: Status | WaveStatus, since: datetime | None) -> datetime | None:
    """Return when people are reminded of what has stood so since then; None where never."""
    if isinstance(status, WaveStatus):
        patience = WAVE_PATIENCE.get(status)
    else:
        patience = PATIENCE.get(status)
    return None if patience is None or since is None else since + patience


def standing_reminders(*, limit: int = 20) -> list[Reminder]:
    """Return the newest reminder of whatever still stands as it said, the newest first."""
    later = Reminder.objects.filter(
        rollout=OuterRef("rollout"), subject=OuterRef("subject"), pk__gt=OuterRef("pk")
    )
    newest = Reminder.objects.filter(~Exists(later)).exclude(rollout__status__in=ENDED)
    waves = Prefetch("rollout__waves", Wave.objects.only("rollout", "number", "status"))
    found = newest.select_related("rollout").prefetch_related(waves)
    rows = found.order_by("-pk")[: 5 * limit]
    return [reminder for reminder in rows if _still_stands(reminder)][:limit]


def _still_stands(reminder: Reminder) -> bool:
    rollout = reminder.rollout
    if reminder.subject == "rollout":
        return bool(rollout.status == reminder.status)
    number = int(reminder.subject.removeprefix("wave "))
    standing = {wave.number: wave.status for wave in rollout.waves.all()}
    return rollout.status == Status.RUNNING and standing.get(number) == reminder.status


def settles_at(wave: Wave) -> datetime | None:
    """Return when the last block's burn-in ends; None while blocks are still to install."""
    return wave.blocks.aggregate(last=Max("clock_start"))["last"]


def surveillance_end(rollout: Rollout) -> datetime | None:
    """Return when a rollout may complete; None before its release. A roll back is not watched."""
    if rollout.released_at is None:
        return None
    days = 0 if rollout.kind == Rollout.Kind.ROLL_BACK else rollout.plan["surveillance_days"]
    return rollout.released_at + timedelta(days=days)


def blocks_that_wait(rollout: Rollout) -> QuerySet[Block]:
    """Return the blocks of which some attempt waits to be started, in order."""
    waiting = rollout.attempts.filter(status__in=WAITING, epoch=rollout.epoch)
    blocks = Block.objects.filter(pk__in=waiting.values("block"))
    return blocks.select_related("wave__rollout").order_by("wave__number", "number")


def last_attempts(rollout: Rollout, *, names: Iterable[str]) -> dict[str, Attempt]:
    """Return the newest attempt on each of these machines that has one, by name."""
    rows = rollout.attempts.filter(machine__name__in=set(names)).order_by("number")
    found = rows.select_related("machine", "block__wave")
    return {attempt.machine.name: attempt for attempt in found}


def left_alone(rollout: Rollout) -> QuerySet[Assignment, Any]:
    """Return the keys of the machines that a person has excluded from the rollout."""
    return rollout.assignments.filter(exclusion__isnull=False).values("machine")


def kinds_of(rollout: Rollout) -> set[str]:
    """Return the components that the rollout's bundle carries firmware for."""
    return set(rollout.bundle.images.values_list("kind", flat=True))


def successors(rollout: Rollout) -> QuerySet[Rollout]:
    """Return the newer rollouts of the same component that could take this one's place."""
    newer = Rollout.objects.filter(
        kind=Rollout.Kind.UPDATE,
        created_at__gte=rollout.created_at,
        status__in=(Status.DRAFT, Status.AWAITING_APPROVAL, Status.APPROVED, Status.RUNNING),
        bundle__images__kind__in=rollout.bundle.images.values("kind"),
    )
    return newer.exclude(pk=rollout.pk).distinct()


def declined_in(rollout: Rollout) -> QuerySet[Attempt]:
    """Return the rollout's attempts after which nobody has cleared their machine, by machine."""
    if rollout.kind != Rollout.Kind.UPDATE:
        return rollout.attempts.none()
    held = rollout.attempts.filter(status__in=FAILURES, clearance=None)
    return held.select_related("machine").order_by("machine__name", "pk")


def untriaged(rollout: Rollout) -> QuerySet[Attempt]:
    """Return the attempts whose machine never came back and nobody has said why."""
    return rollout.attempts.filter(status=AttemptStatus.NEVER_RETURNED, triage="").select_related(
        "machine"
    )


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


def is_in_flight(rollout: Rollout) -> bool:
    """Tell whether some attempt of the rollout is being worked on."""
    return rollout.attempts.filter(status__in=IN_FLIGHT).exists()


def acknowledged_signatures(rollout: Rollout) -> frozenset[str]:
    """Return the novel signatures that people have acknowledged for this rollout."""
    orders = rollout.orders.filter(kind=Order.Kind.ACKNOWLEDGE).values_list("parameters", flat=True)
    return frozenset(name for parameters in orders for name in parameters.get("signatures", []))


def longest_step() -> timedelta:
    """Return the longest time that a scaled clock may advance at once: one evaluation interval."""
    plans = Rollout.objects.filter(status=Status.RUNNING).values_list(
        "plan__look_minutes", flat=True
    )
    minutes = min((value for value in plans if value), default=60.0)
    return timedelta(minutes=minutes)


def treated_bundles() -> dict[int, int]:
    """Return what open rollouts put on the machines that they treated: bundle by machine.

    A roll back is not among them: it goes to each machine's own recorded versions.
    """
    rows = Assignment.objects.filter(
        wave__isnull=False,
        rollout__kind=Rollout.Kind.UPDATE,
        rollout__status__in=(Status.RUNNING, Status.PAUSED, Status.HALTED),
    )
    return dict(rows.order_by("rollout_id").values_list("machine_id", "rollout__bundle_id"))
