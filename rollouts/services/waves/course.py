"""What a wave does: freeze its roster, install block by block, settle, widen, hold, go back."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import F, Max, QuerySet

from fleet.bulk import insert_filled
from fleet.lifecycle import State
from fleet.models import Machine
from rollouts import planning, selectors
from rollouts.errors import OrderRefused
from rollouts.lifecycle import (
    IN_FLIGHT,
    WAITING,
    AttemptStatus,
    Status,
    Trigger,
    WaveTrigger,
)
from rollouts.models import (
    Action,
    Assignment,
    Attempt,
    Block,
    Membership,
    Rollout,
    Transition,
    Wave,
)
from rollouts.services.attempts.starts import queue, raise_fence, requeue
from rollouts.services.records import Cause, lock, move, move_attempts, move_wave
from rollouts.services.waves import on_halt
from rollouts.services.waves.companions import companions

# --- start and install -----------------------------------------------------------------------


@transaction.atomic
def start_wave(wave: Wave, *, cause: Cause, now: datetime) -> None:
    """Freeze who is canary, who control and in which block, and start the first block.

    Canaries are the wave's units in the drawn order; control is every other unit that has not
    been treated. An empty wave is skipped and says so.
    """
    lock(wave.rollout, Status.RUNNING)
    untreated = _places(_untreated(wave))
    is_release = wave.kind == Wave.Kind.RELEASE
    canaries = [place for place in untreated if is_release or place.planned_wave == wave.number]
    if not canaries:
        move_wave(wave, WaveTrigger.SKIP, cause=cause, now=now, note="empty", finished_at=now)
        return
    controls = [] if is_release else [p for p in untreated if p.planned_wave != wave.number]
    blocks = _create_blocks(wave, canaries, controls)
    treated = _untreated(wave)
    if not is_release:
        treated = treated.filter(planned_wave=wave.number)
    Assignment.objects.filter(pk__in=treated.values("pk")).update(wave=wave)
    first_look = None if is_release else now + _look_interval(wave)
    move_wave(
        wave, WaveTrigger.START, cause=cause, now=now, started_at=now, next_look_at=first_look
    )
    _start_block(blocks[0], cause=cause, now=now)


def _untreated(wave: Wave) -> QuerySet[Assignment]:
    """Return who is still on the old bundle, by a condition instead of a list of ids."""
    return Assignment.objects.filter(rollout=wave.rollout, wave=None).exclude(
        machine__state=State.RETIRED
    )


class Place(NamedTuple):
    """Where a machine stands in the drawn order; a row, since there may be very many."""

    machine_id: int
    unit: str
    stratum: str
    planned_wave: int


def _places(assignments: QuerySet[Assignment]) -> list[Place]:
    ordered = assignments.order_by("stratum", "position", "machine_name")
    return [Place(*row) for row in ordered.values_list(*Place._fields).iterator(chunk_size=10_000)]


def _create_blocks(wave: Wave, canaries: list[Place], controls: list[Place]) -> list[Block]:
    dealt = planning.deal_blocks(
        _by_stratum(canaries),
        _by_stratum(controls),
        batches=planning.batch_count(
            len({place.unit for place in canaries}), batch_size=wave.rollout.plan["batch_size"]
        ),
    ).block
    numbers = sorted(set(dealt.values()))
    Block.objects.bulk_create([Block(wave=wave, number=number) for number in numbers])
    blocks = {block.number: block for block in wave.blocks.all()}
    insert_filled(
        Membership,
        ("wave_id", "block_id", "machine_id", "unit", "stratum", "arm"),
        (
            (
                wave.pk,
                blocks[dealt[place.unit]].pk,
                place.machine_id,
                place.unit,
                place.stratum,
                arm,
            )
            for arm, places in (
                (Membership.Arm.CANARY.value, canaries),
                (Membership.Arm.CONTROL.value, controls),
            )
            for place in places
        ),
    )
    return [blocks[number] for number in numbers]


def _by_stratum(places: list[Place]) -> dict[str, list[str]]:
    """Return each stratum's units in their random order."""
    units: dict[str, dict[str, None]] = {}
    for place in places:
        units.setdefault(place.stratum, {})[place.unit] = None
    return {stratum: list(names) for stratum, names in units.items()}


