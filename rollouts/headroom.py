"""Who of a block's waiting attempts may start now, and what keeps the others.

One answer for the step that starts them and for everybody who asks why nothing moves.
"""

import functools
import json
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from django.db.models import Count, Min, Q, QuerySet

from fleet.lifecycle import State
from fleet.models import Cordon, FirmwareImage, Machine
from rollouts import aggregation, planning, policies, selectors
from rollouts.analysis import pacing, proportions
from rollouts.analysis.policy import Metric
from rollouts.analysis.spending import HaltClaim, share_alpha
from rollouts.lifecycle import IN_FLIGHT, WAITING, AttemptStatus
from rollouts.models import Attempt, Block, Freeze, Rollout, Wave

#: Most waiting attempts that one step considers.
MOST_AT_ONCE = 1000
#: Machines of an activation domain that are named when they are in its way.
MOST_NAMED = 3
#: Between two looks at who waits for a forecast.
_LONGEST_SLEEP = timedelta(hours=6)
_DOMAINS = ("rack", "chassis", "power_domain", "nvlink_domain", "leaf", "pool", "site")
#: The field of a machine that an image's activation domain stands for, widest last.
_ACTIVATES = {
    FirmwareImage.Domain.CHASSIS: "chassis",
    FirmwareImage.Domain.RACK: "rack",
    FirmwareImage.Domain.POWER_SHELF: "power_domain",
}


# --- windows and freezes ---------------------------------------------------------------------


def gate_of(rollout: Rollout, place: planning.Place, *, now: datetime) -> planning.Gate:
    """Tell whether attempts of a rollout may start at a place now, by windows and freezes.

    A roll back passes: the firmware that it takes off is the greater danger. Caps and drains hold
    for it as for others.
    """
    return _gate(rollout, place, freezes_of(rollout, now=now), now=now)


def _gate(
    rollout: Rollout,
    place: planning.Place,
    freezes: Sequence[planning.Freeze],
    *,
    now: datetime,
    is_begun: bool = False,
) -> planning.Gate:
    if rollout.kind == Rollout.Kind.ROLL_BACK:
        return planning.Gate(True)
    plan = rollout.plan
    ahead = 0 if is_begun else plan.get("drain_ahead_minutes", 0)
    return planning.gate(
        place,
        at=now,
        windows=[planning.Window.of(window) for window in plan.get("windows", ())],
        freezes=freezes,
        need=planning.longest_attempt(plan),
        ahead=timedelta(minutes=ahead),
    )


def freezes_of(rollout: Rollout, *, now: datetime) -> list[planning.Freeze]:
    """Return the freezes, standing or to come, of a rollout's plan and of its site."""
    own = [planning.Freeze.of(freeze) for freeze in rollout.plan.get("freezes", ())]
    return own + [
        planning.Freeze(
            start=freeze.start,
            end=freeze.end,
            reason=freeze.reason,
            sites=frozenset(freeze.sites),
            pools=frozenset(freeze.pools),
        )
        for freeze in Freeze.objects.filter(lifted_at=None, end__gt=now).order_by("start", "pk")
    ]


def closed_places(block: Block, *, now: datetime) -> dict[planning.Place, planning.Gate]:
    """Return where the block's waiting attempts may not start now, with why and from when on."""
    rollout = block.wave.rollout
    freezes = freezes_of(rollout, now=now)
    if rollout.kind == Rollout.Kind.ROLL_BACK or not (freezes or rollout.plan.get("windows")):
        return {}
    places = _waiting(block).values_list("machine__site", "machine__pool").order_by().distinct()
    gates = {
        place: _gate(rollout, place, freezes, now=now)
        for place in (planning.Place(site=site, pool=pool) for site, pool in places)
    }
    return {place: gate for place, gate in gates.items() if not gate.is_open}


def may_write(attempt: Attempt, *, now: datetime) -> planning.Gate:
    """Tell whether a drained attempt may begin to write: it has to be over within its window.

    What activates as one is not divided: once one machine has begun, the others follow.
    """
    others = members_of_domain(attempt)
    if any(other.status in IN_FLIGHT - {AttemptStatus.DRAINING} for other in others):
        return planning.Gate(True)
    place = planning.Place(site=attempt.machine.site, pool=attempt.machine.pool)
    freezes = freezes_of(attempt.rollout, now=now)
    return _gate(attempt.rollout, place, freezes, now=now, is_begun=True)


