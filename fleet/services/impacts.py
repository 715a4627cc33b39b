"""Record what incidents did to the work of jobs: once per source key, corrected by a new row."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from math import isfinite
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from fleet import goodput
from fleet.errors import ImpactConflict, ImpactRefused
from fleet.models import Incident, JobImpact, JobKind, Machine

#: Source of the impacts that are made of interruptions which machines told of.
BY_INTERRUPTIONS = "interruptions"
#: Two words about one job this close are about the same interruption.
SAME = timedelta(minutes=5)
#: A teller's clock may run ahead by this.
AHEAD = timedelta(minutes=5)
LONGEST_SECONDS = 400 * 86400.0
MOST = 2_147_483_647

_SECONDS = ("recovery_seconds", "stall_seconds", "repeated_seconds", "step_seconds")
_COUNTS = ("replicas_affected", "replicas_total", "accelerators", "repeated_steps")
_TEXTS: Mapping[str, int] = {"job": 100, "source_key": 200}


@dataclass(frozen=True)
class Impact:
    """What a source says of one effect on one job; None: it does not say.

    Parameters
    ----------
    fault_at, detected_at, resumed_at : datetime
        The fault, when somebody noticed, the first productive step after it.
    recovery_seconds : float
        Where it is not `resumed_at` less `fault_at`.
    repeated_seconds, repeated_steps, step_seconds : numbers
        Work done twice; seconds follow from steps where the mean time of one is given.
    cause : str
        Where no incident explains it; an incident has its own cause.
    caused_by, caused_by_key
        The impact whose job took this one's place: its row, or its key within the same source.
    corrects : JobImpact
        The row that this one takes the place of.
    """

    outcome: str
    fault_at: datetime
    source_key: str
    incident: Incident | None = None
    machine: Machine | None = None
    cause: str = ""
    job: str = ""
    job_kind: str = ""
    detected_at: datetime | None = None
    resumed_at: datetime | None = None
    recovery_seconds: float | None = None
    stall_seconds: float | None = None
    replicas_affected: int | None = None
    replicas_total: int | None = None
    accelerators: int | None = None
    repeated_seconds: float | None = None
    repeated_steps: int | None = None
    step_seconds: float | None = None
    slowdown: float | None = None
    caused_by: JobImpact | None = None
    caused_by_key: str = ""
    corrects: JobImpact | None = None


@dataclass(frozen=True)
class RefusedImpact:
    """Why one impact of many was not recorded; `index` counts from 0."""

    index: int
    source_key: str
    reasons: Sequence[str]


@dataclass(frozen=True)
class ImpactsResult:
    """What became of many impacts; `ids` has one entry for each, None where it was refused."""

    accepted: int
    duplicates: int
    refused: Sequence[RefusedImpact]
    ids: Sequence[int | None]


def record_impacts(
    impacts: Sequence[Impact], *, source: str, now: datetime, user: User | None = None
) -> ImpactsResult:
    """Record many impacts of one source, in their order; each is taken or refused by itself."""
    ids: list[int | None] = []
    refused: list[RefusedImpact] = []
    accepted = 0
    for index, told in enumerate(impacts):
        try:
            row, is_new = record_impact(told, source=source, now=now, user=user)
        except ImpactRefused as why:
            refused.append(RefusedImpact(index, told.source_key, why.reasons))
            ids.append(None)
        except ImpactConflict as why:
            refused.append(RefusedImpact(index, told.source_key, [str(why)]))
            ids.append(None)
        else:
            accepted += is_new
            ids.append(row.pk)
    return ImpactsResult(accepted, len(impacts) - len(refused) - accepted, refused, ids)


@transaction.atomic
def record_impact(
    told: Impact, *, source: str, now: datetime, user: User | None = None
) -> tuple[JobImpact, bool]:
    """Record one impact; return its row, and whether it is new.

    Safe to repeat: the same key of the same source is the same impact. What a source tells of a
    job takes the place of what the telemetry of its machines said of the same interruption.

    Raises
    ------
    ImpactRefused
        If something of it cannot be: it ends before it begins, more replicas are affected than
        there are, a number is negative, the row to be corrected was corrected already.
    ImpactConflict
        If the key was used before, for something else.
    """
    reasons = wrong_with(told, source=source, now=now)
    if reasons:
        raise ImpactRefused(reasons)
    if told.caused_by_key:
        told = replace(told, caused_by=_named(told, source=source), caused_by_key="")
    values = _values(told)
    known = JobImpact.objects.filter(source=source, source_key=told.source_key).first()
    if known is not None:
        _refuse_other(known, values, told=told)
        return known, False
    if told.corrects is not None:
        _refuse_corrected(told.corrects)
    else:
        values["corrects"] = _by_telemetry(told, source=source)
    row = JobImpact.objects.create(
        **values,
        source=source,
        source_key=told.source_key,
        user=user,
        recorded_at=timezone.now(),
    )
    return row, True


def _named(told: Impact, *, source: str) -> JobImpact:
    """Return the impact that the same source named before."""
    cause = JobImpact.objects.filter(source=source, source_key=told.caused_by_key).first()
    if cause is None:
        said = f"{told.caused_by_key!r}: {source} told of no impact of that key before this one"
        raise ImpactRefused([f"caused_by_key: {said}"])
    if wrong := list(_wrong_links(replace(told, caused_by=cause, caused_by_key=""))):
        raise ImpactRefused(wrong)
    return cause


def _values(told: Impact) -> dict[str, Any]:
    """Return the columns of an impact, with what follows from what was told."""
    names = {one.name for one in fields(told)} - {"source_key", "step_seconds", "caused_by_key"}
    values: dict[str, Any] = {name: getattr(told, name) for name in names}
    if told.incident is not None:
        values["incident"] = told.incident.merged_into or told.incident
        values["machine"] = told.machine or told.incident.machine
    if told.repeated_seconds is None and told.repeated_steps is not None and told.step_seconds:
        values["repeated_seconds"] = told.repeated_steps * told.step_seconds
    lost = goodput.accelerator_hours_lost(JobImpact(**values).interruption())
    return values | {"accelerator_hours_lost": lost.value, "formula": lost.formula}


def _refuse_other(known: JobImpact, values: Mapping[str, Any], *, told: Impact) -> None:
    names = [name for name in values if name not in ("corrects", "incident")]
    if told.corrects is not None:
        names.append("corrects")
    other = [name for name in names if getattr(known, name) != values[name]]
    if other:
        before = f"{known.source} told of {known.source_key!r} before, as impact {known.pk}"
        raise ImpactConflict(
            f"{before}, with another {', '.join(sorted(other))}; a correction has a key of its own"
        )


def _refuse_corrected(row: JobImpact) -> None:
    """Lock the row: of two corrections one comes first, and the other has to name that one."""
    JobImpact.objects.select_for_update().get(pk=row.pk)
    later = JobImpact.objects.filter(corrects=row).first()
    if later is not None:
        said = f"impact {row.pk} was corrected by impact {later.pk} already; correct that one"
        raise ImpactRefused([f"corrects: {said}"])


def _by_telemetry(told: Impact, *, source: str) -> JobImpact | None:
    """Return the row that machines' telemetry made of the same interruption, if there is one."""
    if not told.job or source == BY_INTERRUPTIONS:
        return None
    rows = JobImpact.objects.select_for_update(of=("self",)).filter(
        source=BY_INTERRUPTIONS,
        job=told.job,
        fault_at__gte=told.fault_at - SAME,
        fault_at__lte=told.fault_at + SAME,
    )
    standing = [row for row in rows if not JobImpact.objects.filter(corrects=row).exists()]
    return min(standing, key=lambda row: abs(row.fault_at - told.fault_at), default=None)