def _start_block(block: Block, *, cause: Cause, now: datetime) -> None:
    rollout = block.wave.rollout
    members = block.members.filter(arm=Membership.Arm.CANARY).exclude(
        machine__in=selectors.left_alone(rollout)
    )
    images = _images(rollout)
    if rollout.kind == Rollout.Kind.ROLL_BACK:
        targets = _previous_versions(rollout, members.values_list("machine_id", flat=True))
    else:
        targets = dict.fromkeys(members.values_list("machine_id", flat=True), images)
    targets = {**targets, **companions(rollout, list(targets), images=images)}
    Block.objects.filter(pk=block.pk, started_at=None).update(started_at=now)
    queue(block, targets=targets, cause=cause, now=now)


def _images(rollout: Rollout) -> list[dict[str, Any]]:
    places = rollout.bundle.places.select_related("image").order_by("position")
    return [
        {
            "kind": place.image.kind,
            "version": place.image.version,
            "activation": place.image.activation,
            "domain": place.image.activation_domain,
            "timeout_minutes": place.image.timeout_minutes,
            "stages_online": place.image.stages_online,
        }
        for place in places
    ]


def _previous_versions(
    rollout: Rollout, machine_ids: Iterable[int]
) -> dict[int, list[dict[str, Any]]]:
    images = _images(rollout)
    before = Assignment.objects.filter(rollout=rollout.parent, machine__in=machine_ids).values_list(
        "machine_id", "previous_versions"
    )
    return {
        machine: [
            {**image, "slot": slot, "version": version}
            for image in images
            for slot, version in _parts(image["kind"], versions)
            if version != image["version"]
        ]
        for machine, versions in before
    }


