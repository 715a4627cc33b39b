"""What people say of an incident: diagnosis, cause, the change behind it, supplier case, notes."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from fleet.errors import IncidentClosed, IncidentRefused
from fleet.models import Change, FirmwareBundle, Incident, IncidentEvent, RepairKind

LONGEST_SAID = 800  # an event holds it with what it is about
LONGEST_CASE = 100
LONGEST_COMPONENT = 80


@transaction.atomic
def diagnose_incident(
    incident: Incident,
    *,
    diagnosis: str,
    cause: str,
    actor: str,
    now: datetime,
    component: str = "",
    repair_kind: str = "",
    confidence: str = "",
    user: User | None = None,
) -> IncidentEvent:
    """Say what is wrong: component, cause, what kind of repair, and how sure it is.

    A later diagnosis takes the place of an earlier one; each is kept as an event. Nothing is
    repaired by it: a repair is ordered.

    Raises
    ------
    IncidentRefused
        If there are no words, or cause, kind of repair or confidence are none of the known ones.
    IncidentClosed
        If the incident is over; a cause that is found later is said by `name_cause`.
    """
    said = _words(diagnosis, "diagnosis", longest=LONGEST_SAID)
    _one_of(cause, "cause", Incident.Cause.values)
    _one_of(repair_kind, "repair_kind", ["", *RepairKind.values])
    _one_of(confidence, "confidence", ["", *Incident.Confidence.values])
    fields: dict[str, Any] = {
        "diagnosis": said,
        "cause": cause,
        "repair_kind": repair_kind,
        "confidence": confidence,
    }
    if component.strip():
        fields["component"] = _words(component, "component", longest=LONGEST_COMPONENT)
    _refuse_part_of_other(incident)
    if not Incident.objects.filter(pk=incident.pk, closed_at=None).update(**fields):
        raise IncidentClosed(
            f"incident {incident.pk} is over and takes no diagnosis; name its cause, link a "
            "change, open a supplier case or leave a note"
        )
    incident.refresh_from_db()
    parts = [cause, incident.component, repair_kind, f"{confidence} confidence" * bool(confidence)]
    text = f"{said} ({', '.join(filter(None, parts))})"
    return _say(incident, IncidentEvent.Kind.DIAGNOSED, text, actor=actor, now=now, user=user)


@transaction.atomic
def name_cause(
    incident: Incident,
    *,
    cause: str,
    said: str,
    actor: str,
    now: datetime,
    user: User | None = None,
) -> IncidentEvent:
    """Say what the cause was, also when the incident is over: suppliers answer weeks later.

    Raises
    ------
    IncidentRefused
        If the cause is none of the known ones, or nothing says how that is known.
    IncidentClosed
        If the incident is part of another one.
    """
    words = _words(said, "said", longest=LONGEST_SAID)
    _one_of(cause, "cause", Incident.Cause.values)
    _overwrite(incident, cause=cause)
    text = f"{cause}: {words}"
    return _say(incident, IncidentEvent.Kind.CAUSE_NAMED, text, actor=actor, now=now, user=user)


@transaction.atomic
def link_change(
    incident: Incident,
    *,
    actor: str,
    now: datetime,
    change: Change | None = None,
    bundle: FirmwareBundle | None = None,
    said: str = "",
    user: User | None = None,
) -> IncidentEvent:
    """Say which change answers the incident: of a part, a setting or a place, or a bundle.

    The link is what a later comparison of before and after starts from.

    Raises
    ------
    IncidentRefused
        If neither or both are given, the change did not touch the incident's machine, or the
        bundle is not for its platform.
    IncidentClosed
        If the incident is part of another one.
    """
    if (change is None) == (bundle is None):
        raise IncidentRefused("either a change or a bundle is linked, and one of them is needed")
    machine = incident.machine
    if change is not None:
        if not change.touched.filter(machine=machine).exists():
            raise IncidentRefused(
                f"change {change.pk} ({change}) did not touch {machine}; a change of this machine "
                "is needed"
            )
        _overwrite(incident, change=change)
    if bundle is not None:
        if not bundle.platforms.filter(pk=machine.platform_id).exists():
            covered = ", ".join(bundle.platforms.values_list("name", flat=True)) or "none"
            raise IncidentRefused(
                f"{bundle} is not for {machine.platform} of {machine}; its platforms: {covered}"
            )
        _overwrite(incident, bundle=bundle)
    text = f"{change or bundle} {said.strip()}".strip()
    return _say(incident, IncidentEvent.Kind.CHANGE_LINKED, text, actor=actor, now=now, user=user)


@transaction.atomic
def open_case(
    incident: Incident,
    *,
    supplier_case: str,
    actor: str,
    now: datetime,
    said: str = "",
    user: User | None = None,
) -> IncidentEvent:
    """Name the supplier's case; the package for its review is made by it.

    Raises
    ------
    IncidentRefused
        If the name is empty or too long.
    IncidentClosed
        If the incident is part of another one.
    """
    case = _words(supplier_case, "supplier_case", longest=LONGEST_CASE)
    _overwrite(incident, supplier_case=case)
    text = f"{case} {said.strip()}".strip()
    return _say(incident, IncidentEvent.Kind.CASE_OPENED, text, actor=actor, now=now, user=user)


@transaction.atomic
def note_incident(
    incident: Incident, *, said: str, actor: str, now: datetime, user: User | None = None
) -> IncidentEvent:
    """Leave a word.

    Raises
    ------
    IncidentRefused
        If there are no words.
    IncidentClosed
        If the incident is part of another one.
    """
    words = _words(said, "said", longest=LONGEST_SAID)
    _refuse_part_of_other(incident)
    return _say(incident, IncidentEvent.Kind.NOTE, words, actor=actor, now=now, user=user)


def _overwrite(incident: Incident, **fields: Any) -> None:
    _refuse_part_of_other(incident)
    Incident.objects.filter(pk=incident.pk).update(**fields)
    incident.refresh_from_db()


def _refuse_part_of_other(incident: Incident) -> None:
    """Read under the row's lock, so that nothing is said of an incident while it is merged."""
    row = Incident.objects.select_for_update().only("merged_into").get(pk=incident.pk)
    if row.merged_into_id is not None:
        raise IncidentClosed(
            f"incident {incident.pk} is part of incident {row.merged_into_id}; say it there"
        )


def _words(text: str, name: str, *, longest: int) -> str:
    words = text.strip()
    if not words or len(words) > longest or "\x00" in words:
        raise IncidentRefused(
            f"{name}: {words[:100]!r} has {len(words)} characters; 1 to {longest} are needed, "
            "none of them NUL"
        )
    return words


def _one_of(value: str, name: str, known: Collection[str]) -> None:
    if value not in known:
        accepted = ", ".join(one for one in known if one)
        raise IncidentRefused(f"{name}: {value[:100]!r} is unknown; accepted: {accepted}")


def _say(
    incident: Incident,
    kind: str,
    said: str,
    *,
    actor: str,
    now: datetime,
    user: User | None,
) -> IncidentEvent:
    return IncidentEvent.objects.create(
        incident=incident,
        kind=kind,
        said=said,
        at=now,
        actor=actor,
        user=user,
        recorded_at=timezone.now(),
    )