def at_place(place: planning.Place) -> Q:
    """Return the condition on attempts that their machine stands at a place.

    By a subquery: whoever locks the attempts must not lock the machines with them.
    """
    return Q(machine__in=Machine.objects.filter(site=place.site, pool=place.pool).values("pk"))


def next_start(rollout: Rollout, *, now: datetime, poll: timedelta) -> datetime | None:
    """Return when to look again at who waits to be started; None where nobody does.

    A forecast is not slept over entirely: a job may end early.
    """
    waiting = rollout.attempts.filter(status__in=WAITING, epoch=rollout.epoch)
    if not waiting.exists():
        return None
    if waiting.filter(Q(forecast_at=None) | Q(forecast_at__lte=now + poll)).exists():
        return now + poll
    first = waiting.aggregate(at=Min("forecast_at"))["at"]
    return min(first, now + _LONGEST_SLEEP)


# --- who is ready ----------------------------------------------------------------------------


def _waiting(block: Block) -> QuerySet[Attempt]:
    return Attempt.objects.filter(block=block, status__in=WAITING)


def ready_attempts(block: Block, *, epoch: int, leave_out: Q | None = None) -> list[Attempt]:
    """Return the waiting attempts whose machine is in service and may take work, in order.

    Where the bundle activates a whole domain, the machines of one follow each other.
    """
    ready = Attempt.objects.filter(
        block=block,
        epoch=epoch,
        status__in=WAITING,
        machine__state=State.IN_SERVICE,
        machine__may_take_work=True,
    ).select_related("machine")
    if leave_out is not None:
        ready = ready.exclude(leave_out)
    found = list(ready.order_by("pk")[:MOST_AT_ONCE])
    name = shared_field(found[0]) if found else ""
    if not name:
        return found
    values = dict.fromkeys(getattr(attempt.machine, name) for attempt in found)
    whole = ready.filter(**{f"machine__{name}__in": list(values)}).order_by("pk")
    order = {value: number for number, value in enumerate(values)}
    return sorted(whole, key=lambda attempt: order[getattr(attempt.machine, name)])


def startable(block: Block, ready: list[Attempt]) -> planning.Startable:
    """Return which of these may start, and the cap that keeps each of the others."""
    if not ready:
        return planning.Startable(start=(), waiting={}, blocked=())
    rollout = block.wave.rollout
    caps = planning.Caps.of(rollout.plan["caps"])
    name = shared_field(ready[0])
    flying = Attempt.objects.filter(status__in=IN_FLIGHT).select_related("machine")
    return planning.startable(
        [_candidate(attempt.machine, group=name) for attempt in ready],
        in_flight=[_candidate(attempt.machine) for attempt in flying],
        domains=domains_of([attempt.machine for attempt in ready], caps=caps),
        caps=caps,
        unhealthy=_in_the_way(ready, name=name) if name else None,
        pace=pace_of(block.wave),
    )


def pick(block: Block, *, epoch: int, leave_out: Q | None = None) -> list[Attempt]:
    """Return the attempts that may start now, in order.

    Where the first of a long queue all lie in full domains, the search goes on behind them.
    """
    leave_out = Q(pk__in=()) if leave_out is None else leave_out
    while True:
        ready = ready_attempts(block, epoch=epoch, leave_out=leave_out)
        names = set(startable(block, ready).start)
        if names or len(ready) < MOST_AT_ONCE:
            return [attempt for attempt in ready if attempt.machine.name in names]
        caps = planning.Caps.of(block.wave.rollout.plan["caps"])
        domains = domains_of([attempt.machine for attempt in ready], caps=caps)
        full = list(planning.full_domains(caps, domains))
        if not full:
            return []
        for name, value in full:
            leave_out |= Q(**{f"machine__{name}": value})


def _candidate(machine: Machine, *, group: str = "") -> planning.Candidate:
    return planning.Candidate(
        name=machine.name,
        domains={name: getattr(machine, name) for name in _DOMAINS},
        group=getattr(machine, group) or machine.name if group else "",
    )


