"""Halted, now what: every machine of a rollout by its physical state, and the safe next action."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.db.models import OuterRef, QuerySet, Subquery

from fleet.lifecycle import State
from fleet.models import FirmwareRecord, Machine
from rollouts.lifecycle import FAILURES, IN_FLIGHT, AttemptStatus
from rollouts.models import Action, Assignment, Attempt, Rollout

#: Machines that a group names; the others are counted.
MOST_NAMED = 50

UNTOUCHED = "untouched"
STAGED = "staged"
RUNNING_NEW = "running_new"
IN_PROGRESS = "in_flight"
BACK = "rolled_back"
RECOVERED = "recovered"
RETIRED = "retired"

_ACTIONS: Mapping[str, str] = {
    UNTOUCHED: "nothing to do: nothing was written to them",
    STAGED: "do not reboot: the next boot would activate the new image; stage the old one first",
    IN_PROGRESS: "wait: each goes to its end or its deadline; do not cut their power",
    BACK: "nothing to do: they run the versions that they came from",
    RECOVERED: "they came back after all: read the versions back, their return goes by their gate",
    RETIRED: "nothing to do: they have left the fleet",
    AttemptStatus.REJECTED: "check the image's signature and the controller; nothing was written",
    AttemptStatus.FAILED: "read the versions back before any other step; then repair",
    AttemptStatus.TIMED_OUT: "read the versions back: what was begun may still be under way",
    AttemptStatus.WRONG_VERSION: "read the versions back; they run what was not intended",
    AttemptStatus.PARTIAL: "finish or revert all images together; do not put them to work mixed",
    AttemptStatus.DEGRADED: "keep them out of service and diagnose",
    AttemptStatus.NEVER_RETURNED: (
        "follow the bundle's recovery recipe, then triage: nothing new starts before"
    ),
    AttemptStatus.FELL_BACK: "find out why they left the bundle; they are not offered it again",
    AttemptStatus.UNKNOWN: "go and look: nobody knows what they run",
}
_BY_PLAN: Mapping[str, str] = {
    Action.Kind.LEAVE: "leave them at work; the plan does nothing with them",
    Action.Kind.DRAIN: "the plan takes them out of service; release them once the cause is known",
    Action.Kind.ROLL_BACK: "the plan rolls them back to the versions that they came from",
    Action.Kind.DO_NOT_REBOOT: "do not reboot: the plan says so",
}


@dataclass(frozen=True)
class Group:
    """Machines in one physical state: how many, the first by name, and what is safe to do next."""

    state: str
    count: int
    machines: tuple[str, ...]
    next_action: str
    do_not_reboot: bool

    @property
    def more(self) -> int:
        """How many are not named."""
        return self.count - len(self.machines)


@dataclass(frozen=True)
class Aftermath:
    """All machines of a rollout, each in one group; and who of them cannot go back, and why."""

    groups: tuple[Group, ...]
    irreversible_count: int
    irreversible: tuple[tuple[str, str], ...]

    @property
    def machines(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def not_to_be_rebooted(self) -> int:
        return sum(group.count for group in self.groups if group.do_not_reboot)


def aftermath(rollout: Rollout) -> Aftermath:
    """Return where every machine of a rollout stands physically, by what was last seen of it."""
    states = _states(rollout)
    by_state: dict[str, list[str]] = {}
    for name, state in states.items():
        by_state.setdefault(state, []).append(name)
    groups = tuple(_group(rollout, state, by_state[state]) for state in _ORDER if state in by_state)
    touched = [name for name, state in states.items() if state not in (UNTOUCHED, BACK, RETIRED)]
    stuck = _irreversible(rollout, touched)
    return Aftermath(groups, len(stuck), tuple(stuck[:MOST_NAMED]))


#: In the order in which people want to know: what is dangerous first.
_ORDER = (
    AttemptStatus.NEVER_RETURNED.value,
    STAGED,
    *sorted(status.value for status in FAILURES - {AttemptStatus.NEVER_RETURNED}),
    RECOVERED,
    IN_PROGRESS,
    RUNNING_NEW,
    BACK,
    UNTOUCHED,
    RETIRED,
)


def _group(rollout: Rollout, state: str, names: list[str]) -> Group:
    verb = rollout.plan.get("on_halt", {}).get(
        AttemptStatus.SUCCEEDED if state == RUNNING_NEW else state, Action.Kind.LEAVE
    )
    is_planned = state == RUNNING_NEW or (state in FAILURES and verb != Action.Kind.LEAVE)
    words = [_BY_PLAN[verb]] if is_planned else []
    if state in _ACTIONS:
        words.append(_ACTIONS[state])
    return Group(
        state=state,
        count=len(names),
        machines=tuple(sorted(names)[:MOST_NAMED]),
        next_action="; ".join(words),
        do_not_reboot=state == STAGED or (is_planned and verb == Action.Kind.DO_NOT_REBOOT),
    )


def _states(rollout: Rollout) -> dict[str, str]:
    """Return the physical state of each machine, by its name when it was assigned."""
    last = _last_attempts(rollout)
    back = _returned(rollout)
    staged = _staged(rollout, last)
    retired = set(
        Machine.objects.filter(
            state=State.RETIRED, pk__in=rollout.assignments.values("machine")
        ).values_list("pk", flat=True)
    )
    rows = Assignment.objects.filter(rollout=rollout).values_list("machine_id", "machine_name")
    return {
        name: _state(machine, last.get(machine), back=back, staged=staged, retired=retired)
        for machine, name in rows
    }


def _state(
    machine: int,
    status: str | None,
    *,
    back: Mapping[int, str],
    staged: set[int],
    retired: set[int],
) -> str:
    if machine in retired:
        return RETIRED
    if machine in back:
        return _state_of_return(back[machine])
    if machine in staged:
        return STAGED
    if status in IN_FLIGHT:
        return IN_PROGRESS
    if status == AttemptStatus.SUCCEEDED:
        return RUNNING_NEW
    return status if status in (*FAILURES, RECOVERED) else UNTOUCHED


def _state_of_return(status: str) -> str:
    if status == AttemptStatus.SUCCEEDED:
        return BACK
    return status if status in (*FAILURES, RECOVERED) else IN_PROGRESS


def _seen(status: str, triage: str) -> str:
    """Return an attempt's end as it stands after its triage."""
    came_back = triage == Attempt.Triage.RECOVERED
    return RECOVERED if came_back and status == AttemptStatus.NEVER_RETURNED else status


