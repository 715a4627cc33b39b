"""From a draft to an approved plan: who, in what order, in which wave, judged how."""

import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, QuerySet

from fleet import selectors as fleet_selectors
from fleet.lifecycle import State
from fleet.models import BundleStatus, Fault, FirmwareBundle, Machine
from rollouts import planning, policies
from rollouts.analysis.policy import Metric
from rollouts.errors import PlanRefused, SamePerson
from rollouts.lifecycle import AttemptStatus, Status, Trigger, next_status
from rollouts.models import Assignment, Attempt, Order, Policy, Rollout, Wave
from rollouts.services.forecast import forecast, wave_alphas
from rollouts.services.records import move, record_order

#: Faults that far back decide a machine's class of recent faults.
RECENT = timedelta(days=14)
#: Metrics that are judged by re-assignment, so that the design has to reach their alpha.
_DRAWN = frozenset(Metric) - {Metric.INSTALL}
#: A rollout in one of these keeps its machines to itself.
_HOLDS_MACHINES = (
    Status.AWAITING_APPROVAL,
    Status.APPROVED,
    Status.RUNNING,
    Status.PAUSED,
    Status.HALTED,
    Status.ROLLING_BACK,
)


@transaction.atomic
def create_draft(
    *,
    name: str,
    bundle: FirmwareBundle,
    selector: str,
    document: Mapping[str, Any],
    author: User,
    now: datetime,
    seed: int | None = None,
    mode: str | None = None,
    policy: Policy | None = None,
) -> Rollout:
    """Write a plan down; nothing is drawn or frozen before it is submitted.

    `document` follows `$defs/plan` of `policy.schema.json`; what it leaves out comes from the
    policy, then from the schema's defaults, so that the draft shows everything that will be
    judged. The seed is drawn once and kept: the same draft always yields the same random order.
    Where neither says a mode, a site's first rollout only advises to widen.

    Raises
    ------
    PolicyRefused
        If the document breaks the schema; every breach is listed.
    SelectorError
        If the selector is empty, malformed, or names what does not exist.
    """
    wanted = {**(policy.document if policy else {}), **document, "selector": selector}
    if mode is not None:
        wanted["mode"] = mode
    if "mode" not in wanted and _is_first_of_a_site(selector):
        wanted["mode"] = Rollout.Mode.ADVISE.value
    plan = policies.plan_from(wanted)
    return Rollout.objects.create(
        name=name,
        bundle=bundle,
        selector=selector,
        mode=plan["mode"],
        policy=policy,
        plan=plan,
        seed=secrets.randbits(62) if seed is None else seed,
        author=author,
        created_at=now,
    )


def _is_first_of_a_site(selector: str) -> bool:
    """Tell whether some site of the selected machines has never seen a rollout completed."""
    sites = fleet_selectors.machines_matching(selector).values_list("site", flat=True).distinct()
    seen = Assignment.objects.filter(
        rollout__status=Status.COMPLETED,
        rollout__kind=Rollout.Kind.UPDATE,
        machine__site__in=sites,
    )
    known = set(seen.values_list("machine__site", flat=True).distinct())
    return not set(sites) <= known


@transaction.atomic
def save_policy(
    *, name: str, document: Mapping[str, Any], author: User | None, now: datetime
) -> Policy:
    """Store the next version of a named policy; a version never changes, plans copy it.

    Saving what the newest version says already returns that version.

    Raises
    ------
    PolicyRefused
        If the document breaks the schema; every breach is listed.
    """
    policies.plan_from(dict(document))
    digest = planning.document_digest(document)
    newest = Policy.objects.select_for_update().filter(name=name).order_by("-version").first()
    if newest is not None and newest.digest == digest:
        return newest
    return Policy.objects.create(
        name=name,
        version=newest.version + 1 if newest else 1,
        document=dict(document),
        digest=digest,
        author=author,
        created_at=now,
    )