def _parts(kind: str, versions: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield slot and version of a kind's parts; an empty slot stands for all of them."""
    for part, version in versions.items():
        name, _, slot = part.partition("/")
        if name == kind:
            yield slot, version


@transaction.atomic
def progress_install(wave: Wave, *, now: datetime) -> None:
    """Close a block whose last canary is in or failed, start the next, or end the installing."""
    lock(wave.rollout, Status.RUNNING)
    block = wave.blocks.filter(clock_start=None).order_by("number").first()
    if block is None:
        move_wave(wave, WaveTrigger.INSTALLED, cause=None, now=now)
        return
    attempts = Attempt.objects.filter(block=block)
    _call_off_retired(attempts, now=now)
    if attempts.filter(status__in=WAITING | IN_FLIGHT).exists():
        return
    last = attempts.aggregate(last=Max("finished_at"))["last"] or now
    start = last + timedelta(hours=wave.rollout.plan["burn_in_hours"])
    Block.objects.filter(pk=block.pk, clock_start=None).update(clock_start=start)
    if wave.clock_start is None:
        _start_clock(wave, start)
    following = wave.blocks.filter(started_at=None).order_by("number").first()
    if following is not None:
        _start_block(following, cause=selectors.cause_of(wave), now=now)
    elif not wave.blocks.filter(clock_start=None).exists():
        move_wave(wave, WaveTrigger.INSTALLED, cause=None, now=now)


def _call_off_retired(attempts: QuerySet[Attempt], *, now: datetime) -> None:
    """Wait for no machine that has left the fleet; it was not tried, so it is no failure."""
    retired = Machine.objects.filter(state=State.RETIRED)
    gone = attempts.filter(status__in=WAITING, machine__in=retired.values("pk"))
    detail = "the machine was retired before it was tried"
    move_attempts(gone, AttemptStatus.CALLED_OFF, now=now, detail=detail, finished_at=now)


def _start_clock(wave: Wave, start: datetime) -> None:
    window = timedelta(hours=wave.window_hours)
    extension = window * wave.rollout.plan["extension"]
    looks = None if wave.kind == Wave.Kind.RELEASE else start + _look_interval(wave)
    Wave.objects.filter(pk=wave.pk, clock_start=None).update(
        clock_start=start,
        window_end=start + window,
        extension_end=start + window + extension,
        next_look_at=looks,
    )
    wave.refresh_from_db()


def settle(wave: Wave, *, now: datetime) -> None:
    """Begin to observe once the last block's burn-in is over; a release wave is over at once."""
    if wave.kind == Wave.Kind.RELEASE:
        move_wave(wave, WaveTrigger.WIDEN, cause=None, now=now, finished_at=now)
        return
    last = selectors.settles_at(wave)
    if last is not None and now >= last:
        move_wave(wave, WaveTrigger.SETTLED, cause=None, now=now)


# --- window ----------------------------------------------------------------------------------


def extend_window(wave: Wave, *, now: datetime) -> None:
    """Begin the wave's one planned extension."""
    Wave.objects.filter(pk=wave.pk, is_extended=False).update(
        is_extended=True, next_look_at=now + _look_interval(wave)
    )
    wave.refresh_from_db()


def shift_clock(wave: Wave, *, paused_at: datetime, now: datetime) -> None:
    """Move what is still to come by the part of a pause that fell into the window."""
    if wave.clock_start is None or now <= wave.clock_start:
        return
    by = now - max(paused_at, wave.clock_start)
    Wave.objects.filter(pk=wave.pk).update(
        window_end=F("window_end") + by,
        extension_end=F("extension_end") + by,
        next_look_at=F("next_look_at") + by,
    )
    wave.refresh_from_db()


@transaction.atomic
def reopen(wave: Wave, *, cause: Cause, now: datetime) -> None:
    """Open a new window after an override: data from now on, the alpha that the wave has left.

    Installing goes on where the halt stopped it: whom it called off is queued anew. The old
    evaluations stay as they are; the judge starts afresh from an empty state.
    """
    spent = wave.judge_state.get("alpha_spent", 0.0)
    before = wave.judge_state.get("alpha_spent_before", 0.0)
    clock_start = now if _reopen_blocks(wave, cause=cause, now=now) else None
    window = timedelta(hours=wave.window_hours)
    move_wave(
        wave,
        WaveTrigger.REOPEN,
        cause=cause,
        now=now,
        note="new window after an override",
        clock_start=clock_start,
        window_end=clock_start and now + window,
        extension_end=clock_start and now + window + window * wave.rollout.plan["extension"],
        is_extended=False,
        next_look_at=now + _look_interval(wave),
        judge_state={"alpha_spent_before": before + spent},
    )


def _reopen_blocks(wave: Wave, *, cause: Cause, now: datetime) -> bool:
    """Start the clock of blocks that are in from now on, and queue the rest of the others."""
    halted = wave.transitions.filter(trigger=WaveTrigger.HALT).latest("pk")
    is_some_block_in = False
    for block in wave.blocks.filter(started_at__isnull=False):
        again = requeue(block, since=halted.at, cause=cause, now=now)
        is_in = not again and not Attempt.objects.filter(block=block, status__in=IN_FLIGHT).exists()
        Block.objects.filter(pk=block.pk).update(clock_start=now if is_in else None)
        is_some_block_in |= is_in
    return is_some_block_in


def _look_interval(wave: Wave) -> timedelta:
    return timedelta(minutes=wave.rollout.plan["look_minutes"])


# --- back ------------------------------------------------------------------------------------


@transaction.atomic
def start_roll_back(rollout: Rollout, *, cause: Cause, now: datetime) -> None:
    """Begin to return treated machines to their recorded versions.

    The fence rises and what waits is called off. Who is in flight goes to its end first, since
    only then it is known what it runs; `continue_roll_back` does the rest.

    Raises
    ------
    OrderRefused
        If this is a roll back itself: it would bring the halted bundle back.
    """
    if rollout.kind == Rollout.Kind.ROLL_BACK:
        raise OrderRefused([f"{rollout} is a roll back, which is not rolled back itself"])
    raise_fence(
        rollout,
        Trigger.ROLL_BACK,
        cause=cause,
        now=now,
        detail="the rollout is rolled back",
        due_at=now,
        finished_at=None,
    )
    continue_roll_back(rollout, now=now)


@transaction.atomic
def continue_roll_back(rollout: Rollout, *, now: datetime) -> Rollout | None:
    """Return the child rollout of the present roll back, made once nothing is in flight.

    It was approved together with the plan and runs under the same caps, judged by installs
    only. Whom it takes follows the plan's word per failure class and, where a person ordered it,
    is everybody who runs the new versions; machines that cannot go back stay, and the move says
    how many and why. Where no machine is to go back there is no child,
    and the parent is rolled back at once. Safe to repeat.
    """
    rollout = lock(rollout, Status.ROLLING_BACK)
    moves = Transition.objects.filter(wave=None).order_by("-pk")
    began = moves.filter(rollout=rollout, trigger=Trigger.ROLL_BACK)[0]
    start = moves.filter(rollout__parent=rollout, trigger=Trigger.START, pk__gt=began.pk).first()
    if start is not None:
        return start.rollout
    if selectors.is_in_flight(rollout):
        return None
    cause = began.decision or began.order
    places = _to_roll_back(rollout, is_ordered=began.order is not None)
    stuck = selectors.cannot_go_back(rollout, places)
    places = [place for place in places if place.machine_id not in stuck]
    note = _left_behind(stuck)
    if not places:
        finish_roll_back(rollout, cause=cause, now=now, note=note)
        return None
    # A machine that the halt has taken out of work could not be updated by the child.
    on_halt.let_go(rollout, now=now, machines=[place.machine for place in places])
    child = _create_child(rollout, places, now=now)
    move(child, Trigger.START, cause=cause, now=now, note=note, started_at=now, due_at=now)
    return child


def _left_behind(stuck: Mapping[int, str]) -> str:
    """Say how many machines a roll back leaves where they are, and why, in the room of a note."""
    if not stuck:
        return ""
    counts = Counter(stuck.values()).most_common()
    words = "; ".join(f"{number}: {reason}" for reason, number in counts)
    return f"leaves {len(stuck)} that cannot go back ({words})"[:300]


def _create_child(rollout: Rollout, places: list[Assignment], *, now: datetime) -> Rollout:
    child = Rollout.objects.create(
        name=_child_name(rollout),
        kind=Rollout.Kind.ROLL_BACK,
        parent=rollout,
        bundle=rollout.bundle,
        selector=rollout.selector,
        mode=rollout.mode,
        plan={**rollout.plan, "batch_size": None, "burn_in_hours": 0},
        plan_digest=rollout.plan_digest,
        seed=rollout.seed,
        status=Status.APPROVED,
        author=rollout.author,
        approver=rollout.approver,
        created_at=now,
        submitted_at=now,
        approved_at=rollout.approved_at,
    )
    wave = Wave.objects.create(
        rollout=child, number=1, kind=Wave.Kind.RELEASE, size=len(places), window_hours=0
    )
    Assignment.objects.bulk_create(
        [
            Assignment(
                rollout=child,
                machine_id=place.machine_id,
                machine_name=place.machine_name,
                unit=place.unit,
                stratum=place.stratum,
                position=place.position,
                planned_wave=wave.number,
            )
            for place in places
        ],
        batch_size=1000,
    )
    return child


def _child_name(rollout: Rollout) -> str:
    """Return a name that is free and fits, whatever the parent and others are called."""
    taken = set(Rollout.objects.filter(name__contains=" roll back ").values_list("name", flat=True))
    names = (f"{rollout.name[:180]} roll back {number}" for number in count(1))
    return next(name for name in names if name not in taken)


def _to_roll_back(rollout: Rollout, *, is_ordered: bool) -> list[Assignment]:
    """Return who is to go back and has not gone back already.

    By itself a halt takes those back of whom the plan says so. A person who orders a roll back
    means everybody who runs the new versions, but for those that are not to be rebooted.
    """
    verbs = rollout.plan["on_halt"]
    classes = {name for name, verb in verbs.items() if verb == Action.Kind.ROLL_BACK}
    if is_ordered and verbs.get(AttemptStatus.SUCCEEDED) != Action.Kind.DO_NOT_REBOOT:
        classes.add(AttemptStatus.SUCCEEDED)
    machines = Attempt.objects.filter(status__in=classes, rollout=rollout).values("machine_id")
    returned = Attempt.objects.filter(
        rollout__parent=rollout, status=AttemptStatus.SUCCEEDED
    ).values("machine_id")
    return list(
        Assignment.objects.filter(rollout=rollout, machine__in=machines)
        .exclude(previous_versions={})
        .exclude(machine__in=returned)
        .select_related("machine")
        .order_by("stratum", "position")
    )


def finish_roll_back(rollout: Rollout, *, cause: Cause, now: datetime, note: str = "") -> None:
    """Mark the parent of a finished roll back as rolled back."""
    ended = {"finished_at": now, "due_at": None}
    move(rollout, Trigger.FINISH_ROLL_BACK, cause=cause, now=now, note=note, **ended)