# --- what cannot be -------------------------------------------------------------------------------


def wrong_with(told: Impact, *, source: str, now: datetime) -> list[str]:
    """Return everything that is wrong with an impact: `field: value seen and what is needed`."""
    return [
        *_wrong_words(told, source=source),
        *_wrong_times(told, now=now),
        *_wrong_numbers(told),
        *_wrong_links(told),
    ]


def _wrong_words(told: Impact, *, source: str) -> Iterator[str]:
    if not source.strip() or len(source) > 100:
        yield f"source: {source[:100]!r}; a name of 1 to 100 characters is needed"
    for name, longest in _TEXTS.items():
        text = getattr(told, name)
        if len(text) > longest or "\x00" in text:
            yield f"{name}: {text[:100]!r}; at most {longest} characters, none of them NUL"
    if not told.source_key.strip():
        yield "source_key: empty; a key that names this impact within its source is needed"
    for name, known in (
        ("outcome", JobImpact.Outcome.values),
        ("job_kind", ["", *JobKind.values]),
        ("cause", ["", *Incident.Cause.values]),
    ):
        if getattr(told, name) not in known:
            accepted = ", ".join(filter(None, known))
            yield f"{name}: {getattr(told, name)[:100]!r} is unknown; accepted: {accepted}"
    if told.outcome == JobImpact.Outcome.NO_JOB and told.job:
        yield f"job: {told.job!r}, but the outcome says that there was no job"