@transaction.atomic
def submit(rollout: Rollout, *, actor: User, now: datetime) -> Order:
    """Draw and store the assignment, freeze the plan under a digest, and ask for approval.

    Raises
    ------
    PlanRefused
        With every reason at once.
    """
    next_status(Status(rollout.status), Trigger.SUBMIT)
    # Held, so that of two plans over the same machines the later one sees the earlier; in the
    # order in which attempts take machines, so that neither waits for the other crosswise.
    held = eligible(rollout).select_for_update(of=("self",), no_key=True).order_by("pk")
    machines = sorted(held.select_related("platform"), key=lambda machine: machine.name)
    design = draw(rollout, machines, now=now)
    reasons = _reasons_against(rollout, machines, design)
    if reasons:
        raise PlanRefused(reasons)
    _store(rollout, machines, design, now=now)
    order = record_order(rollout, Order.Kind.SUBMIT, actor=actor, now=now)
    digest = planning.plan_digest({**rollout.plan, "seed": rollout.seed}, design.rows)
    move(rollout, Trigger.SUBMIT, cause=order, now=now, plan_digest=digest, submitted_at=now)
    return order


def eligible(rollout: Rollout) -> QuerySet[Machine]:
    """Return the machines of the selector that the bundle fits and that are in service.

    A machine that fell back from this bundle has declined it, until somebody has triaged why.
    """
    declined = Attempt.objects.filter(
        rollout__bundle=rollout.bundle,
        rollout__kind=Rollout.Kind.UPDATE,
        status=AttemptStatus.FELL_BACK,
        triage="",
    )
    return (
        fleet_selectors.machines_matching(rollout.selector)
        .filter(platform__in=rollout.bundle.platforms.all(), state=State.IN_SERVICE)
        .exclude(pk__in=declined.values("machine"))
    )


def draw(rollout: Rollout, machines: list[Machine], *, now: datetime) -> planning.Assignments:
    """Draw the one random order of the rollout from its own seed: same draft, same order."""
    policy = policies.policy_from(rollout.plan, kind=policies.Kind.PLAN)
    keys = policy.strata or planning.DEFAULT_STRATA
    units = _units(rollout, machines, unit=policy.unit, keys=keys, now=now)
    specs = [planning.WaveSpec.of(wave) for wave in rollout.plan["waves"]]
    return planning.draw_order(
        units,
        sizes=planning.wave_sizes(len(units), specs, hold_back=policy.hold_back),
        seed=rollout.seed,
        salt=f"rollout {rollout.pk}",
        strata=keys,
    )


def _units(
    rollout: Rollout,
    machines: list[Machine],
    *,
    unit: str,
    keys: tuple[str, ...],
    now: datetime,
) -> list[planning.UnitInput]:
    values = _stratum_values(rollout, machines, keys=keys, now=now)
    members: dict[str, list[Machine]] = {}
    for machine in machines:
        members.setdefault(_placement(machine, unit), []).append(machine)
    return [
        planning.UnitInput(
            name=name,
            fields={
                key: "+".join(sorted({values[machine.pk][key] for machine in group}))
                for key in keys
            },
            machines=tuple(machine.name for machine in group),
        )
        for name, group in members.items()
    ]


def _placement(machine: Machine, unit: str) -> str:
    if unit == "machine":
        return machine.name
    value = getattr(machine, unit, "") or machine.labels.get(unit, "")
    return value or machine.name


def _stratum_values(
    rollout: Rollout, machines: list[Machine], *, keys: tuple[str, ...], now: datetime
) -> dict[int, dict[str, str]]:
    versions = fleet_selectors.versions_now([machine.pk for machine in machines])
    kinds = list(rollout.bundle.places.order_by("position").values_list("image__kind", flat=True))
    faults = dict(
        Fault.objects.filter(machine__in=eligible(rollout), time__gt=now - RECENT, time__lte=now)
        .values_list("machine")
        .annotate(n=Count("pk"))
        .order_by("machine")
    )
    known = {
        "platform": lambda machine: machine.platform.name,
        "from_version": lambda machine: _from_version(versions.get(machine.pk, {}), kinds),
        "recent_faults": lambda machine: planning.recent_fault_class(faults.get(machine.pk, 0)),
    }
    return {
        machine.pk: {
            key: known[key](machine) if key in known else _field(machine, key) for key in keys
        }
        for machine in machines
    }