def domains_of(
    machines: Iterable[Machine], *, caps: planning.Caps
) -> dict[planning.Where, planning.Domain]:
    """Return size and machines out of service of every capped domain that these lie in."""
    machines = list(machines)
    found: dict[planning.Where, planning.Domain] = {}
    for name in caps.fields:
        values = {getattr(machine, name) for machine in machines}
        jobs = _largest_jobs(values) if name == "pool" and caps.keeps_present_job else {}
        rows = (
            Machine.objects.filter(**{f"{name}__in": values})
            .exclude(state=State.RETIRED)
            .order_by(name)
            .values(name)
            .annotate(size=Count("pk"), working=Count("pk", filter=Q(may_take_work=True)))
        )
        for row in rows:
            found[name, row[name]] = planning.Domain(
                size=row["size"],
                unavailable=row["size"] - row["working"],
                largest_job=jobs.get(row[name], 0),
            )
    return found


def _largest_jobs(pools: Collection[str]) -> dict[str, int]:
    """Return the size of the largest job of each pool, in machines, as the scheduler has it."""
    sizes = (
        Machine.objects.filter(pool__in=pools)
        .exclude(job="")
        .values("pool", "job")
        .annotate(n=Count("pk"))
        .order_by()
        .values_list("pool", "n")
    )
    largest: dict[str, int] = {}
    for pool, size in sizes:
        largest[pool] = max(size, largest.get(pool, 0))
    return largest


# --- activation domains ----------------------------------------------------------------------


def activation_field(rollout: Rollout) -> str:
    """Return the field of the machines that activate as one; empty where each does alone."""
    return widest(rollout.bundle.images.values_list("activation_domain", flat=True))


def shared_field(attempt: Attempt) -> str:
    """Return the same for one attempt, by the images that it is to install."""
    return widest(target.get("domain", "") for target in attempt.targets)


def widest(domains: Iterable[str]) -> str:
    """Return the field of the machines that images of these activation domains reboot as one."""
    wanted = set(domains)
    fields = [name for domain, name in _ACTIVATES.items() if domain in wanted]
    return fields[-1] if fields else ""


def _in_the_way(ready: Sequence[Attempt], *, name: str) -> dict[str, str]:
    """Say of each ready machine which others of its activation domain do not start with it."""
    values = {getattr(attempt.machine, name) for attempt in ready}
    own = {attempt.machine_id for attempt in ready}
    others = (
        Machine.objects.filter(**{f"{name}__in": values - {""}})
        .exclude(state=State.RETIRED)
        .exclude(pk__in=own)
        .order_by("name")
    )
    cordons = dict(
        Cordon.objects.filter(machine__in=others, lifted_at=None)
        .order_by("-since")
        .values_list("machine_id", "owner")
    )
    missing: dict[str, list[str]] = {}
    for machine in others:
        words = f"{machine.name}, which {_why_not(machine, cordons)}"
        missing.setdefault(getattr(machine, name), []).append(words)
    place = name.replace("_", " ")
    said = {
        value: f"{place} {value} activates as one and holds {_few(words)}"
        for value, words in missing.items()
    }
    said[""] = f"its {place} is not known, and the bundle activates a whole {place}"
    return {
        attempt.machine.name: said[getattr(attempt.machine, name)]
        for attempt in ready
        if getattr(attempt.machine, name) in said
    }


def _why_not(machine: Machine, cordons: dict[int, str]) -> str:
    if machine.pk in cordons:
        return f"{cordons[machine.pk]} has cordoned"
    if machine.state == State.IN_SERVICE:
        at_work = f" and works on {machine.job}" if machine.job else ""
        return f"is in service{at_work}, but not in this batch"
    return f"is {machine.state}"