def _wrong_times(told: Impact, *, now: datetime) -> Iterator[str]:
    if told.fault_at > now + AHEAD:
        yield f"fault_at: {told.fault_at.isoformat()} is still to come; it is {now.isoformat()}"
    if told.resumed_at is not None:
        if told.resumed_at < told.fault_at:
            yield f"resumed_at: {told.resumed_at.isoformat()} is before {_at(told)}, when it began"
        if told.resumed_at > now + AHEAD:
            yield f"resumed_at: {told.resumed_at.isoformat()} is still to come"
    if told.detected_at is not None:
        if told.detected_at < told.fault_at:
            yield f"detected_at: {told.detected_at.isoformat()} is before {_at(told)}, the fault"
        if told.resumed_at is not None and told.detected_at > told.resumed_at:
            ended = told.resumed_at.isoformat()
            yield f"detected_at: {told.detected_at.isoformat()} is after {ended}, when work resumed"


def _at(told: Impact) -> str:
    return told.fault_at.isoformat()


def _wrong_numbers(told: Impact) -> Iterator[str]:
    for name in _SECONDS:
        value = getattr(told, name)
        if value is not None and not (isfinite(value) and 0 <= value <= LONGEST_SECONDS):
            yield f"{name}: {value}; 0 to {LONGEST_SECONDS:.0f} seconds are taken"
    for name in _COUNTS:
        value = getattr(told, name)
        least = 1 if name in ("replicas_total", "accelerators") else 0
        if value is not None and not least <= value <= MOST:
            yield f"{name}: {value}; a whole number from {least} is needed"
    if told.slowdown is not None and not 0 <= told.slowdown <= 1:  # NaN is not within either
        yield f"slowdown: {told.slowdown}; a share in [0, 1] is needed"
    affected, total = told.replicas_affected, told.replicas_total
    if affected is not None and total is None:
        yield f"replicas_affected: {affected} of how many? replicas_total is needed with it"
    if affected is not None and total is not None and affected > total:
        yield f"replicas_affected: {affected} is more than the {total} that there are"


def _wrong_links(told: Impact) -> Iterator[str]:
    if told.incident is not None:
        if told.cause:
            yield f"cause: {told.cause!r}; incident {told.incident.pk} has its own, name it there"
        if told.machine is not None and told.machine.pk != told.incident.machine_id:
            yield f"machine: {told.machine} is not {told.incident.machine} of the incident"
    if told.caused_by is not None and told.job and told.caused_by.job == told.job:
        yield f"caused_by: impact {told.caused_by.pk} is of {told.job!r}, the same job"
    if told.caused_by is not None and told.caused_by_key:
        yield f"caused_by_key: {told.caused_by_key!r}; either it or caused_by is given, not both"
    if told.corrects is not None and told.caused_by == told.corrects:
        yield f"caused_by: impact {told.corrects.pk} is the one that is corrected"