def _from_version(present: Mapping[str, str], kinds: list[str]) -> str:
    """Name the present version of each kind; parts of one kind may run several."""
    return ", ".join(
        f"{kind} {'/'.join(sorted({v for k, v in present.items() if k.split('/')[0] == kind}))}"
        for kind in kinds
    )


def _field(machine: Machine, key: str) -> str:
    return str(getattr(machine, key, "") or machine.labels.get(key, ""))


def _reasons_against(
    rollout: Rollout, machines: list[Machine], design: planning.Assignments
) -> list[str]:
    reasons = []
    if rollout.bundle.status != BundleStatus.APPROVED:
        reasons.append(f"bundle {rollout.bundle} is {rollout.bundle.status}, not approved")
    if not machines:
        reasons.append(
            f"selector {rollout.selector!r} selects no machine in service that bundle "
            f"{rollout.bundle} fits"
        )
    busy = Assignment.objects.filter(
        machine__in=eligible(rollout),
        rollout__status__in=_HOLDS_MACHINES,
    ).values_list("rollout__name", flat=True)
    for name in sorted(set(busy.order_by().distinct())):
        reasons.append(f"machines are in rollout {name!r} already")
    policy = policies.policy_from(rollout.plan, kind=policies.Kind.PLAN)
    alphas = wave_alphas(policy, waves=len(design.sizes))
    judged = {g.name: alphas[g.name] for g in policy.guardrails if g.halt and g.metric in _DRAWN}
    metrics = [metric.value for metric in Metric]
    return reasons + planning.refuse(
        rollout.plan, assignments=design, alphas=judged, metrics=metrics
    )


def _store(
    rollout: Rollout, machines: list[Machine], design: planning.Assignments, *, now: datetime
) -> None:
    Assignment.objects.filter(rollout=rollout).delete()
    Wave.objects.filter(rollout=rollout).delete()
    by_name = {machine.name: machine for machine in machines}
    Assignment.objects.bulk_create(
        [
            Assignment(
                rollout=rollout,
                machine=by_name[name],
                machine_name=name,
                unit=place.unit,
                stratum=place.stratum,
                position=place.position,
                planned_wave=place.planned_wave,
                is_hold_back=place.is_hold_back,
            )
            for place in design.rows
            for name in place.machines
        ],
        batch_size=1000,
    )
    specs = rollout.plan["waves"]
    words = forecast(rollout, design, now=now)
    Wave.objects.bulk_create(
        [
            Wave(
                rollout=rollout,
                number=number,
                size=design.sizes[number - 1],
                window_hours=spec["window_hours"],
                allows_smoke=spec["allows_smoke"],
                forecast=words[number - 1],
            )
            for number, spec in enumerate(specs, start=1)
        ]
    )
    Wave.objects.create(
        rollout=rollout,
        number=len(specs) + 1,
        kind=Wave.Kind.RELEASE,
        size=sum(place.is_hold_back for place in design.rows),
        window_hours=0,
    )


@transaction.atomic
def approve(rollout: Rollout, *, actor: User, now: datetime, reason: str = "") -> Order:
    """Sign the plan's digest; the approver is never the author.

    Raises
    ------
    SamePerson
        Unless the site allows one person to do both (`ALLOW_SELF_APPROVAL`), which the order says.
    """
    is_same = actor.pk == rollout.author_id
    if is_same and not settings.ALLOW_SELF_APPROVAL:
        raise SamePerson(f"{actor} wrote the plan of {rollout}; somebody else has to approve it")
    order = record_order(
        rollout,
        Order.Kind.APPROVE,
        actor=actor,
        now=now,
        reason=reason,
        parameters={"plan_digest": rollout.plan_digest, "self_approved": is_same},
    )
    move(rollout, Trigger.APPROVE, cause=order, now=now, approver=actor, approved_at=now)
    return order


@transaction.atomic
def deny(rollout: Rollout, *, actor: User, now: datetime, reason: str) -> Order:
    """Send a plan back to its author as a draft; the drawn order stays with its seed."""
    order = record_order(rollout, Order.Kind.DENY, actor=actor, now=now, reason=reason)
    move(rollout, Trigger.DENY, cause=order, now=now)
    return order
