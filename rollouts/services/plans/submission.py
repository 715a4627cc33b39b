"""From a draft to an approved plan: who, in what order, in which wave, judged how."""

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from fleet import selectors as fleet_selectors
from fleet.bulk import insert_new
from fleet.models import FirmwareBundle
from rollouts import planning, policies
from rollouts.errors import PlanChanged, PlanRefused
from rollouts.lifecycle import Status, Trigger, next_status
from rollouts.models import Assignment, Order, Policy, Preview, Rollout, Wave
from rollouts.services.plans.design import Design, design
from rollouts.services.plans.previews import difference, keep, outlook, uncollected
from rollouts.services.records import lock, move, record_order


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

    Raises
    ------
    PolicyRefused
        If the document breaks the schema; every breach is listed.
    SelectorError
        If the selector is empty, malformed, or names what does not exist.
    """
    draft = draft_of(
        name=name,
        bundle=bundle,
        selector=selector,
        document=document,
        author=author,
        now=now,
        seed=seed,
        mode=mode,
        policy=policy,
    )
    draft.save(force_insert=True)
    return draft


def draft_of(
    *,
    name: str,
    bundle: FirmwareBundle,
    selector: str,
    document: Mapping[str, Any],
    author: User | None,
    now: datetime,
    seed: int | None = None,
    mode: str | None = None,
    policy: Policy | None = None,
) -> Rollout:
    """Return a draft that is not stored yet.

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
    return Rollout(
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
def submit(rollout: Rollout, *, actor: User, now: datetime, digest: str | None = None) -> Order:
    """Store the drawn order, freeze the plan under its digest, and ask for approval.

    With the digest of a preview exactly what that preview showed is stored, or nothing. Without
    one it is what the draft's last preview showed, or nothing; a draft that nobody previewed has
    promised nothing and is drawn now. The draft's row is held meanwhile: a preview at the same
    time comes before all of this, or finds no draft any more.

    Raises
    ------
    StaleRollout
        If somebody else submitted or cancelled the draft since it was read.
    PlanChanged
        If the fleet or the plan is not what the preview showed; it names the difference.
    PlanRefused
        With every reason at once.
    """
    next_status(Status(rollout.status), Trigger.SUBMIT)
    lock(rollout, Status.DRAFT)
    rollout.refresh_from_db()  # plan and bundle as they stand, not as they were read
    with uncollected():
        _hold_machines(rollout)
        made = design(rollout, now=now)
        _check_promise(rollout, made, digest=digest)
        if made.reasons:
            raise PlanRefused(list(made.reasons))
        words = outlook(rollout, made, now=now)
        _store(rollout, made, words=words)
        keep(rollout, made, words=words, now=now)
    order = record_order(
        rollout, Order.Kind.SUBMIT, actor=actor, now=now, parameters={"plan_digest": made.digest}
    )
    move(rollout, Trigger.SUBMIT, cause=order, now=now, plan_digest=made.digest, submitted_at=now)
    return order


def _hold_machines(rollout: Rollout) -> None:
    """Hold the rows of the machines, so that of two plans over them the later sees the earlier.

    In the order in which attempts take machines, so that neither waits for the other crosswise.
    """
    machines = fleet_selectors.machines_matching(rollout.selector).order_by("pk")
    held = machines.select_for_update(of=("self",), no_key=True).values_list("pk", flat=True)
    for _ in held.iterator(chunk_size=10_000):
        pass


def _check_promise(rollout: Rollout, made: Design, *, digest: str | None) -> None:
    if digest is None:
        last = rollout.previews.first()
        if last is not None and last.digest != made.digest:
            raise _changed_since(last, made)
        return
    if digest == made.digest:
        return
    seen = rollout.previews.filter(digest=digest).first()
    if seen is None:
        raise PlanChanged(f"no preview of {rollout} has the digest {digest!r}; look at a new one")
    raise _changed_since(seen, made)


def _changed_since(seen: Preview, made: Design) -> PlanChanged:
    sentence, reasons = difference(seen, made)
    return PlanChanged(f"{sentence}; look at a new preview", reasons)


def _store(rollout: Rollout, made: Design, *, words: Sequence[Mapping[str, Any]]) -> None:
    drawn = made.assignments
    Assignment.objects.filter(rollout=rollout).delete()
    Wave.objects.filter(rollout=rollout).delete()
    members = {member.name: member for member in made.population.members}
    insert_new(
        Assignment,
        (
            "rollout_id",
            "machine_id",
            "machine_name",
            "unit",
            "stratum",
            "position",
            "planned_wave",
            "is_hold_back",
            "previous_versions",
            "irreversible",
        ),
        [
            (
                rollout.pk,
                members[name].pk,
                name,
                place.unit,
                place.stratum,
                place.position,
                place.planned_wave,
                place.is_hold_back,
                {},
                members[name].irreversible[:300],
            )
            for place in drawn.rows
            for name in place.machines
        ],
    )
    specs = rollout.plan["waves"]
    Wave.objects.bulk_create(
        [
            Wave(
                rollout=rollout,
                number=number,
                size=drawn.sizes[number - 1],
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
        size=sum(place.is_hold_back for place in drawn.rows),
        window_hours=0,
    )