def _last_attempts(rollout: Rollout) -> dict[int, str]:
    """Return the status of each machine's newest attempt that was not called off untouched."""
    tried = rollout.attempts.exclude(status=AttemptStatus.CALLED_OFF)
    rows = tried.order_by("machine_id", "number").values_list("machine_id", "status", "triage")
    return {machine: _seen(status, triage) for machine, status, triage in rows}


def _returned(rollout: Rollout) -> dict[int, str]:
    """Return the machines whose return has begun, with the status of their newest attempt."""
    begun = [AttemptStatus.SUCCEEDED, *FAILURES, *IN_FLIGHT]
    rows = Attempt.objects.filter(rollout__parent=rollout, status__in=begun)
    ordered = rows.order_by("machine_id", "pk").values_list("machine_id", "status", "triage")
    return {machine: _seen(status, triage) for machine, status, triage in ordered}


def _staged(rollout: Rollout, last: Mapping[int, str]) -> set[int]:
    """Return who carries a new image that is written but not active: a boot would activate it."""
    wanted = dict(rollout.bundle.images.values_list("kind", "version"))
    ended = [machine for machine, status in last.items() if status not in IN_FLIGHT]
    if not ended or not wanted:
        return set()
    active = _newest(FirmwareRecord.Stage.ACTIVE)
    staged = (
        FirmwareRecord.objects.filter(
            machine__in=rollout.attempts.values("machine"),
            kind__in=wanted,
            stage=FirmwareRecord.Stage.STAGED,
        )
        .annotate(
            newest=Subquery(_newest(FirmwareRecord.Stage.STAGED).values("pk")[:1]),
            runs=Subquery(active.values("version")[:1]),
        )
        .values_list("pk", "newest", "machine_id", "kind", "version", "runs")
    )
    known = set(ended)
    return {
        machine
        for pk, newest, machine, kind, version, runs in staged
        if pk == newest and machine in known and version == wanted[kind] and runs != version
    }


def _newest(stage: str) -> QuerySet[FirmwareRecord]:
    """Return the records of the outer query's place, the newest first."""
    place = {name: OuterRef(name) for name in ("machine", "kind", "slot")}
    return FirmwareRecord.objects.filter(stage=stage, **place).order_by("-since", "-pk")


def _irreversible(rollout: Rollout, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return who of these cannot go back, and why, by name."""
    wanted = set(names)
    rows = Assignment.objects.filter(rollout=rollout).exclude(irreversible="")
    found = rows.order_by("machine_name").values_list("machine_name", "irreversible")
    return [(name, why) for name, why in found if name in wanted]