def _few(words: Sequence[str]) -> str:
    more = len(words) - MOST_NAMED
    return "; ".join(words[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def members_of_domain(attempt: Attempt) -> list[Attempt]:
    """Return the newest attempts of the rollout in the machine's activation domain, itself too.

    Only itself where the bundle activates machine by machine.
    """
    name = shared_field(attempt)
    value = getattr(attempt.machine, name) if name else ""
    if not value:
        return [attempt]
    members = Attempt.objects.filter(
        rollout=attempt.rollout, block=attempt.block, **{f"machine__{name}": value}
    )
    newest: dict[int, Attempt] = {}
    for member in members.select_related("machine").order_by("number"):
        newest[member.machine_id] = member
    return list(newest.values())


def others_of_domain(attempt: Attempt) -> list[Attempt]:
    """Return the attempts of its activation domain on machines that are to be changed, without it.

    Those that only accompany, since their machine runs the intended versions already, are not
    waited for.
    """
    return [
        member
        for member in members_of_domain(attempt)
        if member.pk != attempt.pk and not member.steps.get("accompanies")
    ]


def is_domain_under_way(attempt: Attempt) -> bool:
    """Tell whether others of its activation domain are written to, and it may reboot with them."""
    under_way = IN_FLIGHT - {AttemptStatus.DRAINING}
    return any(member.status in under_way for member in others_of_domain(attempt))


def domain_objection(attempt: Attempt) -> str:
    """Say who of its activation domain is not drained or not with it any more; empty: nobody.

    Nothing is activated before every machine of the domain has been drained by an attempt.
    """
    name = shared_field(attempt)
    if not name or not (value := getattr(attempt.machine, name)):
        return ""
    members = members_of_domain(attempt)
    late = [
        f"{member.machine.name} is {member.status}"
        for member in members
        if member.pk != attempt.pk
        and (member.status in {*WAITING, AttemptStatus.CALLED_OFF} or member.drained_at is None)
    ]
    outsiders = (
        Machine.objects.filter(**{name: value})
        .exclude(state=State.RETIRED)
        .exclude(pk__in=[member.machine_id for member in members])
        .order_by("name")
    )
    late += [f"{machine.name} is {machine.state} and not in the batch" for machine in outsiders]
    return _few(late)


# --- pace ------------------------------------------------------------------------------------


def pace_of(wave: Wave) -> planning.Pace | None:
    """Return how many attempts of its rollout a wave may have in flight; None: as the caps say.

    See `rollouts.analysis.pacing`: as many as may still fail. Only a later wave may go unpaced.
    """
    rollout = wave.rollout
    if not wave.allows_smoke and not rollout.plan["caps"].get("paced", True):
        return None
    is_failed = [status != AttemptStatus.SUCCEEDED for status in selectors.install_outcomes(wave)]
    alpha, tolerated = _install_levels(wave)
    budget = pacing.failure_budget(is_failed, alpha=alpha, tolerated=tolerated)
    if budget is None:
        return None
    failures, attempts = selectors.cumulative_attempts(rollout)
    limit = pacing.most_in_flight(
        budget, failures=failures, attempts=attempts, is_smoke=wave.allows_smoke
    )
    return planning.Pace(
        limit=limit,
        in_flight=Attempt.objects.filter(rollout=rollout, status__in=IN_FLIGHT).count(),
        because=(
            f"{budget} more of them may fail before it stops, and {failures} of {attempts} "
            "installs have failed so far"
        ),
    )


def _install_levels(wave: Wave) -> tuple[float, float | None]:
    """Return the install guardrail's halt level in the wave and the failure share it tolerates."""
    alpha, tolerance = _planned_levels(json.dumps(wave.rollout.plan))
    if tolerance is None:
        return 0.0, None
    baseline = aggregation.install_baseline(wave.rollout)
    return alpha, max(tolerance, proportions.TOLERATED_TIMES_BASELINE * baseline)


@functools.lru_cache(maxsize=64)
def _planned_levels(plan: str) -> tuple[float, float | None]:
    """Return the same by the plan alone; asked at every step of an install, so it is kept."""
    document = json.loads(plan)
    policy = policies.policy_from(document, kind=policies.Kind.PLAN)
    own = [g for g in policy.guardrails if g.metric is Metric.INSTALL and g.halt]
    if not own:
        return 0.0, None
    alphas = share_alpha(
        policy.alpha,
        {g.name: HaltClaim(g.metric.value, halts=g.halt) for g in policy.guardrails},
        waves=len(document["waves"]),
        has_surveillance=True,
        weights={metric.value: share for metric, share in policy.weights.items()},
    )
    return float(alphas[own[0].name]), own[0].tolerance
